//! Several workers: queues move between them while traffic runs, and all of them count and track together.

mod common;

use common::*;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

/// What a line of `dpif-netdev/pmd-stats-show` says of the fast PMD thread of processor 1.
fn fast(s: &Switch, what: &str) -> Option<u64> {
    let text = s.appctl(&["dpif-netdev/pmd-stats-show"]).ok()?;
    let (_, of_fast) = text.split_once("pmd thread core_id 1:")?;
    of_fast.lines().find_map(|l| l.trim().strip_prefix(what)?.trim_start_matches(':').trim().parse().ok())
}

#[test]
fn workers_come_and_go_under_traffic() {
    if !able(&["ovs-vsctl", "ovs-ofctl", "ovs-appctl"]) {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        needs::skip("one processor");
        return;
    }
    let host = Namespace::new("wk");
    let (a, b) = (host.machine("va", "10.1.0.1/24"), host.machine("vb", "10.1.0.2/24"));
    let s = Switch::ours(&host);
    s.vsctl("set open . other_config:pmd-cpu-mask=0x3");
    s.vsctl("add-br br0 -- add-port br0 va -- add-port br0 vb");
    s.vsctl("set interface va ofport_request=1 -- set interface vb ofport_request=2");
    s.becomes("get interface vb ofport", "2", SOON);
    s.ofctl(&["del-flows", "br0"]);
    // Pings are translated there and back.
    for f in [
        "arp,actions=NORMAL",
        "in_port=1,icmp,actions=ct(commit,zone=5,nat(src=10.1.0.77),table=1)",
        "in_port=2,icmp,actions=ct(zone=5,nat,table=1)",
        "table=1,in_port=1,actions=output:2",
        "table=1,in_port=2,ct_state=+est+rpl,actions=output:1",
    ] {
        s.ofctl(&["add-flow", "br0", f]);
    }
    b.ip("addr add 10.1.0.78/24 dev eth0");
    b.exec("ip neigh replace 10.1.0.77 lladdr 02:00:00:00:00:77 dev eth0").expect("neighbour");
    // The answers go to an address that nobody has: NORMAL is not asked, the flows send them.
    a.exec("ip link set eth0 promisc on").expect("promiscuous");
    let mac = a.exec("cat /sys/class/net/eth0/address").expect("address");
    b.exec(&format!("ip neigh replace 10.1.0.77 lladdr {} dev eth0", mac.trim())).expect("neighbour");
    a.reaches("10.1.0.2");
    let shown = s.appctl(&["dpif-netdev/pmd-rxq-show"]).expect("queues");
    let (main, of_fast) = shown.split_once("pmd thread core_id 1").expect(&shown);
    assert!(main.contains("port: va") != of_fast.contains("port: va"), "{shown}");
    assert!(main.contains("port: va") != main.contains("port: vb"), "each has one of them: {shown}");
    // A queue is received from where its row says.
    let thread_of = |port: &str| {
        let shown = s.appctl(&["dpif-netdev/pmd-rxq-show"]).unwrap_or_default();
        let (main, _) = shown.split_once("pmd thread core_id 1").unwrap_or_default();
        usize::from(!main.contains(&format!("port: {port}")))
    };
    let chosen = |va: usize, vb: usize| {
        eventually(&format!("va at {va}, vb at {vb}"), SOON, || {
            let now = (thread_of("va"), thread_of("vb"));
            if now == (va, vb) { Ok(()) } else { Err(format!("{now:?}")) }
        });
    };
    s.vsctl("set interface va other_config:pmd-rxq-affinity=0:1");
    chosen(1, 0);
    s.vsctl("set interface vb other_config:pmd-rxq-affinity=0:1");
    chosen(1, 1);
    s.vsctl("set interface va other_config:pmd-rxq-affinity=0:0");
    chosen(0, 1);
    s.vsctl("clear interface va other_config -- clear interface vb other_config");
    s.appctl(&["dpif-netdev/pmd-rxq-rebalance"]).expect("rebalance");
    a.reaches("10.1.0.2");
    // The fast PMD thread serves an established connection by itself.
    let before = (
        fast(&s, "packets received").expect("a fast PMD thread"),
        fast(&s, "packets without a flow").expect("a fast PMD thread"),
    );
    a.exec("ping -n -q -c 300 -i 0.01 -W 2 10.1.0.2").expect("pings");
    let after = (
        fast(&s, "packets received").expect("a fast PMD thread"),
        fast(&s, "packets without a flow").expect("a fast PMD thread"),
    );
    assert!(after.0 - before.0 >= 300, "{before:?} {after:?}");
    assert!(after.1 - before.1 < 50, "{before:?} {after:?}");
    // Its flows are shown as well, with what they counted.
    eventually("the fast PMD thread's flows", SOON, || {
        let flows = s.appctl(&["dpctl/dump-flows"])?;
        let of_fast = flows.split("flow-dump from pmd on cpu core: 1\n").nth(1).unwrap_or_default();
        let packets = |l: &str| l.split("packets:").nth(1).and_then(|n| n.split(',').next()?.parse::<u64>().ok());
        let most = of_fast.lines().filter(|l| l.contains("proto=1,")).filter_map(packets).max();
        if most >= Some(250) && !of_fast.contains("proto=1,tos=0x0,ttl=64,frag=no),icmp(type=8,code=0), packets:0,") {
            Ok(())
        } else {
            Err(flows)
        }
    });
    let pinged = || {
        let flows = s.ofctl(&["dump-flows", "br0", "table=1"]);
        let of = |port: &str| {
            let line = flows.lines().find(|l| l.contains(port)).unwrap_or_default();
            line.split("n_packets=").nth(1).and_then(|n| n.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        (of("in_port=1 "), of("in_port=2 "))
    };
    eventually("all packets are counted", SOON, || {
        let (there, back) = pinged();
        if there >= 302 && there == back { Ok(()) } else { Err(format!("{there} {back}")) }
    });
    // Workers come and go, and nothing is lost.
    let pings = std::thread::scope(|scope| {
        let pings = scope.spawn(|| a.exec("ping -n -q -c 250 -i 0.02 -W 10 10.1.0.2"));
        for (i, mask) in ["0x1", "0x3", "0x2", "0x3", "0x1", "0x3"].iter().enumerate() {
            s.vsctl(&format!("set open . other_config:pmd-cpu-mask={mask}"));
            if i % 2 == 0 {
                s.vsctl(&format!("add-br more{i}"));
            }
            std::thread::sleep(Duration::from_millis(700));
        }
        pings.join().expect("thread").unwrap_or_else(|e| e)
    });
    let figures = s.appctl(&["dpif-netdev/pmd-stats-show"]).unwrap_or_default();
    assert!(pings.contains(" 0% packet loss"), "{pings}\n{figures}");
    // A device goes while a lane has it.
    s.vsctl("del-port va -- del-port vb");
    s.vsctl(
        "add-port br0 va -- set interface va ofport_request=1 -- add-port br0 vb -- set interface vb ofport_request=2",
    );
    a.reaches("10.1.0.2");
}
