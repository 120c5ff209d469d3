//! The controller beside OVN's own in the same run: the same cloud, made by one northd and served by our database server, and the same
//! switch, Open vSwitch's `ovs-vswitchd` with its dummy datapath.
//!
//! `make bench-controller` (`SCALE=40` for a quick look), or `bench-controller [TENANTS] [MAC_BINDINGS] [CHANGES]`; 400 tenants make 200,000
//! logical flows. Without more the OVN is the installed one (Debian's 23.03); `OVN=DIR` takes that of a tree that was built there, and
//! `NORTHD=PROGRAM` has the cloud made by another northd. `ONLY=ours` or `ONLY=theirs` runs one controller, `MONITOR=all` or `MONITOR=local`
//! one kind of replication. `MADE=DIR` keeps the cloud's database in a folder, for later runs with the same OVN. `QUIET=20` takes a change for over when no flow
//! has changed for 20 ms, in place of 400: what a controller does without a change counts less then, and a profile shows changes alone.
//! `FLOOD=no` leaves the floods out; `CHANGE=acl` makes one kind of change alone (port, acl, address, mac, neighbour, backend). Processor time of starts
//! is counted in steps of 10 ms, that of changes in nanoseconds, by thread.

mod changes;
mod cloud;
mod flood;
mod process;
mod wire;
mod world;

use anyhow::{Context, Result};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use world::World;

#[derive(Clone, Copy)]
struct Size {
    tenants: usize,
    macs: usize,
    changes: usize,
}

/// What was measured, by line of the report, and what it is measured in.
type Figures = BTreeMap<(usize, &'static str, &'static str), f64>;

async fn measure(program: &Path, made: &Path, folder: &Path, size: Size, monitor_all: bool) -> Result<Figures> {
    let mut f = Figures::new();
    let begin = Instant::now();
    let mut w = World::new(made, folder, program, monitor_all).await?;
    let (at, flows, ran) = w.settle(1000).await?;
    eprintln!("  start: {flows} flows");
    f.insert((0, "flows in the switch", ""), flows as f64);
    f.insert((1, "start until the switch has all", "s"), (at - begin).as_secs_f64());
    f.insert((2, "start, processor time", "s"), ran);
    let (peak, now) = w.controller.memory();
    f.insert((3, "memory after the start, at most", "MB"), peak);
    f.insert((4, "memory after the start", "MB"), now);
    let begin = Instant::now();
    changes::neighbours(&w, size.macs).await?;
    let (at, all, after) = w.settle(flows + size.macs).await?;
    eprintln!("  neighbours: {all} flows");
    f.insert((5, "neighbours, until the switch has all", "s"), (at - begin).as_secs_f64());
    f.insert((6, "neighbours, processor time", "s"), after - ran);
    let (peak, now) = w.controller.memory();
    f.insert((7, "memory with neighbours, at most", "MB"), peak);
    f.insert((8, "memory with neighbours", "MB"), now);
    w.watch().await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    changes::all(&w, size.changes, &mut f).await?;
    if std::env::var_os("FLOOD").is_none_or(|v| v != "no") {
        flood::run(&w, &mut f).await?;
    }
    Ok(f)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// An OVN: where its programs and schemas are.
struct Ovn {
    northd: PathBuf,
    controller: PathBuf,
    schemas: PathBuf,
}

impl Ovn {
    fn find() -> Result<Ovn> {
        let found = match std::env::var_os("OVN").map(PathBuf::from) {
            Some(tree) => Ovn {
                northd: tree.join("northd/ovn-northd"),
                controller: tree.join("controller/ovn-controller"),
                schemas: tree,
            },
            None => Ovn {
                northd: installed("ovn-northd")?,
                controller: installed("ovn-controller")?,
                schemas: "/usr/share/ovn".into(),
            },
        };
        let northd = std::env::var_os("NORTHD").map_or(found.northd, PathBuf::from);
        Ok(Ovn { northd, ..found })
    }
}

/// What a program says of its version.
fn version(program: &Path) -> String {
    let out = std::process::Command::new(program).arg("--version").output();
    let text = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("of unknown version").to_string()
}

fn installed(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|d| d.join(program)).find(|p| p.exists());
    found.with_context(|| format!("{program} is not installed (scripts/install test)"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>());
    let mut next = |default| args.next().unwrap_or(Ok(default));
    let size = Size { tenants: next(400)?, macs: next(100_000)?, changes: next(15)? };
    let ours = match std::env::var_os("CONTROLLER") {
        Some(p) => PathBuf::from(p),
        None => std::env::current_exe()?
            .parent()
            .and_then(Path::parent)
            .context("where is this program?")?
            .join("controller"),
    };
    let ovn = Ovn::find()?;
    let temporary = tempfile::tempdir()?;
    let kept = std::env::var_os("MADE").map(PathBuf::from);
    let made = kept.as_deref().unwrap_or(temporary.path());
    let flows = if made.join("sb.db").exists() {
        cloud::made(made).await?
    } else {
        std::fs::create_dir_all(made)?;
        cloud::make(made, size.tenants, &ovn.northd, &ovn.schemas).await?
    };
    println!(
        "C: {}; ours: {}; switch: {}",
        version(&ovn.controller),
        version(&ours),
        version(Path::new("ovs-vswitchd"))
    );
    println!(
        "{flows} logical flows in {} tenants, {} local ports, {} neighbours, {} changes of each kind (medians)",
        size.tenants,
        cloud::LOCAL_TENANTS * cloud::SWITCHES * cloud::LOCAL_PORTS,
        size.macs,
        size.changes
    );
    let (only, monitor) = (std::env::var("ONLY").ok(), std::env::var("MONITOR").ok());
    for (kind, monitor_all) in [("all", true), ("local", false)] {
        if monitor.as_ref().is_some_and(|m| m != kind) {
            continue;
        }
        let mut both = Vec::new();
        for (name, program) in [("theirs", &ovn.controller), ("ours", &ours)] {
            if only.as_ref().is_some_and(|o| o != name) {
                both.push(Figures::new());
                continue;
            }
            eprintln!("{name}, {}", json!({"ovn-monitor-all": monitor_all}));
            let folder = tempfile::tempdir()?;
            let measured = measure(program, made, folder.path(), size, monitor_all).await;
            if measured.is_err() {
                eprintln!("left for inspection: {}", folder.keep().display());
            }
            both.push(measured.context(name)?);
        }
        println!("\nreplicated: {kind}\n{:<50} {:>12} {:>12} {:<4} {:>8}", "", "C", "ours", "", "ratio");
        let keys: std::collections::BTreeSet<_> = both.iter().flat_map(|f| f.keys().copied()).collect();
        for key in keys {
            let of = |n: usize| both.get(n).and_then(|f| f.get(&key)).copied().unwrap_or(f64::NAN);
            println!("{:<50} {:>12.2} {:>12.2} {:<4} {:>8.2}", key.1, of(0), of(1), key.2, of(0) / of(1));
        }
    }
    Ok(())
}
