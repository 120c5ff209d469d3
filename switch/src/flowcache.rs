//! The flow cache: packed packet key → one compiled transform for the whole pipeline, every `ct` included.
//!
//! A walk through the tables is recorded ([`recorder`]) and its effects are compiled into an [`Entry`]: what must hold for it
//! to be repeated, the rewrites, tunnels and outputs, and the counters ([`entry`]). A packet with the same key repeats it
//! ([`exec`]). Packets come in bursts, and what a burst needs is read for all of it before it is used, so that the
//! processor waits for many places of memory at a time.
//! An entry is stale as soon as what it depends on has changed: a lookup might find another rule, a group, a next hop
//! ([`depend`]), ports or options (one epoch for all), or a connection that it went through has changed state, mark or
//! label, or is gone.
//!
//! What opens or changes a connection is repeated too, if it is TCP or UDP over IPv4 ([`ct_template`]).
//!
//! Not cached, always walked: malformed packets, fragments and ICMP errors that pass connection tracking, whatever else opens or changes
//! a connection, and walks with `controller`, `learn`, meters, truncated output or any event.

pub(crate) mod ct_template;
pub(crate) mod depend;
pub(crate) mod dump;
pub(crate) mod entry;
pub(crate) mod exec;
pub(crate) mod key;
pub(crate) mod megaflow;
pub(crate) mod observer;
pub(crate) mod recorder;
pub(crate) mod segment;
pub(crate) mod table;
pub(crate) mod views;
pub(crate) mod xcache;

use crate::bridge::Invalidation;
use crate::bridge::changes::Changes;
use crate::classifier::Rule;
use crate::conntrack::{Seen, Tuple};
use crate::dependency::Dependency;
use crate::drops::DropCounters;
use crate::xlate::Backer;
use ct_template::TrackedFlows;
use key::PackedKey;
use megaflow::Hopes;
use openflow_rs::PortNo;
use recorder::{Openings, Recorder};
use segment::SegmentCache;
use std::sync::Arc;
use std::time::Duration;
use table::Table;
use views::Views;
use xcache::Paths;

/// How long counters of cached flows wait where they may.
const LATE: Duration = Duration::from_millis(1);

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

/// Which header.
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
    pub(crate) csum: bool,
    /// Its source port is that of the packet's flow ([`crate::tunnel::entropy`]), whichever it is.
    pub(crate) spread: bool,
    /// The device that it leaves through; `None` goes on in a bridge, as a packet of its own.
    pub(crate) device: Option<u32>,
}

/// One step of a transform.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Rewrite(Box<[Patch]>),
    /// Makes the tags these: (TPID, TCI), the outer one first.
    Vlans(Vec<(u16, u16)>),
    IcmpId(u16),
    /// The tuple becomes that of the connection that the packet has opened.
    Translate,
    Send {
        device: u32,
        last: bool,
    },
    Encap {
        encap: Box<Encap>,
        last: bool,
    },
    /// Takes the inner packet, so far behind the UDP header's start, as a packet of its own.
    Decap {
        offset: usize,
        last: bool,
    },
    /// Back to the packet that the last `Encap` or `Decap` was made of.
    Pop,
}

/// What a walk depended on, besides the epoch.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The connection is as it was.
    Connection(Seen),
    /// There is no connection.
    NoConnection { zone: u16, tuple: Tuple },
    /// A learned address is where it was, or still unknown.
    Address { bridge: usize, vlan: u16, mac: u64, port: Option<PortNo> },
    /// The source address is known at this port; its age is refreshed.
    Source { bridge: usize, vlan: u16, mac: u64, port: PortNo },
    /// The packet as received (0) or taken out of its tunnel (1) has at least and at most so many bytes.
    Length { which: u8, min: usize, max: usize },
}

/// A counter that every packet of a path moves. Lengths are those of the packet as received (0) or as taken out of its
/// tunnel (1), plus a difference.
#[derive(Clone, Debug)]
pub(crate) enum Count {
    Table {
        bridge: usize,
        table: u8,
        rule: Option<Arc<Rule>>,
        length: (u8, i32),
    },
    Port {
        bridge: usize,
        no: PortNo,
        sent: bool,
        length: (u8, i32),
    },
    Bucket {
        bridge: usize,
        group: u32,
        index: usize,
        length: (u8, i32),
    },
    /// A bond's bucket.
    Bond {
        bridge: usize,
        bond: usize,
        bucket: usize,
        length: (u8, i32),
    },
    Sample,
}

/// What packets of a path have moved its counters by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Which path it was that was in this place.
    pub(crate) generation: u32,
    pub(crate) packets: u32,
    pub(crate) bytes: [u64; 2],
}

/// What is to be counted at the end of every batch, or so.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    /// By path.
    all: Vec<Tally>,
    /// Paths with something in their tallies.
    dirty: Vec<u32>,
    /// Tallies of paths that are gone, with their places.
    past: Vec<(u32, Tally)>,
    pub(crate) drops: DropCounters,
    /// There is something in `drops`.
    pub(crate) dropped: bool,
}

/// Numbers of the flow cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Packets that a cached transform served.
    pub hits: u64,
    /// Packets that walked the tables.
    pub misses: u64,
    /// Walks that were put into the cache.
    pub inserted: u64,
    /// Walks that could not be.
    pub refused: u64,
    /// Lookups of walks that needed no search, as a packet alike had met the same flow.
    pub guided: u64,
    /// Packets that passed connection tracking as others that were alike, without a flow of their own.
    pub alike: u64,
    /// Packets whose transform was not where it was looked for first, or is not there.
    pub searched: u64,
}

/// A thread's cache.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) on: bool,
    pub(crate) table: Table,
    /// What entries look at.
    pub(crate) views: Views,
    pub(crate) tallies: Tallies,
    pub(crate) stats: CacheStats,
    /// Room for the keys of a burst.
    pub(crate) keys: Vec<PackedKey>,
    /// The wide flow found last.
    pub(crate) last: Option<megaflow::Last>,
}

impl Cache {
    pub(crate) fn new(table: Table, views: Views) -> Cache {
        let (tallies, stats) = Default::default();
        Cache { on: true, table, views, tallies, stats, keys: Vec::new(), last: None }
    }
}

/// The main thread's cache, with all that it takes to fill it.
#[derive(Debug)]
pub(crate) struct FlowCache {
    pub(crate) cache: Cache,
    pub(crate) paths: Paths,
    /// Counters of cached flows may wait until somebody asks, and since when they do.
    late: bool,
    paid: Duration,
    /// Room for the next record of a walk.
    spare: Option<Box<Recorder>>,
    pub(crate) openings: Openings,
    /// What passes zones, whatever its connections.
    pub(crate) tracked: TrackedFlows,
    hopes: Hopes,
    /// What lookups of packets alike found.
    segments: SegmentCache,
}

impl FlowCache {
    /// An empty cache, with room for as many flows as there may be connections.
    pub(crate) fn new(connections: usize, backer: &Backer) -> FlowCache {
        let paths = Paths::default();
        let table = Table::new(connections, paths.generations().clone());
        FlowCache {
            cache: Cache::new(table, Views::new(&backer.conntrack)),
            paths,
            late: false,
            paid: Duration::ZERO,
            spare: None,
            openings: Openings::default(),
            tracked: TrackedFlows::default(),
            hopes: Hopes::default(),
            segments: SegmentCache::new(true),
        }
    }

    /// Makes cached flows stale if what they depend on has changed.
    pub(crate) fn settle(&mut self, backer: &mut Backer) {
        // Each of them only ever grows.
        let epoch = backer.bridges.iter().fold(backer.opened + backer.underlay.epoch, |e, b| e + b.epoch) + 1;
        let changed = backer.bridges.iter().any(|b| !b.changes.is_empty() || !b.touched.is_empty());
        if self.paths.epoch() == epoch && !changed && backer.underlay.touched.is_empty() {
            return;
        }
        self.pay_out(backer);
        let stale = self.paths.epoch() != epoch;
        self.paths.now = backer.now;
        self.paths.at_epoch(epoch);
        if stale {
            let views = &mut self.cache.views;
            views.macs = backer.bridges.iter().map(|b| b.macs.shared().clone()).collect();
            views.own = backer.underlay.local.clone();
        }
        let mut changed = std::mem::take(&mut backer.underlay.touched);
        for (i, b) in backer.bridges.iter_mut().enumerate() {
            changed.extend(b.touched.drain(..).map(|t| match t {
                Invalidation::Group(g) => Dependency::Group(i, g),
                Invalidation::Live(p) => Dependency::Live(i, p),
            }));
            let changes = std::mem::take(&mut b.changes);
            if !changes.is_empty() && !stale {
                self.paths.tables_changed(i, &Changes::sum(changes), &b.tables);
            }
        }
        if !changed.is_empty() && !stale {
            self.paths.needs_changed(&changed);
        }
    }

    /// From now on counters of cached flows may wait for a millisecond.
    pub(crate) fn pay_late(&mut self) {
        self.late = true;
    }

    /// Brings counters up to date, unless that was done a moment ago and may wait.
    pub(crate) fn pay_if_due(&mut self, backer: &mut Backer) {
        if !self.late || backer.now.saturating_sub(self.paid) >= LATE {
            self.paid = backer.now;
            self.pay_out(backer);
        }
    }

    /// Empties the cache.
    pub(crate) fn purge(&mut self, backer: &mut Backer) {
        self.pay_out(backer);
        self.paths.purge();
        self.cache.table.clear();
        self.tracked.clear();
    }

    /// Turns segments on or off, and forgets them.
    pub(crate) fn set_segments(&mut self, backer: &mut Backer, on: bool) {
        self.count_segments(backer);
        self.segments = SegmentCache::new(on);
    }
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
    /// Counts packets of these lengths in all.
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

    /// Counts the first packet of a path.
    #[cold]
    fn begin(&mut self, path: u32, generation: u32, lengths: [usize; 2]) {
        let i = path as usize;
        if self.all.len() <= i {
            self.all.resize(i + 1, Tally::default());
        }
        let Some(t) = self.all.get_mut(i) else { return };
        if t.packets == 0 {
            self.dirty.push(path);
        } else {
            // Another path was in this place; it is dirty already.
            self.past.push((path, *t));
        }
        *t = Tally { generation, ..Tally::default() };
        t.add(lengths);
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
        let mut list = std::mem::take(&mut self.past);
        for i in self.dirty.drain(..) {
            if let Some(t) = self.all.get_mut(i as usize) {
                list.push((i, *t));
                *t = Tally { generation: t.generation, ..Tally::default() };
            }
        }
        list
    }

    /// The list that was taken, to be used again.
    pub(crate) fn again(&mut self, mut list: Vec<(u32, Tally)>) {
        list.clear();
        self.past = list;
    }
}
