//! Identifiers of virtual networks.

use std::fmt;
use std::str::FromStr;

/// The identifier of a virtual network in the headers of VXLAN (RFC 7348 section 5) and Geneve (RFC 8926 section 3.4):
/// 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Vni(u32);

crate::decimal!(Vni);

impl Vni {
    /// The highest one.
    pub const MAX: Vni = Vni(0xff_ffff);

    /// The network with this number.
    ///
    /// # Errors
    /// The number is above 16777215.
    pub const fn new(n: u32) -> Result<Vni, NotAVni> {
        if n <= Vni::MAX.0 { Ok(Vni(n)) } else { Err(NotAVni) }
    }

    /// The low 24 bits of a longer number.
    #[inline]
    pub const fn of_low_bits(n: u32) -> Vni {
        Vni(n & Vni::MAX.0)
    }

    /// From the last word of a header, whose lowest byte is reserved.
    #[inline]
    pub(crate) const fn of_word(word: u32) -> Vni {
        Vni(word >> 8)
    }

    /// As the last word of a header.
    #[inline]
    pub(crate) const fn word(self) -> u32 {
        self.0 << 8
    }

    /// The number, from 0 to 16777215.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl From<Vni> for u128 {
    #[inline]
    fn from(vni: Vni) -> u128 {
        vni.0.into()
    }
}

/// In decimal.
impl FromStr for Vni {
    type Err = NotAVni;

    fn from_str(s: &str) -> Result<Vni, NotAVni> {
        s.parse().map_err(|_| NotAVni).and_then(Vni::new)
    }
}

/// A number or text that identifies no virtual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAVni;

impl fmt::Display for NotAVni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a VNI from 0 to {}", Vni::MAX)
    }
}

impl std::error::Error for NotAVni {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_24_bits() {
        assert_eq!(Vni::new(0xff_ffff), Ok(Vni::MAX));
        assert_eq!(Vni::new(0x100_0000), Err(NotAVni));
        assert_eq!(Vni::of_low_bits(0x700_0007), Vni(7));
        assert_eq!((Vni::of_word(0x7ff), Vni(7).word()), (Vni(7), 0x700), "the reserved byte is no part of it");
    }

    #[test]
    fn text() {
        assert_eq!(["0", "7", "16777215"].map(str::parse), [Vni(0), Vni(7), Vni::MAX].map(Ok));
        for s in ["", "-1", "16777216", "7 ", "0x7"] {
            assert_eq!(s.parse::<Vni>(), Err(NotAVni), "{s}");
        }
        assert_eq!(format!("{:>4}|{:?}", Vni(7), Vni(700)), "   7|700");
        assert_eq!(NotAVni.to_string(), "expected a VNI from 0 to 16777215");
    }
}
