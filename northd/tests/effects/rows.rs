//! Rows and columns of the southbound database.

use super::fixtures::*;
use northd::Compiler;
use northd::model::{Cell, Key, RowKey, Value};
use ovn_schema::{Str, Uuid, nb, sb};
use std::sync::Arc;

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

/// Controllers are told by brackets where the address that a variable stands for ends; an address as such has none.
#[test]
fn brackets_around_variables_alone() {
    let options = [("template", "true"), ("address-family", "ipv6")];
    for (vip, told) in
        [("^vip:80", "[^vip]:80"), ("^vip:^port", "[^vip]:^port"), ("172.16.0.150:80", "172.16.0.150:80")]
    {
        let c = compiled(|db| {
            balance(db, G, vip, &options);
            edit(&mut db.load_balancer, LB, |l| l.vips = super::fixtures::options(&[(vip, "^backends")]));
        });
        let row = RowKey::new(sb::TableId::LoadBalancer, id(LB).to_string());
        assert_eq!(column(&c, &row, "vips"), format!(r#"["map",[["{told}","^backends"]]]"#));
    }
}

/// A chassis that a gateway port names twice is in its group once, with the highest priority.
#[test]
fn a_gateway_chassis_named_twice() {
    for priorities in [[28, 15], [15, 28]] {
        let c = compiled(|db| {
            let ids = [id(60), id(61)];
            for (n, priority) in ids.iter().zip(priorities) {
                let name = format!("r-public-{priority}").into();
                let row = nb::GatewayChassis { name, chassis_name: "ch".into(), priority, ..Default::default() };
                db.gateway_chassis.insert(*n, Arc::new(row));
            }
            edit(&mut db.logical_router_port, OUTER, |p| p.gateway_chassis = ids.into());
        });
        let row = RowKey::new(sb::TableId::HaChassis, "r-public/ch");
        let outputs = c.engine().outputs();
        let id = outputs.id(&Key::Row(row.clone())).unwrap();
        assert_eq!(outputs.values(id).len(), 1, "one row says one thing");
        assert_eq!(column(&c, &row, "priority"), "28");
    }
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
