//! Trees as text: tokens with the spaces that northd puts between them.

use crate::action::{
    Action, Actions, Argument, Backends, Balance, BalanceFlag, Call, Function, NextForm, Target, Value,
};
use crate::expr::{Bits, Comparison, Constant, Constants, Expr, Operand};
use crate::lexer::Quoted;
use std::fmt::{self, Arguments, Display};

/// Where tokens go: each with the text in front of it.
type Sink<'s> = dyn FnMut(&'static str, Arguments<'_>) -> fmt::Result + 's;

/// A tree that prints as tokens.
pub trait Print {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result;
}

/// A tree on its way into a sink.
pub struct Printer<'p, 's> {
    sink: &'p mut Sink<'s>,
    gap: &'static str,
}

impl<'p, 's> Printer<'p, 's> {
    pub(crate) fn new(sink: &'p mut Sink<'s>) -> Printer<'p, 's> {
        Printer { sink, gap: "" }
    }

    fn put(&mut self, token: impl Display) -> fmt::Result {
        let gap = std::mem::take(&mut self.gap);
        (self.sink)(gap, format_args!("{token}"))
    }

    /// A space in front of the next token.
    fn space(&mut self) {
        self.gap = " ";
    }

    fn spaced(&mut self, token: impl Display) -> fmt::Result {
        self.space();
        self.put(token)?;
        self.space();
        Ok(())
    }

    /// Items with a comma and this gap between them.
    fn list<T>(&mut self, items: &[T], gap: &'static str, one: impl Fn(&mut Self, &T) -> fmt::Result) -> fmt::Result {
        for (n, item) in items.iter().enumerate() {
            if n > 0 {
                self.put(",")?;
                self.gap = gap;
            }
            one(self, item)?;
        }
        Ok(())
    }

    fn prefixed(&mut self, sign: char, name: &str) -> fmt::Result {
        self.put(format_args!("{sign}{name}"))
    }
}

macro_rules! display {
    ($($t:ty),*) => {$(
        impl Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut sink = |gap: &'static str, token: Arguments<'_>| {
                    f.write_str(gap)?;
                    f.write_fmt(token)
                };
                self.print(&mut Printer::new(&mut sink))
            }
        }
    )*};
}

display!(Expr, Operand, Action, Actions, Call);

impl Print for Operand {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        p.put(self.symbol.name)?;
        if self.bits == Bits::All {
            return Ok(());
        }
        p.put("[")?;
        p.put(self.offset)?;
        if self.bits == Bits::Range {
            p.put("..")?;
            p.put(u16::from(self.offset) + u16::from(self.width) - 1)?;
        }
        p.put("]")
    }
}

impl Print for Constant {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        match self {
            Constant::Integer(i) => p.put(i),
            Constant::String(s) => p.put(Quoted(s)),
            Constant::AddressSet(s) => p.prefixed('$', s),
            Constant::PortGroup(s) => p.prefixed('@', s),
            Constant::Template(s) => p.prefixed('^', s),
        }
    }
}

impl Print for Constants {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        if self.braces {
            p.put("{")?;
        }
        p.list(&self.list, " ", |p, k| k.print(p))?;
        if self.braces { p.put("}") } else { Ok(()) }
    }
}

impl Print for Comparison {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        if self.mirrored {
            self.constants.print(p)?;
            p.spaced(self.relation.mirrored().sign())?;
            self.operand.print(p)
        } else {
            self.operand.print(p)?;
            p.spaced(self.relation.sign())?;
            self.constants.print(p)
        }
    }
}

impl Print for Expr {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        match self {
            Expr::Literal(b) => p.put(u8::from(*b)),
            Expr::And(l) => joined(p, l, "&&"),
            Expr::Or(l) => joined(p, l, "||"),
            Expr::Not(e) => {
                p.put("!")?;
                e.print(p)
            }
            Expr::Parentheses(e) => {
                p.put("(")?;
                e.print(p)?;
                p.put(")")
            }
            Expr::Field(o) => o.print(p),
            Expr::Compare(c) => c.print(p),
            Expr::Range(r) => {
                r.0.print(p)?;
                p.spaced(r.1.relation.sign())?;
                r.1.constants.print(p)
            }
            Expr::Resident(port) => {
                p.put("is_chassis_resident")?;
                p.put("(")?;
                p.put(Quoted(port))?;
                p.put(")")
            }
            Expr::Template(name) => p.prefixed('^', name),
        }
    }
}

fn joined(p: &mut Printer<'_, '_>, list: &[Expr], sign: &str) -> fmt::Result {
    for (n, e) in list.iter().enumerate() {
        if n > 0 {
            p.spaced(sign)?;
        }
        e.print(p)?;
    }
    Ok(())
}

impl Print for Actions {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        sequence(p, &self.list)
    }
}

fn sequence(p: &mut Printer<'_, '_>, list: &[Action]) -> fmt::Result {
    for (n, a) in list.iter().enumerate() {
        if n > 0 {
            p.space();
        }
        a.print(p)?;
        p.put(";")?;
    }
    Ok(())
}

fn block(p: &mut Printer<'_, '_>, name: &str, list: &[Action]) -> fmt::Result {
    p.put(name)?;
    p.space();
    p.put("{")?;
    p.space();
    sequence(p, list)?;
    p.space();
    p.put("}")
}

/// `NAME` or `NAME(ARGUMENT)`.
fn option(p: &mut Printer<'_, '_>, name: &str, argument: Option<&str>) -> fmt::Result {
    p.put(name)?;
    let Some(a) = argument else { return Ok(()) };
    p.put("(")?;
    p.put(a)?;
    p.put(")")
}

impl Print for Action {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        let assign = |p: &mut Printer<'_, '_>, to: &Operand, sign: &str| {
            to.print(p)?;
            p.spaced(sign)
        };
        let stack = |p: &mut Printer<'_, '_>, name: &str, o: &Operand| {
            p.put(name)?;
            p.put("(")?;
            o.print(p)?;
            p.put(")")
        };
        match self {
            Action::Drop => p.put("drop"),
            Action::Output => p.put("output"),
            Action::Next { pipeline, table, form } => next(p, pipeline.map(|p| p.name()), *table, *form),
            Action::Load(to, value) => {
                assign(p, to, "=")?;
                p.put(value)
            }
            Action::LoadTemplate(to, name) => {
                assign(p, to, "=")?;
                p.prefixed('^', name)
            }
            Action::LoadPort(to, name) => {
                assign(p, to, "=")?;
                p.put(Quoted(name))
            }
            Action::Move(to, from) => {
                assign(p, to, "=")?;
                from.print(p)
            }
            Action::Exchange(a, b) => {
                assign(p, a, "<->")?;
                b.print(p)
            }
            Action::Push(o) => stack(p, "push", o),
            Action::Pop(o) => stack(p, "pop", o),
            Action::DecTtl => {
                p.put("ip.ttl")?;
                p.put("--")
            }
            Action::CtNext(zone) => option(p, "ct_next", zone.map(|z| z.name())),
            Action::CtCommit(None) => p.put("ct_commit"),
            Action::CtCommit(Some(list)) => block(p, "ct_commit", list),
            Action::CtCommitToZone(zone) => option(p, "ct_commit_to_zone", Some(zone.name())),
            Action::CtCommitNat(zone) => option(p, "ct_commit_nat", zone.map(|z| z.name())),
            Action::CtDnat { target, common } => {
                translate(p, if *common { "ct_dnat_in_czone" } else { "ct_dnat" }, target.as_ref())
            }
            Action::CtSnat { target, common } => {
                translate(p, if *common { "ct_snat_in_czone" } else { "ct_snat" }, target.as_ref())
            }
            Action::CtSnatToVip => p.put("ct_snat_to_vip"),
            Action::CtClear => p.put("ct_clear"),
            Action::CtLb(b) => balance(p, b),
            Action::Clone(list) => block(p, "clone", list),
            Action::Make(made, list) => block(p, made.name(), list),
            Action::Call(call) => call.print(p),
        }
    }
}

fn next(p: &mut Printer<'_, '_>, pipeline: Option<&str>, table: Option<u8>, form: NextForm) -> fmt::Result {
    p.put("next")?;
    if pipeline.is_none() && table.is_none() {
        return Ok(());
    }
    p.put("(")?;
    let table = table.map(|t| t.to_string());
    match (form, &table) {
        (NextForm::Positional, Some(t)) => p.put(t)?,
        _ => {
            let mut parts = [("pipeline", pipeline), ("table", table.as_deref())];
            if form == NextForm::TableFirst {
                parts.reverse();
            }
            let parts: Vec<(&str, &str)> = parts.into_iter().filter_map(|(n, v)| Some((n, v?))).collect();
            p.list(&parts, " ", |p, (name, value)| {
                p.put(name)?;
                p.put("=")?;
                p.put(value)
            })?;
        }
    }
    p.put(")")
}

fn translate(p: &mut Printer<'_, '_>, name: &str, target: Option<&Target>) -> fmt::Result {
    p.put(name)?;
    let Some(t) = target else { return Ok(()) };
    p.put("(")?;
    p.put(t.ip)?;
    if let Some((lo, hi)) = t.ports {
        p.put(",")?;
        p.put(lo)?;
        if hi != lo {
            p.put("-")?;
            p.put(hi)?;
        }
    }
    p.put(")")
}

fn balance(p: &mut Printer<'_, '_>, b: &Balance) -> fmt::Result {
    p.put(match (b.mark, b.local) {
        (false, _) => "ct_lb",
        (true, false) => "ct_lb_mark",
        (true, true) => "ct_lb_mark_local",
    })?;
    let Some(backends) = &b.backends else {
        if b.parentheses {
            p.put("(")?;
            p.put(")")?;
        }
        return Ok(());
    };
    for token in ["(", "backends", "="] {
        p.put(token)?;
    }
    match backends {
        Backends::Template(name) => p.prefixed('^', name)?,
        Backends::List(list) => p.list(list, "", |p, b| {
            if let Some(name) = &b.port_name {
                p.put(Quoted(name))?;
                p.put(":")?;
            }
            if b.brackets {
                p.put("[")?;
            }
            p.put(b.ip)?;
            if b.brackets {
                p.put("]")?;
            }
            let Some(port) = b.port else { return Ok(()) };
            p.put(":")?;
            p.put(port)
        })?,
    }
    if let Some(fields) = &b.hash_fields {
        p.put(";")?;
        p.space();
        p.put("hash_fields")?;
        p.put("=")?;
        p.put(Quoted(fields))?;
    }
    if let Some(flag) = b.flag {
        p.put(";")?;
        p.space();
        p.put(flag.name())?;
    }
    p.put(")")
}

impl BalanceFlag {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            BalanceFlag::SkipSnat => "skip_snat",
            BalanceFlag::ForceSnat => "force_snat",
        }
    }
}

impl Print for Value {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        match self {
            Value::Integer(i) => p.put(i),
            Value::String(s) => p.put(Quoted(s)),
            Value::Word(s) => p.put(s),
            Value::Field(o) => o.print(p),
            Value::Variable(s) => p.prefixed('$', s),
            Value::Template(s) => p.prefixed('^', s),
        }
    }
}

impl Print for Call {
    fn print(&self, p: &mut Printer<'_, '_>) -> fmt::Result {
        if let Some(to) = &self.result {
            to.print(p)?;
            p.spaced("=")?;
        }
        p.put(self.function.name())?;
        if !self.parentheses {
            return Ok(());
        }
        p.put("(")?;
        match self.arguments.split_last() {
            Some((hash @ Argument::Named(..), members)) if self.function == Function::Select => {
                for token in ["values", "=", "("] {
                    p.put(token)?;
                }
                p.list(members, " ", |p, a| argument(p, a, false))?;
                p.put(")")?;
                p.put(";")?;
                p.space();
                argument(p, hash, false)?;
            }
            _ => {
                let close = matches!(self.function, Function::Sample | Function::FwdGroup);
                // Options of DHCP, router advertisements and events have spaces around their `=`.
                let wide = matches!(
                    self.function,
                    Function::PutDhcpOpts | Function::PutDhcpv6Opts | Function::PutNdRaOpts | Function::TriggerEvent
                );
                p.list(&self.arguments, if close { "" } else { " " }, |p, a| argument(p, a, wide))?;
            }
        }
        p.put(")")
    }
}

fn argument(p: &mut Printer<'_, '_>, a: &Argument, wide: bool) -> fmt::Result {
    let equals = |p: &mut Printer<'_, '_>| if wide { p.spaced("=") } else { p.put("=") };
    match a {
        Argument::Field(o) => o.print(p),
        Argument::Value(v) => v.print(p),
        Argument::Weighted(id, weight) => {
            p.put(id)?;
            let Some(w) = weight else { return Ok(()) };
            p.put("=")?;
            p.put(w)
        }
        Argument::Named(name, values) => {
            p.put(name)?;
            if values.is_empty() {
                return Ok(());
            }
            equals(p)?;
            p.list(values, "", |p, v| v.print(p))
        }
        Argument::Set(name, values) => {
            p.put(name)?;
            equals(p)?;
            p.put("{")?;
            p.list(values, " ", |p, v| v.print(p))?;
            p.put("}")
        }
    }
}
