//! Which output each southbound row stands for.

use crate::model::RowKey;
use ovn_schema::{InDatabase, Str, Uuid, sb};
use ovsdb_rs::Datum;
use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Rows by what they stand for, and those that stand for the same as another.
#[derive(Default)]
pub struct Existing {
    pub rows: HashMap<RowKey, Uuid>,
    pub duplicates: Vec<(sb::TableId, Uuid)>,
    /// Rows that others made: taken over where one of them is wanted, left alone otherwise.
    pub foreign: HashSet<RowKey>,
}

impl Existing {
    fn add(&mut self, table: sb::TableId, name: impl AsRef<str>, uuid: Uuid) {
        let key = RowKey::new(table, name);
        match self.rows.entry(key) {
            Entry::Occupied(_) => self.duplicates.push((table, uuid)),
            Entry::Vacant(e) => {
                e.insert(uuid);
            }
        }
    }

    fn all<T: InDatabase<Database = sb::Database>>(
        &mut self,
        db: &sb::Database,
        table: sb::TableId,
        name: impl Fn(Uuid, &T) -> Option<String>,
    ) {
        let ordered: BTreeMap<_, _> = T::rows(db).iter().collect();
        for (uuid, row) in ordered {
            match name(*uuid, row) {
                Some(name) => self.add(table, name, *uuid),
                None => self.duplicates.push((table, *uuid)),
            }
        }
    }
}

/// All rows of tables that the compiler fills, flows and datapath groups excepted.
pub fn rows(db: &sb::Database) -> Existing {
    use sb::TableId as T;
    let mut e = Existing::default();
    let datapath = |u: &Uuid| db.datapath_binding.get(u).and_then(|d| d.nb_uuid).map(|u| u.to_string());
    let id = |ids: &ovn_schema::Map<Str, Str>, key: &str| ids.get(key).map(|v| v.to_string());
    e.all::<sb::DatapathBinding>(db, T::DatapathBinding, |_, r| r.nb_uuid.map(|u| u.to_string()));
    e.all::<sb::PortBinding>(db, T::PortBinding, |_, r| Some(r.logical_port.to_string()));
    e.all::<sb::MulticastGroup>(db, T::MulticastGroup, |_, r| Some(format!("{}/{}", datapath(&r.datapath)?, r.name)));
    e.all::<sb::AddressSet>(db, T::AddressSet, |_, r| Some(r.name.to_string()));
    e.all::<sb::PortGroup>(db, T::PortGroup, |_, r| Some(r.name.to_string()));
    e.all::<sb::DhcpOptions>(db, T::DhcpOptions, |_, r| Some(r.name.to_string()));
    e.all::<sb::Dhcpv6Options>(db, T::Dhcpv6Options, |_, r| Some(r.name.to_string()));
    e.all::<sb::Dns>(db, T::Dns, |u, _| Some(u.to_string()));
    e.all::<sb::HaChassisGroup>(db, T::HaChassisGroup, |_, r| Some(r.name.to_string()));
    for group in db.ha_chassis_group.values() {
        for h in &group.ha_chassis {
            if let Some(name) = db.ha_chassis.get(h).and_then(|h| id(&h.external_ids, "chassis-name")) {
                e.add(T::HaChassis, format!("{}/{name}", group.name), *h);
            }
        }
    }
    e.all::<sb::LoadBalancer>(db, T::LoadBalancer, |u, _| Some(u.to_string()));
    e.all::<sb::Meter>(db, T::Meter, |_, r| Some(r.name.to_string()));
    for meter in db.meter.values() {
        for b in &meter.bands {
            if let Some(band) = db.meter_band.get(b) {
                e.add(T::MeterBand, format!("{}/{}/{}", meter.name, band.rate, band.burst_size), *b);
            }
        }
    }
    e.all::<sb::Mirror>(db, T::Mirror, |_, r| Some(r.name.to_string()));
    for (u, r) in db.rbac_role.iter().filter(|(_, r)| crate::tables::rbac::is_own_role(&r.name)) {
        e.add(T::RbacRole, &r.name, *u);
    }
    for (u, name) in db.rbac_permission.iter().filter_map(|(u, r)| Some((u, crate::tables::rbac::own_permission(r)?))) {
        e.rows.entry(RowKey::new(T::RbacPermission, name)).or_insert(*u);
    }
    e.all::<sb::StaticMacBinding>(db, T::StaticMacBinding, |u, _| Some(u.to_string()));
    e.all::<sb::ChassisTemplateVar>(db, T::ChassisTemplateVar, |u, _| Some(u.to_string()));
    e.all::<sb::IpMulticast>(db, T::IpMulticast, |_, r| datapath(&r.datapath));
    for (u, r) in &db.service_monitor {
        let name = monitor_name(r);
        if r.ic_learned {
            e.foreign.insert(RowKey::new(T::ServiceMonitor, &name));
        }
        e.add(T::ServiceMonitor, name, *u);
    }
    e.all::<sb::Bfd>(db, T::Bfd, |_, r| Some(crate::tables::bfd::name(&r.logical_port, &r.dst_ip)));
    let port = |u: &Uuid| db.port_binding.get(u).map(|b| b.logical_port.clone());
    e.all::<sb::AdvertisedRoute>(db, T::AdvertisedRoute, |_, r| {
        let tracked = r.tracked_port.as_ref().and_then(port);
        Some(crate::tables::advertise::route_name(&port(&r.logical_port)?, &r.ip_prefix, tracked.as_deref()))
    });
    e.all::<sb::AdvertisedMacBinding>(db, T::AdvertisedMacBinding, |_, r| {
        Some(crate::tables::advertise::mac_name(&port(&r.logical_port)?, &r.ip, &r.mac))
    });
    e.all::<sb::EcmpNexthop>(db, T::EcmpNexthop, |_, r| {
        Some(crate::tables::advertise::hop_name(&port(&r.port)?, &r.nexthop))
    });
    e.all::<sb::AclId>(db, T::AclId, |u, _| Some(u.to_string()));
    e.all::<sb::SbGlobal>(db, T::SbGlobal, |_, _| Some(String::new()));
    e.duplicates.retain(|(t, _)| is_root(*t));
    e
}

/// Tables whose rows have the UUID of the northbound row that they are copies of. (Servers take a UUID with `insert` since
/// Open vSwitch 2.18.)
const SAME_UUID: [sb::TableId; 5] = [
    sb::TableId::AclId,
    sb::TableId::ChassisTemplateVar,
    sb::TableId::Dns,
    sb::TableId::LoadBalancer,
    sb::TableId::StaticMacBinding,
];

/// The row that somebody else put in for what northd wants now: a health check that another zone asked for
/// (`ic_learned`). It becomes northd's, with the state that it has.
pub fn taken_over(key: &RowKey, db: &sb::Database) -> Option<Uuid> {
    if key.table != sb::TableId::ServiceMonitor {
        return None;
    }
    let learned = db.service_monitor.iter().filter(|(_, r)| r.ic_learned);
    learned.map(|(u, r)| (*u, monitor_name(r))).find(|(_, name)| **name == *key.name).map(|(u, _)| u)
}

fn monitor_name(r: &sb::ServiceMonitor) -> String {
    let protocol = r.protocol.clone().unwrap_or_else(|| "tcp".into());
    crate::tables::health::monitor_name(&r.logical_port, &r.ip, r.port, &protocol)
}

/// The UUID of a new row.
pub fn new_uuid(key: &RowKey) -> Uuid {
    let same = SAME_UUID.contains(&key.table).then(|| key.name.parse().ok()).flatten();
    same.unwrap_or_else(Uuid::new_v4)
}

/// Whether rows of a table stay when nothing refers to them.
pub fn is_root(table: sb::TableId) -> bool {
    !matches!(
        table,
        sb::TableId::HaChassis
            | sb::TableId::MeterBand
            | sb::TableId::GatewayChassis
            | sb::TableId::LogicalDpGroup
            | sb::TableId::SbGlobal
    )
}

/// Whether a column names a group with the same datapaths as the group that it is to name.
pub fn same_group(
    db: &sb::Database,
    present: &[(&'static str, Datum)],
    column: &str,
    wanted: &Datum,
    members: Option<&Arc<[Uuid]>>,
) -> bool {
    let Some(members) = members.filter(|_| column.ends_with("datapath_group")) else { return false };
    let old = present.iter().find(|(n, _)| *n == column).map(|(_, d)| d);
    let old = old.filter(|d| *d != wanted).and_then(|d| d.scalar()?.as_uuid());
    old.and_then(|g| db.logical_dp_group.get(&g)).is_some_and(|g| g.datapaths.iter().eq(members.iter()))
}
