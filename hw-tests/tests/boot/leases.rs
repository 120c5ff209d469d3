//! Clients that keep their leases, by renewal, and give them back.

use super::common::{Guard, able};
use super::rack::{PATIENCE, Rack, has, lines, script};
use anyhow::{Context, Result, ensure};
use hw_tests::lab::until;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Seconds of a lease: a client renews it after half of them.
const LEASE: &str = "20";

/// A rack whose machine listens to router advertisements, as it is configured by what runs on it.
fn rack() -> Result<Rack> {
    let rack = Rack::start()?;
    rack.option("dhcpv4", "lease_time", LEASE)?;
    rack.lab.exec("bm1", "sh", &["-c", "echo 1 > /proc/sys/net/ipv6/conf/eth0/accept_ra"])?;
    Ok(rack)
}

/// Waits until the chassis has answered so.
fn answered(rack: &Rack, client: &str, wanted: &[&str]) -> Result<()> {
    until("the exchange", PATIENCE, || has(&rack.trace()?, wanted)).with_context(|| rack.lab.output("bm1", client))
}

/// Signals dhcpcd until the chassis has answered what it then sends. dhcpcd 9.4.1 loses a signal that comes while it
/// handles another: strace shows it delivered, and nothing done.
fn asked(rack: &mut Rack, signal: Signal, wanted: &[&str]) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        rack.lab.signal("bm1", "dhcpcd", signal);
        let answer = until("the exchange", Duration::from_secs(3), || has(&rack.trace()?, wanted));
        if answer.is_ok() || Instant::now() > end {
            return answer.with_context(|| rack.lab.output("bm1", "dhcpcd"));
        }
    }
}

/// Waits until the machine has both addresses, or neither.
fn addresses(rack: &Rack, client: &str, are_there: bool) -> Result<()> {
    until("the machine's addresses", PATIENCE, || {
        let own = rack.lab.ip("bm1", &["addr", "show", "dev", "eth0"])?;
        for a in ["inet 10.0.0.4/24", "inet6 fd00::4/128"] {
            ensure!(own.contains(a) == are_there, "{a}: {own}");
        }
        Ok(())
    })
    .with_context(|| rack.lab.output("bm1", client))
}

fn dhcpcd() -> Result<()> {
    let mut rack = rack()?;
    let (script, out) = script(&rack, "dhcpcd.sh")?;
    let conf = rack.lab.machine_dir("bm1").join("dhcpcd.conf");
    let settings = "clientid\nnoipv4ll\nnoarp\nslaac hwaddr\nia_na 1\noption domain_name_servers, domain_name\n";
    std::fs::write(&conf, settings)?;
    // What it keeps on this machine is in namespaces of its own, as its network is.
    let run = format!(
        "for d in /var/lib/dhcpcd /run/dhcpcd; do mkdir -p $d; mount -t tmpfs t $d; done; exec dhcpcd -B -f {} -c {script} eth0",
        conf.display()
    );
    rack.lab.spawn("bm1", "dhcpcd", "sh", &["-c", &run])?;
    let exchange = ["DHCPv4 DISCOVER", "ACK 10.0.0.4", "DHCPv6 SOLICIT", "ADVERTISE fd00::4", "REPLY fd00::4"];
    answered(&rack, "dhcpcd", &exchange)?;
    addresses(&rack, "dhcpcd", true)?;
    let told = ["reason=BOUND\n", "new_ip_address=10.0.0.4", "new_domain_name_servers=10.0.0.1", "reason=BOUND6\n"];
    until("what its script is told", PATIENCE, || lines(&out, &told))?;
    // The lease is over before this ends, had it not been renewed.
    until("two renewals", PATIENCE, || {
        let text = std::fs::read_to_string(&out)?;
        ensure!(text.matches("reason=RENEW\n").count() >= 2, "{text}");
        Ok(())
    })?;
    addresses(&rack, "dhcpcd", true)?;
    let renewed = || -> Result<usize> { Ok(std::fs::read_to_string(&out)?.matches("reason=RENEW6\n").count()) };
    let before = renewed()?;
    asked(&mut rack, Signal::SIGUSR1, &["DHCPv6 RENEW"])?;
    // While the answer is on its way it releases nothing.
    until("the renewal of DHCPv6", PATIENCE, || {
        ensure!(renewed()? > before, "{before} renewals");
        Ok(())
    })?;
    asked(&mut rack, Signal::SIGALRM, &["DHCPv4 RELEASE", "DHCPv6 RELEASE"])?;
    addresses(&rack, "dhcpcd", false)
}

#[test]
fn dhcpcd_takes_renews_and_releases_both_leases() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", "dhcpcd"]) {
        return;
    }
    if let Err(e) = dhcpcd() {
        panic!("{e:#}");
    }
}

const NETWORKD: &str = "/lib/systemd/systemd-networkd";

/// How often the chassis acknowledged the machine's address to an owner of it, who does not discover.
fn renewals(trace: &str) -> usize {
    let all: Vec<&str> = trace.lines().filter(|l| l.contains("DHCPv4")).collect();
    let renews = |w: &[&str]| w[1].contains("ACK 10.0.0.4") && !w[0].contains("DISCOVER");
    all.windows(2).filter(|w| renews(w)).count()
}

fn networkd() -> Result<()> {
    let mut rack = rack()?;
    let network = rack.lab.machine_dir("bm1").join("network");
    std::fs::create_dir_all(&network)?;
    let settings = "[Match]\nName=eth0\n[Network]\nDHCP=yes\nIPv6AcceptRA=yes\n[DHCPv4]\nSendRelease=yes\n";
    std::fs::write(network.join("eth0.network"), settings)?;
    // It drops root's rights.
    rack.lab.exec("bm1", "chmod", &["-R", "a+rX", &network.display().to_string()])?;
    // As in a container: without udev, and with settings and state of its own.
    let run = format!(
        "mount -t tmpfs t /run && mkdir -p /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp /run/systemd/network \
         && cp {}/eth0.network /run/systemd/network/ && chown -R systemd-network /run/systemd/netif \
         && mount -o remount,ro,bind /sys && exec {NETWORKD}",
        network.display()
    );
    rack.lab.spawn("bm1", "networkd", "sh", &["-c", &run])?;
    let exchange = ["DHCPv4 DISCOVER", "ACK 10.0.0.4", "DHCPv6 SOLICIT", "REPLY fd00::4"];
    answered(&rack, "networkd", &exchange)?;
    addresses(&rack, "networkd", true)?;
    until("two renewals", PATIENCE, || {
        let trace = rack.trace()?;
        ensure!(renewals(&trace) >= 2, "{trace}");
        Ok(())
    })?;
    addresses(&rack, "networkd", true)?;
    rack.lab.signal("bm1", "networkd", Signal::SIGTERM);
    // It gives back no DHCPv6 lease before version 256.
    answered(&rack, "networkd", &["DHCPv4 RELEASE"])
}

#[test]
fn networkd_takes_both_leases_and_renews_and_releases_one() {
    let _one = Guard::take();
    if !able(&["ovn-nbctl", NETWORKD]) {
        return;
    }
    if let Err(e) = networkd() {
        panic!("{e:#}");
    }
}
