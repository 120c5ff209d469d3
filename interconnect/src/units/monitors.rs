//! Health checks of backends in other zones: northd marks them `remote` and names the zone, which checks and tells the
//! state back.

use super::{V, chassis_name, zone_of};
use crate::address::option;
use crate::model::Read;
use crate::output::{IcMonitor, Key, Monitor, MonitorId, Value};
use ovn_schema::{Str, Uuid};
use std::collections::BTreeMap;

/// Puts out health checks of both directions, and their states.
pub fn monitors(v: &mut V<'_>) {
    let Some(zone) = zone_of(v) else { return };
    let global = v.read(Read::SbGlobal).sb.global();
    let mac = global.map(|g| option(&g.options, "svc_monitor_mac")).unwrap_or_default();
    if mac.is_empty() {
        return;
    }
    let icsb = &v.read(Read::IcMonitors).icsb;
    let mut asked: BTreeMap<(&Str, MonitorId), Vec<(Uuid, &ovn_schema::ic_sb::ServiceMonitor)>> = BTreeMap::new();
    for (id, m) in &icsb.db.service_monitor {
        asked.entry((&m.target_availability_zone, crate::model::ic_monitor_id(m))).or_default().push((*id, m));
    }
    for (id, m) in v.read(Read::RemoteMonitors).sb.remote_monitors() {
        let Some(target) = m.options.get("az-name") else { continue };
        let what = crate::model::monitor_id(m);
        let there = asked.get(&(target, what.clone()));
        let mut rows = there.into_iter().flatten();
        if let Some((_, row)) = rows.clone().min_by_key(|(id, _)| *id) {
            v.emit(Key::MonitorStatus(id), Value::Status(row.status.clone()));
        }
        // Where another zone asks for the same, its row serves both.
        if there.is_none() || rows.any(|(_, row)| row.source_availability_zone == zone.name) {
            let value = IcMonitor { source: zone.name.clone(), src_mac: mac.clone(), options: m.options.clone() };
            v.emit(Key::IcMonitor(target.clone(), Box::new(what)), Value::IcMonitor(Box::new(value)));
        }
    }
    for ((_, what), rows) in asked.into_iter().filter(|((target, _), _)| **target == zone.name) {
        let sb = &v.read(Read::PortBinding(what.logical_port.clone())).sb;
        let Some((_, port)) = sb.port(&what.logical_port).filter(|(_, p)| p.up.is_some()) else { continue };
        let chassis = chassis_name(port.chassis, v).cloned();
        let local = v.read(Read::MonitorsOf(what.logical_port.clone())).sb.monitors_of(&what.logical_port);
        let local = local.filter(|(_, m)| !m.remote && crate::model::monitor_id(m) == what).min_by_key(|(id, _)| *id);
        if let Some((_, m)) = local {
            for (id, _) in &rows {
                v.emit(Key::IcMonitorStatus(*id), Value::Status(m.status.clone()));
            }
        }
        if local.is_none_or(|(_, m)| m.ic_learned) {
            let options = rows.iter().min_by_key(|(id, _)| *id).map(|(_, m)| m.options.clone()).unwrap_or_default();
            let value = Monitor { src_mac: mac.clone(), options, chassis };
            v.emit(Key::Monitor(Box::new(what)), Value::Monitor(Box::new(value)));
        }
    }
}
