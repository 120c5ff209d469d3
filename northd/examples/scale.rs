//! How long a full compile takes, and how long one change: `cargo run --release -p northd --example scale [NODES] [PORTS]`.
//!
//! The network: one distributed router with a switch a node, dual-stack ports with DHCP, one access list a switch.

use northd::Compiler;
use ovn_schema::{Map, Str, Uuid, nb, sb};
use std::sync::Arc;
use std::time::Instant;

fn text(s: impl AsRef<str>) -> Str {
    Str::from(s.as_ref())
}

fn map(pairs: &[(&str, String)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| (text(k), text(v))).collect()
}

fn port(node: usize, i: usize, dhcp: (Uuid, Uuid)) -> nb::LogicalSwitchPort {
    let address = format!(
        "0a:00:{:02x}:{:02x}:00:{:02x} 10.{node}.0.{} fd00:{node:x}::{i:x}",
        node >> 8,
        node & 255,
        i & 255,
        i + 10
    );
    nb::LogicalSwitchPort {
        name: text(format!("n{node}-p{i}")),
        addresses: [text(address)].into(),
        dhcpv4_options: Some(dhcp.0),
        dhcpv6_options: Some(dhcp.1),
        up: Some(true),
        ..Default::default()
    }
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse::<usize>().ok());
    let (nodes, ports) = (args.next().unwrap_or(250), args.next().unwrap_or(50));
    let mut db = nb::Database::default();
    db.nb_global.insert(Uuid::new_v4(), Arc::default());
    let (router, v4, v6) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    let options = map(&[
        ("server_id", "10.0.0.1".into()),
        ("server_mac", "0a:00:00:00:00:01".into()),
        ("lease_time", "3600".into()),
    ]);
    db.dhcp_options.insert(v4, Arc::new(nb::DhcpOptions { cidr: text("10.0.0.0/8"), options, ..Default::default() }));
    let options = map(&[("server_id", "0a:00:00:00:00:01".into())]);
    db.dhcp_options.insert(v6, Arc::new(nb::DhcpOptions { cidr: text("fd00::/16"), options, ..Default::default() }));
    let mut lr = nb::LogicalRouter { name: text("cluster"), ..Default::default() };
    let mut first = Uuid::nil();
    for node in 0..nodes {
        let lrp = Uuid::new_v4();
        let name = format!("rtos-{node}");
        db.logical_router_port.insert(
            lrp,
            Arc::new(nb::LogicalRouterPort {
                name: text(&name),
                mac: text(format!("0a:01:00:00:{:02x}:{:02x}", node >> 8, node & 255)),
                networks: [text(format!("10.{node}.0.1/16")), text(format!("fd00:{node:x}::ffff/64"))].into(),
                ..Default::default()
            }),
        );
        lr.ports.insert(lrp);
        let mut ls = nb::LogicalSwitch { name: text(format!("n{node}")), ..Default::default() };
        let up = Uuid::new_v4();
        db.logical_switch_port.insert(
            up,
            Arc::new(nb::LogicalSwitchPort {
                name: text(format!("stor-{node}")),
                r#type: text("router"),
                addresses: [text("router")].into(),
                options: map(&[("router-port", name)]),
                ..Default::default()
            }),
        );
        ls.ports.insert(up);
        let acl = Uuid::new_v4();
        db.acl.insert(
            acl,
            Arc::new(nb::Acl {
                action: text("allow-related"),
                direction: text("to-lport"),
                r#match: text(format!("ip4.src == 10.{node}.0.2")),
                priority: 1001,
                ..Default::default()
            }),
        );
        ls.acls.insert(acl);
        for i in 0..ports {
            let p = Uuid::new_v4();
            db.logical_switch_port.insert(p, Arc::new(port(node, i, (v4, v6))));
            ls.ports.insert(p);
        }
        let u = Uuid::new_v4();
        if node == 0 {
            first = u;
        }
        db.logical_switch.insert(u, Arc::new(ls));
    }
    db.logical_router.insert(router, Arc::new(lr));
    let start = Instant::now();
    let mut compiler = Compiler::new(db, sb::Database::default());
    let indexed = start.elapsed();
    let changes = compiler.run();
    println!(
        "{nodes} nodes x {ports} ports: {} operations in {:?} (indexes {indexed:?}), {:?}",
        changes.sb.len(),
        start.elapsed(),
        compiler.engine().stats()
    );
    for i in 0..3 {
        let start = Instant::now();
        let uuid = Uuid::new_v4();
        compiler.change_nb(|nb| {
            let row = Arc::new(port(0, 200 + i, (v4, v6)));
            nb.logical_switch_port.insert(uuid, row.clone());
            let old = nb.logical_switch[&first].clone();
            let mut new = (*old).clone();
            new.ports.insert(uuid);
            let new = Arc::new(new);
            nb.logical_switch.insert(first, new.clone());
            vec![
                nb::AnyChange::LogicalSwitchPort(ovn_schema::Change { uuid, old: None, new: Some(row) }),
                nb::AnyChange::LogicalSwitch(ovn_schema::Change { uuid: first, old: Some(old), new: Some(new) }),
            ]
        });
        let changes = compiler.run();
        println!("one port: {} operations in {:?}, {:?}", changes.sb.len(), start.elapsed(), compiler.engine().stats());
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        println!("{}", status.lines().filter(|l| l.starts_with("VmHWM")).collect::<String>());
    }
}
