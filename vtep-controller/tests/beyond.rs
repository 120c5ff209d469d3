//! What ovn-controller-vtep does not do: several databases, older schemas, service nodes, BFD, what switches learned,
//! bad input.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use ovn_schema::vtep;
use ovsdb_rs::DatabaseSchema;
use serde_json::{Value, json};

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_string()).collect()
}

async fn local(w: &World, n: usize, switch: &str, mac: &str, ip: &str) -> Value {
    local_with(w, n, switch, mac, ip, "").await
}

async fn local_with(w: &World, n: usize, switch: &str, mac: &str, ip: &str, ipaddr: &str) -> Value {
    let ls = w.tor_id(n, "Logical_Switch", "name", switch).await;
    let known = w.tor_rows(n, "Physical_Locator").await.into_iter().find(|r| r["dst_ip"] == json!(ip));
    let mut operations = Vec::new();
    let locator = match known {
        Some(r) => r["_uuid"].clone(),
        None => {
            operations.push(json!({"op": "insert", "table": "Physical_Locator", "uuid-name": "l",
                "row": {"encapsulation_type": "vxlan_over_ipv4", "dst_ip": ip}}));
            json!(["named-uuid", "l"])
        }
    };
    operations.push(json!({"op": "insert", "table": "Ucast_Macs_Local", "row": {"MAC": mac, "logical_switch": ls, "locator": locator, "ipaddr": ipaddr}}));
    w.tor(n, Value::Array(operations)).await.last().unwrap()["uuid"].clone()
}

async fn forget(w: &World, n: usize, id: &Value) {
    w.tor(n, json!([{"op": "delete", "table": "Ucast_Macs_Local", "where": [["_uuid", "==", id]]}])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_switches_learn_is_known_to_all() {
    let w = World::new(2).await;
    w.physical_switch(0, "tor1", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    w.physical_switch(0, "tor2", &["1.2.3.5"], &[("p0", 100, "ls")]).await;
    w.physical_switch(1, "tor3", &["1.2.3.6"], &[("p0", 100, "ls")]).await;
    let dp = w.datapath(7).await;
    w.vtep_port("a", &dp, 1, "tor1", "ls").await;
    w.vtep_port("b", &dp, 2, "tor2", "ls").await;
    w.vtep_port("c", &dp, 3, "tor3", "ls").await;
    let d = w.start("c", &[]);
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.6"]));
    wait_for!(w.mcast(1).await, strings(&["ls unknown-dst 1.2.3.4,1.2.3.5"]));
    // By the locator the port is found.
    let first = local(&w, 0, "ls", "AA:bb:cc:dd:ee:01", "1.2.3.4").await;
    local(&w, 0, "ls", "aa:bb:cc:dd:ee:02", "1.2.3.5").await;
    wait_for!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 1", "7 aa:bb:cc:dd:ee:02 2"]));
    assert!(w.sb_rows("FDB").await.iter().all(|f| f["timestamp"] == json!(i64::MAX)));
    wait_for!(w.ucast(1).await, strings(&["ls aa:bb:cc:dd:ee:01 1.2.3.4", "ls aa:bb:cc:dd:ee:02 1.2.3.5"]));
    assert_eq!(w.ucast(0).await, Vec::<String>::new());
    // It moves to the third switch: the last who learned it is right, though the first has not aged it yet.
    let third = local(&w, 1, "ls", "aa:bb:cc:dd:ee:01", "1.2.3.6").await;
    wait_for!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 3", "7 aa:bb:cc:dd:ee:02 2"]));
    wait_for!(w.ucast(0).await, strings(&["ls aa:bb:cc:dd:ee:01 1.2.3.6"]));
    wait_for!(w.ucast(1).await, strings(&["ls aa:bb:cc:dd:ee:02 1.2.3.5"]));
    forget(&w, 0, &first).await;
    wait_for!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 3", "7 aa:bb:cc:dd:ee:02 2"]));
    // Back again.
    local(&w, 0, "ls", "aa:bb:cc:dd:ee:01", "1.2.3.4").await;
    wait_for!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 1", "7 aa:bb:cc:dd:ee:02 2"]));
    forget(&w, 1, &third).await;
    // A row that somebody deletes comes back; a configured MAC counts more than a learned one.
    w.sb(json!([{"op": "delete", "table": "FDB", "where": []}])).await;
    wait_for!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 1", "7 aa:bb:cc:dd:ee:02 2"]));
    let hv = w.chassis("hv", "vxlan", "1.2.3.9").await;
    w.port("vif", &dp, 9, "", &["aa:bb:cc:dd:ee:02"], json!({"chassis": hv})).await;
    wait_for!(w.ucast(1).await, strings(&["ls aa:bb:cc:dd:ee:01 1.2.3.4", "ls aa:bb:cc:dd:ee:02 1.2.3.9"]));
    wait_for!(
        d.warnings(),
        strings(&[
            "MAC address (aa:bb:cc:dd:ee:02) has already been known to be on logical port (vif) in the same logical datapath, so just ignore this logical port (b)"
        ])
    );
    // Detached.
    w.sb(json!([{"op": "delete", "table": "Port_Binding", "where": [["type", "==", "vtep"]]}])).await;
    wait_for!(w.fdb().await, Vec::<String>::new());
    wait_for!(w.ucast(1).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_that_switches_know_are_known_to_routers_and_other_switches() {
    let w = World::new(2).await;
    w.physical_switch(0, "tor1", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    w.physical_switch(1, "tor2", &["1.2.3.5"], &[("p0", 100, "ls")]).await;
    let (dp, router) = (w.datapath(7).await, w.datapath(8).await);
    w.vtep_port("a", &dp, 1, "tor1", "ls").await;
    w.vtep_port("b", &dp, 2, "tor2", "ls").await;
    w.port("to-lr", &dp, 3, "patch", &["router"], json!({"options": ["map", [["peer", "lr-to"]]]})).await;
    let addresses = "00:00:00:00:ff:01 10.0.0.1/24 fd00::1/64";
    w.port("lr-to", &router, 1, "patch", &[addresses], json!({"options": ["map", [["peer", "to-lr"]]]})).await;
    let d = w.start("c", &[]);
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.5"]));
    let first = local_with(&w, 0, "ls", "aa:bb:cc:dd:ee:01", "1.2.3.4", "10.0.0.11").await;
    local_with(&w, 0, "ls", "aa:bb:cc:dd:ee:02", "1.2.3.4", "FD00:0::12").await;
    // Not in the router's network, the router's own, no address: no neighbours.
    local_with(&w, 0, "ls", "aa:bb:cc:dd:ee:03", "1.2.3.4", "10.9.0.13").await;
    local_with(&w, 0, "ls", "aa:bb:cc:dd:ee:04", "1.2.3.4", "10.0.0.1").await;
    let bad = local_with(&w, 0, "ls", "aa:bb:cc:dd:ee:05", "1.2.3.4", "here").await;
    let known = async || {
        let rows = w.sb_rows("MAC_Binding").await;
        let of = |r: &common::Row| ["logical_port", "ip", "mac"].map(|c| r[c].as_str().unwrap().to_string()).join(" ");
        let mut rows: Vec<String> = rows.iter().map(of).collect();
        rows.sort();
        rows
    };
    wait_for!(known().await, strings(&["lr-to 10.0.0.11 aa:bb:cc:dd:ee:01", "lr-to fd00::12 aa:bb:cc:dd:ee:02"]));
    assert!(w.sb_rows("MAC_Binding").await.iter().all(|r| r["datapath"] == router));
    wait_for!(
        w.ucast(1).await,
        strings(&[
            "ls aa:bb:cc:dd:ee:01 1.2.3.4 10.0.0.11",
            "ls aa:bb:cc:dd:ee:02 1.2.3.4",
            "ls aa:bb:cc:dd:ee:03 1.2.3.4 10.9.0.13",
            "ls aa:bb:cc:dd:ee:04 1.2.3.4 10.0.0.1",
            "ls aa:bb:cc:dd:ee:05 1.2.3.4"
        ])
    );
    let bad = bad[1].as_str().unwrap();
    wait_for!(
        d.warnings(),
        vec![format!("{}: Ucast_Macs_Local {bad}: ipaddr (here) is no IP address; it is ignored", w.remote("vtep0"))]
    );
    // What the router found out by ARP counts more.
    w.sb(json!([{"op": "update", "table": "MAC_Binding", "where": [["ip", "==", "fd00::12"]], "row": {"mac": "00:00:00:00:00:77"}}])).await;
    // The machine moves to the other switch; then the first forgets it, then the second.
    let second = local_with(&w, 1, "ls", "aa:bb:cc:dd:ee:09", "1.2.3.5", "10.0.0.11").await;
    wait_for!(known().await, strings(&["lr-to 10.0.0.11 aa:bb:cc:dd:ee:09", "lr-to fd00::12 00:00:00:00:00:77"]));
    forget(&w, 0, &first).await;
    forget(&w, 1, &second).await;
    wait_for!(known().await, strings(&["lr-to fd00::12 00:00:00:00:00:77"]));
    let id = local_with(&w, 0, "ls", "aa:bb:cc:dd:ee:01", "1.2.3.4", "10.0.0.11").await;
    wait_for!(known().await.len(), 2);
    // A network that does not want it.
    w.sb(json!([{"op": "update", "table": "SB_Global", "where": [], "row": {"options": ["map", [["vtep-learn-addresses", "false"]]]}}])).await;
    wait_for!(known().await, strings(&["lr-to fd00::12 00:00:00:00:00:77"]));
    forget(&w, 0, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_do_not_fight_for_a_mac() {
    let w = World::new(2).await;
    w.physical_switch(0, "tor1", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    w.physical_switch(1, "tor2", &["1.2.3.5"], &[("p0", 100, "ls")]).await;
    let dp = w.datapath(7).await;
    w.vtep_port("a", &dp, 1, "tor1", "ls").await;
    w.vtep_port("b", &dp, 2, "tor2", "ls").await;
    let start = |n: usize| {
        let args =
            vec![format!("--vtep-db={}", w.remote(&format!("vtep{n}"))), format!("--ovnsb-db={}", w.remote("sb"))];
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_vtep-controller"));
        common::Daemon::start(program, &w.dir.path().join(format!("c{n}")), &args)
    };
    let (one, two) = (start(0), start(1));
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.5"]));
    wait_for!(w.mcast(1).await, strings(&["ls unknown-dst 1.2.3.4"]));
    local(&w, 0, "ls", "aa:bb:cc:dd:ee:01", "1.2.3.4").await;
    wait_for!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 1"]));
    local(&w, 1, "ls", "aa:bb:cc:dd:ee:01", "1.2.3.5").await;
    wait_for!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 2"]));
    let before: i64 = one.command("coverage/read-counter", &["vtep_operations"]).await.parse().unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let after: i64 = one.command("coverage/read-counter", &["vtep_operations"]).await.parse().unwrap();
    assert!(after - before <= 1, "{before} -> {after}");
    assert_eq!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 2"]));
    assert_eq!((one.warnings().len(), two.warnings().len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_with_one_address_is_one_endpoint() {
    let w = World::new(2).await;
    w.physical_switch(0, "left", &["1.2.3.4"], &[("p0", 100, "ls"), ("p1", 5, "only-left")]).await;
    w.physical_switch(1, "right", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    let (dp, hv) = (w.datapath(7).await, w.chassis("hv", "vxlan", "1.2.3.9").await);
    w.vtep_port("a", &dp, 1, "left", "ls").await;
    w.port("vif", &dp, 9, "", &["aa:bb:cc:dd:ee:02"], json!({"chassis": hv})).await;
    let d = w.start("c", &[]);
    for n in 0..2 {
        wait_for!(w.ucast(n).await, strings(&["ls aa:bb:cc:dd:ee:02 1.2.3.9"]));
        wait_for!(w.mcast(n).await, strings(&["ls unknown-dst 1.2.3.9"]));
    }
    // The southbound database is written apart from the switches'.
    wait_for!(w.encaps("left").await, strings(&["vxlan 1.2.3.4"]));
    assert!(w.sb_row("Chassis", "name", "right").await.is_none());
    // Both learn what is behind both.
    let on_left = local(&w, 0, "ls", "aa:bb:cc:dd:ee:01", "1.2.3.4").await;
    local(&w, 1, "ls", "aa:bb:cc:dd:ee:01", "1.2.3.4").await;
    wait_for!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 1"]));
    forget(&w, 0, &on_left).await;
    assert_eq!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:01 1"]));
    assert_eq!(w.ucast(0).await, strings(&["ls aa:bb:cc:dd:ee:02 1.2.3.9"]));
    assert_eq!(d.warnings(), Vec::<String>::new());
    wait_for!(
        d.command("debug/problems", &[]).await,
        "Physical_Switch (right) has a tunnel IP of Physical_Switch (left): both are taken as one tunnel endpoint, chassis (left)"
    );
}

/// The published schema without what came after its version 1.3.
fn old_schema() -> DatabaseSchema {
    let mut json = vtep::Database::schema().to_json();
    json["version"] = json!("1.3.0");
    let tables = json["tables"].as_object_mut().unwrap();
    tables.remove("ACL");
    tables.remove("ACL_entry");
    let mut drop = |table: &str, columns: &[&str]| {
        for c in columns {
            tables[table]["columns"].as_object_mut().unwrap().remove(*c);
        }
    };
    drop("Logical_Switch", &["replication_mode", "other_config"]);
    drop("Logical_Router", &["acl_binding", "other_config", "LR_fault_status"]);
    drop("Physical_Port", &["acl_bindings", "other_config", "port_fault_status"]);
    drop("Physical_Switch", &["other_config", "switch_fault_status"]);
    drop("Global", &["other_config"]);
    DatabaseSchema::from_json(&json).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_of_schema_1_3_gets_what_it_knows() {
    let w = World::with_schema(1, &old_schema()).await;
    w.physical_switch(0, "tor", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    let dp = w.datapath(7).await;
    let hv = w.chassis("hv", "vxlan", "1.2.3.9").await;
    let gw = w.chassis("gw", "vxlan", "1.2.3.10").await;
    w.sb_set("Chassis", &gw, json!({"other_config": ["map", [["ovn-cms-options", "foo, enable-chassis-as-gw"]]]}))
        .await;
    let port = w.vtep_port("a", &dp, 1, "tor", "ls").await;
    w.port("vif", &dp, 9, "", &["aa:bb:cc:dd:ee:02 10.0.0.2"], json!({"chassis": hv})).await;
    let d = w.start("c", &[]);
    wait_for!(w.ucast(0).await, strings(&["ls aa:bb:cc:dd:ee:02 1.2.3.9 10.0.0.2"]));
    wait_for!(w.keys(0).await, vec![("ls".to_string(), Some(7))]);
    assert_eq!(d.warnings(), Vec::<String>::new());
    let said = "hardware_vtep schema 1.3.0: Logical_Switch has no column replication_mode";
    assert_eq!(d.log().matches(said).count(), 1, "{}", d.log());
    // What cannot be configured in the switch is configured northbound.
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.9"]));
    let options = |more: &[(&str, &str)]| {
        let mut all = vec![("vtep-physical-switch", "tor"), ("vtep-logical-switch", "ls")];
        all.extend(more);
        json!({"options": ["map", all]})
    };
    w.sb_set(
        "Port_Binding",
        &port,
        options(&[("vtep-replication-mode", "service_node"), ("vtep-arp-suppression", "false")]),
    )
    .await;
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.10"]));
    wait_for!(w.ucast(0).await, strings(&["ls aa:bb:cc:dd:ee:02 1.2.3.9"]));
    w.sb_set(
        "Port_Binding",
        &port,
        options(&[("vtep-replication-mode", "service_node"), ("vtep-service-nodes", "hv, 9.8.7.6")]),
    )
    .await;
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.9,9.8.7.6"]));
    w.sb_set("Port_Binding", &port, options(&[("vtep-replication-mode", "best")])).await;
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.9"]));
    wait_for!(
        d.warnings(),
        strings(&[
            "logical switch (ls) on physical switch (tor): replication-mode=best: expected source_node or service_node; source_node is used"
        ])
    );
}

/// A tunnel of the first physical switch, as the switch makes it.
async fn tunnel(w: &World, remote: &str) -> Value {
    let known = w.tor_rows(0, "Physical_Locator").await.into_iter().find(|r| r["dst_ip"] == json!(remote)).unwrap();
    let name = format!("l{}", w.tor_rows(0, "Tunnel").await.len());
    let results = w
        .tor(0, json!([
            {"op": "insert", "table": "Physical_Locator", "uuid-name": "me",
             "row": {"encapsulation_type": "vxlan_over_ipv4", "dst_ip": "1.2.3.4", "tunnel_key": name.len() as i64 + w.tor_rows(0, "Tunnel").await.len() as i64}},
            {"op": "insert", "table": "Tunnel", "uuid-name": "t", "row": {"local": ["named-uuid", "me"], "remote": known["_uuid"]}},
            {"op": "mutate", "table": "Physical_Switch", "where": [], "mutations": [["tunnels", "insert", ["named-uuid", "t"]]]},
        ]))
        .await;
    results[1]["uuid"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn bfd_is_configured_and_heard() {
    let w = World::new(1).await;
    w.physical_switch(0, "tor", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    let dp = w.datapath(7).await;
    w.vtep_port("a", &dp, 1, "tor", "ls").await;
    for n in 0..3 {
        let c = w.chassis(&format!("hv{n}"), "vxlan", &format!("1.2.3.1{n}")).await;
        w.port(&format!("vif{n}"), &dp, 10 + n, "", &[&format!("00:00:00:00:00:{n:02x}")], json!({"chassis": c})).await;
    }
    let mut d = w.start("c", &[]);
    let all = strings(&["ls unknown-dst 1.2.3.10,1.2.3.11,1.2.3.12"]);
    wait_for!(w.mcast(0).await, all.clone());
    let (t0, t1) = (tunnel(&w, "1.2.3.10").await, tunnel(&w, "1.2.3.11").await);
    let status = async |t: &Value, pairs: &[(&str, &str)]| {
        w.tor_set(0, "Tunnel", t, json!({"bfd_status": ["map", pairs]})).await;
    };
    // Not ours to enable: nothing is written, a session that is down concerns nobody.
    status(&t0, &[("enabled", "true"), ("state", "up"), ("forwarding", "true")]).await;
    status(&t1, &[("enabled", "true"), ("state", "down"), ("forwarding", "false")]).await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(w.mcast(0).await, all);
    assert!(w.tor_rows(0, "Tunnel").await.iter().all(|t| t["bfd_params"] == json!(["map", []])));
    let ps = w.tor_id(0, "Physical_Switch", "name", "tor").await;
    w.tor_set(0, "Physical_Switch", &ps, json!({"other_config": ["map", [["ovn-bfd", "true"], ["ovn-bfd-min-rx", "300"], ["ovn-bfd-dst-ip", "169.254.1.1"]]]})).await;
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.10,1.2.3.12"]));
    let params = async || w.tor_rows(0, "Tunnel").await.iter().map(|t| t["bfd_params"].clone()).collect::<Vec<_>>();
    wait_for!(params().await, vec![json!(["map", [["enable", "true"], ["min_rx", "300"]]]); 2]);
    assert!(
        w.tor_rows(0, "Tunnel")
            .await
            .iter()
            .all(|t| t["bfd_config_remote"] == json!(["map", [["bfd_dst_ip", "169.254.1.1"]]]))
    );
    assert!(
        d.warnings()[0].ends_with("to 1.2.3.11 is down (); it gets no packets that are for many"),
        "{:?}",
        d.warnings()
    );
    // All down: then it is the switch that is cut off.
    status(&t0, &[("enabled", "true"), ("state", "down"), ("forwarding", "false")]).await;
    wait_for!(w.mcast(0).await, all.clone());
    status(&t0, &[("enabled", "true"), ("state", "up")]).await;
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.10,1.2.3.12"]));
    // Service nodes move when they die.
    let options = |nodes: &str| json!({"options": ["map", [["vtep-physical-switch", "tor"], ["vtep-logical-switch", "ls"], ["vtep-replication-mode", "service_node"], ["vtep-service-nodes", nodes]]]});
    let port = w.sb_id("Port_Binding", "logical_port", "a").await;
    w.sb_set("Port_Binding", &port, options("hv0,hv1")).await;
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.10"]));
    status(&t1, &[("enabled", "true"), ("state", "up"), ("forwarding", "true")]).await;
    status(&t0, &[("enabled", "true"), ("state", "down"), ("forwarding", "false")]).await;
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.11"]));
    wait_for!(w.tor_rows(0, "Logical_Switch").await[0]["replication_mode"].clone(), json!("service_node"));
    // A service node that is no chassis.
    w.sb_set("Port_Binding", &port, options("9.8.7.6,hv1")).await;
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.11,9.8.7.6"]));
    let t2 = tunnel(&w, "9.8.7.6").await;
    status(&t2, &[("enabled", "true"), ("state", "down"), ("forwarding", "false")]).await;
    wait_for!(w.mcast(0).await, strings(&["ls unknown-dst 1.2.3.11"]));
    wait_for!(params().await, vec![json!(["map", [["enable", "true"], ["min_rx", "300"]]]); 3]);
    d.exit(&[]).await;
    assert!(params().await.iter().all(|p| *p == json!(["map", [["enable", "false"], ["min_rx", "300"]]])));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_are_named_and_disturb_nothing() {
    let w = World::new(2).await;
    w.physical_switch(0, "good", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    w.physical_switch(0, "odd", &["fd00::1", "1.2.3.9"], &[]).await;
    w.physical_switch(1, "good", &["1.2.3.5"], &[("p0", 100, "ls")]).await;
    w.physical_switch(0, "hv", &["1.2.3.6"], &[]).await;
    w.physical_switch(0, "none1", &[], &[]).await;
    w.physical_switch(0, "none2", &[], &[]).await;
    let dp = w.datapath(7).await;
    let hv = w.chassis("hv", "vxlan", "1.2.3.9").await;
    let six = w.chassis("six", "vxlan", "fd00::9").await;
    let incomplete = json!({"options": ["map", [["vtep-physical-switch", "good"]]]});
    w.port("halfway", &dp, 8, "vtep", &["unknown"], incomplete).await;
    w.vtep_port("a", &dp, 1, "good", "ls").await;
    w.port("vif", &dp, 9, "", &["aa:bb:cc:dd:ee:02", "nonsense", "aa:bb:cc:dd:ee"], json!({"chassis": hv})).await;
    w.port("vif6", &dp, 10, "", &["aa:bb:cc:dd:ee:03"], json!({"chassis": six})).await;
    let d = w.start("c", &[]);
    wait_for!(w.ucast(0).await, strings(&["ls aa:bb:cc:dd:ee:02 1.2.3.9"]));
    assert_eq!(w.ucast(1).await, Vec::<String>::new());
    let bad = local(&w, 0, "ls", "not a mac", "1.2.3.4").await;
    let blind = local(&w, 0, "ls", "aa:bb:cc:dd:ee:07", "").await;
    wait_for!(w.fdb().await, strings(&["7 aa:bb:cc:dd:ee:07 1"]));
    let ps = w.tor_id(0, "Physical_Switch", "name", "good").await;
    let ls = w.tor_id(0, "Logical_Switch", "name", "ls").await;
    w.tor(0, json!([
        {"op": "insert", "table": "Physical_Port", "uuid-name": "p", "row": {"name": "p0", "vlan_bindings": ["map", [[100, ls]]]}},
        {"op": "mutate", "table": "Physical_Switch", "where": [["_uuid", "==", ps]], "mutations": [["ports", "insert", ["named-uuid", "p"]]]},
        {"op": "update", "table": "Physical_Switch", "where": [["_uuid", "==", ps]], "row": {"switch_fault_status": "mac_table_exhaustion"}},
    ])).await;
    let expected = [
        "Physical_Switch (good) has the name of one at".to_string(),
        "Physical_Switch (odd): tunnel IP (fd00::1) is no IPv4 address".to_string(),
        "Physical_Switch (odd): tunnel IP (1.2.3.9) is that of chassis (hv)".to_string(),
        "Physical_Switch (hv) has the name of a chassis that is no VTEP".to_string(),
        "Physical_Switch (none2) has no tunnel IP, as chassis (none1) has none".to_string(),
        "logical port (halfway) of type vtep has no options".to_string(),
        "of chassis (six) has no usable address (fd00::9)".to_string(),
        format!("Ucast_Macs_Local {}: (not a mac) is no MAC address", bad[1].as_str().unwrap()),
        format!("of Ucast_Macs_Local {} has no usable address", blind[1].as_str().unwrap()),
        "VLAN 100 of port p0 of Physical_Switch good is bound twice".to_string(),
        "Physical_Switch good reports the fault mac_table_exhaustion".to_string(),
    ];
    for text in expected {
        let of = |text: &str| d.warnings().into_iter().filter(|w| w.contains(text)).count();
        wait_for!((text.clone(), of(&text), d.warnings()), (text.clone(), 1, d.warnings()));
    }
    assert_eq!(w.ucast(0).await, strings(&["ls aa:bb:cc:dd:ee:02 1.2.3.9"]));
    assert_eq!(w.bound("a").await, "good");
}

/// People make a port of type `vtep` in one step and give it its options in the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_whose_options_come_in_a_moment_is_no_fault() {
    let w = World::new(1).await;
    w.physical_switch(0, "tor", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    let dp = w.datapath(7).await;
    let d = w.start("c", &[]);
    w.port("a", &dp, 1, "vtep", &[], json!({})).await;
    w.port("never", &dp, 2, "vtep", &[], json!({})).await;
    // Both are seen without options before one of them gets these.
    wait_for!(d.command("debug/problems", &[]).await.matches("has no options").count(), 2);
    let options = json!({"options": ["map", [["vtep-physical-switch", "tor"], ["vtep-logical-switch", "ls"]]]});
    let port = w.sb_id("Port_Binding", "logical_port", "a").await;
    w.sb_set("Port_Binding", &port, options).await;
    wait_for!(w.bound("a").await, "tor".to_string());
    // The other one is named when it stays so.
    wait_for!(d.warnings().len(), 1);
    assert!(d.warnings()[0].contains("logical port (never) of type vtep has no options"), "{:?}", d.warnings());
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_rows_are_named_and_the_others_go_in() {
    // A switch that takes each MAC once only, and no long addresses.
    let mut json = vtep::Database::schema().to_json();
    json["tables"]["Ucast_Macs_Remote"]["indexes"] = json!([["MAC"]]);
    json["tables"]["Ucast_Macs_Remote"]["columns"]["ipaddr"] =
        json!({"type": {"key": {"type": "string", "maxLength": 8}}});
    let w = World::with_schema(1, &DatabaseSchema::from_json(&json).unwrap()).await;
    w.physical_switch(0, "tor", &["1.2.3.4"], &[("p0", 1, "ls1"), ("p0", 2, "ls2")]).await;
    let hv = w.chassis("hv", "vxlan", "1.2.3.9").await;
    for key in [1, 2] {
        let dp = w.datapath(key).await;
        w.vtep_port(&format!("v{key}"), &dp, 1, "tor", &format!("ls{key}")).await;
        let macs: Vec<String> =
            (0..40).map(|n| format!("02:00:00:00:0{key}:{n:02x}")).chain(["02:00:00:00:00:ff".into()]).collect();
        for (n, mac) in macs.iter().enumerate() {
            w.port(&format!("p{key}-{n}"), &dp, 10 + n as i64, "", &[mac], json!({"chassis": hv})).await;
        }
        w.port(
            &format!("long{key}"),
            &dp,
            9,
            "",
            &[&format!("02:00:00:00:0{key}:99 100.100.100.{key}")],
            json!({"chassis": hv}),
        )
        .await;
    }
    let d = w.start("c", &[]);
    // 80 of the first kind, and the one MAC once.
    wait_for!(w.ucast(0).await.len(), 81);
    wait_for!(w.mcast(0).await.len(), 2);
    wait_for!(d.warnings().len(), 3);
    let named = |text: &str| d.warnings().iter().filter(|w| w.contains(text)).count();
    assert_eq!(named("Ucast_Macs_Remote of MAC (02:00:00:00:00:ff) in Logical_Switch"), 1, "{:#?}", d.warnings());
    assert_eq!((named("MAC (02:00:00:00:01:99)"), named("MAC (02:00:00:00:02:99)")), (1, 1));
    let refused = d.command("debug/problems", &[]).await;
    assert_eq!(refused.lines().filter(|l| l.contains("is refused: constraint violation")).count(), 3, "{refused}");
    assert_eq!(d.command("coverage/read-counter", &["vtep_rows_refused"]).await, "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_and_traffic_are_metrics() {
    let w = World::new(1).await;
    w.physical_switch(0, "tor", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    let d = w.start("c", &[]);
    let show = async || d.command("metrics/show", &[]).await;
    let base = format!("database=\"{}\"", w.remote("vtep0"));
    let connected = format!("isthmus_vtep_active{{{base}}} 1");
    wait_for!(show().await.contains(&connected), true);
    let switch = format!("{base},switch=\"tor\"");
    assert!(!show().await.contains("isthmus_vtep_switch_fault{"));
    w.tor(0, json!([
        {"op": "insert", "table": "Logical_Binding_Stats", "uuid-name": "s", "row":
            {"packets_from_local": 3, "bytes_from_local": 180, "packets_to_local": 5, "bytes_to_local": 700}},
        {"op": "update", "table": "Physical_Port", "where": [["name", "==", "p0"]],
            "row": {"vlan_stats": ["map", [[100, ["named-uuid", "s"]]]], "port_fault_status": "invalid_ACL_binding"}},
        {"op": "update", "table": "Physical_Switch", "where": [], "row": {"switch_fault_status": "mac_table_exhaustion"}},
    ])).await;
    let fault = format!("isthmus_vtep_switch_fault{{{switch},fault=\"mac_table_exhaustion\"}} 1");
    wait_for!(show().await.contains(&fault), true);
    // Warnings wait for the southbound database.
    wait_for!(show().await.contains("\nisthmus_vtep_problems 2\n"), true);
    let text = show().await;
    let port = format!("{switch},port=\"p0\"");
    for line in [
        format!("isthmus_vtep_port_fault{{{port},fault=\"invalid_ACL_binding\"}} 1"),
        format!("isthmus_vtep_binding_packets_total{{{port},vlan=\"100\",logical_switch=\"ls\",direction=\"from\"}} 3"),
        format!("isthmus_vtep_binding_bytes_total{{{port},vlan=\"100\",logical_switch=\"ls\",direction=\"to\"}} 700"),
        "isthmus_vtep_problems 2".to_string(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}{text}");
    }
    w.tor(
        0,
        json!([{"op": "update", "table": "Physical_Switch", "where": [], "row": {"switch_fault_status": ["set", []]}}]),
    )
    .await;
    wait_for!(show().await.contains(&fault), false);
}
