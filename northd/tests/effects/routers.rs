//! Routes, redirections of routing protocols, and routers that meet.

use super::fixtures::*;
use northd::stage::Stage::*;
use ovn_schema::{Str, nb};
use std::sync::Arc;

pub const CASES: &[Case] = &[
    (
        "a network that cannot be read, which makes the link-local one no network that was asked for",
        |db| edit(&mut db.logical_router_port, INNER, |p| p.networks.extend([Str::from("bad")])),
        &[(
            false,
            LrInNetworkId,
            110,
            "outport == \"r-s\" && ip6 && xxreg0 == fe80::801:ff:fe00:1/64",
            "flags.network_id = 0; next;",
        )],
    ),
    (
        "a network of the unspecified address, which is none",
        |db| edit(&mut db.logical_router_port, INNER, |p| p.networks.extend([Str::from("0.0.0.0/0")])),
        &[(true, LrInIpInput, 60, "ip4.dst == {10.0.0.1}", "drop;")],
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
        "a policy to a link-local address, which is in the networks of all ports: of two without a physical network by the first",
        link_local_policy,
        &[(
            true,
            LrInPolicy,
            100,
            "ip6.dst == 2001:db8::/32",
            "xxreg0 = fe80::99; xxreg1 = fe80::801:ff:fe00:2; eth.src = 0a:01:00:00:00:02; outport = \"r-public\"; \
             flags.loopback = 1; reg8[0..15] = 0; reg9[9] = 0; next;",
        )],
    ),
    (
        "such a policy where one of the ports is at a physical network: by that one",
        |db| {
            link_local_policy(db);
            let port = nb::LogicalSwitchPort { name: "ln".into(), r#type: "localnet".into(), ..Default::default() };
            db.logical_switch_port.insert(id(51), Arc::new(port));
            edit(&mut db.logical_switch, S, |s| s.ports.extend([id(51)]));
        },
        &[(
            true,
            LrInPolicy,
            100,
            "ip6.dst == 2001:db8::/32",
            "xxreg0 = fe80::99; xxreg1 = fe80::801:ff:fe00:1; eth.src = 0a:01:00:00:00:01; outport = \"r-s\"; \
             flags.loopback = 1; reg8[0..15] = 0; reg9[9] = 0; next;",
        )],
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
        "enable_router_port_acl where the router port is no gateway",
        |db| {
            stateful(db);
            let pairs = [("router-port", "r-s"), ("enable_router_port_acl", "true")];
            edit(&mut db.logical_switch_port, UP, |p| p.options = options(&pairs));
        },
        &[(true, LsInPreAcl, 110, "ip && inport == \"up\"", "next;")],
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
];

/// Gives router r a policy whose next hop is in the networks of both its ports.
fn link_local_policy(db: &mut nb::Database) {
    let row = nb::LogicalRouterPolicy {
        priority: 100,
        r#match: "ip6.dst == 2001:db8::/32".into(),
        action: "reroute".into(),
        nexthops: [Str::from("fe80::99")].into(),
        ..Default::default()
    };
    db.logical_router_policy.insert(id(50), Arc::new(row));
    edit(&mut db.logical_router, R, |r| r.policies = [id(50)].into());
}
