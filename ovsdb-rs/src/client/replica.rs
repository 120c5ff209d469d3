//! The client's copy of the rows that it monitors.

use super::index::Index;
use super::parse::{OfRow, RowUpdate, Strings, Text};
use crate::value::no_names;
use crate::{DatabaseSchema, Datum, Error, Row, Str, TableSchema, Uuid};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
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

/// Goes through `<table-updates>` row by row.
struct EachTable<'e, 'r>(&'e mut Apply<'r>);

/// Updates that are being applied.
struct Apply<'r> {
    replica: &'r mut Replica,
    schema: &'r DatabaseSchema,
    changes: Vec<RowChange>,
    errors: Vec<Error>,
    /// The rows that were named, where those that are not are gone.
    mentioned: Option<FxHashSet<Uuid>>,
}

impl<'de> Visitor<'de> for EachTable<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("updates of tables")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut tables: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = tables.next_key()? {
            match self.0.schema.table(&name) {
                Ok(table) => tables.next_value_seed(EachRow { apply: self.0, table })?,
                Err(e) => {
                    tables.next_value::<IgnoredAny>()?;
                    self.0.errors.push(e);
                }
            }
        }
        Ok(())
    }
}

struct EachRow<'e, 'r> {
    apply: &'e mut Apply<'r>,
    table: &'r TableSchema,
}

impl<'de> DeserializeSeed<'de> for EachRow<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EachRow<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("updates of rows")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(Text(uuid)) = rows.next_key()? {
            let strings = &mut self.apply.replica.strings;
            let update = rows.next_value_seed(OfRow { table: self.table, strings })?;
            self.apply.row(self.table, &uuid, update);
        }
        Ok(())
    }
}

impl Apply<'_> {
    /// Applies the update of one row; an error of one concerns no other.
    fn row(&mut self, table: &TableSchema, uuid: &str, update: RowUpdate) {
        match self.replica.row_update(table, uuid, update) {
            Ok((uuid, change)) => {
                self.mentioned.iter_mut().for_each(|m| {
                    m.insert(uuid);
                });
                self.changes.extend(change);
            }
            Err(e) => self.errors.push(Error::Syntax(format!("{} row {uuid}: {e}", table.name))),
        }
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
    strings: Strings,
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
        let Some(schema) = self.schema.clone() else { return Ok((Vec::new(), Vec::new())) };
        let whole_of_something = whole && self.tables.values().any(|t| !t.rows.is_empty());
        let mentioned = whole_of_something.then(FxHashSet::default);
        let mut apply = Apply { replica: self, schema: &schema, changes: Vec::new(), errors: Vec::new(), mentioned };
        serde_json::Deserializer::from_str(updates).deserialize_map(EachTable(&mut apply))?;
        let Apply { mut changes, errors, mentioned, .. } = apply;
        if let Some(mentioned) = mentioned {
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
        ts: &TableSchema,
        uuid: &str,
        update: RowUpdate,
    ) -> Result<(Uuid, Option<RowChange>), Error> {
        let name = ts.name.as_str();
        if !self.tables.contains_key(name) {
            let indexed = self.indexed.get(name).into_iter().flatten();
            let indexes = indexed.map(|columns| Index::new(columns, ts)).collect();
            self.tables.insert(name.to_string(), Table { name: Str::from(name), indexes, ..Table::default() });
        }
        let table = self.tables.get_mut(name).ok_or_else(|| Error::syntax("no table"))?;
        let uuid = Uuid::try_parse(uuid).map_err(|e| Error::Syntax(e.to_string()))?;
        let change = one(ts, table, uuid, update)?;
        change.iter().for_each(|c| table.index(c));
        Ok((uuid, change))
    }
}

fn one(ts: &TableSchema, table: &mut Table, uuid: Uuid, update: RowUpdate) -> Result<Option<RowChange>, Error> {
    if let Some(e) = update.error() {
        return Err(e);
    }
    let plain = table.plain.get_or_insert_with(|| Arc::new(Row::default_for(ts))).clone();
    let old = table.rows.get(&uuid).cloned();
    let told = [&update.modify, &update.new].into_iter().flatten().any(|c| c.version);
    let new = if let Some(row) = update.whole {
        Some(filled(&plain, row.values))
    } else if let Some(diff) = update.modify {
        let base = old.as_ref().ok_or_else(|| Error::syntax("modification of a row that is not there"))?;
        let mut row = base.clone();
        for (i, d) in diff.values {
            if let (Some(c), Some(place)) = (ts.columns.get(i), Arc::make_mut(&mut row).0.get_mut(i)) {
                *place = place.apply_diff(&d, &c.ty);
            }
        }
        Some(row)
    } else {
        update.new.map(|row| filled(old.as_ref().unwrap_or(&plain), row.values))
    };
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
    let mut out = Row::default_for(ts);
    for (name, value) in &row {
        // `_version` and the like are no columns of the schema.
        if let Some(i) = ts.column_index(name)
            && let (Some(c), Some(place)) = (ts.columns.get(i), out.0.get_mut(i))
        {
            *place = Datum::from_json_unsized(&c.ty, value, &no_names)?;
        }
    }
    Ok((uuid, out))
}

/// A row with these values; the same one where there are none.
fn filled(row: &Arc<Row>, values: Vec<(usize, Datum)>) -> Arc<Row> {
    let mut row = row.clone();
    for (i, d) in values {
        if let Some(place) = Arc::make_mut(&mut row).0.get_mut(i) {
            *place = d;
        }
    }
    row
}
