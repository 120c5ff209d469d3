//! What holds at commit (RFC 7047 sections 3.2 and 4.1.3): strong references have targets, rows of
//! non-root tables are referred to, tables keep their limit, weak references have targets, indexes are unique.

use super::transaction::Transaction;
use super::{Link, OpError};
use crate::{Atom, Datum, RefType, Row, Uuid};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// New reference counts by table and row.
pub(super) type Counts = HashMap<(usize, Uuid), usize>;

/// A row that refers to itself does not keep itself alive.
fn is_self(link: Link, target: Uuid, table: usize, uuid: Uuid) -> bool {
    link.target == table && target == uuid
}

impl Transaction<'_> {
    /// Checks all, collecting garbage and dropping weak references on the way.
    pub(super) fn check_integrity(&mut self) -> Result<Counts, OpError> {
        let mut counts = Counts::new();
        self.count_references(&mut counts)?;
        self.check_deleted(&counts)?;
        self.collect_garbage(&mut counts);
        self.check_row_limits()?;
        self.drop_weak_references()?;
        self.check_indexes()?;
        Ok(counts)
    }

    fn stored_count(&self, table: usize, uuid: Uuid) -> usize {
        self.db.tables[table].rows.get(&uuid).map_or(0, |s| s.references)
    }

    fn strong_links(&self, table: usize) -> impl Iterator<Item = Link> {
        self.db.tables[table].links.iter().filter(|l| l.kind == RefType::Strong).copied()
    }

    fn count_references(&mut self, counts: &mut Counts) -> Result<(), OpError> {
        // Additions first, so that a count that comes to the same in the end never falls below zero.
        for table in 0..self.tables.len() {
            for (uuid, slot) in &self.tables[table] {
                for link in self.strong_links(table) {
                    let (_, added) = link.counted(slot.old.as_deref(), slot.new.as_deref());
                    for target in added.into_iter().filter(|t| !is_self(link, *t, table, *uuid)) {
                        let stored = self.stored_count(link.target, target);
                        *counts.entry((link.target, target)).or_insert(stored) += 1;
                        let known = self.is_taken(link.target, target);
                        if !known {
                            let schema = &self.db.tables[table].schema;
                            let text = format!(
                                "Table {} column {} row {uuid} references nonexistent row {target} in table {}.",
                                schema.name, schema.columns[link.column].name, self.db.tables[link.target].schema.name
                            );
                            return Err(OpError::new("referential integrity violation", text));
                        }
                    }
                }
            }
        }
        for table in 0..self.tables.len() {
            for (uuid, slot) in &self.tables[table] {
                for link in self.strong_links(table) {
                    let (gone, _) = link.counted(slot.old.as_deref(), slot.new.as_deref());
                    for target in gone.into_iter().filter(|t| !is_self(link, *t, table, *uuid)) {
                        let stored = self.stored_count(link.target, target);
                        let n = counts.entry((link.target, target)).or_insert(stored);
                        *n = n.saturating_sub(1);
                    }
                }
            }
        }
        Ok(())
    }

    /// No deleted row may still be referred to.
    fn check_deleted(&self, counts: &Counts) -> Result<(), OpError> {
        for (table, slots) in self.tables.iter().enumerate() {
            for (uuid, _) in slots.iter().filter(|(_, s)| s.new.is_none()) {
                let n = counts.get(&(table, *uuid)).copied().unwrap_or_else(|| self.stored_count(table, *uuid));
                if n > 0 {
                    let name = &self.db.tables[table].schema.name;
                    let text = format!("cannot delete {name} row {uuid} because of {n} remaining reference(s)");
                    return Err(OpError::new("referential integrity violation", text));
                }
            }
        }
        Ok(())
    }

    /// Deletes rows of non-root tables that nothing refers to, and what only they referred to.
    fn collect_garbage(&mut self, counts: &mut Counts) {
        let is_garbage = |txn: &Self, counts: &Counts, table: usize, uuid: Uuid| {
            !txn.db.tables[table].schema.is_root
                && txn.get(table, uuid).is_some()
                && counts.get(&(table, uuid)).copied().unwrap_or_else(|| txn.stored_count(table, uuid)) == 0
        };
        let mut candidates: Vec<(usize, Uuid)> = counts.keys().copied().collect();
        for (table, slots) in self.tables.iter().enumerate() {
            candidates.extend(slots.keys().map(|u| (table, *u)));
        }
        while let Some((table, uuid)) = candidates.pop() {
            if !is_garbage(self, counts, table, uuid) {
                continue;
            }
            let Some(row) = self.get(table, uuid).cloned() else { continue };
            for link in self.strong_links(table).collect::<Vec<_>>() {
                for target in link.targets(&row).filter(|t| !is_self(link, *t, table, uuid)) {
                    let stored = self.stored_count(link.target, target);
                    let n = counts.entry((link.target, target)).or_insert(stored);
                    *n = n.saturating_sub(1);
                    candidates.push((link.target, target));
                }
            }
            self.delete(table, uuid);
        }
    }

    fn check_row_limits(&self) -> Result<(), OpError> {
        for (table, slots) in self.tables.iter().enumerate() {
            let schema = &self.db.tables[table].schema;
            let Some(limit) = schema.max_rows else { continue };
            let inserted = slots.values().filter(|s| s.old.is_none() && s.new.is_some()).count();
            let deleted = slots.values().filter(|s| s.old.is_some() && s.new.is_none()).count();
            let n = (self.db.tables[table].rows.len() + inserted).saturating_sub(deleted) as u64;
            if n > limit && inserted > 0 {
                return Err(OpError::constraint(format!(
                    "transaction causes \"{}\" table to contain {n} rows, greater than the schema-defined limit of {limit} row(s)",
                    schema.name
                )));
            }
        }
        Ok(())
    }

    fn drop_weak_references(&mut self) -> Result<(), OpError> {
        let mut affected: HashSet<(usize, Uuid)> = HashSet::new();
        for (table, slots) in self.tables.iter().enumerate() {
            let has_weak = self.db.tables[table].links.iter().any(|l| l.kind == RefType::Weak);
            for (uuid, slot) in slots {
                if slot.new.is_none() {
                    affected.extend(self.db.tables[table].weak.get(uuid).into_iter().flatten());
                } else if has_weak {
                    affected.insert((table, *uuid));
                }
            }
        }
        for (table, uuid) in affected {
            let Some(row) = self.get(table, uuid).cloned() else { continue };
            let links: Vec<Link> =
                self.db.tables[table].links.iter().filter(|l| l.kind == RefType::Weak).copied().collect();
            let mut columns: Vec<usize> = links.iter().map(|l| l.column).collect();
            columns.dedup();
            for column in columns {
                let links: Vec<Link> = links.iter().filter(|l| l.column == column).copied().collect();
                self.drop_dangling(table, uuid, &row, column, &links)?;
            }
        }
        Ok(())
    }

    /// Takes the elements of one column whose weak references have no target out of it.
    fn drop_dangling(
        &mut self,
        table: usize,
        uuid: Uuid,
        row: &Arc<Row>,
        column: usize,
        links: &[Link],
    ) -> Result<(), OpError> {
        let dangles = |a: &Atom, in_value: bool| {
            links
                .iter()
                .filter(|l| l.in_value == in_value)
                .any(|l| a.as_uuid().is_some_and(|u| self.get(l.target, u).is_none()))
        };
        let old = &row.0[column];
        let all_there = match old {
            Datum::Map(pairs) => !pairs.iter().any(|(k, v)| dangles(k, false) || dangles(v, true)),
            set => !set.atoms().iter().any(|a| dangles(a, false)),
        };
        if all_there {
            return Ok(());
        }
        let (new, nil) = match old {
            Datum::Map(pairs) => {
                let kept: Vec<_> =
                    pairs.iter().filter(|(k, v)| !dangles(k, false) && !dangles(v, true)).cloned().collect();
                (Datum::map(kept), false)
            }
            set => {
                let kept: Vec<Atom> = set.atoms().iter().filter(|a| !dangles(a, false)).cloned().collect();
                let nil = set.atoms().contains(&Atom::Uuid(Uuid::nil()));
                (Datum::set(kept), nil)
            }
        };
        let dropped = old.len() - new.len();
        let schema = &self.db.tables[table].schema;
        let c = &schema.columns[column];
        if (new.len() as u64) < u64::from(c.ty.min) {
            let touched = self.tables[table].get(&uuid);
            let inserted = touched.is_some_and(|s| s.old.is_none());
            let when = if inserted { " (inserted within this transaction)" } else { "" };
            let place = format!("column \"{}\" in \"{}\" row {uuid}{when}", c.name, schema.name);
            return Err(OpError::constraint(if nil && inserted {
                format!(
                    "Weak reference {place} contained all-zeros UUID (probably as the default value for this column) \
                     but deleting this value caused a constraint volation because this column is not allowed to be empty."
                )
            } else {
                format!(
                    "Deletion of {dropped} weak reference(s) to deleted (or never-existing) rows from {place} \
                     caused this column to become empty, but constraints on this column disallow an empty column."
                )
            }));
        }
        if let Some(row) = self.modify(table, uuid) {
            row.0[column] = new;
        }
        Ok(())
    }

    fn check_indexes(&self) -> Result<(), OpError> {
        for (place, slots) in self.tables.iter().enumerate() {
            let table = &self.db.tables[place];
            for index in 0..table.indexes.len() {
                let mut seen: HashMap<Box<[Datum]>, Uuid> = HashMap::new();
                for (uuid, slot) in slots {
                    let Some(new) = &slot.new else { continue };
                    let key = table.key(index, new);
                    // A row that the transaction touched stands in `seen` with what it has become.
                    let stored = table.indexes[index].get(&key).filter(|u| !slots.contains_key(u)).copied();
                    let other = match seen.entry(key) {
                        Entry::Occupied(e) => Some(*e.get()),
                        Entry::Vacant(e) => {
                            e.insert(*uuid);
                            stored
                        }
                    };
                    if let Some(other) = other {
                        // The greater name first, as ovsdb-server has it.
                        return Err(self.duplicate(place, index, other.max(*uuid), other.min(*uuid)));
                    }
                }
            }
        }
        Ok(())
    }

    fn duplicate(&self, place: usize, index: usize, first: Uuid, second: Uuid) -> OpError {
        let table = &self.db.tables[place];
        let columns = &table.index_columns[index];
        let values = |row: &Row| {
            let texts: Vec<String> = columns.iter().map(|c| plain(&row.0[*c])).collect();
            texts.join(", ")
        };
        let names: Vec<String> = columns.iter().map(|c| format!("\"{}\"", table.schema.columns[*c].name)).collect();
        let names = match names.as_slice() {
            [one] => format!("column {one}"),
            [a, b] => format!("columns {a} and {b}"),
            [many @ .., last] => format!("columns {}, and {last}", many.join(", ")),
            [] => "no columns".to_string(),
        };
        let row = self.get(place, first);
        let origin = |uuid: Uuid| match self.tables[place].get(&uuid) {
            None => {
                "existed in the database before this transaction and was not modified by the transaction.".to_string()
            }
            Some(s) => match &s.old {
                None => "was inserted by this transaction.".to_string(),
                Some(old) if s.new.as_ref().is_some_and(|n| columns.iter().all(|c| n.0[*c] == old.0[*c])) => {
                    "existed in the database before this transaction, which modified some of the row's columns \
                     but not any columns in this index."
                        .to_string()
                }
                Some(old) => {
                    format!("had the following index values before the transaction: {}.", values(old))
                }
            },
        };
        OpError::constraint(format!(
            "Transaction causes multiple rows in \"{}\" table to have identical values ({}) for index on {names}.  \
             First row, with UUID {first}, {}  Second row, with UUID {second}, {}",
            table.schema.name,
            row.map(|r| values(r)).unwrap_or_default(),
            origin(first),
            origin(second)
        ))
    }
}

/// A value as people write it, for messages.
fn plain(d: &Datum) -> String {
    let atom = Atom::to_plain;
    match d {
        Datum::Scalar(a) => atom(a),
        Datum::Set(s) => format!("[{}]", s.iter().map(atom).collect::<Vec<_>>().join(", ")),
        Datum::Map(m) => {
            let pairs: Vec<String> = m.iter().map(|(k, v)| format!("{}={}", atom(k), atom(v))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(in_value: bool) -> Link {
        Link { column: 0, in_value, target: 0, kind: RefType::Strong }
    }

    fn row(d: Datum) -> Row {
        Row([d].into())
    }

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    /// One row more in a large set is one reference more, and the others are not counted anew.
    #[test]
    fn of_a_large_set_the_difference_counts() {
        let set = |rows: &[u128]| row(Datum::set(rows.iter().map(|n| Atom::Uuid(id(*n))).collect()));
        let many: Vec<u128> = (1..1000).collect();
        let changed: Vec<u128> = (1..1001).filter(|n| *n != 500).collect();
        let (old, new) = (set(&many), set(&changed));
        assert_eq!(link(false).counted(Some(&old), Some(&new)), (vec![id(500)], vec![id(1000)]));
        assert_eq!(link(false).counted(Some(&old), Some(&old)), (vec![], vec![]));
        assert_eq!(link(false).counted(None, Some(&set(&[1, 2]))), (vec![], vec![id(1), id(2)]));
        assert_eq!(link(false).counted(Some(&set(&[1, 2])), None), (vec![id(1), id(2)], vec![]));
        assert_eq!(link(false).counted(Some(&set(&[1])), Some(&set(&[2]))), (vec![id(1)], vec![id(2)]));
    }

    /// A row that two pairs refer to loses one reference when one of these goes.
    #[test]
    fn each_pair_of_a_map_counts() {
        let map = |pairs: &[(i64, u128)]| {
            row(Datum::map(pairs.iter().map(|(k, n)| (Atom::Integer(*k), Atom::Uuid(id(*n)))).collect()))
        };
        let (gone, added) = link(true).counted(Some(&map(&[(1, 7), (2, 7), (3, 8)])), Some(&map(&[(1, 7), (3, 8)])));
        let count = |list: &[Uuid], n: u128| list.iter().filter(|u| **u == id(n)).count();
        assert_eq!((count(&gone, 7) - count(&added, 7), count(&gone, 8) - count(&added, 8)), (1, 0));
    }
}
