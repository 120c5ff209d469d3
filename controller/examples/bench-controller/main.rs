//! The controller beside OVN's own in the same run: the same cloud, made by one northd and served by our database server, and the same
//! switch, Open vSwitch's `ovs-vswitchd` with its dummy datapath.
//!
//! `make bench-controller` (`SCALE=40` for a quick look), or `bench-controller [TENANTS] [MAC_BINDINGS] [CHANGES]`; 400 tenants make 200,000
//! logical flows. Without more the OVN is the installed one (Debian's 23.03); `OVN=DIR` takes that of a tree that was built there, and
//! `NORTHD=PROGRAM` has the cloud made by another northd, `BESIDE=PROGRAM` takes another controller in C's place, as one of before a change. `ONLY=ours` or `ONLY=theirs` runs one controller, `MONITOR=all` or `MONITOR=local`
//! one kind of replication. Single changes are made in both clouds in turn, so that what else happens on the machine meets both alike. `MADE=DIR` keeps the cloud's database in a folder, for later runs with the same OVN. `QUIET=20` takes a change for over when no flow
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

/// Starts a chassis with this controller, and tells it of the neighbours.
async fn start(
    program: &Path,
    made: &Path,
    folder: &Path,
    size: Size,
    monitor_all: bool,
    f: &mut Figures,
) -> Result<World> {
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
    Ok(w)
}

/// Measures these controllers: starts one after the other, single changes in turn, floods one after the other.
async fn measure(
    programs: &[(&str, &Path)],
    made: &Path,
    folder: &Path,
    size: Size,
    monitor_all: bool,
) -> Result<Vec<Figures>> {
    let mut figures = vec![Figures::new(); programs.len()];
    let mut worlds = Vec::new();
    for ((name, program), f) in programs.iter().zip(&mut figures) {
        eprintln!("{name}, {}", json!({"ovn-monitor-all": monitor_all}));
        worlds.push(
            start(program, made, &folder.join(name), size, monitor_all, f).await.with_context(|| name.to_string())?,
        );
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    changes::all(&worlds, size.changes, &mut figures).await?;
    if std::env::var_os("FLOOD").is_none_or(|v| v != "no") {
        for ((w, f), (name, _)) in worlds.iter().zip(&mut figures).zip(programs) {
            eprintln!("{name}, floods");
            flood::run(w, f).await.with_context(|| name.to_string())?;
        }
    }
    Ok(figures)
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
        let controller = std::env::var_os("BESIDE").map_or(found.controller, PathBuf::from);
        Ok(Ovn { northd, controller, ..found })
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
        let programs: Vec<(&str, &Path)> = [("theirs", ovn.controller.as_path()), ("ours", ours.as_path())]
            .into_iter()
            .filter(|(name, _)| only.as_ref().is_none_or(|o| o == name))
            .collect();
        let folder = tempfile::tempdir()?;
        let measured = measure(&programs, made, folder.path(), size, monitor_all).await;
        if measured.is_err() {
            eprintln!("left for inspection: {}", folder.keep().display());
        }
        let measured: BTreeMap<&str, Figures> = programs.iter().map(|(name, _)| *name).zip(measured?).collect();
        println!("\nreplicated: {kind}\n{:<50} {:>12} {:>12} {:<4} {:>8}", "", "C", "ours", "", "ratio");
        let keys: std::collections::BTreeSet<_> = measured.values().flat_map(|f| f.keys().copied()).collect();
        for key in keys {
            let of = |name: &str| measured.get(name).and_then(|f| f.get(&key)).copied().unwrap_or(f64::NAN);
            let (theirs, ours) = (of("theirs"), of("ours"));
            println!("{:<50} {theirs:>12.2} {ours:>12.2} {:<4} {:>8.2}", key.1, key.2, theirs / ours);
        }
    }
    Ok(())
}
