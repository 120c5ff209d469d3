//! What many BFD sessions cost a switch: two machines with as many tunnels between them as are asked for, each tunnel
//! with a session, 100 ms × 3. The far ends are addresses of one machine, so that the near one has as many tunnels, next
//! hops and sessions as a gateway in a cloud of that many chassis.
//!
//! With devices of the kernel (af_packet over veth) the main PMD thread pays for the kernel's part of each packet, and for the far
//! end's reception, which is done in the same call. A gateway's network card has no such part: for that the two switches can be
//! joined by shared memory (DPDK's memif).

use crate::lab::{Lab, run, until};
use crate::programs::{Programs, control};
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

/// What joins the two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Underlay {
    /// A pair of veth devices, by way of the kernel.
    AfPacket,
    /// Shared memory, which DPDK polls.
    Memif,
}

impl Underlay {
    fn name(self) -> &'static str {
        match self {
            Underlay::AfPacket => "af_packet",
            Underlay::Memif => "memif",
        }
    }
}

struct Two {
    lab: Lab,
}

/// What the main PMD thread used, in shares of a processor.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// All of its time.
    all: f64,
    /// Rounds with packets or timers, without what it costs to look and find nothing.
    busy: f64,
    /// Packets that it received and sent, a second.
    packets: f64,
}

impl Two {
    fn start(count: u16, underlay: Underlay) -> Result<Two> {
        let name = "isbbfd";
        let mut lab = Lab::new(name, &std::env::temp_dir().join(format!("{name}-lab")))?;
        let programs = Programs::found()?;
        for m in MACHINES {
            lab.machine(m)?;
        }
        if underlay == Underlay::AfPacket {
            lab.link((MACHINES[0], "under0"), (MACHINES[1], "under0"))?;
        }
        let socket = lab.machine_dir(MACHINES[0]).join("memif.sock");
        for m in MACHINES {
            programs.switch(&mut lab, m)?;
            if underlay == Underlay::AfPacket {
                lab.ip(m, &["link", "set", "under0", "mtu", "1600"])?;
                programs.local(&lab, m, &["bridge", "br-under", "under0"])?;
            } else {
                programs.local(&lab, m, &["bridge", "br-under"])?;
                let role = if m == MACHINES[0] { "server" } else { "client" };
                let place = format!("id=0,socket-abstract=no,socket={}", socket.display());
                let device = format!("options:dpdk-devargs=net_memif0,role={role},{place}");
                let db = format!("--db=unix:{}", lab.machine_dir(m).join("db.sock").display());
                let port = ["add-port", "br-under", "under0", "--", "set", "Interface", "under0", "type=dpdk"];
                lab.exec(m, "ovs-vsctl", &[&["--no-wait", db.as_str()], &port[..], &[device.as_str()]].concat())?;
            }
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

    /// What the near switch's main PMD thread uses meanwhile.
    fn share(&self, time: Duration) -> Result<Share> {
        let pid = self.pid(MACHINES[0])?;
        let socket = self.lab.machine_dir(MACHINES[0]).join(format!("dpdk-dataplane.{pid}.ctl"));
        let read = || -> Result<[f64; 3]> {
            let text = control(&socket, "dpif-netdev/pmd-stats-show")?;
            let number = |name: &str| -> Result<f64> {
                let line = text.lines().find_map(|l| l.trim().strip_prefix(name)).context("a counter is missing")?;
                Ok(line.trim_end_matches(" us").trim().parse()?)
            };
            Ok([number("busy:")?, number("packets received:")?, number("packets sent:")?])
        };
        let (counted, used, start) = (read()?, processor_time(pid)?, Instant::now());
        self.lab.pause(time)?;
        let (used, elapsed) = (processor_time(pid)?.saturating_sub(used), start.elapsed().as_secs_f64());
        let after = read()?;
        let [busy, received, sent] = [0, 1, 2].map(|i| (after[i] - counted[i]) / elapsed);
        Ok(Share { all: used.as_secs_f64() / elapsed, busy: busy / 1e6, packets: received + sent })
    }
}

fn port(i: u16) -> String {
    format!("tun{i}")
}

/// Measures with each of these, and prints.
///
/// # Errors
/// The switches do not start, or not all sessions come up.
pub fn sessions(count: u16, time: Duration, underlays: &[Underlay]) -> Result<()> {
    println!(
        "| devices | sessions | main PMD thread without / with them | busy without / with them | packets a second | a session | all up after | flaps while measured |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    underlays.iter().try_for_each(|u| one(count, time, *u))
}

fn one(count: u16, time: Duration, underlay: Underlay) -> Result<()> {
    let two = Two::start(count, underlay)?;
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
    println!(
        "| {} | {count} | {:.2} / {:.2} % of a processor | {:.2} / {:.2} % | {:.0} | {:.1} µs a second | {:.1} s, {:.1} s of which to ask for them | {} |",
        underlay.name(),
        idle.all * 100.0,
        busy.all * 100.0,
        idle.busy * 100.0,
        busy.busy * 100.0,
        busy.packets,
        (busy.all - idle.all) * 1e6 / f64::from(count),
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
