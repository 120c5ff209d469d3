//! What BFD costs: a switch with many tunnels that each have a session, every 100 ms a packet each way, for 10 s.
//!
//! `make bench-bfd`, as root: our switch and Debian's Open vSwitch (its userspace datapath, without DPDK, whose threads would
//! never sleep) one after the other, each with a peer of ours. Printed is the processor time of the switch in percent of
//! one processor, without sessions and with them, and how often sessions went down meanwhile.
//! `cargo bench -p dpdk-dataplane --bench bfd -- SESSIONS` takes another number.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod common;

use common::{Namespace, Switch, able, eventually, joined};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// How long processor time is measured.
const SPAN: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(300);

/// The switch that is measured, and its peer.
struct Lab {
    switches: [Switch; 2],
    #[allow(dead_code, reason = "they live as long as the switches")]
    spaces: [Namespace; 2],
}

/// The address of the peer's end of a tunnel.
fn far(n: usize) -> String {
    format!("10.9.{}.{}", n / 250, n % 250 + 1)
}

impl Lab {
    fn new(measured: impl Fn(&Namespace) -> Switch) -> Lab {
        let spaces: [Namespace; 2] = joined("bb", "bc").into();
        let switches = [measured(&spaces[0]), Switch::ours(&spaces[1])];
        for (own, (s, ns)) in (1..).zip(switches.iter().zip(&spaces)) {
            s.vsctl("add-br br-phys -- set bridge br-phys datapath_type=netdev -- add-port br-phys eth0");
            s.vsctl("add-br br-int -- set bridge br-int datapath_type=netdev fail_mode=secure");
            ns.ip(&format!("addr replace 172.16.0.{own}/24 dev br-phys"));
            ns.ip("link set br-phys up");
        }
        // One next hop for all: the kernel's table of neighbours is small.
        spaces[0].ip("route replace 10.9.0.0/16 via 172.16.0.2");
        spaces[1].ip("addr replace 10.9.255.1/16 dev br-phys");
        Lab { switches, spaces }
    }

    fn open(&self, sessions: usize) {
        for n in 0..sessions {
            self.spaces[1].ip(&format!("addr replace {}/16 dev br-phys", far(n)));
        }
        for piece in (0..sessions).collect::<Vec<_>>().chunks(50) {
            let (mut here, mut there) = (String::new(), String::new());
            for n in piece {
                let port = format!("-- add-port br-int t{n} -- set interface t{n} type=geneve options:key=flow");
                let times = "bfd:enable=true bfd:min_rx=100 bfd:min_tx=100";
                let _ = write!(here, "{port} options:remote_ip={} {times} ", far(*n));
                let _ = write!(there, "{port} options:remote_ip=172.16.0.1 options:local_ip={} {times} ", far(*n));
            }
            self.switches[0].vsctl(here.trim_start_matches("-- ").trim());
            self.switches[1].vsctl(there.trim_start_matches("-- ").trim());
        }
        eventually("all sessions", LIMIT, || {
            let up = self.sessions("state: up");
            if up == sessions { Ok(()) } else { Err(format!("{up} of {sessions} are up")) }
        });
    }

    /// The sessions of the measured switch of which `bfd/show` says this of this end.
    fn sessions(&self, what: &str) -> usize {
        let text = self.switches[0].appctl(&["bfd/show"]).unwrap_or_default().to_lowercase();
        text.lines().filter(|l| l.trim().trim_start_matches("local ").replace("session ", "") == what).count()
    }

    /// How often sessions went down.
    fn flaps(&self) -> u64 {
        let text = self.switches[0].vsctl("--bare --columns=bfd_status find interface type=geneve");
        let counts = text.split_whitespace().filter_map(|w| w.trim_matches([',', '"']).strip_prefix("flap_count="));
        counts.filter_map(|n| n.trim_matches('"').parse::<u64>().ok()).sum()
    }

    /// Processor time of the switch in [`SPAN`], in percent of one processor.
    fn load(&self) -> f64 {
        let pid: String = std::fs::read_to_string(self.pidfile()).expect("pidfile").trim().to_owned();
        let used = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
            let words: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            // Ticks of 10 ms in user and system mode (proc(5)).
            words[11].parse::<u64>().unwrap() + words[12].parse::<u64>().unwrap()
        };
        let (before, start) = (used(), Instant::now());
        std::thread::sleep(SPAN);
        (used() - before) as f64 / start.elapsed().as_secs_f64()
    }

    fn pidfile(&self) -> String {
        let names = ["dpdk-dataplane.pid", "ovs-vswitchd.pid"].map(|n| self.switches[0].path(n));
        names.into_iter().find(|n| std::path::Path::new(n).exists()).expect("a pidfile")
    }
}

fn measure(name: &str, sessions: usize, measured: impl Fn(&Namespace) -> Switch) -> f64 {
    let lab = Lab::new(measured);
    std::thread::sleep(Duration::from_secs(3));
    let idle = lab.load();
    lab.open(sessions);
    let before = lab.flaps();
    let busy = lab.load();
    println!("| {name} | {idle:.1} % | {busy:.1} % | {} |", lab.flaps() - before);
    busy - idle
}

fn main() {
    let sessions = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(1000);
    if !able(&["ovs-vsctl", "ovs-vswitchd"]) {
        return;
    }
    println!("{sessions} sessions, 100 ms x 3\n\n| switch | idle | with sessions | went down |\n|---|---|---|---|");
    let ours = measure("ours", sessions, Switch::ours);
    let theirs = measure("Open vSwitch", sessions, Switch::debian);
    println!("\nratio of what sessions cost: {:.1}", theirs / ours);
}
