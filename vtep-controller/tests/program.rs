//! The program as operators start it: under the C controller's name, in the background, over TLS.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::World;
use ovsdb_rs::tls::{Tls, TlsFiles};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtep-controller");

fn link(w: &World) -> PathBuf {
    let link = w.dir.path().join("ovn-controller-vtep");
    std::os::unix::fs::symlink(PROGRAM, &link).unwrap();
    link
}

fn run(program: &Path, dir: &Path, args: &[String]) -> Output {
    let mut c = Command::new(program);
    for key in ["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR"] {
        c.env(key, dir);
    }
    c.env("OVS_SYSLOG_METHOD", "null").args(args).output().unwrap()
}

async fn attached(w: &World) {
    w.physical_switch(0, "tor", &["1.2.3.4"], &[("p0", 100, "ls")]).await;
    let dp = w.datapath(7).await;
    w.vtep_port("a", &dp, 1, "tor", "ls").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_the_other_name_in_the_background() {
    let w = World::new(1).await;
    attached(&w).await;
    let (program, dir) = (link(&w), w.dir.path());
    // The database of the switch is where the C controller looks for it.
    std::os::unix::fs::symlink(dir.join("vtep0.sock"), dir.join("db.sock")).unwrap();
    std::os::unix::fs::symlink(dir.join("sb.sock"), dir.join("ovnsb_db.sock")).unwrap();
    let args = ["--detach", "--no-chdir", "--pidfile", "--log-file", "-vconsole:off"].map(String::from);
    let out = run(&program, dir, &args);
    assert!(out.status.success(), "{out:?}");
    let pid = std::fs::read_to_string(dir.join("ovn-controller-vtep.pid")).unwrap();
    let socket = dir.join(format!("ovn-controller-vtep.{}.ctl", pid.trim()));
    assert!(socket.exists());
    wait_for!(w.bound("a").await, "tor");
    let again = run(&program, dir, &args);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("already running as pid"), "{again:?}");
    assert!(Command::new("kill").arg(pid.trim()).status().unwrap().success());
    wait_for!(dir.join("ovn-controller-vtep.pid").exists(), false);
    assert!(!socket.exists());
    assert_eq!(w.bound("a").await, "", "it cleans up at its end");
    let version = run(&program, dir, &["--version".to_string()]);
    let text = String::from_utf8_lossy(&version.stdout).into_owned();
    assert!(text.starts_with("ovn-controller-vtep 26.03.90\n"), "{text}");
}

/// A CA and a certificate of it for everybody, as `ovs-pki` makes them.
fn certificates(dir: &Path) -> bool {
    let openssl =
        |args: &[&str]| Command::new("openssl").args(args).current_dir(dir).output().is_ok_and(|o| o.status.success());
    let key = ["-newkey", "rsa:2048", "-nodes", "-keyout"];
    std::fs::write(dir.join("v3"), "basicConstraints=CA:FALSE\nsubjectAltName=DNS:test\n").unwrap();
    openssl(&[&["req", "-x509", "-days", "2", "-subj", "/CN=ca", "-out", "ca.pem"][..], &key, &["ca.key"]].concat())
        && openssl(&[&["req", "-subj", "/CN=test", "-out", "test.csr"][..], &key, &["test.key"]].concat())
        && openssl(&[
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            "test.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-extfile",
            "v3",
            "-out",
            "test.pem",
        ])
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_to_both_databases() {
    let w = World::new(1).await;
    if !certificates(w.dir.path()) {
        println!("skipped: openssl makes no certificates here");
        return;
    }
    attached(&w).await;
    let file = |name: &str| w.dir.path().join(name);
    let files = TlsFiles {
        private_key: file("test.key"),
        certificate: file("test.pem"),
        ca_cert: Some(file("ca.pem")),
        bootstrap: false,
    };
    let [sb, tor] = w.listen_tls(&Tls::new(files).unwrap()).await;
    let option = |o: &str, name: &str| format!("{o}={}", file(name).display());
    let args = [
        format!("--vtep-db={tor}"),
        format!("--ovnsb-db={sb}"),
        option("--private-key", "test.key"),
        option("--certificate", "test.pem"),
        option("--ca-cert", "ca.pem"),
    ];
    let mut d = common::Daemon::start(Path::new(PROGRAM), &w.dir.path().join("c"), &args);
    wait_for!(w.bound("a").await, "tor");
    wait_for!(w.keys(0).await, vec![("ls".to_string(), Some(7))]);
    d.exit(&[]).await;
    assert_eq!(w.bound("a").await, "");
    // Without a certificate nobody gets in.
    let bare = common::Daemon::start(Path::new(PROGRAM), &w.dir.path().join("c2"), &args[..2]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(bare.command("sb-connection-status", &[]).await, "not connected");
}
