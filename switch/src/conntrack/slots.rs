//! The connections themselves, by slot.
//!
//! Each slot has a lock of its own for threads that share the table ([`super::joint`]). Whoever has the table alone takes
//! none of them: `&mut` says so.

use super::Connection;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A slot's connection, held against other threads.
pub(super) type HeldSlot<'a> = MutexGuard<'a, Option<Connection>>;

/// A slot, in cache lines of its own: three of 64 octets. Without that most would have a part of a fourth.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot(Mutex<Option<Connection>>);

/// Connections by slot.
#[derive(Debug, Default)]
pub(super) struct Slots(Vec<Slot>);

impl Slots {
    /// Reserves address space for so many at once, as growing would copy; unused memory costs nothing. If it cannot be
    /// reserved, the vector grows.
    pub(super) fn new(most: usize) -> Slots {
        let mut all = Vec::new();
        let _ = all.try_reserve_exact(most);
        Slots(all)
    }

    /// How many slots there are, empty ones included.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// One more, which is empty; its number.
    pub(super) fn push(&mut self) -> u32 {
        self.0.push(Slot::default());
        (self.0.len() - 1) as u32
    }

    /// What is in a slot; none if there is no such slot.
    #[inline]
    pub(super) fn place(&mut self, slot: u32) -> Option<&mut Option<Connection>> {
        Some(self.0.get_mut(slot as usize)?.0.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// The connection of a slot.
    #[inline]
    pub(super) fn get(&mut self, slot: u32) -> Option<&Connection> {
        self.place(slot)?.as_ref()
    }

    /// The connection of a slot.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.place(slot)?.as_mut()
    }

    /// What `f` makes of the connection of a slot; waits for a thread that changes it.
    #[inline]
    pub(super) fn look<R>(&self, slot: u32, f: impl FnOnce(&Connection) -> R) -> Option<R> {
        // A thread that panicked left a whole connection, or none.
        self.0.get(slot as usize)?.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(f)
    }

    /// Holds a slot; none if another thread does.
    #[inline]
    pub(super) fn try_hold(&self, slot: u32) -> Option<HeldSlot<'_>> {
        match self.0.get(slot as usize)?.0.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_three_cache_lines() {
        assert_eq!(size_of::<Slot>(), 3 * 64);
    }
}
