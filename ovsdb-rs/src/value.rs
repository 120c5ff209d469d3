//! Atoms and data (RFC 7047 section 5.1) with their JSON forms and differences.

use crate::{BaseType, ColumnType, Error, sorted};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};
use uuid::Uuid;

/// A shared immutable string; a clone increments a reference count.
pub type Str = Arc<str>;

/// The five atomic types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AtomType {
    /// 64-bit signed.
    Integer,
    /// IEEE 754 double.
    Real,
    /// True or false.
    Boolean,
    /// Unicode text.
    String,
    /// The UUID of a row.
    Uuid,
}

impl AtomType {
    /// The name in a schema.
    pub fn name(self) -> &'static str {
        match self {
            AtomType::Integer => "integer",
            AtomType::Real => "real",
            AtomType::Boolean => "boolean",
            AtomType::String => "string",
            AtomType::Uuid => "uuid",
        }
    }

    /// The type of this name.
    pub fn from_name(name: &str) -> Option<AtomType> {
        Some(match name {
            "integer" => AtomType::Integer,
            "real" => AtomType::Real,
            "boolean" => AtomType::Boolean,
            "string" => AtomType::String,
            "uuid" => AtomType::Uuid,
            _ => return None,
        })
    }

    /// The default value: 0, 0.0, false, "" or the nil UUID.
    pub fn default_atom(self) -> Atom {
        match self {
            AtomType::Integer => Atom::Integer(0),
            AtomType::Real => Atom::Real(Real(0.0)),
            AtomType::Boolean => Atom::Boolean(false),
            AtomType::String => Atom::String(Str::from("")),
            AtomType::Uuid => Atom::Uuid(Uuid::nil()),
        }
    }
}

/// A real with a total order, so that it can be a key. The zeros are one value, as in ovsdb-server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Real) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Real {}
impl PartialOrd for Real {
    fn partial_cmp(&self, other: &Real) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Real {
    fn cmp(&self, other: &Real) -> Ordering {
        // Adding 0 takes the sign of a zero away and changes nothing else.
        (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
    }
}
impl std::hash::Hash for Real {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.0 + 0.0).to_bits().hash(state);
    }
}

/// One atomic value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    /// An integer.
    Integer(i64),
    /// A real.
    Real(Real),
    /// A boolean.
    Boolean(bool),
    /// A string.
    String(Str),
    /// A UUID.
    Uuid(Uuid),
}

/// Turns a `named-uuid` into the UUID of the row that the transaction inserts under that name.
pub type NameResolver<'a> = &'a dyn Fn(&str) -> Option<Uuid>;

/// Refuses every `named-uuid`: for JSON outside transactions.
pub fn no_names(_: &str) -> Option<Uuid> {
    None
}

impl Atom {
    /// This atom's type.
    pub fn ty(&self) -> AtomType {
        match self {
            Atom::Integer(_) => AtomType::Integer,
            Atom::Real(_) => AtomType::Real,
            Atom::Boolean(_) => AtomType::Boolean,
            Atom::String(_) => AtomType::String,
            Atom::Uuid(_) => AtomType::Uuid,
        }
    }

    /// Parses an atom of a type; `names` resolves `["named-uuid", NAME]`.
    ///
    /// # Errors
    /// [`Error::Syntax`] where the JSON is of another type.
    pub fn from_json(ty: AtomType, v: &Value, names: NameResolver<'_>) -> Result<Atom, Error> {
        let wrong = || {
            Error::Syntax(match ty {
                AtomType::Uuid => "expected [\"uuid\", <string>]".to_string(),
                _ => format!("expected {}", ty.name()),
            })
        };
        Ok(match (ty, v) {
            (AtomType::Integer, Value::Number(n)) => {
                if let Some(i) = n.as_i64() {
                    Atom::Integer(i)
                } else {
                    // An integral real such as 1e3 counts as an integer, as in ovsdb-server.
                    let f = n.as_f64().ok_or_else(wrong)?;
                    if f.fract() == 0.0 && f.abs() < 9.2e18 { Atom::Integer(f as i64) } else { return Err(wrong()) }
                }
            }
            (AtomType::Real, Value::Number(n)) => Atom::Real(Real(n.as_f64().ok_or_else(wrong)?)),
            (AtomType::Boolean, Value::Bool(b)) => Atom::Boolean(*b),
            (AtomType::String, Value::String(s)) => Atom::String(Str::from(s.as_str())),
            (AtomType::Uuid, Value::Array(a)) => Atom::Uuid(uuid_from_json(a, names)?),
            _ => return Err(wrong()),
        })
    }

    /// The JSON form (RFC 7047 section 5.1 `<atom>`).
    pub fn to_json(&self) -> Value {
        match self {
            Atom::Integer(i) => json!(i),
            // An integral real is written as an integer, as ovsdb-server does.
            Atom::Real(r) if r.0.fract() == 0.0 && r.0.abs() < 9e15 => json!(r.0 as i64),
            Atom::Real(r) => json!(r.0),
            Atom::Boolean(b) => json!(b),
            Atom::String(s) => Value::String(s.to_string()),
            Atom::Uuid(u) => json!(["uuid", u.to_string()]),
        }
    }

    /// As the tools print it: strings that look like words without quotes, UUIDs without their tag.
    pub fn to_plain(&self) -> String {
        match self {
            Atom::String(s) if is_word(s) => s.to_string(),
            Atom::Uuid(u) => u.to_string(),
            other => other.to_json().to_string(),
        }
    }

    /// The integer, if it is one.
    pub fn as_integer(&self) -> Option<i64> {
        if let Atom::Integer(i) = self { Some(*i) } else { None }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Atom::String(s) = self { Some(s) } else { None }
    }

    /// The UUID, if it is one.
    pub fn as_uuid(&self) -> Option<Uuid> {
        if let Atom::Uuid(u) = self { Some(*u) } else { None }
    }
}

/// Whether a string can be written without quotes.
fn is_word(s: &str) -> bool {
    let mut bytes = s.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        && s != "true"
        && s != "false"
        && Uuid::try_parse(s).is_err()
}

fn uuid_from_json(a: &[Value], names: NameResolver<'_>) -> Result<Uuid, Error> {
    match a {
        [Value::String(tag), Value::String(s)] if tag == "uuid" => {
            Uuid::try_parse(s).map_err(|_| Error::Syntax(format!("\"{s}\" is not a valid UUID")))
        }
        [Value::String(tag), Value::String(s)] if tag == "named-uuid" => {
            names(s).ok_or_else(|| Error::Syntax(format!("named-uuid {s} is not declared in this transaction")))
        }
        _ => Err(Error::syntax("expected [\"uuid\", <string>]")),
    }
}

/// The value of a column: a set or a map of atoms, kept sorted and without duplicates.
/// A set of exactly one atom is always [`Datum::Scalar`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Datum {
    /// A set of one.
    Scalar(Atom),
    /// A set of none or several.
    Set(Arc<[Atom]>),
    /// A map.
    Map(Arc<[(Atom, Atom)]>),
}

impl Datum {
    /// The empty set.
    pub fn empty_set() -> Datum {
        static EMPTY: LazyLock<Arc<[Atom]>> = LazyLock::new(|| Arc::from([]));
        Datum::Set(EMPTY.clone())
    }

    /// The empty map.
    pub fn empty_map() -> Datum {
        static EMPTY: LazyLock<Arc<[(Atom, Atom)]>> = LazyLock::new(|| Arc::from([]));
        Datum::Map(EMPTY.clone())
    }

    /// A set of these atoms; duplicates count once.
    pub fn set(mut atoms: Vec<Atom>) -> Datum {
        atoms.sort_unstable();
        atoms.dedup();
        if atoms.len() == 1
            && let Some(a) = atoms.pop()
        {
            return Datum::Scalar(a);
        }
        if atoms.is_empty() { Datum::empty_set() } else { Datum::Set(atoms.into()) }
    }

    /// A map of these pairs; of two with one key the later stands.
    pub fn map(mut pairs: Vec<(Atom, Atom)>) -> Datum {
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.reverse();
        pairs.dedup_by(|a, b| a.0 == b.0);
        pairs.reverse();
        if pairs.is_empty() { Datum::empty_map() } else { Datum::Map(pairs.into()) }
    }

    /// The atoms of a set (none where it is a map).
    pub fn atoms(&self) -> &[Atom] {
        match self {
            Datum::Scalar(a) => std::slice::from_ref(a),
            Datum::Set(s) => s,
            Datum::Map(_) => &[],
        }
    }

    /// The pairs of a map (none where it is a set).
    pub fn pairs(&self) -> &[(Atom, Atom)] {
        if let Datum::Map(m) = self { m } else { &[] }
    }

    /// The number of atoms or pairs.
    pub fn len(&self) -> usize {
        match self {
            Datum::Scalar(_) => 1,
            Datum::Set(s) => s.len(),
            Datum::Map(m) => m.len(),
        }
    }

    /// Whether it has no atoms and no pairs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one atom, if it is a set of one.
    pub fn scalar(&self) -> Option<&Atom> {
        if let Datum::Scalar(a) = self { Some(a) } else { None }
    }

    /// A map's value for a string key.
    pub fn get_str(&self, key: &str) -> Option<&Atom> {
        let m = self.pairs();
        let i = m.binary_search_by(|(k, _)| k.as_str().unwrap_or_default().cmp(key)).ok()?;
        Some(&m[i].1)
    }

    /// Parses the JSON form for a column type and checks type and constraints.
    ///
    /// # Errors
    /// [`Error::Syntax`] or [`Error::Constraint`].
    pub fn from_json(ty: &ColumnType, v: &Value, names: NameResolver<'_>) -> Result<Datum, Error> {
        if let Some(items) = tagged(v, if ty.value.is_some() { "map" } else { "set" }) {
            ty.check_count(items.len())?;
        }
        Datum::from_json_unsized(ty, v, names)
    }

    /// As [`Datum::from_json`], without the limits on the number of elements (mutations, conditions, differences).
    ///
    /// # Errors
    /// [`Error::Syntax`] or [`Error::Constraint`].
    pub fn from_json_unsized(ty: &ColumnType, v: &Value, names: NameResolver<'_>) -> Result<Datum, Error> {
        match &ty.value {
            Some(value) => {
                let Some(items) = tagged(v, "map") else {
                    return Err(Error::syntax("expected [\"map\", <array>]"));
                };
                let mut pairs = Vec::with_capacity(items.len());
                for item in items {
                    let Some([k, val]) = item.as_array().map(Vec::as_slice) else {
                        return Err(Error::syntax("expected 2-element array"));
                    };
                    pairs.push((checked(&ty.key, k, names)?, checked(value, val, names)?));
                }
                Datum::distinct_map(pairs)
            }
            None => match tagged(v, "set") {
                Some(items) => {
                    let mut atoms = Vec::with_capacity(items.len());
                    for item in items {
                        atoms.push(checked(&ty.key, item, names)?);
                    }
                    Datum::distinct_set(atoms)
                }
                None => Ok(Datum::Scalar(checked(&ty.key, v, names)?)),
            },
        }
    }

    /// A set of these atoms, which must be distinct; sorts them.
    pub(crate) fn distinct_set(atoms: Vec<Atom>) -> Result<Datum, Error> {
        let n = atoms.len();
        let d = Datum::set(atoms);
        if d.len() == n { Ok(d) } else { Err(Error::Duplicate("set contains duplicate")) }
    }

    /// A map of these pairs, whose keys must be distinct; sorts them.
    pub(crate) fn distinct_map(pairs: Vec<(Atom, Atom)>) -> Result<Datum, Error> {
        let n = pairs.len();
        let d = Datum::map(pairs);
        if d.len() == n { Ok(d) } else { Err(Error::Duplicate("map contains duplicate key")) }
    }

    /// The JSON form (RFC 7047 section 5.1 `<value>`): a set of one is written as its atom.
    pub fn to_json(&self) -> Value {
        match self {
            Datum::Scalar(a) => a.to_json(),
            Datum::Set(s) => json!(["set", s.iter().map(Atom::to_json).collect::<Vec<_>>()]),
            Datum::Map(m) => {
                json!(["map", m.iter().map(|(k, v)| Value::Array(vec![k.to_json(), v.to_json()])).collect::<Vec<_>>()])
            }
        }
    }

    /// The difference that turns `self` into `new`, as `update2` and the file format carry it:
    /// for a column of at most one element the new value, else the symmetric difference.
    pub fn diff(&self, new: &Datum, ty: &ColumnType) -> Datum {
        if !ty.is_composite() {
            return new.clone();
        }
        match (self, new) {
            (Datum::Map(old), Datum::Map(new)) => {
                let (gone, mut out) = sorted::exclusive(old, new);
                let changed = |p: &(Atom, Atom)| out.binary_search_by(|q| q.0.cmp(&p.0)).is_ok();
                let gone: Vec<(Atom, Atom)> = gone.into_iter().filter(|p| !changed(p)).collect();
                out.extend(gone);
                Datum::map(out)
            }
            _ => {
                let (mut out, added) = sorted::exclusive(self.atoms(), new.atoms());
                out.extend(added);
                Datum::set(out)
            }
        }
    }

    /// What a set or map has to lose, and what it has to get then, to become `new`: elements, and of a map pairs, one whose value
    /// changes on both sides.
    pub fn moved(&self, new: &Datum) -> (Datum, Datum) {
        match (self, new) {
            (Datum::Map(old), Datum::Map(new)) => {
                let (gone, added) = sorted::exclusive(old, new);
                (Datum::map(gone), Datum::map(added))
            }
            _ => {
                let (gone, added) = sorted::exclusive(self.atoms(), new.atoms());
                (Datum::set(gone), Datum::set(added))
            }
        }
    }

    /// The set that has all of another one's elements too; of a map, the pairs whose keys it lacks.
    pub(crate) fn union(&self, added: &Datum) -> Datum {
        match (self, added) {
            (Datum::Map(old), Datum::Map(added)) => {
                Datum::sorted_map(sorted::merge(old, added, |a, b| a.0.cmp(&b.0), |a, _| Some(a.clone())))
            }
            _ => Datum::sorted_set(sorted::merge(self.atoms(), added.atoms(), Ord::cmp, |a, _| Some(a.clone()))),
        }
    }

    /// A set of atoms that are sorted and distinct.
    pub(crate) fn sorted_set(atoms: Vec<Atom>) -> Datum {
        match atoms[..] {
            [] => Datum::empty_set(),
            [ref only] => Datum::Scalar(only.clone()),
            _ => Datum::Set(atoms.into()),
        }
    }

    /// A map of pairs that are sorted by distinct keys.
    pub(crate) fn sorted_map(pairs: Vec<(Atom, Atom)>) -> Datum {
        if pairs.is_empty() { Datum::empty_map() } else { Datum::Map(pairs.into()) }
    }

    /// Applies a difference made by [`Datum::diff`].
    pub fn apply_diff(&self, diff: &Datum, ty: &ColumnType) -> Datum {
        if !ty.is_composite() {
            return diff.clone();
        }
        if ty.value.is_some() {
            let both = |old: &(Atom, Atom), d: &(Atom, Atom)| (old.1 != d.1).then(|| d.clone());
            Datum::sorted_map(sorted::merge(self.pairs(), diff.pairs(), |a, b| a.0.cmp(&b.0), both))
        } else {
            Datum::sorted_set(sorted::merge(self.atoms(), diff.atoms(), Ord::cmp, |_, _| None))
        }
    }
}

fn checked(base: &BaseType, v: &Value, names: NameResolver<'_>) -> Result<Atom, Error> {
    let a = Atom::from_json(base.ty, v, names)?;
    base.check(&a)?;
    Ok(a)
}

fn tagged<'a>(v: &'a Value, tag: &str) -> Option<&'a [Value]> {
    match v.as_array().map(Vec::as_slice) {
        Some([Value::String(t), Value::Array(items)]) if t == tag => Some(items),
        _ => None,
    }
}
