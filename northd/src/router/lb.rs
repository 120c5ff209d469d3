//! Load balancing in a router.

use crate::context::{Ctx, flag};
use crate::facts::Fact;
use crate::facts::lb::{Lb, Vip};
use crate::facts::lrp::Lrp;
use crate::facts::router::Router;
use crate::model::{Columns, RowKey, Unit};
use crate::stage::Stage::*;
use crate::switch::lb::{event, event_action};
use crate::tables::copp;
use crate::tables::load_balancer::protocol_number;
use ovn_schema::{Set, Str, Uuid, sb};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Whether a datapath has a load balancer with a virtual address.
pub fn has_vips(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> bool {
    let lbs = ctx.lbs(uuid).cloned().unwrap_or_default();
    lbs.iter().any(|l| ctx.lb(*l).is_some_and(|l| !l.vips.is_empty()))
}

/// The virtual addresses of a router.
pub fn vips(ctx: &mut Ctx<'_, '_>, uuid: Uuid) -> BTreeSet<IpAddr> {
    let lbs = ctx.lbs(uuid).cloned().unwrap_or_default();
    let mut all = BTreeSet::new();
    for l in lbs {
        all.extend(ctx.lb(l).into_iter().flat_map(|l| &l.vips).map(|v| v.ip));
    }
    all
}

/// The virtual addresses that a router answers ARP requests for.
pub fn answered(ctx: &mut Ctx<'_, '_>, router: &Router) -> BTreeSet<IpAddr> {
    let lbs = ctx.lbs(router.uuid).cloned().unwrap_or_default();
    let mut all = BTreeSet::new();
    for l in lbs {
        let Some(lb) = ctx.lb(l) else { continue };
        let mode = lb.row.options.get("neighbor_responder").map_or("reachable", |m| m);
        for vip in &lb.vips {
            let reachable = || router.ports.iter().any(|p| p.ip_in_network_of(vip.ip).is_some());
            if mode == "all" || mode != "none" && reachable() {
                all.insert(vip.ip);
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

/// `IP`, `IP:PORT` or `[IP6]:PORT`.
fn endpoint((ip, port): &(IpAddr, u16)) -> String {
    match (ip, port) {
        (ip, 0) => ip.to_string(),
        (IpAddr::V4(ip), port) => format!("{ip}:{port}"),
        (IpAddr::V6(ip), port) => format!("[{ip}]:{port}"),
    }
}

/// The `ct_lb_mark` action; none where there is nothing to balance to.
pub fn ct_lb(lb: &Lb, backends: &[(IpAddr, u16)], tail: &str) -> Option<String> {
    if backends.is_empty() {
        return None;
    }
    let list: Vec<String> = backends.iter().map(endpoint).collect();
    let mut s = format!("ct_lb_mark(backends={}", list.join(","));
    if !lb.row.selection_fields.is_empty() {
        let fields: Vec<String> = lb
            .row
            .selection_fields
            .iter()
            .map(|f| match &**f {
                "tp_src" => format!("{}_src", lb.protocol),
                "tp_dst" => format!("{}_dst", lb.protocol),
                f => f.to_string(),
            })
            .collect();
        s.push_str(&format!("; hash_fields=\"{}\"", fields.join(",")));
    }
    if !tail.is_empty() {
        s.push_str(&format!("; {tail}"));
    }
    s.push_str(");");
    Some(s)
}

/// The flows of a router's load balancers.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    address_sets(ctx, router);
    let gateways: Vec<&Lrp> = router.gateway_ports().map(|p| &**p).collect();
    let lbs = ctx.lbs(uuid).cloned().unwrap_or_default();
    let mut seen = BTreeSet::new();
    for l in lbs {
        let Some(lb) = ctx.lb(l) else { continue };
        for vip in &lb.vips {
            if seen.insert(vip.ip) {
                let f = family(vip.ip);
                ctx.flow(uuid, LrInDefrag, 100, format!("ip && {f}.dst == {}", vip.ip), "ct_dnat;");
            }
            not_translated(ctx, router, lb, vip);
            if gateways.is_empty() {
                balance(ctx, router, lb, vip, None);
            }
            for g in &gateways {
                balance(ctx, router, lb, vip, Some(g));
            }
        }
    }
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "ip4" } else { "ip6" }
}

/// What is for a load balancer is no reply to something translated.
fn not_translated(ctx: &mut Ctx<'_, '_>, router: &Router, lb: &Lb, vip: &Vip) {
    let shared = ctx.nats(router.uuid).into_iter().flatten().any(|n| n.external == vip.ip);
    if !shared {
        return;
    }
    let f = family(vip.ip);
    let mut matches = format!("{f} && {f}.dst == {} && {}", vip.ip, lb.protocol);
    if vip.port != 0 {
        matches.push_str(&format!(" && {}.dst == {}", lb.protocol, vip.port));
    }
    ctx.flow(router.uuid, LrInUnsnat, 120, matches, "next;");
}

fn balance(ctx: &mut Ctx<'_, '_>, router: &Router, lb: &Lb, vip: &Vip, gateway: Option<&Lrp>) {
    let u = router.uuid;
    let f = family(vip.ip);
    if vip.backends.is_empty() && event(ctx, lb) && !flag(&lb.row.options, "reject") {
        let mut matches = format!("{f}.dst == {} && {}", vip.ip, lb.protocol);
        if vip.port != 0 {
            matches.push_str(&format!(" && {}.dst == {}", lb.protocol, vip.port));
        }
        let extra = copp(&router.copp, "event-elb", ctx.global());
        ctx.flow_with(u, LrInDnat, 130, matches, event_action(lb, vip), extra);
    }
    let mut matches = format!("ct.new && !ct.rel && {f} && {f}.dst == {}", vip.ip);
    if vip.port != 0 {
        let number = protocol_number(&lb.protocol);
        matches.push_str(&format!(" && reg1[16..23] == {number} && reg1[0..15] == {}", vip.port));
    }
    if let Some(g) = gateway {
        matches.push_str(&format!(" && is_chassis_resident({})", g.cr_json));
    }
    let skip = flag(&lb.row.options, "skip_snat");
    let force = !skip && router.is_gateway() && router.lb_force_snat.any();
    let (before, tail) = match (skip, force) {
        (true, _) => ("flags.skip_snat_for_lb = 1; ", "skip_snat"),
        (_, true) => ("flags.force_snat_for_lb = 1; ", "force_snat"),
        _ => ("", ""),
    };
    let backends = crate::tables::health::backends(ctx, lb, vip);
    let actions = match ct_lb(lb, &backends, tail) {
        Some(ct_lb) => format!("{before}{ct_lb}"),
        None if flag(&lb.row.options, "reject") => {
            "reg0 = 0; reject { /* eth.dst <-> eth.src; ip.dst <-> ip.src; is implicit. */ \
             outport <-> inport; next(pipeline=egress,table=0); };"
                .to_string()
        }
        None => ctx.global().drop.to_string(),
    };
    ctx.flow(u, LrInDnat, if vip.port == 0 { 110 } else { 120 }, matches, actions);
    if let Some(g) = gateway
        && !vip.backends.is_empty()
    {
        let from: Vec<String> = vip
            .backends
            .iter()
            .map(|(ip, port)| match port {
                0 => format!("({f}.src == {ip})"),
                port => format!("({f}.src == {ip} && {}.src == {port})", lb.protocol),
            })
            .collect();
        let from = format!("{f} && ({})", from.join(" || "));
        let resident = format!("is_chassis_resident({})", g.cr_json);
        let matches = format!("{from} && (inport == {0} || outport == {0}) && {resident}", g.json);
        ctx.flow(u, LrOutUndnat, 120, matches, "ct_dnat;");
        let matches = format!("{from} && outport == {}", g.json);
        ctx.flow(u, LrInGwRedirect, 200, matches, format!("outport = {}; next;", g.cr_json));
    }
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
