//! Copies in tunnels of other kinds, cut copies and samples: which of them need no walk.

use super::gateway::{PEER, ROUTER, VIF, flow, ip};
use super::ops::{Op, Sum, in_tunnel};
use super::rig::{Rig, step};
use packet::build;
use std::time::Duration;
use switch::{BridgeId, Outputs};

/// Both ends of the tunnels are known: what is for them is not flooded.
fn know_ends(s: &mut Rig, now: Duration) {
    for (device, mac, from, to) in [(50, PEER, 2, 1), (60, ROUTER, 1, 2)] {
        let here = build::arp_request(mac, [192, 168, 0, from].into(), [192, 168, 0, to].into());
        s.take((device, here), now, &mut Outputs::default());
    }
}

/// Of a hundred packets each no more than a few walk, and all of them leave as they should: the numbers of a tunnel's packets
/// go up by one, and as many samples are taken as were asked for, also where a fast path serves packets.
#[test]
fn copies_and_samples_need_no_walk() {
    let alike = |dst, dport, sport| Op::Alike { sport, dst, dport, ttl: 64, written: false };
    let within = |kind| Op::Within { kind, dst: 1, ttl: 3, vni: 0x1235, sport: 5001 };
    let open = |dport| Op::Open { src: 2, sport: 1001, dport, ttl: 64, sum: Sum::Right };
    // An operation; the device of one of its packets' copies, and how many of these each packet has; how many samples of a
    // hundred packets; whether packets are cached.
    let cases = [
        ("GRE and ERSPAN", alike(1, 82, 1000), (50, 2), 0..1, true),
        ("headers with the time", alike(1, 83, 1000), (50, 4), 0..1, false),
        ("all are sampled, some once more", alike(0, 82, 1000), (2, 1), 130..171, true),
        ("samples of a clone", alike(0, 83, 1000), (2, 1), 100..101, true),
        ("extensions of VXLAN", alike(1, 81, 1000), (50, 3), 0..1, true),
        ("cut, with a tag", alike(0, 81, 1000), (2, 2), 0..1, true),
        ("cut, into tunnels", alike(0, 81, 1001), (50, 3), 0..1, true),
        ("not cut", alike(0, 81, 1002), (2, 1), 0..1, true),
        ("samples of what came by a tunnel", within(10), (2, 1), 40..82, true),
        ("samples behind a connection", open(78), (50, 1), 130..171, true),
        ("samples and ERSPAN between meters", open(79), (50, 1), 15..46, true),
    ];
    for ((name, op, (device, copies), samples, cached), lane) in cases.iter().flat_map(|c| [(c, false), (c, true)]) {
        let mut s = Rig::with_room(true, 4000);
        if lane {
            s.add_lane();
        }
        let meters = [2, 3].map(|n| Op::Meter(n, 60_000, openflow_rs::MeterModCommand::Modify));
        let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
        meters.iter().for_each(|m| drop(step(&mut s, m, &mut now, &mut last)));
        know_ends(&mut s, now);
        let (before, mut taken, mut sent) = (s.cache_stats().misses, 0, 0);
        for _ in 0..100 {
            now += Duration::from_millis(10);
            let seen = step(&mut s, op, &mut now, &mut last);
            taken += seen.matches("Sample { bridge").count();
            sent += seen.matches(&format!("({device}, [")).count();
        }
        let walks = s.cache_stats().misses - before;
        assert_eq!(walks < 10, *cached, "{name}, lane {lane}: {walks} walks");
        assert_eq!(sent, 100 * copies, "{name}, lane {lane}: copies");
        assert!(samples.contains(&taken), "{name}, lane {lane}: {taken} samples");
    }
}

/// Numbers of a tunnel's packets go up by one, whoever sends them, and checksums are right.
#[test]
fn numbers_go_up_by_one() {
    for lane in [false, true] {
        let mut s = Rig::new(true);
        if lane {
            s.add_lane();
        }
        let here = build::arp_request(PEER, [192, 168, 0, 2].into(), [192, 168, 0, 1].into());
        let mut now = Duration::from_secs(10);
        s.take((50, here), now, &mut Outputs::default());
        let mut numbers = Vec::new();
        for n in 0..40u8 {
            now += Duration::from_millis(10);
            // Of two flows: one is of IPv6.
            let p = if n % 3 == 0 {
                let ends = ((ip("2001::77"), 1000), (ip("2001::8"), 82));
                build::udp(ROUTER, VIF, ends.0, ends.1, 64, &[n; 30][..10 + usize::from(n) % 7]).expect("udp")
            } else {
                let ends = ((ip("10.0.0.7"), 1003), (ip("10.9.0.1"), 84));
                build::udp(ROUTER, VIF, ends.0, ends.1, 64, &[n; 30][..10 + usize::from(n) % 7]).expect("udp")
            };
            let mut out = Outputs::default();
            s.take((3, p.clone()), now, &mut out);
            let copies = out.packets.iter().filter(|(to, _)| to.device().index() == 50);
            for gre in copies.filter_map(|(_, p)| p.get(34..)) {
                let (header, len) = packet::gre::Gre::parse(gre).expect("a header with a right checksum");
                assert_eq!((header.key, gre.get(len..)), (Some(9), Some(&p[..])), "packet {n}, lane {lane}");
                numbers.extend(header.sequence.filter(|_| header.checksum));
            }
        }
        let first = numbers.first().copied().unwrap_or(0);
        assert_eq!(numbers, (first..first + 40).collect::<Vec<u32>>(), "lane {lane}: {:?}", s.cache_stats());
        assert!(s.cache_stats().misses < 12, "lane {lane}: {:?}", s.cache_stats());
    }
}

/// Packets out of GRE and ERSPAN, and out of VXLAN with extensions, need no walk, whatever their numbers and times are; those
/// with a checksum do, as it may be wrong.
#[test]
fn packets_out_of_other_tunnels_need_no_walk() {
    for (vni, cached) in [
        (0x1236, true),
        (0x1237, true),
        (0x1238, true),
        (0x1239, true),
        (0x123a, false),
        (0x123b, true),
        (0x123c, true),
    ] {
        for lane in [false, true] {
            let mut s = Rig::new(true);
            if lane {
                s.add_lane();
            }
            let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
            know_ends(&mut s, now);
            for n in 0..100u16 {
                // Direction and parity of the number go together.
                let op = Op::Within { kind: 0, dst: 1, ttl: 3, vni, sport: 2 * n };
                let seen = step(&mut s, &op, &mut now, &mut last);
                assert!(seen.starts_with("[("), "{vni:#x}, lane {lane}: {seen}");
            }
            let walks = s.cache_stats().misses;
            assert_eq!(walks < 10, cached, "{vni:#x}, lane {lane}: {walks} walks");
            let shown = s.cached_flows().filter(|f| f.actions.starts_with("tnl_pop"));
            assert_eq!(shown.count() > 0, cached && !lane, "{vni:#x}, lane {lane}");
        }
    }
}

/// Packets out of a tunnel over IPv6 share a flow, whatever of its headers spreads them: the source port and the flow label.
#[test]
fn packets_out_of_tunnels_over_ipv6_share_a_flow() {
    for (lane, tcp) in (0..4).map(|n| (n & 1 != 0, n & 2 != 0)) {
        let mut s = Rig::new(true);
        if lane {
            s.add_lane();
        }
        let now = Duration::from_secs(10);
        know_ends(&mut s, now);
        flow(&mut s, BridgeId(0), "table=0,priority=90,in_port=10,tun_id=0x1299 actions=output:2", now);
        for n in 0..100u16 {
            let ends = ((ip("10.0.0.77"), 1000 + n), (ip("10.0.0.1"), 9));
            let inner = if tcp {
                super::ops::tcp((VIF, PEER), ends.0, ends.1, 0x10)
            } else {
                build::udp(VIF, PEER, ends.0, ends.1, 64, &[3; 9]).expect("inner")
            };
            let mut out = Outputs::default();
            s.take((50, in_tunnel(0x1299, 3 * n, &inner)), now, &mut out);
            assert!(!out.packets.is_empty(), "packet {n}, lane {lane}, TCP {tcp}");
        }
        let walks = s.cache_stats().misses;
        assert!(walks < 6, "lane {lane}, TCP {tcp}: {walks} walks");
        let shown: Vec<String> = s.cached_flows().map(|f| f.packets).filter(|f| f.contains("(vni=0x1299)")).collect();
        assert!(lane || shown.len() == 1 && !shown[0].contains("label"), "{shown:?}");
    }
}

/// Packets that NetFlow counts need no walk, those of a connection neither, and each is counted, whatever flags of TCP it has.
#[test]
fn netflow_needs_no_walk() {
    let alike = |sport| Op::Alike { sport, dst: 2, dport: 80, ttl: 64, written: false };
    let tcp = |flags| Op::Tcp { src: 1, flags, dport: 80 };
    let cases: [(&str, [Op; 2], usize); 3] = [
        ("two flows", [alike(1001), alike(1002)], 2),
        ("a connection's packets", [tcp(0x10), tcp(0x18)], 2),
        ("out of GRE", [0x1236, 0x1237].map(|vni| Op::Within { kind: 2, dst: 1, ttl: 3, vni, sport: 7 }), 2),
    ];
    for (name, ops, flows) in cases {
        for lane in [false, true] {
            let mut s = Rig::new(true);
            if lane {
                s.add_lane();
            }
            let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
            step(&mut s, &Op::Netflow(0, true), &mut now, &mut last);
            for n in 0..200 {
                step(&mut s, &ops[n % 2], &mut now, &mut last);
            }
            let walks = s.cache_stats().misses;
            assert!(walks < 20, "{name}, lane {lane}: {walks} walks");
            s.count();
            let told = s.netflow();
            let packets: u64 = told.values().map(|(packets, _)| packets).sum();
            assert_eq!((told.len(), packets), (flows, 200), "{name}, lane {lane}: {told:#?}");
        }
    }
}
