//! A northbound database, a folder of resources, and the daemon between them.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it, and fails by panicking")]

use super::common::network;
use ovn_schema::nb;
use ovsdb_rs::Server;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Waits until a condition holds.
#[macro_export]
macro_rules! wait_until {
    ($what:expr, $condition:expr) => {{
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !$condition {
            assert!(std::time::Instant::now() < end, "not within 30 s: {}", $what);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }};
}

/// A database and a folder.
pub struct Place {
    pub dir: tempfile::TempDir,
    server: Server,
}

/// The daemon, killed when dropped.
pub struct Daemon {
    child: Child,
    dir: PathBuf,
}

impl Place {
    pub async fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("resources")).unwrap();
        let server = Server::new();
        server.add_file(&dir.path().join("nb.db"), Some(&nb::Database::schema())).await.unwrap();
        server.listen(&format!("punix:{}", dir.path().join("nb.sock").display())).await.unwrap();
        Place { dir, server }
    }

    pub async fn run(&self, operations: Value) -> Vec<Value> {
        let operations = operations.as_array().unwrap().clone();
        let results = self.server.transact(nb::Database::NAME, operations.clone()).await.unwrap();
        let good = results.iter().all(|r| r.get("error").is_none_or(Value::is_null));
        assert!(good, "{operations:?}: {results:?}");
        results
    }

    /// The rows of a table.
    pub async fn rows(&self, table: &str) -> Vec<Value> {
        let results = self.run(json!([{"op": "select", "table": table, "where": []}])).await;
        results[0]["rows"].as_array().unwrap().clone()
    }

    /// A column of a table, sorted.
    pub async fn column(&self, table: &str, column: &str) -> Vec<String> {
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), String::from);
        let mut out: Vec<String> = self.rows(table).await.iter().map(|r| text(&r[column])).collect();
        out.sort();
        out
    }

    /// All rows of the tables that are written, with their versions.
    pub async fn everything(&self) -> Vec<(String, Vec<String>)> {
        let tables = [
            "Logical_Router",
            "Logical_Router_Port",
            "Logical_Router_Policy",
            "Logical_Router_Static_Route",
            "Logical_Switch",
            "Load_Balancer_Group",
            "ACL",
            "Address_Set",
        ];
        let mut out = Vec::new();
        for table in tables {
            let mut rows: Vec<String> = self.rows(table).await.iter().map(Value::to_string).collect();
            rows.sort();
            out.push((table.to_string(), rows));
        }
        out
    }

    /// What OVN-Kubernetes makes of a network on node `n1`, as far as it matters here.
    pub async fn plumb(&self, id: u32, layer: &str) {
        let prefix = format!("cluster_udn_c{id}_");
        let (router, switch) = match layer {
            "layer2" => (format!("{prefix}transit_router"), format!("{prefix}ovn_layer2_switch")),
            _ => (format!("{prefix}ovn_cluster_router"), format!("{prefix}n1")),
        };
        let ids =
            json!(["map", [["k8s.ovn.org/kind", "Service"], ["k8s.ovn.org/network", format!("cluster_udn_c{id}")]]]);
        self.run(json!([
            {"op": "insert", "table": "Logical_Router", "row": {"name": router}},
            {"op": "insert", "table": "Logical_Switch", "row": {"name": switch}},
            {"op": "insert", "table": "Load_Balancer", "row": {"name": format!("Service_ns{id}/s_TCP_cluster"), "external_ids": ids}},
            {"op": "insert", "table": "Load_Balancer", "row": {"name": format!("Service_ns{id}/s_TCP_node"), "external_ids": ids}},
        ]))
        .await;
    }

    /// A network with what OVN-Kubernetes makes of it.
    pub async fn network(&self, id: u32, layer: &str, subnets: &str) {
        self.plumb(id, layer).await;
        self.put(
            &format!("net{id}"),
            "k8s.cni.cncf.io/v1",
            "NetworkAttachmentDefinition",
            network(id, layer, subnets).1,
        );
    }

    /// Writes a resource into a file of the folder.
    pub fn put(&self, file: &str, version: &str, kind: &str, mut object: Value) {
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        let path = self.dir.path().join("resources").join(format!("{file}.yaml"));
        std::fs::write(path, serde_json::to_string_pretty(&object).unwrap()).unwrap();
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.dir.path().join("resources").join(format!("{file}.yaml"))).unwrap();
    }

    /// What is written beside a resource.
    pub fn status(&self, of: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("resources/status/{of}.yaml"))).unwrap_or_default()
    }

    pub fn start(&self, options: &[&str]) -> Daemon {
        let folder = format!("--folder={}", self.dir.path().join("resources").display());
        self.start_on(&folder, "run", options)
    }

    /// On the API server of the file `kubeconfig`; several processes have different names.
    pub fn start_kubernetes(&self, name: &str, options: &[&str]) -> Daemon {
        self.start_on("--kubernetes", name, options)
    }

    fn start_on(&self, source: &str, name: &str, options: &[&str]) -> Daemon {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_network-connect"))
            .args([
                source.to_string(),
                format!("--ovnnb-db=unix:{}", self.dir.path().join("nb.sock").display()),
                format!("--unixctl={}", dir.join("ctl").display()),
                format!("--log-file={}", dir.join("log").display()),
                "-vconsole:off".into(),
                "--zone=n1".into(),
            ])
            .args(options)
            .current_dir(&dir)
            .envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR"].map(|v| (v, &dir)))
            .env("OVS_SYSLOG_METHOD", "null")
            .env("KUBECONFIG", self.dir.path().join("kubeconfig"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Daemon { child, dir }
    }
}

impl Daemon {
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Ends it without a chance to do anything.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::fs::remove_file(self.dir.join("ctl")).unwrap();
    }

    /// A control command's answer (JSON-RPC, as ovs-appctl(8)).
    pub fn ask(&self, command: &str) -> String {
        let end = Instant::now() + Duration::from_secs(15);
        let mut stream = loop {
            match std::os::unix::net::UnixStream::connect(self.dir.join("ctl")) {
                Ok(stream) => break stream,
                Err(e) => assert!(Instant::now() < end, "{command}: {e}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream.write_all(json!({"id": 0, "method": command, "params": []}).to_string().as_bytes()).unwrap();
        let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let n = stream.read(&mut buffer).unwrap();
            text.extend_from_slice(&buffer[..n]);
            if let Ok(answer) = serde_json::from_slice::<Value>(&text) {
                return answer["result"].as_str().map_or_else(|| answer["error"].to_string(), String::from);
            }
            assert!(n > 0, "{command}: closed");
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("---- log of the daemon\n{}", self.log());
        }
    }
}
