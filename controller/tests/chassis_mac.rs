//! Cookies of the flows that give a router's address to what another chassis sent (`ovn-chassis-mac-mappings`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::flows::{ChassisFlows, Key, Value};
use controller::model::{Input, Local};
use incremental::Engine;
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
