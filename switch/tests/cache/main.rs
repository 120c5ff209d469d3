//! The flow cache is invisible: with it and without it, the same packets, events, counters and connections, whatever
//! changes underneath.

mod copies;
mod cut;
mod datagrams;
mod gateway;
mod openings;
mod ops;
mod rig;
mod runs;
mod sections;

use gateway::*;
use ops::*;
use rig::*;

use openflow_rs::text::parse_flow;
use openflow_rs::*;
use packet::build;
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::Duration;
use switch::{BridgeId, DeviceId, Outputs};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(80)
    ))]
    #[test]
    fn cache_equals_translation(list in ops()) {
        equals_translation(Rig::new(true), &list)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(80)
    ))]
    /// Walks that are guided find what searches do.
    #[test]
    fn guided_walks_equal_translation(list in ops()) {
        equals_translation(Rig::with_segments(), &list)?;
    }
}

/// The test above would also hold if nothing were ever guided: a packet of another port needs no search, until a table changes.
#[test]
fn packets_alike_need_no_search() {
    let mut s = Rig::with_segments();
    let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
    let lookups = |s: &Rig| -> u64 { s.bridges().flat_map(|(_, b)| &b.table_stats).map(|t| t.0).sum() };
    let mut send = |s: &mut Rig, src| {
        let before = (lookups(s), s.cache_stats().segment_lookups);
        step(s, &Op::Udp { src, dport: 80, len: 20 }, &mut now, &mut last);
        (lookups(s) - before.0, s.cache_stats().segment_lookups - before.1)
    };
    let (all, none) = send(&mut s, 1);
    assert!(all > 2 && none == 0, "{all} lookups, {none} of them by segments");
    assert_eq!(send(&mut s, 2), (all, all), "another source port");
    flow(&mut s, BridgeId(0), "table=77,ip actions=drop", Duration::from_secs(10));
    assert_eq!(send(&mut s, 2).1, 0, "a table has changed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(80)
    ))]
    /// A lane's packets are served as the switch's own.
    #[test]
    fn lanes_equal_translation(list in ops()) {
        equals_translation(Rig::with_lane(), &list)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(80)
    ))]
    /// Where there are more masks than numbers for them, a flow under an old mask serves no packet under a new one.
    #[test]
    fn masks_with_the_same_number_equal_translation(list in ops(), lane: bool) {
        equals_translation(Rig::with_few_masks(lane), &list)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(80)
    ))]
    /// Packets that come in together are served as if each came alone, also where one changes what the next depends on.
    #[test]
    fn bursts_equal_translation_one_by_one(
        list in ops(),
        times in proptest::collection::vec(prop_oneof![2 => Just(1usize), 1 => 2..40usize], 1..16),
        size in 2usize..80,
    ) {
        // Many of the same come one behind the other, too.
        let list: Vec<Op> =
            list.iter().zip(times.iter().cycle()).flat_map(|(o, n)| std::iter::repeat_n(o.clone(), *n)).collect();
        let (mut with, mut without) = (Rig::new(true), Rig::new(false));
        let mut now = [Duration::from_secs(10); 2];
        let mut last = [Vec::new(), Vec::new()];
        for ops in list.chunks(size) {
            let [a, b] = [&last[0], &last[1]].map(|l| ops.iter().filter_map(|o| packet(o, l)).collect::<Vec<_>>());
            let a = arrive(&mut with, a, true, now[0], &mut last[0]);
            let b = arrive(&mut without, b, false, now[1], &mut last[1]);
            prop_assert_eq!(a, b, "after {:?}", ops);
            // As before each job of the packet loop.
            with.count();
            let others: Vec<&Op> = ops.iter().filter(|o| packet(o, &last[0]).is_none()).collect();
            for op in others {
                let a = step(&mut with, op, &mut now[0], &mut last[0]);
                let b = step(&mut without, op, &mut now[1], &mut last[1]);
                prop_assert_eq!(a, b, "after {:?}", op);
            }
            prop_assert_eq!(state(&with), state(&without), "after {:?}", ops);
            now = now.map(|n| n + Duration::from_millis(7));
        }
    }
}

/// What should be cached is: the test above would also hold of a cache that never hits.
#[test]
fn flows_are_served_from_the_cache() {
    let udp = |dport, len| Op::Udp { src: 1, dport, len };
    let tcp = |flags| Op::Tcp { src: 1, flags, dport: 80 };
    // Name, what opens it, and what then comes from the cache.
    let cases: [(&str, Vec<Op>, Vec<Op>); 10] = [
        ("SNAT", vec![], vec![udp(80, 20), Op::Answer { flags: 0 }]),
        ("TCP", vec![tcp(2), Op::Answer { flags: 0x12 }], vec![tcp(0x10), Op::Answer { flags: 0x18 }, tcp(0x18)]),
        ("echo", vec![], vec![Op::Echo { id: 1, reply: false }, Op::Answer { flags: 0 }]),
        ("tunnel in", vec![], vec![Op::Tunnelled { vni: 0x1234, sport: 1, len: 4 }]),
        ("tunnel out", vec![], vec![udp(89, 20)]),
        ("lengths", vec![], vec![udp(85, 20), udp(85, 60)]),
        ("a zone twice", vec![], vec![udp(90, 20)]),
        ("VXLAN in", vec![], vec![Op::Shaped { shape: 4, tcp: false, sport: 1 }]),
        ("tags within", vec![], vec![Op::Shaped { shape: 5, tcp: true, sport: 1 }]),
        (
            "tags",
            vec![],
            vec![Op::Shaped { shape: 0, tcp: false, sport: 1 }, Op::Shaped { shape: 1, tcp: true, sport: 2 }],
        ),
    ];
    for ((name, open, round), lane) in cases.iter().flat_map(|c| [(c, false), (c, true)]) {
        let mut s = if lane { Rig::with_lane() } else { Rig::new(true) };
        let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
        let mut play = |s: &mut Rig, ops: &[Op]| {
            for o in ops {
                step(s, o, &mut now, &mut last);
            }
        };
        play(&mut s, open);
        (0..4).for_each(|_| play(&mut s, round));
        s.count();
        let before = s.cache_stats().hits;
        play(&mut s, round);
        s.count();
        assert_eq!(s.cache_stats().hits - before, round.len() as u64, "{name}, lane: {lane}: {:?}", s.cache_stats());
    }
}

/// Frames of our own go without a walk once one has gone, by a port, a patch and tunnels; and BFD packets reach their session.
#[test]
fn sessions_need_no_walk() {
    let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
    for port in [1, 3, 10, 11, 20] {
        let mut s = Rig::new(true);
        // Both ends of tunnels are known: nothing is flooded.
        for (device, mac) in [(50, PEER), (60, ROUTER)] {
            let here = build::arp_request(mac, [192, 168, 0, 2].into(), [192, 168, 0, 1].into());
            s.take((device, here), now, &mut Outputs::default());
        }
        let sent = |s: &Rig| s.bridge(BridgeId(0)).expect("bridge").ports[&PortNo(port)].stats;
        let (before, mut first) = (sent(&s), None);
        for n in 0..6u64 {
            let seen = step(&mut s, &Op::Own(port, false), &mut now, &mut last);
            assert_eq!(first.get_or_insert(seen.clone()), &seen, "port {port}, frame {n}");
            assert_eq!(s.again, n, "port {port}");
        }
        assert_eq!(sent(&s)[1], before[1] + 6, "port {port}");
        step(&mut s, &Op::Own(port, true), &mut now, &mut last);
        assert_eq!(s.again, 5, "another length");
        step(&mut s, &Op::Config(port, 0x20), &mut now, &mut last);
        let silent = step(&mut s, &Op::Own(port, false), &mut now, &mut last);
        assert_ne!(Some(silent), first, "port {port} forwards nothing by now");
    }
    for mut s in [Rig::new(true), Rig::with_lane()] {
        step(&mut s, &Op::Session(3, Some(1)), &mut now, &mut last);
        let packet = Op::Alike { sport: 1000, dst: 1, dport: 3784, ttl: 64, written: false };
        let first = step(&mut s, &packet, &mut now, &mut last);
        assert!(first.starts_with("[] [] [(0, "), "{first}");
        let before = s.cache_stats().misses;
        for _ in 0..9 {
            assert_eq!(step(&mut s, &packet, &mut now, &mut last), first);
        }
        assert_eq!(s.cache_stats().misses, before);
        step(&mut s, &Op::Session(3, None), &mut now, &mut last);
        assert_ne!(step(&mut s, &packet, &mut now, &mut last), first);
    }
}

/// Another thread forgets its masks when numbers begin anew: under an old one a packet would have the key of a flow under the new
/// one with the same number.
#[test]
fn old_masks_serve_no_flow_of_new_ones() {
    let mut s = Rig::with_few_masks(true);
    s.number_masks_up_to(1);
    let now = Duration::from_secs(10);
    let mut sport = 1000;
    let mut sent = |s: &mut Rig, dport: u16| {
        sport += 1;
        let ends = ((ip("10.0.0.9"), sport), (ip("9.9.9.9"), dport));
        let p = build::udp(PEER, ROUTER, ends.0, ends.1, 64, &[7; 20]).expect("udp");
        let mut out = Outputs::default();
        s.take((3, p), now, &mut out);
        out.packets.iter().map(|(to, _)| to.device().index()).collect::<Vec<_>>()
    };
    flow(&mut s, BridgeId(0), "table=0,priority=90,in_port=3 actions=output:2", now);
    (0..3).for_each(|_| assert_eq!(sent(&mut s, 5), [2]));
    let walks = s.cache_stats().misses;
    flow(&mut s, BridgeId(0), "table=0,priority=91,in_port=3,udp,tp_dst=0 actions=output:1", now);
    (0..9).for_each(|_| assert_eq!(sent(&mut s, 0), [1]));
    (0..9).for_each(|_| assert_eq!(sent(&mut s, 5), [2]));
    (0..9).for_each(|n| assert_eq!(sent(&mut s, n % 2 * 5), [1 + n as usize % 2]));
    assert!(s.cache_stats().misses - walks < 20, "the new mask serves: {:?}", s.cache_stats());
}

/// Packets that differ in nothing that decides need no walk: those of other ports and addresses, until a table asks for these.
#[test]
fn packets_alike_share_a_flow() {
    let rigs = [("switch", Rig::new(true)), ("lane", Rig::with_lane())];
    for (name, mut s) in rigs {
        let now = Duration::from_secs(10);
        // Both ends of tunnels are known: what is for them is not flooded.
        for (device, mac) in [(50, PEER), (60, ROUTER)] {
            let here = build::arp_request(mac, [192, 168, 0, 2].into(), [192, 168, 0, 1].into());
            s.take((device, here), now, &mut Outputs::default());
        }
        let walks = |s: &mut Rig, device: u32, wrap: bool| {
            let before = s.cache_stats().misses;
            for n in 0..50u16 {
                let ends = ((ip("10.0.0.9"), 1000 + n), (IpAddr::from([9, 9, 9, n as u8]), 2000 + n));
                let mut p = build::udp(PEER, ROUTER, ends.0, ends.1, 64, &[7; 20]).expect("udp");
                if wrap {
                    let mut body = Vec::new();
                    packet::tunnel::put_vxlan(&mut body, packet::Vni::of_low_bits(0x77));
                    body.extend_from_slice(&p);
                    p = build::udp(ROUTER, PEER, (ip("192.168.0.2"), 5000 + n), (ip("192.168.0.1"), 4789), 64, &body)
                        .expect("outer");
                }
                s.take((device, p), now, &mut Outputs::default());
            }
            s.cache_stats().misses - before
        };
        flow(&mut s, BridgeId(0), "table=0,priority=50,in_port=2 actions=resubmit(,70)", now);
        flow(&mut s, BridgeId(0), "table=0,priority=50,in_port=11,tun_id=0x77 actions=set_field:5->reg1,output:2", now);
        flow(
            &mut s,
            BridgeId(0),
            "table=70,ip actions=push_vlan:0x8100,set_field:4101->vlan_vid,set_field:0x77->tun_id,set_field:192.168.0.2->tun_dst,output:10,output:3",
            now,
        );
        assert!(walks(&mut s, 2, false) <= 2, "{name}: plain packets into a tunnel and to a port");
        assert!(walks(&mut s, 50, true) <= 2, "{name}: packets out of a tunnel");
        flow(&mut s, BridgeId(0), "table=70,priority=40000,udp,tp_dst=2007 actions=drop", now);
        let few = walks(&mut s, 2, false);
        assert!((2..40).contains(&few), "{name}: {few} walks as a port decides");
        flow(&mut s, BridgeId(0), "table=70,priority=50000,udp actions=ct(table=71)", now);
        assert!(walks(&mut s, 2, false) <= 2, "{name}: packets without a connection");
    }
}

/// A flow that will not serve again is not in the way of the one that does: packets that were flooded until an address was learned
/// are found at once afterwards.
#[test]
fn flows_that_are_over_are_not_found_first() {
    for (name, mut s) in [("switch", Rig::new(true)), ("lane", Rig::with_lane())] {
        let now = Duration::from_secs(10);
        for port in [2, 3] {
            flow(&mut s, BridgeId(0), &format!("table=0,priority=60,in_port={port} actions=NORMAL"), now);
        }
        let there = [2, 0, 0, 0, 0, 0x77];
        let searched = |s: &mut Rig, packets: u16| {
            let before = s.searched();
            for n in 0..packets {
                let ends = ((ip("10.0.0.9"), 1000 + n), (ip("9.9.9.9"), 53));
                let p = build::udp(packet::Mac(there), VIF, ends.0, ends.1, 64, &[7; 20]).expect("udp");
                s.take((2, p), now, &mut Outputs::default());
            }
            s.searched() - before
        };
        assert!(searched(&mut s, 20) > 0, "{name}: the first packet has no flow");
        let answer =
            build::udp(VIF, packet::Mac(there), (ip("9.9.9.9"), 53), (ip("10.0.0.9"), 1), 64, &[7; 20]).expect("udp");
        s.take((3, answer), now, &mut Outputs::default());
        searched(&mut s, 5);
        assert_eq!(searched(&mut s, 100), 0, "{name}");
    }
}

/// A change makes those flows stale that it concerns, and leaves the others.
#[test]
fn unrelated_flows_stay() {
    let snat = |src| Op::Udp { src, dport: 80, len: 20 };
    let mut s = Rig::new(true);
    let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
    let mut play = |s: &mut Rig, op: &Op| {
        let before = s.cache_stats().misses;
        step(s, op, &mut now, &mut last);
        s.cache_stats().misses - before
    };
    for _ in 0..4 {
        for o in [snat(1), snat(2), Op::Answer { flags: 0 }] {
            play(&mut s, &o);
        }
    }
    let add = |text: &str| Message::FlowMod(parse_flow(text).expect("flow"));
    let mut again = |s: &mut Rig| play(s, &snat(1)) + play(s, &snat(2));
    let mut replaced =
        gateway(false, 40).bridge(BridgeId(0)).expect("bridge").flows().map(|r| r.to_flow_mod()).collect::<Vec<_>>();
    replaced.insert(0, FlowMod { command: FlowModCommand::Delete, table: TableId::ALL, ..Default::default() });
    let all: Vec<Message> = replaced.into_iter().map(Message::FlowMod).collect();
    let cases: [(&str, Vec<Message>, u64); 8] = [
        ("another table", vec![add("table=77,actions=drop")], 0),
        ("another protocol", vec![add("priority=99,tcp actions=drop")], 0),
        ("a port that others were told apart by", vec![add("priority=99,udp,tp_dst=90 actions=drop")], 0),
        ("a port that nobody asked for", vec![add("priority=99,udp,tp_dst=81 actions=drop")], 2),
        ("a lower priority", vec![add("priority=1,udp actions=drop")], 0),
        ("all flows again", all, 0),
        ("a bit that differs between flows of a path", vec![add("priority=99,udp,nw_src=10.0.0.3 actions=drop")], 2),
        ("the flows themselves", vec![add("priority=99,udp,nw_src=10.0.0.1,tp_dst=80 actions=output:3")], 2),
    ];
    for (name, list, stale) in cases {
        again(&mut s);
        s.apply_bundle(BridgeId(0), &list, Duration::from_secs(10)).expect(name);
        assert_eq!(again(&mut s), stale, "{name}");
    }
}

/// Cached flows as `dpctl/dump-flows` tells of them, of packets from a device.
fn told(s: &Rig, device: u32, now: Duration) -> Vec<String> {
    let mut all: Vec<String> =
        s.cached_flows().filter(|f| f.device == DeviceId(device)).map(|f| s.tell_flow(&f, now)).collect();
    all.sort();
    all
}

/// Of packets whose keys are fields, flows say what decided and no more; what they count goes on where their actions change, and they
/// are gone when no packet took them for the longest time that they may idle.
#[test]
fn flows_say_what_decided() {
    let now = Duration::from_secs(10);
    let mut s = Rig::new(true);
    let mut out = Outputs::default();
    let mut send = |s: &mut Rig, kind, n: u8, now| {
        for i in 0..n {
            s.take((3, odd(kind, i % 4, 64)), now, &mut out);
        }
        s.count();
    };
    // The first packet shows that TCP flags count.
    send(&mut s, 0, 1, now);
    flow(&mut s, BridgeId(0), "table=0,priority=50,in_port=3 actions=output:2", now);
    send(&mut s, 0, 10, now);
    send(&mut s, 4, 3, now);
    let of = |frag, n, bytes, to| {
        format!(
            "recirc_id(0),in_port(3),packet_type(ns=0,id=0),eth_type(0x0800),ipv4(frag={frag}), packets:{n}, bytes:{bytes}, used:0.000s, actions:{to}"
        )
    };
    assert_eq!(told(&s, 3, now), [of("later", 2, 88, 2), of("no", 9, 396, 2)]);
    flow(&mut s, BridgeId(0), "table=0,priority=50,in_port=3 actions=output:1", now);
    send(&mut s, 0, 10, now);
    assert_eq!(told(&s, 3, now), [of("no", 19, 836, 1)], "other actions");
    flow(&mut s, BridgeId(0), "table=0,priority=60,in_port=3,icmp6,icmp_type=136,nd_target=2001::9 actions=drop", now);
    s.take((3, odd(5, 1, 64)), now, &mut Outputs::default());
    let nd = "recirc_id(0),in_port(3),packet_type(ns=0,id=0),eth_type(0x86dd),ipv6(proto=58,frag=no),icmpv6(type=136),nd(target=2001::9), packets:0, bytes:0, used:never, actions:drop";
    assert!(told(&s, 3, now).iter().any(|f| f == nd), "{:#?}", told(&s, 3, now));
    let later = now + switch::MAX_IDLE;
    s.tick(later, &mut Outputs::<Vec<u8>>::default());
    assert_eq!(told(&s, 3, later), [""; 0], "idle flows");
}

/// Packets that differ in what decides nothing need one walk: of IPv6, into tunnels and out of them, over ports that are
/// chosen by liveness.
#[test]
fn packets_alike_share_a_flow_whatever_tunnel_they_pass() {
    let within = |(dst, sport)| packet(&Op::Within { kind: 10, dst, ttl: 2, vni: 0x1235, sport }, &[]);
    let alike = |dport| packet(&Op::Alike { sport: 1000, dst: 2, dport, ttl: 64, written: false }, &[]);
    let v6 = |n: u8| {
        let ends = ((IpAddr::from([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, n]), 1002), (ip("2001::8"), 80));
        Some((3, build::udp(ROUTER, VIF, ends.0, ends.1, 64, &[n; 9])?))
    };
    let echo = |n: u8| {
        let (from, to) = (IpAddr::from([10, 9, 1, n]), ip("10.9.0.2"));
        Some((3, build::ip_packet(ROUTER, VIF, from, to, 1, 64, &[8, 0, 0, 0, 0, n, 0, 1])?))
    };
    let cases: [(&str, Vec<_>); 4] = [
        ("out of a tunnel", [(0, 5000), (1, 5001), (0, 5002), (1, 5002)].map(within).into()),
        ("into a tunnel", (1..4).map(v6).collect()),
        ("ICMP into a tunnel", (1..4).map(echo).collect()),
        // The first one shows that lookups compare TCP flags: keys have all of them from then on.
        ("active_backup", [81, 80, 81].map(alike).into()),
    ];
    let shown = |s: &Rig| s.cached_flows().map(|f| format!("{} {}", f.packets, f.actions)).collect::<Vec<_>>();
    for (name, frames) in cases {
        let (mut s, now) = (Rig::new(true), Duration::from_secs(10));
        // Both ends of the tunnel are known: what is for them is not flooded.
        for (device, mac, from, to) in [(50, PEER, 2, 1), (60, ROUTER, 1, 2)] {
            let here = build::arp_request(mac, [192, 168, 0, from].into(), [192, 168, 0, to].into());
            s.take((device, here), now, &mut Outputs::default());
        }
        let walks = |s: &Rig| s.cache_stats().misses;
        let mut walked = Vec::new();
        for frame in frames {
            let (before, mut out) = (walks(&s), Outputs::default());
            s.take(frame.expect("frame"), now, &mut out);
            assert!(!out.packets.is_empty(), "{name}");
            walked.push(walks(&s) - before);
        }
        assert_eq!(walked.last(), Some(&0), "{name}: {walked:?}: {:#?}", shown(&s));
    }
}

/// A packet that leaves its tunnel for another one has its outer frame flooded, and shows where the flooded address is: the
/// next one is not flooded.
#[test]
fn what_a_walk_learns_is_known_to_the_next_packet() {
    let within = Op::Within { kind: 10, dst: 2, ttl: 1, vni: 0x1235, sport: 5000 };
    let list = [Op::Tunnelled { vni: 0x1233, sport: 1, len: 0 }, within.clone(), within];
    for rig in [Rig::new(true), Rig::with_lane()] {
        equals_translation(rig, &list).expect("the same");
    }
}
