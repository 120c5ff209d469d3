//! Evaluation of match expressions for a chassis.

use crate::Error;
use crate::constant::{Format, Integer};
use crate::expr::{Comparison, Constant, Expr, Operand, Relation, parse};
use crate::field::ones;
use crate::normal::{Boolean, Compare};
use crate::symbol::Kind;
use rustc_hash::FxHashMap;
use std::cell::RefCell;

/// What a chassis knows that expressions refer to.
pub trait Environment {
    /// The number of a logical port or multicast group in the flow's datapath.
    fn port(&self, name: &str) -> Option<u32>;
    /// Whether a logical port resides on this chassis.
    fn is_chassis_resident(&self, port: &str) -> bool;
    /// The constants of an address set, but for members that are none.
    fn address_set(&self, name: &str) -> Option<Vec<Integer>>;
    /// The numbers of those logical ports of a port group that are in the flow's datapath.
    fn port_group(&self, name: &str) -> Option<Vec<u32>>;
}

impl Expr {
    /// What the expression comes to on a chassis: comparisons of packet fields only.
    ///
    /// # Errors
    /// An unknown address set or port group, or a template variable without a value.
    pub fn evaluate(&self, env: &dyn Environment) -> Result<Boolean, Error> {
        self.eval(env, false)
    }

    fn eval(&self, env: &dyn Environment, negate: bool) -> Result<Boolean, Error> {
        let list = |l: &[Expr]| l.iter().map(|e| e.eval(env, negate)).collect::<Result<Vec<_>, _>>();
        Ok(match self {
            Expr::Literal(b) => Boolean::literal(*b != negate),
            Expr::Not(e) => e.eval(env, !negate)?,
            Expr::Parentheses(e) => e.eval(env, negate)?,
            Expr::And(l) if negate => Boolean::Or(list(l)?),
            Expr::Or(l) if negate => Boolean::And(list(l)?),
            Expr::And(l) => Boolean::And(list(l)?),
            Expr::Or(l) => Boolean::Or(list(l)?),
            Expr::Resident(port) => Boolean::literal(env.is_chassis_resident(port) != negate),
            Expr::Template(_) => return Err(unexpanded()),
            Expr::Field(o) => match o.symbol.kind {
                Kind::Predicate(text) => known(text, negate)?,
                _ => {
                    let zero = Integer::plain(0, Format::Decimal);
                    let r = if negate { Relation::Eq } else { Relation::Ne };
                    implied(o, one(o, r, &zero))?
                }
            },
            Expr::Compare(c) => compare(c, env, negate)?,
            Expr::Range(r) => {
                let both = vec![compare(&r.0, env, negate)?, compare(&r.1, env, negate)?];
                if negate { Boolean::Or(both) } else { Boolean::And(both) }
            }
        })
    }
}

/// An environment in which no names are known.
pub struct NoNames;

impl Environment for NoNames {
    fn port(&self, _: &str) -> Option<u32> {
        None
    }
    fn is_chassis_resident(&self, _: &str) -> bool {
        false
    }
    fn address_set(&self, _: &str) -> Option<Vec<Integer>> {
        None
    }
    fn port_group(&self, _: &str) -> Option<Vec<u32>> {
        None
    }
}

thread_local! {
    /// What predicates and prerequisites come to, or their negations: there are some dozens, in nearly each flow a few.
    static KNOWN: RefCell<FxHashMap<(&'static str, bool), Boolean>> = RefCell::default();
}

/// What a predicate or a prerequisite comes to. None of these names a port, a set or a group.
///
/// # Errors
/// Where the text is no expression.
pub fn prerequisite(text: &'static str) -> Result<Boolean, Error> {
    known(text, false)
}

pub(crate) fn known(text: &'static str, negate: bool) -> Result<Boolean, Error> {
    if let Some(b) = KNOWN.with_borrow(|k| k.get(&(text, negate)).cloned()) {
        return Ok(b);
    }
    let b = parse(text)?.eval(&NoNames, negate)?.known();
    KNOWN.with_borrow_mut(|k| k.insert((text, negate), b.clone()));
    Ok(b)
}

pub(crate) fn no_set(name: &str) -> Error {
    Error::new(0, format!("Syntax error at `${name}' expecting address set name."))
}

fn unexpanded() -> Error {
    Error::new(0, "Unexpanded template.")
}

/// A comparison together with what its field implies.
fn implied(o: &Operand, e: Boolean) -> Result<Boolean, Error> {
    if o.symbol.prerequisite.is_empty() {
        return Ok(e);
    }
    Ok(Boolean::And(vec![known(o.symbol.prerequisite, false)?, e]))
}

fn compare(c: &Comparison, env: &dyn Environment, negate: bool) -> Result<Boolean, Error> {
    let o = &c.operand;
    let r = if negate { c.relation.negated() } else { c.relation };
    let mut out = Vec::with_capacity(c.constants.list.len());
    for k in &c.constants.list {
        match k {
            Constant::Integer(i) => match o.symbol.kind {
                Kind::Predicate(text) => {
                    let positive = (i.value & 1 != 0) == (r == Relation::Eq);
                    out.push(known(text, !positive)?);
                }
                _ => out.push(one(o, r, i)),
            },
            Constant::AddressSet(name) => {
                let members = env.address_set(name).ok_or_else(|| no_set(name))?;
                // A member that is no constant of the field's kind says nothing about the others.
                let fits = |i: &Integer| i.width() <= u32::from(o.symbol.width);
                out.extend(members.iter().filter(|i| fits(i)).map(|i| one(o, r, i)));
            }
            Constant::String(name) => {
                // The empty name and "none" stand for no port.
                let number = if name.is_empty() || name == "none" { Some(0) } else { env.port(name) };
                out.push(number.map_or(Boolean::literal(r == Relation::Ne), |n| port(o, r, n)));
            }
            Constant::PortGroup(name) => {
                let members = env
                    .port_group(name)
                    .ok_or_else(|| Error::new(0, format!("Syntax error at `@{name}' expecting port group name.")))?;
                out.extend(members.into_iter().map(|n| port(o, r, n)));
            }
            Constant::Template(_) => return Err(unexpanded()),
        }
    }
    let of_set = c.constants.list.iter().any(|k| matches!(k, Constant::AddressSet(_)));
    let joined = match r {
        _ if out.len() == 1 && !of_set => out.remove(0),
        Relation::Ne => Boolean::And(out),
        _ if of_set => Boolean::Any(out),
        _ => Boolean::Or(out),
    };
    implied(o, joined)
}

fn port(o: &Operand, r: Relation, n: u32) -> Boolean {
    let Some((field, _)) = o.field() else { return Boolean::literal(false) };
    differing(r, u128::from(n), ones(field.width()), &|value, mask| Boolean::Compare(Compare { field, value, mask }))
}

/// Equality is one comparison, inequality one for each bit: the value differs in that bit, and is the same above it. So the
/// comparisons exclude each other, and of two values' at most as many agree as there are bits in both.
fn differing(r: Relation, v: u128, mask: u128, cmp: &dyn Fn(u128, u128) -> Boolean) -> Boolean {
    if r == Relation::Eq {
        return cmp(v, mask);
    }
    if mask.is_power_of_two() {
        return cmp(v ^ mask, mask);
    }
    // What is left of the mask from each of its bits on.
    let above =
        std::iter::successors(Some(mask), |above| Some(above & above.wrapping_sub(1))).take_while(|above| *above != 0);
    let lowest = |above: u128| above & above.wrapping_neg();
    Boolean::Or(above.map(|above| cmp((v ^ lowest(above)) & above, above)).collect())
}

/// One comparison of an integer field.
fn one(o: &Operand, r: Relation, i: &Integer) -> Boolean {
    let Some((field, offset)) = o.field() else { return Boolean::literal(false) };
    let (full, (v, mask)) = (ones(o.width), i.masked(o.width));
    let cmp =
        |value: u128, mask: u128| Boolean::Compare(Compare { field, value: value << offset, mask: mask << offset });
    match r {
        Relation::Eq | Relation::Ne => differing(r, v, mask, &cmp),
        // Whatever the field holds.
        Relation::Le if v == full => Boolean::literal(true),
        Relation::Ge if v == 0 => Boolean::literal(true),
        Relation::Lt | Relation::Le | Relation::Gt | Relation::Ge => Boolean::Or(ordered(r, v, o.width, &cmp)),
    }
}

/// `field < v` and its kin as tests of prefixes: one for each bit in which a smaller (greater) number can first differ.
fn ordered(r: Relation, v: u128, width: u8, cmp: &dyn Fn(u128, u128) -> Boolean) -> Vec<Boolean> {
    let full = ones(width);
    let less = matches!(r, Relation::Lt | Relation::Le);
    let mut out = Vec::new();
    for b in (0..width).map(|b| 1u128 << b) {
        if (v & b != 0) == less {
            let mask = full & !(b - 1);
            out.push(cmp((v ^ b) & mask, mask));
        }
    }
    if matches!(r, Relation::Le | Relation::Ge) {
        out.push(cmp(v, full));
    }
    out
}
