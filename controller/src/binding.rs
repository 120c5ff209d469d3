//! Which chassis serves a port with an HA chassis group.

use crate::model::{Input, Local};
use gateway_ha::Member;
use ovn_schema::sb::PortBinding;
use ovn_schema::{Str, Uuid};

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
