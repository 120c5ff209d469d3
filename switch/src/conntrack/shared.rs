//! The connection table as threads share it.
//!
//! Packets of connections that are there need none of this: what they check is in stamps, which nobody locks. A packet
//! that opens or changes a connection holds the table for as long as it takes to look at its zones and to write the
//! change (some 100 ns); all else that it costs is its thread's own ([`super::template`]).

use super::Conntrack;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// How often a thread looks whether the table is free before it sleeps or gives up: some 20 µs, which is longer than a
/// thread that runs holds it for a burst.
const LOOKS: u32 = 400;
/// Pauses between two looks: each takes the cache line that the other thread needs to be done.
const PAUSES: u32 = 16;

/// The table, in cache lines of its own: who waits for the lock does not slow down who has it.
#[derive(Debug)]
#[repr(align(128))]
struct OwnLines(Conntrack);

/// The connection table, for several threads. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedConntrack(Arc<Mutex<OwnLines>>);

/// The table while one thread has it.
#[derive(Debug)]
pub struct Held<'a>(MutexGuard<'a, OwnLines>);

impl Deref for Held<'_> {
    type Target = Conntrack;

    fn deref(&self) -> &Conntrack {
        &self.0.0
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Conntrack {
        &mut self.0.0
    }
}

impl SharedConntrack {
    /// Shares a table.
    pub fn new(table: Conntrack) -> SharedConntrack {
        SharedConntrack(Arc::new(Mutex::new(OwnLines(table))))
    }

    /// Takes the table; waits for it if need be. A thread must not take it twice.
    pub fn lock(&self) -> Held<'_> {
        // A thread that panicked left each connection whole or not there.
        self.try_lock().unwrap_or_else(|| Held(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The same, if it becomes free within some 20 µs.
    pub fn try_lock(&self) -> Option<Held<'_>> {
        (0..LOOKS).find_map(|_| {
            let held = self.try_once();
            if held.is_none() {
                (0..PAUSES).for_each(|_| std::hint::spin_loop());
            }
            held
        })
    }

    /// The same, if it is free now.
    pub(crate) fn try_once(&self) -> Option<Held<'_>> {
        match self.0.try_lock() {
            Ok(held) => Some(Held(held)),
            Err(TryLockError::Poisoned(held)) => Some(Held(held.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
