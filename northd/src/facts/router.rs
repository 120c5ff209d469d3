//! Logical routers with their ports.

use super::Fact;
use super::lrp::{Lrp, leads_outside};
use crate::context::{Ctx, flag};
use crate::model::{RouterColumn, Unit};
use ovn_schema::{Map, Str, Uuid, nb};
use std::net::IpAddr;
use std::sync::Arc;

/// A router with its ports.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// UUID of the northbound row.
    pub uuid: Uuid,
    /// The router's name.
    pub name: Str,
    /// `Logical_Router:options`.
    pub options: Map<Str, Str>,
    /// The chassis of a gateway router.
    pub chassis: Option<Str>,
    /// The ports, in the order of their UUIDs.
    pub ports: Vec<Arc<Lrp>>,
    /// The control plane protection in force.
    pub copp: Map<Str, Str>,
    /// Whether a distributed router keeps DNAT and SNAT in one conntrack zone (`NB_Global.options:use_common_zone`).
    pub common_zone: bool,
    /// Addresses that load-balanced traffic is forced to come from.
    pub lb_force_snat: ForceSnat,
    /// Addresses that DNATed traffic is forced to come from.
    pub dnat_force_snat: ForceSnat,
}

/// The source that `lb_force_snat_ip` or `dnat_force_snat_ip` forces on translated traffic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForceSnat {
    /// The address of the port that the packet leaves by.
    pub router_ip: bool,
    /// Fixed addresses.
    pub ips: Vec<IpAddr>,
}

impl ForceSnat {
    /// Whether the source is forced at all.
    pub fn any(&self) -> bool {
        self.router_ip || !self.ips.is_empty()
    }

    fn parse(options: &Map<Str, Str>, key: &str) -> ForceSnat {
        let Some(text) = options.get(key) else { return ForceSnat::default() };
        if &**text == "router_ip" && key.starts_with("lb_") && options.get("chassis").is_some() {
            return ForceSnat { router_ip: true, ips: Vec::new() };
        }
        let all: Vec<IpAddr> = text.split_whitespace().map_while(|w| w.parse().ok()).collect();
        let first = |v4: bool| all.iter().find(|ip| ip.is_ipv4() == v4).copied();
        ForceSnat { router_ip: false, ips: first(true).into_iter().chain(first(false)).collect() }
    }
}

impl Router {
    /// Whether it is bound to one chassis.
    pub fn is_gateway(&self) -> bool {
        self.chassis.is_some()
    }

    /// The distributed gateway ports.
    pub fn gateway_ports(&self) -> impl Iterator<Item = &Arc<Lrp>> {
        let distributed = self.chassis.is_none();
        self.ports.iter().filter(move |p| distributed && p.gateway)
    }

    /// The distributed gateway port, where there is one and no other.
    pub fn only_gateway_port(&self) -> Option<&Arc<Lrp>> {
        let mut all = self.gateway_ports();
        let first = all.next()?;
        all.next().is_none().then_some(first)
    }

    /// The distributed gateway port on whose chassis alone a port's address is: itself, or the only one where the port asks for
    /// it (`reside-on-redirect-chassis`).
    pub fn resides_at<'r>(&'r self, lrp: &'r Lrp) -> Option<&'r Lrp> {
        if self.is_gateway_port(lrp) {
            return Some(lrp);
        }
        self.only_gateway_port().filter(|_| flag(&lrp.row.options, "reside-on-redirect-chassis")).map(|p| &**p)
    }

    /// Whether a port is a distributed gateway port.
    pub fn is_gateway_port(&self, lrp: &Lrp) -> bool {
        self.chassis.is_none() && lrp.gateway
    }

    /// Whether it relays multicast.
    pub fn mcast_relay(&self) -> bool {
        flag(&self.options, "mcast_relay")
    }

    /// A port by name.
    pub fn port(&self, name: &str) -> Option<&Arc<Lrp>> {
        self.ports.iter().find(|p| &*p.name == name)
    }

    /// Whether an address is in the network of a port.
    pub fn reaches(&self, ip: IpAddr) -> bool {
        self.ports.iter().any(|p| p.ip_in_network_of(ip).is_some())
    }
}

/// The port in whose network an address is, with the port's address there. Of several, as for a link-local address, the first
/// by name of those at a physical network, where strangers are, else of all: the same wherever the same content is.
pub fn port_towards<'r>(ctx: &mut Ctx<'_, '_>, router: &'r Router, ip: IpAddr) -> Option<(&'r Arc<Lrp>, IpAddr)> {
    let mut ports: Vec<_> = router.ports.iter().filter_map(|p| Some((p, p.ip_in_network_of(ip)?))).collect();
    if ports.len() > 1 {
        ports.sort_by_cached_key(|(p, _)| (!leads_outside(ctx, p), p.name.clone()));
    }
    ports.into_iter().next()
}

/// Gives the rows that a router names, column by column: a route more is no reason to look at NAT rules.
pub fn rows(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalRouter>(uuid) else { return };
    for (column, rows) in [
        (RouterColumn::StaticRoutes, &row.static_routes),
        (RouterColumn::Policies, &row.policies),
        (RouterColumn::Nat, &row.nat),
        (RouterColumn::LoadBalancer, &row.load_balancer),
        (RouterColumn::LoadBalancerGroup, &row.load_balancer_group),
    ] {
        if !rows.is_empty() {
            ctx.give(Unit::RowsOf(uuid, column), Fact::Rows(Box::new(rows.clone())));
        }
    }
}

/// Derives [`Fact::Router`].
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LogicalRouter>(uuid) else { return };
    if row.enabled == Some(false) {
        return;
    }
    let chassis = row.options.get("chassis").filter(|c| !c.is_empty()).cloned();
    let mut ports = Vec::new();
    for p in &row.ports {
        let Some(lrp) = ctx.shared_lrp(*p).filter(|l| l.router == uuid) else { continue };
        if chassis.is_some() && lrp.gateway {
            ctx.problem(format!(
                "logical router {}: it is bound to a chassis, so the gateway chassis of port {} do not count; remove them",
                row.name, lrp.name
            ));
        }
        ports.push(lrp.clone());
    }
    let copp = row.copp.and_then(|c| ctx.nb::<nb::Copp>(c)).map(|c| c.meters.clone()).unwrap_or_default();
    let common_zone = chassis.is_none() && flag(&ctx.global().options, "use_common_zone");
    let router = Router {
        uuid,
        name: row.name.clone(),
        lb_force_snat: ForceSnat::parse(&row.options, "lb_force_snat_ip"),
        dnat_force_snat: ForceSnat::parse(&row.options, "dnat_force_snat_ip"),
        options: row.options.clone(),
        common_zone,
        chassis,
        ports,
        copp,
    };
    if let Some(only) = router.only_gateway_port() {
        ctx.give(Unit::OnlyGateway(uuid), Fact::OnlyGateway(only.uuid));
    }
    ctx.derive(Fact::Router(Box::new(router)));
}
