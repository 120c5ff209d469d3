//! Frames above 2,048 bytes: through bridges, tunnels, VLANs, mirrors, to the host, and to and from Open vSwitch.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// A machine whose link carries payloads of this size.
fn machine(ns: &Namespace, port: &str, address: &str, mtu: u32) -> Namespace {
    let vm = ns.machine(port, address);
    vm.ip(&format!("link set eth0 mtu {mtu}"));
    ns.ip(&format!("link set {port} mtu {mtu}"));
    vm
}

/// A ping of so many bytes of payload, which must not be fragmented.
fn ping(from: &Namespace, to: &str, size: u32) -> Result<(), String> {
    // The payload is behind 28 bytes of headers.
    let out = from.exec(&format!("ping -n -M do -c 3 -i 0.2 -W 1 -s {} {to}", size - 28)).unwrap_or_else(|e| e);
    if out.contains(" 0% packet loss") { Ok(()) } else { Err(out) }
}

fn reaches(from: &Namespace, to: &str, size: u32) {
    eventually(&format!("{size} bytes to {to}"), SOON, || ping(from, to, size));
}

fn statistic(s: &Switch, port: &str, key: &str) -> u64 {
    let text = s.try_vsctl(&format!("get interface {port} statistics:{key}")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

#[test]
fn jumbo_frames_pass_bridges_vlans_mirrors_and_the_host() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("jb");
    let s = Switch::ours(&ns);
    let (a, b) = (machine(&ns, "v1", "10.3.0.1/24", 1500), machine(&ns, "v2", "10.3.0.2/24", 1500));
    let (small, seen) = (machine(&ns, "v3", "10.3.0.3/24", 1500), machine(&ns, "v4", "10.3.9.9/24", 1500));
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    s.vsctl("add-port br0 v1 -- add-port br0 v2 -- add-port br0 v3 -- add-port br0 v4 -- add-port br0 i1 -- set interface i1 type=internal");
    a.reaches("10.3.0.2");
    // The size is asked for, and frames grow while the ports run.
    s.vsctl(
        "set interface v1 mtu_request=9000 -- set interface v4 mtu_request=9000 -- set interface i1 mtu_request=9000",
    );
    // Or somebody else sets it.
    ns.ip("link set v2 mtu 9000");
    [&a, &b, &small, &seen].iter().for_each(|n| drop(n.ip("link set eth0 mtu 9000")));
    for port in ["v1", "v2", "v4", "i1"] {
        s.becomes(&format!("get interface {port} mtu"), "9000", SOON);
    }
    reaches(&a, "10.3.0.2", 9000);
    assert_eq!(s.vsctl("get interface v1 error").trim(), "[]");
    // What a smaller port cannot send is dropped and counted; what it can goes on.
    reaches(&a, "10.3.0.3", 1500);
    assert!(ping(&a, "10.3.0.3", 1501).is_err());
    eventually("dropped frames", SOON, || match statistic(&s, "v3", "tx_dropped") {
        3 => Ok(()),
        n => Err(n.to_string()),
    });
    // The host behind an internal port.
    ns.ip("addr add 10.3.0.4/24 dev i1");
    ns.ip("link set i1 up");
    reaches(&a, "10.3.0.4", 9000);
    reaches(&ns, "10.3.0.2", 9000);
    // A mirror sees it whole, or as much as it wants.
    s.vsctl("-- --id=@p get port v4 -- --id=@s get port v1 -- --id=@m create mirror name=m select_src_port=@s output_port=@p -- set bridge br0 mirrors=@m");
    let copies = |snaplen: &str, bytes: &str| {
        let (what, sniff) = (format!("length {bytes}"), "tcpdump -n -e -i eth0 -c 2 icmp");
        s.vsctl(&format!("set mirror m snaplen={snaplen}"));
        eventually(&what, SOON, || {
            let out = std::thread::scope(|scope| {
                let seen = scope.spawn(|| seen.exec(&format!("timeout 4 {sniff}")).unwrap_or_else(|e| e));
                std::thread::sleep(Duration::from_millis(700));
                let _ = ping(&a, "10.3.0.2", 9000);
                seen.join().expect("thread")
            });
            if out.contains(&what) { Ok(()) } else { Err(out) }
        });
    };
    if common::run("sh", &["-c", "command -v tcpdump"], &[]).is_ok() {
        copies("[]", "9014");
        copies("100", "100");
    }
    // In a VLAN.
    s.vsctl("clear bridge br0 mirrors -- set port v1 tag=7");
    s.vsctl("set port v2 tag=7");
    reaches(&a, "10.3.0.2", 9000);
    assert!(ping(&a, "10.3.0.3", 100).is_err(), "another VLAN");
}

#[test]
fn jumbo_frames_pass_tunnels_and_tagged_links_to_open_vswitch() {
    if !able(&["ovs-vswitchd"]) {
        return;
    }
    let (na, nb) = common::joined("ja", "jo");
    for n in [&na, &nb] {
        n.ip("link set eth0 mtu 9200");
    }
    let (ours, theirs) = (Switch::ours(&na), Switch::debian(&nb));
    let (a, b) = (machine(&na, "va", "10.3.1.1/24", 9000), machine(&nb, "vb", "10.3.1.2/24", 9000));
    for (s, n, [port, me, other]) in [(&ours, &na, ["va", "1", "2"]), (&theirs, &nb, ["vb", "2", "1"])] {
        s.vsctl(&format!("add-br br-phys -- set bridge br-phys datapath_type=netdev other_config:hwaddr=02:00:00:00:09:0{me} -- add-port br-phys eth0"));
        s.vsctl(&format!("add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 {port}"));
        for (kind, key) in [("geneve", 1), ("vxlan", 2)] {
            s.vsctl(&format!("add-port br0 {kind} -- set interface {kind} type={kind} options:remote_ip=10.7.0.{other} options:key={key}"));
            s.vsctl(&format!("set port {kind} tag={key}"));
        }
        n.ip(&format!("addr add 10.7.0.{me}/24 dev br-phys"));
        n.ip("link set br-phys up");
        n.ip("link set br-phys mtu 9200");
    }
    ours.becomes("get interface br-phys mtu", "9200", SOON);
    for tag in [1, 2] {
        ours.vsctl(&format!("set port va tag={tag}"));
        theirs.vsctl(&format!("set port vb tag={tag}"));
        reaches(&a, "10.3.1.2", 9000);
        reaches(&b, "10.3.1.1", 9000);
    }
    // The hosts, through the same link, tagged: four bytes more than its payload.
    for s in [&ours, &theirs] {
        s.vsctl("set port br-phys tag=5");
    }
    reaches(&na, "10.7.0.2", 9200);
    let with = |m: &str| m.contains("isthmus_packet_buffers_free");
    eventually("memory", SOON, || ours.appctl(&["metrics/show"]).and_then(|m| if with(&m) { Ok(()) } else { Err(m) }));
}
