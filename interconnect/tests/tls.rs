//! All four databases over TLS.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use ovsdb_rs::tls::{Limits, Tls, TlsFiles};

/// A zone whose databases are reached over TLS and one that is beside its own exchange what they have; who has no
/// certificate, or may not speak the server's protocol, does not get in.
#[tokio::test(flavor = "multi_thread")]
async fn zones_over_tls() {
    let w = World::new(2).await;
    if !needs::certificates(w.dir.path()) {
        return;
    }
    let file = |name: &str| w.dir.path().join(name);
    let files = TlsFiles {
        private_key: file("test.key"),
        certificate: file("test.pem"),
        ca_cert: Some(file("ca.pem")),
        bootstrap: false,
    };
    let tls = Tls::new(files).unwrap().limited(Limits::parse(Some("TLSv1.3"), None, None).unwrap());
    let mut remotes = Vec::new();
    for key in ["nb1", "sb1", "icnb", "icsb"] {
        remotes.push(w.listen_tls(key, &tls).await);
    }
    let remotes: [String; 4] = remotes.try_into().unwrap();
    let option = |o: &str, name: &str| format!("--{o}={}", file(name).display());
    let options = [option("private-key", "test.key"), option("certificate", "test.pem"), option("ca-cert", "ca.pem")];
    let first = w.start_on(remotes.clone(), &options, "az1");
    let _second = w.start(2, "az2");
    w.transit_switch("ts1").await;
    for n in 1..=2 {
        w.gateway(n, &format!("gw{n}"), &format!("10.0.0.{n}")).await;
        wait_for!(w.column(&format!("nb{n}"), "Logical_Switch", "name").await, vec!["ts1".to_string()]);
        w.router(n, &format!("lr{n}"), "ts1", &format!("192.168.{n}.1/24"), &format!("gw{n}")).await;
    }
    for (n, other) in [(1, 2), (2, 1)] {
        wait_for!(w.learned(n).await, vec![format!("192.168.{other}.1/24 169.254.0.{other}")]);
    }
    assert_eq!(first.warnings(), Vec::<String>::new());
    // Refused, not merely not connected yet.
    let refused = |d: &common::Daemon| d.log().contains("connection attempt failed");
    let bare = w.start_on(remotes.clone(), &[], "bare");
    wait_for!(refused(&bare), true);
    let old = w.start_on(remotes, &[&options[..], &["--ssl-protocols=TLSv1.2".to_string()]].concat(), "old");
    wait_for!(refused(&old), true);
    for d in [bare, old] {
        assert_eq!(d.ask("ic-sb-connection-status"), "not connected\n");
    }
}
