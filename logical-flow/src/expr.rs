//! Match expressions (ovn-sb(5), column `match`): parse once, evaluate for a chassis.

use crate::field::{Field, ones};
use crate::lexer::{Cursor, Format, Integer, Token};
use crate::normal::{Boolean, Compare};
use crate::symbol::{self, Kind, Level, Symbol};
use crate::{Error, lexer};

/// What a chassis knows that expressions refer to.
pub trait Environment {
    /// The number of a logical port or multicast group in the flow's datapath.
    fn port(&self, name: &str) -> Option<u32>;
    /// Whether a logical port resides on this chassis.
    fn is_chassis_resident(&self, port: &str) -> bool;
    /// The constants of an address set.
    fn address_set(&self, name: &str) -> Option<Vec<String>>;
    /// The logical ports of a port group.
    fn port_group(&self, name: &str) -> Option<Vec<String>>;
}

/// A relation between a field and a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl Relation {
    fn from_text(p: &str) -> Option<Relation> {
        Some(match p {
            "==" => Relation::Eq,
            "!=" => Relation::Ne,
            "<" => Relation::Lt,
            "<=" => Relation::Le,
            ">" => Relation::Gt,
            ">=" => Relation::Ge,
            _ => return None,
        })
    }

    /// The relation with the sides exchanged.
    fn mirrored(self) -> Relation {
        match self {
            Relation::Lt => Relation::Gt,
            Relation::Le => Relation::Ge,
            Relation::Gt => Relation::Lt,
            Relation::Ge => Relation::Le,
            r => r,
        }
    }

    fn negated(self) -> Relation {
        match self {
            Relation::Eq => Relation::Ne,
            Relation::Ne => Relation::Eq,
            Relation::Lt => Relation::Ge,
            Relation::Le => Relation::Gt,
            Relation::Gt => Relation::Le,
            Relation::Ge => Relation::Lt,
        }
    }
}

/// A constant, or a named set of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// A number.
    Integer(Integer),
    /// A port's name.
    String(String),
    /// `$NAME`.
    AddressSet(String),
    /// `@NAME`.
    PortGroup(String),
}

/// A field or subfield as written: the symbol, the lowest bit and the width.
#[derive(Clone, Debug)]
pub struct Operand {
    /// The name's meaning.
    pub symbol: &'static Symbol,
    /// The lowest bit within the symbol.
    pub offset: u8,
    /// How many bits; 0 for ports.
    pub width: u8,
}

impl Operand {
    /// The field and the lowest bit in it.
    pub fn field(&self) -> Option<(Field, u8)> {
        match self.symbol.kind {
            Kind::Field { field, offset } => Some((field, offset + self.offset)),
            Kind::Port(field) => Some((field, 0)),
            _ => None,
        }
    }
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub enum Expr {
    /// `0`, `1`.
    Literal(bool),
    /// `a && b && …`
    And(Vec<Expr>),
    /// `a || b || …`
    Or(Vec<Expr>),
    /// `!a`
    Not(Box<Expr>),
    /// A comparison with one or several constants.
    Compare(Operand, Relation, Vec<Constant>),
    /// A predicate.
    Predicate(&'static Symbol),
    /// `is_chassis_resident("PORT")`
    Resident(String),
}

/// Parses an expression.
///
/// # Errors
/// Syntax errors with place and expectation.
pub fn parse(text: &str) -> Result<Expr, Error> {
    let mut c = Cursor::new(text)?;
    let e = disjunction(&mut c, 0)?;
    if c.at_end() { Ok(e) } else { Err(c.syntax("expecting end of input")) }
}

const MAX_DEPTH: usize = 100;

fn disjunction(c: &mut Cursor, depth: usize) -> Result<Expr, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(c.at(), "Parentheses nested too deeply."));
    }
    let first = negation(c, depth)?;
    for (op, other) in [("&&", "||"), ("||", "&&")] {
        if c.accept(op) {
            let mut list = vec![first, negation(c, depth)?];
            while c.accept(op) {
                list.push(negation(c, depth)?);
            }
            if matches!(c.peek(), Token::Punct(p) if *p == other) {
                return Err(Error::new(c.at(), "&& and || must be parenthesized when used together."));
            }
            return Ok(if op == "&&" { Expr::And(list) } else { Expr::Or(list) });
        }
    }
    Ok(first)
}

fn negation(c: &mut Cursor, depth: usize) -> Result<Expr, Error> {
    if c.accept("!") {
        return Ok(Expr::Not(Box::new(primary(c, depth, true)?)));
    }
    primary(c, depth, false)
}

fn primary(c: &mut Cursor, depth: usize, negated: bool) -> Result<Expr, Error> {
    if matches!(c.peek(), Token::Punct("(")) {
        // Either a nested expression or `(CONSTANT) relop …`, which OVN does not know.
        c.take();
        let e = disjunction(c, depth + 1)?;
        c.expect(")")?;
        return Ok(e);
    }
    if c.accept_id("is_chassis_resident") {
        c.expect("(")?;
        let Token::String(port) = c.take() else { return Err(c.syntax("expecting string")) };
        c.expect(")")?;
        return Ok(Expr::Resident(port));
    }
    match c.peek() {
        Token::Id(_) => {
            let at = c.at();
            if let Token::Id(name) = c.peek()
                && let Some(s) = symbol::lookup(name)
                && matches!(s.kind, Kind::Predicate(_))
            {
                c.take();
                return predicate_comparison(c, s);
            }
            let operand = operand(c)?;
            comparison(c, operand, at, negated)
        }
        _ => constant_first(c),
    }
}

/// A predicate may stand alone or be compared with 0 or 1.
fn predicate_comparison(c: &mut Cursor, s: &'static Symbol) -> Result<Expr, Error> {
    let e = Expr::Predicate(s);
    let positive = match c.peek() {
        Token::Punct("==") => true,
        Token::Punct("!=") => false,
        _ => return Ok(e),
    };
    c.take();
    match c.take() {
        Token::Integer(Integer { value: v @ (0 | 1), mask: None, .. }) => {
            Ok(if (v == 1) == positive { e } else { Expr::Not(Box::new(e)) })
        }
        _ => Err(Error::new(c.at(), format!("Predicate symbol {} used where lvalue required.", s.name))),
    }
}

/// Parses a field with an optional `[LO..HI]`.
///
/// # Errors
/// An unknown name, or bits outside the field.
pub fn operand(c: &mut Cursor) -> Result<Operand, Error> {
    let at = c.at();
    let Token::Id(name) = c.take() else { return Err(c.syntax("expecting field name")) };
    let symbol = symbol::lookup(&name)
        .ok_or_else(|| Error::new(at, format!("Syntax error at `{name}' expecting field name.")))?;
    let mut o = Operand { symbol, offset: 0, width: symbol.width };
    if !c.accept("[") {
        return Ok(o);
    }
    if symbol.width == 0 {
        return Err(Error::new(at, format!("Cannot select subfield of string field {name}.")));
    }
    if symbol.level == Level::Nominal {
        return Err(Error::new(at, format!("Cannot select subfield of nominal field {name}.")));
    }
    let bit = |c: &mut Cursor| match c.take() {
        Token::Integer(Integer { value, mask: None, format: Format::Decimal }) if value < 128 => Ok(value as u8),
        _ => Err(c.syntax("expecting small integer")),
    };
    let lo = bit(c)?;
    let hi = if c.accept("..") { bit(c)? } else { lo };
    c.expect("]")?;
    if lo > hi {
        return Err(Error::new(at, format!("Invalid bit range {lo} to {hi}.")));
    }
    if hi >= symbol.width {
        return Err(Error::new(at, format!("Cannot select bits {lo} to {hi} of {}-bit field {name}.", symbol.width)));
    }
    o.offset = lo;
    o.width = hi - lo + 1;
    Ok(o)
}

fn comparison(c: &mut Cursor, operand: Operand, at: usize, negated: bool) -> Result<Expr, Error> {
    let relation = if let Token::Punct(p) = c.peek() { Relation::from_text(p) } else { None };
    let Some(relation) = relation else {
        if operand.width != 1 {
            return Err(Error::new(
                at,
                format!(
                    "Explicit `!= 0' is required for inequality test of multibit field against 0 ({}).",
                    operand.symbol.name
                ),
            ));
        }
        let one = Integer { value: 1, mask: None, format: Format::Decimal };
        return Ok(Expr::Compare(operand, Relation::Eq, vec![Constant::Integer(one)]));
    };
    if negated {
        return Err(Error::new(at, "Parentheses are required around a negated comparison."));
    }
    c.take();
    let constants = constants(c)?;
    check(&operand, relation, &constants, at)?;
    Ok(Expr::Compare(operand, relation, constants))
}

fn constant_first(c: &mut Cursor) -> Result<Expr, Error> {
    let at = c.at();
    // `0` and `1` alone are literals.
    if let Token::Integer(Integer { value: v @ (0 | 1), mask: None, format: Format::Decimal }) = c.peek() {
        let v = *v == 1;
        let relates = matches!(c.peek_second(), Token::Punct(p) if Relation::from_text(p).is_some());
        if !relates {
            c.take();
            return Ok(Expr::Literal(v));
        }
    }
    let first = constants(c)?;
    let relation = |c: &mut Cursor| match c.take() {
        Token::Punct(p) => Relation::from_text(p),
        _ => None,
    };
    let r1 = relation(c).ok_or_else(|| c.syntax("expecting relational operator"))?;
    let operand = operand(c)?;
    check(&operand, r1.mirrored(), &first, at)?;
    let left = Expr::Compare(operand.clone(), r1.mirrored(), first);
    // `1024 <= tcp.src <= 49151`
    if let Token::Punct(p) = c.peek()
        && let Some(r2) = Relation::from_text(p)
    {
        c.take();
        let second = constants(c)?;
        let same_way = |r: Relation| matches!(r, Relation::Lt | Relation::Le);
        if matches!(r1, Relation::Eq | Relation::Ne)
            || matches!(r2, Relation::Eq | Relation::Ne)
            || same_way(r1) != same_way(r2)
        {
            return Err(Error::new(
                at,
                "Range expressions must have the form `x < field < y' or `x > field > y', with each `<' optionally replaced by `<=' or `>' by `>='.",
            ));
        }
        check(&operand, r2, &second, at)?;
        return Ok(Expr::And(vec![left, Expr::Compare(operand, r2, second)]));
    }
    Ok(left)
}

/// A constant or a set of them in braces.
fn constants(c: &mut Cursor) -> Result<Vec<Constant>, Error> {
    if !c.accept("{") {
        return Ok(vec![constant(c)?]);
    }
    let mut out = Vec::new();
    while !c.accept("}") {
        out.push(constant(c)?);
        c.accept(",");
    }
    if out.is_empty() {
        return Err(c.syntax("expecting constant"));
    }
    Ok(out)
}

fn constant(c: &mut Cursor) -> Result<Constant, Error> {
    let k = match c.peek().clone() {
        Token::Integer(i) => Constant::Integer(i),
        Token::String(s) => Constant::String(s),
        Token::AddressSet(s) => Constant::AddressSet(s),
        Token::PortGroup(s) => Constant::PortGroup(s),
        _ => return Err(c.syntax("expecting constant")),
    };
    c.take();
    Ok(k)
}

fn check(o: &Operand, r: Relation, constants: &[Constant], at: usize) -> Result<(), Error> {
    let name = o.symbol.name;
    let string = matches!(o.symbol.kind, Kind::Port(_));
    if matches!(o.symbol.kind, Kind::ActionOnly) {
        return Err(Error::new(at, format!("Field {name} cannot be matched; only actions can set it.")));
    }
    for k in constants {
        match k {
            Constant::Integer(_) | Constant::AddressSet(_) if string => {
                return Err(Error::new(at, format!("String field {name} is not compatible with integer constant.")));
            }
            Constant::String(_) | Constant::PortGroup(_) if !string => {
                return Err(Error::new(at, format!("Integer field {name} is not compatible with string constant.")));
            }
            Constant::Integer(i) => fits(o, i, at)?,
            _ => {}
        }
    }
    if !matches!(r, Relation::Eq | Relation::Ne) {
        if string || o.symbol.level == Level::Nominal {
            return Err(Error::new(at, format!("Only == and != operators may be used with nominal field {name}.")));
        }
        if constants.len() > 1 || matches!(constants, [Constant::AddressSet(_)]) {
            return Err(Error::new(
                at,
                "Only == and != operators may be used to compare a field against a set of values.",
            ));
        }
        if matches!(constants, [Constant::Integer(Integer { mask: Some(_), .. })]) {
            return Err(Error::new(
                at,
                format!(
                    "Only == and != operators may be used with masked constants. Consider using subfields instead (e.g. {name}[0..15] > 0x1111 in place of {name} > 0x1111/0xffff)."
                ),
            ));
        }
    }
    Ok(())
}

fn fits(o: &Operand, i: &Integer, at: usize) -> Result<(), Error> {
    let needed = 128 - (i.value | i.mask.filter(|_| i.format == Format::Hex).unwrap_or(0)).leading_zeros();
    if needed > u32::from(o.width) {
        return Err(Error::new(
            at,
            format!("{needed}-bit constant is not compatible with {}-bit field {}.", o.width, o.symbol.name),
        ));
    }
    Ok(())
}

impl Expr {
    /// What the expression comes to on a chassis: comparisons of packet fields only.
    ///
    /// # Errors
    /// An unknown address set or port group, or a relation that a nominal field does not have.
    pub fn evaluate(&self, env: &dyn Environment) -> Result<Boolean, Error> {
        self.eval(env, false)
    }

    fn eval(&self, env: &dyn Environment, negate: bool) -> Result<Boolean, Error> {
        let list = |l: &[Expr]| l.iter().map(|e| e.eval(env, negate)).collect::<Result<Vec<_>, _>>();
        Ok(match self {
            Expr::Literal(b) => Boolean::literal(*b != negate),
            Expr::Not(e) => e.eval(env, !negate)?,
            Expr::And(l) if negate => Boolean::Or(list(l)?),
            Expr::Or(l) if negate => Boolean::And(list(l)?),
            Expr::And(l) => Boolean::And(list(l)?),
            Expr::Or(l) => Boolean::Or(list(l)?),
            Expr::Resident(port) => Boolean::literal(env.is_chassis_resident(port) != negate),
            Expr::Predicate(s) => {
                let Kind::Predicate(text) = s.kind else { return Err(Error::new(0, "not a predicate")) };
                parse(text)?.eval(env, negate)?
            }
            Expr::Compare(o, r, constants) => {
                let r = if negate { r.negated() } else { *r };
                let e = compare(o, r, constants, env)?;
                if o.symbol.prerequisite.is_empty() {
                    e
                } else {
                    Boolean::And(vec![parse(o.symbol.prerequisite)?.eval(env, false)?, e])
                }
            }
        })
    }

    /// The names of the address sets and port groups that the expression refers to.
    pub fn sets(&self) -> Vec<&str> {
        match self {
            Expr::And(l) | Expr::Or(l) => l.iter().flat_map(Expr::sets).collect(),
            Expr::Not(e) => e.sets(),
            Expr::Compare(_, _, constants) => constants
                .iter()
                .filter_map(|k| match k {
                    Constant::AddressSet(s) | Constant::PortGroup(s) => Some(s.as_str()),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

fn compare(o: &Operand, r: Relation, constants: &[Constant], env: &dyn Environment) -> Result<Boolean, Error> {
    let mut out = Vec::new();
    for k in constants {
        match k {
            Constant::Integer(i) => out.push(one(o, r, i)?),
            Constant::AddressSet(name) => {
                let members = env
                    .address_set(name)
                    .ok_or_else(|| Error::new(0, format!("Syntax error at `${name}' expecting address set name.")))?;
                for m in members {
                    // A member that is no constant of the field's kind says nothing about the others.
                    if let Ok(tokens) = lexer::lex(&m)
                        && let [(_, Token::Integer(i)), _] = tokens.as_slice()
                        && fits(o, i, 0).is_ok()
                    {
                        out.push(one(o, r, i)?);
                    }
                }
            }
            Constant::String(name) => out.push(port(o, r, name, env)?),
            Constant::PortGroup(name) => {
                let members = env
                    .port_group(name)
                    .ok_or_else(|| Error::new(0, format!("Syntax error at `@{name}' expecting port group name.")))?;
                for m in members {
                    out.push(port(o, r, &m, env)?);
                }
            }
        }
    }
    Ok(if r == Relation::Ne { Boolean::And(out) } else { Boolean::Or(out) })
}

fn port(o: &Operand, r: Relation, name: &str, env: &dyn Environment) -> Result<Boolean, Error> {
    let Some((field, _)) = o.field() else { return Ok(Boolean::literal(false)) };
    if r != Relation::Eq {
        return Err(Error::new(
            0,
            format!(
                "Nominal field {} may only be tested for equality (taking enclosing `!' operators into account).",
                o.symbol.name
            ),
        ));
    }
    // The empty name and "none" stand for no port.
    let number = if name.is_empty() || name == "none" { Some(0) } else { env.port(name) };
    Ok(number.map_or(Boolean::literal(false), |n| {
        Boolean::Compare(Compare { field, value: u128::from(n), mask: ones(field.width()) })
    }))
}

/// One comparison of an integer field.
fn one(o: &Operand, r: Relation, i: &Integer) -> Result<Boolean, Error> {
    let Some((field, offset)) = o.field() else { return Ok(Boolean::literal(false)) };
    let full = ones(o.width);
    let mask = i.mask.map_or(full, |m| m & full);
    let cmp =
        |value: u128, mask: u128| Boolean::Compare(Compare { field, value: value << offset, mask: mask << offset });
    let v = i.value & mask;
    Ok(match r {
        Relation::Eq => cmp(v, mask),
        Relation::Ne => {
            if o.symbol.level == Level::Nominal && o.width > 1 {
                return Err(Error::new(
                    0,
                    format!(
                        "Nominal field {} may only be tested for equality (taking enclosing `!' operators into account).",
                        o.symbol.name
                    ),
                ));
            }
            let differs = (0..o.width).map(|b| 1u128 << b).filter(|b| mask & b != 0).map(|b| cmp(!v & b, b));
            Boolean::Or(differs.collect())
        }
        // Whatever the field holds.
        Relation::Le if v == full => Boolean::literal(true),
        Relation::Ge if v == 0 => Boolean::literal(true),
        Relation::Lt | Relation::Le | Relation::Gt | Relation::Ge => Boolean::Or(ordered(r, v, o.width, &cmp)),
    })
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
