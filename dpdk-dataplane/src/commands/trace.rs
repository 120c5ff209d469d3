//! `ofproto/trace` and `ofproto/trace-packet-out`: makes a packet of a flow's text, and traces it through the tables.

use super::{frame_text, tunnel_text};
use crate::pmd::MainPmd;
use openflow_rs::action::{Action, ETH_NSH, PacketType, is_mpls};
use openflow_rs::flow_match::{ETH_ARP, ETH_IPV4, ETH_IPV6};
use openflow_rs::text::{parse_actions, parse_match};
use openflow_rs::{FieldId as F, Match, PortNo};
use packet::nsh::Nsh;
use packet::{Headers, Mac, build, checksum, ipproto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use switch::{BridgeId, DeviceId, TraceRequest};

/// `ofproto/trace [OPTIONS] BRIDGE FLOW [PACKET]`, or with a datapath and its words for a flow, `[DATAPATH] FLOW
/// [PACKET]`: the packet is hexadecimal, or made of the flow.
pub(super) fn trace(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let o = Options::parse(args, false)?;
    match *o.plain.as_slice() {
        [flow] => o.trace(w, "", flow, None, None),
        [flow, packet] if is_datapath_flow(flow) => o.trace(w, "", flow, Some(packet), None),
        [bridge, flow] => o.trace(w, bridge, flow, None, None),
        [bridge, flow, packet] => o.trace(w, bridge, flow, Some(packet), None),
        _ => Err("expected a bridge and a flow, then, if wanted, a packet in hexadecimal".into()),
    }
}

/// `ofproto/trace-packet-out [OPTIONS] BRIDGE FLOW [PACKET] ACTIONS`: the same, of a packet that a controller sends.
pub(super) fn packet_out(w: &mut MainPmd, args: &[String]) -> Result<String, String> {
    let o = Options::parse(args, true)?;
    let (bridge, flow, packet, actions) = match *o.plain.as_slice() {
        [bridge, flow, actions] => (bridge, flow, None, actions),
        [bridge, flow, packet, actions] => (bridge, flow, Some(packet), actions),
        _ => return Err("expected a bridge, a flow, if wanted a packet in hexadecimal, and actions".into()),
    };
    let parsed = parse_actions(actions).map_err(|e| e.to_string())?;
    o.trace(w, bridge, flow, packet, Some(parsed))
}

/// Octets of an Ethernet header.
const ETHERNET: usize = 14;

/// The arguments of a trace.
struct Options<'a> {
    plain: Vec<&'a str>,
    ct_next: Vec<u32>,
    effects: bool,
    /// Ports are told by name.
    names: bool,
    /// Bytes behind the headers of a flow of ovs-dpctl(8); none: as many as is usual.
    payload: Option<u16>,
}

impl Options<'_> {
    fn parse(args: &[String], packet_out: bool) -> Result<Options<'_>, String> {
        let mut o = Options { plain: Vec::new(), ct_next: Vec::new(), effects: false, names: false, payload: None };
        let mut words = args.iter();
        while let Some(a) = words.next() {
            match a.as_str() {
                "-generate" | "--generate" => o.effects = true,
                // Consistent or not, a packet is made of the flow, or the flow is refused.
                "-consistent" | "--consistent" if packet_out => {}
                "-consistent" | "--consistent" => {
                    return Err("the -consistent option is for ofproto/trace-packet-out".into());
                }
                "-names" | "--names" => o.names = true,
                "-no-names" | "--no-names" => o.names = false,
                "--l7-len" => {
                    let n = words.next().ok_or("Missing argument for --l7-len option")?;
                    o.payload = Some(n.parse().map_err(|_| format!("{n}: invalid length"))?);
                }
                "--ct-next" => {
                    let state = words.next().ok_or("--ct-next: expected a connection's state")?;
                    o.ct_next.push(switch::parse_ct_state(state)?);
                }
                s if s.starts_with('-') => return Err(format!("{s}: unknown option")),
                s => o.plain.push(s),
            }
        }
        Ok(o)
    }

    fn trace(
        &self,
        w: &mut MainPmd,
        name: &str,
        text: &str,
        packet: Option<&str>,
        actions: Option<Vec<Action>>,
    ) -> Result<String, String> {
        let bridge = super::bridges(w).find(|(_, n)| *n == name).map(|(id, _)| id);
        let (bridge, metadata, composed, tunnel_key, queue) = match bridge {
            Some(bridge) if !is_datapath_flow(text) => {
                let (text, queue) = without_queue(text)?;
                let numbered = number_port(w, bridge, &text);
                let metadata = parse_match(&numbered).map_err(|e| format!("Bad openflow flow syntax: {text}: {e}"))?;
                let composed = compose(&metadata);
                (bridge, metadata, composed, None, queue)
            }
            None if !is_datapath_flow(text) => return Err(format!("{name}: unknown bridge")),
            None if !(name.is_empty() || w.is_datapath(name)) => return Err("Cannot find the datapath".into()),
            bridge => {
                let (bridge, metadata, tunnel_key) = arrival(w, bridge, text)?;
                let composed = match self.payload {
                    None => frame_text::compose(text, None),
                    Some(n) => frame_text::compose_with(text, n.into()),
                };
                (bridge, metadata, composed, tunnel_key, priority(text)?)
            }
        };
        // A flow of ovs-dpctl(8) may say that nothing is known of what the packet begins with: `packet_type(ns=1,id=0)`.
        let unknown = match is_datapath_flow(text) {
            true => metadata.packet_type().is_some_and(|t| t != PacketType::ETHERNET && t.kind() == 0),
            false => metadata.get(F::EthType).1 == 0,
        };
        let untyped = packet.is_none() && unknown;
        let (metadata, packet, given) = match packet {
            None => (metadata, composed?, false),
            Some(hex) => {
                let packet = parse_hex(hex).ok_or("Trailing garbage in packet data")?;
                if packet.len() < ETHERNET {
                    return Err("Packet data too short for Ethernet".into());
                }
                (arrived(&metadata), packet, true)
            }
        };
        let (effects, ct_next) = (self.effects || given, self.ct_next.clone());
        let names = self.names;
        let request =
            TraceRequest { bridge, metadata, packet, untyped, effects, names, queue, tunnel_key, ct_next, actions };
        Ok(w.trace(request))
    }
}

/// The queue of a packet's priority, which the kernel's packets have and OpenFlow has no field for.
fn queue(text: &str) -> Result<u16, String> {
    let number = frame_text::number(text).and_then(|n| u16::try_from(n).ok());
    number.ok_or_else(|| format!("skb_priority={text}: expected the number of a queue"))
}

/// That of a flow in the words of ovs-dpctl(8).
fn priority(text: &str) -> Result<Option<u16>, String> {
    Ok(frame_text::word(text, "skb_priority").map(queue).transpose()?.filter(|q| *q != 0))
}

/// A flow of OpenFlow without its `skb_priority`, and the queue that this says.
fn without_queue(text: &str) -> Result<(String, Option<u16>), String> {
    let (words, rest): (Vec<&str>, Vec<&str>) =
        text.split(',').map(str::trim).partition(|w| w.starts_with("skb_priority="));
    let queue = words.first().map(|w| queue(w.trim_start_matches("skb_priority="))).transpose()?;
    Ok((rest.join(","), queue.filter(|q| *q != 0)))
}

/// Whether a flow is in the words of ovs-dpctl(8).
fn is_datapath_flow(text: &str) -> bool {
    text.contains("eth(") || text.contains("in_port(")
}

/// Where a packet of a flow in the words of ovs-dpctl(8) comes in, its metadata, and if it came by a tunnel, whether
/// with a key. Without a port, it is the bridge's own one.
fn arrival(w: &mut MainPmd, bridge: Option<BridgeId>, text: &str) -> Result<(BridgeId, Match, Option<bool>), String> {
    let tunnel = frame_text::text_of(text, "tunnel");
    let kind = frame_text::packet_type(text)?;
    let (mut m, mut tunnel_key) = (Match::new(), None);
    let port = match frame_text::word(text, "in_port") {
        Some(port) if tunnel.is_some() => {
            let (bridge, no, seen, key) = tunnel_text::arrival(w, tunnel.unwrap_or_default(), port, kind)?;
            (m, tunnel_key) = (seen, Some(key));
            (bridge, no)
        }
        None => (bridge.ok_or("the flow has no in_port()")?, PortNo::LOCAL),
        Some(port) => {
            let number = port.parse().ok().and_then(|n| w.switch.port_of_device(DeviceId(n)));
            let named = || w.switch.bridges().find_map(|(id, b)| Some((id, b.port_by_name(port)?.no)));
            number.or_else(named).ok_or_else(|| format!("in_port({port}): no port of the datapath"))?
        }
    };
    m.set(F::InPort, port.1.0.into());
    if let Some(kind) = kind.filter(|k| *k != PacketType::ETHERNET) {
        m.set(F::PacketType, kind.0.into());
    }
    for (name, f) in [("skb_mark", F::PktMark), ("ct_zone", F::CtZone), ("ct_mark", F::CtMark)] {
        if let Some(v) = frame_text::word(text, name).and_then(frame_text::number) {
            m.set(f, v.into());
        }
    }
    if let Some(state) = frame_text::word(text, "ct_state") {
        let v = match frame_text::number(state) {
            Some(v) => v as u32,
            None => switch::parse_ct_state(&state.replace('+', ","))?,
        };
        m.set(F::CtState, v.into());
    }
    Ok((port.0, m, tunnel_key))
}

/// The fields of a match that a packet may have when it arrives: no registers.
fn arrived(m: &Match) -> Match {
    let mut out = Match::new();
    let arrives = |name: &str| ["in_port", "tun_", "ct_", "pkt_mark"].iter().any(|p| name.starts_with(p));
    for (f, v, mask) in m.fields().into_iter().filter(|(f, _, _)| arrives(f.def().name)) {
        out.require(f);
        out.set_masked(f, v, mask);
    }
    out
}

/// The text of a flow with the number of its ingress port in place of a name.
fn number_port(w: &MainPmd, bridge: switch::BridgeId, text: &str) -> String {
    let word = |f: &str| {
        let name = f.trim().strip_prefix("in_port=")?.trim_matches('"');
        let port = w.switch.bridge(bridge)?.port_by_name(name)?;
        Some(format!("in_port={}", port.no))
    };
    // White space between fields separates them as commas do.
    let fields = text.split([',', ' ', '\t', '\n']).map(str::trim).filter(|f| !f.is_empty());
    let words: Vec<String> = fields.map(|f| word(f).unwrap_or_else(|| f.to_string())).collect();
    words.join(",")
}

fn parse_hex(s: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        s.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(|p| p.iter().fold(0, |v, d| v << 4 | d)).collect())
}

fn mac(m: &Match, f: F) -> Mac {
    Mac::from_u64(m.get(f).0 as u64)
}

fn v4(m: &Match, f: F) -> Ipv4Addr {
    Ipv4Addr::from(m.get(f).0 as u32)
}

/// Makes a packet with the fields that a match gives exactly.
fn compose(m: &Match) -> Result<Vec<u8>, String> {
    let (src, dst) = (mac(m, F::EthSrc), mac(m, F::EthDst));
    let kind = m.get(F::EthType).0;
    let mut p = match kind {
        ETH_ARP => {
            let op = m.get(F::ArpOp).0 as u16;
            let mut p = build::arp(op, dst, mac(m, F::ArpSha), v4(m, F::ArpSpa), mac(m, F::ArpTha), v4(m, F::ArpTpa));
            if let Some(b) = p.get_mut(6..12) {
                b.copy_from_slice(&src[..]);
            }
            p
        }
        ETH_IPV4 | ETH_IPV6 => {
            ip(m, dst, src, kind == ETH_IPV6).ok_or("the flow's addresses are of different families")?
        }
        _ => {
            let kind = if kind == 0 { 0x05ff } else { kind as u16 };
            let mut p = [*dst, *src].concat();
            p.extend_from_slice(&kind.to_be_bytes());
            match kind {
                ETH_NSH => p.extend(nsh(m).ok_or("nsh_mdtype: expected 1 or 2")?),
                kind if is_mpls(kind) => {
                    let stack = [F::MplsLse, F::MplsLse1, F::MplsLse2].map(|f| m.get(f).0 as u32);
                    let n = stack.iter().rposition(|e| *e != 0).map_or(1, |i| i + 1);
                    stack.iter().take(n).for_each(|e| p.extend(e.to_be_bytes()));
                }
                _ => {}
            }
            p.resize(p.len().max(60), 0);
            p
        }
    };
    let tci = m.get(F::VlanTci).0 as u16;
    if tci & 0x1000 != 0 {
        let tag = (tci & !0x1000).to_be_bytes();
        p.splice(12..12, [0x81, 0x00, tag[0], tag[1]]);
    }
    Ok(p)
}

/// A network service header with the fields of a match.
fn nsh(m: &Match) -> Option<Vec<u8>> {
    let of = |f: F| m.get(f).0 as u32;
    let header = Nsh {
        flags: of(F::NshFlags) as u8,
        ttl: of(F::NshTtl) as u8,
        md_type: of(F::NshMdtype) as u8,
        next: of(F::NshNp) as u8,
        path: of(F::NshSpi),
        index: of(F::NshSi) as u8,
        context: [F::NshC1, F::NshC2, F::NshC3, F::NshC4].map(of),
        ..Nsh::default()
    };
    header.with(&[])
}

/// `nw_frag=later` (ovs-fields(7)).
const FRAG_LATER: u16 = 2;

fn ip(m: &Match, dst: Mac, src: Mac, v6: bool) -> Option<Vec<u8>> {
    let proto = m.get(F::IpProto).0 as u8;
    let word = |f: F| (m.get(f).0 as u16).to_be_bytes();
    let mut body = Vec::new();
    match proto {
        ipproto::TCP => {
            body.extend([word(F::TcpSrc), word(F::TcpDst)].concat());
            body.extend([0; 8]);
            body.extend(((m.get(F::TcpFlags).0 as u16 & 0xfff) | 5 << 12).to_be_bytes());
            body.extend([0; 6]);
        }
        ipproto::UDP => {
            body.extend([word(F::UdpSrc), word(F::UdpDst)].concat());
            body.extend([0, 8, 0, 0]);
        }
        ipproto::SCTP => {
            body.extend([word(F::SctpSrc), word(F::SctpDst)].concat());
            body.extend([0; 8]);
        }
        ipproto::ICMP => {
            body.extend([m.get(F::IcmpType).0 as u8, m.get(F::IcmpCode).0 as u8]);
            body.extend([0; 6]);
        }
        ipproto::ICMPV6 => {
            let kind = m.get(F::Icmpv6Type).0 as u8;
            body.extend([kind, m.get(F::Icmpv6Code).0 as u8]);
            body.extend([0; 6]);
            if matches!(kind, 135 | 136) {
                body.extend(m.get(F::NdTarget).0.to_be_bytes());
                let (option, f) = if kind == 135 { (1, F::NdSll) } else { (2, F::NdTll) };
                body.extend([option, 1]);
                body.extend(*mac(m, f));
            }
        }
        _ => {}
    }
    let (s, d): (IpAddr, IpAddr) = if v6 {
        (Ipv6Addr::from(m.get(F::Ipv6Src).0).into(), Ipv6Addr::from(m.get(F::Ipv6Dst).0).into())
    } else {
        (v4(m, F::IpSrc).into(), v4(m, F::IpDst).into())
    };
    let ttl = m.get(F::IpTtl).0 as u8;
    let fragment = m.get(F::IpFrag).0 as u16;
    let later = fragment & FRAG_LATER != 0;
    if later {
        // The transport header is in the first one.
        body = vec![0; 8];
    }
    let mut next = proto;
    if v6 && fragment != 0 {
        // Eight octets behind the first, or the first, with more behind it (RFC 8200 section 4.5).
        body.splice(0..0, [proto, 0, 0, if later { 8 } else { 1 }, 0, 0, 0, 0]);
        next = ipproto::FRAGMENT;
    }
    let mut p = build::ip_packet(dst, src, s, d, next, ttl, &body)?;
    if let (false, true, Some(b)) = (v6, fragment != 0, p.get_mut(20..22)) {
        // The same in IPv4 (RFC 791 section 3.1).
        b.copy_from_slice(if later { &[0, 1] } else { &[0x20, 0] });
        checksum::set_ipv4(&mut p, 14);
    }
    let tos = m.get(F::NwTos).0 as u8;
    if let (false, true, Some(b)) = (v6, tos != 0, p.get_mut(15)) {
        *b = tos;
        checksum::set_ipv4(&mut p, 14);
    }
    if let Some(h) = Headers::parse(&p) {
        checksum::set_l4(&mut p, &h);
    }
    Some(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_the_flows_fields() {
        for flow in [
            "in_port=1,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80,nw_ttl=9",
            "udp6,ipv6_src=fd00::1,ipv6_dst=fd00::2,udp_dst=53",
            "icmp,nw_src=10.0.0.1,icmp_type=8",
            "arp,arp_op=2,arp_spa=10.0.0.1,arp_tpa=10.0.0.9,dl_src=02:00:00:00:00:05",
            "dl_vlan=7,ip,nw_dst=10.0.0.2",
            "udp,nw_src=10.0.0.1,nw_frag=first,udp_dst=53",
            "udp,nw_src=10.0.0.1,nw_frag=later,udp_dst=0",
            "tcp6,ipv6_src=fd00::1,nw_frag=first,tcp_dst=80",
            "ipv6,ipv6_src=fd00::1,nw_frag=later",
            "dl_type=0x894f,nsh_mdtype=1,nsh_ttl=63,nsh_np=3,nsh_spi=0x123456,nsh_si=255,nsh_c1=1,nsh_c4=0xffffffff",
            "mpls,mpls_label=7,mpls_bos=1,mpls_ttl=64",
        ] {
            let m = parse_match(flow).expect("a match");
            let p = compose(&m).expect("a packet");
            let mut key = openflow_rs::FlowKey::new();
            switch::extract::extract(&p, switch::extract::TAGS, &mut key);
            key.set(F::InPort, m.get(F::InPort).0);
            assert!(m.matches(&key), "{flow}: {p:02x?}");
        }
        assert_eq!(parse_hex("0a 0B"), Some(vec![10, 11]));
        assert_eq!((parse_hex("abc"), parse_hex("zz")), (None, None));
    }
}
