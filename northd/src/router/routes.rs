//! The routing table.

use crate::addresses::{Mac, Net6};
use crate::context::{Ctx, flag};
use crate::facts::Fact;
use crate::facts::lrp::Lrp;
use crate::facts::route::{Hop, Route, connected_priority, family, network, registers};
use crate::facts::router::Router;
use crate::model::Unit;
use crate::registers::*;
use crate::stage::Stage::*;
use const_format::formatcp;
use ovn_schema::{Set, Str, Uuid, nb};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The flows of a static route that shares its traffic with no other.
pub fn alone(ctx: &mut Ctx<'_, '_>, router: Uuid, uuid: Uuid) {
    alone_of(ctx, router, uuid, Unit::Route(router, uuid));
}

/// The same for one that was learned at a port.
pub fn learned(ctx: &mut Ctx<'_, '_>, port: Uuid, uuid: Uuid) {
    if let Some(router) = ctx.lrp(port).map(|p| p.router) {
        alone_of(ctx, router, uuid, Unit::LearnedRoute(port, uuid));
    }
}

fn alone_of(ctx: &mut Ctx<'_, '_>, router: Uuid, uuid: Uuid, parsed: Unit) {
    if let Some(Fact::Route(route)) = ctx.fact(parsed)
        && ctx.fact(Unit::RouteShares(router, uuid)).is_none()
    {
        single(ctx, router, route);
    }
}

/// The flows of a router's connected routes, and of those that share their traffic.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    for port in &router.ports {
        connected(ctx, port);
        reachable(ctx, router, port);
    }
    let Some(Fact::RouteGroups(groups)) = ctx.fact(Unit::RouteGroups(uuid)) else { return };
    for (id, routes) in groups {
        ecmp(ctx, router, *id, routes);
    }
}

/// A network; a single host is named by its address alone.
pub fn short((ip, plen): (IpAddr, u8)) -> String {
    match ip {
        IpAddr::V4(addr) => crate::addresses::Net4 { addr, plen }.match_text(),
        IpAddr::V6(addr) => Net6 { addr, plen }.match_text(),
    }
}

fn out(port: &Lrp, v4: bool) -> String {
    format!(
        "eth.src = {}; outport = {}; flags.loopback = 1; {REGBIT_NEXTHOP_IS_IPV4} = {}; next;",
        port.mac,
        port.json,
        u8::from(v4)
    )
}

/// A connected route, and one that does not count BFD packets' hops.
fn put_connected(ctx: &mut Ctx<'_, '_>, port: &Lrp, plen: u8, matches: String, actions: String, bfd: bool) {
    let priority = connected_priority(plen);
    if bfd {
        let matches = format!("{matches} && udp.dst == 3784");
        ctx.flow(port.router, LrInIpRouting, priority + 1, matches, actions.as_str());
    }
    ctx.flow(port.router, LrInIpRouting, priority, matches, format!("ip.ttl--; {actions}"));
}

fn connected(ctx: &mut Ctx<'_, '_>, port: &Lrp) {
    let ctx = &mut ctx.about(port.uuid);
    let bfd = super::input::has_bfd(ctx, port);
    for n in &port.v4 {
        let matches = format!("ip4.dst == {}", network((n.addr.into(), n.plen)));
        let actions =
            format!("{REG_ECMP_GROUP_ID} = 0; {}{}", registers("ip4.dst", Some(n.addr.into()), true), out(port, true));
        put_connected(ctx, port, n.plen, matches, actions, bfd);
    }
    for n in &port.v6 {
        let mut matches = format!("ip6.dst == {}", network((n.addr.into(), n.plen)));
        if n.is_link_local() {
            matches = format!("inport == {} && {matches}", port.json);
        }
        let actions = format!(
            "{REG_ECMP_GROUP_ID} = 0; {}{}",
            registers("ip6.dst", Some(n.addr.into()), false),
            out(port, false)
        );
        put_connected(ctx, port, n.plen, matches, actions, bfd);
    }
}

/// Addresses that a port answers for with an Ethernet address: those on the gateway first.
type Answered = Vec<(Mac, Vec<IpAddr>)>;

/// The outside addresses of NAT rules and load balancers with `add_route`, for the other routers on a port's switch.
fn reachable(ctx: &mut Ctx<'_, '_>, router: &Router, port: &Lrp) {
    let several = router.gateway_ports().count() > 1;
    let mut own: Answered = Vec::new();
    let mut here = Vec::new();
    for n in ctx.nats(router.uuid).into_iter().flat_map(|n| &n.routed) {
        let elsewhere = match n.row.gateway_port {
            Some(gateway) => gateway != port.uuid,
            None => port.ip_in_network_of(n.external).is_none(),
        };
        if several && elsewhere {
            continue;
        }
        match n.mac.filter(|_| n.distributed()) {
            Some(mac) => own.push((mac, vec![n.external])),
            None if !port.has(n.external) => here.push(n.external),
            None => {}
        }
    }
    here.extend(left_out(ctx, router, port, several));
    let balanced = &ctx.vips(router.uuid).routable;
    for v4 in [true, false] {
        let listed = crate::order::listed(balanced.iter().filter(|ip| ip.is_ipv4() == v4).map(IpAddr::to_string));
        here.extend(listed.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()));
    }
    if !here.is_empty() {
        own.push((port.mac, here));
    }
    if own.is_empty() {
        return;
    }
    let lsp = port.switch_port.and_then(|l| ctx.lsp(l));
    let Some(switch) = lsp.and_then(|l| ctx.switch(l.switch)) else { return };
    let gateway = router.is_gateway() || router.is_gateway_port(port);
    for other in switch.router_ports.iter().filter_map(|p| p.lrp).filter(|p| *p != port.uuid) {
        let Some(other) = ctx.lrp(other) else { continue };
        route_to(ctx, other, &own, gateway);
    }
}

/// The outside addresses with `add_route` of rules that are left out as what they name is no gateway port: OVN announces them.
fn left_out(ctx: &mut Ctx<'_, '_>, router: &Router, port: &Lrp, several: bool) -> Vec<IpAddr> {
    let mut all = Vec::new();
    for n in ctx.nats(router.uuid).into_iter().flat_map(|n| &n.left_out) {
        let Some(nat) = ctx.nb::<nb::Nat>(*n) else { continue };
        let Ok(IpAddr::V4(external)) = nat.external_ip.parse::<IpAddr>() else { continue };
        let here = nat.gateway_port.is_some_and(|g| !several || g == port.uuid) && !port.has(external.into());
        if here && &*nat.r#type != "snat" && flag(&nat.options, "add_route") {
            all.push(external.into());
        }
    }
    all
}

/// Routes through a port to addresses that another router there answers for, where it is a gateway, and their neighbours.
fn route_to(ctx: &mut Ctx<'_, '_>, port: &Lrp, addresses: &Answered, gateway: bool) {
    let Some(router) = ctx.router(port.router) else { return };
    let local = port.v6.iter().rfind(|n| n.is_link_local()).map(|n| IpAddr::from(n.addr));
    let Some(from) = port.v4.first().map(|n| n.addr.into()).or(local) else { return };
    let bfd = super::input::has_bfd(ctx, port);
    let all = addresses.iter().flat_map(|(_, all)| all);
    for ip in all.filter(|ip| gateway && ip.is_ipv4()) {
        let own = if from.is_ipv4() { REG_SRC_IPV4 } else { REG_SRC_IPV6 };
        let actions = format!(
            "{REG_ECMP_GROUP_ID} = 0; {REG_NEXT_HOP_IPV4} = ip4.dst; {own} = {from}; {}",
            out(port, from.is_ipv4())
        );
        let ctx = &mut ctx.about(port.uuid);
        put_connected(ctx, port, 32, format!("ip4.dst == {ip}/32"), actions, bfd);
    }
    if flag(&router.options, "dynamic_neigh_routers") || !router.is_gateway() && !router.is_gateway_port(port) {
        return;
    }
    for (mac, list) in addresses {
        // As in OVN, addresses of IPv6 are left out, also where nothing remains.
        let list = list.iter().filter(|ip| ip.is_ipv4()).map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        let matches = format!("outport == {} && {REG_NEXT_HOP_IPV4} == {{{list}}}", port.json);
        ctx.flow(port.router, LrInArpResolve, 100, matches, format!("eth.dst = {mac}; next;"));
    }
}

/// The port of a static route that is in use, and its network.
pub fn advertised<'r>(ctx: &mut Ctx<'_, '_>, router: &'r Router, uuid: Uuid) -> Option<(&'r Arc<Lrp>, (IpAddr, u8))> {
    let Some(Fact::Route(route)) = ctx.fact(Unit::Route(router.uuid, uuid)) else { return None };
    let (port, _) = route.hop.via()?;
    Some((router.port(&port.name)?, route.prefix))
}

/// The flows of a route that is alone: as in OVN those of the router whose port it names.
fn single(ctx: &mut Ctx<'_, '_>, router: Uuid, route: &Route) {
    let u = route.hop.via().map_or(router, |(port, _)| port.router);
    let ctx = &mut ctx.about(route.row);
    let actions = match &route.hop {
        Hop::Discard => ctx.global().drop.to_string(),
        Hop::Via { port, v4, .. } => {
            format!("ip.ttl--; {REG_ECMP_GROUP_ID} = 0; {}{}", route.leave(), out(port, *v4))
        }
    };
    if let Some((port, _)) = route.hop.via()
        && super::input::has_bfd(ctx, port)
        && let Some(plain) = actions.strip_prefix("ip.ttl--; ")
    {
        let matches = format!("{} && udp.dst == 3784", route.matches());
        ctx.flow(u, LrInIpRouting, route.priority() + 1, matches, plain);
    }
    ctx.flow(u, LrInIpRouting, route.priority(), route.matches(), actions);
}

/// The number of each route in its group, in the order of the numbers.
fn members<'r>(ctx: &mut Ctx<'_, '_>, u: Uuid, id: u16, routes: &'r [Arc<Route>]) -> Vec<(u16, &'r Route)> {
    let numbers = ctx.numbers();
    let wish = |r: &Route| numbers.member(u, LrInIpRoutingEcmp, id, &r.member_actions()?);
    let given = crate::sticky_ids::assign_members(routes.iter().map(|r| (r.row, wish(r))).collect());
    let mut all: Vec<_> = routes.iter().filter_map(|r| Some((*given.get(&r.row)?, &**r))).collect();
    all.sort_by_key(|(n, _)| *n);
    all
}

fn ecmp(ctx: &mut Ctx<'_, '_>, router: &Router, id: u16, routes: &[Arc<Route>]) {
    let u = router.uuid;
    let Some(first) = routes.first() else { return };
    let mut fields: Set<Str> = first.fields.clone();
    for r in routes {
        fields = fields.intersection(&r.fields).cloned().collect();
    }
    let members = members(ctx, u, id, routes);
    let list = members.iter().map(|(n, _)| n.to_string()).collect::<Vec<_>>().join(", ");
    let start = format!("ip.ttl--; flags.loopback = 1; {REG_ECMP_GROUP_ID} = {id}; {REG_ECMP_MEMBER_ID} = ");
    let (priority, matches) = (first.shared_priority(), first.group_matches());
    let select = |fields: Vec<String>| {
        let fields = std::collections::BTreeSet::from_iter(fields).into_iter().collect::<Vec<_>>().join(",");
        format!("{start}select(values=({list}); hash_fields=\"{fields}\");")
    };
    let has_ports = fields.iter().any(|f| f.starts_with("tp_"));
    if let [(number, _)] = members[..] {
        let actions = format!("{start}{number}; next;");
        if has_ports {
            // As OVN has it: the flow of the protocols that have ports, without one of these in its match.
            ctx.flow(u, LrInIpRouting, priority + 1, matches.as_str(), actions.as_str());
        }
        ctx.flow(u, LrInIpRouting, priority, matches.as_str(), actions);
    } else if fields.is_empty() {
        ctx.flow(u, LrInIpRouting, priority, matches.as_str(), format!("{start}select({list});"));
    } else {
        let plain = fields.iter().filter(|f| !f.starts_with("tp_")).map(|f| f.to_string()).collect();
        ctx.flow(u, LrInIpRouting, priority, matches.as_str(), select(plain));
        for protocol in ["tcp", "udp", "sctp"].iter().filter(|_| has_ports) {
            let all = fields.iter().map(|f| f.replace("tp_", &format!("{protocol}_"))).collect();
            ctx.flow(u, LrInIpRouting, priority + 1, format!("{matches} && {protocol}"), select(all));
        }
    }
    let discard = routes.iter().any(|r| matches!(r.hop, Hop::Discard));
    if discard && let Some(first) = routes.first() {
        ctx.problem(format!(
            "The ECMP route \"{}\" contains \"discard\" route, the whole group will drop traffic. (logical router {})",
            short(first.prefix),
            router.name
        ));
    }
    let mut bound: BTreeSet<Uuid> = BTreeSet::new();
    for (number, r) in members {
        let ctx = &mut ctx.about(r.row);
        let matches = format!("{REG_ECMP_GROUP_ID} == {id} && {REG_ECMP_MEMBER_ID} == {number}");
        let Some(actions) = r.member_actions().filter(|_| !discard) else {
            let drop = ctx.global().drop.clone();
            ctx.flow(u, LrInIpRoutingEcmp, 100, matches, &*drop);
            continue;
        };
        if let Hop::Via { port, from, v4, .. } = &r.hop
            && r.symmetric
            && router.chassis.is_some()
            && bound.insert(port.uuid)
        {
            symmetric(ctx, router, r, port, (*from, *v4));
        }
        ctx.flow(u, LrInIpRoutingEcmp, 100, matches, actions);
    }
}

/// A connection that came in through a port goes back to where it came from, whatever the route says.
fn symmetric(ctx: &mut Ctx<'_, '_>, router: &Router, route: &Route, port: &Lrp, (from, v4): (Option<IpAddr>, bool)) {
    let u = router.uuid;
    let Some(key) = ctx.port_key(port.router, &port.name) else { return };
    let f = family(route.prefix.0);
    let side = if route.side == "src" { "dst" } else { "src" };
    let coming = format!("inport == {} && {f}.{side} == {}", port.json, short(route.prefix));
    let going = route.group_matches();
    ctx.flow(u, LrInDefrag, 100, coming.as_str(), "ct_next;");
    ctx.flow(u, LrInDefrag, 100, going.as_str(), "ct_next;");
    let commit = format!("ct_commit {{ ct_label.ecmp_reply_eth = eth.src; ct_mark.ecmp_reply_port = {key};}}; next;");
    ctx.flow(u, LrInEcmpStateful, 100, format!("{coming} && (ct.new || ct.est)"), commit);
    let reply = format!("ct_mark.ecmp_reply_port == {key}");
    let register = if v4 { REG_SRC_IPV4 } else { REG_SRC_IPV6 };
    let from = from.map_or(String::new(), |from| format!("{register} = {from}; "));
    let leave = format!("ip.ttl--; flags.loopback = 1; eth.src = {}; {from}outport = {}; next;", port.mac, port.json);
    ctx.flow(u, LrInIpRouting, 10300, format!("{reply} && {going}"), leave);
    ctx.flow(u, LrInPolicy, 65535, reply.as_str(), "next;");
    let resolve = formatcp!(
        "push({REG_ECMP_ETH_FULL}); {REG_ECMP_ETH_FULL} = ct_label; eth.dst = {REG_ECMP_ETH_SRC}; pop({REG_ECMP_ETH_FULL}); next;"
    );
    ctx.flow(u, LrInArpResolve, 200, reply, resolve);
}
