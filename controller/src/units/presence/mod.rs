//! What is on this chassis and what it has to do there besides flows, derived in units as flows are: local datapaths, zones, claims,
//! announcements, patch ports, limits, queues, what the packet-in services know. A unit is a local datapath or a port; a change runs those that looked at what changed.
//!
//! ```text
//!   port ──anchor──► datapaths ◄──way── port that leads on
//!                       │ local (again, until nothing is new)
//!                       ▼
//!   datapath ──fact──► port ──► zones, limits, steps, bound interfaces, patches, addresses, queues
//! ```

mod evpn;
mod found;

pub use found::Presence;

use crate::evpn::rows::{Switch, lacks};
use crate::input::model::{Input, Read, is_remote, is_switch, is_vtep};
use crate::pinctrl::announce::{self, Address};
use crate::pinctrl::{bfd, boot, health, next_hops, prefix};
use crate::plug::Wish;
use crate::routing::rows;
use crate::rows::claims::{self, Step};
use crate::rows::mirrors::Copies;
use crate::rows::tunnels::{self, Tunnel};
use crate::units::local::{is_anchor, leads_on};
use crate::{rows::queues, rows::switch_config, rows::zones, units::binding};
use incremental::{Derivation, View};
use ovn_schema::sb::{self, PortBinding, TableId};
use ovn_schema::{DatapathKey, Map, PortKey, Set, Str, Uuid};
use packet::Mac;
use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

/// A unit of the derivation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A local datapath.
    Datapath(Uuid),
    /// A port that this chassis may have to serve ([`Input::candidates`]).
    Binding(Uuid),
    /// A port of a local datapath that is no machine's: it may lead on, or need a patch port.
    Other(Uuid),
    /// A row of names.
    Names(Uuid),
    /// A health check.
    Check(Uuid),
    /// A next hop of symmetric replies.
    NextHop(Uuid),
    /// A BFD session.
    Session(Uuid),
    /// A prefix to advertise.
    Advertised(Uuid),
    /// A port of a switch whose Ethernet addresses are advertised by EVPN.
    Speaker(Uuid),
    /// A learned forwarding entry of such a switch.
    Learned(Uuid),
    /// A neighbour to advertise.
    AdvertisedMac(Uuid),
    /// A chassis, as one to which tunnels may lead.
    Peer(Uuid),
    /// A group of chassis whose tunnels may be watched.
    Group(Uuid),
}

/// What ports need to know of their local datapath.
#[derive(Clone, Debug, PartialEq)]
pub struct Datapath {
    /// Its key.
    key: DatapathKey,
    /// A provider network is plugged into it.
    provider: bool,
    /// It is a switch.
    switch: bool,
    /// How many connections each of its zones may have.
    limit: Option<i64>,
}

/// The name of an output.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A datapath that has something here.
    Anchor(Uuid),
    /// What is local behind a local datapath.
    Way(Uuid, Uuid),
    /// A zone that is needed.
    Zone(Str),
    /// The number that a router's zone is to have.
    Requested(Str),
    /// How many connections a zone may have.
    Limit(Str),
    /// What is to be done with a port binding.
    Step(Uuid),
    /// A port binding whose encapsulation is another than it says.
    Encapsulation(Uuid),
    /// Why a port whose interface is plugged in here is not claimed.
    Unclaimed(Str),
    /// An interface whose port is bound here.
    Bound(Uuid),
    /// A port of a provider network that needs a patch port.
    Patch(Str),
    /// An address that is announced.
    Address(Address),
    /// What a router of this chassis is to know of it.
    Tells(crate::rows::learned::Key),
    /// A queue of a provider network's interface.
    Queue(Str, i64),
    /// A port for which this controller is to plug a device in.
    Plug(Str),
    /// A group of chassis that serves local datapaths.
    Serves(Uuid),
    /// A mirror, and a local port whose packets it copies.
    Mirrored(Uuid, Str),
    /// A tunnel that there should be, by its mark.
    Tunnel(Str),
    /// A chassis to which tunnels run BFD.
    Watched(Uuid),
    /// A health check that is this chassis'.
    Check(Uuid),
    /// A next hop that this chassis asks.
    NextHop(Uuid),
    /// A port that gets a prefix by this chassis.
    Delegation(Uuid),
    /// A switch that EVPN extends.
    Evpn(Uuid),
    /// Such a switch, and the option that names a device which it lacks.
    Lacks(Uuid, &'static str),
    /// An Ethernet address of this chassis that such a switch advertises.
    EvpnMac(Uuid, Mac),
    /// A neighbour likewise.
    EvpnNeighbour(Uuid, IpAddr, Mac),
    /// A router port that exchanges routes.
    Exchange(Uuid),
    /// A prefix that is advertised.
    Advertised(Uuid),
    /// A BFD session that is this chassis'.
    Session(Uuid),
    /// The names of a row that a datapath knows, by its key.
    Names(DatapathKey, Uuid),
    /// A redirect port, by the keys of its datapath and its own.
    Distributed(DatapathKey, PortKey),
    /// What a machine is to load, by the key of its datapath and its Ethernet address.
    Boot(DatapathKey, Mac),
}

/// What is said of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// It is there.
    Is,
    /// A number.
    Number(i64),
    /// A port, by key.
    Port(PortKey),
    /// A text, or a name.
    Text(Str),
    /// A step.
    Step(Step),
    /// The port's type, and its provider network.
    Patch(Str, Option<Str>),
    /// The queue's port, and its rates.
    Queue(Str, Map<Str, Str>),
    /// What a port asks of the device.
    Plug(Wish),
    /// A row of names.
    Names(Names),
    /// The row of the port's interface, and what is copied where.
    Mirrored(Uuid, Copies),
    /// What is checked.
    Check(health::Target),
    /// A tunnel.
    Tunnel(Tunnel),
    /// What is asked.
    Question(next_hops::Question),
    /// How a port gets its prefix.
    Delegation(prefix::Requester),
    /// How a port exchanges routes.
    Exchange(rows::Port),
    /// What is advertised.
    Advertised(rows::Advertised),
    /// What a switch asks of EVPN.
    Evpn(Arc<Switch>),
    /// A BFD session.
    Session(bfd::Wanted),
    /// What is to be loaded.
    Boot(Arc<boot::Rules>),
}

/// A row of names, in an order by what it says.
#[derive(Clone, Debug)]
pub struct Names(Arc<sb::Dns>);

impl Names {
    fn content(&self) -> (&Set<Uuid>, &Map<Str, Str>, &Map<Str, Str>) {
        (&self.0.datapaths, &self.0.records, &self.0.options)
    }
}

impl Ord for Names {
    fn cmp(&self, other: &Names) -> Ordering {
        self.content().cmp(&other.content())
    }
}

impl PartialOrd for Names {
    fn partial_cmp(&self, other: &Names) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Names) -> bool {
        self.content() == other.content()
    }
}

impl Eq for Names {}

/// The derivation.
#[derive(Debug, Default)]
pub struct Derive;

type Seen<'a> = View<'a, Derive>;

impl Derivation for Derive {
    type Input = Input;
    type Read = Read;
    type Unit = Unit;
    type Fact = Datapath;
    type Key = Key;
    type Value = Value;

    fn layers(&self) -> usize {
        2
    }

    fn layer(&self, unit: &Unit) -> usize {
        usize::from(!matches!(unit, Unit::Datapath(_)))
    }

    fn roots(&self) -> Vec<Unit> {
        Vec::new()
    }

    fn present(&self, input: &Input) -> Vec<Unit> {
        let datapaths = input.local.datapaths.iter().copied().map(Unit::Datapath);
        let names = input.sb.dns.keys().copied().map(Unit::Names);
        let checks = input.sb.service_monitor.keys().copied().map(Unit::Check);
        let next_hops = input.sb.ecmp_nexthop.keys().copied().map(Unit::NextHop);
        let sessions = input.sb.bfd.keys().copied().map(Unit::Session);
        let advertised = input.sb.advertised_route.keys().copied().map(Unit::Advertised);
        let evpn = input.sb.datapath_binding.keys().flat_map(|dp| evpn::units(input, *dp));
        let evpn = evpn.filter_map(|(unit, needed)| needed.then_some(unit));
        let macs = input.sb.advertised_mac_binding.keys().copied().map(Unit::AdvertisedMac);
        let bindings = input.candidates().into_iter().map(Unit::Binding);
        let peers = input.sb.chassis.keys().copied().map(Unit::Peer);
        let groups = input.sb.ha_chassis_group.keys().copied().map(Unit::Group);
        datapaths
            .chain(bindings)
            .chain(names)
            .chain(checks)
            .chain(next_hops)
            .chain(sessions)
            .chain(advertised)
            .chain(evpn)
            .chain(macs)
            .chain(peers)
            .chain(groups)
            .collect()
    }

    fn decided(&self, input: &Input, thing: &Read) -> Vec<(Unit, bool)> {
        let candidate = |id: Uuid| (Unit::Binding(id), input.is_candidate(&id));
        match thing {
            Read::Local(dp) => {
                let datapath = (Unit::Datapath(*dp), input.local.datapaths.contains(dp));
                std::iter::once(datapath).chain(evpn::units_of_learned(input, *dp)).collect()
            }
            Read::Row(TableId::PortBinding, id) => {
                let speaks = input.sb.port_binding.get(id).is_some_and(|p| evpn::speaks(input, &p.datapath));
                vec![candidate(*id), (Unit::Speaker(*id), speaks)]
            }
            Read::Row(TableId::Fdb, id) => {
                let datapath = input.sb.fdb.get(id).and_then(|f| input.datapath(f.datapath()));
                vec![(Unit::Learned(*id), datapath.is_some_and(|dp| evpn::hears(input, &dp)))]
            }
            Read::Row(TableId::DatapathBinding, id) => evpn::units(input, *id).collect(),
            Read::Row(TableId::AdvertisedMacBinding, id) => {
                vec![(Unit::AdvertisedMac(*id), input.sb.advertised_mac_binding.contains_key(id))]
            }
            Read::Row(TableId::Dns, id) => vec![(Unit::Names(*id), input.sb.dns.contains_key(id))],
            Read::Row(TableId::ServiceMonitor, id) => {
                vec![(Unit::Check(*id), input.sb.service_monitor.contains_key(id))]
            }
            Read::Row(TableId::Chassis, id) => vec![(Unit::Peer(*id), input.sb.chassis.contains_key(id))],
            Read::Row(TableId::HaChassisGroup, id) => {
                vec![(Unit::Group(*id), input.sb.ha_chassis_group.contains_key(id))]
            }
            Read::Row(TableId::AdvertisedRoute, id) => {
                vec![(Unit::Advertised(*id), input.sb.advertised_route.contains_key(id))]
            }
            Read::Row(TableId::Bfd, id) => vec![(Unit::Session(*id), input.sb.bfd.contains_key(id))],
            Read::Row(TableId::EcmpNexthop, id) => {
                vec![(Unit::NextHop(*id), input.sb.ecmp_nexthop.contains_key(id))]
            }
            Read::Vif(name) | Read::Plugged(name) => input.ports_in(name).map(candidate).collect(),
            _ => Vec::new(),
        }
    }

    fn run(&self, unit: &Unit, view: &mut Seen<'_>) {
        match unit {
            Unit::Datapath(id) => datapath(*id, view),
            Unit::Binding(id) => binding(*id, view),
            Unit::Other(id) => other(*id, view),
            Unit::Names(id) => names(*id, view),
            Unit::Check(id) => check(*id, view),
            Unit::NextHop(id) => next_hop(*id, view),
            Unit::Session(id) => session(*id, view),
            Unit::Advertised(id) => advertised(*id, view),
            Unit::Speaker(id) => evpn::speaker(*id, view),
            Unit::Learned(id) => evpn::learned(*id, view),
            Unit::AdvertisedMac(id) => evpn::neighbour(*id, view),
            Unit::Peer(id) => peer(*id, view),
            Unit::Group(id) => group(*id, view),
        }
    }
}

fn names(id: Uuid, view: &mut Seen<'_>) {
    let Some(names) = view.read(Read::Row(TableId::Dns, id)).sb.dns.get(&id) else { return };
    for dp in &names.datapaths {
        if let Some(d) = row::<sb::DatapathBinding>(view, TableId::DatapathBinding, *dp) {
            view.emit(Key::Names(d.key(), id), Value::Names(Names(names.clone())));
        }
    }
}

fn check(id: Uuid, view: &mut Seen<'_>) {
    let Some(m) = row::<sb::ServiceMonitor>(view, TableId::ServiceMonitor, id) else { return };
    let network_function = m.r#type.as_deref() == Some("network-function");
    for name in std::iter::once(&m.logical_port).chain(Some(&m.logical_input_port).filter(|_| network_function)) {
        if let Some((port, p)) = view.read(Read::PortByName(name.clone())).port(name) {
            view.read(Read::Up(port));
            row::<sb::DatapathBinding>(view, TableId::DatapathBinding, p.datapath);
        }
    }
    if let Some(target) = health::target(m, view.read(Read::Chassis)) {
        view.emit(Key::Check(id), Value::Check(target));
    }
}

fn peer(id: Uuid, view: &mut Seen<'_>) {
    let Some(c) = row::<sb::Chassis>(view, TableId::Chassis, id) else { return };
    // A top-of-rack switch asks for it (`Chassis.other_config:vtep-bfd`, which vtep-controller sets).
    if is_vtep(c) && ovn_schema::options::flag(&c.other_config, "vtep-bfd") {
        view.emit(Key::Watched(id), Value::Is);
    }
    view.read(Read::Tunnelling);
    view.read(Read::Options);
    let me = view.read(Read::Chassis).local.chassis;
    let own = me.and_then(|me| row::<sb::Chassis>(view, TableId::Chassis, me));
    for e in c.encaps.iter().chain(own.into_iter().flat_map(|c| &c.encaps)) {
        row::<sb::Encap>(view, TableId::Encap, *e);
    }
    for (mark, tunnel) in tunnels::to_chassis(view.read(Read::Chassis), c) {
        view.emit(Key::Tunnel(mark), Value::Tunnel(tunnel));
    }
}

fn group(id: Uuid, view: &mut Seen<'_>) {
    let Some(g) = row::<sb::HaChassisGroup>(view, TableId::HaChassisGroup, id) else { return };
    members(view, id);
    let input = view.read(Read::Serves(id));
    if input.is_served_by(&id) {
        view.read(Read::Datapaths);
        for dp in &input.local.datapaths {
            view.read(Read::ChassisOf(*dp));
        }
    }
    for chassis in tunnels::watched(view.read(Read::Chassis), id, g) {
        if row::<sb::Chassis>(view, TableId::Chassis, chassis).is_some_and(|c| !is_remote(c)) {
            view.emit(Key::Watched(chassis), Value::Is);
        }
    }
}

fn next_hop(id: Uuid, view: &mut Seen<'_>) {
    let Some(n) = row::<sb::EcmpNexthop>(view, TableId::EcmpNexthop, id) else { return };
    let Some(p) = row::<PortBinding>(view, TableId::PortBinding, n.port) else { return };
    row::<sb::DatapathBinding>(view, TableId::DatapathBinding, p.datapath);
    let input = look(view, p);
    if let Some(question) = next_hops::question(n, input) {
        view.emit(Key::NextHop(id), Value::Question(question));
    }
}

fn session(id: Uuid, view: &mut Seen<'_>) {
    let Some(b) = row::<sb::Bfd>(view, TableId::Bfd, id) else { return };
    let redirect = bfd::redirect_port(&b.logical_port);
    for p in [&b.logical_port, &redirect].into_iter().filter_map(|n| named(view, n)).collect::<Vec<_>>() {
        row::<sb::DatapathBinding>(view, TableId::DatapathBinding, p.datapath);
        look(view, p);
        if let Some(peer) = p.options.get("peer") {
            named(view, peer);
        }
    }
    if let Some(wanted) = bfd::wanted(b, view.read(Read::Chassis)) {
        view.emit(Key::Session(id), Value::Session(wanted));
    }
}

fn advertised(id: Uuid, view: &mut Seen<'_>) {
    let Some(a) = row::<sb::AdvertisedRoute>(view, TableId::AdvertisedRoute, id) else { return };
    for port in std::iter::once(a.logical_port).chain(a.tracked_port) {
        if let Some(p) = row::<PortBinding>(view, TableId::PortBinding, port) {
            look(view, p);
            if let Some(r) = rows::redirect_port(p).and_then(|n| named(view, n)) {
                look(view, r);
            }
        }
    }
    if let Some(advertised) = rows::advertised(a, view.read(Read::Chassis)) {
        view.emit(Key::Advertised(id), Value::Advertised(advertised));
    }
}

fn row<'a, T: ovn_schema::InDatabase<Database = sb::Database>>(
    view: &mut Seen<'a>,
    table: TableId,
    id: Uuid,
) -> Option<&'a T> {
    T::rows(&view.read(Read::Row(table, id)).sb).get(&id).map(|r| &**r)
}

fn named<'a>(view: &mut Seen<'a>, name: &Str) -> Option<&'a PortBinding> {
    view.read(Read::PortByName(name.clone())).port(name).map(|(_, p)| p)
}

fn datapath(id: Uuid, view: &mut Seen<'_>) {
    let Some(d) = row::<sb::DatapathBinding>(view, TableId::DatapathBinding, id) else { return };
    let limit = switch_config::limit(d.external_ids.get("ct-zone-limit"));
    if let Some(s) = Switch::of(d) {
        view.emit(Key::Evpn(id), Value::Evpn(Arc::new(s)));
    }
    for option in lacks(d) {
        view.emit(Key::Lacks(id, option), Value::Is);
    }
    let input = view.read(Read::OthersOf(id));
    for suffix in ["dnat", "snat"] {
        let name = input.zone_name(id, suffix);
        if let Some(n) = limit {
            view.emit(Key::Limit(name.clone()), Value::Number(n));
        }
        if let Some(n) = zones::requested(d).filter(|_| suffix == "snat") {
            view.emit(Key::Requested(name.clone()), Value::Number(n.into()));
        }
        view.emit(Key::Zone(name), Value::Is);
    }
    let mut provider = false;
    for (port, p) in input.others_of(id) {
        view.spawn(Unit::Other(port));
        if &*p.r#type == "localnet" {
            view.read(Read::Localnet(p.logical_port.clone()));
            provider |= input.local.localnets.contains_key(&p.logical_port);
        }
    }
    view.derive(Datapath { key: d.key(), provider, switch: is_switch(d), limit });
}

/// Notes what decides as what this chassis has a port, and which chassis serves it.
fn look<'a>(view: &mut Seen<'a>, p: &'a PortBinding) -> &'a Input {
    let input = view.read(Read::Chassis);
    match &*p.r#type {
        "" | "mirror" => interface(view, p),
        "virtual" => {
            if let Some(parent) = p.virtual_parent.as_ref().and_then(|n| named(view, n)) {
                interface(view, parent);
            }
        }
        _ => {}
    }
    if let Some(g) = p.ha_chassis_group {
        view.read(Read::Alive);
        members(view, g);
        // Who has it may be no member any more.
        if let Some(c) = p.chassis {
            row::<sb::Chassis>(view, TableId::Chassis, c);
        }
    }
    input
}

/// Notes which interface a port has.
fn interface<'a>(view: &mut Seen<'a>, p: &'a PortBinding) {
    let name = claims::interface_name(p);
    view.read(Read::Vif(name.clone()));
    if *name != p.logical_port {
        named(view, name);
    }
}

/// Notes who is in a group of chassis.
fn members(view: &mut Seen<'_>, group: Uuid) {
    let Some(g) = row::<sb::HaChassisGroup>(view, TableId::HaChassisGroup, group) else { return };
    for h in &g.ha_chassis {
        if let Some(c) = row::<sb::HaChassis>(view, TableId::HaChassis, *h).and_then(|h| h.chassis) {
            row::<sb::Chassis>(view, TableId::Chassis, c);
        }
    }
}

fn binding(id: Uuid, view: &mut Seen<'_>) {
    let Some(p) = row::<PortBinding>(view, TableId::PortBinding, id) else { return };
    view.read(Read::Up(id));
    let input = look(view, p);
    let local = &input.local;
    if is_anchor(p, input, local) {
        view.emit(Key::Anchor(p.datapath), Value::Is);
    }
    claim(id, p, input, view);
    if let Some(behind) = p.options.get("distributed-port").and_then(|n| named(view, n))
        && let Some(d) = row::<sb::DatapathBinding>(view, TableId::DatapathBinding, p.datapath)
    {
        view.emit(Key::Distributed(d.key(), p.key()), Value::Port(behind.key()));
    }
    boots(p, view);
    if let Some(wish) = Wish::of(p, local) {
        view.emit(Key::Plug(p.logical_port.clone()), Value::Plug(wish));
    }
    let here = binding::is_here(p, input, local);
    // Its flows make a port usable, which does not wait for the claim to reach the southbound database.
    if here {
        view.read(Read::Vif(p.logical_port.clone()));
        if let Some(vif) = local.interface(&p.logical_port) {
            view.emit(Key::Bound(vif.row), Value::Text(p.logical_port.clone()));
        }
    }
    let Some(dp) = view.fact(&Unit::Datapath(p.datapath)).cloned() else { return };
    // A port that is about to be claimed keeps the zone that it had.
    if zones::of_machine(p) && binding::is_or_comes_here(p, input, local) {
        view.emit(Key::Zone(p.logical_port.clone()), Value::Is);
    }
    if let Some(g) = p.ha_chassis_group {
        view.emit(Key::Serves(g), Value::Is);
    }
    if here && dp.switch && p.r#type.is_empty() {
        let text = p.options.get("ct-zone-limit");
        if let Some(n) = if text.is_some() { switch_config::limit(text) } else { dp.limit } {
            view.emit(Key::Limit(p.logical_port.clone()), Value::Number(n));
        }
    }
    if here && matches!(&*p.r#type, "" | "virtual" | "l2gateway") {
        queue(p, view);
    }
    if here {
        mirrored(p, view);
    }
    if dp.provider && p.r#type.is_empty() && p.chassis.is_some() && p.chassis == local.chassis {
        addresses(p, &dp, view);
    }
}

/// What the port's machines are to load.
fn boots(p: &PortBinding, view: &mut Seen<'_>) {
    let (rules, wrong) = boot::Rules::of(&p.external_ids);
    for text in wrong {
        let kind = daemon::kind(&text);
        tracing::warn!(target: "pinctrl", kind, "Port_Binding {}: external_ids:{text}", p.logical_port);
    }
    let Some(rules) = rules.map(Arc::new) else { return };
    let Some(d) = row::<sb::DatapathBinding>(view, TableId::DatapathBinding, p.datapath) else { return };
    let macs = p.mac.iter().filter_map(|m| m.split_whitespace().next()?.parse().ok());
    macs.for_each(|mac| view.emit(Key::Boot(d.key(), mac), Value::Boot(rules.clone())));
}

/// What is to be written of a port: who has it, and by which address it is reached.
fn claim(id: Uuid, p: &PortBinding, input: &Input, view: &mut Seen<'_>) {
    let Some(me) = input.local.chassis else { return };
    if let Some(step) = claims::step(p, me, input) {
        view.emit(Key::Step(id), Value::Step(step));
    }
    if let Some(c) = p.chassis {
        row::<sb::Chassis>(view, TableId::Chassis, c);
    }
    if let Some(text) = claims::unclaimed(p, input) {
        view.emit(Key::Unclaimed(p.logical_port.clone()), Value::Text(text));
    }
    for e in row::<sb::Chassis>(view, TableId::Chassis, me).iter().flat_map(|c| &c.encaps) {
        row::<sb::Encap>(view, TableId::Encap, *e);
    }
    if claims::is_reached_otherwise(p, me, input) {
        view.emit(Key::Encapsulation(id), Value::Is);
    }
}

fn other(id: Uuid, view: &mut Seen<'_>) {
    let Some(p) = row::<PortBinding>(view, TableId::PortBinding, id) else { return };
    let Some(dp) = view.fact(&Unit::Datapath(p.datapath)).cloned() else { return };
    let input = look(view, p);
    let here = binding::is_here(p, input, &input.local);
    if zones::of_datapath(p) {
        view.emit(Key::Zone(p.logical_port.clone()), Value::Is);
    }
    if &*p.r#type == "localnet" {
        queue(p, view);
    }
    if &*p.r#type == "localnet" || &*p.r#type == "l2gateway" && here {
        let network = p.options.get("network_name").cloned();
        view.emit(Key::Patch(p.logical_port.clone()), Value::Patch(p.r#type.clone(), network));
    }
    if &*p.r#type == "patch" || &*p.r#type == "l3gateway" && here {
        way(p, view);
    }
    if !dp.switch && matches!(&*p.r#type, "patch" | "l3gateway") {
        exchange(id, p, view);
    }
    if prefix::asks(p) {
        delegations(p, view);
    }
    if dp.provider && matches!(&*p.r#type, "patch" | "l3gateway") {
        addresses(p, &dp, view);
    }
}

/// The ports of a router that get prefixes by one of them.
fn delegations(uplink: &PortBinding, view: &mut Seen<'_>) {
    let redirect = bfd::redirect_port(&uplink.logical_port);
    let peer = uplink.options.get("peer").and_then(|n| named(view, n));
    if let Some(r) = named(view, &redirect) {
        look(view, r);
    }
    for dp in [Some(uplink.datapath), peer.map(|p| p.datapath)].into_iter().flatten() {
        row::<sb::DatapathBinding>(view, TableId::DatapathBinding, dp);
    }
    let all: Vec<Uuid> =
        view.read(Read::OthersOf(uplink.datapath)).others_of(uplink.datapath).map(|(id, _)| id).collect();
    for id in all {
        let Some(inner) = row::<PortBinding>(view, TableId::PortBinding, id).filter(|p| prefix::gets(p)) else {
            continue;
        };
        if let Some(requester) = prefix::requester(uplink, inner, view.read(Read::Chassis)) {
            view.emit(Key::Delegation(id), Value::Delegation(requester));
        }
    }
}

/// How a router port exchanges routes.
fn exchange<'a>(id: Uuid, p: &'a PortBinding, view: &mut Seen<'a>) {
    let redirect = rows::redirect_port(p).and_then(|n| named(view, n));
    let asks =
        |p: &PortBinding| ["dynamic-routing", "dynamic-routing-port-name"].iter().any(|o| p.options.contains_key(*o));
    if !asks(p) && !redirect.is_some_and(asks) {
        return;
    }
    look(view, p);
    if let Some(r) = redirect {
        look(view, r);
    }
    if let Some(peer) = p.options.get("peer") {
        named(view, peer);
    }
    row::<sb::DatapathBinding>(view, TableId::DatapathBinding, p.datapath);
    if let Some(port) = rows::port(p, view.read(Read::Chassis)) {
        view.emit(Key::Exchange(id), Value::Exchange(port));
    }
}

/// Where a port leads.
fn way(p: &PortBinding, view: &mut Seen<'_>) {
    let Some(peer) = p.options.get("peer").and_then(|n| named(view, n)) else { return };
    for end in [p, peer] {
        if let Some(r) = end.options.get("chassis-redirect-port").and_then(|n| named(view, n)) {
            look(view, r);
        }
    }
    let input = view.read(Read::Chassis);
    if leads_on(p, peer, input, &input.local) {
        view.emit(Key::Way(p.datapath, peer.datapath), Value::Is);
    }
}

/// The mirrors of a local port, but for those that are flows.
fn mirrored(p: &PortBinding, view: &mut Seen<'_>) {
    if p.mirror_rules.is_empty() {
        return;
    }
    view.read(Read::Plugged(p.logical_port.clone()));
    let vifs = &view.read(Read::Vif(p.logical_port.clone())).local.vifs;
    let Some(vif) = vifs.get(&p.logical_port) else { return };
    for id in &p.mirror_rules {
        if let Some(m) = row::<sb::Mirror>(view, TableId::Mirror, *id).filter(|m| &*m.r#type != "lport") {
            view.emit(Key::Mirrored(*id, p.logical_port.clone()), Value::Mirrored(vif.row, Copies::of(m)));
        }
    }
}

fn queue(p: &PortBinding, view: &mut Seen<'_>) {
    if let Some((number, (port, rates), network)) = queues::wanted_of(p) {
        view.emit(Key::Queue(network.clone(), number), Value::Queue(port, rates));
    }
}

/// The addresses that this chassis speaks for at a port of a provider network.
fn addresses(p: &PortBinding, dp: &Datapath, view: &mut Seen<'_>) {
    if p.mac.is_empty() && p.nat_addresses.is_empty() {
        return;
    }
    if let Some(peer) = p.options.get("peer").and_then(|n| named(view, n)) {
        row::<sb::DatapathBinding>(view, TableId::DatapathBinding, peer.datapath);
    }
    for condition in announce::conditions(p) {
        if let Some(r) = named(view, &condition.into()) {
            look(view, r);
            view.read(Read::Hushed);
        }
    }
    let input = view.read(Read::Chassis);
    let all = announce::of_port(input, p, dp.key);
    let doors = if all.is_empty() { Vec::new() } else { doors(p.datapath, view) };
    for a in all {
        for (told, only_known) in announce::listeners(input, &a, doors.iter().copied()) {
            view.emit(Key::Tells(told), Value::Number(only_known.into()));
        }
        view.emit(Key::Address(a), Value::Is);
    }
}

/// The ports of a switch to routers, with the routers' ports, whose datapaths are read.
fn doors<'a>(datapath: Uuid, view: &mut Seen<'a>) -> Vec<(&'a PortBinding, &'a PortBinding)> {
    let input = view.read(Read::OthersOf(datapath));
    let mut out = Vec::new();
    for (id, _) in input.others_of(datapath).filter(|(_, p)| matches!(&*p.r#type, "patch" | "l3gateway")) {
        let Some(door) = row::<PortBinding>(view, TableId::PortBinding, id) else { continue };
        let Some(peer) = door.options.get("peer").and_then(|n| named(view, n)) else { continue };
        view.read(Read::Local(peer.datapath));
        row::<sb::DatapathBinding>(view, TableId::DatapathBinding, peer.datapath);
        out.push((door, peer));
    }
    out
}
