//! A zone of ours joined with one that Debian's ovn-ic 23.03 serves.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use serde_json::json;

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_string()).collect()
}

/// Either takes what the other tells, and lets go of what the other takes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_zone_of_ovn_ic() {
    if !needs::installed(&["ovn-ic"]) {
        return;
    }
    let w = World::new(2).await;
    let ours = w.start(1, "az1");
    w.transit_switch("ts1").await;
    // ovn-ic 23.03 would make a datapath without asking whose turn it is.
    wait_for!(w.rows("icsb", "Datapath_Binding").await.len(), 1);
    let _theirs = w.start_program("ovn-ic", 2, "az2");
    wait_for!(w.column("icsb", "Availability_Zone", "name").await, strings(&["az1", "az2"]));
    for n in 1..=2 {
        w.gateway(n, &format!("gw{n}"), &format!("10.0.0.{n}")).await;
        wait_for!(w.column(&format!("nb{n}"), "Logical_Switch", "name").await, strings(&["ts1"]));
        w.router(n, &format!("lr{n}"), "ts1", &format!("192.168.{n}.1/24"), &format!("gw{n}")).await;
        // Two zones that add a port at one time choose the same tunnel key, and one is refused. ovn-ic 23.03 then does
        // nothing until something else changes.
        wait_for!(w.rows("icsb", "Port_Binding").await.len(), n);
    }
    for (n, other) in [(1, 2), (2, 1)] {
        let (nb, sb) = (format!("nb{n}"), format!("sb{n}"));
        wait_for!(w.learned(n).await, vec![format!("192.168.{other}.1/24 169.254.0.{other}")]);
        wait_for!(w.column(&sb, "Chassis", "name").await, strings(&["gw1", "gw2"]));
        let port = format!("ts1-lr{other}");
        wait_for!(
            w.row(&nb, "Logical_Switch_Port", "name", &port).await.map(|p| p["type"].clone()),
            Some(json!("remote"))
        );
        let address = json!(format!("00:00:00:00:0{other}:01 169.254.0.{other}/24"));
        wait_for!(
            w.row(&nb, "Logical_Switch_Port", "name", &port).await.unwrap()["addresses"].clone(),
            address.clone()
        );
        let shared = async || w.row("icsb", "Port_Binding", "logical_port", &port).await.unwrap()["gateway"].clone();
        wait_for!(shared().await, json!(format!("gw{other}")));
    }
    let keys = w.column("icsb", "Port_Binding", "tunnel_key").await;
    assert_eq!(keys, strings(&["1", "2"]));
    // What either takes back goes from the other.
    for (n, other) in [(1, 2), (2, 1)] {
        let name = format!("lr{n}-inside");
        w.set(&format!("nb{n}"), "Logical_Router_Port", ("name", &name), json!({"networks": "192.168.9.1/24"})).await;
        wait_for!(w.learned(other).await, vec![format!("192.168.9.1/24 169.254.0.{n}")]);
        w.set(&format!("nb{n}"), "Logical_Router_Port", ("name", &name), json!({"networks": "192.168.8.1/24"})).await;
        wait_for!(w.learned(other).await, vec![format!("192.168.8.1/24 169.254.0.{n}")]);
    }
    assert_eq!(ours.warnings(), Vec::<String>::new());
    w.run("icnb", json!([{"op": "delete", "table": "Transit_Switch", "where": []}])).await;
    wait_for!(w.learned(1).await, Vec::<String>::new());
    for table in ["Route", "Port_Binding", "Datapath_Binding"] {
        wait_for!(w.rows("icsb", table).await.len(), 0);
    }
}
