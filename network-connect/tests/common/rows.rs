//! A northbound database and the zone's derivation, without a daemon between them: every transaction is looked at.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it, and fails by panicking")]

use super::common::{World, settings};
use network_connect::resource::{Changed, Resources};
use network_connect::zone::northbound::{Northbound, TABLES};
use network_connect::zone::plan::Plan;
use network_connect::zone::{Input, Read};
use ovn_schema::nb;
use ovsdb_rs::Server;
use ovsdb_rs::client::{Client, Config, Event, TableRequest};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::mpsc::UnboundedReceiver;

/// Tables of which rows are named by themselves; what they refer to is shown within them.
const ROOTS: [&str; 4] = ["Logical_Router", "Logical_Switch", "Load_Balancer_Group", "Address_Set"];

/// A zone.
pub struct Zone {
    client: Client,
    events: UnboundedReceiver<Event>,
    pub input: Input,
    pub plan: Plan,
    reads: Vec<Read>,
    known: BTreeMap<network_connect::resource::Name, Value>,
    /// Operations of the last [`Zone::write`].
    counted: BTreeMap<String, usize>,
    last: Vec<Value>,
    /// The most rows of a transaction.
    pub limit: usize,
    _server: Server,
}

type Rows = BTreeMap<(String, String), Value>;

impl Zone {
    pub async fn new() -> Zone {
        let server = Server::new();
        let directory = tempfile::tempdir().unwrap();
        server.add_file(&directory.path().join("nb.db"), Some(&nb::Database::schema())).await.unwrap();
        let config = TABLES.iter().fold(Config::in_process(&server, nb::Database::NAME), |c, (table, columns)| {
            c.table(table, TableRequest::columns(columns.iter().copied()))
        });
        let (client, events) = Client::start(config);
        client.connected().await;
        let input = Input { zone: "n1".into(), services: settings().services, ..Input::default() };
        let (plan, reads, known) = (Plan::default(), Vec::new(), BTreeMap::new());
        let mut zone = Zone {
            client,
            events,
            input,
            plan,
            reads,
            known,
            counted: BTreeMap::new(),
            last: Vec::new(),
            limit: 2000,
            _server: server,
        };
        // The copy is there once a change of it is.
        zone.run(vec![json!({"op": "insert", "table": "Copp", "row": {"name": "ovnkube-default"}})]).await;
        zone
    }

    /// Carries out operations, all of which have to succeed, and takes in what they changed.
    pub async fn run(&mut self, operations: Vec<Value>) {
        let results = self.client.transact(operations.clone()).await.unwrap();
        let good = results.iter().all(|r| r.get("error").is_none_or(Value::is_null));
        assert!(good, "{operations:#?}: {results:?}");
        while let Ok(e) = self.events.try_recv() {
            let Event::Update(u) = e else { continue };
            for c in &u.changes {
                let schema = u.schema.table(&c.table).unwrap();
                let change = self.input.nb.db.apply(&c.table, schema, c.uuid, c.new.as_deref()).unwrap();
                let Some(change) = change else { continue };
                let effect = self.input.nb.changed(&change);
                self.reads.extend(effect.reads);
                effect.keys.into_iter().for_each(|key| self.plan.touch(key));
            }
        }
    }

    /// What OVN-Kubernetes makes of a network: the routers of both layers, and the switches on nodes of this zone.
    pub async fn base(&mut self, id: u32, there: bool) {
        let routers = ["ovn_cluster_router", "transit_router"].map(|r| ("Logical_Router", r));
        let switches = ["n1", "n2", "n3", "n4", "ovn_layer2_switch"].map(|s| ("Logical_Switch", s));
        let rows = routers.iter().chain(&switches).map(|(table, suffix)| {
            let name = format!("cluster_udn_c{id}_{suffix}");
            match there {
                true => json!({"op": "insert", "table": table, "row": {"name": name}}),
                false => json!({"op": "delete", "table": table, "where": [["name", "==", name]]}),
            }
        });
        self.run(rows.collect()).await;
    }

    /// The load balancer of a network's service.
    pub async fn balancer(&mut self, id: u32, there: bool) {
        let name = format!("Service_ns{id}/web_TCP_cluster");
        let ids =
            json!(["map", [["k8s.ovn.org/kind", "Service"], ["k8s.ovn.org/network", format!("cluster_udn_c{id}")]]]);
        let operation = match there {
            true => json!({"op": "insert", "table": "Load_Balancer", "row": {"name": name, "external_ids": ids}}),
            // A group refers to it strongly until it is told.
            false => json!({"op": "update", "table": "Load_Balancer", "where": [["name", "==", name]],
                "row": {"name": "gone", "external_ids": ["map", []]}}),
        };
        self.run(vec![operation]).await;
    }

    /// Takes resources over as they are.
    pub fn resources(&mut self, world: &World) {
        let names: BTreeSet<_> = self.known.keys().chain(world.objects.keys()).cloned().collect();
        for name in names {
            let (old, new) = (self.known.get(&name), world.objects.get(&name));
            if old != new {
                let changed: Vec<Changed> = Resources::apply(&mut self.input.resources, &name, new);
                self.reads.extend(changed.into_iter().map(Read::Resource));
            }
        }
        self.known = world.objects.clone();
    }

    /// Writes until nothing is left to write, and checks each transaction. Gives the number of operations.
    pub async fn write(&mut self) -> usize {
        self.counted.clear();
        let mut written: BTreeSet<Vec<String>> = BTreeSet::new();
        loop {
            self.plan.derive(&self.input, std::mem::take(&mut self.reads));
            let schema = self.client.schema().unwrap();
            let operations = self.plan.operations(&self.input.nb, &schema, self.limit);
            if operations.is_empty() {
                return self.counted.values().sum();
            }
            let before = self.rows();
            let operations = operations.operations();
            self.last = operations.clone();
            for o in &operations {
                *self.counted.entry(o["op"].as_str().unwrap().into()).or_default() += 1;
            }
            self.run(operations.clone()).await;
            let after = self.rows();
            for o in &operations {
                self.is_needed(o, &before, &after);
                // Nothing is written twice on the way.
                if o["op"] != "insert" {
                    let columns: BTreeSet<String> = match o["op"].as_str().unwrap() {
                        "update" => o["row"].as_object().unwrap().keys().cloned().collect(),
                        "mutate" => o["mutations"].as_array().unwrap().iter().map(|m| m[0].to_string()).collect(),
                        _ => BTreeSet::new(),
                    };
                    for column in columns {
                        let key = vec![o["table"].to_string(), o["where"].to_string(), column];
                        assert!(written.insert(key), "written twice: {o}");
                    }
                }
            }
        }
    }

    /// An operation on a row changes it.
    fn is_needed(&self, o: &Value, before: &Rows, after: &Rows) {
        if o["op"] == "insert" {
            return;
        }
        let id = o["where"][0][2][1].as_str().unwrap();
        // A row that this transaction makes is there by another name.
        let key = (o["table"].as_str().unwrap().to_string(), id.to_string());
        if let Some(old) = before.get(&key) {
            assert_ne!(Some(old), after.get(&key), "nothing comes of {o}");
        }
    }

    /// Operations of the last write, by kind.
    pub fn counted(&self) -> Vec<(&str, usize)> {
        self.counted.iter().map(|(op, n)| (op.as_str(), *n)).collect()
    }

    /// The last transaction's operations.
    pub fn last(&self) -> &[Value] {
        &self.last
    }

    /// All rows by table and UUID.
    fn rows(&self) -> Rows {
        let mut out = Rows::new();
        let schema = self.client.schema().unwrap();
        self.client.replica(|r| {
            for (table, columns) in TABLES {
                let of = schema.table(table).unwrap();
                for (id, row) in r.rows(table) {
                    let values = columns.iter().map(|c| ((*c).to_string(), row.get(of, c).unwrap().to_json()));
                    out.insert(((*table).to_string(), id.to_string()), Value::Object(values.collect()));
                }
            }
        });
        out
    }

    /// The database without UUIDs: rows by themselves, with the rows that they refer to within them.
    pub async fn picture(&self) -> Vec<(String, String)> {
        let rows = self.rows();
        let by_id: BTreeMap<&str, &Value> = rows.iter().map(|((_, id), row)| (id.as_str(), row)).collect();
        let of = |((table, _), row): (&(String, String), &Value)| {
            ROOTS.contains(&table.as_str()).then(|| (table.clone(), inline(row, &by_id).to_string()))
        };
        let mut out: Vec<(String, String)> = rows.iter().filter_map(of).collect();
        out.sort();
        out
    }

    /// As after a start: everything is derived and compared anew.
    pub fn restart(&mut self) {
        self.plan.restart();
        self.reads.clear();
        let mut nb = Northbound::default();
        std::mem::swap(&mut nb.db, &mut self.input.nb.db);
        std::mem::swap(&mut nb.db, &mut self.input.nb.db);
        self.plan.derive(&self.input, Vec::new());
        self.plan.touch_all(&self.input);
    }

    /// Sets columns of the first row of a table that is ours.
    pub async fn set(&mut self, table: &str, columns: Value) {
        let rows = self.rows();
        let ours = rows.iter().find(|((t, _), row)| t == table && is_ours(row)).unwrap();
        let id = json!(["uuid", ours.0.1]);
        self.run(vec![json!({"op": "update", "table": table, "where": [["_uuid", "==", id]], "row": columns})]).await;
    }

    /// Somebody edits a row of ours.
    pub async fn edit(&mut self, which: usize, how: u8) {
        let rows = self.rows();
        let ours: Vec<&(String, String)> = rows.iter().filter(|(_, row)| is_ours(row)).map(|(key, _)| key).collect();
        let Some((table, id)) = ours.get(which % ours.len().max(1)).copied() else { return };
        let row = json!(["uuid", id]);
        let mut operations = Vec::new();
        let parent = match table.as_str() {
            "Logical_Router_Port" => Some(("Logical_Router", "ports")),
            "Logical_Router_Policy" => Some(("Logical_Router", "policies")),
            "Logical_Router_Static_Route" => Some(("Logical_Router", "static_routes")),
            "ACL" => Some(("Logical_Switch", "acls")),
            _ => None,
        };
        match (how, parent) {
            // It goes: out of whatever has it.
            (0, Some((parents, column))) => {
                operations.push(json!({"op": "mutate", "table": parents, "where": [],
                    "mutations": [[column, "delete", ["set", [row]]]]}));
            }
            (0, None) => operations.push(json!({"op": "delete", "table": table, "where": [["_uuid", "==", row]]})),
            // It says something else.
            (1, _) => {
                let other = match table.as_str() {
                    "Logical_Router_Port" => json!({"mac": "00:00:00:00:00:01", "peer": "nobody"}),
                    "Logical_Router_Policy" => json!({"match": "1", "priority": 1}),
                    "Logical_Router_Static_Route" => json!({"nexthop": "192.0.2.1"}),
                    "ACL" => json!({"match": "0", "action": "allow"}),
                    "Address_Set" => json!({"addresses": "192.0.2.1"}),
                    _ => json!({"options": ["map", [["requested-tnl-key", "5"]]]}),
                };
                operations.push(json!({"op": "update", "table": table, "where": [["_uuid", "==", row]], "row": other}));
            }
            // There are two of it.
            (_, Some((parents, column))) if ["policies", "static_routes"].contains(&column) => {
                let copy = rows[&(table.clone(), id.clone())].clone();
                operations.push(json!({"op": "insert", "table": table, "uuid-name": "copy", "row": copy}));
                operations
                    .push(json!({"op": "mutate", "table": parents, "where": [["name", "==", self.router_of(id)]],
                    "mutations": [[column, "insert", ["named-uuid", "copy"]]]}));
            }
            _ => return,
        }
        self.run(operations).await;
    }

    fn router_of(&self, id: &str) -> String {
        let rows = self.rows();
        let has = |row: &Value| ["policies", "static_routes"].iter().any(|c| row[c].to_string().contains(id));
        let router = rows.iter().find(|((table, _), row)| table == "Logical_Router" && has(row)).unwrap();
        router.1["name"].as_str().unwrap().to_string()
    }
}

fn is_ours(row: &Value) -> bool {
    row["external_ids"].to_string().contains("ovnkube-network-connect-controller")
}

fn inline(value: &Value, by_id: &BTreeMap<&str, &Value>) -> Value {
    match value {
        Value::Array(list) => {
            if let [tag, id] = list.as_slice()
                && tag == "uuid"
            {
                return by_id.get(id.as_str().unwrap()).map_or(Value::Null, |row| inline(row, by_id));
            }
            let mut out: Vec<Value> = list.iter().map(|v| inline(v, by_id)).collect();
            // Sets of rows come in the order of their UUIDs.
            out.sort_by_key(Value::to_string);
            Value::Array(out)
        }
        Value::Object(map) => Value::Object(map.iter().map(|(k, v)| (k.clone(), inline(v, by_id))).collect()),
        other => other.clone(),
    }
}
