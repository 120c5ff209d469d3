//! The connections to the integration bridge, as many as ovn-controller's, so that none holds up another:
//!
//! | connection | carries | why on its own |
//! |---|---|---|
//! | `ofctrl` (here) | flows, groups and meters, in bundles | an error on it is a fault |
//! | `pinctrl` (`pinctrl::task`) | packets and their answers | no bundle keeps an answer waiting |
//! | `statctrl` ([`statistics`]) | statistics of flows | a switch takes nothing from a connection while its replies wait there |
//! | `features` ([`features`]) | questions what the switch can do | what it refuses there is an answer |

pub(crate) mod attempts;
pub mod features;
mod folder;
pub mod install;
pub mod statistics;

use crate::openflow::install::TableChange;
use attempts::Attempts;
use features::Features;
use openflow_rs::connection::{ConnectionError, OUR_VERSIONS, Receiver, Sender, negotiate};
use openflow_rs::message::{
    BUNDLE_ATOMIC, BUNDLE_ORDERED, BundleCommand, BundleControl, FlowStats, MultipartReply, MultipartRequest, TlvMap,
    TlvTableMod,
};
use openflow_rs::mods::{MeterConfig, MeterModCommand};
use openflow_rs::{Message, MeterId, MeterMod};
use ovsdb_rs::stream::{self, BoxStream, Remote};
use ovsdb_rs::tls::Tls;
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The Geneve option that carries logical ports: class, type and length (ovn-architecture(7), "Tunnel Encapsulations").
const OPTION: TlvMap = TlvMap { class: 0x0102, kind: 0x80, len: 4, index: 0 };

/// What the switch is to do.
#[derive(Debug)]
pub enum Command {
    /// Changes of tables, all or none of them, in this order; when they are in force, [`Event::Installed`] says so.
    Bundle {
        /// The flow and group changes.
        changes: Vec<TableChange>,
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
    /// Statistics of flows that were asked for.
    Statistics(Vec<FlowStats>),
    /// What the switch can do.
    Features(Features),
    /// The tables are as the bundle of this number and those before it say.
    Installed(u64),
    /// The switch refused something.
    Refused(String),
}

/// Where a bridge is managed, and how.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its management socket, or what `ovn-bridge-remote` names.
    pub remote: Remote,
    /// Certificates, for `ssl:`.
    pub tls: Option<Tls>,
    /// The silence after which the switch is asked for a sign of life; none: never.
    pub probe: Option<Duration>,
}

/// A handle on the connection's task.
#[derive(Clone, Debug)]
pub struct Switch(mpsc::UnboundedSender<Command>);

impl Switch {
    /// Starts connecting to where a bridge is managed, and again whenever the connection is lost.
    pub fn start(target: Target, events: mpsc::Sender<Event>) -> Switch {
        let (tx, rx) = mpsc::unbounded_channel();
        tokio::spawn(run(Attempts::new("ofctrl", target, true), rx, events));
        Switch(tx)
    }

    /// Gives the switch something to do. What is given while there is no connection is lost.
    pub fn give(&self, command: Command) {
        // The task lives as long as the events are read.
        let _ = self.0.send(command);
    }
}

/// Events that wait for the controller's loop at most.
const EVENTS: usize = 1024;

/// Where the connections to a bridge tell what they hear.
pub fn events() -> (mpsc::Sender<Event>, mpsc::Receiver<Event>) {
    mpsc::channel(EVENTS)
}

/// The highest number of a meter; those above stand for the switch's own (OpenFlow 1.5 section 7.3.4.5).
const METER_MAX: MeterId = MeterId(0xffff_0000);

/// A machine that does not answer at all.
const CONNECT: Duration = Duration::from_secs(10);

async fn run(mut attempts: Attempts, mut commands: mpsc::UnboundedReceiver<Command>, events: mpsc::Sender<Event>) {
    let Target { remote, probe, .. } = attempts.target().clone();
    // The controller has another bridge by now where the events are closed.
    while !events.is_closed() {
        if let Some((sender, receiver)) = attempts.connect().await {
            tracing::info!(target: "rconn", "{remote}: connected");
            // What was meant for the connection before is of no use for this one.
            while commands.try_recv().is_ok() {}
            if events.send(Event::Connected).await.is_err() {
                return;
            }
            let end = serve(sender, receiver, probe, &mut commands, &events).await;
            tracing::info!(target: "rconn", "{remote}: connection dropped ({})", end.map_or_else(|e| e.to_string(), |()| "closing".into()));
            attempts.lost();
            if events.send(Event::Disconnected).await.is_err() || commands.is_closed() {
                return;
            }
        }
        tokio::select! {
            () = attempts.due() => {}
            () = events.closed() => return,
        }
    }
}

pub(crate) type Halves = (Sender<BoxStream>, Receiver<BoxStream>);

/// Connects to a bridge. No packets come before the switch is told how ([`Message::SetConfig`]).
pub(crate) async fn connect(target: &Target) -> Result<Halves, ConnectionError> {
    let open = async {
        let stream = stream::connect(&target.remote, target.tls.as_ref()).await?;
        negotiate(stream, OUR_VERSIONS).await
    };
    let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    tokio::time::timeout(CONNECT, open).await.map_err(late)?
}

async fn serve(
    mut sender: Sender<BoxStream>,
    mut receiver: Receiver<BoxStream>,
    probe: Option<Duration>,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    events: &mpsc::Sender<Event>,
) -> Result<(), ConnectionError> {
    let mut outgoing = Outgoing::default();
    let mut waiting = Waiting::default();
    // Meters that the switch has from before; it answers in order, so they are known when the first bundle goes.
    let mut old_meters = BTreeSet::new();
    // Changes wait until the option is mapped, on which flows depend.
    let mut mapped = false;
    let mut map_barrier = None;
    let mut held = Vec::new();
    for m in [Message::MultipartRequest(MultipartRequest::MeterConfig(MeterId::ALL)), Message::TlvTableRequest] {
        let xid = sender.xid();
        sender.queue(xid, &m);
    }
    let mut life = Life::new(probe);
    loop {
        for refused in outgoing.fill(&mut sender, &mut waiting) {
            let _ = events.send(Event::Refused(refused)).await;
        }
        tokio::select! {
            () = life.silence() => {
                let xid = sender.xid();
                sender.queue(xid, &life.ask()?);
            }
            command = commands.recv() => {
                let Some(mut command) = command else { return Ok(()) };
                if mapped {
                    delete_meters(&mut command, &mut old_meters);
                    outgoing.commands.push_back(command);
                } else {
                    held.push(command);
                }
            }
            received = receiver.recv() => {
                let received = received?;
                life = life.heard();
                match received.message {
                    Ok(Message::EchoRequest(data)) => sender.queue(received.header.xid, &Message::EchoReply(data)),
                    Ok(Message::MultipartReply { body: MultipartReply::MeterConfig(all), .. }) if !mapped => {
                        old_meters.extend(all.iter().map(|m| m.id));
                    }
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
                        for mut c in held.drain(..) {
                            delete_meters(&mut c, &mut old_meters);
                            outgoing.commands.push_back(c);
                        }
                    }
                    Ok(Message::BarrierReply) => answered(received.header.xid, &mut waiting, &mut outgoing, events).await,
                    Ok(Message::BundleControl(c)) if c.command == BundleCommand::CommitReply => {
                        answered(received.header.xid, &mut waiting, &mut outgoing, events).await;
                    }
                    Ok(Message::Error { error_type, code, data }) => {
                        let what = match waiting.refused(received.header.xid) {
                            Culprit::Known => None,
                            Culprit::Change(c) => Some(describe_change(c)),
                            Culprit::Other => Some(offender(&data)),
                        };
                        if let Some(what) = what {
                            let text = format!("OpenFlow error type {error_type} code {code} for {what}");
                            let _ = events.send(Event::Refused(text)).await;
                        }
                        // A commit that is refused has no other answer.
                        answered(received.header.xid, &mut waiting, &mut outgoing, events).await;
                    }
                    Ok(_) => {}
                    Err(e) => tracing::warn!(target: "ofctrl", "undecodable OpenFlow message: {e}"),
                }
            }
            flushed = sender.flush(), if sender.backlog() > 0 => flushed?,
        }
    }
}

/// Tells of the bundles that an answer confirms, and sends again what can be in force of one that was refused.
async fn answered(xid: u32, waiting: &mut Waiting, outgoing: &mut Outgoing, events: &mpsc::Sender<Event>) {
    for b in waiting.done(xid) {
        let sequence = b.sequence;
        match b.again() {
            None => drop(events.send(Event::Installed(sequence)).await),
            Some(changes) => {
                let (meters, unused) = (Vec::new(), Vec::new());
                outgoing.commands.push_front(Command::Bundle { changes, meters, unused, sequence });
            }
        }
    }
}

/// Has the first bundle of a connection, which replaces all tables, delete the meters of a former run that it does not
/// use. They go after the bundle, since deleting a meter deletes the flows that use it.
fn delete_meters(command: &mut Command, old: &mut BTreeSet<MeterId>) {
    let Command::Bundle { meters, unused, .. } = command else { return };
    let used: BTreeSet<MeterId> = meters.iter().map(|m| m.meter.id).collect();
    for id in std::mem::take(old).difference(&used).filter(|id| **id <= METER_MAX) {
        unused.push(MeterMod {
            command: MeterModCommand::Delete,
            meter: MeterConfig { id: *id, flags: 0, bands: vec![] },
        });
    }
}

/// When the switch was heard of.
pub(crate) struct Life {
    probe: Option<Duration>,
    heard: Instant,
    asked: bool,
}

impl Life {
    /// Of a switch that was heard just now.
    pub(crate) fn new(probe: Option<Duration>) -> Life {
        Life { probe, heard: Instant::now(), asked: false }
    }

    /// It was heard again.
    pub(crate) fn heard(self) -> Life {
        Life::new(self.probe)
    }

    /// The question to a switch that is silent; one that was asked already is taken for dead.
    pub(crate) fn ask(&mut self) -> std::io::Result<Message> {
        if self.asked {
            return Err(std::io::Error::other("no response to inactivity probe"));
        }
        self.asked = true;
        Ok(Message::EchoRequest(Vec::new()))
    }

    /// Ends when the switch has been silent for as long as is allowed: once, and after a question once more.
    pub(crate) async fn silence(&self) {
        match self.probe {
            Some(p) => tokio::time::sleep_until((self.heard + p * if self.asked { 2 } else { 1 }).into()).await,
            None => std::future::pending().await,
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

/// A change as ovs-ofctl prints it.
fn describe_change(c: &TableChange) -> String {
    match c {
        TableChange::Other(m) => describe(m),
        TableChange::Flow(f) => match f.unpack() {
            Ok(m) => format!("flow {}", openflow_rs::text::flow_to_string(&m)),
            Err(e) => format!("flow of table {} with priority {}, {e}", f.table, f.priority),
        },
    }
}

/// A message as ovs-ofctl prints it.
fn describe(m: &Message) -> String {
    match m {
        Message::FlowMod(f) => format!("flow {}", openflow_rs::text::flow_to_string(f)),
        Message::GroupMod(g) => {
            format!("group {}", openflow_rs::text::group_to_string(&g.group)).chars().take(300).collect()
        }
        m => format!("{m:?}").chars().take(300).collect(),
    }
}

/// A bundle on its way.
#[derive(Debug)]
struct Pending {
    sequence: u64,
    /// The transaction id before those of the changes, which follow in their order, then the commit's.
    before: u32,
    changes: Vec<TableChange>,
    /// The request whose answer says that all is in force: the commit, or a barrier after messages that no bundle can
    /// hold. None while the bundle is being sent.
    last: Option<u32>,
    /// Changes that the switch refused.
    bad: BTreeSet<usize>,
    /// The bundle as a whole was refused, so nothing of it is in force.
    failed: bool,
}

impl Pending {
    /// What to send again: the changes without those that were refused. None if the bundle is in force, or if the
    /// switch refused it without naming a change.
    fn again(&self) -> Option<Vec<TableChange>> {
        if !self.failed || self.bad.is_empty() {
            return None;
        }
        let good = self.changes.iter().enumerate().filter(|(n, _)| !self.bad.contains(n));
        Some(good.map(|(_, m)| m.clone()).collect())
    }
}

/// What an error is about.
enum Culprit<'a> {
    /// Something expected, or said already.
    Known,
    /// A change of a bundle.
    Change(&'a TableChange),
    /// Something else.
    Other,
}

/// What the switch has not confirmed.
#[derive(Debug, Default)]
struct Waiting {
    bundles: VecDeque<Pending>,
    /// Messages of which one is refused as it must be: a meter is added and, where it is there already, changed.
    expected: BTreeSet<u32>,
}

impl Waiting {
    /// The bundles that an answer confirms.
    fn done(&mut self, xid: u32) -> Vec<Pending> {
        let Some(last) = self.bundles.iter().position(|b| b.last == Some(xid)) else { return Vec::new() };
        self.expected.clear();
        self.bundles.drain(..=last).collect()
    }

    /// Takes note of an error.
    fn refused(&mut self, xid: u32) -> Culprit<'_> {
        if self.expected.contains(&xid) {
            return Culprit::Known;
        }
        let inside = |b: &&mut Pending| xid > b.before && xid - b.before <= b.changes.len() as u32 + 1;
        let Some(b) = self.bundles.iter_mut().find(inside) else { return Culprit::Other };
        match (xid - b.before).checked_sub(1).map(|n| n as usize) {
            Some(n) if n < b.changes.len() => {
                b.bad.insert(n);
                b.changes.get(n).map_or(Culprit::Other, Culprit::Change)
            }
            _ => {
                b.failed = true;
                if b.bad.is_empty() { Culprit::Other } else { Culprit::Known }
            }
        }
    }
}

/// How many octets may wait for the switch. Further changes wait unencoded: a full table is large, and is sent in
/// pieces.
const BACKLOG: usize = 1 << 18;

/// What is on its way to the switch.
#[derive(Debug, Default)]
struct Outgoing {
    commands: VecDeque<Command>,
    /// The bundle that is being sent.
    bundle: Option<Sending>,
    /// The number of the last bundle.
    last: u32,
}

/// The last bundle of [`Waiting`], of which a part is sent.
#[derive(Debug)]
struct Sending {
    id: u32,
    /// How many changes are sent.
    sent: usize,
    unused: Vec<MeterMod>,
}

impl Outgoing {
    /// Gives the connection as much as it is to hold. Returns what cannot be sent.
    fn fill(&mut self, sender: &mut Sender<BoxStream>, waiting: &mut Waiting) -> Vec<String> {
        let mut refused = Vec::new();
        while sender.backlog() < BACKLOG {
            if let Some(mut s) = self.bundle.take() {
                let Some(p) = waiting.bundles.back_mut() else { continue };
                match p.changes.get(s.sent) {
                    Some(_) => {
                        refused.extend(s.next(p, sender));
                        self.bundle = Some(s);
                    }
                    None => s.end(p, sender),
                }
                continue;
            }
            match self.commands.pop_front() {
                None => break,
                Some(Command::Send(m)) => {
                    let xid = sender.xid();
                    if let Err(e) = sender.try_queue(xid, &m) {
                        refused.push(format!("{}: {e}", describe(&m)));
                    }
                }
                Some(Command::Bundle { changes, meters, unused, sequence }) => {
                    self.last += 1;
                    send_meters(sender, meters, waiting);
                    let before = begin(sender, changes.len());
                    let bad = BTreeSet::new();
                    waiting.bundles.push_back(Pending { sequence, before, changes, last: None, bad, failed: false });
                    self.bundle = Some(Sending { id: self.last, sent: 0, unused });
                }
            }
        }
        refused
    }
}

const FLAGS: u16 = BUNDLE_ATOMIC | BUNDLE_ORDERED;

fn control(id: u32, command: BundleCommand) -> Message {
    Message::BundleControl(BundleControl { id, command, flags: FLAGS })
}

fn send_meters(sender: &mut Sender<BoxStream>, meters: Vec<MeterMod>, waiting: &mut Waiting) {
    for (n, m) in meters.iter().cloned().enumerate() {
        let xid = sender.xid();
        let next = meters.get(n + 1).is_some_and(|o| o.meter.id == m.meter.id);
        if m.command == MeterModCommand::Add && next {
            waiting.expected.insert(xid);
        }
        sender.queue(xid, &Message::MeterMod(m));
    }
}

/// Sets transaction ids aside for a bundle of so many changes: those of the changes follow the one that is returned,
/// and the commit's comes behind them; other messages may go in between. The first change opens the bundle (OpenFlow
/// 1.5 section 7.3.9.4), which spares the switch a reply and the controller a wakeup.
fn begin(sender: &mut Sender<BoxStream>, changes: usize) -> u32 {
    let first = sender.xid();
    if changes > 0 {
        (0..=changes).for_each(|_| {
            sender.xid();
        });
    }
    first
}

impl Sending {
    /// Sends the next change. Says why it cannot be sent.
    fn next(&mut self, p: &mut Pending, sender: &mut Sender<BoxStream>) -> Option<String> {
        let change = p.changes.get(self.sent)?;
        let xid = p.before.wrapping_add(self.sent as u32 + 1);
        let octets = match change {
            TableChange::Flow(f) => f.bundle_add(sender.version(), self.id, FLAGS, xid),
            TableChange::Other(m) => m.bundle_add(sender.version(), self.id, FLAGS, xid),
        };
        let refused = octets.map(|o| sender.queue_octets(o)).err().map(|e| format!("{}: {e}", describe_change(change)));
        if refused.is_some() {
            p.bad.insert(self.sent);
        }
        self.sent += 1;
        refused
    }

    /// Commits the bundle. The switch says when all is in force: it answers the commit, or a barrier where there is
    /// more than the bundle.
    fn end(self, p: &mut Pending, sender: &mut Sender<BoxStream>) {
        if !p.changes.is_empty() {
            let xid = p.before.wrapping_add(p.changes.len() as u32 + 1);
            sender.queue(xid, &control(self.id, BundleCommand::CommitRequest));
            if self.unused.is_empty() {
                p.last = Some(xid);
                return;
            }
        }
        for m in self.unused {
            let xid = sender.xid();
            sender.queue(xid, &Message::MeterMod(m));
        }
        let barrier = sender.xid();
        sender.queue(barrier, &Message::BarrierRequest);
        p.last = Some(barrier);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::{FlowModCommand, Match, PackedActions, PackedFlow, PackedMatch};

    fn pending(n: u16) -> Pending {
        let changes = (0..n)
            .map(|p| {
                TableChange::Flow(PackedFlow {
                    command: FlowModCommand::Add,
                    table: openflow_rs::TableId::FIRST,
                    priority: p,
                    cookie: 0,
                    matches: PackedMatch::from(&Match::new()),
                    actions: PackedActions::from(&[][..]),
                })
            })
            .collect();
        Pending { sequence: 1, before: 10, changes, last: Some(99), bad: Default::default(), failed: false }
    }

    #[test]
    fn a_refused_bundle_goes_again_without_what_was_refused() {
        let mut w = Waiting::default();
        w.bundles.push_back(pending(3));
        assert!(matches!(w.refused(12), Culprit::Change(TableChange::Flow(f)) if f.priority == 1));
        // The commit's own error says no more.
        assert!(matches!(w.refused(14), Culprit::Known));
        assert!(matches!(w.refused(15), Culprit::Other));
        let done = w.done(99);
        let again = done[0].again().unwrap();
        assert_eq!(again.len(), 2);
        assert!(!again.iter().any(|m| matches!(m, TableChange::Flow(f) if f.priority == 1)));
    }

    #[test]
    fn a_bundle_that_is_in_force_does_not_go_again() {
        let mut w = Waiting::default();
        w.bundles.push_back(pending(3));
        assert!(matches!(w.refused(11), Culprit::Change(_)));
        assert!(w.done(99)[0].again().is_none(), "the switch took the rest");
    }
}
