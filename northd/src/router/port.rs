//! All flows of a router port, but those of the routing table.

use super::{dhcp_relay, input, mtu, protocol, resolve};
use crate::addresses::solicited_node;
use crate::checks;
use crate::context::{Ctx, flag, flag_or};
use crate::facts::global::copp;
use crate::facts::lrp::{Lrp, leads_outside};
use crate::facts::router::Router;
use crate::registers::*;
use crate::stage::Stage::*;
use crate::switch::TOO_BIG;
use const_format::formatcp;
use ovn_schema::Uuid;

/// The flows of a port.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(lrp) = ctx.lrp(uuid) else { return };
    let Some(router) = ctx.router(lrp.router) else { return };
    let resident =
        if router.is_gateway_port(lrp) { format!(" && is_chassis_resident({})", lrp.cr_json) } else { String::new() };
    let own = if ctx.kinds(router.uuid).distributed { "" } else { &resident };
    checks::options(ctx, &format!("logical router port {}", lrp.name), &lrp.row.options, checks::ROUTER_PORT);
    let ctx = &mut ctx.about(uuid);
    too_big(ctx, lrp, router);
    if lrp.enabled() {
        admission(ctx, lrp, own);
        delivery(ctx, lrp, router);
    }
    if flag(&lrp.row.options, "prefix_delegation") {
        for n in &lrp.v6 {
            let matches = format!("ip6.dst == {} && udp.src == 547 && udp.dst == 546", n.addr);
            ctx.flow(lrp.router, LrInIpInput, 100, matches, formatcp!("{REG_NEXT_HOP_IPV4} = 0; handle_dhcpv6_reply;"));
        }
    }
    neighbors(ctx, lrp, router, &resident);
    input::run(ctx, lrp, router, own, &resident);
    advertisement(ctx, lrp, router);
    network_ids(ctx, lrp);
    symmetric_reply(ctx, lrp);
    gateway(ctx, lrp, router);
    resolve::lrp(ctx, lrp, router);
    mtu::run(ctx, lrp, router);
    dhcp_relay::lrp(ctx, lrp);
    protocol::redirect(ctx, lrp);
    let table = lrp.row.options.get("route_table").filter(|t| !t.is_empty());
    if let Some(table) = table.and_then(|t| crate::facts::route::table_id(ctx, router.uuid, t)) {
        let matches = format!("inport == {}", lrp.json);
        ctx.about_none().flow(
            lrp.router,
            LrInIpRoutingPre,
            100,
            matches,
            format!("{REG_ROUTE_TABLE_ID} = {table}; next;"),
        );
    }
}

/// Whether the switch at the other end has a port to a hardware VTEP.
pub fn at_vtep(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> bool {
    lrp.switch_port.iter().any(|p| {
        let switch = ctx.lsp(*p).map(|l| l.switch);
        switch.and_then(|s| ctx.switch(s)).is_some_and(|s| !s.vteps.is_empty())
    })
}

fn admission(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, resident: &str) {
    let (u, port, mac) = (lrp.router, &lrp.json, lrp.mac);
    let keep = format!("{REG_INPORT_ETH_ADDR} = {mac}; next;");
    ctx.flow(u, LrInAdmission, 50, format!("eth.mcast && inport == {port}"), keep.as_str());
    let resident = if at_vtep(ctx, lrp) { "" } else { resident };
    let proxy = lrp.switch_port.iter().filter_map(|l| ctx.lsp(*l)).find_map(crate::switch::arp::proxy_mac);
    let to = proxy.map_or(format!("{mac}"), |proxy| format!("{{ {proxy}, {mac} }}"));
    let matches = format!("eth.dst == {to} && inport == {port}{resident}");
    mtu::admission(ctx, lrp, &matches, &keep);
}

/// A gateway port's errors about too large packets that came through a tunnel.
fn too_big(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) {
    let (u, port, mac) = (lrp.router, &lrp.json, lrp.mac);
    if router.is_gateway_port(lrp) {
        let (icmp, rx) = TOO_BIG.rsplit_once(" && ").unwrap_or((TOO_BIG, ""));
        let matches = format!("{icmp} && eth.dst == {mac} && !is_chassis_resident({}) && {rx}", lrp.cr_json);
        let actions = format!("outport <-> inport; inport = {port}; next;");
        ctx.about_none().flow(u, LrInAdmission, 120, matches, actions);
    }
}

fn neighbors(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router, resident: &str) {
    let (u, port) = (lrp.router, &lrp.json);
    let always = flag_or(&router.options, "always_learn_from_arp_request", true);
    let lookup = formatcp!("{REGBIT_LOOKUP_NEIGHBOR_RESULT} = lookup_arp(inport, arp.spa, arp.sha); ");
    for n in &lrp.v4 {
        let from = format!("inport == {port} && arp.spa == {}/{}", n.network(), n.plen);
        let matches = format!("{from} && arp.op == 1{resident}");
        if always {
            ctx.flow(u, LrInLookupNeighbor, 100, matches, format!("{lookup}next;"));
            continue;
        }
        let actions = format!("{lookup}{REGBIT_LOOKUP_NEIGHBOR_IP_RESULT} = lookup_arp_ip(inport, arp.spa); next;");
        ctx.flow(u, LrInLookupNeighbor, 100, matches, actions);
        let matches = format!("{from} && arp.tpa == {} && arp.op == 1{resident}", n.addr);
        ctx.flow(u, LrInLookupNeighbor, 110, matches, format!("{lookup}{REGBIT_LOOKUP_NEIGHBOR_IP_RESULT} = 1; next;"));
    }
    if router.is_gateway_port(lrp) {
        let matches =
            format!("inport == {port} && (nd_na || nd_ns) && eth.mcast && !is_chassis_resident({})", lrp.cr_json);
        ctx.flow(u, LrInLookupNeighbor, 120, matches, formatcp!("{REGBIT_LOOKUP_NEIGHBOR_RESULT} = 1; next;"));
    }
}

/// Router advertisements on request.
fn advertisement(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) {
    let config = &lrp.row.ipv6_ra_configs;
    let Some(mode) = config.get("address_mode") else { return };
    if lrp.row.peer.is_some()
        || lrp.switch_port.is_none()
        || !matches!(&**mode, "slaac" | "dhcpv6_stateful" | "dhcpv6_stateless")
    {
        return;
    }
    let mut options = format!("addr_mode = \"{mode}\", slla = {}", lrp.mac);
    if let Some(mtu) = crate::context::number(config, "mtu").filter(|m| *m >= 1280) {
        options.push_str(&format!(", mtu = {mtu}"));
    }
    if let Some(p) = config.get("router_preference").filter(|p| &***p != "MEDIUM") {
        options.push_str(&format!(", router_preference = \"{p}\""));
    }
    for (key, quote) in [("rdnss", ""), ("dnssl", "\""), ("route_info", "\"")] {
        if let Some(value) = config.get(key) {
            options.push_str(&format!(", {key} = {quote}{value}{quote}"));
        }
    }
    let mut prefixes = 0;
    for n in lrp.v6.iter().filter(|n| !n.is_link_local()) {
        options.push_str(&format!(", prefix = {}/{}", n.network(), n.plen));
        prefixes += 1;
    }
    if prefixes == 0 {
        return;
    }
    let (u, port) = (lrp.router, &lrp.json);
    let extra = copp(&router.copp, "nd-ra-opts", ctx.global());
    let matches = format!("inport == {port} && ip6.dst == ff02::2 && nd_rs");
    let actions = format!("{REGBIT_ND_RA_OPTS_RESULT} = put_nd_ra_opts({options}); next;");
    ctx.flow_with(u, LrInNdRaOptions, 50, matches, actions, extra);
    let matches = format!("inport == {port} && ip6.dst == ff02::2 && nd_ra && {REGBIT_ND_RA_OPTS_RESULT}");
    let actions = format!(
        "eth.dst = eth.src; eth.src = {}; ip6.dst = ip6.src; ip6.src = {}; outport = inport; flags.loopback = 1; \
         output;",
        lrp.mac,
        lrp.mac.link_local()
    );
    ctx.flow(u, LrInNdRaResponse, 50, matches, actions);
}

/// Which of a port's networks the next hop is in.
fn network_ids(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) {
    let ctx = &mut ctx.about_none();
    let (u, port) = (lrp.router, &lrp.json);
    let id = |i: usize| if i > 15 { 0 } else { i };
    for (i, n) in lrp.v4.iter().enumerate() {
        let matches = format!("outport == {port} && ip4 && {REG_NEXT_HOP_IPV4} == {}/{}", n.addr, n.plen);
        ctx.flow(u, LrInNetworkId, 110, matches, format!("flags.network_id = {}; next;", id(i)));
    }
    for (i, n) in lrp.asked_v6().enumerate() {
        let matches = format!("outport == {port} && ip6 && {REG_NEXT_HOP_IPV6} == {}/{}", n.addr, n.plen);
        ctx.flow(u, LrInNetworkId, 110, matches, format!("flags.network_id = {}; next;", id(i)));
    }
}

fn symmetric_reply(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) {
    let ctx = &mut ctx.about_none();
    for (name, json) in [(&*lrp.name, &lrp.json), (&*lrp.cr_name(), &lrp.cr_json)] {
        let Some(key) = ctx.port_key(lrp.router, name) else { continue };
        let matches = format!("{REGBIT_NEEDS_ECMP_STATEFUL_COMMIT} == 1 && ip && outport == {json}");
        let actions =
            format!("ct_commit {{ ct_label.ecmp_reply_eth = eth.dst; ct_mark.ecmp_reply_port = {key};}}; output;");
        ctx.flow(lrp.router, LrInEcmpStatefulEgr, 100, matches, actions);
    }
}

fn gateway(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) {
    if router.is_gateway_port(lrp) && !at_vtep(ctx, lrp) {
        let matches = format!("outport == {}", lrp.json);
        ctx.flow(lrp.router, LrInGwRedirect, 50, matches, format!("outport = {}; next;", lrp.cr_json));
    }
}

fn delivery(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) {
    let ctx = &mut ctx.about_none();
    let (u, port) = (lrp.router, &lrp.json);
    if router.mcast_relay() {
        let matches = format!("(ip4.mcast || ip6.mcast) && outport == {port}");
        ctx.flow(u, LrOutDelivery, 110, matches, format!("eth.src = {}; output;", lrp.mac));
    }
    ctx.flow(u, LrOutDelivery, 100, format!("outport == {port}"), "output;");
}

/// The router port at the other end, where both name each other and its router is not disabled.
pub fn router_peer<'a>(ctx: &mut Ctx<'_, 'a>, lrp: &Lrp) -> Option<&'a Lrp> {
    let name = lrp.row.peer.as_ref()?;
    let other = ctx.read(crate::input::Read::LrpName(name.clone())).lrp_by_name(name)?;
    let other = ctx.lrp(other).filter(|o| o.row.peer.as_ref() == Some(&lrp.name))?;
    ctx.router(other.router).map(|_| other)
}

/// Whether there is a port at the other end: a switch's, or another router's.
pub fn has_peer(ctx: &mut Ctx<'_, '_>, lrp: &Lrp) -> bool {
    if lrp.row.peer.is_some() {
        return router_peer(ctx, lrp).is_some();
    }
    lrp.switch_port.iter().any(|p| ctx.lsp(*p).is_some_and(|l| l.lrp.is_some()))
}

/// The addresses of a neighbour solicitation for an address: itself, and its solicited-node group.
pub fn solicited(ip: std::net::Ipv6Addr) -> String {
    format!("{{{ip}, {}}}", solicited_node(ip))
}

/// Whether a port answers only on the gateway chassis, as its switch leads to a physical network.
pub fn answers_at_gateway(ctx: &mut Ctx<'_, '_>, lrp: &Lrp, router: &Router) -> Option<String> {
    if router.gateway_ports().next().is_none() || ctx.kinds(router.uuid).distributed || !leads_outside(ctx, lrp) {
        return None;
    }
    router.resides_at(lrp).map(|p| p.cr_json.to_string())
}
