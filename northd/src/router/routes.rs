//! The routing table.

use crate::addresses::{Mac, Net6, parse_net};
use crate::context::{Ctx, flag};
use crate::facts::Fact;
use crate::facts::lrp::Lrp;
use crate::facts::nat::Kind;
use crate::facts::router::Router;
use crate::input::Read;
use crate::registers::*;
use crate::stage::Stage::*;
use const_format::formatcp;
use ovn_schema::{Set, Str, Uuid, nb, sb};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// By how much a longer prefix wins.
const PER_BIT: u16 = 12;
/// The lowest priority of each source of routes, from the least to the most preferred.
const SOURCE_ADDRESS: u16 = 1548;
const LEARNED: u16 = 1550;
const STATIC: u16 = 1552;
const CONNECTED: u16 = 1554;
const OVERRIDE: u16 = 1558;

/// A static route, parsed.
struct Route {
    row: Uuid,
    prefix: (IpAddr, u8),
    /// `src` or `dst`.
    side: &'static str,
    table: u32,
    over_connected: bool,
    origin: Origin,
    hop: Hop,
    symmetric: bool,
    fields: Set<Str>,
}

/// What routes that share their traffic have in common.
type Group = (Origin, IpAddr, u8, &'static str, u32, Option<Uuid>);

/// Who made a route, from the least preferred.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Learned,
    Static,
    /// Learned from another availability zone.
    Zone,
    /// Connected in another availability zone.
    ZoneConnected,
}

/// Where a route leads.
enum Hop {
    Discard,
    /// `from` is the router's own address there; a port without addresses has none.
    Via {
        next: Option<IpAddr>,
        port: std::sync::Arc<Lrp>,
        from: Option<IpAddr>,
        v4: bool,
    },
}

/// The flows of a router's routes.
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    for port in &router.ports {
        connected(ctx, port);
        reachable(ctx, router, port);
    }
    let Some(row) = ctx.nb::<nb::LogicalRouter>(uuid) else { return };
    let mut groups: BTreeMap<Group, Vec<Route>> = BTreeMap::new();
    for r in &row.static_routes {
        let Some(route) = ctx.nb::<nb::LogicalRouterStaticRoute>(*r) else { continue };
        match parse(ctx, router, *r, route) {
            Ok(Some(route)) => {
                groups.entry(route.group()).or_default().push(route);
            }
            Ok(None) => {}
            Err(why) => ctx.problem(format!(
                "static route {} via {} of logical router {}: {why}; it is left out",
                route.ip_prefix, route.nexthop, router.name
            )),
        }
    }
    if flag(&row.options, "dynamic-routing") {
        for route in learned(ctx, router) {
            groups.entry(route.group()).or_default().push(route);
        }
    }
    let mut shared = Vec::new();
    for (group, mut routes) in groups {
        routes.sort_by_key(|r| r.row);
        match &routes[..] {
            [only] if !only.symmetric || only.origin == Origin::ZoneConnected => single(ctx, uuid, only),
            _ => shared.push((group, routes)),
        }
    }
    let numbers = ctx.numbers();
    let wish = |routes: &[Route]| numbers.group(uuid, LrInIpRouting, &routes.first()?.group_matches());
    let ids = crate::sticky_ids::assign(shared.iter().map(|(group, routes)| (*group, wish(routes))).collect());
    for (group, routes) in shared {
        if let Some(id) = ids.get(&group) {
            ecmp(ctx, router, *id, routes);
        }
    }
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "ip4" } else { "ip6" }
}

/// `reg0 = NEXT; reg5 = FROM; `
fn registers(next: &str, from: Option<IpAddr>, v4: bool) -> String {
    let (to, own) = if v4 { (REG_NEXT_HOP_IPV4, REG_SRC_IPV4) } else { (REG_NEXT_HOP_IPV6, REG_SRC_IPV6) };
    let from = from.map_or(String::new(), |from| format!("{own} = {from}; "));
    format!("{to} = {next}; {from}")
}

/// A network; a single host is named by its address alone.
pub fn short((ip, plen): (IpAddr, u8)) -> String {
    match ip {
        IpAddr::V4(addr) => crate::addresses::Net4 { addr, plen }.match_text(),
        IpAddr::V6(addr) => Net6 { addr, plen }.match_text(),
    }
}

fn network((ip, plen): (IpAddr, u8)) -> String {
    match ip {
        IpAddr::V4(addr) => format!("{}/{plen}", crate::addresses::Net4 { addr, plen }.network()),
        IpAddr::V6(addr) => format!("{}/{plen}", Net6 { addr, plen }.network()),
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
    let priority = CONNECTED + u16::from(plen) * PER_BIT;
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
    for n in ctx.nats(router.uuid).into_iter().flatten() {
        let elsewhere = match n.row.gateway_port {
            Some(gateway) => gateway != port.uuid,
            None => port.ip_in_network_of(n.external).is_none(),
        };
        if !n.v4() || n.kind == Kind::Snat || !flag(&n.row.options, "add_route") || several && elsewhere {
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
    let Some(row) = ctx.nb::<nb::LogicalRouter>(router.uuid) else { return Vec::new() };
    let known: BTreeSet<Uuid> = ctx.nats(router.uuid).into_iter().flatten().map(|n| n.uuid).collect();
    let mut all = Vec::new();
    for n in row.nat.iter().filter(|n| !known.contains(*n)) {
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

fn parse(
    ctx: &mut Ctx<'_, '_>,
    router: &Router,
    uuid: Uuid,
    row: &nb::LogicalRouterStaticRoute,
) -> Result<Option<Route>, String> {
    let prefix = parse_net(&row.ip_prefix).ok_or("ip_prefix is no network")?;
    let side = if row.policy.as_deref() == Some("src-ip") { "src" } else { "dst" };
    if let Some(bfd) = row.bfd.and_then(|b| ctx.nb::<nb::Bfd>(b))
        && bfd.dst_ip == row.nexthop
        && !crate::tables::bfd::usable(ctx, bfd)
    {
        return Ok(None);
    }
    let hop = if &*row.nexthop == "discard" {
        Hop::Discard
    } else {
        match via(ctx, router, row, prefix.0)? {
            Some(hop) => hop,
            None => return Ok(None),
        }
    };
    let Some(table) = table_id(ctx, router.uuid, &row.route_table) else { return Ok(None) };
    let origin = match row.options.get("origin").map(|o| &**o) {
        Some("connected") => Origin::ZoneConnected,
        Some("connected-dynamic") => Origin::Zone,
        _ => Origin::Static,
    };
    Ok(Some(Route {
        row: uuid,
        prefix,
        side,
        table,
        over_connected: flag(&row.options, "override-connected") || flag(&row.options, "override_connected"),
        origin,
        hop,
        symmetric: flag(&row.options, "ecmp_symmetric_reply"),
        fields: selection(row),
    }))
}

/// What the choice between routes depends on; ports imply the protocol.
fn selection(row: &nb::LogicalRouterStaticRoute) -> Set<Str> {
    let mut fields = row.selection_fields.clone();
    if ["tp_src", "tp_dst"].iter().any(|f| fields.contains(*f)) {
        fields.insert("ip_proto".into());
    }
    fields
}

/// The port of a static route that is in use, and its network.
pub fn advertised<'r>(
    ctx: &mut Ctx<'_, '_>,
    router: &'r Router,
    uuid: Uuid,
    row: &nb::LogicalRouterStaticRoute,
) -> Option<(&'r std::sync::Arc<Lrp>, (IpAddr, u8))> {
    let route = parse(ctx, router, uuid, row).ok()??;
    let (port, _) = route.hop.via()?;
    Some((router.port(&port.name)?, route.prefix))
}

/// Whether a static route has a next hop that a port leads to.
pub fn leads_somewhere(ctx: &mut Ctx<'_, '_>, router: Uuid, row: &nb::LogicalRouterStaticRoute) -> bool {
    let Some(router) = ctx.router(router) else { return false };
    let prefix = parse_net(&row.ip_prefix);
    prefix.is_some_and(|(prefix, _)| matches!(via(ctx, router, row, prefix), Ok(Some(_))))
}

/// The routes that chassis have learned for a router.
fn learned(ctx: &mut Ctx<'_, '_>, router: &Router) -> Vec<Route> {
    let mut out = Vec::new();
    for uuid in ctx.sb_table::<sb::LearnedRoute>() {
        let Some(row) = ctx.sb::<sb::LearnedRoute>(uuid) else { continue };
        let Some(binding) = ctx.sb::<sb::PortBinding>(row.logical_port) else { continue };
        let Some(port) = router.port(&binding.logical_port).filter(|p| p.enabled()) else { continue };
        let (Some(prefix), Some((next, _))) = (parse_net(&row.ip_prefix), parse_net(&row.nexthop)) else {
            ctx.problem(format!("learned route {} via {}: no addresses; it is left out", row.ip_prefix, row.nexthop));
            continue;
        };
        let from = port.ip_in_network_of(next).or_else(|| any_address(port, next));
        out.push(Route {
            row: uuid,
            prefix,
            side: "dst",
            table: 0,
            over_connected: false,
            origin: Origin::Learned,
            hop: Hop::Via { next: Some(next), port: port.clone(), from, v4: next.is_ipv4() },
            symmetric: false,
            fields: Set::new(),
        });
    }
    out
}

/// The port that a route names. As in OVN, it may be another router's.
fn named_port(ctx: &mut Ctx<'_, '_>, router: &Router, name: &Str) -> Option<std::sync::Arc<Lrp>> {
    if let Some(port) = router.port(name) {
        return Some(port.clone());
    }
    let port = ctx.read(Read::LrpName(name.clone())).lrp_by_name(name).and_then(|l| ctx.lrp(l))?;
    ctx.router(port.router)?.port(name).cloned()
}

fn via(
    ctx: &mut Ctx<'_, '_>,
    router: &Router,
    row: &nb::LogicalRouterStaticRoute,
    prefix: IpAddr,
) -> Result<Option<Hop>, String> {
    let next = match &*row.nexthop {
        "" => None,
        text => Some(parse_net(text).map(|(ip, _)| ip).ok_or("nexthop is no address")?),
    };
    if let Some(name) = &row.output_port {
        let port = named_port(ctx, router, name).ok_or_else(|| format!("output_port {name} is no router's port"))?;
        let from = match next {
            Some(next) => port.ip_in_network_of(next).or_else(|| any_address(&port, next)),
            None => any_address(&port, prefix),
        };
        let from = from.ok_or("the port has no address of the next hop's family")?;
        return Ok(Some(Hop::Via { next, port, from: Some(from), v4: from.is_ipv4() }));
    }
    let next = next.ok_or("neither nexthop nor output_port is set")?;
    let (port, from) = router.port_towards(next).ok_or("no port of the router is in the network of the next hop")?;
    Ok(Some(Hop::Via { next: Some(next), port: port.clone(), from: Some(from), v4: from.is_ipv4() }))
}

fn any_address(port: &Lrp, like: IpAddr) -> Option<IpAddr> {
    match like {
        IpAddr::V4(_) => port.v4.first().map(|n| n.addr.into()),
        IpAddr::V6(_) => port.v6.first().map(|n| n.addr.into()),
    }
}

/// The number of a route table: 0 is the main one; none where no port and no route that leads anywhere is in it.
pub fn table_id(ctx: &mut Ctx<'_, '_>, router: Uuid, name: &Str) -> Option<u32> {
    if name.is_empty() {
        return Some(0);
    }
    ctx.route_tables(router)?.get(name).map(|n| u32::from(*n))
}

/// Derives [`Fact::RouteTables`]: the numbers of a router's route tables, all at once, as what each route says of its table's
/// number counts.
pub fn tables(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    let Some(row) = ctx.nb::<nb::LogicalRouter>(uuid) else { return };
    let numbers = ctx.numbers();
    // How much speaks for each number: that of a port for certain, a prefix that has it alone more than one that has several.
    let mut wishes: BTreeMap<Str, BTreeMap<u16, usize>> = BTreeMap::new();
    for port in &router.ports {
        if let Some(table) = port.row.options.get("route_table").filter(|t| !t.is_empty()) {
            let votes = wishes.entry(table.clone()).or_default();
            numbers.table_of_port(uuid, &port.json).into_iter().for_each(|n| *votes.entry(n).or_default() += 1000);
        }
    }
    let known: BTreeSet<Str> = wishes.iter().filter(|(_, w)| !w.is_empty()).map(|(name, _)| name.clone()).collect();
    let mut by_route = None;
    for r in &row.static_routes {
        let Some(route) = ctx.nb::<nb::LogicalRouterStaticRoute>(*r).filter(|r| !r.route_table.is_empty()) else {
            continue;
        };
        if known.contains(&route.route_table) || !leads(ctx, router, route) {
            continue; // A table of routes that lead nowhere has no number.
        }
        let votes = wishes.entry(route.route_table.clone()).or_default();
        let Some(prefix) = parse_net(&route.ip_prefix) else { continue };
        let side = if route.policy.as_deref() == Some("src-ip") { "src" } else { "dst" };
        let matches = format!("{}.{side} == {}", family(prefix.0), network(prefix));
        let all = by_route.get_or_insert_with(|| numbers.tables_by_route(uuid)).get(&*matches);
        let weight = if all.is_some_and(|all| all.len() == 1) { 10 } else { 1 };
        all.into_iter().flatten().for_each(|n| *votes.entry(*n).or_default() += weight);
    }
    if wishes.is_empty() {
        return;
    }
    // Those that know best choose first.
    let mut wishes: Vec<_> = wishes.into_iter().collect();
    wishes.sort_by_key(|(_, votes)| Reverse(votes.values().max().copied().unwrap_or(0)));
    let mut taken = BTreeSet::new();
    let mut choose = |votes: BTreeMap<u16, usize>| {
        let free = votes.into_iter().rev().filter(|(n, _)| !taken.contains(n));
        let best = free.max_by_key(|(_, votes)| *votes).map(|(n, _)| n);
        taken.extend(best);
        best
    };
    let wishes = wishes.into_iter().map(|(name, votes)| (name, choose(votes))).collect();
    ctx.derive(Fact::RouteTables(crate::sticky_ids::assign(wishes)));
}

/// Whether a static route leads to a port, or drops what it is for.
fn leads(ctx: &mut Ctx<'_, '_>, router: &Router, route: &nb::LogicalRouterStaticRoute) -> bool {
    match &route.output_port {
        _ if &*route.nexthop == "discard" => true,
        Some(name) => named_port(ctx, router, name).is_some(),
        None => parse_net(&route.nexthop).is_some_and(|(ip, _)| router.port_towards(ip).is_some()),
    }
}

impl Hop {
    /// The port, and whether the next hop is of IPv4.
    fn via(&self) -> Option<(&Lrp, bool)> {
        match self {
            Hop::Discard => None,
            Hop::Via { port, v4, .. } => Some((port, *v4)),
        }
    }
}

impl Route {
    /// Routes that are alike here share their traffic.
    fn group(&self) -> Group {
        let alone = (self.origin == Origin::ZoneConnected).then_some(self.row);
        (self.origin, self.prefix.0, self.prefix.1, self.side, self.table, alone)
    }

    fn of_zone(&self) -> bool {
        matches!(self.origin, Origin::Zone | Origin::ZoneConnected)
    }

    fn priority(&self) -> u16 {
        let base = match self.side {
            "src" => SOURCE_ADDRESS,
            _ if self.origin == Origin::Learned => LEARNED,
            _ if self.of_zone() => CONNECTED + if self.over_connected { 2 } else { 0 },
            _ if self.over_connected => OVERRIDE,
            _ => STATIC,
        };
        base + u16::from(self.prefix.1) * PER_BIT
    }

    fn matches(&self) -> String {
        let mut matches = format!("{}.{} == {}", family(self.prefix.0), self.side, network(self.prefix));
        if self.table != 0 || !self.of_zone() {
            matches = format!("{REG_ROUTE_TABLE_ID} == {} && {matches}", self.table);
        }
        if let Hop::Via { port, .. } = &self.hop
            && matches!(self.prefix, (IpAddr::V6(addr), plen) if (Net6 { addr, plen }).is_link_local())
        {
            matches = format!("inport == {} && {matches}", port.json);
        }
        matches
    }

    /// The match of a group, which never depends on the port.
    fn group_matches(&self) -> String {
        let matches = format!("{}.{} == {}", family(self.prefix.0), self.side, network(self.prefix));
        if self.table != 0 || !self.of_zone() {
            format!("{REG_ROUTE_TABLE_ID} == {} && {matches}", self.table)
        } else {
            matches
        }
    }

    /// The priority of a group.
    fn shared_priority(&self) -> u16 {
        let base = match self.side {
            "src" => SOURCE_ADDRESS,
            _ if self.origin == Origin::Learned => LEARNED,
            _ if self.of_zone() => CONNECTED,
            _ => STATIC,
        };
        base + u16::from(self.prefix.1) * PER_BIT
    }

    /// The actions of a member of a group; none where packets are dropped.
    fn member_actions(&self) -> Option<String> {
        let (port, v4) = self.hop.via()?;
        Some(format!(
            "{}eth.src = {}; outport = {}; {REGBIT_NEXTHOP_IS_IPV4} = {}; {}next;",
            self.leave(),
            port.mac,
            port.json,
            u8::from(v4),
            if self.symmetric { formatcp!("{REGBIT_NEEDS_ECMP_STATEFUL_COMMIT} = 1; ") } else { "" }
        ))
    }

    /// The registers and the port, without `next`.
    fn leave(&self) -> String {
        match &self.hop {
            Hop::Discard => String::new(),
            Hop::Via { next, from, v4, .. } => {
                let next = next.map_or_else(|| format!("{}.dst", family(self.prefix.0)), |n| n.to_string());
                registers(&next, *from, *v4)
            }
        }
    }
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
fn members<'r>(ctx: &mut Ctx<'_, '_>, u: Uuid, id: u16, routes: &'r [Route]) -> Vec<(u16, &'r Route)> {
    let numbers = ctx.numbers();
    let wish = |r: &Route| numbers.member(u, LrInIpRoutingEcmp, id, &r.member_actions()?);
    let given = crate::sticky_ids::assign_members(routes.iter().map(|r| (r.row, wish(r))).collect());
    let mut all: Vec<_> = routes.iter().filter_map(|r| Some((*given.get(&r.row)?, r))).collect();
    all.sort_by_key(|(n, _)| *n);
    all
}

fn ecmp(ctx: &mut Ctx<'_, '_>, router: &Router, id: u16, routes: Vec<Route>) {
    let u = router.uuid;
    let Some(first) = routes.first() else { return };
    let mut fields: Set<Str> = first.fields.clone();
    for r in &routes {
        fields = fields.intersection(&r.fields).cloned().collect();
    }
    let members = members(ctx, u, id, &routes);
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
