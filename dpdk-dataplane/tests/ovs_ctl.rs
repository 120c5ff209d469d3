//! A host's switch under Debian's `ovs-ctl`, by which its services start and stop it.

mod common;

use common::{Namespace, able, eventually};
use std::os::unix::fs::symlink;

/// Where Debian's script is, and what it starts.
const SCRIPT: &str = "/usr/share/openvswitch/scripts/ovs-ctl";

const SOON: std::time::Duration = std::time::Duration::from_secs(15);

/// `start`, `restart`, which keeps flows, `status` and `stop`, with the switch under the name that the script knows.
#[test]
fn a_host_starts_its_switch() {
    if !able(&["ovs-vsctl", "ovs-ofctl", "ovsdb-server", SCRIPT]) {
        return;
    }
    let (ns, dir) = (Namespace::new("octl"), tempfile::tempdir().expect("folder"));
    let at = |name: &str| dir.path().join(name).display().to_string();
    for name in ["bin", "etc/openvswitch", "run", "db", "log"] {
        std::fs::create_dir_all(at(name)).expect("folder");
    }
    symlink(env!("CARGO_BIN_EXE_dpdk-dataplane"), at("bin/ovs-vswitchd")).expect("a link");
    symlink("/usr/sbin/ovsdb-server", at("bin/ovsdb-server")).expect("a link");
    let script = format!(
        "export OVS_SYSCONFDIR={etc} OVS_RUNDIR={run} OVS_DBDIR={db} OVS_LOGDIR={log} OVS_SBINDIR={bin} \\\n\
         sysconfdir={etc} rundir={run} dbdir={db} logdir={log} sbindir={bin} PATH={bin}:$PATH\n\
         case $1 in\n\
         ovs-*) exec \"$@\" ;;\n\
         *) exec sh {SCRIPT} \"$@\" --system-id=host --no-monitor --no-record-hostname ;;\n\
         esac\n",
        etc = at("etc"),
        run = at("run"),
        db = at("db"),
        log = at("log"),
        bin = at("bin"),
    );
    std::fs::write(at("go"), script).expect("a script");
    let go = |words: &str| ns.exec(&format!("sh {} {words}", at("go")));
    let pid = || std::fs::read_to_string(at("run/ovs-vswitchd.pid")).expect("a pidfile").trim().to_string();
    struct Stop<F: Fn()>(F);
    impl<F: Fn()> Drop for Stop<F> {
        fn drop(&mut self) {
            self.0();
        }
    }
    let _stop = Stop(|| drop(go("stop")));
    go("start").expect("start");
    assert!(go("status").expect("status").contains("ovs-vswitchd is running"));
    assert_eq!(go("ovs-vsctl get Open_vSwitch . ovs_version").expect("a version").trim(), "\"3.7.90\"");
    go("ovs-vsctl add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure").expect("a bridge");
    go("ovs-ofctl add-flow br0 priority=7,dl_type=0x88b5,actions=LOCAL").expect("a flow");
    let first = pid();
    go("restart").expect("restart");
    assert_ne!(pid(), first);
    let flows = go("ovs-ofctl --no-stats dump-flows br0").expect("flows");
    assert!(flows.contains("priority=7,dl_type=0x88b5 actions=LOCAL"), "{flows}");
    let other = go("ovs-vsctl get Open_vSwitch . other_config").expect("settings");
    assert!(!other.contains("flow-restore-wait"), "{other}");
    go("stop").expect("stop");
    assert!(go("status").is_err(), "nothing runs");
}

/// As long as flows are being restored nothing that is received passes, and no controller is connected.
#[test]
fn nothing_passes_while_flows_are_restored() {
    if !able(&["ovs-vsctl", "ovs-ofctl"]) {
        return;
    }
    let ns = Namespace::new("frw");
    let mut s = common::Switch::test_bed(&ns);
    s.vsctl("add-br br0 -- set bridge br0 fail_mode=standalone -- add-port br0 p1 -- add-port br0 p2");
    let frame = "02000000000202000000000188b5".to_string() + &"00".repeat(50);
    let sent = |s: &common::Switch| {
        s.appctl(&["netdev-dummy/receive", "p1", &frame]).expect("receive");
        let shown = s.ofctl(&["dump-ports", "br0", "p2"]);
        shown.split("tx pkts=").nth(1).and_then(|t| t.split(',').next()?.parse::<u64>().ok()).expect("a counter")
    };
    assert_eq!(sent(&s), 1);
    // What is set while a switch runs holds for the next one.
    s.vsctl("set Open_vSwitch . other_config:flow-restore-wait=true");
    assert_eq!(sent(&s), 2);
    let path = s.path("controller");
    s.vsctl(&format!("set-controller br0 unix:{path}"));
    s.crash();
    s.start_test_bed(&ns);
    eventually("the next switch has the ports", SOON, || {
        s.appctl(&["netdev-dummy/conn-state", "p2"])?;
        s.try_ofctl(&["show", "br0"]).map(drop)
    });
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    listener.set_nonblocking(true).expect("a mode");
    assert_eq!(sent(&s), 0);
    assert!(s.appctl(&["metrics/show"]).expect("metrics").contains("reason=\"flow_restore_wait\"} 1\n"));
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(listener.accept().is_err(), "no controller is connected");
    s.vsctl("remove Open_vSwitch . other_config flow-restore-wait -- del-controller br0");
    assert_eq!(sent(&s), 1);
}
