//! Connection tracking and address translation.
//!
//! A connection has two tuples, one for each direction; the reply tuple is that after translation. States follow
//! ovs-fields(7) `ct_state`: a connection is `est` once a reply has been seen.

mod awaiting;
mod connection;
mod dump;
mod flush;
mod index;
mod joint;
pub mod journal;
mod limits;
mod nat;
pub mod reassembly;
pub mod replica;
mod shared;
mod slots;
mod state;
mod template;
#[cfg(test)]
mod tests;
mod window;
mod zone;

pub use awaiting::Awaiting;
pub(crate) use connection::ConnSnapshot;
pub use connection::{Connection, Direction, Translates, Tuple};
pub use dump::Detail;
pub use flush::Flush;
pub(crate) use joint::{Joint, Stash};
pub use limits::Refusal;
pub(crate) use shared::Beside;
pub use shared::{Held, SharedConntrack};
pub use state::{Phase, TcpState, Timeouts};
pub(crate) use template::{Bits, Commit, Expected, Found, NotNow, Outcome, Plan};
pub use window::{Segment, Window};
pub use zone::Zone;

use crate::stamps::{GenerationTable, StampTable};
use index::Hash;
use openflow_rs::action::NatSpec;
use slots::Slots;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// `ct_state` bits.
pub mod flag {
    /// A new connection.
    pub const NEW: u32 = 1;
    /// An established one.
    pub const EST: u32 = 2;
    /// Related to one.
    pub const REL: u32 = 4;
    /// In the reply direction.
    pub const RPL: u32 = 8;
    /// Invalid.
    pub const INV: u32 = 16;
    /// Tracked.
    pub const TRK: u32 = 32;
    /// Source was translated.
    pub const SNAT: u32 = 64;
    /// Destination was translated.
    pub const DNAT: u32 = 128;
}

/// A packet as connection tracking sees it.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Its tuple.
    pub tuple: Tuple,
    /// TCP flags.
    pub tcp_flags: u16,
    /// Other fields of the TCP header; only if windows are checked.
    pub segment: Option<Segment>,
    /// An ICMP error: `tuple` is that of the packet inside, reversed.
    pub error: bool,
    /// Its checksums are wrong, or a port is 0: it is invalid, whatever connections there are.
    pub broken: bool,
}

impl Packet {
    /// Whether it may open a connection.
    #[inline]
    pub(crate) fn may_open(&self) -> bool {
        state::may_open(self)
    }
}

/// What `ct` found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// `ct_state`.
    pub state: u32,
    /// The connection.
    pub conn: Option<ConnId>,
    /// The packet's tuple after translation, if it changes.
    pub translated: Option<Tuple>,
    /// Why a connection was not made, although it was to be.
    pub refused: Option<Refusal>,
    /// The packet's direction is the reply's.
    pub(crate) reply: bool,
}

/// Identifies a connection; identifiers of removed connections are recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnId {
    index: u32,
    generation: u64,
}

/// The last pass of a packet through connection tracking, if it has a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    pub(crate) zone: Zone,
    pub(crate) id: ConnId,
    /// `ct_state`.
    pub(crate) state: u32,
    /// The packet's direction is the reply's.
    pub(crate) reply: bool,
    /// The packet's tuple after the pass.
    pub(crate) tuple: Tuple,
}

/// The parameters of a `ct` action.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// Zone.
    pub zone: Zone,
    /// Put new connections into the table.
    pub commit: bool,
    /// Make this direction the original one.
    pub force: bool,
    /// Translation.
    pub nat: Option<&'a NatSpec>,
}

/// A connection in one state, for checks of the flow cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub(crate) index: u32,
    pub(crate) stamp: u64,
}

/// The version takes the low 24 bits: after 16 million changes a connection's stamp would equal that of the next one in
/// its place.
fn stamp(c: &Connection) -> u64 {
    (c.generation << 24).wrapping_add(u64::from(c.version))
}

/// The connection table.
#[derive(Debug)]
pub struct Conntrack {
    /// By slot: the stamp of each connection (generation and version), and when it expires, in nanoseconds. The flow
    /// cache checks and refreshes these for every packet, so that it touches a few bytes of a connection and not the
    /// hundreds that describe it.
    live: StampTable,
    index: index::Index,
    slots: Slots,
    free: Vec<u32>,
    /// How many connections there are. Slots that threads have set aside have none.
    count: AtomicUsize,
    /// What threads did beside each other since somebody last had the table alone.
    ledger: Mutex<joint::Ledger>,
    /// Limit of connections, and capacity.
    limit: usize,
    room: usize,
    generation: u64,
    sweep_at: usize,
    seed: u64,
    /// TCP segments outside their windows are invalid; see [`crate::Switch::check_tcp_windows`].
    pub windows: bool,
    timeouts: HashMap<Zone, Timeouts>,
    zones: limits::Zones,
    habits: nat::ReplyTuplePrefetch,
    journal: journal::Journal,
    owners: replica::Owners,
    /// How many connections went here that another chassis still has.
    unheard: u64,
}

impl Conntrack {
    /// A table of at most `limit` connections.
    pub fn new(limit: usize) -> Self {
        let limit = limit.min(index::MOST - joint::SET_ASIDE);
        Conntrack {
            live: StampTable::new(limit + joint::SET_ASIDE),
            index: index::Index::new(limit),
            slots: Slots::new(limit),
            free: Vec::new(),
            count: AtomicUsize::new(0),
            ledger: Mutex::default(),
            limit,
            room: limit,
            generation: 0,
            sweep_at: 0,
            seed: 0x9e37_79b9_7f4a_7c15,
            windows: false,
            timeouts: HashMap::new(),
            zones: limits::Zones::default(),
            habits: nat::ReplyTuplePrefetch::default(),
            journal: journal::Journal::default(),
            owners: replica::Owners::default(),
            unheard: 0,
        }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// How many slots the table has by now, which [`Conntrack::sweep`] has to look at.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Most connections.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Sets the limit; present connections stay. False if it exceeds the capacity.
    pub fn set_most(&mut self, limit: usize) -> bool {
        let fits = limit <= self.room;
        if fits {
            self.limit = limit;
        }
        fits
    }

    /// The capacity.
    pub fn room(&self) -> usize {
        self.room
    }

    /// True without connections.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What `f` makes of a connection, if it is still there.
    pub(crate) fn look<R>(&self, id: ConnId, f: impl FnOnce(&Connection) -> R) -> Option<R> {
        self.slots.look(id.index, |c| (c.generation == id.generation).then(|| f(c)))?
    }

    /// Changes mark and label.
    pub fn set_mark_label(&mut self, id: ConnId, mark: u32, label: u128) {
        if let Some(c) = self.slots.get_mut(id.index).filter(|c| c.generation == id.generation) {
            if (c.mark, c.label) != (mark, label) {
                c.version = c.version.wrapping_add(1);
                self.journal.state(id.index, c.zone);
            }
            c.mark = mark;
            c.label = label;
            c.expires = Duration::from_nanos(self.live.get(id.index).1);
            self.publish(id.index);
        }
    }

    /// The slot of a tuple's connection, expired or not.
    fn find(&self, zone: Zone, t: &Tuple) -> Option<(u32, Direction)> {
        self.index.find(&self.slots, self.index.hash(zone, t), zone, t)
    }

    /// The same for one who has the table alone, with the tuple's hash.
    #[inline]
    fn find_alone(&mut self, hash: Hash, zone: Zone, t: &Tuple) -> Option<(u32, Direction)> {
        let Conntrack { index, slots, .. } = self;
        index.find_by(hash, |slot, d| slots.get(slot).is_some_and(|c| c.is(zone, t, d)))
    }

    /// The connection of a tuple, expired or not.
    pub(crate) fn seen(&self, zone: Zone, tuple: &Tuple) -> Option<ConnSnapshot> {
        let (i, _) = self.find(zone, tuple)?;
        self.seen_at(i)
    }

    /// A connection as it is now.
    pub(crate) fn snapshot(&self, id: ConnId) -> Option<ConnSnapshot> {
        self.seen_at(id.index).filter(|seen| seen.id == id)
    }

    fn seen_at(&self, index: u32) -> Option<ConnSnapshot> {
        self.slots.look(index, |c| {
            let id = ConnId { index, generation: c.generation };
            ConnSnapshot { id, version: c.version, timeout: self.timeout(c.zone, c.phase) }
        })
    }

    /// The stamp of a connection, if it is still in this state.
    pub(crate) fn stamp_of(&self, seen: ConnSnapshot) -> Option<Stamp> {
        self.look(seen.id, |c| {
            let stamp = Stamp { index: seen.id.index, stamp: stamp(c) };
            (c.version == seen.version).then_some(stamp)
        })?
    }

    /// Passes the memory that a packet with this tuple will read if it opens a connection to `near` (to prefetch it).
    #[inline]
    pub(crate) fn near(&self, t: &Tuple, near: impl Fn(&index::Line)) {
        self.index.near(self.index.anywhere(t), &near);
        self.index.near(self.index.anywhere(&self.habits.reply(t)), &near);
    }

    /// The same for a packet that opens what these passes say: the tuples that translations of its destination bring.
    pub(crate) fn near_translated(&self, t: &Tuple, passes: &[Expected], near: impl Fn(&index::Line)) {
        let mut t = *t;
        for commit in passes.iter().filter_map(|p| p.outcome.opens()) {
            let Some(nat) = commit.nat.as_ref().filter(|n| n.dst) else { continue };
            let Some(reply) = nat::choose_reply(&t, Some(nat), &mut 0, |_| false) else { return };
            t = reply.reversed();
            [reply, t].iter().for_each(|t| self.index.near(self.index.anywhere(t), &near));
        }
    }

    /// A place and its generation, which moves when the tuple gets a connection.
    pub(crate) fn arrivals(&self, zone: Zone, tuple: &Tuple) -> (u32, u32) {
        self.index.arrivals(zone, tuple)
    }

    /// What flow caches check: stamps of connections, and the generations of [`Conntrack::arrivals`].
    pub(crate) fn shared(&self) -> (&StampTable, &GenerationTable) {
        (&self.live, self.index.moves())
    }

    /// A connection as it is now.
    fn publish(&mut self, index: u32) {
        let (stamp, expires) = match self.slots.get(index) {
            Some(c) => (stamp(c), c.expires.as_nanos() as u64),
            None => (0, 0),
        };
        self.live.set(index, stamp, expires);
    }

    /// When a connection expires.
    fn expires(&self, index: u32) -> Duration {
        Duration::from_nanos(self.live.get(index).1)
    }

    fn id(&self, index: u32) -> Option<ConnId> {
        self.slots.look(index, |c| ConnId { index, generation: c.generation })
    }

    fn delete(&mut self, index: u32) -> Option<Connection> {
        let c = self.slots.place(index)?.take()?;
        *self.count.get_mut() -= 1;
        self.zones.gone(c.zone);
        self.count_owner(c.owner, u32::MAX);
        // The chassis whose it was has not heard that it changed hands, and has it still.
        self.unheard += u64::from(c.from != 0);
        self.journal.content(index, c.zone);
        for d in [Direction::Original, Direction::Reply] {
            self.index.remove((c.zone, c.tuple(d)), index, d);
        }
        self.free.push(index);
        self.publish(index);
        Some(c)
    }

    /// How many slots there may be: some may be set aside when the table is full.
    fn places(&self) -> usize {
        self.room + joint::SET_ASIDE
    }

    /// An empty slot, if there is one.
    fn empty_slot(&mut self) -> Option<u32> {
        let more = self.slots.len() < self.places();
        self.free.pop().or_else(|| more.then(|| self.slots.push()))
    }

    /// Stores a connection. What is known of its original and its reply tuple: the hash, and that nobody has it.
    fn store(&mut self, mut c: Connection, known: [Option<(Hash, bool)>; 2], now: Duration) -> Option<ConnId> {
        self.generation += 1;
        c.generation = self.generation;
        if self.len() >= self.limit {
            return None;
        }
        let (zone, original, reply) = (c.zone, c.original, c.reply);
        let tuples = [(reply, Direction::Reply, known[1]), (original, Direction::Original, known[0])]
            .map(|(t, d, known)| (t, d, known.unwrap_or_else(|| (self.index.hash(zone, &t), false))));
        for (t, _, (hash, free)) in &tuples {
            if !*free {
                self.take(*hash, (zone, t), now);
            }
        }
        let index = self.empty_slot()?;
        *self.count.get_mut() += 1;
        self.zones.come(zone, 1);
        self.count_owner(c.owner, 1);
        if c.owner == 0 {
            self.journal.content(index, zone);
        }
        *self.slots.place(index)? = Some(c);
        self.publish(index);
        for (_, d, (hash, _)) in tuples {
            // If both tuples are equal, packets count as original.
            if d == Direction::Original || original != reply {
                self.index.insert(hash, index, d);
            }
        }
        Some(ConnId { index, generation: self.generation })
    }

    /// Takes a tuple from the connection that has it, if any. One that has expired goes: no two connections of the table
    /// have a tuple because the sweep has not come to one of them. A reader is told of slots in their order, and could
    /// take the dead one for the later.
    fn take(&mut self, hash: Hash, (zone, t): (Zone, &Tuple), now: Duration) {
        let Some((slot, d)) = self.find_alone(hash, zone, t) else { return };
        if self.expires(slot) <= now {
            self.delete(slot);
        } else {
            self.index.remove((zone, t), slot, d);
        }
    }

    /// Tracks a packet.
    pub fn process(&mut self, p: &Packet, req: &Request<'_>, now: Duration) -> Verdict {
        self.process_seen(p, req, now).0
    }

    /// The same; also returns the connection of the packet's tuple before and after.
    pub(crate) fn process_seen(
        &mut self,
        p: &Packet,
        req: &Request<'_>,
        now: Duration,
    ) -> (Verdict, [Option<ConnSnapshot>; 2]) {
        let hash = self.index.hash(req.zone, &p.tuple);
        let found = self.find_alone(hash, req.zone, &p.tuple);
        let before = found.and_then(|(i, _)| self.seen_at(i));
        let v = self.step(p, req, now, hash, found);
        // Afterwards the tuple belongs to the connection that was found, or to a new one.
        let after = v.conn.and_then(|id| self.seen_at(id.index));
        (v, [before, after])
    }

    /// Tracks a packet once more in the zone of its connection: its state stays, and it is translated if it has not
    /// been. `None` if the connection is gone.
    pub(crate) fn again(&self, p: &Packet, pass: &Pass, nat: bool) -> Option<Verdict> {
        self.look(pass.id, |c| {
            let mut v = Verdict { state: pass.state, conn: Some(pass.id), ..Default::default() };
            if nat && pass.state & (flag::SNAT | flag::DNAT) == 0 {
                let dir = if pass.reply { Direction::Reply } else { Direction::Original };
                c.translate(dir, &p.tuple, &mut v);
            }
            v
        })
    }

    fn step(
        &mut self,
        p: &Packet,
        req: &Request<'_>,
        now: Duration,
        hash: Hash,
        mut found: Option<(u32, Direction)>,
    ) -> Verdict {
        let mut from = 0;
        if let Some((i, _)) = found
            && self.expires(i) <= now
        {
            self.delete(i);
            found = None;
        }
        // An ICMP error about the other direction is related, too, and opens no connection.
        if let Some((i, Direction::Reply)) = found
            && req.force
            && req.commit
        {
            from = self.delete_here(i);
            found = None;
        }
        if p.error {
            self.follows(None, from, now);
            return self.related(p, req, found);
        }
        if let Some((i, dir)) = found {
            let Some(c) = self.slots.get_mut(i) else { return Verdict::default() };
            let (version, orphan) = (c.version, c.orphan);
            match state::update(c, p, dir) {
                state::Update::Valid { established } => {
                    if let Some(before) = c.adopt() {
                        self.owners.moves_here(before, now);
                        self.journal.content(i, c.zone);
                    } else if orphan {
                        self.journal.content(i, c.zone);
                    } else if c.version != version {
                        self.journal.state(i, c.zone);
                    }
                    c.expires = now + limits::of(&self.timeouts, c.zone).get(c.phase);
                    let v = c.verdict(dir, &p.tuple, established, req.nat.is_some());
                    self.publish(i);
                    return Verdict { conn: self.id(i), ..v };
                }
                state::Update::Invalid => {
                    return Verdict { state: flag::TRK | flag::INV, conn: self.id(i), ..Default::default() };
                }
                state::Update::Reopen => from = self.delete_here(i),
            }
        }
        let v = self.fresh(p, req, now, hash);
        self.follows(v.conn, from, now);
        v
    }

    /// Removes a connection as a packet of it came that opens another; returns the chassis whose it was, 0 for this one.
    fn delete_here(&mut self, index: u32) -> replica::Owner {
        self.delete(index).map_or(0, |c| c.owner)
    }

    /// A new connection, if there is one, has taken the place of one of another chassis. That has to hear of it, as if
    /// the connection had changed hands: it has the former one still.
    fn follows(&mut self, new: Option<ConnId>, from: replica::Owner, now: Duration) {
        if from == 0 {
            return;
        }
        match new.and_then(|id| self.slots.get_mut(id.index)) {
            Some(c) => {
                c.from = from;
                self.owners.packet_from(from, now);
            }
            None => self.unheard += 1,
        }
    }

    fn related(&self, p: &Packet, req: &Request<'_>, found: Option<(u32, Direction)>) -> Verdict {
        let of = |(i, dir)| {
            let v = self.slots.look(i, |c| c.related(dir, &p.tuple, req.nat.is_some()))?;
            Some(Verdict { conn: self.id(i), ..v })
        };
        found.and_then(of).unwrap_or(Verdict { state: flag::TRK | flag::INV, ..Default::default() })
    }

    /// Whether the tuple of a zone belongs to a connection that has not expired.
    fn taken(&self, zone: Zone, t: &Tuple, now: Duration) -> bool {
        self.find(zone, t).is_some_and(|(i, _)| self.expires(i) > now)
    }

    fn fresh(&mut self, p: &Packet, req: &Request<'_>, now: Duration, hash: Hash) -> Verdict {
        if !state::may_open(p) {
            return Verdict { state: flag::TRK | flag::INV, ..Default::default() };
        }
        let mut v = Verdict { state: flag::TRK | flag::NEW, ..Default::default() };
        if !req.commit {
            return v;
        }
        let refused = |why| Verdict { state: flag::TRK | flag::INV, refused: Some(why), ..Default::default() };
        if self.zones.full(req.zone) {
            return refused(Refusal::ZoneLimit);
        }
        let mut seed = self.seed;
        let reply = nat::choose_reply(&p.tuple, req.nat, &mut seed, |t| self.taken(req.zone, t, now));
        self.seed = seed;
        let Some(reply) = reply else { return refused(Refusal::NoPort) };
        let c = self.new_connection(p, req, reply, now);
        if req.nat.is_some() {
            c.translate(Direction::Original, &p.tuple, &mut v);
        }
        match self.store(c, [Some((hash, true)), None], now) {
            Some(id) => {
                v.conn = Some(id);
                self.habits.opened(&p.tuple, &reply);
                v
            }
            None => refused(Refusal::Full),
        }
    }

    /// Makes the connection that a packet opens.
    fn new_connection(&self, p: &Packet, req: &Request<'_>, reply: Tuple, now: Duration) -> Connection {
        let mut c = Connection {
            zone: req.zone,
            original: p.tuple,
            reply,
            translates: Translates::asked(req.nat),
            mark: 0,
            label: 0,
            replied: false,
            ends: Default::default(),
            phase: Phase::First,
            window: None,
            expires: now,
            owner: 0,
            epoch: 0,
            from: 0,
            orphan: false,
            gave_way: false,
            generation: 0,
            version: 0,
        };
        state::open(&mut c, p, self.windows);
        c.expires = now + self.timeout(req.zone, c.phase);
        c
    }

    /// The number of further connections that the limit allows.
    fn left(&self) -> usize {
        self.limit.saturating_sub(self.len())
    }

    /// Removes expired connections among the next `n` slots.
    pub fn sweep(&mut self, n: usize, now: Duration) {
        let now = now.as_nanos() as u64;
        let orphans = self.has_orphans();
        for _ in 0..n.min(self.slots.len()) {
            self.sweep_at = (self.sweep_at + 1) % self.slots.len().max(1);
            let (stamp, expires) = self.live.get(self.sweep_at as u32);
            if stamp != 0 && expires <= now {
                self.delete(self.sweep_at as u32);
            } else if orphans && expires == u64::MAX {
                self.sweep_remote(self.sweep_at as u32, Duration::from_nanos(now));
            }
        }
    }

    /// All connections.
    pub fn export(&self) -> impl Iterator<Item = Connection> {
        self.export_part(0, self.slots.len())
    }

    /// Those in `n` slots from one on. Who asks for all, part by part, keeps nobody from the table for long; what comes and
    /// goes meanwhile may be left out.
    pub fn export_part(&self, from: usize, n: usize) -> impl Iterator<Item = Connection> {
        let to = from.saturating_add(n).min(self.slots.len());
        (from as u32..to as u32)
            .filter_map(|i| Some(Connection { expires: self.expires(i), ..self.slots.look(i, Connection::clone)? }))
    }
}
