//! Writing changes. A row that the server refuses is left out and reported; the rest goes in.

use northd::Op;
use ovn_schema::Uuid;
use ovsdb_rs::client::{Client, ClientError, OpFailed, Transaction};
use ovsdb_rs::{DatabaseSchema, Datum};
use serde_json::Value;
use std::sync::Arc;

/// How often a transaction is tried again without the rows that were refused.
const ATTEMPTS: usize = 64;

/// How many changes are written out at once.
const PART: usize = 256;

/// A table of either database.
pub trait TableName: Copy + Send + Sync + 'static {
    /// Its name.
    fn table(self) -> &'static str;
}

impl TableName for ovn_schema::nb::TableId {
    fn table(self) -> &'static str {
        self.name()
    }
}

impl TableName for ovn_schema::sb::TableId {
    fn table(self) -> &'static str {
        self.name()
    }
}

/// Carries out changes in one transaction, under a lock where one is named.
///
/// # Errors
/// Where the connection is gone, or the lock is.
pub async fn commit<T: TableName>(client: &Client, ops: Vec<Op<T>>, lock: Option<&str>) -> Result<(), ClientError> {
    let mut ops = Arc::new(ops);
    for _ in 0..ATTEMPTS {
        if ops.is_empty() {
            return Ok(());
        }
        let schema = client.schema().ok_or(ClientError::NotConnected)?;
        let places: Vec<usize> = (0..ops.len()).filter(|i| ops.get(*i).is_some_and(|op| counts(&schema, op))).collect();
        if places.is_empty() {
            return Ok(());
        }
        let mut before = Transaction::new(schema.clone());
        if let Some(lock) = lock {
            before.assert_lock(lock);
        }
        let asserted = before.len();
        let parts = std::iter::once(before).chain(parts(schema, ops.clone()));
        let Some((i, error)) = client.carry_out(parts).await? else { return Ok(()) };
        let failed = || ClientError::Failed(Value::String(text(&error)));
        if i < asserted {
            return Err(failed());
        }
        let refused = match places.get(i - asserted) {
            Some(op) => vec![*op],
            None => named(&ops, &error),
        };
        if refused.is_empty() {
            return Err(failed());
        }
        let left = Arc::make_mut(&mut ops);
        for i in refused.into_iter().rev() {
            let op = left.remove(i);
            tracing::error!(target: "northd", "{} is left out: {}", describe(&op), text(&error));
        }
    }
    Ok(())
}

/// The changes as transactions of some each, so that the text of all is never there at once.
fn parts<T: TableName>(schema: Arc<DatabaseSchema>, ops: Arc<Vec<Op<T>>>) -> impl Iterator<Item = Transaction> {
    (0..ops.len()).step_by(PART).map(move |start| {
        let mut part = Transaction::new(schema.clone());
        for op in ops.iter().skip(start).take(PART) {
            add(&mut part, op);
        }
        part
    })
}

/// Whether a change becomes an operation: the server's schema may be of another version.
fn counts<T: TableName>(schema: &DatabaseSchema, op: &Op<T>) -> bool {
    match op {
        Op::Insert(t, ..) | Op::Delete(t, _) => schema.table(t.table()).is_ok(),
        Op::Update(t, _, columns) => {
            schema.table(t.table()).is_ok_and(|ts| columns.iter().any(|(name, _)| ts.column(name).is_some()))
        }
    }
}

/// The changes whose rows the text of an error names.
fn named<T: TableName>(ops: &[Op<T>], error: &OpFailed) -> Vec<usize> {
    let text = text(error);
    let hit = |op: &Op<T>| text.contains(&uuid(op).to_string());
    ops.iter().enumerate().filter(|(_, op)| hit(op)).map(|(i, _)| i).collect()
}

fn text(error: &OpFailed) -> String {
    format!("{}: {}", error.error, error.details)
}

fn uuid<T>(op: &Op<T>) -> Uuid {
    match op {
        Op::Insert(_, u, _) | Op::Update(_, u, _) | Op::Delete(_, u) => *u,
    }
}

fn describe<T: TableName>(op: &Op<T>) -> String {
    let columns =
        |c: &[(&'static str, Datum)]| c.iter().map(|(n, d)| format!(" {n}={}", d.to_json())).collect::<String>();
    match op {
        Op::Insert(t, u, c) => format!("new row {u} of {}{}", t.table(), columns(c)),
        Op::Update(t, u, c) => format!("change of row {u} of {}{}", t.table(), columns(c)),
        Op::Delete(t, u) => format!("deletion of row {u} of {}", t.table()),
    }
}

fn add<T: TableName>(transaction: &mut Transaction, op: &Op<T>) {
    let given = |c: &[(&'static str, Datum)]| c.to_vec();
    match op {
        Op::Insert(t, u, c) => transaction.insert_as(*u, t.table(), given(c)),
        Op::Update(t, u, c) => transaction.update(t.table(), *u, given(c)),
        Op::Delete(t, u) => transaction.delete(t.table(), *u),
    }
}
