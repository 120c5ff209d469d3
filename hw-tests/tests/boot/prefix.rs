//! Prefix delegation: a router asks ISC's dhcpd on the provider's side for a prefix, and renews it.

use super::common::{Guard, able};
use super::rack::{PATIENCE, Rack, has};
use anyhow::{Result, ensure};
use hw_tests::lab::until;

/// Renewal after two seconds, and nobody else's after three.
const SERVER: &str = "default-lease-time 60;\npreferred-lifetime 60;\noption dhcp-renewal-time 2;\noption dhcp-rebinding-time 40;\n\
                      subnet6 fd00::/64 {\n  prefix6 2001:db8:3333:100:: 2001:db8:3333:f00:: /56;\n}\n";

fn delegated() -> Result<()> {
    let mut rack = Rack::start()?;
    rack.set(&["set", "logical_router", "r", "options:chassis=gw1"])?;
    rack.set(&["lrp-add", "r", "r-in", "02:00:00:00:00:05", "10.9.0.1/24"])?;
    rack.set(&["ls-add", "in"])?;
    rack.set(&["lsp-add", "in", "in-r"])?;
    rack.set(&["lsp-set-type", "in-r", "router"])?;
    rack.set(&["lsp-set-options", "in-r", "router-port=r-in"])?;
    rack.set(&["set", "logical_router_port", "r-net", "options:prefix_delegation=true"])?;
    rack.set(&["set", "logical_router_port", "r-in", "options:prefix=true"])?;
    let dir = rack.lab.machine_dir("tor");
    let path = |f: &str| dir.join(f).display().to_string();
    std::fs::write(dir.join("dhcpd.conf"), SERVER)?;
    std::fs::write(dir.join("leases"), "")?;
    let (conf, leases, pid) = (path("dhcpd.conf"), path("leases"), path("dhcpd.pid"));
    let args = ["-6", "-f", "-d", "-user", "root", "-group", "root", "-cf", &conf, "-lf", &leases, "-pf", &pid, "br0"];
    rack.lab.spawn("tor", "dhcpd", "dhcpd", &args)?;
    until("a prefix", PATIENCE, || {
        let seen = rack.set(&["--bare", "get", "logical_router_port", "r-in", "ipv6_prefix"])?;
        ensure!(seen.contains("2001:db8:3333:") && seen.contains("00::/56"), "{seen}");
        Ok(())
    })?;
    until("a renewal", PATIENCE, || {
        let said = rack.lab.output("tor", "dhcpd");
        has(&said, &["Solicit message from fe80::ff:fe00:1", "Request message", "Renew message"])
    })
}

#[test]
fn a_router_takes_a_prefix_and_renews_it() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", "dhcpd"]) {
        return;
    }
    if let Err(e) = delegated() {
        panic!("{e:#}");
    }
}
