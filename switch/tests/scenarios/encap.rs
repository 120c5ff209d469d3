//! `encap` and `decap`: headers before packets, packets without an Ethernet header, and what flows are for them.

use crate::rig::{A, B, NOW, ip, send, via};
use openflow_rs::text::{parse_flow, parse_group};
use openflow_rs::*;
use packet::build;
use switch::{BridgeId, DeviceId, DropReason, Event, Outputs, Port, PortKind, Switch, Target};

fn udp(v6: bool) -> Vec<u8> {
    let (src, dst) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
    build::udp(B, A, (ip(src), 1), (ip(dst), 2), 64, b"hello").expect("udp")
}

/// Two bridges, joined by patch ports 9; devices 1 to 3 are ports of the first, 4 of the second.
fn network(flows: &[&str], others: &[&str]) -> Switch {
    let mut s = Switch::new(100);
    let (a, b) = (s.add_bridge("br0", 1), s.add_bridge("br1", 2));
    for (bridge, list) in [(a, 1..=3), (b, 4..=4)] {
        for i in list {
            s.add_port(bridge, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into()))))
                .expect("port");
        }
    }
    for (bridge, name, peer) in [(a, "x", "y"), (b, "y", "x")] {
        s.add_port(bridge, Port::new(PortNo(9), name, PortKind::Patch(peer.into()))).expect("port");
    }
    for (bridge, list) in [(a, flows), (b, others)] {
        let list: Vec<Message> = list.iter().map(|f| Message::FlowMod(parse_flow(f).expect("flow"))).collect();
        s.apply_bundle(bridge, &list, NOW).expect("bundle");
    }
    s
}

fn sent(flows: &[&str], p: &[u8]) -> Vec<(Target, Vec<u8>)> {
    send(&mut network(flows, &[]), 1, p).packets
}

fn hex(s: &str) -> Vec<u8> {
    let digits: Vec<u8> = s.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |d: &[u8]| u8::from_str_radix(std::str::from_utf8(d).expect("digits"), 16).expect("digits");
    digits.chunks(2).map(byte).collect()
}

/// Ethernet of these addresses before what follows.
fn ethernet(kind: &str, rest: &[u8]) -> Vec<u8> {
    [&hex("02000000000b 02000000000a")[..], &hex(kind), rest].concat()
}

const OUTER: &str =
    "encap(ethernet),set_field:02:00:00:00:00:0a->eth_src,set_field:02:00:00:00:00:0b->eth_dst,output:2";

#[test]
fn headers_are_put_before_packets() {
    let (v4, v6) = (udp(false), udp(true));
    let nsh = |first: &str, context: &str| [hex(first), hex(context)].concat();
    let no_context = "00000000000000000000000000000000";
    let cases: [(&str, &[u8], &str, Vec<u8>); 7] = [
        ("encap(nsh)", &v4, "894f", [nsh("0fc60103 000000ff", no_context), v4.clone()].concat()),
        (
            "encap(nsh(md_type=1)),set_field:2->nsh_flags,set_field:9->nsh_ttl,set_field:0x123456->nsh_spi,set_field:7->nsh_si,set_field:0x11223344->nsh_c1,set_field:0x7700/0xff00->nsh_c4",
            &v4,
            "894f",
            [nsh("22460103 12345607", "11223344 00000000 00000000 00007700"), v4.clone()].concat(),
        ),
        ("decap(),encap(nsh)", &v4, "894f", [nsh("0fc60101 000000ff", no_context), v4[14..].to_vec()].concat()),
        ("decap(),encap(nsh)", &v6, "894f", [nsh("0fc60102 000000ff", no_context), v6[14..].to_vec()].concat()),
        (
            "encap(nsh(md_type=2,tlv(0x1000,10,0x123456)))",
            &v4,
            "894f",
            [hex("0fc40203 000000ff 10000a03 12345600"), v4.clone()].concat(),
        ),
        ("encap(mpls),set_mpls_label(2)", &v4, "8847", [hex("00002140"), v4.clone()].concat()),
        (
            "decap(),encap(mpls_mc),set_mpls_label(3),encap(mpls_mc),set_mpls_label(2),dec_mpls_ttl",
            &v6,
            "8848",
            [hex("0000203f 00003140"), v6[14..].to_vec()].concat(),
        ),
    ];
    for (actions, p, kind, rest) in cases {
        let out = sent(&[&format!("in_port=1 actions={actions},{OUTER}")], p);
        assert_eq!(out, [(via(2), ethernet(kind, &rest))], "{actions}");
    }
}

/// What is put before a packet is taken away again, by the same bridge or by another one.
#[test]
fn headers_are_taken_away() {
    for p in [udp(false), udp(true)] {
        for (pushed, popped) in [
            ("encap(nsh)", "decap(),decap()"),
            ("encap(mpls)", "decap(),decap(packet_type(ns=0,type=0))"),
            ("encap(mpls),encap(mpls)", "decap(),decap(packet_type(ns=1,type=0x8847)),decap(packet_type(ns=0,type=0))"),
            ("encap(nsh),encap(nsh)", "decap(),decap(),decap()"),
        ] {
            let (to, from) = (
                format!("in_port=1 actions={pushed},encap(ethernet),output:9"),
                format!("in_port=9 actions={popped},output:4"),
            );
            let mut s = network(&[&to], &[&from]);
            assert_eq!(send(&mut s, 1, &p).packets, [(via(4), p.clone())], "{pushed}");
            // Without an Ethernet header through the patch ports.
            let (to, from) = (
                format!("in_port=1 actions={pushed},output:9"),
                format!("in_port=9 actions={},output:4", popped.strip_prefix("decap(),").expect("begins so")),
            );
            let mut s = network(&[&to], &[&from]);
            assert_eq!(send(&mut s, 1, &p).packets, [(via(4), p.clone())], "{pushed} through patch ports");
        }
    }
}

/// Flows that match headers are of packets with Ethernet, unless they name a type; those of metadata are of all.
#[test]
fn packets_without_ethernet_have_flows_of_their_own() {
    let p = udp(false);
    let routed = &[
        "table=0,in_port=1 actions=decap(),resubmit(,1)",
        "table=1,priority=9,ip actions=output:3",
        "table=1,priority=8,packet_type=(1,0x800),nw_dst=10.0.0.2 actions=dec_ttl,encap(ethernet),resubmit(,2)",
        "table=2,priority=9,packet_type=(1,0x800) actions=output:3",
        "table=2,ip,nw_ttl=63 actions=output:2",
    ];
    let out = sent(routed, &p);
    let mut wanted = p.clone();
    wanted[..12].fill(0);
    wanted[22] = 63;
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].0, &out[0].1[..14], &out[0].1[26..]), (via(2), &wanted[..14], &wanted[26..]));
    // Many of the other kind before them, in any order, and once more, so that walks that are known would be taken.
    let flows: Vec<String> = (0..40u16)
        .flat_map(|i| [format!("table=1,priority={},ip,nw_src=10.0.{i}.0/24 actions=output:3", 100 + i)])
        .chain(routed.iter().map(|s| s.to_string()))
        .chain(["table=0,priority=9,in_port=2,ip actions=resubmit(,1)".to_string()])
        .collect();
    let flows: Vec<&str> = flows.iter().map(String::as_str).collect();
    let mut s = network(&flows, &[]);
    for _ in 0..5 {
        assert_eq!(send(&mut s, 2, &p).packets, [(via(3), p.clone())]);
        assert_eq!(send(&mut s, 1, &p).packets, out);
    }
}

#[test]
fn what_cannot_be_done_drops_the_packet() {
    let (p, mut tagged) = (udp(false), udp(false));
    tagged.splice(12..12, hex("8100 0064"));
    let nsh = |first: &str| ethernet("894f", &[hex(first), hex("000000ff"), vec![0; 16], p.clone()].concat());
    let cases: [(&str, Vec<u8>); 9] = [
        ("output:3,decap(),encap(ethernet),output:2", tagged.clone()),
        ("output:3,encap(ethernet),output:2", p.clone()),
        ("output:3,decap(),decap(),output:2", p.clone()),
        ("output:3,decap(),encap(mpls),encap(nsh),output:2", p.clone()),
        ("output:3,decap(),decap(),output:2", nsh("0fc60105")),
        ("output:3,decap(),decap(),output:2", nsh("4fc60103")),
        ("output:3,encap(mpls),encap(mpls),encap(mpls),encap(mpls),output:2", p.clone()),
        ("output:3,decap(),decap(),output:2", ethernet("8847", &[hex("00002140"), p.clone()].concat())),
        ("output:3,decap(),decap(packet_type(ns=0,type=0)),output:2", ethernet("8847", &hex("00002140 4500"))),
    ];
    for (actions, p) in cases {
        let mut s = network(&[&format!("in_port=1 actions={actions}")], &[]);
        for n in 1..4 {
            assert!(send(&mut s, 1, &p).packets.is_empty(), "{actions}");
            let dropped = s.drops.get(DropReason::PacketType) + s.drops.get(DropReason::TooManyLabels);
            assert_eq!(dropped, n, "{actions}");
        }
    }
    // Ports want an Ethernet header; other outputs go on.
    let mut s = network(&["in_port=1 actions=decap(),output:2,encap(ethernet),output:3"], &[]);
    let out = send(&mut s, 1, &p).packets;
    assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [via(3)]);
    let mut s = network(&["in_port=1 actions=decap(),output:2"], &[]);
    assert!(send(&mut s, 1, &p).packets.is_empty());
    assert_eq!(s.drops.get(DropReason::NotEthernet), 1);
    // A time to live that ends goes to controllers.
    let mut s =
        network(&["in_port=1 actions=encap(nsh),set_field:1->nsh_ttl,dec_nsh_ttl,encap(ethernet),output:2"], &[]);
    let out = send(&mut s, 1, &p);
    let Some(Event::PacketIn { packet_in, .. }) = out.events.first() else { panic!("{:?}", out.events) };
    assert!(out.packets.is_empty() && packet_in.reason == action::PacketInReason::InvalidTtl);
    // It has no Ethernet header, and says so.
    assert_eq!(packet_in.metadata.packet_type(), Some(action::PacketType::NSH));
    assert_eq!(packet_in.packet[..4], hex("0 0460103")[..]);
    assert_eq!(packet_in.packet[24..], p);
}

/// A packet without an Ethernet header that waits for its controller has none when it is resumed.
#[test]
fn packets_without_ethernet_are_paused_and_resumed() {
    let p = udp(false);
    let mut s = network(
        &[
            "table=0,in_port=1 actions=decap(),controller(pause),resubmit(,1)",
            &format!("table=1,packet_type=(1,0x800) actions={OUTER}"),
        ],
        &[],
    );
    let out = send(&mut s, 1, &p);
    let Some(Event::PacketIn { packet_in, .. }) = out.events.into_iter().next() else { panic!("no packet-in") };
    assert_eq!(packet_in.packet, p[14..]);
    let mut out = Outputs::default();
    s.resume(&packet_in, &Vec::new(), NOW, &mut out).expect("resumes");
    assert_eq!(out.packets, [(via(2), p.clone())]);
    // A controller sends one.
    let m = openflow_rs::message::PacketOut {
        metadata: Match::new().with(FieldId::InPort, 1).with(FieldId::PacketType, 0x1_0800),
        actions: text::parse_actions("resubmit(,1)").expect("actions"),
        packet: p[14..].to_vec(),
        buffer_id: u32::MAX,
    };
    let mut out = Outputs::default();
    s.packet_out(BridgeId(0), &m, &Vec::new(), NOW, &mut out);
    assert_eq!(out.packets, [(via(2), p)]);
}

/// A packet that a controller sends as if it came from a port is copied to the mirrors of what that port receives.
#[test]
fn mirrors_have_packet_outs() {
    let mut s = network(&["in_port=1 actions=output:2", "actions=drop"], &[]);
    s.bridge_mut(BridgeId(0)).expect("bridge").set_mirrors(vec![switch::Mirror {
        name: "m".into(),
        all: false,
        sources: [PortNo(1)].into(),
        destinations: Default::default(),
        vlans: Default::default(),
        output: switch::MirrorOutput::Port(PortNo(3)),
        filter: None,
        snaplen: None,
    }]);
    for (port, devices) in [(1, &[3, 2][..]), (2, &[]), (PortNo::CONTROLLER.0, &[])] {
        let m = openflow_rs::message::PacketOut {
            metadata: Match::new().with(FieldId::InPort, port.into()),
            actions: text::parse_actions("resubmit(,0)").expect("actions"),
            packet: udp(false),
            buffer_id: u32::MAX,
        };
        let mut out = Outputs::default();
        s.packet_out(BridgeId(0), &m, &Vec::new(), NOW, &mut out);
        assert_eq!(out.packets.iter().map(|(to, _)| to.device().0).collect::<Vec<_>>(), devices, "from port {port}");
        assert!(out.packets.iter().all(|(_, p)| *p == udp(false)));
    }
}

/// Clones and buckets work on copies.
#[test]
fn clones_and_buckets_leave_the_packet_what_it_was() {
    let p = udp(false);
    let group = "group_id=1,type=all,bucket=bucket_id:0,actions=encap(mpls),set_mpls_label(5),output:9,bucket=bucket_id:1,actions=output:3";
    let mut s = network(
        &["in_port=1 actions=clone(encap(mpls),encap(ethernet),output:2),clone(decap(),resubmit(,5)),output:3"],
        &[],
    );
    let out = send(&mut s, 1, &p).packets;
    assert_eq!((out.len(), &out[0].1[18..], &out[1]), (2, &p[..], &(via(3), p.clone())));
    let g = GroupMod::new(GroupModCommand::Add, parse_group(group).expect("group"));
    s.apply(BridgeId(0), &Message::GroupMod(g), NOW).expect("group");
    s.apply(BridgeId(0), &Message::FlowMod(parse_flow("in_port=3 actions=group:1,output:1").expect("flow")), NOW)
        .expect("flow");
    let other = "packet_type=(1,0x8847),mpls_label=5 actions=decap(packet_type(ns=0,type=0)),output:4";
    s.apply(BridgeId(1), &Message::FlowMod(parse_flow(other).expect("flow")), NOW).expect("flow");
    let out = send(&mut s, 3, &p).packets;
    assert_eq!(out, [(via(4), p.clone()), (via(1), p)]);
}

/// Flows whose actions need what the packet cannot have are refused.
#[test]
fn actions_are_checked_against_what_the_packet_is() {
    let mut s = network(&[], &[]);
    for (flow, fits) in [
        ("ip actions=decap(),dec_ttl", true),
        ("ip actions=decap(),set_field:02:00:00:00:00:01->eth_dst", false),
        ("ip actions=decap(),push_vlan:0x8100", false),
        ("ip actions=decap(),encap(ethernet),set_field:02:00:00:00:00:01->eth_dst,dec_ttl", true),
        ("actions=decap(),dec_ttl", false),
        ("actions=encap(nsh),set_field:1->nsh_si,dec_nsh_ttl", true),
        ("actions=encap(nsh),set_field:1->nsh_np", false),
        ("ip actions=dec_nsh_ttl", false),
        ("ip actions=encap(nsh),dec_ttl", false),
        ("dl_type=0x894f actions=decap(),decap(),dec_ttl", false),
        ("actions=encap(mpls),set_mpls_label(1),encap(ethernet),set_mpls_ttl(3)", true),
        ("actions=encap(mpls),push_mpls:0x8847", false),
        ("packet_type=(1,0x800) actions=dec_ttl", true),
        ("packet_type=(1,0x800) actions=mod_dl_src:02:00:00:00:00:01", false),
    ] {
        let m = Message::FlowMod(parse_flow(flow).expect("flow"));
        assert_eq!(s.apply(BridgeId(0), &m, NOW).is_ok(), fits, "{flow}");
    }
}
