//! The journal: which connections have changed since a reader was last told of them.
//!
//! A reader (a standby gateway, the successor of this process) wants to know all connections of some zones. The journal
//! keeps no events. It marks the *slots* of the table that changed, each once, in the order of their first change, and
//! [`Conntrack::changes`] tells what is in these slots when the reader asks. So
//!
//! - what happens to a connection between two calls is told as one change; a connection that has come and gone is not
//!   told at all;
//! - the journal cannot overflow: it has at most one mark for each slot, however slow the reader is;
//! - a dump is the same thing: a walk that tells all slots, between changes.
//!
//! ```text
//! packets ──► Conntrack::{store, delete, step, …} ──► marks ──► queue ──► Conntrack::changes ──► reader
//!                                                                ▲
//!                                            dump: a cursor over all slots
//! ```

use super::replica::Owner;
use super::{Connection, Conntrack, Zone, limits};
use std::collections::VecDeque;
use std::time::Duration;

/// The most readers.
pub const READERS: usize = 4;
/// Bits of a mark that belong to one reader.
const BITS: usize = 4;
/// The reader has been told of a connection in this slot.
const KNOWN: u16 = 1;
/// The slot has another connection, or none.
const CONTENT: u16 = 2;
/// Its connection has another state, mark or label.
const STATE: u16 = 4;
/// Its connection gave way to one of the reader.
const GAVE_WAY: u16 = 8;
/// Slots that a dump looks at in one call, for each change that may be told: most slots may be of other zones.
const LOOKED_AT: usize = 16;

/// A reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReaderId(usize);

/// A change that a reader is told.
#[derive(Debug)]
pub enum Change<'a> {
    /// A dump begins: until [`Change::End`] all connections are told, and changes between them.
    Begin,
    /// The slot has this connection. What it had before is gone.
    Put(Put<'a>),
    /// The connection of the slot has another state, mark or label.
    State(u32, &'a Connection),
    /// The slot is empty.
    Close(u32),
    /// The connection of the slot gave way to the same one of the reader. Should the reader have given it up meanwhile
    /// as well, it has to take it back.
    GaveWay(u32),
    /// All that changed before [`Conntrack::fence`] gave out this number has been told.
    Fence(u64),
    /// The dump is complete. The number counts the connections that the reader has been told of and that are still
    /// there.
    End(u32),
}

/// A connection that a reader is told.
#[derive(Debug)]
pub struct Put<'a> {
    /// Its slot.
    pub slot: u32,
    /// The connection.
    pub connection: &'a Connection,
    /// How long ago its last packet came.
    pub idle: Duration,
    /// The chassis whose it was until a packet came here, if it has just changed hands; else 0.
    pub from: Owner,
}

#[derive(Debug)]
struct Reader {
    /// By zone, a bit each.
    zones: Vec<u64>,
    /// The chassis that it is, as its connections are marked; 0 until that is known.
    chassis: Owner,
    /// Slots that changed.
    queue: VecDeque<u32>,
    /// How many slots were taken from the queue.
    taken: u64,
    /// How many must have been taken before a fence is told, and its number.
    fences: VecDeque<(u64, u64)>,
    dump: Dump,
    /// Slots with [`KNOWN`].
    known: u32,
    /// It was told of connections that have changed hands. Whether it has heard of them is not known here.
    told_of_moves: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Dump {
    None,
    Begins,
    At(usize),
}

impl Reader {
    fn wants(&self, zone: Zone) -> bool {
        self.zones.get(zone.index() / 64).is_some_and(|w| w >> (zone.0 % 64) & 1 != 0)
    }
}

/// The readers, and a mark for each slot.
#[derive(Debug, Default)]
pub(super) struct Journal {
    marks: Vec<u16>,
    readers: [Option<Reader>; READERS],
    any: bool,
    fence: u64,
}

impl Journal {
    /// Whether there is a reader.
    pub(super) fn is_read(&self) -> bool {
        self.any
    }

    /// Whether other chassis are told of the connections of a zone.
    pub(super) fn tells(&self, zone: Zone) -> bool {
        self.readers.iter().flatten().any(|r| r.wants(zone))
    }

    /// The slot has a connection of this zone, or has one no longer.
    #[inline(always)]
    pub(super) fn content(&mut self, slot: u32, zone: Zone) {
        if self.any {
            self.mark(slot, zone, CONTENT);
        }
    }

    /// Its connection has another state, mark or label.
    #[inline(always)]
    pub(super) fn state(&mut self, slot: u32, zone: Zone) {
        if self.any {
            self.mark(slot, zone, STATE);
        }
    }

    /// The slot's connection gave way to one of this chassis. [`Journal::content`] has been told.
    pub(super) fn gave_way(&mut self, slot: u32, to: Owner) {
        for (i, _) in self.readers.iter().enumerate().filter(|(_, r)| r.as_ref().is_some_and(|r| r.chassis == to)) {
            if let Some(mark) = self.marks.get_mut(slot as usize) {
                *mark |= GAVE_WAY << (i * BITS);
            }
        }
    }

    fn mark(&mut self, slot: u32, zone: Zone, what: u16) {
        let at = slot as usize;
        if self.marks.len() <= at {
            self.marks.resize((at + 1).next_power_of_two(), 0);
        }
        let Some(mark) = self.marks.get_mut(at) else { return };
        for (i, r) in self.readers.iter_mut().enumerate() {
            let Some(r) = r.as_mut().filter(|r| r.wants(zone)) else { continue };
            let shift = i * BITS;
            if *mark >> shift & (CONTENT | STATE) == 0 {
                r.queue.push_back(slot);
            }
            *mark |= what << shift;
        }
    }
}

impl Conntrack {
    /// Adds a reader of these zones; a dump of them is due at once. `None`: there are [`READERS`] already.
    pub fn add_reader(&mut self, zones: impl IntoIterator<Item = Zone>) -> Option<ReaderId> {
        let mut bits = vec![0; 1024];
        for z in zones {
            if let Some(w) = bits.get_mut(z.index() / 64) {
                *w |= 1u64 << (z.0 % 64);
            }
        }
        let j = &mut self.journal;
        let i = j.readers.iter().position(Option::is_none)?;
        let place = j.readers.get_mut(i)?;
        *place = Some(Reader {
            zones: bits,
            chassis: 0,
            queue: VecDeque::new(),
            taken: 0,
            fences: VecDeque::new(),
            dump: Dump::Begins,
            known: 0,
            told_of_moves: false,
        });
        j.any = true;
        Some(ReaderId(i))
    }

    /// Says which chassis a reader is.
    pub fn set_chassis(&mut self, id: ReaderId, chassis: Owner) {
        if let Some(Some(r)) = self.journal.readers.get_mut(id.0) {
            r.chassis = chassis;
        }
    }

    /// Removes a reader.
    pub fn remove_reader(&mut self, id: ReaderId) {
        let j = &mut self.journal;
        if j.readers.get_mut(id.0).and_then(Option::take).is_some_and(|r| r.told_of_moves) {
            // What was on its way is lost. The chassis whose these connections were may have them as its own still: what
            // it has is asked for again.
            self.unheard += 1;
        }
        j.any = j.readers.iter().any(Option::is_some);
        if j.any {
            let own = !(((1 << BITS) - 1) << (id.0 * BITS));
            j.marks.iter_mut().for_each(|m| *m &= own);
        } else {
            j.marks = Vec::new();
        }
    }

    /// Has all connections told to a reader again.
    pub fn dump_again(&mut self, id: ReaderId) {
        if let Some(Some(r)) = self.journal.readers.get_mut(id.0) {
            r.dump = Dump::Begins;
        }
    }

    /// Has what is in a slot told to a reader again, as a change. Slots that the table does not have are ignored.
    pub fn tell_again(&mut self, id: ReaderId, slot: u32) {
        let j = &mut self.journal;
        let (Some(Some(r)), Some(mark)) = (j.readers.get_mut(id.0), j.marks.get_mut(slot as usize)) else { return };
        let shift = id.0 * BITS;
        if *mark >> shift & (CONTENT | STATE) == 0 {
            r.queue.push_back(slot);
        }
        *mark |= CONTENT << shift;
    }

    /// A number that is told ([`Change::Fence`]) when all has been told that changed until now.
    pub fn fence(&mut self, id: ReaderId) -> u64 {
        let j = &mut self.journal;
        j.fence += 1;
        if let Some(Some(r)) = j.readers.get_mut(id.0) {
            r.fences.push_back((r.taken + r.queue.len() as u64, j.fence));
        }
        j.fence
    }

    /// How many changed slots a reader has not been told of; none while a dump is due or under way.
    pub fn behind(&self, id: ReaderId) -> Option<usize> {
        let r = self.journal.readers.get(id.0)?.as_ref()?;
        (r.dump == Dump::None).then_some(r.queue.len())
    }

    /// Whether a reader has anything to be told.
    pub fn has_changes(&self, id: ReaderId) -> bool {
        let r = self.journal.readers.get(id.0).and_then(Option::as_ref);
        r.is_some_and(|r| !r.queue.is_empty() || r.dump != Dump::None || !r.fences.is_empty())
    }

    /// Tells a reader up to `most` changes, live ones before those of a dump. `now` is the time of the table.
    pub fn changes(&mut self, id: ReaderId, most: usize, now: Duration, mut tell: impl FnMut(Change<'_>)) {
        let mut journal = std::mem::take(&mut self.journal);
        if let Some(Some(r)) = journal.readers.get_mut(id.0) {
            let shift = id.0 * BITS;
            let mut told = 0;
            while told < most {
                while r.fences.front().is_some_and(|(at, _)| *at <= r.taken) {
                    tell(Change::Fence(r.fences.pop_front().map_or(0, |(_, n)| n)));
                }
                let Some(slot) = r.queue.pop_front() else { break };
                r.taken += 1;
                if let Some(mark) = journal.marks.get_mut(slot as usize) {
                    told += self.tell(r, mark, (slot, shift), now, &mut tell);
                }
            }
            if told < most {
                self.tell_dump(r, &mut journal.marks, shift, now, &mut tell, most - told);
            }
        }
        self.journal = journal;
    }

    /// Tells what changed in a slot; returns how many changes that made.
    fn tell(
        &mut self,
        r: &mut Reader,
        mark: &mut u16,
        (slot, shift): (u32, usize),
        now: Duration,
        tell: &mut impl FnMut(Change<'_>),
    ) -> usize {
        let due = *mark >> shift & (CONTENT | STATE);
        let mut known = *mark >> shift & KNOWN != 0;
        let gave_way = *mark >> shift & GAVE_WAY != 0;
        *mark &= !((CONTENT | STATE | GAVE_WAY) << shift);
        if gave_way {
            // Not of this stream's connections alone: the reader may have it since an earlier one.
            tell(Change::GaveWay(slot));
            r.known -= u32::from(known);
            *mark &= !(KNOWN << shift);
            known = false;
        }
        let idle = self.idle(slot, now);
        match self.own(slot).filter(|c| r.wants(c.zone)) {
            Some(c) if known && due == STATE => tell(Change::State(slot, c)),
            Some(connection) => {
                *mark |= KNOWN << shift;
                r.known += u32::from(!known);
                let from = connection.from;
                tell(Change::Put(Put { slot, connection, idle, from }));
                if from != 0 {
                    self.forget_former_owner(r, slot);
                }
            }
            None if known => {
                *mark &= !(KNOWN << shift);
                r.known -= 1;
                tell(Change::Close(slot));
            }
            None => return usize::from(gave_way),
        }
        1
    }

    fn tell_dump(
        &mut self,
        r: &mut Reader,
        marks: &mut Vec<u16>,
        shift: usize,
        now: Duration,
        tell: &mut impl FnMut(Change<'_>),
        most: usize,
    ) {
        let from = match r.dump {
            Dump::None => return,
            Dump::Begins => {
                tell(Change::Begin);
                0
            }
            Dump::At(n) => n,
        };
        marks.resize(marks.len().max(self.slots.len()), 0);
        let (mut at, mut told) = (from, 0);
        while at < self.slots.len() && told < most && at - from < most.saturating_mul(LOOKED_AT) {
            let slot = at as u32;
            at += 1;
            let Some(mark) = marks.get_mut(slot as usize) else { continue };
            if !self.own(slot).is_some_and(|c| r.wants(c.zone)) {
                continue;
            }
            let idle = self.idle(slot, now);
            let Some(connection) = self.own(slot) else { continue };
            r.known += u32::from(*mark >> shift & KNOWN == 0);
            *mark |= KNOWN << shift;
            let changed_hands = connection.from != 0;
            tell(Change::Put(Put { slot, connection, idle, from: 0 }));
            told += 1;
            // It is told now: a later change must not say once more that it has just changed hands.
            if changed_hands {
                self.forget_former_owner(r, slot);
            }
        }
        r.dump = Dump::At(at);
        if at >= self.slots.len() {
            r.dump = Dump::None;
            tell(Change::End(r.known));
        }
    }

    /// A reader is told that a connection has changed hands: nobody has to be told once more.
    fn forget_former_owner(&mut self, r: &mut Reader, slot: u32) {
        r.told_of_moves = true;
        if let Some(c) = self.slots.get_mut(slot) {
            c.from = 0;
        }
    }

    /// The connection of a slot, if it is this switch's own.
    fn own(&mut self, slot: u32) -> Option<&Connection> {
        self.slots.get(slot).filter(|c| c.owner == 0)
    }

    /// How long ago the last packet of a slot's connection came.
    pub(super) fn idle(&mut self, slot: u32, now: Duration) -> Duration {
        let lasts = self.slots.get(slot).map(|c| limits::of(&self.timeouts, c.zone).get(c.phase));
        (now + lasts.unwrap_or_default()).saturating_sub(self.expires(slot))
    }
}
