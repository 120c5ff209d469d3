//! Actions (ovn-sb(5), column `actions`): parse to a tree.

pub use crate::action_call::{Argument, Call, Function, Value};
use crate::expr::{Operand, operand};
use crate::lexer::{Cursor, Format, Integer, Token};
use crate::symbol::{self, Kind};
use crate::{Error, action_call};
use std::net::IpAddr;

/// A pipeline of a logical datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pipeline {
    /// From the input port to the choice of the output port.
    Ingress,
    /// To one output port.
    Egress,
}

/// Which of a router's connection tracking zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// For destination translation.
    Dnat,
    /// For source translation.
    Snat,
}

/// Packets that are made from the one at hand, for nested actions to work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the actions' own names")]
pub enum Made {
    Arp,
    Icmp4,
    Icmp4Error,
    Icmp6,
    Icmp6Error,
    TcpReset,
    SctpAbort,
    Reject,
    NdNa,
    NdNaRouter,
    NdNs,
}

/// A load balancer's destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The logical port that it is behind, where the load balancer is a distributed one.
    pub port_name: Option<String>,
    /// Its address.
    pub ip: IpAddr,
    /// Its transport port.
    pub port: Option<u16>,
}

/// The target of a translation: an address and, for sources, a range of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub ip: IpAddr,
    /// First and last port.
    pub ports: Option<(u16, u16)>,
}

/// One action.
#[derive(Clone, Debug)]
pub enum Action {
    /// `output;`
    Output,
    /// `next;` `next(TABLE);` `next(pipeline=P, table=TABLE);`
    Next {
        /// The pipeline; none: the flow's own.
        pipeline: Option<Pipeline>,
        /// The table; none: the one after the flow's.
        table: Option<u8>,
    },
    /// `FIELD = CONSTANT;`
    Load(Operand, Integer),
    /// `PORT_FIELD = "NAME";`
    LoadPort(Operand, String),
    /// `FIELD = FIELD;`: to, from.
    Move(Operand, Operand),
    /// `FIELD <-> FIELD;`
    Exchange(Operand, Operand),
    /// `push(FIELD);`
    Push(Operand),
    /// `pop(FIELD);`
    Pop(Operand),
    /// `ip.ttl--;`
    DecTtl,
    /// `ct_next;` `ct_next(dnat);`
    CtNext(Option<Zone>),
    /// `ct_commit { … };`: assignments to ct_mark and ct_label.
    CtCommit(Vec<Action>),
    /// `ct_commit_to_zone(dnat);`
    CtCommitToZone(Zone),
    /// `ct_commit_nat;` `ct_commit_nat(snat);`
    CtCommitNat(Option<Zone>),
    /// `ct_dnat;` `ct_dnat(IP);` and in the common zone.
    CtDnat {
        /// Translate to this; none: undo a source's translation.
        target: Option<Target>,
        /// In the zone that both directions share.
        common: bool,
    },
    /// `ct_snat;` `ct_snat(IP);` and in the common zone.
    CtSnat {
        /// Translate to this; none: undo a destination's translation.
        target: Option<Target>,
        /// In the zone that both directions share.
        common: bool,
    },
    /// `ct_snat_to_vip;`
    CtSnatToVip,
    /// `ct_clear;`
    CtClear,
    /// `ct_lb;` `ct_lb_mark;` `ct_lb_mark(backends=…);`
    CtLb {
        /// Keep the flags in ct_mark rather than ct_label.
        mark: bool,
        /// Choose among the backends of this chassis only.
        local: bool,
        /// Choose among these; none: pass through connection tracking.
        backends: Option<Vec<Backend>>,
        /// Fields to hash; empty: the datapath's choice.
        hash_fields: Vec<String>,
        /// `skip_snat` or `force_snat`.
        flag: Option<String>,
    },
    /// `clone { … };`
    Clone(Vec<Action>),
    /// `icmp4 { … };` and its kin.
    Make(Made, Vec<Action>),
    /// Everything with arguments, `RESULT = FUNCTION(…);` or `FUNCTION(…);`.
    Call(Call),
}

/// Parsed actions with the conditions that they imply for the match.
#[derive(Clone, Debug, Default)]
pub struct Actions {
    /// The actions in order; none: drop.
    pub list: Vec<Action>,
    /// Expressions that the fields used ask for, without duplicates.
    pub prerequisites: Vec<&'static str>,
}

/// Parses actions. `drop;` and an empty text give no action.
///
/// # Errors
/// Syntax errors with place and expectation.
pub fn parse(text: &str) -> Result<Actions, Error> {
    let mut p = Parser { c: Cursor::new(text)?, prerequisites: Vec::new(), depth: 0 };
    if p.c.accept_id("drop") {
        p.c.expect(";")?;
        if !p.c.at_end() {
            return Err(p.c.syntax("expecting end of input"));
        }
        return Ok(Actions::default());
    }
    let mut list = Vec::new();
    while !p.c.at_end() {
        list.push(p.action()?);
    }
    Ok(Actions { list, prerequisites: p.prerequisites })
}

/// A parser at work.
pub(crate) struct Parser {
    pub(crate) c: Cursor,
    pub(crate) prerequisites: Vec<&'static str>,
    depth: usize,
}

impl Parser {
    /// Notes an implied condition.
    pub(crate) fn require(&mut self, prerequisite: &'static str) {
        if !prerequisite.is_empty() && !self.prerequisites.contains(&prerequisite) {
            self.prerequisites.push(prerequisite);
        }
    }

    /// A field with its implied condition.
    pub(crate) fn field(&mut self, write: bool) -> Result<Operand, Error> {
        let at = self.c.at();
        let o = operand(&mut self.c)?;
        if write && !o.symbol.writable {
            return Err(Error::new(at, format!("Field {} is not modifiable.", o.symbol.name)));
        }
        self.require(o.symbol.prerequisite);
        Ok(o)
    }

    fn action(&mut self) -> Result<Action, Error> {
        let Token::Id(name) = self.c.peek().clone() else { return Err(self.c.syntax("expecting action")) };
        if let Some(made) = made(&name) {
            self.c.take();
            return Ok(Action::Make(made, self.nested(made)?));
        }
        if name == "clone" {
            self.c.take();
            return Ok(Action::Clone(self.block()?));
        }
        let a = if self.assigns() { self.assignment()? } else { self.named(&name)? };
        self.c.expect(";")?;
        Ok(a)
    }

    /// Whether an assignment, an exchange or a decrement begins here.
    fn assigns(&self) -> bool {
        matches!(self.c.peek_second(), Token::Punct("=" | "<->" | "--" | "["))
    }

    fn nested(&mut self, made: Made) -> Result<Vec<Action>, Error> {
        self.require(match made {
            Made::Arp | Made::NdNs => "ip",
            Made::Icmp4 | Made::Icmp4Error => "ip4",
            Made::Icmp6 | Made::Icmp6Error => "ip6",
            Made::TcpReset => "tcp",
            Made::SctpAbort => "sctp",
            Made::Reject => "",
            Made::NdNa | Made::NdNaRouter => "nd_ns",
        });
        // What the nested actions ask for holds for the packet that is made, not for this one.
        let outer = self.prerequisites.clone();
        let block = self.block();
        self.prerequisites = outer;
        block
    }

    /// `{ ACTION … }` with an optional `;`.
    fn block(&mut self) -> Result<Vec<Action>, Error> {
        self.depth += 1;
        if self.depth > 10 {
            return Err(Error::new(self.c.at(), "Actions nested too deeply."));
        }
        self.c.expect("{")?;
        let mut list = Vec::new();
        if self.c.accept_id("drop") {
            self.c.expect(";")?;
        }
        while !self.c.accept("}") {
            list.push(self.action()?);
        }
        self.c.accept(";");
        self.depth -= 1;
        Ok(list)
    }

    fn assignment(&mut self) -> Result<Action, Error> {
        let at = self.c.at();
        let to = self.field(true)?;
        if self.c.accept("--") {
            if to.symbol.name != "ip.ttl" {
                return Err(Error::new(at, format!("Decrement is not possible for {}; only ip.ttl.", to.symbol.name)));
            }
            return Ok(Action::DecTtl);
        }
        if self.c.accept("<->") {
            let other = self.field(true)?;
            self.same_kind(&to, &other, at)?;
            return Ok(Action::Exchange(to, other));
        }
        self.c.expect("=")?;
        match self.c.peek().clone() {
            Token::Id(name) if symbol::lookup(&name).is_none() || matches!(self.c.peek_second(), Token::Punct("(")) => {
                action_call::result_call(self, &name, to).map(Action::Call)
            }
            Token::Id(_) => {
                let from = self.field(false)?;
                self.same_kind(&to, &from, at)?;
                Ok(Action::Move(to, from))
            }
            Token::String(s) if matches!(to.symbol.kind, Kind::Port(_)) => {
                self.c.take();
                Ok(Action::LoadPort(to, s))
            }
            Token::Integer(i) if to.width > 0 => {
                self.c.take();
                if 128 - i.value.leading_zeros() > u32::from(to.width) {
                    let bits = 128 - i.value.leading_zeros();
                    let text = format!(
                        "{bits}-bit constant is not compatible with {}-bit field {}.",
                        to.width, to.symbol.name
                    );
                    return Err(Error::new(at, text));
                }
                Ok(Action::Load(to, i))
            }
            _ => Err(self.c.syntax("expecting constant or field")),
        }
    }

    fn same_kind(&self, a: &Operand, b: &Operand, at: usize) -> Result<(), Error> {
        if a.width == b.width {
            return Ok(());
        }
        let (x, y) = (a.symbol.name, b.symbol.name);
        let text = if a.width == 0 || b.width == 0 {
            format!("Can't assign {} field to {} field ({y} to {x}).", kind_name(b), kind_name(a))
        } else {
            format!("Can't assign {}-bit value to {}-bit destination.", b.width, a.width)
        };
        Err(Error::new(at, text))
    }

    fn named(&mut self, name: &str) -> Result<Action, Error> {
        self.c.take();
        Ok(match name {
            "output" => Action::Output,
            "next" => self.next()?,
            "push" | "pop" => {
                self.c.expect("(")?;
                let f = self.field(name == "pop")?;
                self.c.expect(")")?;
                if name == "push" { Action::Push(f) } else { Action::Pop(f) }
            }
            "ct_next" => {
                self.require("ip");
                Action::CtNext(self.zone()?)
            }
            "ct_commit" => Action::CtCommit(self.commit()?),
            "ct_commit_to_zone" => {
                self.require("ip");
                Action::CtCommitToZone(self.zone()?.ok_or_else(|| self.c.syntax("expecting `(dnat)' or `(snat)'"))?)
            }
            "ct_commit_nat" => {
                self.require("ip");
                Action::CtCommitNat(self.zone()?)
            }
            "ct_dnat" | "ct_dnat_in_czone" => {
                Action::CtDnat { target: self.target()?, common: name == "ct_dnat_in_czone" }
            }
            "ct_snat" | "ct_snat_in_czone" => {
                Action::CtSnat { target: self.target()?, common: name == "ct_snat_in_czone" }
            }
            "ct_snat_to_vip" => Action::CtSnatToVip,
            "ct_clear" => Action::CtClear,
            "ct_lb" | "ct_lb_mark" | "ct_lb_mark_local" => self.load_balance(name)?,
            _ => Action::Call(action_call::plain_call(self, name)?),
        })
    }

    fn next(&mut self) -> Result<Action, Error> {
        let (mut pipeline, mut table) = (None, None);
        if self.c.accept("(") {
            while !self.c.accept(")") {
                match self.c.take() {
                    Token::Id(k) if k == "pipeline" => {
                        self.c.expect("=")?;
                        pipeline = Some(match self.c.take() {
                            Token::Id(p) if p == "ingress" => Pipeline::Ingress,
                            Token::Id(p) if p == "egress" => Pipeline::Egress,
                            _ => return Err(self.c.syntax("expecting \"ingress\" or \"egress\"")),
                        });
                    }
                    Token::Id(k) if k == "table" => {
                        self.c.expect("=")?;
                        table = Some(self.small()?);
                    }
                    Token::Integer(i) if i.value < 64 => table = Some(i.value as u8),
                    _ => return Err(self.c.syntax("expecting \"pipeline\" or \"table\"")),
                }
                self.c.accept(",");
            }
        }
        Ok(Action::Next { pipeline, table })
    }

    fn small(&mut self) -> Result<u8, Error> {
        match self.c.take() {
            Token::Integer(Integer { value, mask: None, format: Format::Decimal }) if value < 64 => Ok(value as u8),
            _ => Err(self.c.syntax("expecting table number")),
        }
    }

    fn zone(&mut self) -> Result<Option<Zone>, Error> {
        if !self.c.accept("(") {
            return Ok(None);
        }
        let zone = match self.c.take() {
            Token::Id(z) if z == "dnat" => Zone::Dnat,
            Token::Id(z) if z == "snat" => Zone::Snat,
            _ => return Err(self.c.syntax("expecting \"dnat\" or \"snat\"")),
        };
        self.c.expect(")")?;
        Ok(Some(zone))
    }

    fn commit(&mut self) -> Result<Vec<Action>, Error> {
        self.require("ip");
        if !matches!(self.c.peek(), Token::Punct("{")) {
            return Ok(Vec::new());
        }
        self.c.expect("{")?;
        let mut list = Vec::new();
        while !self.c.accept("}") {
            let at = self.c.at();
            let a = self.assignment()?;
            self.c.accept(";");
            let to = match &a {
                Action::Load(o, _) | Action::Move(o, _) => o,
                _ => return Err(Error::new(at, "Only assignments may stand in ct_commit.")),
            };
            if !to.symbol.name.starts_with("ct_mark") && !to.symbol.name.starts_with("ct_label") {
                return Err(Error::new(at, format!("Field {} is not modifiable in ct_commit.", to.symbol.name)));
            }
            list.push(a);
        }
        Ok(list)
    }

    pub(crate) fn ip(&mut self) -> Result<IpAddr, Error> {
        match self.c.take() {
            Token::Integer(Integer { value, mask: None, format: Format::Ipv4 }) => {
                Ok(IpAddr::from((value as u32).to_be_bytes()))
            }
            Token::Integer(Integer { value, mask: None, format: Format::Ipv6 }) => {
                Ok(IpAddr::from(value.to_be_bytes()))
            }
            _ => Err(self.c.syntax("expecting IPv4 or IPv6 address")),
        }
    }

    pub(crate) fn number(&mut self, max: u128, what: &str) -> Result<u128, Error> {
        match self.c.take() {
            Token::Integer(Integer { value, mask: None, format: Format::Decimal | Format::Hex }) if value <= max => {
                Ok(value)
            }
            _ => Err(self.c.syntax(&format!("expecting {what}"))),
        }
    }

    fn target(&mut self) -> Result<Option<Target>, Error> {
        self.require("ip");
        if !self.c.accept("(") {
            return Ok(None);
        }
        let ip = self.ip()?;
        let mut ports = None;
        if self.c.accept(",") {
            let lo = self.number(65535, "port number")? as u16;
            // `1-65535`: the second number reads as a decrement's sign is not a token of its own here.
            let hi = if self.c.accept("-") { self.number(65535, "port number")? as u16 } else { lo };
            if lo > hi {
                return Err(self.c.syntax("range high should be greater than range low"));
            }
            ports = Some((lo, hi));
        }
        self.c.expect(")")?;
        Ok(Some(Target { ip, ports }))
    }

    fn load_balance(&mut self, name: &str) -> Result<Action, Error> {
        self.require("ip");
        let (mut backends, mut hash_fields, mut flag) = (None, Vec::new(), None);
        if self.c.accept("(") {
            while !self.c.accept(")") {
                match self.c.take() {
                    Token::Id(k) if k == "backends" => {
                        self.c.expect("=")?;
                        backends = Some(self.backends()?);
                    }
                    Token::Id(k) if k == "hash_fields" => {
                        self.c.expect("=")?;
                        let Token::String(s) = self.c.take() else { return Err(self.c.syntax("expecting string")) };
                        hash_fields = s.split(',').map(|f| f.trim().to_string()).collect();
                    }
                    Token::Id(k) if k == "skip_snat" || k == "force_snat" => flag = Some(k),
                    _ => return Err(self.c.syntax("expecting `backends', `hash_fields', `skip_snat' or `force_snat'")),
                }
                self.c.accept(";");
            }
        }
        Ok(Action::CtLb { mark: name != "ct_lb", local: name == "ct_lb_mark_local", backends, hash_fields, flag })
    }

    fn backends(&mut self) -> Result<Vec<Backend>, Error> {
        let mut out = Vec::new();
        loop {
            let mut port_name = None;
            if let Token::String(s) = self.c.peek().clone() {
                self.c.take();
                self.c.expect(":")?;
                port_name = Some(s);
            }
            let bracketed = self.c.accept("[");
            let ip = self.ip()?;
            if bracketed {
                self.c.expect("]")?;
            }
            let port = if self.c.accept(":") { Some(self.number(65535, "port number")? as u16) } else { None };
            out.push(Backend { port_name, ip, port });
            if !self.c.accept(",") {
                return Ok(out);
            }
        }
    }
}

fn kind_name(o: &Operand) -> &'static str {
    if o.width == 0 { "string" } else { "integer" }
}

fn made(name: &str) -> Option<Made> {
    Some(match name {
        "arp" => Made::Arp,
        "icmp4" => Made::Icmp4,
        "icmp4_error" => Made::Icmp4Error,
        "icmp6" => Made::Icmp6,
        "icmp6_error" => Made::Icmp6Error,
        "tcp_reset" => Made::TcpReset,
        "sctp_abort" => Made::SctpAbort,
        "reject" => Made::Reject,
        "nd_na" => Made::NdNa,
        "nd_na_router" => Made::NdNaRouter,
        "nd_ns" => Made::NdNs,
        _ => return None,
    })
}
