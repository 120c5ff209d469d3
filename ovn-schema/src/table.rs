//! What every table has in common.

use ovsdb_rs::{Atom, Datum, Error, Real, Row, Str, TableSchema, Uuid};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A set column.
pub type Set<T> = BTreeSet<T>;
/// A map column.
pub type Map<K, V> = BTreeMap<K, V>;
/// A table's rows in memory.
pub type Rows<T> = FxHashMap<Uuid, Arc<T>>;

/// An atom as a Rust value.
pub trait AtomValue: Sized + Ord + Clone {
    /// The value, where the atom is of this type.
    fn from_atom(a: &Atom) -> Option<Self>;
    /// The atom.
    fn to_atom(&self) -> Atom;
}

macro_rules! atom_value {
    ($t:ty, $variant:ident) => {
        impl AtomValue for $t {
            fn from_atom(a: &Atom) -> Option<$t> {
                if let Atom::$variant(x) = a { Some(x.clone()) } else { None }
            }
            fn to_atom(&self) -> Atom {
                Atom::$variant(self.clone())
            }
        }
        impl ColumnValue for $t {
            fn from_datum(d: &Datum) -> Option<$t> {
                d.scalar().and_then(<$t>::from_atom)
            }
            fn to_datum(&self) -> Datum {
                Datum::Scalar(self.to_atom())
            }
        }
    };
}
atom_value!(i64, Integer);
atom_value!(Real, Real);
atom_value!(bool, Boolean);
atom_value!(Str, String);
atom_value!(Uuid, Uuid);

/// A column's value as a Rust value.
pub trait ColumnValue: Sized {
    /// The value, where the datum is of this shape.
    fn from_datum(d: &Datum) -> Option<Self>;
    /// The datum.
    fn to_datum(&self) -> Datum;
}

impl<T: AtomValue> ColumnValue for Option<T> {
    fn from_datum(d: &Datum) -> Option<Option<T>> {
        match d.atoms() {
            [] => Some(None),
            [a] => T::from_atom(a).map(Some),
            _ => None,
        }
    }
    fn to_datum(&self) -> Datum {
        self.as_ref().map_or_else(Datum::empty_set, |v| Datum::Scalar(v.to_atom()))
    }
}

impl<T: AtomValue> ColumnValue for BTreeSet<T> {
    fn from_datum(d: &Datum) -> Option<BTreeSet<T>> {
        d.atoms().iter().map(T::from_atom).collect()
    }
    fn to_datum(&self) -> Datum {
        Datum::set(self.iter().map(T::to_atom).collect())
    }
}

impl<K: AtomValue, V: AtomValue> ColumnValue for BTreeMap<K, V> {
    fn from_datum(d: &Datum) -> Option<BTreeMap<K, V>> {
        d.pairs().iter().map(|(k, v)| Some((K::from_atom(k)?, V::from_atom(v)?))).collect()
    }
    fn to_datum(&self) -> Datum {
        Datum::map(self.iter().map(|(k, v)| (k.to_atom(), v.to_atom())).collect())
    }
}

/// A row's type: one struct for one table.
pub trait Table: Sized + Default + Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// The table's name in its database.
    const NAME: &'static str;

    /// The table's schema, generated from the struct.
    fn schema() -> TableSchema;

    /// Reads a row that is laid out by `schema`, which may be of an older or newer version.
    ///
    /// # Errors
    /// [`Error::Syntax`] naming table and column where a value is of another shape.
    fn from_row(row: &Row, schema: &TableSchema) -> Result<Self, Error>;

    /// All columns with their values.
    fn columns(&self) -> Vec<(&'static str, Datum)>;
}

/// A table's place in its database.
pub trait InDatabase: Table {
    /// The database.
    type Database;
    /// Its rows there.
    fn rows(db: &Self::Database) -> &Rows<Self>;
    /// Its rows there, to change.
    fn rows_mut(db: &mut Self::Database) -> &mut Rows<Self>;
}

/// What became of one row: both absent does not occur.
#[derive(Clone, Debug, PartialEq)]
pub struct Change<T> {
    /// The row's name.
    pub uuid: Uuid,
    /// Before; none where it was inserted.
    pub old: Option<Arc<T>>,
    /// After; none where it was deleted.
    pub new: Option<Arc<T>>,
}

/// Reads one column of a row; absent columns read as the default. `next` is where the column behind the last one that was read is:
/// with our own schema that is the one that is looked for.
pub(crate) fn read<T: ColumnValue + Default>(
    (row, schema): (&Row, &TableSchema),
    table: &str,
    column: &str,
    next: &mut usize,
) -> Result<T, Error> {
    let here = schema.columns.get(*next).is_some_and(|c| c.name == column);
    let Some(at) = Some(*next).filter(|_| here).or_else(|| schema.column_index(column)) else {
        return Ok(T::default());
    };
    *next = at + 1;
    match row.0.get(at) {
        None => Ok(T::default()),
        Some(d) => T::from_datum(d)
            .ok_or_else(|| Error::Syntax(format!("{table} column {column}: unexpected {}", d.to_json()))),
    }
}

/// Puts a new state of a row into a table and tells what changed.
pub(crate) fn replace<T: Table>(
    rows: &mut Rows<T>,
    uuid: Uuid,
    row: Option<&Row>,
    schema: &TableSchema,
) -> Result<Change<T>, Error> {
    let new = row.map(|r| T::from_row(r, schema).map(Arc::new)).transpose()?;
    let old = match &new {
        Some(n) => rows.insert(uuid, n.clone()),
        None => rows.remove(&uuid),
    };
    Ok(Change { uuid, old, new })
}
