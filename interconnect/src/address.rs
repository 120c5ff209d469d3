//! Addresses and prefixes as OVN's databases write them.

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use ovn_schema::{Map, Str};
use packet::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A prefix, or an address with its own length, with the host's bits cleared.
pub fn prefix(text: &str) -> Option<IpNetwork> {
    let net = network(text)?;
    IpNetwork::new(net.network(), net.prefix()).ok()
}

/// An address with a length; without one, the length of the address.
pub fn network(text: &str) -> Option<IpNetwork> {
    // IPv4 masks in dotted form are taken too, by the parser.
    text.trim().parse().ok()
}

/// Whether an address has the form of link-local ones (RFC 4291 section 2.5.6): fe80::/64. Such next hops mean something
/// on their own link only.
pub fn is_link_local_hop(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.segments().starts_with(&[0xfe80, 0, 0, 0]))
}

/// Whether a prefix lies in those of links: 169.254.0.0/16, fe80::/10.
pub fn is_link_local(net: &IpNetwork) -> bool {
    match net {
        IpNetwork::V4(n) => n.prefix() >= 16 && n.ip().octets().starts_with(&[169, 254]),
        IpNetwork::V6(n) => n.prefix() >= 10 && n.ip().segments()[0] & 0xffc0 == 0xfe80,
    }
}

/// The address of a load balancer's key: `IP`, `IP:PORT`, `[IP]:PORT`.
pub fn of_vip(key: &str) -> Option<IpAddr> {
    if let Ok(ip) = key.parse() {
        return Some(ip);
    }
    if let Some(rest) = key.strip_prefix('[') {
        return rest.split(']').next()?.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    key.split(':').next()?.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

/// A port's MAC with its addresses: `MAC [IP[/LEN]]...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The MAC.
    pub mac: Mac,
    /// IPv4 addresses with their networks.
    pub v4: Vec<Ipv4Network>,
    /// IPv6 addresses with their networks.
    pub v6: Vec<Ipv6Network>,
}

impl Addresses {
    /// Reads `MAC [IP[/LEN]]...`.
    pub fn parse(text: &str) -> Option<Addresses> {
        let mut words = text.split_whitespace();
        let mac = words.next()?.parse().ok()?;
        Addresses::of(mac, words)
    }

    /// Those of a router's port: `mac` and `networks`.
    pub fn of_router_port<'a>(mac_text: &str, networks: impl IntoIterator<Item = &'a str>) -> Option<Addresses> {
        Addresses::of(mac_text.trim().parse().ok()?, networks)
    }

    fn of<'a>(mac: Mac, words: impl IntoIterator<Item = &'a str>) -> Option<Addresses> {
        let mut out = Addresses { mac, v4: Vec::new(), v6: Vec::new() };
        for word in words {
            match network(word)? {
                IpNetwork::V4(n) => out.v4.push(n),
                IpNetwork::V6(n) => out.v6.push(n),
            }
        }
        Some(out)
    }

    /// The address by which others reach a prefix behind this port: of the prefix' family; for IPv4 the IPv6 address
    /// where that is wanted and there. None where it has no IPv4 address for an IPv4 prefix.
    pub fn nexthop(&self, for_v4: bool, v4_over_v6: bool) -> Option<IpAddr> {
        let v6 = self.v6.first().map(Ipv6Network::ip);
        match (for_v4, v4_over_v6.then_some(v6).flatten()) {
            (true, None) => self.v4.first().map(|n| IpAddr::V4(n.ip())),
            (true, Some(ip)) => Some(IpAddr::V6(ip)),
            (false, _) => Some(IpAddr::V6(v6.unwrap_or_else(|| self.mac.link_local()))),
        }
    }

    /// Whether an address is in one of the networks.
    pub fn reaches(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => self.v4.iter().any(|n| n.contains(ip)),
            IpAddr::V6(ip) => self.v6.iter().any(|n| n.contains(ip)),
        }
    }
}

/// An option's text; empty where it is not set.
pub fn option(options: &Map<Str, Str>, key: &str) -> Str {
    options.get(key).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_lose_the_bits_of_the_host() {
        let text = |t: &str| prefix(t).map(|p| p.to_string());
        assert_eq!(text("10.0.1.1/24").as_deref(), Some("10.0.1.0/24"));
        assert_eq!(text("10.0.1.1").as_deref(), Some("10.0.1.1/32"));
        assert_eq!(text("2001:db8:0::1/64").as_deref(), Some("2001:db8::/64"));
        assert_eq!(text("ten"), None);
        assert_eq!(text("10.0.0.0/33"), None);
    }

    #[test]
    fn next_hops_are_of_the_family_of_the_prefix() {
        let both = Addresses::parse("00:00:00:00:00:01 10.0.0.1/24 fd00::1/64").unwrap();
        assert_eq!(both.nexthop(true, false), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(both.nexthop(true, true), Some("fd00::1".parse().unwrap()));
        assert_eq!(both.nexthop(false, false), Some("fd00::1".parse().unwrap()));
        let four = Addresses::parse("00:00:00:00:00:01 10.0.0.1/24").unwrap();
        assert_eq!(four.nexthop(true, true), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(four.nexthop(false, false), Some("fe80::200:ff:fe00:1".parse().unwrap()));
        let six = Addresses::parse("00:00:00:00:00:01 fd00::1/64").unwrap();
        assert_eq!(six.nexthop(true, false), None);
        assert_eq!(Addresses::parse("unknown"), None);
        assert_eq!(Addresses::parse("00:00:00:00:00:01 x"), None);
    }

    #[test]
    fn vips_have_ports_or_not() {
        let text = |t: &str| of_vip(t).map(|ip| ip.to_string());
        assert_eq!(text("10.0.0.1:80").as_deref(), Some("10.0.0.1"));
        assert_eq!(text("10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(text("[fd00::1]:80").as_deref(), Some("fd00::1"));
        assert_eq!(text("fd00::1").as_deref(), Some("fd00::1"));
        assert_eq!(text("^vip:80"), None);
    }
}
