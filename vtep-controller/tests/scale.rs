//! Three switches in three databases with the same logical switches: all get all MACs, and one changed MAC is one
//! operation for each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const TORS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn three_switches_and_many_macs() {
    let (switches, macs) = (50, 2000);
    let w = World::new(TORS).await;
    let names: Vec<String> = (0..switches).map(|s| format!("ls{s}")).collect();
    for t in 0..TORS {
        let bindings: Vec<(&str, i64, &str)> =
            names.iter().enumerate().map(|(s, n)| ("p0", s as i64, n.as_str())).collect();
        w.physical_switch(t, &format!("tor{t}"), &[&format!("10.1.0.{}", t + 1)], &bindings).await;
    }
    let mut chassis = Vec::new();
    for n in 0..8 {
        chassis.push(w.chassis(&format!("hv{n}"), "vxlan", &format!("10.2.0.{}", n + 1)).await);
    }
    let mut one = Value::Null;
    for (s, name) in names.iter().enumerate() {
        let dp = w.datapath(s as i64 + 1).await;
        for t in 0..TORS {
            w.vtep_port(&format!("v{s}-{t}"), &dp, t as i64 + 1, &format!("tor{t}"), name).await;
        }
        let ports = (0..macs).map(|m| {
            let row = json!({"logical_port": format!("p{s}-{m}"), "datapath": dp, "tunnel_key": m + 10, "chassis": chassis[m % chassis.len()],
                "mac": format!("02:00:00:{s:02x}:{:02x}:{:02x}", m >> 8, m & 255)});
            json!({"op": "insert", "table": "Port_Binding", "row": row})
        });
        one = w.sb(Value::Array(ports.collect())).await[0]["uuid"].clone();
    }
    let begin = Instant::now();
    let d = w.start("c", &[]);
    for t in 0..TORS {
        let end = Instant::now() + Duration::from_secs(600);
        while w.tor_rows(t, "Ucast_Macs_Remote").await.len() < switches * macs {
            assert!(Instant::now() < end, "{:?}", d.warnings());
            tokio::time::sleep(Duration::from_millis(2000)).await;
        }
        assert_eq!(w.tor_rows(t, "Mcast_Macs_Remote").await.len(), switches);
    }
    println!("all has arrived after {:?}", begin.elapsed());
    let operations = async || d.command("coverage/read-counter", &["vtep_operations"]).await.parse::<i64>().unwrap();
    let units = async || d.command("coverage/read-counter", &["vtep_units_run"]).await.parse::<i64>().unwrap();
    // What the last answers bring is taken in.
    tokio::time::sleep(Duration::from_millis(5000)).await;
    let before = (operations().await, units().await);
    let begin = Instant::now();
    w.sb_set("Port_Binding", &one, json!({"mac": "06:00:00:00:00:01"})).await;
    for t in 0..TORS {
        let has = async || {
            let wanted =
                json!([{"op": "select", "table": "Ucast_Macs_Remote", "where": [["MAC", "==", "06:00:00:00:00:01"]]}]);
            w.tor(t, wanted).await[0]["rows"].as_array().unwrap().len()
        };
        wait_for!(has().await, 1);
    }
    println!("one MAC took {:?}", begin.elapsed());
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The old row goes and the new one comes, in each of the databases; one unit ran.
    assert_eq!((operations().await - before.0, units().await - before.1), (2 * TORS as i64, 1));
    assert_eq!(d.warnings(), Vec::<String>::new());
}
