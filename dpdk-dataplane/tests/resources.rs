//! What the daemon takes of the machine while it has nothing to do: memory, and time of processors.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::Duration;

fn pid(s: &Switch) -> u32 {
    let text = std::fs::read_to_string(s.path("dpdk-dataplane.pid"))
        .or_else(|_| std::fs::read_to_string(s.path("ovs-vswitchd.pid")));
    text.expect("pidfile").trim().parse().expect("pid")
}

/// How often its threads may wake up in a second, all together: some 17 times without bridges.
const WAKEUPS: u64 = 40;

#[test]
fn a_switch_without_work_waits() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("ri");
    let s = Switch::ours(&ns);
    let is_idle = |what: &str| {
        // Others may make the kernel busy for a while.
        let looks = (0..3).map(|_| {
            std::thread::sleep(Duration::from_secs(2));
            needs::idle::quiet(pid(&s), WAKEUPS, Duration::from_secs(4))
        });
        let mut seen = Vec::new();
        for look in looks {
            let Err(e) = look else { return };
            seen.push(e);
        }
        panic!("{what}: {seen:?}");
    };
    is_idle("without bridges");
    s.vsctl(
        "add-br br0 -- add-port br0 p0 -- add-port br0 p1 -- set-controller br0 tcp:127.0.0.1:1 tcp:192.0.2.1:6653",
    );
    let (a, _b) = (ns.machine("p0", "10.4.0.1/24"), ns.machine("p1", "10.4.0.2/24"));
    s.ofctl(&["add-flow", "br0", "actions=NORMAL"]);
    a.reaches("10.4.0.2");
    is_idle("with ports, and controllers that cannot be reached");
    // It has slept by now; the first packet wakes it.
    a.ping("10.4.0.2").expect("at once");
    s.vsctl("del-br br0");
    is_idle("with a bridge that is gone");
}

/// The C library fills what it gives: what is reserved for tables, and not used, must not be there.
#[test]
fn tables_take_memory_as_they_are_used() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("rm");
    let s = Switch::ours_with(&ns, &[("MALLOC_PERTURB_", "165")]);
    s.vsctl("add-br br0 -- add-port br0 p0 -- add-port br0 p1");
    let (a, _b) = (ns.machine("p0", "10.5.0.1/24"), ns.machine("p1", "10.5.0.2/24"));
    s.ofctl(&["add-flow", "br0", "priority=9,ip,actions=ct(commit),NORMAL"]);
    a.reaches("10.5.0.2");
    eventually("less than 150 MB", Duration::from_secs(5), || {
        let text = std::fs::read_to_string(format!("/proc/{}/status", pid(&s))).map_err(|e| e.to_string())?;
        let line = text.lines().find(|l| l.starts_with("VmRSS")).unwrap_or_default().to_string();
        let kb: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(u64::MAX);
        if kb < 150 * 1024 { Ok(()) } else { Err(line) }
    });
}
