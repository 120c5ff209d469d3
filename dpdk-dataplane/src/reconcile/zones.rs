//! Connection tracking zones of the database: `Datapath`, `CT_Zone` and `CT_Timeout_Policy` (ovs-vswitchd.conf.db(5)).

use super::Control;
use ovn_schema::{ColumnValue, Map, Str, ovs};
use ovsdb_rs::client::Transaction;
use std::collections::HashMap;
use switch::conntrack::Timeouts;

/// What zones are to have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Zones {
    timeouts: HashMap<u16, Timeouts>,
    limits: HashMap<u16, u32>,
    default_limit: u32,
    /// Some limit is asked for, if only one of 0.
    limited: bool,
}

/// What the database asks for; datapaths of both types are this one.
fn wanted(db: &ovs::Database) -> Zones {
    let mut z = Zones::default();
    let Some(root) = db.open_vswitch.values().next() else { return z };
    for d in root.datapaths.values().filter_map(|id| db.datapath.get(id)) {
        let limit = |l: Option<i64>| l.and_then(|l| u32::try_from(l).ok());
        z.default_limit = limit(d.ct_zone_default_limit).unwrap_or(z.default_limit);
        z.limited |= d.ct_zone_default_limit.is_some();
        for (number, zone) in
            d.ct_zones.iter().filter_map(|(n, id)| Some((u16::try_from(*n).ok()?, db.ct_zone.get(id)?)))
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

impl Control {
    /// Gives the tracker its zones where they have changed.
    pub(super) fn apply_zones(&mut self) {
        let new = wanted(&self.db.rows);
        if new == self.zones {
            return;
        }
        let old = std::mem::replace(&mut self.zones, new.clone());
        self.worker.post(move |w| {
            w.switch.set_timeouts(new.timeouts);
            w.zones_of_database = new.limited;
            let ct = &mut w.switch.conntrack;
            for z in old.limits.keys().filter(|z| !new.limits.contains_key(z)) {
                ct.delete_limit(*z);
            }
            for (z, l) in new.limits {
                ct.set_limit(Some(z), l);
            }
            if old.default_limit != new.default_limit {
                ct.set_limit(None, new.default_limit);
            }
        });
    }
}

/// What the datapath can do, by the keys of `Datapath:capabilities`.
const CAPABILITIES: &[(&str, &str)] = &[
    ("check_pkt_len", "true"),
    ("ct_clear", "true"),
    ("ct_eventmask", "false"),
    ("ct_orig_tuple", "true"),
    ("ct_orig_tuple6", "true"),
    ("ct_state", "true"),
    ("ct_state_nat", "true"),
    ("ct_timeout", "true"),
    ("ct_zone", "true"),
    ("ct_mark", "true"),
    ("ct_label", "true"),
    ("ct_zero_snat", "true"),
    ("ct_flush", "true"),
    ("max_hash_alg", "1"),
    ("max_vlan_headers", "2"),
    ("nd_ext", "false"),
    ("recirc", "true"),
    ("sample_nesting", "10"),
    ("trunc", "true"),
    ("ufid", "true"),
];

/// The rows of the datapaths.
pub(super) fn status(db: &ovs::Database, txn: &mut Transaction) {
    let Some(root) = db.open_vswitch.values().next() else { return };
    let can: Map<Str, Str> = CAPABILITIES.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let version = Str::from(concat!("Isthmus ", env!("CARGO_PKG_VERSION")));
    for id in root.datapaths.values() {
        let Some(row) = db.datapath.get(id) else { continue };
        let mut columns = Vec::new();
        if row.capabilities != can {
            columns.push(("capabilities", can.to_datum()));
        }
        if row.datapath_version != version {
            columns.push(("datapath_version", version.to_datum()));
        }
        if !columns.is_empty() {
            txn.update("Datapath", *id, columns);
        }
    }
}
