//! The index from tuples to connections.
//!
//! ```text
//!   tuple ──hash──► line: seven entries, and where more of them are ──► connections, where tuples are compared
//! ```
//! A line is one cache line of the processor. It follows from the tuple alone, without the zone: so it can be
//! prefetched before the walk reaches a zone. All zones of a tuple share the line, so chains grow with the number of
//! zones per tuple, which senders of packets cannot raise. Hashes are keyed.
//!
//! The number of lines doubles line by line (linear hashing): once there are too few, each new tuple splits one line
//! into itself and a new one at the end. No packet waits for more than one split.

use super::{Connection, Direction, Tuple, Zone};
use crate::stamps::GenerationTable;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// Entries of a line.
const WAYS: usize = 7;
/// Lines at first.
const FIRST: usize = 64;
/// Mean number of entries in two lines above which lines are split: hardly any line is full then.
const LOAD: usize = 9;
/// Bits of a hash that may choose the line; the bits above depend on the zone, too.
const CHOOSE: u32 = 24;

/// Most connections, as entries hold their slots in 31 bits.
pub(super) const MOST: usize = (1 << 31) - 2;

/// Places of [`Index::arrivals`]. Two tuples rarely share one.
const ARRIVALS: usize = 1 << 14;

/// Entries, filled from the first on: slot and direction of a connection, and in the upper half the tuple's hash; 0 is
/// free. Only a full line has an overflow line, which is not empty.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Line {
    entries: [u64; WAYS],
    /// The number of its overflow line in [`Lines::more`], counted from 1; 0: none.
    next: u64,
}

impl Line {
    fn used(&self) -> usize {
        self.entries.iter().take_while(|e| **e != 0).count()
    }
}

/// Hashes of a tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hash {
    /// With the zone: the upper half of the entry.
    own: u32,
    /// Of the place of its generation ([`Index::arrivals`]).
    arrival: u32,
}

fn entry(hash: u32, slot: u32, d: Direction) -> u64 {
    // Never 0, as slots are below 2^31 - 1.
    u64::from(hash) << 32 | u64::from((slot << 1 | u32::from(d == Direction::Reply)) + 1)
}

fn hash_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

fn connection(entry: u64) -> (u32, Direction) {
    let place = (entry as u32).wrapping_sub(1);
    (place >> 1, if place & 1 == 0 { Direction::Original } else { Direction::Reply })
}

impl Connection {
    /// The tuple of a direction's packets.
    pub(super) fn tuple(&self, d: Direction) -> &Tuple {
        if d == Direction::Original { &self.original } else { &self.reply }
    }
}

/// Lines of entries.
#[derive(Debug)]
struct Lines {
    /// The lines of a power of two, and those of the next that exist.
    main: Vec<Line>,
    /// Mask that chooses among twice that power of two.
    mask: u32,
    /// Overflow lines, and the free ones among them.
    more: Vec<Line>,
    free: Vec<u32>,
    entries: usize,
    /// There are too few lines: each new entry splits one.
    growing: bool,
    /// Entries of the line that is split.
    apart: Vec<u64>,
}

/// A place in a chain: the line, and the first line of its chain.
#[derive(Clone, Copy)]
enum At {
    Main(usize),
    More(usize),
}

impl Lines {
    /// Reserves address space for so many entries.
    fn new(entries: usize) -> Lines {
        let mut main = Vec::new();
        // Growing would copy. If memory cannot be reserved, the vectors grow.
        let _ = main.try_reserve_exact((entries / LOAD * 2).next_power_of_two().clamp(FIRST, 1 << CHOOSE));
        main.resize(FIRST, Line::default());
        let mask = FIRST as u32 * 2 - 1;
        Lines { main, mask, more: Vec::new(), free: Vec::new(), entries: 0, growing: false, apart: Vec::new() }
    }

    /// The number of the line where a hash's chain begins.
    #[inline(always)]
    fn first(&self, hash: u32) -> usize {
        let n = (hash & self.mask) as usize;
        if n < self.main.len() { n } else { (hash & self.mask >> 1) as usize }
    }

    fn line(&self, at: At) -> Option<&Line> {
        match at {
            At::Main(n) => self.main.get(n),
            At::More(n) => self.more.get(n),
        }
    }

    fn line_mut(&mut self, at: At) -> Option<&mut Line> {
        match at {
            At::Main(n) => self.main.get_mut(n),
            At::More(n) => self.more.get_mut(n),
        }
    }

    /// The first entry with this hash that `is` accepts.
    #[inline(always)]
    fn find(&self, hash: u32, mut is: impl FnMut(u64) -> bool) -> Option<u64> {
        let mut line = self.main.get(self.first(hash))?;
        loop {
            // All are compared without a branch for each, as branches could not be predicted.
            let mut same = 0;
            for (i, e) in line.entries.iter().enumerate() {
                same |= u32::from(hash_of(*e) == hash) << i;
            }
            while same != 0 {
                let e = *line.entries.get(same.trailing_zeros() as usize)?;
                if e != 0 && is(e) {
                    return Some(e);
                }
                same &= same - 1;
            }
            line = self.more.get((line.next as usize).wrapping_sub(1))?;
        }
    }

    /// The last line of a chain.
    fn last(&self, hash: u32) -> (At, Option<At>) {
        let (mut at, mut before) = (At::Main(self.first(hash)), None);
        while let Some(n) = self.line(at).map(|l| l.next).filter(|n| *n != 0) {
            before = Some(at);
            at = At::More(n as usize - 1);
        }
        (at, before)
    }

    /// Adds an entry.
    #[inline]
    fn push(&mut self, entry: u64) {
        let n = self.first(hash_of(entry));
        if let Some(l) = self.main.get_mut(n)
            && let Some(e) = l.entries.iter_mut().find(|e| **e == 0)
        {
            *e = entry;
            return;
        }
        self.push_behind(entry);
    }

    #[cold]
    fn push_behind(&mut self, entry: u64) {
        let (at, _) = self.last(hash_of(entry));
        if let Some(e) = self.line_mut(at).and_then(|l| l.entries.iter_mut().find(|e| **e == 0)) {
            *e = entry;
            return;
        }
        let mut new = Line::default();
        new.entries[0] = entry;
        let n = match self.free.pop() {
            Some(n) => n as usize,
            None => {
                self.more.push(new);
                self.more.len() - 1
            }
        };
        if let Some(l) = self.more.get_mut(n) {
            *l = new;
        }
        if let Some(l) = self.line_mut(at) {
            l.next = n as u64 + 1;
        }
    }

    /// The same, and splits a line if there are too few.
    #[inline]
    fn insert(&mut self, entry: u64) {
        self.push(entry);
        self.entries += 1;
        self.growing |= self.entries * 2 > self.main.len() * LOAD;
        if self.growing {
            self.grow();
        }
    }

    /// Splits a line into itself and a new one at the end.
    fn grow(&mut self) {
        let half = (self.mask as usize).div_ceil(2);
        let n = self.main.len() - half;
        if half >= 1 << CHOOSE {
            // All bits of the hash are used: chains grow instead.
            self.growing = false;
            return;
        }
        let mut apart = std::mem::take(&mut self.apart);
        let mut at = At::Main(n);
        while let Some(l) = self.line_mut(at) {
            let Line { entries, next } = std::mem::take(l);
            apart.extend(entries.into_iter().take_while(|e| *e != 0));
            if let At::More(n) = at {
                self.free.push(n as u32);
            }
            match next {
                0 => break,
                n => at = At::More(n as usize - 1),
            }
        }
        self.main.push(Line::default());
        apart.drain(..).for_each(|e| self.push(e));
        self.apart = apart;
        if self.main.len() == 2 * half {
            self.mask = self.mask << 1 | 1;
            self.growing = false;
        }
    }

    /// Removes an entry, if it exists: the last of its chain takes its place.
    fn remove(&mut self, entry: u64) {
        let mut at = At::Main(self.first(hash_of(entry)));
        let place = loop {
            let Some(l) = self.line(at) else { return };
            match (l.entries.iter().position(|e| *e == entry), l.next) {
                (Some(i), _) => break i,
                (None, 0) => return,
                (None, n) => at = At::More(n as usize - 1),
            }
        };
        self.entries -= 1;
        let (last, before) = self.last(hash_of(entry));
        let Some(l) = self.line_mut(last) else { return };
        let Some(i) = l.used().checked_sub(1) else { return };
        let moved = l.entries.get_mut(i).map(std::mem::take).unwrap_or_default();
        if moved != entry
            && let Some(e) = self.line_mut(at).and_then(|l| l.entries.get_mut(place))
        {
            *e = moved;
        }
        if let (0, Some(before), At::More(n)) = (i, before, last) {
            self.free.push(n as u32);
            if let Some(l) = self.line_mut(before) {
                l.next = 0;
            }
        }
    }
}

/// The index. Its hashes are keyed.
#[derive(Debug)]
pub(super) struct Index {
    lines: Lines,
    /// Generations by hash, which move when a tuple is added: where one has not moved, a tuple without a connection
    /// still has none.
    arrivals: GenerationTable,
    seed: [u64; 4],
}

/// Whether an entry belongs to a tuple.
#[inline(always)]
fn is(slots: &[Option<Connection>], e: u64, zone: Zone, t: &Tuple) -> bool {
    let (place, d) = connection(e);
    slots.get(place as usize).and_then(Option::as_ref).is_some_and(|c| c.zone == zone && c.tuple(d) == t)
}

impl Index {
    /// An index of the tuples of so many connections.
    pub(super) fn new(connections: usize) -> Index {
        let seed = std::array::from_fn(|_| RandomState::new().build_hasher().finish());
        Index { lines: Lines::new(connections.saturating_mul(2)), arrivals: GenerationTable::new(ARRIVALS), seed }
    }

    /// A tuple's hash whatever its zone; for [`Index::near`].
    #[inline]
    pub(super) fn anywhere(&self, t: &Tuple) -> u64 {
        let [k0, k1, k2, _] = self.seed;
        let ports = u64::from(t.sport) << 48 | u64::from(t.dport) << 32 | u64::from(t.proto) << 24;
        let rest = u64::from(t.icmp_type) << 16 | u64::from(t.icmp_code) << 8 | u64::from(t.v6);
        let h = folded(t.src as u64 ^ k0, ports ^ rest ^ k1);
        let h = folded(t.dst as u64 ^ h, k2);
        if t.v6 { folded((t.src >> 64) as u64 ^ h, (t.dst >> 64) as u64 ^ k2) } else { h }
    }

    /// A tuple's hash, for the calls below.
    #[inline]
    pub(super) fn hash(&self, zone: Zone, t: &Tuple) -> Hash {
        let [.., k3] = self.seed;
        let line = self.anywhere(t);
        let all = folded(line ^ u64::from(zone.0), k3 | 1);
        let low = (1 << CHOOSE) - 1;
        // A tuple passes few zones with near numbers: multiples of the golden ratio spread them.
        let zoned = ((line >> 32) as u32).wrapping_add(u32::from(zone.0).wrapping_mul(0x9e37_79b1));
        Hash { own: line as u32 & low | zoned & !low, arrival: (all >> 32) as u32 % ARRIVALS as u32 }
    }

    /// Passes the line that a lookup with this hash will read to `near`.
    #[inline]
    pub(super) fn near(&self, anywhere: u64, near: impl Fn(&Line)) {
        self.lines.main.get(self.lines.first(anywhere as u32)).into_iter().for_each(near);
    }

    /// The place and current generation of a tuple.
    pub(super) fn arrivals(&self, zone: Zone, t: &Tuple) -> (u32, u32) {
        let at = self.hash(zone, t).arrival;
        (at, self.arrivals.get(at))
    }

    /// The generations.
    pub(super) fn moves(&self) -> &GenerationTable {
        &self.arrivals
    }

    /// The connection of a tuple, and the direction of the tuple.
    #[inline]
    pub(super) fn find(
        &self,
        slots: &[Option<Connection>],
        hash: Hash,
        zone: Zone,
        t: &Tuple,
    ) -> Option<(u32, Direction)> {
        self.lines.find(hash.own, |e| is(slots, e, zone, t)).map(connection)
    }

    /// Assigns a tuple to a connection, and takes it from another if need be.
    pub(super) fn insert(
        &mut self,
        slots: &[Option<Connection>],
        hash: Hash,
        (zone, t): (Zone, &Tuple),
        slot: u32,
        d: Direction,
    ) {
        self.arrivals.bump(hash.arrival);
        if let Some(old) = self.lines.find(hash.own, |e| is(slots, e, zone, t)) {
            self.lines.remove(old);
        }
        self.lines.insert(entry(hash.own, slot, d));
    }

    /// Removes a tuple of a connection, unless it belongs to another one by now.
    pub(super) fn remove(&mut self, (zone, t): (Zone, &Tuple), slot: u32, d: Direction) {
        self.lines.remove(entry(self.hash(zone, t).own, slot, d));
    }
}

/// Folds a 128-bit product. Without the key nobody can choose the result.
#[inline(always)]
fn folded(a: u64, b: u64) -> u64 {
    let m = u128::from(a).wrapping_mul(u128::from(b));
    m as u64 ^ (m >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn tuple(n: u32) -> Tuple {
        Tuple {
            v6: n & 1 != 0,
            proto: 17,
            src: u128::from(n / 7),
            dst: u128::from(n),
            sport: n as u16,
            dport: 53,
            icmp_type: 0,
            icmp_code: 0,
        }
    }

    fn connection_of(zone: Zone, original: Tuple, reply: Tuple) -> Connection {
        Connection {
            zone,
            original,
            reply,
            mark: 0,
            label: 0,
            replied: false,
            ends: Default::default(),
            phase: super::super::Phase::First,
            window: None,
            translates: Default::default(),
            expires: Default::default(),
            owner: 0,
            epoch: 0,
            from: 0,
            orphan: false,
            gave_way: false,
            generation: 0,
            version: 0,
        }
    }

    /// An index beside the plain map that it is to be the same as.
    struct Both {
        index: Index,
        map: HashMap<(Zone, Tuple), (u32, Direction)>,
        slots: Vec<Option<Connection>>,
    }

    impl Both {
        fn new() -> Both {
            Both { index: Index::new(16), map: HashMap::new(), slots: Vec::new() }
        }

        /// As [`super::super::Conntrack::store`] does.
        fn come(&mut self, zone: Zone, original: Tuple, reply: Tuple) {
            let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
            self.slots.resize(self.slots.len().max(slot + 1), None);
            self.slots[slot] = Some(connection_of(zone, original, reply));
            for (t, d) in [(reply, Direction::Reply), (original, Direction::Original)] {
                let hash = self.index.hash(zone, &t);
                self.index.insert(&self.slots, hash, (zone, &t), slot as u32, d);
                self.map.insert((zone, t), (slot as u32, d));
            }
        }

        fn go(&mut self, slot: u32) {
            let Some(c) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
            for d in [Direction::Original, Direction::Reply] {
                self.index.remove((c.zone, c.tuple(d)), slot, d);
                let key = (c.zone, *c.tuple(d));
                if self.map.get(&key) == Some(&(slot, d)) {
                    self.map.remove(&key);
                }
            }
        }

        fn find(&self, zone: Zone, t: &Tuple) -> Option<(u32, Direction)> {
            self.index.find(&self.slots, self.index.hash(zone, t), zone, t)
        }

        /// Everything is found that is there, chains are as they should be, and nothing is there twice.
        fn check(&self) {
            for ((zone, t), found) in &self.map {
                assert_eq!(self.find(*zone, t), Some(*found));
            }
            let l = &self.index.lines;
            let behind: usize = l.main.iter().map(|first| chain(l, first)).sum();
            assert_eq!(behind + l.free.len(), l.more.len(), "no line is lost");
            let all: usize = l.main.iter().map(|first| entries(l, first)).sum();
            assert_eq!((all, l.entries), (self.map.len(), self.map.len()));
        }
    }

    fn behind<'a>(l: &'a Lines, first: &'a Line) -> impl Iterator<Item = &'a Line> {
        std::iter::successors(Some(first), |x| l.more.get((x.next as usize).wrapping_sub(1)))
    }

    fn entries(l: &Lines, first: &Line) -> usize {
        behind(l, first).map(Line::used).sum()
    }

    /// Lines behind a first one; all but the last are full, and none behind it is empty.
    fn chain(l: &Lines, first: &Line) -> usize {
        for x in behind(l, first) {
            assert!(x.next == 0 || x.used() == WAYS);
            assert!(x.entries.iter().skip(x.used()).all(|e| *e == 0));
        }
        assert!(behind(l, first).skip(1).all(|x| x.used() > 0));
        behind(l, first).count() - 1
    }

    proptest! {
        /// Whatever comes and goes, in few tuples and zones, so that connections take tuples from each other: what is
        /// found is what a plain map says.
        #[test]
        fn the_index_is_a_map(ops in proptest::collection::vec((0u16..40, 0u32..24, 0u32..24, any::<bool>()), 1..600)) {
            let mut b = Both::new();
            for (zone, x, y, goes) in ops {
                if goes {
                    b.go(u32::from(zone) * x % 97);
                } else {
                    b.come(Zone(zone % 20), tuple(x), tuple(y));
                }
                prop_assert_eq!(b.find(Zone(zone), &tuple(y)), b.map.get(&(Zone(zone), tuple(y))).copied());
            }
            b.check();
        }
    }

    /// It doubles many times, and shrinks to nothing: each tuple costs a look at few lines, and nothing is lost on the
    /// way.
    #[test]
    fn growing_moves_one_line_at_a_time() {
        const N: u32 = 40_000;
        let mut b = Both::new();
        let mut most = 0;
        for n in 0..N {
            let (before, slot) = (b.index.lines.main.len(), b.slots.len() as u32);
            let (original, reply) = (tuple(2 * n), tuple(2 * n + 1));
            b.slots.push(Some(connection_of(Zone(1), original, reply)));
            for (t, d) in [(reply, Direction::Reply), (original, Direction::Original)] {
                b.index.insert(&b.slots, b.index.hash(Zone(1), &t), (Zone(1), &t), slot, d);
                b.map.insert((Zone(1), t), (slot, d));
            }
            let l = &b.index.lines;
            assert!(l.main.len() <= before + 2, "a line for each tuple at most");
            assert!(l.entries * 2 <= l.main.len() * (LOAD + 3), "as many lines as they need");
            most = most.max(l.more.len());
            if n % 9973 == 0 {
                b.check();
            }
        }
        assert!(most < b.index.lines.main.len() / 4, "few lines are full: {most} of {}", b.index.lines.main.len());
        b.check();
        (0..N).for_each(|slot| b.go(slot));
        b.check();
        assert!(b.map.is_empty());
    }

    /// All zones of a tuple have the same line, and neighbouring addresses and zones are told apart.
    #[test]
    fn hashes_tell_tuples_apart() {
        let index = Index::new(16);
        let t = tuple(4);
        let mut seen = std::collections::HashSet::new();
        for (zone, dst) in (0..40).flat_map(|z| (0..250).map(move |d| (z, d))) {
            let own = index.hash(Zone(zone), &Tuple { dst, ..t }).own;
            assert_eq!(own % 64, index.anywhere(&Tuple { dst, ..t }) as u32 % 64);
            seen.insert(own);
        }
        assert!(seen.len() > 9_000, "{} of 10,000", seen.len());
    }
}
