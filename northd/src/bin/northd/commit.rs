//! Writing changes. A row that the server refuses is left out and reported; the rest goes in.

use northd::Op;
use ovn_schema::Uuid;
use ovsdb_rs::Datum;
use ovsdb_rs::client::{Client, ClientError, OpFailed, Transaction};
use serde_json::Value;

/// How often a transaction is tried again without the rows that were refused.
const ATTEMPTS: usize = 64;

/// A table of either database.
pub trait TableName: Copy {
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
pub async fn commit<T: TableName>(client: &Client, mut ops: Vec<Op<T>>, lock: Option<&str>) -> Result<(), ClientError> {
    for _ in 0..ATTEMPTS {
        if ops.is_empty() {
            return Ok(());
        }
        let schema = client.schema().ok_or(ClientError::NotConnected)?;
        let mut transaction = Transaction::new(schema);
        if let Some(lock) = lock {
            transaction.assert_lock(lock);
        }
        let before = transaction.len();
        let mut places = Vec::with_capacity(ops.len());
        for (i, op) in ops.iter().enumerate() {
            let n = transaction.len();
            add(&mut transaction, op);
            places.extend(std::iter::repeat_n(i, transaction.len() - n));
        }
        if places.is_empty() {
            return Ok(());
        }
        let Some((i, error)) = client.carry_out(transaction).await? else { return Ok(()) };
        let failed = || ClientError::Failed(Value::String(text(&error)));
        if i < before {
            return Err(failed());
        }
        let refused = match places.get(i - before) {
            Some(op) => vec![*op],
            None => named(&ops, &error),
        };
        if refused.is_empty() {
            return Err(failed());
        }
        for i in refused.into_iter().rev() {
            let op = ops.remove(i);
            tracing::error!(target: "northd", "{} is left out: {}", describe(&op), text(&error));
        }
    }
    Ok(())
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
