//! The packet-in services on a thread of their own, with a connection of their own: neither a long derivation nor a large bundle keeps
//! an answer waiting, and no flood keeps the loop from databases.
//!
//! ```text
//!   switch ──packets──► Queue ──► Services ──answers──► switch
//!                                  │    ▲
//!                          Report  ▼    │  Told, Resolved
//!                                 the loop
//! ```

use super::bfd::Sessions;
use super::queue::Queue;
use super::trace::Trace;
use super::{Report, Services, Snapshot, Told};
use crate::openflow::attempts::Attempts;
use crate::openflow::{Life, Target};
use openflow_rs::Message;
use openflow_rs::connection::{ConnectionError, Receiver, Sender};
use openflow_rs::message::SwitchConfig;
use ovn_schema::{DatapathKey, PortKey};
use ovsdb_rs::stream::BoxStream;
use packet::Mac;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// Reports that wait for the loop at most. What does not fit is lost: the packets that taught it come again.
const REPORTS: usize = 256;
/// Packets read before some are served, and served before some are read.
const TURN: usize = 32;
/// Octets that wait for the switch while packets are served.
const BACKLOG: usize = 1 << 20;
/// How often what waits in vain is looked for.
const EXPIRE: Duration = Duration::from_secs(1);

/// A neighbour that the database knows: datapath and port by key, and its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    /// The datapath's key.
    pub datapath: DatapathKey,
    /// The port's key.
    pub port: PortKey,
    /// Its IP address.
    pub ip: IpAddr,
    /// Its Ethernet address.
    pub mac: Mac,
}

/// A handle on the services; they end with it.
#[derive(Debug)]
pub struct Task {
    resolved: mpsc::UnboundedSender<Resolved>,
    reports: mpsc::Receiver<Report>,
    told: mpsc::UnboundedSender<Told>,
    /// For how many next hops packets wait.
    waiting: Arc<AtomicUsize>,
}

impl Task {
    /// Starts the services for a bridge; they keep their exchanges of DHCP in the trace.
    ///
    /// # Errors
    /// Where the system has no thread left.
    pub fn start(target: Target, trace: Trace) -> std::io::Result<Task> {
        let (resolved, rx) = mpsc::unbounded_channel();
        let (tx, reports) = mpsc::channel(REPORTS);
        let (told, heard) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let waiting: Arc<AtomicUsize> = Arc::default();
        let worker = Worker {
            waiting: waiting.clone(),
            services: Services::new(trace),
            queue: Queue::default(),
            resolved: rx,
            reports: tx,
            told: heard,
            snapshot: Snapshot::default(),
            sessions: Sessions::default(),
        };
        std::thread::Builder::new().name("pinctrl".into()).spawn(move || runtime.block_on(worker.run(target)))?;
        Ok(Task { resolved, reports, told, waiting })
    }

    /// Tells the services what changed of the databases.
    pub fn tell(&self, told: Told) {
        super::NOTIFIED.inc();
        // The thread ends with the handle only.
        let _ = self.told.send(told);
    }

    /// Tells of a neighbour, if there are packets that wait for any. Those that begin to wait are reported
    /// ([`Report::Waits`]) and find what the database has by then.
    pub fn resolved(&self, r: Resolved) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        super::NOTIFIED.inc();
        // The thread ends with the handle only.
        let _ = self.resolved.send(r);
    }

    /// Something that packets taught.
    pub async fn report(&mut self) -> Option<Report> {
        self.reports.recv().await
    }

    /// What else they taught by now.
    pub fn more(&mut self) -> Option<Report> {
        self.reports.try_recv().ok()
    }
}

struct Worker {
    services: Services,
    queue: Queue,
    resolved: mpsc::UnboundedReceiver<Resolved>,
    reports: mpsc::Sender<Report>,
    told: mpsc::UnboundedReceiver<Told>,
    snapshot: Snapshot,
    /// BFD sessions: here nothing keeps them waiting.
    sessions: Sessions,
    /// What the loop sees of the packets that wait.
    waiting: Arc<AtomicUsize>,
}

impl Worker {
    async fn run(mut self, target: Target) {
        let mut attempts = Attempts::new("pinctrl", target, false);
        let Target { remote, probe, .. } = attempts.target().clone();
        loop {
            if let Some((sender, receiver)) = attempts.connect().await {
                tracing::info!(target: "pinctrl", "{remote}: connected, for packets");
                match self.serve(sender, receiver, probe).await {
                    Ok(()) => return,
                    Err(e) => tracing::info!(target: "pinctrl", "{remote}: connection dropped ({e})"),
                }
                attempts.lost();
                self.queue = Queue::default();
            }
            if !self.without_switch(&mut attempts).await {
                return;
            }
        }
    }

    /// What there is to do until the switch is tried again: nothing is sent and nobody is heard. Says whether anybody wants the
    /// services still: the controller has another bridge by now where the loop tells nothing any more.
    async fn without_switch(&mut self, attempts: &mut Attempts) -> bool {
        let mut due = std::pin::pin!(attempts.due());
        loop {
            tokio::select! {
                () = &mut due => return true,
                told = self.told.recv() => match told {
                    Some(t) => self.take(t),
                    None => return false,
                },
                // Neighbours that nobody waits for any more.
                resolved = self.resolved.recv() => if resolved.is_none() { return false },
                () = at(self.sessions.next()) => drop(self.sessions.due(Instant::now())),
                // What the loop had no room for is told again.
                () = tokio::time::sleep(EXPIRE), if self.has_times() => {}
            }
            self.tell_states();
        }
    }

    async fn serve(
        &mut self,
        mut sender: Sender<BoxStream>,
        mut receiver: Receiver<BoxStream>,
        probe: Option<Duration>,
    ) -> Result<(), ConnectionError> {
        // All of a packet comes with a packet-in; metadata and continuation come with NXT_PACKET_IN2.
        for m in [Message::SetConfig(SwitchConfig { flags: 0, miss_send_len: 0xffff }), Message::SetPacketInFormat(2)] {
            let xid = sender.xid();
            sender.queue(xid, &m);
        }
        let mut life = Life::new(probe);
        let mut expire = tokio::time::interval(EXPIRE);
        expire.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut read = 0;
        loop {
            tokio::select! {
                biased;
                () = life.silence() => {
                    let xid = sender.xid();
                    sender.queue(xid, &life.ask()?);
                }
                () = at(self.sessions.next()) => self.tend(&mut sender),
                t = self.told.recv() => {
                    let Some(t) = t else { return Ok(()) };
                    self.take(t);
                }
                r = self.resolved.recv() => {
                    let Some(r) = r else { return Ok(()) };
                    send(&mut sender, self.services.resolved(r.datapath, r.port, r.ip, r.mac));
                    self.tell_waiting();
                }
                flushed = sender.flush(), if sender.backlog() > 0 => flushed?,
                received = receiver.recv(), if read < TURN => {
                    let received = received?;
                    life = life.heard();
                    read += 1;
                    match received.message {
                        Ok(Message::EchoRequest(data)) => sender.queue(received.header.xid, &Message::EchoReply(data)),
                        Ok(Message::PacketIn2(p)) if Sessions::takes(&p) => {
                            super::PACKETS.inc();
                            send(&mut sender, self.sessions.heard(&p, Instant::now()));
                            self.tell_states();
                        }
                        Ok(Message::PacketIn2(p)) => self.queue.push(p),
                        Ok(_) => {}
                        Err(e) => tracing::warn!(target: "pinctrl", "undecodable OpenFlow message: {e}"),
                    }
                    // What is no packet does not wait.
                    if self.queue.is_empty() {
                        read = 0;
                    }
                }
                () = std::future::ready(()), if !self.queue.is_empty() && sender.backlog() < BACKLOG => {
                    for _ in 0..TURN {
                        let Some(p) = self.queue.pop() else { break };
                        self.packet(p, &mut sender);
                    }
                    read = 0;
                    tokio::task::yield_now().await;
                }
                _ = expire.tick(), if self.has_times() => {
                    self.services.expire(Instant::now());
                    self.tell_waiting();
                    // What the loop had no room for.
                    self.tell_states();
                }
            }
        }
    }

    /// Takes over what the loop told.
    fn hear(&mut self) {
        while let Ok(told) = self.told.try_recv() {
            self.take(told);
        }
    }

    fn take(&mut self, told: Told) {
        let sessions = matches!(told, Told::Anew(_) | Told::Session(..));
        self.snapshot.take(told);
        if sessions {
            self.sessions.observe(self.snapshot.sessions(), Instant::now());
        }
    }

    /// Sends what BFD sessions have to send by now, and tells the loop how they are.
    fn tend(&mut self, sender: &mut Sender<BoxStream>) {
        let due = self.sessions.due(Instant::now());
        // A switch that reads nothing gets no late packets when it does.
        if sender.backlog() < BACKLOG {
            send(sender, due);
        }
        self.tell_states();
    }

    /// Whether there is anything to look for each second: packets that wait, or states that the loop had no room for.
    fn has_times(&self) -> bool {
        self.services.waiting() > 0 || !self.sessions.is_empty()
    }

    fn tell_waiting(&self) {
        self.waiting.store(self.services.waiting(), Ordering::Release);
    }

    fn tell_states(&mut self) {
        let reports = &self.reports;
        self.sessions.report(Instant::now(), |row, state| reports.try_send(Report::Session(row, state)).is_ok());
    }

    fn packet(&mut self, p: openflow_rs::message::PacketIn, sender: &mut Sender<BoxStream>) {
        super::PACKETS.inc();
        tracing::debug!(target: "vconn", "received: NXT_PACKET_IN2 (OF1.5): table_id={} cookie=0x{:x} total_len={}", p.table, p.cookie, p.total_len);
        tracing::debug!(target: "pinctrl", "pinctrl received  packet-in | opcode={}| OF_Table_ID={}| OF_Cookie_ID=0x{:x}", super::opcode_name(&p.userdata), p.table, p.cookie);
        self.hear();
        let out = self.services.handle(p, &self.snapshot, Instant::now());
        // Before the report: what the loop learns from now on is told.
        self.tell_waiting();
        send(sender, out.send);
        if let Some(r) = out.report {
            if let Report::Neighbour { datapath, port, ip, mac, .. } = r {
                send(sender, self.services.resolved(datapath, port, ip, mac));
                self.tell_waiting();
            }
            if self.reports.try_send(r).is_err() {
                super::LOST.inc();
            }
        }
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(t) => tokio::time::sleep_until(t.into()).await,
        None => std::future::pending().await,
    }
}

fn send(sender: &mut Sender<BoxStream>, messages: Vec<Message>) {
    for m in messages {
        let xid = sender.xid();
        if let Err(e) = sender.try_queue(xid, &m) {
            tracing::warn!(target: "pinctrl", kind = "an answer that does not fit", "an answer cannot be sent: {e}");
        }
    }
}
