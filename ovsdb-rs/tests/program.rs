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
    stream: Client,
}

struct Client {
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
        Running { child, stream: Client { stream, received: Vec::new() } }
    }

    /// Another connection.
    fn another(&self) -> Client {
        let address = self.stream.stream.peer_addr().unwrap();
        let stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { stream, received: Vec::new() }
    }

    /// Sends a control command without waiting for the answer.
    fn control(&self, dir: &Path, command: &str) -> UnixStream {
        let mut stream = UnixStream::connect(dir.join("d.ctl")).unwrap();
        stream.write_all(json!({"id": 0, "method": command, "params": []}).to_string().as_bytes()).unwrap();
        stream
    }

    fn transact(&mut self, operations: &[Value]) -> Option<Value> {
        self.stream.transact(operations)
    }
}

impl Client {
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

fn create(dir: &Path, name: &str, schema: &ovsdb_rs::DatabaseSchema) {
    let path = dir.join(format!("{name}.db"));
    std::fs::write(path, ovsdb_rs::file::write_record(&schema.to_json())).unwrap();
}

/// Kills the server again and again while several clients write and the file is compacted. Ten rounds;
/// as many as `OVSDB_KILLS` says.
#[test]
fn what_was_answered_survives_a_kill() {
    let rounds: u64 = std::env::var("OVSDB_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), "d", &common::schema());
    // Row n of Root counts what client n has done.
    const CLIENTS: usize = 4;
    let mut answered = [0i64; CLIENTS];
    let mut done = 0;
    for round in 0..rounds {
        let mut server = Running::start(env!("CARGO_BIN_EXE_ovsdb"), dir.path(), "d");
        if round == 0 {
            let row = |n: usize| json!({"op": "insert", "table": "Root", "row": {"name": n, "eph": 0}});
            server.transact(&(0..CLIENTS).map(row).collect::<Vec<_>>()).unwrap();
        }
        let rows = server.transact(&[json!({"op": "select", "table": "Root", "where": []})]).unwrap();
        assert_eq!(rows[0]["rows"].as_array().unwrap().len(), CLIENTS);
        for row in rows[0]["rows"].as_array().unwrap() {
            let client = usize::try_from(row["name"].as_i64().unwrap()).unwrap();
            let n = row["map"][1].as_array().unwrap().first().map_or(0, |p| p[0].as_i64().unwrap());
            // A transaction that was sent but not answered may have been carried out.
            assert!(n == answered[client] || n == answered[client] + 1, "round {round}: {n}, {}", answered[client]);
            done += n - answered[client];
            answered[client] = n;
        }
        let id = nix::unistd::Pid::from_raw(i32::try_from(server.child.id()).unwrap());
        std::thread::scope(|scope| {
            for (client, answered) in answered.iter_mut().enumerate() {
                let mut stream = server.another();
                scope.spawn(move || {
                    let kid = "00000000-0000-0000-0000-000000000001";
                    loop {
                        let next = *answered + 1;
                        let mut operations = Vec::new();
                        if client == 0 && next == 1 {
                            operations.push(json!({"op": "comment", "comment": "first"}));
                        }
                        operations.push(json!({"op": "insert", "table": "Kid", "uuid-name": "k", "row": {}}));
                        let map = json!(["map", [[next, ["named-uuid", "k"]]]]);
                        operations.push(json!({"op": "update", "table": "Root", "where": [["name", "==", client]],
                            "row": {"map": map}}));
                        operations
                            .push(json!({"op": "delete", "table": "Kid", "where": [["_uuid", "==", ["uuid", kid]]]}));
                        match stream.transact(&operations) {
                            Some(result) => {
                                assert!(result.to_string().contains("\"count\":1"), "{result}");
                                *answered = next;
                            }
                            None => return,
                        }
                    }
                });
            }
            let compact = server.control(dir.path(), "ovsdb-server/compact");
            std::thread::sleep(Duration::from_millis(20 + (round * 37) % 150));
            nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL).unwrap();
            drop(compact);
        });
    }
    println!("{rounds} kills, {} transactions, {done} of them not answered", answered.iter().sum::<i64>());
    assert!(answered.iter().all(|n| *n > 3));
}

/// Rows and results with what two servers choose differently taken out: versions, the order of rows, the digits of
/// reals beyond the fifteen that ovsdb-server writes, and the sign of zero, which ovsdb-server writes until it stores it.
fn comparable(v: &Value) -> Value {
    match v {
        Value::Array(a) => Value::Array(a.iter().map(comparable).collect()),
        Value::Object(o) if o.contains_key("error") => json!({ "error": o["error"] }),
        Value::Object(o) => {
            let part = |(k, v): (&String, &Value)| {
                let mut v = comparable(v);
                if let (true, Value::Array(rows)) = (k == "rows", &mut v) {
                    rows.sort_by_key(ovsdb_rs::json::canonical);
                }
                (k.clone(), v)
            };
            o.iter().filter(|(k, _)| *k != "_version").map(part).collect()
        }
        Value::Number(n) if n.as_f64() == Some(0.0) => json!(0),
        Value::Number(n) if n.is_f64() => json!(format!("{:.13e}", n.as_f64().unwrap())),
        other => other.clone(),
    }
}

/// The rows of both tables. ovsdb-server 3.1 now and then keeps a weak reference to a row that is collected
/// as garbage while the referring row changes: such references are left out.
fn rows(server: &mut Running) -> Vec<String> {
    let mut all = |table: &str| {
        let result = server.transact(&[json!({"op": "select", "table": table, "where": []})]).unwrap();
        result[0]["rows"].as_array().unwrap().clone()
    };
    let (mut roots, kids) = (all("Root"), all("Kid"));
    for root in &mut roots {
        let pals = match &root["pals"][1] {
            Value::Array(a) => a.clone(),
            _ => vec![root["pals"].clone()],
        };
        let there = |u: &&Value| kids.iter().any(|k| k["_uuid"] == **u);
        root["pals"] = json!(pals.iter().filter(there).collect::<Vec<_>>());
    }
    let mut rows: Vec<String> = roots.iter().chain(&kids).map(|r| ovsdb_rs::json::canonical(&comparable(r))).collect();
    rows.sort();
    rows
}

/// Both find the faults of an operation in an order of their own, ovsdb-server's that of a hash table: where a row has two
/// faults, or a mutation fails on two rows, either error will do.
fn one_fault(operations: &[Value], mut result: Value) -> Value {
    let parsing: &[&str] = &["syntax error", "constraint violation", "ovsdb error"];
    let arithmetic: &[&str] = &["constraint violation", "range error", "domain error"];
    for (operation, r) in operations.iter().zip(result.as_array_mut().unwrap()) {
        let columns = ["row", "rows"].iter().any(|k| operation[k].to_string().matches("\":").count() > 1);
        let rows = operation["op"] == "mutate" && operation["where"][0][0] != "_uuid";
        if [(columns, parsing), (rows, arithmetic)]
            .iter()
            .any(|(on, kinds)| *on && kinds.iter().any(|e| r["error"] == *e))
        {
            *r = json!({"error": "one of several"});
        }
    }
    result
}

/// Gives random transactions to both servers: the results are the same, and so is what `rows` gives afterwards. The state
/// is kept from case to case, so that rows accumulate.
fn side_by_side(
    schema: &ovsdb_rs::DatabaseSchema,
    cases: u32,
    operation: impl Strategy<Value = Value>,
    rows: impl Fn(&mut Running) -> Vec<String>,
) {
    let theirs = "/usr/sbin/ovsdb-server";
    if !needs::installed(&[theirs]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let start = |program: &str, name: &str| {
        create(dir.path(), name, schema);
        Running::start(program, dir.path(), name)
    };
    let (done, ended) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let both = || {
        let [ours, others] = ["ours", "theirs"].map(|n| format!("{n}{}", ended.get()));
        (start(env!("CARGO_BIN_EXE_ovsdb"), &ours), start(theirs, &others))
    };
    let servers = std::cell::RefCell::new(both());
    let config = ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() };
    proptest!(config, |(operations in proptest::collection::vec(operation, 1..6))| {
        let mut servers = servers.borrow_mut();
        let (a, b) = &mut *servers;
        let x = a.transact(&operations).unwrap();
        let Some(y) = b.transact(&operations) else {
            // Debian's server ends with a few of them. Nothing can be said of that one; both begin anew.
            ended.set(ended.get() + 1);
            *servers = both();
            return Ok(());
        };
        let sent = json!(operations).to_string();
        let [p, q] = [&x, &y].map(|r| one_fault(&operations, comparable(r)));
        prop_assert_eq!(p, q, "{} gives\n{}\nand {}", sent, x, y);
        prop_assert_eq!(rows(a), rows(b), "after {}", sent);
        done.set(done.get() + i32::from(!x.to_string().contains("\"error\"")));
    });
    println!("{cases} transactions, {} of them without error; {} ended Debian's server", done.get(), ended.get());
    assert!(ended.get() <= 1 + cases / 1000, "{} of {cases} ended Debian's server", ended.get());
    assert!(done.get() > i32::try_from(cases / 20).unwrap());
}

#[test]
fn the_same_as_debians_server() {
    side_by_side(&common::schema(), 400, common::operation(), rows);
}

#[test]
fn values_of_all_types_are_as_in_debians_server() {
    let rows = |server: &mut Running| {
        let result = server.transact(&[json!({"op": "select", "table": "T", "where": []})]).unwrap();
        let rows = result[0]["rows"].as_array().unwrap().iter();
        let mut rows: Vec<String> = rows.map(|r| ovsdb_rs::json::canonical(&comparable(r))).collect();
        rows.sort();
        rows
    };
    let cases = std::env::var("OVSDB_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    side_by_side(&common::typed::schema(), cases, common::typed::operation(), rows);
}
