//! Packets from keys, answers to packets, and packets that are a little wrong.

use openflow_rs::message::PacketIn;
use openflow_rs::{FieldId as F, FlowKey};
use packet::{Headers, Mac, be16, build, checksum};
use rand::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The least length of an Ethernet frame without its check sequence; dummy devices pad to it.
const LEAST: usize = 60;

fn mac(v: u128) -> Mac {
    Mac::from_u64(v as u64)
}

/// A packet with the fields of a key.
pub fn of_key(key: &FlowKey, rng: &mut StdRng) -> Vec<u8> {
    let (src, dst) = (mac(key.get(F::EthSrc)), mac(key.get(F::EthDst)));
    let kind = key.get(F::EthType) as u16;
    let mut p = match kind {
        0x806 | 0x8035 => {
            let ip = |f| Ipv4Addr::from(key.get(f) as u32);
            let op = key.get(F::ArpOp) as u16;
            let mut p =
                build::arp(op, dst, mac(key.get(F::ArpSha)), ip(F::ArpSpa), mac(key.get(F::ArpTha)), ip(F::ArpTpa));
            p[6..12].copy_from_slice(&src[..]);
            p[12..14].copy_from_slice(&kind.to_be_bytes());
            p
        }
        0x800 | 0x86dd => ip(key, dst, src, kind == 0x86dd, rng),
        0x8847 | 0x8848 => labelled(key, dst, src, kind, rng),
        _ => [&dst[..], &src[..], &kind.to_be_bytes(), &[0; 46]].concat(),
    };
    let mut have = FlowKey::new();
    let mut h = switch::extract::extract(&p, switch::extract::TAGS, &mut have);
    let mut want = key.clone();
    if want.get(F::VlanTci) & 0x1000 != 0 && want.get(F::VlanTpid) == 0 {
        want.set(F::VlanTpid, 0x8100);
    }
    switch::extract::commit(&mut p, &mut h, &mut have, &want);
    if let (Some(h), 6) = (Headers::parse(&p), key.get(F::IpProto))
        && let Some(l4) = h.l4
    {
        p[l4 + 13] = key.get(F::TcpFlags) as u8;
        checksum::set_l4(&mut p, &h);
    }
    fragment(&mut p, key.get(F::IpFrag));
    p.resize(p.len().max(LEAST), 0);
    p
}

fn ip(key: &FlowKey, dst: Mac, src: Mac, v6: bool, rng: &mut StdRng) -> Vec<u8> {
    let (a, b): (IpAddr, IpAddr) = if v6 {
        (Ipv6Addr::from(key.get(F::Ipv6Src)).into(), Ipv6Addr::from(key.get(F::Ipv6Dst)).into())
    } else {
        (Ipv4Addr::from(key.get(F::IpSrc) as u32).into(), Ipv4Addr::from(key.get(F::IpDst) as u32).into())
    };
    let proto = key.get(F::IpProto) as u8;
    let n = if rng.random_ratio(1, 12) { rng.random_range(1300..1430) } else { rng.random_range(0..64) };
    let load: Vec<u8> = (0..n).map(|_| rng.random()).collect();
    let body = match proto {
        6 => [&[0; 4][..], &1u32.to_be_bytes(), &1u32.to_be_bytes(), &[0x50, 0, 0x20, 0, 0, 0, 0, 0], &load].concat(),
        17 => [&[0; 4][..], &(8 + n as u16).to_be_bytes(), &[0, 0], &load].concat(),
        132 => [&[0; 12][..], &[1, 0, 0, 20], &[0; 16]].concat(),
        1 => {
            let inner =
                [&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0][..], &[10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 8, 0, 0]];
            match key.get(F::IcmpType) {
                3 | 11 => [&[0; 8][..], inner[0], inner[1]].concat(),
                _ => [&[0, 0, 0, 0, 0, 7, 0, 1][..], &load].concat(),
            }
        }
        58 => match key.get(F::Icmpv6Type) {
            135 => [&[0; 24][..], &[1, 1, 0, 0, 0, 0, 0, 0]].concat(),
            136 => [&[0; 4][..], &[0x60, 0, 0, 0], &[0; 16], &[2, 1, 0, 0, 0, 0, 0, 0]].concat(),
            133 => vec![0; 8],
            134 => vec![0; 16],
            _ => [&[0, 0, 0, 0, 0, 7, 0, 1][..], &load].concat(),
        },
        _ => load,
    };
    build::ip_packet(dst, src, a, b, proto, key.get(F::IpTtl) as u8, &body).expect("one family")
}

/// A packet with one to three labels, the first of which is the key's, and UDP of either version behind them.
fn labelled(key: &FlowKey, dst: Mac, src: Mac, kind: u16, rng: &mut StdRng) -> Vec<u8> {
    let v6 = rng.random_ratio(1, 3);
    let mut inside = FlowKey::new();
    inside.set(F::IpProto, 17);
    inside.set(F::IpTtl, 64);
    let n = rng.random_range(0..4);
    let of = |a: u128| if v6 { (0xfd00 << 112) + a } else { 0x0a00_0000 + a };
    inside.set(if v6 { F::Ipv6Src } else { F::IpSrc }, of(1));
    inside.set(if v6 { F::Ipv6Dst } else { F::IpDst }, of(2 + n));
    let inner = ip(&inside, dst, src, v6, rng);
    let more = rng.random_range(0..3);
    let mut p = [&dst[..], &src[..], &kind.to_be_bytes()].concat();
    for i in 0..=more {
        let (label, tc, ttl) = match i {
            0 => (key.get(F::MplsLabel), key.get(F::MplsTc), key.get(F::MplsTtl)),
            _ => (rng.random_range(0..4), 0, 64),
        };
        let entry = label << 12 | tc << 9 | u128::from(i == more) << 8 | ttl;
        p.extend((entry as u32).to_be_bytes());
    }
    p.extend_from_slice(&inner[14..]);
    p
}

/// Makes a packet a fragment: bit 0 of any kind, bit 1 a later one.
fn fragment(p: &mut Vec<u8>, kind: u128) {
    let Some(h) = Headers::parse(p).filter(|h| h.ip_ok && kind & 1 != 0) else { return };
    let word: u16 = if kind & 2 != 0 { 100 } else { 0x2000 };
    if h.is_ipv4() {
        p[h.l3 + 6..h.l3 + 8].copy_from_slice(&word.to_be_bytes());
        checksum::set_ipv4(p, h.l3);
    } else {
        let at = h.l3 + 40;
        let word: u16 = if kind & 2 != 0 { 100 << 3 } else { 1 };
        let w = word.to_be_bytes();
        let next = std::mem::replace(&mut p[h.l3 + 6], 44);
        p.splice(at..at, [next, 0, w[0], w[1], 0, 0, 0, 9]);
        let n = (p.len() - at) as u16;
        p[h.l3 + 4..h.l3 + 6].copy_from_slice(&n.to_be_bytes());
    }
}

fn swap(p: &mut [u8], a: usize, b: usize, n: usize) {
    for i in 0..n {
        p.swap(a + i, b + i);
    }
}

/// Whether an answer to a packet looks like the packet itself: from an address to itself, and a port to itself if it has any.
pub fn own_answer(p: &[u8]) -> bool {
    let Some(h) = Headers::parse(p).filter(|h| h.ip_ok) else { return false };
    let icmp = matches!(h.proto, 1 | 58);
    !icmp && h.addresses(p).is_some_and(|(a, b)| a == b) && h.ports(p).is_none_or(|(a, b)| a == b)
}

/// Forgets the ports of a later fragment's connection, which ours knows from the whole datagram and Open vSwitch does not show.
pub fn forget_ports_of_later_fragment(mut p: PacketIn) -> PacketIn {
    let later = Headers::parse(&p.packet).is_some_and(|h| h.later_fragment);
    if later && p.metadata.exact(F::CtNwProto).is_some() {
        p.metadata = p.metadata.with(F::CtTpSrc, 0).with(F::CtTpDst, 0);
    }
    p
}

/// Clears what Open vSwitch takes for the checksum of a later fragment: with new addresses it changes that.
pub fn forget_no_sum(p: &mut [u8]) {
    let Some(h) = Headers::parse(p).filter(|h| h.ethertype == 0x800 && p.len() > h.l3) else { return };
    let later = be16(p, h.l3 + 6).is_some_and(|w| w & 0x1fff != 0);
    let at = match p.get(h.l3 + 9) {
        Some(6) if later => 16,
        Some(17) if later => 6,
        _ => return,
    };
    let l4 = h.l3 + usize::from(p[h.l3] & 15) * 4;
    if let Some(b) = p.get_mut(l4 + at..l4 + at + 2) {
        b.fill(0);
    }
}

/// Whether a packet has two tags and the outer one names no VLAN: which of them NORMAL leaves differs.
pub fn nameless(p: &[u8]) -> bool {
    let Some(h) = Headers::parse(p) else { return false };
    matches!(h.vlans, [Some(a), Some(_)] if a.tci & 0xfff == 0)
}

/// Whether a packet of IPv6 says that it is of another version: who writes its traffic class leaves or mends that.
pub fn other_version(p: &[u8]) -> bool {
    Headers::parse(p).is_some_and(|h| h.ethertype == 0x86dd && p.get(h.l3).is_some_and(|b| b >> 4 != 6))
}

/// Whether the labels of a packet do not end within the three that are parsed.
pub fn endless(p: &[u8]) -> bool {
    let Some(h) = Headers::parse(p).filter(|h| matches!(h.ethertype, 0x8847 | 0x8848)) else { return false };
    !(0..3).any(|i| p.get(h.l3 + 4 * i + 2).is_some_and(|b| b & 1 != 0))
}

/// What a peer might answer to a packet; `None` where it would not.
pub fn answer(p: &[u8], rng: &mut StdRng) -> Option<Vec<u8>> {
    let h = Headers::parse(p).filter(|h| h.ip_ok && !h.fragment)?;
    let l4 = h.l4?;
    if rng.random_ratio(1, 8) && p[0] & 1 == 0 {
        let kind = if h.is_ipv4() { (3, 1) } else { (1, 3) };
        let (_, dst) = h.addresses(p)?;
        let from: IpAddr = if h.is_ipv4() { Ipv4Addr::from(dst as u32).into() } else { Ipv6Addr::from(dst).into() };
        let mut e = build::icmp_error(p, packet::mac_at(p, 0)?, from, kind.0, kind.1, 0)?;
        e.resize(e.len().max(LEAST), 0);
        return Some(e);
    }
    let mut q = p.to_vec();
    swap(&mut q, 0, 6, 6);
    if q[6] & 1 != 0 {
        q[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x99]);
    }
    if h.is_ipv4() {
        swap(&mut q, h.l3 + 12, h.l3 + 16, 4);
    } else {
        swap(&mut q, h.l3 + 8, h.l3 + 24, 16);
    }
    match h.proto {
        6 => {
            swap(&mut q, l4, l4 + 2, 2);
            swap(&mut q, l4 + 4, l4 + 8, 4);
            let flags = q.get(l4 + 13).copied()?;
            q[l4 + 13] = if flags & 2 != 0 { 0x12 } else { *[0x10, 0x18, 0x11, 0x04].choose(rng)? };
            if flags & 2 != 0 {
                // It acknowledges the SYN.
                q[l4 + 8..l4 + 12].copy_from_slice(&2u32.to_be_bytes());
            }
        }
        17 | 132 => swap(&mut q, l4, l4 + 2, 2),
        1 if q.get(l4) == Some(&8) => q[l4] = 0,
        58 if q.get(l4) == Some(&128) => q[l4] = 129,
        _ => return None,
    }
    checksum::set_l4(&mut q, &h);
    Some(q)
}

/// Something wrong or odd with a packet.
pub fn mutated(p: &[u8], rng: &mut StdRng) -> Vec<u8> {
    let mut q = p.to_vec();
    let Some(h) = Headers::parse(p) else { return q };
    match rng.random_range(0..8) {
        // Cut short within its headers.
        0 => q.truncate(rng.random_range(14..q.len().max(15))),
        1 if h.ip_ok => {
            let at = h.l3 + if h.is_ipv4() { 8 } else { 7 };
            q[at] = rng.random_range(0..3);
            if h.is_ipv4() {
                checksum::set_ipv4(&mut q, h.l3);
            }
        }
        2 if h.ip_ok => fragment(&mut q, rng.random_range(1..4)),
        3 => {
            let tag = rng.random_range(0..0x1000u16).to_be_bytes();
            q.splice(12..12, [0x81, 0, tag[0], tag[1]]);
        }
        4 if h.ip_ok => {
            // A total length that is not the packet's.
            let at = h.l3 + if h.is_ipv4() { 2 } else { 4 };
            let n = be16(&q, at).unwrap_or(0).wrapping_add(rng.random_range(0..64)).wrapping_sub(32);
            q[at..at + 2].copy_from_slice(&n.to_be_bytes());
            if h.is_ipv4() {
                checksum::set_ipv4(&mut q, h.l3);
            }
        }
        5 => q[6..12].copy_from_slice(&[2, 0, 0, 0, 0, rng.random()]),
        6 => q[0..6].copy_from_slice(&[0xff; 6]),
        _ => {
            let at = rng.random_range(12..q.len().min(80));
            q[at] ^= 1 << rng.random_range(0..8);
        }
    }
    q.resize(q.len().max(LEAST), 0);
    q
}
