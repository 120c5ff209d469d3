//! Which logical datapaths have something on this chassis.

use crate::model::{Input, Local};
use ovn_schema::sb::PortBinding;
use ovn_schema::{Uuid, sb};
use std::collections::BTreeSet;

/// Whether a port by itself makes its datapath local: it is bound here, or this chassis may have to serve it.
pub fn is_anchor(p: &PortBinding, input: &Input, local: &Local) -> bool {
    let here = p.chassis.is_some() && p.chassis == local.chassis;
    match &*p.r#type {
        "" | "virtual" => here || may_claim(p, local),
        "l2gateway" | "l3gateway" | "vtep" => here,
        "localport" => local.vifs.contains_key(&p.logical_port),
        "chassisredirect" | "external" => here || is_member(p, input, local),
        _ => false,
    }
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
                && out.insert(peer.datapath)
            {
                queue.push(peer.datapath);
            }
        }
    }
    out
}
