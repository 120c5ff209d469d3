//! Flows in the form in which OpenFlow 1.5 sends them, for programs that hold many. A match takes about half the memory
//! of its decoded form and an action a quarter, equal flows have equal octets, and a flow is sent without being encoded
//! again.

use crate::message::{TooLong, Version};
use crate::wire::{DecodeError, Put, Reader, flow, oxm};
use crate::{Action, FlowMod, FlowModCommand, Match, Message, TableId};
use rustc_hash::FxBuildHasher;
use std::cell::RefCell;
use std::hash::BuildHasher;
use std::sync::Arc;

/// A match as its `ofp_match`, padding included.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackedMatch(Arc<[u8]>);

impl From<&Match> for PackedMatch {
    fn from(m: &Match) -> PackedMatch {
        OCTETS.with_borrow_mut(|out| {
            out.clear();
            oxm::put_ofp_match(out, m);
            PackedMatch(out[..].into())
        })
    }
}

thread_local! {
    /// Where each thread puts the octets of a match together.
    static OCTETS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl PackedMatch {
    /// The match.
    ///
    /// # Errors
    /// Where a field lacks its prerequisite, so that no switch takes it.
    pub fn unpack(&self) -> Result<Match, DecodeError> {
        oxm::pull_ofp_match(&mut Reader::new(&self.0), false)
    }
}

/// Vendor and subtype of `learn`, and of its form with a limit (ovs-actions(7)). They begin four octets behind the start of an
/// action, and actions begin at multiples of eight (OpenFlow 1.5 section 7.2.6), also those within others.
const LEARN: [u8; 6] = [0, 0, 0x23, 0x20, 0, 16];
const LEARN2: [u8; 6] = [0, 0, 0x23, 0x20, 0, 45];

/// A list of actions as its instructions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackedActions(Arc<[u8]>);

/// Of how many lists each thread remembers the octets.
const RECENT: usize = 1024;

/// The octets of a list that was packed, if the place is taken.
type Slot = Option<Arc<[u8]>>;

thread_local! {
    /// The octets of the lists that were packed last, by their hash. Flows with equal actions share them: thousands
    /// only go on with the next table.
    static SHARED: RefCell<(Vec<u8>, Vec<Slot>)> = RefCell::new((Vec::new(), vec![None; RECENT]));
}

impl From<&[Action]> for PackedActions {
    fn from(list: &[Action]) -> PackedActions {
        SHARED.with_borrow_mut(|(octets, recent)| {
            octets.clear();
            flow::put_instructions(octets, list, Version::Of15);
            let hash = FxBuildHasher.hash_one(&octets[..]);
            let Some(slot) = recent.get_mut(hash as usize % RECENT) else { return PackedActions(octets[..].into()) };
            match slot {
                Some(same) if same[..] == octets[..] => PackedActions(same.clone()),
                _ => PackedActions(slot.insert(octets[..].into()).clone()),
            }
        })
    }
}

impl PackedActions {
    /// The actions.
    ///
    /// # Errors
    /// Where an action cannot be sent.
    pub fn unpack(&self) -> Result<Vec<Action>, DecodeError> {
        flow::pull_instructions(Reader::new(&self.0), Version::Of15)
    }

    /// Whether there can be an action among them that learns flows: one without its octets has none.
    pub fn may_learn(&self) -> bool {
        self.0.windows(LEARN.len()).skip(4).step_by(8).any(|w| w == LEARN || w == LEARN2)
    }

    /// Whether the flow drops what it matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A change of one flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFlow {
    /// What to do.
    pub command: FlowModCommand,
    /// Table.
    pub table: TableId,
    /// Priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Match.
    pub matches: PackedMatch,
    /// Actions.
    pub actions: PackedActions,
}

impl PackedFlow {
    /// The message.
    ///
    /// # Errors
    /// The match or the actions do not decode.
    pub fn unpack(&self) -> Result<FlowMod, DecodeError> {
        let (matches, actions) = (self.matches.unpack()?, self.actions.unpack()?);
        let f = FlowMod::add(self.table, self.priority, self.cookie, matches, actions);
        Ok(FlowMod { command: self.command, ..f })
    }

    /// The octets of the message that adds the change to a bundle, in the form of the switch's version.
    ///
    /// # Errors
    /// [`TooLong`] if the length does not fit 16 bits.
    pub fn bundle_add(&self, v: Version, id: u32, flags: u16, xid: u32) -> Result<Vec<u8>, TooLong> {
        if v != Version::Of15
            && let Ok(f) = self.unpack()
        {
            return Message::FlowMod(f).bundle_add(v, id, flags, xid);
        }
        // Two headers of 8 octets, the bundle's 8, the flow's 40.
        let (inner, len) =
            (48 + self.matches.0.len() + self.actions.0.len(), 64 + self.matches.0.len() + self.actions.0.len());
        let Ok(short) = u16::try_from(len) else { return Err(TooLong { len }) };
        let mut o = Vec::with_capacity(len);
        header(&mut o, 34, short, xid);
        o.p32(id);
        o.p16(0);
        o.p16(flags);
        header(&mut o, 14, inner as u16, xid);
        let blank = FlowMod {
            command: self.command,
            table: self.table,
            priority: self.priority,
            cookie: self.cookie,
            ..FlowMod::default()
        };
        flow::put_flow_mod_head(&mut o, &blank, Version::Of15);
        o.extend_from_slice(&self.matches.0);
        o.extend_from_slice(&self.actions.0);
        Ok(o)
    }
}

fn header(o: &mut Vec<u8>, kind: u8, len: u16, xid: u32) {
    o.p8(Version::Of15 as u8);
    o.p8(kind);
    o.p16(len);
    o.p32(xid);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_learns_is_known_by_its_octets() {
        let packed = |text: &str| PackedActions::from(&crate::text::parse_actions(text).unwrap()[..]);
        let learns = [
            "learn(table=7,NXM_OF_IP_SRC[])",
            "resubmit(,8),learn(table=7,limit=4,NXM_OF_IP_SRC[])",
            "output:1,clone(set_field:1->reg0,learn(table=7,NXM_OF_IP_SRC[]))",
            "check_pkt_larger(1500)->NXM_NX_REG0[0],ct(commit,zone=5),learn(table=7,NXM_OF_IP_SRC[],load:1->NXM_NX_REG1[])",
        ];
        assert!(learns.iter().all(|text| packed(text).may_learn()));
        let others = ["drop", "resubmit(,8)", "conjunction(5,1/2)", "ct(commit,nat(dst=10.0.0.1:80))"];
        assert!(!others.iter().any(|text| packed(text).may_learn()));
    }
}
