//! VLANs of ports: what comes out of which port with which tags, beside Open vSwitch.

mod common;

use common::{Namespace, Switch, able, run};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Ports, each with the other end of its link, which listens.
const PORTS: [&str; 8] = ["v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8"];

/// How the ports are set up, by what is asked for.
const SETUPS: [&[&str]; 4] = [
    &[
        "v1 vlan_mode=dot1q-tunnel tag=100",
        "v2 vlan_mode=trunk",
        "v3 tag=100",
        "v4 vlan_mode=dot1q-tunnel tag=100 cvlans=5,7",
        "v5 vlan_mode=native-untagged tag=100",
        "v6 vlan_mode=native-tagged tag=100",
        "v7 vlan_mode=dot1q-tunnel tag=6",
        "v8 trunks=5,6",
    ],
    &[
        "v1 vlan_mode=dot1q-tunnel tag=100 cvlans=0,5 other_config:qinq-ethtype=802.1q",
        "v2 vlan_mode=trunk trunks=100",
        "v3 tag=100 other_config:priority-tags=if-nonzero",
        "v4 vlan_mode=dot1q-tunnel tag=100 other_config:priority-tags=always",
        "v5 vlan_mode=native-untagged tag=100 other_config:priority-tags=always",
        "v6 vlan_mode=native-tagged tag=100 other_config:priority-tags=always",
        "v7 tag=100 other_config:priority-tags=always",
        "v8 vlan_mode=trunk other_config:priority-tags=if-nonzero",
    ],
    &[
        "v1 tag=100",
        "v2 vlan_mode=trunk other_config:priority-tags=always",
        "v3 tag=100 other_config:priority-tags=if-nonzero",
        "v4 vlan_mode=dot1q-tunnel tag=100",
        "v5 vlan_mode=native-untagged tag=100 other_config:priority-tags=if-nonzero",
        "v6 vlan_mode=trunk",
        "v7 tag=5",
        "v8 tag=100 other_config:priority-tags=always",
    ],
    &[
        "v1 vlan_mode=trunk protected=true",
        "v2 vlan_mode=trunk protected=true",
        "v3 tag=5 protected=true",
        "v4 tag=5",
        "v5 vlan_mode=native-untagged tag=5",
        "v6 vlan_mode=trunk other_config:priority-tags=always",
        "v7 tag=6",
        "v8 vlan_mode=dot1q-tunnel tag=5",
    ],
];

/// What is sent into the first port: tags, each with its EtherType.
const TAGS: [&str; 11] = [
    "",
    "81000005",
    "8100a005",
    "81000006",
    "8100e000",
    "88a8000581000007",
    "8100006481000005",
    "88a8000588a8000681000007",
    "81000000",
    "8100000081000000",
    "8100000581000000",
];

fn set_up(s: &Switch, ns: &Namespace) {
    for v in PORTS {
        ns.ip(&format!("link add {v} type veth peer name p{v}"));
        ns.exec(&format!("ethtool -K {v} tx off txvlan off rxvlan off")).expect("ethtool");
        ns.exec(&format!("ethtool -K p{v} tx off txvlan off rxvlan off")).expect("ethtool");
        for l in [v, &format!("p{v}")] {
            ns.exec(&format!("sysctl -qw net.ipv6.conf.{l}.disable_ipv6=1")).expect("sysctl");
            ns.ip(&format!("link set {l} up"));
        }
    }
    s.vsctl("set open . other_config:vlan-limit=2");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    PORTS.iter().for_each(|v| drop(s.vsctl(&format!("add-port br0 {v}"))));
}

/// What comes out of each port, for everything that is sent.
fn heard(ns: &Namespace) -> Vec<String> {
    let listen = |v: &str| {
        let out = Command::new("ip")
            .args([
                "netns",
                "exec",
                &ns.0,
                "tcpdump",
                "-Q",
                "in",
                "-l",
                "-n",
                "-e",
                "-t",
                "-xx",
                "-i",
                &format!("p{v}"),
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        out.expect("tcpdump")
    };
    let mut all: Vec<_> = PORTS.iter().map(|v| listen(v)).collect();
    std::thread::sleep(Duration::from_millis(1500));
    let frames: Vec<Vec<u8>> = TAGS
        .iter()
        .enumerate()
        .map(|(n, tags)| {
            let frame = format!("0200000000990200000000{n:02x}{tags}88b5{}", "5a".repeat(50));
            (0..frame.len()).step_by(2).map(|i| u8::from_str_radix(&frame[i..i + 2], 16).expect("hex")).collect()
        })
        .collect();
    common::send(ns, "pv1", frames);
    std::thread::sleep(Duration::from_millis(1500));
    let mut out = Vec::new();
    for (v, child) in PORTS.iter().zip(&mut all) {
        let _ = run("kill", &["-INT", &child.id().to_string()], &[]);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut child.stdout.take().expect("output"), &mut text).expect("text");
        let _ = child.wait();
        // Addresses and tags: what stands before the payload.
        let mut bytes = String::new();
        for l in text.lines() {
            match l.trim().strip_prefix("0x").and_then(|l| l.split_once(':')) {
                Some((_, hex)) => bytes.push_str(&hex.replace(' ', "")),
                None => bytes.push('\n'),
            }
        }
        let ours = bytes.lines().filter(|l| l.starts_with("02000000009902"));
        out.extend(ours.map(|l| format!("{v} {}", l.split("88b5").next().unwrap_or(l))));
    }
    out.sort();
    out
}

#[test]
fn ports_tag_as_in_open_vswitch() {
    if !able(&["ovs-vswitchd", "tcpdump"]) {
        return;
    }
    let (a, b) = (Namespace::new("vo"), Namespace::new("vc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    switches.iter().zip([&a, &b]).for_each(|(s, ns)| set_up(s, ns));
    for setup in SETUPS {
        for s in &switches {
            for line in setup {
                let name = line.split(' ').next().unwrap_or_default();
                s.vsctl(&format!("clear port {name} tag trunks cvlans vlan_mode other_config -- set port {name} protected=false -- set port {line}"));
            }
        }
        std::thread::sleep(Duration::from_millis(500));
        let [mut ours, mut theirs] = [heard(&a), heard(&b)];
        let of =
            |l: &String, frames: &[&str]| frames.iter().any(|n| l.contains(&format!(" 0200000000990200000000{n}")));
        if setup[0].contains("dot1q-tunnel") {
            // With a third tag Open vSwitch 3.1 would lose the second: ours drops what has two already.
            theirs.retain(|l| !of(l, &["05", "06", "07", "09", "0a"]));
            // A customer's tag without VLAN and priority is none; where tags are always kept, 3.1 keeps it here and not
            // there.
            [&mut ours, &mut theirs].into_iter().for_each(|l| l.retain(|l| !of(l, &["08"])));
        } else {
            // DPDK's driver takes all outer tags of the kernel's devices for 802.1Q's.
            [&mut ours, &mut theirs].into_iter().for_each(|l| l.retain(|l| !of(l, &["05", "07"])));
        }
        if setup.iter().any(|l| l.contains("always")) {
            // Two tags that say nothing: ours keeps the second of an access port's, and takes one of a trunk's off.
            [&mut ours, &mut theirs].into_iter().for_each(|l| l.retain(|l| !of(l, &["09"])));
        }
        assert!(theirs.len() > 8, "{theirs:#?}");
        let only = |x: &[String], y: &[String]| x.iter().filter(|l| !y.contains(l)).cloned().collect::<Vec<_>>();
        assert_eq!(
            ours,
            theirs,
            "{setup:#?}: ours alone {:#?}, theirs alone {:#?}",
            only(&ours, &theirs),
            only(&theirs, &ours)
        );
    }
}
