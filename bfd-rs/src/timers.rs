//! When each of many sessions is due next: the soonest is found without a look at the others.

use crate::Timer;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// One time for each key.
#[derive(Clone, Debug)]
pub struct Timers<K> {
    at: HashMap<K, Timer>,
    /// The same, by time.
    order: BTreeSet<(Timer, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Timers<K> {
        Timers { at: HashMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + Hash> Timers<K> {
    /// A key is due then, and no longer when it was before.
    pub fn set(&mut self, key: K, at: Timer) {
        match self.at.insert(key, at) {
            Some(before) if before == at => return,
            Some(before) => drop(self.order.remove(&(before, key))),
            None => {}
        }
        self.order.insert((at, key));
    }

    /// A key is due no more.
    pub fn remove(&mut self, key: K) {
        if let Some(at) = self.at.remove(&key) {
            self.order.remove(&(at, key));
        }
    }

    /// The soonest time of all.
    pub fn next(&self) -> Option<Timer> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes out the key that has been due for longest, if any is due by now.
    pub fn pop(&mut self, now: Timer) -> Option<K> {
        let (at, key) = *self.order.first()?;
        (at <= now).then(|| {
            self.remove(key);
            key
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside a list that is searched as a whole.
        #[test]
        fn the_soonest_is_that_of_a_search(steps in prop::collection::vec((0u8..4, 0u32..8, 0u64..20), 0..200)) {
            let (mut fast, mut slow) = (Timers::default(), Vec::<(Timer, u32)>::new());
            for (what, key, at) in steps {
                match what {
                    0 | 1 => {
                        fast.set(key, at);
                        slow.retain(|(_, k)| *k != key);
                        slow.push((at, key));
                    }
                    2 => {
                        fast.remove(key);
                        slow.retain(|(_, k)| *k != key);
                    }
                    _ => {
                        let due = slow.iter().copied().filter(|(t, _)| *t <= at).min();
                        slow.retain(|e| Some(*e) != due);
                        prop_assert_eq!(fast.pop(at), due.map(|(_, k)| k));
                    }
                }
                prop_assert_eq!(fast.next(), slow.iter().map(|(t, _)| *t).min());
            }
        }
    }
}
