//! Switches, ports, MACs that others have and MACs that the switch learned come and go, ten rounds; the controller ends where it began.
//! A round has 1,000 ports and 200 learned MACs: the databases, unoptimized, are served by the same processors. `make churn` has ten
//! times as many.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, World};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const PORTS: usize = 100;
const LEARNED: usize = 20;

/// How many times the usual size a round has: `make churn` sets it, for 10,000 a round.
fn times() -> usize {
    std::env::var("ISTHMUS_CHURN").map_or(1, |n| n.parse().expect("ISTHMUS_CHURN is a number"))
}

fn switches() -> usize {
    10 * times()
}

/// Resident memory, in KiB (proc_pid_status(5)).
fn resident(d: &Daemon) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", d.pid())).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// What `memory/show` counts: derived rows, units, what is remembered; and names of what exists and of some that is gone.
async fn held(d: &Daemon) -> (Vec<(String, usize)>, usize) {
    let shown = d.command("memory/show", &[]).await;
    let figures = shown.split_whitespace().filter_map(|w| w.split_once(':'));
    let mut all: Vec<(String, usize)> = figures.map(|(name, n)| (name.to_string(), n.parse().unwrap())).collect();
    let names = all.iter().position(|(name, _)| name == "names").unwrap();
    let names = all.remove(names).1;
    assert!(["derived-rows", "units", "remembered"].iter().all(|n| all.iter().any(|(name, _)| name == n)), "{shown}");
    (all, names)
}

async fn come(w: &World, round: usize, chassis: &Value) {
    let names: Vec<String> = (0..switches()).map(|s| format!("r{round}-ls{s}")).collect();
    let bindings: Vec<(&str, i64, &str)> =
        names.iter().zip(0..).map(|(name, vlan)| ("p0", vlan, name.as_str())).collect();
    w.physical_switch(0, &format!("tor{round}"), &["10.1.0.1"], &bindings).await;
    for (s, name) in names.iter().enumerate() {
        let datapath = w.datapath((round * switches() + s) as i64 + 1).await;
        w.vtep_port(&format!("r{round}-v{s}"), &datapath, 1, &format!("tor{round}"), name).await;
        let ports = (0..PORTS).map(|p| {
            let mac = format!("02:{round:02x}:{s:02x}:00:00:{p:02x}");
            let row = json!({"logical_port": format!("r{round}-p{s}-{p}"), "datapath": datapath, "tunnel_key": p + 10, "chassis": chassis, "mac": mac});
            json!({"op": "insert", "table": "Port_Binding", "row": row})
        });
        w.sb(Value::Array(ports.collect())).await;
        let id = w.tor_id(0, "Logical_Switch", "name", name).await;
        let locator = json!({"encapsulation_type": "vxlan_over_ipv4", "dst_ip": format!("10.3.{round}.{s}")});
        let mut operations =
            vec![json!({"op": "insert", "table": "Physical_Locator", "uuid-name": "l", "row": locator})];
        operations.extend((0..LEARNED).map(|m| {
            let mac = format!("06:{round:02x}:{s:02x}:00:00:{m:02x}");
            json!({"op": "insert", "table": "Ucast_Macs_Local", "row": {"MAC": mac, "logical_switch": id, "locator": ["named-uuid", "l"]}})
        }));
        w.tor(0, Value::Array(operations)).await;
    }
}

async fn go(w: &World) {
    let all = |table: &str| json!({"op": "delete", "table": table, "where": []});
    w.sb(json!([all("Port_Binding"), all("Datapath_Binding")])).await;
    let mut operations =
        vec![json!({"op": "update", "table": "Global", "where": [], "row": {"switches": ["set", []]}})];
    let tables = [
        "Physical_Switch",
        "Physical_Port",
        "Ucast_Macs_Local",
        "Ucast_Macs_Remote",
        "Mcast_Macs_Remote",
        "Logical_Switch",
    ];
    operations.extend(tables.map(all));
    w.tor(0, Value::Array(operations)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_rounds_end_where_they_began() {
    let w = World::new(1).await;
    let chassis = w.chassis("hv", "vxlan", "10.2.0.1").await;
    let d = w.start("c", &[]);
    let end = Instant::now() + Duration::from_secs(20);
    while d.command("sb-connection-status", &[]).await != "connected" {
        assert!(Instant::now() < end, "it does not connect");
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (began, few) = held(&d).await;
    let (mut most, mut third) = (few, 0);
    for round in 1..=10 {
        come(&w, round, &chassis).await;
        let end = Instant::now() + Duration::from_secs(60);
        while w.tor_rows(0, "Ucast_Macs_Remote").await.len() < switches() * PORTS
            || w.fdb().await.len() < switches() * LEARNED
        {
            assert!(Instant::now() < end, "round {round}: not all has come: {:?}", d.warnings());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (full, names) = held(&d).await;
        assert!(full != began && names > few, "round {round}: {full:?}");
        if round == 1 {
            most = names;
        }
        go(&w).await;
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let (now, names) = held(&d).await;
            if now == began && w.fdb().await.is_empty() && w.sb_rows("Chassis").await.len() == 1 {
                // Names of what is gone are looked for when there are a quarter more, and 4,096.
                assert!(names <= most + most / 4 + 4096, "round {round}: {names} names, {most} in the first round");
                break;
            }
            assert!(Instant::now() < end, "round {round}: {now:?}, at first {began:?}: {:?}", d.warnings());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if round == 3 {
            third = resident(&d);
        }
    }
    let last = resident(&d);
    assert!(last <= third + third / 5, "{last} KiB resident after ten rounds, {third} after three");
}
