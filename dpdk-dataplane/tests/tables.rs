//! Limits and names of tables, learned addresses and other things that operators look at, beside Debian's Open vSwitch:
//! the same commands, the same answers.

mod common;

use common::{Namespace, Switch, able, eventually, run};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

/// `ovs-ofctl` commands, in this order. Table 1 takes two flows and refuses more; table 2 takes four, and those with
/// timeouts go, of the port that has most of them.
const CHANGES: &[&str] = &[
    "add-flow br0 table=1,priority=1,ip,actions=drop",
    "add-flow br0 table=1,priority=2,ip,idle_timeout=100,actions=drop",
    "add-flow br0 table=1,priority=3,ip,actions=drop",
    "-O OpenFlow15 add-flow br0 table=1,priority=3,ip,actions=drop",
    "-O OpenFlow15 --bundle add-flow br0 table=1,priority=3,ip,actions=drop",
    "add-flow br0 table=1,priority=2,ip,idle_timeout=100,actions=output:1",
    "--no-stats --sort dump-flows br0 table=1",
    "add-flow br0 table=2,in_port=1,priority=1,idle_timeout=500,actions=drop",
    "add-flow br0 table=2,in_port=1,priority=2,hard_timeout=300,actions=drop",
    "add-flow br0 table=2,in_port=2,priority=1,idle_timeout=20,actions=drop",
    "add-flow br0 table=2,in_port=3,priority=1,actions=drop",
    "--no-stats --sort dump-flows br0 table=2",
    "add-flow br0 table=2,in_port=3,priority=2,actions=drop",
    "--no-stats --sort dump-flows br0 table=2",
    "add-flow br0 table=2,in_port=3,priority=3,idle_timeout=20,actions=drop",
    "add-flow br0 table=2,in_port=3,priority=4,actions=drop",
    "add-flow br0 table=2,in_port=3,priority=5,actions=drop",
    "add-flow br0 table=2,in_port=3,priority=6,actions=drop",
    "--no-stats dump-aggregate br0 table=2",
    "-O OpenFlow14 mod-table br0 3 evict",
    "-O OpenFlow14 dump-table-desc br0 3",
    "-O OpenFlow14 mod-table br0 3 noevict",
    "-O OpenFlow14 dump-table-desc br0 3",
];

/// `ovs-appctl` commands.
const LOOKS: &[&str] = &[
    "fdb/add br0 p1 5 02:00:00:00:00:09",
    "fdb/add br0 p1 0 02:00:00:00:00:08",
    "fdb/show br0",
    "fdb/add br9 p1 0 02:00:00:00:00:08",
    "fdb/add br0 p1 1 02:00:zz:00:00:08",
    "fdb/add br0 p1",
    "fdb/stats-show br0",
    "fdb/flush br0",
    "fdb/del br0 0 02:00:00:00:00:08",
    "fdb/del br0 0 02:00:00:00:00:08",
    "fdb/del br0 0 zz",
    "fdb/del br9 0 02:00:00:00:00:08",
    "fdb/show br0",
    "fdb/stats-clear br0",
    "fdb/stats-show br0",
    "mdb/show br0",
    "mdb/show br9",
    "mdb/flush",
    "mdb/flush br0",
    "bond/list",
    "bond/show",
    "lacp/show",
    "cfm/show",
    "stp/show",
    "rstp/show",
    "coverage/read-counter nonsense",
];

fn answer(result: Result<String, String>, dir: &str) -> String {
    let text = match result {
        Ok(out) => format!("ok\n{out}"),
        Err(e) => format!("error\n{e}"),
    };
    let mut out = String::new();
    for line in text.replace(dir, "").lines() {
        // Transaction ids, and times in the log.
        let line = match line.split_once("xid=0x") {
            Some((a, b)) => format!("{a}{}", b.trim_start_matches(|c: char| c.is_ascii_hexdigit())),
            None => line.to_string(),
        };
        let logged = line.split_once('|').is_some_and(|(t, _)| t.starts_with("20") && t.ends_with('Z'));
        out += if logged { line.rsplit('|').next().unwrap_or_default() } else { &line };
        out.push('\n');
    }
    out
}

/// Every command of Open vSwitch's daemon answers, and those that do nothing here say so.
#[test]
fn all_commands_answer() {
    if !able(&["ovs-vswitchd", "ovs-appctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("cm"), Namespace::new("cd"));
    let (ours, theirs) = (Switch::ours(&a), Switch::debian(&b));
    ours.vsctl("add-br br0");
    let names = |s: &Switch| -> Vec<String> {
        let list = s.appctl(&["list-commands"]).expect("commands");
        list.lines().skip(1).filter_map(|l| l.split_whitespace().next().map(String::from)).collect()
    };
    let own = names(&ours);
    let missing: Vec<String> = names(&theirs).into_iter().filter(|n| !own.contains(n)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let error = ours.appctl(&["dpctl/add-flow", "in_port(1)", "2"]).expect_err("not here");
    assert!(
        error.contains("dpctl/add-flow is not supported: flows of the datapath are made of OpenFlow's alone"),
        "{error}"
    );
    assert!(ours.appctl(&["dpctl/list-commands"]).expect("commands").contains("dump-flows"));
    let aging = |s: &Switch, args: &[&str]| {
        let words: Vec<&str> = ["tnl/neigh/aging"].iter().chain(args).copied().collect();
        s.appctl(&words).map_err(|e| e.replace(&s.path(""), ""))
    };
    for args in [&["77"][..], &[], &["0"], &["3601"], &["x"]] {
        assert_eq!(aging(&ours, args), aging(&theirs, args), "{args:?}");
    }
    // Newer than Debian's.
    let interval = || ours.appctl(&["dpctl/ct-get-sweep-interval"]).expect("an interval");
    assert_eq!(interval().trim(), "20000");
    assert_eq!(
        ours.appctl(&["dpctl/ct-set-sweep-interval", "5000"]).expect("set"),
        "setting sweep interval successful\n"
    );
    assert!(ours.appctl(&["dpctl/ct-set-sweep-interval", "0"]).is_err_and(|e| e.contains("invalid sweep value")));
    assert_eq!(interval().trim(), "5000");
    assert!(ours.appctl(&["dpif-netdev/pmd-perf-show"]).expect("figures").contains("iterations"));
}

#[test]
fn tables_and_addresses_are_as_in_open_vswitch() {
    if !able(&["ovs-vswitchd", "ovs-ofctl"]) {
        return;
    }
    let (a, b) = (Namespace::new("ro"), Namespace::new("rc"));
    let switches = [Switch::ours(&a), Switch::debian(&b)];
    for s in &switches {
        s.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure -- add-port br0 p1 -- set interface p1 type=internal ofport_request=1");
        s.vsctl("-- --id=@a create flow_table flow_limit=2 name=front -- --id=@b create flow_table flow_limit=4 overflow_policy=evict groups=\"NXM_OF_IN_PORT[]\" -- set bridge br0 flow_tables={1=@a,2=@b}");
    }
    let mut bad = Vec::new();
    for (tool, list) in [("ovs-ofctl", CHANGES), ("ovs-appctl", LOOKS)] {
        for command in list {
            let [ours, theirs] = switches.each_ref().map(|s| {
                let words: Vec<&str> = command.split(' ').collect();
                let dir = s.path("");
                answer(
                    match tool {
                        "ovs-appctl" => s.appctl(&words),
                        _ => run(tool, &words, &[("OVS_RUNDIR", &dir)]),
                    },
                    &dir,
                )
            });
            if ours != theirs {
                bad.push(format!("{tool} {command}\nours:\n{ours}theirs:\n{theirs}"));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    let names = switches.each_ref().map(|s| {
        let text = s.ofctl(&["dump-table-features", "br0"]);
        let table = text.lines().find(|l| l.trim_start().starts_with("table 1 ")).unwrap_or_default().to_string();
        (table.contains("\"front\""), text.contains("max_entries=2\n") || text.contains("max_entries=2 "))
    });
    assert_eq!(names[0], names[1]);
    lowered(&switches);
    counted(&switches[0]);
}

/// A lower limit makes flows go at once; without one, anything fits.
fn lowered(switches: &[Switch]) {
    for s in switches {
        s.ofctl(&["del-flows", "br0", "table=2"]);
        for n in 1..4 {
            s.ofctl(&["add-flow", "br0", &format!("table=2,priority={n},idle_timeout={n}00,actions=drop")]);
        }
        let row = s.vsctl("--bare --columns=_uuid find flow_table flow_limit=4");
        s.vsctl(&format!("set flow_table {} flow_limit=1", row.trim()));
        eventually("one flow is left", SOON, || {
            let left = s.ofctl(&["--no-stats", "dump-flows", "br0", "table=2"]);
            if left.contains("priority=3") && left.lines().count() == 1 { Ok(()) } else { Err(left) }
        });
        s.vsctl("clear bridge br0 flow_tables");
        eventually("there is room again", SOON, || {
            s.try_ofctl(&["add-flow", "br0", "table=2,priority=9,actions=drop"])?;
            s.try_ofctl(&["add-flow", "br0", "table=1,priority=9,actions=drop"]).map(drop)
        });
    }
}

/// Addresses put there by hand lead packets, and events are counted.
fn counted(s: &Switch) {
    let ask = |args: &[&str]| s.appctl(args).unwrap_or_else(|e| panic!("{args:?}: {e}"));
    ask(&["fdb/add", "br0", "p1", "0", "02:00:00:00:00:77"]);
    s.ofctl(&["add-flow", "br0", "actions=NORMAL"]);
    let packet = "020000000077020000000099080045000014000000000900 9de40a0100010a000005".replace(' ', "");
    let trace = ask(&["ofproto/trace", "br0", "in_port=LOCAL,dl_src=02:00:00:00:00:99,dl_dst=02:00:00:00:00:77"]);
    assert!(trace.contains("forwarding to learned port"), "{trace}");
    s.ofctl(&["packet-out", "br0", &format!("in_port=1 packet={packet} actions=resubmit(,99)")]);
    eventually("coverage", SOON, || {
        let n = ask(&["coverage/read-counter", "drop_table_miss"]);
        if n.trim().parse::<u64>().is_ok_and(|n| n > 0) { Ok(()) } else { Err(n) }
    });
    assert!(ask(&["coverage/show"]).contains("pmd_job "));
    let flows = ask(&["bridge/dump-flows", "br0"]);
    assert!(
        flows.lines().any(|l| l.starts_with("table_id=2, duration=") && l.contains("priority=9,actions=drop")),
        "{flows}"
    );
}
