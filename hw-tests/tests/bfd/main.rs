//! BFD with others: FRR's bfdd on a link and over a router's distance, Open vSwitch over Geneve tunnels; twenty sessions
//! with each, which fall silent and come back five times. And a controller's sessions with the next hops of a router's routes.
//!
//! ```text
//!    ours ── eth0 ───── eth0 ── FRR (zebra, bfdd)
//!    ours ── eth0 ───── br-under ── Open vSwitch, twenty geneve ports
//! ```

#[path = "../common/mod.rs"]
mod common;
mod geneve;
mod plain;
mod routes;
mod speaker;

use anyhow::{Context, Result, ensure};
use bfd_rs::{Config, Ends, Path, Sessions};
use common::Guard;
use hw_tests::lab::{Lab, until};
use serde_json::Value;
use speaker::Speaker;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const SESSIONS: usize = 20;
const FLAPS: u64 = 5;
/// Slow enough for machines on which other tests run.
const INTERVAL: u32 = 100_000;

fn config() -> Config {
    Config { desired_min_tx: INTERVAL, required_min_rx: INTERVAL, detect_mult: 4, ..Config::default() }
}

/// A lab; where none can be made, the test is skipped.
fn lab(name: &str, programs: &[&str]) -> Option<Lab> {
    if !needs::root() || !needs::installed(programs) {
        return None;
    }
    Some(Lab::new(name, &std::env::temp_dir().join(name)).expect("lab"))
}

/// All come up, fall silent and come back some times; both sides agree on how often.
fn flap(ours: &Speaker, theirs: impl Fn() -> Result<usize>) -> Result<()> {
    let both = |what: &str, count: usize| {
        until(what, Duration::from_secs(40), || {
            let (up, _) = ours.up()?;
            let far = theirs()?;
            ensure!((up, far) == (count, count), "{up} of ours and {far} of theirs are up");
            Ok(())
        })
    };
    both("all sessions are up", SESSIONS)?;
    for _ in 0..FLAPS {
        ours.mute(true);
        both("no session is up", 0)?;
        ours.mute(false);
        both("all sessions are up again", SESSIONS)?;
    }
    let (_, changes) = ours.up()?;
    ensure!(changes == vec![1 + 2 * FLAPS; SESSIONS], "changes of our sessions: {changes:?}");
    ensure!(ours.discarded().0 == 0, "discarded: {:?}", ours.discarded());
    Ok(())
}

fn index(lab: &Lab, machine: &str, device: &str) -> Result<u32> {
    let text = lab.ip(machine, &["-j", "link", "show", "dev", device])?;
    let v: Value = serde_json::from_str(&text)?;
    Ok(v[0]["ifindex"].as_u64().context("ifindex")? as u32)
}

/// The addresses of a session with FRR: ours and theirs.
fn pair(n: usize) -> (String, String) {
    match n {
        0 => ("fd00:1::1".into(), "fd00:1::2".into()),
        1 => ("10.255.0.1".into(), "10.255.0.2".into()),
        n => (format!("10.1.{n}.1"), format!("10.1.{n}.2")),
    }
}

/// Starts FRR's bfdd, with zebra where it is not there yet, on a machine.
fn frr(lab: &mut Lab, machine: &str, peers: &str) -> Result<()> {
    hw_tests::frr::start(lab, machine, &[("zebra", ""), ("bfdd", peers)])
}

/// What FRR on a machine says of its peers.
fn frr_peers(lab: &Lab, machine: &str, what: &str) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&hw_tests::frr::ask(lab, machine, "bfdd", &format!("show bfd peers {what}json"))?)?)
}

fn with_frr(mut lab: Lab) -> Result<()> {
    for m in ["ours", "frr"] {
        lab.machine(m)?;
    }
    lab.link(("ours", "eth0"), ("frr", "eth0"))?;
    let mut peers = String::from("bfd\n");
    let timers = format!("  receive-interval {0}\n  transmit-interval {0}\n  detect-multiplier 4\n", INTERVAL / 1000);
    for n in 0..SESSIONS {
        let (ours, theirs) = pair(n);
        let length = if n == 0 { "/64" } else { "/24" };
        // The second session is over several hops, between addresses that are on no link.
        let (device, how) = if n == 1 { ("lo", "multihop ") } else { ("eth0", "") };
        let length = if n == 1 { "/32" } else { length };
        lab.ip(
            "ours",
            &["addr", "add", &format!("{ours}{length}"), "dev", device, "nodad"][..if n == 0 { 6 } else { 5 }],
        )?;
        lab.ip(
            "frr",
            &["addr", "add", &format!("{theirs}{length}"), "dev", device, "nodad"][..if n == 0 { 6 } else { 5 }],
        )?;
        let interface = if n == 1 { "" } else { " interface eth0" };
        peers += &format!(" peer {ours} {how}local-address {theirs}{interface}\n{timers} !\n");
    }
    let (ours, theirs) = pair(1);
    lab.ip("ours", &["route", "add", &theirs, "via", &pair(2).1, "src", &ours])?;
    lab.ip("frr", &["route", "add", &ours, "via", &pair(2).0, "src", &theirs])?;
    frr(&mut lab, "frr", &peers)?;
    let interface = index(&lab, "ours", "eth0")?;
    let mut sessions = Sessions::new(std::process::id() << 8);
    for n in 0..SESSIONS {
        let (local, remote) = pair(n);
        let path = if n == 1 { Path::MultiHop(254) } else { Path::SingleHop(interface) };
        sessions.open(
            Ends { local: local.parse()?, remote: remote.parse()?, path },
            config(),
            hw_tests::agent::clock(),
        )?;
    }
    let ours = Speaker::start(&lab.namespace("ours"), sessions, plain::Plain::open);
    let show = |what: &str| frr_peers(&lab, "frr", what);
    flap(&ours, || Ok(show("")?.iter().filter(|p| p["status"] == "up").count()))?;
    for p in show("")? {
        let times = ["remote-receive-interval", "remote-transmit-interval", "remote-detect-multiplier"];
        let seen = times.map(|t| p[t].as_u64().unwrap_or_default());
        ensure!(seen == [u64::from(INTERVAL / 1000), u64::from(INTERVAL / 1000), 4], "FRR understood {seen:?}: {p}");
    }
    for p in show("counters ")? {
        ensure!(p["session-down"] == FLAPS && p["session-up"] == FLAPS + 1, "{p}");
    }
    Ok(())
}

#[test]
fn sessions_with_frr_flap_a_hundred_times() {
    let _one = Guard::take();
    let Some(lab) = lab("isbfdf", &["/usr/lib/frr/bfdd", "/usr/lib/frr/zebra", "vtysh"]) else { return };
    if let Err(e) = with_frr(lab) {
        panic!("{e:#}");
    }
}

fn with_open_vswitch(mut lab: Lab) -> Result<()> {
    for m in ["ours", "ovs"] {
        lab.machine(m)?;
    }
    lab.link(("ours", "eth0"), ("ovs", "under0"))?;
    lab.ip("ours", &["addr", "add", "192.168.61.1/24", "dev", "eth0"])?;
    let address = |n: usize| Ipv4Addr::new(192, 168, 61, 10 + n as u8);
    for n in 0..SESSIONS {
        lab.ip("ours", &["addr", "add", &format!("{}/24", address(n)), "dev", "eth0"])?;
    }
    lab.open_vswitch("ovs", &["vswitch"])?;
    let db = format!("--db=unix:{}", lab.machine_dir("ovs").join("db.sock").display());
    let vsctl = |args: &[&str]| lab.exec("ovs", "ovs-vsctl", &[&[db.as_str(), "--timeout=10"][..], args].concat());
    vsctl(&["add-br", "br-under", "--", "set", "Bridge", "br-under", "datapath_type=netdev"])?;
    vsctl(&[
        "add-port",
        "br-under",
        "under0",
        "--",
        "add-br",
        "br-int",
        "--",
        "set",
        "Bridge",
        "br-int",
        "datapath_type=netdev",
    ])?;
    lab.ip("ovs", &["addr", "add", "192.168.61.2/24", "dev", "br-under"])?;
    lab.ip("ovs", &["link", "set", "br-under", "up"])?;
    for n in 0..SESSIONS {
        let port = format!("g{n}");
        let remote = format!("options:remote_ip={}", address(n));
        let ms = INTERVAL / 1000;
        vsctl(&[
            "add-port",
            "br-int",
            &port,
            "--",
            "set",
            "Interface",
            &port,
            "type=geneve",
            &remote,
            "options:local_ip=192.168.61.2",
            "options:key=flow",
            "bfd:enable=true",
            "bfd:mult=4",
            &format!("bfd:min_tx={ms}"),
            &format!("bfd:min_rx={ms}"),
        ])?;
    }
    let mut sessions = Sessions::new(std::process::id() << 8);
    for n in 0..SESSIONS {
        // What Open vSwitch does without further configuration: 169.254.1.1 sends to 169.254.1.0.
        let (local, remote): (IpAddr, IpAddr) = ("169.254.1.0".parse()?, "169.254.1.1".parse()?);
        let ends = Ends { local, remote, path: Path::SingleHop(n as u32 + 1) };
        sessions.open(ends, config(), hw_tests::agent::clock())?;
    }
    let addresses: Vec<Ipv4Addr> = (0..SESSIONS).map(address).collect();
    let ours = Speaker::start(&lab.namespace("ours"), sessions, move || {
        geneve::Geneve::open(&addresses, Ipv4Addr::new(192, 168, 61, 2))
    });
    let status = || vsctl(&["--bare", "--columns=bfd_status", "find", "Interface", "type=geneve"]);
    flap(&ours, || Ok(status()?.lines().filter(|l| l.contains(" state=up") && l.contains("remote_state=up")).count()))?;
    let text = status()?;
    let count = format!("flap_count={} ", 1 + 2 * FLAPS);
    let flaps = text.lines().filter(|l| l.contains(&count)).count();
    ensure!(flaps == SESSIONS, "Open vSwitch counts otherwise: {text}");
    Ok(())
}

#[test]
fn sessions_with_open_vswitch_flap_a_hundred_times() {
    let _one = Guard::take();
    let Some(lab) = lab("isbfdo", &["ovs-vswitchd", "ovsdb-server", "ovs-vsctl"]) else { return };
    if let Err(e) = with_open_vswitch(lab) {
        panic!("{e:#}");
    }
}
