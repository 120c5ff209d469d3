//! Options of tunnels: addresses, keys, what outer headers get.

use super::port::Kind;
use super::{NotANumber, get, number};
use ovn_schema::{Map, Str};
use packet::gre::Erspan;
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
    /// It is to be encrypted, and would not be.
    #[error(
        "{0}: the tunnel wants IPsec, which this switch does not have: it stays down, as its packets would go in the clear; \
         use ovs-vswitchd on the kernel's datapath here, or set NB_Global:ipsec to false"
    )]
    Ipsec(&'static str),
    /// `in_key` and `out_key` differ.
    #[error("in_key and out_key: a tunnel has one key for both directions")]
    TwoKeys,
    /// An option of ERSPAN.
    #[error("{key}={value}: expected a number that this field of ERSPAN can have")]
    Erspan {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// The key is longer than the encapsulation has room for.
    #[error("key={0}: expected a number (24 bits, in GRE 32, in ERSPAN 10) or \"flow\"")]
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
        Some(k) => Some(parse_key(kind, k).ok_or_else(|| TunnelError::Key(k.into()))?),
    };
    t.sequence = get(o, "seq") == Some("true");
    if kind == TunnelKind::Erspan {
        t.erspan = erspan(o)?;
    }
    // Open vSwitch compares these two letter by letter, unlike other switches of options.
    t.csum = get(o, "csum").map(|v| v == "true");
    t.df = get(o, "df_default") != Some("false");
    if let Some(p) = number(o, "dst_port")? {
        t.udp_port = p;
    }
    t.inherits_tos = get(o, "tos") == Some("inherit");
    t.inherits_ttl = get(o, "ttl") == Some("inherit");
    t.tos = match get(o, "tos") {
        None | Some("inherit") => 0,
        Some(v) => v
            .strip_prefix("0x")
            .map_or_else(|| v.parse().ok(), |h| u8::from_str_radix(h, 16).ok())
            .ok_or_else(|| TunnelError::Tos(v.into()))?,
    };
    if !t.inherits_ttl {
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
    if let Some(key) = ["remote_name", "remote_cert", "psk"].into_iter().find(|k| get(o, k).is_some()) {
        return Err(TunnelError::Ipsec(key));
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

/// The header of ERSPAN that the options ask for.
fn erspan(o: &Map<Str, Str>) -> Result<Erspan, TunnelError> {
    let number = |key: &'static str, most: u32| match get(o, key) {
        None => Ok(0),
        Some(text) => {
            let n = match text.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                // The field's own options are hexadecimal without a prefix as well (ovs-vswitchd.conf.db(5)).
                None if key == "erspan_ver" => text.parse().ok(),
                None => u32::from_str_radix(text, 16).ok(),
            };
            n.filter(|n| *n <= most).ok_or_else(|| TunnelError::Erspan { key, value: text.into() })
        }
    };
    // Version 1 is what an absent option means.
    match if get(o, "erspan_ver").is_some() { number("erspan_ver", 2)? } else { 1 } {
        1 => Ok(Erspan::V1 { index: number("erspan_idx", 0xf_ffff)? }),
        2 => Ok(Erspan::V2 { egress: number("erspan_dir", 1)? == 1, hardware: number("erspan_hwid", 0x3f)? as u8 }),
        n => Err(TunnelError::Erspan { key: "erspan_ver", value: n.to_string() }),
    }
}

fn parse_key(kind: TunnelKind, k: &str) -> Option<u32> {
    let v = match k.strip_prefix("0x") {
        Some(h) => u32::from_str_radix(h, 16).ok()?,
        None => k.parse().ok()?,
    };
    let most = match kind {
        TunnelKind::Gre => u32::MAX,
        TunnelKind::Erspan => 0x3ff,
        TunnelKind::Geneve | TunnelKind::Vxlan => 0xff_ffff,
    };
    (v <= most).then_some(v)
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
        assert_eq!((flow.remote, flow.key, flow.csum), (Some([10, 0, 0, 2].into()), None, Some(true)));
        let Ok(Kind::Tunnel(fixed)) =
            t(&[("remote_ip", "flow"), ("key", "0x10"), ("dst_port", "7000"), ("tos", "0x20")])
        else {
            panic!("a tunnel")
        };
        assert_eq!((fixed.remote, fixed.key, fixed.udp_port, fixed.tos), (None, Some(16), 7000, 0x20));
        let Ok(Kind::Tunnel(inherits)) = t(&[("remote_ip", "flow"), ("tos", "inherit"), ("ttl", "inherit")]) else {
            panic!("a tunnel")
        };
        assert!(inherits.inherits_tos && inherits.inherits_ttl && !fixed.inherits_tos && !fixed.inherits_ttl);
        for (df, csum, expected) in [("false", "true", (false, true)), ("no", "True", (true, false))] {
            let Ok(Kind::Tunnel(t)) = t(&[("remote_ip", "10.0.0.2"), ("df_default", df), ("csum", csum)]) else {
                panic!("a tunnel")
            };
            assert_eq!((t.df, t.csum), (expected.0, Some(expected.1)), "{df} {csum}");
        }
        assert_eq!(t(&[]), Err(TunnelError::NoRemote("geneve")));
        for key in ["remote_name", "remote_cert", "psk"] {
            let e = t(&[("remote_ip", "10.0.0.2"), (key, "hv2")]).unwrap_err();
            assert!(e == TunnelError::Ipsec(key) && e.to_string().contains("wants IPsec"), "{e}");
        }
        assert!(t(&[("remote_ip", "host")]).is_err() && t(&[("remote_ip", "flow"), ("key", "99999999")]).is_err());
    }

    #[test]
    fn gre_and_erspan() {
        let t = |kind, o: &[(&str, &str)]| match tunnel(kind, "gre", &map(o)) {
            Ok(Kind::Tunnel(t)) => Ok(*t),
            Ok(_) => panic!("a tunnel"),
            Err(e) => Err(e.to_string()),
        };
        let gre = t(TunnelKind::Gre, &[("remote_ip", "10.0.0.2"), ("key", "0xffffffff"), ("seq", "true")]);
        assert!(gre.is_ok_and(|t| (t.key, t.sequence, t.udp_port) == (Some(u32::MAX), true, 0)));
        let span = |o: &[(&str, &str)]| {
            let all = [&[("remote_ip", "10.0.0.2"), ("key", "1023")], o].concat();
            t(TunnelKind::Erspan, &all).map(|t| t.erspan)
        };
        assert_eq!(span(&[("erspan_ver", "1"), ("erspan_idx", "0x3")]), Ok(Erspan::V1 { index: 3 }));
        let v2 = &[("erspan_ver", "2"), ("erspan_dir", "1"), ("erspan_hwid", "0x7")];
        assert_eq!(span(v2), Ok(Erspan::V2 { egress: true, hardware: 7 }));
        for wrong in [("erspan_ver", "3"), ("erspan_idx", "0x100000"), ("erspan_idx", "x"), ("key", "1024")] {
            let all = [("remote_ip", "10.0.0.2"), wrong];
            assert!(t(TunnelKind::Erspan, &all).is_err(), "{wrong:?}");
        }
    }
}
