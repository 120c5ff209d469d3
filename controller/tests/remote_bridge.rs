//! A switch that is managed over TCP (`ovn-bridge-remote`), and what a new connection begins with.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::openflow::features::{self, Features};
use controller::openflow::install::TableChange;
use controller::openflow::{self, Command, Event, Switch, Target};
use openflow_rs::connection::{ConnectionError, OUR_VERSIONS, Received, Receiver, Sender, negotiate};
use openflow_rs::message::{BundleCommand, BundleControl, MultipartReply, MultipartRequest};
use openflow_rs::mods::{MeterConfig, MeterModCommand};
use openflow_rs::{FlowMod, Message, MeterId, MeterMod, TableId};
use ovsdb_rs::stream::Remote;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

/// A bridge that the controller has connected to.
struct Bridge {
    listener: TcpListener,
    sender: Sender<TcpStream>,
    receiver: Receiver<TcpStream>,
    /// What the controller's side tells.
    events: mpsc::Receiver<Event>,
}

impl Bridge {
    /// Starts a connection of the controller with a probe interval, and accepts it.
    async fn connected<T>(
        probe: Option<Duration>,
        start: impl FnOnce(Target, mpsc::Sender<Event>) -> T,
    ) -> (Bridge, T) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let remote = Remote::parse(&format!("tcp:127.0.0.1:{port}")).unwrap();
        let (tell, events) = openflow::events();
        let started = start(Target { remote, tls: None, probe }, tell);
        let (stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
        let (sender, receiver) = negotiate(stream, OUR_VERSIONS).await.unwrap();
        (Bridge { listener, sender, receiver, events }, started)
    }

    async fn event(&mut self) -> Option<Event> {
        timeout(PATIENCE, self.events.recv()).await.unwrap()
    }

    async fn answer(&mut self, xid: u32, with: &Message) {
        self.sender.queue(xid, with);
        self.sender.flush().await.unwrap();
    }
}

/// The transaction id of a message, and what it says.
fn opened(received: Result<Result<Received, ConnectionError>, Elapsed>) -> (u32, Message) {
    let received = received.unwrap().unwrap();
    (received.header.xid, received.message.unwrap())
}

/// The answer to the questions that a connection begins with: so many meters are there, and no options of tunnels.
fn usual(m: &Message, meters: u32) -> Option<Message> {
    match m {
        Message::MultipartRequest(MultipartRequest::MeterConfig(_)) => {
            let body = MultipartReply::MeterConfig((1..=meters).map(meter).collect());
            Some(Message::MultipartReply { more: false, body })
        }
        Message::TlvTableRequest => Some(Message::TlvTableReply(Default::default())),
        _ => None,
    }
}

#[tokio::test]
async fn a_silent_switch_is_asked_and_then_left() {
    let (mut bridge, _switch) = Bridge::connected(Some(Duration::from_millis(200)), Switch::start).await;
    let mut echoes = 0;
    // Two questions are answered; the third is not.
    loop {
        let received = match timeout(PATIENCE, bridge.receiver.recv()).await.unwrap() {
            Ok(r) => r,
            Err(_) => break,
        };
        if let Ok(Message::EchoRequest(data)) = received.message {
            echoes += 1;
            if echoes <= 2 {
                bridge.answer(received.header.xid, &Message::EchoReply(data)).await;
            }
        }
    }
    assert_eq!(echoes, 3);
    assert!(matches!(bridge.event().await, Some(Event::Connected)));
    assert!(matches!(bridge.event().await, Some(Event::Disconnected)));
    // It comes back.
    timeout(PATIENCE, bridge.listener.accept()).await.unwrap().unwrap();
}

#[tokio::test]
async fn without_an_interval_silence_is_no_fault() {
    let (mut bridge, _switch) = Bridge::connected(None, Switch::start).await;
    assert!(matches!(bridge.event().await, Some(Event::Connected)));
    assert!(timeout(Duration::from_secs(2), bridge.events.recv()).await.is_err(), "nothing happens");
}

fn meter(id: u32) -> MeterConfig {
    MeterConfig { id: MeterId(id), flags: MeterConfig::KBPS, bands: Vec::new() }
}

#[tokio::test]
async fn meters_of_a_run_before_are_deleted_behind_the_first_bundle() {
    let (mut bridge, switch) = Bridge::connected(None, Switch::start).await;
    assert!(matches!(bridge.event().await, Some(Event::Connected)));
    let mods = |id| vec![MeterMod { command: MeterModCommand::Add, meter: meter(id) }];
    // The first bundle goes on using meter 2; the second one uses another.
    for (sequence, id) in [(1, 2), (2, 4)] {
        let changes = vec![TableChange::Other(Box::new(Message::FlowMod(FlowMod::delete_all())))];
        switch.give(Command::Bundle { changes, meters: mods(id), unused: Vec::new(), sequence });
    }
    let (mut seen, mut installed) = (Vec::new(), 0);
    while installed < 2 {
        tokio::select! {
            received = timeout(PATIENCE, bridge.receiver.recv()) => {
                let (xid, message) = opened(received);
                let answer = match message {
                    Message::BarrierRequest => Some(Message::BarrierReply),
                    Message::MeterMod(m) => {
                        seen.push((m.command, m.meter.id.0));
                        None
                    }
                    Message::BundleControl(c) if c.command == BundleCommand::CommitRequest => {
                        seen.push((MeterModCommand::Modify, 0));
                        Some(committed(c))
                    }
                    m => usual(&m, 3),
                };
                if let Some(a) = answer {
                    bridge.answer(xid, &a).await;
                }
            }
            e = bridge.events.recv() => installed += i32::from(matches!(e, Some(Event::Installed(_)))),
        }
    }
    use MeterModCommand::{Add, Delete, Modify};
    assert_eq!(seen, [(Add, 2), (Modify, 0), (Delete, 1), (Delete, 3), (Add, 4), (Modify, 0)]);
}

fn committed(c: BundleControl) -> Message {
    Message::BundleControl(BundleControl { command: BundleCommand::CommitReply, ..c })
}

/// A change that is refused, and with it the bundle: the others go again, and only then is it in force.
#[tokio::test]
async fn an_answered_commit_confirms_a_bundle_and_a_refused_one_does_not() {
    let (mut bridge, switch) = Bridge::connected(None, Switch::start).await;
    assert!(matches!(bridge.event().await, Some(Event::Connected)));
    let change =
        |table| TableChange::Other(Box::new(Message::FlowMod(FlowMod { table: TableId(table), ..FlowMod::default() })));
    let changes = vec![change(1), change(2), change(3)];
    switch.give(Command::Bundle { changes, meters: Vec::new(), unused: Vec::new(), sequence: 7 });
    // Tables of the changes of each bundle.
    let (mut bundles, mut told) = (vec![Vec::new()], Vec::new());
    let error = Message::Error { error_type: 5, code: 2, data: Vec::new() };
    while told.last() != Some(&"installed") {
        tokio::select! {
            received = timeout(PATIENCE, bridge.receiver.recv()) => {
                let (xid, message) = opened(received);
                let answer = match message {
                    Message::BarrierRequest => {
                        assert!(bundles[0].is_empty(), "a commit is answered, which is enough");
                        Some(Message::BarrierReply)
                    }
                    Message::BundleAdd(a) => {
                        let Message::FlowMod(f) = *a.message else { panic!() };
                        bundles.last_mut().unwrap().push(f.table.0);
                        (f.table == TableId(2)).then(|| error.clone())
                    }
                    Message::BundleControl(c) if c.command == BundleCommand::CommitRequest => {
                        bundles.push(Vec::new());
                        Some(if bundles.len() == 2 { error.clone() } else { committed(c) })
                    }
                    m => usual(&m, 0),
                };
                if let Some(a) = answer {
                    bridge.answer(xid, &a).await;
                }
            }
            e = bridge.events.recv() => told.push(match e {
                Some(Event::Installed(7)) => "installed",
                Some(Event::Refused(_)) => "refused",
                e => panic!("{e:?}"),
            }),
        }
    }
    assert_eq!(bundles, [vec![1, 2, 3], vec![1, 3], vec![]]);
    assert_eq!(told, ["refused", "installed"]);
}

/// A switch that refuses some messages.
async fn features_of(refuses: fn(&Message) -> bool) -> Features {
    let (mut bridge, ()) = Bridge::connected(None, features::start).await;
    loop {
        tokio::select! {
            received = timeout(PATIENCE, bridge.receiver.recv()) => {
                let (xid, message) = opened(received);
                let answer = match &message {
                    m if refuses(m) => Some(Message::Error { error_type: 2, code: 5, data: Vec::new() }),
                    Message::BarrierRequest => Some(Message::BarrierReply),
                    Message::BundleControl(c) => {
                        assert_ne!(c.command, BundleCommand::CommitRequest, "nothing is put into a table");
                        None
                    }
                    Message::BundleAdd(_) | Message::CtFlush(_) => None,
                    m => panic!("{m:?}"),
                };
                if let Some(a) = answer {
                    bridge.answer(xid, &a).await;
                }
            }
            e = bridge.events.recv() => match e {
                Some(Event::Features(f)) => return f,
                e => panic!("{e:?}"),
            },
        }
    }
}

#[tokio::test]
async fn what_a_switch_refuses_it_cannot_do() {
    assert_eq!(features_of(|_| false).await, Features { sample_with_registers: true, ct_label_flush: true });
    let old = features_of(|m| matches!(m, Message::BundleAdd(_) | Message::CtFlush(_))).await;
    assert_eq!(old, Features::default());
    let newer = features_of(|m| matches!(m, Message::BundleAdd(_))).await;
    assert_eq!(newer, Features { sample_with_registers: false, ct_label_flush: true });
}
