//! A daemon that cannot do its work waits: below 1 % of a processor.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use needs::idle::{USELESS, peer_without_tls, useless_files};
use std::path::Path;

fn waits(dir: &Path, options: &[&str]) {
    needs::idle::waits(env!("CARGO_BIN_EXE_vtep-controller"), dir, options);
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
    let peer = peer_without_tls();
    let remotes = [format!("--vtep-db={peer}"), format!("--ovnsb-db={peer}")];
    let remotes = [&*remotes[0], &*remotes[1]];
    let dir = tempfile::tempdir().unwrap();
    waits(dir.path(), &remotes);
    let dir = tempfile::tempdir().unwrap();
    useless_files(dir.path());
    waits(dir.path(), &[&remotes[..], &USELESS].concat());
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
