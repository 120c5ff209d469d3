//! What the database and `ovs-ofctl` say of ports and their devices, beside Debian's Open vSwitch; queues, descriptors
//! and checksum offloads of DPDK's devices.

mod common;

use common::{Namespace, Switch, able, eventually, run};
use std::collections::BTreeSet;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// Columns of all ports that are the same whichever switch has the device.
fn columns(s: &Switch, port: &str) -> String {
    let columns = "ofport,admin_state,link_state,link_speed,duplex,mtu,error";
    s.vsctl(&format!("--columns={columns} list interface {port}"))
}

/// The keys of a port's statistics.
fn keys(s: &Switch, port: &str) -> BTreeSet<String> {
    let map = s.vsctl(&format!("get interface {port} statistics"));
    let inside = map.trim().trim_matches(|c| c == '{' || c == '}');
    inside.split(", ").filter_map(|kv| kv.split_once('=')).map(|(k, _)| k.to_string()).collect()
}

/// The ports of a description, without their addresses and without what the switch itself is called.
fn described(s: &Switch, version: &str, command: &str) -> Vec<String> {
    let dir = s.path("");
    let text = run("ovs-ofctl", &["-O", version, command, "br0"], &[("OVS_RUNDIR", &dir)]).expect("ovs-ofctl");
    let lines = text.lines().filter(|l| l.starts_with(' ')).map(|l| l.split(" addr:").next().unwrap_or(l));
    lines.map(|l| l.split(": addr:").next().unwrap_or(l).to_string()).collect()
}

#[test]
fn links_are_told_as_by_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("lo"), Namespace::new("lc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    for (s, ns) in switches.iter().zip([&a, &b]) {
        ns.ip("link add v1 type veth peer name v2");
        ns.ip("link set v1 mtu 1400");
        s.vsctl(
            "add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure other_config:hwaddr=02:00:00:00:00:aa",
        );
        s.vsctl("add-port br0 v1 -- set interface v1 ofport_request=1 -- add-port br0 g1 -- set interface g1 type=geneve options:remote_ip=flow ofport_request=2 -- add-port br0 i1 -- set interface i1 type=internal ofport_request=3");
        ["v1", "i1", "br0"].iter().for_each(|l| drop(ns.ip(&format!("link set {l} up"))));
    }
    let same = |what: &str| {
        eventually(what, SOON, || {
            for port in ["v1", "g1", "i1", "br0"] {
                let [ours, theirs] = switches.each_ref().map(|s| columns(s, port));
                if ours != theirs {
                    return Err(format!("{port}: ours {ours}\ntheirs {theirs}"));
                }
            }
            for (version, command) in
                [("OpenFlow10", "show"), ("OpenFlow13", "dump-ports-desc"), ("OpenFlow15", "dump-ports-desc")]
            {
                let [ours, theirs] = switches.each_ref().map(|s| described(s, version, command));
                if ours != theirs {
                    return Err(format!("{version}: ours {ours:#?}\ntheirs {theirs:#?}"));
                }
            }
            Ok(())
        });
    };
    same("the peer is down");
    let before = switches[0].vsctl("get interface v1 link_resets").trim().parse::<u64>().expect("a number");
    for ns in [&a, &b] {
        ns.ip("link set v2 up");
    }
    switches[0].becomes("get interface v1 link_state", "up", SOON);
    switches[0].becomes("get interface v1 link_resets", &(before + 1).to_string(), SOON);
    for (s, ns) in switches.iter().zip([&a, &b]) {
        s.vsctl("set interface v1 mtu_request=1300 -- set interface i1 mtu_request=1200");
        ns.ip("link set i1 down");
    }
    eventually("keys of statistics", SOON, || {
        for port in ["v1", "g1", "i1"] {
            let [ours, theirs] = switches.each_ref().map(|s| keys(s, port));
            let missing: Vec<&String> = theirs.difference(&ours).collect();
            if theirs.is_empty() || !missing.is_empty() {
                return Err(format!("{port}: {missing:?}"));
            }
        }
        Ok(())
    });
    same("other sizes, and one that is down");
    // Somebody else gives devices other addresses and sizes: the address is told, the size that was asked for comes back.
    for (s, ns) in switches.iter().zip([&a, &b]) {
        ns.ip("link set v1 address 02:00:00:00:11:22");
        ns.ip("link set v1 mtu 1450");
        ns.ip("link set i1 address 02:00:00:00:11:33");
        s.becomes("get interface v1 mac_in_use", "02:00:00:00:11:22", SOON);
        s.becomes("get interface i1 mac_in_use", "02:00:00:00:11:33", SOON);
        s.becomes("get interface v1 mtu", "1300", SOON);
    }
    same("other addresses");
    for (s, ns) in switches.iter().zip([&a, &b]) {
        s.vsctl("remove interface v1 mtu_request 1300");
        ns.ip("link set v1 mtu 1450");
        s.becomes("get interface v1 mtu", "1450", SOON);
    }
    same("nobody asks for a size");
}

/// How the machine is, where that is asked for.
#[test]
fn the_machine_is_told_of_as_by_open_vswitch() {
    if !able(&["ovs-vswitchd"]) {
        return;
    }
    let (a, b) = (Namespace::new("mo"), Namespace::new("mc"));
    let told = [Switch::ours(&a), Switch::debian(&b)].map(|s| {
        assert_eq!(s.vsctl("get open . statistics").trim(), "{}");
        s.vsctl("set open . other_config:enable-statistics=true");
        let get = |key: &str| s.try_vsctl(&format!("--bare get open . statistics:{key}"));
        let mut all = Vec::new();
        let (own, no_process) = (std::path::Path::new(&s.path("dpdk-dataplane.pid")).exists(), s.path("gone.pid"));
        let process = if own { "process_dpdk-dataplane" } else { "process_ovs-vswitchd" };
        // One that nobody holds tells of no process.
        std::fs::write(no_process, "1\n").expect("a file");
        eventually("statistics", SOON, || {
            let keys = ["cpu", "load_average", "memory", "file_systems", process];
            all = keys.iter().map(|k| get(k)).collect::<Result<_, _>>()?;
            Ok(())
        });
        let words: Vec<Vec<String>> =
            all.iter().map(|t| t.trim().trim_matches('"').split([',', ' ']).map(String::from).collect()).collect();
        assert!(get("process_gone").is_err());
        let again = s.appctl(&["version"]).and_then(|_| common::run("cat", &[&s.path("dpdk-dataplane.pid")], &[]));
        assert!(!own || again.is_ok(), "the pidfile is still there");
        s.vsctl("set open . other_config:enable-statistics=false");
        s.becomes("get open . statistics", "{}", SOON);
        words
    });
    let [ours, theirs] = told;
    assert_eq!((&ours[0], ours[1].len(), ours[2].len()), (&theirs[0], theirs[1].len(), theirs[2].len()));
    assert_eq!((&ours[2][0], &ours[2][3]), (&theirs[2][0], &theirs[2][3]), "memory and swap");
    let numbers = |w: &[String]| w.iter().map(|n| n.parse::<u64>().expect("a number")).collect::<Vec<_>>();
    for w in [&ours[4], &theirs[4]].map(|w| numbers(w)) {
        assert!(w.len() == 7 && w[0] > w[1] && w[1] > 1000 && w[3] == 0 && w[4] == w[5] && w[5] < 100_000, "{w:?}");
    }
    let root = |w: &[String]| w.chunks(3).find(|c| c[0] == "/").map(|c| c[1].clone());
    assert_eq!(root(&ours[3]), root(&theirs[3]), "{ours:?} {theirs:?}");
}

/// What is wrong with an interface is said in Open vSwitch's words.
#[test]
fn errors_are_told_as_by_open_vswitch() {
    if !able(&["ovs-vswitchd"]) {
        return;
    }
    let (a, b) = (Namespace::new("eo"), Namespace::new("ec"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    let ports =
        ["nodev", "x1", "p1", "p2", "p3", "g1", "g2", "q1", "p4", "p5", "m1", "m2", "m3", "d1", "d2", "d3", "d4"];
    for s in &switches {
        s.vsctl(
            "add-br br0 -- set bridge br0 datapath_type=netdev -- add-br br1 -- set bridge br1 datapath_type=netdev",
        );
        s.vsctl("--no-wait add-port br0 nodev -- add-port br0 x1 -- set interface x1 type=unheard");
        s.vsctl("--no-wait add-port br0 p1 -- set interface p1 type=patch options:peer=none -- add-port br0 p2 -- set interface p2 type=patch options:peer=p3 -- add-port br1 p3 -- set interface p3 type=patch options:peer=p2");
        s.vsctl("--no-wait add-port br0 g1 -- set interface g1 type=geneve -- add-port br0 g2 -- set interface g2 type=vxlan options:remote_ip=10.0.0.1");
        for p in [
            "br0 p4 -- set interface p4 type=patch",
            "br0 p5 -- set interface p5 type=patch options:peer=p5",
            "br0 m1 -- set interface m1 type=geneve options:remote_ip=224.0.0.1",
            "br0 m2 -- set interface m2 type=geneve options:remote_ip=10.0.0.3 options:local_ip=fd00::1",
            "br0 m3 -- set interface m3 type=vxlan options:remote_ip=10.0.0.4 options:local_ip=flow",
            "br1 d1 -- set interface d1 type=geneve options:remote_ip=flow options:key=flow",
            "br0 d2 -- set interface d2 type=geneve options:remote_ip=flow options:key=flow",
            "br1 d3 -- set interface d3 type=vxlan options:remote_ip=10.0.0.1",
            "br1 d4 -- set interface d4 type=vxlan options:remote_ip=10.0.0.1 options:key=4",
        ] {
            s.vsctl(&format!("--no-wait add-port {p}"));
            // The first of those that want the same has it.
            std::thread::sleep(Duration::from_millis(300));
        }
        // A peer that has another one.
        s.vsctl("--no-wait add-port br1 q1 -- set interface q1 type=patch options:peer=p2");
    }
    eventually("errors", SOON, || {
        for port in ports {
            let [ours, theirs] =
                switches.each_ref().map(|s| s.vsctl(&format!("--columns=error,ifindex list interface {port}")));
            // Ours says what the words mean.
            let more = ["; there is no type unheard", "; d1 is such a tunnel", "; g2 is such a tunnel"];
            let same = more.iter().fold(ours.clone(), |o, m| o.replace(m, "")) == theirs;
            if !same || (port == "x1") != ours.contains("unheard") {
                return Err(format!("{port}: ours {ours}\ntheirs {theirs}"));
            }
        }
        Ok(())
    });
}

/// What ports ask for that they cannot have is said, also where they run without it; a device has one port, which those
/// that want it too do not disturb, and can be had once that has gone.
#[test]
fn what_cannot_be_had_is_said() {
    if !able(&["ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("cb");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    let null = |n| format!("type=dpdk options:dpdk-devargs=\"net_null{n},no-rx=1\"");
    let path = "x".repeat(120);
    let error = |name: &str| s.vsctl(&format!("--if-exists get interface {name} error")).trim().replace("\\\"", "");
    for (name, rest, runs, why) in [
        ("c0", "type=dpdk".into(), false, "is missing 'options:dpdk-devargs', and there is no network device c0"),
        ("ca", "type=dpdk options:dpdk-devargs=\"0000:ff:1f.7,representor=[0,1]\"".into(), false, "one, give each"),
        ("cc", "type=dpdk options:dpdk-devargs=\"0000:ff:1f.7,representor=x\"".into(), false, "is no function"),
        ("c1", "type=dpdk options:dpdk-devargs=nonsense".into(), false, "neither a device"),
        ("c2", "type=dpdk options:dpdk-devargs=0000:ff:1f.7".into(), false, "no PCI device 0000:ff:1f.7"),
        ("c3", "type=dpdk options:dpdk-devargs=\"net_af_packet77,iface=no\"".into(), false, "its driver"),
        ("c4", "type=dpdkvhostuserclient".into(), false, "vhost-server-path is missing"),
        ("c5", format!("type=dpdkvhostuserclient options:vhost-server-path=/{path}"), false, "107 at most"),
        ("c6", "type=geneve options:remote_ip=10.0.0.1 options:key=0x1000000".into(), false, "24 bits"),
        (
            "c7",
            "type=geneve options:remote_ip=10.0.0.1 options:in_key=1 options:out_key=0x1000000".into(),
            false,
            "24 bits",
        ),
        ("c8", "type=vxlan options:remote_ip=10.0.0.1 options:exts=gbq".into(), false, "gbq"),
        ("c9", "type=vxlan options:remote_ip=10.0.0.1 options:ttl=1000".into(), false, "ttl=1000"),
        ("long-name-for-a-tap", "type=internal".into(), false, "File name too long"),
        ("r7", "type=geneve options:remote_ip=10.0.0.1 options:in_key=1 options:out_key=2".into(), true, ""),
        ("r8", "type=vxlan options:remote_ip=10.0.0.1 options:exts=gbp".into(), true, ""),
        ("r0", "type=vxlan options:remote_ip=10.0.0.2 options:dst_port=9".into(), true, ""),
        ("r1", "type=vxlan options:remote_ip=10.0.0.2 options:tos=inherit".into(), true, ""),
        ("r2", format!("{} options:n_rxq=many", null(2)), true, "n_rxq=many"),
        ("r3", format!("{} options:n_txq_desc=1000", null(3)), true, "power of two"),
        ("r4", "type=internal mtu_request=70000".into(), true, "mtu_request 70000"),
        ("r5", null(5), true, ""),
        ("r6", "type=vxlan options:remote_ip=10.0.0.3".into(), true, ""),
    ] {
        s.vsctl(&format!("--no-wait add-port br0 {name} -- set interface {name} {rest}"));
        eventually(name, SOON, || {
            let told = (s.vsctl(&format!("get interface {name} ofport")).trim().to_string(), error(name));
            let good = match told.0.as_str() {
                "[]" => false,
                no => (no != "-1") == runs && (if why.is_empty() { told.1 == "[]" } else { told.1.contains(why) }),
            };
            if good { Ok(()) } else { Err(format!("{told:?}")) }
        });
    }
    // What is mended is complained of no more.
    s.vsctl("set interface r2 options:n_rxq=2 -- set interface r4 mtu_request=1400");
    for name in ["r2", "r4"] {
        s.becomes(&format!("get interface {name} error"), "[]", SOON);
    }
    // Another one that wants the device of r5, by the same words and by others.
    for (name, rest, why) in [
        ("e1", null(5), "already in use by 'r5'"),
        ("e2", format!("{},size=80", null(5).trim_end_matches('"')), "in use"),
    ] {
        let rest = if name == "e2" { format!("{rest}\"") } else { rest };
        s.vsctl(&format!("--no-wait add-port br0 {name} -- set interface {name} {rest}"));
        eventually(name, SOON, || {
            let told = error(name);
            if told.contains(why) { Ok(()) } else { Err(told) }
        });
    }
    let sent = || s.vsctl("--if-exists get interface r5 statistics:tx_packets").trim().parse::<u64>().unwrap_or(0);
    assert_eq!((error("r5").as_str(), s.vsctl("get interface r5 link_state").trim()), ("[]", "up"));
    s.ofctl(&["packet-out", "br0", "in_port=CONTROLLER packet=ffffffffffff02000000000188b5,actions=output:r5"]);
    eventually("it still sends", SOON, || if sent() > 0 { Ok(()) } else { Err("nothing sent".into()) });
    s.vsctl("del-port r5");
    s.becomes("get interface e1 error", "[]", SOON);
    s.vsctl("del-port e1 -- del-port e2");
    s.vsctl(&format!("add-port br0 r5 -- set interface r5 {}", null(5)));
    s.becomes("get interface r5 error", "[]", SOON);
    // An internal port takes its device with it: nothing is there for a port of type system of the same name.
    for _ in 0..3 {
        s.vsctl("set interface r4 type=internal");
        s.becomes("get interface r4 error", "[]", SOON);
        s.vsctl("--no-wait set interface r4 type=system");
        s.becomes("get interface r4 error", "could not open network device r4 (No such device)", SOON);
    }
    let log = std::fs::read_to_string(s.path("stderr")).expect("log");
    let others: Vec<&str> = log.lines().filter(|l| l.contains("|WARN|") && l.contains(" r4")).collect();
    assert!(others.iter().all(|l| l.contains("mtu_request 70000") || l.contains("No such device)")), "{others:#?}");
}

/// Groups fail over when a port's link goes.
#[test]
fn fast_failover_follows_links() {
    if !able(&["ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("ff");
    let s = Switch::ours(&ns);
    let (a, b) = (ns.machine("v1", "10.4.1.1/24"), ns.machine("v2", "10.4.1.2/24"));
    let c = ns.machine("v3", "10.4.1.2/24");
    c.ip("link set eth0 address 02:00:00:00:00:02");
    b.ip("link set eth0 address 02:00:00:00:00:02");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 v1 -- set interface v1 ofport_request=1 -- add-port br0 v2 -- set interface v2 ofport_request=2 -- add-port br0 v3 -- set interface v3 ofport_request=3");
    s.ofctl(&[
        "add-group",
        "br0",
        "group_id=1,type=ff,bucket=watch_port:2,actions=output:2,bucket=watch_port:3,actions=output:3",
    ]);
    s.ofctl(&["add-flow", "br0", "in_port=1,actions=group:1"]);
    s.ofctl(&["add-flow", "br0", "priority=1,actions=output:1"]);
    a.reaches("10.4.1.2");
    let sent = |port: u32| {
        let text = s.ofctl(&["dump-ports", "br0", &port.to_string()]);
        let tx = text.split("tx pkts=").nth(1).and_then(|t| t.split(',').next()).map(str::to_string);
        tx.and_then(|t| t.trim().parse::<u64>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    assert!(sent(2) > 0);
    let text = s.ofctl(&["dump-ports", "br0", "2"]);
    let age =
        text.split("duration=").nth(1).and_then(|t| t.split('s').next()).and_then(|t| t.trim().parse::<f64>().ok());
    assert!(age.is_some_and(|a| a > 0.1 && a < 600.0), "{text}");
    b.ip("link set eth0 down");
    let third = sent(3);
    a.reaches("10.4.1.2");
    assert!(sent(3) > third, "by the other one");
    s.becomes("get interface v2 link_state", "down", SOON);
    b.ip("link set eth0 up");
    s.becomes("get interface v2 link_state", "up", SOON);
    let third = sent(3);
    a.reaches("10.4.1.2");
    assert_eq!(sent(3), third, "back to the first");
}

/// A tunnel with UDP checksums to Open vSwitch, which drops what has a wrong one: by a device that finishes them, and
/// by one that does not.
#[test]
fn tunnels_have_right_checksums_whoever_writes_them() {
    if !able(&["ovs-ofctl", "ovs-vswitchd"]) {
        return;
    }
    let (ns, peer) = (Namespace::new("co"), Namespace::new("cp"));
    let s = Switch::ours(&ns);
    let theirs = Switch::debian(&peer);
    theirs.vsctl("add-br br-phys -- set bridge br-phys datapath_type=netdev other_config:hwaddr=02:00:00:00:05:02 -- add-br br0 -- set bridge br0 datapath_type=netdev");
    theirs.vsctl(
        "add-port br0 g1 -- set interface g1 type=geneve options:remote_ip=10.6.0.1 options:key=7 options:csum=true",
    );
    peer.ip("addr add 10.6.0.2/24 dev br-phys");
    peer.ip("link set br-phys up");
    peer.ip("addr add 10.5.0.2/24 dev br0");
    peer.ip("link set br0 up");
    let inner = ns.machine("in1", "10.5.0.1/24");
    s.vsctl("add-br br-phys -- set bridge br-phys datapath_type=netdev other_config:hwaddr=02:00:00:00:05:01 -- add-br br0 -- set bridge br0 datapath_type=netdev");
    s.vsctl("add-port br0 in1 -- add-port br0 g1 -- set interface g1 type=geneve options:remote_ip=10.6.0.2 options:key=7 options:csum=true");
    ns.ip("addr add 10.6.0.1/24 dev br-phys");
    ns.ip("link set br-phys up");
    // The device's kernel side is the peer's.
    s.vsctl("add-port br-phys up1 -- set interface up1 type=dpdk options:dpdk-devargs=net_tap71,iface=up0 options:n_rxq=2 options:n_rxq_desc=256");
    s.becomes("get interface up1 error", "[]", SOON);
    // Set up anew while it runs, as long as it is here.
    s.vsctl("set interface up1 options:n_rxq=1 options:n_rxq_desc=512 mtu_request=1450");
    s.becomes("get interface up1 status:n_rxq", "1", SOON);
    s.becomes("get interface up1 mtu", "1450", SOON);
    s.vsctl("set interface up1 options:n_rxq=2 options:n_rxq_desc=256");
    s.becomes("get interface up1 status:n_rxq_desc", "256", SOON);
    ns.ip(&format!("link set up0 netns {}", peer.0));
    peer.ip("link set up0 up");
    theirs.vsctl("add-port br-phys up0");
    let status = |key: &str| s.vsctl(&format!("get interface up1 status:{key}")).trim().trim_matches('"').to_string();
    eventually("the status", SOON, || {
        let now = ["driver_name", "tx_udp_csum_offload", "rx_csum_offload", "n_rxq", "n_rxq_desc"].map(|k| {
            s.try_vsctl(&format!("get interface up1 status:{k}"))
                .unwrap_or_default()
                .trim()
                .trim_matches('"')
                .to_string()
        });
        if now == ["net_tap", "true", "true", "2", "256"] { Ok(()) } else { Err(format!("{now:?}")) }
    });
    assert_eq!(status("if_type"), "6");
    talk(&theirs, &inner);
    s.vsctl("del-port up1");
    // af_packet has no offloads.
    ns.ip(&format!("link add up2 type veth peer name eth0 netns {}", peer.0));
    ns.ip("link set up2 up");
    s.vsctl("add-port br-phys up1 -- set interface up1 type=dpdk options:dpdk-devargs=net_af_packet71,iface=up2 options:n_rxq=4");
    peer.ip("link set eth0 up");
    peer.exec("ethtool -K eth0 tx off").expect("ethtool");
    theirs.vsctl("del-port up0 -- add-port br-phys eth0");
    s.becomes("get interface up1 status:tx_udp_csum_offload", "false", SOON);
    assert_eq!(status("n_rxq"), "1", "as many as it has");
    talk(&theirs, &inner);
}

fn talk(theirs: &Switch, inner: &Namespace) {
    inner.reaches("10.5.0.2");
    let out = inner.exec("ping -n -c 20 -i 0.01 -W 1 -s 1200 10.5.0.2").unwrap_or_else(|e| e);
    assert!(out.contains(" 0% packet loss"), "{out}");
    // What came had checksums at all.
    let flows = theirs.appctl(&["dpctl/dump-flows"]).expect("flows");
    let with = flows.lines().filter(|l| l.contains("src=10.6.0.1") && l.contains("+csum")).count();
    assert!(with > 0 && !flows.contains("-csum"), "{flows}");
}

/// More ports than are opened at once, one of them without a device, come in one change of the database, and go in one.
#[test]
fn many_ports_come_and_go_together() {
    const N: usize = 80;
    if !able(&[]) {
        return;
    }
    let ns = Namespace::new("mp");
    let s = Switch::ours(&ns);
    (0..N).for_each(|i| drop(ns.ip(&format!("link add m{i} type veth peer name n{i}"))));
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    let (a, b) = (ns.machine("va", "10.9.0.1/24"), ns.machine("vb", "10.9.0.2/24"));
    let each = |f: &dyn Fn(usize) -> String| (0..N).map(f).collect::<Vec<_>>().join(" -- ");
    let both = "add-port br0 va -- add-port br0 vb";
    s.vsctl(&format!("{} -- add-port br0 gone -- {both}", each(&|i| format!("add-port br0 m{i}"))));
    let numbers = || {
        let all = s.vsctl("--columns=ofport,error --format=csv --data=bare --no-headings list interface");
        let rows = all.lines().map(|l| l.split_once(',').expect("two columns"));
        rows.map(|(n, e)| (n.to_string(), e.to_string())).collect::<Vec<_>>()
    };
    let all = numbers();
    let running: BTreeSet<&String> = all.iter().filter(|(_, e)| e.is_empty()).map(|(n, _)| n).collect();
    assert_eq!((all.len(), running.len()), (N + 4, N + 3), "each has a number of its own: {all:?}");
    let failed: Vec<_> = all.iter().filter(|(_, e)| !e.is_empty()).collect();
    assert_eq!(failed, [&("-1".to_string(), "could not open network device gone (No such device)".to_string())]);
    a.reaches("10.9.0.2");
    // Those that go and those that stay, and one that has another device meanwhile.
    ns.ip("link del m3");
    ns.ip("link add m3 type veth peer name n3");
    let renewed = || {
        let port = s.vsctl("--bare --columns=ifindex,error list interface m3");
        let index = ns.exec("cat /sys/class/net/m3/ifindex")?;
        if port.trim() == index.trim() { Ok(()) } else { Err(format!("{port} {index}")) }
    };
    eventually("m3 is the new device", SOON, renewed);
    s.vsctl(&each(&|i| format!("del-port br0 m{i}")));
    assert_eq!(numbers().len(), 4);
    b.reaches("10.9.0.1");
    s.vsctl(&each(&|i| format!("add-port br0 m{i}")));
    assert_eq!(numbers().iter().filter(|(_, e)| e.is_empty()).count(), N + 3);
    a.reaches("10.9.0.2");
}
