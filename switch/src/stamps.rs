//! What cached flows look at for every packet: of each connection and each learned address a stamp and a time. Threads share
//! it, without a lock: the one that owns the tables writes stamps, those that repeat flows write times.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Places that get memory together.
const CHUNK: usize = 4096;

/// What is at a place.
#[derive(Debug)]
struct Cell {
    /// Unlike that of anything before, in this place; 0: there is nothing.
    stamp: AtomicU64,
    /// In nanoseconds.
    time: AtomicU64,
}

/// Stamps and times by place. Places get memory when they are first used; clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Live(Arc<[OnceLock<Box<[Cell; CHUNK]>>]>);

impl Cell {
    const fn empty() -> Cell {
        Cell { stamp: AtomicU64::new(0), time: AtomicU64::new(0) }
    }
}

impl Live {
    /// Room for so many places.
    pub(crate) fn new(places: usize) -> Live {
        Live((0..places.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect())
    }

    #[inline(always)]
    fn cell(&self, place: u32) -> Option<&Cell> {
        self.0.get(place as usize / CHUNK)?.get()?.get(place as usize % CHUNK)
    }

    /// What is at a place: stamp and time; zeros if there is nothing.
    #[inline(always)]
    pub(crate) fn get(&self, place: u32) -> (u64, u64) {
        self.cell(place).map_or((0, 0), |c| (c.stamp.load(Relaxed), c.time.load(Relaxed)))
    }

    /// Puts something at a place; false if that is beyond the room.
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

    /// Moves the time of what is still where it was and whose time is later than `now`; false if it is not.
    ///
    /// Looking at the stamp and writing the time are two steps. In a lane, another connection may take the place between them, and gets
    /// this one's time: it then lives for as long as a packet of the old one would have kept that, until its own next packet sets
    /// that right. It never serves a packet of the other, as each looks at the stamp. One step would be a locked instruction a packet.
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

    /// Moves the time of what is still where it was forward, and gives what it was; none if it is not there.
    #[inline(always)]
    pub(crate) fn touch(&self, place: u32, stamp: u64, time: u64) -> Option<u64> {
        let c = self.cell(place).filter(|c| c.stamp.load(Relaxed) == stamp)?;
        let old = c.time.load(Relaxed);
        if old < time {
            c.time.store(time, Relaxed);
        }
        Some(old)
    }

    /// Hands over what a look at a place will read.
    #[inline(always)]
    pub(crate) fn near(&self, place: u32, near: impl Fn(&AtomicU64)) {
        self.cell(place).into_iter().for_each(|c| near(&c.stamp));
    }
}

/// Numbers that move; clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Moves(Arc<[AtomicU32]>);

impl Moves {
    pub(crate) fn new(places: usize) -> Moves {
        Moves((0..places).map(|_| AtomicU32::new(0)).collect())
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
}
