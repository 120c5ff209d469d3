//! Operations on the northbound database.

use super::{Making, Plan, differs, some, text, with, yes};
use crate::model::{LEARNED_ROUTE, LEARNED_SET, TR, TS, TSP};
use crate::output::{Key, RouterPort, StaticRoute, SwitchPort, Value};
use ovn_schema::{ColumnValue, Map, Set, Str, Table, Uuid, nb, options::flag};
use ovsdb_rs::client::Transaction;

const TUNNEL_KEY: &str = "requested-tnl-key";
const CHASSIS: &str = "requested-chassis";
const VXLAN: &str = "ic-vxlan_mode";
const ORIGIN: &str = "origin";

fn number(key: i64) -> Option<Str> {
    Some(key.to_string().into())
}

fn one(text: &Str) -> Set<Str> {
    some(text).into_iter().collect()
}

/// Adds a row to its parent's set, or takes it out, which deletes it.
fn member(txn: &mut Transaction, table: &str, parent: Uuid, column: &str, id: Uuid, there: bool) {
    txn.mutate(table, parent, column, if there { "insert" } else { "delete" }, &id.to_datum());
}

impl Plan {
    /// Brings the rows of a key to what is wanted. Tells whether that could be done: a port's switch or router may be missing.
    pub(super) fn northbound(&self, key: &Key, m: &Making<'_>, txn: &mut Transaction) -> bool {
        let nb = &m.input.nb;
        let rows: Vec<Uuid> = nb.present.rows(key).collect();
        match (key, self.wanted(key)) {
            (Key::Switch(name), Some(Value::Switch(vxlan, datapath))) => {
                let mode: Str = if *vxlan { "true".into() } else { "false".into() };
                let config = |now: &Map<Str, Str>| {
                    let tunnel_key = datapath.map_or_else(|| now.get(TUNNEL_KEY).cloned(), number);
                    // Absent is false, as ovn-ic reads it; a switch that is there does not get it for that alone.
                    let stays = flag(now, VXLAN) == *vxlan && !now.is_empty();
                    let mode = if stays { now.get(VXLAN).cloned() } else { Some(mode.clone()) };
                    with(now, &[(TS, Some(name.clone())), (VXLAN, mode), (TUNNEL_KEY, tunnel_key)])
                };
                match rows.first().and_then(|id| Some((*id, nb.db.logical_switch.get(id)?))) {
                    Some((id, row)) => {
                        let wanted = config(&row.other_config);
                        txn.update("Logical_Switch", id, differs("other_config", &row.other_config, &wanted));
                        surplus(&rows, "Logical_Switch", txn);
                    }
                    // A switch made without its key would get one that no other zone knows, until it is told.
                    None if datapath.is_none() => {}
                    None => {
                        let config = config(&Map::new());
                        txn.insert("Logical_Switch", [("name", name.to_datum()), ("other_config", config.to_datum())]);
                    }
                }
            }
            (Key::Router(name), Some(Value::Router(datapath))) => {
                let options = |now: &Map<Str, Str>| {
                    let tunnel_key = datapath.map_or_else(|| now.get(TUNNEL_KEY).cloned(), number);
                    with(now, &[(TR, Some(name.clone())), (TUNNEL_KEY, tunnel_key)])
                };
                match rows.first().and_then(|id| Some((*id, nb.db.logical_router.get(id)?))) {
                    Some((id, row)) => {
                        txn.update("Logical_Router", id, differs("options", &row.options, &options(&row.options)));
                        surplus(&rows, "Logical_Router", txn);
                    }
                    None if datapath.is_none() => {}
                    None => {
                        let options = options(&Map::new());
                        txn.insert("Logical_Router", [("name", name.to_datum()), ("options", options.to_datum())]);
                    }
                }
            }
            (Key::Switch(_), _) => rows.iter().for_each(|id| txn.delete("Logical_Switch", *id)),
            (Key::Router(_), _) => rows.iter().for_each(|id| txn.delete("Logical_Router", *id)),
            (Key::SwitchPort(of, name), wanted) => {
                let wanted = match wanted {
                    Some(Value::SwitchPort(p)) => Some(&**p),
                    _ => None,
                };
                return switch_port(of, name, &rows, wanted, m, txn);
            }
            (Key::RouterPort(of, name), wanted) => {
                let wanted = match wanted {
                    Some(Value::RouterPort(p)) => Some(&**p),
                    _ => None,
                };
                return router_port(of, name, &rows, wanted, m, txn);
            }
            (Key::StaticRoute(router, from), wanted) => {
                let wanted = match wanted {
                    Some(Value::StaticRoute(r)) => Some(&**r),
                    _ => None,
                };
                static_route(*router, *from, &rows, wanted, m, txn);
            }
            (Key::AddressSet(name), wanted) => {
                let row = rows.first().and_then(|id| Some((*id, nb.db.address_set.get(id)?)));
                match (wanted, row) {
                    (Some(Value::Addresses(wanted)), Some((id, row))) => {
                        super::exchange("Address_Set", id, &row.addresses, wanted, txn);
                    }
                    (Some(Value::Addresses(wanted)), None) => {
                        let row = nb::AddressSet {
                            addresses: wanted.clone(),
                            external_ids: with(&Map::new(), &[(LEARNED_SET, yes(true))]),
                            name: name.clone(),
                            options: Map::new(),
                        };
                        txn.insert("Address_Set", row.columns());
                    }
                    _ => rows.iter().for_each(|id| txn.delete("Address_Set", *id)),
                }
            }
            _ => {}
        }
        true
    }
}

/// One row of a key is enough.
fn surplus(rows: &[Uuid], table: &str, txn: &mut Transaction) {
    rows.iter().skip(1).for_each(|id| txn.delete(table, *id));
}

fn switch_port(
    of: &Str,
    name: &Str,
    rows: &[Uuid],
    wanted: Option<&SwitchPort>,
    m: &Making<'_>,
    txn: &mut Transaction,
) -> bool {
    let nb = &m.input.nb;
    let row = rows.first().and_then(|id| Some((*id, nb.db.logical_switch_port.get(id)?)));
    let ours = row.is_some_and(|(_, p)| p.options.contains_key(TSP) || &*p.r#type == "remote");
    let Some(wanted) = wanted else {
        if let (Some((id, _)), true) = (row, ours)
            && let Some(switch) = nb.switch_of_port(id)
        {
            member(txn, "Logical_Switch", switch, "ports", id, false);
        }
        return true;
    };
    let default = nb::LogicalSwitchPort { name: name.clone(), ..nb::LogicalSwitchPort::default() };
    let now = row.map_or(&default, |(_, p)| p);
    let mut next = now.clone();
    match wanted {
        SwitchPort::Local { key } => {
            next.options = with(&now.options, &[(TUNNEL_KEY, number(*key))]);
            if row.is_none() {
                return true;
            }
        }
        SwitchPort::Remote { address, key } => {
            // Somebody has a port of another type there: it is not ours to change.
            if row.is_some() && !ours {
                return true;
            }
            next.options = with(&now.options, &[(TUNNEL_KEY, number(*key)), (TSP, None)]);
            next.addresses = one(address);
            next.r#type = "remote".into();
            if row.is_none() {
                next.up = Some(true);
            }
        }
        SwitchPort::Transit { kind, addresses, chassis, router_port, peer, key } => {
            let options = [
                (TSP, Some(name.clone())),
                (TUNNEL_KEY, number(*key)),
                (CHASSIS, some(chassis)),
                ("router-port", some(router_port)),
            ];
            next.options = with(&now.options, &options);
            next.addresses = addresses.clone();
            next.r#type = kind.clone();
            next.peer = some(peer);
        }
    }
    match row {
        Some((id, _)) => {
            let changes = [
                differs("addresses", &now.addresses, &next.addresses),
                differs("options", &now.options, &next.options),
                differs("peer", &now.peer, &next.peer),
                differs("type", &now.r#type, &next.r#type),
            ];
            txn.update("Logical_Switch_Port", id, changes.into_iter().flatten());
        }
        None => {
            let Some((switch, _)) = nb.switch_of_transit(of) else { return false };
            let id = txn.insert("Logical_Switch_Port", next.columns());
            member(txn, "Logical_Switch", switch, "ports", id, true);
        }
    }
    true
}

fn router_port(
    of: &Str,
    name: &Str,
    rows: &[Uuid],
    wanted: Option<&RouterPort>,
    m: &Making<'_>,
    txn: &mut Transaction,
) -> bool {
    let nb = &m.input.nb;
    let row = rows.first().and_then(|id| Some((*id, nb.db.logical_router_port.get(id)?)));
    let Some(wanted) = wanted else {
        if let Some((id, _)) = row
            && let Some(router) = nb.router_of_port(id)
        {
            member(txn, "Logical_Router", router, "ports", id, false);
        }
        return true;
    };
    let options = |now: &Map<Str, Str>| {
        let set = [(TR, Some(name.clone())), (CHASSIS, some(&wanted.chassis)), (TUNNEL_KEY, number(wanted.key))];
        with(now, &set)
    };
    match row {
        Some((id, p)) => {
            let changes = [
                differs("mac", &p.mac, &wanted.mac),
                differs("networks", &p.networks, &wanted.networks),
                differs("options", &p.options, &options(&p.options)),
            ];
            txn.update("Logical_Router_Port", id, changes.into_iter().flatten());
        }
        None => {
            let Some((router, _)) = nb.router_of_transit(of) else { return false };
            let row = nb::LogicalRouterPort {
                mac: wanted.mac.clone(),
                name: name.clone(),
                networks: wanted.networks.clone(),
                options: options(&Map::new()),
                ..nb::LogicalRouterPort::default()
            };
            let id = txn.insert("Logical_Router_Port", row.columns());
            member(txn, "Logical_Router", router, "ports", id, true);
        }
    }
    true
}

fn static_route(
    router: Uuid,
    from: Uuid,
    rows: &[Uuid],
    wanted: Option<&StaticRoute>,
    m: &Making<'_>,
    txn: &mut Transaction,
) {
    let nb = &m.input.nb;
    // A route that somebody copied is one too many.
    let keep = usize::from(wanted.is_some());
    for id in rows.iter().skip(keep) {
        if let Some(of) = nb.router_of_static_route(*id) {
            member(txn, "Logical_Router", of, "static_routes", *id, false);
        }
    }
    let Some(wanted) = wanted else { return };
    let options = |now: &Map<Str, Str>| {
        with(now, &[(ORIGIN, some(&wanted.origin)), ("override-connected", yes(wanted.override_connected))])
    };
    match rows.first().and_then(|id| Some((*id, nb.db.logical_router_static_route.get(id)?))) {
        Some((id, row)) => {
            let changes = [
                differs("ip_prefix", &row.ip_prefix, &wanted.prefix),
                differs("nexthop", &row.nexthop, &wanted.nexthop),
                differs("route_table", &row.route_table, &wanted.table),
                differs("options", &row.options, &options(&row.options)),
            ];
            txn.update("Logical_Router_Static_Route", id, changes.into_iter().flatten());
        }
        None if nb.db.logical_router.contains_key(&router) => {
            let row = nb::LogicalRouterStaticRoute {
                external_ids: with(&Map::new(), &[(LEARNED_ROUTE, Some(text(from)))]),
                ip_prefix: wanted.prefix.clone(),
                nexthop: wanted.nexthop.clone(),
                options: options(&Map::new()),
                route_table: wanted.table.clone(),
                ..nb::LogicalRouterStaticRoute::default()
            };
            let id = txn.insert("Logical_Router_Static_Route", row.columns());
            member(txn, "Logical_Router", router, "static_routes", id, true);
        }
        None => {}
    }
}
