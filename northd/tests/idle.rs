//! A daemon that cannot do its work waits: below 1 % of a processor.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use needs::idle::{USELESS, peer_without_tls, useless_files};
use std::path::Path;

fn waits(dir: &Path, options: &[&str]) {
    needs::idle::waits(env!("CARGO_BIN_EXE_northd"), dir, options);
}

#[test]
fn without_databases() {
    let dir = tempfile::tempdir().unwrap();
    waits(dir.path(), &["--ovnnb-db=unix:nowhere.sock", "--ovnsb-db=unix:nowhere.sock"]);
}

#[test]
fn with_peers_out_of_reach() {
    let dir = tempfile::tempdir().unwrap();
    waits(dir.path(), &["--ovnnb-db=tcp:127.0.0.1:1", "--ovnsb-db=tcp:127.0.0.1:1"]);
}

/// TLS without a certificate, with files that hold none, and with a peer that ends every handshake.
#[test]
fn without_usable_certificates() {
    let peer = peer_without_tls();
    let remotes = [format!("--ovnnb-db={peer}"), format!("--ovnsb-db={peer}")];
    let remotes = [&*remotes[0], &*remotes[1]];
    let dir = tempfile::tempdir().unwrap();
    waits(dir.path(), &remotes);
    let dir = tempfile::tempdir().unwrap();
    useless_files(dir.path());
    waits(dir.path(), &[&remotes[..], &USELESS].concat());
}

/// A southbound server that refuses what northd writes.
#[tokio::test(flavor = "multi_thread")]
async fn with_transactions_that_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (nb, mut sb) = (ovn_schema::nb::Database::schema(), ovn_schema::sb::Database::schema());
    sb.tables.get_mut("Logical_Flow").unwrap().max_rows = Some(3);
    let server = ovsdb_rs::Server::new();
    for (name, schema) in [("nb", nb), ("sb", sb)] {
        server.add_file(&dir.path().join(format!("{name}.db")), Some(&schema)).await.unwrap();
    }
    server.listen(&format!("punix:{}", dir.path().join("db.sock").display())).await.unwrap();
    let switch = serde_json::json!({"op": "insert", "table": "Logical_Switch", "row": {"name": "s"}});
    server.transact(ovn_schema::nb::Database::NAME, vec![switch]).await.unwrap();
    let path = dir.path().to_path_buf();
    let wait = move || waits(&path, &["--ovnnb-db=unix:db.sock", "--ovnsb-db=unix:db.sock"]);
    tokio::task::spawn_blocking(wait).await.unwrap();
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.contains("trying again"), "nothing was refused: {log}");
}
