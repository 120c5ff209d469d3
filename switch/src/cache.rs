//! The flow cache: packed packet key → one compiled transform for the whole pipeline, every `ct` included.
//!
//! A walk through the tables is recorded ([`record`]) and its effects are compiled into an [`Entry`]: what must hold for it
//! to be repeated, the rewrites, tunnels and outputs, and the counters ([`code`]). A packet with the same key repeats it
//! ([`replay`]). Packets come in bursts, and what a burst needs is read for all of it before it is used, so that the
//! processor waits for many places of memory at a time.
//! An entry is stale as soon as what it depends on has changed: a lookup might find another rule, a group, a next hop
//! ([`depend`]), ports or options (one epoch for all), or a connection that it went through has changed state, mark or
//! label, or is gone.
//!
//! Not cached, always walked: fragments and malformed packets, ICMP errors, neighbour discovery, whatever opens or changes
//! a connection, and walks with `controller`, `learn`, meters, truncated output or any event.

pub(crate) mod code;
pub(crate) mod depend;
pub(crate) mod key;
pub(crate) mod record;
pub(crate) mod replay;
mod show;

use crate::classifier::Rule;
use crate::conntrack::{Seen, Tuple};
use code::Entry;
use depend::{Look, Looks, Need};
use hashbrown::HashTable;
use key::{MAX_WORDS, PackedKey};
use openflow_rs::PortNo;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// Entries that share a place; the oldest of them makes room.
const WAYS: usize = 8;
/// Sets at first, and how many times more each growth adds, as a shift.
const FIRST: (usize, u32) = (512, 3);
/// Most paths; beyond it all flows are forgotten.
const MAX_PATHS: usize = 65_536;

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
    Table { bridge: usize, table: u8, rule: Option<Arc<Rule>>, length: (u8, i32) },
    Port { bridge: usize, no: PortNo, sent: bool, length: (u8, i32) },
    Bucket { bridge: usize, group: u32, index: usize, length: (u8, i32) },
    Sample,
}

/// What all flows that take the same way through the tables share.
#[derive(Debug, Default)]
pub(crate) struct Path {
    /// There is a path in this place.
    used: bool,
    pub(crate) counts: Box<[Count]>,
    /// Lookups, in the order of the counts of tables.
    looks: Box<[Look]>,
    needs: Vec<Need>,
}

/// What packets of a path have moved its counters by. They are paid out at the end of every batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Which path it is that is in this place: entries of an earlier one are stale.
    pub(crate) generation: u32,
    pub(crate) packets: u32,
    pub(crate) bytes: [u64; 2],
}

impl Count {
    /// What tells counters apart. Rules are told apart by their places in memory.
    fn identity(&self) -> [u64; 3] {
        let pack = |l: &(u8, i32)| u64::from(l.0) << 32 | u64::from(l.1 as u32);
        match self {
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
        }
    }
}

/// A hash of counters.
fn hash_of(counts: &[Count]) -> u64 {
    counts.iter().flat_map(Count::identity).fold(1, |h, w| {
        let m = u128::from(h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        m as u64 ^ (m >> 64) as u64
    })
}

fn same(a: &[Count], b: &[Count]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.identity() == b.identity())
}

/// Lanes of a word of tags.
const LANES: usize = 4;

/// A set: of each place part of the hash, 0 where it is free, and the entry. Tags are compared four at a time, without a
/// branch for each, as which it is cannot be foreseen.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Set {
    tags: [u64; WAYS / LANES],
    entries: [u32; WAYS],
}

impl Set {
    /// The first place with a tag.
    #[inline(always)]
    fn first(&self, tag: u16) -> Option<usize> {
        const ONES: u64 = 0x0001_0001_0001_0001;
        let found = |w: u64| {
            let x = w ^ u64::from(tag).wrapping_mul(ONES);
            // The lowest bit set is that of the first lane that is zero.
            x.wrapping_sub(ONES) & !x & ONES << 15
        };
        let [a, b] = self.tags.map(found);
        let bits = u128::from(b) << 64 | u128::from(a);
        if bits == 0 { None } else { Some(bits.trailing_zeros() as usize / 16) }
    }

    fn tag(&self, way: usize) -> u16 {
        self.tags.get(way / LANES).map_or(0, |w| (w >> (16 * (way % LANES))) as u16)
    }

    fn set_tag(&mut self, way: usize, tag: u16) {
        if let Some(w) = self.tags.get_mut(way / LANES) {
            let shift = 16 * (way % LANES);
            *w = *w & !(0xffff << shift) | u64::from(tag) << shift;
        }
    }

    /// The tags and the entries.
    fn ways(&self) -> impl Iterator<Item = (u16, u32)> {
        self.entries.iter().enumerate().map(|(i, e)| (self.tag(i), *e))
    }
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
    /// Sets at most.
    sets: usize,
    /// How often the sets in use have grown. Few flows lie close together in memory, and growing moves none of them: a lookup
    /// goes on in the sets of lower levels, and takes what it finds there along.
    level: u32,
    table: Vec<Set>,
    /// The sets of the highest level, less one.
    mask: usize,
    pub(crate) entries: Vec<Entry>,
    next: usize,
    seed: [u64; MAX_WORDS],
    /// Room for the keys of a burst.
    pub(crate) keys: Vec<PackedKey>,
    epoch: u64,
    pub(crate) paths: Vec<Path>,
    /// Beside the paths.
    pub(crate) tallies: Vec<Tally>,
    /// Places without a path.
    free_paths: Vec<u32>,
    pub(crate) dirty: Vec<u32>,
    /// Numbers of paths, by what they count.
    by_counts: HashTable<u32>,
    /// Room for the next record.
    pub(crate) spare: Option<Box<record::Recorder>>,
    pub(crate) stats: CacheStats,
}

impl Cache {
    /// Room for four flows of each connection, within bounds: of those that it has, hardly any share a set with more others
    /// than there is room for.
    pub(crate) fn new(connections: usize) -> Cache {
        Cache {
            on: true,
            exact_flags: false,
            sets: (connections.saturating_mul(4) / WAYS).next_power_of_two().clamp(FIRST.0, 1 << 18),
            level: 0,
            table: Vec::new(),
            mask: FIRST.0 - 1,
            entries: Vec::new(),
            next: 0,
            seed: std::array::from_fn(|_| RandomState::new().build_hasher().finish()),
            keys: Vec::new(),
            epoch: 0,
            paths: Vec::new(),
            tallies: Vec::new(),
            free_paths: Vec::new(),
            dirty: Vec::new(),
            by_counts: HashTable::new(),
            spare: None,
            stats: CacheStats::default(),
        }
    }

    /// Forgets all flows. Counters must have been paid out.
    pub(crate) fn clear(&mut self) {
        self.table.clear();
        self.entries.clear();
        (self.level, self.mask) = (0, FIRST.0 - 1);
        self.forget_paths();
    }

    /// All entries become stale; they stay until overwritten. Counters must have been paid out.
    fn forget_paths(&mut self) {
        for i in 0..self.paths.len() {
            self.forget_path(i);
        }
    }

    fn forget_path(&mut self, i: usize) {
        if self.paths.get(i).is_none_or(|p| !p.used) {
            return;
        }
        self.unlist_path(i);
        if let (Some(path), Some(tally)) = (self.paths.get_mut(i), self.tallies.get_mut(i)) {
            *path = Path::default();
            tally.generation = tally.generation.wrapping_add(1);
            self.free_paths.push(i as u32);
        }
    }

    fn list_path(&mut self, i: usize) {
        let Cache { by_counts, paths, .. } = self;
        let hash = |i: usize| hash_of(paths.get(i).map_or(&[], |p| &p.counts));
        by_counts.insert_unique(hash(i), i as u32, |i| hash(*i as usize));
    }

    fn unlist_path(&mut self, i: usize) {
        let hash = hash_of(self.paths.get(i).map_or(&[], |p| &p.counts));
        if let Ok(e) = self.by_counts.find_entry(hash, |x| *x == i as u32) {
            e.remove();
        }
    }

    /// Whether what an entry's path depends on is unchanged.
    #[inline]
    pub(crate) fn fresh(&self, e: &Entry) -> bool {
        self.tallies.get(e.path as usize).is_some_and(|t| t.generation == e.generation)
    }

    /// Brings the cache to an epoch. Counters must have been paid out.
    pub(crate) fn at_epoch(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.forget_paths();
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The hash of a key; nobody outside can foresee it. Each pair of words is multiplied by itself, with numbers that belong to
    /// its place, so the processor has them all under way at once.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u64]) -> u64 {
        let folded = |a: u64, b: u64| {
            let m = u128::from(a).wrapping_mul(u128::from(b));
            m as u64 ^ (m >> 64) as u64
        };
        let (pairs, rest) = key.as_chunks::<2>();
        let (seeds, _) = self.seed.as_chunks::<2>();
        let sum =
            pairs.iter().zip(seeds).fold(key.len() as u64, |h, ([a, b], [k, l])| h.wrapping_add(folded(a ^ k, b ^ l)));
        let [last, end, ..] = self.seed;
        let odd = rest.first().map_or(0, |a| folded(a ^ end, last ^ key.len() as u64));
        folded(sum.wrapping_add(odd) ^ last, end | 1)
    }

    /// The set of a hash among those of a level, and the tag.
    #[inline(always)]
    fn place(&self, hash: u64, level: u32) -> (usize, u16) {
        let mask = if level == self.level { self.mask } else { (FIRST.0 << (FIRST.1 * level)).min(self.sets) - 1 };
        (hash as usize & mask, (hash >> 48) as u16 | 1)
    }

    /// The places that a hash may be at, by set and way with the entry, those of the highest level first.
    fn places(&self, hash: u64) -> impl Iterator<Item = (usize, u32)> {
        (0..=self.level).rev().flat_map(move |level| {
            let (at, tag) = self.place(hash, level);
            let ways = self.table.get(at).into_iter().flat_map(Set::ways).enumerate();
            ways.filter(move |(_, (t, _))| *t == tag).map(move |(i, (_, e))| (at * WAYS + i, e))
        })
    }

    /// The set of a hash.
    #[inline(always)]
    pub(crate) fn set(&self, hash: u64) -> Option<&Set> {
        self.table.get(self.place(hash, self.level).0)
    }

    /// The first entry that may be a key's, by place and number; it need not be.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64) -> Option<(u32, u32)> {
        let (at, tag) = self.place(hash, self.level);
        let set = self.table.get(at)?;
        match set.first(tag) {
            Some(way) => Some(((at * WAYS + way) as u32, *set.entries.get(way)?)),
            None if self.level == 0 => None,
            None => self.places(hash).next().map(|(at, i)| (at as u32, i)),
        }
    }

    /// The entries of a key, by place and number; several differ in their checks.
    pub(crate) fn find(&self, key: &[u64], hash: u64) -> impl Iterator<Item = (usize, usize)> {
        self.places(hash)
            .map(|(at, i)| (at, i as usize))
            .filter(move |(_, i)| self.entries.get(*i).is_some_and(|e| self.fresh(e) && code::same(e.key(), key)))
    }

    /// Moves the entry that was found at a place of a lower level to the highest, if there is room.
    #[inline(always)]
    pub(crate) fn lift(&mut self, hash: u64, at: usize, number: usize) {
        let (home, _) = self.place(hash, self.level);
        if at / WAYS != home {
            self.lift_to(home, at, number);
        }
    }

    fn lift_to(&mut self, home: usize, at: usize, number: usize) {
        let (set, way) = (at / WAYS, at % WAYS);
        let Some(free) = self.table.get(home).and_then(|s| s.first(0)) else { return };
        let Some(from) = self.table.get_mut(set) else { return };
        let tag = from.tag(way);
        // Packets of the same burst may have put another one there since.
        if tag == 0 || from.entries.get(way).is_none_or(|e| *e as usize != number) {
            return;
        }
        from.set_tag(way, 0);
        if let Some(s) = self.table.get_mut(home)
            && let Some(e) = s.entries.get_mut(free)
        {
            *e = number as u32;
            s.set_tag(free, tag);
        }
    }

    /// Puts an entry in; `stale` says which old entry of the same key it replaces.
    pub(crate) fn insert(&mut self, hash: u64, entry: Entry, stale: impl Fn(&Entry) -> bool) {
        if self.table.is_empty() {
            self.table = vec![Set::default(); self.sets];
            // Growing would copy all; memory that is not used yet costs nothing. Where it is not to be had, growing has to do.
            let _ = self.entries.try_reserve_exact(self.sets * WAYS);
        }
        if self.entries.len() > FIRST.0 << (FIRST.1 * self.level) && self.mask + 1 < self.sets {
            self.level += 1;
            self.mask = (FIRST.0 << (FIRST.1 * self.level)).min(self.sets) - 1;
        }
        let (at, tag) = self.place(hash, self.level);
        let Cache { table, entries, tallies, .. } = self;
        let Some(set) = table.get_mut(at) else { return };
        let fresh = |e: &Entry| tallies.get(e.path as usize).is_some_and(|t| t.generation == e.generation);
        let of = |(tag, entry): (u16, u32)| entries.get(entry as usize).filter(|_| tag != 0);
        let same =
            set.ways().position(|w| of(w).is_some_and(|e| code::same(e.key(), entry.key()) && (!fresh(e) || stale(e))));
        let free = || set.ways().position(|w| of(w).is_none_or(|e| !fresh(e)));
        let way = same.or_else(free).unwrap_or_else(|| {
            self.next = (self.next + 1) % WAYS;
            self.next
        });
        let used = set.tag(way) != 0;
        set.set_tag(way, tag);
        let Some(number) = set.entries.get_mut(way) else { return };
        if !used {
            *number = entries.len() as u32;
            entries.push(entry);
        } else if let Some(e) = entries.get_mut(*number as usize) {
            *e = entry;
        }
        self.stats.inserted += 1;
    }

    /// The entries that are in the table and not stale.
    pub(crate) fn used(&self) -> impl Iterator<Item = &Entry> {
        let places = self.table.iter().flat_map(Set::ways).filter(|(t, _)| *t != 0);
        places.filter_map(|(_, i)| self.entries.get(i as usize)).filter(|e| self.fresh(e))
    }

    /// Keeps the room of a record for the next one.
    pub(crate) fn put_back(&mut self, mut r: Box<record::Recorder>) {
        r.clear();
        self.spare = Some(r);
    }

    /// The path with these counters, lookups and needs, and its generation.
    pub(crate) fn path(&mut self, counts: &[Count], looks: &Looks, needs: &[Need]) -> Option<(u32, u32)> {
        let listed = |i: &u32| self.paths.get(*i as usize).is_some_and(|p| same(&p.counts, counts));
        if let Some(i) = self.by_counts.find(hash_of(counts), listed).copied() {
            let path = self.paths.get_mut(i as usize)?;
            looks.join(&mut path.looks);
            needs.iter().for_each(|n| {
                if !path.needs.contains(n) {
                    path.needs.push(*n);
                }
            });
            return Some((i, self.tallies.get(i as usize)?.generation));
        }
        if self.free_paths.is_empty() {
            if self.paths.len() < MAX_PATHS {
                self.free_paths.push(self.paths.len() as u32);
                self.paths.push(Path::default());
                self.tallies.push(Tally::default());
            } else {
                self.forget_paths();
            }
        }
        let i = self.free_paths.pop()?;
        *self.paths.get_mut(i as usize)? =
            Path { used: true, counts: counts.into(), looks: looks.known(counts), needs: needs.to_vec() };
        self.list_path(i as usize);
        Some((i, self.tallies.get(i as usize)?.generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a plain map, over several growths: nothing is found that was not put in, nearly all that was is found, also
    /// after it moved, and newer epochs find nothing.
    #[test]
    fn growing_loses_little() {
        let mut cache = Cache::new(100_000);
        cache.at_epoch(1);
        let mut model = std::collections::HashMap::new();
        for n in 0..20_000u64 {
            let key = [n, n * n];
            let hash = cache.hash(&key);
            let count = Count::Port { bridge: n as usize, no: PortNo(1), sent: false, length: (0, 0) };
            let path = cache.path(&[count], &Looks::default(), &[]).expect("path");
            let entry = Entry::new((&key, Default::default()), &[], &[], path, None, Vec::new()).expect("entry");
            cache.insert(hash, entry, |_| true);
            model.insert(key, path.0);
        }
        assert!(cache.level >= 2 && cache.entries.len() <= cache.sets * WAYS);
        for round in 0..2 {
            let mut found = 0;
            for (key, path) in &model {
                let hash = cache.hash(key);
                let Some((at, i)) = cache.find(key, hash).next() else { continue };
                assert_eq!(cache.entries[i].path, *path);
                cache.lift(hash, at, i);
                found += 1;
            }
            assert!(found > model.len() * 95 / 100, "{found} in round {round}");
        }
        let absent = [1, 2];
        assert_eq!(cache.find(&absent, cache.hash(&absent)).count(), 0);
        cache.at_epoch(2);
        assert!(model.keys().all(|k| cache.find(k, cache.hash(k)).next().is_none()));
    }
}
