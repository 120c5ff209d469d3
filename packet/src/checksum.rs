//! The Internet checksum (RFC 1071), incremental update (RFC 1624), and CRC32c for SCTP (RFC 9260).

use crate::{Headers, ipproto};

/// A one's complement sum of 16-bit words in the processor's byte order, turned round where it is read: RFC 1071 section
/// 2(B). Blocks are added eight bytes at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds a block that begins at an even place of what is summed.
    #[inline(always)]
    #[must_use]
    pub fn bytes(self, b: &[u8]) -> Sum {
        let word = |c: &[u8; 8]| u128::from(u64::from_le_bytes(*c));
        // Two sums, whose additions need not wait for each other.
        let (mut even, mut odd) = (0, 0);
        let mut pair = |c: &[u8; 16]| {
            if let [a, b] = c.as_chunks().0 {
                (even, odd) = (even + word(a), odd + word(b));
            }
        };
        let (long, mut rest) = b.as_chunks::<64>();
        long.iter().for_each(|c| c.as_chunks().0.iter().for_each(&mut pair));
        // The rest without loops: most packets that are summed are short.
        if let Some((c, behind)) = rest.split_first_chunk::<32>() {
            c.as_chunks().0.iter().for_each(&mut pair);
            rest = behind;
        }
        if let Some((c, behind)) = rest.split_first_chunk() {
            pair(c);
            rest = behind;
        }
        let mut s: u128 = even + odd;
        if let Some((c, behind)) = rest.split_first_chunk() {
            s += word(c);
            rest = behind;
        }
        // What is left is the end of the last eight bytes.
        let last = match b.last_chunk() {
            Some(l) => (word(l) as u64).checked_shr(64 - 8 * rest.len() as u32).unwrap_or(0),
            None => rest.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b)),
        };
        let s = s + u128::from(last);
        Sum(self.0 + halves(s as u64) + (s >> 64) as u64)
    }

    /// Adds a word.
    #[inline(always)]
    #[must_use]
    pub fn word(self, w: [u8; 2]) -> Sum {
        Sum(self.0 + u64::from(u16::from_le_bytes(w)))
    }

    /// Adds another sum, of blocks that begin at even places, too.
    #[inline(always)]
    #[must_use]
    pub fn plus(self, s: Sum) -> Sum {
        Sum(self.0 + s.0)
    }

    /// The sum folded to 16 bits.
    #[inline(always)]
    fn folded(self) -> u16 {
        let (low, carry) = (self.0 as u32).overflowing_add((self.0 >> 32) as u32);
        let s = low + u32::from(carry);
        // Each half is added to the other one: the upper half has what the lower one carries.
        (s.wrapping_add(s.rotate_left(16)) >> 16) as u16
    }

    /// The sum folded to 16 bits, as it is in memory.
    #[inline(always)]
    pub fn folded_bytes(self) -> [u8; 2] {
        self.folded().to_le_bytes()
    }

    /// The UDP checksum of the sum: zero is no checksum (RFC 768).
    #[inline(always)]
    pub fn udp(self) -> [u8; 2] {
        match !self.folded() {
            0 => [0xff; 2],
            c => c.to_le_bytes(),
        }
    }
}

/// The sum of both halves.
#[inline(always)]
fn halves(s: u64) -> u64 {
    (s & 0xffff_ffff) + (s >> 32)
}

/// One's complement sum of big-endian words, folded to 16 bits.
#[inline]
pub fn sum(b: &[u8]) -> u32 {
    u16::from_be_bytes(Sum::default().bytes(b).folded_bytes()).into()
}

/// Folds a sum and complements it.
pub fn finish(mut s: u32) -> u16 {
    while s >> 16 != 0 {
        s = (s & 0xffff) + (s >> 16);
    }
    !(s as u16)
}

/// Checksum of a block.
pub fn of(b: &[u8]) -> u16 {
    finish(sum(b))
}

/// A checksum after a 16-bit word changed (RFC 1624, equation 3).
pub fn update16(old_sum: u16, from: u16, to: u16) -> u16 {
    finish(u32::from(!old_sum) + u32::from(!from) + u32::from(to))
}

/// A checksum after bytes changed; both slices are as long, and even.
pub fn update(old_sum: u16, from: &[u8], to: &[u8]) -> u16 {
    let add = finish(sum(to));
    let sub = finish(sum(from));
    finish(u32::from(!old_sum) + u32::from(sub) + u32::from(!add))
}

/// Writes words to a packet; returns what that adds to its checksums (RFC 1624, equation 3: the old words are subtracted,
/// the new ones added). Nothing where the packet has no such bytes.
#[inline(always)]
pub fn replace(packet: &mut [u8], at: usize, new: &[u8]) -> u32 {
    let Some(old) = packet.get_mut(at..at + new.len()) else { return 0 };
    let words = |b: &[u8]| b.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
    let change = words(new) + 0xffff * (new.len() as u32 / 2) - words(old);
    old.copy_from_slice(new);
    change
}

/// A sum of words, with its carries.
#[inline(always)]
pub fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Changes the checksum at a place by what words add to it; returns what it is then. None where the packet has no such place.
#[inline(always)]
pub fn apply(packet: &mut [u8], at: usize, change: u16) -> Option<u16> {
    let b: &mut [u8; 2] = packet.get_mut(at..)?.first_chunk_mut()?;
    let s = u32::from(!u16::from_be_bytes(*b)) + u32::from(change);
    let new = !((s & 0xffff) + (s >> 16)) as u16;
    *b = new.to_be_bytes();
    Some(new)
}

/// The pseudo-header sum of an IP packet's payload.
fn pseudo(packet: &[u8], h: &Headers, len: usize) -> u32 {
    let addresses = if h.is_ipv4() { h.l3 + 12..h.l3 + 20 } else { h.l3 + 8..h.l3 + 40 };
    let mut s = sum(packet.get(addresses).unwrap_or_default());
    s += u32::from(h.proto);
    s += (len & 0xffff) as u32 + (len >> 16) as u32;
    s
}

/// Writes the IPv4 header checksum.
pub fn set_ipv4(packet: &mut [u8], l3: usize) {
    let n = packet.get(l3).map_or(0, |b| usize::from(b & 15) * 4);
    let Some(header) = packet.get_mut(l3..l3 + n) else { return };
    if header.len() < 20 {
        return;
    }
    header[10..12].fill(0);
    let c = of(header);
    header[10..12].copy_from_slice(&c.to_be_bytes());
}

/// Offset of the checksum within the transport header.
pub fn l4_offset(proto: u8) -> Option<usize> {
    match proto {
        ipproto::TCP => Some(16),
        ipproto::UDP => Some(6),
        ipproto::ICMP | ipproto::ICMPV6 => Some(2),
        ipproto::SCTP => Some(8),
        _ => None,
    }
}

/// Writes the transport checksum of a whole (not fragmented) packet.
pub fn set_l4(packet: &mut [u8], h: &Headers) {
    let Some(l4) = h.l4 else { return };
    let Some(at) = l4_offset(h.proto) else { return };
    let end = h.l3_end.min(packet.len());
    if end < l4 + at + 2 || h.fragment {
        return;
    }
    if h.proto == ipproto::SCTP {
        return set_sctp(packet, l4, end);
    }
    packet[l4 + at..l4 + at + 2].fill(0);
    let mut s = sum(&packet[l4..end]);
    if h.proto != ipproto::ICMP {
        s += pseudo(packet, h, end - l4);
    }
    let c = if h.proto == ipproto::UDP { udp(s) } else { finish(s) };
    packet[l4 + at..l4 + at + 2].copy_from_slice(&c.to_be_bytes());
}

/// Writes the checksum of a whole SCTP packet, whose header begins at `l4`, and which ends at `end` (RFC 9260 section 6.8).
pub fn set_sctp(packet: &mut [u8], l4: usize, end: usize) {
    let parts = packet.get_mut(l4..end.max(l4)).and_then(|p| p.split_at_mut_checked(12));
    let Some((header, rest)) = parts else { return };
    let (ports, sum) = header.split_at_mut(8);
    sum.copy_from_slice(&sctp(ports, rest));
}

/// Changes the checksum of an SCTP packet, whose header begins at `l4`, and which ends at `end`, as other ports change what
/// it should be: what is wrong with it stays wrong. `differ` are the bits of both ports that become others.
pub fn change_sctp(packet: &mut [u8], l4: usize, end: usize, differ: [u8; 4]) {
    let Some(rest) = end.min(packet.len()).checked_sub(l4 + 12) else { return };
    let Some(sum) = packet.get_mut(l4 + 8..l4 + 12) else { return };
    // A CRC is linear: what differs has one of its own, of a message that is zero everywhere else, without the ones that
    // stand before and behind the CRC of a whole message.
    static ZEROS: [u8; 1024] = [0; 1024];
    let (mut crc, mut left) = (crc32c::crc32c_append(u32::MAX, &differ), 8 + rest);
    while let Some(n) = Some(left.min(ZEROS.len())).filter(|n| *n != 0) {
        crc = crc32c::crc32c_append(crc, &ZEROS[..n]);
        left -= n;
    }
    sum.iter_mut().zip((!crc).to_le_bytes()).for_each(|(has, change)| *has ^= change);
}

/// Whether the checksum of an SCTP packet is right.
pub fn sctp_holds(packet: &[u8]) -> bool {
    match packet.split_at_checked(12) {
        Some((&[ref ports @ .., a, b, c, d], rest)) => sctp(ports, rest) == [a, b, c, d],
        _ => false,
    }
}

/// The checksum of an SCTP packet: that of ports and tag, four zeros, and the chunks.
fn sctp(ports: &[u8], chunks: &[u8]) -> [u8; 4] {
    let header = crc32c::crc32c_append(crc32c::crc32c(ports), &[0; 4]);
    crc32c::crc32c_append(header, chunks).to_le_bytes()
}

/// A UDP checksum of a sum: zero is no checksum (RFC 768).
#[inline]
fn udp(sum: u32) -> u16 {
    match finish(sum) {
        0 => 0xffff,
        c => c,
    }
}

/// Adds the last `rest` bytes of a frame to the checksum of the UDP packet that its last `udp` bytes are, which is that of all that
/// comes before them. They begin at an even place in it. False, with nothing done, where the frame is shorter.
#[inline]
pub fn add_udp(frame: &mut [u8], udp: usize, rest: usize) -> bool {
    let Some((before, body)) = frame.len().checked_sub(rest).and_then(|n| frame.split_at_mut_checked(n)) else {
        return false;
    };
    let field = (udp.checked_sub(rest)).and_then(|n| before.len().checked_sub(n));
    let Some(field) = field.and_then(|at| before.get_mut(at + 6..at + 8)?.first_chunk_mut()) else { return false };
    *field = Sum::default().word(field.map(|b| !b)).bytes(body).udp();
    true
}

/// Writes the sum of the pseudo-header in place of the transport checksum: what devices that finish it start from.
pub fn set_pseudo(packet: &mut [u8], h: &Headers) {
    let (Some(l4), Some(at)) = (h.l4, l4_offset(h.proto)) else { return };
    let len = h.l3_end.min(packet.len()).saturating_sub(l4);
    let s = !finish(pseudo(packet, h, len));
    if let Some(f) = packet.get_mut(l4 + at..l4 + at + 2) {
        f.copy_from_slice(&s.to_be_bytes());
    }
}

/// Whether the transport checksum holds; true where there is none to check.
pub fn l4_ok(packet: &[u8], h: &Headers) -> bool {
    let Some(l4) = h.l4 else { return true };
    let end = h.l3_end.min(packet.len());
    let Some(body) = packet.get(l4..end) else { return false };
    match h.proto {
        _ if h.fragment => true,
        ipproto::SCTP => sctp_holds(body),
        ipproto::UDP if body.get(6..8) == Some(&[0, 0]) && h.is_ipv4() => true,
        ipproto::ICMP => finish(sum(body)) == 0,
        ipproto::TCP | ipproto::UDP | ipproto::ICMPV6 => finish(sum(body) + pseudo(packet, h, body.len())) == 0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mac;
    use proptest::prelude::*;

    /// RFC 1071 section 4.1, word by word.
    fn slow(b: &[u8]) -> u16 {
        let mut s: u64 = 0;
        for c in b.chunks(2) {
            s += u64::from(c[0]) << 8 | u64::from(c.get(1).copied().unwrap_or(0));
        }
        while s >> 16 != 0 {
            s = (s & 0xffff) + (s >> 16);
        }
        s as u16
    }

    #[test]
    fn what_was_left_of_a_udp_checksum_is_added() {
        use crate::build;
        for v6 in [false, true] {
            for (n, rest) in [(0, 0), (1, 1), (22, 22), (63, 31), (63, 63), (1400, 1392)] {
                let ends: [std::net::IpAddr; 2] = if v6 {
                    [[0xfc; 16].into(), [0xfd; 16].into()]
                } else {
                    [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]
                };
                let body: Vec<u8> = (0..n).map(|i| (i * 7) as u8).collect();
                let mut p =
                    build::udp(Mac([2; 6]), Mac([4; 6]), (ends[0], 1), (ends[1], 2), 64, &body).expect("a packet");
                let right = p.clone();
                let end = p.len();
                // That of all but the rest is that of the packet with nothing there.
                p[end - rest..].fill(0);
                let h = Headers::parse(&p).expect("headers");
                set_l4(&mut p, &h);
                p[end - rest..].copy_from_slice(&right[end - rest..]);
                assert!(add_udp(&mut p, n + 8, rest));
                assert_eq!(p, right, "{n} bytes, {rest} left");
                assert!(!add_udp(&mut p, n + 8, end + 1) && !add_udp(&mut p, end + 1, rest), "not such a packet");
                assert_eq!(p, right);
            }
        }
    }

    #[test]
    fn sums_are_those_of_the_slow_way() {
        let mut x = 1u64;
        let mut random = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        };
        for n in (0..300).chain([9000, 65_535]) {
            let noise: Vec<u8> = (0..n).map(|_| random()).collect();
            for b in [noise, vec![0; n], vec![0xff; n]] {
                assert_eq!(sum(&b), u32::from(slow(&b)), "{n} bytes");
            }
        }
    }

    /// RFC 9260 appendix A, bit by bit.
    fn slow_crc(b: &[u8]) -> u32 {
        let step = |crc: u32| if crc & 1 != 0 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        !b.iter().fold(u32::MAX, |crc, b| (0..8).fold(crc ^ u32::from(*b), |crc, _| step(crc)))
    }

    #[test]
    fn the_slow_crc_is_right() {
        assert_eq!(slow_crc(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn sctp_has_the_crc_of_all_of_it(body in proptest::collection::vec(any::<u8>(), 12..2500), l4 in 0..9usize) {
            let mut p = vec![7; l4];
            p.extend(&body);
            p.extend([9; 3]);
            set_sctp(&mut p, l4, l4 + body.len());
            let mut zeroed = body.clone();
            zeroed[8..12].fill(0);
            let expected = slow_crc(&zeroed).to_le_bytes();
            prop_assert_eq!(&p[l4 + 8..l4 + 12], &expected);
            // Other ports, with a checksum that was right, and one that had a bit wrong.
            for wrong in [0, 4] {
                let mut other = p.clone();
                other[l4 + 8] ^= wrong;
                let ports = [1, 2, 3, 4];
                let differ = std::array::from_fn(|i| body[i] ^ ports[i]);
                change_sctp(&mut other, l4, l4 + body.len(), differ);
                other[l4..l4 + 4].copy_from_slice(&ports);
                other[l4 + 8] ^= wrong;
                zeroed[..4].copy_from_slice(&[1, 2, 3, 4]);
                prop_assert_eq!(&other[l4 + 8..l4 + 12], &slow_crc(&zeroed).to_le_bytes());
            }
            p[l4 + 8..l4 + 12].copy_from_slice(&body[8..12]);
            prop_assert_eq!(&p[l4..l4 + body.len()], &body[..]);
        }
    }
}
