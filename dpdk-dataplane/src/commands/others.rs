//! Commands of ovs-vswitchd(8) that are not supported. Their answer says why.

use daemon::Daemon;

const FLOWS: &str = "flows of the datapath are made of OpenFlow's alone; use ovs-ofctl";
const DEVICES: &str = "devices come from the Open_vSwitch database; use ovs-vsctl";
const TUNING: &str = "this datapath has no such choice or measurement";

/// Name, usage, reason.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("dpctl/add-dp", "dp [iface...]", DEVICES),
    ("dpctl/add-flow", "[dp] flow actions", FLOWS),
    ("dpctl/add-flows", "[dp] file", FLOWS),
    ("dpctl/add-if", "dp iface...", DEVICES),
    ("dpctl/cache-get-size", "[dp]", TUNING),
    ("dpctl/cache-set-size", "dp cache <size>", TUNING),
    ("dpctl/ct-bkts", "[dp] [gt=N]", TUNING),
    ("dpctl/del-dp", "dp", DEVICES),
    ("dpctl/del-flow", "[dp] flow", FLOWS),
    ("dpctl/del-if", "dp iface...", DEVICES),
    ("dpctl/mod-flow", "[dp] flow actions", FLOWS),
    ("dpctl/mod-flows", "[dp] file", FLOWS),
    ("dpctl/normalize-actions", "actions", FLOWS),
    ("dpctl/offload-stats-show", "[dp]", "no flow is offloaded"),
    ("dpctl/parse-actions", "actions", FLOWS),
    ("dpctl/set-if", "dp iface...", DEVICES),
    ("dpif-netdev/bond-show", "[dp]", "bonds are worked by the switch; use bond/show"),
    ("dpif-netdev/dpif-impl-get", "", TUNING),
    ("dpif-netdev/dpif-impl-set", "dpif_implementation_name", TUNING),
    ("dpif-netdev/miniflow-parser-get", "", TUNING),
    ("dpif-netdev/miniflow-parser-set", "[-pmd core] miniflow_implementation_name [study_pkt_cnt]", TUNING),
    ("dpif-netdev/pmd-perf-log-set", "on|off [-b before] [-a after] [-e|-ne] [-us usec] [-q qlen]", TUNING),
    ("dpif-netdev/subtable-lookup-info-get", "", TUNING),
    ("dpif-netdev/subtable-lookup-prio-set", "[lookup_func] [prio]", TUNING),
    ("dpif-netlink/dispatch-mode", "", TUNING),
    ("odp-execute/action-impl-set", "name", TUNING),
    ("odp-execute/action-impl-show", "", TUNING),
    ("upcall/disable-ufid", "", TUNING),
    ("upcall/enable-ufid", "", TUNING),
    ("upcall/set-flow-limit", "flow-limit-number", TUNING),
];

/// Adds the commands.
pub(super) fn register(d: &Daemon) {
    let c = d.commands();
    for (name, usage, why) in COMMANDS.iter().copied() {
        c.register(name, usage, 0, usize::MAX, move |_| Err(format!("{name} is not supported: {why}")));
    }
    let all = c.clone();
    c.register("dpctl/list-commands", "", 0, 0, move |_| {
        let list = all.list();
        let lines = list.lines().filter_map(|l| l.trim_start().strip_prefix("dpctl/"));
        Ok(lines.map(|l| format!("{}\n", l.trim_end())).collect())
    });
}
