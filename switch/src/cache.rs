//! The flow cache: packed packet key → one compiled transform for the whole pipeline, every `ct` included.
//!
//! A walk through the tables is recorded ([`record`]) and its effects are compiled into a [`Program`]: what must hold for it
//! to be repeated, the rewrites, tunnels and outputs, and the counters. A packet with the same key repeats it ([`replay`]).
//! An entry is stale as soon as the tables, ports, groups, options, routes or neighbours have changed (one epoch for all),
//! or a connection that it went through has changed state, mark or label, or is gone.
//!
//! Not cached, always walked: fragments and malformed packets, ICMP errors, neighbour discovery, whatever opens or changes
//! a connection, and walks with `controller`, `learn`, meters, truncated output or any event.

pub(crate) mod key;
pub(crate) mod record;
pub(crate) mod replay;

use crate::classifier::Rule;
use crate::conntrack::{ConnId, Tuple};
use crate::drops::DropReason;
use openflow_rs::PortNo;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Entries that share a place; the oldest of them makes room.
const WAYS: usize = 4;
/// Most counter paths; beyond it walks are not cached until the epoch moves.
const MAX_PATHS: usize = 65_536;

/// A header change: bytes at an offset from a header's start, and the checksums that cover them.
#[derive(Clone, Debug)]
pub(crate) struct Patch {
    pub(crate) at: At,
    pub(crate) offset: u8,
    pub(crate) len: u8,
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
    /// The device that it leaves through; `None` goes on in a bridge, as a packet of its own.
    pub(crate) device: Option<u32>,
}

/// One step of a transform.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Rewrite(Box<[Patch]>),
    /// Makes the tags those of (tci, tpid) twice.
    Vlans(Box<openflow_rs::FlowKey>),
    IcmpId(u16),
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

/// What must hold before a program is repeated.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The connection is as it was; it is refreshed for so long.
    Connection { id: ConnId, version: u32, timeout: Duration },
    /// There still is no connection.
    NoConnection { zone: u16, tuple: Box<Tuple> },
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
    Table { bridge: usize, table: u8, rule: Option<Arc<Rule>>, length: (u8, i32) },
    Port { bridge: usize, no: PortNo, sent: bool, length: (u8, i32) },
    Bucket { bridge: usize, group: u32, index: usize, length: (u8, i32) },
    Sample,
}

/// A compiled walk.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) conditions: Box<[Condition]>,
    pub(crate) steps: Box<[Step]>,
    pub(crate) path: usize,
    /// Why nothing leaves.
    pub(crate) drop: Option<DropReason>,
}

/// Counters of all flows that take the same way through the tables. They are paid out at the end of every batch.
#[derive(Debug, Default)]
pub(crate) struct Path {
    pub(crate) counts: Box<[Count]>,
    pub(crate) packets: u64,
    pub(crate) bytes: [u64; 2],
}

#[derive(Debug)]
struct Entry {
    key: Box<[u64]>,
    epoch: u64,
    program: Program,
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
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) on: bool,
    /// Flows were seen to look at TCP flags that connection tracking does not: they are part of keys from then on.
    pub(crate) exact_flags: bool,
    sets: usize,
    tags: Vec<u32>,
    entries: Vec<Option<Box<Entry>>>,
    next: usize,
    epoch: u64,
    pub(crate) paths: Vec<Path>,
    pub(crate) dirty: Vec<usize>,
    by_counts: HashMap<Vec<[u64; 3]>, usize>,
    pub(crate) stats: CacheStats,
}

impl Cache {
    /// Room for two flows of each connection, within bounds.
    pub(crate) fn new(connections: usize) -> Cache {
        Cache {
            on: true,
            exact_flags: false,
            sets: (connections.saturating_mul(2) / WAYS).next_power_of_two().clamp(256, 1 << 19),
            tags: Vec::new(),
            entries: Vec::new(),
            next: 0,
            epoch: 0,
            paths: Vec::new(),
            dirty: Vec::new(),
            by_counts: HashMap::new(),
            stats: CacheStats::default(),
        }
    }

    /// Forgets all flows. Counters must have been paid out.
    pub(crate) fn clear(&mut self) {
        self.tags.clear();
        self.entries.clear();
        self.forget_paths();
    }

    fn forget_paths(&mut self) {
        self.paths.clear();
        self.by_counts.clear();
    }

    /// Brings the cache to an epoch. Stale entries stay until overwritten; their paths go. Counters must have been paid out.
    pub(crate) fn at_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.forget_paths();
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    fn place(&self, hash: u64) -> (usize, u32) {
        ((hash as usize & (self.sets - 1)) * WAYS, (hash >> 32) as u32 | 1)
    }

    /// The programs of a key; several differ in their conditions.
    pub(crate) fn find(&self, key: &[u64], hash: u64) -> impl Iterator<Item = &Program> {
        let (at, tag) = self.place(hash);
        let tags = self.tags.get(at..at + WAYS).unwrap_or_default();
        tags.iter().enumerate().filter(move |(_, t)| **t == tag).filter_map(move |(i, _)| {
            let e = self.entries.get(at + i)?.as_deref()?;
            (e.epoch == self.epoch && *e.key == *key).then_some(&e.program)
        })
    }

    /// Puts a program in; `stale` says which old program of the same key it replaces.
    pub(crate) fn insert(&mut self, key: &[u64], hash: u64, program: Program, stale: impl Fn(&Program) -> bool) {
        if self.entries.is_empty() {
            self.tags = vec![0; self.sets * WAYS];
            self.entries = (0..self.sets * WAYS).map(|_| None).collect();
        }
        let (at, tag) = self.place(hash);
        let epoch = self.epoch;
        let Some(set) = self.entries.get_mut(at..at + WAYS) else { return };
        let same = set.iter().position(|e| e.as_ref().is_some_and(|e| *e.key == *key && stale(&e.program)));
        let free = || set.iter().position(|e| e.as_ref().is_none_or(|e| e.epoch != epoch));
        let way = same.or_else(free).unwrap_or_else(|| {
            self.next = (self.next + 1) % WAYS;
            self.next
        });
        if let (Some(e), Some(t)) = (set.get_mut(way), self.tags.get_mut(at + way)) {
            *e = Some(Box::new(Entry { key: key.into(), epoch, program }));
            *t = tag;
            self.stats.inserted += 1;
        }
    }

    /// The path with these counters; `None` if there are too many.
    pub(crate) fn path(&mut self, counts: Vec<Count>) -> Option<usize> {
        let pack = |l: &(u8, i32)| u64::from(l.0) << 32 | u64::from(l.1 as u32);
        let id: Vec<[u64; 3]> = counts
            .iter()
            .map(|c| match c {
                Count::Table { bridge, table, rule, length } => {
                    let rule = rule.as_ref().map_or(0, |r| Arc::as_ptr(r) as usize as u64);
                    [1 | u64::from(*table) << 8 | (*bridge as u64) << 16, rule, pack(length)]
                }
                Count::Port { bridge, no, sent, length } => {
                    [2 | u64::from(*sent) << 8 | (*bridge as u64) << 16, no.0.into(), pack(length)]
                }
                Count::Bucket { bridge, group, index, length } => {
                    [3 | (*bridge as u64) << 16, u64::from(*group) << 32 | *index as u64, pack(length)]
                }
                Count::Sample => [4, 0, 0],
            })
            .collect();
        if let Some(i) = self.by_counts.get(&id) {
            return Some(*i);
        }
        if self.paths.len() >= MAX_PATHS {
            return None;
        }
        self.paths.push(Path { counts: counts.into(), ..Path::default() });
        self.by_counts.insert(id, self.paths.len() - 1);
        Some(self.paths.len() - 1)
    }
}
