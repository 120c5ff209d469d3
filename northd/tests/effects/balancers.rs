//! Load balancers.

use super::fixtures::*;
use northd::stage::Stage::*;
use ovn_schema::nb;
use std::sync::Arc;

pub const CASES: &[Case] = &[
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
