//! The relation of all outputs: key → values, with the unit that each came from.

use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hash};
use std::ops::Range;

/// All outputs at present.
pub struct Outputs<K, V> {
    table: HashTable<u32>,
    entries: Vec<Option<Entry<K, V>>>,
    free: Vec<u32>,
    /// What was under the keys that were touched since the last [`Outputs::settle`].
    touched: FxHashMap<u32, Values<V>>,
    hasher: FxBuildHasher,
}

/// The values under a key; nearly always there is one.
pub type Values<V> = SmallVec<[V; 1]>;

/// For the changes of how many keys there is room that stays.
const KEPT: usize = 1024;

struct Entry<K, V> {
    key: K,
    hash: u64,
    /// Nearly always one; by the numbers of the units.
    from: SmallVec<[(u32, V); 1]>,
}

/// A key whose set of values changed. Both lists are sorted and hold a value once.
#[derive(Debug, PartialEq, Eq)]
pub struct Change<'a, K, V> {
    /// The key's number, which it keeps as long as it exists.
    pub id: u32,
    /// The key.
    pub key: &'a K,
    /// The values before; empty where the key is new.
    pub before: Values<V>,
    /// The values now; empty where the key is gone.
    pub after: Values<V>,
}

/// The keys whose sets of values changed, in the order of their numbers. Values are put together as it goes on, so that many
/// changes take little room.
pub struct Changes<'a, K, V> {
    outputs: &'a Outputs<K, V>,
    ids: std::vec::IntoIter<u32>,
}

impl<K, V> Clone for Changes<'_, K, V> {
    fn clone(&self) -> Self {
        Changes { outputs: self.outputs, ids: self.ids.clone() }
    }
}

impl<'a, K, V> Changes<'a, K, V> {
    /// Those whose keys are wanted.
    #[must_use]
    pub fn of(&self, wanted: impl Fn(&K) -> bool) -> Changes<'a, K, V> {
        let of = |id: &u32| self.outputs.entry(*id).is_some_and(|e| wanted(&e.key));
        let ids: Vec<u32> = self.ids.as_slice().iter().copied().filter(of).collect();
        Changes { outputs: self.outputs, ids: ids.into_iter() }
    }
}

impl<'a, K, V: Ord + Clone> Iterator for Changes<'a, K, V> {
    type Item = Change<'a, K, V>;

    fn next(&mut self) -> Option<Change<'a, K, V>> {
        loop {
            let id = self.ids.next()?;
            if let (Some(e), Some(before)) = (self.outputs.entry(id), self.outputs.touched.get(&id)) {
                return Some(Change { id, key: &e.key, before: before.clone(), after: e.values() });
            }
        }
    }
}

impl<K, V> Entry<K, V> {
    /// Where the values of a unit are.
    fn of(&self, unit: u32) -> Range<usize> {
        let start = self.from.partition_point(|(u, _)| *u < unit);
        let count = self.from.iter().skip(start).take_while(|(u, _)| *u == unit).count();
        start..start + count
    }

    /// The values, sorted, each once.
    fn values(&self) -> Values<V>
    where
        V: Ord + Clone,
    {
        let mut values = Values::new();
        for (_, v) in &self.from {
            if values.last() != Some(v) {
                values.push(v.clone());
            }
        }
        values.sort_unstable();
        values.dedup();
        values
    }

    fn is(&self, values: &[V]) -> bool
    where
        V: Ord + Clone,
    {
        match (&self.from[..], values) {
            (from, []) => from.is_empty(),
            ([], _) => false,
            ([(_, v)], [only]) => v == only,
            _ => self.values()[..] == *values,
        }
    }
}

impl<K, V> Outputs<K, V> {
    fn entry(&self, id: u32) -> Option<&Entry<K, V>> {
        self.entries.get(id as usize)?.as_ref()
    }
}

impl<K: Eq + Hash, V: Ord + Clone> Outputs<K, V> {
    pub(crate) fn new() -> Outputs<K, V> {
        Outputs {
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            touched: FxHashMap::default(),
            hasher: FxBuildHasher,
        }
    }

    /// The number of a key, which gets one if it has none.
    pub(crate) fn number(&mut self, key: K) -> u32 {
        let hash = self.hasher.hash_one(&key);
        let entries = &self.entries;
        let same = |&id: &u32| entries.get(id as usize).and_then(Option::as_ref).is_some_and(|e| e.key == key);
        match self.table.find(hash, same) {
            Some(&id) => id,
            None => self.insert(key, hash),
        }
    }

    /// Sets what one unit puts out under the key of a number. A key under which many units put something out is not gone through
    /// as long as nothing changes. What others put out there already is held once where the value is shared ([`Arc`]), so that
    /// values of thousands of units, as the group of a backend that thousands of services have, are compared by where they are.
    ///
    /// [`Arc`]: std::sync::Arc
    pub(crate) fn set(&mut self, id: u32, unit: u32, values: impl Iterator<Item = V> + Clone) {
        let Some(e) = self.entry(id) else { return };
        let place = e.of(unit);
        if e.from.get(place.clone()).into_iter().flatten().map(|(_, v)| v.clone()).eq(values.clone()) {
            return;
        }
        self.touch(id);
        if let Some(Some(e)) = self.entries.get_mut(id as usize) {
            let start = place.start;
            e.from.drain(place);
            for (i, v) in values.enumerate() {
                let held = e.from.first().map(|(_, first)| first).filter(|first| **first == v).cloned();
                e.from.insert(start + i, (unit, held.unwrap_or(v)));
            }
        }
    }

    fn insert(&mut self, key: K, hash: u64) -> u32 {
        let entry = Some(Entry { key, hash, from: SmallVec::new() });
        let id = match self.free.pop() {
            Some(id) => {
                if let Some(slot) = self.entries.get_mut(id as usize) {
                    *slot = entry;
                }
                id
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        let entries = &self.entries;
        self.table
            .insert_unique(hash, id, |&id| entries.get(id as usize).and_then(Option::as_ref).map_or(0, |e| e.hash));
        id
    }

    /// What one unit put out under keys of these numbers.
    pub(crate) fn of<'a>(&'a self, keys: &'a [u32], unit: u32) -> impl Iterator<Item = (&'a K, &'a V)> {
        let entries = keys.iter().filter_map(|id| self.entries.get(*id as usize)?.as_ref());
        entries.flat_map(move |e| e.from.get(e.of(unit)).into_iter().flatten().map(|(_, v)| (&e.key, v)))
    }

    fn touch(&mut self, id: u32) {
        let entries = &self.entries;
        let values = || entries.get(id as usize).and_then(Option::as_ref).map(Entry::values).unwrap_or_default();
        self.touched.entry(id).or_insert_with(values);
    }

    /// The changes since the last [`Outputs::settle`].
    pub(crate) fn changes(&self) -> Changes<'_, K, V> {
        let changed = |id: u32, before: &[V]| self.entry(id).is_some_and(|e| !e.is(before)).then_some(id);
        let mut ids: Vec<u32> = self.touched.iter().filter_map(|(id, before)| changed(*id, before)).collect();
        ids.sort_unstable();
        Changes { outputs: self, ids: ids.into_iter() }
    }

    /// Forgets what has changed, and frees keys that have no value left.
    pub(crate) fn settle(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        for (id, _) in touched.drain() {
            let Some(slot) = self.entries.get_mut(id as usize) else { continue };
            if let Some(e) = slot
                && e.from.is_empty()
            {
                if let Ok(found) = self.table.find_entry(e.hash, |i| *i == id) {
                    found.remove();
                }
                *slot = None;
                self.free.push(id);
            }
        }
        if touched.capacity() <= KEPT {
            self.touched = touched;
        }
    }

    /// Every key with its values, each with the number of the unit that it came from.
    pub fn iter(&self) -> impl Iterator<Item = (&K, impl Iterator<Item = &V>)> {
        self.entries.iter().flatten().filter(|e| !e.from.is_empty()).map(|e| (&e.key, e.from.iter().map(|(_, v)| v)))
    }

    /// The number of a key.
    pub fn id(&self, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let same = |&id: &u32| self.key(id).is_some_and(|k| k == key);
        self.table.find(hash, same).copied()
    }

    /// The key of this number.
    pub fn key(&self, id: u32) -> Option<&K> {
        self.entry(id).map(|e| &e.key)
    }

    /// The values under a key's number, sorted, each once.
    pub fn values(&self, id: u32) -> Values<V> {
        self.entry(id).map(Entry::values).unwrap_or_default()
    }

    /// The first of the values under a key.
    pub fn first(&self, key: &K) -> Option<&V> {
        self.sources(key).iter().map(|(_, v)| v).min()
    }

    /// Gives back room that is not used.
    pub(crate) fn trim(&mut self) {
        while self.entries.last().is_some_and(Option::is_none) {
            self.entries.pop();
        }
        let end = self.entries.len();
        self.free.retain(|id| (*id as usize) < end);
        self.free.shrink_to_fit();
        self.entries.shrink_to_fit();
        let entries = &self.entries;
        self.table.shrink_to_fit(|&id| entries.get(id as usize).and_then(Option::as_ref).map_or(0, |e| e.hash));
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// For how many keys there is room.
    pub fn room(&self) -> usize {
        self.entries.capacity()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(crate) fn sources(&self, key: &K) -> &[(u32, V)] {
        let hash = self.hasher.hash_one(key);
        let found = self.table.find(hash, |&id| self.entry(id).is_some_and(|e| e.key == *key));
        found.and_then(|&id| self.entry(id)).map_or(&[], |e| &e.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room behind the last key that is left is given back, and what is left is found where it was.
    #[test]
    fn unused_room_is_given_back() {
        let mut o: Outputs<u32, u32> = Outputs::new();
        let ids: Vec<u32> = (0..1000).map(|k| o.number(k)).collect();
        ids.iter().for_each(|id| o.set(*id, 1, [7].into_iter()));
        o.settle();
        assert!(o.room() >= 1000);
        ids.iter().filter(|id| **id != 100).for_each(|id| o.set(*id, 1, [].into_iter()));
        o.settle();
        o.trim();
        assert!((o.len(), o.room()) == (1, 101), "{} {}", o.len(), o.room());
        assert_eq!((o.id(&100), o.values(100)), (Some(100), smallvec::smallvec![7]));
        let again = o.number(5);
        assert!(again <= 101, "{again}");
    }

    /// What several units put out under a key is held once where it is equal.
    #[test]
    fn equal_values_are_shared() {
        use std::sync::Arc;
        let mut o: Outputs<u32, Arc<u32>> = Outputs::new();
        let id = o.number(1);
        (1..=3).for_each(|unit| o.set(id, unit, [Arc::new(unit / 3)].into_iter()));
        let [(_, first), (_, second), (_, third)] = o.sources(&1) else {
            unreachable!("three units put something out")
        };
        assert!(Arc::ptr_eq(first, second));
        assert_eq!((**third, o.values(id)), (1, smallvec::smallvec![Arc::new(0), Arc::new(1)]));
    }
}
