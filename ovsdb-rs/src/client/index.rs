//! Secondary indexes of a replica: rows by what some of their columns hold.

use crate::{Datum, Row, TableSchema, Uuid};
use std::collections::{BTreeSet, HashMap};

/// Rows by the values of some columns; several may have the same.
#[derive(Debug)]
pub(super) struct Index {
    columns: Vec<String>,
    /// Where the columns are; none: the server lacks one.
    places: Option<Vec<usize>>,
    rows: HashMap<Box<[Datum]>, BTreeSet<Uuid>>,
}

impl Index {
    pub(super) fn new(columns: &[String], ts: &TableSchema) -> Index {
        let places = columns.iter().map(|c| ts.column_index(c)).collect();
        Index { columns: columns.to_vec(), places, rows: HashMap::new() }
    }

    pub(super) fn is_of(&self, columns: &[&str]) -> bool {
        self.columns.iter().map(String::as_str).eq(columns.iter().copied())
    }

    fn key(&self, row: &Row) -> Option<Box<[Datum]>> {
        self.places.as_ref()?.iter().map(|i| row.0.get(*i).cloned()).collect()
    }

    /// A row is another now, came, or went.
    pub(super) fn change(&mut self, uuid: Uuid, old: Option<&Row>, new: Option<&Row>) {
        let (old, new) = (old.and_then(|r| self.key(r)), new.and_then(|r| self.key(r)));
        if old == new {
            return;
        }
        if let Some(k) = old
            && let Some(set) = self.rows.get_mut(&k)
        {
            set.remove(&uuid);
            if set.is_empty() {
                self.rows.remove(&k);
            }
        }
        if let Some(k) = new {
            self.rows.entry(k).or_default().insert(uuid);
        }
    }

    /// The rows with these values, in order of their names.
    pub(super) fn find(&self, key: &[Datum]) -> impl Iterator<Item = Uuid> {
        self.rows.get(key).into_iter().flatten().copied()
    }
}
