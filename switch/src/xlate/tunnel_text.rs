//! `set(tunnel(…))` in the words of ovs-dpctl(8): what a datapath is told that puts packets into tunnels by itself.

use crate::tunnel::{TunnelConfig, TunnelKind, metadata_field};
use openflow_rs::message::TlvMap;
use openflow_rs::{FieldId as F, FlowKey};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address that the port's options give, else that of the flow.
fn end(own: Option<IpAddr>, key: &FlowKey, v4: F, v6: F) -> Option<IpAddr> {
    own.or_else(|| match (key.get(v4), key.get(v6)) {
        (0, 0) => None,
        (0, a) => Some(Ipv6Addr::from(a).into()),
        (a, _) => Some(Ipv4Addr::from(a as u32).into()),
    })
}

pub(super) fn text(cfg: &TunnelConfig, key: &FlowKey, tlv: &[TlvMap]) -> String {
    let mut parts = Vec::new();
    let keyed = cfg.has_key();
    if keyed {
        parts.push(format!("tun_id={:#x}", cfg.key.map_or(key.get(F::TunId), u128::from)));
    }
    let ends = [
        ("src", if cfg.local_of_flow { end(cfg.local, key, F::TunSrc, F::TunIpv6Src) } else { cfg.local }),
        ("dst", end(cfg.remote, key, F::TunDst, F::TunIpv6Dst)),
    ];
    for (name, a) in ends {
        match a {
            Some(IpAddr::V4(a)) => parts.push(format!("{name}={a}")),
            Some(IpAddr::V6(a)) => parts.push(format!("ipv6_{name}={a}")),
            None => {}
        }
    }
    let (tos, ttl) = cfg.tos_ttl(key);
    if tos != 0 {
        parts.push(format!("tos={tos:#x}"));
    }
    parts.push(format!("ttl={ttl}"));
    if cfg.kind.is_udp() {
        parts.push(format!("tp_dst={}", cfg.udp_port));
    }
    let policy = (key.get(F::TunGbpId), key.get(F::TunGbpFlags));
    if cfg.policy && policy != (0, 0) {
        parts.push(format!("vxlan(gbp(id={},flags={:#x}))", policy.0, policy.1));
    }
    if let Some(header) = cfg.erspan.header(key).filter(|_| cfg.kind == TunnelKind::Erspan) {
        parts.push(crate::tunnel::erspan::text(header));
    }
    let options = options(key, tlv);
    if cfg.kind == TunnelKind::Geneve && !options.is_empty() {
        parts.push(format!("geneve({options})"));
    }
    let v6 = ends[1].1.is_some_and(|a| a.is_ipv6());
    let csum = if cfg.kind.is_udp() { cfg.checksums(!v6) } else { cfg.csum == Some(true) };
    let oam = key.get(F::TunFlags) & 1 != 0;
    let flags: Vec<&str> = [(oam, "oam"), (cfg.df, "df"), (csum, "csum"), (keyed, "key")]
        .into_iter()
        .filter_map(|(on, name)| on.then_some(name))
        .collect();
    parts.push(format!("flags({})", flags.join("|")));
    format!("set(tunnel({}))", parts.join(","))
}

fn options(key: &FlowKey, tlv: &[TlvMap]) -> String {
    let mut out = String::new();
    for m in tlv {
        let Some((f, (word, bit))) = metadata_field(m.index).and_then(|f| Some((f, f.presence()?))) else { continue };
        if key.0.get(word).is_some_and(|w| w & bit != 0) {
            let (class, kind, len) = (m.class, m.kind, m.len);
            let kind = if kind == 0 { "0".into() } else { format!("{kind:#x}") };
            let value = if len == 0 { String::new() } else { format!(",{:#x}", key.get(f)) };
            let _ = write!(out, "{{class={class:#x},type={kind},len={len}{value}}}");
        }
    }
    out
}
