//! Small things of ovsdb-server that clients and scripts count on.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use ovsdb_rs::{DatabaseSchema, engine};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn schema() -> DatabaseSchema {
    DatabaseSchema::from_json(&json!({"name": "D", "tables": {
        "T": {"columns": {"n": {"type": "integer"}, "s": {"type": "string"}}}}}))
    .unwrap()
}

fn transact(operations: &[Value]) -> Vec<Value> {
    let mut db = engine::Database::new(schema());
    match db.transact(operations, &engine::Context::unrestricted()) {
        engine::Outcome::Executed(x) => x.results.to_values(),
        engine::Outcome::Waiting { .. } => panic!("it waits"),
    }
}

fn insert(n: i64, s: &str) -> Value {
    json!({"op": "insert", "table": "T", "row": {"n": n, "s": s}})
}

#[test]
fn select_sorts() {
    let rows = |sort: &Value, columns: &Value| {
        let mut select = json!({"op": "select", "table": "T", "where": [], "columns": columns});
        select["sort"] = sort.clone();
        let results = transact(&[insert(3, "a"), insert(1, "c"), insert(2, "a"), insert(-1, "b"), select]);
        results.last().unwrap().clone()
    };
    let ns = |v: Value| v["rows"].as_array().unwrap().iter().map(|r| r["n"].as_i64().unwrap()).collect::<Vec<_>>();
    assert_eq!(ns(rows(&json!(["n"]), &json!(["n"]))), [-1, 1, 2, 3]);
    // By a column that is not shown; by two.
    assert_eq!(ns(rows(&json!(["s", "n"]), &json!(["n"]))), [2, 3, -1, 1]);
    assert!(rows(&json!(["nosuch"]), &json!(["n"]))["error"].is_string());
    assert!(rows(&json!("n"), &json!(["n"]))["error"].is_string());
}

#[test]
fn a_new_row_has_its_version_within_the_transaction() {
    let select = json!({"op": "select", "table": "T", "where": [], "columns": ["_version"]});
    let update = json!({"op": "update", "table": "T", "where": [], "row": {"n": 2}});
    let results = transact(&[insert(1, "a"), select.clone(), update, select]);
    let version = |i: usize| results[i]["rows"][0]["_version"][1].as_str().unwrap().to_string();
    assert!(!version(1).starts_with("00000000-0000"), "{results:?}");
    assert!(!version(3).starts_with("00000000-0000"), "{results:?}");
}

#[test]
fn a_schema_without_version_is_shown_without() {
    assert!(schema().to_json().get("version").is_none());
    let with = json!({"name": "D", "version": "1.2.3", "tables": {}});
    assert_eq!(DatabaseSchema::from_json(&with).unwrap().to_json()["version"], "1.2.3");
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server by a shell that does `first` before.
fn start(dir: &Path, first: &str, options: &[&str]) -> Running {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{first} exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_ovsdb")]).args(options);
    command.args(["--log-file=log", "--unixctl=none", "--remote=punix:sock", "db"]).current_dir(dir);
    command.envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR"].map(|v| (v, dir))).env("OVS_SYSLOG_METHOD", "null");
    Running(command.stderr(Stdio::null()).spawn().unwrap())
}

fn create(dir: &Path) {
    std::fs::write(dir.join("db"), ovsdb_rs::file::write_record(&schema().to_json())).unwrap();
}

fn connect(dir: &Path) -> UnixStream {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match UnixStream::connect(dir.join("sock")) {
            Ok(s) => {
                s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                return s;
            }
            Err(e) => assert!(Instant::now() < until, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_port_that_the_kernel_chose_is_told() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let _server = start(dir.path(), "", &["--remote=ptcp:0:127.0.0.1"]);
    connect(dir.path());
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    let port = log.lines().find_map(|l| l.split_once("|socket_util|INFO|0:127.0.0.1: listening on port ")).unwrap().1;
    std::net::TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap())).unwrap();
}

/// A socket without a folder is in the run directory, wherever the server was started.
#[test]
fn sockets_are_in_the_run_directory() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::rename(dir.path().join("db"), elsewhere.join("db")).unwrap();
    let _server = start(dir.path(), "cd elsewhere;", &[]);
    connect(dir.path());
    assert!(!elsewhere.join("sock").exists());
}

/// The disk takes neither what is to be appended nor the whole database: whoever asked learns it, and so does who watches.
#[test]
fn where_the_disk_takes_nothing_clients_are_answered_and_closed() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    // Files of 64 blocks of 512 bytes at most; more is an error instead of a signal.
    let _server = start(dir.path(), "trap '' XFSZ; ulimit -f 64;", &["-vfile:off"]);
    let (mut watcher, mut client) = (connect(dir.path()), connect(dir.path()));
    let monitor = json!({"id": 1, "method": "monitor", "params": ["D", null, {"T": {}}]});
    watcher.write_all(monitor.to_string().as_bytes()).unwrap();
    let mut reply = [0; 4096];
    assert!(watcher.read(&mut reply).unwrap() > 0);
    let big = "x".repeat(100_000);
    client
        .write_all(json!({"id": 7, "method": "transact", "params": ["D", insert(1, &big)]}).to_string().as_bytes())
        .unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&answer["id"], &answer["result"][0]["error"]), (&json!(7), &json!("I/O error")), "{text}");
    let mut rest = Vec::new();
    watcher.read_to_end(&mut rest).unwrap();
    assert!(!String::from_utf8_lossy(&rest).contains("xxx"), "what is not on disk was told");
}
