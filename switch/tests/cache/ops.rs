//! What happens to it: packets, and changes underneath.

use super::cut::cut;
use super::gateway::*;
use openflow_rs::text::parse_flow;
use openflow_rs::*;
use packet::build;
use proptest::prelude::*;
use std::net::IpAddr;

#[derive(Clone, Debug)]
pub enum Op {
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
    /// A question of ICMP, of either version; its checksum is right, or not.
    Ping {
        src: u8,
        id: u16,
        v6: bool,
        right: bool,
    },
    /// A packet of SCTP, or of a protocol without ports; its header and checksum are right, or not.
    Bare {
        src: u8,
        proto: u8,
        v6: bool,
        port: u16,
        sum: Sum,
    },
    /// The answer to the last packet out of the uplink, with these TCP flags.
    Answer {
        flags: u8,
    },
    Error(IcmpError),
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
    /// A packet whose key is fields ([`odd`]), in a tunnel.
    Within {
        kind: u8,
        dst: u8,
        ttl: u8,
        /// The tunnel's virtual network, and its source port.
        vni: u32,
        sport: u16,
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
    /// A connection's first packet, or one more.
    Open {
        src: u8,
        sport: u16,
        dport: u16,
        ttl: u8,
        /// Its checksum is none: 0, or wrong.
        sum: Sum,
    },
    Arp,
    /// A packet whose key is fields ([`odd`]).
    Odd {
        kind: u8,
        dst: u8,
        ttl: u8,
        tagged: bool,
    },
    /// A fragment.
    Part(Datagram, usize),
    Later(u64),
    Flush(u16),
    /// A zone holds so many connections.
    Limit(u16, u32),
    Port(u16, bool),
    /// What a controller forbids a port.
    Config(u16, u32),
    Rule(u8, bool),
    Neighbour(bool),
    Mark(u32),
    /// A flow like others but for table, match and priority.
    Flow {
        table: TableId,
        matches: usize,
        high: bool,
        actions: usize,
        add: bool,
    },
    /// All flows are taken out and put in again, one of them perhaps with other actions.
    Replace(Option<usize>),
    /// The flows of a table are deleted.
    Forget(TableId),
    /// A meter has another rate, is gone, or there again.
    Meter(u32, u32, MeterModCommand),
    /// The buckets of a group change.
    Group(u32, bool),
    /// A bridge's mirror becomes this one, or none: (bridge, all ports, received rather than sent, cut short).
    Mirror(usize, Option<(bool, bool, bool, usize)>),
    /// So many tags count.
    Tags(usize),
    /// A frame of our own is sent by this port, or walks the tables, as all frames that are alike do: one of two lengths.
    Own(u16, bool),
    /// A port has a BFD session, for packets to an address, or has none.
    Session(u16, Option<u8>),
    /// A bridge's flows are counted for NetFlow, or are not.
    Netflow(usize, bool),
    /// The ports of the other bridge are a bond: (spread, which is active, whether both take), or are none.
    Bond(Option<(u8, bool, bool)>),
}

/// An ICMP error.
#[derive(Clone, Debug)]
pub struct IcmpError {
    /// Which type and code.
    pub message: usize,
    /// A host inside sends it about an answer to this port of its own; none: it comes by the uplink, about the last packet
    /// there.
    pub inside: Option<(u8, u16)>,
    /// The quoted packet was sent to whoever sends the error; false: a router between does.
    pub end: bool,
    pub wrong: Wrong,
}

/// What is wrong with an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    Checksum,
    /// It is for another than the sender of what it quotes.
    Receiver,
    /// It quotes a few bytes.
    Cut,
}

/// ICMP errors: types and codes of both versions.
const MESSAGES: [[(u8, u8); 2]; 4] = [[(3, 1), (1, 0)], [(3, 3), (1, 4)], [(3, 4), (2, 0)], [(11, 0), (3, 0)]];

/// Errors of all kinds, mostly right ones.
pub fn errors() -> impl Strategy<Value = Op> {
    let wrong = prop_oneof![
        9 => Just(Wrong::Nothing), 1 => Just(Wrong::Checksum), 1 => Just(Wrong::Receiver), 1 => Just(Wrong::Cut)
    ];
    let inside = proptest::option::of((1u8..4, prop_oneof![Just(98u16), Just(80), Just(103)]));
    (0..MESSAGES.len(), inside, any::<bool>(), wrong)
        .prop_map(|(message, inside, end, wrong)| Op::Error(IcmpError { message, inside, end, wrong }))
}

/// The frame of an error, and the device that it comes from.
fn error(e: &IcmpError, last: &[u8]) -> Option<(u32, Vec<u8>)> {
    let v6 = match e.inside {
        Some((_, port)) => port >= V6,
        None => !packet::Headers::parse(last)?.is_ipv4(),
    };
    let (kind, code) = MESSAGES.get(e.message)?[usize::from(v6)];
    let router = ip(if v6 { "2001::9:9" } else { "9.9.9.9" });
    let (device, mut p) = match e.inside {
        Some((n, port)) => {
            let near = if v6 { host6(n) } else { IpAddr::from([10, 0, 0, n]) };
            let far = ip(if v6 { "2001::8:8" } else { "8.8.8.8" });
            let about = build::udp(VIF, ROUTER, (far, port), (near, 1000), 63, &[7; 9])?;
            (1, build::icmp_error(&about, VIF, if e.end { near } else { router }, kind, code, 0)?)
        }
        None => {
            let (_, to) = packet::Headers::parse(last)?.addresses(last)?;
            let to = if v6 { IpAddr::from(to.to_be_bytes()) } else { IpAddr::from((to as u32).to_be_bytes()) };
            (50, build::icmp_error(last, PEER, if e.end { to } else { router }, kind, code, 0)?)
        }
    };
    let h = packet::Headers::parse(&p)?;
    let l4 = h.l4?;
    match e.wrong {
        Wrong::Nothing => {}
        Wrong::Checksum => p[l4 + 2] ^= 0x55,
        Wrong::Receiver => {
            let at = l4 + 8 + if v6 { 23 } else { 15 };
            p[at] ^= 1;
            packet::checksum::set_l4(&mut p, &h);
        }
        Wrong::Cut => {
            p.truncate(l4 + 8 + if v6 { 42 } else { 22 });
            let len = p.len() - h.l3;
            let (at, len) = if v6 { (h.l3 + 4, len - 40) } else { (h.l3 + 2, len) };
            p[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
            if !v6 {
                packet::checksum::set_ipv4(&mut p, h.l3);
            }
            let h = packet::Headers::parse(&p)?;
            packet::checksum::set_l4(&mut p, &h);
        }
    }
    Some((device, p))
}

/// A datagram in fragments.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// From a host, its answer from the uplink, from a tunnel, from another host.
    pub way: u8,
    pub proto: u8,
    pub v6: bool,
    pub src: u8,
    pub port: u16,
    /// TCP's flags.
    pub flags: u8,
    pub ttl: u8,
    pub parts: usize,
    /// Bytes of its payload in each fragment but the last.
    pub size: usize,
    pub id: u16,
    /// Its checksum is right.
    pub right: bool,
}

impl Datagram {
    /// The device that it comes from, and its fragments.
    fn cut(&self) -> (u32, Vec<Vec<u8>>) {
        let Datagram { way, proto, v6, src, port, flags, ttl, parts, size, id, right } = *self;
        let host = if v6 { host6(src) } else { IpAddr::from([10, 0, 0, src]) };
        let (far, own) = if v6 { (ip("2001::8:8"), host) } else { (ip("8.8.8.8"), ip("172.16.0.1")) };
        let (macs, ends) =
            if way == 1 { ((VIF, PEER), [(far, 80), (own, port)]) } else { ((ROUTER, VIF), [(host, port), (far, 80)]) };
        let [source, destination] = ends.map(|(_, port): (IpAddr, u16)| port.to_be_bytes());
        let mut body = match proto {
            6 => [&[0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0, 9, 0, 0, 0, 0][..]].concat(),
            17 => vec![0; 4],
            _ => Vec::new(),
        };
        let (question, answer) = if v6 { (128, 129) } else { (8, 0) };
        let head = match proto {
            1 | 58 => [[if way == 1 { answer } else { question }, 0], [0; 2], port.to_be_bytes(), [0, 1]].concat(),
            _ => [source, destination].concat(),
        };
        body.splice(0..0, head);
        body.resize(size * (parts - 1) + 13, id as u8);
        match proto {
            17 => {
                let n = body.len() as u16;
                body[4..6].copy_from_slice(&n.to_be_bytes());
            }
            132 => fill_with_chunk(&mut body),
            _ => {}
        }
        let proto = if proto == 1 && v6 { 58 } else { proto };
        let mut p = build::ip_packet(macs.0, macs.1, ends[0].0, ends[1].0, proto, ttl, &body).expect("datagram");
        let h = packet::Headers::parse(&p).expect("headers");
        packet::checksum::set_l4(&mut p, &h);
        let end = p.len() - 1;
        p[end] ^= if right { 0 } else { 0x55 };
        let list = cut(&p, size, id);
        match way {
            0 => (1, list),
            1 => (50, list),
            2 => (50, list.iter().zip(5000..).map(|(f, sport)| in_tunnel(0x1234, sport, f)).collect()),
            _ => (2, list),
        }
    }
}

/// Makes what is behind an SCTP header one chunk, which is padded.
fn fill_with_chunk(packet: &mut Vec<u8>) {
    packet.resize(packet.len().max(16).next_multiple_of(4), 0);
    let n = (packet.len() - 12) as u16;
    packet[12..16].copy_from_slice(&[0, 3, (n >> 8) as u8, n as u8]);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sum {
    Right,
    None,
    Wrong,
    /// The IPv4 header's is.
    WrongHeader,
    /// It is right, but the transport header's length is wrong.
    Length,
    /// There is no room for a transport header.
    Cut,
}

/// Matches of [`Op::Flow`], some of which are parts of conjunctions.
pub const MATCHES: &[&str] = &[
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

pub fn changed_flow(table: TableId, matches: usize, high: bool, actions: usize, add: bool) -> FlowMod {
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

pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    let flags = || prop_oneof![Just(2u8), Just(0x10), Just(0x18), Just(0x10), Just(0x11), Just(4), Just(0x12)];
    let op = prop_oneof![
        8 => (1u8..3, 80u16..91, prop_oneof![Just(20usize), Just(60)]).prop_map(|(src, dport, len)| Op::Udp { src, dport, len }),
        8 => (1u8..3, flags(), 80u16..82).prop_map(|(src, flags, dport)| Op::Tcp { src, flags, dport }),
        3 => flags().prop_map(|flags| Op::Tcp6 { flags }),
        6 => (0u8..8, any::<bool>(), 1u16..4).prop_map(|(shape, tcp, sport)| Op::Shaped { shape, tcp, sport }),
        3 => (1u16..3, any::<bool>()).prop_map(|(id, reply)| Op::Echo { id, reply }),
        12 => flags().prop_map(|flags| Op::Answer { flags }),
        2 => errors(),
        5 => (0x1233u32..0x123d, 1u16..3, 0usize..9).prop_map(|(vni, sport, len)| Op::Tunnelled { vni, sport, len }),
        9 => (0u8..ODD, 0u8..4, 1u8..4, 0x1234u32..0x123d, 5000u16..5003)
            .prop_map(|(kind, dst, ttl, vni, sport)| Op::Within { kind, dst, ttl, vni, sport }),
        3 => (prop_oneof![Just(2u32), Just(3), Just(50), Just(51), Just(60), Just(99)], flags()).prop_map(|(device, flags)| Op::Plain { device, flags }),
        9 => (1000u16..1003, 0u8..3, prop_oneof![80u16..84, Just(3784)], prop_oneof![Just(64u8), Just(64), Just(1)], any::<bool>())
            .prop_map(|(sport, dst, dport, ttl, written)| Op::Alike { sport, dst, dport, ttl, written }),
        1 => Just(Op::Arp),
        9 => (0u8..ODD, 0u8..4, 1u8..4, prop::bool::weighted(0.2)).prop_map(|(kind, dst, ttl, tagged)| Op::Odd { kind, dst, ttl, tagged }),
        2 => (1u64..40).prop_map(Op::Later),
        1 => (5u16..10).prop_map(Op::Flush),
        1 => (2u16..4, any::<bool>()).prop_map(|(p, up)| Op::Port(p, up)),
        2 => (1u16..4, prop_oneof![3 => Just(0), 1 => Just(1u32), 1 => Just(4), 1 => Just(0x20)]).prop_map(|(p, c)| Op::Config(p, c)),
        1 => (0u8..4, any::<bool>()).prop_map(|(n, add)| Op::Rule(n, add)),
        1 => any::<bool>().prop_map(Op::Neighbour),
        1 => (3u32..5).prop_map(Op::Mark),
        4 => (prop_oneof![Just(0u8), Just(1), Just(2), Just(3), Just(5), Just(30), Just(31), Just(40), Just(41)], 0..MATCHES.len(), any::<bool>(), 0usize..4, any::<bool>())
            .prop_map(|(table, matches, high, actions, add)| Op::Flow { table: TableId(table), matches, high, actions, add }),
        1 => prop_oneof![Just(None), (0..FLOWS.len()).prop_map(Some)].prop_map(Op::Replace),
        1 => (1..=GROUPS, any::<bool>()).prop_map(|(g, swap)| Op::Group(g, swap)),
        1 => (0usize..2, proptest::option::of((any::<bool>(), any::<bool>(), any::<bool>(), 0usize..6)))
            .prop_map(|(b, m)| Op::Mirror(b, m)),
        1 => (1usize..3).prop_map(Op::Tags),
        1 => (0usize..2, any::<bool>()).prop_map(|(b, on)| Op::Netflow(b, on)),
        6 => (prop_oneof![Just(1u16), Just(3), Just(10), Just(11), Just(20), Just(PortNo::TABLE.0)], any::<bool>())
            .prop_map(|(p, long)| Op::Own(p, long)),
        1 => (prop_oneof![Just(3u16), Just(11)], proptest::option::of(0u8..3)).prop_map(|(p, to)| Op::Session(p, to)),
        2 => proptest::option::of((0u8..3, any::<bool>(), any::<bool>())).prop_map(Op::Bond),
    ];
    // Each is repeated, as packets of a flow are.
    proptest::collection::vec((op, 1usize..4), 1..60)
        .prop_map(|v| v.into_iter().flat_map(|(o, n)| std::iter::repeat_n(o, n)).collect())
}

pub fn tcp(eth: (packet::Mac, packet::Mac), src: (IpAddr, u16), dst: (IpAddr, u16), flags: u8) -> Vec<u8> {
    let mut b = [src.1.to_be_bytes(), dst.1.to_be_bytes()].concat();
    b.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0, 9, 0, 0, 0, 0, 1, 2, 3]);
    build::ip_packet(eth.0, eth.1, src.0, dst.0, 6, 64, &b).expect("tcp")
}

/// The packet that answers `p`, from the peer.
pub fn answer(p: &[u8], flags: u8) -> Option<Vec<u8>> {
    let h = packet::Headers::parse(p)?;
    let mut q = p.to_vec();
    let bare = h.ip_ok && !h.fragment && matches!(h.proto, 50 | 89);
    let (l3, l4) = (h.l3, if bare { h.payload } else { h.l4? });
    let n = if h.is_ipv4() { 4 } else { 16 };
    let at = if h.is_ipv4() { l3 + 12 } else { l3 + 8 };
    q[at..at + n].copy_from_slice(&p[at + n..at + 2 * n]);
    q[at + n..at + 2 * n].copy_from_slice(&p[at..at + n]);
    match h.proto {
        1 => q[l4] = 0,
        58 => q[l4] = 129,
        6 | 17 | 132 => {
            q[l4..l4 + 2].copy_from_slice(&p[l4 + 2..l4 + 4]);
            q[l4 + 2..l4 + 4].copy_from_slice(&p[l4..l4 + 2]);
            if h.proto == 6 {
                q[l4 + 13] = flags;
            }
        }
        _ => {}
    }
    q[..6].copy_from_slice(&VIF[..]);
    q[6..12].copy_from_slice(&PEER[..]);
    packet::checksum::set_l4(&mut q, &h);
    Some(q)
}

/// Puts a frame into a tunnel that ends at the gateway: Geneve, over IPv6 for every third source port, or from 0x1236 on GRE with a key, the same with numbers, ERSPAN
/// of both versions, and GRE with a checksum; VXLAN with a
/// group, and with the generic protocol extension.
pub fn in_tunnel(vni: u32, sport: u16, inner: &[u8]) -> Vec<u8> {
    use packet::gre::{ETHERNET, Erspan, Gre};
    let plain = Gre { protocol: ETHERNET, key: Some(vni), ..Gre::default() };
    let (sequence, mut body) = (Some(u32::from(sport)), Vec::new());
    let erspan = |e: Erspan, body: &mut Vec<u8>| {
        let header = e.bytes(vni & 0xff, sport.into());
        Gre { protocol: e.protocol(), sequence, ..Gre::default() }.put(body, &[&header, inner]);
    };
    let (udp, header) = match vni {
        0x123b => (4790, [0x88, 0, 0, u8::from(sport.is_multiple_of(2)) * 7, 0, 0, 5, 0]),
        0x123c => (4791, [0x0c, 0, 0, 3, 0, 0, 5, 0]),
        _ => (0, [0; 8]),
    };
    if udp != 0 {
        body = [&header, inner].concat();
        return build::udp(ROUTER, PEER, (ip("192.168.0.2"), sport), (ip("192.168.0.1"), udp), 64, &body)
            .expect("outer");
    }
    match vni {
        0x1236 => plain.put(&mut body, &[inner]),
        0x1237 => Gre { sequence, ..plain }.put(&mut body, &[inner]),
        0x1238 => erspan(Erspan::V1 { index: 5 }, &mut body),
        0x1239 => erspan(Erspan::V2 { egress: sport.is_multiple_of(2), hardware: 3 }, &mut body),
        0x123a => Gre { checksum: true, sequence, ..plain }.put(&mut body, &[inner]),
        _ => return in_geneve(vni, sport, inner),
    }
    build::ip_packet(ROUTER, PEER, ip("192.168.0.2"), ip("192.168.0.1"), 47, 64, &body).expect("outer")
}

fn in_geneve(vni: u32, sport: u16, inner: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    packet::tunnel::Geneve::put(&mut body, packet::Vni::of_low_bits(vni), false, &[(0x102, 0x80, vec![0, 0, 0x80, 2])]);
    body.extend_from_slice(inner);
    if !sport.is_multiple_of(3) {
        return build::udp(ROUTER, PEER, (ip("192.168.0.2"), sport), (ip("192.168.0.1"), 6081), 64, &body)
            .expect("outer");
    }
    let mut p = build::udp(ROUTER, PEER, (ip("fd00::2"), sport), (ip("fd00::1"), 6081), 64, &body).expect("outer");
    // The flow label.
    p[16..18].copy_from_slice(&sport.to_be_bytes());
    p
}

pub fn tunnelled(vni: u32, sport: u16, len: usize) -> Vec<u8> {
    let inner = build::udp(VIF, PEER, (ip("10.0.0.77"), sport), (ip("10.0.0.1"), 9), 64, &vec![3; len]).expect("inner");
    let mut p = in_tunnel(vni, 5000 + sport, &inner);
    // Ethernet padding is not the inner frame's.
    p.resize(p.len() + len % 3, 0);
    p
}

/// Puts a tag in.
pub fn tag(p: &mut Vec<u8>, tpid: u16, tci: u16) {
    let [a, b] = tpid.to_be_bytes();
    let [c, d] = tci.to_be_bytes();
    p.splice(12..12, [a, b, c, d]);
}

/// Frames that keys are made of in several ways.
pub fn shaped(shape: u8, is_tcp: bool, sport: u16) -> (u32, Vec<u8>) {
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
            packet::tunnel::put_vxlan(&mut body, packet::Vni::of_low_bits(0x1234));
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

/// What comes from this port over TCP belongs to no connection and opens none.
pub const STRAY: u16 = 501;

/// Connections to this port and those above are over IPv6 ([`Op::Open`]).
const V6: u16 = 100;

/// A host's address of IPv6.
fn host6(n: u8) -> IpAddr {
    IpAddr::from([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n])
}

/// Kinds of [`odd`] packets.
pub const ODD: u8 = 25;

/// A packet whose key is fields, or that of UDP and TCP over IPv6: ICMP, errors, IGMP, fragments, neighbour discovery, ARP, of no IP protocol, of no protocol that is
/// known.
pub fn odd(kind: u8, dst: u8, ttl: u8) -> Vec<u8> {
    let v4 = (IpAddr::from([10, 9, 1, ttl]), IpAddr::from([10, 9, 0, dst]));
    let v6 = (ip("2001::1"), IpAddr::from([0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8 + dst]));
    let made = |ends: (IpAddr, IpAddr), proto, body: &[u8]| {
        build::ip_packet(ROUTER, VIF, ends.0, ends.1, proto, ttl, body).expect("packet")
    };
    let echo = [8, dst & 1, 0, 0, 0, ttl, 0, 1, 5, 5];
    let advert = |options: &[u8]| {
        let mut b = vec![136, 0, 0, 0, 0x60, 0, 0, 0, 0x20, 1];
        b.extend_from_slice(&[0; 13]);
        b.push(8 + dst);
        b.extend_from_slice(options);
        b
    };
    let fragment = |f: [u8; 2]| {
        let mut p = made(v4, 1, &echo);
        p[20..22].copy_from_slice(&f);
        packet::checksum::set_ipv4(&mut p, 14);
        p
    };
    // The fragment header of RFC 8200 section 4.5, in front of UDP.
    let fragment6 = |f: u8| {
        let mut b = vec![17, 0, 0, f, 0, 0, 0, 7, 4, 0, 0, 80 + dst, 0, 40, 1, 2];
        b.extend_from_slice(&[9; 8]);
        made(v6, 44, &b)
    };
    let mut p = match kind {
        0 => made(v4, 1, &echo),
        1 => made(v4, 1, &[3, 1, 0, 0, 0, 0, 0, 0, 0x45, 0, 0, 20 + dst]),
        2 => made(v4, 2, &[0x22, 0, 0, 0, 0, 0, 0, 0]),
        3 => fragment([0x20, 0]),
        4 => fragment([0, 9]),
        5 => made(v6, 58, &advert(&[2, 1, 2, 0, 0, 0, 0, ttl])),
        6 => made(v6, 58, &advert(&[2, 0])),
        7 => made(v6, 58, &[128, 0, 0, 0, 0, ttl, 0, 1]),
        8 => fragment6(1),
        9 => fragment6(16),
        10 => build::udp(ROUTER, VIF, (v6.0, 1000 + u16::from(ttl)), (v6.1, 80 + u16::from(dst)), ttl, &[7; 9])
            .expect("udp"),
        11 => {
            let mut p = build::arp_request(VIF, [10, 0, 0, ttl].into(), [10, 9, 0, dst].into());
            // An operation that there is not.
            p[21] = ttl;
            p
        }
        12 | 13 => {
            let mut p = [*ROUTER, *VIF].concat();
            p.extend_from_slice(&[0x12, 0x34 + (kind & 1), ttl, dst]);
            p.resize(60, 0);
            p
        }
        16 => {
            let flags = [2, 0x10, 0x18, 0x11][usize::from(ttl & 3)];
            tcp((ROUTER, VIF), (v6.0, 1000), (v6.1, 80 + u16::from(dst)), flags)
        }
        // What is wrong: lengths of IPv4 and IPv6, a header of extension that is longer than the packet, of UDP, of TCP, of ICMP.
        17..22 => {
            let host = if kind == 18 || kind == 19 { v6 } else { v4 };
            let mut p =
                build::udp(ROUTER, VIF, (host.0, 1000), (host.1, 80 + u16::from(dst)), ttl, &[7; 9]).expect("udp");
            match kind {
                17 => p[16] = 9,
                18 => p[18] = 9,
                19 => (p[20], p[55]) = (0, 99),
                20 => p[38..40].copy_from_slice(&[0, 7 + 30 * (dst & 1)]),
                _ => {
                    p = tcp((ROUTER, VIF), (host.0, 1000), (host.1, 80 + u16::from(dst)), 2);
                    p[46] = 0x10 << (dst & 3);
                }
            }
            p
        }
        22 => made(
            if dst & 1 == 0 { v4 } else { v6 },
            if dst & 1 == 0 { 1 } else { 58 },
            &[8, 0, 0, 0, 0, ttl][..usize::from(dst & 2) * 2 + 1],
        ),
        // SCTP, with a chunk of data, or without all of its header.
        23 => {
            let header = [3, 232, 0, 80 + dst, 0, 0, 0, 1, 0, 0, 0, 0];
            let all = [&header[..], &[0, 3, 0, 20, ttl], &[9; 15]].concat();
            let mut p = made(if ttl & 1 == 0 { v6 } else { v4 }, 132, if dst == 3 { &all[..8] } else { &all });
            let h = packet::Headers::parse(&p).expect("headers");
            packet::checksum::set_l4(&mut p, &h);
            p
        }
        // ICMP of the other version's number, of which nothing is known.
        24 => made(if dst & 1 == 0 { v4 } else { v6 }, if dst & 1 == 0 { 58 } else { 1 }, &echo),
        // A label, or a stack that does not end within what is parsed.
        15 => {
            let ip = made(v4, 1, &echo);
            let entry = [0, 0, dst << 4 | u8::from(ttl != 3), ttl];
            let labels = entry.repeat(if ttl == 3 { 4 } else { 1 });
            [&ip[..12], &[0x88, 0x47], &labels, &ip[14..]].concat()
        }
        _ => made(v4, dst / 3 * 77, &[]),
    };
    if matches!(kind, 7..=10 | 16) {
        // A flow label.
        p[17] = dst;
    }
    let h = packet::Headers::parse(&p).expect("frame");
    if h.l4.is_some() && !h.fragment {
        packet::checksum::set_l4(&mut p, &h);
    }
    p
}

/// The packet of an operation, and the device that it comes from; none: it is no packet.
pub fn packet(op: &Op, last: &[u8]) -> Option<(u32, Vec<u8>)> {
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
        Op::Ping { src, id, v6, right } => {
            let (ends, proto, kind) = match v6 {
                false => ((host(*src), ip("8.8.8.8")), 1, 8),
                true => ((host6(*src), ip("2001::8:8")), 58, 128),
            };
            let [high, low] = id.to_be_bytes();
            let mut p =
                build::ip_packet(ROUTER, VIF, ends.0, ends.1, proto, 64, &[kind, 0, 0, 0, high, low, 0, 1, 9, 9])
                    .expect("icmp");
            let at = if *v6 { 56 } else { 36 };
            p[at] ^= if *right { 0 } else { 0x55 };
            (1, p)
        }
        Op::Bare { src, proto, v6, port, sum } => {
            // Packets of a connection that is there already are not checked as long as a cached flow serves them.
            let (src, port) = if *sum == Sum::Right { (*src, *port) } else { (100 + *src, 300 + *port) };
            let ends = if *v6 { (host6(src), ip("2001::8:8")) } else { (host(src), ip("8.8.8.8")) };
            let mut body = [&port.to_be_bytes()[..], &[0, 80, 0, 0, 0, 9, 0, 0, 0, 0, 0, 3, 0, 8, 1, 2, 3, 4]].concat();
            if *sum == Sum::Length {
                body[15] = 2;
            }
            let mut p = build::ip_packet(ROUTER, VIF, ends.0, ends.1, *proto, 64, &body).expect("packet");
            let h = packet::Headers::parse(&p)?;
            packet::checksum::set_l4(&mut p, &h);
            match sum {
                Sum::WrongHeader if !v6 => p[25] ^= 0x55,
                Sum::Wrong => *p.last_mut()? ^= 0x55,
                _ => {}
            }
            (1, p)
        }
        Op::Answer { flags } => (50, answer(last, *flags)?),
        Op::Error(e) => error(e, last)?,
        Op::Shaped { shape, tcp, sport } => shaped(*shape, *tcp, *sport),
        Op::Tunnelled { vni, sport, len } => (50, tunnelled(*vni, *sport, *len)),
        Op::Within { kind, dst, ttl, vni, sport } => (50, in_tunnel(*vni, *sport, &odd(*kind, *dst, *ttl))),
        Op::Plain { device, flags } => (*device, tcp((PEER, ROUTER), (host(5), 7), (host(6), 8), *flags)),
        Op::Alike { sport, dst, dport, ttl, written } => {
            let to = if *written { packet::Mac([2, 0, 0, 0, 0, 0xe]) } else { ROUTER };
            let ends = ((host(7), *sport), (IpAddr::from([10, 9, 0, *dst]), *dport));
            let mut p = build::udp(to, VIF, ends.0, ends.1, *ttl, &[7; 20]).expect("udp");
            if *written {
                // Classes, and what is said of congestion, which tunnels copy.
                p[15] = [0, 1, 0xfd][usize::from(*sport) % 3];
                packet::checksum::set_ipv4(&mut p, 14);
            }
            (3, p)
        }
        Op::Open { src, sport, dport, ttl, sum } => {
            // Packets of a connection that is there already are not checked as long as a cached flow serves them.
            let wrong = matches!(sum, Sum::Wrong | Sum::WrongHeader);
            let v6 = *dport >= V6;
            let hosts = if v6 { (host6(*src), ip("2001::8:8")) } else { (host(*src), ip("8.8.8.8")) };
            let ends = ((hosts.0, if wrong { 3000 } else { *sport }), (hosts.1, *dport));
            let checksum = if v6 { 60 } else { 40 };
            let mut p = match dport {
                // An answer to nothing, among those that ask.
                77 | 97 | 107 => tcp(eth, ends.0, ends.1, if *sport == STRAY { 0x12 } else { 2 }),
                _ => build::udp(ROUTER, VIF, ends.0, ends.1, *ttl, &[7; 9]).expect("udp"),
            };
            match sum {
                Sum::Right => {}
                // TCP's is not optional (RFC 9293 section 3.1): without it, it would be wrong.
                Sum::None if matches!(dport, 77 | 97 | 107) => {}
                Sum::None => p[checksum..checksum + 2].fill(0),
                Sum::WrongHeader if !v6 => p[25] ^= 0x55,
                Sum::Wrong | Sum::WrongHeader => p[checksum + 1] ^= 0x55,
                Sum::Length => {
                    match dport {
                        77 | 97 | 107 => p[checksum + 6] = 0x30,
                        _ => p[checksum - 1] = 200,
                    }
                    let h = packet::Headers::parse(&p)?;
                    packet::checksum::set_l4(&mut p, &h);
                }
                Sum::Cut => {
                    let (at, n) = if v6 { (18, 5) } else { (16, 25) };
                    p[at..at + 2].copy_from_slice(&[0, n]);
                    if !v6 {
                        packet::checksum::set_ipv4(&mut p, 14);
                    }
                }
            }
            (1, p)
        }
        Op::Odd { kind, dst, ttl, tagged } => {
            let mut p = odd(*kind, *dst, *ttl);
            if *tagged {
                tag(&mut p, 0x8100, 5);
            }
            (3, p)
        }
        Op::Part(d, n) => {
            let (device, mut list) = d.cut();
            (device, list.swap_remove(*n % list.len()))
        }
        Op::Arp => (1, build::arp_request(VIF, [10, 0, 0, 1].into(), [10, 0, 0, 2].into())),
        _ => return None,
    })
}
