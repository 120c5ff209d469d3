//! Load balancers.

use super::Fact;
use crate::addresses::parse_endpoint;
use crate::context::Ctx;
use ovn_schema::{Str, Uuid, nb};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// A load balancer, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Lb {
    /// The row's name.
    pub uuid: Uuid,
    /// `protocol`, `tcp` where none is set.
    pub protocol: Str,
    /// The virtual addresses.
    pub vips: Vec<Vip>,
    /// The row.
    pub row: Arc<nb::LoadBalancer>,
}

/// A virtual address.
#[derive(Clone, Debug, PartialEq)]
pub struct Vip {
    /// As it is written.
    pub text: Str,
    /// The address.
    pub ip: IpAddr,
    /// The port, 0 for all.
    pub port: u16,
    /// Where it leads, as it is written.
    pub backends_text: Str,
    /// Where it leads.
    pub backends: Vec<(IpAddr, u16)>,
    /// Its health check.
    pub health_check: Option<Uuid>,
}

/// Which datapaths a load balancer is in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Use {
    /// Switches.
    pub switches: BTreeSet<Uuid>,
    /// Routers.
    pub routers: BTreeSet<Uuid>,
}

/// Derives [`Fact::Lb`].
pub fn run(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let Some(row) = ctx.nb::<nb::LoadBalancer>(uuid) else { return };
    let mut checks: BTreeMap<Str, Uuid> = BTreeMap::new();
    for h in &row.health_check {
        if let Some(check) = ctx.nb::<nb::LoadBalancerHealthCheck>(*h) {
            checks.insert(check.vip.clone(), *h);
        }
    }
    let mut vips = Vec::new();
    for (text, backends_text) in &row.vips {
        let Some((ip, port)) = parse_endpoint(text) else {
            if !crate::context::flag(&row.options, "template") {
                ctx.problem(format!("load balancer {}: \"{text}\" in vips is no ADDRESS or ADDRESS:PORT", row.name));
            }
            continue;
        };
        let mut backends = Vec::new();
        for b in backends_text.split(',').map(str::trim).filter(|b| !b.is_empty()) {
            match parse_endpoint(b).filter(|(b, _)| b.is_ipv4() == ip.is_ipv4()) {
                Some(b) => backends.push(b),
                None => ctx.problem(format!(
                    "load balancer {}: \"{b}\" behind {text} is no address of its family; it is left out",
                    row.name
                )),
            }
        }
        vips.push(Vip {
            text: text.clone(),
            ip,
            port,
            backends_text: backends_text.clone(),
            backends,
            health_check: checks.get(text).copied(),
        });
    }
    let protocol = row.protocol.clone().unwrap_or_else(|| "tcp".into());
    ctx.derive(Fact::Lb(Box::new(Lb { uuid, protocol, vips, row: row.clone() })));
}

/// Derives [`Fact::Lbs`] of a switch or router.
pub fn of_datapath(ctx: &mut Ctx<'_, '_>, uuid: Uuid) {
    let (lbs, groups) = if let Some(row) = ctx.nb::<nb::LogicalSwitch>(uuid) {
        (&row.load_balancer, &row.load_balancer_group)
    } else if let Some(row) = ctx.nb::<nb::LogicalRouter>(uuid) {
        (&row.load_balancer, &row.load_balancer_group)
    } else {
        return;
    };
    let mut all: BTreeSet<Uuid> = lbs.clone();
    for g in groups {
        if let Some(group) = ctx.nb::<nb::LoadBalancerGroup>(*g) {
            all.extend(&group.load_balancer);
        }
    }
    all.retain(|l| ctx.lb(*l).is_some());
    ctx.derive(Fact::Lbs(all.into_iter().collect()));
}

/// Derives [`Fact::LbUse`].
pub fn in_use(ctx: &mut Ctx<'_, '_>) {
    let mut all: BTreeMap<Uuid, Use> = BTreeMap::new();
    for u in ctx.nb_table::<nb::LogicalSwitch>() {
        for lb in ctx.lbs(u).into_iter().flatten() {
            all.entry(*lb).or_default().switches.insert(u);
        }
    }
    for u in ctx.nb_table::<nb::LogicalRouter>() {
        if ctx.router(u).is_none() {
            continue;
        }
        for lb in ctx.lbs(u).into_iter().flatten() {
            all.entry(*lb).or_default().routers.insert(u);
        }
    }
    ctx.derive(Fact::LbUse(all));
}
