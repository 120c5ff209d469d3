//! NORMAL: learned addresses, VLANs, groups, bonds, and ports that a spanning tree holds.

use crate::rig::{A, B, NOW, ip, one, send, udp, via};
use openflow_rs::text::parse_flow;
use openflow_rs::*;
use packet::{build, checksum};
use std::time::Duration;
use switch::{BridgeId, DeviceId, Event, Outputs, Port, PortKind, Switch, VlanMode};

#[test]
fn normal_learns_and_respects_vlans() {
    let mut s = one(&["actions=NORMAL"]);
    s.remove_port(BridgeId(0), PortNo(3));
    let mut p3 = Port::new(PortNo(3), "p3", PortKind::Device(DeviceId(3)));
    p3.vlan = VlanMode::Access(packet::VlanId::of_tci(7));
    s.add_port(BridgeId(0), p3).expect("port");
    let p = udp("10.0.0.1", 1, "10.0.0.2", 2);
    assert_eq!(send(&mut s, 1, &p).packets, [(via(2), p.clone())], "VLAN 0 floods to the trunk only");
    let tagged = send(&mut s, 3, &p).packets;
    assert_eq!(tagged.len(), 2, "VLAN 7 floods to both trunks");
    assert_eq!(tagged[0].1[12..16], [0x81, 0, 0, 7]);
    let back = send(&mut s, 2, &tagged[0].1).packets;
    assert!(back.iter().any(|(d, q)| *d == via(3) && *q == p), "untagged again on the access port");
}

/// A packet of UDP to a group, and an IGMPv2 message about it.
fn multicast(kind: u8) -> (Vec<u8>, Vec<u8>) {
    let (group, to) = (ip("239.0.0.1"), packet::Mac([1, 0, 0x5e, 0, 0, 1]));
    let data = build::udp(to, A, (ip("10.0.0.9"), 7), (group, 8), 9, b"hello").expect("udp");
    let mut said = vec![kind, 0, 0, 0, 239, 0, 0, 1];
    let sum = checksum::of(&said).to_be_bytes();
    said[2..4].copy_from_slice(&sum);
    let igmp = build::ip_packet(to, B, ip("10.0.0.1"), group, packet::ipproto::IGMP, 1, &said).expect("igmp");
    (data, igmp)
}

/// Packets to groups go where they are wanted, also those that the flow cache serves.
#[test]
fn groups_get_what_they_asked_for() {
    let settings = |flood_unregistered| {
        Some(switch::SnoopingSettings { idle: Duration::from_secs(300), limit: 10, flood_unregistered })
    };
    let mut s = one(&["actions=NORMAL"]);
    let to = |s: &mut Switch, p: &[u8]| {
        // Twice: the second one is cached.
        let twice = [(); 2].map(|()| {
            let mut devices: Vec<u32> = send(s, 3, p).packets.into_iter().map(|(to, _)| to.device().0).collect();
            devices.sort_unstable();
            devices
        });
        assert_eq!(twice[0], twice[1]);
        twice[0].clone()
    };
    let (data, join) = multicast(0x16);
    let (_, leave) = multicast(0x17);
    let (_, query) = multicast(0x11);
    send(&mut s, 1, &join);
    assert_eq!(to(&mut s, &data), [1, 2], "the bridge does not snoop");
    s.with_tables(BridgeId(0), |b| b.set_snooping(settings(true), &[], &[]));
    assert_eq!(to(&mut s, &data), [1, 2], "nobody asked for it");
    assert!(send(&mut s, 1, &join).packets.is_empty(), "there is no router");
    assert_eq!(to(&mut s, &data), [1]);
    assert_eq!(send(&mut s, 2, &query).packets.len(), 2, "a query goes to all");
    assert_eq!(to(&mut s, &data), [1, 2], "routers get all groups");
    assert_eq!(send(&mut s, 1, &join).packets.len(), 1, "a report goes to the router");
    s.with_tables(BridgeId(0), |b| b.set_snooping(settings(false), &[], &[]));
    send(&mut s, 1, &leave);
    assert_eq!(to(&mut s, &data), [2], "the router is left");
    s.with_tables(BridgeId(0), |b| b.set_snooping(settings(false), &[PortNo(1)], &[]));
    assert_eq!(to(&mut s, &data), [1, 2], "a port that gets all multicast packets");
    let mut wrong = join.clone();
    wrong[36] ^= 1;
    s.with_tables(BridgeId(0), |b| b.flush_snooping());
    s.with_tables(BridgeId(0), |b| b.set_snooping(settings(false), &[], &[]));
    send(&mut s, 1, &wrong);
    assert!(to(&mut s, &data).is_empty(), "its checksum is wrong");
    send(&mut s, 1, &join);
    assert_eq!(to(&mut s, &data), [1]);
    s.tick(NOW + Duration::from_secs(301), &mut Outputs::<Vec<u8>>::default());
    assert!(to(&mut s, &data).is_empty(), "silent for too long");
}

/// A bond is one port for NORMAL, whatever member its packets use.
#[test]
fn bonds_are_one_port() {
    let mut s = one(&["actions=NORMAL"]);
    let bond = |active: u16, spread| switch::Bond {
        name: "b".into(),
        members: vec![PortNo(2), PortNo(3)],
        spread,
        basis: 0,
        active: Some(PortNo(active)),
        takes: if spread == switch::Spread::Active { vec![PortNo(active)] } else { vec![PortNo(2), PortNo(3)] },
        buckets: (0..switch::bond::BUCKETS as u16).map(|n| Some(PortNo(2 + n % 2))).collect(),
        lacp: true,
        all_active: false,
        reflects: spread == switch::Spread::Source,
    };
    let packet = |src: u8, dst: u8, port: u16| {
        let (a, b) = ([2, 0, 0, 0, 0, src], [2, 0, 0, 0, 0, dst]);
        build::udp(packet::Mac(a), packet::Mac(b), (ip("10.0.0.1"), port), (ip("10.0.0.2"), 2), 64, b"hello")
            .expect("udp")
    };
    let to = |o: Outputs<Vec<u8>>| o.packets.iter().map(|p| p.0.device().0).collect::<Vec<_>>();
    s.set_bond(BridgeId(0), bond(3, switch::Spread::Active));
    assert_eq!(to(send(&mut s, 1, &packet(1, 9, 1))), [3], "flooded once, by the active member");
    assert_eq!(to(send(&mut s, 2, &packet(9, 1, 1))), [], "nothing from the other one");
    assert_eq!(to(send(&mut s, 3, &packet(9, 1, 1))), [1]);
    s.set_bond(BridgeId(0), bond(2, switch::Spread::Active));
    assert_eq!(to(send(&mut s, 1, &packet(1, 9, 1))), [2], "what is known of the bond stays known");
    s.set_bond(BridgeId(0), bond(2, switch::Spread::Transport));
    let members: std::collections::BTreeSet<_> = (0..40).flat_map(|n| to(send(&mut s, 1, &packet(1, 9, n)))).collect();
    assert_eq!(members, [2, 3].into());
    assert!(s.take_bond_bytes(BridgeId(0), "b").iter().filter(|n| **n > 0).count() > 20);
    assert_eq!(to(send(&mut s, 3, &packet(9, 1, 1))), [1], "any member takes");
    let flood = build::arp_request(packet::Mac([2, 0, 0, 0, 0, 9]), [10, 0, 0, 2].into(), [10, 0, 0, 1].into());
    assert_eq!(to(send(&mut s, 3, &flood)), [], "but for broadcasts, of which there are as many as members");
    assert_eq!(to(send(&mut s, 2, &flood)), [1]);
    s.set_bond(BridgeId(0), bond(2, switch::Spread::Source));
    assert_eq!(to(send(&mut s, 1, &packet(1, 9, 1))).len(), 1);
    assert_eq!(to(send(&mut s, 3, &packet(1, 7, 1))), [], "what went out comes back from the other end");
    let slow = {
        let mut p = packet(9, 1, 1);
        p[..6].copy_from_slice(&switch::bond::SLOW_ADDRESS[..]);
        p[12..14].copy_from_slice(&switch::bond::SLOW_PROTOCOLS.to_be_bytes());
        p
    };
    let out = send(&mut s, 3, &slow);
    assert!(matches!(&out.events[..], [Event::Slow { port: PortNo(3), packet, .. }] if *packet == slow));
    s.remove_bond(BridgeId(0), "b");
    assert_eq!(to(send(&mut s, 1, &packet(1, 77, 1))), [2, 3]);
}

/// What the spanning tree does to a port: BPDUs go to it alone, other packets wait until it forwards.
#[test]
fn the_spanning_tree_holds_ports() {
    use switch::StpState as S;
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    let now = Duration::from_secs(1);
    for no in [1, 2] {
        s.add_port(b, Port::new(PortNo(no), &format!("p{no}"), PortKind::Device(DeviceId(no.into())))).expect("port");
    }
    s.apply(b, &openflow_rs::Message::FlowMod(parse_flow("actions=normal").expect("flow")), now).expect("flow");
    let source = packet::Mac([2, 0, 0, 0, 0, 1]);
    let mut frame = [&[0xff; 6][..], &source[..], &[0x12, 0x34]].concat();
    frame.resize(60, 0);
    let bpdu = packet::bpdu::compose(source, &packet::bpdu::Bpdu::Notification);
    let check = packet::ccm::compose(
        packet::ccm::ADDRESS,
        source,
        None,
        &packet::ccm::Ccm {
            defect: false,
            interval: 4,
            sequence: 1,
            point: 1,
            association: packet::ccm::ASSOCIATION,
            interval_ms: 0,
            long_point: 0,
            down: false,
        },
    );
    let point = switch::CcmPackets { eth_dst: packet::ccm::ADDRESS, no_key: false };
    // Twice each: the second packet meets what the first has left in the cache.
    let receive = |s: &mut Switch, frame: &[u8]| {
        let mut out = Outputs::default();
        for _ in 0..2 {
            s.process(&mut vec![(DeviceId(1), frame.to_vec())], now, &mut out);
        }
        (out.packets.len(), out.events.len())
    };
    assert_eq!((receive(&mut s, &frame), receive(&mut s, &bpdu)), ((2, 0), (0, 0)), "no tree");
    for (state, learns, sent) in [
        (S::Disabled, false, 0),
        (S::Blocking, false, 0),
        (S::Listening, false, 0),
        (S::Learning, true, 0),
        (S::Forwarding, true, 2),
    ] {
        s.set_inputs(b, PortNo(1), |p| p.stp = Some(state));
        s.with_tables(b, |b| b.forget_addresses());
        assert_eq!((receive(&mut s, &frame), receive(&mut s, &bpdu)), ((sent, 0), (0, 2)), "from {state:?}");
        s.bridge_mut(b).expect("bridge").ports.get_mut(&PortNo(1)).expect("port").ccm_packets = Some(point);
        s.bridge_mut(b).expect("bridge").epoch += 1;
        assert_eq!(receive(&mut s, &check), (0, 2), "checks from {state:?}");
        assert_eq!(s.bridge(b).expect("bridge").macs.iter().count(), usize::from(learns), "{state:?}");
        s.set_inputs(b, PortNo(1), |p| p.stp = Some(S::Forwarding));
        s.set_inputs(b, PortNo(2), |p| p.stp = Some(state));
        assert_eq!(receive(&mut s, &frame).0, sent, "to {state:?}");
        // Continuity checks of this switch and for it pass where packets do not; those of others are packets.
        let out = |s: &mut Switch, metadata| {
            let m = openflow_rs::message::PacketOut {
                buffer_id: u32::MAX,
                metadata,
                actions: vec![action::Action::Output { port: PortNo(2), max_len: 0 }],
                packet: check.clone(),
            };
            let mut out = Outputs::default();
            s.packet_out(b, &m, &Vec::new(), now, &mut out);
            out.packets.len()
        };
        let received = Match::new().with(FieldId::InPort, 1);
        assert_eq!((out(&mut s, Match::new()), out(&mut s, received)), (1, sent / 2), "to {state:?}");
        s.set_inputs(b, PortNo(2), |p| p.stp = None);
    }
}
