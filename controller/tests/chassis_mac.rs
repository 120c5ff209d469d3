//! Routers on provider networks: cookies of the flows that give a router's address to what another chassis sent
//! (`ovn-chassis-mac-mappings`), and the way to a gateway with `redirect-type=bridged`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::input::model::{Input, Local, Tunnel};
use controller::units::flows::{ChassisFlows, Key, Value};
use incremental::Engine;
use openflow_rs::TableId;
use ovn_schema::{Map, Str, Uuid, sb};
use std::sync::Arc;

fn row(n: u128) -> Uuid {
    Uuid::from_u128(n << 96 | 1)
}

fn port(datapath: Uuid, key: i64, kind: &str, name: &str, options: &[(&str, &str)]) -> Arc<sb::PortBinding> {
    Arc::new(sb::PortBinding {
        datapath,
        tunnel_key: key,
        r#type: kind.into(),
        logical_port: name.into(),
        mac: ["00:00:00:00:00:01 10.0.0.1/24".into()].into(),
        options: options.iter().map(|(k, v)| (Str::from(*k), Str::from(*v))).collect::<Map<Str, Str>>(),
        ..Default::default()
    })
}

#[test]
fn they_name_the_router_port() {
    let (switch, router, chassis) = (row(1), row(2), row(3));
    let mut db = sb::Database::default();
    db.chassis.insert(chassis, Arc::new(sb::Chassis { name: "hv1".into(), ..Default::default() }));
    for (id, key) in [(switch, 1), (router, 2)] {
        db.datapath_binding.insert(id, Arc::new(sb::DatapathBinding { tunnel_key: key, ..Default::default() }));
    }
    db.port_binding.insert(row(11), port(switch, 1, "localnet", "net", &[("network_name", "phys")]));
    db.port_binding.insert(row(12), port(switch, 2, "patch", "to-router", &[("peer", "to-switch")]));
    db.port_binding.insert(row(13), port(router, 1, "patch", "to-switch", &[("peer", "to-router")]));
    let local = Local {
        chassis_name: "hv1".into(),
        chassis: Some(chassis),
        datapaths: [switch, router].into(),
        localnets: [("net".into(), 7)].into(),
        ..Local::default()
    };
    let input = Input::new(db, local);
    let found = Engine::new(ChassisFlows::default()).update(&input, [], |changes| {
        let cookie = |c: incremental::Change<'_, Key, Value>| match (c.key, c.after.first()) {
            (Key::Flow(_, 180, m), Some(Value::Flow(cookie, _))) => Some((m.unpack().unwrap().to_string(), *cookie)),
            _ => None,
        };
        changes.into_iter().filter_map(cookie).collect::<Vec<_>>()
    });
    assert!(found.iter().any(|(m, _)| m.contains("conj_id=100")), "{found:?}");
    // The clause and what follows from it: the router port's row, 13.
    assert!(found.len() == 2 && found.iter().all(|(m, c)| m.contains("in_port=7") && *c == 13), "{found:?}");
}

/// The flows of the port `cr-to-switch`, which another chassis serves: table and actions, with the provider network plugged in or not.
fn of_a_gateway_elsewhere(redirect: &str, plugged: bool) -> Vec<(TableId, String)> {
    let (switch, router, me, gateway) = (row(1), row(2), row(3), row(4));
    let mut db = sb::Database::default();
    for (id, name) in [(me, "hv1"), (gateway, "gw1")] {
        db.chassis.insert(id, Arc::new(sb::Chassis { name: name.into(), ..Default::default() }));
    }
    for (id, key) in [(switch, 1), (router, 2)] {
        db.datapath_binding.insert(id, Arc::new(sb::DatapathBinding { tunnel_key: key, ..Default::default() }));
    }
    db.port_binding.insert(row(11), port(switch, 1, "localnet", "net", &[("network_name", "phys")]));
    db.port_binding.insert(row(12), port(switch, 2, "patch", "to-router", &[("peer", "to-switch")]));
    db.port_binding.insert(row(13), port(router, 1, "patch", "to-switch", &[("peer", "to-router")]));
    let options = [("distributed-port", "to-switch"), ("redirect-type", redirect)];
    let mut stand_in = (*port(router, 2, "chassisredirect", "cr-to-switch", &options)).clone();
    stand_in.chassis = Some(gateway);
    db.port_binding.insert(row(14), Arc::new(stand_in));
    let tunnel = Tunnel {
        chassis: "gw1".into(),
        kind: "geneve".into(),
        ofport: 3,
        remote_ip: "10.0.0.2".into(),
        local_ip: "10.0.0.1".into(),
    };
    let local = Local {
        chassis_name: "hv1".into(),
        chassis: Some(me),
        datapaths: [switch, router].into(),
        localnets: plugged.then_some(("net".into(), 7)).into_iter().collect(),
        tunnels: [tunnel].into(),
        encap_ips: vec!["10.0.0.1".into()],
        ..Local::default()
    };
    Engine::new(ChassisFlows::default()).update(&Input::new(db, local), [], |changes| {
        let of_port = |c: incremental::Change<'_, Key, Value>| match (c.key, c.after.first()) {
            (Key::Flow(table, 100, m), Some(Value::Flow(14, actions))) => {
                assert!(m.unpack().unwrap().to_string().contains("reg15=0x2"), "{m:?}");
                Some((*table, openflow_rs::text::actions_to_string(&actions.unpack().unwrap())))
            }
            _ => None,
        };
        changes.into_iter().filter_map(of_port).collect()
    })
}

#[test]
fn a_bridged_gateway_is_reached_over_the_provider_network_only() {
    let over = of_a_gateway_elsewhere("Bridged", true);
    assert!(
        matches!(&over[..], [(t, a)] if *t == controller::encode::tables::LOCAL_OUTPUT && a.contains("00:00:00:00:00:01->eth_src")),
        "{over:?}"
    );
    assert_eq!(of_a_gateway_elsewhere("bridged", false), [], "no tunnel leads there");
    let tunnel = of_a_gateway_elsewhere("overlay", false);
    assert!(
        matches!(&tunnel[..], [(t, a)] if *t == controller::encode::tables::REMOTE_OUTPUT && a.contains("output:3")),
        "{tunnel:?}"
    );
}
