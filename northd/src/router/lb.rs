//! Load balancing in a router.

use crate::context::Ctx;
use crate::facts::Fact;
use crate::facts::global::copp;
use crate::facts::lb::{Lb, Vip};
use crate::facts::lb_use::{RouterShape, RouterVips};
use crate::facts::router::Router;
use crate::model::{Columns, FlowExtra, RowKey, Unit};
use crate::registers::*;
use crate::stage::Stage::*;
use crate::switch::lb::{Target, affinity, ct_lb, event, reject};
use const_format::formatcp;
use ovn_schema::{Set, Str, Uuid, sb};
use std::sync::Arc;

/// Whether and to what the source of load-balanced packets is translated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Plain,
    Skip,
    Force,
}

impl Source {
    fn of(lb: &Lb, shape: &RouterShape) -> Source {
        match (lb.skip_snat, shape.force_snat) {
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

/// The answers for a router's virtual addresses, and what sets them apart from its translated ones.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    let vips = ctx.vips(uuid);
    address_sets(ctx, router, vips);
    not_translated(ctx, router, vips);
}

/// The flows of a load balancer in all its routers.
pub fn load_balancer(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lb) = ctx.lb(uuid) else { return };
    let Some(used) = ctx.lb_use(uuid) else { return };
    let ctx = &mut ctx.about(uuid);
    for (shape, routers) in &used.routers.by_shape {
        for vip in &lb.vips {
            defrag(ctx, routers, lb, vip);
            balance(ctx, routers, shape, lb, vip);
            if vip.address.contains('^') {
                let matches = format!("{}.dst == {}", vip.family(), vip.address);
                ctx.flow(routers, LrInIpInput, 100, matches, "next;");
            }
            if let Some((matches, actions)) = event(ctx, lb, vip) {
                let extra = FlowExtra { meter: shape.event.clone(), ..FlowExtra::default() };
                ctx.flow_with(routers, LrInDnat, 130, matches, actions, extra);
            }
        }
        if lb.skip_snat {
            ctx.about_none().flow(routers, LrOutSnat, 120, "flags.skip_snat_for_lb == 1 && ip", "next;");
        }
    }
}

/// What is for a virtual address is tracked, or a backend is chosen by a hash where nothing may be tracked.
fn defrag(ctx: &mut Ctx<'_, '_>, u: &Arc<[Uuid]>, lb: &Lb, vip: &Vip) {
    let matches = format!("ip && {}.dst == {}", vip.family(), vip.address);
    if !lb.stateless {
        ctx.flow(u, LrInDefrag, 100, matches, "ct_dnat;");
        return;
    }
    let numbers: Vec<String> = (0..vip.backends.len()).map(|i| i.to_string()).collect();
    let actions = match (numbers.len(), lb.fields.is_empty()) {
        (0 | 1, _) => "next;".to_string(),
        (_, true) => format!("{REG_IDX_LB_STATELESS} = select({});", numbers.join(",")),
        _ => format!("{REG_IDX_LB_STATELESS} = select(values=({}); hash_fields=\"{}\");", numbers.join(","), lb.fields),
    };
    ctx.flow(u, LrInCtExtract, 120, matches, actions);
}

/// What is for a virtual address that is a translated one too is no reply to something translated.
fn not_translated(ctx: &mut Ctx<'_, '_>, router: &Router, vips: &RouterVips) {
    for a in &vips.translated {
        let f = if a.v6 { "ip6" } else { "ip4" };
        let protocol = &a.protocol;
        let port = a.port.as_ref().map_or(String::new(), |port| format!(" && {protocol}.dst == {port}"));
        let ctx = &mut ctx.about(a.lb);
        ctx.flow(router.uuid, LrInUnsnat, 120, format!("{f} && {f}.dst == {} && {protocol}{port}", a.text), "next;");
    }
}

fn balance(ctx: &mut Ctx<'_, '_>, u: &Arc<[Uuid]>, shape: &RouterShape, lb: &Lb, vip: &Vip) {
    let f = vip.family();
    let matches = format!("ct.new && !ct.rel && {f} && {f}.dst == {}{}", vip.address, vip.tracked_match(&lb.protocol));
    let (before, tail) = Source::of(lb, shape).texts();
    let keep = if lb.affinity > 0 { vip.keep() } else { String::new() };
    let target = ct_lb(ctx, lb, vip);
    let actions = match &target {
        Target::Backends(ct_lb) => format!("{before}{keep}{ct_lb}{tail});"),
        Target::Reject => format!("{before}{}", reject(3)),
        Target::Drop => ctx.global().drop.to_string(),
    };
    let extra = match target {
        Target::Reject => FlowExtra { meter: shape.reject.clone(), ..FlowExtra::default() },
        _ => FlowExtra::default(),
    };
    let gateways = &shape.gateways;
    if gateways.is_empty() {
        ctx.flow_with(u, LrInDnat, vip.priority(), matches.as_str(), actions.as_str(), extra.clone());
    }
    for g in gateways {
        if lb.stateless && gateways.len() > 1 {
            stateless(ctx, u, lb, vip, g, &extra);
            continue;
        }
        let mut there = matches.clone();
        if !(lb.distributed || vip.backends.is_empty() && lb.reject) {
            there.push_str(&format!(" && is_chassis_resident({})", g.1));
        }
        ctx.flow_with(u, LrInDnat, vip.priority(), there, actions.as_str(), extra.clone());
        back(ctx, u, shape, lb, vip, g);
    }
    if lb.affinity > 0 {
        stay(ctx, u, lb, vip, &matches, before, tail);
    }
}

/// Affinity: a client stays with its backend for a while. Where a variable stands for the address, OVN takes it for IPv6.
fn stay(ctx: &mut Ctx<'_, '_>, u: &Arc<[Uuid]>, lb: &Lb, vip: &Vip, matches: &str, before: &str, tail: &str) {
    let v4 = vip.ip.is_some_and(|ip| ip.is_ipv4());
    let (f, register) = if v4 { ("ip4", REG_LB_IPV4) } else { ("ip6", REG_LB_IPV6) };
    ctx.flow(u, LrInLbAffCheck, 100, matches, formatcp!("{REGBIT_KNOWN_LB_SESSION} = chk_lb_aff(); next;"));
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
fn back(
    ctx: &mut Ctx<'_, '_>,
    u: &Arc<[Uuid]>,
    shape: &RouterShape,
    lb: &Lb,
    vip: &Vip,
    (port, redirect): &(Str, Str),
) {
    if vip.backends.is_empty() {
        return;
    }
    let from = from_backends(lb, vip);
    let to = if lb.distributed { port } else { redirect };
    ctx.flow(u, LrInGwRedirect, 200, format!("{from} && outport == {port}"), format!("outport = {to}; next;"));
    let mut matches = format!("{from} && (inport == {port} || outport == {port})");
    if !lb.distributed {
        matches.push_str(&format!(" && is_chassis_resident({redirect})"));
    }
    let actions = match Source::of(lb, shape) {
        Source::Plain if shape.common_zone => "ct_dnat_in_czone;",
        Source::Plain => "ct_dnat;",
        Source::Skip => "flags.skip_snat_for_lb = 1; next;",
        Source::Force => "flags.force_snat_for_lb = 1; next;",
    };
    ctx.flow(u, LrOutUndnat, 120, matches, actions);
}

/// Balancing without conntrack, where the router has several gateway ports.
fn stateless(
    ctx: &mut Ctx<'_, '_>,
    u: &Arc<[Uuid]>,
    lb: &Lb,
    vip: &Vip,
    (port, redirect): &(Str, Str),
    extra: &FlowExtra,
) {
    let (f, protocol) = (vip.family(), &lb.protocol);
    let mut matches = format!("is_chassis_resident({redirect}) && {f} && {f}.dst == {}", vip.address);
    if let Some(number) = &vip.port {
        matches.push_str(&format!(" && {protocol} && {protocol}.dst == {number}"));
    }
    for (i, b) in vip.backends.iter().enumerate() {
        let chosen = if vip.backends.len() > 1 { format!(" && {REG_IDX_LB_STATELESS} == {i}") } else { String::new() };
        let number = match (&vip.port, &b.port_text) {
            (Some(_), Some(number)) => format!("{protocol}.dst = {number}; "),
            _ => String::new(),
        };
        let actions = format!("{f}.dst = {}; {number}next;", b.address);
        ctx.flow_with(u, LrInDnat, vip.priority(), format!("{matches}{chosen}"), actions, extra.clone());
    }
    if vip.backends.is_empty() {
        return;
    }
    let from = from_backends(lb, vip);
    let actions = format!("outport = {redirect}; next;");
    ctx.flow(u, LrInGwRedirect, 200, format!("{from} && outport == {port}"), actions);
    let there =
        format!("{from} && (inport == {port} || outport == {port}) && is_chassis_resident({redirect}) && {protocol}");
    ctx.flow(u, LrOutUndnat, 120, there.as_str(), "next;");
    let number = vip.port.as_ref().map_or(String::new(), |p| format!(" {protocol}.src = {p};"));
    ctx.flow(u, LrOutSnat, 160, there, format!("{f}.src = {};{number} next;", vip.address));
}

/// The virtual addresses that a router answers for, as address sets, and the answers.
fn address_sets(ctx: &mut Ctx<'_, '_>, router: &Router, vips: &RouterVips) {
    let u = router.uuid;
    let Some(Fact::DatapathKeys(keys)) = ctx.fact(Unit::DatapathKeys) else { return };
    let Some(key) = keys.get(&u) else { return };
    let meter = copp(&router.copp, "nd-na", ctx.global());
    // What a variable stands for only chassis know; they find it in the set. OVN has all variables in that of IPv6.
    for v4 in [true, false] {
        let known = vips.answered.iter().filter(|ip| ip.is_ipv4() == v4).map(|ip| Str::from(ip.to_string()));
        let members: Set<Str> = known.chain(vips.variables.iter().filter(|_| !v4).cloned()).collect();
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
            if v4 {
                let matches = format!("inport == {} && arp.op == 1 && arp.tpa == ${name}{resident}", p.json);
                ctx.flow(u, LrInIpInput, 90, matches, super::input::arp_reply(REG_INPORT_ETH_ADDR));
            } else {
                let matches = format!("inport == {} && nd_ns && nd.target == ${name}{resident}", p.json);
                let actions = super::input::nd_reply("nd_na", REG_INPORT_ETH_ADDR);
                ctx.flow_with(u, LrInIpInput, 90, matches, actions, meter.clone());
            }
        }
    }
}
