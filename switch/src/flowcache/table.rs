//! The table of cached flows: eight-way set associative, growing in place.

use super::entry::Entry;
use super::key::{BLOCK, MAX_BLOCKS, PackedKey, SHAPES};
use super::last::LastFlow;
use super::megaflow::{Masks, Narrow};
use crate::stamps::GenerationTable;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Ways of a set; the oldest entry makes room.
pub(crate) const WAYS: usize = 8;
/// log2 of the number of sets at first, and of the factor of each growth.
const FIRST: (usize, u32) = (512, 3);
/// Sets of lower levels whose entries an insertion, or a lookup in vain, moves to the highest: all have moved long before
/// the next growth.
const MOVED: usize = 2;
/// Tags in a word.
const LANES: usize = 4;

/// A set: for each way a tag (part of the hash; 0: free) and the entry. Tags are compared four at a time without a
/// branch for each, as branches could not be predicted.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Set {
    tags: [u64; WAYS / LANES],
    entries: [u32; WAYS],
}

impl Set {
    /// A bit for each place with a tag, at 16 times the place and 15; bits above the first may be of others.
    #[inline(always)]
    fn found(&self, tag: u16) -> u128 {
        const ONES: u64 = 0x0001_0001_0001_0001;
        let found = |w: u64| {
            let x = w ^ u64::from(tag).wrapping_mul(ONES);
            // The lowest bit that is set belongs to the first 16-bit lane that is zero.
            x.wrapping_sub(ONES) & !x & ONES << 15
        };
        let [a, b] = self.tags.map(found);
        u128::from(b) << 64 | u128::from(a)
    }

    /// The first place with a tag.
    #[inline(always)]
    fn first(&self, tag: u16) -> Option<usize> {
        let bits = self.found(tag);
        if bits == 0 { None } else { Some(bits.trailing_zeros() as usize / 16) }
    }

    /// All places with a tag, and their entries.
    #[inline(always)]
    fn all(&self, tag: u16) -> impl Iterator<Item = (usize, u32)> {
        let mut bits = self.found(tag);
        let places = std::iter::from_fn(move || {
            let way = bits.trailing_zeros() as usize / 16;
            bits &= bits.wrapping_sub(1);
            (way < WAYS).then_some(way)
        });
        places.filter(move |way| self.tag(*way) == tag).filter_map(|way| Some((way, *self.entries.get(way)?)))
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

/// The table.
#[derive(Debug)]
pub(crate) struct Table {
    /// Limit of sets, and capacity.
    most: usize,
    room: usize,
    /// How often the table has grown. Few flows lie close together in memory. Growing moves no entry: a lookup
    /// continues in the sets of lower levels and moves the entry that it finds there. Insertions and lookups in vain move
    /// the others, a few each, so that the latter do not read a set of each level for ever.
    level: u32,
    /// The lowest level that entries are at, and the sets from the first on whose entries have moved.
    floor: u32,
    moved: usize,
    sets: Vec<Set>,
    /// The sets of the highest level, less one.
    mask: usize,
    pub(crate) entries: Vec<Entry>,
    next: usize,
    seed: [[u64; BLOCK]; MAX_BLOCKS],
    /// Generations of xlate caches: entries of an earlier generation are stale.
    generations: GenerationTable,
    /// Masks of megaflows, under which keys are looked up, too.
    pub(crate) masks: Masks,
}

impl Table {
    /// Capacity for four flows per connection, within bounds: with that, hardly any set overflows.
    pub(crate) fn new(connections: usize, generations: GenerationTable) -> Table {
        let room = (connections.saturating_mul(4) / WAYS).next_power_of_two().clamp(FIRST.0, 1 << 18);
        Table {
            most: room,
            room,
            level: 0,
            floor: 0,
            moved: 0,
            sets: Vec::new(),
            mask: FIRST.0 - 1,
            entries: Vec::new(),
            next: 0,
            seed: std::array::from_fn(|_| std::array::from_fn(|_| RandomState::new().build_hasher().finish())),
            generations,
            masks: Masks::default(),
        }
    }

    /// An empty one of the same size, with the same hashes.
    pub(crate) fn another(&self) -> Table {
        Table {
            most: self.most,
            room: self.room,
            level: 0,
            floor: 0,
            moved: 0,
            sets: Vec::new(),
            mask: FIRST.0.min(self.most) - 1,
            entries: Vec::new(),
            next: 0,
            seed: self.seed,
            generations: self.generations.clone(),
            masks: Masks::default(),
        }
    }

    /// Forgets all flows.
    pub(crate) fn clear(&mut self) {
        self.sets.clear();
        self.entries.clear();
        self.masks.clear();
        (self.level, self.floor, self.mask) = (0, 0, FIRST.0.min(self.most) - 1);
    }

    /// Limits the number of entries, rounded down to a power of two; returns whether the limit is new. The table must
    /// be cleared then.
    pub(crate) fn limit(&mut self, entries: Option<usize>) -> bool {
        let sets = entries.map_or(self.room, |n| 1 << (n / WAYS).max(1).ilog2()).min(self.room);
        std::mem::replace(&mut self.most, sets) != sets
    }

    /// Places at most.
    pub(crate) fn room(&self) -> usize {
        self.most * WAYS
    }

    /// Whether the entry's xlate cache is still valid.
    #[inline(always)]
    pub(crate) fn fresh(&self, e: &Entry) -> bool {
        self.is_at((e.path, e.generation)) && (!e.metered || self.meters_fresh(e))
    }

    /// Whether a place has this generation.
    #[inline(always)]
    pub(super) fn is_at(&self, (place, generation): (u32, u32)) -> bool {
        self.generations.get(place) == generation
    }

    /// The keyed hash of a key, which senders of packets cannot predict. Each pair of words is multiplied separately,
    /// so the processor works on all pairs at once.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &[[u64; BLOCK]]) -> u64 {
        let folded = |a: u64, b: u64| {
            let m = u128::from(a).wrapping_mul(u128::from(b));
            m as u64 ^ (m >> 64) as u64
        };
        let sum = key.iter().zip(&self.seed).fold(key.len() as u64, |h, (b, s)| {
            (0..BLOCK / 2).fold(h, |h, i| h.wrapping_add(folded(b[2 * i] ^ s[2 * i], b[2 * i + 1] ^ s[2 * i + 1])))
        });
        let [[last, end, ..], ..] = self.seed;
        folded(sum ^ last, end | 1)
    }

    /// How many sets a level has.
    fn sets_of(&self, level: u32) -> usize {
        (FIRST.0 << (FIRST.1 * level)).min(self.most)
    }

    /// The set of a hash among those of a level, and the tag.
    #[inline(always)]
    fn place(&self, hash: u64, level: u32) -> (usize, u16) {
        let mask = if level == self.level { self.mask } else { self.sets_of(level) - 1 };
        (hash as usize & mask, (hash >> 48) as u16 | 1)
    }

    /// The entries that a hash may be at, as set and way, the highest level first.
    fn places(&self, hash: u64) -> impl Iterator<Item = (usize, u32)> {
        (self.floor..=self.level).rev().flat_map(move |level| {
            let (at, tag) = self.place(hash, level);
            let found = self.sets.get(at).into_iter().flat_map(move |s| s.all(tag));
            found.map(move |(way, e)| (at * WAYS + way, e))
        })
    }

    /// The set of a hash.
    #[inline(always)]
    pub(crate) fn set(&self, hash: u64) -> Option<&Set> {
        self.sets.get(self.place(hash, self.level).0)
    }

    /// Looks a key up under the masks; if a megaflow matches, narrows the key to its. Where that is the one of the packet
    /// `before`, more are likely to follow: returns how to compare further frames with it, if their bytes are their keys.
    #[inline(never)]
    pub(crate) fn narrow(&mut self, key: &mut PackedKey, before: u32) -> Option<Option<LastFlow>> {
        let kind = key.kind()?;
        for i in 0..self.masks.due(kind) {
            let mask = self.masks.get(kind, i)?;
            let narrow = mask.of(key.blocks());
            if let Some(number) = self.under_mask(&narrow, key.blocks().len()) {
                let second = number == before;
                let compares = second && kind < SHAPES;
                let last = compares.then(|| LastFlow::new(mask, &narrow, key.blocks().len(), number));
                self.masks.served(kind, i, second);
                key.narrow(&narrow, number);
                return Some(last);
            }
        }
        None
    }

    /// The number of the entry of a masked key.
    fn under_mask(&self, narrow: &Narrow, blocks: usize) -> Option<u32> {
        let key = narrow.get(..blocks)?;
        let (at, tag) = self.place(self.hash(key), self.level);
        let set = self.sets.get(at)?;
        let number = *set.entries.get(set.first(tag)?)?;
        self.entries.get(number as usize).filter(|e| self.fresh(e) && e.is(key)).map(|_| number)
    }

    /// Makes an entry stale, so that another may take its place.
    pub(crate) fn spoil(&mut self, number: u32) {
        if let Some(e) = self.entries.get_mut(number as usize) {
            e.generation = self.generations.get(e.path).wrapping_sub(1);
        }
    }

    /// The number of the first entry whose tag fits a key; its key may differ.
    #[inline(always)]
    pub(crate) fn candidate(&mut self, key: &[[u64; BLOCK]], hash: u64) -> u32 {
        let (at, tag) = self.place(hash, self.level);
        match self.sets.get(at).and_then(|s| Some(*s.entries.get(s.first(tag)?)?)) {
            Some(number) => number,
            None => self.older(key, hash),
        }
    }

    /// The number of a key's entry on a lower level, which is moved to the highest; `u32::MAX` if there is none.
    #[cold]
    fn older(&mut self, key: &[[u64; BLOCK]], hash: u64) -> u32 {
        if self.floor == self.level {
            return u32::MAX;
        }
        let Some((at, number)) = self.find(key, hash).next() else {
            self.move_some();
            return u32::MAX;
        };
        self.lift(hash, at, number);
        number as u32
    }

    /// The entries of a key by place and number. There may be several with different checks.
    pub(crate) fn find(&self, key: &[[u64; BLOCK]], hash: u64) -> impl Iterator<Item = (usize, usize)> {
        self.places(hash)
            .map(|(at, i)| (at, i as usize))
            .filter(move |(_, i)| self.entries.get(*i).is_some_and(|e| self.fresh(e) && e.is(key)))
    }

    /// An entry of this key, stale or not.
    pub(crate) fn with_key(&self, hash: u64, key: &[u64]) -> Option<&Entry> {
        self.places(hash).filter_map(|(_, i)| self.entries.get(i as usize)).find(|e| e.key() == key)
    }

    /// Moves an entry from a lower level to the highest; says whether it is there.
    pub(crate) fn lift(&mut self, hash: u64, at: usize, number: usize) -> bool {
        let (home, _) = self.place(hash, self.level);
        at / WAYS == home || self.lift_to(home, at, number).is_some()
    }

    /// Nothing if there is no room.
    fn lift_to(&mut self, home: usize, at: usize, number: usize) -> Option<()> {
        let (set, way) = (at / WAYS, at % WAYS);
        let free = self.sets.get(home)?.first(0)?;
        let from = self.sets.get_mut(set)?;
        let tag = from.tag(way);
        // Another packet of the burst may have replaced it.
        if tag == 0 || from.entries.get(way).is_none_or(|e| *e as usize != number) {
            return None;
        }
        from.set_tag(way, 0);
        let s = self.sets.get_mut(home)?;
        *s.entries.get_mut(free)? = number as u32;
        s.set_tag(free, tag);
        Some(())
    }

    /// Moves the entries of the next sets of lower levels. What has no room on the highest one is forgotten.
    #[cold]
    fn move_some(&mut self) {
        let lower = self.sets_of(self.level - 1);
        let to = (self.moved + MOVED).min(lower);
        for at in self.moved * WAYS..to * WAYS {
            let Some(set) = self.sets.get(at / WAYS) else { break };
            let (tag, number) = (set.tag(at % WAYS), set.entries.get(at % WAYS).copied());
            let (true, Some(number)) = (tag != 0, number) else { continue };
            let Some(e) = self.entries.get(number as usize) else { continue };
            let hash = self.hash(e.key().as_chunks().0);
            if !self.lift(hash, at, number as usize) {
                self.spoil(number);
            }
        }
        self.moved = to;
        if to == lower {
            self.floor = self.level;
        }
    }

    /// Inserts an entry; it replaces an entry with the same key that `stale` accepts.
    pub(crate) fn insert(&mut self, hash: u64, entry: Entry, stale: impl Fn(&Entry) -> bool) {
        if self.sets.is_empty() {
            self.sets = vec![Set::default(); self.most];
            // Reserve everything at once, as growing would copy; unused memory costs nothing. If it cannot be reserved,
            // the vector grows.
            let _ = self.entries.try_reserve_exact(self.room());
        }
        if self.entries.len() > FIRST.0 << (FIRST.1 * self.level) && self.mask + 1 < self.most {
            self.level += 1;
            self.mask = self.sets_of(self.level) - 1;
            self.moved = 0;
        }
        if self.floor != self.level {
            self.move_some();
        }
        let (at, tag) = self.place(hash, self.level);
        let Table { sets, entries, generations, .. } = self;
        let Some(set) = sets.get_mut(at) else { return };
        let fresh = |e: &Entry| generations.get(e.path) == e.generation;
        let of = |(tag, entry): (u16, u32)| entries.get(entry as usize).filter(|_| tag != 0);
        let same = set.ways().position(|w| of(w).is_some_and(|e| e.key() == entry.key() && (!fresh(e) || stale(e))));
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
    }

    /// The entries that are in the table and not stale.
    pub(crate) fn used(&self) -> impl Iterator<Item = &Entry> {
        self.used_in(&self.sets)
    }

    /// The same of a set; none if there are not so many.
    pub(crate) fn used_in_set(&self, number: usize) -> Option<impl Iterator<Item = &Entry>> {
        Some(self.used_in(std::slice::from_ref(self.sets.get(number)?)))
    }

    fn used_in<'a>(&'a self, sets: &'a [Set]) -> impl Iterator<Item = &'a Entry> {
        let places = sets.iter().flat_map(Set::ways).filter(|(t, _)| *t != 0);
        places.filter_map(|(_, i)| self.entries.get(i as usize)).filter(|e| self.fresh(e))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Count;
    use super::super::depend::Looks;
    use super::super::xcache::XlateCaches;
    use super::*;
    use crate::ids::BridgeId;
    use openflow_rs::PortNo;

    /// Against a look at each place. Tags that differ in their lowest bit are those that could be taken for each other.
    #[test]
    fn places_with_a_tag_are_all_found() {
        let tags = [0u16, 1, 2, 3, 0x8000, 0xffff];
        let mut seed = 1u64;
        for _ in 0..20_000 {
            let mut set = Set::default();
            for way in 0..WAYS {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                set.set_tag(way, tags[(seed >> 33) as usize % tags.len()]);
                set.entries[way] = way as u32 + 100;
            }
            for tag in tags {
                let each: Vec<(usize, u32)> =
                    set.ways().enumerate().filter(|(_, (t, _))| *t == tag).map(|(i, (_, e))| (i, e)).collect();
                assert_eq!(set.all(tag).collect::<Vec<_>>(), each, "{tag} in {set:?}");
                assert_eq!(set.first(tag), each.first().map(|(i, _)| *i));
            }
        }
    }

    /// Against a plain map, over several growths: nothing is found that was not put in, nearly all that was is found,
    /// also after it moved, and newer epochs find nothing.
    #[test]
    fn growing_loses_little() {
        let mut xcaches = XlateCaches::default();
        let mut cache = Table::new(100_000, xcaches.generations().clone());
        let mut model = std::collections::HashMap::new();
        for n in 0..20_000u64 {
            let key = [[n, n * n, 0, 0, 0, 0, 0, 0]];
            let hash = cache.hash(&key);
            let count = Count::Port { bridge: BridgeId(n as usize), no: PortNo(1), sent: false, length: (0, 0) };
            let path = xcaches.path(&[count], &Looks::default(), &[]).expect("path");
            let entry = Entry::new((&key, Default::default()), &[], &[], path, None, Vec::new()).expect("entry");
            cache.insert(hash, entry, |_| true);
            model.insert(key, path.0);
            if n == 5000 {
                assert!(cache.floor < cache.level && cache.moved > 0, "some entries have moved, others have not");
                let found = model.keys().filter(|k| cache.find(*k, cache.hash(*k)).next().is_some()).count();
                assert!(found > model.len() * 95 / 100, "{found}");
            }
        }
        assert!(cache.level >= 2 && cache.entries.len() <= cache.room());
        assert_eq!(cache.floor, cache.level, "all have moved");
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
        let absent = [[1, 2, 0, 0, 0, 0, 0, 0]];
        assert_eq!(cache.find(&absent, cache.hash(&absent)).count(), 0);
        xcaches.forget_all();
        assert!(model.keys().all(|k| cache.find(k, cache.hash(k)).next().is_none()));
    }
}
