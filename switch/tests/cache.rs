//! The flow cache is invisible: with it and without it, the same packets, events, counters and connections, whatever
//! changes underneath.

use openflow_rs::text::{parse_flow, parse_group, parse_meter};
use openflow_rs::*;
use packet::build;
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::Duration;
use switch::{Egress, Lane, Outputs, Port, PortKind, Route, Switch, TunnelConfig, TunnelKind, VlanMode};

const VIF: packet::Mac = [2, 0, 0, 0, 0, 0xa];
const ROUTER: packet::Mac = [2, 0, 0, 0, 0, 1];
const PEER: packet::Mac = [2, 0, 0, 0, 0, 0xc];

/// A gateway: br-int (0) with three ports and a tunnel, br-ex (1) with the uplink, a local port and NORMAL.
const FLOWS: &[&str] = &[
    "table=0,priority=9,in_port=1,tcp,tp_dst=81 actions=drop",
    "table=0,priority=9,in_port=1,udp,tp_dst=82 actions=learn(table=30,idle_timeout=9,eth_type=0x800,NXM_OF_IP_SRC[],load:1->NXM_NX_REG5[]),output:2",
    "table=0,priority=9,in_port=1,udp,tp_dst=83 actions=controller,output:3",
    "table=0,priority=9,in_port=1,udp,tp_dst=84 actions=meter:1,output:3",
    "table=0,priority=9,in_port=1,udp,tp_dst=85 actions=check_pkt_larger(90)->NXM_NX_REG4[0],resubmit(,31)",
    "table=31,reg4=0x1 actions=output:2",
    "table=31,priority=2,reg4=0 actions=output:3",
    "table=0,priority=9,in_port=1,udp,tp_dst=86 actions=group:1",
    "table=0,priority=9,in_port=1,udp,tp_dst=87 actions=group:2",
    "table=0,priority=9,in_port=1,udp,tp_dst=88 actions=set_queue:6,push_vlan:0x8100,set_field:4101->vlan_vid,output:2,pop_vlan,clone(set_queue:0,set_field:9.9.9.9->ip_src,output:3),dec_ttl,output:2,pop_queue,output:3",
    "table=0,priority=9,in_port=1,udp,tp_dst=89 actions=set_queue:61439,set_field:0x1234->tun_id,set_field:0x8002->tun_metadata0,set_field:192.168.0.2->tun_dst,output:10,output:11",
    "table=0,priority=9,in_port=1,udp,tp_dst=90 actions=ct(commit,zone=21,nat(src=172.16.0.9),table=32)",
    "table=32,ip actions=ct(zone=21,nat,table=33)",
    "table=33,ct_state=+snat actions=output:2",
    "table=0,priority=7,in_port=11,ip,tun_id=0x1234 actions=dec_ttl,output:2,set_field:10.0.0.99->ip_src,output:3",
    "table=0,priority=7,in_port=3,ip,dl_vlan=5 actions=set_field:02:00:00:00:00:0e->eth_dst,dec_ttl,set_field:4102->vlan_vid,output:2,pop_vlan,output:1",
    "table=0,priority=8,in_port=1,ip actions=set_field:0x5->reg1,ct(table=1,zone=7,nat)",
    "table=0,priority=8,in_port=1,ipv6 actions=ct(table=1,zone=7)",
    "table=1,priority=1,ip,ct_state=+trk-inv actions=set_field:02:00:00:00:00:0c->eth_dst,dec_ttl,ct(commit,table=2,zone=NXM_NX_REG1[0..15],nat(src=172.16.0.1),exec(set_field:0x3->ct_mark))",
    "table=1,priority=3,ipv6,ct_state=+trk-inv actions=dec_ttl,ct(commit,table=2,zone=9)",
    "table=2,ip,ct_mark=0x3,ct_state=+snat actions=ct(table=3,zone=8)",
    "table=2,priority=1,ct_state=+trk,ip actions=ct(table=3,zone=8)",
    "table=2,priority=1,ct_state=+trk,ipv6 actions=ct(table=3,zone=8)",
    "table=3 actions=output:20",
    "table=0,priority=8,in_port=20,ip actions=ct(table=4,zone=5,nat)",
    "table=0,priority=8,in_port=20,ipv6 actions=ct(table=5,zone=9)",
    "table=4,ip,ct_state=+est+rpl actions=ct(table=5,zone=7)",
    "table=4,priority=5,ct_state=+rel actions=output:1",
    "table=5,ct_state=-inv actions=set_field:02:00:00:00:00:0a->eth_dst,output:1",
    "table=0,priority=8,in_port=10,tun_id=0x1234,tun_metadata0=0x8002,ip actions=ct(table=6,zone=12,commit)",
    "table=0,priority=8,in_port=10,tun_id=0x1234,tun_metadata0=0x8002,ipv6 actions=ct(table=6,zone=12,commit)",
    "table=6,ip actions=output:3",
    "table=0,priority=1,arp actions=FLOOD",
    "table=0,priority=7,in_port=2,ip actions=ct(table=3,zone=7,commit)",
    "table=0,priority=7,in_port=2,ipv6 actions=ct(table=3,zone=7,commit)",
    "table=0,priority=6,in_port=3,tcp_flags=+psh actions=output:1",
    "table=0,priority=8,in_port=3,udp,vlan_tci=0 actions=resubmit(,40)",
    "table=40,priority=5,udp,nw_dst=10.9.0.0/31 actions=dec_ttl,set_field:02:00:00:00:00:0e->eth_dst,output:2",
    "table=40,priority=4,udp,tp_src=1001 actions=move:NXM_OF_UDP_DST[]->NXM_NX_REG3[0..15],resubmit(,41)",
    "table=40,priority=3,udp actions=push:NXM_NX_REG3[],set_field:9.9.9.8->ip_src,pop:NXM_NX_REG4[],output:20",
    "table=41,priority=9,reg3=82 actions=push_vlan:0x8100,set_field:4103->vlan_vid,output:1,pop_vlan,output:2",
    "table=41,priority=0 actions=set_field:0x1234->tun_id,set_field:0x8002->tun_metadata0,set_field:192.168.0.2->tun_dst,output:10",
    "table=0,priority=5,in_port=3,tcp actions=output:2",
];

fn ip(s: &str) -> IpAddr {
    s.parse().expect("address")
}

fn flow(s: &mut Switch, bridge: usize, text: &str, now: Duration) {
    s.apply(bridge, &Message::FlowMod(parse_flow(text).expect("flow")), now).expect("flow applies");
}

fn gateway(cache: bool) -> Switch {
    let now = Duration::from_secs(1);
    let mut s = Switch::new(40);
    s.set_cache(cache);
    let (int, ex) = (s.add_bridge("br-int", 1), s.add_bridge("br-ex", 2));
    let tunnel = |kind, csum| {
        let mut c = TunnelConfig::new(kind, None);
        c.csum = csum;
        PortKind::Tunnel(Box::new(c))
    };
    let ports = [
        (int, 1, "p1", PortKind::Device(1)),
        (int, 2, "p2", PortKind::Device(2)),
        (int, 3, "p3", PortKind::Device(3)),
        (int, 10, "gnv", tunnel(TunnelKind::Geneve, true)),
        (int, 11, "vxl", tunnel(TunnelKind::Vxlan, false)),
        (int, 20, "int-ex", PortKind::Patch("ex-int".into())),
        (ex, 1, "ex-int", PortKind::Patch("int-ex".into())),
        (ex, 2, "eth0", PortKind::Device(50)),
        (ex, 3, "eth1", PortKind::Device(51)),
        (ex, 0xfffe, "br-ex", PortKind::Internal(60)),
    ];
    for (b, no, name, kind) in ports {
        let mut p = Port::new(PortNo(no), name, kind);
        if name == "eth1" {
            p.vlan = VlanMode::Access(7);
        }
        s.add_port(b, p).expect("port");
    }
    let tlv = openflow_rs::message::TlvMap { class: 0x102, kind: 0x80, len: 4, index: 0 };
    s.apply(int, &Message::TlvTableMod(openflow_rs::message::TlvTableMod { command: 0, maps: vec![tlv] }), now)
        .expect("option");
    for g in [
        "group_id=1,type=select,selection_method=dp_hash,bucket=bucket_id:0,weight:100,actions=output:2,bucket=bucket_id:1,weight:100,actions=output:3",
        "group_id=2,type=ff,bucket=bucket_id:0,watch_port:2,actions=output:2,bucket=bucket_id:1,watch_port:3,actions=output:3",
    ] {
        let g = GroupMod::new(GroupModCommand::Add, parse_group(g).expect("group"));
        s.apply(int, &Message::GroupMod(g), now).expect("group");
    }
    let meter = parse_meter("meter=1 pktps stats bands=type=drop rate=2").expect("meter");
    s.apply(int, &Message::MeterMod(MeterMod { command: MeterModCommand::Add, meter }), now).expect("meter");
    FLOWS.iter().for_each(|f| flow(&mut s, int, f, now));
    flow(&mut s, ex, "actions=NORMAL", now);
    s.underlay.set_routes(vec![Route {
        prefix: ip("192.168.0.0"),
        len: 24,
        gateway: None,
        source: ip("192.168.0.1"),
        source_mac: ROUTER,
        egress: Egress::Bridge("br-ex".into()),
        own: false,
    }]);
    s.underlay.set_neighbour(ip("192.168.0.2"), Some(PEER));
    s
}

#[derive(Clone, Debug)]
enum Op {
    Udp {
        src: u8,
        dport: u16,
        len: usize,
    },
    Tcp {
        src: u8,
        flags: u8,
        dport: u16,
    },
    Tcp6 {
        flags: u8,
    },
    Echo {
        id: u16,
        reply: bool,
    },
    /// The answer to the last packet out of the uplink, with these TCP flags.
    Answer {
        flags: u8,
    },
    Error,
    /// A frame of an unusual shape: tagged once, twice, with IP options, padded, in VXLAN, tagged within; TCP instead of UDP.
    Shaped {
        shape: u8,
        tcp: bool,
        sport: u16,
    },
    /// The last packet again, here or with the inner ports of another flow.
    Tunnelled {
        vni: u32,
        sport: u16,
        len: usize,
    },
    Plain {
        device: u32,
        flags: u8,
    },
    /// Packets of which some are alike in what decides.
    Alike {
        sport: u16,
        dst: u8,
        dport: u16,
        ttl: u8,
        /// It says already what flows write.
        written: bool,
    },
    Arp,
    Later(u64),
    Flush(u16),
    Port(u16, bool),
    Rule(u8, bool),
    Neighbour(bool),
    Mark(u32),
    /// A flow like others but for table, match and priority.
    Flow {
        table: u8,
        matches: usize,
        high: bool,
        actions: usize,
        add: bool,
    },
    /// All flows are taken out and put in again, one of them perhaps with other actions.
    Replace(Option<usize>),
    /// The buckets of a group change.
    Group(u32, bool),
    /// A bridge's mirror becomes this one, or none: (bridge, all ports, received rather than sent, cut short).
    Mirror(usize, Option<(bool, bool, bool)>),
    /// So many tags count.
    Tags(usize),
    /// The ports of the other bridge are a bond: (spread, which is active, whether both take), or are none.
    Bond(Option<(u8, bool, bool)>),
}

/// Matches of [`Op::Flow`], some of which are parts of conjunctions.
const MATCHES: &[&str] = &[
    "",
    "udp,tp_dst=80",
    "udp,tp_dst=84/0xfffc",
    "ip,nw_src=10.0.0.1",
    "ip,ct_state=+trk+est",
    "ip,nw_ttl=64",
    "tcp,tcp_flags=+ack",
    "in_port=20",
    "ip,nw_src=10.0.0.2,conj=1/2",
    "udp,tp_dst=80,conj=2/2",
    "ip,conj_id=7",
    "vlan_tci=0/0x1000,ipv6",
    "udp,tp_src=1002",
    "ip,nw_dst=10.9.0.2",
];

fn changed_flow(table: u8, matches: usize, high: bool, actions: usize, add: bool) -> FlowMod {
    let list = ["drop", "output:2", "set_field:2->nw_ttl,output:3", "resubmit(,3)"];
    let text = MATCHES.get(matches).expect("match");
    let (text, actions) = match text.split_once(",conj=") {
        Some((m, clause)) => (m, format!("conjunction(7,{clause})")),
        None => (
            *text,
            list.get(actions).filter(|a| text.contains("ip") || !a.contains("ttl")).unwrap_or(&"drop").to_string(),
        ),
    };
    // No two that overlap have the same priority: which of them wins is not said anywhere. Parts of a conjunction share theirs.
    let number = if actions.starts_with("conj") { 8 } else { matches };
    let priority = number + if high { 60 } else { 10 };
    let comma = if text.is_empty() { "" } else { "," };
    let text = format!("table={table},priority={priority}{comma}{text} actions={actions}");
    let mut m = parse_flow(&text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    m.command = if add { FlowModCommand::Add } else { FlowModCommand::DeleteStrict };
    m
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let flags = || prop_oneof![Just(2u8), Just(0x10), Just(0x18), Just(0x10), Just(0x11), Just(4), Just(0x12)];
    let op = prop_oneof![
        8 => (1u8..3, 80u16..91, prop_oneof![Just(20usize), Just(60)]).prop_map(|(src, dport, len)| Op::Udp { src, dport, len }),
        8 => (1u8..3, flags(), 80u16..82).prop_map(|(src, flags, dport)| Op::Tcp { src, flags, dport }),
        3 => flags().prop_map(|flags| Op::Tcp6 { flags }),
        6 => (0u8..8, any::<bool>(), 1u16..4).prop_map(|(shape, tcp, sport)| Op::Shaped { shape, tcp, sport }),
        3 => (1u16..3, any::<bool>()).prop_map(|(id, reply)| Op::Echo { id, reply }),
        12 => flags().prop_map(|flags| Op::Answer { flags }),
        1 => Just(Op::Error),
        4 => (0x1233u32..0x1235, 1u16..3, 0usize..9).prop_map(|(vni, sport, len)| Op::Tunnelled { vni, sport, len }),
        3 => (prop_oneof![Just(2u32), Just(3), Just(50), Just(51), Just(60), Just(99)], flags()).prop_map(|(device, flags)| Op::Plain { device, flags }),
        9 => (1000u16..1003, 0u8..3, 80u16..84, prop_oneof![Just(64u8), Just(64), Just(1)], any::<bool>())
            .prop_map(|(sport, dst, dport, ttl, written)| Op::Alike { sport, dst, dport, ttl, written }),
        1 => Just(Op::Arp),
        2 => (1u64..40).prop_map(Op::Later),
        1 => (5u16..10).prop_map(Op::Flush),
        1 => (2u16..4, any::<bool>()).prop_map(|(p, up)| Op::Port(p, up)),
        1 => (0u8..4, any::<bool>()).prop_map(|(n, add)| Op::Rule(n, add)),
        1 => any::<bool>().prop_map(Op::Neighbour),
        1 => (3u32..5).prop_map(Op::Mark),
        4 => (prop_oneof![Just(0u8), Just(1), Just(2), Just(3), Just(5), Just(30), Just(31), Just(40), Just(41)], 0..MATCHES.len(), any::<bool>(), 0usize..4, any::<bool>())
            .prop_map(|(table, matches, high, actions, add)| Op::Flow { table, matches, high, actions, add }),
        1 => prop_oneof![Just(None), (0..FLOWS.len()).prop_map(Some)].prop_map(Op::Replace),
        1 => (1u32..3, any::<bool>()).prop_map(|(g, swap)| Op::Group(g, swap)),
        1 => (0usize..2, proptest::option::of(any::<(bool, bool, bool)>())).prop_map(|(b, m)| Op::Mirror(b, m)),
        1 => (1usize..3).prop_map(Op::Tags),
        2 => proptest::option::of((0u8..3, any::<bool>(), any::<bool>())).prop_map(Op::Bond),
    ];
    // Each is repeated, as packets of a flow are.
    proptest::collection::vec((op, 1usize..4), 1..60)
        .prop_map(|v| v.into_iter().flat_map(|(o, n)| std::iter::repeat_n(o, n)).collect())
}

fn tcp(eth: (packet::Mac, packet::Mac), src: (IpAddr, u16), dst: (IpAddr, u16), flags: u8) -> Vec<u8> {
    let mut b = [src.1.to_be_bytes(), dst.1.to_be_bytes()].concat();
    b.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0, 9, 0, 0, 0, 0, 1, 2, 3]);
    build::ip_packet(eth.0, eth.1, src.0, dst.0, 6, 64, &b).expect("tcp")
}

/// The packet that answers `p`, from the peer.
fn answer(p: &[u8], flags: u8) -> Option<Vec<u8>> {
    let h = packet::Headers::parse(p)?;
    let mut q = p.to_vec();
    let (l3, l4) = (h.l3, h.l4?);
    let n = if h.is_ipv4() { 4 } else { 16 };
    let at = if h.is_ipv4() { l3 + 12 } else { l3 + 8 };
    q[at..at + n].copy_from_slice(&p[at + n..at + 2 * n]);
    q[at + n..at + 2 * n].copy_from_slice(&p[at..at + n]);
    match h.proto {
        1 => q[l4] = 0,
        6 | 17 => {
            q[l4..l4 + 2].copy_from_slice(&p[l4 + 2..l4 + 4]);
            q[l4 + 2..l4 + 4].copy_from_slice(&p[l4..l4 + 2]);
            if h.proto == 6 {
                q[l4 + 13] = flags;
            }
        }
        _ => {}
    }
    q[..6].copy_from_slice(&VIF);
    q[6..12].copy_from_slice(&PEER);
    packet::checksum::set_l4(&mut q, &h);
    Some(q)
}

fn tunnelled(vni: u32, sport: u16, len: usize) -> Vec<u8> {
    let inner = build::udp(VIF, PEER, (ip("10.0.0.77"), sport), (ip("10.0.0.1"), 9), 64, &vec![3; len]).expect("inner");
    let mut body = Vec::new();
    packet::tunnel::Geneve::put(&mut body, vni, false, &[(0x102, 0x80, vec![0, 0, 0x80, 2])]);
    body.extend_from_slice(&inner);
    let mut p =
        build::udp(ROUTER, PEER, (ip("192.168.0.2"), 5000), (ip("192.168.0.1"), 6081), 64, &body).expect("outer");
    // Ethernet padding is not the inner frame's.
    p.resize(p.len() + len % 3, 0);
    p
}

/// Puts a tag in.
fn tag(p: &mut Vec<u8>, tpid: u16, tci: u16) {
    let [a, b] = tpid.to_be_bytes();
    let [c, d] = tci.to_be_bytes();
    p.splice(12..12, [a, b, c, d]);
}

/// Frames that keys are made of in several ways.
fn shaped(shape: u8, is_tcp: bool, sport: u16) -> (u32, Vec<u8>) {
    let (src, dst) = ((ip("10.0.0.1"), 1000 + sport), (ip("8.8.8.8"), 88));
    let eth = (ROUTER, VIF);
    let mut p =
        if is_tcp { tcp(eth, src, dst, 0x10) } else { build::udp(eth.0, eth.1, src, dst, 64, &[7; 30]).expect("udp") };
    match shape {
        0 => tag(&mut p, 0x8100, 5),
        1 => {
            tag(&mut p, 0x8100, 6);
            tag(&mut p, 0x88a8, 5);
        }
        // An option that does nothing (RFC 791), four times.
        2 => {
            p.splice(34..34, [1; 4]);
            p[14] = 0x46;
            let total = (p.len() - 14) as u16;
            p[16..18].copy_from_slice(&total.to_be_bytes());
            packet::checksum::set_ipv4(&mut p, 14);
        }
        3 => p.resize(p.len() + usize::from(sport), 0),
        4 | 5 => {
            if shape == 5 {
                tag(&mut p, 0x8100, 5);
            }
            let mut body = Vec::new();
            packet::tunnel::put_vxlan(&mut body, 0x1234);
            body.extend_from_slice(&p);
            let (from, to) = ((ip("192.168.0.2"), 5000), (ip("192.168.0.1"), 4789));
            return (50, build::udp(ROUTER, PEER, from, to, 64, &body).expect("outer"));
        }
        // A tag with a priority, and no VLAN.
        6 => tag(&mut p, 0x8100, 0xa000),
        // Cut short.
        _ => p.truncate(44),
    }
    (if shape < 2 { 3 } else { 1 }, p)
}

/// The packet of an operation, and the device that it comes from; none: it is no packet.
fn packet(op: &Op, last: &[u8]) -> Option<(u32, Vec<u8>)> {
    let eth = (ROUTER, VIF);
    let host = |n: u8| IpAddr::from([10, 0, 0, n]);
    Some(match op {
        Op::Udp { src, dport, len } => {
            let p = build::udp(ROUTER, VIF, (host(*src), 1000), (ip("8.8.8.8"), *dport), 64, &vec![7; *len]);
            (1, p.expect("udp"))
        }
        Op::Tcp { src, flags, dport } => (1, tcp(eth, (host(*src), 1000), (ip("8.8.8.8"), *dport), *flags)),
        Op::Tcp6 { flags } => (1, tcp(eth, (ip("fd00::1"), 1), (ip("fd00::2"), 80), *flags)),
        Op::Echo { id, reply } => {
            let b = [if *reply { 0 } else { 8 }, 0, 0, 0, 0, *id as u8, 0, 1];
            (1, build::ip_packet(ROUTER, VIF, host(1), ip("8.8.8.8"), 1, 64, &b).expect("icmp"))
        }
        Op::Answer { flags } => (50, answer(last, *flags)?),
        Op::Error => (50, build::icmp_error(last, PEER, ip("9.9.9.9"), 3, 1, 0)?),
        Op::Shaped { shape, tcp, sport } => shaped(*shape, *tcp, *sport),
        Op::Tunnelled { vni, sport, len } => (50, tunnelled(*vni, *sport, *len)),
        Op::Plain { device, flags } => (*device, tcp((PEER, ROUTER), (host(5), 7), (host(6), 8), *flags)),
        Op::Alike { sport, dst, dport, ttl, written } => {
            let to = if *written { [2, 0, 0, 0, 0, 0xe] } else { ROUTER };
            let ends = ((host(7), *sport), (IpAddr::from([10, 9, 0, *dst]), *dport));
            (3, build::udp(to, VIF, ends.0, ends.1, *ttl, &[7; 20]).expect("udp"))
        }
        Op::Arp => (1, build::arp_request(VIF, [10, 0, 0, 1].into(), [10, 0, 0, 2].into())),
        _ => return None,
    })
}

/// A switch, and perhaps a lane that repeats its flows.
struct Rig {
    switch: Switch,
    lane: Option<Lane>,
    seen: u64,
}

impl Rig {
    fn new(cache: bool) -> Rig {
        Rig { switch: gateway(cache), lane: None, seen: 0 }
    }

    /// Without the cache, so that every packet walks.
    fn guided() -> Rig {
        let mut r = Rig::new(false);
        r.switch.set_guides(true);
        r
    }

    fn with_lane() -> Rig {
        let mut r = Rig::new(true);
        r.lane = Some(r.switch.lane());
        r
    }

    /// Packets whose flow was not where it was looked for first.
    fn searched(&self) -> u64 {
        self.switch.cache_stats().searched + self.lane.as_ref().map_or(0, |l| l.stats().searched)
    }

    /// A packet comes in, through the lane if there is one.
    fn take(&mut self, p: (u32, Vec<u8>), now: Duration, out: &mut Outputs<Vec<u8>>) {
        let Rig { switch, lane, seen } = self;
        let Some(lane) = lane else { return switch.process(&mut vec![p], now, out) };
        switch.view(seen).into_iter().for_each(|v| lane.look(v));
        let (mut missed, mut flows) = (Vec::new(), Vec::new());
        lane.process(&mut vec![p], now, out, &mut missed);
        lane.sums().into_iter().for_each(|sums| switch.settle_sums(sums, now));
        switch.walk_for(missed, now, out, &mut flows);
        flows.into_iter().for_each(|f| lane.learn(f, now));
    }
}

impl std::ops::Deref for Rig {
    type Target = Switch;

    fn deref(&self) -> &Switch {
        &self.switch
    }
}

impl std::ops::DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Switch {
        &mut self.switch
    }
}

/// Lets packets come in together, or one by one at the same time.
fn arrive(s: &mut Rig, mut packets: Vec<(u32, Vec<u8>)>, together: bool, now: Duration, last: &mut Vec<u8>) -> String {
    let mut out = Outputs::default();
    if together {
        s.process(&mut packets, now, &mut out);
    } else {
        packets.into_iter().for_each(|p| s.take(p, now, &mut out));
    }
    if let Some((_, p)) = out.packets.iter().rfind(|(d, _)| *d == 50) {
        last.clone_from(p);
    }
    format!("{:x?} {:?}", out.packets, out.events)
}

/// Applies one operation; what can be seen of it comes back.
fn step(s: &mut Rig, op: &Op, now: &mut Duration, last: &mut Vec<u8>) -> String {
    match op {
        Op::Later(n) => {
            *now += Duration::from_secs(*n);
            let mut out: Outputs<Vec<u8>> = Outputs::default();
            s.tick(*now, &mut out);
            format!("{:?}", out.events)
        }
        Op::Flush(z) => format!("{:?}", s.apply(0, &Message::CtFlushZone(*z), *now)),
        Op::Port(p, up) => {
            s.set_live(0, PortNo(*p), *up);
            String::new()
        }
        Op::Rule(n, add) => {
            let f = ["in_port=1,udp", "table=3,udp", "table=5,tcp", "in_port=20,icmp"][usize::from(*n)];
            let mut m = parse_flow(&format!("priority=40,{f},actions=output:3")).expect("flow");
            m.command = if *add { FlowModCommand::Add } else { FlowModCommand::DeleteStrict };
            format!("{:?}", s.apply(0, &Message::FlowMod(m), *now))
        }
        Op::Mirror(bridge, which) => {
            let mirror = which.map(|(all, received, short)| {
                let ports = (1..60).map(PortNo).filter(|p| p.0 != 3).collect::<std::collections::BTreeSet<_>>();
                let (sources, destinations) =
                    if received { (ports, Default::default()) } else { (Default::default(), ports) };
                let snaplen = short.then_some(40);
                let output = switch::MirrorOutput::Port(PortNo(3));
                switch::Mirror {
                    name: "m".into(),
                    all,
                    sources,
                    destinations,
                    vlans: Default::default(),
                    output,
                    snaplen,
                }
            });
            s.bridge_mut(*bridge).expect("bridge").set_mirrors(mirror.into_iter().collect());
            String::new()
        }
        Op::Tags(n) => {
            s.underlay.set_tags(*n);
            String::new()
        }
        Op::Bond(None) => {
            s.remove_bond(1, "b");
            String::new()
        }
        Op::Bond(Some((spread, second, both))) => {
            let members = vec![PortNo(2), PortNo(3)];
            let active = Some(PortNo(2 + u16::from(*second)));
            let sent = s.take_bond_bytes(1, "b");
            let bond = switch::Bond {
                name: "b".into(),
                spread: [switch::Spread::Active, switch::Spread::Source, switch::Spread::Transport]
                    [usize::from(*spread)],
                basis: 0,
                active,
                takes: if *both { members.clone() } else { active.into_iter().collect() },
                buckets: (0..switch::bond::BUCKETS)
                    .map(|n| if *both { members.get(n % 2).copied() } else { active })
                    .collect(),
                lacp: *both,
                all_active: false,
                reflects: *spread == 1,
                members,
            };
            s.set_bond(1, bond);
            format!("{sent:?}")
        }
        Op::Neighbour(known) => {
            s.underlay.set_neighbour(ip("192.168.0.2"), known.then_some(PEER));
            String::new()
        }
        Op::Mark(m) => {
            flow(
                s,
                0,
                &format!(
                    "table=1,priority=2,udp,ct_state=+trk-inv actions=ct(commit,table=2,zone=5,nat(src=172.16.0.1),exec(set_field:{m}->ct_mark))"
                ),
                *now,
            );
            String::new()
        }
        Op::Flow { table, matches, high, actions, add } => {
            let m = changed_flow(*table, *matches, *high, *actions, *add);
            format!("{:?}", s.apply(0, &Message::FlowMod(m), *now))
        }
        Op::Replace(other) => {
            let mut list: Vec<FlowMod> = s.bridge(0).expect("bridge").flows().map(|r| r.to_flow_mod()).collect();
            list.sort_by_key(|f| (f.table, f.priority, f.matches.clone()));
            let conj = |f: &FlowMod| f.actions.iter().any(|a| matches!(a, action::Action::Conjunction { .. }));
            if let Some(f) = other.and_then(|n| list.get_mut(n)).filter(|f| !conj(f)) {
                f.actions = parse_flow("actions=output:3").expect("flow").actions;
            }
            let all = FlowMod { command: FlowModCommand::Delete, table: 0xff, ..Default::default() };
            let list: Vec<Message> = std::iter::once(all).chain(list).map(Message::FlowMod).collect();
            format!("{:?}", s.apply_bundle(0, &list, *now))
        }
        Op::Group(n, swap) => {
            let (a, b) = if *swap { (3, 2) } else { (2, 3) };
            let kind = if *n == 1 { "select,selection_method=dp_hash" } else { "ff" };
            let text = format!(
                "group_id={n},type={kind},bucket=bucket_id:0,watch_port:{a},actions=output:{a},bucket=bucket_id:1,watch_port:{b},actions=output:{b}"
            );
            let g = GroupMod::new(GroupModCommand::Modify, parse_group(&text).expect("group"));
            format!("{:?}", s.apply(0, &Message::GroupMod(g), *now))
        }
        op => {
            *now += Duration::from_millis(7);
            let Some(p) = packet(op, last) else { return String::new() };
            arrive(s, vec![p], false, *now, last)
        }
    }
}

/// Everything else that can be seen.
fn state(s: &Switch) -> String {
    let mut v = vec![format!("{:?} {}", s.drops, s.samples)];
    for b in (0..2).filter_map(|i| s.bridge(i)) {
        v.extend(b.flows().map(|r| format!("{} {} {} {:?}", r.table, r.priority, r.matches, r.counters())));
        v.extend(b.ports.values().map(|p| format!("{} {:?}", p.name, p.stats)));
        v.extend(b.groups().map(|g| format!("{:?}", g.buckets)));
        v.extend(b.meters().map(|m| format!("{} {:?}", m.packets, m.dropped)));
        v.extend(b.table_stats.iter().enumerate().filter(|(_, t)| t.0 != 0).map(|t| format!("{t:?}")));
        v.extend(b.macs.iter().map(|m| format!("{m:?}")));
    }
    v.extend(s.conntrack.export().map(|c| format!("{c:?}")));
    v.sort();
    v.join("\n")
}

/// After each operation, what can be seen is what it is without a flow cache.
fn equals_translation(mut with: Rig, list: &[Op]) -> Result<(), TestCaseError> {
    let mut without = Rig::new(false);
    let mut now = [Duration::from_secs(10); 2];
    let mut last = [Vec::new(), Vec::new()];
    for op in list {
        let a = step(&mut with, op, &mut now[0], &mut last[0]);
        let b = step(&mut without, op, &mut now[1], &mut last[1]);
        prop_assert_eq!(a, b, "after {:?}", op);
        prop_assert_eq!(state(&with), state(&without), "after {:?}", op);
    }
    Ok(())
}

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
        equals_translation(Rig::guided(), &list)?;
    }
}

/// The test above would also hold if nothing were ever guided: a packet of another port needs no search, until a table changes.
#[test]
fn packets_alike_need_no_search() {
    let mut s = Rig::guided();
    let (mut now, mut last) = (Duration::from_secs(10), Vec::new());
    let lookups = |s: &Rig| -> u64 { s.bridges().flat_map(|(_, b)| &b.table_stats).map(|t| t.0).sum() };
    let mut send = |s: &mut Rig, src| {
        let before = (lookups(s), s.cache_stats().guided);
        step(s, &Op::Udp { src, dport: 80, len: 20 }, &mut now, &mut last);
        (lookups(s) - before.0, s.cache_stats().guided - before.1)
    };
    let (all, none) = send(&mut s, 1);
    assert!(all > 2 && none == 0, "{all} lookups, {none} of them guided");
    assert_eq!(send(&mut s, 2), (all, all), "another source port");
    flow(&mut s, 0, "table=77,ip actions=drop", Duration::from_secs(10));
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
    /// Packets that come in together are served as if each came alone, also where one changes what the next depends on.
    #[test]
    fn bursts_equal_translation_one_by_one(list in ops(), size in 2usize..40) {
        let (mut with, mut without) = (Rig::new(true), Rig::new(false));
        let mut now = [Duration::from_secs(10); 2];
        let mut last = [Vec::new(), Vec::new()];
        for ops in list.chunks(size) {
            let [a, b] = [&last[0], &last[1]].map(|l| ops.iter().filter_map(|o| packet(o, l)).collect::<Vec<_>>());
            let a = arrive(&mut with, a, true, now[0], &mut last[0]);
            let b = arrive(&mut without, b, false, now[1], &mut last[1]);
            prop_assert_eq!(a, b, "after {:?}", ops);
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
        let before = s.cache_stats().hits;
        play(&mut s, round);
        assert_eq!(s.cache_stats().hits - before, round.len() as u64, "{name}, lane: {lane}: {:?}", s.cache_stats());
    }
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
                    packet::tunnel::put_vxlan(&mut body, 0x77);
                    body.extend_from_slice(&p);
                    p = build::udp(ROUTER, PEER, (ip("192.168.0.2"), 5000 + n), (ip("192.168.0.1"), 4789), 64, &body)
                        .expect("outer");
                }
                s.take((device, p), now, &mut Outputs::default());
            }
            s.cache_stats().misses - before
        };
        flow(&mut s, 0, "table=0,priority=50,in_port=2 actions=resubmit(,70)", now);
        flow(&mut s, 0, "table=0,priority=50,in_port=11,tun_id=0x77 actions=set_field:5->reg1,output:2", now);
        flow(
            &mut s,
            0,
            "table=70,ip actions=push_vlan:0x8100,set_field:4101->vlan_vid,set_field:0x77->tun_id,set_field:192.168.0.2->tun_dst,output:10,output:3",
            now,
        );
        assert!(walks(&mut s, 2, false) <= 2, "{name}: plain packets into a tunnel and to a port");
        assert!(walks(&mut s, 50, true) <= 2, "{name}: packets out of a tunnel");
        flow(&mut s, 0, "table=70,priority=40000,udp,tp_dst=2007 actions=drop", now);
        let few = walks(&mut s, 2, false);
        assert!((2..40).contains(&few), "{name}: {few} walks as a port decides");
        flow(&mut s, 0, "table=70,priority=50000,udp actions=ct(table=71)", now);
        assert!(walks(&mut s, 2, false) == 50, "{name}: connections are one by one");
    }
}

/// A flow that will not serve again is not in the way of the one that does: packets that were flooded until an address was learned
/// are found at once afterwards.
#[test]
fn flows_that_are_over_are_not_found_first() {
    for (name, mut s) in [("switch", Rig::new(true)), ("lane", Rig::with_lane())] {
        let now = Duration::from_secs(10);
        for port in [2, 3] {
            flow(&mut s, 0, &format!("table=0,priority=60,in_port={port} actions=NORMAL"), now);
        }
        let there = [2, 0, 0, 0, 0, 0x77];
        let searched = |s: &mut Rig, packets: u16| {
            let before = s.searched();
            for n in 0..packets {
                let ends = ((ip("10.0.0.9"), 1000 + n), (ip("9.9.9.9"), 53));
                let p = build::udp(there, VIF, ends.0, ends.1, 64, &[7; 20]).expect("udp");
                s.take((2, p), now, &mut Outputs::default());
            }
            s.searched() - before
        };
        assert!(searched(&mut s, 20) > 0, "{name}: the first packet has no flow");
        let answer = build::udp(VIF, there, (ip("9.9.9.9"), 53), (ip("10.0.0.9"), 1), 64, &[7; 20]).expect("udp");
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
    let mut replaced = gateway(false).bridge(0).expect("bridge").flows().map(|r| r.to_flow_mod()).collect::<Vec<_>>();
    replaced.insert(0, FlowMod { command: FlowModCommand::Delete, table: 0xff, ..Default::default() });
    let all: Vec<Message> = replaced.into_iter().map(Message::FlowMod).collect();
    let cases: [(&str, Vec<Message>, u64); 7] = [
        ("another table", vec![add("table=77,actions=drop")], 0),
        ("another protocol", vec![add("priority=99,tcp actions=drop")], 0),
        ("another port", vec![add("priority=99,udp,tp_dst=81 actions=drop")], 0),
        ("a lower priority", vec![add("priority=1,udp actions=drop")], 0),
        ("all flows again", all, 0),
        ("a bit that differs between flows of a path", vec![add("priority=99,udp,nw_src=10.0.0.3 actions=drop")], 2),
        ("the flows themselves", vec![add("priority=99,udp,nw_src=10.0.0.1,tp_dst=80 actions=output:3")], 2),
    ];
    for (name, list, stale) in cases {
        again(&mut s);
        s.apply_bundle(0, &list, Duration::from_secs(10)).expect(name);
        assert_eq!(again(&mut s), stale, "{name}");
    }
}
