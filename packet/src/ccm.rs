//! Continuity check messages (IEEE 802.1ag section 21.6), with their frame, and the extension of Open vSwitch: addresses
//! of maintenance points of eight bytes, any interval, and whether the sender is operational, in the sixteen bytes that
//! the standard leaves to ITU-T Y.1731.

use crate::{Mac, ethertype};
use std::fmt;

/// Where they are sent to (IEEE 802.1ag table 8-9, level 0).
pub const ADDRESS: Mac = Mac([0x01, 0x80, 0xc2, 0, 0, 0x30]);
/// Where extended ones are sent to.
pub const ADDRESS_EXTENDED: Mac = Mac([0x01, 0x23, 0x20, 0, 0, 0x30]);
/// Their EtherType.
pub const ETHERTYPE: u16 = 0x8902;
/// Octets of a message with the TLV that ends it, and of one without: older senders leave that out.
const LENGTH: usize = 75;
const LEAST: usize = LENGTH - 1;
/// The opcode of a continuity check.
const OPCODE: u8 = 1;
/// Where TLVs begin, counted from the field that says so.
const FIRST_TLV: u8 = 70;
/// The flag of a remote defect.
const DEFECT: u8 = 0x80;
/// Octets of the association's name.
const NAME: usize = 48;
/// Where fields are in the message.
const AT_SEQUENCE: usize = 4;
const AT_POINT: usize = 8;
const AT_NAME: usize = 10;
const AT_INTERVAL: usize = AT_NAME + NAME;
const AT_LONG_POINT: usize = AT_INTERVAL + 2;
const AT_DOWN: usize = AT_LONG_POINT + 8;

/// The name of the maintenance association of Open vSwitch: domain and association are both the string `ovs` (IEEE
/// 802.1ag section 21.6.5).
pub const ASSOCIATION: [u8; NAME] = {
    let mut name = [0; NAME];
    let text = *b"\x04\x03ovs\x02\x03ovs";
    let mut i = 0;
    while i < text.len() {
        name[i] = text[i];
        i += 1;
    }
    name
};

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ccm {
    /// The sender hears nobody.
    pub defect: bool,
    /// The code of its interval (table 21-16); 0 in extended messages: [`Ccm::interval_ms`] says it.
    pub interval: u8,
    /// Its number.
    pub sequence: u32,
    /// The maintenance point that sends it.
    pub point: u16,
    /// The association.
    pub association: [u8; NAME],
    /// Extended: the interval in milliseconds.
    pub interval_ms: u16,
    /// Extended: the maintenance point.
    pub long_point: u64,
    /// Extended: the sender is not operational.
    pub down: bool,
}

/// Why a frame is no continuity check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotACcm {
    /// It ends before the message does.
    Short,
    /// It is another message.
    Opcode(u8),
}

impl fmt::Display for NotACcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotACcm::Short => f.write_str("an unparseable 802.1ag CCM heartbeat"),
            NotACcm::Opcode(n) => write!(f, "an unsupported 802.1ag message (opcode {n})"),
        }
    }
}

impl std::error::Error for NotACcm {}

/// Reads the frame of a message, with or without VLAN tags.
///
/// # Errors
/// It is too short, or another message.
pub fn parse(frame: &[u8]) -> Result<Ccm, NotACcm> {
    let mut at = 12;
    while matches!(crate::be16(frame, at), Some(ethertype::VLAN | ethertype::QINQ)) {
        at += 4;
    }
    let m = frame.get(at + 2..).filter(|m| m.len() >= LEAST).ok_or(NotACcm::Short)?;
    let fields = || {
        let long = u64::from(crate::be32(m, AT_LONG_POINT)?) << 32 | u64::from(crate::be32(m, AT_LONG_POINT + 4)?);
        let flags = *m.get(2)?;
        Some(Ccm {
            defect: flags & DEFECT != 0,
            interval: flags & 7,
            sequence: crate::be32(m, AT_SEQUENCE)?,
            point: crate::be16(m, AT_POINT)?,
            association: m.get(AT_NAME..AT_INTERVAL)?.try_into().ok()?,
            interval_ms: crate::be16(m, AT_INTERVAL)?,
            long_point: long,
            down: *m.get(AT_DOWN)? != 0,
        })
    };
    match m.get(1) {
        Some(&OPCODE) => fields().ok_or(NotACcm::Short),
        Some(other) => Err(NotACcm::Opcode(*other)),
        None => Err(NotACcm::Short),
    }
}

/// The frame of a message, with a VLAN tag if `tag` is one (priority and VLAN).
pub fn compose(destination: Mac, source: Mac, tag: Option<u16>, m: &Ccm) -> Vec<u8> {
    let mut f = [&destination[..], &source[..]].concat();
    if let Some(tag) = tag {
        f.extend_from_slice(&ethertype::VLAN.to_be_bytes());
        f.extend_from_slice(&tag.to_be_bytes());
    }
    f.extend_from_slice(&ETHERTYPE.to_be_bytes());
    let begin = f.len();
    // Level and version are 0.
    let defect = if m.defect { DEFECT } else { 0 };
    f.extend_from_slice(&[0, OPCODE, m.interval & 7 | defect, FIRST_TLV]);
    f.extend_from_slice(&m.sequence.to_be_bytes());
    f.extend_from_slice(&m.point.to_be_bytes());
    f.extend_from_slice(&m.association);
    f.extend_from_slice(&m.interval_ms.to_be_bytes());
    f.extend_from_slice(&m.long_point.to_be_bytes());
    f.push(m.down.into());
    f.resize(begin + LENGTH, 0);
    f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_hold_what_they_are_made_of() {
        let m = Ccm {
            defect: true,
            interval: 4,
            sequence: 7,
            point: 0x123,
            association: ASSOCIATION,
            interval_ms: 300,
            long_point: 0x1_0000_0002,
            down: true,
        };
        let source = Mac([2, 0, 0, 0, 0, 1]);
        let frame = compose(ADDRESS, source, None, &m);
        assert_eq!((frame.len(), parse(&frame)), (14 + 75, Ok(m.clone())));
        // IEEE 802.1ag figure 21-4 and table 21-18: level and version, opcode, flags, offset, number, point, name.
        let head = [0x89, 0x02, 0, 1, 0x84, 70, 0, 0, 0, 7, 1, 0x23, 4, 3, b'o', b'v', b's', 2, 3, b'o', b'v', b's', 0];
        assert_eq!(frame.get(12..12 + head.len()), Some(&head[..]));
        let tagged = compose(ADDRESS_EXTENDED, source, Some(0xa00a), &m);
        assert_eq!((tagged.get(12..16), parse(&tagged)), (Some(&[0x81, 0, 0xa0, 0x0a][..]), Ok(m.clone())));
        assert_eq!(parse(&frame[..frame.len() - 1]), Ok(m), "without the TLV that ends it");
    }

    #[test]
    fn other_frames_are_refused() {
        let m = Ccm {
            defect: false,
            interval: 3,
            sequence: 1,
            point: 1,
            association: ASSOCIATION,
            interval_ms: 0,
            long_point: 0,
            down: false,
        };
        let mut frame = compose(ADDRESS, Mac([2; 6]), None, &m);
        for n in 0..frame.len() - 1 {
            assert_eq!(parse(&frame[..n]), Err(NotACcm::Short), "{n} bytes");
        }
        frame[15] = 3;
        assert_eq!(parse(&frame), Err(NotACcm::Opcode(3)));
    }
}
