//! The router as a host (`lr_in_ip_input`): what it answers, and what it drops.

use super::port::{answers_at_gateway, solicited};
use crate::context::Ctx;
use crate::facts::global::copp;
use crate::facts::lrp::Lrp;
use crate::facts::router::Router;
use crate::model::Unit;
use crate::registers::*;
use crate::stage::Stage::*;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// A list in braces, or its only member.
pub fn braced(list: &[String]) -> String {
    match list {
        [only] => only.clone(),
        _ => format!("{{{}}}", list.join(", ")),
    }
}

/// The actions that answer an ARP request.
pub fn arp_reply(mac: &str) -> String {
    format!(
        "eth.dst = eth.src; eth.src = {mac}; arp.op = 2; /* ARP reply */ arp.tha = arp.sha; arp.sha = {mac}; \
         arp.tpa <-> arp.spa; outport = inport; flags.loopback = 1; output;"
    )
}

/// The actions that answer a neighbour solicitation.
pub fn nd_reply(action: &str, mac: &str) -> String {
    format!(
        "{action} {{ eth.src = {mac}; ip6.src = nd.target; nd.tll = {mac}; outport = inport; flags.loopback = 1; \
         output; }};"
    )
}

/// The flows of a port.
pub fn run(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router, own: &str, resident: &str) {
    let (u, port) = (lrp.router, &lrp.json);
    let drop = ctx.global().drop.clone();
    if !lrp.v4.is_empty() {
        let ips: Vec<String> = lrp.v4.iter().flat_map(|n| [n.addr.to_string(), n.broadcast().to_string()]).collect();
        let matches = format!("ip4.src == {{{}}} && {REGBIT_EGRESS_LOOPBACK} == 0", ips.join(", "));
        ctx.flow(u, LrInIpInput, 100, matches, &*drop);
        let ips: Vec<String> = lrp.v4.iter().map(|n| n.addr.to_string()).collect();
        let matches = format!("ip4.dst == {} && icmp4.type == 8 && icmp4.code == 0", braced(&ips));
        let echo = "ip4.dst <-> ip4.src; ip.ttl = 255; icmp4.type = 0; flags.loopback = 1; next; ";
        ctx.flow(u, LrInIpInput, 90, matches, echo);
    }
    if !lrp.v6.is_empty() {
        let ips: Vec<String> = lrp.v6.iter().map(|n| n.addr.to_string()).collect();
        let matches = format!("ip6.dst == {} && icmp6.type == 128 && icmp6.code == 0", braced(&ips));
        let echo = "ip6.dst <-> ip6.src; ip.ttl = 255; icmp6.type = 129; flags.loopback = 1; next; ";
        ctx.flow(u, LrInIpInput, 90, matches, echo);
    }
    let at = answers_at_gateway(ctx, lrp, router).map_or(String::new(), |c| format!(" && is_chassis_resident({c})"));
    for n in &lrp.v4 {
        let matches = format!(
            "inport == {port} && arp.op == 1 && arp.tpa == {} && arp.spa == {}/{}{at}",
            n.addr,
            n.network(),
            n.plen
        );
        ctx.flow(u, LrInIpInput, 90, matches, arp_reply(REG_INPORT_ETH_ADDR));
    }
    for n in &lrp.v6 {
        let matches =
            format!("inport == {port} && ip6.dst == {} && nd_ns && nd.target == {}{own}", solicited(n.addr), n.addr);
        let extra = copp(&router.copp, "nd-na", ctx.global());
        ctx.flow_with(u, LrInIpInput, 90, matches, nd_reply("nd_na_router", REG_INPORT_ETH_ADDR), extra);
    }
    if !router.is_gateway() && router.gateway_ports().next().is_none() {
        unreachable(ctx, lrp, router);
    }
    bfd(ctx, lrp);
    not_for_us(ctx, lrp, router);
    expired(ctx, lrp, router, resident);
}

/// Whether BFD sessions run at a port.
pub fn has_bfd(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> bool {
    ctx.fact(Unit::BfdPort(lrp.name.clone())).is_some()
}

/// Sends BFD packets of a port to the controller.
fn bfd(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) {
    if !has_bfd(ctx, lrp) {
        return;
    }
    let lists = [
        ("ip4", lrp.v4.iter().map(|n| n.addr.to_string()).collect::<Vec<_>>()),
        ("ip6", lrp.v6.iter().map(|n| n.addr.to_string()).collect()),
    ];
    for (f, own) in lists {
        if own.is_empty() {
            continue;
        }
        let own = braced(&own);
        ctx.flow(lrp.router, LrInIpInput, 110, format!("{f}.src == {own} && udp.dst == 3784"), "next; ");
        let matches = format!("{f}.dst == {own} && udp.dst == 3784");
        let extra = ctx.router(lrp.router).map(|r| copp(&r.copp, "bfd", ctx.global())).unwrap_or_default();
        ctx.flow_with(lrp.router, LrInIpInput, 110, matches, "handle_bfd_msg(); ", extra);
    }
}

/// ICMP unreachable and TCP reset for ports and protocols that the router does not serve.
fn unreachable(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) {
    let u = lrp.router;
    let v4 = lrp.v4.iter().map(|n| IpAddr::from(n.addr));
    let v6 = lrp.v6.iter().map(|n| IpAddr::from(n.addr));
    let global = ctx.global();
    for ip in v4.chain(v6) {
        let (f, icmp, port, protocol) = match ip {
            IpAddr::V4(_) => ("ip4", "icmp4", "icmp4.type = 3; icmp4.code = 3", "icmp4.type = 3; icmp4.code = 2"),
            IpAddr::V6(_) => ("ip6", "icmp6", "icmp6.type = 1; icmp6.code = 4", "icmp6.type = 1; icmp6.code = 3"),
        };
        let to = format!("{f} && {f}.dst == {ip} && !ip.later_frag");
        let swap = format!("eth.dst <-> eth.src; {f}.dst <-> {f}.src; ");
        let icmp_meter = || copp(&router.copp, if f == "ip4" { "icmp4-error" } else { "icmp6-error" }, global);
        let reset = || copp(&router.copp, "tcp-reset", global);
        let actions = format!("{icmp} {{{swap}ip.ttl = 255; {port}; next; }};");
        ctx.flow_with(u, LrInIpInput, 80, format!("{to} && udp"), actions, icmp_meter());
        ctx.flow_with(u, LrInIpInput, 80, format!("{to} && tcp"), format!("tcp_reset {{{swap}next; }};"), reset());
        ctx.flow_with(u, LrInIpInput, 80, format!("{to} && sctp"), format!("sctp_abort {{{swap}next; }};"), reset());
        let actions = format!("{icmp} {{{swap}ip.ttl = 255; {protocol}; next; }};");
        ctx.flow_with(u, LrInIpInput, 70, to, actions, icmp_meter());
    }
}

/// The addresses of a router that packets may still have when they leave for it: those that it translates to, and those
/// of its load balancers.
fn shared(ctx: &mut Ctx<'_, '_>, router: &Router) -> BTreeSet<IpAddr> {
    let mut all = ctx.nat_shares(router.uuid).cloned().unwrap_or_default();
    all.extend(&router.lb_force_snat.ips);
    all.extend(&router.dnat_force_snat.ips);
    all.extend(&ctx.vips(router.uuid).shares);
    all
}

/// Drops what is still addressed to the router.
fn not_for_us(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) {
    let u = lrp.router;
    let drop = ctx.global().drop.clone();
    let shared = shared(ctx, router);
    let v4: Vec<IpAddr> = lrp.v4.iter().map(|n| n.addr.into()).collect();
    let v6: Vec<IpAddr> = lrp.v6.iter().map(|n| n.addr.into()).collect();
    for (family, all) in [("ip4", v4), ("ip6", v6)] {
        let list = |keep: &dyn Fn(&IpAddr) -> bool| -> String {
            all.iter().filter(|ip| keep(ip)).map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
        };
        let plain = list(&|ip| !shared.contains(ip));
        // Every address of a port may be translated to where that of the port which a packet leaves by is.
        if !plain.is_empty() && !router.lb_force_snat.router_ip {
            ctx.flow(u, LrInIpInput, 60, format!("{family}.dst == {{{plain}}}"), &*drop);
        }
        let translated = list(&|ip| shared.contains(ip));
        if !translated.is_empty() {
            ctx.flow(u, LrInArpResolve, 2, format!("{family}.dst == {{{translated}}}"), &*drop);
        }
    }
}

/// ICMP time exceeded.
fn expired(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router, resident: &str) {
    let (u, port) = (lrp.router, &lrp.json);
    let global = ctx.global();
    let ttl = "ip.ttl == {0, 1} && !ip.later_frag";
    let v4 = |ip| {
        format!(
            "icmp4 {{eth.dst = eth.src; eth.src = {}; icmp4.type = 11; /* Time exceeded */ icmp4.code = 0; \
             /* TTL exceeded in transit */ ip4.dst = ip4.src; ip4.src = {ip}; ip.ttl = 254; outport = {port}; \
             flags.loopback = 1; output; }};",
            lrp.mac
        )
    };
    let v6 = |ip| {
        format!(
            "icmp6 {{eth.dst = eth.src; eth.src = {}; ip6.dst = ip6.src; ip6.src = {ip}; ip.ttl = 254; \
             icmp6.type = 3; /* Time exceeded */ icmp6.code = 0; /* TTL exceeded in transit */ outport = {port}; \
             flags.loopback = 1; output; }};",
            lrp.mac
        )
    };
    for n in &lrp.v4 {
        let from = format!("{}/{}", n.network(), n.plen);
        let matches = format!("inport == {port} && ip4 && ip4.src == {from} && {ttl}{resident}");
        let extra = copp(&router.copp, "icmp4-error", global);
        ctx.flow_with(u, LrInIpInput, 31, matches, v4(n.addr), extra);
    }
    if let Some(n) = lrp.v4.first() {
        let matches = format!("inport == {port} && ip4 && {ttl}{resident}");
        let extra = copp(&router.copp, "icmp4-error", global);
        ctx.flow_with(u, LrInIpInput, 30, matches, v4(n.addr), extra);
    }
    for n in lrp.asked_v6() {
        let from = format!("{}/{}", n.network(), n.plen);
        let matches = format!("inport == {port} && ip6 && ip6.src == {from} && {ttl}{resident}");
        let extra = copp(&router.copp, "icmp6-error", global);
        ctx.flow_with(u, LrInIpInput, 31, matches, v6(n.addr), extra);
    }
    if let Some(n) = lrp.v6.first() {
        let matches = format!("inport == {port} && ip6 && {ttl}{resident}");
        let extra = copp(&router.copp, "icmp6-error", global);
        ctx.flow_with(u, LrInIpInput, 30, matches, v6(n.addr), extra);
    }
}
