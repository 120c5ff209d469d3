//! What the switch has and what it should have.

use crate::units::flows::{Connections, Ids, Key, Value, merged};
use incremental::{Change, Outputs};
use openflow_rs::mods::{Bucket, FlowMod, Group, GroupMod, GroupModCommand, MeterConfig, MeterMod, MeterModCommand};
use openflow_rs::{Action, FlowModCommand, GroupId, Message, MeterId, PackedActions, PackedFlow};
use ovn_schema::{Str, Uuid};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The tables as they should be, and the changes that bring the switch there. The flows are the outputs of the
/// derivation and are held there alone.
#[derive(Debug, Default)]
pub struct Tables {
    flows: usize,
    groups: FxHashMap<GroupId, Arc<Group>>,
    meters: FxHashMap<MeterId, Arc<MeterConfig>>,
    connections: FxHashSet<Connections>,
    problems: BTreeMap<Uuid, Str>,
}

/// What is derived.
pub type Derived = Outputs<Key, Value>;

/// A change of the switch's tables.
#[derive(Clone, Debug, PartialEq)]
pub enum TableChange {
    /// Of one flow.
    Flow(PackedFlow),
    /// Of a group, or of all flows.
    Other(Box<Message>),
}

impl TableChange {
    fn other(m: Message) -> TableChange {
        TableChange::Other(Box::new(m))
    }

    /// The message, as far as one can be sent.
    pub fn message(&self) -> Option<Message> {
        match self {
            TableChange::Flow(f) => f.unpack().ok().map(Message::FlowMod),
            TableChange::Other(m) => Some((**m).clone()),
        }
    }
}

/// What is to be changed, in this order.
#[derive(Debug, Default)]
pub struct Changes {
    /// Meters that are new or other than before.
    pub meters: Vec<MeterMod>,
    /// Flows and groups.
    pub tables: Vec<TableChange>,
    /// Meters that nothing uses any more.
    pub unused: Vec<MeterMod>,
    /// Connections that the switch is to forget.
    pub forget: Vec<Connections>,
}

impl Changes {
    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        self.meters.is_empty() && self.tables.is_empty() && self.unused.is_empty() && self.forget.is_empty()
    }
}

impl Tables {
    /// Takes over changes of the derivation and gives those of the switch: new groups before flows that use them, and
    /// groups that nobody uses any more after. Numbers that nothing has any more are given back.
    pub fn apply<'a>(&mut self, changes: impl Iterator<Item = Change<'a, Key, Value>>, ids: &Ids) -> Changes {
        let mut out = Sorted::default();
        for c in changes {
            match (c.key, c.after.first()) {
                (Key::Meter(id), Some(Value::Meter(m))) => self.meter(*id, m, &mut out),
                (Key::Meter(id), _) => {
                    self.no_meter(*id, &mut out);
                    ids.release_meter(*id);
                }
                (Key::Group(id), Some(Value::Group(g))) => self.group(*id, g, &mut out),
                (Key::Group(id), _) => {
                    self.no_group(*id, &mut out);
                    ids.release_group(*id);
                }
                (Key::Connections(c), Some(_)) => drop(self.connections.insert(**c)),
                (Key::Connections(c), None) => {
                    if self.connections.remove(&**c) {
                        out.forget.push(**c);
                    }
                }
                (Key::Problem(row), Some(Value::Problem(text))) => drop(self.problems.insert(*row, text.clone())),
                (Key::Problem(row), _) => drop(self.problems.remove(row)),
                (key @ Key::Flow(..), _) => self.flow(key, merged(&c.before), merged(&c.after), &mut out),
            }
        }
        out.into_changes()
    }

    /// Takes over `fresh` tables, which were derived from scratch, and gives the changes from `have` (the outputs until
    /// now) to `want` (the new ones).
    pub fn become_(&mut self, have: &Derived, fresh: Tables, want: &Derived) -> Changes {
        let mut out = Sorted::default();
        for (id, m) in &fresh.meters {
            if self.meters.get(id) != Some(m) {
                self.meter(*id, m, &mut out);
            }
        }
        for (id, g) in &fresh.groups {
            if self.groups.get(id) != Some(g) {
                self.group(*id, g, &mut out);
            }
        }
        let of = |outputs: &Derived, key: &Key| outputs.id(key).and_then(|id| merged(&outputs.values(id)));
        for (key, _) in have.iter().filter(|(k, _)| matches!(k, Key::Flow(..)) && want.id(k).is_none()) {
            self.flow(key, of(have, key), None, &mut out);
        }
        for (key, _) in want.iter().filter(|(k, _)| matches!(k, Key::Flow(..))) {
            self.flow(key, of(have, key), of(want, key), &mut out);
        }
        let old_groups: Vec<GroupId> =
            self.groups.keys().filter(|id| !fresh.groups.contains_key(id)).copied().collect();
        old_groups.into_iter().for_each(|id| self.no_group(id, &mut out));
        let old_meters: Vec<MeterId> =
            self.meters.keys().filter(|id| !fresh.meters.contains_key(id)).copied().collect();
        old_meters.into_iter().for_each(|id| self.no_meter(id, &mut out));
        out.forget = self.connections.difference(&fresh.connections).copied().collect();
        self.connections = fresh.connections;
        self.problems = fresh.problems;
        out.into_changes()
    }

    /// What could not be turned into flows, by row.
    pub fn problems(&self) -> &BTreeMap<Uuid, Str> {
        &self.problems
    }

    /// Nothing: for a state that is derived from its start.
    pub fn restart(&mut self) -> FxHashSet<Connections> {
        std::mem::take(self).connections
    }

    /// The connections of `before` that nothing has any more.
    pub fn left_behind(&self, before: &FxHashSet<Connections>) -> Vec<Connections> {
        before.difference(&self.connections).copied().collect()
    }

    fn meter(&mut self, id: MeterId, m: &Arc<MeterConfig>, out: &mut Sorted) {
        let old = self.meters.insert(id, m.clone());
        let command = if old.is_some() { MeterModCommand::Modify } else { MeterModCommand::Add };
        out.meters.push(MeterMod { command, meter: (**m).clone() });
    }

    fn no_meter(&mut self, id: MeterId, out: &mut Sorted) {
        if let Some(m) = self.meters.remove(&id) {
            out.unused.push(MeterMod { command: MeterModCommand::Delete, meter: (*m).clone() });
        }
    }

    fn group(&mut self, id: GroupId, g: &Arc<Group>, out: &mut Sorted) {
        out.first.extend(put_group(GroupModCommand::AddOrModify, g));
        self.groups.insert(id, g.clone());
    }

    fn no_group(&mut self, id: GroupId, out: &mut Sorted) {
        if self.groups.remove(&id).is_some() {
            out.last.push(TableChange::other(delete_group(id)));
        }
    }

    /// Brings a flow from one cookie and list of actions to another; none: it is not there.
    fn flow(&mut self, key: &Key, old: Option<Flow>, new: Option<Flow>, out: &mut Sorted) {
        self.flows = self.flows + usize::from(new.is_some()) - usize::from(old.is_some());
        if old == new {
            return;
        }
        // What a flow has learned goes with it; a flow that takes its place would leave it behind.
        if let Some((cookie, actions)) = old
            && (new.is_none() || deletes_learned(&actions))
        {
            let nothing = PackedActions::from(&[][..]);
            out.flows.extend(flow(FlowModCommand::DeleteStrict, key, (cookie, nothing)));
        }
        if let Some(new) = new {
            out.flows.extend(flow(FlowModCommand::Add, key, new));
        }
    }

    /// All changes that bring a switch of unknown content here.
    pub fn replace(&self, derived: &Derived) -> Changes {
        let mut out = vec![
            TableChange::other(Message::FlowMod(FlowMod::delete_all())),
            TableChange::other(delete_group(GroupId::ALL)),
        ];
        out.reserve(self.flows);
        out.extend(self.groups.values().flat_map(|g| put_group(GroupModCommand::Add, g)));
        for (key, values) in derived.iter().filter(|(k, _)| matches!(k, Key::Flow(..))) {
            let mut values: Vec<Value> = values.cloned().collect();
            values.sort_unstable();
            values.dedup();
            out.extend(merged(&values).and_then(|f| flow(FlowModCommand::Add, key, f)));
        }
        Changes { meters: self.fresh_meters(), tables: out, ..Changes::default() }
    }

    /// Meters for a switch of unknown content. Deleting a meter deletes the flows that use it, so those that stay are
    /// changed, or added where they are not there.
    fn fresh_meters(&self) -> Vec<MeterMod> {
        let mods = self.meters.values().flat_map(|m| {
            [MeterModCommand::Add, MeterModCommand::Modify].map(|command| MeterMod { command, meter: (**m).clone() })
        });
        mods.collect()
    }

    /// How many flows and groups there are.
    pub fn len(&self) -> (usize, usize) {
        (self.flows, self.groups.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.flows == 0
    }
}

/// A flow's cookie and actions.
type Flow = (u32, PackedActions);

/// The change of a flow.
fn flow(command: FlowModCommand, key: &Key, (cookie, actions): Flow) -> Option<TableChange> {
    let Key::Flow(table, priority, m) = key else { return None };
    // A flow that is deleted is looked for by its match alone.
    let cookie = if command == FlowModCommand::Add { cookie.into() } else { 0 };
    let f = PackedFlow { command, table: *table, priority: *priority, cookie, matches: m.clone(), actions };
    Some(TableChange::Flow(f))
}

/// Changes by when they are due.
#[derive(Debug, Default)]
struct Sorted {
    meters: Vec<MeterMod>,
    first: Vec<TableChange>,
    flows: Vec<TableChange>,
    last: Vec<TableChange>,
    unused: Vec<MeterMod>,
    forget: Vec<Connections>,
}

impl Sorted {
    fn into_changes(mut self) -> Changes {
        self.first.append(&mut self.flows);
        self.first.append(&mut self.last);
        Changes { meters: self.meters, tables: self.first, unused: self.unused, forget: self.forget }
    }
}

/// Whether an action of a list learns flows that go with its own.
fn deletes_learned(list: &PackedActions) -> bool {
    let deletes = |a: &Action| matches!(a, Action::Learn(l) if l.delete_learned);
    list.may_learn() && list.unpack().is_ok_and(|l| l.iter().any(deletes))
}

/// A group that goes. It has no buckets, and no way to choose one.
fn delete_group(id: GroupId) -> Message {
    Message::GroupMod(GroupMod::new(GroupModCommand::Delete, Group { id, ..Group::default() }))
}

/// Octets of buckets in one message: with the headers around them they stay below the 65,535 that a message may have.
const BUCKETS: usize = 60_000;
/// Behind all others.
const LAST_BUCKET: u32 = 0xffff_fffe;

/// The messages that make a group. One with more buckets than a message can hold gets the others one lot after the
/// other.
fn put_group(command: GroupModCommand, g: &Group) -> Vec<TableChange> {
    let mut lots: Vec<Vec<Bucket>> = vec![Vec::new()];
    let (mut size, mut actions) = (0, Vec::new());
    for b in &g.buckets {
        actions.clear();
        openflow_rs::wire::encode_actions(&mut actions, &b.actions, openflow_rs::Version::Of15);
        // Header, weight, watched port and group.
        size += actions.len() + 8 + 3 * 8;
        if size > BUCKETS {
            lots.push(Vec::new());
            size = actions.len() + 8 + 3 * 8;
        }
        if let Some(lot) = lots.last_mut() {
            lot.push(b.clone());
        }
    }
    let lots = lots.into_iter().enumerate().map(|(n, buckets)| {
        if n == 0 {
            let first = Group { id: g.id, group_type: g.group_type, selection: g.selection.clone(), buckets };
            return TableChange::other(Message::GroupMod(GroupMod::new(command, first)));
        }
        let group = Group { id: g.id, group_type: g.group_type, buckets, ..Group::default() };
        let insert = GroupMod { command: GroupModCommand::InsertBucket, group, command_bucket_id: LAST_BUCKET };
        TableChange::other(Message::GroupMod(insert))
    });
    lots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::{FieldId, GroupType, Match, PackedMatch, Version};

    fn backends(n: u32) -> Group {
        let nat = openflow_rs::text::parse_actions(
            "ct(commit,table=20,zone=NXM_NX_REG13[0..15],nat(dst=[fd00::1]:80),exec(set_field:2/2->ct_mark))",
        )
        .unwrap();
        let buckets = (0..n).map(|i| Bucket::new(i, 100, nat.clone())).collect();
        let mut g = Group { id: GroupId(7), group_type: GroupType::Select, buckets, ..Group::default() };
        g.selection.name = "dp_hash".into();
        g
    }

    #[test]
    fn a_large_group_goes_in_several_messages() {
        let g = backends(2000);
        let messages = put_group(GroupModCommand::AddOrModify, &g);
        assert!(messages.len() > 1);
        let mut buckets = Vec::new();
        for (n, m) in messages.iter().enumerate() {
            let wire = m.message().unwrap().try_encode(Version::Of15, 1).unwrap().concat();
            let (_, Message::GroupMod(m)) = Message::decode(&wire).unwrap() else { panic!("{m:?}") };
            assert_eq!(m.command == GroupModCommand::InsertBucket, n > 0);
            assert_eq!(m.group.selection.name.is_empty(), n > 0, "buckets that are added do not choose");
            buckets.extend(m.group.buckets);
        }
        assert_eq!(buckets, g.buckets);
        let whole = Message::GroupMod(GroupMod::new(GroupModCommand::Add, g));
        assert!(whole.try_encode(Version::Of15, 1).is_err(), "it does not fit one message");
    }

    #[test]
    fn a_group_goes_without_a_selection_method() {
        let Message::GroupMod(m) = delete_group(GroupId(7)) else { panic!() };
        assert_eq!((m.group.selection.name.as_str(), m.group.buckets.len()), ("", 0));
    }

    #[test]
    fn what_a_flow_learned_goes_when_the_flow_changes() {
        let key = Key::Flow(openflow_rs::TableId(68), 100, PackedMatch::from(&Match::new().with(FieldId::Metadata, 1)));
        let learn = |ip: &str| {
            let text = format!(
                "learn(table=93,delete_learned,OXM_OF_METADATA[],eth_type=0x800,NXM_OF_IP_SRC[],ip_dst={ip},load:0x1->NXM_NX_REG10[7])"
            );
            Some((1, PackedActions::from(&openflow_rs::text::parse_actions(&text).unwrap()[..])))
        };
        let (mut t, mut out) = (Tables::default(), Sorted::default());
        t.flow(&key, None, learn("88.88.88.88"), &mut out);
        t.flow(&key, learn("88.88.88.88"), learn("99.99.99.99"), &mut out);
        t.flow(&key, learn("99.99.99.99"), learn("99.99.99.99"), &mut out);
        let commands: Vec<_> =
            out.flows.iter().map(|m| if let TableChange::Flow(f) = m { f.command as u8 } else { 9 }).collect();
        assert_eq!(commands, [0, 4, 0]);
    }
}
