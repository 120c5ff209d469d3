//! The client's copy of the rows that it monitors.

use super::VERSION;
use super::index::Index;
use crate::value::no_names;
use crate::{ColumnType, DatabaseSchema, Datum, Error, Row, Str, TableSchema, Uuid};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What became of one row: both states absent does not occur.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChange {
    /// The table's name.
    pub table: Str,
    /// The row's name.
    pub uuid: Uuid,
    /// Before; none where it was inserted.
    pub old: Option<Arc<Row>>,
    /// After; none where it was deleted.
    pub new: Option<Arc<Row>>,
}

/// `<table-updates>`: each row's update as text, so that only one at a time is held as a tree.
pub(super) type Updates<'a> = BTreeMap<Cow<'a, str>, BTreeMap<Cow<'a, str>, &'a RawValue>>;

#[derive(Debug, Default)]
struct Table {
    name: Str,
    rows: HashMap<Uuid, Arc<Row>>,
    /// A row of defaults, one for all that have no other columns.
    plain: Option<Arc<Row>>,
    indexes: Vec<Index>,
}

impl Table {
    fn index(&mut self, c: &RowChange) {
        for i in &mut self.indexes {
            i.change(c.uuid, c.old.as_deref(), c.new.as_deref());
        }
    }
}

/// The replicated rows, laid out by the server's schema; columns that are not replicated hold defaults.
#[derive(Debug, Default)]
pub struct Replica {
    schema: Option<Arc<DatabaseSchema>>,
    tables: BTreeMap<String, Table>,
    /// Columns of the indexes of each table.
    indexed: BTreeMap<String, Vec<Vec<String>>>,
}

impl Replica {
    /// A replica without rows, with these indexes.
    pub(super) fn new(indexed: BTreeMap<String, Vec<Vec<String>>>) -> Replica {
        Replica { indexed, ..Replica::default() }
    }

    /// The rows of a table whose columns hold these values, in order of their names, by an index that was asked for with
    /// [`Config::index`](super::Config::index); without that index there are none.
    pub fn find<'a>(
        &'a self,
        table: &str,
        columns: &[&str],
        values: &[Datum],
    ) -> impl Iterator<Item = (Uuid, &'a Arc<Row>)> + use<'a> {
        let table = self.tables.get(table);
        let index = table.and_then(|t| t.indexes.iter().find(|i| i.is_of(columns)));
        let found: Vec<Uuid> = index.map(|i| i.find(values).collect()).unwrap_or_default();
        found.into_iter().filter_map(move |u| Some((u, table?.rows.get(&u)?)))
    }

    /// The server's schema, once known.
    pub fn schema(&self) -> Option<&Arc<DatabaseSchema>> {
        self.schema.as_ref()
    }

    /// The rows of a table, in no order.
    pub fn rows(&self, table: &str) -> impl Iterator<Item = (&Uuid, &Arc<Row>)> {
        self.tables.get(table).into_iter().flat_map(|t| t.rows.iter())
    }

    /// A row.
    pub fn row(&self, table: &str, uuid: Uuid) -> Option<&Arc<Row>> {
        self.tables.get(table)?.rows.get(&uuid)
    }

    /// Takes over a schema; where it is another than before, forgets all rows.
    pub(super) fn set_schema(&mut self, schema: DatabaseSchema) -> bool {
        if self.schema.as_deref() == Some(&schema) {
            return false;
        }
        self.tables.clear();
        self.schema = Some(Arc::new(schema));
        true
    }

    /// Applies `<table-updates>` (version 1) or `<table-updates2>`. Where `whole`, rows
    /// that are not mentioned are gone. Gives what changed; an error of one row concerns no other.
    pub(super) fn apply(&mut self, updates: &Updates<'_>, whole: bool) -> (Vec<RowChange>, Vec<Error>) {
        let (mut changes, mut errors) = (Vec::new(), Vec::new());
        let Some(schema) = self.schema.clone() else { return (changes, errors) };
        for (name, rows) in updates {
            let ts = match schema.table(name) {
                Ok(ts) => ts,
                Err(e) => {
                    errors.push(e);
                    continue;
                }
            };
            let table = self.tables.entry(name.to_string()).or_default();
            if table.name.is_empty() {
                table.name = Str::from(&**name);
                let indexed = self.indexed.get(name.as_ref()).into_iter().flatten();
                table.indexes = indexed.map(|columns| Index::new(columns, ts)).collect();
            }
            for (uuid, update) in rows {
                let parsed = serde_json::from_str(update.get()).map_err(|e| Error::Syntax(e.to_string()));
                match parsed.and_then(|update| one(ts, table, uuid, &update)) {
                    Ok(Some(c)) => {
                        table.index(&c);
                        changes.push(c);
                    }
                    Ok(None) => {}
                    Err(e) => errors.push(Error::Syntax(format!("{name} row {uuid}: {e}"))),
                }
            }
        }
        if whole {
            for (name, table) in &mut self.tables {
                let there = updates.get(name.as_str());
                let shown = table.name.clone();
                let before = changes.len();
                table.rows.retain(|uuid, row| {
                    let kept = there.is_some_and(|t| t.contains_key(uuid.to_string().as_str()));
                    if !kept {
                        let (table, old) = (shown.clone(), Some(row.clone()));
                        changes.push(RowChange { table, uuid: *uuid, old, new: None });
                    }
                    kept
                });
                changes.iter().skip(before).for_each(|c| table.index(c));
            }
        }
        (changes, errors)
    }
}

fn one(ts: &TableSchema, table: &mut Table, uuid: &str, update: &Value) -> Result<Option<RowChange>, Error> {
    let uuid = Uuid::try_parse(uuid).map_err(|e| Error::Syntax(e.to_string()))?;
    let plain = table.plain.get_or_insert_with(|| Arc::new(Row::default_for(ts))).clone();
    let member = |k: &str| update.get(k).and_then(Value::as_object);
    let old = table.rows.get(&uuid).cloned();
    let new = if let Some(row) = member("initial").or_else(|| member("insert")) {
        Some(filled(ts, Row::clone(&plain), row)?)
    } else if let Some(diff) = member("modify") {
        let base = old.as_ref().ok_or_else(|| Error::syntax("modification of a row that is not there"))?;
        let mut row = Row::clone(base);
        for (name, value) in diff {
            if let Some((i, ty)) = column(ts, name) {
                let d = Datum::from_json_unsized(ty, value, &no_names)?;
                row.0[i] = row.0[i].apply_diff(&d, ty);
            }
        }
        Some(row)
    } else if let Some(row) = member("new") {
        let base = Row::clone(old.as_ref().unwrap_or(&plain));
        Some(filled(ts, base, row)?)
    } else {
        None
    };
    let told = ["modify", "new"].iter().any(|k| member(k).is_some_and(|row| row.contains_key(VERSION)));
    if old.as_deref() == new.as_ref() && !told {
        return Ok(None);
    }
    let new = new.map(|row| if row == *plain { plain } else { Arc::new(row) });
    match &new {
        Some(row) => table.rows.insert(uuid, row.clone()),
        None => table.rows.remove(&uuid),
    };
    Ok(Some(RowChange { table: table.name.clone(), uuid, old, new }))
}

/// A row of a `select`.
pub(super) fn selected(ts: &TableSchema, text: &str) -> Result<(Uuid, Row), Error> {
    let row: Map<String, Value> = serde_json::from_str(text).map_err(|e| Error::Syntax(e.to_string()))?;
    let name = row.get("_uuid").and_then(|u| u.get(1)).and_then(Value::as_str);
    let uuid = name.and_then(|n| Uuid::try_parse(n).ok()).ok_or_else(|| Error::syntax("a row without _uuid"))?;
    Ok((uuid, filled(ts, Row::default_for(ts), &row)?))
}

fn column<'a>(ts: &'a TableSchema, name: &str) -> Option<(usize, &'a ColumnType)> {
    ts.column_index(name).map(|i| (i, &ts.columns[i].ty))
}

fn filled(ts: &TableSchema, mut row: Row, values: &Map<String, Value>) -> Result<Row, Error> {
    for (name, value) in values {
        // `_version` and the like are no columns of the schema.
        if let Some((i, ty)) = column(ts, name) {
            row.0[i] = Datum::from_json_unsized(ty, value, &no_names)?;
        }
    }
    Ok(row)
}
