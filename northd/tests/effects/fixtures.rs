//! The network that cases change, the changes that several make, and what came of it.

use northd::Compiler;
use northd::model::{Cell, Key, RowKey, Value};
use northd::stage::Stage;
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::sync::Arc;

pub fn id(n: u128) -> Uuid {
    Uuid::from_u128(1 << 100 | n)
}

pub fn options(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| (Str::from(*k), Str::from(*v))).collect()
}

pub const S: u128 = 1;
pub const PUBLIC: u128 = 2;
pub const R: u128 = 3;
pub const G: u128 = 4;
pub const VM: u128 = 10;
pub const UP: u128 = 11;
pub const OUT: u128 = 13;
pub const INNER: u128 = 20;
pub const OUTER: u128 = 21;
pub const NAT: u128 = 30;
pub const LB: u128 = 31;
pub const ACL: u128 = 32;
pub const ROUTE: u128 = 33;
pub const QOS: u128 = 34;
pub const SET: u128 = 35;
pub const GLOBAL: u128 = 36;

/// A port of a router, with the switch port at its other end.
pub fn link(db: &mut nb::Database, (lsp, lrp): (u128, u128), names: (&str, &str), mac: &str, networks: &[&str]) {
    let port = nb::LogicalRouterPort {
        name: names.1.into(),
        mac: mac.into(),
        networks: networks.iter().map(|n| Str::from(*n)).collect(),
        ..Default::default()
    };
    db.logical_router_port.insert(id(lrp), Arc::new(port));
    let port = nb::LogicalSwitchPort {
        name: names.0.into(),
        r#type: "router".into(),
        addresses: [Str::from("router")].into(),
        options: options(&[("router-port", names.1)]),
        ..Default::default()
    };
    db.logical_switch_port.insert(id(lsp), Arc::new(port));
}

/// Switch s with a machine behind router r, which meets gateway router g at switch public.
pub fn network() -> nb::Database {
    let mut db = nb::Database::default();
    db.nb_global.insert(id(GLOBAL), Arc::default());
    let vm = nb::LogicalSwitchPort {
        name: "vm".into(),
        addresses: [Str::from("0a:00:00:00:00:01 10.0.0.10"), Str::from("unknown")].into(),
        ..Default::default()
    };
    db.logical_switch_port.insert(id(VM), Arc::new(vm));
    link(&mut db, (UP, INNER), ("up", "r-s"), "0a:01:00:00:00:01", &["10.0.0.1/24"]);
    link(&mut db, (12, OUTER), ("public-r", "r-public"), "0a:01:00:00:00:02", &["172.16.0.1/24"]);
    link(&mut db, (OUT, 22), ("public-g", "g-public"), "0a:02:00:00:00:01", &["172.16.0.2/24"]);
    let gateway = nb::GatewayChassis { name: "r-public-ch".into(), chassis_name: "ch".into(), ..Default::default() };
    db.gateway_chassis.insert(id(40), Arc::new(gateway));
    edit(&mut db.logical_router_port, OUTER, |p| p.gateway_chassis = [id(40)].into());
    let switch = |name: &str, ports: &[u128]| {
        let ports = ports.iter().map(|p| id(*p)).collect();
        Arc::new(nb::LogicalSwitch { name: name.into(), ports, ..Default::default() })
    };
    db.logical_switch.insert(id(S), switch("s", &[VM, UP]));
    db.logical_switch.insert(id(PUBLIC), switch("public", &[12, OUT]));
    let router = nb::LogicalRouter { name: "r".into(), ports: [id(INNER), id(OUTER)].into(), ..Default::default() };
    db.logical_router.insert(id(R), Arc::new(router));
    let options = options(&[("chassis", "ch")]);
    let router = nb::LogicalRouter { name: "g".into(), ports: [id(22)].into(), options, ..Default::default() };
    db.logical_router.insert(id(G), Arc::new(router));
    db
}

pub fn edit<T: Clone>(rows: &mut ovn_schema::Rows<T>, n: u128, change: impl FnOnce(&mut T)) {
    let row = rows.get_mut(&id(n)).unwrap();
    change(Arc::make_mut(row));
}

/// Gives router r a NAT rule.
pub fn nat(db: &mut nb::Database, kind: &str, external: &str, logical: &str, pairs: &[(&str, &str)]) {
    let row = nb::Nat {
        r#type: kind.into(),
        external_ip: external.into(),
        logical_ip: logical.into(),
        options: options(pairs),
        ..Default::default()
    };
    db.nat.insert(id(NAT), Arc::new(row));
    edit(&mut db.logical_router, R, |r| r.nat = [id(NAT)].into());
}

/// Gives a router a load balancer.
pub fn balance(db: &mut nb::Database, router: u128, vip: &str, pairs: &[(&str, &str)]) {
    let vips = options(&[(vip, if vip.starts_with('[') { "[fd00::9]:80" } else { "10.0.0.10:80" })]);
    let row = nb::LoadBalancer { name: "lb".into(), vips, options: options(pairs), ..Default::default() };
    db.load_balancer.insert(id(LB), Arc::new(row));
    edit(&mut db.logical_router, router, |r| r.load_balancer = [id(LB)].into());
}

pub fn config(db: &mut nb::Database, pairs: &[(&str, &str)]) {
    edit(&mut db.logical_switch, S, |s| s.other_config = options(pairs));
}

/// Gives router g a static route.
pub fn route(db: &mut nb::Database, prefix: &str, pairs: &[(&str, &str)], fields: &[&str]) {
    let row = nb::LogicalRouterStaticRoute {
        ip_prefix: prefix.into(),
        nexthop: "172.16.0.9".into(),
        options: options(pairs),
        selection_fields: fields.iter().map(|f| Str::from(*f)).collect(),
        ..Default::default()
    };
    db.logical_router_static_route.insert(id(ROUTE), Arc::new(row));
    edit(&mut db.logical_router, G, |r| r.static_routes = [id(ROUTE)].into());
}

pub fn stateful(db: &mut nb::Database) {
    let row = nb::Acl {
        action: "allow-related".into(),
        direction: "to-lport".into(),
        r#match: "ip4".into(),
        ..Default::default()
    };
    db.acl.insert(id(ACL), Arc::new(row));
    edit(&mut db.logical_switch, S, |s| s.acls = [id(ACL)].into());
}

/// A rule of quality of service with these actions.
pub fn qos(db: &mut nb::Database, action: &[(&str, i64)]) {
    let action = action.iter().map(|(k, v)| (Str::from(*k), *v)).collect();
    let row =
        nb::Qos { action, direction: "from-lport".into(), r#match: "ip".into(), priority: 7, ..Default::default() };
    db.qos.insert(id(QOS), Arc::new(row));
    edit(&mut db.logical_switch, S, |s| s.qos_rules = [id(QOS)].into());
}

pub fn redirect(db: &mut nb::Database, protocols: &str) {
    let pairs = [("routing-protocol-redirect", "vm"), ("routing-protocols", protocols)];
    edit(&mut db.logical_router_port, INNER, |p| p.options = options(&pairs));
}

/// One expectation: whether there is a flow of a stage at a priority with this match and these actions.
pub type Expected = (bool, Stage, u16, &'static str, &'static str);

/// A change of the network, and what it leads to.
pub type Case = (&'static str, fn(&mut nb::Database), &'static [Expected]);

/// Lets routers r and g meet without a switch.
pub fn join_routers(db: &mut nb::Database) {
    for (port, router, name, peer, last) in [(52, R, "r-g", "g-r", 1), (53, G, "g-r", "r-g", 2)] {
        let row = nb::LogicalRouterPort {
            name: name.into(),
            peer: Some(peer.into()),
            mac: format!("0a:03:00:00:00:0{last}").into(),
            networks: [Str::from(format!("100.64.0.{last}/30"))].into(),
            ..Default::default()
        };
        db.logical_router_port.insert(id(port), Arc::new(row));
        edit(&mut db.logical_router, router, |r| r.ports.extend([id(port)]));
    }
}

/// Router g answers at switch public for a network; a machine is there too.
pub fn proxy(db: &mut nb::Database, enabled: bool) {
    edit(&mut db.logical_switch_port, OUT, |p| {
        p.options = options(&[("router-port", "g-public"), ("arp_proxy", "172.16.1.0/24")]);
    });
    edit(&mut db.logical_router, G, |r| r.enabled = Some(enabled));
    let row = nb::LogicalSwitchPort {
        name: "other".into(),
        addresses: [Str::from("0a:00:00:00:00:50 172.16.0.50")].into(),
        ..Default::default()
    };
    db.logical_switch_port.insert(id(54), Arc::new(row));
    edit(&mut db.logical_switch, PUBLIC, |s| s.ports.extend([id(54)]));
}

pub fn compiled(change: impl FnOnce(&mut nb::Database)) -> Compiler {
    let mut db = network();
    change(&mut db);
    let mut compiler = Compiler::new(db, sb::Database::default());
    compiler.run();
    compiler
}

/// A column of a southbound row, as its text.
pub fn column(c: &Compiler, row: &RowKey, name: &str) -> String {
    let outputs = c.engine().outputs();
    let mut values = outputs.id(&Key::Row(row.clone())).map(|id| outputs.values(id)).unwrap_or_default();
    let Some(Value::Row(columns)) = values.pop() else { return String::new() };
    match columns.0.iter().find(|(n, _)| *n == name) {
        Some((_, Cell::Data(datum))) => datum.to_json().to_string(),
        _ => String::new(),
    }
}
