//! The connection table as threads share it.
//!
//! Packets of connections that are there need none of this: what they check is in stamps, which nobody locks. A thread whose
//! packets open or change connections as others did before shares the table with other such threads ([`super::joint`]).
//! For anything else one has it alone.

use super::Conntrack;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

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
pub struct SharedConntrack(Arc<RwLock<OwnLines>>);

/// The table while one thread has it alone.
#[derive(Debug)]
pub struct Held<'a>(RwLockWriteGuard<'a, OwnLines>);

/// The table while threads have it beside each other.
#[derive(Debug)]
pub(crate) struct Beside<'a>(RwLockReadGuard<'a, OwnLines>);

impl<'a> Held<'a> {
    fn new(guard: RwLockWriteGuard<'a, OwnLines>) -> Held<'a> {
        let mut held = Held(guard);
        held.read_ledger();
        held
    }
}

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

impl Deref for Beside<'_> {
    type Target = Conntrack;

    fn deref(&self) -> &Conntrack {
        &self.0.0
    }
}

/// Tries something for some 20 µs.
fn wait_for<T>(mut f: impl FnMut() -> Option<T>) -> Option<T> {
    (0..LOOKS).find_map(|_| {
        let got = f();
        if got.is_none() {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
        got
    })
}

/// A lock that was tried once. A thread that panicked left each connection whole or not there.
fn taken<T>(tried: Result<T, TryLockError<T>>) -> Option<T> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl SharedConntrack {
    /// Shares a table.
    pub fn new(table: Conntrack) -> SharedConntrack {
        SharedConntrack(Arc::new(RwLock::new(OwnLines(table))))
    }

    /// Takes the table; waits for it if need be. A thread must not take it twice.
    pub fn lock(&self) -> Held<'_> {
        self.try_lock().unwrap_or_else(|| Held::new(self.0.write().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The same, if it becomes free within some 20 µs.
    pub fn try_lock(&self) -> Option<Held<'_>> {
        wait_for(|| taken(self.0.try_write())).map(Held::new)
    }

    /// The table beside other threads, if nobody has it alone now.
    pub(crate) fn beside_now(&self) -> Option<Beside<'_>> {
        taken(self.0.try_read()).map(Beside)
    }

    /// Takes the table beside other threads, if nobody has it alone for longer than some 20 µs.
    pub(crate) fn beside(&self) -> Option<Beside<'_>> {
        wait_for(|| self.beside_now())
    }
}
