//! Dynamic routing of a gateway with the routing table of its kernel, in a namespace and without a VRF: what a router advertises stands
//! there, and what a routing daemon puts there is learned.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;

use anyhow::{Result, ensure};
use common::{Guard, able};
use hw_tests::lab::{Lab, until};
use hw_tests::programs::Programs;
use std::time::Duration;

/// How long a step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The routing table.
const TABLE: &str = "77";

struct Site {
    lab: Lab,
    programs: Programs,
}

impl Site {
    fn start() -> Result<Site> {
        let mut lab = Lab::new("isroute", &std::env::temp_dir().join("isthmus-routing"))?;
        let programs = Programs::found()?;
        for m in ["gw1", "far"] {
            lab.machine(m)?;
        }
        lab.link(("gw1", "bgp0"), ("far", "eth0"))?;
        lab.ip("gw1", &["addr", "add", "192.0.2.1/24", "dev", "bgp0"])?;
        lab.ip("gw1", &["addr", "add", "fd00:2::1/64", "dev", "bgp0", "nodad"])?;
        // As in a VRF: routes of the table lead to the link.
        lab.ip("gw1", &["route", "add", "192.0.2.0/24", "dev", "bgp0", "table", TABLE])?;
        lab.ip("gw1", &["-6", "route", "add", "fd00:2::/64", "dev", "bgp0", "table", TABLE])?;
        let dir = lab.machine_dir("gw1");
        lab.spawn("gw1", "northd", &programs.path("northd"), &[&format!("--embed={}", dir.display())])?;
        until("northd", PATIENCE, || Ok(std::fs::metadata(dir.join("ovnsb_db.sock"))?))?;
        programs.switch(&mut lab, "gw1")?;
        let sb = format!("unix:{}", dir.join("ovnsb_db.sock").display());
        programs.local(&lab, "gw1", &["set", "--name", "gw1", "--remote", &sb, "--encap-ip", "127.0.0.1"])?;
        let mut site = Site { lab, programs };
        site.controller()?;
        site.nb("ls-add net -- lr-add r -- lrp-add r r-net 02:00:00:00:00:01 192.0.2.7/24 fd00:2::7/64")?;
        site.nb("lsp-add net net-r -- lsp-set-type net-r router -- lsp-set-addresses net-r router")?;
        site.nb("lsp-set-options net-r router-port=r-net")?;
        let exchange =
            "options:chassis=gw1 options:dynamic-routing=true options:dynamic-routing-redistribute=static,nat";
        site.nb(&format!("set logical_router r {exchange} options:dynamic-routing-vrf-id={TABLE}"))?;
        Ok(site)
    }

    fn controller(&mut self) -> Result<()> {
        let db = format!("unix:{}", self.lab.machine_dir("gw1").join("db.sock").display());
        self.lab.spawn("gw1", "controller", &self.programs.path("controller"), &["--pidfile", &db])
    }

    /// Ends the controller by its control socket.
    fn exit(&mut self, how: &[&str]) -> Result<()> {
        let pid = self.lab.pid("gw1", "controller").unwrap_or_default();
        let socket = self.lab.machine_dir("gw1").join(format!("controller.{pid}.ctl"));
        let target = format!("--target={}", socket.display());
        self.lab.exec("gw1", "ovs-appctl", &[&[target.as_str(), "exit"], how].concat())?;
        ensure!(self.lab.wait("gw1", "controller", PATIENCE), "the controller does not end well");
        Ok(())
    }

    /// Runs Debian's ovn-nbctl.
    fn nb(&self, words: &str) -> Result<String> {
        let db = format!("--db=unix:{}", self.lab.machine_dir("gw1").join("ovnnb_db.sock").display());
        let words: Vec<&str> = words.split(' ').collect();
        self.lab.exec("gw1", "ovn-nbctl", &[&[db.as_str()], &words[..]].concat())
    }

    /// Waits until OVN's routes in the table are these.
    fn kernel(&self, wanted: &[&str]) -> Result<()> {
        until("the kernel's table", PATIENCE, || {
            let mut seen = Vec::new();
            for family in ["-4", "-6"] {
                // A table without routes is no table.
                let text = self.lab.ip("gw1", &[family, "route", "show", "table", TABLE]).unwrap_or_default();
                let own = text.lines().filter(|l| l.contains("proto ovn") || l.contains("proto 84"));
                seen.extend(own.map(|l| {
                    let words: Vec<&str> = l.split_whitespace().collect();
                    let metric = words.iter().position(|w| *w == "metric").and_then(|at| words.get(at + 1));
                    format!("{} {} {}", words[0], words.get(1).unwrap_or(&""), metric.unwrap_or(&"none"))
                }));
            }
            seen.sort();
            ensure!(seen == wanted, "{seen:?} instead of {wanted:?}");
            Ok(())
        })
    }

    /// Waits until routes are learned, as the router's flows have them.
    fn learned(&self, wanted: &[&str]) -> Result<()> {
        let db = format!("--db=unix:{}", self.lab.machine_dir("gw1").join("ovnsb_db.sock").display());
        until("learned routes", PATIENCE, || {
            let flows = self.lab.exec("gw1", "ovn-sbctl", &[&db, "lflow-list", "r"])?;
            let routes = flows.lines().filter(|l| l.contains("lr_in_ip_routing "));
            let seen: Vec<&str> = routes.filter(|l| l.contains("10.7") || l.contains("fd07::")).collect();
            let all = wanted.iter().all(|w| seen.iter().any(|l| l.contains(w)));
            ensure!(all && seen.len() == wanted.len(), "{seen:?} instead of {wanted:?}");
            Ok(())
        })
    }

    /// What a routing daemon does.
    fn daemon(&self, words: &str) -> Result<()> {
        let words = words.replace("TABLE", TABLE);
        self.lab.ip("gw1", &words.split(' ').collect::<Vec<_>>())?;
        Ok(())
    }
}

fn routes() -> Result<()> {
    let mut site = Site::start()?;
    site.nb("lr-route-add r 10.5.0.0/16 192.0.2.99")?;
    site.nb("lr-route-add r fd05::/48 fd00:2::99")?;
    site.nb("lr-nat-add r dnat_and_snat 203.0.113.5 10.0.0.5")?;
    let all = ["blackhole 10.5.0.0/16 1000", "blackhole 203.0.113.5 1000", "blackhole fd05::/48 1000"];
    site.kernel(&all)?;
    // A routing daemon's routes come and go; an administrator's are nobody's business.
    site.daemon("route add 10.7.0.0/16 via 192.0.2.2 table TABLE proto bgp")?;
    site.daemon("-6 route add fd07::/48 via fd00:2::2 table TABLE proto zebra")?;
    site.daemon("route add 10.70.0.0/16 via 192.0.2.2 table TABLE proto static")?;
    site.daemon("route add 10.71.0.0/16 via 192.0.2.2 proto bgp")?;
    site.learned(&["10.7.0.0/16", "fd07::/48"])?;
    site.daemon("route append 10.7.0.0/16 via 192.0.2.3 table TABLE proto bgp metric 5")?;
    site.daemon("-6 route del fd07::/48 table TABLE")?;
    // Two next hops are a route over both.
    site.learned(&["= select("])?;
    site.daemon("route del 10.7.0.0/16 via 192.0.2.3 table TABLE proto bgp metric 5")?;
    site.learned(&["10.7.0.0/16"])?;
    // One that somebody else takes away comes back.
    site.daemon("route del blackhole 10.5.0.0/16 table TABLE proto 84 metric 1000")?;
    site.kernel(&all)?;
    site.nb("lr-route-del r 10.5.0.0/16")?;
    site.kernel(&all[1..])?;
    // The next controller finds all as it was, and what changed meanwhile follows.
    site.exit(&["--restart"])?;
    site.kernel(&all[1..])?;
    site.nb("lr-route-del r fd05::/48")?;
    site.daemon("-6 route add fd07::/48 via fd00:2::2 table TABLE proto zebra")?;
    site.controller()?;
    site.kernel(&all[1..2])?;
    site.learned(&["10.7.0.0/16", "fd07::/48"])?;
    // At its end it takes its own away.
    site.exit(&[])?;
    site.kernel(&[])?;
    site.learned(&[])?;
    let rest = site.lab.ip("gw1", &["route", "show", "table", TABLE])?;
    ensure!(rest.contains("10.7.0.0/16") && rest.contains("10.70.0.0/16"), "{rest}");
    Ok(())
}

#[test]
fn routes_go_to_the_kernel_and_come_from_it() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", "ovn-sbctl", "ovs-appctl"]) {
        return;
    }
    if let Err(e) = routes() {
        panic!("{e:#}");
    }
}
