//! Zones with their databases, the interconnection databases, and daemons between them.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it, and fails by panicking")]

use ovn_schema::{ic_nb, ic_sb, nb, sb};
use ovsdb_rs::client::{Client, Config, Event, TableRequest};
use ovsdb_rs::tls::Tls;
use ovsdb_rs::{DatabaseSchema, Server};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

/// The program of this crate: tests have it, the benchmark says which one it means.
const PROGRAM: Option<&str> = option_env!("CARGO_BIN_EXE_interconnect");

/// A row's columns.
pub type Row = BTreeMap<String, Value>;

/// Databases, served in this process.
pub struct World {
    pub dir: tempfile::TempDir,
    servers: BTreeMap<String, (Server, &'static str)>,
}

/// An interconnection controller, killed when dropped.
pub struct Daemon {
    child: Child,
    dir: PathBuf,
    name: String,
}

/// Waits until both are equal.
#[macro_export]
macro_rules! wait_for {
    ($left:expr, $right:expr) => {{
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let (left, right) = ($left, $right);
            if left == right {
                break;
            }
            assert!(std::time::Instant::now() < end, "{} is {left:?}, not {right:?}", stringify!($left));
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }};
}

impl World {
    /// Zones `az1`, `az2`, … with empty networks.
    pub async fn new(zones: usize) -> World {
        World::with(zones, ic_sb::Database::schema()).await
    }

    /// The same with an interconnection southbound schema of one's own.
    pub async fn with(zones: usize, shared: DatabaseSchema) -> World {
        let mut world = World { dir: tempfile::tempdir().unwrap(), servers: BTreeMap::new() };
        world.serve("icnb", ic_nb::Database::NAME, Some(ic_nb::Database::schema())).await;
        world.serve("icsb", ic_sb::Database::NAME, Some(shared)).await;
        for n in 1..=zones {
            world.zone(n, &format!("az{n}")).await;
        }
        world
    }

    /// Recorded databases, by the name of their file: `ic-nb.db`, `ic-sb.db`, `az1.nb.db`, `az1.sb.db`, …
    pub async fn recorded(files: &BTreeMap<String, Vec<u8>>) -> World {
        let mut world = World { dir: tempfile::tempdir().unwrap(), servers: BTreeMap::new() };
        for (file, content) in files {
            let stem = file.trim_end_matches(".db");
            let (key, name) = match stem.trim_start_matches("az").split_once('.') {
                None if stem == "ic-nb" => ("icnb".to_string(), ic_nb::Database::NAME),
                None if stem == "ic-sb" => ("icsb".to_string(), ic_sb::Database::NAME),
                Some((n, "nb")) => (format!("nb{n}"), nb::Database::NAME),
                Some((n, "sb")) => (format!("sb{n}"), sb::Database::NAME),
                _ => continue,
            };
            std::fs::write(world.dir.path().join(format!("{key}.db")), content).unwrap();
            world.serve(&key, name, None).await;
        }
        world
    }

    /// The keys of all databases.
    pub fn keys(&self) -> Vec<String> {
        self.servers.keys().cloned().collect()
    }

    /// The tables of a database.
    pub fn tables(&self, key: &str) -> Vec<String> {
        let (server, name) = &self.servers[key];
        server.schema(name).unwrap().tables.keys().cloned().collect()
    }

    /// A zone's databases, under a name.
    pub async fn zone(&mut self, n: usize, name: &str) {
        self.serve(&format!("nb{n}"), nb::Database::NAME, Some(nb::Database::schema())).await;
        self.serve(&format!("sb{n}"), sb::Database::NAME, Some(sb::Database::schema())).await;
        let options = json!(["map", [["ic-route-adv", "true"], ["ic-route-learn", "true"]]]);
        let row = json!({"name": name, "options": options});
        self.run(&format!("nb{n}"), json!([{"op": "insert", "table": "NB_Global", "row": row}])).await;
        self.run(&format!("sb{n}"), json!([{"op": "insert", "table": "SB_Global", "row": {}}])).await;
    }

    async fn serve(&mut self, key: &str, name: &'static str, schema: Option<DatabaseSchema>) {
        let server = Server::new();
        server.add_file(&self.dir.path().join(format!("{key}.db")), schema.as_ref()).await.unwrap();
        self.servers.insert(key.into(), (server, name));
        self.listen(key).await;
    }

    /// A database can be reached.
    pub async fn listen(&self, key: &str) {
        let socket = self.dir.path().join(format!("{key}.sock"));
        self.servers[key].0.listen(&format!("punix:{}", socket.display())).await.unwrap();
    }

    /// A database cannot be reached any more; we reach it from within.
    pub fn cut(&self, key: &str) {
        let server = &self.servers[key].0;
        for remote in server.remotes() {
            server.close(&remote).unwrap();
        }
        server.reconnect();
    }

    /// A client of a database within this process.
    pub fn client(&self, key: &str, tables: &[&str]) -> (Client, UnboundedReceiver<Event>) {
        let (server, name) = &self.servers[key];
        let config = Config::in_process(server, name);
        Client::start(tables.iter().fold(config, |c, t| c.table(t, TableRequest::all())))
    }

    /// A transaction.
    pub async fn run(&self, key: &str, operations: Value) -> Vec<Value> {
        let (server, name) = &self.servers[key];
        let results = server.transact(name, operations.as_array().unwrap().clone()).await.unwrap();
        assert!(results.iter().all(|r| r.get("error").is_none_or(Value::is_null)), "{operations}: {results:?}");
        results
    }

    /// The rows of a table.
    pub async fn rows(&self, key: &str, table: &str) -> Vec<Row> {
        let results = self.run(key, json!([{"op": "select", "table": table, "where": []}])).await;
        results[0]["rows"].as_array().unwrap().iter().map(|r| serde_json::from_value(r.clone()).unwrap()).collect()
    }

    /// One column of a table, sorted.
    pub async fn column(&self, key: &str, table: &str, column: &str) -> Vec<String> {
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), String::from);
        let mut out: Vec<String> = self.rows(key, table).await.iter().map(|r| text(&r[column])).collect();
        out.sort();
        out
    }

    /// The row with this value.
    pub async fn row(&self, key: &str, table: &str, column: &str, value: &str) -> Option<Row> {
        self.rows(key, table).await.into_iter().find(|r| r[column] == json!(value))
    }

    /// Sets columns of the rows with this value.
    pub async fn set(&self, key: &str, table: &str, (column, value): (&str, &str), row: Value) {
        self.run(key, json!([{"op": "update", "table": table, "where": [[column, "==", value]], "row": row}])).await;
    }

    /// A transit switch.
    pub async fn transit_switch(&self, name: &str) {
        self.run("icnb", json!([{"op": "insert", "table": "Transit_Switch", "row": {"name": name}}])).await;
    }

    /// A chassis that is a gateway between zones.
    pub async fn gateway(&self, n: usize, name: &str, ip: &str) {
        let config = json!(["map", [["is-interconn", "true"]]]);
        self.run(
            &format!("sb{n}"),
            json!([
                {"op": "insert", "table": "Encap", "uuid-name": "e", "row": {"type": "geneve", "ip": ip, "chassis_name": name}},
                {"op": "insert", "table": "Chassis",
                 "row": {"name": name, "hostname": name, "encaps": ["named-uuid", "e"], "other_config": config}},
            ]),
        )
        .await;
    }

    /// A router with a network of its own and a port on a transit switch, which northd and a gateway have taken up.
    pub async fn router(&self, n: usize, name: &str, switch: &str, network: &str, gateway: &str) {
        let (lrp, lsp, inside) = (format!("{name}-{switch}"), format!("{switch}-{name}"), format!("{name}-inside"));
        let address = format!("169.254.0.{n}/24");
        let mac = format!("00:00:00:00:{n:02x}:01");
        let options = json!(["map", [["router-port", lrp]]]);
        let results = self
            .run(
                &format!("nb{n}"),
                json!([
                    {"op": "insert", "table": "Logical_Router_Port", "uuid-name": "lrp",
                     "row": {"name": lrp, "mac": mac, "networks": address}},
                    {"op": "insert", "table": "Logical_Router_Port", "uuid-name": "inside",
                     "row": {"name": inside, "mac": mac, "networks": network}},
                    {"op": "insert", "table": "Logical_Router",
                     "row": {"name": name, "ports": ["set", [["named-uuid", "lrp"], ["named-uuid", "inside"]]]}},
                    {"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "lsp",
                     "row": {"name": lsp, "type": "router", "options": options, "addresses": "router"}},
                    {"op": "mutate", "table": "Logical_Switch", "where": [["name", "==", switch]],
                     "mutations": [["ports", "insert", ["named-uuid", "lsp"]]]},
                ]),
            )
            .await;
        assert_eq!(results[4]["count"], json!(1), "the transit switch is there");
        let router = results[2]["uuid"].clone();
        let sb = format!("sb{n}");
        let chassis =
            self.row(&sb, "Chassis", "name", gateway).await.map_or(json!(["set", []]), |c| c["_uuid"].clone());
        let mac = format!("{mac} {address}");
        self.run(
            &sb,
            json!([
                {"op": "insert", "table": "Datapath_Binding", "uuid-name": "lr", "row": {"tunnel_key": 1,
                 "nb_uuid": router, "external_ids": ["map", [["logical-router", router[1]]]]}},
                {"op": "insert", "table": "Datapath_Binding", "uuid-name": "ls", "row": {"tunnel_key": 2}},
                {"op": "insert", "table": "Port_Binding", "row": {"logical_port": lsp, "datapath": ["named-uuid", "ls"],
                 "tunnel_key": 1, "type": "patch", "options": ["map", [["peer", lrp]]]}},
                {"op": "insert", "table": "Port_Binding", "row": {"logical_port": lrp, "datapath": ["named-uuid", "lr"],
                 "tunnel_key": 1, "type": "patch", "mac": mac}},
                {"op": "insert", "table": "Port_Binding", "row": {"logical_port": format!("cr-{lrp}"),
                 "datapath": ["named-uuid", "lr"], "tunnel_key": 2, "type": "chassisredirect", "chassis": chassis}},
            ]),
        )
        .await;
    }

    /// The routes that a zone's routers learned, as `prefix nexthop`.
    pub async fn learned(&self, n: usize) -> Vec<String> {
        let rows = self.rows(&format!("nb{n}"), "Logical_Router_Static_Route").await;
        let text = |r: &Row| format!("{} {}", r["ip_prefix"].as_str().unwrap(), r["nexthop"].as_str().unwrap());
        let mut out: Vec<String> =
            rows.iter().filter(|r| r["external_ids"].to_string().contains("ic-learned-route")).map(text).collect();
        out.sort();
        out
    }

    /// Asks that all zones tell when they have written what follows from now, and waits for it.
    pub async fn sync(&self) {
        let mutation =
            json!([{"op": "mutate", "table": "IC_NB_Global", "where": [], "mutations": [["nb_ic_cfg", "+=", 1]]}]);
        wait_for!(self.rows("icnb", "IC_NB_Global").await.len(), 1);
        self.run("icnb", mutation).await;
        let wanted = self.rows("icnb", "IC_NB_Global").await[0]["nb_ic_cfg"].clone();
        wait_for!(self.rows("icnb", "IC_NB_Global").await[0]["sb_ic_cfg"].clone(), wanted.clone());
    }

    /// The first round tells that all have told, the second that all have heard.
    pub async fn settle(&self) {
        self.sync().await;
        self.sync().await;
    }

    /// Starts the daemon of a zone.
    pub fn start(&self, n: usize, name: &str) -> Daemon {
        self.start_program(PROGRAM.unwrap(), n, name)
    }

    /// Starts a program that takes the options of ovn-ic(8).
    pub fn start_program(&self, program: &str, n: usize, name: &str) -> Daemon {
        let remote = |key: &str| format!("unix:{}", self.dir.path().join(format!("{key}.sock")).display());
        self.start_with(program, [&format!("nb{n}"), &format!("sb{n}"), "icnb", "icsb"].map(remote), &[], name)
    }

    /// Starts the daemon on these remotes (northbound, southbound, and those that all zones share), with further options.
    pub fn start_on(&self, remotes: [String; 4], options: &[String], name: &str) -> Daemon {
        self.start_with(PROGRAM.unwrap(), remotes, options, name)
    }

    fn start_with(&self, program: &str, remotes: [String; 4], options: &[String], name: &str) -> Daemon {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let names = ["--ovnnb-db", "--ovnsb-db", "--ic-nb-db", "--ic-sb-db"];
        let mut command = Command::new(program);
        command
            .args(names.iter().zip(remotes).map(|(o, r)| format!("{o}={r}")))
            .args([
                format!("--unixctl={}", dir.join("ctl").display()),
                format!("--log-file={}", dir.join("log").display()),
                "-vconsole:off".to_string(),
            ])
            .args(options)
            .current_dir(&dir)
            .envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR"].map(|v| (v, &dir)))
            .env("OVS_SYSLOG_METHOD", "null")
            .stderr(Stdio::null());
        Daemon { child: command.spawn().unwrap(), dir, name: name.into() }
    }

    /// Has a database listen over TLS; gives its remote.
    pub async fn listen_tls(&self, key: &str, tls: &Tls) -> String {
        let (server, _) = &self.servers[key];
        server.set_tls(Some(tls.clone()));
        let passive = server.listen("pssl:0:127.0.0.1").await.unwrap().to_string();
        format!("ssl:127.0.0.1:{}", passive.split(':').nth(1).unwrap())
    }
}

impl Daemon {
    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Its warnings, without times.
    pub fn warnings(&self) -> Vec<String> {
        let log = self.log();
        log.lines().filter_map(|l| l.split_once("|WARN|").map(|(_, text)| text.to_string())).collect()
    }

    /// Ends it without a chance to do anything.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Processor time so far, in clock ticks of 10 ms.
    pub fn ticks(&self) -> u64 {
        ticks(&self.child.id().to_string())
    }

    /// It waits, for ten seconds.
    pub fn is_quiet(&self) {
        let looked = needs::idle::quiet(self.child.id(), needs::idle::WAKEUPS, Duration::from_secs(10));
        looked.unwrap_or_else(|e| panic!("{}: {e}:\n{}", self.name, self.log()));
    }

    /// Memory of its own, in KiB (proc_pid_status(5)).
    pub fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// A control command's answer.
    pub fn ask(&self, command: &str) -> String {
        let end = Instant::now() + Duration::from_secs(15);
        loop {
            match daemon_rpc(&self.dir.join("ctl"), command) {
                Ok(text) => return text,
                Err(e) if Instant::now() > end => panic!("{}: {command}: {e}", self.name),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

/// Processor time of a process so far, in clock ticks of 10 ms (proc_pid_stat(5)).
pub fn ticks(process: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("---- log of {}\n{}", self.name, self.log());
        }
    }
}

/// JSON-RPC over the control socket (ovs-appctl(8)).
fn daemon_rpc(socket: &std::path::Path, command: &str) -> Result<String, String> {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).map_err(|e| e.to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(|e| e.to_string())?;
    let request = json!({"id": 0, "method": command, "params": []});
    stream.write_all(request.to_string().as_bytes()).map_err(|e| e.to_string())?;
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let n = stream.read(&mut buffer).map_err(|e| e.to_string())?;
        text.extend_from_slice(buffer.get(..n).unwrap_or_default());
        if let Ok(answer) = serde_json::from_slice::<Value>(&text) {
            return answer["result"].as_str().map(String::from).ok_or_else(|| answer["error"].to_string());
        }
        if n == 0 {
            return Err("closed".into());
        }
    }
}
