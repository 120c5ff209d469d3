//! Every key of `Interface:bfd` and `bfd_status` (ovs-vswitchd.conf.db(5)) in a session with Debian's Open vSwitch:
//! what is set on one side does to both what it does there, whichever side that is.

mod common;

use common::{Namespace, Switch, able, eventually, joined};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
/// Address of the inner device of each side.
const INNER: [&str; 2] = ["10.1.0.1", "10.1.0.2"];

/// Two switches with a tunnel between them, and an inner device each.
struct Lab {
    sides: [Switch; 2],
    spaces: [Namespace; 2],
}

impl Lab {
    fn new() -> Lab {
        let spaces: [Namespace; 2] = joined("bo", "bd").into();
        let sides = [Switch::ours(&spaces[0]), Switch::debian(&spaces[1])];
        for (n, (s, ns)) in sides.iter().zip(&spaces).enumerate() {
            let (own, peer) = (n + 1, 2 - n);
            s.vsctl(&format!(
                "add-br br-phys -- set bridge br-phys datapath_type=netdev other_config:hwaddr=02:00:00:00:07:0{own} -- add-port br-phys eth0 \
                 -- add-br br-int -- set bridge br-int datapath_type=netdev fail_mode=secure other_config:hwaddr=02:00:00:00:08:0{own} \
                 -- add-port br-int in -- set interface in type=internal ofport_request=1 \
                 -- add-port br-int tun -- set interface tun type=geneve ofport_request=10 options:remote_ip=172.16.0.{peer} options:key=flow"
            ));
            ns.ip(&format!("addr replace 172.16.0.{own}/24 dev br-phys"));
            ns.ip(&format!("addr replace {}/24 dev in", INNER[n]));
            ["br-phys", "in"].iter().for_each(|d| drop(ns.ip(&format!("link set {d} up"))));
            s.ofctl(&["add-flow", "br-int", "in_port=1,actions=output:10"]);
            s.ofctl(&["add-flow", "br-int", "in_port=10,actions=output:1"]);
            s.ofctl(&["add-flow", "br-int", "priority=60000,in_port=10,udp,tp_dst=3784,actions=drop"]);
        }
        Lab { sides, spaces }
    }

    /// Sets keys on one side, with those that all sessions here have.
    fn set(&self, n: usize, keys: &str) {
        let common = "bfd:enable=true bfd:min_rx=300 bfd:min_tx=300";
        self.sides[n].vsctl(&format!("clear interface tun bfd -- set interface tun {common} {keys}"));
        // Cached flows of 3.1 do not know what a session takes, and a change of that does not end them.
        self.sides.iter().for_each(|s| drop(s.appctl(&["revalidator/purge"]).expect("purged")));
    }

    fn status(&self, n: usize, key: &str) -> String {
        let text = self.sides[n].try_vsctl(&format!("--if-exists get interface tun bfd_status:{key}"));
        text.unwrap_or_default().trim().trim_matches('"').to_string()
    }

    fn becomes(&self, what: &str, n: usize, wanted: &[(&str, &str)]) {
        eventually(&format!("{what}: side {n} {wanted:?}"), SOON, || {
            match wanted.iter().find(|(k, v)| self.status(n, k) != *v) {
                Some((k, _)) => Err(format!("{k} is {}", self.status(n, k))),
                None => Ok(()),
            }
        });
    }

    /// Both are up and forward.
    fn up(&self, what: &str) {
        (0..2).for_each(|n| self.becomes(what, n, &[("state", "up"), ("forwarding", "true"), ("remote_state", "up")]));
    }

    /// New sessions.
    fn anew(&self) {
        self.sides.iter().for_each(|s| drop(s.vsctl("clear interface tun bfd")));
        (0..2).for_each(|n| self.set(n, ""));
        self.up("anew");
    }

    /// A line of `bfd/show`.
    fn shown(&self, n: usize, name: &str) -> String {
        let text = self.sides[n].appctl(&["bfd/show", "tun"]).unwrap_or_default();
        let line = text.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_default().to_string()
    }

    fn shows(&self, what: &str, n: usize, name: &str, wanted: &str) {
        eventually(&format!("{what}: side {n} {name}: {wanted}"), SOON, || {
            let now = self.shown(n, name);
            if now == wanted { Ok(()) } else { Err(now) }
        });
    }
}

#[test]
fn every_key_is_as_in_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-ofctl", "tcpdump"]) {
        return;
    }
    let lab = Lab::new();
    lab.anew();
    statuses(&lab);
    paths_beyond(&lab);
    multipliers(&lab);
    addresses(&lab);
    keys_of_tunnels(&lab);
    marks(&lab);
    by_hand(&lab);
    decay(&lab);
    received_packets(&lab);
    ends(&lab);
}

/// The column and `bfd/show` have the same keys and lines, and both agree on what is there.
fn statuses(lab: &Lab) {
    for key in ["diagnostic", "remote_diagnostic", "flap_count"] {
        assert_eq!(lab.status(0, key), lab.status(1, key), "{key}");
    }
    let lines = |n: usize, args: &[&str]| -> Vec<String> {
        let text = lab.sides[n].appctl(&[&["bfd/show"], args].concat()).expect("shown");
        text.lines().map(|l| l.split(": ").next().unwrap_or(l).to_string()).collect()
    };
    for args in [&[][..], &["tun"]] {
        assert_eq!(lines(0, args), lines(1, args));
    }
    let agree = |own: &str, other: &str| {
        eventually(own, SOON, || {
            let [a, b] = [lab.shown(0, own), lab.shown(1, other)];
            if a == b && !a.is_empty() { Ok(()) } else { Err(format!("ours {a}, theirs {b}")) }
        });
    };
    for what in ["Session State", "Diagnostic", "Discriminator", "Minimum TX Interval", "Minimum RX Interval"] {
        agree(&format!("Local {what}"), &format!("Remote {what}"));
        agree(&format!("Remote {what}"), &format!("Local {what}"));
    }
    for what in
        ["Detect Multiplier", "Remote Detect Multiplier", "Local Flags", "Remote Flags", "TX Interval", "RX Interval"]
    {
        agree(what, what);
    }
}

fn paths_beyond(lab: &Lab) {
    for n in [0, 1] {
        lab.set(n, "bfd:cpath_down=true");
        let told = "Concatenated Path Down";
        lab.becomes("cpath_down", 1 - n, &[("state", "up"), ("forwarding", "false"), ("remote_diagnostic", told)]);
        lab.becomes("cpath_down", n, &[("state", "up"), ("forwarding", "true"), ("diagnostic", told)]);
        lab.shows("cpath_down", n, "Concatenated Path Down", "true");
        lab.set(n, "");
        lab.up("cpath_down is taken back");
    }
    assert_eq!(lab.status(0, "flap_count"), lab.status(1, "flap_count"), "flaps");
}

fn multipliers(lab: &Lab) {
    for n in [0, 1] {
        lab.set(n, "bfd:mult=7");
        lab.shows("mult", n, "Detect Multiplier", "7");
        lab.shows("mult", 1 - n, "Remote Detect Multiplier", "7");
        lab.set(n, "bfd:min_tx=500");
        lab.shows("min_tx", 1 - n, "RX Interval", "Approx 500ms");
        lab.set(n, "bfd:min_rx=450");
        lab.shows("min_rx", 1 - n, "TX Interval", "Approx 450ms");
        lab.set(n, "");
        lab.shows("min_rx", 1 - n, "TX Interval", "Approx 300ms");
        lab.up("other times");
    }
}

/// Ethernet and IP addresses: a session only takes packets to its own, and what it does not take, the tables get.
fn addresses(lab: &Lab) {
    for n in [0, 1] {
        lab.set(n, "bfd:bfd_local_dst_mac=02:00:00:00:99:01 bfd:bfd_local_src_mac=02:00:00:00:99:02");
        lab.set(1 - n, "bfd:bfd_remote_dst_mac=02:00:00:00:99:01");
        lab.up("addresses that fit");
        lab.set(1 - n, "bfd:bfd_remote_dst_mac=02:00:00:00:99:07");
        lab.becomes(
            "another Ethernet address",
            1 - n,
            &[("state", "down"), ("diagnostic", "Control Detection Time Expired")],
        );
        let switched = |filter: &str| {
            eventually("the tables get what is not for the session", SOON, || {
                let flows = lab.sides[1 - n].ofctl(&["dump-flows", "br-int", "in_port=10,udp"]);
                if flows.is_empty() || flows.contains("n_packets=0") { Err(flows) } else { Ok(()) }
            });
            lab.sides[1 - n].ofctl(&["add-flow", "br-int", "priority=60000,in_port=10,udp,tp_dst=3784,actions=drop"]);
            assert!(!filter.is_empty());
        };
        switched("Ethernet");
        lab.set(n, "bfd:bfd_src_ip=10.77.0.1 bfd:bfd_dst_ip=10.77.0.2");
        lab.set(1 - n, "bfd:bfd_src_ip=10.77.0.2 bfd:bfd_dst_ip=10.77.0.1");
        lab.up("IP addresses that fit");
        lab.set(n, "bfd:bfd_src_ip=10.77.0.1 bfd:bfd_dst_ip=10.77.0.3");
        lab.becomes("another IP address", 1 - n, &[("state", "down")]);
        switched("IP");
        lab.anew();
    }
}

fn keys_of_tunnels(lab: &Lab) {
    lab.sides.iter().for_each(|s| drop(s.vsctl("set interface tun options:key=5")));
    (0..2).for_each(|n| lab.set(n, ""));
    lab.up("any key");
    for n in [0, 1] {
        lab.set(n, "bfd:check_tnl_key=true");
        lab.becomes("a key that is not zero", n, &[("state", "down")]);
        lab.set(n, "");
        lab.up("any key again");
    }
    (0..2).for_each(|n| lab.set(n, "bfd:check_tnl_key=true"));
    lab.sides.iter().for_each(|s| drop(s.vsctl("set interface tun options:key=flow")));
    lab.up("no key");
    lab.anew();
}

/// The bit for OAM in Geneve's header (RFC 8926 section 3.4), as the other side's kernel sees it.
fn marks(lab: &Lab) {
    for n in [0, 1] {
        for oam in [true, false] {
            lab.set(n, &format!("bfd:oam={oam}"));
            let bit = if oam { "0x80" } else { "0x00" };
            // UDP's data begin at 28 behind the start of IPv4; the second byte of Geneve's header has the bit.
            let filter = format!("udp and port 6081 and src host 172.16.0.{} and (ip[29] & 0x80) = {bit}", n + 1);
            let mut args =
                vec!["netns", "exec", &lab.spaces[1 - n].0, "timeout", "10", "tcpdump", "-n", "-c", "2", "-i", "eth0"];
            args.push(&filter);
            common::run("ip", &args, &[]).unwrap_or_else(|e| panic!("oam={oam}: {e}"));
        }
    }
    lab.up("marked packets");
}

/// `bfd/set-forwarding`, with the same answers.
fn by_hand(lab: &Lab) {
    let asked: [&[&str]; 8] = [
        &["bfd/set-forwarding", "tun", "false"],
        &["bfd/set-forwarding", "perhaps"],
        &["bfd/set-forwarding", "none", "true"],
        &["bfd/set-forwarding", "TRUE"],
        &["bfd/set-forwarding", "tun", "normal"],
        &["bfd/set-forwarding"],
        &["bfd/set-forwarding", "tun", "true", "x"],
        &["bfd/show", "none"],
    ];
    for args in asked {
        let answer = |n: usize| {
            let s: &Switch = &lab.sides[n];
            s.appctl(args).map_err(|e| e.replace(&s.path(""), ""))
        };
        assert_eq!(answer(0), answer(1), "{args:?}");
        if args.get(1) == Some(&"tun") && args.len() == 3 {
            let forwarding = if args[2] == "normal" { "true" } else { args[2] };
            (0..2).for_each(|n| lab.becomes("by hand", n, &[("forwarding", forwarding), ("state", "up")]));
        }
    }
    assert_eq!(lab.status(0, "flap_count"), lab.status(1, "flap_count"), "no flaps");
}

fn decay(lab: &Lab) {
    for n in [0, 1] {
        lab.set(n, "bfd:decay_min_rx=3000");
        lab.shows("an idle port", 1 - n, "TX Interval", "Approx 3000ms");
        lab.shows("an idle port", n, "Local Minimum RX Interval", "3000ms");
        let end = std::time::Instant::now() + SOON;
        while lab.shown(1 - n, "TX Interval") != "Approx 300ms" {
            assert!(std::time::Instant::now() < end, "packets end it");
            let _ = lab.spaces[1 - n].exec(&format!("ping -n -q -c 40 -i 0.02 {}", INNER[n]));
        }
        assert_eq!(lab.status(n, "state"), "up");
        lab.set(n, "");
        lab.up("without decay");
        lab.shows("without decay", 1 - n, "TX Interval", "Approx 300ms");
    }
}

/// The peer's BFD ends; its packets still come.
fn received_packets(lab: &Lab) {
    for n in [0, 1] {
        lab.anew();
        lab.set(n, "bfd:forwarding_if_rx=true");
        let _ = lab.spaces[1 - n].exec(&format!("ping -n -q -c 10 -i 0.1 {}", INNER[n]));
        lab.sides[1 - n].vsctl("set interface tun bfd:enable=false");
        for _ in 0..12 {
            let _ = lab.spaces[1 - n].exec(&format!("ping -n -q -c 5 -i 0.05 {}", INNER[n]));
            assert_eq!(lab.status(n, "forwarding"), "true", "side {n}, state {}", lab.status(n, "state"));
        }
        lab.becomes("no control packets", n, &[("state", "down")]);
        lab.becomes("no packets either", n, &[("forwarding", "false")]);
    }
    lab.anew();
}

/// One side goes: the other says the same as it would.
fn ends(lab: &Lab) {
    for n in [0, 1] {
        lab.anew();
        lab.sides[1 - n].vsctl("set interface tun bfd:enable=false");
        let diagnostic = "Control Detection Time Expired";
        let wanted = [
            ("state", "down"),
            ("remote_state", "down"),
            ("diagnostic", diagnostic),
            ("remote_diagnostic", "No Diagnostic"),
            ("flap_count", "2"),
        ];
        lab.becomes("an end", n, &wanted);
        lab.sides[1 - n].becomes("get interface tun bfd_status", "{}", SOON);
    }
}
