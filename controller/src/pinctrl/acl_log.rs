//! `log(…)` of an access rule: one line, in the words of ovn-controller, which collectors parse.

use openflow_rs::message::PacketIn;
use packet::{Headers, be16, ethertype, ipproto};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Logs a packet as its rule asks: verdict, severity and the rule's name are in the action's data.
pub(super) fn log(p: &PacketIn, data: &[u8]) {
    let verdict = match data.first() {
        Some(0) => "allow",
        Some(1) => "drop",
        Some(2) => "reject",
        Some(3) => "pass",
        _ => "<unknown>",
    };
    let severity = match data.get(1) {
        Some(1) => "alert",
        Some(4) => "warning",
        Some(5) => "notice",
        Some(7) => "debug",
        _ => "info",
    };
    let name = quoted(data.get(2..).unwrap_or_default());
    let direction = if p.table >= crate::encode::tables::EGRESS { "to-lport" } else { "from-lport" };
    let packet = describe(&p.packet);
    tracing::info!(target: "acl_log", "name={name}, verdict={verdict}, severity={severity}, direction={direction}: {packet}");
}

/// A rule's name as a JSON string, so that no name can look like the rest of a line.
fn quoted(name: &[u8]) -> String {
    let name = if name.is_empty() { "<unnamed>".into() } else { String::from_utf8_lossy(name) };
    serde_json::Value::from(name).to_string()
}

/// A packet's headers as ovs-ofctl(8) names them.
fn describe(p: &[u8]) -> String {
    fields(p).unwrap_or_else(|| "malformed".into())
}

fn mac(p: &[u8], at: usize) -> Option<String> {
    Some(packet::mac_at(p, at)?.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":"))
}

fn fields(p: &[u8]) -> Option<String> {
    let h = Headers::parse(p)?;
    let ip = h.is_ipv4() || h.is_ipv6();
    let (mut out, known) = match h.proto {
        _ if h.ethertype == ethertype::ARP => ("arp".to_string(), true),
        _ if !ip => (String::new(), false),
        ipproto::TCP => (if h.is_ipv4() { "tcp" } else { "tcp6" }.into(), true),
        ipproto::UDP => (if h.is_ipv4() { "udp" } else { "udp6" }.into(), true),
        ipproto::SCTP => (if h.is_ipv4() { "sctp" } else { "sctp6" }.into(), true),
        ipproto::ICMP if h.is_ipv4() => ("icmp".into(), true),
        ipproto::ICMPV6 if h.is_ipv6() => ("icmp6".into(), true),
        _ => (if h.is_ipv4() { "ip" } else { "ipv6" }.into(), false),
    };
    if !out.is_empty() {
        out.push(',');
    }
    match h.vlans.first().copied().flatten() {
        Some(_) => {
            let tci = be16(p, 14)?;
            write!(out, "dl_vlan={},dl_vlan_pcp={},vlan_tci1=0x0000", tci & 0xfff, tci >> 13).ok()?;
        }
        None => out.push_str("vlan_tci=0x0000"),
    }
    write!(out, ",dl_src={},dl_dst={}", mac(p, 6)?, mac(p, 0)?).ok()?;
    if h.ethertype == ethertype::ARP {
        arp(p, h.l3, &mut out);
    } else if ip {
        network(p, &h, known, &mut out)?;
        transport(p, &h, &mut out);
    } else {
        write!(out, ",dl_type=0x{:04x}", h.ethertype).ok()?;
    }
    Some(out)
}

/// A packet that is cut short has none of these.
fn arp(p: &[u8], at: usize, out: &mut String) -> Option<()> {
    let ip = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(p.get(at..at + 4)?).ok()?));
    write!(out, ",arp_spa={},arp_tpa={},arp_op={}", ip(at + 14)?, ip(at + 24)?, be16(p, at + 6)?).ok()?;
    write!(out, ",arp_sha={},arp_tha={}", mac(p, at + 8)?, mac(p, at + 18)?).ok()
}

fn network(p: &[u8], h: &Headers, known: bool, out: &mut String) -> Option<()> {
    let (src, dst) = h.addresses(p)?;
    let first = be16(p, h.l3)?;
    let (tos, ttl) = if h.is_ipv4() {
        write!(out, ",nw_src={},nw_dst={}", Ipv4Addr::from(src as u32), Ipv4Addr::from(dst as u32)).ok()?;
        (first as u8, *p.get(h.l3 + 8)?)
    } else {
        let label = u32::from(*p.get(h.l3 + 1)? & 0xf) << 16 | u32::from(be16(p, h.l3 + 2)?);
        write!(out, ",ipv6_src={},ipv6_dst={},ipv6_label=0x{label:05x}", Ipv6Addr::from(src), Ipv6Addr::from(dst))
            .ok()?;
        ((first >> 4) as u8, *p.get(h.l3 + 7)?)
    };
    if !known {
        write!(out, ",nw_proto={}", h.proto).ok()?;
    }
    let fragment = match (h.fragment, h.later_fragment) {
        (false, _) => "no",
        (true, false) => "first",
        (true, true) => "later",
    };
    write!(out, ",nw_tos={},nw_ecn={},nw_ttl={ttl},nw_frag={fragment}", tos & 0xfc, tos & 3).ok()
}

const FLAGS: [&str; 9] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"];

fn transport(p: &[u8], h: &Headers, out: &mut String) -> Option<()> {
    match h.proto {
        ipproto::TCP | ipproto::UDP | ipproto::SCTP => {
            let (src, dst) = h.ports(p).unwrap_or_default();
            write!(out, ",tp_src={src},tp_dst={dst}").ok()?;
        }
        ipproto::ICMP | ipproto::ICMPV6 => {
            let both = h.l4.and_then(|at| be16(p, at)).unwrap_or_default();
            write!(out, ",icmp_type={},icmp_code={}", both >> 8, both & 0xff).ok()?;
        }
        _ => {}
    }
    if h.proto == ipproto::TCP {
        let bits = h.l4.and_then(|at| be16(p, at + 12)).unwrap_or_default();
        let set: Vec<_> = FLAGS.iter().enumerate().filter(|(n, _)| bits >> n & 1 != 0).map(|(_, name)| *name).collect();
        write!(out, ",tcp_flags={}", if set.is_empty() { "0".to_string() } else { set.join("|") }).ok()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::build;

    const A: packet::Mac = packet::Mac([0xf0, 0, 0, 0, 0, 1]);
    const B: packet::Mac = packet::Mac([0xf0, 0, 0, 0, 0, 2]);
    const ENDS: &str = "vlan_tci=0x0000,dl_src=f0:00:00:00:00:01,dl_dst=f0:00:00:00:00:02";

    fn ip(src: &str, dst: &str, proto: u8, body: &[u8]) -> Vec<u8> {
        build::ip_packet(B, A, src.parse().unwrap(), dst.parse().unwrap(), proto, 64, body).unwrap()
    }

    #[test]
    fn packets_read_as_in_open_vswitch() {
        let tcp = [0x11, 9, 0, 81, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0];
        let mut p = ip("192.168.1.2", "192.168.1.3", 6, &tcp);
        let v4 = "nw_src=192.168.1.2,nw_dst=192.168.1.3";
        assert_eq!(
            describe(&p),
            format!("tcp,{ENDS},{v4},nw_tos=0,nw_ecn=0,nw_ttl=64,nw_frag=no,tp_src=4361,tp_dst=81,tcp_flags=syn|ack")
        );
        p[15] = 0xb9;
        p[20] = 0x20;
        assert!(describe(&p).contains("nw_tos=184,nw_ecn=1,nw_ttl=64,nw_frag=first,tp_src"), "{}", describe(&p));
        p[21] = 1;
        assert!(describe(&p).contains("nw_frag=later,tp_src=0,tp_dst=0,tcp_flags=0"), "{}", describe(&p));
        let echo = ip("192.168.1.2", "192.168.1.3", 1, &[3, 1, 0, 0, 0, 0, 0, 0]);
        assert!(describe(&echo).ends_with("nw_frag=no,icmp_type=3,icmp_code=1"), "{}", describe(&echo));
        let echo = ip("fd00::1", "fd00::2", 58, &[128, 0, 0, 0, 0, 0, 0, 0]);
        let v6 = "ipv6_src=fd00::1,ipv6_dst=fd00::2,ipv6_label=0x00000";
        let rest = "nw_tos=0,nw_ecn=0,nw_ttl=64,nw_frag=no,icmp_type=128,icmp_code=0";
        assert_eq!(describe(&echo), format!("icmp6,{ENDS},{v6},{rest}"));
        let gre = ip("192.168.1.2", "192.168.1.3", 47, &[0; 8]);
        assert_eq!(describe(&gre), format!("ip,{ENDS},{v4},nw_proto=47,nw_tos=0,nw_ecn=0,nw_ttl=64,nw_frag=no"));
        let mut tagged = gre[..12].to_vec();
        tagged.extend([0x81, 0, 0x60, 42]);
        tagged.extend(&gre[12..]);
        assert!(describe(&tagged).starts_with("ip,dl_vlan=42,dl_vlan_pcp=3,vlan_tci1=0x0000,dl_src="));
        let arp = build::arp(1, B, A, "10.0.0.1".parse().unwrap(), packet::Mac::ZERO, "10.0.0.2".parse().unwrap());
        assert!(describe(&arp).ends_with(
            "arp_spa=10.0.0.1,arp_tpa=10.0.0.2,arp_op=1,arp_sha=f0:00:00:00:00:01,arp_tha=00:00:00:00:00:00"
        ));
        assert_eq!(describe(&arp[..10]), "malformed");
    }

    #[test]
    fn a_name_cannot_look_like_the_rest_of_a_line() {
        assert_eq!(quoted(b""), "\"<unnamed>\"");
        assert_eq!(quoted(b"drop-flow"), "\"drop-flow\"");
        assert_eq!(quoted(b"a\", verdict=allow\n"), r#""a\", verdict=allow\n""#);
    }
}
