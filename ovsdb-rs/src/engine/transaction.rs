//! A transaction's view of the database: the rows that it touched, over those that it did not.

use super::{Change, Database, OpError, RowView, random_uuid};
use crate::{Row, Uuid};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A row that the transaction touched.
#[derive(Debug)]
pub(super) struct Slot {
    pub old: Option<Arc<Row>>,
    pub new: Option<Arc<Row>>,
    pub old_version: Uuid,
    /// `_version` that the row has from now on, unless it ends as it was.
    pub version: Uuid,
}

/// The uncommitted changes of a transaction.
pub(super) struct Transaction<'a> {
    pub db: &'a Database,
    pub tables: Vec<HashMap<Uuid, Slot>>,
}

/// What a transaction comes to: the changed rows, and the reference counts of rows that it did not change.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    pub changes: Vec<Change>,
    /// For each change, how many strong references the row has.
    pub references: Vec<usize>,
    pub recounted: Vec<(usize, Uuid, usize)>,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(db: &'a Database) -> Transaction<'a> {
        Transaction { db, tables: (0..db.tables.len()).map(|_| HashMap::new()).collect() }
    }

    /// The row, with the uncommitted changes.
    pub(super) fn get(&self, table: usize, uuid: Uuid) -> Option<&Arc<Row>> {
        match self.tables[table].get(&uuid) {
            Some(slot) => slot.new.as_ref(),
            None => self.db.tables[table].rows.get(&uuid).map(|s| &s.row),
        }
    }

    /// Whether a row of this name is there or was before the transaction.
    pub(super) fn is_taken(&self, table: usize, uuid: Uuid) -> bool {
        self.tables[table].contains_key(&uuid) || self.db.tables[table].rows.contains_key(&uuid)
    }

    fn view(&self, table: usize, uuid: Uuid) -> Option<RowView<'_>> {
        let version = match self.tables[table].get(&uuid) {
            Some(slot) => slot.version,
            None => self.db.tables[table].rows.get(&uuid).map_or_else(Uuid::nil, |s| s.version),
        };
        self.get(table, uuid).map(|row| RowView { uuid, version, row })
    }

    /// The rows of a table, with the uncommitted changes.
    pub(super) fn rows(&self, table: usize) -> impl Iterator<Item = RowView<'_>> {
        let touched = &self.tables[table];
        let base = self.db.rows(table).filter(move |r| touched.is_empty() || !touched.contains_key(&r.uuid));
        base.chain(touched.keys().filter_map(move |u| self.view(table, *u)))
    }

    /// The rows that satisfy a condition.
    pub(super) fn matching<'s>(&'s self, table: usize, condition: &'s super::All) -> Vec<RowView<'s>> {
        match condition.only_row() {
            Some(uuid) => self.view(table, uuid).filter(|r| condition.matches(*r)).into_iter().collect(),
            None => self.rows(table).filter(|r| condition.matches(*r)).collect(),
        }
    }

    pub(super) fn insert(&mut self, table: usize, uuid: Uuid, row: Row) {
        let (old_version, version) = (Uuid::nil(), random_uuid());
        self.tables[table].insert(uuid, Slot { old: None, new: Some(Arc::new(row)), old_version, version });
    }

    /// Makes a row what it is elsewhere.
    pub(super) fn put(&mut self, table: usize, uuid: Uuid, row: Option<Arc<Row>>) {
        if row.is_some() || self.is_taken(table, uuid) {
            self.slot(table, uuid).new = row;
        }
    }

    fn slot(&mut self, table: usize, uuid: Uuid) -> &mut Slot {
        let db = self.db;
        self.tables[table].entry(uuid).or_insert_with(|| {
            let stored = db.tables[table].rows.get(&uuid);
            let old = stored.map(|s| s.row.clone());
            let old_version = stored.map_or_else(Uuid::nil, |s| s.version);
            Slot { new: old.clone(), old, old_version, version: random_uuid() }
        })
    }

    /// The row, mutable; the first access copies it into the transaction.
    pub(super) fn modify(&mut self, table: usize, uuid: Uuid) -> Option<&mut Row> {
        self.slot(table, uuid).new.as_mut().map(Arc::make_mut)
    }

    pub(super) fn delete(&mut self, table: usize, uuid: Uuid) {
        self.slot(table, uuid).new = None;
    }

    /// Checks what must hold at commit, and gives what is to be applied.
    pub(super) fn finish(mut self) -> Result<Commit, OpError> {
        self.drop_unchanged(false);
        if self.tables.iter().all(HashMap::is_empty) {
            return Ok(Commit::default());
        }
        let counts = self.check_integrity()?;
        self.drop_unchanged(true);
        let mut commit = Commit::default();
        let mut done: HashSet<(usize, Uuid)> = HashSet::new();
        for (table, slots) in self.tables.into_iter().enumerate() {
            for (uuid, slot) in slots {
                let version = if slot.new.is_some() { slot.version } else { slot.old_version };
                let kept = self.db.tables[table].rows.get(&uuid).map_or(0, |s| s.references);
                commit.references.push(counts.get(&(table, uuid)).copied().unwrap_or(kept));
                commit.changes.push(Change {
                    table,
                    uuid,
                    old: slot.old,
                    new: slot.new,
                    old_version: slot.old_version,
                    version,
                });
                done.insert((table, uuid));
            }
        }
        commit.recounted = counts.into_iter().filter(|(k, _)| !done.contains(k)).map(|((t, u), n)| (t, u, n)).collect();
        Ok(commit)
    }

    /// Forgets rows that are as they were. Rows inserted and deleted again go too, once nothing needs to know of them.
    fn drop_unchanged(&mut self, ephemeral: bool) {
        for slots in &mut self.tables {
            slots.retain(|_, s| match (&s.old, &s.new) {
                (Some(old), Some(new)) => !Arc::ptr_eq(old, new) && old != new,
                (None, None) => !ephemeral,
                _ => true,
            });
        }
    }
}
