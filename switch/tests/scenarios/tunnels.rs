//! Packets through tunnels: what the outer headers say, and what comes out at the other end.

use crate::rig::{A, B, NOW, THROUGH, chassis, good, ip, joined, load, mac_of, pair, send, udp, via};
use openflow_rs::text::parse_flow;
use openflow_rs::*;
use packet::{Headers, build, checksum};
use switch::{
    BridgeId, DeviceId, DropReason, Egress, ErspanOptions, Event, Outputs, PacketMode, Port, PortKind, Route, Switch,
    TunnelConfig, TunnelKey, TunnelKind,
};

#[test]
fn tunnels_carry_packets_and_metadata() {
    for (kind, a, b) in [
        (TunnelKind::Geneve, "192.168.0.1", "192.168.0.2"),
        (TunnelKind::Vxlan, "192.168.0.1", "192.168.0.2"),
        (TunnelKind::Geneve, "fd00::1", "fd00::2"),
        (TunnelKind::Gre, "192.168.0.1", "192.168.0.2"),
        (TunnelKind::Gre, "fd00::1", "fd00::2"),
    ] {
        let mut one = chassis(a, b, kind);
        let mut two = chassis(b, a, kind);
        let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
        let out = send(&mut one, 1, &p);
        let [Event::NeighbourWanted(hop, held)] = &out.events[..] else { panic!("{:?}", out.events) };
        assert!(out.packets.is_empty() && *hop == ip(b) && one.drops.get(DropReason::TunnelNoNeighbour) == 0);
        one.underlay.set_neighbour(ip(b), Some(mac_of(b)));
        let mut late = Outputs::default();
        one.send_held(held, &Vec::new(), NOW, &mut late);
        let out = send(&mut one, 1, &p);
        assert_eq!((out.packets.len(), &late.packets), (1, &out.packets), "{:?}", one.drops);
        let (dev, outer) = &out.packets[0];
        assert_eq!(*dev, via(100));
        good(outer);
        let got = send(&mut two, 100, outer);
        assert_eq!(got.packets, [(via(2), p.clone())], "{kind:?} {:?}", two.drops);
        let mut cut = outer.clone();
        cut.truncate(60);
        send(&mut two, 100, &cut);
    }
}

/// Packets for an own address enter a tunnel where their frame is for the device that has it, without a tag. Others may
/// come by flooding, and stay outside; so do all when the address is gone.
#[test]
fn frames_of_others_do_not_enter_tunnels() {
    for (kind, a, b) in [
        (TunnelKind::Geneve, "192.168.0.1", "192.168.0.2"),
        (TunnelKind::Vxlan, "fd00::1", "fd00::2"),
        (TunnelKind::Gre, "192.168.0.1", "192.168.0.2"),
    ] {
        let [mut one, mut two] = pair(a, b, kind, |_| {});
        let under = two.add_bridge("br-under", 2);
        two.add_port(under, Port::new(PortNo::LOCAL, "br-under", PortKind::Internal(DeviceId(65)))).expect("port");
        two.add_port(under, Port::new(PortNo(1), "uplink", PortKind::Device(DeviceId(66)))).expect("port");
        load(&mut two, under, &["actions=NORMAL"]);
        let outer = send(&mut one, 1, &udp("10.0.0.1", 5, "10.0.0.2", 6)).packets.remove(0).1;
        let to = |mac: [u8; 6], tag: Option<u16>| {
            let mut p = outer.clone();
            p[..6].copy_from_slice(&mac);
            if let Some(vlan) = tag {
                p.splice(12..12, [0x81, 0, (vlan >> 8) as u8, vlan as u8]);
            }
            p
        };
        let own = mac_of(b).0;
        for (frame, enters) in [
            (to(own, None), true),
            (to([2, 0, 0, 0, 0, 0x77], None), false),
            (to([0xff; 6], None), false),
            (to(own, Some(9)), false),
            (to(own, None), true),
        ] {
            for _ in 0..3 {
                let arrived = send(&mut two, 66, &frame).packets;
                let inner = arrived.iter().any(|(d, _)| *d == via(2));
                let host = arrived.iter().any(|(d, p)| *d == via(65) && *p == frame);
                assert_eq!((inner, host), (enters, !enters), "{kind:?} {:02x?} {arrived:?}", &frame[..16]);
            }
        }
        two.underlay.set_routes(Vec::new());
        assert!(send(&mut two, 66, &to(own, None)).packets.iter().all(|(d, _)| *d != via(2)), "{kind:?}");
    }
}

/// A packet in a tunnel with a wrong checksum outside it is dropped, whether its flow is cached or not: of IPv4's header, and of
/// UDP, unless its sender has left that out.
#[test]
fn wrong_checksums_do_not_enter_tunnels() {
    for (kind, a, b) in [
        (TunnelKind::Geneve, "192.168.0.1", "192.168.0.2"),
        (TunnelKind::Vxlan, "192.168.0.1", "192.168.0.2"),
        (TunnelKind::Gre, "192.168.0.1", "192.168.0.2"),
        (TunnelKind::Geneve, "fd00::1", "fd00::2"),
    ] {
        let [mut one, mut two] = pair(a, b, kind, |t| t.csum = Some(true));
        let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
        let outer = send(&mut one, 1, &p).packets.remove(0).1;
        let (v4, over_udp) = (a.contains('.'), kind != TunnelKind::Gre);
        let l4 = if v4 { 34 } else { 54 };
        let flipped = |at: usize| {
            let mut p = outer.clone();
            p[at] ^= 0x10;
            p
        };
        let mut without = outer.clone();
        without[l4 + 6..l4 + 8].fill(0);
        let last = outer.len() - 1;
        let mut wrong = 0;
        for _ in 0..3 {
            let mut cases = vec![(outer.clone(), true)];
            if v4 {
                // The time to live is under the header's checksum.
                cases.push((flipped(22), false));
            }
            if over_udp {
                cases.extend([(flipped(last), false), (flipped(l4), false)]);
            }
            if over_udp && v4 {
                cases.push((without.clone(), true));
            }
            cases.push((outer.clone(), true));
            for (frame, good) in cases {
                let arrived = !send(&mut two, 100, &frame).packets.is_empty();
                assert_eq!(arrived, good, "{kind:?} {a} {frame:02x?}");
                wrong += u64::from(!good);
            }
        }
        assert_eq!(two.drops.get(DropReason::TunnelChecksum), wrong, "{kind:?} {a}");
        // All at once, as a run.
        let burst = [&outer, &outer, &flipped(last), &outer];
        let mut out = Outputs::default();
        two.process(&mut burst.map(|p| (DeviceId(100), p.clone())).to_vec(), NOW, &mut out);
        assert_eq!(out.packets.len(), 3, "{kind:?} {a}: GRE has a checksum of its own");
    }
}

/// Packets of GRE have the key and the numbers that the port's options ask for, those of ERSPAN their session; what is
/// wrong is dropped, and without a port of GRE its packets are like others.
#[test]
fn gre_and_erspan_carry_what_their_options_say() {
    let (a, b) = ("192.168.0.1", "192.168.0.2");
    let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
    let ports = |kind, own: &str, peer: &str| {
        let mut s = chassis(own, peer, kind);
        let mut cfg = TunnelConfig::new(kind, Some(ip(peer)));
        (cfg.key, cfg.sequence) = (Some(TunnelKey(7)), true);
        s.add_port(BridgeId(0), Port::new(PortNo(11), "fixed", PortKind::Tunnel(Box::new(cfg)))).expect("port");
        load(&mut s, BridgeId(0), &["in_port=3 actions=output:11", "in_port=11 actions=output:3"]);
        s.underlay.set_neighbour(ip(peer), Some(mac_of(peer)));
        s
    };
    for (kind, header) in
        [(TunnelKind::Gre, &[0x30, 0, 0x65, 0x58, 0, 0, 0, 7][..]), (TunnelKind::Erspan, &[0x10, 0, 0x88, 0xbe][..])]
    {
        let (mut one, mut two) = (ports(kind, a, b), ports(kind, b, a));
        for number in 0..3 {
            let out = send(&mut one, 3, &p).packets;
            let (_, outer) = &out[0];
            good(outer);
            assert_eq!((outer[23], &outer[34..34 + header.len()]), (47, header), "{outer:02x?}");
            let at = 34 + header.len();
            assert_eq!(outer[at..at + 4], [0, 0, 0, number], "numbers follow each other");
            if kind == TunnelKind::Erspan {
                assert_eq!(outer[at + 4..at + 12], [0x10, 0, 0, 7, 0, 0, 0, 0]);
            }
            assert_eq!(send(&mut two, 100, outer).packets, [(via(3), p.clone())], "{:?}", two.drops);
        }
        let mut wrong = send(&mut one, 3, &p).packets.remove(0).1;
        wrong[34] |= 0x40;
        assert!(send(&mut two, 100, &wrong).packets.is_empty());
        assert_eq!(two.drops.get(DropReason::TunnelMalformed), 1);
    }
    // A key of 0 is said where the options have it, and not where there are no such options.
    for (keyed, header) in [(true, &[0x20, 0, 0x65, 0x58, 0, 0, 0, 0][..]), (false, &[0, 0, 0x65, 0x58][..])] {
        let [mut one, mut two] = pair(a, b, TunnelKind::Gre, |t| {
            (t.key, t.in_key, t.keyed) = (Some(TunnelKey(0)), Some(TunnelKey(0)), keyed)
        });
        load(&mut two, BridgeId(0), &["in_port=10 actions=output:3"]);
        for _ in 0..2 {
            let (_, outer) = send(&mut one, 1, &p).packets.remove(0);
            assert_eq!((&outer[34..34 + header.len()], outer.len()), (header, p.len() + 34 + header.len()));
            assert_eq!(send(&mut two, 100, &outer).packets, [(via(3), p.clone())], "{:?}", two.drops);
        }
    }
    // The one of Geneve has no tunnel of GRE.
    let mut other = chassis(b, a, TunnelKind::Geneve);
    let outer = send(&mut ports(TunnelKind::Gre, a, b), 3, &p).packets.remove(0).1;
    send(&mut other, 100, &outer);
    assert_eq!(other.drops.get(DropReason::TunnelMalformed) + other.drops.get(DropReason::TunnelUnknown), 0);
}

/// What a port of ERSPAN leaves to flows they set, and find at the other end; what there is no header for does not leave.
#[test]
fn flows_set_and_match_erspan() {
    let (a, b) = ("192.168.0.1", "192.168.0.2");
    let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
    let all = ErspanOptions { version: None, index: None, egress: None, hardware: None };
    let some = ErspanOptions { version: Some(2), hardware: None, ..ErspanOptions::default() };
    let out = "set_field:2->tun_erspan_ver,set_field:1->tun_erspan_dir,set_field:0x2a->tun_erspan_hwid";
    // The second version has the time, in units of 100 microseconds.
    let cases = [
        (all, "set_field:1->tun_erspan_ver,set_field:0xabcde->tun_erspan_idx", "1000007b000abcde", 1),
        (all, out, "2000007b000186a0000002a8", 2),
        // The port has the direction, and flows the hardware.
        (some, out, "2000007b000186a0000002a0", 3),
        (ErspanOptions::default(), out, "1000007b00000000", 0),
    ];
    let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    for (options, set, header, to) in cases {
        let with = |t: &mut TunnelConfig| (t.key, t.in_key, t.erspan) = (None, None, options);
        let sends: &[&str] = &[&format!("in_port=3 actions=set_field:0x7b->tun_id,{set},output:12")];
        let takes: &[&str] = &[
            "in_port=12,tun_id=0x7b,tun_erspan_ver=1,tun_erspan_idx=0xabc00/0xfff00 actions=output:1",
            "in_port=12,tun_erspan_ver=2,tun_erspan_dir=1,tun_erspan_hwid=0x2a actions=output:2",
            "in_port=12,tun_erspan_ver=2,tun_erspan_dir=0 actions=output:3",
        ];
        let [mut one, mut two] = joined(a, b, TunnelKind::Erspan, [sends, takes], [&with; 2]);
        for _ in 0..2 {
            let outer = send(&mut one, 3, &p).packets.remove(0).1;
            let n = header.len() / 2;
            assert_eq!(hex(&outer[42..42 + n]), header);
            let wanted = if to == 0 { Vec::new() } else { vec![(via(to), p.clone())] };
            assert_eq!(send(&mut two, 100, &outer).packets, wanted, "{header}");
        }
    }
    let with = |t: &mut TunnelConfig| (t.key, t.erspan) = (None, all);
    for nothing in ["set_field:3->tun_erspan_ver", "set_field:1->tun_erspan_ver,set_field:0x400->tun_id"] {
        let sends: &[&str] = &[&format!("in_port=3 actions={nothing},output:12")];
        let [mut one, _] = joined(a, b, TunnelKind::Erspan, [sends, &[]], [&with; 2]);
        assert!(send(&mut one, 3, &p).packets.is_empty());
        assert_eq!(one.drops.get(DropReason::TunnelNoHeader), 1, "{nothing}");
    }
}

/// The outer type of service and time to live.
fn tos_ttl(p: &[u8]) -> (u8, u8) {
    match p[14] >> 4 {
        4 => (p[15], p[22]),
        _ => (p[14] << 4 | p[15] >> 4, p[21]),
    }
}

/// A datagram with a type of service.
fn marked(tos: u8) -> Vec<u8> {
    let mut p = udp("10.0.0.1", 5, "10.0.0.2", 6);
    p[15] = tos;
    checksum::set_ipv4(&mut p, 14);
    p
}

const UNDERLAYS: [(&str, &str); 2] = [("192.168.0.1", "192.168.0.2"), ("fd00::1", "fd00::2")];

/// Tunnels end at the UDP port that they are sent to, and at no other.
#[test]
fn each_tunnel_has_its_port() {
    for ((a, b), kind) in UNDERLAYS.into_iter().flat_map(|u| [(u, TunnelKind::Geneve), (u, TunnelKind::Vxlan)]) {
        let [mut one, mut two] = pair(a, b, kind, |t| t.udp_port = 7000);
        // The first packet of a flow takes another way than those behind it.
        for _ in 0..3 {
            let (_, outer) = send(&mut one, 1, &marked(0)).packets.remove(0);
            good(&outer);
            assert_eq!(send(&mut two, 100, &outer).packets, [(via(2), marked(0))], "{kind:?} {:?}", two.drops);
        }
        let [mut usual, _] = pair(a, b, kind, |_| {});
        let (_, outer) = send(&mut usual, 1, &marked(0)).packets.remove(0);
        assert!(send(&mut two, 100, &outer).packets.is_empty());
        assert_eq!(two.drops.get(DropReason::TunnelUnknown), 1, "there is no tunnel at the usual port");
        // A port that goes takes its number along.
        two.remove_port(BridgeId(0), PortNo(10)).expect("a tunnel");
        let (_, outer) = send(&mut one, 1, &marked(0)).packets.remove(0);
        send(&mut two, 100, &outer);
        assert_eq!(two.drops.get(DropReason::TunnelUnknown), 1);
    }
}

/// The outer header says that the sender takes notice of congestion where the inner one does (RFC 3168 section 9.1.1), and has class and
/// time to live as the options want them.
#[test]
fn outer_headers_follow_inner_ones() {
    for (a, b) in UNDERLAYS {
        type Options = fn(&mut TunnelConfig);
        let cases: [(Options, u8, (u8, u8)); 6] = [
            (|_| {}, 0, (0, 64)),
            (|_| {}, 0xb9, (1, 64)),
            (|_| {}, 0xbb, (2, 64)),
            (|t| (t.tos, t.ttl) = (0x40, 9), 0xba, (0x42, 9)),
            (|t| (t.inherits_tos, t.inherits_ttl) = (true, true), 0xba, (0xba, 64)),
            (|t| (t.inherits_tos, t.tos) = (true, 0x40), 0, (0, 64)),
        ];
        for (options, inner, expected) in cases {
            let [mut one, mut two] = pair(a, b, TunnelKind::Vxlan, options);
            for _ in 0..3 {
                let (_, outer) = send(&mut one, 1, &marked(inner)).packets.remove(0);
                good(&outer);
                assert_eq!(tos_ttl(&outer), expected, "{inner:#x} over {a}");
                assert_eq!(send(&mut two, 100, &outer).packets, [(via(2), marked(inner))]);
            }
            // A flow has packets of several classes.
            let (_, outer) = send(&mut one, 1, &marked(inner ^ 1)).packets.remove(0);
            assert_eq!(send(&mut two, 100, &outer).packets, [(via(2), marked(inner ^ 1))]);
        }
        // What is no packet of IP has nothing to follow.
        let [mut one, _] = pair(a, b, TunnelKind::Vxlan, |t| {
            (t.inherits_tos, t.inherits_ttl, t.tos, t.ttl) = (true, true, 0x20, 0);
        });
        let mut arp = vec![0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        let (_, outer) = send(&mut one, 1, &arp).packets.remove(0);
        assert_eq!(tos_ttl(&outer), (0x20, 64));
    }
}

/// Congestion on the way through a tunnel is marked in the inner packet if its sender supports ECN; otherwise the
/// packet is dropped.
#[test]
fn congestion_in_a_tunnel_is_told_on() {
    for (a, b) in UNDERLAYS {
        let [mut one, mut two] = pair(a, b, TunnelKind::Vxlan, |_| {});
        let congested = |mut outer: Vec<u8>| {
            match outer[14] >> 4 {
                4 => {
                    outer[15] |= 3;
                    checksum::set_ipv4(&mut outer, 14);
                }
                _ => outer[15] |= 0x30,
            }
            outer
        };
        for (inner, expected) in [(2, Some(3)), (1, Some(3)), (3, Some(3)), (0, None), (0xb8, None), (0xba, Some(0xbb))]
        {
            let mut drops = two.drops.get(DropReason::TunnelCongestion);
            for _ in 0..3 {
                let (_, outer) = send(&mut one, 1, &marked(inner)).packets.remove(0);
                let out = send(&mut two, 100, &congested(outer.clone())).packets;
                match expected {
                    Some(tos) => assert_eq!(out, [(via(2), marked(tos))], "{inner:#x}"),
                    None => assert!(out.is_empty(), "{inner:#x}"),
                }
                drops += u64::from(expected.is_none());
                assert_eq!(two.drops.get(DropReason::TunnelCongestion), drops);
                assert_eq!(send(&mut two, 100, &outer).packets, [(via(2), marked(inner))], "without congestion");
            }
        }
    }
}

/// A packet-in tells each Geneve option that tunnel metadata has, also one whose value is zero.
#[test]
fn options_that_are_there_are_told() {
    let mut s = chassis("192.0.2.1", "192.0.2.2", TunnelKind::Geneve);
    load(
        &mut s,
        BridgeId(0),
        &[
            "priority=40000,udp,in_port=1 actions=set_field:0->tun_metadata0,CONTROLLER",
            "priority=40000,arp,in_port=1 actions=CONTROLLER",
        ],
    );
    for (p, there) in [
        (udp("10.0.0.1", 1, "10.0.0.2", 2), true),
        (build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into()), false),
    ] {
        let out = send(&mut s, 1, &p);
        let [Event::PacketIn { packet_in, .. }] = &out.events[..] else { panic!("{:?}", out.events) };
        assert_eq!(packet_in.metadata.to_string().contains("tun_metadata0=0"), there, "{}", packet_in.metadata);
    }
}

/// Tunnels without Ethernet in them, of all kinds that have such: the headers, and what comes out.
#[test]
fn tunnels_without_ethernet_carry_ip() {
    let (v4, v6) = (("192.168.0.1", "192.168.0.2"), ("fd00::1", "fd00::2"));
    let l3 = |t: &mut TunnelConfig| {
        (t.mode, t.key, t.in_key) = (PacketMode::LegacyL3, Some(TunnelKey(0)), Some(TunnelKey(0)))
    };
    let gpe = |t: &mut TunnelConfig| {
        l3(t);
        t.gpe = true;
    };
    let path = |t: &mut TunnelConfig| {
        t.segments = vec!["fd00::2".parse().expect("address"), "fd00::9".parse().expect("address")]
    };
    type Case<'a> = (TunnelKind, (&'a str, &'a str), &'a dyn Fn(&mut TunnelConfig), bool, usize, &'a [u8]);
    let numbered = |t: &mut TunnelConfig| {
        l3(t);
        t.sequence = true;
    };
    let cases: [Case<'_>; 10] = [
        (TunnelKind::Gre, v4, &l3, false, 34, &[0, 0, 8, 0]),
        (TunnelKind::Gre, v6, &l3, true, 54, &[0, 0, 0x86, 0xdd]),
        (TunnelKind::Vxlan, v4, &gpe, false, 42, &[0x0c, 0, 0, 1, 0, 0, 0, 0]),
        (TunnelKind::Vxlan, v6, &gpe, true, 62, &[0x0c, 0, 0, 2, 0, 0, 0, 0]),
        (TunnelKind::Gtpu, v4, &l3, false, 42, &[0x30, 255, 0, 33, 0, 0, 0, 0]),
        (TunnelKind::Gtpu, v6, &l3, true, 62, &[0x30, 255, 0, 53, 0, 0, 0, 0]),
        (TunnelKind::Gtpu, v4, &numbered, true, 42, &[0x32, 255, 0, 57, 0, 0, 0, 0]),
        (TunnelKind::Srv6, v6, &l3, false, 54, &[4, 2, 4, 0, 0, 0, 0, 0, 0xfd, 0]),
        (TunnelKind::Srv6, v6, &l3, true, 54, &[41, 2, 4, 0, 0, 0, 0, 0, 0xfd, 0]),
        (TunnelKind::Srv6, v6, &path, true, 54, &[41, 4, 4, 1, 1, 0, 0, 0, 0xfd, 0]),
    ];
    for (kind, (a, b), options, inner_v6, at, header) in cases {
        let [mut one, mut two] = joined(a, b, kind, [THROUGH; 2], [options; 2]);
        let (src, dst) = if inner_v6 { ("fd01::1", "fd01::2") } else { ("10.0.0.1", "10.0.0.2") };
        let p = udp(src, 5, dst, 6);
        for _ in 0..3 {
            let out = send(&mut one, 3, &p).packets;
            let [(to, outer)] = &out[..] else { panic!("{kind:?}: {out:?} {:?}", one.drops) };
            assert_eq!(*to, via(100));
            assert_eq!(&outer[at..at + header.len()], header, "{kind:?} {outer:02x?}");
            assert!(outer.ends_with(&p[14..]));
            let h = Headers::parse(outer).expect("headers");
            assert!(h.ip_ok && h.l3_end == outer.len() && (!h.is_ipv4() || checksum::of(&outer[14..34]) == 0));
            let got = send(&mut two, 100, outer).packets;
            if header[3] != 1 || kind != TunnelKind::Srv6 {
                let mut wanted = p.clone();
                wanted[..12].fill(0);
                assert_eq!(got, [(via(3), wanted)], "{kind:?} {:?}", two.drops);
            } else {
                assert!(got.is_empty(), "a segment is left");
            }
        }
        // No flow counts the empty Ethernet header, as in Open vSwitch.
        two.count_late();
        let q = openflow_rs::message::FlowStatsRequest { table: TableId::ALL, ..Default::default() };
        let rules = two.bridge(BridgeId(0)).expect("bridge").rules(q.table);
        let flows = switch::bridge::flow_stats(&rules, &q, NOW);
        let counted: Vec<[u64; 2]> = flows.iter().map(|f| [f.packets, f.bytes]).filter(|c| c[0] != 0).collect();
        if header[3] != 1 || kind != TunnelKind::Srv6 {
            assert_eq!(counted, [[3, 3 * (p.len() as u64 - 14)]], "{kind:?}");
        }
        // What is cut, or another packet, is no harm.
        let outer = send(&mut one, 3, &p).packets.remove(0).1;
        (0..outer.len()).for_each(|n| drop(send(&mut two, 100, &outer[..n])));
        // ARP has no place in all of them, nor has a tag.
        let mut tagged = p.clone();
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        assert!(send(&mut one, 3, &tagged).packets.is_empty());
        let arp = build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        assert_eq!(send(&mut one, 3, &arp).packets.is_empty(), kind != TunnelKind::Gre);
    }
}

/// Flows find the flags and the type of a message of GTP-U: a user's packet, behind extension headers as well, comes out
/// of it, any other message is the frame that it came in, for a port that takes Ethernet.
#[test]
fn gtpu_tells_messages_apart() {
    let (a, b) = ("192.168.0.1", "192.168.0.2");
    let takes: &[&str] = &[
        "in_port=12,tun_id=0x7b,tun_gtpu_flags=0x30,tun_gtpu_msgtype=255 actions=output:1",
        "in_port=12,tun_gtpu_flags=0x04/0x04,tun_gtpu_msgtype=255 actions=output:2",
        "in_port=12,tun_gtpu_msgtype=1,udp,udp_dst=2152 actions=output:3",
    ];
    let inner = &udp("10.0.0.1", 5, "10.0.0.2", 6)[14..];
    let message = |flags: u8, kind: u8, optional: &[u8], packet: &[u8]| {
        let len = (optional.len() + packet.len()) as u16;
        let m = [&[flags, kind], &len.to_be_bytes()[..], &[0, 0, 0, 0x7b], optional, packet].concat();
        build::udp(A, B, (ip(b), 2152), (ip(a), 2152), 64, &m).expect("udp")
    };
    let plain = message(0x30, 255, &[], inner);
    let container = message(0x34, 255, &[0, 0, 0, 0x85, 1, 0, 9, 0], inner);
    let echo = message(0x32, 1, &[0, 1, 0, 0], &[]);
    let bare = [&[0; 12], &[8, 0][..], inner].concat();
    for aware in [false, true] {
        let options = |t: &mut TunnelConfig| t.mode = if aware { PacketMode::Aware } else { PacketMode::LegacyL3 };
        let [mut one, _] = joined(a, b, TunnelKind::Gtpu, [takes, &[]], [&options, &|_| {}]);
        // Where flows know of types, a packet without Ethernet does not leave by a port for Ethernet.
        let of_user = |n: u32| if aware { Vec::new() } else { vec![(via(n), bare.clone())] };
        for _ in 0..2 {
            assert_eq!(send(&mut one, 100, &plain).packets, of_user(1), "{:?}", one.drops);
            assert_eq!(send(&mut one, 100, &container).packets, of_user(2), "{:?}", one.drops);
            let whole = if aware { vec![(via(3), echo.clone())] } else { Vec::new() };
            assert_eq!(send(&mut one, 100, &echo).packets, whole, "{:?}", one.drops);
        }
        let refused = one.drops.get(DropReason::TunnelUnknown);
        assert_eq!(refused, if aware { 0 } else { 2 });
        for wrong in
            [message(0x32, 255, &[], inner), message(0x30, 255, &[], &[0x20; 40]), message(0x10, 255, &[], inner)]
        {
            assert!(send(&mut one, 100, &wrong).packets.is_empty());
        }
        assert_eq!(one.drops.get(DropReason::TunnelMalformed), 3);
    }
    let mut s = chassis(a, b, TunnelKind::Geneve);
    let flow = Message::FlowMod(parse_flow("in_port=1 actions=set_field:1->tun_gtpu_msgtype,output:2").expect("flow"));
    assert!(s.apply_bundle(BridgeId(0), &[flow], NOW).is_err(), "no action writes it");
}

/// A port with `packet_type=ptap` takes and sends packets of all types; other ports take those of their own type alone.
#[test]
fn packet_types_choose_the_port() {
    let (a, b) = ("192.168.0.1", "192.168.0.2");
    let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
    let aware = |gpe: bool| {
        move |t: &mut TunnelConfig| {
            (t.mode, t.gpe, t.key, t.in_key) = (PacketMode::Aware, gpe, Some(TunnelKey(0)), Some(TunnelKey(0)))
        }
    };
    let sends = &[
        "in_port=3,udp,tp_dst=6 actions=output:12",
        "in_port=3,udp,tp_dst=7 actions=decap(),output:12",
        "in_port=3,udp,tp_dst=8 actions=encap(nsh),output:12",
    ];
    let takes = &[
        "table=0,in_port=12 actions=resubmit(,1)",
        "table=1,udp,tp_dst=6 actions=output:1",
        "table=1,packet_type=(1,0x800) actions=encap(ethernet),output:2",
        "table=1,packet_type=(1,0x894f),nsh_np=3 actions=decap(),output:3",
    ];
    for (kind, gpe) in [(TunnelKind::Gre, false), (TunnelKind::Vxlan, true)] {
        let options = aware(gpe);
        let [mut one, mut two] = joined(a, b, kind, [sends, takes], [&options; 2]);
        for (port, to, ethernet) in [(6, 1, true), (7, 2, false), (8, 3, true)] {
            let p = udp("10.0.0.1", 5, "10.0.0.2", port);
            let outer = send(&mut one, 3, &p).packets.remove(0).1;
            let got = send(&mut two, 100, &outer).packets;
            assert_eq!(got.len(), 1, "{kind:?} {port} {:?}", two.drops);
            assert_eq!(
                (got[0].0, &got[0].1[if ethernet { 0 } else { 14 }..]),
                (via(to), &p[if ethernet { 0 } else { 14 }..])
            );
        }
        // A port for Ethernet alone does not take packets without, and comes before one that knows of types.
        let mut l2 = TunnelConfig::new(kind, Some(ip(a)));
        (l2.gpe, l2.key, l2.in_key) = (gpe, Some(TunnelKey(0)), Some(TunnelKey(0)));
        two.add_port(BridgeId(0), Port::new(PortNo(13), "l2", PortKind::Tunnel(Box::new(l2)))).expect("port");
        load(&mut two, BridgeId(0), &["table=0,in_port=13 actions=output:3"]);
        for (port, to) in [(6, 3), (7, 2)] {
            let outer = send(&mut one, 3, &udp("10.0.0.1", 5, "10.0.0.2", port)).packets.remove(0).1;
            assert_eq!(
                send(&mut two, 100, &outer).packets.iter().map(|o| o.0).collect::<Vec<_>>(),
                [via(to)],
                "{kind:?}"
            );
        }
        two.remove_port(BridgeId(0), PortNo(12)).expect("port");
        let outer = send(&mut one, 3, &udp("10.0.0.1", 5, "10.0.0.2", 7)).packets.remove(0).1;
        assert!(send(&mut two, 100, &outer).packets.is_empty());
        assert!(two.drops.get(DropReason::TunnelUnknown) > 0);
    }
    // Ethernet tunnels take no other packets.
    let [mut one, _] =
        joined(a, b, TunnelKind::Geneve, [&["in_port=3 actions=decap(),output:12"], &[]], [&|_| {}, &|_| {}]);
    assert!(send(&mut one, 3, &p).packets.is_empty());
    assert_eq!(one.drops.get(DropReason::NotEthernet), 1);
}

/// Group policies of VXLAN are fields, where the port has them; a tunnel may have a key for each direction.
#[test]
fn policies_and_keys_of_both_directions() {
    let (a, b) = ("192.168.0.1", "192.168.0.2");
    let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
    let with = |out: u32, into: u32, policy: bool| {
        move |t: &mut TunnelConfig| (t.key, t.in_key, t.policy) = (Some(TunnelKey(out)), Some(TunnelKey(into)), policy)
    };
    let sends = &["in_port=3 actions=set_field:0x1234->tun_gbp_id,set_field:0x8->tun_gbp_flags,output:12"];
    let takes = &[
        "in_port=12,tun_gbp_id=0x1234,tun_gbp_flags=0x8,tun_id=5 actions=output:3",
        "priority=1,in_port=12,tun_gbp_id=0 actions=output:2",
    ];
    for policy in [true, false] {
        let (first, second) = (with(5, 6, true), with(6, 5, policy));
        let [mut one, mut two] = joined(a, b, TunnelKind::Vxlan, [sends, takes], [&first, &second]);
        for _ in 0..3 {
            let outer = send(&mut one, 3, &p).packets.remove(0).1;
            assert_eq!(outer[42..50], [0x88, 8, 0x12, 0x34, 0, 0, 5, 0]);
            let got = send(&mut two, 100, &outer).packets;
            assert_eq!(got, [(via(if policy { 3 } else { 2 }), p.clone())]);
        }
        // The key of the other direction is none of its.
        let (other, wrong) = (with(7, 7, true), with(1, 1, false));
        let [mut one, _] = joined(a, b, TunnelKind::Vxlan, [sends, takes], [&other, &wrong]);
        let outer = send(&mut one, 3, &p).packets.remove(0).1;
        assert!(send(&mut two, 100, &outer).packets.is_empty());
    }
}

/// A packet that came by a tunnel leaves by another one with an address of this chassis as its outer source, not with
/// that of its first sender. With `local_ip=flow`, a flow names the address.
#[test]
fn tunnels_have_own_addresses_also_behind_tunnels() {
    let (a, b) = ("192.168.0.1", "192.168.0.2");
    let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
    for (of_flow, wanted) in [(false, [192, 168, 0, 2]), (true, [192, 168, 0, 7])] {
        let mut one = chassis(a, b, TunnelKind::Geneve);
        let mut two = chassis(b, a, TunnelKind::Geneve);
        let mut back = TunnelConfig::new(TunnelKind::Vxlan, Some(ip(a)));
        back.local_of_flow = of_flow;
        two.add_port(BridgeId(0), Port::new(PortNo(13), "back", PortKind::Tunnel(Box::new(back)))).expect("port");
        let own = if of_flow { "set_field:192.168.0.7->tun_src," } else { "" };
        load(&mut two, BridgeId(0), &[&format!("priority=40000,in_port=10 actions={own}output:13")]);
        one.underlay.set_neighbour(ip(b), Some(mac_of(b)));
        two.underlay.set_neighbour(ip(a), Some(mac_of(a)));
        let outer = send(&mut one, 1, &p).packets.remove(0).1;
        for _ in 0..3 {
            let again = send(&mut two, 100, &outer).packets.remove(0).1;
            assert_eq!((&again[26..30], &again[30..34]), (&wanted[..], &[192, 168, 0, 1][..]), "{of_flow}");
        }
    }
}

/// The first packet of a flow walks the tables, others are served by the flow cache: their source ports are the same, of
/// the range that an operator has set.
#[test]
fn source_ports_are_of_their_range() {
    let source = |p: &[u8]| Headers::parse(p).and_then(|h| h.ports(p)).expect("UDP").0;
    for (a, b) in UNDERLAYS {
        let [mut s, _] = pair(a, b, TunnelKind::Geneve, |_| {});
        for (ports, first, last) in [
            (None, 49152, u16::MAX),
            (Some((35191, 35190)), 35190, 35191),
            (Some((40000, 40000)), 40000, 40000),
            (Some((1, u16::MAX)), 1, u16::MAX),
        ] {
            if let Some((a, b)) = ports {
                s.underlay.set_source_ports(switch::SourcePorts::between(a, b));
            }
            let mut seen = std::collections::BTreeSet::new();
            for n in 0..64 {
                let mut one = Vec::new();
                for _ in 0..3 {
                    let (_, outer) = send(&mut s, 1, &udp("10.0.0.1", n, "10.0.0.2", 6)).packets.remove(0);
                    good(&outer);
                    one.push(source(&outer));
                }
                one.dedup();
                assert!(one.len() == 1 && (first..=last).contains(&one[0]), "{one:?} of {first} to {last}");
                seen.extend(one);
            }
            assert_eq!(seen.len() > 1, first != last, "flows are spread: {seen:?}");
        }
    }
}

/// `egress_pkt_mark` chooses the route of a tunnel's packets, and is the mark that flows below see; the packet's own mark
/// stays.
#[test]
fn tunnels_mark_their_packets() {
    let [mut s, _] = pair("192.168.0.1", "192.168.0.2", TunnelKind::Geneve, |t| t.mark = Some(1234));
    let under = s.add_bridge("br-under", 2);
    s.add_port(under, Port::new(PortNo::LOCAL, "br-under", PortKind::Internal(DeviceId(65)))).expect("port");
    for n in [66, 67] {
        s.add_port(under, Port::new(PortNo(n), &format!("u{n}"), PortKind::Device(DeviceId(n.into())))).expect("port");
    }
    load(&mut s, under, &["pkt_mark=1234 actions=output:66", "priority=1 actions=output:67"]);
    let route = |mark, egress| Route {
        prefix: ip("192.168.0.0"),
        len: 24,
        gateway: None,
        source: ip("192.168.0.1"),
        source_mac: A,
        egress,
        hop_source: None,
        table: Route::MAIN,
        own: mark != 0,
        mark,
    };
    s.underlay.set_routes(vec![route(0, Egress::Device(DeviceId(100))), route(1234, Egress::Port("br-under".into()))]);
    load(
        &mut s,
        BridgeId(0),
        &[
            "in_port=1 actions=set_field:7->pkt_mark,set_field:192.168.0.2->tun_dst,output:10,resubmit(,1)",
            "table=1,pkt_mark=7 actions=output:2",
        ],
    );
    for _ in 0..3 {
        let devices: Vec<u32> =
            send(&mut s, 1, &udp("10.0.0.1", 5, "10.0.0.2", 6)).packets.into_iter().map(|p| p.0.device().0).collect();
        assert_eq!(devices, [66, 2]);
    }
}

/// Exporters are told of the tunnel that an observed packet leaves by, with what the headers say; before there are
/// headers, with what flow and port say. Where it leaves the underlay's bridge is none of its outputs.
#[test]
fn observed_packets_say_by_which_tunnel_they_leave() {
    for (kind, own, peer) in [
        (TunnelKind::Geneve, "192.168.0.1", "192.168.0.2"),
        (TunnelKind::Gre, "192.168.0.1", "192.168.0.2"),
        (TunnelKind::Vxlan, "fd00::1", "fd00::2"),
    ] {
        let mut s = chassis(own, peer, kind);
        // The underlay is a bridge with one device.
        let phys = s.add_bridge("phys", 2);
        s.add_port(phys, Port::new(PortNo(1), "nic", PortKind::Device(DeviceId(100)))).expect("port");
        load(&mut s, phys, &["actions=output:1"]);
        let mut routes: Vec<Route> = s.underlay.routes().cloned().collect();
        routes.iter_mut().for_each(|r| r.egress = Egress::Port("phys".into()));
        s.underlay.set_routes(routes);
        s.bridge_mut(BridgeId(0)).expect("bridge").observed = true;
        let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
        let seen = |s: &mut Switch| {
            let mut out = Outputs::default();
            s.observe(DeviceId(1), p.clone(), NOW, &mut out);
            let passage = out
                .events
                .iter()
                .find_map(|e| if let Event::Passage { passage, .. } = e { Some(passage) } else { None });
            let [d] = &passage.expect("it is observed").outputs[..] else { panic!("one output: {passage:?}") };
            assert_eq!((d.port, &d.packet.head), (PortNo(10), &p), "{kind:?}");
            (d.outer.expect("a tunnel"), out.packets.pop())
        };
        let (early, sent) = seen(&mut s);
        let nobody = if ip(own).is_ipv4() { ip("0.0.0.0") } else { ip("::") };
        let udp_port = TunnelConfig::new(kind, None).udp_port;
        assert_eq!((early.addresses, early.ports, early.key), ([nobody, ip(peer)], [0, udp_port], TunnelKey(0x1234)));
        assert_eq!(sent, None, "its next hop is not known");
        s.underlay.set_neighbour(ip(peer), Some(mac_of(peer)));
        let (outer, sent) = seen(&mut s);
        let (to, whole) = sent.expect("it was sent");
        let h = Headers::parse(&whole).expect("headers");
        let ports = h.ports(&whole).map_or([0, 0], |(a, b)| [a, b]);
        assert_eq!((to, outer.kind, outer.addresses, outer.ports), (via(100), kind, [ip(own), ip(peer)], ports));
        assert!(ports[0] != 0 || kind == TunnelKind::Gre);
        // Without flows in between it is the same way, and nobody asks.
        assert!(send(&mut s, 1, &p).events.is_empty());
    }
}
