//! Parsing of requests: members of objects, columns, values.

use super::{Column, OpError};
use crate::{BaseType, ColumnType, Datum, TableSchema, Uuid, value::NameResolver};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// A kind of member.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    String,
    Array,
    Object,
    Boolean,
    Number,
    /// A string that is an identifier (RFC 7047 section 3.1 `<id>`).
    Id,
}

/// Whether a string is an `<id>`.
pub(crate) fn is_id(s: &str) -> bool {
    let mut bytes = s.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// An object whose members are taken one by one; what is left over at the end is an error.
pub(crate) struct Members<'a> {
    object: &'a Map<String, Value>,
    whole: &'a Value,
    what: String,
    taken: HashSet<&'static str>,
}

impl<'a> Members<'a> {
    pub(crate) fn new(v: &'a Value, what: impl Into<String>) -> Result<Members<'a>, OpError> {
        let what = what.into();
        match v.as_object() {
            Some(object) => Ok(Members { object, whole: v, what, taken: HashSet::new() }),
            None => Err(OpError::syntax(format!("Parsing {what} failed: Object expected."))),
        }
    }

    fn error(&self, text: String) -> OpError {
        OpError::syntax(format!("Parsing {} failed: {text}", self.what)).at(self.whole)
    }

    pub(crate) fn whole(&self) -> &'a Value {
        self.whole
    }

    /// An error about this object in the words of a parse error.
    pub(crate) fn failed(&self, text: impl Into<String>) -> OpError {
        self.error(text.into())
    }

    pub(crate) fn optional(&mut self, name: &'static str, kind: Kind) -> Result<Option<&'a Value>, OpError> {
        self.taken.insert(name);
        let Some(v) = self.object.get(name) else { return Ok(None) };
        let fits = match kind {
            Kind::String => v.is_string(),
            Kind::Array => v.is_array(),
            Kind::Object => v.is_object(),
            Kind::Boolean => v.is_boolean(),
            Kind::Number => v.is_number(),
            Kind::Id => v.as_str().is_some_and(is_id),
        };
        if fits { Ok(Some(v)) } else { Err(self.error(format!("Type mismatch for member '{name}'."))) }
    }

    pub(crate) fn required(&mut self, name: &'static str, kind: Kind) -> Result<&'a Value, OpError> {
        match self.optional(name, kind)? {
            Some(v) => Ok(v),
            None => Err(self.error(format!("Required '{name}' member is missing."))),
        }
    }

    pub(crate) fn string(&mut self, name: &'static str, kind: Kind) -> Result<&'a str, OpError> {
        Ok(self.required(name, kind)?.as_str().unwrap_or_default())
    }

    pub(crate) fn array(&mut self, name: &'static str) -> Result<&'a [Value], OpError> {
        Ok(self.required(name, Kind::Array)?.as_array().map_or(&[][..], Vec::as_slice))
    }

    pub(crate) fn finish(&self) -> Result<(), OpError> {
        match self.object.keys().find(|k| !self.taken.contains(k.as_str())) {
            Some(k) => Err(self.error(format!("Member '{k}' is present but not allowed here."))),
            None => Ok(()),
        }
    }
}

/// Parses a value of a type; an error points at the element at fault.
pub(crate) fn datum(ty: &ColumnType, v: &Value, names: NameResolver<'_>) -> Result<Datum, OpError> {
    Datum::from_json(ty, v, names).map_err(|e| {
        let inner = first_bad_element(ty, v, names);
        OpError::of_value(e, inner.unwrap_or(v))
    })
}

/// The first element of a set or map that does not parse.
fn first_bad_element<'a>(ty: &ColumnType, v: &'a Value, names: NameResolver<'_>) -> Option<&'a Value> {
    let bad = |base: &BaseType, v: &'a Value| crate::Atom::from_json(base.ty, v, names).is_err().then_some(v);
    let [Value::String(tag), Value::Array(items)] = v.as_array()?.as_slice() else { return None };
    match (&ty.value, tag.as_str()) {
        (None, "set") => items.iter().find_map(|i| bad(&ty.key, i)),
        (Some(value), "map") => items.iter().find_map(|i| match i.as_array().map(Vec::as_slice) {
            Some([k, val]) => bad(&ty.key, k).or_else(|| bad(value, val)),
            _ => Some(i),
        }),
        _ => None,
    }
}

/// The column of a name.
pub(crate) fn column(schema: &TableSchema, name: &str) -> Option<Column> {
    match name {
        "_uuid" => Some(Column::Uuid),
        "_version" => Some(Column::Version),
        _ => schema.column_index(name).map(Column::Data),
    }
}

/// The columns that a `columns` member names; all where there is none.
pub(crate) fn columns(schema: &TableSchema, v: Option<&Value>) -> Result<Vec<Column>, OpError> {
    let Some(v) = v else {
        return Ok([Column::Uuid, Column::Version]
            .into_iter()
            .chain((0..schema.columns.len()).map(Column::Data))
            .collect());
    };
    let mut out = Vec::new();
    for name in v.as_array().into_iter().flatten() {
        let Some(name) = name.as_str() else {
            return Err(OpError::syntax("array of distinct column names expected").at(v));
        };
        let c =
            column(schema, name).ok_or_else(|| OpError::syntax(format!("{name} is not a valid column name")).at(v))?;
        if out.contains(&c) {
            return Err(OpError::syntax("array of distinct column names expected").at(v));
        }
        out.push(c);
    }
    Ok(out)
}

/// The UUID in a string.
pub(crate) fn uuid(s: &str) -> Option<Uuid> {
    (s.len() == 36).then(|| Uuid::try_parse(s).ok()).flatten()
}
