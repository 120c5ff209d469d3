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
    let mut command = Command::new(env!("CARGO_BIN_EXE_vtep-controller"));
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
fn without_databases() {
    let dir = tempfile::tempdir().unwrap();
    waits(dir.path(), &["--ovnsb-db=unix:nowhere.sock", "--vtep-db=unix:nowhere.sock"]);
}

#[test]
fn with_peers_out_of_reach() {
    let dir = tempfile::tempdir().unwrap();
    waits(dir.path(), &["--ovnsb-db=tcp:127.0.0.1:1", "--vtep-db=ssl:127.0.0.1:1"]);
}

/// TLS without a certificate, with files that hold none, and with a peer that ends every handshake.
#[test]
fn without_usable_certificates() {
    let peer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = peer.local_addr().unwrap().port();
    std::thread::spawn(move || peer.incoming().for_each(drop));
    let remotes = [format!("--vtep-db=ssl:127.0.0.1:{port}"), format!("--ovnsb-db=ssl:127.0.0.1:{port}")];
    let remotes = [&*remotes[0], &*remotes[1]];
    let dir = tempfile::tempdir().unwrap();
    waits(dir.path(), &remotes);
    let dir = tempfile::tempdir().unwrap();
    ["key", "cert", "ca"].iter().for_each(|name| std::fs::write(dir.path().join(name), "no certificate\n").unwrap());
    waits(dir.path(), &[&remotes[..], &["--private-key=key", "--certificate=cert", "--ca-cert=ca"]].concat());
}

/// A southbound server that takes no chassis.
#[tokio::test(flavor = "multi_thread")]
async fn with_transactions_that_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut sb, tor) = (ovn_schema::sb::Database::schema(), ovn_schema::vtep::Database::schema());
    sb.tables.get_mut("Chassis").unwrap().max_rows = Some(0);
    let server = ovsdb_rs::Server::new();
    for (name, schema) in [("sb", sb), ("vtep", tor)] {
        server.add_file(&dir.path().join(format!("{name}.db")), Some(&schema)).await.unwrap();
    }
    server.listen(&format!("punix:{}", dir.path().join("db.sock").display())).await.unwrap();
    let operations = serde_json::json!([
        {"op": "insert", "table": "Physical_Switch", "uuid-name": "ps", "row": {"name": "tor", "tunnel_ips": "10.0.0.1"}},
        {"op": "insert", "table": "Global", "row": {"switches": ["named-uuid", "ps"]}},
    ]);
    server.transact(ovn_schema::vtep::Database::NAME, operations.as_array().unwrap().clone()).await.unwrap();
    let path = dir.path().to_path_buf();
    let wait = move || waits(&path, &["--vtep-db=unix:db.sock", "--ovnsb-db=unix:db.sock"]);
    tokio::task::spawn_blocking(wait).await.unwrap();
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.contains("is refused and left alone"), "nothing was refused: {log}");
}
