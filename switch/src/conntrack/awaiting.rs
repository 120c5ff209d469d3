//! Packets that wait until another chassis has told of their connection.
//!
//! What a gateway tells of its connections is under way for a millisecond or so. While a gateway port moves, an answer may
//! come to the new gateway sooner than word of the connection that the old one has just opened. It would be taken for the
//! first packet of another connection, and be lost behind a translated address. Connections of a living chassis change
//! hands at such a time and, where answers come to the gateway that asked, at no other. So for [`MOVING`] after each such
//! change packets that find no connection wait, for [`PATIENCE`] at most.

use super::reassembly::Held;
use super::{Conntrack, Packet, Tuple, Zone, state};
use std::time::Duration;

/// How long after a connection has changed hands others may still be told.
const MOVING: Duration = Duration::from_millis(50);
/// How long a packet waits: some times as long as word is under way.
const PATIENCE: Duration = Duration::from_millis(5);
/// Most packets that wait. More go on at once.
const MOST: usize = 256;
/// The time between two looks for what packets wait for.
const PAUSE: Duration = Duration::from_micros(200);

#[derive(Debug)]
struct Waiting {
    zone: Zone,
    tuple: Tuple,
    until: Duration,
    held: Held,
}

/// The packets that wait, in the order in which they came.
#[derive(Debug, Default)]
pub struct Awaiting {
    list: Vec<Waiting>,
    next_look: Duration,
}

impl Awaiting {
    /// Whether another packet may wait.
    pub(crate) fn has_room(&self) -> bool {
        self.list.len() < MOST
    }

    /// When to look for their connections next ([`crate::Switch::end_waits`]); none without any.
    pub fn due(&self) -> Option<Duration> {
        (!self.is_empty()).then_some(self.next_look)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// A packet waits for word of its tuple's connection.
    pub(crate) fn put(&mut self, zone: Zone, tuple: Tuple, held: Held, now: Duration) {
        self.list.push(Waiting { zone, tuple, until: now + PATIENCE, held });
    }

    /// Takes the packets whose connections are there, and those that have waited long enough.
    pub(crate) fn take(&mut self, ct: &Conntrack, now: Duration) -> Vec<Held> {
        if now < self.next_look {
            return Vec::new();
        }
        self.next_look = now + PAUSE;
        let ready = |w: &mut Waiting| w.until <= now || ct.find(w.zone, &w.tuple).is_some();
        self.list.extract_if(.., ready).map(|w| w.held).collect()
    }
}

impl Conntrack {
    /// Whether another chassis may be about to tell of the connection of a packet that has none here.
    #[inline]
    pub(crate) fn may_be_told(&self, zone: Zone, p: &Packet, now: Duration) -> bool {
        self.owners.moved_within(MOVING, now) && !p.error && !state::asks(p) && self.journal.tells(zone)
    }
}
