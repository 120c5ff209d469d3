//! Writing changes. A row that the server refuses is left out and reported; the rest goes in.

use daemon::Counter;
use northd::Op;
use northd::facts::global::WRITTEN;
use northd::tables::global::MADE_ONCE;
use ovn_schema::Uuid;
use ovsdb_rs::client::{Client, ClientError, OpFailed, Transaction};
use ovsdb_rs::{Atom, DatabaseSchema, Datum};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Transactions that went in, and those that were refused.
pub static SUCCESS: Counter = Counter::new("txn_success");
pub static ERROR: Counter = Counter::new("txn_error");
/// Operations that went in, and rows that were left out.
pub static OPERATIONS: Counter = Counter::new("northd_operations");
pub static LEFT_OUT: Counter = Counter::new("northd_rows_left_out");

/// How often a transaction is tried again without the rows that were refused.
const ATTEMPTS: usize = 64;

/// Values of more elements are not written whole where less says the same.
const LARGE: usize = 32;

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
pub async fn commit<T: TableName>(client: &Client, mut ops: Vec<Op<T>>, lock: Option<&str>) -> Result<(), ClientError> {
    let make = |_: &()| -> Option<Op<T>> { None };
    write(client, &mut ops, &mut Vec::new(), make, lock).await
}

/// The same with many more, each of which `make` makes of something smaller when it is about to be sent. Where it fails, what
/// has not been written and was not left out stays in both lists.
pub async fn write<T: TableName, N: Send + Sync>(
    client: &Client,
    ops: &mut Vec<Op<T>>,
    many: &mut Vec<N>,
    mut make: impl FnMut(&N) -> Option<Op<T>> + Send,
    lock: Option<&str>,
) -> Result<(), ClientError> {
    let schema = client.schema().ok_or(ClientError::NotConnected)?;
    for attempt in 1.. {
        let mut sent = Sent::default();
        let before = lock.map(|lock| {
            let mut before = Transaction::new(schema.clone());
            before.assert_lock(lock);
            before
        });
        let asserted = before.as_ref().map_or(0, Transaction::len);
        let result = {
            let all = ops.iter().map(Cow::Borrowed).zip(0..).map(|(op, place)| (place, op));
            let made = many.iter().zip(ops.len()..).filter_map(|(n, place)| Some((place, Cow::Owned(make(n)?))));
            let mut parts = parts(client, &schema, all.chain(made), &mut sent).peekable();
            if parts.peek().is_none() {
                return Ok(());
            }
            client.carry_out(before.into_iter().chain(parts)).await?
        };
        let left_out = std::mem::take(&mut sent.wrong);
        let Some((i, error)) = result else {
            SUCCESS.inc();
            OPERATIONS.add(sent.places.len() as u64);
            return Ok(());
        };
        ERROR.inc();
        let failed = || ClientError::Failed(Value::String(text(&error)));
        if i < asserted {
            return Err(failed());
        }
        let at = |place: usize, make: &mut dyn FnMut(&N) -> Option<Op<T>>| match ops.get(place) {
            Some(op) => Some(op.clone()),
            None => many.get(place - ops.len()).and_then(make),
        };
        let refused = match sent.places.get(i - asserted) {
            Some(place) => Some(*place as usize),
            // The last change whose row the text of the error names; of two that exclude each other one can stay.
            None => {
                let text = text(&error);
                let named = |op: Op<T>| text.contains(&uuid(&op).to_string());
                (0..ops.len() + many.len()).rev().find(|place| at(*place, &mut make).is_some_and(named))
            }
        };
        let Some(refused) = refused.filter(|_| attempt < ATTEMPTS) else { return Err(failed()) };
        LEFT_OUT.inc();
        if let Some(op) = at(refused, &mut make) {
            tracing::error!(target: "northd", "{} is left out: {}", describe(&op), text(&error));
        }
        let mut gone: BTreeSet<usize> = left_out.into_iter().map(|place| place as usize).collect();
        gone.insert(refused);
        let first = ops.len();
        let mut place = 0..;
        ops.retain(|_| place.next().is_none_or(|p| !gone.contains(&p)));
        let mut place = first..;
        many.retain(|_| place.next().is_none_or(|p| !gone.contains(&p)));
    }
    Ok(())
}

/// What became of changes, by their places.
#[derive(Default)]
struct Sent {
    /// Those that are operations of the transaction, in its order.
    places: Vec<u32>,
    /// Those whose values the server's schema does not allow.
    wrong: Vec<u32>,
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

/// The changes as transactions of some each, so that the text of all is never there at once.
fn parts<'a, T: TableName>(
    client: &'a Client,
    schema: &'a Arc<DatabaseSchema>,
    mut ops: impl Iterator<Item = (usize, Cow<'a, Op<T>>)> + Send + 'a,
    sent: &'a mut Sent,
) -> impl Iterator<Item = Transaction> + Send + 'a {
    let mut part_of_large = Vec::new();
    std::iter::from_fn(move || {
        let mut part = Transaction::new(schema.clone());
        while part.len() < PART
            && let Some((place, op)) = ops.next()
        {
            let place = place as u32;
            if let Some(why) = wrong(schema, &op) {
                tracing::error!(target: "northd", "{} is left out: {why}", describe(&op));
                LEFT_OUT.inc();
                sent.wrong.push(place);
            } else if counts(schema, &op) {
                let before = part.len();
                add(&mut part, small(client, schema, op.into_owned(), &mut part_of_large));
                for (table, row, column, gone, added) in part_of_large.drain(..) {
                    part.exchange(table, row, column, &gone, &added);
                }
                sent.places.extend(std::iter::repeat_n(place, part.len() - before));
            }
        }
        Some(part).filter(|p| !p.is_empty())
    })
}

/// What of a large value changes: table, row, column, what goes, what comes.
type Exchange = (&'static str, Uuid, &'static str, Datum, Datum);

/// A change without the large values of which the database has most already; what changes of these comes apart.
fn small<T: TableName>(client: &Client, schema: &DatabaseSchema, op: Op<T>, apart: &mut Vec<Exchange>) -> Op<T> {
    let Op::Update(t, uuid, mut columns) = op else { return op };
    let table = t.table();
    if let Ok(ts) = schema.table(table)
        && table != "NB_Global"
        && columns.iter().any(|(_, d)| d.len() > LARGE)
        && let Some(row) = client.replica(|r| r.row(table, uuid).cloned())
    {
        columns.retain(|(name, wanted)| {
            let Some(present) = row.get(ts, name).filter(|_| wanted.len() > LARGE) else { return true };
            let (gone, added) = present.moved(wanted);
            let whole = gone.len() + added.len() > wanted.len() / 2;
            if !whole && gone.len() + added.len() > 0 {
                apart.push((table, uuid, *name, gone, added));
            }
            whole
        });
    }
    Op::Update(t, uuid, columns)
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

fn add<T: TableName>(transaction: &mut Transaction, op: Op<T>) {
    match op {
        Op::Insert(t, u, c) => transaction.insert_as(u, t.table(), c),
        Op::Update(t, u, c) => match c.as_slice() {
            // Others write options at the same time.
            [("options", Datum::Map(all))] if t.table() == "NB_Global" => {
                let pairs = |own: &[&str]| -> Vec<(Atom, Atom)> {
                    let is = |k: &Atom| matches!(k, Atom::String(s) if own.contains(&&**s));
                    all.iter().filter(|(k, _)| is(k)).cloned().collect()
                };
                let (written, once) = (pairs(&WRITTEN), pairs(&MADE_ONCE));
                let keys: Vec<Atom> = written.iter().map(|(k, _)| k.clone()).collect();
                transaction.put(t.table(), u, "options", &keys, &[written, once].concat());
            }
            _ => transaction.update(t.table(), u, c),
        },
        Op::Delete(t, u) => transaction.delete(t.table(), u),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ovn_schema::sb;
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
        let mut many: Vec<_> = (0..2 * PART as i64 + ATTEMPTS as i64).map(|n| (n * 2, n * 2)).collect();
        many.extend([10, 500].map(|n| (n, 5000 + n)));
        let ops = vec![flow(10, 6010), flow(4, 6004), flow(1003, 6005)];
        let make = |(n, name): &(i64, i64)| Some(flow(*n, *name));
        write(&client, &mut ops.clone(), &mut many, make, None).await.unwrap();
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
