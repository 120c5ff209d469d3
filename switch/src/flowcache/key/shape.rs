//! Frames whose bytes are their keys: which kinds there are, which of their bytes count, and of which kind a frame is.

use super::{BLOCK, KIND, Layout, RAW, TRACKED_FLAGS};
use crate::ids::DeviceId;
use crate::tunnel::{Own, TunnelKind};
use packet::gre::{ERSPAN, Erspan};
use packet::{be16, be32, ethertype, ipproto};

/// Blocks of the longest frame whose bytes are its key: tagged TCP over IPv6 in Geneve with an option, tagged. The first
/// word is not the frame's.
const RAW_BLOCKS: usize = 3;
/// Words of that frame up to the TCP flags, where the tunnel is one over IPv6.
pub(crate) const RAW_WORDS: usize = 20;
/// Most blocks of a key that has masks: neighbour discovery over IPv6 in a tunnel of IPv6 is longer.
pub(crate) const MASK_BLOCKS: usize = 3;
/// First those of IPv4, alone or in a tunnel, then those of IPv6 in the same order.
pub(crate) const SHAPES: usize = 2 * FAMILY;
pub(super) const FAMILY: usize = UDP6_SHAPES + 24;
/// The first of a family are of frames without a tunnel.
pub(super) const ALONE_SHAPES: usize = 6;
/// Those behind are in tunnels over UDP, then in GRE, both over IPv4.
const UDP_SHAPES: usize = ALONE_SHAPES + 24;
/// From here on they are in tunnels over UDP over IPv6.
const UDP6_SHAPES: usize = UDP_SHAPES + 12 * GRE_FORMS.len();

/// What stands between the outer IP header and a frame in GRE.
struct GreForm {
    /// The first four bytes of GRE: flags and protocol.
    first: u32,
    len: usize,
    /// Where the number is that each packet has another one of; 0: there is none.
    sequence: usize,
}

/// With a key, with numbers, with both; and ERSPAN's second type, whose header is behind that of GRE.
const GRE_FORMS: [GreForm; 5] = [
    GreForm { first: 0x6558, len: 4, sequence: 0 },
    GreForm { first: 0x2000_6558, len: 8, sequence: 0 },
    GreForm { first: 0x1000_6558, len: 8, sequence: 4 },
    GreForm { first: 0x3000_6558, len: 12, sequence: 8 },
    GreForm { first: 0x1000_88be, len: 16, sequence: 4 },
];
/// A kind of frame whose bytes are its key.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) masks: [[u64; BLOCK]; RAW_BLOCKS],
    pub(super) blocks: usize,
    pub(crate) outer: Layout,
    pub(crate) inner: Layout,
    /// Where the inner frame begins; 0: there is none.
    pub(crate) inner_at: usize,
}

/// Which part of the transport header is in the key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Udp = 0,
    Tcp = 1,
    /// With all flags.
    TcpFlags = 2,
}

/// Marks the bytes of an IP frame that are in the key; returns where they end.
const fn mark(m: &mut [u8; 8 * RAW_WORDS], from: usize, tags: usize, kind: Kind, v6: bool) -> usize {
    let l3 = from + 14 + 4 * tags;
    let l4 = l3 + ip_len(v6);
    // EtherTypes, versions and lengths of headers are in it: they tell kinds of frames apart.
    let mut i = from;
    while i < l4 + 4 {
        let skipped = match v6 {
            // Length.
            true => i == l3 + 4 || i == l3 + 5,
            // Length, identification, fragment (there is none); checksum.
            false => i >= l3 + 2 && i < l3 + 8 || i >= l3 + 10 && i < l3 + 12,
        };
        if !skipped {
            m[i] = 0xff;
        }
        i += 1;
    }
    let flags = l4 + 12;
    match kind {
        Kind::Udp => return l4 + 4,
        Kind::Tcp => m[flags + 1] = TRACKED_FLAGS as u8,
        Kind::TcpFlags => (m[flags], m[flags + 1]) = (0x0f, 0xff),
    }
    flags + 2
}

/// Bytes of an IP header without options.
pub(super) const fn ip_len(v6: bool) -> usize {
    if v6 { 40 } else { 20 }
}

const fn layout(tags: usize, kind: Kind, v6: bool) -> Layout {
    let l3 = 14 + 4 * tags as u16;
    let proto = if matches!(kind, Kind::Udp) { ipproto::UDP } else { ipproto::TCP };
    Layout { l3, l4: l3 + ip_len(v6) as u16, tags: tags as u8, ip: if v6 { 6 } else { 4 }, proto }
}

const fn shapes() -> [Shape; SHAPES] {
    let none = Layout { l3: 0, l4: 0, tags: 0, ip: 0, proto: 0 };
    let mut all = [Shape { masks: [[0; BLOCK]; RAW_BLOCKS], blocks: 0, outer: none, inner: none, inner_at: 0 }; SHAPES];
    let mut number = 0;
    while number < SHAPES {
        let (i, v6) = (number % FAMILY, number >= FAMILY);
        let shape = &mut all[number];
        let kind = [Kind::Udp, Kind::Tcp, Kind::TcpFlags][i % 3];
        let tags = i / 3 % 2;
        let mut m = [0; 8 * RAW_WORDS];
        let end = if i < ALONE_SHAPES {
            shape.outer = layout(tags, kind, v6);
            mark(&mut m, 0, tags, kind, v6)
        } else if i >= UDP_SHAPES && i < UDP6_SHAPES {
            let (outer_tags, form) = ((i - UDP_SHAPES) / 6 % 2, &GRE_FORMS[(i - UDP_SHAPES) / 12]);
            let gre = 14 + 4 * outer_tags + 20;
            shape.outer = Layout { l4: 0, proto: ipproto::GRE, ..layout(outer_tags, Kind::Udp, false) };
            shape.inner = layout(tags, kind, v6);
            shape.inner_at = gre + form.len;
            mark(&mut m, 0, outer_tags, Kind::Udp, false);
            let mut b = 0;
            while b < form.len {
                m[gre + b] = if form.sequence != 0 && b >= form.sequence && b < form.sequence + 4 { 0 } else { 0xff };
                b += 1;
            }
            mark(&mut m, shape.inner_at, tags, kind, v6)
        } else {
            let over_v6 = i >= UDP6_SHAPES;
            let n = i - if over_v6 { UDP6_SHAPES } else { ALONE_SHAPES };
            let (outer_tags, options) = (n / 12, n / 6 % 2 * 8);
            shape.outer = layout(outer_tags, Kind::Udp, over_v6);
            shape.inner = layout(tags, kind, v6);
            mark(&mut m, 0, outer_tags, Kind::Udp, over_v6);
            let tunnel = 14 + 4 * outer_tags + ip_len(over_v6) + 8;
            let inner = tunnel + 8 + options;
            shape.inner_at = inner;
            let mut b = tunnel;
            while b < inner {
                m[b] = 0xff;
                b += 1;
            }
            mark(&mut m, inner, tags, kind, v6)
        };
        let n = end.div_ceil(8);
        let mut w = 0;
        while w < n {
            let mut bytes = [0; 8];
            let mut b = 0;
            while b < 8 {
                bytes[b] = m[8 * w + b];
                b += 1;
            }
            w += 1;
            shape.masks[w / BLOCK][w % BLOCK] = u64::from_ne_bytes(bytes);
        }
        shape.blocks = n / BLOCK + 1;
        number += 1;
    }
    all
}

pub(super) static ALL: [Shape; SHAPES] = shapes();

/// An IP frame with TCP or UDP, as far as keys are concerned.
struct Plain {
    kind: Kind,
    tags: usize,
    /// Destination port.
    port: u16,
    /// Where the IP packet ends.
    end: usize,
}

/// Reads a frame of that kind over IPv4; none if it is any other.
#[inline(always)]
fn plain(f: &[u8], exact_flags: bool) -> Option<Plain> {
    let head: &[u8; 18] = f.first_chunk()?;
    let kind = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let tags = match kind(12) {
        ethertype::IPV4 => 0,
        ethertype::VLAN if kind(16) == ethertype::IPV4 => 1,
        _ => return None,
    };
    behind_tags(f, tags, exact_flags)
}

/// Reads such a frame from its network header on.
#[inline(always)]
fn behind_tags(f: &[u8], tags: usize, exact_flags: bool) -> Option<Plain> {
    let l3 = 14 + 4 * tags;
    let ip: &[u8; 28] = f.get(l3..)?.first_chunk()?;
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
    if ip[0] != 0x45 || fragment != 0 {
        return None;
    }
    let (kind, end) = match ip[9] {
        ipproto::UDP => (Kind::Udp, end::<false, false>(f, l3)?),
        ipproto::TCP => (if exact_flags { Kind::TcpFlags } else { Kind::Tcp }, end::<false, true>(f, l3)?),
        _ => return None,
    };
    Some(Plain { kind, tags, port: u16::from_be_bytes([ip[22], ip[23]]), end })
}

/// Where the packet ends of a frame with UDP or TCP behind an IP header at `l3` without options or extensions; none where its
/// lengths are wrong.
#[inline(always)]
fn end<const V6: bool, const TCP: bool>(f: &[u8], l3: usize) -> Option<usize> {
    let n = ip_len(V6);
    let head = f.get(l3..)?;
    let payload = match V6 {
        true => be16(head, 4)?.into(),
        false => usize::from(be16(head, 2)?).checked_sub(n)?,
    };
    let transport = head.get(n..n + payload)?.first_chunk::<8>()?;
    let right = match TCP {
        true => {
            let words = usize::from(*head.get(n + 12)? >> 4);
            words >= 5 && payload >= 4 * words
        }
        // Keys of packets with bad lengths are fields.
        false => (8..=payload).contains(&usize::from(u16::from_be_bytes([transport[4], transport[5]]))),
    };
    right.then_some(l3 + n + payload)
}

/// The same over IPv6.
#[inline(never)]
fn plain6(f: &[u8], exact_flags: bool) -> Option<Plain> {
    let tags = match (be16(f, 12)?, be16(f, 16)?) {
        (ethertype::IPV6, _) => 0,
        (ethertype::VLAN, ethertype::IPV6) => 1,
        _ => return None,
    };
    behind_tags6(f, tags, exact_flags)
}

/// Reads such a frame from its network header on.
#[inline(always)]
fn behind_tags6(f: &[u8], tags: usize, exact_flags: bool) -> Option<Plain> {
    let l3 = 14 + 4 * tags;
    let ip: &[u8; 48] = f.get(l3..)?.first_chunk()?;
    if ip[0] >> 4 != 6 {
        return None;
    }
    let (kind, end) = match ip[6] {
        ipproto::UDP => (Kind::Udp, end::<true, false>(f, l3)?),
        ipproto::TCP => (if exact_flags { Kind::TcpFlags } else { Kind::Tcp }, end::<true, true>(f, l3)?),
        _ => return None,
    };
    Some(Plain { kind, tags, port: u16::from_be_bytes([ip[42], ip[43]]), end })
}

/// Reads a frame in a tunnel, and where the kinds of its family begin.
#[inline(always)]
fn inside(f: &[u8], exact_flags: bool) -> Option<(Plain, usize)> {
    match plain(f, exact_flags) {
        Some(p) => Some((p, 0)),
        None => plain6(f, exact_flags).map(|p| (p, FAMILY)),
    }
}

/// A frame whose bytes are its key.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    /// Which kind it is.
    pub(crate) kind: usize,
    /// Where the IP packet ends.
    pub(crate) end: usize,
}

/// Where the inner frame of a kind begins; 0: there is none.
#[inline(always)]
pub(crate) fn inner_at(kind: usize) -> usize {
    ALL.get(kind).map_or(0, |s| s.inner_at)
}

impl Class {
    /// The first word of its key.
    #[inline(always)]
    pub(crate) fn head(self, device: DeviceId) -> u64 {
        RAW | (self.kind as u64) << KIND | u64::from(device.0)
    }
}

/// The kind of a frame; none if its key is made of fields.
#[inline(always)]
pub(crate) fn classify(p: &[u8], own: &Own, exact_flags: bool) -> Option<Class> {
    let Some(outer) = plain(p, exact_flags) else { return other(p, own, exact_flags) };
    if outer.kind == Kind::Udp
        && let Some(tunnel) = own.tunnel(outer.port)
    {
        let l3 = 14 + 4 * outer.tags;
        if own.has(false, be32(p, l3 + 16)?.into()) {
            return in_udp(p, (tunnel, l3 + 20), &outer, ALONE_SHAPES, exact_flags);
        }
    }
    Some(Class { kind: outer.kind as usize + 3 * outer.tags, end: outer.end })
}

/// The kind of a frame in a tunnel over UDP, whose header is at `l4`, that ends here; none where something else than TCP or
/// UDP is inside. `first` is the first kind of its outer IP version.
#[inline(always)]
fn in_udp(
    p: &[u8],
    (tunnel, l4): (TunnelKind, usize),
    outer: &Plain,
    first: usize,
    exact_flags: bool,
) -> Option<Class> {
    // RFC 8926 section 3.4: the low six bits of the first byte are the options' length in words.
    let options = match tunnel {
        TunnelKind::Geneve => *p.get(l4 + 8)? & 0x3f,
        TunnelKind::Vxlan => 0,
        // Their packets walk the tables.
        _ => return None,
    };
    if !matches!(options, 0 | 2) {
        return None;
    }
    let at = l4 + 16 + 4 * usize::from(options);
    let (inner, family) = inside(p.get(at..outer.end)?, exact_flags)?;
    let kind = outer.tags * 12 + usize::from(options / 2) * 6 + inner.tags * 3 + inner.kind as usize;
    Some(Class { kind: family + first + kind, end: outer.end })
}

/// The same of a frame that is not TCP or UDP over IPv4.
#[inline(never)]
fn other(p: &[u8], own: &Own, exact_flags: bool) -> Option<Class> {
    let Some(alone) = plain6(p, exact_flags) else { return in_gre(p, own, exact_flags) };
    if alone.kind == Kind::Udp
        && let Some(tunnel) = own.tunnel(alone.port)
    {
        let l3 = 14 + 4 * alone.tags;
        let dst: &[u8; 16] = p.get(l3 + 24..)?.first_chunk()?;
        if own.has(true, u128::from_be_bytes(*dst)) {
            return in_udp(p, (tunnel, l3 + 40), &alone, UDP6_SHAPES, exact_flags);
        }
    }
    Some(Class { kind: FAMILY + alone.kind as usize + 3 * alone.tags, end: alone.end })
}

/// The kind of a frame in GRE that ends here, with TCP or UDP inside; none of any other.
fn in_gre(p: &[u8], own: &Own, exact_flags: bool) -> Option<Class> {
    let tags = match (be16(p, 12)?, be16(p, 16)?) {
        (ethertype::IPV4, _) => 0,
        (ethertype::VLAN, ethertype::IPV4) => 1,
        _ => return None,
    };
    let l3 = 14 + 4 * tags;
    let ip: &[u8; 24] = p.get(l3..)?.first_chunk()?;
    if ip[0] != 0x45 || ip[9] != ipproto::GRE || be16(ip, 6)? & 0x3fff != 0 || !own.has(false, be32(ip, 16)?.into()) {
        return None;
    }
    let first = be32(ip, 20)?;
    let form = GRE_FORMS.iter().position(|f| f.first == first)?;
    let (end, gre) = (l3 + usize::from(be16(ip, 2)?), l3 + 20);
    let len = GRE_FORMS.get(form)?.len;
    if first as u16 == ERSPAN[0] {
        Erspan::parse(ERSPAN[0], p.get(gre + 8..)?)?;
    }
    let (inner, family) = inside(p.get(gre + len..end)?, exact_flags)?;
    Some(Class { kind: family + UDP_SHAPES + 12 * form + 6 * tags + 3 * inner.tags + inner.kind as usize, end })
}

/// A kind of frames without a tunnel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    /// Over IPv6.
    pub(crate) v6: bool,
    /// With TCP, else UDP.
    pub(crate) tcp: bool,
    /// With all of TCP's flags in the key.
    flags: bool,
    /// Where the IP header is.
    l3: usize,
}

/// Masks and values of bytes, by place in the frame.
pub(crate) type Bytes = [(usize, u8, u8); 4];

impl Alone {
    /// The kind with this number; none if its frames are in tunnels, or have keys of fields.
    pub(crate) fn of(kind: usize) -> Option<Alone> {
        let v6 = kind >= FAMILY;
        let i = if v6 { kind - FAMILY } else { kind };
        let (tcp, flags) = (i % 3 != Kind::Udp as usize, i % 3 == Kind::TcpFlags as usize);
        (i < ALONE_SHAPES).then_some(Alone { v6, tcp, flags, l3: 14 + 4 * (i / 3) })
    }

    /// Whether frames are of this kind while keys have all of TCP's flags, or have not.
    pub(crate) fn is_in_use(self, exact_flags: bool) -> bool {
        !self.tcp || self.flags == exact_flags
    }

    /// What tells it from other frames with these EtherTypes: version and length of the IP header, protocol, and that it is no
    /// fragment.
    pub(crate) fn bytes(self) -> Bytes {
        let (at, proto) = (self.l3, if self.tcp { ipproto::TCP } else { ipproto::UDP });
        match self.v6 {
            true => [(at, 0xf0, 0x60), (at + 6, 0xff, proto), (0, 0, 0), (0, 0, 0)],
            false => [(at, 0xff, 0x45), (at + 6, 0x3f, 0), (at + 7, 0xff, 0), (at + 9, 0xff, proto)],
        }
    }

    /// Whether a frame has these bytes.
    pub(crate) fn has_bytes(self, f: &[u8]) -> bool {
        self.bytes().iter().all(|(at, mask, value)| f.get(*at).is_some_and(|b| b & mask == *value))
    }

    /// Where the packet ends of a frame with its EtherTypes and its [`Alone::bytes`]; none where it is of another kind: its
    /// lengths are wrong, or it is in a tunnel that ends here.
    #[inline(always)]
    pub(crate) fn end<const V6: bool, const TCP: bool>(self, f: &[u8], own: &Own) -> Option<usize> {
        let end = end::<V6, TCP>(f, self.l3)?;
        let tunnel = !TCP && own.tunnel(be16(f, self.l3 + ip_len(V6) + 2)?).is_some();
        (!tunnel || !to_here(f, self.l3, V6, own)).then_some(end)
    }
}

/// Whether an IP packet is for an address at which tunnels end.
#[cold]
fn to_here(f: &[u8], l3: usize, v6: bool, own: &Own) -> bool {
    let (at, n) = if v6 { (l3 + 24, 16) } else { (l3 + 16, 4) };
    let bytes = f.get(at..at + n).unwrap_or_default();
    own.has(v6, bytes.iter().fold(0, |a, b| a << 8 | u128::from(*b)))
}

/// [`classify`], where the EtherTypes are known to be those of this kind, and it is most likely of the same.
#[inline(always)]
pub(crate) fn classify_as(kind: usize, p: &[u8], own: &Own, exact_flags: bool) -> Option<Class> {
    let (alone, family) = if kind < FAMILY { (kind, 0) } else { (kind - FAMILY, FAMILY) };
    if alone >= ALONE_SHAPES {
        return classify(p, own, exact_flags);
    }
    let tags = alone / 3;
    let outer = if family == 0 { behind_tags(p, tags, exact_flags)? } else { behind_tags6(p, tags, exact_flags)? };
    if outer.kind == Kind::Udp && own.tunnel(outer.port).is_some() {
        return classify(p, own, exact_flags);
    }
    Some(Class { kind: family + outer.kind as usize + 3 * tags, end: outer.end })
}
