//! Actions with arguments: `FUNCTION(…);` and `RESULT = FUNCTION(…);`.

use crate::Error;
use crate::action_parse::Parser;
use crate::constant::Integer;
use crate::expr::Operand;
use crate::lexer::Token;
use crate::symbol;

/// A value of a named argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number or address.
    Integer(Integer),
    /// A quoted string.
    String(String),
    /// A bare word such as `allow`.
    Word(String),
    /// A field.
    Field(Operand),
    /// `$NAME`, such as `$cookie`.
    Variable(String),
    /// `^NAME`, to which no chassis' value was put.
    Template(String),
}

/// An argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A field.
    Field(Operand),
    /// A constant or a string.
    Value(Value),
    /// `NAME = VALUE`; several values where the function takes a list. A bare `NAME` has none.
    Named(String, Vec<Value>),
    /// `NAME = {VALUE, …}`.
    Set(String, Vec<Value>),
    /// `ID` or `ID=WEIGHT` of `select`.
    Weighted(u16, Option<u16>),
}

/// A function's name.
macro_rules! functions {
    ($($variant:ident = $name:literal, $result:literal, $prerequisite:literal;)*) => {
        /// The functions, named as in ovn-sb(5).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the variants are the actions' own names")]
        pub enum Function { $($variant),* }

        impl Function {
            /// The function of this name.
            pub fn from_name(name: &str) -> Option<Function> {
                match name { $($name => Some(Function::$variant),)* _ => None }
            }

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Function::$variant => $name),* }
            }

            /// The width of its result in bits, 0 for a port; -1 where it has none.
            fn result(self) -> i16 {
                match self { $(Function::$variant => $result),* }
            }

            fn prerequisite(self) -> &'static str {
                match self { $(Function::$variant => $prerequisite),* }
            }
        }
    };
}

functions! {
    GetArp = "get_arp", -1, "";
    GetNd = "get_nd", -1, "";
    PutArp = "put_arp", -1, "";
    PutNd = "put_nd", -1, "";
    PutFdb = "put_fdb", -1, "";
    LookupArp = "lookup_arp", 1, "";
    LookupArpIp = "lookup_arp_ip", 1, "";
    LookupNd = "lookup_nd", 1, "";
    LookupNdIp = "lookup_nd_ip", 1, "";
    LookupFdb = "lookup_fdb", 1, "";
    GetFdb = "get_fdb", 0, "";
    GetRemoteFdb = "get_remote_fdb", 0, "";
    ChkEvpnArp = "chk_evpn_arp", 1, "";
    CheckInPortSec = "check_in_port_sec", 1, "";
    CheckOutPortSec = "check_out_port_sec", 1, "";
    ChkLbHairpin = "chk_lb_hairpin", 1, "";
    ChkLbHairpinReply = "chk_lb_hairpin_reply", 1, "";
    ChkLbAff = "chk_lb_aff", 1, "";
    CommitLbAff = "commit_lb_aff", -1, "";
    ChkEcmpNh = "chk_ecmp_nh", 1, "";
    ChkEcmpNhMac = "chk_ecmp_nh_mac", 1, "";
    CommitEcmpNh = "commit_ecmp_nh", -1, "";
    CtNwDst = "ct_nw_dst", 32, "";
    CtIp6Dst = "ct_ip6_dst", 128, "";
    CtTpDst = "ct_tp_dst", 16, "";
    CtProto = "ct_proto", 8, "";
    CtStateSave = "ct_state_save", 8, "";
    CheckPktLarger = "check_pkt_larger", 1, "";
    DnsLookup = "dns_lookup", 1, "udp";
    PutDhcpOpts = "put_dhcp_opts", 1, "";
    PutDhcpv6Opts = "put_dhcpv6_opts", 1, "";
    PutNdRaOpts = "put_nd_ra_opts", 1, "ip6";
    DhcpRelayReqChk = "dhcp_relay_req_chk", 1, "";
    DhcpRelayRespChk = "dhcp_relay_resp_chk", 1, "";
    DhcpRelay = "dhcp_relay", 1, "";
    Select = "select", 16, "";
    BindVport = "bind_vport", -1, "";
    Mirror = "mirror", -1, "";
    SetQueue = "set_queue", -1, "";
    SetMeter = "set_meter", -1, "";
    Log = "log", -1, "";
    Sample = "sample", -1, "";
    TriggerEvent = "trigger_event", -1, "";
    FwdGroup = "fwd_group", -1, "";
    HandleSvcCheck = "handle_svc_check", -1, "";
    HandleBfdMsg = "handle_bfd_msg", -1, "";
    HandleDhcpv6Reply = "handle_dhcpv6_reply", -1, "";
    MacCacheUse = "mac_cache_use", -1, "";
    FloodRemote = "flood_remote", -1, "";
    Igmp = "igmp", -1, "igmp || mldv1 || mldv2";
}

/// A function with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Which.
    pub function: Function,
    /// Where the result goes.
    pub result: Option<Operand>,
    /// The arguments in order.
    pub arguments: Vec<Argument>,
    /// Whether there are parentheses, empty ones too.
    pub parentheses: bool,
}

impl Call {
    /// The values of the named argument, if it is given.
    pub fn named(&self, name: &str) -> Option<&[Value]> {
        self.arguments.iter().find_map(|a| match a {
            Argument::Named(n, v) | Argument::Set(n, v) if n == name => Some(v.as_slice()),
            _ => None,
        })
    }

    /// The fields among the arguments, in order.
    pub fn fields(&self) -> Vec<&Operand> {
        self.arguments.iter().filter_map(|a| if let Argument::Field(o) = a { Some(o) } else { None }).collect()
    }
}

/// Parses `FUNCTION(…)` behind `RESULT =`; none, with nothing taken, where the name is no such function's.
pub(crate) fn result_call(p: &mut Parser<'_>, name: &str, to: &Operand) -> Result<Option<Call>, Error> {
    let Some(function) = Function::from_name(name) else { return Ok(None) };
    let Ok(width) = u8::try_from(function.result()) else { return Ok(None) };
    if function == Function::Select {
        if to.width < width {
            return Err(p.c.error(format!(
                "cannot use {}-bit field {}[{}..{}] for \"select\", which requires at least {width} bits.",
                to.width,
                to.symbol.name,
                to.offset,
                u16::from(to.offset + to.width).saturating_sub(1)
            )));
        }
        p.suits(to, to.width, true)?;
    } else {
        p.suits(to, width, true)?;
    }
    p.c.take();
    finish(p, function, Some(to.clone())).map(Some)
}

/// Parses `FUNCTION(…)` or `FUNCTION` without a result.
pub(crate) fn plain_call(p: &mut Parser<'_>, name: &str) -> Result<Call, Error> {
    let function =
        Function::from_name(name).filter(|f| f.result() < 0).ok_or_else(|| p.c.syntax("expecting action"))?;
    p.c.take();
    finish(p, function, None)
}

fn finish(p: &mut Parser<'_>, function: Function, result: Option<Operand>) -> Result<Call, Error> {
    p.require(function.prerequisite());
    let mut call = Call { function, result, arguments: Vec::new(), parentheses: p.c.accept("(") };
    if call.parentheses {
        match function {
            Function::Select => members(p, &mut call.arguments)?,
            _ => arguments(p, function, &mut call.arguments)?,
        }
    }
    check(p, &call)?;
    Ok(call)
}

fn arguments(p: &mut Parser<'_>, function: Function, out: &mut Vec<Argument>) -> Result<(), Error> {
    match function {
        Function::BindVport => {
            port_name(p, out)?;
            p.c.expect(",")?;
            fields(p, &[0], out)
        }
        Function::Mirror => {
            port_name(p, out)?;
            p.c.expect(")")
        }
        Function::SetQueue | Function::CheckPktLarger => {
            if !matches!(p.c.peek(), Token::Integer(_)) {
                return Err(p.c.syntax("expecting small integer"));
            }
            out.push(Argument::Value(value(p)?));
            p.c.expect(")")
        }
        Function::Log => log(p, out),
        Function::FwdGroup => forwarding_group(p, out),
        Function::TriggerEvent if !matches!(p.c.peek(), Token::Id("event")) => {
            Err(p.c.syntax("Expecting 'event' option"))
        }
        f if !signature(f).is_empty() => fields(p, signature(f), out),
        _ => options(p, out),
    }
}

fn fields(p: &mut Parser<'_>, widths: &[u8], out: &mut Vec<Argument>) -> Result<(), Error> {
    for (n, width) in widths.iter().enumerate() {
        if n > 0 {
            p.c.expect(",")?;
        }
        let o = p.field()?;
        p.suits(&o, *width, false)?;
        out.push(Argument::Field(o));
    }
    p.c.expect(")")
}

fn port_name(p: &mut Parser<'_>, out: &mut Vec<Argument>) -> Result<(), Error> {
    out.push(Argument::Value(Value::String(p.c.string("expecting port name string")?)));
    Ok(())
}

/// Constants, fields, and options, behind which commas are optional.
fn options(p: &mut Parser<'_>, out: &mut Vec<Argument>) -> Result<(), Error> {
    while !p.c.accept(")") {
        let a = argument(p)?;
        let option = matches!(a, Argument::Named(..) | Argument::Set(..));
        out.push(a);
        if !p.c.accept(",") && !option && !p.c.is(")") {
            return Err(p.c.syntax("expecting `)'"));
        }
    }
    Ok(())
}

fn log(p: &mut Parser<'_>, out: &mut Vec<Argument>) -> Result<(), Error> {
    while !p.c.accept(")") {
        let Token::Id(name @ ("verdict" | "name" | "severity" | "meter")) = *p.c.peek() else {
            return Err(p.c.syntax(""));
        };
        p.c.take();
        p.c.expect("=")?;
        let v = match name {
            "verdict" => word(p, &["allow", "drop", "reject", "pass"], "unknown verdict")?,
            "severity" if !matches!(p.c.peek(), Token::Id(_)) => return Err(p.c.syntax("expecting severity")),
            "severity" => word(p, &["alert", "warning", "notice", "info", "debug"], "unknown severity")?,
            _ => Value::String(p.c.string("expecting string")?),
        };
        out.push(Argument::Named(name.into(), vec![v]));
        p.c.accept(",");
    }
    Ok(())
}

fn forwarding_group(p: &mut Parser<'_>, out: &mut Vec<Argument>) -> Result<(), Error> {
    if p.c.accept_id("liveness") {
        p.c.expect("=")?;
        let v = match p.c.peek() {
            Token::String(s) if matches!(&**s, "true" | "false") => value(p)?,
            _ => word(p, &["true", "false"], "expecting true or false")?,
        };
        out.push(Argument::Named("liveness".into(), vec![v]));
        p.c.expect(",")?;
    }
    if p.c.accept_id("childports") {
        p.c.expect("=")?;
        let mut ports = Vec::new();
        while !p.c.is(")") {
            ports.push(Value::String(p.c.string("expecting logical switch port")?));
            p.c.accept(",");
        }
        out.push(Argument::Named("childports".into(), ports));
    }
    p.c.expect(")")
}

/// One of these words.
fn word(p: &mut Parser<'_>, known: &[&str], what: &str) -> Result<Value, Error> {
    match *p.c.peek() {
        Token::Id(w) if known.contains(&w) => {
            p.c.take();
            Ok(Value::Word(w.to_string()))
        }
        _ => Err(p.c.syntax(what)),
    }
}

/// The members of `select`: `(1, 2)`, or `(values=(1, 2); hash_fields="…")`.
fn members(p: &mut Parser<'_>, out: &mut Vec<Argument>) -> Result<(), Error> {
    let hashed = p.c.accept_id("values");
    if hashed {
        p.c.expect("=")?;
        p.c.expect("(")?;
    }
    while !p.c.accept(")") {
        let id = p.uint16("expecting id")?;
        let mut weight = None;
        if p.c.accept("=") {
            weight = Some(p.uint16("expecting weight")?);
            if weight == Some(0) {
                return Err(p.c.syntax("weight can't be 0"));
            }
        }
        out.push(Argument::Weighted(id, weight));
        p.c.accept(",");
    }
    if out.len() < 2 {
        return Err(p.c.syntax("expecting at least 2 group members"));
    }
    if hashed {
        p.c.expect(";")?;
        if !p.c.accept_id("hash_fields") {
            return Err(p.c.syntax("expecting hash_fields"));
        }
        if !p.c.accept("=") {
            return Err(p.c.syntax("invalid hash_fields"));
        }
        let fields = p.c.string("invalid hash_fields")?;
        out.push(Argument::Named("hash_fields".into(), vec![Value::String(fields)]));
        p.c.expect(")")?;
    }
    Ok(())
}

fn argument(p: &mut Parser<'_>) -> Result<Argument, Error> {
    let Token::Id(name) = *p.c.peek() else { return value(p).map(Argument::Value) };
    if matches!(p.c.peek_second(), Token::Punct("=")) {
        p.c.take();
        p.c.take();
        return values(p, name.to_string());
    }
    if symbol::lookup(name).is_some() {
        return p.field().map(Argument::Field);
    }
    p.c.take();
    Ok(Argument::Named(name.to_string(), Vec::new()))
}

fn values(p: &mut Parser<'_>, name: String) -> Result<Argument, Error> {
    if p.c.accept("{") {
        let mut out = Vec::new();
        while !p.c.accept("}") {
            out.push(value(p)?);
            p.c.accept(",");
        }
        return Ok(Argument::Set(name, out));
    }
    Ok(Argument::Named(name, vec![value(p)?]))
}

fn value(p: &mut Parser<'_>) -> Result<Value, Error> {
    let v = match p.c.peek() {
        Token::Integer(i) => Value::Integer(*i),
        Token::String(s) => Value::String(s.clone().into_owned()),
        Token::Id(s) if symbol::lookup(s).is_some_and(|s| !matches!(s.kind, symbol::Kind::Predicate(_))) => {
            return p.field().map(Value::Field);
        }
        Token::Id(s) => Value::Word((*s).to_string()),
        Token::AddressSet(s) => Value::Variable((*s).to_string()),
        Token::Template(s) => Value::Template((*s).to_string()),
        _ => return Err(p.c.syntax("expecting constant")),
    };
    p.c.take();
    Ok(v)
}

/// The widths of the fields that a function takes, in order; 0 is a port.
fn signature(f: Function) -> &'static [u8] {
    match f {
        Function::GetArp | Function::LookupArpIp => &[0, 32],
        Function::GetNd | Function::LookupNdIp => &[0, 128],
        Function::PutArp | Function::LookupArp => &[0, 32, 48],
        Function::PutNd | Function::LookupNd => &[0, 128, 48],
        Function::PutFdb | Function::LookupFdb => &[0, 48],
        Function::GetFdb | Function::GetRemoteFdb => &[48],
        Function::HandleSvcCheck => &[0],
        _ => &[],
    }
}

fn check(p: &Parser<'_>, call: &Call) -> Result<(), Error> {
    let refuse = |text: &str| Err(p.c.error(text));
    let have = call.arguments.len();
    if have < signature(call.function).len() {
        return Err(p.c.syntax(if call.parentheses { "expecting field name" } else { "expecting `('" }));
    }
    let word = |name| match call.named(name) {
        Some([Value::Word(w) | Value::String(w), ..]) => Some(w.as_str()),
        _ => None,
    };
    let number = |n| match call.arguments.get(n) {
        Some(Argument::Value(Value::Integer(i))) => i.value,
        _ => 0,
    };
    match call.function {
        Function::PutDhcpOpts if call.named("offerip").is_none() => {
            refuse("put_dhcp_opts requires offerip to be specified.")
        }
        Function::PutNdRaOpts if call.named("slla").is_none() => refuse("slla option not present"),
        Function::PutNdRaOpts if call.named("prefix").is_none() && word("addr_mode") != Some("dhcpv6_stateful") => {
            refuse("prefix option needs to be set when address mode is slaac/dhcpv6_stateless.")
        }
        Function::Log if word("verdict").is_none() => Err(p.c.syntax("expecting verdict")),
        Function::SetQueue if number(0) > 0xf000 => {
            refuse(&format!("Queue ID {} for set_queue is not in valid range 0 to 61440.", number(0)))
        }
        Function::SetMeter if number(0) == 0 => refuse("Rate 0 for set_meter is not in valid."),
        Function::DnsLookup
        | Function::CheckInPortSec
        | Function::CheckOutPortSec
        | Function::ChkLbHairpin
        | Function::ChkLbHairpinReply
        | Function::ChkLbAff
        | Function::ChkEcmpNh
        | Function::ChkEcmpNhMac
            if have > 0 =>
        {
            refuse(&format!("{} doesn't take any parameters", call.function.name()))
        }
        _ => Ok(()),
    }
}
