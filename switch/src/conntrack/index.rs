//! Which connection a tuple belongs to. Parts of the index grow by themselves, so that no packet waits for millions of
//! entries to move; an entry is eight bytes, and the tuples are compared where the connections are.

use super::{Connection, Direction, Tuple};
use crate::cache::live::Moves;
use hashbrown::HashTable;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Parts.
const PARTS: usize = 256;

/// Places of [`Index::arrivals`]. Two tuples rarely share one.
const ARRIVALS: usize = 1 << 14;

/// A connection's place and one of its directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    place: u32,
    hash: u32,
}

/// The index; nobody outside can foresee its hashes.
#[derive(Debug)]
pub(super) struct Index {
    parts: Vec<HashTable<Entry>>,
    /// How many tuples came, by hash: where that has not moved, a tuple that had no connection has none.
    arrivals: Moves,
    seed: [u64; 2],
}

fn reply(d: Direction) -> u32 {
    u32::from(d == Direction::Reply)
}

fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn direction(place: u32) -> Direction {
    if place & 1 == 0 { Direction::Original } else { Direction::Reply }
}

impl Entry {
    #[inline]
    fn is(&self, slots: &[Option<Connection>], hash: u32, zone: u16, t: &Tuple) -> bool {
        self.hash == hash
            && slots
                .get((self.place >> 1) as usize)
                .and_then(Option::as_ref)
                .is_some_and(|c| c.zone == zone && c.tuple(direction(self.place)) == t)
    }
}

impl Connection {
    /// The tuple of a direction's packets.
    pub(super) fn tuple(&self, d: Direction) -> &Tuple {
        if d == Direction::Original { &self.original } else { &self.reply }
    }
}

impl Index {
    pub(super) fn new() -> Index {
        let seed = std::array::from_fn(|_| RandomState::new().build_hasher().finish());
        Index { parts: (0..PARTS).map(|_| HashTable::new()).collect(), arrivals: Moves::new(ARRIVALS), seed }
    }

    /// A tuple's hash, for the calls below.
    #[inline]
    pub(super) fn hash(&self, zone: u16, t: &Tuple) -> u64 {
        let [k0, k1] = self.seed;
        let fold = |a: u64, b: u64| {
            let m = u128::from(a).wrapping_mul(u128::from(b | 1));
            m as u64 ^ (m >> 64) as u64
        };
        let ports = u64::from(t.sport) << 48 | u64::from(t.dport) << 32 | u64::from(t.proto) << 24;
        let rest = u64::from(t.icmp_type) << 16 | u64::from(t.icmp_code) << 8 | u64::from(t.v6);
        let h = fold(ports ^ rest ^ k0, u64::from(zone) ^ k1);
        let h = fold(t.src as u64 ^ h, t.dst as u64 ^ k1);
        if t.v6 { fold((t.src >> 64) as u64 ^ h, (t.dst >> 64) as u64 ^ k0) } else { h }
    }

    fn part(hash: u64) -> usize {
        hash as usize & (PARTS - 1)
    }

    fn arrival(hash: u64) -> usize {
        (hash >> 8) as usize & (ARRIVALS - 1)
    }

    /// The place where the arrival of a tuple is counted, and the count.
    pub(super) fn arrivals(&self, zone: u16, t: &Tuple) -> (u32, u32) {
        let at = Self::arrival(self.hash(zone, t));
        (at as u32, self.arrivals.get(at as u32))
    }

    /// The counts.
    pub(super) fn moves(&self) -> &Moves {
        &self.arrivals
    }

    /// The connection of a tuple with this hash, and in which direction it is the tuple's.
    #[inline]
    pub(super) fn find(
        &self,
        slots: &[Option<Connection>],
        hash: u64,
        zone: u16,
        t: &Tuple,
    ) -> Option<(u32, Direction)> {
        let short = (hash >> 32) as u32;
        let e = self.parts.get(Self::part(hash))?.find(spread(short), |e| e.is(slots, short, zone, t))?;
        Some((e.place >> 1, direction(e.place)))
    }

    /// A tuple becomes that of a connection; if it was another's, that one loses it.
    pub(super) fn insert(
        &mut self,
        slots: &[Option<Connection>],
        hash: u64,
        (zone, t): (u16, &Tuple),
        slot: u32,
        d: Direction,
    ) {
        let short = (hash >> 32) as u32;
        let new = Entry { place: slot << 1 | reply(d), hash: short };
        self.arrivals.bump(Self::arrival(hash) as u32);
        if let Some(p) = self.parts.get_mut(Self::part(hash)) {
            p.entry(spread(short), |e| e.is(slots, short, zone, t), |e| spread(e.hash)).insert(new);
        }
    }

    /// A tuple is no more that of a connection; what it is of another stays.
    pub(super) fn remove(&mut self, (zone, t): (u16, &Tuple), slot: u32, d: Direction) {
        let hash = self.hash(zone, t);
        let e = Entry { place: slot << 1 | reply(d), hash: (hash >> 32) as u32 };
        if let Some(found) =
            self.parts.get_mut(Self::part(hash)).and_then(|p| p.find_entry(spread(e.hash), |x| *x == e).ok())
        {
            found.remove();
        }
    }
}
