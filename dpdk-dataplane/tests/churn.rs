//! Ports, flows and traffic come and go, ten times over: the switch ends where it began. A round has 300 flows
//! and a tunnel; `make churn` has 10,200 and 34.

mod common;

use common::{Namespace, Switch, able, eventually};
use std::time::Duration;

/// How many times the usual size a round has: `make churn` sets it, for 10,000 a round.
fn times() -> usize {
    std::env::var("ISTHMUS_CHURN").map_or(1, |n| n.parse().expect("ISTHMUS_CHURN is a number"))
}

/// What a switch holds: its devices, its tables, open files and threads, and resident memory in KiB.
#[derive(Debug, PartialEq)]
struct Holds {
    devices: Vec<String>,
    tables: String,
    files: usize,
    threads: usize,
}

fn pid(s: &Switch) -> String {
    std::fs::read_to_string(s.path("dpdk-dataplane.pid"))
        .or_else(|_| std::fs::read_to_string(s.path("ovs-vswitchd.pid")))
        .expect("pidfile")
        .trim()
        .to_string()
}

fn resident(s: &Switch) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", pid(s))).expect("status");
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}

fn holds(s: &Switch) -> Holds {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{}/{what}", pid(s))).expect(what).count();
    let show = s.appctl(&["dpctl/show"]).expect("dpctl/show");
    let devices = show.lines().filter(|l| l.trim().starts_with("port ")).map(|l| l.trim().to_string()).collect();
    let memory = s.appctl(&["memory/show"]).expect("memory/show");
    // Cached flows go by themselves, or with the next purge.
    let tables = memory.split(' ').filter(|w| !w.starts_with("cached-flows")).collect::<Vec<_>>().join(" ");
    Holds { devices, tables, files: count("fd"), threads: count("task") }
}

#[test]
fn ports_and_flows_come_and_go() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("ch");
    let s = Switch::ours(&ns);
    s.vsctl("add-br br0 -- set bridge br0 fail_mode=secure -- add-br br1");
    let round = |n: usize| {
        let machines: Vec<Namespace> =
            (0..3).map(|i| ns.machine(&format!("p{i}"), &format!("10.6.0.{}/24", i + 1))).collect();
        s.vsctl(
            "add-port br0 p0 -- add-port br0 p1 -- add-port br0 p2 -- add-port br0 in0 -- set interface in0 type=internal \
             -- add-port br0 pa -- set interface pa type=patch options:peer=pb \
             -- add-port br1 pb -- set interface pb type=patch options:peer=pa \
             -- add-port br0 tun -- set interface tun type=geneve options:remote_ip=192.0.2.9 bfd:enable=true \
             -- add-br br2 -- add-port br2 x0 -- set interface x0 type=internal",
        );
        let tunnels: String = (1..times())
            .map(|i| {
                format!(
                    " -- add-port br0 t{i} -- set interface t{i} type=geneve options:remote_ip=198.51.{}.{}",
                    i / 250,
                    i % 250 + 1
                )
            })
            .collect();
        if !tunnels.is_empty() {
            s.vsctl(tunnels.trim_start_matches(" -- "));
        }
        let flows: String = (0..300 * times())
            .map(|i| format!("table={},priority={i},udp,tp_dst={i},actions=drop\n", i % 20))
            .collect();
        let file = s.path("flows");
        std::fs::write(
            &file,
            flows + "table=0,priority=1000,ip,actions=ct(commit,zone=7),NORMAL\ntable=0,actions=NORMAL\n",
        )
        .expect("flows");
        s.ofctl(&["add-flows", "br0", &file]);
        machines[0].reaches("10.6.0.2");
        let before = s.appctl(&["memory/show"]).expect("memory/show");
        let rules = before.split_whitespace().find_map(|w| w.strip_prefix("rules:")?.parse::<usize>().ok());
        assert!(rules >= Some(300 * times()), "round {n}: {before}");
        s.ofctl(&["del-flows", "br0"]);
        s.vsctl("del-br br2 -- del-port p0 -- del-port p1 -- del-port p2 -- del-port in0 -- del-port pa -- del-port pb -- del-port tun");
        for i in 1..times() {
            s.vsctl(&format!("del-port t{i}"));
        }
        s.appctl(&["dpctl/flush-conntrack"]).expect("flush");
        s.appctl(&["revalidator/purge"]).expect("purge");
        drop(machines);
    };
    // The first one makes what stays: pools, threads that wait for others.
    round(0);
    // Threads of the runtime that had something to do end by and by.
    let settled = |what: &str, wanted: Option<&Holds>| {
        let mut last = holds(&s);
        eventually(what, Duration::from_secs(20), || {
            let now = holds(&s);
            let same = wanted.map_or(now == last, |w| {
                (&now.devices, &now.tables) == (&w.devices, &w.tables)
                    && now.files <= w.files
                    && now.threads <= w.threads + 8
            });
            last = now;
            if same { Ok(()) } else { Err(format!("{last:?}")) }
        });
        last
    };
    let first = settled("after the first round", None);
    let (mut memory, mut numbers) = (0, Vec::new());
    for n in 1..=10 {
        round(n);
        let now = settled(&format!("round {n}, as it was: {first:?}"), Some(&first));
        numbers.push(now.devices.len());
        if n == 3 {
            memory = resident(&s);
        }
    }
    assert!(numbers.iter().all(|n| *n == first.devices.len()), "{numbers:?}");
    let grown = resident(&s).saturating_sub(memory);
    assert!(grown < 8 * 1024, "{grown} KiB more after ten rounds than after three, {memory} KiB then");
}
