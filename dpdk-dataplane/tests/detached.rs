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
        if log.contains("|dpdk|INFO|EAL ARGS: --") { Ok(()) } else { Err(log) }
    });
}
