//! Recorded situations of zones that ovn-ic of OVN 26.03.90 joined.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Daemon, World};
use ovn_schema::Uuid;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// All tables of all databases, by database and table.
type Content = BTreeMap<(String, String), Vec<String>>;

/// Rows that count what was asked for and done.
const COUNTERS: [&str; 4] = ["IC_NB_Global", "IC_SB_Global", "Availability_Zone", "NB_Global"];

/// Snapshots that caught ovn-ic at work, with what it had not done yet.
const AT_WORK: [(&str, &str); 1] =
    [("ovn-ic--interconnection-e13d/2", "zone az2 has withdrawn its gateway gw2, zone az1 has its chassis still")];

/// Snapshots from before a daemon had registered a zone: its northbound row is there, nothing else.
const BEFORE: [&str; 2] =
    ["ovn-ic--ovn-ic-ic-sb-lock-acquisition-and-transit-switch-creation-58e1/0", "ovn-ic--ovn-ic-pause-11c8/0"];

/// The snapshots with zones; none where the recorded data is absent, the test is skipped then.
fn snapshots() -> Vec<(String, BTreeMap<String, Vec<u8>>)> {
    let mut out = Vec::new();
    for path in golden::archives().iter().filter(|p| p.to_string_lossy().contains("ovn-ic--")) {
        let case = golden::read(path).unwrap();
        for (n, files) in case.snapshots.into_iter().enumerate() {
            let name = format!("{}/{n}", case.name);
            if !BEFORE.contains(&name.as_str()) {
                out.push((name, files));
            }
        }
    }
    out
}

/// All agree but those that are known not to.
fn judge(differ: &BTreeMap<String, Vec<String>>) {
    let known = |name: &str| AT_WORK.iter().any(|k| k.0 == name);
    let new: BTreeMap<_, _> = differ.iter().filter(|(name, _)| !known(name)).collect();
    assert!(new.is_empty(), "{new:#?}");
    if golden::folder().is_some() {
        let agree: Vec<_> = AT_WORK.iter().filter(|(name, _)| !differ.contains_key(*name)).collect();
        assert!(agree.is_empty(), "these agree now: {agree:?}");
    }
}

/// What all databases hold, without what is left out; `show` turns a row into text.
async fn content(w: &World, show: impl Fn(&Value) -> String, left_out: fn(&str, &str) -> bool) -> Content {
    let mut out = Content::new();
    for key in w.keys() {
        for table in w.tables(&key).into_iter().filter(|t| !COUNTERS.contains(&t.as_str()) && !left_out(&key, t)) {
            let rows = w.rows(&key, &table).await;
            let mut rows: Vec<String> = rows.iter().map(|r| show(&json!(r))).collect();
            rows.sort();
            out.insert((key.clone(), table), rows);
        }
    }
    out
}

/// A row without what is another one in each run: its version, and whatever is a UUID.
fn without_uuids(row: &Value) -> Value {
    match row {
        Value::String(s) if s.parse::<Uuid>().is_ok() => json!("UUID"),
        Value::Array(all) => all.iter().map(without_uuids).collect(),
        Value::Object(columns) => {
            columns.iter().filter(|(name, _)| *name != "_version").map(|(n, v)| (n.clone(), without_uuids(v))).collect()
        }
        other => other.clone(),
    }
}

/// The zones of a snapshot that ovn-ic served: those that are registered.
async fn start(w: &World) -> Vec<Daemon> {
    let zones = w.column("icsb", "Availability_Zone", "name").await;
    let numbers = zones.iter().map(|z| z.trim_start_matches("az").parse::<usize>().unwrap());
    let daemons: Vec<Daemon> =
        numbers.filter(|n| w.keys().contains(&format!("nb{n}"))).map(|n| w.start(n, &format!("az{n}"))).collect();
    assert!(!daemons.is_empty());
    daemons
}

/// Southbound ports refer to chassis. northd writes that, which does not run here.
fn of_northd(database: &str, table: &str) -> bool {
    database.starts_with("sb") && table == "Port_Binding"
}

/// Where two contents differ.
fn difference(before: &Content, after: &Content) -> Vec<String> {
    let mut out = Vec::new();
    for (table, rows) in before {
        let (gone, new): (Vec<_>, Vec<_>) = (
            rows.iter().filter(|r| !after[table].contains(r)).collect(),
            after[table].iter().filter(|r| !rows.contains(r)).collect(),
        );
        out.extend(gone.iter().map(|r| format!("- {table:?} {r}")));
        out.extend(new.iter().map(|r| format!("+ {table:?} {r}")));
    }
    out
}

/// Where ovn-ic has done its work there is nothing to do: not one row is written.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_to_do() {
    let mut differ = BTreeMap::new();
    for (name, files) in snapshots() {
        let w = World::recorded(&files).await;
        let before = content(&w, Value::to_string, |_, _| false).await;
        let daemons = start(&w).await;
        w.settle().await;
        let after = content(&w, Value::to_string, |_, _| false).await;
        let mut lines = difference(&before, &after);
        lines.extend(daemons.iter().flat_map(Daemon::warnings));
        if !lines.is_empty() {
            differ.insert(name, lines);
        }
    }
    judge(&differ);
}

/// What zones tell each other comes back as it was when it is gone, and with it what they learned.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_comes_back() {
    let mut differ = BTreeMap::new();
    for (name, files) in snapshots() {
        let w = World::recorded(&files).await;
        let masked = |row: &Value| without_uuids(row).to_string();
        let before = content(&w, masked, of_northd).await;
        let delete = |table: &str| json!({"op": "delete", "table": table, "where": []});
        w.run("icsb", json!([delete("Route"), delete("Gateway"), delete("Encap")])).await;
        let _daemons = start(&w).await;
        w.settle().await;
        // A zone that was faster has seen the others without what they tell.
        w.settle().await;
        let after = content(&w, masked, of_northd).await;
        let lines = difference(&before, &after);
        if !lines.is_empty() {
            differ.insert(name, lines);
        }
    }
    judge(&differ);
}
