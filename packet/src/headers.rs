//! Where the headers of a packet are.

use crate::{Mac, be16, be128, ethertype, ipproto, mac_at};

/// A VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vlan {
    /// 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority, DEI and id, as on the wire.
    pub tci: u16,
}

/// Offsets and kinds of a packet's headers. Nothing here lies past the end of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    /// Outer and inner tag.
    pub vlans: [Option<Vlan>; 2],
    /// EtherType after two tags at most.
    pub ethertype: u16,
    /// Offset of the network header.
    pub l3: usize,
    /// End of the network packet (beyond it is Ethernet padding).
    pub l3_end: usize,
    /// IP protocol after extension headers; 0 if not IP or malformed.
    pub proto: u8,
    /// IPv4 or IPv6 header is well formed.
    pub ip_ok: bool,
    /// A fragment.
    pub fragment: bool,
    /// Not the first fragment.
    pub later_fragment: bool,
    /// Offset of the transport header, if its minimum is there.
    pub l4: Option<usize>,
    /// Offset of the transport payload.
    pub payload: usize,
}

impl Headers {
    /// Finds the headers of an Ethernet frame; `None` below 14 bytes.
    #[inline]
    pub fn parse(p: &[u8]) -> Option<Headers> {
        Headers::parse_tags(p, 2)
    }

    /// The same with so many tags at most, and no more than two: behind those an EtherType of a tag is like any other.
    #[inline]
    pub fn parse_tags(p: &[u8], tags: usize) -> Option<Headers> {
        let mut h = Headers::default();
        let mut at = 12;
        let mut et = be16(p, at)?;
        for slot in h.vlans.iter_mut().take(tags) {
            if et != ethertype::VLAN && et != ethertype::QINQ {
                break;
            }
            let (Some(tci), Some(next)) = (be16(p, at + 2), be16(p, at + 4)) else { break };
            *slot = Some(Vlan { tpid: et, tci });
            at += 4;
            et = next;
        }
        h.l3 = at + 2;
        h.l3_end = p.len();
        h.ethertype = if et >= 0x600 { et } else { llc(p, at) };
        match h.ethertype {
            ethertype::IPV4 => h.ipv4(p),
            ethertype::IPV6 => h.ipv6(p),
            _ => {}
        }
        Some(h)
    }

    /// IPv4, well formed.
    #[inline]
    pub fn is_ipv4(&self) -> bool {
        self.ip_ok && self.ethertype == ethertype::IPV4
    }

    /// IPv6, well formed.
    #[inline]
    pub fn is_ipv6(&self) -> bool {
        self.ip_ok && self.ethertype == ethertype::IPV6
    }

    #[inline]
    fn ipv4(&mut self, p: &[u8]) {
        let Some(b) = p.get(self.l3..) else { return };
        // What the version says is not looked at, as in Open vSwitch: the EtherType has said it.
        if b.len() < 20 {
            return;
        }
        let ihl = usize::from(b[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([b[2], b[3]]));
        if ihl < 20 || total < ihl || total > b.len() {
            return;
        }
        self.ip_ok = true;
        self.proto = b[9];
        self.l3_end = self.l3 + total;
        let frag = u16::from_be_bytes([b[6], b[7]]);
        self.fragment = frag & 0x3fff != 0;
        self.later_fragment = frag & 0x1fff != 0;
        self.transport(p, self.l3 + ihl);
    }

    fn ipv6(&mut self, p: &[u8]) {
        let Some(b) = p.get(self.l3..) else { return };
        if b.len() < 40 {
            return;
        }
        let len = usize::from(u16::from_be_bytes([b[4], b[5]]));
        if 40 + len > b.len() {
            return;
        }
        self.l3_end = self.l3 + 40 + len;
        let mut next = b[6];
        let mut at = self.l3 + 40;
        loop {
            match next {
                0 | 43 | 60 => {
                    let Some(&[n, l, ..]) = p.get(at..self.l3_end) else { return };
                    next = n;
                    at += (usize::from(l) + 1) * 8;
                }
                51 => {
                    let Some(&[n, l, ..]) = p.get(at..self.l3_end) else { return };
                    next = n;
                    at += (usize::from(l) + 2) * 4;
                }
                ipproto::FRAGMENT => {
                    let Some(&[n, _, f0, f1, ..]) = p.get(at..self.l3_end) else { return };
                    let f = u16::from_be_bytes([f0, f1]);
                    next = n;
                    at += 8;
                    // A datagram in one piece (RFC 6946) is no fragment.
                    self.fragment = f != 0;
                    if f & 0xfff8 != 0 {
                        self.later_fragment = true;
                        break;
                    }
                }
                _ => break,
            }
            if at > self.l3_end {
                return;
            }
        }
        if at > self.l3_end {
            return;
        }
        self.ip_ok = true;
        self.proto = next;
        self.transport(p, at);
    }

    #[inline]
    fn transport(&mut self, p: &[u8], at: usize) {
        self.payload = at;
        if self.later_fragment {
            return;
        }
        let Some(b) = p.get(at..self.l3_end) else { return };
        let n = match self.proto {
            ipproto::TCP => b.get(12).map_or(usize::MAX, |x| (usize::from(x >> 4) * 4).max(20)),
            ipproto::UDP | ipproto::ICMP | ipproto::ICMPV6 => 8,
            ipproto::SCTP => 12,
            _ => return,
        };
        if b.len() >= n {
            self.l4 = Some(at);
            self.payload = at + n;
        }
    }

    /// The network header's addresses, as numbers (IPv4 in the low 32 bits).
    #[inline]
    pub fn addresses(&self, p: &[u8]) -> Option<(u128, u128)> {
        if self.is_ipv4() {
            let f = |o| crate::be32(p, self.l3 + o).map(u128::from);
            Some((f(12)?, f(16)?))
        } else if self.is_ipv6() {
            Some((be128(p, self.l3 + 8)?, be128(p, self.l3 + 24)?))
        } else {
            None
        }
    }

    /// TCP, UDP or SCTP ports.
    #[inline]
    pub fn ports(&self, p: &[u8]) -> Option<(u16, u16)> {
        let l4 = self.l4?;
        matches!(self.proto, ipproto::TCP | ipproto::UDP | ipproto::SCTP).then_some(())?;
        Some((be16(p, l4)?, be16(p, l4 + 2)?))
    }
}

/// The type of an 802.3 frame: the SNAP type if there is one.
fn llc(p: &[u8], at: usize) -> u16 {
    match p.get(at + 2..at + 10) {
        Some(&[0xaa, 0xaa, 3, 0, 0, 0, a, b]) => u16::from_be_bytes([a, b]),
        _ => ethertype::NONE,
    }
}

/// The fields of a neighbour solicitation or advertisement (RFC 4861 section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NdOptions {
    /// Target.
    pub target: u128,
    /// Source link-layer address, and its offset in the packet.
    pub sll: Option<(Mac, usize)>,
    /// Target link-layer address, and its offset in the packet.
    pub tll: Option<(Mac, usize)>,
}

/// Reads them; `None` if the message is malformed.
pub fn nd_options(p: &[u8], h: &Headers) -> Option<NdOptions> {
    nd_fields(p, h).filter(|(_, sound)| *sound).map(|(nd, _)| nd)
}

/// Reads as much as Open vSwitch sees, up to an option whose length is wrong, and says whether there is none; `None` where an
/// address is there twice.
pub fn nd_fields(p: &[u8], h: &Headers) -> Option<(NdOptions, bool)> {
    let l4 = h.l4?;
    let kind = *p.get(l4)?;
    if h.proto != ipproto::ICMPV6 || !matches!(kind, 135 | 136) || *p.get(l4 + 1)? != 0 {
        return None;
    }
    let mut nd = NdOptions { target: be128(p, l4 + 8)?, ..Default::default() };
    if l4 + 24 > h.l3_end {
        return None;
    }
    let mut at = l4 + 24;
    while at + 8 <= h.l3_end {
        let (kind, len) = (*p.get(at)?, usize::from(*p.get(at + 1)?) * 8);
        if len == 0 || at + len > h.l3_end {
            return Some((nd, false));
        }
        let slot = match (kind, len) {
            (1, 8) => Some(&mut nd.sll),
            (2, 8) => Some(&mut nd.tll),
            _ => None,
        };
        if let Some(slot) = slot {
            if slot.is_some_and(|(mac, _)| mac != Mac::ZERO) {
                return None;
            }
            *slot = Some((mac_at(p, at + 2)?, at + 2));
        }
        at += len;
    }
    Some((nd, true))
}
