//! Packets whose flow is known to open connections.
//!
//! What such a packet passes are zones in which its tuple has no connection, some of which commit one. First all of them are looked
//! at, and what is to be is worked out; only then is anything put into the table. So a packet that turns out to have a connection,
//! or for which there is no room, finds everything as it was, and walks the tables.

use super::index::Hash;
use super::{Conntrack, Packet, Request, Tuple, state};
use openflow_rs::FieldId;
use openflow_rs::action::{Action, CtAction, NatSpec, ZoneSpec};
use std::time::Duration;

/// A pass of a packet through a zone in which its tuple has no connection.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) zone: u16,
    /// It opens one.
    pub(crate) commit: Option<Commit>,
}

impl Pass {
    /// The action that does it.
    pub(crate) fn action(&self) -> Action {
        let set = |field, value| Action::SetField { field, value, mask: None };
        let c = self.commit.as_ref();
        let (mark, label) = c.map_or((0, 0), |c| (c.mark.into(), c.label));
        let marks = [(FieldId::CtMark, mark), (FieldId::CtLabel, label)];
        Action::Ct(Box::new(CtAction {
            commit: c.is_some(),
            zone: ZoneSpec::Imm(self.zone),
            nat: c.and_then(|c| c.nat.clone()),
            exec: marks.into_iter().filter(|(_, v)| *v != 0).map(|(f, v)| set(f, v)).collect(),
            ..CtAction::default()
        }))
    }
}

/// How a connection is opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commit {
    pub(crate) nat: Option<NatSpec>,
    pub(crate) mark: u32,
    pub(crate) label: u128,
}

impl Commit {
    /// The packet gets another tuple, or might.
    pub(crate) fn translates(&self) -> bool {
        self.nat.as_ref().is_some_and(|n| n.src || n.dst)
    }
}

/// A connection that is going to be opened: of which pass, its tuples, and the hash of the first.
type Planned = (usize, [Tuple; 2], Hash);

/// What is worked out for a packet.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    connections: Vec<Planned>,
    /// The packet's tuples, one for each pass that translates it.
    pub(crate) translated: Vec<Tuple>,
}

impl Conntrack {
    /// Takes a packet that has no connection in any of these zones through them, and opens those that are committed. False, and
    /// nothing has happened, if it has one, or one cannot be opened.
    pub(crate) fn open(&mut self, p: &Packet, passes: &[Pass], now: Duration, plan: &mut Plan) -> bool {
        let seed = self.seed;
        plan.connections.clear();
        plan.translated.clear();
        if self.windows || !state::may_open(p) || self.plan(p.tuple, passes, now, plan).is_none() {
            self.seed = seed;
            return false;
        }
        for (i, [original, reply], hash) in plan.connections.drain(..) {
            let Some((zone, commit)) = passes.get(i).and_then(|p| Some((p.zone, p.commit.as_ref()?))) else { continue };
            let req = Request { zone, commit: true, force: false, nat: commit.nat.as_ref() };
            let mut c = self.new_connection(&Packet { tuple: original, ..*p }, &req, reply, now);
            (c.mark, c.label) = (commit.mark, commit.label);
            c.version = u32::from((c.mark, c.label) != (0, 0));
            // There is room, as was seen before.
            let _ = self.store(c, Some(hash));
            self.habits.opened(&original, &reply);
        }
        true
    }

    fn plan(&mut self, mut tuple: Tuple, passes: &[Pass], now: Duration, plan: &mut Plan) -> Option<()> {
        for (i, pass) in passes.iter().enumerate() {
            let hash = self.index.hash(pass.zone, &tuple);
            if self.index.find(&self.slots, hash, pass.zone, &tuple).is_some() {
                return None;
            }
            let Some(commit) = &pass.commit else { continue };
            if self.zones.full(pass.zone) {
                return None;
            }
            let req = Request { zone: pass.zone, commit: true, force: false, nat: commit.nat.as_ref() };
            let reply = self.choose_reply(&tuple, &req, now)?;
            plan.connections.push((i, [tuple, reply], hash));
            if commit.translates() {
                tuple = reply.reversed();
                plan.translated.push(tuple);
            }
        }
        (plan.connections.len() <= self.room()).then_some(())
    }
}
