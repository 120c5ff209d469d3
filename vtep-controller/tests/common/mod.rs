//! A world of databases with a controller in it.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it, and fails by panicking")]

use ovn_schema::{sb, vtep};
use ovsdb_rs::server::RemoteOptions;
use ovsdb_rs::{DatabaseSchema, Server};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A row's columns.
pub type Row = BTreeMap<String, Value>;

/// Databases of one southbound side and some switches, served in this process.
pub struct World {
    pub dir: tempfile::TempDir,
    sb: Server,
    tors: Vec<Server>,
}

/// A controller, killed when dropped.
pub struct Daemon {
    child: Child,
    dir: PathBuf,
    name: String,
}

impl World {
    /// A world with this many hardware_vtep databases.
    pub async fn new(tors: usize) -> World {
        World::with_schema(tors, &vtep::Database::schema()).await
    }

    /// The same with a hardware_vtep schema of one's own.
    pub async fn with_schema(tors: usize, schema: &DatabaseSchema) -> World {
        let dir = tempfile::tempdir().unwrap();
        let serve = async |name: String, schema: &DatabaseSchema| {
            let server = Server::new();
            server.add_file(&dir.path().join(format!("{name}.db")), Some(schema)).await.unwrap();
            server.listen(&format!("punix:{}", dir.path().join(format!("{name}.sock")).display())).await.unwrap();
            server
        };
        let sb = serve("sb".into(), &sb::Database::schema()).await;
        let mut list = Vec::new();
        for n in 0..tors {
            let tor = serve(format!("vtep{n}"), schema).await;
            let row = json!([{"op": "insert", "table": "Global", "row": {}}]);
            tor.transact(vtep::Database::NAME, row.as_array().unwrap().clone()).await.unwrap();
            list.push(tor);
        }
        let world = World { dir, sb, tors: list };
        world.sb(json!([{"op": "insert", "table": "SB_Global", "row": {}}])).await;
        world
    }

    /// Where a database is.
    pub fn remote(&self, name: &str) -> String {
        format!("unix:{}", self.dir.path().join(format!("{name}.sock")).display())
    }

    async fn run(server: &Server, database: &str, operations: Value) -> Vec<Value> {
        let results = server.transact(database, operations.as_array().unwrap().clone()).await.unwrap();
        assert!(results.iter().all(|r| r.get("error").is_none_or(Value::is_null)), "{operations}: {results:?}");
        results
    }

    /// Nobody reaches the databases any more; we do, from within.
    pub async fn disconnect(&self) {
        for (server, _) in self.servers() {
            for remote in server.remotes() {
                server.close(&remote).unwrap();
            }
            server.reconnect();
        }
    }

    /// The databases can be reached again.
    pub async fn reconnect(&self) {
        for (server, name) in self.servers() {
            let remote = format!("punix:{}", self.dir.path().join(format!("{name}.sock")).display());
            server.listen(&remote).await.unwrap();
        }
    }

    /// Where the southbound database and the first switch's can be reached over TLS.
    pub async fn listen_tls(&self, tls: &ovsdb_rs::tls::Tls) -> [String; 2] {
        let mut out = Vec::new();
        for server in [&self.sb, &self.tors[0]] {
            server.set_tls(Some(tls.clone()));
            let passive = server.listen("pssl:0:127.0.0.1").await.unwrap().to_string();
            let port = passive.split(':').nth(1).unwrap();
            out.push(format!("ssl:127.0.0.1:{port}"));
        }
        out.try_into().unwrap()
    }

    /// Where the southbound database can be reached by clients with a role.
    pub async fn listen_for_role(&self, tls: &ovsdb_rs::tls::Tls, role: &str) -> String {
        self.sb.set_tls(Some(tls.clone()));
        let options = RemoteOptions { role: role.into(), ..RemoteOptions::default() };
        let passive = self.sb.listen_with("pssl:0:127.0.0.1", options).await.unwrap().to_string();
        format!("ssl:127.0.0.1:{}", passive.split(':').nth(1).unwrap())
    }

    fn servers(&self) -> impl Iterator<Item = (&Server, String)> {
        let tors = self.tors.iter().enumerate().map(|(n, t)| (t, format!("vtep{n}")));
        tors.chain([(&self.sb, "sb".to_string())])
    }

    /// A transaction on the southbound database.
    pub async fn sb(&self, operations: Value) -> Vec<Value> {
        World::run(&self.sb, sb::Database::NAME, operations).await
    }

    /// A transaction on a switch's database.
    pub async fn tor(&self, n: usize, operations: Value) -> Vec<Value> {
        World::run(&self.tors[n], vtep::Database::NAME, operations).await
    }

    fn rows_of(results: &[Value]) -> Vec<Row> {
        World::rows(&results[0])
    }

    fn rows(result: &Value) -> Vec<Row> {
        let rows = result["rows"].as_array().unwrap();
        rows.iter().map(|r| serde_json::from_value(r.clone()).unwrap()).collect()
    }

    /// Several tables of a switch at one moment.
    async fn tables<const N: usize>(&self, n: usize, tables: [&str; N]) -> [Vec<Row>; N] {
        let selects: Vec<Value> = tables.iter().map(|t| json!({"op": "select", "table": t, "where": []})).collect();
        let results = self.tor(n, Value::Array(selects)).await;
        std::array::from_fn(|i| World::rows(&results[i]))
    }

    /// The rows of a southbound table.
    pub async fn sb_rows(&self, table: &str) -> Vec<Row> {
        World::rows_of(&self.sb(json!([{"op": "select", "table": table, "where": []}])).await)
    }

    /// The rows of a switch's table.
    pub async fn tor_rows(&self, n: usize, table: &str) -> Vec<Row> {
        World::rows_of(&self.tor(n, json!([{"op": "select", "table": table, "where": []}])).await)
    }

    /// The row of a southbound table with this value.
    pub async fn sb_row(&self, table: &str, column: &str, value: &str) -> Option<Row> {
        self.sb_rows(table).await.into_iter().find(|r| r[column] == json!(value))
    }

    /// A row's name in a southbound table.
    pub async fn sb_id(&self, table: &str, column: &str, value: &str) -> Value {
        self.sb_row(table, column, value).await.unwrap_or_else(|| panic!("no {table} {value}"))["_uuid"].clone()
    }

    /// A row's name in a switch's table.
    pub async fn tor_id(&self, n: usize, table: &str, column: &str, value: &str) -> Value {
        let rows = self.tor_rows(n, table).await;
        rows.into_iter().find(|r| r[column] == json!(value)).unwrap_or_else(|| panic!("no {table} {value}"))["_uuid"]
            .clone()
    }

    /// A physical switch with ports; each `(port, vlan, logical switch)` is a binding. Logical switches are made as needed.
    pub async fn physical_switch(&self, n: usize, name: &str, ips: &[&str], bindings: &[(&str, i64, &str)]) {
        let known = self.tor_rows(n, "Logical_Switch").await;
        let mut operations = Vec::new();
        let mut switches: BTreeMap<&str, Value> = BTreeMap::new();
        for (i, (_, _, ls)) in bindings.iter().enumerate() {
            if switches.contains_key(ls) {
                continue;
            }
            let reference = match known.iter().find(|r| r["name"] == json!(ls)) {
                Some(r) => r["_uuid"].clone(),
                None => {
                    operations.push(json!({"op": "insert", "table": "Logical_Switch", "row": {"name": ls}, "uuid-name": format!("ls{i}")}));
                    json!(["named-uuid", format!("ls{i}")])
                }
            };
            switches.insert(ls, reference);
        }
        let mut ports: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for (port, vlan, ls) in bindings {
            ports.entry(port).or_default().push(json!([vlan, switches[ls]]));
        }
        let mut references = Vec::new();
        for (i, (port, vlans)) in ports.iter().enumerate() {
            operations.push(json!({"op": "insert", "table": "Physical_Port", "uuid-name": format!("port{i}"),
                "row": {"name": port, "vlan_bindings": ["map", vlans]}}));
            references.push(json!(["named-uuid", format!("port{i}")]));
        }
        operations.push(json!({"op": "insert", "table": "Physical_Switch", "uuid-name": "ps",
            "row": {"name": name, "tunnel_ips": ["set", ips], "ports": ["set", references]}}));
        operations.push(json!({"op": "mutate", "table": "Global", "where": [],
            "mutations": [["switches", "insert", ["named-uuid", "ps"]]]}));
        self.tor(n, Value::Array(operations)).await;
    }

    /// A southbound datapath of a switch.
    pub async fn datapath(&self, key: i64) -> Value {
        let row = json!([{"op": "insert", "table": "Datapath_Binding", "row": {"tunnel_key": key}}]);
        self.sb(row).await[0]["uuid"].clone()
    }

    /// A chassis with one encapsulation.
    pub async fn chassis(&self, name: &str, kind: &str, ip: &str) -> Value {
        let results = self
            .sb(json!([
                {"op": "insert", "table": "Encap", "uuid-name": "e", "row": {"type": kind, "ip": ip, "chassis_name": name}},
                {"op": "insert", "table": "Chassis", "row": {"name": name, "hostname": name, "encaps": ["named-uuid", "e"]}},
            ]))
            .await;
        results[1]["uuid"].clone()
    }

    /// A port binding; `more` are further columns.
    pub async fn port(&self, name: &str, datapath: &Value, key: i64, kind: &str, mac: &[&str], more: Value) -> Value {
        let mut row =
            json!({"logical_port": name, "datapath": datapath, "tunnel_key": key, "type": kind, "mac": ["set", mac]});
        for (k, v) in more.as_object().into_iter().flatten() {
            row[k] = v.clone();
        }
        self.sb(json!([{"op": "insert", "table": "Port_Binding", "row": row}])).await[0]["uuid"].clone()
    }

    /// A port of type `vtep`.
    pub async fn vtep_port(&self, name: &str, datapath: &Value, key: i64, physical: &str, logical: &str) -> Value {
        let options = json!(["map", [["vtep-physical-switch", physical], ["vtep-logical-switch", logical]]]);
        self.port(name, datapath, key, "vtep", &["unknown"], json!({"options": options, "up": false})).await
    }

    /// Sets columns of rows of a southbound table.
    pub async fn sb_set(&self, table: &str, id: &Value, row: Value) {
        self.sb(json!([{"op": "update", "table": table, "where": [["_uuid", "==", id]], "row": row}])).await;
    }

    /// Sets columns of rows of a switch's table.
    pub async fn tor_set(&self, n: usize, table: &str, id: &Value, row: Value) {
        self.tor(n, json!([{"op": "update", "table": table, "where": [["_uuid", "==", id]], "row": row}])).await;
    }

    /// `Ucast_Macs_Remote` as `switch mac ip ipaddr`.
    pub async fn ucast(&self, n: usize) -> Vec<String> {
        let [rows, switches, locators] =
            self.tables(n, ["Ucast_Macs_Remote", "Logical_Switch", "Physical_Locator"]).await;
        let (switches, locators) = (names(&switches, "name"), names(&locators, "dst_ip"));
        let text = |r: &Row| {
            let of = |map: &BTreeMap<String, String>, c: &str| map[r[c][1].as_str().unwrap()].clone();
            let ipaddr = r.get("ipaddr").and_then(Value::as_str).unwrap_or_default();
            let s = format!(
                "{} {} {} {ipaddr}",
                of(&switches, "logical_switch"),
                r["MAC"].as_str().unwrap(),
                of(&locators, "locator")
            );
            s.trim_end().to_string()
        };
        let mut out: Vec<String> = rows.iter().map(text).collect();
        out.sort();
        out
    }

    /// `Mcast_Macs_Remote` as `switch mac ip,ip…`.
    pub async fn mcast(&self, n: usize) -> Vec<String> {
        let tables = ["Mcast_Macs_Remote", "Logical_Switch", "Physical_Locator", "Physical_Locator_Set"];
        let [rows, switches, locators, sets] = self.tables(n, tables).await;
        let (switches, locators) = (names(&switches, "name"), names(&locators, "dst_ip"));
        let mut out = Vec::new();
        for r in rows {
            let set = sets.iter().find(|s| s["_uuid"] == r["locator_set"]).unwrap();
            let mut ips: Vec<String> = references(&set["locators"]).iter().map(|l| locators[l].clone()).collect();
            ips.sort();
            out.push(format!(
                "{} {} {}",
                switches[r["logical_switch"][1].as_str().unwrap()],
                r["MAC"].as_str().unwrap(),
                ips.join(",")
            ));
        }
        out.sort();
        out
    }

    /// `Logical_Switch` as name and tunnel key.
    pub async fn keys(&self, n: usize) -> Vec<(String, Option<i64>)> {
        let rows = self.tor_rows(n, "Logical_Switch").await;
        let mut out: Vec<_> =
            rows.iter().map(|r| (r["name"].as_str().unwrap().to_string(), r["tunnel_key"].as_i64())).collect();
        out.sort();
        out
    }

    /// The name of the chassis that a port is bound to; empty where it is not.
    pub async fn bound(&self, port: &str) -> String {
        let row = self.sb_row("Port_Binding", "logical_port", port).await;
        let chassis = row.map(|r| r["chassis"].clone()).unwrap_or_default();
        let found = self.sb_rows("Chassis").await.into_iter().find(|c| c["_uuid"] == chassis);
        found.map(|c| c["name"].as_str().unwrap().to_string()).unwrap_or_default()
    }

    /// FDB as `datapath mac port`.
    pub async fn fdb(&self) -> Vec<String> {
        let rows = self.sb_rows("FDB").await;
        let mut out: Vec<String> =
            rows.iter().map(|r| format!("{} {} {}", r["dp_key"], r["mac"].as_str().unwrap(), r["port_key"])).collect();
        out.sort();
        out
    }

    /// The addresses of a chassis' encapsulations.
    pub async fn encaps(&self, chassis: &str) -> Vec<String> {
        let Some(row) = self.sb_row("Chassis", "name", chassis).await else { return Vec::new() };
        let wanted = references(&row["encaps"]);
        let rows = self.sb_rows("Encap").await;
        let mut out: Vec<String> = rows
            .iter()
            .filter(|r| wanted.iter().any(|w| r["_uuid"][1] == json!(w)))
            .map(|r| format!("{} {}", r["type"].as_str().unwrap(), r["ip"].as_str().unwrap()))
            .collect();
        out.sort();
        out
    }

    /// Starts our controller on all databases.
    pub fn start(&self, key: &str, args: &[&str]) -> Daemon {
        let program = Path::new(env!("CARGO_BIN_EXE_vtep-controller"));
        let mut all: Vec<String> =
            (0..self.tors.len()).map(|n| format!("--vtep-db={}", self.remote(&format!("vtep{n}")))).collect();
        all.push(format!("--ovnsb-db={}", self.remote("sb")));
        all.extend(args.iter().map(|a| (*a).to_string()));
        Daemon::start(program, &self.dir.path().join(key), &all)
    }
}

fn names(rows: &[Row], column: &str) -> BTreeMap<String, String> {
    let pair = |r: &Row| (r["_uuid"][1].as_str().unwrap().to_string(), r[column].as_str().unwrap().to_string());
    rows.iter().map(pair).collect()
}

/// The UUIDs that a column refers to.
pub fn references(value: &Value) -> Vec<String> {
    match value[0].as_str() {
        Some("set") => value[1].as_array().unwrap().iter().map(|u| u[1].as_str().unwrap().to_string()).collect(),
        _ => vec![value[1].as_str().unwrap().to_string()],
    }
}

impl Daemon {
    /// Starts a program with a directory of its own.
    pub fn start(program: &Path, dir: &Path, args: &[String]) -> Daemon {
        std::fs::create_dir_all(dir).unwrap();
        let name = program.file_name().unwrap().to_str().unwrap().to_string();
        let mut c = Command::new(program);
        for key in [
            "OVS_RUNDIR",
            "OVN_RUNDIR",
            "OVS_LOGDIR",
            "OVN_LOGDIR",
            "OVS_DBDIR",
            "OVN_DBDIR",
            "OVS_SYSCONFDIR",
            "OVN_SYSCONFDIR",
        ] {
            c.env(key, dir);
        }
        // With an arena for each thread, how much glibc keeps of what is free depends on which threads happen to run.
        c.env("MALLOC_ARENA_MAX", "1");
        c.env("OVS_SYSLOG_METHOD", "null").args(["--log-file", "-vconsole:off"]).args(args);
        let child = c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Daemon { child, dir: dir.to_path_buf(), name }
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join(format!("{}.log", self.name))).unwrap_or_default()
    }

    /// The texts of its warnings.
    pub fn warnings(&self) -> Vec<String> {
        let log = self.log();
        log.lines().filter_map(|l| l.split_once("|WARN|")).map(|(_, text)| text.to_string()).collect()
    }

    /// A command to its control socket.
    pub async fn command(&self, method: &str, args: &[&str]) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let path = self.dir.join(format!("{}.{}.ctl", self.name, self.child.id()));
        let end = Instant::now() + Duration::from_secs(10);
        let mut stream = loop {
            match tokio::net::UnixStream::connect(&path).await {
                Ok(s) => break s,
                Err(e) => assert!(Instant::now() < end, "{}: {e}", path.display()),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        stream.write_all(json!({"id": 0, "method": method, "params": args}).to_string().as_bytes()).await.unwrap();
        let mut text = Vec::new();
        loop {
            let mut part = [0; 4096];
            let n = stream.read(&mut part).await.unwrap();
            text.extend_from_slice(&part[..n]);
            if let Ok(v) = serde_json::from_slice::<Value>(&text) {
                return v["result"].as_str().unwrap_or_default().trim().to_string();
            }
            assert!(n > 0, "no answer to {method}");
        }
    }

    /// Waits for its end.
    pub async fn ended(&mut self) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it by command.
    pub async fn exit(&mut self, args: &[&str]) {
        self.command("exit", args).await;
        self.ended().await;
    }

    /// Ends it by a signal.
    pub async fn signal(&mut self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
        self.ended().await;
    }

    /// Ends it as a crash would.
    pub fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something is as it should be.
#[macro_export]
macro_rules! wait_for {
    ($actual:expr, $expected:expr) => {{
        let end = std::time::Instant::now() + std::time::Duration::from_secs(15);
        loop {
            let (actual, expected) = ($actual, $expected);
            if actual == expected {
                break;
            }
            assert!(std::time::Instant::now() < end, "{}: {actual:#?}\nexpected: {expected:#?}", stringify!($actual));
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }};
}
