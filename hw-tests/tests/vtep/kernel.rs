//! A switch made of the kernel's VXLAN device, driven through hardware_vtep as a strict vendor would: schema 1.3, which
//! knows no replication mode; packets for many go to one service node; ARP is answered from `ipaddr`.

use hw_tests::lab::run;
use ovn_schema::vtep;
use ovsdb_rs::{DatabaseSchema, Server};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The switch; it ends when dropped.
pub struct Switch {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What the kernel was told for one logical switch.
#[derive(Default)]
struct Programmed {
    remote: BTreeMap<String, String>,
    neighbours: BTreeMap<String, String>,
    flood: Option<String>,
    local: BTreeSet<String>,
}

struct Agent {
    server: Server,
    ns: String,
    ip: String,
    port: String,
    done: BTreeMap<i64, Programmed>,
}

/// Schema 1.3 as vendors have it: without what came later.
fn schema() -> DatabaseSchema {
    let mut json = vtep::Database::schema().to_json();
    json["version"] = json!("1.3.0");
    let later = [
        ("Logical_Switch", &["replication_mode", "other_config"][..]),
        ("Logical_Router", &["acl_binding", "other_config", "LR_fault_status"]),
        ("Physical_Port", &["acl_bindings", "other_config"]),
        ("Physical_Switch", &["other_config"]),
        ("Global", &["other_config"]),
    ];
    for (table, columns) in later {
        for column in columns {
            json["tables"][table]["columns"].as_object_mut().expect("columns").remove(*column);
        }
    }
    for table in ["ACL", "ACL_entry"] {
        json["tables"].as_object_mut().expect("tables").remove(table);
    }
    DatabaseSchema::from_json(&json).expect("schema")
}

impl Switch {
    /// Starts the switch `name` in a namespace: `port` is its one port, with untagged packets of logical switch `logical`.
    pub fn start(ns: &str, dir: &Path, name: &str, ip: &str, port: &str, logical: &str) -> Switch {
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, ns, dir) = (stop.clone(), ns.to_string(), dir.to_path_buf());
        let (name, ip, port, logical) = (name.to_string(), ip.to_string(), port.to_string(), logical.to_string());
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
            runtime.block_on(async {
                let server = Server::new();
                server.add_file(&dir.join("vtep.db"), Some(&schema())).await.expect("database");
                server.listen(&format!("punix:{}", dir.join("vtep.sock").display())).await.expect("socket");
                let mut agent = Agent { server, ns, ip, port, done: BTreeMap::new() };
                agent.configure(&name, &logical).await;
                while !flag.load(Ordering::Relaxed) {
                    agent.step().await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                agent.server.shutdown().await;
            });
        });
        Switch { stop, thread: Some(thread) }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

fn text(row: &Value, column: &str) -> String {
    row[column].as_str().unwrap_or_default().to_string()
}

impl Agent {
    async fn transact(&self, operations: Value) -> Vec<Value> {
        let operations = operations.as_array().cloned().unwrap_or_default();
        self.server.transact(vtep::Database::NAME, operations).await.unwrap_or_default()
    }

    async fn rows(&self, table: &str) -> Vec<Value> {
        let results = self.transact(json!([{"op": "select", "table": table, "where": []}])).await;
        results.first().and_then(|r| r["rows"].as_array().cloned()).unwrap_or_default()
    }

    async fn configure(&self, name: &str, logical: &str) {
        if !self.rows("Global").await.is_empty() {
            return;
        }
        self.transact(json!([
            {"op": "insert", "table": "Logical_Switch", "uuid-name": "ls", "row": {"name": logical}},
            {"op": "insert", "table": "Physical_Port", "uuid-name": "p", "row": {"name": self.port, "vlan_bindings": ["map", [[0, ["named-uuid", "ls"]]]]}},
            {"op": "insert", "table": "Physical_Switch", "uuid-name": "ps", "row": {"name": name, "tunnel_ips": self.ip, "ports": ["named-uuid", "p"]}},
            {"op": "insert", "table": "Global", "row": {"switches": ["named-uuid", "ps"]}},
        ]))
        .await;
    }

    fn ip(&self, args: &[&str]) {
        let mut all = vec!["-n", self.ns.as_str()];
        all.extend(args);
        if let Err(e) = run("ip", &all) {
            eprintln!("kernel switch: {e:#}");
        }
    }

    fn fdb(&self, args: &[&str]) -> String {
        let mut all = vec!["netns", "exec", self.ns.as_str(), "bridge", "fdb"];
        all.extend(args);
        run("ip", &all).unwrap_or_default()
    }

    /// One look at the database, and what follows from it.
    async fn step(&mut self) {
        let locators: BTreeMap<String, String> = self
            .rows("Physical_Locator")
            .await
            .iter()
            .map(|l| (l["_uuid"][1].as_str().unwrap_or_default().to_string(), text(l, "dst_ip")))
            .collect();
        let at = |reference: &Value| locators.get(reference[1].as_str().unwrap_or_default()).cloned();
        for ls in self.rows("Logical_Switch").await {
            let Some(key) = ls["tunnel_key"].as_i64().filter(|k| *k > 0) else { continue };
            let mut done = match self.done.remove(&key) {
                Some(done) => done,
                None => self.create(key),
            };
            let mine = |row: &Value| row["logical_switch"] == ls["_uuid"];
            let (mut remote, mut neighbours) = (BTreeMap::new(), BTreeMap::new());
            for row in self.rows("Ucast_Macs_Remote").await.iter().filter(|r| mine(r)) {
                if let Some(ip) = at(&row["locator"]) {
                    remote.insert(text(row, "MAC"), ip);
                }
                if !text(row, "ipaddr").is_empty() {
                    neighbours.insert(text(row, "ipaddr"), text(row, "MAC"));
                }
            }
            let sets = self.rows("Physical_Locator_Set").await;
            let mut flood = BTreeSet::new();
            for row in
                self.rows("Mcast_Macs_Remote").await.iter().filter(|r| mine(r) && r["MAC"] == json!("unknown-dst"))
            {
                for set in sets.iter().filter(|s| s["_uuid"] == row["locator_set"]) {
                    let list = if set["locators"][0] == json!("set") {
                        set["locators"][1].as_array().cloned().unwrap_or_default()
                    } else {
                        vec![set["locators"].clone()]
                    };
                    flood.extend(list.iter().filter_map(at));
                }
            }
            self.program(key, &mut done, remote, neighbours, flood.into_iter().next());
            self.learn(key, &mut done, &ls["_uuid"]).await;
            self.done.insert(key, done);
        }
    }

    fn create(&self, key: i64) -> Programmed {
        let (vx, br, id) = (format!("vx{key}"), format!("br{key}"), key.to_string());
        self.ip(&["link", "add", &br, "type", "bridge"]);
        self.ip(&["link", "add", &vx, "type", "vxlan", "id", &id, "local", &self.ip, "dstport", "4789", "nolearning"]);
        for device in [&vx, &self.port] {
            self.ip(&["link", "set", device, "master", &br, "up"]);
        }
        self.ip(&["link", "set", &br, "up"]);
        // The bridge answers for its neighbours that are behind this port.
        let suppress = ["netns", "exec", self.ns.as_str(), "bridge", "link", "set", "dev", &vx, "neigh_suppress", "on"];
        if let Err(e) = run("ip", &suppress) {
            eprintln!("kernel switch: {e:#}");
        }
        Programmed::default()
    }

    fn program(
        &self,
        key: i64,
        done: &mut Programmed,
        remote: BTreeMap<String, String>,
        neighbours: BTreeMap<String, String>,
        flood: Option<String>,
    ) {
        let (vx, br) = (format!("vx{key}"), format!("br{key}"));
        for (mac, ip) in done.remote.iter().filter(|(m, ip)| remote.get(*m) != Some(ip)) {
            self.fdb(&["del", mac, "dev", &vx, "dst", ip, "self"]);
            self.fdb(&["del", mac, "dev", &vx, "master"]);
        }
        for (mac, ip) in remote.iter().filter(|(m, ip)| done.remote.get(*m) != Some(ip)) {
            self.fdb(&["replace", mac, "dev", &vx, "dst", ip, "self"]);
            self.fdb(&["replace", mac, "dev", &vx, "master", "static"]);
        }
        for ip in done.neighbours.keys().filter(|ip| !neighbours.contains_key(*ip)) {
            self.ip(&["neigh", "del", ip, "dev", &br]);
        }
        for (ip, mac) in neighbours.iter().filter(|(ip, m)| done.neighbours.get(*ip) != Some(m)) {
            self.ip(&["neigh", "replace", ip, "lladdr", mac, "dev", &br, "nud", "permanent"]);
        }
        if done.flood != flood {
            if let Some(ip) = &done.flood {
                self.fdb(&["del", "00:00:00:00:00:00", "dev", &vx, "dst", ip, "self"]);
            }
            if let Some(ip) = &flood {
                self.fdb(&["append", "00:00:00:00:00:00", "dev", &vx, "dst", ip, "self"]);
            }
        }
        (done.remote, done.neighbours, done.flood) = (remote, neighbours, flood);
    }

    /// Reports the MACs behind the port.
    async fn learn(&self, key: i64, done: &mut Programmed, switch: &Value) {
        let shown = self.fdb(&["show", "br", &format!("br{key}")]);
        let macs: BTreeSet<String> = shown
            .lines()
            .filter(|l| l.contains(&format!("dev {} ", self.port)) && !l.contains("permanent") && !l.contains("self"))
            .filter_map(|l| l.split_whitespace().next())
            .map(String::from)
            .collect();
        for mac in done.local.difference(&macs) {
            self.transact(json!([{"op": "delete", "table": "Ucast_Macs_Local", "where": [["MAC", "==", mac]]}])).await;
        }
        for mac in macs.difference(&done.local) {
            let known = self.rows("Physical_Locator").await.into_iter().find(|l| l["dst_ip"] == json!(self.ip));
            let mut operations = Vec::new();
            let locator = match known {
                Some(l) => l["_uuid"].clone(),
                None => {
                    operations.push(json!({"op": "insert", "table": "Physical_Locator", "uuid-name": "me",
                        "row": {"encapsulation_type": "vxlan_over_ipv4", "dst_ip": self.ip}}));
                    json!(["named-uuid", "me"])
                }
            };
            operations.push(json!({"op": "insert", "table": "Ucast_Macs_Local",
                "row": {"MAC": mac, "logical_switch": switch, "locator": locator}}));
            self.transact(Value::Array(operations)).await;
        }
        done.local = macs;
    }
}
