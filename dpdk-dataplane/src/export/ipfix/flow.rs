//! IPFIX flows: what all packets of a flow have in common, and what is counted.

use openflow_rs::PortNo;
use packet::{Mac, be16, be32, ipproto, mac_at};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use switch::{Outer, Sample};

/// The key of a flow: the elements of its record that are no counters.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Flow {
    pub point: u32,
    pub egress: bool,
    pub in_port: u32,
    /// 0: unknown.
    pub out_port: u32,
    pub in_name: String,
    pub macs: [Mac; 2],
    pub ethertype: u16,
    pub header_len: u8,
    /// The outer tag's TCI.
    pub tci: Option<u16>,
    pub ip: Option<Ip>,
    /// The tunnel over IPv4 by which it came.
    pub outer: Option<Outer>,
    /// The observer's name.
    pub observer: Option<String>,
}

/// A flow's network header.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Ip {
    pub addresses: [IpAddr; 2],
    pub proto: u8,
    pub tos: u8,
    pub ttl: u8,
    pub label: u32,
    pub transport: Transport,
}

/// A flow's transport header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Transport {
    None,
    Ports(u16, u16),
    Icmp(u8, u8),
}

/// The counters of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub packets: u64,
    /// Bytes of frames.
    pub frames: u64,
    /// Bytes of IP packets; then those of the shortest and of the longest.
    pub octets: u64,
    pub least: u64,
    pub most: u64,
    pub first: Duration,
    pub last: Duration,
}

impl Tally {
    pub(super) fn add(&mut self, o: &Tally) {
        self.packets += o.packets;
        self.frames += o.frames;
        self.octets += o.octets;
        self.least = self.least.min(o.least);
        self.most = self.most.max(o.most);
        self.last = self.last.max(o.last);
    }
}

/// The flow of a sample, and its counters.
pub(super) fn of(s: &Sample, in_name: String, now: Duration) -> (Flow, Tally) {
    let (p, h) = (s.head.as_slice(), &s.headers);
    let ip = h.ip_ok.then(|| ip(p, h)).flatten();
    let octets = if ip.is_some() { h.l3_end.saturating_sub(h.l3) as u64 } else { 0 };
    let flow = Flow {
        point: s.point,
        egress: s.egress,
        in_port: s.in_port.to_u32(),
        out_port: if s.sampling_port == PortNo::ANY { 0 } else { s.sampling_port.to_u32() },
        in_name,
        macs: [mac_at(p, 6).unwrap_or_default(), mac_at(p, 0).unwrap_or_default()],
        ethertype: h.ethertype,
        header_len: h.l3.min(255) as u8,
        tci: h.vlans[0].map(|v| v.tci),
        ip,
        // Packets of one flow may differ in their TOS.
        outer: s.outer.filter(|o| o.addresses[0].is_ipv4()).map(|o| Outer { tos: 0, ..o }),
        observer: None,
    };
    // The packets that were not chosen count as if they were like this one.
    let packets = u64::from(s.weight);
    let (frames, sum, first, last) = (s.len as u64 * packets, octets * packets, now, now);
    (flow, Tally { packets, frames, octets: sum, least: octets, most: octets, first, last })
}

fn ip(p: &[u8], h: &packet::Headers) -> Option<Ip> {
    let (src, dst) = h.addresses(p)?;
    let first = be32(p, h.l3)?;
    let v4 = h.is_ipv4();
    let address = |a: u128| if v4 { Ipv4Addr::from(a as u32).into() } else { Ipv6Addr::from(a).into() };
    let (tos, ttl_at) = if v4 { ((first >> 16) as u8, 8) } else { ((first >> 20) as u8, 7) };
    let l4 = h.l4.filter(|_| !h.later_fragment);
    let transport = match (h.proto, l4) {
        (ipproto::TCP | ipproto::UDP | ipproto::SCTP, Some(at)) => {
            Transport::Ports(be16(p, at).unwrap_or(0), be16(p, at + 2).unwrap_or(0))
        }
        (ipproto::ICMP, Some(at)) if v4 => icmp(p, at),
        (ipproto::ICMPV6, Some(at)) if !v4 => icmp(p, at),
        _ => Transport::None,
    };
    Some(Ip {
        addresses: [address(src), address(dst)],
        proto: h.proto,
        tos,
        ttl: p.get(h.l3 + ttl_at).copied()?,
        label: if v4 { 0 } else { first & 0xf_ffff },
        transport,
    })
}

fn icmp(p: &[u8], at: usize) -> Transport {
    let byte = |n: usize| p.get(at + n).copied().unwrap_or(0);
    Transport::Icmp(byte(0), byte(1))
}
