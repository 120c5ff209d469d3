//! Tunnels: which way leads to a chassis, what packets carry on it, and what becomes of those that come out of one.

use super::{Seen, emit, row};
use crate::encode::of::{self, flag};
use crate::encode::tables as t;
use crate::input::model::{self, Read, Tunnel, is_vtep};
use openflow_rs::{Action, FieldId, Match};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{DatapathKey, PortKey, Str, Uuid};
use std::net::IpAddr;

/// The way to a chassis.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// `geneve` or `vxlan`.
    pub kind: Str,
    /// The OpenFlow port.
    pub ofport: u16,
    /// Both ends' addresses, where the port takes them from the packet.
    pub flow: Option<(IpAddr, IpAddr)>,
    /// The chassis is a VTEP switch, which knows networks, not ports.
    pub vtep: bool,
    /// The outer header is IPv6.
    pub v6: bool,
}

impl Way {
    /// Sends the packet there.
    pub fn output(&self) -> Vec<Action> {
        let mut out = Vec::new();
        match self.flow {
            Some((IpAddr::V4(local), IpAddr::V4(remote))) => {
                out.push(Action::set(FieldId::TunSrc, u128::from(u32::from(local))));
                out.push(Action::set(FieldId::TunDst, u128::from(u32::from(remote))));
            }
            Some((IpAddr::V6(local), IpAddr::V6(remote))) => {
                out.push(Action::set(FieldId::TunIpv6Src, u128::from(local)));
                out.push(Action::set(FieldId::TunIpv6Dst, u128::from(remote)));
            }
            _ => {}
        }
        out.push(of::output(self.ofport));
        out
    }

    /// The metadata that the tunnel carries: logical datapath, input port and output port.
    pub fn metadata(&self, dp: DatapathKey, outport: PortKey) -> Vec<Action> {
        let (dp, outport) = (u64::from(dp), u64::from(outport));
        let id = |v: u64| Action::set_masked(FieldId::TunId, u128::from(v), 0xff_ffff);
        if self.vtep {
            return vec![id(dp & 0xff_ffff)];
        }
        if &*self.kind == "vxlan" {
            // 24 bits hold 12 of the datapath and 12 of the output port; the first of these says whether it is a group.
            let group = if outport >= 0x8000 { 0x800 } else { 0 };
            return vec![id((outport & 0x7ff | group) << 12 | dp & 0xfff)];
        }
        vec![
            id(dp),
            of::set(FieldId::TunMetadata0, outport),
            of::copy(of::bits(of::INPORT, 0, 14), of::bits(FieldId::TunMetadata0, 16, 30)),
        ]
    }
}

/// The way to a chassis: Geneve before others, from the default address to the other's default one.
pub(super) fn to(view: &mut Seen<'_>, chassis: Uuid) -> Option<Way> {
    between(view, chassis, None, None)
}

/// The way to a chassis from one of this chassis' addresses to one of the other's. Where there is no such tunnel, any serves.
pub(super) fn between(view: &mut Seen<'_>, chassis: Uuid, from: Option<&Str>, encap: Option<Uuid>) -> Option<Way> {
    let c = row::<sb::Chassis>(view, TableId::Chassis, chassis)?;
    let vtep = is_vtep(c);
    let local = &view.read(Read::Tunnels).local;
    let mut list: Vec<&Tunnel> = local.tunnels.iter().filter(|t| t.chassis == c.name).collect();
    let from = from.or(local.encap_ips.first());
    if list.len() > 1 {
        let kind = list.iter().map(|t| &t.kind).min_by_key(|k| &***k != "geneve").cloned().unwrap_or_default();
        let asked = encap.and_then(|e| row::<sb::Encap>(view, TableId::Encap, e)).map(|e| e.ip.clone());
        let remote = asked.or_else(|| default_encap(view, chassis, &kind));
        let order = |t: &&Tunnel| {
            let (local, remote) = (Some(&t.local_ip) != from, Some(&t.remote_ip) != remote.as_ref());
            (&*t.kind != "geneve", local, remote, t.remote_ip.clone(), t.local_ip.clone())
        };
        list.sort_by_key(order);
    }
    if let Some(t) = list.first() {
        return Some(Way { kind: t.kind.clone(), ofport: t.ofport, flow: None, vtep, v6: t.remote_ip.contains(':') });
    }
    // One port for all chassis: the packet says where to.
    let me = view.read(Read::Chassis).local.chassis?;
    let mut any: Vec<&Tunnel> = local.tunnels.iter().filter(|t| t.is_flow_based()).collect();
    any.sort_by_key(|t| &*t.kind != "geneve");
    for t in any {
        let mine = encaps(view, me, &t.kind);
        let local = mine.iter().map(|(_, ip)| ip).find(|ip| Some(*ip) == from).or(mine.first().map(|(_, ip)| ip));
        let theirs = encaps(view, chassis, &t.kind);
        let asked = encap.and_then(|e| row::<sb::Encap>(view, TableId::Encap, e)).map(|e| &e.ip);
        let remote = theirs.iter().map(|(_, ip)| ip).find(|ip| Some(*ip) == asked);
        let remote = remote.or(theirs.first().map(|(_, ip)| ip));
        if let (Some(Ok(local)), Some(Ok(remote))) = (local.map(|ip| ip.parse()), remote.map(|ip| ip.parse::<IpAddr>()))
        {
            return Some(Way {
                kind: t.kind.clone(),
                ofport: t.ofport,
                flow: Some((local, remote)),
                vtep,
                v6: remote.is_ipv6(),
            });
        }
    }
    None
}

/// This chassis' addresses by the numbers that packets carry for them; one without a name where none is configured.
pub(super) fn own_addresses(view: &mut Seen<'_>) -> Vec<Option<Str>> {
    let ips = &view.read(Read::Tunnels).local.encap_ips;
    if ips.is_empty() { vec![None] } else { ips.iter().cloned().map(Some).collect() }
}

/// The number of the address of this chassis by which a port is reached, in its place in [`of::PORT_ZONE`].
pub(super) fn address_number(p: &sb::PortBinding, view: &mut Seen<'_>) -> u128 {
    let Some(e) = p.encap.and_then(|e| row::<sb::Encap>(view, TableId::Encap, e)) else { return 0 };
    let ips = &view.read(Read::Tunnels).local.encap_ips;
    ips.iter().position(|ip| *ip == e.ip).unwrap_or(0) as u128 & 0xffff
}

/// The address of a chassis' encapsulation of a kind: its default one, else the first.
fn default_encap(view: &mut Seen<'_>, chassis: Uuid, kind: &str) -> Option<Str> {
    encaps(view, chassis, kind).into_iter().next().map(|(_, ip)| ip)
}

/// The addresses of a chassis' encapsulations of a kind, its default one first.
fn encaps(view: &mut Seen<'_>, chassis: Uuid, kind: &str) -> Vec<(bool, Str)> {
    let Some(c) = row::<sb::Chassis>(view, TableId::Chassis, chassis) else { return Vec::new() };
    let mut list: Vec<(bool, Str)> = Vec::new();
    for e in &c.encaps {
        let Some(e) = row::<sb::Encap>(view, TableId::Encap, *e) else { continue };
        if &*e.r#type == kind {
            let default = ovn_schema::options::flag(&e.options, "is_default");
            list.push((!default, e.ip.clone()));
        }
    }
    list.sort();
    list
}

/// "Packet too big", of IPv4 and IPv6: EtherType, protocol, ICMP type and code.
const TOO_BIG: [(u128, u128, u128, u128); 2] = [(0x0800, 1, 3, 4), (0x86dd, 58, 2, 0)];

/// Packets from tunnels: their metadata say where they are in the logical network.
pub(super) fn from_all(view: &mut Seen<'_>) {
    let tunnels: Vec<Tunnel> = view.read(Read::Tunnels).local.tunnels.iter().cloned().collect();
    for tunnel in tunnels {
        let entry = || Match::new().with(FieldId::InPort, u128::from(tunnel.ofport));
        let chassis = chassis_named(view, &tunnel.chassis);
        let vtep = chassis.and_then(|c| row::<sb::Chassis>(view, TableId::Chassis, c)).is_some_and(is_vtep);
        let mut actions = if &*tunnel.kind == "vxlan" {
            vec![
                of::copy(of::bits(FieldId::TunId, 12, 23), of::bits(of::OUTPORT, 0, 11)),
                of::copy(of::bits(FieldId::TunId, 0, 11), of::bits(of::DATAPATH, 0, 11)),
            ]
        } else {
            vec![
                of::copy(of::bits(FieldId::TunId, 0, 23), of::bits(of::DATAPATH, 0, 23)),
                of::copy(of::bits(FieldId::TunMetadata0, 16, 30), of::bits(of::INPORT, 0, 14)),
                of::copy(of::bits(FieldId::TunMetadata0, 0, 15), of::bits(of::OUTPORT, 0, 15)),
                Action::set_masked(FieldId::Reg5, u128::from(tunnel.ofport) << 16, 0xffff_0000),
            ]
        };
        actions.push(Action::resubmit(t::LOCAL_OUTPUT));
        emit(view, t::PHY_TO_LOG, 100, entry(), 0, actions.clone());
        if &*tunnel.kind == "vxlan" && !tunnel.is_flow_based() {
            // The first bit of the output port says that it is a multicast group.
            let m = entry().with_masked(FieldId::TunId, 0x80_0000, 0x80_0000);
            let group = vec![
                Action::set_masked(of::OUTPORT, 0x8000, 0x8000),
                of::copy(of::bits(FieldId::TunId, 12, 22), of::bits(of::OUTPORT, 0, 10)),
                of::copy(of::bits(FieldId::TunId, 0, 11), of::bits(of::DATAPATH, 0, 11)),
                Action::resubmit(t::LOCAL_OUTPUT),
            ];
            emit(view, t::PHY_TO_LOG, 105, m, 0, group);
        }
        if vtep {
            continue;
        }
        answers_from_afar(&tunnel, chassis, &actions, view);
        // "Packet too big" errors may be for the logical port that they name as their input; offer them there, too.
        actions.push(of::set_flags(flag::RX_FROM_TUNNEL));
        actions.push(Action::resubmit(t::CT_ZONE_LOOKUP));
        for (ether, proto, kind, code) in TOO_BIG {
            let (type_field, code_field) = if proto == 1 {
                (FieldId::IcmpType, FieldId::IcmpCode)
            } else {
                (FieldId::Icmpv6Type, FieldId::Icmpv6Code)
            };
            let m = entry().with(FieldId::EthType, ether).with(FieldId::IpProto, proto).with(type_field, kind);
            emit(view, t::PHY_TO_LOG, 120, m.with(code_field, code), 0, actions.clone());
        }
    }
}

/// Whether a chassis is one of another availability zone.
fn is_remote(view: &mut Seen<'_>, chassis: Uuid) -> bool {
    let c = row::<sb::Chassis>(view, TableId::Chassis, chassis);
    c.is_some_and(model::is_remote)
}

/// What neighbours answer is told to all chassis of other availability zones (`flood_remote`), with no output port. What comes
/// from there goes through the ingress pipeline of the transit network, which learns from it.
fn answers_from_afar(tunnel: &Tunnel, chassis: Option<Uuid>, decapsulate: &[Action], view: &mut Seen<'_>) {
    let Some(chassis) = chassis.filter(|c| is_remote(view, *c)) else { return };
    let vxlan = &*tunnel.kind == "vxlan";
    let mut actions = vec![of::set_flags(flag::RX_FROM_TUNNEL)];
    // Their last one leads to the output.
    actions.extend(decapsulate.iter().take(decapsulate.len().saturating_sub(1)).cloned());
    actions.push(Action::resubmit(t::INGRESS));
    if vxlan {
        // VXLAN does not carry the input port, and cannot tell these from others.
        actions.push(Action::resubmit(t::LOCAL_OUTPUT));
    }
    let mut entry = Match::new().with(FieldId::InPort, u128::from(tunnel.ofport));
    if !vxlan {
        // The output port's half.
        entry.set_masked(FieldId::TunMetadata0, 0, 0xffff);
    }
    let arp = entry.clone().with(FieldId::EthType, 0x0806).with(FieldId::ArpOp, 2);
    emit(view, t::PHY_TO_LOG, 120, arp, super::cookie(chassis), actions.clone());
    let advertisement = entry.with(FieldId::EthType, 0x86dd).with(FieldId::IpProto, 58);
    let advertisement = advertisement.with(FieldId::Icmpv6Type, 136).with(FieldId::Icmpv6Code, 0);
    emit(view, t::PHY_TO_LOG, 120, advertisement, super::cookie(chassis), actions);
}

/// `flood_remote`: a copy to each chassis of other availability zones, but of nothing that came by a tunnel.
pub(super) fn flood_remote(view: &mut Seen<'_>) {
    let chassis: Vec<Uuid> = view.read(Read::Table(TableId::Chassis)).sb.chassis.keys().copied().collect();
    let mut ways: Vec<Way> = Vec::new();
    for c in chassis {
        if is_remote(view, c) {
            ways.extend(to(view, c));
        }
    }
    ways.sort_by(|a, b| (&a.kind, a.ofport, a.flow).cmp(&(&b.kind, b.ofport, b.flow)));
    let mut actions = Vec::new();
    let mut before: Option<Str> = None;
    for way in &ways {
        if before.as_ref() != Some(&way.kind) {
            if &*way.kind == "vxlan" {
                actions.push(of::copy(of::bits(of::INPORT, 0, 11), of::bits(FieldId::TunId, 12, 23)));
                actions.push(of::copy(of::bits(of::DATAPATH, 0, 11), of::bits(FieldId::TunId, 0, 11)));
            } else {
                actions.push(of::copy(of::bits(of::DATAPATH, 0, 23), of::bits(FieldId::TunId, 0, 23)));
                actions.push(of::set(FieldId::TunMetadata0, 0));
                actions.push(of::copy(of::bits(of::INPORT, 0, 14), of::bits(FieldId::TunMetadata0, 16, 30)));
            }
            before = Some(way.kind.clone());
        }
        actions.extend(way.output());
    }
    if !actions.is_empty() {
        let m = Match::new().with_masked(of::FLAGS, 0, u128::from(flag::RX_FROM_TUNNEL));
        emit(view, t::FLOOD_REMOTE_CHASSIS, 100, m, 0, actions);
    }
}

fn chassis_named(view: &mut Seen<'_>, name: &str) -> Option<Uuid> {
    view.read(Read::Table(TableId::Chassis)).sb.chassis.iter().find(|(_, c)| &*c.name == name).map(|(id, _)| *id)
}

/// Packets from a VTEP switch carry its logical network only: they come from the network's VTEP port.
pub(super) fn from_vtep(id: Uuid, dp: DatapathKey, p: &sb::PortBinding, view: &mut Seen<'_>) {
    let Some(chassis) = p.chassis.and_then(|c| row::<sb::Chassis>(view, TableId::Chassis, c)) else { return };
    let ports: Vec<u16> = {
        let tunnels = &view.read(Read::Tunnels).local.tunnels;
        tunnels.iter().filter(|t| t.chassis == chassis.name && &*t.kind == "vxlan").map(|t| t.ofport).collect()
    };
    for ofport in ports {
        let m = Match::new().with(FieldId::InPort, u128::from(ofport)).with(FieldId::TunId, dp.into());
        let actions = vec![
            of::copy(of::bits(FieldId::TunId, 0, 23), of::bits(of::DATAPATH, 0, 23)),
            Action::set_masked(of::INPORT, p.key().into(), 0x7fff),
            of::set_flags(flag::RCV_FROM_RAMP),
            Action::resubmit(t::INGRESS),
        ];
        emit(view, t::PHY_TO_LOG, 110, m, super::cookie(id), actions);
    }
}

#[cfg(test)]
mod tests {
    use crate::input::model::{Input, Local, Tunnel};
    use crate::units::flows::{ChassisFlows, Key, Value};
    use crate::{encode::of, encode::tables};
    use incremental::Engine;
    use openflow_rs::{Action, FieldId};
    use ovn_schema::sb::{self, Chassis, DatapathBinding, Encap, PortBinding};
    use ovn_schema::{Str, Uuid};
    use std::sync::Arc;

    fn uuid(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    /// A chassis with the addresses A and B, another with C and D (C the default one), and a port there that is reached by D.
    fn world(tunnels: &[(&str, &str, u16)]) -> Input {
        let mut db = sb::Database::default();
        for (n, owner, ip) in
            [(11, "hv1", "10.0.0.1"), (12, "hv1", "10.0.0.2"), (21, "hv2", "10.0.0.3"), (22, "hv2", "10.0.0.4")]
        {
            let mut e =
                Encap { r#type: "geneve".into(), ip: ip.into(), chassis_name: owner.into(), ..Encap::default() };
            if n == 21 {
                e.options.insert("is_default".into(), "true".into());
            }
            db.encap.insert(uuid(n), Arc::new(e));
        }
        for (n, name) in [(1u128, "hv1"), (2, "hv2")] {
            let encaps = [uuid(10 * n + 1), uuid(10 * n + 2)].into();
            db.chassis.insert(uuid(n), Arc::new(Chassis { name: name.into(), encaps, ..Chassis::default() }));
        }
        db.datapath_binding.insert(uuid(7), Arc::new(DatapathBinding { tunnel_key: 7, ..Default::default() }));
        let port = |encap| PortBinding {
            logical_port: "remote".into(),
            datapath: uuid(7),
            tunnel_key: 5,
            chassis: Some(uuid(2)),
            encap,
            ..PortBinding::default()
        };
        db.port_binding.insert(uuid(50), Arc::new(port(Some(uuid(22)))));
        let other = PortBinding { logical_port: "plain".into(), tunnel_key: 6, ..port(None) };
        db.port_binding.insert(uuid(51), Arc::new(other));
        let tunnel = |(local, remote, ofport): &(&str, &str, u16)| Tunnel {
            chassis: if *remote == "flow" { "flow".into() } else { "hv2".into() },
            kind: "geneve".into(),
            remote_ip: (*remote).into(),
            local_ip: (*local).into(),
            ofport: *ofport,
        };
        let local = Local {
            chassis: Some(uuid(1)),
            chassis_name: "hv1".into(),
            encap_ips: vec!["10.0.0.1".into(), "10.0.0.2".into()],
            tunnels: tunnels.iter().map(tunnel).collect(),
            datapaths: [uuid(7)].into(),
            ..Local::default()
        };
        Input::new(db, local)
    }

    fn outputs((number, mask): (u128, u128), actions: &[Action]) -> Vec<(u128, u16, Vec<Str>)> {
        assert_eq!(mask, 0xffff_0000);
        let (mut ips, mut out) = (Vec::new(), Vec::new());
        for a in actions {
            match a {
                Action::SetField { field: FieldId::TunSrc | FieldId::TunDst, value, .. } => {
                    ips.push(std::net::Ipv4Addr::from(*value as u32).to_string().into());
                }
                Action::Output { port, .. } => out.push((number >> 16, port.0, std::mem::take(&mut ips))),
                _ => {}
            }
        }
        out
    }

    /// Where packets for a port go: by the address' number, the OpenFlow port and the packet's addresses.
    fn ways(input: &Input, key: u128) -> Vec<(u128, u16, Vec<Str>)> {
        let mut engine = Engine::new(ChassisFlows::default());
        let mut out = Vec::new();
        engine.update(input, [], |changes| {
            for c in changes {
                let (Key::Flow(tables::REMOTE_OUTPUT, 100, m), Some(Value::Flow(_, actions))) =
                    (c.key, c.after.first())
                else {
                    continue;
                };
                let m = m.unpack().unwrap();
                if m.get(of::OUTPORT).0 == key {
                    out.extend(outputs(m.get(of::PORT_ZONE), &actions.unpack().unwrap()));
                }
            }
        });
        out.sort();
        out
    }

    const MESH: [(&str, &str, u16); 4] = [
        ("10.0.0.1", "10.0.0.3", 1),
        ("10.0.0.1", "10.0.0.4", 2),
        ("10.0.0.2", "10.0.0.3", 3),
        ("10.0.0.2", "10.0.0.4", 4),
    ];

    #[test]
    fn packets_go_from_the_address_of_their_port_to_that_of_the_other() {
        let input = world(&MESH);
        assert_eq!(ways(&input, 5), [(0, 2, vec![]), (1, 4, vec![])]);
        assert_eq!(ways(&input, 6), [(0, 1, vec![]), (1, 3, vec![])], "the other chassis' default address");
        // Where one is missing, another serves.
        assert_eq!(ways(&world(&MESH[..3]), 5), [(0, 2, vec![]), (1, 3, vec![])]);
    }

    #[test]
    fn packets_say_where_they_go_where_one_tunnel_leads_to_all() {
        let input = world(&[("flow", "flow", 9)]);
        let pair = |a: &str, b: &str| vec![Str::from(a), Str::from(b)];
        assert_eq!(ways(&input, 5), [(0, 9, pair("10.0.0.1", "10.0.0.4")), (1, 9, pair("10.0.0.2", "10.0.0.4"))]);
        assert_eq!(ways(&input, 6)[0], (0, 9, pair("10.0.0.1", "10.0.0.3")));
    }
}
