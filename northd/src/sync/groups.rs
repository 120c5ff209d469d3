//! `Logical_DP_Group`: the groups that the database has, by their datapaths.

use super::Op;
use crate::model::Datapaths;
use ovn_schema::{Uuid, sb};
use ovsdb_rs::{Atom, Datum};
use rustc_hash::FxHashMap as HashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Datapath groups in use. The database drops a group by itself when the last row that names it goes.
#[derive(Default)]
pub(crate) struct Groups {
    by_members: HashMap<Arc<[Uuid]>, BTreeSet<Uuid>>,
    members: HashMap<Uuid, Arc<[Uuid]>>,
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
        if let Some(members) = self.members.remove(&uuid)
            && let Some(same) = self.by_members.get_mut(&members)
        {
            same.remove(&uuid);
            if same.is_empty() {
                self.by_members.remove(&members);
            }
        }
        if let Some(group) = now {
            self.add(uuid, group.datapaths.iter().copied().collect());
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
        let datum = Datum::set(members.iter().map(|u| Atom::Uuid(*u)).collect());
        ops.push(Op::Insert(sb::TableId::LogicalDpGroup, uuid, vec![("datapaths", datum)]));
        self.add(uuid, members.clone());
        uuid
    }

    /// The datapaths of the group that a column names.
    pub(crate) fn members(&self, datum: &Datum) -> Option<&Arc<[Uuid]>> {
        self.members.get(&datum.scalar()?.as_uuid()?)
    }
}
