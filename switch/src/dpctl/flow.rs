//! What packets look like, in the words of ovs-dpctl(8).

use super::hexadecimal;
use crate::conntrack::flag;
use crate::extract::mac_text;
use openflow_rs::message::TlvMap;
use openflow_rs::{FieldId as F, FlowKey};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The flags of a connection's state, by name.
pub(crate) const STATES: [(&str, u32); 8] = [
    ("new", flag::NEW),
    ("est", flag::EST),
    ("rel", flag::REL),
    ("rpl", flag::RPL),
    ("inv", flag::INV),
    ("trk", flag::TRK),
    ("snat", flag::SNAT),
    ("dnat", flag::DNAT),
];

/// `name=value` for each field, with a mask where not all of it counts, and without those of which nothing does.
fn listed(k: &FlowKey, m: &FlowKey, list: &[(&str, F)]) -> String {
    let text = |f: F, v: u128| match f {
        F::EthSrc | F::EthDst | F::ArpSha | F::ArpTha | F::NdSll | F::NdTll => mac_text(v),
        F::IpSrc | F::IpDst | F::ArpSpa | F::ArpTpa | F::CtNwSrc | F::CtNwDst | F::TunSrc | F::TunDst => {
            Ipv4Addr::from(v as u32).to_string()
        }
        F::Ipv6Src | F::Ipv6Dst | F::NdTarget | F::CtIpv6Src | F::CtIpv6Dst | F::TunIpv6Src | F::TunIpv6Dst => {
            Ipv6Addr::from(v).to_string()
        }
        F::TunId | F::TunTos => format!("{v:#x}"),
        F::NwTos | F::Ipv6Label => hexadecimal(v),
        _ => v.to_string(),
    };
    // Masks of numbers are hexadecimal.
    let masked = |f: F, mask: u128| match text(f, mask) {
        t if t == mask.to_string() => format!("{mask:#x}"),
        t => t,
    };
    let parts = list.iter().filter(|(_, f)| m.get(*f) != 0).map(|(name, f)| match m.get(*f) {
        mask if mask == f.full_mask() => format!("{name}={}", text(*f, k.get(*f))),
        mask => format!("{name}={}/{}", text(*f, k.get(*f) & mask), masked(*f, mask)),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// `eth(…),eth_type(…),ipv4(…),…` of the bits that count.
pub(crate) fn text(k: &FlowKey, m: &FlowKey) -> String {
    let group = |name: &str, list: &[(&str, F)], end: &str| match (listed(k, m, list), end) {
        (parts, "") if parts.is_empty() => String::new(),
        (parts, end) if parts.is_empty() || end.is_empty() => format!("{name}({parts}{end})"),
        (parts, end) => format!("{name}({parts},{end})"),
    };
    let mut parts = vec![group("eth", &[("src", F::EthSrc), ("dst", F::EthDst)], "")];
    let tci = k.get(F::VlanTci);
    let tagged = tci & 0x1000 != 0;
    let mut inside = Vec::new();
    let kind = k.get(F::EthType);
    inside.push(format!("eth_type({kind:#06x})"));
    let proto = ("proto", F::IpProto);
    let frag = match k.get(F::IpFrag) {
        0 => "frag=no",
        1 => "frag=first",
        _ => "frag=later",
    };
    match kind {
        0x800 => {
            let list = [("src", F::IpSrc), ("dst", F::IpDst), proto, ("tos", F::NwTos), ("ttl", F::IpTtl)];
            inside.push(group("ipv4", &list, frag));
        }
        0x86dd => {
            let (tos, ttl) = (("tclass", F::NwTos), ("hlimit", F::IpTtl));
            let list = [("src", F::Ipv6Src), ("dst", F::Ipv6Dst), ("label", F::Ipv6Label), proto, tos, ttl];
            inside.push(group("ipv6", &list, frag));
        }
        0x806 | 0x8035 => {
            let (sip, tip) = (("sip", F::ArpSpa), ("tip", F::ArpTpa));
            let list = [sip, tip, ("op", F::ArpOp), ("sha", F::ArpSha), ("tha", F::ArpTha)];
            inside.push(group("arp", &list, ""));
        }
        _ => {}
    }
    if matches!(kind, 0x800 | 0x86dd) {
        let ports = [("src", F::TcpSrc), ("dst", F::TcpDst)];
        let icmp = [("type", F::IcmpType), ("code", F::IcmpCode)];
        inside.push(match k.get(F::IpProto) {
            // Its ports are in the first fragment.
            _ if frag == "frag=later" => String::new(),
            6 => group("tcp", &ports, ""),
            17 => group("udp", &ports, ""),
            132 => group("sctp", &ports, ""),
            1 => group("icmp", &icmp, ""),
            58 => group("icmpv6", &icmp, ""),
            _ => String::new(),
        });
        let nd = [("target", F::NdTarget), ("sll", F::NdSll), ("tll", F::NdTll)];
        let nd: Vec<_> = nd.into_iter().filter(|(_, f)| k.get(*f) != 0).collect();
        inside.push(group("nd", &nd, ""));
    }
    inside.retain(|p| !p.is_empty());
    let inside = inside.join(",");
    parts.push(match tagged {
        true => {
            let (vid, pcp) = (tci & 0xfff, tci >> 13);
            format!("eth_type({:#06x}),vlan(vid={vid},pcp={pcp}),encap({inside})", k.get(F::VlanTpid))
        }
        false => inside,
    });
    parts.retain(|p| !p.is_empty());
    parts.join(",")
}

/// `name(value)` or `name(value/mask)`, if any bits of the field count.
fn numbered(name: &str, f: F, k: &FlowKey, looked: &FlowKey) -> Option<String> {
    let (value, mask) = (k.get(f) & looked.get(f), looked.get(f));
    match mask {
        0 => None,
        mask if mask == f.full_mask() => Some(format!("{name}({})", hexadecimal(value))),
        mask => Some(format!("{name}({}/{mask:#x})", hexadecimal(value))),
    }
}

/// What the packet's mark and connection tracking said of it, a part each.
pub(crate) fn connection(k: &FlowKey, looked: &FlowKey) -> Vec<String> {
    let mut parts: Vec<String> = numbered("skb_mark", F::PktMark, k, looked).into_iter().collect();
    let (state, bits) = (k.get(F::CtState) as u32, looked.get(F::CtState) as u32);
    let flags: String = STATES
        .iter()
        .filter(|(_, f)| bits & f != 0)
        .map(|(name, f)| format!("{}{name}", if state & f != 0 { '+' } else { '-' }))
        .collect();
    if !flags.is_empty() {
        parts.push(format!("ct_state({flags})"));
    }
    for (name, f) in [("ct_zone", F::CtZone), ("ct_mark", F::CtMark), ("ct_label", F::CtLabel)] {
        parts.extend(numbered(name, f, k, looked));
    }
    let (name, src, dst) = match k.get(F::EthType) {
        0x86dd => ("ct_tuple6", F::CtIpv6Src, F::CtIpv6Dst),
        _ => ("ct_tuple4", F::CtNwSrc, F::CtNwDst),
    };
    let ports = [("proto", F::CtNwProto), ("tp_src", F::CtTpSrc), ("tp_dst", F::CtTpDst)];
    let original = listed(k, looked, &[[("src", src), ("dst", dst)].as_slice(), &ports].concat());
    if !original.is_empty() {
        parts.push(format!("{name}({original})"));
    }
    parts
}

/// `tunnel(…)`: what the header of the packet's tunnel said.
pub(crate) fn tunnel(k: &FlowKey, looked: &FlowKey, tlv: &[TlvMap]) -> String {
    let ends = [("src", F::TunSrc), ("dst", F::TunDst), ("ipv6_src", F::TunIpv6Src), ("ipv6_dst", F::TunIpv6Dst)];
    let fields = [[("tun_id", F::TunId)].as_slice(), &ends, &[("tos", F::TunTos), ("ttl", F::TunTtl)]].concat();
    let mut parts = vec![listed(k, looked, &fields)];
    parts.retain(|p| !p.is_empty());
    let options = options(k, looked, tlv);
    if !options.is_empty() {
        parts.push(format!("geneve({options})"));
    }
    if looked.get(F::TunId) != 0 {
        parts.push("flags(+key)".into());
    }
    format!("tunnel({})", parts.join(","))
}

/// All options that a packet of Geneve has, if any of them count, with the values that do.
fn options(k: &FlowKey, looked: &FlowKey, tlv: &[TlvMap]) -> String {
    let there = |k: &FlowKey, f: F| f.presence().is_some_and(|(w, bit)| k.0.get(w).is_some_and(|x| x & bit != 0));
    let fields = tlv.iter().filter_map(|m| Some((m, crate::tunnel::metadata_field(m.index)?)));
    if !fields.clone().any(|(_, f)| looked.get(f) != 0 || there(looked, f)) {
        return String::new();
    }
    let option = |(m, f): (&TlvMap, F)| {
        let all = openflow_rs::ones(u32::from(m.len) * 8) & f.full_mask();
        let value = match looked.get(f) & all {
            0 => String::new(),
            mask if mask == all => format!(",{:#x}", k.get(f) & mask),
            mask => format!(",{:#x}/{mask:#x}", k.get(f) & mask),
        };
        let kind = hexadecimal(m.kind.into());
        format!("{{class={:#x},type={kind},len={}{value}}}", m.class, m.len)
    };
    fields.filter(|(_, f)| there(k, *f)).map(option).collect()
}
