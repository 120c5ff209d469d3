//! From physical ports to logical ones and back (ovn-architecture(7), "Architectural Physical Life Cycle of a Packet").

use super::{
    Seen, active_member, cookie, datapath_key, datapath_zones, emit, fixed, is_local, members, port as port_by_name,
};
use super::{resident, row, security, zone};
use crate::model::{Read, Tunnel};
use crate::of::{self, flag};
use crate::tables as t;
use openflow_rs::action::{BundleAction, BundleAlgorithm, HashFields};
use openflow_rs::{Action, FieldId, Match, PortNo, Subfield};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{Str, Uuid};
use std::collections::BTreeSet;

/// A port binding of a local datapath with what its flows need.
struct Bound<'a> {
    id: Uuid,
    row: &'a sb::PortBinding,
    dp: u64,
    key: u64,
    zones: (u16, u16),
}

impl Bound<'_> {
    fn from(&self) -> Match {
        Match::new().with(of::DATAPATH, u128::from(self.dp)).with(of::INPORT, u128::from(self.key))
    }
    fn toward(&self) -> Match {
        Match::new().with(of::DATAPATH, u128::from(self.dp)).with(of::OUTPORT, u128::from(self.key))
    }
}

fn set_port_zone(zone: u16) -> Action {
    Action::set_masked(of::PORT_ZONE, u128::from(zone), 0xffff)
}

fn set_datapath_zones(zones: (u16, u16)) -> [Action; 2] {
    [of::set(of::DNAT_ZONE, u64::from(zones.0)), of::set(of::SNAT_ZONE, u64::from(zones.1))]
}

/// The flows of one port binding, by its type.
pub(super) fn port(id: Uuid, view: &mut Seen<'_>) {
    let Some(p) = row::<sb::PortBinding>(view, TableId::PortBinding, id) else { return };
    if !is_local(view, p.datapath) {
        return;
    }
    let Some(dp) = datapath_key(view, p.datapath) else { return };
    let b = Bound { id, row: p, dp, key: p.tunnel_key as u64, zones: datapath_zones(view, p.datapath) };
    match &*p.r#type {
        "patch" => patch(&b, view),
        "l3gateway" => {
            let me = view.read(Read::Chassis).local.chassis;
            if p.chassis == me { patch(&b, view) } else { remote(&b, view) }
        }
        "chassisredirect" => chassis_redirect(&b, view),
        "localnet" | "l2gateway" => provider(&b, view),
        "external" => external(&b, view),
        _ => virtual_interface(&b, view),
    }
}

/// The OpenFlow port of a virtual interface on this chassis: its own, or its parent's with a tag.
fn local_ofport(b: &Bound<'_>, view: &mut Seen<'_>) -> Option<(u16, Option<u16>)> {
    let name = b
        .row
        .parent_port
        .as_ref()
        .filter(|p| !p.is_empty() && &*b.row.r#type != "virtual")
        .unwrap_or(&b.row.logical_port);
    let vif = view.read(Read::Vif(name.clone())).local.vifs.get(name)?;
    let tag = b.row.parent_port.as_ref().and(b.row.tag).and_then(|t| u16::try_from(t).ok());
    Some((vif.ofport?, tag))
}

fn virtual_interface(b: &Bound<'_>, view: &mut Seen<'_>) {
    let me = view.read(Read::Chassis).local.chassis;
    let here = &*b.row.r#type == "localport" || (b.row.chassis.is_some() && b.row.chassis == me);
    match local_ofport(b, view).filter(|_| here) {
        Some((ofport, tag)) => {
            let z = zone(view, &b.row.logical_port);
            from_interface(b, ofport, tag, z, view);
            local_output(b, Some(z), view);
            to_interface(b, ofport, tag, view);
            zone_lookup(b, Some(z), view);
            security::run(b.id, b.row, b.dp, view);
        }
        None if !here => remote(b, view),
        None => {}
    }
}

/// Packets that enter by an interface.
fn from_interface(b: &Bound<'_>, ofport: u16, tag: Option<u16>, z: u16, view: &mut Seen<'_>) {
    let mut m = Match::new().with(FieldId::InPort, u128::from(ofport));
    let mut actions = Vec::new();
    let provider = matches!(&*b.row.r#type, "localnet" | "l2gateway");
    if let Some(tag) = tag {
        m.set(FieldId::VlanVid, u128::from(tag | 0x1000));
        actions.push(Action::PopVlan);
    }
    actions.push(set_port_zone(z));
    actions.extend(set_datapath_zones(b.zones));
    actions.push(of::set(of::DATAPATH, b.dp));
    actions.push(of::set(of::INPORT, b.key));
    actions.push(Action::set_masked(of::PORT_ZONE, 0, 0xffff_0000));
    if &*b.row.r#type == "localport" {
        actions.push(of::set_flags(flag::LOCALPORT));
    }
    if tag.is_some() && !provider {
        actions.push(of::set_flags(flag::NESTED_CONTAINER));
    }
    actions.push(Action::resubmit(t::INGRESS));
    let priority = if tag.is_some() { 150 } else { 100 };
    if provider && tag.is_none() {
        // Untagged, and tagged only for priority (IEEE 802.1Q, VLAN 0).
        let zero = m.clone().with(FieldId::VlanVid, 0x1000);
        emit(
            view,
            t::PHY_TO_LOG,
            priority,
            zero,
            cookie(b.id),
            std::iter::once(Action::PopVlan).chain(actions.clone()).collect(),
        );
        m.set_masked(FieldId::VlanTci, 0, 0x1000);
    }
    emit(view, t::PHY_TO_LOG, priority, m, cookie(b.id), actions);
}

/// Packets that leave by an interface.
fn to_interface(b: &Bound<'_>, ofport: u16, tag: Option<u16>, view: &mut Seen<'_>) {
    let mut actions = Vec::new();
    if let Some(tag) = tag {
        actions.push(Action::PushVlan(0x8100));
        actions.push(of::set(FieldId::VlanVid, u64::from(tag | 0x1000)));
    }
    actions.push(of::output(ofport));
    if tag.is_some() {
        actions.push(Action::PopVlan);
    }
    emit(view, t::LOG_TO_PHY, 100, b.toward(), cookie(b.id), actions);
}

/// Packets for a port on this chassis: to the egress pipeline, but not back where they came from.
fn local_output(b: &Bound<'_>, port_zone: Option<u16>, view: &mut Seen<'_>) {
    let mut actions: Vec<Action> = port_zone.map(set_port_zone).into_iter().collect();
    actions.extend(set_datapath_zones(b.zones));
    actions.push(Action::resubmit(t::CHECK_LOOPBACK));
    emit(view, t::LOCAL_OUTPUT, 100, b.toward(), cookie(b.id), actions);
    let back = b.toward().with(of::INPORT, u128::from(b.key)).with_masked(of::FLAGS, 0, u128::from(flag::LOOPBACK));
    emit(view, t::CHECK_LOOPBACK, 100, back, cookie(b.id), Vec::new());
    // OpenFlow does not send a packet out of its input port; hide that port where sending back is wanted.
    let loops = b.toward().with_masked(of::FLAGS, u128::from(flag::LOOPBACK), u128::from(flag::LOOPBACK));
    let in_port = Subfield::full(FieldId::InPort);
    let hidden = vec![
        Action::Push(in_port),
        of::set(FieldId::InPort, u64::from(PortNo::ANY.0)),
        Action::resubmit(t::LOG_TO_PHY),
        Action::Pop(in_port),
    ];
    emit(view, t::SAVE_INPORT, 100, loops, cookie(b.id), hidden);
}

/// The zones of packets whose logical input port a tunnel's metadata named.
fn zone_lookup(b: &Bound<'_>, port_zone: Option<u16>, view: &mut Seen<'_>) {
    let mut actions: Vec<Action> = port_zone.map(set_port_zone).into_iter().collect();
    actions.extend(set_datapath_zones(b.zones));
    actions.push(Action::resubmit(t::INGRESS));
    emit(view, t::CT_ZONE_LOOKUP, 100, b.from(), cookie(b.id), actions);
}

/// A port to a provider network.
fn provider(b: &Bound<'_>, view: &mut Seen<'_>) {
    let name = &b.row.logical_port;
    let me = view.read(Read::Chassis).local.chassis;
    if &*b.row.r#type == "l2gateway" && b.row.chassis != me {
        return remote(b, view);
    }
    let Some(ofport) = view.read(Read::Localnet(name.clone())).local.localnets.get(name).copied() else { return };
    let tag = b.row.tag.and_then(|t| u16::try_from(t).ok()).filter(|t| *t != 0);
    let z = zone(view, name);
    from_interface(b, ofport, tag, z, view);
    local_output(b, Some(z), view);
    to_interface(b, ofport, tag, view);
    if &*b.row.r#type == "localnet" {
        // What a localport sent stays on this chassis, and so does what is marked for it.
        for (value, mask) in
            [(flag::LOCALPORT, flag::LOCALPORT), (flag::LOCAL_ONLY, flag::LOCAL_ONLY | flag::OVERRIDE_LOCAL_ONLY)]
        {
            let m = b.toward().with_masked(of::FLAGS, u128::from(value), u128::from(mask));
            emit(view, t::CHECK_LOOPBACK, 160, m, cookie(b.id), Vec::new());
        }
    }
}

/// A port that leads to its peer in another datapath.
fn patch(b: &Bound<'_>, view: &mut Seen<'_>) {
    let Some(peer_name) = b.row.options.get("peer") else { return };
    let Some((_, peer)) = port_by_name(view, peer_name) else { return };
    let (Some(peer_dp), peer_zones) = (datapath_key(view, peer.datapath), datapath_zones(view, peer.datapath)) else {
        return;
    };
    if peer.options.get("peer") != Some(&b.row.logical_port) {
        return;
    }
    local_output(b, None, view);
    let mut inner = vec![Action::CtClear];
    inner.extend(set_datapath_zones((0, 0)));
    inner.push(set_port_zone(0));
    inner.extend(set_datapath_zones(peer_zones));
    inner.push(of::set(of::DATAPATH, peer_dp));
    inner.push(of::set(of::INPORT, peer.tunnel_key as u64));
    inner.push(of::set(of::FLAGS, 0));
    inner.push(of::set(of::OUTPORT, 0));
    inner.extend(fixed::clear_registers());
    inner.push(Action::resubmit(t::INGRESS));
    emit(view, t::LOG_TO_PHY, 100, b.toward(), cookie(b.id), vec![Action::Clone(inner)]);
}

/// The distributed port's stand-in on the gateway: here it is the port itself; elsewhere the way to the gateway.
fn chassis_redirect(b: &Bound<'_>, view: &mut Seen<'_>) {
    if !resident(view, &b.row.logical_port) {
        return remote(b, view);
    }
    let Some(distributed) = b.row.options.get("distributed-port") else { return };
    let Some((_, p)) = port_by_name(view, distributed) else { return };
    let mut actions = vec![of::set(of::OUTPORT, p.tunnel_key as u64)];
    actions.extend(set_datapath_zones(b.zones));
    actions.push(of::set(FieldId::InPort, u64::from(PortNo::ANY.0)));
    actions.push(Action::resubmit(t::CHECK_LOOPBACK));
    emit(view, t::LOCAL_OUTPUT, 100, b.toward(), cookie(b.id), actions);
}

/// Whether the switch has a provider network, which then carries its packets between chassis.
fn has_localnet(b: &Bound<'_>, view: &mut Seen<'_>) -> bool {
    let input = view.read(Read::PortsOf(b.row.datapath));
    input.ports_of(b.row.datapath).any(|(_, p)| &*p.r#type == "localnet")
}

/// A port of a machine outside OVN, or one that the provider network reaches: packets for it leave by the switch's localnet port.
fn external(b: &Bound<'_>, view: &mut Seen<'_>) {
    let localnet = {
        let input = view.read(Read::PortsOf(b.row.datapath));
        input.ports_of(b.row.datapath).find(|(_, p)| &*p.r#type == "localnet").map(|(_, p)| p.tunnel_key)
    };
    if let Some(key) = localnet {
        let actions = vec![of::set(of::OUTPORT, key as u64), Action::resubmit(t::LOCAL_OUTPUT)];
        emit(view, t::LOCAL_OUTPUT, 100, b.toward(), cookie(b.id), actions);
    }
}

/// The tunnel to a chassis: Geneve before others, then the first by address.
fn tunnel_to(view: &mut Seen<'_>, chassis: &str) -> Option<Tunnel> {
    let tunnels = &view.read(Read::Tunnels).local.tunnels;
    let mut list: Vec<&Tunnel> = tunnels.iter().filter(|t| &*t.chassis == chassis).collect();
    list.sort_by_key(|t| (&*t.kind != "geneve", t.remote_ip.clone()));
    list.first().map(|t| (*t).clone())
}

fn chassis_name(view: &mut Seen<'_>, id: Uuid) -> Option<Str> {
    row::<sb::Chassis>(view, TableId::Chassis, id).map(|c| c.name.clone())
}

/// The metadata that a tunnel carries: logical datapath, input port and output port.
fn tunnel_metadata(dp: u64, outport: u64, kind: &str) -> Vec<Action> {
    if kind == "vxlan" {
        // 24 bits hold 12 of the datapath and 12 of the output port.
        return vec![Action::set_masked(
            FieldId::TunId,
            u128::from(outport & 0xfff) << 12 | u128::from(dp & 0xfff),
            0xff_ffff,
        )];
    }
    vec![
        Action::set_masked(FieldId::TunId, u128::from(dp), 0xff_ffff),
        of::set(FieldId::TunMetadata0, outport),
        of::copy(of::bits(of::INPORT, 0, 14), of::bits(FieldId::TunMetadata0, 16, 30)),
    ]
}

/// A port on another chassis: through the tunnel to it.
fn remote(b: &Bound<'_>, view: &mut Seen<'_>) {
    if b.row.r#type.is_empty() {
        zone_lookup(b, None, view);
        if has_localnet(b, view) {
            return external(b, view);
        }
    }
    let me = view.read(Read::Chassis).local.chassis_name.clone();
    if let Some(group) = b.row.ha_chassis_group
        && matches!(&*b.row.r#type, "chassisredirect" | "external")
    {
        let gateways: Vec<Tunnel> = members(view, group)
            .into_iter()
            .filter(|(_, name, _)| *name != me)
            .filter_map(|(_, name, _)| tunnel_to(view, &name))
            .collect();
        let Some(first) = gateways.first() else { return };
        let mut actions = tunnel_metadata(b.dp, b.key, &first.kind);
        match gateways.as_slice() {
            [one] => actions.push(of::output(one.ofport)),
            // The switch itself takes the first gateway whose session is up, without waiting for this controller.
            several => actions.push(Action::Bundle(Box::new(BundleAction {
                fields: HashFields::EthSrc,
                basis: 0,
                algorithm: BundleAlgorithm::ActiveBackup,
                members: several.iter().map(|t| PortNo(t.ofport)).collect(),
                dst: None,
            }))),
        }
        emit(view, t::REMOTE_OUTPUT, 100, b.toward(), cookie(b.id), actions);
        return;
    }
    let Some(tunnel) = b.row.chassis.and_then(|c| chassis_name(view, c)).and_then(|name| tunnel_to(view, &name)) else {
        return;
    };
    let mut actions = tunnel_metadata(b.dp, b.key, &tunnel.kind);
    actions.push(of::output(tunnel.ofport));
    actions.push(Action::resubmit(t::REMOTE_VTEP_OUTPUT));
    let m = b.toward().with_masked(of::PORT_ZONE, 0, 0xffff_0000);
    emit(view, t::REMOTE_OUTPUT, 100, m, cookie(b.id), actions);
}

/// A multicast group: to its ports here, and once to every chassis that has others.
pub(super) fn multicast(id: Uuid, view: &mut Seen<'_>) {
    let Some(g) = row::<sb::MulticastGroup>(view, TableId::MulticastGroup, id) else { return };
    if !is_local(view, g.datapath) {
        return;
    }
    let Some(dp) = datapath_key(view, g.datapath) else { return };
    let group_key = g.tunnel_key as u64;
    let me = view.read(Read::Chassis).local.chassis;
    let (mut patches, mut locals, mut chassis) = (Vec::<Action>::new(), Vec::<Action>::new(), BTreeSet::new());
    let input = view.read(Read::PortsOf(g.datapath));
    let has_localnet = input.ports_of(g.datapath).any(|(_, p)| &*p.r#type == "localnet");
    for id in &g.ports {
        let Some(p) = row::<sb::PortBinding>(view, TableId::PortBinding, *id) else { continue };
        let key = p.tunnel_key as u64;
        let enter = |zone: Option<u16>| {
            let set_zone = zone.map(set_port_zone);
            set_zone
                .into_iter()
                .chain([of::set(of::OUTPORT, key), Action::resubmit(t::CHECK_LOOPBACK)])
                .collect::<Vec<_>>()
        };
        match &*p.r#type {
            "patch" => patches.extend(enter(None)),
            "l3gateway" if p.chassis == me => patches.extend(enter(None)),
            "localport" => patches.extend(enter(Some(zone(view, &p.logical_port)))),
            "localnet"
                if view.read(Read::Localnet(p.logical_port.clone())).local.localnets.contains_key(&p.logical_port) =>
            {
                locals.extend(enter(Some(zone(view, &p.logical_port))));
            }
            "localnet" => {}
            _ if p.chassis.is_some() && p.chassis == me => locals.extend(enter(Some(zone(view, &p.logical_port)))),
            "chassisredirect" | "external" => {
                if let Some(active) = active_member(view, p) {
                    chassis.extend(chassis_name(view, active).filter(|_| Some(active) != me));
                }
            }
            // A provider network carries the packet itself; only ports behind tunnels need copies.
            _ => {
                let away = p.chassis.filter(|_| !has_localnet || &*p.r#type == "vtep");
                chassis.extend(away.and_then(|c| chassis_name(view, c)));
            }
        }
    }
    let restore = || of::set(of::OUTPORT, group_key);
    let base = || Match::new().with(of::DATAPATH, u128::from(dp)).with(of::OUTPORT, u128::from(group_key));
    let tunnels: BTreeSet<Tunnel> = chassis.iter().filter_map(|c| tunnel_to(view, c)).collect();
    let next = || Action::resubmit(t::REMOTE_VTEP_OUTPUT);
    if !patches.is_empty() {
        let both = u128::from(flag::LOOPBACK | flag::RCV_FROM_RAMP);
        let actions = patches.iter().cloned().chain([restore(), next()]).collect();
        emit(view, t::REMOTE_OUTPUT, 120, base().with_masked(of::FLAGS, both, both), cookie(id), actions);
    }
    if !patches.is_empty() || !tunnels.is_empty() {
        let mut actions = patches.clone();
        if !patches.is_empty() {
            actions.push(restore());
        }
        let mut ports: Vec<&Tunnel> = tunnels.iter().collect();
        ports.sort_by_key(|t| (&*t.kind != "geneve", t.ofport));
        let mut kind: Option<&str> = None;
        for tunnel in ports {
            if kind != Some(&*tunnel.kind) {
                actions.extend(tunnel_metadata(dp, group_key, &tunnel.kind));
                kind = Some(&tunnel.kind);
            }
            actions.push(of::output(tunnel.ofport));
        }
        actions.push(next());
        emit(
            view,
            t::REMOTE_OUTPUT,
            100,
            base().with_masked(of::FLAGS, 0, u128::from(flag::RCV_FROM_RAMP)),
            cookie(id),
            actions,
        );
    }
    if !locals.is_empty() {
        let actions = locals.into_iter().chain([restore()]).collect();
        emit(view, t::LOCAL_OUTPUT, 100, base(), cookie(id), actions);
    }
}

/// Packets from tunnels: their metadata say where they are in the logical network.
pub(super) fn tunnels(view: &mut Seen<'_>) {
    let tunnels: Vec<Tunnel> = view.read(Read::Tunnels).local.tunnels.iter().cloned().collect();
    const ICMP: [(u128, u128, u128, u128); 2] = [(0x0800, 1, 3, 4), (0x86dd, 58, 2, 0)];
    for tunnel in tunnels {
        let entry = Match::new().with(FieldId::InPort, u128::from(tunnel.ofport));
        let mut actions = if &*tunnel.kind == "vxlan" {
            vec![
                of::copy(of::bits(FieldId::TunId, 0, 11), of::bits(of::DATAPATH, 0, 11)),
                of::copy(of::bits(FieldId::TunId, 12, 23), of::bits(of::OUTPORT, 0, 11)),
            ]
        } else {
            vec![
                of::copy(of::bits(FieldId::TunId, 0, 23), of::bits(of::DATAPATH, 0, 23)),
                of::copy(of::bits(FieldId::TunMetadata0, 16, 30), of::bits(of::INPORT, 0, 14)),
                of::copy(of::bits(FieldId::TunMetadata0, 0, 15), of::bits(of::OUTPORT, 0, 15)),
            ]
        };
        actions.push(Action::set_masked(FieldId::Reg5, u128::from(tunnel.ofport) << 16, 0xffff_0000));
        actions.push(Action::resubmit(t::LOCAL_OUTPUT));
        emit(view, t::PHY_TO_LOG, 100, entry.clone(), 0, actions.clone());
        if &*tunnel.kind == "vxlan" {
            continue;
        }
        // "Packet too big" errors may be for the logical port that they name as their input; offer them there, too.
        actions.push(of::set_flags(flag::RX_FROM_TUNNEL));
        actions.push(Action::resubmit(t::CT_ZONE_LOOKUP));
        for (ether, proto, kind, code) in ICMP {
            let (type_field, code_field) = if proto == 1 {
                (FieldId::IcmpType, FieldId::IcmpCode)
            } else {
                (FieldId::Icmpv6Type, FieldId::Icmpv6Code)
            };
            let m = entry.clone().with(FieldId::EthType, ether).with(FieldId::IpProto, proto).with(type_field, kind);
            emit(view, t::PHY_TO_LOG, 120, m.with(code_field, code), 0, actions.clone());
        }
    }
}
