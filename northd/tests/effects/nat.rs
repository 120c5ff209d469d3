//! Address translation.

use super::fixtures::*;
use northd::stage::Stage::*;
use ovn_schema::{Str, nb};
use std::sync::Arc;

/// Gives router r a stateless rule for some outside addresses only.
fn allow_some(db: &mut nb::Database) {
    nat(db, "dnat_and_snat", "172.16.0.100", "10.0.0.10", &[("stateless", "true")]);
    let set = nb::AddressSet { name: "as".into(), ..Default::default() };
    db.address_set.insert(id(SET), Arc::new(set));
    edit(&mut db.nat, NAT, |n| n.allowed_ext_ips = Some(id(SET)));
}

pub const CASES: &[Case] = &[
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
        "stateless and allowed_ext_ips",
        allow_some,
        &[(true, LrInGwRedirect, 70, "ip && ip4.dst == 172.16.0.100", "drop;")],
    ),
    (
        "stateless and allowed_ext_ips, at a switch with a hardware VTEP",
        |db| {
            allow_some(db);
            let vtep = nb::LogicalSwitchPort { name: "tor".into(), r#type: "vtep".into(), ..Default::default() };
            db.logical_switch_port.insert(id(50), Arc::new(vtep));
            edit(&mut db.logical_switch, PUBLIC, |s| s.ports = [id(12), id(OUT), id(50)].into());
        },
        &[
            (false, LrInGwRedirect, 70, "ip && ip4.dst == 172.16.0.100", "drop;"),
            (false, LrInGwRedirect, 50, "outport == \"r-public\"", "outport = \"cr-r-public\"; next;"),
        ],
    ),
    (
        "an outside address of IPv6 for an inside one of IPv4",
        |db| nat(db, "dnat", "fd00:9::9", "10.0.0.10", &[]),
        &[
            (
                false,
                LrInIpInput,
                90,
                "ip6.dst == {fd00:9::9, ff02::1:ff00:9} && nd_ns && nd.target == fd00:9::9",
                "nd_na { eth.src = xreg0[0..47]; ip6.src = nd.target; nd.tll = xreg0[0..47]; outport = inport; \
                 flags.loopback = 1; output; };",
            ),
            (false, LrInUnsnat, 90, "ip && ip6.dst == fd00:9::9", "ct_snat;"),
        ],
    ),
    (
        "an outside address of IPv4 for an inside one of IPv6",
        |db| nat(db, "dnat_and_snat", "172.16.0.100", "fd00::10", &[]),
        &[(false, LrInUnsnat, 90, "ip && ip4.dst == 172.16.0.100", "ct_snat;")],
    ),
    (
        "an Ethernet address with more zeros",
        |db| {
            let addresses = [Str::from("0a:00:00:00:00:010 10.0.0.10")].into();
            edit(&mut db.logical_switch_port, VM, |p| p.addresses = addresses);
        },
        &[(true, LsInL2Lkup, 50, "eth.dst == 0a:00:00:00:00:10", "outport = \"vm\"; output;")],
    ),
];
