//! `tunnel(…)` in a flow in the words of ovs-dpctl(8): by which port such a packet comes in, and its metadata.

use super::frame_text::{Word, number};
use crate::pmd::MainPmd;
use openflow_rs::{FieldId as F, Match, PortNo};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use switch::{BridgeId, PortKind, TunnelConfig, TunnelKind};

/// The number of the port of the datapath that a tunnel's packets come by, as Open vSwitch numbers those: the UDP port, or
/// for other encapsulations the first number that no device has.
pub(super) fn number_of(w: &MainPmd, t: &TunnelConfig) -> u32 {
    if t.kind.is_udp() { t.udp_port.into() } else { w.switch.free_number() }
}

/// The port that a packet with this header comes in by, at a port of the datapath, and what flows see of the header.
///
/// # Errors
/// What is wrong with the text, or that there is no such port.
pub(super) fn arrival(w: &mut MainPmd, text: &str, device: &str) -> Result<(BridgeId, PortNo, Match), String> {
    let word = Word { name: "tunnel", text };
    let v4 = [word.parsed("src", Ipv4Addr::UNSPECIFIED)?, word.parsed("dst", Ipv4Addr::UNSPECIFIED)?];
    let v6 = [word.parsed("ipv6_src", Ipv6Addr::UNSPECIFIED)?, word.parsed("ipv6_dst", Ipv6Addr::UNSPECIFIED)?];
    let ends: [IpAddr; 2] = if v6[1].is_unspecified() { v4.map(IpAddr::from) } else { v6.map(IpAddr::from) };
    let key = word.number("tun_id")?;
    let at = number(device);
    let tunnels = w.switch.bridges().flat_map(|(_, b)| b.ports.values()).filter_map(|p| match &p.kind {
        PortKind::Tunnel(t) => Some(&**t),
        _ => None,
    });
    let mut kinds: Vec<TunnelKind> = tunnels.filter(|t| at == Some(number_of(w, t).into())).map(|t| t.kind).collect();
    kinds.dedup();
    let port = at.and_then(|n| u16::try_from(n).ok()).unwrap_or(0);
    let found = kinds.into_iter().find_map(|kind| {
        let port = if kind.is_udp() { port } else { 0 };
        w.switch.tunnel_end(kind, ends, key as u32, port)
    });
    let (bridge, no) = found.ok_or("no OpenFlow tunnel port for this packet")?;
    let mut m = Match::new();
    m.set(F::InPort, no.0.into());
    if v6[1].is_unspecified() {
        for (f, a) in [(F::TunSrc, v4[0]), (F::TunDst, v4[1])] {
            m.set(f, u32::from(a).into());
        }
    } else {
        for (f, a) in [(F::TunIpv6Src, v6[0]), (F::TunIpv6Dst, v6[1])] {
            m.set(f, a.into());
        }
    }
    for (name, f) in [("tun_id", F::TunId), ("tos", F::TunTos), ("ttl", F::TunTtl)] {
        m.set(f, word.number(name)?.into());
    }
    if text.contains("oam") {
        m.set(F::TunFlags, 1);
    }
    if let Some((_, policy)) = text.split_once("gbp(") {
        let policy = Word { name: "gbp", text: policy.split(')').next().unwrap_or_default() };
        m.set(F::TunGbpId, policy.number("id")?.into());
        m.set(F::TunGbpFlags, policy.number("flags")?.into());
    }
    Ok((bridge, no, m))
}
