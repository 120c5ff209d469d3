//! The life cycle of a VTEP gateway (ovn-architecture(7)), steps 1 to 8, by the program itself.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Row, World};
use serde_json::{Value, json};
use std::time::Duration;

const GONE: &str = "Chassis for VTEP physical switch (br-vtep) disappears, maybe deleted by ovn-sbctl, adding it back";

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_string()).collect()
}

async fn logical(w: &World, chassis: &str) -> Value {
    w.sb_row("Chassis", "name", chassis).await.map_or(Value::Null, |c| c["vtep_logical_switches"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_becomes_a_chassis() {
    let w = World::new(1).await;
    w.physical_switch(0, "br-vtep", &["1.2.3.4", "1.2.3.5"], &[("p0", 100, "lswitch0"), ("p1", 300, "lswitch0")]).await;
    let d = w.start("c", &[]);
    wait_for!(w.encaps("br-vtep").await, strings(&["vxlan 1.2.3.4", "vxlan 1.2.3.5"]));
    wait_for!(logical(&w, "br-vtep").await, json!("lswitch0"));
    let chassis = w.sb_row("Chassis", "name", "br-vtep").await.unwrap();
    assert_eq!(chassis["other_config"], json!(["map", [["is-vtep", "true"]]]));
    let encaps = w.sb_rows("Encap").await;
    assert!(
        encaps
            .iter()
            .all(|e| e["options"] == json!(["map", [["csum", "false"]]]) && e["chassis_name"] == json!("br-vtep"))
    );
    // What others change of our columns is mended; their keys stay.
    w.sb_set(
        "Chassis",
        &chassis["_uuid"],
        json!({"other_config": ["map", [["theirs", "1"]]], "vtep_logical_switches": "foo"}),
    )
    .await;
    wait_for!(logical(&w, "br-vtep").await, json!("lswitch0"));
    let config = async || w.sb_row("Chassis", "name", "br-vtep").await.unwrap()["other_config"].clone();
    wait_for!(config().await, json!(["map", [["is-vtep", "true"], ["theirs", "1"]]]));
    // Deleted, it comes back, with one warning.
    w.sb(json!([{"op": "delete", "table": "Chassis", "where": []}])).await;
    wait_for!(w.encaps("br-vtep").await, strings(&["vxlan 1.2.3.4", "vxlan 1.2.3.5"]));
    wait_for!(d.warnings(), strings(&[GONE]));
    // Another address.
    let ps = w.tor_id(0, "Physical_Switch", "name", "br-vtep").await;
    w.tor_set(0, "Physical_Switch", &ps, json!({"tunnel_ips": "1.2.3.6"})).await;
    wait_for!(w.encaps("br-vtep").await, strings(&["vxlan 1.2.3.6"]));
    wait_for!(w.sb_rows("Encap").await.len(), 1);
    // Unregistered.
    w.tor(0, json!([{"op": "update", "table": "Global", "where": [], "row": {"switches": ["set", []]}}])).await;
    wait_for!(w.sb_rows("Chassis").await.len(), 0);
    assert_eq!(d.warnings(), strings(&[GONE]));
    assert_eq!(d.log().matches("OVN internal version is : [26.03.90-21.11.0-82.15]").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_bound_and_conflicts_are_told() {
    let w = World::new(1).await;
    w.physical_switch(0, "br-vtep", &["1.2.3.4"], &[("p0", 100, "lswitch0"), ("p0", 200, "lswitch1")]).await;
    w.physical_switch(0, "br-two", &["1.2.3.5"], &[("p0", 100, "lswitch0")]).await;
    let (test, void) = (w.datapath(7).await, w.datapath(8).await);
    let d = w.start("c", &[]);
    w.vtep_port("b0", &test, 1, "br-vtep", "lswitch0").await;
    wait_for!(w.bound("b0").await, "br-vtep");
    wait_for!(w.sb_row("Port_Binding", "logical_port", "b0").await.unwrap()["up"].clone(), json!(true));
    wait_for!(w.keys(0).await, vec![("lswitch0".to_string(), Some(7)), ("lswitch1".to_string(), None)]);
    assert_eq!(
        w.tor_rows(0, "Logical_Switch").await.iter().filter(|r| r["replication_mode"] == json!("source_node")).count(),
        1
    );
    // A second port for the same logical switch on the same chassis.
    w.vtep_port("a0-dup", &test, 2, "br-vtep", "lswitch0").await;
    wait_for!(
        d.warnings(),
        strings(&[
            "logical switch (lswitch0), on vtep gateway chassis (br-vtep) has already been associated with logical port (b0), ignore logical port (a0-dup)"
        ])
    );
    assert_eq!(w.bound("a0-dup").await, "");
    // The same logical switch at another datapath, by another physical switch.
    let bad = w.vtep_port("bad", &void, 1, "br-two", "lswitch0").await;
    wait_for!(d.warnings().last().cloned(), Some("logical switch (lswitch0), on vtep gateway chassis (br-two) has already been associated with logical datapath (with tunnel key 7), ignore logical port (bad) which belongs to logical datapath (with tunnel key 8)".to_string()));
    assert_eq!(w.bound("bad").await, "");
    // At the same datapath it is right.
    w.sb(json!([{"op": "delete", "table": "Port_Binding", "where": [["_uuid", "==", bad]]}])).await;
    w.vtep_port("good", &test, 3, "br-two", "lswitch0").await;
    wait_for!(w.bound("good").await, "br-two");
    // Somebody unbinds it.
    let good = w.sb_id("Port_Binding", "logical_port", "good").await;
    w.sb_set("Port_Binding", &good, json!({"chassis": ["set", []]})).await;
    wait_for!(w.bound("good").await, "br-two");
    // A logical switch that is nowhere.
    w.vtep_port("lost", &test, 4, "br-vtep", "nowhere").await;
    wait_for!(d.warnings().last().cloned(), Some("logical port (lost) names logical switch (nowhere) on physical switch (br-vtep) and is not bound: there is no such logical switch".to_string()));
    // Not of type vtep any more: unbound, the key is taken back; the duplicate takes its place.
    let b0 = w.sb_id("Port_Binding", "logical_port", "b0").await;
    w.sb_set("Port_Binding", &b0, json!({"type": ""})).await;
    wait_for!(w.bound("a0-dup").await, "br-vtep");
    wait_for!(w.bound("b0").await, "");
    w.sb(json!([{"op": "delete", "table": "Port_Binding", "where": []}])).await;
    wait_for!(w.keys(0).await, vec![("lswitch0".to_string(), Some(0)), ("lswitch1".to_string(), None)]);
    assert_eq!(d.warnings().len(), 3, "{:#?}", d.warnings());
}

/// A world with two datapaths, of which the first is attached.
async fn network() -> (World, Value, Value) {
    let w = World::new(1).await;
    w.physical_switch(0, "br-vtep", &["1.2.3.4"], &[("p0", 100, "lswitch0"), ("p0", 200, "lswitch1")]).await;
    let (test, void) = (w.datapath(7).await, w.datapath(8).await);
    w.vtep_port("b0", &test, 1, "br-vtep", "lswitch0").await;
    (w, test, void)
}

#[tokio::test(flavor = "multi_thread")]
async fn macs_go_to_the_switch() {
    let (w, test, void) = network().await;
    let ch0 = w.chassis("ch0", "vxlan", "1.2.3.5").await;
    let ch1 = w.chassis("ch1", "vxlan", "1.2.3.6").await;
    let ch2 = w.chassis("ch2", "geneve", "1.2.3.7").await;
    let vif0 = w.port("vif0", &test, 2, "", &["f0:ab:cd:ef:01:02"], json!({"chassis": ch0})).await;
    w.port("vif1", &void, 2, "", &["f0:ab:cd:ef:01:02"], json!({"chassis": ch1})).await;
    w.port("ext", &test, 3, "external", &["aa:bb:cc:dd:01:02"], json!({"chassis": ch1})).await;
    let d = w.start("c", &[]);
    wait_for!(w.ucast(0).await, strings(&["lswitch0 f0:ab:cd:ef:01:02 1.2.3.5"]));
    wait_for!(w.mcast(0).await, strings(&["lswitch0 unknown-dst 1.2.3.5"]));
    // Two MACs, one with an address.
    w.sb_set(
        "Port_Binding",
        &vif0,
        json!({"mac": ["set", ["f0:ab:cd:ef:01:04 fd00::1 192.168.0.1", "f0:ab:cd:ef:01:05", "unknown"]]}),
    )
    .await;
    wait_for!(
        w.ucast(0).await,
        strings(&["lswitch0 f0:ab:cd:ef:01:04 1.2.3.5 192.168.0.1", "lswitch0 f0:ab:cd:ef:01:05 1.2.3.5"])
    );
    // A move keeps the rows.
    let before = w.tor_rows(0, "Ucast_Macs_Remote").await;
    w.sb_set("Port_Binding", &vif0, json!({"chassis": ch1})).await;
    wait_for!(
        w.ucast(0).await,
        strings(&["lswitch0 f0:ab:cd:ef:01:04 1.2.3.6 192.168.0.1", "lswitch0 f0:ab:cd:ef:01:05 1.2.3.6"])
    );
    wait_for!(w.mcast(0).await, strings(&["lswitch0 unknown-dst 1.2.3.6"]));
    let ids = |rows: &[Row]| {
        let mut ids: Vec<String> = rows.iter().map(|r| r["_uuid"].to_string()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&before), ids(&w.tor_rows(0, "Ucast_Macs_Remote").await));
    // A chassis that does not speak VXLAN is no place.
    w.sb_set("Port_Binding", &vif0, json!({"chassis": ch2})).await;
    wait_for!(w.ucast(0).await, Vec::<String>::new());
    wait_for!(w.mcast(0).await, Vec::<String>::new());
    wait_for!(d.log().contains("|INFO|VTEP tunnel encap on chassis (ch2) not found"), true);
    w.sb_set("Port_Binding", &vif0, json!({"chassis": ch0, "mac": "f0:ab:cd:ef:01:02"})).await;
    wait_for!(w.ucast(0).await, strings(&["lswitch0 f0:ab:cd:ef:01:02 1.2.3.5"]));
    assert_eq!(d.warnings(), Vec::<String>::new());
    // The same MAC twice.
    let twice = w.port("vif9", &test, 9, "", &["F0:AB:CD:EF:01:02"], json!({"chassis": ch1})).await;
    let text = "MAC address (f0:ab:cd:ef:01:02) has already been known to be on logical port (vif0) in the same logical datapath, so just ignore this logical port (vif9)";
    wait_for!(d.warnings(), strings(&[text]));
    wait_for!(w.mcast(0).await, strings(&["lswitch0 unknown-dst 1.2.3.5,1.2.3.6"]));
    assert_eq!(w.ucast(0).await, strings(&["lswitch0 f0:ab:cd:ef:01:02 1.2.3.5"]));
    w.sb(json!([{"op": "delete", "table": "Port_Binding", "where": [["_uuid", "==", twice]]}])).await;
    // The other datapath is attached to another logical switch: the same MAC is there too.
    w.vtep_port("b1", &void, 1, "br-vtep", "lswitch1").await;
    wait_for!(w.ucast(0).await, strings(&["lswitch0 f0:ab:cd:ef:01:02 1.2.3.5", "lswitch1 f0:ab:cd:ef:01:02 1.2.3.6"]));
    // What others write into rows of ours is mended, what they add there goes.
    let ls0 = w.tor_id(0, "Logical_Switch", "name", "lswitch0").await;
    let pl = w.tor_id(0, "Physical_Locator", "dst_ip", "1.2.3.6").await;
    w.tor(0, json!([
        {"op": "insert", "table": "Ucast_Macs_Remote", "row": {"MAC": "00:00:00:00:00:09", "logical_switch": ls0, "locator": pl}},
        {"op": "update", "table": "Ucast_Macs_Remote", "where": [["logical_switch", "==", ls0]], "row": {"locator": pl, "ipaddr": "9.9.9.9"}},
        {"op": "delete", "table": "Mcast_Macs_Remote", "where": [["logical_switch", "==", ls0]]},
    ])).await;
    wait_for!(w.ucast(0).await, strings(&["lswitch0 f0:ab:cd:ef:01:02 1.2.3.5", "lswitch1 f0:ab:cd:ef:01:02 1.2.3.6"]));
    wait_for!(w.mcast(0).await, strings(&["lswitch0 unknown-dst 1.2.3.5", "lswitch1 unknown-dst 1.2.3.6"]));
    assert_eq!(d.warnings(), strings(&[text]));
}

#[tokio::test(flavor = "multi_thread")]
async fn routers_are_where_their_gateway_is() {
    let (w, test, _) = network().await;
    let router = w.datapath(20).await;
    let gw = w.chassis("gw", "vxlan", "1.2.3.9").await;
    let gw2 = w.chassis("gw2", "vxlan", "1.2.3.10").await;
    let options = |pairs: &[(&str, &str)]| json!({"options": ["map", pairs]});
    w.port("ls-lr", &test, 5, "patch", &["router"], options(&[("peer", "lr-ls")])).await;
    w.port("lr-ls", &router, 1, "patch", &["00:00:00:00:ff:01 10.0.0.1/24"], options(&[("peer", "ls-lr")])).await;
    let d = w.start("c", &[]);
    wait_for!(w.keys(0).await[0].1, Some(7));
    let cr = w
        .port(
            "cr-lr-ls",
            &router,
            2,
            "chassisredirect",
            &["00:00:00:00:ff:01 10.0.0.1/24"],
            options(&[("distributed-port", "lr-ls")]),
        )
        .await;
    w.sb_set("Port_Binding", &cr, json!({"chassis": gw})).await;
    wait_for!(w.ucast(0).await, strings(&["lswitch0 00:00:00:00:ff:01 1.2.3.9 10.0.0.1"]));
    wait_for!(w.mcast(0).await, strings(&["lswitch0 unknown-dst 1.2.3.9"]));
    w.sb_set("Port_Binding", &cr, json!({"chassis": gw2})).await;
    wait_for!(w.ucast(0).await, strings(&["lswitch0 00:00:00:00:ff:01 1.2.3.10 10.0.0.1"]));
    w.sb(json!([{"op": "delete", "table": "Port_Binding", "where": [["_uuid", "==", cr]]}])).await;
    wait_for!(w.ucast(0).await, Vec::<String>::new());
    // A gateway router's port.
    let ls = w.sb_id("Port_Binding", "logical_port", "ls-lr").await;
    w.sb_set("Port_Binding", &ls, json!({"type": "l3gateway", "chassis": gw})).await;
    wait_for!(w.ucast(0).await, strings(&["lswitch0 00:00:00:00:ff:01 1.2.3.9 10.0.0.1"]));
    assert_eq!(d.warnings(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_have_rows_of_their_own() {
    let (w, test, _) = network().await;
    let mut chassis = Vec::new();
    for n in 0..4 {
        let c = w.chassis(&format!("ch{n}"), "vxlan", &format!("1.2.3.{}", 10 + n)).await;
        w.port(&format!("vif{n}"), &test, 10 + n, "", &[&format!("00:00:00:00:00:{n:02x}")], json!({"chassis": c}))
            .await;
        chassis.push(c);
    }
    let igmp = async |address: &str, c: &Value| {
        let row = json!({"address": address, "datapath": test, "chassis": c});
        w.sb(json!([{"op": "insert", "table": "IGMP_Group", "row": row}])).await;
    };
    igmp("239.1.2.3", &chassis[0]).await;
    igmp("238.129.2.3", &chassis[1]).await;
    igmp("ff0e::1234:5678", &chassis[0]).await;
    let d = w.start("c", &[]);
    let all = "lswitch0 unknown-dst 1.2.3.10,1.2.3.11,1.2.3.12,1.2.3.13";
    wait_for!(
        w.mcast(0).await,
        strings(&["lswitch0 01:00:5e:01:02:03 1.2.3.10,1.2.3.11", "lswitch0 33:33:12:34:56:78 1.2.3.10", all])
    );
    // A multicast router hears all of them; so does a port that wants everything.
    igmp("mrouters", &chassis[3]).await;
    wait_for!(
        w.mcast(0).await,
        strings(&[
            "lswitch0 01:00:5e:01:02:03 1.2.3.10,1.2.3.11,1.2.3.13",
            "lswitch0 33:33:12:34:56:78 1.2.3.10,1.2.3.13",
            all
        ])
    );
    let vif2 = w.sb_id("Port_Binding", "logical_port", "vif2").await;
    w.sb(json!([{"op": "insert", "table": "Multicast_Group", "row": {"datapath": test, "name": "_MC_static", "tunnel_key": 32771, "ports": vif2}}])).await;
    wait_for!(w.mcast(0).await, strings(&["lswitch0 33:33:12:34:56:78 1.2.3.10,1.2.3.12,1.2.3.13", all]));
    w.sb(json!([{"op": "update", "table": "SB_Global", "where": [], "row": {"options": ["map", [["vtep-multicast-groups", "false"]]]}}])).await;
    wait_for!(w.mcast(0).await, strings(&[all]));
    assert_eq!(d.warnings(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_cleans_and_restarting_does_not() {
    let (w, test, _) = network().await;
    let ch0 = w.chassis("ch0", "vxlan", "1.2.3.5").await;
    w.port("vif0", &test, 2, "", &["f0:ab:cd:ef:01:02"], json!({"chassis": ch0})).await;
    let state = async || {
        let mut all = Vec::new();
        for t in
            ["Logical_Switch", "Ucast_Macs_Remote", "Mcast_Macs_Remote", "Physical_Locator", "Physical_Locator_Set"]
        {
            all.extend(w.tor_rows(0, t).await);
        }
        for t in ["Chassis", "Encap", "Port_Binding", "FDB"] {
            all.extend(w.sb_rows(t).await);
        }
        all
    };
    let mut d = w.start("c", &[]);
    let macs = strings(&["lswitch0 f0:ab:cd:ef:01:02 1.2.3.5"]);
    wait_for!(w.ucast(0).await, macs.clone());
    wait_for!(w.sb_row("Port_Binding", "logical_port", "b0").await.unwrap()["up"].clone(), json!(true));
    let before = state().await;
    d.exit(&["--restart"]).await;
    assert_eq!(before, state().await);
    for (name, signal) in [("c2", "KILL"), ("c2term", "TERM"), ("c2int", "INT"), ("c2hup", "HUP")] {
        let mut d = w.start(name, &[]);
        wait_for!(d.log().contains("lock acquired"), true);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(before, state().await, "a new one finds everything right");
        d.signal(signal).await;
        assert_eq!(before, state().await, "{signal}");
    }
    // While there is no controller the logical switch is detached and another switch's rows appear.
    w.sb(json!([{"op": "delete", "table": "Port_Binding", "where": [["logical_port", "==", "b0"]]}])).await;
    let ls1 = w.tor_id(0, "Logical_Switch", "name", "lswitch1").await;
    w.tor(0, json!([
        {"op": "insert", "table": "Physical_Locator", "uuid-name": "l", "row": {"encapsulation_type": "vxlan_over_ipv4", "dst_ip": "9.9.9.9"}},
        {"op": "insert", "table": "Ucast_Macs_Remote", "row": {"MAC": "00:00:00:00:00:99", "logical_switch": ls1, "locator": ["named-uuid", "l"]}},
        {"op": "update", "table": "Logical_Switch", "where": [["_uuid", "==", ls1]], "row": {"tunnel_key": 4242}},
    ])).await;
    let mut d = w.start("c3", &[]);
    let foreign = strings(&["lswitch1 00:00:00:00:00:99 9.9.9.9"]);
    wait_for!(w.ucast(0).await, foreign.clone());
    wait_for!(w.keys(0).await, vec![("lswitch0".to_string(), Some(0)), ("lswitch1".to_string(), Some(4242))]);
    wait_for!(w.mcast(0).await, Vec::<String>::new());
    w.vtep_port("b0", &test, 1, "br-vtep", "lswitch0").await;
    wait_for!(w.ucast(0).await.len(), 2);
    wait_for!(w.bound("b0").await, "br-vtep");
    d.exit(&[]).await;
    assert_eq!(w.ucast(0).await, foreign);
    assert_eq!(w.keys(0).await, vec![("lswitch0".to_string(), None), ("lswitch1".to_string(), Some(4242))]);
    assert_eq!(w.mcast(0).await, Vec::<String>::new());
    assert_eq!(w.sb_rows("Chassis").await.len(), 1, "only ch0 is left");
    assert_eq!(w.bound("b0").await, "");
    // Unregistered while there was no controller.
    let mut d = w.start("c4", &[]);
    wait_for!(w.bound("b0").await, "br-vtep");
    d.crash();
    w.tor(0, json!([{"op": "update", "table": "Global", "where": [], "row": {"switches": ["set", []]}}])).await;
    let _d = w.start("c5", &[]);
    wait_for!(w.sb_rows("Chassis").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_are_active_and_standby() {
    let (w, _, _) = network().await;
    let mut first = w.start("first", &[]);
    wait_for!(w.bound("b0").await, "br-vtep");
    let second = w.start("second", &[]);
    wait_for!(second.command("sb-connection-status", &[]).await, "connected");
    assert!(second.command("debug/status", &[]).await.ends_with("standby"));
    first.crash();
    wait_for!(second.command("debug/status", &[]).await.ends_with(" active"), true);
    let id = w.sb_id("Chassis", "name", "br-vtep").await;
    w.sb_set("Chassis", &id, json!({"vtep_logical_switches": "foo"})).await;
    wait_for!(logical(&w, "br-vtep").await, json!(["set", ["lswitch0", "lswitch1"]]));
    assert_eq!(second.command("vtep-connection-status", &[]).await, "connected");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_northd_is_not_followed() {
    let (w, _, _) = network().await;
    let version = async |v: &str| {
        w.sb(json!([{"op": "update", "table": "SB_Global", "where": [], "row": {"options": ["map", [["northd_internal_version", v]]]}}])).await;
    };
    version("foo").await;
    let d = w.start("c", &[]);
    wait_for!(w.bound("b0").await, "br-vtep");
    w.tor(0, json!([{"op": "update", "table": "Global", "where": [], "row": {"other_config": ["map", [["ovn-match-northd-version", "true"]]]}}])).await;
    let text = "controller-vtep version - 26.03.90-21.11.0-82.15 mismatch with northd version - foo";
    wait_for!(d.warnings(), strings(&[text]));
    let id = w.sb_id("Chassis", "name", "br-vtep").await;
    w.sb_set("Chassis", &id, json!({"vtep_logical_switches": "foo"})).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(logical(&w, "br-vtep").await, json!("foo"));
    version(vtep_controller::INTERNAL_VERSION).await;
    wait_for!(logical(&w, "br-vtep").await, json!(["set", ["lswitch0", "lswitch1"]]));
    assert_eq!(d.warnings(), strings(&[text]));
    assert_eq!(vtep_controller::INTERNAL_VERSION, northd::tables::global::INTERNAL_VERSION);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_disconnect_of_a_minute_only_what_is_ours_is_mended() {
    let (w, test, void) = network().await;
    let ch0 = w.chassis("ch0", "vxlan", "1.2.3.5").await;
    let vif0 = w.port("vif0", &test, 2, "", &["f0:ab:cd:ef:01:02"], json!({"chassis": ch0})).await;
    w.vtep_port("b1", &void, 1, "br-vtep", "lswitch1").await;
    w.port("vif1", &void, 2, "", &["f0:ab:cd:ef:01:09"], json!({"chassis": ch0})).await;
    let d = w.start("c", &[]);
    wait_for!(w.ucast(0).await.len(), 2);
    w.disconnect().await;
    wait_for!(d.command("vtep-connection-status", &[]).await, "not connected");
    tokio::time::sleep(Duration::from_secs(60)).await;
    // Meanwhile: a MAC changes, a port goes, another controller takes over a logical switch that is not attached any more.
    w.sb_set("Port_Binding", &vif0, json!({"mac": "f0:ab:cd:ef:01:03"})).await;
    w.sb(json!([{"op": "delete", "table": "Port_Binding", "where": [["logical_port", "==", "b1"]]}])).await;
    w.tor(0, json!([
        {"op": "insert", "table": "Logical_Switch", "uuid-name": "ls", "row": {"name": "theirs", "tunnel_key": 77}},
        {"op": "insert", "table": "Physical_Locator", "uuid-name": "l", "row": {"encapsulation_type": "vxlan_over_ipv4", "dst_ip": "9.9.9.9"}},
        {"op": "insert", "table": "Ucast_Macs_Remote", "row": {"MAC": "00:00:00:00:00:99", "logical_switch": ["named-uuid", "ls"], "locator": ["named-uuid", "l"]}},
        {"op": "delete", "table": "Mcast_Macs_Remote", "where": []},
    ])).await;
    w.reconnect().await;
    wait_for!(w.ucast(0).await, strings(&["lswitch0 f0:ab:cd:ef:01:03 1.2.3.5", "theirs 00:00:00:00:00:99 9.9.9.9"]));
    wait_for!(w.mcast(0).await, strings(&["lswitch0 unknown-dst 1.2.3.5"]));
    wait_for!(
        w.keys(0).await,
        vec![("lswitch0".to_string(), Some(7)), ("lswitch1".to_string(), Some(0)), ("theirs".to_string(), Some(77))]
    );
    assert_eq!(d.warnings(), Vec::<String>::new());
}
