//! Actions that leave flows behind: by which next hop a connection came (`commit_ecmp_nh`), and which backend serves a client
//! (`commit_lb_aff`). What is learned goes with the flow that learned it.

use super::calls::{number, word};
use super::{Error, Site};
use crate::encode::of::{self, flag};
use crate::encode::tables;
use logical_flow::action::Call;
use openflow_rs::action::{LearnAction, LearnDst, LearnSpec, LearnSrc};
use openflow_rs::{Action, FieldId, Subfield};
use std::net::IpAddr;

/// Seconds that a connection's next hop is remembered without a packet, and altogether: the next packet learns it anew.
const NEXT_HOP_IDLE: u16 = 20;
const NEXT_HOP_LONGEST: u16 = 30;

/// The new flow matches `field` with what this packet has in `from`.
fn copied(field: FieldId, from: FieldId) -> LearnSpec {
    LearnSpec { src: LearnSrc::Field(Subfield::full(from)), dst: LearnDst::Match(Subfield::full(field)) }
}

fn matched(field: FieldId, value: u128) -> LearnSpec {
    let s = Subfield::full(field);
    LearnSpec { src: LearnSrc::Imm(value, s.n_bits), dst: LearnDst::Match(s) }
}

fn loaded(to: Subfield, value: u128) -> LearnSpec {
    LearnSpec { src: LearnSrc::Imm(value, to.n_bits), dst: LearnDst::Load(to) }
}

fn flagged(bit: u32) -> LearnSpec {
    let n = bit.trailing_zeros();
    loaded(of::bits(of::FLAGS, n, n), 1)
}

/// A transport protocol: its number and its ports.
fn transport(name: Option<&str>) -> Option<(u128, FieldId, FieldId)> {
    Some(match name? {
        "tcp" => (6, FieldId::TcpSrc, FieldId::TcpDst),
        "udp" => (17, FieldId::UdpSrc, FieldId::UdpDst),
        "sctp" => (132, FieldId::SctpSrc, FieldId::SctpDst),
        _ => return None,
    })
}

fn addresses(v6: bool) -> (u128, FieldId, FieldId) {
    if v6 { (0x86dd, FieldId::Ipv6Src, FieldId::Ipv6Dst) } else { (0x0800, FieldId::IpSrc, FieldId::IpDst) }
}

fn bad(what: &str) -> Error {
    Error::Unsupported(format!("{what} does not parse"))
}

/// `commit_ecmp_nh(ipv6 = BOOLEAN, proto = PROTOCOL)`: remembers the connection in both directions, the original one with the
/// Ethernet address that it came from.
pub(super) fn next_hop(call: &Call, out: &mut Vec<Action>) -> Result<(), Error> {
    let v6 = word(call, "ipv6") == Some("true");
    let (proto, tp_src, tp_dst) = transport(word(call, "proto")).ok_or_else(|| bad("commit_ecmp_nh: proto"))?;
    let (ether, src, dst) = addresses(v6);
    for reply in [false, true] {
        let pair =
            |a: FieldId, b: FieldId| if reply { [copied(a, b), copied(b, a)] } else { [copied(a, a), copied(b, b)] };
        let mut specs = vec![copied(of::DATAPATH, of::DATAPATH)];
        if !reply {
            specs.push(copied(FieldId::EthSrc, FieldId::EthSrc));
        }
        specs.push(matched(FieldId::EthType, ether));
        specs.extend(pair(src, dst));
        specs.push(matched(FieldId::IpProto, proto));
        specs.extend(pair(tp_src, tp_dst));
        specs.push(flagged(flag::LOOKUP_COMMIT_ECMP_NH));
        out.push(Action::Learn(Box::new(LearnAction {
            table: if reply { tables::ECMP_NH } else { tables::ECMP_NH_MAC },
            idle_timeout: NEXT_HOP_IDLE,
            hard_timeout: NEXT_HOP_LONGEST,
            delete_learned: true,
            specs,
            ..LearnAction::default()
        })));
    }
    Ok(())
}

/// An address with a port or without; an IPv6 address with a port is in brackets.
fn endpoint(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(a) = text.parse::<std::net::SocketAddr>() {
        return Some((a.ip(), Some(a.port()).filter(|p| *p != 0)));
    }
    Some((text.trim_matches(['[', ']']).parse().ok()?, None))
}

fn value(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(a) => u32::from(a).into(),
        IpAddr::V6(a) => a.into(),
    }
}

/// `commit_lb_aff(vip = "…", backend = "…", proto = PROTOCOL, timeout = SECONDS)`: the client's further connections to the
/// service go to the same backend, until it has been silent for so long.
pub(super) fn affinity(call: &Call, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    let end = |name: &str| word(call, name).and_then(endpoint).ok_or_else(|| bad(&format!("commit_lb_aff: {name}")));
    let ((vip, vip_port), (backend, backend_port)) = (end("vip")?, end("backend")?);
    if vip.is_ipv4() != backend.is_ipv4() {
        return Err(Error::Unsupported(format!("commit_lb_aff: {vip} and {backend} are of two families")));
    }
    let (ether, src, dst) = addresses(vip.is_ipv6());
    let mut specs = vec![
        copied(of::DATAPATH, of::DATAPATH),
        matched(FieldId::EthType, ether),
        copied(src, src),
        matched(dst, value(vip)),
    ];
    if let Some(port) = vip_port {
        let (proto, _, tp_dst) = transport(word(call, "proto")).ok_or_else(|| bad("commit_lb_aff: proto"))?;
        specs.extend([matched(FieldId::IpProto, proto), matched(tp_dst, port.into())]);
    }
    specs.push(flagged(flag::USE_LB_AFF_SESSION));
    let to = if vip.is_ipv6() { FieldId::XxReg1 } else { FieldId::Reg4 };
    specs.push(loaded(Subfield::full(to), value(backend)));
    if let Some(port) = backend_port {
        specs.push(loaded(of::bits(FieldId::Reg2, 0, 15), port.into()));
    }
    out.push(Action::Learn(Box::new(LearnAction {
        table: tables::CHK_LB_AFFINITY,
        idle_timeout: number(call, "timeout")
            .and_then(|t| u16::try_from(t).ok())
            .ok_or_else(|| bad("commit_lb_aff: timeout"))?,
        cookie: u64::from(site.cookie),
        delete_learned: true,
        specs,
        ..LearnAction::default()
    })));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use logical_flow::action;

    fn learned(text: &str) -> Vec<String> {
        let parsed = action::parse(text).unwrap();
        let site = Site {
            egress: false,
            stage: 7,
            datapath: ovn_schema::DatapathKey(1),
            is_switch: true,
            snat_zone_given: false,
            port: &|_| None,
            resident: &|_| false,
            tunnel: &|_| None,
            collects: &|_| true,
            group: &|_| openflow_rs::GroupId(0),
            meter: &|_| None,
            dhcp_option: &|_, _| None,
            controller_meter: None,
            cookie: 0xabcd,
            flow: ovn_schema::Uuid::nil(),
        };
        let actions = super::super::actions(&parsed.list, &site).unwrap();
        actions.iter().map(|a| openflow_rs::text::actions_to_string(std::slice::from_ref(a))).collect()
    }

    #[test]
    fn a_neighbour_of_evpn_is_looked_up_by_its_address() {
        for (field, register) in [("arp.tpa", "NXM_NX_REG0[]"), ("nd.target", "NXM_NX_XXREG0[]")] {
            let text = learned(&format!("reg9[5] = chk_evpn_arp({field});")).join(",");
            assert!(text.contains("resubmit(,113),move:NXM_NX_REG10[25]->"), "{text}");
            assert!(text.contains(&format!("pop:{register}")), "{text}");
        }
    }

    #[test]
    fn a_next_hop_is_learned_for_both_directions() {
        let l = learned("commit_ecmp_nh(ipv6 = false, proto = tcp);");
        assert_eq!(l.len(), 2);
        assert!(l[0].starts_with("learn(table=100,idle_timeout=20,hard_timeout=30,delete_learned,"), "{}", l[0]);
        assert!(l[0].contains("tcp_src") || l[0].contains("TCP_SRC"), "{}", l[0]);
        assert!(l[1].starts_with("learn(table=101,idle_timeout=20,hard_timeout=30,delete_learned,"), "{}", l[1]);
        assert!(!l[1].contains("ETH_SRC"), "{}", l[1]);
        assert!(learned("commit_ecmp_nh(ipv6 = true, proto = udp);")[0].contains("0x86dd"));
    }

    #[test]
    fn a_client_keeps_its_backend() {
        let l =
            learned(r#"commit_lb_aff(vip = "172.16.0.10:8080", backend = "10.0.0.2:80", proto = tcp, timeout = 30);"#);
        assert!(l[0].starts_with("learn(table=102,idle_timeout=30,delete_learned,cookie=0xabcd,"), "{}", l[0]);
        assert!(l[0].contains("load:0xa000002->NXM_NX_REG4[]"), "{}", l[0]);
        assert!(l[0].contains("load:0x50->NXM_NX_REG2[0..15]"), "{}", l[0]);
        let v6 =
            learned(r#"commit_lb_aff(vip = "[fd00::1]:80", backend = "[fd01::2]:8080", proto = udp, timeout = 5);"#);
        assert!(v6[0].contains("XXREG1"), "{}", v6[0]);
        let all = learned(r#"commit_lb_aff(vip = "172.16.0.10", backend = "10.0.0.2", timeout = 30);"#);
        assert!(!all[0].contains("nw_proto") && !all[0].contains("REG2"), "{}", all[0]);
    }
}
