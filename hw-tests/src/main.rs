//! The lab: the demo and the agents that run inside its machines.

use anyhow::Result;
use clap::{Parser, Subcommand};
use hw_tests::agent::{self, Agent};
use hw_tests::bfd_bench::Underlay;
use hw_tests::lab::Lab;
use hw_tests::network::{Cast, Maker, Network};
use hw_tests::scenario::{Check, Runner, active};
use hw_tests::survive::{Loss, QUESTIONS, Stack};
use hw_tests::zones::{self, Zones};
use hw_tests::{report, transit};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// End-to-end scenarios of Isthmus.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Builds the gateway scenario on this machine, checks it, fails a gateway over and back.
    Gateway {
        /// The lab's name: its namespaces begin with it.
        #[arg(long, default_value = NAME)]
        name: String,
        /// The logical network.
        #[arg(long, default_value = "hw-tests/demo.yaml")]
        network: PathBuf,
        /// Leaves everything up at the end.
        #[arg(long)]
        keep: bool,
        /// Machines whose switch is Debian's ovs-vswitchd.
        #[arg(long, value_delimiter = ',')]
        ovs: Vec<String>,
        /// Debian's ovsdb-server serves the central databases.
        #[arg(long)]
        ovsdb: bool,
        /// Debian's ovn-northd compiles.
        #[arg(long)]
        northd: bool,
        /// Leaves the failover out.
        #[arg(long)]
        steady: bool,
        /// Writes a page with the topology, the timelines and the checks.
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
    /// Builds two zones that interconnect joins, checks them, fails a gateway between them over and one zone's central.
    Zones {
        /// The lab's name: its namespaces begin with it.
        #[arg(long, default_value = NAME)]
        name: String,
        /// Leaves everything up at the end.
        #[arg(long)]
        keep: bool,
        /// Leaves out what kills something.
        #[arg(long)]
        steady: bool,
        /// Writes a page with the topology, the timelines and the checks.
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
    /// Builds two zones with a transit router and a transit switch, and checks them.
    Transit {
        /// The lab's name: its namespaces begin with it.
        #[arg(long, default_value = NAME)]
        name: String,
        /// Leaves everything up at the end.
        #[arg(long)]
        keep: bool,
    },
    /// Measures outages at failover and failback, ours and the C stack's in one run.
    BenchFailover {
        /// How often each.
        #[arg(long, default_value_t = 3)]
        runs: usize,
    },
    /// Holds many connections through a gateway's loss: ours, ours without sharing them, and the C stack's in one run.
    BenchSurvive {
        /// How the gateway is lost; in all ways if nothing is said.
        losses: Vec<Loss>,
        /// Whose gateways.
        #[arg(long, value_delimiter = ',')]
        stack: Vec<Stack>,
        /// Connections of TCP, and of UDP, of each of two machines behind SNAT; a quarter of it of each other kind.
        #[arg(long, default_value_t = 1000)]
        count: u16,
        /// Questions a second of each kind over TCP, and over UDP; ten at most of each connection.
        #[arg(long, default_value_t = QUESTIONS, value_parser = clap::value_parser!(u32).range(1..))]
        questions: u32,
        /// How often each.
        #[arg(long, default_value_t = 1)]
        runs: usize,
    },
    /// Measures how fast the switch forwards, ours and Open vSwitch with DPDK in one run.
    BenchSwitch {
        /// Only the cases of these names; of a word that is no name those that have it in theirs.
        only: Vec<String>,
        /// The processor of the worker.
        #[arg(long, default_value_t = 1)]
        worker: usize,
        /// Measures ours alone, and leaves profiles of perf(1) in this directory.
        #[arg(long, value_name = "DIR")]
        profile: Option<PathBuf>,
        /// What packets come from and go to: files and nothing (net_pcap, net_null), or two rings (net_ring) between which the
        /// same packets go round, in the cases that leave them as they are (forward, forward-imix); others are left out then.
        #[arg(long, value_parser = ["files", "rings"], default_value = "files")]
        devices: String,
        /// Has packets in hugepages, of this hugetlbfs; without it in ordinary pages.
        #[arg(long, value_name = "DIR")]
        huge_dir: Option<PathBuf>,
        /// Another program of our switch, which is measured in place of Open vSwitch: an earlier build.
        #[arg(long, value_name = "PROGRAM", conflicts_with = "profile")]
        beside: Option<PathBuf>,
    },
    /// Measures what many BFD sessions cost a switch.
    BenchBfd {
        /// How many.
        #[arg(long, default_value_t = 1000)]
        sessions: u16,
        /// For how many seconds.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// What joins the two switches: devices of the kernel, or shared memory that DPDK polls. Without it, one after the
        /// other.
        #[arg(long, value_parser = ["af_packet", "memif"])]
        devices: Option<String>,
    },
    /// Measures what daemons take that cannot do their work, ours beside the C stack's.
    BenchIdle {
        /// For how many seconds.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: u64,
    },
    /// Measures what it costs that gateways share connections, and how far behind they are.
    BenchSync {
        /// New connections a second.
        #[arg(long, default_value_t = 100_000)]
        rate: u32,
        /// How many.
        #[arg(long, default_value_t = 1_000_000)]
        count: u32,
    },
    /// Removes what a lab that was kept left behind.
    Clean {
        /// The lab's name.
        #[arg(long, default_value = NAME)]
        name: String,
    },
    /// Runs inside a machine of the lab.
    Agent {
        #[command(subcommand)]
        agent: Agent,
    },
}

/// The lab's name where nothing else is said.
const NAME: &str = "isthmus";

/// An empty lab in a directory of its own; what one of that name left behind is gone.
fn lab(name: &str) -> Result<Lab> {
    Lab::new(name, &std::env::temp_dir().join(format!("{name}-lab")))
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Clean { name } => lab(&name).map(|_| true),
        Command::Agent { agent } => agent::run(&agent).map(|()| true),
        Command::BenchFailover { runs } => hw_tests::bench::failover(runs).map(|()| true),
        Command::BenchSurvive { losses, stack, count, questions, runs } => {
            let losses = if losses.is_empty() { Loss::ALL.to_vec() } else { losses };
            let stacks = if stack.is_empty() { Stack::ALL.to_vec() } else { stack };
            hw_tests::survive::bench((count, questions), runs, &losses, &stacks).map(|()| true)
        }
        Command::BenchSwitch { only, worker, profile, devices, huge_dir, beside } => {
            let (profile, huge, beside) = (profile.as_deref(), huge_dir.as_deref(), beside.as_deref());
            let plan = hw_tests::switch_bench::Plan { worker, rings: devices == "rings", huge, profile, beside };
            hw_tests::switch_bench::measure(&only, plan)
        }
        Command::BenchSync { rate, count } => {
            hw_tests::sync_bench::measure(hw_tests::sync_bench::Plan { rate, count }).map(|()| true)
        }
        Command::BenchIdle { seconds } => hw_tests::idle_bench::measure(Duration::from_secs(seconds)).map(|()| true),
        Command::BenchBfd { sessions, seconds, devices } => {
            let chosen = match devices.as_deref() {
                Some("memif") => &[Underlay::Memif][..],
                Some(_) => &[Underlay::AfPacket],
                None => &[Underlay::AfPacket, Underlay::Memif],
            };
            hw_tests::bfd_bench::sessions(sessions, Duration::from_secs(seconds), chosen).map(|()| true)
        }
        Command::Zones { name, keep, steady, page } => joined(&name, keep, steady, page.as_deref()),
        Command::Transit { name, keep } => through_transit(&name, keep),
        Command::Gateway { name, network, keep, ovs, ovsdb, northd, steady, page } => {
            let maker = |debian| if debian { Maker::Debian } else { Maker::Ours };
            let switches = ovs.into_iter().map(|m| (m, Maker::Debian)).collect();
            let cast = Cast { northd: maker(northd), databases: maker(ovsdb || northd), switches, ..Cast::default() };
            gateway(&name, &network, keep, cast, steady, page.as_deref())
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("isthmus-lab: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Ctrl-C and SIGTERM end the lab as its own end does: what it made is removed.
fn interrupted() -> Result<std::sync::Arc<std::sync::atomic::AtomicBool>> {
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for s in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(s, flag.clone())?;
    }
    Ok(flag)
}

/// A lab that Ctrl-C ends.
fn interruptible(name: &str) -> Result<Lab> {
    let stop = interrupted()?;
    let mut lab = lab(name)?;
    lab.stop_on(stop);
    Ok(lab)
}

/// Starts two zones, and says what it does.
fn two_zones(name: &str, chassis: &[zones::Chassis], machines: &[zones::Machine]) -> Result<Zones> {
    Zones::start(interruptible(name)?, chassis, machines, |what| println!("• {what}"))
}

/// Says how a check went.
fn tell(c: &Check) {
    println!("{} {}: {}", if c.held { "✓" } else { "✗" }, c.name, c.detail);
}

fn gateway(name: &str, file: &Path, keep: bool, cast: Cast, steady: bool, page: Option<&Path>) -> Result<bool> {
    let lab = interruptible(name)?;
    let mut tell = tell;
    println!("The gateway scenario: two hypervisors, two gateways, an external host behind a VLAN.");
    let mut network = Network::start(lab, cast, |what| println!("• {what}"))?;
    println!("• applying {}", file.display());
    print!("{}", network.apply(&file.canonicalize()?)?);
    let mut runner = Runner::new(&mut network, &mut tell);
    runner.steady();
    let failover = if steady { None } else { runner.failover() };
    let checks = runner.checks;
    println!("\n{}", report::table(&checks));
    if let Some(p) = page {
        let active = active(&network).unwrap_or_else(|_| "nobody".into());
        std::fs::write(p, report::gateway_page(&checks, failover.as_ref(), &active))?;
        println!("the page: {}", p.display());
    }
    if keep {
        network.lab.keep();
        print!("{}", around(name, &network));
    }
    Ok(checks.iter().all(|c| c.held))
}

fn joined(name: &str, keep: bool, steady: bool, page: Option<&Path>) -> Result<bool> {
    println!("Two zones that interconnect joins: in each a central, a hypervisor and two gateways.");
    let mut z = two_zones(name, &zones::CHASSIS, &zones::MACHINES)?;
    let mut tell = tell;
    let mut runner = Runner::new(&mut z, &mut tell);
    runner.join();
    let mut failover = None;
    if !steady {
        failover = runner.gateway_fails();
        runner.central_fails();
    }
    let checks = runner.checks;
    println!("\n{}", report::table(&checks));
    if let Some(p) = page {
        let active: Vec<String> = [1, 2].iter().filter_map(|n| z.active(*n).ok()).collect();
        std::fs::write(p, report::zones_page(&checks, failover.as_ref(), &active))?;
        println!("the page: {}", p.display());
    }
    if keep {
        print!("{}", left_up(&mut z, name));
    }
    Ok(checks.iter().all(|c| c.held))
}

fn through_transit(name: &str, keep: bool) -> Result<bool> {
    println!("Two zones with a transit router and a transit switch.");
    let mut z = two_zones(name, &transit::CHASSIS, &transit::MACHINES)?;
    let mut tell = tell;
    let mut runner = Runner::new(&mut z, &mut tell);
    runner.transit();
    let checks = runner.checks;
    println!("\n{}", report::table(&checks));
    if keep {
        print!("{}", left_up(&mut z, name));
    }
    Ok(checks.iter().all(|c| c.held))
}

/// Leaves zones up, and how to look around in them.
fn left_up(z: &mut Zones, name: &str) -> String {
    z.lab.keep();
    format!("It stays up. Look around:\n{}{}", z.commands(), removal(&z.program("isthmus-lab"), name))
}

/// How a lab that stays up goes.
fn removal(program: &str, name: &str) -> String {
    let name = if name == NAME { String::new() } else { format!(" --name {name}") };
    format!("The next run removes it; so does: {program} clean{name}\n")
}

/// How to look around in a lab that stays up.
fn around(name: &str, network: &Network) -> String {
    let (nb, sb) = Network::remotes();
    let dir = network.lab.machine_dir("gw1");
    let central = network.lab.namespace("central");
    let ctl = network.program("isthmusctl");
    format!(
        "It stays up. Look around:\n  ip netns exec {central} {ctl} --nb {nb} --sb {sb} show\n  \
         ip netns exec {central} {ctl} --nb {nb} --sb {sb} gateways\n  \
         ip netns exec {} ping 172.16.0.254\n  ovs-ofctl -O OpenFlow15 dump-flows unix:{}/br-int.mgmt\n{}",
        network.lab.namespace("vm2"),
        dir.display(),
        removal(&network.program("isthmus-lab"), name),
    )
}
