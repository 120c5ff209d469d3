//! Packet headers and builders: Ethernet, 802.1Q, ARP, IPv4, IPv6, ICMP, neighbour discovery, TCP, UDP, SCTP,
//! Geneve (RFC 8926), VXLAN (RFC 7348), NSH (RFC 8300), LACP (IEEE 802.1AX), BPDUs (IEEE 802.1D), continuity checks
//! (IEEE 802.1ag), LLDP (IEEE 802.1AB), and messages of DHCP, DHCPv6 and DNS.

pub mod boot;
pub mod bpdu;
pub mod build;
pub mod ccm;
pub mod checksum;
pub mod dhcp;
pub mod dhcpv6;
pub mod dns;
pub mod gre;
pub mod gtpu;
mod headers;
pub mod lacp;
pub mod lldp;
mod mac;
pub mod multicast;
pub mod nsh;
pub mod srv6;
pub mod tunnel;
mod vlan;
mod vni;

pub use headers::{Headers, NdOptions, Vlan, nd_fields, nd_options};
pub use mac::{Mac, NotAMac};
pub use vlan::{NotAVlanId, VlanId};
pub use vni::{NotAVni, Vni};

/// Implements `Display` and `Debug` for a type that wraps a number: both show the number in decimal.
#[macro_export]
macro_rules! decimal {
    ($of:ty) => {
        impl ::std::fmt::Display for $of {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl ::std::fmt::Debug for $of {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

/// Operations of ARP (RFC 826).
pub mod arp_op {
    /// A request.
    pub const REQUEST: u16 = 1;
    /// An answer.
    pub const REPLY: u16 = 2;
}

/// EtherTypes.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// RARP.
    pub const RARP: u16 = 0x8035;
    /// 802.1Q.
    pub const VLAN: u16 = 0x8100;
    /// 802.1ad.
    pub const QINQ: u16 = 0x88a8;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// What Open vSwitch reports for frames without an EtherType.
    pub const NONE: u16 = 0x05ff;
}

/// IP protocol numbers.
pub mod ipproto {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// GRE.
    pub const GRE: u8 = 47;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// Big-endian 16 bits at an offset; `None` past the end.
#[inline]
pub fn be16(b: &[u8], at: usize) -> Option<u16> {
    b.get(at..at + 2).and_then(|s| s.try_into().ok()).map(u16::from_be_bytes)
}

/// Big-endian 32 bits at an offset; `None` past the end.
#[inline]
pub fn be32(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..at + 4).and_then(|s| s.try_into().ok()).map(u32::from_be_bytes)
}

/// An Ethernet address at an offset; `None` past the end.
#[inline]
pub fn mac_at(b: &[u8], at: usize) -> Option<Mac> {
    b.get(at..at + 6).and_then(|s| s.try_into().ok()).map(Mac)
}

/// Sixteen bytes at an offset, as a number.
#[inline]
pub fn be128(b: &[u8], at: usize) -> Option<u128> {
    b.get(at..at + 16).and_then(|s| s.try_into().ok()).map(u128::from_be_bytes)
}
