//! Which chassis serves a port with an HA chassis group.

use crate::model::{Input, Local};
use gateway_ha::Member;
use ovn_schema::Uuid;
use ovn_schema::sb::PortBinding;

/// The active chassis of a port with an HA chassis group, as this chassis sees it.
pub fn active(port: &PortBinding, input: &Input, local: &Local) -> Option<Uuid> {
    let g = input.sb.ha_chassis_group.get(&port.ha_chassis_group?)?;
    let holder = port.chassis.and_then(|c| input.sb.chassis.get(&c)).map(|c| &*c.name);
    let member = |h: &Uuid| {
        let h = input.sb.ha_chassis.get(h)?;
        let (id, c) = h.chassis.and_then(|c| input.sb.chassis.get_key_value(&c))?;
        Some((*id, Member { name: c.name.clone(), priority: h.priority }))
    };
    let (ids, members): (Vec<Uuid>, Vec<Member>) = g.ha_chassis.iter().filter_map(member).unzip();
    let active = local.gateways.active(&local.chassis_name, &members, holder)?;
    members.iter().position(|m| m == active).and_then(|i| ids.get(i).copied())
}
