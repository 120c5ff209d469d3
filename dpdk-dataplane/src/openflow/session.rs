//! One OpenFlow connection: its messages, its bundles, its role.

use super::changes::{flushes, is_change, is_write, sweeps};
use super::connections::{Connections, Origin, SECONDARY, Told, Wants};
use super::packet_in_queue::{self, PacketInQueues};
use super::reply;
use super::requests::Change;
use crate::config::controller::ControllerSpec;
use crate::pmd::{Handle, PmdEnded};
use openflow_rs::connection::{ConnectionError, Received, Receiver, Sender, error_reply, negotiate};
use openflow_rs::message::{
    BundleAdd, BundleCommand, BundleControl, Features, FlowMonitor, Header, MultipartReply, MultipartRequest, Role,
    SwitchConfig, TlvTable, Version,
};
use openflow_rs::mods::FlowModCommand;
use openflow_rs::text::message_to_string;
use openflow_rs::wire::DecodeError;
use openflow_rs::{GroupId, Match, Message, OfError, PortNo, TableId};
use std::collections::HashMap;
use std::time::Duration;
use switch::conntrack::Flush;
use switch::{BridgeId, Fragments, TableMiss};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;

/// OFPC_INVALID_TTL_TO_CONTROLLER, by which a controller before OpenFlow 1.3 asks for packets whose TTL expires.
const INVALID_TTL: u16 = 4;

/// The most changes that the main PMD thread gets in one job.
const BATCH: usize = 32;
/// In a bridge with more flows than this, a change that may concern all of them is made in another thread, like a
/// bundle.
const MANY: usize = 1000;
/// Silence after which the peer at a management socket is probed, as in Open vSwitch.
const MANAGEMENT_PROBE: Duration = Duration::from_secs(60);
/// Bytes that wait to be written behind which neither requests nor events are taken.
const BACKLOG: usize = 1 << 16;
/// The most bytes of a request in several parts; with all their features tables take half of that.
const LONGEST_REQUEST: usize = 1 << 21;
/// The most messages of a bundle.
const BUNDLE: usize = 4_000_000;

/// What all connections of a bridge share.
#[derive(Clone)]
pub struct Session {
    pub(super) name: std::sync::Arc<str>,
    pub(super) bridge: BridgeId,
    pub(super) pmd: Handle,
    pub(super) all: Connections,
    /// The OpenFlow versions that the bridge allows, one bit each.
    pub(super) versions: u32,
}

/// Serves a connection until it ends. `controller` are the options of a connection to a controller; others are by a
/// management socket. `tell` is called with what the peer does.
///
/// # Errors
/// Why it ended.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Send>(
    stream: S,
    session: Session,
    controller: Option<ControllerOptions>,
    tell: impl Fn(Peer) + Send,
) -> Result<(), ConnectionError> {
    let (sender, receiver) = negotiate(stream, session.versions).await?;
    let wants = Wants::new(sender.version(), controller.as_ref().is_some_and(|c| c.row.borrow().async_messages));
    let (id, told) = session.all.add(session.bridge, wants);
    let mut c = Connection {
        name: format!("{}<->unix#{id}", session.name),
        bridge: session.bridge,
        pmd: session.pmd,
        all: session.all,
        id,
        told,
        sender,
        config: SwitchConfig { flags: 0, miss_send_len: wants.miss_send_len },
        bundles: HashMap::new(),
        parts: None,
        changed: false,
        names_tables: false,
        row: controller.as_ref().map(|c| c.row.clone()),
        packet_ins: PacketInQueues::new(controller.map(|c| c.packet_ins)),
        tell,
    };
    c.pmd.heed_misses(&c.all, c.bridge);
    let end = c.run(receiver).await;
    c.all.remove(id);
    c.pmd.heed_misses(&c.all, c.bridge);
    c.pmd.record_flow_updates(&c.all, c.bridge);
    match end {
        Ok(()) | Err(ConnectionError::Closed) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Waits until a controller's row is another one.
async fn changed(row: &mut Option<watch::Receiver<ControllerSpec>>) {
    let gone = match row {
        Some(r) => r.changed().await.is_err(),
        None => true,
    };
    if gone {
        std::future::pending::<()>().await;
    }
}

struct Bundle {
    flags: u16,
    messages: Vec<(u32, Message)>,
    closed: bool,
    /// When the last message about it came.
    used: Instant,
    /// The message that opened it, which is refused when it waits for too long.
    opened: (u32, Vec<u8>),
}

/// What a table does with packets that no flow matches, as OFPT_TABLE_MOD of OpenFlow 1.1 and 1.2 has it
/// (OpenFlow 1.1 section A.3.3, OFPTC_TABLE_MISS_*).
fn table_miss(config: u32) -> Result<TableMiss, DecodeError> {
    match config & 3 {
        0 => Ok(TableMiss::Controller),
        1 => Ok(TableMiss::Continue),
        2 => Ok(TableMiss::Drop),
        _ => Err(OfError::TableModBadConfig.because("no table both continues and drops what no flow matches")),
    }
}

/// What a peer does that others have to know.
pub(super) enum Peer {
    /// It has another role.
    Role(u32),
    /// It says something; `controls`: what only a controller says that means to control the switch.
    Said { controls: bool },
}

/// Whether a message is more than what a controller asks that is still finding out whether it wants this switch.
fn controls(m: &Message) -> bool {
    use MultipartRequest as Q;
    /// OFPMP_TABLE_DESC.
    const TABLE_DESC: u16 = 14;
    !matches!(
        m,
        Message::Hello(_)
            | Message::Error { .. }
            | Message::EchoRequest(_)
            | Message::EchoReply(_)
            | Message::FeaturesRequest
            | Message::GetConfigRequest
            | Message::SetConfig(_)
            | Message::QueueGetConfigRequest(_)
            | Message::GetAsyncRequest
            | Message::MultipartRequest(
                Q::GroupStats(_) | Q::GroupDesc(_) | Q::GroupFeatures | Q::TableFeatures(_) | Q::Other(TABLE_DESC, _)
            )
    )
}

/// Whether only switches send this type of message.
fn from_switch(kind: u8) -> bool {
    matches!(kind, 10..=12)
}

/// Options of a connection to a controller.
pub(super) struct ControllerOptions {
    /// Its row as it is now.
    pub row: watch::Receiver<ControllerSpec>,
    /// The limit of its packet-ins.
    pub packet_ins: packet_in_queue::Shared,
}

struct Connection<S, T> {
    /// Its name in the log.
    name: String,
    bridge: BridgeId,
    pmd: Handle,
    all: Connections,
    id: u64,
    /// Asynchronous messages for the peer.
    told: Told,
    sender: Sender<S>,
    config: SwitchConfig,
    bundles: HashMap<u32, Bundle>,
    /// The transaction of a request whose last part has not come, and what came of it.
    parts: Option<(u32, Vec<u8>)>,
    /// Tables were changed since the last barrier.
    changed: bool,
    /// Flow-mods of OpenFlow 1.0 name their table (NXT_FLOW_MOD_TABLE_ID).
    names_tables: bool,
    /// The row of a controller, as it is now.
    row: Option<watch::Receiver<ControllerSpec>>,
    /// Packet-ins that wait for their rate.
    packet_ins: PacketInQueues,
    tell: T,
}

impl<S: AsyncRead + AsyncWrite + Send, T: Fn(Peer) + Send> Connection<S, T> {
    /// Silence after which the peer is probed; after twice that the connection ends. Zero: never.
    fn probe(&self) -> Duration {
        self.row.as_ref().map_or(MANAGEMENT_PROBE, |r| r.borrow().probe)
    }

    async fn run(&mut self, mut receiver: Receiver<S>) -> Result<(), ConnectionError> {
        let clock = self.pmd.clock.clone();
        let (mut heard, mut asked) = (clock.instant(), false);
        loop {
            let waiting = self.packet_ins.due(clock.instant());
            let probe = self.probe();
            let deadline = heard + probe * if asked { 2 } else { 1 };
            let idle = self.bundles.values().map(|b| b.used).min().map(|used| used + self.all.bundle_idle());
            let backlog = self.sender.backlog();
            tokio::select! {
                written = self.sender.flush(), if backlog > 0 => written?,
                // A peer that does not read its answers gets no more of them.
                received = receiver.recv(), if backlog < BACKLOG => {
                    (heard, asked) = (clock.instant(), false);
                    // Events that happened before the request are sent before the answer.
                    self.pass_events();
                    let mut next = Some(received?);
                    while let Some(r) = next.take() {
                        next = self.batch(r, &mut receiver).await?;
                    }
                }
                Some(m) = self.told.events.recv(), if backlog < BACKLOG => {
                    self.pass(m);
                    self.pass_events();
                }
                // What a port sends that floods goes when nothing else is to go, so that others wait for one of it at
                // most, and for what the peer has not read.
                Some(m) = self.told.floods.recv(), if backlog == 0 => self.pass(m),
                () = clock.sleep_until(waiting.unwrap_or(heard)), if waiting.is_some() => {
                    for m in self.packet_ins.next(clock.instant()) {
                        self.queue(0, &m);
                    }
                }
                () = clock.sleep_until(idle.unwrap_or(heard)), if idle.is_some() => self.end_idle_bundles(),
                () = changed(&mut self.row) => {}
                () = clock.sleep_until(deadline), if !probe.is_zero() => {
                    if asked {
                        let e = std::io::Error::other("no response to inactivity probe");
                        return Err(ConnectionError::Io(e));
                    }
                    asked = true;
                    let idle = probe.as_secs();
                    tracing::debug!(target: "rconn", "{}: idle {idle} seconds, sending inactivity probe", self.name);
                    self.queue(0, &Message::EchoRequest(Vec::new()));
                }
            }
        }
    }

    /// Sends the asynchronous messages that wait for the peer.
    fn pass_events(&mut self) {
        while self.sender.backlog() < BACKLOG
            && let Ok(m) = self.told.events.try_recv()
        {
            self.pass(m);
        }
    }

    fn pass(&mut self, m: Message) {
        if let Message::RoleStatus(r, _) = &m {
            (self.tell)(Peer::Role(r.role));
        }
        if let Some(m) = self.packet_ins.take(m, self.pmd.clock.instant()) {
            self.queue(0, &m);
        }
    }

    /// Handles a message. If it is a change, so are those behind it that have been received already and are changes as
    /// well. Gives back the first that is none.
    async fn batch(
        &mut self,
        first: Received,
        receiver: &mut Receiver<S>,
    ) -> Result<Option<Received>, ConnectionError> {
        let version = self.sender.version();
        let mut changes = Vec::new();
        let mut next = Some(first);
        let wants = self.all.wants(self.id);
        while let Some(r) = next.take() {
            let controls = r.message.as_ref().is_ok_and(controls);
            (self.tell)(Peer::Said { controls });
            if let Ok(m) = &r.message {
                self.all.show(self.bridge, m, version, r.header.xid);
                self.log("received", m, r.header.xid);
            }
            match r.message {
                Ok(m) if is_write(&m) && wants.is_some_and(|w| w.role == SECONDARY) => {
                    // OFPBRC_IS_SLAVE
                    let e = OfError::RequestIsSecondary.because("the controller is secondary");
                    self.refuse(r.header.xid, &e, &r.raw);
                }
                Ok(mut m) if is_change(&m) && !sweeps(&m) && !flushes(&m) => {
                    self.place(&mut m);
                    changes.push(Change { xid: r.header.xid, message: m, raw: r.raw });
                }
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
            self.changed |= changes.iter().any(|c| matches!(c.message, Message::FlowMod(_)));
            for (c, e) in self.pmd.apply_changes(&self.all, self.bridge, self.id, changes).await {
                self.refuse(c.xid, &e, &c.raw);
            }
        }
        match next {
            Some(Received { header, message: Err(mut e), raw }) => {
                if from_switch(header.kind) {
                    e.error = OfError::RequestBadType;
                }
                self.refuse(header.xid, &e, &raw);
                Ok(None)
            }
            Some(Received { header, message: Ok(m), raw }) if sweeps(&m) => {
                self.sweep(header.xid, m, &raw).await;
                Ok(None)
            }
            Some(Received { message: Ok(m), .. }) if flushes(&m) => {
                if let Some(what) = Flush::asked(&m) {
                    let _ = self.pmd.flush(what).await;
                }
                Ok(None)
            }
            Some(Received {
                header,
                message: Ok(Message::MultipartRequest(MultipartRequest::TableFeatures(part))),
                raw,
            }) => {
                self.table_features(header, part, &raw).await;
                Ok(None)
            }
            Some(Received { header, message: Ok(m), .. }) => {
                self.handle(header, m).await;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Makes a change of all flows that a match selects: in another thread, like a bundle, if the bridge has many
    /// flows.
    async fn sweep(&mut self, xid: u32, mut m: Message, raw: &[u8]) {
        self.place(&mut m);
        self.changed = true;
        let bridge = self.bridge;
        self.pmd.send_flow_updates(&self.all, bridge, None).await;
        let done = if self.pmd.flow_count(bridge).await > MANY {
            self.pmd.apply_bundle(bridge, std::sync::Arc::new(vec![m])).await.map(|r| r.map(drop).map_err(|(_, e)| e))
        } else {
            self.pmd.apply_change(bridge, m).await
        };
        let origin = Origin { connection: self.id, xid };
        self.pmd.send_flow_updates(&self.all, bridge, Some(origin)).await;
        if let Ok(Err(e)) = done {
            self.refuse(xid, &e, raw);
        }
    }

    /// Gives a flow-mod of OpenFlow 1.0 its table, unless the peer names tables: table 0 for additions, all for others.
    /// That version has no prerequisites of actions.
    fn place(&self, m: &mut Message) {
        if let Message::FlowMod(f) = m
            && self.sender.version() == Version::Of10
        {
            f.lenient = true;
            if !self.names_tables {
                f.table = if f.command == FlowModCommand::Add { TableId::FIRST } else { TableId::ALL };
            }
        }
    }

    fn queue(&mut self, xid: u32, m: &Message) {
        self.all.show(self.bridge, m, self.sender.version(), xid);
        self.log("sent (Success)", m, xid);
        self.sender.queue(xid, m);
    }

    /// Logs a message, for `vlog/set vconn:dbg`.
    fn log(&self, what: &str, m: &Message, xid: u32) {
        if tracing::enabled!(target: "vconn", tracing::Level::DEBUG) {
            let text = message_to_string(self.sender.version() as u8, xid, m);
            tracing::debug!(target: "vconn", "{}: {what}: {text}", self.name);
        }
    }

    fn refuse(&mut self, xid: u32, e: &DecodeError, raw: &[u8]) {
        tracing::info!(target: "ofproto", "sending error reply: {e}");
        let m = error_reply(e, raw);
        // Who speaks another version than was agreed on is told in that one.
        let other = raw.first().and_then(|v| Version::from_u8(*v)).filter(|v| *v != self.sender.version());
        match other.filter(|_| e.error == OfError::RequestBadVersion) {
            Some(v) => self.sender.queue_octets(m.encode(v, xid)),
            None => self.queue(xid, &m),
        }
    }

    fn reply(&mut self, h: Header, m: &Message) {
        self.queue(h.xid, m);
    }

    async fn handle(&mut self, h: Header, m: Message) {
        let bridge = self.bridge;
        match m {
            Message::Hello(_) | Message::EchoReply(_) | Message::Error { .. } => {}
            // NXFF_NXM
            Message::SetFlowFormat(format) => self.all.set(self.id, |w| w.nicira = format == 2),
            Message::EchoRequest(data) => self.reply(h, &Message::EchoReply(data)),
            Message::FeaturesRequest => self.features(h).await,
            Message::GetConfigRequest => {
                let flags = self.pmd.fragments(bridge).await.map_or(0, |f| f as u16);
                let ttl = self.config.flags & INVALID_TTL;
                let config = SwitchConfig { flags: flags | ttl, ..self.config };
                self.reply(h, &Message::GetConfigReply(config));
            }
            Message::SetConfig(c) => self.set_config(c),
            Message::SetPacketInFormat(f) if f <= 2 => self.all.set(self.id, |w| w.format = f),
            Message::SetControllerId(c) => {
                self.all.set(self.id, |w| w.controller = c);
                self.pmd.heed_misses(&self.all, bridge);
            }
            Message::FlowModTableId(on) => self.names_tables = on,
            Message::RoleRequest(r) => self.role_request(h, r),
            Message::QueueGetConfigRequest(port) => self.queue_config(h, port).await,
            Message::GetAsyncRequest => {
                let v = self.sender.version();
                let body = self.all.wants(self.id).map(|w| w.masks.body(v)).unwrap_or_default();
                self.reply(h, &Message::GetAsyncReply(body));
            }
            Message::SetAsync(_) | Message::SetAsync2(_) => self.set_async(h, m),
            Message::TableMod(t) if t.table == TableId(254) => {
                let e = OfError::TableModNotPermitted.because("table 254 is the switch's own");
                let raw = Message::TableMod(t).encode(self.sender.version(), h.xid);
                self.refuse(h.xid, &e, &raw);
            }
            Message::TableMod(t) => match self.sender.version() {
                Version::Of11 | Version::Of12 => match table_miss(t.config) {
                    Ok(miss) => self.pmd.set_table_miss(bridge, t.table, miss),
                    Err(e) => {
                        let raw = Message::TableMod(t).encode(self.sender.version(), h.xid);
                        self.refuse(h.xid, &e, &raw);
                    }
                },
                v if v >= Version::Of14 => self.pmd.configure_table(bridge, t),
                _ => {}
            },
            Message::BarrierRequest => {
                if std::mem::take(&mut self.changed) {
                    self.pmd.tables_ready(bridge).await;
                }
                // Events that the peer's changes led to come before the reply.
                self.pass_events();
                self.reply(h, &Message::BarrierReply);
            }
            Message::TlvTableRequest => {
                let maps = self.pmd.tlv_maps(bridge).await.unwrap_or_default();
                self.reply(h, &Message::TlvTableReply(TlvTable { max_option_space: 248, max_fields: 8, maps }));
            }
            Message::BundleControl(c) => self.bundle_control(h, c).await,
            Message::BundleAdd(a) => self.bundle_add(h, a),
            Message::MultipartRequest(MultipartRequest::FlowMonitor(list)) => self.monitor(h, list).await,
            Message::FlowMonitorCancel(monitor) => {
                let gone = FlowMonitor {
                    id: monitor,
                    command: 2,
                    flags: 0,
                    table: TableId::ALL,
                    out_port: PortNo::ANY,
                    out_group: GroupId::ANY,
                    matches: Match::new(),
                };
                self.monitor(h, vec![gone]).await;
            }
            Message::MultipartRequest(q) => self.multipart(h, q).await,
            other => {
                let e = OfError::RequestBadType.because("not a message for a switch");
                let raw = other.encode(self.sender.version(), h.xid);
                self.refuse(h.xid, &e, &raw);
            }
        }
    }

    /// Answers a features request.
    async fn features(&mut self, h: Header) {
        let with_ports = self.sender.version() < Version::Of13;
        let (datapath_id, ports) = self.pmd.features(self.bridge, with_ports).await.unwrap_or_default();
        let f = Features {
            datapath_id,
            ports,
            n_buffers: 0,
            n_tables: 254,
            auxiliary_id: 0,
            // Flow, table and port statistics, group statistics, queue statistics; since 1.4 also bundles.
            capabilities: if self.sender.version() >= Version::Of14 { 0x24f } else { 0x4f },
        };
        self.reply(h, &Message::FeaturesReply(f));
    }

    /// Sets which asynchronous messages the peer gets.
    fn set_async(&mut self, h: Header, m: Message) {
        let v = self.sender.version();
        let (body, of) = match &m {
            Message::SetAsync2(body) => (body, Version::Of14),
            Message::SetAsync(body) => (body, v),
            _ => return,
        };
        match self.all.wants(self.id).map(|w| w.masks.changed_by(body, of)) {
            Some(Ok(masks)) => self.all.set(self.id, |w| (w.masks, w.chooses) = (masks, true)),
            Some(Err(e)) => self.refuse(h.xid, &e, &m.encode(v, h.xid)),
            None => {}
        }
    }

    /// Sets what happens to fragments, and how much of packets the peer gets.
    fn set_config(&mut self, c: SwitchConfig) {
        self.config = c;
        // A secondary controller changes what it gets, and nothing of the switch (OpenFlow 1.3 section 6.3.4).
        let secondary = self.all.wants(self.id).is_some_and(|w| w.role == SECONDARY);
        match c.flags & 3 {
            _ if secondary => {}
            0 => self.pmd.set_fragments(self.bridge, Fragments::Normal),
            1 => self.pmd.set_fragments(self.bridge, Fragments::Drop),
            3 => self.pmd.set_fragments(self.bridge, Fragments::Match),
            // To reassemble them is not offered: nothing changes.
            _ => {}
        }
        self.all.set(self.id, |w| {
            w.miss_send_len = c.miss_send_len;
            // Until 1.2 there is no other word for which packets it wants whose TTL ended.
            if w.version < Version::Of13 {
                w.masks.packet_in.of_invalid_ttl(c.flags & INVALID_TTL != 0);
            }
        });
    }

    /// Answers a request for the queues of a port (OpenFlow 1.3 and older).
    async fn queue_config(&mut self, h: Header, port: PortNo) {
        match self.pmd.queues_of(self.bridge, port).await {
            Ok(Ok(list)) => self.reply(h, &Message::QueueGetConfigReply(port, list)),
            Ok(Err(e)) => {
                let raw = Message::QueueGetConfigRequest(port).encode(self.sender.version(), h.xid);
                self.refuse(h.xid, &e, &raw);
            }
            Err(PmdEnded) => {}
        }
    }

    /// A bundle that a message opens.
    fn bundle(&self, flags: u16, xid: u32, raw: Vec<u8>) -> Bundle {
        let used = self.pmd.clock.instant();
        Bundle { flags, messages: Vec::new(), closed: false, used, opened: (xid, raw) }
    }

    /// Discards bundles that nothing was added to for too long.
    fn end_idle_bundles(&mut self) {
        let (now, idle) = (self.pmd.clock.instant(), self.all.bundle_idle());
        let ended: Vec<Bundle> = self.bundles.extract_if(|_, b| b.used + idle <= now).map(|(_, b)| b).collect();
        let e = OfError::BundleTimeout.because(format!("nothing came for the bundle within {} s", idle.as_secs()));
        for b in ended {
            self.refuse(b.opened.0, &e, &b.opened.1);
        }
    }

    /// Adds a message to a bundle, which is opened by that if it does not exist.
    fn bundle_add(&mut self, h: Header, a: BundleAdd) {
        if !self.bundles.contains_key(&a.id) {
            let raw = Message::BundleAdd(a.clone()).encode(self.sender.version(), h.xid);
            let new = self.bundle(a.flags, h.xid, raw);
            self.bundles.insert(a.id, new);
        }
        let now = self.pmd.clock.instant();
        let Some(b) = self.bundles.get_mut(&a.id) else { return };
        b.used = now;
        let refused = match (b.closed, b.messages.len() >= BUNDLE) {
            _ if b.flags != a.flags => Some((OfError::BundleBadFlags, "the bundle has other flags")),
            (true, _) => Some((OfError::BundleClosed, "the bundle is closed")),
            (_, true) => Some((OfError::BundleTooManyMessages, "the bundle is too large")),
            _ => None,
        };
        if let Some((code, why)) = refused {
            self.bundles.remove(&a.id);
            return self.bundle_error(h, &Message::BundleAdd(a), code, why);
        }
        let mut m = *a.message;
        self.place(&mut m);
        // A change that no state of the tables allows is refused at once, and the bundle goes on without it.
        if let Err(e) = switch::bridge::check_table(&m) {
            let raw = m.encode(self.sender.version(), h.xid);
            return self.refuse(h.xid, &e, &raw);
        }
        let Some(b) = self.bundles.get_mut(&a.id) else { return };
        b.messages.push((h.xid, m));
    }

    fn role_request(&mut self, h: Header, r: Role) {
        let has_generation = self.sender.version() >= Version::Of12;
        if r.role != 0 {
            if !self.all.set_role(self.id, r, has_generation) {
                // OFPRRFC_STALE
                let e = OfError::RoleStale.because("the role's generation id is stale");
                let raw = Message::RoleRequest(r).encode(self.sender.version(), h.xid);
                return self.refuse(h.xid, &e, &raw);
            }
            (self.tell)(Peer::Role(r.role));
        }
        let role = self.all.wants(self.id).map_or(r.role, |w| w.role);
        let generation_id = self.all.generation(self.bridge).unwrap_or(u64::MAX);
        self.reply(h, &Message::RoleReply(Role { role, generation_id, ..r }));
    }

    /// Refuses a message about a bundle (OFPET_BUNDLE_FAILED).
    fn bundle_error(&mut self, h: Header, m: &Message, error: OfError, detail: &str) {
        let e = error.because(detail);
        let raw = m.encode(self.sender.version(), h.xid);
        self.refuse(h.xid, &e, &raw);
    }

    async fn bundle_control(&mut self, h: Header, c: BundleControl) {
        use BundleCommand as C;
        let m = Message::BundleControl(c);
        let answer = match c.command {
            C::OpenRequest => {
                if self.bundles.contains_key(&c.id) {
                    self.bundles.remove(&c.id);
                    return self.bundle_error(h, &m, OfError::BundleBadId, "the bundle exists; it is discarded");
                }
                let raw = m.encode(self.sender.version(), h.xid);
                let new = self.bundle(c.flags, h.xid, raw);
                self.bundles.insert(c.id, new);
                C::OpenReply
            }
            // A request that is refused discards the bundle.
            C::CloseRequest => match self.bundles.remove(&c.id) {
                Some(b) if b.closed => return self.bundle_error(h, &m, OfError::BundleClosed, "the bundle is closed"),
                Some(b) if b.flags != c.flags => {
                    return self.bundle_error(h, &m, OfError::BundleBadFlags, "the bundle has other flags");
                }
                Some(b) => {
                    let used = self.pmd.clock.instant();
                    self.bundles.insert(c.id, Bundle { closed: true, used, ..b });
                    C::CloseReply
                }
                None => return self.bundle_error(h, &m, OfError::BundleBadId, "no such bundle"),
            },
            C::DiscardRequest => match self.bundles.remove(&c.id) {
                Some(_) => C::DiscardReply,
                None => return self.bundle_error(h, &m, OfError::BundleBadId, "no such bundle"),
            },
            C::CommitRequest => {
                let Some(b) = self.bundles.remove(&c.id) else {
                    return self.bundle_error(h, &m, OfError::BundleBadId, "no such bundle");
                };
                if b.flags != c.flags {
                    return self.bundle_error(h, &m, OfError::BundleBadFlags, "the bundle has other flags");
                }
                if !self.commit(h, &m, b).await {
                    return;
                }
                C::CommitReply
            }
            _ => return self.bundle_error(h, &m, OfError::BundleBadType, "a reply in place of a request"),
        };
        // As in Open vSwitch, replies have no flags.
        self.reply(h, &Message::BundleControl(BundleControl { command: answer, flags: 0, id: c.id }));
    }

    /// Carries out a bundle; false if it failed, and then the error has been sent.
    async fn commit(&mut self, h: Header, m: &Message, b: Bundle) -> bool {
        let bridge = self.bridge;
        let version = self.sender.version();
        let (xids, list): (Vec<u32>, Vec<Message>) = b.messages.into_iter().unzip();
        let list = std::sync::Arc::new(list);
        let Ok(done) = self.pmd.apply_bundle(bridge, list.clone()).await else { return false };
        let packets = match done {
            Ok(packets) => packets,
            Err((i, e)) => {
                let xid = xids.get(i).copied().unwrap_or(0);
                let raw = list.get(i).map(|m| m.encode(version, xid)).unwrap_or_default();
                self.refuse(Header::parse(&raw).map_or(h.xid, |i| i.xid), &e, &raw);
                self.bundle_error(h, m, OfError::BundleMessageFailed, "a message of the bundle failed");
                return false;
            }
        };
        list.iter().for_each(|m| self.all.forward(bridge, self.id, m));
        // Packet-outs are sent once the tables are in place.
        let origin = Origin { connection: self.id, xid: h.xid };
        self.pmd.finish_bundle(&self.all, bridge, origin, packets).await.is_ok()
    }

    /// Changes flow monitors, and sends the present flows that new ones want.
    async fn monitor(&mut self, h: Header, list: Vec<FlowMonitor>) {
        let cancelled = matches!(list.as_slice(), [m] if m.command == 2);
        let request = Message::MultipartRequest(MultipartRequest::FlowMonitor(list.clone()));
        match self.pmd.change_flow_monitors(&self.all, self.bridge, self.id, list).await {
            Ok(Ok(_)) if cancelled => {}
            Ok(Ok(flows)) => {
                self.pass_events();
                self.reply(h, &Message::MultipartReply { more: false, body: MultipartReply::FlowMonitor(flows) });
            }
            Ok(Err(mut e)) => {
                if self.sender.version() < Version::Of14 {
                    // OFPBRC_BAD_SUBTYPE, as OpenFlow has error codes of flow monitors from 1.4 on.
                    e.error = OfError::RequestBadSubtype;
                }
                let raw = request.encode(self.sender.version(), h.xid);
                self.refuse(h.xid, &e, &raw);
            }
            Err(PmdEnded) => {}
        }
    }

    /// Takes a part of a request for table features; the last one is answered.
    async fn table_features(&mut self, h: Header, part: Vec<u8>, raw: &[u8]) {
        let (xid, mut whole) = self.parts.take().unwrap_or_default();
        if xid != h.xid {
            whole.clear();
        }
        whole.extend(part);
        if whole.len() > LONGEST_REQUEST {
            let e = OfError::MultipartOverflow.because(format!("a request of more than {LONGEST_REQUEST} bytes"));
            return self.refuse(h.xid, &e, raw);
        }
        let more = raw.get(10..12).is_some_and(|flags| flags[1] & 1 != 0);
        if more {
            self.parts = Some((h.xid, whole));
        } else {
            self.multipart(h, MultipartRequest::TableFeatures(whole)).await;
        }
    }

    async fn multipart(&mut self, h: Header, q: MultipartRequest) {
        let (bridge, version) = (self.bridge, self.sender.version());
        if let Some(filter) = reply::flow_filter(&q).cloned() {
            // The main PMD thread only says which flows there are; this task counts and copies them.
            let (rules, now) = self.pmd.rules(bridge, filter.table).await.unwrap_or_default();
            let work = move || reply::flows(&q, switch::bridge::flow_stats(&rules, &filter, now));
            if let Ok(body) = tokio::task::spawn_blocking(work).await {
                self.reply(h, &Message::MultipartReply { more: false, body });
            }
            return;
        }
        let raw = Message::MultipartRequest(q.clone()).encode(version, h.xid);
        let answer = match reply::ipfix(&q, bridge, &self.pmd.ipfix) {
            Some(answer) => Ok(answer),
            None => self.pmd.multipart(bridge, q, version).await,
        };
        match answer {
            Ok(Ok(body)) => self.reply(h, &Message::MultipartReply { more: false, body }),
            Ok(Err(e)) => self.refuse(h.xid, &e, &raw),
            Err(PmdEnded) => {}
        }
    }
}
