//! Our client on our server and on Debian's: what goes over the wire, conditions, TLS.

use crate::access::{free_port, pki, tls_options};
use crate::servers::{DEBIAN, Peer, debian};
use ovsdb_rs::client::{Client, Config, Event, TableRequest, Update};
use ovsdb_rs::tls::{Tls, TlsFiles};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

const OURS: &str = env!("CARGO_BIN_EXE_ovsdb");
const SCHEMA: &str = r#"{"name":"D","version":"1.0.0","tables":{
    "T":{"isRoot":true,"columns":{"n":{"type":"integer"},"text":{"type":"string"}}}}}"#;
const ROWS: i64 = 3000;

fn server(program: &str, root: &Path, options: &[String]) -> Peer {
    let dir = root.join(Path::new(program).file_name().unwrap());
    std::fs::create_dir_all(&dir).unwrap();
    let (schema, db) = (dir.join("d.ovsschema"), dir.join("d.db"));
    std::fs::write(&schema, SCHEMA).unwrap();
    assert!(Command::new("ovsdb-tool").arg("create").arg(&db).arg(&schema).status().unwrap().success());
    let mut arguments = options.to_vec();
    arguments.push(db.display().to_string());
    Peer::start(program, &dir, &arguments)
}

fn unix(peer: &Peer) -> String {
    format!("unix:{}", peer.dir.join("db.sock").display())
}

async fn update(events: &mut UnboundedReceiver<Event>) -> Update {
    loop {
        let event = tokio::time::timeout(Duration::from_secs(20), events.recv()).await.unwrap().unwrap();
        if let Event::Update(u) = event {
            return u;
        }
    }
}

/// Updates until one changes something.
async fn change(events: &mut UnboundedReceiver<Event>) -> Update {
    loop {
        let u = update(events).await;
        if !u.changes.is_empty() {
            return u;
        }
    }
}

fn insert(n: i64) -> Value {
    json!({"op": "insert", "table": "T", "row": {"n": n, "text": "some text that makes the row longer"}})
}

fn rows(client: &Client) -> usize {
    client.replica(|r| r.rows("T").count())
}

/// Counts the bytes that a server sends; breaks connections when told to.
async fn proxy(listener: UnixListener, server: String, count: Arc<AtomicU64>, mut cut: watch::Receiver<u32>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let Ok(server) = UnixStream::connect(server.trim_start_matches("unix:")).await else { continue };
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let count = count.clone();
        let requests = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
        let answers = tokio::spawn(async move {
            let mut chunk = vec![0; 65536];
            while let Ok(n) = tokio::io::AsyncReadExt::read(&mut from_server, &mut chunk).await {
                count.fetch_add(n as u64, Ordering::AcqRel);
                if n == 0 || tokio::io::AsyncWriteExt::write_all(&mut to_client, &chunk[..n]).await.is_err() {
                    break;
                }
            }
        });
        if cut.changed().await.is_err() {
            return;
        }
        requests.abort();
        answers.abort();
    }
}

/// A cluster of one, as Debian's server remembers transactions of clusters only.
fn clustered(root: &Path) -> Peer {
    let (schema, db) = (root.join("d.ovsschema"), root.join("d.db"));
    std::fs::write(&schema, SCHEMA).unwrap();
    let address = format!("unix:{}", root.join("raft").display());
    let made = Command::new("ovsdb-tool").arg("create-cluster").args([&db, &schema]).arg(&address).status().unwrap();
    assert!(made.success());
    let peer = Peer::start(DEBIAN, root, &[db.display().to_string()]);
    peer.output("ovsdb-client -t 20 wait $DB D connected");
    peer
}

async fn resumes(program: &str) {
    let root = tempfile::tempdir().unwrap();
    let peer = if program == DEBIAN { clustered(root.path()) } else { server(program, root.path(), &[]) };
    let (direct, _events) = Client::start(Config::new(&unix(&peer), "D").unwrap());
    direct.connected().await;
    direct.transact((0..ROWS).map(insert).collect()).await.unwrap();
    // Debian's server forgets a transaction as large as the database with the next one.
    for _ in 0..3 {
        let same = json!({"op": "mutate", "table": "T", "where": [["n", "==", 5]], "mutations": [["n", "*=", -1]]});
        direct.transact(vec![same.clone()]).await.unwrap();
        direct
            .transact(vec![
                json!({"op": "mutate", "table": "T", "where": [["n", "==", -5]], "mutations": [["n", "*=", -1]]}),
            ])
            .await
            .unwrap();
    }

    let path = root.path().join("proxy.sock");
    let (count, (cut, cuts)) = (Arc::new(AtomicU64::new(0)), watch::channel(0));
    tokio::spawn(proxy(UnixListener::bind(&path).unwrap(), unix(&peer), count.clone(), cuts));
    let config = Config::new(&format!("unix:{}", path.display()), "D").unwrap();
    let (client, mut events) = Client::start(config.table("T", TableRequest::all()));
    assert!(update(&mut events).await.reset);
    assert_eq!(rows(&client), ROWS as usize);
    let download = count.swap(0, Ordering::AcqRel);

    for round in 0..3 {
        cut.send(round).unwrap();
        let delete = json!({"op": "delete", "table": "T", "where": [["n", "==", round]]});
        direct.transact(vec![delete, insert(ROWS + i64::from(round))]).await.unwrap();
        let u = change(&mut events).await;
        assert!(!u.reset && u.changes.len() <= 2, "{} changes", u.changes.len());
        while rows(&client) != ROWS as usize || client.replica(|r| !has(r, ROWS + i64::from(round))) {
            change(&mut events).await;
        }
        let again = count.swap(0, Ordering::AcqRel);
        assert!(again < download / 20, "{program}: {again} bytes where all are {download}");
    }
}

fn has(r: &ovsdb_rs::client::Replica, n: i64) -> bool {
    let schema = r.schema().unwrap();
    let value = |row: &ovsdb_rs::Row| row.get(&schema.tables["T"], "n").and_then(|d| d.scalar()?.as_integer());
    r.rows("T").any(|(_, row)| value(row) == Some(n))
}

#[tokio::test(flavor = "multi_thread")]
async fn resumes_without_a_new_download() {
    resumes(OURS).await;
    if debian() {
        resumes(DEBIAN).await;
    }
}

/// Conditions change while rows change and connections break; in the end the replica is right.
async fn conditions(program: &str) {
    let root = tempfile::tempdir().unwrap();
    let peer = server(program, root.path(), &[]);
    let (direct, _events) = Client::start(Config::new(&unix(&peer), "D").unwrap());
    direct.connected().await;
    direct.transact((0..100).map(insert).collect()).await.unwrap();
    let none = TableRequest::all().when(Vec::new());
    let (client, mut events) = Client::start(Config::new(&unix(&peer), "D").unwrap().table("T", none));
    assert!(update(&mut events).await.changes.is_empty());
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let mut wanted = Vec::new();
    for round in 0..40i64 {
        let bound = (round * 37) % 100;
        wanted = vec![json!(["n", "<", bound]), json!(["n", "==", 99])];
        client.set_conditions("T", Some(wanted.clone()));
        if round % 5 == 0 {
            client.reconnect();
        }
        let shift = json!({"op": "mutate", "table": "T", "where": [["n", "<", 50]], "mutations": [["n", "+=", 1]]});
        direct.transact(vec![shift, insert(0)]).await.unwrap();
    }
    let bound = wanted[0][2].as_i64().unwrap();
    let select = json!({"op": "select", "table": "T", "where": [], "columns": ["_uuid", "n"]});
    let result = direct.transact(vec![select]).await.unwrap();
    let n = |r: &&Value| r["n"].as_i64().is_some_and(|n| n < bound || n == 99);
    let expected = result[0]["rows"].as_array().unwrap().iter().filter(n).count();
    let mut tries = 0;
    while rows(&client) != expected {
        tries += 1;
        assert!(tries < 400, "{program}: {} rows where {expected} are wanted", rows(&client));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client.set_conditions("T", None);
    while rows(&client) != 140 {
        tries += 1;
        assert!(tries < 800, "{program}: {} rows where all are wanted", rows(&client));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_change_at_run_time() {
    conditions(OURS).await;
    if debian() {
        conditions(DEBIAN).await;
    }
}

async fn over_tls(program: &str) {
    let root = tempfile::tempdir().unwrap();
    let pki = pki(root.path(), &["server", "client"]);
    let port = free_port();
    let mut options = tls_options(&pki, "server");
    options.push(format!("--remote=pssl:{port}:127.0.0.1"));
    options.push(format!("--peer-ca-cert={}", pki.join("cacert.pem").display()));
    let mut peer = server(program, root.path(), &options);
    let files = |ca: &str, bootstrap| TlsFiles {
        private_key: pki.join("client-privkey.pem"),
        certificate: pki.join("client-cert.pem"),
        ca_cert: Some(pki.join(ca)),
        bootstrap,
    };
    let connect = |tls: Tls| {
        let config = Config::new(&format!("ssl:127.0.0.1:{port}"), "D").unwrap();
        Client::start(config.table("T", TableRequest::all()).tls(Some(tls)))
    };
    // The CA is taken from the first server, then everything is checked.
    let (client, mut events) = connect(Tls::new(files("bootstrapped.pem", true)).unwrap());
    update(&mut events).await;
    assert!(std::fs::read_to_string(pki.join("bootstrapped.pem")).unwrap().contains("BEGIN CERTIFICATE"));
    client.transact(vec![insert(1)]).await.unwrap();
    assert_eq!(change(&mut events).await.changes.len(), 1);
    peer.kill();
    peer.restart();
    client.connected().await;
    while client.transact(vec![insert(2)]).await.is_err() {
        client.connected().await;
    }
    assert_eq!(change(&mut events).await.changes.len(), 1);

    // A server of another CA is refused.
    let other = tempfile::tempdir().unwrap();
    let other_pki = crate::access::pki(other.path(), &["x"]);
    std::fs::copy(other_pki.join("cacert.pem"), pki.join("other.pem")).unwrap();
    let (client, _events) = connect(Tls::new(files("other.pem", false)).unwrap());
    assert!(tokio::time::timeout(Duration::from_secs(1), client.connected()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_bootstraps_and_checks() {
    over_tls(OURS).await;
    if debian() {
        over_tls(DEBIAN).await;
    }
}
