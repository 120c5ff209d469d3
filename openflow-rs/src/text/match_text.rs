//! Matches in text.

use super::value::{eth_text, hex, value_text};
use crate::action::{ETH_NSH, PacketType};
use crate::field::{ALL_FIELDS, FieldId as F};
use crate::flow_match::{ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_RARP, Match};
use std::fmt;

struct Out<'a> {
    m: &'a Match,
    s: String,
}

impl Out<'_> {
    fn item(&mut self, name: &str, value: &str) {
        if !self.s.is_empty() {
            self.s.push(',');
        }
        self.s.push_str(name);
        if !value.is_empty() {
            self.s.push('=');
            self.s.push_str(value);
        }
    }

    /// Prints a field under a name, if it is matched.
    fn field(&mut self, id: F, name: &str) {
        let (v, m) = self.m.get(id);
        if m != 0 {
            let text = value_text(id, v, (m != id.full_mask()).then_some(m));
            self.item(name, &text);
        }
    }

    /// A 16-bit number: decimal if whole, else hexadecimal with its mask.
    fn be16(&mut self, id: F, name: &str) {
        let (v, m) = self.m.get(id);
        if m == id.full_mask() {
            self.item(name, &v.to_string());
        } else if m != 0 {
            self.item(name, &format!("{}/{}", hex(v), hex(m)));
        }
    }
}

/// The fields of a network service header. The words of its context belong to metadata of type 1.
fn nsh(o: &mut Out<'_>) {
    for f in [F::NshFlags, F::NshTtl, F::NshMdtype, F::NshNp] {
        o.be16(f, f.def().name);
    }
    let word = |o: &mut Out<'_>, f: F| {
        let (v, m) = o.m.get(f);
        if m == f.full_mask() {
            o.item(f.def().name, &format!("{v:#x}"));
        } else if m != 0 {
            o.item(f.def().name, &format!("{v:#x}/{m:#x}"));
        }
    };
    word(o, F::NshSpi);
    o.be16(F::NshSi, "nsh_si");
    if o.m.exact(F::NshMdtype) == Some(1) {
        [F::NshC1, F::NshC2, F::NshC3, F::NshC4].into_iter().for_each(|f| word(o, f));
    }
}

/// The protocol keyword, and whether it says the IP protocol too.
fn shorthand(m: &Match) -> (Option<&'static str>, bool) {
    if m.lacks_ethernet() {
        return (None, false);
    }
    let proto = m.exact(F::IpProto);
    match m.exact(F::EthType) {
        Some(ETH_IPV4) => match proto {
            Some(1) => (Some("icmp"), true),
            Some(6) => (Some("tcp"), true),
            Some(17) => (Some("udp"), true),
            Some(132) => (Some("sctp"), true),
            _ => (Some("ip"), false),
        },
        Some(ETH_IPV6) => match proto {
            Some(58) => (Some("icmp6"), true),
            Some(6) => (Some("tcp6"), true),
            Some(17) => (Some("udp6"), true),
            Some(132) => (Some("sctp6"), true),
            _ => (Some("ipv6"), false),
        },
        Some(0x8847) => (Some("mpls"), false),
        Some(0x8848) => (Some("mplsm"), false),
        Some(ETH_ARP) => (Some("arp"), false),
        Some(ETH_RARP) => (Some("rarp"), false),
        _ => (None, false),
    }
}

fn vlan(o: &mut Out<'_>) {
    let (v, m) = o.m.get(F::VlanTci);
    if m == 0 {
        return;
    }
    let (vid, pcp) = (m & 0xfff, m & 0xe000);
    if m & v & 0x1000 != 0 && (vid == 0 || vid == 0xfff) && (pcp == 0 || pcp == 0xe000) && (vid | pcp) != 0 {
        if vid != 0 {
            o.item("dl_vlan", &(v & 0xfff).to_string());
        }
        if pcp != 0 {
            o.item("dl_vlan_pcp", &(v >> 13).to_string());
        }
    } else if m == 0xffff {
        o.item("vlan_tci", &format!("0x{v:04x}"));
    } else {
        o.item("vlan_tci", &format!("0x{v:04x}/0x{m:04x}"));
    }
}

fn layer3_and_4(o: &mut Out<'_>, skip_proto: bool) {
    let et = o.m.exact(F::EthType);
    let arp = matches!(et, Some(ETH_ARP | ETH_RARP));
    match et {
        Some(ETH_IPV6) => {
            o.field(F::Ipv6Src, "ipv6_src");
            o.field(F::Ipv6Dst, "ipv6_dst");
            let (v, m) = o.m.get(F::Ipv6Label);
            if m == F::Ipv6Label.full_mask() {
                o.item("ipv6_label", &format!("0x{v:05x}"));
            } else if m != 0 {
                o.item("ipv6_label", &format!("0x{v:05x}/0x{m:05x}"));
            }
        }
        Some(ETH_ARP | ETH_RARP) => {
            o.field(F::ArpSpa, "arp_spa");
            o.field(F::ArpTpa, "arp_tpa");
        }
        Some(0x8847 | 0x8848) => {
            for f in [F::MplsLabel, F::MplsTc, F::MplsTtl, F::MplsBos] {
                o.field(f, f.def().name);
            }
            for f in [F::MplsLse1, F::MplsLse2] {
                if let (v, 1..) = o.m.get(f) {
                    o.item(f.def().name, &format!("0x{v:08x}"));
                }
            }
            return;
        }
        Some(t) if t == ETH_NSH.into() => return nsh(o),
        _ => {
            o.field(F::IpSrc, "nw_src");
            o.field(F::IpDst, "nw_dst");
        }
    }
    if !skip_proto {
        o.field(F::IpProto, if arp { "arp_op" } else { "nw_proto" });
    }
    if arp {
        o.field(F::ArpSha, "arp_sha");
        o.field(F::ArpTha, "arp_tha");
    }
    let (tos, tm) = o.m.get(F::NwTos);
    if tm & 0xfc != 0 {
        o.item("nw_tos", &(tos & 0xfc).to_string());
    }
    if tm & 3 != 0 {
        o.item("nw_ecn", &(tos & 3).to_string());
    }
    o.field(F::IpTtl, "nw_ttl");
    o.field(F::IpFrag, "nw_frag");
    let proto = o.m.exact(F::IpProto);
    match (et, proto) {
        (Some(ETH_IPV4), Some(1)) => {
            o.be16(F::IcmpType, "icmp_type");
            o.be16(F::IcmpCode, "icmp_code");
        }
        (Some(ETH_IPV6), Some(58)) => {
            o.be16(F::IcmpType, "icmp_type");
            o.be16(F::IcmpCode, "icmp_code");
            o.field(F::NdTarget, "nd_target");
            o.field(F::NdSll, "nd_sll");
            o.field(F::NdTll, "nd_tll");
        }
        _ => {
            o.be16(F::TcpSrc, "tp_src");
            o.be16(F::TcpDst, "tp_dst");
        }
    }
    if proto == Some(6) && !arp {
        o.field(F::TcpFlags, "tcp_flags");
    }
}

fn conntrack(o: &mut Out<'_>) {
    o.field(F::CtState, "ct_state");
    o.be16(F::CtZone, "ct_zone");
    o.field(F::CtMark, "ct_mark");
    o.field(F::CtLabel, "ct_label");
    o.field(F::CtNwSrc, "ct_nw_src");
    o.field(F::CtIpv6Src, "ct_ipv6_src");
    o.field(F::CtNwDst, "ct_nw_dst");
    o.field(F::CtIpv6Dst, "ct_ipv6_dst");
    o.field(F::CtNwProto, "ct_nw_proto");
    o.be16(F::CtTpSrc, "ct_tp_src");
    o.be16(F::CtTpDst, "ct_tp_dst");
}

impl fmt::Display for Match {
    /// As `ovs-ofctl` prints a match, without the priority.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut o = Out { m: self, s: String::new() };
        o.field(F::PktMark, "pkt_mark");
        o.field(F::DpHash, "dp_hash");
        o.field(F::ConjId, "conj_id");
        o.field(F::ActsetOutput, "actset_output");
        conntrack(&mut o);
        if let Some(t) = self.packet_type().filter(|t| *t != PacketType::ETHERNET) {
            o.item("packet_type", &value_text(F::PacketType, t.0.into(), None));
        }
        let (short, skip_proto) = shorthand(self);
        if let Some(s) = short {
            o.item(s, "");
        }
        for i in 0..32 {
            let id = ALL_FIELDS[F::Reg0 as usize + i];
            o.field(id, id.def().name);
        }
        o.field(F::TunId, "tun_id");
        o.field(F::TunSrc, "tun_src");
        o.field(F::TunDst, "tun_dst");
        o.field(F::TunIpv6Src, "tun_ipv6_src");
        o.field(F::TunIpv6Dst, "tun_ipv6_dst");
        o.field(F::TunGbpId, "tun_gbp_id");
        o.field(F::TunGbpFlags, "tun_gbp_flags");
        o.field(F::TunTos, "tun_tos");
        o.field(F::TunTtl, "tun_ttl");
        for id in [F::TunErspanVer, F::TunErspanIdx, F::TunErspanDir, F::TunErspanHwid] {
            o.field(id, id.def().name);
        }
        // Without "tun_" before them, as there; they are read so as well.
        o.field(F::TunGtpuFlags, "gtpu_flags");
        o.field(F::TunGtpuMsgtype, "gtpu_msgtype");
        o.field(F::TunFlags, "tun_flags");
        for i in 0..8 {
            let id = ALL_FIELDS[F::TunMetadata0 as usize + i];
            match (self.presence(id), self.get(id).1) {
                (Some(true), 0) => o.item(id.def().name, ""),
                (Some(false), _) => o.item(id.def().name, "NP"),
                _ => o.field(id, id.def().name),
            }
        }
        o.field(F::Metadata, "metadata");
        o.field(F::InPort, "in_port");
        vlan(&mut o);
        for (id, name) in [(F::EthSrc, "dl_src"), (F::EthDst, "dl_dst")] {
            let (v, m) = self.get(id);
            if m == id.full_mask() {
                o.item(name, &eth_text(v));
            } else if m != 0 {
                o.item(name, &format!("{}/{}", eth_text(v), eth_text(m)));
            }
        }
        if short.is_none()
            && !self.lacks_ethernet()
            && let Some(et) = self.exact(F::EthType)
        {
            o.item("dl_type", &format!("0x{et:04x}"));
        }
        layer3_and_4(&mut o, skip_proto);
        f.write_str(&o.s)
    }
}
