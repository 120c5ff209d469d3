//! Where chassis can be reached over VXLAN.

use super::{Fact, Unit, V, warn};
use crate::address;
use crate::model::Read;
use crate::output::Module::Vtep;
use ovn_schema::{Uuid, sb};

/// One unit for each chassis.
pub fn endpoints(v: &mut V<'_>) {
    for chassis in v.read(Read::ChassisList).sb.db.chassis.keys() {
        v.spawn(Unit::Endpoint(*chassis));
    }
}

/// The address of a chassis: of its VXLAN encapsulations the default one, else the lowest address.
pub fn endpoint(id: Uuid, v: &mut V<'_>) {
    let Some(chassis) = v.read(Read::Sb(sb::TableId::Chassis, id)).sb.db.chassis.get(&id) else { return };
    let mut usable = Vec::new();
    for encap in &chassis.encaps {
        let Some(e) = v.read(Read::Sb(sb::TableId::Encap, *encap)).sb.db.encap.get(encap) else { continue };
        if &*e.r#type != "vxlan" {
            continue;
        }
        match address::endpoint(&e.ip) {
            Some(ip) => {
                let first = !ovn_schema::options::flag(&e.options, "is_default");
                usable.push((first, ip, e.ip.clone()));
            }
            // A switch without an address is told of where it is registered.
            None if e.ip.is_empty() => {}
            None => {
                let text = format!(
                    "Encap {encap} of chassis ({}) has no usable address ({}); vxlan_over_ipv4 needs an IPv4 address",
                    chassis.name, e.ip
                );
                warn(v, Vtep, text);
            }
        }
    }
    usable.sort();
    if let Some((_, _, ip)) = usable.into_iter().next() {
        v.derive(Fact::Endpoint(ip));
    }
}
