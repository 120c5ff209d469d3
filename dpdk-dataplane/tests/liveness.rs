//! Whether ports carry packets, seen from outside: a tunnel whose BFD session is changed while it runs goes on being
//! used by groups and bundles that watch it, and OpenFlow says so.

mod common;

use common::{Namespace, Switch, able, eventually, joined};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// Two dataplanes with a tunnel with BFD between them, whose traffic goes by a bundle that watches the tunnel.
fn lab() -> ([Switch; 2], [Namespace; 2]) {
    let spaces: [Namespace; 2] = joined("la", "lb").into();
    let sides = [Switch::ours(&spaces[0]), Switch::ours(&spaces[1])];
    for (n, (s, ns)) in sides.iter().zip(&spaces).enumerate() {
        let (own, peer) = (n + 1, 2 - n);
        s.vsctl(&format!(
            "add-br br-phys -- set bridge br-phys other_config:hwaddr=02:00:00:00:07:0{own} -- add-port br-phys eth0 \
             -- add-br br-int -- set bridge br-int fail_mode=secure other_config:hwaddr=02:00:00:00:08:0{own} \
             -- add-port br-int in -- set interface in type=internal ofport_request=1 \
             -- add-port br-int tun -- set interface tun type=geneve ofport_request=10 options:remote_ip=172.16.0.{peer} options:key=flow \
                bfd:enable=true bfd:min_rx=200 bfd:min_tx=200"
        ));
        ns.ip(&format!("addr replace 172.16.0.{own}/24 dev br-phys"));
        ns.ip(&format!("addr replace 10.1.0.{own}/24 dev in"));
        ["br-phys", "in"].iter().for_each(|d| drop(ns.ip(&format!("link set {d} up"))));
        s.ofctl(&["add-flow", "br-int", "in_port=1,actions=bundle(eth_src,0,active_backup,ofport,members:10)"]);
        s.ofctl(&["add-flow", "br-int", "in_port=10,actions=output:1"]);
    }
    (sides, spaces)
}

/// The state that OpenFlow tells of a port.
fn of_state(s: &Switch, port: &str) -> String {
    let text = s.ofctl(&["dump-ports-desc", "br-int"]);
    let of = text.split_once(&format!("({port}):")).map(|(_, rest)| rest.to_string()).unwrap_or_default();
    of.lines().find_map(|l| l.trim().strip_prefix("state:")).unwrap_or_default().trim().to_string()
}

#[test]
fn a_session_that_is_changed_goes_on_delivering() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let (sides, spaces) = lab();
    let live = |what: &str| {
        for s in &sides {
            eventually(what, SOON, || match of_state(s, "tun") {
                state if state == "LIVE" => Ok(()),
                other => Err(other),
            });
        }
        spaces[0].reaches("10.1.0.2");
    };
    live("at the start");
    let changes =
        ["bfd:min_tx=300", "bfd:min_rx=350", "bfd:mult=5", "bfd:min_tx=100 bfd:min_rx=100", "bfd:cpath_down=false"];
    for keys in changes {
        sides[0].vsctl(&format!("set interface tun {keys}"));
        std::thread::sleep(Duration::from_millis(500));
        // The session never was down, so nothing was ever lost.
        assert_eq!(of_state(&sides[0], "tun"), "LIVE", "after {keys}");
        spaces[0].ping("10.1.0.2").unwrap_or_else(|e| panic!("after {keys}: {e}"));
    }
    // Without BFD the port is live by its link alone; the peer's session ends, and comes back with this one.
    sides[0].vsctl("set interface tun bfd:enable=false");
    eventually("the peer without a partner", SOON, || match of_state(&sides[1], "tun") {
        state if state.is_empty() || state == "0" => Ok(()),
        other => Err(other),
    });
    assert_eq!(of_state(&sides[0], "tun"), "LIVE", "without BFD");
    sides[0].vsctl("set interface tun bfd:enable=true");
    live("with BFD again");
    // A port that is made anew starts anew.
    sides[1].vsctl("set interface tun ofport_request=11");
    sides[1].ofctl(&["add-flow", "br-int", "in_port=1,actions=bundle(eth_src,0,active_backup,ofport,members:11)"]);
    sides[1].ofctl(&["add-flow", "br-int", "in_port=11,actions=output:1"]);
    live("with another number");
}

#[test]
fn a_device_that_goes_down_and_up_is_told_each_time() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("ll");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br-int -- add-port br-int p0 -- add-port br-int p1");
    let (a, _b) = (ns.machine("p0", "10.2.0.1/24"), ns.machine("p1", "10.2.0.2/24"));
    a.reaches("10.2.0.2");
    for _ in 0..3 {
        ns.ip("link set p1 down");
        eventually("down", SOON, || match of_state(&s, "p1") {
            state if state == "LINK_DOWN" => Ok(()),
            other => Err(other),
        });
        ns.ip("link set p1 up");
        eventually("up", SOON, || match of_state(&s, "p1") {
            state if state == "LIVE" => Ok(()),
            other => Err(other),
        });
        a.reaches("10.2.0.2");
    }
}
