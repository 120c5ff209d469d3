//! Addresses as the databases spell them.

use ipnetwork::IpNetwork;
use ovn_schema::Str;
use packet::Mac;
use std::net::{IpAddr, Ipv4Addr};

/// A MAC address in the form that the databases hold: lower case, two digits a byte.
pub fn mac(text: &str) -> Option<Str> {
    let mac: Mac = text.parse().ok()?;
    Some(mac.to_string().into())
}

/// One element of `Port_Binding.mac` (ovn-sb(5)): a MAC address, then addresses with or without a prefix length.
/// Words such as `unknown` and `router` are no address. Gives the MAC and the first IPv4 address.
pub fn port_addresses(text: &str) -> Option<(Str, Option<Str>)> {
    let mut words = text.split_whitespace();
    let mac = mac(words.next()?)?;
    let ip = words.find_map(|w| w.split('/').next()?.parse::<Ipv4Addr>().ok());
    Some((mac, ip.map(|ip| ip.to_string().into())))
}

/// The addresses with prefix lengths of one element of a router's `Port_Binding.mac`.
pub fn networks(text: &str) -> Vec<IpNetwork> {
    let mut words = text.split_whitespace();
    if words.next().and_then(mac).is_none() {
        return Vec::new();
    }
    words.filter_map(|w| w.parse().ok()).collect()
}

/// A tunnel endpoint's address: `vxlan_over_ipv4` is the only encapsulation that vtep(5) defines.
pub fn endpoint(text: &str) -> Option<Ipv4Addr> {
    text.parse::<Ipv4Addr>().ok().filter(|ip| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast())
}

/// The MAC address to which a multicast group's packets go (RFC 1112 section 6.4, RFC 2464 section 7).
pub fn group_mac(group: &str) -> Option<Str> {
    let mac = match group.parse().ok()? {
        IpAddr::V4(ip) if ip.is_multicast() => Mac::of_ipv4_group(ip),
        IpAddr::V6(ip) if ip.is_multicast() => Mac::of_ipv6_group(ip),
        _ => return None,
    };
    Some(mac.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_addresses() {
        let parse = |t: &str| port_addresses(t).map(|(m, ip)| (m.to_string(), ip.map(|i| i.to_string())));
        let m = "f0:ab:cd:ef:01:04".to_string();
        assert_eq!(parse("f0:ab:CD:ef:01:04"), Some((m.clone(), None)));
        assert_eq!(parse("f0:ab:cd:ef:1:4 192.168.0.1 fd00::1"), Some((m.clone(), Some("192.168.0.1".into()))));
        assert_eq!(parse("f0:ab:cd:ef:01:04 fd00::1/64 10.0.0.1/24"), Some((m, Some("10.0.0.1".into()))));
        for word in ["unknown", "router", "dynamic", "", "f0:ab:cd:ef:01", "f0:ab:cd:ef:01:04:05", "f0:ab:cd:ef:01:0x4"]
        {
            assert_eq!(parse(word), None, "{word}");
        }
    }

    #[test]
    fn groups() {
        assert_eq!(group_mac("239.129.2.3").as_deref(), Some("01:00:5e:01:02:03"));
        assert_eq!(group_mac("ff02::1:ff00:1").as_deref(), Some("33:33:ff:00:00:01"));
        assert_eq!(group_mac("10.0.0.1"), None);
        assert_eq!(group_mac("mrouters"), None);
    }

    #[test]
    fn endpoints() {
        assert!(endpoint("10.0.0.1").is_some());
        for bad in ["", "0.0.0.0", "fd00::1", "224.0.0.1", "host"] {
            assert!(endpoint(bad).is_none(), "{bad}");
        }
    }
}
