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
//!
//! Threads that share the table ([`super::joint`]) hold the first line of a chain while they look at it or add to it. They
//! neither split lines nor remove entries: for that a thread has the table alone, and holds no line.

use super::slots::Slots;
use super::{Connection, Direction, Tuple, Zone};
use crate::stamps::GenerationTable;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Bit of [`Line::next`]: a thread holds the chain.
const HELD: u64 = 1 << 63;

/// Entries, filled from the first on: slot and direction of a connection, and in the upper half the tuple's hash; 0 is
/// free. Only a full line has an overflow line, which is not empty.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Line {
    entries: [AtomicU64; WAYS],
    /// The number of its overflow line in [`Lines::more`], counted from 1; 0: none. In the first line of a chain with
    /// [`HELD`].
    next: AtomicU64,
}

impl Line {
    #[inline(always)]
    fn entry(&self, i: usize) -> u64 {
        self.entries.get(i).map_or(0, |e| e.load(Ordering::Relaxed))
    }

    fn set_entry(&self, i: usize, entry: u64) {
        if let Some(e) = self.entries.get(i) {
            e.store(entry, Ordering::Relaxed);
        }
    }

    fn used(&self) -> usize {
        (0..WAYS).take_while(|i| self.entry(*i) != 0).count()
    }

    #[inline(always)]
    fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed) & !HELD
    }

    /// Nobody else changes it meanwhile, as its chain is held or the table is.
    fn set_next(&self, next: u64) {
        self.next.store(self.next.load(Ordering::Relaxed) & HELD | next, Ordering::Relaxed);
    }

    /// Adds an entry, if there is room.
    #[inline]
    fn add(&self, entry: u64) -> bool {
        let free = self.entries.iter().find(|e| e.load(Ordering::Relaxed) == 0);
        free.into_iter().for_each(|e| e.store(entry, Ordering::Relaxed));
        free.is_some()
    }

    fn clear(&self) {
        self.entries.iter().chain([&self.next]).for_each(|e| e.store(0, Ordering::Relaxed));
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

/// A place in a chain: its first line, or one behind it.
#[derive(Clone, Copy)]
enum At {
    Main(usize),
    More(usize),
}

/// Where a chain goes on.
fn behind(next: u64) -> Option<At> {
    next.checked_sub(1).map(|n| At::More(n as usize))
}

impl Lines {
    /// Reserves address space for so many entries.
    fn new(entries: usize) -> Lines {
        let mut main = Vec::new();
        // Growing would copy. If memory cannot be reserved, the vectors grow.
        let _ = main.try_reserve_exact((entries / LOAD * 2).next_power_of_two().clamp(FIRST, 1 << CHOOSE));
        main.resize_with(FIRST, Line::default);
        let mask = FIRST as u32 * 2 - 1;
        let (more, free, apart) = (Vec::new(), Vec::new(), Vec::new());
        Lines { main, mask, more, free, entries: 0, growing: false, apart }
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

    /// The first entry with this hash that `is` accepts.
    #[inline(always)]
    fn find(&self, hash: u32, mut is: impl FnMut(u64) -> bool) -> Option<u64> {
        let mut line = self.main.get(self.first(hash))?;
        loop {
            // All are compared without a branch for each, as branches could not be predicted.
            let mut same = 0;
            for i in 0..WAYS {
                same |= u32::from(hash_of(line.entry(i)) == hash) << i;
            }
            while same != 0 {
                let e = line.entry(same.trailing_zeros() as usize);
                if e != 0 && is(e) {
                    return Some(e);
                }
                same &= same - 1;
            }
            line = self.line(behind(line.next())?)?;
        }
    }

    /// The last line of a chain, and the one before.
    fn last(&self, hash: u32) -> (At, Option<At>) {
        let (mut at, mut before) = (At::Main(self.first(hash)), None);
        while let Some(next) = self.line(at).and_then(|l| behind(l.next())) {
            before = Some(at);
            at = next;
        }
        (at, before)
    }

    /// Adds an entry; false if it needs an overflow line and `spare` has none.
    #[inline]
    fn push(&self, entry: u64, spare: impl FnOnce() -> Option<u32>) -> bool {
        if self.main.get(self.first(hash_of(entry))).is_some_and(|l| l.add(entry)) {
            return true;
        }
        self.push_behind(entry, spare)
    }

    #[cold]
    fn push_behind(&self, entry: u64, spare: impl FnOnce() -> Option<u32>) -> bool {
        let (at, _) = self.last(hash_of(entry));
        let Some(last) = self.line(at) else { return false };
        if last.add(entry) {
            return true;
        }
        let Some(n) = spare() else { return false };
        if let Some(new) = self.more.get(n as usize) {
            new.clear();
            new.add(entry);
        }
        last.set_next(u64::from(n) + 1);
        true
    }

    /// An overflow line that no chain has.
    fn spare(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.more.push(Line::default());
            (self.more.len() - 1) as u32
        })
    }

    /// Adds an entry.
    fn put(&mut self, entry: u64) {
        if !self.push(entry, || None) {
            let n = self.spare();
            self.push_behind(entry, || Some(n));
        }
    }

    /// The same, and splits a line if there are too few.
    #[inline]
    fn insert(&mut self, entry: u64) {
        self.put(entry);
        self.entries += 1;
        self.grow_by(1);
    }

    /// Whether there are too few lines for the entries and so many more.
    fn needs_lines(&self, more: usize) -> bool {
        (self.entries + more) * 2 > self.main.len() * LOAD
    }

    /// Splits up to so many lines, if there are too few.
    fn grow_by(&mut self, lines: usize) {
        self.growing |= self.needs_lines(0);
        for _ in 0..lines {
            if !self.growing {
                break;
            }
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
        let mut at = Some(At::Main(n));
        while let Some(l) = at.and_then(|at| self.line(at)) {
            apart.extend((0..WAYS).map(|i| l.entry(i)).take_while(|e| *e != 0));
            let next = behind(l.next());
            l.clear();
            if let Some(At::More(n)) = at {
                self.free.push(n as u32);
            }
            at = next;
        }
        self.main.push(Line::default());
        apart.drain(..).for_each(|e| self.put(e));
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
            match (l.entries.iter().position(|e| e.load(Ordering::Relaxed) == entry), behind(l.next())) {
                (Some(i), _) => break i,
                (None, None) => return,
                (None, Some(next)) => at = next,
            }
        };
        self.entries -= 1;
        let (last, before) = self.last(hash_of(entry));
        let Some(l) = self.line(last) else { return };
        let Some(i) = l.used().checked_sub(1) else { return };
        let moved = l.entry(i);
        l.set_entry(i, 0);
        if moved != entry
            && let Some(l) = self.line(at)
        {
            l.set_entry(place, moved);
        }
        if let (0, Some(before), At::More(n)) = (i, before, last) {
            self.line(before).into_iter().for_each(|l| l.set_next(0));
            self.free.push(n as u32);
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

/// A chain that a thread holds against others that share the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chain(u32);

impl Connection {
    /// Whether a tuple is that of this connection's packets of a direction.
    #[inline(always)]
    pub(super) fn is(&self, zone: Zone, t: &Tuple, d: Direction) -> bool {
        self.zone == zone && self.tuple(d) == t
    }
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
        (at, self.arrivals.watch(at))
    }

    /// The generations.
    pub(super) fn moves(&self) -> &GenerationTable {
        &self.arrivals
    }

    /// The connection of a tuple, and the direction of the tuple.
    #[inline]
    pub(super) fn find(&self, slots: &Slots, hash: Hash, zone: Zone, t: &Tuple) -> Option<(u32, Direction)> {
        self.find_by(hash, |slot, d| slots.look(slot, |c| c.is(zone, t, d)) == Some(true))
    }

    /// The first connection and direction with this hash that `is` accepts.
    #[inline]
    pub(super) fn find_by(&self, hash: Hash, mut is: impl FnMut(u32, Direction) -> bool) -> Option<(u32, Direction)> {
        let is = |e| {
            let (slot, d) = connection(e);
            is(slot, d)
        };
        self.lines.find(hash.own, is).map(connection)
    }

    /// Assigns a tuple that nobody has to a connection.
    pub(super) fn insert(&mut self, hash: Hash, slot: u32, d: Direction) {
        self.arrivals.bump_watched(hash.arrival);
        self.lines.insert(entry(hash.own, slot, d));
    }

    /// Removes a tuple of a connection, unless it belongs to another one by now.
    pub(super) fn remove(&mut self, (zone, t): (Zone, &Tuple), slot: u32, d: Direction) {
        self.lines.remove(entry(self.hash(zone, t).own, slot, d));
    }

    /// The chain of a tuple. It stays the same for as long as nobody has the table alone.
    #[inline]
    pub(super) fn chain(&self, hash: Hash) -> Chain {
        Chain(self.lines.first(hash.own) as u32)
    }

    /// Holds a chain; false if another thread does.
    #[inline]
    pub(super) fn try_hold(&self, chain: Chain) -> bool {
        let Some(line) = self.lines.main.get(chain.0 as usize) else { return false };
        let next = line.next.load(Ordering::Relaxed);
        next & HELD == 0 && line.next.compare_exchange(next, next | HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends [`Index::try_hold`].
    #[inline]
    pub(super) fn release(&self, chain: Chain) {
        if let Some(line) = self.lines.main.get(chain.0 as usize) {
            line.next.store(line.next(), Ordering::Release);
        }
    }

    /// Assigns a tuple that nobody has to a connection. Its chain is held, and `spare` has an overflow line.
    pub(super) fn add(&self, hash: Hash, slot: u32, d: Direction, spare: &mut Vec<u32>) {
        self.arrivals.bump_watched(hash.arrival);
        self.lines.push(entry(hash.own, slot, d), || spare.pop());
    }

    /// Whether there are too few lines for what [`Index::add`] has added, `n` entries that [`Index::added`] will count.
    pub(super) fn needs_lines(&self, n: usize) -> bool {
        self.lines.growing || self.lines.needs_lines(n)
    }

    /// Counts entries that threads have added.
    pub(super) fn added(&mut self, n: usize) {
        self.lines.entries += n;
    }

    /// Splits up to so many lines, if there are too few.
    pub(super) fn grow_by(&mut self, lines: usize) {
        self.lines.grow_by(lines);
    }

    /// An overflow line that a thread sets aside.
    pub(super) fn spare(&mut self) -> u32 {
        self.lines.spare()
    }

    /// Takes overflow lines back.
    pub(super) fn take_back(&mut self, spare: &mut Vec<u32>) {
        self.lines.free.append(spare);
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
        slots: Slots,
    }

    impl Both {
        fn new() -> Both {
            Both { index: Index::new(16), map: HashMap::new(), slots: Slots::default() }
        }

        /// As [`super::super::Conntrack::store`] does.
        fn come(&mut self, zone: Zone, original: Tuple, reply: Tuple) {
            let free = (0..self.slots.len() as u32).find(|i| self.slots.get(*i).is_none());
            let slot = free.unwrap_or_else(|| self.slots.push());
            *self.slots.place(slot).expect("a slot") = Some(connection_of(zone, original, reply));
            for (t, d) in [(reply, Direction::Reply), (original, Direction::Original)] {
                let hash = self.index.hash(zone, &t);
                let Both { index, slots, .. } = self;
                if let Some((old, d)) = index.find_by(hash, |s, d| slots.get(s).is_some_and(|c| c.is(zone, &t, d))) {
                    index.remove((zone, &t), old, d);
                }
                self.index.insert(hash, slot, d);
                self.map.insert((zone, t), (slot, d));
            }
        }

        fn go(&mut self, slot: u32) {
            let Some(c) = self.slots.place(slot).and_then(Option::take) else { return };
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

    fn lines<'a>(l: &'a Lines, first: &'a Line) -> impl Iterator<Item = &'a Line> {
        std::iter::successors(Some(first), |x| l.line(behind(x.next())?))
    }

    fn entries(l: &Lines, first: &Line) -> usize {
        lines(l, first).map(Line::used).sum()
    }

    /// Lines behind a first one; all but the last are full, and none behind it is empty.
    fn chain(l: &Lines, first: &Line) -> usize {
        for x in lines(l, first) {
            assert!(x.next() == 0 || x.used() == WAYS);
            assert!((x.used()..WAYS).all(|i| x.entry(i) == 0));
        }
        assert!(lines(l, first).skip(1).all(|x| x.used() > 0));
        lines(l, first).count() - 1
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
            b.slots.push();
            *b.slots.place(slot).expect("a slot") = Some(connection_of(Zone(1), original, reply));
            for (t, d) in [(reply, Direction::Reply), (original, Direction::Original)] {
                b.index.insert(b.index.hash(Zone(1), &t), slot, d);
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
