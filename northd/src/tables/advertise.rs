//! `Advertised_Route`, `Advertised_MAC_Binding`, `ECMP_Nexthop`: what chassis tell routers outside, and which next hops
//! they watch (`options:dynamic-routing*` in ovn-nb(5)).

use crate::addresses::PortAddresses;
use crate::context::{Ctx, flag, flag_or};
use crate::facts::lrp::Lrp;
use crate::facts::lsp::{Kind, Lsp};
use crate::facts::router::Router;
use crate::input::Read;
use crate::model::{Columns, RouterColumn, RowKey};
use crate::router::port::router_peer;
use crate::router::routes::short as prefix;
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What a router port redistributes (`dynamic-routing-redistribute`).
#[derive(Clone, Copy, Default)]
struct Redistribute {
    connected: bool,
    as_host: bool,
    fixed: bool,
    nat: bool,
    lb: bool,
    spokes: bool,
}

impl Redistribute {
    fn parse(options: &Map<Str, Str>) -> Option<Redistribute> {
        let mut out = Redistribute::default();
        Redistribute::tokens(options)?.for_each(|t| _ = out.add(t));
        Some(out)
    }

    /// Adds what a word stands for; false if that is unknown.
    fn add(&mut self, token: &str) -> bool {
        match token {
            "connected" => self.connected = true,
            "connected-as-host" => (self.connected, self.as_host) = (true, true),
            "static" => self.fixed = true,
            "nat" => self.nat = true,
            "lb" => self.lb = true,
            "hub-spoke" => self.spokes = true,
            _ => return false,
        }
        true
    }

    fn tokens(options: &Map<Str, Str>) -> Option<impl Iterator<Item = &str>> {
        Some(options.get("dynamic-routing-redistribute")?.split(','))
    }

    /// Reports what is none of these.
    fn report(ctx: &mut Ctx<'_, '_>, options: &Map<Str, Str>, of: &str) {
        let unknown = |t: &&str| !t.is_empty() && !Redistribute::default().add(t);
        for token in Redistribute::tokens(options).into_iter().flatten().filter(unknown) {
            ctx.problem(format!(
                "dynamic-routing-redistribute of {of}: \"{token}\" is unknown; it may be connected, connected-as-host, static, nat, lb, hub-spoke"
            ));
        }
    }
}

/// A route that is advertised: the port, the prefix, and the port whose chassis is preferred.
type Routes = BTreeSet<(Str, String, Option<Str>)>;

/// The columns by which rows of `Advertised_Route` are told apart.
pub fn route_name(port: &str, prefix: &str, tracked: Option<&str>) -> String {
    format!("{port} {prefix} {}", tracked.unwrap_or_default())
}

fn advertised(options: &Map<Str, Str>) -> bool {
    flag_or(options, "dynamic-routing-advertise", true)
}

fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// The advertised routes of a router.
pub fn routes(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid).filter(|r| flag(&r.options, "dynamic-routing")) else { return };
    Redistribute::report(ctx, &router.options, &format!("router {}", router.name));
    let all = Redistribute::parse(&router.options).unwrap_or_default();
    let mut out: Routes = BTreeSet::new();
    for port in &router.ports {
        Redistribute::report(ctx, &port.row.options, &format!("router port {}", port.name));
        let what = Redistribute::parse(&port.row.options).unwrap_or(all);
        if what.connected && !what.as_host {
            connected(port, &mut out);
        }
        if what.as_host {
            hosts(ctx, port, &mut out);
        }
        if what.nat {
            nats(ctx, port, router, &mut out);
            for other in neighbours(ctx, port) {
                if let Some(router) = ctx.router(other.router) {
                    nats(ctx, port, router, &mut out);
                }
            }
        }
        if what.lb {
            if router.is_gateway() {
                balancers(ctx, port, router, None, &mut out);
            }
            for gateway in router.gateway_ports() {
                balancers(ctx, port, router, Some(&gateway.name), &mut out);
            }
            for other in neighbours(ctx, port) {
                if let Some(router) = ctx.router(other.router) {
                    balancers(ctx, port, router, Some(&other.name), &mut out);
                }
            }
        }
    }
    fixed(ctx, router, all, &mut out);
    // Of one prefix, what is advertised from a port's chassis is not advertised by all others as well.
    let tracked: BTreeSet<(Str, String)> =
        out.iter().filter(|(_, _, t)| t.is_some()).map(|(port, prefix, _)| (port.clone(), prefix.clone())).collect();
    out.retain(|(port, prefix, t)| t.is_some() || !tracked.contains(&(port.clone(), prefix.clone())));
    for (port, prefix, tracked) in out {
        let columns = Columns::new()
            .refs("datapath", vec![RowKey::datapath(uuid)])
            .refs("logical_port", vec![RowKey::port(&port)])
            .data("ip_prefix", &Str::from(prefix.as_str()))
            .refs("tracked_port", tracked.iter().map(|t| RowKey::port(t)).collect());
        ctx.row(RowKey::new(sb::TableId::AdvertisedRoute, route_name(&port, &prefix, tracked.as_deref())), columns);
    }
}

fn connected(port: &Lrp, out: &mut Routes) {
    for n in &port.v4 {
        if !n.addr.is_link_local() {
            out.insert((port.name.clone(), prefix((n.addr.into(), n.plen)), None));
        }
    }
    for n in port.v6.iter().filter(|n| !n.addr.is_unicast_link_local()) {
        out.insert((port.name.clone(), prefix((n.addr.into(), n.plen)), None));
    }
}

/// Static routes, and those learned from other availability zones.
fn fixed(ctx: &mut Ctx<'_, '_>, router: &Router, all: Redistribute, out: &mut Routes) {
    for r in ctx.rows_of(router.uuid, RouterColumn::StaticRoutes) {
        let Some(route) = ctx.nb::<nb::LogicalRouterStaticRoute>(*r).filter(|r| advertised(&r.options)) else {
            continue;
        };
        let Some((port, network)) = crate::router::routes::advertised(ctx, router, *r) else { continue };
        let what = Redistribute::parse(&port.row.options).unwrap_or(all);
        let wanted = match route.options.get("origin").map(|o| &**o) {
            Some("connected") => what.connected && !what.as_host,
            Some("connected-dynamic") => what.spokes,
            _ => what.fixed,
        };
        if wanted && !link_local(network.0) {
            out.insert((port.name.clone(), prefix(network), None));
        }
    }
}

/// The routers' ports at the other end of a port.
fn neighbours<'a>(ctx: &mut Ctx<'_, 'a>, port: &Lrp) -> Vec<&'a Lrp> {
    if port.row.peer.is_some() {
        return router_peer(ctx, port).into_iter().collect();
    }
    let mut all = Vec::new();
    let lsp = port.switch_port.and_then(|l| ctx.lsp(l)).filter(|l| l.lrp.is_some());
    let Some(switch) = lsp.and_then(|l| ctx.switch(l.switch)) else { return all };
    for other in switch.router_ports.iter().filter_map(|p| p.lrp).filter(|p| *p != port.uuid) {
        all.extend(ctx.lrp(other));
    }
    all
}

/// The addresses behind a port, each as a route of its own.
fn hosts(ctx: &mut Ctx<'_, '_>, port: &Lrp, out: &mut Routes) {
    if port.row.peer.is_some() {
        if let Some(peer) = router_peer(ctx, port).filter(|p| advertised(&p.row.options)) {
            own_addresses(port, peer, out);
        }
        return;
    }
    let lsp = port.switch_port.and_then(|l| ctx.lsp(l)).filter(|l| l.lrp.is_some());
    let Some(row) = lsp.and_then(|l| ctx.nb::<nb::LogicalSwitch>(l.switch)) else { return };
    for p in &row.ports {
        if let Some(lsp) = ctx.lsp(*p).filter(|l| advertised(&l.row.options)) {
            host(ctx, port, lsp, out);
        }
    }
}

fn own_addresses(port: &Lrp, lrp: &Lrp, out: &mut Routes) {
    let own = PortAddresses { mac: lrp.mac, v4: lrp.v4.clone(), v6: lrp.v6.clone() };
    publish(port, &own, &lrp.name, out);
}

fn publish(port: &Lrp, addresses: &PortAddresses, tracked: &Str, out: &mut Routes) {
    let v4 = addresses.v4.iter().map(|n| n.addr.to_string());
    let v6 = addresses.v6.iter().filter(|n| !n.is_link_local()).map(|n| n.addr.to_string());
    for ip in v4.chain(v6) {
        out.insert((port.name.clone(), ip, Some(tracked.clone())));
    }
}

fn host(ctx: &mut Ctx<'_, '_>, port: &Lrp, lsp: &Lsp, out: &mut Routes) {
    if let Some(lrp) = lsp.lrp.and_then(|l| ctx.lrp(l)) {
        if advertised(&lrp.row.options) {
            own_addresses(port, lrp, out);
        }
        return;
    }
    let mut tracked = lsp.name.clone();
    if lsp.kind == Kind::Virtual {
        let Some((u, _)) = ctx.read(Read::Binding(lsp.name.clone())).binding(&lsp.name) else { return };
        let Some(parent) = ctx.sb::<sb::PortBinding>(u).and_then(|b| b.virtual_parent.clone()) else { return };
        if super::health::port_named(ctx, &parent).is_none() {
            return;
        }
        tracked = parent;
    }
    for a in &lsp.addresses {
        publish(port, a, &tracked, out);
    }
}

/// The outside addresses of a router's NAT rules.
fn nats(ctx: &mut Ctx<'_, '_>, port: &Lrp, router: &Router, out: &mut Routes) {
    for nat in ctx.nats(router.uuid).into_iter().flat_map(|n| &n.rules).filter(|n| advertised(&n.row.options)) {
        let tracked = match (&nat.port, nat.gateway.and_then(|g| ctx.lrp(g))) {
            (Some(name), _) if nat.distributed() => super::health::port_named(ctx, name).map(|l| l.name.clone()),
            (_, gateway) => gateway.map(|g| g.name.clone()),
        };
        out.insert((port.name.clone(), nat.row.external_ip.to_string(), tracked));
    }
}

/// The virtual addresses of a router's load balancers.
fn balancers(ctx: &mut Ctx<'_, '_>, port: &Lrp, router: &Router, tracked: Option<&Str>, out: &mut Routes) {
    for ip in ctx.all_vips(router.uuid).filter(|a| a.advertised).filter_map(|a| a.ip) {
        out.insert((port.name.clone(), ip.to_string(), tracked.cloned()));
    }
}

/// The columns by which rows of `Advertised_MAC_Binding` are told apart.
pub fn mac_name(port: &str, ip: &str, mac: &str) -> String {
    format!("{port} {ip} {mac}")
}

/// The neighbours of an EVPN switch that are advertised: those of its ports, and floating IPs of routers.
pub fn macs(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(switch) = ctx.switch(uuid).filter(|s| s.vni.is_some()) else { return };
    let Some(what) = switch.config.get("dynamic-routing-redistribute") else { return };
    let has = |token: &str| what.split(',').any(|t| t == token);
    let mut all: BTreeSet<(Str, String, String)> = BTreeSet::new();
    let mut add = |port: &Str, ips: Vec<IpAddr>, mac: String| {
        all.extend(
            ips.into_iter().filter(|ip| !v6_link_local(*ip)).map(|ip| (port.clone(), ip.to_string(), mac.clone())),
        );
    };
    let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) else { return };
    for p in row.ports.iter().filter(|_| has("ip")) {
        let Some(lsp) = ctx.lsp(*p).filter(|l| advertised(&l.row.options)) else { continue };
        if let Some(lrp) = lsp.lrp.and_then(|l| ctx.lrp(l)) {
            let ips = lrp.v4.iter().map(|n| n.addr.into()).chain(lrp.v6.iter().map(|n| n.addr.into())).collect();
            add(&lsp.name, ips, lrp.mac.to_string());
        } else if let Some(a) = lsp.addresses.first().filter(|_| lsp.kind == Kind::Vif) {
            let ips = a.v4.iter().map(|n| n.addr.into()).chain(a.v6.iter().map(|n| n.addr.into())).collect();
            add(&lsp.name, ips, a.mac.to_string());
        }
    }
    for p in switch.router_ports.iter().filter(|_| has("nat")) {
        let Some(router) = p.router else { continue };
        for nat in ctx.nats(router).into_iter().flat_map(|n| &n.rules) {
            let here = nat.distributed() && nat.gateway == p.lrp && advertised(&nat.row.options);
            if let Some(mac) = nat.row.external_mac.as_ref().filter(|_| here) {
                add(&p.name, vec![nat.external], mac.to_string());
            }
        }
    }
    for (port, ip, mac) in all {
        let columns = Columns::new()
            .refs("datapath", vec![RowKey::datapath(uuid)])
            .refs("logical_port", vec![RowKey::port(&port)])
            .data("ip", &Str::from(ip.as_str()))
            .data("mac", &Str::from(mac.as_str()));
        ctx.row(RowKey::new(sb::TableId::AdvertisedMacBinding, mac_name(&port, &ip, &mac)), columns);
    }
}

fn v6_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The columns by which rows of `ECMP_Nexthop` are told apart.
pub fn hop_name(port: &str, hop: &str) -> String {
    format!("{port} {hop}")
}

/// The next hops of routes with symmetric replies, where chassis are to watch them (`ecmp_nexthop_monitor_enable`).
pub fn next_hops(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    if !flag(&ctx.global().options, "ecmp_nexthop_monitor_enable") {
        return;
    }
    let Some(router) = ctx.router(uuid) else { return };
    for r in ctx.rows_of(uuid, RouterColumn::StaticRoutes) {
        let Some(route) = ctx.nb::<nb::LogicalRouterStaticRoute>(*r) else { continue };
        let (true, Ok(hop)) = (flag(&route.options, "ecmp_symmetric_reply"), route.nexthop.parse::<IpAddr>()) else {
            continue;
        };
        let Some((port, _)) = crate::router::routes::advertised(ctx, router, *r) else { continue };
        let hop = Str::from(hop.to_string());
        let mut columns = Columns::new()
            .refs("datapath", vec![RowKey::datapath(uuid)])
            .refs("port", vec![RowKey::port(&port.name)])
            .data("nexthop", &hop);
        if let Some(mac) = ctx.read(Read::MacBinding(port.name.clone(), hop.clone())).mac_binding(&port.name, &hop) {
            columns = columns.data("mac", &mac);
        }
        ctx.row(RowKey::new(sb::TableId::EcmpNexthop, hop_name(&port.name, &hop)), columns);
    }
}
