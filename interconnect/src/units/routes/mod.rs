//! Routes between zones (ovn-nb(5), `ic-route-*`): what logical routers on transit switches tell others, and what they
//! learn. Each route is a unit of its own, so that a change of one costs the same however many there are.
//!
//! ```text
//!   Attached(router) ──────────┬─► Static(route)          a static route      ► Route
//!     where it is, by which    ├─► Dynamic(route)         learned by BGP, …   ► Route
//!     rules; networks ► Route  ├─► Balancer(router, lb)   a load balancer     ► Route
//!   RoutersOn(switch) ─────────┤
//!   Balancers(router) ─────────┴─► Learn(route)           of another zone     ► StaticRoute
//! ```

mod advertise;
mod filter;
mod learn;
mod reason;
mod show;

pub use advertise::{balancer, balancers, dynamic, static_route};
pub use filter::{Filter, Rule};
pub use learn::learn;
pub use reason::Reason;
pub use show::{Direction, Shown, show};

use super::{Fact, Unit, V, Zone, info, zone_of};
use crate::address::{Addresses, option};
use crate::model::{Northbound, Read, TSP};
use ovn_schema::{Str, Uuid, nb, options::flag};

/// A logical router on transit switches, with all that decides about its routes.
#[derive(Clone, Debug, PartialEq)]
pub struct Attached {
    /// Its row.
    pub router: Uuid,
    /// Its name.
    pub name: Str,
    /// It routes.
    pub enabled: bool,
    /// Its southbound datapath.
    pub datapath: Option<Uuid>,
    /// The zone's row.
    pub zone: Uuid,
    /// The zone's settings.
    pub settings: Settings,
    /// Its ports on transit switches.
    pub ports: Vec<Attachment>,
}

/// The zone's settings about routes, all of them off by default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// `ic-route-adv`.
    pub adv: bool,
    /// `ic-route-adv-default`.
    pub adv_default: bool,
    /// `ic-route-adv-lb`.
    pub adv_lb: bool,
    /// `ic-route-learn`.
    pub learn: bool,
    /// `ic-route-learn-default`.
    pub learn_default: bool,
    /// `ic-route-learn-lb`.
    pub learn_lb: bool,
}

impl Settings {
    fn of(zone: &Zone) -> Settings {
        Settings {
            adv: zone.flag("ic-route-adv"),
            adv_default: zone.flag("ic-route-adv-default"),
            adv_lb: zone.flag("ic-route-adv-lb"),
            learn: zone.flag("ic-route-learn"),
            learn_default: zone.flag("ic-route-learn-default"),
            learn_lb: zone.flag("ic-route-learn-lb"),
        }
    }
}

/// A router's port on a transit switch.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    /// The transit switch.
    pub switch: Str,
    /// The router's port.
    pub port: Str,
    /// It has addresses as northd has them, be they valid or not.
    pub bound: bool,
    /// These addresses, where they are valid.
    pub addresses: Option<Addresses>,
    /// The addresses that the router's port is configured with, where they are valid.
    pub own: Option<Addresses>,
    /// The route table for which traffic goes by this port; empty is the main one.
    pub table: Str,
    /// The tag of routes that are told here; may be empty.
    pub tag: Str,
    /// Routes with this tag are not learned here.
    pub filter_tag: Str,
    /// IPv4 prefixes are told with an IPv6 next hop.
    pub v4_over_v6: bool,
    /// What is told.
    pub adv: Filter,
    /// What is learned.
    pub learn: Filter,
}

/// Derives where a logical router is, and puts out the networks of its ports.
pub fn attached(id: Uuid, v: &mut V<'_>) {
    let Some(zone) = zone_of(v) else { return };
    let nb = &v.read(Read::Router(id)).nb;
    let Some(router) = nb.db.logical_router.get(&id) else { return };
    let attached = Attached {
        router: id,
        name: router.name.clone(),
        enabled: router.enabled != Some(false),
        datapath: v.read(Read::DatapathOf(id)).sb.datapath_of(id),
        zone: zone.row,
        settings: Settings::of(zone),
        ports: attachments(zone, nb, router, v),
    };
    advertise::networks(&attached, nb, router, &mut |ad| advertise::emit(ad, v));
    v.spawn(Unit::Balancers(id));
    v.derive(Fact::Attached(Box::new(attached)));
}

/// The router's ports on transit switches that there are; those of `Transit_Switch_Port` rows take no part, as with
/// ovn-ic.
fn attachments(zone: &Zone, nb: &Northbound, router: &nb::LogicalRouter, v: &mut V<'_>) -> Vec<Attachment> {
    let mut out = Vec::new();
    for lrp in router.ports.iter().filter_map(|id| nb.db.logical_router_port.get(id)) {
        let nb = &v.read(Read::PortsTo(lrp.name.clone())).nb;
        for (switch, lsp) in nb.transit_ports_to(&lrp.name) {
            let known = v.read(Read::TransitSwitchNamed(switch.clone())).icnb.switch_named(switch).is_some();
            if !known || !takes_part(lsp) {
                continue;
            }
            let binding = v.read(Read::PortBinding(lrp.name.clone())).sb.port(&lrp.name);
            let address = binding.and_then(|(_, p)| p.mac.first().cloned()).unwrap_or_default();
            let addresses = Addresses::parse(&address);
            if addresses.is_none() {
                let text = format!(
                    "Route sync ignores port {} on ts {switch} for router {} because the addresses are invalid.",
                    lsp.name, router.name
                );
                info(v, text);
            }
            let v4_over_v6 = "ic-route-ipv4-next-hop-ipv6";
            out.push(Attachment {
                switch: switch.clone(),
                port: lrp.name.clone(),
                bound: !address.is_empty(),
                addresses,
                own: Addresses::of_router_port(&lrp.mac, lrp.networks.iter().map(|n| &**n)),
                table: option(&lrp.options, "route_table"),
                tag: option(&lrp.options, "ic-route-tag"),
                filter_tag: option(&lrp.options, "ic-route-filter-tag"),
                v4_over_v6: ovn_schema::options::bool(&lrp.options, v4_over_v6, flag(&router.options, v4_over_v6)),
                adv: Filter::of("adv", zone, &lrp.options, &router.options, v),
                learn: Filter::of("learn", zone, &lrp.options, &router.options, v),
            });
        }
    }
    out
}

/// Whether routes are exchanged by a port of a transit switch.
fn takes_part(lsp: &nb::LogicalSwitchPort) -> bool {
    &*lsp.r#type == "router" && !lsp.options.contains_key(TSP)
}

/// Derives which logical routers have ports on a transit switch.
pub fn routers_on(switch: &Str, v: &mut V<'_>) {
    let nb = &v.read(Read::SwitchOf(switch.clone())).nb;
    let Some((_, ls)) = nb.switch_of_transit(switch) else { return };
    let ports = ls.ports.iter().filter_map(|p| nb.db.logical_switch_port.get(p)).filter(|p| takes_part(p));
    let mut routers = Vec::new();
    for name in ports.filter_map(|p| p.options.get("router-port")) {
        let nb = &v.read(Read::RouterPortNamed(name.clone())).nb;
        routers.extend(nb.router_port(name).and_then(|(port, _)| nb.router_of_port(port)));
    }
    routers.sort_unstable();
    routers.dedup();
    v.derive(Fact::Routers(routers));
}

/// Where a logical router is; none while none of its ports is bound on a transit switch.
fn attached_router<'a>(id: Uuid, v: &mut V<'a>) -> Option<&'a Attached> {
    match v.fact(&Unit::Attached(id)) {
        Some(Fact::Attached(a)) => Some(a),
        _ => None,
    }
}
