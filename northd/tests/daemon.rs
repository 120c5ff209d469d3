//! The daemon with embedded databases: what others do to its flows is repaired, rows outlive a recompute and a restart, and
//! nothing is written while it is paused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ovsdb_rs::client::{Client, Config, TableRequest};
use ovsdb_rs::{Row, Uuid};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running northd; it ends with its owner.
struct Northd(Child);

impl Drop for Northd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path) -> Northd {
    let path = |name: &str| dir.join(name).display().to_string();
    let child = Command::new(env!("CARGO_BIN_EXE_northd"))
        .arg(format!("--embed={}", dir.display()))
        .arg(format!("--unixctl={}", path("ctl")))
        .arg(format!("--log-file={}", path("log")))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Northd(child)
}

/// One that has made its databases, and a client of the northbound one.
async fn start_served(dir: &Path, northbound: &[&str]) -> (Northd, Client) {
    let northd = start(dir);
    until("sockets", || dir.join("ovnsb_db.sock").exists().then_some(())).await;
    (northd, client(dir, "ovnnb_db.sock", "OVN_Northbound", northbound).await)
}

/// A client that follows the logical flows.
async fn southbound(dir: &Path) -> Client {
    client(dir, "ovnsb_db.sock", "OVN_Southbound", &["Logical_Flow"]).await
}

/// Has a client carry out operations, none of which may fail.
async fn carry_out(client: &Client, operations: Vec<Value>) {
    for result in client.transact(operations).await.unwrap() {
        assert!(result.get("error").is_none(), "{result}");
    }
}

/// What a control command answers.
fn ask(dir: &Path, command: &str, arguments: &[&str]) -> Result<String, String> {
    let mut stream = UnixStream::connect(dir.join("ctl")).map_err(|e| e.to_string())?;
    let request = json!({"id": 0, "method": command, "params": arguments});
    stream.write_all(request.to_string().as_bytes()).map_err(|e| e.to_string())?;
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let n = stream.read(&mut piece).map_err(|e| e.to_string())?;
        text.extend_from_slice(&piece[..n]);
        if let Ok(reply) = serde_json::from_slice::<Value>(&text) {
            return match reply["result"].as_str() {
                Some(result) => Ok(result.to_string()),
                None => Err(reply["error"].to_string()),
            };
        }
        if n == 0 {
            return Err("no reply".into());
        }
    }
}

async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn client(dir: &Path, socket: &str, database: &str, tables: &[&str]) -> Client {
    let mut config = Config::new(&format!("unix:{}", dir.join(socket).display()), database).unwrap();
    for table in tables {
        config = config.table(table, TableRequest::all());
    }
    let (client, _) = Client::start(config);
    tokio::time::timeout(Duration::from_secs(30), client.connected()).await.unwrap();
    client
}

/// What the flows say: row → match and actions.
fn flows(sb: &Client) -> BTreeMap<Uuid, String> {
    let schema = sb.schema().unwrap();
    let table = schema.table("Logical_Flow").unwrap();
    let text = |row: &Row| {
        let cell = |c: &str| row.get(table, c).map(|d| d.to_json().to_string()).unwrap_or_default();
        ["pipeline", "table_id", "priority", "match", "actions", "external_ids"].map(cell).join(" ")
    };
    sb.replica(|r| r.rows("Logical_Flow").map(|(u, row)| (*u, text(row))).collect())
}

async fn make(nb: &Client, switch: &str) {
    let operations = [
        json!({"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "p",
            "row": {"name": format!("{switch}-p"), "addresses": "02:00:00:00:00:01 10.0.0.1"}}),
        json!({"op": "insert", "table": "Logical_Switch", "row": {"name": switch, "ports": ["named-uuid", "p"]}}),
    ];
    carry_out(nb, operations.to_vec()).await;
}

fn has_port(sb: &Client, name: &str) -> Option<()> {
    flows(sb).values().any(|f| f.contains("eth.dst == 02:00:00:00:00:01") && f.contains(name)).then_some(())
}

/// A client's count that comes in while something else is being written is passed on all the same.
#[tokio::test(flavor = "multi_thread")]
async fn no_count_is_overlooked() {
    let dir = tempfile::tempdir().unwrap();
    let (_northd, nb) = start_served(dir.path(), &["NB_Global"]).await;
    make(&nb, "one").await;
    let count = json!({"op": "mutate", "table": "NB_Global", "where": [], "mutations": [["nb_cfg", "+=", 1]]});
    let port = json!([["name", "==", "one-p"]]);
    for n in 0..150_u64 {
        // The second comes at any moment of what the first one leads to.
        let address = format!("02:00:00:00:00:01 10.0.0.{}", n % 200 + 1);
        let change =
            json!({"op": "update", "table": "Logical_Switch_Port", "where": port, "row": {"addresses": address}});
        nb.transact(vec![change]).await.unwrap();
        tokio::time::sleep(Duration::from_micros(n * 20)).await;
        nb.transact(vec![count.clone()]).await.unwrap();
        let reached = || {
            nb.replica(|r| {
                let table = r.schema()?.table("NB_Global").ok()?;
                let number = |row: &Row, column| row.get(table, column).map(|d| d.to_json());
                r.rows("NB_Global").all(|(_, row)| number(row, "nb_cfg") == number(row, "sb_cfg")).then_some(())
            })
        };
        until("sb_cfg", reached).await;
    }
}

/// The first client of all finds both databases: who does not expect one to come later would be disconnected.
#[test]
fn no_database_comes_after_the_first_client() {
    let dir = tempfile::tempdir().unwrap();
    let _northd = start(dir.path());
    let end = Instant::now() + Duration::from_secs(30);
    let mut stream = loop {
        match UnixStream::connect(dir.path().join("ovnnb_db.sock")) {
            Ok(stream) => break stream,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    stream.write_all(br#"{"id":0,"method":"list_dbs","params":[]}"#).unwrap();
    let mut reply = serde_json::Deserializer::from_reader(stream).into_iter::<Value>();
    let reply = reply.next().unwrap().unwrap();
    assert_eq!(reply["result"], json!(["OVN_Northbound", "OVN_Southbound", "_Server"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn flows_are_kept_as_they_should_be() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (northd, nb) = start_served(dir, &["Logical_Switch"]).await;
    let sb = southbound(dir).await;
    make(&nb, "one").await;
    until("flows", || has_port(&sb, "one-p")).await;
    let before = flows(&sb);
    let texts = |flows: &BTreeMap<Uuid, String>| {
        let mut all: Vec<String> = flows.values().cloned().collect();
        all.sort();
        all
    };
    for what in ["changed", "deleted", "foreign"] {
        let (victim, _) = flows(&sb).into_iter().find(|(_, f)| f.contains("one-p")).unwrap();
        let this = json!([["_uuid", "==", ["uuid", victim.to_string()]]]);
        let operation = match what {
            "changed" => {
                json!({"op": "update", "table": "Logical_Flow", "where": this, "row": {"match": "ip4 && tcp"}})
            }
            "deleted" => json!({"op": "delete", "table": "Logical_Flow", "where": this}),
            _ => json!({"op": "insert", "table": "Logical_Flow",
                "row": {"pipeline": "ingress", "table_id": 3, "priority": 5, "match": "udp", "actions": "drop;"}}),
        };
        let results = sb.transact(vec![operation]).await.unwrap();
        assert!(results[0].get("error").is_none() && results[0]["count"] != 0, "{what}: {}", results[0]);
        until(what, || (texts(&flows(&sb)) == texts(&before)).then_some(())).await;
        assert!(texts(&flows(&sb)) == texts(&before), "{what}");
    }

    let before = flows(&sb);
    let recomputes = ask(dir, "inc-engine/show-stats", &["northd", "recompute"]).unwrap();
    ask(dir, "inc-engine/recompute", &[]).unwrap();
    until("recompute", || {
        (ask(dir, "inc-engine/show-stats", &["northd", "recompute"]).unwrap() != recomputes).then_some(())
    })
    .await;
    make(&nb, "two").await;
    until("a second switch", || has_port(&sb, "two-p")).await;
    assert!(before.keys().all(|u| flows(&sb).contains_key(u)), "a recompute keeps rows");

    assert_eq!(ask(dir, "parallel-build/get-n-threads", &[]).unwrap(), "1\n");
    for wrong in ["0", "257", "many"] {
        let error = ask(dir, "parallel-build/set-n-threads", &[wrong]).unwrap_err();
        assert!(error.contains("invalid n_threads"), "{error}");
    }
    ask(dir, "parallel-build/set-n-threads", &["3"]).unwrap();
    assert_eq!(ask(dir, "parallel-build/get-n-threads", &[]).unwrap(), "3\n");

    ask(dir, "pause", &[]).unwrap();
    until("paused", || (ask(dir, "status", &[]).as_deref() == Ok("Status: paused\n")).then_some(())).await;
    let before = flows(&sb);
    make(&nb, "three").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(flows(&sb) == before, "nothing is written while paused");
    ask(dir, "resume", &[]).unwrap();
    until("a third switch", || has_port(&sb, "three-p")).await;
    until("active", || (ask(dir, "status", &[]).as_deref() == Ok("Status: active\n")).then_some(())).await;

    let before = flows(&sb);
    drop(northd);
    let _again = start(dir);
    until("again", || ask(dir, "status", &[]).is_ok_and(|s| s == "Status: active\n").then_some(())).await;
    tokio::time::timeout(Duration::from_secs(30), sb.connected()).await.unwrap();
    make(&nb_again(dir).await, "four").await;
    until("a fourth switch", || has_port(&sb, "four-p")).await;
    assert!(before.keys().all(|u| flows(&sb).contains_key(u)), "a restart keeps rows");
}

async fn nb_again(dir: &Path) -> Client {
    client(dir, "ovnnb_db.sock", "OVN_Northbound", &["Logical_Switch"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_finds_the_flows_of_dynamic_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (_northd, nb) = start_served(dir, &["NB_Global"]).await;
    let sb = southbound(dir).await;
    until("NB_Global", || nb.replica(|r| r.rows("NB_Global").next().map(|_| ()))).await;
    for n in 1..=20 {
        let operations = vec![
            json!({"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "p",
                "row": {"name": format!("p{n}"), "addresses": "dynamic"}}),
            json!({"op": "insert", "table": "Logical_Switch", "row": {"name": format!("s{n}"),
                "ports": ["named-uuid", "p"], "other_config": ["map", [["subnet", format!("10.0.{n}.0/24")]]]}}),
            json!({"op": "mutate", "table": "NB_Global", "where": [], "mutations": [["nb_cfg", "+=", 1]]}),
        ];
        carry_out(&nb, operations).await;
        let sb_cfg = || {
            let schema = nb.schema()?;
            let table = schema.table("NB_Global").ok()?;
            nb.replica(|r| r.rows("NB_Global").next()?.1.get(table, "sb_cfg")?.scalar()?.as_integer())
        };
        until("sb_cfg", || (sb_cfg() == Some(n)).then_some(())).await;
        // What the southbound server has by now, whether it has been told of here or not.
        let select = json!({"op": "select", "table": "Logical_Flow", "columns": ["match"],
            "where": [["match", "==", format!("arp.tpa == 10.0.{n}.2 && arp.op == 1 && eth.dst == ff:ff:ff:ff:ff:ff")]]});
        let result = sb.transact(vec![select]).await.unwrap();
        assert_eq!(result[0]["rows"].as_array().map(Vec::len), Some(1), "port {n}: {}", result[0]);
    }
}

/// One of the figures of `memory/show`.
fn figure(dir: &Path, name: &str) -> u64 {
    let shown = ask(dir, "memory/show", &[]).unwrap();
    let found = shown.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix(':')?.parse().ok());
    found.unwrap_or_else(|| panic!("{name} in {shown}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn room_is_given_back_when_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (_northd, nb) = start_served(dir, &["NB_Global"]).await;
    until("NB_Global", || nb.replica(|r| r.rows("NB_Global").next().map(|_| ()))).await;
    // The least that there is, 1,000 ms, as with ovn-northd.
    let pairs = json!(["map", [["northd_trim_timeout", "1"]]]);
    carry_out(
        &nb,
        vec![json!({"op": "mutate", "table": "NB_Global", "where": [], "mutations": [["options", "insert", pairs]]})],
    )
    .await;
    let many = (0..200).flat_map(|n| {
        let (port, switch) = (format!("p{n}"), format!("s{n}"));
        let row = json!({"name": port, "addresses": format!("02:00:00:00:00:{n:02x} 10.0.0.{n}")});
        [
            json!({"op": "insert", "table": "Logical_Switch_Port", "uuid-name": port, "row": row}),
            json!({"op": "insert", "table": "Logical_Switch", "row": {"name": switch, "ports": ["named-uuid", port]}}),
        ]
    });
    carry_out(&nb, many.collect()).await;
    until("flows", || (figure(dir, "northd-outputs") > 2000).then_some(())).await;
    assert!(figure(dir, "idl-cells-OVN_Northbound") > 400);
    until("rows", || (figure(dir, "idl-cells-OVN_Southbound") > 400).then_some(())).await;
    let room = figure(dir, "northd-room-for-outputs");
    let counter = |name: &str| ask(dir, "coverage/read-counter", &[name]).unwrap().trim().parse::<u64>().unwrap();
    let before = counter("northd_trim");
    carry_out(&nb, vec![json!({"op": "delete", "table": "Logical_Switch", "where": []})]).await;
    until("no flows", || (figure(dir, "northd-outputs") < 1000).then_some(())).await;
    // What is left may be anywhere in the tables, so how much can be given back differs (incremental's test has that).
    until("another trim", || (counter("northd_trim") > before).then_some(())).await;
    assert!(figure(dir, "northd-room-for-outputs") <= room);
    assert!(counter("northd_trim") > 0 && counter("txn_success") > 0 && counter("northd_operations") > 400);
    assert!(counter("northd_units_run") > 1000);
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    assert!(log.contains("|memory_trim|INFO|Detected inactivity (last active 1"), "{log}");
}

/// Nodes of the engine are measured where that is asked for, one by one or all.
#[tokio::test(flavor = "multi_thread")]
async fn stopwatches_of_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (_northd, nb) = start_served(dir, &["NB_Global"]).await;
    let sb = southbound(dir).await;
    make(&nb, "one").await;
    until("flows", || has_port(&sb, "one-p")).await;
    let total = |node: &str| {
        let shown = ask(dir, "stopwatch/show", &[node]).unwrap();
        shown.lines().find_map(|l| l.trim().strip_prefix("Total samples: ")?.parse::<u64>().ok()).unwrap()
    };
    assert_eq!((total("northd"), total("lflow_switch")), (0, 0), "nothing is measured at first");
    assert!(total("ovnnb_db_run") > 0, "compiles are");
    ask(dir, "inc-engine/enable-stopwatch", &["northd"]).unwrap();
    ask(dir, "inc-engine/recompute", &[]).unwrap();
    until("a sample of the engine", || (total("northd") > 0).then_some(())).await;
    assert_eq!(total("lflow_switch"), 0);
    ask(dir, "inc-engine/enable-stopwatch", &[]).unwrap();
    ask(dir, "inc-engine/disable-stopwatch", &["northd"]).unwrap();
    ask(dir, "stopwatch/reset", &[]).unwrap();
    make(&nb, "two").await;
    until("a sample of flows", || (total("lflow_switch") > 0).then_some(())).await;
    assert_eq!(total("northd"), 0);
    // No router, so that a compile of what changed does not look at address translation; a full one does.
    assert_eq!(total("lr_nat"), 0);
    ask(dir, "inc-engine/recompute", &[]).unwrap();
    until("a sample of translation", || (total("lr_nat") > 0).then_some(())).await;
    let nodes = ask(dir, "inc-engine/list-stopwatches", &[]).unwrap();
    assert!(nodes.lines().any(|n| n == "lr_nat") && nodes.starts_with("northd\n"), "{nodes}");
    assert!(ask(dir, "inc-engine/enable-stopwatch", &["nowhere"]).unwrap_err().contains("node not found"));
}

/// A prefix of zeros, or none, is made up: once, and the rest goes on. A longer one is kept with its three octets.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_is_none_is_made_up() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (_northd, nb) = start_served(dir, &["NB_Global"]).await;
    let sb = southbound(dir).await;
    let prefix = || {
        let schema = nb.schema()?;
        let table = schema.table("NB_Global").ok()?;
        let options =
            nb.replica(|r| Some(r.rows("NB_Global").next()?.1.get(table, "options")?.to_json().to_string()))?;
        Some(options.split_once("[\"mac_prefix\",\"")?.1.split_once('"')?.0.to_string())
    };
    let mut before = until("a prefix", prefix).await;
    for (n, (given, kept)) in
        [("00:00:00:00:00:00", None), ("0a:bc:de:00:00:01", Some("0a:bc:de")), ("x", None)].into_iter().enumerate()
    {
        let pairs = json!(["map", [["mac_prefix", given]]]);
        let keys = json!(["set", ["mac_prefix"]]);
        let mutations = json!([["options", "delete", keys], ["options", "insert", pairs]]);
        let write = json!({"op": "mutate", "table": "NB_Global", "where": [], "mutations": mutations});
        assert!(nb.transact(vec![write]).await.unwrap()[0].get("error").is_none());
        let now = until(given, || prefix().filter(|p| p.len() == 8 && *p != before)).await;
        assert_ne!(now, "00:00:00");
        assert!(kept.is_none_or(|k| k == now), "{given}: {now}");
        before = now;
        make(&nb, &format!("after{n}")).await;
        until("flows of what came after it", || has_port(&sb, &format!("after{n}-p"))).await;
    }
}
