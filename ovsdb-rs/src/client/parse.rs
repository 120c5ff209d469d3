//! Rows of `<table-updates>`, read column by column without a tree in between.

use super::VERSION;
use crate::{Atom, AtomType, BaseType, ColumnType, Datum, Error, Str, TableSchema, Uuid};
use rustc_hash::FxBuildHasher;
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::hash::BuildHasher;

/// Text that stays where it is, unless it has escapes.
#[derive(serde::Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// The strings that came last, so that rows share what they have in common.
#[derive(Debug)]
pub(super) struct Strings(Vec<Option<Str>>);

/// How many strings are remembered, and how long they are at most, in octets.
const STRINGS: usize = 1024;
const LONGEST: usize = 128;

impl Default for Strings {
    fn default() -> Strings {
        Strings(vec![None; STRINGS])
    }
}

impl Strings {
    fn get(&mut self, text: &str) -> Str {
        let place = FxBuildHasher.hash_one(text) as usize % STRINGS;
        match self.0.get_mut(place).filter(|_| text.len() <= LONGEST) {
            Some(Some(same)) if **same == *text => same.clone(),
            Some(slot) => slot.insert(Str::from(text)).clone(),
            None => Str::from(text),
        }
    }
}

/// Columns of a row, by their places in the schema.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub(super) values: Vec<(usize, Datum)>,
    /// Whether there is a version.
    pub(super) version: bool,
    /// What is wrong with one of them.
    pub(super) error: Option<Error>,
}

/// A row's part of `<table-updates>` or `<table-updates2>`; a deletion has none of these.
#[derive(Debug, Default)]
pub(super) struct RowUpdate {
    /// The row's columns, those left out having their defaults.
    pub(super) whole: Option<Columns>,
    /// The differences.
    pub(super) modify: Option<Columns>,
    /// The columns as they are now.
    pub(super) new: Option<Columns>,
}

impl RowUpdate {
    /// What is wrong with it.
    pub(super) fn error(&self) -> Option<Error> {
        [&self.whole, &self.modify, &self.new].into_iter().flatten().find_map(|c| c.error.clone())
    }
}

/// Reads a row of a table.
pub(super) struct OfRow<'t> {
    pub(super) table: &'t TableSchema,
    pub(super) strings: &'t mut Strings,
}

impl<'de> DeserializeSeed<'de> for OfRow<'_> {
    type Value = RowUpdate;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<RowUpdate, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OfRow<'_> {
    type Value = RowUpdate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an update of a row")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RowUpdate, A::Error> {
        let mut out = RowUpdate::default();
        while let Some(Text(kind)) = map.next_key()? {
            let place = match &*kind {
                "initial" | "insert" => &mut out.whole,
                "modify" => &mut out.modify,
                "new" => &mut out.new,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *place = Some(map.next_value_seed(OfColumns { table: self.table, strings: self.strings })?);
        }
        Ok(out)
    }
}

struct OfColumns<'t> {
    table: &'t TableSchema,
    strings: &'t mut Strings,
}

impl<'de> DeserializeSeed<'de> for OfColumns<'_> {
    type Value = Columns;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Columns, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OfColumns<'_> {
    type Value = Columns;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("columns of a row")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Columns, A::Error> {
        let mut out = Columns::default();
        while let Some(Text(name)) = map.next_key()? {
            // `_version` and the like are no columns of the schema.
            out.version |= name == VERSION;
            let Some(i) = self.table.column_index(&name) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let Some(column) = self.table.columns.get(i) else { continue };
            match map.next_value_seed(OfColumn { ty: &column.ty, strings: self.strings })? {
                Ok(d) => out.values.push((i, d)),
                Err(e) => out.error = out.error.or(Some(e)),
            }
        }
        Ok(out)
    }
}

/// A value, or why it is none of its column's type. Nothing else is wrong then.
type Parsed<T> = Result<T, Error>;

/// Reads a value of a column, without the limits on the number of elements.
struct OfColumn<'t> {
    ty: &'t ColumnType,
    strings: &'t mut Strings,
}

impl<'de> DeserializeSeed<'de> for OfColumn<'_> {
    type Value = Parsed<Datum>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Parsed<Datum>, D::Error> {
        d.deserialize_any(self)
    }
}

impl OfColumn<'_> {
    fn scalar(&self, atom: Parsed<Atom>) -> Parsed<Datum> {
        match self.ty.value {
            Some(_) => Err(Error::syntax("expected [\"map\", <array>]")),
            None => Ok(Datum::Scalar(checked(&self.ty.key, atom)?)),
        }
    }
}

impl<'de> Visitor<'de> for OfColumn<'_> {
    type Value = Parsed<Datum>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, v: &str) -> Result<Parsed<Datum>, E> {
        let atom = string(&self.ty.key, v, self.strings);
        Ok(self.scalar(atom))
    }

    fn visit_bool<E>(self, v: bool) -> Result<Parsed<Datum>, E> {
        Ok(self.scalar(other(&self.ty.key, &v.into())))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Parsed<Datum>, E> {
        Ok(self.scalar(other(&self.ty.key, &v.into())))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Parsed<Datum>, E> {
        Ok(self.scalar(other(&self.ty.key, &v.into())))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Parsed<Datum>, E> {
        Ok(self.scalar(other(&self.ty.key, &v.into())))
    }

    fn visit_unit<E>(self) -> Result<Parsed<Datum>, E> {
        Ok(Err(Error::syntax("null is no value")))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed<Datum>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Err(Error::syntax("a value is no object")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Parsed<Datum>, A::Error> {
        let Some(Text(tag)) = seq.next_element()? else { return Ok(Err(Error::syntax("a value is no empty array"))) };
        let OfColumn { ty, strings } = self;
        let datum = match (&*tag, &ty.value) {
            ("set", None) => {
                let atoms = seq.next_element_seed(OfAtoms { base: &ty.key, strings })?;
                atoms.unwrap_or_else(|| Err(missing())).and_then(Datum::distinct_set)
            }
            ("map", Some(value)) => {
                let pairs = seq.next_element_seed(OfPairs { key: &ty.key, value, strings })?;
                pairs.unwrap_or_else(|| Err(missing())).and_then(Datum::distinct_map)
            }
            ("uuid", None) => match seq.next_element()? {
                Some(Text(id)) => checked(&ty.key, uuid(&ty.key, &id)).map(Datum::Scalar),
                None => Err(missing()),
            },
            (tag, _) => Err(Error::Syntax(format!("\"{tag}\" is no value of this column"))),
        };
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(datum)
    }
}

fn missing() -> Error {
    Error::syntax("expected an array of two elements")
}

fn string(base: &BaseType, text: &str, strings: &mut Strings) -> Parsed<Atom> {
    match base.ty {
        AtomType::String => Ok(Atom::String(strings.get(text))),
        other => Err(Error::Syntax(format!("expected {}", other.name()))),
    }
}

fn uuid(base: &BaseType, text: &str) -> Parsed<Atom> {
    if base.ty != AtomType::Uuid {
        return Err(Error::Syntax(format!("expected {}", base.ty.name())));
    }
    Uuid::try_parse(text).map(Atom::Uuid).map_err(|_| Error::Syntax(format!("\"{text}\" is not a valid UUID")))
}

fn other(base: &BaseType, v: &Value) -> Parsed<Atom> {
    Atom::from_json(base.ty, v, &crate::value::no_names)
}

fn checked(base: &BaseType, atom: Parsed<Atom>) -> Parsed<Atom> {
    let atom = atom?;
    base.check(&atom)?;
    Ok(atom)
}

/// Reads an atom.
struct OfAtom<'t> {
    base: &'t BaseType,
    strings: &'t mut Strings,
}

impl<'de> DeserializeSeed<'de> for OfAtom<'_> {
    type Value = Parsed<Atom>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Parsed<Atom>, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OfAtom<'_> {
    type Value = Parsed<Atom>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an atom")
    }

    fn visit_str<E>(self, v: &str) -> Result<Parsed<Atom>, E> {
        Ok(checked(self.base, string(self.base, v, self.strings)))
    }

    fn visit_bool<E>(self, v: bool) -> Result<Parsed<Atom>, E> {
        Ok(checked(self.base, other(self.base, &v.into())))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Parsed<Atom>, E> {
        Ok(checked(self.base, other(self.base, &v.into())))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Parsed<Atom>, E> {
        Ok(checked(self.base, other(self.base, &v.into())))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Parsed<Atom>, E> {
        Ok(checked(self.base, other(self.base, &v.into())))
    }

    fn visit_unit<E>(self) -> Result<Parsed<Atom>, E> {
        Ok(Err(Error::syntax("null is no value")))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed<Atom>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Err(Error::syntax("a value is no object")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Parsed<Atom>, A::Error> {
        let (tag, id): (Option<Text<'_>>, Option<Text<'_>>) = (seq.next_element()?, seq.next_element()?);
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(match (tag, id) {
            (Some(Text(tag)), Some(Text(id))) if tag == "uuid" => checked(self.base, uuid(self.base, &id)),
            _ => Err(Error::syntax("expected [\"uuid\", <string>]")),
        })
    }
}

struct OfAtoms<'t> {
    base: &'t BaseType,
    strings: &'t mut Strings,
}

impl<'de> DeserializeSeed<'de> for OfAtoms<'_> {
    type Value = Parsed<Vec<Atom>>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for OfAtoms<'_> {
    type Value = Parsed<Vec<Atom>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of atoms")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut out = Ok(Vec::new());
        while let Some(atom) = seq.next_element_seed(OfAtom { base: self.base, strings: self.strings })? {
            join(&mut out, atom);
        }
        Ok(out)
    }
}

/// Adds an element, or keeps what is wrong first.
fn join<T>(all: &mut Parsed<Vec<T>>, one: Parsed<T>) {
    match (all, one) {
        (Ok(list), Ok(x)) => list.push(x),
        (all @ Ok(_), Err(e)) => *all = Err(e),
        (Err(_), _) => {}
    }
}

struct OfPairs<'t> {
    key: &'t BaseType,
    value: &'t BaseType,
    strings: &'t mut Strings,
}

impl<'de> DeserializeSeed<'de> for OfPairs<'_> {
    type Value = Parsed<Vec<(Atom, Atom)>>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for OfPairs<'_> {
    type Value = Parsed<Vec<(Atom, Atom)>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of pairs")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut out = Ok(Vec::new());
        while let Some(pair) =
            seq.next_element_seed(OfPair { key: self.key, value: self.value, strings: self.strings })?
        {
            join(&mut out, pair);
        }
        Ok(out)
    }
}

struct OfPair<'t> {
    key: &'t BaseType,
    value: &'t BaseType,
    strings: &'t mut Strings,
}

impl<'de> DeserializeSeed<'de> for OfPair<'_> {
    type Value = Parsed<(Atom, Atom)>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for OfPair<'_> {
    type Value = Parsed<(Atom, Atom)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pair of atoms")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let key = seq.next_element_seed(OfAtom { base: self.key, strings: self.strings })?;
        let value = seq.next_element_seed(OfAtom { base: self.value, strings: self.strings })?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(match (key, value) {
            (Some(Ok(k)), Some(Ok(v))) => Ok((k, v)),
            (Some(Err(e)), _) | (_, Some(Err(e))) => Err(e),
            _ => Err(missing()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ColumnSchema;
    use proptest::prelude::*;

    fn types() -> Vec<ColumnType> {
        let base = |ty| BaseType::new(ty);
        let mut all: Vec<ColumnType> =
            [AtomType::Integer, AtomType::Real, AtomType::Boolean, AtomType::String, AtomType::Uuid]
                .into_iter()
                .flat_map(|t| {
                    [
                        ColumnType::scalar(base(t)),
                        ColumnType::optional(base(t)),
                        ColumnType::set(base(t)),
                        ColumnType::map(base(t), base(AtomType::String)),
                        ColumnType::map(base(AtomType::String), base(t)),
                    ]
                })
                .collect();
        all.push(ColumnType::scalar(BaseType::one_of(&["a", "b"])));
        all.push(ColumnType::set(BaseType::int_range(1, 9)));
        all
    }

    fn atom() -> impl Strategy<Value = Value> {
        prop_oneof![
            (-3i64..12).prop_map(Value::from),
            (-9i32..9).prop_map(|n| Value::from(f64::from(n) / 4.0)),
            any::<bool>().prop_map(Value::from),
            "[a-c\"\\\\é]{0,3}".prop_map(Value::from),
            any::<u128>().prop_map(|n| serde_json::json!(["uuid", Uuid::from_u128(n % 3).to_string()])),
            Just(serde_json::json!(["uuid", "x"])),
            Just(Value::Null),
            Just(serde_json::json!({"a": [1]})),
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        let pair = (atom(), atom()).prop_map(|(a, b)| serde_json::json!([a, b]));
        prop_oneof![
            atom(),
            prop::collection::vec(atom(), 0..4).prop_map(|v| serde_json::json!(["set", v])),
            prop::collection::vec(pair, 0..4).prop_map(|v| serde_json::json!(["map", v])),
        ]
    }

    proptest! {
        /// The same value as by way of a tree, and no value where there is none.
        #[test]
        fn values_are_those_of_the_tree(v in value()) {
            let mut strings = Strings::default();
            for ty in types() {
                let column = ColumnSchema { name: "c".into(), ty: ty.clone(), ephemeral: false, mutable: true };
                let table = TableSchema { name: "t".into(), columns: vec![column], max_rows: None, is_root: true, indexes: vec![] };
                let text = serde_json::json!({"new": {"_version": ["uuid", "x"], "c": v, "d": [1, {}]}, "old": {}}).to_string();
                let tree = Datum::from_json_unsized(&ty, &v, &crate::value::no_names);
                let read = OfRow { table: &table, strings: &mut strings }.deserialize(&mut serde_json::Deserializer::from_str(&text));
                let read = read.unwrap();
                let columns = read.new.as_ref().unwrap();
                prop_assert!(columns.version);
                match tree {
                    Ok(d) => prop_assert_eq!(&columns.values, &vec![(0, d)]),
                    Err(_) => prop_assert!(read.error().is_some() && columns.values.is_empty()),
                }
            }
        }
    }

    #[test]
    fn rows_share_their_strings() {
        let mut strings = Strings::default();
        let (a, b) = (strings.get("next;"), strings.get("next;"));
        assert!(std::sync::Arc::ptr_eq(&a, &b));
    }
}
