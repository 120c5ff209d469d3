//! The C controller and ours, each in a world of its own, given the same inputs one after the other: after each
//! they leave the same content.
//!
//! Left out of the comparison, as we do more on purpose (docs/vtep.md): `ipaddr`, the mark of ownership in
//! `Chassis.external_ids`, `Port_Binding.up`, and the key 0 that the C controller writes into logical switches that
//! were never attached. Not in the sequence: ports of type `external`, whose MACs 23.03 still wrote and 26.03 does not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, World};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PROGRAM: &str = "ovn-controller-vtep";

fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|d| d.join(PROGRAM)).find(|p| p.exists())
}

async fn content(w: &World) -> Vec<String> {
    let mut out = Vec::new();
    for c in w.sb_rows("Chassis").await {
        let name = c["name"].as_str().unwrap();
        let encaps = w.encaps(name).await;
        out.push(format!("chassis {name} {encaps:?} {} {}", c["other_config"], c["vtep_logical_switches"]));
    }
    for e in w.sb_rows("Encap").await {
        out.push(format!("encap {} {} {} {}", e["type"], e["ip"], e["chassis_name"], e["options"]));
    }
    for p in w.sb_rows("Port_Binding").await {
        let name = p["logical_port"].as_str().unwrap();
        out.push(format!("port {name} {}", w.bound(name).await));
    }
    for ls in w.tor_rows(0, "Logical_Switch").await {
        let key = ls["tunnel_key"].as_i64().unwrap_or(0);
        out.push(format!("switch {} {key} {}", ls["name"], ls["replication_mode"]));
    }
    let without_address = |r: String| r.split(' ').take(3).collect::<Vec<_>>().join(" ");
    out.extend(w.ucast(0).await.into_iter().map(|r| format!("ucast {}", without_address(r))));
    out.extend(w.mcast(0).await.into_iter().map(|r| format!("mcast {r}")));
    out.sort();
    out
}

/// What happens, in order. Names stand for rows, so that it is the same in both worlds.
async fn step(w: &World, n: usize) -> Option<&'static str> {
    let dp = async |key: i64| {
        w.sb_rows("Datapath_Binding").await.into_iter().find(|d| d["tunnel_key"] == json!(key)).unwrap()["_uuid"]
            .clone()
    };
    let chassis = async |name: &str| w.sb_id("Chassis", "name", name).await;
    let port = async |name: &str| w.sb_id("Port_Binding", "logical_port", name).await;
    let tunnel_ips = async |name: &str, ip: &str| {
        let ps = w.tor_id(0, "Physical_Switch", "name", name).await;
        w.tor_set(0, "Physical_Switch", &ps, json!({"tunnel_ips": ip})).await;
    };
    let one = |c: &Value| json!({"chassis": c});
    Some(match n {
        0 => {
            w.physical_switch(
                0,
                "br-vtep",
                &["1.2.3.4"],
                &[("p0", 100, "ls0"), ("p0", 200, "ls1"), ("p1", 100, "ls0")],
            )
            .await;
            "a switch with two logical ones"
        }
        1 => {
            for key in [7, 8, 20] {
                w.datapath(key).await;
            }
            for (i, ip) in ["1.2.3.5", "1.2.3.6", "1.2.3.7"].iter().enumerate() {
                w.chassis(&format!("ch{i}"), "vxlan", ip).await;
            }
            w.chassis("geneve-only", "geneve", "1.2.3.8").await;
            w.port("vif0", &dp(7).await, 2, "", &["f0:ab:cd:ef:01:02"], one(&chassis("ch0").await)).await;
            w.port("vif1", &dp(8).await, 2, "", &["f0:ab:cd:ef:01:02"], one(&chassis("ch1").await)).await;
            "chassis and ports, nothing attached"
        }
        2 => {
            w.vtep_port("v0", &dp(7).await, 1, "br-vtep", "ls0").await;
            "a port attaches one"
        }
        3 => {
            w.sb_set(
                "Port_Binding",
                &port("vif0").await,
                json!({"mac": ["set", ["f0:ab:cd:ef:01:04 192.168.0.1", "f0:ab:cd:ef:01:05", "unknown"]]}),
            )
            .await;
            "other MACs"
        }
        4 => {
            w.sb_set("Port_Binding", &port("vif0").await, one(&chassis("ch1").await)).await;
            "a port moves"
        }
        5 => {
            w.port("vif2", &dp(7).await, 3, "", &["f0:ab:cd:ef:01:06"], one(&chassis("ch2").await)).await;
            w.port("vif3", &dp(7).await, 4, "", &["f0:ab:cd:ef:01:07"], one(&chassis("geneve-only").await)).await;
            w.port("nowhere", &dp(7).await, 6, "", &["f0:ab:cd:ef:01:09"], json!({})).await;
            "more ports"
        }
        6 => {
            let options = |pairs: &[(&str, &str)]| json!(["map", pairs]);
            w.port("ls-lr", &dp(7).await, 10, "patch", &["router"], json!({"options": options(&[("peer", "lr-ls")])}))
                .await;
            w.port(
                "lr-ls",
                &dp(20).await,
                1,
                "patch",
                &["00:00:00:00:ff:01 10.0.0.1/24"],
                json!({"options": options(&[("peer", "ls-lr")])}),
            )
            .await;
            w.port(
                "cr-lr-ls",
                &dp(20).await,
                2,
                "chassisredirect",
                &["00:00:00:00:ff:01 10.0.0.1/24"],
                json!({"options": options(&[("distributed-port", "lr-ls")]), "chassis": chassis("ch0").await}),
            )
            .await;
            "a router with a gateway"
        }
        7 => {
            w.sb_set("Port_Binding", &port("cr-lr-ls").await, one(&chassis("ch2").await)).await;
            "the gateway moves"
        }
        8 => {
            w.vtep_port("v1", &dp(8).await, 1, "br-vtep", "ls1").await;
            "the other one is attached too"
        }
        9 => {
            w.vtep_port("v0-dup", &dp(7).await, 11, "br-vtep", "ls0").await;
            // Long enough that both see it.
            tokio::time::sleep(Duration::from_millis(700)).await;
            w.sb(json!([{"op": "delete", "table": "Port_Binding", "where": [["logical_port", "==", "v0-dup"]]}])).await;
            "a duplicate comes and goes"
        }
        10 => {
            tunnel_ips("br-vtep", "1.2.3.44").await;
            "another tunnel IP"
        }
        11 => {
            w.sb(json!([{"op": "delete", "table": "Chassis", "where": [["name", "==", "br-vtep"]]}])).await;
            "the chassis is deleted"
        }
        12 => {
            w.sb_set(
                "Chassis",
                &chassis("br-vtep").await,
                json!({"vtep_logical_switches": "foo", "other_config": ["map", []]}),
            )
            .await;
            "its columns are changed"
        }
        13 => {
            let c = chassis("ch2").await;
            w.sb(json!([
                {"op": "insert", "table": "Encap", "uuid-name": "e", "row": {"type": "vxlan", "ip": "1.2.3.77", "chassis_name": "ch2"}},
                {"op": "update", "table": "Chassis", "where": [["_uuid", "==", c]], "row": {"encaps": ["named-uuid", "e"]}},
            ]))
            .await;
            "a hypervisor's address changes"
        }
        14 => {
            w.physical_switch(0, "second", &["1.2.3.45"], &[("p0", 1, "ls0")]).await;
            w.vtep_port("v2", &dp(7).await, 12, "second", "ls0").await;
            "a second switch on the same logical one"
        }
        15 => {
            w.sb(json!([{"op": "delete", "table": "Port_Binding", "where": [["logical_port", "==", "vif2"]]}])).await;
            "a port goes"
        }
        16 => {
            w.sb_set("Port_Binding", &port("v1").await, json!({"type": ""})).await;
            "a port is none of a VTEP any more"
        }
        17 => {
            let ps = w.tor_id(0, "Physical_Switch", "name", "second").await;
            w.tor(
                0,
                json!([{"op": "mutate", "table": "Global", "where": [], "mutations": [["switches", "delete", ps]]}]),
            )
            .await;
            "the second switch is unregistered"
        }
        18 => {
            w.tor(0, json!([{"op": "update", "table": "Physical_Port", "where": [["name", "==", "p0"]], "row": {"vlan_bindings": ["map", []]}}])).await;
            w.tor(0, json!([{"op": "update", "table": "Physical_Port", "where": [["name", "==", "p1"]], "row": {"vlan_bindings": ["map", []]}}])).await;
            "no VLAN is bound any more"
        }
        _ => return None,
    })
}

/// Waits until both are the same and stay so.
async fn same(a: &World, b: &World, what: &str, daemons: &[&Daemon; 2]) {
    let end = Instant::now() + Duration::from_secs(15);
    let mut since = None;
    loop {
        let (x, y) = (content(a).await, content(b).await);
        if x != y {
            since = None;
            assert!(
                Instant::now() < end,
                "{what}: the C controller leaves\n{x:#?}\nours\n{y:#?}\nC: {:#?}\nours: {:#?}",
                daemons[0].warnings(),
                daemons[1].warnings()
            );
        } else if since.get_or_insert_with(Instant::now).elapsed() > Duration::from_millis(200) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_leave_the_same() {
    let Some(theirs) = installed() else {
        return needs::skip(format!("{PROGRAM} is not installed (scripts/install test)"));
    };
    let (a, b) = (World::new(1).await, World::new(1).await);
    // Ours takes the place of the other by its name.
    let ours = b.dir.path().join(PROGRAM);
    std::os::unix::fs::symlink(Path::new(env!("CARGO_BIN_EXE_vtep-controller")), &ours).unwrap();
    let start = |program: &Path, w: &World| {
        let args = [format!("--vtep-db={}", w.remote("vtep0")), format!("--ovnsb-db={}", w.remote("sb"))];
        Daemon::start(program, &w.dir.path().join("c"), &args)
    };
    let (mut c, mut d) = (start(&theirs, &a), start(&ours, &b));
    for n in 0.. {
        let Some(what) = step(&a, n).await else { break };
        step(&b, n).await;
        same(&a, &b, what, &[&c, &d]).await;
    }
    // Which of two ports is first is chance in the C controller, so names are masked.
    let masked = |text: String| -> String {
        text.split('(')
            .enumerate()
            .map(|(i, part)| if i == 0 { part } else { part.split_once(')').map_or("", |p| p.1) })
            .collect()
    };
    let text = |d: &Daemon| {
        let mut all: Vec<String> = d.warnings().into_iter().map(masked).collect();
        all.dedup();
        all
    };
    assert_eq!(text(&c), text(&d), "both warn of the same");
    c.exit(&[]).await;
    d.exit(&[]).await;
    same(&a, &b, "after exit", &[&c, &d]).await;
}
