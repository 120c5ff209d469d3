//! Connections through the loss of a gateway, and its return: many at once, of all kinds that a gateway translates.

use crate::agent::clock;
use crate::hold::{Held, OPEN, SERVES, turns};
use crate::lab::Lab;
use crate::lab::until;
use crate::network::{Cast, EXTERNAL, Network, underlay_ip};
use crate::programs::control;
use crate::scenario::{active, reach};
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The servers' port.
const PORT: &str = "7100";
/// The external host's address of IPv6.
pub(crate) const EXTERNAL6: &str = "fd00:16::fe";
/// The machines' addresses of IPv6, each with its router's.
const MACHINES6: [(&str, &str, &str); 3] =
    [("vm1", "fd00:1::11", "fd00:1::1"), ("vm2", "fd00:2::12", "fd00:2::1"), ("vm3", "fd00:1::13", "fd00:1::1")];
/// Clients of the load balancers with affinity.
const AFFINE: u16 = 16;
/// How long a change of gateways goes on to be felt.
const SETTLED: Duration = Duration::from_secs(2);
/// How long something may take.
const LIMIT: Duration = Duration::from_secs(40);
/// How long what has changed may take to get to the peer, on a machine that has much to do.
const TOLD: Duration = Duration::from_secs(1);

/// Questions a second of each kind, over TCP and over UDP, if nothing else is said.
pub const QUESTIONS: u32 = 1000;

/// How late a last answer may be until what is known of its connection is noted.
const LATE: Duration = Duration::from_secs(10);

/// How long the databases are away when a gateway dies meanwhile.
const HEADLESS: Duration = Duration::from_secs(6);

/// How late hypervisors see that another gateway serves.
const UNSEEN: Duration = Duration::from_millis(300);

/// How a gateway is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Loss {
    /// Its switch is killed, and started again.
    Kill,
    /// Its link to the underlay is cut.
    Underlay,
    /// Its link to the physical network is cut.
    Uplink,
    /// Another gateway is preferred from now on.
    Order,
    /// So it is, and the hypervisors' controllers stand still for a moment, so that they see it late.
    Unseen,
    /// It is drained (`isthmusctl gateways drain`).
    Drain,
    /// Its switch stands still for some seconds, and then goes on as if nothing had been: it takes itself for active.
    Pause,
    /// So do all of its programs, as those of a virtual machine that is suspended.
    Suspend,
    /// Its switch is killed while the databases and northd do not answer for some seconds.
    Headless,
    /// Nothing happens to it: what is lost all the same, the machine loses that all of this runs on.
    Nothing,
}

impl Loss {
    /// All real ones.
    pub const ALL: [Loss; 9] = [
        Loss::Kill,
        Loss::Underlay,
        Loss::Uplink,
        Loss::Order,
        Loss::Unseen,
        Loss::Drain,
        Loss::Pause,
        Loss::Suspend,
        Loss::Headless,
    ];

    /// gw1 is lost.
    fn strike(self, n: &mut Network) -> Result<()> {
        match self {
            Loss::Kill => n.lab.kill("gw1", "switch"),
            Loss::Underlay => drop(n.lab.ip("fabric", &["link", "set", "u-gw1", "down"])?),
            Loss::Uplink => drop(n.lab.ip("tor", &["link", "set", "p-gw1", "down"])?),
            Loss::Order => prefer(n, "gw2")?,
            Loss::Unseen => prefer_unseen(n, "gw2")?,
            Loss::Drain => drop(n.ctl("central", &["gateways", "drain", "gw1"])?),
            Loss::Pause => n.lab.signal("gw1", "switch", Signal::SIGSTOP),
            Loss::Suspend => ["switch", "controller"].iter().for_each(|p| n.lab.signal("gw1", p, Signal::SIGSTOP)),
            Loss::Headless => {
                n.lab.signal("central", "northd", Signal::SIGSTOP);
                n.lab.kill("gw1", "switch");
                n.lab.pause(HEADLESS)?;
                n.lab.signal("central", "northd", Signal::SIGCONT);
            }
            Loss::Nothing => {}
        }
        Ok(())
    }

    /// Who serves while gw1 is lost.
    fn successor(self) -> &'static str {
        if self == Loss::Nothing { "gw1" } else { "gw2" }
    }

    /// gw1 comes back.
    fn mend(self, n: &mut Network) -> Result<()> {
        match self {
            Loss::Kill | Loss::Headless => {
                n.switch("gw1")?;
                n.address("gw1")
            }
            Loss::Underlay => n.lab.ip("fabric", &["link", "set", "u-gw1", "up"]).map(drop),
            Loss::Uplink => n.lab.ip("tor", &["link", "set", "p-gw1", "up"]).map(drop),
            Loss::Order => prefer(n, "gw1"),
            Loss::Unseen => prefer_unseen(n, "gw1"),
            Loss::Drain => n.ctl("central", &["gateways", "undrain", "gw1"]).map(drop),
            Loss::Pause => {
                n.lab.signal("gw1", "switch", Signal::SIGCONT);
                Ok(())
            }
            Loss::Suspend => {
                ["controller", "switch"].iter().for_each(|p| n.lab.signal("gw1", p, Signal::SIGCONT));
                Ok(())
            }
            Loss::Nothing => Ok(()),
        }
    }
}

/// The description of the network.
const YAML: &str = include_str!("../survive.yaml");

/// Applies the network with this gateway as the preferred one, and waits for the chassis.
fn prefer(n: &Network, gateway: &str) -> Result<()> {
    n.apply(&preferring(n, gateway)?).map(drop)
}

/// The description of the network with this gateway as the preferred one.
fn preferring(n: &Network, gateway: &str) -> Result<PathBuf> {
    let (usual, priority) = ("gw1: 20", if gateway == "gw1" { 20 } else { 5 });
    let file = n.lab.machine_dir("central").join("survive.yaml");
    std::fs::write(&file, YAML.replace(usual, &format!("gw1: {priority}")))?;
    Ok(file)
}

/// Likewise, while the hypervisors' controllers stand still.
fn prefer_unseen(n: &mut Network, gateway: &str) -> Result<()> {
    let all = |n: &mut Network, signal| ["hv1", "hv2"].iter().for_each(|hv| n.lab.signal(hv, "controller", signal));
    let file = preferring(n, gateway)?.display().to_string();
    all(n, Signal::SIGSTOP);
    let done = n.ctl("central", &["apply", "--no-wait", "-f", &file]).and_then(|_| n.lab.pause(UNSEEN));
    all(n, Signal::SIGCONT);
    done
}

/// Starts the network: machines have their addresses, and gw1 serves.
///
/// # Errors
/// Something does not start.
pub fn start(name: &str, cast: Cast) -> Result<Network> {
    let dir: PathBuf = std::env::temp_dir().join(format!("isthmus-{name}"));
    let n = Network::start(Lab::new(name, &dir)?, cast, |_| {})?;
    prefer(&n, "gw1")?;
    n.addresses()?;
    for (m, ip, router) in MACHINES6 {
        n.lab.ip(m, &["addr", "add", &format!("{ip}/64"), "dev", "eth0", "nodad"])?;
        n.lab.ip(m, &["route", "replace", "default", "via", router, "dev", "eth0"])?;
    }
    n.lab.ip("ext", &["addr", "add", &format!("{EXTERNAL6}/64"), "dev", "eth0", "nodad"])?;
    for a in affine() {
        n.lab.ip("ext", &["addr", "add", &format!("{a}/24"), "dev", "eth0"])?;
    }
    serves(&n, "gw1")?;
    Ok(n)
}

/// The addresses of the clients of load balancers with affinity.
fn affine() -> impl Iterator<Item = String> {
    (0..AFFINE).map(|i| format!("172.16.0.{}", 200 + i))
}

/// Has the gateways know each other's connections.
///
/// # Errors
/// They do not find each other.
pub fn share_connections(n: &Network) -> Result<()> {
    let gateways = ["gw1", "gw2"];
    let ids = serde_json::json!(["map", [["isthmus-ha-listen", "ptcp:6655"]]]);
    let change = serde_json::json!([{
        "op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["external_ids", "insert", ids]],
    }]);
    for g in gateways {
        let db = format!("unix:{}", n.lab.machine_dir(g).join("db.sock").display());
        n.ctl(g, &["db", &db, "transact", "Open_vSwitch", &change.to_string()])?;
    }
    for g in gateways {
        until(&format!("{g}'s peer"), LIMIT, || connected(n, g))?;
    }
    Ok(())
}

/// Has the gateways know each other's connections without a controller of ours: the operator writes the columns.
///
/// # Errors
/// They do not find each other.
pub fn share_by_hand(n: &Network) -> Result<()> {
    for (g, peer) in [("gw1", "gw2"), ("gw2", "gw1")] {
        let db = format!("--db=unix:{}", n.lab.machine_dir(g).join("db.sock").display());
        let peers = format!("other_config:ha-peers={peer}=tcp:{}:6655", underlay_ip(peer));
        let listen = "external_ids:isthmus-ha-listen=ptcp:6655";
        let set = ["set", "Open_vSwitch", ".", listen, "--", "set", "Bridge", "br-int", &peers];
        let zones = "other_config:ha-zones=\"*_dnat,*_snat\"";
        n.lab.exec(g, "ovs-vsctl", &[&[db.as_str()], &set[..], &[zones]].concat())?;
    }
    ["gw1", "gw2"].iter().try_for_each(|g| until(&format!("{g}'s peer"), LIMIT, || connected(n, g)))
}

/// gw1 is drained and gets its ports back, and packets pass both ways each time; then gw2, which serves nothing.
///
/// # Errors
/// Another one than expected serves, or packets do not pass.
pub fn drained_and_back(n: &Network) -> Result<()> {
    let ctl = |what: &str, gateway: &str| n.ctl("central", &["gateways", what, gateway]);
    serves(n, "gw1")?;
    both_ways(n)?;
    for _ in 0..2 {
        for (what, server) in [("drain", "gw2"), ("undrain", "gw1")] {
            ctl(what, "gw1")?;
            // It returns when that has happened.
            let now = active(n)?;
            ensure!(now == server, "after {what} {now} serves");
            both_ways(n)?;
        }
    }
    ctl("drain", "gw2")?;
    let said = n.ctl("central", &["gateways"])?;
    ensure!(active(n)? == "gw1" && said.contains("priority 0"), "{said}");
    ctl("undrain", "gw2")?;
    both_ways(n)
}

/// Packets pass: out by SNAT, of both families, and in by a floating IP.
pub(crate) fn both_ways(n: &Network) -> Result<()> {
    reach(&n.lab, "vm2", EXTERNAL)?;
    reach(&n.lab, "vm1", EXTERNAL6)?;
    reach(&n.lab, "ext", "172.16.0.13").map(drop)
}

/// Both streams of a gateway are there, and its peer's dump has been taken.
fn connected(n: &Network, gateway: &str) -> Result<()> {
    let said = show(n, gateway)?;
    if said.contains("to it: connected") && said.contains("from it: connected") && !said.contains("no dump yet") {
        return Ok(());
    }
    bail!("{said}")
}

/// `ha/show` of a gateway.
///
/// # Errors
/// It does not answer.
pub fn show(n: &Network, gateway: &str) -> Result<String> {
    ask(n, gateway, "ha/show")
}

/// What a gateway's switch answers to a command.
fn ask(n: &Network, gateway: &str, command: &str) -> Result<String> {
    let pid = n.lab.pid(gateway, "switch").context("its switch does not run")?;
    control(&n.lab.machine_dir(gateway).join(format!("dpdk-dataplane.{pid}.ctl")), command)
}

/// Some connections: of whom, and what they are called.
#[derive(Clone, Debug)]
pub struct Group {
    /// Where they begin.
    pub machine: &'static str,
    /// What kind they are.
    pub name: &'static str,
    /// To whom.
    to: String,
    /// How many of TCP, and as many of UDP.
    pub count: u16,
    /// The first source port. Machines use the same ones, so that the gateway has to choose others.
    port: u16,
    /// Milliseconds between questions of a connection.
    every: u64,
    anew: bool,
}

/// All kinds of connections that a gateway translates. `count` of TCP, and of UDP, for each machine behind SNAT; a
/// quarter of it of each other kind. Each kind asks so many questions a second over TCP, and over UDP, however many
/// connections there are.
pub fn groups(count: u16, questions: u32) -> Vec<Group> {
    let some = (count / 4).max(4);
    let to = |ip: &str| if ip.contains(':') { format!("[{ip}]:{PORT}") } else { format!("{ip}:{PORT}") };
    let group = |machine, name, ip: &str, count: u16, port, anew| {
        let every = if anew { 1000 } else { (u64::from(count) * 1000 / u64::from(questions)).max(100) };
        Group { machine, name, to: to(ip), count, port, every, anew }
    };
    vec![
        group("vm1", "SNAT", EXTERNAL, count, 20000, false),
        group("vm2", "SNAT", EXTERNAL, count, 20000, false),
        group("vm3", "out by floating IP", EXTERNAL, some, 20000, false),
        group("vm1", "SNAT of IPv6", EXTERNAL6, some, 30000, false),
        group("vm2", "SNAT of IPv6", EXTERNAL6, some, 30000, false),
        group("ext", "floating IP", "172.16.0.13", some, 22000, false),
        group("ext", "floating IP of IPv6", "fd00:16::13", some, 24000, false),
        group("ext", "load balancer", "172.16.0.100", some, 26000, false),
        group("ext", "load balancer of IPv6", "fd00:16::100", some, 28000, false),
        group("ext", "load balancer with affinity", "172.16.0.101", AFFINE, 0, true),
    ]
}

impl Group {
    fn key(&self) -> String {
        format!("hold-{}", self.name.replace(' ', "-"))
    }

    fn args(&self) -> Vec<String> {
        let numbers =
            [("--count", self.count.into()), ("--port", self.port.into()), ("--every", self.every), ("--seconds", 600)];
        let mut all = vec!["agent".to_owned(), "hold".into(), self.to.clone()];
        all.extend(numbers.iter().flat_map(|(name, n)| [(*name).to_owned(), n.to_string()]));
        if self.anew {
            all.extend(["--anew".to_owned(), "--from".into(), affine().collect::<Vec<_>>().join(",")]);
        }
        all
    }
}

/// What became of all connections of a run.
#[derive(Clone, Debug, Default)]
pub struct Survived {
    /// Of each group.
    pub groups: Vec<(Group, Held)>,
    /// When gateways changed: from the loss, or its end, until two seconds after the new one served, in microseconds of the
    /// machine's clock.
    pub changes: Vec<Range<u64>>,
}

impl Survived {
    /// How many datagrams were lost while gateways changed.
    fn lost_meanwhile(&self) -> usize {
        let lost = self.groups.iter().flat_map(|(_, h)| &h.lost);
        lost.filter(|t| self.changes.iter().any(|c| c.contains(t))).count()
    }
}

/// Holds connections of all kinds while gw1 is lost, comes back and takes over again, in each of these ways.
///
/// # Errors
/// A gateway does not take over.
pub fn through(n: &mut Network, groups: Vec<Group>, losses: &[Loss]) -> Result<Survived> {
    serves(n, "gw1")?;
    let agent = n.agent();
    for m in ["ext", "vm1", "vm2", "vm3"] {
        n.lab.spawn(m, "serve", &agent, &["agent", "hold-serve", PORT, "--word", m])?;
    }
    for m in ["ext", "vm1", "vm2", "vm3"] {
        says(n, m, "serve", SERVES)?;
    }
    for g in &groups {
        let args = g.args();
        n.lab.spawn(g.machine, &g.key(), &agent, &args.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    for g in &groups {
        if let Err(e) = says(n, g.machine, &g.key(), OPEN) {
            note_what_is_known(n)?;
            return Err(e);
        }
    }
    let mut all = Survived::default();
    for loss in losses {
        n.lab.pause(TOLD)?;
        let at = clock();
        loss.strike(n)?;
        serves(n, loss.successor()).with_context(|| format!("{loss:?}"))?;
        n.lab.pause(SETTLED)?;
        all.changes.push(at..clock());
        n.lab.pause(TOLD)?;
        let at = clock();
        loss.mend(n)?;
        serves(n, "gw1").with_context(|| format!("back from {loss:?}"))?;
        n.lab.pause(SETTLED)?;
        all.changes.push(at..clock());
    }
    for g in &groups {
        n.lab.signal(g.machine, &g.key(), Signal::SIGTERM);
    }
    note_the_silent(n, &groups)?;
    for g in groups {
        let ended = n.lab.wait(g.machine, &g.key(), Duration::from_secs(90));
        let said = n.lab.output(g.machine, &g.key());
        if !ended {
            bail!("{}: {} has not ended: {said}", g.machine, g.name);
        }
        let last = said.lines().last().with_context(|| format!("{} said nothing", g.machine))?;
        let held = serde_json::from_str(last).with_context(|| format!("{}: {said}", g.machine))?;
        all.groups.push((g, held));
    }
    for m in ["ext", "vm1", "vm2", "vm3"] {
        n.lab.kill(m, "serve");
    }
    Ok(all)
}

/// Connections that have their last answer end, each when it is its turn. Where some do not, [`note_what_is_known`].
fn note_the_silent(n: &mut Network, groups: &[Group]) -> Result<()> {
    let turns = groups.iter().map(|g| turns(Duration::from_millis(g.every))).max().unwrap_or_default();
    let (mut last, end) = (Vec::new(), Instant::now() + turns + LATE);
    while Instant::now() < end {
        last = groups.iter().filter(|g| n.lab.is_running(g.machine, &g.key())).collect();
        if last.is_empty() {
            return Ok(());
        }
        n.lab.pause(Duration::from_millis(200))?;
    }
    let names: Vec<String> = last.iter().map(|g| format!("{} of {}", g.name, g.machine)).collect();
    eprintln!("no last answer in time: {}", names.join(", "));
    note_what_is_known(n)
}

/// Puts what the gateways know of connections, and the machines of their sockets, into the lab's directory, for those who
/// look for the reason of a failure.
fn note_what_is_known(n: &Network) -> Result<()> {
    for g in ["gw1", "gw2"] {
        for (file, command) in [("connections", "dpctl/dump-conntrack"), ("peers", "ha/show")] {
            let said = ask(n, g, command).unwrap_or_else(|e| format!("{e:#}"));
            std::fs::write(n.lab.machine_dir(g).join(format!("{file}.txt")), said)?;
        }
    }
    for m in ["ext", "vm1", "vm2", "vm3"] {
        let sockets = n.lab.exec(m, "ss", &["-tuanoi"]).unwrap_or_else(|e| format!("{e:#}"));
        std::fs::write(n.lab.machine_dir(m).join("sockets.txt"), sockets)?;
    }
    Ok(())
}

/// Waits until an agent says this.
fn says(n: &Network, machine: &str, key: &str, text: &str) -> Result<()> {
    until(&format!("{machine}: {key}: {text}"), LIMIT * 2, || match n.lab.output(machine, key) {
        said if said.contains(text) => Ok(()),
        said => bail!("not yet: {said}"),
    })
}

fn serves(n: &Network, gateway: &str) -> Result<()> {
    until(&format!("{gateway} serves"), LIMIT, || match active(n)? {
        a if a == gateway => Ok(()),
        a => bail!("{a} serves"),
    })
}

/// What became of all connections of a run: figures of all groups, the worst stall.
pub(crate) fn sum<'a>(all: impl IntoIterator<Item = &'a Held>) -> Held {
    all.into_iter().fold(Held::default(), |mut sum, h| {
        sum.opened += h.opened;
        sum.resets += h.resets;
        sum.changed += h.changed;
        sum.silent += h.silent;
        sum.missed = sum.missed.max(h.missed);
        sum.came += h.came;
        sum.lost.extend(&h.lost);
        if h.longest_stall > sum.longest_stall {
            sum.longest_stall = h.longest_stall;
            sum.longest_of.clone_from(&h.longest_of);
        }
        sum.trouble = sum.trouble.or_else(|| h.trouble.clone());
        sum
    })
}

/// Whose gateways are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stack {
    /// Ours, which share connections.
    Ours,
    /// Ours, which do not.
    Unshared,
    /// The C stack's.
    C,
}

impl Stack {
    /// All of them.
    pub const ALL: [Stack; 3] = [Stack::Ours, Stack::Unshared, Stack::C];

    fn cast(self) -> (&'static str, Cast) {
        match self {
            Stack::Ours => ("ours", Cast::default()),
            Stack::Unshared => ("ours, not shared", Cast::default()),
            Stack::C => ("C", Cast::debian()),
        }
    }
}

/// Holds connections through each kind of loss, `count` of each kind and machine: ours that share connections, ours
/// that do not, and the C stack. Prints a table. A stack whose gateway does not take over is said so.
///
/// # Errors
/// A lab cannot be made.
pub fn bench((count, questions): (u16, u32), runs: usize, losses: &[Loss], stacks: &[Stack]) -> Result<()> {
    println!("connections through the loss and the return of the active gateway, a quarter of them idle");
    println!(
        "\n| lost by | | opened | reset | other port or backend | silent | longest stall | datagrams lost or late | at a change | of | most in a row |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for _ in 0..runs {
        for loss in losses {
            for stack in stacks {
                let (name, cast) = stack.cast();
                let mut n = start("isbsurv", cast)?;
                if *stack == Stack::Ours {
                    share_connections(&n)?;
                }
                let all = match through(&mut n, groups(count, questions), &[*loss]) {
                    Ok(all) => all,
                    Err(e) => {
                        println!("| {loss:?} | {name} | {e:#} |");
                        continue;
                    }
                };
                for (g, h) in all.groups.iter().filter(|(_, h)| h.resets + h.changed + h.silent > 0) {
                    eprintln!("{loss:?} of {name}: {} of {}: {h:?}", g.name, g.machine);
                }
                let h = sum(all.groups.iter().map(|(_, h)| h));
                let (opened, stall) = (h.opened, h.longest_stall / 1000);
                println!(
                    "| {loss:?} | {name} | {opened} | {} | {} | {} | {stall} ms | {} | {} | {} | {} |",
                    h.resets,
                    h.changed,
                    h.silent,
                    h.lost.len(),
                    all.lost_meanwhile(),
                    h.came,
                    h.missed
                );
                eprintln!("the longest stall: {}", h.longest_of);
            }
        }
    }
    Ok(())
}
