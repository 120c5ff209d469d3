//! Representors plugged in by a running controller: the cards are a file's, everything else is as on a machine without a switch.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ovn_schema::{ovs, sb};
use ovsdb_rs::Server;
use ovsdb_rs::server::RemoteOptions;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    dir: tempfile::TempDir,
    ovs: Server,
    sb: Server,
    child: Option<Child>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A PF with the address 00:53:00:00:00:01 in switchdev mode and these VFs, by number and network device.
fn cards(vfs: &[(u32, String)]) -> Value {
    let device = "pci/0000:03:00.0";
    let mut ports = vec![json!({"device": device, "index": 0, "function": {"physical": {"port": 0}}, "ifindex": 1})];
    let mut links = vec![json!({"ifindex": 1, "name": "p0", "address": "00:53:00:00:00:01"})];
    for (vf, name) in vfs {
        let function = json!({"vf": {"pf": 0, "vf": vf}});
        ports.push(json!({"device": device, "index": vf + 1, "function": function, "ifindex": vf + 10}));
        links.push(json!({"ifindex": vf + 10, "name": name}));
    }
    json!({"devices": [{"name": device, "mode": "switchdev"}], "ports": ports, "links": links})
}

impl World {
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let (ovs, sb) = (Server::new(), Server::new());
        ovs.add_file(&dir.path().join("conf.db"), Some(&ovs::Database::schema())).await.unwrap();
        sb.add_file(&dir.path().join("sb.db"), Some(&sb::Database::schema())).await.unwrap();
        let mut w = World { dir, ovs, sb, child: None };
        w.southbound(json!([{"op": "insert", "table": "SB_Global", "row": {}}])).await;
        let remote = format!("unix:{}", w.path("sb.sock"));
        let ids = [
            ["system-id", "hv1"],
            ["ovn-remote", &remote],
            ["ovn-encap-type", "geneve"],
            ["ovn-encap-ip", "127.0.0.1"],
        ];
        w.local(json!([{"op": "insert", "table": "Open_vSwitch", "row": {"external_ids": ["map", ids]}}])).await;
        w.ovs.listen(&format!("punix:{}", w.path("db.sock"))).await.unwrap();
        w.sb.listen_with(&format!("punix:{}", w.path("sb.sock")), RemoteOptions::default()).await.unwrap();
        w.describe(&[]);
        w.start();
        w
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn start(&mut self) {
        let dir = self.dir.path();
        let mut c = Command::new(env!("CARGO_BIN_EXE_controller"));
        for name in ["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR", "OVN_SYSCONFDIR"] {
            c.env(name, dir);
        }
        c.args(["-vconsole:off", "-vsyslog:off", &format!("--log-file={}", dir.join("controller.log").display())]);
        c.arg(format!("--representors={}", dir.join("cards.json").display()));
        self.child = Some(c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut c) = self.child.take() {
            let _ = c.kill();
            let _ = c.wait();
        }
    }

    /// Says which VFs there are, at once for who reads.
    fn describe(&self, vfs: &[(u32, String)]) {
        let new = self.dir.path().join("cards.new");
        std::fs::write(&new, cards(vfs).to_string()).unwrap();
        std::fs::rename(&new, self.dir.path().join("cards.json")).unwrap();
    }

    async fn southbound(&self, operations: Value) -> Vec<Value> {
        let results = self.sb.transact("OVN_Southbound", operations.as_array().unwrap().clone()).await.unwrap();
        assert!(results.iter().all(|r| r.get("error").is_none()), "{results:?}");
        results
    }

    async fn local(&self, operations: Value) -> Vec<Value> {
        let results = self.ovs.transact("Open_vSwitch", operations.as_array().unwrap().clone()).await.unwrap();
        assert!(results.iter().all(|r| r.get("error").is_none()), "{results:?}");
        results
    }

    /// The chassis' row, once the controller made it.
    async fn chassis(&self) -> Value {
        let start = Instant::now();
        loop {
            let r =
                self.southbound(json!([{"op": "select", "table": "Chassis", "where": [], "columns": ["_uuid"]}])).await;
            if let Some(row) = r[0]["rows"].as_array().unwrap().first() {
                return row["_uuid"].clone();
            }
            assert!(start.elapsed() < PATIENCE, "{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ports that are asked for here, by name and `vf-num`.
    async fn ports(&self, chassis: &Value, ports: &[(String, String)]) {
        let dp = json!({"op": "insert", "table": "Datapath_Binding", "uuid-name": "dp", "row": {"tunnel_key": 1}});
        let mut operations = vec![dp];
        for (n, (name, vf)) in ports.iter().enumerate() {
            let options = [
                ["requested-chassis", "hv1"],
                ["vif-plug-type", "representor"],
                ["vif-plug:representor:pf-mac", "00:53:00:00:00:01"],
                ["vif-plug:representor:vf-num", vf],
            ];
            operations.push(json!({"op": "insert", "table": "Port_Binding", "row": {
                "logical_port": name, "tunnel_key": n + 1, "datapath": ["named-uuid", "dp"], "requested_chassis": chassis,
                "options": ["map", options]}}));
        }
        self.southbound(Value::from(operations)).await;
    }

    async fn set_vf(&self, port: &str, vf: &str) {
        let change = json!([
            ["options", "delete", ["set", ["vif-plug:representor:vf-num"]]],
            ["options", "insert", ["map", [["vif-plug:representor:vf-num", vf]]]]
        ]);
        let by_name = json!([["logical_port", "==", port]]);
        self.southbound(json!([{"op": "mutate", "table": "Port_Binding", "where": by_name, "mutations": change}]))
            .await;
    }

    /// What is plugged in: the `external_ids` of interfaces that have an `iface-id`, by name.
    async fn plugged(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let columns = json!(["name", "external_ids"]);
        let r = self.local(json!([{"op": "select", "table": "Interface", "where": [], "columns": columns}])).await;
        let ids = |v: &Value| -> BTreeMap<String, String> {
            let pairs = v[1].as_array().unwrap().iter();
            pairs.map(|p| (p[0].as_str().unwrap().into(), p[1].as_str().unwrap().into())).collect()
        };
        let rows = r[0]["rows"].as_array().unwrap().iter();
        rows.map(|row| (row["name"].as_str().unwrap().to_string(), ids(&row["external_ids"])))
            .filter(|(_, ids)| ids.contains_key("iface-id"))
            .collect()
    }

    /// Waits until what is plugged in is as it should be.
    async fn until(&self, what: &str, is: impl Fn(&BTreeMap<String, BTreeMap<String, String>>) -> bool) {
        let start = Instant::now();
        loop {
            let now = self.plugged().await;
            if is(&now) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {now:?}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(Path::new(&self.path("controller.log"))).unwrap_or_default()
    }
}

fn is(now: &BTreeMap<String, BTreeMap<String, String>>, want: &[(&str, &str)]) -> bool {
    now.iter().map(|(name, ids)| (name.as_str(), ids["iface-id"].as_str())).eq(want.iter().copied())
        && now.values().all(|ids| ids.get("ovn-plugged").is_some_and(|p| p == "representor"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_representor_follows_its_port() {
    let mut w = World::new().await;
    let me = w.chassis().await;
    let port = |name: &str, vf: &str| (name.to_string(), vf.to_string());
    w.ports(&me, &[port("lp0", "0"), port("lp1", "abc"), port("lp2", "0")]).await;
    // The card comes after the ports.
    let vf = |n: u32| (n, format!("pf0vf{n}"));
    w.describe(&[vf(0), vf(1)]);
    w.until("VF 0", |now| is(now, &[("pf0vf0", "lp0")])).await;
    let log = w.log();
    assert!(log.contains("lp1: options:vif-plug:representor:vf-num \"abc\" is no number"), "{log}");
    assert!(log.contains("lp2: its device pf0vf0 is plugged in for lport lp0"), "{log}");
    // What was wrong is mended.
    w.set_vf("lp1", "1").await;
    w.until("VF 1", |now| is(now, &[("pf0vf0", "lp0"), ("pf0vf1", "lp1")])).await;
    // It is renamed; the card is reset and comes back.
    w.describe(&[(0, "red".into()), vf(1)]);
    w.until("the other name", |now| is(now, &[("pf0vf1", "lp1"), ("red", "lp0")])).await;
    w.describe(&[]);
    w.until("errors", |now| {
        now.len() == 2 && now.values().all(|ids| ids.get("ovn-plug-error").is_some_and(|e| e.contains("has no VF")))
    })
    .await;
    w.describe(&[(0, "red".into()), vf(1)]);
    w.until("no errors", |now| now.len() == 2 && now.values().all(|ids| !ids.contains_key("ovn-plug-error"))).await;
    // It is killed; meanwhile a port goes.
    w.kill();
    w.southbound(json!([{"op": "delete", "table": "Port_Binding", "where": [["logical_port", "==", "lp1"]]}])).await;
    w.start();
    w.until("lp1 is gone", |now| is(now, &[("red", "lp0")])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_functions() {
    let w = World::new().await;
    let me = w.chassis().await;
    let all: Vec<(String, String)> = (0..1000).map(|n| (format!("lp{n}"), n.to_string())).collect();
    w.ports(&me, &all).await;
    w.describe(&(0..1000).map(|n| (n, format!("vf{n}"))).collect::<Vec<_>>());
    w.until("all", |now| {
        now.len() == 1000 && now.iter().all(|(name, ids)| name.strip_prefix("vf") == ids["iface-id"].strip_prefix("lp"))
    })
    .await;
}
