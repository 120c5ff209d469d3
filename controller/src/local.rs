//! Which logical datapaths have something on this chassis.

use crate::model::{Input, Local};
use ovn_schema::sb::PortBinding;
use ovn_schema::{Uuid, sb};
use std::collections::BTreeSet;

/// Whether a port by itself makes its datapath local: it is bound here, or this chassis may have to serve it.
pub fn is_anchor(p: &PortBinding, input: &Input, local: &Local) -> bool {
    let here = is_here(p, local.chassis);
    match &*p.r#type {
        "" | "virtual" => here || may_claim(p, local),
        "l2gateway" | "l3gateway" | "vtep" => here,
        "chassisredirect" | "external" => here || is_member(p, input, local),
        _ => false,
    }
}

/// Whether a port is bound to a chassis, alone or with others.
pub fn is_here(p: &PortBinding, chassis: Option<Uuid>) -> bool {
    chassis.is_some_and(|me| p.chassis == Some(me) || p.additional_chassis.contains(&me))
}

/// Whether what is beyond a patch port is for this chassis: not where a gateway port in between redirects everything to
/// another chassis.
fn leads_on(p: &PortBinding, peer: &PortBinding, input: &Input, local: &Local) -> bool {
    [p, peer].into_iter().all(|end| {
        let Some((_, redirect)) = end.options.get("chassis-redirect-port").and_then(|n| input.port(n)) else {
            return true;
        };
        redirect.options.get("always-redirect").is_none_or(|v| &**v != "true")
            || is_here(redirect, local.chassis)
            || is_member(redirect, input, local)
    })
}

/// Whether an interface for this port is plugged in here.
fn may_claim(p: &PortBinding, local: &Local) -> bool {
    let name = p.parent_port.as_ref().filter(|n| !n.is_empty()).unwrap_or(&p.logical_port);
    p.chassis.is_none() && local.vifs.contains_key(name)
}

fn is_member(p: &PortBinding, input: &Input, local: &Local) -> bool {
    let Some(group) = p.ha_chassis_group.and_then(|g| input.sb.ha_chassis_group.get(&g)) else { return false };
    let members = group.ha_chassis.iter().filter_map(|h| input.sb.ha_chassis.get(h));
    members.into_iter().any(|h: &std::sync::Arc<sb::HaChassis>| h.chassis.is_some() && h.chassis == local.chassis)
}

/// The local datapaths: those with an anchor, and what patch ports reach from them.
pub fn datapaths(input: &Input, local: &Local) -> BTreeSet<Uuid> {
    let mut out = BTreeSet::new();
    let mut queue: Vec<Uuid> = Vec::new();
    for p in input.sb.port_binding.values() {
        if is_anchor(p, input, local) && out.insert(p.datapath) {
            queue.push(p.datapath);
        }
    }
    while let Some(dp) = queue.pop() {
        for (_, p) in input.ports_of(dp) {
            let crosses = match &*p.r#type {
                "patch" => true,
                "l3gateway" => p.chassis.is_some() && p.chassis == local.chassis,
                _ => false,
            };
            if crosses
                && let Some(peer) = p.options.get("peer")
                && let Some((_, peer)) = input.port(peer)
                && leads_on(p, peer, input, local)
                && out.insert(peer.datapath)
            {
                queue.push(peer.datapath);
            }
        }
    }
    out
}
