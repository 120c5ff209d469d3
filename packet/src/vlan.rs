//! VLAN identifiers (IEEE 802.1Q section 9.6).

use std::fmt;
use std::str::FromStr;

/// The identifier of a VLAN: the low twelve bits of a tag's control information.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct VlanId(u16);

crate::decimal!(VlanId);

impl VlanId {
    /// Of packets that belong to no VLAN: they have no tag, or one with a priority alone (IEEE 802.1Q table 9-2).
    pub const NONE: VlanId = VlanId(0);
    /// The highest one.
    pub const MAX: VlanId = VlanId(0xfff);

    /// The VLAN with this number.
    ///
    /// # Errors
    /// The number is above 4095.
    pub const fn new(n: u16) -> Result<VlanId, NotAVlanId> {
        if n <= VlanId::MAX.0 { Ok(VlanId(n)) } else { Err(NotAVlanId) }
    }

    /// The VLAN of a tag's control information (TCI), whose upper four bits say other things.
    #[inline]
    pub const fn of_tci(tci: u16) -> VlanId {
        VlanId(tci & VlanId::MAX.0)
    }

    /// The number, from 0 to 4095.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// A number of a database or a document.
impl TryFrom<i64> for VlanId {
    type Error = NotAVlanId;

    fn try_from(n: i64) -> Result<VlanId, NotAVlanId> {
        u16::try_from(n).map_err(|_| NotAVlanId).and_then(VlanId::new)
    }
}

impl From<VlanId> for u128 {
    #[inline]
    fn from(vlan: VlanId) -> u128 {
        vlan.0.into()
    }
}

/// A number or text that is no identifier of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAVlanId;

impl fmt::Display for NotAVlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a VLAN from 0 to {}", VlanId::MAX)
    }
}

impl std::error::Error for NotAVlanId {}

/// In decimal.
impl FromStr for VlanId {
    type Err = NotAVlanId;

    fn from_str(s: &str) -> Result<VlanId, NotAVlanId> {
        s.parse().map_err(|_| NotAVlanId).and_then(VlanId::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_twelve_bits_are_refused() {
        assert_eq!(VlanId::new(4095), Ok(VlanId::MAX));
        assert_eq!(VlanId::try_from(7_i64), VlanId::new(7));
        assert_eq!(VlanId::new(4096), Err(NotAVlanId));
        assert_eq!([-1, 4096, 65_543].map(VlanId::try_from), [Err(NotAVlanId); 3]);
        assert_eq!(NotAVlanId.to_string(), "expected a VLAN from 0 to 4095");
    }

    #[test]
    fn priorities_are_no_part_of_it() {
        assert_eq!([0x0007, 0x1007, 0xf007].map(VlanId::of_tci), [VlanId(7); 3]);
        assert_eq!(VlanId::of_tci(0xe000), VlanId::NONE);
    }

    #[test]
    fn text() {
        assert_eq!(["0", "7", "4095"].map(str::parse), [Ok(VlanId::NONE), Ok(VlanId(7)), Ok(VlanId::MAX)]);
        for s in ["", "-1", "4096", "65543", "7 ", "0x7", "any"] {
            assert_eq!(s.parse::<VlanId>(), Err(NotAVlanId), "{s}");
        }
        assert_eq!(format!("{:>4}|{:<4}|{:?}", VlanId(7), VlanId(70), VlanId(700)), "   7|70  |700");
    }
}
