//! Routes that are learned from other zones.

use super::super::{Fact, Unit, V, warn};
use super::{Attached, Attachment, Reason, attached_router};
use crate::address::{is_link_local, is_link_local_hop, network};
use crate::model::Read;
use crate::output::{Key, StaticRoute, Value};
use ipnetwork::IpNetwork;
use ovn_schema::{Uuid, ic_sb, options::flag};
use std::net::IpAddr;

/// Puts out what the routers of this zone learn of a route that a zone tells.
pub fn learn(id: Uuid, v: &mut V<'_>) {
    let Some(route) = v.read(Read::IcRoute(id)).icsb.db.route.get(&id) else { return };
    let Some(Fact::Routers(routers)) = v.fact(&Unit::RoutersOn(route.transit_switch.clone())) else { return };
    for router in routers {
        let Some(a) = attached_router(*router, v) else { continue };
        for at in a.ports.iter().filter(|at| at.switch == route.transit_switch) {
            match decide(a, at, route, v) {
                Ok(value) => {
                    v.emit(Key::StaticRoute(*router, id), Value::StaticRoute(Box::new(value)));
                    break;
                }
                Err(Reason::BadFormat) => {
                    let (prefix, nexthop) = (&route.ip_prefix, &route.nexthop);
                    warn(v, format!("Bad route format in IC-SB: {prefix} -> {nexthop}. Ignored."));
                }
                Err(_) => {}
            }
        }
    }
}

/// The one place that says whether a router learns a route by one of its ports.
pub fn decide(a: &Attached, at: &Attachment, route: &ic_sb::Route, v: &mut V<'_>) -> Result<StaticRoute, Reason> {
    if !a.settings.learn {
        return Err(Reason::Off("ic-route-learn"));
    }
    if !a.enabled {
        return Err(Reason::Disabled);
    }
    if !at.bound {
        return Err(Reason::NoAddresses);
    }
    match route.external_ids.get("lr-id").map(|lr| lr.parse::<Uuid>()) {
        Some(Ok(lr)) if lr != a.router => {}
        Some(_) => return Err(Reason::OwnRoute),
        None if route.availability_zone == a.zone => return Err(Reason::OwnZone),
        None => {}
    }
    if let Some(tag) = route.external_ids.get("ic-route-tag").filter(|t| **t == at.filter_tag) {
        return Err(Reason::Tag(tag.clone()));
    }
    if !route.route_table.is_empty() && route.route_table != at.table {
        return Err(Reason::OtherTable(route.route_table.clone(), at.table.clone()));
    }
    let (Some(net), Ok(nexthop)) = (network(&route.ip_prefix), route.nexthop.parse::<IpAddr>()) else {
        return Err(Reason::BadFormat);
    };
    if is_link_local_hop(nexthop) {
        return Err(Reason::LinkLocalNexthop);
    }
    if net.prefix() == 0 && !a.settings.learn_default {
        return Err(Reason::Off("ic-route-learn-default"));
    }
    if &*route.origin == "loadbalancer" && !a.settings.learn_lb {
        return Err(Reason::Off("ic-route-learn-lb"));
    }
    if is_link_local(&net) {
        return Err(Reason::LinkLocalPrefix);
    }
    if let Some(against) = at.learn.against(&net) {
        return Err(Reason::filtered(against, true));
    }
    if !at.own.as_ref().is_some_and(|own| own.reaches(nexthop)) {
        return Err(Reason::NotReached);
    }
    let input = v.read(Read::RoutesTo(route.ip_prefix.clone()));
    if input.nb.has_own_route(a.router, &route.route_table, &route.ip_prefix) {
        return Err(Reason::HasStatic);
    }
    if a.datapath.is_some_and(|dp| input.sb.has_learned(dp, &route.ip_prefix)) {
        return Err(Reason::HasDynamic);
    }
    if let Some(Fact::Vips(vips)) = v.fact(&Unit::Balancers(a.router))
        && any_in(vips, &net)
    {
        return Err(Reason::HasVip);
    }
    Ok(StaticRoute {
        prefix: route.ip_prefix.clone(),
        nexthop: route.nexthop.clone(),
        table: route.route_table.clone(),
        origin: route.origin.clone(),
        override_connected: flag(&route.options, "override-connected"),
    })
}

/// Whether one of these sorted addresses is in a network: the first that is not below it would be.
fn any_in(sorted: &[IpAddr], net: &IpNetwork) -> bool {
    let first = net.network();
    sorted.get(sorted.partition_point(|ip| *ip < first)).is_some_and(|ip| net.contains(*ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_networks_of_their_family() {
        let ips: Vec<IpAddr> = ["10.0.0.1", "10.0.2.1", "fd00::1"].iter().map(|t| t.parse().unwrap()).collect();
        let any = |net: &str| any_in(&ips, &net.parse().unwrap());
        assert!(any("10.0.0.0/24") && any("10.0.2.1/32") && any("0.0.0.0/0") && any("10.0.0.7/24"));
        assert!(any("fd00::/64") && any("::/0"));
        assert!(!any("10.0.1.0/24") && !any("10.0.3.0/24") && !any("fd00::2/128") && !any("9.0.0.0/8"));
    }
}
