//! From a description to northbound rows, and from there to the changes that are missing.

use crate::document::{Dhcp, Network, Router, RouterPort, Switch};
use ovsdb_rs::client::{Replica, Transaction};
use ovsdb_rs::{Atom, Datum, Str, Uuid};
use std::collections::BTreeMap;

/// Marks rows that a description made, so that what it no longer names can go.
const MARK: &str = "isthmus-apply";

/// A row by table and key.
pub type Key = (&'static str, String);

/// A column's wanted value.
#[derive(Clone, Debug)]
pub enum Want {
    /// As it stands.
    Value(Datum),
    /// References to other wanted rows.
    Rows(Vec<Key>),
    /// These pairs and whatever others are there.
    Pairs(BTreeMap<String, String>),
}

/// A wanted row's columns.
pub type Columns = BTreeMap<&'static str, Want>;

/// All wanted rows.
pub type Wanted = BTreeMap<Key, Columns>;

/// A change, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// `+`, `~` or `-`.
    pub sign: char,
    /// What.
    pub text: String,
}

fn string(s: &str) -> Atom {
    Atom::String(s.into())
}
fn text(s: &str) -> Want {
    Want::Value(Datum::Scalar(string(s)))
}
fn texts<S: AsRef<str>>(list: impl IntoIterator<Item = S>) -> Want {
    Want::Value(Datum::set(list.into_iter().map(|s| string(s.as_ref())).collect()))
}
fn optional(s: Option<&str>) -> Want {
    texts(s)
}
fn pairs<K: AsRef<str>, V: AsRef<str>>(list: impl IntoIterator<Item = (K, V)>) -> Datum {
    Datum::map(list.into_iter().map(|(k, v)| (string(k.as_ref()), string(v.as_ref()))).collect())
}
fn map<K: AsRef<str>, V: AsRef<str>>(list: impl IntoIterator<Item = (K, V)>) -> Want {
    Want::Value(pairs(list))
}
fn number(n: i64) -> Want {
    Want::Value(Datum::Scalar(Atom::Integer(n)))
}
fn marked(key: &str) -> Want {
    Want::Pairs(BTreeMap::from([(MARK.to_string(), key.to_string())]))
}

/// The rows that a description asks for.
pub fn wanted(n: &Network) -> Wanted {
    let mut w = Wanted::new();
    for l in &n.load_balancers {
        let name = &l.name.value;
        let vips = l.vips.iter().map(|(vip, backends)| (vip.clone(), backends.join(",")));
        let mut columns = Columns::from([
            ("name", text(name)),
            ("protocol", optional(l.protocol.as_ref().map(|p| p.value.as_str()))),
            ("vips", map(vips)),
            ("external_ids", marked(name)),
        ]);
        if let Some(a) = &l.affinity {
            columns.insert("options", map([("affinity_timeout", a.value.to_string())]));
        }
        w.insert(("Load_Balancer", name.clone()), columns);
    }
    for s in &n.switches {
        switch(s, n, &mut w);
    }
    for r in &n.routers {
        router(r, &mut w);
    }
    if !n.options.is_empty() {
        let options = Want::Pairs(n.options.clone());
        w.insert(("NB_Global", String::new()), Columns::from([("options", options)]));
    }
    w
}

fn balancers(list: &[crate::document::Text]) -> Want {
    Want::Rows(list.iter().map(|l| ("Load_Balancer", l.value.clone())).collect())
}

fn switch(s: &Switch, n: &Network, w: &mut Wanted) {
    let name = &s.name.value;
    let mut ports = Vec::new();
    let dhcp = s.dhcp.as_ref().map(|d| dhcp_options(name, d, w));
    for p in &s.ports {
        let mut address = p.mac.value.clone();
        p.ips.iter().for_each(|ip| address = format!("{address} {}", ip.value));
        let columns = Columns::from([
            ("name", text(&p.name.value)),
            ("addresses", texts([&address])),
            ("port_security", texts(p.secure.then_some(&address))),
            ("dhcpv4_options", Want::Rows(dhcp.iter().cloned().collect())),
            ("external_ids", marked(&p.name.value)),
        ]);
        ports.push(add("Logical_Switch_Port", &p.name.value, columns, w));
    }
    if let Some(p) = &s.physical {
        let port = format!("{name}-physical");
        let tag = Datum::set(p.vlan.iter().map(|v| Atom::Integer(i64::from(v.value))).collect());
        let columns = Columns::from([
            ("name", text(&port)),
            ("type", text("localnet")),
            ("addresses", texts(["unknown"])),
            ("options", map([("network_name", &p.network.value)])),
            ("tag_request", Want::Value(tag)),
            ("external_ids", marked(&port)),
        ]);
        ports.push(add("Logical_Switch_Port", &port, columns, w));
    }
    let joined = n.routers.iter().flat_map(|r| &r.ports).filter(|p| p.switch.value == *name);
    for p in joined {
        ports.push(router_side(name, p, w));
    }
    let columns = Columns::from([
        ("name", text(name)),
        ("ports", Want::Rows(ports)),
        ("load_balancer", balancers(&s.load_balancers)),
        ("external_ids", marked(name)),
    ]);
    add("Logical_Switch", name, columns, w);
}

fn add(table: &'static str, key: &str, columns: Columns, w: &mut Wanted) -> Key {
    let key = (table, key.to_string());
    w.insert(key.clone(), columns);
    key
}

fn dhcp_options(switch: &str, d: &Dhcp, w: &mut Wanted) -> Key {
    let mut options = BTreeMap::from([
        ("server_id".to_string(), d.router.value.clone()),
        ("server_mac".into(), d.mac.value.clone()),
        ("router".into(), d.router.value.clone()),
        ("lease_time".into(), d.lease.to_string()),
    ]);
    if let Some(mtu) = d.mtu {
        options.insert("mtu".into(), mtu.to_string());
    }
    if !d.dns.is_empty() {
        let list: Vec<&str> = d.dns.iter().map(|t| t.value.as_str()).collect();
        options.insert("dns_server".into(), format!("{{{}}}", list.join(", ")));
    }
    let columns =
        Columns::from([("cidr", text(&d.subnet.value)), ("options", map(options)), ("external_ids", marked(switch))]);
    add("DHCP_Options", switch, columns, w)
}

/// The switch's side of a router port.
fn router_side(switch: &str, p: &RouterPort, w: &mut Wanted) -> Key {
    let name = format!("{switch}-{}", p.name.value);
    let mut options = vec![("router-port", p.name.value.as_str())];
    if !p.gateways.is_empty() {
        // Announce what the router translates where its packets come out.
        options.push(("nat-addresses", "router"));
    }
    let columns = Columns::from([
        ("name", text(&name)),
        ("type", text("router")),
        ("addresses", texts(["router"])),
        ("options", map(options)),
        ("external_ids", marked(&name)),
    ]);
    add("Logical_Switch_Port", &name, columns, w)
}

fn router(r: &Router, w: &mut Wanted) {
    let name = &r.name.value;
    let mut ports = Vec::new();
    for p in &r.ports {
        let mut gateways = Vec::new();
        for (chassis, priority) in &p.gateways {
            let key = format!("{}-{chassis}", p.name.value);
            let columns = Columns::from([
                ("name", text(&key)),
                ("chassis_name", text(chassis)),
                ("priority", number(*priority)),
                ("external_ids", marked(&key)),
            ]);
            gateways.push(add("Gateway_Chassis", &key, columns, w));
        }
        let columns = Columns::from([
            ("name", text(&p.name.value)),
            ("mac", text(&p.mac.value)),
            ("networks", texts(p.networks.iter().map(|n| &n.value))),
            ("gateway_chassis", Want::Rows(gateways)),
            ("external_ids", marked(&p.name.value)),
        ]);
        ports.push(add("Logical_Router_Port", &p.name.value, columns, w));
    }
    let mut routes = Vec::new();
    for route in &r.routes {
        let key = format!("{name}/{}/{}", route.prefix.value, route.nexthop.value);
        let columns = Columns::from([
            ("ip_prefix", text(&route.prefix.value)),
            ("nexthop", text(&route.nexthop.value)),
            ("external_ids", marked(&key)),
        ]);
        routes.push(add("Logical_Router_Static_Route", &key, columns, w));
    }
    let mut nat = Vec::new();
    for n in &r.nat {
        let key = format!("{name}/{}/{}/{}", n.kind.value, n.external.value, n.logical.value);
        let columns = Columns::from([
            ("type", text(&n.kind.value)),
            ("external_ip", text(&n.external.value)),
            ("logical_ip", text(&n.logical.value)),
            ("logical_port", optional(n.port.as_ref().map(|t| t.value.as_str()))),
            ("external_mac", optional(n.mac.as_ref().map(|t| t.value.as_str()))),
            ("external_ids", marked(&key)),
        ]);
        nat.push(add("NAT", &key, columns, w));
    }
    let columns = Columns::from([
        ("name", text(name)),
        ("ports", Want::Rows(ports)),
        ("static_routes", Want::Rows(routes)),
        ("nat", Want::Rows(nat)),
        ("load_balancer", balancers(&r.load_balancers)),
        ("external_ids", marked(name)),
    ]);
    add("Logical_Router", name, columns, w);
}

/// Tables in the order in which people think of them.
pub const TABLES: [&str; 10] = [
    "NB_Global",
    "Logical_Switch",
    "Logical_Switch_Port",
    "DHCP_Options",
    "Logical_Router",
    "Logical_Router_Port",
    "Gateway_Chassis",
    "Logical_Router_Static_Route",
    "NAT",
    "Load_Balancer",
];

/// What a table's rows are called.
fn noun(table: &str) -> &str {
    match table {
        "NB_Global" => "global options",
        "Logical_Switch" => "switch",
        "Logical_Switch_Port" => "switch port",
        "DHCP_Options" => "DHCP of switch",
        "Logical_Router" => "router",
        "Logical_Router_Port" => "router port",
        "Gateway_Chassis" => "gateway",
        "Logical_Router_Static_Route" => "route",
        "NAT" => "NAT",
        _ => "load balancer",
    }
}

/// The changes that make the database what is wanted.
pub fn changes(replica: &Replica, wanted: &Wanted, txn: &mut Transaction) -> Vec<Line> {
    let Some(schema) = replica.schema() else { return Vec::new() };
    let mut have: BTreeMap<Key, Uuid> = BTreeMap::new();
    for table in TABLES {
        let Some(ts) = schema.tables.get(table) else { continue };
        for (uuid, row) in replica.rows(table) {
            let mark =
                row.get(ts, "external_ids").and_then(|d| d.get_str(MARK)).and_then(Atom::as_str).map(String::from);
            // Switches and routers that somebody else made by that name are taken over rather than doubled.
            let named = matches!(
                table,
                "Logical_Switch" | "Logical_Router" | "Logical_Switch_Port" | "Logical_Router_Port" | "Load_Balancer"
            );
            let name =
                row.get(ts, "name").and_then(Datum::scalar).and_then(Atom::as_str).filter(|_| named).map(String::from);
            let key = if table == "NB_Global" {
                Some(String::new())
            } else {
                mark.or(name.filter(|n| wanted.contains_key(&(table, n.clone()))))
            };
            if let Some(key) = key {
                have.insert((table, key), *uuid);
            }
        }
    }
    let uuids: BTreeMap<&Key, Uuid> = wanted.keys().map(|k| (k, have.get(k).copied().unwrap_or_else(fresh))).collect();
    let mut lines = Vec::new();
    for table in TABLES {
        let Some(ts) = schema.tables.get(table) else { continue };
        for (key, columns) in wanted.iter().filter(|(k, _)| k.0 == table) {
            let id = uuids[key];
            let row = have.contains_key(key).then(|| replica.row(table, id)).flatten();
            let is_drained = row.and_then(|r| r.get(ts, "external_ids")).is_some_and(has_drained_priority);
            let columns = if is_drained { &while_drained(columns) } else { columns };
            let mut changed = Vec::new();
            for (name, want) in columns {
                let current = row.and_then(|r| r.get(ts, name));
                let value = resolve(want, current, &uuids);
                let default = ts.column(name).map(|c| c.ty.default_datum());
                if current.or(default.as_ref()) != Some(&value) {
                    changed.push((*name, value));
                }
            }
            let label = format!("{} {}", noun(table), key.1).trim().to_string();
            match row {
                None => {
                    txn.insert_as(id, table, changed);
                    lines.push(Line { sign: '+', text: label });
                }
                Some(_) if !changed.is_empty() => {
                    let names: Vec<&str> = changed.iter().map(|c| c.0).collect();
                    lines.push(Line { sign: '~', text: format!("{label} ({})", names.join(", ")) });
                    txn.update(table, id, changed);
                }
                Some(_) => {}
            }
        }
        for (key, id) in have.iter().filter(|(k, _)| k.0 == table && table != "NB_Global" && !wanted.contains_key(k)) {
            lines.push(Line { sign: '-', text: format!("{} {}", noun(table), key.1) });
            // Rows that others refer to go with the reference.
            if ts.is_root {
                txn.delete(table, *id);
            }
        }
    }
    lines
}

/// Whether a gateway is drained (`isthmusctl gateways drain`).
fn has_drained_priority(external_ids: &Datum) -> bool {
    external_ids.pairs().iter().any(|(k, _)| *k == string(crate::drain::KEY))
}

/// A drained gateway stays so; the priority that is wanted is the one that it gets back.
fn while_drained(columns: &Columns) -> Columns {
    let mut columns = columns.clone();
    if let Some(Want::Value(Datum::Scalar(Atom::Integer(own)))) = columns.remove("priority")
        && let Some(Want::Pairs(p)) = columns.get_mut("external_ids")
    {
        p.insert(crate::drain::KEY.into(), own.to_string());
    }
    columns
}

fn fresh() -> Uuid {
    // A transaction's own numbers: unique, and no state of this program depends on them.
    ovsdb_rs::Uuid::new_v4()
}

fn resolve(want: &Want, current: Option<&Datum>, uuids: &BTreeMap<&Key, Uuid>) -> Datum {
    match want {
        Want::Value(d) => d.clone(),
        Want::Rows(keys) => Datum::set(keys.iter().filter_map(|k| uuids.get(k)).map(|u| Atom::Uuid(*u)).collect()),
        Want::Pairs(p) => {
            let mut all: BTreeMap<Str, Str> = BTreeMap::new();
            for (k, v) in current.map(Datum::pairs).unwrap_or_default() {
                if let (Atom::String(k), Atom::String(v)) = (k, v) {
                    all.insert(k.clone(), v.clone());
                }
            }
            all.extend(p.iter().map(|(k, v)| (Str::from(k.as_str()), Str::from(v.as_str()))));
            pairs(all)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drained_gateway_stays_drained() {
        let columns = Columns::from([("priority", number(30)), ("external_ids", marked("p-gw1"))]);
        let kept = while_drained(&columns);
        assert!(!kept.contains_key("priority"));
        let Some(Want::Pairs(p)) = kept.get("external_ids") else { panic!("{kept:?}") };
        assert_eq!(p.get(crate::drain::KEY).map(String::as_str), Some("30"));
        assert!(has_drained_priority(&pairs(p)) && !has_drained_priority(&pairs([("isthmus-apply", "p-gw1")])));
    }
}
