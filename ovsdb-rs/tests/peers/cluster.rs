//! Our client on a cluster of three of Debian's servers, whose leader is killed and whose members are restarted
//! again and again while transactions run. Four rounds; as many as `OVSDB_ROUNDS` says.

use crate::servers::{DEBIAN, Peer, debian};
use ovsdb_rs::client::{Client, ClientError, Config, Event, TableRequest};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SCHEMA: &str = r#"{"name":"D","version":"1.0.0","tables":{
    "Op":{"isRoot":true,"columns":{"client":{"type":"integer"},"n":{"type":"integer"}}},
    "Counter":{"isRoot":true,"indexes":[["client"]],"columns":{"client":{"type":"integer"},"n":{"type":"integer"}}}}}"#;
const WRITERS: u64 = 4;

fn tool(arguments: &[&str]) {
    assert!(Command::new("ovsdb-tool").args(arguments).status().unwrap().success(), "{arguments:?}");
}

fn cluster(root: &Path) -> Vec<Peer> {
    let schema = root.join("d.ovsschema");
    std::fs::write(&schema, SCHEMA).unwrap();
    let (schema, mut members) = (schema.display().to_string(), Vec::new());
    for i in 0..3 {
        let dir = root.join(i.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        let db = dir.join("d.db").display().to_string();
        let address = |i: i32| format!("unix:{}", root.join(format!("{i}.raft")).display());
        if i == 0 {
            tool(&["create-cluster", &db, &schema, &address(0)]);
        } else {
            tool(&["join-cluster", &db, "D", &address(i), &address(0)]);
        }
        let peer = Peer::start(DEBIAN, &dir, &[db]);
        peer.output("ovsdb-client --no-leader-only -t 20 wait $DB D connected");
        members.push(peer);
    }
    members
}

fn leader(members: &[Peer]) -> usize {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let leads = |p: &Peer| {
            let o = p.run("ovs-appctl -t $CTL cluster/status D");
            String::from_utf8_lossy(&o.stdout).contains("Role: leader")
        };
        if let Some(i) = members.iter().position(leads) {
            return i;
        }
        assert!(Instant::now() < until, "no leader");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Writes until told to stop; each transaction has a name of its own, so that it is done once however often it is sent.
async fn write(client: Client, me: u64, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) -> u64 {
    let mut n = 0;
    while !stop.load(Ordering::Acquire) {
        n += 1;
        let name = ovsdb_rs::Uuid::from_u128(u128::from(me) << 64 | u128::from(n)).to_string();
        loop {
            let operations = vec![
                json!({"op": "insert", "table": "Op", "uuid": name, "row": {"client": me, "n": n}}),
                json!({"op": "mutate", "table": "Counter", "where": [["client", "==", me]],
                    "mutations": [["n", "+=", 1]]}),
            ];
            client.connected().await;
            match client.transact(operations).await {
                Ok(results) => match results.iter().find_map(|r| r.get("error")?.as_str()) {
                    None => break,
                    // Sent before, when it was not known what came of it.
                    Some("duplicate uuid") => break,
                    Some(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                },
                Err(ClientError::NotConnected | ClientError::Disconnected | ClientError::Refused(_)) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(e) => panic!("{e}"),
            }
        }
        done.fetch_add(1, Ordering::AcqRel);
    }
    n
}

fn counts(client: &Client) -> (BTreeMap<i64, i64>, BTreeMap<i64, i64>) {
    client.replica(|r| {
        let schema = r.schema().cloned().unwrap();
        let column = |row: &ovsdb_rs::Row, table: &str, c: &str| {
            row.get(&schema.tables[table], c).and_then(|d| d.scalar()?.as_integer()).unwrap()
        };
        let mut ops = BTreeMap::new();
        for (_, row) in r.rows("Op") {
            *ops.entry(column(row, "Op", "client")).or_insert(0) += 1;
        }
        let counters =
            r.rows("Counter").map(|(_, row)| (column(row, "Counter", "client"), column(row, "Counter", "n")));
        (ops, counters.collect())
    })
}

#[test]
fn no_transaction_is_lost_or_done_twice() {
    if !debian() {
        return;
    }
    let rounds: usize = std::env::var("OVSDB_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let root = tempfile::tempdir().unwrap();
    let mut members = cluster(root.path());
    let remotes: Vec<String> = members.iter().map(|m| format!("unix:{}", m.dir.join("db.sock").display())).collect();
    let config = || {
        let c = Config::new(&remotes.join(","), "D").unwrap();
        c.table("Op", TableRequest::all()).table("Counter", TableRequest::all())
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let (first, _events) = Client::start(config());
    runtime.block_on(async {
        first.connected().await;
        let row = |i: u64| json!({"op": "insert", "table": "Counter", "row": {"client": i, "n": 0}});
        first.transact((0..WRITERS).map(row).collect()).await.unwrap();
    });
    // One that takes any member, and counts how often it had to start from nothing.
    let (watcher, mut events) = Client::start(config().leader_only(false));
    let resets = Arc::new(AtomicU64::new(0));
    let seen = resets.clone();
    runtime.spawn(async move {
        while let Some(e) = events.recv().await {
            if matches!(e, Event::Update(u) if u.reset) {
                seen.fetch_add(1, Ordering::AcqRel);
            }
        }
    });
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let start = |i| {
        let (client, mut events) = Client::start(config());
        runtime.spawn(async move { while events.recv().await.is_some() {} });
        runtime.spawn(write(client, i, stop.clone(), done.clone()))
    };
    let writers: Vec<_> = (0..WRITERS).map(start).collect();

    for round in 0..rounds {
        let before = done.load(Ordering::Acquire);
        let i = if round % 3 == 2 { (leader(&members) + 1) % 3 } else { leader(&members) };
        members[i].kill();
        std::thread::sleep(Duration::from_millis(100 * (round as u64 % 7)));
        members[i].restart();
        let until = Instant::now() + Duration::from_secs(60);
        while done.load(Ordering::Acquire) < before + 20 {
            assert!(Instant::now() < until, "round {round}: no progress");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    stop.store(true, Ordering::Release);
    let wanted: BTreeMap<i64, i64> = runtime.block_on(async {
        let mut wanted = BTreeMap::new();
        for (i, w) in writers.into_iter().enumerate() {
            wanted.insert(i as i64, w.await.unwrap() as i64);
        }
        wanted
    });
    for client in [&first, &watcher] {
        let until = Instant::now() + Duration::from_secs(20);
        while counts(client) != (wanted.clone(), wanted.clone()) {
            assert!(Instant::now() < until, "{:?} where {wanted:?} is wanted", counts(client));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(resets.load(Ordering::Acquire), 1, "the replica is kept when the client moves to another member");
    println!("{rounds} kills, {} transactions", wanted.values().sum::<i64>());
}
