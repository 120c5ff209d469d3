//! What traces tell, and how cached flows are shown, in the words of Open vSwitch.

use crate::rig::{A, B, NOW, THROUGH, ip, joined, load, one, pair, send, udp};
use openflow_rs::*;
use packet::build;
use std::time::Duration;
use switch::{
    BridgeId, DeviceId, Egress, ErspanOptions, PacketMode, Port, PortKind, Route, Switch, TunnelConfig, TunnelKey,
    TunnelKind,
};

/// Packets that go to the daemon are told with the reason, in Open vSwitch's words; others are not.
#[test]
fn traces_say_why_packets_go_to_the_daemon() {
    let mut s = one(&["actions=output:2"]);
    let session = udp("169.254.1.0", 49152, "169.254.1.1", 3784);
    let tree = packet::bpdu::compose(A, &packet::bpdu::Bpdu::Notification);
    let ask = |s: &mut Switch, packet: &[u8]| {
        let metadata = Match::new().with(FieldId::InPort, 1);
        let request = switch::TraceRequest { metadata, packet: packet.to_vec(), ..Default::default() };
        let text = s.trace(request, &mut Vec::new());
        text.split_once("Datapath actions: ").map(|(_, rest)| rest.to_string()).expect("an end")
    };
    let told = |what| {
        format!("drop\nThis flow is handled by the userspace slow path because it:\n  - Consists of {what} packets.\n")
    };
    for p in [&session, &tree] {
        assert_eq!(ask(&mut s, p), "2\n");
    }
    let port = s.bridge_mut(BridgeId(0)).and_then(|b| b.ports.get_mut(&PortNo(1))).expect("port");
    port.bfd_packets = Some(switch::BfdPackets::default());
    s.set_inputs(BridgeId(0), PortNo(1), |p| p.stp = Some(switch::StpState::Forwarding));
    assert_eq!([&session, &tree].map(|p| ask(&mut s, p)), ["BFD", "STP"].map(told));
    assert_eq!(ask(&mut s, &udp("10.0.0.1", 1, "10.0.0.2", 2)), "2\n");
}

/// What the flow cache holds is shown in the words of ovs-dpctl(8).
#[test]
fn cached_flows_are_shown() {
    let mut s = one(&[
        "priority=9,in_port=1,udp actions=set_field:02:00:00:00:00:77->eth_src,set_field:9.9.9.9->ip_src,dec_ttl,set_field:53->udp_dst,push_vlan:0x8100,set_field:0x1007->vlan_vid,output:2,pop_vlan,output:3",
        "priority=9,in_port=1,ipv6 actions=set_field:fd00::9->ipv6_dst,output:2",
        "priority=9,in_port=1,arp actions=drop",
        "priority=1 actions=output:1",
    ]);
    let six = build::udp(B, A, (ip("fd00::1"), 7), (ip("fd00::2"), 8), 64, b"hello").expect("udp");
    let mut tagged = udp("10.0.0.1", 1, "10.0.0.2", 2);
    tagged.splice(12..12, [0x81, 0x00, 0x60, 9]);
    let request = build::arp_request(A, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    for (device, p) in [(1, udp("10.0.0.1", 1, "10.0.0.2", 2)), (1, six), (2, tagged), (1, request)] {
        send(&mut s, device, &p);
    }
    // Once more, for the counters.
    send(&mut s, 1, &udp("10.0.0.1", 1, "10.0.0.2", 2));
    let later = NOW + Duration::from_millis(1500);
    let mut lines: Vec<String> = s.cached_flows().map(|f| s.tell_flow(&f, later)).collect();
    lines.sort();
    let head = "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth(src=02:00:00:00:00:0a";
    // What decided nothing is not there: these are flows of all packets that are alike in the rest.
    assert_eq!(
        lines,
        [
            format!(
                "{head}),eth_type(0x0800),ipv4(src=10.0.0.1,proto=17,ttl=64,frag=no),udp(dst=2), packets:1, bytes:47, used:1.500s, actions:push_vlan(vid=7,pcp=0),set(eth(src=02:00:00:00:00:77)),set(ipv4(src=9.9.9.9,ttl=63)),set(udp(dst=53)),2,pop_vlan,3",
            ),
            "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x0806), packets:0, bytes:0, used:never, actions:drop".into(),
            "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x86dd),ipv6(dst=fd00::2,proto=17,frag=no), packets:0, bytes:0, used:never, actions:set(ipv6(dst=fd00::9)),2".into(),
            "recirc_id(0),in_port(2),packet_type(ns=0,id=0),eth_type(0x8100),vlan(vid=9,pcp=3),encap(eth_type(0x0800),ipv4(proto=17,frag=no)), packets:0, bytes:0, used:never, actions:1".into(),
        ]
    );
    s.purge_cache();
    assert_eq!(s.cached_flows().count(), 0);
}

/// A trace tells a tunnel's headers in the words of ovs-dpctl(8): byte for byte, or as a datapath is told that makes
/// them by itself.
#[test]
fn traces_tell_tunnels() {
    let (v4, v6) = (("192.168.0.1", "192.168.0.2"), ("fd00::1", "fd00::2"));
    let l3 = |t: &mut TunnelConfig| {
        (t.mode, t.key, t.in_key) = (PacketMode::LegacyL3, Some(TunnelKey(0)), Some(TunnelKey(0)))
    };
    let gpe = |t: &mut TunnelConfig| {
        l3(t);
        t.gpe = true;
    };
    let keyed = |t: &mut TunnelConfig| t.key = Some(TunnelKey(5));
    let mirrored = |t: &mut TunnelConfig| {
        keyed(t);
        t.erspan =
            ErspanOptions { version: Some(2), egress: Some(true), hardware: Some(7), ..ErspanOptions::default() };
    };
    type Case<'a> = (TunnelKind, (&'a str, &'a str), &'a dyn Fn(&mut TunnelConfig), &'a str, &'a str);
    let cases: [Case<'_>; 8] = [
        (
            TunnelKind::Geneve,
            v4,
            &keyed,
            "tnl_push(tnl_port(6081),header(size=50,type=5,eth(dst=02:00:00:00:00:0b,src=02:00:00:00:00:0a,dl_type=0x0800),ipv4(src=192.168.0.1,dst=192.168.0.2,proto=17,tos=0,ttl=64,frag=0x4000),udp(src=0,dst=6081,csum=0x0),geneve(vni=0x5)),out_port(100))",
            "set(tunnel(tun_id=0x5,dst=192.168.0.2,ttl=64,tp_dst=6081,flags(df|key))),6081",
        ),
        (
            TunnelKind::Geneve,
            v6,
            &keyed,
            "udp(src=0,dst=6081,csum=0xffff),geneve(vni=0x5)",
            "flags(df|csum|key))),6081",
        ),
        (TunnelKind::Vxlan, v4, &keyed, "vxlan(flags=0x8000000,vni=0x5)", "tp_dst=4789,flags(df|key))),4789"),
        (
            TunnelKind::Vxlan,
            v4,
            &gpe,
            "pop_eth,tnl_push(tnl_port(4789),header(size=50,type=4,",
            "tp_dst=4789,flags(df))),pop_eth,4789",
        ),
        (TunnelKind::Gre, v4, &keyed, "gre((flags=0x2000,proto=0x6558),key=0x5)", "flags(df|key))),4"),
        (
            TunnelKind::Erspan,
            v4,
            &mirrored,
            "erspan(ver=2,sid=0x5,dir=1,hwid=0x7)),out_port(100))",
            "set(tunnel(tun_id=0x5,dst=192.168.0.2,ttl=64,erspan(ver=2,dir=1,hwid=0x7),flags(df|key))),4",
        ),
        (
            TunnelKind::Gtpu,
            v4,
            &keyed,
            "udp(src=0,dst=2152,csum=0x0),gtpu(flags=0x30,msgtype=255,teid=0x5)),out_port(100))",
            "set(tunnel(tun_id=0x5,dst=192.168.0.2,ttl=64,tp_dst=2152,flags(df|key))),pop_eth,2152",
        ),
        (
            TunnelKind::Srv6,
            v6,
            &l3,
            "srv6(segments_left=0,segs(fd00::2))",
            "set(tunnel(ipv6_dst=fd00::2,ttl=64,flags(df))),pop_eth,4",
        ),
    ];
    for (kind, (a, b), options, pushed, told) in cases {
        let [mut one, _] = joined(a, b, kind, [THROUGH; 2], [options; 2]);
        let request = || switch::TraceRequest {
            metadata: Match::new().with(FieldId::InPort, 3),
            packet: udp("10.0.0.1", 5, "10.0.0.2", 6),
            ..Default::default()
        };
        let text = one.trace(request(), &mut Vec::new());
        assert!(text.contains(pushed), "{kind:?}: {text}");
        one.pushes = false;
        let text = one.trace(request(), &mut Vec::new());
        assert!(text.contains(told), "{kind:?}: {text}");
    }
}

/// What goes into a tunnel is a copy where more is done behind it; one that gets nowhere is told too. Ports have their
/// names if these are wanted.
#[test]
fn traces_tell_copies_and_names() {
    let [mut s, _] = pair("192.168.0.1", "192.168.0.2", TunnelKind::Geneve, |t| t.key = Some(TunnelKey(5)));
    load(&mut s, BridgeId(0), &["in_port=3 actions=set_field:192.168.0.2->tun_dst,output:10,output:2"]);
    let trace = |s: &mut Switch, names, queue| {
        let metadata = Match::new().with(FieldId::InPort, 3);
        let packet = udp("10.0.0.1", 5, "10.0.0.2", 6);
        s.trace(switch::TraceRequest { metadata, packet, names, queue, ..Default::default() }, &mut Vec::new())
    };
    let text = trace(&mut s, false, None);
    assert!(text.contains("actions: clone(tnl_push(") && text.contains(",out_port(100)),100),2\n"), "{text}");
    let route = |device| Route {
        prefix: ip("192.168.0.0"),
        len: 24,
        gateway: None,
        source: ip("192.168.0.1"),
        source_mac: A,
        egress: device,
        hop_source: None,
        table: Route::MAIN,
        own: false,
        mark: 0,
    };
    let under = s.add_bridge("br-under", 2);
    s.add_port(under, Port::new(PortNo::LOCAL, "br-under", PortKind::Internal(DeviceId(65)))).expect("port");
    s.add_port(under, Port::new(PortNo(1), "uplink", PortKind::Device(DeviceId(66)))).expect("port");
    load(&mut s, under, &["actions=output:1"]);
    s.underlay.set_routes(vec![route(Egress::Port("br-under".into()))]);
    let text = trace(&mut s, false, None);
    assert!(
        text.contains("actions: clone(tnl_push(tnl_port(6081),") && text.contains(",out_port(65)),66),2\n"),
        "{text}"
    );
    let text = trace(&mut s, true, Some(7));
    for wanted in [
        "Flow: skb_priority=0x7,udp,in_port=p3,",
        " 0. in_port=p3, priority 32768\n",
        "    output:tun\n",
        "Megaflow: recirc_id=0,eth,ip,in_port=p3,",
        "actions: clone(tnl_push(tnl_port(genev_sys_6081),",
        ",out_port(br-under)),uplink),p2\n",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    s.underlay.set_routes(Vec::new());
    let text = trace(&mut s, false, None);
    assert!(text.contains("Datapath actions: clone(drop),2\n"), "{text}");
}

/// A packet that came by a tunnel without an Ethernet header gets one where it leaves.
#[test]
fn traces_tell_what_packets_begin_with() {
    let [mut s, _] = pair("192.168.0.1", "192.168.0.2", TunnelKind::Gtpu, |t| t.in_key = Some(TunnelKey(3)));
    load(&mut s, BridgeId(0), &["in_port=10 actions=output:1"]);
    for (kind, ethertype, untyped, flow) in [(0x800u16, 0x800u16, false, ",ip,"), (0, 0, true, ",dl_type=0x0000")] {
        let mut packet = udp("10.0.0.1", 5, "10.0.0.2", 6);
        packet[..12].fill(0);
        packet[12..14].copy_from_slice(&ethertype.to_be_bytes());
        let metadata = Match::new()
            .with(FieldId::InPort, 10)
            .with(FieldId::TunId, 3)
            .with(FieldId::PacketType, 1 << 16 | u128::from(kind));
        let request = switch::TraceRequest { metadata, packet, untyped, ..Default::default() };
        let text = s.trace(request, &mut Vec::new());
        let (head, megaflow) = text.split_once("Megaflow: ").expect("a megaflow");
        let wanted = if kind == 0 { "packet_type=(1,0)" } else { "packet_type=(1,0x800)" };
        assert!(head.starts_with("Flow: ") && head.contains(wanted), "{text}");
        assert!(megaflow.starts_with(&format!("recirc_id=0,{wanted},")) && megaflow.contains(flow), "{text}");
        assert!(megaflow.contains("actions: push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00),1\n"), "{text}");
    }
}

/// A trace with effects sends controllers what the packet would, of `check_pkt_larger` by its own outcome alone; packets
/// leave in no case. Without effects nobody is told.
#[test]
fn traces_with_effects_tell_controllers() {
    let mut s = one(&[
        "in_port=1 actions=check_pkt_larger(60)->NXM_NX_REG0[0],resubmit(,1)",
        "in_port=3 actions=controller(id=3),resubmit(,9)",
        "table=1,reg0=1 actions=controller(id=7),output:2",
        "table=1,reg0=0 actions=controller(id=8),output:2",
        "table=9 actions=resubmit(,9)",
    ]);
    let mut told = |port: u128, payload: usize, effects| {
        let [a, b] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(std::net::IpAddr::from);
        let packet = packet::build::udp(A, B, (a, 5), (b, 6), 64, &vec![0; payload]).expect("udp");
        let metadata = Match::new().with(FieldId::InPort, port);
        let mut events = Vec::new();
        let request = switch::TraceRequest { metadata, packet: packet.clone(), effects, ..Default::default() };
        s.trace(request, &mut events);
        let controllers = events.into_iter().map(|e| match e {
            switch::Event::PacketIn { controller, packet_in, .. } if packet_in.packet == packet => controller,
            e => panic!("{e:?}"),
        });
        controllers.collect::<Vec<_>>()
    };
    assert_eq!(told(1, 30, true), [7]);
    assert_eq!(told(1, 3, true), [8]);
    assert_eq!(told(1, 30, false), [0; 0]);
    // Of a packet that passes a limit nothing is left.
    assert_eq!(told(3, 30, true), [0; 0]);
}
