//! A hash table in pieces that its copies share: a copy takes over the pieces, and copies one of them only when it
//! changes it. So a change to the copy of a table of 100,000 flows costs what some dozens of flows do.
//!
//! ```text
//!   hash ──► upper half: which piece ──► lower half, and the upper bits: where in it
//! ```
//! The number of pieces grows one by one (linear hashing): a new entry splits one piece at most.

use hashbrown::HashTable;
use std::sync::Arc;

/// Mean number of entries of a piece above which one is split.
const LOAD: usize = 32;

/// See the module. Whoever adds entries says how they are hashed.
#[derive(Clone, Debug)]
pub(super) struct Shards<T> {
    pieces: Vec<Arc<HashTable<T>>>,
    len: usize,
}

impl<T> Default for Shards<T> {
    fn default() -> Shards<T> {
        Shards { pieces: Vec::new(), len: 0 }
    }
}

impl<T: Clone> Shards<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flat_map(|p| p.iter())
    }

    /// The number of the piece for a hash, among so many.
    #[inline]
    fn place(hash: u64, pieces: usize) -> usize {
        let (h, all) = ((hash >> 32) as usize, pieces.next_power_of_two());
        let n = h & (all - 1);
        if n < pieces { n } else { n - all / 2 }
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&T> {
        self.pieces.get(Self::place(hash, self.pieces.len()))?.find(hash, is)
    }

    fn piece_mut(&mut self, hash: u64) -> Option<&mut HashTable<T>> {
        let n = Self::place(hash, self.pieces.len());
        self.pieces.get_mut(n).map(Arc::make_mut)
    }

    /// The entry that `is` accepts, to change it.
    pub(super) fn find_mut(&mut self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.piece_mut(hash)?.find_mut(hash, is)
    }

    /// Adds an entry that is not there yet.
    pub(super) fn insert_unique(&mut self, hash: u64, new: T, hash_of: impl Fn(&T) -> u64) {
        self.len += 1;
        if self.len > self.pieces.len() * LOAD {
            self.split(&hash_of);
        }
        if let Some(p) = self.piece_mut(hash) {
            p.insert_unique(hash, new, hash_of);
        }
    }

    /// Removes the entry that `is` accepts.
    pub(super) fn remove(&mut self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<T> {
        let (old, _) = self.piece_mut(hash)?.find_entry(hash, is).ok()?.remove();
        self.len -= 1;
        Some(old)
    }

    /// Adds a piece, into which the entries of another go that are its own by now.
    fn split(&mut self, hash_of: impl Fn(&T) -> u64) {
        let n = self.pieces.len();
        let moves = |t: &mut T| Self::place(hash_of(t), n + 1) == n;
        let from = n.checked_ilog2().and_then(|log| self.pieces.get_mut(n - (1 << log)));
        let mut new = HashTable::new();
        for t in from.into_iter().flat_map(|p| Arc::make_mut(p).extract_if(moves)) {
            new.insert_unique(hash_of(&t), t, &hash_of);
        }
        self.pieces.push(Arc::new(new));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::mix;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Entries are a number and what it stands for.
    type Entry = (u32, u32);

    fn hash_of((n, _): &Entry) -> u64 {
        mix(u64::from(*n) + 1)
    }

    fn set(s: &mut Shards<Entry>, n: u32, v: u32) {
        let hash = hash_of(&(n, v));
        match s.find_mut(hash, |e| e.0 == n) {
            Some(e) => e.1 = v,
            None => s.insert_unique(hash, (n, v), hash_of),
        }
    }

    fn holds(s: &Shards<Entry>, map: &BTreeMap<u32, u32>, most: u32) {
        let found = |n: u32| s.find(hash_of(&(n, 0)), |e| e.0 == n).map(|e| e.1);
        assert!((0..most).all(|n| found(n) == map.get(&n).copied()));
        let mut all: Vec<Entry> = s.iter().copied().collect();
        all.sort_unstable();
        assert_eq!((all, s.len()), (map.iter().map(|(n, v)| (*n, *v)).collect(), map.len()));
    }

    proptest! {
        /// A table, and a copy that others change, are what a plain map is.
        #[test]
        fn copies_are_maps_of_their_own(
            first in prop::collection::vec((0u32..3000, any::<bool>()), 0..3000),
            then in prop::collection::vec((0u32..3000, any::<bool>(), any::<bool>()), 0..300),
        ) {
            let (mut s, mut map) = (Shards::default(), BTreeMap::new());
            for (i, (n, goes)) in first.into_iter().enumerate() {
                if goes && i % 3 == 0 {
                    prop_assert_eq!(s.remove(hash_of(&(n, 0)), |e: &Entry| e.0 == n).map(|e| e.1), map.remove(&n));
                } else {
                    set(&mut s, n, i as u32);
                    map.insert(n, i as u32);
                }
            }
            let (mut copy, mut its) = (s.clone(), map.clone());
            for (i, (n, goes, here)) in then.into_iter().enumerate() {
                let (s, map) = if here { (&mut s, &mut map) } else { (&mut copy, &mut its) };
                if goes {
                    prop_assert_eq!(s.remove(hash_of(&(n, 0)), |e| e.0 == n).map(|e| e.1), map.remove(&n));
                } else {
                    set(s, n, 10_000 + i as u32);
                    map.insert(n, 10_000 + i as u32);
                }
            }
            holds(&s, &map, 3000);
            holds(&copy, &its, 3000);
        }
    }

    /// A change to a copy copies one piece, or two where it splits one.
    #[test]
    fn a_change_copies_few_entries() {
        let mut s = Shards::default();
        (0..100_000).for_each(|n| set(&mut s, n, 0));
        for n in [5, 100_001] {
            let mut copy = s.clone();
            set(&mut copy, n, 1);
            let own = copy.pieces.iter().filter(|p| !s.pieces.iter().any(|q| Arc::ptr_eq(p, q)));
            let copied: usize = own.map(|p| p.len()).sum();
            assert!((1..=6 * LOAD).contains(&copied), "{copied}");
        }
        let most = s.pieces.iter().map(|p| p.len()).max();
        assert!(most < Some(4 * LOAD), "{most:?}");
    }
}
