//! The flow cache: from a packed packet key to one compiled transform for the whole pipeline, `ct` included.
//!
//! The observer of a walk ([`observer`]) records it ([`recorder`]) and compiles it into an entry ([`entry`]): the
//! checks that must hold, the steps (rewrites, tunnels, outputs), and the counters. A packet with the same key executes
//! the entry ([`exec`]). Packets come in bursts; each stage prefetches what the next one reads, so that the processor
//! waits for many cache lines at a time. An entry is stale as soon as something it depends on has changed: a lookup
//! might find another rule, a group or a next hop changed ([`depend`]), ports or options changed (one epoch for all),
//! or a connection changed its state, mark or label, or is gone.
//!
//! Walks that open or change a connection, or that a group chooses for, are repeated from templates, if they are TCP, UDP
//! or ICMP's echo, or ICMP errors about such ([`ct_template`]).
//!
//! Of fragments that pass connection tracking each way to the next `ct` is cached by itself ([`fragments`]).
//!
//! Never cached: malformed packets; other packets that open or change a connection; walks with `controller`, with a `learn`
//! that adds a flow, or any event but samples. Packets for BFD sessions are no events: they are cached. Frames of our own that
//! leave again and again have an entry each ([`own`]).

pub(crate) mod check;
pub(crate) mod ct_template;
pub(crate) mod depend;
pub(crate) mod dump;
pub(crate) mod encap;
pub(crate) mod entry;
pub(crate) mod example;
pub(crate) mod exec;
pub(crate) mod fragments;
pub(crate) mod key;
pub(crate) mod last;
pub(crate) mod megaflow;
pub(crate) mod metered;
pub(crate) mod observer;
pub(crate) mod own;
pub(crate) mod patches;
pub(crate) mod predictor;
pub(crate) mod recorder;
pub(crate) mod run;
pub(crate) mod segment;
pub(crate) mod table;
pub(crate) mod template_run;
pub(crate) mod views;
pub(crate) mod xcache;

use crate::bridge::changes::Changes;
use crate::bridge::{Bridge, Invalidation};
use crate::buf::PacketBuf;
use crate::classifier::Rule;
use crate::conntrack::{ConnSnapshot, Tuple, Zone};
use crate::dependency::Dependency;
use crate::drops::{DropCounters, DropReason};
use crate::events::Outputs;
use crate::ids::{BridgeId, Target};
use crate::netflow::NetflowFlow;
use crate::tunnel::Shim;
use crate::xlate::Backer;
use crate::xlate::sample::Sampler;
use ct_template::CtTemplateCache;
use dump::{Installed, Shown};
use entry::Entry;
use fragments::Legs;
use key::PackedKey;
use megaflow::MegaflowPredictor;
use metered::Metered;
use openflow_rs::PortNo;
use openflow_rs::{GroupId, TableId};
use packet::VlanId;
use predictor::NewConnectionPredictor;
use recorder::Recorder;
use segment::SegmentCache;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use table::Table;
use template_run::{Run, TemplateRuns};
use views::Views;
use xcache::XlateCaches;

/// How often counters of cached flows are brought up to date, where they may be late ([`FlowCache::pay_late`]): not those of
/// all flows at once, but of one in so many of those that wait, and of one at least. Flows of a packet now and then, as
/// those of a thousand BFD sessions, are paid for several packets at a time.
const LATE: Duration = Duration::from_millis(1);
const SHARE: usize = 1024;
const LEAST: usize = 1;

/// A header change: bytes at an offset from a header's start, and the checksums that cover them.
#[derive(Clone, Debug)]
pub(crate) struct Patch {
    pub(crate) at: At,
    pub(crate) offset: u8,
    pub(crate) len: u8,
    pub(crate) old: [u8; 16],
    pub(crate) bytes: [u8; 16],
    pub(crate) sums: Sums,
}

/// The header that a change is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    Frame,
    Network,
    Transport,
}

/// Which checksums cover a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sums {
    None,
    /// The IPv4 header's.
    Header,
    /// The IPv4 header's and, through the pseudo header, the transport's.
    Both,
    /// The transport's.
    Transport,
    /// ICMP's, of either version.
    Icmp,
}

/// Outer headers, ready but for lengths and checksums.
#[derive(Clone, Debug)]
pub(crate) struct Encap {
    pub(crate) headers: Box<[u8]>,
    pub(crate) v6: bool,
    pub(crate) shim: Shim,
    /// The source port of UDP is computed for each packet from its flow ([`crate::tunnel::entropy`]).
    pub(crate) spread: bool,
    /// Where it leaves; `None` goes on in a bridge, as a packet of its own.
    pub(crate) target: Option<Target>,
}

/// One step of a transform.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Rewrite(Box<[Patch]>),
    /// Makes the tags these: (TPID, TCI), the outer one first.
    Vlans(Vec<(u16, u16)>),
    IcmpId(u16),
    /// Writes the tuple that the packet's connection translates it to; of an ICMP error also what it quotes.
    Translate {
        quoting: bool,
    },
    /// Writes the second of these tuples to an ICMP error about a connection that had the first, and to what it quotes.
    Quote(Box<[Tuple; 2]>),
    Send {
        target: Target,
        last: bool,
    },
    /// Goes to the BFD session of a port.
    Session {
        bridge: u16,
        port: PortNo,
        last: bool,
    },
    Encap {
        encap: Box<Encap>,
        last: bool,
    },
    /// A sample of the packet may be taken here.
    Sample(Box<Sampler>),
    /// A meter may drop the packet here.
    Meter(Box<Metered>),
    /// Goes on with the inner packet, which begins `offset` bytes behind the start of the IP header.
    Decap {
        offset: usize,
        last: bool,
    },
    /// Goes on with the packet's first bytes; the datapath is told another length where tags were written before.
    Cut {
        len: u16,
        told: u32,
        last: bool,
    },
    /// Goes back to the packet that the last `Encap`, `Decap` or `Cut` was made of.
    Pop,
    /// The fragment waits for the rest of its datagram.
    Hold,
}

/// What a walk depended on for this packet.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The connection is as it was.
    Connection(ConnSnapshot),
    /// There is no connection.
    NoConnection { zone: Zone, tuple: Tuple },
    /// A learned address is where it was, or still unknown.
    Address { bridge: BridgeId, vlan: VlanId, mac: u64, port: Option<PortNo> },
    /// The source address is known at this port; its age is refreshed.
    Source { bridge: BridgeId, vlan: VlanId, mac: u64, port: PortNo },
    /// The packet as received (0) or taken out of its tunnel (1) has at least and at most so many bytes.
    Length { which: u8, min: usize, max: usize },
}

/// A counter that every packet of an xlate cache moves. A length is that of the packet as received (0) or as taken out
/// of its tunnel (1), plus a difference in bytes; the difference alone (2) of one that was cut.
#[derive(Clone, Debug)]
pub(crate) enum Count {
    Table {
        bridge: BridgeId,
        table: TableId,
        rule: Option<Arc<Rule>>,
        length: (u8, i32),
    },
    Port {
        bridge: BridgeId,
        no: PortNo,
        sent: bool,
        length: (u8, i32),
    },
    Bucket {
        bridge: BridgeId,
        group: GroupId,
        index: usize,
        length: (u8, i32),
    },
    /// A bond's bucket.
    Bond {
        bridge: BridgeId,
        bond: usize,
        bucket: usize,
        length: (u8, i32),
    },
    Sample,
    /// A flow of NetFlow's.
    Netflow {
        flow: Arc<NetflowFlow>,
        length: (u8, i32),
    },
    /// A flow that is learned once more.
    Learn {
        bridge: BridgeId,
        rule: Arc<Rule>,
    },
}

/// What packets of an xlate cache counted since the last payment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// The generation of the place.
    pub(crate) generation: u32,
    pub(crate) packets: u32,
    pub(crate) bytes: [u64; 2],
}

/// Packets that flows, ports and groups have not counted yet.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    /// By xlate cache.
    all: Vec<Tally>,
    /// Places whose tallies are not zero.
    dirty: VecDeque<u32>,
    /// How many of them have become so since the last tick.
    fresh: usize,
    /// Tallies of xlate caches that are gone, with their places.
    past: Vec<(u32, Tally)>,
    pub(crate) drops: DropCounters,
    /// `drops` is not zero.
    pub(crate) dropped: bool,
}

/// Statistics of the flow cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Packets that an entry served.
    pub hits: u64,
    /// Packets that walked the tables.
    pub misses: u64,
    /// Walks that became entries or templates.
    pub inserted: u64,
    /// Walks that could not be cached.
    pub refused: u64,
    /// Lookups that needed no search because their segment was known.
    pub segment_lookups: u64,
    /// Packets that a connection tracking template served.
    pub ct_template_packets: u64,
    /// Packets whose entry was not at the expected place, or not there at all.
    pub searched: u64,
}

/// A thread's cache.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) on: bool,
    pub(crate) table: Table,
    /// What checks of entries read.
    pub(crate) views: Views,
    pub(crate) tallies: Tallies,
    pub(crate) stats: CacheStats,
    /// Storage for the keys of a burst.
    pub(crate) keys: Vec<PackedKey>,
    /// The megaflows found last.
    pub(crate) recent: last::Recent,
    /// Flows that were put in, if somebody wants to know ([`crate::Switch::note_installed`]).
    pub(crate) installed: Option<Vec<Installed>>,
}

impl Cache {
    pub(crate) fn new(table: Table, views: Views) -> Cache {
        let (tallies, stats) = Default::default();
        Cache { on: true, table, views, tallies, stats, keys: Vec::new(), recent: Default::default(), installed: None }
    }
}

/// The main thread's cache, with everything that fills it.
#[derive(Debug)]
pub(crate) struct FlowCache {
    pub(crate) cache: Cache,
    pub(crate) xcaches: XlateCaches,
    /// Counters may be paid out late; when they last were.
    late: bool,
    paid: Duration,
    /// Storage for the next record of a walk.
    spare: Option<Box<Recorder>>,
    pub(crate) connection_predictor: NewConnectionPredictor,
    /// Templates for packets that pass connection tracking.
    pub(crate) ct_templates: CtTemplateCache,
    pub(crate) runs: TemplateRuns,
    megaflow_predictor: MegaflowPredictor,
    /// Flows may be of many packets; false: each is of one, to see what becomes of it.
    pub(crate) megaflows: bool,
    /// Segments of earlier walks.
    segments: SegmentCache,
    /// How fragments go on.
    pub(crate) legs: Legs,
    /// Sections of flows that the log was told of, by what their packets look like.
    pub(crate) told: HashMap<String, Shown>,
}

impl FlowCache {
    /// An empty cache, with room for as many flows as there may be connections.
    pub(crate) fn new(connections: usize, backer: &Backer) -> FlowCache {
        let xcaches = XlateCaches::default();
        let table = Table::new(connections, xcaches.generations().clone());
        FlowCache {
            cache: Cache::new(table, Views::new(&backer.conntrack.lock())),
            xcaches,
            late: false,
            paid: Duration::ZERO,
            spare: None,
            connection_predictor: NewConnectionPredictor::default(),
            ct_templates: CtTemplateCache::default(),
            runs: TemplateRuns::default(),
            megaflow_predictor: MegaflowPredictor::default(),
            megaflows: true,
            segments: SegmentCache::new(true),
            legs: Legs::default(),
            told: HashMap::new(),
        }
    }

    /// Moves when all cached flows become stale.
    fn epoch(backer: &Backer) -> u64 {
        // Every summand only grows, so the sum changes when one of them does.
        backer.bridges.iter().fold(backer.opened + backer.underlay.epoch, |e, b| e + b.epoch) + 1
    }

    /// Whether nothing has changed on which cached flows depend.
    fn is_settled(&self, backer: &Backer) -> bool {
        let changed = backer.bridges.iter().any(|b| !b.changes.is_empty() || !b.touched.is_empty());
        self.xcaches.epoch() == FlowCache::epoch(backer) && !changed && backer.underlay.touched.is_empty()
    }

    /// Makes cached flows stale if what they depend on has changed.
    pub(crate) fn settle(&mut self, backer: &mut Backer) {
        if self.is_settled(backer) {
            return;
        }
        let epoch = FlowCache::epoch(backer);
        self.pay_out(backer);
        let stale = self.xcaches.epoch() != epoch;
        self.xcaches.now = backer.now;
        self.xcaches.at_epoch(epoch);
        if stale {
            let views = &mut self.cache.views;
            views.macs = backer.bridges.iter().map(|b| b.macs.shared().clone()).collect();
            backer.listen();
            views.own = backer.underlay.local.clone();
        }
        let mut changed = std::mem::take(&mut backer.underlay.touched);
        for (id, b) in backer.bridges.numbered_mut() {
            changed.extend(b.touched.drain(..).map(|t| match t {
                Invalidation::Group(g) => Dependency::Group(id, g),
                Invalidation::Live(p) => Dependency::Live(id, p),
                Invalidation::Multicast => Dependency::Multicast(id),
                Invalidation::Meter(m) => Dependency::Meter(id, m),
            }));
            let changes = std::mem::take(&mut b.changes);
            if !changes.is_empty() && !stale {
                self.xcaches.tables_changed(id, &Changes::sum(changes), &b.tables);
            }
        }
        if !changed.is_empty() && !stale {
            self.xcaches.needs_changed(&changed);
        }
    }

    /// From now on counters of cached flows may wait for two seconds.
    pub(crate) fn pay_late(&mut self) {
        self.late = true;
    }

    /// Brings counters up to date, unless that was done a moment ago and may wait.
    pub(crate) fn pay_if_due(&mut self, backer: &mut Backer) {
        if !self.late {
            return self.pay_out(backer);
        }
        if backer.now.saturating_sub(self.paid) >= LATE {
            self.paid = backer.now;
            let n = self.cache.tallies.dirty.len() / SHARE + LEAST;
            self.pay_some(backer, n);
        }
    }

    /// Brings counters up to date that have waited since the last tick, a second ago; all of them where flows may end as they were
    /// not used (`idle`: cached flows may as well).
    pub(crate) fn pay_at_tick(&mut self, backer: &mut Backer, idle: bool) {
        let t = &mut self.cache.tallies;
        let old = t.dirty.len().saturating_sub(std::mem::take(&mut t.fresh));
        let all = !self.late || idle || backer.bridges.iter().any(Bridge::times_out);
        self.pay_some(backer, if all { usize::MAX } else { old });
    }

    /// Serves packets from templates, up to the first that has none; returns how many. `own` gets entries of packets
    /// that changed nothing.
    pub(crate) fn serve_run<P: PacketBuf>(
        &mut self,
        backer: &Backer,
        run: Run<'_, P>,
        to: (&mut Vec<Option<P>>, &mut Outputs<P>),
        own: impl FnMut(&mut Cache, u64, Entry),
    ) -> usize {
        let FlowCache { ct_templates, runs, cache, connection_predictor, .. } = self;
        let (all, table) = (run.1.len(), (&backer.conntrack, backer.now));
        let outcome = runs.serve((ct_templates, cache), table, run, None, to, own);
        (0..outcome.opened).for_each(|_| connection_predictor.opened());
        runs.judge(all, outcome.done);
        outcome.done
    }

    /// Empties the cache.
    pub(crate) fn purge(&mut self, backer: &mut Backer) {
        self.pay_out(backer);
        self.xcaches.purge();
        self.cache.table.clear();
        self.ct_templates.clear();
        self.told.clear();
    }

    /// Turns segments on or off, and forgets them.
    pub(crate) fn set_segments(&mut self, backer: &mut Backer, on: bool) {
        self.count_segments(backer);
        self.segments = SegmentCache::new(on);
    }
}

/// How many bytes so many packets are told to have, whose lengths, and those of their inner frames, have these sums: which of
/// the two counts, and by how much each packet differs from it.
#[inline]
fn told((which, difference): (u8, i32), packets: u64, sums: [u64; 2]) -> u64 {
    let sum = sums.get(usize::from(which)).copied().unwrap_or(0);
    (sum as i64 + i64::from(difference) * packets as i64).max(0) as u64
}

impl Tally {
    #[inline(always)]
    fn add(&mut self, lengths: [usize; 2]) {
        self.packets += 1;
        let [whole, inner] = &mut self.bytes;
        *whole += lengths[0] as u64;
        *inner += lengths[1] as u64;
    }
}

impl Tallies {
    /// Counts several packets; `bytes` are their sums.
    fn count_run(&mut self, path: u32, generation: u32, (packets, bytes): (u32, [usize; 2])) {
        self.count(path, generation, bytes);
        if let Some(t) = self.all.get_mut(path as usize) {
            t.packets += packets - 1;
        }
    }

    /// Counts a packet of these lengths.
    #[inline(always)]
    fn count(&mut self, path: u32, generation: u32, lengths: [usize; 2]) {
        match self.all.get_mut(path as usize) {
            Some(t) if t.generation == generation && t.packets != 0 => t.add(lengths),
            _ => self.begin(path, generation, lengths),
        }
    }

    /// Counts the first packet since the last payment.
    #[cold]
    fn begin(&mut self, path: u32, generation: u32, lengths: [usize; 2]) {
        let i = path as usize;
        if self.all.len() <= i {
            self.all.resize(i + 1, Tally::default());
        }
        let Some(t) = self.all.get_mut(i) else { return };
        if t.packets == 0 {
            self.dirty.push_back(path);
            self.fresh += 1;
        } else {
            // Another xlate cache was in this place; the place is listed already.
            self.past.push((path, *t));
        }
        *t = Tally { generation, ..Tally::default() };
        t.add(lengths);
    }

    /// A packet is dropped.
    fn drop(&mut self, why: DropReason) {
        self.drops.add(why);
        self.dropped = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.past.is_empty()
    }

    /// How many packets there are.
    pub(crate) fn packets(&self) -> u64 {
        let dirty = self.dirty.iter().filter_map(|i| self.all.get(*i as usize));
        dirty.chain(self.past.iter().map(|(_, t)| t)).map(|t| u64::from(t.packets)).sum()
    }

    /// Takes what packets were counted, by path.
    pub(crate) fn take(&mut self) -> Vec<(u32, Tally)> {
        self.take_some(usize::MAX)
    }

    /// The same of so many paths at most, of those that wait for longest, and of those that are gone.
    pub(super) fn take_some(&mut self, most: usize) -> Vec<(u32, Tally)> {
        let mut list = std::mem::take(&mut self.past);
        for i in self.dirty.drain(..most.min(self.dirty.len())) {
            if let Some(t) = self.all.get_mut(i as usize) {
                list.push((i, *t));
                *t = Tally { generation: t.generation, ..Tally::default() };
            }
        }
        list
    }

    /// Takes the list back, to reuse its storage.
    pub(crate) fn again(&mut self, mut list: Vec<(u32, Tally)>) {
        list.clear();
        self.past = list;
    }
}
