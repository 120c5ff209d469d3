//! Sending traffic through network functions (ovn-nb(5), tables `Network_Function`, `Network_Function_Group`).

use crate::addresses::quoted;
use crate::context::Ctx;
use crate::model::Columns;
use crate::registers::*;
use crate::stage::Stage::*;
use crate::tables::health;
use const_format::formatcp;
use ovn_schema::{Str, Uuid, nb};

fn is_vtap(group: &nb::NetworkFunctionGroup) -> bool {
    &*group.mode == "vtap"
}

/// `network_function_active`: the first function that works, but no change without need.
pub fn choose(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(group) = ctx.nb::<nb::NetworkFunctionGroup>(uuid) else { return };
    if group.network_function.is_empty() {
        ctx.problem(format!("network function group {}: it has no network function", group.name));
    }
    let working: Vec<Uuid> = group.network_function.iter().copied().filter(|f| works(ctx, group, *f)).collect();
    if working.is_empty() && !group.network_function.is_empty() {
        ctx.problem(format!("network function group {}: none of its functions works", group.name));
    }
    let kept = group.network_function_active.filter(|f| working.contains(f));
    let active = kept.or(working.first().copied());
    let columns = Columns::new().data("network_function_active", &active);
    ctx.nb_columns(nb::TableId::NetworkFunctionGroup, uuid, columns);
}

fn works(ctx: &mut Ctx<'_, '_>, group: &nb::NetworkFunctionGroup, uuid: Uuid) -> bool {
    let Some(row) = ctx.nb::<nb::NetworkFunction>(uuid) else { return false };
    let name = |ctx: &mut Ctx<'_, '_>, port: Uuid| ctx.nb::<nb::LogicalSwitchPort>(port).map(|p| p.name.clone());
    let Some(inport) = name(ctx, row.inport) else { return false };
    let outport = row.outport.and_then(|p| name(ctx, p));
    match (is_vtap(group), &outport) {
        (true, Some(_)) => {
            ctx.problem(format!("network function {}: a tap has no outport; remove it", row.name));
            return false;
        }
        (false, None) => {
            ctx.problem(format!("network function {}: it needs an outport to be inline", row.name));
            return false;
        }
        _ => {}
    }
    let (up, chassis) = health::place(ctx, &inport);
    if !up || chassis.is_none() {
        return false;
    }
    let Some(outport) = outport else { return true };
    if health::place(ctx, &outport) != (true, chassis) {
        return false;
    }
    if row.health_check.is_none() {
        return true;
    }
    let Some(target) = ctx.global().options.get("svc_monitor_ip_dst") else { return false };
    health::find(ctx, &outport, target, 0, "icmp").is_some_and(|m| m.status.as_deref() == Some("online"))
}

/// The flows of a group that access lists of one direction send traffic through.
pub fn group(ctx: &mut Ctx<'_, '_>, u: Uuid, uuid: Uuid, ingress: bool) {
    let Some(group) = ctx.nb::<nb::NetworkFunctionGroup>(uuid) else { return };
    let vtap = is_vtap(group);
    let pre = if ingress { LsInPreNetworkFunction } else { LsOutPreNetworkFunction };
    let chosen = format!("{REGBIT_NF_ENABLED} == 1 && {REGBIT_NF_ORIG_DIR} == 1 && {REG_NF_ID} == {}", group.id);
    if vtap || group.fallback.as_deref() == Some("fail-open") {
        ctx.flow(u, pre, 10, chosen.as_str(), formatcp!("{REGBIT_NF_ENABLED} = 0; {REG_NF_ID} = 0; next;"));
    }
    let Some(function) = group.network_function_active.and_then(|f| ctx.nb::<nb::NetworkFunction>(f)) else { return };
    if vtap == function.outport.is_some() {
        return;
    }
    let Some(inport) = here(ctx, u, function.inport) else { return };
    let outport = match function.outport {
        Some(port) => match here(ctx, u, port) {
            Some(port) => Some(port),
            None => return,
        },
        None => None,
    };
    let (inport, outport) = (quoted(&inport), outport.map(|p| quoted(&p)));
    ctx.flow(u, pre, 99, chosen, format!("{REG_NF_ID} = {}; next;", function.id));
    let there = if ingress { &inport } else { outport.as_ref().unwrap_or(&inport) };
    let back = if ingress { outport.as_ref().unwrap_or(&inport) } else { &inport };
    let send = |port: &str, from_ingress: bool| match (vtap, from_ingress) {
        (false, true) => format!("outport = {port}; output;"),
        (false, false) => {
            format!("outport = {port}; {REGBIT_NF_EGRESS_LOOPBACK} = 1; next(pipeline=ingress, table=33);")
        }
        (true, true) => format!("clone {{outport = {port}; output;}}; next;"),
        (true, false) => format!(
            "clone {{outport = {port}; {REGBIT_NF_EGRESS_LOOPBACK} = 1; next(pipeline=ingress, table=33);}}; next;"
        ),
    };
    let (forward, reverse) =
        if ingress { (LsInNetworkFunction, LsOutNetworkFunction) } else { (LsOutNetworkFunction, LsInNetworkFunction) };
    let matches = format!("{REGBIT_NF_ENABLED} == 1 && {REGBIT_NF_ORIG_DIR} == 1 && {REG_NF_ID} == {}", function.id);
    ctx.flow(u, forward, 99, matches, send(there, ingress));
    let matches = format!("{REGBIT_NF_ENABLED} == 1 && {REGBIT_NF_ORIG_DIR} == 0 && ct_label.nf_id == {}", function.id);
    ctx.flow(u, reverse, 99, matches, send(back, !ingress));
    match outport {
        Some(outport) => inline(ctx, u, &inport, &outport),
        None => tap(ctx, u, &inport),
    }
}

/// The port of a function that is in a switch: itself, or a child of it.
fn here(ctx: &mut Ctx<'_, '_>, u: Uuid, port: Uuid) -> Option<Str> {
    let name = &ctx.nb::<nb::LogicalSwitchPort>(port)?.name;
    let row = ctx.nb::<nb::LogicalSwitch>(u)?;
    if row.ports.contains(&port) {
        return Some(name.clone());
    }
    row.ports.iter().find_map(|p| {
        let child = ctx.lsp(*p)?;
        (child.row.parent_name.as_ref() == Some(name)).then(|| child.name.clone())
    })
}

/// What comes out of a function is not sent through it again, and the tunnel that it came by is remembered.
fn inline(ctx: &mut Ctx<'_, '_>, u: Uuid, inport: &str, outport: &str) {
    let start = formatcp!(
        "ct_commit {{ ct_mark.blocked = 0; ct_mark.allow_established = {REGBIT_ACL_PERSIST_ID}; ct_label.acl_id = {REG_ACL_ID}; "
    );
    let sample = formatcp!(
        "ct_mark.obs_stage = {REG_ACL_OBS_STAGE}; ct_mark.obs_collector_id = {REG_OBS_COLLECTOR_ID_EST}; ct_label.obs_point_id = {REG_OBS_POINT_ID_EST}; "
    );
    let end = formatcp!("ct_label.tun_if_id = {REG_TUN_OFPORT}; }}; next;");
    for port in [inport, outport] {
        let matches = format!("inport == {port}");
        ctx.flow(u, LsInNetworkFunction, 100, matches, formatcp!("{REG_TUN_OFPORT} = ct_label.tun_if_id; next;"));
        ctx.flow(u, LsOutNetworkFunction, 100, format!("outport == {port}"), "next;");
        let plain = format!("outport == {port} && {REGBIT_ACL_LABEL} == 0");
        ctx.flow(u, LsOutStateful, 120, plain, format!("{start}{end}"));
        let sampled = format!("outport == {port} && {REGBIT_ACL_LABEL} == 1");
        ctx.flow(u, LsOutStateful, 120, sampled, format!("{start}{sample}{end}"));
    }
    ctx.flow(u, LsOutPreAcl, 110, format!("inport == {inport}"), "next(pipeline=egress, table=14);");
}

/// What goes to a tap ends there.
fn tap(ctx: &mut Ctx<'_, '_>, u: Uuid, inport: &str) {
    ctx.flow(u, LsInNetworkFunction, 100, format!("inport == {inport}"), "drop;");
    ctx.flow(u, LsOutNetworkFunction, 100, format!("outport == {inport}"), "next;");
    ctx.flow(u, LsOutPreAcl, 110, format!("ip && outport == {inport}"), "ct_clear; next;");
}
