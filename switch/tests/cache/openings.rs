//! Packets that open connections are taken through the tables as others were before them, and nobody can tell.

use super::gateway::{GROUPS, PEER, ROUTER, VIF, flow, ip};
use super::ops::{IcmpError, ODD, Op, STRAY, Sum, Wrong, errors, odd};
use super::rig::{Rig, equals_translation, step};
use openflow_rs::{MeterModCommand, TableId};
use packet::build;
use proptest::prelude::*;
use std::time::Duration;
use switch::{BridgeId, DeviceId, Outputs};

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let open = || {
        let dport = prop_oneof![
            80u16..82,
            60u16..70,
            60u16..62,
            67u16..70,
            90u16..99,
            91u16..99,
            98u16..99,
            101u16..105,
            101u16..105,
            107u16..109,
            70u16..80,
            78u16..80,
            70u16..72
        ];
        let sum = prop_oneof![6 => Just(Sum::Right), 2 => Just(Sum::None), 1 => Just(Sum::Wrong), 1 => Just(Sum::WrongHeader), 1 => Just(Sum::Length), 1 => Just(Sum::Cut)];
        let ttl = prop_oneof![8 => Just(64u8), 1 => Just(1), 1 => Just(33)];
        // Port 0 is reserved; below 1024 are other classes.
        let sport = prop_oneof![8 => 1000u16..1006, 1 => Just(0), 1 => 500u16..503];
        (1u8..4, sport, dport, ttl, sum).prop_map(|(src, sport, dport, ttl, sum)| Op::Open {
            src,
            sport,
            dport,
            ttl,
            sum,
        })
    };
    let op = prop_oneof![
        40 => open(),
        4 => (0x1233u32..0x123b, 1u16..5, 0usize..9).prop_map(|(vni, sport, len)| Op::Tunnelled { vni, sport, len }),
        8 => Just(Op::Answer { flags: 0x12 }),
        10 => (1u8..4, 1u16..4, any::<bool>(), prop::bool::weighted(0.9)).prop_map(|(src, id, v6, right)| Op::Ping { src, id: if right { id } else { 300 + id }, v6, right }),
        10 => (1u8..4, prop_oneof![2 => Just(132u8), 2 => Just(50u8), 1 => Just(89u8)], any::<bool>(), 1u16..4, prop_oneof![
            6 => Just(Sum::Right), 1 => Just(Sum::Wrong), 1 => Just(Sum::WrongHeader), 1 => Just(Sum::Length)
        ]).prop_map(|(src, proto, v6, port, sum)| Op::Bare { src, proto, v6, port, sum }),
        1 => (1u16..3, any::<bool>()).prop_map(|(id, reply)| Op::Echo { id, reply }),
        10 => errors(),
        1 => prop_oneof![Just(107u8), Just(110)].prop_map(|t| Op::Forget(TableId(t))),
        2 => (2u32..4, 1u32..5, prop_oneof![
            4 => Just(MeterModCommand::Modify), 1 => Just(MeterModCommand::Add), 1 => Just(MeterModCommand::Delete)
        ]).prop_map(|(n, rate, command)| Op::Meter(n, rate, command)),
        2 => (1u64..40).prop_map(Op::Later),
        1 => (0usize..2, prop::bool::weighted(0.3)).prop_map(|(b, on)| Op::Netflow(b, on)),
        2 => prop_oneof![22u16..53].prop_map(Op::Flush),
        1 => (1..=GROUPS, any::<bool>()).prop_map(|(g, swap)| Op::Group(g, swap)),
        1 => (2u16..4, any::<bool>()).prop_map(|(p, up)| Op::Port(p, up)),
        1 => any::<bool>().prop_map(Op::Neighbour),
        2 => (prop_oneof![Just(50u8), Just(51), Just(54), Just(56), Just(58), Just(60), Just(61), Just(91), Just(93), Just(96), Just(66), Just(67), Just(69)], 0usize..14, any::<bool>(), 0usize..4, any::<bool>())
            .prop_map(|(table, matches, high, actions, add)| Op::Flow { table: TableId(table), matches, high, actions, add }),
        1 => prop_oneof![Just(None), (40usize..72).prop_map(Some)].prop_map(Op::Replace),
        1 => (0usize..2, proptest::option::of((any::<bool>(), any::<bool>(), any::<bool>(), 0usize..6))).prop_map(|(b, m)| Op::Mirror(b, m)),
        1 => (22u16..47, 0u32..4).prop_map(|(zone, limit)| Op::Limit(zone, limit)),
    ];
    proptest::collection::vec((op, 1usize..3), 1..80)
        .prop_map(|v| v.into_iter().flat_map(|(op, n)| std::iter::repeat_n(op, n)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(120)
    ))]
    #[test]
    fn openings_equal_translation(list in ops(), lane in any::<bool>()) {
        equals_translation(if lane { Rig::with_lane() } else { Rig::new(true) }, &list)?;
    }
}

/// The test above would also hold if every packet walked. Those that see what was chosen for them do.
#[test]
fn openings_are_repeated() {
    let v4 = [(80, true), (91, true), (92, true), (93, false), (94, false), (95, false), (96, false), (97, true)];
    let v6 = [(101, true), (102, true), (103, true), (104, false), (107, true), (108, true)];
    let chosen = [(70, true), (71, true), (72, false), (73, false), (74, false), (75, false), (76, false), (77, true)];
    for (dport, repeated) in v4.into_iter().chain(v6).chain(chosen) {
        for lane in [false, true] {
            let mut s = if lane { Rig::with_lane() } else { Rig::new(true) };
            let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
            // The tunnel's other end is known: what is for it is not flooded.
            let here = build::arp_request(PEER, [192, 168, 0, 2].into(), [192, 168, 0, 1].into());
            s.take((50, here), now, &mut Outputs::default());
            for (src, sport) in (1..4).flat_map(|src| (1000..1004).map(move |sport| (src, sport))) {
                let op = Op::Open { src, sport, dport, ttl: 64, sum: Sum::Right };
                step(&mut s, &op, &mut now, &mut last);
            }
            let opened = s.cache_stats().ct_template_packets;
            let shown = s
                .cached_flows()
                .any(|f| f.packets.contains(",ct_state(+new+trk),ct_zone(") && f.actions.contains("ct(commit,"));
            assert_eq!((opened > 0, shown), (repeated, repeated), "port {dport}, lane {lane}: {:?}", s.cache_stats());
            let whole = super::sections::agree(&mut s).expect("sections");
            assert!(whole > 0 || !repeated, "port {dport}, lane {lane}: no whole way is told of");
        }
    }
}

/// Pings of many ids are translated, and their answers back, without a walk.
#[test]
fn pings_need_no_walk() {
    for (lane, v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut s = Rig::with_room(true, 4000);
        if lane {
            s.add_lane();
        }
        let (mut now, mut walks) = (Duration::from_secs(10), [0; 3]);
        for id in 0..200 {
            let mut last = Vec::new();
            let ping = Op::Ping { src: 2, id, v6, right: true };
            for (op, n) in [(&ping, 0), (&Op::Answer { flags: 0 }, 1), (&ping, 2)] {
                let before = s.cache_stats().misses;
                let said = step(&mut s, op, &mut now, &mut last);
                assert!(n != 1 || said.starts_with("[(1, "), "the answer of {id}: {said}");
                walks[n] += s.cache_stats().misses - before;
            }
        }
        assert!(walks.iter().all(|n| *n < 10), "lane {lane}, v6 {v6}: {walks:?}");
    }
}

/// SCTP and protocols without ports open connections without a walk, and their answers are translated back.
#[test]
fn other_protocols_need_no_walk() {
    let all = [132u8, 50, 89].into_iter().flat_map(|proto| [(proto, false), (proto, true)]);
    for ((proto, v6), lane) in all.flat_map(|p| [(p, false), (p, true)]) {
        let mut s = Rig::with_room(true, 4000);
        if lane {
            s.add_lane();
        }
        let (mut now, mut walks) = (Duration::from_secs(10), [0; 3]);
        // Without ports, each connection needs an address of its own.
        for text in [
            "table=0,priority=40,in_port=1,ip actions=ct(commit,zone=51,nat(src=172.17.0.1-172.17.0.254),table=3)",
            "table=0,priority=40,in_port=20,ip actions=ct(zone=51,nat,table=5)",
        ] {
            flow(&mut s, BridgeId(0), text, now);
        }
        for n in 0..200u16 {
            let mut last = Vec::new();
            // What has no ports has one connection for each pair of addresses.
            let (src, port) = if proto == 132 { (2, 1000 + n) } else { (n as u8, 9) };
            let packet = Op::Bare { src, proto, v6, port, sum: Sum::Right };
            for (op, n) in [(&packet, 0), (&Op::Answer { flags: 0 }, 1), (&packet, 2)] {
                let before = s.cache_stats().misses;
                let said = step(&mut s, op, &mut now, &mut last);
                assert!(n != 1 || said.starts_with("[(1, "), "the answer to {n} of {proto}: {said}");
                walks[n] += s.cache_stats().misses - before;
            }
        }
        assert!(walks.iter().all(|n| *n < 10), "protocol {proto}, lane {lane}, v6 {v6}: {walks:?}");
    }
}

/// Packets that pass meters, or are dropped by them, walk only where a dropped one goes on behind a clone: the first ones of
/// many connections, which are alike but into a tunnel, and many of one.
#[test]
fn meters_need_no_walk() {
    let all = [true; 2];
    let list = [(60, all), (61, all), (62, [false; 2]), (63, all), (64, all), (65, [false, true]), (66, all)];
    for ((dport, kept), lane, rate) in
        list.into_iter().flat_map(|l| [(l, false, 60_000), (l, true, 60_000), (l, false, 1), (l, true, 1)])
    {
        let mut s = Rig::with_room(true, 4000);
        if lane {
            s.add_lane();
        }
        let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
        for n in [2, 3] {
            step(&mut s, &Op::Meter(n, rate, MeterModCommand::Modify), &mut now, &mut last);
        }
        let mut walks = [0; 2];
        for n in 0..200 {
            for (walks, sport) in walks.iter_mut().zip([1000 + n, 900]) {
                let before = s.cache_stats().misses;
                step(&mut s, &Op::Open { src: 2, sport, dport, ttl: 64, sum: Sum::Right }, &mut now, &mut last);
                *walks += s.cache_stats().misses - before;
            }
        }
        s.count();
        let dropped: u64 = s.bridge(BridgeId(0)).expect("bridge").meters().flat_map(|m| m.dropped).map(|d| d.0).sum();
        let what = format!("port {dport}, lane {lane}, rate {rate}: {walks:?} walks, {dropped} dropped");
        assert_eq!(walks.map(|n| n < 60), kept, "{what}");
        assert_eq!(dropped > 0, rate == 1, "{what}");
    }
}

/// A packet through a meter that had no connection finds the one that somebody opens later.
#[test]
fn behind_a_meter_a_new_connection_is_found() {
    for lane in [false, true] {
        let (mut with, mut without) = (if lane { Rig::with_lane() } else { Rig::new(true) }, Rig::new(false));
        let mut now = Duration::from_secs(10);
        for s in [&mut with, &mut without] {
            step(s, &Op::Meter(2, 60_000, MeterModCommand::Modify), &mut now.clone(), &mut Vec::new());
            for text in [
                "table=0,priority=50,in_port=1,udp actions=meter:2,ct(zone=51,table=111)",
                "table=0,priority=50,in_port=2,udp actions=ct(commit,zone=51),output:1",
                "table=111,ct_state=+new,ip actions=output:2",
                "table=111,ct_state=+est,ip actions=output:3",
            ] {
                flow(s, BridgeId(0), text, now);
            }
        }
        let (a, b) = ((ip("10.0.0.2"), 1000), (ip("8.8.8.8"), 57));
        let question = build::udp(ROUTER, VIF, a, b, 64, &[7]).expect("udp");
        let other = build::udp(VIF, ROUTER, b, a, 64, &[7]).expect("udp");
        let sent = |s: &mut Rig, device, p: &[u8], now| {
            let mut out = Outputs::default();
            s.take((device, p.to_vec()), now, &mut out);
            out.packets.iter().map(|(to, _)| to.device()).collect::<Vec<_>>()
        };
        let packets = [(1, &question, 60, DeviceId(2)), (2, &other, 1, DeviceId(1)), (1, &question, 60, DeviceId(3))];
        for (device, p, times, to) in packets {
            for n in 0..times {
                now += Duration::from_millis(1);
                let both = [&mut with, &mut without].map(|s| sent(s, device, p, now));
                assert_eq!(both, [[to], [to]], "lane {lane}, packet {n} of device {device}");
            }
        }
    }
}

/// Packets whose flows learn what is there already walk no more than once for each flow that they learn; the learned flows
/// live as long as packets come, and are learned anew when somebody takes them away.
#[test]
fn learning_needs_no_walk() {
    for (lane, dport, table, flows) in
        [(false, 67, 107, 2), (true, 67, 107, 2), (false, 68, 107, 2), (false, 69, 110, 1), (true, 69, 110, 1)]
    {
        let mut s = Rig::with_room(true, 4000);
        if lane {
            s.add_lane();
        }
        let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
        step(&mut s, &Op::Meter(2, 60_000, MeterModCommand::Modify), &mut now, &mut last);
        let learned = |s: &Rig| s.bridge(BridgeId(0)).expect("bridge").rules(TableId(table)).len();
        let before = learned(&s);
        let mut round = |s: &mut Rig, now: &mut Duration| {
            let walks = s.cache_stats().misses;
            // Longer than any of their timeouts.
            for n in 0..400u16 {
                *now += Duration::from_millis(100);
                let sport = if dport == 68 { 1000 } else { 1000 + n };
                step(s, &Op::Open { src: 2, sport, dport, ttl: 64, sum: Sum::Right }, now, &mut last);
                if n % 10 == 0 {
                    step(s, &Op::Later(0), now, &mut Vec::new());
                }
            }
            s.cache_stats().misses - walks
        };
        let walks = round(&mut s, &mut now);
        let there = learned(&s) - before;
        assert!(walks < 20, "port {dport}, lane {lane}: {walks} walks");
        assert!((1..=flows).contains(&there), "port {dport}, lane {lane}: {there} flows");
        step(&mut s, &Op::Forget(TableId(table)), &mut now, &mut Vec::new());
        let walks = round(&mut s, &mut now);
        assert!(walks < 20 && learned(&s) >= there, "port {dport}, lane {lane}: {walks} walks, later");
    }
}

/// ICMP errors about many connections are translated both ways without a walk, as a walk does; those about none are told
/// apart. What comes once more about the same connection has a flow of its own.
#[test]
fn errors_need_no_walk() {
    for (lane, v6, end) in (0..8).map(|n| (n & 1 != 0, n & 2 != 0, n & 4 != 0)) {
        let mut s = Rig::with_room(true, 4000);
        if lane {
            s.add_lane();
        }
        let dport = if v6 { 103 } else { 98 };
        let error = |message, inside| Op::Error(IcmpError { message, inside, end, wrong: Wrong::Nothing });
        let (mut now, mut walks, mut again) = (Duration::from_secs(10), [0; 3], 0);
        let mut plain = Rig::with_room(false, 4000);
        for n in 0..200u16 {
            let mut last = Vec::new();
            let open = Op::Open { src: 2, sport: 1000 + n, dport, ttl: 64, sum: Sum::Right };
            step(&mut plain, &open, &mut now, &mut Vec::new());
            step(&mut s, &open, &mut now, &mut last);
            let before = s.cache_stats().misses;
            let about = if v6 { 1 } else { 3 };
            let outside = error(about, None);
            let said = step(&mut s, &outside, &mut now, &mut last.clone());
            assert!(said.starts_with("[(1, "), "about {n}, lane {lane}, v6 {v6}: {said}");
            assert_eq!(said, step(&mut plain, &outside, &mut now, &mut last.clone()), "{n}, {lane}, {v6}");
            walks[0] += s.cache_stats().misses - before;
            let before = s.cache_stats().misses;
            let inside = error(0, Some((2, dport)));
            let within = step(&mut s, &inside, &mut now, &mut last.clone());
            assert_eq!(within, step(&mut plain, &inside, &mut now, &mut last.clone()), "{n}, {lane}, {v6}");
            walks[1] += s.cache_stats().misses - before;
            let before = s.templates();
            assert_eq!(said, step(&mut s, &outside, &mut now, &mut last.clone()), "{n}, {lane}, {v6}");
            assert_eq!(within, step(&mut s, &inside, &mut now, &mut last), "{n}, {lane}, {v6}");
            again += s.templates() - before;
            // Of a port that nobody sends from.
            let before = s.cache_stats().misses;
            let strange = Op::Open { src: 2, sport: 2000 + n, dport, ttl: 64, sum: Sum::Right };
            let mut last = super::ops::packet(&strange, &[]).expect("packet").1;
            step(&mut s, &error(about, None), &mut now, &mut last);
            walks[2] += s.cache_stats().misses - before;
        }
        assert!(walks.iter().all(|n| *n < 10), "lane {lane}, v6 {v6}, end {end}: {walks:?}");
        assert!(again < 10, "lane {lane}, v6 {v6}, end {end}: {again} of 400");
    }
}

/// Packets that are invalid walk no more than others: with wrong checksums, of no port, and answers to what nobody asked. One
/// that is in order comes through among them.
#[test]
fn invalid_packets_need_no_walk() {
    for (lane, (dport, sum, sport)) in [
        (80, Sum::Wrong, None),
        (80, Sum::WrongHeader, None),
        (91, Sum::Wrong, None),
        (97, Sum::Wrong, None),
        (103, Sum::Wrong, None),
        (107, Sum::Wrong, None),
        (80, Sum::Length, None),
        (80, Sum::Cut, None),
        (97, Sum::Length, None),
        (103, Sum::Cut, None),
        (107, Sum::Length, None),
        (103, Sum::None, None),
        (80, Sum::Right, Some(0)),
        (97, Sum::Right, Some(STRAY)),
        (107, Sum::Right, Some(STRAY)),
    ]
    .into_iter()
    .flat_map(|c| [(false, c), (true, c)])
    {
        let (mut with, mut without) = (Rig::with_room(true, 4000), Rig::with_room(false, 4000));
        if lane {
            with.add_lane();
        }
        let (mut now, mut last) = ([Duration::from_secs(10); 2], [Vec::new(), Vec::new()]);
        let (mut walks, what) = (0, format!("port {dport} from {sport:?}, {sum:?}, lane {lane}"));
        for n in 0..200u16 {
            // Another sender each time, as in a flood.
            let (src, sport) = ((n % 250) as u8 + 1, sport.unwrap_or(1000));
            let before = with.cache_stats().misses;
            let bad = Op::Open { src, sport, dport, ttl: 64, sum };
            let good = Op::Open { src: 2, sport: 1007, dport, ttl: 64, sum: Sum::Right };
            for op in [&bad, &bad].into_iter().chain((n % 20 == 7).then_some(&good)) {
                let a = step(&mut with, op, &mut now[0], &mut last[0]);
                let b = step(&mut without, op, &mut now[1], &mut last[1]);
                assert_eq!(a, b, "{what}, packet {n}: {op:?}");
            }
            walks += with.cache_stats().misses - before;
        }
        assert!(walks < 40, "{what}: {walks} walks");
    }
}

/// Malformed and labelled packets walk no more than others, also where flows look at labels, and leave as they came.
#[test]
fn odd_packets_need_no_walk() {
    let now = Duration::from_secs(10);
    for (lane, kind) in (0..ODD).flat_map(|kind| [(false, kind), (true, kind)]) {
        let mut s = if lane { Rig::with_lane() } else { Rig::new(true) };
        flow(&mut s, BridgeId(0), "table=0,priority=90,in_port=3 actions=output:2", now);
        flow(&mut s, BridgeId(0), "table=0,priority=91,in_port=3,mpls,mpls_label=999 actions=drop", now);
        let before = s.cache_stats().misses;
        for n in 0..100u8 {
            let p = odd(kind, n % 4, n % 3 + 1);
            let mut out = Outputs::default();
            s.take((3, p.clone()), now, &mut out);
            let sent: Vec<_> = out.packets.iter().map(|(to, p)| (to.device(), p.clone())).collect();
            assert_eq!(sent, [(DeviceId(2), p)], "kind {kind}, packet {n}, lane {lane}");
        }
        let walks = s.cache_stats().misses - before;
        assert!(walks < 20, "kind {kind}, lane {lane}: {walks} walks");
    }
}

/// Packets of SCTP whose ports are written, by flows or by translation, need no walk, and leave with right checksums.
#[test]
fn ports_of_sctp_are_written_without_a_walk() {
    let mut now = Duration::from_secs(10);
    for (dst, ttl, lane) in (0..8).map(|n| (n & 1, n >> 1 & 1, n & 4 != 0)) {
        let mut s = if lane { Rig::with_lane() } else { Rig::new(true) };
        let before = s.cache_stats().misses;
        let mut first = None;
        for n in 0..40 {
            now += Duration::from_millis(1);
            let mut out = Outputs::default();
            let came = odd(23, dst, 2 + ttl);
            s.take((3, came.clone()), now, &mut out);
            let [(_, left)] = &out.packets[..] else { panic!("packet {n}: {:?}", out.packets) };
            let h = packet::Headers::parse(left).expect("headers");
            assert!(packet::checksum::l4_ok(left, &h), "packet {n} to {dst}, {ttl}, lane {lane}");
            assert_ne!(h.ports(left), packet::Headers::parse(&came).expect("headers").ports(&came));
            assert_eq!(first.get_or_insert_with(|| left.clone()), left, "packet {n} to {dst}, {ttl}, lane {lane}");
        }
        let walks = s.cache_stats().misses - before;
        assert!(walks <= 4, "to {dst}, {ttl}, lane {lane}: {walks} walks");
    }
}

/// Requests of ARP are answered without a walk once one has been: those of one sender, as all that an answer says of the sender
/// decides.
#[test]
fn answers_of_arp_need_no_walk() {
    let now = Duration::from_secs(10);
    for (name, mut s) in [("switch", Rig::new(true)), ("lane", Rig::with_lane())] {
        let asked = build::arp_request(VIF, [10, 0, 0, 1].into(), [10, 9, 0, 3].into());
        let mut answer = asked.clone();
        answer[..6].copy_from_slice(&*VIF);
        answer[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x0e]);
        answer[21] = 2;
        answer[22..32].copy_from_slice(&[2, 0, 0, 0, 0, 0x0e, 10, 9, 0, 3]);
        answer[32..38].copy_from_slice(&*VIF);
        answer[38..42].copy_from_slice(&[10, 0, 0, 1]);
        let before = s.cache_stats().misses;
        for n in 0..20 {
            let mut out = Outputs::default();
            s.take((3, asked.clone()), now, &mut out);
            let sent: Vec<_> = out.packets.iter().map(|(to, p)| (to.device(), p.clone())).collect();
            assert_eq!(sent, [(DeviceId(3), answer.clone())], "{name}, request {n}");
        }
        assert!(s.cache_stats().misses - before <= 2, "{name}: {} walks", s.cache_stats().misses - before);
    }
}

/// A flow writes a part of a label stack entry, and the rest of it stays each packet's own.
#[test]
fn labels_are_written_in_part() {
    let now = Duration::from_secs(10);
    for lane in [false, true] {
        let mut s = if lane { Rig::with_lane() } else { Rig::new(true) };
        flow(&mut s, BridgeId(0), "table=0,priority=90,in_port=3,mpls actions=set_field:77->mpls_label,output:2", now);
        let before = s.cache_stats().misses;
        for n in 0..100u8 {
            let mut p = odd(15, 1, n % 2 + 1);
            p[16] |= (n % 3) << 1;
            let mut out = Outputs::default();
            s.take((3, p.clone()), now, &mut out);
            // 20 bits of label, 3 of class, the bottom's, 8 of time to live (RFC 3032 section 2.1).
            p[14..16].copy_from_slice(&[0, 77 >> 4]);
            p[16] = ((77 << 4) & 0xf0) as u8 | (p[16] & 0xf);
            let sent: Vec<_> = out.packets.iter().map(|(_, p)| p.clone()).collect();
            assert_eq!(sent, [p], "packet {n}, lane {lane}");
        }
        let walks = s.cache_stats().misses - before;
        assert!(walks < 20, "lane {lane}: {walks} walks");
    }
}

/// A group chooses for each connection anew, by its tuple, and only the first connections of each bucket walk: of a load balancer's,
/// over IPv4 and IPv6, and of several ways that no connection tracking is on.
#[test]
fn connections_that_a_group_chooses_for_need_no_walk() {
    let now = Duration::from_secs(10);
    for (lane, v6, dport) in [
        (false, false, 70),
        (true, false, 70),
        (false, true, 108),
        (true, true, 108),
        (false, false, 120),
        (true, false, 120),
    ] {
        let mut s = Rig::with_room(true, 4000);
        if lane {
            s.add_lane();
        }
        let ways = "table=0,priority=20,in_port=1,udp,tp_dst=120 actions=dec_ttl,group:1";
        flow(&mut s, BridgeId(0), ways, now);
        let hosts = if v6 { ("2001::1", "2001::8:8") } else { ("10.0.0.1", "8.8.8.8") };
        let mut to = std::collections::BTreeMap::<_, u32>::new();
        let mut open = |s: &mut Rig, sport: u16| {
            let ends = ((ip(hosts.0), sport), (ip(hosts.1), dport));
            let before = s.cache_stats().misses;
            let mut out = Outputs::default();
            s.take((1, build::udp(ROUTER, VIF, ends.0, ends.1, 64, &[7]).expect("udp")), now, &mut out);
            let (_, p) = out.packets.last().expect("it leaves");
            let (dst, way) = (
                if v6 { p[38..54].to_vec() } else { p[30..34].to_vec() },
                out.packets.last().map(|(to, _)| to.device()),
            );
            *to.entry((dst, way)).or_default() += 1;
            s.cache_stats().misses - before
        };
        let walks: u64 = (1000..1400).map(|sport| open(&mut s, sport)).sum();
        let again: u64 = (1000..1400).map(|sport| open(&mut s, sport)).sum();
        let what = format!("port {dport}, lane {lane}: {walks} and {again} walks, to {to:?}");
        assert!(walks < 20 && again < 20, "{what}");
        assert!(to.len() == 2 && to.values().all(|n| *n > 100), "{what}");
        // What was chosen shows where flows are dumped.
        let shown: Vec<String> = s.cached_flows().map(|f| f.packets).filter(|p| p.contains(",group(")).collect();
        assert!(shown.iter().all(|p| !p.contains(",,")), "{what}: {shown:#?}");
        assert!((0..2).all(|n| shown.iter().any(|p| p.contains(&format!(",{n}),")))), "{what}: {shown:#?}");
    }
}

/// A second pass through a zone translates some connections and leaves others: packets of both look alike at the first.
#[test]
fn what_only_a_second_pass_translates_is_translated() {
    for (lane, first) in [(false, 1), (false, 2), (false, 3), (true, 1), (true, 2), (true, 3)] {
        let (mut with, mut without) = (if lane { Rig::with_lane() } else { Rig::new(true) }, Rig::new(false));
        let mut now = [Duration::from_secs(10); 2];
        for n in 0..30u8 {
            let (mut last, src) = ([Vec::new(), Vec::new()], (first + n) % 3 + 1);
            let open = Op::Open { src, sport: 1000 + u16::from(n), dport: 98, ttl: 64, sum: Sum::Right };
            for op in [&open, &Op::Answer { flags: 0 }, &open, &Op::Answer { flags: 0 }] {
                let a = step(&mut with, op, &mut now[0], &mut last[0]);
                let b = step(&mut without, op, &mut now[1], &mut last[1]);
                assert_eq!(a, b, "host {src}, lane {lane}, {op:?}");
            }
        }
    }
}

/// Packets of connections whose labels differ where no flow looks share a flow, which says what bits it looked at.
#[test]
fn labels_count_as_far_as_flows_look() {
    let now = Duration::from_secs(10);
    let mut s = Rig::new(true);
    for text in [
        "table=0,priority=50,in_port=1,udp actions=ct(commit,zone=40,exec(load:5->NXM_NX_CT_LABEL[0..15],move:NXM_OF_UDP_SRC[]->NXM_NX_CT_LABEL[32..47])),output:2",
        "table=0,priority=50,in_port=2,udp actions=ct(table=80,zone=40)",
        "table=80,ct_state=+est,udp,ct_label=0x5/0xffff actions=output:1",
    ] {
        flow(&mut s, BridgeId(0), text, now);
    }
    let ends = |port| ((ip("10.0.0.1"), port), (ip("8.8.8.8"), 100));
    let mut answered = |port: u16| {
        let (a, b) = ends(port);
        let mut out = Outputs::default();
        s.take((1, build::udp(ROUTER, VIF, a, b, 64, &[1]).expect("udp")), now, &mut out);
        let before = s.cache_stats().misses;
        s.take((2, build::udp(VIF, ROUTER, b, a, 64, &[1]).expect("udp")), now, &mut out);
        assert_eq!(out.packets.last().map(|p| p.0.device()), Some(DeviceId(1)), "port {port}");
        (s.cache_stats().misses - before, s.cached_flows().map(|f| f.packets).collect::<Vec<_>>())
    };
    // Two packets may walk: the first shows that TCP flags count, the next makes the flow.
    (1000..1003).for_each(|p| drop(answered(p)));
    let (walks, flows) = answered(1003);
    assert_eq!(walks, 0, "{flows:#?}");
    assert!(
        flows.iter().any(|f| f.contains("ct_state(+est+rpl+trk),ct_zone(0x28),ct_label(0x5/0xffff)")),
        "{flows:#?}"
    );
}
