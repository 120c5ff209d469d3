//! Changes of headers that cached flows repeat.

use super::{At, Patch, Sums};
use crate::extract::LABEL_FIELDS;
use openflow_rs::action::is_mpls;
use openflow_rs::{FieldId as F, FlowKey};
use packet::{ethertype, ipproto};

/// Other ports of an SCTP packet.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    pub(crate) differ: [u8; 4],
}

/// The change of `len` bytes at an offset, from one value to another.
pub(super) fn patch(at: At, offset: u8, len: u8, values: [u128; 2], sums: Sums) -> Patch {
    let n = usize::from(len).min(16);
    let [old, bytes] = values.map(|v| {
        let mut b = [0; 16];
        b[..n].copy_from_slice(&v.to_be_bytes()[16 - n..]);
        b
    });
    Patch { at, offset, len, old, bytes, sums }
}

/// The header changes between two states of a packet; `None` if they cannot be repeated.
pub(super) fn patches(old: &FlowKey, new: &FlowKey) -> Option<Vec<Patch>> {
    let mut v = Vec::new();
    let mut put = |f: F, at: At, offset: u8, len: u8, sums: Sums| {
        if old.get(f) != new.get(f) {
            v.push(patch(at, offset, len, [old.get(f), new.get(f)], sums));
        }
    };
    put(F::EthDst, At::Frame, 0, 6, Sums::None);
    put(F::EthSrc, At::Frame, 6, 6, Sums::None);
    let (et, proto) = (new.get(F::EthType) as u16, new.get(F::IpProto) as u8);
    // ARP's operation has the protocol's place in the key.
    let arp = matches!(et, ethertype::ARP | ethertype::RARP);
    if old.get(F::EthType) as u16 != et || !arp && old.get(F::IpProto) as u8 != proto {
        return None;
    }
    match et {
        _ if arp => {
            for (f, offset, len) in
                [(F::ArpOp, 6, 2), (F::ArpSha, 8, 6), (F::ArpSpa, 14, 4), (F::ArpTha, 18, 6), (F::ArpTpa, 24, 4)]
            {
                put(f, At::Network, offset, len, Sums::None);
            }
            return Some(v);
        }
        ethertype::IPV4 => {
            put(F::IpSrc, At::Network, 12, 4, Sums::Both);
            put(F::IpDst, At::Network, 16, 4, Sums::Both);
            put(F::NwTos, At::Network, 1, 1, Sums::Header);
            put(F::IpTtl, At::Network, 8, 1, Sums::Header);
        }
        ethertype::IPV6 => {
            put(F::Ipv6Src, At::Network, 8, 16, Sums::Transport);
            put(F::Ipv6Dst, At::Network, 24, 16, Sums::Transport);
            put(F::IpTtl, At::Network, 7, 1, Sums::None);
        }
        kind if is_mpls(kind) => {
            for (f, offset) in LABEL_FIELDS.into_iter().zip([0, 4, 8]) {
                put(f, At::Network, offset, 4, Sums::None);
            }
            return Some(v);
        }
        _ => return Some(v),
    }
    match proto {
        ipproto::TCP | ipproto::UDP => {
            put(F::TcpSrc, At::Transport, 0, 2, Sums::Transport);
            put(F::TcpDst, At::Transport, 2, 2, Sums::Transport);
        }
        // Its checksum is not one of words: it has steps of its own ([`super::entry::Entry::new`]).
        ipproto::SCTP => {
            put(F::SctpSrc, At::Transport, 0, 2, Sums::None);
            put(F::SctpDst, At::Transport, 2, 2, Sums::None);
        }
        _ => {}
    }
    let differs = |f: F| old.get(f) != new.get(f);
    if et == ethertype::IPV6 && (differs(F::NwTos) || differs(F::Ipv6Label)) {
        let first = |k: &FlowKey| 6u128 << 28 | k.get(F::NwTos) << 20 | k.get(F::Ipv6Label);
        v.push(patch(At::Network, 0, 4, [first(old), first(new)], Sums::None));
    }
    match proto {
        ipproto::ICMP | ipproto::ICMPV6 if differs(F::IcmpType) || differs(F::IcmpCode) => {
            let head = |k: &FlowKey| k.get(F::IcmpType) << 8 | k.get(F::IcmpCode) & 0xff;
            v.push(patch(At::Transport, 0, 2, [head(old), head(new)], Sums::Icmp));
        }
        // That of a fragment stays as it is.
        ipproto::SCTP if new.get(F::IpFrag) != 0 && (differs(F::SctpSrc) || differs(F::SctpDst)) => return None,
        _ => {}
    }
    let nd = proto == ipproto::ICMPV6 && (differs(F::NdTarget) || differs(F::NdSll) || differs(F::NdTll));
    (!nd).then_some(v)
}

/// What differs in the first four bytes of a transport header, both ports.
pub(super) fn differ<'a>(list: impl Iterator<Item = &'a Patch>) -> u32 {
    let mut bytes = [0; 4];
    for p in list {
        let values = p.old.iter().zip(&p.bytes).take(p.len.into());
        let places = bytes.iter_mut().skip(p.offset.into());
        places.zip(values).for_each(|(to, (old, new))| *to = old ^ new);
    }
    u32::from_be_bytes(bytes)
}
