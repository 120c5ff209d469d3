//! The checks of the gateway scenario.

use crate::agent::{Arrivals, Lease, Transfer, clock};
use crate::hold::{Held, OPEN, SERVES};
use crate::lab::{Lab, until};
use crate::network::{CHASSIS, EXTERNAL, Maker, Network, VMS};
use crate::survive;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A check with its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// Whether it held.
    pub held: bool,
    /// What was seen.
    pub detail: String,
}

/// A failover as it was measured. Times are in microseconds of the machine's clock.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Failover {
    /// When the gateway's dataplane was killed.
    pub killed: u64,
    /// When it was started again.
    pub revived: u64,
    /// What arrived outside, from inside.
    pub outbound: Arrivals,
    /// What arrived inside, from outside.
    pub inbound: Arrivals,
    /// The transfer that ran meanwhile, as received.
    pub transfer: Transfer,
    /// Connections that were held meanwhile, by what they are.
    #[serde(default)]
    pub held: Vec<(String, Held)>,
    /// How late the gateways told each other of connections: when, who, and milliseconds.
    #[serde(default)]
    pub lags: Vec<(u64, String, f64)>,
}

/// The longest time without an arrival between two moments, in microseconds, and the datagrams that are missing there.
pub fn outage(a: &Arrivals, from: u64, to: u64) -> (u64, u64) {
    let mut times: Vec<u64> = a.datagrams.iter().map(|d| d.1).filter(|t| (from..to).contains(t)).collect();
    times.insert(0, from);
    times.push(to);
    times.sort_unstable();
    let longest = times.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(to - from);
    let before = a.datagrams.iter().filter(|d| d.1 < from).map(|d| d.0).max();
    let after = a.datagrams.iter().filter(|d| d.1 >= to).map(|d| d.0).min();
    let expected = before.zip(after).map_or(0, |(b, a)| a.saturating_sub(b).saturating_sub(1));
    let arrived =
        a.datagrams.iter().filter(|d| before.is_none_or(|b| d.0 > b) && after.is_none_or(|x| d.0 < x)).count();
    (longest, expected.saturating_sub(arrived as u64))
}

/// Runs checks and tells of each as it ends.
pub struct Runner<'a, N = Network> {
    /// The network.
    pub network: &'a mut N,
    /// The checks so far.
    pub checks: Vec<Check>,
    tell: &'a mut dyn FnMut(&Check),
}

const LIMIT: Duration = Duration::from_secs(20);

impl<'a, N> Runner<'a, N> {
    /// A runner without checks.
    pub fn new(network: &'a mut N, tell: &'a mut dyn FnMut(&Check)) -> Runner<'a, N> {
        Runner { network, checks: Vec::new(), tell }
    }

    pub(crate) fn check(&mut self, name: &str, f: impl FnOnce(&mut N) -> Result<String>) -> bool {
        let (held, detail) = match f(self.network) {
            Ok(d) => (true, d),
            Err(e) => (false, format!("{e:#}")),
        };
        let c = Check { name: name.into(), held, detail };
        (self.tell)(&c);
        self.checks.push(c);
        held
    }
}

impl Runner<'_> {
    /// Everything that does not need a failure.
    pub fn steady(&mut self) {
        self.check("BFD is up on all tunnels of the gateways", bfd);
        for vm in VMS {
            self.check(&format!("{} gets its address by DHCP", vm.name), |n| {
                let out = n.lab.exec(vm.name, &n.agent(), &["agent", "dhcp", "eth0"])?;
                let lease: Lease = serde_json::from_str(out.trim())?;
                Ok(format!("{}/{} via {}", lease.address, lease.prefix, lease.router.context("no router")?))
            });
        }
        self.check("machines on one switch, on two chassis: vm1 → vm3", |n| ping(n, "vm1", "10.0.1.13"));
        self.check("across the router: vm1 → vm2", |n| ping(n, "vm1", "10.0.2.12"));
        self.check("across the router and chassis: vm2 → vm3", |n| ping(n, "vm2", "10.0.1.13"));
        self.check("out through the gateway by SNAT: vm2 → external host", |n| ping(n, "vm2", EXTERNAL));
        self.check("the external host sees the gateway's address", |n| {
            echo(n, "ext", 6000)?;
            let answer = ask(n, "vm2", &format!("{EXTERNAL}:6000"))?;
            if answer.contains(" 172.16.0.1 ") { Ok("172.16.0.1".into()) } else { bail!("it saw {answer:?}") }
        });
        self.check("in by a centralised floating IP: external host → vm3", |n| ping(n, "ext", "172.16.0.13"));
        self.check("in by a distributed floating IP: external host → vm1", |n| ping(n, "ext", "172.16.0.11"));
        self.check("in by a load-balanced VIP: external host → vm2 or vm3", |n| {
            echo(n, "vm3", 5000)?;
            echo(n, "vm2", 5000)?;
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..12 {
                let answer = ask(n, "ext", "172.16.0.100:5000")?;
                seen.insert(answer.split(' ').next().unwrap_or_default().to_string());
            }
            Ok(format!("answered by {}", seen.into_iter().collect::<Vec<_>>().join(" and ")))
        });
    }

    /// Kills the active gateway's dataplane under traffic, and revives it.
    pub fn failover(&mut self) -> Option<Failover> {
        let mut seen = None;
        let ok = self.check("failover and failback under traffic", |n| {
            let f = failover(n)?;
            let detail = format!(
                "{} datagrams arrived outside, {} inside",
                f.outbound.datagrams.len(),
                f.inbound.datagrams.len()
            );
            seen = Some(f);
            Ok(detail)
        });
        let f = seen.filter(|_| ok)?;
        self.gone_on(&f, ["outbound", "inbound"]);
        if !f.held.is_empty() {
            self.check("connections that were open went on, with their addresses and ports", |_| {
                let all = survive::sum(f.held.iter().map(|(_, h)| h));
                match (all.resets, all.changed, all.silent) {
                    (0, 0, 0) => {
                        Ok(format!("{} of {}, longest stall {} ms", all.opened, all.opened, all.longest_stall / 1000))
                    }
                    (r, c, s) => bail!("{r} reset, {c} changed, {s} silent of {}: {:?}", all.opened, all.trouble),
                }
            });
        }
        Some(f)
    }
}

impl<N> Runner<'_, N> {
    /// Whether traffic both ways and a transfer went on through a failover; `ways` names the directions.
    pub(crate) fn gone_on(&mut self, f: &Failover, ways: [&str; 2]) {
        let failed = |a: &Arrivals| outage(a, f.killed, f.revived);
        for (name, a) in ways.into_iter().zip([&f.outbound, &f.inbound]) {
            self.check(&format!("{name} traffic went on after the kill"), |_| {
                let (longest, lost) = failed(a);
                if longest + 500_000 > f.revived - f.killed {
                    bail!("nothing arrived for {} ms", longest / 1000);
                }
                Ok(format!("{} ms, {lost} datagrams lost", longest / 1000))
            });
            self.check(&format!("{name} traffic at failback"), |_| {
                let (longest, lost) = outage(a, f.revived, f.revived + 5_000_000);
                Ok(format!("{} ms, {lost} datagrams lost", longest / 1000))
            });
        }
        self.check("a running TCP transfer went on", |_| {
            let t = &f.transfer;
            if !t.complete || t.bytes == 0 {
                bail!("it broke after {} bytes", t.bytes);
            }
            Ok(format!("{} KiB, longest stall {} ms", t.bytes / 1024, t.longest_stall / 1000))
        });
    }
}

fn ping(n: &mut Network, from: &str, to: &str) -> Result<String> {
    reach(&n.lab, from, to)
}

/// Asks until an answer comes, then five times of which none may be missing.
pub(crate) fn reach(lab: &Lab, from: &str, to: &str) -> Result<String> {
    until(&format!("ping {from} → {to}"), LIMIT, || lab.exec(from, "ping", &["-c", "1", "-W", "1", to]))?;
    let out = lab.exec(from, "ping", &["-c", "5", "-i", "0.05", "-W", "1", to])?;
    let loss = out.lines().find(|l| l.contains("packet loss")).context("no answer")?;
    if !loss.contains(" 0% packet loss") {
        bail!("{loss}");
    }
    let rtt = out.lines().find(|l| l.contains("rtt")).and_then(|l| l.split('/').nth(4)).unwrap_or("?");
    Ok(format!("5 of 5, {rtt} ms"))
}

fn echo(n: &mut Network, machine: &str, port: u16) -> Result<()> {
    let key = format!("echo{port}");
    if !n.lab.is_running(machine, &key) {
        let agent = n.agent();
        n.lab.spawn(machine, &key, &agent, &["agent", "udp-echo", &port.to_string(), "--word", machine])?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn ask(n: &mut Network, from: &str, to: &str) -> Result<String> {
    n.lab.exec(from, &n.agent(), &["agent", "udp-ask", to])
}

/// The state of every tunnel's session, as each chassis' database says it.
fn bfd(n: &mut Network) -> Result<String> {
    until("BFD", Duration::from_secs(30), || {
        let mut up = 0;
        for m in CHASSIS {
            let ovs = format!("unix:{}", n.lab.machine_dir(m).join("db.sock").display());
            let dump = n.ctl(m, &["db", &ovs, "dump", "Open_vSwitch", "Interface"])?;
            for row in dump.split("    bfd: ").skip(1) {
                let state = row.split("[\"state\",\"").nth(1).and_then(|s| s.split('"').next()).unwrap_or("unknown");
                if state != "up" {
                    bail!("a session of {m} is {state}");
                }
                up += 1;
            }
        }
        // Each gateway with both hypervisors and the other gateway, seen from both ends.
        if up < 10 { bail!("only {up} sessions") } else { Ok(format!("{up} session ends up")) }
    })
}

/// The chassis that serves the gateway port.
///
/// # Errors
/// Where nobody does.
pub fn active(n: &Network) -> Result<String> {
    let out = n.ctl("central", &["gateways"])?;
    let line = out.lines().find(|l| l.contains("served by")).context("no gateway port")?;
    Ok(line.rsplit(' ').next().unwrap_or_default().to_string())
}

fn failover(n: &mut Network) -> Result<Failover> {
    until("gw1 serves", LIMIT, || match active(n)? {
        a if a == "gw1" => Ok(()),
        a => bail!("{a} serves"),
    })?;
    // vm2 goes out by SNAT; the external host comes in by vm3's floating IP.
    let out = Way { from: "vm2", to: "ext", address: EXTERNAL };
    let back = Way { from: "ext", to: "vm3", address: "172.16.0.13" };
    let shares = ["gw1", "gw2"].iter().all(|g| [n.cast.controller(g), n.cast.switch(g)] == [Maker::Ours; 2]);
    if shares {
        survive::share_connections(n)?;
        hold(n)?;
    }
    let mut lags = Vec::new();
    let revive = |n: &mut Network| {
        n.switch("gw1")?;
        n.address("gw1")
    };
    let mut f = through_failure(n, [out, back], "gw1", revive, |n| {
        for g in ["gw1", "gw2"] {
            // A gateway that is dead or has just started says nothing of it.
            lags.extend(survive::show(n, g).ok().as_deref().and_then(lag).map(|ms| (clock(), g.to_owned(), ms)));
        }
    })?;
    f.lags = lags;
    if shares {
        f.held = released(n)?;
    }
    Ok(f)
}

/// The lag that `ha/show` tells, in milliseconds.
fn lag(said: &str) -> Option<f64> {
    said.split("; lag ").nth(1)?.split(' ').next()?.parse().ok()
}

/// Connections that are held while a gateway fails: who begins, where they go, and what they are.
const CONNECTIONS: [(&str, &str, &str); 2] = [
    ("vm2", "172.16.0.254:7100", "machine → external host (SNAT)"),
    ("ext", "172.16.0.13:7100", "external host → machine (floating IP)"),
];

/// Opens them.
fn hold(n: &mut Network) -> Result<()> {
    let agent = n.agent();
    let says = |n: &Network, m: &str, key: &str, what: &str| {
        until(what, LIMIT, || if n.lab.output(m, key).contains(what) { Ok(()) } else { bail!("not yet") })
    };
    for m in ["ext", "vm3"] {
        n.lab.spawn(m, "hold-serve", &agent, &["agent", "hold-serve", "7100", "--word", m])?;
        says(n, m, "hold-serve", SERVES)?;
    }
    for (m, to, _) in CONNECTIONS {
        let args =
            ["agent", "hold", to, "--count", "6", "--port", "20000", "--every", "50", "--seconds", "60", "--stories"];
        n.lab.spawn(m, "hold", &agent, &args)?;
        says(n, m, "hold", OPEN)?;
    }
    Ok(())
}

/// Ends them; what became of them.
fn released(n: &mut Network) -> Result<Vec<(String, Held)>> {
    for (m, ..) in CONNECTIONS {
        n.lab.signal(m, "hold", nix::sys::signal::Signal::SIGTERM);
    }
    let mut all = Vec::new();
    for (m, _, name) in CONNECTIONS {
        n.lab.wait(m, "hold", LIMIT * 2);
        let said = n.lab.output(m, "hold");
        let last = said.lines().last().with_context(|| format!("{m}/hold said nothing"))?;
        all.push((name.to_owned(), serde_json::from_str(last).with_context(|| said.clone())?));
    }
    Ok(all)
}

/// A network of a lab.
pub(crate) trait Built {
    /// Its lab.
    fn lab(&mut self) -> &mut Lab;
    /// The program that holds the agents.
    fn agent(&self) -> String;
}

impl Built for Network {
    fn lab(&mut self) -> &mut Lab {
        &mut self.lab
    }

    fn agent(&self) -> String {
        Network::agent(self)
    }
}

/// Who sends to whom, by which address.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    pub from: &'a str,
    pub to: &'a str,
    pub address: &'a str,
}

/// Sends datagrams both ways, and a transfer outbound, while a gateway's dataplane is killed and started again.
pub(crate) fn through_failure<N: Built>(
    n: &mut N,
    [out, back]: [Way<'_>; 2],
    gateway: &str,
    revive: impl FnOnce(&mut N) -> Result<()>,
    mut look: impl FnMut(&mut N),
) -> Result<Failover> {
    const BEFORE: f64 = 2.0;
    const DOWN: f64 = 4.0;
    const AFTER: f64 = 8.0;
    let all = BEFORE + DOWN + AFTER;
    let agent = n.agent();
    let lab = n.lab();
    let (listen, seconds) = (format!("{:.1}", all + 1.0), format!("{all:.1}"));
    for (m, key, port) in [(out.to, "outbound", "7001"), (back.to, "inbound", "7002")] {
        lab.spawn(m, key, &agent, &["agent", "udp-receive", port, "--seconds", &listen])?;
    }
    lab.spawn(out.to, "sink", &agent, &["agent", "tcp-receive", "7003", "--seconds", "10"])?;
    std::thread::sleep(Duration::from_millis(200));
    for (w, key, what, port) in
        [(out, "outbound", "udp-send", 7001), (back, "inbound", "udp-send", 7002), (out, "source", "tcp-send", 7003)]
    {
        lab.spawn(w.from, key, &agent, &["agent", what, &format!("{}:{port}", w.address), "--seconds", &seconds])?;
    }
    let mut pass = |n: &mut N, seconds: f64| {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < end {
            look(n);
            n.lab().pause(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)))?;
        }
        anyhow::Ok(())
    };
    pass(n, BEFORE)?;
    let killed = clock();
    n.lab().kill(gateway, "switch");
    pass(n, DOWN)?;
    let revived = clock();
    revive(n)?;
    pass(n, AFTER)?;
    let lab = n.lab();
    let limit = Duration::from_secs(15);
    let ends = [(out.from, "outbound"), (back.from, "inbound"), (out.from, "source")];
    for (m, key) in ends.into_iter().chain([(out.to, "outbound"), (back.to, "inbound"), (out.to, "sink")]) {
        lab.wait(m, key, limit);
    }
    let read = |m: &str, key: &str| -> Result<String> {
        let out = lab.output(m, key);
        out.lines().last().map(String::from).with_context(|| format!("{m}/{key} said nothing"))
    };
    Ok(Failover {
        killed,
        revived,
        outbound: serde_json::from_str(&read(out.to, "outbound")?)?,
        inbound: serde_json::from_str(&read(back.to, "inbound")?)?,
        transfer: serde_json::from_str(&read(out.to, "sink")?).unwrap_or_default(),
        ..Failover::default()
    })
}
