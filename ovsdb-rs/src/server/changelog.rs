//! Changes of rows in the log, for tables that somebody wants to watch (ovsdb-server(1), `ovsdb-server/tlog-set`).

use crate::engine::{Change, Database};
use crate::{Atom, Datum, Row, TableSchema, Uuid};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The tables of a database whose changes are logged; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched(Arc<Mutex<BTreeSet<String>>>);

impl Watched {
    fn tables(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, table: &str, on: bool) {
        if on {
            self.tables().insert(table.to_string());
        } else {
            self.tables().remove(table);
        }
    }

    pub(crate) fn contains(&self, table: &str) -> bool {
        self.tables().contains(table)
    }

    /// Logs what a transaction changed.
    pub(crate) fn log(&self, db: &Database, changes: &[Change]) {
        let tables = self.tables();
        if tables.is_empty() {
            return;
        }
        for c in changes {
            let Some(schema) = db.table_schema(c.table).filter(|t| tables.contains(&t.name)) else { continue };
            let (op, row) = match (&c.old, &c.new) {
                (None, Some(new)) => ("inserted", new),
                (Some(_), Some(new)) => ("updated", new),
                (Some(old), None) => ("deleted", old),
                (None, None) => continue,
            };
            tracing::info!(target: "transaction", "{}", line(schema, op, c.uuid, c.version, row));
        }
    }
}

fn line(schema: &TableSchema, op: &str, uuid: Uuid, version: Uuid, row: &Row) -> String {
    let mut out = format!("table:{},op:{op},_uuid:{uuid},_version:{version}", schema.name);
    for column in &schema.columns {
        if let Some(d) = row.get(schema, &column.name) {
            out.push(',');
            out += &column.name;
            out.push(':');
            datum(d, column.ty.max > 1, column.ty.value.is_some(), &mut out);
        }
    }
    out
}

/// A value in the notation of ovs-vsctl(8).
fn datum(d: &Datum, many: bool, map: bool, out: &mut String) {
    let pairs = d.pairs().iter().map(|(k, v)| format!("{}={}", k.to_plain(), v.to_plain()));
    let list = pairs.chain(d.atoms().iter().map(Atom::to_plain)).collect::<Vec<_>>().join(", ");
    let (open, close) = if map { ('{', '}') } else { ('[', ']') };
    // Writing to a string cannot fail.
    let _ = if many || d.is_empty() { write!(out, "{open}{list}{close}") } else { write!(out, "{list}") };
}
