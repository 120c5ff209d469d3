//! A daemon that cannot do its work waits: below 1 % of a processor.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processor time so far, in clock ticks of 10 ms (proc_pid_stat(5)).
fn ticks(child: &Child) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn start(dir: &Path, options: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ovsdb"));
    command.args(options).args(["--unixctl=none", "--log-file=log", "-vconsole:off"]).current_dir(dir);
    command.envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR"].map(|v| (v, dir))).env("OVS_SYSLOG_METHOD", "null");
    Running(command.stderr(Stdio::null()).spawn().unwrap())
}

/// After the start, in ten seconds less than 0.1 s, and a log of few lines.
fn waits(dir: &Path, options: &[&str]) {
    let mut running = start(dir, options);
    std::thread::sleep(Duration::from_secs(3));
    let before = ticks(&running.0);
    std::thread::sleep(Duration::from_secs(10));
    assert!(running.0.try_wait().unwrap().is_none(), "it ended");
    let spent = ticks(&running.0) - before;
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    assert!(spent < 10, "{spent} of 1,000 ticks with {options:?}:\n{log}");
    assert!(log.lines().count() < 40, "{log}");
}

#[test]
fn with_peers_out_of_reach() {
    let dir = tempfile::tempdir().unwrap();
    let remotes = ["--remote=tcp:127.0.0.1:1", "--remote=ssl:127.0.0.1:1", "--remote=unix:nowhere.sock"];
    waits(dir.path(), &[&remotes[..], &["relay:D:tcp:127.0.0.1:1"]].concat());
}

/// A relay and a backup whose sources want TLS: without a certificate, with files that hold none, with a peer that ends every handshake.
#[test]
fn as_a_client_without_usable_certificates() {
    let peer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("ssl:127.0.0.1:{}", peer.local_addr().unwrap().port());
    std::thread::spawn(move || peer.incoming().for_each(drop));
    let schema = ovsdb_rs::DatabaseSchema::from_json(&serde_json::json!({"name": "D", "version": "1.0.0",
        "tables": {"T": {"columns": {"c": {"type": "string"}}}}}));
    let record = ovsdb_rs::file::write_record(&schema.unwrap().to_json());
    let (relay, from) = (format!("relay:D:{source}"), format!("--sync-from={source}"));
    for options in [&[&*relay][..], &[&from, "d.db"]] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("d.db"), &record).unwrap();
        waits(dir.path(), options);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("d.db"), &record).unwrap();
        ["key", "cert", "ca"]
            .iter()
            .for_each(|name| std::fs::write(dir.path().join(name), "no certificate\n").unwrap());
        waits(dir.path(), &[options, &["--private-key=key", "--certificate=cert", "--ca-cert=ca"]].concat());
    }
}
