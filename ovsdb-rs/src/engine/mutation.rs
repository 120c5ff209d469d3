//! Mutations (RFC 7047 section 5.1 `<mutation>`).

use super::{Column, OpError, parse};
use crate::value::NameResolver;
use crate::{Atom, AtomType, ColumnType, Datum, Real, TableSchema, sorted};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

impl Arithmetic {
    fn name(self) -> &'static str {
        match self {
            Arithmetic::Add => "+=",
            Arithmetic::Subtract => "-=",
            Arithmetic::Multiply => "*=",
            Arithmetic::Divide => "/=",
            Arithmetic::Modulo => "%=",
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    Arithmetic(Arithmetic, Atom),
    Insert(Datum),
    Delete(Datum),
}

/// A parsed mutation of a data column.
#[derive(Clone, Debug)]
pub(crate) struct Mutation {
    column: usize,
    action: Action,
}

impl Mutation {
    pub(crate) fn parse(schema: &TableSchema, v: &Value, names: NameResolver<'_>) -> Result<Mutation, OpError> {
        let (name, mutator, argument) = match v.as_array().map(Vec::as_slice) {
            Some([Value::String(c), Value::String(m), a]) => (c, m, a),
            _ => return Err(OpError::syntax("Parse error in mutation.").at(v)),
        };
        let column = parse::column(schema, name).ok_or_else(|| {
            OpError::new("unknown column", format!("No column {name} in table {}.", schema.name)).at(v)
        })?;
        let column = match column {
            Column::Data(i) if schema.columns.get(i).is_some_and(|c| c.is_mutable()) => i,
            _ => {
                let text = format!("Cannot mutate immutable column {name} in table {}.", schema.name);
                return Err(OpError::constraint(text).at(v));
            }
        };
        let ty = Column::Data(column).ty(schema);
        let wrong_type = || {
            let text = format!(
                "Type mismatch: \"{mutator}\" operator may not be applied to column {name} of type {}.",
                ty.english()
            );
            OpError::syntax(text).at(v)
        };
        let is_scalar = ty.value.is_none() && (ty.min, ty.max) == (1, 1);
        let action = match mutator.as_str() {
            "insert" | "delete" if is_scalar => return Err(wrong_type()),
            // No more than the column may hold, but for the least number of elements, as in ovsdb-server.
            "insert" => Action::Insert(parse::datum(&ty.clone().sized(0, ty.max), argument, names)?),
            "delete" => Action::Delete(deleted(ty, argument, names)?),
            _ => {
                let op = [
                    Arithmetic::Add,
                    Arithmetic::Subtract,
                    Arithmetic::Multiply,
                    Arithmetic::Divide,
                    Arithmetic::Modulo,
                ]
                .into_iter()
                .find(|a| a.name() == mutator)
                .ok_or_else(|| OpError::new("unknown mutator", format!("No mutator named {mutator}.")))?;
                let fits = ty.value.is_none()
                    && (ty.key.ty == AtomType::Integer || (ty.key.ty == AtomType::Real && op != Arithmetic::Modulo));
                if !fits {
                    return Err(wrong_type());
                }
                // The argument may lie outside the column's own range (RFC 7047 section 5.1).
                let scalar = ColumnType::scalar(crate::BaseType::new(ty.key.ty));
                match parse::datum(&scalar, argument, names)? {
                    Datum::Scalar(a) => Action::Arithmetic(op, a),
                    _ => return Err(wrong_type()),
                }
            }
        };
        Ok(Mutation { column, action })
    }

    pub(crate) fn column(&self) -> usize {
        self.column
    }

    /// The column's value after the mutation.
    pub(crate) fn apply(&self, ty: &ColumnType, old: &Datum) -> Result<Datum, OpError> {
        let new = match &self.action {
            Action::Arithmetic(op, argument) => {
                // A result out of range goes before one that the column does not allow, as in ovsdb-server.
                let atoms = old.atoms().iter().map(|a| calculate(*op, a, argument)).collect::<Result<Vec<_>, _>>()?;
                for a in &atoms {
                    ty.key.check(a).map_err(|e| OpError::of_value(e, &Value::Null))?;
                }
                let n = atoms.len();
                let new = Datum::set(atoms);
                if new.len() != n {
                    let text = format!("Result of \"{}\" operation contains duplicates.", op.name());
                    return Err(OpError::constraint(text));
                }
                new
            }
            Action::Insert(d) => old.union(d),
            Action::Delete(d) => difference(old, d),
        };
        let n = new.len() as u64;
        if n < u64::from(ty.min) || n > u64::from(ty.max) {
            return Err(OpError::constraint(format!("Attempted to store {n} elements in {}.", ty.english())));
        }
        Ok(new)
    }
}

/// The argument of `delete`: for a map, pairs or bare keys; what is neither is told as if it were keys, as in
/// ovsdb-server.
fn deleted(ty: &ColumnType, v: &Value, names: NameResolver<'_>) -> Result<Datum, OpError> {
    let sized = ty.clone().sized(0, u32::MAX);
    let parsed = parse::datum(&sized, v, names);
    if ty.value.is_none() || parsed.is_ok() {
        return parsed;
    }
    parse::datum(&ColumnType { value: None, ..sized }, v, names)
}

fn difference(old: &Datum, removed: &Datum) -> Datum {
    match (old, removed) {
        (Datum::Map(o), Datum::Map(r)) => Datum::sorted_map(sorted::minus(o, r)),
        (Datum::Map(o), keys) => {
            let keys = keys.atoms();
            Datum::sorted_map(o.iter().filter(|p| keys.binary_search(&p.0).is_err()).cloned().collect())
        }
        _ => Datum::sorted_set(sorted::minus(old.atoms(), removed.atoms())),
    }
}

fn calculate(op: Arithmetic, a: &Atom, b: &Atom) -> Result<Atom, OpError> {
    let zero = || OpError::new("domain error", "Division by zero.");
    let range = || OpError::new("range error", format!("Result of \"{}\" operation is out of range.", op.name()));
    match (a, b) {
        (Atom::Integer(a), Atom::Integer(b)) => {
            if *b == 0 && matches!(op, Arithmetic::Divide | Arithmetic::Modulo) {
                return Err(zero());
            }
            let r = match op {
                Arithmetic::Add => a.checked_add(*b),
                Arithmetic::Subtract => a.checked_sub(*b),
                Arithmetic::Multiply => a.checked_mul(*b),
                Arithmetic::Divide => a.checked_div(*b),
                Arithmetic::Modulo => a.checked_rem(*b),
            };
            r.map(Atom::Integer).ok_or_else(range)
        }
        (Atom::Real(a), Atom::Real(b)) => {
            let (a, b) = (a.0, b.0);
            let r = match op {
                Arithmetic::Add => a + b,
                Arithmetic::Subtract => a - b,
                Arithmetic::Multiply => a * b,
                Arithmetic::Divide if b == 0.0 => return Err(zero()),
                Arithmetic::Divide => a / b,
                Arithmetic::Modulo => return Err(range()),
            };
            if r.is_finite() { Ok(Atom::Real(Real(r))) } else { Err(range()) }
        }
        _ => Err(range()),
    }
}
