//! What everything is derived from: the four databases, with indexes.

mod ic;
mod northbound;
mod southbound;

pub use ic::{IcNorthbound, IcSouthbound, monitor_id as ic_monitor_id, route_id};

pub use northbound::{LEARNED_ROUTE, LEARNED_SET, Northbound, TR, TS, TSP};
pub use southbound::{Southbound, is_remote, monitor_id};

use crate::output::{Key, Transit};
use ovn_schema::{Index, Str, Uuid};
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// A thing that a unit of the derivation can look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// The northbound `NB_Global`.
    NbGlobal,
    /// The southbound `SB_Global`.
    SbGlobal,
    /// `IC_NB_Global`.
    IcNbGlobal,
    /// Which zones there are, and the name of this one.
    Zones,
    /// Whether this zone writes what belongs to all.
    Leader,
    /// A transit switch with its ports, by its row.
    TransitSwitch(Uuid),
    /// Which transit switch has a name.
    TransitSwitchNamed(Str),
    /// A transit router with its ports, by its row.
    TransitRouter(Uuid),
    /// The logical switches of a transit switch, with their ports.
    SwitchOf(Str),
    /// The logical routers of a transit router, with their ports.
    RouterOf(Str),
    /// A logical router with its ports, by its row.
    Router(Uuid),
    /// Whether a logical router has ports on transit switches.
    Attached(Uuid),
    /// A static route with its router, by its row.
    StaticRoute(Uuid),
    /// Which routers of this zone have a prefix otherwise than from another zone: by a static route, or learned from a
    /// neighbour.
    RoutesTo(Str),
    /// Which logical router has a port of this name, and that port.
    RouterPortNamed(Str),
    /// Which switch ports are connected to a router's port.
    PortsTo(Str),
    /// A load balancer.
    LoadBalancer(Uuid),
    /// A load balancer group.
    LoadBalancerGroup(Uuid),
    /// The northbound address sets of a name.
    AddressSetNamed(Str),
    /// A southbound port binding by its logical port.
    PortBinding(Str),
    /// A southbound chassis by name.
    Chassis(Str),
    /// A southbound chassis or datapath by its row, to which others refer.
    Row(Uuid),
    /// The chassis that are gateways between zones, with their encapsulations.
    Gateways,
    /// The southbound datapath of a northbound row.
    DatapathOf(Uuid),
    /// A route that a datapath learned from its neighbours, by its row.
    LearnedRoute(Uuid),
    /// The southbound address sets that others are to have.
    AdvertisedSets,
    /// The southbound health checks that other zones do.
    RemoteMonitors,
    /// The southbound health checks of a logical port.
    MonitorsOf(Str),
    /// The gateways of all zones.
    IcGateways,
    /// Whether any gateway has a VXLAN encapsulation.
    IcEncaps,
    /// The datapath of a transit switch or router.
    IcDatapath(Transit),
    /// The ports of a transit switch or router, in all zones.
    IcPortsOf(Str),
    /// Which zone has a port.
    IcPort(Str),
    /// A route that a zone advertises, by its row.
    IcRoute(Uuid),
    /// The address sets that zones advertise.
    IcAddressSets,
    /// The health checks that zones ask for.
    IcMonitors,
}

/// What a change means: reads of units, and keys of outputs whose row it touched.
#[derive(Debug, Default)]
pub struct Effect {
    /// What changed for units.
    pub reads: Vec<Read>,
    /// Whose row changed.
    pub keys: Vec<Key>,
}

/// Which rows stand under which keys.
#[derive(Debug)]
pub struct Keyed<K> {
    of: FxHashMap<Uuid, K>,
    rows: Index<K>,
}

/// Rows by the keys of outputs.
pub type Present = Keyed<Key>;

impl<K: Eq + Hash + Clone> Default for Keyed<K> {
    fn default() -> Keyed<K> {
        Keyed { of: FxHashMap::default(), rows: Index::default() }
    }
}

impl<K: Eq + Hash + Clone> Keyed<K> {
    /// A row has this key now. Gives the key that it had.
    fn replace(&mut self, id: Uuid, key: Option<K>) -> Option<K> {
        let old = match &key {
            Some(k) => self.of.insert(id, k.clone()),
            None => self.of.remove(&id),
        };
        self.rows.shift(id, old.clone(), key);
        old
    }

    /// The key of a row.
    pub fn key(&self, id: Uuid) -> Option<&K> {
        self.of.get(&id)
    }

    /// The rows under a key.
    pub fn rows(&self, key: &K) -> impl Iterator<Item = Uuid> {
        self.rows.get(key)
    }

    /// The first row under a key.
    pub fn row(&self, key: &K) -> Option<Uuid> {
        self.rows.get(key).next()
    }

    /// The rows that have keys.
    pub fn ids(&self) -> impl Iterator<Item = Uuid> {
        self.of.keys().copied()
    }

    /// All keys that have rows.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.rows.keys()
    }
}

impl Present {
    /// A row changed, and has this key now. Touches both keys.
    fn set(&mut self, id: Uuid, key: Option<Key>, e: &mut Effect) {
        let old = self.replace(id, key.clone());
        if old != key {
            e.keys.extend(key);
        }
        e.keys.extend(old);
    }
}

/// The four databases.
#[derive(Debug, Default)]
pub struct Input {
    /// The zone's northbound database.
    pub nb: Northbound,
    /// The zone's southbound database.
    pub sb: Southbound,
    /// The interconnection northbound database.
    pub icnb: IcNorthbound,
    /// The interconnection southbound database.
    pub icsb: IcSouthbound,
    /// Whether this zone writes what belongs to all.
    pub leader: bool,
}

impl Input {
    /// The zone's name; empty where none is set.
    pub fn zone_name(&self) -> Str {
        self.nb.global().map(|g| g.name.clone()).unwrap_or_default()
    }

    /// A route that a router of this zone learned from its neighbours, with the router, where that is on transit switches.
    pub fn learned_route(&self, id: Uuid) -> Option<(Uuid, &ovn_schema::sb::LearnedRoute)> {
        let route = self.sb.db.learned_route.get(&id)?;
        let router = self.sb.northbound_of(route.datapath).filter(|r| self.nb.is_attached(*r))?;
        Some((router, route))
    }

    /// All keys that have rows.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.nb.present.keys().chain(self.sb.present.keys()).chain(self.icsb.present.keys())
    }
}
