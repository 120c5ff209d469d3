//! Who looks at a thing: nearly always a few units, sometimes tens of thousands.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// The numbers of units, each once.
#[derive(Debug)]
pub(crate) enum Readers {
    /// Searched one by one.
    Few(SmallVec<[u32; 4]>),
    /// Found by their number.
    Many(Box<FxHashSet<u32>>),
}

/// How many are searched one by one at most.
const FEW: usize = 32;

impl Default for Readers {
    fn default() -> Readers {
        Readers::Few(SmallVec::new())
    }
}

impl Readers {
    /// Adds a unit that is not among them.
    pub(crate) fn add(&mut self, unit: u32) {
        match self {
            Readers::Few(list) if list.len() < FEW => list.push(unit),
            Readers::Few(list) => {
                let all = list.iter().copied().chain([unit]).collect();
                *self = Readers::Many(Box::new(all));
            }
            Readers::Many(set) => drop(set.insert(unit)),
        }
    }

    /// Takes a unit out.
    pub(crate) fn remove(&mut self, unit: u32) {
        match self {
            Readers::Few(list) => {
                if let Some(i) = list.iter().position(|x| *x == unit) {
                    list.swap_remove(i);
                }
            }
            Readers::Many(set) => {
                set.remove(&unit);
                // Well below the limit, so that one that comes and goes does not make and unmake a set each time.
                if set.len() < FEW / 2 {
                    *self = Readers::Few(set.iter().copied().collect());
                }
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Readers::Few(list) => list.is_empty(),
            Readers::Many(set) => set.is_empty(),
        }
    }

    /// All of them, in no order.
    pub(crate) fn to_vec(&self) -> SmallVec<[u32; 8]> {
        match self {
            Readers::Few(list) => list.iter().copied().collect(),
            Readers::Many(set) => set.iter().copied().collect(),
        }
    }

    /// Gives back room that is not used.
    pub(crate) fn trim(&mut self) {
        match self {
            Readers::Few(list) => list.shrink_to_fit(),
            Readers::Many(set) => set.shrink_to_fit(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn few_and_many_hold_the_same() {
        let (mut readers, mut plain) = (Readers::default(), BTreeSet::new());
        let mut check = |readers: &mut Readers, unit: u32, add: bool| {
            if add {
                readers.add(unit);
                plain.insert(unit);
            } else {
                readers.remove(unit);
                plain.remove(&unit);
            }
            assert_eq!(readers.to_vec().into_iter().collect::<BTreeSet<_>>(), plain);
            assert_eq!(readers.is_empty(), plain.is_empty());
        };
        (0..100).for_each(|n| check(&mut readers, n, true));
        assert!(matches!(readers, Readers::Many(_)), "so many are not searched one by one");
        check(&mut readers, 1000, false);
        (0..95).rev().for_each(|n| check(&mut readers, n, false));
        assert!(matches!(readers, Readers::Few(_)));
        readers.trim();
        (95..100).for_each(|n| check(&mut readers, n, false));
        (0..40).for_each(|n| check(&mut readers, n, true));
    }
}
