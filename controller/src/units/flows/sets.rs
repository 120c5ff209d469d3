//! Address sets, and what their members add to logical flows.
//!
//! A set is read once for all flows. Flows that demand a member of it ([`logical_flow::sets`]) are made without the
//! members; units of their own add these, a part of the set each. So a member that comes or goes costs the work for one
//! part. As in ovn-controller a flow is made anew when a set that has one member or none gets several, or the other way
//! round.

use super::{Fact, Seen, Unit, cookie, put_packed, row};
use crate::encode::of;
use crate::input::model::Read;
use logical_flow::constant::{Integer, integer};
use logical_flow::normal::{Clause, Clauses, Match};
use openflow_rs::{Action, FieldId, PackedActions};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{DatapathKey, Uuid};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many members a part has at most, on average.
const PART: usize = 16;
/// Into how many parts a set is divided at most.
const PARTS: usize = 1 << 12;

/// What logical flows have to know of a set.
#[derive(Clone, Debug, PartialEq)]
pub enum Size {
    /// It has no member or one, or one that is every address: the flows are made with these.
    Few(Arc<[Integer]>),
    /// It has several members.
    Several,
}

/// Where the flows of a logical flow go in a datapath, and what they do.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub table: openflow_rs::TableId,
    pub priority: u16,
    /// The datapath's key.
    pub datapath: DatapathKey,
    /// The first of the logical flow's conjunction numbers in this datapath, which no other logical flow has.
    pub conjunctions: u32,
    /// The logical flow's row.
    pub flow: Uuid,
    pub actions: PackedActions,
}

impl Place {
    /// Puts out the flows of matches.
    pub fn put(&self, matches: impl IntoIterator<Item = Match>, view: &mut Seen<'_>) {
        let number = |n: u32| self.conjunctions.wrapping_add(n - 1);
        // Most of those that satisfy the same clauses follow each other.
        let mut last: Option<(Clauses, PackedActions)> = None;
        for m in matches {
            let (Match::Plain(fields) | Match::Conjunction(fields, _) | Match::Clause(fields, _)) = &m;
            let mut of = of::matches(fields, self.datapath);
            let (cookie, actions) = match m {
                Match::Plain(_) => (cookie(self.flow), self.actions.clone()),
                Match::Conjunction(_, n) => {
                    of.set(FieldId::ConjId, u128::from(number(n)));
                    (cookie(self.flow), self.actions.clone())
                }
                Match::Clause(_, clauses) => {
                    let same = last.take().filter(|(same, _)| *same == clauses);
                    let (_, actions) = last.insert(same.unwrap_or_else(|| {
                        let clause =
                            |&(n, k, of): &Clause| Action::Conjunction { id: number(n), clause: k, n_clauses: of };
                        let list: Vec<Action> = clauses.iter().map(clause).collect();
                        (clauses, PackedActions::from(&list[..]))
                    }));
                    // Several logical flows may share a clause's match, so it belongs to none of them.
                    (0, actions.clone())
                }
            };
            put_packed(view, self.table, self.priority, &of, cookie, actions);
        }
    }
}

/// What a logical flow leaves to members of address sets in a datapath.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    pub sets: Vec<Uuid>,
    pub slot: logical_flow::sets::Slot,
    pub place: Place,
}

/// A set by name.
pub fn by_name(name: &str, view: &mut Seen<'_>) -> Option<Uuid> {
    view.read(Read::AddressSet(name.into())).address_set(name).map(|(id, _)| id)
}

/// Whether a set has several members.
pub fn has_several(id: Uuid, view: &mut Seen<'_>) -> bool {
    matches!(view.fact(&Unit::Set(id)), Some(Fact::Set(Size::Several)))
}

/// All members of a set that are constants.
pub fn members(id: Uuid, view: &mut Seen<'_>) -> Option<Vec<Integer>> {
    if let Some(Fact::Set(Size::Few(members))) = view.fact(&Unit::Set(id)) {
        return Some(members.to_vec());
    }
    let set = row::<sb::AddressSet>(view, TableId::AddressSet, id)?;
    Some(set.addresses.iter().filter_map(|a| integer(a)).collect())
}

/// A set: its size, and its members in parts.
pub(super) fn set(id: Uuid, view: &mut Seen<'_>) {
    let Some(set) = row::<sb::AddressSet>(view, TableId::AddressSet, id) else { return };
    let members: Vec<Integer> = set.addresses.iter().filter_map(|a| integer(a)).collect();
    let distinct: BTreeSet<(u128, Option<u128>)> = members.iter().take(PART).map(|m| (m.value, m.mask)).collect();
    if distinct.len() < 2 || members.iter().any(|m| m.mask == Some(0)) {
        view.derive(Fact::Set(Size::Few(members.into())));
        return;
    }
    view.derive(Fact::Set(Size::Several));
    let count = members.len().div_ceil(PART).next_power_of_two().min(PARTS);
    let mut parts: Vec<Vec<Integer>> = vec![Vec::new(); count];
    for m in members {
        if let Some(part) = parts.get_mut(part_of(&m, count)) {
            part.push(m);
        }
    }
    view.give(Unit::SetParts(id), Fact::SetParts(count as u16));
    for (k, part) in (0..).zip(parts) {
        view.give(Unit::SetPart(id, k), Fact::SetPart(part.into()));
    }
}

/// In which of `count` parts a member is, a power of two: by Fibonacci hashing of its value.
fn part_of(m: &Integer, count: usize) -> usize {
    let folded = (m.value ^ m.value >> 64) as u64;
    let hash = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    hash as usize & (count - 1)
}

/// Leaves what a logical flow lacks to later units.
pub(super) fn leave(flow: Uuid, slots: Vec<Slot>, view: &mut Seen<'_>) {
    if slots.is_empty() {
        return;
    }
    let sets: BTreeSet<Uuid> = slots.iter().flat_map(|s| &s.sets).copied().collect();
    sets.into_iter().for_each(|set| view.spawn(Unit::InSet(Box::new((flow, set)))));
    view.derive(Fact::Slots(slots.into()));
}

/// What the members of a set add to a logical flow: a unit for each part where there are several.
pub(super) fn in_set(flow: Uuid, set: Uuid, view: &mut Seen<'_>) {
    let Some(Fact::SetParts(count)) = view.fact(&Unit::SetParts(set)) else { return };
    match *count {
        1 => in_part(flow, set, 0, view),
        count => (0..count).for_each(|k| view.spawn(Unit::InPart(Box::new((flow, set, k))))),
    }
}

/// What one part of a set adds to a logical flow.
pub(super) fn in_part(flow: Uuid, set: Uuid, part: u16, view: &mut Seen<'_>) {
    let Some(Fact::SetPart(members)) = view.fact(&Unit::SetPart(set, part)) else { return };
    let Some(Fact::Slots(slots)) = view.fact(&Unit::Flow(flow)) else { return };
    for s in slots.iter().filter(|s| s.sets.contains(&set)) {
        s.place.put(s.slot.matches(members), view);
    }
}
