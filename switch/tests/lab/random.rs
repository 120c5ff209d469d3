//! Random tables in both switches, with packets aimed at their flows; what both refuse, they refuse with the same error.
//!
//! `RANDOM_CASES=N` says how many, `RANDOM_SEED=N` which is the first, `RANDOM_PACKETS=N` how many packets each gets,
//! `RANDOM_SHOW=N` how many that disagree are made small and shown.

use crate::compare::{Case, Count, Pair, run, setting};
use crate::grammar::Grammar;
use crate::ovs::Ovs;
use openflow_rs::text::{flow_to_string, group_to_string, parse_flow};
use openflow_rs::*;
use rand::prelude::*;
use std::panic::AssertUnwindSafe;

/// Bursts of packets.
pub type Packets = Vec<Vec<(u16, Vec<u8>)>>;

fn tried(ovs: &mut Ovs, case: &Case, packets: &[Vec<(u16, Vec<u8>)>]) -> Count {
    let mut pair = Pair::new(ovs, &case.name);
    pair.errors = true;
    pair.learn_of(&case.flows);
    pair.patience = 5;
    pair.load(&case.messages());
    for burst in packets {
        pair.burst(burst);
    }
    pair.finish()
}

/// All lists that lack a part of this one: a half first, single ones last.
fn without<T: Clone>(list: &[T], n: usize) -> Vec<Vec<T>> {
    let starts = (0..list.len()).step_by(n.max(1));
    let rest = |i: usize| list.iter().enumerate().filter(move |(k, _)| *k < i || *k >= i + n).map(|(_, x)| x.clone());
    starts.map(|i| rest(i).collect()).collect()
}

/// Makes a list as short as it still disagrees.
fn shorten<T: Clone>(list: &mut Vec<T>, mut bad: impl FnMut(&[T]) -> bool) {
    let mut n = list.len().div_ceil(2);
    while n > 0 {
        match without(list, n).into_iter().find(|l| bad(l)) {
            Some(l) => *list = l,
            None => n /= 2,
        }
        n = n.min(list.len());
    }
}

fn nested(a: &mut Action) -> Option<&mut Vec<Action>> {
    match a {
        Action::Clone(v) | Action::WriteActions(v) => Some(v),
        _ => None,
    }
}

/// Makes a case that disagrees small.
fn shrunk(ovs: &mut Ovs, case: &Case, mut packets: Packets) -> (Case, Packets) {
    let clone = |c: &Case| Case {
        name: c.name.clone(),
        flows: c.flows.clone(),
        groups: c.groups.clone(),
        meters: c.meters.clone(),
    };
    let mut case = clone(case);
    let mut bad = |c: &Case, p: &[Vec<(u16, Vec<u8>)>]| !tried(ovs, c, p).bad.is_empty();
    shorten(&mut packets, |p| bad(&case, p));
    for i in 0..packets.len() {
        let (mut burst, outer) = (packets[i].clone(), packets.clone());
        let with = |b: &[(u16, Vec<u8>)]| {
            let mut all = outer.clone();
            all[i] = b.to_vec();
            all
        };
        shorten(&mut burst, |b| !b.is_empty() && bad(&case, &with(b)));
        packets[i] = burst;
    }
    let mut flows = case.flows.clone();
    shorten(&mut flows, |f| bad(&Case { flows: f.to_vec(), ..clone(&case) }, &packets));
    case.flows = flows;
    for i in 0..case.flows.len() {
        let mut actions = case.flows[i].actions.clone();
        let with = |l: &[Action], case: &Case| {
            let mut c = clone(case);
            c.flows[i].actions = l.to_vec();
            c
        };
        shorten(&mut actions, |l| bad(&with(l, &case), &packets));
        for k in 0..actions.len() {
            let Some(mut inner) = nested(&mut actions[k]).cloned() else { continue };
            let outer = actions.clone();
            let put = |l: &[Action]| {
                let mut o = outer.clone();
                if let Some(v) = nested(&mut o[k]) {
                    *v = l.to_vec();
                }
                o
            };
            shorten(&mut inner, |l| !l.is_empty() && bad(&with(&put(l), &case), &packets));
            actions = put(&inner);
        }
        case.flows[i].actions = actions;
        for (f, ..) in case.flows[i].matches.fields() {
            let mut c = clone(&case);
            c.flows[i].matches.clear(f);
            if bad(&c, &packets) {
                case = c;
            }
        }
    }
    for i in 0..case.groups.len() {
        let mut buckets = case.groups[i].buckets.clone();
        let with = |l: &[Bucket], case: &Case| {
            let mut c = clone(case);
            c.groups[i].buckets = l.to_vec();
            c
        };
        if buckets.len() > 1 {
            shorten(&mut buckets, |l| bad(&with(l, &case), &packets));
        }
        for k in 0..buckets.len() {
            let mut list = buckets[k].actions.clone();
            let outer = buckets.clone();
            let put = |l: &[Action]| {
                let mut o = outer.clone();
                o[k].actions = l.to_vec();
                o
            };
            shorten(&mut list, |l| bad(&with(&put(l), &case), &packets));
            buckets = put(&list);
        }
        case.groups[i].buckets = buckets;
    }
    let mut groups = case.groups.clone();
    shorten(&mut groups, |g| bad(&Case { groups: g.to_vec(), ..clone(&case) }, &packets));
    case.groups = groups;
    (case, packets)
}

fn show(case: &Case, packets: &Packets) {
    println!("--- {}", case.name);
    for m in &case.meters {
        println!("{m:?}");
    }
    for g in &case.groups {
        println!("{}", group_to_string(g));
    }
    for f in &case.flows {
        println!("{}", flow_to_string(f));
    }
    for burst in packets {
        for (i, (port, p)) in burst.iter().enumerate() {
            println!("{}port {port} {}", if i == 0 { "" } else { "  with it " }, crate::compare::hex(p));
        }
    }
}

/// Makes a case that disagrees small and shows it.
pub fn show_small(ovs: &mut Ovs, case: &Case, packets: Packets) {
    let (case, packets) = shrunk(ovs, case, packets);
    show(&case, &packets);
    for b in tried(ovs, &case, &packets).bad.iter().take(4) {
        println!("{b}");
    }
}

#[test]
fn random_tables_agree() {
    // What the switch's thread has.
    let run = std::thread::Builder::new().stack_size(8 << 20).spawn(agree).expect("a thread");
    if let Err(e) = run.join() {
        std::panic::resume_unwind(e);
    }
}

/// One table in both.
fn one(ovs: &mut Ovs, i: usize, n: usize, left: &mut usize) -> Count {
    let mut rng = StdRng::seed_from_u64(i as u64);
    let mut case = Grammar::case(format!("random {i}"), &mut rng);
    case.settle_groups(&mut rng);
    for f in &case.flows {
        let text = flow_to_string(f);
        let again = parse_flow(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(flow_to_string(&again), text);
    }
    let mut pair = Pair::new(ovs, &case.name);
    pair.errors = true;
    run(&mut pair, &case, n, &mut rng);
    let packets = std::mem::take(&mut pair.log);
    let c = pair.finish();
    if !c.bad.is_empty() && *left > 0 {
        *left -= 1;
        println!("{} disagrees: {} differences", case.name, c.bad.len());
        show_small(ovs, &case, packets);
    } else if let Some(first) = c.bad.first() {
        println!("{} disagrees: {first}", case.name);
    }
    c
}

fn agree() {
    let Some(mut ovs) = Ovs::start() else { return };
    let (cases, seed, n) = (setting("RANDOM_CASES", 15), setting("RANDOM_SEED", 1), setting("RANDOM_PACKETS", 24));
    let mut left = setting("RANDOM_SHOW", 3);
    let (mut total, mut bad, mut ended) = (Count::default(), 0, 0);
    for i in seed..seed + cases {
        let tried = std::panic::catch_unwind(AssertUnwindSafe(|| one(&mut ovs, i, n, &mut left)));
        let c = match tried {
            Ok(c) => c,
            Err(_) if ovs.has_ended() => {
                println!("random {i}: Open vSwitch has ended");
                ended += 1;
                ovs = Ovs::start().expect("Open vSwitch");
                continue;
            }
            Err(e) => std::panic::resume_unwind(e),
        };
        total.add(&c);
        bad += usize::from(!c.bad.is_empty());
    }
    println!(
        "random tables: {bad} of {cases} disagree; {} flows, {} of them hit, {} refused by both; {} packets in, {} out, {} packet-ins, {} connections",
        total.flows, total.hit, total.refused, total.packets, total.sent, total.packet_ins, total.connections
    );
    assert!(ended * 10 <= cases, "Open vSwitch ended with {ended} of {cases}");
    assert!(total.sent > 0 && (total.packet_ins > 0 || cases < 10), "nothing came out");
    assert_eq!(bad, 0, "tables disagree");
}
