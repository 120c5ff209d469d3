//! An index from keys to rows.

use ovsdb_rs::Uuid;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// An index from a key to rows, in the order of their UUIDs. Most keys have one row.
#[derive(Clone, Debug)]
pub struct Index<K>(FxHashMap<K, Vec<Uuid>>);

impl<K> Default for Index<K> {
    fn default() -> Index<K> {
        Index(FxHashMap::default())
    }
}

impl<K: Eq + Hash + Clone> Index<K> {
    /// Moves a row from one key to another. Tells whether the keys differ.
    pub fn shift(&mut self, id: Uuid, old: Option<K>, new: Option<K>) -> bool {
        if old == new {
            return false;
        }
        if let Some(k) = old
            && let Some(set) = self.0.get_mut(&k)
        {
            if let Ok(at) = set.binary_search(&id) {
                set.remove(at);
            }
            if set.is_empty() {
                self.0.remove(&k);
            }
        }
        if let Some(k) = new {
            let set = self.0.entry(k).or_insert_with(|| Vec::with_capacity(1));
            if let Err(at) = set.binary_search(&id) {
                set.insert(at, id);
            }
        }
        true
    }

    /// The rows under a key.
    pub fn get<'a>(&'a self, key: &K) -> impl Iterator<Item = Uuid> + use<'a, K> {
        self.0.get(key).into_iter().flatten().copied()
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }
}
