//! Where rows came from and what became of them: of a compiler, and of the running program over its control socket.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/written.rs"]
mod written;

use northd::Compiler;
use ovn_schema::{Map, Str, Uuid, nb, sb};
use ovsdb_rs::client::{Client, Config, Transaction};
use ovsdb_rs::{Atom, Datum};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn text(s: &str) -> Str {
    Str::from(s)
}

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n << 96 | 7)
}

/// Two switches with a port each; the first also has two access lists and a load balancer.
fn network() -> nb::Database {
    let mut db = nb::Database::default();
    db.nb_global.insert(id(1), Arc::default());
    for n in 0..2u128 {
        let port = nb::LogicalSwitchPort {
            name: text(&format!("p{n}")),
            addresses: [text(&format!("0a:00:00:00:00:0{n} 10.0.0.1{n}"))].into(),
            ..Default::default()
        };
        db.logical_switch_port.insert(id(0x10 + n), Arc::new(port));
        let switch =
            nb::LogicalSwitch { name: text(&format!("ls{n}")), ports: [id(0x10 + n)].into(), ..Default::default() };
        db.logical_switch.insert(id(0x20 + n), Arc::new(switch));
        let acl = nb::Acl {
            direction: text("to-lport"),
            action: text("drop"),
            r#match: text(&format!("tcp.dst == 8{n}")),
            priority: 100,
            ..Default::default()
        };
        db.acl.insert(id(0x30 + n), Arc::new(acl));
    }
    let vips = Map::from([(text("10.0.9.9:80"), text("10.0.0.11:80"))]);
    db.load_balancer.insert(id(0x40), Arc::new(nb::LoadBalancer { name: text("lb"), vips, ..Default::default() }));
    let first = Arc::make_mut(db.logical_switch.get_mut(&id(0x20)).unwrap());
    first.acls = [id(0x30), id(0x31)].into();
    first.load_balancer = [id(0x40)].into();
    db
}

/// A compiler that has run, and whose southbound rows are there.
fn compiled() -> Compiler {
    let mut c = Compiler::new(network(), sb::Database::default());
    let changes = c.run();
    c.change_sb(|db| written::insert(db, &changes.sb));
    c.run();
    c
}

fn flow(c: &Compiler, matches: &str) -> String {
    let found = c.input().sb.logical_flow.iter().find(|(_, f)| f.r#match.contains(matches) && f.priority > 50);
    found.unwrap().0.to_string()
}

#[test]
fn a_flow_comes_from_the_rows_without_which_it_would_not_be() {
    let c = compiled();
    let why = c.why(None, &flow(&c, "tcp.dst == 81")).unwrap();
    assert!(why.contains("\n  ACL 00000031 to-lport 100 tcp.dst == 81"), "{why}");
    assert!(why.contains("\n  Logical_Switch 00000020 ls0"), "{why}");
    assert!(!why.contains("tcp.dst == 80") && !why.contains(" p0"), "{why}");
    let why = c.why(Some("Logical_Flow"), &flow(&c, "10.0.9.9")).unwrap();
    assert!(why.contains("Load_Balancer 00000040 lb") && why.contains("ls0") && !why.contains("ls1"), "{why}");
}

#[test]
fn rows_are_called_by_name_and_prefix() {
    let c = compiled();
    let why = c.why(Some("port-binding"), "p1").unwrap();
    assert!(why.contains("made by LspBinding of Logical_Switch_Port 00000011 p1"), "{why}");
    assert!(why.contains("\n  Logical_Switch 00000021 ls1") && !why.contains("ls0"), "{why}");
    let became = c.why(None, "00000011").unwrap();
    assert!(became.contains("Port_Binding ") && became.contains("ls_in_l2_lkup"), "{became}");
    let became = c.why(Some("ACL"), "00000031").unwrap();
    assert!(became.contains("tcp.dst == 81") && !became.contains("tcp.dst == 80"), "{became}");
    assert!(c.why(None, "0000").unwrap_err().starts_with("several rows"));
    assert!(c.why(None, "nothing").unwrap_err().contains("no row is called"));
    assert!(c.why(Some("No_Table"), "p1").unwrap_err().contains("no table"));
}

/// The program with databases of its own.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(socket: &Path, arguments: &str) -> String {
    let mut s = std::os::unix::net::UnixStream::connect(socket).unwrap();
    write!(s, "{{\"id\":0,\"method\":\"why\",\"params\":{arguments}}}").unwrap();
    s.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut out = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = s.read(&mut buffer) {
        out.extend_from_slice(&buffer[..n]);
        if out.ends_with(b"}") || out.ends_with(b"}\n") {
            break;
        }
    }
    String::from_utf8(out).unwrap()
}

#[tokio::test]
async fn the_running_program_answers() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("northd.ctl");
    let child = Command::new(env!("CARGO_BIN_EXE_northd"))
        .arg(format!("--embed={}", dir.path().join("db").display()))
        .arg(format!("--unixctl={}", socket.display()))
        .env("OVN_RUNDIR", dir.path())
        .spawn()
        .unwrap();
    let _program = Program(child);
    let remote = format!("unix:{}", dir.path().join("db/ovnnb_db.sock").display());
    let (client, _events) = Client::start(Config::new(&remote, "OVN_Northbound").unwrap());
    tokio::time::timeout(Duration::from_secs(30), client.connected()).await.unwrap();
    let mut t = Transaction::new(client.schema().unwrap());
    let name = |n: &str| Datum::Scalar(Atom::String(n.into()));
    let port = t.insert("Logical_Switch_Port", [("name", name("web"))]);
    t.insert("Logical_Switch", [("name", name("ls")), ("ports", Datum::Scalar(Atom::Uuid(port)))]);
    client.commit(t).await.unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = ask(&socket, "[\"Port_Binding\", \"web\"]");
        if answer.contains("Logical_Switch_Port") && answer.contains("Logical_Switch ") {
            break;
        }
        assert!(Instant::now() < until, "{answer}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(ask(&socket, "[\"nobody\"]").contains("no row is called"));
}
