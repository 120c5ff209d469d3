//! The connections of all bridges, and what each wants to be told.

use super::{monitors, reply};
use crate::pmd::{ControllerEvent, MainPmd};
use openflow_rs::Message;
use openflow_rs::action::PacketInReason;
use openflow_rs::message::{
    AsyncConfig, AsyncMasks, FlowMonitor, FlowUpdate, MultipartReply, PacketIn, PortStatus, Role, TableStatus, Version,
};
use openflow_rs::wire::DecodeError;
use packet::Mac;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use switch::{BridgeId, Event, Miss};
use tokio::sync::mpsc;

/// The most asynchronous messages that wait for a connection; more are dropped.
pub(super) const QUEUE: usize = 1024;

/// The most packet-ins of ports that flood which wait for a connection. They go when nothing else waits.
const FLOOD_QUEUE: usize = 64;

/// OFPCR_ROLE_EQUAL.
pub(super) const EQUAL: u32 = 1;
/// OFPCR_ROLE_MASTER: the one controller that may change tables.
pub(super) const PRIMARY: u32 = 2;
/// OFPCR_ROLE_SLAVE: may only read.
pub(super) const SECONDARY: u32 = 3;

/// What a connection wants to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wants {
    pub controller: u16,
    /// Format of packet-ins: 0 standard, 1 NXT_PACKET_IN, 2 NXT_PACKET_IN2.
    pub format: u32,
    /// Bytes of a packet-in; 0, which a management socket begins with, stands for no asynchronous messages at all.
    pub miss_send_len: u16,
    pub role: u32,
    pub version: Version,
    /// Over OpenFlow 1.0: it has asked for Nicira's matches (NXT_SET_FLOW_FORMAT).
    pub nicira: bool,
    pub masks: AsyncConfig,
    /// It has said itself which asynchronous messages it wants.
    pub chooses: bool,
}

impl Wants {
    /// What a new connection is told, as in Open vSwitch.
    pub fn new(v: Version, of_controller: bool) -> Wants {
        let miss_send_len = if of_controller { 128 } else { 0 };
        Wants {
            controller: 0,
            format: 0,
            miss_send_len,
            role: EQUAL,
            version: v,
            nicira: false,
            masks: AsyncConfig::initial(v),
            chooses: false,
        }
    }

    /// The message of a packet-in; none if the connection does not want it.
    fn packet_in(&self, controller: u16, p: &PacketIn, miss: Miss) -> Option<Message> {
        use PacketInReason as R;
        let reason = match p.reason {
            // OpenFlow 1.4 began to tell these apart.
            R::ActionSet | R::Group | R::PacketOut if self.version < Version::Of14 => R::Action,
            r => r,
        };
        let for_us = self.controller == controller && !(miss == Miss::NoFlow && self.drops_misses());
        if !for_us || !self.has(self.masks.packet_in, reason as u8) {
            return None;
        }
        // The flow that matches everything is one as others are before OpenFlow 1.3.
        let reason = if miss == Miss::Flow && !self.drops_misses() { R::Action } else { reason };
        let p = PacketIn { reason, ..p.clone() };
        Some(match self.format {
            0 => Message::PacketIn(p),
            1 => Message::NxPacketIn(p),
            _ => Message::PacketIn2(p),
        })
    }

    /// Packets that no flow matches are dropped and not sent to controllers (OpenFlow 1.3 section 5.4).
    fn drops_misses(&self) -> bool {
        self.version >= Version::Of13
    }

    /// Whether it gets asynchronous messages at all.
    fn hears(&self) -> bool {
        self.miss_send_len > 0 || self.chooses
    }

    fn has(&self, masks: AsyncMasks, reason: u8) -> bool {
        let mask = if self.role == SECONDARY { masks.secondary } else { masks.primary };
        mask.checked_shr(reason.into()).unwrap_or(0) & 1 != 0
    }
}

/// Who made a change: a connection, by a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The connection.
    pub connection: u64,
    /// The transaction.
    pub xid: u32,
}

struct Listener {
    bridge: BridgeId,
    wants: Wants,
    monitors: Vec<FlowMonitor>,
    queue: mpsc::Sender<Message>,
    floods: mpsc::Sender<Message>,
}

/// The asynchronous messages of a connection.
pub(super) struct Told {
    /// All but those of `floods`.
    pub events: mpsc::Receiver<Message>,
    /// Packet-ins of ports that send too many.
    pub floods: mpsc::Receiver<Message>,
}

#[derive(Default)]
struct State {
    listeners: HashMap<u64, Listener>,
    /// The newest generation id of roles, by bridge.
    generations: HashMap<BridgeId, u64>,
    snoops: Vec<(BridgeId, mpsc::Sender<Vec<u8>>)>,
}

/// The connections of all bridges. Clones are for the same connections.
#[derive(Clone, Default)]
pub struct Connections {
    state: Arc<Mutex<State>>,
    next: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    /// How many snoop connections there are; mostly none.
    snoops: Arc<AtomicUsize>,
    /// How many flow monitors there are; mostly none.
    flow_monitors: Arc<AtomicUsize>,
    /// Seconds that a bundle waits for its next message; 0: as nobody has said.
    bundle_idle: Arc<AtomicU64>,
    /// Controllers' sockets may be anywhere (`--no-self-confinement`).
    unconfined: Arc<AtomicBool>,
}

/// Seconds that a bundle waits for its next message where nobody says another number, as in Open vSwitch.
const BUNDLE_IDLE: u64 = 10;

/// Some Ethernet address that no host has.
fn a_mac() -> Mac {
    /// A locally administered unicast address begins with this.
    const LOCAL: u64 = 0x02 << 40;
    Mac::from_u64(LOCAL | RandomState::new().build_hasher().finish() >> 24)
}

impl Connections {
    /// Lets controllers' sockets be outside the run directory.
    pub fn set_unconfined(&self) {
        self.unconfined.store(true, Ordering::Relaxed);
    }

    /// Whether they may be.
    pub(super) fn unconfined(&self) -> bool {
        self.unconfined.load(Ordering::Relaxed)
    }

    /// Sets how long a bundle waits for its next message.
    pub fn set_bundle_idle(&self, idle: Duration) {
        self.bundle_idle.store(idle.as_secs(), Ordering::Relaxed);
    }

    /// How long that is.
    pub(super) fn bundle_idle(&self) -> Duration {
        Duration::from_secs(match self.bundle_idle.load(Ordering::Relaxed) {
            0 => BUNDLE_IDLE,
            n => n,
        })
    }

    pub(super) fn add(&self, bridge: BridgeId, wants: Wants) -> (u64, Told) {
        let (queue, events) = mpsc::channel(QUEUE);
        let (flood_queue, floods) = mpsc::channel(FLOOD_QUEUE);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let listener = Listener { bridge, wants, monitors: Vec::new(), queue, floods: flood_queue };
        self.lock().listeners.insert(id, listener);
        (id, Told { events, floods })
    }

    pub(super) fn remove(&self, id: u64) {
        let mut s = self.lock();
        s.listeners.remove(&id);
        self.count_monitors(&s);
    }

    fn count_monitors(&self, s: &State) {
        self.flow_monitors.store(s.listeners.values().map(|l| l.monitors.len()).sum(), Ordering::Relaxed);
    }

    /// Changes a connection's flow monitors; gives the flows that the new ones want to hear of at once. Runs in the
    /// main PMD thread, so no flow changes meanwhile.
    pub(super) fn monitor(
        &self,
        w: &mut MainPmd,
        bridge: BridgeId,
        id: u64,
        list: &[FlowMonitor],
    ) -> Result<Vec<FlowUpdate>, DecodeError> {
        self.send_flow_updates(w, bridge, None);
        // Changes before now are not for the new monitors.
        w.switch.with_tables(bridge, |b| drop(b.drain_flow_updates()));
        let mut s = self.lock();
        let Some(l) = s.listeners.get_mut(&id) else { return Ok(Vec::new()) };
        let mut changed = l.monitors.clone();
        list.iter().try_for_each(|m| monitors::change(&mut changed, m))?;
        l.monitors = changed;
        self.count_monitors(&s);
        drop(s);
        self.watch(w, bridge);
        let new: Vec<FlowMonitor> = list.iter().filter(|m| m.command != 2).cloned().collect();
        Ok(monitors::initial(w, bridge, &new))
    }

    /// Has a bridge record changes of its flows while there are flow monitors for it, and only then.
    pub(super) fn watch(&self, w: &mut MainPmd, bridge: BridgeId) {
        let on = self.lock().listeners.values().any(|l| l.bridge == bridge && !l.monitors.is_empty());
        w.switch.with_tables(bridge, |b| b.record_flow_updates(on));
    }

    /// Has a bridge send packets that no flow matches to controllers while one is connected that gets such packets.
    pub(super) fn heed_misses(&self, w: &mut MainPmd, bridge: BridgeId) {
        let gets = |w: &Wants| w.controller == 0 && !w.drops_misses();
        let wanted = self.lock().listeners.values().any(|l| l.bridge == bridge && gets(&l.wants));
        w.switch.with_tables(bridge, |b| b.set_misses_wanted(wanted));
    }

    /// Whether there are flow monitors.
    pub fn have_flow_monitors(&self) -> bool {
        self.flow_monitors.load(Ordering::Relaxed) != 0
    }

    /// Tells of flows that went, and flow monitors of all that has changed, in the main PMD thread; `origin` is who
    /// made the changes. So this comes before the answer to a barrier behind them. Updates for a connection that does
    /// not read are dropped and counted.
    pub fn send_flow_updates(&self, w: &mut MainPmd, bridge: BridgeId, origin: Option<Origin>) {
        let mut removed = Vec::new();
        w.switch.with_tables(bridge, |b| removed = b.drain_removed());
        removed.iter().for_each(|r| self.flow_removed(bridge, r));
        self.tell_vacancy(w, bridge);
        if !self.have_flow_monitors() {
            return;
        }
        let mut told = Vec::new();
        w.switch.with_tables(bridge, |b| told = b.drain_flow_updates());
        if told.is_empty() {
            return;
        }
        let s = self.lock();
        for (id, l) in s.listeners.iter().filter(|(_, l)| l.bridge == bridge && !l.monitors.is_empty()) {
            let own = origin.filter(|o| o.connection == *id).map(|o| o.xid);
            let list = monitors::updates(&l.monitors, own, &told);
            let m = Message::MultipartReply { more: false, body: MultipartReply::FlowMonitor(list.clone()) };
            if !list.is_empty() && l.queue.try_send(m).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, id: u64, f: impl FnOnce(&mut Wants)) {
        if let Some(l) = self.lock().listeners.get_mut(&id) {
            f(&mut l.wants);
        }
    }

    pub(super) fn wants(&self, id: u64) -> Option<Wants> {
        self.lock().listeners.get(&id).map(|l| l.wants)
    }

    /// Gives a connection a role; a new primary makes the former one secondary. False: the generation id is stale
    /// (OpenFlow 1.5 section 6.3.6).
    pub(super) fn set_role(&self, id: u64, r: Role, has_generation: bool) -> bool {
        let mut s = self.lock();
        let Some(bridge) = s.listeners.get(&id).map(|l| l.bridge) else { return true };
        if has_generation && matches!(r.role, PRIMARY | SECONDARY) {
            let newest = s.generations.entry(bridge).or_insert(r.generation_id);
            if (r.generation_id.wrapping_sub(*newest) as i64) < 0 {
                return false;
            }
            *newest = r.generation_id;
        }
        let generation_id = s.generations.get(&bridge).copied().unwrap_or(u64::MAX);
        for (n, l) in &mut s.listeners {
            if *n == id {
                l.wants.role = r.role;
            } else if r.role == PRIMARY && l.bridge == bridge && l.wants.role == PRIMARY {
                l.wants.role = SECONDARY;
                let role = Role { role: SECONDARY, short_id: 0, generation_id };
                // OFPCRR_MASTER_REQUEST
                if l.wants.version >= Version::Of13 && l.queue.try_send(Message::RoleStatus(role, 0)).is_err() {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        true
    }

    /// A bridge is gone: another one may get its place.
    pub fn forget(&self, bridge: BridgeId) {
        self.lock().generations.remove(&bridge);
    }

    /// The newest generation id of a bridge's roles.
    pub(super) fn generation(&self, bridge: BridgeId) -> Option<u64> {
        self.lock().generations.get(&bridge).copied()
    }

    /// How many asynchronous messages were dropped because a connection did not read.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Sends each connection of a bridge that wants asynchronous messages what `f` gives for it.
    fn broadcast(&self, bridge: BridgeId, mut f: impl FnMut(&Wants) -> Option<Message>) {
        self.send_to(bridge, |l| f(&l.wants).map(|m| (m, &l.queue)));
    }

    /// The same, by a queue that `f` chooses.
    fn send_to(
        &self,
        bridge: BridgeId,
        mut f: impl for<'l> FnMut(&'l Listener) -> Option<(Message, &'l mpsc::Sender<Message>)>,
    ) {
        for l in self.lock().listeners.values() {
            if l.bridge == bridge
                && l.wants.hears()
                && let Some((m, queue)) = f(l)
                && queue.try_send(m).is_err()
            {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Tells connections what the main PMD thread tells, for as long as that runs. Packets of ports that flood are told
    /// when there is nothing else.
    pub async fn tell(self, mut events: mpsc::UnboundedReceiver<ControllerEvent>, mut floods: mpsc::Receiver<Event>) {
        loop {
            tokio::select! {
                biased;
                e = events.recv() => match e {
                    Some(ControllerEvent::Event(e)) => self.tell_event(e, |l| &l.queue),
                    Some(ControllerEvent::Spanning(change)) => tracing::debug!(target: "ofproto_dpif", "{change}"),
                    Some(ControllerEvent::Port(bridge, port)) => self.port_status(bridge, 2, &port),
                    Some(ControllerEvent::TakenDown(bridge, port)) => self.port_taken_down(bridge, &port),
                    Some(ControllerEvent::Liveness(bridge, port)) => self.port_liveness(bridge, &port),
                    None => return,
                },
                Some(e) = floods.recv() => self.tell_event(e, |l| &l.floods),
            }
        }
    }

    /// Sends the controllers of a bridge a packet that no port had, so that one that only answers packets says something.
    pub fn send_bogus(&self, bridge: BridgeId) {
        let packet = packet::build::rarp(a_mac());
        let total_len = packet.len() as u32;
        let packet_in =
            PacketIn { packet, total_len, cookie: u64::MAX, reason: PacketInReason::NoMatch, ..PacketIn::default() };
        self.broadcast(bridge, |w| w.packet_in(0, &packet_in, Miss::No));
    }

    fn tell_event(&self, e: Event, queue: for<'l> fn(&'l Listener) -> &'l mpsc::Sender<Message>) {
        match e {
            Event::PacketIn { bridge, controller, packet_in, miss } => {
                let message = |l: &Listener| l.wants.packet_in(controller, &packet_in, miss);
                self.send_to(bridge, |l| message(l).map(|m| (m, queue(l))));
            }
            Event::FlowRemoved { bridge, removed } => self.flow_removed(bridge, &removed),
            _ => {}
        }
    }

    /// Tells the connections of a bridge of a removed flow.
    fn flow_removed(&self, bridge: BridgeId, m: &openflow_rs::message::FlowRemoved) {
        self.broadcast(bridge, |w| {
            let plain = w.version == Version::Of10 && !w.nicira;
            let message = if plain { Message::FlowRemovedOf10 } else { Message::FlowRemoved };
            w.has(w.masks.flow_removed, m.reason).then(|| message(m.clone()))
        });
    }

    /// Tells the connections of a bridge of a port: 0 added, 1 deleted, 2 changed.
    pub fn port_status(&self, bridge: BridgeId, reason: u8, port: &switch::Port) {
        let desc = reply::port_desc(port);
        let m = Message::PortStatus(PortStatus { reason, desc });
        self.broadcast(bridge, |w| w.has(w.masks.port_status, reason).then(|| m.clone()));
    }

    /// Tells the connections of a bridge of a new port. It is live in a second message, as with Open vSwitch, which
    /// finds that out when the port is there: controllers that learn of liveness by changes miss none.
    pub fn port_added(&self, bridge: BridgeId, port: &switch::Port) {
        let mut desc = reply::port_desc(port);
        desc.state &= !reply::LIVE;
        let m = Message::PortStatus(PortStatus { reason: 0, desc });
        self.broadcast(bridge, |w| w.has(w.masks.port_status, 0).then(|| m.clone()));
        if port.live() {
            self.port_liveness(bridge, port);
        }
    }

    /// Tells the connections of a bridge that a port was taken down; that it has no link then comes after that, as
    /// there.
    fn port_taken_down(&self, bridge: BridgeId, port: &switch::Port) {
        let mut desc = reply::port_desc(port);
        desc.state &= !reply::LINK_DOWN;
        let m = Message::PortStatus(PortStatus { reason: 2, desc });
        self.broadcast(bridge, |w| w.has(w.masks.port_status, 2).then(|| m.clone()));
    }

    /// Tells the connections of a bridge that a port began or ceased to be live, which OpenFlow 1.0 has no word for.
    pub fn port_liveness(&self, bridge: BridgeId, port: &switch::Port) {
        /// A port was changed (OFPPR_MODIFY).
        const MODIFY: u8 = 2;
        let m = Message::PortStatus(PortStatus { reason: MODIFY, desc: reply::port_desc(port) });
        let wants = |w: &Wants| w.version != Version::Of10 && w.has(w.masks.port_status, MODIFY);
        self.broadcast(bridge, |w| wants(w).then(|| m.clone()));
    }

    /// Tells the connections of a bridge of tables whose room has passed what they asked about.
    fn tell_vacancy(&self, w: &mut MainPmd, bridge: BridgeId) {
        /// OFPTR_VACANCY_DOWN, OFPTR_VACANCY_UP.
        const REASONS: [u8; 2] = [3, 4];
        let mut changes = Vec::new();
        w.switch.with_tables(bridge, |b| changes = b.vacancy_changes());
        let Some(b) = w.switch.bridge(bridge) else { return };
        for c in changes {
            let reason = REASONS[usize::from(c.up)];
            let m = Message::TableStatus(TableStatus { reason, desc: reply::table_desc(b, c.table) });
            let wants = |w: &Wants| w.version >= Version::Of14 && w.has(w.masks.table_status, reason);
            self.broadcast(bridge, |w| wants(w).then(|| m.clone()));
        }
    }

    /// Tells the other connections of a bridge of a change of a group or a meter that one has asked for.
    pub(super) fn forward(&self, bridge: BridgeId, from: u64, m: &Message) {
        let reason = match m {
            Message::GroupMod(_) => 0,
            Message::MeterMod(_) => 1,
            _ => return,
        };
        for (id, l) in &self.lock().listeners {
            let wanted = l.bridge == bridge && *id != from && l.wants.hears();
            if wanted
                && l.wants.has(l.wants.masks.request_forward, reason)
                && l.queue.try_send(Message::RequestForward(Box::new(m.clone()))).is_err()
            {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Begins to snoop: gives the messages of all connections of a bridge from now on.
    pub(super) fn snoop(&self, bridge: BridgeId) -> mpsc::Receiver<Vec<u8>> {
        let (tx, rx) = mpsc::channel(QUEUE);
        let mut s = self.lock();
        s.snoops.push((bridge, tx));
        self.snoops.store(s.snoops.len(), Ordering::Relaxed);
        rx
    }

    /// Shows a message to snoop connections.
    pub(super) fn show(&self, bridge: BridgeId, m: &Message, v: Version, xid: u32) {
        if self.snoops.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut s = self.lock();
        s.snoops.retain(|(_, tx)| !tx.is_closed());
        self.snoops.store(s.snoops.len(), Ordering::Relaxed);
        if s.snoops.iter().any(|(b, _)| *b == bridge) {
            for part in m.encode_all(v, xid) {
                for (_, tx) in s.snoops.iter().filter(|(b, _)| *b == bridge) {
                    // A snoop connection that does not read misses some.
                    let _ = tx.try_send(part.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::TableId;

    #[test]
    fn older_versions_know_fewer_reasons() {
        for (version, reason, told) in [
            (Version::Of10, PacketInReason::PacketOut, Some(PacketInReason::Action)),
            (Version::Of13, PacketInReason::Group, Some(PacketInReason::Action)),
            (Version::Of15, PacketInReason::Group, Some(PacketInReason::Group)),
            (Version::Of10, PacketInReason::Action, Some(PacketInReason::Action)),
        ] {
            let m = Wants::new(version, true).packet_in(0, &PacketIn { reason, ..PacketIn::default() }, Miss::No);
            let got = m.and_then(|m| match m {
                Message::PacketIn(p) => Some(p.reason),
                _ => None,
            });
            assert_eq!(got, told, "{version:?} {reason:?}");
        }
        let unmatched = PacketIn { reason: PacketInReason::NoMatch, ..PacketIn::default() };
        let told = |v, miss| match Wants::new(v, true).packet_in(0, &unmatched, miss) {
            Some(Message::PacketIn(p)) => Some(p.reason),
            _ => None,
        };
        let [none, action] = [PacketInReason::NoMatch, PacketInReason::Action];
        assert_eq!(
            [Version::Of10, Version::Of12, Version::Of13].map(|v| told(v, Miss::NoFlow)),
            [Some(none), Some(none), None]
        );
        assert_eq!([Version::Of12, Version::Of13].map(|v| told(v, Miss::Flow)), [Some(action), Some(none)]);
        assert_eq!(told(Version::Of10, Miss::No), Some(none), "a flow's own words");
    }

    /// What the main PMD thread tells reaches the connections of its bridge, whatever else the control plane does.
    #[tokio::test]
    async fn packet_ins_and_ports_are_told_by_their_own_task() {
        let (all, (events, told)) = (Connections::default(), mpsc::unbounded_channel());
        let (_, mut own) = all.add(BridgeId(1), Wants::new(Version::Of13, true));
        let (_, mut other) = all.add(BridgeId(2), Wants::new(Version::Of13, true));
        let telling = tokio::spawn(all.clone().tell(told, mpsc::channel(1).1));
        let packet_in = Box::new(PacketIn { reason: PacketInReason::Action, ..PacketIn::default() });
        let port =
            Box::new(switch::Port::new(openflow_rs::PortNo(3), "p3", switch::PortKind::Device(switch::DeviceId(3))));
        for e in [
            ControllerEvent::Event(Event::PacketIn { bridge: BridgeId(1), controller: 0, packet_in, miss: Miss::No }),
            ControllerEvent::Event(Event::FlowRemoved { bridge: BridgeId(1), removed: Box::default() }),
            ControllerEvent::Port(BridgeId(1), port),
        ] {
            events.send(e).expect("it listens");
        }
        assert!(matches!(own.events.recv().await, Some(Message::PacketIn(_))));
        assert!(matches!(own.events.recv().await, Some(Message::FlowRemoved(_))));
        assert!(matches!(own.events.recv().await, Some(Message::PortStatus(PortStatus { reason: 2, .. }))));
        assert!(other.events.try_recv().is_err());
        drop(events);
        telling.await.expect("it ends with the thread");
    }

    /// A connection that does not read: packets of a port that floods take nobody's place, and wait behind all others.
    #[tokio::test]
    async fn a_flood_waits_by_itself() {
        let (all, (events, told)) = (Connections::default(), mpsc::unbounded_channel());
        let (flood, floods) = mpsc::channel(FLOOD_QUEUE * 4);
        let (_, mut own) = all.add(BridgeId(1), Wants::new(Version::Of13, true));
        let event = |table| {
            let packet_in = PacketIn { reason: PacketInReason::Action, table: TableId(table), ..PacketIn::default() };
            Event::PacketIn { bridge: BridgeId(1), controller: 0, packet_in: Box::new(packet_in), miss: Miss::No }
        };
        (0..FLOOD_QUEUE * 4).for_each(|_| flood.try_send(event(1)).expect("there is room"));
        let telling = tokio::spawn(all.clone().tell(told, floods));
        while all.dropped() < (FLOOD_QUEUE * 3) as u64 {
            tokio::task::yield_now().await;
        }
        (0..QUEUE).for_each(|_| events.send(ControllerEvent::Event(event(2))).expect("it listens"));
        drop(events);
        telling.await.expect("it ends with the thread");
        let tables = |r: &mut mpsc::Receiver<Message>| {
            let mut tables = Vec::new();
            while let Ok(Message::PacketIn(p)) = r.try_recv() {
                tables.push(p.table.0);
            }
            tables
        };
        assert_eq!(tables(&mut own.floods), [1; FLOOD_QUEUE]);
        assert_eq!(tables(&mut own.events), [2; QUEUE]);
        assert_eq!(all.dropped(), (FLOOD_QUEUE * 3) as u64);
    }
}
