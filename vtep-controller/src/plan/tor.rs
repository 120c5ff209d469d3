//! Operations on the database of a switch. They keep to RFC 7047: a switch's server need not be ovsdb-server.

use super::{Operations, Plan};
use crate::model::{Input, Tor, TorId};
use crate::output::{Key, Value};
use ovn_schema::{ColumnValue, Map, Set, Str, Uuid};
use ovsdb_rs::{DatabaseSchema, Datum};
use serde_json::{Value as Json, json};
use std::collections::HashMap;

/// What a transaction needs to know while it is made.
struct Making<'a> {
    tor: &'a Tor,
    schema: &'a DatabaseSchema,
    /// Locators that the transaction inserts: their names in it.
    locators: HashMap<Str, String>,
    names: usize,
    out: Operations,
}

fn is(id: Uuid) -> Json {
    json!([["_uuid", "==", ["uuid", id.to_string()]]])
}

impl Making<'_> {
    fn has(&self, table: &str, column: &str) -> bool {
        self.schema.tables.get(table).is_some_and(|t| t.column(column).is_some())
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("row{}", self.names)
    }

    fn update(&mut self, key: &Key, table: &str, id: Uuid, columns: Vec<(&str, Json)>) {
        let row: serde_json::Map<String, Json> =
            columns.into_iter().filter(|(c, _)| self.has(table, c)).map(|(c, v)| (c.to_string(), v)).collect();
        if !row.is_empty() {
            self.out.push(key, &json!({"op": "update", "table": table, "where": is(id), "row": row}));
        }
    }

    fn delete(&mut self, key: &Key, table: &str, id: Uuid) {
        self.out.push(key, &json!({"op": "delete", "table": table, "where": is(id)}));
    }

    /// Inserts a row and gives the reference to it.
    fn insert(&mut self, key: &Key, table: &str, row: Json) -> Json {
        let name = self.name();
        self.out.push(key, &json!({"op": "insert", "table": table, "row": row, "uuid-name": name}));
        json!(["named-uuid", name])
    }

    /// A reference to the locator of an address, which is made where there is none.
    fn locator(&mut self, key: &Key, ip: &Str) -> Json {
        if let Some(id) = self.tor.locator(ip) {
            return json!(["uuid", id.to_string()]);
        }
        if let Some(name) = self.locators.get(ip) {
            return json!(["named-uuid", name]);
        }
        let row = json!({"encapsulation_type": "vxlan_over_ipv4", "dst_ip": &**ip});
        let reference = self.insert(key, "Physical_Locator", row);
        if let Some(name) = reference.get(1).and_then(Json::as_str) {
            self.locators.insert(ip.clone(), name.to_string());
        }
        reference
    }

    fn locator_set(&mut self, key: &Key, ips: &Set<Str>) -> Json {
        let locators: Vec<Json> = ips.iter().map(|ip| self.locator(key, ip)).collect();
        self.insert(key, "Physical_Locator_Set", json!({"locators": ["set", locators]}))
    }
}

/// The tables that this controller cannot do without.
const NEEDED: [&str; 8] = [
    "Global",
    "Physical_Switch",
    "Physical_Port",
    "Logical_Switch",
    "Ucast_Macs_Remote",
    "Mcast_Macs_Remote",
    "Physical_Locator",
    "Physical_Locator_Set",
];

/// The columns and tables that came with a version of the schema, and what is missing without them.
const OPTIONAL: [(&str, &str, &str); 6] = [
    ("Logical_Switch", "replication_mode", "the switch replicates as it is configured itself"),
    ("Ucast_Macs_Remote", "ipaddr", "the switch cannot answer ARP requests"),
    ("Tunnel", "bfd_params", "BFD is not configured"),
    ("Physical_Switch", "other_config", "settings have to be made northbound"),
    ("Global", "other_config", "settings have to be made northbound"),
    ("Ucast_Macs_Local", "MAC", "MACs that the switch learns stay unknown"),
];

/// What a switch's schema lacks, in words.
pub fn lacks(schema: &DatabaseSchema) -> Vec<String> {
    let mut out: Vec<String> = NEEDED
        .iter()
        .filter(|t| !schema.tables.contains_key(**t))
        .map(|t| format!("there is no table {t}, without which nothing can be done"))
        .collect();
    for (table, column, consequence) in OPTIONAL {
        match schema.tables.get(table) {
            None => out.push(format!("there is no table {table}: {consequence}")),
            Some(t) if t.column(column).is_none() => out.push(format!("{table} has no column {column}: {consequence}")),
            Some(_) => {}
        }
    }
    out
}

impl Plan {
    /// Operations that bring a switch's database closer to what is derived, for at most `limit` rows.
    pub fn tor(&mut self, input: &Input, id: TorId, schema: &DatabaseSchema, limit: usize) -> Operations {
        let Some(tor) = input.tor(id) else { return Operations::default() };
        let mut m = Making { tor, schema, locators: HashMap::new(), names: 0, out: Operations::default() };
        let mut rows = 0;
        while rows < limit {
            let Some(key) = self.tors.get_mut(usize::from(id.0)).and_then(|d| d.pop_first()) else { break };
            let before = m.out.keys().len();
            match &key {
                Key::Switch(_, row) => self.switch(&key, *row, &mut m),
                Key::Ucast(_, ls, mac) => self.ucast(input, &key, *ls, mac, &mut m),
                Key::Mcast(_, ls, mac) => self.mcast(input, &key, *ls, mac, &mut m),
                Key::Tunnel(_, row) => self.tunnel(&key, *row, &mut m),
                _ => {}
            }
            rows += usize::from(m.out.keys().len() > before);
        }
        m.out
    }

    fn switch(&mut self, key: &Key, id: Uuid, m: &mut Making<'_>) {
        let Some(row) = m.tor.db.logical_switch.get(&id) else {
            self.memory.ours.remove(key);
            return;
        };
        let mut columns = Vec::new();
        match self.desired.get(key) {
            Some(Value::Switch(s)) => {
                if row.tunnel_key != Some(s.tunnel_key) {
                    tracing::debug!(target: "vtep", "set vtep logical switch ({}) tunnel key to {}", row.name, s.tunnel_key);
                    columns.push(("tunnel_key", Some(s.tunnel_key).to_datum().to_json()));
                }
                if row.replication_mode.as_ref() != Some(&s.replication) {
                    columns.push(("replication_mode", Some(s.replication.clone()).to_datum().to_json()));
                }
            }
            // The key 0 says that the switch is attached to nothing any more; then it is not ours any more.
            _ if row.tunnel_key.is_none_or(|k| k == 0) => {
                self.memory.ours.remove(key);
            }
            _ if self.memory.ours.contains_key(key) => {
                columns.push(("tunnel_key", Some(0).to_datum().to_json()));
            }
            _ => {}
        }
        m.update(key, "Logical_Switch", id, columns);
    }

    /// Whether a row at these locators, which is not derived, is one that we have to remove: its switch is or was
    /// attached, or the locators are all endpoints of chassis, as they are where an earlier run of us wrote them.
    fn stale<'i>(
        &mut self,
        input: &Input,
        m: &Making<'_>,
        ls: Uuid,
        mut ips: impl Iterator<Item = Option<&'i Str>>,
    ) -> bool {
        if self.is_ours(m.tor.id, ls) {
            return true;
        }
        let evidence = ips.all(|ip| ip.is_some_and(|ip| input.sb.is_endpoint(ip)));
        if evidence {
            let key = Key::Switch(m.tor.id, ls);
            let value = crate::output::Switch { tunnel_key: 0, replication: "source_node".into() };
            self.memory.ours.insert(key.clone(), Value::Switch(value));
            self.touch(key);
        }
        evidence
    }

    fn ucast(&mut self, input: &Input, key: &Key, ls: Uuid, mac: &Str, m: &mut Making<'_>) {
        const TABLE: &str = "Ucast_Macs_Remote";
        let tor = m.tor;
        let mut rows: Vec<_> = tor.ucast(ls, mac).collect();
        let Some(Value::Ucast(want)) = self.desired.get(key).cloned() else {
            for (id, row) in rows {
                if self.stale(input, m, ls, [tor.locator_ip(row.locator)].into_iter()) {
                    m.delete(key, TABLE, id);
                }
            }
            return;
        };
        if !tor.db.logical_switch.contains_key(&ls) {
            return;
        }
        // The row that is right stays, others for the same MAC go.
        rows.sort_by_key(|(_, r)| tor.locator_ip(r.locator) != Some(&want.ip));
        let mut rows = rows.into_iter();
        match rows.next() {
            Some((id, row)) => {
                let mut columns = Vec::new();
                if tor.locator_ip(row.locator) != Some(&want.ip) {
                    columns.push(("locator", m.locator(key, &want.ip)));
                }
                if row.ipaddr != want.ipaddr {
                    columns.push(("ipaddr", json!(&*want.ipaddr)));
                }
                m.update(key, TABLE, id, columns);
            }
            None => {
                let mut row = json!({
                    "MAC": &**mac,
                    "logical_switch": ["uuid", ls.to_string()],
                    "locator": m.locator(key, &want.ip),
                });
                if !want.ipaddr.is_empty() && m.has(TABLE, "ipaddr") {
                    row["ipaddr"] = json!(&*want.ipaddr);
                }
                m.insert(key, TABLE, row);
            }
        }
        for (id, _) in rows {
            m.delete(key, TABLE, id);
        }
    }

    fn mcast(&mut self, input: &Input, key: &Key, ls: Uuid, mac: &Str, m: &mut Making<'_>) {
        const TABLE: &str = "Mcast_Macs_Remote";
        let tor = m.tor;
        let mut rows: Vec<_> = tor.mcast(ls, mac).collect();
        let Some(Value::Mcast(want)) = self.desired.get(key).cloned() else {
            for (id, row) in rows {
                let set = tor.db.physical_locator_set.get(&row.locator_set);
                let locators = set.into_iter().flat_map(|s| &s.locators);
                if self.stale(input, m, ls, locators.map(|l| tor.locator_ip(*l))) {
                    m.delete(key, TABLE, id);
                }
            }
            return;
        };
        if !tor.db.logical_switch.contains_key(&ls) {
            return;
        }
        rows.sort_by_key(|(_, r)| tor.set_ips(r.locator_set) != want);
        let mut rows = rows.into_iter();
        match rows.next() {
            Some((_, row)) if tor.set_ips(row.locator_set) == want => {}
            Some((id, _)) => {
                let set = m.locator_set(key, &want);
                m.update(key, TABLE, id, vec![("locator_set", set)]);
            }
            None => {
                let set = m.locator_set(key, &want);
                let row = json!({"MAC": &**mac, "logical_switch": ["uuid", ls.to_string()], "locator_set": set});
                m.insert(key, TABLE, row);
            }
        }
        for (id, _) in rows {
            m.delete(key, TABLE, id);
        }
    }

    fn tunnel(&mut self, key: &Key, id: Uuid, m: &mut Making<'_>) {
        let Some(row) = m.tor.db.tunnel.get(&id) else {
            self.memory.ours.remove(key);
            return;
        };
        let with = |map: &Map<Str, Str>, more: &Map<Str, Str>| -> Option<Datum> {
            let mut all = map.clone();
            all.extend(more.iter().map(|(k, v)| (k.clone(), v.clone())));
            (all != *map).then(|| all.to_datum())
        };
        let (params, remote) = match self.desired.get(key) {
            Some(Value::Tunnel(t)) => (with(&row.bfd_params, &t.params), with(&row.bfd_config_remote, &t.remote)),
            _ if self.memory.ours.remove(key).is_some() => {
                let off: Map<Str, Str> = Map::from([("enable".into(), "false".into())]);
                (with(&row.bfd_params, &off), None)
            }
            _ => (None, None),
        };
        let params = params.map(|d| ("bfd_params", d.to_json()));
        let remote = remote.map(|d| ("bfd_config_remote", d.to_json()));
        m.update(key, "Tunnel", id, params.into_iter().chain(remote).collect());
    }

    /// Operations that take everything of ours out of a switch's database; for `exit`.
    pub fn leave_tor(&self, input: &Input, id: TorId, schema: &DatabaseSchema) -> Operations {
        let Some(tor) = input.tor(id) else { return Operations::default() };
        let mut m = Making { tor, schema, locators: HashMap::new(), names: 0, out: Operations::default() };
        for (row, ucast) in tor.db.ucast_macs_remote.iter().filter(|(_, r)| self.is_ours(id, r.logical_switch)) {
            let key = Key::Ucast(id, ucast.logical_switch, ucast.mac.clone());
            m.delete(&key, "Ucast_Macs_Remote", *row);
        }
        for (row, mcast) in tor.db.mcast_macs_remote.iter().filter(|(_, r)| self.is_ours(id, r.logical_switch)) {
            let key = Key::Mcast(id, mcast.logical_switch, mcast.mac.clone());
            m.delete(&key, "Mcast_Macs_Remote", *row);
        }
        for (row, ls) in &tor.db.logical_switch {
            // The key 0 is only ever written by us.
            if ls.tunnel_key == Some(0) || ls.tunnel_key.is_some() && self.is_ours(id, *row) {
                let empty = None::<i64>.to_datum().to_json();
                m.update(&Key::Switch(id, *row), "Logical_Switch", *row, vec![("tunnel_key", empty)]);
            }
        }
        let off: Map<Str, Str> = Map::from([("enable".into(), "false".into())]);
        for (row, t) in tor.db.tunnel.iter().filter(|(t, _)| self.desired.contains_key(&Key::Tunnel(id, **t))) {
            let mut params = t.bfd_params.clone();
            params.extend(off.clone());
            m.update(&Key::Tunnel(id, *row), "Tunnel", *row, vec![("bfd_params", params.to_datum().to_json())]);
        }
        m.out
    }
}
