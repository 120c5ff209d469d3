//! Conditions (RFC 7047 section 5.1 `<condition>`; ovsdb-server(7) for booleans and optional numbers).

use super::{Column, OpError, RowView, parse};
use crate::value::NameResolver;
use crate::{Atom, AtomType, ColumnType, Datum, TableSchema, Uuid};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `>=`
    Ge,
    /// `>`
    Gt,
    /// The column contains all of the argument.
    Includes,
    /// The column contains none of the argument.
    Excludes,
}

impl Function {
    fn from_name(name: &str) -> Option<Function> {
        Some(match name {
            "<" => Function::Lt,
            "<=" => Function::Le,
            "==" => Function::Eq,
            "!=" => Function::Ne,
            ">=" => Function::Ge,
            ">" => Function::Gt,
            "includes" => Function::Includes,
            "excludes" => Function::Excludes,
            _ => return None,
        })
    }

    fn is_order(self) -> bool {
        matches!(self, Function::Lt | Function::Le | Function::Ge | Function::Gt)
    }
}

/// One element of a condition.
#[derive(Clone, Debug, PartialEq)]
pub enum Clause {
    /// `true` or `false`.
    Constant(bool),
    /// A comparison of a column.
    Test {
        /// The column.
        column: Column,
        /// The comparison.
        function: Function,
        /// The value that it is compared with.
        argument: Datum,
    },
}

impl Clause {
    /// Parses a clause.
    ///
    /// # Errors
    /// As ovsdb-server: syntax, unknown column, unknown function, constraint violation.
    pub fn parse(schema: &TableSchema, v: &Value, names: NameResolver<'_>) -> Result<Clause, OpError> {
        if let Value::Bool(b) = v {
            return Ok(Clause::Constant(*b));
        }
        let (name, function, argument) = match v.as_array().map(Vec::as_slice) {
            Some([Value::String(c), Value::String(f), a]) => (c, f, a),
            _ => return Err(OpError::syntax("Parse error in condition.").at(v)),
        };
        let column = parse::column(schema, name).ok_or_else(|| {
            OpError::new("unknown column", format!("No column {name} in table {}.", schema.name)).at(v)
        })?;
        let f = Function::from_name(function)
            .ok_or_else(|| OpError::new("unknown function", format!("No function named {function}.")))?;
        let ty = column.ty(schema);
        // Sizes of the argument, and the types that a function takes, as ovsdb-server(7) section 5.1 has them.
        let mut ty = ty.clone();
        if f.is_order() {
            let number = matches!(ty.key.ty, AtomType::Integer | AtomType::Real);
            if ty.value.is_some() || ty.max != 1 || !number {
                return Err(OpError::syntax(format!(
                    "Type mismatch: \"{function}\" operator may not be applied to column {name} of type {}.",
                    ty.english()
                ))
                .at(v));
            }
            ty.min = 1;
        } else if (ty.min, ty.max) != (1, 1) {
            match f {
                Function::Includes => ty.min = 0,
                Function::Excludes => (ty.min, ty.max) = (0, u32::MAX),
                _ => {}
            }
        }
        Ok(Clause::Test { column, function: f, argument: parse::datum(&ty, argument, names)? })
    }

    /// Whether a row satisfies the clause.
    pub fn matches(&self, row: RowView<'_>) -> bool {
        match self {
            Clause::Constant(b) => *b,
            Clause::Test { column, function, argument } => row.with(*column, |d| compare(d, *function, argument)),
        }
    }
}

fn compare(field: &Datum, function: Function, argument: &Datum) -> bool {
    let ordering = || Some(field.scalar()?.cmp(argument.scalar()?));
    match function {
        Function::Eq => field == argument,
        Function::Ne => field != argument,
        Function::Lt => ordering().is_some_and(|o| o.is_lt()),
        Function::Le => ordering().is_some_and(|o| o.is_le()),
        Function::Ge => ordering().is_some_and(|o| o.is_ge()),
        Function::Gt => ordering().is_some_and(|o| o.is_gt()),
        Function::Includes => match (field, argument) {
            (Datum::Map(f), Datum::Map(a)) => a.iter().all(|p| f.binary_search(p).is_ok()),
            _ => argument.atoms().iter().all(|a| field.atoms().binary_search(a).is_ok()),
        },
        Function::Excludes => match (field, argument) {
            (Datum::Map(f), Datum::Map(a)) => !a.iter().any(|p| f.binary_search(p).is_ok()),
            _ => !argument.atoms().iter().any(|a| field.atoms().binary_search(a).is_ok()),
        },
    }
}

/// The condition of an operation (`where`): a row satisfies it if it satisfies all clauses.
#[derive(Clone, Debug, Default)]
pub struct All(pub Vec<Clause>);

impl All {
    /// Parses a `where` member.
    ///
    /// # Errors
    /// The errors of [`Clause::parse`].
    pub fn parse(schema: &TableSchema, clauses: &[Value], names: NameResolver<'_>) -> Result<All, OpError> {
        clauses.iter().map(|c| Clause::parse(schema, c, names)).collect::<Result<_, _>>().map(All)
    }

    /// Whether a row satisfies all clauses.
    pub fn matches(&self, row: RowView<'_>) -> bool {
        self.0.iter().all(|c| c.matches(row))
    }

    /// The only row that can satisfy it, where a clause names one.
    pub fn only_row(&self) -> Option<Uuid> {
        self.0.iter().find_map(|c| match c {
            Clause::Test { column: Column::Uuid, function: Function::Eq | Function::Includes, argument } => {
                argument.scalar().and_then(Atom::as_uuid)
            }
            _ => None,
        })
    }
}

/// The condition of a monitor: any clause holds. Equalities are looked up by hash, as
/// a chassis asks for the rows of hundreds of datapaths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Any {
    always: bool,
    equal: HashMap<Column, HashSet<Datum>>,
    rest: Vec<Clause>,
}

impl Any {
    /// The condition that every row satisfies.
    pub fn always() -> Any {
        Any { always: true, ..Any::default() }
    }

    /// Parses a monitor's `where` member; without clauses every row satisfies it.
    ///
    /// # Errors
    /// The errors of [`Clause::parse`].
    pub fn parse(schema: &TableSchema, clauses: &[Value]) -> Result<Any, OpError> {
        if clauses.is_empty() {
            return Ok(Any::always());
        }
        let mut any = Any::default();
        for c in clauses {
            match Clause::parse(schema, c, &crate::value::no_names)? {
                Clause::Constant(b) => any.always |= b,
                Clause::Test { column, function: Function::Eq, argument } => {
                    any.equal.entry(column).or_default().insert(argument);
                }
                other => any.rest.push(other),
            }
        }
        Ok(any)
    }

    /// Whether every row satisfies it.
    pub fn is_always(&self) -> bool {
        self.always
    }

    /// Whether a row satisfies any clause.
    pub fn matches(&self, row: RowView<'_>) -> bool {
        self.always
            || self.equal.iter().any(|(c, values)| row.with(*c, |d| values.contains(d)))
            || self.rest.iter().any(|c| c.matches(row))
    }
}

impl ColumnType {
    /// The type in words, as ovsdb-server's errors have it.
    pub fn english(&self) -> String {
        if self.value.is_none() && (self.min, self.max) == (1, 1) {
            return self.key.ty.name().to_string();
        }
        let count = match (self.min, self.max) {
            (0, u32::MAX) => String::new(),
            (n, u32::MAX) => format!("{n} or more "),
            (0, m) => format!("up to {m} "),
            (n, m) => format!("{n} to {m} "),
        };
        match &self.value {
            Some(v) => format!("map of {count}({}, {}) pairs", self.key.ty.name(), v.ty.name()),
            None => format!("set of {count}{}s", self.key.ty.name()),
        }
    }
}
