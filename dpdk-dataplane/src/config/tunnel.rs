//! Options of tunnels: addresses, keys, what outer headers get.

use super::port::Kind;
use super::{NotANumber, get, number};
use ovn_schema::{Map, Str};
use std::net::IpAddr;
use switch::{TunnelConfig, TunnelKind};

/// Why a tunnel's options cannot be followed; in Open vSwitch's words where it has some.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunnelError {
    /// There is no `remote_ip`.
    #[error("{0} type requires valid 'remote_ip' argument")]
    NoRemote(&'static str),
    /// `remote_ip` or `local_ip` is no address.
    #[error("{key}={value}: expected an IP address or \"flow\"")]
    Address {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// `remote_ip` is a multicast address.
    #[error("multicast remote_ip={0} not allowed")]
    Multicast(IpAddr),
    /// One end has an address of IPv4, the other of IPv6.
    #[error("'remote_ip' and 'local_ip' has to be of the same address family")]
    Families,
    /// `local_ip` is `flow`, but `remote_ip` is not.
    #[error("{0} type requires 'remote_ip=flow' with 'local_ip=flow'")]
    OnlyLocalFlow(&'static str),
    /// `exts`.
    #[error("exts={value}: there are no extensions of {kind} here")]
    Extensions {
        /// The type of the tunnel.
        kind: &'static str,
        /// The extensions.
        value: String,
    },
    /// `packet_type` is another one than Ethernet.
    #[error("unknown packet_type '{0}'; it is legacy_l2")]
    PacketType(String),
    /// `in_key` and `out_key` differ.
    #[error("in_key and out_key: a tunnel has one key for both directions")]
    TwoKeys,
    /// The key is no VNI.
    #[error("key={0}: expected 24 bits or \"flow\"")]
    Key(String),
    /// `tos` is no byte.
    #[error("tos={0}: expected a number or \"inherit\"")]
    Tos(String),
    /// Another option is no number.
    #[error(transparent)]
    Number(#[from] NotANumber),
}

/// Parses a tunnel's options.
pub(super) fn tunnel(kind: TunnelKind, name: &'static str, o: &Map<Str, Str>) -> Result<Kind, TunnelError> {
    let address = |key: &'static str| match get(o, key) {
        None | Some("flow") => Ok(None),
        Some(a) => a.parse().map(Some).map_err(|_| TunnelError::Address { key, value: a.into() }),
    };
    get(o, "remote_ip").ok_or(TunnelError::NoRemote(name))?;
    let mut t = TunnelConfig::new(kind, address("remote_ip")?);
    t.local = address("local_ip")?;
    ends(name, &t, o)?;
    t.key = match get(o, "key").or_else(|| get(o, "out_key")) {
        Some("flow") => None,
        None => Some(0),
        Some(k) => Some(parse_key(k).ok_or_else(|| TunnelError::Key(k.into()))?),
    };
    // Open vSwitch compares these two letter by letter, unlike other switches of options.
    t.csum = get(o, "csum") == Some("true");
    t.df = get(o, "df_default") != Some("false");
    if let Some(p) = number(o, "dst_port")? {
        t.udp_port = p;
    }
    t.tos = match get(o, "tos") {
        None | Some("inherit") => 0,
        Some(v) => v
            .strip_prefix("0x")
            .map_or_else(|| v.parse().ok(), |h| u8::from_str_radix(h, 16).ok())
            .ok_or_else(|| TunnelError::Tos(v.into()))?,
    };
    if get(o, "ttl") != Some("inherit") {
        t.ttl = number(o, "ttl")?.unwrap_or(0);
    }
    Ok(Kind::Tunnel(Box::new(t)))
}

/// Refuses options that contradict each other, or that are not supported.
fn ends(kind: &'static str, t: &TunnelConfig, o: &Map<Str, Str>) -> Result<(), TunnelError> {
    match (t.remote, t.local) {
        (Some(r), _) if r.is_multicast() => return Err(TunnelError::Multicast(r)),
        (Some(r), Some(l)) if r.is_ipv4() != l.is_ipv4() => {
            return Err(TunnelError::Families);
        }
        (Some(_), _) if get(o, "local_ip") == Some("flow") => {
            return Err(TunnelError::OnlyLocalFlow(kind));
        }
        _ => {}
    }
    if let Some(e) = get(o, "exts") {
        return Err(TunnelError::Extensions { kind, value: e.into() });
    }
    match get(o, "packet_type") {
        None | Some("legacy_l2") => {}
        Some(p) => return Err(TunnelError::PacketType(p.into())),
    }
    let key = |direction: &str| get(o, "key").or_else(|| get(o, direction)).unwrap_or("0");
    if key("in_key") != key("out_key") {
        return Err(TunnelError::TwoKeys);
    }
    Ok(())
}

/// Why some of a tunnel's options have no effect, or not all of it.
pub(super) fn without_effect(t: &TunnelConfig, o: &Map<Str, Str>) -> Option<String> {
    let usual = TunnelConfig::new(t.kind, None).udp_port;
    if t.udp_port != usual {
        let port = t.udp_port;
        return Some(format!("dst_port={port}: packets are sent there, but those that come are taken at {usual} only"));
    }
    let inherits = ["tos", "ttl"].into_iter().find(|k| get(o, k) == Some("inherit"))?;
    Some(format!("{inherits}=inherit has no effect: {} it is", if inherits == "tos" { t.tos } else { t.ttl }))
}

fn parse_key(k: &str) -> Option<u32> {
    let v = match k.strip_prefix("0x") {
        Some(h) => u32::from_str_radix(h, 16).ok()?,
        None => k.parse().ok()?,
    };
    (v < 1 << 24).then_some(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn tunnels() {
        let t = |o: &[(&str, &str)]| tunnel(TunnelKind::Geneve, "geneve", &map(o));
        let Ok(Kind::Tunnel(flow)) = t(&[("remote_ip", "10.0.0.2"), ("key", "flow"), ("csum", "true")]) else {
            panic!("a tunnel")
        };
        assert_eq!((flow.remote, flow.key, flow.csum), (Some([10, 0, 0, 2].into()), None, true));
        let Ok(Kind::Tunnel(fixed)) =
            t(&[("remote_ip", "flow"), ("key", "0x10"), ("dst_port", "7000"), ("tos", "0x20")])
        else {
            panic!("a tunnel")
        };
        assert_eq!((fixed.remote, fixed.key, fixed.udp_port, fixed.tos), (None, Some(16), 7000, 0x20));
        assert!(without_effect(&flow, &map(&[])).is_none());
        assert!(without_effect(&fixed, &map(&[])).is_some_and(|w| w.contains("7000")));
        for (df, csum, expected) in [("false", "true", (false, true)), ("no", "True", (true, false))] {
            let Ok(Kind::Tunnel(t)) = t(&[("remote_ip", "10.0.0.2"), ("df_default", df), ("csum", csum)]) else {
                panic!("a tunnel")
            };
            assert_eq!((t.df, t.csum), expected, "{df} {csum}");
        }
        assert_eq!(t(&[]), Err(TunnelError::NoRemote("geneve")));
        assert!(t(&[("remote_ip", "host")]).is_err() && t(&[("remote_ip", "flow"), ("key", "99999999")]).is_err());
    }
}
