//! The switch: bridges, their flow cache, and the entry points for packets, changes and time.

mod cached_flows;

use crate::bridge::bond::{BUCKETS, Bond};
use crate::bridge::transaction::{PacketOutThen, Replaced, TableTransaction, TablesThen};
use crate::bridge::{Bridge, Invalidation, Port};
use crate::buf::PacketBuf;
use crate::conntrack::{Flush, Timeouts, Zone};
use crate::drops::DropReason;
use crate::events::{Event, HeldPacket, Outputs};
use crate::fastpath::{FastPath, Flow, News, Sums, Upcall, View};
use crate::flowcache::exec::{ReplayContext, burst};
use crate::flowcache::key::PackedKey;
use crate::flowcache::own::KnownWay;
use crate::flowcache::recorder::Record;
use crate::flowcache::{Cache, CacheStats, FlowCache};
use crate::ids::{BridgeId, DeviceId};
use crate::netflow::NetflowCount;
use crate::trace::{self, TraceRequest};
use crate::xlate::backer::SwitchError;
use crate::xlate::{Backer, Within, Xlate, continuation};
use openflow_rs::action::Action;
use openflow_rs::message::{PacketIn, PacketOut};
use openflow_rs::wire::DecodeError;
use openflow_rs::{FieldId as F, FlowMod, Match, Message, OfError, PortNo};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Connections that one tick looks at: more would keep packets waiting. Larger tables are also swept between bursts.
const MOST_SWEPT: usize = 16_384;

/// Default of [`Switch::max_idle`], as in Open vSwitch.
pub const MAX_IDLE: Duration = Duration::from_secs(10);

/// A switch: its bridges and what they share ([`Backer`], which it can be used as), and a cache of flows.
#[derive(Debug)]
pub struct Switch {
    backer: Backer,
    flowcache: FlowCache,
    /// Cached flows that no packet used for this long are removed.
    pub max_idle: Duration,
}

impl Deref for Switch {
    type Target = Backer;

    fn deref(&self) -> &Backer {
        &self.backer
    }
}

impl DerefMut for Switch {
    fn deref_mut(&mut self) -> &mut Backer {
        &mut self.backer
    }
}

impl Switch {
    /// A switch without bridges, with room for so many connections.
    pub fn new(connections: usize) -> Switch {
        let backer = Backer::new(connections);
        Switch { flowcache: FlowCache::new(connections, &backer), backer, max_idle: MAX_IDLE }
    }

    /// Forwards a batch of packets, each with the device that received it, and empties it. `now` never goes back.
    #[inline(never)]
    pub fn process<P: PacketBuf>(&mut self, batch: &mut Vec<(DeviceId, P)>, now: Duration, out: &mut Outputs<P>) {
        self.backer.now = now;
        self.settle();
        let mut left = batch.drain(..);
        let mut keys = std::mem::take(&mut self.flowcache.cache.keys);
        let mut outer = Vec::new();
        let at = now.as_nanos() as u64;
        while let Some(n) = burst(left.as_slice()).filter(|_| self.flowcache.cache.on) {
            let mut held = None;
            let n = n - self.flowcache.cache.serve_burst_prefix(&mut left, n, &mut outer, out, at);
            if n == 0 {
                continue;
            }
            let next = left.as_slice().get(..n).unwrap_or_default();
            self.flowcache.cache.prepare(next, &mut keys);
            let (mut done, mut first) = (0, None);
            for (key, (device, p)) in keys.iter_mut().take(n).zip(left.by_ref()) {
                let Switch { backer, flowcache, .. } = self;
                let now = ReplayContext { at, ct: Some(&backer.conntrack) };
                first = match key.cached() {
                    true => flowcache.cache.replay(key, p, &mut held, &mut outer, out, now),
                    false => Some(p),
                }
                .map(|p| (device, p));
                if out.held.is_some() {
                    flowcache.join(backer, &mut outer, out);
                    held = None;
                }
                if first.is_some() {
                    break;
                }
                done += 1;
            }
            if let (Some(p), Some(keys)) = (first, keys.get_mut(done..n)) {
                let behind = left.by_ref().take(keys.len() - 1);
                let rest = std::iter::once(p).chain(behind).map(Some).collect();
                self.process_rest(keys, rest, &mut outer, out);
            }
        }
        left.for_each(|(device, p)| self.uncached(device, p, out));
        self.flowcache.cache.keys = keys;
        self.flowcache.pay_if_due(&mut self.backer);
    }

    /// Forwards the packets of a burst from the first on that has no flow, in their order.
    #[inline(never)]
    fn process_rest<P: PacketBuf>(
        &mut self,
        keys: &mut [PackedKey],
        mut rest: Vec<Option<(DeviceId, P)>>,
        outer: &mut Vec<Option<P>>,
        out: &mut Outputs<P>,
    ) {
        let (mut next, mut held, at) = (0, None, self.backer.now.as_nanos() as u64);
        while let (Some(key), Some(slot)) = (keys.get_mut(next), rest.get_mut(next)) {
            let Switch { backer, flowcache, .. } = self;
            let now = ReplayContext { at, ct: Some(&backer.conntrack) };
            if next > 0
                && key.cached()
                && let Some((device, p)) = slot.take()
            {
                *slot = flowcache.cache.replay(key, p, &mut held, outer, out, now).map(|p| (device, p));
                if slot.is_none() {
                    next += 1;
                    if out.held.is_some() {
                        flowcache.join(backer, outer, out);
                        held = None;
                    }
                    continue;
                }
            }
            held = None;
            if key.cached() {
                let end = next + flowcache.cache.run_length(keys, &rest, next, flowcache.runs.most, now);
                if let (Some(keys), Some(run)) = (keys.get(next..end), rest.get_mut(next..end)) {
                    let keep = |cache: &mut Cache, hash, e| cache.insert(&backer.conntrack, backer.now, hash, e);
                    next += flowcache.serve_run(backer, (keys, run), (outer, out), keep);
                }
                if next == end {
                    continue;
                }
            }
            let (Some(key), Some(Some((device, p)))) = (keys.get(next), rest.get_mut(next).map(Option::take)) else {
                break;
            };
            next += 1;
            let exact_flags = self.flowcache.cache.views.exact_flags();
            if key.cached() {
                let record = self.walk(device, p, out, Some((key.inner_at != 0, key.kind())));
                self.flowcache.keep(&mut self.backer, key, record);
            } else {
                self.uncached(device, p, out);
            }
            let Cache { views, table, .. } = &self.flowcache.cache;
            if views.exact_flags() != exact_flags {
                // The walk has found flows that match TCP flags which keys lacked.
                for (key, (device, p)) in
                    keys.iter_mut().zip(&rest).skip(next).filter_map(|(k, s)| Some((k, s.as_ref()?)))
                {
                    if key.fill(*device, p.data(), &views.own, true) {
                        key.hash = table.hash(key.blocks());
                        key.candidate = u32::MAX;
                    }
                }
            }
        }
    }

    /// From now on counters of cached flows may be up to two seconds old, if there is a tick each second, unless
    /// [`Switch::count`] brings them up to date.
    pub fn count_late(&mut self) {
        self.flowcache.pay_late();
    }

    /// Brings counters of flows, ports, groups and drops up to date.
    pub fn count(&mut self) {
        self.flowcache.pay_out(&mut self.backer);
    }

    /// Turns the flow cache on or off, and empties it. It is on by default.
    pub fn set_cache(&mut self, on: bool) {
        self.purge_cache();
        self.flowcache.cache.on = on;
        self.set_segments(on);
    }

    /// Turns the segment cache on or off. It is on by default, and off with the flow cache.
    pub fn set_segments(&mut self, on: bool) {
        self.flowcache.set_segments(&mut self.backer, on);
    }

    /// Turns the check of TCP windows on or off; it is off by default. With it, TCP packets walk the tables one by one.
    /// Connections made without it stay unchecked.
    pub fn check_tcp_windows(&mut self, on: bool) {
        self.backer.conntrack.lock().windows = on;
        self.backer.opened += 1;
    }

    /// Has what ports receive dropped while flows are being restored (`other_config:flow-restore-wait` of
    /// ovs-vswitchd.conf.db(5)), or not any more.
    pub fn set_restoring(&mut self, on: bool) {
        self.backer.restoring = on;
    }

    /// Whether a packet of which nothing leaves but samples counts as dropped (`other_config:explicit-sampled-drops` of
    /// ovs-vswitchd.conf.db(5)); by default it does not.
    pub fn set_sampled_drops(&mut self, on: bool) {
        if std::mem::replace(&mut self.backer.sampled_drops, on) != on {
            self.backer.opened += 1;
        }
    }

    /// Sets the timeouts of zones that have some of their own.
    pub fn set_timeouts(&mut self, timeouts: HashMap<Zone, Timeouts>) {
        self.backer.conntrack.lock().set_timeouts(timeouts);
        self.backer.opened += 1;
    }

    /// How many flows are in the cache, and how many there is room for.
    pub fn cache_size(&self) -> (usize, usize) {
        self.flowcache.cache.size()
    }

    /// Limits the cache to `most` flows (none: to its capacity). A new limit empties the cache; returns whether it was
    /// new. Fast paths made afterwards have the same limit.
    pub fn limit_flows(&mut self, most: Option<usize>) -> bool {
        let changed = self.flowcache.cache.table.limit(most);
        if changed {
            self.purge_cache();
        }
        changed
    }

    /// Has the numbers of masks begin anew after so many, which empties the cache: they do after some two million.
    pub fn number_masks_up_to(&mut self, most: u32) {
        self.flowcache.cache.table.masks.number_up_to(most);
    }

    /// Whether flows may be of all packets that are alike in what decided (they may by default), or of one packet's headers
    /// each, connections' as well. A change empties the cache.
    pub fn set_megaflows(&mut self, on: bool) {
        if std::mem::replace(&mut self.flowcache.megaflows, on) != on {
            self.purge_cache();
        }
    }

    /// Empties the flow cache.
    pub fn purge_cache(&mut self) {
        self.flowcache.purge(&mut self.backer);
    }

    /// Statistics of the flow cache.
    pub fn cache_stats(&self) -> CacheStats {
        let Cache { stats, tallies, .. } = &self.flowcache.cache;
        CacheStats { hits: stats.hits + tallies.packets() - self.flowcache.legs.served, ..*stats }
    }

    /// How many packets have walked through the tables, ever.
    #[inline]
    pub fn walks(&self) -> u64 {
        self.flowcache.cache.stats.misses
    }

    /// Makes cached flows stale if what they depend on has changed.
    fn settle(&mut self) {
        self.flowcache.settle(&mut self.backer);
    }

    fn uncached<P: PacketBuf>(&mut self, device: DeviceId, p: P, out: &mut Outputs<P>) {
        if p.data().len() < 14 {
            return self.backer.drops.add(DropReason::Short);
        }
        drop(self.walk(device, p, out, None));
        // The walk may have learned a flow.
        self.settle();
    }

    /// Walks the tables with a packet. `recorded`: record the walk; whether the key covers a tunnel header, and the key's kind.
    #[inline(never)]
    fn walk<P: PacketBuf>(
        &mut self,
        device: DeviceId,
        p: P,
        out: &mut Outputs<P>,
        recorded: Option<(bool, Option<usize>)>,
    ) -> Option<Record> {
        let Switch { backer, flowcache, .. } = self;
        flowcache.cache.stats.misses += 1;
        // The record of a walk that opens a connection serves no other packet.
        let expected = recorded.is_some() && flowcache.connection_predictor.expected();
        let keeps_legs = recorded.is_some();
        let recorded = recorded.filter(|_| !expected);
        // Tunnels may end at a device that belongs to no bridge.
        let arrived = backer.devices.get(&device).copied();
        if let Some((bridge, no)) = arrived
            && let Some(port) = backer.bridges.get_mut(bridge).and_then(|b| b.ports.get_mut(&no))
        {
            port.stats[0] += 1;
            port.stats[2] += p.data().len() as u64;
        }
        let mut x =
            Xlate::new(backer, out, p, arrived.map_or(BridgeId::NONE, |(bridge, _)| bridge), flowcache.observer());
        if let Some((_, no)) = arrived {
            x.packet.key.set(F::InPort, no.0.into());
        }
        x.pipeline.last = true;
        x.observer.keeps_legs = keeps_legs;
        if let Some(r) = recorded {
            x.record(r, arrived);
        }
        if arrived.is_some() {
            x.arrive_outside();
        } else if !x.tunnel_end() {
            x.because(DropReason::UnknownPort);
        }
        let (record, opened, failed) = (x.recorded(), x.observer.opened, x.pipeline.failed);
        x.end();
        let record = self.flowcache.keep_legs(&self.backer, failed, record);
        if expected && !opened {
            self.flowcache.connection_predictor.none();
        }
        record
    }

    /// Executes a packet-out. `like` makes the packet's buffer.
    pub fn packet_out<P: PacketBuf>(
        &mut self,
        bridge: BridgeId,
        m: &PacketOut,
        like: &P,
        now: Duration,
        out: &mut Outputs<P>,
    ) {
        self.backer.now = now;
        let Some(p) = like.with_bytes(&m.packet) else { return self.drops.add(DropReason::NoBuffer) };
        drop(self.walk_out(bridge, (&m.metadata, &m.actions), p, None, out));
    }

    /// Carries out actions on a packet of our own. `tunnel`: record the walk; true if the key covers a tunnel header.
    fn walk_out<P: PacketBuf>(
        &mut self,
        bridge: BridgeId,
        (metadata, actions): (&Match, &[Action]),
        p: P,
        tunnel: Option<bool>,
        out: &mut Outputs<P>,
    ) -> Option<Record> {
        let Switch { backer, flowcache, .. } = self;
        let mut x = Xlate::new(backer, out, p, bridge, flowcache.observer());
        x.of_type(metadata);
        x.overlay(metadata);
        x.pipeline.within = Within::PacketOut;
        tunnel.into_iter().for_each(|t| x.record_alone(t));
        x.note_set();
        // Mirrors take it for received at the port that it names.
        x.copy(PortNo(x.packet.key.get(F::InPort) as u16), true);
        x.actions(actions);
        x.finish();
        let record = x.recorded();
        x.end();
        self.flowcache.count_segments(&mut self.backer);
        record
    }

    /// Sends a packet the way that others with the same headers and the same length took ([`Switch::packet_out_again`]).
    ///
    /// # Errors
    /// The way is not known, or is another one by now: the packet comes back.
    pub fn send_again<P: PacketBuf>(
        &mut self,
        way: &KnownWay,
        p: P,
        now: Duration,
        out: &mut Outputs<P>,
    ) -> Result<(), P> {
        self.backer.now = now;
        self.settle();
        self.flowcache.send_again(way, p, now, out)
    }

    /// Executes a packet-out of a packet that is the first of many with the same headers and the same length, and notes the way
    /// that it takes.
    pub fn packet_out_again<P: PacketBuf>(
        &mut self,
        way: &mut KnownWay,
        bridge: BridgeId,
        what: (&Match, &[Action]),
        p: P,
        now: Duration,
        out: &mut Outputs<P>,
    ) {
        self.backer.now = now;
        self.settle();
        let mut key = PackedKey::default();
        let Cache { views, on, .. } = &self.flowcache.cache;
        // No received packet has such a key.
        let cached = *on && key.fill(DeviceId::NONE, p.data(), &views.own, views.exact_flags());
        let len = p.data().len();
        let record = self.walk_out(bridge, what, p, cached.then_some(key.inner_at != 0), out);
        *way = self.flowcache.known_way(&mut self.backer, &key, len, record);
    }

    /// Sends a packet that was held while its tunnel's next hop had no Ethernet address
    /// ([`Event::NeighbourWanted`]). `like` makes its buffer.
    pub fn send_held<P: PacketBuf>(&mut self, held: &HeldPacket, like: &P, now: Duration, out: &mut Outputs<P>) {
        self.backer.now = now;
        let Some(p) = like.with_bytes(&held.packet) else { return self.drops.add(DropReason::NoBuffer) };
        let Switch { backer, flowcache, .. } = self;
        let mut x = Xlate::new(backer, out, p, held.bridge, flowcache.observer());
        x.send_held(held);
        x.end();
        self.flowcache.count_segments(&mut self.backer);
    }

    /// Lets packets go on that waited for word of their connection from another chassis: it has come, or is not waited for any
    /// longer. Returns how many. `like` makes a packet's buffer.
    pub fn end_waits<P: PacketBuf>(&mut self, like: &P, now: Duration, out: &mut Outputs<P>) -> usize {
        self.backer.now = now;
        let Switch { backer, flowcache, .. } = self;
        let ready = backer.awaiting.take(&backer.conntrack.lock(), now);
        for held in &ready {
            let Some(p) = like.with_bytes(&held.bytes) else {
                backer.drops.add(DropReason::NoBuffer);
                continue;
            };
            let mut x = Xlate::new(backer, out, p, held.rest.bridge, flowcache.observer());
            x.end_wait(&held.rest);
            x.end();
        }
        self.flowcache.count_segments(&mut self.backer);
        ready.len()
    }

    /// Lets a paused packet go on (NXT_RESUME).
    ///
    /// # Errors The continuation is not one of this switch.
    pub fn resume<P: PacketBuf>(
        &mut self,
        m: &PacketIn,
        like: &P,
        now: Duration,
        out: &mut Outputs<P>,
    ) -> Result<(), SwitchError> {
        self.backer.now = now;
        let c = m.continuation.as_deref().and_then(continuation::decode).ok_or(SwitchError::Continuation)?;
        if self.bridges.get(c.bridge).is_none() {
            return Err(SwitchError::Continuation);
        }
        let Some(p) = like.with_bytes(&m.packet) else {
            self.drops.add(DropReason::NoBuffer);
            return Ok(());
        };
        let Switch { backer, flowcache, .. } = self;
        let mut x = Xlate::new(backer, out, p, c.bridge, flowcache.observer());
        x.of_type(&m.metadata);
        x.overlay(&m.metadata);
        x.packet.mirrored = c.mirrored;
        x.pipeline.stack = c.stack;
        x.pipeline.action_set = c.action_set;
        x.note_set();
        x.go_on(c.frames);
        x.end();
        self.flowcache.count_segments(&mut self.backer);
        Ok(())
    }

    /// Housekeeping: timeouts of flows, addresses and connections. Call it every second or so.
    pub fn tick<P>(&mut self, now: Duration, out: &mut Outputs<P>) {
        self.backer.now = now;
        self.flowcache.pay_at_tick(&mut self.backer, self.max_idle < MAX_IDLE / 2);
        let mut connections = self.backer.conntrack.lock();
        let n = (connections.slots() / 8 + 1024).min(MOST_SWEPT);
        connections.sweep(n, now);
        drop(connections);
        let xcaches = &mut self.flowcache.xcaches;
        xcaches.now = now;
        xcaches.expire();
        xcaches.forget_idle(self.max_idle);
        let late = self.fragments.expire(now);
        self.drops.add_many(DropReason::FragmentTimeout, late);
        for (id, b) in self.bridges.numbered_mut() {
            b.expire(now);
            out.events.extend(b.removed.drain(..).map(|r| Event::FlowRemoved { bridge: id, removed: Box::new(r) }));
        }
    }

    /// Applies one change from a controller: flow, group or meter-mod, option map, connection flush.
    ///
    /// # Errors
    /// What to answer; nothing has changed then.
    pub fn apply(&mut self, bridge: BridgeId, m: &Message, now: Duration) -> Result<(), DecodeError> {
        self.backer.now = now;
        let missing = || OfError::RequestBadSubtype.because(format!("bridge {bridge} does not exist"));
        let b = self.backer.bridges.get_mut(bridge).ok_or_else(missing)?;
        match Flush::asked(m) {
            Some(what) => {
                self.backer.conntrack.lock().flush(&what);
                Ok(())
            }
            None => b.change(m, now),
        }
    }

    /// Takes a flow that another chassis learned and used last `idle` ago ([`Bridge::take_learned`]): each bridge in which a
    /// flow learns such takes it. False: none does.
    pub fn take_learned(&mut self, f: &FlowMod, idle: Duration, now: Duration) -> bool {
        if !self.backer.bridges.iter().any(|b| b.learns(f)) {
            return false;
        }
        self.backer.now = now;
        // A replaced flow reports its counters: pay them out first.
        self.flowcache.count_segments(&mut self.backer);
        let taken = self.backer.bridges.iter_mut().filter_map(|b| b.take_learned(f, idle, now).then_some(()));
        taken.count() > 0
    }

    /// How many kinds of flows (table and cookie) flows here learn.
    pub fn learns(&self) -> usize {
        self.backer.bridges.iter().map(|b| b.users.kinds_learned()).sum()
    }

    /// Explains what would become of a packet (`ofproto/trace`). With effects, what it tells controllers goes to `events`.
    pub fn trace(&mut self, request: TraceRequest, events: &mut Vec<Event>) -> String {
        // What a trace with effects learns takes the place of flows that have counted all of their packets.
        self.flowcache.count_segments(&mut self.backer);
        trace::explain(&mut self.backer, request, events)
    }

    /// Packets of NetFlow's flows since the last call. Those that cached flows served come late, with their counters.
    pub fn take_netflow(&mut self) -> Vec<NetflowCount> {
        std::mem::take(&mut self.backer.netflow)
    }

    /// Walks the tables with a packet that exporters (sFlow, IPFIX) chose, and reports where it went if its bridge is
    /// observed. The flow cache is not used.
    pub fn observe<P: PacketBuf>(&mut self, device: DeviceId, p: P, now: Duration, out: &mut Outputs<P>) {
        self.backer.now = now;
        self.settle();
        (self.backer.observing, self.backer.passing) = (true, Some(Vec::new()));
        self.uncached(device, p, out);
        (self.backer.observing, self.backer.passing) = (false, None);
    }
}

impl Switch {
    /// Adds or replaces a bond of a bridge.
    pub fn set_bond(&mut self, bridge: BridgeId, bond: Bond) {
        if let Some(b) = self.backer.bridges.get_mut(bridge) {
            b.set_bond(bond);
        }
    }

    /// Bytes that each bucket of a bond sent since the last call.
    pub fn take_bond_bytes(&mut self, bridge: BridgeId, name: &str) -> Vec<u64> {
        self.count();
        let state = self.backer.bridges.get_mut(bridge).and_then(|b| b.bonds.iter_mut().find(|s| s.bond.name == name));
        state.map(|s| std::mem::replace(&mut s.bytes, vec![0; BUCKETS])).unwrap_or_default()
    }

    /// Removes a bond: its members become plain ports.
    pub fn remove_bond(&mut self, bridge: BridgeId, name: &str) {
        if let Some(b) = self.backer.bridges.get_mut(bridge) {
            b.remove_bond(name);
        }
    }
}

impl Switch {
    /// A copy of the tables of a bridge that another thread can change; `None` without that bridge.
    pub fn table_transaction(&self, bridge: BridgeId) -> Option<TableTransaction> {
        let b = self.backer.bridges.get(bridge)?;
        Some(TableTransaction::new(bridge, b))
    }

    /// Replaces the tables of a bridge by those of a transaction. Packets see the old tables or the new, nothing
    /// between. Connections that it is to flush are still there ([`Replaced::flushes`]).
    ///
    /// # Errors The bridge has changed since the transaction began: begin another.
    pub fn commit(&mut self, mut draft: Box<TableTransaction>, now: Duration) -> Result<Replaced, Replaced> {
        self.backer.now = now;
        // Changes that the cache has not seen yet belong to the old tables.
        self.settle();
        let Switch { backer, flowcache, .. } = self;
        if !backer.bridges.get_mut(draft.id).is_some_and(|b| draft.exchange(b)) {
            return Err(Replaced { draft });
        }
        flowcache.pay_out(backer);
        if let Some(b) = backer.bridges.get(draft.id) {
            flowcache.xcaches.tables_changed(draft.id, &draft.changes, &b.tables);
        }
        self.settle();
        Ok(Replaced { draft })
    }

    /// Exchanges a bridge's tables with those of another time, for a packet-out; to be done once more behind that.
    pub fn swap_tables(&mut self, bridge: BridgeId, tables: &mut TablesThen) {
        self.settle();
        if let Some(b) = self.backer.bridge_mut(bridge) {
            b.swap_tables(tables);
        }
        self.settle();
    }

    /// Applies a bundle: all of it, or nothing. Packets see the old tables or the new, nothing between. Gives the
    /// packet-outs in it, which others send.
    ///
    /// # Errors
    /// Which message failed, from 0, and why.
    pub fn apply_bundle(
        &mut self,
        bridge: BridgeId,
        list: &[Message],
        now: Duration,
    ) -> Result<Vec<PacketOutThen>, (usize, DecodeError)> {
        let Some(mut draft) = self.table_transaction(bridge) else {
            return Err((0, OfError::RequestBadSubtype.because(format!("bridge {bridge} does not exist"))));
        };
        draft.apply(list, now)?;
        // The bridge cannot have changed in between.
        let Ok(mut replaced) = self.commit(Box::new(draft), now) else { return Ok(Vec::new()) };
        for what in replaced.flushes() {
            self.conntrack.lock().flush(&what);
        }
        Ok(replaced.packet_outs())
    }

    /// Changes a bridge through its own methods, which note what cached flows become stale.
    pub fn with_tables(&mut self, bridge: BridgeId, change: impl FnOnce(&mut Bridge)) {
        if let Some(b) = self.backer.bridges.get_mut(bridge) {
            change(b);
        }
    }

    /// Changes a port's link, BFD, LACP or configuration. If its liveness changes, cached flows that depend on it
    /// become stale; returns whether it did.
    pub fn set_inputs(&mut self, bridge: BridgeId, no: PortNo, change: impl FnOnce(&mut Port)) -> bool {
        let Some(b) = self.backer.bridges.get_mut(bridge) else { return false };
        let Some(p) = b.ports.get_mut(&no) else { return false };
        let (before, config) = (p.live(), (p.config, p.stp));
        change(p);
        let changed = p.live() != before;
        if (p.config, p.stp) != config {
            b.epoch += 1;
            b.spans = b.ports.values().any(|p| p.stp.is_some());
        }
        if changed {
            b.touched.push(Invalidation::Live(no));
        }
        changed
    }
}

impl Switch {
    /// A fast path of this switch, for another thread.
    pub fn fast_path(&mut self) -> FastPath {
        self.settle();
        let Switch { backer, flowcache: FlowCache { cache, xcaches, ct_templates, .. }, .. } = self;
        xcaches.shared = true;
        FastPath::new(cache, ct_templates.another(), backer.conntrack.clone())
    }

    /// What fast paths have to be told of new ways to open connections ([`FastPath::follow`]): all of them, in this
    /// order.
    pub fn news(&mut self) -> Vec<News> {
        self.flowcache.ct_templates.news().into_iter().map(News::new).collect()
    }

    /// The view for fast paths, if it has changed since `seen`; `seen` is updated.
    pub fn view(&mut self, seen: &mut u64) -> Option<View> {
        self.settle();
        let epoch = self.flowcache.xcaches.epoch();
        (std::mem::replace(seen, epoch) != epoch).then(|| View::new(&self.flowcache.cache))
    }

    /// Serves the upcalls of a fast path; `flows` gets the flows that it is to learn.
    pub fn walk_for<P: PacketBuf>(
        &mut self,
        packets: impl IntoIterator<Item = Upcall<P>>,
        now: Duration,
        out: &mut Outputs<P>,
        flows: &mut Vec<Flow>,
    ) {
        self.backer.now = now;
        self.settle();
        let (mut key, mut outer) = (PackedKey::default(), Vec::new());
        for Upcall { device, packet: p, .. } in packets {
            let Switch { backer, flowcache, .. } = self;
            let Cache { views, table, on, .. } = &flowcache.cache;
            let cached = *on && key.fill(device, p.data(), &views.own, views.exact_flags()) && key.is_sound(&p);
            if !cached {
                self.uncached(device, p, out);
                continue;
            }
            key.hash = table.hash(key.blocks());
            // Only here are flows of fragments that wait.
            let at = ReplayContext { at: now.as_nanos() as u64, ct: Some(&backer.conntrack) };
            let mut p = Some(p);
            if key.is_fragment() {
                key.candidate = flowcache.cache.table.candidate(key.blocks(), key.hash);
                p = p.and_then(|p| flowcache.cache.replay(&mut key, p, &mut None, &mut outer, out, at));
                if out.held.is_some() {
                    flowcache.join(backer, &mut outer, out);
                }
            }
            let Some(p) = p else { continue };
            let mut run = [Some((device, p))];
            let keep = |cache: &mut Cache, hash, entry| {
                cache.note(hash, &entry, None);
                flows.push(Flow::new(hash, entry, None));
            };
            flowcache.serve_run(backer, (std::slice::from_ref(&key), &mut run), (&mut outer, out), keep);
            let [Some((_, p))] = run else { continue };
            let record = self.walk(device, p, out, Some((key.inner_at != 0, key.kind())));
            match self.flowcache.entry(&mut self.backer, &key, record) {
                Some((entry, _)) if entry.held().is_some() => {
                    self.flowcache.cache.insert(&self.backer.conntrack, now, key.hash, entry);
                }
                Some((entry, mask)) => {
                    let mask = mask.and_then(|m| Some((key.kind()?, m)));
                    let cache = &mut self.flowcache.cache;
                    let hash = if mask.is_some() { cache.table.hash(entry.parts().0) } else { key.hash };
                    cache.note(hash, &entry, mask.as_ref().map(|m| &m.1));
                    flows.push(Flow::new(hash, entry, mask));
                }
                None => self.flowcache.cache.stats.refused += 1,
            }
        }
        self.flowcache.pay_if_due(&mut self.backer);
    }

    /// Adds what a fast path counted to the counters of flows, ports and groups.
    pub fn settle_sums(&mut self, mut sums: Sums, now: Duration) {
        self.backer.now = now;
        self.settle();
        self.flowcache.pay(&mut self.backer, &sums.tallies);
        self.backer.drops.take(&mut sums.drops);
        let stats = &mut self.flowcache.cache.stats;
        stats.inserted += sums.stats.inserted;
        stats.searched += sums.stats.searched;
        stats.ct_template_packets += sums.stats.ct_template_packets;
    }

    /// Counts upcalls that were dropped because the queue to the main thread was full.
    pub fn upcalls_lost(&mut self, packets: u64) {
        self.drops.add_many(DropReason::WalkersBusy, packets);
    }
}
