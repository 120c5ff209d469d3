//! Taps and internal ports: whose they are, their addresses; what `dpif/set-dp-features` and `mod-port` change.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

fn there(ns: &Namespace, link: &str) -> bool {
    ns.exec(&format!("ip link show dev {link}")).is_ok()
}

/// A tap that was there before its port stays when the port goes; one that was made for its port goes, also if that was
/// in an earlier run. Neither is up before it is told to, as with Open vSwitch, and both stay so in the next run. A bridge's device that gets another address has the link-local address that belongs to it.
#[test]
fn taps_belong_to_who_made_them() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("tp");
    let mut s = Switch::ours(&ns);
    ns.ip("tuntap add name t1 mode tap");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    s.vsctl("add-port br0 t1 -- set interface t1 type=tap -- add-port br0 t2 -- set interface t2 type=tap");
    let state = |s: &Switch, t: &str, wanted: &str| s.becomes(&format!("get interface {t} admin_state"), wanted, SOON);
    ["br0", "t1", "t2"].iter().for_each(|t| state(&s, t, "down"));
    ["br0", "t1", "t2"].iter().for_each(|t| drop(ns.ip(&format!("link set {t} up"))));
    ["br0", "t1", "t2"].iter().for_each(|t| state(&s, t, "up"));
    s.crash();
    s.start_ours(&ns);
    ["t1", "t2"].iter().for_each(|t| s.becomes(&format!("get interface {t} link_state"), "up", SOON));
    s.vsctl("del-port t2 -- del-port t1");
    eventually(
        "the tap of an earlier run is gone",
        SOON,
        || if there(&ns, "t2") { Err("there".into()) } else { Ok(()) },
    );
    // Ports go one after the other, so by then nothing is left to do with the first.
    s.vsctl("add-port br0 t3 -- set interface t3 type=tap");
    state(&s, "t3", "down");
    assert!(there(&ns, "t1"), "somebody else's tap");

    s.vsctl("set bridge br0 other_config:hwaddr=02:53:00:00:00:42");
    eventually("the link-local address", SOON, || {
        let text = ns.ip("-6 addr show dev br0 scope link");
        if text.contains("fe80::53:ff:fe00:42/") && text.matches("inet6").count() == 1 { Ok(()) } else { Err(text) }
    });
}

/// An internal port that gets another address in its row keeps its addresses of IP, and stays up.
#[test]
fn an_internal_port_gets_another_address() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("ta");
    let s = Switch::ours(&ns);
    let a = ns.machine("v3", "10.4.0.1/24");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 v3");
    s.vsctl("add-port br0 int0 -- set interface int0 type=internal");
    ns.ip("addr add 10.4.0.9/24 dev int0");
    ns.ip("link set int0 up");
    a.reaches("10.4.0.9");
    for mac in ["02:54:00:00:00:09", "02:54:00:00:00:0a"] {
        s.vsctl(&format!("set interface int0 mac=\"{mac}\""));
        eventually("another address", SOON, || {
            let text = ns.ip("addr show dev int0");
            if text.contains(mac) && text.contains("inet 10.4.0.9/24") && text.contains(",UP") {
                Ok(())
            } else {
                Err(text)
            }
        });
        s.becomes("get interface int0 mac_in_use", mac, SOON);
        // Who hears from it knows the new one.
        ns.exec("ping -c 1 -W 5 -I int0 10.4.0.1").expect("an answer");
        a.reaches("10.4.0.9");
    }
    s.vsctl("clear interface int0 mac -- set interface int0 external_ids:a=b");
    a.reaches("10.4.0.9");
    assert!(ns.ip("addr show dev int0").contains("02:54:00:00:00:0a"), "it stays");
}

/// What the datapath is said to offer, and what a controller forbids ports, is as asked for.
#[test]
fn features_and_ports_are_as_asked_for() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("tf");
    let s = Switch::ours(&ns);
    let (a, _b) = (ns.machine("v1", "10.4.0.1/24"), ns.machine("v2", "10.4.0.2/24"));
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 v1 -- add-port br0 v2");
    a.reaches("10.4.0.2");
    s.ofctl(&["mod-port", "br0", "v2", "down"]);
    assert!(a.ping("10.4.0.2").is_err(), "v2 is down");
    assert!(s.ofctl(&["-O", "OpenFlow13", "dump-ports-desc", "br0"]).contains("PORT_DOWN"));
    s.ofctl(&["mod-port", "br0", "v2", "up"]);
    a.reaches("10.4.0.2");

    let features = || s.appctl(&["dpif/show-dp-features", "br0"]).expect("features");
    let trace = || {
        let flow = "in_port=v1,ip,dl_dst=02:00:00:00:00:01,nw_dst=10.9.9.9";
        s.appctl(&["ofproto/trace", "br0", flow]).expect("trace")
    };
    s.ofctl(&["add-flow", "br0", "priority=9,ip,nw_dst=10.9.9.9,actions=output(port=v2,max_len=40)"]);
    assert!(features().contains("Truncate action: Yes"));
    let before = trace();
    assert!(before.contains("Datapath actions: trunc(40),") && !before.contains("slow path"), "{before}");
    s.appctl(&["dpif/set-dp-features", "br0", "trunc", "false"]).expect("set");
    assert!(features().contains("Truncate action: No"));
    let slow =
        "This flow is handled by the userspace slow path because it:\n  - Uses action(s) not supported by datapath.\n";
    assert!(trace().ends_with(slow), "{}", trace());
    s.appctl(&["dpif/set-dp-features", "br0", "trunc", "true"]).expect("set");
    assert_eq!(trace(), before);
    let offered = |s: &Switch| {
        let shown = s.appctl(&["dpif/show-dp-features", "br0"]).expect("features");
        shown.contains("MPLS Label add: Yes\n")
    };
    assert!(offered(&s));
    s.appctl(&["dpif/set-dp-features", "br0", "add_mpls", "false"]).expect("set");
    assert!(!offered(&s));
    s.appctl(&["dpif/set-dp-features", "br0", "add_mpls", "true"]).expect("set");
    assert!(offered(&s));
    let refused = s.appctl(&["dpif/set-dp-features", "br0", "recirc", "false"]).expect_err("a part of the one path");
    assert!(refused.contains("recirc: not a feature that can be changed here"), "{refused}");
}
