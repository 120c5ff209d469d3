//! Zones that tell each other routes, beside ovn-ic in the same run.
//!
//! Usage: `bench-interconnect [ZONES] [ROUTES_EACH] [CHANGES] [OVN_IC]…`. Each zone has databases of its own with a router
//! on a transit switch and static routes, and a daemon; this process serves all databases. Then one static route of the
//! first zone changes, again and again: measured is the time from the answer of the transaction until all other zones'
//! northbound databases have the route, and the processor time of all daemons. OVN_IC are programs to compare with, nobody's
//! where it is `-`; where none is named, Debian's, and those that the environment variable OVN_IC names, separated by
//! blanks. A pass of ovn-ic over 10,000 routes takes 9 s of a processor, and a change makes each zone pass: three changes
//! at that size take minutes.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Daemon, World};
use ovsdb_rs::client::{Client, Event};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(900);
const ROUTES: &str = "Logical_Router_Static_Route";

/// What was measured; times in seconds.
struct Figures {
    start: f64,
    start_cpu: f64,
    change: Vec<f64>,
    change_cpu: f64,
    /// Of this process, which serves all databases and watches the northbound ones.
    change_servers: f64,
    idle_cpu: f64,
    memory: f64,
}

/// One zone's northbound database, watched.
struct Watched(Client, UnboundedReceiver<Event>);

impl Watched {
    /// Waits until a route to this prefix is there.
    async fn has(&mut self, prefix: &str) {
        let holds = |row: &ovsdb_rs::Row| row.0.iter().any(|d| d.scalar().and_then(|a| a.as_str()) == Some(prefix));
        loop {
            let event = tokio::time::timeout(LIMIT, self.1.recv()).await.expect("the route is learned in time");
            match event {
                Some(Event::Update(u)) if u.changes.iter().any(|c| c.new.as_deref().is_some_and(holds)) => return,
                Some(_) => {}
                None => panic!("the database is gone"),
            }
        }
    }

    /// Waits until there are so many routes.
    async fn count(&mut self, wanted: usize) {
        while self.0.replica(|r| r.rows(ROUTES).count()) < wanted {
            let event = tokio::time::timeout(LIMIT, self.1.recv()).await.expect("all routes are learned in time");
            assert!(event.is_some(), "the database is gone");
        }
        // What came meanwhile is no news.
        while self.1.try_recv().is_ok() {}
    }
}

/// Gives a zone's router static routes.
async fn routes(w: &World, zone: usize, count: usize) {
    let mut operations = Vec::new();
    for n in 0..count {
        let label = format!("r{n}");
        let row = json!({"ip_prefix": format!("10.{zone}.{}.{}/32", n / 250, n % 250), "nexthop": format!("192.168.{zone}.2")});
        operations.push(json!({"op": "insert", "table": ROUTES, "uuid-name": label, "row": row}));
    }
    let all: Vec<Value> = (0..count).map(|n| json!(["named-uuid", format!("r{n}")])).collect();
    operations.push(json!({"op": "mutate", "table": "Logical_Router", "where": [["name", "==", format!("lr{zone}")]],
        "mutations": [["static_routes", "insert", ["set", all]]]}));
    w.run(&format!("nb{zone}"), Value::Array(operations)).await;
}

fn cpu(daemons: &[Daemon]) -> f64 {
    daemons.iter().map(Daemon::ticks).sum::<u64>() as f64 / 100.0
}

fn own_cpu() -> f64 {
    common::ticks("self") as f64 / 100.0
}

/// Waits until the daemons have nothing to do.
async fn settled(daemons: &[Daemon]) -> f64 {
    let mut before = cpu(daemons);
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = cpu(daemons);
        if now - before < 0.05 {
            return now;
        }
        before = now;
    }
}

async fn measure(program: &str, zones: usize, count: usize, changes: usize) -> Figures {
    let w = World::new(zones).await;
    // The first makes the datapath: ovn-ic of 23.03 would have each zone make one of its own.
    w.transit_switch("ts1").await;
    let mut daemons = vec![w.start_program(program, 1, "az1")];
    wait_for!(w.rows("icsb", "Datapath_Binding").await.len(), 1);
    daemons.extend((2..=zones).map(|n| w.start_program(program, n, &format!("az{n}"))));
    let mut watched = Vec::new();
    for n in 1..=zones {
        let nb = format!("nb{n}");
        wait_for!(w.column(&nb, "Logical_Switch", "name").await, vec!["ts1".to_string()]);
        w.gateway(n, &format!("gw{n}"), &format!("10.0.0.{n}")).await;
        w.router(n, &format!("lr{n}"), "ts1", &format!("192.168.{n}.1/24"), &format!("gw{n}")).await;
        let (client, events) = w.client(&nb, &[ROUTES]);
        client.connected().await;
        let mut zone = Watched(client, events);
        zone.count(0).await;
        watched.push(zone);
    }
    // The routers' own networks are learned.
    for zone in &mut watched {
        zone.count(zones - 1).await;
    }
    let before = settled(&daemons).await;
    let begin = Instant::now();
    for n in 1..=zones {
        routes(&w, n, count).await;
    }
    for zone in &mut watched {
        zone.count(zones * count + zones - 1).await;
    }
    let start = begin.elapsed().as_secs_f64();
    let after = settled(&daemons).await;
    let served = own_cpu();
    let mut change = Vec::new();
    let mut old = "10.1.0.0/32".to_string();
    for n in 0..changes {
        let new = format!("172.16.{}.{}/32", n / 250, n % 250);
        let begin = Instant::now();
        w.set("nb1", ROUTES, ("ip_prefix", &old), json!({"ip_prefix": new})).await;
        for zone in watched.iter_mut().skip(1) {
            zone.has(&new).await;
        }
        change.push(begin.elapsed().as_secs_f64());
        old = new;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let changed = settled(&daemons).await;
    let served = own_cpu() - served;
    tokio::time::sleep(Duration::from_secs(10)).await;
    Figures {
        start,
        start_cpu: after - before,
        change,
        change_cpu: (changed - after) / changes as f64,
        change_servers: served / changes as f64,
        idle_cpu: (cpu(&daemons) - changed) / 10.0,
        memory: daemons.iter().map(Daemon::memory).sum::<u64>() as f64 / 1024.0 / zones as f64,
    }
}

fn line(what: &str, unit: &str, factor: f64, theirs: f64, ours: f64) {
    println!("{what:<58} {:>10.2} {:>10.2} {unit:<3} {:>7.1}x", theirs * factor, ours * factor, theirs / ours);
}

/// The first line of what a program says of its version.
fn version(program: &str) -> String {
    let output = std::process::Command::new(program).arg("--version").output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or(program).to_string()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default| args.get(n).map_or(default, |a| a.parse::<usize>().expect("a number"));
    let (zones, count, changes) = (number(0, 10), number(1, 1000), number(2, 3));
    let named = std::env::var("OVN_IC").unwrap_or_default();
    let mut others: Vec<&str> = args.iter().skip(3).map(String::as_str).collect();
    if others.is_empty() {
        others = ["ovn-ic"].into_iter().chain(named.split_whitespace()).collect();
    }
    let beside = std::env::current_exe().unwrap();
    let ours = beside.parent().unwrap().parent().unwrap().join("interconnect").display().to_string();
    let mut ours = measure(&ours, zones, count, changes).await;
    println!("{zones} zones with {count} routes each, {changes} changes (medians); all daemons together");
    println!(
        "ours: {:.2} s, {:.2} s; {:.2} ms, {:.2} ms, servers {:.2} ms; {:.2} MB",
        ours.start,
        ours.start_cpu,
        1e3 * median(&mut ours.change),
        1e3 * ours.change_cpu,
        1e3 * ours.change_servers,
        ours.memory
    );
    for other in others.into_iter().filter(|o| *o != "-") {
        let mut theirs = measure(other, zones, count, changes).await;
        println!("{:<58} {:>10} {:>10} {:<3} {:>8}", version(other), "theirs", "ours", "", "ratio");
        line("all routes new, until all zones have learned all", "s", 1.0, theirs.start, ours.start);
        line("· processor time", "s", 1.0, theirs.start_cpu, ours.start_cpu);
        line(
            "one route changed, until all zones have learned it",
            "ms",
            1e3,
            median(&mut theirs.change),
            median(&mut ours.change),
        );
        line("· processor time", "ms", 1e3, theirs.change_cpu, ours.change_cpu.max(1e-4));
        line("· processor time of the servers", "ms", 1e3, theirs.change_servers, ours.change_servers);
        line("nothing changes, processor time of a second", "ms", 1e3, theirs.idle_cpu, ours.idle_cpu);
        line("memory of a daemon", "MB", 1.0, theirs.memory, ours.memory);
    }
}
