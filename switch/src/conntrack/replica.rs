//! Connections of another chassis, kept for the case that it dies.
//!
//! A connection belongs to the chassis that saw its last packet ([`Connection::owner`]). Those of others are in the table
//! as all are, but they have no timeout: the other chassis tells when they end. The first packet that this switch sees of
//! such a connection makes it its own. Nothing is done for a connection when its gateway dies.
//!
//! Once the other chassis is lost ([`Conntrack::set_lost`]), the sweep makes its connections this chassis' own, with the
//! timeout of their phase from then on. So none ends early, none stays for ever, and all are told when the other one is
//! back.
//!
//! Two chassis that both have a connection as their own decide alike whose it is: who has only inherited it gives way, then
//! whose last packet is older. What they compare has been on its way meanwhile, so both may give way. Therefore each tells
//! that it did ([`super::journal::Change::GaveWay`]), and what the other one gave up as well is taken back. Then both have it
//! as inherited, where their names decide, which take no time. A connection that was given up is removed by its new
//! owner's word alone ([`Replica::close`]), not because a dump does not tell it.

use super::{ConnId, Connection, Conntrack, Phase, TcpState, Translates, Tuple, Zone, limits};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// The time of a connection that another chassis looks after.
pub(super) const NEVER: Duration = Duration::from_nanos(u64::MAX);

/// Another chassis; 0 is this one.
pub type Owner = u8;

/// State, mark and label of a connection of another chassis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteState {
    /// TCP state of both ends, the originator's first.
    pub ends: [TcpState; 2],
    /// Which timeout holds.
    pub phase: Phase,
    /// A reply was seen.
    pub replied: bool,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
}

/// A connection of another chassis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteConnection {
    /// Zone, as numbered here.
    pub zone: Zone,
    /// First packet's tuple, before translation.
    pub original: Tuple,
    /// The tuple of replies, before they are translated back.
    pub reply: Tuple,
    /// What `nat` does.
    pub translates: Translates,
    /// State, mark and label.
    pub state: RemoteState,
    /// How long ago its last packet came.
    pub idle: Duration,
    /// It was this chassis' until a packet of it came to the other.
    pub ours_before: bool,
    /// The other chassis has it as its owner was lost, and has seen no packet of it.
    pub orphan: bool,
}

/// What became of what another chassis told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplicaCounters {
    /// Connections that both chassis call their own.
    pub conflicts: u64,
    /// Connections for which the table, or its share for other chassis, had no room.
    pub refused: u64,
    /// Connections that both chassis gave up for the other one, and took back.
    pub crossed: u64,
}

/// Where a connection of another chassis is: its slot, and the low bits of its generation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held(u32, u32);

/// No connection.
const NONE: Held = Held(u32::MAX, 0);

/// The most refused slots that are remembered; of more, everything is asked for again.
const REFUSED: usize = 4096;

/// What a chassis lacks of what another one has told.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Lack {
    /// Nothing.
    #[default]
    Nothing,
    /// What is in these slots of the other chassis.
    Slots(Vec<u32>),
    /// More than is worth naming: a dump is needed.
    Much,
}

/// What one other chassis has told.
#[derive(Debug)]
pub struct Replica {
    owner: Owner,
    /// Of two that have inherited a connection this chassis keeps it.
    keeps: bool,
    epoch: u8,
    /// By the slot of the other chassis.
    slots: Vec<Held>,
    /// After a dump: the next slot to look at, and how many had a connection.
    sweep: Option<(usize, u32)>,
    /// Slots whose connections gave way to one of this chassis, with its slot; [`REFUSED`] at most and one more.
    refused: BTreeMap<u32, u32>,
    /// There was no room for some.
    no_room: bool,
    /// [`Conntrack::unheard`] when the other chassis was asked last.
    unheard: u64,
    /// Counters.
    pub counters: ReplicaCounters,
}

/// Why a connection of another chassis is not taken.
enum NotTaken {
    /// This chassis has one there, in this slot.
    Conflict(u32),
    /// The table, or its share for other chassis, is full.
    NoRoom,
}

impl Replica {
    /// Nothing has been told yet. `owner` is not 0. `keeps`: of two that have inherited a connection this chassis keeps it;
    /// the other one has to be told the opposite.
    pub fn new(owner: Owner, keeps: bool) -> Replica {
        let (refused, counters) = (BTreeMap::new(), ReplicaCounters::default());
        Replica {
            owner,
            keeps,
            epoch: 0,
            slots: Vec::new(),
            sweep: None,
            refused,
            no_room: false,
            unheard: 0,
            counters,
        }
    }

    /// Whose connections these are.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// A dump begins.
    pub fn begin(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.sweep = None;
    }

    /// A dump is complete: what it did not tell is gone. [`Replica::sweep`] removes it.
    pub fn end(&mut self) {
        self.sweep = Some((0, 0));
    }

    /// Looks for what the last dump did not tell in the next `n` slots. Returns how many connections the other chassis
    /// has, once it has looked at all.
    pub fn sweep(&mut self, ct: &mut Conntrack, n: usize, now: Duration) -> Option<u32> {
        let (from, mut count) = self.sweep?;
        let to = from.saturating_add(n).min(self.slots.len());
        for s in self.slots.get_mut(from..to).unwrap_or_default() {
            let Some((i, c)) = ct.held(*s, self.owner) else { continue };
            if c.epoch == self.epoch {
                count += 1;
                continue;
            }
            if c.gave_way {
                ct.inherit(i, now);
            } else {
                ct.delete(i);
            }
            *s = NONE;
        }
        if to < self.slots.len() {
            self.sweep = Some((to, count));
            return None;
        }
        self.sweep = None;
        Some(count)
    }

    /// A dump is complete, and its sweep is not.
    pub fn is_sweeping(&self) -> bool {
        self.sweep.is_some()
    }

    /// The chassis has this connection in one of its slots.
    pub fn put(&mut self, ct: &mut Conntrack, slot: u32, c: &RemoteConnection, now: Duration) {
        let at = slot as usize;
        // Another chassis of the same size has no more slots than this one.
        if at >= ct.places() {
            self.counters.refused += 1;
            return;
        }
        if self.slots.len() <= at {
            self.slots.resize(at + 1, NONE);
        }
        let Some(place) = self.slots.get_mut(at) else { return };
        let before = std::mem::replace(place, NONE);
        *place = match ct.held(before, self.owner).map(|(i, have)| (i, c.same(have))) {
            Some((i, true)) => {
                ct.put_state(i, &c.state, Some(self.epoch));
                before
            }
            other => {
                if let Some((i, false)) = other {
                    ct.delete(i);
                }
                match ct.put_remote((self.owner, self.keeps), self.epoch, c, now, &mut self.counters) {
                    Ok(id) => Held(id.index, id.generation as u32),
                    Err(NotTaken::Conflict(own)) => {
                        if self.refused.get(&slot) != Some(&own) {
                            self.forget_refusal(ct, slot);
                        }
                        if self.refused.len() <= REFUSED {
                            self.refused.insert(slot, own);
                        }
                        return;
                    }
                    Err(NotTaken::NoRoom) => {
                        self.no_room = true;
                        NONE
                    }
                }
            }
        };
        self.forget_refusal(ct, slot);
    }

    /// What was refused of a slot is no longer there. The other chassis may have given up the connection that was
    /// preferred for it, and then does not ask for it: it is told again.
    fn forget_refusal(&mut self, ct: &mut Conntrack, slot: u32) {
        if let Some(own) = self.refused.remove(&slot) {
            ct.tell_content(own);
        }
    }

    /// What this chassis lacks since it was asked last, and would take now if it were told again: a connection that was
    /// refused because of another one is welcome once that has gone, and who of two yields may be seen by now.
    /// What went here and not there, as by a flush, is asked for, too.
    /// The connections that were preferred are told again as well: the other chassis may not know of their last packets.
    pub fn lacks(&mut self, ct: &mut Conntrack) -> Lack {
        if std::mem::replace(&mut self.unheard, ct.unheard) != ct.unheard {
            self.refused.clear();
            return Lack::Much;
        }
        if self.no_room && ct.len() < ct.share() - ct.share() / 8 {
            (self.no_room, self.refused) = (false, BTreeMap::new());
            return Lack::Much;
        }
        match std::mem::take(&mut self.refused) {
            refused if refused.is_empty() => Lack::Nothing,
            refused => {
                refused.values().for_each(|own| ct.tell_content(*own));
                let all: Vec<u32> = refused.into_keys().collect();
                if all.len() > REFUSED { Lack::Much } else { Lack::Slots(all) }
            }
        }
    }

    /// The connection of a slot has another state, mark or label.
    pub fn state(&mut self, ct: &mut Conntrack, slot: u32, state: &RemoteState) {
        if let Some((i, _)) = self.slots.get(slot as usize).and_then(|s| ct.held(*s, self.owner)) {
            ct.put_state(i, state, None);
        }
    }

    /// The connection of a slot gave way to one of this chassis. If that has given way to it in turn, it is this chassis'
    /// again.
    pub fn gave_way(&mut self, ct: &mut Conntrack, slot: u32, now: Duration) {
        self.forget_refusal(ct, slot);
        let before = self.slots.get_mut(slot as usize).map_or(NONE, |s| std::mem::replace(s, NONE));
        if let Some((i, _)) = ct.held(before, self.owner) {
            self.counters.crossed += 1;
            ct.inherit(i, now);
        }
    }

    /// A slot is empty.
    pub fn close(&mut self, ct: &mut Conntrack, slot: u32) {
        self.forget_refusal(ct, slot);
        let before = self.slots.get_mut(slot as usize).map_or(NONE, |s| std::mem::replace(s, NONE));
        if let Some((i, _)) = ct.held(before, self.owner) {
            ct.delete(i);
        }
    }
}

impl RemoteConnection {
    /// A connection as another chassis sees it.
    pub fn of(c: &Connection, idle: Duration) -> RemoteConnection {
        let (zone, original, reply, translates) = (c.zone, c.original, c.reply, c.translates);
        RemoteConnection {
            zone,
            original,
            reply,
            translates,
            state: c.state(),
            idle,
            ours_before: false,
            orphan: c.orphan,
        }
    }

    fn same(&self, c: &Connection) -> bool {
        (self.zone, self.original, self.reply, self.translates) == (c.zone, c.original, c.reply, c.translates)
    }
}

impl Connection {
    fn adopt_state(&mut self, s: &RemoteState) {
        self.version = self.version.wrapping_add(1);
        (self.ends, self.phase, self.replied) = (s.ends, s.phase, s.replied);
        (self.mark, self.label) = (s.mark, s.label);
    }

    /// Makes it this chassis' own, as a packet of it has come; returns whose it was, if another's.
    pub(super) fn adopt(&mut self) -> Option<Owner> {
        (self.orphan, self.gave_way) = (false, false);
        let before = std::mem::take(&mut self.owner);
        if before == 0 {
            return None;
        }
        self.from = before;
        Some(before)
    }

    /// It is this chassis', and its next packet does not change that, or what has to be told of it.
    pub(super) fn is_only_ours(&self) -> bool {
        self.owner == 0 && !self.orphan && !self.gave_way
    }

    /// It is this chassis' as its owner was lost, and no packet of it has come since.
    pub fn is_orphan(&self) -> bool {
        self.orphan
    }

    /// State, mark and label.
    pub fn state(&self) -> RemoteState {
        RemoteState { ends: self.ends, phase: self.phase, replied: self.replied, mark: self.mark, label: self.label }
    }
}

/// Whose the connections of a table are.
#[derive(Debug)]
pub(super) struct Owners {
    /// How many each chassis has, by owner.
    counts: [u32; 256],
    /// Other chassis that are lost.
    lost: HashSet<Owner>,
    /// When a packet last made a connection this chassis' whose owner lives.
    moved: Option<Duration>,
}

impl Default for Owners {
    fn default() -> Owners {
        Owners { counts: [0; 256], lost: HashSet::new(), moved: None }
    }
}

impl Owners {
    /// Counts a connection that a chassis has got, or lost.
    fn count(&mut self, owner: Owner, n: u32) {
        if let Some(place) = self.counts.get_mut(usize::from(owner)) {
            *place = place.wrapping_add(n);
        }
    }

    /// A connection of another chassis is this one's now.
    fn inherits(&mut self, from: Owner) {
        self.count(from, u32::MAX);
        self.count(0, 1);
    }

    /// The same, by a packet that came here.
    pub(super) fn moves_here(&mut self, from: Owner, now: Duration) {
        self.inherits(from);
        self.packet_from(from, now);
    }

    /// A packet came here for what was another chassis'.
    pub(super) fn packet_from(&mut self, from: Owner, now: Duration) {
        if !self.lost.contains(&from) {
            self.moved = Some(now);
        }
    }

    /// Whether a packet has made a connection this chassis' within such a time, whose owner lives.
    pub(super) fn moved_within(&self, time: Duration, now: Duration) -> bool {
        self.moved.is_some_and(|at| now.saturating_sub(at) < time)
    }
}

impl Conntrack {
    /// Counts a connection that a chassis has got, or lost.
    pub(super) fn count_owner(&mut self, owner: Owner, n: u32) {
        self.owners.count(owner, n);
    }

    /// The connection that another chassis told, if it is still that chassis'.
    fn held(&mut self, at: Held, owner: Owner) -> Option<(u32, &Connection)> {
        let c = self.slots.get(at.0)?;
        (c.generation as u32 == at.1 && c.owner == owner).then_some((at.0, c))
    }

    /// Has what is in a slot told to all readers.
    fn tell_content(&mut self, index: u32) {
        if let Some(c) = self.slots.get(index) {
            self.journal.content(index, c.zone);
        }
    }

    fn put_state(&mut self, index: u32, state: &RemoteState, epoch: Option<u8>) {
        if let Some(c) = self.slots.get_mut(index) {
            c.adopt_state(state);
            c.epoch = epoch.unwrap_or(c.epoch);
            c.expires = NEVER;
        }
        self.publish(index);
    }

    /// Takes a connection of another chassis, unless this one saw a packet of it later than that one.
    fn put_remote(
        &mut self,
        (owner, keeps): (Owner, bool),
        epoch: u8,
        new: &RemoteConnection,
        now: Duration,
        counters: &mut ReplicaCounters,
    ) -> Result<ConnId, NotTaken> {
        let at = |t| self.find(new.zone, t).map(|(i, _)| i);
        let there = [at(&new.original), at(&new.reply)];
        for i in there.into_iter().flatten().filter(|_| !new.ours_before) {
            let (expires, idle) = (self.expires(i), self.idle(i, now));
            let Some(c) = self.slots.get(i) else { continue };
            if c.owner != 0 || expires <= now {
                continue;
            }
            counters.conflicts += u64::from(!c.orphan && !new.orphan);
            // Both chassis decide alike, but for what is on its way.
            let stays = match (c.orphan, new.orphan) {
                (true, true) => keeps,
                (false, false) => idle <= new.idle,
                (own, _) => !own,
            };
            if stays {
                return Err(NotTaken::Conflict(i));
            }
        }
        // What the same chassis had in another slot is gone, even if that has not been told yet.
        let mut gave_way = false;
        for i in there.into_iter().flatten() {
            let Some(c) = self.delete(i).filter(|c| c.owner == 0) else { continue };
            if new.same(&c) {
                gave_way = true;
                self.journal.gave_way(i, owner);
            }
        }
        if self.len() >= self.share() {
            counters.refused += 1;
            return Err(NotTaken::NoRoom);
        }
        let id = self.store(
            Connection {
                zone: new.zone,
                original: new.original,
                reply: new.reply,
                translates: new.translates,
                mark: new.state.mark,
                label: new.state.label,
                replied: new.state.replied,
                ends: new.state.ends,
                phase: new.state.phase,
                window: None,
                expires: NEVER,
                owner,
                epoch,
                from: 0,
                orphan: false,
                gave_way,
                generation: 0,
                version: 0,
            },
            [None, None],
            now,
        );
        counters.refused += u64::from(id.is_none());
        id.ok_or(NotTaken::NoRoom)
    }

    /// How full the table may be for connections of other chassis: a tenth stays free for what this one itself serves.
    fn share(&self) -> usize {
        self.limit - self.limit / 10
    }

    /// Puts a connection of this chassis into the table, as it was before a restart: `left` is the time until it
    /// expires. False if there is no room, or its tuples are taken.
    pub fn restore(&mut self, c: &RemoteConnection, left: Duration, now: Duration) -> bool {
        if [c.original, c.reply].iter().any(|t| self.find(c.zone, t).is_some()) {
            return false;
        }
        let mut counters = ReplicaCounters::default();
        let Ok(id) = self.put_remote((1, true), 0, c, now, &mut counters) else { return false };
        if let Some(c) = self.slots.get_mut(id.index) {
            c.owner = 0;
            c.expires = now + left;
            self.owners.inherits(1);
            self.journal.content(id.index, c.zone);
        }
        self.publish(id.index);
        true
    }

    /// Says whether another chassis is lost: the sweep gives its connections timeouts then.
    pub fn set_lost(&mut self, owner: Owner, lost: bool) {
        match lost {
            true => self.owners.lost.insert(owner),
            false => self.owners.lost.remove(&owner),
        };
    }

    /// Whether a lost chassis still has connections in the table. Without any, the sweep looks at no connection of others,
    /// which a standby has many of.
    pub(super) fn has_orphans(&self) -> bool {
        self.owners.lost.iter().any(|o| self.of_owner(*o) > 0)
    }

    /// A connection that another chassis looked after is this one's, with a timeout from now on, if that chassis is lost:
    /// it has to be told when that comes back, as it may have forgotten everything.
    #[cold]
    pub(super) fn sweep_remote(&mut self, index: u32, now: Duration) {
        let Some(c) = self.slots.get(index) else { return };
        if self.owners.lost.contains(&c.owner) {
            self.inherit(index, now);
        }
    }

    /// A connection that another chassis looked after is this one's, with a timeout from now on.
    fn inherit(&mut self, index: u32, now: Duration) {
        if let Some(c) = self.slots.get_mut(index) {
            c.expires = now + limits::of(&self.timeouts, c.zone).get(c.phase);
            if let Some(before) = c.adopt() {
                self.owners.inherits(before);
            }
            // Nobody has to be told whose it was.
            (c.from, c.orphan) = (0, true);
            self.journal.content(index, c.zone);
        }
        self.publish(index);
    }

    /// How many connections of each other chassis are in the table.
    pub fn of_owner(&self, owner: Owner) -> usize {
        self.owners.counts.get(usize::from(owner)).map_or(0, |n| *n as usize)
    }
}
