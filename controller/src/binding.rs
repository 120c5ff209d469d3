//! Which chassis serves a port with an HA chassis group.

use crate::model::{Input, Local};
use gateway_ha::Member;
use ovn_schema::Uuid;
use ovn_schema::sb::PortBinding;

/// The active chassis of a port with an HA chassis group, as this chassis sees it.
pub fn active(port: &PortBinding, input: &Input, local: &Local) -> Option<Uuid> {
    let g = input.sb.ha_chassis_group.get(&port.ha_chassis_group?)?;
    let holder = port.chassis.and_then(|c| input.sb.chassis.get(&c)).map(|c| &*c.name);
    let mut ids = Vec::new();
    for h in g.ha_chassis.iter().filter_map(|h| input.sb.ha_chassis.get(h)) {
        if let Some((id, c)) = h.chassis.and_then(|c| input.sb.chassis.get_key_value(&c)) {
            let me = c.name == local.chassis_name;
            // Before its own switch takes part in BFD, a chassis takes the others for alive: it prepares for what it
            // will be once it is seen.
            let alive = local.starting || if me { !local.isolated } else { local.alive.contains(&c.name) };
            ids.push((*id, Member { name: c.name.to_string(), priority: h.priority, alive }));
        }
    }
    let members: Vec<Member> = ids.iter().map(|(_, m)| m.clone()).collect();
    // A chassis that is cut off does not count itself.
    let me = if local.isolated { "" } else { &*local.chassis_name };
    let name = gateway_ha::select(me, &members, holder)?;
    ids.iter().find(|(_, m)| m.name == name).map(|(id, _)| *id)
}
