//! A controller that cannot do its work waits: it takes next to no processor time, says why once, and does what it can.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ovn_schema::{ovs, sb};
use ovsdb_rs::Server;
use ovsdb_rs::server::RemoteOptions;
use ovsdb_rs::tls::{Limits, Tls, TlsFiles};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a controller is looked at.
const LOOK: Duration = Duration::from_secs(3);

struct World {
    dir: tempfile::TempDir,
    ovs: Server,
    sb: Server,
    child: Option<Child>,
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(c) = &mut self.child {
            let _ = c.kill();
            let _ = c.wait();
        }
    }
}

impl World {
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let (ovs, sb) = (Server::new(), Server::new());
        ovs.add_file(&dir.path().join("conf.db"), Some(&ovs::Database::schema())).await.unwrap();
        sb.add_file(&dir.path().join("sb.db"), Some(&sb::Database::schema())).await.unwrap();
        let w = World { dir, ovs, sb, child: None };
        w.southbound(json!([{"op": "insert", "table": "SB_Global", "row": {}}])).await;
        w
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    async fn southbound(&self, operations: Value) -> Vec<Value> {
        self.sb.transact("OVN_Southbound", operations.as_array().unwrap().clone()).await.unwrap()
    }

    async fn local(&self, operations: Value) -> Vec<Value> {
        let results = self.ovs.transact("Open_vSwitch", operations.as_array().unwrap().clone()).await.unwrap();
        assert!(results.iter().all(|r| r.get("error").is_none()), "{results:?}");
        results
    }

    /// Serves the local database with a configuration.
    async fn configure(&self, remote: &str) {
        let ids = json!([
            "map",
            [
                ["system-id", "hv1"],
                ["ovn-remote", remote],
                ["ovn-encap-type", "geneve"],
                ["ovn-encap-ip", "127.0.0.1,127.0.0.2"],
                ["hostname", "hv1"]
            ]
        ]);
        self.local(json!([{"op": "insert", "table": "Open_vSwitch", "row": {"external_ids": ids}}])).await;
        self.ovs.listen(&format!("punix:{}", self.path("db.sock"))).await.unwrap();
    }

    /// Makes the integration bridge with an interface, `tap1`, that has these `external_ids`.
    async fn plug(&self, ids: Value) {
        self.local(json!([
            {"op": "insert", "table": "Interface", "uuid-name": "i", "row": {"name": "tap1", "ofport": 5, "external_ids": ids}},
            {"op": "insert", "table": "Port", "uuid-name": "p", "row": {"name": "tap1", "interfaces": ["named-uuid", "i"]}},
            {"op": "insert", "table": "Bridge", "uuid-name": "b", "row": {"name": "br-int", "ports": ["named-uuid", "p"]}},
            {"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["bridges", "insert", ["named-uuid", "b"]]]},
        ]))
        .await;
    }

    fn start(&mut self) {
        self.start_with(&[]);
    }

    fn start_with(&mut self, options: &[String]) {
        let dir = self.dir.path();
        let log = dir.join("controller.log");
        let mut c = Command::new(env!("CARGO_BIN_EXE_controller"));
        for name in ["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVS_SYSCONFDIR", "OVN_SYSCONFDIR"] {
            c.env(name, dir);
        }
        c.args(["-vconsole:off", "-vsyslog:off", &format!("--log-file={}", log.display())]);
        c.args(options);
        self.child = Some(c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }

    /// Lets the controller settle, and looks at it.
    async fn is_idle(&mut self) {
        self.start();
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.is_quiet();
    }

    fn is_quiet(&self) {
        let looked = needs::idle::quiet(self.child.as_ref().unwrap().id(), needs::idle::WAKEUPS, LOOK);
        looked.unwrap_or_else(|e| panic!("{e}:\n{}", self.log()));
    }

    fn log(&self) -> String {
        std::fs::read_to_string(Path::new(&self.path("controller.log"))).unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_local_database() {
    World::new().await.is_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_southbound_database() {
    let mut w = World::new().await;
    w.configure(&format!("unix:{}", w.path("nowhere.sock"))).await;
    w.is_idle().await;
}

/// It waits for the switch's socket, and does not look for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_switch_is_waited_for() {
    let mut w = World::new().await;
    w.sb.listen(&format!("punix:{}", w.path("sb.sock"))).await.unwrap();
    w.configure(&format!("unix:{}", w.path("sb.sock"))).await;
    w.plug(json!(["map", [["iface-id", "vm1"]]])).await;
    w.start();
    tokio::time::sleep(Duration::from_secs(3)).await;
    w.is_quiet();
    // Its socket comes: it is tried at once, though the pause between attempts is eight seconds by now.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let switch = tokio::net::UnixListener::bind(w.dir.path().join("br-int.mgmt")).unwrap();
    let came = tokio::time::timeout(Duration::from_secs(3), switch.accept()).await;
    assert!(came.is_ok(), "{}", w.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_anybody_at_the_other_ends() {
    let mut w = World::new().await;
    // Port 1 of this machine refuses connections.
    w.configure("tcp:127.0.0.1:1").await;
    let more = json!(["map", [["ovn-bridge-remote", "tcp:127.0.0.1:1"]]]);
    w.local(json!([{"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["external_ids", "insert", more]]}]))
        .await;
    w.is_idle().await;
    let log = w.log();
    let said = log.lines().filter(|l| l.contains("tcp:127.0.0.1:1: connection failed (OpenFlow")).count();
    assert_eq!(said, 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_certificates() {
    let mut w = World::new().await;
    w.configure("ssl:127.0.0.1:1").await;
    w.is_idle().await;
}

/// The protocols of the command line hold for the southbound database; with those that the server speaks, or without any
/// given, the controller gets in.
#[tokio::test(flavor = "multi_thread")]
async fn with_protocols_that_the_server_does_not_speak() {
    for (protocols, gets_in) in [(Some("TLSv1.2"), false), (Some("TLSv1.3"), true), (None, true)] {
        let mut w = World::new().await;
        if !needs::certificates(w.dir.path()) {
            return;
        }
        let file = |name: &str| w.dir.path().join(name);
        let files = TlsFiles {
            private_key: file("test.key"),
            certificate: file("test.pem"),
            ca_cert: Some(file("ca.pem")),
            bootstrap: false,
        };
        let only = Limits::parse(Some("TLSv1.3"), None, None).unwrap();
        w.sb.set_tls(Some(Tls::new(files).unwrap().limited(only)));
        let passive = w.sb.listen("pssl:0:127.0.0.1").await.unwrap().to_string();
        w.configure(&format!("ssl:127.0.0.1:{}", passive.split(':').nth(1).unwrap())).await;
        let named = [("private-key", "test.key"), ("certificate", "test.pem"), ("ca-cert", "ca.pem")];
        let mut options: Vec<String> = named.iter().map(|(o, f)| format!("--{o}={}", file(f).display())).collect();
        options.extend(protocols.map(|p| format!("--ssl-protocols={p}")));
        w.start_with(&options);
        let end = Instant::now() + Duration::from_secs(20);
        let (connected, refused) = loop {
            let chassis = w.southbound(json!([{"op": "select", "table": "Chassis", "where": []}])).await;
            let seen = (chassis[0]["rows"] != json!([]), w.log().contains("connection attempt failed"));
            if seen != (false, false) {
                break seen;
            }
            assert!(Instant::now() < end, "{protocols:?}: {}", w.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!((connected, refused), (gets_in, !gets_in), "{protocols:?}: {}", w.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_switch() {
    let mut w = World::new().await;
    let remote = format!("unix:{}", w.path("sb.sock"));
    w.sb.listen(&format!("p{remote}")).await.unwrap();
    w.configure(&remote).await;
    w.is_idle().await;
    // The chassis is there all the same.
    let rows = w.southbound(json!([{"op": "select", "table": "Chassis", "where": [], "columns": ["name"]}])).await;
    assert_eq!(rows[0]["rows"], json!([{"name": "hv1"}]), "{}", w.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_bridge_that_is_gone() {
    let mut w = World::new().await;
    let remote = format!("unix:{}", w.path("sb.sock"));
    w.sb.listen(&format!("p{remote}")).await.unwrap();
    w.configure(&remote).await;
    w.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    w.local(json!([{"op": "update", "table": "Open_vSwitch", "where": [], "row": {"bridges": ["set", []]}}])).await;
    let mut c = w.child.take().unwrap();
    c.kill().unwrap();
    c.wait().unwrap();
    w.is_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_everything_is_refused() {
    let mut w = World::new().await;
    let remote = format!("unix:{}", w.path("sb.sock"));
    // A server that only reads, as a standby is.
    let options = RemoteOptions { read_only: true, ..RemoteOptions::default() };
    w.sb.listen_with(&format!("p{remote}"), options).await.unwrap();
    w.configure(&remote).await;
    w.is_idle().await;
    let log = w.log();
    let said = log.lines().filter(|l| l.contains("|WARN|") && l.contains("OVN_Southbound")).count();
    assert!((1..=3).contains(&said), "once for each row:\n{log}");
    assert!(log.contains("Chassis hv1"), "the row is named:\n{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_row_holds_no_claim_up() {
    let mut w = World::new().await;
    let remote = format!("unix:{}", w.path("sb.sock"));
    w.sb.listen(&format!("p{remote}")).await.unwrap();
    // Another chassis has the address.
    let encap = json!({"type": "geneve", "ip": "127.0.0.1", "chassis_name": "hv2"});
    w.southbound(json!([
        {"op": "insert", "table": "Encap", "uuid-name": "e", "row": encap},
        {"op": "insert", "table": "Chassis", "row": {"name": "hv2", "encaps": ["named-uuid", "e"]}},
        {"op": "insert", "table": "Datapath_Binding", "uuid-name": "d", "row": {"tunnel_key": 1}},
        {"op": "insert", "table": "Port_Binding",
         "row": {"logical_port": "lp1", "datapath": ["named-uuid", "d"], "tunnel_key": 1, "up": false}},
    ]))
    .await;
    w.configure(&remote).await;
    w.plug(json!(["map", [["iface-id", "lp1"]]])).await;
    w.start();
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let query = json!([{"op": "select", "table": "Port_Binding", "where": [], "columns": ["chassis"]}]);
        let rows = w.southbound(query).await;
        if rows[0]["rows"][0]["chassis"][0] == "uuid" {
            break;
        }
        assert!(Instant::now() < end, "not claimed:\n{}", w.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let log = w.log();
    let said = log.lines().filter(|l| l.contains("already has encap ip")).count();
    assert_eq!(said, 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interface_without_a_port_is_not_installed() {
    let mut w = World::new().await;
    let remote = format!("unix:{}", w.path("sb.sock"));
    w.sb.listen(&format!("p{remote}")).await.unwrap();
    w.configure(&remote).await;
    // Its iface-id was taken away while no controller ran.
    let ids = json!(["map", [["ovn-installed", "true"], ["ovn-installed-ts", "1"], ["vm-id", "7"]]]);
    w.plug(ids).await;
    w.start();
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let query = json!([{"op": "select", "table": "Interface", "where": [["name", "==", "tap1"]], "columns": ["external_ids"]}]);
        let rows = w.local(query).await;
        if rows[0]["rows"][0]["external_ids"] == json!(["map", [["vm-id", "7"]]]) {
            break;
        }
        assert!(Instant::now() < end, "{rows:?}\n{}", w.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_takes_no_patch_port_away_before_it_knows_what_is_here() {
    let mut w = World::new().await;
    let remote = format!("unix:{}", w.path("sb.sock"));
    w.sb.listen(&format!("p{remote}")).await.unwrap();
    // The interface's switch, a router, and a switch with a provider network: each is asked for when the one before is there.
    let datapath = |n: usize, kind: &str| {
        json!({"op": "insert", "table": "Datapath_Binding", "uuid-name": format!("d{n}"),
            "row": {"tunnel_key": n, "external_ids": ["map", [[kind, "x"], ["name", format!("d{n}")]]]}})
    };
    let port = |n: usize, key: usize, kind: &str, name: &str, options: Value| {
        json!({"op": "insert", "table": "Port_Binding", "row": {"logical_port": name, "datapath": ["named-uuid", format!("d{n}")],
            "tunnel_key": key, "type": kind, "options": ["map", options]}})
    };
    w.southbound(json!([
        datapath(1, "logical-switch"),
        datapath(2, "logical-router"),
        datapath(3, "logical-switch"),
        port(1, 1, "", "lp1", json!([])),
        port(1, 2, "patch", "s1-r", json!([["peer", "r-s1"]])),
        port(2, 1, "patch", "r-s1", json!([["peer", "s1-r"]])),
        port(2, 2, "patch", "r-s3", json!([["peer", "s3-r"]])),
        port(3, 1, "patch", "s3-r", json!([["peer", "r-s3"]])),
        port(3, 2, "localnet", "ln", json!([["network_name", "net"]])),
    ]))
    .await;
    w.configure(&remote).await;
    let mapping = json!(["map", [["ovn-bridge-mappings", "net:br-ext"]]]);
    w.local(json!([
        {"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["external_ids", "insert", mapping]]},
        {"op": "insert", "table": "Bridge", "uuid-name": "b", "row": {"name": "br-ext"}},
        {"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["bridges", "insert", ["named-uuid", "b"]]]},
    ]))
    .await;
    w.plug(json!(["map", [["iface-id", "lp1"]]])).await;
    let ports = json!([{"op": "select", "table": "Port", "where": [["name", "==", "patch-br-int-to-ln"]], "columns": ["_uuid"]}]);
    // Once to make it, and once with the chassis gone from the southbound database as after `exit`.
    let mut made = Value::Null;
    for round in 0..2 {
        w.start();
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let chassis = json!([{"op": "select", "table": "Port_Binding", "where": [["logical_port", "==", "lp1"]], "columns": ["chassis"]}]);
            let bound = w.southbound(chassis).await[0]["rows"][0]["chassis"][0] == "uuid";
            let found = w.local(ports.clone()).await[0]["rows"][0].clone();
            if round == 1 {
                assert_eq!(found, made, "the patch port stays as it is\n{}", w.log());
            }
            if bound && !found.is_null() {
                made = found;
                break;
            }
            assert!(Instant::now() < end, "no patch port:\n{}", w.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let mut c = w.child.take().unwrap();
        c.kill().unwrap();
        c.wait().unwrap();
        w.southbound(json!([
            {"op": "update", "table": "Port_Binding", "where": [], "row": {"chassis": ["set", []]}},
            {"op": "delete", "table": "Chassis", "where": []},
            {"op": "delete", "table": "Chassis_Private", "where": []},
        ]))
        .await;
    }
}
