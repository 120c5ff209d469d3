//! Actions with arguments: `FUNCTION(…);` and `RESULT = FUNCTION(…);`.

use crate::Error;
use crate::action::Parser;
use crate::expr::Operand;
use crate::lexer::{Integer, Token};
use crate::symbol;

/// A value of a named argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number or address.
    Integer(Integer),
    /// A quoted string.
    String(String),
    /// A bare word such as `allow` or `$cookie` (without the sign).
    Word(String),
}

/// An argument.
#[derive(Clone, Debug)]
pub enum Argument {
    /// A field.
    Field(Operand),
    /// A constant or a string.
    Value(Value),
    /// `NAME = VALUE` or `NAME = {VALUE, …}`; a bare `NAME` has no values.
    Named(String, Vec<Value>),
    /// `ID=WEIGHT` of `select`.
    Weighted(u16, u16),
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
    Igmp = "igmp", -1, "igmp || mldv1 || mldv2";
}

/// A function with its arguments.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which.
    pub function: Function,
    /// Where the result goes.
    pub result: Option<Operand>,
    /// The arguments in order.
    pub arguments: Vec<Argument>,
}

impl Call {
    /// The values of the named argument, if it is given.
    pub fn named(&self, name: &str) -> Option<&[Value]> {
        self.arguments.iter().find_map(|a| match a {
            Argument::Named(n, v) if n == name => Some(v.as_slice()),
            _ => None,
        })
    }

    /// The fields among the arguments, in order.
    pub fn fields(&self) -> Vec<&Operand> {
        self.arguments.iter().filter_map(|a| if let Argument::Field(o) = a { Some(o) } else { None }).collect()
    }
}

/// Parses `FUNCTION(…)` behind `RESULT =`.
pub(crate) fn result_call(p: &mut Parser, name: &str, to: Operand) -> Result<Call, Error> {
    let at = p.c.at();
    let function = Function::from_name(name).ok_or_else(|| p.c.syntax("expecting field name or function"))?;
    p.c.take();
    let width = function.result();
    if width < 0 {
        return Err(Error::new(at, format!("{name} gives no result.")));
    }
    if i16::from(to.width) != width {
        return Err(Error::new(
            at,
            format!("Cannot use {}-bit field {} where {width}-bit field is required.", to.width, to.symbol.name),
        ));
    }
    finish(p, function, Some(to))
}

/// Parses the rest of `FUNCTION(…)` or `FUNCTION` whose name was taken.
pub(crate) fn plain_call(p: &mut Parser, name: &str) -> Result<Call, Error> {
    let function = Function::from_name(name)
        .ok_or_else(|| Error::new(p.c.at(), format!("Syntax error at `{name}' expecting action.")))?;
    if function.result() >= 0 {
        return Err(Error::new(p.c.at(), format!("{name} needs a field for its result.")));
    }
    finish(p, function, None)
}

fn finish(p: &mut Parser, function: Function, result: Option<Operand>) -> Result<Call, Error> {
    p.require(function.prerequisite());
    let at = p.c.at();
    let mut arguments = Vec::new();
    if p.c.accept("(") {
        while !p.c.accept(")") {
            if function == Function::Select && p.c.accept_id("values") {
                p.c.expect("=")?;
                p.c.expect("(")?;
                while !p.c.accept(")") {
                    arguments.push(argument(p, function)?);
                    p.c.accept(",");
                }
            } else {
                arguments.push(argument(p, function)?);
            }
            if !p.c.accept(",") && !p.c.accept(";") && !matches!(p.c.peek(), Token::Punct(")")) {
                return Err(p.c.syntax("expecting `,' or `)'"));
            }
        }
    }
    let call = Call { function, result, arguments };
    check(&call, at)?;
    Ok(call)
}

fn argument(p: &mut Parser, function: Function) -> Result<Argument, Error> {
    match p.c.peek().clone() {
        Token::Id(name) if matches!(p.c.peek_second(), Token::Punct("=")) => {
            p.c.take();
            p.c.expect("=")?;
            Ok(Argument::Named(name, values(p)?))
        }
        Token::Id(name) if symbol::lookup(&name).is_some() => Ok(Argument::Field(p.field(false)?)),
        Token::Id(name) => {
            p.c.take();
            Ok(Argument::Named(name, Vec::new()))
        }
        Token::Integer(i) if function == Function::Select => {
            p.c.take();
            let weight = if p.c.accept("=") { p.number(65535, "weight")? as u16 } else { 100 };
            let id = u16::try_from(i.value).map_err(|_| p.c.syntax("expecting 16-bit member identifier"))?;
            Ok(Argument::Weighted(id, weight))
        }
        _ => Ok(Argument::Value(value(p)?)),
    }
}

fn values(p: &mut Parser) -> Result<Vec<Value>, Error> {
    let mut out = Vec::new();
    if p.c.accept("{") {
        while !p.c.accept("}") {
            out.push(value(p)?);
            p.c.accept(",");
        }
        return Ok(out);
    }
    out.push(value(p)?);
    // `childports="a","b"`: more strings belong to the same name.
    while matches!(out.last(), Some(Value::String(_)))
        && matches!(p.c.peek(), Token::Punct(","))
        && matches!(p.c.peek_second(), Token::String(_))
    {
        p.c.take();
        out.push(value(p)?);
    }
    Ok(out)
}

fn value(p: &mut Parser) -> Result<Value, Error> {
    let v = match p.c.peek().clone() {
        Token::Integer(i) => Value::Integer(i),
        Token::String(s) => Value::String(s),
        Token::Id(s) | Token::AddressSet(s) => Value::Word(s),
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
        Function::ChkEvpnArp => &[],
        Function::HandleSvcCheck | Function::BindVport => &[0],
        _ => &[],
    }
}

fn check(call: &Call, at: usize) -> Result<(), Error> {
    let want = signature(call.function);
    let name = call.function.name();
    if want.is_empty() {
        return Ok(());
    }
    let have = call.fields();
    if have.len() != want.len() {
        return Err(Error::new(at, format!("{name} takes {} fields, not {}.", want.len(), have.len())));
    }
    for (o, w) in have.iter().zip(want) {
        if o.width != *w {
            let kind = if *w == 0 { "string".to_string() } else { format!("{w}-bit") };
            return Err(Error::new(
                at,
                format!("Cannot use field {} in {name} where {kind} field is required.", o.symbol.name),
            ));
        }
    }
    Ok(())
}
