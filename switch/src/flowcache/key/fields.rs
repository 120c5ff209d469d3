//! Keys of fields: those of all packets whose bytes are no keys ([`super::shape`]).

use super::{ALONE, BLOCK, FIELD_KINDS, KIND, Layout, MAX_BLOCKS, PackedKey, SHAPES, TRACKED_FLAGS};
use crate::extract::LABEL_FIELDS;
use crate::ids::DeviceId;
use crate::tunnel::{Own, TunnelKind, tunnel_kind};
use openflow_rs::action::{ETH_NSH, is_mpls};
use packet::gre::{self, ERSPAN, Erspan, Gre};
use packet::{Headers, be16, ethertype, ipproto, nd_fields};

/// Longest headers of GRE and ERSPAN, without a checksum.
const MAX_GRE: usize = 12 + 12;
/// Longest tunnel header.
const MAX_TUNNEL: usize = 8 + 64;
/// In the second word of a key of fields: from this bit on, its number of words.
pub(super) const LENGTH: u32 = 24;
/// In the same word: `IpFrag`, bit 0 for a fragment, bit 1 for a later one.
pub(super) const FRAGMENT: u32 = 32;
/// In the first word of a packet's fields: what is wrong with it. No IP header is read, or only the addresses of one over
/// IPv6; lengths of its transport header do not hold, or there is no room for one.
pub(super) const NO_IP: u64 = 1 << 13;
pub(super) const ODD_LENGTH: u64 = 1 << 14;
const NO_TRANSPORT: u64 = 1 << 15;

/// Kinds of frames whose keys are fields.
pub(super) mod kinds {
    pub(in super::super) const IPV4: u64 = 0;
    pub(in super::super) const IPV6: u64 = 1;
    pub(in super::super) const ND: u64 = 2;
    pub(in super::super) const ARP: u64 = 3;
    pub(in super::super) const FRAGMENT4: u64 = 4;
    pub(in super::super) const FRAGMENT6: u64 = 5;
    pub(in super::super) const OTHER: u64 = 6;
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

/// `N` bytes as a number, the first the greatest.
#[inline(always)]
fn word<const N: usize>(p: &[u8], at: usize) -> Option<u64> {
    let from: &[u8; N] = p.get(at..)?.first_chunk()?;
    let mut b = [0; 8];
    b[8 - N..].copy_from_slice(from);
    Some(u64::from_be_bytes(b))
}

impl PackedKey {
    /// Builds the key of any other packet, field by field.
    #[inline(never)]
    pub(super) fn fields(&mut self, device: DeviceId, p: &[u8], own: &Own, exact_flags: bool) -> bool {
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
                kinds::OTHER
            }
            ethertype::IPV4 if h.ip_ok => {
                self.push(word::<8>(p, h.l3 + 12)?);
                let (a, b) = transport(p, h)?;
                let tos_ttl = word::<1>(p, h.l3 + 1)? << 8 | word::<1>(p, h.l3 + 8)?;
                self.push(tos_ttl << 40 | u64::from(h.proto) << 32 | u64::from(a) << 16 | u64::from(b));
                if h.fragment { kinds::FRAGMENT4 } else { kinds::IPV4 }
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
                    _ if h.fragment => kinds::FRAGMENT6,
                    Some((nd, _)) => {
                        let number = |m: Option<(packet::Mac, usize)>| m.map_or(0, |(m, _)| m.to_u64());
                        [(nd.target >> 64) as u64, nd.target as u64, number(nd.sll), number(nd.tll)]
                            .into_iter()
                            .for_each(|w| self.push(w));
                        kinds::ND
                    }
                    None => kinds::IPV6,
                }
            }
            ethertype::IPV4 => kinds::OTHER,
            ethertype::IPV6 => {
                if let Some((src, dst)) = crate::extract::odd_addresses(p, h) {
                    [src, dst].into_iter().flat_map(|a| [(a >> 64) as u64, a as u64]).for_each(|w| self.push(w));
                }
                kinds::OTHER
            }
            ethertype::ARP | ethertype::RARP => {
                // Hardware and protocol types and lengths decide whether the rest is read.
                for i in 0..4 {
                    self.push(if i == 3 { word::<4>(p, h.l3 + 24)? } else { word::<8>(p, h.l3 + 8 * i)? });
                }
                kinds::ARP
            }
            _ => kinds::OTHER,
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
