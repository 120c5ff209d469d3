//! GTP-U: user packets of mobile networks (3GPP TS 29.281 section 5).

use crate::{be16, be32};

/// UDP port of GTP-U.
pub const GTPU_PORT: u16 = 2152;
/// Type of a message that has a user's packet in it (section 6.1).
pub const USER_PACKET: u8 = 255;
/// Flags of version 1 of GTP, without any option.
pub const FLAGS: u8 = 0x30;

/// Bits of the flags: the version, GTP and not GTP', and which of the optional fields count.
const VERSION: u8 = 0xf0;
const EXTENSION: u8 = 0x04;
const SEQUENCE: u8 = 0x02;
const NUMBER: u8 = 0x01;
/// Bytes of the header, and of its optional fields, which are there together.
const HEADER: usize = 8;
const OPTIONAL: usize = 4;

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gtpu {
    /// Version and flags.
    pub flags: u8,
    /// Type of message.
    pub message: u8,
    /// Tunnel endpoint identifier.
    pub teid: u32,
    /// Bytes of the header, with its optional fields and extension headers.
    pub len: usize,
    /// Where the message ends.
    pub end: usize,
}

impl Gtpu {
    /// Reads the header that `b` begins with; `None` if it is cut, malformed, or of another version.
    pub fn parse(b: &[u8]) -> Option<Gtpu> {
        let &[flags, message, ..] = b.first_chunk::<2>()?;
        // Bit 3 is a spare one (section 5.1).
        if flags & VERSION != FLAGS {
            return None;
        }
        let end = HEADER + usize::from(be16(b, 2)?);
        let (teid, body) = (be32(b, 4)?, b.get(..end)?);
        let mut len = HEADER;
        if flags & (EXTENSION | SEQUENCE | NUMBER) != 0 {
            len += OPTIONAL;
            let mut next = if flags & EXTENSION != 0 { *body.get(len - 1)? } else { 0 };
            // Each extension header begins with its length in words, and ends with the type of the next one (section 5.2.1).
            while next != 0 {
                let words = usize::from(*body.get(len)?);
                if words == 0 {
                    return None;
                }
                len += 4 * words;
                next = *body.get(len - 1)?;
            }
        }
        (len <= end).then_some(Gtpu { flags, message, teid, len, end })
    }

    /// Appends the header of a user's packet of so many bytes, with a sequence number if there is one.
    pub fn put(out: &mut Vec<u8>, teid: u32, sequence: Option<u16>, packet: usize) {
        let optional = if sequence.is_some() { OPTIONAL } else { 0 };
        out.extend([if sequence.is_some() { FLAGS | SEQUENCE } else { FLAGS }, USER_PACKET]);
        out.extend(((packet + optional) as u16).to_be_bytes());
        out.extend(teid.to_be_bytes());
        if let Some(n) = sequence {
            out.extend(n.to_be_bytes());
            out.extend([0, 0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for (sequence, wanted) in [(None, "30ff0004000000ff"), (Some(7), "32ff0008000000ff00070000")] {
            let mut p = Vec::new();
            Gtpu::put(&mut p, 255, sequence, 4);
            assert_eq!(p.iter().map(|b| format!("{b:02x}")).collect::<String>(), wanted);
            let len = p.len();
            p.extend(*b"body and what is behind it");
            let h = Gtpu::parse(&p).expect("a header");
            assert_eq!((h.message, h.teid, h.len, h.end), (USER_PACKET, 255, len, len + 4));
            (0..len + 4).for_each(|n| assert_eq!(Gtpu::parse(&p[..n]), None, "{n} bytes"));
        }
    }

    #[test]
    fn extension_headers_are_passed_over() {
        // A container of a session's information (type 0x85) of one word, then one of two words.
        let long = [0x34, 255, 0, 18, 0, 0, 0, 1, 0, 0, 0, 0x85, 1, 0, 9, 0xc0, 2, 0, 0, 0, 0, 0, 0, 0, 0x45, 0];
        let h = Gtpu::parse(&long).expect("a header");
        assert_eq!((h.flags, h.len, h.end), (0x34, 24, 26));
        let mut none = long;
        none[12] = 0;
        assert_eq!(Gtpu::parse(&none), None, "an extension header without a length");
        let mut beyond = long;
        beyond[16] = 9;
        assert_eq!(Gtpu::parse(&beyond), None, "one that is longer than the message");
        for flags in [0x20, 0x50, 0x14] {
            assert_eq!(Gtpu::parse(&[&[flags], &long[1..]].concat()), None, "{flags:#x}: another protocol");
        }
        assert_eq!(Gtpu::parse(&[0x30, 1, 0, 0, 0, 0, 0, 0]).map(|h| h.message), Some(1), "an echo request");
    }
}
