//! This chassis' rows in the southbound database: Chassis, Encap, Chassis_Private.

use crate::settings::Settings;
use ovn_schema::{ColumnValue, Map, Set, Str, Uuid, ovs, sb};
use ovsdb_rs::client::Transaction;

/// What this controller can do, as northd looks for it in `Chassis:other_config`.
const FEATURES: [&str; 8] = [
    "ct-commit-nat-v2",
    "ct-commit-to-zone",
    "ct-next-zone",
    "ct-state-save",
    "fdb-timestamp",
    "mac-binding-timestamp",
    "ovn-ct-lb-related",
    "port-up-notif",
];

fn other_config(settings: &Settings, ovs: &ovs::Database) -> Map<Str, Str> {
    let mut m: Map<Str, Str> = FEATURES.iter().map(|f| ((*f).into(), "true".into())).collect();
    m.insert("ct-no-masked-label".into(), "true".into());
    m.insert("is-interconn".into(), "false".into());
    for (k, v) in &settings.other {
        m.insert(k.clone(), v.clone());
    }
    for key in ["ovn-bridge-mappings", "ovn-cms-options", "ovn-chassis-mac-mappings", "ovn-enable-lflow-cache"] {
        m.entry(key.into()).or_insert_with(|| "".into());
    }
    m.insert("ovn-monitor-all".into(), settings.monitor_all.to_string().into());
    if let Some(root) = ovs.open_vswitch.values().next() {
        let types: Vec<&str> = root.iface_types.iter().map(|t| &**t).collect();
        m.insert("iface-types".into(), types.join(",").into());
    }
    if let Some(t) = &settings.datapath_type {
        m.insert("datapath-type".into(), t.clone());
    }
    m
}

/// Writes what differs from what is wanted. Gives the chassis' row where it exists.
pub fn reconcile(sb: &sb::Database, ovs: &ovs::Database, settings: &Settings, txn: &mut Transaction) -> Option<Uuid> {
    let found = sb.chassis.iter().find(|(_, c)| c.name == settings.system_id);
    let other = other_config(settings, ovs);
    private(sb, settings, found.map(|(id, _)| *id), txn);
    let Some((id, row)) = found else {
        // An address that a vanished chassis left behind would be in the way.
        let encaps: Set<Uuid> = settings.encaps.iter().map(|e| insert_encap(e, settings, txn)).collect();
        txn.comment("ovn-controller: registering chassis");
        txn.insert(
            "Chassis",
            [
                ("name", settings.system_id.to_datum()),
                ("hostname", settings.hostname.to_datum()),
                ("encaps", encaps.to_datum()),
                ("other_config", other.to_datum()),
            ],
        );
        return None;
    };
    if row.hostname != settings.hostname {
        txn.update("Chassis", *id, [("hostname", settings.hostname.to_datum())]);
    }
    // Keys of others are left alone.
    let mut merged = row.other_config.clone();
    merged.extend(other);
    if merged != row.other_config {
        txn.update("Chassis", *id, [("other_config", merged.to_datum())]);
    }
    let same = row.encaps.len() == settings.encaps.len()
        && row.encaps.iter().all(|e| {
            sb.encap.get(e).is_some_and(|e| {
                let csum = e.options.get("csum").is_some_and(|v| &**v == "true");
                settings.encaps.contains(&(e.r#type.clone(), e.ip.clone())) && csum == settings.encap_csum
            })
        });
    if !same {
        let encaps: Set<Uuid> = settings.encaps.iter().map(|e| insert_encap(e, settings, txn)).collect();
        txn.update("Chassis", *id, [("encaps", encaps.to_datum())]);
    }
    Some(*id)
}

fn insert_encap((kind, ip): &(Str, Str), settings: &Settings, txn: &mut Transaction) -> Uuid {
    let csum: Str = settings.encap_csum.to_string().into();
    let mut options: Map<Str, Str> = Map::from([("csum".into(), csum)]);
    if settings.encaps.first().is_some_and(|(_, first)| first == ip) && settings.encaps.len() > 1 {
        options.insert("is_default".into(), "true".into());
    }
    let columns = [
        ("type", kind.to_datum()),
        ("ip", ip.to_datum()),
        ("chassis_name", settings.system_id.to_datum()),
        ("options", options.to_datum()),
    ];
    txn.insert("Encap", columns)
}

fn private(sb: &sb::Database, settings: &Settings, chassis: Option<Uuid>, txn: &mut Transaction) {
    match sb.chassis_private.iter().find(|(_, c)| c.name == settings.system_id) {
        None => {
            let refers: Set<Uuid> = chassis.into_iter().collect();
            txn.insert("Chassis_Private", [("name", settings.system_id.to_datum()), ("chassis", refers.to_datum())]);
        }
        Some((id, row)) if chassis.is_some() && row.chassis != chassis => {
            txn.update("Chassis_Private", *id, [("chassis", chassis.to_datum())]);
        }
        Some(_) => {}
    }
}

/// Takes the chassis out of the southbound database, at `exit`.
pub fn remove(sb: &sb::Database, settings: &Settings, txn: &mut Transaction) {
    for (id, _) in sb.chassis.iter().filter(|(_, c)| c.name == settings.system_id) {
        txn.delete("Chassis", *id);
    }
    for (id, _) in sb.chassis_private.iter().filter(|(_, c)| c.name == settings.system_id) {
        txn.delete("Chassis_Private", *id);
    }
}
