//! Port security (ovn-nb(5), column `port_security` of Logical_Switch_Port): which addresses a port may use.

use super::{Seen, cookie, emit};
use crate::encode::of::{self, flag};
use crate::encode::tables as t;
use openflow_rs::{Action, FieldId, Match, TableId};
use ovn_schema::{DatapathKey, Uuid, sb};
use packet::Mac;
use std::net::{IpAddr, Ipv6Addr};

/// One entry: an Ethernet address and the IP addresses that go with it.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    mac: u128,
    /// The Ethernet addresses of IPv4 packets, with masks: of a router that speaks VRRP (RFC 9568) the virtual ones, of
    /// which its ARP messages tell from its own.
    macs4: Vec<(u128, u128)>,
    /// Those of IPv6 packets, of which ND messages tell.
    macs6: Vec<(u128, u128)>,
    v4: Vec<(u128, u128)>,
    /// Where packets to all hosts of an address's network go.
    broadcasts: Vec<u128>,
    v6: Vec<(u128, u128)>,
}

const ALL: u128 = 0xffff_ffff_ffff;

/// A virtual router's addresses for IPv4 and for IPv6 (RFC 9568 section 7.3): the last octet is the router's number.
const VIRTUAL4: u128 = 0x5e_0001 << 8;
const VIRTUAL6: u128 = 0x5e_0002 << 8;
const VIRTUAL_MASK: u128 = ALL << 8 & ALL;

/// A virtual router's address, or those of several as `MAC/LENGTH`. The inner None: no router has the address.
fn virtual_mac(word: &str) -> Option<Option<(u128, u128)>> {
    let (mac, len) = word.split_once('/').map_or((word, None), |(m, l)| (m, Some(l)));
    let mac = of::ethernet(mac)?;
    let Ok(len) = len.map_or(Ok(48), str::parse::<u32>) else { return Some(None) };
    let known = matches!(mac & VIRTUAL_MASK, VIRTUAL4 | VIRTUAL6);
    // Number 0 is no router's.
    let mask = ALL.checked_shl(48u32.saturating_sub(len)).unwrap_or(0) & ALL;
    let valid = known && (40..=48).contains(&len) && (len < 48 || mac & 0xff != 0) && mac & !mask == 0;
    Some(valid.then_some((mac, mask)))
}

/// Parses `MAC [IP[/PREFIX]]…` or `VRRPv3 MAC [VIRTUAL-MAC[/PREFIX]]… [IP[/PREFIX]]…`; what is no address ends the
/// entry.
fn parse(text: &str) -> Option<Entry> {
    let mut words = text.split([' ', ',']).filter(|w| !w.is_empty());
    let first = words.next()?;
    let vrrp = first == "VRRPv3";
    let mac = of::ethernet(if vrrp { words.next()? } else { first })?;
    let mut e = Entry { mac, macs4: vec![], macs6: vec![], v4: vec![], broadcasts: vec![], v6: vec![] };
    for w in words {
        if let Some(found) = virtual_mac(w).filter(|_| vrrp) {
            let Some(m) = found else {
                tracing::warn!(target: "lflow", "Invalid VRRPv3 MAC {w} in port security \"{text}\": it is 00:00:5e:00:01:NUMBER or 00:00:5e:00:02:NUMBER, or one of them with a prefix length from 40 to 48; the entry is left out");
                return None;
            };
            if m.0 & VIRTUAL_MASK == VIRTUAL4 { &mut e.macs4 } else { &mut e.macs6 }.push(m);
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
    if !vrrp {
        e.macs4.push((mac, ALL));
        e.macs6.push((mac, ALL));
    } else if e.macs4.is_empty() && e.macs6.is_empty() {
        e.macs4.push((VIRTUAL4, VIRTUAL_MASK));
        e.macs6.push((VIRTUAL6, VIRTUAL_MASK));
    }
    Some(e)
}

/// The link-local address made from an Ethernet address (RFC 4291 appendix A).
fn link_local(mac: u128) -> u128 {
    Mac::from_u64(mac as u64).link_local().into()
}

/// The link-local addresses made from the Ethernet addresses of a mask, which leaves open bits of the last octet at
/// most.
fn link_locals((mac, mask): (u128, u128)) -> (u128, u128) {
    (link_local(mac), !(!mask & ALL))
}

const IPV4: u128 = 0x0800;
const IPV6: u128 = 0x86dd;
const ARP: u128 = 0x0806;

pub(super) fn run(id: Uuid, p: &sb::PortBinding, dp: DatapathKey, view: &mut Seen<'_>) {
    let entries: Vec<Entry> = p.port_security.iter().filter_map(|s| parse(s)).collect();
    if entries.is_empty() {
        return;
    }
    let mut w = Writer { view, cookie: cookie(id) };
    let from = Match::new().with(of::DATAPATH, dp.into()).with(of::INPORT, p.key().into());
    let to = Match::new().with(of::DATAPATH, dp.into()).with(of::OUTPORT, p.key().into());
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
    cookie: u32,
}

impl Writer<'_, '_> {
    fn put(&mut self, table: TableId, priority: u16, m: Match, actions: Vec<Action>) {
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
    let of_mac = |(mac, mask): &(u128, u128)| from.clone().with_masked(FieldId::EthSrc, *mac, *mask);
    if e.v4.is_empty() && e.v6.is_empty() {
        for mac in e.macs4.iter().chain(&e.macs6) {
            w.put(t::CHK_IN_PORT_SEC, 90, of_mac(mac), w.inspect());
        }
        return;
    }
    if !e.v4.is_empty() {
        e.macs4.iter().for_each(|mac| incoming4(e, &of_mac(mac), w));
    }
    if !e.v6.is_empty() {
        e.macs6.iter().for_each(|mac| incoming6(e, *mac, &of_mac(mac), w));
    }
}

fn incoming4(e: &Entry, from: &Match, w: &mut Writer<'_, '_>) {
    let table = t::CHK_IN_PORT_SEC;
    for (a, m) in &e.v4 {
        w.put(table, 90, from.clone().with(FieldId::EthType, IPV4).with_masked(FieldId::IpSrc, *a, *m), w.allow());
    }
    let dhcp = from.clone().with(FieldId::EthType, IPV4).with(FieldId::IpProto, 17).with(FieldId::IpSrc, 0);
    let dhcp = dhcp.with(FieldId::IpDst, 0xffff_ffff).with(FieldId::UdpSrc, 68).with(FieldId::UdpDst, 67);
    w.put(table, 90, dhcp, w.allow());
}

fn incoming6(e: &Entry, mac: (u128, u128), from: &Match, w: &mut Writer<'_, '_>) {
    let table = t::CHK_IN_PORT_SEC;
    // Duplicate address detection and multicast listener reports come from no address.
    let multicast = u128::from(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0));
    for kind in [131, 143, 135] {
        let m = from.clone().with(FieldId::EthType, IPV6).with(FieldId::IpProto, 58).with(FieldId::Ipv6Src, 0);
        let m = m.with_masked(FieldId::Ipv6Dst, multicast, 0xffff << 112).with(FieldId::Icmpv6Type, kind);
        let actions = if kind == 135 { w.inspect() } else { w.allow() };
        w.put(table, 90, m.with(FieldId::Icmpv6Code, 0), actions);
    }
    for (a, m) in e.v6.iter().chain(&[link_locals(mac)]) {
        w.put(table, 90, from.clone().with(FieldId::EthType, IPV6).with_masked(FieldId::Ipv6Src, *a, *m), w.inspect());
    }
}

fn neighbours(e: &Entry, from: &Match, w: &mut Writer<'_, '_>) {
    let table = t::CHK_IN_PORT_SEC_ND;
    for (mac, mask) in &e.macs4 {
        let arp = from.clone().with(FieldId::EthType, ARP).with_masked(FieldId::ArpSha, *mac, *mask);
        if e.v4.is_empty() && e.v6.is_empty() {
            w.put(table, 90, arp.clone(), w.allow());
        }
        for (a, m) in &e.v4 {
            w.put(table, 90, arp.clone().with_masked(FieldId::ArpSpa, *a, *m), w.allow());
        }
    }
    for (mac, mask) in [(0, ALL)].iter().chain(&e.macs6) {
        let message = |kind| nd(from.clone(), kind).with(FieldId::Icmpv6Code, 0);
        w.put(table, 90, message(135).with_masked(FieldId::NdSll, *mac, *mask), w.allow());
        let advertisement = message(136).with_masked(FieldId::NdTll, *mac, *mask);
        if e.v6.is_empty() {
            w.put(table, 90, advertisement, w.allow());
            continue;
        }
        for (a, m) in e.v6.iter().chain(&[(link_local(e.mac), u128::MAX)]) {
            w.put(table, 90, advertisement.clone().with_masked(FieldId::NdTarget, *a, *m), w.allow());
        }
    }
}

fn outgoing(e: &Entry, to: &Match, w: &mut Writer<'_, '_>) {
    let table = t::CHK_OUT_PORT_SEC;
    let any = e.v4.is_empty() && e.v6.is_empty();
    let of_mac = |(mac, mask): &(u128, u128)| to.clone().with_masked(FieldId::EthDst, *mac, *mask);
    for mac in &e.macs4 {
        w.put(table, 85, of_mac(mac), w.allow());
        if any {
            continue;
        }
        let v4 = of_mac(mac).with(FieldId::EthType, IPV4);
        w.put(table, 90, v4.clone(), w.refuse());
        if e.v4.is_empty() {
            continue;
        }
        let both = [(0xffff_ffff, 0xffff_ffff), (0xe000_0000, 0xf000_0000)];
        let broadcasts: Vec<_> = e.broadcasts.iter().map(|a| (*a, 0xffff_ffff)).collect();
        for (a, m) in e.v4.iter().chain(&broadcasts).chain(&both) {
            w.put(table, 95, v4.clone().with_masked(FieldId::IpDst, *a, *m), w.allow());
        }
    }
    for mac in &e.macs6 {
        if !e.macs4.contains(mac) {
            w.put(table, 85, of_mac(mac), w.allow());
        }
        if any {
            continue;
        }
        let v6 = of_mac(mac).with(FieldId::EthType, IPV6);
        w.put(table, 90, v6.clone(), w.refuse());
        if e.v6.is_empty() {
            continue;
        }
        for (a, m) in e.v6.iter().chain(&[link_locals(*mac), (0xffu128 << 120, 0xffu128 << 120)]) {
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
        assert_eq!((e.mac, e.v4.len()), (0x1001, 1));
        assert_eq!((e.macs4, e.macs6), (vec![(0x5e00_0105, ALL)], vec![(0x5e00_0206, ALL)]));
        assert_eq!(Ipv6Addr::from(link_local(0x5054_0000_0003)).to_string(), "fe80::5254:ff:fe00:3");
    }

    #[test]
    fn virtual_routers_have_several_addresses_and_ranges() {
        let mac = "VRRPv3 00:00:00:00:10:01";
        let any = parse(mac).unwrap();
        assert_eq!(any.macs4, [(0x5e00_0100, 0xffff_ffff_ff00)]);
        assert_eq!(any.macs6, [(0x5e00_0200, 0xffff_ffff_ff00)]);
        let several = parse(&format!("{mac} 00:00:5e:00:01:05 00:00:5e:00:01:08/45 00:00:5e:00:02:00/40")).unwrap();
        assert_eq!(several.macs4, [(0x5e00_0105, ALL), (0x5e00_0108, 0xffff_ffff_fff8)]);
        assert_eq!(several.macs6, any.macs6);
        // IPv4 only: nothing of IPv6 has a virtual address.
        assert_eq!(parse(&format!("{mac} 00:00:5e:00:01:05")).unwrap().macs6, []);
        for wrong in [
            "00:00:5e:00:01:00",
            "00:00:5e:00:02:00/48",
            "00:00:5e:00:01:00/39",
            "00:00:5e:00:01:0f/45",
            "00:00:00:00:00:07",
        ] {
            assert_eq!(parse(&format!("{mac} {wrong}")), None, "{wrong}");
        }
        // fe80::200:5eff:fe00:200/120
        let (a, m) = link_locals(any.macs6[0]);
        assert_eq!((Ipv6Addr::from(a).to_string(), m), ("fe80::200:5eff:fe00:200".to_string(), u128::MAX << 8));
        // Without a prefix it is no virtual router's entry, and the word ends it.
        assert_eq!(parse("00:00:00:00:10:01 00:00:5e:00:01:05 10.0.0.1").unwrap().v4, []);
    }
}
