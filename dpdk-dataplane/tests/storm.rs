//! A storm of packets at one port: garbage, ARP, fragments, SYNs, as fast as the worker takes them. The other ports,
//! BFD, and whoever asks the daemon something go on.

mod common;

use common::*;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
/// Packets of the storm, played over and over.
const PACKETS: u32 = 4000;

/// A packet of the storm.
fn packet(n: u32) -> Vec<u8> {
    let mut x = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    let macs: Vec<u8> = [0xff; 6].into_iter().chain([2, 0, 9, 9, 9]).chain([random()]).collect();
    let body: Vec<u8> = (0..64).map(|_| random()).collect();
    let mut p = macs;
    match n % 4 {
        0 => p.extend_from_slice(&body),
        1 => {
            p.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            p.extend_from_slice(&body[..20]);
        }
        kind => {
            // Fragments of UDP; SYNs from any port to any address.
            let (fragment, proto) = if kind == 2 { (0x20, 17) } else { (0, 6) };
            p.extend_from_slice(&[8, 0, 0x45, 0, 0, 40, body[0], body[1], fragment, 0, 64, proto, 0, 0]);
            p.extend_from_slice(&[
                10, 9, body[2], body[3], 10, 8, body[4], body[5], body[6], body[7], body[8], body[9],
            ]);
            p.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0, 9, 0, 0, 0, 0]);
        }
    }
    p
}

fn storm() -> Vec<u8> {
    let mut f: Vec<u8> =
        [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65_535, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    for n in 0..PACKETS {
        let p = packet(n);
        f.extend([0, 0, p.len() as u32, p.len() as u32].into_iter().flat_map(u32::to_le_bytes));
        f.extend_from_slice(&p);
    }
    f
}

#[test]
fn a_storm_starves_nobody() {
    if !able(&["ovs-vsctl", "ovs-ofctl", "ovs-appctl"]) {
        return;
    }
    let (left, right) = joined("stl", "str");
    let (a, b) = (left.machine("va", "10.1.0.1/24"), left.machine("vb", "10.1.0.2/24"));
    let (l, r) = (Switch::ours(&left), Switch::ours(&right));
    for (s, ns, own, other) in [(&l, &left, 1, 2), (&r, &right, 2, 1)] {
        s.vsctl("add-br under -- add-port under eth0");
        eventually("the bridge", SOON, || ns.exec(&format!("ip addr add 192.168.9.{own}/24 dev under")).map(drop));
        ns.ip("link set under up");
        s.vsctl(&format!(
            "add-br br0 -- add-port br0 tun -- set interface tun type=geneve options:remote_ip=192.168.9.{other} \
             bfd:enable=true bfd:min_rx=300 bfd:min_tx=300"
        ));
    }
    l.vsctl("add-port br0 va -- add-port br0 vb");
    l.vsctl("set interface va ofport_request=11 -- set interface vb ofport_request=12");
    for s in [&l, &r] {
        s.becomes("get interface tun bfd_status:state", "up", SOON);
    }
    a.reaches("10.1.0.2");
    let changes = |s: &Switch| s.vsctl("get interface tun bfd_status:flap_count");
    let before = (changes(&l), changes(&r));
    // What the storm meets: packet-ins, connections, learning.
    for f in [
        "priority=9,in_port=20,arp,actions=controller,NORMAL",
        "priority=9,in_port=20,ip,ip_frag=yes,actions=controller",
        "priority=9,in_port=20,tcp,actions=ct(commit,zone=5,table=1)",
        "priority=8,in_port=20,actions=NORMAL",
        "table=1,actions=drop",
    ] {
        l.ofctl(&["add-flow", "br0", f]);
    }
    std::fs::write(l.dir.path().join("storm.pcap"), storm()).expect("file");
    let file = l.path("storm.pcap");
    l.vsctl(&format!(
        "add-port br0 storm -- set interface storm type=dpdk ofport_request=20 \
         options:dpdk-devargs=\"net_pcap0,rx_pcap={file},infinite_rx=1\""
    ));
    assert_eq!(l.vsctl("get interface storm error").trim(), "[]");
    let begun = Instant::now();
    let pings = a.exec("ping -n -c 50 -i 0.1 -W 2 10.1.0.2").unwrap_or_else(|e| e);
    let lost = pings.split(", ").find_map(|w| w.strip_suffix("% packet loss")?.parse::<f64>().ok());
    assert!(lost.is_some_and(|l| l <= 10.0), "{pings}");
    while begun.elapsed() < Duration::from_secs(6) {
        let asked = Instant::now();
        l.ofctl(&["dump-ports", "br0"]);
        assert!(asked.elapsed() < Duration::from_secs(3), "an answer took {:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((changes(&l), changes(&r)), before, "BFD went down");
    let text = l.appctl(&["dpif-netdev/pmd-stats-show"]).expect("figures");
    let number = |line: &str| -> u64 {
        let at = text.find(line).unwrap_or_else(|| panic!("no {line} in {text}"));
        text[at + line.len()..]
            .split(|c: char| !c.is_ascii_digit())
            .find(|w| !w.is_empty())
            .map_or(0, |n| n.parse().unwrap_or(0))
    };
    // It did blow.
    assert!(number("packets received:") > u64::from(PACKETS) * 5, "{text}");
    assert!(number("packet-ins of br0 because of action:") > 1000, "{text}");
    // A flood of one reason leaves the others' share alone: what was too much is counted with its own.
    let over: u64 = text
        .split("because of action:")
        .nth(1)
        .and_then(|t| t.split("limit: ").nth(1))
        .map_or(0, |t| t.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0));
    let asked = l.appctl(&["metrics/show"]).expect("metrics");
    let metric = asked
        .lines()
        .find_map(|l| l.strip_prefix("isthmus_packet_ins_limited_total{bridge=\"br0\",reason=\"action\"} "));
    assert!(metric.and_then(|n| n.parse::<f64>().ok()).is_some_and(|n| n >= over as f64), "{over} {metric:?}");
    l.vsctl("del-port storm");
    assert!(b.ping("10.1.0.1").is_ok());
    add_up(&l);
}

/// What monitoring is told is in the text format (version 0.0.4 of it), and the same as what operators are.
fn add_up(s: &Switch) {
    // BFD and the kernel's packets go on meanwhile: those reasons alone count that nobody causes any more.
    let figures = s.appctl(&["dpif-netdev/pmd-stats-show"]).expect("figures");
    let text = s.appctl(&["metrics/show"]).expect("metrics");
    let (mut helped, mut typed) = (Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            assert!(!helped.contains(&name) && !help.is_empty(), "{line}");
            helped.push(name);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            assert_eq!(helped.last(), Some(&name), "{line}");
            assert!(kind == "gauge" || kind == "counter" && name.ends_with("_total"), "{line}");
            typed.push(name);
        } else {
            let (left, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let name = left.split('{').next().unwrap_or_else(|| panic!("{line}"));
            assert_eq!(typed.last(), Some(&name), "{line}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{line}");
            assert!(value.parse::<f64>().is_ok() && left.matches('"').count() % 2 == 0, "{line}");
        }
    }
    let value = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<f64>().ok());
    for r in switch::DropReason::ALL {
        let told = value(&format!("isthmus_drops_total{{reason=\"{}\"}}", r.name()));
        let shown = figures.lines().find_map(|l| l.trim().strip_prefix(&format!("drop {}: ", r.name()))?.parse().ok());
        let (told, shown) = (told.unwrap_or_else(|| panic!("{} is not there", r.name())), shown.unwrap_or(0.0));
        assert!(told >= shown && told <= shown + 100.0, "{}: {told} {shown}", r.name());
    }
    let sum = |name: &str| {
        text.lines()
            .filter(|l| l.starts_with(name))
            .filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>()
    };
    let received = value("isthmus_pmd_packets_total{direction=\"received\"}").expect("received");
    // Each packet is looked up once, unless it is cut short; those of tunnels' inside, patch ports and BFD are the
    // difference.
    let looked = sum("isthmus_cache_lookups_total");
    assert!(received > 1000.0 && (looked - received).abs() < received / 50.0 + 500.0, "{looked} {received}");
}
