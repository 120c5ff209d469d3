//! The derivation, cut into units.
//!
//! ```text
//! layer  0  Zone                this zone's name, row and settings
//!        0  Mode                whether tunnels between zones are VXLAN
//!        1  Gateways            gateways of this zone, and of the others    ► Gateway, Chassis
//!        1  Switch(row)         a transit switch and its ports              ► Datapath, Switch, Port, SwitchPort, Binding
//!        │    ├──► 2  RoutersOn(switch)   logical routers with ports there
//!        │    └──► 2  Attached(router)    where a logical router is, networks     ► Route
//!        │         └──► 3  Balancers(router)   addresses of its load balancers
//!        │              └──► 4  Balancer(router, row)                            ► Route
//!        4  Static(row), Dynamic(row)   a route of a logical router         ► Route
//!        4  Learn(row)          a route that a zone tells                   ► StaticRoute
//!        1  Router(row)         a transit router and its ports              ► Datapath, Router, Port, RouterPort
//!        1  AddressSets         address sets of this zone, and of others    ► IcAddressSet, AddressSet
//!        1  Monitors            health checks for and of others             ► IcMonitor, Monitor, their states
//! ```
//!
//! Every unit may put out notices. Several may put out one `Route`: the first value counts, and the plan says that the
//! others are suppressed.

mod gateways;
mod monitors;
mod routers;
pub mod routes;
mod sets;
mod switches;

use crate::model::{Input, Read};
use crate::output::{Key, Notice, Value};
use incremental::{Derivation, View};
use ovn_schema::{Map, Str, Uuid, options};
use std::net::IpAddr;

/// The name of a unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// This zone.
    Zone,
    /// Whether tunnels between zones are VXLAN.
    Mode,
    /// Gateways between zones.
    Gateways,
    /// A transit switch.
    Switch(Uuid),
    /// A transit router.
    Router(Uuid),
    /// The logical routers on a transit switch.
    RoutersOn(Str),
    /// A logical router on transit switches.
    Attached(Uuid),
    /// The load balancers of a logical router on transit switches.
    Balancers(Uuid),
    /// The routes of a logical router's load balancer.
    Balancer(Uuid, Uuid),
    /// The routes of a static route of a logical router on transit switches.
    Static(Uuid),
    /// The routes of a prefix that such a router learned from a neighbour.
    Dynamic(Uuid),
    /// What is learned of a route that a zone tells.
    Learn(Uuid),
    /// Address sets.
    AddressSets,
    /// Health checks.
    Monitors,
}

/// This zone.
#[derive(Clone, Debug, PartialEq)]
pub struct Zone {
    /// Its row of `Availability_Zone`.
    pub row: Uuid,
    /// Its name.
    pub name: Str,
    /// `NB_Global:options`.
    pub options: Map<Str, Str>,
}

impl Zone {
    /// A setting that is off by default.
    pub fn flag(&self, key: &str) -> bool {
        options::flag(&self.options, key)
    }
}

/// What a unit derives for others.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// Of [`Unit::Zone`].
    Zone(Box<Zone>),
    /// Of [`Unit::Mode`].
    Vxlan(bool),
    /// Of [`Unit::RoutersOn`].
    Routers(Vec<Uuid>),
    /// Of [`Unit::Attached`].
    Attached(Box<routes::Attached>),
    /// Of [`Unit::Balancers`]: sorted.
    Vips(Vec<IpAddr>),
}

/// The derivation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interconnect;

/// The view that units of this derivation have.
pub(crate) type V<'a> = View<'a, Interconnect>;

impl Derivation for Interconnect {
    type Input = Input;
    type Read = Read;
    type Unit = Unit;
    type Fact = Fact;
    type Key = Key;
    type Value = Value;

    fn layers(&self) -> usize {
        5
    }

    fn layer(&self, unit: &Unit) -> usize {
        match unit {
            Unit::Zone | Unit::Mode => 0,
            Unit::Gateways | Unit::Switch(_) | Unit::Router(_) | Unit::AddressSets | Unit::Monitors => 1,
            Unit::RoutersOn(_) | Unit::Attached(_) => 2,
            Unit::Balancers(_) => 3,
            Unit::Balancer(..) | Unit::Static(_) | Unit::Dynamic(_) | Unit::Learn(_) => 4,
        }
    }

    fn roots(&self) -> Vec<Unit> {
        vec![Unit::Zone, Unit::Mode, Unit::Gateways, Unit::AddressSets, Unit::Monitors]
    }

    fn present(&self, input: &Input) -> Vec<Unit> {
        let mut out: Vec<Unit> = input.icnb.db.transit_switch.keys().map(|id| Unit::Switch(*id)).collect();
        out.extend(input.icnb.db.transit_router.keys().map(|id| Unit::Router(*id)));
        out.extend(input.icsb.db.route.keys().map(|id| Unit::Learn(*id)));
        out.extend(input.nb.own_routes().filter(|id| input.nb.own_route(*id).is_some()).map(Unit::Static));
        let learned = input.sb.db.learned_route.keys().filter(|id| input.learned_route(**id).is_some());
        out.extend(learned.map(|id| Unit::Dynamic(*id)));
        out
    }

    fn decided(&self, input: &Input, thing: &Read) -> Vec<(Unit, bool)> {
        let own = |id: Uuid| (Unit::Static(id), input.nb.own_route(id).is_some());
        let learned = |id: Uuid| (Unit::Dynamic(id), input.learned_route(id).is_some());
        match thing {
            Read::TransitSwitch(id) => vec![(Unit::Switch(*id), input.icnb.db.transit_switch.contains_key(id))],
            Read::TransitRouter(id) => vec![(Unit::Router(*id), input.icnb.db.transit_router.contains_key(id))],
            Read::IcRoute(id) => vec![(Unit::Learn(*id), input.icsb.db.route.contains_key(id))],
            Read::StaticRoute(id) => vec![own(*id)],
            Read::LearnedRoute(id) => vec![learned(*id)],
            Read::Row(datapath) => input.sb.learned_by(*datapath).map(learned).collect(),
            Read::Attached(router) => {
                let row = input.nb.db.logical_router.get(router);
                let datapath = input.sb.datapath_of(*router);
                let routes = datapath.into_iter().flat_map(|dp| input.sb.learned_by(dp));
                row.into_iter().flat_map(|r| &r.static_routes).map(|id| own(*id)).chain(routes.map(learned)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn run(&self, unit: &Unit, v: &mut V<'_>) {
        match unit {
            Unit::Zone => zone(v),
            Unit::Mode => mode(v),
            Unit::Gateways => gateways::gateways(v),
            Unit::Switch(id) => switches::switch(*id, v),
            Unit::Router(id) => routers::router(*id, v),
            Unit::RoutersOn(switch) => routes::routers_on(switch, v),
            Unit::Attached(id) => routes::attached(*id, v),
            Unit::Balancers(router) => routes::balancers(*router, v),
            Unit::Balancer(router, id) => routes::balancer(*router, *id, v),
            Unit::Static(id) => routes::static_route(*id, v),
            Unit::Dynamic(id) => routes::dynamic(*id, v),
            Unit::Learn(id) => routes::learn(*id, v),
            Unit::AddressSets => sets::sets(v),
            Unit::Monitors => monitors::monitors(v),
        }
    }
}

fn zone(v: &mut V<'_>) {
    let input = v.read(Read::Zones);
    let name = input.zone_name();
    let Some((row, _)) = input.icsb.zone(&name) else { return };
    let options = v.read(Read::NbGlobal).nb.global().map(|g| g.options.clone()).unwrap_or_default();
    v.derive(Fact::Zone(Box::new(Zone { row, name, options })));
}

/// Keys have to fit into VXLAN where that is asked for and any gateway has a VXLAN endpoint (ovn-ic-nb(5),
/// `IC_NB_Global:options:vxlan_mode`).
fn mode(v: &mut V<'_>) {
    let wanted = v.read(Read::IcNbGlobal).icnb.global().is_some_and(|g| options::flag(&g.options, "vxlan_mode"));
    let vxlan = wanted && v.read(Read::IcEncaps).icsb.db.encap.values().any(|e| &*e.r#type == "vxlan");
    v.derive(Fact::Vxlan(vxlan));
}

/// This zone; none while it is not registered.
pub(crate) fn zone_of<'a>(v: &mut V<'a>) -> Option<&'a Zone> {
    match v.fact(&Unit::Zone) {
        Some(Fact::Zone(z)) => Some(z),
        _ => None,
    }
}

/// Whether tunnels between zones are VXLAN.
pub(crate) fn vxlan(v: &mut V<'_>) -> bool {
    matches!(v.fact(&Unit::Mode), Some(Fact::Vxlan(true)))
}

/// Whether a chassis belongs to another zone. One that is not known here does.
pub(crate) fn is_remote(name: &Str, v: &mut V<'_>) -> bool {
    let chassis = v.read(Read::Chassis(name.clone())).sb.chassis(name);
    chassis.is_none_or(|(_, c)| crate::model::is_remote(c))
}

/// The name of a southbound chassis that a row refers to.
pub(crate) fn chassis_name<'a>(id: Option<Uuid>, v: &mut V<'a>) -> Option<&'a Str> {
    v.read(Read::Row(id?)).sb.chassis_name(id)
}

/// Puts out a warning.
pub(crate) fn warn(v: &mut V<'_>, text: String) {
    v.emit(Key::Notice(Notice { info: false, text: text.into() }), Value::Notice);
}

/// Puts out an information.
pub(crate) fn info(v: &mut V<'_>, text: String) {
    v.emit(Key::Notice(Notice { info: true, text: text.into() }), Value::Notice);
}
