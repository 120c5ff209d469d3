//! Who is connected to which bridge, and what each wants to be told.

use super::{monitors, reply};
use crate::worker::Worker;
use openflow_rs::Message;
use openflow_rs::action::PacketInReason;
use openflow_rs::message::{
    AsyncConfig, AsyncMasks, FlowMonitor, FlowUpdate, MultipartReply, PacketIn, PortStatus, Role, Version,
};
use openflow_rs::wire::DecodeError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::BridgeId;
use tokio::sync::mpsc;

/// Asynchronous messages that wait for a connection at most; more are dropped.
pub(super) const QUEUE: usize = 1024;

/// Role: as good as any other.
pub(super) const EQUAL: u32 = 1;
/// Role: the one controller that may change things.
pub(super) const PRIMARY: u32 = 2;
/// Role: may only look.
pub(super) const SECONDARY: u32 = 3;

/// What a connection wants to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wants {
    pub controller: u16,
    /// 0: standard packet-ins; 1: NXT_PACKET_IN; 2: NXT_PACKET_IN2.
    pub format: u32,
    /// 0 on a management socket: no asynchronous messages at all. A controller's connection gets them anyhow.
    pub miss_send_len: u16,
    pub role: u32,
    /// Its version knows why packets come from action sets, groups and packet-outs (OpenFlow 1.4); else they come from actions.
    pub reasons: bool,
    /// Its version knows messages of a role that is another one now.
    pub role_status: bool,
    pub masks: AsyncConfig,
}

impl Wants {
    /// What a connection wants that has said nothing: one to a controller gets what Open vSwitch sends it.
    pub fn new(v: Version, of_controller: bool) -> Wants {
        let miss_send_len = if of_controller { 128 } else { 0 };
        Wants {
            controller: 0,
            format: 0,
            miss_send_len,
            role: EQUAL,
            reasons: v >= Version::Of14,
            role_status: v >= Version::Of13,
            masks: AsyncConfig::initial(v),
        }
    }

    /// A packet-in as it is told of, if it is.
    fn packet_in(&self, controller: u16, p: &PacketIn) -> Option<Message> {
        use PacketInReason as R;
        let reason = match p.reason {
            R::ActionSet | R::Group | R::PacketOut if !self.reasons => R::Action,
            r => r,
        };
        if self.controller != controller || !self.has(self.masks.packet_in, reason as u8) {
            return None;
        }
        let p = PacketIn { reason, ..p.clone() };
        Some(match self.format {
            0 => Message::PacketIn(p),
            1 => Message::NxPacketIn(p),
            _ => Message::PacketIn2(p),
        })
    }

    fn has(&self, masks: AsyncMasks, reason: u8) -> bool {
        let mask = if self.role == SECONDARY { masks.secondary } else { masks.primary };
        mask.checked_shr(reason.into()).unwrap_or(0) & 1 != 0
    }
}

struct Listener {
    bridge: BridgeId,
    wants: Wants,
    monitors: Vec<FlowMonitor>,
    queue: mpsc::Sender<Message>,
}

#[derive(Default)]
struct State {
    listeners: HashMap<u64, Listener>,
    /// The newest generation of roles, by bridge.
    generations: HashMap<BridgeId, u64>,
    snoops: Vec<(BridgeId, mpsc::Sender<Vec<u8>>)>,
}

/// The connections of all bridges, to tell them things.
#[derive(Clone, Default)]
pub struct Connections {
    state: Arc<Mutex<State>>,
    next: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    /// How many look on; mostly none.
    snoops: Arc<AtomicUsize>,
    /// How many flow monitors there are; mostly none.
    watching: Arc<AtomicUsize>,
}

impl Connections {
    pub(super) fn add(&self, bridge: BridgeId, wants: Wants) -> (u64, mpsc::Receiver<Message>) {
        let (queue, events) = mpsc::channel(QUEUE);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().listeners.insert(id, Listener { bridge, wants, monitors: Vec::new(), queue });
        (id, events)
    }

    pub(super) fn remove(&self, id: u64) {
        let mut s = self.lock();
        s.listeners.remove(&id);
        self.count_monitors(&s);
    }

    fn count_monitors(&self, s: &State) {
        self.watching.store(s.listeners.values().map(|l| l.monitors.len()).sum(), Ordering::Relaxed);
    }

    /// Changes a connection's flow monitors; gives the flows that the new ones want to hear of at once. For the worker's thread,
    /// where no flow changes meanwhile.
    pub(super) fn monitor(
        &self,
        w: &mut Worker,
        bridge: BridgeId,
        id: u64,
        list: &[FlowMonitor],
    ) -> Result<Vec<FlowUpdate>, DecodeError> {
        self.tell_flows(w, bridge, None);
        // What nobody wanted to hear.
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

    /// Lets a bridge note what changes of its flows if there are monitors for it, and only then.
    pub(super) fn watch(&self, w: &mut Worker, bridge: BridgeId) {
        let on = self.lock().listeners.values().any(|l| l.bridge == bridge && !l.monitors.is_empty());
        w.switch.with_tables(bridge, |b| b.record_flow_updates(on));
    }

    /// Whether there are flow monitors.
    pub fn are_watching(&self) -> bool {
        self.watching.load(Ordering::Relaxed) != 0
    }

    /// Tells flow monitors what has changed, in the worker's thread; `own` is the connection that changed it, and its
    /// transaction. Who does not read misses some, counted.
    pub fn tell_flows(&self, w: &mut Worker, bridge: BridgeId, own: Option<(u64, u32)>) {
        if !self.are_watching() {
            return;
        }
        let mut told = Vec::new();
        w.switch.with_tables(bridge, |b| told = b.drain_flow_updates());
        if told.is_empty() {
            return;
        }
        let s = self.lock();
        for (id, l) in s.listeners.iter().filter(|(_, l)| l.bridge == bridge && !l.monitors.is_empty()) {
            let own = own.filter(|(o, _)| o == id).map(|(_, xid)| xid);
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

    /// Gives a connection a role; a new primary makes the former one secondary. False: the generation is an old one
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
                if l.wants.role_status && l.queue.try_send(Message::RoleStatus(role, 0)).is_err() {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        true
    }

    /// The newest generation of a bridge's roles.
    pub(super) fn generation(&self, bridge: BridgeId) -> Option<u64> {
        self.lock().generations.get(&bridge).copied()
    }

    /// Asynchronous messages that were dropped because a connection did not read.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn each(&self, bridge: BridgeId, mut f: impl FnMut(&Wants) -> Option<Message>) {
        for l in self.lock().listeners.values() {
            if l.bridge == bridge
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
        self.each(bridge, |w| w.packet_in(controller, p));
    }

    /// Tells the connections of a bridge of a flow that went.
    pub fn flow_removed(&self, bridge: BridgeId, m: &openflow_rs::message::FlowRemoved) {
        self.each(bridge, |w| w.has(w.masks.flow_removed, m.reason).then(|| Message::FlowRemoved(m.clone())));
    }

    /// Tells of a port: 0 added, 1 deleted, 2 changed.
    pub fn port_status(&self, bridge: BridgeId, reason: u8, port: &switch::Port) {
        let desc = reply::port_desc(port);
        let m = Message::PortStatus(PortStatus { reason, desc });
        self.each(bridge, |w| w.has(w.masks.port_status, reason).then(|| m.clone()));
    }

    /// Lets somebody look on at all of a bridge's connections.
    pub(super) fn look_on(&self, bridge: BridgeId) -> mpsc::Receiver<Vec<u8>> {
        let (tx, rx) = mpsc::channel(QUEUE);
        let mut s = self.lock();
        s.snoops.push((bridge, tx));
        self.snoops.store(s.snoops.len(), Ordering::Relaxed);
        rx
    }

    /// Shows a message to those who look on.
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
                    // Who does not read misses some.
                    let _ = tx.try_send(part.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_versions_know_fewer_reasons() {
        for (version, reason, told) in [
            (Version::Of10, PacketInReason::PacketOut, Some(PacketInReason::Action)),
            (Version::Of13, PacketInReason::Group, Some(PacketInReason::Action)),
            (Version::Of15, PacketInReason::Group, Some(PacketInReason::Group)),
            (Version::Of10, PacketInReason::Action, Some(PacketInReason::Action)),
        ] {
            let m = Wants::new(version, true).packet_in(0, &PacketIn { reason, ..PacketIn::default() });
            let got = m.and_then(|m| match m {
                Message::PacketIn(p) => Some(p.reason),
                _ => None,
            });
            assert_eq!(got, told, "{version:?} {reason:?}");
        }
    }
}
