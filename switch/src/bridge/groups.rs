//! Groups, and action sets in the order in which they are carried out.

use openflow_rs::Group;
use openflow_rs::action::Action;
use std::sync::Arc;
use std::time::Duration;

/// A group and its counters.
#[derive(Clone, Debug)]
pub struct GroupState {
    /// Configuration.
    pub group: Arc<Group>,
    /// The actions of each bucket in the order of execution.
    pub(crate) sets: Arc<[Vec<Action>]>,
    /// (packets, bytes) of each bucket.
    pub buckets: Vec<(u64, u64)>,
    /// When it was added.
    pub created: Duration,
}

impl GroupState {
    /// A group with counters at zero.
    pub(crate) fn new(group: Group, created: Duration) -> GroupState {
        // A bucket is an action set.
        let sets = group.buckets.iter().map(|b| ordered_action_set(b.actions.clone())).collect();
        GroupState { buckets: vec![(0, 0); group.buckets.len()], group: Arc::new(group), sets, created }
    }
}

/// The execution order of an action set, as in Open vSwitch: the last pop, push and decrement, then actions that set
/// fields in the order they were written, then one action that outputs or continues. Without such an action nothing is
/// executed. Other actions, which buckets may hold, have no effect.
pub(crate) fn ordered_action_set(set: Vec<Action>) -> Vec<Action> {
    fn once(a: &Action) -> Option<usize> {
        match a {
            Action::PopVlan => Some(0),
            Action::PushVlan(_) => Some(1),
            Action::DecTtl(_) => Some(2),
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
    let mut first: [Option<Action>; 3] = Default::default();
    let (mut middle, mut end): (Vec<Action>, Option<Action>) = (Vec::new(), None);
    for a in set {
        if let Some(slot) = once(&a).and_then(|i| first.get_mut(i)) {
            *slot = Some(a);
        } else if let Some(n) = last(&a) {
            if end.as_ref().and_then(last).is_none_or(|m| n >= m) {
                end = Some(a);
            }
        } else if matches!(a, Action::SetField { .. } | Action::Load { .. } | Action::Move { .. } | Action::SetQueue(_))
        {
            middle.push(a);
        }
    }
    match end {
        Some(end) => first.into_iter().flatten().chain(middle).chain([end]).collect(),
        None => Vec::new(),
    }
}
