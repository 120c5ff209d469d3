//! Numbers for groups, meters and conjunctions, given out as long as something uses them.

use openflow_rs::{Action, Group, GroupId, MeterId, Subfield};
use ovn_schema::{Str, Uuid};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Numbers from 1 by name, the lowest free one first.
#[derive(Debug)]
struct Numbers<K> {
    by_name: FxHashMap<Arc<K>, u32>,
    names: BTreeMap<u32, Arc<K>>,
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Numbers { by_name: FxHashMap::default(), names: BTreeMap::new() }
    }
}

impl<K: Hash + Eq + Clone> Numbers<K> {
    fn get(&mut self, name: &K) -> u32 {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let full = self.names.len() as u32;
        let id = match self.names.last_key_value() {
            // No gaps.
            Some((last, _)) if *last == full => full + 1,
            _ => (1..).find(|id| !self.names.contains_key(id)).unwrap_or(full + 1),
        };
        let name = Arc::new(name.clone());
        self.by_name.insert(name.clone(), id);
        self.names.insert(id, name);
        id
    }

    fn release(&mut self, id: u32) {
        if let Some(name) = self.names.remove(&id) {
            self.by_name.remove(&name);
        }
    }
}

/// The ranges of conjunction numbers by their start, and the start of each flow's in a datapath.
#[derive(Debug, Default)]
struct Conjunctions {
    ranges: BTreeMap<u32, (u32, Uuid, Uuid)>,
    starts: FxHashMap<Uuid, Vec<(Uuid, u32)>>,
}

impl Conjunctions {
    /// The first of `n` numbers for a flow in a datapath: those that its UUID suggests, or the next free ones.
    fn get(&mut self, flow: Uuid, datapath: Uuid, n: u32) -> u32 {
        let own = self.starts.entry(flow).or_default();
        if let Some(at) = own.iter().position(|(d, _)| *d == datapath) {
            let start = own[at].1;
            if self.ranges.get(&start).is_some_and(|(have, ..)| *have >= n) {
                return start;
            }
            own.swap_remove(at);
            self.ranges.remove(&start);
        }
        let mut start = flow.as_fields().0.max(1);
        while let Some(next) = self.taken(start, n) {
            start = next;
        }
        self.ranges.insert(start, (n, flow, datapath));
        self.starts.entry(flow).or_default().push((datapath, start));
        start
    }

    /// Where to look on, if some of these numbers are another's.
    fn taken(&self, start: u32, n: u32) -> Option<u32> {
        let Some(end) = start.checked_add(n) else { return Some(1) };
        let (first, (len, ..)) = self.ranges.range(..end).next_back()?;
        let over = first.saturating_add(*len);
        (over > start).then(|| over.max(1))
    }

    fn forget(&mut self, flow: Uuid) {
        for (_, start) in self.starts.remove(&flow).unwrap_or_default() {
            if self.ranges.remove(&start).is_none() {
                UNEXPECTED.inc();
            }
        }
    }
}

/// Conjunction numbers that were given back and not given out: a fault.
pub static UNEXPECTED: daemon::Counter = daemon::Counter::new("lflow_conj_free_unexpected");

/// All numbers of a chassis.
#[derive(Debug, Default)]
pub struct Ids {
    groups: Mutex<Numbers<Group>>,
    meters: Mutex<Numbers<Str>>,
    conjunctions: Mutex<Conjunctions>,
}

impl Ids {
    /// The number of a group; the same content has the same number.
    pub fn group(&self, group: &Group) -> GroupId {
        GroupId(self.groups.lock().unwrap_or_else(PoisonError::into_inner).get(group))
    }

    /// The number of a meter.
    pub fn meter(&self, name: &str) -> MeterId {
        MeterId(self.meters.lock().unwrap_or_else(PoisonError::into_inner).get(&name.into()))
    }

    /// The first of `n` conjunction numbers of a logical flow in a datapath; 0 where it needs none.
    pub fn conjunction(&self, flow: Uuid, datapath: Uuid, n: u32) -> u32 {
        if n == 0 {
            return 0;
        }
        self.conjunctions.lock().unwrap_or_else(PoisonError::into_inner).get(flow, datapath, n)
    }

    /// A group that the switch has no more.
    pub fn release_group(&self, id: GroupId) {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).release(id.0);
    }

    /// A meter that the switch has no more.
    pub fn release_meter(&self, id: MeterId) {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner).release(id.0);
    }

    /// A logical flow that is gone.
    pub fn forget(&self, flow: Uuid) {
        self.conjunctions.lock().unwrap_or_else(PoisonError::into_inner).forget(flow);
    }

    /// The groups by their content, in ovn-controller's words.
    pub fn groups(&self) -> BTreeMap<String, GroupId> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.names.iter().map(|(id, g)| (content(g), GroupId(*id))).collect()
    }

    /// The meters by name.
    pub fn meters(&self) -> BTreeMap<String, MeterId> {
        let meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        meters.names.iter().map(|(id, name)| (name.to_string(), MeterId(*id))).collect()
    }

    /// Conjunction numbers: flow, datapath, the first one, and how many.
    pub fn conjunctions(&self) -> Vec<(Uuid, Uuid, u32, u32)> {
        let c = self.conjunctions.lock().unwrap_or_else(PoisonError::into_inner);
        c.ranges.iter().map(|(start, (n, flow, datapath))| (*flow, *datapath, *start, *n)).collect()
    }

    /// How many numbers of each kind are given out.
    pub fn counts(&self) -> (usize, usize, usize) {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner).names.len();
        let meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner).names.len();
        (groups, meters, self.conjunctions().len())
    }
}

/// A group's content as ovn-controller writes it: `bucket_id=`, and what goes into a register as `load:`.
fn content(g: &Group) -> String {
    let line = openflow_rs::text::group_to_string(g);
    let mut out = line.trim().split_once(',').map_or_else(String::new, |(_, c)| c.replace("bucket_id:", "bucket_id="));
    for a in g.buckets.iter().flat_map(|b| &b.actions) {
        if let Action::SetField { field, value, mask: None, .. } = a {
            let (name, end) = (field.def().name, Subfield::width(*field).saturating_sub(1));
            out = out.replace(&format!("set_field:{value:#x}->{name}"), &format!("load:{value}->{name}[0..{end}]"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    #[test]
    fn numbers_come_back() {
        let ids = Ids::default();
        assert_eq!(
            (ids.meter("a"), ids.meter("b"), ids.meter("c"), ids.meter("a")),
            (MeterId(1), MeterId(2), MeterId(3), MeterId(1))
        );
        ids.release_meter(openflow_rs::MeterId(2));
        assert_eq!((ids.meter("d"), ids.meter("b")), (MeterId(2), MeterId(4)));
        (1..=4).for_each(|id| ids.release_meter(openflow_rs::MeterId(id)));
        assert_eq!((ids.meter("z"), ids.counts()), (MeterId(1), (0, 1, 0)));
    }

    #[test]
    fn no_two_flows_share_a_conjunction() {
        // Rows alike in the first 32 bits of their UUIDs, one of them 0, one at the end.
        let ids = Ids::default();
        let flows = [uuid(5 << 96), uuid(5 << 96 | 1), uuid(6 << 96), uuid(1), uuid(u128::MAX), uuid(u128::MAX - 1)];
        let mut used = std::collections::HashSet::new();
        for f in flows {
            for dp in [uuid(7), uuid(8)] {
                let start = ids.conjunction(f, dp, 3);
                assert_eq!(ids.conjunction(f, dp, 2), start, "it keeps its number");
                for n in start..start + 3 {
                    assert!(n > 0 && used.insert(n), "{n} is given twice");
                }
            }
        }
        flows.iter().for_each(|f| ids.forget(*f));
        assert_eq!(ids.counts().2, 0);
    }
}
