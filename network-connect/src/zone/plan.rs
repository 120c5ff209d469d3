//! From wanted rows and rows that are there to operations of transactions.

use super::northbound::Northbound;
use super::rows::{Key, Port, Side, Value, addresses_name, external_ids, group_name, router_name};
use super::{Input, Read, Zone};
use incremental::Engine;
use ovn_schema::{ColumnValue, Map, Set, Str, Uuid, nb};
use ovsdb_rs::client::Transaction;
use ovsdb_rs::client::writer::Batch;
use ovsdb_rs::{DatabaseSchema, Datum};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The priority of policies towards other networks.
const POLICY: i64 = 9001;

/// The option with a requested key.
const TUNNEL_KEY: &str = "requested-tnl-key";
/// The option with the chassis of a port in another zone.
const CHASSIS: &str = "requested-chassis";

/// The wanted rows, and which of them may differ from those that are there.
pub struct Plan {
    engine: Engine<Zone>,
    dirty: BTreeSet<Key>,
    /// Keys whose router is not there.
    waiting: BTreeSet<Key>,
    /// What is in the way, by resource.
    problems: BTreeMap<Str, BTreeSet<Str>>,
}

/// Operations, with the key that each is for.
pub type Operations = Batch<Key>;

/// A parent's column, and what comes into it and goes out of it.
type Members = BTreeMap<(&'static str, Uuid, &'static str), (Set<Uuid>, Set<Uuid>)>;

/// A transaction in the making.
struct Making<'a> {
    nb: &'a Northbound,
    members: Members,
    /// How often a row came into a parent's column or went out of it.
    moved: usize,
    /// Routers that this transaction makes.
    made: BTreeMap<Str, Uuid>,
    /// Routers that it deletes, with all that is on them.
    gone: BTreeSet<Uuid>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { engine: Engine::new(Zone), dirty: BTreeSet::new(), waiting: BTreeSet::new(), problems: BTreeMap::new() }
    }
}

impl Plan {
    /// Derives anew what depends on what was read. Gives the number of units that ran.
    pub fn derive(&mut self, input: &Input, reads: Vec<Read>) -> usize {
        let changes = self
            .engine
            .update(input, reads, |changes| changes.map(|c| (c.key.clone(), !c.after.is_empty())).collect::<Vec<_>>());
        for (key, is) in changes {
            match key {
                Key::Problem(of, text) if is => drop(self.problems.entry(of).or_default().insert(text)),
                Key::Problem(of, text) => {
                    if let Some(all) = self.problems.get_mut(&of) {
                        all.remove(&text);
                        if all.is_empty() {
                            self.problems.remove(&of);
                        }
                    }
                }
                key => self.touch(key),
            }
        }
        self.engine.stats().ran
    }

    /// Derives everything anew the next time, as after the database came anew.
    pub fn restart(&mut self) {
        *self = Plan::default();
    }

    /// The row of this key may differ from what is wanted.
    pub fn touch(&mut self, key: Key) {
        if matches!(key, Key::Router(_)) {
            self.dirty.append(&mut self.waiting);
        }
        self.dirty.insert(key);
    }

    /// Every row may differ from what is wanted.
    pub fn touch_all(&mut self, input: &Input) {
        let keys: Vec<Key> = self.all().map(|(key, _)| key).chain(input.nb.keys()).cloned().collect();
        keys.into_iter().for_each(|key| self.touch(key));
    }

    /// All that is wanted.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Value)> {
        let all = self.engine.outputs().iter().filter(|(key, _)| !matches!(key, Key::Problem(..)));
        all.filter_map(|(key, values)| Some((key, values.min()?)))
    }

    /// What is in the way of a resource.
    pub fn problems(&self, of: &str) -> impl Iterator<Item = &Str> {
        self.problems.get(of).into_iter().flatten()
    }

    /// Whether every row is looked at.
    pub fn is_settled(&self) -> bool {
        self.dirty.is_empty()
    }

    /// How much there is, by what it is, for `memory/show`.
    pub fn sizes(&self) -> [(&'static str, usize); 3] {
        let stats = self.engine.stats();
        [("wanted-rows", stats.keys), ("units", stats.units), ("names", stats.names)]
    }

    /// Operations that bring the database closer to what is wanted, for at most `limit` rows.
    pub fn operations(&mut self, nb: &Northbound, schema: &Arc<DatabaseSchema>, limit: usize) -> Operations {
        let mut out = Operations::default();
        let mut m = Making { nb, members: Members::new(), moved: 0, made: BTreeMap::new(), gone: BTreeSet::new() };
        while out.keys().len() < limit {
            let Some(key) = self.dirty.pop_first() else { break };
            let mut txn = Transaction::new(schema.clone());
            let before = m.moved;
            if !m.row(&key, self.engine.outputs().first(&key), &mut txn) {
                self.waiting.insert(key);
                continue;
            }
            if txn.is_empty() && m.moved == before {
                continue;
            }
            out.extend(&key, txn);
            out.takes_part(&key);
        }
        let mut txn = Transaction::new(schema.clone());
        for ((table, parent, column), (added, gone)) in &m.members {
            exchange(&mut txn, (table, *parent, column), gone, added);
        }
        out.extend_all(txn);
        out
    }
}

/// Takes rows out of a column, and puts others into it.
fn exchange(txn: &mut Transaction, of: (&str, Uuid, &str), gone: &Set<Uuid>, added: &Set<Uuid>) {
    let (table, id, column) = of;
    match (gone.is_empty(), added.is_empty()) {
        (true, true) => {}
        (true, false) => txn.mutate(table, id, column, "insert", &added.to_datum()),
        (false, true) => txn.mutate(table, id, column, "delete", &gone.to_datum()),
        (false, false) => txn.exchange(table, id, column, &gone.to_datum(), &added.to_datum()),
    }
}

/// A column with its value, where it differs.
fn differs<T: ColumnValue + PartialEq>(name: &'static str, now: &T, wanted: &T) -> Option<(&'static str, Datum)> {
    (now != wanted).then(|| (name, wanted.to_datum()))
}

/// A map with some values set, or removed where there is none.
fn with(map: &Map<Str, Str>, values: &[(&str, Option<Str>)]) -> Map<Str, Str> {
    let mut map = map.clone();
    for (key, value) in values {
        match value {
            Some(v) => map.insert((*key).into(), v.clone()),
            None => map.remove(*key),
        };
    }
    map
}

fn number(n: Option<u32>) -> Option<Str> {
    n.map(|n| n.to_string().into())
}

impl Making<'_> {
    fn add(&mut self, table: &'static str, parent: Uuid, column: &'static str, id: Uuid) {
        self.moved += 1;
        self.members.entry((table, parent, column)).or_default().0.insert(id);
    }

    fn remove(&mut self, table: &'static str, parent: Uuid, column: &'static str, id: Uuid) {
        if !self.gone.contains(&parent) {
            self.moved += 1;
            self.members.entry((table, parent, column)).or_default().1.insert(id);
        }
    }

    fn router(&self, name: &Str) -> Option<Uuid> {
        self.made.get(name).copied().or_else(|| self.nb.router(name).filter(|id| !self.gone.contains(id)))
    }

    /// Brings the rows of a key to what is wanted. Tells whether that could be done: a router may be missing.
    fn row(&mut self, key: &Key, wanted: Option<&Value>, txn: &mut Transaction) -> bool {
        let rows: Vec<Uuid> = self.nb.rows(key).collect();
        let first = rows.first().copied();
        match (key, wanted) {
            (Key::Router(of), Some(Value::Router(key_of_router, copp))) => {
                self.surplus("Logical_Router", rows.iter().skip(1), txn);
                self.connect_router(of, key, *key_of_router, *copp, first, txn);
                true
            }
            (Key::Router(_), _) => {
                self.surplus("Logical_Router", rows.iter(), txn);
                true
            }
            (Key::Group(of), Some(Value::Group(balancers, switches))) => {
                self.group(of, balancers, switches, first, txn);
                true
            }
            (Key::Group(_), _) => {
                rows.iter().for_each(|id| self.detach(*id, "load_balancer_group", &Set::new()));
                self.surplus("Load_Balancer_Group", rows.iter(), txn);
                true
            }
            (Key::Addresses(of, family), Some(Value::Addresses(wanted))) => {
                self.surplus("Address_Set", rows.iter().skip(1), txn);
                match first.and_then(|id| Some((id, self.nb.db.address_set.get(&id)?))) {
                    Some((id, row)) => txn.update("Address_Set", id, differs("addresses", &row.addresses, wanted)),
                    None => {
                        let row = nb::AddressSet {
                            addresses: wanted.clone(),
                            external_ids: external_ids(key, ""),
                            name: addresses_name(of, *family),
                            options: Map::new(),
                        };
                        txn.insert("Address_Set", ovn_schema::Table::columns(&row));
                    }
                }
                true
            }
            (Key::Addresses(..), _) => {
                self.surplus("Address_Set", rows.iter(), txn);
                true
            }
            (Key::Acl(..), Some(Value::Acl(priority, matches, action, switches))) => {
                rows.iter().skip(1).for_each(|id| self.detach(*id, "acls", &Set::new()));
                self.acl(key, (*priority, matches, action), switches, first, txn);
                true
            }
            (Key::Acl(..), _) => {
                rows.iter().for_each(|id| self.detach(*id, "acls", &Set::new()));
                true
            }
            (Key::Port(.., side), Some(Value::Port(port))) => {
                self.leave("ports", rows.iter().skip(1));
                self.port(key, *side, port, first, txn)
            }
            (Key::Policy(..), Some(Value::Policy(router, matches, nexthop))) => {
                self.leave("policies", rows.iter().skip(1));
                self.policy(key, (router, matches, nexthop), first, txn)
            }
            (Key::Route(of, ..), Some(Value::Route(prefix, nexthop))) => {
                self.leave("static_routes", rows.iter().skip(1));
                self.route(key, &router_name(of), (prefix, nexthop), first, txn)
            }
            (Key::Port(..), _) => self.leave("ports", rows.iter()),
            (Key::Policy(..), _) => self.leave("policies", rows.iter()),
            (Key::Route(..), _) => self.leave("static_routes", rows.iter()),
            (Key::Problem(..), _) => true,
        }
    }

    /// Deletes rows that stand by themselves.
    fn surplus<'r>(&mut self, table: &str, rows: impl Iterator<Item = &'r Uuid>, txn: &mut Transaction) {
        for id in rows {
            self.gone.insert(*id);
            txn.delete(table, *id);
        }
    }

    /// Takes rows out of their routers, which deletes them.
    fn leave<'r>(&mut self, column: &'static str, rows: impl Iterator<Item = &'r Uuid>) -> bool {
        for id in rows {
            if let Some(router) = self.nb.router_of(*id) {
                self.remove("Logical_Router", router, column, *id);
            }
        }
        true
    }

    /// Takes an ACL or a load balancer group out of switches other than these.
    fn detach(&mut self, id: Uuid, column: &'static str, keep: &Set<Uuid>) {
        let switches: Vec<Uuid> = self.nb.switches_with(id).filter(|s| !keep.contains(s)).collect();
        switches.into_iter().for_each(|switch| self.remove("Logical_Switch", switch, column, id));
    }

    /// Puts an ACL or a load balancer group into these switches, and takes it out of others.
    fn attach(&mut self, id: Uuid, column: &'static str, names: &Set<Str>) {
        let wanted: Set<Uuid> = names.iter().filter_map(|name| self.nb.switch(name)).collect();
        self.detach(id, column, &wanted);
        let present: Set<Uuid> = self.nb.switches_with(id).collect();
        wanted.difference(&present).for_each(|switch| self.add("Logical_Switch", *switch, column, id));
    }

    fn connect_router(
        &mut self,
        of: &Str,
        key: &Key,
        number_of: Option<u32>,
        copp: Option<Uuid>,
        row: Option<Uuid>,
        txn: &mut Transaction,
    ) {
        let name = router_name(of);
        let options = |now: &Map<Str, Str>| with(now, &[(TUNNEL_KEY, number(number_of))]);
        match row.and_then(|id| Some((id, self.nb.db.logical_router.get(&id)?))) {
            Some((id, row)) => {
                let changes = [
                    differs("name", &row.name, &name),
                    differs("options", &row.options, &options(&row.options)),
                    differs("copp", &row.copp, &copp),
                ];
                txn.update("Logical_Router", id, changes.into_iter().flatten());
            }
            None => {
                let columns = [
                    ("name", name.to_datum()),
                    ("options", options(&Map::new()).to_datum()),
                    ("copp", copp.to_datum()),
                    ("external_ids", external_ids(key, "").to_datum()),
                ];
                let id = txn.insert("Logical_Router", columns);
                self.made.insert(name, id);
            }
        }
    }

    fn group(
        &mut self,
        of: &Str,
        balancers: &Set<Uuid>,
        switches: &Set<Str>,
        row: Option<Uuid>,
        txn: &mut Transaction,
    ) {
        let id = match row.and_then(|id| Some((id, self.nb.db.load_balancer_group.get(&id)?))) {
            Some((id, row)) => {
                let gone: Set<Uuid> = row.load_balancer.difference(balancers).copied().collect();
                let added: Set<Uuid> = balancers.difference(&row.load_balancer).copied().collect();
                exchange(txn, ("Load_Balancer_Group", id, "load_balancer"), &gone, &added);
                id
            }
            None => {
                let columns = [("name", group_name(of).to_datum()), ("load_balancer", balancers.to_datum())];
                txn.insert("Load_Balancer_Group", columns)
            }
        };
        self.attach(id, "load_balancer_group", switches);
    }

    fn acl(
        &mut self,
        key: &Key,
        (priority, matches, action): (i64, &Str, &str),
        switches: &Set<Str>,
        row: Option<Uuid>,
        txn: &mut Transaction,
    ) {
        let (action, direction): (Str, Str) = (action.into(), "from-lport".into());
        let id = match row.and_then(|id| Some((id, self.nb.db.acl.get(&id)?))) {
            Some((id, row)) => {
                let changes = [
                    differs("priority", &row.priority, &priority),
                    differs("match", &row.r#match, matches),
                    differs("action", &row.action, &action),
                    differs("direction", &row.direction, &direction),
                ];
                txn.update("ACL", id, changes.into_iter().flatten());
                id
            }
            None => {
                let columns = [
                    ("priority", priority.to_datum()),
                    ("match", matches.to_datum()),
                    ("action", action.to_datum()),
                    ("direction", direction.to_datum()),
                    ("external_ids", external_ids(key, "").to_datum()),
                ];
                txn.insert("ACL", columns)
            }
        };
        self.attach(id, "acls", switches);
    }

    /// Puts a new row onto its router, or moves one that is there from another.
    fn onto(&mut self, router: Uuid, column: &'static str, id: Uuid) {
        let now = self.nb.router_of(id);
        if now == Some(router) {
            return;
        }
        if let Some(other) = now {
            self.remove("Logical_Router", other, column, id);
        }
        self.add("Logical_Router", router, column, id);
    }

    fn port(&mut self, key: &Key, side: Side, port: &Port, row: Option<Uuid>, txn: &mut Transaction) -> bool {
        let Some(router) = self.router(&port.router) else { return false };
        let options = |now: &Map<Str, Str>| match side {
            Side::Connect => with(now, &[(TUNNEL_KEY, number(port.key)), (CHASSIS, port.chassis.clone())]),
            Side::Network => now.clone(),
        };
        let ids = external_ids(key, &port.router);
        let id = match row.and_then(|id| Some((id, self.nb.db.logical_router_port.get(&id)?))) {
            Some((id, row)) => {
                let changes = [
                    differs("name", &row.name, &port.name),
                    differs("mac", &row.mac, &port.mac),
                    differs("networks", &row.networks, &port.networks),
                    differs("peer", &row.peer, &port.peer),
                    differs("options", &row.options, &options(&row.options)),
                    differs("external_ids", &row.external_ids, &ids),
                ];
                txn.update("Logical_Router_Port", id, changes.into_iter().flatten());
                id
            }
            None => {
                let columns = [
                    ("name", port.name.to_datum()),
                    ("mac", port.mac.to_datum()),
                    ("networks", port.networks.to_datum()),
                    ("peer", port.peer.to_datum()),
                    ("options", options(&Map::new()).to_datum()),
                    ("external_ids", ids.to_datum()),
                ];
                txn.insert("Logical_Router_Port", columns)
            }
        };
        self.onto(router, "ports", id);
        true
    }

    fn policy(
        &mut self,
        key: &Key,
        (router, matches, nexthop): (&Str, &Str, &Str),
        row: Option<Uuid>,
        txn: &mut Transaction,
    ) -> bool {
        let Some(on) = self.router(router) else { return false };
        let ids = external_ids(key, router);
        let (nexthops, action): (Set<Str>, Str) = (Set::from([nexthop.clone()]), "reroute".into());
        let id = match row.and_then(|id| Some((id, self.nb.db.logical_router_policy.get(&id)?))) {
            Some((id, row)) => {
                let changes = [
                    differs("priority", &row.priority, &POLICY),
                    differs("match", &row.r#match, matches),
                    differs("action", &row.action, &action),
                    differs("nexthops", &row.nexthops, &nexthops),
                    differs("external_ids", &row.external_ids, &ids),
                ];
                txn.update("Logical_Router_Policy", id, changes.into_iter().flatten());
                id
            }
            None => {
                let columns = [
                    ("priority", POLICY.to_datum()),
                    ("match", matches.to_datum()),
                    ("action", action.to_datum()),
                    ("nexthops", nexthops.to_datum()),
                    ("external_ids", ids.to_datum()),
                ];
                txn.insert("Logical_Router_Policy", columns)
            }
        };
        self.onto(on, "policies", id);
        true
    }

    fn route(
        &mut self,
        key: &Key,
        router: &Str,
        (prefix, nexthop): (&Str, &Str),
        row: Option<Uuid>,
        txn: &mut Transaction,
    ) -> bool {
        let Some(on) = self.router(router) else { return false };
        let id = match row.and_then(|id| Some((id, self.nb.db.logical_router_static_route.get(&id)?))) {
            Some((id, row)) => {
                let changes = [differs("ip_prefix", &row.ip_prefix, prefix), differs("nexthop", &row.nexthop, nexthop)];
                txn.update("Logical_Router_Static_Route", id, changes.into_iter().flatten());
                id
            }
            None => {
                let columns = [
                    ("ip_prefix", prefix.to_datum()),
                    ("nexthop", nexthop.to_datum()),
                    ("external_ids", external_ids(key, "").to_datum()),
                ];
                txn.insert("Logical_Router_Static_Route", columns)
            }
        };
        self.onto(on, "static_routes", id);
        true
    }
}
