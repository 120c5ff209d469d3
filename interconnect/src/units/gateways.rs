//! Gateways between zones: chassis with `is-interconn` are told to the others, theirs become chassis here.

use super::{V, zone_of};
use crate::model::Read;
use crate::output::{Gateway, Key, Value};

/// Puts out gateways of both directions.
pub fn gateways(v: &mut V<'_>) {
    let Some(zone) = zone_of(v) else { return };
    let sb = &v.read(Read::Gateways).sb;
    for chassis in sb.gateways() {
        let encaps = sb.encaps(chassis);
        // The schema wants at least one.
        if !encaps.is_empty() {
            let value = Gateway { hostname: chassis.hostname.clone(), encaps };
            v.emit(Key::Gateway(zone.row, chassis.name.clone()), Value::Gateway(Box::new(value)));
        }
    }
    let icsb = &v.read(Read::IcGateways).icsb;
    for gateway in icsb.db.gateway.values().filter(|g| g.availability_zone != zone.row) {
        let encaps = icsb.encaps(gateway);
        if encaps.is_empty() {
            continue;
        }
        let own = v.read(Read::Chassis(gateway.name.clone())).sb.chassis(&gateway.name);
        if own.is_some_and(|(_, c)| !crate::model::is_remote(c)) {
            super::warn(
                v,
                format!(
                    "gateway {} of another zone has the name of a chassis of this one; it is left out: give one of them \
                     another system-id",
                    gateway.name
                ),
            );
            continue;
        }
        let value = Gateway { hostname: gateway.hostname.clone(), encaps };
        v.emit(Key::Chassis(gateway.name.clone()), Value::Gateway(Box::new(value)));
    }
}
