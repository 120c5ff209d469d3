//! Packed keys: every byte of a packet that translation can see, without its lengths and checksums.

use crate::tunnel::Underlay;
use packet::tunnel::{GENEVE_PORT, VXLAN_PORT};
use packet::{Headers, be16, ethertype, ipproto};

/// Most words: device, two packets with IPv6 and tags, and a tunnel header.
const MAX_WORDS: usize = 36;
/// Longest tunnel header.
const MAX_TUNNEL: usize = 8 + 64;
/// TCP flags that connection tracking looks at: FIN, SYN, RST, ACK.
const TRACKED_FLAGS: u16 = 0x17;

/// A key under construction.
#[derive(Clone, Debug)]
pub(crate) struct PackedKey {
    words: [u64; MAX_WORDS],
    len: usize,
    full: bool,
    /// Of the words.
    pub(crate) hash: u64,
    /// An entry that may be its own, by place and number.
    pub(crate) candidate: Option<(u32, u32)>,
    /// The packet's headers.
    pub(crate) headers: Headers,
    /// If it is a tunnel packet for us: its inner frame.
    pub(crate) inner: Option<std::ops::Range<usize>>,
    /// The inner frame's headers.
    pub(crate) inner_headers: Headers,
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
            words: [0; MAX_WORDS],
            len: 0,
            full: false,
            hash: 0,
            candidate: None,
            headers: Headers::default(),
            inner: None,
            inner_headers: Headers::default(),
        }
    }
}

impl PackedKey {
    /// Becomes the key of a packet; false if packets of its kind are not cached. The hash is still to be set.
    pub(crate) fn fill(&mut self, device: u32, p: &[u8], underlay: &Underlay, exact_flags: bool) -> bool {
        (self.len, self.full, self.inner) = (0, false, None);
        let mut whole = || {
            self.headers = Headers::parse(p)?;
            self.push(u64::from(device));
            let headers = self.headers;
            self.packet(p, &headers, exact_flags)?;
            self.tunnel(p, &headers, underlay, exact_flags)?;
            Some(!self.full)
        };
        // A key without words is no packet's.
        let cached = whole().unwrap_or(false);
        if !cached {
            self.len = 0;
        }
        cached
    }

    #[inline]
    pub(crate) fn words(&self) -> &[u64] {
        self.words.get(..self.len).unwrap_or_default()
    }

    #[inline(always)]
    fn push(&mut self, w: u64) {
        match self.words.get_mut(self.len) {
            Some(x) => {
                *x = w;
                self.len += 1;
            }
            None => self.full = true,
        }
    }

    #[inline]
    fn packet(&mut self, p: &[u8], h: &Headers, exact_flags: bool) -> Option<()> {
        let mut flags = 0;
        if h.proto == ipproto::TCP && h.ip_ok {
            flags = be16(p, h.l4? + 12)? & 0xfff;
            if !exact_flags {
                flags &= TRACKED_FLAGS;
            }
        }
        let tagged = h.vlans[0].is_some();
        self.push(word::<6>(p, 0)? << 16 | u64::from(tagged) << 12 | u64::from(flags));
        self.push(word::<6>(p, 6)? << 16 | u64::from(h.ethertype));
        if tagged {
            let tag = |v: Option<packet::Vlan>| v.map_or(0, |v| u64::from(v.tpid) << 16 | u64::from(v.tci | 0x1000));
            self.push(tag(h.vlans[0]) << 32 | tag(h.vlans[1]));
        }
        match h.ethertype {
            ethertype::IPV4 if h.ip_ok && !h.fragment => {
                self.push(word::<8>(p, h.l3 + 12)?);
                let (a, b) = transport(p, h)?;
                let tos_ttl = word::<1>(p, h.l3 + 1)? << 8 | word::<1>(p, h.l3 + 8)?;
                self.push(tos_ttl << 40 | u64::from(h.proto) << 32 | u64::from(a) << 16 | u64::from(b));
            }
            ethertype::IPV6 if h.ip_ok && !h.fragment => {
                for i in 0..4 {
                    self.push(word::<8>(p, h.l3 + 8 + 8 * i)?);
                }
                let (a, b) = transport(p, h)?;
                self.push(word::<4>(p, h.l3)? << 8 | word::<1>(p, h.l3 + 7)?);
                self.push(u64::from(h.proto) << 32 | u64::from(a) << 16 | u64::from(b));
            }
            ethertype::IPV4 | ethertype::IPV6 => return None,
            ethertype::ARP | ethertype::RARP => {
                // Hardware and protocol types and lengths decide whether the rest is read.
                for i in 0..4 {
                    self.push(if i == 3 { word::<4>(p, h.l3 + 24)? } else { word::<8>(p, h.l3 + 8 * i)? });
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Adds the tunnel header and the inner packet, if the packet can leave its tunnel here.
    fn tunnel(&mut self, p: &[u8], h: &Headers, underlay: &Underlay, exact_flags: bool) -> Option<()> {
        let Some(kind) = tunnel_port(p, h) else { return Some(()) };
        let (_, dst) = h.addresses(p)?;
        if !underlay.is_own(h.is_ipv6(), dst) {
            return Some(());
        }
        let at = h.l4? + 8;
        let body = p.get(at..h.l3_end)?;
        // RFC 8926 section 3.4: the low six bits of the first byte are the options' length in words.
        let n = if kind == GENEVE_PORT { 8 + 4 * usize::from(body.first()? & 0x3f) } else { 8 };
        if n > MAX_TUNNEL || body.len() < n + 14 {
            return None;
        }
        // A mark that no packet without this part has: its length leaves the words apart.
        self.push(u64::MAX << 32 | n as u64);
        let (whole, half) = body.get(..n)?.as_chunks::<8>();
        whole.iter().for_each(|c| self.push(u64::from_be_bytes(*c)));
        if !half.is_empty() {
            // Lengths of tunnel headers are multiples of four bytes.
            self.push(word::<4>(half, 0)?);
        }
        let inner = body.get(n..)?;
        let ih = Headers::parse(inner)?;
        self.packet(inner, &ih, exact_flags)?;
        (self.inner, self.inner_headers) = (Some(at + n..h.l3_end), ih);
        Some(())
    }
}

/// The tunnel's UDP port, if it is a tunnel packet at all.
pub(crate) fn tunnel_port(p: &[u8], h: &Headers) -> Option<u16> {
    if h.proto != ipproto::UDP || h.fragment {
        return None;
    }
    h.ports(p).map(|(_, d)| d).filter(|d| matches!(*d, GENEVE_PORT | VXLAN_PORT))
}

/// Ports, or ICMP type, code and id.
#[inline]
fn transport(p: &[u8], h: &Headers) -> Option<(u16, u16)> {
    match h.proto {
        ipproto::UDP if h.is_ipv6() && be16(p, h.l4? + 6)? == 0 => None,
        ipproto::TCP | ipproto::UDP | ipproto::SCTP => h.ports(p).filter(|_| h.l4.is_some()),
        ipproto::ICMP | ipproto::ICMPV6 => {
            let l4 = h.l4.filter(|l4| l4 + 8 <= h.l3_end)?;
            let head = be16(p, l4)?;
            let cached = if h.proto == ipproto::ICMP && h.is_ipv4() {
                !matches!(head >> 8, 3 | 4 | 5 | 11 | 12)
            } else {
                h.proto == ipproto::ICMPV6 && h.is_ipv6() && matches!(head >> 8, 128 | 129)
            };
            cached.then_some((head, be16(p, l4 + 4)?))
        }
        _ => Some((0, 0)),
    }
}
