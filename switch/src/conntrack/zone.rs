//! Zones of connection tracking.

use std::num::ParseIntError;
use std::str::FromStr;

/// Keeps the connections of one logical switch or router apart from those of others; all 65,536 numbers are zones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Zone(pub u16);

packet::decimal!(Zone);

impl Zone {
    /// The zone of a `ct` action that names none.
    pub const DEFAULT: Zone = Zone(0);

    /// Its place in a table by zone.
    #[inline]
    pub(super) fn index(self) -> usize {
        self.0.into()
    }
}

impl From<Zone> for u128 {
    #[inline]
    fn from(zone: Zone) -> u128 {
        zone.0.into()
    }
}

/// In decimal.
impl FromStr for Zone {
    type Err = ParseIntError;

    fn from_str(s: &str) -> Result<Zone, ParseIntError> {
        s.parse().map(Zone)
    }
}
