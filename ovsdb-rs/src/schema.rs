//! Database, table and column schemas (RFC 7047 section 3.2).

use crate::value::no_names;
use crate::{Atom, AtomType, Datum, Error};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Whether a reference keeps its target alive (RFC 7047 section 3.2 `refType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefType {
    /// The target may not be deleted while referred to.
    Strong,
    /// The reference goes away with its target.
    Weak,
}

/// The type of an atom with its constraints.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseType {
    /// The atomic type.
    pub ty: AtomType,
    /// The only values allowed, sorted; none: all.
    pub enumeration: Option<Vec<Atom>>,
    /// Least and greatest integer allowed.
    pub integer: (Option<i64>, Option<i64>),
    /// Least and greatest real allowed.
    pub real: (Option<f64>, Option<f64>),
    /// Least and greatest length of a string in characters.
    pub length: (Option<u64>, Option<u64>),
    /// The table that a UUID refers to.
    pub reference: Option<(String, RefType)>,
}

impl BaseType {
    /// A type without constraints.
    pub const fn new(ty: AtomType) -> BaseType {
        BaseType {
            ty,
            enumeration: None,
            integer: (None, None),
            real: (None, None),
            length: (None, None),
            reference: None,
        }
    }

    /// An integer within these bounds, both inclusive.
    pub fn int_range(min: i64, max: i64) -> BaseType {
        BaseType { integer: (Some(min), Some(max)), ..BaseType::new(AtomType::Integer) }
    }

    /// A string out of these.
    pub fn one_of(values: &[&str]) -> BaseType {
        let mut e: Vec<Atom> = values.iter().map(|s| Atom::String((*s).into())).collect();
        e.sort();
        BaseType { enumeration: Some(e), ..BaseType::new(AtomType::String) }
    }

    /// A strong reference to a table.
    pub fn strong(table: &str) -> BaseType {
        BaseType { reference: Some((table.into(), RefType::Strong)), ..BaseType::new(AtomType::Uuid) }
    }

    /// A weak reference to a table.
    pub fn weak(table: &str) -> BaseType {
        BaseType { reference: Some((table.into(), RefType::Weak)), ..BaseType::new(AtomType::Uuid) }
    }

    fn from_json(v: &Value) -> Result<BaseType, Error> {
        let name_of = |v: &Value| -> Result<AtomType, Error> {
            v.as_str()
                .and_then(AtomType::from_name)
                .ok_or_else(|| Error::Syntax(format!("{v} is not a valid atomic-type")))
        };
        let Some(o) = v.as_object() else { return Ok(BaseType::new(name_of(v)?)) };
        let mut b = BaseType::new(name_of(o.get("type").unwrap_or(&Value::Null))?);
        if let Some(e) = o.get("enum") {
            let items = match e.as_array().map(Vec::as_slice) {
                Some([Value::String(t), Value::Array(items)]) if t == "set" => items.clone(),
                _ => vec![e.clone()],
            };
            let mut atoms = Vec::new();
            for i in &items {
                atoms.push(Atom::from_json(b.ty, i, &no_names)?);
            }
            atoms.sort();
            b.enumeration = Some(atoms);
        }
        b.integer = (o.get("minInteger").and_then(Value::as_i64), o.get("maxInteger").and_then(Value::as_i64));
        b.real = (o.get("minReal").and_then(Value::as_f64), o.get("maxReal").and_then(Value::as_f64));
        b.length = (o.get("minLength").and_then(Value::as_u64), o.get("maxLength").and_then(Value::as_u64));
        if let Some(t) = o.get("refTable").and_then(Value::as_str) {
            let ty = match o.get("refType").and_then(Value::as_str) {
                None | Some("strong") => RefType::Strong,
                Some("weak") => RefType::Weak,
                Some(other) => {
                    return Err(Error::Syntax(format!("refType must be \"strong\" or \"weak\", not \"{other}\"")));
                }
            };
            b.reference = Some((t.to_string(), ty));
        }
        Ok(b)
    }

    /// The JSON form: a bare name where there are no constraints.
    pub fn to_json(&self) -> Value {
        let mut o = Map::new();
        o.insert("type".into(), json!(self.ty.name()));
        if let Some(e) = &self.enumeration {
            o.insert("enum".into(), Datum::set(e.clone()).to_json());
        }
        let mut put = |k: &str, v: Option<Value>| {
            if let Some(v) = v {
                o.insert(k.into(), v);
            }
        };
        put("minInteger", self.integer.0.map(|x| json!(x)));
        put("maxInteger", self.integer.1.map(|x| json!(x)));
        put("minReal", self.real.0.map(|x| json!(x)));
        put("maxReal", self.real.1.map(|x| json!(x)));
        put("minLength", self.length.0.map(|x| json!(x)));
        put("maxLength", self.length.1.map(|x| json!(x)));
        if let Some((t, r)) = &self.reference {
            put("refTable", Some(json!(t)));
            put("refType", (*r == RefType::Weak).then(|| json!("weak")));
        }
        if o.len() == 1 { json!(self.ty.name()) } else { Value::Object(o) }
    }

    /// Checks one atom against the constraints.
    ///
    /// # Errors
    /// [`Error::Constraint`], saying which.
    pub fn check(&self, a: &Atom) -> Result<(), Error> {
        let bad = |text: String| Err(Error::Constraint(text));
        if let Some(e) = &self.enumeration
            && e.binary_search(a).is_err()
        {
            let list: Vec<String> = e.iter().map(Atom::to_plain).collect();
            return bad(format!("{} is not one of the allowed values ([{}])", a.to_plain(), list.join(", ")));
        }
        match a {
            Atom::Integer(i) => {
                let (min, max) = self.integer;
                match (min, max) {
                    (Some(lo), Some(hi)) if *i < lo || *i > hi => {
                        bad(format!("{i} is not in the valid range {lo} to {hi} (inclusive)"))
                    }
                    (Some(lo), _) if *i < lo => bad(format!("{i} is less than minimum allowed value {lo}")),
                    (_, Some(hi)) if *i > hi => bad(format!("{i} is greater than maximum allowed value {hi}")),
                    _ => Ok(()),
                }
            }
            Atom::Real(r) => {
                let r = r.0;
                match self.real {
                    (Some(lo), Some(hi)) if r < lo || r > hi => {
                        bad(format!("{r} is not in the valid range {lo} to {hi} (inclusive)"))
                    }
                    (Some(lo), _) if r < lo => bad(format!("{r} is less than minimum allowed value {lo}")),
                    (_, Some(hi)) if r > hi => bad(format!("{r} is greater than maximum allowed value {hi}")),
                    _ => Ok(()),
                }
            }
            Atom::String(s) => {
                if self.length == (None, None) {
                    return Ok(());
                }
                let n = s.chars().count() as u64;
                if let Some(lo) = self.length.0.filter(|lo| n < *lo) {
                    return bad(format!("\"{s}\" length {n} is less than minimum allowed length {lo}"));
                }
                if let Some(hi) = self.length.1.filter(|hi| n > *hi) {
                    return bad(format!("\"{s}\" length {n} is greater than maximum allowed length {hi}"));
                }
                Ok(())
            }
            Atom::Boolean(_) | Atom::Uuid(_) => Ok(()),
        }
    }
}

/// The type of a column: key and value types, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnType {
    /// The set's element or the map's key.
    pub key: BaseType,
    /// The map's value; none for a set.
    pub value: Option<BaseType>,
    /// The least number of elements: 0 or 1.
    pub min: u32,
    /// The greatest number of elements; `u32::MAX` is "unlimited".
    pub max: u32,
}

impl ColumnType {
    /// Exactly one.
    pub fn scalar(key: BaseType) -> ColumnType {
        ColumnType { key, value: None, min: 1, max: 1 }
    }

    /// None or one.
    pub fn optional(key: BaseType) -> ColumnType {
        ColumnType { key, value: None, min: 0, max: 1 }
    }

    /// Any number.
    pub fn set(key: BaseType) -> ColumnType {
        ColumnType { key, value: None, min: 0, max: u32::MAX }
    }

    /// A map of any size.
    pub fn map(key: BaseType, value: BaseType) -> ColumnType {
        ColumnType { key, value: Some(value), min: 0, max: u32::MAX }
    }

    /// This type with other bounds on the number of elements.
    pub fn sized(self, min: u32, max: u32) -> ColumnType {
        ColumnType { min, max, ..self }
    }

    /// Whether differences of it are symmetric differences (more than one element allowed).
    pub fn is_composite(&self) -> bool {
        self.max > 1
    }

    fn from_json(v: &Value) -> Result<ColumnType, Error> {
        let Some(o) = v.as_object() else { return Ok(ColumnType::scalar(BaseType::from_json(v)?)) };
        let key = BaseType::from_json(o.get("key").ok_or_else(|| Error::syntax("column type lacks \"key\""))?)?;
        let value = o.get("value").map(BaseType::from_json).transpose()?;
        let min = match o.get("min").map(Value::as_u64) {
            None => 1,
            Some(Some(n)) if n <= 1 => n as u32,
            Some(_) => return Err(Error::syntax("\"min\" must be 0 or 1")),
        };
        let max = match o.get("max") {
            None => 1,
            Some(Value::String(s)) if s == "unlimited" => u32::MAX,
            Some(n) => match n.as_u64() {
                Some(n) if n >= 1 && n >= u64::from(min) && n < u64::from(u32::MAX) => n as u32,
                _ => return Err(Error::syntax("\"max\" must be an integer of at least 1 or \"unlimited\"")),
            },
        };
        Ok(ColumnType { key, value, min, max })
    }

    /// The JSON form.
    pub fn to_json(&self) -> Value {
        if self.value.is_none() && self.min == 1 && self.max == 1 {
            let key = self.key.to_json();
            return if key.is_string() { key } else { json!({ "key": key }) };
        }
        let mut o = Map::new();
        o.insert("key".into(), self.key.to_json());
        if let Some(v) = &self.value {
            o.insert("value".into(), v.to_json());
        }
        if self.min != 1 {
            o.insert("min".into(), json!(self.min));
        }
        if self.max == u32::MAX {
            o.insert("max".into(), json!("unlimited"));
        } else if self.max != 1 {
            o.insert("max".into(), json!(self.max));
        }
        Value::Object(o)
    }

    /// The value of a row that does not give this column (RFC 7047 section 5.2.1).
    pub fn default_datum(&self) -> Datum {
        match (&self.value, self.min) {
            (Some(_), 0) => Datum::empty_map(),
            (Some(v), _) => Datum::map(vec![(self.key.ty.default_atom(), v.ty.default_atom())]),
            (None, 0) => Datum::empty_set(),
            (None, _) => Datum::Scalar(self.key.ty.default_atom()),
        }
    }

    /// Whether this is the value of a row that does not give the column.
    pub fn is_default(&self, d: &Datum) -> bool {
        match (&self.value, self.min) {
            (_, 0) => d.is_empty(),
            (None, _) => match d {
                Datum::Scalar(Atom::Integer(i)) => *i == 0,
                Datum::Scalar(Atom::Real(r)) => r.0 == 0.0,
                Datum::Scalar(Atom::Boolean(b)) => !*b,
                Datum::Scalar(Atom::String(s)) => s.is_empty(),
                Datum::Scalar(Atom::Uuid(u)) => u.is_nil(),
                _ => false,
            },
            (Some(_), _) => *d == self.default_datum(),
        }
    }

    /// Checks the number of elements.
    ///
    /// # Errors
    /// [`Error::Constraint`].
    pub fn check_size(&self, d: &Datum) -> Result<(), Error> {
        self.check_count(d.len())
    }

    /// As [`ColumnType::check_size`], of this many elements.
    pub(crate) fn check_count(&self, n: usize) -> Result<(), Error> {
        let n = n as u64;
        if n < u64::from(self.min) || n > u64::from(self.max) {
            let what = if self.value.is_some() { "map" } else { "set" };
            if (self.min, self.max) == (1, 1) {
                return Err(Error::Syntax(format!("{what} must have exactly one member but {n} are present")));
            }
            let max = if self.max == u32::MAX { "unlimited".to_string() } else { self.max.to_string() };
            return Err(Error::Syntax(format!("{what} must have {} to {max} members but {n} are present", self.min)));
        }
        Ok(())
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSchema {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: ColumnType,
    /// Not kept on disk.
    pub ephemeral: bool,
    /// May change after the insert.
    pub mutable: bool,
}

impl ColumnSchema {
    /// Whether the column may change after the insert. Weak references go away with their
    /// targets, so a column that holds some may always change (ovsdb-server(7) section 3.2).
    pub fn is_mutable(&self) -> bool {
        let weak = |b: &BaseType| matches!(b.reference, Some((_, RefType::Weak)));
        self.mutable || weak(&self.ty.key) || self.ty.value.as_ref().is_some_and(weak)
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSchema {
    /// Its name.
    pub name: String,
    /// Its columns, sorted by name; `_uuid` and `_version` are not among them.
    pub columns: Vec<ColumnSchema>,
    /// The most rows it may have.
    pub max_rows: Option<u64>,
    /// Whether rows live without a strong reference to them (`isRoot`).
    pub is_root: bool,
    /// Sets of columns that are unique over the table's rows.
    pub indexes: Vec<Vec<String>>,
}

impl TableSchema {
    /// The place of a column in [`TableSchema::columns`] and in a [`crate::Row`].
    pub fn column_index(&self, name: &str) -> Option<usize> {
        self.columns.binary_search_by(|c| c.name.as_str().cmp(name)).ok()
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&ColumnSchema> {
        self.columns.get(self.column_index(name)?)
    }

    fn from_json(name: &str, v: &Value) -> Result<TableSchema, Error> {
        let within = |e: Error| Error::Syntax(format!("table {name}: {e}"));
        let cols = v
            .get("columns")
            .and_then(Value::as_object)
            .ok_or_else(|| Error::Syntax(format!("table {name} lacks \"columns\"")))?;
        let mut columns = Vec::with_capacity(cols.len());
        for (cname, c) in cols {
            if cname.starts_with('_') {
                return Err(Error::Syntax(format!("table {name}: names beginning with \"_\" are reserved ({cname})")));
            }
            columns.push(ColumnSchema {
                name: cname.clone(),
                ty: ColumnType::from_json(c.get("type").unwrap_or(&Value::Null)).map_err(within)?,
                ephemeral: c.get("ephemeral").and_then(Value::as_bool).unwrap_or(false),
                mutable: c.get("mutable").and_then(Value::as_bool).unwrap_or(true),
            });
        }
        columns.sort_by(|a, b| a.name.cmp(&b.name));
        let mut indexes = Vec::new();
        for index in v.get("indexes").and_then(Value::as_array).into_iter().flatten() {
            let names: Option<Vec<String>> =
                index.as_array().and_then(|a| a.iter().map(|n| n.as_str().map(String::from)).collect());
            let names = names
                .ok_or_else(|| Error::Syntax(format!("table {name}: an index must be an array of column names")))?;
            if let Some(bad) = names.iter().find(|n| !columns.iter().any(|c| c.name == **n)) {
                return Err(Error::Syntax(format!("table {name}: index on unknown column {bad}")));
            }
            indexes.push(names);
        }
        Ok(TableSchema {
            name: name.to_string(),
            columns,
            max_rows: v.get("maxRows").and_then(Value::as_u64),
            is_root: v.get("isRoot").and_then(Value::as_bool).unwrap_or(false),
            indexes,
        })
    }

    fn to_json(&self) -> Value {
        let mut cols = Map::new();
        for c in &self.columns {
            let mut o = Map::new();
            o.insert("type".into(), c.ty.to_json());
            if c.ephemeral {
                o.insert("ephemeral".into(), json!(true));
            }
            if !c.mutable {
                o.insert("mutable".into(), json!(false));
            }
            cols.insert(c.name.clone(), Value::Object(o));
        }
        let mut o = Map::new();
        o.insert("columns".into(), Value::Object(cols));
        if let Some(n) = self.max_rows {
            o.insert("maxRows".into(), json!(n));
        }
        if self.is_root {
            o.insert("isRoot".into(), json!(true));
        }
        if !self.indexes.is_empty() {
            o.insert("indexes".into(), json!(self.indexes));
        }
        Value::Object(o)
    }
}

/// A database's schema.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DatabaseSchema {
    /// The database's name.
    pub name: String,
    /// Its version, `x.y.z`.
    pub version: String,
    /// The checksum that a schema file carries; informational.
    pub cksum: Option<String>,
    /// Its tables by name.
    pub tables: BTreeMap<String, TableSchema>,
}

impl DatabaseSchema {
    /// The first table, or column of a table, that another schema lacks or has with another type; none: rows of that schema hold
    /// all that rows of this one do.
    pub fn first_missing_from(&self, other: &DatabaseSchema) -> Option<String> {
        self.tables.values().find_map(|ours| {
            let Some(theirs) = other.tables.get(&ours.name) else { return Some(format!("table {}", ours.name)) };
            let differs = |c: &&ColumnSchema| theirs.column(&c.name).is_none_or(|t| t.ty != c.ty);
            ours.columns.iter().find(differs).map(|c| format!("column {}.{}", ours.name, c.name))
        })
    }

    /// Parses a schema.
    ///
    /// # Errors
    /// [`Error::Syntax`], naming the table.
    pub fn from_json(v: &Value) -> Result<DatabaseSchema, Error> {
        let text = |k: &str| v.get(k).and_then(Value::as_str).map(String::from);
        let mut tables = BTreeMap::new();
        let src = v.get("tables").and_then(Value::as_object).ok_or_else(|| Error::syntax("schema lacks \"tables\""))?;
        for (name, t) in src {
            tables.insert(name.clone(), TableSchema::from_json(name, t)?);
        }
        // Where no table says isRoot, all are roots (RFC 7047 section 3.2).
        if !tables.values().any(|t| t.is_root) {
            tables.values_mut().for_each(|t| t.is_root = true);
        }
        let schema = DatabaseSchema {
            name: text("name").ok_or_else(|| Error::syntax("schema lacks \"name\""))?,
            version: text("version").unwrap_or_default(),
            cksum: text("cksum"),
            tables,
        };
        schema.check_references()?;
        Ok(schema)
    }

    fn check_references(&self) -> Result<(), Error> {
        for t in self.tables.values() {
            for c in &t.columns {
                for base in [Some(&c.ty.key), c.ty.value.as_ref()].into_iter().flatten() {
                    if let Some((target, _)) = &base.reference
                        && !self.tables.contains_key(target)
                    {
                        return Err(Error::Syntax(format!(
                            "{} column {} refers to undefined table {target}",
                            t.name, c.name
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// The JSON form.
    pub fn to_json(&self) -> Value {
        let mut tables = Map::new();
        for (name, t) in &self.tables {
            tables.insert(name.clone(), t.to_json());
        }
        let mut o = Map::new();
        if let Some(c) = &self.cksum {
            o.insert("cksum".into(), json!(c));
        }
        o.insert("name".into(), json!(self.name));
        // Without a version there is none: an empty one is no version to clients.
        if !self.version.is_empty() {
            o.insert("version".into(), json!(self.version));
        }
        o.insert("tables".into(), Value::Object(tables));
        Value::Object(o)
    }

    /// The table of this name.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn table(&self, name: &str) -> Result<&TableSchema, Error> {
        self.tables.get(name).ok_or_else(|| Error::Unknown { kind: "table", name: name.to_string() })
    }
}
