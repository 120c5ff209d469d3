//! The derivation, cut into units.
//!
//! ```text
//! layer  0  Topology(db)   what people configured in a hardware_vtep database
//!        0  Endpoints ──► 1  Endpoint(chassis)    a chassis' VXLAN address
//!        1  Registry       switches as chassis, who shares an address                    ► Chassis
//!        2  Bindings       which port attaches which logical switch to which datapath    ► Binding, Switch
//!        3  Tunnels(db)    BFD                                                           ► Tunnel
//!        3  Datapath(dp)   what is attached to a datapath
//!        3  Locals(db, ls) ──► 5  Local(row)      what the switch learned                ► Fdb
//!        4  Routers(dp)    routers' ports at a datapath, for Local(row)                ► Neighbour
//!        4  Members(dp) ──►  5  Port(port)        MACs of a port                         ► Ucast
//!                       └─►  5  Peer(port) ──► 6  Learned(row)  MACs of another switch   ► Ucast
//!        6  Flood(db, ls)  where packets to many go                                      ► Mcast
//! ```
//!
//! Every unit may put out notices.

mod binding;
mod endpoint;
mod flood;
mod macs;
mod neighbours;
mod registry;
mod topology;
mod tunnels;

pub use registry::{BFD, OWNER};
pub use tunnels::is_up as bfd_is_up;

use crate::model::{Input, Read, TorId};
use crate::output::{Key, Module, Notice, Value};
use crate::settings::Replication;
use incremental::{Derivation, View};
use ipnetwork::IpNetwork;
use ovn_schema::{Map, Str, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// The name of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// What people configured in a hardware_vtep database.
    Topology(TorId),
    /// All chassis.
    Endpoints,
    /// A chassis' VXLAN address.
    Endpoint(Uuid),
    /// Switches as chassis.
    Registry,
    /// Attachment of logical switches to datapaths.
    Bindings,
    /// BFD on the tunnels of a database's switches.
    Tunnels(TorId),
    /// What is attached to a datapath.
    Datapath(Uuid),
    /// MACs that a logical switch learned, as a whole.
    Locals(TorId, Uuid),
    /// The ports of a datapath.
    Members(Uuid),
    /// The routers' ports at a datapath.
    Routers(Uuid),
    /// A port's MACs and place.
    Port(Uuid),
    /// The port of another switch.
    Peer(Uuid),
    /// A row of `Ucast_Macs_Local` in a logical switch.
    Local(TorId, Uuid, Uuid),
    /// A row of `FDB` at a peer's port.
    Learned(Uuid, Uuid),
    /// Where packets to many go: a logical switch and its datapath.
    Flood(TorId, Uuid, Uuid),
}

/// A physical switch as it is configured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Switch {
    /// Its row.
    pub row: Uuid,
    /// Addresses, as they stand there.
    pub ips: BTreeSet<Str>,
    /// Logical switches that are bound to VLANs of its ports.
    pub logical: BTreeMap<Str, Uuid>,
    /// `other_config`.
    pub config: Map<Str, Str>,
}

/// What people configured in a hardware_vtep database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// The row of `Global`.
    pub global: Option<Uuid>,
    /// Its `other_config`.
    pub config: Map<Str, Str>,
    /// Physical switches by name.
    pub switches: BTreeMap<Str, Switch>,
    /// All logical switches, bound or not.
    pub logical: BTreeSet<Str>,
}

/// A physical switch that is registered.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name.
    pub name: Str,
    /// Its database.
    pub tor: TorId,
    /// Its row.
    pub row: Uuid,
    /// `other_config`.
    pub config: Map<Str, Str>,
    /// `other_config` of its database's `Global`.
    pub global: Map<Str, Str>,
}

/// Physical switches that are one tunnel endpoint: one, or a pair in MLAG.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The switches; the first gave the chassis its name.
    pub members: Vec<Member>,
    /// The row of `Global` of the first one's database.
    pub owner: Str,
    /// One of them runs BFD on its tunnels.
    pub bfd: bool,
    /// Tunnel endpoints.
    pub ips: BTreeSet<Str>,
    /// Logical switches by name: in which databases they are.
    pub logical: BTreeMap<Str, BTreeMap<TorId, Uuid>>,
}

/// Registered switches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registry {
    /// By the chassis' name.
    pub groups: BTreeMap<Str, Group>,
    /// The chassis by the physical switch's name.
    pub chassis: BTreeMap<Str, Str>,
    /// The tunnel endpoints that a database's own switches have.
    pub own: BTreeMap<TorId, BTreeSet<Str>>,
    /// Names of all logical switches of a database.
    pub known: BTreeMap<TorId, BTreeSet<Str>>,
}

/// A logical switch of a hardware_vtep database that is attached to a datapath.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    /// The database.
    pub tor: TorId,
    /// The logical switch.
    pub switch: Uuid,
    /// How it replicates.
    pub replication: Replication,
}

/// Where MACs belong that a logical switch learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Home {
    /// Tunnel endpoints of the port's chassis.
    pub ips: BTreeSet<Str>,
    /// The datapath's key.
    pub datapath: i64,
    /// The datapath.
    pub row: Uuid,
    /// The port's key.
    pub port: i64,
    /// Routers are told of IP addresses.
    pub learn_addresses: bool,
}

/// A router's port at a datapath.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterPort {
    /// Its name.
    pub name: Str,
    /// The router's datapath.
    pub router: Uuid,
    /// The addresses that it has itself, with their networks.
    pub networks: Vec<IpNetwork>,
}

/// Attachments and bindings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bindings {
    /// By datapath.
    pub attached: BTreeMap<Uuid, Vec<Attachment>>,
    /// By logical switch.
    pub homes: BTreeMap<(TorId, Uuid), Vec<Home>>,
}

/// What a unit derives for others.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// Of [`Unit::Topology`].
    Topology(Topology),
    /// Of [`Unit::Endpoint`].
    Endpoint(Str),
    /// Of [`Unit::Registry`].
    Registry(Registry),
    /// Of [`Unit::Bindings`].
    Bindings(Bindings),
    /// Of [`Unit::Tunnels`]: endpoints that cannot be reached.
    Down(BTreeSet<Str>),
    /// Of [`Unit::Datapath`].
    Datapath(Vec<Attachment>),
    /// Of [`Unit::Locals`].
    Locals(Vec<Home>),
    /// Of [`Unit::Routers`].
    Routers(Vec<RouterPort>),
    /// Of [`Unit::Members`]: ports, and the ports of other switches.
    Members(Vec<Uuid>, Vec<Uuid>),
    /// Of [`Unit::Port`] and [`Unit::Peer`].
    Place(Place),
}

/// Where a port is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// The endpoints that have to get packets to many.
    pub ips: BTreeSet<Str>,
    /// It is a router's.
    pub router: bool,
    /// The hardware_vtep databases whose switch this is.
    pub own: BTreeSet<TorId>,
}

/// The derivation of all databases.
#[derive(Clone, Debug)]
pub struct Vtep {
    /// How many hardware_vtep databases there are.
    pub tors: u16,
}

/// The view that units of this derivation have.
pub(crate) type V<'a> = View<'a, Vtep>;

impl Vtep {
    /// The numbers of the databases.
    pub fn ids(&self) -> impl Iterator<Item = TorId> + use<> {
        (0..self.tors).map(TorId)
    }
}

impl Derivation for Vtep {
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
            Unit::Topology(_) | Unit::Endpoints => 0,
            Unit::Endpoint(_) | Unit::Registry => 1,
            Unit::Bindings => 2,
            Unit::Datapath(_) | Unit::Locals(..) | Unit::Tunnels(_) => 3,
            Unit::Members(_) | Unit::Routers(_) => 4,
            Unit::Port(_) | Unit::Peer(_) | Unit::Local(..) => 5,
            Unit::Learned(..) | Unit::Flood(..) => 6,
        }
    }

    fn roots(&self) -> Vec<Unit> {
        let mut roots: Vec<Unit> = self.ids().flat_map(|t| [Unit::Topology(t), Unit::Tunnels(t)]).collect();
        roots.extend([Unit::Endpoints, Unit::Registry, Unit::Bindings]);
        roots
    }

    fn run(&self, unit: &Unit, v: &mut V<'_>) {
        match unit {
            Unit::Topology(t) => topology::topology(*t, v),
            Unit::Endpoints => endpoint::endpoints(v),
            Unit::Endpoint(c) => endpoint::endpoint(*c, v),
            Unit::Registry => registry::registry(self, v),
            Unit::Bindings => binding::bindings(v),
            Unit::Tunnels(t) => tunnels::tunnels(*t, v),
            Unit::Datapath(d) => binding::datapath(*d, v),
            Unit::Locals(t, s) => macs::locals(*t, *s, v),
            Unit::Members(d) => macs::members(*d, v),
            Unit::Routers(d) => neighbours::routers(*d, v),
            Unit::Port(p) => macs::port(*p, v),
            Unit::Peer(p) => macs::peer(*p, v),
            Unit::Local(t, s, row) => macs::local(*t, *s, *row, v),
            Unit::Learned(row, p) => macs::learned(*row, *p, v),
            Unit::Flood(t, s, d) => flood::flood(*t, *s, *d, v),
        }
    }
}

/// Puts out a warning.
pub(crate) fn warn(v: &mut V<'_>, module: Module, text: String) {
    v.emit(Key::Notice(Notice::warning(module, text)), Value::Notice);
}

/// Puts out a warning of what may just not be complete yet; it is said when it stays so.
pub(crate) fn warn_early(v: &mut V<'_>, module: Module, text: String) {
    v.emit(Key::Notice(Notice { early: true, ..Notice::warning(module, text) }), Value::Notice);
}

/// Puts out an information.
pub(crate) fn info(v: &mut V<'_>, module: Module, text: String) {
    v.emit(Key::Notice(Notice::info(module, text)), Value::Notice);
}

/// `SB_Global.options`.
pub(crate) fn options_of(v: &mut V<'_>) -> Map<Str, Str> {
    v.read(Read::Options).sb.db.sb_global.values().next().map(|g| g.options.clone()).unwrap_or_default()
}

/// The registry.
pub(crate) fn registry_of<'a>(v: &mut V<'a>) -> Option<&'a Registry> {
    match v.fact(&Unit::Registry) {
        Some(Fact::Registry(r)) => Some(r),
        _ => None,
    }
}

/// What is attached to a datapath.
pub(crate) fn attached<'a>(v: &mut V<'a>, datapath: Uuid) -> &'a [Attachment] {
    match v.fact(&Unit::Datapath(datapath)) {
        Some(Fact::Datapath(a)) => a,
        _ => &[],
    }
}

/// A chassis' VXLAN address.
pub(crate) fn endpoint_of<'a>(v: &mut V<'a>, chassis: Uuid) -> Option<&'a Str> {
    match v.fact(&Unit::Endpoint(chassis)) {
        Some(Fact::Endpoint(ip)) => Some(ip),
        _ => None,
    }
}
