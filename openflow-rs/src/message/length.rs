//! How long messages to a switch are (OpenFlow 1.0 to 1.5, Nicira's extensions): so many bytes, and pieces of a size behind them.

use super::Version;
use crate::wire::{DecodeError, NX_VENDOR, ONF_VENDOR, Result};

/// The bytes of a body without what is optional, and the size of the pieces that may follow; 0: nothing follows.
type Size = (usize, usize);

fn fits(body: usize, (least, piece): Size) -> bool {
    match body.checked_sub(least) {
        None => false,
        Some(more) => more == 0 || piece != 0 && more.is_multiple_of(piece),
    }
}

/// Checks the length of a body. What is not known, or not for switches, may have any.
///
/// # Errors
/// OFPBRC_BAD_LEN.
pub(super) fn check(kind: u8, v: Version, body: &[u8]) -> Result<()> {
    let word = |at: usize| body.get(at..at + 4).map(|b| b.iter().fold(0, |n, x| n << 8 | u32::from(*x)));
    let size = match kind {
        4 => match (word(0), word(4)) {
            (Some(vendor), Some(subtype)) => {
                let inner = experimenter(vendor, subtype, v);
                inner.map(|(least, piece)| (least + 8, piece))
            }
            _ => Some((8, 0)),
        },
        _ if v == Version::Of10 => of10(kind, body),
        _ => newer(kind, v, body),
    };
    if size.is_none_or(|s| fits(body.len(), s)) { Ok(()) } else { Err(DecodeError::len("message")) }
}

fn experimenter(vendor: u32, subtype: u32, v: Version) -> Option<Size> {
    match (vendor, subtype) {
        (NX_VENDOR, 10) if v < Version::Of12 => Some((4, 0)),
        (NX_VENDOR, 12) if v == Version::Of10 => Some((4, 0)),
        (NX_VENDOR, 13) if v == Version::Of10 => Some((32, 8)),
        (NX_VENDOR, 19) if v < Version::Of13 => Some((24, 0)),
        (NX_VENDOR, 16 | 21) => Some((4, 0)),
        (NX_VENDOR, 15 | 20 | 29) => Some((8, 0)),
        (NX_VENDOR, 24) => Some((8, 8)),
        (NX_VENDOR, 25) => Some((0, 0)),
        (NX_VENDOR, 28) => Some((8, 8)),
        (NX_VENDOR, 32) => Some((8, 8)),
        (ONF_VENDOR, 1870) if v == Version::Of13 => Some((4, 0)),
        (ONF_VENDOR, 2300) => Some((8, 8)),
        (ONF_VENDOR, 2301) => Some((8, 1)),
        _ => None,
    }
}

fn of10(kind: u8, body: &[u8]) -> Option<Size> {
    Some(match kind {
        5 | 7 | 18 => (0, 0),
        9 | 20 => (4, 0),
        13 => (8, 1),
        14 => (64, 8),
        15 => (24, 0),
        16 => {
            let Some([high, low]) = body.first_chunk() else { return Some((4, 0)) };
            match u16::from_be_bytes([*high, *low]) {
                0 | 3 => (4, 0),
                1 | 2 => (48, 0),
                4 | 5 => (12, 0),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn newer(kind: u8, v: Version, body: &[u8]) -> Option<Size> {
    let properties = v >= Version::Of14;
    Some(match kind {
        5 | 7 | 20 | 26 => (0, 0),
        9 => (4, 0),
        13 if v >= Version::Of15 => (8, 1),
        13 => (16, 1),
        14 => (40, 8),
        15 if v >= Version::Of15 => (16, 8),
        15 | 29 => (8, 8),
        16 if properties => (24, 8),
        16 => (32, 0),
        17 if properties => (8, 8),
        17 => (8, 0),
        22 if !properties => (8, 0),
        18 => return multipart(v, body),
        24 => (16, 0),
        28 if properties => (0, 8),
        28 => (24, 0),
        33 => (8, 8),
        34 => (8, 1),
        _ => return None,
    })
}

fn multipart(v: Version, body: &[u8]) -> Option<Size> {
    let Some([high, low]) = body.first_chunk() else { return Some((8, 0)) };
    let named = v >= Version::Of15;
    let (least, piece) = match u16::from_be_bytes([*high, *low]) {
        0 | 3 | 8 | 11 => (0, 0),
        1 | 2 => (32, 8),
        4 | 5 | 6 | 9 | 10 | 15 => (8, 0),
        7 | 13 if named => (8, 0),
        7 | 13 => (0, 0),
        12 | 16 => (0, 8),
        0xffff => (8, 1),
        14 if v >= Version::Of14 => (0, 0),
        _ => return None,
    };
    Some((8 + least, piece))
}
