//! The relation of all outputs: key → values, with the unit that each came from.

use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hash};

/// All outputs at present.
pub struct Outputs<K, V> {
    table: HashTable<u32>,
    entries: Vec<Option<Entry<K, V>>>,
    free: Vec<u32>,
    touched: FxHashMap<u32, Vec<V>>,
    hasher: FxBuildHasher,
}

struct Entry<K, V> {
    key: K,
    hash: u64,
    /// Nearly always one.
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
    pub before: Vec<V>,
    /// The values now; empty where the key is gone.
    pub after: Vec<V>,
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

    /// Adds one unit's output and gives the key's number.
    pub(crate) fn add(&mut self, key: K, value: V, unit: u32) -> u32 {
        let hash = self.hasher.hash_one(&key);
        let entries = &self.entries;
        let same = |&id: &u32| entries.get(id as usize).and_then(Option::as_ref).is_some_and(|e| e.key == key);
        let id = match self.table.find(hash, same) {
            Some(&id) => id,
            None => self.insert(key, hash),
        };
        self.touch(id);
        if let Some(Some(e)) = self.entries.get_mut(id as usize) {
            e.from.push((unit, value));
        }
        id
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

    /// Takes back all that one unit put out under a key.
    pub(crate) fn remove(&mut self, id: u32, unit: u32) {
        self.touch(id);
        if let Some(Some(e)) = self.entries.get_mut(id as usize) {
            e.from.retain(|(u, _)| *u != unit);
        }
    }

    /// What one unit put out under keys of these numbers.
    pub(crate) fn of<'a>(&'a self, keys: &'a [u32], unit: u32) -> impl Iterator<Item = (&'a K, &'a V)> {
        let entries = keys.iter().filter_map(|id| self.entries.get(*id as usize)?.as_ref());
        entries.flat_map(move |e| e.from.iter().filter(move |(u, _)| *u == unit).map(|(_, v)| (&e.key, v)))
    }

    fn touch(&mut self, id: u32) {
        let entries = &self.entries;
        self.touched.entry(id).or_insert_with(|| values(entries, id));
    }

    /// The changes since the last [`Outputs::settle`].
    pub(crate) fn changes(&self) -> Vec<Change<'_, K, V>> {
        let mut ids: Vec<_> = self.touched.iter().collect();
        ids.sort_unstable_by_key(|(id, _)| **id);
        ids.into_iter()
            .filter_map(|(id, before)| {
                let e = self.entries.get(*id as usize)?.as_ref()?;
                let after = values(&self.entries, *id);
                (after != *before).then(|| Change { id: *id, key: &e.key, before: before.clone(), after })
            })
            .collect()
    }

    /// Forgets what has changed, and frees keys that have no value left.
    pub(crate) fn settle(&mut self) {
        for (id, _) in self.touched.drain() {
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
        self.entries.get(id as usize)?.as_ref().map(|e| &e.key)
    }

    /// The values under a key's number, sorted, each once.
    pub fn values(&self, id: u32) -> Vec<V> {
        values(&self.entries, id)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(crate) fn sources(&self, key: &K) -> &[(u32, V)] {
        let hash = self.hasher.hash_one(key);
        let entry = |id: u32| self.entries.get(id as usize).and_then(Option::as_ref);
        let found = self.table.find(hash, |&id| entry(id).is_some_and(|e| e.key == *key));
        found.and_then(|&id| entry(id)).map_or(&[], |e| &e.from)
    }
}

fn values<K, V: Ord + Clone>(entries: &[Option<Entry<K, V>>], id: u32) -> Vec<V> {
    let from = entries.get(id as usize).and_then(Option::as_ref).map_or(&[][..], |e| &e.from);
    let mut values: Vec<V> = from.iter().map(|(_, v)| v.clone()).collect();
    values.sort_unstable();
    values.dedup();
    values
}
