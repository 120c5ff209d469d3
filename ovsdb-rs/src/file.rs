//! The standalone file format of ovsdb-server (ovsdb(5)): records of
//! `OVSDB JSON LENGTH SHA1` and a line of JSON; the first is the schema, the others transactions.

use crate::value::no_names;
use crate::{DatabaseSchema, Datum, Error, Row};
use serde_json::Value;
use sha1::{Digest, Sha1};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use uuid::Uuid;

/// A database's content as read from a file.
#[derive(Debug, Clone)]
pub struct Content {
    /// The schema record.
    pub schema: DatabaseSchema,
    /// The rows of each table.
    pub tables: BTreeMap<String, HashMap<Uuid, Row>>,
    /// How many bytes of the file are whole records; what follows was torn by a crash.
    pub good_bytes: u64,
    /// How many transactions were read.
    pub transactions: u64,
}

/// Reads one record at the start of `bytes`: its JSON and its whole length in bytes.
/// `None` where the bytes do not hold a whole, intact record.
pub fn read_record(bytes: &[u8]) -> Option<(Value, usize)> {
    let eol = bytes.iter().take(128).position(|b| *b == b'\n')?;
    let header = std::str::from_utf8(&bytes[..eol]).ok()?;
    let mut words = header.split(' ');
    if words.next() != Some("OVSDB") || words.next() != Some("JSON") {
        return None;
    }
    let len: usize = words.next()?.parse().ok()?;
    let sum = words.next()?;
    let body = bytes.get(eol + 1..eol.checked_add(1)?.checked_add(len)?)?;
    if format!("{:x}", Sha1::digest(body)) != sum {
        return None;
    }
    Some((serde_json::from_slice(body).ok()?, eol + 1 + len))
}

/// The bytes of a record that holds this JSON.
pub fn write_record(v: &Value) -> Vec<u8> {
    let mut body = v.to_string();
    body.push('\n');
    let mut out = format!("OVSDB JSON {} {:x}\n", body.len(), Sha1::digest(body.as_bytes())).into_bytes();
    out.extend_from_slice(body.as_bytes());
    out
}

/// Reads a database file.
///
/// # Errors
/// [`Error::File`] where it cannot be read, is no standalone database, or holds a transaction that does not fit its schema.
pub fn read(path: &Path) -> Result<Content, Error> {
    let bytes =
        std::fs::read(path).map_err(|e| Error::File { path: path.display().to_string(), reason: e.to_string() })?;
    parse(&bytes).map_err(|e| Error::File { path: path.display().to_string(), reason: e.to_string() })
}

/// Reads a database file's bytes.
///
/// # Errors
/// As [`read`], without the path.
pub fn parse(bytes: &[u8]) -> Result<Content, Error> {
    let (schema, mut at) =
        read_record(bytes).ok_or_else(|| Error::syntax("no schema record: not a standalone OVSDB database file"))?;
    let schema = DatabaseSchema::from_json(&schema)?;
    let tables = schema.tables.keys().map(|t| (t.clone(), HashMap::new())).collect();
    let mut content = Content { schema, tables, good_bytes: 0, transactions: 0 };
    while let Some((txn, len)) = read_record(&bytes[at..]) {
        content.apply(&txn)?;
        content.transactions += 1;
        at += len;
    }
    content.good_bytes = at as u64;
    Ok(content)
}

impl Content {
    /// Applies one transaction record: `{TABLE: {UUID: {COLUMN: VALUE} | null}}`.
    fn apply(&mut self, txn: &Value) -> Result<(), Error> {
        let o = txn.as_object().ok_or_else(|| Error::syntax("transaction record is not an object"))?;
        let is_diff = o.get("_is_diff").and_then(Value::as_bool).unwrap_or(false);
        for (tname, rows) in o.iter().filter(|(k, _)| !k.starts_with('_')) {
            let ts = self.schema.table(tname)?;
            let table = self.tables.entry(tname.clone()).or_default();
            for (uuid, cols) in rows.as_object().into_iter().flatten() {
                let uuid =
                    Uuid::try_parse(uuid).map_err(|_| Error::Syntax(format!("\"{uuid}\" is not a valid UUID")))?;
                let Some(cols) = cols.as_object() else {
                    table.remove(&uuid);
                    continue;
                };
                let existed = table.contains_key(&uuid);
                let row = table.entry(uuid).or_insert_with(|| Row::default_for(ts));
                for (cname, v) in cols {
                    let i = ts
                        .column_index(cname)
                        .ok_or_else(|| Error::Unknown { kind: "column", name: format!("{tname}.{cname}") })?;
                    let ty = &ts.columns[i].ty;
                    let d = Datum::from_json_unsized(ty, v, &no_names)?;
                    row.0[i] = if is_diff && existed { row.0[i].apply_diff(&d, ty) } else { d };
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({"name": "D", "version": "1.0.0", "tables": {"T": {"columns": {
            "n": {"type": "integer"}, "s": {"type": {"key": "string", "min": 0, "max": "unlimited"}}}}}})
    }

    #[test]
    fn diffs_apply_and_a_torn_record_ends_the_file() {
        let u = "00000000-0000-0000-0000-000000000001";
        let mut f = write_record(&schema());
        f.extend(write_record(&json!({"T": {u: {"n": 1, "s": ["set", ["a", "b"]]}}})));
        f.extend(write_record(&json!({"_is_diff": true, "T": {u: {"n": 7, "s": ["set", ["b", "c"]]}}})));
        let whole = f.len();
        f.extend(&write_record(&json!({"T": {u: null}}))[..40]);
        let c = parse(&f).unwrap();
        assert_eq!(c.good_bytes as usize, whole);
        let t = &c.schema.tables["T"];
        let row = c.tables["T"].values().next().unwrap();
        assert_eq!(row.get(t, "n").unwrap().to_json(), json!(7));
        assert_eq!(row.get(t, "s").unwrap().to_json(), json!(["set", ["a", "c"]]));
    }
}
