//! Ethernet addresses.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::str::FromStr;

/// An Ethernet (MAC) address, in the order in which its bytes are sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// No address.
    pub const ZERO: Mac = Mac([0; 6]);
    /// All stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether it is a group's address, broadcast included (IEEE 802 section 8.2.2).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The address as a number, the first byte highest.
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// The low 48 bits of a number.
    pub const fn from_u64(n: u64) -> Mac {
        let [_, _, a, b, c, d, e, f] = n.to_be_bytes();
        Mac([a, b, c, d, e, f])
    }

    /// The link-local IPv6 address made of it (RFC 4291 appendix A).
    pub fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The address to which packets of an IPv4 multicast group are sent (RFC 1112 section 6.4).
    pub fn of_ipv4_group(group: Ipv4Addr) -> Mac {
        let [_, b, c, d] = group.octets();
        Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    /// The address to which packets of an IPv6 multicast group are sent (RFC 2464 section 7).
    pub fn of_ipv6_group(group: Ipv6Addr) -> Mac {
        let [.., a, b, c, d] = group.octets();
        Mac([0x33, 0x33, a, b, c, d])
    }
}

/// The bytes, where packets are built and read.
impl Deref for Mac {
    type Target = [u8; 6];

    #[inline]
    fn deref(&self) -> &[u8; 6] {
        &self.0
    }
}

impl From<[u8; 6]> for Mac {
    fn from(bytes: [u8; 6]) -> Mac {
        Mac(bytes)
    }
}

impl From<Mac> for u128 {
    fn from(mac: Mac) -> u128 {
        mac.to_u64().into()
    }
}

/// Exactly six bytes.
impl TryFrom<&[u8]> for Mac {
    type Error = NotAMac;

    fn try_from(bytes: &[u8]) -> Result<Mac, NotAMac> {
        bytes.try_into().map(Mac).map_err(|_| NotAMac)
    }
}

/// Two digits a byte, in lower case, with colons.
impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text or bytes that are no Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAMac;

impl fmt::Display for NotAMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an Ethernet address; give six bytes in hexadecimal, as in 0a:00:00:00:00:01")
    }
}

impl std::error::Error for NotAMac {}

/// Six bytes in hexadecimal with colons. As in OVN and Open vSwitch, a byte may have one digit, or more zeros in front.
impl FromStr for Mac {
    type Err = NotAMac;

    fn from_str(s: &str) -> Result<Mac, NotAMac> {
        let mut mac = [0; 6];
        let mut parts = s.split(':');
        for byte in &mut mac {
            // `from_str_radix` takes a sign.
            let part = parts.next().filter(|p| !p.starts_with('+')).ok_or(NotAMac)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| NotAMac)?;
        }
        if parts.next().is_some() { Err(NotAMac) } else { Ok(Mac(mac)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text() {
        let mac = Mac([0xf0, 0xab, 0xcd, 0xef, 1, 4]);
        for s in ["f0:ab:cd:ef:01:04", "F0:AB:cd:eF:1:4", "f0:ab:cd:ef:001:0004"] {
            assert_eq!(s.parse(), Ok(mac), "{s}");
        }
        assert_eq!((mac.to_string().as_str(), format!("{mac:?}").as_str()), ("f0:ab:cd:ef:01:04", "f0:ab:cd:ef:01:04"));
        for s in [
            "",
            ":",
            "f0:ab:cd:ef:01",
            "f0:ab:cd:ef:01:04:05",
            "f0:ab:cd:ef:01:",
            "f0:ab:cd:ef::04",
            "f0:ab:cd:ef:01:104",
            "f0:ab:cd:ef:01:+4",
            "f0:ab:cd:ef:01:-4",
            "f0:ab:cd:ef:01:0x4",
            " f0:ab:cd:ef:01:04",
            "f0-ab-cd-ef-01-04",
        ] {
            assert_eq!(s.parse::<Mac>(), Err(NotAMac), "{s}");
        }
    }

    #[test]
    fn numbers_and_kinds() {
        let mac = Mac([2, 0, 0, 0, 1, 4]);
        assert_eq!((mac.to_u64(), Mac::from_u64(0xffff_0200_0000_0104)), (0x0200_0000_0104, mac));
        assert_eq!((mac.is_multicast(), Mac::BROADCAST.is_multicast()), (false, true));
        assert_eq!(mac.link_local().to_string(), "fe80::ff:fe00:104");
        assert_eq!(Mac::of_ipv4_group([239, 129, 2, 3].into()).to_string(), "01:00:5e:01:02:03");
        assert_eq!(Mac::of_ipv6_group("ff02::1:ff00:1".parse().expect("address")).to_string(), "33:33:ff:00:00:01");
        assert_eq!((Mac::try_from(&[1, 2][..]), Mac::try_from(&mac[..])), (Err(NotAMac), Ok(mac)));
    }
}
