//! Xlate caches: what all cached flows share that took the same way through the tables, namely the counters that their
//! packets move, and what makes them stale. (Open vSwitch calls this so, too.)

use super::Count;
use super::depend::{Look, Looks};
use super::example::Example;
use crate::classifier::Rule;
use crate::dependency::Dependency;
use crate::ids::BridgeId;
use crate::stamps::GenerationTable;
use hashbrown::{HashMap, HashTable};
use openflow_rs::TableId;
use std::sync::Arc;
use std::time::Duration;

/// Most xlate caches; beyond it all flows are forgotten.
const MAX_PATHS: usize = 65_536;
/// How long the counters of a removed xlate cache are remembered, as other threads may still count for it.
const REMEMBERED: Duration = Duration::from_secs(2);

/// Up to so many xlate caches a megaflow gets one of its own. Beyond it flows share: a change of tables looks at all
/// xlate caches.
const OWN: usize = 4096;

/// What flows that took the same way share, or what belongs to one megaflow.
#[derive(Debug, Default)]
pub(crate) struct XlateCache {
    /// The place is in use.
    used: bool,
    pub(crate) counts: Box<[Count]>,
    /// Lookups, in the order of the counts of tables.
    pub(super) looks: Box<[Look]>,
    pub(super) needs: Vec<Dependency>,
    /// Packets, and bytes as received, that were paid out so far, and when that was last.
    pub(crate) total: ([u64; 2], Duration),
    /// The hash of the one megaflow that it belongs to; 0: shared.
    own: u64,
    /// A packet of that megaflow, if these come out of a tunnel.
    example: Option<Arc<Example>>,
    /// Those of packets that a meter on the way drops. They are as little idle as this one.
    dropped: Vec<(u32, u32)>,
}

impl XlateCache {
    fn hash(&self) -> u64 {
        hash_of(&self.counts) ^ self.own
    }
}

impl Count {
    /// Bridge, table and flow, if it is of a lookup, or of a flow that is learned.
    pub(super) fn look(&self) -> Option<(BridgeId, TableId, Option<&Arc<Rule>>)> {
        match self {
            Count::Table { bridge, table, rule, .. } => Some((*bridge, *table, rule.as_ref())),
            Count::Learn { bridge, rule } => Some((*bridge, rule.table, Some(rule))),
            _ => None,
        }
    }

    /// What tells counters apart. Rules are told apart by their places in memory.
    fn identity(&self) -> [u64; 3] {
        let pack = |l: &(u8, i32)| u64::from(l.0) << 32 | u64::from(l.1 as u32);
        match self {
            Count::Table { bridge, table, rule, length } => {
                let rule = rule.as_ref().map_or(0, |r| Arc::as_ptr(r) as usize as u64);
                [1 | u64::from(table.0) << 8 | (bridge.index() as u64) << 16, rule, pack(length)]
            }
            Count::Port { bridge, no, sent, length } => {
                [2 | u64::from(*sent) << 8 | (bridge.index() as u64) << 16, no.0.into(), pack(length)]
            }
            Count::Bucket { bridge, group, index, length } => {
                [3 | (bridge.index() as u64) << 16, u64::from(group.0) << 32 | *index as u64, pack(length)]
            }
            Count::Bond { bridge, bond, bucket, length } => {
                [5 | (bridge.index() as u64) << 16, (*bond as u64) << 32 | *bucket as u64, pack(length)]
            }
            Count::Sample => [4, 0, 0],
            Count::Netflow { flow, length } => {
                let [head, addresses, rest] = flow.words();
                [7 | u64::from(length.0) << 8 | head, addresses, rest]
            }
            Count::Learn { bridge, rule } => [6 | (bridge.index() as u64) << 16, Arc::as_ptr(rule) as usize as u64, 0],
        }
    }
}

/// A hash over the identities of counters.
fn hash_of(counts: &[Count]) -> u64 {
    counts.iter().flat_map(Count::identity).fold(1, |h, w| {
        let m = u128::from(h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        m as u64 ^ (m >> 64) as u64
    })
}

fn same(a: &[Count], b: &[Count]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.identity() == b.identity())
}

/// The counters of a removed xlate cache.
#[derive(Debug)]
struct Gone {
    place: u32,
    generation: u32,
    counts: Box<[Count]>,
    /// When it was removed.
    at: Duration,
}

/// All xlate caches.
#[derive(Debug)]
pub(crate) struct XlateCaches {
    pub(super) list: Vec<XlateCache>,
    /// The generation of each place.
    generations: GenerationTable,
    /// Free places.
    free: Vec<u32>,
    /// Places, by their counters.
    by_counts: HashTable<u32>,
    epoch: u64,
    /// In the order of their removal.
    gone: Vec<Gone>,
    /// What megaflows with one of their own had counted when a change of tables made them stale: the next packet goes
    /// on from there.
    before: HashMap<u64, [u64; 2]>,
    /// There are fast paths: other threads count, too.
    pub(crate) shared: bool,
    pub(crate) now: Duration,
}

impl Default for XlateCaches {
    fn default() -> XlateCaches {
        XlateCaches {
            list: Vec::new(),
            generations: GenerationTable::new(MAX_PATHS),
            free: Vec::new(),
            by_counts: HashTable::new(),
            epoch: 0,
            gone: Vec::new(),
            before: HashMap::new(),
            shared: false,
            now: Duration::ZERO,
        }
    }
}

impl XlateCaches {
    /// The generation of each place: entries of an earlier one are stale.
    pub(crate) fn generations(&self) -> &GenerationTable {
        &self.generations
    }

    /// All entries become stale; they stay until overwritten. Counters must have been paid out.
    pub(crate) fn forget_all(&mut self) {
        for i in 0..self.list.len() {
            self.forget_path(i);
        }
    }

    /// The same, and forgets what megaflows had counted.
    pub(crate) fn purge(&mut self) {
        self.forget_all();
        self.before.clear();
    }

    pub(super) fn forget_path(&mut self, i: usize) {
        if self.list.get(i).is_none_or(|p| !p.used) {
            return;
        }
        self.unlist_path(i);
        if let Some(path) = self.list.get_mut(i) {
            let XlateCache { counts, own, total, .. } = std::mem::take(path);
            if own != 0 && self.before.len() < OWN {
                self.before.insert(own, total.0);
            }
            if self.shared {
                let generation = self.generations.get(i as u32);
                self.gone.push(Gone { place: i as u32, generation, counts, at: self.now });
            }
            self.generations.bump(i as u32);
            self.free.push(i as u32);
        }
    }

    /// Forgets the counters of those that were removed long ago.
    pub(crate) fn expire(&mut self) {
        let now = self.now;
        self.gone.retain(|g| g.at + REMEMBERED > now);
    }

    /// Removes those that no packet used for so long. Counters must have been paid out.
    pub(crate) fn forget_idle(&mut self, max_idle: Duration) {
        let now = self.now;
        for i in 0..self.list.len() {
            let Some(p) = self.list.get(i).filter(|p| p.used && p.total.1 + max_idle <= now) else { continue };
            let own = p.own;
            self.forget_path(i);
            self.before.remove(&own);
        }
        if self.before.len() >= OWN {
            self.before.clear();
        }
    }

    /// The counters of a place at a generation, also of a removed one for a while.
    pub(crate) fn counts(&self, place: u32, generation: u32) -> Option<&[Count]> {
        if self.generations.get(place) == generation {
            return self.list.get(place as usize).map(|p| &*p.counts);
        }
        self.gone.iter().rev().find(|g| (g.place, g.generation) == (place, generation)).map(|g| &*g.counts)
    }

    /// Keeps a packet of the one megaflow that a place belongs to.
    pub(super) fn keep_example(&mut self, (place, generation): (u32, u32), make: impl FnOnce() -> Example) {
        if self.generations.get(place) == generation
            && let Some(p) = self.list.get_mut(place as usize).filter(|p| p.own != 0)
        {
            p.example.get_or_insert_with(|| Arc::new(make()));
        }
    }

    /// That packet.
    pub(crate) fn example(&self, (place, generation): (u32, u32)) -> Option<Arc<Example>> {
        let there = self.generations.get(place) == generation;
        self.list.get(place as usize).filter(|_| there)?.example.clone()
    }

    /// Adds to the totals of a place.
    pub(crate) fn add(&mut self, place: u32, t: &super::Tally, now: Duration) {
        if self.generations.get(place) != t.generation {
            return;
        }
        let Some(p) = self.list.get_mut(place as usize) else { return };
        let ([packets, bytes], at) = &mut p.total;
        *packets += u64::from(t.packets);
        *bytes += t.bytes.first().copied().unwrap_or(0);
        *at = now;
        if p.dropped.is_empty() {
            return;
        }
        let mut dropped = std::mem::take(&mut p.dropped);
        dropped.retain(|(place, generation)| self.generations.get(*place) == *generation);
        for (place, _) in &dropped {
            self.list.get_mut(*place as usize).into_iter().for_each(|p| p.total.1 = now);
        }
        if let Some(p) = self.list.get_mut(place as usize) {
            p.dropped = dropped;
        }
    }

    /// The packets of a place pass meters; those that one of them drops are counted at another.
    pub(super) fn drops_at(&mut self, (place, generation): (u32, u32), dropped: (u32, u32)) {
        if self.generations.get(place) == generation
            && let Some(p) = self.list.get_mut(place as usize).filter(|p| !p.dropped.contains(&dropped))
        {
            p.dropped.push(dropped);
        }
    }

    /// Total packets and bytes, and the time of the last packet; none if it is gone.
    pub(crate) fn total(&self, place: u32, generation: u32) -> Option<([u64; 2], Duration)> {
        let there = self.generations.get(place) == generation;
        self.list.get(place as usize).filter(|p| there && p.used).map(|p| p.total)
    }

    pub(super) fn list_path(&mut self, i: usize) {
        let XlateCaches { by_counts, list: xcaches, .. } = self;
        let hash = |i: usize| xcaches.get(i).map_or(0, XlateCache::hash);
        by_counts.insert_unique(hash(i), i as u32, |i| hash(*i as usize));
    }

    pub(super) fn unlist_path(&mut self, i: usize) {
        let hash = self.list.get(i).map_or(0, XlateCache::hash);
        if let Ok(e) = self.by_counts.find_entry(hash, |x| *x == i as u32) {
            e.remove();
        }
    }

    /// Moves to an epoch: if it is a new one, all become stale. Counters must have been paid out.
    pub(crate) fn at_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.forget_all();
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The place and generation of the one with these counters, lookups and dependencies.
    pub(crate) fn path(&mut self, counts: &[Count], looks: &Looks, needs: &[Dependency]) -> Option<(u32, u32)> {
        self.path_of(counts, looks, needs, (0, 0))
    }

    /// The same for one megaflow alone (`own` is its hash), while there are few; its first packet had `len` bytes.
    pub(crate) fn path_of(
        &mut self,
        counts: &[Count],
        looks: &Looks,
        needs: &[Dependency],
        (own, len): (u64, usize),
    ) -> Option<(u32, u32)> {
        let own = if self.list.len() - self.free.len() < OWN { own } else { 0 };
        let listed = |i: &u32| self.list.get(*i as usize).is_some_and(|p| p.own == own && same(&p.counts, counts));
        if let Some(i) = self.by_counts.find(hash_of(counts) ^ own, listed).copied() {
            let path = self.list.get_mut(i as usize)?;
            looks.join(&mut path.looks);
            needs.iter().for_each(|n| {
                if !path.needs.contains(n) {
                    path.needs.push(*n);
                }
            });
            return Some((i, self.generations.get(i)));
        }
        if self.free.is_empty() {
            if self.list.len() < MAX_PATHS {
                self.free.push(self.list.len() as u32);
                self.list.push(XlateCache::default());
            } else {
                self.forget_all();
            }
        }
        let i = self.free.pop()?;
        let before = self.before.remove(&own);
        *self.list.get_mut(i as usize)? = XlateCache {
            used: true,
            counts: counts.into(),
            looks: looks.known(counts),
            needs: needs.to_vec(),
            total: (before.map_or([0; 2], |[packets, bytes]| [packets + 1, bytes + len as u64]), self.now),
            own,
            example: None,
            dropped: Vec::new(),
        };
        self.list_path(i as usize);
        Some((i, self.generations.get(i)))
    }
}
