//! Admission of a port's packets, MAC learning, and what a port is left out of.

use super::TOO_BIG;
use crate::addresses::quoted;
use crate::context::{Ctx, flag_or};
use crate::facts::lsp::switch_redirect;
use crate::facts::lsp::{Kind, Lsp};
use crate::facts::switch::{State, Switch};
use crate::input::Read;
use crate::registers::*;
use crate::stage::Stage::*;
use crate::tables::binding::queue;
use const_format::formatcp;
use ovn_schema::Str;

/// The flows of a port in the first tables.
pub fn admission(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    let (u, port) = (switch.uuid, &lsp.json);
    too_big(ctx, lsp);
    if !lsp.enabled() {
        if lsp.kind != Kind::External {
            disabled(ctx, lsp, &lsp.name);
        }
        if switch_redirect(ctx, lsp) {
            disabled(ctx, lsp, &format!("cr-{}", lsp.name).into());
        }
        learn(ctx, lsp, switch);
        return;
    }
    let matches = || format!("inport == {port}");
    match lsp.kind {
        Kind::Router => {
            let from_router = formatcp!("{REGBIT_FROM_ROUTER_PORT} = 1; next;");
            ctx.port_flow(u, LsInCheckPortSec, 70, matches(), from_router, &lsp.name);
            if switch_redirect(ctx, lsp) {
                let name = Str::from(format!("cr-{}", lsp.name));
                let matches = format!("inport == {}", quoted(&name));
                ctx.port_flow(u, LsInCheckPortSec, 70, matches, from_router, &name);
            }
        }
        Kind::Vtep => {
            let queue = queue(ctx, lsp).map_or(String::new(), |q| format!("set_queue({q}); "));
            let actions = format!("{queue}{REGBIT_FROM_RAMP} = 1; next(pipeline=ingress, table=19);");
            ctx.port_flow(u, LsInCheckPortSec, 70, matches(), actions, &lsp.name);
        }
        Kind::External => {}
        _ => queued(ctx, lsp, switch),
    }
    learn(ctx, lsp, switch);
}

/// Nothing comes from a disabled port or goes there.
fn disabled(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, name: &Str) {
    let port = quoted(name);
    ctx.port_flow(
        lsp.switch,
        LsInCheckPortSec,
        100,
        format!("inport == {port}"),
        formatcp!("{REGBIT_PORT_SEC_DROP} = 1; next;"),
        name,
    );
    let drop = ctx.global().drop.clone();
    ctx.port_flow(lsp.switch, LsInL2Unknown, 50, format!("outport == {port}"), &*drop, name);
}

/// A port with QoS parameters has a queue, also on the way out of the physical network's port.
fn queued(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    let Some(queue) = queue(ctx, lsp) else { return };
    let (u, port) = (switch.uuid, &lsp.json);
    let actions = format!("set_queue({queue}); {REGBIT_PORT_SEC_DROP} = check_in_port_sec(); next;");
    ctx.port_flow(u, LsInCheckPortSec, 70, format!("inport == {port}"), actions, &lsp.name);
    let out = format!("set_queue({queue}); output;");
    if lsp.kind == Kind::Localnet {
        ctx.port_flow(u, LsOutApplyPortSec, 100, format!("outport == {port}"), out, &lsp.name);
    } else if let Some(localnet) = switch.localnets.first() {
        let row = ctx.read(Read::LspName(localnet.clone())).lsp_by_name(localnet);
        let ctx = &mut ctx.about(row.unwrap_or(lsp.uuid));
        let matches = format!("outport == {} && inport == {port}", quoted(localnet));
        ctx.port_flow(u, LsOutApplyPortSec, 110, matches, out, localnet);
    }
}

fn too_big(ctx: &mut Ctx<'_, '_>, lsp: &Lsp) {
    let (icmp, rx) = TOO_BIG.rsplit_once(" && ").unwrap_or((TOO_BIG, ""));
    let ctx = &mut ctx.about_none();
    let (u, port) = (lsp.switch, &lsp.json);
    if lsp.kind != Kind::Router {
        for a in &lsp.addresses {
            let matches =
                format!("{icmp} && eth.src == {} && outport == {port} && !is_chassis_resident({port}) && {rx}", a.mac);
            ctx.flow(u, LsInCheckPortSec, 110, matches, "outport <-> inport; next;");
        }
        return;
    }
    let Some(lrp) = lsp.lrp.and_then(|p| ctx.lrp(p)) else { return };
    let Some(router) = ctx.router(lrp.router) else { return };
    if router.is_gateway() {
        let matches = format!("{icmp} && eth.src == {} && outport == {port} && {rx}", lrp.mac);
        ctx.flow(u, LsInCheckPortSec, 120, matches, "outport <-> inport; next;");
    } else {
        let matches = format!("{icmp} && eth.dst == {} && {rx}", lrp.mac);
        ctx.flow(u, LsInCheckPortSec, 120, matches, "outport <-> inport; next(pipeline=ingress,table=33);");
    }
}

fn learn(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    let (u, port) = (switch.uuid, &lsp.json);
    let localnet = lsp.kind == Kind::Localnet;
    let learns = if localnet {
        lsp.unknown && lsp.option("localnet_learn_fdb")
    } else {
        lsp.kind == Kind::Remote && lsp.unknown || lsp.learns_macs() && flag_or(&lsp.row.options, "lsp_learn_fdb", true)
    };
    let matches = format!("inport == {port}");
    if localnet {
        ctx.port_flow(u, LsInLookupFdb, 50, matches.as_str(), "flags.localnet = 1; next;", &lsp.name);
    }
    if learns && !lsp.secured() {
        let mark = if localnet { "flags.localnet = 1; " } else { "" };
        let actions = format!("{mark}{REGBIT_LKUP_FDB} = lookup_fdb(inport, eth.src); next;");
        let (lookup, put) =
            if lsp.kind == Kind::Remote { (LsOutLookupFdb, LsOutPutFdb) } else { (LsInLookupFdb, LsInPutFdb) };
        ctx.port_flow(u, lookup, 100, matches.as_str(), actions, &lsp.name);
        let matches = format!("{matches} && {REGBIT_LKUP_FDB} == 0");
        ctx.port_flow(u, put, 100, matches, "put_fdb(inport, eth.src); next;", &lsp.name);
    }
}

/// Conntrack is not for packets to and from routers, physical networks and other switches.
pub fn skip_conntrack(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, state: &State) {
    let (u, port) = (lsp.switch, &lsp.json);
    if !matches!(lsp.kind, Kind::Router | Kind::Localnet | Kind::Switch) {
        return;
    }
    if lsp.kind == Kind::Router && lsp.lrp.is_none() {
        return;
    }
    // Only a distributed gateway port's switch has access lists for it.
    let gateway = lsp.lrp.and_then(|l| ctx.lrp(l)).filter(|_| lsp.option("enable_router_port_acl"));
    let acl = gateway.is_some_and(|l| ctx.router(l.router).is_some_and(|r| r.is_gateway_port(l)));
    let (ingress, egress) = (format!("ip && inport == {port}"), format!("ip && outport == {port}"));
    let clear = "flags.pkt_sampled = 0; ct_clear; next;";
    let out = match lsp.kind {
        Kind::Router if !state.has_stateful => clear,
        Kind::Localnet => clear,
        _ => "next;",
    };
    // What a load balancer is to balance must be tracked where it comes in from a physical network, too.
    if lsp.kind != Kind::Localnet || !state.has_lb {
        ctx.port_flow(u, LsInPreLb, 110, ingress.as_str(), "next;", &lsp.name);
        ctx.port_flow(u, LsOutPreLb, 110, egress.as_str(), out, &lsp.name);
    }
    if state.has_stateful && !acl {
        ctx.port_flow(u, LsInPreAcl, 110, ingress, "next;", &lsp.name);
        ctx.port_flow(u, LsOutPreAcl, 110, egress, out, &lsp.name);
    }
}
