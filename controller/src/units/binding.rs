//! Where a port is: what this chassis takes for its own, and which chassis serves a port with an HA chassis group.

use crate::input::model::{Input, Local};
use crate::rows::claims::{self, Role};
use gateway_ha::Member;
use ovn_schema::sb::PortBinding;
use ovn_schema::{Str, Uuid};

/// Whether the database says that a port is bound to a chassis, alone or with others.
pub fn is_bound(p: &PortBinding, chassis: Option<Uuid>) -> bool {
    chassis.is_some_and(|me| p.chassis == Some(me) || p.additional_chassis.contains(&me))
}

/// As what this chassis has a port. That follows from the interface and from what northd asks for; the database says it later,
/// when the claim is in. Where another chassis has a port that nobody in particular is asked for, the database decides.
pub fn role(p: &PortBinding, input: &Input, local: &Local) -> Role {
    let Some(me) = local.chassis else { return Role::None };
    let gateway = |key: &str| p.options.get(key).map(|c| *c == local.chassis_name);
    let follows = match &*p.r#type {
        "" | "mirror" => {
            let wanted = claims::wanted_role(p, input, local);
            let mine = is_bound(p, Some(me)) || p.chassis.is_none() || claims::is_asked(p, input, local);
            if mine { wanted } else { Role::None }
        }
        "l3gateway" if gateway("l3gateway-chassis") == Some(true) => Role::Main,
        "l2gateway" if gateway("l2gateway-chassis") == Some(true) => Role::Main,
        "l3gateway" if gateway("l3gateway-chassis").is_some() => Role::None,
        "l2gateway" if gateway("l2gateway-chassis").is_some() => Role::None,
        _ if is_bound(p, Some(me)) => Role::Additional,
        _ => Role::None,
    };
    match follows {
        Role::None => Role::None,
        _ if p.chassis == Some(me) => Role::Main,
        _ if p.additional_chassis.contains(&me) => Role::Additional,
        other => other,
    }
}

/// Whether this chassis takes a port for its own, alone or with others.
pub fn is_here(p: &PortBinding, input: &Input, local: &Local) -> bool {
    role(p, input, local) != Role::None
}

/// Whether a port is bound to this chassis, or will be: its interface is plugged in and asked for here, or it is a gateway's.
pub fn is_or_comes_here(p: &PortBinding, input: &Input, local: &Local) -> bool {
    is_bound(p, local.chassis)
        || match &*p.r#type {
            "" => claims::wanted_role(p, input, local) != Role::None,
            "l2gateway" | "l3gateway" => is_here(p, input, local),
            _ => false,
        }
}

/// The chassis of a port's HA chassis group, and the name of the one that has claimed the port.
struct Group<'a> {
    ids: Vec<Uuid>,
    members: Vec<Member>,
    holder: Option<&'a str>,
}

fn group<'a>(port: &PortBinding, input: &'a Input) -> Option<Group<'a>> {
    let g = input.sb.ha_chassis_group.get(&port.ha_chassis_group?)?;
    let member = |h: &Uuid| {
        let h = input.sb.ha_chassis.get(h)?;
        let (id, c) = h.chassis.and_then(|c| input.sb.chassis.get_key_value(&c))?;
        Some((*id, Member { name: c.name.clone(), priority: h.priority }))
    };
    let (ids, members) = g.ha_chassis.iter().filter_map(member).unzip();
    let holder = port.chassis.and_then(|c| input.sb.chassis.get(&c)).map(|c| &*c.name);
    Some(Group { ids, members, holder })
}

impl Group<'_> {
    fn id(&self, member: &Member) -> Option<Uuid> {
        self.members.iter().position(|m| m == member).and_then(|i| self.ids.get(i).copied())
    }
}

/// The active chassis of a port with an HA chassis group, as this chassis sees it.
pub fn active(port: &PortBinding, input: &Input, local: &Local) -> Option<Uuid> {
    let g = group(port, input)?;
    let active = local.gateways.active(&local.chassis_name, &g.members, g.holder)?;
    g.id(active)
}

/// Whether this chassis may claim the port now, if it is the active one.
pub fn may_claim(port: &PortBinding, input: &Input, local: &Local) -> bool {
    group(port, input).is_some_and(|g| local.gateways.may_claim(&local.chassis_name, &g.members, g.holder))
}

/// The chassis of a port's group in the order in which others send to them.
pub fn order(port: &PortBinding, input: &Input, local: &Local) -> Vec<(Uuid, Str)> {
    let Some(g) = group(port, input) else { return Vec::new() };
    let mut members = g.members.clone();
    // An old claim must not hold traffic at a gateway that another has relieved since.
    local.gateways.order(&mut members, g.holder.filter(|_| local.southbound));
    members.iter().filter_map(|m| Some((g.id(m)?, m.name.clone()))).collect()
}

/// The other chassis that has claimed a gateway port, if it changes gateways in order ([`claims::ORDERLY`]): it has its flows,
/// and until it sees another one's claim it serves the port.
fn orderly_holder<'a>(port: &PortBinding, input: &'a Input, local: &Local) -> Option<(Uuid, &'a Str)> {
    let holder = port.chassis.filter(|c| Some(*c) != local.chassis)?;
    let c = input.sb.chassis.get(&holder).filter(|c| claims::is_orderly(c))?;
    Some((holder, &c.name))
}

/// The chassis to which packets for a gateway port go on from this one, which was relieved of it a moment ago.
pub fn successor(port: &PortBinding, input: &Input, local: &Local) -> Option<Uuid> {
    let (id, holder) = orderly_holder(port, input, local)?;
    let g = group(port, input)?;
    local.gateways.passes_on(&local.chassis_name, &port.logical_port, &g.members, holder).then_some(id)
}

/// Whether this chassis speaks for a gateway port on the provider network: it serves the port, and nobody else sends there.
pub fn speaks(port: &PortBinding, input: &Input, local: &Local) -> bool {
    let serves = local.chassis.is_some() && active(port, input, local) == local.chassis;
    let other = || orderly_holder(port, input, local).is_some_and(|(_, name)| local.gateways.alive.contains(name));
    serves && !local.gateways.hushed.contains(&port.logical_port) && !other()
}
