//! Connections through the death of a gateway: many at once, several machines behind one address with the same ports.

use crate::hold::{Held, OPEN, SERVES};
use crate::lab::Lab;
use crate::lab::until;
use crate::network::{Cast, Network};
use crate::scenario::active;
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use std::path::Path;
use std::time::Duration;

/// The machines that go out by SNAT.
pub const MACHINES: [&str; 3] = ["vm1", "vm2", "vm3"];
/// The server's port.
const PORT: &str = "7100";
/// How long something may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The demo's network without floating IPs: all machines go out under the gateway's address.
///
/// # Errors
/// The file cannot be read or written.
pub fn without_floating_ips(demo: &Path, to: &Path) -> Result<()> {
    let text = std::fs::read_to_string(demo).with_context(|| demo.display().to_string())?;
    let kept: Vec<&str> = text.lines().filter(|l| !l.contains("dnat_and_snat")).collect();
    std::fs::write(to, kept.join("\n") + "\n").with_context(|| to.display().to_string())
}

/// Has the gateways know each other's connections.
///
/// # Errors
/// They do not find each other.
pub fn share_connections(n: &Network) -> Result<()> {
    let gateways = ["gw1", "gw2"];
    for g in gateways {
        let db = format!("--db=unix:{}", n.lab.machine_dir(g).join("db.sock").display());
        n.lab.exec(g, "ovs-vsctl", &[&db, "set", "open", ".", "external_ids:isthmus-ha-listen=ptcp:6655"])?;
    }
    for g in gateways {
        until(&format!("{g}'s peer"), LIMIT, || connected(n, g))?;
    }
    Ok(())
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
    let pid = n.lab.pid(gateway, "switch").context("its switch does not run")?;
    let socket = n.lab.machine_dir(gateway).join(format!("dpdk-dataplane.{pid}.ctl")).display().to_string();
    n.lab.exec(gateway, "ovs-appctl", &["-t", &socket, "ha/show"])
}

/// Holds `count` connections of TCP and of UDP of each machine while the active gateway is killed, comes back and takes
/// over again.
///
/// # Errors
/// A gateway does not take over.
pub fn through_death(n: &mut Network, count: u16) -> Result<Vec<Held>> {
    serves(n, "gw1")?;
    // As many questions a second however many connections there are.
    let every = u64::from(count).max(100).to_string();
    let (agent, count) = (n.agent(), count.to_string());
    n.lab.spawn("ext", "hold", &agent, &["agent", "hold-serve", PORT])?;
    says(n, "ext", SERVES)?;
    let to = format!("{}:{PORT}", crate::network::EXTERNAL);
    for m in MACHINES {
        let args = ["agent", "hold", &to, "--count", &count, "--every", &every, "--seconds", "180"];
        n.lab.spawn(m, "hold", &agent, &args)?;
    }
    for m in MACHINES {
        says(n, m, OPEN)?;
    }
    // The last changes reach the peer.
    n.lab.pause(Duration::from_secs(1))?;
    n.lab.kill("gw1", "switch");
    serves(n, "gw2")?;
    n.lab.pause(Duration::from_secs(4))?;
    n.switch("gw1")?;
    n.address("gw1")?;
    serves(n, "gw1")?;
    n.lab.pause(Duration::from_secs(2))?;
    let mut all = Vec::new();
    for m in MACHINES {
        n.lab.signal(m, "hold", Signal::SIGTERM);
    }
    for m in MACHINES {
        let ended = n.lab.wait(m, "hold", Duration::from_secs(90));
        let said = n.lab.output(m, "hold");
        if !ended {
            bail!("{m} has not ended: {said}");
        }
        let last = said.lines().last().with_context(|| format!("{m} said nothing"))?;
        all.push(serde_json::from_str(last).with_context(|| format!("{m}: {said}"))?);
    }
    n.lab.kill("ext", "hold");
    Ok(all)
}

/// Waits until a machine's agent says this.
fn says(n: &Network, machine: &str, text: &str) -> Result<()> {
    until(&format!("{machine}: {text}"), LIMIT * 2, || match n.lab.output(machine, "hold") {
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

/// What became of all connections of a run: figures of all machines, the worst stall.
fn sum(all: &[Held]) -> Held {
    all.iter().fold(Held::default(), |mut sum, h| {
        sum.opened += h.opened;
        sum.resets += h.resets;
        sum.changed += h.changed;
        sum.silent += h.silent;
        sum.longest_stall = sum.longest_stall.max(h.longest_stall);
        sum.trouble = sum.trouble.or_else(|| h.trouble.clone());
        sum
    })
}

/// Holds `count` connections of each kind and machine through a gateway's death: ours that share connections, ours that
/// do not, and the C stack. Prints a table.
///
/// # Errors
/// A lab cannot be made, or a gateway does not take over.
pub fn bench(count: u16, runs: usize) -> Result<()> {
    println!("connections of 3 machines through the kill and the return of the active gateway, half of them idle");
    println!("\n| | opened | reset | another port | silent | longest stall |\n|---|---|---|---|---|---|");
    let casts =
        [("ours", Cast::default(), true), ("ours, not shared", Cast::default(), false), ("C", Cast::debian(), false)];
    for run in 0..runs {
        for (name, cast, shared) in &casts {
            let dir = std::env::temp_dir().join("isthmus-bench-survive");
            let mut n = Network::start(Lab::new("isbsurv", &dir)?, cast.clone(), |_| {})?;
            let (yaml, demo) = (dir.join("survive.yaml"), Path::new("hw-tests/demo.yaml"));
            without_floating_ips(demo, &yaml)?;
            n.apply(&yaml)?;
            n.addresses()?;
            if *shared {
                share_connections(&n)?;
            }
            let h = sum(&through_death(&mut n, count)?);
            let (opened, stall) = (h.opened, h.longest_stall / 1000);
            println!("| {name} {} | {opened} | {} | {} | {} | {stall} ms |", run + 1, h.resets, h.changed, h.silent);
        }
    }
    Ok(())
}
