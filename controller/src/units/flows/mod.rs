//! The flow tables of a chassis as a derivation from the southbound database and local state.

mod activation;
mod balancer;
mod chassis_mac;
mod connections;
mod evpn;
mod fixed;
mod function;
mod ids;
mod large;
mod logical;
mod neighbour;
mod physical;
mod probes;
mod security;
mod sets;
mod tunnel;

use crate::evpn::Entry;
use crate::input::model::{Input, Read};
use crate::rows::claims::{self, Role};
pub use activation::{ACTIVATED, is_activated};
pub use chassis_mac::check as check_mappings;
pub use connections::{Backend, Connections};
use daemon::Counter;
pub use ids::{Ids, UNEXPECTED};
use incremental::{Derivation, View};
use logical_flow::constant::Integer;
use logical_flow::template;
use openflow_rs::action::{SampleAction, SampleDirection, SampleId};
use openflow_rs::mods::MeterConfig;
use openflow_rs::{Action, FieldId, Group, GroupId, Match, MeterId, PackedActions, PackedMatch, PortNo};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{DatapathKey, PortKey, Str, Uuid};
pub(crate) use physical::provider_output;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

/// A unit of the derivation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// What does not depend on anything, and which datapaths are local.
    Root,
    /// A local datapath: which ports and groups it has.
    Datapath(Uuid),
    /// As what this chassis has a port of a local datapath. That changes less often than the port's row.
    Role(Uuid),
    /// Which port groups a local datapath has.
    Groups(Uuid),
    /// Which members of a port group this chassis has flows for.
    Members(Uuid),
    /// Which datapaths of a `Logical_DP_Group` are local: thousands of logical flows have the same few groups.
    DpGroup(Uuid),
    /// The members of an address set.
    Set(Uuid),
    /// How many parts the members of an address set are in, if there are several; of [`Unit::Set`].
    SetParts(Uuid),
    /// One of these parts.
    SetPart(Uuid, u16),
    /// A logical flow, in all local datapaths, but for what members of address sets with several add.
    Flow(Uuid),
    /// What members of such a set add to a logical flow.
    InSet(Box<(Uuid, Uuid)>),
    /// What one part of these adds.
    InPart(Box<(Uuid, Uuid, u16)>),
    /// A port binding's physical flows.
    Port(Uuid),
    /// A multicast group.
    Multicast(Uuid),
    /// The tunnels' flows.
    Tunnels,
    /// A learned neighbour.
    Mac(Uuid),
    /// A configured neighbour.
    StaticMac(Uuid),
    /// A learned forwarding entry.
    Fdb(Uuid),
    /// A load balancer's hairpin flows.
    LoadBalancer(Uuid),
    /// A next hop of symmetric replies: its connections.
    NextHop(Uuid),
    /// An access rule whose connections persist.
    Rule(Uuid),
    /// A thing of the fabric that EVPN extends switches into.
    Evpn(Box<Entry>),
}

/// What later units see of a unit.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// Of [`Unit::Role`].
    Role(Role),
    /// Of [`Unit::Members`]: datapaths, and keys in these.
    Members(Arc<[(Uuid, PortKey)]>),
    /// Of [`Unit::DpGroup`].
    LocalDatapaths(Arc<[Uuid]>),
    /// Of [`Unit::Set`].
    Set(sets::Size),
    /// Of [`Unit::SetParts`].
    SetParts(u16),
    /// Of [`Unit::SetPart`].
    SetPart(Arc<[Integer]>),
    /// Of [`Unit::Flow`].
    Slots(Arc<[sets::Slot]>),
}

/// What is derived: a flow by table, priority and match, or a group by number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A flow.
    Flow(openflow_rs::TableId, u16, PackedMatch),
    /// A group.
    Group(GroupId),
    /// A meter.
    Meter(MeterId),
    /// Connections that the switch forgets when the key goes.
    Connections(Box<Connections>),
    /// What is wrong with a row of the southbound database.
    Problem(Uuid),
}

/// A flow's actions, or a group's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Cookie and actions.
    Flow(u32, PackedActions),
    /// A group.
    Group(Arc<Group>),
    /// A meter.
    Meter(Arc<MeterConfig>),
    /// The key says it all.
    Connections,
    /// Why the row cannot be turned into flows: names the object and what was expected.
    Problem(Str),
}

impl Value {
    fn kind(&self) -> u8 {
        match self {
            Value::Flow(..) => 0,
            Value::Group(_) => 1,
            Value::Meter(_) => 2,
            Value::Connections => 3,
            Value::Problem(_) => 4,
        }
    }
}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Value {
    fn cmp(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Flow(c, a), Value::Flow(d, b)) => c.cmp(d).then_with(|| a.cmp(b)),
            (Value::Problem(a), Value::Problem(b)) => a.cmp(b),
            _ if self == other => Ordering::Equal,
            _ => {
                let by_kind = self.kind().cmp(&other.kind());
                by_kind.then_with(|| format!("{self:?}").cmp(&format!("{other:?}")))
            }
        }
    }
}

/// The derivation of a chassis' flows.
#[derive(Debug, Default)]
pub struct ChassisFlows {
    ids: Arc<Ids>,
}

/// How often a logical flow was turned into flows of the switch.
pub static LOGICAL_FLOWS: Counter = Counter::new("consider_logical_flow");
/// How often everything was derived.
pub static RUNS: Counter = Counter::new("lflow_run");

impl ChassisFlows {
    /// A derivation that takes its numbers from those that are given out already.
    pub fn new(ids: Arc<Ids>) -> ChassisFlows {
        ChassisFlows { ids }
    }

    /// Gives back the numbers of a row that is gone.
    pub fn forget(&self, row: Uuid) {
        self.ids.forget(row);
    }
}

/// The view of a unit.
type Seen<'a> = View<'a, ChassisFlows>;

/// A flow's cookie: the first 32 bits of the UUID of the row that it comes from.
fn cookie(row: Uuid) -> u32 {
    row.as_fields().0
}

/// Whether the integration bridge has a set of sample collectors.
fn collects(view: &mut Seen<'_>, set: u32) -> bool {
    view.read(Read::Collectors).local.collectors.contains(&set)
}

/// What drops a packet in a physical table: nothing, or a sample of it where the options `debug_drop_collector_set` and
/// `debug_drop_domain_id` of ovn-nb(5) ask for samples, and somebody here collects them.
fn dropped(view: &mut Seen<'_>, table: openflow_rs::TableId) -> Vec<Action> {
    let Some(g) = view.read(Read::Options).sb.sb_global.values().next() else { return Vec::new() };
    let number = |name: &str| g.options.get(name).and_then(|v| v.parse::<u32>().ok()).filter(|n| *n > 0);
    let Some(set) = number("debug_drop_collector_set") else { return Vec::new() };
    let domain = number("debug_drop_domain_id").unwrap_or(0) << 24;
    if !collects(view, set) {
        return Vec::new();
    }
    vec![Action::Sample(Box::new(SampleAction {
        probability: u16::MAX,
        collector_set_id: set,
        obs_domain_id: SampleId::Imm(domain),
        obs_point_id: SampleId::Imm(table.0.into()),
        sampling_port: PortNo::ANY,
        direction: SampleDirection::Default,
    }))]
}

/// Puts out a flow of the physical tables.
fn emit(
    view: &mut Seen<'_>,
    table: openflow_rs::TableId,
    priority: u16,
    m: Match,
    cookie: u32,
    mut actions: Vec<Action>,
) {
    use crate::encode::tables as t;
    if actions.is_empty() && matches!(table, t::PHY_TO_LOG | t::LOCAL_OUTPUT | t::CHECK_LOOPBACK | t::LOG_TO_PHY) {
        actions = dropped(view, table);
    }
    put(view, table, priority, m, cookie, actions);
}

/// Puts out a flow.
fn put(view: &mut Seen<'_>, table: openflow_rs::TableId, priority: u16, m: Match, cookie: u32, actions: Vec<Action>) {
    put_packed(view, table, priority, &m, cookie, PackedActions::from(&actions[..]));
}

/// Puts out a flow whose actions are packed.
fn put_packed(
    view: &mut Seen<'_>,
    table: openflow_rs::TableId,
    priority: u16,
    m: &Match,
    cookie: u32,
    actions: PackedActions,
) {
    view.emit(Key::Flow(table, priority, PackedMatch::from(m)), Value::Flow(cookie, actions));
}

/// A row of the southbound database, read.
fn row<'a, T: ovn_schema::InDatabase<Database = sb::Database>>(
    view: &mut Seen<'a>,
    table: TableId,
    id: Uuid,
) -> Option<&'a T> {
    T::rows(&view.read(Read::Row(table, id)).sb).get(&id).map(|r| &**r)
}

/// A text with this chassis' values in the place of template variables.
fn templated<'t>(view: &mut Seen<'_>, text: &'t str) -> Cow<'t, str> {
    if !text.contains('^') {
        return Cow::Borrowed(text);
    }
    let me = view.read(Read::Chassis).local.chassis_name.clone();
    let rows: Vec<Uuid> =
        view.read(Read::Table(TableId::ChassisTemplateVar)).sb.chassis_template_var.keys().copied().collect();
    let all = rows.into_iter().filter_map(|id| row::<sb::ChassisTemplateVar>(view, TableId::ChassisTemplateVar, id));
    let own: Vec<&sb::ChassisTemplateVar> = all.filter(|r| r.chassis == me).collect();
    template::expand(text, &mut |name| own.iter().find_map(|r| r.variables.get(name)).map(|v| v.to_string()))
}

/// A port binding by name, read.
fn port<'a>(view: &mut Seen<'a>, name: &str) -> Option<(Uuid, &'a sb::PortBinding)> {
    view.read(Read::PortByName(name.into())).port(name)
}

/// A datapath's key.
fn datapath_key(view: &mut Seen<'_>, id: Uuid) -> Option<DatapathKey> {
    row::<sb::DatapathBinding>(view, TableId::DatapathBinding, id).map(|d| d.key())
}

fn is_local(view: &mut Seen<'_>, datapath: Uuid) -> bool {
    view.read(Read::Local(datapath)).local.datapaths.contains(&datapath)
}

/// The local datapaths of a `Logical_DP_Group`.
fn local_datapaths<'a>(view: &mut Seen<'a>, group: Uuid) -> &'a [Uuid] {
    match view.fact(&Unit::DpGroup(group)) {
        Some(Fact::LocalDatapaths(here)) => here,
        _ => &[],
    }
}

/// A zone's number; 0 where there is none yet.
fn zone(view: &mut Seen<'_>, name: &Str) -> u16 {
    view.read(Read::Zone(name.clone())).local.zones.get(name).copied().unwrap_or(0)
}

/// A datapath's zones for destination and source translation.
fn datapath_zones(view: &mut Seen<'_>, datapath: Uuid) -> (u16, u16) {
    let input = view.read(Read::Row(TableId::DatapathBinding, datapath));
    let (dnat, snat) = (input.zone_name(datapath, "dnat"), input.zone_name(datapath, "snat"));
    (zone(view, &dnat), zone(view, &snat))
}

/// As what this chassis has a port whose row has been read.
fn role(view: &mut Seen<'_>, p: &sb::PortBinding) -> Role {
    let input = view.read(Read::Chassis);
    if let ("external", Some(group)) = (&*p.r#type, p.ha_chassis_group) {
        read_members(view, group);
        view.read(Read::Alive);
        if claims::yields(p, &input.local) {
            // Another chassis is to answer, as soon as this one does not any more.
            return Role::None;
        }
        if p.chassis.is_none() && crate::units::binding::may_claim(p, input, &input.local) {
            // Nobody answers. Who sees the claim is to be answered.
            return Role::Main;
        }
    }
    if matches!(&*p.r#type, "" | "mirror") {
        let name = claims::interface_name(p);
        view.read(Read::Vif(name.clone()));
        if *name != p.logical_port {
            view.read(Read::PortByName(name.clone()));
        }
    }
    crate::units::binding::role(p, input, &input.local)
}

/// What does not change when a port is bound.
struct Named<'a> {
    id: Uuid,
    datapath: Uuid,
    key: PortKey,
    kind: &'a str,
    /// The port that it is in.
    parent: Option<&'a Str>,
}

/// A port by name, read as far as no binding changes it.
fn named<'a>(view: &mut Seen<'a>, name: &str) -> Option<Named<'a>> {
    known(view, &name.into())
}

/// Likewise, by a name that some row holds: a port group's flow asks for each of its members.
fn known<'a>(view: &mut Seen<'a>, name: &Str) -> Option<Named<'a>> {
    let (id, p) = view.read(Read::PortKey(name.clone())).port(name)?;
    let parent = p.parent_port.as_ref().filter(|n| !n.is_empty());
    Some(Named { id, datapath: p.datapath, key: p.key(), kind: &p.r#type, parent })
}

/// As what this chassis has a port.
fn role_of(view: &mut Seen<'_>, id: Uuid, name: &str) -> Role {
    match view.fact(&Unit::Role(id)) {
        Some(Fact::Role(role)) => *role,
        // It is in no local datapath.
        _ => port(view, name).map_or(Role::None, |(_, p)| role(view, p)),
    }
}

/// Whether this chassis takes a port, whose row has been read, for its own.
fn here(view: &mut Seen<'_>, p: &sb::PortBinding) -> bool {
    role(view, p) != Role::None
}

/// What a flow is for that asks whether a port resides on this chassis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// It serves packets: a gateway port's previous chassis goes on while it lingers.
    Serve,
    /// It answers who asks for an address by ARP or ND. Two answers would be one too many, and that of the previous chassis
    /// would lead the physical network back to it.
    Answer,
}

/// Whether a logical port resides on this chassis (the match language's `is_chassis_resident`).
fn resident(view: &mut Seen<'_>, name: &str, purpose: Purpose) -> bool {
    let Some(n) = named(view, name) else { return false };
    let me = view.read(Read::Chassis).local.chassis;
    if n.kind == "chassisredirect" {
        let Some((_, p)) = port(view, name) else { return false };
        if p.ha_chassis_group.is_some() {
            return active_member(view, p, purpose).is_some_and(|c| Some(c) == me);
        }
    }
    me.is_some() && role_of(view, n.id, name) == Role::Main
}

/// Whether this chassis has a port, or may have to serve it as a member of its HA chassis group.
fn may_serve(view: &mut Seen<'_>, id: Uuid) -> bool {
    let Some(p) = row::<sb::PortBinding>(view, TableId::PortBinding, id) else { return false };
    if let Some(group) = p.ha_chassis_group {
        read_members(view, group);
    }
    let input = view.read(Read::Chassis);
    crate::units::local::may_serve(p, input, &input.local)
}

/// The chassis of a port's HA chassis group that is active in this chassis' view. The port's row has been read.
fn active_member(view: &mut Seen<'_>, port: &sb::PortBinding, purpose: Purpose) -> Option<Uuid> {
    // What the choice depends on besides.
    read_members(view, port.ha_chassis_group?);
    view.read(Read::Alive);
    let input = view.read(Read::Chassis);
    let lingers = &*port.r#type == "chassisredirect" && input.local.gateways.lingering.contains(&port.logical_port);
    if lingers && purpose == Purpose::Serve {
        return input.local.chassis;
    }
    crate::units::binding::active(port, input, &input.local)
}

/// The chassis that has relieved this one of a gateway port a moment ago ([`crate::units::binding::successor`]). The port's row
/// has been read.
fn successor(view: &mut Seen<'_>, port: &sb::PortBinding) -> Option<Uuid> {
    read_members(view, port.ha_chassis_group?);
    row::<sb::Chassis>(view, TableId::Chassis, port.chassis?);
    view.read(Read::Alive);
    let input = view.read(Read::Chassis);
    crate::units::binding::successor(port, input, &input.local)
}

/// The chassis of a port's HA chassis group in the order in which packets for the port are sent to them. The port's row
/// has been read.
fn gateways(view: &mut Seen<'_>, port: &sb::PortBinding) -> Vec<(Uuid, Str)> {
    let Some(group) = port.ha_chassis_group else { return Vec::new() };
    read_members(view, group);
    view.read(Read::Alive);
    let input = view.read(Read::Chassis);
    crate::units::binding::order(port, input, &input.local)
}

/// Notes that the members of an HA chassis group are looked at.
fn read_members(view: &mut Seen<'_>, group: Uuid) {
    let Some(g) = row::<sb::HaChassisGroup>(view, TableId::HaChassisGroup, group) else { return };
    for id in &g.ha_chassis {
        if let Some(chassis) = row::<sb::HaChassis>(view, TableId::HaChassis, *id).and_then(|h| h.chassis) {
            row::<sb::Chassis>(view, TableId::Chassis, chassis);
        }
    }
}

impl Derivation for ChassisFlows {
    type Input = Input;
    type Read = Read;
    type Unit = Unit;
    type Fact = Fact;
    type Key = Key;
    type Value = Value;

    fn layers(&self) -> usize {
        7
    }

    fn layer(&self, unit: &Unit) -> usize {
        match unit {
            Unit::Root => 0,
            Unit::Datapath(_) => 1,
            Unit::Role(_) | Unit::Groups(_) => 2,
            Unit::Members(_) | Unit::DpGroup(_) | Unit::Set(_) | Unit::SetParts(_) | Unit::SetPart(..) => 3,
            Unit::InSet(_) => 5,
            Unit::InPart(_) => 6,
            _ => 4,
        }
    }

    fn roots(&self) -> Vec<Unit> {
        vec![Unit::Root]
    }

    fn present(&self, input: &Input) -> Vec<Unit> {
        let sb = &input.sb;
        let owners: std::collections::BTreeSet<Uuid> =
            input.local.datapaths.iter().flat_map(|dp| std::iter::once(*dp).chain(input.dp_groups_of(*dp))).collect();
        let mut out: Vec<Unit> = owners.into_iter().flat_map(|o| input.flows_of(o)).map(Unit::Flow).collect();
        out.extend(sb.logical_dp_group.keys().copied().map(Unit::DpGroup));
        out.extend(sb.address_set.keys().copied().map(Unit::Set));
        out.extend(sb.mac_binding.keys().copied().map(Unit::Mac));
        out.extend(sb.static_mac_binding.keys().copied().map(Unit::StaticMac));
        out.extend(sb.fdb.keys().copied().map(Unit::Fdb));
        out.extend(sb.load_balancer.keys().copied().map(Unit::LoadBalancer));
        out.extend(sb.ecmp_nexthop.keys().copied().map(Unit::NextHop));
        out.extend(sb.acl_id.keys().copied().map(Unit::Rule));
        out.extend(input.local.fabric.entries().map(|e| Unit::Evpn(Box::new(e))));
        out
    }

    fn decided(&self, input: &Input, thing: &Read) -> Vec<(Unit, bool)> {
        let sb = &input.sb;
        let one = match thing {
            Read::Row(TableId::LogicalFlow, id) => {
                let owner = sb.logical_flow.get(id).and_then(|f| Input::owner_of(f));
                (Unit::Flow(*id), owner.is_some_and(|o| input.has_local(o)))
            }
            Read::Row(TableId::LogicalDpGroup, id) => (Unit::DpGroup(*id), sb.logical_dp_group.contains_key(id)),
            Read::Row(TableId::AddressSet, id) => (Unit::Set(*id), sb.address_set.contains_key(id)),
            Read::Row(TableId::MacBinding, id) => (Unit::Mac(*id), sb.mac_binding.contains_key(id)),
            Read::Row(TableId::StaticMacBinding, id) => (Unit::StaticMac(*id), sb.static_mac_binding.contains_key(id)),
            Read::Row(TableId::Fdb, id) => (Unit::Fdb(*id), sb.fdb.contains_key(id)),
            Read::Row(TableId::LoadBalancer, id) => (Unit::LoadBalancer(*id), sb.load_balancer.contains_key(id)),
            Read::Row(TableId::EcmpNexthop, id) => (Unit::NextHop(*id), sb.ecmp_nexthop.contains_key(id)),
            Read::Row(TableId::AclId, id) => (Unit::Rule(*id), sb.acl_id.contains_key(id)),
            // A switch as such has no flows.
            Read::Evpn(e) if !matches!(**e, Entry::Domain(_)) => (Unit::Evpn(e.clone()), input.local.fabric.has(e)),
            Read::FlowsOf(owner) => {
                let local = input.has_local(*owner);
                return input.flows_of(*owner).map(|f| (Unit::Flow(f), local)).collect();
            }
            _ => return Vec::new(),
        };
        vec![one]
    }

    fn run(&self, unit: &Unit, view: &mut Seen<'_>) {
        match unit {
            Unit::Root => root(view),
            Unit::Datapath(id) => datapath(*id, view),
            Unit::Role(id) => {
                if let Some(p) = row::<sb::PortBinding>(view, TableId::PortBinding, *id) {
                    let role = role(view, p);
                    view.derive(Fact::Role(role));
                }
            }
            Unit::Groups(datapath) => groups(*datapath, view),
            Unit::Members(id) => {
                if let Some(g) = row::<sb::PortGroup>(view, TableId::PortGroup, *id) {
                    let members = logical::members(g, view);
                    view.derive(Fact::Members(members.into()));
                }
            }
            Unit::DpGroup(id) => {
                if let Some(g) = row::<sb::LogicalDpGroup>(view, TableId::LogicalDpGroup, *id) {
                    let here = g.datapaths.iter().copied().filter(|dp| is_local(view, *dp)).collect();
                    view.derive(Fact::LocalDatapaths(here));
                }
            }
            Unit::Set(id) => sets::set(*id, view),
            // Facts that are given.
            Unit::SetParts(_) | Unit::SetPart(..) => {}
            Unit::Flow(id) => logical::run(self, *id, view),
            Unit::InSet(of) => sets::in_set(of.0, of.1, view),
            Unit::InPart(of) => sets::in_part(of.0, of.1, of.2, view),
            Unit::Port(id) => physical::port(*id, view),
            Unit::Multicast(id) => physical::multicast(*id, view),
            Unit::Tunnels => {
                tunnel::from_all(view);
                tunnel::flood_remote(view);
                chassis_mac::others(view);
            }
            Unit::Mac(id) => neighbour::mac(*id, view),
            Unit::StaticMac(id) => neighbour::static_mac(*id, view),
            Unit::Fdb(id) => neighbour::fdb(*id, view),
            Unit::LoadBalancer(id) => balancer::run(*id, view),
            Unit::NextHop(id) => connections::next_hop(*id, view),
            Unit::Rule(id) => connections::rule(*id, view),
            Unit::Evpn(entry) => evpn::run(self, entry, view),
        }
    }
}

fn root(view: &mut Seen<'_>) {
    fixed::run(view);
    view.spawn(Unit::Tunnels);
    let datapaths: Vec<Uuid> = view.read(Read::Datapaths).local.datapaths.iter().copied().collect();
    for id in datapaths {
        view.spawn(Unit::Datapath(id));
    }
}

fn groups(datapath: Uuid, view: &mut Seen<'_>) {
    let Some(d) = row::<sb::DatapathBinding>(view, TableId::DatapathBinding, datapath) else { return };
    let groups: Vec<Uuid> = view.read(Read::PortGroupsOf(d.key())).port_groups_of(d.key()).collect();
    groups.into_iter().for_each(|g| view.spawn(Unit::Members(g)));
}

fn datapath(id: Uuid, view: &mut Seen<'_>) {
    view.spawn(Unit::Groups(id));
    let ports: Vec<Uuid> = view.read(Read::PortsOf(id)).ports_of(id).map(|(id, _)| id).collect();
    for p in ports {
        view.spawn(Unit::Role(p));
        view.spawn(Unit::Port(p));
    }
    let groups: Vec<Uuid> = view.read(Read::GroupsOf(id)).groups_of(id).map(|(id, _)| id).collect();
    groups.into_iter().for_each(|g| view.spawn(Unit::Multicast(g)));
}

/// The verdict of an access rule that lets a packet pass (bit 16 of `reg8`).
const ALLOW: Action = Action::SetField { field: FieldId::XReg4, value: 1 << 48, mask: Some(1 << 48), old: false };

/// The cookie and actions of a flow that several rows put out: clauses of conjunctions are joined; otherwise the first
/// value counts.
pub fn merged(values: &[Value]) -> Option<(u32, PackedActions)> {
    let mut lists = values.iter().filter_map(|v| if let Value::Flow(c, a) = v { Some((*c, a)) } else { None });
    let (cookie, first) = lists.next()?;
    let actions = if values.len() == 1 { first.clone() } else { PackedActions::from(&merge(values)[..]) };
    Some((cookie, actions))
}

/// The actions of [`merged`].
pub fn merge(values: &[Value]) -> Vec<Action> {
    // What was packed unpacks, but for what no switch takes.
    let list = |v: &Value| if let Value::Flow(_, a) = v { a.unpack().ok() } else { None };
    let mut lists = values.iter().filter_map(list);
    let Some(mut first) = lists.next() else { return Vec::new() };
    let clause = |a: &Action| matches!(a, Action::Conjunction { .. });
    if !first.iter().any(clause) {
        // Of rules that contradict each other, the one that allows stands.
        let allows = |list: &[Action]| list.contains(&ALLOW);
        let other = if allows(&first) { None } else { lists.find(|l| allows(l)) };
        return other.unwrap_or(first);
    }
    let own = first.len();
    for list in lists {
        if !list.iter().all(clause) {
            // A flow that decides by itself makes the clauses superfluous.
            return list;
        }
        let new: Vec<Action> = list.into_iter().filter(|a| !first[..own].contains(a)).collect();
        first.extend(new);
    }
    first
}
