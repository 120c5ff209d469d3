//! Operations on the interconnection southbound database.

use super::{Ends, Making, Plan, differs, encaps, free_key, some, text, with, yes};
use crate::output::{Key, Place, Transit, Value};
use ovn_schema::{ColumnValue, Map, Str, Uuid, ic_sb};
use ovsdb_rs::client::Transaction;
use std::collections::BTreeSet;

/// Keys of datapaths that all zones share (ovn-architecture(7)): of transit switches and routers with Geneve.
const GLOBAL: std::ops::RangeInclusive<i64> = 16_711_682..=16_777_215;
/// The same with VXLAN, whose network identifier has 12 bits for datapaths.
const GLOBAL_VXLAN: std::ops::RangeInclusive<i64> = 1025..=4095;
/// Keys of ports.
const PORTS: std::ops::RangeInclusive<i64> = 1..=32_767;

impl Plan {
    pub(super) fn interconnection(&self, place: Place, key: &Key, m: &mut Making<'_>, txn: &mut Transaction) {
        let db = &m.input.icsb;
        let rows: Vec<Uuid> = db.present.rows(key).collect();
        match key {
            Key::Datapath(of) => self.datapath(key, of, rows, m, txn),
            Key::Port(name) => self.port(place, key, name, &rows, m, txn),
            Key::IcMonitorStatus(id) => {
                if let (Some(Value::Status(status)), Some(row)) = (self.wanted(key), db.db.service_monitor.get(id)) {
                    txn.update("Service_Monitor", *id, differs("status", &row.status, status));
                }
            }
            Key::IcMonitor(zone, what) => {
                let own =
                    |id: &Uuid| db.db.service_monitor.get(id).filter(|r| r.source_availability_zone == m.zone.name);
                let Some(Value::IcMonitor(wanted)) = self.wanted(key) else {
                    rows.iter().filter(|id| own(id).is_some()).for_each(|id| txn.delete("Service_Monitor", *id));
                    return;
                };
                match rows.iter().find_map(|id| Some((*id, own(id)?))) {
                    Some((id, row)) => {
                        let changes = [
                            differs("options", &row.options, &wanted.options),
                            differs("src_mac", &row.src_mac, &wanted.src_mac),
                        ];
                        txn.update("Service_Monitor", id, changes.into_iter().flatten());
                    }
                    None => {
                        let row = ic_sb::ServiceMonitor {
                            ip: what.ip.clone(),
                            logical_port: what.logical_port.clone(),
                            options: wanted.options.clone(),
                            port: what.port,
                            protocol: what.protocol.clone(),
                            source_availability_zone: wanted.source.clone(),
                            src_ip: what.src_ip.clone(),
                            src_mac: wanted.src_mac.clone(),
                            target_availability_zone: zone.clone(),
                            r#type: what.kind.clone(),
                            ..ic_sb::ServiceMonitor::default()
                        };
                        txn.insert("Service_Monitor", ovn_schema::Table::columns(&row));
                    }
                }
            }
            Key::Gateway(zone, name) => {
                let (Some(Value::Gateway(wanted)), true) = (self.wanted(key), *zone == m.zone.row) else {
                    if *zone == m.zone.row {
                        rows.iter().for_each(|id| txn.delete("Gateway", *id));
                    }
                    return;
                };
                let row = rows.first().and_then(|id| Some((*id, db.db.gateway.get(id)?)));
                match row {
                    None => {
                        let encaps = encaps(("gateway_name", name), &wanted.encaps, &Ends::new(), txn);
                        let row = [
                            ("name", name.to_datum()),
                            ("hostname", wanted.hostname.to_datum()),
                            ("availability_zone", zone.to_datum()),
                            ("encaps", encaps.to_datum()),
                        ];
                        txn.insert("Gateway", row);
                    }
                    Some((id, row)) => {
                        let hostname = differs("hostname", &row.hostname, &wanted.hostname);
                        let same = db.encaps(row) == wanted.encaps && row.encaps.len() == wanted.encaps.len();
                        let ends = row.encaps.iter().filter_map(|id| Some((*id, db.db.encap.get(id)?)));
                        let ends: Ends =
                            ends.map(|(id, x)| ((x.r#type.clone(), x.ip.clone()), (id, x.options.clone()))).collect();
                        let encaps =
                            (!same).then(|| encaps(("gateway_name", name), &wanted.encaps, &ends, txn).to_datum());
                        let encaps = encaps.map(|e| ("encaps", e));
                        txn.update("Gateway", id, hostname.into_iter().chain(encaps));
                    }
                }
            }
            Key::Route(r) => {
                let (Some(Value::Route(wanted)), true) = (self.wanted(key), r.zone == m.zone.row) else {
                    if r.zone == m.zone.row {
                        rows.iter().for_each(|id| txn.delete("Route", *id));
                    }
                    return;
                };
                let tell = |now: &Map<Str, Str>| {
                    let ids = [
                        ("nb-id", Some(text(wanted.row))),
                        ("lr-id", Some(text(wanted.router))),
                        ("ic-route-tag", some(&wanted.tag)),
                    ];
                    with(now, &ids)
                };
                let options =
                    |now: &Map<Str, Str>| with(now, &[("override-connected", yes(wanted.override_connected))]);
                let origin: Str = wanted.origin().into();
                match rows.first().and_then(|id| Some((*id, db.db.route.get(id)?))) {
                    Some((id, row)) => {
                        let changes = [
                            differs("origin", &row.origin, &origin),
                            differs("options", &row.options, &options(&row.options)),
                            differs("external_ids", &row.external_ids, &tell(&row.external_ids)),
                        ];
                        txn.update("Route", id, changes.into_iter().flatten());
                    }
                    None => {
                        let row = ic_sb::Route {
                            availability_zone: r.zone,
                            external_ids: tell(&Map::new()),
                            ip_prefix: r.prefix.clone(),
                            nexthop: r.nexthop.clone(),
                            options: options(&Map::new()),
                            origin,
                            route_table: r.table.clone(),
                            transit_switch: r.switch.clone(),
                        };
                        txn.insert("Route", ovn_schema::Table::columns(&row));
                    }
                }
            }
            Key::IcAddressSet(zone, name) => {
                let (Some(Value::Addresses(wanted)), true) = (self.wanted(key), *zone == m.zone.row) else {
                    if *zone == m.zone.row {
                        rows.iter().for_each(|id| txn.delete("Address_Set", *id));
                    }
                    return;
                };
                match rows.first().and_then(|id| Some((*id, db.db.address_set.get(id)?))) {
                    Some((id, row)) => super::exchange("Address_Set", id, &row.addresses, wanted, txn),
                    None => {
                        let columns = [
                            ("name", name.to_datum()),
                            ("availability_zone", zone.to_datum()),
                            ("addresses", wanted.to_datum()),
                        ];
                        txn.insert("Address_Set", columns);
                    }
                }
            }
            _ => {}
        }
    }

    /// The datapath of a transit switch or router: only the zone with the lock comes here.
    fn datapath(&self, key: &Key, of: &Transit, rows: Vec<Uuid>, m: &mut Making<'_>, txn: &mut Transaction) {
        let db = &m.input.icsb.db;
        let Some(Value::Datapath(wanted)) = self.wanted(key) else {
            rows.iter().for_each(|id| txn.delete("Datapath_Binding", *id));
            return;
        };
        let (range, kind) = match of {
            Transit::Switch(_) if wanted.vxlan => (GLOBAL_VXLAN, "transit-switch"),
            Transit::Switch(_) => (GLOBAL, "transit-switch"),
            Transit::Router(_) => (GLOBAL, "transit-router"),
        };
        // Controllers of older versions make one without asking for the lock; one is enough.
        rows.iter().skip(1).for_each(|id| txn.delete("Datapath_Binding", *id));
        let row = rows.first().and_then(|id| Some((*id, db.datapath_binding.get(id)?)));
        // A key of the other mode is changed; one that was given by hand stays.
        let fits = |key: i64| if wanted.vxlan { key <= *GLOBAL_VXLAN.end() } else { !GLOBAL_VXLAN.contains(&key) };
        let mut given = row.map(|(_, d)| d.tunnel_key).filter(|k| fits(*k));
        if given.is_none() {
            let mut used: BTreeSet<i64> = db.datapath_binding.values().map(|d| d.tunnel_key).collect();
            used.extend(m.given.iter().filter(|(of, _)| of.is_none()).map(|(_, key)| *key));
            given = free_key(range, &used);
            m.given.extend(given.map(|k| (None, k)));
        }
        let Some(tunnel_key) = given else {
            let name = if matches!(of, Transit::Switch(_)) { "transit switch" } else { "transit router" };
            tracing::warn!(target: "ovn_ic", "all {name} datapath tunnel ids exhausted");
            return;
        };
        let (kind, nb_ic_uuid): (Option<Str>, _) = (Some(kind.into()), Some(wanted.row));
        match row {
            Some((id, d)) => {
                let changes = [
                    differs("tunnel_key", &d.tunnel_key, &tunnel_key),
                    differs("type", &d.r#type, &kind),
                    differs("nb_ic_uuid", &d.nb_ic_uuid, &nb_ic_uuid),
                ];
                txn.update("Datapath_Binding", id, changes.into_iter().flatten());
            }
            None => {
                let transit_switch = match of {
                    Transit::Switch(name) => name.clone(),
                    Transit::Router(_) => Str::default(),
                };
                let row = ic_sb::DatapathBinding {
                    nb_ic_uuid,
                    transit_switch,
                    tunnel_key,
                    r#type: kind,
                    ..ic_sb::DatapathBinding::default()
                };
                txn.insert("Datapath_Binding", ovn_schema::Table::columns(&row));
            }
        }
    }

    fn port(&self, place: Place, key: &Key, name: &Str, rows: &[Uuid], m: &mut Making<'_>, txn: &mut Transaction) {
        let icsb = &m.input.icsb;
        let row = rows.first().and_then(|id| Some((*id, icsb.db.port_binding.get(id)?)));
        let own = row.is_some_and(|(_, p)| p.availability_zone == m.zone.row);
        let Some(Value::Port(wanted)) = self.wanted(key) else {
            if let (Some((id, _)), true) = (row, own) {
                txn.delete("Port_Binding", id);
            }
            return;
        };
        if wanted.shared && place != Place::Shared {
            m.elsewhere.push((Place::Shared, key.clone()));
            return;
        }
        let router = |now: &Map<Str, Str>| match wanted.router {
            Some(id) => with(now, &[("router-id", Some(text(id)))]),
            None => now.clone(),
        };
        let (kind, nb_ic_uuid): (Option<Str>, _) = (Some(wanted.kind.port_type().into()), Some(wanted.row));
        match row {
            // Another zone has not given it up yet.
            Some(_) if !own && !wanted.shared => {}
            // A port that moved to another transit switch gets a key there.
            Some((id, p)) if p.transit_switch != wanted.of => {
                txn.delete("Port_Binding", id);
                m.elsewhere.push((place, key.clone()));
            }
            Some((id, p)) => {
                let changes = [
                    differs("address", &p.address, &wanted.address),
                    differs("gateway", &p.gateway, &wanted.gateway),
                    differs("external_ids", &p.external_ids, &router(&p.external_ids)),
                    differs("type", &p.r#type, &kind),
                    differs("nb_ic_uuid", &p.nb_ic_uuid, &nb_ic_uuid),
                ];
                txn.update("Port_Binding", id, changes.into_iter().flatten());
            }
            None => {
                let mut used: BTreeSet<i64> = icsb.ports_of(&wanted.of).map(|p| p.tunnel_key).collect();
                let of = Some(wanted.of.clone());
                used.extend(m.given.iter().filter(|(o, _)| *o == of).map(|(_, key)| *key));
                let Some(tunnel_key) = free_key(PORTS, &used) else {
                    tracing::warn!(target: "ovn_ic", "all transit port tunnel ids exhausted");
                    return;
                };
                m.given.insert((of, tunnel_key));
                let row = ic_sb::PortBinding {
                    address: wanted.address.clone(),
                    availability_zone: wanted.zone,
                    encap: None,
                    external_ids: router(&Map::new()),
                    gateway: wanted.gateway.clone(),
                    logical_port: name.clone(),
                    nb_ic_uuid,
                    transit_switch: wanted.of.clone(),
                    tunnel_key,
                    r#type: kind,
                };
                txn.insert("Port_Binding", ovn_schema::Table::columns(&row));
            }
        }
    }
}
