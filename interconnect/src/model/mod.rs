//! What everything is derived from: the four databases, with indexes.

mod ic;
mod northbound;
mod southbound;

pub use ic::{IcNorthbound, IcSouthbound, monitor_id as ic_monitor_id, route_id};

pub use northbound::{LEARNED_ROUTE, LEARNED_SET, Northbound, TR, TS, TSP};
pub use southbound::{Southbound, is_remote, monitor_id};

use crate::output::{Key, Transit};
use ovn_schema::{Index, Str, Uuid};
use std::collections::HashMap;

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
    /// A logical router with its ports and routes, by its row.
    Router(Uuid),
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
    /// The routes that a datapath learned from its neighbours.
    LearnedBy(Uuid),
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
    /// The routes that zones advertise on a transit switch.
    IcRoutesOf(Str),
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
#[derive(Debug, Default)]
pub struct Present {
    of: HashMap<Uuid, Key>,
    rows: Index<Key>,
}

impl Present {
    /// A row changed, and has this key now. Touches both keys.
    fn set(&mut self, id: Uuid, key: Option<Key>, e: &mut Effect) {
        let old = match &key {
            Some(k) => self.of.insert(id, k.clone()),
            None => self.of.remove(&id),
        };
        e.keys.extend(old.iter().cloned());
        if old != key {
            e.keys.extend(key.iter().cloned());
            self.rows.shift(id, old, key);
        }
    }

    /// The rows under a key.
    pub fn rows(&self, key: &Key) -> impl Iterator<Item = Uuid> {
        self.rows.get(key)
    }

    /// The first row under a key.
    pub fn row(&self, key: &Key) -> Option<Uuid> {
        self.rows.get(key).next()
    }

    /// All keys that have rows.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.rows.keys()
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

    /// All keys that have rows.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.nb.present.keys().chain(self.sb.present.keys()).chain(self.icsb.present.keys())
    }
}
