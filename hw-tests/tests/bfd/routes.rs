//! BFD of routes: a gateway's controller with FRR's bfdd as the next hop of a router.
//!
//! ```text
//!   gw1 (northd, switch, controller; router 172.16.1.1, fd00:1::1) ── phys0 ── eth0 ── far (FRR, 172.16.1.50, fd00:1::50)
//! ```

use super::common::{Guard, able};
use super::{frr, frr_peers};
use anyhow::{Context, Result, ensure};
use hw_tests::lab::{Lab, until};
use hw_tests::programs::Programs;
use std::time::Duration;

/// How long a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const PEERS: &str = "bfd\n peer 172.16.1.1 local-address 172.16.1.50 interface eth0\n  receive-interval 200\n  transmit-interval 200\n !\n \
                     peer fd00:1::1 local-address fd00:1::50 interface eth0\n  receive-interval 200\n  transmit-interval 200\n !\n";

struct Site {
    lab: Lab,
    /// The rows of the sessions over IPv4 and IPv6.
    sessions: Vec<String>,
}

impl Site {
    fn start() -> Result<Site> {
        let mut lab = Lab::new("isbfdr", &std::env::temp_dir().join("isthmus-bfd-routes"))?;
        let programs = Programs::found()?;
        for m in ["gw1", "far"] {
            lab.machine(m)?;
        }
        lab.link(("gw1", "phys0"), ("far", "eth0"))?;
        lab.ip("far", &["addr", "add", "172.16.1.50/24", "dev", "eth0"])?;
        lab.ip("far", &["addr", "add", "fd00:1::50/64", "dev", "eth0", "nodad"])?;
        programs.gateway(&mut lab, "gw1", PATIENCE)?;
        let site = Site { lab, sessions: Vec::new() };
        site.nb("ls-add net -- lsp-add net ln -- lsp-set-type ln localnet -- lsp-set-addresses ln unknown")?;
        site.nb("lsp-set-options ln network_name=physnet1")?;
        site.nb("lr-add r -- lrp-add r r-net 02:00:00:00:00:01 172.16.1.1/24 fd00:1::1/64")?;
        site.nb("lrp-set-gateway-chassis r-net gw1")?;
        site.nb("lsp-add net net-r -- lsp-set-type net-r router -- lsp-set-addresses net-r router")?;
        site.nb("lsp-set-options net-r router-port=r-net")?;
        site.nb("--wait=hv --timeout=60 sync")?;
        Ok(site)
    }

    /// Runs Debian's ovn-nbctl.
    fn nb(&self, words: &str) -> Result<String> {
        let db = format!("--db=unix:{}", self.lab.machine_dir("gw1").join("ovnnb_db.sock").display());
        let words: Vec<&str> = words.split(' ').collect();
        self.lab.exec("gw1", "ovn-nbctl", &[&[db.as_str()], &words[..]].concat())
    }

    /// Waits until the sessions with both addresses have these states.
    fn states(&self, v4: &str, v6: &str) -> Result<()> {
        let column = |row: &String| Ok(self.nb(&format!("--bare get bfd {row} status"))?.trim().to_string());
        until("the states of sessions", PATIENCE, || {
            let seen = self.sessions.iter().map(column).collect::<Result<Vec<String>>>()?;
            ensure!(seen == [v4, v6], "{seen:?} instead of {v4} and {v6}");
            Ok(())
        })
    }

    /// Waits until routes to so many of both networks are in the router's flows.
    fn routes(&self, count: usize) -> Result<()> {
        let db = format!("--db=unix:{}", self.lab.machine_dir("gw1").join("ovnsb_db.sock").display());
        until("routes", PATIENCE, || {
            let flows = self.lab.exec("gw1", "ovn-sbctl", &[&db, "lflow-list", "r"])?;
            let of = |l: &&str| {
                l.contains("lr_in_ip_routing ")
                    && (l.contains("100.0.0.0/8") || l.contains("2000::/64"))
                    && !l.contains("3784")
            };
            let seen = flows.lines().filter(of).count();
            ensure!(seen == count, "{seen} routes instead of {count}");
            Ok(())
        })
    }

    /// What FRR says of the session over IPv4.
    fn peer(&self, what: &str, key: &str) -> Result<String> {
        let all = frr_peers(&self.lab, "far", what)?;
        let peer = all.iter().find(|p| p["peer"] == "172.16.1.1").context("FRR has no such peer")?;
        Ok(peer[key].to_string().trim_matches('"').to_string())
    }

    fn agrees(&self, what: &'static str, key: &str, value: &str) -> Result<()> {
        until("FRR", PATIENCE, || {
            let seen = self.peer(what, key)?;
            ensure!(seen == value, "FRR says {key} {seen} instead of {value}");
            Ok(())
        })
    }
}

fn routes() -> Result<()> {
    let mut site = Site::start()?;
    let mut first = None;
    for (ip, prefix, times) in
        [("172.16.1.50", "100.0.0.0/8", " min_tx=300 min_rx=300 detect_mult=4"), ("fd00:1::50", "2000::/64", "")]
    {
        let bfd = site.nb(&format!("create bfd logical_port=r-net dst_ip=\"{ip}\"{times}"))?;
        site.nb(&format!("lr-route-add r {prefix} {ip}"))?;
        let find = format!("--bare --columns=_uuid find logical_router_static_route ip_prefix=\"{prefix}\"");
        let route = site.nb(&find)?;
        site.nb(&format!("set logical_router_static_route {} bfd={}", route.trim(), bfd.trim()))?;
        site.sessions.push(bfd.trim().to_string());
        first.get_or_insert(route);
    }
    let v4 = site.sessions[0].clone();
    // Nobody is there yet.
    site.states("down", "down")?;
    site.routes(0)?;
    frr(&mut site.lab, "far", PEERS)?;
    site.states("up", "up")?;
    site.routes(2)?;
    site.agrees("", "status", "up")?;
    site.agrees("", "remote-transmit-interval", "300")?;
    // Other times on the running session.
    site.nb(&format!("set bfd {v4} min_tx=150 min_rx=250 detect_mult=5"))?;
    for (key, value) in
        [("remote-transmit-interval", "150"), ("remote-receive-interval", "250"), ("remote-detect-multiplier", "5")]
    {
        site.agrees("", key, value)?;
    }
    ensure!(site.peer("counters ", "session-down")? == "0", "the session flapped");
    // A peer that dies, and comes back.
    site.lab.kill("far", "bfdd");
    std::fs::remove_file(site.lab.machine_dir("far").join("bfdd.sock"))?;
    site.states("down", "down")?;
    site.routes(0)?;
    frr(&mut site.lab, "far", PEERS)?;
    site.states("up", "up")?;
    site.routes(2)?;
    // A session that nothing needs any more: the peer is told, and the other one goes on.
    site.nb(&format!("clear logical_router_static_route {} bfd", first.unwrap_or_default().trim()))?;
    site.states("admin_down", "up")?;
    site.agrees("", "status", "down")?;
    site.agrees("", "remote-diagnostic", "administratively down")?;
    Ok(())
}

#[test]
fn routes_follow_the_sessions_with_their_next_hops() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", "ovn-sbctl", "/usr/lib/frr/bfdd", "/usr/lib/frr/zebra", "vtysh"]) {
        return;
    }
    if let Err(e) = routes() {
        panic!("{e:#}");
    }
}
