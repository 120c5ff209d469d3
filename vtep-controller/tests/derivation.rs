//! The derivation itself: incremental equals fresh, and what OVN 26.03 left behind is what we would leave.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ovn_schema::{Map, Set, Str, Table, Uuid, sb, vtep};
use ovsdb_rs::Row;
use proptest::prelude::*;
use std::collections::BTreeMap;
use vtep_controller::model::{Input, Read, Tor, TorId};
use vtep_controller::output::{Key, Value};
use vtep_controller::plan::Plan;

/// All that is read, with what changed since it was derived.
struct World {
    input: Input,
    reads: Vec<Read>,
}

impl World {
    fn new(tors: u16) -> World {
        let tors = (0..tors).map(|n| Tor::new(TorId(n), format!("tor{n}").into())).collect();
        World { input: Input { tors, ..Input::default() }, reads: Vec::new() }
    }

    fn sb<T: Table>(&mut self, id: Uuid, row: Option<&T>) {
        let row = row.map(|r| Row(r.columns().into_iter().map(|(_, d)| d).collect()));
        let change = self.input.sb.db.apply(T::NAME, &T::schema(), id, row.as_ref());
        if let Some(change) = change.unwrap() {
            self.reads.extend(self.input.sb.changed(&change).reads);
        }
    }

    fn tor<T: Table>(&mut self, n: usize, id: Uuid, row: Option<&T>) {
        let row = row.map(|r| Row(r.columns().into_iter().map(|(_, d)| d).collect()));
        let tor = &mut self.input.tors[n];
        if let Some(change) = tor.db.apply(T::NAME, &T::schema(), id, row.as_ref()).unwrap() {
            self.reads.extend(tor.changed(&change).reads);
        }
    }
}

fn id(table: u128, n: usize) -> Uuid {
    Uuid::from_u128((table << 64) + n as u128 + 1)
}

fn s(text: &str) -> Str {
    text.into()
}

/// Rows of a small universe, so that changes meet.
#[derive(Clone, Debug)]
enum Change {
    Chassis { n: usize, ip: Option<u8>, gateway: bool },
    Port { n: usize, dp: usize, kind: u8, chassis: Option<usize>, macs: Vec<u8> },
    Vtep { n: usize, dp: usize, switch: usize, logical: usize, chassis: Option<usize>, mode: u8 },
    Redirect { n: usize, chassis: Option<usize> },
    Group { n: usize, dp: usize, chassis: usize },
    Fdb { n: usize, dp: usize, port: usize, mac: u8 },
    Switch { tor: usize, n: usize, ip: u8, bound: Vec<usize>, config: u8 },
    Local { tor: usize, n: usize, logical: usize, mac: u8, ip: u8, known: u8 },
    Router { n: usize, network: u8 },
    Tunnel { tor: usize, n: usize, ip: u8, up: bool },
    Gone { kind: u8, tor: usize, n: usize },
    Options { mode: u8 },
}

fn change() -> impl Strategy<Value = Change> {
    let chassis = || proptest::option::of(0..4usize);
    prop_oneof![
        (0..4usize, proptest::option::of(0..5u8), any::<bool>()).prop_map(|(n, ip, gateway)| Change::Chassis {
            n,
            ip,
            gateway
        }),
        (0..8usize, 0..3usize, 0..6u8, chassis(), proptest::collection::vec(0..4u8, 0..3))
            .prop_map(|(n, dp, kind, chassis, macs)| Change::Port { n, dp, kind, chassis, macs }),
        (0..4usize, 0..3usize, 0..3usize, 0..3usize, chassis(), 0..3u8)
            .prop_map(|(n, dp, switch, logical, chassis, mode)| Change::Vtep { n, dp, switch, logical, chassis, mode }),
        (0..2usize, chassis()).prop_map(|(n, chassis)| Change::Redirect { n, chassis }),
        (0..4usize, 0..3usize, 0..4usize).prop_map(|(n, dp, chassis)| Change::Group { n, dp, chassis }),
        (0..4usize, 0..3usize, 0..4usize, 0..4u8).prop_map(|(n, dp, port, mac)| Change::Fdb { n, dp, port, mac }),
        (0..2usize, 0..3usize, 0..6u8, proptest::collection::vec(0..3usize, 0..3), 0..4u8)
            .prop_map(|(tor, n, ip, bound, config)| Change::Switch { tor, n, ip, bound, config }),
        (0..2usize, 0..4usize, 0..3usize, 0..4u8, 0..6u8, 0..5u8)
            .prop_map(|(tor, n, logical, mac, ip, known)| Change::Local { tor, n, logical, mac, ip, known }),
        (0..2usize, 0..3u8).prop_map(|(n, network)| Change::Router { n, network }),
        (0..2usize, 0..3usize, 0..5u8, any::<bool>()).prop_map(|(tor, n, ip, up)| Change::Tunnel { tor, n, ip, up }),
        (0..9u8, 0..2usize, 0..8usize).prop_map(|(kind, tor, n)| Change::Gone { kind, tor, n }),
        (0..3u8).prop_map(|mode| Change::Options { mode }),
    ]
}

fn mac(n: u8) -> Str {
    format!("00:00:00:00:00:{n:02x}").into()
}

fn hypervisor(n: u8) -> Str {
    format!("10.0.0.{n}").into()
}

fn tor_ip(n: u8) -> Str {
    format!("10.0.1.{n}").into()
}

fn options(pairs: &[(&str, String)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| (s(k), v.as_str().into())).collect()
}

impl World {
    fn start(&mut self) {
        self.sb(id(1, 0), Some(&sb::SbGlobal::default()));
        for n in 0..3 {
            let row = sb::DatapathBinding { tunnel_key: 10 + n as i64, ..Default::default() };
            self.sb(id(2, n), Some(&row));
        }
        for tor in 0..2 {
            self.tor(tor, id(20 + tor as u128, 0), Some(&vtep::Global::default()));
            for n in 0..3 {
                let row = vtep::LogicalSwitch { name: format!("ls{n}").into(), ..Default::default() };
                self.tor(tor, id(30 + tor as u128, n), Some(&row));
            }
        }
    }

    fn locator(&mut self, tor: usize, ip: Str) -> Uuid {
        let n = ip.bytes().fold(0u64, |a, b| a.wrapping_mul(131).wrapping_add(u64::from(b))) as usize;
        let row = vtep::PhysicalLocator { dst_ip: ip, encapsulation_type: "vxlan_over_ipv4".into(), tunnel_key: None };
        self.tor(tor, id(40 + tor as u128, n), Some(&row));
        id(40 + tor as u128, n)
    }

    fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::Chassis { n, ip, gateway } => {
                let name: Str = format!("hv{n}").into();
                if let Some(ip) = ip {
                    let e = sb::Encap {
                        chassis_name: name.clone(),
                        ip: hypervisor(ip),
                        r#type: "vxlan".into(),
                        ..Default::default()
                    };
                    self.sb(id(4, n), Some(&e));
                }
                let other_config =
                    if gateway { options(&[("ovn-cms-options", "enable-chassis-as-gw".into())]) } else { Map::new() };
                let encaps = ip.map(|_| id(4, n)).into_iter().collect();
                let row = sb::Chassis { hostname: name.clone(), name, encaps, other_config, ..Default::default() };
                self.sb(id(3, n), Some(&row));
            }
            Change::Port { n, dp, kind, chassis, macs } => {
                let kind = ["", "", "virtual", "patch", "l3gateway", "external"][usize::from(kind)];
                let peer = if kind == "patch" || kind == "l3gateway" {
                    options(&[("peer", format!("lrp{}", n % 2))])
                } else {
                    Map::new()
                };
                let row = sb::PortBinding {
                    logical_port: format!("port{n}").into(),
                    datapath: id(2, dp),
                    tunnel_key: 100 + n as i64,
                    r#type: kind.into(),
                    chassis: chassis.map(|c| id(3, c)),
                    mac: macs.iter().map(|m| mac(*m)).collect(),
                    options: peer,
                    ..Default::default()
                };
                self.sb(id(5, n), Some(&row));
            }
            Change::Vtep { n, dp, switch, logical, chassis, mode } => {
                let mode = ["source_node", "service_node", "wrong"][usize::from(mode)];
                let row = sb::PortBinding {
                    logical_port: format!("vtep{n}").into(),
                    datapath: id(2, dp),
                    tunnel_key: n as i64,
                    r#type: "vtep".into(),
                    chassis: chassis.map(|c| id(3, c)),
                    options: options(&[
                        ("vtep-physical-switch", format!("ps{switch}")),
                        ("vtep-logical-switch", format!("ls{logical}")),
                        ("vtep-replication-mode", mode.into()),
                    ]),
                    ..Default::default()
                };
                self.sb(id(6, n), Some(&row));
            }
            Change::Redirect { n, chassis } => {
                let row = sb::PortBinding {
                    logical_port: format!("cr-lrp{n}").into(),
                    datapath: id(2, 0),
                    tunnel_key: 200 + n as i64,
                    r#type: "chassisredirect".into(),
                    chassis: chassis.map(|c| id(3, c)),
                    mac: Set::from([mac(3)]),
                    options: options(&[("distributed-port", format!("lrp{n}"))]),
                    ..Default::default()
                };
                self.sb(id(7, n), Some(&row));
            }
            Change::Group { n, dp, chassis } => {
                let address = ["239.0.0.1", "239.128.0.1", "ff0e::1", "mrouters"][n];
                let row = sb::IgmpGroup {
                    address: s(address),
                    datapath: Some(id(2, dp)),
                    chassis: Some(id(3, chassis)),
                    ..Default::default()
                };
                self.sb(id(8, n), Some(&row));
            }
            Change::Fdb { n, dp, port, mac: m } => {
                let row = sb::Fdb { dp_key: 10 + dp as i64, port_key: port as i64, mac: mac(m), timestamp: 0 };
                self.sb(id(9, n), Some(&row));
            }
            Change::Switch { tor, n, ip, bound, config } => {
                let vlans = bound.iter().enumerate().map(|(v, ls)| (v as i64, id(30 + tor as u128, *ls))).collect();
                let port = vtep::PhysicalPort { name: "p0".into(), vlan_bindings: vlans, ..Default::default() };
                self.tor(tor, id(50 + tor as u128, n), Some(&port));
                let config = match config {
                    1 => options(&[("ovn-bfd", "true".into())]),
                    2 => options(&[("ovn-replication-mode", "service_node".into())]),
                    3 => options(&[("ovn-arp-suppression", "nonsense".into())]),
                    _ => Map::new(),
                };
                let tunnels: Set<Uuid> = self.input.tors[tor].db.tunnel.keys().copied().collect();
                let row = vtep::PhysicalSwitch {
                    name: format!("ps{}", (n + tor) % 3).into(),
                    tunnel_ips: if ip == 0 {
                        Set::new()
                    } else {
                        Set::from([if ip == 5 { hypervisor(1) } else { tor_ip(ip) }])
                    },
                    ports: Set::from([id(50 + tor as u128, n)]),
                    other_config: config,
                    tunnels,
                    ..Default::default()
                };
                self.tor(tor, id(60 + tor as u128, n), Some(&row));
            }
            Change::Router { n, network } => {
                let row = sb::PortBinding {
                    logical_port: format!("lrp{n}").into(),
                    datapath: id(2, 0),
                    tunnel_key: 300 + n as i64,
                    r#type: "patch".into(),
                    mac: Set::from([format!("{} 192.0.{network}.1/24 fd00::{n}/64", mac(3)).into()]),
                    ..Default::default()
                };
                self.sb(id(10, n), Some(&row));
            }
            Change::Local { tor, n, logical, mac: m, ip, known } => {
                let locator = self.locator(tor, tor_ip(ip));
                let row = vtep::UcastMacsLocal {
                    mac: mac(m),
                    logical_switch: id(30 + tor as u128, logical),
                    locator,
                    ipaddr: s(["", "192.0.0.1", "192.0.1.9", "fd00::9", "nonsense"][usize::from(known)]),
                };
                self.tor(tor, id(70 + tor as u128, n), Some(&row));
            }
            Change::Tunnel { tor, n, ip, up } => {
                let (local, remote) = (self.locator(tor, tor_ip(1)), self.locator(tor, hypervisor(ip)));
                let status = options(&[
                    ("enabled", "true".into()),
                    ("forwarding", up.to_string()),
                    ("state", if up { "up" } else { "down" }.into()),
                ]);
                let row = vtep::Tunnel { local, remote, bfd_status: status, ..Default::default() };
                self.tor(tor, id(80 + tor as u128, n), Some(&row));
            }
            Change::Gone { kind, tor, n } => {
                let t = tor as u128;
                match kind {
                    0 => self.sb::<sb::Chassis>(id(3, n), None),
                    1 => self.sb::<sb::PortBinding>(id(5, n), None),
                    2 => self.sb::<sb::PortBinding>(id(6, n), None),
                    3 => self.sb::<sb::PortBinding>(id(7, n), None),
                    4 => self.sb::<sb::IgmpGroup>(id(8, n), None),
                    5 => self.sb::<sb::Fdb>(id(9, n), None),
                    6 => self.tor::<vtep::PhysicalSwitch>(tor, id(60 + t, n), None),
                    7 => self.tor::<vtep::UcastMacsLocal>(tor, id(70 + t, n), None),
                    _ => self.tor::<vtep::Tunnel>(tor, id(80 + t, n), None),
                }
            }
            Change::Options { mode } => {
                let options = match mode {
                    1 => options(&[("vtep-replication-mode", "service_node".into())]),
                    2 => options(&[("vtep-multicast-groups", "false".into()), ("vtep-bfd", "true".into())]),
                    _ => Map::new(),
                };
                self.sb(id(1, 0), Some(&sb::SbGlobal { options, ..Default::default() }));
            }
        }
    }

    fn derived(&self, plan: &Plan) -> (BTreeMap<Key, Option<Value>>, Vec<String>) {
        // Of several switches that learned a MAC the last is right, which depends on the past.
        let value = |k: &Key, v: &Value| (!matches!(k, Key::Fdb(..) | Key::Neighbour(..))).then(|| v.clone());
        let rows = plan.all().map(|(k, v)| (k.clone(), value(k, v))).collect();
        let mut notices: Vec<String> = plan.notices().map(|n| n.text.to_string()).collect();
        notices.sort();
        (rows, notices)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn incremental_equals_fresh(before in proptest::collection::vec(change(), 0..90), steps in proptest::collection::vec(change(), 1..40)) {
        let mut w = World::new(2);
        w.start();
        for c in &before {
            w.apply(c);
        }
        let mut plan = Plan::new(2);
        plan.derive(&w.input, std::mem::take(&mut w.reads));
        for c in &steps {
            w.apply(c);
            plan.derive(&w.input, std::mem::take(&mut w.reads));
            let mut fresh = Plan::new(2);
            fresh.derive(&w.input, Vec::new());
            prop_assert_eq!(w.derived(&plan), w.derived(&fresh), "after {:?}", c);
            // A switch's server need not know ovsdb-server's extensions of RFC 7047.
            for o in plan.tor(&w.input, TorId(0), &vtep::Database::schema(), usize::MAX).operations() {
                let op = o["op"].as_str().unwrap();
                prop_assert!(["insert", "update", "delete"].contains(&op) && o.get("uuid").is_none(), "{}", o);
            }
        }
    }
}

/// The switches' databases are not recorded, so one is made that fits what the chassis say.
fn switches(w: &mut World, learned: &[(&str, &str)]) {
    let chassis: Vec<sb::Chassis> = w.input.sb.db.chassis.values().map(|c| sb::Chassis::clone(c)).collect();
    w.tor(0, id(20, 0), Some(&vtep::Global::default()));
    let mut switches: BTreeMap<Str, Uuid> = BTreeMap::new();
    for (n, c) in chassis.iter().filter(|c| c.other_config.contains_key("is-vtep")).enumerate() {
        let mut vlans = Map::new();
        for (vlan, ls) in c.vtep_logical_switches.iter().enumerate() {
            let next = id(30, switches.len());
            let row = *switches.entry(ls.clone()).or_insert(next);
            w.tor(0, row, Some(&vtep::LogicalSwitch { name: ls.clone(), ..Default::default() }));
            vlans.insert(vlan as i64, row);
        }
        w.tor(
            0,
            id(50, n),
            Some(&vtep::PhysicalPort { name: "p0".into(), vlan_bindings: vlans, ..Default::default() }),
        );
        let ips = c.encaps.iter().map(|e| w.input.sb.db.encap[e].ip.clone()).collect();
        let ps = vtep::PhysicalSwitch {
            name: c.name.clone(),
            tunnel_ips: ips,
            ports: Set::from([id(50, n)]),
            ..Default::default()
        };
        w.tor(0, id(60, n), Some(&ps));
    }
    for (n, (ls, m)) in learned.iter().enumerate() {
        let locator = w.locator(0, "192.168.0.3".into());
        let row = vtep::UcastMacsLocal { mac: s(m), logical_switch: switches[&s(ls)], locator, ..Default::default() };
        w.tor(0, id(70, n), Some(&row));
    }
}

#[test]
fn what_ovn_left_is_left() {
    const LEARNED: [(&str, &str); 3] =
        [("lsw0", "f0:00:00:00:00:03"), ("lsw0", "02:00:00:00:00:ee"), ("lsw0", "02:00:00:00:00:ff")];
    let mut seen = 0;
    for path in golden::archives() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.contains("vtep") {
            continue;
        }
        for (n, snapshot) in golden::read(&path).unwrap().snapshots.iter().enumerate() {
            let content = ovsdb_rs::file::parse(&snapshot["sb.db"]).unwrap();
            let mut w = World::new(1);
            for (table, rows) in &content.tables {
                for (uuid, row) in rows {
                    let schema = &content.schema.tables[table];
                    if let Some(c) = w.input.sb.db.apply(table, schema, *uuid, Some(row)).unwrap() {
                        w.input.sb.changed(&c);
                    }
                }
            }
            let three = name.starts_with("ovn--vtep-3-hvs");
            switches(&mut w, if three { &LEARNED } else { &[] });
            let mut plan = Plan::new(1);
            plan.touch_all(&w.input);
            plan.derive(&w.input, Vec::new());
            let schema = std::sync::Arc::new(sb::Database::schema());
            let operations = plan.southbound(&w.input, &schema, usize::MAX, &[true]).operations();
            // The mark of ownership is ours alone.
            let foreign: Vec<_> = operations
                .iter()
                .filter(|o| o["row"].as_object().is_none_or(|r| r.keys().any(|k| k != "external_ids")))
                .collect();
            assert!(foreign.is_empty(), "{name} {n}: {foreign:#?}");
            if three && n == 0 {
                seen += 1;
                let at = |mac: &str| match plan.desired(&Key::Ucast(TorId(0), id(30, 0), s(mac))) {
                    Some(Value::Ucast(u)) => u.ip.to_string(),
                    _ => String::new(),
                };
                assert_eq!(at("f0:00:00:00:00:01"), "192.168.0.1");
                assert_eq!(at("f0:00:00:00:00:02"), "192.168.0.2");
                assert_eq!(at("f0:00:00:00:00:f1"), "192.168.0.1", "the router, at its gateway");
                let flood = Value::Mcast(Set::from([s("192.168.0.1"), s("192.168.0.2")]));
                assert_eq!(plan.desired(&Key::Mcast(TorId(0), id(30, 0), s("unknown-dst"))), Some(&flood));
            }
        }
    }
    assert!(seen == 1 || golden::folder().is_none(), "the recorded situation with three hosts is there");
}
