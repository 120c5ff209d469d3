//! Actions, flows, groups and meters to text.

use super::value::{hex, ipv6_text, subfield_text, value_text};
use crate::action::{
    Action, BundleAction, BundleAlgorithm, ControllerAction, CtAction, DebugAction, Encap, HashFields, LearnAction,
    LearnDst, LearnSrc, MplsAction, MultipathAction, MultipathAlgorithm, NatSpec, NshProperty, PacketInReason,
    PacketType, SampleAction, SampleDirection, SampleId, ZoneSpec,
};
use crate::field::FieldId;
use crate::ids::{GroupId, TableId};
use crate::mods::{DEFAULT_PRIORITY, FlowFlags, FlowMod, Group, GroupType, MeterConfig};
use crate::port::PortNo;
use std::fmt::{self, Write};
use std::net::IpAddr;

/// A list of actions, `drop` if empty.
pub fn actions_to_string(actions: &[Action]) -> String {
    if actions.is_empty() { "drop".into() } else { list(actions) }
}

fn list(actions: &[Action]) -> String {
    let mut s = String::new();
    for (i, a) in actions.iter().enumerate() {
        if i > 0 {
            s.push(',');
        }
        let _ = write!(s, "{a}");
    }
    s
}

fn dotted(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(".")
}

fn controller(c: &ControllerAction) -> String {
    let plain =
        c.reason == PacketInReason::Action && c.id == 0 && c.userdata.is_empty() && !c.pause && c.meter_id.is_none();
    if plain {
        return format!("CONTROLLER:{}", c.max_len);
    }
    let mut v = Vec::new();
    if c.reason != PacketInReason::Action {
        v.push(format!("reason={}", c.reason.name()));
    }
    if c.max_len != 0xffff {
        v.push(format!("max_len={}", c.max_len));
    }
    if c.id != 0 {
        v.push(format!("id={}", c.id));
    }
    if !c.userdata.is_empty() {
        v.push(format!("userdata={}", dotted(&c.userdata)));
    }
    if c.pause {
        v.push("pause".into());
    }
    if let Some(m) = c.meter_id {
        v.push(format!("meter_id={m}"));
    }
    format!("controller({})", v.join(","))
}

fn nat(n: &NatSpec) -> String {
    if !n.src && !n.dst {
        return "nat".into();
    }
    let mut s = String::from(if n.src { "nat(src" } else { "nat(dst" });
    if n.range.addr.is_some() || n.range.port.is_some() {
        s.push('=');
    }
    if let Some((lo, hi)) = n.range.addr {
        let one = |a: IpAddr| match a {
            IpAddr::V4(a) => a.to_string(),
            IpAddr::V6(a) if n.range.port.is_some() => format!("[{}]", ipv6_text(a)),
            IpAddr::V6(a) => ipv6_text(a),
        };
        s.push_str(&one(lo));
        if lo != hi {
            s.push('-');
            s.push_str(&one(hi));
        }
    }
    if let Some((lo, hi)) = n.range.port {
        let _ = write!(s, ":{lo}");
        if hi != lo {
            let _ = write!(s, "-{hi}");
        }
    }
    for (on, t) in [(n.persistent, ",persistent"), (n.hash, ",hash"), (n.random, ",random")] {
        if on {
            s.push_str(t);
        }
    }
    s.push(')');
    s
}

fn ct(c: &CtAction) -> String {
    let mut v = Vec::new();
    if c.commit {
        v.push("commit".into());
    }
    if c.force {
        v.push("force".into());
    }
    if let Some(t) = c.table {
        v.push(format!("table={t}"));
    }
    match &c.zone {
        ZoneSpec::Imm(0) => {}
        ZoneSpec::Imm(z) => v.push(format!("zone={z}")),
        ZoneSpec::Field(f) => v.push(format!("zone={}", subfield_text(f))),
    }
    if let Some(n) = &c.nat {
        v.push(nat(n));
    }
    if !c.exec.is_empty() {
        v.push(format!("exec({})", list(&c.exec)));
    }
    match c.alg {
        0 => {}
        21 => v.push("alg=ftp".into()),
        69 => v.push("alg=tftp".into()),
        a => v.push(format!("alg={a}")),
    }
    format!("ct({})", v.join(","))
}

fn learn(l: &LearnAction) -> String {
    let mut v = vec![format!("table={}", l.table)];
    for (n, x) in [
        ("idle_timeout", l.idle_timeout),
        ("hard_timeout", l.hard_timeout),
        ("fin_idle_timeout", l.fin_idle_timeout),
        ("fin_hard_timeout", l.fin_hard_timeout),
    ] {
        if x != 0 {
            v.push(format!("{n}={x}"));
        }
    }
    if l.priority != DEFAULT_PRIORITY {
        v.push(format!("priority={}", l.priority));
    }
    if l.send_flow_rem {
        v.push("send_flow_rem".into());
    }
    if l.delete_learned {
        v.push("delete_learned".into());
    }
    if l.cookie != 0 {
        v.push(format!("cookie={:#x}", l.cookie));
    }
    if l.limit != 0 {
        v.push(format!("limit={}", l.limit));
    }
    if let Some(d) = &l.result_dst {
        v.push(format!("result_dst={}", subfield_text(d)));
    }
    for s in &l.specs {
        v.push(match (&s.src, &s.dst) {
            (LearnSrc::Imm(x, _), LearnDst::Match(d)) if d.is_full() => {
                format!("{}={}", d.field.def().name, value_text(d.field, *x, None))
            }
            (LearnSrc::Imm(x, _), LearnDst::Match(d)) => format!("{}={}", subfield_text(d), hex(*x)),
            (LearnSrc::Field(f), LearnDst::Match(d)) if f == d => subfield_text(d),
            (LearnSrc::Field(f), LearnDst::Match(d)) => format!("{}={}", subfield_text(d), subfield_text(f)),
            (LearnSrc::Imm(x, _), LearnDst::Load(d)) => format!("load:{}->{}", hex(*x), subfield_text(d)),
            (LearnSrc::Field(f), LearnDst::Load(d)) => format!("load:{}->{}", subfield_text(f), subfield_text(d)),
            (LearnSrc::Field(f), LearnDst::Output) => format!("output:{}", subfield_text(f)),
            (LearnSrc::Imm(x, _), LearnDst::Output) => format!("output:{x}"),
        });
    }
    format!("learn({})", v.join(","))
}

fn bundle(b: &BundleAction) -> String {
    let fields = HashFields::ALL.iter().find(|(f, _)| *f == b.fields).map_or("eth_src", |(_, n)| n);
    let alg = match b.algorithm {
        BundleAlgorithm::ActiveBackup => "active_backup",
        BundleAlgorithm::Hrw => "hrw",
    };
    let members = b.members.iter().map(PortNo::to_string).collect::<Vec<_>>().join(",");
    match &b.dst {
        None => format!("bundle({fields},{},{alg},ofport,members:{members})", b.basis),
        Some(d) => format!("bundle_load({fields},{},{alg},ofport,{},members:{members})", b.basis, subfield_text(d)),
    }
}

fn multipath(m: &MultipathAction) -> String {
    let fields = HashFields::ALL.iter().find(|(f, _)| *f == m.fields).map_or("eth_src", |(_, n)| n);
    let algorithm = MultipathAlgorithm::ALL.iter().find(|(a, _)| *a == m.algorithm).map_or("modulo_n", |(_, n)| n);
    format!("multipath({fields},{},{algorithm},{},{},{})", m.basis, m.links, m.arg, subfield_text(&m.dst))
}

fn sample(a: &SampleAction) -> String {
    let id = |i: &SampleId| match i {
        SampleId::Imm(n) => n.to_string(),
        SampleId::Field(f) => subfield_text(f),
    };
    let mut s = format!(
        "sample(probability={},collector_set_id={},obs_domain_id={},obs_point_id={}",
        a.probability,
        a.collector_set_id,
        id(&a.obs_domain_id),
        id(&a.obs_point_id)
    );
    if a.sampling_port != PortNo::ANY {
        let _ = write!(s, ",sampling_port={}", a.sampling_port);
    }
    match a.direction {
        SampleDirection::Default => {}
        SampleDirection::Ingress => s.push_str(",ingress"),
        SampleDirection::Egress => s.push_str(",egress"),
    }
    s.push(')');
    s
}

/// The action of OpenFlow 1.0 and 1.1 that sets a field alone (ovs-actions(7)).
fn old_name(f: FieldId) -> Option<&'static str> {
    Some(match f {
        FieldId::EthSrc => "mod_dl_src",
        FieldId::EthDst => "mod_dl_dst",
        FieldId::IpSrc => "mod_nw_src",
        FieldId::IpDst => "mod_nw_dst",
        FieldId::IpDscp => "mod_nw_tos",
        FieldId::IpEcn => "mod_nw_ecn",
        FieldId::IpTtl => "mod_nw_ttl",
        FieldId::TcpSrc | FieldId::UdpSrc | FieldId::SctpSrc => "mod_tp_src",
        FieldId::TcpDst | FieldId::UdpDst | FieldId::SctpDst => "mod_tp_dst",
        _ => return None,
    })
}

impl fmt::Display for Action {
    /// As ovs-actions(7) writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Output { port, max_len } if *port == PortNo::CONTROLLER => write!(f, "CONTROLLER:{max_len}"),
            Action::Output { port, .. } if port.is_reserved() => write!(f, "{port}"),
            Action::Output { port, .. } => write!(f, "output:{port}"),
            Action::OutputTrunc { port, max_len } => write!(f, "output(port={port},max_len={max_len})"),
            Action::OutputReg { src, .. } => write!(f, "output:{}", subfield_text(src)),
            Action::Controller(c) => f.write_str(&controller(c)),
            Action::Group(g) => write!(f, "group:{g}"),
            Action::SetQueue(q) => write!(f, "set_queue:{q}"),
            Action::PopQueue => f.write_str("pop_queue"),
            Action::SetField { field, value, mask, old } => match (old_name(*field).filter(|_| *old), field) {
                (None, _) => write!(f, "set_field:{}->{}", value_text(*field, *value, *mask), field.def().name),
                (Some(name), FieldId::EthSrc | FieldId::EthDst | FieldId::IpSrc | FieldId::IpDst) => {
                    write!(f, "{name}:{}", value_text(*field, *value, None))
                }
                // The octet, not the six bits of it.
                (Some(name), FieldId::IpDscp) => write!(f, "{name}:{}", value << 2),
                (Some(name), _) => write!(f, "{name}:{value}"),
            },
            Action::SetTunnel { id, wide } => {
                let word = if *wide || *id > u32::MAX.into() { "set_tunnel64" } else { "set_tunnel" };
                write!(f, "{word}:{}", hex(u128::from(*id)))
            }
            Action::Load { value, dst } => write!(f, "load:{}->{}", hex(u128::from(*value)), subfield_text(dst)),
            Action::Move { src, dst } => write!(f, "move:{}->{}", subfield_text(src), subfield_text(dst)),
            Action::Push(s) => write!(f, "push:{}", subfield_text(s)),
            Action::Pop(s) => write!(f, "pop:{}", subfield_text(s)),
            Action::PushVlan(t) => write!(f, "push_vlan:0x{t:04x}"),
            Action::PopVlan => f.write_str("pop_vlan"),
            Action::DecTtl(None) => f.write_str("dec_ttl"),
            Action::DecTtl(Some(ids)) => {
                write!(f, "dec_ttl({})", ids.iter().map(u16::to_string).collect::<Vec<_>>().join(","))
            }
            Action::Resubmit { port, table: TableId::CURRENT, ct: false } => write!(f, "resubmit:{port}"),
            Action::Resubmit { port, table, ct } => {
                f.write_str("resubmit(")?;
                if *port != PortNo::IN_PORT {
                    write!(f, "{port}")?;
                }
                f.write_str(",")?;
                if *table != TableId::CURRENT {
                    write!(f, "{table}")?;
                }
                f.write_str(if *ct { ",ct)" } else { ")" })
            }
            Action::Clone(v) => write!(f, "clone({})", list(v)),
            Action::Ct(c) => f.write_str(&ct(c)),
            Action::CtClear => f.write_str("ct_clear"),
            Action::Nat(n) => f.write_str(&nat(n)),
            Action::Learn(l) => f.write_str(&learn(l)),
            Action::Conjunction { id, clause, n_clauses } => {
                write!(f, "conjunction({id},{}/{n_clauses})", u16::from(*clause) + 1)
            }
            Action::CheckPktLarger { len, dst } => write!(f, "check_pkt_larger({len})->{}", subfield_text(dst)),
            Action::Sample(s) => f.write_str(&sample(s)),
            Action::Bundle(b) => f.write_str(&bundle(b)),
            Action::Multipath(m) => f.write_str(&multipath(m)),
            Action::Note(b) => write!(f, "note:{}", dotted(b)),
            Action::FinTimeout { idle, hard } => write!(f, "fin_timeout(idle_timeout={idle},hard_timeout={hard})"),
            Action::Exit => f.write_str("exit"),
            Action::Debug(DebugAction::Slow) => f.write_str("debug_slow"),
            Action::Debug(DebugAction::Recirc) => f.write_str("debug_recirc"),
            Action::Mpls(MplsAction::Push(t)) => write!(f, "push_mpls:0x{t:04x}"),
            Action::Mpls(MplsAction::Pop(t)) => write!(f, "pop_mpls:0x{t:04x}"),
            Action::Mpls(MplsAction::SetLabel(n)) => write!(f, "set_mpls_label({n})"),
            Action::Mpls(MplsAction::SetTc(n)) => write!(f, "set_mpls_tc({n})"),
            Action::Mpls(MplsAction::SetTtl(n)) => write!(f, "set_mpls_ttl({n})"),
            Action::Mpls(MplsAction::DecTtl) => f.write_str("dec_mpls_ttl"),
            Action::Encap(e) => f.write_str(&encap(e)),
            Action::Decap(PacketType::NEXT) => f.write_str("decap()"),
            Action::Decap(t) => write!(f, "decap(packet_type(ns={},type={}))", t.namespace(), hex(t.kind().into())),
            Action::DecNshTtl => f.write_str("dec_nsh_ttl"),
            Action::DeleteField(id) => write!(f, "delete_field:{}", id.def().name),
            Action::Meter(m) => write!(f, "meter:{m}"),
            Action::ClearActions => f.write_str("clear_actions"),
            Action::WriteActions(v) => write!(f, "write_actions({})", actions_to_string(v)),
            Action::WriteMetadata { value, mask: u64::MAX } => write!(f, "write_metadata:{}", hex(u128::from(*value))),
            Action::WriteMetadata { value, mask } => {
                write!(f, "write_metadata:{}/{}", hex(u128::from(*value)), hex(u128::from(*mask)))
            }
            Action::GotoTable(t) => write!(f, "goto_table:{t}"),
        }
    }
}

fn encap(e: &Encap) -> String {
    let properties = match e {
        Encap::Ethernet => return "encap(ethernet)".into(),
        Encap::Mpls(0x8848) => return "encap(mpls_mc)".into(),
        Encap::Mpls(_) => return "encap(mpls)".into(),
        Encap::Nsh(list) => list,
    };
    let words: Vec<String> = properties
        .iter()
        .map(|p| match p {
            NshProperty::MdType(n) => format!("md_type={n}"),
            NshProperty::Tlv { class, kind, value } => {
                let hex: String = value.iter().map(|b| format!("{b:02x}")).collect();
                format!("tlv(0x{class:04x},{kind},0x{hex})")
            }
        })
        .collect();
    if words.is_empty() { "encap(nsh)".into() } else { format!("encap(nsh({}))", words.join(",")) }
}

/// Flag words before the match.
pub(crate) fn flags_text(flags: FlowFlags) -> String {
    let mut s = String::new();
    for (bit, name) in [
        (FlowFlags::SEND_FLOW_REM, "send_flow_rem "),
        (FlowFlags::CHECK_OVERLAP, "check_overlap "),
        (FlowFlags::RESET_COUNTS, "reset_counts "),
        (FlowFlags::NO_PACKET_COUNTS, "no_packet_counts "),
        (FlowFlags::NO_BYTE_COUNTS, "no_byte_counts "),
    ] {
        if flags.has(bit) {
            s.push_str(name);
        }
    }
    s
}

/// One line of `ovs-ofctl --no-stats --no-names dump-flows`, with its leading space and without a newline.
pub fn flow_to_string(f: &FlowMod) -> String {
    let mut s = String::from(" ");
    if f.cookie != 0 {
        let _ = write!(s, "cookie={:#x}, ", f.cookie);
    }
    if f.table != TableId::FIRST {
        let _ = write!(s, "table={}, ", f.table);
    }
    if f.idle_timeout != 0 {
        let _ = write!(s, "idle_timeout={}, ", f.idle_timeout);
    }
    if f.hard_timeout != 0 {
        let _ = write!(s, "hard_timeout={}, ", f.hard_timeout);
    }
    s.push_str(&flags_text(f.flags));
    if f.importance != 0 {
        let _ = write!(s, "importance={}, ", f.importance);
    }
    let m = f.matches.to_string();
    if f.priority != DEFAULT_PRIORITY {
        let _ = write!(s, "priority={}", f.priority);
        if !m.is_empty() {
            s.push(',');
        }
    }
    s.push_str(&m);
    if !s.ends_with(' ') {
        s.push(' ');
    }
    s.push_str("actions=");
    s.push_str(&actions_to_string(&f.actions));
    s
}

/// One line of `ovs-ofctl dump-groups`, with its leading space and without a newline.
pub fn group_to_string(g: &Group) -> String {
    let mut s = format!(" group_id={},type={}", g.id, g.group_type.name());
    let sel = &g.selection;
    if !sel.name.is_empty() {
        let _ = write!(s, ",selection_method={}", sel.name);
        if sel.param != 0 {
            let _ = write!(s, ",selection_method_param={}", sel.param);
        }
        if sel.fields.len() == 1 && sel.fields.iter().all(|(f, m)| *m == f.full_mask()) {
            let _ = write!(s, ",fields={}", sel.fields[0].0.def().name);
        } else if !sel.fields.is_empty() {
            let v: Vec<String> = sel
                .fields
                .iter()
                .map(|(f, m)| {
                    if *m == f.full_mask() {
                        f.def().name.to_string()
                    } else {
                        format!("{}={}", f.def().name, value_text(*f, *m, None))
                    }
                })
                .collect();
            let _ = write!(s, ",fields({})", v.join(","));
        }
    }
    for b in &g.buckets {
        let _ = write!(s, ",bucket=bucket_id:{}", b.id);
        if b.weight != 1 && g.group_type == GroupType::Select {
            let _ = write!(s, ",weight:{}", b.weight);
        }
        if b.watch_port != PortNo::ANY {
            let _ = write!(s, ",watch_port:{}", b.watch_port);
        }
        if b.watch_group != GroupId::ANY {
            let _ = write!(s, ",watch_group:{}", b.watch_group);
        }
        let _ = write!(s, ",actions={}", actions_to_string(&b.actions));
    }
    s
}

/// A meter as `ovs-ofctl dump-meters` prints it: one line, then one a band.
pub fn meter_to_string(m: &MeterConfig) -> String {
    let mut s = format!("meter={}", m.id);
    for (bit, name) in [
        (MeterConfig::KBPS, " kbps"),
        (MeterConfig::PKTPS, " pktps"),
        (MeterConfig::BURST, " burst"),
        (MeterConfig::STATS, " stats"),
    ] {
        if m.flags & bit != 0 {
            s.push_str(name);
        }
    }
    s.push_str(" bands=");
    for b in &m.bands {
        let _ = match b.band_type {
            1 => write!(s, "\ntype=drop rate={}", b.rate),
            2 => write!(s, "\ntype=dscp_remark rate={}", b.rate),
            t => write!(s, "\ntype={t} rate={}", b.rate),
        };
        if m.flags & MeterConfig::BURST != 0 {
            let _ = write!(s, " burst_size={}", b.burst);
        }
        if b.band_type == 2 {
            let _ = write!(s, " prec_level={}", b.prec_level);
        }
    }
    s
}
