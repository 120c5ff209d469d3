//! What a server makes of new rows.

use northd::Op;
use ovn_schema::sb;

/// Puts new rows into a southbound database, as a server would.
pub fn insert(db: &mut sb::Database, ops: &[Op<sb::TableId>]) -> Vec<sb::AnyChange> {
    let schema = sb::Database::schema();
    let mut out = Vec::new();
    for op in ops {
        let Op::Insert(table, uuid, columns) = op else { continue };
        let ts = schema.table(table.name()).unwrap();
        let mut row = ovsdb_rs::Row::default_for(ts);
        for (name, datum) in columns {
            row.0[ts.column_index(name).unwrap()] = datum.clone();
        }
        out.extend(db.apply(table.name(), ts, *uuid, Some(&row)).unwrap());
    }
    out
}
