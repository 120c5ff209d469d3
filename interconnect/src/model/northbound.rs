//! The zone's northbound database.

use super::{Effect, Keyed, Present, Read};
use crate::output::Key;
use ovn_schema::{Index, Str, Uuid, nb};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The option of rows that stand for a transit switch.
pub const TS: &str = "interconn-ts";
/// The option of rows that stand for a transit router or its ports.
pub const TR: &str = "interconn-tr";
/// The option of rows that stand for a transit switch's port.
pub const TSP: &str = "interconn-tsp";
/// The external ID of routes that were learned: the row of `Route`.
pub const LEARNED_ROUTE: &str = "ic-learned-route";
/// The external ID of address sets that were learned.
pub const LEARNED_SET: &str = "ic-learnt";

/// The northbound database.
#[derive(Debug, Default)]
pub struct Northbound {
    /// Its tables.
    pub db: nb::Database,
    /// Its rows by key.
    pub present: Present,
    /// Logical switches of transit switches.
    switches: Index<Str>,
    /// Logical routers of transit routers.
    routers: Index<Str>,
    /// The logical switch of a port, where it is a transit switch's.
    switch_of: FxHashMap<Uuid, Uuid>,
    /// The logical router of a port.
    router_of: FxHashMap<Uuid, Uuid>,
    /// The logical router of a static route.
    router_of_route: FxHashMap<Uuid, Uuid>,
    /// Static routes that were not learned from other zones: their router, table and prefix.
    own_routes: Keyed<(Uuid, Str, Str)>,
    /// The logical routers that have ports on transit switches.
    attached: FxHashSet<Uuid>,
    router_ports: Index<Str>,
    ports_to: Index<Str>,
    sets: Index<Str>,
}

/// Elements that came or went.
fn differ<'a>(old: &'a BTreeSet<Uuid>, new: &'a BTreeSet<Uuid>) -> impl Iterator<Item = (Uuid, bool)> + use<'a> {
    let gone = old.difference(new).map(|id| (*id, false));
    gone.chain(new.difference(old).map(|id| (*id, true)))
}

/// Whether two states of a logical router have all but static routes in common, of what is read here.
fn differs_in_routes_alone(a: &nb::LogicalRouter, b: &nb::LogicalRouter) -> bool {
    a.name == b.name
        && a.ports == b.ports
        && a.options == b.options
        && a.enabled == b.enabled
        && a.load_balancer == b.load_balancer
        && a.load_balancer_group == b.load_balancer_group
}

fn assign(map: &mut FxHashMap<Uuid, Uuid>, to: Uuid, old: &BTreeSet<Uuid>, new: &BTreeSet<Uuid>) -> Vec<Uuid> {
    let mut touched = Vec::new();
    for (id, there) in differ(old, new) {
        match there {
            true => drop(map.insert(id, to)),
            false if map.get(&id) == Some(&to) => drop(map.remove(&id)),
            false => {}
        }
        touched.push(id);
    }
    touched
}

impl Northbound {
    /// Takes a change over into the indexes; the table has it already.
    pub fn changed(&mut self, change: &nb::AnyChange) -> Effect {
        use nb::AnyChange as A;
        let id = change.key().1;
        let mut e = Effect::default();
        match change {
            A::NbGlobal(_) => e.reads.extend([Read::NbGlobal, Read::Zones]),
            A::LogicalSwitch(c) => self.switch_changed(id, c.old.as_deref(), c.new.as_deref(), &mut e),
            A::LogicalSwitchPort(c) => {
                let to = |r: &Option<Arc<nb::LogicalSwitchPort>>| {
                    r.as_ref().and_then(|r| r.options.get("router-port").cloned())
                };
                if self.ports_to.shift(id, to(&c.old), to(&c.new)) || self.switch_of.contains_key(&id) {
                    e.reads.extend(to(&c.old).into_iter().chain(to(&c.new)).map(Read::PortsTo));
                }
                self.place_port(id, &mut e);
            }
            A::LogicalRouter(c) => self.router_changed(id, c.old.as_deref(), c.new.as_deref(), &mut e),
            A::LogicalRouterPort(c) => {
                let name = |r: &Option<Arc<nb::LogicalRouterPort>>| r.as_ref().map(|r| r.name.clone());
                self.router_ports.shift(id, name(&c.old), name(&c.new));
                e.reads.extend(name(&c.old).into_iter().chain(name(&c.new)).map(Read::RouterPortNamed));
                e.reads.extend(self.router_of.get(&id).map(|lr| Read::Router(*lr)));
                self.place_router_port(id, &mut e);
            }
            A::LogicalRouterStaticRoute(_) => self.place_route(id, &mut e),
            A::LoadBalancer(_) => e.reads.push(Read::LoadBalancer(id)),
            A::LoadBalancerGroup(_) => e.reads.push(Read::LoadBalancerGroup(id)),
            A::AddressSet(c) => {
                let name = |r: &Option<Arc<nb::AddressSet>>| r.as_ref().map(|r| r.name.clone());
                self.sets.shift(id, name(&c.old), name(&c.new));
                e.reads.extend(name(&c.old).into_iter().chain(name(&c.new)).map(Read::AddressSetNamed));
                let learned = c.new.as_ref().filter(|s| ovn_schema::options::flag(&s.external_ids, LEARNED_SET));
                self.present.set(id, learned.map(|s| Key::AddressSet(s.name.clone())), &mut e);
            }
            _ => {}
        }
        self.attach(&mut e);
        e
    }

    /// Tells which routers came to transit switches or left them, by the ports that changed.
    fn attach(&mut self, e: &mut Effect) {
        let touched: BTreeSet<Uuid> = e.reads.iter().filter_map(|read| self.router_of_read(read)).collect();
        for id in touched {
            let router = self.db.logical_router.get(&id);
            let mut ports =
                router.into_iter().flat_map(|r| &r.ports).filter_map(|p| self.db.logical_router_port.get(p));
            let is = ports.any(|p| self.transit_ports_to(&p.name).next().is_some());
            let was = if is { !self.attached.insert(id) } else { self.attached.remove(&id) };
            if is != was {
                e.reads.push(Read::Attached(id));
            }
        }
    }

    fn router_of_read(&self, read: &Read) -> Option<Uuid> {
        match read {
            Read::Router(id) => Some(*id),
            Read::PortsTo(name) | Read::RouterPortNamed(name) => self.router_of_port(self.router_port(name)?.0),
            _ => None,
        }
    }

    fn switch_changed(
        &mut self,
        id: Uuid,
        old: Option<&nb::LogicalSwitch>,
        new: Option<&nb::LogicalSwitch>,
        e: &mut Effect,
    ) {
        let transit = |r: Option<&nb::LogicalSwitch>| r.and_then(|r| r.other_config.get(TS).cloned());
        let (was, is) = (transit(old), transit(new));
        if was.is_none() && is.is_none() {
            return;
        }
        let none = BTreeSet::new();
        let ports = |r: Option<&nb::LogicalSwitch>, transit: &Option<Str>| match r.filter(|_| transit.is_some()) {
            Some(r) => r.ports.clone(),
            None => none.clone(),
        };
        let (before, after) = (ports(old, &was), ports(new, &is));
        self.switches.shift(id, was.clone(), is.clone());
        let moved = was != is;
        let mut touched = assign(&mut self.switch_of, id, &before, &after);
        if moved {
            touched.extend(after.iter().copied());
        }
        self.present.set(id, is.clone().map(Key::Switch), e);
        for port in touched {
            let to = self.db.logical_switch_port.get(&port).and_then(|p| p.options.get("router-port").cloned());
            e.reads.extend(to.map(Read::PortsTo));
            self.place_port(port, e);
        }
        e.reads.extend(was.into_iter().chain(is).map(Read::SwitchOf));
    }

    /// A port of a transit switch has a key.
    fn place_port(&mut self, id: Uuid, e: &mut Effect) {
        let row = self.db.logical_switch_port.get(&id);
        let of = self.switch_of.get(&id).and_then(|ls| self.db.logical_switch.get(ls));
        let transit = of.and_then(|ls| ls.other_config.get(TS).cloned());
        e.reads.extend(transit.clone().map(Read::SwitchOf));
        let key = row.zip(transit).map(|(p, ts)| Key::SwitchPort(ts, p.name.clone()));
        self.present.set(id, key, e);
    }

    fn router_changed(
        &mut self,
        id: Uuid,
        old: Option<&nb::LogicalRouter>,
        new: Option<&nb::LogicalRouter>,
        e: &mut Effect,
    ) {
        let transit = |r: Option<&nb::LogicalRouter>| r.and_then(|r| r.options.get(TR).cloned());
        let (was, is) = (transit(old), transit(new));
        let none = BTreeSet::new();
        let ports = |r: Option<&nb::LogicalRouter>| r.map_or_else(|| none.clone(), |r| r.ports.clone());
        let routes = |r: Option<&nb::LogicalRouter>| r.map_or_else(|| none.clone(), |r| r.static_routes.clone());
        self.routers.shift(id, was.clone(), is.clone());
        let moved = was != is;
        let mut touched = assign(&mut self.router_of, id, &ports(old), &ports(new));
        if moved {
            touched.extend(ports(new));
        }
        self.present.set(id, is.clone().map(Key::Router), e);
        for port in touched {
            let name = self.db.logical_router_port.get(&port).map(|p| p.name.clone());
            e.reads.extend(name.map(Read::RouterPortNamed));
            self.place_router_port(port, e);
        }
        for route in assign(&mut self.router_of_route, id, &routes(old), &routes(new)) {
            self.place_route(route, e);
        }
        e.reads.extend(was.into_iter().chain(is).map(Read::RouterOf));
        // A route that comes or goes concerns who looks at that route: there may be thousands.
        if !old.zip(new).is_some_and(|(old, new)| differs_in_routes_alone(old, new)) {
            e.reads.push(Read::Router(id));
        }
    }

    /// A port of a transit router has a key.
    fn place_router_port(&mut self, id: Uuid, e: &mut Effect) {
        let row = self.db.logical_router_port.get(&id).filter(|p| p.options.contains_key(TR));
        let of = self.router_of.get(&id).and_then(|lr| self.db.logical_router.get(lr));
        let transit = of.and_then(|lr| lr.options.get(TR).cloned());
        e.reads.extend(transit.clone().map(Read::RouterOf));
        let key = row.zip(transit).map(|(p, tr)| Key::RouterPort(tr, p.name.clone()));
        self.present.set(id, key, e);
    }

    /// A route that was learned has a key; others are the router's own.
    fn place_route(&mut self, id: Uuid, e: &mut Effect) {
        let router = self.router_of_route.get(&id).copied();
        let row = router.zip(self.db.logical_router_static_route.get(&id));
        let from = row.and_then(|(lr, r)| Some((lr, r.external_ids.get(LEARNED_ROUTE)?.parse().ok()?)));
        self.present.set(id, from.map(|(lr, from)| Key::StaticRoute(lr, from)), e);
        let own = row.filter(|(_, r)| !r.external_ids.contains_key(LEARNED_ROUTE));
        let own = own.map(|(lr, r)| (lr, r.route_table.clone(), r.ip_prefix.clone()));
        let new = own.as_ref().map(|(.., prefix)| prefix.clone());
        let old = self.own_routes.replace(id, own).map(|(.., prefix)| prefix);
        if old.is_some() || new.is_some() {
            e.reads.extend(old.into_iter().chain(new).map(Read::RoutesTo));
            e.reads.push(Read::StaticRoute(id));
        }
    }

    /// `NB_Global`.
    pub fn global(&self) -> Option<&nb::NbGlobal> {
        self.db.nb_global.values().next().map(|g| &**g)
    }

    /// The logical switch of a transit switch.
    pub fn switch_of_transit(&self, name: &Str) -> Option<(Uuid, &nb::LogicalSwitch)> {
        let id = self.switches.get(name).next()?;
        Some((id, self.db.logical_switch.get(&id)?))
    }

    /// The logical router of a transit router.
    pub fn router_of_transit(&self, name: &Str) -> Option<(Uuid, &nb::LogicalRouter)> {
        let id = self.routers.get(name).next()?;
        Some((id, self.db.logical_router.get(&id)?))
    }

    /// A router's port by name.
    pub fn router_port(&self, name: &Str) -> Option<(Uuid, &nb::LogicalRouterPort)> {
        let id = self.router_ports.get(name).next()?;
        Some((id, self.db.logical_router_port.get(&id)?))
    }

    /// The logical router of a port.
    pub fn router_of_port(&self, port: Uuid) -> Option<Uuid> {
        self.router_of.get(&port).copied()
    }

    /// The logical router of a static route.
    pub fn router_of_static_route(&self, route: Uuid) -> Option<Uuid> {
        self.router_of_route.get(&route).copied()
    }

    /// A static route that was not learned from another zone, with its router, where that is on transit switches.
    pub fn own_route(&self, id: Uuid) -> Option<(Uuid, &nb::LogicalRouterStaticRoute)> {
        let (router, ..) = self.own_routes.key(id).filter(|(router, ..)| self.is_attached(*router))?;
        Some((*router, self.db.logical_router_static_route.get(&id)?))
    }

    /// The static routes of all routers that were not learned from other zones.
    pub fn own_routes(&self) -> impl Iterator<Item = Uuid> {
        self.own_routes.ids()
    }

    /// Whether a router has a static route to this prefix that was not learned from another zone.
    pub fn has_own_route(&self, router: Uuid, table: &Str, prefix: &Str) -> bool {
        self.own_routes.row(&(router, table.clone(), prefix.clone())).is_some()
    }

    /// Whether a logical router has ports on transit switches.
    pub fn is_attached(&self, router: Uuid) -> bool {
        self.attached.contains(&router)
    }

    /// The logical switch of a transit switch's port.
    pub fn switch_of_port(&self, port: Uuid) -> Option<Uuid> {
        self.switch_of.get(&port).copied()
    }

    /// The ports of transit switches that are connected to a router's port, with the transit switch's name.
    pub fn transit_ports_to(&self, router_port: &Str) -> impl Iterator<Item = (&Str, &nb::LogicalSwitchPort)> {
        self.ports_to.get(router_port).filter_map(|id| {
            let switch = self.db.logical_switch.get(self.switch_of.get(&id)?)?;
            Some((switch.other_config.get(TS)?, &**self.db.logical_switch_port.get(&id)?))
        })
    }

    /// The address sets of a name.
    pub fn sets_named(&self, name: &Str) -> impl Iterator<Item = &nb::AddressSet> {
        self.sets.get(name).filter_map(|id| self.db.address_set.get(&id)).map(|s| &**s)
    }
}
