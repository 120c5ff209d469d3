use super::*;
use openflow_rs::{FlowMod, WORDS};
use proptest::prelude::*;
use std::time::Duration;

fn arb_match() -> impl Strategy<Value = Match> {
    let field = prop_oneof![
        Just(FieldId::Reg0),
        Just(FieldId::Reg1),
        Just(FieldId::EthType),
        Just(FieldId::IpDst),
        Just(FieldId::Metadata)
    ];
    proptest::collection::vec((field, 0u128..4, prop_oneof![Just(1u128), Just(2), Just(3), Just(u128::MAX)]), 0..4)
        .prop_map(|v| {
            let mut m = Match::new();
            for (f, value, mask) in v {
                m.set_masked(f, value, mask);
            }
            m
        })
        .prop_flat_map(|m| (Just(m), proptest::option::weighted(0.3, prop_oneof![Just(0u128), 0x1_0000u128..0x1_0004])))
        .prop_map(|(m, kind)| kind.map_or(m.clone(), |kind| m.with(FieldId::PacketType, kind)))
}

fn rule(m: &Match, priority: u16) -> Arc<Rule> {
    Arc::new(Rule::new(&FlowMod { matches: m.clone(), priority, ..Default::default() }, Duration::ZERO))
}

proptest! {
    /// Under changing rules, the search finds what a walk over all rules finds, and its wildcards are honest:
    /// a key that differs only in bits not looked at, and is of the same type, gets the same answer.
    #[test]
    fn search_equals_reference(
        ops in proptest::collection::vec((arb_match(), 0u16..6, any::<bool>()), 1..40),
        keys in proptest::collection::vec((0u64..4, 0u64..4, 0u64..4, 0u64..4, any::<u64>(), any::<bool>()), 1..20),
    ) {
        let mut c = Classifier::default();
        for (m, p, remove) in &ops {
            if *remove {
                c.remove(m, *p);
            } else {
                c.insert(rule(m, *p));
            }
        }
        for (a, b, d, e, noise, typed) in keys {
            let mut k = FlowKey::new();
            let kind = if typed { 0x1_0000 | u128::from(d) } else { 0 };
            k.set(FieldId::PacketType, kind);
            for (f, v) in [(FieldId::Reg0, a), (FieldId::Reg1, b), (FieldId::EthType, d), (FieldId::IpDst, e), (FieldId::Metadata, a ^ b)] {
                k.set(f, v.into());
            }
            let mut wc = [0; WORDS];
            let got = c.lookup(&k, &mut wc).map(|r| r.priority);
            prop_assert_eq!(got, reference(c.iter(), &k).map(|r| r.priority));
            prop_assert_eq!(c.lookup_brief(&k).map(|r| r.priority), got);
            let (mut least, mut chosen) = ([0; WORDS], [0; WORDS]);
            prop_assert_eq!(c.lookup_least(&k, &mut least, &mut chosen).map(|r| r.priority), got);
            prop_assert!(least.iter().zip(&wc).all(|(l, w)| l & !w == 0), "no bits that were not compared");
            for looked in [wc, least] {
                let mut other = k.clone();
                for (x, m) in other.0.iter_mut().zip(looked) {
                    *x ^= noise & !m;
                }
                other.set(FieldId::PacketType, kind);
                prop_assert_eq!(c.lookup(&other, &mut [0; WORDS]).map(|r| r.priority), got);
            }
        }
    }
}

#[test]
fn conjunctions_need_every_clause() {
    let flows = [
        "priority=10,ip,nw_src=1.1.1.1 actions=conjunction(5,1/2)",
        "priority=10,tcp,tp_dst=80 actions=conjunction(5,2/2)",
        "priority=10,conj_id=5,ip actions=output:1",
        "priority=1 actions=drop",
    ];
    let mut c = Classifier::default();
    for f in flows {
        c.insert(Arc::new(Rule::new(&openflow_rs::text::parse_flow(f).expect("flow"), Duration::ZERO)));
    }
    let mut k: FlowKey = "tcp,nw_src=1.1.1.1,tp_dst=80".parse::<Match>().expect("match").key();
    let mut wc = [0; WORDS];
    assert_eq!(c.lookup(&k, &mut wc).map(|r| r.actions.len()), Some(1));
    k.set(FieldId::TcpDst, 81);
    assert_eq!(c.lookup(&k, &mut wc).map(|r| r.priority), Some(1));
}

proptest! {
    /// A copy that others change leaves the table as it was.
    #[test]
    fn a_copy_has_flows_of_its_own(
        first in proptest::collection::vec((arb_match(), 0u16..6), 1..60),
        then in proptest::collection::vec((arb_match(), 0u16..6, any::<bool>()), 1..40),
    ) {
        let mut c = Classifier::default();
        first.iter().for_each(|(m, p)| _ = c.insert(rule(m, *p)));
        let flows = |c: &Classifier| {
            let mut all: Vec<_> = c.iter().map(|r| (r.priority, format!("{:?}", r.matches))).collect();
            all.sort_unstable();
            all
        };
        let (before, mut copy) = (flows(&c), c.clone());
        for (m, p, remove) in &then {
            if *remove {
                copy.remove(m, *p);
            } else {
                copy.insert(rule(m, *p));
            }
        }
        prop_assert_eq!(flows(&c), before);
        prop_assert_eq!(c.len(), c.iter().count());
        prop_assert_eq!(copy.len(), copy.iter().count());
    }
}

/// A copy of a table shares the flows of all logical datapaths but those that it changes.
#[test]
fn a_copy_shares_what_it_does_not_change() {
    let of = |metadata: u128, n: u128| Match::new().with(FieldId::Metadata, metadata).with(FieldId::Reg0, n);
    let mut c = Classifier::default();
    (0..300).for_each(|d| (0..9).for_each(|n| _ = c.insert(rule(&of(d, n), 1))));
    let mut copy = c.clone();
    copy.insert(rule(&of(7, 9), 1));
    copy.remove(&of(8, 3), 1);
    let shared = |d: &(u64, Arc<Part>)| copy.datapaths.iter().any(|e| Arc::ptr_eq(&e.1, &d.1));
    let own: Vec<u64> = c.datapaths.iter().filter(|d| !shared(d)).map(|d| d.0).collect();
    assert_eq!(own.iter().copied().collect::<std::collections::BTreeSet<u64>>(), [7, 8].into());
}
