//! The scripts of OVN and Open vSwitch start, ask and stop our server in the place of ovsdb-server.

use std::path::Path;
use std::process::{Command, Output};

const OVN_CTL: &str = "/usr/share/ovn/scripts/ovn-ctl";
const OVS_CTL: &str = "/usr/share/openvswitch/scripts/ovs-ctl";

/// Whether a script can be run; where it cannot, the test is skipped.
fn able(script: &str) -> bool {
    needs::root() && needs::installed(&[script])
}

/// A machine of its own for the scripts: folders, and our server by the name that the script calls.
struct Machine<'a>(&'a Path);

impl Machine<'_> {
    fn new(root: &Path) -> Machine<'_> {
        for d in ["bin", "run", "log", "db", "etc"] {
            std::fs::create_dir_all(root.join(d)).unwrap();
        }
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ovsdb"), root.join("bin/ovsdb-server")).unwrap();
        Machine(root)
    }

    fn run(&self, program: &str, arguments: &str) -> Output {
        let dir = |d: &str| self.0.join(d).display().to_string();
        let path = format!("{}:{}", dir("bin"), std::env::var("PATH").unwrap_or_default());
        let mut c = Command::new(program);
        c.args(arguments.split_whitespace()).env("PATH", path).env("OVS_SYSLOG_METHOD", "null");
        c.envs(["OVS_RUNDIR", "OVN_RUNDIR"].map(|v| (v, dir("run"))));
        c.envs(["OVS_LOGDIR", "OVN_LOGDIR"].map(|v| (v, dir("log"))));
        c.envs(["OVS_DBDIR", "OVN_DBDIR"].map(|v| (v, dir("db"))));
        c.envs(["OVS_SYSCONFDIR", "OVN_SYSCONFDIR"].map(|v| (v, dir("etc"))));
        c.stdin(std::process::Stdio::null()).output().unwrap()
    }

    fn output(&self, program: &str, arguments: &str) -> String {
        let o = self.run(program, arguments);
        let text = String::from_utf8_lossy(&o.stdout).into_owned();
        assert!(o.status.success(), "{program} {arguments}: {text}{}", String::from_utf8_lossy(&o.stderr));
        text
    }

    /// Whether the process of a pidfile is ours.
    fn is_ours(&self, pidfile: &str) -> bool {
        let pid = std::fs::read_to_string(self.0.join("run").join(pidfile)).unwrap();
        let running = std::fs::read_link(format!("/proc/{}/exe", pid.trim())).unwrap();
        running == Path::new(env!("CARGO_BIN_EXE_ovsdb")).canonicalize().unwrap()
    }

    fn ovn_ctl(&self, arguments: &str) -> String {
        self.output(OVN_CTL, arguments)
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        // Whatever a failed step has left.
        for name in ["ovnnb_db", "ovnsb_db", "ovsdb-server"] {
            if let Ok(pid) = std::fs::read_to_string(self.0.join(format!("run/{name}.pid"))) {
                let _ = Command::new("kill").arg(pid.trim()).status();
            }
        }
    }
}

#[test]
fn ovn_ctl_starts_asks_and_stops_it() {
    if !able(OVN_CTL) {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let m = Machine::new(root.path());
    m.ovn_ctl("start_ovsdb");
    assert!(m.ovn_ctl("status_ovsdb").matches("is running").count() == 2);
    let nb = |m: &Machine<'_>, arguments: &str| m.output("ovn-nbctl", arguments);
    nb(&m, "ls-add s");
    nb(&m, "set-connection ptcp:0:127.0.0.1");
    assert_eq!(nb(&m, "--bare --columns=name list Logical_Switch").trim(), "s");
    assert!(m.is_ours("ovnnb_db.pid"));
    // Roles: what pacemaker's agent asks for.
    assert_eq!(m.ovn_ctl("status_ovnnb").trim(), "running/active");
    m.ovn_ctl("demote_ovnnb --db-nb-sync-from-addr=127.0.0.1 --db-nb-sync-from-port=9");
    assert_eq!(m.ovn_ctl("status_ovnnb").trim(), "running/backup");
    m.ovn_ctl("promote_ovnnb");
    assert_eq!(m.ovn_ctl("status_ovnnb").trim(), "running/active");
    // What was there is there after a restart.
    m.ovn_ctl("restart_nb_ovsdb");
    assert_eq!(nb(&m, "--bare --columns=name list Logical_Switch").trim(), "s");
    m.ovn_ctl("stop_ovsdb");
    assert!(m.ovn_ctl("status_ovsdb").matches("is not running").count() == 2);
    let log = std::fs::read_to_string(root.path().join("log/ovsdb-server-nb.log")).unwrap_or_default();
    assert!(!log.contains("|ERR|"), "{log}");
}

/// The database alone: the switch is not started.
#[test]
fn ovs_ctl_starts_asks_and_stops_it() {
    if !able(OVS_CTL) {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let m = Machine::new(root.path());
    let ctl = |what: &str| m.output(OVS_CTL, &format!("--no-ovs-vswitchd --system-id=test1 {what}"));
    ctl("start");
    assert!(m.is_ours("ovsdb-server.pid"));
    assert!(String::from_utf8_lossy(&m.run(OVS_CTL, "status").stdout).contains("ovsdb-server is running"));
    let vsctl = |arguments: &str| m.output("ovs-vsctl", &format!("--no-wait {arguments}"));
    vsctl("add-br br9");
    ctl("restart");
    assert_eq!(vsctl("list-br").trim(), "br9");
    assert_eq!(vsctl("get Open_vSwitch . external_ids:system-id").trim(), "test1");
    ctl("stop");
    assert!(!root.path().join("run/ovsdb-server.pid").exists());
}
