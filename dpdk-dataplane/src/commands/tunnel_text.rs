//! `tunnel(…)` in a flow in the words of ovs-dpctl(8): by which port such a packet comes in, and its metadata.

use super::frame_text::{Word, number};
use crate::pmd::MainPmd;
use openflow_rs::action::PacketType;
use openflow_rs::message::TlvMap;
use openflow_rs::{FieldId as F, Match, PortNo};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use switch::{BridgeId, PortKind, TunnelKey, TunnelKind};

/// The parts of `tunnel(…)` that are words in parentheses, and the fields of flows that they are.
const PARTS: &[(&str, &[(&str, F)])] = &[
    ("gbp", &[("id", F::TunGbpId), ("flags", F::TunGbpFlags)]),
    ("gtpu", &[("flags", F::TunGtpuFlags), ("msgtype", F::TunGtpuMsgtype)]),
    (
        "erspan",
        &[("ver", F::TunErspanVer), ("idx", F::TunErspanIdx), ("dir", F::TunErspanDir), ("hwid", F::TunErspanHwid)],
    ),
];

/// The port that a packet with this header comes in by, at a port of the datapath, and what flows see of the header.
/// The last is whether the header has a key. `inner` is the type of the packet in it, if the flow says one.
///
/// # Errors
/// What is wrong with the text, or that there is no such port.
pub(super) fn arrival(
    w: &mut MainPmd,
    text: &str,
    device: &str,
    inner: Option<PacketType>,
) -> Result<(BridgeId, PortNo, Match, bool), String> {
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
    let mut kinds: Vec<TunnelKind> =
        tunnels.filter(|t| at == Some(w.switch.tunnel_number(t).into())).map(|t| t.kind).collect();
    kinds.dedup();
    let port = at.and_then(|n| u16::try_from(n).ok()).unwrap_or(0);
    let found = kinds.into_iter().find_map(|kind| {
        let port = if kind.is_udp() { port } else { 0 };
        w.switch.tunnel_end(kind, ends, (TunnelKey(key as u32), port), inner)
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
    for (name, fields) in PARTS {
        let Some((_, part)) = text.split_once(&format!("{name}(")) else { continue };
        let part = Word { name, text: part.split(')').next().unwrap_or_default() };
        for (word, f) in *fields {
            m.set(*f, part.number(word)?.into());
        }
    }
    let list = text.split_once("geneve(").map(|(_, rest)| rest).unwrap_or_default();
    let tlv = w.switch.bridge(bridge).map(|b| b.tlv.as_slice()).unwrap_or_default();
    list.split_inclusive('}')
        .map_while(|o| o.trim().strip_prefix('{')?.strip_suffix('}'))
        .try_for_each(|o| option(&mut m, tlv, o))?;
    let flags = text.split_once("flags(").and_then(|(_, rest)| rest.split(')').next()).unwrap_or_default();
    Ok((bridge, no, m, flags.split(['|', ',']).any(|f| f.trim() == "key")))
}

/// Sets the field of an option of Geneve, if it has one: `class=…,type=…,len=…,VALUE`.
fn option(m: &mut Match, tlv: &[TlvMap], text: &str) -> Result<(), String> {
    let word = Word { name: "geneve", text };
    let (class, kind, len) = (word.number("class")?, word.number("type")?, word.number("len")?);
    let alike = |t: &&TlvMap| (u64::from(t.class), u64::from(t.kind), u64::from(t.len)) == (class, kind, len);
    let Some(f) = tlv.iter().find(alike).and_then(|t| switch::metadata_field(t.index)) else { return Ok(()) };
    m.require(f);
    if let Some(value) = text.split(',').map(str::trim).find(|w| !w.is_empty() && !w.contains('=')) {
        let digits = value.split('/').next().unwrap_or_default();
        let value = digits.strip_prefix("0x").map_or_else(|| digits.parse().ok(), |h| u128::from_str_radix(h, 16).ok());
        m.set(f, value.ok_or_else(|| format!("geneve: {text}: expected a value"))?);
    }
    Ok(())
}
