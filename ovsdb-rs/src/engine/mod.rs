//! The database engine: a database in memory, and transactions on it. Pure: no I/O, no clock.
//!
//! | module | holds |
//! |---|---|
//! | `request` | operations as they come, results as they go |
//! | `operation` | the operations of a transaction (RFC 7047 section 5.2) |
//! | `transaction` | a transaction's view: changed rows over the database |
//! | `access` | who may change what: roles, read-only remotes, reserved databases |
//! | `integrity` | what holds at commit: references, garbage collection, row limits, indexes |

mod access;
mod condition;
mod error;
mod integrity;
mod mutation;
mod operation;
pub(crate) mod parse;
pub(crate) mod request;
mod transaction;

pub use access::Access;
pub use condition::{All, Any, Clause, Function};
pub use error::OpError;
pub use operation::{Context, Executed, Outcome};
pub use request::{Operations, Results};

use crate::file::Content;
use crate::{Atom, ColumnType, DatabaseSchema, Datum, RefType, Row, TableSchema, Uuid};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

/// A column of a table, the two that every row has among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Column {
    /// `_uuid`.
    Uuid,
    /// `_version`, another value after each change.
    Version,
    /// A column of the schema, by its index.
    Data(usize),
}

static UUID_TYPE: LazyLock<ColumnType> =
    LazyLock::new(|| ColumnType::scalar(crate::BaseType::new(crate::AtomType::Uuid)));

impl Column {
    /// The column's type.
    pub fn ty(self, schema: &TableSchema) -> &ColumnType {
        match self {
            Column::Data(i) => &schema.columns[i].ty,
            Column::Uuid | Column::Version => &UUID_TYPE,
        }
    }

    /// The column's name.
    pub fn name(self, schema: &TableSchema) -> &str {
        match self {
            Column::Uuid => "_uuid",
            Column::Version => "_version",
            Column::Data(i) => &schema.columns[i].name,
        }
    }
}

/// A row with its UUID and version.
#[derive(Clone, Copy, Debug)]
pub struct RowView<'a> {
    /// `_uuid`.
    pub uuid: Uuid,
    /// `_version`.
    pub version: Uuid,
    /// The other columns.
    pub row: &'a Row,
}

impl RowView<'_> {
    /// Calls `f` with the value of a column.
    pub fn with<R>(&self, column: Column, f: impl FnOnce(&Datum) -> R) -> R {
        match column {
            Column::Uuid => f(&Datum::Scalar(Atom::Uuid(self.uuid))),
            Column::Version => f(&Datum::Scalar(Atom::Uuid(self.version))),
            Column::Data(i) => f(&self.row.0[i]),
        }
    }
}

/// A row as the database keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub row: Arc<Row>,
    pub version: Uuid,
    /// How many strong references point at it.
    pub references: usize,
}

/// A reference that a column can hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub column: usize,
    /// In the map's value, not in the key.
    pub in_value: bool,
    pub target: usize,
    pub kind: RefType,
}

impl Link {
    /// The rows that a datum refers to through this link.
    pub(crate) fn targets<'a>(&self, row: &'a Row) -> impl Iterator<Item = Uuid> + 'a {
        let d = &row.0[self.column];
        let (in_value, in_map) = (self.in_value, matches!(d, Datum::Map(_)));
        let atoms = if in_map { &[][..] } else { d.atoms() };
        let pairs = d.pairs().iter().map(move |(k, v)| if in_value { v } else { k });
        atoms.iter().chain(pairs).filter_map(Atom::as_uuid)
    }

    /// References that a row has through this link no longer, and those that it did not have before. Of a large set of which
    /// little changed, little is gone through; a row that several pairs of a map refer to is there several times, in both
    /// lists where the map changed otherwise.
    pub(crate) fn counted(&self, old: Option<&Row>, new: Option<&Row>) -> (Vec<Uuid>, Vec<Uuid>) {
        let all = |row: Option<&Row>| row.into_iter().flat_map(|r| self.targets(r)).collect();
        let (Some(before), Some(after)) = (old, new) else { return (all(old), all(new)) };
        let (before, after) = (&before.0[self.column], &after.0[self.column]);
        if before == after {
            return Default::default();
        }
        if [before, after].iter().any(|d| matches!(d, Datum::Map(_))) {
            return (all(old), all(new));
        }
        let (gone, added) = crate::sorted::exclusive(before.atoms(), after.atoms());
        let rows = |atoms: Vec<Atom>| atoms.iter().filter_map(Atom::as_uuid).collect();
        (rows(gone), rows(added))
    }

    /// The rows that a row refers to through this link no longer, and those that it did not refer to before.
    pub(crate) fn moved(&self, old: Option<&Row>, new: Option<&Row>) -> (Vec<Uuid>, Vec<Uuid>) {
        if let (Some(old), Some(new)) = (old, new)
            && old.0[self.column] == new.0[self.column]
        {
            return Default::default();
        }
        // Sets are in order already, and sorting what is in order takes one look at each.
        let sorted = |row: Option<&Row>| {
            let mut all: Vec<Uuid> = row.into_iter().flat_map(|r| self.targets(r)).collect();
            all.sort();
            all.dedup();
            all
        };
        let (old, new) = (sorted(old), sorted(new));
        let without = |all: &[Uuid], other: &[Uuid]| {
            let mut other = other.iter().peekable();
            let lacks = |u: &&Uuid| {
                while other.next_if(|o| o < u).is_some() {}
                other.peek() != Some(u)
            };
            all.iter().filter(lacks).copied().collect()
        };
        (without(&old, &new), without(&new, &old))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub schema: Arc<TableSchema>,
    pub links: Vec<Link>,
    /// The columns of each index.
    pub index_columns: Vec<Vec<usize>>,
    pub rows: HashMap<Uuid, Stored>,
    /// For each index, the row that has these values.
    pub indexes: Vec<HashMap<Box<[Datum]>, Uuid>>,
    /// For each row here (or missing here), the rows (table, name) that refer to it weakly.
    pub weak: HashMap<Uuid, BTreeSet<(usize, Uuid)>>,
}

impl Table {
    pub(crate) fn key(&self, index: usize, row: &Row) -> Box<[Datum]> {
        self.index_columns[index].iter().map(|c| row.0[*c].clone()).collect()
    }
}

/// What a transaction did to one row: both states absent does not occur.
#[derive(Clone, Debug)]
pub struct Change {
    /// The table's place among the schema's tables (sorted by name).
    pub table: usize,
    /// The row's UUID.
    pub uuid: Uuid,
    /// Before; none where it was inserted.
    pub old: Option<Arc<Row>>,
    /// After; none where it was deleted.
    pub new: Option<Arc<Row>>,
    /// The row's version before (of an inserted row: the nil UUID).
    pub old_version: Uuid,
    /// The row's version after (of a deleted row: the last one).
    pub version: Uuid,
}

/// A database in memory.
#[derive(Clone, Debug)]
pub struct Database {
    schema: Arc<DatabaseSchema>,
    pub(crate) tables: Vec<Table>,
}

/// A fresh random UUID (RFC 9562 version 4).
pub fn random_uuid() -> Uuid {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid()
}

impl Database {
    /// An empty database.
    pub fn new(schema: DatabaseSchema) -> Database {
        let names: Vec<&String> = schema.tables.keys().collect();
        let place = |name: &String| names.binary_search(&name).ok();
        let tables = schema
            .tables
            .values()
            .map(|t| {
                let mut links = Vec::new();
                for (column, c) in t.columns.iter().enumerate() {
                    for (in_value, base) in [(false, Some(&c.ty.key)), (true, c.ty.value.as_ref())] {
                        if let Some((target, kind)) = base.and_then(|b| b.reference.as_ref())
                            && let Some(target) = place(target)
                        {
                            links.push(Link { column, in_value, target, kind: *kind });
                        }
                    }
                }
                let index_columns: Vec<Vec<usize>> =
                    t.indexes.iter().map(|i| i.iter().filter_map(|c| t.column_index(c)).collect()).collect();
                Table {
                    schema: Arc::new(t.clone()),
                    links,
                    indexes: vec![HashMap::new(); index_columns.len()],
                    index_columns,
                    rows: HashMap::new(),
                    weak: HashMap::new(),
                }
            })
            .collect();
        Database { schema: Arc::new(schema), tables }
    }

    /// The database that a file holds. Weak references to missing rows are dropped.
    ///
    /// # Errors
    /// Where rows violate the schema's integrity: no server could have written them.
    pub fn load(content: Content) -> Result<Database, OpError> {
        let mut db = Database::new(content.schema);
        for (table, (_, rows)) in content.tables.into_iter().enumerate() {
            db.tables[table].rows.reserve(rows.len());
            for (uuid, row) in rows {
                let stored = Stored { row: Arc::new(row), version: random_uuid(), references: 0 };
                db.tables[table].rows.insert(uuid, stored);
            }
        }
        if db.settle() {
            return Ok(db);
        }
        // Something is not as a server leaves it; a transaction mends it or says what is wrong.
        let mut rows = Vec::new();
        for (table, t) in db.tables.iter_mut().enumerate() {
            rows.extend(t.rows.drain().map(|(uuid, s)| (table, uuid, Arc::unwrap_or_clone(s.row))));
        }
        let mut db = Database::new(DatabaseSchema::clone(&db.schema));
        db.insert_all(rows)?;
        Ok(db)
    }

    /// Works out counts of references, indexes and weak references from the rows. False where
    /// something would have to change.
    fn settle(&mut self) -> bool {
        let mut counts: HashMap<(usize, Uuid), usize> = HashMap::new();
        let mut weak: Vec<(usize, Uuid, (usize, Uuid))> = Vec::new();
        for (place, table) in self.tables.iter().enumerate() {
            for (uuid, s) in &table.rows {
                for link in &table.links {
                    for target in link.targets(&s.row) {
                        if !self.tables[link.target].rows.contains_key(&target) {
                            return false;
                        }
                        match link.kind {
                            RefType::Weak => weak.push((link.target, target, (place, *uuid))),
                            RefType::Strong if link.target == place && target == *uuid => {}
                            RefType::Strong => *counts.entry((link.target, target)).or_default() += 1,
                        }
                    }
                }
            }
        }
        for (target, uuid, from) in weak {
            self.tables[target].weak.entry(uuid).or_default().insert(from);
        }
        for (place, table) in self.tables.iter_mut().enumerate() {
            if table.schema.max_rows.is_some_and(|n| table.rows.len() as u64 > n) {
                return false;
            }
            for index in 0..table.index_columns.len() {
                let keys: HashMap<Box<[Datum]>, Uuid> =
                    table.rows.iter().map(|(u, s)| (table.key(index, &s.row), *u)).collect();
                if keys.len() != table.rows.len() {
                    return false;
                }
                table.indexes[index] = keys;
            }
            for (uuid, s) in &mut table.rows {
                s.references = counts.get(&(place, *uuid)).copied().unwrap_or(0);
                if s.references == 0 && !table.schema.is_root {
                    return false;
                }
            }
        }
        true
    }

    /// Inserts rows as one transaction.
    fn insert_all(&mut self, rows: Vec<(usize, Uuid, Row)>) -> Result<(), OpError> {
        let mut txn = transaction::Transaction::new(self);
        for (table, uuid, row) in rows {
            txn.insert(table, uuid, row);
        }
        let commit = txn.finish()?;
        self.apply(&commit);
        Ok(())
    }

    /// Makes rows what they are in another server's database of the same schema, as one transaction.
    /// Returns what changed.
    ///
    /// # Errors
    /// Where that violates the schema's integrity; nothing is changed then.
    pub fn follow(
        &mut self,
        rows: impl IntoIterator<Item = (usize, Uuid, Option<Arc<Row>>)>,
    ) -> Result<Vec<Change>, OpError> {
        let mut txn = transaction::Transaction::new(self);
        for (table, uuid, row) in rows {
            txn.put(table, uuid, row);
        }
        let commit = txn.finish()?;
        self.apply(&commit);
        Ok(commit.changes)
    }

    /// The same content under another schema: tables and columns that it lacks are left out,
    /// those that are new hold defaults (ovsdb-server(7) section 4.1.19).
    ///
    /// # Errors
    /// Where the content violates the new schema.
    pub fn convert(&self, schema: DatabaseSchema) -> Result<Database, OpError> {
        let mut db = Database::new(schema);
        let mut rows = Vec::new();
        for old in &self.tables {
            let Some(table) = db.table_index(&old.schema.name) else { continue };
            let schema = &db.tables[table].schema;
            for (uuid, stored) in &old.rows {
                let mut row = Row::default_for(schema);
                for (place, column) in schema.columns.iter().enumerate() {
                    let Some(value) = stored.row.get(&old.schema, &column.name) else { continue };
                    let json = value.to_json();
                    row.0[place] = parse::datum(&column.ty, &json, &crate::value::no_names).map_err(|e| OpError {
                        details: format!("{} column {}: {}", schema.name, column.name, e.details),
                        ..e
                    })?;
                }
                rows.push((table, *uuid, row));
            }
        }
        db.insert_all(rows)?;
        Ok(db)
    }

    /// The schema.
    pub fn schema(&self) -> &Arc<DatabaseSchema> {
        &self.schema
    }

    /// How many tables there are.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// The schema of a table by its index.
    pub fn table_schema(&self, table: usize) -> Option<&Arc<TableSchema>> {
        self.tables.get(table).map(|t| &t.schema)
    }

    /// The index of a table.
    pub fn table_index(&self, name: &str) -> Option<usize> {
        self.tables.binary_search_by(|t| t.schema.name.as_str().cmp(name)).ok()
    }

    /// The rows of a table, in no order.
    pub fn rows(&self, table: usize) -> impl Iterator<Item = RowView<'_>> {
        let rows = self.tables.get(table).into_iter().flat_map(|t| t.rows.iter());
        rows.map(|(uuid, s)| RowView { uuid: *uuid, version: s.version, row: &s.row })
    }

    /// The rows of a table; keeping one increments its reference count.
    pub(crate) fn shared_rows(&self, table: usize) -> impl Iterator<Item = (Uuid, &Arc<Row>)> {
        self.tables.get(table).into_iter().flat_map(|t| t.rows.iter()).map(|(u, s)| (*u, &s.row))
    }

    /// A row of a table; keeping it increments its reference count.
    pub fn row(&self, table: usize, uuid: Uuid) -> Option<&Arc<Row>> {
        self.tables.get(table)?.rows.get(&uuid).map(|s| &s.row)
    }

    /// How many rows a table has.
    pub fn row_count(&self, table: usize) -> usize {
        self.tables.get(table).map_or(0, |t| t.rows.len())
    }

    /// How many rows refer to others weakly, counted once for each row referred to.
    pub fn weak_references(&self) -> usize {
        self.tables.iter().flat_map(|t| t.weak.values()).map(BTreeSet::len).sum()
    }

    /// Applies the changes of a transaction.
    pub(crate) fn apply(&mut self, commit: &transaction::Commit) {
        for (place, c) in commit.changes.iter().enumerate() {
            let table = &mut self.tables[c.table];
            for i in 0..table.indexes.len() {
                if let Some(old) = &c.old {
                    let key = table.key(i, old);
                    if table.indexes[i].get(&key) == Some(&c.uuid) {
                        table.indexes[i].remove(&key);
                    }
                }
            }
            for i in 0..table.indexes.len() {
                if let Some(new) = &c.new {
                    let key = table.key(i, new);
                    table.indexes[i].insert(key, c.uuid);
                }
            }
            match &c.new {
                Some(row) => {
                    let references = commit.references[place];
                    table.rows.insert(c.uuid, Stored { row: row.clone(), version: c.version, references });
                }
                None => {
                    table.rows.remove(&c.uuid);
                }
            }
            self.relink(c);
        }
        for (table, uuid, references) in &commit.recounted {
            if let Some(s) = self.tables[*table].rows.get_mut(uuid) {
                s.references = *references;
            }
        }
    }

    /// Updates the index of weak references: target to referring rows.
    fn relink(&mut self, c: &Change) {
        let weak = self.tables[c.table].links.iter().filter(|l| l.kind == RefType::Weak);
        let links: Vec<Link> = weak.copied().collect();
        let row = (c.table, c.uuid);
        for link in &links {
            let (gone, added) = link.moved(c.old.as_deref(), c.new.as_deref());
            // A target can be reached through two columns.
            let others = || links.iter().filter(|l| l.target == link.target);
            let stays = |target: Uuid| c.new.iter().any(|r| others().any(|l| l.targets(r).any(|t| t == target)));
            let several = others().count() > 1;
            let gone: Vec<Uuid> = gone.into_iter().filter(|t| !several || !stays(*t)).collect();
            let weak = &mut self.tables[link.target].weak;
            for target in gone {
                if let Some(set) = weak.get_mut(&target) {
                    set.remove(&row);
                    if set.is_empty() {
                        weak.remove(&target);
                    }
                }
            }
            for target in added {
                weak.entry(target).or_default().insert(row);
            }
        }
    }
}
