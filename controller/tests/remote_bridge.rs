//! A switch that is managed over TCP (`ovn-bridge-remote`), and its probes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::openflow::{Event, Switch, Target};
use openflow_rs::Message;
use openflow_rs::connection::{OUR_VERSIONS, negotiate};
use ovsdb_rs::stream::Remote;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_silent_switch_is_asked_and_then_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let remote = Remote::parse(&format!("tcp:127.0.0.1:{}", listener.local_addr().unwrap().port())).unwrap();
    let probe = Some(Duration::from_millis(200));
    let (_switch, mut events) = Switch::start(Target { remote, tls: None, probe });
    let (stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let (mut sender, mut receiver) = negotiate(stream, OUR_VERSIONS).await.unwrap();
    let mut echoes = 0;
    // Two questions are answered; the third is not.
    loop {
        let received = match timeout(PATIENCE, receiver.recv()).await.unwrap() {
            Ok(r) => r,
            Err(_) => break,
        };
        if let Ok(Message::EchoRequest(data)) = received.message {
            echoes += 1;
            if echoes <= 2 {
                sender.queue(received.header.xid, &Message::EchoReply(data));
                sender.flush().await.unwrap();
            }
        }
    }
    assert_eq!(echoes, 3);
    assert!(matches!(timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Connected)));
    assert!(matches!(timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Disconnected)));
    // It comes back.
    timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
}

#[tokio::test]
async fn without_an_interval_silence_is_no_fault() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let remote = Remote::parse(&format!("tcp:127.0.0.1:{}", listener.local_addr().unwrap().port())).unwrap();
    let (_switch, mut events) = Switch::start(Target { remote, tls: None, probe: None });
    let (stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let (_sender, _receiver) = negotiate(stream, OUR_VERSIONS).await.unwrap();
    assert!(matches!(timeout(PATIENCE, events.recv()).await.unwrap(), Some(Event::Connected)));
    assert!(timeout(Duration::from_secs(2), events.recv()).await.is_err(), "nothing happens");
}
