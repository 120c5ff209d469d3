//! A daemon that cannot do its work waits: below 1 % of a processor.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use needs::idle::{USELESS, peer_without_tls, useless_files};
use std::path::Path;

fn waits(dir: &Path, options: &[&str]) {
    needs::idle::waits(env!("CARGO_BIN_EXE_ovsdb"), dir, options);
}

#[test]
fn with_peers_out_of_reach() {
    let dir = tempfile::tempdir().unwrap();
    let remotes = ["--remote=tcp:127.0.0.1:1", "--remote=ssl:127.0.0.1:1", "--remote=unix:nowhere.sock"];
    waits(dir.path(), &[&remotes[..], &["relay:D:tcp:127.0.0.1:1"]].concat());
}

/// A relay and a backup whose sources want TLS: without a certificate, with files that hold none, with a peer that ends every handshake.
#[test]
fn as_a_client_without_usable_certificates() {
    let source = peer_without_tls();
    let schema = ovsdb_rs::DatabaseSchema::from_json(&serde_json::json!({"name": "D", "version": "1.0.0",
        "tables": {"T": {"columns": {"c": {"type": "string"}}}}}));
    let record = ovsdb_rs::file::write_record(&schema.unwrap().to_json());
    let (relay, from) = (format!("relay:D:{source}"), format!("--sync-from={source}"));
    for options in [&[&*relay][..], &[&from, "d.db"]] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("d.db"), &record).unwrap();
        waits(dir.path(), options);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("d.db"), &record).unwrap();
        useless_files(dir.path());
        waits(dir.path(), &[options, &USELESS].concat());
    }
}
