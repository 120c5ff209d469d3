//! A detached start as distributions' scripts and test suites make it.

mod common;

use common::{Namespace, able, eventually, run};
use std::time::Duration;

/// Ends the daemon by its pidfile.
struct Daemon(std::path::PathBuf);

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(&self.0) {
            let _ = run("kill", &["-9", pid.trim()], &[]);
        }
    }
}

/// Scripts take for a complaint what a start writes to stderr, but for the name of the log file.
#[test]
fn a_start_says_nothing_but_where_its_log_is() {
    if !able(&[]) {
        return;
    }
    let ns = Namespace::new("detached");
    let dir = tempfile::tempdir().expect("folder");
    let path = |n: &str| dir.path().join(n).display().to_string();
    let _daemon = Daemon(dir.path().join("pid"));
    let out = std::process::Command::new("ip")
        .args(["netns", "exec", &ns.0, env!("CARGO_BIN_EXE_dpdk-dataplane"), "--detach", "--no-chdir"])
        .args([
            format!("--embed={}", path("db")),
            format!("--pidfile={}", path("pid")),
            format!("--log-file={}", path("log")),
        ])
        .args([format!("--unixctl={}", path("ctl"))])
        .env("OVS_RUNDIR", dir.path())
        .output()
        .expect("ip");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "");
    let said = String::from_utf8_lossy(&out.stderr);
    let others: Vec<&str> = said.lines().filter(|l| !l.contains("|vlog|INFO|opened log file")).collect();
    assert_eq!(others, Vec::<&str>::new());
    eventually("the log has DPDK's arguments", Duration::from_secs(10), || {
        let log = std::fs::read_to_string(path("log")).map_err(|e| e.to_string())?;
        // Those of a machine with hugepages begin otherwise.
        if log.contains("|dpdk|INFO|EAL ARGS: -") { Ok(()) } else { Err(log) }
    });
}

/// A start ends, though its database has no row of Open_vSwitch yet. When there is one, bridges are made.
#[test]
fn a_start_ends_before_the_database_has_its_row() {
    if !able(&["ovsdb-tool", "ovsdb-server", "ovs-vsctl"]) {
        return;
    }
    let ns = Namespace::new("detached2");
    let dir = tempfile::tempdir().expect("folder");
    let path = |n: &str| dir.path().join(n).display().to_string();
    let sock = format!("unix:{}", path("db.sock"));
    run("ovsdb-tool", &["create", &path("conf.db"), "/usr/share/openvswitch/vswitch.ovsschema"], &[])
        .expect("database");
    let _server = Daemon(dir.path().join("server.pid"));
    let remote = format!("--remote=p{sock}");
    let pidfile = format!("--pidfile={}", path("server.pid"));
    let ctl = format!("--unixctl={}", path("server.ctl"));
    run("ovsdb-server", &["--detach", "--no-chdir", &pidfile, &ctl, &remote, &path("conf.db")], &[]).expect("server");
    let _daemon = Daemon(dir.path().join("pid"));
    let status = std::process::Command::new("timeout")
        .args(["20", "ip", "netns", "exec", &ns.0, env!("CARGO_BIN_EXE_dpdk-dataplane"), "--detach", "--no-chdir"])
        .args([format!("--pidfile={}", path("pid")), format!("--log-file={}", path("log"))])
        .args([format!("--unixctl={}", path("ctl")), "--enable-dummy=system".into(), sock.clone()])
        .env("OVS_RUNDIR", dir.path())
        .stderr(std::process::Stdio::null())
        .status()
        .expect("timeout");
    assert!(status.success(), "the start ended: {status}");
    let log = std::fs::read_to_string(path("log")).expect("log");
    assert!(!log.contains("EAL ARGS"), "{log}");
    let db = format!("--db={sock}");
    run("ovs-vsctl", &["--timeout=20", &db, "init"], &[]).expect("a row");
    run("ovs-vsctl", &["--timeout=20", &db, "add-br", "br0", "--", "add-port", "br0", "p"], &[]).expect("a bridge");
    let port = run("ovs-vsctl", &[&db, "get", "interface", "p", "ofport"], &[]).expect("ovs-vsctl");
    assert_eq!(port.trim(), "1");
}
