//! Subnets as numbers: the arithmetic of blocks and point-to-point pairs.

use ipnetwork::IpNetwork;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, in the order in which rows list them.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// The family as external IDs and annotations name it.
    pub fn short(self) -> &'static str {
        match self {
            Family::V4 => "v4",
            Family::V6 => "v6",
        }
    }

    /// The protocol in a match of the logical flow language.
    pub fn protocol(self) -> &'static str {
        match self {
            Family::V4 => "ip4",
            Family::V6 => "ip6",
        }
    }
}

/// A subnet: an address block of a prefix length. Its host bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subnet {
    family: Family,
    base: u128,
    len: u8,
}

/// A text that is no subnet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotASubnet {
    /// It does not parse.
    #[error("{0:?} is not an address with a prefix length")]
    Malformed(String),
    /// Host bits are set.
    #[error("{0} has host bits set: the network is {1}")]
    HostBits(String, Subnet),
}

fn mask(bits: u8, len: u8) -> u128 {
    let host = u32::from(bits - len);
    u128::MAX.checked_shl(host).unwrap_or(0)
}

impl Subnet {
    /// The block of so many bits that holds an address.
    fn holding(family: Family, address: u128, len: u8) -> Subnet {
        Subnet { family, base: address & mask(family.bits(), len), len }
    }

    /// Reads a network address: no host bits are set.
    ///
    /// # Errors
    /// Where the text is not one.
    pub fn strict(text: &str) -> Result<Subnet, NotASubnet> {
        let (network, address) = parse(text)?;
        if network.base == address { Ok(network) } else { Err(NotASubnet::HostBits(text.to_string(), network)) }
    }

    /// The family.
    pub fn family(self) -> Family {
        self.family
    }

    /// The prefix length.
    pub fn prefix(self) -> u8 {
        self.len
    }

    /// The bits below the prefix.
    pub fn host_bits(self) -> u8 {
        self.family.bits() - self.len
    }

    /// Whether they have an address in common.
    pub fn overlaps(self, other: Subnet) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// Whether all of the other lies in this one.
    pub fn contains(self, other: Subnet) -> bool {
        self.family == other.family
            && self.len <= other.len
            && other.base & mask(self.family.bits(), self.len) == self.base
    }

    /// How many blocks of a longer prefix fit, or `u128::MAX`.
    pub fn blocks(self, len: u8) -> u128 {
        1u128.checked_shl(u32::from(len.saturating_sub(self.len))).unwrap_or(u128::MAX)
    }

    /// The block of a longer prefix with this index.
    pub fn block(self, index: u128, len: u8) -> Option<Subnet> {
        let shift = u32::from(self.family.bits().checked_sub(len)?);
        (len >= self.len && index < self.blocks(len)).then(|| Subnet {
            base: self.base | index.checked_shl(shift).unwrap_or(0),
            len,
            ..self
        })
    }

    /// The index of a block within this subnet.
    pub fn index_of(self, block: Subnet) -> Option<u128> {
        let shift = u32::from(block.host_bits());
        self.contains(block).then(|| (block.base - self.base).checked_shr(shift).unwrap_or(0))
    }

    /// The block of a shorter prefix in which this one lies.
    #[must_use]
    pub fn within(self, len: u8) -> Subnet {
        Subnet::holding(self.family, self.base, len.min(self.len))
    }

    /// The prefix length of a point-to-point pair.
    pub fn pair_prefix(family: Family) -> u8 {
        family.bits() - 1
    }

    /// The point-to-point pair of this number: the address of the connect router, and that of the network's router.
    pub fn pair(self, number: u32) -> Option<(IpAddr, IpAddr)> {
        let pair = self.block(u128::from(number), Subnet::pair_prefix(self.family))?;
        Some((address(self.family, pair.base), address(self.family, pair.base + 1)))
    }

    /// How many point-to-point pairs fit, or `u128::MAX`.
    pub fn pairs(self) -> u128 {
        self.blocks(Subnet::pair_prefix(self.family))
    }
}

fn address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX))),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(number)),
    }
}

/// The network, and the address as it stands in the text.
fn parse(text: &str) -> Result<(Subnet, u128), NotASubnet> {
    let malformed = || NotASubnet::Malformed(text.to_string());
    if !text.contains('/') {
        return Err(malformed());
    }
    let network: IpNetwork = text.parse().map_err(|_| malformed())?;
    let (family, number) = match network.ip() {
        IpAddr::V4(ip) => (Family::V4, u128::from(u32::from(ip))),
        IpAddr::V6(ip) => (Family::V6, u128::from(ip)),
    };
    Ok((Subnet::holding(family, number, network.prefix()), number))
}

impl FromStr for Subnet {
    type Err = NotASubnet;

    /// Host bits are ignored, as annotations and configurations may have them.
    fn from_str(text: &str) -> Result<Subnet, NotASubnet> {
        parse(text).map(|(network, _)| network)
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", address(self.family, self.base), self.len)
    }
}

impl fmt::Debug for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> Subnet {
        Subnet::strict(text).expect("a subnet")
    }

    #[test]
    fn blocks_and_their_indexes() {
        let range = subnet("192.168.0.0/16");
        assert_eq!(range.blocks(24), 256);
        assert_eq!(range.block(5, 24), Some(subnet("192.168.5.0/24")));
        assert_eq!(range.block(256, 24), None);
        assert_eq!(range.index_of(subnet("192.168.5.0/24")), Some(5));
        assert_eq!(range.index_of(subnet("10.0.5.0/24")), None);
        assert_eq!(subnet("192.168.5.6/31").within(24), subnet("192.168.5.0/24"));
        assert_eq!(subnet("::/0").blocks(128), u128::MAX);
    }

    #[test]
    fn pairs_of_both_families() {
        let pair = |text: &str, n| subnet(text).pair(n).map(|(a, b)| format!("{a} {b}"));
        assert_eq!(pair("192.168.1.0/24", 3), Some("192.168.1.6 192.168.1.7".into()));
        assert_eq!(pair("192.168.1.0/24", 128), None);
        assert_eq!(pair("fd01::/64", 3), Some("fd01::6 fd01::7".into()));
        assert_eq!(pair("10.0.0.0/31", 0), Some("10.0.0.0 10.0.0.1".into()));
    }

    #[test]
    fn host_bits_and_words_are_refused() {
        assert_eq!(
            Subnet::strict("10.0.0.1/8").map_err(|e| e.to_string()),
            Err("10.0.0.1/8 has host bits set: the network is 10.0.0.0/8".into())
        );
        for text in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "x/1"] {
            assert!(Subnet::strict(text).is_err(), "{text}");
        }
    }

    #[test]
    fn overlap_is_containment_either_way() {
        assert!(subnet("10.0.0.0/8").overlaps(subnet("10.1.0.0/16")));
        assert!(subnet("10.1.0.0/16").overlaps(subnet("10.0.0.0/8")));
        assert!(!subnet("10.1.0.0/16").overlaps(subnet("10.2.0.0/16")));
        assert!(!subnet("0.0.0.0/0").overlaps(subnet("::/0")));
    }
}
