//! The northbound database: its rows by the keys of what is derived, and what units look up there.

use super::Read;
use super::rows::{Key, Table, group_key, key_of};
use ovn_schema::{Index, Map, Set, Str, Uuid, nb};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// What control plane protection is called.
const PROTECTION: &str = "ovnkube-default";

/// What is read of the database.
pub const TABLES: &[(&str, &[&str])] = &[
    ("Logical_Router", &["name", "ports", "policies", "static_routes", "options", "external_ids", "copp"]),
    ("Logical_Router_Port", &["name", "mac", "networks", "peer", "options", "external_ids"]),
    ("Logical_Router_Policy", &["priority", "match", "action", "nexthops", "external_ids"]),
    ("Logical_Router_Static_Route", &["ip_prefix", "nexthop", "external_ids"]),
    ("Logical_Switch", &["name", "acls", "load_balancer_group"]),
    ("Load_Balancer", &["name", "external_ids"]),
    ("Load_Balancer_Group", &["name", "load_balancer"]),
    ("ACL", &["priority", "match", "action", "direction", "external_ids"]),
    ("Address_Set", &["name", "addresses", "external_ids"]),
    ("Copp", &["name"]),
];

/// The database with indexes.
#[derive(Debug, Default)]
pub struct Northbound {
    /// Its tables.
    pub db: nb::Database,
    /// The key of each row of ours.
    keys: FxHashMap<Uuid, Key>,
    rows: Index<Key>,
    routers: Index<Str>,
    switches: Index<Str>,
    /// The router of a port, policy or route of ours, and of others.
    router_of: FxHashMap<Uuid, Uuid>,
    /// The switches that have an ACL or a load balancer group.
    switches_with: Index<Uuid>,
    balancers: Index<Str>,
    protections: BTreeSet<Uuid>,
}

/// What a change means: reads of units, and keys of outputs whose row it touched.
#[derive(Debug, Default)]
pub struct Effect {
    /// What changed for units.
    pub reads: Vec<Read>,
    /// Whose row changed.
    pub keys: Vec<Key>,
}

fn differ<'a>(old: &'a Set<Uuid>, new: &'a Set<Uuid>) -> impl Iterator<Item = (Uuid, bool)> + use<'a> {
    old.difference(new).map(|id| (*id, false)).chain(new.difference(old).map(|id| (*id, true)))
}

impl Northbound {
    /// Takes a change over into the indexes; the table has it already.
    pub fn changed(&mut self, change: &nb::AnyChange) -> Effect {
        use nb::AnyChange as A;
        let id = change.key().1;
        let mut e = Effect::default();
        match change {
            A::LogicalRouter(c) => self.router_changed(id, c.old.as_deref(), c.new.as_deref(), &mut e),
            A::LogicalRouterPort(c) => {
                self.place(id, c.new.as_ref().and_then(|r| key_of(Table::Port, &r.external_ids)), &mut e);
            }
            A::LogicalRouterPolicy(c) => {
                self.place(id, c.new.as_ref().and_then(|r| key_of(Table::Policy, &r.external_ids)), &mut e);
            }
            A::LogicalRouterStaticRoute(c) => {
                self.place(id, c.new.as_ref().and_then(|r| key_of(Table::Route, &r.external_ids)), &mut e);
            }
            A::Acl(c) => self.place(id, c.new.as_ref().and_then(|r| key_of(Table::Acl, &r.external_ids)), &mut e),
            A::AddressSet(c) => {
                self.place(id, c.new.as_ref().and_then(|r| key_of(Table::Addresses, &r.external_ids)), &mut e);
            }
            A::LoadBalancerGroup(c) => self.place(id, c.new.as_ref().and_then(|r| group_key(&r.name)), &mut e),
            A::LogicalSwitch(c) => self.switch_changed(id, c.old.as_deref(), c.new.as_deref(), &mut e),
            A::LoadBalancer(c) => {
                let network = |r: Option<&nb::LoadBalancer>| r.and_then(network_of);
                let (old, new) = (network(c.old.as_deref()), network(c.new.as_deref()));
                if self.balancers.shift(id, old.clone(), new.clone()) {
                    e.reads.extend(old.into_iter().chain(new).map(Read::Balancers));
                }
            }
            A::Copp(c) => {
                match c.new.as_ref().is_some_and(|r| &*r.name == PROTECTION) {
                    true => self.protections.insert(id),
                    false => self.protections.remove(&id),
                };
                e.reads.push(Read::Protection);
            }
            _ => {}
        }
        e
    }

    /// A row changed, and has this key now. Touches both keys.
    fn place(&mut self, id: Uuid, key: Option<Key>, e: &mut Effect) {
        let old = match &key {
            Some(key) => self.keys.insert(id, key.clone()),
            None => self.keys.remove(&id),
        };
        self.rows.shift(id, old.clone(), key.clone());
        if old != key {
            e.keys.extend(key);
        }
        e.keys.extend(old);
    }

    fn router_changed(
        &mut self,
        id: Uuid,
        old: Option<&nb::LogicalRouter>,
        new: Option<&nb::LogicalRouter>,
        e: &mut Effect,
    ) {
        let name = |r: Option<&nb::LogicalRouter>| r.map(|r| r.name.clone());
        if self.routers.shift(id, name(old), name(new)) {
            e.reads.extend(name(old).into_iter().chain(name(new)).map(Read::Router));
        }
        let unused = Set::new();
        let parts: [fn(&nb::LogicalRouter) -> &Set<Uuid>; 3] = [|r| &r.ports, |r| &r.policies, |r| &r.static_routes];
        for part in parts {
            for (child, there) in differ(old.map_or(&unused, part), new.map_or(&unused, part)) {
                match there {
                    true => drop(self.router_of.insert(child, id)),
                    false if self.router_of.get(&child) == Some(&id) => drop(self.router_of.remove(&child)),
                    false => {}
                }
                e.keys.extend(self.keys.get(&child).cloned());
            }
        }
        let key = new.and_then(|r| key_of(Table::Router, &r.external_ids));
        let same = |r: &nb::LogicalRouter| (r.name.clone(), r.options.clone(), r.external_ids.clone(), r.copp);
        // Ports come and go all the time.
        if self.keys.get(&id) != key.as_ref() || old.map(same) != new.map(same) {
            self.place(id, key, e);
        }
    }

    fn switch_changed(
        &mut self,
        id: Uuid,
        old: Option<&nb::LogicalSwitch>,
        new: Option<&nb::LogicalSwitch>,
        e: &mut Effect,
    ) {
        let name = |r: Option<&nb::LogicalSwitch>| r.map(|r| r.name.clone());
        if self.switches.shift(id, name(old), name(new)) {
            e.reads.extend(name(old).into_iter().chain(name(new)).map(Read::Switch));
        }
        let unused = Set::new();
        let parts: [fn(&nb::LogicalSwitch) -> &Set<Uuid>; 2] = [|r| &r.acls, |r| &r.load_balancer_group];
        for part in parts {
            for (child, there) in differ(old.map_or(&unused, part), new.map_or(&unused, part)) {
                let (was, is) = if there { (None, Some(child)) } else { (Some(child), None) };
                self.switches_with.shift(id, was, is);
                e.keys.extend(self.keys.get(&child).cloned());
            }
        }
    }

    /// The rows under a key.
    pub fn rows(&self, key: &Key) -> impl Iterator<Item = Uuid> {
        self.rows.get(key)
    }

    /// All keys that have rows.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.rows.keys()
    }

    /// The router of a port, policy or route.
    pub fn router_of(&self, child: Uuid) -> Option<Uuid> {
        self.router_of.get(&child).copied()
    }

    /// The switches that have an ACL or a load balancer group.
    pub fn switches_with(&self, child: Uuid) -> impl Iterator<Item = Uuid> {
        self.switches_with.get(&child)
    }

    /// The logical router of a name.
    pub fn router(&self, name: &Str) -> Option<Uuid> {
        self.routers.get(name).next()
    }

    /// The logical switch of a name.
    pub fn switch(&self, name: &Str) -> Option<Uuid> {
        self.switches.get(name).next()
    }

    /// The load balancers of the cluster IPs of a network's services.
    pub fn balancers(&self, network: &Str) -> impl Iterator<Item = Uuid> {
        self.balancers.get(network)
    }

    /// The control plane protection of routers, where there is one.
    pub fn protection(&self) -> Option<Uuid> {
        self.protections.first().copied()
    }
}

/// The network for whose services' cluster IPs a load balancer is.
fn network_of(row: &nb::LoadBalancer) -> Option<Str> {
    let get = |ids: &Map<Str, Str>, key: &str| ids.get(key).cloned();
    let service = get(&row.external_ids, "k8s.ovn.org/kind").is_some_and(|kind| &*kind == "Service");
    let network = get(&row.external_ids, "k8s.ovn.org/network");
    network.filter(|_| service && row.name.ends_with("_cluster"))
}
