//! Rows, references, monitors and clients come and go, ten rounds; the server ends where it began.
//! A round inserts and deletes 10,000 rows. Five rounds before the ten fill the history of 50,000 changed rows that the server keeps
//! for clients that come back.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[allow(dead_code, reason = "others use the rest")]
mod common;

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROWS: usize = 10_000;
const FILLING: usize = 5;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Client(UnixStream);

impl Client {
    fn connect(path: &Path) -> Client {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match UnixStream::connect(path) {
                Ok(s) => {
                    s.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                    return Client(s);
                }
                Err(e) => assert!(Instant::now() < end, "{}: {e}", path.display()),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a request, passes over what the server says by itself, and gives the result.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.0.write_all(json!({"id": 7, "method": method, "params": params}).to_string().as_bytes()).unwrap();
        let (mut text, mut piece) = (Vec::new(), vec![0; 1 << 20]);
        loop {
            let n = self.0.read(&mut piece).unwrap();
            assert!(n > 0, "no reply to {method}");
            text.extend_from_slice(&piece[..n]);
            // Only whole messages end with a brace of the first level, and few reads do.
            if text.last() != Some(&b'}') {
                continue;
            }
            let values: Result<Vec<Value>, _> =
                serde_json::Deserializer::from_slice(&text).into_iter::<Value>().collect();
            if let Some(reply) = values.unwrap_or_default().into_iter().find(|v| v["id"] == json!(7)) {
                assert!(reply["error"].is_null(), "{method}: {}", reply["error"]);
                return reply["result"].clone();
            }
        }
    }

    fn transact(&mut self, operations: Vec<Value>) {
        let params: Vec<Value> = std::iter::once(json!("D")).chain(operations).collect();
        for result in self.ask("transact", &Value::Array(params)).as_array().unwrap() {
            assert!(result.get("error").is_none_or(Value::is_null), "{result}");
        }
    }
}

/// What the server counts, and its resident memory in KiB (proc_pid_status(5)).
fn sizes(dir: &Path, child: &Child) -> (String, String, u64) {
    let ask = |command: &str| Client::connect(&dir.join("ctl")).ask(command, &json!([])).as_str().unwrap().to_string();
    let counters = ask("ovsdb-server/perf-counters-show");
    let line = counters.lines().find(|l| l.starts_with("D: ")).unwrap();
    let remembered = line.rsplit_once(' ').unwrap().1.to_string();
    let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let resident = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    (ask("memory/show"), remembered, resident.split_whitespace().next().unwrap().parse().unwrap())
}

/// Rows of both tables, strong, weak and mapped references between them.
fn rows(round: usize) -> Vec<Value> {
    let kid = |n: usize| json!({"op": "insert", "table": "Kid", "uuid-name": format!("k{n}"), "row": {"k": n % 10}});
    let of = |n: usize| {
        json!(["set", (n * 10..n * 10 + 9).map(|k| json!(["named-uuid", format!("k{k}")])).collect::<Vec<_>>()])
    };
    let root = |n: usize| {
        let map = json!(["map", [[n, ["named-uuid", format!("k{}", n * 10)]]]]);
        json!({"op": "insert", "table": "Root", "row": {"name": round * ROWS + n, "kids": of(n), "pals": of(n), "map": map}})
    };
    let roots = ROWS / 10;
    (0..roots * 9 + roots).filter(|n| n % 10 < 9).map(kid).chain((0..roots).map(root)).collect()
}

#[test]
fn ten_rounds_end_where_they_began() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut schema = common::schema();
    schema.tables.get_mut("Root").unwrap().max_rows = None;
    std::fs::write(dir.join("d.db"), ovsdb_rs::file::write_record(&schema.to_json())).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ovsdb"));
    command.args(["--remote=punix:db.sock", "--unixctl=ctl", "-vconsole:off", "d.db"]).current_dir(dir);
    command.envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR"].map(|v| (v, dir))).env("OVS_SYSLOG_METHOD", "null");
    // With an arena for each thread, how much glibc keeps of what is free depends on which threads happen to run.
    command.env("MALLOC_ARENA_MAX", "1");
    let server = Running(command.stderr(Stdio::null()).spawn().unwrap());
    let socket = dir.join("db.sock");
    let mut writer = Client::connect(&socket);
    writer.transact(Vec::new());
    let began = sizes(dir, &server.0).0;
    let mut third = 0;
    for round in 1..=FILLING + 10 {
        writer.transact(rows(round));
        let mut reader = Client::connect(&socket);
        let all = json!(["D", round, {"Root": {"columns": ["name", "kids"]}, "Kid": {"columns": ["k"]}}]);
        assert_eq!(reader.ask("monitor", &all)["Kid"].as_object().unwrap().len(), ROWS / 10 * 9);
        let since = json!(["D", format!("s{round}"), {"Root": [{"columns": ["name"], "where": [["name", ">", 0]]}]},
            "00000000-0000-0000-0000-000000000000"]);
        reader.ask("monitor_cond_since", &since);
        reader.ask("lock", &json!([format!("lock{round}")]));
        let (full, ..) = sizes(dir, &server.0);
        assert_ne!(full, began, "rows and monitors are counted");
        writer.transact(vec![json!({"op": "delete", "table": "Root", "where": []})]);
        drop(reader);
        let end = Instant::now() + Duration::from_secs(20);
        let (mut now, mut remembered, mut resident) = sizes(dir, &server.0);
        while now != began {
            assert!(Instant::now() < end, "round {round}: {now}, at first {began}");
            std::thread::sleep(Duration::from_millis(50));
            (now, remembered, resident) = sizes(dir, &server.0);
        }
        if round == FILLING + 3 {
            third = resident;
        } else if round == FILLING + 10 {
            assert!(remembered.parse::<usize>().unwrap() <= 50_000, "{remembered} rows are remembered");
            assert!(resident <= third + third / 5, "{resident} KiB resident after ten rounds, {third} after three");
        }
    }
}
