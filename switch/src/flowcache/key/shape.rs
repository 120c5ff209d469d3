//! Frames whose bytes are their keys: which kinds there are, which of their bytes count, and of which kind a frame is.

use super::{BLOCK, KIND, Layout, RAW, TRACKED_FLAGS};
use crate::buf::PacketBuf;
use crate::ids::DeviceId;
use crate::tunnel::{self, Own, TunnelKind};
use crate::xlate::quoted;
use packet::gre::{ERSPAN, Erspan};
use packet::{be16, be32, checksum, ethertype, ipproto};

/// Blocks of the longest frame whose bytes are its key: an ICMPv6 error in Geneve with an option, tagged both, up to the ports
/// of what it quotes. The first word is not the frame's.
const RAW_BLOCKS: usize = 3;
/// Words of a frame that have room there.
pub(crate) const RAW_WORDS: usize = RAW_BLOCKS * BLOCK - 1;
/// Most blocks of a key that has masks: neighbour discovery over IPv6 in a tunnel of IPv6 is longer.
pub(crate) const MASK_BLOCKS: usize = 3;
/// First those of IPv4, alone or in a tunnel, then those of IPv6 in the same order.
pub(crate) const SHAPES: usize = 2 * FAMILY;
pub(super) const FAMILY: usize = UDP6_SHAPES + 4 * UNTAGGED_OR_TAGGED;
/// The first of a family are of frames without a tunnel.
pub(super) const ALONE_SHAPES: usize = UNTAGGED_OR_TAGGED;
/// Those behind are in tunnels over UDP, without an option and with one, then in GRE, both over IPv4.
const UDP_SHAPES: usize = ALONE_SHAPES + 4 * UNTAGGED_OR_TAGGED;
/// From here on they are in tunnels over UDP over IPv6.
const UDP6_SHAPES: usize = UDP_SHAPES + 2 * UNTAGGED_OR_TAGGED * GRE_FORMS.len();
/// So many kinds there are of frames without tags, and as many of tagged ones.
pub(super) const UNTAGGED_OR_TAGGED: usize = 2 * TRANSPORTS.len();

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
    /// What an ICMP error quotes is in its key, as far as it says what connection that belongs to.
    pub(crate) quotes: bool,
}

/// What is behind the IP header, and which part of it is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    Udp = 0,
    Tcp = 1,
    /// With all flags.
    TcpFlags = 2,
    /// ICMP over IPv4, ICMPv6 over IPv6, but for neighbour discovery: type, code, and what an echo has for its id.
    Icmp = 3,
    Sctp = 4,
    /// UDP with a length that is wrong.
    OddUdp = 5,
    /// Any other protocol, of which nothing is read.
    Other = 6,
    /// An error of ICMP or ICMPv6 about a packet with ports, without options or extension headers, whose checksums hold: type,
    /// code, and of that packet version, protocol, addresses and ports.
    Error = 7,
}

use Transport as T;

/// All of them, in this order.
pub(super) const TRANSPORTS: [Transport; 8] =
    [T::Udp, T::Tcp, T::TcpFlags, T::Icmp, T::Sctp, T::OddUdp, T::Other, T::Error];

/// Octets of an ICMP header.
const ICMP: usize = 8;

/// Marks the bytes of an IP frame that are in the key; returns where they end.
const fn mark(m: &mut [u8; 8 * RAW_WORDS], from: usize, tags: usize, transport: Transport, v6: bool) -> usize {
    let l3 = from + 14 + 4 * tags;
    let l4 = l3 + ip_len(v6);
    let end = match transport {
        T::Other => l4,
        T::Icmp | T::Error => l4 + 2,
        _ => l4 + 4,
    };
    // EtherTypes, versions and lengths of headers are in it: they tell kinds of frames apart.
    let mut i = from;
    while i < end {
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
    match transport {
        T::Udp | T::OddUdp | T::Sctp | T::Other => return end,
        T::Icmp => {
            (m[l4 + 4], m[l4 + 5]) = (0xff, 0xff);
            return l4 + 6;
        }
        T::Error => {
            let quoted = l4 + ICMP;
            let (version, proto, addresses) = if v6 { (0xf0, 6, 8) } else { (0xff, 9, 12) };
            (m[quoted], m[quoted + proto]) = (version, 0xff);
            // Ports are behind the addresses.
            let (mut i, end) = (quoted + addresses, quoted + ip_len(v6) + 4);
            while i < end {
                m[i] = 0xff;
                i += 1;
            }
            return end;
        }
        T::Tcp => m[flags + 1] = TRACKED_FLAGS as u8,
        T::TcpFlags => (m[flags], m[flags + 1]) = (0x0f, 0xff),
    }
    flags + 2
}

/// Bytes of an IP header without options.
pub(super) const fn ip_len(v6: bool) -> usize {
    if v6 { 40 } else { 20 }
}

const fn layout(tags: usize, transport: Transport, v6: bool) -> Layout {
    let l3 = 14 + 4 * tags as u16;
    let behind = l3 + ip_len(v6) as u16;
    let (l4, proto) = match transport {
        T::Udp | T::OddUdp => (behind, ipproto::UDP),
        T::Tcp | T::TcpFlags => (behind, ipproto::TCP),
        T::Icmp | T::Error => (behind, if v6 { ipproto::ICMPV6 } else { ipproto::ICMP }),
        T::Sctp => (behind, ipproto::SCTP),
        T::Other => (0, 0),
    };
    Layout { l3, l4, tags: tags as u8, ip: if v6 { 6 } else { 4 }, proto }
}

const fn shapes() -> [Shape; SHAPES] {
    let none = Layout { l3: 0, l4: 0, tags: 0, ip: 0, proto: 0 };
    let masks = [[0; BLOCK]; RAW_BLOCKS];
    let mut all = [Shape { masks, blocks: 0, outer: none, inner: none, inner_at: 0, quotes: false }; SHAPES];
    let mut number = 0;
    while number < SHAPES {
        let (i, v6) = (number % FAMILY, number >= FAMILY);
        let shape = &mut all[number];
        // What an error quotes has no room behind the headers of two IPv6 tunnels' ends.
        let transport = match TRANSPORTS[i % TRANSPORTS.len()] {
            T::Error if v6 && i >= UDP6_SHAPES => T::Icmp,
            t => t,
        };
        shape.quotes = matches!(transport, T::Error);
        let tags = i / TRANSPORTS.len() % 2;
        let mut m = [0; 8 * RAW_WORDS];
        let end = if i < ALONE_SHAPES {
            shape.outer = layout(tags, transport, v6);
            mark(&mut m, 0, tags, transport, v6)
        } else if i >= UDP_SHAPES && i < UDP6_SHAPES {
            let n = (i - UDP_SHAPES) / UNTAGGED_OR_TAGGED;
            let (outer_tags, form) = (n % 2, &GRE_FORMS[n / 2]);
            let gre = 14 + 4 * outer_tags + 20;
            shape.outer = Layout { l4: 0, proto: ipproto::GRE, ..layout(outer_tags, T::Udp, false) };
            shape.inner = layout(tags, transport, v6);
            shape.inner_at = gre + form.len;
            mark(&mut m, 0, outer_tags, T::Udp, false);
            let mut b = 0;
            while b < form.len {
                m[gre + b] = if form.sequence != 0 && b >= form.sequence && b < form.sequence + 4 { 0 } else { 0xff };
                b += 1;
            }
            mark(&mut m, shape.inner_at, tags, transport, v6)
        } else {
            let over_v6 = i >= UDP6_SHAPES;
            let n = (i - if over_v6 { UDP6_SHAPES } else { ALONE_SHAPES }) / UNTAGGED_OR_TAGGED;
            let (outer_tags, options) = (n / 2, n % 2 * 8);
            shape.outer = layout(outer_tags, T::Udp, over_v6);
            shape.inner = layout(tags, transport, v6);
            mark(&mut m, 0, outer_tags, T::Udp, over_v6);
            let tunnel = 14 + 4 * outer_tags + ip_len(over_v6) + 8;
            let inner = tunnel + 8 + options;
            shape.inner_at = inner;
            let mut b = tunnel;
            while b < inner {
                m[b] = 0xff;
                b += 1;
            }
            mark(&mut m, inner, tags, transport, v6)
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

/// An IP frame, as far as keys are concerned.
struct Plain {
    transport: Transport,
    tags: usize,
    /// Destination port.
    port: u16,
    /// Where the IP packet ends.
    end: usize,
}

impl Plain {
    /// Which of the kinds it is that differ in tags and transport.
    #[inline(always)]
    fn kind(&self) -> usize {
        self.transport as usize + TRANSPORTS.len() * self.tags
    }
}

/// Reads a frame with TCP or UDP over IPv4; none if it is any other.
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
    let (transport, end) = match ip[9] {
        ipproto::UDP => (T::Udp, end::<false, false>(f, l3)?),
        ipproto::TCP => (if exact_flags { T::TcpFlags } else { T::Tcp }, end::<false, true>(f, l3)?),
        _ => return None,
    };
    Some(Plain { transport, tags, port: u16::from_be_bytes([ip[22], ip[23]]), end })
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

/// Reads a frame with TCP or UDP over IPv6 from its network header on.
#[inline(always)]
fn behind_tags6(f: &[u8], tags: usize, exact_flags: bool) -> Option<Plain> {
    let l3 = 14 + 4 * tags;
    let ip: &[u8; 48] = f.get(l3..)?.first_chunk()?;
    if ip[0] >> 4 != 6 {
        return None;
    }
    let (transport, end) = match ip[6] {
        ipproto::UDP => (T::Udp, end::<true, false>(f, l3)?),
        ipproto::TCP => (if exact_flags { T::TcpFlags } else { T::Tcp }, end::<true, true>(f, l3)?),
        _ => return None,
    };
    Some(Plain { transport, tags, port: u16::from_be_bytes([ip[42], ip[43]]), end })
}

/// Tags of an IP frame, and whether it is IPv6; none of others, and of those with more tags than one.
#[inline(always)]
fn family(f: &[u8]) -> Option<(usize, bool)> {
    let (tags, kind) = match be16(f, 12)? {
        ethertype::VLAN => (1, be16(f, 16)?),
        kind => (0, kind),
    };
    matches!(kind, ethertype::IPV4 | ethertype::IPV6).then_some((tags, kind == ethertype::IPV6))
}

/// Reads a frame of IP with something else than TCP and UDP that are in order, from its network header on; none where it is a
/// fragment, has options or extension headers, or not what its protocol begins with.
#[inline]
fn rarer(f: &[u8], tags: usize, v6: bool) -> Option<Plain> {
    let l3 = 14 + 4 * tags;
    let (head, n) = (f.get(l3..)?, ip_len(v6));
    let (sound, proto, len) = match v6 {
        true => (head.first()? >> 4 == 6, *head.get(6)?, be16(head, 4)?.into()),
        false => {
            let whole = be16(head, 6)? & 0x3fff == 0;
            (*head.first()? == 0x45 && whole, *head.get(9)?, usize::from(be16(head, 2)?).checked_sub(n)?)
        }
    };
    let body = head.get(n..n + len).filter(|_| sound)?;
    let transport = match proto {
        ipproto::UDP if body.len() >= 8 && !(8..=len).contains(&be16(body, 4)?.into()) => T::OddUdp,
        ipproto::ICMP | ipproto::ICMPV6 if v6 == (proto == ipproto::ICMPV6) && is_error(head, body, v6) => T::Error,
        ipproto::ICMP if !v6 && body.len() >= 8 => T::Icmp,
        // Solicitations and advertisements have more in their keys.
        ipproto::ICMPV6 if v6 && body.len() >= 8 && !matches!(body[0], 135 | 136) => T::Icmp,
        ipproto::SCTP if body.len() >= 12 => T::Sctp,
        ipproto::UDP | ipproto::TCP | ipproto::ICMP | ipproto::ICMPV6 | ipproto::SCTP => return None,
        // Extension headers (RFC 8200 section 4), and that of authentication.
        0 | 43 | ipproto::FRAGMENT | 51 | 60 if v6 => return None,
        _ => T::Other,
    };
    let port = if transport == T::OddUdp { be16(body, 2)? } else { 0 };
    Some(Plain { transport, tags, port, end: l3 + n + len })
}

/// Whether what is behind an IP header is an error about a packet with ports, without options or extension headers, and both
/// checksums hold.
fn is_error(header: &[u8], body: &[u8], v6: bool) -> bool {
    let proto = if v6 { ipproto::ICMPV6 } else { ipproto::ICMP };
    let Some(quoted) = body.get(ICMP..).filter(|q| q.len() >= ip_len(v6) + 4) else { return false };
    let whole = || be16(quoted, 6).is_some_and(|f| f & 0x1fff == 0);
    let plain = if v6 { quoted[0] >> 4 == 6 } else { quoted[0] == 0x45 && whole() };
    let ports = matches!(quoted[if v6 { 6 } else { 9 }], ipproto::TCP | ipproto::UDP | ipproto::SCTP);
    let pseudo = || match v6 {
        true => checksum::sum(&header[8..40]) + u32::from(proto) + body.len() as u32,
        false => 0,
    };
    let sound = || checksum::finish(checksum::sum(body) + pseudo()) == 0 && (v6 || checksum::of(&header[..20]) == 0);
    quoted::is_error(proto, body[0]) && plain && ports && sound()
}

/// The kind of such a frame; none where a tunnel may end here.
fn rarer_alone(f: &[u8], tags: usize, v6: bool, own: &Own) -> Option<Class> {
    let r = rarer(f, tags, v6)?;
    let l3 = 14 + 4 * tags;
    let tunnel = match r.transport {
        T::OddUdp => own.tunnel(r.port).is_some(),
        T::Other => f.get(l3 + if v6 { 6 } else { 9 }) == Some(&ipproto::GRE),
        _ => false,
    };
    let kind = r.kind() + if v6 { FAMILY } else { 0 };
    (!tunnel || !to_here(f, l3, v6, own)).then_some(Class::alone(kind, r.end))
}

/// Reads a frame in a tunnel, and where the kinds of its family begin.
#[inline(always)]
fn inside(f: &[u8], exact_flags: bool) -> Option<(Plain, usize)> {
    match plain(f, exact_flags) {
        Some(p) => Some((p, 0)),
        None => other_inside(f, exact_flags),
    }
}

/// The same of one that is not TCP or UDP over IPv4.
#[inline(never)]
fn other_inside(f: &[u8], exact_flags: bool) -> Option<(Plain, usize)> {
    let (tags, v6) = family(f)?;
    let common = if v6 { behind_tags6(f, tags, exact_flags) } else { None };
    Some((common.or_else(|| rarer(f, tags, v6))?, if v6 { FAMILY } else { 0 }))
}

/// A frame whose bytes are its key.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    /// Which kind it is.
    pub(crate) kind: usize,
    /// Where the IP packet ends.
    pub(crate) end: usize,
    /// What is in front of the tunnel that it is in and that ends here.
    front: Option<Front>,
}

/// The headers in front of a tunnel's: where the last of them begins, its protocol, and whether it is in IPv6.
#[derive(Clone, Copy)]
struct Front {
    l4: usize,
    proto: u8,
    v6: bool,
}

impl Class {
    /// That of a frame in no tunnel that ends here.
    #[inline(always)]
    fn alone(kind: usize, end: usize) -> Class {
        Class { kind, end, front: None }
    }

    /// Whether the packet is in no tunnel that ends here, or the checksums outside it hold.
    #[inline(always)]
    pub(crate) fn is_sound<P: PacketBuf>(self, p: &P) -> bool {
        self.front.is_none_or(|f| {
            // There are no options or extensions.
            let places = [f.l4 - ip_len(f.v6), f.l4, self.end];
            tunnel::is_sound(p.data(), places, (f.v6, f.proto), p.checksum_good())
        })
    }
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
    if outer.transport == T::Udp
        && let Some(tunnel) = own.tunnel(outer.port)
    {
        let l3 = 14 + 4 * outer.tags;
        if own.has(false, be32(p, l3 + 16)?.into()) {
            return in_udp(p, (tunnel, l3 + 20), &outer, ALONE_SHAPES, exact_flags);
        }
    }
    Some(Class::alone(outer.kind(), outer.end))
}

/// The kind of a frame in a tunnel over UDP, whose header is at `l4`, that ends here; none where what is inside has a key of
/// fields. `first` is the first kind of its outer IP version.
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
    let form = 2 * outer.tags + usize::from(options / 2);
    let front = Some(Front { l4, proto: ipproto::UDP, v6: first == UDP6_SHAPES });
    Some(Class { kind: family + first + UNTAGGED_OR_TAGGED * form + inner.kind(), end: outer.end, front })
}

/// The same of a frame that is not TCP or UDP over IPv4.
#[inline(never)]
fn other(p: &[u8], own: &Own, exact_flags: bool) -> Option<Class> {
    let (tags, v6) = family(p)?;
    let common = if v6 { behind_tags6(p, tags, exact_flags) } else { None };
    let Some(alone) = common else {
        let in_gre = if v6 { None } else { in_gre(p, tags, own, exact_flags) };
        return in_gre.or_else(|| rarer_alone(p, tags, v6, own));
    };
    let l3 = 14 + 4 * tags;
    if alone.transport == T::Udp
        && let Some(tunnel) = own.tunnel(alone.port)
    {
        let dst: &[u8; 16] = p.get(l3 + 24..)?.first_chunk()?;
        if own.has(true, u128::from_be_bytes(*dst)) {
            return in_udp(p, (tunnel, l3 + 40), &alone, UDP6_SHAPES, exact_flags);
        }
    }
    Some(Class::alone(FAMILY + alone.kind(), alone.end))
}

/// The kind of a frame in GRE over IPv4 that ends here; none of any other, and where what is inside has a key of fields.
fn in_gre(p: &[u8], tags: usize, own: &Own, exact_flags: bool) -> Option<Class> {
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
    let front = Some(Front { l4: gre, proto: ipproto::GRE, v6: false });
    Some(Class { kind: family + UDP_SHAPES + UNTAGGED_OR_TAGGED * (2 * form + tags) + inner.kind(), end, front })
}

/// A kind of frames with TCP or UDP without a tunnel.
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
    /// The kind with this number; none if its frames are in tunnels, are of other protocols, or have keys of fields.
    pub(crate) fn of(kind: usize) -> Option<Alone> {
        let (transport, tags, v6) = alone(kind)?;
        let (tcp, flags) = match transport {
            T::Udp => (false, false),
            T::Tcp => (true, false),
            T::TcpFlags => (true, true),
            T::Icmp | T::Error | T::Sctp | T::OddUdp | T::Other => return None,
        };
        Some(Alone { v6, tcp, flags, l3: 14 + 4 * tags })
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

/// Transport, tags and whether it is IPv6, of a kind without a tunnel whose bytes are its key.
#[inline(always)]
fn alone(kind: usize) -> Option<(Transport, usize, bool)> {
    let v6 = kind >= FAMILY;
    let i = if v6 { kind - FAMILY } else { kind };
    let transport = TRANSPORTS.get(i % TRANSPORTS.len())?;
    (i < ALONE_SHAPES).then_some((*transport, i / TRANSPORTS.len(), v6))
}

/// [`classify`], where the EtherTypes are known to be those of this kind, and it is most likely of the same.
#[inline(always)]
pub(crate) fn classify_as(kind: usize, p: &[u8], own: &Own, exact_flags: bool) -> Option<Class> {
    let Some((transport, tags, v6)) = alone(kind) else { return classify(p, own, exact_flags) };
    if !matches!(transport, T::Udp | T::Tcp | T::TcpFlags) {
        // Where it is another one, it is not of this kind.
        return rarer_alone(p, tags, v6, own);
    }
    let outer = if v6 { behind_tags6(p, tags, exact_flags)? } else { behind_tags(p, tags, exact_flags)? };
    if outer.transport == T::Udp && own.tunnel(outer.port).is_some() {
        return classify(p, own, exact_flags);
    }
    Some(Class::alone(outer.kind() + if v6 { FAMILY } else { 0 }, outer.end))
}
