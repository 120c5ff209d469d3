//! Connection tracking zones: `Datapath`, `CT_Zone` and `CT_Timeout_Policy` (ovs-vswitchd.conf.db(5)).

use ovn_schema::ovs;
use std::collections::HashMap;
use switch::conntrack::{Timeouts, Zone};

/// Limits and timeouts of zones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ZoneSpecs {
    /// Timeouts of zones with a policy.
    pub timeouts: HashMap<Zone, Timeouts>,
    /// The most connections of zones with a limit; 0: no limit.
    pub limits: HashMap<Zone, u32>,
    /// The limit of other zones; 0: none.
    pub default_limit: u32,
    /// Some limit is set, even if to 0.
    pub limited: bool,
}

/// The zones of all Datapath rows: both datapath types are this one.
pub fn zones(db: &ovs::Database) -> ZoneSpecs {
    let mut z = ZoneSpecs::default();
    let Some(root) = db.open_vswitch.values().next() else { return z };
    for d in root.datapaths.values().filter_map(|id| db.datapath.get(id)) {
        let limit = |l: Option<i64>| l.and_then(|l| u32::try_from(l).ok());
        z.default_limit = limit(d.ct_zone_default_limit).unwrap_or(z.default_limit);
        z.limited |= d.ct_zone_default_limit.is_some();
        for (number, zone) in
            d.ct_zones.iter().filter_map(|(n, id)| Some((Zone(u16::try_from(*n).ok()?), db.ct_zone.get(id)?)))
        {
            if let Some(l) = limit(zone.limit) {
                z.limits.insert(number, l);
                z.limited = true;
            }
            let Some(policy) = zone.timeout_policy.and_then(|id| db.ct_timeout_policy.get(&id)) else { continue };
            let mut t = Timeouts::default();
            for (key, seconds) in policy.timeouts.iter() {
                if !t.set(key, u32::try_from(*seconds).unwrap_or(u32::MAX)) {
                    tracing::warn!(target: "bridge", "CT_Timeout_Policy of zone {number}: timeouts:{key} has no effect");
                }
            }
            z.timeouts.insert(number, t);
        }
    }
    z
}
