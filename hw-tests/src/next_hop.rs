//! A gateway whose next hop is lost, while its links and tunnels are there.

use crate::lab::until;
use crate::network::{EXTERNAL, Network};
use crate::scenario::{active, reach};
use crate::survive::{EXTERNAL6, both_ways};
use anyhow::{Result, bail};
use std::time::Duration;

/// How long something may take: a next hop that is believed again, and a port that moves.
const LIMIT: Duration = Duration::from_secs(60);

/// gw1 loses its next hop, as a whole and of one family, and gets it back; then all gateways lose it.
///
/// # Errors
/// Another one than expected serves, or packets do not pass.
pub fn through(n: &mut Network) -> Result<()> {
    let (nb, _) = Network::remotes();
    let db = format!("--db={nb}");
    let localnet = n.lab.exec(
        "central",
        "ovn-nbctl",
        &[&db, "--bare", "--columns=name", "find", "logical_switch_port", "type=localnet"],
    )?;
    let hops = format!("options:isthmus-next-hops=\"{EXTERNAL},{EXTERNAL6}\"");
    n.lab.exec("central", "ovn-nbctl", &[&db, "set", "logical_switch_port", localnet.trim(), &hops])?;
    let bridge = format!("unix:{}", n.lab.machine_dir("tor").join("br-tor.mgmt").display());
    serves(n, &["gw1"])?;
    both_ways(n)?;
    for what in ["", ",arp", ",icmp6"] {
        let flow = format!("in_port=p-gw1{what}");
        let block = format!("priority=100,{flow},actions=drop");
        n.lab.exec("tor", "ovs-ofctl", &["-O", "OpenFlow15", "add-flow", &bridge, &block])?;
        serves(n, &["gw2"])?;
        both_ways(n)?;
        n.lab.exec(
            "tor",
            "ovs-ofctl",
            &["-O", "OpenFlow15", "--strict", "del-flows", &bridge, &format!("priority=100,{flow}")],
        )?;
        serves(n, &["gw1"])?;
        both_ways(n)?;
    }
    // Nobody reaches it: the ports stay with one that others reach.
    let address = format!("{EXTERNAL}/24");
    // With its first address the others of the network go.
    n.lab.ip("ext", &["addr", "del", &address, "dev", "eth0"])?;
    n.lab.ip("ext", &["addr", "add", "172.16.0.199/24", "dev", "eth0"])?;
    both(n, true)?;
    serves(n, &["gw1", "gw2"])?;
    reach(&n.lab, "ext", "172.16.0.13")?;
    n.lab.ip("ext", &["addr", "add", &address, "dev", "eth0"])?;
    // The one that finds its next hop first serves until the other has found it too.
    both(n, false)?;
    serves(n, &["gw1"])?;
    both_ways(n)
}

/// Waits until both gateways have published that their next hop is lost, or that it is there.
fn both(n: &Network, gone: bool) -> Result<()> {
    ["gw1", "gw2"].iter().try_for_each(|gateway| {
        until(&format!("{gateway} says lost: {gone}"), LIMIT, || match lost(n, gateway)? == gone {
            true => Ok(()),
            false => bail!("not yet"),
        })
    })
}

/// What a gateway has published of its networks.
fn lost(n: &Network, gateway: &str) -> Result<bool> {
    let (_, sb) = Network::remotes();
    let args =
        [&format!("--db={sb}"), "--bare", "--columns=other_config", "find", "chassis", &format!("name={gateway}")];
    Ok(n.lab.exec("central", "ovn-sbctl", &args)?.contains("isthmus-lost-networks=physnet1"))
}

fn serves(n: &Network, gateways: &[&str]) -> Result<()> {
    until(&format!("{gateways:?} serves"), LIMIT, || match active(n)? {
        a if gateways.contains(&&*a) => Ok(()),
        a => bail!("{a} serves"),
    })
}
