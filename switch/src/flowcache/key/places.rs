//! Keys read back: which of their bits is which field, and the frames that they are of.

use super::fields::{FRAGMENT, LENGTH, NO_IP, ODD_LENGTH, kinds};
use super::{ALL, ALONE, FIELD_KINDS, LEG, Layout, RAW, RAW_WORDS, SHAPES, Shape, kind_of};
use crate::extract::LABEL_FIELDS;
use crate::ids::DeviceId;
use openflow_rs::FieldId as F;
use openflow_rs::action::is_mpls;
use packet::{ethertype, ipproto};

/// Where a field is in a key: bits of a word, and from which bit of the field on they are.
pub(crate) struct Place {
    pub(crate) word: usize,
    pub(crate) shift: u32,
    pub(crate) bits: u32,
    /// None: bits that only connection tracking uses.
    pub(crate) field: Option<F>,
    pub(crate) from: u32,
}

impl Place {
    /// The bits of its word.
    pub(crate) fn mask(&self) -> u64 {
        (u64::MAX >> (64 - self.bits)) << self.shift
    }
}

/// Whether words from this one on hold fields of neighbour discovery; the transport header is in the word before.
fn is_nd(words: &[u64], at: usize) -> bool {
    let transport = at.checked_sub(1).and_then(|w| words.get(w)).map_or(0, |w| w >> 16);
    let says = matches!(transport & 0xff_ffff, 0x3a_8700 | 0x3a_8800) && words.len() >= at + 4;
    match words.first().map_or(0, |head| kind_of(*head)).checked_sub(SHAPES) {
        Some(kind) if kind < ALONE => kind % FIELD_KINDS == kinds::ND as usize,
        _ => says,
    }
}

/// The first word of the inner packet of a key of fields, whose words from `at` on are the tunnel's header.
pub(crate) fn within(words: &[u64], at: usize) -> Option<usize> {
    let size = (words.get(at)? & 0xff) as usize;
    // Eight bytes each; what is left of four has a word of its own.
    Some(at + 1 + size.div_ceil(8))
}

/// Whether a key is of how a fragment goes on.
pub(crate) fn is_leg(words: &[u64]) -> bool {
    words.first() == Some(&LEG)
}

/// `IpFrag` of a key of fields.
pub(crate) fn fragment(words: &[u64]) -> u64 {
    words.get(1).map_or(0, |form| form >> FRAGMENT & 3)
}

/// Whether a kind is neighbour discovery.
pub(crate) fn solicits(kind: usize) -> bool {
    kind.checked_sub(SHAPES).is_some_and(|k| k % FIELD_KINDS == kinds::ND as usize)
}

/// Adds the places of addresses of IPv6 from a word on.
fn addresses6(list: &mut Vec<Place>, at: usize) {
    for (i, f) in [F::Ipv6Src, F::Ipv6Dst].into_iter().enumerate() {
        list.push(Place { word: at + 2 * i, shift: 0, bits: 64, field: Some(f), from: 64 });
        list.push(Place { word: at + 2 * i + 1, shift: 0, bits: 64, field: Some(f), from: 0 });
    }
}

/// The places of a packet's fields in a key of fields that begin with a word, and the first word behind them.
/// EtherType, tags and ARP's constants have no place: all packets of a flow have the same.
pub(crate) fn places(words: &[u64], first: usize) -> Option<(Vec<Place>, usize)> {
    let mut list = Vec::new();
    let place =
        |word: usize, shift: u32, bits: u32, field: F, from: u32| Place { word, shift, bits, field: Some(field), from };
    list.push(place(first, 16, 48, F::EthDst, 0));
    list.push(place(first, 0, 12, F::TcpFlags, 0));
    list.push(place(first + 1, 16, 48, F::EthSrc, 0));
    let tagged = words.get(first)? & 0x1000 != 0;
    let kind = (words.get(first + 1)? & 0xffff) as u16;
    let odd = words.get(first)? & (NO_IP | ODD_LENGTH);
    let mut at = first + 2 + usize::from(tagged);
    let transport = match kind {
        kind if is_mpls(kind) => {
            for ((f, word), shift) in LABEL_FIELDS.into_iter().zip([at, at, at + 1]).zip([32, 0, 0]) {
                list.push(place(word, shift, 32, f, 0));
            }
            at += 2;
            None
        }
        ethertype::IPV4 | ethertype::IPV6 if odd & NO_IP != 0 => {
            if odd & ODD_LENGTH != 0 {
                addresses6(&mut list, at);
                at += 4;
            }
            None
        }
        ethertype::IPV4 => {
            list.push(place(at, 32, 32, F::IpSrc, 0));
            list.push(place(at, 0, 32, F::IpDst, 0));
            list.push(place(at + 1, 48, 8, F::NwTos, 0));
            list.push(place(at + 1, 40, 8, F::IpTtl, 0));
            at += 2;
            Some(at - 1)
        }
        ethertype::IPV6 => {
            addresses6(&mut list, at);
            list.push(place(at + 4, 28, 8, F::NwTos, 0));
            list.push(place(at + 4, 8, 20, F::Ipv6Label, 0));
            list.push(place(at + 4, 0, 8, F::IpTtl, 0));
            at += 6;
            Some(at - 1)
        }
        ethertype::ARP | ethertype::RARP => {
            list.push(place(at, 0, 16, F::ArpOp, 0));
            list.push(place(at + 1, 16, 48, F::ArpSha, 0));
            list.push(place(at + 1, 0, 16, F::ArpSpa, 16));
            list.push(place(at + 2, 48, 16, F::ArpSpa, 0));
            list.push(place(at + 2, 0, 48, F::ArpTha, 0));
            list.push(place(at + 3, 0, 32, F::ArpTpa, 0));
            at += 4;
            None
        }
        _ => None,
    };
    if let Some(w) = transport {
        list.push(place(w, 32, 8, F::IpProto, 0));
        match (words.get(w)? >> 32 & 0xff) as u8 {
            ipproto::ICMP | ipproto::ICMPV6 => {
                list.push(place(w, 24, 8, F::IcmpType, 0));
                list.push(place(w, 16, 8, F::IcmpCode, 0));
                list.push(Place { word: w, shift: 0, bits: 16, field: None, from: 0 });
            }
            _ => {
                list.push(place(w, 16, 16, F::TcpSrc, 0));
                list.push(place(w, 0, 16, F::TcpDst, 0));
            }
        }
    }
    if kind == ethertype::IPV6 && is_nd(words, at) {
        list.push(place(at, 0, 64, F::NdTarget, 64));
        list.push(place(at + 1, 0, 64, F::NdTarget, 0));
        list.push(place(at + 2, 0, 48, F::NdSll, 0));
        list.push(place(at + 3, 0, 48, F::NdTll, 0));
        at += 4;
    }
    Some((list, at))
}

/// The words in use of a key of fields.
pub(crate) fn used(words: &[u64]) -> &[u64] {
    let n = words.get(1).map_or(0, |form| form >> LENGTH & 0x3f);
    words.get(..n as usize).unwrap_or_default()
}

/// The device that packets with a key come from.
pub(in super::super) fn device(words: &[u64]) -> DeviceId {
    words.first().map_or(DeviceId::NONE, |head| DeviceId(*head as u32))
}

/// Device, frame and shape of a key of masked bytes; the frame has fitting lengths and no payload. None for a key of
/// fields.
pub(crate) fn frame(words: &[u64]) -> Option<(DeviceId, Vec<u8>, &'static Shape)> {
    let (head, rest) = words.split_first()?;
    let shape = ALL.get(kind_of(*head)).filter(|_| head & RAW != 0)?;
    let mut p: Vec<u8> = rest.iter().flat_map(|w| w.to_ne_bytes()).collect();
    p.resize(8 * RAW_WORDS + 64, 0);
    let whole = p.len();
    let mut lengths = |from: usize, l: Layout| {
        let l3 = from + usize::from(l.l3);
        let (at, behind) = if l.ip == 6 { (l3 + 4, l3 + 40) } else { (l3 + 2, l3) };
        if let Some(n) = p.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
            *n = ((whole - behind) as u16).to_be_bytes();
        }
        if l.proto == ipproto::TCP
            && let Some(b) = p.get_mut(from + usize::from(l.l4) + 12)
        {
            *b |= 0x50;
        }
    };
    lengths(0, shape.outer);
    if shape.inner_at != 0 {
        lengths(shape.inner_at, shape.inner);
    }
    Some((DeviceId(*head as u32), p, shape))
}
