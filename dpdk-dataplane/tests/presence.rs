//! DPDK's devices that go while the switch runs: ports keep their numbers, flows and rows, say what is wrong, and go on by themselves
//! when the devices are back.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(15);

fn is(s: &Switch, port: &str, column: &str) -> String {
    s.vsctl(&format!("get interface {port} {column}")).trim().replace("\\\"", "")
}

fn says(s: &Switch, port: &str, why: &str) {
    eventually(why, SOON, || {
        let told = is(s, port, "error");
        if told.contains(why) { Ok(()) } else { Err(format!("{port}: {told}")) }
    });
}

/// The machine behind a veth, made anew each time.
fn machine(ns: &Namespace, vm: &Namespace, port: &str) {
    ns.ip(&format!("link add {port} type veth peer name eth0 address 02:00:00:00:00:99 netns {}", vm.0));
    vm.ip("addr add 10.9.0.2/24 dev eth0");
    vm.ip("link set eth0 up");
    ns.ip(&format!("link set {port} up"));
    vm.exec("ethtool -K eth0 tx off").expect("ethtool");
}

/// Two vdevs over network devices of the kernel. One of these goes and comes back, several times, once while the switch is changed.
#[test]
fn a_port_outlives_its_device() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let (ns, vm) = (Namespace::new("po"), Namespace::new("pv"));
    let s = Switch::ours(&ns);
    machine(&ns, &vm, "v1");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 i1 -- set interface i1 type=internal ofport_request=7");
    s.vsctl("add-port br0 d1 -- set interface d1 type=dpdk ofport_request=5 options:dpdk-devargs=\"net_af_packet5,iface=v1\"");
    s.vsctl(
        "add-port br0 d2 -- set interface d2 type=dpdk ofport_request=6 options:dpdk-devargs=\"net_null6,no-rx=1\"",
    );
    ns.ip("addr add 10.9.0.1/24 dev i1");
    ns.ip("link set i1 up");
    s.ofctl(&["add-flow", "br0", "cookie=0x77,in_port=5,actions=output:7"]);
    s.ofctl(&["add-flow", "br0", "cookie=0x77,in_port=7,actions=output:5"]);
    ns.reaches("10.9.0.2");
    for round in 0..3 {
        ns.ip("link del v1");
        says(&s, "d1", "the device is gone: there is no network device v1");
        s.becomes("get interface d1 link_state", "down", SOON);
        assert_eq!((is(&s, "d1", "ofport"), is(&s, "d2", "error")), ("5".into(), "[]".into()));
        assert_eq!(s.ofctl(&["dump-flows", "br0", "cookie=0x77/-1"]).matches("cookie=0x77").count(), 2);
        if round == 1 {
            // What is asked for meanwhile holds as well.
            s.vsctl("set interface d1 options:n_rxq_desc=1024 -- set port d1 other_config:priority-tags=always");
            says(&s, "d1", "the device is gone");
        }
        // Nothing that it is to send disturbs the switch.
        assert!(ns.ping("10.9.0.2").is_err());
        machine(&ns, &vm, "v1");
        eventually("the port is back", SOON, || {
            let told = (is(&s, "d1", "error"), is(&s, "d1", "link_state"));
            if told == ("[]".into(), "up".into()) { Ok(()) } else { Err(format!("{told:?}")) }
        });
        assert_eq!(is(&s, "d1", "ofport"), "5");
        ns.reaches("10.9.0.2");
    }
    assert_eq!(is(&s, "d1", "status:n_rxq_desc"), "\"1024\"");
    // Its driver cannot start a device that it stopped.
    s.vsctl("set interface d1 options:n_rxq_desc=2048");
    eventually("it is opened anew", SOON, || match is(&s, "d1", "status:n_rxq_desc") {
        n if n == "\"2048\"" => Ok(()),
        n => Err(n),
    });
    assert_eq!(is(&s, "d1", "ofport"), "5");
    ns.reaches("10.9.0.2");
    // One that is replaced at once is noticed too.
    let old = is(&s, "d1", "mac_in_use");
    ns.exec("sh -c true").expect("sh");
    ns.ip("link del v1");
    machine(&ns, &vm, "v1");
    ns.reaches("10.9.0.2");
    s.becomes("get interface d1 error", "[]", SOON);
    assert_ne!(is(&s, "d1", "mac_in_use"), old, "the other card's address is told");
    // One that comes down, and is set up later, is used from then on.
    ns.ip("link del v1");
    says(&s, "d1", "the device is gone");
    ns.ip(&format!("link add v1 type veth peer name eth0 address 02:00:00:00:00:99 netns {}", vm.0));
    s.becomes("get interface d1 error", "[]", SOON);
    assert!(ns.ping("10.9.0.2").is_err());
    vm.ip("addr add 10.9.0.2/24 dev eth0");
    vm.ip("link set eth0 up");
    ns.ip("link set v1 up");
    vm.exec("ethtool -K eth0 tx off").expect("ethtool");
    ns.reaches("10.9.0.2");
    // A port whose device is gone goes like any other.
    ns.ip("link del v1");
    says(&s, "d1", "the device is gone");
    s.vsctl("del-port d1 -- add-port br0 d3 -- set interface d3 type=dpdk ofport_request=5 options:dpdk-devargs=\"net_null5\"");
    s.becomes("get interface d3 ofport", "5", SOON);
}

/// A tap of DPDK's driver is made by that: it is made again when somebody deletes it. A device that is not there yet is waited for.
#[test]
fn a_device_that_its_driver_makes_and_one_that_comes_later() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("pt");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    s.vsctl("--no-wait add-port br0 t1 -- set interface t1 type=dpdk options:dpdk-devargs=\"net_tap1,iface=tap1\" ofport_request=4");
    s.becomes("get interface t1 ofport", "4", SOON);
    ns.ip("link del tap1");
    eventually("the tap is back", SOON, || {
        let told = (is(&s, "t1", "error"), ns.exec("ip link show tap1").is_ok(), is(&s, "t1", "ofport"));
        if told == ("[]".into(), true, "4".into()) { Ok(()) } else { Err(format!("{told:?}")) }
    });
    // One that is handed to a machine, which names it as it likes, is there still; it is made again here when it goes there.
    let vm = Namespace::new("pm");
    ns.ip(&format!("link set tap1 netns {}", vm.0));
    vm.ip("link set tap1 name eth0");
    vm.ip("addr add 10.9.1.2/24 dev eth0");
    vm.ip("link set eth0 up");
    ns.ip("addr add 10.9.1.1/24 dev br0");
    ns.ip("link set br0 up");
    s.ofctl(&["add-flow", "br0", "actions=NORMAL"]);
    ns.reaches("10.9.1.2");
    // Longer than a port's device is looked at.
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        ns.ping("10.9.1.2").expect("the tap of a machine goes on");
        assert_eq!(is(&s, "t1", "error"), "[]");
    }
    vm.ip("link del eth0");
    eventually("the tap is back here", SOON, || {
        let told = (is(&s, "t1", "error"), ns.exec("ip link show tap1").is_ok(), is(&s, "t1", "ofport"));
        if told == ("[]".into(), true, "4".into()) { Ok(()) } else { Err(format!("{told:?}")) }
    });
    s.vsctl(
        "--no-wait add-port br0 w1 -- set interface w1 type=dpdk options:dpdk-devargs=\"net_af_packet8,iface=late\"",
    );
    eventually("it is waited for", SOON, || {
        let told = (is(&s, "w1", "ofport"), is(&s, "w1", "error"));
        if told.0 == "-1" && told.1.contains("net_af_packet8") { Ok(()) } else { Err(format!("{told:?}")) }
    });
    ns.ip("link add late type veth peer name late2");
    ns.ip("link set late up");
    s.becomes("get interface w1 error", "[]", SOON);
    // A network device without hardware is none of DPDK's.
    ns.ip("link add soft type veth peer name soft2");
    s.vsctl("--no-wait add-port br0 soft -- set interface soft type=dpdk");
    says(
        &s,
        "soft",
        "is missing 'options:dpdk-devargs', and network device soft is of no PCI device: take type system",
    );
    s.vsctl("--no-wait set interface soft type=system");
    s.becomes("get interface soft error", "[]", SOON);
}
