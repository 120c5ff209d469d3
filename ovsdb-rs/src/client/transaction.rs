//! Builds transactions. What the server's schema lacks is left out, so that one client serves servers of several versions.

use crate::engine::random_uuid;
use crate::{DatabaseSchema, Datum, TableSchema, Uuid};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A transaction being built.
#[derive(Clone, Debug)]
pub struct Transaction {
    schema: Arc<DatabaseSchema>,
    operations: Vec<Value>,
}

fn row_of<'c>(ts: &TableSchema, columns: impl IntoIterator<Item = (&'c str, Datum)>) -> Map<String, Value> {
    columns.into_iter().filter(|(n, _)| ts.column(n).is_some()).map(|(n, d)| (n.to_string(), d.to_json())).collect()
}

fn is(uuid: Uuid) -> Value {
    json!([["_uuid", "==", ["uuid", uuid.to_string()]]])
}

impl Transaction {
    /// An empty transaction on a database of this schema.
    pub fn new(schema: Arc<DatabaseSchema>) -> Transaction {
        Transaction { schema, operations: Vec::new() }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Inserts a row under a fresh UUID, which other rows of the transaction may refer to.
    pub fn insert<'c>(&mut self, table: &str, columns: impl IntoIterator<Item = (&'c str, Datum)>) -> Uuid {
        let uuid = random_uuid();
        self.insert_as(uuid, table, columns);
        uuid
    }

    /// Inserts a row under a given UUID (ovsdb-server(7) section 5.2.1). Defaults need not be given.
    pub fn insert_as<'c>(&mut self, uuid: Uuid, table: &str, columns: impl IntoIterator<Item = (&'c str, Datum)>) {
        if let Ok(ts) = self.schema.table(table) {
            let mut row = row_of(ts, columns);
            row.retain(|name, value| ts.column(name).is_none_or(|c| *value != c.ty.default_datum().to_json()));
            self.operations.push(json!({"op": "insert", "table": table, "uuid": uuid.to_string(), "row": row}));
        }
    }

    /// Sets columns of a row.
    pub fn update<'c>(&mut self, table: &str, uuid: Uuid, columns: impl IntoIterator<Item = (&'c str, Datum)>) {
        if let Ok(ts) = self.schema.table(table) {
            let row = row_of(ts, columns);
            if !row.is_empty() {
                self.operations.push(json!({"op": "update", "table": table, "where": is(uuid), "row": row}));
            }
        }
    }

    /// Mutates a column of a row: `mutator` is `insert`, `delete`, `+=`, `-=`, `*=`, `/=` or `%=`.
    pub fn mutate(&mut self, table: &str, uuid: Uuid, column: &str, mutator: &str, argument: &Datum) {
        if self.schema.table(table).is_ok_and(|ts| ts.column(column).is_some()) {
            let mutations = json!([[column, mutator, argument.to_json()]]);
            self.operations.push(json!({"op": "mutate", "table": table, "where": is(uuid), "mutations": mutations}));
        }
    }

    /// Deletes a row.
    pub fn delete(&mut self, table: &str, uuid: Uuid) {
        if self.schema.table(table).is_ok() {
            self.operations.push(json!({"op": "delete", "table": table, "where": is(uuid)}));
        }
    }

    /// Lets the transaction fail unless a row's columns hold these values.
    pub fn verify<'c>(&mut self, table: &str, uuid: Uuid, columns: impl IntoIterator<Item = (&'c str, Datum)>) {
        if let Ok(ts) = self.schema.table(table) {
            let row = row_of(ts, columns);
            let names: Vec<&String> = row.keys().collect();
            self.operations.push(json!({"op": "wait", "timeout": 0, "table": table, "where": is(uuid),
                "columns": names, "until": "==", "rows": [row]}));
        }
    }

    /// Lets the transaction fail unless the client owns a lock.
    pub fn assert_lock(&mut self, lock: &str) {
        self.operations.push(json!({"op": "assert", "lock": lock}));
    }

    /// Adds a comment to the server's record of the transaction.
    pub fn comment(&mut self, text: &str) {
        self.operations.push(json!({"op": "comment", "comment": text}));
    }

    /// Adds an operation as RFC 7047 section 5.2 has it.
    pub fn push(&mut self, operation: Value) {
        self.operations.push(operation);
    }

    /// The operations.
    pub fn into_operations(self) -> Vec<Value> {
        self.operations
    }
}
