//! The switch: bridges, devices, connections, and the ways in.

use crate::bridge::{Bridge, Port, PortKind, Touched};
use crate::buf::PacketBuf;
use crate::classifier::hash;
use crate::conntrack::reassembly::Fragments;
use crate::conntrack::{Conntrack, Timeouts};
use crate::drops::{DropCounters, DropReason};
use crate::flowcache::ct_template::TrackedFlows;
use crate::flowcache::depend::{Changes, Need};
use crate::flowcache::dump::Shown;
use crate::flowcache::exec::burst;
use crate::flowcache::megaflow::Hopes;
use crate::flowcache::recorder::{Openings, Recorder};
use crate::flowcache::segment::Guides;
use crate::flowcache::table::Table;
use crate::flowcache::views::Views;
use crate::flowcache::xcache::Paths;
use crate::flowcache::{Cache, CacheStats};
use crate::tunnel::{BfdPackets, Decapsulated, TunnelKind, Underlay};
use crate::xlate::continuation;
use crate::xlate::{Within, Xlate};
use openflow_rs::message::{FlowRemoved, PacketIn, PacketOut};
use openflow_rs::wire::DecodeError;
use openflow_rs::{FieldId as F, Message, PortNo};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

/// A bridge's number in its switch.
pub type BridgeId = usize;

/// How long counters of cached flows wait where they may.
const LATE: Duration = Duration::from_millis(1);

/// Connections that one tick looks at: more would keep packets waiting. Who has more of them sweeps between bursts as well.
const MOST_SWEPT: usize = 16_384;

/// Something for the control plane.
#[derive(Clone, Debug)]
pub enum Event {
    /// A packet for a controller.
    PacketIn {
        /// Bridge.
        bridge: BridgeId,
        /// Controller connection id.
        controller: u16,
        /// The packet.
        packet_in: Box<PacketIn>,
    },
    /// A packet for collectors.
    Sample {
        /// Bridge.
        bridge: BridgeId,
        /// The packet.
        sample: Box<crate::xlate::sample::Sample>,
    },
    /// Where an observed packet went.
    Passage {
        /// Bridge that it came into.
        bridge: BridgeId,
        /// What was seen.
        passage: Box<crate::xlate::sample::Passage>,
    },
    /// A packet of a slow protocol (LACP) for a bond; it never reaches the tables.
    Slow {
        /// Bridge.
        bridge: BridgeId,
        /// The bond's member.
        port: PortNo,
        /// The frame.
        packet: Vec<u8>,
    },
    /// A flow went.
    FlowRemoved {
        /// Bridge.
        bridge: BridgeId,
        /// The flow.
        removed: Box<FlowRemoved>,
    },
    /// A tunnel's next hop must be resolved.
    NeighbourWanted(IpAddr),
    /// A BFD packet came through a tunnel; it never reaches the tables.
    Bfd {
        /// Bridge.
        bridge: BridgeId,
        /// Tunnel port.
        port: PortNo,
        /// Peer.
        remote: IpAddr,
        /// The inner frame.
        packet: Vec<u8>,
    },
}

/// How long cached flows stay without packets if nothing is said, as in Open vSwitch.
pub const MAX_IDLE: Duration = Duration::from_secs(10);

/// What is behind patch ports and tunnels, as packets found it.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) patches: BTreeMap<(BridgeId, PortNo), Option<(BridgeId, PortNo)>>,
    /// Tunnel ports by kind, addresses and key, each in the place that a hash gives it, or one of the same place.
    tunnels: Vec<Option<Asked>>,
    /// Whether there are tunnel ports at all.
    any_tunnel: Option<bool>,
}

type Asked = ((TunnelKind, IpAddr, IpAddr, u32), Option<TunnelEnd>);
/// A tunnel port, and its packets of BFD.
type TunnelEnd = (BridgeId, PortNo, Option<BfdPackets>);

/// Tunnel ports that are known.
const TUNNELS: usize = 256;

/// What comes out; the caller keeps it and empties it between batches.
#[derive(Debug)]
pub struct Outputs<P> {
    /// Device, as [`crate::destination`] reads it, and packet.
    pub packets: Vec<(u32, P)>,
    /// Events.
    pub events: Vec<Event>,
}

impl<P> Default for Outputs<P> {
    fn default() -> Self {
        Outputs { packets: Vec::new(), events: Vec::new() }
    }
}

/// What a caller got wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SwitchError {
    /// No such bridge.
    #[error("bridge {0} does not exist")]
    NoBridge(BridgeId),
    /// The port number is taken.
    #[error("port {0} of bridge {1} exists; choose another ofport")]
    PortExists(PortNo, String),
    /// The device belongs to a port.
    #[error("device {0} already belongs to a port")]
    DeviceTaken(u32),
    /// The continuation is not ours.
    #[error("the continuation is not one of this switch; resume only what it paused, unchanged")]
    Continuation,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    pub(crate) bridges: Vec<Bridge>,
    devices: HashMap<u32, (BridgeId, PortNo)>,
    ports_by_name: HashMap<String, (BridgeId, PortNo)>,
    /// What is known of patch ports and tunnels until ports change.
    pub(crate) ends: Ends,
    /// Connections.
    pub conntrack: Conntrack,
    /// Fragments that wait to be tracked.
    pub fragments: Fragments,
    /// The network that tunnels cross.
    pub underlay: Underlay,
    /// Packets dropped, by reason.
    pub drops: DropCounters,
    /// Packets that sample actions saw.
    pub samples: u64,
    /// What is seen of the observed packet, by bridges entered and not left.
    pub(crate) passing: Option<Vec<crate::xlate::sample::Passage>>,
    pub(crate) now: Duration,
    pub(crate) cache: Cache,
    pub(crate) paths: Paths,
    /// Counters of cached flows may wait until somebody asks, and since when they do.
    late: bool,
    paid: Duration,
    /// Room for the next record of a walk.
    pub(crate) spare: Option<Box<Recorder>>,
    pub(crate) openings: Openings,
    /// What passes zones, whatever its connections.
    pub(crate) tracked: TrackedFlows,
    pub(crate) hopes: Hopes,
    /// What lookups of packets alike found.
    pub(crate) guides: Guides,
    /// Moves with bridges, and whenever one was open to change.
    opened: u64,
    /// Cached flows go whose path no packet took for so long.
    pub max_idle: Duration,
    /// Packets that are cut short on their way out are said to be worked without the slow path (`trunc` of ovs-vswitchd(8)'s
    /// `dpif/set-dp-features`); their flows are never cached.
    pub cuts: bool,
}

impl Switch {
    /// A switch without bridges, with room for so many connections.
    pub fn new(connections: usize) -> Switch {
        let (conntrack, paths) = (Conntrack::new(connections), Paths::default());
        let cache = Cache::new(Table::new(connections, paths.generations().clone()), Views::new(&conntrack));
        Switch {
            bridges: Vec::new(),
            devices: HashMap::new(),
            ports_by_name: HashMap::new(),
            ends: Ends::default(),
            conntrack,
            fragments: Fragments::default(),
            underlay: Underlay::default(),
            drops: DropCounters::default(),
            samples: 0,
            passing: None,
            now: Duration::ZERO,
            cache,
            paths,
            late: false,
            paid: Duration::ZERO,
            spare: None,
            openings: Openings::default(),
            tracked: TrackedFlows::default(),
            hopes: Hopes::default(),
            guides: Guides::new(true),
            opened: 0,
            max_idle: MAX_IDLE,
            cuts: true,
        }
    }

    /// Adds a bridge.
    pub fn add_bridge(&mut self, name: &str, datapath_id: u64) -> BridgeId {
        self.ends = Ends::default();
        self.opened += 1;
        self.bridges.push(Bridge::new(name, datapath_id));
        self.bridges.len() - 1
    }

    /// A bridge.
    pub fn bridge(&self, id: BridgeId) -> Option<&Bridge> {
        self.bridges.get(id)
    }

    /// The bridges, but for those whose place waits for another: they have no name.
    pub fn bridges(&self) -> impl Iterator<Item = (BridgeId, &Bridge)> {
        self.bridges.iter().enumerate().filter(|(_, b)| !b.name.is_empty())
    }

    /// A bridge, to change it: all cached flows become stale. Add and remove ports with [`Switch::add_port`] and
    /// [`Switch::remove_port`] only.
    pub fn bridge_mut(&mut self, id: BridgeId) -> Option<&mut Bridge> {
        self.ends = Ends::default();
        self.opened += 1;
        self.bridges.get_mut(id)
    }

    /// How often bridges came or were open to change.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// A bridge's number.
    pub fn bridge_by_name(&self, name: &str) -> Option<BridgeId> {
        self.bridges.iter().position(|b| b.name == name)
    }

    /// Adds a port.
    ///
    /// # Errors
    /// The bridge is not there, or number or device are taken.
    pub fn add_port(&mut self, bridge: BridgeId, port: Port) -> Result<(), SwitchError> {
        self.ends = Ends::default();
        let b = self.bridges.get_mut(bridge).ok_or(SwitchError::NoBridge(bridge))?;
        if b.ports.contains_key(&port.no) {
            return Err(SwitchError::PortExists(port.no, b.name.clone()));
        }
        if let PortKind::Device(d) | PortKind::Internal(d) = &port.kind {
            if self.devices.contains_key(d) {
                return Err(SwitchError::DeviceTaken(*d));
            }
            self.devices.insert(*d, (bridge, port.no));
        }
        self.ports_by_name.insert(port.name.clone(), (bridge, port.no));
        b.ports.insert(port.no, port);
        b.epoch += 1;
        Ok(())
    }

    /// Removes a port.
    pub fn remove_port(&mut self, bridge: BridgeId, no: PortNo) -> Option<Port> {
        self.ends = Ends::default();
        let b = self.bridges.get_mut(bridge)?;
        let p = b.ports.remove(&no)?;
        b.macs.forget_port(no);
        b.epoch += 1;
        self.ports_by_name.remove(&p.name);
        if let PortKind::Device(d) | PortKind::Internal(d) = &p.kind {
            self.devices.remove(d);
        }
        Some(p)
    }

    /// The port of a device.
    pub fn port_of_device(&self, device: u32) -> Option<(BridgeId, PortNo)> {
        self.devices.get(&device).copied()
    }

    /// The port that a patch port of this name is the other end of.
    pub(crate) fn find_port(&self, name: &str) -> Option<(BridgeId, PortNo)> {
        self.ports_by_name.get(name).copied()
    }

    pub(crate) fn port_live(&self, bridge: BridgeId, no: PortNo) -> bool {
        self.bridges.get(bridge).and_then(|b| b.ports.get(&no)).is_some_and(crate::bridge::Port::live)
    }

    pub(crate) fn meter_pass(&mut self, bridge: BridgeId, id: u32, bytes: usize) -> bool {
        let now = self.now;
        self.bridges.get_mut(bridge).and_then(|b| b.meters.get_mut(&id)).is_none_or(|m| m.pass(bytes, now))
    }

    /// The tunnel port that a packet arrives at: the one whose options name most of it.
    pub(crate) fn tunnel_port(&mut self, d: &Decapsulated) -> Option<TunnelEnd> {
        let asked = (d.kind, d.src, d.dst, d.vni);
        let number = |a: IpAddr| match a {
            IpAddr::V4(a) => u64::from(u32::from(a)),
            IpAddr::V6(a) => u128::from(a) as u64,
        };
        let at = hash([number(d.src), d.vni.into()].into_iter()) as usize % TUNNELS;
        if let Some(Some((_, found))) = self.ends.tunnels.get(at).filter(|t| t.is_some_and(|t| t.0 == asked)) {
            return *found;
        }
        let found = self.search_tunnel_port(d);
        self.ends.tunnels.resize(TUNNELS, None);
        if let Some(t) = self.ends.tunnels.get_mut(at) {
            *t = Some((asked, found));
        }
        found
    }

    /// Whether there are tunnel ports at all: without one no packet leaves a tunnel here.
    pub(crate) fn has_tunnels(&mut self) -> bool {
        let Switch { bridges, ends, .. } = self;
        let mut ports = bridges.iter().flat_map(|b| b.ports.values());
        *ends.any_tunnel.get_or_insert_with(|| ports.any(|p| matches!(p.kind, PortKind::Tunnel(_))))
    }

    fn search_tunnel_port(&self, d: &Decapsulated) -> Option<TunnelEnd> {
        let mut best: Option<(u32, TunnelEnd)> = None;
        for (i, b) in self.bridges.iter().enumerate() {
            for p in b.ports.values() {
                let PortKind::Tunnel(c) = &p.kind else { continue };
                let fits = c.kind == d.kind
                    && c.remote.is_none_or(|r| r == d.src)
                    && c.local.is_none_or(|l| l == d.dst)
                    && c.key.is_none_or(|k| k == d.vni);
                let score =
                    u32::from(c.key.is_some()) * 4 + u32::from(c.remote.is_some()) * 2 + u32::from(c.local.is_some());
                if fits && best.as_ref().is_none_or(|(s, _)| score > *s) {
                    best = Some((score, (i, p.no, c.bfd)));
                }
            }
        }
        best.map(|(_, x)| x)
    }

    /// Switches a batch of packets, each with the device it came from, and empties it. `now` never goes back.
    #[inline(never)]
    pub fn process<P: PacketBuf>(&mut self, batch: &mut Vec<(u32, P)>, now: Duration, out: &mut Outputs<P>) {
        self.now = now;
        self.settle();
        let mut left = batch.drain(..);
        let mut keys = std::mem::take(&mut self.cache.keys);
        let mut outer = Vec::new();
        let at = now.as_nanos() as u64;
        while let Some(n) = burst(left.as_slice()).filter(|_| self.cache.on) {
            let exact_flags = self.cache.views.exact_flags();
            let (mut changed, mut held) = (false, None);
            let n = n - self.cache.lead(&mut left, n, &mut outer, out, at);
            let next = left.as_slice().get(..n).unwrap_or_default();
            self.cache.prepare(next, &mut keys);
            if self.openings.go_on() {
                self.expect_connections(next, &keys);
            }
            for (key, (device, p)) in keys.iter_mut().take(n).zip(left.by_ref()) {
                let Cache { views, table, .. } = &self.cache;
                if changed && key.fill(device, p.data(), &views.own, true) {
                    key.hash = table.hash(key.blocks());
                    key.candidate = u32::MAX;
                }
                if !key.cached() {
                    self.uncached(device, p, out);
                } else if let Some(p) =
                    self.cache.replay(key, p, &mut held, &mut outer, out, (at, Some(&self.conntrack)))
                {
                    match self.pass_alike(key, p, &mut outer, out) {
                        Ok(None) => continue,
                        Ok(Some(entry)) => self.insert(key.hash, entry),
                        Err(p) => {
                            let record = self.walk(device, p, out, Some(key.inner_at != 0));
                            self.keep(key, record);
                        }
                    }
                } else {
                    continue;
                }
                held = None;
                // The packet may have shown that keys lack something.
                changed |= self.cache.views.exact_flags() != exact_flags;
            }
        }
        left.for_each(|(device, p)| self.uncached(device, p, out));
        self.cache.keys = keys;
        self.pay_if_due();
    }

    /// Brings counters up to date, unless that was done a moment ago and may wait.
    pub(crate) fn pay_if_due(&mut self) {
        if !self.late || self.now.saturating_sub(self.paid) >= LATE {
            self.paid = self.now;
            self.pay_out();
        }
    }

    /// From now on counters of cached flows are up to date only behind [`Switch::count`], a tick, or a millisecond.
    pub fn count_late(&mut self) {
        self.late = true;
    }

    /// Brings counters of flows, ports, groups and drops up to date.
    pub fn count(&mut self) {
        self.pay_out();
    }

    /// Turns the flow cache on or off, and empties it. It is on by default.
    pub fn set_cache(&mut self, on: bool) {
        self.purge_cache();
        self.cache.on = on;
        self.set_guides(on);
    }

    /// Turns guides for walks on or off; they are on by default, and off with the flow cache.
    pub fn set_guides(&mut self, on: bool) {
        self.count_guided();
        self.guides = Guides::new(on);
    }

    /// Turns the check of TCP windows on or off; it is off by default. With it, TCP packets walk the tables one by one.
    /// Connections made without it stay unchecked.
    pub fn check_tcp_windows(&mut self, on: bool) {
        self.conntrack.windows = on;
        self.opened += 1;
    }

    /// Sets the timeouts of zones that have some of their own.
    pub fn set_timeouts(&mut self, timeouts: HashMap<u16, Timeouts>) {
        self.conntrack.set_timeouts(timeouts);
        self.opened += 1;
    }

    /// The flows of the cache.
    pub fn cached_flows(&self) -> impl Iterator<Item = Shown> {
        self.cache.lines().chain(self.tracked.lines(&self.cache))
    }

    /// A flow of this switch's cache, or of a lane's, as ovs-dpctl(8) writes flows. Packets and bytes are those of all flows
    /// that take the same way through the tables; the time is that of the flow's connection, if it has one.
    pub fn tell_flow(&self, f: &Shown, now: Duration) -> String {
        let ([packets, bytes], at) = self.paths.total(f.path.0, f.path.1).unwrap_or_default();
        let used = match f.used.filter(|u| *u > Duration::ZERO).or((packets > 0).then_some(at)) {
            Some(at) => format!("{:.3}s", now.saturating_sub(at).as_secs_f64()),
            None => "never".into(),
        };
        format!("{}, packets:{packets}, bytes:{bytes}, used:{used}, actions:{}", f.packets, f.actions)
    }

    /// How many flows are in the cache, and how many there is room for.
    pub fn cache_size(&self) -> (usize, usize) {
        self.cache.size()
    }

    /// Has the cache hold so many flows at most, or as many as it has room for, and empties it if that is another number; whether it
    /// is. Lanes have caches like it if they are made anew.
    pub fn limit_flows(&mut self, most: Option<usize>) -> bool {
        let changed = self.cache.table.limit(most);
        if changed {
            self.purge_cache();
        }
        changed
    }

    /// Empties the flow cache.
    pub fn purge_cache(&mut self) {
        self.pay_out();
        self.paths.purge();
        self.cache.table.clear();
        self.tracked.clear();
    }

    /// Numbers of the flow cache.
    pub fn cache_stats(&self) -> CacheStats {
        let CacheStats { hits, .. } = self.cache.stats;
        CacheStats { hits: hits + self.cache.tallies.packets(), ..self.cache.stats }
    }

    /// Makes cached flows stale if what they depend on has changed.
    pub(crate) fn settle(&mut self) {
        // Each of them only ever grows.
        let epoch = self.bridges.iter().fold(self.opened + self.underlay.epoch, |e, b| e + b.epoch) + 1;
        let changed = self.bridges.iter().any(|b| !b.changes.is_empty() || !b.touched.is_empty());
        if self.paths.epoch() == epoch && !changed && self.underlay.touched.is_empty() {
            return;
        }
        self.pay_out();
        let stale = self.paths.epoch() != epoch;
        self.paths.now = self.now;
        self.paths.at_epoch(epoch);
        if stale {
            let Switch { cache, bridges, underlay, .. } = self;
            cache.views.macs = bridges.iter().map(|b| b.macs.shared().clone()).collect();
            cache.views.own = underlay.local.clone();
        }
        let mut needs = std::mem::take(&mut self.underlay.touched);
        for (i, b) in self.bridges.iter_mut().enumerate() {
            needs.extend(b.touched.drain(..).map(|t| match t {
                Touched::Group(g) => Need::Group(i, g),
                Touched::Live(p) => Need::Live(i, p),
            }));
            let changes = std::mem::take(&mut b.changes);
            if !changes.is_empty() && !stale {
                self.paths.tables_changed(i, &Changes::sum(changes), &b.tables);
            }
        }
        if !needs.is_empty() && !stale {
            self.paths.needs_changed(&needs);
        }
    }

    pub(crate) fn uncached<P: PacketBuf>(&mut self, device: u32, p: P, out: &mut Outputs<P>) {
        if p.data().len() < 14 {
            return self.drops.add(DropReason::Short);
        }
        drop(self.walk(device, p, out, None));
        // It may have learned a flow.
        self.settle();
    }

    /// Takes a packet through the tables; `tunnel` asks for a record, and says whether the key covers a tunnel header.
    pub(crate) fn walk<P: PacketBuf>(
        &mut self,
        device: u32,
        p: P,
        out: &mut Outputs<P>,
        tunnel: Option<bool>,
    ) -> Option<Record> {
        self.cache.stats.misses += 1;
        let n = p.data().len() as u64;
        // The record of a walk that opens a connection is of no use.
        let expected = tunnel.is_some() && self.openings.expected();
        let tunnel = tunnel.filter(|_| !expected);
        match self.devices.get(&device).copied() {
            Some((bridge, no)) => {
                if let Some(port) = self.bridges.get_mut(bridge).and_then(|b| b.ports.get_mut(&no)) {
                    port.stats[0] += 1;
                    port.stats[2] += n;
                }
                let mut x = Xlate::new(self, out, p, bridge);
                x.key.set(F::InPort, no.0.into());
                x.last = true;
                if let Some(t) = tunnel {
                    x.record(t, Some((bridge, no)));
                }
                x.arrive_outside();
                let (record, opened) = (x.recorded(), x.opened);
                end(x);
                if expected && !opened {
                    self.openings.none();
                }
                record
            }
            None => {
                // A device of no bridge can still be where tunnels end.
                let mut x = Xlate::new(self, out, p, usize::MAX);
                x.last = true;
                if let Some(t) = tunnel {
                    x.record(t, None);
                }
                if !x.tunnel_end() {
                    x.because(DropReason::UnknownPort);
                }
                let (record, opened) = (x.recorded(), x.opened);
                end(x);
                if expected && !opened {
                    self.openings.none();
                }
                record
            }
        }
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
        self.now = now;
        let Some(p) = like.with_bytes(&m.packet) else { return self.drops.add(DropReason::NoBuffer) };
        let mut x = Xlate::new(self, out, p, bridge);
        overlay(&mut x, &m.metadata);
        x.within = Within::PacketOut;
        x.note_set();
        x.actions(&m.actions);
        x.finish();
        end(x);
        self.count_guided();
    }

    /// Lets a paused packet go on (NXT_RESUME).
    ///
    /// # Errors
    /// The continuation is not ours.
    pub fn resume<P: PacketBuf>(
        &mut self,
        m: &PacketIn,
        like: &P,
        now: Duration,
        out: &mut Outputs<P>,
    ) -> Result<(), SwitchError> {
        self.now = now;
        let c = m.continuation.as_deref().and_then(continuation::decode).ok_or(SwitchError::Continuation)?;
        if c.bridge >= self.bridges.len() {
            return Err(SwitchError::Continuation);
        }
        let Some(p) = like.with_bytes(&m.packet) else {
            self.drops.add(DropReason::NoBuffer);
            return Ok(());
        };
        let mut x = Xlate::new(self, out, p, c.bridge);
        overlay(&mut x, &m.metadata);
        x.stack = c.stack;
        x.action_set = c.action_set;
        x.note_set();
        x.go_on(c.frames);
        end(x);
        self.count_guided();
        Ok(())
    }

    /// Housekeeping: timeouts of flows, addresses and connections. Call it every second or so.
    pub fn tick<P>(&mut self, now: Duration, out: &mut Outputs<P>) {
        self.now = now;
        self.pay_out();
        let n = (self.conntrack.len() / 8 + 1024).min(MOST_SWEPT);
        self.conntrack.sweep(n, now);
        self.paths.now = now;
        self.paths.expire();
        self.paths.forget_idle(self.max_idle);
        let late = self.fragments.expire(now);
        self.drops.add_many(DropReason::FragmentTimeout, late);
        for (i, b) in self.bridges.iter_mut().enumerate() {
            b.expire(now);
            out.events.extend(b.removed.drain(..).map(|r| Event::FlowRemoved { bridge: i, removed: Box::new(r) }));
        }
    }

    /// Applies one change from a controller: flow, group or meter-mod, option map, connection flush.
    ///
    /// # Errors
    /// What to answer; nothing has changed then.
    pub fn apply(&mut self, bridge: BridgeId, m: &Message, now: Duration) -> Result<(), DecodeError> {
        self.now = now;
        let missing = || DecodeError { error_type: 1, code: 4, detail: format!("bridge {bridge} does not exist") };
        let b = self.bridges.get_mut(bridge).ok_or_else(missing)?;
        match m {
            Message::CtFlushZone(z) => {
                self.conntrack.flush_zone(*z);
                Ok(())
            }
            Message::CtFlush(f) => {
                self.conntrack.flush(f);
                Ok(())
            }
            m => b.change(m, now),
        }
    }
}

/// A recorded walk, and why nothing left.
pub(crate) type Record = (Box<crate::flowcache::recorder::Recorder>, Option<DropReason>);

/// Puts a packet-out's or packet-in's metadata over the key.
pub(crate) fn overlay<P>(x: &mut Xlate<'_, P>, m: &openflow_rs::Match) {
    for w in m.words() {
        let packet = crate::extract::PACKET_WORDS.contains(&usize::from(w.word));
        if let (false, Some(k)) = (packet, x.key.0.get_mut(usize::from(w.word))) {
            *k = (*k & !w.mask) | w.value;
        }
    }
}

/// Counts a packet that went nowhere, and takes back what left of one that passed a limit.
fn end<P>(mut x: Xlate<'_, P>) {
    x.stretch_ends();
    if let Some(device) = x.leaves {
        x.out.packets.push((device, x.pkt));
    }
    if x.failed {
        x.out.packets.truncate(x.before.0);
        x.out.events.truncate(x.before.1);
        x.sent = 0;
    }
    if x.sent == 0 {
        x.sw.drops.add(x.drop.unwrap_or(DropReason::Action));
    }
}
