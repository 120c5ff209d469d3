//! A change of a port, an access list, a route, a NAT rule or a load balancer's backends, one of these added, and a claim by a
//! chassis, run as many units in a large network as in a small one. Only a new outside address also runs two for each of the
//! router's ports, as the switch there gets a flow that leads to the router what is asked for the address. What these units look
//! at does not grow with the number of switches or with that of the ports of other switches either.

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

/// Switches with so many ports and an access list each, all on one router with a gateway, routes, NAT and a load balancer.
fn network(switches: usize, ports: usize) -> nb::Database {
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
        for p in 0..ports {
            let address = format!("0a:00:{a:02x}:{b:02x}:00:{p:02x} 10.{a}.{b}.{}", 10 + p);
            let lsp = nb::LogicalSwitchPort {
                name: text(format!("p{i}-{p}")),
                addresses: [text(address)].into(),
                ..Default::default()
            };
            db.logical_switch_port.insert(id(1, i * ports + p), Arc::new(lsp));
            ls.ports.insert(id(1, i * ports + p));
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

/// A compiler whose southbound rows are all there.
fn settled(db: nb::Database) -> Compiler {
    let mut c = Compiler::new(db, sb::Database::default());
    for _ in 0..2 {
        let changes = c.run();
        c.change_sb(|db| written::insert(db, &changes.sb));
    }
    c.run();
    c
}

/// Units that ran, and what they looked at.
type Count = (usize, usize);

fn count(c: &Compiler) -> Count {
    (c.engine().stats().ran, c.engine().stats().looks)
}

fn edit<T: InDatabase<Database = nb::Database> + Clone>(
    c: &mut Compiler,
    uuid: Uuid,
    wrap: impl Fn(Change<T>) -> nb::AnyChange,
    rows: impl Fn(&mut nb::Database) -> &mut ovn_schema::Rows<T>,
    change: impl Fn(&mut T),
) -> Count {
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
    count(c)
}

/// A chassis has a port, and it is up.
fn claim(c: &mut Compiler) -> Count {
    c.change_sb(|db| {
        let (uuid, old) =
            db.port_binding.iter().find(|(_, b)| &*b.logical_port == "p0-0").map(|(u, b)| (*u, b.clone())).unwrap();
        let new = Arc::new(sb::PortBinding { up: Some(true), chassis: Some(id(10, 0)), ..(*old).clone() });
        db.port_binding.insert(uuid, new.clone());
        vec![sb::AnyChange::PortBinding(Change { uuid, old: Some(old), new: Some(new) })]
    });
    c.run();
    count(c)
}

/// A row that another one names; the engine's count after both.
fn add<T: InDatabase<Database = nb::Database>>(
    c: &mut Compiler,
    row: T,
    wrap: impl Fn(Change<T>) -> nb::AnyChange,
    rows: impl Fn(&mut nb::Database) -> &mut ovn_schema::Rows<T>,
    name: impl FnOnce(&mut Compiler, Uuid) -> Count,
) -> Count {
    let uuid = id(11, 0);
    let new = Arc::new(row);
    c.change_nb(|db| {
        rows(db).insert(uuid, new.clone());
        vec![wrap(Change { uuid, old: None, new: Some(new.clone()) })]
    });
    name(c, uuid)
}

fn in_switch(c: &mut Compiler, change: impl Fn(&mut nb::LogicalSwitch)) -> Count {
    edit(c, id(7, 0), nb::AnyChange::LogicalSwitch, |d| &mut d.logical_switch, change)
}

fn in_router(c: &mut Compiler, change: impl Fn(&mut nb::LogicalRouter)) -> Count {
    edit(c, id(8, 0), nb::AnyChange::LogicalRouter, |d| &mut d.logical_router, change)
}

fn counts(switches: usize, ports: usize) -> Vec<(&'static str, Count)> {
    let mut c = settled(network(switches, ports));
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
        ("port added", {
            let row = nb::LogicalSwitchPort {
                name: text("new"),
                addresses: [text("0a:00:00:00:00:78 10.0.0.78")].into(),
                ..Default::default()
            };
            let name = |c: &mut Compiler, u| in_switch(c, |s| s.ports.extend([u]));
            add(c, row, nb::AnyChange::LogicalSwitchPort, |d| &mut d.logical_switch_port, name)
        }),
        ("access list added", {
            let row = nb::Acl {
                direction: text("to-lport"),
                action: text("drop"),
                r#match: text("sctp"),
                ..Default::default()
            };
            add(c, row, nb::AnyChange::Acl, |d| &mut d.acl, |c, u| in_switch(c, |s| s.acls.extend([u])))
        }),
        ("route added", {
            let row = nb::LogicalRouterStaticRoute {
                ip_prefix: text("198.51.100.0/24"),
                nexthop: text("10.0.0.9"),
                ..Default::default()
            };
            let name = |c: &mut Compiler, u| in_router(c, |r| r.static_routes.extend([u]));
            add(c, row, nb::AnyChange::LogicalRouterStaticRoute, |d| &mut d.logical_router_static_route, name)
        }),
        ("outside address added", {
            let row = nb::Nat {
                r#type: text("dnat_and_snat"),
                logical_ip: text("10.0.0.12"),
                external_ip: text("192.0.9.9"),
                ..Default::default()
            };
            add(c, row, nb::AnyChange::Nat, |d| &mut d.nat, |c, u| in_router(c, |r| r.nat.extend([u])))
        }),
    ]
}

#[test]
fn the_same_number_in_a_network_ten_times_as_large() {
    let small = counts(20, 5);
    for (switches, ports) in [(200, 5), (20, 50)] {
        for ((what, small), (_, large)) in small.iter().zip(counts(switches, ports)) {
            // Of each switch the port to the router, and what becomes of requests for the address there.
            let answer = if *what == "outside address added" { 2 * (switches - 20) } else { 0 };
            let what = format!("{what}, {switches} switches with {ports} ports");
            assert_eq!(small.0 + answer, large.0, "units: {what}");
            // What grew is the router, or every switch: of others, nothing more is looked at.
            let of_router = ["route", "NAT", "outside"].iter().any(|w| what.starts_with(w));
            if of_router != (switches > 20) {
                assert_eq!(small.1, large.1, "looks: {what}");
            }
        }
    }
}

/// A port that comes concerns no address that chassis have learned behind other ports.
#[test]
fn a_port_wakes_no_learned_address() {
    let ran = |learned: u128| {
        let mut c = settled(network(2, 3));
        let of = |name: &str| c.input().sb.port_binding.values().find(|b| &*b.logical_port == name).cloned().unwrap();
        let port = of("p0-0");
        let dp_key = c.input().sb.datapath_binding[&port.datapath].tunnel_key;
        c.change_sb(|db| {
            let row = |n: u128| {
                let mac = text(format!("0a:09:00:00:00:{n:02x}"));
                Arc::new(sb::Fdb { mac, dp_key, port_key: port.tunnel_key, ..Default::default() })
            };
            let rows: Vec<_> = (0..learned).map(|n| (Uuid::from_u128(1 << 90 | n), row(n))).collect();
            db.fdb.extend(rows.iter().cloned());
            rows.into_iter().map(|(uuid, new)| sb::AnyChange::Fdb(Change { uuid, old: None, new: Some(new) })).collect()
        });
        let kept = c.run();
        assert!(kept.sb.is_empty(), "{:?}", kept.sb);
        let row = nb::LogicalSwitchPort { name: text("new"), ..Default::default() };
        let name = |c: &mut Compiler, u| in_switch(c, |s| s.ports.extend([u]));
        add(&mut c, row, nb::AnyChange::LogicalSwitchPort, |d| &mut d.logical_switch_port, name).0
    };
    assert_eq!(ran(1), ran(50));
}

/// A service more in a group concerns routers, whose addresses it may have, and no switch and no other service.
#[test]
fn a_service_more_in_a_group_runs_as_much_among_many() {
    let ran = |switches: usize, services: usize| {
        let mut db = network(switches, 2);
        let service = |n: usize| {
            let vip = text(format!("10.254.{}.{}:80", n / 200, n % 200));
            let vips = Map::from([(vip, text("10.0.0.10:80,10.0.0.11:80"))]);
            nb::LoadBalancer { name: text(format!("s{n}")), vips, ..Default::default() }
        };
        db.load_balancer.extend((1..=services).map(|n| (id(9, n), Arc::new(service(n)))));
        let load_balancer = (1..=services).map(|n| id(9, n)).collect();
        let group = nb::LoadBalancerGroup { name: text("all"), load_balancer };
        db.load_balancer_group.insert(id(12, 0), Arc::new(group));
        for ls in db.logical_switch.values_mut() {
            Arc::make_mut(ls).load_balancer_group.insert(id(12, 0));
        }
        Arc::make_mut(db.logical_router.get_mut(&id(8, 0)).unwrap()).load_balancer_group.insert(id(12, 0));
        let mut c = settled(db);
        let name = |c: &mut Compiler, u| {
            let change = |g: &mut nb::LoadBalancerGroup| _ = g.load_balancer.insert(u);
            edit(c, id(12, 0), nb::AnyChange::LoadBalancerGroup, |d| &mut d.load_balancer_group, change)
        };
        add(&mut c, service(9999), nb::AnyChange::LoadBalancer, |d| &mut d.load_balancer, name).0
    };
    let few = ran(5, 5);
    assert_eq!((ran(50, 5), ran(5, 50)), (few, few));
}

/// A route more looks at no NAT rule and no policy of its router, a policy more at no route and no NAT rule.
#[test]
fn a_route_more_looks_at_routes_only() {
    let looks = |others: usize, policy: bool| {
        let mut db = network(2, 2);
        let lr = Arc::make_mut(db.logical_router.get_mut(&id(8, 0)).unwrap());
        for n in 0..others {
            let (logical_ip, external_ip) = (text(format!("10.9.0.{n}")), text(format!("192.0.8.{n}")));
            let nat = nb::Nat { r#type: text("snat"), logical_ip, external_ip, ..Default::default() };
            db.nat.insert(id(13, n), Arc::new(nat));
            lr.nat.insert(id(13, n));
            if policy {
                let (ip_prefix, nexthop) = (text(format!("198.51.{n}.0/24")), text("10.0.0.9"));
                let route = nb::LogicalRouterStaticRoute { ip_prefix, nexthop, ..Default::default() };
                db.logical_router_static_route.insert(id(14, n), Arc::new(route));
                lr.static_routes.insert(id(14, n));
            } else {
                let (action, r#match) = (text("drop"), text(format!("ip4.src == 10.9.0.{n}")));
                let policy = nb::LogicalRouterPolicy { priority: 5, action, r#match, ..Default::default() };
                db.logical_router_policy.insert(id(15, n), Arc::new(policy));
                lr.policies.insert(id(15, n));
            }
        }
        let mut c = settled(db);
        if policy {
            let (action, r#match) = (text("drop"), text("ip4.src == 10.8.0.1"));
            let row = nb::LogicalRouterPolicy { priority: 6, action, r#match, ..Default::default() };
            let name = |c: &mut Compiler, u| in_router(c, |r| r.policies.extend([u]));
            add(&mut c, row, nb::AnyChange::LogicalRouterPolicy, |d| &mut d.logical_router_policy, name)
        } else {
            let (ip_prefix, nexthop) = (text("203.0.113.0/24"), text("10.0.0.9"));
            let row = nb::LogicalRouterStaticRoute { ip_prefix, nexthop, ..Default::default() };
            let name = |c: &mut Compiler, u| in_router(c, |r| r.static_routes.extend([u]));
            add(&mut c, row, nb::AnyChange::LogicalRouterStaticRoute, |d| &mut d.logical_router_static_route, name)
        }
    };
    for policy in [false, true] {
        assert_eq!(looks(3, policy), looks(90, policy), "policy: {policy}");
    }
}

/// Puts southbound rows in, as chassis do; the engine's count after it.
fn from_chassis<T: InDatabase<Database = sb::Database>>(
    c: &mut Compiler,
    rows: impl IntoIterator<Item = (Uuid, T)>,
    wrap: impl Fn(Change<T>) -> sb::AnyChange,
    table: impl Fn(&mut sb::Database) -> &mut ovn_schema::Rows<T>,
) -> Count {
    let rows: Vec<(Uuid, Arc<T>)> = rows.into_iter().map(|(u, r)| (u, Arc::new(r))).collect();
    c.change_sb(|db| {
        table(db).extend(rows.iter().cloned());
        rows.iter().map(|(uuid, new)| wrap(Change { uuid: *uuid, old: None, new: Some(new.clone()) })).collect()
    });
    c.run();
    count(c)
}

/// A multicast group that is joined in a switch concerns that switch, and a port that is asked onto a host one chassis.
#[test]
fn what_chassis_write_concerns_what_it_is_about() {
    let counts = |switches: usize, chassis: usize| {
        let mut db = network(switches, 2);
        for ls in db.logical_switch.values_mut() {
            Arc::make_mut(ls).other_config = Map::from([(text("mcast_snoop"), text("true"))]);
        }
        let mut c = settled(db);
        let host = |n: usize| {
            let (name, hostname) = (text(format!("id-{n}")), text(format!("host-{n}")));
            (id(20, n), sb::Chassis { name, hostname, ..Default::default() })
        };
        from_chassis(&mut c, (0..chassis).map(host), sb::AnyChange::Chassis, |d| &mut d.chassis);
        let asked = |p: &mut nb::LogicalSwitchPort| {
            p.options = Map::from([(text("requested-chassis"), text("host-1"))]);
        };
        let port = edit(&mut c, id(1, 0), nb::AnyChange::LogicalSwitchPort, |d| &mut d.logical_switch_port, asked);
        let binding = c.input().binding("p0-0").map(|(u, _)| u);
        let datapath = c.input().datapath(id(7, 0)).map(|(u, _)| u);
        let group = |n: usize| {
            let address = text(format!("239.0.0.{n}"));
            let ports = binding.into_iter().collect();
            (id(21, n), sb::IgmpGroup { address, datapath, ports, chassis: Some(id(20, 0)), ..Default::default() })
        };
        let joined = from_chassis(&mut c, [group(1)], sb::AnyChange::IgmpGroup, |d| &mut d.igmp_group);
        (port, joined)
    };
    let few = counts(3, 3);
    assert_eq!(few, counts(30, 3));
    assert_eq!(few, counts(3, 90));
}

/// A route that is learned, and one that shares its traffic with another, run as much among few routes as among many.
#[test]
fn a_learned_route_more_runs_as_much_among_many() {
    let counts = |routes: usize| {
        let mut db = network(2, 2);
        let lr = Arc::make_mut(db.logical_router.get_mut(&id(8, 0)).unwrap());
        lr.options = Map::from([(text("dynamic-routing"), text("true"))]);
        let mut c = settled(db);
        let port = c.input().binding("lrp0").map(|(u, _)| u).unwrap();
        let datapath = c.input().datapath(id(8, 0)).map(|(u, _)| u).unwrap();
        let route = |n: usize, nexthop: &str| {
            let ip_prefix = text(format!("198.18.{n}.0/24"));
            let row = sb::LearnedRoute {
                datapath,
                logical_port: port,
                ip_prefix,
                nexthop: text(nexthop),
                ..Default::default()
            };
            (id(22, 2 * n + usize::from(nexthop.ends_with('8'))), row)
        };
        let mut learn = |rows: Vec<_>| {
            let (ran, _) = from_chassis(&mut c, rows, sb::AnyChange::LearnedRoute, |d| &mut d.learned_route);
            ran
        };
        let first = learn((1..routes).map(|n| route(n, "10.0.0.9")).collect());
        (first > routes, learn(vec![route(0, "10.0.0.9")]), learn(vec![route(1, "10.0.0.8")]))
    };
    assert_eq!(counts(3), counts(200));
}

/// Switches on one router with so many NAT rules. Every other rule translates the source, to one address.
fn translating(switches: usize, rules: usize) -> Compiler {
    let mut db = network(switches, 2);
    let lr = Arc::make_mut(db.logical_router.get_mut(&id(8, 0)).unwrap());
    for n in 0..rules {
        let (kind, to) = if n % 2 == 0 { ("snat", 1) } else { ("dnat_and_snat", n) };
        db.nat.insert(id(13, n), Arc::new(rule(n, kind, &format!("198.51.100.{to}"))));
        lr.nat.insert(id(13, n));
    }
    settled(db)
}

fn rule(n: usize, kind: &str, external_ip: &str) -> nb::Nat {
    let logical_ip = text(format!("10.9.{}.{}", n / 200, n % 200));
    nb::Nat { r#type: text(kind), logical_ip, external_ip: text(external_ip), ..Default::default() }
}

/// A NAT rule more runs as many units among few rules as among many, also where its outside address is that of others.
#[test]
fn a_nat_rule_more_runs_as_much_among_many() {
    let ran = |rules: usize, kind: &str, external_ip: &str| {
        let mut c = translating(2, rules);
        let name = |c: &mut Compiler, u| in_router(c, |r| r.nat.extend([u]));
        let row = rule(300, kind, external_ip);
        add(&mut c, row, nb::AnyChange::Nat, |d| &mut d.nat, name).0
    };
    for (kind, to) in [("dnat_and_snat", "192.0.2.200"), ("snat", "198.51.100.1")] {
        assert_eq!(ran(4, kind, to), ran(200, kind, to), "{kind}");
    }
}

/// Another option of a router concerns its rules, and not what each of its switches does with requests for their addresses.
#[test]
fn a_routers_change_asks_its_rules_once() {
    let more = |switches: usize| {
        let ran = |rules: usize| {
            let option = Map::from([(text("mcast_relay"), text("true"))]);
            in_router(&mut translating(switches, rules), |r| r.options = option.clone()).0
        };
        ran(200) - ran(4)
    };
    assert_eq!(more(3), more(30));
}
