//! Operations on the southbound database.

use super::{Ends, Making, Plan, differs, encaps, with, yes};
use crate::model::is_remote;
use crate::output::{Gateway, Key, MonitorId, Value};
use ovn_schema::{ColumnValue, Map, Str, Table, Uuid, sb};
use ovsdb_rs::client::Transaction;

impl Plan {
    pub(super) fn southbound(&self, key: &Key, m: &Making<'_>, txn: &mut Transaction) {
        let db = &m.input.sb;
        let rows: Vec<Uuid> = db.present.rows(key).collect();
        match (key, self.wanted(key)) {
            (Key::Chassis(name), wanted) => {
                let row = rows.first().and_then(|id| Some((*id, &**db.db.chassis.get(id)?)));
                // A chassis of this zone is not ours.
                if row.is_some_and(|(_, c)| !is_remote(c)) {
                    return;
                }
                match wanted {
                    Some(Value::Gateway(wanted)) => chassis(name, row, wanted, m, txn),
                    _ => rows.iter().for_each(|id| txn.delete("Chassis", *id)),
                }
            }
            (Key::Binding(_), Some(Value::Binding(chassis))) => {
                let Some((id, row)) = rows.first().and_then(|id| Some((*id, db.db.port_binding.get(id)?))) else {
                    return;
                };
                let chassis = chassis.as_ref().map(|name| db.chassis(name).map(|(id, _)| id));
                // A chassis that is not there is waited for.
                if chassis != Some(None) {
                    txn.update("Port_Binding", id, differs("chassis", &row.chassis, &chassis.flatten()));
                }
            }
            (Key::MonitorStatus(id), Some(Value::Status(status))) => {
                if let Some(row) = db.db.service_monitor.get(id) {
                    txn.update("Service_Monitor", *id, differs("status", &row.status, status));
                }
            }
            (Key::Monitor(what), wanted) => {
                let row = rows.first().and_then(|id| Some((*id, &**db.db.service_monitor.get(id)?)));
                match wanted {
                    Some(Value::Monitor(wanted)) => monitor(what, row, wanted, txn),
                    _ => rows.iter().for_each(|id| txn.delete("Service_Monitor", *id)),
                }
            }
            _ => {}
        }
    }
}

fn chassis(name: &Str, row: Option<(Uuid, &sb::Chassis)>, wanted: &Gateway, m: &Making<'_>, txn: &mut Transaction) {
    let config = |now: &Map<Str, Str>| with(now, &[("is-remote", yes(true))]);
    match row {
        Some((id, c)) => {
            let there = m.input.sb.encaps(c);
            let same = there == wanted.encaps && c.encaps.len() == wanted.encaps.len();
            let ends = c.encaps.iter().filter_map(|id| Some((*id, m.input.sb.db.encap.get(id)?)));
            let ends: Ends = ends.map(|(id, x)| ((x.r#type.clone(), x.ip.clone()), (id, x.options.clone()))).collect();
            let encaps =
                (!same).then(|| ("encaps", encaps(("chassis_name", name), &wanted.encaps, &ends, txn).to_datum()));
            let changes = [
                differs("hostname", &c.hostname, &wanted.hostname),
                differs("other_config", &c.other_config, &config(&c.other_config)),
                encaps,
            ];
            txn.update("Chassis", id, changes.into_iter().flatten());
        }
        None => {
            let encaps = encaps(("chassis_name", name), &wanted.encaps, &Ends::new(), txn);
            let row = sb::Chassis {
                encaps,
                hostname: wanted.hostname.clone(),
                name: name.clone(),
                other_config: config(&Map::new()),
                ..sb::Chassis::default()
            };
            txn.insert("Chassis", row.columns());
        }
    }
}

fn monitor(
    what: &MonitorId,
    row: Option<(Uuid, &sb::ServiceMonitor)>,
    wanted: &crate::output::Monitor,
    txn: &mut Transaction,
) {
    match row {
        Some((id, m)) => {
            let chassis = wanted.chassis.as_ref().unwrap_or(&m.chassis_name);
            let changes = [
                differs("chassis_name", &m.chassis_name, chassis),
                differs("options", &m.options, &wanted.options),
                differs("src_mac", &m.src_mac, &wanted.src_mac),
            ];
            txn.update("Service_Monitor", id, changes.into_iter().flatten());
        }
        None => {
            let row = sb::ServiceMonitor {
                chassis_name: wanted.chassis.clone().unwrap_or_default(),
                ic_learned: true,
                ip: what.ip.clone(),
                logical_port: what.logical_port.clone(),
                options: wanted.options.clone(),
                port: what.port,
                protocol: what.protocol.clone(),
                src_ip: what.src_ip.clone(),
                src_mac: wanted.src_mac.clone(),
                r#type: what.kind.clone(),
                ..sb::ServiceMonitor::default()
            };
            txn.insert("Service_Monitor", row.columns());
        }
    }
}
