//! Packed keys: every byte of a packet that translation can see, without its lengths and checksums.
//!
//! TCP and UDP over IPv4 and IPv6, untagged or tagged, alone or in a tunnel that ends here, is nearly all that passes a
//! gateway. The key of such a frame is its first bytes under a mask ([`Shape`]). Keys of other frames are
//! assembled field by field. Either way a key is one or more blocks of eight words, so that filling, hashing and comparing
//! it needs no loop over words.

use crate::extract::LABEL_FIELDS;
use crate::ids::DeviceId;
use crate::tunnel::{Own, TunnelKind, tunnel_kind};
use openflow_rs::FieldId as F;
use openflow_rs::action::{ETH_NSH, is_mpls};
use packet::gre::{self, ERSPAN, Erspan, Gre};
use packet::{Headers, be16, be32, ethertype, ipproto, nd_fields};

/// Words of a block; unused words are 0.
pub(crate) const BLOCK: usize = 8;
/// Most blocks: device, two packets with IPv6 and tags, and a tunnel header have up to 36 words.
pub(crate) const MAX_BLOCKS: usize = 5;
/// Longest headers of GRE and ERSPAN, without a checksum.
const MAX_GRE: usize = 12 + 12;
/// Longest tunnel header.
const MAX_TUNNEL: usize = 8 + 64;
/// TCP flags that connection tracking uses: FIN, SYN, RST, ACK.
const TRACKED_FLAGS: u16 = 0x17;
/// In the first word: the key is masked bytes.
const RAW: u64 = 1 << 63;
/// In the first word, from this bit on: the kind of frame.
const KIND: u32 = 32;
/// Its bits.
const KIND_MASK: u64 = 0x3ff;
/// In the first word, from this bit up to [`RAW`]: the number of the mask, in keys under one.
pub(super) const NUMBER: u32 = KIND + KIND_MASK.trailing_ones();
/// The first word of a key that is no packet's, but of how a fragment goes on.
const LEG: u64 = KIND_MASK << KIND;
/// In the second word of a key of fields: from this bit on, its number of words.
const LENGTH: u32 = 24;
/// In the same word: `IpFrag`, bit 0 for a fragment, bit 1 for a later one.
const FRAGMENT: u32 = 32;
/// In the first word of a packet's fields: what is wrong with it. No IP header is read, or only the addresses of one over
/// IPv6; lengths of its transport header do not hold, or there is no room for one.
const NO_IP: u64 = 1 << 13;
const ODD_LENGTH: u64 = 1 << 14;
const NO_TRANSPORT: u64 = 1 << 15;

/// Where a frame's headers are: the same in all packets of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Layout {
    /// Offset of the network header.
    pub(crate) l3: u16,
    /// Offset of the transport header; 0: none.
    pub(crate) l4: u16,
    /// Tags.
    pub(crate) tags: u8,
    /// IP version; 0: not well-formed IP.
    pub(crate) ip: u8,
    /// IP protocol.
    pub(crate) proto: u8,
}

impl Layout {
    pub(crate) fn of(h: &Headers) -> Option<Layout> {
        Some(Layout {
            l3: h.l3.try_into().ok()?,
            l4: h.l4.unwrap_or(0).try_into().ok()?,
            tags: h.vlans.iter().flatten().count() as u8,
            ip: if h.is_ipv4() { 4 } else { u8::from(h.is_ipv6()) * 6 },
            proto: h.proto,
        })
    }

    /// The layout in 23 bits.
    fn word(self) -> u64 {
        u64::from(self.l4) | u64::from(self.l3 & 0x7f) << 16
    }

    /// The layout from such a word.
    pub(crate) fn offsets(word: u64) -> Layout {
        Layout { l3: (word >> 16) as u16 & 0x7f, l4: word as u16, ..Layout::default() }
    }
}

/// Blocks of the longest frame whose bytes are its key: tagged TCP over IPv6 in Geneve with an option, tagged. The first
/// word is not the frame's.
pub(crate) const RAW_BLOCKS: usize = 3;
/// Words of that frame up to the TCP flags, where the tunnel is one over IPv6.
pub(crate) const RAW_WORDS: usize = 20;
/// Most blocks of a key that has masks: neighbour discovery over IPv6 in a tunnel of IPv6 is longer.
pub(crate) const MASK_BLOCKS: usize = 3;
/// First those of IPv4, alone or in a tunnel, then those of IPv6 in the same order.
pub(crate) const SHAPES: usize = 2 * FAMILY;
const FAMILY: usize = UDP6_SHAPES + 24;
/// The first of a family are of frames without a tunnel.
const ALONE_SHAPES: usize = 6;
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
/// Kinds of frames that have masks: shapes, and kinds of fields, each untagged or tagged, alone and in tunnels over IPv4
/// and IPv6 that end here.
pub(crate) const KINDS: usize = SHAPES + 3 * ALONE;
// All ones mean no kind.
const _: () = assert!(KINDS < KIND_MASK as usize);
/// Kinds of frames with keys of fields, untagged.
const FIELD_KINDS: usize = 7;
/// The same with those that are tagged.
const ALONE: usize = 2 * FIELD_KINDS;

/// A kind of frame whose bytes are its key.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) masks: [[u64; BLOCK]; RAW_BLOCKS],
    blocks: usize,
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
const fn ip_len(v6: bool) -> usize {
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

static ALL: [Shape; SHAPES] = shapes();

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
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
    let end = l3 + total;
    if ip[0] != 0x45 || fragment != 0 || end > f.len() || total < 28 {
        return None;
    }
    let kind = match ip[9] {
        // Keys of packets with bad lengths are fields.
        ipproto::UDP if !(8..=total - 20).contains(&usize::from(u16::from_be_bytes([ip[24], ip[25]]))) => return None,
        ipproto::UDP => Kind::Udp,
        ipproto::TCP => {
            let words = usize::from(*f.get(l3 + 32)? >> 4);
            if words < 5 || total < 20 + 4 * words {
                return None;
            }
            if exact_flags { Kind::TcpFlags } else { Kind::Tcp }
        }
        _ => return None,
    };
    Some(Plain { kind, tags, port: u16::from_be_bytes([ip[22], ip[23]]), end })
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
    let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let payload = usize::from(word(4));
    let end = l3 + 40 + payload;
    if ip[0] >> 4 != 6 || end > f.len() || payload < 8 {
        return None;
    }
    let kind = match ip[6] {
        ipproto::UDP if !(8..=payload).contains(&usize::from(word(44))) => return None,
        ipproto::UDP => Kind::Udp,
        ipproto::TCP => {
            let words = usize::from(*f.get(l3 + 52)? >> 4);
            if words < 5 || payload < 4 * words {
                return None;
            }
            if exact_flags { Kind::TcpFlags } else { Kind::Tcp }
        }
        _ => return None,
    };
    Some(Plain { kind, tags, port: word(42), end })
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

/// The kind that a key's first word says.
#[inline(always)]
pub(super) fn kind_of(head: u64) -> usize {
    (head >> KIND & KIND_MASK) as usize
}

/// Where the inner frame of a kind begins; 0: there is none.
#[inline(always)]
pub(crate) fn inner_at(kind: usize) -> usize {
    ALL.get(kind).map_or(0, |s| s.inner_at)
}

impl Class {
    /// The lengths of the packet (`whole`) and of the inner frame.
    #[inline(always)]
    pub(crate) fn lengths(self, whole: usize) -> (usize, [usize; 2]) {
        let inner_at = inner_at(self.kind);
        (self.end, [whole, if inner_at == 0 { 0 } else { self.end - inner_at }])
    }

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

/// How the candidate entry of a key was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Found {
    /// By the whole key.
    #[default]
    Exact,
    /// Under a mask; the key was narrowed to the megaflow's.
    Narrow,
    /// It is the megaflow of an earlier packet; only the first word of the key is set.
    Again,
}

/// Fills words from a frame under masks; beyond its end they are 0.
#[inline(always)]
fn masked<const N: usize>(p: &[u8], to: &mut [u64; N], masks: &[u64; N]) {
    let (from, rest) = p.as_chunks::<8>();
    match from.first_chunk::<N>() {
        Some(from) => {
            for i in 0..N {
                to[i] = u64::from_ne_bytes(from[i]) & masks[i];
            }
        }
        None => {
            let mut last = [0; 8];
            last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            let words = from.iter().chain([&last, &[0; 8], &[0; 8]]);
            to.fill(0);
            for ((to, from), mask) in to.iter_mut().zip(words).zip(masks) {
                *to = u64::from_ne_bytes(*from) & mask;
            }
        }
    }
}

/// Words of a key, one after the other.
struct Words<'a> {
    blocks: &'a mut [[u64; BLOCK]; MAX_BLOCKS],
    n: usize,
    full: bool,
}

impl Words<'_> {
    #[inline(always)]
    fn push(&mut self, w: u64) {
        match self.blocks.as_flattened_mut().get_mut(self.n) {
            Some(x) => {
                *x = w;
                self.n += 1;
            }
            None => self.full = true,
        }
    }

    /// Fills the last block with zeros and returns the number of blocks; none if there were too many words.
    fn end(self) -> Option<usize> {
        let blocks = self.n.div_ceil(BLOCK);
        let all = self.blocks.as_flattened_mut();
        all.get_mut(self.n..blocks * BLOCK)?.fill(0);
        // The number of words tells a key from one that it is the beginning of.
        *all.get_mut(1)? |= (self.n as u64) << LENGTH;
        (!self.full).then_some(blocks)
    }
}

/// A key under construction.
#[derive(Clone, Debug)]
pub(crate) struct PackedKey {
    blocks: [[u64; BLOCK]; MAX_BLOCKS],
    /// Blocks in use; 0: packets of this kind are not cached.
    len: usize,
    /// The hash of the blocks.
    pub(crate) hash: u64,
    /// The number of the candidate entry.
    pub(crate) candidate: u32,
    /// How the candidate was found.
    pub(crate) found: Found,
    /// Where the packet's headers are.
    pub(crate) outer: Layout,
    /// Where the headers of the inner frame are, from its beginning.
    pub(crate) inner: Layout,
    /// Where the inner frame of a tunnel that ends here begins; else 0.
    pub(crate) inner_at: usize,
    /// Where the packet ends according to its network header.
    pub(crate) end: usize,
}

/// `N` bytes as a number, the first the greatest.
#[inline(always)]
fn word<const N: usize>(p: &[u8], at: usize) -> Option<u64> {
    let from: &[u8; N] = p.get(at..)?.first_chunk()?;
    let mut b = [0; 8];
    b[8 - N..].copy_from_slice(from);
    Some(u64::from_be_bytes(b))
}

impl Default for PackedKey {
    fn default() -> PackedKey {
        PackedKey {
            blocks: [[0; BLOCK]; MAX_BLOCKS],
            len: 0,
            hash: 0,
            candidate: 0,
            found: Found::Exact,
            outer: Layout::default(),
            inner: Layout::default(),
            inner_at: 0,
            end: 0,
        }
    }
}

impl PackedKey {
    /// Builds the key of a packet; false if its kind is not cached. The hash is not set.
    #[inline]
    pub(crate) fn fill(&mut self, device: DeviceId, p: &[u8], own: &Own, exact_flags: bool) -> bool {
        self.fill_as(device, p, classify(p, own, exact_flags), own, exact_flags)
    }

    /// The same for a packet whose kind is known.
    #[inline(always)]
    pub(crate) fn fill_as(
        &mut self,
        device: DeviceId,
        p: &[u8],
        class: Option<Class>,
        own: &Own,
        exact_flags: bool,
    ) -> bool {
        self.found = Found::Exact;
        match class {
            Some(class) => {
                self.raw(device, p, class);
                true
            }
            None => self.fields(device, p, own, exact_flags),
        }
    }

    /// The blocks in use; none if packets of this kind are not cached.
    #[inline(always)]
    pub(crate) fn blocks(&self) -> &[[u64; BLOCK]] {
        self.blocks.get(..self.len).unwrap_or_default()
    }

    /// The kind of frame, if it is one that has masks.
    #[inline(always)]
    pub(crate) fn kind(&self) -> Option<usize> {
        let [[head, ..], ..] = &self.blocks;
        (self.len != 0).then_some(kind_of(*head)).filter(|kind| *kind < KINDS)
    }

    /// The device that the packet came from.
    pub(crate) fn device(&self) -> DeviceId {
        DeviceId(self.head() as u32)
    }

    /// Its first word.
    pub(crate) fn head(&self) -> u64 {
        let [[head, ..], ..] = &self.blocks;
        *head
    }

    /// Whether it is the key of a fragment, or of one in a tunnel that ends here.
    pub(crate) fn is_fragment(&self) -> bool {
        let kind = self.kind().and_then(|k| k.checked_sub(SHAPES)).map_or(fields::OTHER, |k| (k % FIELD_KINDS) as u64);
        matches!(kind, fields::FRAGMENT4 | fields::FRAGMENT6)
    }

    /// Becomes the key of how a fragment goes on ([`super::fragments`]), whose headers are in these places.
    pub(crate) fn leg(&mut self, words: [u64; 3], layout: Layout) {
        let [first, ..] = &mut self.blocks;
        let [number, of, transport] = words;
        *first = [LEG, number, of, transport, 0, 0, 0, 0];
        (self.len, self.found, self.outer, self.inner_at) = (1, Found::Exact, layout, 0);
    }

    /// The shape of that kind.
    pub(crate) fn shape(&self) -> Option<&'static Shape> {
        ALL.get(self.kind()?)
    }

    /// Becomes the key of a megaflow, whose entry has this number.
    #[inline(always)]
    pub(crate) fn narrow(&mut self, to: &[[u64; BLOCK]; MASK_BLOCKS], number: u32) {
        for (to, from) in self.blocks.iter_mut().zip(to).take(self.len) {
            *to = *from;
        }
        (self.candidate, self.found) = (number, Found::Narrow);
    }

    /// Packets of its kind are cached.
    #[inline(always)]
    pub(crate) fn cached(&self) -> bool {
        self.len != 0
    }

    /// The lengths of the packet, and of the inner frame.
    #[inline]
    pub(crate) fn lengths(&self, whole: usize) -> [usize; 2] {
        [whole, if self.inner_at == 0 { 0 } else { self.end - self.inner_at }]
    }

    /// Becomes the key of a frame of this kind.
    #[inline(always)]
    fn raw(&mut self, device: DeviceId, p: &[u8], class: Class) {
        let Some(shape) = self.begin(device, class) else { return };
        let [first, second, third, ..] = &mut self.blocks;
        let [masks, more, most] = &shape.masks;
        let [_, to @ ..] = first;
        let [_, masks @ ..] = masks;
        masked(p, to, masks);
        if shape.blocks > 1 {
            masked(p.get(8 * (BLOCK - 1)..).unwrap_or_default(), second, more);
        }
        if shape.blocks > 2 {
            masked(p.get(8 * (2 * BLOCK - 1)..).unwrap_or_default(), third, most);
        }
    }

    /// The same, but only its first word.
    #[inline(always)]
    fn begin(&mut self, device: DeviceId, class: Class) -> Option<&'static Shape> {
        let shape = ALL.get(class.kind)?;
        let [[head, ..], ..] = &mut self.blocks;
        *head = class.head(device);
        self.len = shape.blocks;
        (self.outer, self.inner, self.inner_at, self.end) = (shape.outer, shape.inner, shape.inner_at, class.end);
        Some(shape)
    }

    /// Is known to be the key of this entry, as the one before it was.
    #[inline(always)]
    pub(crate) fn again(&mut self, device: DeviceId, class: Class, number: u32) {
        self.begin(device, class);
        (self.candidate, self.found) = (number, Found::Again);
    }

    /// Builds the key of any other packet, field by field.
    #[inline(never)]
    fn fields(&mut self, device: DeviceId, p: &[u8], own: &Own, exact_flags: bool) -> bool {
        (self.len, self.inner_at) = (0, 0);
        let mut whole = || {
            let headers = Headers::parse_tags(p, own.tags())?;
            self.outer = Layout::of(&headers)?;
            self.end = headers.l3_end;
            let fragment = fragments(&headers);
            let mut to = Words { blocks: &mut self.blocks, n: 0, full: false };
            to.push(0);
            to.push(self.outer.word() | fragment << FRAGMENT);
            let mut kind = to.packet(p, &headers, exact_flags)?;
            if let Some((at, inner, within)) = to.tunnel(p, &headers, own, exact_flags)? {
                (self.inner_at, self.inner) = (at, inner);
                kind = within + if headers.is_ipv6() { 2 } else { 1 } * ALONE as u64;
            }
            self.len = to.end()?;
            let [[head, ..], ..] = &mut self.blocks;
            *head = kind << KIND | u64::from(device.0);
            Some(())
        };
        whole().is_some()
    }
}

/// Kinds of frames whose keys are fields.
mod fields {
    pub(super) const IPV4: u64 = 0;
    pub(super) const IPV6: u64 = 1;
    pub(super) const ND: u64 = 2;
    pub(super) const ARP: u64 = 3;
    pub(super) const FRAGMENT4: u64 = 4;
    pub(super) const FRAGMENT6: u64 = 5;
    pub(super) const OTHER: u64 = 6;
}

impl Words<'_> {
    /// Adds a packet, and says of what kind it is.
    #[inline]
    fn packet(&mut self, p: &[u8], h: &Headers, exact_flags: bool) -> Option<u64> {
        let mut flags = 0;
        if h.proto == ipproto::TCP
            && h.ip_ok
            && let Some(l4) = h.l4
        {
            flags = be16(p, l4 + 12)? & 0xfff;
            if !exact_flags {
                flags &= TRACKED_FLAGS;
            }
        }
        let tagged = h.vlans[0].is_some();
        self.push(word::<6>(p, 0)? << 16 | u64::from(tagged) << 12 | u64::from(flags) | oddity(p, h));
        self.push(word::<6>(p, 6)? << 16 | u64::from(h.ethertype));
        if tagged {
            let tag = |v: Option<packet::Vlan>| v.map_or(0, |v| u64::from(v.tpid) << 16 | u64::from(v.tci | 0x1000));
            self.push(tag(h.vlans[0]) << 32 | tag(h.vlans[1]));
        }
        let kind = match h.ethertype {
            // NSH is in no key: such packets walk the tables.
            ETH_NSH => return None,
            // What is cut short within its labels has none to write to.
            kind if is_mpls(kind) && p.len() < h.l3 + 4 * LABEL_FIELDS.len() => return None,
            kind if is_mpls(kind) => {
                let [a, b, c] = crate::extract::label_stack(p, h).map(u64::from);
                self.push(a << 32 | b);
                self.push(c);
                fields::OTHER
            }
            ethertype::IPV4 if h.ip_ok => {
                self.push(word::<8>(p, h.l3 + 12)?);
                let (a, b) = transport(p, h)?;
                let tos_ttl = word::<1>(p, h.l3 + 1)? << 8 | word::<1>(p, h.l3 + 8)?;
                self.push(tos_ttl << 40 | u64::from(h.proto) << 32 | u64::from(a) << 16 | u64::from(b));
                if h.fragment { fields::FRAGMENT4 } else { fields::IPV4 }
            }
            ethertype::IPV6 if h.ip_ok => {
                for i in 0..4 {
                    self.push(word::<8>(p, h.l3 + 8 + 8 * i)?);
                }
                let (a, b) = transport(p, h)?;
                self.push(word::<4>(p, h.l3)? << 8 | word::<1>(p, h.l3 + 7)?);
                // Nothing behind the fragment header of a later fragment is used.
                let proto = if h.later_fragment { ipproto::FRAGMENT } else { h.proto };
                self.push(u64::from(proto) << 32 | u64::from(a) << 16 | u64::from(b));
                match nd_fields(p, h) {
                    _ if h.fragment => fields::FRAGMENT6,
                    Some((nd, _)) => {
                        let number = |m: Option<(packet::Mac, usize)>| m.map_or(0, |(m, _)| m.to_u64());
                        [(nd.target >> 64) as u64, nd.target as u64, number(nd.sll), number(nd.tll)]
                            .into_iter()
                            .for_each(|w| self.push(w));
                        fields::ND
                    }
                    None => fields::IPV6,
                }
            }
            ethertype::IPV4 => fields::OTHER,
            ethertype::IPV6 => {
                if let Some((src, dst)) = crate::extract::odd_addresses(p, h) {
                    [src, dst].into_iter().flat_map(|a| [(a >> 64) as u64, a as u64]).for_each(|w| self.push(w));
                }
                fields::OTHER
            }
            ethertype::ARP | ethertype::RARP => {
                // Hardware and protocol types and lengths decide whether the rest is read.
                for i in 0..4 {
                    self.push(if i == 3 { word::<4>(p, h.l3 + 24)? } else { word::<8>(p, h.l3 + 8 * i)? });
                }
                fields::ARP
            }
            _ => fields::OTHER,
        };
        Some(SHAPES as u64 + kind + if tagged { FIELD_KINDS as u64 } else { 0 })
    }

    /// If a tunnel ends here, adds its header and the inner packet, and returns where that begins, its layout and its kind.
    /// None: the packet is not cached.
    fn tunnel(&mut self, p: &[u8], h: &Headers, own: &Own, exact_flags: bool) -> Option<Option<(usize, Layout, u64)>> {
        let kind = tunnel_kind(p, h, own);
        if kind.is_none() && (h.proto != ipproto::GRE || h.fragment) {
            return Some(None);
        }
        let (_, dst) = h.addresses(p)?;
        if !own.has(h.is_ipv6(), dst) {
            return Some(None);
        }
        // How far the tunnel's packet goes is not said clearly.
        if oddity(p, h) != 0 {
            return None;
        }
        // GRE is what IP has for payload.
        let at = if kind.is_some() { h.l4? + 8 } else { h.payload };
        let body = p.get(at..h.l3_end)?;
        let mut gre = [0; MAX_GRE];
        let header = match kind {
            // RFC 8926 section 3.4, as above.
            Some(TunnelKind::Geneve) => body.get(..8 + 4 * usize::from(body.first()? & 0x3f))?,
            Some(TunnelKind::Vxlan) => body.get(..8)?,
            Some(_) => return None,
            None => {
                let plain = h.payload - h.l3 == if h.is_ipv6() { 40 } else { 20 };
                let n = gre_header(body, &mut gre).filter(|_| plain)?;
                gre.get(..n)?
            }
        };
        let n = header.len();
        if n > MAX_TUNNEL || body.len() < n + 14 {
            return None;
        }
        let inner = body.get(n..)?;
        let ih = Headers::parse_tags(inner, own.tags())?;
        let layout = Layout::of(&ih)?;
        // A mark that no packet without a tunnel has.
        let fragment = fragments(&ih);
        self.push((0xffff_fffc | fragment) << 32 | layout.word() << 8 | n as u64);
        let (whole, half) = header.as_chunks::<8>();
        whole.iter().for_each(|c| self.push(u64::from_be_bytes(*c)));
        if !half.is_empty() {
            // Lengths of tunnel headers are multiples of four bytes.
            self.push(word::<4>(half, 0)?);
        }
        let kind = self.packet(inner, &ih, exact_flags)?;
        Some(Some((at + n, layout, kind)))
    }
}

/// Writes the headers of GRE, and of ERSPAN in it, before a frame of Ethernet as keys have them: without the number and the
/// time of each packet. Returns how long they are; none if they are others, are malformed, or have a checksum, which has to be
/// verified.
fn gre_header(body: &[u8], to: &mut [u8; MAX_GRE]) -> Option<usize> {
    if gre::has_checksum(body)? {
        return None;
    }
    let (header, len) = Gre::parse(body)?;
    let more = match header.protocol {
        gre::ETHERNET => 0,
        t => Erspan::parse(t, body.get(len..)?)?.2,
    };
    to.get_mut(..len + more)?.copy_from_slice(body.get(..len + more)?);
    if header.sequence.is_some() {
        to.get_mut(len - 4..len)?.fill(0);
    }
    if header.protocol == ERSPAN[1] {
        to.get_mut(len + 4..len + 8)?.fill(0);
    }
    Some(len + more)
}

/// Ports, or ICMP type, code and id; zeros where there is no transport header.
#[inline]
fn transport(p: &[u8], h: &Headers) -> Option<(u16, u16)> {
    let Some(l4) = h.l4 else { return Some((0, 0)) };
    match h.proto {
        ipproto::TCP | ipproto::UDP | ipproto::SCTP => h.ports(p),
        ipproto::ICMP | ipproto::ICMPV6 if (h.proto == ipproto::ICMP) == h.is_ipv4() => {
            Some((be16(p, l4)?, be16(p, l4 + 4)?))
        }
        _ => Some((0, 0)),
    }
}

/// What is wrong with a packet, as bits of a key.
#[inline]
fn oddity(p: &[u8], h: &Headers) -> u64 {
    match h.ethertype {
        ethertype::IPV4 | ethertype::IPV6 if !h.ip_ok => {
            NO_IP | if crate::extract::odd_addresses(p, h).is_some() { ODD_LENGTH } else { 0 }
        }
        ethertype::IPV4 | ethertype::IPV6 => match h.proto {
            // Lengths of a datagram do not apply to its fragments.
            _ if h.fragment => 0,
            ipproto::TCP | ipproto::UDP | ipproto::SCTP | ipproto::ICMP | ipproto::ICMPV6 => match h.l4 {
                None => NO_TRANSPORT,
                Some(_) if !crate::extract::length_holds(p, h) => ODD_LENGTH,
                Some(_) => 0,
            },
            _ => 0,
        },
        _ => 0,
    }
}

/// `IpFrag` of a packet.
fn fragments(h: &Headers) -> u64 {
    if h.ip_ok { u64::from(h.fragment) | u64::from(h.later_fragment) << 1 } else { 0 }
}

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
        Some(kind) if kind < ALONE => kind % FIELD_KINDS == fields::ND as usize,
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
    kind.checked_sub(SHAPES).is_some_and(|k| k % FIELD_KINDS == fields::ND as usize)
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
pub(super) fn device(words: &[u64]) -> DeviceId {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::{Egress, Route, Underlay};
    use packet::{Mac, build};
    use proptest::prelude::*;

    proptest! {
        /// Frames of a kind are found without a look at their EtherTypes, and no others.
        #[test]
        fn a_known_kind_is_as_one_that_is_found_out(
            v6: bool,
            tags in 0..2usize,
            proto in prop_oneof![Just(6u8), Just(17), Just(1)],
            odd in prop::bool::weighted(0.1),
            fragment in prop_oneof![4 => Just(0u16), 1 => Just(0x4000), 1 => Just(0x2000), 1 => Just(5)],
            port in prop_oneof![Just(53u16), Just(packet::tunnel::GENEVE_PORT), Just(packet::tunnel::VXLAN_PORT)],
            (payload, udp, data) in (4..44u16, 4..48u16, 3..9u8),
            size in 40..110usize,
            exact_flags: bool,
        ) {
            let mut p = vec![0; 110];
            let l3 = 14 + 4 * tags;
            let l4 = l3 + ip_len(v6);
            let mut put = |at: usize, v: u16| p[at..at + 2].copy_from_slice(&v.to_be_bytes());
            put(12, ethertype::VLAN);
            put(l3 - 2, if v6 { ethertype::IPV6 } else { ethertype::IPV4 });
            let lengths = if v6 { [(4, payload), (4, payload)] } else { [(2, payload + 20), (6, fragment)] };
            for (at, v) in lengths {
                put(l3 + at, v);
            }
            for (at, v) in [(2, port), (4, udp)] {
                put(l4 + at, v);
            }
            p[l3] = match (v6, odd) {
                (true, true) => 0x45,
                (true, false) => 0x61,
                (false, true) => 0x46,
                (false, false) => 0x45,
            };
            p[l3 + if v6 { 6 } else { 9 }] = proto;
            if proto == ipproto::TCP {
                p[l4 + 12] = data << 4;
            }
            p.truncate(size);
            let own = Own::default();
            let own_family = |k: usize| (k % FAMILY) / 3 == tags && (k >= FAMILY) == v6;
            for kind in (0..SHAPES).filter(|k| k % FAMILY >= ALONE_SHAPES || own_family(*k)) {
                let end = |c: Option<Class>| c.filter(|c| c.kind == kind).map(|c| c.end);
                prop_assert_eq!(
                    end(classify_as(kind, &p, &own, exact_flags)),
                    end(classify(&p, &own, exact_flags)),
                    "kind {}", kind
                );
            }
        }

        /// A frame that has a key of its bytes is one whose fields say so: ports where they are looked for, of the protocol
        /// that its kind names, with lengths that hold.
        #[test]
        fn a_kind_is_what_the_headers_say(
            v6: bool,
            tags in 0..2usize,
            proto in prop_oneof![Just(6u8), Just(17), Just(0), Just(44)],
            (payload, udp, data) in (4..44u16, 4..48u16, 3..9u8),
            size in 40..110usize,
        ) {
            let mut p = vec![0; 110];
            let l3 = 14 + 4 * tags;
            let l4 = l3 + ip_len(v6);
            let mut put = |at: usize, v: u16| p[at..at + 2].copy_from_slice(&v.to_be_bytes());
            put(12, ethertype::VLAN);
            put(l3 - 2, if v6 { ethertype::IPV6 } else { ethertype::IPV4 });
            put(l3 + if v6 { 4 } else { 2 }, if v6 { payload } else { payload + 20 });
            for (at, v) in [(2, 53), (4, udp)] {
                put(l4 + at, v);
            }
            p[l3] = if v6 { 0x60 } else { 0x45 };
            p[l3 + if v6 { 6 } else { 9 }] = proto;
            if proto == ipproto::TCP {
                p[l4 + 12] = data << 4;
            }
            p.truncate(size);
            let class = classify(&p, &Own::default(), false);
            let h = Headers::parse(&p).filter(|h| h.ip_ok && crate::extract::length_holds(&p, h));
            let h = h.filter(|h| h.l4.is_some() && matches!(h.proto, ipproto::TCP | ipproto::UDP));
            let said = h.and_then(|h| Some((Layout::of(&h)?, h.l3_end)));
            let found = class.and_then(|c| Some((ALL.get(c.kind)?.outer, c.end)));
            prop_assert_eq!(found, said);
        }
    }

    /// Headers in a tunnel over UDP are where the shape of their kind says, and no two forms share a kind.
    #[test]
    fn shapes_in_tunnels_are_where_the_headers_are() {
        let (here, there) =
            (|v6| if v6 { "fd00::1" } else { "10.0.0.1" }, |v6| if v6 { "fd00::2" } else { "10.0.0.2" });
        let address = |s: &str| -> std::net::IpAddr { s.parse().expect("address") };
        let route = |v6| Route {
            prefix: address(here(v6)),
            len: 64,
            gateway: None,
            source: address(here(v6)),
            source_mac: Mac::ZERO,
            egress: Egress::Port("br-ex".into()),
            hop_source: None,
            table: Route::MAIN,
            own: false,
            mark: 0,
        };
        let mut underlay = Underlay::default();
        underlay.set_routes([false, true].map(route).into());
        let tagged = |mut p: Vec<u8>, tag: bool| {
            p.splice(12..12, [0x81, 0, 0, 7].into_iter().take(if tag { 4 } else { 0 }));
            p
        };
        let mut kinds = std::collections::BTreeSet::new();
        for n in 0..64 {
            let [over_v6, outer_tag, option, v6, tag, tcp] = [0, 1, 2, 3, 4, 5].map(|bit| n >> bit & 1 != 0);
            let ends = (address(there(v6)), address(here(v6)));
            let header = [&[0, 80, 0, 53][..], &[0; 8], &[0x50, 0x10, 0, 0, 0, 0, 0, 0]].concat();
            let inner = if tcp {
                build::ip_packet(Mac::ZERO, Mac::ZERO, ends.0, ends.1, ipproto::TCP, 64, &header)
            } else {
                build::udp(Mac::ZERO, Mac::ZERO, (ends.0, 80), (ends.1, 53), 64, &[7; 9])
            };
            let inner = tagged(inner.expect("inner"), tag);
            let options = [(0x102, 0x80, vec![0, 1, 0, 2])];
            let mut body = Vec::new();
            let used = if option { &options[..] } else { &[] };
            packet::tunnel::Geneve::put(&mut body, packet::Vni::of_low_bits(5), false, used);
            body.extend_from_slice(&inner);
            let ends = ((address(there(over_v6)), 7), (address(here(over_v6)), packet::tunnel::GENEVE_PORT));
            let p = tagged(build::udp(Mac::ZERO, Mac::ZERO, ends.0, ends.1, 64, &body).expect("outer"), outer_tag);
            let class = classify(&p, &underlay.local, false).expect("a kind");
            let shape = &ALL[class.kind];
            let layout = |p: &[u8]| Layout::of(&Headers::parse(p).expect("headers")).expect("layout");
            assert_eq!((shape.outer, shape.inner), (layout(&p), layout(&inner)), "{n:#b}");
            assert_eq!((shape.inner_at, class.end), (p.len() - inner.len(), p.len()), "{n:#b}");
            assert!(kinds.insert(class.kind), "{n:#b}");
        }
    }
}
