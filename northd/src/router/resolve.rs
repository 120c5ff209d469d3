//! The Ethernet addresses of next hops that are known without asking.

use super::input::braced;
use crate::context::{Ctx, flag};
use crate::facts::lrp::Lrp;
use crate::facts::lsp::{Kind, Lsp};
use crate::facts::router::Router;
use crate::facts::switch::Switch;
use crate::registers::*;
use crate::stage::Stage::LrInArpResolve;

/// A switch port's addresses, for the routers at the switch.
pub fn lsp(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    match lsp.kind {
        Kind::Router => router_port(ctx, lsp, switch),
        Kind::Virtual => {}
        _ if lsp.enabled() => host(ctx, lsp, switch),
        _ => {}
    }
}

fn host(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    for r in &switch.router_ports {
        let Some(lrp) = r.lrp.and_then(|p| ctx.lrp(p)) else { continue };
        let bridged = lrp.gateway
            && ctx.router(lrp.router).is_some_and(|r| r.is_gateway_port(lrp))
            && lrp.row.options.get("redirect-type").is_some_and(|t| t.eq_ignore_ascii_case("bridged"));
        for a in &lsp.addresses {
            let actions = format!("eth.dst = {}; next;", a.mac);
            for n in a.v4.iter().filter(|_| !bridged).filter(|n| lrp.ip_in_network_of(n.addr.into()).is_some()) {
                let matches = format!("outport == {} && {REG_NEXT_HOP_IPV4} == {}", lrp.json, n.addr);
                ctx.flow(lrp.router, LrInArpResolve, 100, matches, actions.as_str());
            }
            for n in a.v6.iter().filter(|n| lrp.ip_in_network_of(n.addr.into()).is_some()) {
                let matches = format!("outport == {} && {REG_NEXT_HOP_IPV6} == {}", lrp.json, n.addr);
                ctx.flow(lrp.router, LrInArpResolve, 100, matches, actions.as_str());
            }
        }
    }
}

fn networks(lrp: &Lrp) -> (Option<String>, Option<String>) {
    let v4: Vec<String> = lrp.v4.iter().map(|n| n.addr.to_string()).collect();
    let v6: Vec<String> = lrp.v6.iter().map(|n| n.addr.to_string()).collect();
    ((!v4.is_empty()).then(|| braced(&v4)), (!v6.is_empty()).then(|| braced(&v6)))
}

/// A router's own addresses, for the other routers at the switch.
fn router_port(ctx: &mut Ctx<'_, '_>, lsp: &Lsp, switch: &Switch) {
    let Some(lrp) = lsp.lrp.and_then(|p| ctx.lrp(p)) else { return };
    let (v4, v6) = networks(lrp);
    for r in &switch.router_ports {
        let (Some(other), Some(router)) = (r.lrp.and_then(|p| ctx.lrp(p)), r.router.and_then(|r| ctx.router(r))) else {
            continue;
        };
        let disabled = ctx.lsp(r.lsp).is_some_and(|l| !l.enabled());
        if other.uuid == lrp.uuid || disabled || flag(&router.options, "dynamic_neigh_routers") {
            continue;
        }
        let ctx = &mut ctx.about(r.lsp);
        let actions = format!("eth.dst = {}; next;", lrp.mac);
        if let Some(v4) = &v4 {
            let matches = format!("outport == {} && {REG_NEXT_HOP_IPV4} == {v4}", other.json);
            ctx.flow(other.router, LrInArpResolve, 100, matches, actions.as_str());
        }
        if let Some(v6) = &v6 {
            let matches = format!("outport == {} && {REG_NEXT_HOP_IPV6} == {v6}", other.json);
            ctx.flow(other.router, LrInArpResolve, 100, matches, actions.as_str());
        }
    }
}

/// A router port's own flows: its peer, where that is another router, and what `redirect-type=bridged` asks for.
pub fn lrp(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) {
    if let Some(peer) = super::port::router_peer(ctx, lrp) {
        let ctx = &mut ctx.about(peer.uuid);
        let actions = format!("eth.dst = {}; next;", peer.mac);
        let (v4, v6) = networks(peer);
        if let Some(v4) = v4 {
            let matches = format!("outport == {} && {REG_NEXT_HOP_IPV4}== {v4}", lrp.json);
            ctx.flow(lrp.router, LrInArpResolve, 100, matches, actions.as_str());
        }
        if let Some(v6) = v6 {
            let matches = format!("outport == {} && {REG_NEXT_HOP_IPV6} == {v6}", lrp.json);
            ctx.flow(lrp.router, LrInArpResolve, 100, matches, actions.as_str());
        }
    }
    let bridged = lrp.row.options.get("redirect-type").is_some_and(|t| t.eq_ignore_ascii_case("bridged"));
    if router.is_gateway_port(lrp) && bridged {
        let matches = format!("outport == {} && !is_chassis_resident({})", lrp.json, lrp.cr_json);
        ctx.flow(lrp.router, LrInArpResolve, 50, matches, format!("eth.dst = {}; next;", lrp.mac));
    }
}
