//! A bridge of three ports, a chassis with a tunnel, and packets through them.

use openflow_rs::text::parse_flow;
use openflow_rs::*;
use packet::{Headers, build, checksum};
use std::net::IpAddr;
use std::time::Duration;
use switch::{
    BfdPackets, BridgeId, DeviceId, Egress, Outputs, Port, PortKind, Route, Switch, Target, TunnelConfig, TunnelKind,
};

pub const A: packet::Mac = packet::Mac([2, 0, 0, 0, 0, 0xa]);
pub const B: packet::Mac = packet::Mac([2, 0, 0, 0, 0, 0xb]);
pub const NOW: Duration = Duration::from_secs(10);

pub fn ip(s: &str) -> IpAddr {
    s.parse().expect("address")
}

pub fn udp(src: &str, sport: u16, dst: &str, dport: u16) -> Vec<u8> {
    build::udp(B, A, (ip(src), sport), (ip(dst), dport), 64, b"hello").expect("udp")
}

/// A bridge with devices 1 to 3 as ports 1 to 3.
pub fn one(flows: &[&str]) -> Switch {
    of_size(100, flows)
}

/// The same, with room for so many connections.
pub fn of_size(connections: usize, flows: &[&str]) -> Switch {
    let mut s = Switch::new(connections);
    let b = s.add_bridge("br0", 1);
    for i in 1..=3 {
        s.add_port(b, Port::new(PortNo(i), &format!("p{i}"), PortKind::Device(DeviceId(i.into())))).expect("port");
    }
    load(&mut s, b, flows);
    s
}

pub fn load(s: &mut Switch, b: BridgeId, flows: &[&str]) {
    let list: Vec<Message> = flows.iter().map(|f| Message::FlowMod(parse_flow(f).expect("flow"))).collect();
    s.apply_bundle(b, &list, NOW).expect("bundle");
}

/// Where packets for a device leave that name no queue.
pub fn via(device: u32) -> Target {
    DeviceId(device).into()
}

pub fn send(s: &mut Switch, dev: u32, p: &[u8]) -> Outputs<Vec<u8>> {
    let mut out = Outputs::default();
    s.process(&mut vec![(DeviceId(dev), p.to_vec())], NOW, &mut out);
    out
}

pub fn good(p: &[u8]) {
    let h = Headers::parse(p).expect("headers");
    assert!(checksum::l4_ok(p, &h), "transport checksum");
    if h.is_ipv4() {
        assert_eq!(checksum::of(&p[h.l3..h.l3 + 20]), 0, "header checksum");
    }
}

/// The Ethernet address of the chassis that has an address of the underlay.
pub fn mac_of(address: &str) -> packet::Mac {
    if address.ends_with('1') { A } else { B }
}

/// A chassis: br-int with a VIF and a tunnel; the underlay is device 100.
pub fn chassis(own: &str, peer: &str, kind: TunnelKind) -> Switch {
    let mut s = one(&[]);
    let mut cfg = TunnelConfig::new(kind, None);
    cfg.csum = Some(true);
    let mut port = Port::new(PortNo(10), "tun", PortKind::Tunnel(Box::new(cfg)));
    port.bfd_packets = Some(BfdPackets::default());
    s.add_port(BridgeId(0), port).expect("port");
    s.apply(
        BridgeId(0),
        &Message::TlvTableMod(openflow_rs::message::TlvTableMod {
            command: 0,
            maps: vec![openflow_rs::message::TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 }],
        }),
        NOW,
    )
    .expect("tlv");
    s.underlay.set_routes(vec![Route {
        prefix: ip(peer),
        len: if ip(peer).is_ipv4() { 24 } else { 64 },
        gateway: None,
        source: ip(own),
        source_mac: mac_of(own),
        egress: Egress::Device(DeviceId(100)),
        hop_source: None,
        table: Route::MAIN,
        own: false,
        mark: 0,
    }]);
    let out_flow = format!(
        "in_port=1 actions=set_field:0x1234/0xffffff->tun_id,set_field:0x8002->tun_metadata0,set_field:{peer}->{},output:10",
        if ip(peer).is_ipv4() { "tun_dst" } else { "tun_ipv6_dst" }
    );
    let md = if kind == TunnelKind::Geneve { ",tun_metadata0=0x8002" } else { "" };
    load(&mut s, BridgeId(0), &[&out_flow, &format!("in_port=10,tun_id=0x1234{md} actions=output:2")]);
    s
}

/// Two chassis that are neighbours, with a tunnel of these options at each.
pub fn pair(a: &str, b: &str, kind: TunnelKind, options: impl Fn(&mut TunnelConfig)) -> [Switch; 2] {
    [(a, b), (b, a)].map(|(own, peer)| {
        let mut s = chassis(own, peer, kind);
        s.remove_port(BridgeId(0), PortNo(10)).expect("a tunnel");
        let mut cfg = TunnelConfig::new(kind, None);
        options(&mut cfg);
        s.add_port(BridgeId(0), Port::new(PortNo(10), "tun", PortKind::Tunnel(Box::new(cfg)))).expect("port");
        s.underlay.set_neighbour(ip(peer), Some(mac_of(peer)));
        s
    })
}

/// Ports 12 of two switches, joined by their underlay, with these options; what comes by them goes to port 3, and what
/// comes by port 3 goes there.
pub fn joined(
    a: &str,
    b: &str,
    kind: TunnelKind,
    flows: [&[&str]; 2],
    options: [&dyn Fn(&mut TunnelConfig); 2],
) -> [Switch; 2] {
    let of = |own: &str, peer: &str, flows: &[&str], options: &dyn Fn(&mut TunnelConfig)| {
        let base = if kind == TunnelKind::Srv6 { TunnelKind::Geneve } else { kind };
        let mut s = chassis(own, peer, base);
        s.remove_port(BridgeId(0), PortNo(10)).expect("the other tunnel");
        let mut cfg = TunnelConfig::new(kind, Some(ip(peer)));
        options(&mut cfg);
        s.add_port(BridgeId(0), Port::new(PortNo(12), "l3", PortKind::Tunnel(Box::new(cfg)))).expect("port");
        load(&mut s, BridgeId(0), flows);
        s.underlay.set_neighbour(ip(peer), Some(mac_of(peer)));
        s
    };
    [of(a, b, flows[0], options[0]), of(b, a, flows[1], options[1])]
}

pub const THROUGH: &[&str] = &["in_port=3 actions=output:12", "in_port=12 actions=output:3"];
