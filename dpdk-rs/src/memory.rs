//! Packet memory by size: many buffers for ordinary frames, and fewer large ones, which take memory once somebody needs them.

use crate::{Eal, Error, Mbuf, Pool};
use std::sync::{Arc, Mutex, OnceLock};

/// The longest frame of the ordinary pool.
pub const ORDINARY: usize = 2048;
/// The longest frames of the larger pools: jumbo frames of network cards, and the longest that there are (64 KiB with headroom).
pub const LARGER: [usize; 2] = [10_240, 65_400];
/// What a buffer takes beside its room: headroom, DPDK's own.
const BESIDE: u64 = 384;
/// Buffers of a larger pool.
const BUFFERS: std::ops::RangeInclusive<u64> = 1024..=65_536;

/// The pools, shared by clones.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Pools>);

#[derive(Debug)]
struct Pools {
    eal: Eal,
    ordinary: Pool,
    larger: [OnceLock<Pool>; LARGER.len()],
    /// Bytes that a larger pool takes at most.
    share: u64,
    /// Who makes a pool.
    making: Mutex<()>,
}

impl Memory {
    /// Memory of so many ordinary packets; larger ones take at most `share` bytes for each size.
    ///
    /// # Errors
    /// [`Error::Pool`] where there is not enough memory.
    pub fn new(eal: &Eal, packets: u32, share: u64) -> Result<Memory, Error> {
        let ordinary = Pool::new(eal, "packets", packets, ORDINARY as u16)?;
        let pools = Pools { eal: eal.clone(), ordinary, larger: Default::default(), share, making: Mutex::default() };
        Ok(Memory(Arc::new(pools)))
    }

    /// The pool of ordinary frames.
    #[inline]
    pub fn ordinary(&self) -> &Pool {
        &self.0.ordinary
    }

    /// The pool for frames of up to this length, as far as there is one that holds them.
    #[inline]
    pub fn of(&self, len: usize) -> Option<&Pool> {
        if len <= ORDINARY { Some(&self.0.ordinary) } else { self.larger(len) }
    }

    #[cold]
    fn larger(&self, len: usize) -> Option<&Pool> {
        self.0.larger.iter().zip(LARGER).filter(|(_, room)| len <= *room).find_map(|(p, _)| p.get())
    }

    /// The pool for frames of up to this length, made if it is the first time; those that are too long for any pool get the
    /// largest. It takes a while: not for threads that switch packets.
    ///
    /// # Errors
    /// [`Error::Pool`] where there is not enough memory.
    pub fn for_frames(&self, len: usize) -> Result<&Pool, Error> {
        if len <= ORDINARY {
            return Ok(&self.0.ordinary);
        }
        let n = LARGER.iter().position(|room| len <= *room).unwrap_or(LARGER.len() - 1);
        // Nothing is left half done where a thread ended with this.
        let _one = self.0.making.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (place, room) = (&self.0.larger[n], LARGER[n]);
        if let Some(p) = place.get() {
            return Ok(p);
        }
        let wanted = (self.0.share / (room as u64 + BESIDE)).clamp(*BUFFERS.start(), *BUFFERS.end());
        // Pools are best a power of two less one (DPDK, `rte_mempool_create`).
        let packets = (wanted + 1).next_power_of_two() / 2 - 1;
        let pool = Pool::new(&self.0.eal, &format!("packets-{room}"), packets as u32, room as u16)?;
        Ok(place.get_or_init(|| pool))
    }

    /// A packet with these bytes; none where memory is short.
    pub fn packet(&self, bytes: &[u8]) -> Option<Mbuf> {
        self.of(bytes.len())?.packet(bytes)
    }

    /// A copy of a packet; none where memory is short.
    #[inline]
    pub fn copy(&self, m: &Mbuf) -> Option<Mbuf> {
        m.copy(self.of(m.len())?)
    }

    /// Each pool that there is: the longest frame, and the buffers that are free.
    pub fn free(&self) -> impl Iterator<Item = (usize, u32)> {
        let larger = self.0.larger.iter().zip(LARGER).filter_map(|(p, room)| Some((room, p.get()?)));
        std::iter::once((ORDINARY, &self.0.ordinary)).chain(larger).map(|(room, p)| (room, p.available()))
    }
}
