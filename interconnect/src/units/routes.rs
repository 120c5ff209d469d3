//! Routes of a logical router on transit switches (ovn-nb(5), `ic-route-*`): what it tells others, what it learns.

use super::{V, Zone, info, warn, zone_of};
use crate::address::{Addresses, any_contains, is_link_local, is_link_local_hop, network, of_vip, option};
use crate::model::{LEARNED_ROUTE, Northbound, Read, TSP};
use crate::output::{Key, Route, RouteId, StaticRoute, Value};
use ipnetwork::IpNetwork;
use ovn_schema::{Map, Str, Uuid, nb, options::flag};
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

const OVERRIDE: &str = "override-connected";

/// A router's port on a transit switch.
struct Attachment<'a> {
    /// The transit switch.
    switch: &'a Str,
    /// The port of the transit switch.
    lsp: &'a nb::LogicalSwitchPort,
    /// The router's port.
    lrp: &'a nb::LogicalRouterPort,
    /// Its addresses as northd has them; empty while it has none.
    address: Str,
}

/// Puts out the routes that a router advertises on transit switches, and those that it learns there.
pub fn routes(id: Uuid, v: &mut V<'_>) {
    let Some(zone) = zone_of(v) else { return };
    let nb = &v.read(Read::Router(id)).nb;
    let Some(router) = nb.db.logical_router.get(&id) else { return };
    let attachments = attachments(nb, router, v);
    let dynamic = dynamic_routes(id, v);
    let mut advertised: BTreeMap<RouteId, (Route, &'static str)> = BTreeMap::new();
    for at in &attachments {
        let Some(addresses) = Addresses::parse(&at.address) else {
            let text = format!(
                "Route sync ignores port {} on ts {} for router {} because the addresses are invalid.",
                at.lsp.name, at.switch, router.name
            );
            info(v, text);
            continue;
        };
        let mut ads = Advertising { zone, nb, id, router, at, addresses, out: &mut advertised };
        ads.all(&attachments, &dynamic, v);
    }
    for (id, (route, _)) in advertised {
        v.emit(Key::Route(id), Value::Route(route));
    }
    for at in attachments.iter().filter(|at| !at.address.is_empty()) {
        learn(zone, (nb, id, router), at, &dynamic, v);
    }
}

/// The router's ports on transit switches that there are; those of `Transit_Switch_Port` rows take no part, as with
/// ovn-ic.
fn attachments<'a>(nb: &'a Northbound, router: &nb::LogicalRouter, v: &mut V<'a>) -> Vec<Attachment<'a>> {
    let mut out = Vec::new();
    for lrp in router.ports.iter().filter_map(|id| nb.db.logical_router_port.get(id)) {
        let nb = &v.read(Read::PortsTo(lrp.name.clone())).nb;
        for (switch, lsp) in nb.transit_ports_to(&lrp.name) {
            let known = v.read(Read::TransitSwitchNamed(switch.clone())).icnb.switch_named(switch).is_some();
            if !known || &*lsp.r#type != "router" || lsp.options.contains_key(TSP) {
                continue;
            }
            let binding = v.read(Read::PortBinding(lrp.name.clone())).sb.port(&lrp.name);
            let address = binding.and_then(|(_, p)| p.mac.first().cloned()).unwrap_or_default();
            out.push(Attachment { switch, lsp, lrp, address });
        }
    }
    out
}

/// The prefixes that the router learned from its neighbours by dynamic routing.
fn dynamic_routes(id: Uuid, v: &mut V<'_>) -> Vec<Str> {
    let Some(datapath) = v.read(Read::DatapathOf(id)).sb.datapath_of(id) else { return Vec::new() };
    let routes = v.read(Read::LearnedBy(datapath)).sb.learned_by(datapath);
    routes.map(|r| r.ip_prefix.clone()).collect()
}

/// The load balancers of a router, its groups' among them.
fn load_balancers<'a>(router: &nb::LogicalRouter, v: &mut V<'a>) -> Vec<(Uuid, &'a nb::LoadBalancer)> {
    let mut ids: Vec<Uuid> = router.load_balancer.iter().copied().collect();
    for group in &router.load_balancer_group {
        let group = v.read(Read::LoadBalancerGroup(*group)).nb.db.load_balancer_group.get(group);
        ids.extend(group.iter().flat_map(|g| &g.load_balancer).copied());
    }
    let mut out = Vec::new();
    for id in ids {
        out.extend(v.read(Read::LoadBalancer(id)).nb.db.load_balancer.get(&id).map(|lb| (id, &**lb)));
    }
    out
}

/// A prefix that the list of denied ones has, or that the list of allowed ones lacks, is neither told nor learned.
/// Lists are options of the transit switch's router port and of the router; `deny` has the zone's list as well.
fn is_filtered(net: &IpNetwork, zone: &Zone, options: [&Map<Str, Str>; 2], direction: &str, v: &mut V<'_>) -> bool {
    let mut bad = Vec::new();
    let (deny, allow) = (format!("ic-route-deny-{direction}"), format!("ic-route-filter-{direction}"));
    let list = ["ic-route-denylist", "ic-route-blacklist"].map(|k| option(&zone.options, k));
    let list = list.into_iter().find(|l| !l.is_empty()).unwrap_or_default();
    let [denied, allowed] = [&deny, &allow].map(|key| options.map(|o| option(o, key)));
    let lists = denied.iter().chain([&list]).map(|l| &**l);
    let denied = any_contains(lists, net, |b| bad.push((deny.clone(), b.to_string()))).unwrap_or(false);
    let lists = allowed.iter().map(|l| &**l);
    let allowed = any_contains(lists, net, |b| bad.push((allow.clone(), b.to_string()))).unwrap_or(true);
    for (key, text) in bad {
        warn(v, format!("Bad prefix ({key}) format: {text}. CIDR expected."));
    }
    denied || !allowed
}

/// What a router tells the others on one transit switch.
struct Advertising<'a, 'b> {
    zone: &'b Zone,
    nb: &'a Northbound,
    id: Uuid,
    router: &'b nb::LogicalRouter,
    at: &'b Attachment<'a>,
    addresses: Addresses,
    /// The routes so far, with what each is of.
    out: &'b mut BTreeMap<RouteId, (Route, &'static str)>,
}

impl Advertising<'_, '_> {
    fn all(&mut self, attachments: &[Attachment<'_>], dynamic: &[Str], v: &mut V<'_>) {
        if !self.zone.flag("ic-route-adv") {
            return;
        }
        let table = option(&self.at.lrp.options, "route_table");
        for id in &self.router.static_routes {
            let Some(route) = self.nb.db.logical_router_static_route.get(id) else { continue };
            if !route.external_ids.contains_key(LEARNED_ROUTE) && route.route_table == table {
                self.static_route(*id, route, v);
            }
        }
        for id in &self.router.ports {
            let Some(lrp) = self.nb.db.logical_router_port.get(id) else { continue };
            // Networks of transit switches themselves are known to all that are on them.
            if attachments.iter().any(|a| a.lrp.name == lrp.name) {
                continue;
            }
            for network in &lrp.networks {
                self.connected(network, *id, "lrp", "connected", &table, v);
            }
        }
        if self.zone.flag("ic-route-adv-lb") {
            for (id, lb) in load_balancers(self.router, v) {
                for key in lb.vips.keys() {
                    match of_vip(key) {
                        Some(ip) => self.put(
                            IpNetwork::from(ip),
                            &Str::default(),
                            "loadbalancer",
                            false,
                            (id, "loadbalancer"),
                            v,
                        ),
                        None => warn(v, format!("Route ad: Parsing failed for lb vip {key}")),
                    }
                }
            }
        }
        for network in dynamic {
            self.connected(network, self.id, "lr", "connected-dynamic", &table, v);
        }
    }

    fn static_route(&mut self, id: Uuid, route: &nb::LogicalRouterStaticRoute, v: &mut V<'_>) {
        let nexthop = network(&route.nexthop);
        let good = &*route.nexthop == "discard" || nexthop.is_some_and(|n| !is_link_local_hop(n.ip()));
        let (true, Some(net)) = (good && route.policy.as_deref() != Some("src-ip"), network(&route.ip_prefix)) else {
            return;
        };
        self.put(net, &route.route_table, "static", flag(&route.options, OVERRIDE), (id, "route"), v);
    }

    /// A network that the router has a port in, or that it learned by dynamic routing: in the main table, and in that of
    /// the transit switch's port, so that traffic of that table goes by this port. It is told with the port's own
    /// address, as ovn-ic tells it.
    fn connected(
        &mut self,
        of_port: &str,
        id: Uuid,
        of: &'static str,
        origin: &'static str,
        table: &Str,
        v: &mut V<'_>,
    ) {
        let Some(net) = network(of_port) else { return };
        if !table.is_empty() {
            self.put(net, table, "connected", true, (id, of), v);
        }
        self.put(net, &Str::default(), origin, false, (id, of), v);
    }

    fn put(
        &mut self,
        net: IpNetwork,
        table: &Str,
        origin: &'static str,
        override_connected: bool,
        (row, of): (Uuid, &'static str),
        v: &mut V<'_>,
    ) {
        let default = net.prefix() == 0 && !self.zone.flag("ic-route-adv-default");
        if default || is_link_local(&net) {
            return;
        }
        let lrp = self.at.lrp;
        if is_filtered(&net, self.zone, [&lrp.options, &self.router.options], "adv", v) {
            return;
        }
        let name = "ic-route-ipv4-next-hop-ipv6";
        let v4_over_v6 = ovn_schema::options::bool(&lrp.options, name, flag(&self.router.options, name));
        let Some(nexthop) = self.addresses.nexthop(net.is_ipv4(), v4_over_v6) else { return };
        let id = RouteId {
            zone: self.zone.row,
            switch: self.at.switch.clone(),
            table: table.clone(),
            prefix: net.to_string().into(),
            nexthop: nexthop.to_string().into(),
        };
        let tag = option(&lrp.options, "ic-route-tag");
        let route = Route { origin, override_connected, row, router: self.id, tag };
        match self.out.get(&id) {
            None => drop(self.out.insert(id, (route, of))),
            Some(_) => {
                let text = format!("Duplicate {origin} route advertisement was suppressed! NB {of} uuid: {row}");
                warn(v, text);
            }
        }
    }
}

/// Puts out what a router learns on one transit switch.
fn learn(
    zone: &Zone,
    (nb, id, router): (&Northbound, Uuid, &nb::LogicalRouter),
    at: &Attachment<'_>,
    dynamic: &[Str],
    v: &mut V<'_>,
) {
    if !zone.flag("ic-route-learn") || router.enabled == Some(false) {
        return;
    }
    let own = Addresses::of_router_port(&at.lrp.mac, at.lrp.networks.iter().map(|n| &**n));
    let (table, tag) = (option(&at.lrp.options, "route_table"), option(&at.lrp.options, "ic-route-filter-tag"));
    let (mine, vips) = (own_routes(nb, router), vips(router, v));
    for (row, route) in v.read(Read::IcRoutesOf(at.switch.clone())).icsb.routes_of(at.switch) {
        let foreign = match route.external_ids.get("lr-id") {
            Some(lr) => lr.parse::<Uuid>().is_ok_and(|lr| lr != id),
            None => route.availability_zone != zone.row,
        };
        let tagged = route.external_ids.get("ic-route-tag").is_some_and(|t| *t == tag);
        if !foreign || tagged || !(route.route_table.is_empty() || route.route_table == table) {
            continue;
        }
        let (Some(net), Ok(nexthop)) = (network(&route.ip_prefix), route.nexthop.parse::<IpAddr>()) else {
            let text = format!("Bad route format in IC-SB: {} -> {}. Ignored.", route.ip_prefix, route.nexthop);
            warn(v, text);
            continue;
        };
        let reached = own.as_ref().is_some_and(|a| a.reaches(nexthop));
        if !reached || is_link_local_hop(nexthop) || is_link_local(&net) {
            continue;
        }
        let wanted = (net.prefix() > 0 || zone.flag("ic-route-learn-default"))
            && (&*route.origin != "loadbalancer" || zone.flag("ic-route-learn-lb"));
        if !wanted || is_filtered(&net, zone, [&at.lrp.options, &router.options], "learn", v) {
            continue;
        }
        let known = mine.contains(&(&route.route_table, &route.ip_prefix));
        if known || vips.iter().any(|ip| net.contains(*ip)) || dynamic.contains(&route.ip_prefix) {
            continue;
        }
        let value = StaticRoute {
            prefix: route.ip_prefix.clone(),
            nexthop: route.nexthop.clone(),
            table: route.route_table.clone(),
            origin: route.origin.clone(),
            override_connected: flag(&route.options, OVERRIDE),
        };
        v.emit(Key::StaticRoute(id, row), Value::StaticRoute(value));
    }
}

/// The tables and prefixes that the router has routes of its own to. It has as many routes as it learned, so they are
/// looked up, not searched, for each that it may learn.
fn own_routes<'a>(nb: &'a Northbound, router: &nb::LogicalRouter) -> HashSet<(&'a Str, &'a Str)> {
    let rows = router.static_routes.iter().filter_map(|r| nb.db.logical_router_static_route.get(r));
    let own = rows.filter(|r| !r.external_ids.contains_key(LEARNED_ROUTE));
    own.map(|r| (&r.route_table, &r.ip_prefix)).collect()
}

/// The addresses of the router's load balancers: a prefix that has one of them is not learned.
fn vips(router: &nb::LogicalRouter, v: &mut V<'_>) -> Vec<IpAddr> {
    let balancers = load_balancers(router, v);
    balancers.iter().flat_map(|(_, lb)| lb.vips.keys()).filter_map(|k| of_vip(k)).collect()
}
