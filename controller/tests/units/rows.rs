//! Rows of a small cloud, as northd writes them, and what the chassis itself has.

use controller::input::model::{Local, Tunnel, Tunnelling, Vif};
use ovn_schema::sb;
use ovn_schema::{Map, Str, Uuid};
use std::sync::Arc;

pub const ME: Uuid = Uuid::from_u128(1);
pub const OTHER: Uuid = Uuid::from_u128(2);

pub fn text(s: impl AsRef<str>) -> Str {
    Str::from(s.as_ref())
}

pub fn id(kind: u8, n: usize) -> Uuid {
    Uuid::from_u128(u128::from(kind) << 64 | n as u128 | 1 << 100)
}

pub fn datapath(n: usize) -> Uuid {
    id(1, n)
}

pub fn switch(n: usize) -> sb::DatapathBinding {
    let ids = Map::from([(text("logical-switch"), text("x")), (text("name"), text(format!("s{n}")))]);
    sb::DatapathBinding { tunnel_key: n as i64 + 1, external_ids: ids, ..Default::default() }
}

pub fn port(n: usize, name: &str, key: i64) -> sb::PortBinding {
    sb::PortBinding { datapath: datapath(n), logical_port: text(name), tunnel_key: key, ..Default::default() }
}

pub fn patch(n: usize, to: usize, key: i64) -> sb::PortBinding {
    let options = Map::from([(text("peer"), text(format!("p{to}-{n}")))]);
    sb::PortBinding { r#type: text("patch"), options, ..port(n, &format!("p{n}-{to}"), key) }
}

pub fn flow(owner: Uuid, group: bool, n: usize, m: &str, actions: &str) -> sb::LogicalFlow {
    sb::LogicalFlow {
        logical_datapath: (!group).then_some(owner),
        logical_dp_group: group.then_some(owner),
        pipeline: text("ingress"),
        table_id: 5,
        priority: n as i64 % 1000 + 1,
        r#match: text(m),
        actions: text(actions),
        ..Default::default()
    }
}

pub fn vif(n: u16) -> Vif {
    Vif { ofport: Some(n), version: None, encap_ip: None, mtu: None, row: id(90, n.into()) }
}

pub fn tunnel(n: u16) -> Tunnel {
    let ip = |n: u16| text(format!("192.0.2.{n}"));
    Tunnel { chassis: text("hv2"), kind: text("geneve"), remote_ip: ip(n), local_ip: ip(1), ofport: n }
}

pub fn neighbour(n: usize, mac: u8) -> sb::MacBinding {
    let (ip, mac) = (format!("10.0.{}.{}", n / 250, n % 250), format!("02:00:00:00:00:{mac:02x}"));
    sb::MacBinding {
        logical_port: text("p0-1"),
        ip: text(ip),
        mac: text(mac),
        datapath: datapath(0),
        ..Default::default()
    }
}

/// A check of whether the machine behind a port serves.
pub fn check(name: &str, status: Option<&str>) -> sb::ServiceMonitor {
    sb::ServiceMonitor {
        logical_port: text(name),
        ip: text("10.0.0.1"),
        port: 80,
        src_ip: text("10.0.0.254"),
        src_mac: text("02:00:00:00:00:fe"),
        status: status.map(text),
        ..Default::default()
    }
}

pub fn mirror(sink: &str) -> sb::Mirror {
    let (kind, filter) = (text("gre"), text("both"));
    sb::Mirror { name: text("m"), r#type: kind, filter, sink: text(sink), ..Default::default() }
}

pub fn start() -> (sb::Database, Local) {
    let mut db = sb::Database::default();
    for (id, name) in [(ME, "hv1"), (OTHER, "hv2")] {
        db.chassis.insert(id, Arc::new(sb::Chassis { name: text(name), ..Default::default() }));
    }
    db.chassis.insert(id(22, 99), Arc::new(peer(99).0));
    db.sb_global.insert(id(0, 0), Arc::default());
    let mut local = Local { chassis_name: text("hv1"), chassis: Some(ME), southbound: true, ..Local::default() };
    local.tunnels = [tunnel(100)].into();
    local.tunnelling = tunnelling(1, &[]);
    (db, local)
}

/// The port of a machine, whose packets are copied.
pub fn machine(n: usize, chassis: Option<Uuid>) -> sb::PortBinding {
    let (mac, mirror_rules) = ([text("02:00:00:00:00:01 10.0.0.1")].into(), [id(13, 0)].into());
    let options = Map::from([(text("vif-plug-type"), text("representor"))]);
    let requested_chassis = chassis;
    sb::PortBinding {
        chassis,
        requested_chassis,
        up: Some(true),
        mac,
        mirror_rules,
        options,
        ..port(n, &format!("vm{n}"), 1)
    }
}

/// Another chassis, with an address for tunnels.
pub fn peer(n: usize) -> (sb::Chassis, sb::Encap) {
    let name = text(format!("hv{n}"));
    let ip = text(format!("198.51.100.{n}"));
    let encap = sb::Encap { r#type: text("geneve"), ip, chassis_name: name.clone(), ..Default::default() };
    (sb::Chassis { name, encaps: [id(21, n)].into(), ..Default::default() }, encap)
}

/// What the operator wants of tunnels: addresses, and zones of chassis.
pub fn tunnelling(addresses: usize, zones: &[&str]) -> Tunnelling {
    let address = |n| (text("geneve"), text(format!("192.0.2.{n}")));
    let transport_zones = zones.iter().map(|z| text(*z)).collect();
    Tunnelling { encaps: (0..addresses).map(address).collect(), transport_zones, ..Tunnelling::default() }
}
