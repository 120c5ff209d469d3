//! Operations on the southbound database.

use super::{Operations, Plan};
use crate::model::{Input, Southbound, TorId};
use crate::output::{Chassis, Key, Value};
use crate::units::{BFD, OWNER};
use ovn_schema::{Map, Set, Str, Uuid, Write, sb};
use ovsdb_rs::DatabaseSchema;
use ovsdb_rs::client::Transaction;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a transaction needs to know while it is made.
struct Making<'a> {
    sb: &'a Southbound,
    schema: Arc<DatabaseSchema>,
    /// Chassis that the transaction inserts.
    inserted: HashMap<Str, Uuid>,
    /// The rows of `Global` of the databases that are known.
    owners: Vec<Str>,
    /// The common name of our certificate.
    client: Str,
}

impl Plan {
    /// Operations that bring the southbound database closer to what is derived, for at most `limit` rows. Rows of
    /// switches whose database is not `active` are passed over.
    pub fn southbound(
        &mut self,
        input: &Input,
        schema: &Arc<DatabaseSchema>,
        limit: usize,
        active: &[bool],
    ) -> Operations {
        let mut out = Operations::default();
        let owners = input.tors.iter().flat_map(|t| t.db.global.keys()).map(|g| g.to_string().into()).collect();
        let mut m = Making {
            sb: &input.sb,
            schema: schema.clone(),
            inserted: HashMap::new(),
            owners,
            client: self.client.clone(),
        };
        let mut rows = 0;
        while rows < limit {
            let Some(key) = self.southbound.pop_first() else { break };
            if !self.may(&key, active) {
                continue;
            }
            let mut txn = Transaction::new(m.schema.clone());
            match &key {
                Key::Chassis(name) => self.chassis(name, &mut m, &mut txn),
                Key::Binding(port) => {
                    self.binding(*port, &m, &mut txn);
                    self.memory.ours.remove(&key);
                }
                Key::Fdb(datapath, mac) => self.fdb(&key, *datapath, mac, &m, &mut txn),
                Key::Neighbour(port, ip) => self.neighbour(&key, port, ip, &m, &mut txn),
                _ => {}
            }
            rows += usize::from(!txn.is_empty());
            out.extend(&key, txn);
        }
        out
    }

    /// Whether a southbound row is for us to write: its switch's database is one where we are active. A row that
    /// belongs to no switch any more is for whoever is active anywhere.
    fn may(&self, key: &Key, active: &[bool]) -> bool {
        let value = self.desired.get(key).or_else(|| self.memory.ours.get(key));
        let tor = match (key, value) {
            (Key::Chassis(name), _) => self.tor_of(name),
            (Key::Binding(_), Some(Value::Binding(name))) => self.tor_of(name),
            (_, Some(Value::Fdb(_, tor))) => Some(*tor),
            (_, Some(Value::Neighbour(n))) => Some(n.tor),
            _ => None,
        };
        match tor {
            Some(TorId(t)) => active.get(usize::from(t)).copied().unwrap_or(false),
            None => active.contains(&true),
        }
    }

    fn chassis(&mut self, name: &Str, m: &mut Making<'_>, txn: &mut Transaction) {
        let row = m.sb.chassis(name);
        let desired = match self.desired.get(&Key::Chassis(name.clone())) {
            Some(Value::Chassis(c)) => c,
            _ => {
                let marked = row.is_some_and(|(_, c)| c.external_ids.get(OWNER).is_some_and(|o| m.owners.contains(o)));
                let ours = self.memory.ours.remove(&Key::Chassis(name.clone())).is_some();
                self.memory.registered.remove(name);
                if let Some((id, _)) = row.filter(|_| marked || ours) {
                    txn.delete("Chassis", id);
                }
                return;
            }
        };
        match row {
            None => {
                if self.memory.registered.contains(name) {
                    tracing::warn!(target: "gateway", "Chassis for VTEP physical switch ({name}) disappears, maybe deleted by ovn-sbctl, adding it back");
                } else {
                    tracing::info!(target: "gateway", "add Chassis row for VTEP physical switch ({name})");
                }
                let encaps: Set<Uuid> = desired.ips.iter().map(|ip| insert_encap(name, ip, &m.client, txn)).collect();
                let id = txn.insert_row([
                    sb::Chassis::name(name),
                    sb::Chassis::encaps(&encaps),
                    sb::Chassis::other_config(&other_config(&Map::new(), desired)),
                    sb::Chassis::external_ids(&external_ids(&Map::new(), desired, &m.client)),
                    sb::Chassis::vtep_logical_switches(&desired.logical),
                ]);
                m.inserted.insert(name.clone(), id);
            }
            Some((id, row)) => {
                let first = !self.memory.registered.contains(name);
                update_chassis(name, id, row, desired, first, m, txn);
            }
        }
        self.memory.registered.insert(name.clone());
    }

    fn binding(&self, id: Uuid, m: &Making<'_>, txn: &mut Transaction) {
        let Some(port) = m.sb.db.port_binding.get(&id) else { return };
        let key = Key::Binding(id);
        let Some(Value::Binding(name)) = self.desired.get(&key) else {
            let at = port.chassis.and_then(|c| m.sb.db.chassis.get(&c)).map(|c| c.name.clone());
            let ours = |n: Str| {
                let key = Key::Chassis(n);
                self.desired.contains_key(&key) || self.memory.ours.contains_key(&key)
            };
            if at.is_some_and(ours) {
                unbind(id, port, txn);
            }
            return;
        };
        let found = m.inserted.get(name).copied().or_else(|| m.sb.chassis(name).map(|(id, _)| id));
        // Without its chassis the port has to wait for it.
        let Some(chassis) = found else { return };
        if port.chassis != Some(chassis) {
            if let Some(old) = port.chassis.and_then(|c| m.sb.db.chassis.get(&c)) {
                tracing::debug!(target: "binding", "Changing chassis association of logical port ({}) from ({}) to ({name})", port.logical_port, old.name);
            }
            txn.update_row(id, [sb::PortBinding::chassis(&Some(chassis))]);
        }
        if port.up == Some(false) {
            txn.update_row(id, [sb::PortBinding::up(&Some(true))]);
        }
    }

    fn fdb(&mut self, key: &Key, datapath: i64, mac: &Str, m: &Making<'_>, txn: &mut Transaction) {
        let rows: Vec<(Uuid, &sb::Fdb)> = m.sb.fdb(datapath, mac).collect();
        let ours_before = self.memory.ours.get(key).cloned();
        let Some(Value::Fdb(port, _)) = self.desired.get(key) else {
            for (id, row) in rows {
                // The port's row by its key: this switch's tables have not got the MAC any more.
                let was = matches!(ours_before, Some(Value::Fdb(port, _)) if port == row.port_key);
                if was || self.bound(datapath, row.port_key, m) {
                    txn.delete("FDB", id);
                }
            }
            // Else it is remembered until the row is gone.
            if txn.is_empty() {
                self.memory.ours.remove(key);
            }
            return;
        };
        self.memory.ours.remove(key);
        let fresh = self.memory.fresh.remove(key);
        match rows.first() {
            None => {
                let columns = [
                    sb::Fdb::dp_key(&datapath),
                    sb::Fdb::mac(mac),
                    sb::Fdb::port_key(port),
                    // It ages in the switch, not here.
                    sb::Fdb::timestamp(&i64::MAX),
                ];
                txn.insert_row(columns);
            }
            Some((id, row)) if row.port_key != *port => {
                let elsewhere = m.sb.port_by_key(datapath, row.port_key);
                let learned_elsewhere = elsewhere.is_some_and(|(_, p)| &*p.r#type == "vtep" && p.chassis.is_some());
                if fresh || !learned_elsewhere {
                    let columns = [sb::Fdb::port_key(port), sb::Fdb::timestamp(&i64::MAX)];
                    txn.update_row(*id, columns);
                }
            }
            Some(_) => {}
        }
    }

    /// What a router found out itself, by ARP, counts more than what a switch says.
    fn neighbour(&mut self, key: &Key, port: &Str, ip: &Str, m: &Making<'_>, txn: &mut Transaction) {
        let row = m.sb.neighbour(port, ip);
        let was = match self.memory.ours.get(key) {
            Some(Value::Neighbour(n)) => Some(&n.mac),
            _ => None,
        };
        match (self.desired.get(key), row) {
            (Some(Value::Neighbour(n)), None) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let columns = [
                    sb::MacBinding::logical_port(port),
                    sb::MacBinding::ip(ip),
                    sb::MacBinding::mac(&n.mac),
                    sb::MacBinding::datapath(&n.router),
                    sb::MacBinding::timestamp(&(now.as_millis() as i64)),
                ];
                txn.insert_row(columns);
            }
            (Some(Value::Neighbour(n)), Some((id, row))) if row.mac != n.mac && was == Some(&row.mac) => {
                txn.update_row(id, [sb::MacBinding::mac(&n.mac)]);
            }
            (None, Some((id, row))) if was == Some(&row.mac) => txn.delete("MAC_Binding", id),
            // Done, or not ours: there is nothing left to undo.
            _ => {
                self.memory.ours.remove(key);
            }
        }
    }

    /// Whether a port is one that we bind.
    fn bound(&self, datapath: i64, port: i64, m: &Making<'_>) -> bool {
        let row = m.sb.port_by_key(datapath, port);
        row.is_some_and(|(id, _)| self.desired.contains_key(&Key::Binding(id)))
    }

    /// Operations that take everything of ours out of the southbound database; for `exit`.
    pub fn leave_southbound(&self, input: &Input, schema: &Arc<DatabaseSchema>, active: &[bool]) -> Operations {
        let mut out = Operations::default();
        let sb = &input.sb;
        for (key, value) in self.desired.iter().filter(|(k, _)| self.may(k, active)) {
            let mut txn = Transaction::new(schema.clone());
            match (key, value) {
                (Key::Binding(id), _) => {
                    if let Some(port) = sb.db.port_binding.get(id).filter(|p| p.chassis.is_some()) {
                        unbind(*id, port, &mut txn);
                    }
                }
                (Key::Chassis(name), _) => {
                    if let Some((id, _)) = sb.chassis(name) {
                        txn.delete("Chassis", id);
                    }
                }
                (Key::Fdb(datapath, mac), Value::Fdb(port, _)) => {
                    for (id, _) in sb.fdb(*datapath, mac).filter(|(_, f)| f.port_key == *port) {
                        txn.delete("FDB", id);
                    }
                }
                (Key::Neighbour(port, ip), Value::Neighbour(n)) => {
                    if let Some((id, _)) = sb.neighbour(port, ip).filter(|(_, row)| row.mac == n.mac) {
                        txn.delete("MAC_Binding", id);
                    }
                }
                _ => {}
            }
            out.extend(key, txn);
        }
        out
    }
}

fn unbind(id: Uuid, port: &sb::PortBinding, txn: &mut Transaction) {
    txn.update_row(id, [sb::PortBinding::chassis(&None)]);
    if port.up == Some(true) {
        txn.update_row(id, [sb::PortBinding::up(&Some(false))]);
    }
}

/// The key under which rows hold the common name of the controller that may change them: by it the role
/// `vtep-controller` knows them.
const CLIENT: &str = "vtep-controller";

/// A map with some values set, or removed where there is none.
fn with(map: &Map<Str, Str>, values: &[(&str, Option<&Str>)]) -> Map<Str, Str> {
    let mut map = map.clone();
    for (key, value) in values {
        match value {
            Some(v) => map.insert((*key).into(), (*v).clone()),
            None => map.remove(*key),
        };
    }
    map
}

/// `Chassis.other_config` as it has to be.
fn other_config(now: &Map<Str, Str>, desired: &Chassis) -> Map<Str, Str> {
    let yes: Str = "true".into();
    with(now, &[("is-vtep", Some(&yes)), (BFD, desired.bfd.then_some(&yes))])
}

/// `Chassis.external_ids` as it has to be.
fn external_ids(now: &Map<Str, Str>, desired: &Chassis, client: &Str) -> Map<Str, Str> {
    with(now, &[(OWNER, Some(&desired.owner)), (CLIENT, (!client.is_empty()).then_some(client))])
}

/// `Encap.options` as it has to be.
fn encap_options(client: &Str) -> Map<Str, Str> {
    with(&Map::new(), &[("csum", Some(&"false".into())), (CLIENT, (!client.is_empty()).then_some(client))])
}

fn insert_encap(name: &Str, ip: &Str, client: &Str, txn: &mut Transaction) -> Uuid {
    let kind: Str = "vxlan".into();
    let options = encap_options(client);
    let columns =
        [sb::Encap::r#type(&kind), sb::Encap::ip(ip), sb::Encap::chassis_name(name), sb::Encap::options(&options)];
    txn.insert_row(columns)
}

fn update_chassis(
    name: &Str,
    id: Uuid,
    row: &sb::Chassis,
    desired: &Chassis,
    first: bool,
    m: &Making<'_>,
    txn: &mut Transaction,
) {
    let there: Vec<(Uuid, &sb::Encap)> =
        row.encaps.iter().filter_map(|e| Some((*e, &**m.sb.db.encap.get(e)?))).collect();
    let mut kept: HashMap<&Str, Uuid> = HashMap::new();
    for (e, encap) in &there {
        if &*encap.r#type != "vxlan" {
            tracing::warn!(target: "gateway", "Chassis for VTEP physical switch ({name}) can only have encap type \"vxlan\"");
        } else if desired.ips.contains(&encap.ip) {
            kept.insert(&encap.ip, *e);
            let options = encap_options(&m.client);
            if options.iter().any(|(k, v)| encap.options.get(k) != Some(v)) {
                txn.update_row(*e, [sb::Encap::options(&options)]);
            }
        }
    }
    if kept.len() != desired.ips.len() || kept.len() != row.encaps.len() {
        if let (true, Some((_, e)), Some(ip)) = (first && kept.is_empty(), there.first(), desired.ips.first()) {
            tracing::warn!(target: "gateway", "Chassis config changing on startup, make sure multiple chassis are not configured : {}/{}->vxlan/{ip}", e.r#type, e.ip);
        }
        let encap = |ip| kept.get(ip).copied().unwrap_or_else(|| insert_encap(name, ip, &m.client, txn));
        let encaps: Set<Uuid> = desired.ips.iter().map(encap).collect();
        txn.update_row(id, [sb::Chassis::encaps(&encaps)]);
    }
    let wanted = (other_config(&row.other_config, desired), external_ids(&row.external_ids, desired, &m.client));
    let other = (row.other_config != wanted.0).then(|| sb::Chassis::other_config(&wanted.0));
    let ids = (row.external_ids != wanted.1).then(|| sb::Chassis::external_ids(&wanted.1));
    let logical =
        (row.vtep_logical_switches != desired.logical).then(|| sb::Chassis::vtep_logical_switches(&desired.logical));
    txn.update_row(id, other.into_iter().chain(ids).chain(logical));
}
