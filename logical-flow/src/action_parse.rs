//! The parser of actions.

use crate::action::{Action, Backend, Backends, Balance, BalanceFlag, Made, NextForm, Pipeline, Target, Zone};
use crate::constant::{Format, Integer};
use crate::expr::{Constant, Operand, operand, type_check};
use crate::lexer::{Cursor, Token};
use crate::symbol::Kind;
use crate::{Error, action_call};
use std::net::IpAddr;

/// A parser at work.
pub(crate) struct Parser<'t> {
    pub(crate) c: Cursor<'t>,
    pub(crate) prerequisites: Vec<&'static str>,
    depth: usize,
    /// Whether the actions of a `ct_commit` are being parsed.
    commit: bool,
}

/// How deep actions nest.
const MAX_DEPTH: usize = 32;

impl<'t> Parser<'t> {
    pub(crate) fn new(text: &'t str) -> Parser<'t> {
        Parser { c: Cursor::new(text), prerequisites: Vec::new(), depth: 0, commit: false }
    }

    /// Notes an implied condition.
    pub(crate) fn require(&mut self, prerequisite: &'static str) {
        if !prerequisite.is_empty() && !self.prerequisites.contains(&prerequisite) {
            self.prerequisites.push(prerequisite);
        }
    }

    /// A field with its implied condition.
    pub(crate) fn field(&mut self) -> Result<Operand, Error> {
        let o = operand(&mut self.c)?;
        if matches!(o.symbol.kind, Kind::Predicate(_)) {
            return Err(self.c.error(format!("Predicate symbol {} used where lvalue required.", o.symbol.name)));
        }
        self.require(o.symbol.prerequisite);
        Ok(o)
    }

    /// Whether a field has this width, and may be written.
    pub(crate) fn suits(&self, o: &Operand, width: u8, write: bool) -> Result<(), Error> {
        let name = o.symbol.name;
        if o.width != width {
            return Err(self.c.error(match (width, o.width) {
                (0, _) => format!("Cannot use numeric field {name} where string field is required."),
                (_, 0) => format!("Cannot use string field {name} where numeric field is required."),
                (_, n) => format!(
                    "Cannot use {n}-bit field {name}[{}..{}] where {width}-bit field is required.",
                    o.offset,
                    o.offset + n - 1
                ),
            }));
        }
        // A connection's own fields are written by ct_commit, and ct_commit writes nothing else.
        let connection = name.starts_with("ct_mark") || name.starts_with("ct_label");
        if write && (!o.symbol.writable || connection != self.commit) {
            return Err(self.c.error(format!("Field {name} is not modifiable.")));
        }
        Ok(())
    }

    /// Actions up to this punctuation, or to the end. `drop;` stands alone.
    pub(crate) fn list(&mut self, until: Option<&'static str>) -> Result<Vec<Action>, Error> {
        let mut list = Vec::new();
        if matches!(self.c.peek(), Token::Id("drop")) && matches!(self.c.peek_second(), Token::Punct(";")) {
            self.c.take();
            self.c.take();
            match until {
                Some(p) => self.c.expect(p)?,
                None if self.c.at_end() => {}
                None => return Err(self.c.syntax("expecting end of input")),
            }
            return Ok(vec![Action::Drop]);
        }
        loop {
            let end = match until {
                Some(p) => self.c.accept(p),
                None => self.c.at_end(),
            };
            if end {
                return Ok(list);
            }
            list.push(self.action()?);
        }
    }

    fn action(&mut self) -> Result<Action, Error> {
        let name = match *self.c.peek() {
            Token::Id(name) => name,
            Token::Template(_) => return Err(self.c.error("Unexpanded template.")),
            _ => return Err(self.c.syntax("")),
        };
        let a = match self.c.peek_second() {
            Token::Punct("=" | "<->" | "[") => self.assignment()?,
            _ => self.named(name)?,
        };
        self.c.expect(";")?;
        Ok(a)
    }

    /// `{ ACTION … }`
    fn block(&mut self) -> Result<Vec<Action>, Error> {
        self.c.expect("{")?;
        if self.depth + 1 == MAX_DEPTH {
            return Err(self.c.error("maximum depth of nested actions reached"));
        }
        self.depth += 1;
        let list = self.list(Some("}"))?;
        self.depth -= 1;
        Ok(list)
    }

    /// A block for a packet that is made: what its actions ask for does not hold for the packet at hand.
    fn nested(&mut self) -> Result<Vec<Action>, Error> {
        let outer = self.prerequisites.clone();
        let block = self.block();
        self.prerequisites = outer;
        block
    }

    fn assignment(&mut self) -> Result<Action, Error> {
        let to = self.field()?;
        if self.c.accept("<->") {
            let other = self.field()?;
            self.same_kind(&to, &other, true)?;
            return Ok(Action::Exchange(to, other));
        }
        if !self.c.accept("=") {
            return Err(self.c.syntax("expecting `=' or `<->'"));
        }
        let Token::Id(name) = *self.c.peek() else { return self.load(to) };
        if matches!(self.c.peek_second(), Token::Punct("("))
            && let Some(call) = action_call::result_call(self, name, &to)?
        {
            return Ok(Action::Call(call));
        }
        let from = self.field()?;
        self.same_kind(&to, &from, false)?;
        Ok(Action::Move(to, from))
    }

    fn load(&mut self, to: Operand) -> Result<Action, Error> {
        self.suits(&to, to.width, true)?;
        let k = match self.c.peek() {
            Token::Integer(i) => Constant::Integer(*i),
            Token::String(s) => Constant::String(s.clone().into_owned()),
            Token::Template(s) => Constant::Template((*s).to_string()),
            _ => return Err(self.c.syntax("expecting constant")),
        };
        self.c.take();
        type_check(&to, std::slice::from_ref(&k)).map_err(|e| self.c.error(e))?;
        match k {
            Constant::Integer(i) => Ok(Action::Load(to, i)),
            Constant::String(s) => Ok(Action::LoadPort(to, s)),
            Constant::Template(s) => Ok(Action::LoadTemplate(to, s)),
            Constant::AddressSet(_) | Constant::PortGroup(_) => Err(self.c.syntax("expecting constant")),
        }
    }

    /// Whether one field can be assigned to, or exchanged with, another.
    fn same_kind(&self, to: &Operand, from: &Operand, exchange: bool) -> Result<(), Error> {
        let kind = |o: &Operand| if o.symbol.width == 0 { "string" } else { "integer" };
        let (x, y) = (to.symbol.name, from.symbol.name);
        let text = match (kind(to) == kind(from), exchange) {
            (false, true) => {
                format!("Can't exchange {} field ({x}) with {} field ({y}).", kind(to), kind(from))
            }
            (false, false) => format!("Can't assign {} field ({y}) to {} field ({x}).", kind(from), kind(to)),
            (true, true) if to.width != from.width => {
                format!("Can't exchange {}-bit field with {}-bit field.", to.width, from.width)
            }
            (true, false) if to.width != from.width => {
                format!("Can't assign {}-bit value to {}-bit destination.", from.width, to.width)
            }
            _ => {
                self.suits(to, to.width, true)?;
                return self.suits(from, from.width, exchange);
            }
        };
        Err(self.c.error(text))
    }

    fn named(&mut self, name: &'t str) -> Result<Action, Error> {
        if let Some(made) = Made::from_name(name) {
            self.c.take();
            let list = self.nested()?;
            self.require(made.prerequisite());
            return Ok(Action::Make(made, list));
        }
        let simple = match name {
            "output" => Some(Action::Output),
            "ct_snat_to_vip" => Some(Action::CtSnatToVip),
            "ct_clear" => Some(Action::CtClear),
            _ => None,
        };
        if let Some(a) = simple {
            self.c.take();
            return Ok(a);
        }
        match name {
            "next" | "push" | "pop" | "clone" | "ip.ttl" => {
                self.c.take();
                match name {
                    "next" => self.next(),
                    "clone" => Ok(Action::Clone(self.block()?)),
                    "ip.ttl" => {
                        self.c.expect("--")?;
                        self.require("ip");
                        Ok(Action::DecTtl)
                    }
                    _ => self.stack(name == "push"),
                }
            }
            "ct_next" | "ct_commit" | "ct_commit_to_zone" | "ct_commit_nat" | "ct_dnat" | "ct_dnat_in_czone"
            | "ct_snat" | "ct_snat_in_czone" | "ct_lb" | "ct_lb_mark" | "ct_lb_mark_local" => {
                self.c.take();
                self.require("ip");
                self.tracking(name)
            }
            _ => action_call::plain_call(self, name).map(Action::Call),
        }
    }

    fn stack(&mut self, push: bool) -> Result<Action, Error> {
        self.c.expect("(")?;
        let f = self.field()?;
        self.suits(&f, f.width, !push)?;
        self.c.expect(")")?;
        Ok(if push { Action::Push(f) } else { Action::Pop(f) })
    }

    fn tracking(&mut self, name: &str) -> Result<Action, Error> {
        Ok(match name {
            "ct_next" => Action::CtNext(self.zone(name)?),
            "ct_commit_nat" => Action::CtCommitNat(self.zone(name)?),
            "ct_commit_to_zone" => match self.zone(name)? {
                Some(z) => Action::CtCommitToZone(z),
                None => return Err(self.c.syntax("expecting `('")),
            },
            "ct_commit" => Action::CtCommit(self.commit()?),
            "ct_dnat" | "ct_dnat_in_czone" => {
                Action::CtDnat { target: self.target()?, common: name == "ct_dnat_in_czone" }
            }
            "ct_snat" | "ct_snat_in_czone" => {
                Action::CtSnat { target: self.target()?, common: name == "ct_snat_in_czone" }
            }
            _ => Action::CtLb(Box::new(self.balance(name)?)),
        })
    }

    fn next(&mut self) -> Result<Action, Error> {
        let (mut pipeline, mut table, mut form) = (None, None, NextForm::Named);
        if self.c.accept("(") {
            if matches!(self.c.peek(), Token::Integer(Integer { format: Format::Decimal, .. })) {
                table = Some(self.table()?);
                form = NextForm::Positional;
            } else {
                loop {
                    if pipeline.is_none() && self.c.accept_id("pipeline") {
                        self.c.expect("=")?;
                        pipeline = Some(if self.c.accept_id("ingress") {
                            Pipeline::Ingress
                        } else if self.c.accept_id("egress") {
                            Pipeline::Egress
                        } else {
                            return Err(self.c.syntax("expecting \"ingress\" or \"egress\""));
                        });
                        form = if table.is_some() { NextForm::TableFirst } else { form };
                    } else if table.is_none() && self.c.accept_id("table") {
                        self.c.expect("=")?;
                        table = Some(self.table()?);
                    } else {
                        return Err(self.c.syntax("expecting \"pipeline\" or \"table\""));
                    }
                    if !self.c.accept(",") {
                        break;
                    }
                }
            }
            self.c.expect(")")?;
        }
        Ok(Action::Next { pipeline, table, form })
    }

    fn table(&mut self) -> Result<u8, Error> {
        self.c.number(u128::from(u8::MAX), "expecting small integer").map(|v| v as u8)
    }

    fn zone(&mut self, name: &str) -> Result<Option<Zone>, Error> {
        if !self.c.accept("(") {
            return Ok(None);
        }
        let zone = if self.c.accept_id("dnat") {
            Zone::Dnat
        } else if self.c.accept_id("snat") {
            Zone::Snat
        } else {
            return Err(self.c.error(format!("\"{name}\" action accepts only \"dnat\" or \"snat\" parameter.")));
        };
        self.c.expect(")")?;
        Ok(Some(zone))
    }

    fn commit(&mut self) -> Result<Option<Vec<Action>>, Error> {
        if !self.c.is("{") {
            return Ok(None);
        }
        self.commit = true;
        let list = self.nested()?;
        self.commit = false;
        Ok(Some(list))
    }

    fn ip(&mut self, what: &str) -> Result<IpAddr, Error> {
        let ip = match *self.c.peek() {
            Token::Integer(Integer { value, mask: None, format: Format::Ipv4, .. }) => {
                IpAddr::from((value as u32).to_be_bytes())
            }
            Token::Integer(Integer { value, mask: None, format: Format::Ipv6, .. }) => {
                IpAddr::from(value.to_be_bytes())
            }
            _ => return Err(self.c.syntax(what)),
        };
        self.c.take();
        Ok(ip)
    }

    pub(crate) fn uint16(&mut self, what: &str) -> Result<u16, Error> {
        self.c.number(u128::from(u16::MAX), what).map(|v| v as u16)
    }

    fn target(&mut self) -> Result<Option<Target>, Error> {
        if !self.c.accept("(") {
            return Ok(None);
        }
        let ip = self.ip("expecting IPv4 or IPv6 address")?;
        let mut ports = None;
        if self.c.accept(",") {
            if matches!(self.c.peek(), Token::Integer(Integer { value: 0, .. })) {
                return Err(self.c.syntax("range can't be 0"));
            }
            let lo = self.uint16("expecting Integer for port range")?;
            let mut hi = lo;
            if self.c.accept("-") {
                let is_low = |v: u128| v <= u128::from(lo);
                if matches!(*self.c.peek(), Token::Integer(Integer { value, .. }) if is_low(value)) {
                    return Err(self.c.syntax("range high should be greater than range low"));
                }
                hi = self.uint16("expecting Integer for port range")?;
            }
            ports = Some((lo, hi));
        }
        self.c.expect(")")?;
        Ok(Some(Target { ip, ports }))
    }

    fn balance(&mut self, name: &str) -> Result<Balance, Error> {
        let mut b = Balance {
            mark: name != "ct_lb",
            local: name == "ct_lb_mark_local",
            backends: None,
            hash_fields: None,
            flag: None,
            parentheses: false,
        };
        if !self.c.accept("(") {
            return Ok(b);
        }
        if self.c.accept(")") {
            b.parentheses = true;
            return Ok(b);
        }
        if !self.c.accept_id("backends") || !self.c.accept("=") {
            return Err(self.c.syntax("expecting backends"));
        }
        b.backends = Some(self.backends(b.local)?);
        if self.c.accept(";") {
            if self.c.accept_id("hash_fields") {
                if !self.c.accept("=") {
                    return Err(self.c.syntax("invalid hash_fields"));
                }
                b.hash_fields = Some(self.c.string("invalid hash_fields")?);
            }
            if b.hash_fields.is_none() || self.c.accept(";") {
                b.flag = Some(if self.c.accept_id("skip_snat") {
                    BalanceFlag::SkipSnat
                } else if self.c.accept_id("force_snat") {
                    BalanceFlag::ForceSnat
                } else {
                    return Err(self.c.syntax("expecting `skip_snat' or `force_snat'"));
                });
            }
        }
        self.c.expect(")")?;
        Ok(b)
    }

    fn backends(&mut self, local: bool) -> Result<Backends, Error> {
        if let Token::Template(name) = *self.c.peek() {
            self.c.take();
            return Ok(Backends::Template(name.to_string()));
        }
        let mut out = Vec::new();
        while !self.c.is(";") && !self.c.is(")") {
            let port_name = if local {
                let name = self.c.string("expecting logical port name for distributed load balancer")?;
                self.c.expect(":")?;
                Some(name)
            } else {
                None
            };
            let brackets = self.c.accept("[");
            let ip = match (brackets, self.c.peek()) {
                (true, Token::Integer(Integer { format: Format::Ipv6, .. })) | (false, _) => {
                    self.ip("expecting IP address")?
                }
                _ => return Err(self.c.syntax("expecting IPv6 address")),
            };
            if brackets && !self.c.accept("]") {
                return Err(self.c.syntax("no closing square bracket"));
            }
            let port = if self.c.accept(":") {
                if ip.is_ipv6() && !brackets {
                    return Err(self.c.syntax("IPv6 address needs square brackets if port is included"));
                }
                Some(self.uint16("expecting port number")?)
            } else {
                None
            };
            out.push(Backend { port_name, ip, brackets, port });
            self.c.accept(",");
        }
        Ok(Backends::List(out))
    }
}
