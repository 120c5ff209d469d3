//! Groups, and action sets in the order in which they are carried out.

use crate::bridge::{Bridge, Invalidation, validate};
use openflow_rs::OfError as E;
use openflow_rs::action::{Action, MplsAction};

use openflow_rs::wire::DecodeError;
use openflow_rs::{Group, GroupId, GroupMod, GroupModCommand};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A group and its counters, which copies of it share.
#[derive(Clone, Debug)]
pub struct GroupState {
    /// Configuration.
    pub group: Arc<Group>,
    /// The actions of each bucket in the order of execution.
    pub(crate) sets: Arc<[Vec<Action>]>,
    /// Packets and bytes of each bucket.
    counts: Arc<[[AtomicU64; 2]]>,
    /// When it was added.
    pub created: Duration,
}

impl GroupState {
    /// A group with counters at zero.
    pub(crate) fn new(group: Group, created: Duration) -> GroupState {
        // A bucket is an action set.
        let sets = group.buckets.iter().map(|b| ordered_action_set(b.actions.clone())).collect();
        let counts = group.buckets.iter().map(|_| Default::default()).collect();
        GroupState { counts, group: Arc::new(group), sets, created }
    }

    /// (packets, bytes) of each bucket.
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        self.counts.iter().map(|[packets, bytes]| (read(packets), read(bytes))).collect()
    }

    /// Counts packets and bytes of a bucket, by its place.
    pub(crate) fn count(&self, bucket: usize, packets: u64, bytes: u64) {
        if let Some(c) = self.counts.get(bucket) {
            c.iter().zip([packets, bytes]).for_each(|(c, n)| _ = c.fetch_add(n, Ordering::Relaxed));
        }
    }
}

impl Bridge {
    /// Applies a group-mod.
    ///
    /// # Errors The error to send to the controller; nothing has changed then.
    pub fn group_mod(&mut self, m: &GroupMod, now: Duration) -> Result<(), DecodeError> {
        use GroupModCommand as C;
        let id = m.group.id;
        let have = self.groups.contains_key(&id);
        for b in &m.group.buckets {
            validate::bucket(&b.actions)?;
        }
        if matches!(m.command, C::Add | C::Modify | C::AddOrModify) {
            validate::group(&m.group)?;
        }
        match m.command {
            C::Add if have => return Err(E::GroupModExists.because(format!("group {id} exists"))),
            C::InsertBucket if m.command_bucket_id == u32::MAX => {
                return Err(
                    E::GroupModBadBucket.because(format!("group {id}: buckets come behind one, not behind all"))
                );
            }
            C::Modify | C::InsertBucket | C::RemoveBucket if !have => {
                return Err(E::GroupModUnknownGroup.because(format!("group {id} does not exist")));
            }
            C::Delete if id == GroupId::ALL || id == GroupId::ANY => self.delete_groups(None, now),
            C::Delete => self.delete_groups(Some(id), now),
            C::Add | C::Modify | C::AddOrModify => {
                let group = self.fitting(&m.group);
                Arc::make_mut(&mut self.groups).insert(id, GroupState::new(group, now));
            }
            C::InsertBucket | C::RemoveBucket => {
                if let Some(g) = self.groups.get(&id) {
                    validate::buckets(&g.group, m)?;
                }
                self.change_buckets(m);
            }
        }
        self.version += 1;
        self.touched.push(Invalidation::Group(id));
        Ok(())
    }

    fn delete_groups(&mut self, id: Option<GroupId>, now: Duration) {
        let ids: Vec<GroupId> = self.groups.keys().copied().filter(|g| id.is_none_or(|i| i == *g)).collect();
        for g in &ids {
            Arc::make_mut(&mut self.groups).remove(g);
            self.touched.push(Invalidation::Group(*g));
        }
        self.remove_users_of_groups(&ids, now);
    }

    /// A group with its actions as they are executed.
    fn fitting(&self, g: &Group) -> Group {
        let mut g = g.clone();
        for b in &mut g.buckets {
            if let Some(list) = validate::cut(self, &b.actions) {
                b.actions = list;
            }
        }
        g
    }

    fn change_buckets(&mut self, m: &GroupMod) {
        let new = self.fitting(&m.group).buckets;
        let Some(s) = Arc::make_mut(&mut self.groups).get_mut(&m.group.id) else { return };
        let mut g = (*s.group).clone();
        let at = m.command_bucket_id;
        if m.command == GroupModCommand::InsertBucket {
            let i = match at {
                0xffff_fffd => 0,
                _ => g.buckets.iter().position(|b| b.id == at).map_or(g.buckets.len(), |i| i + 1),
            };
            g.buckets.splice(i..i, new);
        } else {
            match at {
                0xffff_ffff => g.buckets.clear(),
                0xffff_fffd => drop(g.buckets.drain(..1.min(g.buckets.len()))),
                0xffff_fffe => drop(g.buckets.pop()),
                _ => g.buckets.retain(|b| b.id != at),
            }
        }
        *s = GroupState::new(g, s.created);
    }
}

/// The execution order of an action set, as in Open vSwitch: the last of each kind of pop, push and decrement, then actions that set
/// fields in the order they were written, then one action that outputs or continues. Without such an action nothing is
/// executed. Other actions, which buckets may hold, have no effect.
pub(crate) fn ordered_action_set(set: Vec<Action>) -> Vec<Action> {
    fn once(a: &Action) -> Option<usize> {
        match a {
            Action::PopVlan => Some(0),
            Action::Mpls(MplsAction::Pop(_)) => Some(1),
            Action::Decap(_) => Some(2),
            Action::Encap(_) => Some(3),
            Action::Mpls(MplsAction::Push(_)) => Some(4),
            Action::PushVlan(_) => Some(5),
            Action::DecTtl(_) => Some(6),
            Action::Mpls(MplsAction::DecTtl) => Some(7),
            Action::DecNshTtl => Some(8),
            _ => None,
        }
    }
    fn last(a: &Action) -> Option<u32> {
        match a {
            Action::Ct(_) => Some(1),
            Action::CtClear => Some(2),
            Action::Resubmit { .. } => Some(3),
            Action::Output { .. } => Some(4),
            Action::Group(_) => Some(5),
            _ => None,
        }
    }
    fn sets(a: &Action) -> bool {
        use MplsAction as M;
        matches!(
            a,
            Action::SetField { .. }
                | Action::SetTunnel { .. }
                | Action::Load { .. }
                | Action::Move { .. }
                | Action::SetQueue(_)
                | Action::Mpls(M::SetLabel(_) | M::SetTc(_) | M::SetTtl(_))
        )
    }
    let mut first: [Option<Action>; 9] = Default::default();
    let (mut middle, mut end): (Vec<Action>, Option<Action>) = (Vec::new(), None);
    for a in set {
        if let Some(slot) = once(&a).and_then(|i| first.get_mut(i)) {
            *slot = Some(a);
        } else if let Some(n) = last(&a) {
            if end.as_ref().and_then(last).is_none_or(|m| n >= m) {
                end = Some(a);
            }
        } else if sets(&a) {
            middle.push(a);
        }
    }
    match end {
        Some(end) => first.into_iter().flatten().chain(middle).chain([end]).collect(),
        None => Vec::new(),
    }
}
