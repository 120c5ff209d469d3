//! Datagrams in fragments pass connection tracking as others did before them, and nobody can tell.

use super::gateway::{PEER, ROUTER};
use super::ops::{Datagram, Op};
use super::rig::{Rig, state, step};
use openflow_rs::TableId;
use packet::build;
use proptest::prelude::*;
use std::time::Duration;
use switch::Outputs;

/// What happens between fragments.
fn change() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1u64..20).prop_map(Op::Later),
        2 => prop_oneof![5u16..10, 12u16..13, 32u16..33, 40u16..42].prop_map(Op::Flush),
        1 => (2u16..4, any::<bool>()).prop_map(|(p, up)| Op::Port(p, up)),
        1 => (0u8..4, any::<bool>()).prop_map(|(n, add)| Op::Rule(n, add)),
        1 => (3u32..5).prop_map(Op::Mark),
        4 => (prop_oneof![0u8..7, 85u8..90, 61u8..62], 0usize..14, any::<bool>(), 0usize..4, any::<bool>())
            .prop_map(|(table, matches, high, actions, add)| Op::Flow { table: TableId(table), matches, high, actions, add }),
        1 => Just(Op::Replace(None)),
        1 => (0usize..2, proptest::option::of((any::<bool>(), any::<bool>(), any::<bool>(), 0usize..6))).prop_map(|(b, m)| Op::Mirror(b, m)),
        1 => (5u16..10, 0u32..4).prop_map(|(zone, limit)| Op::Limit(zone, limit)),
        1 => (1u8..3).prop_map(|src| Op::Udp { src, dport: 80, len: 20 }),
        1 => Just(Op::Answer { flags: 0x10 }),
    ]
}

fn datagram() -> impl Strategy<Value = Datagram> {
    let proto = prop_oneof![4 => Just(17u8), 2 => Just(1u8), 2 => Just(6u8), 1 => Just(132u8)];
    let flags = prop_oneof![Just(2u8), Just(0x10), Just(0x18), Just(0x11)];
    let ttl = prop_oneof![9 => Just(64u8), 1 => Just(1)];
    // Flags of TCP may be in the second fragment.
    let size = prop_oneof![5 => Just(40usize), 1 => Just(8)];
    let ends = (0u8..4, proto, prop::bool::weighted(0.3), 1u8..3, 1000u16..1002);
    (ends, flags, ttl, 2usize..5, size, prop::bool::weighted(0.9)).prop_map(
        |((way, proto, v6, src, port), flags, ttl, parts, size, right)| {
            let id = 1;
            Datagram { way, proto, v6, src, port, flags, ttl, parts, size, id, right }
        },
    )
}

/// One of the ways that fragments come: in any order, twice, not all of them, with something between.
fn arrivals() -> impl Strategy<Value = Vec<Op>> {
    let order = (0usize..4).prop_flat_map(|kind| proptest::collection::vec(0usize..4, 4).prop_map(move |n| (kind, n)));
    let between = proptest::option::weighted(0.3, (change(), 0usize..4));
    (datagram(), 1u16..5, order, between).prop_map(|(d, times, (kind, picks), between)| {
        let mut list = Vec::new();
        for n in 0..times {
            let mut parts: Vec<usize> = (0..d.parts).collect();
            match kind {
                0 => {}
                1 => parts.reverse(),
                2 => picks.iter().for_each(|p| parts.swap(0, p % d.parts)),
                // Perhaps not all, perhaps some twice.
                _ => parts = picks.iter().map(|p| p % d.parts).collect(),
            }
            let id = 10 * u16::from(d.src) + n;
            list.extend(parts.into_iter().map(|part| Op::Part(Datagram { id, ..d.clone() }, part)));
        }
        if let Some((op, at)) = between {
            list.insert(list.len() * at / 4, op);
        }
        list
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let one = prop_oneof![
        12 => arrivals(),
        // Two datagrams at a time.
        3 => (arrivals(), arrivals()).prop_map(|(a, b)| {
            let n = a.len().max(b.len());
            (0..n).flat_map(|i| a.get(i).into_iter().chain(b.get(i)).cloned().collect::<Vec<_>>()).collect()
        }),
        4 => change().prop_map(|op| vec![op]),
    ];
    proptest::collection::vec(one, 1..16).prop_map(|v| v.into_iter().flatten().collect())
}

fn rig(mut r: Rig) -> Rig {
    r.fragments.least = [0; 2];
    r
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(120)
    ))]
    #[test]
    fn fragments_equal_translation(list in ops(), kind in 0..3) {
        let with = match kind {
            0 => Rig::new(true),
            1 => Rig::with_lane(),
            _ => Rig::with_segments(),
        };
        let mut rigs = [with, Rig::new(false)].map(rig);
        let mut now = [Duration::from_secs(10); 2];
        let mut last = [Vec::new(), Vec::new()];
        for op in &list {
            let [with, without] = &mut rigs;
            let a = step(with, op, &mut now[0], &mut last[0]);
            let b = step(without, op, &mut now[1], &mut last[1]);
            prop_assert_eq!(a, b, "after {:?}", op);
            with.count();
            prop_assert_eq!(state(with), state(without), "after {:?}", op);
            prop_assert_eq!(with.fragments.counts, without.fragments.counts, "after {:?}", op);
            prop_assert_eq!(with.fragments.lines(), without.fragments.lines(), "after {:?}", op);
        }
    }
}

/// The test above would also hold if every fragment walked: from the third datagram of a connection on none does.
#[test]
fn fragments_of_a_connection_need_no_walk() {
    for (proto, v6, way, lane) in [17u8, 1, 6]
        .into_iter()
        .flat_map(|proto| [(proto, false), (proto, true)])
        .flat_map(|(proto, v6)| [0u8, 2].map(|way| (proto, v6, way)))
        // No flow takes those of IPv6 out of their tunnel.
        .filter(|(_, v6, way)| !v6 || *way == 0)
        .flat_map(|(proto, v6, way)| [(proto, v6, way, false), (proto, v6, way, true)])
    {
        let mut s = rig(if lane { Rig::with_lane() } else { Rig::new(true) });
        let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
        // Both ends of tunnels are known: what is for them is not flooded.
        for (device, mac) in [(50, PEER), (60, ROUTER)] {
            let here = build::arp_request(mac, [192, 168, 0, 2].into(), [192, 168, 0, 1].into());
            s.take((device, here), now, &mut Outputs::default());
        }
        let mut lookups = Vec::new();
        for id in 1..7 {
            let both = if way == 0 { vec![way, 1] } else { vec![way] };
            for way in both {
                let d = Datagram {
                    way,
                    proto,
                    v6,
                    src: 1,
                    port: 1000,
                    flags: 0x10,
                    ttl: 64,
                    parts: 3,
                    size: 40,
                    id,
                    right: true,
                };
                let before = s.cache_stats().misses;
                let sent: Vec<String> =
                    (0..3).map(|n| step(&mut s, &Op::Part(d.clone(), n), &mut now, &mut last)).collect();
                let kind = format!("{proto} v6 {v6} way {way} lane {lane} datagram {id}: {sent:#?}");
                // Answers of ICMP are none to zone 7, which has not seen the question.
                assert!(sent[2].matches("(").count() >= 3 || (proto, way) == (1, 1), "{kind}");
                lookups.push(s.cache_stats().misses - before);
            }
        }
        let settled = &lookups[lookups.len() - 2..];
        assert_eq!(settled, [0; 2], "{proto} v6 {v6} way {way} lane {lane}: {lookups:?}");
    }
}

/// What walks needs no search, as soon as fragments of other connections have walked there.
#[test]
fn fragments_of_new_connections_need_no_search() {
    let mut s = rig(Rig::with_segments());
    let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
    let lookups = |s: &Rig| -> u64 { s.bridges().flat_map(|(_, b)| &b.table_stats).map(|t| t.0).sum() };
    for port in 1000..1004 {
        let before = (lookups(&s), s.cache_stats().segment_lookups);
        for part in 0..3 {
            let (flags, ttl, parts, size, id) = (0, 64, 3, 40, 1);
            let (way, proto, v6, src, right) = (0, 17, false, 1, true);
            let d = Datagram { way, proto, v6, src, port, flags, ttl, parts, size, id, right };
            step(&mut s, &Op::Part(d, part), &mut now, &mut last);
        }
        let (all, known) = (lookups(&s) - before.0, s.cache_stats().segment_lookups - before.1);
        assert!(all > 12 && (port == 1000 || known == all), "port {port}: {all} lookups, {known} of them by segments");
    }
}
