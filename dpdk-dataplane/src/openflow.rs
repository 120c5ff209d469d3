//! The management socket of a bridge: OpenFlow connections (OpenFlow 1.3 to 1.5).

mod reply;

use crate::worker::{Handle, Worker};
use openflow_rs::Message;
use openflow_rs::connection::{ConnectionError, OUR_VERSIONS, Received, Receiver, Sender, error_reply, negotiate};
use openflow_rs::message::{
    BundleCommand, BundleControl, Features, Header, MultipartReply, MultipartRequest, PacketIn, PortStatus, Role,
    SwitchConfig, TlvTable, Version,
};
use openflow_rs::wire::DecodeError;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use switch::{BridgeId, Fragments};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Asynchronous messages that wait for a connection at most; more are dropped.
const QUEUE: usize = 1024;
/// Changes that are given to the worker at once.
const BATCH: usize = 256;
/// Messages that an open bundle holds at most.
const BUNDLE: usize = 4_000_000;

/// What a connection wants to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wants {
    controller: u16,
    /// 0: standard packet-ins; else NXT_PACKET_IN2.
    format: u32,
    /// 0 on a management socket: no asynchronous messages at all.
    miss_send_len: u16,
}

struct Listener {
    wants: Wants,
    queue: mpsc::Sender<Message>,
}

/// The connections of all bridges, to tell them things.
#[derive(Clone, Default)]
pub struct Connections {
    list: Arc<Mutex<HashMap<u64, (BridgeId, Listener)>>>,
    next: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
}

impl Connections {
    fn add(&self, bridge: BridgeId, listener: Listener) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(id, (bridge, listener));
        id
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, (BridgeId, Listener)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, id: u64, wants: Wants) {
        if let Some((_, l)) = self.lock().get_mut(&id) {
            l.wants = wants;
        }
    }

    /// Asynchronous messages that were dropped because a connection did not read.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn each(&self, bridge: BridgeId, mut f: impl FnMut(&Wants) -> Option<Message>) {
        for (b, l) in self.lock().values() {
            if *b == bridge
                && l.wants.miss_send_len > 0
                && let Some(m) = f(&l.wants)
                && l.queue.try_send(m).is_err()
            {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Tells the connections of a bridge that have this controller id of a packet.
    pub fn packet_in(&self, bridge: BridgeId, controller: u16, p: &PacketIn) {
        self.each(bridge, |w| {
            (w.controller == controller).then(|| match w.format {
                0 => Message::PacketIn(p.clone()),
                _ => Message::PacketIn2(p.clone()),
            })
        });
    }

    /// Tells all connections of a bridge.
    pub fn tell(&self, bridge: BridgeId, m: &Message) {
        self.each(bridge, |_| Some(m.clone()));
    }

    /// Tells of a port: 0 added, 1 deleted, 2 changed.
    pub fn port_status(&self, bridge: BridgeId, reason: u8, port: &switch::Port) {
        let desc = reply::port_desc(port);
        self.tell(bridge, &Message::PortStatus(PortStatus { reason, desc }));
    }
}

/// An open management socket; it is closed, and its connections with it, when this is dropped.
pub struct Socket {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
        // Another's socket may be there by now, or none.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Socket {
    /// Opens a bridge's socket, in place of a dead predecessor's.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn open(path: &Path, bridge: BridgeId, worker: Handle, all: Connections) -> std::io::Result<Socket> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => drop(open.spawn(serve(stream, bridge, worker.clone(), all.clone()))),
                        Err(e) => {
                            tracing::warn!(target: "rconn", "accept: {e}");
                            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                        }
                    },
                    Some(_) = open.join_next() => {}
                }
            }
        });
        Ok(Socket { path: path.to_path_buf(), task })
    }
}

async fn serve(stream: UnixStream, bridge: BridgeId, worker: Handle, all: Connections) {
    let (sender, receiver) = match negotiate(stream, OUR_VERSIONS).await {
        Ok(x) => x,
        Err(ConnectionError::Closed) => return,
        Err(e) => return tracing::info!(target: "rconn", "{e}"),
    };
    let wants = Wants { controller: 0, format: 0, miss_send_len: 0 };
    let (queue, events) = mpsc::channel(QUEUE);
    let id = all.add(bridge, Listener { wants, queue });
    let mut c = Connection {
        bridge,
        worker,
        all: all.clone(),
        id,
        wants,
        sender,
        config: SwitchConfig::default(),
        role: Role { role: 1, ..Default::default() },
        bundles: HashMap::new(),
        changed: false,
    };
    let end = c.run(receiver, events).await;
    all.lock().remove(&id);
    match end {
        Ok(()) | Err(ConnectionError::Closed) => {}
        Err(e) => tracing::info!(target: "rconn", "{e}"),
    }
}

#[derive(Default)]
struct Bundle {
    messages: Vec<(u32, Message)>,
    closed: bool,
}

struct Connection {
    bridge: BridgeId,
    worker: Handle,
    all: Connections,
    id: u64,
    wants: Wants,
    sender: Sender<UnixStream>,
    config: SwitchConfig,
    role: Role,
    bundles: HashMap<u32, Bundle>,
    /// Tables were changed since the last barrier.
    changed: bool,
}

/// A message that changes tables, which the worker carries out.
fn is_change(m: &Message) -> bool {
    matches!(
        m,
        Message::FlowMod(_)
            | Message::GroupMod(_)
            | Message::MeterMod(_)
            | Message::TlvTableMod(_)
            | Message::CtFlushZone(_)
            | Message::CtFlush(_)
            | Message::PacketOut(_)
            | Message::Resume(_)
            | Message::PortMod(_)
    )
}

fn apply(w: &mut Worker, bridge: BridgeId, m: &Message) -> Result<(), DecodeError> {
    let now = w.now();
    let error = |error_type, code, detail: &str| Err(DecodeError { error_type, code, detail: detail.into() });
    match m {
        Message::PacketOut(p) => {
            if p.buffer_id != u32::MAX {
                return error(1, 8, "no packet is buffered here");
            }
            w.packet_out(bridge, p, now);
            Ok(())
        }
        Message::Resume(p) => w.resume(p).or_else(|e| error(1, 5, &e.to_string())),
        Message::PortMod(p) => {
            let Some(port) = w.switch.bridge_mut(bridge).and_then(|b| b.ports.get_mut(&p.port)) else {
                return error(7, 0, "no such port");
            };
            if port.hw_addr != p.hw_addr {
                return error(7, 1, "the port has another address");
            }
            if p.mask & 0x10 != 0 {
                port.no_flood = p.config & 0x10 != 0;
            }
            Ok(())
        }
        m => w.switch.apply(bridge, m, now),
    }
}

impl Connection {
    async fn run(
        &mut self,
        mut receiver: Receiver<UnixStream>,
        mut events: mpsc::Receiver<Message>,
    ) -> Result<(), ConnectionError> {
        loop {
            tokio::select! {
                received = receiver.recv() => {
                    let mut next = Some(received?);
                    while let Some(r) = next.take() {
                        next = self.batch(r, &mut receiver).await?;
                    }
                }
                Some(m) = events.recv() => {
                    let xid = 0;
                    self.sender.queue(xid, &m);
                    while self.sender.backlog() < 1 << 16 && let Ok(m) = events.try_recv() {
                        self.sender.queue(xid, &m);
                    }
                }
            }
            self.sender.flush().await?;
        }
    }

    /// Handles a message, together with those after it that are there already, as long as all are changes. Gives back
    /// the first that is not.
    async fn batch(
        &mut self,
        first: Received,
        receiver: &mut Receiver<UnixStream>,
    ) -> Result<Option<Received>, ConnectionError> {
        let version = self.sender.version();
        let mut changes = Vec::new();
        let mut next = Some(first);
        while let Some(r) = next.take() {
            match r.message {
                Ok(m) if is_change(&m) => changes.push((r.header, m)),
                _ => {
                    next = Some(r);
                    break;
                }
            }
            if changes.len() >= BATCH {
                break;
            }
            next = futures::FutureExt::now_or_never(receiver.recv()).transpose()?;
        }
        if !changes.is_empty() {
            self.changed |= changes.iter().any(|(_, m)| matches!(m, Message::FlowMod(_)));
            let bridge = self.bridge;
            let errors = self.worker.run(move |w| {
                let mut errors = Vec::new();
                for (h, m) in &changes {
                    if let Err(e) = apply(w, bridge, m) {
                        errors.push((h.xid, e, m.encode(version, h.xid)));
                    }
                }
                errors
            });
            for (xid, e, raw) in errors.await.unwrap_or_default() {
                self.refuse(xid, &e, &raw);
            }
        }
        match next {
            Some(Received { header, message: Err(e), raw }) => {
                self.refuse(header.xid, &e, &raw);
                Ok(None)
            }
            Some(Received { header, message: Ok(m), raw }) if is_change(&m) => {
                Ok(Some(Received { header, message: Ok(m), raw }))
            }
            Some(Received { header, message: Ok(m), .. }) => {
                self.handle(header, m).await;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn refuse(&mut self, xid: u32, e: &DecodeError, raw: &[u8]) {
        tracing::info!(target: "ofproto", "sending error reply: {e}");
        self.sender.queue(xid, &error_reply(e, raw));
    }

    fn reply(&mut self, h: Header, m: &Message) {
        self.sender.queue(h.xid, m);
    }

    async fn handle(&mut self, h: Header, m: Message) {
        let bridge = self.bridge;
        match m {
            Message::Hello(_) | Message::EchoReply(_) | Message::Error { .. } | Message::SetFlowFormat(_) => {}
            Message::EchoRequest(data) => self.reply(h, &Message::EchoReply(data)),
            Message::FeaturesRequest => {
                let id = self.worker.run(move |w| w.switch.bridge(bridge).map_or(0, |b| b.datapath_id)).await;
                let f = Features {
                    datapath_id: id.unwrap_or(0),
                    n_buffers: 0,
                    n_tables: 254,
                    auxiliary_id: 0,
                    // Flow, table and port statistics, group statistics, queue statistics.
                    capabilities: 0x4f,
                };
                self.reply(h, &Message::FeaturesReply(f));
            }
            Message::GetConfigRequest => {
                let flags = self.worker.run(move |w| w.switch.bridge(bridge).map_or(0, |b| b.fragments as u16)).await;
                let config = SwitchConfig { flags: flags.unwrap_or(0), ..self.config };
                self.reply(h, &Message::GetConfigReply(config));
            }
            Message::SetConfig(c) => {
                self.config = c;
                let fragments = match c.flags & 3 {
                    1 => Fragments::Drop,
                    3 => Fragments::Match,
                    _ => Fragments::Normal,
                };
                self.worker.post(move |w| {
                    // Opening a bridge to change makes cached flows stale.
                    if w.switch.bridge(bridge).is_some_and(|b| b.fragments != fragments)
                        && let Some(b) = w.switch.bridge_mut(bridge)
                    {
                        b.fragments = fragments;
                    }
                });
                self.want(|w| w.miss_send_len = c.miss_send_len);
            }
            Message::SetPacketInFormat(f) => self.want(|w| w.format = f),
            Message::SetControllerId(c) => self.want(|w| w.controller = c),
            Message::RoleRequest(r) => {
                if r.role != 0 {
                    self.role = r;
                }
                let role = Role { generation_id: self.role.generation_id, ..self.role };
                self.reply(h, &Message::RoleReply(role));
            }
            Message::TableMod(254, _) => {
                let e = DecodeError { error_type: 8, code: 2, detail: "table 254 is the switch's own".into() };
                let raw = Message::TableMod(254, 0).encode(self.sender.version(), h.xid);
                self.refuse(h.xid, &e, &raw);
            }
            Message::SetAsync(_) | Message::TableMod(..) => {}
            Message::BarrierRequest => {
                if std::mem::take(&mut self.changed) {
                    self.tables_ready().await;
                }
                self.reply(h, &Message::BarrierReply);
            }
            Message::TlvTableRequest => {
                let maps = self.worker.run(move |w| w.switch.bridge(bridge).map(|b| b.tlv.clone())).await;
                let maps = maps.flatten().unwrap_or_default();
                self.reply(h, &Message::TlvTableReply(TlvTable { max_option_space: 248, max_fields: 8, maps }));
            }
            Message::BundleControl(c) => self.bundle_control(h, c).await,
            Message::BundleAdd(a) => {
                let b = self.bundles.entry(a.id).or_default();
                if b.closed {
                    return self.bundle_error(h, 4, "the bundle is closed");
                }
                if b.messages.len() >= BUNDLE {
                    return self.bundle_error(h, 5, "the bundle is too large");
                }
                b.messages.push((h.xid, *a.message));
            }
            Message::MultipartRequest(q) => self.multipart(h, q).await,
            other => {
                let e = DecodeError { error_type: 1, code: 1, detail: "not a message for a switch".into() };
                let raw = other.encode(self.sender.version(), h.xid);
                self.refuse(h.xid, &e, &raw);
            }
        }
    }

    fn want(&mut self, f: impl FnOnce(&mut Wants)) {
        f(&mut self.wants);
        self.all.set(self.id, self.wants);
    }

    async fn tables_ready(&self) {
        let bridge = self.bridge;
        let done = self.worker.run(move |w| {
            let now = w.now();
            w.monitors.tables_ready(bridge, now);
        });
        // Without a worker there is nothing to get ready.
        let _ = done.await;
    }

    fn bundle_error(&mut self, h: Header, code: u16, detail: &str) {
        let e = DecodeError { error_type: 17, code, detail: detail.into() };
        let raw = [h.version, h.kind, 0, 8].into_iter().chain(h.xid.to_be_bytes()).collect::<Vec<u8>>();
        self.refuse(h.xid, &e, &raw);
    }

    async fn bundle_control(&mut self, h: Header, c: BundleControl) {
        use BundleCommand as C;
        let answer = match c.command {
            C::OpenRequest => {
                if self.bundles.contains_key(&c.id) {
                    self.bundles.remove(&c.id);
                    return self.bundle_error(h, 2, "the bundle exists");
                }
                self.bundles.insert(c.id, Bundle::default());
                C::OpenReply
            }
            C::CloseRequest => match self.bundles.get_mut(&c.id) {
                Some(b) if !b.closed => {
                    b.closed = true;
                    C::CloseReply
                }
                Some(_) => return self.bundle_error(h, 4, "the bundle is closed"),
                None => return self.bundle_error(h, 2, "no such bundle"),
            },
            C::DiscardRequest => {
                self.bundles.remove(&c.id);
                C::DiscardReply
            }
            C::CommitRequest => {
                let Some(b) = self.bundles.remove(&c.id) else { return self.bundle_error(h, 2, "no such bundle") };
                if !self.commit(h, b).await {
                    return;
                }
                C::CommitReply
            }
            _ => return self.bundle_error(h, 8, "a reply in place of a request"),
        };
        self.reply(h, &Message::BundleControl(BundleControl { command: answer, ..c }));
    }

    /// Carries a bundle out; false, with the error sent, where it failed.
    async fn commit(&mut self, h: Header, b: Bundle) -> bool {
        let bridge = self.bridge;
        let version = self.sender.version();
        let (xids, list): (Vec<u32>, Vec<Message>) = b.messages.into_iter().unzip();
        // Packets go once the tables are in place.
        let (packets, changes): (Vec<_>, Vec<_>) =
            list.into_iter().enumerate().partition(|(_, m)| matches!(m, Message::PacketOut(_)));
        let (index, changes): (Vec<usize>, Vec<Message>) = changes.into_iter().unzip();
        let changes = std::sync::Arc::new(changes);
        let Some(done) = self.worker.apply_bundle(bridge, changes.clone()).await else { return false };
        if let Err((i, e)) = done {
            let xid = index.get(i).and_then(|at| xids.get(*at)).copied().unwrap_or(0);
            let raw = changes.get(i).map(|m| m.encode(version, xid)).unwrap_or_default();
            self.refuse(Header::parse(&raw).map_or(h.xid, |i| i.xid), &e, &raw);
            self.bundle_error(h, 15, "a message of the bundle failed");
            return false;
        }
        let rest = self.worker.run(move |w| {
            for (_, m) in &packets {
                // A packet that cannot be sent does not undo the bundle.
                let _ = apply(w, bridge, m);
            }
            let now = w.now();
            w.monitors.tables_ready(bridge, now);
        });
        rest.await.is_some()
    }

    async fn multipart(&mut self, h: Header, q: MultipartRequest) {
        let (bridge, version) = (self.bridge, self.sender.version());
        let raw = Message::MultipartRequest(q.clone()).encode(version, h.xid);
        let answer = self.worker.run(move |w| reply::multipart(w, bridge, &q, version >= Version::Of15));
        match answer.await {
            Some(Ok(body)) => {
                let body: MultipartReply = body;
                self.reply(h, &Message::MultipartReply { more: false, body });
            }
            Some(Err(e)) => self.refuse(h.xid, &e, &raw),
            None => {}
        }
    }
}
