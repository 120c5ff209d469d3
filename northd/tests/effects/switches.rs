//! Switches and their ports: access rules, quality of service, DHCP, proxies, EVPN.

use super::fixtures::*;
use northd::stage::Stage::*;
use ovn_schema::nb;
use std::sync::Arc;

pub const CASES: &[Case] = &[
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
            "reg0[3] = put_dhcp_opts(offerip = 10.0.0.10, lease_time = 60, netmask = 255.255.255.0, \
             netmask = 255.255.0.0, server_id = 10.0.0.1, x = y); next;",
        )],
    ),
];
