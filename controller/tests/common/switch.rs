//! A slow, obvious switch: what its tables hold after bundles, and what it would refuse of them.

use controller::openflow::install::{Changes, TableChange};
use openflow_rs::mods::{Group, GroupModCommand, MeterConfig, MeterModCommand};
use openflow_rs::{Action, FlowModCommand, GroupId, Message, MeterId, PackedActions, PackedMatch, TableId};
use std::collections::HashMap;

#[derive(Debug, Default, PartialEq)]
pub struct Switch {
    flows: HashMap<(TableId, u16, PackedMatch), (u64, PackedActions)>,
    groups: HashMap<GroupId, Group>,
    meters: HashMap<MeterId, MeterConfig>,
}

impl Switch {
    /// Takes a bundle, with the meters before and behind it. Returns what a switch would refuse, or would lose by it.
    pub fn take(&mut self, changes: &Changes) -> Vec<String> {
        let mut faults = Vec::new();
        for m in &changes.meters {
            let is_there = self.meters.contains_key(&m.meter.id);
            match m.command {
                // For a switch of unknown content a meter is added and changed.
                MeterModCommand::Add if is_there => {}
                MeterModCommand::Modify if !is_there => faults.push(format!("no such meter: {m:?}")),
                MeterModCommand::Delete => faults.push(format!("deleted before the bundle: {m:?}")),
                _ => drop(self.meters.insert(m.meter.id, m.meter.clone())),
            }
        }
        for c in &changes.tables {
            self.change(c, &mut faults);
        }
        for m in &changes.unused {
            if self.meters.remove(&m.meter.id).is_none() {
                faults.push(format!("no such meter: {m:?}"));
            }
        }
        self.check(&mut faults);
        faults
    }

    fn change(&mut self, c: &TableChange, faults: &mut Vec<String>) {
        match c {
            TableChange::Flow(f) => {
                let key = (f.table, f.priority, f.matches.clone());
                match f.command {
                    FlowModCommand::Add => {
                        let (actions, mut lacks) = (f.actions.unpack().unwrap_or_default(), Vec::new());
                        self.lacks(&actions, &mut lacks);
                        faults.extend(lacks.into_iter().map(|l| format!("{l}: {f:?}")));
                        self.flows.insert(key, (f.cookie, f.actions.clone()));
                    }
                    FlowModCommand::DeleteStrict => {
                        if self.flows.remove(&key).is_none() {
                            faults.push(format!("no such flow: {f:?}"));
                        }
                    }
                    _ => faults.push(format!("unexpected: {f:?}")),
                }
            }
            TableChange::Other(m) => match &**m {
                Message::FlowMod(f) if f.command == FlowModCommand::Delete => self.flows.clear(),
                Message::GroupMod(g) => {
                    let id = g.group.id;
                    match (g.command, self.groups.get_mut(&id)) {
                        (GroupModCommand::Add, Some(_)) => faults.push(format!("is there already: {g:?}")),
                        (GroupModCommand::Add | GroupModCommand::AddOrModify, _) => {
                            self.groups.insert(id, g.group.clone());
                        }
                        (GroupModCommand::InsertBucket, Some(old)) => {
                            old.buckets.extend_from_slice(&g.group.buckets);
                        }
                        (GroupModCommand::Delete, _) if id == GroupId::ALL => self.groups.clear(),
                        (GroupModCommand::Delete, Some(_)) => drop(self.groups.remove(&id)),
                        _ => faults.push(format!("no such group: {g:?}")),
                    }
                }
                m => faults.push(format!("unexpected: {m:?}")),
            },
        }
    }

    /// Groups and meters that actions use and that are not there: a switch refuses the flow.
    fn lacks(&self, actions: &[Action], out: &mut Vec<String>) {
        for a in actions {
            match a {
                Action::Group(g) if !self.groups.contains_key(g) => out.push(format!("no group {g:?}")),
                Action::Meter(m) if !self.meters.contains_key(m) => out.push(format!("no meter {m:?}")),
                Action::Clone(inner) | Action::WriteActions(inner) => self.lacks(inner, out),
                _ => {}
            }
        }
    }

    /// With a group or a meter the flows go that use it.
    fn check(&self, faults: &mut Vec<String>) {
        for (key, (_, actions)) in &self.flows {
            let mut lacks = Vec::new();
            self.lacks(&actions.unpack().unwrap_or_default(), &mut lacks);
            faults.extend(lacks.into_iter().map(|l| format!("{l}: {key:?}")));
        }
    }
}
