//! What each daemon takes while it cannot do its work, as none of its peers is there: ours beside the C stack's, all at once.

use crate::lab::Lab;
use crate::programs::Programs;
use anyhow::{Context, Result, bail};
use std::time::Duration;

/// How long the daemons are left alone before they are looked at; all have their longest pauses by then.
const SETTLE: Duration = Duration::from_secs(20);
/// Sockets that are not there, and a port that refuses.
const NOBODY: [&str; 2] = ["unix:nowhere.sock", "tcp:127.0.0.1:1"];

/// Daemons of ours, the C stack's, and what both are started with; a peer's address comes in the place of `{}`.
const DAEMONS: [(&str, &str, &[&str]); 6] = [
    ("ovsdb", "ovsdb-server", &["--remote={}", "relay:Open_vSwitch:{}"]),
    ("northd", "ovn-northd", &["--ovnnb-db={}", "--ovnsb-db={}"]),
    ("controller", "ovn-controller", &["{}"]),
    ("vtep-controller", "ovn-controller-vtep", &["--ovnsb-db={}", "--vtep-db={}"]),
    ("interconnect", "ovn-ic", &["--ovnnb-db={}", "--ovnsb-db={}", "--ic-nb-db={}", "--ic-sb-db={}"]),
    ("dpdk-dataplane", "ovs-vswitchd", &["{}"]),
];

/// What a process's threads have taken.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    time: Duration,
    /// How often they went to sleep: once for each time that something woke them.
    wakeups: u64,
}

/// So far (proc(5): `schedstat`, `status`).
fn taken(pid: u32) -> Result<Taken> {
    let mut all = Taken::default();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        // A thread may end meanwhile.
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let ns = read("schedstat").split_whitespace().next().and_then(|n| n.parse().ok());
        all.time += Duration::from_nanos(ns.unwrap_or(0));
        let status = read("status");
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        all.wakeups += line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(all)
}

/// Starts all daemons and prints what each takes of a processor, in percent, and how often it wakes up, within `span`.
///
/// # Errors
/// A daemon cannot be started, or ended.
pub fn measure(span: Duration) -> Result<()> {
    let name = "isbidle";
    let mut lab = Lab::new(name, &std::env::temp_dir().join(format!("{name}-lab")))?;
    let programs = Programs::found()?;
    let mut started = Vec::new();
    for (ours, theirs, options) in DAEMONS {
        for (program, path) in [(ours, programs.path(ours)), (theirs, theirs.to_owned())] {
            for (kind, nobody) in ["socket", "port"].into_iter().zip(NOBODY) {
                // A machine for each: they would fight for the files of a directory.
                let machine = format!("{}{}", started.len(), kind);
                lab.machine(&machine)?;
                let args: Vec<String> = options.iter().map(|o| o.replace("{}", nobody)).collect();
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                lab.spawn(&machine, program, &path, &args)?;
                started.push((program, kind, machine));
            }
        }
    }
    std::thread::sleep(SETTLE);
    let looked = |lab: &Lab| -> Result<Vec<Taken>> {
        started.iter().map(|(p, _, m)| lab.pid(m, p).context("no process").and_then(taken)).collect()
    };
    let before = looked(&lab)?;
    std::thread::sleep(span);
    let after = looked(&lab)?;
    println!("| daemon | what is not there | of a processor, % | wakeups a second | lines said |");
    println!("|---|---|---|---|---|");
    for ((program, kind, machine), (b, a)) in started.iter().zip(before.iter().zip(&after)) {
        if !lab.is_running(machine, program) {
            bail!("{program} ended:\n{}", lab.output(machine, program));
        }
        let share = (a.time.saturating_sub(b.time)).as_secs_f64() / span.as_secs_f64() * 100.0;
        let rate = a.wakeups.saturating_sub(b.wakeups) as f64 / span.as_secs_f64();
        let lines = lab.output(machine, program).lines().count();
        println!("| {program} | {kind} | {share:.3} | {rate:.1} | {lines} |");
    }
    Ok(())
}
