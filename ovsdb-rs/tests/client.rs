//! The client against the server: in process, over a socket, through restarts and changes of conditions.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use ovsdb_rs::client::{Client, ClientError, Config, Event, TableRequest, Transaction, Update};
use ovsdb_rs::{Atom, DatabaseSchema, Datum, Server};
use serde_json::json;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

fn schema() -> DatabaseSchema {
    DatabaseSchema::from_json(&json!({"name": "D", "version": "1.0.0", "tables": {
        "Sw": {"isRoot": true, "indexes": [["name"]], "columns": {"name": {"type": "string"},
            "n": {"type": "integer"},
            "ports": {"type": {"key": {"type": "uuid", "refTable": "Port"}, "min": 0, "max": "unlimited"}},
            "m": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},
        "Port": {"columns": {"name": {"type": "string"}}}}}))
    .unwrap()
}

fn text(s: &str) -> Datum {
    Datum::Scalar(Atom::String(s.into()))
}

async fn update(events: &mut UnboundedReceiver<Event>) -> Update {
    loop {
        let next = tokio::time::timeout(Duration::from_secs(10), events.recv());
        if let Event::Update(u) = next.await.unwrap().unwrap() {
            return u;
        }
    }
}

fn config(remote: &str) -> Config {
    Config::new(remote, "D").unwrap().table("Sw", TableRequest::all()).table("Port", TableRequest::all())
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_follows_transactions() {
    let server = Server::new();
    server.add_memory(ovsdb_rs::engine::Database::new(schema())).await.unwrap();
    let c = Config::in_process(&server, "D").table("Sw", TableRequest::all()).table("Port", TableRequest::all());
    let c = c.table("Newer", TableRequest::all());
    let (client, mut events) = Client::start(c);
    let first = update(&mut events).await;
    assert!(first.reset && first.changes.is_empty());

    let mut t = Transaction::new(first.schema.clone());
    let port = t.insert("Port", [("name", text("p1")), ("newer", text("x"))]);
    let sw = t.insert("Sw", [("name", text("s1")), ("ports", Datum::Scalar(Atom::Uuid(port)))]);
    t.insert("Newer", [("a", text("b"))]);
    assert_eq!(t.len(), 2);
    client.commit(t).await.unwrap();
    // What a transaction changed is there when it returns.
    assert_eq!(client.replica(|r| r.rows("Port").count()), 1);
    assert_eq!(update(&mut events).await.changes.len(), 2);

    let mut t = Transaction::new(first.schema.clone());
    t.verify("Sw", sw, [("name", text("s1"))]);
    t.mutate("Sw", sw, "m", "insert", &Datum::map(vec![(Atom::String("k".into()), Atom::String("v".into()))]));
    t.update("Sw", sw, [("ports", Datum::empty_set())]);
    client.commit(t).await.unwrap();
    let u = update(&mut events).await;
    assert_eq!(u.changes.len(), 2, "{u:?}");
    let ts = first.schema.table("Sw").unwrap();
    client.replica(|r| {
        assert_eq!(r.rows("Port").count(), 0, "an unreferenced row of a non-root table goes");
        assert_eq!(r.row("Sw", sw).unwrap().get(ts, "m").unwrap().get_str("k").unwrap().as_str(), Some("v"));
    });

    // Nothing is done where a row is not what it was when it was read.
    let mut t = Transaction::new(first.schema.clone());
    t.verify("Sw", sw, [("name", text("another"))]);
    t.update("Sw", sw, [("n", Datum::Scalar(Atom::Integer(7)))]);
    let e = client.commit(t).await.unwrap_err();
    assert!(matches!(&e, ClientError::Failed(v) if v["error"] == "timed out"), "{e}");
    client.replica(|r| assert_eq!(r.row("Sw", sw).unwrap().get(ts, "n").unwrap().scalar(), Some(&Atom::Integer(0))));

    let mut t = Transaction::new(first.schema.clone());
    t.insert("Sw", [("name", text("s1"))]);
    let e = client.commit(t).await.unwrap_err();
    assert!(matches!(&e, ClientError::Failed(v) if v["error"] == "constraint violation"), "{e}");
}

/// Indexes find what a look at all rows finds, whatever changes, and after the server was another one for a while.
#[tokio::test(flavor = "multi_thread")]
async fn indexes_follow_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let serve = async |path: &std::path::Path| {
        let server = Server::new();
        server.add_memory(ovsdb_rs::engine::Database::new(schema())).await.unwrap();
        server.listen(&format!("punix:{}", path.display())).await.unwrap();
        server
    };
    let server = serve(&path).await;
    let c =
        config(&format!("unix:{}", path.display())).index("Sw", &["n"]).index("Sw", &["n", "m"]).index("Sw", &["no"]);
    let (client, mut events) = Client::start(c);
    let schema = update(&mut events).await.schema;
    let number = |n: i64| Datum::Scalar(Atom::Integer(n));
    let pair = |v: &str| Datum::map(vec![(Atom::String("k".into()), Atom::String(v.into()))]);
    let check = || {
        let ts = schema.table("Sw").unwrap();
        client.replica(|r| {
            for n in 0..4 {
                for m in ["a", "b"] {
                    let all = |same: &dyn Fn(&ovsdb_rs::Row) -> bool| {
                        let mut v: Vec<_> = r.rows("Sw").filter(|(_, row)| same(row)).map(|(u, _)| *u).collect();
                        v.sort();
                        v
                    };
                    let of = |columns: &[&str], key: &[Datum]| {
                        r.find("Sw", columns, key).map(|(u, _)| u).collect::<Vec<_>>()
                    };
                    assert_eq!(of(&["n"], &[number(n)]), all(&|row| row.get(ts, "n") == Some(&number(n))));
                    let both = |row: &ovsdb_rs::Row| {
                        (row.get(ts, "n"), row.get(ts, "m")) == (Some(&number(n)), Some(&pair(m)))
                    };
                    assert_eq!(of(&["n", "m"], &[number(n), pair(m)]), all(&both));
                }
            }
            assert_eq!(
                r.find("Sw", &["no"], &[number(1)]).count() + r.find("Port", &["name"], &[text("x")]).count(),
                0
            );
        });
    };
    let mut rows = Vec::new();
    let mut random = 7u64;
    for round in 0..60 {
        let mut t = Transaction::new(schema.clone());
        for _ in 0..5 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let r = (random >> 33) as usize;
            let (n, m) = (number((r % 4) as i64), pair(["a", "b"][r / 4 % 2]));
            match (r / 8 % 4, rows.is_empty()) {
                (0, false) => t.delete("Sw", rows.swap_remove(r / 32 % rows.len())),
                (1, false) => t.update("Sw", rows[r / 32 % rows.len()], [("n", n), ("m", m)]),
                _ => rows.push(t.insert("Sw", [("name", text(&format!("{round}-{r}"))), ("n", n), ("m", m)])),
            }
        }
        client.commit(t).await.unwrap();
        check();
    }
    assert!(!rows.is_empty());
    // Another server in the same place, whose rows are others.
    for remote in server.remotes() {
        server.close(&remote).unwrap();
    }
    let other = serve(&path).await;
    while client.replica(|r| r.rows("Sw").count()) > 0 {
        update(&mut events).await;
    }
    check();
    let mut t = Transaction::new(schema.clone());
    t.insert("Sw", [("name", text("new")), ("n", number(2)), ("m", pair("a"))]);
    client.connected().await;
    client.commit(t).await.unwrap();
    check();
    assert_eq!(client.replica(|r| r.find("Sw", &["n"], &[number(2)]).count()), 1);
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_pass_from_one_to_the_next() {
    let server = Server::new();
    server.add_memory(ovsdb_rs::engine::Database::new(schema())).await.unwrap();
    let (a, mut events_a) = Client::start(Config::in_process(&server, "D"));
    let (b, mut events_b) = Client::start(Config::in_process(&server, "D"));
    async fn owned(events: &mut UnboundedReceiver<Event>) -> bool {
        loop {
            let next = tokio::time::timeout(Duration::from_secs(10), events.recv());
            if let Event::Lock { owned, .. } = next.await.unwrap().unwrap() {
                return owned;
            }
        }
    }
    a.lock("l");
    assert!(owned(&mut events_a).await);
    b.lock("l");
    b.connected().await;
    let mut t = Transaction::new(b.schema().unwrap());
    t.assert_lock("l");
    t.insert("Sw", [("name", text("x"))]);
    assert!(matches!(b.commit(t.clone()).await, Err(ClientError::Failed(e)) if e["error"] == "not owner"));
    a.unlock("l");
    assert!(owned(&mut events_b).await);
    assert!(!a.has_lock("l") && b.has_lock("l"));
    b.commit(t).await.unwrap();
    drop(a);
    b.reconnect();
    assert!(!owned(&mut events_b).await);
    assert!(owned(&mut events_b).await, "asked for again after reconnecting");
}

#[tokio::test(flavor = "multi_thread")]
async fn comes_back_and_takes_up_where_it_left_off() {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("d.db"), dir.path().join("d.sock"));
    let server = Server::new();
    server.add_file(&file, Some(&schema())).await.unwrap();
    server.listen(&format!("punix:{}", socket.display())).await.unwrap();
    let (client, mut events) = Client::start(config(&format!("unix:{}", socket.display())));
    let u = update(&mut events).await;
    let mut t = Transaction::new(u.schema.clone());
    for i in 0..10 {
        t.insert("Sw", [("name", text(&format!("s{i}"))), ("n", Datum::Scalar(Atom::Integer(i)))]);
    }
    client.commit(t).await.unwrap();
    assert_eq!(update(&mut events).await.changes.len(), 10);

    // The connection breaks; meanwhile things change.
    client.reconnect();
    let op = json!({"op": "delete", "table": "Sw", "where": [["name", "==", "s3"]]});
    server.transact("D", vec![op]).await.unwrap();
    let mut seen = Vec::new();
    while seen.is_empty() {
        let u = update(&mut events).await;
        assert!(!u.reset);
        seen.extend(u.changes);
    }
    assert_eq!(seen.len(), 1, "only what changed is told: {seen:?}");
    assert!(seen[0].new.is_none());

    // The server is replaced by another with the same file; its rows are compared with the replica.
    server.shutdown().await;
    drop(server);
    let server = Server::new();
    server.add_file(&file, None).await.unwrap();
    let op = json!({"op": "insert", "table": "Sw", "row": {"name": "new"}});
    server.transact("D", vec![op]).await.unwrap();
    server.listen(&format!("punix:{}", socket.display())).await.unwrap();
    let mut seen = Vec::new();
    while seen.is_empty() {
        let u = update(&mut events).await;
        assert!(!u.reset);
        seen.extend(u.changes);
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(client.replica(|r| r.rows("Sw").count()), 10);
}

// On one thread: the server answers while the test waits, and not before.
#[tokio::test]
async fn conditions_choose_rows() {
    let server = Server::new();
    server.add_memory(ovsdb_rs::engine::Database::new(schema())).await.unwrap();
    let rows: Vec<_> =
        (0..6).map(|i| json!({"op": "insert", "table": "Sw", "row": {"name": format!("s{i}"), "n": i}})).collect();
    server.transact("D", rows).await.unwrap();
    let one = TableRequest::columns(["n"]).when(vec![json!(["n", "==", 1]), json!(["n", "==", 2])]);
    let (client, mut events) = Client::start(Config::in_process(&server, "D").table("Sw", one));
    assert_eq!(update(&mut events).await.changes.len(), 2);
    client.set_conditions("Sw", Some(vec![json!(["n", "==", 2]), json!(["n", ">", 3])]));
    assert!(!client.has_wanted(), "the server has not answered");
    let u = update(&mut events).await;
    assert_eq!((u.changes.len(), client.replica(|r| r.rows("Sw").count())), (3, 3));
    assert!(update(&mut events).await.changes.is_empty() && client.has_wanted(), "the answer comes behind the rows");
    // A row walks out of the condition by a change.
    let op = json!({"op": "update", "table": "Sw", "where": [["n", "==", 2]], "row": {"n": 0}});
    server.transact("D", vec![op]).await.unwrap();
    let u = update(&mut events).await;
    assert!(u.changes.len() == 1 && u.changes[0].new.is_none());
    client.set_conditions("Sw", None);
    assert_eq!(update(&mut events).await.changes.len(), 4);
    assert!(update(&mut events).await.changes.is_empty() && client.has_wanted());
    // What changes nothing is answered as well. While an answer is under way, both changes would have that one.
    client.set_conditions("Sw", None);
    assert!(update(&mut events).await.changes.is_empty() && client.has_wanted());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_dropped() {
    use tokio::io::AsyncWriteExt;
    let server = Server::with_backlog(1 << 20);
    server.add_memory(ovsdb_rs::engine::Database::new(schema())).await.unwrap();
    let before = server.sessions();
    let mut lazy = server.connect();
    lazy.write_all(br#"{"id":0,"method":"monitor","params":["D","m",{"Sw":{}}]}"#).await.unwrap();
    let long = "x".repeat(100_000);
    for i in 0..60 {
        let op = json!({"op": "insert", "table": "Sw", "row": {"name": format!("{long}{i}")}});
        server.transact("D", vec![op]).await.unwrap();
    }
    for _ in 0..100 {
        if server.sessions() == before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the client is still served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_went_silent_is_left() {
    let server = Server::new();
    server.add_memory(ovsdb_rs::engine::Database::new(schema())).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mute, muted) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        // The first connection can be muted; later ones wait in vain.
        let (outside, _) = listener.accept().await.unwrap();
        let (mut from, mut to) = tokio::io::split(outside);
        let (mut back, mut forth) = tokio::io::split(server.connect());
        let mut quiet = muted.clone();
        tokio::spawn(async move { tokio::io::copy(&mut from, &mut forth).await });
        tokio::select! {
            _ = tokio::io::copy(&mut back, &mut to) => {}
            _ = async { quiet.wait_for(|m| *m).await.is_ok() } => {}
        }
        std::future::pending::<()>().await;
    });
    let (client, mut events) = Client::start(config(&format!("tcp:127.0.0.1:{port}")).probe(None));
    update(&mut events).await;
    mute.send(true).unwrap();
    let lost = tokio::time::timeout(Duration::from_secs(3), events.recv()).await;
    assert!(lost.is_err(), "nobody asks for a sign of life: {lost:?}");
    client.set_probe(ovsdb_rs::client::probe_interval(Some("10")));
    let lost = tokio::time::timeout(Duration::from_secs(10), events.recv()).await.expect("the silence is noticed");
    assert!(matches!(lost, Some(Event::Disconnected)), "{lost:?}");
}

/// Who gives up half way leaves nothing behind: what was sent is no transaction, and the client connects anew.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_transaction_is_none() {
    let server = Server::new();
    server.add_memory(ovsdb_rs::engine::Database::new(schema())).await.unwrap();
    let config = Config::in_process(&server, "D").table("Sw", TableRequest::all());
    let (client, _events) = Client::start(config);
    client.connected().await;
    let schema = client.schema().unwrap();
    let row = |name: String| {
        let mut t = Transaction::new(schema.clone());
        t.insert("Sw", [("name", text(&name))]);
        t
    };
    let endless = (0..).map(|n: u64| row(n.to_string()));
    let given_up = tokio::time::timeout(Duration::from_millis(100), client.carry_out(endless)).await;
    assert!(given_up.is_err());
    let after = async {
        while client.commit(row("after".into())).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), after).await.unwrap();
    assert_eq!(client.replica(|r| r.rows("Sw").count()), 1);
    let three = (0..3).map(|n: u64| row(n.to_string()));
    assert_eq!(client.carry_out(three).await.unwrap(), None);
    let (place, error) = client.carry_out((3..5).map(|n: u64| row((n % 4).to_string()))).await.unwrap().unwrap();
    assert_eq!((place, error.error.as_str()), (2, "constraint violation"), "0 is there: told behind both operations");
    assert_eq!(client.replica(|r| r.rows("Sw").count()), 4);
}

/// A client that goes from one relay to another finds the state there that it had: relays name states as their source does.
#[tokio::test(flavor = "multi_thread")]
async fn relays_of_one_source_name_states_alike() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let source = Server::new();
    source.add_memory(ovsdb_rs::engine::Database::new(schema())).await.unwrap();
    source.listen(&format!("punix:{}", path("source"))).await.unwrap();
    let mut clients = Vec::new();
    let mut relays = Vec::new();
    for from in ["source", "relay0", "relay1"] {
        let relay = Server::new();
        let remote = format!("unix:{}", path(from));
        relay.add_relay("D", &remote, &Default::default(), None).await.unwrap();
        relay.listen(&format!("punix:{}", path(&format!("relay{}", relays.len())))).await.unwrap();
        let (client, mut events) =
            Client::start(Config::in_process(&relay, "D").leader_only(false).table("Sw", TableRequest::all()));
        update(&mut events).await;
        clients.push((client, events));
        relays.push(relay);
    }
    for name in ["s1", "s2"] {
        let schema = clients[2].0.schema().unwrap();
        let mut t = Transaction::new(schema);
        t.insert("Sw", [("name", text(name))]);
        clients[2].0.commit(t).await.unwrap();
        let mut states = Vec::new();
        for (_, events) in &mut clients {
            let mut u = update(events).await;
            while u.changes.is_empty() {
                u = update(events).await;
            }
            states.push(u.state);
        }
        assert!(!states[0].is_nil() && states.iter().all(|s| *s == states[0]), "{states:?}");
    }
}
