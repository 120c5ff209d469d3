//! GRE (RFC 2784, RFC 2890) and ERSPAN in it (draft-foschiano-erspan-03).

use crate::{be16, be32, checksum};

/// GRE protocol type of Ethernet frames (RFC 1701).
pub const ETHERNET: u16 = 0x6558;
/// GRE protocol types of ERSPAN, versions 1 (type II) and 2 (type III).
pub const ERSPAN: [u16; 2] = [0x88be, 0x22eb];

/// Flags of the header: a checksum, a key, a sequence number follow.
const CHECKSUM: u16 = 0x8000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
/// Routing, and versions other than 0, are of other protocols.
const OTHERS: u16 = 0x4007;

/// Bytes of ERSPAN's header, by version.
const ERSPAN_BYTES: [usize; 2] = [8, 12];
/// The greatest session: it has ten bits.
pub const SESSION: u32 = 0x3ff;

/// A GRE header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gre {
    /// EtherType of what is within.
    pub protocol: u16,
    /// Key.
    pub key: Option<u32>,
    /// Sequence number.
    pub sequence: Option<u32>,
    /// With a checksum over header and payload.
    pub checksum: bool,
}

/// Whether a header has a checksum.
pub fn has_checksum(p: &[u8]) -> Option<bool> {
    Some(be16(p, 0)? & CHECKSUM != 0)
}

/// Where the sequence number stands behind the beginning of a header, if it has one (RFC 2890 section 2).
pub fn sequence_at(p: &[u8]) -> Option<usize> {
    let flags = be16(p, 0)?;
    let before = [CHECKSUM, KEY].into_iter().filter(|flag| flags & flag != 0).count();
    (flags & SEQUENCE != 0).then_some(4 + 4 * before)
}

impl Gre {
    /// Parses the header that `p` begins with; returns its length as well. `None`: it is malformed, of another version, or its
    /// checksum is wrong.
    pub fn parse(p: &[u8]) -> Option<(Gre, usize)> {
        let (flags, protocol) = (be16(p, 0)?, be16(p, 2)?);
        if flags & OTHERS != 0 {
            return None;
        }
        let mut at = 4;
        let mut next = |flag: u16| -> Option<Option<u32>> {
            if flags & flag == 0 {
                return Some(None);
            }
            at += 4;
            be32(p, at - 4).map(Some)
        };
        let summed = next(CHECKSUM)?.is_some();
        let (key, sequence) = (next(KEY)?, next(SEQUENCE)?);
        if summed && checksum::of(p) != 0 {
            return None;
        }
        Some((Gre { protocol, key, sequence, checksum: summed }, at))
    }

    /// Appends the header and what is within.
    pub fn put(&self, out: &mut Vec<u8>, within: &[&[u8]]) {
        let start = out.len();
        let flag = |there: bool, flag: u16| if there { flag } else { 0 };
        let flags =
            flag(self.checksum, CHECKSUM) | flag(self.key.is_some(), KEY) | flag(self.sequence.is_some(), SEQUENCE);
        out.extend(flags.to_be_bytes());
        out.extend(self.protocol.to_be_bytes());
        if self.checksum {
            out.extend([0; 4]);
        }
        for field in [self.key, self.sequence].into_iter().flatten() {
            out.extend(field.to_be_bytes());
        }
        within.iter().for_each(|part| out.extend_from_slice(part));
        if self.checksum {
            let sum = checksum::of(out.get(start..).unwrap_or_default());
            out.splice(start + 4..start + 6, sum.to_be_bytes());
        }
    }
}

/// A header of ERSPAN: of version 1 with an index, of version 2 with a direction and the hardware's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Erspan {
    /// Type II.
    V1 {
        /// Index of the mirrored port, 20 bits.
        index: u32,
    },
    /// Type III.
    V2 {
        /// Mirrored as it left, not as it came.
        egress: bool,
        /// Number of the hardware, six bits.
        hardware: u8,
    },
}

impl Erspan {
    /// The GRE protocol type.
    pub fn protocol(self) -> u16 {
        match self {
            Erspan::V1 { .. } => ERSPAN[0],
            Erspan::V2 { .. } => ERSPAN[1],
        }
    }

    /// Parses the header behind a GRE header of this type: it, its session, and its length. `None`: it is none.
    pub fn parse(protocol: u16, p: &[u8]) -> Option<(Erspan, u32, usize)> {
        let i = ERSPAN.iter().position(|t| *t == protocol)?;
        let (first, len) = (be32(p, 0)?, *ERSPAN_BYTES.get(i)?);
        if first >> 28 != i as u32 + 1 || p.len() < len {
            return None;
        }
        let header = match i {
            0 => Erspan::V1 { index: be32(p, 4)? & 0xf_ffff },
            _ => {
                let last = be32(p, 8)?;
                Erspan::V2 { egress: last & 8 != 0, hardware: (last >> 4) as u8 & 0x3f }
            }
        };
        Some((header, first & SESSION, len))
    }

    /// The header's bytes for a session. Type III has the time, in units of 100 microseconds (draft-foschiano-erspan
    /// section 4.3, granularity 0).
    pub fn bytes(self, session: u32, time: u32) -> Vec<u8> {
        let first = |version: u32| (version << 28 | session & SESSION).to_be_bytes();
        match self {
            Erspan::V1 { index } => [first(1), (index & 0xf_ffff).to_be_bytes()].concat(),
            Erspan::V2 { egress, hardware } => {
                let last = u32::from(hardware & 0x3f) << 4 | u32::from(egress) << 3;
                // No group tag.
                [first(2), time.to_be_bytes(), last.to_be_bytes()].concat()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for (key, sequence, checksum) in
            [(None, None, false), (Some(7), None, false), (None, Some(9), true), (Some(u32::MAX), Some(1), true)]
        {
            let header = Gre { protocol: ETHERNET, key, sequence, checksum };
            let mut p = Vec::new();
            header.put(&mut p, &[b"payload"]);
            let (read, len) = Gre::parse(&p).expect("a header");
            assert_eq!((read, &p[len..]), (header, &b"payload"[..]));
            (0..len).for_each(|n| assert_eq!(Gre::parse(&p[..n]), None, "{n} bytes"));
            p[len] ^= 1;
            assert_eq!(Gre::parse(&p).is_none(), checksum, "the checksum tells");
        }
        assert_eq!(Gre::parse(&[0x20, 1, 0x88, 0x0b, 0, 0, 0, 0]), None, "another version");
    }

    #[test]
    fn sessions_are_read_as_they_are_written() {
        for header in [
            Erspan::V1 { index: 0xabcde },
            Erspan::V2 { egress: true, hardware: 0x3f },
            Erspan::V2 { egress: false, hardware: 1 },
        ] {
            let p = header.bytes(0x3ff, 0x1234_5678);
            if matches!(header, Erspan::V2 { .. }) {
                assert_eq!((be32(&p, 4), be32(&p, 8).map(|last| last & 7)), (Some(0x1234_5678), Some(0)));
            }
            assert_eq!(Erspan::parse(header.protocol(), &p), Some((header, 0x3ff, p.len())));
            assert_eq!(Erspan::parse(header.protocol(), &p[..p.len() - 1]), None);
        }
        assert_eq!(Erspan::parse(ETHERNET, &[0x10; 12]), None);
    }
}
