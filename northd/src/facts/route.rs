//! Routes: those that are configured and those that chassis have learned, and which of them share their traffic.

use super::Fact;
use super::lrp::Lrp;
use super::router::{Router, port_towards};
use crate::addresses::{Net6, parse_net};
use crate::context::{Ctx, flag};
use crate::input::Read;
use crate::model::{RouterColumn, Unit};
use crate::registers::*;
use crate::stage::Stage::*;
use const_format::formatcp;
use ovn_schema::{Set, Str, Uuid, nb, sb};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// By how much a longer prefix wins.
const PER_BIT: u16 = 12;
/// The lowest priority of each source of routes, from the least to the most preferred.
const SOURCE_ADDRESS: u16 = 1548;
const LEARNED: u16 = 1550;
const STATIC: u16 = 1552;
const CONNECTED: u16 = 1554;
const OVERRIDE: u16 = 1558;

/// A static route, parsed, or one that a chassis has learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The row that it comes from.
    pub row: Uuid,
    /// What it is for: an address and a length.
    pub prefix: (IpAddr, u8),
    /// `src` or `dst`.
    pub side: &'static str,
    table: u32,
    over_connected: bool,
    /// Who made it.
    pub origin: Origin,
    /// Where it leads.
    pub hop: Hop,
    /// Whether replies go back the way that the connection came (`ecmp_symmetric_reply`).
    pub symmetric: bool,
    /// What the choice between routes depends on; empty: all that tells connections apart.
    pub fields: Set<Str>,
}

/// What routes that share their traffic have in common.
type Group = (Origin, IpAddr, u8, &'static str, u32, Option<Uuid>);

/// The routes of a router that share their traffic, with the group's number.
pub type Groups = Vec<(u16, Vec<Arc<Route>>)>;

/// Who made a route, from the least preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A chassis, from its neighbours.
    Learned,
    /// The cloud's configuration.
    Static,
    /// Learned from another availability zone.
    Zone,
    /// Connected in another availability zone.
    ZoneConnected,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq)]
pub enum Hop {
    /// Nowhere: packets are dropped.
    Discard,
    /// Through a port.
    Via {
        /// The next hop; none where packets' own destination is.
        next: Option<IpAddr>,
        /// The port.
        port: Arc<Lrp>,
        /// The router's own address there; a port without addresses has none.
        from: Option<IpAddr>,
        /// Whether the next hop is of IPv4.
        v4: bool,
    },
}

/// Makes a router's static routes exist as units: one that comes or changes among thousands concerns no other.
pub fn list(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    for r in ctx.rows_of(uuid, RouterColumn::StaticRoutes) {
        ctx.spawn(Unit::Route(uuid, *r));
        ctx.spawn(Unit::RouteFlow(uuid, *r));
    }
}

/// Derives [`Fact::Route`].
pub fn route(ctx: &mut Ctx<'_, '_>, router: Uuid, uuid: Uuid) {
    let Some(router) = ctx.router(router) else { return };
    let Some(row) = ctx.nb::<nb::LogicalRouterStaticRoute>(uuid) else { return };
    match parse(ctx, router, uuid, row) {
        Ok(Some(route)) => ctx.derive(Fact::Route(Arc::new(route))),
        Ok(None) => {}
        Err(why) => ctx.problem(format!(
            "static route {} via {} of logical router {}: {why}; it is left out",
            row.ip_prefix, row.nexthop, router.name
        )),
    }
}

/// Derives [`Fact::RouteGroups`], and says of each route that shares its traffic that it does.
pub fn groups(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(router) = ctx.router(uuid) else { return };
    let rows = ctx.rows_of(uuid, RouterColumn::StaticRoutes);
    let mut all: Vec<(Group, &Arc<Route>)> = Vec::with_capacity(rows.len());
    for r in rows {
        if let Some(Fact::Route(route)) = ctx.fact(Unit::Route(uuid, *r)) {
            all.push((route.group(), route));
        }
    }
    for port in &router.ports {
        for r in learned_rows(ctx, port) {
            if let Some(Fact::Route(route)) = ctx.fact(Unit::LearnedRoute(port.uuid, r)) {
                all.push((route.group(), route));
            }
        }
    }
    let mut members: HashMap<Group, usize> = HashMap::with_capacity(all.len());
    for (group, route) in &all {
        let alone = !route.symmetric || route.origin == Origin::ZoneConnected;
        *members.entry(*group).or_default() += if alone { 1 } else { 2 };
    }
    all.retain(|(group, _)| members.get(group).is_some_and(|n| *n > 1));
    all.sort_by_key(|(group, route)| (*group, route.row));
    let shared: Vec<_> = all.chunk_by(|a, b| a.0 == b.0).collect();
    let numbers = ctx.numbers();
    let wishes = shared.iter().filter_map(|same| {
        let (group, first) = same.first()?;
        Some((*group, numbers.group(uuid, LrInIpRouting, &first.group_matches())))
    });
    let ids = crate::sticky_ids::assign(wishes.collect());
    let mut groups = Groups::new();
    for same in shared {
        let routes: Vec<Arc<Route>> = same.iter().map(|(_, r)| (*r).clone()).collect();
        routes.iter().for_each(|r| ctx.give(Unit::RouteShares(uuid, r.row), Fact::RouteShares));
        groups.extend(same.first().and_then(|(group, _)| ids.get(group)).map(|id| (*id, routes)));
    }
    ctx.derive(Fact::RouteGroups(groups));
}

/// Makes the routes that chassis have learned at a router port exist as units: one more among thousands concerns no other.
pub fn learned_list(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(port) = ctx.lrp(uuid) else { return };
    for r in learned_rows(ctx, port) {
        ctx.spawn(Unit::LearnedRoute(uuid, r));
        ctx.spawn(Unit::LearnedFlow(uuid, r));
    }
}

/// The rows of the routes that were learned at a port, if its router takes any.
fn learned_rows(ctx: &mut Ctx<'_, '_>, port: &Lrp) -> Vec<Uuid> {
    let dynamic = |r: &Router| flag(&r.options, "dynamic-routing");
    if !port.enabled() || !ctx.router(port.router).is_some_and(dynamic) {
        return Vec::new();
    }
    ctx.read(Read::Binding(port.name.clone()));
    ctx.read(Read::LearnedRoutes(port.name.clone())).learned_routes(&port.name).collect()
}

/// Derives [`Fact::Route`] of a route that was learned at a port.
pub fn learned(ctx: &mut Ctx<'_, '_>, port: Uuid, uuid: Uuid) {
    let Some(port) = ctx.shared_lrp(port) else { return };
    let Some(row) = ctx.sb::<sb::LearnedRoute>(uuid) else { return };
    let (Some(prefix), Some((next, _))) = (parse_net(&row.ip_prefix), parse_net(&row.nexthop)) else {
        let problem = format!("learned route {} via {}: no addresses; it is left out", row.ip_prefix, row.nexthop);
        return ctx.problem(problem);
    };
    let from = port.ip_in_network_of(next).or_else(|| any_address(port, next));
    ctx.derive(Fact::Route(Arc::new(Route {
        row: uuid,
        prefix,
        side: "dst",
        table: 0,
        over_connected: false,
        origin: Origin::Learned,
        hop: Hop::Via { next: Some(next), port: port.clone(), from, v4: next.is_ipv4() },
        symmetric: false,
        fields: Set::new(),
    })));
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
        && !super::bfd::usable(ctx, bfd)
    {
        return Ok(None);
    }
    let hop = if &*row.nexthop == "discard" { Hop::Discard } else { via(ctx, router, row, prefix.0)? };
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

/// Whether a static route has a next hop that a port leads to.
pub fn leads_somewhere(ctx: &mut Ctx<'_, '_>, router: Uuid, row: &nb::LogicalRouterStaticRoute) -> bool {
    let Some(router) = ctx.router(router) else { return false };
    let prefix = parse_net(&row.ip_prefix);
    prefix.is_some_and(|(prefix, _)| via(ctx, router, row, prefix).is_ok())
}

/// The port that a route names. As in OVN, it may be another router's.
fn named_port(ctx: &mut Ctx<'_, '_>, router: &Router, name: &Str) -> Option<Arc<Lrp>> {
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
) -> Result<Hop, String> {
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
        return Ok(Hop::Via { next, port, from: Some(from), v4: from.is_ipv4() });
    }
    let next = next.ok_or("neither nexthop nor output_port is set")?;
    let (port, from) =
        port_towards(ctx, router, next).ok_or("no port of the router is in the network of the next hop")?;
    Ok(Hop::Via { next: Some(next), port: port.clone(), from: Some(from), v4: from.is_ipv4() })
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
    for r in ctx.rows_of(uuid, RouterColumn::StaticRoutes) {
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
        None => parse_net(&route.nexthop).is_some_and(|(ip, _)| router.reaches(ip)),
    }
}

/// `ip4` or `ip6`.
pub fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "ip4" } else { "ip6" }
}

/// `reg0 = NEXT; reg5 = FROM; `
pub fn registers(next: &str, from: Option<IpAddr>, v4: bool) -> String {
    let (to, own) = if v4 { (REG_NEXT_HOP_IPV4, REG_SRC_IPV4) } else { (REG_NEXT_HOP_IPV6, REG_SRC_IPV6) };
    let from = from.map_or(String::new(), |from| format!("{own} = {from}; "));
    format!("{to} = {next}; {from}")
}

/// A network with its length.
pub fn network((ip, plen): (IpAddr, u8)) -> String {
    match ip {
        IpAddr::V4(addr) => format!("{}/{plen}", crate::addresses::Net4 { addr, plen }.network()),
        IpAddr::V6(addr) => format!("{}/{plen}", Net6 { addr, plen }.network()),
    }
}

/// The priority of a connected route.
pub fn connected_priority(plen: u8) -> u16 {
    CONNECTED + u16::from(plen) * PER_BIT
}

impl Hop {
    /// The port, and whether the next hop is of IPv4.
    pub fn via(&self) -> Option<(&Lrp, bool)> {
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

    /// The priority of its flow where it is alone.
    pub fn priority(&self) -> u16 {
        let base = match self.side {
            "src" => SOURCE_ADDRESS,
            _ if self.origin == Origin::Learned => LEARNED,
            _ if self.of_zone() => CONNECTED + if self.over_connected { 2 } else { 0 },
            _ if self.over_connected => OVERRIDE,
            _ => STATIC,
        };
        base + u16::from(self.prefix.1) * PER_BIT
    }

    /// The match of its flow where it is alone.
    pub fn matches(&self) -> String {
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
    pub fn group_matches(&self) -> String {
        let matches = format!("{}.{} == {}", family(self.prefix.0), self.side, network(self.prefix));
        if self.table != 0 || !self.of_zone() {
            format!("{REG_ROUTE_TABLE_ID} == {} && {matches}", self.table)
        } else {
            matches
        }
    }

    /// The priority of a group.
    pub fn shared_priority(&self) -> u16 {
        let base = match self.side {
            "src" => SOURCE_ADDRESS,
            _ if self.origin == Origin::Learned => LEARNED,
            _ if self.of_zone() => CONNECTED,
            _ => STATIC,
        };
        base + u16::from(self.prefix.1) * PER_BIT
    }

    /// The actions of a member of a group; none where packets are dropped.
    pub fn member_actions(&self) -> Option<String> {
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
    pub fn leave(&self) -> String {
        match &self.hop {
            Hop::Discard => String::new(),
            Hop::Via { next, from, v4, .. } => {
                let next = next.map_or_else(|| format!("{}.dst", family(self.prefix.0)), |n| n.to_string());
                registers(&next, *from, *v4)
            }
        }
    }
}
