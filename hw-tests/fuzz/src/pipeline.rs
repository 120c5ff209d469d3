//! Packets through a whole pipeline: tunnels, connections, translation, tags, NORMAL. The switch with its cache and the one
//! without do the same.

use crate::targets::Outcome_;
use openflow_rs::message::{TlvMap, TlvTableMod};
use openflow_rs::text::parse_flow;
use openflow_rs::{Message, PortNo};
use packet::{Mac, build, tunnel::Geneve};
use std::net::IpAddr;
use std::time::Duration;
use switch::{Egress, Outputs, Port, PortKind, Route, Switch, TunnelConfig, TunnelKind};

const ROUTER: Mac = [2, 0, 0, 0, 0, 1];
const PEER: Mac = [2, 0, 0, 0, 0, 0xc];
const HERE: [u8; 4] = [192, 168, 0, 1];
const THERE: [u8; 4] = [192, 168, 0, 2];

const FLOWS: &[&str] = &[
    "priority=9,in_port=1,ipv6 actions=ct(commit,table=1,zone=3)",
    "priority=9,in_port=1,ip actions=ct(table=1,zone=3,nat)",
    "priority=9,in_port=2,ip actions=ct(table=2,zone=3,nat)",
    "priority=9,in_port=3,ip,tun_metadata0=0x10002 actions=set_queue:7,dec_ttl,push_vlan:0x8100,set_field:4196->vlan_vid,output:2",
    "priority=8,in_port=3,ip actions=ct(commit,table=1,zone=4)",
    "priority=7,vlan_tci=0x1000/0x1000 actions=pop_vlan,resubmit(,0)",
    "priority=6,arp actions=move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],load:2->NXM_OF_ARP_OP[],IN_PORT",
    "priority=5,icmp6,icmp_type=135,nd_target=fd00::1 actions=controller",
    "priority=1 actions=NORMAL",
    "table=1,ct_state=+inv+trk actions=drop",
    "table=1,priority=2,tcp,tp_dst=80 actions=ct(commit,zone=3,table=3,nat(dst=10.0.0.8:8080))",
    "table=1,priority=1,ip actions=ct(commit,zone=3,table=3,nat(src=172.16.0.1-172.16.0.3))",
    "table=1,priority=1,ipv6 actions=dec_ttl,output:3",
    "table=1,priority=0 actions=output:3",
    "table=2,ct_state=+est actions=output:1",
    "table=2,priority=0 actions=check_pkt_larger(100)->NXM_NX_REG0[0],resubmit(,4)",
    "table=3,ip actions=dec_ttl,set_field:7->tun_id,set_field:0x10002->tun_metadata0,set_field:192.168.0.2->tun_dst,output:3,output:2",
    "table=4,reg0=1 actions=output:1",
    "table=4,priority=0,ip actions=set_field:10.9.9.9->ip_dst,output:1",
];

fn gateway(cache: bool) -> Option<Switch> {
    let now = Duration::from_secs(1);
    let mut s = Switch::new(64);
    s.set_cache(cache);
    let (int, ex) = (s.add_bridge("br-int", 1), s.add_bridge("br-ex", 2));
    let mut c = TunnelConfig::new(TunnelKind::Geneve, None);
    c.csum = true;
    let ports = [
        (int, 1, "a", PortKind::Device(1)),
        (int, 2, "b", PortKind::Device(2)),
        (int, 3, "tunnel", PortKind::Tunnel(Box::new(c))),
        (ex, 1, "uplink", PortKind::Device(3)),
        (ex, 0xfffe, "br-ex", PortKind::Internal(4)),
    ];
    for (b, no, name, kind) in ports {
        s.add_port(b, Port::new(PortNo(no), name, kind)).ok()?;
    }
    let maps = vec![TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 }];
    s.apply(int, &Message::TlvTableMod(TlvTableMod { command: 0, maps }), now).ok()?;
    let list: Option<Vec<Message>> = FLOWS.iter().map(|f| Some(Message::FlowMod(parse_flow(f).ok()?))).collect();
    s.apply_bundle(int, &list?, now).ok()?;
    s.apply(ex, &Message::FlowMod(parse_flow("actions=NORMAL").ok()?), now).ok()?;
    s.underlay.set_routes(vec![Route {
        prefix: THERE.into(),
        len: 24,
        gateway: None,
        source: HERE.into(),
        source_mac: ROUTER,
        egress: Egress::Bridge("br-ex".into()),
        own: false,
    }]);
    s.underlay.set_neighbour(THERE.into(), Some(PEER));
    Some(s)
}

/// The packets of an input: a device and a length of two bytes before each.
fn packets(mut input: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut v = Vec::new();
    while let (Some(([device, high, low], rest)), true) = (input.split_first_chunk(), v.len() < 64) {
        let n = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let mut p = rest[..n].to_vec();
        // Wrong checksums are seen where a packet walks the tables, not where it comes out of the cache.
        if let Some(h) = packet::Headers::parse(&p) {
            if h.is_ipv4() {
                packet::checksum::set_ipv4(&mut p, h.l3);
            }
            packet::checksum::set_l4(&mut p, &h);
        }
        v.push((u32::from(device % 5), p));
        input = &rest[n..];
    }
    v
}

/// Twice, so that the second time they come out of the cache.
pub fn run(input: &[u8]) -> Outcome_ {
    let mut seen = Vec::new();
    let mut words = String::new();
    for cache in [true, false] {
        let mut s = gateway(cache).ok_or("the pipeline is not accepted")?;
        let mut out = Outputs::default();
        let list = packets(input);
        for n in 0..3 {
            let now = Duration::from_secs(2 + n * 20);
            if cache {
                s.process(&mut list.clone(), now, &mut out);
            } else {
                list.iter().cloned().for_each(|p| s.process(&mut vec![p], now, &mut out));
            }
        }
        words = format!("{} {}", out.packets.len().min(9), out.events.len().min(3));
        for r in switch::DropReason::ALL.iter().filter(|r| s.drops.get(**r) > 0) {
            words += r.name();
        }
        let connections: std::collections::BTreeSet<String> = s.conntrack.export().map(|c| format!("{c:?}")).collect();
        seen.push(format!("{:x?} {:?} {:?} {connections:?}", out.packets, out.events, s.drops));
    }
    match seen.as_slice() {
        [a, b] if a == b => Ok(words),
        [a, b] => Err(format!("with the cache {a}\nwithout {b}")),
        _ => Err("not run".into()),
    }
}

fn entry(device: u8, p: &[u8]) -> Vec<u8> {
    let mut v = vec![device];
    v.extend_from_slice(&(p.len() as u16).to_be_bytes());
    v.extend_from_slice(p);
    v
}

/// A few of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let ip = |a: [u8; 4]| IpAddr::from(a);
    let udp = |src, sport, dst, dport, n: usize| build::udp(ROUTER, PEER, (src, sport), (dst, dport), 64, &vec![1; n]);
    let tcp = |flags: u8| {
        let b = [0, 9, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0, 9, 0, 0, 0, 0, 1, 2, 3];
        build::ip_packet(ROUTER, PEER, ip([10, 0, 0, 1]), ip([8, 8, 8, 8]), 6, 64, &b)
    };
    let plain: Vec<Vec<u8>> = [
        udp(ip([10, 0, 0, 1]), 9, ip([8, 8, 8, 8]), 53, 20),
        udp(ip([8, 8, 8, 8]), 53, ip([172, 16, 0, 1]), 9, 20),
        tcp(2),
        tcp(16),
        build::ip_packet(ROUTER, PEER, ip([10, 0, 0, 1]), ip([8, 8, 8, 8]), 1, 64, &[8, 0, 0, 0, 0, 1, 0, 1]),
    ]
    .into_iter()
    .flatten()
    .chain([build::arp_request(PEER, THERE.into(), HERE.into())])
    .collect();
    let mut v: Vec<Vec<u8>> = Vec::new();
    for p in &plain {
        let mut body = Vec::new();
        Geneve::put(&mut body, 7, false, &[(0x102, 0x80, vec![0, 1, 0, 2])]);
        body.extend_from_slice(p);
        let mut tagged = p.clone();
        tagged.splice(12..12, [0x81, 0, 0, 100]);
        let outer = build::udp(ROUTER, PEER, (ip(THERE), 5000), (ip(HERE), 6081), 64, &body).unwrap_or_default();
        v.extend([entry(1, p), entry(2, p), entry(1, &tagged), entry(3, &outer)]);
    }
    v.push(v.concat());
    v
}
