//! Connection tracking by template: passes through several zones whose outcome an earlier packet has shown.
//!
//! A template says what a packet finds in each zone: no connection, or one with some state and mark. First all zones
//! are looked up and the changes are planned ([`Conntrack::foresee`]). Only if everything is as expected, the changes
//! are made ([`Conntrack::carry_out`]). Otherwise, or if there is no room, nothing has changed and the packet walks the
//! tables.

use super::index::Hash;
use super::replica;
use super::{ConnSnapshot, Connection, Conntrack, Packet, Request, Stamp, Tuple, Zone, flag, stamp, state};
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
    /// It has none and opens one.
    Opens(Commit),
    /// It has one: `ct_state`, mark and label with the bits that decide, whether the packet is a reply, and whether it
    /// is translated.
    Has { state: u32, mark: u32, label: u128, bits: Bits, reply: bool, nat: bool },
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
    /// The packet may be translated.
    pub(crate) fn translates(&self) -> bool {
        match self {
            Outcome::None => false,
            Outcome::Opens(c) => c.nat.as_ref().is_some_and(|n| n.src || n.dst),
            Outcome::Has { state, nat, .. } => *nat && state & (flag::SNAT | flag::DNAT) != 0,
        }
    }
}

impl Expected {
    /// The `ct` action of the pass, for dumps.
    pub(crate) fn action(&self) -> Action {
        let set = |field, value| Action::SetField { field, value, mask: None };
        let (commit, nat, mark, label) = match &self.outcome {
            Outcome::None => (false, None, 0, 0),
            Outcome::Opens(c) => (true, c.nat.clone(), c.mark, c.label),
            Outcome::Has { nat, .. } => (false, nat.then(NatSpec::default), 0, 0),
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
    /// Connections to open: the pass, both tuples, and the hash of the first.
    opened: Vec<(usize, [Tuple; 2], Hash)>,
    /// Its connections, as they will be.
    passed: Vec<(u32, Connection)>,
    /// The packet's tuples before and after each translation.
    pub(crate) translated: Vec<[Tuple; 2]>,
    seed: u64,
}

/// What a packet found in a zone without changing it, for an entry of its key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    Connection(Stamp, Duration),
    /// The place and generation are those of [`Conntrack::arrivals`] then.
    None {
        zone: Zone,
        tuple: Tuple,
        arrivals: (u32, u32),
    },
}

impl Conntrack {
    /// Plans the changes of a packet that passes these zones; false if it finds something else, or there is no room.
    /// Nothing is changed yet.
    pub(crate) fn foresee(&mut self, p: &Packet, passes: &[Expected], now: Duration, plan: &mut Plan) -> bool {
        plan.opened.clear();
        plan.passed.clear();
        plan.translated.clear();
        let seed = self.seed;
        let all = !self.windows && self.work_out(p, passes, now, plan).is_some();
        plan.seed = std::mem::replace(&mut self.seed, seed);
        all && plan.opened.len() <= self.left()
    }

    fn work_out(&mut self, p: &Packet, passes: &[Expected], now: Duration, plan: &mut Plan) -> Option<()> {
        let mut tuple = p.tuple;
        for (i, Expected { zone, outcome }) in passes.iter().enumerate() {
            let hash = self.index.hash(*zone, &tuple);
            let found = self.index.find(&self.slots, hash, *zone, &tuple);
            let next = match (outcome, found) {
                (Outcome::None, None) => state::may_open(p).then_some(tuple)?,
                (Outcome::Opens(c), None) => {
                    if !state::may_open(p) || self.zones.full(*zone) {
                        return None;
                    }
                    let req = Request { zone: *zone, commit: true, force: false, nat: c.nat.as_ref() };
                    let reply = self.choose_reply(&tuple, &req, now)?;
                    plan.opened.push((i, [tuple, reply], hash));
                    reply.reversed()
                }
                (Outcome::Has { state, mark, label, bits, reply, nat }, Some((at, dir))) => {
                    if self.expires(at) <= now {
                        return None;
                    }
                    // It may pass the same connection twice.
                    let before = plan.passed.iter().rev().find(|(i, _)| *i == at).map(|(_, c)| c);
                    let mut c = before.or(self.slots.get(at as usize)?.as_ref())?.clone();
                    let state::Update::Valid { established } = state::update(&mut c, &Packet { tuple, ..*p }, dir)
                    else {
                        return None;
                    };
                    let v = self.verdict(&c, dir, &tuple, established, *nat);
                    if (v.state, v.reply, bits.of(c.mark, c.label)) != (*state, *reply, bits.of(*mark, *label)) {
                        return None;
                    }
                    plan.passed.push((at, c));
                    v.translated.unwrap_or(tuple)
                }
                _ => return None,
            };
            if outcome.translates() {
                plan.translated.push([tuple, next]);
                tuple = next;
            }
        }
        Some(())
    }

    /// Makes the planned changes; nothing may happen in between.
    pub(crate) fn carry_out(&mut self, p: &Packet, passes: &[Expected], now: Duration, plan: &mut Plan) {
        self.seed = plan.seed;
        for (at, mut c) in plan.passed.drain(..) {
            c.expires = now + self.timeout(c.zone, c.phase);
            let orphan = c.is_orphan();
            let adopted = c.adopt();
            if let Some(before) = adopted {
                replica::moved(&mut self.owned, before);
            }
            if let Some(slot) = self.slots.get_mut(at as usize) {
                let zone = c.zone;
                let moved = slot.as_ref().is_none_or(|old| old.version != c.version);
                *slot = Some(c);
                match (adopted.is_some() || orphan, moved) {
                    (true, _) => self.journal.content(at, zone),
                    (false, true) => self.journal.state(at, zone),
                    (false, false) => {}
                }
                self.publish(at);
            }
        }
        for (i, [original, reply], hash) in plan.opened.drain(..) {
            let Some(Expected { zone, outcome: Outcome::Opens(commit) }) = passes.get(i) else { continue };
            let req = Request { zone: *zone, commit: true, force: false, nat: commit.nat.as_ref() };
            let mut c = self.new_connection(&Packet { tuple: original, ..*p }, &req, reply, now);
            (c.mark, c.label) = (commit.mark, commit.label);
            c.version = u32::from((c.mark, c.label) != (0, 0));
            // The plan has checked that there is room.
            let _ = self.store(c, Some(hash));
            self.habits.opened(&original, &reply);
        }
    }

    /// What a packet finds in each pass, if the plan only refreshes connections; false otherwise.
    pub(crate) fn unchanged(&self, p: &Packet, passes: &[Expected], plan: &Plan, found: &mut Vec<Found>) -> bool {
        found.clear();
        let (mut tuple, mut connections, mut translated) = (p.tuple, plan.passed.iter(), plan.translated.iter());
        for Expected { zone, outcome } in passes {
            match outcome {
                Outcome::None => {
                    let arrivals = self.arrivals(*zone, &tuple);
                    found.push(Found::None { zone: *zone, tuple, arrivals });
                }
                Outcome::Opens(_) => return false,
                Outcome::Has { .. } => {
                    let Some((at, c)) = connections.next() else { return false };
                    let Some(ConnSnapshot { version, timeout, .. }) = self.seen_at(*at) else { return false };
                    if c.version != version {
                        return false;
                    }
                    found.push(Found::Connection(Stamp { index: *at, stamp: stamp(c) }, timeout));
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
