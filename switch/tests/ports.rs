//! What controllers forbid ports, and how many flows the cache may hold.

use openflow_rs::PortNo;
use openflow_rs::action::Action;
use openflow_rs::message::{self, Message};
use openflow_rs::text::parse_flow;
use packet::build;
use std::net::IpAddr;
use std::time::Duration;
use switch::{BridgeId, DeviceId, Outputs, Port, PortKind, Switch};

const NOW: Duration = Duration::from_secs(10);

/// A bridge with devices 1 to 3 as ports 1 to 3, which floods.
fn flooding() -> Switch {
    let mut s = Switch::new(10);
    let b = s.add_bridge("br0", 1);
    for i in 1..=3 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into())))).expect("port");
    }
    s.apply(b, &Message::FlowMod(parse_flow("actions=FLOOD").expect("flow")), NOW).expect("applies");
    s
}

/// The devices that a packet from another one leaves by, sent twice so that the second is served from the cache.
fn leaves(s: &mut Switch, device: u32) -> Vec<u32> {
    let [a, b] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
    let p = build::udp(packet::Mac([2; 6]), packet::Mac([4; 6]), (a, 7), (b, 8), 64, b"hello").expect("udp");
    let mut seen = Vec::new();
    for round in 0..2 {
        let mut out = Outputs::default();
        s.process(&mut vec![(DeviceId(device), p.clone())], NOW, &mut out);
        let mut to: Vec<u32> = out.packets.iter().map(|(to, _)| to.device().0).collect();
        to.sort_unstable();
        assert!(round == 0 || to == seen, "{to:?} behind {seen:?}");
        seen = to;
    }
    seen
}

/// Each bit of `ovs-ofctl mod-port` has its effect at once, on flows that are cached too, and no other.
#[test]
fn ports_keep_what_controllers_say() {
    let mut s = flooding();
    let cases = [
        (0, [&[2, 3][..], &[1, 3], &[1, 2]], true),
        (Port::DOWN, [&[3], &[], &[1]], false),
        (Port::NO_RECV, [&[2, 3], &[], &[1, 2]], true),
        (Port::NO_FWD, [&[3], &[1, 3], &[1]], true),
        (0, [&[2, 3], &[1, 3], &[1, 2]], true),
    ];
    for (config, wanted, live) in cases {
        s.set_inputs(BridgeId(0), PortNo(2), |p| p.config = config);
        let found = [1, 2, 3].map(|d| leaves(&mut s, d));
        assert_eq!(found, wanted.map(<[u32]>::to_vec), "config {config:#x}");
        assert_eq!(s.bridge(BridgeId(0)).expect("bridge").ports[&PortNo(2)].live(), live, "config {config:#x}");
    }
    assert_ne!(s.drops.get(switch::DropReason::PortConfig), 0);
}

/// NORMAL keeps protocols between neighbours to itself, and learns nothing from them, unless it is to forward them. Mirrors do
/// not copy them into a VLAN either way.
#[test]
fn protocols_between_neighbours_end_here() {
    let mut s = flooding();
    let b = BridgeId(0);
    s.apply(b, &Message::FlowMod(parse_flow("actions=NORMAL").expect("flow")), NOW).expect("applies");
    let mirror = switch::Mirror {
        name: "m".into(),
        all: true,
        sources: Default::default(),
        destinations: Default::default(),
        vlans: Default::default(),
        filter: None,
        output: switch::MirrorOutput::Vlan(packet::VlanId::of_tci(99)),
        snaplen: None,
    };
    s.bridge_mut(b).expect("bridge").set_mirrors(vec![mirror]);
    let leaves = |s: &mut Switch, dst: &str, source: u8| {
        let mut p = build::udp(
            dst.parse().expect("address"),
            packet::Mac([2, 0, 0, 0, 0, source]),
            (IpAddr::from([10, 0, 0, 1]), 7),
            (IpAddr::from([10, 0, 0, 2]), 8),
            64,
            b"hello",
        )
        .expect("udp");
        p.resize(60, 0);
        let sent = [0, 1].map(|_| {
            let mut out = Outputs::default();
            s.process(&mut vec![(DeviceId(1), p.clone())], NOW, &mut out);
            let mut to: Vec<(u32, bool)> = out.packets.iter().map(|(to, p)| (to.device().0, p.len() > 60)).collect();
            to.sort_unstable();
            to
        });
        assert_eq!(sent[0], sent[1], "{dst}: from the cache");
        let learned = s.bridge(b).expect("bridge").macs.iter().any(|e| e.mac & 0xff == u64::from(source));
        (sent[0].clone(), learned)
    };
    let reserved = [
        "01:80:c2:00:00:00",
        "01:80:c2:00:00:0f",
        "01:00:0c:cc:cc:cc",
        "01:00:0c:cc:cc:cd",
        "01:00:0c:cc:cc:c0",
        "01:00:0c:cd:cd:cd",
        "01:00:0c:00:00:00",
        "00:e0:2b:00:00:04",
    ];
    let (plain, copied) = ([(2, false), (3, false)], [(1, true), (2, false), (2, true), (3, false), (3, true)]);
    for forwards in [false, true, false] {
        s.bridge_mut(b).expect("bridge").forward_bpdu = forwards;
        for (i, dst) in reserved.iter().enumerate() {
            let wanted = if forwards { plain.to_vec() } else { Vec::new() };
            s.bridge_mut(b).expect("bridge").forget_addresses();
            assert_eq!(leaves(&mut s, dst, i as u8 + 1), (wanted, forwards), "{dst}, {forwards}");
        }
        for dst in ["01:80:c2:00:00:10", "01:00:0c:cc:cc:ce", "01:00:5e:00:00:01"] {
            assert_eq!(leaves(&mut s, dst, 77), (copied.to_vec(), true), "{dst}");
        }
    }
}

/// A patch port passes packets to a port that names it in turn, and to no other.
#[test]
fn patch_ports_name_each_other() {
    let mut s = flooding();
    let b = s.add_bridge("br1", 2);
    s.apply(b, &Message::FlowMod(parse_flow("actions=FLOOD").expect("flow")), NOW).expect("applies");
    s.add_port(b, Port::new(PortNo(1), "q1", PortKind::Device(DeviceId(7)))).expect("port");
    for (bridge, no, name, peer, wanted) in [
        (BridgeId(0), 9, "p", "q", vec![2, 3]),
        (b, 8, "q", "elsewhere", vec![2, 3]),
        (b, 8, "q", "p", vec![2, 3, 7]),
        (BridgeId(0), 9, "p", "nobody", vec![2, 3]),
    ] {
        s.remove_port(bridge, PortNo(no));
        s.add_port(bridge, Port::new(PortNo(no), name, PortKind::Patch(peer.into()))).expect("port");
        assert_eq!(leaves(&mut s, 1), wanted, "{name} to {peer}");
    }
}

/// Packets for a port's BFD session never reach the tables, whatever is cached, and all others do: on a device's port and on
/// one end of a patch.
#[test]
fn sessions_take_their_packets_and_no_others() {
    let mut s = flooding();
    let b = s.add_bridge("br1", 2);
    for (bridge, no, name, peer) in [(BridgeId(0), 9, "p", "q"), (b, 8, "q", "p")] {
        s.add_port(bridge, Port::new(PortNo(no), name, PortKind::Patch(peer.into()))).expect("port");
    }
    s.apply(b, &Message::FlowMod(parse_flow("actions=IN_PORT").expect("flow")), NOW).expect("applies");
    let packet = |to: u8, port: u16| {
        let [from, to] = [[10, 0, 0, 1], [10, 0, 0, to]].map(IpAddr::from);
        build::udp(packet::Mac([2; 6]), packet::Mac([4; 6]), (from, 7), (to, port), 255, b"hello").expect("udp")
    };
    let sent = |s: &mut Switch, p: &[u8]| {
        let mut out = Outputs::default();
        s.process(&mut vec![(DeviceId(1), p.to_vec())], NOW, &mut out);
        assert!(out.events.is_empty(), "{:?}", out.events);
        (out.packets.len(), out.bfd)
    };
    // To the two other devices, and once more by way of the other bridge to all three.
    let all = 5;
    let [bfd, other, elsewhere] = [packet(2, 3784), packet(2, 3785), packet(3, 3784)];
    for p in [&other, &bfd, &elsewhere, &bfd, &other] {
        assert_eq!(sent(&mut s, p), (all, vec![]));
    }
    let to = switch::BfdPackets { ip_dst: Some([10, 0, 0, 2].into()), ..Default::default() };
    s.bridge_mut(b).expect("bridge").ports.get_mut(&PortNo(8)).expect("port").bfd_packets = Some(to);
    s.bridge_mut(b).expect("bridge").epoch += 1;
    for p in [&other, &bfd, &elsewhere, &bfd, &other] {
        let wanted = if *p == bfd { (2, vec![(b, PortNo(8), bfd.clone())]) } else { (all, vec![]) };
        assert_eq!(sent(&mut s, p), wanted);
    }
    s.bridge_mut(BridgeId(0)).expect("bridge").ports.get_mut(&PortNo(1)).expect("port").bfd_packets =
        Some(Default::default());
    s.bridge_mut(BridgeId(0)).expect("bridge").epoch += 1;
    for p in [&other, &bfd, &elsewhere, &bfd, &other] {
        let wanted = if *p == other { (all, vec![]) } else { (0, vec![(BridgeId(0), PortNo(1), p.clone())]) };
        assert_eq!(sent(&mut s, p), wanted);
    }
}

/// Continuity checks for a port's maintenance point never reach the tables, whatever is cached, and all others do.
#[test]
fn maintenance_points_take_their_messages_and_no_others() {
    use packet::ccm;
    let mut s = flooding();
    let message = ccm::Ccm {
        defect: false,
        interval: 4,
        sequence: 1,
        point: 1,
        association: ccm::ASSOCIATION,
        interval_ms: 0,
        long_point: 0,
        down: false,
    };
    let frame = |to, tag| ccm::compose(to, packet::Mac([4; 6]), tag, &message);
    let [plain, tagged] = [None, Some(7)].map(|tag| frame(ccm::ADDRESS, tag));
    let extended = frame(ccm::ADDRESS_EXTENDED, None);
    let sent = |s: &mut Switch, p: &[u8]| {
        let mut out = Outputs::default();
        s.process(&mut vec![(DeviceId(1), p.to_vec())], NOW, &mut out);
        let taken = out.events.iter().map(|e| match e {
            switch::Event::Ccm { bridge: BridgeId(0), port: PortNo(1), packet } => packet.clone(),
            e => panic!("{e:?}"),
        });
        (out.packets.len(), taken.collect::<Vec<_>>())
    };
    for p in [&plain, &tagged, &extended, &plain] {
        assert_eq!(sent(&mut s, p), (2, vec![]));
    }
    let wanted = switch::CcmPackets { eth_dst: ccm::ADDRESS, no_key: false };
    s.bridge_mut(BridgeId(0)).expect("bridge").ports.get_mut(&PortNo(1)).expect("port").ccm_packets = Some(wanted);
    s.bridge_mut(BridgeId(0)).expect("bridge").epoch += 1;
    for p in [&plain, &tagged, &extended, &plain, &tagged] {
        let wanted = if *p == extended { (2, vec![]) } else { (0, vec![p.clone()]) };
        assert_eq!(sent(&mut s, p), wanted);
    }
}

/// LLDP of a port whose agent is on never reaches the tables, whatever is cached; with the agent off it does. What an agent
/// sends passes a port that the spanning tree blocks, what others send does not.
#[test]
fn agents_take_lldp_and_nothing_else() {
    use packet::lldp;
    let mut s = flooding();
    let unit = lldp::Lldpdu {
        chassis: lldp::Id::chassis(packet::Mac([4; 6])),
        port: lldp::Id::interface("p"),
        ttl: 120,
        ..lldp::Lldpdu::default()
    };
    let message = lldp::compose(packet::Mac([4; 6]), &unit);
    let mut other = message.clone();
    other[12..14].copy_from_slice(&0x88cdu16.to_be_bytes());
    let sent = |s: &mut Switch, p: &[u8]| {
        let mut out = Outputs::default();
        s.process(&mut vec![(DeviceId(1), p.to_vec())], NOW, &mut out);
        let taken = out.events.iter().map(|e| match e {
            switch::Event::Lldp { bridge: BridgeId(0), port: PortNo(1), packet } => packet.clone(),
            e => panic!("{e:?}"),
        });
        (out.packets.len(), taken.collect::<Vec<_>>())
    };
    for on in [false, true, false] {
        s.bridge_mut(BridgeId(0)).expect("bridge").ports.get_mut(&PortNo(1)).expect("port").lldp = on;
        for p in [&message, &other, &message, &other] {
            let wanted = if on && *p == message { (0, vec![message.clone()]) } else { (2, vec![]) };
            assert_eq!(sent(&mut s, p), wanted, "{on}");
        }
    }
    s.set_inputs(BridgeId(0), PortNo(2), |p| p.stp = Some(switch::StpState::Blocking));
    let mut out = Outputs::default();
    for p in [&message, &other] {
        let own = message::PacketOut::new(PortNo::CONTROLLER, p.clone(), vec![Action::output(PortNo(2))]);
        s.packet_out(BridgeId(0), &own, &Vec::new(), NOW, &mut out);
    }
    assert_eq!(out.packets, [(DeviceId(2).into(), message.clone())]);
    assert_eq!(sent(&mut s, &message), (1, vec![]), "one that was received is of another link");
}

/// The cache holds no more flows than it may, and says how many that are.
#[test]
fn the_cache_keeps_its_limit() {
    let mut s = flooding();
    let full = s.cache_size().1;
    assert!(s.limit_flows(Some(20)) && !s.limit_flows(Some(20)), "only another limit is a change");
    let tell = |s: &mut Switch| {
        for n in 0..200u16 {
            // Frames of one protocol each, of which every one has a flow.
            let mut p = vec![2; 60];
            p[12..14].copy_from_slice(&(0x9000 + n).to_be_bytes());
            s.process(&mut vec![(DeviceId(1), p)], NOW, &mut Outputs::default());
        }
        s.cache_size()
    };
    let (used, room) = tell(&mut s);
    assert_eq!(room, 16, "a power of two below the limit");
    assert!(used > 8 && used <= room, "{used} flows");
    assert!(s.limit_flows(None));
    assert_eq!(tell(&mut s), (200, full), "no limit");
}

/// A packet that passes a limit of translation is dropped and told of, with its bytes and its port; others within a
/// minute are dropped in silence.
#[test]
fn packets_that_pass_a_limit_are_told_of_once_a_minute() {
    use openflow_rs::FieldId as F;
    use switch::{DropReason, Event};
    let mut s = flooding();
    let add = |s: &mut Switch, flow: &str| {
        s.apply(BridgeId(0), &Message::FlowMod(parse_flow(flow).expect("flow")), NOW).expect("applies");
    };
    for table in 0..=70_u8 {
        // Each goes to the table before: levels of nesting that count.
        add(&mut s, &format!("table={table},priority=40000,in_port=2,actions=resubmit(,{})", (table + 70) % 71));
    }
    let [a, b] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
    let p = build::udp(packet::Mac([2; 6]), packet::Mac([4; 6]), (a, 7), (b, 8), 64, b"hello").expect("udp");
    let mut at = |device, seconds| {
        // What was cached is stale.
        add(&mut s, &format!("table=9,priority=50000,in_port=2,actions=resubmit(,8),load:{seconds}->NXM_NX_REG1[]"));
        let mut out = Outputs::default();
        s.process(&mut vec![(DeviceId(device), p.clone())], NOW + Duration::from_secs(seconds), &mut out);
        out.events
    };
    assert!(at(1, 0).is_empty(), "nothing is wrong with that port's");
    match &*at(2, 0) {
        [Event::LimitPassed { bridge: BridgeId(0), reason: DropReason::TooDeep, metadata, packet }] => {
            assert_eq!((metadata.get(F::InPort).0, packet), (2, &p));
        }
        other => panic!("{other:?}"),
    }
    assert!(at(2, 59).is_empty());
    assert_eq!(at(2, 61).len(), 1);
    assert_eq!(s.drops.get(DropReason::TooDeep), 3);
}
