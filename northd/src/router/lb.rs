//! Load balancing in a router.

use crate::context::Ctx;
use crate::facts::Fact;
use crate::facts::lb::{Lb, Vip};
use crate::facts::lrp::Lrp;
use crate::facts::router::Router;
use crate::model::{Columns, RowKey, Unit};
use crate::stage::Stage::*;
use crate::switch::lb::{Target, affinity, ct_lb, event, reject};
use crate::tables::copp;
use ovn_schema::{Set, Str, Uuid, nb, sb};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Whether a datapath has a load balancer with a virtual address.
pub fn has_vips(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> bool {
    let lbs = ctx.lbs(uuid).cloned().unwrap_or_default();
    lbs.iter().any(|l| ctx.lb(*l).is_some_and(|l| !l.row.vips.is_empty()))
}

/// Whether a router has a load balancer whose backends are used on their own chassis only.
pub fn distributed(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> bool {
    let lbs = ctx.lbs(uuid).cloned().unwrap_or_default();
    lbs.iter().any(|l| ctx.lb(*l).is_some_and(|l| l.distributed))
}

/// The virtual addresses of a router.
pub fn vips(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> BTreeSet<IpAddr> {
    let lbs = ctx.lbs(uuid).cloned().unwrap_or_default();
    let mut all = BTreeSet::new();
    for l in lbs {
        all.extend(ctx.lb(l).into_iter().flat_map(|l| &l.vips).filter_map(|v| v.ip));
    }
    all
}

/// The virtual addresses that a router answers ARP requests for.
pub fn answered(ctx: &mut Ctx<'_, '_>, router: &Router) -> BTreeSet<IpAddr> {
    let lbs = ctx.lbs(router.uuid).cloned().unwrap_or_default();
    let mut all = BTreeSet::new();
    for l in lbs {
        let Some(lb) = ctx.lb(l) else { continue };
        let mode = match lb.row.options.get("neighbor_responder").map(|m| &**m) {
            Some(mode @ ("all" | "none")) => mode,
            _ if lb.template => "none",
            _ => "reachable",
        };
        for ip in lb.vips.iter().filter_map(|v| v.ip) {
            let reachable = || router.ports.iter().any(|p| p.ip_in_network_of(ip).is_some());
            if mode == "all" || mode == "reachable" && reachable() {
                all.insert(ip);
            }
        }
    }
    all
}

/// The answered virtual addresses in the networks of one port.
pub fn answered_vips(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) -> BTreeSet<IpAddr> {
    let all = answered(ctx, router);
    all.into_iter().filter(|ip| lrp.ip_in_network_of(*ip).is_some()).collect()
}

/// What becomes of the source of load-balanced packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Plain,
    Skip,
    Force,
}

impl Source {
    fn of(lb: &Lb, router: &Router) -> Source {
        match (lb.skip_snat, router.lb_force_snat.any()) {
            (true, _) => Source::Skip,
            (_, true) => Source::Force,
            _ => Source::Plain,
        }
    }

    /// What sets the flag, and the parameter of the balancing action.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Source::Plain => ("", ""),
            Source::Skip => ("flags.skip_snat_for_lb = 1; ", "; skip_snat"),
            Source::Force => ("flags.force_snat_for_lb = 1; ", "; force_snat"),
        }
    }
}

/// The flows of a router's load balancers.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    address_sets(ctx, router);
    let lbs = ctx.lbs(uuid).cloned().unwrap_or_default();
    for l in lbs {
        let Some(lb) = ctx.lb(l) else { continue };
        for vip in &lb.vips {
            defrag(ctx, uuid, lb, vip);
            not_translated(ctx, router, lb, vip);
            balance(ctx, router, lb, vip);
            if vip.address.contains('^') {
                let matches = format!("{}.dst == {}", vip.family(), vip.address);
                ctx.flow(uuid, LrInIpInput, 100, matches, "next;");
            }
            if let Some((matches, actions)) = event(ctx, lb, vip) {
                let extra = copp(&router.copp, "event-elb", ctx.global());
                ctx.flow_with(uuid, LrInDnat, 130, matches, actions, extra);
            }
        }
        if lb.skip_snat {
            ctx.flow(uuid, LrOutSnat, 120, "flags.skip_snat_for_lb == 1 && ip", "next;");
        }
    }
}

/// What is for a virtual address is tracked, or a backend is chosen by a hash where nothing may be tracked.
fn defrag(ctx: &mut Ctx<'_, '_>, u: Uuid, lb: &Lb, vip: &Vip) {
    let matches = format!("ip && {}.dst == {}", vip.family(), vip.address);
    if !lb.stateless {
        ctx.flow(u, LrInDefrag, 100, matches, "ct_dnat;");
        return;
    }
    let numbers: Vec<String> = (0..vip.backends.len()).map(|i| i.to_string()).collect();
    let actions = match (numbers.len(), lb.fields.is_empty()) {
        (0 | 1, _) => "next;".to_string(),
        (_, true) => format!("reg1[0..15] = select({});", numbers.join(",")),
        _ => format!("reg1[0..15] = select(values=({}); hash_fields=\"{}\");", numbers.join(","), lb.fields),
    };
    ctx.flow(u, LrInCtExtract, 120, matches, actions);
}

/// What is for a load balancer is no reply to something translated.
fn not_translated(ctx: &mut Ctx<'_, '_>, router: &Router, lb: &Lb, vip: &Vip) {
    let Some(row) = ctx.nb::<nb::LogicalRouter>(router.uuid) else { return };
    let shared = row.nat.iter().any(|n| ctx.nb::<nb::Nat>(*n).is_some_and(|n| n.external_ip == vip.address));
    if shared {
        let f = vip.family();
        let port = vip.port_match(&lb.protocol);
        let matches = format!("{f} && {f}.dst == {} && {}{port}", vip.address, lb.protocol);
        ctx.flow(router.uuid, LrInUnsnat, 120, matches, "next;");
    }
}

fn balance(ctx: &mut Ctx<'_, '_>, router: &Router, lb: &Lb, vip: &Vip) {
    let u = router.uuid;
    let f = vip.family();
    let matches = format!("ct.new && !ct.rel && {f} && {f}.dst == {}{}", vip.address, vip.tracked_match(&lb.protocol));
    let (before, tail) = Source::of(lb, router).texts();
    let keep = if lb.affinity > 0 { vip.keep() } else { String::new() };
    let target = ct_lb(ctx, lb, vip);
    let actions = match &target {
        Target::Backends(ct_lb) => format!("{before}{keep}{ct_lb}{tail});"),
        Target::Reject => format!("{before}{}", reject(3)),
        Target::Drop => ctx.global().drop.to_string(),
    };
    let extra = match target {
        Target::Reject => copp(&router.copp, "reject", ctx.global()),
        _ => Default::default(),
    };
    let gateways: Vec<&Lrp> = router.gateway_ports().map(|p| &**p).collect();
    if gateways.is_empty() {
        ctx.flow_with(u, LrInDnat, vip.priority(), matches.as_str(), actions.as_str(), extra.clone());
    }
    for g in &gateways {
        if lb.stateless && gateways.len() > 1 {
            stateless(ctx, u, lb, vip, g, &extra);
            continue;
        }
        let mut there = matches.clone();
        if !(lb.distributed || vip.backends.is_empty() && lb.reject) {
            there.push_str(&format!(" && is_chassis_resident({})", g.cr_json));
        }
        ctx.flow_with(u, LrInDnat, vip.priority(), there, actions.as_str(), extra.clone());
        back(ctx, router, lb, vip, g);
    }
    if lb.affinity > 0 {
        stay(ctx, u, lb, vip, &matches, before, tail);
    }
}

/// A client stays with its backend for a while. Where a variable stands for the address, OVN takes it for IPv6.
fn stay(ctx: &mut Ctx<'_, '_>, u: Uuid, lb: &Lb, vip: &Vip, matches: &str, before: &str, tail: &str) {
    let v4 = vip.ip.is_some_and(|ip| ip.is_ipv4());
    let (f, register) = if v4 { ("ip4", "reg4") } else { ("ip6", "xxreg1") };
    ctx.flow(u, LrInLbAffCheck, 100, matches, "reg9[6] = chk_lb_aff(); next;");
    for flow in affinity(lb, vip, f, register, before, tail) {
        ctx.flow(u, LrInLbAffLearn, 100, flow.fresh, flow.learn);
        ctx.flow(u, LrInDnat, 150, flow.known, flow.balance);
    }
}

/// Matches what comes from the backends.
fn from_backends(lb: &Lb, vip: &Vip) -> String {
    let f = vip.family();
    let one = |b: &crate::facts::lb::Backend| match &b.port_text {
        Some(port) => format!("({f}.src == {} && {}.src == {port})", b.address, lb.protocol),
        None => format!("({f}.src == {})", b.address),
    };
    format!("{f} && ({})", vip.backends.iter().map(one).collect::<Vec<_>>().join(" || "))
}

/// What backends answer goes by the chassis that translates it back, or, where backends are used on their own chassis
/// only, right out.
fn back(ctx: &mut Ctx<'_, '_>, router: &Router, lb: &Lb, vip: &Vip, g: &Lrp) {
    if vip.backends.is_empty() {
        return;
    }
    let u = router.uuid;
    let from = from_backends(lb, vip);
    let to = if lb.distributed { &g.json } else { &g.cr_json };
    ctx.flow(u, LrInGwRedirect, 200, format!("{from} && outport == {}", g.json), format!("outport = {to}; next;"));
    let mut matches = format!("{from} && (inport == {0} || outport == {0})", g.json);
    if !lb.distributed {
        matches.push_str(&format!(" && is_chassis_resident({})", g.cr_json));
    }
    let actions = match Source::of(lb, router) {
        Source::Plain if router.common_zone => "ct_dnat_in_czone;",
        Source::Plain => "ct_dnat;",
        Source::Skip => "flags.skip_snat_for_lb = 1; next;",
        Source::Force => "flags.force_snat_for_lb = 1; next;",
    };
    ctx.flow(u, LrOutUndnat, 120, matches, actions);
}

/// Balancing without conntrack, where the router has several gateway ports.
fn stateless(ctx: &mut Ctx<'_, '_>, u: Uuid, lb: &Lb, vip: &Vip, g: &Lrp, extra: &crate::model::FlowExtra) {
    let (f, protocol) = (vip.family(), &lb.protocol);
    let mut matches = format!("is_chassis_resident({}) && {f} && {f}.dst == {}", g.cr_json, vip.address);
    if let Some(port) = &vip.port {
        matches.push_str(&format!(" && {protocol} && {protocol}.dst == {port}"));
    }
    for (i, b) in vip.backends.iter().enumerate() {
        let chosen = if vip.backends.len() > 1 { format!(" && reg1[0..15] == {i}") } else { String::new() };
        let port = match (&vip.port, &b.port_text) {
            (Some(_), Some(port)) => format!("{protocol}.dst = {port}; "),
            _ => String::new(),
        };
        let actions = format!("{f}.dst = {}; {port}next;", b.address);
        ctx.flow_with(u, LrInDnat, vip.priority(), format!("{matches}{chosen}"), actions, extra.clone());
    }
    if vip.backends.is_empty() {
        return;
    }
    let from = from_backends(lb, vip);
    let actions = format!("outport = {}; next;", g.cr_json);
    ctx.flow(u, LrInGwRedirect, 200, format!("{from} && outport == {}", g.json), actions);
    let there = format!(
        "{from} && (inport == {0} || outport == {0}) && is_chassis_resident({1}) && {protocol}",
        g.json, g.cr_json
    );
    ctx.flow(u, LrOutUndnat, 120, there.as_str(), "next;");
    let port = vip.port.as_ref().map_or(String::new(), |p| format!(" {protocol}.src = {p};"));
    ctx.flow(u, LrOutSnat, 160, there, format!("{f}.src = {};{port} next;", vip.address));
}

/// The virtual addresses that a router answers for, as address sets, and the answers.
fn address_sets(ctx: &mut Ctx<'_, '_>, router: &Router) {
    let u = router.uuid;
    let Some(Fact::DatapathKeys(keys)) = ctx.fact(Unit::DatapathKeys) else { return };
    let Some(key) = keys.get(&u) else { return };
    let all = answered(ctx, router);
    for v4 in [true, false] {
        let members: Set<Str> =
            all.iter().filter(|ip| ip.is_ipv4() == v4).map(|ip| Str::from(ip.to_string())).collect();
        if members.is_empty() {
            continue;
        }
        let name = format!("_rtr_lb_{key}_ip{}", if v4 { 4 } else { 6 });
        let columns = Columns::new().data("name", &Str::from(name.as_str())).data("addresses", &members);
        ctx.row(RowKey::new(sb::TableId::AddressSet, &name), columns);
        for p in &router.ports {
            let resident = if router.is_gateway_port(p) {
                format!(" && is_chassis_resident({})", p.cr_json)
            } else {
                String::new()
            };
            let (matches, actions) = if v4 {
                let matches = format!("inport == {} && arp.op == 1 && arp.tpa == ${name}{resident}", p.json);
                (matches, super::input::arp_reply("xreg0[0..47]"))
            } else {
                let matches = format!("inport == {} && nd_ns && nd.target == ${name}{resident}", p.json);
                (matches, super::input::nd_reply("nd_na", "xreg0[0..47]"))
            };
            ctx.flow(u, LrInIpInput, 90, matches, actions);
        }
    }
}
