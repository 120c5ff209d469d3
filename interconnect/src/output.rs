//! What is derived: the rows that the databases should have, by keys that name them.

use ovn_schema::{Map, Set, Str, Uuid};
use std::sync::Arc;

/// A transit switch or router, as a row of `Datapath_Binding` in the interconnection southbound database names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transit {
    /// By its name, as rows of older versions have no more.
    Switch(Str),
    /// By its row in the interconnection northbound database.
    Router(Uuid),
}

/// What tells an advertised route from others: the index of `Route` (ovn-ic-sb(5)).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId {
    /// The zone that advertises it.
    pub zone: Uuid,
    /// The transit switch.
    pub switch: Str,
    /// The route table; empty is the main one.
    pub table: Str,
    /// The destination.
    pub prefix: Str,
    /// The address of the advertising router's port on the transit switch.
    pub nexthop: Str,
}

/// What tells a health check from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MonitorId {
    /// `type`.
    pub kind: Option<Str>,
    /// The backend's address.
    pub ip: Str,
    /// The backend's port.
    pub port: i64,
    /// `tcp` or `udp`.
    pub protocol: Option<Str>,
    /// The backend's logical port.
    pub logical_port: Str,
    /// The address that asks.
    pub src_ip: Str,
}

/// The name of a derived row. There are as many as rows, and several tables of them: large names are boxed or shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Interconnection southbound `Gateway` with its `Encap`s: its zone and name.
    Gateway(Uuid, Str),
    /// Interconnection southbound `Datapath_Binding`.
    Datapath(Transit),
    /// Interconnection southbound `Port_Binding`, by its logical port.
    Port(Str),
    /// Interconnection southbound `Route`.
    Route(Arc<RouteId>),
    /// Interconnection southbound `Address_Set`: its zone and name.
    IcAddressSet(Uuid, Str),
    /// Interconnection southbound `Service_Monitor`: the zone that is to check, and what.
    IcMonitor(Str, Box<MonitorId>),
    /// `status` of an interconnection southbound `Service_Monitor`.
    IcMonitorStatus(Uuid),
    /// Northbound `Logical_Switch` of a transit switch, by `other_config:interconn-ts`.
    Switch(Str),
    /// Northbound `Logical_Router` of a transit router, by `options:interconn-tr`.
    Router(Str),
    /// Northbound `Logical_Switch_Port` of a transit switch: the switch and the port.
    SwitchPort(Str, Str),
    /// Northbound `Logical_Router_Port` of a transit router: the router and the port.
    RouterPort(Str, Str),
    /// Northbound `Logical_Router_Static_Route` that was learned: the router and the row of `Route`.
    StaticRoute(Uuid, Uuid),
    /// Northbound `Address_Set` that was learned.
    AddressSet(Str),
    /// Southbound `Chassis` of another zone's gateway.
    Chassis(Str),
    /// `chassis` of the southbound `Port_Binding` of another zone's port.
    Binding(Str),
    /// Southbound `Service_Monitor` that another zone asks for.
    Monitor(Box<MonitorId>),
    /// `status` of a southbound `Service_Monitor` that another zone checks.
    MonitorStatus(Uuid),
    /// Something that people should know.
    Notice(Notice),
}

/// A database that is written to, and under which lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The interconnection southbound database: rows that belong to this zone.
    IcSb,
    /// The same: rows that belong to all zones, which the one zone with the lock writes.
    Shared,
    /// The northbound database.
    Nb,
    /// The southbound database.
    Sb,
}

impl Place {
    /// All of them.
    pub const ALL: [Place; 4] = [Place::IcSb, Place::Shared, Place::Nb, Place::Sb];
}

impl Key {
    /// Where the row is; none where the key stands for no row.
    pub fn place(&self) -> Option<Place> {
        Some(match self {
            Key::Gateway(..)
            | Key::Port(_)
            | Key::Route(_)
            | Key::IcAddressSet(..)
            | Key::IcMonitor(..)
            | Key::IcMonitorStatus(_) => Place::IcSb,
            Key::Datapath(_) => Place::Shared,
            Key::Switch(_)
            | Key::Router(_)
            | Key::SwitchPort(..)
            | Key::RouterPort(..)
            | Key::StaticRoute(..)
            | Key::AddressSet(_) => Place::Nb,
            Key::Chassis(_) | Key::Binding(_) | Key::Monitor(_) | Key::MonitorStatus(_) => Place::Sb,
            Key::Notice(_) => return None,
        })
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Gateway(_, name) => write!(f, "Gateway ({name})"),
            Key::Datapath(Transit::Switch(name)) => write!(f, "Datapath_Binding of transit switch ({name})"),
            Key::Datapath(Transit::Router(id)) => write!(f, "Datapath_Binding of Transit_Router {id}"),
            Key::Port(name) => write!(f, "Port_Binding ({name})"),
            Key::Route(r) => write!(f, "Route {} -> {} on transit switch ({})", r.prefix, r.nexthop, r.switch),
            Key::IcAddressSet(_, name) | Key::AddressSet(name) => write!(f, "Address_Set ({name})"),
            Key::IcMonitor(zone, m) => write!(f, "Service_Monitor of {} ({}) in zone ({zone})", m.ip, m.logical_port),
            Key::IcMonitorStatus(id) | Key::MonitorStatus(id) => write!(f, "status of Service_Monitor {id}"),
            Key::Switch(name) => write!(f, "Logical_Switch of transit switch ({name})"),
            Key::Router(name) => write!(f, "Logical_Router of transit router ({name})"),
            Key::SwitchPort(of, name) => write!(f, "Logical_Switch_Port ({name}) of transit switch ({of})"),
            Key::RouterPort(of, name) => write!(f, "Logical_Router_Port ({name}) of transit router ({of})"),
            Key::StaticRoute(router, route) => write!(f, "route of Logical_Router {router} learned from Route {route}"),
            Key::Chassis(name) => write!(f, "Chassis ({name})"),
            Key::Binding(name) => write!(f, "chassis of Port_Binding ({name})"),
            Key::Monitor(m) => write!(f, "Service_Monitor of {} ({})", m.ip, m.logical_port),
            Key::Notice(n) => f.write_str(&n.text),
        }
    }
}

/// Something that people should know; said once, when it begins to hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Notice {
    /// Only informative.
    pub info: bool,
    /// The text.
    pub text: Str,
}

impl Notice {
    /// Puts it into the log.
    pub fn say(&self) {
        let text = &self.text;
        match self.info {
            true => tracing::info!(target: "ovn_ic", "{text}"),
            false => tracing::warn!(target: "ovn_ic", kind = daemon::kind(text), "{text}"),
        }
    }
}

/// The tunnel endpoints of a gateway: type and address, with their options.
pub type Encaps = std::collections::BTreeMap<(Str, Str), Map<Str, Str>>;

/// The value of a derived row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Under [`Key::Gateway`] and [`Key::Chassis`].
    Gateway(Box<Gateway>),
    /// Under [`Key::Datapath`].
    Datapath(Datapath),
    /// Under [`Key::Port`].
    Port(Box<Port>),
    /// Under [`Key::Route`].
    Route(Box<Route>),
    /// Under [`Key::IcAddressSet`] and [`Key::AddressSet`].
    Addresses(Set<Str>),
    /// Under [`Key::IcMonitor`].
    IcMonitor(Box<IcMonitor>),
    /// Under [`Key::IcMonitorStatus`] and [`Key::MonitorStatus`].
    Status(Option<Str>),
    /// Under [`Key::Switch`]: whether tunnels are VXLAN, and the datapath's key once there is one.
    Switch(bool, Option<i64>),
    /// Under [`Key::Router`]: the datapath's key once there is one.
    Router(Option<i64>),
    /// Under [`Key::SwitchPort`].
    SwitchPort(Box<SwitchPort>),
    /// Under [`Key::RouterPort`].
    RouterPort(Box<RouterPort>),
    /// Under [`Key::StaticRoute`].
    StaticRoute(Box<StaticRoute>),
    /// Under [`Key::Binding`]: the chassis' name.
    Binding(Option<Str>),
    /// Under [`Key::Monitor`].
    Monitor(Box<Monitor>),
    /// Under [`Key::Notice`].
    Notice,
}

/// A gateway between zones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gateway {
    /// Its host's name.
    pub hostname: Str,
    /// Its tunnel endpoints.
    pub encaps: Encaps,
}

/// The datapath of a transit switch or router.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Datapath {
    /// Its row in the interconnection northbound database.
    pub row: Uuid,
    /// Its key has to fit into VXLAN (ovn-architecture(7)): 12 bits.
    pub vxlan: bool,
}

/// Which kind of transit a port is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A transit switch's.
    Switch,
    /// A transit router's.
    Router,
}

impl Kind {
    /// The value of `Port_Binding:type`.
    pub fn port_type(self) -> &'static str {
        match self {
            Kind::Switch => "transit-switch-port",
            Kind::Router => "transit-router-port",
        }
    }
}

/// A port of this zone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The zone.
    pub zone: Uuid,
    /// The transit switch or router.
    pub of: Str,
    /// Its row in the interconnection northbound database.
    pub row: Uuid,
    /// Which of both.
    pub kind: Kind,
    /// MAC and addresses; empty while they are not known.
    pub address: Str,
    /// The chassis; empty where it has none.
    pub gateway: Str,
    /// The logical router behind it.
    pub router: Option<Uuid>,
    /// It is bound to no chassis, so that the one zone with the lock writes it.
    pub shared: bool,
}

/// What a route that this zone advertises is of. Of several with one [`RouteId`] the first one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A static route.
    Static,
    /// A network that a port of the router has.
    Port,
    /// A load balancer's address.
    LoadBalancer,
    /// A prefix that the router learned from a neighbour by dynamic routing.
    Dynamic,
}

impl Source {
    /// The word for the northbound row that the route is of.
    pub fn row(self) -> &'static str {
        match self {
            Source::Static => "route",
            Source::Port => "lrp",
            Source::LoadBalancer => "loadbalancer",
            Source::Dynamic => "lr",
        }
    }
}

/// A route that this zone advertises.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// What it is of.
    pub source: Source,
    /// It is told in the route table of the transit switch's port, besides the main one.
    pub of_port_table: bool,
    /// It goes before routes of connected networks.
    pub override_connected: bool,
    /// The northbound row that it is of.
    pub row: Uuid,
    /// The router.
    pub router: Uuid,
    /// The tag by which others may filter it; may be empty.
    pub tag: Str,
}

impl Route {
    /// `Route:origin`.
    pub fn origin(&self) -> &'static str {
        match self.source {
            Source::Static => "static",
            Source::Port => "connected",
            Source::LoadBalancer => "loadbalancer",
            Source::Dynamic if self.of_port_table => "connected",
            Source::Dynamic => "connected-dynamic",
        }
    }
}

/// A health check that another zone is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IcMonitor {
    /// The zone that asks: this one.
    pub source: Str,
    /// The MAC of the address that asks, in this zone.
    pub src_mac: Str,
    /// How often and so on.
    pub options: Map<Str, Str>,
}

/// A health check that another zone asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monitor {
    /// The MAC of the address that asks, in this zone.
    pub src_mac: Str,
    /// How often and so on.
    pub options: Map<Str, Str>,
    /// The backend's chassis, where it has one.
    pub chassis: Option<Str>,
}

/// A port of a transit switch in this zone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwitchPort {
    /// Of a `Transit_Switch_Port`.
    Transit {
        /// `type`: `remote` where another zone has it.
        kind: Str,
        /// `addresses`.
        addresses: Set<Str>,
        /// The chassis that is to have it; may be empty.
        chassis: Str,
        /// The router port that it is connected to.
        router_port: Str,
        /// The switch port that it is connected to.
        peer: Str,
        /// The port's key.
        key: i64,
    },
    /// Of another zone, made by hand there.
    Remote {
        /// MAC and addresses.
        address: Str,
        /// The port's key.
        key: i64,
    },
    /// Of this zone, made by hand here: only its key is ours.
    Local {
        /// The port's key.
        key: i64,
    },
}

/// A port of a transit router in this zone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouterPort {
    /// `mac`.
    pub mac: Str,
    /// `networks`.
    pub networks: Set<Str>,
    /// The chassis that is to have it; may be empty.
    pub chassis: Str,
    /// The port's key.
    pub key: i64,
}

/// A route that was learned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaticRoute {
    /// The destination.
    pub prefix: Str,
    /// The next hop.
    pub nexthop: Str,
    /// The route table.
    pub table: Str,
    /// Where the other zone has it from.
    pub origin: Str,
    /// It goes before routes of connected networks.
    pub override_connected: bool,
}
