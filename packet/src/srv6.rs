//! The segment routing header (RFC 8754 section 2), with IP in it (RFC 8986 sections 5.1 and 4.4).

/// IP protocol of routing headers, and the type of this one.
pub const ROUTING: u8 = 43;
const SEGMENTS: u8 = 4;
/// IP protocols of what is within, and their EtherTypes.
const WITHIN: [(u8, u16); 2] = [(4, 0x0800), (41, 0x86dd)];
/// Bytes before the list of segments.
const BASE: usize = 8;
/// Most segments of a tunnel, as in Open vSwitch.
pub const MOST_SEGMENTS: usize = 6;

/// The header that a path through these segments begins with, for a packet of an EtherType; `None` if that cannot be within.
pub fn header(segments: &[u128], ethertype: u16) -> Option<Vec<u8>> {
    let next = WITHIN.iter().find(|(_, t)| *t == ethertype)?.0;
    let left = u8::try_from(segments.len().checked_sub(1)?).ok().filter(|n| *n <= 126)?;
    let mut out = vec![next, 2 * (left + 1), SEGMENTS, left, left, 0, 0, 0];
    // The last one comes first.
    segments.iter().rev().for_each(|s| out.extend_from_slice(&s.to_be_bytes()));
    Some(out)
}

/// Reads the header of a packet at its last segment: the EtherType of what is within, and the header's length. `None` if it is
/// another header, or segments are left.
pub fn parse(p: &[u8]) -> Option<(u16, usize)> {
    let &[next, len, kind, left, ..] = p else { return None };
    let n = BASE + usize::from(len) * 8;
    let within = WITHIN.iter().find(|(proto, _)| *proto == next)?.1;
    (kind == SEGMENTS && left == 0 && p.len() >= n).then_some((within, n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_listed_from_the_last_on() {
        let h = header(&[1, 2], 0x86dd).unwrap();
        assert_eq!((&h[..8], h[23], h[39], h.len()), (&[41, 4, 4, 1, 1, 0, 0, 0][..], 2, 1, 40));
        assert_eq!(parse(&h), None, "a segment is left");
        let mut last = h.clone();
        last[3] = 0;
        assert_eq!(parse(&last), Some((0x86dd, 40)));
        assert_eq!(parse(&header(&[9], 0x800).unwrap()), Some((0x800, 24)));
        for (at, v) in [(0, 17), (1, 5), (2, 0)] {
            let mut bad = last.clone();
            bad[at] = v;
            assert_eq!(parse(&bad), None, "byte {at} is {v}");
        }
        assert_eq!((header(&[], 0x800), header(&[1], 0x806), parse(&h[..3])), (None, None, None));
    }
}
