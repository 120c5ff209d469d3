//! Zones joined by the program itself.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use serde_json::json;
use std::time::Duration;

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_string()).collect()
}

/// Two zones with a gateway and a router each on a transit switch.
async fn joined() -> (World, Vec<common::Daemon>) {
    let w = World::new(2).await;
    let daemons = (1..=2).map(|n| w.start(n, &format!("az{n}"))).collect();
    w.transit_switch("ts1").await;
    for n in 1..=2 {
        w.gateway(n, &format!("gw{n}"), &format!("10.0.0.{n}")).await;
        let nb = format!("nb{n}");
        wait_for!(w.column(&nb, "Logical_Switch", "name").await, strings(&["ts1"]));
        w.router(n, &format!("lr{n}"), "ts1", &format!("192.168.{n}.1/24"), &format!("gw{n}")).await;
    }
    for (n, other) in [(1, 2), (2, 1)] {
        wait_for!(w.learned(n).await, vec![format!("192.168.{other}.1/24 169.254.0.{other}")]);
    }
    w.settle().await;
    (w, daemons)
}

/// Gateways, ports and routes of each zone reach the other, and go when what they are of goes.
#[tokio::test(flavor = "multi_thread")]
async fn zones_exchange_what_they_have() {
    let (w, _daemons) = joined().await;
    for (n, other) in [(1, 2), (2, 1)] {
        let (nb, sb) = (format!("nb{n}"), format!("sb{n}"));
        let chassis = w.row(&sb, "Chassis", "name", &format!("gw{other}")).await.unwrap();
        assert_eq!(chassis["other_config"], json!(["map", [["is-remote", "true"]]]));
        let port = format!("ts1-lr{other}");
        let lsp = w.row(&nb, "Logical_Switch_Port", "name", &port).await.unwrap();
        assert_eq!(lsp["type"], json!("remote"));
        assert_eq!(lsp["addresses"], json!(format!("00:00:00:00:0{other}:01 169.254.0.{other}/24")));
        // Both zones give the port the key that its zone gave it.
        let own = w.row(&format!("nb{other}"), "Logical_Switch_Port", "name", &port).await.unwrap();
        let shared = w.row("icsb", "Port_Binding", "logical_port", &port).await.unwrap();
        let key = format!("\"requested-tnl-key\",\"{}\"", shared["tunnel_key"]);
        assert!([&lsp, &own].iter().all(|p| p["options"].to_string().contains(&key)), "{lsp:?} {own:?}");
        assert_eq!(shared["gateway"], json!(format!("gw{other}")));
    }
    let keys = w.column("icsb", "Port_Binding", "tunnel_key").await;
    assert_eq!(keys, strings(&["1", "2"]));
    // A gateway that is none any more.
    w.set("sb1", "Chassis", ("name", "gw1"), json!({"other_config": ["map", []]})).await;
    wait_for!(w.column("sb2", "Chassis", "name").await, strings(&["gw2"]));
    // What was learned over a transit switch goes with it.
    w.run("icnb", json!([{"op": "delete", "table": "Transit_Switch", "where": []}])).await;
    for n in 1..=2 {
        wait_for!(w.learned(n).await, Vec::<String>::new());
        wait_for!(w.column(&format!("nb{n}"), "Logical_Switch", "name").await, Vec::<String>::new());
    }
    for table in ["Route", "Port_Binding", "Datapath_Binding"] {
        wait_for!(w.rows("icsb", table).await.len(), 0);
    }
}

/// What the daemon writes comes back to it before it looks again: no row is written twice, however fast changes follow.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_written_once() {
    let w = World::new(2).await;
    let _daemons: Vec<_> = (1..=2).map(|n| w.start(n, &format!("az{n}"))).collect();
    w.sync().await;
    for n in 0..40 {
        let row = json!({"name": format!("tr{n}")});
        w.run("icnb", json!([{"op": "insert", "table": "Transit_Router", "row": row}])).await;
        w.transit_switch(&format!("ts{n}")).await;
    }
    w.settle().await;
    let written = |file: &str, text: &str| {
        let path = w.dir.path().join(file);
        std::fs::read_to_string(path).unwrap().matches(text).count()
    };
    for n in 0..40 {
        for zone in ["nb1.db", "nb2.db"] {
            assert_eq!(written(zone, &format!("\"name\":\"tr{n}\"")), 1, "tr{n} in {zone}");
            assert_eq!(written(zone, &format!("\"name\":\"ts{n}\"")), 1, "ts{n} in {zone}");
        }
        assert_eq!(written("icsb.db", &format!("\"transit_switch\":\"ts{n}\"")), 1, "ts{n}");
    }
}

/// A daemon that dies takes nothing with it; the one that stands by goes on, and writes nothing that is there.
#[tokio::test(flavor = "multi_thread")]
async fn one_daemon_of_a_zone_is_active() {
    let (w, mut daemons) = joined().await;
    let second = w.start(1, "az1-second");
    wait_for!(second.ask("status"), "Status: standby\n");
    assert_eq!(daemons[0].ask("status"), "Status: active\n");
    let names = async || {
        let mut all = Vec::new();
        for key in ["icsb", "nb1", "sb1", "nb2", "sb2"] {
            let tables: &[&str] = match key {
                "icsb" => &["Route", "Port_Binding", "Gateway", "Encap", "Datapath_Binding"],
                k if k.starts_with("nb") => &["Logical_Router_Static_Route", "Logical_Switch_Port"],
                _ => &["Chassis", "Encap", "Port_Binding"],
            };
            for table in tables {
                all.extend(w.column(key, table, "_uuid").await);
                all.extend(w.column(key, table, "_version").await);
            }
        }
        all
    };
    let before = names().await;
    daemons.remove(0).kill();
    wait_for!(second.ask("status"), "Status: active\n");
    w.settle().await;
    let after = names().await;
    let new: Vec<&String> = after.iter().filter(|v| !before.contains(v)).collect();
    assert_eq!(new, Vec::<&String>::new(), "written anew: before {before:?}");
    // It does its work.
    w.gateway(1, "gw3", "10.0.0.3").await;
    wait_for!(w.column("sb2", "Chassis", "name").await, strings(&["gw1", "gw2", "gw3"]));
}

/// Whichever of a zone's daemons gets the zone's lock does the work, though the other one lives.
#[tokio::test(flavor = "multi_thread")]
async fn the_zones_lock_moves_between_daemons_that_live() {
    let (w, mut daemons) = joined().await;
    let pair = [daemons.remove(0), w.start(1, "az1-second")];
    wait_for!(pair[1].ask("status"), "Status: standby\n");
    for n in 3..7 {
        // Both lose the lock; the one that comes first gets it.
        w.cut("sb1");
        wait_for!(pair.iter().any(|d| d.ask("status") == "Status: active\n"), false);
        pair[n % 2].ask("pause");
        w.listen("sb1").await;
        wait_for!(pair[1 - n % 2].ask("status"), "Status: active\n");
        pair[n % 2].ask("resume");
        w.gateway(1, &format!("gw{n}"), &format!("10.0.0.{n}")).await;
        wait_for!(w.row("icsb", "Gateway", "name", &format!("gw{n}")).await.is_some(), true);
    }
}

/// A zone whose databases are gone for a while loses nothing elsewhere, and is told what it missed.
#[tokio::test(flavor = "multi_thread")]
async fn a_zone_that_is_cut_off_disturbs_nobody() {
    let (w, daemons) = joined().await;
    for key in ["nb1", "sb1"] {
        w.cut(key);
    }
    wait_for!(daemons[0].ask("nb-connection-status"), "not connected\n");
    w.gateway(2, "gw4", "10.0.0.4").await;
    wait_for!(w.column("icsb", "Gateway", "name").await, strings(&["gw1", "gw2", "gw4"]));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(w.learned(2).await, strings(&["192.168.1.1/24 169.254.0.1"]));
    assert_eq!(w.column("sb1", "Chassis", "name").await, strings(&["gw1", "gw2"]));
    for key in ["nb1", "sb1"] {
        w.listen(key).await;
    }
    wait_for!(w.column("sb1", "Chassis", "name").await, strings(&["gw1", "gw2", "gw4"]));
    assert_eq!(w.learned(1).await, strings(&["192.168.2.1/24 169.254.0.2"]));
    assert_eq!(w.learned(2).await, strings(&["192.168.1.1/24 169.254.0.1"]));
}

/// Sequence numbers come back when all zones have written.
#[tokio::test(flavor = "multi_thread")]
async fn sequence_numbers_wait_for_all_zones() {
    let (w, daemons) = joined().await;
    w.sync().await;
    daemons[1].ask("pause");
    wait_for!(daemons[1].ask("status"), "Status: paused\n");
    w.run(
        "icnb",
        json!([{"op": "mutate", "table": "IC_NB_Global", "where": [], "mutations": [["nb_ic_cfg", "+=", 1]]}]),
    )
    .await;
    let wanted = w.rows("icnb", "IC_NB_Global").await[0]["nb_ic_cfg"].clone();
    let of = async |name: &str| w.row("icsb", "Availability_Zone", "name", name).await.unwrap()["nb_ic_cfg"].clone();
    wait_for!(of("az1").await, wanted.clone());
    assert_ne!(w.rows("icnb", "IC_NB_Global").await[0]["sb_ic_cfg"], wanted);
    daemons[1].ask("resume");
    wait_for!(w.rows("icnb", "IC_NB_Global").await[0]["sb_ic_cfg"].clone(), wanted.clone());
    assert_eq!(of("az2").await, wanted);
}

/// A zone's new name goes to its row; a name that another zone has is said.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_zones() {
    let (mut w, daemons) = joined().await;
    let id = w.row("icsb", "Availability_Zone", "name", "az1").await.unwrap()["_uuid"].clone();
    w.set("nb1", "NB_Global", ("name", "az1"), json!({"name": "north"})).await;
    wait_for!(w.column("icsb", "Availability_Zone", "name").await, strings(&["az2", "north"]));
    assert_eq!(w.row("icsb", "Availability_Zone", "name", "north").await.unwrap()["_uuid"], id);
    assert_eq!(w.learned(2).await, strings(&["192.168.1.1/24 169.254.0.1"]));
    w.zone(3, "az2").await;
    let third = w.start(3, "third");
    let said = "another deployment uses the name az2 for its zone, and this one waits: set NB_Global:name of one of them \
                to another name";
    wait_for!(third.warnings().iter().any(|w| w.ends_with(said)), true);
    assert_eq!(w.column("icsb", "Gateway", "name").await, strings(&["gw1", "gw2"]), "it took nothing away");
    assert_eq!(daemons[0].warnings(), Vec::<String>::new());
    w.set("nb3", "NB_Global", ("name", "az2"), json!({"name": "az3"})).await;
    wait_for!(w.column("icsb", "Availability_Zone", "name").await, strings(&["az2", "az3", "north"]));
}

/// A row that a server refuses is named, and holds up nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_stops_nothing_else() {
    let mut schema = ovn_schema::ic_sb::Database::schema();
    schema.tables.get_mut("Address_Set").unwrap().max_rows = Some(0);
    let w = World::with(1, schema).await;
    let options = json!(["map", [["ic-as-adv", "true"]]]);
    w.set("nb1", "NB_Global", ("name", "az1"), json!({"options": options})).await;
    let row = json!({"name": "as1", "addresses": "10.0.0.1", "options": ["map", [["ic-adv", "true"]]]});
    w.run("sb1", json!([{"op": "insert", "table": "Address_Set", "row": row}])).await;
    let daemon = w.start(1, "az1");
    w.gateway(1, "gw1", "10.0.0.1").await;
    wait_for!(w.column("icsb", "Gateway", "name").await, strings(&["gw1"]));
    wait_for!(daemon.ask("debug/problems").contains("Address_Set (as1) is refused"), true);
    w.gateway(1, "gw2", "10.0.0.2").await;
    wait_for!(w.column("icsb", "Gateway", "name").await, strings(&["gw1", "gw2"]));
    w.sync().await;
    daemon.is_quiet();
}

/// Without databases it waits.
#[tokio::test(flavor = "multi_thread")]
async fn without_databases_it_waits() {
    let w = World::new(1).await;
    for key in ["nb1", "icsb"] {
        w.cut(key);
    }
    let daemon = w.start(1, "az1");
    assert_eq!(daemon.ask("ic-sb-connection-status"), "not connected\n");
    tokio::time::sleep(Duration::from_secs(3)).await;
    daemon.is_quiet();
    assert!(daemon.log().lines().count() < 20, "{}", daemon.log());
}
