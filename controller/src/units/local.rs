//! Which logical datapaths have something on this chassis: those that a port anchors there, and what patch ports reach from them.

use crate::input::model::{Input, Local};
use crate::units::binding::{self, is_bound};
use ovn_schema::sb;
use ovn_schema::sb::PortBinding;

/// Whether a port by itself makes its datapath local: it is bound here, or this chassis may have to serve it.
pub fn is_anchor(p: &PortBinding, input: &Input, local: &Local) -> bool {
    let here = is_bound(p, local.chassis);
    match &*p.r#type {
        "" => binding::is_or_comes_here(p, input, local),
        // Copies come here from the other chassis of its switch, though the machine that takes them is of another switch.
        "mirror" => binding::is_here(p, input, local),
        "virtual" => here,
        "l2gateway" | "l3gateway" => binding::is_here(p, input, local),
        "vtep" => here,
        "chassisredirect" | "external" => may_serve(p, input, local),
        _ => false,
    }
}

/// Whether what is beyond a patch port is for this chassis. The router behind a distributed gateway port is, seen from its
/// external switch, for the gateways alone; seen from the router, the switch is, unless the port redirects everything. A
/// gateway router leads to what its own chassis has, not to a gateway router of another.
pub fn leads_on(p: &PortBinding, peer: &PortBinding, input: &Input, local: &Local) -> bool {
    if [p, peer].iter().all(|end| &*end.r#type == "l3gateway") && !binding::is_here(peer, input, local) {
        return false;
    }
    let redirect = |end: &PortBinding| end.options.get("chassis-redirect-port").and_then(|n| input.port(n));
    let serves = |r: &PortBinding| may_serve(r, input, local);
    let always = |r: &PortBinding| ovn_schema::options::flag(&r.options, "always-redirect");
    if redirect(p).is_some_and(|(_, r)| always(r) && !serves(r)) {
        return false;
    }
    redirect(peer).is_none_or(|(_, r)| serves(r))
}

/// Whether a port is bound to this chassis, or its HA chassis group has this chassis.
pub fn may_serve(p: &PortBinding, input: &Input, local: &Local) -> bool {
    is_bound(p, local.chassis) || is_member(p, input, local)
}

fn is_member(p: &PortBinding, input: &Input, local: &Local) -> bool {
    let Some(group) = p.ha_chassis_group.and_then(|g| input.sb.ha_chassis_group.get(&g)) else { return false };
    let members = group.ha_chassis.iter().filter_map(|h| input.sb.ha_chassis.get(h));
    members.into_iter().any(|h: &std::sync::Arc<sb::HaChassis>| h.chassis.is_some() && h.chassis == local.chassis)
}
