//! What it costs that gateways share connections, and how far behind they are: two switches with the flows of a gateway
//! that translates addresses. One gets datagrams of new connections at a rate, by a link, and tells them to the other, by
//! gRPC over a link of their own.

use crate::lab::{Lab, until};
use crate::programs::Programs;
use crate::switch_bench::machine::ADD_DATAPATH;
use crate::switch_bench::meter::processor_time;
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// The two gateways, each with its address on their link.
const GATEWAYS: [(&str, &str); 2] = [("gw1", "192.0.2.1"), ("gw2", "192.0.2.2")];
/// Where the datagrams come from.
const CLIENT: &str = "client";
/// Where they go.
const TO: &str = "198.51.0.1";
/// How long something may take.
const LIMIT: Duration = Duration::from_secs(120);
/// For how long connections live without packets.
const KEPT: u32 = 3600;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// New connections a second.
    pub rate: u32,
    /// How many connections.
    pub count: u32,
}

struct Pair {
    lab: Lab,
    programs: Programs,
}

impl Pair {
    fn start() -> Result<Pair> {
        let name = "isbsync";
        let mut lab = Lab::new(name, &std::env::temp_dir().join(format!("{name}-lab")))?;
        let programs = Programs::found()?;
        for m in GATEWAYS.iter().map(|g| g.0).chain([CLIENT]) {
            lab.machine(m)?;
        }
        lab.link((GATEWAYS[0].0, "sync0"), (GATEWAYS[1].0, "sync0"))?;
        lab.link((CLIENT, "eth0"), (GATEWAYS[0].0, "in0"))?;
        for (m, ip) in GATEWAYS {
            lab.ip(m, &["addr", "add", &format!("{ip}/24"), "dev", "sync0"])?;
        }
        lab.ip(CLIENT, &["addr", "add", "10.0.0.2/24", "dev", "eth0"])?;
        lab.ip(CLIENT, &["neigh", "add", "10.0.0.1", "lladdr", "02:00:00:00:00:01", "dev", "eth0"])?;
        lab.ip(CLIENT, &["route", "add", "default", "via", "10.0.0.1"])?;
        let mut pair = Pair { lab, programs };
        for (m, _) in GATEWAYS {
            pair.gateway(m)?;
        }
        Ok(pair)
    }

    fn gateway(&mut self, m: &str) -> Result<()> {
        self.programs.switch(&mut self.lab, m)?;
        let set = format!("external_ids:system-id={m}");
        self.vs(m, &["set", "Open_vSwitch", ".", &set, "external_ids:isthmus-ha-listen=ptcp:6655"])?;
        self.vs(m, &["add-br", "br-int", "--", "set", "Bridge", "br-int", "external_ids:ct-zone-lr_snat=5"])?;
        self.vs(m, &ADD_DATAPATH)?;
        let times = ["udp_first", "udp_single", "udp_multiple"].map(|k| format!("{k}={KEPT}"));
        let times: Vec<&str> = times.iter().map(String::as_str).collect();
        self.vs(m, &[&["add-zone-tp", "netdev", "zone=5"], &times[..]].concat())?;
        if m == GATEWAYS[0].0 {
            self.vs(m, &["add-port", "br-int", "in0", "--", "set", "Interface", "in0", "ofport_request=1"])?;
        }
        let bridge = format!("unix:{}", self.lab.machine_dir(m).join("br-int.mgmt").display());
        let flows = [
            "table=0,priority=0,actions=drop",
            "table=0,priority=1,udp,actions=ct(commit,zone=5,nat(src=192.0.2.100),table=1)",
            "table=1,actions=LOCAL",
        ];
        for f in flows {
            until("flows", LIMIT, || self.lab.exec(m, "ovs-ofctl", &["add-flow", &bridge, f]))?;
        }
        self.lab.exec(m, "ovs-ofctl", &["--strict", "del-flows", &bridge, "priority=0,table=0"])?;
        self.lab.ip(m, &["link", "set", "br-int", "up"]).map(drop)
    }

    fn vs(&self, machine: &str, args: &[&str]) -> Result<String> {
        let db = format!("--db=unix:{}", self.lab.machine_dir(machine).join("db.sock").display());
        self.lab.exec(machine, "ovs-vsctl", &[&["--no-wait", db.as_str()], args].concat())
    }

    fn pid(&self, machine: &str) -> Result<u32> {
        self.lab.pid(machine, "switch").context("the switch does not run")
    }

    fn ask(&self, machine: &str, command: &[&str]) -> Result<String> {
        let socket = self.lab.machine_dir(machine).join(format!("dpdk-dataplane.{}.ctl", self.pid(machine)?));
        self.lab.exec(machine, "ovs-appctl", &[&["-t", &socket.display().to_string()], command].concat())
    }

    /// Has both know each other, or nobody.
    fn share(&self, on: bool) -> Result<()> {
        for (i, (m, _)) in GATEWAYS.into_iter().enumerate() {
            let (peer, ip) = GATEWAYS[1 - i];
            let value = format!("other_config:ha-peers={peer}=tcp:{ip}:6655");
            if on {
                self.vs(m, &["set", "Bridge", "br-int", &value])?;
            } else {
                self.vs(m, &["remove", "Bridge", "br-int", "other_config", "ha-peers"])?;
            }
        }
        Ok(())
    }

    /// All that one has the other has, too.
    fn in_step(&self) -> Result<()> {
        until("all connections at the peer", LIMIT, || {
            let (count, said) = (self.connections(GATEWAYS[0].0)?, self.ask(GATEWAYS[1].0, &["ha/show"])?);
            let has = said.contains(&format!("; {count} connections,")) && said.contains("from it: connected");
            if has { Ok(()) } else { bail!("{count} at {}: {said}", GATEWAYS[0].0) }
        })
    }

    fn connections(&self, machine: &str) -> Result<u32> {
        Ok(self.ask(machine, &["dpctl/ct-get-nconns"])?.trim().parse()?)
    }

    fn flush(&self) -> Result<()> {
        GATEWAYS.iter().try_for_each(|(m, _)| self.ask(m, &["dpctl/flush-conntrack"]).map(drop))
    }

    /// Opens connections; the processor time of each main PMD thread, and how many were opened.
    fn open(&self, p: Plan, rounds: u32) -> Result<([Duration; 2], u32, f64)> {
        let time = || -> Result<[Duration; 2]> {
            Ok([processor_time(self.pid(GATEWAYS[0].0)?)?, processor_time(self.pid(GATEWAYS[1].0)?)?])
        };
        let before = time()?;
        let (rate, count, rounds) = (p.rate.to_string(), p.count.to_string(), rounds.to_string());
        let args = ["agent", "udp-open", TO, "--rate", &rate, "--count", &count, "--rounds", &rounds];
        let said = self.lab.exec(CLIENT, &self.programs.path("isthmus-lab"), &args)?;
        let took = said.trim().parse()?;
        // What waits in queues.
        self.lab.pause(Duration::from_millis(300))?;
        let after = time()?;
        Ok(([0, 1].map(|i| after[i].saturating_sub(before[i])), self.connections(GATEWAYS[0].0)?, took))
    }

    /// Datagrams that have left the first switch.
    fn forwarded(&self) -> Result<u64> {
        let stat = self.lab.exec(GATEWAYS[0].0, "cat", &["/sys/class/net/br-int/statistics/rx_packets"])?;
        Ok(stat.trim().parse()?)
    }
}

/// Measures, and prints.
///
/// # Errors
/// The switches do not start, or do not find each other.
pub fn measure(p: Plan) -> Result<()> {
    let pair = Pair::start()?;
    let us = |t: Duration, n: u32| t.as_secs_f64() * 1e6 / f64::from(n.max(1));
    println!(
        "new connections at {} a second, {} in all; processor time of main PMD threads for each\n",
        p.rate, p.count
    );
    println!("| | opened | in | active | standby |\n|---|---|---|---|---|");
    for (name, shared) in [("alone", false), ("shared", true), ("alone", false), ("shared", true)] {
        pair.share(shared)?;
        if shared {
            pair.in_step()?;
        }
        let (times, opened, took) = pair.open(p, 1)?;
        println!(
            "| {name} | {opened} | {took:.1} s | {:.2} µs | {:.2} µs |",
            us(times[0], opened),
            us(times[1], opened)
        );
        if shared {
            pair.in_step()?;
            let said = pair.ask(GATEWAYS[0].0, &["ha/show"])?;
            said.lines().filter(|l| l.contains("lag")).for_each(|l| println!("| | {} | | | |", l.trim()));
        }
        pair.share(false)?;
        pair.flush()?;
    }
    dump(&pair, p)
}

/// A dump of all connections while packets of them pass.
fn dump(pair: &Pair, p: Plan) -> Result<()> {
    let (_, opened, _) = pair.open(p, 1)?;
    let rounds = p.rate * 8 / p.count.max(1) + 1;
    let rate = |pair: &Pair, time: Duration| -> Result<f64> {
        let (start, n) = (Instant::now(), pair.forwarded()?);
        pair.lab.pause(time)?;
        Ok((pair.forwarded()? - n) as f64 / start.elapsed().as_secs_f64())
    };
    let program = pair.programs.path("isthmus-lab");
    let (each, count, rounds) = (p.rate.to_string(), opened.to_string(), (rounds * 2).to_string());
    let args = ["agent", "udp-open", TO, "--rate", &each, "--count", &count, "--rounds", &rounds];
    let mut sender = pair.lab.command(CLIENT, &program).args(args).stdout(std::process::Stdio::null()).spawn()?;
    let found = (|| {
        pair.lab.pause(Duration::from_secs(1))?;
        let usual = rate(pair, Duration::from_secs(3))?;
        let (start, n) = (Instant::now(), pair.forwarded()?);
        pair.share(true)?;
        pair.in_step()?;
        let time = start.elapsed();
        let meanwhile = (pair.forwarded()? - n) as f64 / time.as_secs_f64();
        anyhow::Ok((usual, meanwhile, time))
    })();
    // It may have ended already.
    let _ = sender.kill();
    sender.wait()?;
    let (usual, meanwhile, time) = found?;
    println!(
        "\na dump of {opened} connections: {:.2} s; forwarded {meanwhile:.0} packets a second, {:.1} % of {usual:.0} before",
        time.as_secs_f64(),
        meanwhile / usual * 100.0
    );
    Ok(())
}
