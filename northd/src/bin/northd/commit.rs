//! Writing changes. A row that the server refuses is left out and reported; the rest goes in.

use northd::Op;
use ovn_schema::{Uuid, sb};
use ovsdb_rs::client::{Client, ClientError, OpFailed, Transaction};
use ovsdb_rs::{DatabaseSchema, Datum};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};

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
    write(client, ops, lock, |_| {}).await
}

/// The same for many. What new flows say is dropped as soon as it has been sent; should the server refuse something, `refill`
/// puts it back.
pub async fn write<T: TableName>(
    client: &Client,
    mut ops: Vec<Op<T>>,
    lock: Option<&str>,
    refill: impl Fn(&mut [Op<T>]),
) -> Result<(), ClientError> {
    let schema = client.schema().ok_or(ClientError::NotConnected)?;
    ops.retain(|op| {
        let wrong = wrong(&schema, op);
        if let Some(why) = &wrong {
            tracing::error!(target: "northd", "{} is left out: {why}", describe(op));
        }
        wrong.is_none()
    });
    for attempt in 1.. {
        if ops.is_empty() {
            return Ok(());
        }
        let schema = schema.clone();
        let places: Vec<u32> =
            ops.iter().zip(0..).filter(|(op, _)| counts(&schema, op)).map(|(_, place)| place).collect();
        if places.is_empty() {
            return Ok(());
        }
        let mut before = Transaction::new(schema.clone());
        if let Some(lock) = lock {
            before.assert_lock(lock);
        }
        let asserted = before.len();
        let sent = Arc::new(Mutex::new(std::mem::take(&mut ops)));
        let parts = std::iter::once(before).chain(parts(schema, sent.clone()));
        let Some((i, error)) = client.carry_out(parts).await? else { return Ok(()) };
        ops = std::mem::take(&mut *sent.lock().unwrap_or_else(PoisonError::into_inner));
        refill(&mut ops);
        let failed = || ClientError::Failed(Value::String(text(&error)));
        if i < asserted {
            return Err(failed());
        }
        let refused = places.get(i - asserted).map(|op| *op as usize).or_else(|| named(&ops, &error));
        let Some(refused) = refused.filter(|_| attempt < ATTEMPTS) else { return Err(failed()) };
        let op = ops.remove(refused);
        tracing::error!(target: "northd", "{} is left out: {}", describe(&op), text(&error));
    }
    Ok(())
}

/// The first value that the server's schema does not allow.
fn wrong<T: TableName>(schema: &DatabaseSchema, op: &Op<T>) -> Option<String> {
    let (Op::Insert(t, _, columns) | Op::Update(t, _, columns)) = op else { return None };
    let ts = schema.table(t.table()).ok()?;
    columns.iter().find_map(|(name, datum)| {
        let ty = &ts.column(name)?.ty;
        let value = |a| ty.value.as_ref().map_or(Ok(()), |base| base.check(a));
        let checked = ty
            .check_size(datum)
            .and_then(|()| datum.atoms().iter().try_for_each(|a| ty.key.check(a)))
            .and_then(|()| datum.pairs().iter().try_for_each(|(k, v)| ty.key.check(k).and_then(|()| value(v))));
        checked.err().map(|e| format!("column {name}: {e}"))
    })
}

/// The changes as transactions of some each, so that the text of all is never there at once. Of new flows only the names are left
/// after that.
fn parts<T: TableName>(
    schema: Arc<DatabaseSchema>,
    ops: Arc<Mutex<Vec<Op<T>>>>,
) -> impl Iterator<Item = Transaction> + Send {
    (0..).step_by(PART).map_while(move |start| {
        let mut ops = ops.lock().unwrap_or_else(PoisonError::into_inner);
        let some = ops.get_mut(start..).filter(|rest| !rest.is_empty())?;
        let mut part = Transaction::new(schema.clone());
        for op in some.iter_mut().take(PART) {
            add(&mut part, op);
            if let Op::Insert(table, _, columns) = op
                && table.table() == sb::TableId::LogicalFlow.name()
            {
                *columns = Vec::new();
            }
        }
        Some(part)
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

/// The last change whose row the text of an error names; of two that exclude each other one can stay.
fn named<T: TableName>(ops: &[Op<T>], error: &OpFailed) -> Option<usize> {
    let text = text(error);
    ops.iter().rposition(|op| text.contains(&uuid(op).to_string()))
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ovsdb_rs::client::{Config, TableRequest};
    use ovsdb_rs::{Atom, BaseType, ColumnType, Server};

    fn flow(n: i64, name: i64) -> Op<sb::TableId> {
        let number = |n| Datum::Scalar(Atom::Integer(n));
        let text = |s: &str| Datum::Scalar(Atom::String(s.into()));
        let all =
            vec![("pipeline", text("ingress")), ("priority", number(n)), ("match", text(&format!("ip.ttl == {n}")))];
        Op::Insert(sb::TableId::LogicalFlow, Uuid::from_u128(name as u128 + 1), all)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_refused_flow_is_left_out_and_the_rest_goes_in() {
        let mut schema = sb::Database::schema();
        let table = schema.tables.get_mut("Logical_Flow").unwrap();
        let priority = table.column_index("priority").unwrap();
        table.columns[priority].ty = ColumnType::scalar(BaseType::int_range(0, 999));
        table.indexes.push(vec!["priority".to_string()]);
        let dir = tempfile::tempdir().unwrap();
        let server = Server::new();
        server.add_file(&dir.path().join("sb.db"), Some(&schema)).await.unwrap();
        let config = Config::in_process(&server, sb::Database::NAME).table("Logical_Flow", TableRequest::all());
        let (client, _events) = Client::start(config);
        client.connected().await;
        // Of each number below 1,000 one; some twice; more that the schema forbids than there are attempts.
        let mut ops: Vec<_> = (0..2 * PART as i64 + ATTEMPTS as i64).map(|n| flow(n * 2, n * 2)).collect();
        ops.extend([10, 500].map(|n| flow(n, 5000 + n)));
        let refill = |ops: &mut [Op<sb::TableId>]| {
            for op in ops {
                if let Op::Insert(_, u, columns) = op
                    && columns.is_empty()
                {
                    let name = u.as_u128() as i64 - 1;
                    *op = flow(name % 5000, name);
                }
            }
        };
        write(&client, ops, None, refill).await.unwrap();
        let there = client.replica(|r| r.rows("Logical_Flow").count());
        let allowed = 500;
        assert_eq!(there, allowed);
        let texts = client.replica(|r| {
            let ts = r.schema().unwrap().table("Logical_Flow").unwrap();
            let all =
                r.rows("Logical_Flow").filter_map(|(_, row)| Some(row.get(ts, "match")?.scalar()?.as_str()?.len()));
            all.filter(|len| *len > 0).count()
        });
        assert_eq!(texts, allowed, "none is empty");
    }
}
