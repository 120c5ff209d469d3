//! Match expressions (ovn-sb(5), column `match`): parse once, [evaluate](Expr::evaluate) for a chassis.

use crate::Error;
use crate::constant::{Format, Integer};
use crate::field::Field;
use crate::lexer::{Cursor, Token};
use crate::symbol::{self, Kind, Level, Symbol};

pub use crate::evaluate::Environment;

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
    fn of(t: &Token<'_>) -> Option<Relation> {
        let Token::Punct(p) = t else { return None };
        Some(match *p {
            "==" => Relation::Eq,
            "!=" => Relation::Ne,
            "<" => Relation::Lt,
            "<=" => Relation::Le,
            ">" => Relation::Gt,
            ">=" => Relation::Ge,
            _ => return None,
        })
    }

    /// Its sign.
    pub fn sign(self) -> &'static str {
        match self {
            Relation::Eq => "==",
            Relation::Ne => "!=",
            Relation::Lt => "<",
            Relation::Le => "<=",
            Relation::Gt => ">",
            Relation::Ge => ">=",
        }
    }

    /// The relation with the sides exchanged.
    pub fn mirrored(self) -> Relation {
        match self {
            Relation::Lt => Relation::Gt,
            Relation::Le => Relation::Ge,
            Relation::Gt => Relation::Lt,
            Relation::Ge => Relation::Le,
            r => r,
        }
    }

    /// The relation that holds where this one does not.
    pub fn negated(self) -> Relation {
        match self {
            Relation::Eq => Relation::Ne,
            Relation::Ne => Relation::Eq,
            Relation::Lt => Relation::Ge,
            Relation::Le => Relation::Gt,
            Relation::Gt => Relation::Le,
            Relation::Ge => Relation::Lt,
        }
    }

    fn is_equality(self) -> bool {
        matches!(self, Relation::Eq | Relation::Ne)
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
    /// `^NAME`, to which no chassis' value was put.
    Template(String),
}

/// What a field is compared with: a constant, or several in braces.
#[derive(Clone, Debug, PartialEq)]
pub struct Constants {
    /// The constants.
    pub list: Vec<Constant>,
    /// Whether they stand in braces.
    pub braces: bool,
}

/// Which bits of a field are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// None: all of them.
    All,
    /// `[N]`
    One,
    /// `[LO..HI]`
    Range,
}

/// A field or subfield as written: the symbol, the lowest bit and the width.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// The name's meaning.
    pub symbol: &'static Symbol,
    /// The lowest bit within the symbol.
    pub offset: u8,
    /// How many bits; 0 for ports.
    pub width: u8,
    /// Which bits are written.
    pub bits: Bits,
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

/// A field and what it is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The field.
    pub operand: Operand,
    /// The relation, the field on its left.
    pub relation: Relation,
    /// The constants.
    pub constants: Constants,
    /// Whether the constants are written on the left: `0 < tcp.src`.
    pub mirrored: bool,
}

/// A parsed expression. It keeps how it was written, but for spaces and comments, and prints as that.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// `0`, `1`.
    Literal(bool),
    /// `a && b && …`
    And(Vec<Expr>),
    /// `a || b || …`
    Or(Vec<Expr>),
    /// `!a`
    Not(Box<Expr>),
    /// `(a)`
    Parentheses(Box<Expr>),
    /// A field or predicate alone: it is not 0.
    Field(Operand),
    /// A comparison with one or several constants.
    Compare(Comparison),
    /// `1024 <= tcp.src <= 49151`, as its two comparisons; the first is mirrored.
    Range(Box<(Comparison, Comparison)>),
    /// `is_chassis_resident("PORT")`
    Resident(String),
    /// `^NAME`, to which no chassis' value was put.
    Template(String),
}

/// Parses an expression.
///
/// # Errors
/// Syntax errors with place and expectation.
pub fn parse(text: &str) -> Result<Expr, Error> {
    let mut p = Parser { c: Cursor::new(text), depth: 0, negated: false };
    let e = p.expression()?;
    if p.c.at_end() { Ok(e) } else { Err(p.c.syntax("expecting end of input")) }
}

const MAX_DEPTH: usize = 100;

struct Parser<'t> {
    c: Cursor<'t>,
    depth: usize,
    /// Whether an odd number of `!` encloses what is being parsed.
    negated: bool,
}

impl Parser<'_> {
    fn expression(&mut self) -> Result<Expr, Error> {
        let first = self.negation()?;
        let op = match self.c.peek() {
            Token::Punct(p @ ("&&" | "||")) => *p,
            _ => return Ok(first),
        };
        let mut list = vec![first];
        while self.c.accept(op) {
            list.push(self.negation()?);
        }
        if self.c.is("&&") || self.c.is("||") {
            return Err(self.c.error("&& and || must be parenthesized when used together."));
        }
        Ok(if op == "&&" { Expr::And(list) } else { Expr::Or(list) })
    }

    fn negation(&mut self) -> Result<Expr, Error> {
        if !self.c.accept("!") {
            return self.primary();
        }
        self.negated = !self.negated;
        let e = self.primary()?;
        self.negated = !self.negated;
        match e {
            Expr::Compare(_) | Expr::Range(_) => Err(self.c.error("Missing parentheses around operand of !.")),
            e => Ok(Expr::Not(Box::new(e))),
        }
    }

    fn primary(&mut self) -> Result<Expr, Error> {
        if self.c.accept("(") {
            if self.depth >= MAX_DEPTH {
                return Err(self.c.error("Parentheses nested too deeply."));
            }
            self.depth += 1;
            let e = self.expression()?;
            self.depth -= 1;
            self.c.expect(")")?;
            return Ok(Expr::Parentheses(Box::new(e)));
        }
        match *self.c.peek() {
            // With a relation behind it, it is a constant.
            Token::Template(name) => match Relation::of(self.c.peek_second()) {
                Some(_) => self.constant_first(),
                None => {
                    self.c.take();
                    Ok(Expr::Template(name.to_string()))
                }
            },
            Token::Id(name) => match self.c.peek_second() {
                Token::Punct("(") => self.function(name),
                _ => self.field_first(),
            },
            _ => self.constant_first(),
        }
    }

    fn function(&mut self, name: &str) -> Result<Expr, Error> {
        if name != "is_chassis_resident" {
            return Err(self.c.error("parsing function name"));
        }
        self.c.take();
        self.c.take();
        let port = self.c.string("expecting string")?;
        self.c.expect(")")?;
        Ok(Expr::Resident(port))
    }

    fn field_first(&mut self) -> Result<Expr, Error> {
        let operand = operand(&mut self.c)?;
        if let Some(relation) = Relation::of(self.c.peek()) {
            self.c.take();
            let constants = self.constants()?;
            return self.compare(operand, relation, constants, false).map(Expr::Compare);
        }
        if operand.width == 0 || self.c.is("=") {
            return Err(self.c.syntax("expecting relational operator"));
        }
        if operand.width > 1 && !self.negated {
            return Err(self.c.error("Explicit `!= 0' is required for inequality test of multibit field against 0."));
        }
        let one = [Constant::Integer(Integer::plain(1, Format::Decimal))];
        self.level(&operand, if operand.width > 1 { Relation::Ne } else { Relation::Eq }, &one)?;
        Ok(Expr::Field(operand))
    }

    fn constant_first(&mut self) -> Result<Expr, Error> {
        let first = self.constants()?;
        let plain = match first.list.as_slice() {
            [Constant::Integer(Integer { value: v @ (0 | 1), mask: None, format: Format::Decimal, .. })]
                if !first.braces =>
            {
                Some(*v == 1)
            }
            _ => None,
        };
        let relation = Relation::of(self.c.peek());
        if let (Some(v), None) = (plain, relation) {
            return Ok(Expr::Literal(v));
        }
        let r1 = self.relation()?;
        let operand = operand(&mut self.c)?;
        let Some(r2) = Relation::of(self.c.peek()) else {
            return self.compare(operand, r1.mirrored(), first, true).map(Expr::Compare);
        };
        self.c.take();
        let second = self.constants()?;
        let upwards = |r: Relation| matches!(r, Relation::Lt | Relation::Le);
        if r1.is_equality() || r2.is_equality() || upwards(r1) != upwards(r2) {
            return Err(self.c.error(
                "Range expressions must have the form `x < field < y' or `x > field > y', with each `<' optionally \
                 replaced by `<=' or `>' by `>=').",
            ));
        }
        let low = self.compare(operand.clone(), r1.mirrored(), first, true)?;
        Ok(Expr::Range(Box::new((low, self.compare(operand, r2, second, false)?))))
    }

    fn relation(&mut self) -> Result<Relation, Error> {
        let r = Relation::of(self.c.peek()).ok_or_else(|| self.c.syntax("expecting relational operator"))?;
        self.c.take();
        Ok(r)
    }

    /// A constant or a set of them in braces; commas between them are optional.
    fn constants(&mut self) -> Result<Constants, Error> {
        let mut out = Constants { list: Vec::new(), braces: self.c.accept("{") };
        loop {
            let k = self.constant(&out.list)?;
            out.list.push(k);
            if !out.braces {
                return Ok(out);
            }
            self.c.accept(",");
            if self.c.accept("}") {
                return Ok(out);
            }
        }
    }

    /// A constant of the kind that those before it are.
    fn constant(&mut self, before: &[Constant]) -> Result<Constant, Error> {
        let k = match self.c.peek() {
            Token::Integer(i) => Constant::Integer(*i),
            Token::String(s) => Constant::String(s.clone().into_owned()),
            Token::AddressSet(s) => Constant::AddressSet((*s).to_string()),
            Token::PortGroup(s) => Constant::PortGroup((*s).to_string()),
            Token::Template(s) => Constant::Template((*s).to_string()),
            _ => return Err(self.c.syntax("expecting constant")),
        };
        let other = before.iter().find_map(is_string).filter(|b| is_string(&k).is_some_and(|k| k != *b));
        if let Some(string) = other {
            return Err(self.c.syntax(if string { "expecting string" } else { "expecting integer" }));
        }
        self.c.take();
        Ok(k)
    }

    fn compare(&self, o: Operand, r: Relation, k: Constants, mirrored: bool) -> Result<Comparison, Error> {
        let refuse = |text: String| Err(self.c.error(text));
        type_check(&o, &k.list).map_err(|e| self.c.error(e))?;
        let name = o.symbol.name;
        if !r.is_equality() {
            if k.braces {
                return refuse("Only == and != operators may be used with value sets.".into());
            }
            let level = match o.symbol.level {
                Level::Nominal => Some("nominal"),
                Level::Boolean => Some("Boolean"),
                Level::Ordinal => None,
            };
            if let Some(level) = level {
                return refuse(format!("Only == and != operators may be used with {level} field {name}."));
            }
            match k.list.as_slice() {
                [Constant::Integer(Integer { mask: Some(_), .. })] => {
                    return refuse(
                        "Only == and != operators may be used with masked constants.  Consider using subfields \
                         instead (e.g. eth.src[0..15] > 0x1111 in place of eth.src > \
                         00:00:00:00:11:11/00:00:00:00:ff:ff)."
                            .into(),
                    );
                }
                [Constant::AddressSet(_)] => {
                    return refuse("Only == and != operators may be used to compare a field against a set.".into());
                }
                _ => {}
            }
        }
        self.level(&o, r, &k.list)?;
        Ok(Comparison { operand: o, relation: r, constants: k, mirrored })
    }

    /// Nominal fields are tested for equality only, nominal predicates positively only.
    fn level(&self, o: &Operand, r: Relation, constants: &[Constant]) -> Result<(), Error> {
        let name = o.symbol.name;
        if o.symbol.level != Level::Nominal {
            return Ok(());
        }
        if matches!(o.symbol.kind, Kind::Predicate(_)) {
            for k in constants {
                let Constant::Integer(i) = k else { continue };
                if (i.value & 1 != 0) == ((r == Relation::Ne) != self.negated) {
                    return Err(self.c.error(format!(
                        "Nominal predicate {name} may only be tested positively, e.g. `{name}' or `{name} == 1' but \
                         not `!{name}' or `{name} == 0'."
                    )));
                }
            }
        } else if r != (if self.negated { Relation::Ne } else { Relation::Eq }) {
            return Err(self.c.error(format!(
                "Nominal field {name} may only be tested for equality (taking enclosing `!' operators into account)."
            )));
        }
        Ok(())
    }
}

/// Whether a constant is a string, where that can be told.
fn is_string(k: &Constant) -> Option<bool> {
    match k {
        Constant::Integer(_) | Constant::AddressSet(_) => Some(false),
        Constant::String(_) | Constant::PortGroup(_) => Some(true),
        Constant::Template(_) => None,
    }
}

/// Whether constants are of the field's kind and fit into it.
pub(crate) fn type_check(o: &Operand, constants: &[Constant]) -> Result<(), String> {
    let (name, width) = (o.symbol.name, o.symbol.width);
    for k in constants {
        if let Some(string) = is_string(k).filter(|s| *s != (width == 0)) {
            let (field, constant) = if string { ("Integer", "string") } else { ("String", "integer") };
            return Err(format!("{field} field {name} is not compatible with {constant} constant."));
        }
        match k {
            Constant::Integer(i) if i.width() > u32::from(width) => {
                return Err(format!("{}-bit constant is not compatible with {width}-bit field {name}.", i.width()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Parses a field with an optional `[LO..HI]`.
///
/// # Errors
/// An unknown name, or bits outside the field.
pub fn operand(c: &mut Cursor<'_>) -> Result<Operand, Error> {
    let symbol = match c.peek() {
        Token::Id(name) => symbol::lookup(name),
        _ => None,
    };
    let symbol = symbol.ok_or_else(|| c.syntax("expecting field name"))?;
    c.take();
    let mut o = Operand { symbol, offset: 0, width: symbol.width, bits: Bits::All };
    if !c.accept("[") {
        return Ok(o);
    }
    let name = symbol.name;
    if symbol.width == 0 {
        return Err(c.error(format!("Cannot select subfield of string field {name}.")));
    }
    let bit = |c: &mut Cursor<'_>| c.number(i32::MAX as u128, "expecting small integer");
    let lo = bit(c)?;
    o.bits = if c.accept("..") { Bits::Range } else { Bits::One };
    let hi = if o.bits == Bits::Range { bit(c)? } else { lo };
    c.expect("]")?;
    let width = u128::from(symbol.width);
    if lo > hi {
        return Err(c.error(format!("Invalid bit range {lo} to {hi}.")));
    }
    if hi >= width {
        return Err(c.error(format!("Cannot select bits {lo} to {hi} of {width}-bit field {name}.")));
    }
    if symbol.level == Level::Nominal && (lo, hi) != (0, width - 1) {
        return Err(c.error(format!("Cannot select subfield of nominal field {name}.")));
    }
    o.offset = lo as u8;
    o.width = (hi - lo + 1) as u8;
    Ok(o)
}
