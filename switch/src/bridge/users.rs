//! How many flows use each group and each meter, and learn flows that go with them. It follows from the flows, and is kept as
//! they come and go, so that nobody has to look through all of them for it.

use super::Bridge;
use crate::classifier::Rule;
use openflow_rs::action::{Action, groups_of};
use openflow_rs::message::FlowStatsRequest;
use openflow_rs::{GroupId, MeterId, TableId};
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// The numbers of flows. Copies share them until they change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Users(Arc<Counts>);

#[derive(Clone, Debug, Default)]
struct Counts {
    groups: HashMap<GroupId, u32>,
    meters: HashMap<MeterId, u32>,
    /// By table and cookie of what they learn.
    learners: HashMap<Learned, u32>,
    /// The same of those whose learned flows go with the last of them (`delete_learned`).
    deleters: HashMap<Learned, u32>,
}

/// Table and cookie of learned flows.
type Learned = (TableId, u64);

/// What a flow learns, and whether that is to go with it.
fn learned_by(r: &Rule) -> impl Iterator<Item = (Learned, bool)> + '_ {
    r.actions.iter().filter_map(|a| match a {
        Action::Learn(l) => Some(((l.table, l.cookie), l.delete_learned)),
        _ => None,
    })
}

/// The meters of a flow. One that it only sends to controllers through does not count, as in Open vSwitch.
fn meters_of(r: &Rule) -> BTreeSet<MeterId> {
    r.actions.iter().filter_map(|a| if let Action::Meter(m) = a { Some(*m) } else { None }).collect()
}

/// Counts one more, or one less.
fn count<T: Hash + Eq>(counts: &mut HashMap<T, u32>, key: T, comes: bool) {
    if comes {
        *counts.entry(key).or_default() += 1;
    } else if let Some(n) = counts.get_mut(&key) {
        *n -= 1;
        if *n == 0 {
            counts.remove(&key);
        }
    }
}

impl Users {
    /// A flow came.
    pub(super) fn add(&mut self, r: &Rule) {
        self.change(r, true);
    }

    /// A flow went.
    pub(super) fn remove(&mut self, r: &Rule) {
        self.change(r, false);
    }

    fn change(&mut self, r: &Rule, comes: bool) {
        let (groups, meters) = (groups_of(&r.actions), meters_of(r));
        if groups.is_empty() && meters.is_empty() && learned_by(r).next().is_none() {
            return;
        }
        let c = Arc::make_mut(&mut self.0);
        groups.into_iter().for_each(|g| count(&mut c.groups, g, comes));
        meters.into_iter().for_each(|m| count(&mut c.meters, m, comes));
        for (learned, deletes) in learned_by(r) {
            count(&mut c.learners, learned, comes);
            if deletes {
                count(&mut c.deleters, learned, comes);
            }
        }
    }

    /// How many kinds of flows are learned.
    pub(crate) fn kinds_learned(&self) -> usize {
        self.0.learners.len()
    }

    /// Whether a flow learns flows of a table with a cookie.
    pub(super) fn learns(&self, table: TableId, cookie: u64) -> bool {
        self.0.learners.contains_key(&(table, cookie))
    }
}

impl Bridge {
    /// How many flows send packets to a group.
    pub fn flows_of_group(&self, id: GroupId) -> u32 {
        self.users.0.groups.get(&id).copied().unwrap_or(0)
    }

    /// How many flows have packets pass a meter.
    pub fn flows_of_meter(&self, id: MeterId) -> u32 {
        self.users.0.meters.get(&id).copied().unwrap_or(0)
    }

    /// Groups have gone: the flows that use them go as well (OpenFlow 1.5, section 6.6).
    pub(super) fn remove_users_of_groups(&mut self, gone: &[GroupId], now: Duration) {
        /// OFPRR_GROUP_DELETE
        const REASON: u8 = 3;
        let used = gone.iter().copied().filter(|g| self.flows_of_group(*g) > 0).collect();
        self.remove_users(&used, |r| groups_of(&r.actions), REASON, now);
    }

    /// Meters have gone: the flows that use them go as well (OpenFlow 1.5, section 6.6).
    pub(super) fn remove_users_of_meters(&mut self, gone: &[MeterId], now: Duration) {
        /// OFPRR_METER_DELETE
        const REASON: u8 = 4;
        let used = gone.iter().copied().filter(|m| self.flows_of_meter(*m) > 0).collect();
        self.remove_users(&used, meters_of, REASON, now);
    }

    /// Removes the flows that use one of these, of which `of` tells those of a flow.
    fn remove_users<T: Ord>(&mut self, used: &BTreeSet<T>, of: fn(&Rule) -> BTreeSet<T>, reason: u8, now: Duration) {
        if used.is_empty() {
            return;
        }
        let list: Vec<Arc<Rule>> = self.flows().filter(|r| !of(r).is_disjoint(used)).cloned().collect();
        list.iter().for_each(|r| self.remove_rule(r, reason, now));
    }

    /// Removes what a flow has learned, once it is gone or has other actions and no other flow learns the same.
    pub(super) fn forget_what_it_learned(&mut self, r: &Rule, now: Duration) {
        for (learned, deletes) in learned_by(r) {
            if !deletes || self.users.0.deleters.contains_key(&learned) {
                continue;
            }
            let (table, cookie) = learned;
            let q = FlowStatsRequest { table, cookie, cookie_mask: u64::MAX, ..Default::default() };
            for r in self.select(&q, None) {
                self.remove_rule(&r, 2, now);
            }
        }
    }
}
