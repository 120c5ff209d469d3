//! Tunnel headers in front of packets, and packets taken out of tunnels.

use super::entry::{Outer, OuterGre};
use crate::buf::PacketBuf;
use crate::tunnel::{SourcePorts, entropy_of};
use packet::be16;
use packet::checksum::{self, Sum};

/// Most bytes of headers that are made ready for a run of packets: of Geneve over IPv6 with 18 bytes of options.
const READY: usize = 96;
/// The first and the last bytes of headers, which are copied as they are: few headers have more of them.
const ENDS: usize = 32;
/// Both Ethernet addresses of a frame.
const MACS: usize = 12;
/// Bytes of a VLAN tag.
const TAG: usize = 4;

/// Takes out the frame inside, which begins at an offset; the packet ended at `end` as it was received.
#[inline(always)]
pub(super) fn decapsulate<P: PacketBuf>(p: &mut P, (at, longer): (usize, i8), end: usize) {
    let end = end.saturating_add_signed(longer.into());
    if p.data().len() > end {
        p.truncate(end);
    }
    p.shrink_front(at);
}

pub(super) fn put16(p: &mut [u8], at: usize, v: usize) {
    if let (Some(b), Ok(v)) = (p.get_mut(at..).and_then(|b| b.first_chunk_mut()), u16::try_from(v)) {
        *b = v.to_be_bytes();
    }
}

/// Writes the length into the IP header behind an Ethernet header, of a packet of `whole` bytes; the sum of an IPv4 header
/// is that without length.
#[inline(always)]
fn put_length(d: &mut [u8], whole: usize, v6: bool, sum: u16) {
    if v6 {
        put16(d, 18, whole - 54);
    } else {
        put16(d, 16, whole - 14);
        put16(d, 24, checksum::finish(u32::from(sum) + (whole - 14) as u32).into());
    }
}

/// Where the header behind a tunnel's IP header is: of UDP or GRE.
pub(super) fn outer_l4(v6: bool) -> usize {
    if v6 { 54 } else { 34 }
}

/// Where the source ports of a tunnel stand that packets choose from by their flows: the first in place of the source
/// port, and in place of the length, which comes with the packet, how many more there are.
pub(super) fn put_source_ports(headers: &mut [u8], l4: usize, ports: SourcePorts) {
    for (at, n) in [(l4, ports.first), (l4 + 4, ports.more)] {
        headers.get_mut(at..at + 2).into_iter().for_each(|b| b.copy_from_slice(&n.to_be_bytes()));
    }
}

/// Reads these.
#[inline(always)]
fn source_ports(headers: &[u8], l4: usize) -> Option<SourcePorts> {
    Some(SourcePorts { first: be16(headers, l4)?, more: be16(headers, l4 + 4)? })
}

/// Puts headers with GRE in front of a packet; false where it has no room for them.
#[inline(never)]
pub(super) fn encapsulate_gre<P: PacketBuf>(p: &mut P, o: &OuterGre<'_>) -> bool {
    p.settle_checksum();
    p.grow_front(o.len) && fill_gre(p.data_mut(), o).is_some()
}

fn fill_gre(d: &mut [u8], o: &OuterGre<'_>) -> Option<()> {
    unpack(o.words, d.get_mut(..o.len)?);
    put_length(d, d.len(), o.v6, o.sum);
    if let Some((at, sequence)) = o.sequence {
        let number: &mut [u8; 4] = d.get_mut(at..)?.first_chunk_mut()?;
        *number = sequence.take().to_be_bytes();
    }
    if o.csum {
        let gre = outer_l4(o.v6);
        put16(d, gre + 4, 0);
        let sum = checksum::of(d.get(gre..)?);
        put16(d, gre + 4, sum.into());
    }
    Some(())
}

/// Copies words as bytes, of which there are eight at least.
#[inline(always)]
fn unpack(words: &[u64], to: &mut [u8]) {
    let (whole, rest) = to.as_chunks_mut::<8>();
    let (n, more) = (whole.len(), rest.len());
    whole.iter_mut().zip(words).for_each(|(c, w)| *c = w.to_ne_bytes());
    if more == 0 {
        return;
    }
    // The last eight bytes at once, of which the first are there already.
    if let Some(last) = to.last_chunk_mut()
        && let Some(&[a, b]) = n.checked_sub(1).and_then(|n| words.get(n..)?.first_chunk())
    {
        let bits = 8 * more as u32;
        let [a, b] = [a, b].map(|w| u64::from_le_bytes(w.to_ne_bytes()));
        *last = (a >> bits | b << (64 - bits)).to_le_bytes();
    }
}

/// What a UDP checksum covers besides the packet inside and the source port, for `udp` bytes of UDP: `covered` and the
/// length twice, as the pseudo header has it too (RFC 768).
#[inline(always)]
fn covered(covered: u16, udp: usize) -> Sum {
    let length = (udp as u16).to_be_bytes();
    Sum::default().word(covered.to_be_bytes()).word(length).word(length)
}

/// Puts UDP headers of a tunnel in front of a packet; false where it has no room for them.
#[inline(always)]
pub(super) fn encapsulate<P: PacketBuf>(p: &mut P, o: &Outer<'_>) -> bool {
    let Outer { len: n, words, v6, csum, sum, covered: fixed, spread, .. } = *o;
    let hash = spread.and_then(|l3| entropy_of(p.data(), l3));
    p.settle_checksum();
    if !p.grow_front(n) {
        return false;
    }
    let (whole, l4) = (p.data().len(), outer_l4(v6));
    let left = csum && p.leave_checksum(whole - l4, whole - n);
    let Some((head, inside)) = p.data_mut().split_at_mut_checked(n) else { return false };
    unpack(words, head);
    put_length(head, whole, v6, sum);
    if let Some(port) = hash.and_then(|hash| Some(source_ports(head, l4)?.of(hash))) {
        put16(head, l4, port.into());
    }
    put16(head, l4 + 4, whole - l4);
    if csum {
        let Some([a, b, .., y, z]) = head.get_mut(l4..l4 + 8) else { return false };
        let inside = if left { Sum::default() } else { Sum::default().bytes(inside) };
        [*y, *z] = inside.plus(covered(fixed, whole - l4)).word([*a, *b]).udp();
    }
    true
}

/// UDP headers of a tunnel, ready to be copied in front of a run of packets, most of which are of the same length.
pub(super) struct Headers {
    bytes: [u8; READY],
    /// How many there are.
    len: usize,
    /// The length of the packets that they are ready for, with them.
    whole: usize,
    /// Tags that come off each packet first.
    tags: usize,
    v6: bool,
    csum: bool,
    /// Of IPv4's header, but for its length.
    sum: u16,
    /// Of what the checksum covers of them, but for the source port and lengths.
    fixed: u16,
    covered: Sum,
    ports: SourcePorts,
    /// Where the IP header of the packet inside is, by whose flow the source port is chosen; none: it is the first.
    spread: Option<usize>,
}

impl Headers {
    /// None where they are too long.
    pub(super) fn new(o: &Outer<'_>, tags: usize) -> Option<Headers> {
        let Outer { len, words, v6, csum, sum, covered: fixed, spread, .. } = *o;
        let mut bytes = [0; READY];
        let head = bytes.get_mut(..len)?;
        unpack(words, head);
        let ports = source_ports(head, outer_l4(v6))?;
        let spread = spread.map(|l3| l3 + TAG * tags);
        Some(Headers { bytes, len, whole: 0, tags, v6, csum, sum, fixed, covered: Sum::default(), ports, spread })
    }

    #[cold]
    fn fit(&mut self, whole: usize) {
        let l4 = outer_l4(self.v6);
        put_length(&mut self.bytes, whole, self.v6, self.sum);
        put16(&mut self.bytes, l4 + 4, whole - l4);
        self.covered = covered(self.fixed, whole - l4);
        self.whole = whole;
    }

    /// Puts them in front of a packet, whose tags come off; false where it has no room for them.
    #[inline(always)]
    pub(super) fn put<P: PacketBuf>(&mut self, p: &mut P) -> bool {
        self.try_put(p).is_some()
    }

    #[inline(always)]
    fn try_put<P: PacketBuf>(&mut self, p: &mut P) -> Option<()> {
        let (n, off, l4) = (self.len, TAG * self.tags, outer_l4(self.v6));
        let macs: [u8; MACS] = *p.data().first_chunk()?;
        let port = match self.spread.and_then(|l3| entropy_of(p.data(), l3)) {
            Some(hash) => self.ports.of(hash),
            None => self.ports.first,
        };
        let port = port.to_be_bytes();
        p.settle_checksum();
        if !p.grow_front(n.checked_sub(off)?) {
            return None;
        }
        let whole = p.data().len();
        if whole != self.whole {
            self.fit(whole);
        }
        let left = self.csum && p.leave_checksum(whole - l4, whole - n);
        let (head, inside) = p.data_mut().split_at_mut_checked(n)?;
        let ready = self.bytes.get(..n)?;
        // What is in both is written twice.
        *head.first_chunk_mut::<ENDS>()? = *ready.first_chunk()?;
        *head.last_chunk_mut::<ENDS>()? = *ready.last_chunk()?;
        if n > 2 * ENDS {
            head.get_mut(ENDS..n - ENDS)?.copy_from_slice(ready.get(ENDS..n - ENDS)?);
        }
        let (front, rest) = inside.split_first_chunk_mut()?;
        if off != 0 {
            *front = macs;
        }
        let [a, b, _, _, _, _, y, z] = head.get_mut(l4..)?.first_chunk_mut()?;
        [*a, *b] = port;
        if self.csum {
            // What was just written is not read: that would wait for it.
            let inside = if left { Sum::default() } else { Sum::default().bytes(&macs).bytes(rest) };
            [*y, *z] = inside.plus(self.covered).word(port).udp();
        }
        Some(())
    }
}
