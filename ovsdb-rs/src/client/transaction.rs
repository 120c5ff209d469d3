//! Builds transactions. What the server's schema lacks is left out, so that one client serves servers of several versions.

use crate::engine::random_uuid;
use crate::json::write_string;
use crate::{Atom, DatabaseSchema, Datum, TableSchema, Uuid};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// A transaction being built: its operations as they go over the wire, so that a large one takes little more than its text.
#[derive(Clone, Debug)]
pub struct Transaction {
    schema: Arc<DatabaseSchema>,
    text: String,
    len: usize,
}

/// Writes the columns that the table has as a JSON object; of those that are defaults, none where `sparse`.
fn write_row<'c>(
    ts: &TableSchema,
    columns: impl IntoIterator<Item = (&'c str, Datum)>,
    sparse: bool,
    out: &mut String,
) -> usize {
    let mut n = 0;
    out.push('{');
    for (name, datum) in columns {
        let Some(column) = ts.column(name) else { continue };
        if sparse && column.ty.is_default(&datum) {
            continue;
        }
        if n > 0 {
            out.push(',');
        }
        n += 1;
        write_string(name, out);
        out.push(':');
        datum.write_json(out);
    }
    out.push('}');
    n
}

fn is(uuid: Uuid) -> String {
    format!("[[\"_uuid\",\"==\",[\"uuid\",\"{uuid}\"]]]")
}

impl Transaction {
    /// An empty transaction on a database of this schema.
    pub fn new(schema: Arc<DatabaseSchema>) -> Transaction {
        Transaction { schema, text: String::new(), len: 0 }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.len
    }

    fn begin(&mut self) -> &mut String {
        if self.len > 0 {
            self.text.push(',');
        }
        self.len += 1;
        &mut self.text
    }

    /// Inserts a row under a fresh UUID, which other rows of the transaction may refer to.
    pub fn insert<'c>(&mut self, table: &str, columns: impl IntoIterator<Item = (&'c str, Datum)>) -> Uuid {
        let uuid = random_uuid();
        self.insert_as(uuid, table, columns);
        uuid
    }

    /// Inserts a row under a given UUID (ovsdb-server(7) section 5.2.1). Defaults need not be given.
    pub fn insert_as<'c>(&mut self, uuid: Uuid, table: &str, columns: impl IntoIterator<Item = (&'c str, Datum)>) {
        let schema = self.schema.clone();
        if let Ok(ts) = schema.table(table) {
            let out = self.begin();
            let _ = write!(out, "{{\"op\":\"insert\",\"table\":\"{table}\",\"uuid\":\"{uuid}\",\"row\":");
            write_row(ts, columns, true, out);
            out.push('}');
        }
    }

    /// Sets columns of a row.
    pub fn update<'c>(&mut self, table: &str, uuid: Uuid, columns: impl IntoIterator<Item = (&'c str, Datum)>) {
        let schema = self.schema.clone();
        if let Ok(ts) = schema.table(table) {
            let (length, len) = (self.text.len(), self.len);
            let out = self.begin();
            out.push_str("{\"op\":\"update\",\"row\":");
            let n = write_row(ts, columns, false, out);
            let _ = write!(out, ",\"table\":\"{table}\",\"where\":{}}}", is(uuid));
            if n == 0 {
                self.text.truncate(length);
                self.len = len;
            }
        }
    }

    /// Mutates a column of a row: `mutator` is `insert`, `delete`, `+=`, `-=`, `*=`, `/=` or `%=`.
    pub fn mutate(&mut self, table: &str, uuid: Uuid, column: &str, mutator: &str, argument: &Datum) {
        if self.schema.table(table).is_ok_and(|ts| ts.column(column).is_some()) {
            let out = self.begin();
            let _ = write!(
                out,
                "{{\"op\":\"mutate\",\"table\":\"{table}\",\"where\":{},\"mutations\":[[\"{column}\",\"{mutator}\",",
                is(uuid)
            );
            argument.write_json(out);
            out.push_str("]]}");
        }
    }

    /// Takes elements out of a set, or pairs out of a map, and puts others in.
    pub fn exchange(&mut self, table: &str, uuid: Uuid, column: &str, gone: &Datum, added: &Datum) {
        if self.schema.table(table).is_ok_and(|ts| ts.column(column).is_some()) {
            let out = self.begin();
            let _ = write!(out, "{{\"op\":\"mutate\",\"table\":\"{table}\",\"where\":{},\"mutations\":[", is(uuid));
            for (i, (mutator, datum)) in [("delete", gone), ("insert", added)].into_iter().enumerate() {
                let comma = if i > 0 { "," } else { "" };
                let _ = write!(out, "{comma}[\"{column}\",\"{mutator}\",");
                datum.write_json(out);
                out.push(']');
            }
            out.push_str("]}");
        }
    }

    /// Takes some keys out of a map, puts in those pairs whose keys it lacks then, and leaves the others as they are.
    pub fn put(&mut self, table: &str, uuid: Uuid, column: &str, keys: &[Atom], pairs: &[(Atom, Atom)]) {
        if self.schema.table(table).is_ok_and(|ts| ts.column(column).is_some()) {
            let keys = Datum::Set(keys.into());
            let out = self.begin();
            let _ = write!(
                out,
                "{{\"op\":\"mutate\",\"table\":\"{table}\",\"where\":{},\"mutations\":[[\"{column}\",\"delete\",",
                is(uuid)
            );
            keys.write_json(out);
            let _ = write!(out, "],[\"{column}\",\"insert\",");
            Datum::Map(pairs.into()).write_json(out);
            out.push_str("]]}");
        }
    }

    /// Deletes a row.
    pub fn delete(&mut self, table: &str, uuid: Uuid) {
        if self.schema.table(table).is_ok() {
            let out = self.begin();
            let _ = write!(out, "{{\"op\":\"delete\",\"table\":\"{table}\",\"where\":{}}}", is(uuid));
        }
    }

    /// Lets the transaction fail unless a row's columns hold these values.
    pub fn verify<'c>(&mut self, table: &str, uuid: Uuid, columns: impl IntoIterator<Item = (&'c str, Datum)>) {
        let schema = self.schema.clone();
        if let Ok(ts) = schema.table(table) {
            let columns: Vec<_> = columns.into_iter().filter(|(n, _)| ts.column(n).is_some()).collect();
            let names: Vec<&str> = columns.iter().map(|(n, _)| *n).collect();
            let out = self.begin();
            let _ = write!(
                out,
                "{{\"op\":\"wait\",\"timeout\":0,\"table\":\"{table}\",\"where\":{},\"columns\":{},\"until\":\"==\",\"rows\":[",
                is(uuid),
                json!(names)
            );
            write_row(ts, columns, false, out);
            out.push_str("]}");
        }
    }

    /// Lets the transaction fail unless the client owns a lock.
    pub fn assert_lock(&mut self, lock: &str) {
        self.push(json!({"op": "assert", "lock": lock}));
    }

    /// Adds a comment to the server's record of the transaction.
    pub fn comment(&mut self, text: &str) {
        self.push(json!({"op": "comment", "comment": text}));
    }

    /// Adds an operation as RFC 7047 section 5.2 has it.
    pub fn push(&mut self, operation: Value) {
        let _ = write!(self.begin(), "{operation}");
    }

    /// The operations, separated by commas.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// The operations.
    pub fn into_operations(self) -> Vec<Value> {
        serde_json::from_str(&format!("[{}]", self.text)).unwrap_or_default()
    }
}
