//! Options of tunnels: addresses, keys, what outer headers get.

use super::port::Kind;
use super::{NotANumber, get, number};
use ovn_schema::{Map, Str};
use packet::srv6::MOST_SEGMENTS;
use std::net::IpAddr;
use switch::{ErspanOptions, FlowLabel, PacketMode, TunnelConfig, TunnelKey, TunnelKind};

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
    #[error("exts={value}: {kind} has {known} here")]
    Extensions {
        /// The type of the tunnel.
        kind: &'static str,
        /// The extensions.
        value: String,
        /// Those that there are.
        known: &'static str,
    },
    /// `packet_type` is none.
    #[error("unknown packet_type '{0}'")]
    PacketType(String),
    /// `packet_type` is one that the encapsulation has no packets for.
    #[error("{mode} configured on {kind} tunnel that cannot carry {layer} traffic")]
    Layer {
        /// The type of packets.
        mode: &'static str,
        /// The encapsulation.
        kind: &'static str,
        /// What it cannot have.
        layer: &'static str,
    },
    /// `srv6_segs` or `srv6_flowlabel`.
    #[error("{key}={value}: expected {expected}")]
    Segments {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it can be.
        expected: &'static str,
    },
    /// It is to be encrypted, and would not be.
    #[error(
        "{0}: the tunnel wants IPsec, which this switch does not have: it stays down, as its packets would go in the clear; \
         use ovs-vswitchd on the kernel's datapath here, or set NB_Global:ipsec to false"
    )]
    Ipsec(&'static str),
    /// An option of ERSPAN.
    #[error("{key}={value}: expected a number that this field of ERSPAN can have, or \"flow\"")]
    Erspan {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// The key is longer than the encapsulation has room for.
    #[error("key={0}: expected a number (24 bits, in GRE and GTP-U 32, in ERSPAN 10) or \"flow\"")]
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
    t.local_of_flow = get(o, "local_ip") == Some("flow");
    ends(name, &t, o)?;
    let key = |direction: &str| match get(o, "key").or_else(|| get(o, direction)) {
        Some("flow") => Ok(None),
        None => Ok(Some(TunnelKey::NONE)),
        Some(k) => TunnelKey::parse(kind, k).map(Some).ok_or_else(|| TunnelError::Key(k.into())),
    };
    (t.key, t.in_key) = (key("out_key")?, key("in_key")?);
    t.keyed = get(o, "key").or_else(|| get(o, "out_key")).is_some();
    extensions(&mut t, name, o)?;
    t.mode = mode(&t, name, o)?;
    if kind == TunnelKind::Srv6 {
        segments(&mut t, o)?;
    }
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
    t.mark = number(o, "egress_pkt_mark")?;
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
    if let Some(key) = ["remote_name", "remote_cert", "psk"].into_iter().find(|k| get(o, k).is_some()) {
        return Err(TunnelError::Ipsec(key));
    }
    Ok(())
}

/// The extensions of VXLAN that the options ask for.
fn extensions(t: &mut TunnelConfig, kind: &'static str, o: &Map<Str, Str>) -> Result<(), TunnelError> {
    let Some(list) = get(o, "exts") else { return Ok(()) };
    let (vxlan, wrong) =
        (t.kind == TunnelKind::Vxlan, |known| TunnelError::Extensions { kind, value: list.into(), known });
    for word in list.split(',').map(str::trim).filter(|w| !w.is_empty()) {
        match word {
            "gpe" if vxlan => t.gpe = true,
            "gbp" if vxlan => t.policy = true,
            _ => return Err(wrong(if vxlan { "gbp or gpe" } else { "none" })),
        }
    }
    // Both have the third and fourth byte for themselves.
    if t.gpe && t.policy { Err(wrong("either gbp or gpe")) } else { Ok(()) }
}

/// What packets the options ask for.
fn mode(t: &TunnelConfig, kind: &'static str, o: &Map<Str, Str>) -> Result<PacketMode, TunnelError> {
    let (l2, l3) = match t.kind {
        TunnelKind::Srv6 | TunnelKind::Gtpu => (false, true),
        TunnelKind::Gre => (true, true),
        TunnelKind::Vxlan => (true, t.gpe),
        TunnelKind::Geneve | TunnelKind::Erspan => (true, false),
    };
    let kind = match t.kind {
        TunnelKind::Vxlan if t.gpe => "VXLAN-GPE",
        TunnelKind::Vxlan => "VXLAN (without GPE)",
        _ => kind,
    };
    match get(o, "packet_type") {
        None if l2 => Ok(PacketMode::LegacyL2),
        None => Ok(PacketMode::LegacyL3),
        Some("legacy_l2") if l2 => Ok(PacketMode::LegacyL2),
        Some("legacy_l3") if l3 => Ok(PacketMode::LegacyL3),
        Some("ptap") => Ok(PacketMode::Aware),
        Some("legacy_l2") => Err(TunnelError::Layer { mode: "legacy_l2", kind, layer: "L2" }),
        Some("legacy_l3") => Err(TunnelError::Layer { mode: "legacy_l3", kind, layer: "L3" }),
        Some(p) => Err(TunnelError::PacketType(p.into())),
    }
}

/// The path that the options of SRv6 ask for.
fn segments(t: &mut TunnelConfig, o: &Map<Str, Str>) -> Result<(), TunnelError> {
    let wrong = |key, value: &str, expected| TunnelError::Segments { key, value: value.into(), expected };
    if let Some(list) = get(o, "srv6_segs") {
        let bad = || wrong("srv6_segs", list, "up to six addresses of IPv6, with commas");
        t.segments = list.split(',').map(|a| a.trim().parse().map_err(|_| bad())).collect::<Result<_, _>>()?;
        if t.segments.len() > MOST_SEGMENTS {
            return Err(bad());
        }
    }
    t.flow_label = match get(o, "srv6_flowlabel") {
        None | Some("copy") => FlowLabel::Copy,
        Some("zero") => FlowLabel::Zero,
        Some("compute") => FlowLabel::Compute,
        Some(v) => return Err(wrong("srv6_flowlabel", v, "copy, zero or compute")),
    };
    match t.remote {
        Some(a) if a.is_ipv4() => Err(wrong("remote_ip", &a.to_string(), "an address of IPv6, for SRv6")),
        _ => Ok(()),
    }
}

/// The header of ERSPAN that the options ask for.
fn erspan(o: &Map<Str, Str>) -> Result<ErspanOptions, TunnelError> {
    let usual = ErspanOptions::default();
    let number = |key: &'static str, most: u32, usual: Option<u32>| match get(o, key) {
        None => Ok(usual),
        Some("flow") => Ok(None),
        Some(text) => {
            let n = match text.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                // The field's own options are hexadecimal without a prefix as well (ovs-vswitchd.conf.db(5)).
                None if key == "erspan_ver" => text.parse().ok(),
                None => u32::from_str_radix(text, 16).ok(),
            };
            let fits = n.filter(|n| *n <= most && (key != "erspan_ver" || *n != 0));
            fits.map(Some).ok_or_else(|| TunnelError::Erspan { key, value: text.into() })
        }
    };
    let version = number("erspan_ver", 2, usual.version.map(u32::from))?.map(|v| v as u8);
    let options = ErspanOptions {
        version,
        index: number("erspan_idx", 0xf_ffff, usual.index)?,
        egress: number("erspan_dir", 1, usual.egress.map(u32::from))?.map(|v| v == 1),
        hardware: number("erspan_hwid", 0x3f, usual.hardware.map(u32::from))?.map(|v| v as u8),
    };
    // Who leaves the version to flows leaves them all of the header.
    let of_flows = ErspanOptions { version: None, index: None, egress: None, hardware: None };
    Ok(if version.is_none() { of_flows } else { options })
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
        assert_eq!((fixed.remote, fixed.key, fixed.udp_port, fixed.tos), (None, Some(TunnelKey(16)), 7000, 0x20));
        let Ok(Kind::Tunnel(inherits)) = t(&[("remote_ip", "flow"), ("tos", "inherit"), ("ttl", "inherit")]) else {
            panic!("a tunnel")
        };
        let marked = t(&[("remote_ip", "10.0.0.2"), ("egress_pkt_mark", "1234")]);
        assert!(matches!(marked, Ok(Kind::Tunnel(t)) if t.mark == Some(1234)));
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
    fn packet_types_extensions_and_keys() {
        let t = |kind, name, o: &[(&str, &str)]| {
            let all = [&[("remote_ip", "fc00::1")], o].concat();
            match tunnel(kind, name, &map(&all)) {
                Ok(Kind::Tunnel(t)) => Ok(*t),
                Ok(_) => panic!("a tunnel"),
                Err(e) => Err(e.to_string()),
            }
        };
        let gre = |o: &[(&str, &str)]| t(TunnelKind::Gre, "gre", o);
        let modes =
            [("legacy_l2", PacketMode::LegacyL2), ("legacy_l3", PacketMode::LegacyL3), ("ptap", PacketMode::Aware)];
        for (word, mode) in modes {
            assert_eq!(gre(&[("packet_type", word)]).map(|t| t.mode), Ok(mode));
        }
        assert_eq!(
            gre(&[("in_key", "5"), ("out_key", "flow")]).map(|t| (t.in_key, t.key)),
            Ok((Some(TunnelKey(5)), None))
        );
        assert_eq!(gre(&[("key", "0")]).map(|t| (t.key, t.keyed)), Ok((Some(TunnelKey::NONE), true)));
        assert_eq!(gre(&[]).map(|t| (t.key, t.keyed)), Ok((Some(TunnelKey::NONE), false)));
        let vxlan = |o: &[(&str, &str)]| t(TunnelKind::Vxlan, "vxlan", o);
        assert_eq!(
            vxlan(&[("exts", "gpe"), ("packet_type", "legacy_l3")]).map(|t| (t.gpe, t.policy)),
            Ok((true, false))
        );
        assert_eq!(
            vxlan(&[("exts", "gbp")]).map(|t| (t.gpe, t.policy, t.mode)),
            Ok((false, true, PacketMode::LegacyL2))
        );
        let gtpu = |o: &[(&str, &str)]| t(TunnelKind::Gtpu, "gtpu", o);
        let teid = gtpu(&[("key", "0xffffffff"), ("seq", "true")]);
        assert!(teid.is_ok_and(|t| (t.key, t.sequence, t.mode, t.udp_port)
            == (Some(TunnelKey(u32::MAX)), true, PacketMode::LegacyL3, 2152)));
        let srv6 = |o: &[(&str, &str)]| t(TunnelKind::Srv6, "srv6", o);
        let path = srv6(&[("srv6_segs", "fc00::1, fc00::2"), ("srv6_flowlabel", "compute")]);
        assert!(path.is_ok_and(|t| t.segments.len() == 2
            && t.flow_label == FlowLabel::Compute
            && t.mode == PacketMode::LegacyL3));
        let refused = [
            vxlan(&[("packet_type", "legacy_l3")]),
            vxlan(&[("exts", "gpe,gbp")]),
            vxlan(&[("exts", "x")]),
            gre(&[("exts", "gpe")]),
            gre(&[("packet_type", "l3")]),
            srv6(&[("packet_type", "legacy_l2")]),
            gtpu(&[("packet_type", "legacy_l2")]),
            srv6(&[("srv6_segs", "10.0.0.1")]),
            srv6(&[("srv6_segs", "::1,::2,::3,::4,::5,::6,::7")]),
            srv6(&[("srv6_flowlabel", "random")]),
            srv6(&[("remote_ip", "10.0.0.1")]),
            t(TunnelKind::Geneve, "geneve", &[("packet_type", "legacy_l3")]),
        ];
        for (i, r) in refused.into_iter().enumerate() {
            assert!(r.is_err(), "{i}");
        }
    }

    #[test]
    fn gre_and_erspan() {
        let t = |kind, o: &[(&str, &str)]| match tunnel(kind, "gre", &map(o)) {
            Ok(Kind::Tunnel(t)) => Ok(*t),
            Ok(_) => panic!("a tunnel"),
            Err(e) => Err(e.to_string()),
        };
        let gre = t(TunnelKind::Gre, &[("remote_ip", "10.0.0.2"), ("key", "0xffffffff"), ("seq", "true")]);
        assert!(gre.is_ok_and(|t| (t.key, t.sequence, t.udp_port) == (Some(TunnelKey(u32::MAX)), true, 0)));
        let span = |o: &[(&str, &str)]| {
            let all = [&[("remote_ip", "10.0.0.2"), ("key", "1023")], o].concat();
            t(TunnelKind::Erspan, &all).map(|t| t.erspan)
        };
        let usual = ErspanOptions::default();
        let first = span(&[("erspan_ver", "1"), ("erspan_idx", "0x3")]);
        assert_eq!((first, span(&[])), (Ok(ErspanOptions { index: Some(3), ..usual }), Ok(usual)));
        let v2 = &[("erspan_ver", "2"), ("erspan_dir", "1"), ("erspan_hwid", "0x7")];
        let second = ErspanOptions { version: Some(2), egress: Some(true), hardware: Some(7), ..usual };
        assert_eq!(span(v2), Ok(second));
        let index = span(&[("erspan_ver", "1"), ("erspan_idx", "flow"), ("erspan_hwid", "flow")]);
        assert_eq!(index, Ok(ErspanOptions { index: None, hardware: None, ..usual }));
        let all = ErspanOptions { version: None, index: None, egress: None, hardware: None };
        assert_eq!(span(&[("erspan_ver", "flow"), ("erspan_idx", "3")]), Ok(all));
        for wrong in [
            ("erspan_ver", "3"),
            ("erspan_ver", "0"),
            ("erspan_dir", "2"),
            ("erspan_idx", "0x100000"),
            ("erspan_idx", "x"),
            ("key", "1024"),
        ] {
            let all = [("remote_ip", "10.0.0.2"), wrong];
            assert!(t(TunnelKind::Erspan, &all).is_err(), "{wrong:?}");
        }
    }
}
