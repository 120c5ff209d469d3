//! The words in which the tables of this crate state their columns' types.

pub use crate::table::{Map, Set};
pub use ovsdb_rs::{Atom, AtomType, BaseType, ColumnType, Real, Str, Uuid};

/// Any string.
pub fn string() -> BaseType {
    BaseType::new(AtomType::String)
}
/// Any integer.
pub fn integer() -> BaseType {
    BaseType::new(AtomType::Integer)
}
/// A boolean.
pub fn boolean() -> BaseType {
    BaseType::new(AtomType::Boolean)
}
/// Any real.
pub fn real() -> BaseType {
    BaseType::new(AtomType::Real)
}
/// Any UUID.
pub fn uuid() -> BaseType {
    BaseType::new(AtomType::Uuid)
}
/// An integer within bounds, both inclusive.
pub fn range(min: i64, max: i64) -> BaseType {
    BaseType::int_range(min, max)
}
/// An integer of at least this.
pub fn at_least(min: i64) -> BaseType {
    BaseType { integer: (Some(min), None), ..integer() }
}
/// A string of so many characters.
pub fn length(min: Option<u64>, max: Option<u64>) -> BaseType {
    BaseType { length: (min, max), ..string() }
}
/// One of these strings.
pub fn one_of(values: &[&str]) -> BaseType {
    BaseType::one_of(values)
}
/// One of these integers.
pub fn one_of_integers(values: &[i64]) -> BaseType {
    BaseType { enumeration: Some(values.iter().map(|i| Atom::Integer(*i)).collect()), ..integer() }
}
/// A reference that keeps its target alive.
pub fn strong(table: &str) -> BaseType {
    BaseType::strong(table)
}
/// A reference that goes away with its target.
pub fn weak(table: &str) -> BaseType {
    BaseType::weak(table)
}
/// Exactly one.
pub fn one(b: BaseType) -> ColumnType {
    ColumnType::scalar(b)
}
/// None or one.
pub fn opt(b: BaseType) -> ColumnType {
    ColumnType::optional(b)
}
/// Any number.
pub fn set(b: BaseType) -> ColumnType {
    ColumnType::set(b)
}
/// A map.
pub fn map(k: BaseType, v: BaseType) -> ColumnType {
    ColumnType::map(k, v)
}
