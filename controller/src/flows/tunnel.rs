//! Tunnels: which way leads to a chassis, what packets carry on it, and what becomes of those that come out of one.

use super::{Seen, emit, row};
use crate::model::{Read, Tunnel, is_vtep};
use crate::of::{self, flag};
use crate::tables as t;
use openflow_rs::{Action, FieldId, Match};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{Str, Uuid};
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
    pub fn metadata(&self, dp: u64, outport: u64) -> Vec<Action> {
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

/// The way to a chassis: Geneve before others, then the first by address.
pub(super) fn to(view: &mut Seen<'_>, chassis: Uuid) -> Option<Way> {
    let c = row::<sb::Chassis>(view, TableId::Chassis, chassis)?;
    let vtep = is_vtep(c);
    let tunnels = &view.read(Read::Tunnels).local.tunnels;
    let mut list: Vec<&Tunnel> = tunnels.iter().filter(|t| t.chassis == c.name).collect();
    list.sort_by_key(|t| (&*t.kind != "geneve", t.remote_ip.clone()));
    if let Some(t) = list.first() {
        return Some(Way { kind: t.kind.clone(), ofport: t.ofport, flow: None, vtep });
    }
    // One port for all chassis: the packet says where to.
    let me = view.read(Read::Chassis).local.chassis?;
    let mut any: Vec<&Tunnel> = tunnels.iter().filter(|t| t.is_flow_based()).collect();
    any.sort_by_key(|t| &*t.kind != "geneve");
    for t in any {
        if let (Some(local), Some(remote)) = (encap(view, me, &t.kind), encap(view, chassis, &t.kind)) {
            return Some(Way { kind: t.kind.clone(), ofport: t.ofport, flow: Some((local, remote)), vtep });
        }
    }
    None
}

/// The address of a chassis' encapsulation of a kind: its default one, else the first.
fn encap(view: &mut Seen<'_>, chassis: Uuid, kind: &str) -> Option<IpAddr> {
    let c = row::<sb::Chassis>(view, TableId::Chassis, chassis)?;
    let mut list: Vec<(bool, Str)> = Vec::new();
    for e in &c.encaps {
        let Some(e) = row::<sb::Encap>(view, TableId::Encap, *e) else { continue };
        if &*e.r#type == kind {
            let default = ovn_schema::options::flag(&e.options, "is_default");
            list.push((!default, e.ip.clone()));
        }
    }
    list.sort();
    list.first()?.1.parse().ok()
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

fn chassis_named(view: &mut Seen<'_>, name: &str) -> Option<Uuid> {
    view.read(Read::Table(TableId::Chassis)).sb.chassis.iter().find(|(_, c)| &*c.name == name).map(|(id, _)| *id)
}

/// Packets from a VTEP switch carry its logical network only: they come from the network's VTEP port.
pub(super) fn from_vtep(id: Uuid, dp: u64, p: &sb::PortBinding, view: &mut Seen<'_>) {
    let Some(chassis) = p.chassis.and_then(|c| row::<sb::Chassis>(view, TableId::Chassis, c)) else { return };
    let ports: Vec<u16> = {
        let tunnels = &view.read(Read::Tunnels).local.tunnels;
        tunnels.iter().filter(|t| t.chassis == chassis.name && &*t.kind == "vxlan").map(|t| t.ofport).collect()
    };
    for ofport in ports {
        let m = Match::new().with(FieldId::InPort, u128::from(ofport)).with(FieldId::TunId, u128::from(dp));
        let actions = vec![
            of::copy(of::bits(FieldId::TunId, 0, 23), of::bits(of::DATAPATH, 0, 23)),
            Action::set_masked(of::INPORT, p.tunnel_key as u128, 0x7fff),
            of::set_flags(flag::RCV_FROM_RAMP),
            Action::resubmit(t::INGRESS),
        ];
        emit(view, t::PHY_TO_LOG, 110, m, super::cookie(id), actions);
    }
}
