//! MAC and IP addresses as the northbound database writes them.

pub use packet::Mac;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 address with a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Net4 {
    /// The address.
    pub addr: Ipv4Addr,
    /// The prefix length, at most 32.
    pub plen: u8,
}

impl Net4 {
    /// The netmask.
    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(if self.plen == 0 { 0 } else { u32::MAX << (32 - u32::from(self.plen.min(32))) })
    }

    /// The first address of the network.
    pub fn network(&self) -> Ipv4Addr {
        self.addr & self.mask()
    }

    /// The last address of the network.
    pub fn broadcast(&self) -> Ipv4Addr {
        self.addr | !self.mask()
    }

    /// Whether an address is in the network.
    pub fn contains(&self, a: Ipv4Addr) -> bool {
        a & self.mask() == self.network()
    }

    /// The network as `A.B.C.D/LEN`, without `/32`.
    pub fn match_text(&self) -> String {
        if self.plen == 32 { self.addr.to_string() } else { format!("{}/{}", self.network(), self.plen) }
    }
}

/// An IPv6 address with a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Net6 {
    /// The address.
    pub addr: Ipv6Addr,
    /// The prefix length, at most 128.
    pub plen: u8,
}

impl Net6 {
    /// The netmask.
    pub fn mask(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(if self.plen == 0 { 0 } else { u128::MAX << (128 - u32::from(self.plen.min(128))) })
    }

    /// The first address of the network.
    pub fn network(&self) -> Ipv6Addr {
        self.addr & self.mask()
    }

    /// Whether the network is that of link-local addresses.
    pub fn is_link_local(&self) -> bool {
        is_link_local(self.network())
    }

    /// Whether an address is in the network.
    pub fn contains(&self, a: Ipv6Addr) -> bool {
        a & self.mask() == self.network()
    }

    /// The network as `A::B/LEN`, without `/128`.
    pub fn match_text(&self) -> String {
        if self.plen == 128 { self.addr.to_string() } else { format!("{}/{}", self.network(), self.plen) }
    }
}

/// Whether an address is link-local in the words of RFC 4291 section 2.5.6: 54 bits of zero follow the prefix. OVN has
/// it so, where it looks at addresses of router ports.
pub fn is_link_local(a: Ipv6Addr) -> bool {
    a.to_bits() >> 64 == 0xfe80_0000_0000_0000
}

/// The solicited-node multicast address (RFC 4291 section 2.7.1).
pub fn solicited_node(a: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | a.to_bits() & 0xff_ffff)
}

/// An address with an optional prefix length or netmask; without one, a host.
pub fn parse_net(s: &str) -> Option<(IpAddr, u8)> {
    let (addr, len) = s.split_once('/').map_or((s, None), |(a, l)| (a, Some(l)));
    let addr: IpAddr = addr.trim().parse().ok()?;
    let max = if addr.is_ipv4() { 32 } else { 128 };
    let plen = match len {
        None => max,
        Some(len) => match (len.parse::<u8>(), addr) {
            (Ok(n), _) => n,
            (Err(_), IpAddr::V4(_)) => {
                let mask = len.parse::<Ipv4Addr>().ok()?.to_bits();
                (mask.count_zeros() == mask.trailing_zeros()).then_some(mask.leading_ones() as u8)?
            }
            _ => return None,
        },
    };
    (plen <= max).then_some((addr, plen))
}

/// An IPv4 network.
pub fn parse_net4(s: &str) -> Option<Net4> {
    match parse_net(s)? {
        (IpAddr::V4(addr), plen) => Some(Net4 { addr, plen }),
        _ => None,
    }
}

/// An IPv6 network.
pub fn parse_net6(s: &str) -> Option<Net6> {
    match parse_net(s)? {
        (IpAddr::V6(addr), plen) => Some(Net6 { addr, plen }),
        _ => None,
    }
}

/// One Ethernet address with the IP addresses that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddresses {
    /// The Ethernet address.
    pub mac: Mac,
    /// IPv4 addresses, as they were written in order.
    pub v4: Vec<Net4>,
    /// IPv6 addresses.
    pub v6: Vec<Net6>,
}

impl PortAddresses {
    /// Reads `MAC [IP…]`. What stands after the first word that is no IP address does not count, as in OVN.
    pub fn parse(s: &str) -> Option<PortAddresses> {
        let mut words = s.split_whitespace();
        let mac = words.next()?.parse().ok()?;
        let mut out = PortAddresses { mac, v4: Vec::new(), v6: Vec::new() };
        for word in words {
            match parse_net(word) {
                Some((IpAddr::V4(addr), plen)) => out.v4.push(Net4 { addr, plen }),
                Some((IpAddr::V6(addr), plen)) => out.v6.push(Net6 { addr, plen }),
                None => break,
            }
        }
        Some(out)
    }
}

/// `IP:PORT`, `[IP6]:PORT`, `IP` or `IP6`; the port is 0 where there is none.
pub fn parse_endpoint(s: &str) -> Option<(IpAddr, u16)> {
    if let Some(rest) = s.strip_prefix('[') {
        let (ip, rest) = rest.split_once(']')?;
        let ip = ip.parse::<Ipv6Addr>().ok()?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((ip.into(), port.parse().ok()?)),
            None => rest.is_empty().then_some((ip.into(), 0)),
        };
    }
    if let Ok(ip) = s.parse::<IpAddr>() {
        return Some((ip, 0));
    }
    let (ip, port) = s.rsplit_once(':')?;
    Some((ip.parse::<Ipv4Addr>().ok()?.into(), port.parse().ok()?))
}

/// Text in double quotes as in JSON.
pub fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let n = parse_net4("192.168.3.4/255.255.254.0").unwrap();
        assert_eq!((n.match_text(), n.broadcast().to_string()), ("192.168.2.0/23".into(), "192.168.3.255".into()));
        assert_eq!(parse_net4("10.0.0.1").unwrap().match_text(), "10.0.0.1");
        assert_eq!(parse_net("10.0.0.1/33"), None);
        assert_eq!(parse_net("10.0.0.1/255.0.255.0"), None);
        assert_eq!(parse_net6("fd00::5/64").unwrap().match_text(), "fd00::/64");
        assert_eq!(solicited_node("fd00::12:3456".parse().unwrap()).to_string(), "ff02::1:ff12:3456");
    }

    #[test]
    fn endpoints() {
        assert_eq!(parse_endpoint("[fd00::1]:80"), Some(("fd00::1".parse().unwrap(), 80)));
        assert_eq!(parse_endpoint("fd00::1"), Some(("fd00::1".parse().unwrap(), 0)));
        assert_eq!(parse_endpoint("10.0.0.1:53"), Some(("10.0.0.1".parse().unwrap(), 53)));
        assert_eq!(parse_endpoint("10.0.0.1:66000"), None);
        assert_eq!(parse_endpoint("10.0.0:80"), None);
    }
}
