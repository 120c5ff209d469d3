//! When each of many sessions is due next: a timer wheel that they share.
//!
//! ```text
//!            cursor                                    cursor + SLOTS
//!  ────────────┼───┬───┬───┬───┬─ … ─┬───┬───┬───┬───┬───────┼──────────►  time, in steps
//!   what is    │   │ a │   │ b │     │   │ d │   │   │       │   far: in order of time
//!   overdue ─► │   │ c │   │   │     │   │   │   │   │       │
//! ```
//! A slot holds the keys that are due within a step of time, in no order. A key is set, moved and taken out in constant time,
//! however many there are.

use crate::Timer;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::hash::Hash;

/// log2 of a step, in the unit of the times: a millisecond, where these are microseconds.
const STEP: u32 = 10;
/// Slots: with microseconds they reach a second ahead, the slowest rate of sessions that come up (RFC 5880 section 6.8.3).
const SLOTS: usize = 1024;
/// Slots that a word of [`Timers::filled`] tells of.
const BITS: usize = u64::BITS as usize;

/// When a key is due, and where in its slot it is; none: it is in [`Timers::far`].
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Timer,
    place: Option<(u16, u32)>,
}

/// One time for each key.
#[derive(Clone, Debug)]
pub struct Timers<K> {
    entries: FxHashMap<K, Entry>,
    slots: Box<[Vec<(Timer, K)>]>,
    /// A bit for each slot that is not empty.
    filled: [u64; SLOTS / BITS],
    /// The step of the first slot: none of an earlier one holds a key.
    cursor: u64,
    /// Keys whose time was too far away when it was set.
    far: BTreeSet<(Timer, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Timers<K> {
        Timers {
            entries: FxHashMap::default(),
            slots: std::iter::repeat_with(Vec::new).take(SLOTS).collect(),
            filled: [0; SLOTS / BITS],
            cursor: 0,
            far: BTreeSet::new(),
        }
    }
}

impl<K: Copy + Ord + Hash> Timers<K> {
    /// A key is due then, and no longer when it was before.
    pub fn set(&mut self, key: K, at: Timer) {
        match self.entries.get(&key) {
            Some(e) if e.at == at => return,
            Some(_) => self.remove(key),
            None => {}
        }
        // What is overdue is due first.
        let step = (at >> STEP).max(self.cursor);
        let mut place = None;
        if step - self.cursor >= SLOTS as u64 {
            self.far.insert((at, key));
        } else {
            let n = step as usize % SLOTS;
            if let (Some(slot), Some(word)) = (self.slots.get_mut(n), self.filled.get_mut(n / BITS)) {
                place = Some((n as u16, slot.len() as u32));
                slot.push((at, key));
                *word |= 1 << (n % BITS);
            }
        }
        self.entries.insert(key, Entry { at, place });
    }

    /// A key is due no more.
    pub fn remove(&mut self, key: K) {
        let Some(e) = self.entries.remove(&key) else { return };
        let Some((n, i)) = e.place else {
            self.far.remove(&(e.at, key));
            return;
        };
        let n = usize::from(n);
        let (Some(slot), Some(word)) = (self.slots.get_mut(n), self.filled.get_mut(n / BITS)) else { return };
        slot.swap_remove(i as usize);
        // The last one of the slot is in its place.
        let moved = slot.get(i as usize).and_then(|(_, k)| self.entries.get_mut(k));
        moved.into_iter().for_each(|m| m.place = Some((n as u16, i)));
        if slot.is_empty() {
            *word &= !(1 << (n % BITS));
        }
    }

    /// The soonest time of all.
    pub fn next(&self) -> Option<Timer> {
        let near = self.first().and_then(|n| self.slots.get(n)?.iter().map(|(at, _)| *at).min());
        near.into_iter().chain(self.far.first().map(|(at, _)| *at)).min()
    }

    /// Takes out a key that is due by now, if any is: those of an earlier step before those of a later one.
    pub fn pop(&mut self, now: Timer) -> Option<K> {
        let near = self.first();
        let step = |n: usize| self.cursor + (n as u64).wrapping_sub(self.cursor) % SLOTS as u64;
        let far = self.far.first().copied().filter(|(at, _)| *at <= now);
        if let Some((at, key)) = far
            && near.is_none_or(|n| at >> STEP < step(n))
        {
            self.remove(key);
            return Some(key);
        }
        // Where all of a slot are due, the last one is.
        let due = near.and_then(|n| self.slots.get(n)?.iter().rev().find(|(at, _)| *at <= now)).map(|(_, key)| *key);
        if let Some(n) = near {
            // The slots before it are empty, and so they stay unless a time is set that has passed.
            self.cursor = step(n).min(now >> STEP).max(self.cursor);
        } else {
            self.cursor = self.cursor.max(now >> STEP);
        }
        let key = due.or(far.map(|(_, key)| key))?;
        self.remove(key);
        Some(key)
    }

    /// The first slot, from the cursor on, that holds a key.
    fn first(&self) -> Option<usize> {
        let begin = self.cursor as usize % SLOTS;
        let words = self.filled.len();
        // The word of the cursor comes twice: its bits from the cursor on first, those before it last.
        (0..=words).find_map(|i| {
            let w = (begin / BITS + i) % words;
            let before = (1 << (begin % BITS)) - 1;
            let wanted = match i {
                0 => !before,
                i if i == words => before,
                _ => u64::MAX,
            };
            let bits = self.filled.get(w)? & wanted;
            (bits != 0).then(|| w * BITS + bits.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Steps of a test: what is done, with which key, and how far from now.
    fn steps() -> impl Strategy<Value = Vec<(u8, u32, u64)>> {
        // Within a step, within the wheel, beyond it.
        let ahead = prop_oneof![0u64..3000, 0u64..1_200_000, 0u64..5_000_000];
        prop::collection::vec((0u8..6, 0u32..40, ahead), 0..300)
    }

    proptest! {
        /// Beside a sorted map that is searched as a whole.
        #[test]
        fn keys_come_when_they_are_due(steps in steps()) {
            // Of each key the time, and the step that it counts for: what is overdue when it is set is due first.
            let (mut fast, mut slow, mut now) = (Timers::default(), BTreeMap::<u32, (Timer, u64)>::new(), 0u64);
            for (what, key, ahead) in steps {
                match what {
                    0..=2 => {
                        // Some are overdue when they are set.
                        let at = (now + ahead).saturating_sub(if what == 2 { 2_000_000 } else { 0 });
                        if slow.get(&key).is_none_or(|(before, _)| *before != at) {
                            slow.insert(key, (at, (at >> STEP).max(fast.cursor)));
                        }
                        fast.set(key, at);
                    }
                    3 => {
                        fast.remove(key);
                        slow.remove(&key);
                    }
                    _ => {
                        now += ahead;
                        while let Some(k) = fast.pop(now) {
                            let (at, step) = slow.remove(&k).expect("a key that was set");
                            prop_assert!(at <= now, "{k} is due at {at}, not at {now}");
                            prop_assert!(slow.values().all(|(_, s)| *s >= step), "{k} of {step} before {slow:?}");
                        }
                        prop_assert!(slow.values().all(|(at, _)| *at > now), "{slow:?} at {now}");
                    }
                }
                prop_assert_eq!(fast.next(), slow.values().map(|(at, _)| *at).min());
            }
        }
    }

    #[test]
    fn of_those_that_wait_the_earlier_step_comes_first() {
        let mut t = Timers::default();
        for (key, at) in [(1, 900_000), (2, 100_000), (3, 3_000_000), (4, 100_001), (5, 500_000)] {
            t.set(key, at);
        }
        assert_eq!((t.next(), t.pop(99_999)), (Some(100_000), None));
        assert_eq!(t.pop(100_000), Some(2));
        t.set(2, 2_000_000);
        let all: Vec<u32> = std::iter::from_fn(|| t.pop(4_000_000)).collect();
        assert_eq!(all, [4, 5, 1, 2, 3]);
        assert_eq!(t.next(), None);
    }
}
