//! Threads that open and change connections beside each other.
//!
//! ```text
//!   alone    one thread has the whole table: walks, deletions, flushes, the journal's readers, replicas, dumps
//!   beside   any number of threads serve packets from templates; each holds, for one packet at a time,
//!              the chains of the tuples that it looks up or adds   (index.rs)
//!              the slots of the connections that it changes        (slots.rs)
//! ```
//! A packet is planned first. All that it looks at is held then, so that nothing can come between plan and change. A
//! thread that finds a chain or slot held by another for long lets go of all that it holds, so that no two wait for each
//! other, and serves this packet alone. It does the same with whatever is rare: an expired connection that is in the way, a
//! zone with a limit, a connection that another chassis has, a port chosen at random.
//!
//! Empty slots, generations and overflow lines are set aside for each thread, some hundreds at a time ([`Stash`]); what it
//! did is written into a [`Ledger`] at the end of each run of packets. Whoever has the table alone reads the ledger first:
//! so counters, journal and limits are then what they would be if that one had done everything.

use super::index::{Chain, Hash};
use super::slots::HeldSlot;
use super::template::{Expected, Lookup, NotNow, Outcome, Plan};
use super::{Connection, Conntrack, Direction, Packet, Request, Tuple, Zone, stamp};
use smallvec::SmallVec;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Most slots that threads set aside, all together: more than 16 threads find fewer.
pub(super) const SET_ASIDE: usize = 16 * SLOTS;
/// Slots that a thread sets aside.
const SLOTS: usize = 1024;
/// Overflow lines that a thread sets aside.
const LINES: usize = 64;
/// With less in its stash a thread fills it: what packets of a few zones need.
const LEAST: usize = 8;
/// Where the table has less room, threads have it alone, one by one, so that its limit is exact. More than all threads
/// open in the runs of packets that they have begun.
const NEARLY_FULL: usize = 4096;
/// The most chains that a packet holds.
const CHAINS: usize = 12;
/// How often a thread looks whether a chain or slot that another one holds is free: longer than one packet takes.
const LOOKS: u32 = 100;

/// What a thread did beside others.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// How many entries it has added to the index.
    entries: usize,
    /// How many connections it has opened, by zone; a zone may come more than once.
    zones: Vec<(Zone, u32)>,
    /// For the journal: slots, their zones, and whether they have another connection (or just another state).
    changed: Vec<(u32, Zone, bool)>,
}

impl Ledger {
    fn opened(&self) -> u32 {
        self.zones.iter().map(|(_, n)| n).sum()
    }

    fn append(&mut self, other: &mut Ledger) {
        self.entries += std::mem::take(&mut other.entries);
        self.zones.append(&mut other.zones);
        self.changed.append(&mut other.changed);
    }
}

/// What a thread has set aside, and what it has not told yet.
#[derive(Debug, Default)]
pub(crate) struct Stash {
    /// Empty slots, and the generations of the connections that come into them.
    slots: Vec<(u32, u64)>,
    /// Overflow lines of the index.
    lines: Vec<u32>,
    done: Ledger,
    /// Lines that the index lacks since the stash was filled, as far as this thread has seen.
    lacks: usize,
}

impl Stash {
    /// Whether it has to be filled before this thread goes on beside others.
    pub(crate) fn is_low(&self) -> bool {
        self.slots.len() < LEAST || self.lines.len() < 2 * LEAST || self.lacks >= SLOTS
    }
}

impl Conntrack {
    /// Reads what threads did beside each other. Whoever takes the table alone calls this first.
    pub(super) fn read_ledger(&mut self) {
        let ledger = self.ledger.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.index.added(std::mem::take(&mut ledger.entries));
        if ledger.zones.is_empty() && ledger.changed.is_empty() {
            return;
        }
        let opened = ledger.opened();
        ledger.zones.drain(..).for_each(|(zone, n)| self.zones.come(zone, n));
        for (slot, zone, content) in ledger.changed.drain(..) {
            match content {
                true => self.journal.content(slot, zone),
                false => self.journal.state(slot, zone),
            }
        }
        self.count_owner(0, opened);
    }

    /// Fills a stash, as far as there is room, and makes the lines that the index lacks.
    pub(crate) fn fill(&mut self, stash: &mut Stash) {
        self.index.grow_by(std::mem::take(&mut stash.lacks));
        let most = if self.left() < NEARLY_FULL { 0 } else { SLOTS };
        while stash.slots.len() < most
            && let Some(slot) = self.empty_slot()
        {
            self.generation += 1;
            stash.slots.push((slot, self.generation));
        }
        // The lowest are taken first.
        stash.slots.sort_unstable_by(|a, b| b.cmp(a));
        while stash.lines.len() < LINES {
            stash.lines.push(self.index.spare());
        }
    }

    /// Takes back what a thread had set aside.
    pub(crate) fn take_back(&mut self, stash: &mut Stash) {
        self.free.extend(stash.slots.drain(..).map(|(slot, _)| slot));
        self.index.take_back(&mut stash.lines);
    }

    /// Whether threads may go on beside each other: far from the limit.
    pub(crate) fn has_room_for_all(&self) -> bool {
        !self.windows && self.left() >= NEARLY_FULL
    }

    /// A run of packets ends that a thread served beside others.
    pub(crate) fn write_ledger(&self, stash: &mut Stash) {
        let Stash { done, lacks, .. } = stash;
        if done.zones.is_empty() && done.changed.is_empty() {
            return;
        }
        self.count.fetch_add(done.opened() as usize, Relaxed);
        let entries = done.entries;
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.append(done);
        if self.index.needs_lines(ledger.entries) {
            *lacks += entries;
        }
    }
}

/// One packet of a thread that shares the table: what it holds.
#[derive(Debug)]
pub(crate) struct Joint<'a> {
    ct: &'a Conntrack,
    chains: SmallVec<[Chain; CHAINS]>,
    slots: SmallVec<[(u32, HeldSlot<'a>); 2]>,
}

impl Drop for Joint<'_> {
    fn drop(&mut self) {
        self.chains.iter().for_each(|c| self.ct.index.release(*c));
    }
}

/// Tries something until it works, for longer than another thread's packet takes.
#[inline(always)]
fn wait_for<T>(mut f: impl FnMut() -> Option<T>) -> Result<T, NotNow> {
    for _ in 0..LOOKS {
        if let Some(x) = f() {
            return Ok(x);
        }
        std::hint::spin_loop();
    }
    Err(NotNow::Busy)
}

impl<'a> Joint<'a> {
    /// Nothing is held yet.
    pub(crate) fn new(ct: &'a Conntrack) -> Joint<'a> {
        Joint { ct, chains: SmallVec::new(), slots: SmallVec::new() }
    }

    #[inline]
    fn hold(&mut self, hash: Hash) -> Result<(), NotNow> {
        let chain = self.ct.index.chain(hash);
        if self.chains.contains(&chain) {
            return Ok(());
        }
        if self.chains.len() == CHAINS {
            return Err(NotNow::Busy);
        }
        wait_for(|| self.ct.index.try_hold(chain).then_some(()))?;
        self.chains.push(chain);
        Ok(())
    }

    /// The connection of a slot that is held.
    fn held(&mut self, slot: u32) -> Option<&mut Option<Connection>> {
        self.slots.iter_mut().find(|(s, _)| *s == slot).map(|(_, held)| &mut **held)
    }

    /// Whether a slot has the connection that a tuple belongs to; it is held then.
    fn belongs(&mut self, slot: u32, zone: Zone, t: &Tuple, d: Direction) -> Result<bool, NotNow> {
        let is = |c: &Option<Connection>| c.as_ref().is_some_and(|c| c.is(zone, t, d));
        if let Some(c) = self.held(slot) {
            return Ok(is(c));
        }
        let held = wait_for(|| self.ct.slots.try_hold(slot))?;
        let is = is(&held);
        if is {
            self.slots.push((slot, held));
        }
        Ok(is)
    }

    /// Plans the changes of a packet that passes these zones, beside other threads.
    pub(crate) fn foresee(
        &mut self,
        p: &Packet,
        passes: &[Expected],
        now: Duration,
        plan: &mut Plan,
        stash: &Stash,
    ) -> Result<(), NotNow> {
        plan.work_out(self, p, passes, now)?;
        // What a plan for one thread alone allows, and threads beside each other do not.
        let fits = stash.slots.len() >= plan.opened.len() && stash.lines.len() >= 2 * plan.opened.len();
        if fits && plan.is_plain(passes) { Ok(()) } else { Err(NotNow::Busy) }
    }

    /// Makes the planned changes.
    pub(crate) fn carry_out(
        mut self,
        p: &Packet,
        passes: &[Expected],
        now: Duration,
        plan: &mut Plan,
        stash: &mut Stash,
    ) {
        let (ct, read) = (self.ct, self.ct.journal.is_read());
        for passed in plan.passed.drain(..) {
            let (at, mut c) = (passed.slot, passed.connection);
            c.expires = now + ct.timeout(c.zone, c.phase);
            ct.live.set(at, stamp(&c), c.expires.as_nanos() as u64);
            if read && c.version != passed.version {
                stash.done.changed.push((at, c.zone, false));
            }
            if let Some(place) = self.held(at) {
                *place = Some(c);
            }
        }
        for o in plan.opened.drain(..) {
            let Some(Expected { zone, outcome: Outcome::Opens(commit) }) = passes.get(o.pass) else { continue };
            // The plan has checked that there are enough.
            let Some((slot, generation)) = stash.slots.pop() else { continue };
            let [original, reply] = o.tuples;
            let req = Request { zone: *zone, commit: true, force: false, nat: commit.nat.as_ref() };
            let mut c = ct.new_connection(&Packet { tuple: original, ..*p }, &req, reply, now);
            (c.mark, c.label) = (commit.mark, commit.label);
            c.version = u32::from((c.mark, c.label) != (0, 0));
            c.generation = generation;
            ct.live.set(slot, stamp(&c), c.expires.as_nanos() as u64);
            // An empty slot that is set aside is in no entry: nobody else holds it.
            if let Some(mut place) = ct.slots.try_hold(slot) {
                *place = Some(c);
            }
            for (hash, d) in o.hashes.into_iter().zip([Direction::Original, Direction::Reply]) {
                ct.index.add(hash, slot, d, &mut stash.lines);
            }
            ct.habits.opened(&original, &reply);
            let done = &mut stash.done;
            done.entries += 2;
            match done.zones.iter_mut().find(|(z, _)| z == zone) {
                Some((_, n)) => *n += 1,
                None => done.zones.push((*zone, 1)),
            }
            if read {
                done.changed.push((slot, *zone, true));
            }
        }
    }
}

impl Lookup for Joint<'_> {
    fn table(&self) -> &Conntrack {
        self.ct
    }

    fn find(&mut self, hash: Hash, zone: Zone, t: &Tuple) -> Result<Option<(u32, Direction)>, NotNow> {
        self.hold(hash)?;
        let (index, mut busy) = (&self.ct.index, false);
        let found = index.find_by(hash, |slot, d| match self.belongs(slot, zone, t, d) {
            Ok(is) => is,
            Err(_) => {
                busy = true;
                false
            }
        });
        if busy { Err(NotNow::Busy) } else { Ok(found) }
    }

    fn connection(&mut self, slot: u32) -> Result<Connection, NotNow> {
        let c = self.held(slot).and_then(|c| c.as_ref()).ok_or(NotNow::Otherwise)?;
        // Whose it is changes with its next packet: that is for one who has the table alone.
        if c.is_only_ours() { Ok(c.clone()) } else { Err(NotNow::Busy) }
    }

    /// A zone that threads count together has no limit.
    fn is_full(&self, zone: Zone) -> Result<bool, NotNow> {
        if self.ct.zones.limited(zone) { Err(NotNow::Busy) } else { Ok(false) }
    }

    /// A connection that has expired is still in the index, where nothing can be removed now.
    fn expired_is_taken(&self) -> Result<bool, NotNow> {
        Err(NotNow::Busy)
    }

    fn claims(&mut self, hash: Hash, zone: Zone, reply: &Tuple) -> Result<bool, NotNow> {
        match self.find(hash, zone, reply)? {
            None => Ok(true),
            Some(_) => Err(NotNow::Busy),
        }
    }

    fn seed(&mut self) -> Option<&mut u64> {
        None
    }
}
