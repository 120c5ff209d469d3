//! All routes that a zone could tell or learn, with what came of each: by the code that decides, run once more.

use super::super::{Fact, Unit, V};
use super::advertise::{self, Ad};
use super::{Attached, Reason, attached_router, learn};
use crate::model::Input;
use crate::output::{Key, Value};
use ovn_schema::Str;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Which way a route goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To other zones.
    Told,
    /// From another zone, or from another router of this one.
    Learned,
}

/// A route that may be told or learned.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The logical router.
    pub router: Str,
    /// The transit switch.
    pub switch: Str,
    /// Which way it goes.
    pub direction: Direction,
    /// The prefix, as the row has it that the route is of.
    pub prefix: Str,
    /// What it is of, or from which zone.
    pub of: Str,
    /// The row that is wanted for it, or why there is none.
    pub outcome: Result<(Key, Value), Reason>,
}

/// The routes of all logical routers on transit switches; and routers none of whose ports there is bound.
pub fn show(v: &mut V<'_>) -> (Vec<Shown>, Vec<Str>) {
    // Nothing is recorded: no unit runs.
    let input = v.history();
    let mut routers = BTreeSet::new();
    for switch in input.icnb.db.transit_switch.values() {
        if let Some(Fact::Routers(on)) = v.fact(&Unit::RoutersOn(switch.name.clone())) {
            routers.extend(on.iter().copied());
        }
    }
    let (mut routes, mut unbound) = (Vec::new(), Vec::new());
    for router in routers {
        match attached_router(router, v) {
            Some(a) => {
                told(a, input, v, &mut routes);
                learned(a, input, v, &mut routes);
            }
            None => unbound.extend(input.nb.db.logical_router.get(&router).map(|r| r.name.clone())),
        }
    }
    unbound.sort();
    routes.sort_by(|a, b| {
        let place = |s: &Shown| (s.router.clone(), s.switch.clone(), s.direction, s.prefix.clone(), s.of.clone());
        place(a).cmp(&place(b))
    });
    (routes, unbound)
}

fn told(a: &Attached, input: &Input, v: &mut V<'_>, out: &mut Vec<Shown>) {
    let nb = &input.nb;
    let Some(router) = nb.db.logical_router.get(&a.router) else { return };
    let mut sink = |of: &str, ad: Ad<'_>| {
        out.push(Shown {
            router: a.name.clone(),
            switch: ad.at.switch.clone(),
            direction: Direction::Told,
            prefix: ad.prefix.into(),
            of: of.into(),
            outcome: ad.outcome.map(|(id, route)| (Key::Route(Arc::new(id)), Value::Route(Box::new(route)))),
        });
    };
    for id in &router.static_routes {
        if let Some((_, route)) = nb.own_route(*id) {
            advertise::static_ads(a, *id, route, &mut |ad| sink("static route", ad));
        }
    }
    advertise::networks(a, nb, router, &mut |ad| sink("network of a router port", ad));
    for (id, lb) in advertise::balancers_of(a.router, v) {
        advertise::balancer_ads(a, id, lb, &mut |ad| sink("load balancer", ad));
    }
    for id in a.datapath.into_iter().flat_map(|dp| input.sb.learned_by(dp)) {
        if let Some((_, route)) = input.learned_route(id) {
            advertise::dynamic_ads(a, &route.ip_prefix, &mut |ad| sink("learned from a neighbour", ad));
        }
    }
}

fn learned(a: &Attached, input: &Input, v: &mut V<'_>, out: &mut Vec<Shown>) {
    let zones = &input.icsb.db.availability_zone;
    for (id, route) in &input.icsb.db.route {
        for at in a.ports.iter().filter(|at| at.switch == route.transit_switch) {
            let outcome = learn::decide(a, at, route, v);
            // What a router tells it does not learn; that goes without saying.
            if matches!(outcome, Err(Reason::OwnRoute)) {
                continue;
            }
            let zone = zones.get(&route.availability_zone).map(|z| z.name.clone()).unwrap_or_default();
            out.push(Shown {
                router: a.name.clone(),
                switch: at.switch.clone(),
                direction: Direction::Learned,
                prefix: route.ip_prefix.clone(),
                of: format!("{} of zone {zone}, by {}", route.origin, route.nexthop).into(),
                outcome: outcome.map(|r| (Key::StaticRoute(a.router, *id), Value::StaticRoute(Box::new(r)))),
            });
        }
    }
}
