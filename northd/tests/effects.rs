//! What options of ovn-nb(5) that no recorded situation sets lead to: northbound content, and the flows and columns that it must
//! or must not yield. The expectations are what ovn-northd 26.03 put out for the same content.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use northd::Compiler;
use northd::model::{Cell, Key, RowKey, Value};
use northd::stage::Stage::{self, *};
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::sync::Arc;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(1 << 100 | n)
}

fn options(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| (Str::from(*k), Str::from(*v))).collect()
}

const S: u128 = 1;
const PUBLIC: u128 = 2;
const R: u128 = 3;
const G: u128 = 4;
const VM: u128 = 10;
const UP: u128 = 11;
const OUT: u128 = 13;
const INNER: u128 = 20;
const OUTER: u128 = 21;
const NAT: u128 = 30;
const LB: u128 = 31;
const ACL: u128 = 32;
const ROUTE: u128 = 33;
const QOS: u128 = 34;
const SET: u128 = 35;
const GLOBAL: u128 = 36;

/// A port of a router, with the switch port at its other end.
fn link(db: &mut nb::Database, (lsp, lrp): (u128, u128), names: (&str, &str), mac: &str, networks: &[&str]) {
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
fn network() -> nb::Database {
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

fn edit<T: Clone>(rows: &mut ovn_schema::Rows<T>, n: u128, change: impl FnOnce(&mut T)) {
    let row = rows.get_mut(&id(n)).unwrap();
    change(Arc::make_mut(row));
}

/// Gives router r a NAT rule.
fn nat(db: &mut nb::Database, kind: &str, external: &str, logical: &str, pairs: &[(&str, &str)]) {
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
fn balance(db: &mut nb::Database, router: u128, vip: &str, pairs: &[(&str, &str)]) {
    let vips = options(&[(vip, if vip.starts_with('[') { "[fd00::9]:80" } else { "10.0.0.10:80" })]);
    let row = nb::LoadBalancer { name: "lb".into(), vips, options: options(pairs), ..Default::default() };
    db.load_balancer.insert(id(LB), Arc::new(row));
    edit(&mut db.logical_router, router, |r| r.load_balancer = [id(LB)].into());
}

fn config(db: &mut nb::Database, pairs: &[(&str, &str)]) {
    edit(&mut db.logical_switch, S, |s| s.other_config = options(pairs));
}

/// Gives router g a static route.
fn route(db: &mut nb::Database, prefix: &str, pairs: &[(&str, &str)], fields: &[&str]) {
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

fn stateful(db: &mut nb::Database) {
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
fn qos(db: &mut nb::Database, action: &[(&str, i64)]) {
    let action = action.iter().map(|(k, v)| (Str::from(*k), *v)).collect();
    let row =
        nb::Qos { action, direction: "from-lport".into(), r#match: "ip".into(), priority: 7, ..Default::default() };
    db.qos.insert(id(QOS), Arc::new(row));
    edit(&mut db.logical_switch, S, |s| s.qos_rules = [id(QOS)].into());
}

fn redirect(db: &mut nb::Database, protocols: &str) {
    let pairs = [("routing-protocol-redirect", "vm"), ("routing-protocols", protocols)];
    edit(&mut db.logical_router_port, INNER, |p| p.options = options(&pairs));
}

/// One expectation: whether there is a flow of a stage at a priority with this match and these actions.
type Expected = (bool, Stage, u16, &'static str, &'static str);

/// A change of the network, and what it leads to.
type Case = (&'static str, fn(&mut nb::Database), &'static [Expected]);

const CASES: &[Case] = &[
    ("nothing", |_| {}, &[(true, LrInIpInput, 60, "ip4.dst == {172.16.0.1}", "drop;")]),
    (
        "snat to the port's own address",
        |db| nat(db, "snat", "172.16.0.1", "10.0.0.0/24", &[]),
        &[
            (false, LrInIpInput, 60, "ip4.dst == {172.16.0.1}", "drop;"),
            (true, LrInArpResolve, 2, "ip4.dst == {172.16.0.1}", "drop;"),
        ],
    ),
    (
        "dnat_and_snat to the port's own address",
        |db| nat(db, "dnat_and_snat", "172.16.0.1", "10.0.0.10", &[]),
        &[
            (true, LrInIpInput, 60, "ip4.dst == {172.16.0.1}", "drop;"),
            (false, LrInArpResolve, 2, "ip4.dst == {172.16.0.1}", "drop;"),
        ],
    ),
    (
        "lb_force_snat_ip=router_ip and a virtual address that is the port's own",
        |db| {
            balance(db, G, "172.16.0.2:80", &[]);
            let pairs = [("chassis", "ch"), ("lb_force_snat_ip", "router_ip")];
            edit(&mut db.logical_router, G, |r| r.options = options(&pairs));
        },
        &[
            (false, LrInIpInput, 60, "ip4.dst == {172.16.0.2}", "drop;"),
            (true, LrInArpResolve, 2, "ip4.dst == {172.16.0.2}", "drop;"),
        ],
    ),
    (
        "add_route of a NAT rule",
        |db| nat(db, "dnat_and_snat", "172.16.0.100", "10.0.0.10", &[("add_route", "true")]),
        &[
            (
                true,
                LrInIpRouting,
                1938,
                "ip4.dst == 172.16.0.100/32",
                "ip.ttl--; reg8[0..15] = 0; reg0 = ip4.dst; reg5 = 172.16.0.2; eth.src = 0a:02:00:00:00:01; \
                 outport = \"g-public\"; flags.loopback = 1; reg9[9] = 1; next;",
            ),
            (
                true,
                LrInArpResolve,
                100,
                "outport == \"g-public\" && reg0 == {172.16.0.100}",
                "eth.dst = 0a:01:00:00:00:02; next;",
            ),
        ],
    ),
    (
        "a network that begins as link-local ones do and is none",
        |db| edit(&mut db.logical_router_port, INNER, |p| p.networks.extend([Str::from("fe80:10::1/64")])),
        &[(
            true,
            LrInIpRouting,
            2322,
            "ip6.dst == fe80:10::/64",
            "ip.ttl--; reg8[0..15] = 0; xxreg0 = ip6.dst; xxreg1 = fe80:10::1; eth.src = 0a:01:00:00:00:01; \
             outport = \"r-s\"; flags.loopback = 1; reg9[9] = 0; next;",
        )],
    ),
    (
        "add_route of a NAT rule whose port is no gateway port",
        |db| {
            nat(db, "dnat_and_snat", "172.16.0.100", "10.0.0.10", &[("add_route", "true")]);
            edit(&mut db.nat, NAT, |n| n.gateway_port = Some(id(INNER)));
        },
        &[
            (false, LrInUnsnat, 100, "ip && ip4.dst == 172.16.0.100 && inport == \"r-public\"", "ct_snat;"),
            (
                true,
                LrInArpResolve,
                100,
                "outport == \"g-public\" && reg0 == {172.16.0.100}",
                "eth.dst = 0a:01:00:00:00:02; next;",
            ),
        ],
    ),
    (
        "mcast_flood of a port that is disabled",
        |db| {
            edit(&mut db.logical_router, R, |r| r.options = options(&[("mcast_relay", "true")]));
            edit(&mut db.logical_router_port, INNER, |p| {
                p.options = options(&[("mcast_flood", "true")]);
                p.enabled = Some(false);
            });
        },
        &[(true, LrInIpRouting, 10450, "ip4.mcast || ip6.mcast", "drop;")],
    ),
    (
        "add_route of a load balancer",
        |db| balance(db, R, "172.16.0.101:80", &[("add_route", "true")]),
        &[(
            true,
            LrInArpResolve,
            100,
            "outport == \"g-public\" && reg0 == {172.16.0.101}",
            "eth.dst = 0a:01:00:00:00:02; next;",
        )],
    ),
    (
        "add_route where the neighbours are asked for",
        |db| {
            balance(db, R, "172.16.0.101:80", &[("add_route", "true")]);
            let pairs = [("chassis", "ch"), ("dynamic_neigh_routers", "true")];
            edit(&mut db.logical_router, G, |r| r.options = options(&pairs));
        },
        &[(
            false,
            LrInArpResolve,
            100,
            "outport == \"g-public\" && reg0 == {172.16.0.101}",
            "eth.dst = 0a:01:00:00:00:02; next;",
        )],
    ),
    (
        "a load balancer without add_route",
        |db| balance(db, R, "172.16.0.101:80", &[]),
        &[(
            false,
            LrInArpResolve,
            100,
            "outport == \"g-public\" && reg0 == {172.16.0.101}",
            "eth.dst = 0a:01:00:00:00:02; next;",
        )],
    ),
    (
        "stateless and allowed_ext_ips",
        |db| {
            nat(db, "dnat_and_snat", "172.16.0.100", "10.0.0.10", &[("stateless", "true")]);
            let set = nb::AddressSet { name: "as".into(), ..Default::default() };
            db.address_set.insert(id(SET), Arc::new(set));
            edit(&mut db.nat, NAT, |n| n.allowed_ext_ips = Some(id(SET)));
        },
        &[(true, LrInGwRedirect, 70, "ip && ip4.dst == 172.16.0.100", "drop;")],
    ),
    (
        "a symmetric route to one host",
        |db| route(db, "10.9.9.9/32", &[("ecmp_symmetric_reply", "true")], &[]),
        &[(true, LrInDefrag, 100, "inport == \"g-public\" && ip4.src == 10.9.9.9", "ct_next;")],
    ),
    (
        "a symmetric route of another zone",
        |db| route(db, "10.9.0.0/16", &[("ecmp_symmetric_reply", "true"), ("origin", "connected")], &[]),
        &[(false, LrInDefrag, 100, "inport == \"g-public\" && ip4.src == 10.9.0.0/16", "ct_next;")],
    ),
    (
        "a symmetric route that is chosen by ports",
        |db| route(db, "10.9.0.0/16", &[("ecmp_symmetric_reply", "true")], &["tp_dst"]),
        &[(
            true,
            LrInIpRouting,
            1745,
            "reg7 == 0 && ip4.dst == 10.9.0.0/16",
            "ip.ttl--; flags.loopback = 1; reg8[0..15] = 1; reg8[16..31] = 1; next;",
        )],
    ),
    (
        "routing-protocol-redirect of BGP",
        |db| redirect(db, "BGP"),
        &[
            (true, LsInL2Lkup, 100, "ip4.dst == 10.0.0.1 && tcp.dst == 179", "outport = \"vm\"; output;"),
            (true, LsInL2Lkup, 100, "ip4.dst == 10.0.0.1 && tcp.src == 179", "outport = \"vm\"; output;"),
            (false, LsInL2Lkup, 100, "ip4.dst == 10.0.0.1 && udp.dst == 3784", "outport = \"vm\"; output;"),
            (
                true,
                LsInL2Lkup,
                100,
                "arp.op == 2 && arp.tpa == 10.0.0.1",
                "clone { outport = \"vm\"; output; }; outport = \"up\"; output;",
            ),
            (true, LsInCheckPortSec, 80, "inport == \"vm\" && nd_na", "reg0[15] = 1; next;"),
        ],
    ),
    (
        "routing-protocol-redirect of BFD",
        |db| redirect(db, "BFD"),
        &[
            (true, LsInL2Lkup, 100, "ip4.dst == 10.0.0.1 && udp.dst == 3784", "outport = \"vm\"; output;"),
            // No BFD session of northd's own runs there.
            (false, LrInIpInput, 110, "ip4.dst == 10.0.0.1 && udp.dst == 3784", "handle_bfd_msg(); "),
        ],
    ),
    (
        "routing-protocol-redirect of nothing",
        |db| redirect(db, "BGP4"),
        &[(false, LsInCheckPortSec, 80, "inport == \"vm\" && nd_na", "reg0[15] = 1; next;")],
    ),
    (
        "EVPN with VNI 0 and access lists",
        |db| {
            stateful(db);
            config(db, &[("dynamic-routing-vni", "0")]);
        },
        &[
            (true, LsInPreAcl, 110, "from_evpn_vtep", "next;"),
            (true, LsOutPreAcl, 110, "to_evpn_vtep", "next;"),
            (true, LsOutPreLb, 110, "to_evpn_vtep", "next;"),
        ],
    ),
    (
        "EVPN without access lists",
        |db| config(db, &[("dynamic-routing-vni", "10")]),
        &[
            (false, LsInPreAcl, 110, "from_evpn_vtep", "next;"),
            (true, LsOutPreLb, 110, "to_evpn_vtep", "flags.pkt_sampled = 0; ct_clear; next;"),
            (true, LsInArpRsp, 40, "nd_ns && reg9[5] == 1", "nd_na { outport = inport; flags.loopback = 1; output; };"),
        ],
    ),
    (
        "a DSCP that there is not",
        |db| qos(db, &[("dscp", 100), ("mark", 3)]),
        &[(true, LsInQos, 7, "ip", "pkt.mark = 3; next;")],
    ),
    ("QoS without actions", |db| qos(db, &[]), &[(true, LsInQos, 7, "ip", "next;")]),
    (
        "debug_drop_collector_set without a domain",
        |db| edit(&mut db.nb_global, GLOBAL, |g| g.options = options(&[("debug_drop_collector_set", "5")])),
        &[(
            true,
            LrInAdmission,
            0,
            "1",
            "sample(probability=65535,collector_set=5,obs_domain=0,obs_point=$cookie); /* drop */",
        )],
    ),
    (
        "enable_router_port_acl where the router port is no gateway",
        |db| {
            stateful(db);
            let pairs = [("router-port", "r-s"), ("enable_router_port_acl", "true")];
            edit(&mut db.logical_switch_port, UP, |p| p.options = options(&pairs));
        },
        &[(true, LsInPreAcl, 110, "ip && inport == \"up\"", "next;")],
    ),
    (
        "arp_proxy that says nothing",
        |db| {
            let pairs = [("router-port", "r-s"), ("arp_proxy", "bad")];
            edit(&mut db.logical_switch_port, UP, |p| p.options = options(&pairs));
        },
        &[(false, LsInArpRsp, 50, "arp.tpa == 10.0.0.1 && arp.op == 1 && eth.dst == 0a:01:00:00:00:01", "next;")],
    ),
    (
        "a disabled port that takes unknown addresses",
        |db| edit(&mut db.logical_switch_port, VM, |p| p.enabled = Some(false)),
        &[
            (true, LsInL2Unknown, 50, "outport == \"none\"", "outport = \"_MC_unknown\"; output;"),
            (true, LsInLookupFdb, 100, "inport == \"vm\"", "reg0[11] = lookup_fdb(inport, eth.src); next;"),
        ],
    ),
    (
        "a disabled port to a router",
        |db| edit(&mut db.logical_switch_port, OUT, |p| p.enabled = Some(false)),
        &[
            (
                true,
                LrInArpResolve,
                100,
                "outport == \"r-public\" && reg0 == 172.16.0.2",
                "eth.dst = 0a:02:00:00:00:01; next;",
            ),
            (
                false,
                LrInArpResolve,
                100,
                "outport == \"g-public\" && reg0 == 172.16.0.1",
                "eth.dst = 0a:01:00:00:00:02; next;",
            ),
        ],
    ),
    (
        "qdisc_queue_id",
        |db| edit(&mut db.logical_switch_port, VM, |p| p.options = options(&[("qdisc_queue_id", "7")])),
        &[(true, LsInCheckPortSec, 70, "inport == \"vm\"", "set_queue(7); reg0[15] = check_in_port_sec(); next;")],
    ),
    (
        "an Ethernet address with more zeros",
        |db| {
            let addresses = [Str::from("0a:00:00:00:00:010 10.0.0.10")].into();
            edit(&mut db.logical_switch_port, VM, |p| p.addresses = addresses);
        },
        &[(true, LsInL2Lkup, 50, "eth.dst == 0a:00:00:00:00:10", "outport = \"vm\"; output;")],
    ),
    (
        "a router that is disabled is nobody's peer",
        |db| {
            join_routers(db);
            edit(&mut db.logical_router, G, |r| r.enabled = Some(false));
        },
        &[(
            false,
            LrInArpResolve,
            100,
            "outport == \"r-g\" && reg0== 100.64.0.2",
            "eth.dst = 0a:03:00:00:00:02; next;",
        )],
    ),
    (
        "routers that are each other's peers",
        join_routers,
        &[(true, LrInArpResolve, 100, "outport == \"r-g\" && reg0== 100.64.0.2", "eth.dst = 0a:03:00:00:00:02; next;")],
    ),
    (
        "arp_proxy of a port to a router",
        |db| proxy(db, true),
        &[(true, LsInArpRsp, 50, "arp.tpa == 172.16.0.50 && arp.op == 1 && eth.dst == 0a:00:00:00:00:50", "next;")],
    ),
    (
        "arp_proxy of a port to a router that is disabled",
        |db| proxy(db, false),
        &[(false, LsInArpRsp, 50, "arp.tpa == 172.16.0.50 && arp.op == 1 && eth.dst == 0a:00:00:00:00:50", "next;")],
    ),
    (
        "a route table whose only route leads nowhere, beside another one",
        |db| {
            for (n, table, hop) in [(60, "a", "9.9.9.9"), (61, "b", "172.16.0.9")] {
                let row = nb::LogicalRouterStaticRoute {
                    ip_prefix: "10.9.0.0/16".into(),
                    nexthop: hop.into(),
                    route_table: table.into(),
                    ..Default::default()
                };
                db.logical_router_static_route.insert(id(n), Arc::new(row));
            }
            edit(&mut db.logical_router, G, |r| r.static_routes = [id(60), id(61)].into());
        },
        &[(
            true,
            LrInIpRouting,
            1744,
            "reg7 == 1 && ip4.dst == 10.9.0.0/16",
            "ip.ttl--; reg8[0..15] = 0; reg0 = 172.16.0.9; reg5 = 172.16.0.2; eth.src = 0a:02:00:00:00:01; \
             outport = \"g-public\"; flags.loopback = 1; reg9[9] = 1; next;",
        )],
    ),
    (
        "a disabled port",
        |db| edit(&mut db.logical_switch_port, VM, |p| p.enabled = Some(false)),
        &[
            (true, LsInCheckPortSec, 100, "inport == \"vm\"", "reg0[15] = 1; next;"),
            (true, LsInL2Unknown, 50, "outport == \"vm\"", "drop;"),
        ],
    ),
    (
        "a disabled external port",
        |db| {
            edit(&mut db.logical_switch_port, VM, |p| {
                p.enabled = Some(false);
                p.r#type = "external".into();
            });
        },
        &[
            (false, LsInCheckPortSec, 100, "inport == \"vm\"", "reg0[15] = 1; next;"),
            (false, LsInL2Unknown, 50, "outport == \"vm\"", "drop;"),
        ],
    ),
    (
        "a disabled port to a distributed gateway port",
        |db| edit(&mut db.logical_switch_port, 12, |p| p.enabled = Some(false)),
        &[
            (true, LsInCheckPortSec, 100, "inport == \"cr-public-r\"", "reg0[15] = 1; next;"),
            (true, LsInL2Unknown, 50, "outport == \"cr-public-r\"", "drop;"),
        ],
    ),
    (
        "virtual-ip as it is written",
        |db| {
            let vip = nb::LogicalSwitchPort {
                name: "vip".into(),
                r#type: "virtual".into(),
                options: options(&[("virtual-ip", "fd00:0::9"), ("virtual-parents", "vm")]),
                ..Default::default()
            };
            db.logical_switch_port.insert(id(50), Arc::new(vip));
            edit(&mut db.logical_switch, S, |s| s.ports.extend([id(50)]));
        },
        &[(
            true,
            LsInArpRsp,
            100,
            "inport == \"vm\" && ((nd_ns && ip6.dst == {fd00:0::9, ff02::1:ff00:9} && nd.target == fd00:0::9) ||\
             (nd_na && nd.target == fd00:0::9))",
            "bind_vport(\"vip\", inport); next;",
        )],
    ),
    (
        "DHCP options that nobody knows, and a mask of one's own",
        |db| {
            let pairs = [
                ("server_id", "10.0.0.1"),
                ("server_mac", "0a:00:00:00:00:99"),
                ("lease_time", "60"),
                ("netmask", "255.255.0.0"),
                ("x", "y"),
            ];
            let row = nb::DhcpOptions { cidr: "10.0.0.0/24".into(), options: options(&pairs), ..Default::default() };
            db.dhcp_options.insert(id(51), Arc::new(row));
            edit(&mut db.logical_switch_port, VM, |p| p.dhcpv4_options = Some(id(51)));
        },
        &[(
            true,
            LsInDhcpOptions,
            100,
            "inport == \"vm\" && eth.src == 0a:00:00:00:00:01 && (ip4.src == {10.0.0.10, 0.0.0.0} && \
             ip4.dst == {10.0.0.1, 255.255.255.255}) && udp.src == 68 && udp.dst == 67",
            "reg0[3] = put_dhcp_opts(offerip = 10.0.0.10, lease_time = 60, netmask = 255.255.0.0, \
             netmask = 255.255.255.0, server_id = 10.0.0.1, x = y); next;",
        )],
    ),
    (
        "a load balancer for a variable, for which all routers answer",
        |db| {
            let pairs = [("template", "true"), ("address-family", "ipv4"), ("neighbor_responder", "all")];
            let row = nb::LoadBalancer {
                name: "lb".into(),
                vips: options(&[("^vip:^port", "^backends")]),
                protocol: Some("tcp".into()),
                options: options(&pairs),
                ..Default::default()
            };
            db.load_balancer.insert(id(LB), Arc::new(row));
            edit(&mut db.logical_router, G, |r| {
                r.load_balancer = [id(LB)].into();
                r.options = options(&[("chassis", "ch"), ("requested-tnl-key", "9")]);
            });
        },
        &[(
            true,
            LrInIpInput,
            90,
            "inport == \"g-public\" && nd_ns && nd.target == $_rtr_lb_9_ip6",
            "nd_na { eth.src = xreg0[0..47]; ip6.src = nd.target; nd.tll = xreg0[0..47]; outport = inport; \
             flags.loopback = 1; output; };",
        )],
    ),
];

/// Lets routers r and g meet without a switch.
fn join_routers(db: &mut nb::Database) {
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
fn proxy(db: &mut nb::Database, enabled: bool) {
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

fn compiled(change: impl FnOnce(&mut nb::Database)) -> Compiler {
    let mut db = network();
    change(&mut db);
    let mut compiler = Compiler::new(db, sb::Database::default());
    compiler.run();
    compiler
}

#[test]
fn options_have_their_flows() {
    let mut wrong = Vec::new();
    for (name, change, expected) in CASES {
        let c = compiled(change);
        let flows: Vec<_> = c
            .engine()
            .outputs()
            .iter()
            .filter_map(|(k, _)| if let Key::Flow(f) = k { Some(f) } else { None })
            .collect();
        for (there, stage, priority, matches, actions) in *expected {
            let found = flows.iter().any(|f| {
                f.stage == *stage && f.priority == *priority && &*f.matches == *matches && &*f.actions == *actions
            });
            if found != *there {
                let near: Vec<_> = flows
                    .iter()
                    .filter(|f| f.stage == *stage && f.priority == *priority)
                    .map(|f| format!("\n    {} | {}", f.matches, f.actions))
                    .collect();
                wrong.push(format!("{name}: {} {priority} {matches}: {found}{}", stage.name(), near.concat()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A column of a southbound row, as its text.
fn column(c: &Compiler, row: &RowKey, name: &str) -> String {
    let outputs = c.engine().outputs();
    let mut values = outputs.id(&Key::Row(row.clone())).map(|id| outputs.values(id)).unwrap_or_default();
    let Some(Value::Row(columns)) = values.pop() else { return String::new() };
    match columns.0.iter().find(|(n, _)| *n == name) {
        Some((_, Cell::Data(datum))) => datum.to_json().to_string(),
        _ => String::new(),
    }
}

#[test]
fn datapaths_say_what_chassis_need_of_their_options() {
    let switch =
        |pairs: &[(&str, &str)]| column(&compiled(|db| config(db, pairs)), &RowKey::datapath(id(S)), "external_ids");
    let evpn = switch(&[
        ("dynamic-routing-vni", "10"),
        ("dynamic-routing-fdb-prefer-local", "true"),
        ("dynamic-routing-arp-prefer-local", "true"),
        ("dynamic-routing-bridge-ifname", "a-name-too-long-for-it"),
        ("dynamic-routing-vxlan-ifname", "vx1,vx2"),
    ]);
    assert!(evpn.contains("arp-prefer-local") && evpn.contains("vx1,vx2"), "{evpn}");
    assert!(!evpn.contains("fdb-prefer-local") && !evpn.contains("bridge-ifname"), "{evpn}");
    let plain =
        switch(&[("dynamic-routing-arp-prefer-local", "true"), ("ct-zone-limit", "0"), ("fdb_age_threshold", "x")]);
    for key in ["arp-prefer-local", "ct-zone-limit", "fdb_age_threshold"] {
        assert!(!plain.contains(key), "{plain}");
    }
    let age = |text: &str| {
        let pairs = [("mac_binding_age_threshold", text)];
        let c = compiled(|db| edit(&mut db.logical_router, R, |r| r.options = options(&pairs)));
        column(&c, &RowKey::datapath(id(R)), "external_ids")
    };
    assert!(age("10.0.0.0/8:60;30;fd00::/8:45").contains(r#"["mac_binding_age_threshold","30"]"#));
    assert!(!age("often").contains("mac_binding_age_threshold"));
    let multicast = compiled(|db| config(db, &[("mcast_table_size", "99999"), ("mcast_query_max_response", "0")]));
    let row = RowKey::new(sb::TableId::IpMulticast, id(S).to_string());
    assert_eq!(
        (column(&multicast, &row, "table_size"), column(&multicast, &row, "query_max_resp")),
        ("99999".into(), "0".into())
    );
}

/// Who looks for EVPN's devices is told which option is missing.
#[test]
fn devices_of_evpn_that_are_not_named_are_reported() {
    let reported = |pairs: &[(&str, &str)]| {
        let c = compiled(|db| config(db, pairs));
        let keys = c.engine().outputs().iter();
        keys.filter(|(k, _)| matches!(k, Key::Diagnostic(text) if text.starts_with("Missing dynamic-routing-"))).count()
    };
    assert_eq!(reported(&[]), 0);
    assert_eq!(reported(&[("dynamic-routing-vni", "10"), ("dynamic-routing-vxlan-ifname", "vx1")]), 2);
}

/// A static route may name another router's port; then it is that router's.
#[test]
fn a_route_is_that_of_its_ports_router() {
    let c = compiled(|db| {
        route(db, "172.30.0.0/16", &[], &[]);
        edit(&mut db.logical_router_static_route, ROUTE, |r| {
            r.nexthop = "10.0.0.9".into();
            r.output_port = Some("r-s".into());
        });
    });
    let actions = "ip.ttl--; reg8[0..15] = 0; reg0 = 10.0.0.9; reg5 = 10.0.0.1; eth.src = 0a:01:00:00:00:01; \
                   outport = \"r-s\"; flags.loopback = 1; reg9[9] = 1; next;";
    let datapaths: Vec<Uuid> = c
        .engine()
        .outputs()
        .iter()
        .filter(|(k, _)| matches!(k, Key::Flow(f) if f.priority == 1744 && &*f.actions == actions))
        .flat_map(|(_, values)| values.filter_map(Value::datapaths).flat_map(|d| d.all().to_vec()).collect::<Vec<_>>())
        .collect();
    assert_eq!(datapaths, [id(R)]);
}

/// An address that is advertised from the chassis of a port is not advertised by all chassis as well.
#[test]
fn advertised_once() {
    let c = compiled(|db| {
        balance(db, G, "172.16.0.150:80", &[]);
        edit(&mut db.logical_router, R, |r| r.load_balancer = [id(LB)].into());
        let pairs = [("chassis", "ch"), ("dynamic-routing", "true"), ("dynamic-routing-redistribute", "lb")];
        edit(&mut db.logical_router, G, |r| r.options = options(&pairs));
    });
    let name = |k: &Key| match k {
        Key::Row(r) if r.table == sb::TableId::AdvertisedRoute => Some(r.name.to_string()),
        _ => None,
    };
    let rows: Vec<String> = c.engine().outputs().iter().filter_map(|(k, _)| name(k)).collect();
    assert_eq!(rows, ["g-public 172.16.0.150 r-public"]);
}

/// A port group's address sets have the addresses alone, whatever the length of the prefix behind them.
#[test]
fn address_sets_of_groups_have_addresses() {
    let c = compiled(|db| {
        edit(&mut db.logical_switch_port, VM, |p| p.addresses = [Str::from("0a:00:00:00:00:01 10.0.0.10/24")].into());
        let group = nb::PortGroup { name: "pg".into(), ports: [id(VM)].into(), ..Default::default() };
        db.port_group.insert(id(55), Arc::new(group));
    });
    assert_eq!(column(&c, &RowKey::new(sb::TableId::AddressSet, "pg_ip4"), "addresses"), "\"10.0.0.10\"");
}

/// The rows of DNS records have the UUIDs of the northbound ones, and names as they are written.
#[test]
fn dns_records_as_they_are() {
    let c = compiled(|db| {
        let row = nb::Dns { records: options(&[("VM.Example", "10.0.0.10 FD00::9")]), ..Default::default() };
        db.dns.insert(id(56), Arc::new(row));
        edit(&mut db.logical_switch, S, |s| s.dns_records = [id(56)].into());
    });
    let row = RowKey::new(sb::TableId::Dns, id(56).to_string());
    assert_eq!(column(&c, &row, "records"), r#"["map",[["VM.Example","10.0.0.10 fd00::9"]]]"#);
    assert_eq!(c.sync().row_of(&row), Some(id(56)));
}

/// The protocol of a load balancer is what is written, be it nothing.
#[test]
fn a_load_balancer_without_a_protocol() {
    let c = compiled(|db| balance(db, G, "172.16.0.150:80", &[]));
    let row = RowKey::new(sb::TableId::LoadBalancer, id(LB).to_string());
    assert_eq!(column(&c, &row, "protocol"), r#"["set",[]]"#);
}

/// The way to where packets of a port are mirrored is in the groups that the port is in, and in none if that is disabled.
#[test]
fn mirrored_as_the_port_is() {
    let groups = |enabled: bool| {
        let c = compiled(|db| {
            let mirror = nb::Mirror {
                name: "m".into(),
                r#type: "lport".into(),
                sink: "other".into(),
                filter: "both".into(),
                ..Default::default()
            };
            db.mirror.insert(id(57), Arc::new(mirror));
            proxy(db, true);
            edit(&mut db.logical_switch_port, VM, |p| {
                p.mirror_rules = [id(57)].into();
                p.options = options(&[("mcast_flood", "true")]);
                p.enabled = Some(enabled);
            });
        });
        let way = RowKey::port("mp-s-other");
        let has = |name: &str| {
            let key = Key::Row(RowKey::new(sb::TableId::MulticastGroup, format!("{}/{name}", id(S))));
            let outputs = c.engine().outputs();
            let values = outputs.id(&key).map(|id| outputs.values(id)).unwrap_or_default();
            values.iter().any(|v| {
                matches!(v, Value::Row(row) if row.0.iter().any(|(_, cell)| matches!(cell, Cell::Refs(all) if all.contains(&way))))
            })
        };
        ["_MC_flood", "_MC_flood_l2", "_MC_static", "_MC_unknown"].map(has)
    };
    assert_eq!(groups(true), [true, true, true, false]);
    assert_eq!(groups(false), [false; 4]);
}

/// A disabled port is not checked.
#[test]
fn no_check_of_a_disabled_port() {
    let monitors = |enabled: bool| {
        let c = compiled(|db| {
            let row = nb::LogicalSwitchPortHealthCheck {
                protocol: "tcp".into(),
                src_ip: "10.0.0.254".into(),
                address: "10.0.0.10".into(),
                port: 80,
                ..Default::default()
            };
            db.logical_switch_port_health_check.insert(id(58), Arc::new(row));
            edit(&mut db.logical_switch_port, VM, |p| {
                p.health_checks = [id(58)].into();
                p.enabled = Some(enabled);
            });
        });
        let is = |k: &Key| matches!(k, Key::Row(r) if r.table == sb::TableId::ServiceMonitor);
        c.engine().outputs().iter().filter(|(k, _)| is(k)).count()
    };
    assert_eq!((monitors(true), monitors(false)), (1, 0));
}

/// Roles and permissions that others made are left alone; northd's own are made again where they were changed.
#[test]
fn permissions_of_others_stay() {
    let permission = |table: &str| sb::RbacPermission { table: table.into(), ..Default::default() };
    let mut southbound = sb::Database::default();
    southbound.rbac_permission.insert(id(70), Arc::new(permission("Load_Balancer")));
    southbound.rbac_permission.insert(id(71), Arc::new(permission("Chassis")));
    let permissions = [(Str::from("Load_Balancer"), id(70))].into_iter().collect();
    southbound.rbac_role.insert(id(72), Arc::new(sb::RbacRole { name: "custom-role".into(), permissions }));
    let mut compiler = Compiler::new(network(), southbound);
    let changes = compiler.run();
    let gone: Vec<_> = changes.sb.iter().filter(|op| matches!(op, northd::Op::Delete(..))).collect();
    assert!(gone.is_empty(), "{gone:?}");
    let made = |op: &&northd::Op<sb::TableId>| matches!(op, northd::Op::Insert(sb::TableId::RbacPermission, ..));
    let fresh = Compiler::new(network(), sb::Database::default()).run();
    assert_eq!(changes.sb.iter().filter(made).count(), fresh.sb.iter().filter(made).count());
}

/// Groups that were learned stay, and are served, while a chassis says so.
#[test]
fn learned_groups_are_for_chassis_to_take_back() {
    let mut southbound = sb::Database::default();
    let (datapath, vm, chassis) = (id(75), id(76), id(73));
    let row = sb::DatapathBinding { nb_uuid: Some(id(S)), tunnel_key: 1, ..Default::default() };
    southbound.datapath_binding.insert(datapath, Arc::new(row));
    let row = sb::PortBinding { logical_port: "vm".into(), datapath, tunnel_key: 1, ..Default::default() };
    southbound.port_binding.insert(vm, Arc::new(row));
    southbound.chassis.insert(chassis, Arc::new(sb::Chassis { name: "ch".into(), ..Default::default() }));
    let group = sb::IgmpGroup {
        address: "239.0.1.68".into(),
        chassis: Some(chassis),
        datapath: Some(datapath),
        ports: [vm].into(),
        ..Default::default()
    };
    southbound.igmp_group.insert(id(74), Arc::new(group));
    let mut c = Compiler::new(network(), southbound);
    let changes = c.run();
    let gone = |op: &northd::Op<sb::TableId>| matches!(op, northd::Op::Delete(sb::TableId::IgmpGroup, _));
    assert!(!changes.sb.iter().any(gone));
    let served = |k: &Key| matches!(k, Key::Flow(f) if &*f.matches == "eth.mcast && ip4 && ip4.dst == 239.0.1.68 ");
    assert_eq!(c.engine().outputs().iter().filter(|(k, _)| served(k)).count(), 1);
}

/// Of two checks of one port of a machine that come from two addresses, the last one is made.
#[test]
fn the_last_check_counts() {
    let sources = |numbers: [u128; 2]| {
        let c = compiled(|db| {
            for (n, source) in numbers.into_iter().zip(["10.0.0.253", "10.0.0.254"]) {
                let row = nb::LogicalSwitchPortHealthCheck {
                    protocol: "tcp".into(),
                    src_ip: source.into(),
                    address: "10.0.0.10".into(),
                    port: 80,
                    ..Default::default()
                };
                db.logical_switch_port_health_check.insert(id(n), Arc::new(row));
            }
            edit(&mut db.logical_switch_port, VM, |p| p.health_checks = numbers.map(id).into());
        });
        let monitor = |k: &Key| match k {
            Key::Row(r) if r.table == sb::TableId::ServiceMonitor => Some(r.clone()),
            _ => None,
        };
        let rows: Vec<RowKey> = c.engine().outputs().iter().filter_map(|(k, _)| monitor(k)).collect();
        rows.iter().map(|r| column(&c, r, "src_ip")).collect::<Vec<_>>()
    };
    assert_eq!(sources([58, 59]), ["\"10.0.0.254\""]);
    assert_eq!(sources([59, 58]), ["\"10.0.0.253\""]);
}

/// A router's gateway port stays centralized where the load balancer that is distributed comes by a group.
#[test]
fn distributed_by_itself_only() {
    let options_of = |by_group: bool| {
        let c = compiled(|db| {
            balance(db, R, "172.16.0.150:80", &[("distributed", "true")]);
            if by_group {
                let load_balancer = [id(LB)].into();
                db.load_balancer_group
                    .insert(id(59), Arc::new(nb::LoadBalancerGroup { name: "g".into(), load_balancer }));
                edit(&mut db.logical_router, R, |r| {
                    r.load_balancer = [].into();
                    r.load_balancer_group = [id(59)].into();
                });
            }
        });
        column(&c, &RowKey::port("cr-r-public"), "options")
    };
    assert!(options_of(true).contains("always-redirect"), "{}", options_of(true));
    assert!(!options_of(false).contains("always-redirect"), "{}", options_of(false));
}
