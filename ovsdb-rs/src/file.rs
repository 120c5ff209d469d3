//! The standalone file format of ovsdb-server (ovsdb(5)): records of
//! `OVSDB JSON LENGTH SHA1` and a line of JSON; the first is the schema, the others transactions.

use crate::value::no_names;
use crate::{Atom, DatabaseSchema, Datum, Error, Row, Str, TableSchema};
use serde::Deserializer;
use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use sha1::{Digest, Sha1};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read};
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

/// A header line is at most this long.
const LONGEST_HEADER: u64 = 128;
/// A record is at most this long: 4 GiB.
const LONGEST_RECORD: usize = 4 << 30;

/// Reads the next record's body into `body` and gives the record's whole length in bytes;
/// none where there is no whole, intact one.
fn next_record(file: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<Option<u64>> {
    body.clear();
    file.by_ref().take(LONGEST_HEADER).read_until(b'\n', body)?;
    let Some((len, sum)) = header(body) else { return Ok(None) };
    let head = body.len() as u64;
    body.clear();
    // A length that is not true costs no more than what is there.
    file.by_ref().take(len as u64).read_to_end(body)?;
    let intact = body.len() == len && format!("{:x}", Sha1::digest(&*body)) == sum;
    Ok(intact.then_some(head + len as u64))
}

/// The length and the checksum in a header, `OVSDB JSON LENGTH SHA1`.
fn header(line: &[u8]) -> Option<(usize, String)> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    match text.split(' ').collect::<Vec<_>>().as_slice() {
        ["OVSDB", "JSON", len, sum] => Some((len.parse().ok().filter(|n| *n <= LONGEST_RECORD)?, (*sum).to_string())),
        _ => None,
    }
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
    let failed = |reason: String| Error::File { path: path.display().to_string(), reason };
    let file = std::fs::File::open(path).map_err(|e| failed(e.to_string()))?;
    parse_from(BufReader::with_capacity(1 << 18, file)).map_err(|e| failed(e.to_string()))
}

/// Reads a database file's bytes.
///
/// # Errors
/// As [`read`], without the path.
pub fn parse(bytes: &[u8]) -> Result<Content, Error> {
    parse_from(bytes)
}

/// As [`parse`], record by record.
///
/// # Errors
/// As [`parse`], and where reading fails.
pub fn parse_from(mut file: impl BufRead) -> Result<Content, Error> {
    let failed = |e: io::Error| Error::Syntax(format!("cannot be read: {e}"));
    let mut body = Vec::new();
    let first = next_record(&mut file, &mut body).map_err(failed)?;
    let schema = first.and_then(|len| Some((len, serde_json::from_slice::<Value>(&body).ok()?)));
    let (mut at, schema) =
        schema.ok_or_else(|| Error::syntax("no schema record: not a standalone OVSDB database file"))?;
    let schema = DatabaseSchema::from_json(&schema)?;
    let tables = schema.tables.keys().map(|t| (t.clone(), HashMap::new())).collect();
    let mut content = Content { schema, tables, good_bytes: 0, transactions: 0 };
    let mut strings = Strings::default();
    while let Some(len) = next_record(&mut file, &mut body).map_err(failed)? {
        if !content.apply(&body, &mut strings)? {
            break;
        }
        content.transactions += 1;
        at += len;
    }
    content.good_bytes = at;
    Ok(content)
}

/// Interned strings: equal values of a file share memory.
#[derive(Default)]
struct Strings(HashSet<Str>);

impl Strings {
    fn share(&mut self, d: Datum) -> Datum {
        match d {
            Datum::Scalar(Atom::String(s)) => Datum::Scalar(Atom::String(self.one(s))),
            Datum::Map(pairs) if !pairs.is_empty() => {
                Datum::Map(pairs.iter().map(|(k, v)| (self.atom(k.clone()), self.atom(v.clone()))).collect())
            }
            other => other,
        }
    }

    fn atom(&mut self, a: Atom) -> Atom {
        match a {
            Atom::String(s) => Atom::String(self.one(s)),
            other => other,
        }
    }

    fn one(&mut self, s: Str) -> Str {
        match self.0.get(&s) {
            Some(known) => known.clone(),
            None => {
                self.0.insert(s.clone());
                s
            }
        }
    }
}

impl Content {
    /// Applies one transaction record: `{TABLE: {UUID: {COLUMN: VALUE} | null}}`. False where it is no JSON.
    fn apply(&mut self, body: &[u8], strings: &mut Strings) -> Result<bool, Error> {
        let Ok(members) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(body) else {
            return match serde_json::from_slice::<serde::de::IgnoredAny>(body) {
                Ok(_) => Err(Error::syntax("transaction record is not an object")),
                Err(_) => Ok(false),
            };
        };
        let is_diff = members.get("_is_diff").is_some_and(|v| v.get() == "true");
        for (name, rows) in members.iter().filter(|(k, _)| !k.starts_with('_')) {
            let schema = self.schema.table(name)?;
            let rows = rows.get();
            let table = self.tables.entry(name.clone()).or_default();
            let mut error = None;
            let seed = Rows { name, schema, table, is_diff, strings, error: &mut error };
            let read = seed.deserialize(&mut serde_json::Deserializer::from_str(rows));
            match (error, read) {
                (Some(e), _) => return Err(e),
                (None, Err(e)) => return Err(Error::Syntax(format!("table {name}: {e}"))),
                (None, Ok(())) => {}
            }
        }
        Ok(true)
    }
}

/// Reads a table's rows into a table, without building their JSON first.
struct Rows<'a> {
    name: &'a str,
    schema: &'a TableSchema,
    table: &'a mut HashMap<Uuid, Row>,
    is_diff: bool,
    strings: &'a mut Strings,
    /// What is wrong, as errors of JSON are only text.
    error: &'a mut Option<Error>,
}

impl Rows<'_> {
    fn row(&mut self, uuid: &str, columns: Option<BTreeMap<String, Value>>) -> Result<(), Error> {
        let uuid = Uuid::try_parse(uuid).map_err(|_| Error::Syntax(format!("\"{uuid}\" is not a valid UUID")))?;
        let Some(columns) = columns else {
            self.table.remove(&uuid);
            return Ok(());
        };
        let existed = self.table.contains_key(&uuid);
        let row = self.table.entry(uuid).or_insert_with(|| Row::default_for(self.schema));
        for (column, v) in &columns {
            let i = self
                .schema
                .column_index(column)
                .ok_or_else(|| Error::Unknown { kind: "column", name: format!("{}.{column}", self.name) })?;
            let ty = &self.schema.columns[i].ty;
            let d = self.strings.share(Datum::from_json_unsized(ty, v, &no_names)?);
            row.0[i] = if self.is_diff && existed { row.0[i].apply_diff(&d, ty) } else { d };
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Rows<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Rows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("rows by UUID")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((uuid, columns)) = map.next_entry::<String, Option<BTreeMap<String, Value>>>()? {
            if let Err(e) = self.row(&uuid, columns) {
                *self.error = Some(e);
                return Err(serde::de::Error::custom("a row does not fit its schema"));
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
