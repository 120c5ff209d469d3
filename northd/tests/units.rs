//! A change of a port, an access list, a route or a load balancer's backends, and a claim by a chassis, runs as many units
//! in a large network as in a small one. One of a router's address translation also runs those of the router's ports and
//! of their peers, as each port answers for the addresses: two a port.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/written.rs"]
mod written;

use northd::Compiler;
use ovn_schema::{Change, InDatabase, Map, Str, Uuid, nb, sb};
use std::sync::Arc;

fn text(s: impl AsRef<str>) -> Str {
    Str::from(s.as_ref())
}

fn id(kind: u8, n: usize) -> Uuid {
    Uuid::from_u128(u128::from(kind) << 64 | n as u128 | 1 << 100)
}

/// Switches with ports and an access list each, all on one router with a gateway, routes, NAT and a load balancer.
fn network(switches: usize) -> nb::Database {
    let mut db = nb::Database::default();
    db.nb_global.insert(id(0, 0), Arc::default());
    let mut lr = nb::LogicalRouter { name: text("lr"), ..Default::default() };
    lr.options = Map::from([(text("chassis"), text("gw"))]);
    let vips = Map::from([(text("10.255.0.1:80"), text("10.0.0.10:80,10.1.0.10:80"))]);
    db.load_balancer.insert(id(9, 0), Arc::new(nb::LoadBalancer { name: text("lb"), vips, ..Default::default() }));
    lr.load_balancer = [id(9, 0)].into();
    for i in 0..switches {
        let (a, b) = (i / 200, i % 200);
        let mut ls = nb::LogicalSwitch { name: text(format!("ls{i}")), ..Default::default() };
        for p in 0..5 {
            let address = format!("0a:00:{a:02x}:{b:02x}:00:{p:02x} 10.{a}.{b}.{}", 10 + p);
            let lsp = nb::LogicalSwitchPort {
                name: text(format!("p{i}-{p}")),
                addresses: [text(address)].into(),
                ..Default::default()
            };
            db.logical_switch_port.insert(id(1, i * 5 + p), Arc::new(lsp));
            ls.ports.insert(id(1, i * 5 + p));
        }
        let (name, peer) = (text(format!("lrp{i}")), text(format!("ls{i}-lr")));
        let lrp = nb::LogicalRouterPort {
            name: name.clone(),
            mac: text(format!("0a:01:00:00:{a:02x}:{b:02x}")),
            networks: [text(format!("10.{a}.{b}.1/24"))].into(),
            ..Default::default()
        };
        db.logical_router_port.insert(id(2, i), Arc::new(lrp));
        lr.ports.insert(id(2, i));
        let lsp = nb::LogicalSwitchPort {
            name: peer,
            r#type: text("router"),
            addresses: [text("router")].into(),
            options: Map::from([(text("router-port"), name)]),
            ..Default::default()
        };
        db.logical_switch_port.insert(id(3, i), Arc::new(lsp));
        ls.ports.insert(id(3, i));
        db.acl.insert(
            id(4, i),
            Arc::new(nb::Acl {
                direction: text("to-lport"),
                action: text("allow-related"),
                r#match: text("tcp"),
                priority: 100,
                ..Default::default()
            }),
        );
        ls.acls = [id(4, i)].into();
        let route = nb::LogicalRouterStaticRoute {
            ip_prefix: text(format!("172.{}.{b}.0/24", 16 + a)),
            nexthop: text(format!("10.{a}.{b}.9")),
            ..Default::default()
        };
        db.logical_router_static_route.insert(id(5, i), Arc::new(route));
        lr.static_routes.insert(id(5, i));
        let nat = nb::Nat {
            r#type: text("dnat_and_snat"),
            logical_ip: text(format!("10.{a}.{b}.10")),
            external_ip: text(format!("192.0.{a}.{b}")),
            ..Default::default()
        };
        db.nat.insert(id(6, i), Arc::new(nat));
        lr.nat.insert(id(6, i));
        db.logical_switch.insert(id(7, i), Arc::new(ls));
    }
    db.logical_router.insert(id(8, 0), Arc::new(lr));
    db
}

fn edit<T: InDatabase<Database = nb::Database> + Clone>(
    c: &mut Compiler,
    uuid: Uuid,
    wrap: impl Fn(Change<T>) -> nb::AnyChange,
    rows: impl Fn(&mut nb::Database) -> &mut ovn_schema::Rows<T>,
    change: impl Fn(&mut T),
) -> usize {
    c.change_nb(|db| {
        let rows = rows(db);
        let old = rows.get(&uuid).cloned().unwrap();
        let mut new = (*old).clone();
        change(&mut new);
        let new = Arc::new(new);
        rows.insert(uuid, new.clone());
        vec![wrap(Change { uuid, old: Some(old), new: Some(new) })]
    });
    c.run();
    c.engine().stats().ran
}

/// A chassis has a port, and it is up.
fn claim(c: &mut Compiler) -> usize {
    c.change_sb(|db| {
        let (uuid, old) =
            db.port_binding.iter().find(|(_, b)| &*b.logical_port == "p0-0").map(|(u, b)| (*u, b.clone())).unwrap();
        let new = Arc::new(sb::PortBinding { up: Some(true), chassis: Some(id(10, 0)), ..(*old).clone() });
        db.port_binding.insert(uuid, new.clone());
        vec![sb::AnyChange::PortBinding(Change { uuid, old: Some(old), new: Some(new) })]
    });
    c.run();
    c.engine().stats().ran
}

fn counts(switches: usize) -> Vec<(&'static str, usize)> {
    let mut c = Compiler::new(network(switches), sb::Database::default());
    for _ in 0..2 {
        let changes = c.run();
        c.change_sb(|db| written::insert(db, &changes.sb));
    }
    c.run();
    let c = &mut c;
    vec![
        ("claim", claim(c)),
        (
            "port",
            edit(
                c,
                id(1, 0),
                nb::AnyChange::LogicalSwitchPort,
                |d| &mut d.logical_switch_port,
                |p| {
                    p.addresses = [text("0a:00:00:00:00:77 10.0.0.77")].into();
                },
            ),
        ),
        ("access list", edit(c, id(4, 0), nb::AnyChange::Acl, |d| &mut d.acl, |a| a.r#match = text("udp"))),
        (
            "route",
            edit(
                c,
                id(5, 0),
                nb::AnyChange::LogicalRouterStaticRoute,
                |d| &mut d.logical_router_static_route,
                |r| {
                    r.nexthop = text("10.0.0.8");
                },
            ),
        ),
        ("NAT", edit(c, id(6, 0), nb::AnyChange::Nat, |d| &mut d.nat, |n| n.logical_ip = text("10.0.0.11"))),
        (
            "load balancer",
            edit(
                c,
                id(9, 0),
                nb::AnyChange::LoadBalancer,
                |d| &mut d.load_balancer,
                |l| {
                    l.vips = Map::from([(text("10.255.0.1:80"), text("10.0.0.10:80"))]);
                },
            ),
        ),
    ]
}

#[test]
fn the_same_number_in_a_network_ten_times_as_large() {
    let (small, large) = (counts(20), counts(200));
    for ((what, small), (_, large)) in small.into_iter().zip(large) {
        let ports = if what == "NAT" { 2 * (200 - 20) } else { 0 };
        assert_eq!(small + ports, large, "{what}");
    }
}
