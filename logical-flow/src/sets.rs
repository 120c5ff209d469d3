//! Matches with the members of address sets, made apart from the rest of an expression: a member that comes or goes then
//! costs its own flows, however many others there are.

use crate::Error;
use crate::constant::Integer;
use crate::evaluate::{Environment, known};
use crate::expr::{Comparison, Constant, Expr, Relation};
use crate::field::Field;
use crate::fields::Fields;
use crate::normal::{Boolean, Clause, Clauses, Lists, Masked, Match, assemble, normalize};

/// An expression's matches, without those that members of address sets with several of them make.
#[derive(Clone, Debug, PartialEq)]
pub struct Apart {
    /// The matches without such members.
    pub common: Vec<Match>,
    /// Where members of such sets go, for each comparison with them.
    pub slots: Vec<Slot>,
}

/// A comparison of a field with address sets, and the matches that each member of these makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// The sets' names.
    pub sets: Vec<String>,
    field: Field,
    /// Together with a member, each of these is a match.
    plain: Vec<Fields>,
    /// Together with a member, each of these satisfies clauses of conjunctions.
    clauses: Vec<(Fields, Clauses)>,
}

impl Slot {
    /// The matches of members. One that is no constant of the field's kind makes none.
    pub fn matches(&self, members: &[Integer]) -> Vec<Match> {
        let width = self.field.width();
        let mut out = Vec::with_capacity(members.len() * (self.plain.len() + self.clauses.len()));
        for m in members.iter().filter(|m| m.width() <= u32::from(width)) {
            let member = m.masked(width);
            let with = |base: &Fields| base.with(self.field, member);
            out.extend(self.plain.iter().map(|base| Match::Plain(with(base))));
            out.extend(self.clauses.iter().map(|(base, list)| Match::Clause(with(base), list.clone())));
        }
        out
    }

    /// Keeps the matches whose other fields fulfil a condition.
    pub fn retain(&mut self, keep: &mut dyn FnMut(&Fields) -> bool) {
        self.plain.retain(|f| keep(f));
        self.clauses.retain(|(f, _)| keep(f));
    }

    /// Whether members make no match.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.clauses.is_empty()
    }

    /// The highest number of a conjunction that members belong to; 0 for none.
    pub fn conjunctions(&self) -> u32 {
        self.clauses.iter().flat_map(|(_, list)| list).map(|(n, ..)| *n).max().unwrap_or(0)
    }
}

/// A comparison with sets that have several members.
struct Asked<'e> {
    field: Field,
    name: &'static str,
    prerequisite: &'static str,
    sets: Vec<&'e str>,
    /// What the field is compared with besides.
    others: Vec<Masked>,
}

/// The matches of an expression and of other conditions that hold with it, where it demands that a field is a member of an
/// address set of which `many` says that it has several members, none of which has a mask of 0. None where it demands nothing of
/// the kind, or something else of the same field: then all matches are to be made as one ([`crate::normal::matches`]).
///
/// # Errors
/// Those of [`Expr::evaluate`].
pub fn apart(
    e: &Expr,
    conditions: &[Boolean],
    env: &dyn Environment,
    many: &dyn Fn(&str) -> bool,
) -> Result<Option<Apart>, Error> {
    let mut factors = Vec::new();
    demanded(e, &mut factors);
    let mut asked: Vec<Asked<'_>> = Vec::new();
    let mut others: Vec<&Expr> = Vec::with_capacity(factors.len());
    for factor in factors {
        let of_sets = if let Expr::Compare(c) = factor { with_members(c, env, many)? } else { None };
        match of_sets.filter(|a| asked.iter().all(|b| b.field != a.field)) {
            Some(a) => asked.push(a),
            None => others.push(factor),
        }
    }
    // Most expressions ask for none: nothing of them is evaluated here.
    if asked.is_empty() {
        return Ok(None);
    }
    let mut rest = conditions.to_vec();
    for prerequisite in asked.iter().map(|a| a.prerequisite).filter(|p| !p.is_empty()) {
        rest.push(known(prerequisite, false)?);
    }
    for e in others {
        rest.push(e.evaluate(env)?);
    }
    let products = normalize(&Boolean::And(rest));
    if products.iter().any(|p| asked.iter().any(|a| p.get(a.field).is_some())) {
        return Ok(None);
    }
    asked.sort_by_key(|a| a.name);
    let slot = |a: &Asked<'_>| Slot {
        sets: a.sets.iter().map(|s| (*s).to_string()).collect(),
        field: a.field,
        plain: Vec::new(),
        clauses: Vec::new(),
    };
    let mut slots: Vec<Slot> = asked.iter().map(slot).collect();
    let mut clauses: Vec<Vec<(Fields, Clause)>> = vec![Vec::new(); slots.len()];
    let (mut plain, mut common, mut conjunctions) = (Vec::new(), Vec::new(), Vec::new());
    for p in products {
        let Lists { base, mut lists } = Lists::of(&p);
        lists.extend(asked.iter().map(|a| (a.field, a.name, a.others.as_slice())));
        lists.sort_by_key(|(_, name, _)| *name);
        let of_slot = |f: Field| asked.iter().position(|a| a.field == f);
        if let ([(field, _, others)], Some(slot)) = (lists.as_slice(), slots.first_mut()) {
            plain.extend(others.iter().map(|m| base.with(*field, *m)));
            slot.plain.push(base);
            continue;
        }
        let number = conjunctions.len() as u32 + 1;
        for (k, (field, _, list)) in (0u8..).zip(&lists) {
            let clause = (number, k, lists.len() as u8);
            common.extend(list.iter().map(|m| (base.with(*field, *m), clause)));
            if let Some(of) = of_slot(*field).and_then(|i| clauses.get_mut(i)) {
                of.push((base.clone(), clause));
            }
        }
        conjunctions.push(base);
    }
    for (slot, clauses) in slots.iter_mut().zip(clauses) {
        for m in assemble(std::mem::take(&mut slot.plain), clauses, Vec::new()) {
            match m {
                Match::Plain(base) => slot.plain.push(base),
                Match::Clause(base, list) => slot.clauses.push((base, list)),
                Match::Conjunction(..) => {}
            }
        }
    }
    slots.retain(|s| !s.is_empty());
    Ok(Some(Apart { common: assemble(plain, common, conjunctions), slots }))
}

/// The parts of an expression that have to hold, each of them.
fn demanded<'e>(e: &'e Expr, out: &mut Vec<&'e Expr>) {
    match e {
        Expr::And(list) => list.iter().for_each(|e| demanded(e, out)),
        Expr::Parentheses(e) => demanded(e, out),
        e => out.push(e),
    }
}

/// A comparison of a whole field with several members of sets, and with other constants.
fn with_members<'e>(
    c: &'e Comparison,
    env: &dyn Environment,
    many: &dyn Fn(&str) -> bool,
) -> Result<Option<Asked<'e>>, Error> {
    let o = &c.operand;
    let field = match o.field() {
        Some((Field::XReg(_) | Field::XxReg(_), _)) | None => return Ok(None),
        Some((f, 0)) if o.width == f.width() && !f.must_crossproduct() && c.relation == Relation::Eq => f,
        Some(_) => return Ok(None),
    };
    let (mut sets, mut others) = (Vec::new(), Vec::new());
    for k in &c.constants.list {
        match k {
            Constant::AddressSet(name) if many(name) => sets.push(name.as_str()),
            Constant::Integer(_) | Constant::AddressSet(_) => others.push(k),
            _ => return Ok(None),
        }
    }
    if sets.is_empty() {
        return Ok(None);
    }
    let mut values: Vec<Masked> = Vec::new();
    for k in others {
        let list = match k {
            Constant::Integer(i) => vec![*i],
            Constant::AddressSet(name) => env.address_set(name).ok_or_else(|| crate::evaluate::no_set(name))?,
            _ => Vec::new(),
        };
        for i in list.iter().filter(|i| i.width() <= u32::from(o.width)) {
            match i.masked(o.width) {
                // It holds whatever the field is.
                (_, 0) => return Ok(None),
                value => values.push(value),
            }
        }
    }
    values.sort_unstable();
    values.dedup();
    let (name, prerequisite) = (crate::symbol::name_of(field), o.symbol.prerequisite);
    Ok(Some(Asked { field, name, prerequisite, sets, others: values }))
}
