//! Monitors (RFC 7047 section 4.1.5; ovsdb-server(7) sections 4.1.12 to 4.1.16): which rows and
//! columns a client replicates, and the messages that tell it of changes.

use crate::engine::parse::{Kind, Members};
use crate::engine::{Any, Change, Column, Database, OpError, RowView};
use crate::json::{canonical, write_string};
use crate::{Row, TableSchema, Uuid};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// The form of a monitor's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Version {
    /// `monitor`, `update`.
    V1,
    /// `monitor_cond`, `update2`.
    V2,
    /// `monitor_cond_since`, `update3`.
    V3,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Select {
    initial: bool,
    insert: bool,
    delete: bool,
    modify: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct TableSpec {
    columns: Vec<(Column, Select)>,
    /// Of the table: rows come and go even where no column is monitored.
    select: Select,
    condition: Any,
}

/// What is monitored, by the index of the table.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub version: Version,
    tables: Vec<Option<TableSpec>>,
    /// The request as received.
    request: Arc<str>,
    /// The conditions that took the place of the request's, by table.
    changed: BTreeMap<String, String>,
}

impl Spec {
    /// Parses `<monitor-requests>` or `<monitor-cond-requests>`.
    pub(crate) fn parse(db: &Database, version: Version, whole: &Value) -> Result<Spec, OpError> {
        let requests = whole;
        let requests =
            requests.as_object().ok_or_else(|| OpError::syntax("monitor-requests must be object").at(requests))?;
        let mut tables = vec![None; db.tables()];
        for (name, value) in requests {
            let place = db.table_index(name).ok_or_else(|| OpError::syntax(format!("no table named {name}")))?;
            let Some(schema) = db.table_schema(place) else { continue };
            let single = std::slice::from_ref(value);
            let list = value.as_array().map_or(single, Vec::as_slice);
            let nothing = Select { initial: false, insert: false, delete: false, modify: false };
            let mut spec = TableSpec { columns: Vec::new(), select: nothing, condition: Any::always() };
            let mut clauses = Vec::new();
            let mut always = list.is_empty();
            for request in list {
                let found = parse_request(schema, name, version, request, &mut spec)?;
                always |= found.is_empty();
                clauses.extend_from_slice(found);
            }
            if !always {
                spec.condition = Any::parse(schema, &clauses)?;
            }
            tables[place] = Some(spec);
        }
        Ok(Spec { version, tables, request: canonical(whole).into(), changed: BTreeMap::new() })
    }

    /// What monitors with the same columns and conditions have in common.
    pub(crate) fn key(&self) -> String {
        let mut key = self.request.to_string();
        for (table, conditions) in &self.changed {
            key.push_str(table);
            key.push_str(conditions);
        }
        key
    }

    /// The same with the conditions of a `monitor_cond_change` request.
    pub(crate) fn changed(&self, db: &Database, requests: &Value) -> Result<Spec, OpError> {
        let mut new = self.clone();
        for (name, value) in requests.as_object().into_iter().flatten() {
            let missing = || OpError::syntax(format!("no table named {name} in monitor session"));
            let place = db.table_index(name).ok_or_else(|| OpError::syntax(format!("no table named {name}")))?;
            if !new.tables.get(place).is_some_and(Option::is_some) {
                return Err(missing());
            }
            let Some(schema) = db.table_schema(place) else { continue };
            let list = value
                .as_array()
                .ok_or_else(|| OpError::syntax(format!("table {name} no monitor-cond-change JSON array")))?;
            let mut clauses = Vec::new();
            let mut always = list.is_empty();
            for request in list {
                let mut m = Members::new(request, format!("table {name}"))?;
                if m.optional("columns", Kind::Array)?.is_some() {
                    return Err(OpError::syntax("changing columns is unsupported").at(request));
                }
                let found = m.optional("where", Kind::Array)?.and_then(Value::as_array);
                m.finish()?;
                always |= found.is_none_or(Vec::is_empty);
                clauses.extend(found.into_iter().flatten().cloned());
            }
            new.changed.insert(name.clone(), canonical(value));
            let spec = new.tables.get_mut(place).and_then(Option::as_mut).ok_or_else(missing)?;
            spec.condition = if always { Any::always() } else { Any::parse(schema, &clauses)? };
        }
        Ok(new)
    }

    /// The rows that are there, as the reply to a monitor request has them.
    pub(crate) fn initial(&self, db: &Database) -> String {
        let mut out = Updates::default();
        for (place, spec) in self.tables.iter().enumerate() {
            let (Some(spec), Some(schema)) = (spec, db.table_schema(place)) else { continue };
            if !spec.select.initial {
                continue;
            }
            for r in db.rows(place).filter(|r| spec.condition.is_always() || spec.condition.matches(*r)) {
                let text = out.row(schema, r.uuid);
                let columns = spec.columns.iter().filter(|(_, s)| s.initial).map(|(c, _)| *c);
                appearing(self.version, "initial", schema, columns, r, text);
            }
        }
        out.finish()
    }

    /// The update that these changes are for the monitor; none where it monitors none of them.
    pub(crate) fn update(&self, db: &Database, changes: &[Change]) -> Option<String> {
        let mut out = Updates::default();
        for c in changes {
            let Some(spec) = self.tables.get(c.table).and_then(Option::as_ref) else { continue };
            let Some(schema) = db.table_schema(c.table) else { continue };
            change(self.version, spec, schema, c, &mut out);
        }
        out.some()
    }

    /// What it means to a client that this monitor's conditions become those of `new`.
    pub(crate) fn reconsider(&self, db: &Database, new: &Spec) -> Option<String> {
        let mut out = Updates::default();
        for (place, (was, is)) in self.tables.iter().zip(&new.tables).enumerate() {
            let (Some(was), Some(is), Some(schema)) = (was, is, db.table_schema(place)) else { continue };
            if was.condition == is.condition {
                continue;
            }
            for r in db.rows(place) {
                match (was.condition.matches(r), is.condition.matches(r)) {
                    (false, true) if is.select.insert => {
                        let columns = is.columns.iter().filter(|(_, s)| s.insert).map(|(c, _)| *c);
                        let text = out.row(schema, r.uuid);
                        appearing(self.version, "insert", schema, columns, r, text);
                    }
                    (true, false) if is.select.delete => {
                        let text = out.row(schema, r.uuid);
                        vanishing(self.version, schema, is, r, text);
                    }
                    _ => {}
                }
            }
        }
        out.some()
    }
}

fn parse_request<'a>(
    schema: &TableSchema,
    name: &str,
    version: Version,
    request: &'a Value,
    spec: &mut TableSpec,
) -> Result<&'a [Value], OpError> {
    let mut m = Members::new(request, format!("table {name}"))?;
    let columns = m.optional("columns", Kind::Array)?;
    let clauses = if version == Version::V1 { None } else { m.optional("where", Kind::Array)? };
    let mut select = Select { initial: true, insert: true, delete: true, modify: true };
    if let Some(v) = m.optional("select", Kind::Object)? {
        let mut s = Members::new(v, format!("table {name} select"))?;
        let parts = [
            ("initial", &mut select.initial),
            ("insert", &mut select.insert),
            ("delete", &mut select.delete),
            ("modify", &mut select.modify),
        ];
        for (name, flag) in parts {
            if let Some(b) = s.optional(name, Kind::Boolean)?.and_then(Value::as_bool) {
                *flag = b;
            }
        }
        s.finish()?;
    }
    m.finish()?;
    spec.select.initial |= select.initial;
    spec.select.insert |= select.insert;
    spec.select.delete |= select.delete;
    spec.select.modify |= select.modify;
    let chosen = match columns {
        Some(v) => v
            .as_array()
            .into_iter()
            .flatten()
            .map(|c| {
                let text = c.as_str().ok_or_else(|| OpError::syntax("array of column names expected").at(v))?;
                crate::engine::parse::column(schema, text)
                    .ok_or_else(|| OpError::syntax(format!("{text} is not a valid column name")).at(v))
            })
            .collect::<Result<Vec<_>, _>>()?,
        None => std::iter::once(Column::Version).chain((0..schema.columns.len()).map(Column::Data)).collect(),
    };
    for c in chosen {
        if spec.columns.iter().any(|(other, _)| *other == c) {
            let text = format!("column {} mentioned more than once", c.name(schema));
            return Err(OpError::syntax(text).at(columns.unwrap_or(&Value::Null)));
        }
        spec.columns.push((c, select));
    }
    Ok(clauses.and_then(Value::as_array).map_or(&[][..], Vec::as_slice))
}

/// `<table-updates>` being written.
#[derive(Default)]
struct Updates {
    text: String,
    table: String,
}

impl Updates {
    /// Opens the entry of a row, whose value the caller appends.
    fn row(&mut self, schema: &TableSchema, uuid: Uuid) -> &mut String {
        if self.text.is_empty() || self.table != schema.name {
            self.text.push_str(if self.text.is_empty() { "{" } else { "}," });
            write_string(&schema.name, &mut self.text);
            self.text.push_str(":{");
            self.table.clone_from(&schema.name);
        } else {
            self.text.push(',');
        }
        let mut buffer = Uuid::encode_buffer();
        self.text.push('"');
        self.text.push_str(uuid.hyphenated().encode_lower(&mut buffer));
        self.text.push_str("\":");
        &mut self.text
    }

    fn some(self) -> Option<String> {
        (!self.text.is_empty()).then(|| self.finish())
    }

    fn finish(mut self) -> String {
        self.text.push_str(if self.text.is_empty() { "{}" } else { "}}" });
        self.text
    }
}

fn member(first: &mut bool, schema: &TableSchema, column: Column, out: &mut String) {
    if !std::mem::take(first) {
        out.push(',');
    }
    write_string(column.name(schema), out);
    out.push(':');
}

fn write_row(
    schema: &TableSchema,
    columns: impl Iterator<Item = Column>,
    r: RowView<'_>,
    defaults: bool,
    out: &mut String,
) {
    let mut first = true;
    out.push('{');
    for c in columns {
        r.with(c, |d| {
            if defaults || !c.ty(schema).is_default(d) {
                member(&mut first, schema, c, out);
                d.write_json(out);
            }
        });
    }
    out.push('}');
}

fn appearing(
    version: Version,
    word: &str,
    schema: &TableSchema,
    columns: impl Iterator<Item = Column>,
    r: RowView<'_>,
    out: &mut String,
) {
    let word = if version == Version::V1 { "new" } else { word };
    let _ = write!(out, "{{\"{word}\":");
    write_row(schema, columns, r, version == Version::V1, out);
    out.push('}');
}

fn vanishing(version: Version, schema: &TableSchema, spec: &TableSpec, r: RowView<'_>, out: &mut String) {
    if version == Version::V1 {
        out.push_str("{\"old\":");
        write_row(schema, spec.columns.iter().filter(|(_, s)| s.delete).map(|(c, _)| *c), r, true, out);
        out.push('}');
    } else {
        out.push_str("{\"delete\":null}");
    }
}

/// The changes of a transaction come grouped by table, as the engine gives them.
fn change(version: Version, spec: &TableSpec, schema: &TableSchema, c: &Change, out: &mut Updates) {
    let view = |row, version| RowView { uuid: c.uuid, version, row };
    let old = c.old.as_deref().map(|r: &Row| view(r, c.old_version)).filter(|r| spec.condition.matches(*r));
    let new = c.new.as_deref().map(|r: &Row| view(r, c.version)).filter(|r| spec.condition.matches(*r));
    let chosen = |f: fn(&Select) -> bool| spec.columns.iter().filter(move |(_, s)| f(s)).map(|(c, _)| *c);
    match (old, new) {
        (None, None) => {}
        (None, Some(new)) => {
            if spec.select.insert {
                appearing(version, "insert", schema, chosen(|s| s.insert), new, out.row(schema, c.uuid));
            }
        }
        (Some(old), None) => {
            if spec.select.delete {
                vanishing(version, schema, spec, old, out.row(schema, c.uuid));
            }
        }
        (Some(old), Some(new)) => {
            let changed: Vec<Column> =
                chosen(|s| s.modify).filter(|c| old.with(*c, |o| new.with(*c, |n| o != n))).collect();
            if changed.is_empty() {
                return;
            }
            let text = out.row(schema, c.uuid);
            if version == Version::V1 {
                text.push_str("{\"old\":");
                write_row(schema, changed.into_iter(), old, true, text);
                text.push_str(",\"new\":");
                write_row(schema, chosen(|s| s.modify), new, true, text);
                text.push('}');
                return;
            }
            text.push_str("{\"modify\":{");
            let mut first = true;
            for column in changed {
                member(&mut first, schema, column, text);
                old.with(column, |o| new.with(column, |n| o.diff(n, column.ty(schema)).write_json(text)));
            }
            text.push_str("}}");
        }
    }
}
