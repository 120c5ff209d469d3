//! The operations of a transaction (RFC 7047 section 5.2).

use super::mutation::Mutation;
use super::parse::{Kind, Members, columns, datum, uuid};
use super::request::{Operations, Results};
use super::transaction::{Commit, Transaction};
use super::{Access, All, Change, Column, Database, OpError, RowView, random_uuid};
use crate::{Row, TableSchema, Uuid};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The client and server state that operations depend on.
pub struct Context<'a> {
    /// Whether the client owns a lock.
    pub owns_lock: &'a dyn Fn(&str) -> bool,
    /// For how many milliseconds the transaction has been waiting already.
    pub waited: u64,
    /// What the client may do.
    pub access: &'a Access,
}

impl Context<'_> {
    /// A transaction without locks that may do anything and does not wait.
    pub fn unrestricted() -> Context<'static> {
        static ALL: std::sync::LazyLock<Access> = std::sync::LazyLock::new(Access::default);
        Context { owns_lock: &|_| false, waited: 0, access: &ALL }
    }
}

/// A transaction that committed or failed.
#[derive(Debug, Default)]
pub struct Executed {
    /// The reply's result: one element for each operation, and one more for an error of the commit.
    pub results: Results,
    /// The changed rows; empty where the transaction failed.
    pub changes: Vec<Change>,
    /// The texts of `comment` operations.
    pub comments: Vec<String>,
    /// Whether the transaction failed.
    pub failed: bool,
}

/// The outcome of executing a transaction.
#[derive(Debug)]
pub enum Outcome {
    /// It committed or failed.
    Executed(Executed),
    /// A `wait` is not fulfilled: try again after a change, or after this many milliseconds in all.
    Waiting {
        /// When to give up; none: never.
        limit: Option<u64>,
    },
}

enum Failure {
    Error(OpError),
    Wait(Option<u64>),
}

impl From<OpError> for Failure {
    fn from(e: OpError) -> Failure {
        Failure::Error(e)
    }
}

type OpResult = Result<Value, Failure>;

struct Execution<'a, 'c> {
    txn: Transaction<'a>,
    context: &'a Context<'c>,
    /// Named UUIDs: the row's name, and whether it was inserted yet.
    names: RefCell<HashMap<String, (Uuid, bool)>>,
    comments: Vec<String>,
}

impl Database {
    /// Carries out a transaction: all of it or nothing.
    pub fn transact(&mut self, operations: &[Value], context: &Context<'_>) -> Outcome {
        let mut run = Run::new(self, context, operations.len());
        let _ = operations.iter().try_for_each(|op| run.step(op));
        let ended = run.end();
        self.conclude(ended)
    }

    /// As [`Database::transact`], with operations that may be text yet.
    ///
    /// # Errors
    /// Where the text is not the JSON that it seemed to be; nothing is changed then.
    pub fn execute(&mut self, operations: &Operations, context: &Context<'_>) -> serde_json::Result<Outcome> {
        let mut run = Run::new(self, context, operations.len());
        operations.each(|op| run.step(op))?;
        let ended = run.end();
        Ok(self.conclude(ended))
    }

    fn conclude(&mut self, ended: Result<(Executed, Commit), Outcome>) -> Outcome {
        match ended {
            Ok((executed, commit)) => {
                self.apply(&commit);
                Outcome::Executed(Executed { changes: commit.changes, ..executed })
            }
            Err(outcome) => outcome,
        }
    }
}

/// The execution of a transaction, operation by operation.
struct Run<'a, 'c> {
    x: Execution<'a, 'c>,
    results: Results,
    /// How many operations there are.
    n: usize,
    done: usize,
    failed: Option<Failure>,
}

impl<'a, 'c> Run<'a, 'c> {
    fn new(db: &'a Database, context: &'a Context<'c>, n: usize) -> Run<'a, 'c> {
        let x = Execution { txn: Transaction::new(db), context, names: RefCell::default(), comments: Vec::new() };
        Run { x, results: Results::default(), n, done: 0, failed: None }
    }

    /// Carries out the next operation; enough where it fails.
    fn step(&mut self, op: &Value) -> ControlFlow<()> {
        match self.x.execute(op, self.done, self.n) {
            Ok(v) => {
                self.results.push(&v);
                self.done += 1;
                ControlFlow::Continue(())
            }
            Err(failure) => {
                self.failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    /// What it comes to: what is to be applied, or why nothing is.
    fn end(self) -> Result<(Executed, Commit), Outcome> {
        let mut results = self.results;
        match self.failed {
            Some(Failure::Wait(limit)) => return Err(Outcome::Waiting { limit }),
            Some(Failure::Error(e)) => {
                results.push(&e.to_json());
                results.pad(self.n);
            }
            None => match self.x.txn.finish() {
                Ok(commit) => {
                    let comments = self.x.comments;
                    return Ok((Executed { results, comments, ..Executed::default() }, commit));
                }
                Err(e) => results.push(&e.to_json()),
            },
        }
        Err(Outcome::Executed(Executed { results, failed: true, ..Executed::default() }))
    }
}

impl Database {
    /// Whether the client may carry out a transaction at all, as far as this database can tell. Nothing is changed.
    ///
    /// # Errors
    /// The results of the transaction up to the operation that is not allowed.
    pub fn permits(&self, operations: &[Value], context: &Context<'_>) -> Result<(), Vec<Value>> {
        let mut x = Execution { txn: Transaction::new(self), context, names: RefCell::default(), comments: Vec::new() };
        let mut results = Vec::new();
        for (i, op) in operations.iter().enumerate() {
            match x.execute(op, i, operations.len()) {
                Ok(v) => results.push(v),
                Err(Failure::Error(e)) if ["permission error", "not allowed"].contains(&e.error) => {
                    results.push(e.to_json());
                    results.resize(operations.len(), Value::Null);
                    return Err(results);
                }
                // Whoever carries it out finds the same and more.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

impl Execution<'_, '_> {
    fn execute(&mut self, op: &Value, i: usize, n: usize) -> OpResult {
        let mut m = Members::new(op, format!("ovsdb operation {} of {n}", i + 1))?;
        match m.string("op", Kind::Id)? {
            "insert" => self.insert(m).and_then(|v| self.writable("insert", v)),
            "select" => self.select(m),
            "update" => self.update(m).and_then(|v| self.writable("update", v)),
            "mutate" => self.mutate(m).and_then(|v| self.writable("mutate", v)),
            "delete" => self.delete(m).and_then(|v| self.writable("delete", v)),
            "wait" => self.wait(m),
            "commit" => {
                m.required("durable", Kind::Boolean)?;
                m.finish()?;
                // Every transaction is durable before it is answered.
                Ok(json!({}))
            }
            "abort" => {
                m.finish()?;
                Err(OpError::new("aborted", "aborted by request").into())
            }
            "comment" => {
                let text = m.string("comment", Kind::String)?.to_string();
                m.finish()?;
                self.comments.push(text);
                Ok(json!({}))
            }
            "assert" => {
                let lock = m.string("lock", Kind::Id)?;
                m.finish()?;
                if (self.context.owns_lock)(lock) {
                    return Ok(json!({}));
                }
                Err(OpError::new("not owner", format!("Asserted lock {lock} not held.")).into())
            }
            other => Err(m.failed(format!("No operation \"{other}\"")).into()),
        }
    }

    /// Lets an operation stand, unless nothing may be changed here. Errors in it come first.
    fn writable(&self, operation: &str, result: Value) -> OpResult {
        if !self.context.access.read_only {
            return Ok(result);
        }
        let name = &self.txn.db.schema().name;
        Err(OpError::new(
            "not allowed",
            match name.starts_with('_') {
                true => format!("{operation} operation not allowed on table in reserved database {name}"),
                false => format!("{operation} operation not allowed when database server is in read only mode"),
            },
        )
        .into())
    }

    /// The rules of the client's role for a table, where there are some.
    fn rules(&self, table: usize) -> Option<super::access::Rules<'_>> {
        self.context.access.rules(self.txn.db, table)
    }

    fn rows<'s>(&'s self, table: usize, rows: &'s [Uuid]) -> impl Iterator<Item = &'s Row> {
        rows.iter().filter_map(move |u| self.txn.get(table, *u).map(|r| &**r))
    }

    fn table(&self, m: &mut Members<'_>) -> Result<(usize, Arc<TableSchema>), OpError> {
        let name = m.string("table", Kind::Id)?;
        let i = self.txn.db.table_index(name).ok_or_else(|| m.failed(format!("No table named {name}.")))?;
        Ok((i, self.txn.db.tables[i].schema.clone()))
    }

    /// The row that a named UUID stands for, whether or not it is inserted yet.
    fn resolve(&self, name: &str) -> Option<Uuid> {
        Some(self.names.borrow_mut().entry(name.to_string()).or_insert_with(|| (random_uuid(), false)).0)
    }

    fn condition(&self, m: &mut Members<'_>, schema: &TableSchema) -> Result<All, OpError> {
        // Members come first, so that an unknown one is reported before a bad condition.
        let clauses = m.array("where")?;
        m.finish()?;
        All::parse(schema, clauses, &|n| self.resolve(n))
    }

    /// The columns of a `<row>` with their values.
    fn row(&self, schema: &TableSchema, v: &Value) -> Result<Vec<(Column, crate::Datum)>, OpError> {
        let mut out = Vec::new();
        for (name, value) in v.as_object().into_iter().flatten() {
            let column = super::parse::column(schema, name).ok_or_else(|| {
                OpError::new("unknown column", format!("No column {name} in table {}.", schema.name)).at(v)
            })?;
            out.push((column, datum(column.ty(schema), value, &|n| self.resolve(n))?));
        }
        Ok(out)
    }

    fn insert(&mut self, mut m: Members<'_>) -> OpResult {
        let (table, schema) = self.table(&mut m)?;
        let name = m.optional("uuid-name", Kind::Id)?;
        let given = m.optional("uuid", Kind::String)?;
        let row = m.required("row", Kind::Object)?;
        m.finish()?;
        let given_uuid = match given {
            Some(v) => {
                let u = uuid(v.as_str().unwrap_or_default()).ok_or_else(|| OpError::syntax("bad uuid").at(v))?;
                // A row that the transaction itself has inserted and deleted again is not in the way.
                if self.txn.get(table, u).is_some() || self.txn.db.tables[table].rows.contains_key(&u) {
                    return Err(duplicate_uuid(&schema.name, v).into());
                }
                Some(u)
            }
            None => None,
        };
        let uuid = match name {
            Some(v) => {
                let mut names = self.names.borrow_mut();
                let entry = names.entry(v.as_str().unwrap_or_default().to_string());
                let (uuid, inserted) = entry.or_insert_with(|| (given_uuid.unwrap_or_else(random_uuid), false));
                if *inserted {
                    let text = "This \"uuid-name\" appeared on an earlier \"insert\" operation.";
                    return Err(OpError::new("duplicate uuid-name", text).at(v).into());
                }
                *inserted = true;
                *uuid
            }
            None => given_uuid.unwrap_or_else(random_uuid),
        };
        let mut new = Row::default_for(&schema);
        for (column, value) in self.row(&schema, row)? {
            if let Column::Data(i) = column {
                new.0[i] = value;
            }
        }
        // A default can lie outside the column's constraints; then it has to be given.
        for (c, value) in schema.columns.iter().zip(&new.0) {
            for a in value.atoms() {
                c.ty.key.check(a).map_err(|e| OpError::of_value(e, row))?;
            }
        }
        if let Some(rules) = self.rules(table) {
            rules.insert(&new)?;
        }
        self.txn.insert(table, uuid, new);
        Ok(json!({"uuid": ["uuid", uuid.to_string()]}))
    }

    fn select(&mut self, mut m: Members<'_>) -> OpResult {
        let (table, schema) = self.table(&mut m)?;
        let chosen = m.optional("columns", Kind::Array)?;
        let sort = m.optional("sort", Kind::Array)?;
        let condition = self.condition(&mut m, &schema)?;
        let columns = columns(&schema, chosen)?;
        let mut seen = HashSet::new();
        let mut rows = Vec::new();
        let mut found = self.txn.matching(table, &condition);
        if sort.is_some() {
            let by = self::columns(&schema, sort)?;
            found.sort_by_cached_key(|r| project(*r, &by));
        }
        for r in found {
            if columns.contains(&Column::Uuid) || seen.insert(project(r, &columns)) {
                let mut o = Map::new();
                for c in &columns {
                    o.insert(c.name(&schema).to_string(), r.with(*c, crate::Datum::to_json));
                }
                rows.push(Value::Object(o));
            }
        }
        Ok(json!({ "rows": rows }))
    }

    fn update(&mut self, mut m: Members<'_>) -> OpResult {
        let (table, schema) = self.table(&mut m)?;
        let row = m.required("row", Kind::Object)?;
        let clauses = m.array("where")?;
        m.finish()?;
        let mut values = Vec::new();
        for (column, value) in self.row(&schema, row)? {
            match column {
                Column::Data(i) if schema.columns[i].is_mutable() => values.push((i, value)),
                _ => {
                    let text =
                        format!("Cannot update immutable column {} in table {}.", column.name(&schema), schema.name);
                    return Err(OpError::constraint(text).at(m.whole()).into());
                }
            }
        }
        let condition = All::parse(&schema, clauses, &|n| self.resolve(n))?;
        let rows: Vec<Uuid> = self.txn.matching(table, &condition).iter().map(|r| r.uuid).collect();
        if let Some(rules) = self.rules(table) {
            let columns: Vec<Column> = values.iter().map(|(i, _)| Column::Data(*i)).collect();
            rules.update(&columns, self.rows(table, &rows))?;
        }
        for uuid in &rows {
            let same = |row: &Arc<Row>| values.iter().all(|(i, v)| row.0[*i] == *v);
            if self.txn.get(table, *uuid).is_some_and(same) {
                continue;
            }
            if let Some(row) = self.txn.modify(table, *uuid) {
                for (i, v) in &values {
                    row.0[*i] = v.clone();
                }
            }
        }
        Ok(json!({ "count": rows.len() }))
    }

    fn mutate(&mut self, mut m: Members<'_>) -> OpResult {
        let (table, schema) = self.table(&mut m)?;
        let mutations = m.array("mutations")?;
        let clauses = m.array("where")?;
        m.finish()?;
        let mutations: Vec<Mutation> =
            mutations.iter().map(|v| Mutation::parse(&schema, v, &|n| self.resolve(n))).collect::<Result<_, _>>()?;
        let condition = All::parse(&schema, clauses, &|n| self.resolve(n))?;
        let rows: Vec<Uuid> = self.txn.matching(table, &condition).iter().map(|r| r.uuid).collect();
        if let Some(rules) = self.rules(table) {
            let columns: Vec<Column> = mutations.iter().map(|m| Column::Data(m.column())).collect();
            rules.mutate(&columns, self.rows(table, &rows))?;
        }
        for uuid in &rows {
            let Some(row) = self.txn.modify(table, *uuid) else { continue };
            for mutation in &mutations {
                let i = mutation.column();
                row.0[i] = mutation.apply(&schema.columns[i].ty, &row.0[i])?;
            }
        }
        Ok(json!({ "count": rows.len() }))
    }

    fn delete(&mut self, mut m: Members<'_>) -> OpResult {
        let (table, schema) = self.table(&mut m)?;
        let condition = self.condition(&mut m, &schema)?;
        let rows: Vec<Uuid> = self.txn.matching(table, &condition).iter().map(|r| r.uuid).collect();
        if let Some(rules) = self.rules(table) {
            rules.delete(self.rows(table, &rows))?;
        }
        for uuid in &rows {
            self.txn.delete(table, *uuid);
        }
        Ok(json!({ "count": rows.len() }))
    }

    fn wait(&mut self, mut m: Members<'_>) -> OpResult {
        let (table, schema) = self.table(&mut m)?;
        let timeout = m.optional("timeout", Kind::Number)?;
        let clauses = m.array("where")?;
        let chosen = m.optional("columns", Kind::Array)?;
        let until = m.string("until", Kind::String)?;
        let rows = m.array("rows")?;
        m.finish()?;
        let condition = All::parse(&schema, clauses, &|n| self.resolve(n))?;
        let columns = columns(&schema, chosen)?;
        let limit = match timeout {
            None => None,
            Some(v) => match v.as_i64() {
                Some(n) if n >= 0 => Some(n as u64),
                _ => return Err(OpError::syntax("timeout must be nonnegative").at(v).into()),
            },
        };
        let equal = match until {
            "==" => true,
            "!=" => false,
            _ => {
                let text = "\"until\" must be \"==\" or \"!=\"";
                return Err(OpError::syntax(text).at(&Value::String(until.to_string())).into());
            }
        };
        let mut wanted = HashSet::new();
        for v in rows {
            if !v.is_object() {
                return Err(OpError::syntax("<row> object expected").at(v).into());
            }
            let mut row = Row::default_for(&schema);
            let (mut uuid, mut version) = (Uuid::nil(), Uuid::nil());
            for (column, value) in self.row(&schema, v)? {
                let atom = || value.scalar().and_then(crate::Atom::as_uuid).unwrap_or_default();
                match column {
                    Column::Uuid => uuid = atom(),
                    Column::Version => version = atom(),
                    Column::Data(i) => row.0[i] = value,
                }
            }
            wanted.insert(project(RowView { uuid, version, row: &row }, &columns));
        }
        let found: HashSet<Vec<crate::Datum>> =
            self.txn.matching(table, &condition).into_iter().map(|r| project(r, &columns)).collect();
        if (found == wanted) == equal {
            return Ok(json!({}));
        }
        match limit {
            Some(0) => Err(OpError::new("timed out", "\"where\" clause test failed").into()),
            Some(n) if self.context.waited >= n => {
                Err(OpError::new("timed out", format!("\"wait\" timed out after {} ms", self.context.waited)).into())
            }
            limit => Err(Failure::Wait(limit)),
        }
    }
}

fn duplicate_uuid(table: &str, v: &Value) -> OpError {
    let text = format!(
        "This UUID would duplicate a UUID already present within the \"{table}\" table or deleted from this table within \
         the same transaction."
    );
    OpError::new("duplicate uuid", text).at(v)
}

/// The values of some columns of a row.
fn project(row: RowView<'_>, columns: &[Column]) -> Vec<crate::Datum> {
    columns.iter().map(|c| row.with(*c, Clone::clone)).collect()
}
