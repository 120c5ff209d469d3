//! Queues of ports: what `ovs-ofctl` and `ovs-appctl` say of them, beside Debian's Open vSwitch (which leaves the work
//! to the kernel), and what they do to packets.

mod common;

use common::{Namespace, Switch, able, eventually, run};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(15);

/// A port whose QoS has the default queue and three more.
const QOS: &str = "-- set port v1 qos=@q -- --id=@q create qos type=linux-htb other_config:max-rate=10000000 queues:0=@a queues:7=@b queues:9=@c queues:61439=@d -- --id=@a create queue other_config:min-rate=1000000 -- --id=@b create queue other_config:min-rate=2000000 other_config:max-rate=4000000 other_config:burst=80000 other_config:priority=3 -- --id=@c create queue other_config:min-rate=8 other_config:max-rate=99000000 -- --id=@d create queue other_config:max-rate=1000000";

const COMMANDS: &[&str] = &[
    "queue-stats br0",
    "queue-stats br0 1",
    "queue-stats br0 1 7",
    "queue-stats br0 1 8",
    "queue-stats br0 9",
    "queue-stats br0 ALL 9",
    "queue-stats br0 ALL 8",
    "queue-stats br0 2",
    "queue-get-config br0 1",
    "queue-get-config br0 2",
    "queue-get-config br0 9",
];

/// Lines in order, without ids and ages.
fn normal(s: &str, dir: &str) -> Vec<String> {
    let hex = |c: char| c.is_ascii_hexdigit();
    let mut lines: Vec<String> = s
        .replace(dir, "")
        .lines()
        .map(|l| l.split_once("xid=0x").map_or(l.into(), |(a, b)| format!("{a}{}", b.trim_start_matches(hex))))
        .map(|l: String| l.split_once("duration=").map_or(l.clone(), |(a, _)| a.into()))
        .map(|l| if l.contains('|') { l.rsplit('|').next().unwrap_or_default().into() } else { l })
        .collect();
    lines.sort();
    lines
}

#[test]
fn queues_are_told_as_by_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-ofctl", "tc"]) {
        return;
    }
    let (a, b) = (Namespace::new("qo"), Namespace::new("qc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    for (s, ns) in switches.iter().zip([&a, &b]) {
        ns.ip("link add v1 type veth peer name v2");
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 v1 -- set interface v1 ofport_request=1 -- add-port br0 i1 -- set interface i1 type=internal ofport_request=2");
        s.vsctl(QOS);
    }
    let shown = |s: &Switch| {
        let mut text = Vec::new();
        for version in ["OpenFlow10", "OpenFlow13", "OpenFlow14", "OpenFlow15"] {
            for c in COMMANDS {
                let words: Vec<&str> = ["-O", version].into_iter().chain(c.split(' ')).collect();
                let dir = s.path("");
                let said = run("ovs-ofctl", &words, &[("OVS_RUNDIR", &dir)]).unwrap_or_else(|e| e);
                text.push(format!("{version} {c}: {:#?}", normal(&said, &dir)));
            }
        }
        for port in ["v1", "i1", "none"] {
            let said = s.appctl(&["qos/show", port]).unwrap_or_else(|e| e);
            text.push(format!("qos/show {port}: {:#?}", normal(&said, &s.path(""))));
        }
        text
    };
    eventually("both say the same", SOON, || {
        let [ours, theirs] = switches.each_ref().map(&shown);
        let bad: Vec<String> =
            ours.iter().zip(&theirs).filter(|(o, t)| o != t).map(|(o, t)| format!("ours {o}\ntheirs {t}")).collect();
        if !theirs.iter().any(|t| t.contains("Queue 61439")) {
            return Err("not configured yet".into());
        }
        if bad.is_empty() { Ok(()) } else { Err(bad.join("\n")) }
    });
    let ours = &switches[0];
    // One that is not there is an error; 3.1 says of the same that the system failed.
    let said = ours.try_ofctl(&["queue-get-config", "br0", "1", "8"]).unwrap_or_else(|e| e);
    assert!(said.contains("OFPQOFC_BAD_QUEUE"), "{said}");
    // A type that there is not leaves the port as it is.
    ours.vsctl("set port i1 qos=@q -- --id=@q create qos type=linux-sfq");
    ours.vsctl("clear port v1 qos");
    eventually("no queues any more", SOON, || {
        let now = ours.appctl(&["qos/show", "v1"])?;
        if now == "QoS not configured on v1\n" { Ok(()) } else { Err(now) }
    });
}

/// The longest time that a packet took, in milliseconds, and how many came back.
fn pings(from: &Namespace, words: &str) -> (f64, u32) {
    let out = from.exec(&format!("ping -n -q {words}")).unwrap_or_else(|e| e);
    let max = out.split("rtt min/avg/max").nth(1).and_then(|r| r.split('/').nth(3)?.parse().ok()).unwrap_or(0.0);
    let back = out.split(" received").next().and_then(|r| r.rsplit(' ').next()?.parse().ok());
    (max, back.unwrap_or_else(|| panic!("{out}")))
}

/// What a queue counted: packets and drops.
fn counts(s: &Switch, queue: u32) -> (u64, u64) {
    let text = s.ofctl(&["queue-stats", "br-ex", "ALL", &queue.to_string()]);
    let of = |k: &str| text.split(k).nth(1).and_then(|t| t.split(',').next()?.parse().ok());
    of("pkts=").zip(of("errors=")).unwrap_or_else(|| panic!("{text}"))
}

/// As OVN does it: a bridge sets the queue, another one, behind a patch, sends the packet by a port with queues.
#[test]
fn packets_wait_in_their_queues() {
    if !able(&["ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("qw");
    let s = Switch::ours(&ns);
    let (a, b) = (ns.machine("v1", "10.8.0.1/24"), ns.machine("v2", "10.8.0.2/24"));
    s.vsctl("add-br br-int -- set bridge br-int datapath_type=netdev fail_mode=secure -- add-port br-int v1 -- set interface v1 ofport_request=1 -- add-port br-int pi -- set interface pi type=patch options:peer=pe ofport_request=2");
    s.vsctl("add-br br-ex -- set bridge br-ex datapath_type=netdev -- add-port br-ex v2 -- add-port br-ex pe -- set interface pe type=patch options:peer=pi");
    // 1 Mbit/s for the one queue; a kilobyte each eight milliseconds.
    s.vsctl("set port v2 qos=@q -- --id=@q create qos type=linux-htb other_config:max-rate=100000000 queues:5=@a -- --id=@a create queue other_config:max-rate=1000000");
    for f in [
        "priority=9,in_port=1,ip,nw_tos=32,actions=set_queue:5,output:2",
        "priority=8,in_port=1,ip,nw_tos=64,actions=clone(set_queue:5),output:2",
        "priority=7,in_port=1,ip,nw_tos=96,actions=enqueue:2:5",
        "priority=1,in_port=1,actions=output:2",
        "priority=1,in_port=2,actions=output:1",
    ] {
        s.ofctl(&["add-flow", "br-int", f]);
    }
    a.reaches("10.8.0.2");
    eventually("the queue is there", SOON, || {
        let now = s.appctl(&["qos/show", "v2"])?;
        if now.contains("Queue 5:") { Ok(()) } else { Err(now) }
    });
    let start = counts(&s, 5);
    // 300 kilobytes in half a second take more than two; nothing is lost, and others do not wait.
    let (slow, fast) = std::thread::scope(|scope| {
        let slow = scope.spawn(|| pings(&a, "-c 300 -l 300 -s 958 -W 10 -Q 32 10.8.0.2"));
        std::thread::sleep(Duration::from_millis(300));
        let fast = pings(&a, "-c 50 -i 0.02 -s 958 -W 10 10.8.0.2");
        (slow.join().expect("pings"), fast)
    });
    assert_eq!((slow.1, fast.1), (300, 50));
    assert!(slow.0 > 1200.0 && slow.0 < 4000.0, "{slow:?}");
    assert!(fast.0 < slow.0 / 4.0, "{fast:?} {slow:?}");
    assert_eq!(counts(&s, 5), (start.0 + 300, 0));
    // What is set within a clone stays there.
    assert_eq!(pings(&a, "-c 5 -i 0.05 -Q 64 10.8.0.2").1, 5);
    assert_eq!(counts(&s, 5).0, start.0 + 300);
    assert_eq!(pings(&a, "-c 5 -i 0.05 -Q 96 10.8.0.2").1, 5);
    assert_eq!(counts(&s, 5).0, start.0 + 305);
    let flows = s.appctl(&["dpctl/dump-flows"]).expect("flows");
    assert!(flows.contains("set(skb_priority(0x5))"), "{flows}");
    let trace = s.appctl(&["ofproto/trace", "br-int", "in_port=1,icmp,nw_tos=32"]).expect("a trace");
    assert!(trace.contains("set(skb_priority(0x5)),"), "{trace}");
    // A queue holds a thousand; the rest is dropped, and counted. On a busy machine the kernel may drop a burst before the
    // switch sees it: then another one comes.
    let (mut back, mut dropped) = (0, 0);
    for _ in 0..5 {
        back = pings(&a, "-c 1700 -l 1700 -s 958 -w 4 -Q 32 10.8.0.2").1;
        dropped = counts(&s, 5).1;
        if dropped > 50 {
            break;
        }
    }
    assert!(back < 1700 && dropped > 50, "{back} {dropped}");
    eventually("drops are counted", SOON, || {
        let n = s.try_vsctl("get interface v2 statistics:ovs_tx_qos_drops")?;
        if n.trim() == dropped.to_string() { Ok(()) } else { Err(n) }
    });
    let reasons = s.appctl(&["dpif-netdev/pmd-stats-show"]).expect("figures");
    assert!(reasons.contains(&format!("drop queue_full: {dropped}")), "{reasons}");
    // Without the QoS all go at once, whatever queue they name.
    s.vsctl("clear port v2 qos");
    eventually("no queue any more", SOON, || {
        let (max, back) = pings(&a, "-c 100 -l 100 -s 958 -W 5 -Q 32 10.8.0.2");
        if max < 300.0 && back == 100 { Ok(()) } else { Err(format!("{max} {back}")) }
    });
    drop(b);
}

/// Whether the kernel has a kind of queue; otherwise the test is skipped.
fn kernel_has(ns: &Namespace, kind: &str) -> bool {
    ns.ip("link add probe type veth peer name probed");
    let parent = if kind == "ingress" { "" } else { "root" };
    let made = ns.exec(&format!("tc qdisc add dev probe {parent} {kind}"));
    ns.ip("link del probe");
    if made.is_err() {
        needs::skip(format!("no queue {kind} in this kernel"));
    }
    made.is_ok()
}

fn tc(ns: &Namespace, words: &str) -> String {
    ns.exec(&format!("tc {words}")).unwrap_or_else(|e| panic!("tc {words}: {e}"))
}

/// The kernel's classes of a device: the number, and what is behind it.
fn classes(ns: &Namespace, device: &str) -> Vec<(String, String)> {
    let of = |l: &str| {
        let (number, rest) = l.split_once("class htb ")?.1.split_once(' ')?;
        Some((number.to_string(), rest.trim().to_string()))
    };
    let mut all: Vec<_> = tc(ns, &format!("class show dev {device}")).lines().filter_map(of).collect();
    all.sort();
    all
}

/// Whether a device has these classes, by number and rates.
fn has_classes(ns: &Namespace, device: &str, wanted: &[(&str, &str)]) {
    let now = classes(ns, device);
    let same = |(n, rest): &(String, String), (number, rates): &(&str, &str)| n == number && rest.contains(rates);
    assert!(now.len() == wanted.len() && now.iter().zip(wanted).all(|(a, b)| same(a, b)), "{now:#?}\n{wanted:#?}");
}

/// What `ovs-vsctl` waits for is in the kernel when it ends, so nothing here waits.
#[test]
fn the_kernel_shows_queues() {
    if !able(&["tc"]) {
        return;
    }
    let ns = Namespace::new("qk");
    if !kernel_has(&ns, "htb") {
        return;
    }
    let mut s = Switch::ours(&ns);
    for n in ["v1", "v2", "v3"] {
        ns.ip(&format!("link add {n} type veth peer name x{n}"));
    }
    // Queues of an operator: on a port that gets ours, and on one without QoS.
    tc(&ns, "qdisc add dev v1 root handle 1: htb default 7");
    tc(&ns, "qdisc add dev v3 root handle 1: htb default 1");
    tc(&ns, "class add dev v3 parent 1: classid 1:1 htb rate 5mbit");
    ns.exec("ip tuntap add t1 mode tap").expect("tap");
    ns.exec("ethtool -s t1 speed 5000 duplex full").expect("ethtool");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 v1 -- add-port br0 v2 -- add-port br0 v3 -- add-port br0 t1 -- set interface t1 type=tap");
    s.vsctl("set port v1 qos=@q -- --id=@q create qos type=linux-htb other_config:max-rate=10000000 queues:0=@a queues:7=@b queues:61439=@c -- --id=@a create queue other_config:min-rate=2000000 other_config:max-rate=3000000 other_config:burst=3000000 -- --id=@b create queue other_config:max-rate=0 other_config:priority=3 -- --id=@c create queue other_config:burst=8");
    let first = [
        ("1:1", "parent 1:fffe prio 0 rate 2Mbit ceil 3Mbit burst 375000b cburst 375000b"),
        ("1:8", "parent 1:fffe prio 3 rate 12Kbit ceil 10Mbit"),
        ("1:f000", "parent 1:fffe prio 0 rate 12Kbit ceil 10Mbit"),
        ("1:fffe", "root rate 10Mbit ceil 10Mbit burst 375000b cburst 375000b"),
    ];
    has_classes(&ns, "v1", &first);
    let root = tc(&ns, "qdisc show dev v1 root");
    assert!(root.contains("htb 1: root") && root.contains(" default 0x1 "), "{root}");
    // Without a rate the link's speed counts, here and for the switch's own queues.
    s.vsctl("set port t1 qos=@q -- --id=@q create qos type=linux-htb queues:0=@a -- --id=@a create queue other_config:burst=4000000");
    // The kernel tells it of a link that is up.
    ns.ip("link set t1 up");
    eventually("the link's speed", SOON, || {
        let now = s.appctl(&["qos/show", "t1"])?;
        if now.contains("max-rate: 5000000000") { Ok(()) } else { Err(now) }
    });
    let fast = [("1:1", "rate 12Kbit ceil 5Gbit burst 412316b cburst 500000b"), ("1:fffe", "rate 5Gbit ceil 5Gbit")];
    s.vsctl("set open . external_ids:again=0");
    has_classes(&ns, "t1", &fast);
    // Beyond what 32 bits of bytes a second hold.
    s.vsctl("set port v2 qos=@q -- --id=@q create qos type=linux-htb other_config:max-rate=50000000000 queues:0=@a -- --id=@a create queue other_config:min-rate=40000000000 other_config:burst=5000000");
    let wide = [("1:1", "rate 40Gbit ceil 50Gbit burst 625000b cburst 625000b"), ("1:fffe", "rate 50Gbit ceil 50Gbit")];
    has_classes(&ns, "v2", &wide);

    // Changed rates change classes where they are; a queue that goes takes its class along.
    let qos = s.vsctl("get port v1 qos");
    let queue = s.vsctl(&format!("get qos {} queues:0", qos.trim()));
    s.vsctl(&format!("set queue {} other_config:max-rate=4000000", queue.trim()));
    s.vsctl(&format!("remove qos {} queues 61439", qos.trim()));
    let second = [("1:1", "rate 2Mbit ceil 4Mbit"), ("1:8", "rate 12Kbit ceil 10Mbit"), ("1:fffe", "rate 10Mbit")];
    has_classes(&ns, "v1", &second);
    // Another run finds them, and they stay the same ones: they would else forget what they counted.
    ns.ip("link set xv1 up");
    common::send(&ns, "v1", vec![[&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[0; 50]].concat()]);
    let counted = |ns: &Namespace| {
        let text = tc(ns, "-s qdisc show dev v1 root");
        let bytes = text.split("Sent ").nth(1).and_then(|t| t.split(' ').next()?.parse::<u64>().ok());
        bytes.unwrap_or_else(|| panic!("{text}"))
    };
    let before = counted(&ns);
    s.crash();
    s.start_ours(&ns);
    eventually("the port is there again", SOON, || s.appctl(&["qos/show", "v1"]).map(drop));
    s.vsctl("set open . external_ids:again=1");
    has_classes(&ns, "v1", &second);
    assert!(counted(&ns) >= before && before > 0, "{before}");
    s.vsctl(&format!("set queue {} other_config:max-rate=5000000", queue.trim()));
    has_classes(&ns, "v1", &[("1:1", "rate 2Mbit ceil 5Mbit"), second[1], second[2]]);

    // A port that goes takes its queues along; so does QoS that goes, or is left to the operator.
    let none = |device: &str| {
        let now = tc(&ns, &format!("qdisc show dev {device}"));
        assert!(!now.contains("htb"), "{device}: {now}");
    };
    s.vsctl("del-port v1");
    none("v1");
    s.vsctl("clear port v2 qos");
    none("v2");
    s.vsctl("set port t1 qos=@q -- --id=@q create qos type=linux-noop");
    none("t1");
    tc(&ns, "qdisc add dev t1 root handle 1: htb default 1");
    tc(&ns, "class add dev t1 parent 1: classid 1:fffe htb rate 6mbit");
    s.vsctl("set port t1 other_config:again=1 -- set interface t1 ingress_policing_rate=1000");
    s.crash();
    s.start_ours(&ns);
    eventually("the port is there again", SOON, || s.appctl(&["qos/show", "t1"]).map(drop));
    s.vsctl("set open . external_ids:again=2");
    has_classes(&ns, "t1", &[("1:fffe", "root prio 0 rate 6Mbit")]);
    has_classes(&ns, "v3", &[("1:1", "root prio 0 rate 5Mbit")]);
    s.vsctl("del-port v3");
    has_classes(&ns, "v3", &[("1:1", "root prio 0 rate 5Mbit")]);
}

/// Packets that a class has sent.
fn sent(ns: &Namespace, device: &str, class: &str) -> u64 {
    let text = tc(ns, &format!("-s class show dev {device}"));
    let own = text.split("class htb ").find(|t| t.starts_with(&format!("{class} ")));
    let packets = own.and_then(|t| t.split(" pkt").next()?.rsplit(' ').next()?.parse().ok());
    packets.unwrap_or_else(|| panic!("{class}: {text}"))
}

/// The kernel's queues have the rates of the switch's own, through which packets go before: neither slows the other.
#[test]
fn the_kernel_counts_packets_by_class_and_lets_the_rate_through() {
    if !able(&["tc"]) {
        return;
    }
    let ns = Namespace::new("qr");
    if !kernel_has(&ns, "htb") {
        return;
    }
    let s = Switch::ours(&ns);
    let (a, b) = (ns.machine("r1", "10.9.0.1/24"), ns.machine("r2", "10.9.0.2/24"));
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 r1 -- set interface r1 ofport_request=1 -- add-port br0 r2 -- set interface r2 ofport_request=2");
    s.vsctl("set port r2 qos=@q -- --id=@q create qos type=linux-htb other_config:max-rate=100000000 queues:4=@a queues:5=@b queues:61440=@a -- --id=@a create queue other_config:max-rate=3000000 -- --id=@b create queue other_config:min-rate=1000000");
    for f in [
        "priority=9,in_port=1,ip,nw_tos=32,actions=set_queue:5,output:2",
        "priority=9,in_port=1,ip,nw_tos=64,actions=set_queue:61440,output:2",
        "priority=9,in_port=1,ip,nw_tos=96,actions=set_queue:9,output:2",
        "priority=9,in_port=1,dl_type=0x88b5,actions=set_queue:4,output:2",
        "priority=1,in_port=1,actions=output:2",
        "priority=1,in_port=2,actions=output:1",
    ] {
        s.ofctl(&["add-flow", "br0", f]);
    }
    a.reaches("10.9.0.2");
    // The queue, the class of a queue without one, and queue 0 for one that is not there.
    for (tos, class) in [(32, "1:6"), (64, "1:1"), (96, "1:1")] {
        let before = ["1:1", "1:5", "1:6"].map(|c| sent(&ns, "r2", c));
        assert_eq!(pings(&a, &format!("-c 20 -i 0.01 -Q {tos} 10.9.0.2")).1, 20);
        let after = ["1:1", "1:5", "1:6"].map(|c| sent(&ns, "r2", c));
        for ((before, after), c) in before.into_iter().zip(after).zip(["1:1", "1:5", "1:6"]) {
            // ARP and the like go by queue 0.
            let expected = if c == class { 20 } else { 0 };
            let most = expected + if c == "1:1" { 5 } else { 0 };
            assert!((expected..=most).contains(&(after - before)), "{c}, with {tos}: {before}, then {after}");
        }
    }
    // 3 Mbit/s of up to 8: bytes that arrive in two seconds.
    let received = || {
        let text = b.exec("cat /sys/class/net/eth0/statistics/rx_bytes").expect("a counter");
        text.trim().parse::<u64>().expect("bytes")
    };
    let rate = || {
        let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[0; 986]].concat();
        std::thread::scope(|scope| {
            scope.spawn(|| common::send(&a, "eth0", vec![frame; 3000]));
            std::thread::sleep(Duration::from_millis(700));
            let (start, before) = (std::time::Instant::now(), received());
            std::thread::sleep(Duration::from_millis(2000));
            (received() - before) as f64 * 8.0 / start.elapsed().as_secs_f64()
        })
    };
    let both = rate();
    let dropped = tc(&ns, "-s qdisc show dev r2 root");
    assert!(dropped.contains("(dropped 0,"), "{dropped}");
    // The switch does not look after queues that somebody else removes.
    tc(&ns, "qdisc del dev r2 root");
    let alone = rate();
    println!("{both:.0} bit/s through both, {alone:.0} through the switch's own queues");
    // No more than the rate; how much less is a matter of who else works on the machine.
    for rate in [both, alone] {
        assert!((1.5e6..3.15e6).contains(&rate), "{both} {alone}");
    }
}

#[test]
fn the_kernel_shows_policers() {
    if !able(&["tc"]) {
        return;
    }
    let ns = Namespace::new("qp");
    if !kernel_has(&ns, "ingress") {
        return;
    }
    ns.ip("link add v1 type veth peer name v2");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 v1");
    s.vsctl("set interface v1 ingress_policing_rate=50000000 ingress_policing_burst=400000");
    let shown = || tc(&ns, "filter show dev v1 ingress");
    let lacks = std::fs::read_to_string(s.path("stderr")).expect("log");
    if lacks.contains("v1: the kernel has no filter matchall or basic with action police") {
        assert!(!tc(&ns, "qdisc show dev v1").contains("ingress"));
        return needs::skip("no matchall, basic or police in this kernel");
    }
    assert!(shown().contains("rate 50Gbit burst 74500000b"), "{}", shown());
    s.vsctl("set interface v1 ingress_policing_rate=100 ingress_policing_burst=10 ingress_policing_kpkts_rate=100 ingress_policing_kpkts_burst=10");
    assert!(shown().contains("rate 100Kbit burst 1280b") && shown().contains("pkts_rate 100000 pkts_burst 10000"));
    s.vsctl("set interface v1 ingress_policing_rate=0 ingress_policing_kpkts_rate=0");
    assert!(!tc(&ns, "qdisc show dev v1").contains("ingress"));
}
