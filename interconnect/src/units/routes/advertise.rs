//! Routes that are told to other zones.

use super::super::{Fact, Unit, V, warn};
use super::{Attached, Attachment, Reason, attached_router};
use crate::address::{is_link_local, is_link_local_hop, network, of_vip};
use crate::model::{Northbound, Read};
use crate::output::{Key, Route, RouteId, Source, Value};
use ipnetwork::IpNetwork;
use ovn_schema::{Str, Uuid, nb, options::flag};
use std::sync::Arc;

/// A route that a router may tell on one transit switch, and what comes of it.
pub struct Ad<'a> {
    /// Where.
    pub at: &'a Attachment,
    /// The prefix, as the row has it that the route is of.
    pub prefix: &'a str,
    /// The route, or why it is not told.
    pub outcome: Result<(RouteId, Route), Reason>,
}

/// Whoever takes routes that may be told.
pub type Sink<'s> = dyn FnMut(Ad<'_>) + 's;

/// Puts out a route that is told.
pub fn emit(ad: Ad<'_>, v: &mut V<'_>) {
    match ad.outcome {
        Ok((id, route)) => v.emit(Key::Route(Arc::new(id)), Value::Route(Box::new(route))),
        Err(Reason::BadVip) => warn(v, format!("Route ad: Parsing failed for lb vip {}", ad.prefix)),
        Err(_) => {}
    }
}

/// Puts out a static route of a router.
pub fn static_route(id: Uuid, v: &mut V<'_>) {
    let Some((router, route)) = v.read(Read::StaticRoute(id)).nb.own_route(id) else { return };
    let Some(a) = attached_router(router, v) else { return };
    static_ads(a, id, route, &mut |ad| emit(ad, v));
}

/// Puts out a route that a router learned from a neighbour.
pub fn dynamic(id: Uuid, v: &mut V<'_>) {
    let Some(datapath) = v.read(Read::LearnedRoute(id)).sb.db.learned_route.get(&id).map(|r| r.datapath) else {
        return;
    };
    let Some((router, route)) = v.read(Read::Row(datapath)).learned_route(id) else { return };
    let Some(a) = attached_router(router, v) else { return };
    dynamic_ads(a, &route.ip_prefix, &mut |ad| emit(ad, v));
}

/// Derives the addresses of a router's load balancers, and has each of these told where that is wanted.
pub fn balancers(router: Uuid, v: &mut V<'_>) {
    let told = attached_router(router, v).is_some_and(|a| a.settings.adv && a.settings.adv_lb);
    let mut vips = Vec::new();
    for (id, lb) in balancers_of(router, v) {
        vips.extend(lb.vips.keys().filter_map(|key| of_vip(key)));
        if told {
            v.spawn(Unit::Balancer(router, id));
        }
    }
    if !vips.is_empty() {
        vips.sort_unstable();
        vips.dedup();
        v.derive(Fact::Vips(vips));
    }
}

/// The load balancers of a router, its groups' among them.
pub fn balancers_of<'a>(router: Uuid, v: &mut V<'a>) -> Vec<(Uuid, &'a nb::LoadBalancer)> {
    let Some(router) = v.read(Read::Router(router)).nb.db.logical_router.get(&router) else { return Vec::new() };
    let mut ids: Vec<Uuid> = router.load_balancer.iter().copied().collect();
    for group in &router.load_balancer_group {
        let group = v.read(Read::LoadBalancerGroup(*group)).nb.db.load_balancer_group.get(group);
        ids.extend(group.iter().flat_map(|g| &g.load_balancer).copied());
    }
    ids.sort_unstable();
    ids.dedup();
    let mut out = Vec::new();
    for id in ids {
        out.extend(v.read(Read::LoadBalancer(id)).nb.db.load_balancer.get(&id).map(|lb| (id, &**lb)));
    }
    out
}

/// Puts out the addresses of a load balancer of a router.
pub fn balancer(router: Uuid, id: Uuid, v: &mut V<'_>) {
    let Some(a) = attached_router(router, v) else { return };
    let Some(lb) = v.read(Read::LoadBalancer(id)).nb.db.load_balancer.get(&id) else { return };
    balancer_ads(a, id, lb, &mut |ad| emit(ad, v));
}

/// What may be told of a static route.
pub fn static_ads(a: &Attached, id: Uuid, route: &nb::LogicalRouterStaticRoute, sink: &mut Sink<'_>) {
    for at in &a.ports {
        let what = What {
            row: id,
            source: Source::Static,
            table: &route.route_table,
            of_port_table: false,
            override_connected: flag(&route.options, "override-connected"),
        };
        let outcome = static_net(at, route).and_then(|net| decide(a, at, net, &what));
        sink(Ad { at, prefix: &route.ip_prefix, outcome });
    }
}

fn static_net(at: &Attachment, route: &nb::LogicalRouterStaticRoute) -> Result<IpNetwork, Reason> {
    if route.route_table != at.table {
        return Err(Reason::OtherTable(route.route_table.clone(), at.table.clone()));
    }
    if route.policy.as_deref() == Some("src-ip") {
        return Err(Reason::SourceRoute);
    }
    match network(&route.nexthop) {
        None if &*route.nexthop != "discard" => return Err(Reason::BadFormat),
        Some(nexthop) if is_link_local_hop(nexthop.ip()) => return Err(Reason::LinkLocalNexthop),
        _ => {}
    }
    network(&route.ip_prefix).ok_or(Reason::BadFormat)
}

/// What may be told of the networks of a router's ports. Networks of transit switches themselves are known to all that
/// are on them.
pub fn networks(a: &Attached, nb: &Northbound, router: &nb::LogicalRouter, sink: &mut Sink<'_>) {
    for id in &router.ports {
        let Some(lrp) = nb.db.logical_router_port.get(id).filter(|p| a.ports.iter().all(|at| at.port != p.name)) else {
            continue;
        };
        for network in &lrp.networks {
            connected(a, network, *id, Source::Port, sink);
        }
    }
}

/// What may be told of a prefix that a router learned by dynamic routing.
pub fn dynamic_ads(a: &Attached, prefix: &str, sink: &mut Sink<'_>) {
    connected(a, prefix, a.router, Source::Dynamic, sink);
}

/// A network that the router has a port in, or that it learned by dynamic routing: in the main table, and in that of
/// the transit switch's port, so that traffic of that table goes by this port. It is told with the port's own
/// address, as ovn-ic tells it.
fn connected(a: &Attached, prefix: &str, row: Uuid, source: Source, sink: &mut Sink<'_>) {
    let main = Str::default();
    for at in &a.ports {
        let tables = [(&at.table, true), (&main, false)];
        for (table, of_port_table) in tables.into_iter().filter(|(t, of_port)| !(*of_port && t.is_empty())) {
            let what = What { row, source, table, of_port_table, override_connected: of_port_table };
            let net = network(prefix).ok_or(Reason::BadFormat);
            sink(Ad { at, prefix, outcome: net.and_then(|net| decide(a, at, net, &what)) });
        }
    }
}

/// What may be told of a load balancer's addresses.
pub fn balancer_ads(a: &Attached, id: Uuid, lb: &nb::LoadBalancer, sink: &mut Sink<'_>) {
    let main = Str::default();
    let what =
        What { row: id, source: Source::LoadBalancer, table: &main, of_port_table: false, override_connected: false };
    for at in &a.ports {
        for key in lb.vips.keys() {
            let net = match of_vip(key) {
                _ if a.settings.adv && !a.settings.adv_lb => Err(Reason::Off("ic-route-adv-lb")),
                Some(ip) => Ok(IpNetwork::from(ip)),
                None => Err(Reason::BadVip),
            };
            sink(Ad { at, prefix: key, outcome: net.and_then(|net| decide(a, at, net, &what)) });
        }
    }
}

/// What a route is of.
struct What<'a> {
    row: Uuid,
    source: Source,
    table: &'a Str,
    of_port_table: bool,
    override_connected: bool,
}

/// The one place that says whether a prefix is told on a transit switch.
fn decide(a: &Attached, at: &Attachment, net: IpNetwork, what: &What<'_>) -> Result<(RouteId, Route), Reason> {
    if !a.settings.adv {
        return Err(Reason::Off("ic-route-adv"));
    }
    let Some(addresses) = &at.addresses else { return Err(Reason::NoAddresses) };
    if net.prefix() == 0 && !a.settings.adv_default {
        return Err(Reason::Off("ic-route-adv-default"));
    }
    if is_link_local(&net) {
        return Err(Reason::LinkLocalPrefix);
    }
    if let Some(against) = at.adv.against(&net) {
        return Err(Reason::filtered(against, false));
    }
    let Some(nexthop) = addresses.nexthop(net.is_ipv4(), at.v4_over_v6) else { return Err(Reason::NoNexthop) };
    let id = RouteId {
        zone: a.zone,
        switch: at.switch.clone(),
        table: what.table.clone(),
        prefix: net.to_string().into(),
        nexthop: nexthop.to_string().into(),
    };
    let route = Route {
        source: what.source,
        of_port_table: what.of_port_table,
        override_connected: what.override_connected,
        row: what.row,
        router: a.router,
        tag: at.tag.clone(),
    };
    Ok((id, route))
}
