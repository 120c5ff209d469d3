//! Fragments pass devices of the kernel as they came: they are not put together on the way.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::Duration;

#[test]
fn fragments_pass_as_they_are() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("fr");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0 -- add-port br0 p0 -- add-port br0 p1");
    let (a, b) = (ns.machine("p0", "10.3.0.1/24"), ns.machine("p1", "10.3.0.2/24"));
    for m in [&a, &b] {
        let n = if m.0 == a.0 { 1 } else { 2 };
        m.ip(&format!("addr add fd03::{n}/64 dev eth0 nodad"));
    }
    a.reaches("10.3.0.2");
    for size in [1600, 3200, 9000, 30_000] {
        for to in ["10.3.0.2", "fd03::2"] {
            let ping = || a.exec(&format!("ping -n -q -s {size} -c 3 -i 0.1 -W 1 {to}"));
            eventually(&format!("{size} bytes to {to}"), Duration::from_secs(10), || {
                let out = ping()?;
                if out.contains(" 0% packet loss") { Ok(()) } else { Err(out) }
            });
        }
    }
    // All of them were seen as fragments, so a flow that asks for one finds it.
    s.ofctl(&["add-flow", "br0", "priority=10,ip,ip_frag=later,actions=NORMAL"]);
    a.exec("ping -n -q -s 3200 -c 2 -i 0.1 10.3.0.2").expect("ping");
    let flows = s.ofctl(&["dump-flows", "br0"]);
    let line = flows.lines().find(|l| l.contains("later")).unwrap_or_default();
    assert!(line.contains("n_packets=8,"), "two later fragments each way, twice: {flows}");
}

#[test]
fn a_tap_that_was_there_is_taken_as_it_is() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("ft");
    let s = Switch::ours(&ns);
    // One queue, as `ip tuntap` makes them.
    ns.ip("tuntap add name own mode tap");
    ns.ip("link set own address 02:00:00:00:77:01");
    s.vsctl("add-br br0 -- add-port br0 own -- set interface own type=tap");
    s.becomes("get interface own mac_in_use", "02:00:00:00:77:01", Duration::from_secs(10));
    s.becomes("get interface own error", "[]", Duration::from_secs(1));
    s.vsctl("add-port br0 new -- set interface new type=internal mac=\"02:00:00:00:77:02\"");
    s.becomes("get interface new mac_in_use", "02:00:00:00:77:02", Duration::from_secs(10));
}

#[test]
fn a_bridge_takes_another_address_while_it_runs() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("fa");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0");
    s.vsctl("set bridge br0 other_config:hwaddr=00:53:00:00:00:42");
    s.becomes("get interface br0 mac_in_use", "00:53:00:00:00:42", Duration::from_secs(10));
    assert!(ns.ip("link show br0").contains("00:53:00:00:00:42"));
    assert!(s.ofctl(&["dump-ports-desc", "br0"]).contains("addr:00:53:00:00:00:42"));
}
