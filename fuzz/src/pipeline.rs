//! Packets through a whole pipeline: tunnels, connections, translation, fragments, tags, NORMAL, with flows that the
//! input chooses. Three switches have to do the same: one with a flow cache, one with a fast path before it, one with
//! neither.

use crate::targets::Outcome_;
use openflow_rs::message::{TlvMap, TlvTableMod};
use openflow_rs::text::{parse_flow, parse_group, parse_meter};
use openflow_rs::{GroupMod, GroupModCommand, Message, MeterMod, MeterModCommand, PortNo};
use packet::gre::{ETHERNET, Erspan, Gre};
use packet::{Mac, build, tunnel::Geneve};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use switch::{DeviceId, Egress, FastPath, Outputs, Port, PortKind, Route, Switch, TunnelConfig, TunnelKind};

const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
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
    "priority=14,in_port=1,udp,tp_dst=5000 actions=encap(nsh(md_type=1)),set_field:7->nsh_c1,encap(ethernet),output:2",
    "priority=14,in_port=2,dl_type=0x894f actions=decap(),dec_nsh_ttl,decap(),resubmit(,8)",
    "priority=14,in_port=2,mpls actions=decap(),decap(packet_type(ns=1,type=0x800)),resubmit(,8)",
    "table=8,packet_type=(1,0x800) actions=dec_ttl,encap(ethernet),output:1",
    "table=8,packet_type=(1,0x894f) actions=decap(),output:1",
    "table=8,priority=1 actions=output:1",
    "table=4,priority=0,ip actions=set_field:10.9.9.9->ip_dst,output:1",
    // Copies in GRE and ERSPAN, cut ones, samples.
    "priority=16,in_port=1,udp,tp_src=9,tp_dst=54 actions=set_field:192.168.0.2->tun_dst,output:4,dec_ttl,output(port=5,max_len=70),output:2",
    "priority=8,in_port=4,ip actions=dec_ttl,output(port=1,max_len=60),output:2",
    "priority=7,in_port=4 actions=output:2",
    "priority=8,in_port=5 actions=sample(probability=40000,collector_set_id=1),output:1,set_field:192.168.0.2->tun_dst,output:4",
];

/// Flows of which an input chooses some, a bit each; none of them is a flow above with other actions.
const MORE: &[&str] = &[
    "priority=11,in_port=2,icmp actions=ct(table=2,zone=3,nat)",
    "priority=11,in_port=1,udp,tp_dst=53 actions=ct(commit,table=5,zone=3,nat(dst=10.0.0.1),exec(set_field:5->ct_mark))",
    "priority=10,in_port=1,ip,nw_frag=later actions=output:2",
    "priority=10,in_port=3,ipv6 actions=ct(table=1,zone=5),output:1",
    "priority=12,in_port=1,ip,dl_vlan=100 actions=pop_vlan,ct(commit,table=5,zone=6)",
    "priority=9,in_port=4,ip actions=clone(dec_ttl,output:1),output:2",
    "table=5,priority=2,ct_state=+rel+trk actions=output:3,output:2",
    "table=5,priority=1,ip actions=ct(table=6,zone=7,commit,nat(src=172.16.9.1:1000-1001)),output:3",
    "table=6,ip,ct_mark=5 actions=set_field:3->tun_id,output:3",
    "table=6,priority=0 actions=group:1",
    "table=2,priority=5,ct_state=+inv+trk actions=output:1",
    "table=3,priority=9,ip,nw_ttl=64 actions=learn(table=7,idle_timeout=30,eth_type=0x800,ip_src,load:1->NXM_NX_REG1[]),resubmit(,7),output:3",
    "table=7,priority=0 actions=set_field:9->reg2",
    "priority=13,tcp,tcp_flags=+syn-ack,in_port=1 actions=meter:1,ct(commit,table=5,zone=3)",
    "priority=9,in_port=3,udp,tun_id=7 actions=ct(commit,table=5,zone=8,nat(dst=10.0.0.3:9)),NORMAL",
    "priority=20,in_port=2,dl_type=0x800,nw_dst=172.16.0.0/16 actions=ct(table=2,zone=3,nat),controller",
];

fn gateway(cache: bool, chosen: u16) -> Option<Switch> {
    let now = Duration::from_secs(1);
    let mut s = Switch::new(64);
    s.set_cache(cache);
    let (int, ex) = (s.add_bridge("br-int", 1), s.add_bridge("br-ex", 2));
    let mut c = TunnelConfig::new(TunnelKind::Geneve, None);
    c.csum = Some(true);
    let mut numbered = TunnelConfig::new(TunnelKind::Gre, None);
    (numbered.csum, numbered.sequence) = (Some(true), true);
    let ports = [
        (int, 1, "a", PortKind::Device(DeviceId(1))),
        (int, 2, "b", PortKind::Device(DeviceId(2))),
        (int, 3, "tunnel", PortKind::Tunnel(Box::new(c))),
        (int, 4, "gre", PortKind::Tunnel(Box::new(numbered))),
        (int, 5, "erspan", PortKind::Tunnel(Box::new(TunnelConfig::new(TunnelKind::Erspan, None)))),
        (ex, 1, "uplink", PortKind::Device(DeviceId(3))),
        (ex, 0xfffe, "br-ex", PortKind::Internal(DeviceId(4))),
    ];
    for (b, no, name, kind) in ports {
        s.add_port(b, Port::new(PortNo(no), name, kind)).ok()?;
    }
    let b = s.bridge_mut(int)?;
    (b.collectors, b.netflow) = (vec![1], chosen & 1 == 1);
    let maps = vec![TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 }];
    s.apply(int, &Message::TlvTableMod(TlvTableMod { command: 0, maps }), now).ok()?;
    let group = "group_id=1,type=select,bucket=actions=output:1,bucket=actions=ct(commit,zone=9),output:3";
    s.apply(int, &Message::GroupMod(GroupMod::new(GroupModCommand::Add, parse_group(group).ok()?)), now).ok()?;
    let meter = parse_meter("meter=1 pktps bands=type=drop rate=100000").ok()?;
    s.apply(int, &Message::MeterMod(MeterMod { command: MeterModCommand::Add, meter }), now).ok()?;
    let more = MORE.iter().enumerate().filter(|(n, _)| chosen >> n & 1 == 1).map(|(_, f)| f);
    let list: Option<Vec<Message>> =
        FLOWS.iter().chain(more).map(|f| Some(Message::FlowMod(parse_flow(f).ok()?))).collect();
    s.apply_bundle(int, &list?, now).ok()?;
    s.apply(ex, &Message::FlowMod(parse_flow("actions=NORMAL").ok()?), now).ok()?;
    s.underlay.set_routes(vec![Route {
        prefix: THERE.into(),
        len: 24,
        gateway: None,
        source: HERE.into(),
        source_mac: ROUTER,
        egress: Egress::Port("br-ex".into()),
        hop_source: None,
        table: Route::MAIN,
        own: false,
        mark: 0,
    }]);
    s.underlay.set_neighbour(THERE.into(), Some(PEER));
    Some(s)
}

/// The packets of an input: a device and a length of two bytes before each.
fn packets(mut input: &[u8]) -> Vec<(DeviceId, Vec<u8>)> {
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
        v.push((DeviceId(u32::from(device % 5)), p));
        input = &rest[n..];
    }
    v
}

/// How packets get into a switch.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Cached,
    Lane,
    Plain,
}

/// Packets one after another through a fast path; those that it has no flow for go to the switch.
fn by_lane(
    s: &mut Switch,
    lane: &mut FastPath,
    seen: &mut u64,
    p: (DeviceId, Vec<u8>),
    now: Duration,
    out: &mut Outputs<Vec<u8>>,
) {
    s.view(seen).into_iter().for_each(|v| lane.look(v));
    let (mut missed, mut flows) = (Vec::new(), Vec::new());
    lane.process(&mut vec![p], now, out, &mut missed);
    lane.sums().into_iter().for_each(|sums| s.settle_sums(sums, now));
    let tickets: Vec<_> = missed.iter().map(|u| u.ticket).collect();
    s.walk_for(missed, now, out, &mut flows);
    flows.into_iter().for_each(|f| lane.learn(f, now));
    s.news().iter().for_each(|n| lane.follow(n));
    tickets.into_iter().for_each(|t| lane.left(t));
}

/// Three times, so that the second and third time they come out of the cache. The first two bytes choose flows.
pub fn run(input: &[u8]) -> Outcome_ {
    let mut seen = Vec::new();
    let mut words = String::new();
    let Some(([high, low], input)) = input.split_first_chunk() else { return Ok("too short".into()) };
    let list = packets(input);
    for way in [Way::Cached, Way::Lane, Way::Plain] {
        let mut s =
            gateway(way != Way::Plain, u16::from_be_bytes([*high, *low])).ok_or("the pipeline is not accepted")?;
        let mut out = Outputs::default();
        let (mut lane, mut views) = (s.fast_path(), 0);
        for n in 0..3 {
            let now = Duration::from_secs(2 + n * 20);
            match way {
                Way::Cached => s.process(&mut list.clone(), now, &mut out),
                Way::Lane => list.iter().for_each(|p| by_lane(&mut s, &mut lane, &mut views, p.clone(), now, &mut out)),
                Way::Plain => list.iter().for_each(|p| s.process(&mut vec![p.clone()], now, &mut out)),
            }
        }
        words = format!("{} {}", out.packets.len().min(9), out.events.len().min(3));
        for r in switch::DropReason::ALL.iter().filter(|r| s.drops.get(**r) > 0) {
            words += r.name();
        }
        let connections: BTreeSet<String> = s.conntrack.lock().export().map(|c| format!("{c:?}")).collect();
        let fragments = s.fragments.len();
        s.count();
        let mut counted = BTreeMap::<String, (u64, u64)>::new();
        for c in s.take_netflow() {
            let n = counted.entry(format!("{:?}", c.flow)).or_default();
            *n = (n.0 + c.packets, n.1 + c.bytes);
        }
        let told = format!("{:x?} {:?} {:?}", out.packets, out.events, s.drops);
        seen.push(format!("{told} {connections:?} {fragments} {counted:?}"));
    }
    match seen.as_slice() {
        [a, b, c] if a == c && b == c => Ok(words),
        [a, _, c] if a != c => Err(format!("with the cache {a}\nwithout {c}")),
        [_, b, c] => Err(format!("by a lane {b}\nwithout {c}")),
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
    // Fragments of both versions, in both orders; an error about a packet; neighbour discovery; VXLAN.
    for p in [udp(ip([10, 0, 0, 1]), 9, ip([8, 8, 8, 8]), 53, 900), udp(v6(1), 9, v6(2), 53, 900)].into_iter().flatten()
    {
        let (first, last) = fragments(&p);
        v.push([entry(1, &first), entry(1, &last), entry(2, &last), entry(2, &first)].concat());
        v.push([entry(1, &last), entry(1, &first), entry(1, &p)].concat());
    }
    let error = |p: &[u8]| {
        let body = [&[3, 1, 0, 0, 0, 0, 0, 0], &p[14..42]].concat();
        build::ip_packet(ROUTER, PEER, ip([8, 8, 8, 8]), ip([10, 0, 0, 1]), 1, 64, &body)
    };
    v.extend(plain.iter().filter(|p| p.len() > 42 && p[12] == 8 && p[13] == 0).filter_map(|p| {
        let e = error(p)?;
        Some([entry(1, p), entry(2, &e), entry(1, &e)].concat())
    }));
    let solicitation = [
        &[135, 0, 0, 0, 0, 0, 0, 0][..],
        &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        &[1, 1, 2, 0, 0, 0, 0, 9],
    ];
    v.extend(build::ip_packet(ROUTER, PEER, v6(2), v6(1), 58, 255, &solicitation.concat()).map(|p| entry(1, &p)));
    for p in &plain {
        let mut body = Vec::new();
        Geneve::put(&mut body, packet::Vni::of_low_bits(7), false, &[(0x102, 0x80, vec![0, 1, 0, 2])]);
        body.extend_from_slice(p);
        let mut tagged = p.clone();
        tagged.splice(12..12, [0x81, 0, 0, 100]);
        let outer = build::udp(ROUTER, PEER, (ip(THERE), 5000), (ip(HERE), 6081), 64, &body).unwrap_or_default();
        v.extend([entry(1, p), entry(2, p), entry(1, &tagged), entry(3, &outer)]);
        v.extend(in_gre(p).iter().map(|outer| [entry(3, outer), entry(3, outer)].concat()));
    }
    v.extend(udp(ip([10, 0, 0, 1]), 9, ip([8, 8, 8, 8]), 54, 60).map(|p| entry(1, &p)));
    for p in &plain {
        let whole = packet::nsh::Nsh { ttl: 2, md_type: 1, next: 3, ..Default::default() };
        for (kind, behind) in [(3, &p[..]), (1, p.get(14..).unwrap_or_default()), (4, p.get(14..).unwrap_or_default())]
        {
            let header = packet::nsh::Nsh { next: kind, ..whole }.with(&[]).unwrap_or_default();
            v.push(entry(2, &[&p[..12], &[0x89, 0x4f], &header, behind].concat()));
            v.push(entry(2, &[&p[..12], &[0x88, 0x47, 0, 0, 0x11, 64], behind].concat()));
        }
    }
    v.push(v.concat());
    // Each with few, and with all, of the flows that can be chosen.
    let with = |n: u16| move |p: &Vec<u8>| [&n.to_be_bytes()[..], p].concat();
    v.iter().map(with(0)).chain(v.iter().map(with(0xffff))).chain(v.iter().map(with(0x5a3c))).collect()
}

/// A frame in GRE for the gateway, with and without a key, a number and a checksum, and in both versions of ERSPAN.
fn in_gre(p: &[u8]) -> Vec<Vec<u8>> {
    let erspan = |e: Erspan| (Gre { protocol: e.protocol(), sequence: Some(9), ..Gre::default() }, e.bytes(7, 8));
    let plain = |key, sequence, checksum| (Gre { protocol: ETHERNET, key, sequence, checksum }, Vec::new());
    let all = [
        plain(None, None, false),
        plain(Some(7), None, false),
        plain(None, Some(8), false),
        plain(Some(7), Some(8), false),
        plain(Some(7), None, true),
        erspan(Erspan::V1 { index: 5 }),
        erspan(Erspan::V2 { egress: true, hardware: 3 }),
    ];
    let made = all.iter().filter_map(|(gre, header)| {
        let mut body = Vec::new();
        gre.put(&mut body, &[header, p]);
        build::ip_packet(ROUTER, PEER, THERE.into(), HERE.into(), packet::ipproto::GRE, 64, &body)
    });
    made.collect()
}

fn v6(n: u16) -> IpAddr {
    IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n])
}

/// A packet in two fragments.
fn fragments(p: &[u8]) -> (Vec<u8>, Vec<u8>) {
    const FIRST: usize = 800;
    let version4 = p[12] == 8;
    let head = 14 + if version4 { 20 } else { 40 };
    let one = |body: &[u8], offset: u16, more: bool| {
        let mut f = p[..head].to_vec();
        if version4 {
            f[16..18].copy_from_slice(&(20 + body.len() as u16).to_be_bytes());
            f[20..22].copy_from_slice(&((offset / 8) | (u16::from(more) << 13)).to_be_bytes());
        } else {
            f[18..20].copy_from_slice(&(8 + body.len() as u16).to_be_bytes());
            let next = std::mem::replace(&mut f[20], 44);
            f.extend_from_slice(&[next, 0]);
            f.extend_from_slice(&(offset | u16::from(more)).to_be_bytes());
            f.extend_from_slice(&[0, 0, 0, 7]);
        }
        f.extend_from_slice(body);
        f
    };
    (one(&p[head..head + FIRST], 0, true), one(&p[head + FIRST..], FIRST as u16, false))
}
