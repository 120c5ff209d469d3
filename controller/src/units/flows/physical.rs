//! From physical ports to logical ones and back (ovn-architecture(7), "Architectural Physical Life Cycle of a Packet").

use super::tunnel::{self, Way};
use super::{Purpose, activation, chassis_mac, function, here, large, probes, resident, row, security, zone};
use super::{
    Seen, active_member, cookie, datapath_key, datapath_zones, emit, fixed, gateways, is_local, port as port_by_name,
    successor,
};
use crate::encode::of::{self, flag};
use crate::encode::tables as t;
use crate::input::model::Read;
use openflow_rs::action::{BundleAction, BundleAlgorithm, HashFields};
use openflow_rs::{Action, FieldId, Match, PortNo, Subfield};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{DatapathKey, PortKey, Str, Uuid};

/// A port binding of a local datapath with what its flows need.
pub(super) struct Bound<'a> {
    pub(super) id: Uuid,
    pub(super) row: &'a sb::PortBinding,
    pub(super) dp: DatapathKey,
    pub(super) key: PortKey,
    pub(super) zones: (u16, u16),
}

impl Bound<'_> {
    fn from(&self) -> Match {
        Match::new().with(of::DATAPATH, self.dp.into()).with(of::INPORT, self.key.into())
    }
    pub(super) fn toward(&self) -> Match {
        Match::new().with(of::DATAPATH, self.dp.into()).with(of::OUTPORT, self.key.into())
    }
}

fn set_port_zone(zone: u16) -> Action {
    Action::set_masked(of::PORT_ZONE, u128::from(zone), 0xffff)
}

fn set_datapath_zones(zones: (u16, u16)) -> [Action; 2] {
    [of::set(of::DNAT_ZONE, u64::from(zones.0)), of::set(of::SNAT_ZONE, u64::from(zones.1))]
}

/// The zones that there are: a port's own, and its datapath's.
pub(super) fn set_zones(port: u16, datapath: (u16, u16)) -> impl Iterator<Item = Action> {
    let port = (port != 0).then(|| set_port_zone(port));
    let [dnat, snat] = set_datapath_zones(datapath);
    port.into_iter().chain((datapath.0 != 0).then_some(dnat)).chain((datapath.1 != 0).then_some(snat))
}

/// The flows of one port binding, by its type.
pub(super) fn port(id: Uuid, view: &mut Seen<'_>) {
    let Some(p) = row::<sb::PortBinding>(view, TableId::PortBinding, id) else { return };
    if !is_local(view, p.datapath) {
        return;
    }
    let Some(dp) = datapath_key(view, p.datapath) else { return };
    let b = Bound { id, row: p, dp, key: p.key(), zones: datapath_zones(view, p.datapath) };
    match &*p.r#type {
        "patch" => patch(&b, view),
        "l3gateway" => {
            if here(view, p) {
                patch(&b, view)
            } else {
                remote(&b, view)
            }
        }
        "chassisredirect" => chassis_redirect(&b, view),
        "localnet" | "l2gateway" => provider(&b, view),
        // Where the provider network is not plugged in, a gateway's is.
        "external" if has_localnet(&b, view) => external(&b, view),
        "external" => remote(&b, view),
        _ => virtual_interface(&b, view),
    }
}

/// The OpenFlow port of a virtual interface on this chassis: its own, or its parent's with a tag.
fn local_ofport(b: &Bound<'_>, view: &mut Seen<'_>) -> Option<(u16, Option<u16>)> {
    let name = match &*b.row.r#type {
        "" | "mirror" => crate::rows::claims::interface_name(b.row),
        _ => &b.row.logical_port,
    };
    let vif = view.read(Read::Vif(name.clone())).local.interface(name)?;
    let tag = b.row.parent_port.as_ref().and(b.row.tag).and_then(|t| u16::try_from(t).ok());
    Some((vif.ofport?, tag))
}

fn virtual_interface(b: &Bound<'_>, view: &mut Seen<'_>) {
    let is_here = &*b.row.r#type == "localport" || here(view, b.row);
    match local_ofport(b, view).filter(|_| is_here) {
        Some((ofport, tag)) => {
            let z = zone(view, &b.row.logical_port);
            activation::run(b, ofport, z, view);
            // What a mirror's sink sends is its own port's.
            if &*b.row.r#type != "mirror" {
                from_interface(b, ofport, tag, z, view);
            }
            local_output(b, z, view);
            to_interface(b, ofport, tag.filter(|_| !function::is_tap(b.row)), view);
            let provider = has_localnet(b, view);
            function::local(b, provider, view);
            if &*b.row.r#type == "localport" {
                // It speaks to this chassis only.
                emit(view, t::REMOTE_OUTPUT, 150, b.from(), cookie(b.id), vec![Action::resubmit(t::LOCAL_OUTPUT)]);
            } else if host(b.row).is_none() {
                zone_lookup(b, z, view);
            }
            security::run(b.id, b.row, b.dp, view);
            several(b, view);
        }
        None if !is_here => remote(b, view),
        None if &*b.row.r#type == "virtual" => security::run(b.id, b.row, b.dp, view),
        None if &*b.row.r#type == "localport" => external(b, view),
        None => {}
    }
}

/// What packets that enter by a port carry through its datapath: zones, datapath and port, and the number of the address for
/// tunnels.
pub(super) fn enter(b: &Bound<'_>, z: u16, view: &mut Seen<'_>) -> Vec<Action> {
    let mut actions: Vec<Action> = set_zones(z, b.zones).collect();
    actions.push(of::set(of::DATAPATH, b.dp.into()));
    actions.push(of::set(of::INPORT, b.key.into()));
    let address = tunnel::address_number(b.row, view);
    actions.push(Action::set_masked(of::PORT_ZONE, address << 16, 0xffff_0000));
    actions
}

/// Packets that enter by an interface.
fn from_interface(b: &Bound<'_>, ofport: u16, tag: Option<u16>, z: u16, view: &mut Seen<'_>) {
    let mut m = Match::new().with(FieldId::InPort, u128::from(ofport));
    let mut actions = Vec::new();
    let provider = matches!(&*b.row.r#type, "localnet" | "l2gateway");
    if let Some(tag) = tag {
        m.set(FieldId::VlanVid, u128::from(tag | 0x1000));
        if !provider {
            actions.push(of::set_flags(flag::NESTED_CONTAINER));
        }
        actions.push(Action::PopVlan);
    }
    actions.extend(enter(b, z, view));
    if &*b.row.r#type == "localport" {
        actions.push(of::set_flags(flag::LOCALPORT));
    }
    actions.push(Action::resubmit(t::INGRESS));
    let priority = if tag.is_some() { 150 } else { 100 };
    let transparent = ovn_schema::options::flag(&b.row.options, "vlan-passthru");
    if provider && tag.is_none() {
        if transparent {
            // With whatever tags it has.
            emit(view, t::PHY_TO_LOG, priority, m.clone(), cookie(b.id), actions.clone());
        } else {
            // Untagged, and tagged only for priority (IEEE 802.1Q, VLAN 0).
            let zero = m.clone().with(FieldId::VlanVid, 0x1000);
            let pop = std::iter::once(Action::PopVlan).chain(actions.clone()).collect();
            emit(view, t::PHY_TO_LOG, priority, zero, cookie(b.id), pop);
        }
        m.set_masked(FieldId::VlanTci, 0, 0x1000);
    }
    emit(view, t::PHY_TO_LOG, priority, m, cookie(b.id), actions);
}

/// Packets that leave by an interface.
fn to_interface(b: &Bound<'_>, ofport: u16, tag: Option<u16>, view: &mut Seen<'_>) {
    emit(view, t::LOG_TO_PHY, 100, b.toward(), cookie(b.id), provider_output(b.row, ofport, tag));
}

/// Out of an OpenFlow port with a tag, the packet being as before afterwards.
pub(crate) fn provider_output(p: &sb::PortBinding, ofport: u16, tag: Option<u16>) -> Vec<Action> {
    let mut actions = Vec::new();
    if let Some(tag) = tag {
        let service = p.options.get("ethtype").is_some_and(|t| matches!(&**t, "802.11ad" | "802.1ad"));
        actions.push(Action::PushVlan(if service { 0x88a8 } else { 0x8100 }));
        actions.push(of::set(FieldId::VlanVid, u64::from(tag | 0x1000)));
    }
    actions.push(of::output(ofport));
    if tag.is_some() {
        actions.push(Action::PopVlan);
    }
    actions
}

/// Packets of a provider network, with its tag or without any.
pub(super) fn entry(ofport: u16, tag: Option<u16>) -> Match {
    let m = Match::new().with(FieldId::InPort, u128::from(ofport));
    match tag {
        Some(tag) => m.with(FieldId::VlanVid, u128::from(tag | 0x1000)),
        None => m.with_masked(FieldId::VlanTci, 0, 0x1000),
    }
}

/// Packets for a port on this chassis: to the egress pipeline, but not back where they came from.
fn local_output(b: &Bound<'_>, port_zone: u16, view: &mut Seen<'_>) {
    let mut actions: Vec<Action> = set_zones(port_zone, b.zones).collect();
    actions.push(Action::resubmit(t::CHECK_LOOPBACK));
    emit(view, t::LOCAL_OUTPUT, 100, b.toward(), cookie(b.id), actions);
    let back = b.toward().with(of::INPORT, b.key.into()).with_masked(of::FLAGS, 0, u128::from(flag::LOOPBACK));
    emit(view, t::CHECK_LOOPBACK, 100, back, cookie(b.id), Vec::new());
    // OpenFlow does not send a packet out of its input port; hide that port where sending back is wanted.
    let has = |bit: u32| Match::new().with_masked(of::FLAGS, u128::from(bit), u128::from(bit));
    let mut loops = b.toward().with_masked(of::FLAGS, u128::from(flag::LOOPBACK), u128::from(flag::LOOPBACK));
    let in_port = Subfield::full(FieldId::InPort);
    let hidden = vec![
        Action::Push(in_port),
        of::set(FieldId::InPort, u64::from(PortNo::ANY.0)),
        Action::resubmit(t::LOG_TO_PHY),
        Action::Pop(in_port),
    ];
    if let Some(host) = host(b.row)
        && let Some((id, parent)) = port_by_name(view, host)
    {
        // They share an interface, so it may be both ways in and out.
        loops = b.toward();
        let to_parent =
            has(flag::NESTED_CONTAINER).with(of::DATAPATH, b.dp.into()).with(of::OUTPORT, parent.key().into());
        emit(view, t::SAVE_INPORT, 100, to_parent, cookie(id), hidden.clone());
    }
    emit(view, t::SAVE_INPORT, 100, loops, cookie(b.id), hidden);
}

/// The port whose interface this one shares: a container's parent, a mirror's sink.
fn host(p: &sb::PortBinding) -> Option<&Str> {
    let name = match &*p.r#type {
        "" => p.parent_port.as_ref(),
        "mirror" => p.mirror_port.as_ref(),
        _ => None,
    };
    name.filter(|n| !n.is_empty())
}

/// The zones of packets whose logical input port a tunnel's metadata named.
fn zone_lookup(b: &Bound<'_>, port_zone: u16, view: &mut Seen<'_>) {
    let mut actions: Vec<Action> = set_zones(port_zone, b.zones).collect();
    if actions.is_empty() {
        return;
    }
    actions.push(Action::resubmit(t::INGRESS));
    emit(view, t::CT_ZONE_LOOKUP, 100, b.from(), cookie(b.id), actions);
}

/// A port to a provider network.
fn provider(b: &Bound<'_>, view: &mut Seen<'_>) {
    let name = &b.row.logical_port;
    if &*b.row.r#type == "l2gateway" && !here(view, b.row) {
        return remote(b, view);
    }
    let Some(ofport) = view.read(Read::Localnet(name.clone())).local.localnets.get(name).copied() else {
        // Another provider network of the switch is plugged in here: it stands for this one.
        return external(b, view);
    };
    let tag = b.row.tag.and_then(|t| u16::try_from(t).ok()).filter(|t| *t != 0);
    let z = zone(view, name);
    from_interface(b, ofport, tag, z, view);
    local_output(b, z, view);
    to_interface(b, ofport, tag, view);
    if &*b.row.r#type == "localnet" {
        chassis_mac::localnet(b, ofport, tag, z, view);
        probes::localnet(b, ofport, tag, view);
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
    let (z, peer_zone) = (zone(view, &b.row.logical_port), zone(view, peer_name));
    local_output(b, z, view);
    let mut inner = vec![Action::CtClear];
    inner.extend(set_datapath_zones((0, 0)));
    inner.push(set_port_zone(0));
    inner.extend(set_zones(peer_zone, peer_zones));
    inner.push(of::set(of::DATAPATH, peer_dp.into()));
    inner.push(of::set(of::INPORT, peer.key().into()));
    inner.push(of::set(of::FLAGS, 0));
    inner.push(of::set(of::OUTPORT, 0));
    inner.extend(fixed::clear_registers());
    inner.push(Action::resubmit(t::INGRESS));
    emit(view, t::LOG_TO_PHY, 100, b.toward(), cookie(b.id), vec![Action::Clone(inner)]);
}

/// The distributed port's stand-in on the gateway: here it is the port itself; elsewhere the way to the gateway.
fn chassis_redirect(b: &Bound<'_>, view: &mut Seen<'_>) {
    if !resident(view, &b.row.logical_port, Purpose::Serve) {
        return remote(b, view);
    }
    let Some(distributed) = b.row.options.get("distributed-port") else { return };
    let Some((_, p)) = port_by_name(view, distributed) else { return };
    let mut actions = vec![of::set(of::OUTPORT, p.key().into())];
    actions.extend(set_zones(0, b.zones));
    actions.push(of::set(FieldId::InPort, u64::from(PortNo::ANY.0)));
    actions.push(Action::resubmit(t::CHECK_LOOPBACK));
    let way = successor(view, b.row).and_then(|chassis| tunnel::to(view, chassis));
    match way.filter(|_| !chassis_mac::is_bridged(b.row)) {
        Some(way) => relay(b, &way, view),
        None => emit(view, t::LOCAL_OUTPUT, 100, b.toward(), cookie(b.id), actions),
    }
}

/// This chassis was relieved of a gateway port a moment ago. Packets for the port go on to the new gateway, also those of chassis
/// that have not seen its claim: two that send into a provider network from the router's address have its bridges learn the
/// address at one place and the other, and a bridge drops what comes by the port at which it has just learned the receiver.
/// What comes in from there is served as before. None goes round: a gateway that has claimed a port passes nothing on until it
/// sees its claim ([`gateway_ha::Takeover::claims`]), and another one's after that.
fn relay(b: &Bound<'_>, way: &Way, view: &mut Seen<'_>) {
    let actions: Vec<Action> = way.metadata(b.dp, b.key).into_iter().chain(way.output()).collect();
    emit(view, t::REMOTE_OUTPUT, 100, b.toward(), cookie(b.id), actions.clone());
    // A tunnel's port that leads to all is the one by which they came.
    let hidden = way.flow.map(|_| of::set(FieldId::InPort, u64::from(PortNo::ANY.0)));
    emit(view, t::LOCAL_OUTPUT, 100, b.toward(), cookie(b.id), hidden.into_iter().chain(actions).collect());
}

/// Whether packets between chassis go through tunnels even where a provider network joins them (ovn-nb(5),
/// `NB_Global:options:always_tunnel`).
fn always_tunnel(view: &mut Seen<'_>) -> bool {
    let global = view.read(Read::Options).sb.sb_global.values().next();
    global.is_some_and(|g| ovn_schema::options::flag(&g.options, "always_tunnel"))
}

/// Whether the switch has a provider network, which then carries its packets between chassis.
fn has_localnet(b: &Bound<'_>, view: &mut Seen<'_>) -> bool {
    localnet_of(b.row.datapath, view).is_some()
}

/// The port of a switch to a provider network that is plugged in here.
pub(super) fn localnet_of<'a>(datapath: Uuid, view: &mut Seen<'a>) -> Option<&'a sb::PortBinding> {
    let input = view.read(Read::OthersOf(datapath));
    let mut localnets = input.others_of(datapath).filter(|(_, p)| &*p.r#type == "localnet");
    let (id, _) = localnets.find(|(_, p)| {
        let mapped = &view.read(Read::Localnet(p.logical_port.clone())).local.localnets;
        mapped.contains_key(&p.logical_port)
    })?;
    row(view, TableId::PortBinding, id)
}

/// A port of a machine outside OVN, or one that the provider network reaches: packets for it leave by the switch's localnet port.
fn external(b: &Bound<'_>, view: &mut Seen<'_>) {
    let localnet = localnet_of(b.row.datapath, view).map(|p| p.key());
    if let Some(key) = localnet.filter(|_| &*b.row.r#type == "external" && here(view, b.row))
        && let Some(mac) = b.row.mac.first().and_then(|m| of::ethernet(m.split_whitespace().next()?))
    {
        // What serves the machine may be a localport, whose packets do not leave otherwise.
        let m = Match::new().with(of::DATAPATH, b.dp.into()).with(of::OUTPORT, key.into());
        let from_localport = u128::from(flag::LOCALPORT);
        let m = m.with_masked(of::FLAGS, from_localport, from_localport).with(FieldId::EthDst, mac);
        let actions = fixed::clear_registers().chain([Action::resubmit(t::EGRESS)]).collect();
        emit(view, t::CHECK_LOOPBACK, 170, m, cookie(b.id), actions);
    }
    if let Some(key) = localnet.filter(|k| *k != b.key) {
        let actions = vec![of::set(of::OUTPORT, key.into()), Action::resubmit(t::LOCAL_OUTPUT)];
        emit(view, t::LOCAL_OUTPUT, 100, b.toward(), cookie(b.id), actions);
    }
}

fn chassis_name(view: &mut Seen<'_>, id: Uuid) -> Option<Str> {
    row::<sb::Chassis>(view, TableId::Chassis, id).map(|c| c.name.clone())
}

/// A port on another chassis: through the tunnel to it.
fn remote(b: &Bound<'_>, view: &mut Seen<'_>) {
    if b.row.r#type.is_empty() {
        if host(b.row).is_none() {
            zone_lookup(b, 0, view);
        }
        if !b.row.additional_chassis.is_empty() {
            return several(b, view);
        }
    }
    // Whatever the port's type, it can be a gateway's: the provider network carries the packet there.
    if has_localnet(b, view) && !always_tunnel(view) && !function::is_one(b.row) {
        return external(b, view);
    }
    let me = view.read(Read::Chassis).local.chassis_name.clone();
    let in_group = b.row.ha_chassis_group.is_some() && matches!(&*b.row.r#type, "chassisredirect" | "external");
    if &*b.row.r#type == "chassisredirect" && chassis_mac::is_bridged(b.row) {
        return chassis_mac::bridged(b, view);
    }
    let members = if in_group { gateways(view, b.row) } else { Vec::new() };
    let single = match members.as_slice() {
        [(only, _)] => Some(*only),
        _ => None,
    };
    if in_group && single.is_none() {
        let gateways: Vec<Way> =
            members.iter().filter(|(_, name)| *name != me).filter_map(|(c, _)| tunnel::to(view, *c)).collect();
        let Some(first) = gateways.first() else { return };
        let mut actions = first.metadata(b.dp, b.key);
        match gateways.as_slice() {
            [one] if one.flow.is_some() => actions.extend(one.output()),
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
    let Some(chassis) = single.or(b.row.chassis) else { return };
    let encap = b.row.encap.filter(|_| Some(chassis) == b.row.chassis);
    for (number, from) in (0u128..).zip(tunnel::own_addresses(view)) {
        if let Some(way) = tunnel::between(view, chassis, from.as_ref(), encap) {
            by_tunnel(b, number, &way, view);
        }
    }
}

/// Packets for a port that came by the address of this number, through a tunnel.
fn by_tunnel(b: &Bound<'_>, number: u128, tunnel: &Way, view: &mut Seen<'_>) {
    let vtep = &*b.row.r#type == "vtep";
    let mut actions = Vec::new();
    if vtep {
        tunnel::from_vtep(b.id, b.dp, b.row, view);
        // It goes back to where it came from where that is another port of the VTEP's tunnel.
        actions.push(of::set(FieldId::InPort, u64::from(PortNo::ANY.0)));
    }
    // A packet may go back by the tunnel by which it came, to a function beyond.
    let in_port = Subfield::full(FieldId::InPort);
    let hairpin = function::is_one(b.row) && tunnel.flow.is_none();
    if hairpin {
        actions.push(Action::Push(in_port));
        actions.push(of::set(FieldId::InPort, u64::from(PortNo::ANY.0)));
    }
    actions.extend(tunnel.metadata(b.dp, b.key));
    actions.extend(tunnel.output());
    let next = if vtep || tunnel.flow.is_none() { t::REMOTE_VTEP_OUTPUT } else { t::LOCAL_OUTPUT };
    actions.push(Action::resubmit(next));
    if hairpin {
        actions.push(Action::Pop(in_port));
    }
    let m = b.toward().with_masked(of::PORT_ZONE, number << 16, 0xffff_0000);
    emit(view, t::REMOTE_OUTPUT, 100, m, cookie(b.id), actions);
}

/// The ways to chassis, in the order in which OVN lists them.
fn ways(chassis: &[Uuid], view: &mut Seen<'_>) -> Vec<Way> {
    let mut by_name = std::collections::BTreeMap::new();
    let (mut names, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
    // Many ports of a group are on the same chassis.
    for c in chassis.iter().filter(|c| seen.insert(**c)) {
        let Some(name) = chassis_name(view, *c) else { continue };
        names.push(name.to_string());
        by_name.insert(name.to_string(), *c);
    }
    let list: Vec<Uuid> = ovn_schema::order::listed(names).iter().filter_map(|n| by_name.get(n).copied()).collect();
    list.into_iter().filter_map(|c| tunnel::to(view, c)).collect()
}

/// By which of a chassis' encapsulations a port that is bound to several is reached there.
fn encap_at(p: &sb::PortBinding, chassis: Uuid, view: &mut Seen<'_>) -> Option<Uuid> {
    if p.chassis == Some(chassis) {
        return p.encap;
    }
    let c = row::<sb::Chassis>(view, TableId::Chassis, chassis)?;
    p.additional_encap.iter().copied().find(|e| c.encaps.contains(e))
}

/// A port that is bound to several chassis: packets for it go to all the others, and its own to where the others are, also
/// where a provider network would carry them: it could not tell where the port is.
fn several(b: &Bound<'_>, view: &mut Seen<'_>) {
    let me = view.read(Read::Chassis).local.chassis;
    let others = b.row.chassis.iter().chain(&b.row.additional_chassis).copied().filter(|c| Some(*c) != me);
    if b.row.additional_chassis.is_empty() {
        return;
    }
    let others: Vec<(Uuid, Option<Uuid>)> = others.map(|c| (c, encap_at(b.row, c, view))).collect();
    for (number, from) in (0u128..).zip(tunnel::own_addresses(view)) {
        let mut actions = Vec::new();
        for (chassis, encap) in &others {
            let Some(way) = tunnel::between(view, *chassis, from.as_ref(), *encap) else { continue };
            actions.extend(way.metadata(b.dp, b.key));
            actions.extend(way.output());
        }
        if !actions.is_empty() {
            actions.push(Action::resubmit(t::REMOTE_VTEP_OUTPUT));
            let m = b.toward().with_masked(of::PORT_ZONE, number << 16, 0xffff_0000);
            emit(view, t::REMOTE_OUTPUT, 100, m, cookie(b.id), actions);
        }
    }
    if !here(view, b.row) || !has_localnet(b, view) {
        return;
    }
    let input = view.read(Read::PortsOf(b.row.datapath));
    let mut away = |p: &sb::PortBinding| p.r#type.is_empty() && p.chassis.is_some() && !here(view, p);
    let targets: Vec<(PortKey, Uuid)> = input
        .ports_of(b.row.datapath)
        .filter(|(_, p)| away(p))
        .filter_map(|(_, p)| Some((p.key(), p.chassis?)))
        .collect();
    let mut ways = Vec::new();
    for (key, chassis) in targets {
        let Some(way) = tunnel::to(view, chassis) else { continue };
        let actions = way.metadata(b.dp, key).into_iter().chain(way.output()).collect();
        let m = b.from().with(of::OUTPORT, key.into());
        emit(view, t::REMOTE_OUTPUT, 110, m, cookie(b.id), actions);
        ways.push(way);
    }
    let name = &b.row.logical_port;
    let mtu = view.read(Read::Vif(name.clone())).local.interface(name).and_then(|v| v.mtu);
    large::run(b, mtu, &ways, view);
}

/// A multicast group: to its ports here, and once to every chassis that has others.
pub(super) fn multicast(id: Uuid, view: &mut Seen<'_>) {
    let Some(g) = row::<sb::MulticastGroup>(view, TableId::MulticastGroup, id) else { return };
    if !is_local(view, g.datapath) {
        return;
    }
    let Some(dp) = datapath_key(view, g.datapath) else { return };
    let group_key = g.key();
    let me = view.read(Read::Chassis).local.chassis;
    let (mut patches, mut pairs, mut locals) = (Vec::<Action>::new(), Vec::<Action>::new(), Vec::<Action>::new());
    let (mut chassis, mut vteps) = (Vec::<Uuid>::new(), Vec::<Uuid>::new());
    let has_localnet = localnet_of(g.datapath, view).is_some();
    let datapath = row::<sb::DatapathBinding>(view, TableId::DatapathBinding, g.datapath);
    let is_transit = datapath.is_some_and(|d| d.external_ids.contains_key("interconn-ts"));
    for id in &g.ports {
        let Some(p) = row::<sb::PortBinding>(view, TableId::PortBinding, *id) else { continue };
        let key = p.key();
        let enter_as = |key: PortKey, zone: u16| {
            let set_zone = (zone != 0).then(|| set_port_zone(zone));
            set_zone
                .into_iter()
                .chain([of::set(of::OUTPORT, key.into()), Action::resubmit(t::CHECK_LOOPBACK)])
                .collect::<Vec<_>>()
        };
        let enter = |zone: u16| enter_as(key, zone);
        match &*p.r#type {
            // A copy from another zone goes to this zone's routers, which the sender's zone knows as remote ports.
            "patch" if is_transit => locals.extend(enter(zone(view, &p.logical_port))),
            "patch" => {
                patches.extend(enter(0));
                pairs.extend(enter(0));
            }
            // Groups have other members in another zone: each of its ports gets a copy of its own.
            "remote" => {
                let ways = ways(p.chassis.as_slice(), view);
                if p.chassis.is_some() {
                    patches.push(of::set(of::OUTPORT, key.into()));
                }
                for way in ways {
                    patches.extend(way.metadata(dp, key));
                    patches.extend(way.output());
                }
            }
            "localport" => patches.extend(enter(0)),
            "localnet"
                if view.read(Read::Localnet(p.logical_port.clone())).local.localnets.contains_key(&p.logical_port) =>
            {
                locals.extend(enter(zone(view, &p.logical_port)));
            }
            "localnet" => {}
            // On the gateway the distributed port itself is meant.
            "chassisredirect" if here(view, p) => {
                let name = p.options.get("distributed-port");
                let distributed = name.and_then(|n| port_by_name(view, n)).filter(|(_, d)| d.datapath == p.datapath);
                if let Some((_, d)) = distributed {
                    locals.extend(enter_as(d.key(), zone(view, &p.logical_port)));
                }
            }
            // A provider network carries the packet itself. A copy by a tunnel would leave by the other chassis' provider
            // network, which then takes the sender to be there.
            "external" if has_localnet => {}
            // Its parent gets the copy, a mirror's sink is no machine of the switch, and a machine outside has no interface here.
            "virtual" | "mirror" | "external" if here(view, p) => {}
            _ if here(view, p) => locals.extend(enter(zone(view, &p.logical_port))),
            _ if has_localnet => {}
            "chassisredirect" | "external" => {
                if let Some(active) = active_member(view, p, Purpose::Serve) {
                    chassis.extend(Some(active).filter(|_| Some(active) != me));
                }
            }
            // Only ports behind tunnels need copies.
            "vtep" => vteps.extend(p.chassis),
            _ => chassis.extend(p.chassis.iter().chain(&p.additional_chassis)),
        }
    }
    let restore = || of::set(of::OUTPORT, group_key.into());
    let base = || Match::new().with(of::DATAPATH, dp.into()).with(of::OUTPORT, group_key.into());
    let mut tunnels = ways(&chassis, view);
    tunnels.extend(ways(&vteps, view));
    let next = || Action::resubmit(t::REMOTE_VTEP_OUTPUT);
    if !pairs.is_empty() {
        let both = u128::from(flag::LOOPBACK | flag::RCV_FROM_RAMP);
        let actions = pairs.iter().cloned().chain([restore(), next()]).collect();
        emit(view, t::REMOTE_OUTPUT, 120, base().with_masked(of::FLAGS, both, both), cookie(id), actions);
    }
    if !patches.is_empty() || !tunnels.is_empty() {
        let mut actions = patches.clone();
        if !patches.is_empty() {
            actions.push(restore());
        }
        let mut before: Option<(Str, bool)> = None;
        for way in tunnels {
            let kind = Some((way.kind.clone(), way.vtep));
            if before != kind {
                actions.extend(way.metadata(dp, group_key));
                before = kind;
            }
            actions.extend(way.output());
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
