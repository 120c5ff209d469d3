//! Flow tables: adding, modifying, removing and listing flows.

use crate::bridge::changes::Change;
use crate::bridge::{Bridge, FlowUpdate, validate};
use crate::classifier::{Classifier, Rule};
use openflow_rs::OfError as E;
use openflow_rs::action::{outputs_to_group, outputs_to_port};
use openflow_rs::message::{FlowRemoved, FlowStats, FlowStatsRequest};
use openflow_rs::mods::FlowFlags;
use openflow_rs::wire::DecodeError;
use openflow_rs::{FieldId, FlowMod, FlowModCommand, GroupId, PortNo, TableId};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Whether a flow passes a filter, apart from its match.
fn fits(r: &Rule, q: &FlowStatsRequest) -> bool {
    (r.cookie ^ q.cookie) & q.cookie_mask == 0
        && (q.out_port == PortNo::ANY || outputs_to_port(&r.actions, q.out_port))
        && (q.out_group == GroupId::ANY || outputs_to_group(&r.actions, q.out_group))
}

fn selects(r: &Rule, q: &FlowStatsRequest) -> bool {
    fits(r, q) && (r.matches.is_within(&q.matches) || is_within_ethernet(r, q))
}

/// Whether a flow is within a match that asks for packets with an Ethernet header. As in Open vSwitch, a flow asks for
/// that if it matches such a header or what is behind it.
fn is_within_ethernet(r: &Rule, q: &FlowStatsRequest) -> bool {
    let (kind, mask) = q.matches.get(FieldId::PacketType);
    if mask == 0 || kind != 0 {
        return false;
    }
    let mut rest = q.matches.clone();
    rest.clear(FieldId::PacketType);
    r.matches.is_within(&rest) && r.matches.fields().iter().any(|(f, ..)| !f.is_pipeline())
}

/// The flows that pass a filter, with counters, for a flow statistics reply.
pub fn flow_stats(rules: &[Arc<Rule>], q: &FlowStatsRequest, now: Duration) -> Vec<FlowStats> {
    let stats = |r: &Arc<Rule>| {
        let (packets, bytes, used) = r.counters();
        let age = now.saturating_sub(r.created);
        FlowStats {
            flow: r.to_flow_mod(),
            duration_sec: age.as_secs() as u32,
            duration_nsec: age.subsec_nanos(),
            idle_age: now.saturating_sub(used).as_secs() as u32,
            hard_age: now.saturating_sub(r.modified()).as_secs() as u32,
            packets,
            bytes,
        }
    };
    rules.iter().filter(|r| selects(r, q)).map(stats).collect()
}

impl Bridge {
    /// A table, to change it.
    fn table_mut(&mut self, n: TableId) -> Option<&mut Classifier> {
        self.version += 1;
        self.tables.get_mut(n.index()).map(Arc::make_mut)
    }

    /// Inserts a flow; returns the one that it replaces.
    fn put(&mut self, rule: Arc<Rule>) -> Option<Arc<Rule>> {
        if rule.may_expire() {
            self.timed.push(Arc::downgrade(&rule));
        }
        let old = self.table_mut(rule.table)?.insert(rule.clone());
        self.users.add(&rule);
        old.iter().for_each(|r| self.users.remove(r));
        if self.watched {
            self.told.push(FlowUpdate { old: old.clone(), new: Some(rule.clone()), modified: false, reason: 0 });
        }
        self.changes.push(Change { old: old.clone(), new: Some(rule) });
        old
    }

    /// Removes a flow from its table.
    fn take(&mut self, r: &Rule) -> Option<Arc<Rule>> {
        let old = self.table_mut(r.table)?.remove(&r.matches, r.priority)?;
        self.users.remove(&old);
        if self.watched {
            self.told.push(FlowUpdate { old: Some(old.clone()), new: None, modified: false, reason: 2 });
        }
        self.changes.push(Change { old: Some(old.clone()), new: None });
        Some(old)
    }

    /// Applies a flow-mod.
    ///
    /// # Errors
    /// The error to send to the controller; nothing has changed then.
    pub fn flow_mod(&mut self, f: &FlowMod, now: Duration) -> Result<(), DecodeError> {
        let there = validate::without_values(self, &f.matches).map(|matches| FlowMod { matches, ..f.clone() });
        let f = there.as_ref().unwrap_or(f);
        let hits = if f.command == FlowModCommand::Add { Vec::new() } else { self.select_mod(f) };
        // As in Open vSwitch: table 255 means table 0 for a new flow, and all tables for a modification. OpenFlow
        // defines "all tables" for deletions only.
        let deletes = matches!(f.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict);
        let first = (!deletes && f.table == TableId::ALL).then(|| FlowMod { table: TableId::FIRST, ..f.clone() });
        let f = first.as_ref().unwrap_or(f);
        match validate::flow(self, f) {
            // Actions that no flow gets may refer to groups and meters that do not exist.
            Err(e) if hits.is_empty() && validate::refers(&e) && f.command != FlowModCommand::Add && !f.or_add => {}
            result => result?,
        }
        let fitting = validate::cut(self, &f.actions).map(|actions| FlowMod { actions, ..f.clone() });
        let f = fitting.as_ref().unwrap_or(f);
        match f.command {
            FlowModCommand::Add => self.add_flow(f, now),
            FlowModCommand::Modify | FlowModCommand::ModifyStrict => {
                // From OpenFlow 1.1 on, a modification that matches no flow does nothing.
                if hits.is_empty() && f.or_add {
                    return self.add_flow(f, now);
                }
                for old in hits {
                    self.replace_actions(&old, f, now);
                    self.forget_what_it_learned(&old, now);
                }
                Ok(())
            }
            FlowModCommand::Delete | FlowModCommand::DeleteStrict => {
                for old in hits {
                    self.remove_rule(&old, 2, now);
                }
                Ok(())
            }
        }
    }

    pub(crate) fn add_flow(&mut self, f: &FlowMod, now: Duration) -> Result<(), DecodeError> {
        let Some(t) = self.tables.get(f.table.index()) else {
            return Err(E::FlowModBadTable.because(format!("table {} does not exist", f.table)));
        };
        if f.flags.has(FlowFlags::CHECK_OVERLAP)
            && t.iter().any(|r| r.priority == f.priority && r.matches != f.matches && r.matches.overlaps(&f.matches))
        {
            return Err(E::FlowModOverlap.because("an overlapping flow of the same priority exists"));
        }
        self.evict_for(f, now)?;
        let Some(t) = self.tables.get(f.table.index()) else { return Ok(()) };
        let mut rule = Rule::new(f, now);
        let old = t.find(&f.matches, f.priority).cloned();
        if let Some(old) = &old {
            rule.follow(old, f.flags);
        }
        self.put(Arc::new(rule));
        if let Some(old) = old {
            self.forget_what_it_learned(&old, now);
        }
        Ok(())
    }

    /// The flow that is there already as a `learn` action would add it.
    pub(crate) fn as_learned(&self, f: &FlowMod) -> Option<&Arc<Rule>> {
        let there = self.tables.get(f.table.index())?.find(&f.matches, f.priority)?;
        let timeouts = (there.idle_timeout(), there.hard_timeout());
        let same = *there.actions == *f.actions && there.cookie == f.cookie;
        Some(there).filter(|_| same && timeouts == (f.idle_timeout, f.hard_timeout))
    }

    fn replace_actions(&mut self, old: &Arc<Rule>, f: &FlowMod, now: Duration) {
        self.put(Arc::new(old.with_actions(f, now)));
        if let Some(t) = self.told.last_mut().filter(|_| self.watched) {
            t.modified = true;
        }
    }

    fn select_mod(&self, f: &FlowMod) -> Vec<Arc<Rule>> {
        let strict = matches!(f.command, FlowModCommand::ModifyStrict | FlowModCommand::DeleteStrict);
        let q = FlowStatsRequest {
            table: f.table,
            out_port: f.out_port,
            out_group: f.out_group,
            cookie: f.cookie,
            cookie_mask: f.cookie_mask,
            matches: f.matches.clone(),
        };
        self.select(&q, strict.then_some(f.priority))
    }

    /// Flows that pass a filter; with a priority, only those with exactly the filter's match.
    pub(super) fn select(&self, q: &FlowStatsRequest, strict: Option<u16>) -> Vec<Arc<Rule>> {
        let tables = self.tables_named(q.table);
        match strict {
            Some(p) => tables.filter_map(|t| t.find(&q.matches, p)).filter(|r| fits(r, q)).cloned().collect(),
            None => tables.flat_map(|t| t.iter()).filter(|r| selects(r, q)).cloned().collect(),
        }
    }

    fn tables_named(&self, table: TableId) -> impl Iterator<Item = &Arc<Classifier>> {
        let named = move |i: usize| table == TableId::ALL || i == table.index();
        self.tables.iter().enumerate().filter(move |(i, _)| named(*i)).map(|(_, t)| t)
    }

    /// The flows of a table, or of all, for another thread to look at with [`flow_stats`].
    pub fn rules(&self, table: TableId) -> Vec<Arc<Rule>> {
        self.tables_named(table).flat_map(|t| t.iter()).cloned().collect()
    }

    /// At most `most` of these flows, from a place on, and the place to go on with: table, and how many of its flows come
    /// before. None: there are no more. A change of flows moves them to other places.
    pub fn rules_from(
        &self,
        which: TableId,
        (mut table, mut before): (usize, usize),
        most: usize,
    ) -> (Vec<Arc<Rule>>, Option<(usize, usize)>) {
        let mut list = Vec::new();
        for t in self.tables_named(which).skip(table) {
            let had = list.len();
            list.extend(t.iter().skip(before).take(most - had).cloned());
            if list.len() == most {
                return (list, Some((table, before + most - had)));
            }
            (table, before) = (table + 1, 0);
        }
        (list, None)
    }

    pub(crate) fn remove_rule(&mut self, r: &Arc<Rule>, reason: u8, now: Duration) {
        if self.take(r).is_none() {
            return;
        }
        if let Some(t) = self.told.last_mut().filter(|_| self.watched) {
            t.reason = reason;
        }
        if r.flags.has(FlowFlags::SEND_FLOW_REM) {
            let (packets, bytes, _) = r.counters();
            let age = now.saturating_sub(r.created);
            self.removed.push(FlowRemoved {
                table: r.table,
                reason,
                priority: r.priority,
                idle_timeout: r.idle_timeout(),
                hard_timeout: r.hard_timeout(),
                cookie: r.cookie,
                duration_sec: age.as_secs() as u32,
                duration_nsec: age.subsec_nanos(),
                packets,
                bytes,
                matches: r.matches.clone(),
            });
        }
        self.forget_what_it_learned(r, now);
    }

    /// Some flows end by themselves.
    pub(crate) fn times_out(&self) -> bool {
        !self.timed.is_empty()
    }

    /// Removes the flows that have expired.
    pub fn expire(&mut self, now: Duration) {
        let mut gone = Vec::new();
        // Removed and replaced flows leave the list.
        self.timed.retain(|r| r.strong_count() != 0);
        for r in self.timed.iter().filter_map(Weak::upgrade) {
            let (_, _, used) = r.counters();
            let [idle, hard] = [r.idle_timeout(), r.hard_timeout()];
            let reason = match () {
                () if hard != 0 && r.modified() + Duration::from_secs(hard.into()) <= now => 1,
                () if idle != 0 && used + Duration::from_secs(idle.into()) <= now => 0,
                () => continue,
            };
            let there = self.tables.get(r.table.index()).and_then(|t| t.find(&r.matches, r.priority));
            if there.is_some_and(|x| Arc::ptr_eq(x, &r)) {
                gone.push((r, reason));
            }
        }
        for (r, reason) in gone {
            self.remove_rule(&r, reason, now);
        }
        self.macs.expire(now);
        self.expire_groups(now);
    }
}
