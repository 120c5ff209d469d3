//! Connection tracking by template: passes through several zones whose outcome an earlier packet has shown.
//!
//! A template says what a packet finds in each zone: no connection, or one with some state and mark. First all zones
//! are looked up and the changes are planned ([`Plan::work_out`]). Only if everything is as expected, the changes are made,
//! by one who has the table alone ([`Conntrack::carry_out`]) or beside others ([`super::Joint::carry_out`]). Otherwise, or if there is no room, nothing has changed and the packet walks the
//! tables.

use super::index::Hash;
use super::nat;
use super::{Connection, Conntrack, Direction, Packet, Request, Stamp, Tuple, Verdict, Zone, flag, stamp, state};
use openflow_rs::FieldId;
use openflow_rs::action::{Action, CtAction, NatSpec, ZoneSpec};
use std::time::Duration;

/// What a template expects of a pass through a zone.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Expected {
    pub(crate) zone: Zone,
    pub(crate) outcome: Outcome,
}

/// The outcome of a pass.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Outcome {
    /// The tuple has no connection and gets none.
    None,
    /// The packet is an ICMP error about one that has no connection, or has none itself and opens none.
    Unrelated,
    /// It is invalid by itself.
    Broken,
    /// It has none and opens one.
    Opens(Commit),
    /// It has one: `ct_state`, mark and label with the bits that decide, whether the packet is a reply, and whether it
    /// is translated.
    Has { state: u32, mark: u32, label: u128, bits: Bits, reply: bool, nat: bool },
    /// It has the connection of the pass before, which asked for no translation as this one does: `ct_state` then, and
    /// whether it is translated.
    Again { state: u32, translates: bool },
}

/// Bits of a connection's mark and label that decide.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Bits {
    /// Bits that flows matched.
    pub(crate) looked: (u32, u128),
    /// All bits decide, as an action would set them to what they are.
    pub(crate) all: bool,
}

impl Bits {
    /// The bits of a mark and a label that decide.
    pub(crate) fn of(&self, mark: u32, label: u128) -> (u32, u128) {
        if self.all { (mark, label) } else { (mark & self.looked.0, label & self.looked.1) }
    }
}

/// The parameters of a connection that is opened.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Commit {
    pub(crate) nat: Option<NatSpec>,
    pub(crate) mark: u32,
    pub(crate) label: u128,
}

impl Outcome {
    /// The parameters of the connection that is opened.
    pub(crate) fn opens(&self) -> Option<&Commit> {
        if let Outcome::Opens(c) = self { Some(c) } else { None }
    }

    /// The packet may be translated.
    pub(crate) fn translates(&self) -> bool {
        match self {
            Outcome::None | Outcome::Unrelated | Outcome::Broken => false,
            Outcome::Opens(c) => c.nat.as_ref().is_some_and(|n| n.src || n.dst),
            Outcome::Has { state, nat, .. } => *nat && state & (flag::SNAT | flag::DNAT) != 0,
            Outcome::Again { translates, .. } => *translates,
        }
    }
}

impl Expected {
    /// The `ct` action of the pass, for dumps.
    pub(crate) fn action(&self) -> Action {
        let set = |field, value| Action::set(field, value);
        let (commit, nat, mark, label) = match &self.outcome {
            Outcome::None | Outcome::Unrelated | Outcome::Broken => (false, None, 0, 0),
            Outcome::Opens(c) => (true, c.nat.clone(), c.mark, c.label),
            Outcome::Has { nat, .. } => (false, nat.then(NatSpec::default), 0, 0),
            Outcome::Again { .. } => (false, Some(NatSpec::default()), 0, 0),
        };
        let marks = [(FieldId::CtMark, mark.into()), (FieldId::CtLabel, label)];
        Action::Ct(Box::new(CtAction {
            commit,
            zone: ZoneSpec::Imm(self.zone.0),
            nat,
            exec: marks.into_iter().filter(|(_, v)| *v != 0).map(|(f, v)| set(f, v)).collect(),
            ..CtAction::default()
        }))
    }
}

/// The planned changes of a packet.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(super) opened: Vec<Opened>,
    pub(super) passed: Vec<Passed>,
    /// Connections that the packet, an ICMP error, is about.
    related: Vec<Stamp>,
    /// The packet's tuples before and after each translation.
    pub(crate) translated: Vec<[Tuple; 2]>,
    /// What random ports follow from afterwards.
    seed: u64,
}

/// A connection to open.
#[derive(Debug)]
pub(super) struct Opened {
    /// The number of the pass.
    pub(super) pass: usize,
    /// Original and reply, and their hashes.
    pub(super) tuples: [Tuple; 2],
    pub(super) hashes: [Hash; 2],
    /// Nobody has the reply tuple.
    pub(super) free: bool,
}

/// A connection that the packet passes.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) slot: u32,
    /// Its version before this pass.
    pub(super) version: u32,
    /// As it will be.
    pub(super) connection: Connection,
}

/// Why nothing is planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotNow {
    /// The packet finds something else, or there is no room.
    Otherwise,
    /// One who has the table alone can say.
    Busy,
}

/// How a plan reads the table.
pub(super) trait Lookup {
    /// What does not change while the plan is made.
    fn table(&self) -> &Conntrack;
    /// The connection of a tuple.
    fn find(&mut self, hash: Hash, zone: Zone, t: &Tuple) -> Result<Option<(u32, Direction)>, NotNow>;
    /// The connection that was found in a slot.
    fn connection(&mut self, slot: u32) -> Result<Connection, NotNow>;
    /// Whether a zone admits no more connections.
    fn is_full(&self, zone: Zone) -> Result<bool, NotNow>;
    /// Whether a reply tuple is taken by a connection that has expired.
    fn expired_is_taken(&self) -> Result<bool, NotNow>;
    /// A reply tuple that was not searched for is going to be a new connection's; true if nobody has it.
    fn claims(&mut self, hash: Hash, zone: Zone, reply: &Tuple) -> Result<bool, NotNow>;
    /// What random ports follow from, if they can be chosen.
    fn seed(&mut self) -> Option<&mut u64>;
}

/// One who has the table alone.
struct Alone<'a> {
    ct: &'a mut Conntrack,
    seed: u64,
}

impl Lookup for Alone<'_> {
    fn table(&self) -> &Conntrack {
        self.ct
    }

    #[inline]
    fn find(&mut self, hash: Hash, zone: Zone, t: &Tuple) -> Result<Option<(u32, Direction)>, NotNow> {
        Ok(self.ct.find_alone(hash, zone, t))
    }

    fn connection(&mut self, slot: u32) -> Result<Connection, NotNow> {
        self.ct.slots.get(slot).cloned().ok_or(NotNow::Otherwise)
    }

    fn is_full(&self, zone: Zone) -> Result<bool, NotNow> {
        Ok(self.ct.zones.full(zone))
    }

    fn expired_is_taken(&self) -> Result<bool, NotNow> {
        Ok(false)
    }

    /// It is taken from any connection that has it.
    fn claims(&mut self, _: Hash, _: Zone, _: &Tuple) -> Result<bool, NotNow> {
        Ok(false)
    }

    fn seed(&mut self) -> Option<&mut u64> {
        Some(&mut self.seed)
    }
}

/// What a packet found in a zone without changing it, for an entry of its key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    Connection(Stamp, Duration),
    /// What an ICMP error is about, which that does not refresh.
    Related(Stamp),
    /// The place and generation are those of [`Conntrack::arrivals`] then.
    None {
        zone: Zone,
        tuple: Tuple,
        arrivals: (u32, u32),
    },
}

/// The reply tuple of a connection that a packet opens in a zone, its hash, and whether nobody has it. Who has it would not
/// keep it.
fn claim_reply(
    look: &mut impl Lookup,
    tuple: &Tuple,
    zone: Zone,
    nat: Option<&NatSpec>,
    now: Duration,
) -> Result<(Tuple, Hash, bool), NotNow> {
    let mut seed = match (nat, look.seed()) {
        (_, Some(seed)) => *seed,
        (Some(n), None) if n.random => return Err(NotNow::Busy),
        (_, None) => 0,
    };
    let (mut problem, mut last) = (None, None);
    let reply = nat::choose_reply(tuple, nat, &mut seed, |t| {
        let hash = look.table().index.hash(zone, t);
        let found = look.find(hash, zone, t);
        let taken = match found {
            Ok(None) => Ok(false),
            Ok(Some((at, _))) if look.table().expires(at) > now => Ok(true),
            Ok(Some(_)) => look.expired_is_taken(),
            Err(e) => Err(e),
        };
        last = Some((*t, hash, found == Ok(None)));
        taken.unwrap_or_else(|e| {
            problem = Some(e);
            false
        })
    });
    if let Some(place) = look.seed() {
        *place = seed;
    }
    if let Some(e) = problem {
        return Err(e);
    }
    let reply = reply.ok_or(NotNow::Otherwise)?;
    if let Some(found) = last.filter(|(t, ..)| *t == reply) {
        return Ok(found);
    }
    let hash = look.table().index.hash(zone, &reply);
    let free = look.claims(hash, zone, &reply)?;
    Ok((reply, hash, free))
}

impl Plan {
    /// Plans the changes of a packet that passes these zones. Nothing is changed yet.
    pub(super) fn work_out(
        &mut self,
        look: &mut impl Lookup,
        p: &Packet,
        passes: &[Expected],
        now: Duration,
    ) -> Result<(), NotNow> {
        self.opened.clear();
        self.passed.clear();
        self.related.clear();
        self.translated.clear();
        if look.table().windows {
            return Err(NotNow::Otherwise);
        }
        let mut tuple = p.tuple;
        // The direction and state that the pass before found.
        let mut last = None;
        for (pass, Expected { zone, outcome }) in passes.iter().enumerate() {
            match (p.broken, outcome) {
                // Whatever is written to it: checksums are updated, not made anew.
                (true, Outcome::Broken) => continue,
                (true, _) | (_, Outcome::Broken) => return Err(NotNow::Otherwise),
                _ => {}
            }
            if let Outcome::Again { state, translates } = outcome {
                let (Some((dir, before)), Some(Passed { connection: c, .. })) = (last, self.passed.last()) else {
                    return Err(NotNow::Otherwise);
                };
                let mut v = Verdict { state: before, ..Verdict::default() };
                c.translate(dir, &tuple, &mut v);
                if (v.state, v.translated.is_some()) != (*state, *translates) {
                    return Err(NotNow::Otherwise);
                }
                if let Some(next) = v.translated {
                    self.translated.push([tuple, next]);
                    tuple = next;
                }
                continue;
            }
            last = None;
            let hash = look.table().index.hash(*zone, &tuple);
            let found = look.find(hash, *zone, &tuple)?;
            if found.is_none() && look.table().may_be_told(*zone, &Packet { tuple, ..*p }, now) {
                return Err(NotNow::Otherwise);
            }
            let next = match (outcome, found) {
                (Outcome::Unrelated, None) if p.error || !p.may_open() => tuple,
                (Outcome::None, None) if !p.error && p.may_open() => tuple,
                (Outcome::Opens(c), None) => {
                    if p.error || !p.may_open() || look.is_full(*zone)? {
                        return Err(NotNow::Otherwise);
                    }
                    let (reply, of_reply, free) = claim_reply(look, &tuple, *zone, c.nat.as_ref(), now)?;
                    self.opened.push(Opened { pass, tuples: [tuple, reply], hashes: [hash, of_reply], free });
                    reply.reversed()
                }
                (Outcome::Has { state, mark, label, bits, reply, nat }, Some((slot, dir))) => {
                    if look.table().expires(slot) <= now {
                        return Err(NotNow::Otherwise);
                    }
                    let fits = |c: &Connection, v: &Verdict| {
                        (v.state, v.reply, bits.of(c.mark, c.label)) == (*state, *reply, bits.of(*mark, *label))
                    };
                    if p.error {
                        // It changes nothing.
                        let c = look.connection(slot)?;
                        let v = c.related(dir, &tuple, *nat);
                        if !fits(&c, &v) {
                            return Err(NotNow::Otherwise);
                        }
                        self.related.push(Stamp { index: slot, stamp: stamp(&c) });
                        let next = v.translated.unwrap_or(tuple);
                        if outcome.translates() {
                            self.translated.push([tuple, next]);
                        }
                        tuple = next;
                        continue;
                    }
                    // It may pass the same connection twice.
                    let before = self.passed.iter().rev().find(|x| x.slot == slot).map(|x| x.connection.clone());
                    let mut c = before.map_or_else(|| look.connection(slot), Ok)?;
                    let version = c.version;
                    let state::Update::Valid { established } = state::update(&mut c, &Packet { tuple, ..*p }, dir)
                    else {
                        return Err(NotNow::Otherwise);
                    };
                    let v = c.verdict(dir, &tuple, established, *nat);
                    if !fits(&c, &v) {
                        return Err(NotNow::Otherwise);
                    }
                    last = Some((dir, v.state));
                    self.passed.push(Passed { slot, version, connection: c });
                    v.translated.unwrap_or(tuple)
                }
                _ => return Err(NotNow::Otherwise),
            };
            if outcome.translates() {
                self.translated.push([tuple, next]);
                tuple = next;
            }
        }
        Ok(())
    }

    /// The packet makes no more than the first `n` passes.
    pub(crate) fn cut(&mut self, passes: &[Expected], n: usize) {
        let has = passes.iter().take(n).filter(|p| matches!(p.outcome, Outcome::Has { .. })).count();
        self.passed.truncate(has);
        self.opened.retain(|o| o.pass < n);
    }

    /// No two connections that the packet opens have a tuple in common.
    pub(super) fn is_plain(&self, passes: &[Expected]) -> bool {
        let zone = |o: &Opened| passes.get(o.pass).map(|e| e.zone);
        let shares = |a: &Opened, b: &Opened| zone(a) == zone(b) && a.tuples.iter().any(|t| b.tuples.contains(t));
        let mut behind = self.opened.as_slice();
        while let Some((o, rest)) = behind.split_first() {
            if o.tuples[0] == o.tuples[1] || rest.iter().any(|x| shares(o, x)) {
                return false;
            }
            behind = rest;
        }
        true
    }

    /// What the packet finds in each pass, if the plan only refreshes connections; false otherwise. Before the plan is
    /// carried out.
    pub(crate) fn unchanged(&self, ct: &Conntrack, p: &Packet, passes: &[Expected], found: &mut Vec<Found>) -> bool {
        found.clear();
        let (mut tuple, mut connections, mut translated) = (p.tuple, self.passed.iter(), self.translated.iter());
        let mut related = self.related.iter();
        for Expected { zone, outcome } in passes {
            match outcome {
                Outcome::None => {
                    let arrivals = ct.arrivals(*zone, &tuple);
                    found.push(Found::None { zone: *zone, tuple, arrivals });
                }
                Outcome::Opens(_) | Outcome::Unrelated | Outcome::Broken => return false,
                // The pass before has said which connection.
                Outcome::Again { .. } => {}
                Outcome::Has { .. } if p.error => {
                    let Some(stamp) = related.next() else { return false };
                    found.push(Found::Related(*stamp));
                }
                Outcome::Has { .. } => {
                    let Some(Passed { slot, version, connection: c }) = connections.next() else { return false };
                    if c.version != *version {
                        return false;
                    }
                    let timeout = ct.timeout(c.zone, c.phase);
                    found.push(Found::Connection(Stamp { index: *slot, stamp: stamp(c) }, timeout));
                }
            }
            if outcome.translates()
                && let Some([_, next]) = translated.next()
            {
                tuple = *next;
            }
        }
        true
    }
}

impl Conntrack {
    /// Plans the changes of a packet that passes these zones; false if it finds something else, or there is no room.
    /// Nothing is changed yet.
    pub(crate) fn foresee(&mut self, p: &Packet, passes: &[Expected], now: Duration, plan: &mut Plan) -> bool {
        let mut alone = Alone { seed: self.seed, ct: self };
        let all = plan.work_out(&mut alone, p, passes, now).is_ok();
        plan.seed = alone.seed;
        all && plan.opened.len() <= self.left()
    }

    /// Makes the planned changes; nothing may happen in between.
    pub(crate) fn carry_out(&mut self, p: &Packet, passes: &[Expected], now: Duration, plan: &mut Plan) {
        self.seed = plan.seed;
        for Passed { slot: at, version, connection: mut c } in plan.passed.drain(..) {
            c.expires = now + self.timeout(c.zone, c.phase);
            let orphan = c.is_orphan();
            let adopted = c.adopt();
            if let Some(before) = adopted {
                self.owners.moves_here(before, now);
            }
            if let Some(place) = self.slots.place(at) {
                let (zone, moved) = (c.zone, c.version != version);
                *place = Some(c);
                match (adopted.is_some() || orphan, moved) {
                    (true, _) => self.journal.content(at, zone),
                    (false, true) => self.journal.state(at, zone),
                    (false, false) => {}
                }
                self.publish(at);
            }
        }
        // What was free may belong to a connection that the same packet has opened meanwhile.
        let plain = plan.is_plain(passes);
        for Opened { pass, tuples: [original, reply], hashes: [of_original, of_reply], free } in plan.opened.drain(..) {
            let Some(Expected { zone, outcome: Outcome::Opens(commit) }) = passes.get(pass) else { continue };
            let req = Request { zone: *zone, commit: true, force: false, nat: commit.nat.as_ref() };
            let mut c = self.new_connection(&Packet { tuple: original, ..*p }, &req, reply, now);
            (c.mark, c.label) = (commit.mark, commit.label);
            c.version = u32::from((c.mark, c.label) != (0, 0));
            // The plan has checked that there is room.
            let _ = self.store(c, [Some((of_original, plain)), Some((of_reply, plain && free))], now);
            self.habits.opened(&original, &reply);
        }
    }
}
