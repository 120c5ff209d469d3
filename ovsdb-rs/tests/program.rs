//! The `ovsdb` program from the outside: killed while clients write, and beside Debian's ovsdb-server.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use proptest::prelude::*;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Running {
    child: Child,
    stream: UnixStream,
    received: Vec<u8>,
}

impl Running {
    fn start(program: &str, dir: &Path, name: &str) -> Running {
        let socket = dir.join(format!("{name}.sock"));
        let _ = std::fs::remove_file(&socket);
        let child = Command::new(program)
            .envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR"].map(|v| (v, dir)))
            .env("OVS_SYSLOG_METHOD", "null")
            .args([format!("--remote=punix:{}", socket.display()), "-vconsole:off".into()])
            .args([format!("--unixctl={name}.ctl"), dir.join(format!("{name}.db")).display().to_string()])
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(s) => break s,
                Err(e) => assert!(Instant::now() < until, "{program}: {e}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Running { child, stream, received: Vec::new() }
    }

    fn ask(&mut self, method: &str, params: &Value) -> Option<Value> {
        self.stream.write_all(json!({"id": 1, "method": method, "params": params}).to_string().as_bytes()).ok()?;
        loop {
            let mut values = serde_json::Deserializer::from_slice(&self.received).into_iter::<Value>();
            if let Some(Ok(v)) = values.next() {
                let used = values.byte_offset();
                self.received.drain(..used);
                return Some(v["result"].clone());
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(n) if n > 0 => self.received.extend_from_slice(&chunk[..n]),
                _ => return None,
            }
        }
    }

    fn transact(&mut self, operations: &[Value]) -> Option<Value> {
        let mut params = vec![json!("D")];
        params.extend_from_slice(operations);
        self.ask("transact", &Value::Array(params))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create(dir: &Path, name: &str) {
    let path = dir.join(format!("{name}.db"));
    std::fs::write(path, ovsdb_rs::file::write_record(&common::schema().to_json())).unwrap();
}

#[test]
fn what_was_answered_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), "d");
    let mut answered = 0;
    for round in 0..3u64 {
        let mut server = Running::start(env!("CARGO_BIN_EXE_ovsdb"), dir.path(), "d");
        let rows = server.transact(&[json!({"op": "select", "table": "Root", "where": []})]).unwrap();
        let n = rows[0]["rows"].as_array().unwrap().first().map_or(0, |r| r["name"].as_i64().unwrap());
        assert!(n >= answered, "{n} is less than {answered}");
        if round == 0 {
            let row = json!({"op": "insert", "table": "Root", "row": {"name": 0}});
            assert!(server.transact(&[row]).unwrap()[0]["uuid"].is_array());
        }
        let id = nix::unistd::Pid::from_raw(i32::try_from(server.child.id()).unwrap());
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(80 + 70 * round));
            nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL).unwrap();
        });
        let more = json!({"op": "mutate", "table": "Root", "where": [], "mutations": [["name", "+=", 1]]});
        answered = n;
        while let Some(result) = server.transact(std::slice::from_ref(&more)) {
            assert_eq!(result[0]["count"], 1);
            answered += 1;
        }
        killer.join().unwrap();
    }
    assert!(answered > 3);
}

/// Rows and results with what two servers choose differently taken out.
fn comparable(v: &Value) -> Value {
    match v {
        Value::Array(a) => Value::Array(a.iter().map(comparable).collect()),
        Value::Object(o) if o.contains_key("error") => json!({ "error": o["error"] }),
        Value::Object(o) => {
            o.iter().filter(|(k, _)| *k != "_version").map(|(k, v)| (k.clone(), comparable(v))).collect()
        }
        other => other.clone(),
    }
}

fn rows(server: &mut Running, table: &str) -> Vec<String> {
    let result = server.transact(&[json!({"op": "select", "table": table, "where": []})]).unwrap();
    let mut rows: Vec<String> =
        result[0]["rows"].as_array().unwrap().iter().map(|r| ovsdb_rs::json::canonical(&comparable(r))).collect();
    rows.sort();
    rows
}

#[test]
fn the_same_as_debians_server() {
    let theirs = "/usr/sbin/ovsdb-server";
    if !Path::new(theirs).exists() {
        println!("skipped: ovsdb-server is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), "ours");
    create(dir.path(), "theirs");
    let ours = std::cell::RefCell::new(Running::start(env!("CARGO_BIN_EXE_ovsdb"), dir.path(), "ours"));
    let theirs = std::cell::RefCell::new(Running::start(theirs, dir.path(), "theirs"));
    let config =
        ProptestConfig { cases: 400, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() };
    // The state is kept from case to case, so that rows accumulate.
    proptest!(config, |(operations in proptest::collection::vec(common::operation(), 1..6))| {
        let (mut a, mut b) = (ours.borrow_mut(), theirs.borrow_mut());
        let (x, y) = (a.transact(&operations).unwrap(), b.transact(&operations).unwrap());
        prop_assert_eq!(comparable(&x), comparable(&y), "{} {}", x, y);
        for table in ["Root", "Kid"] {
            prop_assert_eq!(rows(&mut a, table), rows(&mut b, table));
        }
    });
}
