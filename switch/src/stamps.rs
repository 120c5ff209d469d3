//! What cached flows check for every packet: a stamp and a time for each connection and each learned address. Threads
//! share these without a lock: the thread that owns the tables writes stamps, every thread that forwards packets writes
//! times.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Places that are allocated together.
const CHUNK: usize = 4096;

/// What is at a place.
#[derive(Debug)]
struct Cell {
    /// Differs from the stamp of anything that was in this place before; 0: the place is empty.
    stamp: AtomicU64,
    /// In nanoseconds.
    time: AtomicU64,
}

/// Stamps and times by place. A place is allocated when it is first used. Clones share storage.
#[derive(Clone, Debug)]
pub(crate) struct StampTable(Arc<[OnceLock<Box<[Cell; CHUNK]>>]>);

impl Cell {
    const fn empty() -> Cell {
        Cell { stamp: AtomicU64::new(0), time: AtomicU64::new(0) }
    }
}

impl StampTable {
    /// Room for so many places.
    pub(crate) fn new(places: usize) -> StampTable {
        StampTable((0..places.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect())
    }

    #[inline(always)]
    fn cell(&self, place: u32) -> Option<&Cell> {
        self.0.get(place as usize / CHUNK)?.get()?.get(place as usize % CHUNK)
    }

    /// Stamp and time of a place; zeros if it is empty.
    #[inline(always)]
    pub(crate) fn get(&self, place: u32) -> (u64, u64) {
        self.cell(place).map_or((0, 0), |c| (c.stamp.load(Relaxed), c.time.load(Relaxed)))
    }

    /// Writes a place; false if there is no such place.
    pub(crate) fn set(&self, place: u32, stamp: u64, time: u64) -> bool {
        let Some(chunk) = self.0.get(place as usize / CHUNK) else { return false };
        let chunk = chunk.get_or_init(|| Box::new([const { Cell::empty() }; CHUNK]));
        if let Some(c) = chunk.get(place as usize % CHUNK) {
            c.time.store(time, Relaxed);
            c.stamp.store(stamp, Relaxed);
        }
        true
    }

    /// Whether a stamp is still where it was.
    #[inline(always)]
    pub(crate) fn stays(&self, place: u32, stamp: u64) -> bool {
        self.get(place).0 == stamp
    }

    /// Sets the time of a place that still has this stamp and has not expired at `now`; false otherwise.
    ///
    /// Reading the stamp and writing the time are two steps. On a fast path another connection may take the place in
    /// between and gets the time of the old one: it may then expire later or sooner, until its own next packet corrects
    /// that. It never serves packets of the old one, as each packet compares the stamp. A single step would cost a
    /// locked instruction per packet.
    #[inline(always)]
    pub(crate) fn pass(&self, place: u32, stamp: u64, now: u64, time: u64) -> bool {
        match self.cell(place) {
            Some(c) if c.stamp.load(Relaxed) == stamp && c.time.load(Relaxed) > now => {
                c.time.store(time, Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Moves the time of a place that still has this stamp forward, and returns the time before; none if the stamp
    /// differs.
    #[inline(always)]
    pub(crate) fn touch(&self, place: u32, stamp: u64, time: u64) -> Option<u64> {
        let c = self.cell(place).filter(|c| c.stamp.load(Relaxed) == stamp)?;
        let old = c.time.load(Relaxed);
        if old < time {
            c.time.store(time, Relaxed);
        }
        Some(old)
    }

    /// Passes the memory that a check of this place will read to `near` (to prefetch it).
    #[inline(always)]
    pub(crate) fn near(&self, place: u32, near: impl Fn(&AtomicU64)) {
        self.cell(place).into_iter().for_each(|c| near(&c.stamp));
    }
}

/// Generation counters by place. Clones share storage.
#[derive(Clone, Debug)]
pub(crate) struct GenerationTable(Arc<[AtomicU32]>);

/// Somebody has looked at this generation ([`GenerationTable::watch`]).
const WATCHED: u32 = 1;

impl GenerationTable {
    pub(crate) fn new(places: usize) -> GenerationTable {
        GenerationTable((0..places).map(|_| AtomicU32::new(0)).collect())
    }

    #[inline(always)]
    fn cell(&self, place: u32) -> Option<&AtomicU32> {
        self.0.get(place as usize)
    }

    #[inline(always)]
    pub(crate) fn get(&self, place: u32) -> u32 {
        self.cell(place).map_or(0, |n| n.load(Relaxed))
    }

    pub(crate) fn bump(&self, place: u32) {
        if let Some(n) = self.cell(place) {
            n.fetch_add(1, Relaxed);
        }
    }

    /// The generation, which the next [`GenerationTable::bump_watched`] moves on.
    pub(crate) fn watch(&self, place: u32) -> u32 {
        self.cell(place).map_or(0, |n| n.fetch_or(WATCHED, Relaxed) | WATCHED)
    }

    /// Moves a generation on, if somebody watches it: threads that move the same place again and again, and nobody looks,
    /// do not take its cache line from each other.
    #[inline]
    pub(crate) fn bump_watched(&self, place: u32) {
        if let Some(n) = self.cell(place).filter(|n| n.load(Relaxed) & WATCHED != 0) {
            // Of two threads that do this at once both move it on, or one: it is another one in any case.
            n.fetch_add(1, Relaxed);
        }
    }
}
