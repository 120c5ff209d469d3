//! Bonds of two links: with LACP to Debian's Open vSwitch, without it to a bridge of the kernel. A link fails, and
//! traffic goes on.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// Two links between namespaces, named u1 and u2 in both.
fn links(a: &Namespace, b: &Namespace) {
    for u in ["u1", "u2"] {
        a.ip(&format!("link add {u} type veth peer name {u} netns {}", b.0));
        for n in [a, b] {
            n.exec(&format!("ethtool -K {u} tx off")).expect("ethtool");
            n.ip(&format!("link set {u} up"));
        }
    }
}

/// What is said of the same thing by two sides: without addresses, times, and which member it is that is active.
fn plain(text: &str) -> Vec<String> {
    let skipped = ["recirculation", "next rebalance", "active member", "PDUs:", "load"];
    let mac = |w: &str| w.len() >= 17 && w.as_bytes().get(2) == Some(&b':') && w.as_bytes().get(5) == Some(&b':');
    let line = |l: &str| l.split(' ').map(|w| if mac(w) { "MAC" } else { w }).collect::<Vec<_>>().join(" ");
    text.lines().filter(|l| !skipped.iter().any(|s| l.contains(s))).map(line).collect()
}

/// Pings for five seconds, in which something is done; gives how many of two hundred were lost.
fn lost(from: &Namespace, to: &str, what: impl FnOnce()) -> u32 {
    let out = std::thread::scope(|scope| {
        let pings = scope.spawn(|| from.exec(&format!("ping -n -q -c 200 -i 0.025 -W 1 {to}")).unwrap_or_else(|e| e));
        std::thread::sleep(Duration::from_secs(2));
        what();
        pings.join().expect("pings")
    });
    let back: Option<u32> = out.split(" received").next().and_then(|r| r.rsplit(' ').next()?.parse().ok());
    200 - back.unwrap_or_else(|| panic!("{out}"))
}

#[test]
fn lacp_with_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-appctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("la"), Namespace::new("lb"));
    links(&a, &b);
    let (va, vb) = (a.machine("va", "10.9.0.1/24"), b.machine("vb", "10.9.0.2/24"));
    let (ours, theirs) = (Switch::ours(&a), Switch::debian(&b));
    for (s, port, mac, lacp) in [(&ours, "va", "aa", "active"), (&theirs, "vb", "bb", "passive")] {
        s.vsctl(&format!("add-br br0 -- set bridge br0 datapath_type=netdev other_config:hwaddr=02:00:00:00:00:{mac}"));
        s.vsctl(&format!("add-bond br0 bond0 u1 u2 bond_mode=balance-tcp lacp={lacp} other_config:lacp-time=fast"));
        s.vsctl(&format!("add-port br0 {port}"));
        for (n, port) in ["u1", "u2", port].iter().enumerate() {
            s.vsctl(&format!("set interface {port} ofport_request={}", n + 1));
        }
    }
    ours.vsctl(
        "set port bond0 other_config:lacp-system-priority=7 -- set interface u1 other_config:lacp-port-priority=9",
    );
    theirs.vsctl(
        "set port bond0 other_config:lacp-system-priority=7 -- set interface u1 other_config:lacp-port-priority=9",
    );
    eventually("both have negotiated", SOON, || {
        for s in [&ours, &theirs] {
            let text = s.appctl(&["lacp/show", "bond0"])?;
            if !text.contains(" negotiated") || text.matches("may_enable: true").count() != 2 {
                return Err(text);
            }
        }
        Ok(())
    });
    va.reaches("10.9.0.2");
    ours.becomes("get interface u1 lacp_current", "true", SOON);
    // Now both sides alike, so that they say the same of themselves.
    theirs.vsctl("set port bond0 lacp=active");
    eventually("both say the same", SOON, || {
        for command in ["lacp/show", "lacp/show-stats", "bond/show"] {
            let [o, t] = [&ours, &theirs].map(|s| s.appctl(&[command, "bond0"]).map(|t| plain(&t)));
            if o != t {
                return Err(format!("{command}: ours {o:#?}\ntheirs {t:#?}"));
            }
        }
        Ok(())
    });
    for command in [["lacp/show", "none"], ["bond/show", "none"]] {
        let [o, t] = [&ours, &theirs].map(|s| s.appctl(&command).expect_err("an error").replace(&s.path(""), ""));
        assert_eq!(o, t);
    }
    // A link goes and comes back.
    let n = lost(&va, "10.9.0.2", || drop(b.ip("link set u1 down")));
    assert!(n < 80, "{n} of 200 were lost");
    eventually("one is left", SOON, || {
        let text = ours.appctl(&["bond/show", "bond0"])?;
        let fits = text.contains("member u1: disabled") && text.contains("member u2: enabled");
        if fits { Ok(()) } else { Err(text) }
    });
    assert_eq!(lost(&va, "10.9.0.2", || ()), 0);
    ours.becomes("get interface u1 lacp_current", "false", SOON);
    b.ip("link set u1 up");
    eventually("both are back", SOON, || {
        let text = ours.appctl(&["bond/show", "bond0"])?;
        if text.matches(": enabled").count() == 2 { Ok(()) } else { Err(text) }
    });
    va.reaches("10.9.0.2");
    // A partner that leaves: no traffic, unless the members may work without one.
    theirs.vsctl("set port bond0 lacp=off bond_mode=active-backup");
    eventually("no partner", SOON, || {
        let text = ours.appctl(&["bond/show", "bond0"])?;
        if text.contains("lacp_status: configured") && text.matches("may_enable: false").count() == 2 {
            Ok(())
        } else {
            Err(text)
        }
    });
    assert!(va.ping("10.9.0.2").is_err());
    ours.vsctl("set port bond0 other_config:lacp-fallback-ab=true");
    let active = ours.vsctl("get port bond0 bond_active_slave");
    eventually("falls back", SOON, || {
        let text = ours.appctl(&["bond/show", "bond0"])?;
        let name =
            |s: &str| s.split("active member mac: ").nth(1).and_then(|r| r.split(['(', ')']).nth(1)).map(String::from);
        let ours_active = name(&text).filter(|n| n != "none").ok_or(format!("{text} {active}"))?;
        // Both sides have to use the same link.
        let _ = theirs.appctl(&["bond/set-active-member", "bond0", &ours_active]);
        va.ping("10.9.0.2")
    });
    drop(vb);
}

/// A machine behind a bridge of the kernel, to which both links go.
fn behind_kernel(b: &Namespace) -> Namespace {
    let vm = b.machine("xb", "10.9.1.2/24");
    b.ip("link add name lan type bridge");
    ["u1", "u2", "xb"].iter().for_each(|l| drop(b.ip(&format!("link set {l} master lan"))));
    b.ip("link set lan up");
    vm
}

#[test]
fn links_fail_over_without_lacp() {
    if !able(&["ovs-appctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("fa"), Namespace::new("fb"));
    links(&a, &b);
    let s = Switch::ours(&a);
    let va = a.machine("xa", "10.9.1.1/24");
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    s.vsctl("add-bond br0 bond0 u1 u2 bond_mode=active-backup other_config:bond-primary=u1 -- add-port br0 xa");
    eventually("the primary is active", SOON, || {
        let text = s.appctl(&["bond/show"])?;
        if text.contains("(u1)") && text.matches(": enabled").count() == 2 { Ok(()) } else { Err(text) }
    });
    let vb = behind_kernel(&b);
    va.reaches("10.9.1.2");
    let mac = a.exec("cat /sys/class/net/u1/address").expect("an address");
    s.becomes("get port bond0 bond_active_slave", mac.trim(), SOON);
    let n = lost(&va, "10.9.1.2", || drop(b.ip("link set u1 down")));
    assert!(n < 80, "{n} of 200 were lost");
    assert!(s.appctl(&["bond/show"]).expect("bond/show").contains("(u2)"));
    // The bridge has heard of it: it sends to the other link, before the machine said anything.
    b.ip("link set u1 up");
    eventually("back to the primary", SOON, || {
        let text = s.appctl(&["bond/show"])?;
        if text.contains("(u1)") { Ok(()) } else { Err(text) }
    });
    vb.reaches("10.9.1.1");
    assert_eq!(s.appctl(&["bond/set-active-member", "bond0", "u1"]).expect("set"), "no change\n");
    assert!(s.appctl(&["bond/set-active-member", "bond0", "u9"]).expect_err("none").contains("no such member"));
    assert!(s.appctl(&["bond/migrate", "bond0", "5", "u2"]).expect_err("none").contains("not an SLB bond"));
    // By source addresses: both links carry, and what is flooded does not come back.
    s.vsctl("set port bond0 bond_mode=balance-slb other_config:bond-rebalance-interval=1000");
    va.reaches("10.9.1.2");
    let address = va.exec("cat /sys/class/net/eth0/address").expect("an address");
    let hash = s.appctl(&["bond/hash", address.trim()]).expect("a hash");
    let sent = |u: &str| -> u64 {
        let text = s.appctl(&["bond/show"]).unwrap_or_default();
        let ports = s.ofctl(&["dump-ports", "br0", u]);
        let n = ports.split("tx pkts=").nth(1).and_then(|t| t.split(',').next()?.trim().parse().ok());
        n.unwrap_or_else(|| panic!("{ports}{text}"))
    };
    for u in ["u2", "u1"] {
        assert_eq!(s.appctl(&["bond/migrate", "bond0", hash.trim(), u]).expect("migrate"), "migrated\n");
        let before = sent(u);
        assert_eq!(lost(&va, "10.9.1.2", || ()), 0);
        assert!(sent(u) >= before + 200, "by {u}");
    }
    let n = lost(&va, "10.9.1.2", || drop(b.ip("link set u1 down")));
    assert!(n < 80, "{n} of 200 were lost");
    // Without the bond each link is a port of its own; one of them is enough.
    s.vsctl("del-port bond0 -- add-port br0 u2");
    va.reaches("10.9.1.2");
    assert_eq!(s.appctl(&["bond/list"]).expect("bond/list"), "bond\ttype\trecircID\tmembers\n");
}

/// A marker comes back as its response (IEEE 802.1AX section 6.5).
#[test]
fn markers_are_answered() {
    if !able(&["ovs-appctl", "tcpdump"]) {
        return;
    }
    let (a, b) = (Namespace::new("ma"), Namespace::new("mb"));
    links(&a, &b);
    let s = Switch::ours(&a);
    s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    s.vsctl("add-bond br0 bond0 u1 u2 bond_mode=balance-tcp lacp=passive other_config:bond-detect-mode=miimon other_config:bond-miimon-interval=100");
    eventually("LACP", SOON, || s.appctl(&["lacp/show-stats", "bond0"]).map(drop));
    let mut marker = vec![0x01, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 9, 0x88, 0x09, 2, 1, 1, 16];
    marker.extend([0, 7, 2, 0, 0, 0, 0, 9, 0xde, 0xad, 0xbe, 0xef]);
    marker.resize(124, 0);
    eventually("the response", SOON, || {
        let out = std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                let command = "timeout 3 tcpdump -Q in -n -xx -c 1 -i u1 ether[14]=2 and ether[16]=2";
                b.exec(command).unwrap_or_else(|e| e)
            });
            std::thread::sleep(Duration::from_millis(800));
            common::send(&b, "u1", vec![marker.clone()]);
            seen.join().expect("thread")
        });
        let hex: String = out.lines().filter_map(|l| l.split_once(": ")).map(|(_, h)| h.replace(' ', "")).collect();
        if hex.contains("8809020102100007020000000009deadbeef") { Ok(()) } else { Err(out) }
    });
    let stats = s.appctl(&["lacp/show-stats", "bond0"]).expect("stats");
    assert!(
        stats.contains("RX Marker Request PDUs: ")
            && !stats.split("member: u2").next().unwrap_or("").contains("Request PDUs: 0"),
        "{stats}"
    );
    assert!(stats.contains("RX Bad PDUs: 0"), "{stats}");
}
