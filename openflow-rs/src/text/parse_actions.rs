//! Actions from text.

use super::parse::split_top;
use super::value::{parse_int, parse_subfield, parse_u8, parse_u16, parse_u32, parse_u64, parse_value};
use super::{ParseError, Result};
use crate::action::{
    Action, BundleAction, BundleAlgorithm, ControllerAction, CtAction, DebugAction, Encap, HashFields, LearnAction,
    LearnDst, LearnSpec, LearnSrc, MplsAction, MultipathAction, MultipathAlgorithm, NatSpec, NshProperty,
    PacketInReason, PacketType, SampleAction, SampleDirection, SampleId, ZoneSpec,
};
use crate::field::{FieldId, Subfield};
use crate::ids::TableId;
use crate::port::PortNo;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How deep parentheses may be nested: text comes from outside, and the stack is finite.
const DEEPEST: usize = 100;

fn nesting(s: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for b in s.bytes() {
        match b {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Parses a list of actions as ovs-actions(7) describes; `drop` is the empty list.
///
/// # Errors
/// Names the action that is not understood.
pub fn parse_actions(s: &str) -> Result<Vec<Action>> {
    if nesting(s) > DEEPEST {
        return Err(ParseError(format!("actions are nested more than {DEEPEST} parentheses deep")));
    }
    let mut out = Vec::new();
    for item in split_top(s) {
        if item == "drop" {
            continue;
        }
        out.push(parse_action(item).map_err(|e| ParseError(format!("action \"{item}\": {e}")))?);
    }
    Ok(out)
}

/// `name(args)rest` or `name:args` or `name`.
fn split_call(s: &str) -> (&str, Option<&str>, &str) {
    let paren = s.find('(');
    let colon = s.find(':');
    match (paren, colon) {
        (Some(p), c) if c.is_none_or(|c| p < c) => match s.rfind(')') {
            Some(e) if e > p => (&s[..p], Some(&s[p + 1..e]), &s[e + 1..]),
            _ => (&s[..p], Some(&s[p + 1..]), ""),
        },
        (_, Some(c)) => (&s[..c], Some(&s[c + 1..]), ""),
        _ => (s, None, ""),
    }
}

fn arrow(s: &str) -> Result<(&str, &str)> {
    s.split_once("->").map(|(a, b)| (a.trim(), b.trim())).ok_or_else(|| ParseError::new("expected \"->\""))
}

fn keys(args: &str) -> impl Iterator<Item = (&str, &str)> {
    split_top(args).into_iter().map(|x| {
        let eq = x.find('=');
        let par = x.find(['(', '[']);
        match (eq, par) {
            (Some(e), p) if p.is_none_or(|p| e < p) => (&x[..e], &x[e + 1..]),
            _ => (x, ""),
        }
    })
}

fn port(s: &str) -> Result<PortNo> {
    s.parse().map_err(ParseError)
}

fn set_field(args: &str) -> Result<Action> {
    let (v, dst) = arrow(args)?;
    let field = FieldId::by_name(dst).ok_or_else(|| ParseError::new(format!("unknown field \"{dst}\"")))?;
    let (value, mask) = parse_value(field, v)?;
    Ok(Action::SetField { field, value, mask, old: false })
}

fn controller(args: &str) -> Result<Action> {
    let mut c = ControllerAction::default();
    for (k, v) in keys(args) {
        match k {
            "max_len" => c.max_len = parse_u16(v)?,
            "id" => c.id = parse_u16(v)?,
            "reason" => {
                c.reason = (0..6)
                    .filter_map(PacketInReason::from_u8)
                    .find(|r| r.name() == v)
                    .ok_or_else(|| ParseError::new(format!("unknown reason \"{v}\"")))?;
            }
            "userdata" => c.userdata = hex_bytes(v)?,
            "pause" => c.pause = true,
            "meter_id" => c.meter_id = Some(v.parse().map_err(ParseError)?),
            _ => return Err(ParseError::new(format!("unknown \"{k}\""))),
        }
    }
    Ok(Action::Controller(Box::new(c)))
}

fn hex_bytes(s: &str) -> Result<Vec<u8>> {
    let digits: Vec<u8> = s.bytes().filter(|b| *b != b'.').collect();
    if !digits.len().is_multiple_of(2) {
        return Err(ParseError::new("odd number of hexadecimal digits"));
    }
    digits
        .chunks(2)
        .map(|p| {
            std::str::from_utf8(p)
                .ok()
                .and_then(|p| u8::from_str_radix(p, 16).ok())
                .ok_or_else(|| ParseError::new("bad hexadecimal digits"))
        })
        .collect()
}

fn nat_range(n: &mut NatSpec, v: &str) -> Result<()> {
    let bad = || ParseError::new(format!("\"{v}\" is not an address range such as 10.0.0.1-10.0.0.9:1024-2048"));
    let (addr, ports) = if v.starts_with('[') {
        let end = v.rfind(']').ok_or_else(bad)?;
        (v[..=end].replace(['[', ']'], ""), v[end + 1..].strip_prefix(':'))
    } else if v.matches(':').count() > 1 {
        (v.to_string(), None)
    } else {
        match v.split_once(':') {
            Some((a, p)) => (a.to_string(), Some(p)),
            None => (v.to_string(), None),
        }
    };
    if !addr.is_empty() {
        let (lo, hi) = match addr.split_once('-') {
            Some((a, b)) => (a, b),
            None => (addr.as_str(), addr.as_str()),
        };
        let parse = |s: &str| -> Result<IpAddr> {
            s.parse::<Ipv4Addr>().map(IpAddr::V4).or_else(|_| s.parse::<Ipv6Addr>().map(IpAddr::V6)).map_err(|_| bad())
        };
        n.range.addr = Some((parse(lo)?, parse(hi)?));
    }
    if let Some(p) = ports {
        let (lo, hi) = match p.split_once('-') {
            Some((a, b)) => (a, b),
            None => (p, p),
        };
        n.range.port = Some((parse_u16(lo)?, parse_u16(hi)?));
    }
    Ok(())
}

fn nat(args: &str) -> Result<NatSpec> {
    let mut n = NatSpec::default();
    for (k, v) in keys(args) {
        match k {
            "src" => n.src = true,
            "dst" => n.dst = true,
            "persistent" => n.persistent = true,
            "hash" => n.hash = true,
            "random" => n.random = true,
            _ => return Err(ParseError::new(format!("nat: unknown \"{k}\""))),
        }
        if !v.is_empty() {
            nat_range(&mut n, v)?;
        }
    }
    Ok(n)
}

fn ct(args: &str) -> Result<Action> {
    let mut c = CtAction::default();
    for item in split_top(args) {
        if let Some(a) = item.strip_prefix("nat(").and_then(|x| x.strip_suffix(')')) {
            c.nat = Some(nat(a)?);
            continue;
        }
        if let Some(a) = item.strip_prefix("exec(").and_then(|x| x.strip_suffix(')')) {
            c.exec = parse_actions(a)?;
            continue;
        }
        let (k, v) = item.split_once('=').unwrap_or((item, ""));
        match k {
            "commit" => c.commit = true,
            "force" => c.force = true,
            "table" => c.table = Some(v.parse().map_err(ParseError)?),
            "zone" => {
                c.zone = match parse_int(v) {
                    Ok(z) => ZoneSpec::Imm(u16::try_from(z).map_err(|_| ParseError::new("zone is above 65535"))?),
                    Err(_) => ZoneSpec::Field(parse_subfield(v)?),
                };
            }
            "nat" => c.nat = Some(NatSpec::default()),
            "alg" => {
                c.alg = match v {
                    "ftp" => 21,
                    "tftp" => 69,
                    _ => parse_u16(v)?,
                }
            }
            _ => return Err(ParseError::new(format!("unknown \"{k}\""))),
        }
    }
    Ok(Action::Ct(Box::new(c)))
}

fn learn_spec(item: &str) -> Result<LearnSpec> {
    if let Some(a) = item.strip_prefix("load:") {
        let (src, dst) = arrow(a)?;
        let dst = parse_subfield(dst)?;
        let src = match parse_int(src) {
            Ok(v) => LearnSrc::Imm(v, dst.n_bits),
            Err(_) => LearnSrc::Field(parse_subfield(src)?),
        };
        return Ok(LearnSpec { src, dst: LearnDst::Load(dst) });
    }
    if let Some(a) = item.strip_prefix("output:") {
        let s = parse_subfield(a)?;
        return Ok(LearnSpec { src: LearnSrc::Field(s), dst: LearnDst::Output });
    }
    match item.split_once('=') {
        None => {
            let s = parse_subfield(item)?;
            Ok(LearnSpec { src: LearnSrc::Field(s), dst: LearnDst::Match(s) })
        }
        Some((d, v)) => {
            let dst = parse_subfield(d)?;
            let src = match parse_value(dst.field, v) {
                Ok((x, _)) => LearnSrc::Imm(x, dst.n_bits),
                Err(e) => LearnSrc::Field(parse_subfield(v).map_err(|_| e)?),
            };
            Ok(LearnSpec { src, dst: LearnDst::Match(dst) })
        }
    }
}

fn learn(args: &str) -> Result<Action> {
    let mut l = LearnAction::default();
    for item in split_top(args) {
        let (k, v) = item.split_once('=').unwrap_or((item, ""));
        match k {
            "table" => l.table = v.parse().map_err(ParseError)?,
            "idle_timeout" => l.idle_timeout = parse_u16(v)?,
            "hard_timeout" => l.hard_timeout = parse_u16(v)?,
            "fin_idle_timeout" => l.fin_idle_timeout = parse_u16(v)?,
            "fin_hard_timeout" => l.fin_hard_timeout = parse_u16(v)?,
            "priority" => l.priority = parse_u16(v)?,
            "cookie" => l.cookie = parse_u64(v)?,
            "send_flow_rem" => l.send_flow_rem = true,
            "delete_learned" => l.delete_learned = true,
            "limit" => l.limit = parse_u32(v)?,
            "result_dst" => l.result_dst = Some(parse_subfield(v)?),
            _ => l.specs.push(learn_spec(item)?),
        }
    }
    Ok(Action::Learn(Box::new(l)))
}

fn sample(args: &str) -> Result<Action> {
    let mut a = SampleAction {
        probability: 0,
        collector_set_id: 0,
        obs_domain_id: SampleId::Imm(0),
        obs_point_id: SampleId::Imm(0),
        sampling_port: PortNo::ANY,
        direction: SampleDirection::Default,
    };
    let id = |v: &str| -> Result<SampleId> {
        match parse_u32(v) {
            Ok(n) => Ok(SampleId::Imm(n)),
            Err(_) => Ok(SampleId::Field(parse_subfield(v)?)),
        }
    };
    for (k, v) in keys(args) {
        match k {
            "probability" => a.probability = parse_u16(v)?,
            "collector_set_id" => a.collector_set_id = parse_u32(v)?,
            "obs_domain_id" => a.obs_domain_id = id(v)?,
            "obs_point_id" => a.obs_point_id = id(v)?,
            "sampling_port" => a.sampling_port = port(v)?,
            "ingress" => a.direction = SampleDirection::Ingress,
            "egress" => a.direction = SampleDirection::Egress,
            _ => return Err(ParseError::new(format!("unknown \"{k}\""))),
        }
    }
    Ok(Action::Sample(Box::new(a)))
}

fn hash_fields(name: &str) -> Result<HashFields> {
    let known = HashFields::ALL.iter().find(|(_, n)| *n == name).map(|(f, _)| *f);
    known.ok_or_else(|| ParseError::new(format!("unknown hash \"{name}\"")))
}

fn multipath(args: &str) -> Result<Action> {
    let parts = split_top(args);
    let [fields, basis, algorithm, links, arg, dst] = *parts.as_slice() else {
        return Err(ParseError::new("multipath: expected FIELDS,BASIS,ALGORITHM,LINKS,ARGUMENT,FIELD"));
    };
    let known = MultipathAlgorithm::ALL.iter().find(|(_, n)| *n == algorithm).map(|(a, _)| *a);
    let algorithm = known.ok_or_else(|| ParseError::new(format!("unknown algorithm \"{algorithm}\"")))?;
    let links = parse_u32(links)?;
    if !(1..=65_536).contains(&links) {
        return Err(ParseError::new(format!("n_links {links} is not in valid range 1 to 65536")));
    }
    let (fields, basis, arg, dst) = (hash_fields(fields)?, parse_u16(basis)?, parse_u32(arg)?, parse_subfield(dst)?);
    Ok(Action::Multipath(Box::new(MultipathAction { fields, basis, algorithm, links, arg, dst })))
}

fn bundle(args: &str, load: bool) -> Result<Action> {
    let (head, members) = args
        .split_once("members:")
        .or_else(|| args.split_once("slaves:"))
        .ok_or_else(|| ParseError::new("expected members:PORT,..."))?;
    let parts = split_top(head);
    let get = |i: usize| parts.get(i).copied().ok_or_else(|| ParseError::new("too few arguments"));
    let fields = hash_fields(get(0)?)?;
    let algorithm = match get(2)? {
        "active_backup" => BundleAlgorithm::ActiveBackup,
        "hrw" => BundleAlgorithm::Hrw,
        a => return Err(ParseError::new(format!("unknown algorithm \"{a}\""))),
    };
    let dst = if load { Some(parse_subfield(get(4)?)?) } else { None };
    let members = split_top(members).into_iter().map(port).collect::<Result<Vec<_>>>()?;
    Ok(Action::Bundle(Box::new(BundleAction { fields, basis: parse_u16(get(1)?)?, algorithm, members, dst })))
}

fn resubmit(args: &str) -> Result<Action> {
    let mut it = args.split(',').map(str::trim);
    let p = it.next().unwrap_or_default();
    let t = it.next().unwrap_or_default();
    let ct = it.next() == Some("ct");
    Ok(Action::Resubmit {
        port: if p.is_empty() { PortNo::IN_PORT } else { port(p)? },
        table: if t.is_empty() { TableId::CURRENT } else { t.parse().map_err(ParseError)? },
        ct,
    })
}

fn conjunction(args: &str) -> Result<Action> {
    let bad = || ParseError::new("write conjunction(ID,K/N) with 1 <= K <= N, 2 <= N <= 64");
    let (id, kn) = args.split_once(',').ok_or_else(bad)?;
    let (k, n) = kn.split_once('/').ok_or_else(bad)?;
    let (k, n) = (parse_u8(k)?, parse_u8(n)?);
    if k < 1 || k > n || !(2..=64).contains(&n) {
        return Err(bad());
    }
    Ok(Action::Conjunction { id: parse_u32(id)?, clause: k - 1, n_clauses: n })
}

fn output(args: &str) -> Result<Action> {
    if let Ok(p) = args.parse::<PortNo>() {
        return Ok(Action::output(p));
    }
    if args.contains("port=") {
        let (mut p, mut max_len) = (PortNo::ANY, 0);
        for (k, v) in keys(args) {
            match k {
                "port" => p = port(v)?,
                "max_len" => max_len = parse_u32(v)?,
                _ => return Err(ParseError::new(format!("unknown \"{k}\""))),
            }
        }
        return Ok(Action::OutputTrunc { port: p, max_len });
    }
    Ok(Action::OutputReg { src: parse_subfield(args)?, max_len: 0xffff })
}

fn write_metadata(args: &str) -> Result<Action> {
    let (v, m) = match args.split_once('/') {
        Some((v, m)) => (v, parse_u64(m)?),
        None => (args, u64::MAX),
    };
    Ok(Action::WriteMetadata { value: parse_u64(v)?, mask: m })
}

fn fin_timeout(args: &str) -> Result<Action> {
    let (mut idle, mut hard) = (0, 0);
    for (k, v) in keys(args) {
        match k {
            "idle_timeout" => idle = parse_u16(v)?,
            "hard_timeout" => hard = parse_u16(v)?,
            _ => return Err(ParseError::new(format!("unknown \"{k}\""))),
        }
    }
    Ok(Action::FinTimeout { idle, hard })
}

fn dec_ttl(args: Option<&str>) -> Result<Action> {
    match args {
        None => Ok(Action::DecTtl(None)),
        Some(a) => Ok(Action::DecTtl(Some(split_top(a).into_iter().map(parse_u16).collect::<Result<_>>()?))),
    }
}

fn two(args: &str) -> Result<(Subfield, Subfield)> {
    let (a, b) = arrow(args)?;
    let (src, dst) = (parse_subfield(a)?, parse_subfield(b)?);
    if src.n_bits == dst.n_bits {
        Ok((src, dst))
    } else {
        Err(ParseError::new("source and destination differ in width"))
    }
}

/// The older action names that OpenFlow 1.0 text uses.
fn legacy(name: &str, args: &str) -> Result<Option<Action>> {
    let field = match name {
        "mod_dl_src" => FieldId::EthSrc,
        "mod_dl_dst" => FieldId::EthDst,
        "mod_nw_src" => FieldId::IpSrc,
        "mod_nw_dst" => FieldId::IpDst,
        "mod_nw_ttl" => FieldId::IpTtl,
        // The six bits that are a class of service (RFC 2474).
        "mod_nw_tos" => {
            let tos = parse_int(args)?;
            if tos & !0xfc != 0 {
                return Err(ParseError::new(format!("mod_nw_tos:{args} is no multiple of 4 up to 252")));
            }
            return Ok(Some(Action::set(FieldId::IpDscp, tos >> 2)));
        }
        "mod_tp_src" => FieldId::TcpSrc,
        "mod_tp_dst" => FieldId::TcpDst,
        "mod_vlan_vid" | "set_vlan_vid" => {
            return Ok(Some(Action::SetField {
                field: FieldId::VlanVid,
                value: parse_int(args)? & 0xfff | 0x1000,
                mask: None,
                old: false,
            }));
        }
        "mod_vlan_pcp" | "set_vlan_pcp" => FieldId::VlanPcp,
        "set_tunnel" | "set_tunnel64" => {
            let id =
                u64::try_from(parse_int(args)?).map_err(|_| ParseError::new(format!("{args} does not fit 64 bits")))?;
            return Ok(Some(Action::SetTunnel { id, wide: name == "set_tunnel64" }));
        }
        _ => return Ok(None),
    };
    let (value, _) = parse_value(field, args)?;
    Ok(Some(Action::set(field, value)))
}

fn encap(args: &str) -> Result<Encap> {
    let (name, inner, _) = split_call(args);
    let list = split_top(inner.unwrap_or_default());
    match name.trim() {
        "ethernet" if list.is_empty() => Ok(Encap::Ethernet),
        "mpls" if list.is_empty() => Ok(Encap::Mpls(0x8847)),
        "mpls_mc" if list.is_empty() => Ok(Encap::Mpls(0x8848)),
        "nsh" => Ok(Encap::Nsh(list.into_iter().map(nsh_property).collect::<Result<_>>()?)),
        _ => Err(ParseError::new(format!(
            "encap({args}): expected ethernet, mpls, mpls_mc, nsh or nsh(md_type=N,tlv(CLASS,TYPE,0xVALUE))"
        ))),
    }
}

fn nsh_property(s: &str) -> Result<NshProperty> {
    if let Some(n) = s.strip_prefix("md_type=") {
        return match parse_u8(n)? {
            n @ 1..=2 => Ok(NshProperty::MdType(n)),
            n => Err(ParseError::new(format!("md_type={n}: expected 1 or 2"))),
        };
    }
    let bad = || ParseError::new(format!("\"{s}\" is no property such as md_type=1 or tlv(0x1000,10,0x12345678)"));
    let inner = s.strip_prefix("tlv(").and_then(|s| s.strip_suffix(')')).ok_or_else(bad)?;
    let [class, kind, value] = split_top(inner)[..] else { return Err(bad()) };
    let digits = value.strip_prefix("0x").ok_or_else(bad)?;
    let value = hex_bytes(digits)?;
    // The length of a property is told in a byte.
    if value.len() > 240 {
        return Err(ParseError::new("the value of a tlv has 240 bytes at most"));
    }
    Ok(NshProperty::Tlv { class: parse_u16(class)?, kind: parse_u8(kind)?, value })
}

fn decap(args: &str) -> Result<Action> {
    if args.trim().is_empty() {
        return Ok(Action::Decap(PacketType::NEXT));
    }
    let bad = || ParseError::new(format!("decap({args}): expected decap() or decap(packet_type(ns=N,type=N))"));
    let inner = args.strip_prefix("packet_type(").and_then(|s| s.strip_suffix(')')).ok_or_else(bad)?;
    let (mut ns, mut kind) = (None, None);
    for (k, v) in keys(inner) {
        match k {
            "ns" => ns = Some(parse_u16(v)?),
            "type" => kind = Some(parse_u16(v)?),
            _ => return Err(bad()),
        }
    }
    let (ns, kind) = (ns.ok_or_else(bad)?, kind.ok_or_else(bad)?);
    Ok(Action::Decap(PacketType(u32::from(ns) << 16 | u32::from(kind))))
}

fn parse_action(item: &str) -> Result<Action> {
    let (name, args, rest) = split_call(item);
    let a = args.unwrap_or_default();
    Ok(match name {
        "output" => output(a)?,
        "controller" | "CONTROLLER" if args.is_none() => Action::output(PortNo::CONTROLLER),
        "CONTROLLER" | "controller" if item.contains(':') && !item.contains('(') => {
            Action::Output { port: PortNo::CONTROLLER, max_len: parse_u16(a)? }
        }
        "controller" | "CONTROLLER" => controller(a)?,
        "group" => Action::Group(a.parse().map_err(ParseError)?),
        "set_queue" => Action::SetQueue(parse_u32(a)?),
        "pop_queue" => Action::PopQueue,
        "set_field" => set_field(a)?,
        "load" => {
            let (v, d) = arrow(a)?;
            Action::Load { value: parse_u64(v)?, dst: parse_subfield(d)? }
        }
        "move" => {
            let (src, dst) = two(a)?;
            Action::Move { src, dst }
        }
        "push" => Action::Push(parse_subfield(a)?),
        "pop" => Action::Pop(parse_subfield(a)?),
        "push_vlan" => Action::PushVlan(parse_u16(a)?),
        "pop_vlan" | "strip_vlan" => Action::PopVlan,
        "dec_ttl" => dec_ttl(args)?,
        "resubmit" => resubmit(a)?,
        "clone" => Action::Clone(parse_actions(a)?),
        "ct" => ct(a)?,
        "ct_clear" => Action::CtClear,
        "nat" => Action::Nat(Box::new(nat(a)?)),
        "learn" => learn(a)?,
        "conjunction" => conjunction(a)?,
        "check_pkt_larger" => {
            let dst = rest.strip_prefix("->").ok_or_else(|| ParseError::new("expected ->FIELD[BIT]"))?;
            Action::CheckPktLarger { len: parse_u16(a)?, dst: parse_subfield(dst)? }
        }
        "sample" => sample(a)?,
        "multipath" => multipath(a)?,
        "bundle" => bundle(a, false)?,
        "bundle_load" => bundle(a, true)?,
        "note" => Action::Note(hex_bytes(a)?),
        "fin_timeout" => fin_timeout(a)?,
        "exit" => Action::Exit,
        "debug_slow" => Action::Debug(DebugAction::Slow),
        "debug_recirc" => Action::Debug(DebugAction::Recirc),
        "push_mpls" => Action::Mpls(MplsAction::Push(parse_u16(a)?)),
        "pop_mpls" => Action::Mpls(MplsAction::Pop(parse_u16(a)?)),
        "set_mpls_label" => Action::Mpls(MplsAction::SetLabel(parse_u64(a)? as u32)),
        "set_mpls_tc" => Action::Mpls(MplsAction::SetTc(parse_u8(a)?)),
        "set_mpls_ttl" => Action::Mpls(MplsAction::SetTtl(parse_u8(a)?)),
        "encap" => Action::Encap(encap(a)?),
        "decap" => decap(a)?,
        "dec_nsh_ttl" => Action::DecNshTtl,
        "dec_mpls_ttl" => Action::Mpls(MplsAction::DecTtl),
        "delete_field" => {
            Action::DeleteField(FieldId::by_name(a).ok_or_else(|| ParseError::new(format!("unknown field \"{a}\"")))?)
        }
        "meter" => Action::Meter(a.parse().map_err(ParseError)?),
        "clear_actions" => Action::ClearActions,
        "write_actions" => Action::WriteActions(parse_actions(a)?),
        "write_metadata" => write_metadata(a)?,
        "goto_table" => Action::GotoTable(a.parse().map_err(ParseError)?),
        _ => match legacy(name, a)? {
            Some(x) => x,
            None => Action::output(
                item.parse::<PortNo>().map_err(|_| ParseError::new("unknown action; see ovs-actions(7)"))?,
            ),
        },
    })
}
