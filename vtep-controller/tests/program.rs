//! The program as operators start it: under the C controller's name, in the background, over TLS.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use ovsdb_rs::client::{Client, Config};
use ovsdb_rs::tls::{Tls, TlsFiles};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtep-controller");

fn link(w: &World) -> PathBuf {
    let link = w.dir.path().join("ovn-controller-vtep");
    std::os::unix::fs::symlink(PROGRAM, &link).unwrap();
    link
}

fn run(program: &Path, dir: &Path, args: &[String]) -> Output {
    let mut c = Command::new(program);
    for key in ["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR"] {
        c.env(key, dir);
    }
    c.env("OVS_SYSLOG_METHOD", "null").args(args).output().unwrap()
}

async fn attached(w: &World) {
    w.physical_switch(0, "tor", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    let dp = w.datapath(7).await;
    w.vtep_port("a", &dp, 1, "tor", "ls").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_the_other_name_in_the_background() {
    let w = World::new(1).await;
    attached(&w).await;
    let (program, dir) = (link(&w), w.dir.path());
    // The database of the switch is where the C controller looks for it.
    std::os::unix::fs::symlink(dir.join("vtep0.sock"), dir.join("db.sock")).unwrap();
    std::os::unix::fs::symlink(dir.join("sb.sock"), dir.join("ovnsb_db.sock")).unwrap();
    let args = ["--detach", "--no-chdir", "--pidfile", "--log-file", "-vconsole:off"].map(String::from);
    let out = run(&program, dir, &args);
    assert!(out.status.success(), "{out:?}");
    let pid = std::fs::read_to_string(dir.join("ovn-controller-vtep.pid")).unwrap();
    let socket = dir.join(format!("ovn-controller-vtep.{}.ctl", pid.trim()));
    assert!(socket.exists());
    wait_for!(w.bound("a").await, "tor");
    let again = run(&program, dir, &args);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("already running as pid"), "{again:?}");
    assert!(Command::new("kill").arg(pid.trim()).status().unwrap().success());
    wait_for!(dir.join("ovn-controller-vtep.pid").exists(), false);
    assert!(!socket.exists());
    assert_eq!(w.bound("a").await, "tor", "only exit takes it out of the databases");
    let version = run(&program, dir, &["--version".to_string()]);
    let text = String::from_utf8_lossy(&version.stdout).into_owned();
    assert!(text.starts_with("ovn-controller-vtep 26.03.90\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_to_both_databases() {
    let w = World::new(1).await;
    let Some(tls) = tls(&w) else { return };
    attached(&w).await;
    let [sb, tor] = w.listen_tls(&tls).await;
    let args = with_tls(&w, &sb, &tor);
    let mut d = common::Daemon::start(Path::new(PROGRAM), &w.dir.path().join("c"), &args);
    wait_for!(w.bound("a").await, "tor");
    wait_for!(w.keys(0).await, vec![("ls".to_string(), Some(7))]);
    d.exit(&[]).await;
    assert_eq!(w.bound("a").await, "");
    // Without a certificate nobody gets in.
    let bare = common::Daemon::start(Path::new(PROGRAM), &w.dir.path().join("c2"), &args[..2]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(bare.command("sb-connection-status", &[]).await, "not connected");
}

/// TLS with a certificate whose name is `test`; none where openssl makes none.
fn tls(w: &World) -> Option<Tls> {
    if !needs::certificates(w.dir.path()) {
        return None;
    }
    let file = |name: &str| w.dir.path().join(name);
    let files = TlsFiles {
        private_key: file("test.key"),
        certificate: file("test.pem"),
        ca_cert: Some(file("ca.pem")),
        bootstrap: false,
    };
    Some(Tls::new(files).unwrap())
}

fn with_tls(w: &World, sb: &str, tor: &str) -> [String; 5] {
    let option = |o: &str, name: &str| format!("{o}={}", w.dir.path().join(name).display());
    [
        format!("--vtep-db={tor}"),
        format!("--ovnsb-db={sb}"),
        option("--private-key", "test.key"),
        option("--certificate", "test.pem"),
        option("--ca-cert", "ca.pem"),
    ]
}

/// Gives the southbound database the role that northd publishes.
async fn role(w: &World) {
    let mut operations = Vec::new();
    let mut permissions = Vec::new();
    for (table, authorization, insert_delete, update) in northd::tables::rbac::VTEP_PERMISSIONS {
        operations.push(json!({"op": "insert", "table": "RBAC_Permission", "uuid-name": table, "row": {
            "table": table, "authorization": authorization, "insert_delete": insert_delete, "update": ["set", update]}}));
        permissions.push(json!([table, ["named-uuid", table]]));
    }
    operations.push(json!({"op": "insert", "table": "RBAC_Role",
        "row": {"name": "vtep-controller", "permissions": ["map", permissions]}}));
    w.sb(json!(operations)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_its_role_it_may_do_its_work_and_no_more() {
    let w = World::new(1).await;
    let Some(tls) = tls(&w) else { return };
    role(&w).await;
    w.physical_switch(0, "tor1", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    w.physical_switch(0, "tor2", &["1.2.3.5"], &[("p0", 100, "ls")]).await;
    let (dp, router) = (w.datapath(7).await, w.datapath(8).await);
    w.vtep_port("a", &dp, 1, "tor1", "ls").await;
    w.vtep_port("b", &dp, 2, "tor2", "ls").await;
    w.port("to-lr", &dp, 3, "patch", &["router"], json!({"options": ["map", [["peer", "lr-to"]]]})).await;
    w.port("lr-to", &router, 1, "patch", &["00:00:00:00:ff:01 10.0.0.1/24"], json!({})).await;
    w.chassis("hv", "vxlan", "1.2.3.9").await;
    let sb = w.listen_for_role(&tls, "vtep-controller").await;
    let mut d =
        common::Daemon::start(Path::new(PROGRAM), &w.dir.path().join("c"), &with_tls(&w, &sb, &w.remote("vtep0")));
    wait_for!([w.bound("a").await, w.bound("b").await], ["tor1", "tor2"]);
    let ls = w.tor_id(0, "Logical_Switch", "name", "ls").await;
    w.tor(0, json!([
        {"op": "insert", "table": "Physical_Locator", "uuid-name": "l", "row": {"encapsulation_type": "vxlan_over_ipv4", "dst_ip": "1.2.3.4"}},
        {"op": "insert", "table": "Ucast_Macs_Local", "row": {"MAC": "aa:bb:cc:dd:ee:01", "logical_switch": ls, "locator": ["named-uuid", "l"], "ipaddr": "10.0.0.9"}},
    ])).await;
    wait_for!(w.fdb().await, vec!["7 aa:bb:cc:dd:ee:01 1".to_string()]);
    wait_for!(w.sb_rows("MAC_Binding").await.len(), 1);
    // Both rows of a switch follow what changes.
    let tor1 = w.tor_id(0, "Physical_Switch", "name", "tor1").await;
    w.tor_set(0, "Physical_Switch", &tor1, json!({"tunnel_ips": ["set", ["1.2.3.4", "1.2.3.6"]]})).await;
    wait_for!(w.encaps("tor1").await.len(), 2);
    assert_eq!(d.warnings(), Vec::<String>::new());
    // A hypervisor's row is none of its business, whoever asks.
    let config = Config::new(&sb, "OVN_Southbound").unwrap().tls(Some(tls)).leader_only(false);
    let (client, _events) = Client::start(config);
    client.connected().await;
    for (table, row) in [("Chassis", json!({"external_ids": ["map", []]})), ("Encap", json!({"ip": "6.6.6.6"}))] {
        let column = if table == "Chassis" { "name" } else { "chassis_name" };
        let update = json!({"op": "update", "table": table, "where": [[column, "==", "hv"]], "row": row});
        let answer = client.transact(vec![update]).await.unwrap();
        assert_eq!(answer.last().unwrap()["error"], "permission error", "{answer:?}");
    }
    d.exit(&[]).await;
    wait_for!(w.sb_rows("Chassis").await.len(), 1);
    assert_eq!((w.bound("a").await, w.sb_rows("MAC_Binding").await.len(), w.fdb().await.len()), (String::new(), 0, 0));
}
