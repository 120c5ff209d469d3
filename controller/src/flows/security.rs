//! Port security (ovn-nb(5), column `port_security` of Logical_Switch_Port): which addresses a port may use.

use super::{Seen, cookie, emit};
use crate::of::{self, flag};
use crate::tables as t;
use openflow_rs::{Action, FieldId, Match};
use ovn_schema::{Uuid, sb};
use std::net::{IpAddr, Ipv6Addr};

/// One entry: an Ethernet address and the IP addresses that go with it.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    mac: u128,
    /// The Ethernet addresses of IPv4 and IPv6 packets: of a router that speaks VRRP (RFC 9568) the virtual ones, of which
    /// its ARP and ND messages tell from its own.
    packets: (u128, u128),
    v4: Vec<(u128, u128)>,
    /// Where packets to all hosts of an address's network go.
    broadcasts: Vec<u128>,
    v6: Vec<(u128, u128)>,
}

/// Parses `MAC [IP[/PREFIX]]…` or `VRRPv3 MAC [VIRTUAL-MAC]… [IP[/PREFIX]]…`; what is no address ends the entry.
fn parse(text: &str) -> Option<Entry> {
    let mut words = text.split([' ', ',']).filter(|w| !w.is_empty());
    let first = words.next()?;
    let vrrp = first == "VRRPv3";
    let mac = logical_flow::constant::ethernet(if vrrp { words.next()? } else { first })?;
    let mut e = Entry { mac, packets: (mac, mac), v4: Vec::new(), broadcasts: Vec::new(), v6: Vec::new() };
    for w in words {
        if let Some(virtual_mac) = logical_flow::constant::ethernet(w).filter(|_| vrrp) {
            // RFC 9568 section 7.3: 00-00-5E-00-01-{VRID} for IPv4, 00-00-5E-00-02-{VRID} for IPv6.
            match virtual_mac >> 8 {
                0x5e_0001 => e.packets.0 = virtual_mac,
                0x5e_0002 => e.packets.1 = virtual_mac,
                _ => {}
            }
            continue;
        }
        let (addr, len) = w.split_once('/').map_or((w, None), |(a, l)| (a, l.parse::<u32>().ok()));
        match addr.parse() {
            Ok(IpAddr::V4(a)) => {
                let len = len.unwrap_or(32).min(32);
                let mask = u128::from(u32::MAX.checked_shl(32 - len).unwrap_or(0));
                let a = u128::from(u32::from(a));
                if len < 32 && a & !mask & 0xffff_ffff != 0 {
                    e.broadcasts.push(a | !mask & 0xffff_ffff);
                }
                // A host address within a network stands for the host; a network address for the network.
                e.v4.push(if a & !mask & 0xffff_ffff == 0 { (a, mask) } else { (a, 0xffff_ffff) });
            }
            Ok(IpAddr::V6(a)) => {
                let len = len.unwrap_or(128).min(128);
                let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
                let a = u128::from(a);
                e.v6.push(if a & !mask == 0 { (a, mask) } else { (a, u128::MAX) });
            }
            Err(_) => break,
        }
    }
    // VRRP without a virtual address is nothing to be checked.
    (!vrrp || e.packets != (mac, mac)).then_some(e)
}

/// The link-local address made from an Ethernet address (RFC 4291 appendix A).
fn link_local(mac: u128) -> u128 {
    let m = &mac.to_be_bytes()[10..];
    let id = [m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]];
    u128::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)) | u128::from(u64::from_be_bytes(id))
}

const IPV4: u128 = 0x0800;
const IPV6: u128 = 0x86dd;
const ARP: u128 = 0x0806;

pub(super) fn run(id: Uuid, p: &sb::PortBinding, dp: u64, view: &mut Seen<'_>) {
    let entries: Vec<Entry> = p.port_security.iter().filter_map(|s| parse(s)).collect();
    if entries.is_empty() {
        return;
    }
    let key = p.tunnel_key as u128;
    let mut w = Writer { view, cookie: cookie(id) };
    let from = Match::new().with(of::DATAPATH, u128::from(dp)).with(of::INPORT, key);
    let to = Match::new().with(of::DATAPATH, u128::from(dp)).with(of::OUTPORT, key);
    w.put(t::CHK_IN_PORT_SEC, 80, from.clone(), w.refuse());
    w.put(t::CHK_IN_PORT_SEC, 95, from.clone().with(FieldId::EthType, ARP), w.inspect());
    w.put(t::CHK_IN_PORT_SEC_ND, 80, from.clone().with(FieldId::EthType, ARP), w.refuse());
    for kind in [135, 136] {
        let nd = nd(from.clone(), kind);
        w.put(t::CHK_IN_PORT_SEC_ND, 80, nd, w.refuse());
    }
    w.put(t::CHK_OUT_PORT_SEC, 80, to.clone(), w.refuse());
    for e in &entries {
        incoming(e, &from, &mut w);
        neighbours(e, &from.clone().with(FieldId::EthSrc, e.mac), &mut w);
        outgoing(e, &to, &mut w);
    }
}

struct Writer<'v, 'a> {
    view: &'v mut Seen<'a>,
    cookie: u64,
}

impl Writer<'_, '_> {
    fn put(&mut self, table: u8, priority: u16, m: Match, actions: Vec<Action>) {
        emit(self.view, table, priority, m, self.cookie, actions);
    }
    fn refuse(&self) -> Vec<Action> {
        vec![of::set_flags(flag::CHECK_PORT_SEC)]
    }
    fn allow(&self) -> Vec<Action> {
        vec![of::clear_flags(flag::CHECK_PORT_SEC)]
    }
    /// ARP and ND are looked into further.
    fn inspect(&self) -> Vec<Action> {
        vec![Action::resubmit(t::CHK_IN_PORT_SEC_ND)]
    }
}

/// An ND message of a type; its hop limit shows that no router forwarded it (RFC 4861 section 7.1).
fn nd(m: Match, kind: u128) -> Match {
    m.with(FieldId::EthType, IPV6).with(FieldId::IpProto, 58).with(FieldId::IpTtl, 255).with(FieldId::Icmpv6Type, kind)
}

fn incoming(e: &Entry, from: &Match, w: &mut Writer<'_, '_>) {
    let table = t::CHK_IN_PORT_SEC;
    if e.v4.is_empty() && e.v6.is_empty() {
        w.put(table, 90, from.clone().with(FieldId::EthSrc, e.mac), w.inspect());
        return;
    }
    let v6 = from.clone().with(FieldId::EthSrc, e.packets.1);
    let from = &from.clone().with(FieldId::EthSrc, e.packets.0);
    for (a, m) in &e.v4 {
        w.put(table, 90, from.clone().with(FieldId::EthType, IPV4).with_masked(FieldId::IpSrc, *a, *m), w.allow());
    }
    if !e.v4.is_empty() {
        let dhcp = from.clone().with(FieldId::EthType, IPV4).with(FieldId::IpProto, 17).with(FieldId::IpSrc, 0);
        let dhcp = dhcp.with(FieldId::IpDst, 0xffff_ffff).with(FieldId::UdpSrc, 68).with(FieldId::UdpDst, 67);
        w.put(table, 90, dhcp, w.allow());
    }
    if e.v6.is_empty() {
        return;
    }
    let from = &v6;
    // Duplicate address detection and multicast listener reports come from no address.
    let multicast = u128::from(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0));
    for kind in [131, 143, 135] {
        let m = from.clone().with(FieldId::EthType, IPV6).with(FieldId::IpProto, 58).with(FieldId::Ipv6Src, 0);
        let m = m.with_masked(FieldId::Ipv6Dst, multicast, 0xffff << 112).with(FieldId::Icmpv6Type, kind);
        let actions = if kind == 135 { w.inspect() } else { w.allow() };
        w.put(table, 90, m.with(FieldId::Icmpv6Code, 0), actions);
    }
    for (a, m) in e.v6.iter().chain(&[(link_local(e.packets.1), u128::MAX)]) {
        w.put(table, 90, from.clone().with(FieldId::EthType, IPV6).with_masked(FieldId::Ipv6Src, *a, *m), w.inspect());
    }
}

fn neighbours(e: &Entry, from: &Match, w: &mut Writer<'_, '_>) {
    let table = t::CHK_IN_PORT_SEC_ND;
    let any = e.v4.is_empty() && e.v6.is_empty();
    let arp = from.clone().with(FieldId::EthType, ARP).with(FieldId::ArpSha, e.packets.0);
    if any {
        w.put(table, 90, arp.clone(), w.allow());
    }
    for (a, m) in &e.v4 {
        w.put(table, 90, arp.clone().with_masked(FieldId::ArpSpa, *a, *m), w.allow());
    }
    for link_layer in [0, e.packets.1] {
        let solicitation = nd(from.clone(), 135).with(FieldId::Icmpv6Code, 0).with(FieldId::NdSll, link_layer);
        w.put(table, 90, solicitation, w.allow());
        let advertisement = nd(from.clone(), 136).with(FieldId::Icmpv6Code, 0).with(FieldId::NdTll, link_layer);
        if e.v6.is_empty() {
            w.put(table, 90, advertisement.clone(), w.allow());
        } else {
            for (a, m) in e.v6.iter().chain(&[(link_local(e.mac), u128::MAX)]) {
                w.put(table, 90, advertisement.clone().with_masked(FieldId::NdTarget, *a, *m), w.allow());
            }
        }
    }
}

fn outgoing(e: &Entry, to: &Match, w: &mut Writer<'_, '_>) {
    let table = t::CHK_OUT_PORT_SEC;
    let [to4, to6] = [e.packets.0, e.packets.1].map(|mac| to.clone().with(FieldId::EthDst, mac));
    w.put(table, 85, to4.clone(), w.allow());
    if to6 != to4 {
        w.put(table, 85, to6.clone(), w.allow());
    }
    if e.v4.is_empty() && e.v6.is_empty() {
        return;
    }
    let v4 = to4.with(FieldId::EthType, IPV4);
    let v6 = to6.with(FieldId::EthType, IPV6);
    w.put(table, 90, v4.clone(), w.refuse());
    w.put(table, 90, v6.clone(), w.refuse());
    if !e.v4.is_empty() {
        let both = [(0xffff_ffff, 0xffff_ffff), (0xe000_0000, 0xf000_0000)];
        let broadcasts: Vec<_> = e.broadcasts.iter().map(|a| (*a, 0xffff_ffff)).collect();
        for (a, m) in e.v4.iter().chain(&broadcasts).chain(&both) {
            w.put(table, 95, v4.clone().with_masked(FieldId::IpDst, *a, *m), w.allow());
        }
    }
    if !e.v6.is_empty() {
        let others = [(link_local(e.packets.1), u128::MAX), (0xffu128 << 120, 0xffu128 << 120)];
        for (a, m) in e.v6.iter().chain(&others) {
            w.put(table, 95, v6.clone().with_masked(FieldId::Ipv6Dst, *a, *m), w.allow());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_as_the_manual_says() {
        let e = parse("80:fa:5b:06:72:b7 10.0.0.4/24 192.168.0.0/16 fe80::1").unwrap();
        assert_eq!(e.v4, [(0x0a00_0004, 0xffff_ffff), (0xc0a8_0000, 0xffff_0000)]);
        assert_eq!(e.v6.len(), 1);
        let e = parse("80:fa:5b:06:72:b7 20.0.0.4/24 10.0.0.4 10.0.0.0/8").unwrap();
        assert_eq!(e.broadcasts, [0x1400_00ff]);
        assert_eq!(parse("nonsense"), None);
        let e = parse("VRRPv3 00:00:00:00:10:01 00:00:5e:00:01:05 00:00:5e:00:02:06 10.0.0.1").unwrap();
        assert_eq!((e.mac, e.packets, e.v4.len()), (0x1001, (0x5e00_0105, 0x5e00_0206), 1));
        assert_eq!(Ipv6Addr::from(link_local(0x5054_0000_0003)).to_string(), "fe80::5254:ff:fe00:3");
    }
}
