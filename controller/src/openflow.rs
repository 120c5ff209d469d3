//! The connection to the integration bridge: flows in bundles, packets to and fro.

use openflow_rs::connection::{ConnectionError, OUR_VERSIONS, Receiver, Sender, negotiate};
use openflow_rs::message::{
    BUNDLE_ATOMIC, BUNDLE_ORDERED, BundleAdd, BundleCommand, BundleControl, PacketIn, SwitchConfig, TlvMap, TlvTableMod,
};
use openflow_rs::{Message, MeterMod};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// The Geneve option that carries logical ports: class, type and length (ovn-architecture(7), "Tunnel Encapsulations").
const OPTION: TlvMap = TlvMap { class: 0x0102, kind: 0x80, len: 4, index: 0 };

/// What the switch is to do.
#[derive(Debug)]
pub enum Command {
    /// Changes of tables, all or none of them, in this order; when they are in force, [`Event::Installed`] says so.
    Bundle {
        /// The flow and group changes.
        changes: Vec<Message>,
        /// Meters, which no bundle can hold; sent before it.
        meters: Vec<MeterMod>,
        /// Meters that nothing uses any more afterwards.
        unused: Vec<MeterMod>,
        /// The caller's number for the bundle.
        sequence: u64,
    },
    /// A message on its own: a packet, or a flush.
    Send(Box<Message>),
}

/// What the switch says.
#[derive(Debug)]
pub enum Event {
    /// There is a new connection; the switch may have any flows.
    Connected,
    /// The connection is lost.
    Disconnected,
    /// A packet for the controller.
    PacketIn(Box<PacketIn>),
    /// The tables are as the bundle of this number and those before it say.
    Installed(u64),
    /// The switch refused something.
    Refused(String),
}

/// A handle on the connection's task.
#[derive(Clone, Debug)]
pub struct Switch(mpsc::UnboundedSender<Command>);

impl Switch {
    /// Starts connecting to a bridge's management socket, and again whenever the connection is lost.
    pub fn start(path: PathBuf) -> (Switch, mpsc::UnboundedReceiver<Event>) {
        let (tx, rx) = mpsc::unbounded_channel();
        let (event_tx, event_rx) = mpsc::unbounded_channel();
        tokio::spawn(run(path, rx, event_tx));
        (Switch(tx), event_rx)
    }

    /// Gives the switch something to do. What is given while there is no connection is lost.
    pub fn give(&self, command: Command) {
        // The task lives as long as the events are read.
        let _ = self.0.send(command);
    }
}

/// A local switch is back within moments of its restart; there is no reason to wait for it longer.
const RETRY: Duration = Duration::from_millis(50);

async fn run(path: PathBuf, mut commands: mpsc::UnboundedReceiver<Command>, events: mpsc::UnboundedSender<Event>) {
    let mut said = false;
    loop {
        match connect(&path).await {
            Ok((sender, receiver)) => {
                tracing::info!(target: "rconn", "unix:{}: connected", path.display());
                said = false;
                // What was meant for the connection before is of no use for this one.
                while commands.try_recv().is_ok() {}
                if events.send(Event::Connected).is_err() {
                    return;
                }
                let end = serve(sender, receiver, &mut commands, &events).await;
                tracing::info!(target: "rconn", "unix:{}: connection dropped ({})", path.display(), end.map_or_else(|e| e.to_string(), |()| "closing".into()));
                if events.send(Event::Disconnected).is_err() || commands.is_closed() {
                    return;
                }
            }
            Err(e) if !said => {
                tracing::info!(target: "rconn", "unix:{}: connection failed ({e})", path.display());
                said = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

type Halves = (Sender<UnixStream>, Receiver<UnixStream>);

async fn connect(path: &PathBuf) -> Result<Halves, ConnectionError> {
    let stream = UnixStream::connect(path).await?;
    let (mut sender, receiver) = negotiate(stream, OUR_VERSIONS).await?;
    // All of a packet comes with a packet-in; metadata and continuation come with NXT_PACKET_IN2.
    for m in [
        Message::SetConfig(SwitchConfig { flags: 0, miss_send_len: 0xffff }),
        Message::SetPacketInFormat(2),
        Message::TlvTableRequest,
    ] {
        let xid = sender.xid();
        sender.queue(xid, &m);
    }
    sender.flush().await?;
    Ok((sender, receiver))
}

async fn serve(
    mut sender: Sender<UnixStream>,
    mut receiver: Receiver<UnixStream>,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    events: &mpsc::UnboundedSender<Event>,
) -> Result<(), ConnectionError> {
    let mut bundle = 0;
    let mut waiting: std::collections::VecDeque<(u32, u64)> = std::collections::VecDeque::new();
    // Changes wait until the option is mapped, on which flows depend.
    let mut mapped = false;
    let mut map_barrier = None;
    let mut held = Vec::new();
    loop {
        tokio::select! {
            command = commands.recv() => {
                let Some(command) = command else { return Ok(()) };
                if mapped {
                    queue(&mut sender, command, &mut bundle, &mut waiting);
                } else {
                    held.push(command);
                }
            }
            received = receiver.recv() => {
                let received = received?;
                match received.message {
                    Ok(Message::EchoRequest(data)) => sender.queue(received.header.xid, &Message::EchoReply(data)),
                    Ok(Message::TlvTableReply(table)) if !mapped => {
                        if !table.maps.contains(&OPTION) {
                            let xid = sender.xid();
                            sender.queue(xid, &Message::TlvTableMod(TlvTableMod { command: 0, maps: vec![OPTION] }));
                        }
                        let xid = sender.xid();
                        sender.queue(xid, &Message::BarrierRequest);
                        map_barrier = Some(xid);
                    }
                    Ok(Message::BarrierReply) if map_barrier == Some(received.header.xid) => {
                        map_barrier = None;
                        mapped = true;
                        for c in held.drain(..) {
                            queue(&mut sender, c, &mut bundle, &mut waiting);
                        }
                    }
                    Ok(Message::BarrierReply) => {
                        while let Some((xid, sequence)) = waiting.front().copied() {
                            waiting.pop_front();
                            let _ = events.send(Event::Installed(sequence));
                            if xid == received.header.xid {
                                break;
                            }
                        }
                    }
                    Ok(Message::PacketIn2(p)) => drop(events.send(Event::PacketIn(Box::new(p)))),
                    Ok(Message::Error { error_type, code, data }) => {
                        let text = format!("OpenFlow error type {error_type} code {code} for {}", offender(&data));
                        let _ = events.send(Event::Refused(text));
                    }
                    Ok(_) => {}
                    Err(e) => tracing::warn!(target: "ofctrl", "undecodable OpenFlow message: {e}"),
                }
            }
            flushed = sender.flush(), if sender.backlog() > 0 => flushed?,
        }
    }
}

/// The start of the message that an error is about, as text where it decodes.
fn offender(data: &[u8]) -> String {
    match Message::decode(data) {
        Ok((_, m)) => format!("{m:?}").chars().take(300).collect(),
        Err(_) => data.iter().take(64).map(|b| format!("{b:02x}")).collect(),
    }
}

fn queue(
    sender: &mut Sender<UnixStream>,
    command: Command,
    bundle: &mut u32,
    waiting: &mut std::collections::VecDeque<(u32, u64)>,
) {
    match command {
        Command::Send(m) => {
            let xid = sender.xid();
            sender.queue(xid, &m);
        }
        Command::Bundle { changes, meters, unused, sequence } => {
            for m in meters {
                let xid = sender.xid();
                sender.queue(xid, &Message::MeterMod(m));
            }
            if !changes.is_empty() {
                *bundle += 1;
                let (id, flags) = (*bundle, BUNDLE_ATOMIC | BUNDLE_ORDERED);
                let mut put = |m: &Message| {
                    let xid = sender.xid();
                    sender.queue(xid, m);
                };
                put(&Message::BundleControl(BundleControl { id, command: BundleCommand::OpenRequest, flags }));
                for m in changes {
                    put(&Message::BundleAdd(BundleAdd { id, flags, message: Box::new(m) }));
                }
                put(&Message::BundleControl(BundleControl { id, command: BundleCommand::CommitRequest, flags }));
            }
            for m in unused {
                let xid = sender.xid();
                sender.queue(xid, &Message::MeterMod(m));
            }
            let xid = sender.xid();
            sender.queue(xid, &Message::BarrierRequest);
            waiting.push_back((xid, sequence));
        }
    }
}
