//! ICMP errors: the packet that one quotes, which says what connection it is about (RFC 792, RFC 4443 section 3).

use crate::conntrack::Tuple;
use crate::extract::{address, put, store};
use packet::{Headers, be16, checksum, ipproto};

/// Where the quoted packet is, and its tuple.
pub(crate) struct Quoted {
    l3: usize,
    l4: usize,
    pub(crate) tuple: Tuple,
}

/// Type, code and id of an ICMP message.
pub(crate) fn icmp_fields(p: &[u8], l4: usize) -> (u8, u8, u16) {
    (p.get(l4).copied().unwrap_or(0), p.get(l4 + 1).copied().unwrap_or(0), be16(p, l4 + 4).unwrap_or(0))
}

/// The protocol behind IPv6 extension headers (RFC 8200 section 4), the first of which is at `at`, and where its header
/// is. None where the packet is a fragment.
fn behind_extensions(p: &[u8], mut next: u8, mut at: usize) -> Option<(u8, usize)> {
    loop {
        let own = at;
        at += match next {
            // Hop-by-hop options, routing, options for the destination.
            0 | 43 | 60 => (usize::from(*p.get(own + 1)?) + 1) * 8,
            // Authentication (RFC 4302 section 2.2).
            51 => (usize::from(*p.get(own + 1)?) + 2) * 4,
            // One in one piece (RFC 6946).
            ipproto::FRAGMENT if be16(p, own + 2)? == 0 => 8,
            ipproto::FRAGMENT => return None,
            proto => return Some((proto, own)),
        };
        next = *p.get(own)?;
    }
}

/// Whether messages of this type quote a packet.
pub(crate) fn is_error(proto: u8, kind: u8) -> bool {
    proto == ipproto::ICMP && matches!(kind, 3 | 4 | 5 | 11 | 12) || proto == ipproto::ICMPV6 && (1..=4).contains(&kind)
}

impl Quoted {
    /// The packet quoted by the ICMP error at `l4`; none of a later fragment, which has no ports.
    pub(crate) fn parse(p: &[u8], v6: bool, l4: usize) -> Option<Quoted> {
        let l3 = l4 + 8;
        let first = *p.get(l3)?;
        let (proto, at) = if v6 {
            (first >> 4 == 6).then_some(())?;
            behind_extensions(p, *p.get(l3 + 6)?, l3 + 40)?
        } else {
            (first >> 4 == 4 && be16(p, l3 + 6)? & 0x1fff == 0).then_some(())?;
            (*p.get(l3 + 9)?, l3 + usize::from(first & 15) * 4)
        };
        let (so, d_o) = if v6 { (8, 24) } else { (12, 16) };
        let mut t = Tuple {
            v6,
            proto,
            src: address(p, l3 + so, v6)?,
            dst: address(p, l3 + d_o, v6)?,
            sport: 0,
            dport: 0,
            icmp_type: 0,
            icmp_code: 0,
        };
        match proto {
            ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
                t.sport = be16(p, at)?;
                t.dport = be16(p, at + 2)?;
            }
            ipproto::ICMP | ipproto::ICMPV6 => {
                be16(p, at + 4)?;
                let (kind, code, id) = icmp_fields(p, at);
                (t.icmp_type, t.icmp_code, t.sport, t.dport) = (kind, code, id, id);
            }
            _ => {}
        }
        Some(Quoted { l3, l4: at, tuple: t })
    }

    /// The tuple of packets that go the error's way: none if the error goes to another than the quoted packet's sender.
    pub(crate) fn reversed(&self, receiver: u128) -> Option<Tuple> {
        (self.tuple.src == receiver).then(|| self.tuple.reversed())
    }

    /// The offset of the quoted packet's transport checksum, if it is quoted.
    fn sum(&self, p: &[u8], end: usize) -> Option<usize> {
        let (header, at) = match self.tuple.proto {
            ipproto::TCP => (20, 16),
            ipproto::UDP => (8, 6),
            ipproto::ICMP | ipproto::ICMPV6 => (8, 2),
            _ => return None,
        };
        let none = self.tuple.proto == ipproto::UDP && be16(p, self.l4 + at) == Some(0);
        (!none && self.l4 + header <= end).then_some(self.l4 + at)
    }

    /// Gives the quoted packet another tuple; its checksums and the error's follow, as in Open vSwitch and the kernel.
    pub(crate) fn rewrite(&self, p: &mut [u8], h: &Headers, t: &Tuple) {
        let n = if t.v6 { 16 } else { 4 };
        let (so, d_o) = if t.v6 { (8, 24) } else { (12, 16) };
        let sum = self.sum(p, h.l3_end);
        let (ports, addresses) = (sum.as_slice(), if t.proto == ipproto::ICMP { &[] } else { sum.as_slice() });
        put(p, self.l3 + so, t.src, n, addresses);
        put(p, self.l3 + d_o, t.dst, n, addresses);
        if !t.v6 {
            checksum::set_ipv4(p, self.l3);
        }
        match t.proto {
            ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
                put(p, self.l4, t.sport.into(), 2, ports);
                put(p, self.l4 + 2, t.dport.into(), 2, ports);
            }
            ipproto::ICMP | ipproto::ICMPV6 => put(p, self.l4 + 4, t.sport.into(), 2, ports),
            _ => {}
        }
        if let (ipproto::UDP, Some(at)) = (t.proto, sum)
            && be16(p, at) == Some(0)
        {
            store(p, at, &[0xff; 2]);
        }
        checksum::set_l4(p, h);
    }
}

/// The sender of an error about a connection whose tuple becomes another one, if it changes. It keeps its address, as it
/// may be a router, unless its side is the translated one: then the translated address hides it, as in Open vSwitch and
/// the kernel.
pub(crate) fn sender([from, to]: &[Tuple; 2]) -> Option<u128> {
    (to.src != from.src).then_some(to.src)
}

/// Translates an error whose headers are at these places, as a walk does; its checksum is changed and not made anew. None: it
/// quotes nothing that can be translated.
pub(crate) fn translate(p: &mut [u8], [l3, l4]: [usize; 2], pair: &[Tuple; 2]) -> Option<()> {
    let [from, to] = pair;
    if from == to {
        return Some(());
    }
    let (v6, quoted, now) = (to.v6, Quoted::parse(p, to.v6, l4)?, to.reversed());
    let end = if v6 { l3 + 40 + usize::from(be16(p, l3 + 4)?) } else { l3 + usize::from(be16(p, l3 + 2)?) };
    // Of the error's addresses, of the quoted packet's, and of its ports.
    let (src, dst) = if v6 { (8, 24) } else { (12, 16) };
    let hidden = sender(pair).map_or(0, |hidden| write_address(p, l3 + src, hidden, v6));
    let outer = hidden + write_address(p, l3 + dst, to.dst, v6);
    let sum = quoted.sum(p, end);
    let inner = write_address(p, quoted.l3 + src, now.src, v6) + write_address(p, quoted.l3 + dst, now.dst, v6);
    let ports = match now.proto {
        ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
            let ports = u32::from(now.sport) << 16 | u32::from(now.dport);
            checksum::replace(p, quoted.l4, &ports.to_be_bytes())
        }
        ipproto::ICMP | ipproto::ICMPV6 => checksum::replace(p, quoted.l4 + 4, &now.sport.to_be_bytes()),
        _ => 0,
    };
    let mut change = inner + ports;
    if let Some(at) = sum {
        let before = be16(p, at)?;
        // ICMP has no pseudo header (RFC 792).
        let covered = if now.proto == ipproto::ICMP { ports } else { change };
        let after = match checksum::apply(p, at, checksum::fold(covered))? {
            0 if now.proto == ipproto::UDP => 0xffff,
            after => after,
        };
        store(p, at, &after.to_be_bytes());
        change += u32::from(!before) + u32::from(after);
    }
    if v6 {
        // The pseudo header has them (RFC 4443 section 2.3).
        change += outer;
    } else {
        checksum::apply(p, l3 + 10, checksum::fold(outer));
        let before = be16(p, quoted.l3 + 10)?;
        checksum::set_ipv4(p, quoted.l3);
        change += u32::from(!before) + u32::from(be16(p, quoted.l3 + 10)?);
    }
    checksum::apply(p, l4 + 2, checksum::fold(change));
    Some(())
}

/// Writes an address; returns what that adds to checksums.
fn write_address(p: &mut [u8], at: usize, address: u128, v6: bool) -> u32 {
    match v6 {
        true => checksum::replace(p, at, &address.to_be_bytes()),
        false => checksum::replace(p, at, &(address as u32).to_be_bytes()),
    }
}
