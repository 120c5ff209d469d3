//! Hostile peers of the `ovsdb` program: they cost bounded memory and stop nobody else.
//! The large transaction has 200,000 operations; a million with `OVSDB_ALL=1`.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

struct Server {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start() -> Server {
        let dir = tempfile::tempdir().unwrap();
        let schema = |name: &str| {
            json!({"name": name, "version": "1.0.0", "tables": {"T": {"isRoot": true,
                "columns": {"s": {"type": "string"}, "n": {"type": "integer"}}}}})
        };
        let file = |name: &str| {
            let path = dir.path().join(format!("{name}.db"));
            std::fs::write(&path, ovsdb_rs::file::write_record(&schema(name))).unwrap();
            path
        };
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(env!("CARGO_BIN_EXE_ovsdb"))
            .envs(["OVS_RUNDIR", "OVS_LOGDIR"].map(|v| (v, dir.path())))
            .env("OVS_SYSLOG_METHOD", "null")
            .args([format!("--remote=punix:{}", dir.path().join("db.sock").display()), "-vconsole:off".into()])
            .args([format!("--remote=ptcp:{port}:127.0.0.1"), "--unixctl=none".into()])
            .args([file("D"), file("E")])
            .spawn()
            .unwrap();
        let server = Server { child, dir, port };
        let until = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(server.socket()).is_err() {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("db.sock")
    }

    fn client(&self) -> Client {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client { stream, framer: ovsdb_rs::json::Framer::default() }
    }

    /// The most memory that it ever had, in MB.
    fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(Path::new("/proc").join(self.child.id().to_string()).join("status"));
        let status = status.unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
    }
}

struct Client {
    stream: UnixStream,
    framer: ovsdb_rs::json::Framer,
}

impl Client {
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.stream.write_all(json!({"id": 1, "method": method, "params": params}).to_string().as_bytes()).unwrap();
        self.answer().unwrap()
    }

    fn answer(&mut self) -> Option<Value> {
        let mut chunk = vec![0; 1 << 16];
        loop {
            if let Some(text) = self.framer.next_text().unwrap() {
                return serde_json::from_slice(&text).ok();
            }
            match self.stream.read(&mut chunk) {
                Ok(n) if n > 0 => self.framer.buffer().extend_from_slice(&chunk[..n]),
                _ => return None,
            }
        }
    }

    fn insert(&mut self, db: &str, text: &str) {
        let v = self.ask("transact", &json!([db, {"op": "insert", "table": "T", "row": {"s": text}}]));
        assert!(v["result"][0]["uuid"].is_array(), "{v}");
    }

    /// How long a transaction takes.
    fn wait(&mut self, db: &str) -> Duration {
        let sent = Instant::now();
        self.insert(db, "x");
        sent.elapsed()
    }
}

#[test]
fn clients_that_never_read() {
    let server = Server::start();
    let lazy: Vec<UnixStream> = (0..20)
        .map(|_| {
            let mut s = UnixStream::connect(server.socket()).unwrap();
            s.write_all(br#"{"id":0,"method":"monitor","params":["D","m",{"T":{}}]}"#).unwrap();
            s
        })
        .collect();
    let mut client = server.client();
    let before = server.peak();
    // 300 MB of updates for each of them; rows go again, so that the database stays small.
    let text = "x".repeat(1 << 20);
    for _ in 0..300 {
        let operations = json!(["D", {"op": "delete", "table": "T", "where": []},
            {"op": "insert", "table": "T", "row": {"s": text}}]);
        assert!(client.ask("transact", &operations)["error"].is_null());
    }
    let grown = server.peak() - before;
    assert!(grown < 700, "{grown} MB");
    assert!(client.wait("D") < Duration::from_secs(5));
    drop(lazy);
}

#[test]
fn nesting_of_a_hundred_megabytes() {
    let server = Server::start();
    let before = server.peak();
    for opening in [&b"["[..], b"{\"a\":", b"[{\"a\":["] {
        let mut s = UnixStream::connect(server.socket()).unwrap();
        let chunk = opening.repeat(1 << 20 >> opening.len().ilog2());
        // The server hangs up long before the end.
        let sent = (0..100).take_while(|_| s.write_all(&chunk).is_ok()).count();
        assert!(sent < 100);
    }
    assert!(server.peak() - before < 50);
    // A string that never ends.
    let mut s = UnixStream::connect(server.socket()).unwrap();
    s.write_all(b"[\"").unwrap();
    let chunk = vec![b'x'; 1 << 20];
    let sent = (0..400).take_while(|_| s.write_all(&chunk).is_ok()).count();
    assert!(sent < 400, "the server takes requests of any length");
    assert!(server.peak() - before < 700, "{} MB", server.peak() - before);
    assert!(server.client().wait("D") < Duration::from_secs(5));
}

#[test]
fn a_transaction_of_very_many_operations() {
    let count = if std::env::var_os("OVSDB_ALL").is_some() { 1_000_000 } else { 200_000 };
    let server = Server::start();
    let (mut patient, mut other) = (server.client(), server.client());
    let operation = r#",{"op":"insert","table":"T","row":{"n":1}}"#;
    let mut request = String::from(r#"{"id":1,"method":"transact","params":["D""#);
    request.push_str(&operation.repeat(count));
    request.push_str("]}");
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            patient.stream.write_all(request.as_bytes()).unwrap();
            patient.stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
            let v = patient.answer().unwrap();
            assert_eq!(v["result"].as_array().unwrap().len(), count);
        });
        while !sender.is_finished() {
            // Another database and what needs none go on.
            let sent = Instant::now();
            assert!(other.ask("echo", &json!([1]))["error"].is_null());
            other.insert("E", "x");
            longest = longest.max(sent.elapsed());
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(longest < Duration::from_secs(5), "another client waited {longest:?}");
    println!("{count} operations: {} MB, others waited {longest:?}", server.peak());
    assert!(server.peak() < 4000, "{} MB", server.peak());
    assert!(other.wait("D") < Duration::from_secs(60));
}

#[test]
fn half_open_connections_are_ended() {
    let server = Server::start();
    let mut half: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
    for (i, s) in half.iter_mut().enumerate() {
        if i % 2 == 0 {
            s.write_all(br#"{"id":1,"method":"tran"#).unwrap();
        }
    }
    assert!(server.client().wait("D") < Duration::from_secs(5));
    // Each is asked for a sign of life after 5 s and ended after 10.
    let until = Instant::now() + Duration::from_secs(25);
    for mut s in half {
        s.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut text = Vec::new();
        loop {
            let mut chunk = [0; 1024];
            match s.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => text.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(_) => assert!(Instant::now() < until, "still open"),
            }
        }
        assert!(String::from_utf8_lossy(&text).contains("echo"));
    }
}

/// A transaction too long to become one tree does what the same operations do in a short one, and what fails in
/// it fails alike; where it turns out to be no JSON, the client goes and nothing was done.
#[test]
fn a_long_transaction_is_carried_out_like_a_short_one() {
    let server = Server::start();
    let long = "é\"\\".repeat(400_000);
    let operations = |text: &str, last: Value| {
        let name = |n: &str| json!(["_uuid", "==", ["named-uuid", n]]);
        json!([
            {"op": "insert", "table": "T", "row": {"s": text, "n": 1}, "uuid-name": "a"},
            {"op": "mutate", "table": "T", "where": [name("a")], "mutations": [["n", "+=", 41]]},
            {"op": "select", "table": "T", "where": [["s", "==", text], ["n", "==", 42]], "columns": ["n"]},
            {"op": "comment", "comment": text},
            last,
            {"op": "update", "table": "T", "where": [name("a")], "row": {"n": 43}},
        ])
    };
    let transact = |database: &str, operations: Value| {
        let mut params = vec![json!(database)];
        params.extend(operations.as_array().unwrap().iter().cloned());
        server.client().ask("transact", &Value::Array(params))
    };
    for last in [
        json!({"op": "delete", "table": "T", "where": [["n", "==", 7]]}),
        json!({"op": "abort"}),
        json!({"op": "insert", "table": "T", "row": {"s": 1}}),
        json!({"op": "nothing"}),
        json!({"op": "wait", "timeout": 0, "table": "T", "where": [], "columns": ["n"], "until": "==", "rows": []}),
    ] {
        let (mut short, mut large) =
            (transact("D", operations("s", last.clone())), transact("E", operations(&long, last)));
        for answer in [&mut short, &mut large] {
            assert!(answer["error"].is_null());
            // A fresh name in each.
            if let Some(uuid) = answer["result"][0].get_mut("uuid") {
                *uuid = json!("some");
            }
        }
        assert_eq!(short, large);
    }
    assert!(transact("F", operations(&long, json!({"op": "abort"})))["error"]["error"] == "unknown database");
    let rows = json!([{"op": "select", "table": "T", "where": [], "columns": ["n"]}]);
    let before = transact("E", rows.clone());
    assert_eq!(before["result"][0]["rows"], json!([{"n": 43}]));
    let text = format!(
        r#"{{"id":1,"method":"transact","params":["E",{},{{"op":"comment","comment":1e999}}]}}"#,
        json!({"op": "insert", "table": "T", "row": {"s": long}})
    );
    let mut client = server.client();
    client.stream.write_all(text.as_bytes()).unwrap();
    assert_eq!(client.stream.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(transact("E", rows), before);
}
