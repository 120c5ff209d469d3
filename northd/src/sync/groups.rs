//! `Logical_DP_Group`: the groups that the database has, by their datapaths.

use super::Op;
use crate::model::Datapaths;
use ovn_schema::{Uuid, sb};
use ovsdb_rs::{Atom, Datum};
use rustc_hash::FxHashMap as HashMap;
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Datapath groups in use. The database drops a group by itself when the last row that names it goes.
#[derive(Default)]
pub(crate) struct Groups {
    by_members: HashMap<Arc<[Uuid]>, BTreeSet<Uuid>>,
    members: HashMap<Uuid, Arc<[Uuid]>>,
    /// How many flows and columns of other rows name a group.
    users: HashMap<Uuid, usize>,
}

/// Users of groups that get other datapaths, by the group.
#[derive(Default)]
pub(crate) struct Moves(HashMap<Uuid, Move>);

/// How many users of a group get other datapaths, and which, where these are the same for all.
type Move = (usize, Option<Arc<[Uuid]>>);

impl Moves {
    /// A user of the group gets these southbound datapaths (sorted).
    pub(crate) fn note(&mut self, group: Uuid, members: &Arc<[Uuid]>) {
        match self.0.entry(group) {
            Entry::Vacant(e) => {
                e.insert((1, Some(members.clone())));
            }
            Entry::Occupied(mut e) => {
                let (n, same) = e.get_mut();
                *n += 1;
                if same.as_ref().is_some_and(|s| !Arc::ptr_eq(s, members) && s != members) {
                    *same = None;
                }
            }
        }
    }
}

/// The southbound datapaths of lists of northbound ones, each list, by its address, looked up once.
#[derive(Default)]
pub(crate) struct Resolved(HashMap<usize, Both>);

/// A list of northbound datapaths, and the southbound ones.
type Both = (Arc<[Uuid]>, Arc<[Uuid]>);

impl Resolved {
    /// The southbound datapaths of all lists, sorted.
    pub(crate) fn of<'a>(
        &mut self,
        lists: impl Iterator<Item = &'a Datapaths>,
        datapath: impl Fn(&Uuid) -> Option<Uuid>,
    ) -> Arc<[Uuid]> {
        let lists: Vec<&Datapaths> = lists.collect();
        match lists[..] {
            [Datapaths::Many(list)] => self.list(list, datapath),
            _ => sorted(lists.iter().flat_map(|l| l.all()).filter_map(datapath)),
        }
    }

    /// The southbound datapaths of one list, sorted.
    pub(crate) fn list(&mut self, list: &Arc<[Uuid]>, datapath: impl Fn(&Uuid) -> Option<Uuid>) -> Arc<[Uuid]> {
        // The list is held, so nothing else comes to lie where it is.
        let found = self.0.entry(list.as_ptr().addr());
        found.or_insert_with(|| (list.clone(), sorted(list.iter().filter_map(datapath)))).1.clone()
    }
}

fn names(members: &Arc<[Uuid]>) -> Datum {
    Datum::set(members.iter().map(|u| Atom::Uuid(*u)).collect())
}

fn sorted(all: impl Iterator<Item = Uuid>) -> Arc<[Uuid]> {
    let mut all: Vec<Uuid> = all.collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

impl Groups {
    /// Takes over the groups that the database has.
    pub(crate) fn load(&mut self, db: &sb::Database) {
        for (uuid, group) in &db.logical_dp_group {
            self.add(*uuid, group.datapaths.iter().copied().collect());
        }
    }

    /// Takes note of what became of a group in the database.
    pub(crate) fn note(&mut self, uuid: Uuid, now: Option<&sb::LogicalDpGroup>) {
        self.forget(uuid);
        if let Some(group) = now {
            self.add(uuid, group.datapaths.iter().copied().collect());
        }
    }

    /// The number of groups, and of those that somebody names.
    pub(crate) fn entries(&self) -> usize {
        self.members.len() + self.users.len()
    }

    fn forget(&mut self, uuid: Uuid) {
        if let Some(members) = self.members.remove(&uuid)
            && let Some(same) = self.by_members.get_mut(&members)
        {
            same.remove(&uuid);
            if same.is_empty() {
                self.by_members.remove(&members);
            }
        }
    }

    /// Takes note that somebody names another group now.
    pub(crate) fn exchange(&mut self, before: Option<Uuid>, now: Option<Uuid>) {
        if before == now {
            return;
        }
        if let Some(group) = before
            && let Entry::Occupied(mut e) = self.users.entry(group)
        {
            *e.get_mut() -= 1;
            if *e.get() == 0 {
                e.remove();
            }
        }
        if let Some(group) = now {
            *self.users.entry(group).or_default() += 1;
        }
    }

    /// Gives other datapaths to groups all of whose users get the same, unless there is a group with these.
    pub(crate) fn carry_out(&mut self, moves: Moves, ops: &mut Vec<Op<sb::TableId>>) {
        let mut all: Vec<_> = moves.0.into_iter().collect();
        // Always the same result, whatever the order of the map.
        all.sort_unstable_by_key(|(group, _)| *group);
        for (group, (n, members)) in all {
            let Some(members) = members.filter(|m| m.len() > 1 && self.find(m).is_none()) else { continue };
            if self.users.get(&group) != Some(&n) || !self.members.contains_key(&group) {
                continue;
            }
            self.forget(group);
            self.add(group, members.clone());
            ops.push(Op::Update(sb::TableId::LogicalDpGroup, group, vec![("datapaths", names(&members))]));
        }
    }

    fn add(&mut self, uuid: Uuid, members: Arc<[Uuid]>) {
        self.members.insert(uuid, members.clone());
        self.by_members.entry(members).or_default().insert(uuid);
    }

    /// The group with these southbound datapaths (sorted).
    pub(crate) fn find(&self, members: &Arc<[Uuid]>) -> Option<Uuid> {
        self.by_members.get(members).and_then(BTreeSet::first).copied()
    }

    /// The same, made where there is none.
    pub(crate) fn get(&mut self, members: &Arc<[Uuid]>, ops: &mut Vec<Op<sb::TableId>>) -> Uuid {
        if let Some(found) = self.find(members) {
            return found;
        }
        let uuid = ovsdb_rs::engine::random_uuid();
        ops.push(Op::Insert(sb::TableId::LogicalDpGroup, uuid, vec![("datapaths", names(members))]));
        self.add(uuid, members.clone());
        uuid
    }

    /// The southbound datapaths of a group.
    pub(crate) fn members_of(&self, group: Uuid) -> Option<&Arc<[Uuid]>> {
        self.members.get(&group)
    }

    /// The datapaths of the group that a column names.
    pub(crate) fn members(&self, datum: &Datum) -> Option<&Arc<[Uuid]>> {
        self.members.get(&datum.scalar()?.as_uuid()?)
    }
}
