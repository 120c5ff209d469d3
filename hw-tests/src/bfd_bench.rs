//! What many BFD sessions cost a switch: two machines with as many tunnels between them as are asked for, each tunnel
//! with a session, 100 ms × 3. The far ends are addresses of one machine, so that the near one has as many tunnels, next
//! hops and sessions as a gateway in a cloud of that many chassis.

use crate::lab::{Lab, run, until};
use crate::programs::Programs;
use crate::switch_bench::meter::processor_time;
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The near and the far machine, with the switch that is measured in the near one.
const MACHINES: [&str; 2] = ["near", "far"];
const NEAR: &str = "10.0.0.1";
/// Tunnels in one transaction.
const BATCH: usize = 100;
/// How long all sessions may take to come up.
const LIMIT: Duration = Duration::from_secs(60);

/// The far end of a tunnel.
fn far(i: u16) -> String {
    format!("10.1.{}.{}", i / 250, i % 250 + 1)
}

struct Two {
    lab: Lab,
}

impl Two {
    fn start(count: u16) -> Result<Two> {
        let name = "isbbfd";
        let mut lab = Lab::new(name, &std::env::temp_dir().join(format!("{name}-lab")))?;
        let programs = Programs::found()?;
        for m in MACHINES {
            lab.machine(m)?;
        }
        lab.link((MACHINES[0], "under0"), (MACHINES[1], "under0"))?;
        for m in MACHINES {
            lab.ip(m, &["link", "set", "under0", "mtu", "1600"])?;
            programs.switch(&mut lab, m)?;
            programs.local(&lab, m, &["bridge", "br-under", "under0"])?;
            until("the bridge br-under", LIMIT, || lab.ip(m, &["link", "set", "br-under", "up", "mtu", "1600"]))?;
        }
        lab.ip(MACHINES[0], &["addr", "add", &format!("{NEAR}/8"), "dev", "br-under"])?;
        let file = lab.machine_dir(MACHINES[1]).join("addresses");
        let all: String = (0..count).map(|i| format!("addr add {}/8 dev br-under\n", far(i))).collect();
        std::fs::write(&file, all)?;
        run("ip", &["-n", &lab.namespace(MACHINES[1]), "-batch", &file.display().to_string()])?;
        let two = Two { lab };
        for m in MACHINES {
            // As OVN has it: a bridge that switches by itself would send each broadcast round and round in a thousand loops.
            two.vs(m, &["add-br", "br-int", "--", "set-fail-mode", "br-int", "secure"])?;
            let bridge = format!("unix:{}", two.lab.machine_dir(m).join("br-int.mgmt").display());
            until("the bridge br-int", LIMIT, || {
                two.lab.exec(m, "ovs-ofctl", &["--bundle", "add-flow", &bridge, "priority=0,actions=drop"])
            })?;
            two.each(count, m, |i| {
                let (near, far, name) = (NEAR.to_owned(), far(i), port(i));
                let (local, remote) = if m == MACHINES[0] { (near, far) } else { (far, near) };
                let mut args: Vec<String> =
                    ["--", "add-port", "br-int", &name, "--", "set", "Interface", &name].map(str::to_owned).into();
                args.push("type=geneve".into());
                args.push(format!("options:local_ip={local}"));
                args.push(format!("options:remote_ip={remote}"));
                args.push("options:key=flow".into());
                args
            })?;
        }
        Ok(two)
    }

    fn vs(&self, machine: &str, args: &[&str]) -> Result<String> {
        let db = format!("--db=unix:{}", self.lab.machine_dir(machine).join("db.sock").display());
        self.lab.exec(machine, "ovs-vsctl", &[&["--no-wait", db.as_str()], args].concat())
    }

    /// One command for each tunnel, some in a transaction.
    fn each(&self, count: u16, machine: &str, f: impl Fn(u16) -> Vec<String>) -> Result<()> {
        for some in (0..count).collect::<Vec<u16>>().chunks(BATCH) {
            let all: Vec<String> = some.iter().flat_map(|i| f(*i)).collect();
            self.vs(machine, &all.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn enable(&self, count: u16, machine: &str) -> Result<()> {
        self.each(count, machine, |i| {
            let set = ["bfd:enable=true", "bfd:min_rx=100", "bfd:min_tx=100", "bfd:mult=3"];
            ["--", "set", "Interface", &port(i)].into_iter().chain(set).map(str::to_owned).collect()
        })
    }

    fn pid(&self, machine: &str) -> Result<u32> {
        self.lab.pid(machine, "switch").context("the switch does not run")
    }

    /// How many sessions are up, and how often sessions have come up or gone down, as the database says.
    fn up(&self, machine: &str) -> Result<(usize, u64)> {
        let text = self.vs(machine, &["--bare", "--columns=bfd_status", "list", "Interface"])?;
        let flaps = text
            .split("flap_count=")
            .skip(1)
            .filter_map(|s| s.split_whitespace().next()?.trim_matches('"').parse::<u64>().ok());
        let up = text.lines().filter(|l| l.split_whitespace().any(|w| w == "state=up")).count();
        Ok((up, flaps.sum()))
    }

    /// The share of a processor that the near switch's main PMD thread uses.
    fn share(&self, time: Duration) -> Result<f64> {
        let (pid, start) = (self.pid(MACHINES[0])?, Instant::now());
        let before = processor_time(pid)?;
        self.lab.pause(time)?;
        Ok((processor_time(pid)?.saturating_sub(before)).as_secs_f64() / start.elapsed().as_secs_f64())
    }
}

fn port(i: u16) -> String {
    format!("tun{i}")
}

/// Measures, and prints.
///
/// # Errors
/// The switches do not start, or not all sessions come up.
pub fn sessions(count: u16, time: Duration) -> Result<()> {
    let two = Two::start(count)?;
    two.lab.pause(Duration::from_secs(3))?;
    let idle = two.share(time)?;
    let begun = Instant::now();
    for m in MACHINES {
        two.enable(count, m)?;
    }
    let asked = begun.elapsed();
    until("all sessions", LIMIT, || match MACHINES.map(|m| two.up(m).map(|u| u.0).unwrap_or(0)) {
        [a, b] if a.min(b) >= usize::from(count) => Ok(()),
        up => bail!("{up:?} of {count} are up"),
    })?;
    let up = begun.elapsed();
    two.lab.pause(Duration::from_secs(3))?;
    let before = two.up(MACHINES[0])?.1;
    let busy = two.share(time)?;
    let (still, after) = two.up(MACHINES[0])?;
    println!("| sessions | main PMD thread without / with them | a session | all up after | flaps while measured |");
    println!("|---|---|---|---|---|");
    println!(
        "| {count} | {:.2} / {:.2} % of a processor | {:.1} µs a second | {:.1} s, {:.1} s of which to ask for them | {} |",
        idle * 100.0,
        busy * 100.0,
        (busy - idle) * 1e6 / f64::from(count),
        up.as_secs_f64(),
        asked.as_secs_f64(),
        after - before,
    );
    let file: PathBuf = two.lab.machine_dir(MACHINES[0]);
    if still < usize::from(count) {
        bail!("{still} of {count} sessions are up at the end ({})", file.display());
    }
    Ok(())
}
