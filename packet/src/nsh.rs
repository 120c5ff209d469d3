//! The network service header (RFC 8300 section 2).

use crate::be32;

/// Bytes of the header without metadata.
pub const BASE: usize = 8;
/// Bytes of the header with metadata of type 1.
pub const MD1: usize = 24;
/// Most bytes of a header: its length is six bits of words.
pub const LONGEST: usize = 252;

/// What is behind a header (RFC 8300 section 11.2.5).
pub mod next {
    /// IPv4.
    pub const IPV4: u8 = 1;
    /// IPv6.
    pub const IPV6: u8 = 2;
    /// Ethernet.
    pub const ETHERNET: u8 = 3;
    /// Another network service header.
    pub const NSH: u8 = 4;
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Nsh {
    /// The O bit and the reserved one behind it.
    pub flags: u8,
    /// Time to live, six bits.
    pub ttl: u8,
    /// Type of metadata, four bits.
    pub md_type: u8,
    /// What is behind it.
    pub next: u8,
    /// Service path, 24 bits.
    pub path: u32,
    /// Service index.
    pub index: u8,
    /// Context, with metadata of type 1.
    pub context: [u32; 4],
    /// Bytes of it and its metadata.
    pub len: usize,
}

impl Nsh {
    /// Reads a header; `None` if it is malformed or of another version.
    pub fn parse(p: &[u8]) -> Option<Nsh> {
        let (first, path) = (be32(p, 0)?, be32(p, 4)?);
        let mut n = Nsh {
            flags: (first >> 28 & 3) as u8,
            ttl: (first >> 22 & 0x3f) as u8,
            len: (first >> 16 & 0x3f) as usize * 4,
            md_type: (first >> 8 & 0xf) as u8,
            next: first as u8,
            path: path >> 8,
            index: path as u8,
            context: [0; 4],
        };
        if first >> 30 != 0 || n.len < BASE || n.len > p.len() || n.md_type == 1 && n.len != MD1 {
            return None;
        }
        if n.md_type == 1 {
            for (i, c) in n.context.iter_mut().enumerate() {
                *c = be32(p, BASE + 4 * i)?;
            }
        }
        Some(n)
    }

    /// Writes all but metadata of other types than 1 to the place of a header of this length.
    pub fn write(&self, p: &mut [u8]) {
        let words = self.len as u32 / 4;
        let first = u32::from(self.flags & 3) << 28 | u32::from(self.ttl & 0x3f) << 22 | (words & 0x3f) << 16;
        let first = first | u32::from(self.md_type & 0xf) << 8 | u32::from(self.next);
        let mut put = |at: usize, v: u32| {
            if let Some(b) = p.get_mut(at..at + 4) {
                b.copy_from_slice(&v.to_be_bytes());
            }
        };
        put(0, first);
        put(4, self.path << 8 | u32::from(self.index));
        if self.md_type == 1 {
            self.context.iter().enumerate().for_each(|(i, c)| put(BASE + 4 * i, *c));
        }
    }

    /// The header's bytes, with `metadata` of another type than 1; `None` if that is too long.
    pub fn with(mut self, metadata: &[u8]) -> Option<Vec<u8>> {
        self.len = if self.md_type == 1 { MD1 } else { BASE + metadata.len() };
        if self.len > LONGEST || !self.len.is_multiple_of(4) {
            return None;
        }
        let mut out = vec![0; self.len];
        if let (true, Some(b)) = (self.md_type != 1, out.get_mut(BASE..)) {
            b.copy_from_slice(metadata);
        }
        self.write(&mut out);
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let first =
            Nsh { flags: 2, ttl: 63, md_type: 1, next: next::ETHERNET, path: 0x123456, index: 255, ..Nsh::default() };
        let n = Nsh { context: [1, 2, 3, u32::MAX], len: MD1, ..first };
        let bytes = n.with(&[]).unwrap();
        assert_eq!(bytes[..8], [0x2f, 0xc6, 1, 3, 0x12, 0x34, 0x56, 0xff]);
        assert_eq!(Nsh::parse(&bytes), Some(n));
        let other = Nsh { md_type: 2, ..first }.with(&[0x10, 0, 10, 4, 1, 2, 3, 4]).unwrap();
        assert_eq!(Nsh::parse(&other), Some(Nsh { md_type: 2, len: 16, ..first }));
        assert_eq!(other[8..], [0x10, 0, 10, 4, 1, 2, 3, 4]);
    }

    #[test]
    fn malformed_headers_are_none() {
        let good = Nsh { md_type: 1, ..Nsh::default() }.with(&[]).unwrap();
        assert!(Nsh::parse(&good).is_some());
        for (at, value) in [(0, 0x40), (1, 5), (1, 1), (1, 7)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Nsh::parse(&bad), None, "byte {at} is {value}");
        }
        assert_eq!(Nsh::parse(&good[..23]), None);
        assert_eq!(Nsh { md_type: 2, ..Nsh::default() }.with(&[0; 248]), None);
    }
}
