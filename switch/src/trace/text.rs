//! The text of a trace.

use crate::classifier::Wildcards;
use crate::dpctl::flow::STATES;
use crate::drops::DropReason;
use crate::extract::CONTEXT;
use crate::xlate::Kind;
use openflow_rs::action::ETH_NSH;
use openflow_rs::{FieldId as F, FlowKey, Match};
use packet::ipproto;
use std::fmt::Write;

#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) text: String,
    pub(super) subs: Vec<Node>,
}

/// Writes nodes. The last node of a list is not indented further, so that a long chain of tables stays readable.
pub(super) fn render(nodes: &[Node], level: usize, out: &mut String) {
    for (i, n) in nodes.iter().enumerate() {
        let more = usize::from(i + 1 < nodes.len() || n.kind == Kind::Bucket);
        let text = &n.text;
        let pad = |levels: usize| " ".repeat(levels * 4);
        let (at, inner) = (pad(level + more), level + 2 * more);
        let _ = match n.kind {
            Kind::Action => writeln!(out, "{}{text}", pad(level + 1)),
            Kind::Detail => writeln!(out, "{} -> {text}", pad(level + 1)),
            Kind::Warning => writeln!(out, "{} >> {text}", pad(level + 1)),
            Kind::Table | Kind::Bucket => writeln!(out, "{at}{text}"),
            Kind::Bridge => {
                let name = format!("bridge(\"{text}\")");
                writeln!(out, "\n{at}{name}\n{at}{}", "-".repeat(name.len()))
            }
        };
        render(&n.subs, if n.kind == Kind::Action { level + 1 } else { inner }, out);
    }
}

pub(super) fn state_names(state: u32) -> String {
    let names: Vec<&str> = STATES.iter().filter(|(_, b)| state & b != 0).map(|(n, _)| *n).collect();
    names.join("|")
}

/// The fields that a packet of this kind has.
fn packet_fields(k: &FlowKey) -> Vec<F> {
    let kind = k.get(F::EthType);
    let mut v = vec![F::InPort, F::VlanTci, F::EthSrc, F::EthDst, F::EthType];
    match kind {
        0x806 | 0x8035 => v.extend([F::ArpOp, F::ArpSpa, F::ArpTpa, F::ArpSha, F::ArpTha]),
        0x800 => v.extend([F::IpSrc, F::IpDst]),
        0x8847 | 0x8848 => {
            v.extend([F::MplsLabel, F::MplsTc, F::MplsTtl, F::MplsBos]);
            v.extend([F::MplsLse1, F::MplsLse2].into_iter().take(crate::extract::label_count(k).saturating_sub(1)));
        }
        0x86dd => v.extend([F::Ipv6Src, F::Ipv6Dst, F::Ipv6Label]),
        0x894f => {
            v.extend([F::NshFlags, F::NshTtl, F::NshMdtype, F::NshNp, F::NshSpi, F::NshSi]);
            v.extend(CONTEXT);
        }
        _ => {}
    }
    if matches!(kind, 0x800 | 0x86dd) {
        v.extend([F::IpProto, F::IpDscp, F::IpEcn, F::IpTtl, F::IpFrag]);
        match (kind, k.get(F::IpProto)) {
            (_, 6) => v.extend([F::TcpSrc, F::TcpDst, F::TcpFlags]),
            (_, 17) => v.extend([F::UdpSrc, F::UdpDst]),
            (_, 132) => v.extend([F::SctpSrc, F::SctpDst]),
            (0x800, 1) => v.extend([F::IcmpType, F::IcmpCode]),
            (0x86dd, 58) => {
                v.extend([F::Icmpv6Type, F::Icmpv6Code]);
                match k.get(F::Icmpv6Type) {
                    135 => v.extend([F::NdTarget, F::NdSll]),
                    136 => v.extend([F::NdTarget, F::NdTll]),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    v
}

/// A flow as text: all fields of the packet, and metadata that is not zero.
pub(super) fn flow(k: &FlowKey, queue: Option<u16>, recirculated: Option<u32>) -> String {
    let mut m = Match::new();
    for f in packet_fields(k) {
        m.set(f, k.get(f));
    }
    if let kind @ 1.. = k.get(F::PacketType) {
        [F::EthSrc, F::EthDst, F::VlanTci].into_iter().for_each(|f| m.clear(f));
        m.set(F::PacketType, kind);
    }
    for f in openflow_rs::ALL_FIELDS.iter().copied() {
        let d = f.def();
        let pipeline = !crate::extract::PACKET_WORDS.contains(&d.word);
        let whole = !d.name.starts_with("xx") && !d.name.starts_with("xreg");
        let told = matches!(
            f,
            F::InPort | F::InPortOxm | F::ConjId | F::DpHash | F::PacketType | F::ActsetOutput | F::CtState
        );
        if pipeline && whole && !told && k.get(f) != 0 {
            m.set(f, k.get(f));
        }
    }
    let tagged = k.get(F::VlanTci) & 0x1000 != 0;
    let state = k.get(F::CtState) as u32;
    let mut head = String::new();
    if let Some(id) = recirculated {
        let _ = write!(head, "recirc_id={id:#x},");
    }
    if state != 0 {
        let _ = write!(head, "ct_state={},", state_names(state));
    }
    let mut body = m.to_string();
    if let Some(q) = queue {
        // Behind the mark.
        let at = if body.starts_with("pkt_mark=") { body.find(',').map_or(0, |at| at + 1) } else { 0 };
        body.insert_str(at, &format!("skb_priority={q:#x},"));
    }
    if let (true, Some(at)) = (tagged, body.find(",dl_src=")) {
        let tci = k.get(F::Vlan1Tci);
        let inner = match tci & 0x1000 {
            0 => format!(",vlan_tci1=0x{tci:04x}"),
            _ => format!(",dl_vlan1={},dl_vlan_pcp1={}", tci & 0xfff, tci >> 13),
        };
        body.insert_str(at, &inner);
    }
    if k.get(F::EthType) == ETH_NSH.into() {
        body.push_str(",nw_proto=0,nw_tos=0,nw_ecn=0,nw_ttl=0,nw_frag=no");
    }
    if recirculated.is_none() {
        return format!("{head}{body}");
    }
    format!("{head}{}", behind_connection(&body, "eth"))
}

/// Actions of the datapath as one text. `sampled_drops`: where nothing leaves but samples, that is told.
pub(super) fn whole(mut actions: Vec<String>, sampled_drops: bool) -> String {
    let leaves = |a: &String| !["userspace(pid=0,flow_sample(", "sample(", "set("].iter().any(|s| a.starts_with(s));
    if actions.is_empty() || sampled_drops && !actions.iter().any(leaves) {
        actions.push("drop".into());
    }
    actions.join(",")
}

/// Why nothing of a packet is sent, in Open vSwitch's words.
pub(super) fn failure(r: DropReason) -> Option<&'static str> {
    Some(match r {
        DropReason::TooDeep => "Recursion too deep",
        DropReason::TooManyResubmits => "Too many resubmits",
        DropReason::StackTooDeep => "Stack too deep",
        DropReason::TooManyLabels => "Too many MPLS labels",
        DropReason::PacketType => "Unsupported packet type",
        _ => return None,
    })
}

/// Type and code of an IGMP packet, which no field holds; Open vSwitch tells them as ports.
pub(super) fn igmp(k: &FlowKey, packet: &[u8]) -> String {
    let h = packet::Headers::parse(packet).filter(|h| h.is_ipv4() && k.get(F::IpProto) == ipproto::IGMP.into());
    let words = h.and_then(|h| {
        let at = h.l3 + usize::from(*packet.get(h.l3)? & 15) * 4;
        let [kind, code] = packet.get(at..at + 2)? else { return None };
        Some(format!(",tp_src={kind},tp_dst={code}"))
    });
    words.unwrap_or_default()
}

/// The fields that no header of the packet holds, in a megaflow.
const PIPELINE: [F; 10] = [
    F::CtState,
    F::CtZone,
    F::CtMark,
    F::CtLabel,
    F::PktMark,
    F::TunId,
    F::TunSrc,
    F::TunDst,
    F::TunIpv6Src,
    F::TunIpv6Dst,
];

/// The bits of a packet that decided what becomes of it: those that lookups examined, and all of fields that change.
pub(super) fn examined(before: &FlowKey, after: &FlowKey, looked_at: &Wildcards) -> FlowKey {
    let mut bits = FlowKey(*looked_at);
    for f in packet_fields(before).into_iter().filter(|f| before.get(*f) != after.get(*f)) {
        bits.set(f, f.full_mask());
    }
    bits
}

/// The megaflow: the bits that lookups examined. `tunnel_key`: the packet came by a tunnel, and whether its header had a
/// key.
pub(super) fn megaflow(
    k: &FlowKey,
    after: &FlowKey,
    looked_at: &Wildcards,
    recirculated: Option<u32>,
    tunnel_key: Option<bool>,
) -> String {
    let bits = FlowKey(*looked_at);
    let mut m = Match::new();
    for f in PIPELINE {
        m.set_masked(f, k.get(f), bits.get(f));
    }
    if tunnel_key.is_some() {
        for f in [F::TunTos, F::TunTtl, F::TunGbpId, F::TunGbpFlags] {
            m.set_masked(f, k.get(f), bits.get(f));
        }
        options(&mut m, k, &bits);
        mirrored_or_mobile(&mut m, k, &bits);
    }
    let kind = k.get(F::PacketType);
    let link = [F::EthSrc, F::EthDst, F::VlanTci];
    // That there is no tag follows from the EtherType.
    let said = |f: &F| (kind == 0 || !link.contains(f)) && (*f != F::VlanTci || k.get(*f) != 0);
    for f in packet_fields(k).into_iter().filter(said) {
        // Fields that changed count as examined.
        let mask = if k.get(f) == after.get(f) { bits.get(f) } else { f.full_mask() };
        m.set_masked(f, k.get(f), mask);
    }
    m.set(F::InPort, k.get(F::InPort));
    m.set(F::EthType, k.get(F::EthType));
    if matches!(k.get(F::EthType), 0x800 | 0x86dd) {
        m.set(F::IpFrag, k.get(F::IpFrag));
    }
    let mut body = m.to_string();
    if let (Some(key), Some(at)) = (tunnel_key, body.find(",tun_metadata").or_else(|| body.find(",in_port="))) {
        body.insert_str(at, if key { ",tun_flags=+key" } else { ",tun_flags=-key" });
    }
    let id = recirculated.map_or("0".into(), |id| format!("{id:#x}"));
    let kind = if kind == 0 { "eth".into() } else { Match::new().with(F::PacketType, kind).to_string() };
    format!("recirc_id={id},{}", behind_connection(&body, &kind))
}

/// The fields of GTP-U and ERSPAN that lookups examined, as far as its version has them: the bits, without their mask, as
/// in Open vSwitch.
fn mirrored_or_mobile(m: &mut Match, k: &FlowKey, bits: &FlowKey) {
    let own: &[F] = match k.get(F::TunErspanVer) {
        1 => &[F::TunErspanIdx],
        2 => &[F::TunErspanDir, F::TunErspanHwid],
        _ => &[],
    };
    let always = [F::TunErspanVer, F::TunGtpuFlags, F::TunGtpuMsgtype];
    for f in own.iter().copied().chain(always).filter(|f| bits.get(*f) != 0) {
        m.set(f, k.get(f) & bits.get(f));
    }
}

/// The tunnel options that lookups examined: their values, or only whether they are there.
fn options(m: &mut Match, k: &FlowKey, bits: &FlowKey) {
    for f in (0..8).filter_map(crate::tunnel::metadata_field) {
        let Some((word, bit)) = f.presence() else { continue };
        let has = |k: &FlowKey| k.0.get(word).is_some_and(|w| w & bit != 0);
        if !has(bits) {
            continue;
        }
        m.set_presence(f, has(k));
        if has(k) {
            m.set_masked(f, k.get(f), bits.get(f));
        }
    }
}

/// Inserts the packet's type after the fields of the connection.
fn behind_connection(body: &str, packet_type: &str) -> String {
    let (mut words, rest): (Vec<&str>, Vec<&str>) = body.split(',').partition(|w| w.starts_with("ct_"));
    words.push(packet_type);
    words.extend(rest.into_iter().filter(|w| !w.is_empty()));
    words.join(",")
}
