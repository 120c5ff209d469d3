//! `tnl_push(…)` in the words of ovs-dpctl(8).

use crate::ids::DeviceId;
use crate::tunnel::{Egress, TunnelConfig, TunnelKind};
use crate::xlate::Backer;
use packet::gre::{ERSPAN, Erspan, Gre};
use packet::tunnel::Geneve;
use packet::{be16, be32, be128, ipproto};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Hexadecimal as C's `%#x` prints it: zero is plain `0`.
pub(crate) fn hex(v: u64) -> String {
    if v == 0 { "0".into() } else { format!("{v:#x}") }
}

/// The numbers of Open vSwitch's kinds of tunnel ports (its include/linux/openvswitch.h).
fn type_number(kind: TunnelKind, v6: bool) -> u32 {
    match (kind, v6) {
        (TunnelKind::Gre, false) => 3,
        (TunnelKind::Gre, true) => 109,
        (TunnelKind::Vxlan, _) => 4,
        (TunnelKind::Geneve, _) => 5,
        (TunnelKind::Erspan, false) => 107,
        (TunnelKind::Erspan, true) => 108,
        (TunnelKind::Gtpu, _) => 110,
        (TunnelKind::Srv6, _) => 112,
    }
}

/// Headers that a cached flow puts before packets.
#[derive(Clone, Debug)]
pub(crate) struct Pushed {
    pub(crate) headers: Vec<u8>,
    /// With a UDP checksum.
    pub(crate) csum: bool,
    /// The device that the packet leaves through; none: it goes on in the bridge of its route.
    pub(crate) device: Option<DeviceId>,
}

/// The number of the port that tunnels' packets leave by.
pub(crate) fn out_port(backer: &Backer, egress: &Egress) -> String {
    match egress {
        Egress::Port(p) => backer.device_of_port(p).map_or_else(|| p.to_string(), |n| n.to_string()),
        Egress::Device(n) => n.to_string(),
        Egress::Host(_) => egress.to_string(),
    }
}

/// The headers that a cached flow puts before packets: those of Geneve, VXLAN, GRE and ERSPAN, as the packets of others
/// walk the tables.
pub(crate) fn pushed_headers(backer: &Backer, p: &Pushed) -> String {
    let h = &p.headers;
    let v6 = h.get(12) == Some(&0x86);
    // UDP's port, or GRE's protocol.
    let l4 = if v6 { 54 } else { 34 };
    let port = be16(h, l4 + 2).unwrap_or(0);
    let kind = match h.get(if v6 { 20 } else { 23 }) {
        Some(&ipproto::GRE) if ERSPAN.contains(&port) => TunnelKind::Erspan,
        Some(&ipproto::GRE) => TunnelKind::Gre,
        _ => backer.underlay.local.tunnel(port).unwrap_or(TunnelKind::Geneve),
    };
    let to =
        if v6 { be128(h, 38).map(|a| Ipv6Addr::from(a).into()) } else { be32(h, 30).map(|a| Ipv4Addr::from(a).into()) };
    let route = to.and_then(|a: std::net::IpAddr| backer.underlay.route(a));
    let out = match p.device {
        Some(n) => n.to_string(),
        None => route.map_or_else(String::new, |r| out_port(backer, &r.egress)),
    };
    let cfg = TunnelConfig { csum: Some(p.csum), ..TunnelConfig::new(kind, None) };
    let number = match kind.is_gre() {
        true => backer.tunnels().find(|t| t.kind == kind).map_or(0, |t| backer.tunnel_number(t)),
        false => port.into(),
    };
    pushed(&cfg, h, number, &out)
}

/// The headers that are put before a packet, and the numbers of the tunnel's port and of the one that they leave by.
pub(crate) fn pushed(cfg: &TunnelConfig, h: &[u8], port: u32, out: &str) -> String {
    let v6 = h.get(12) == Some(&0x86);
    let (kind, l4) = (type_number(cfg.kind, v6), if v6 { 54 } else { 34 });
    let rest = h.get(l4..).unwrap_or_default();
    let parts = [Some(ethernet(h)), Some(if v6 { ipv6(h) } else { ipv4(h) }), udp(cfg, rest, v6), within(cfg, rest)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    format!("tnl_push(tnl_port({port}),header(size={},type={kind},{}),out_port({out}))", h.len(), parts.join(","))
}

fn ethernet(h: &[u8]) -> String {
    let mac = |at: usize| packet::mac_at(h, at).unwrap_or(packet::Mac::ZERO);
    format!("eth(dst={},src={},dl_type=0x{:04x})", mac(0), mac(6), be16(h, 12).unwrap_or(0))
}

fn ipv4(h: &[u8]) -> String {
    let address = |at: usize| Ipv4Addr::from(be32(h, at).unwrap_or(0));
    let byte = |at: usize| h.get(at).copied().unwrap_or(0);
    let (src, dst, proto, tos) = (address(26), address(30), byte(23), hex(byte(15).into()));
    format!("ipv4(src={src},dst={dst},proto={proto},tos={tos},ttl={},frag=0x{:x})", byte(22), be16(h, 20).unwrap_or(0))
}

fn ipv6(h: &[u8]) -> String {
    let address = |at: usize| Ipv6Addr::from(be128(h, at).unwrap_or(0));
    let (first, byte) = (be32(h, 14).unwrap_or(0), |at: usize| h.get(at).copied().unwrap_or(0));
    let (src, dst, label, class) = (address(22), address(38), first & 0xf_ffff, first >> 20 & 0xff);
    format!("ipv6(src={src},dst={dst},label={label},proto={},tclass={class:#x},hlimit={})", byte(20), byte(21))
}

/// The source port and the checksum are each packet's own.
fn udp(cfg: &TunnelConfig, l4: &[u8], v6: bool) -> Option<String> {
    let sum = if cfg.checksums(!v6) { 0xffff } else { 0 };
    cfg.kind.is_udp().then(|| format!("udp(src=0,dst={},csum={sum:#x})", be16(l4, 2).unwrap_or(0)))
}

fn within(cfg: &TunnelConfig, l4: &[u8]) -> Option<String> {
    Some(match cfg.kind {
        TunnelKind::Vxlan => format!("vxlan(flags={:#x},vni={:#x})", be32(l4, 8)?, be32(l4, 12)? >> 8),
        TunnelKind::Geneve => geneve(l4.get(8..)?)?,
        TunnelKind::Gtpu => {
            let (head, teid) = (be16(l4, 8)?, be32(l4, 12)?);
            format!("gtpu(flags={:#x},msgtype={},teid={teid:#x})", head >> 8, head & 0xff)
        }
        TunnelKind::Gre => {
            let (flags, proto) = (be16(l4, 0)?, be16(l4, 2)?);
            let mut s = format!("gre((flags={flags:#x},proto={proto:#x})");
            let mut at = 4;
            for (bit, name) in [(0x8000, "csum"), (0x2000, "key"), (0x1000, "seq")] {
                if flags & bit != 0 {
                    s += &format!(",{name}={:#x}", be32(l4, at)?);
                    at += 4;
                }
            }
            s + ")"
        }
        TunnelKind::Erspan => {
            let (gre, n) = Gre::parse(l4)?;
            let (header, session, _) = Erspan::parse(gre.protocol, l4.get(n..)?)?;
            match header {
                Erspan::V1 { index } => format!("erspan(ver=1,sid={session:#x},idx={index:#x})"),
                Erspan::V2 { egress, hardware } => {
                    format!("erspan(ver=2,sid={session:#x},dir={},hwid={hardware:#x})", u8::from(egress))
                }
            }
        }
        TunnelKind::Srv6 => {
            // The last segment comes first.
            let mut list: Vec<String> =
                l4.get(8..)?.chunks_exact(16).filter_map(|s| Some(Ipv6Addr::from(be128(s, 0)?).to_string())).collect();
            list.reverse();
            format!("srv6(segments_left={},segs({}))", l4.get(3)?, list.join(","))
        }
    })
}

fn geneve(b: &[u8]) -> Option<String> {
    let mut options = String::new();
    let g = Geneve::parse_with(b, |o| {
        let value = o.data.iter().fold(0u128, |v, x| v << 8 | u128::from(*x));
        options += &format!("{{class={:#x},type={},len={},{value:#x}}}", o.class, hex(o.kind.into()), o.data.len());
    })?;
    let (oam, critical) = (if g.oam { "oam," } else { "" }, if g.critical { "crit," } else { "" });
    let options = if options.is_empty() { options } else { format!(",options({options})") };
    Some(format!("geneve({oam}{critical}vni={:#x}{options})", g.vni.get()))
}
