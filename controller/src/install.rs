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
}

impl Tables {
    /// Takes over changes of the derivation and gives those of the switch: new groups before flows that use them, and
    /// groups that nobody uses any more after.
    pub fn apply(&mut self, changes: Vec<Change<'_, Key, Value>>) -> Vec<Message> {
        let (mut first, mut flows, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for c in changes {
            match c.key {
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
        first
    }

    /// All changes that bring a switch of unknown content here.
    pub fn replace(&self) -> Vec<Message> {
        let mut all = Group { id: openflow_rs::mods::GROUP_ALL, ..Group::default() };
        all.buckets.clear();
        let mut out = vec![Message::FlowMod(FlowMod::delete_all()), group(GroupModCommand::Delete, &all)];
        out.extend(self.groups.values().map(|g| group(GroupModCommand::Add, g)));
        for (key, (cookie, actions)) in &self.flows {
            if let Key::Flow(table, priority, m) = key {
                out.push(Message::FlowMod(FlowMod::add(*table, *priority, *cookie, m.clone(), actions.to_vec())));
            }
        }
        out
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

/// Meters for a fresh switch.
pub fn meters(wanted: &HashMap<u32, MeterConfig>) -> Vec<MeterMod> {
    let clear = MeterConfig { id: openflow_rs::mods::METER_ALL, ..MeterConfig::default() };
    let delete = MeterMod { command: MeterModCommand::Delete, meter: clear };
    let add = wanted.values().map(|m| MeterMod { command: MeterModCommand::Add, meter: m.clone() });
    std::iter::once(delete).chain(add).collect()
}
