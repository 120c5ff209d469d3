//! The client's copy of the rows that it monitors.

use super::VERSION;
use super::index::Index;
use crate::value::no_names;
use crate::{ColumnType, DatabaseSchema, Datum, Error, Row, Str, TableSchema, Uuid};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
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

/// Text that stays where it is, unless it has escapes.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A row's part of `<table-updates>` or `<table-updates2>`; a deletion has none of these.
#[derive(serde::Deserialize)]
struct RowUpdate<'a> {
    #[serde(borrow)]
    initial: Option<Columns<'a>>,
    #[serde(borrow)]
    insert: Option<Columns<'a>>,
    #[serde(borrow)]
    modify: Option<Columns<'a>>,
    #[serde(borrow)]
    new: Option<Columns<'a>>,
}

/// Columns of a row; `_version` and the like are not in the schema and left out.
struct Columns<'a> {
    values: Vec<(Cow<'a, str>, Value)>,
    /// Whether there is a version.
    version: bool,
}

impl Columns<'_> {
    fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (&**name, value))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Columns<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Columns<'a>, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Columns<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("columns of a row")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Columns<'de>, A::Error> {
                let mut columns = Columns { values: Vec::new(), version: false };
                while let Some(Text(name)) = map.next_key()? {
                    if name.starts_with('_') {
                        map.next_value::<IgnoredAny>()?;
                        columns.version |= name == VERSION;
                    } else {
                        columns.values.push((name, map.next_value()?));
                    }
                }
                Ok(columns)
            }
        }
        d.deserialize_map(Visit)
    }
}

/// Goes through `<table-updates>` row by row, so that only one row at a time is held as a tree.
struct EachRow<F>(F);

impl<'de, F: FnMut(&str, &str, &'de RawValue)> EachRow<F> {
    fn table<A: MapAccess<'de>>(&mut self, tables: &mut A, name: &str) -> Result<(), A::Error> {
        tables.next_value_seed(OfTable { each: self, name })
    }
}

impl<'de, F: FnMut(&str, &str, &'de RawValue)> Visitor<'de> for EachRow<F> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("updates of tables")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut tables: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = tables.next_key()? {
            self.table(&mut tables, &name)?;
        }
        Ok(())
    }
}

struct OfTable<'e, F> {
    each: &'e mut EachRow<F>,
    name: &'e str,
}

impl<'de, F: FnMut(&str, &str, &'de RawValue)> DeserializeSeed<'de> for OfTable<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de, F: FnMut(&str, &str, &'de RawValue)> Visitor<'de> for OfTable<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("updates of rows")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(Text(uuid)) = rows.next_key()? {
            (self.each.0)(self.name, &uuid, rows.next_value()?);
        }
        Ok(())
    }
}

/// What became of rows, and what could not be understood.
pub(super) type Applied = (Vec<RowChange>, Vec<Error>);

#[derive(Debug, Default)]
struct Table {
    name: Str,
    rows: FxHashMap<Uuid, Arc<Row>>,
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

    /// How many cells it holds: columns of rows that hold something.
    pub fn cells(&self) -> usize {
        let cells = |(name, table): (&String, &Table)| {
            let columns = self.schema.as_ref().and_then(|s| s.table(name).ok()).map_or(0, |ts| ts.columns.len());
            let filled = table.rows.values().filter(|r| table.plain.as_ref().is_none_or(|p| !Arc::ptr_eq(p, r)));
            columns * filled.count()
        };
        self.tables.iter().map(cells).sum()
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

    /// Forgets all rows.
    pub(super) fn clear(&mut self) {
        self.tables.clear();
    }

    /// Takes over a schema; where it is another than before, forgets all rows.
    pub(super) fn set_schema(&mut self, schema: DatabaseSchema) -> bool {
        if self.schema.as_deref() == Some(&schema) {
            return false;
        }
        self.clear();
        self.schema = Some(Arc::new(schema));
        true
    }

    /// Applies `<table-updates>` (version 1) or `<table-updates2>`. Where `whole`, rows
    /// that are not mentioned are gone. Gives what changed; an error of one row concerns no other.
    ///
    /// # Errors
    /// Where the text has another form. Rows before that place have been taken over.
    pub(super) fn apply(&mut self, updates: &str, whole: bool) -> serde_json::Result<Applied> {
        let (mut changes, mut errors) = (Vec::new(), Vec::new());
        let Some(schema) = self.schema.clone() else { return Ok((changes, errors)) };
        let mut mentioned: FxHashSet<Uuid> = FxHashSet::default();
        let whole_of_something = whole && self.tables.values().any(|t| !t.rows.is_empty());
        let each = EachRow(|name: &str, uuid: &str, update: &RawValue| {
            let result = self.row_update(&schema, name, uuid, update);
            match result {
                Ok((uuid, change)) => {
                    if whole_of_something {
                        mentioned.insert(uuid);
                    }
                    changes.extend(change);
                }
                Err(e) => errors.push(Error::Syntax(format!("{name} row {uuid}: {e}"))),
            }
        });
        let mut reader = serde_json::Deserializer::from_str(updates);
        reader.deserialize_map(each)?;
        if whole_of_something {
            for table in self.tables.values_mut() {
                let shown = table.name.clone();
                let before = changes.len();
                table.rows.retain(|uuid, row| {
                    let kept = mentioned.contains(uuid);
                    if !kept {
                        let (table, old) = (shown.clone(), Some(row.clone()));
                        changes.push(RowChange { table, uuid: *uuid, old, new: None });
                    }
                    kept
                });
                changes.iter().skip(before).for_each(|c| table.index(c));
            }
        }
        Ok((changes, errors))
    }

    fn row_update(
        &mut self,
        schema: &DatabaseSchema,
        name: &str,
        uuid: &str,
        update: &RawValue,
    ) -> Result<(Uuid, Option<RowChange>), Error> {
        let ts = schema.table(name)?;
        if !self.tables.contains_key(name) {
            let indexed = self.indexed.get(name).into_iter().flatten();
            let indexes = indexed.map(|columns| Index::new(columns, ts)).collect();
            self.tables.insert(name.to_string(), Table { name: Str::from(name), indexes, ..Table::default() });
        }
        let table = self.tables.get_mut(name).ok_or_else(|| Error::syntax("no table"))?;
        let uuid = Uuid::try_parse(uuid).map_err(|e| Error::Syntax(e.to_string()))?;
        let update = serde_json::from_str(update.get()).map_err(|e| Error::Syntax(e.to_string()))?;
        let change = one(ts, table, uuid, &update)?;
        change.iter().for_each(|c| table.index(c));
        Ok((uuid, change))
    }
}

fn one(ts: &TableSchema, table: &mut Table, uuid: Uuid, update: &RowUpdate<'_>) -> Result<Option<RowChange>, Error> {
    let plain = table.plain.get_or_insert_with(|| Arc::new(Row::default_for(ts))).clone();
    let old = table.rows.get(&uuid).cloned();
    let new = if let Some(row) = update.initial.as_ref().or(update.insert.as_ref()) {
        Some(filled(ts, &plain, row.values())?)
    } else if let Some(diff) = &update.modify {
        let base = old.as_ref().ok_or_else(|| Error::syntax("modification of a row that is not there"))?;
        let mut row = base.clone();
        for (name, value) in diff.values() {
            if let Some((i, ty)) = column(ts, name) {
                let d = Datum::from_json_unsized(ty, value, &no_names)?;
                let row = Arc::make_mut(&mut row);
                row.0[i] = row.0[i].apply_diff(&d, ty);
            }
        }
        Some(row)
    } else if let Some(row) = &update.new {
        Some(filled(ts, old.as_ref().unwrap_or(&plain), row.values())?)
    } else {
        None
    };
    let told = [&update.modify, &update.new].into_iter().flatten().any(|c| c.version);
    if old == new && !told {
        return Ok(None);
    }
    let new = new.map(|row| if *row == *plain { plain } else { row });
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
    let plain = Arc::new(Row::default_for(ts));
    Ok((uuid, Arc::unwrap_or_clone(filled(ts, &plain, row.iter().map(|(n, v)| (n.as_str(), v)))?)))
}

fn column<'a>(ts: &'a TableSchema, name: &str) -> Option<(usize, &'a ColumnType)> {
    ts.column_index(name).map(|i| (i, &ts.columns[i].ty))
}

/// A row with these values; the same one where there are none.
fn filled<'v>(
    ts: &TableSchema,
    row: &Arc<Row>,
    values: impl Iterator<Item = (&'v str, &'v Value)>,
) -> Result<Arc<Row>, Error> {
    let mut row = row.clone();
    for (name, value) in values {
        // `_version` and the like are no columns of the schema.
        if let Some((i, ty)) = column(ts, name) {
            Arc::make_mut(&mut row).0[i] = Datum::from_json_unsized(ty, value, &no_names)?;
        }
    }
    Ok(row)
}
