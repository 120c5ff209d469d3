//! What the switch has and what it should have.

use crate::flows::{Key, Value, merge};
use incremental::Change;
use openflow_rs::mods::{FlowMod, Group, GroupMod, GroupModCommand, MeterConfig, MeterMod, MeterModCommand};
use openflow_rs::{Action, Message};
use std::collections::HashMap;
use std::sync::Arc;

/// The tables as they should be, and the changes that bring the switch there.
#[derive(Debug, Default)]
pub struct Tables {
    flows: HashMap<Key, (u64, Arc<Vec<Action>>)>,
    groups: HashMap<u32, Arc<Group>>,
    meters: HashMap<u32, Arc<MeterConfig>>,
}

/// What is to be changed, in this order.
#[derive(Debug, Default)]
pub struct Changes {
    /// Meters that are new or other than before.
    pub meters: Vec<MeterMod>,
    /// Flows and groups.
    pub tables: Vec<Message>,
    /// Meters that nothing uses any more.
    pub unused: Vec<MeterMod>,
}

impl Changes {
    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        self.meters.is_empty() && self.tables.is_empty() && self.unused.is_empty()
    }
}

impl Tables {
    /// Takes over changes of the derivation and gives those of the switch: new groups before flows that use them, and
    /// groups that nobody uses any more after.
    pub fn apply<'a>(&mut self, changes: impl Iterator<Item = Change<'a, Key, Value>>) -> Changes {
        let (mut first, mut flows, mut last) = (Vec::new(), Vec::new(), Vec::new());
        let mut out = Changes::default();
        for c in changes {
            match c.key {
                Key::Meter(id) => match c.after.into_iter().next() {
                    Some(Value::Meter(m)) => {
                        let old = self.meters.insert(*id, m.clone());
                        let command = if old.is_some() { MeterModCommand::Modify } else { MeterModCommand::Add };
                        out.meters.push(MeterMod { command, meter: (*m).clone() });
                    }
                    _ => {
                        if let Some(m) = self.meters.remove(id) {
                            out.unused.push(MeterMod { command: MeterModCommand::Delete, meter: (*m).clone() });
                        }
                    }
                },
                Key::Group(id) => match c.after.into_iter().next() {
                    Some(Value::Group(g)) => {
                        first.push(group(GroupModCommand::AddOrModify, &g));
                        self.groups.insert(*id, g);
                    }
                    _ => {
                        if let Some(g) = self.groups.remove(id) {
                            last.push(group(GroupModCommand::Delete, &g));
                        }
                    }
                },
                Key::Flow(table, priority, m) => {
                    if c.after.is_empty() {
                        self.flows.remove(c.key);
                        flows.push(Message::FlowMod(FlowMod::delete_strict(*table, *priority, m.clone())));
                        continue;
                    }
                    let cookie = c.after.first().map_or(0, |v| if let Value::Flow(c, _) = v { *c } else { 0 });
                    let actions = Arc::new(merge(&c.after));
                    let old = self.flows.insert(c.key.clone(), (cookie, actions.clone()));
                    if old.is_none_or(|(c, a)| c != cookie || a != actions) {
                        flows.push(Message::FlowMod(FlowMod::add(
                            *table,
                            *priority,
                            cookie,
                            m.clone(),
                            actions.to_vec(),
                        )));
                    }
                }
            }
        }
        first.extend(flows);
        first.extend(last);
        out.tables = first;
        out
    }

    /// All changes that bring a switch of unknown content here.
    pub fn replace(&self) -> Changes {
        let mut all = Group { id: openflow_rs::mods::GROUP_ALL, ..Group::default() };
        all.buckets.clear();
        let mut out = vec![Message::FlowMod(FlowMod::delete_all()), group(GroupModCommand::Delete, &all)];
        out.extend(self.groups.values().map(|g| group(GroupModCommand::Add, g)));
        for (key, (cookie, actions)) in &self.flows {
            if let Key::Flow(table, priority, m) = key {
                out.push(Message::FlowMod(FlowMod::add(*table, *priority, *cookie, m.clone(), actions.to_vec())));
            }
        }
        Changes { meters: self.fresh_meters(), tables: out, unused: Vec::new() }
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
        (self.flows.len(), self.groups.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }
}

fn group(command: GroupModCommand, g: &Group) -> Message {
    let mut g = g.clone();
    if command == GroupModCommand::Delete {
        g.buckets.clear();
    }
    Message::GroupMod(GroupMod::new(command, g))
}
