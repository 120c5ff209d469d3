//! The derivation itself: any sequence of changes, in any grouping, gives what a fresh start gives, and a change costs
//! no more in a large network than in a small one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use interconnect::model::{Effect, Input, Read};
use interconnect::output::{Key, Place, Value};
use interconnect::plan::Plan;
use ovn_schema::{InDatabase, Map, Set, Str, Uuid, ic_nb, ic_sb, nb, sb};
use ovsdb_rs::{DatabaseSchema, Row};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All rows, and what they did to one input.
#[derive(Default)]
struct World {
    input: Input,
    plan: Plan,
    reads: Vec<Read>,
    rows: BTreeMap<(&'static str, &'static str, Uuid), Option<Row>>,
}

/// A database that rows can be put into.
trait Side: Sized {
    const NAME: &'static str;
    fn put<T: InDatabase<Database = Self>>(input: &mut Input, id: Uuid, row: Option<&Row>) -> Effect;
}

macro_rules! side {
    ($module:ident, $field:ident) => {
        impl Side for $module::Database {
            const NAME: &'static str = $module::Database::NAME;
            fn put<T: InDatabase<Database = Self>>(input: &mut Input, id: Uuid, row: Option<&Row>) -> Effect {
                let change = input.$field.db.apply(T::NAME, &T::schema(), id, row).unwrap().unwrap();
                input.$field.changed(&change)
            }
        }
    };
}
side!(nb, nb);
side!(sb, sb);
side!(ic_nb, icnb);
side!(ic_sb, icsb);

impl World {
    fn set<T: InDatabase>(&mut self, id: Uuid, row: Option<&T>)
    where
        T::Database: Side,
    {
        let key = (<T::Database as Side>::NAME, T::NAME, id);
        if row.is_none() && self.rows.get(&key).is_none_or(Option::is_none) {
            return;
        }
        let row = row.map(|r| Row(r.columns().into_iter().map(|(_, d)| d).collect()));
        let effect = T::Database::put::<T>(&mut self.input, id, row.as_ref());
        self.rows.insert(key, row);
        self.reads.extend(effect.reads);
        effect.keys.into_iter().for_each(|k| self.plan.touch(k));
    }

    fn derive(&mut self) -> usize {
        self.plan.derive(&self.input, std::mem::take(&mut self.reads))
    }

    /// The same rows in an input and a plan that never saw any other.
    fn fresh(&self) -> World {
        let mut world = World::default();
        world.input.leader = self.input.leader;
        for ((database, table, id), row) in self.rows.iter().filter(|(_, row)| row.is_some()) {
            let row = row.as_ref();
            macro_rules! apply {
                ($module:ident, $field:ident) => {{
                    let schema = $module::Database::schema();
                    let change = world.input.$field.db.apply(table, schema.table(table).unwrap(), *id, row);
                    world.input.$field.changed(&change.unwrap().unwrap());
                }};
            }
            match *database {
                "OVN_Northbound" => apply!(nb, nb),
                "OVN_Southbound" => apply!(sb, sb),
                "OVN_IC_Northbound" => apply!(ic_nb, icnb),
                _ => apply!(ic_sb, icsb),
            }
        }
        world.derive();
        world.plan.touch_all(&world.input);
        world
    }

    /// The keys of rows that would be written.
    fn differing(&mut self) -> BTreeSet<Key> {
        let schemas: [(Place, DatabaseSchema); 4] = [
            (Place::IcSb, ic_sb::Database::schema()),
            (Place::Shared, ic_sb::Database::schema()),
            (Place::Nb, nb::Database::schema()),
            (Place::Sb, sb::Database::schema()),
        ];
        let mut out = BTreeSet::new();
        for (place, schema) in schemas {
            out.extend(self.plan.operations(place, &self.input, &Arc::new(schema), usize::MAX).keys().iter().cloned());
        }
        out
    }
}

fn id(table: u128, n: usize) -> Uuid {
    Uuid::from_u128((table << 64) + n as u128 + 1)
}

fn s(text: impl AsRef<str>) -> Str {
    text.as_ref().into()
}

fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| (s(k), s(v))).collect()
}

fn ids(table: u128, members: &[usize]) -> Set<Uuid> {
    members.iter().map(|n| id(table, *n)).collect()
}

/// Those members that one of so many owners may have: nobody shares rows that belong to others.
fn own(table: u128, members: &[usize], n: usize, owners: usize) -> Set<Uuid> {
    members.iter().filter(|m| *m % owners == n).map(|n| id(table, *n)).collect()
}

const ZONES: u128 = 1;
const SWITCHES: u128 = 2;
const TRANSIT_PORTS: u128 = 3;
const TRANSIT_ROUTERS: u128 = 4;
const LS: u128 = 5;
const LSP: u128 = 6;
const LR: u128 = 7;
const LRP: u128 = 8;
const ROUTES: u128 = 9;
const BINDINGS: u128 = 10;
const CHASSIS: u128 = 11;
const IC_PORTS: u128 = 12;
const IC_ROUTES: u128 = 13;
const DATAPATHS: u128 = 14;
const SETS: u128 = 15;
const BALANCERS: u128 = 16;
const LEARNED: u128 = 17;

/// Changes in a small universe, so that they meet.
#[derive(Clone, Debug)]
enum Change {
    Name(bool),
    Options(u8),
    Leader(bool),
    TransitSwitch { n: usize, there: bool, ports: Vec<usize> },
    TransitPort { n: usize, chassis: u8, kind: u8, peer: bool },
    Switch { n: usize, of: Option<usize>, ports: Vec<usize> },
    SwitchPort { n: usize, kind: u8, to: usize, tsp: bool },
    Router { n: usize, there: bool, ports: Vec<usize>, routes: Vec<usize>, enabled: bool, balancers: Vec<usize> },
    RouterPort { n: usize, network: u8, table: bool },
    Route { n: usize, there: bool, prefix: u8, learned: Option<usize> },
    Binding { n: usize, there: bool, chassis: Option<usize> },
    Chassis { n: usize, kind: u8 },
    IcPort { n: usize, there: bool, zone: usize, of: usize, gateway: u8 },
    IcRoute { n: usize, there: bool, zone: usize, of: usize, prefix: u8 },
    IcDatapath { n: usize, there: bool, vxlan: bool },
    Set { n: usize, there: bool, learned: bool },
    IcSet { n: usize, zone: usize, there: bool },
    Monitor { n: usize, there: bool, remote: bool, status: bool },
    IcMonitor { n: usize, there: bool, target: usize },
    Datapath { n: usize, there: bool },
    Balancer { n: usize, there: bool, prefix: u8 },
    Learned { n: usize, there: bool, datapath: usize, prefix: u8 },
}

fn some(limit: usize) -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..limit, 0..4)
}

fn change() -> impl Strategy<Value = Change> {
    let b = any::<bool>;
    prop_oneof![
        b().prop_map(Change::Name),
        (0..16u8).prop_map(Change::Options),
        b().prop_map(Change::Leader),
        (0..2usize, b(), some(4)).prop_map(|(n, there, ports)| Change::TransitSwitch { n, there, ports }),
        (0..4usize, 0..4u8, 0..2u8, b()).prop_map(|(n, chassis, kind, peer)| Change::TransitPort {
            n,
            chassis,
            kind,
            peer
        }),
        (0..3usize, proptest::option::of(0..2usize), some(6)).prop_map(|(n, of, ports)| Change::Switch {
            n,
            of,
            ports
        }),
        (0..6usize, 0..4u8, 0..4usize, b()).prop_map(|(n, kind, to, tsp)| Change::SwitchPort { n, kind, to, tsp }),
        (0..2usize, b(), some(4), some(4), b(), some(2)).prop_map(|(n, there, ports, routes, enabled, balancers)| {
            Change::Router { n, there, ports, routes, enabled, balancers }
        }),
        (0..4usize, 0..3u8, b()).prop_map(|(n, network, table)| Change::RouterPort { n, network, table }),
        (0..4usize, b(), 0..4u8, proptest::option::of(0..6usize))
            .prop_map(|(n, there, prefix, learned)| Change::Route { n, there, prefix, learned }),
        (0..14usize, b(), proptest::option::of(0..4usize)).prop_map(|(n, there, chassis)| Change::Binding {
            n,
            there,
            chassis
        }),
        (0..4usize, 0..4u8).prop_map(|(n, kind)| Change::Chassis { n, kind }),
        (0..6usize, b(), 0..2usize, 0..2usize, 0..4u8).prop_map(|(n, there, zone, of, gateway)| Change::IcPort {
            n,
            there,
            zone,
            of,
            gateway
        }),
        (0..6usize, b(), 0..2usize, 0..2usize, 0..4u8).prop_map(|(n, there, zone, of, prefix)| Change::IcRoute {
            n,
            there,
            zone,
            of,
            prefix
        }),
        (0..2usize, b(), b()).prop_map(|(n, there, vxlan)| Change::IcDatapath { n, there, vxlan }),
        (0..3usize, b(), b()).prop_map(|(n, there, learned)| Change::Set { n, there, learned }),
        (0..3usize, 0..2usize, b()).prop_map(|(n, zone, there)| Change::IcSet { n, zone, there }),
        (0..3usize, b(), b(), b()).prop_map(|(n, there, remote, status)| Change::Monitor { n, there, remote, status }),
        (0..3usize, b(), 0..2usize).prop_map(|(n, there, target)| Change::IcMonitor { n, there, target }),
        (0..2usize, b()).prop_map(|(n, there)| Change::Datapath { n, there }),
        (0..2usize, b(), 0..4u8).prop_map(|(n, there, prefix)| Change::Balancer { n, there, prefix }),
        (0..3usize, b(), 0..2usize, 0..4u8).prop_map(|(n, there, datapath, prefix)| Change::Learned {
            n,
            there,
            datapath,
            prefix
        }),
    ]
}

/// The names of southbound ports: switch ports, router ports, and where these are bound.
fn bound(n: usize) -> Str {
    match n {
        0..6 => s(format!("lsp{n}")),
        6..10 => s(format!("lrp{}", n - 6)),
        _ => s(format!("cr-lrp{}", n - 10)),
    }
}

fn chassis_name(n: u8) -> Str {
    if n == 0 { Str::default() } else { s(format!("gw{n}")) }
}

impl World {
    fn start(&mut self) {
        for n in 0..2 {
            let zone = ic_sb::AvailabilityZone { name: s(format!("az{n}")), nb_ic_cfg: 0 };
            self.set(id(ZONES, n), Some(&zone));
        }
        let options = map(&[("svc_monitor_mac", "00:00:00:00:00:01")]);
        self.set(id(100, 0), Some(&sb::SbGlobal { options, ..Default::default() }));
        self.set(id(101, 0), Some(&ic_nb::IcNbGlobal::default()));
        for n in 0..2 {
            self.change(&Change::Datapath { n, there: true });
        }
    }

    fn change(&mut self, c: &Change) {
        match c {
            Change::Name(is) => {
                let mut row = self.global();
                row.name = if *is { s("az0") } else { Str::default() };
                self.set(id(99, 0), Some(&row));
            }
            Change::Options(bits) => {
                let mut row = self.global();
                let names: [&[&str]; 3] = [
                    &["ic-route-adv", "ic-route-adv-default", "ic-as-adv"],
                    &["ic-route-learn", "ic-route-learn-default"],
                    &["ic-as-learn", "ic-route-adv-lb"],
                ];
                let on = names.iter().enumerate().filter(|(n, _)| bits & (1 << n) != 0).flat_map(|(_, names)| *names);
                row.options = on.map(|name| (s(name), s("true"))).collect();
                if bits & 8 != 0 {
                    row.options.insert(s("ic-route-denylist"), s("192.168.0.0/23,x"));
                    row.options.insert(s("ic-route-learn-lb"), s("true"));
                }
                self.set(id(99, 0), Some(&row));
            }
            Change::Leader(is) => {
                self.input.leader = *is;
                self.reads.push(Read::Leader);
                self.plan.touch_all(&self.input);
            }
            Change::TransitSwitch { n, there, ports } => {
                let row = ic_nb::TransitSwitch {
                    name: s(format!("ts{n}")),
                    ports: own(TRANSIT_PORTS, ports, *n, 2),
                    ..Default::default()
                };
                self.set(id(SWITCHES, *n), there.then_some(&row));
                let row = ic_nb::TransitRouter { name: s(format!("tr{n}")), ..Default::default() };
                self.set(id(TRANSIT_ROUTERS, *n), there.then_some(&row));
            }
            Change::TransitPort { n, chassis, kind, peer } => {
                let row = ic_nb::TransitSwitchPort {
                    name: s(format!("tsp{n}")),
                    addresses: [s(format!("00:00:00:00:01:0{n}"))].into_iter().collect(),
                    chassis: chassis_name(*chassis),
                    peer: if *peer { s("lrp0") } else { Str::default() },
                    r#type: if *kind == 0 { Str::default() } else { s("router") },
                    ..Default::default()
                };
                self.set(id(TRANSIT_PORTS, *n), Some(&row));
            }
            Change::Switch { n, of, ports } => {
                let other_config = of.map_or_else(Map::new, |of| map(&[("interconn-ts", &format!("ts{of}"))]));
                let row = nb::LogicalSwitch {
                    name: s(format!("ts{n}")),
                    other_config,
                    ports: own(LSP, ports, *n, 3),
                    ..Default::default()
                };
                self.set(id(LS, *n), Some(&row));
            }
            Change::SwitchPort { n, kind, to, tsp } => {
                let kind = ["", "router", "remote", "switch"][usize::from(*kind)];
                let mut options = map(&[("router-port", &format!("lrp{to}"))]);
                if *tsp {
                    options.insert(s("interconn-tsp"), s("x"));
                }
                let row = nb::LogicalSwitchPort {
                    name: s(format!("lsp{n}")),
                    options,
                    r#type: s(kind),
                    ..Default::default()
                };
                self.set(id(LSP, *n), Some(&row));
            }
            Change::Router { n, there, ports, routes, enabled, balancers } => {
                let row = nb::LogicalRouter {
                    name: s(format!("lr{n}")),
                    enabled: Some(*enabled),
                    ports: own(LRP, ports, *n, 2),
                    static_routes: own(ROUTES, routes, *n, 2),
                    load_balancer: ids(BALANCERS, balancers),
                    ..Default::default()
                };
                self.set(id(LR, *n), there.then_some(&row));
            }
            Change::RouterPort { n, network, table } => {
                let row = nb::LogicalRouterPort {
                    name: s(format!("lrp{n}")),
                    mac: s(format!("00:00:00:00:02:0{n}")),
                    networks: [s(format!("10.0.{network}.{}/24", n + 1))].into_iter().collect(),
                    options: if *table { map(&[("route_table", "t")]) } else { Map::new() },
                    ..Default::default()
                };
                self.set(id(LRP, *n), Some(&row));
            }
            Change::Route { n, there, prefix, learned } => {
                let external_ids = learned
                    .map_or_else(Map::new, |from| map(&[("ic-learned-route", &id(IC_ROUTES, from).to_string())]));
                let row = nb::LogicalRouterStaticRoute {
                    ip_prefix: s(format!("192.168.{prefix}.0/24")),
                    nexthop: s("10.0.0.9"),
                    external_ids,
                    ..Default::default()
                };
                self.set(id(ROUTES, *n), there.then_some(&row));
            }
            Change::Binding { n, there, chassis } => {
                let options = match n {
                    0..6 => map(&[("peer", &format!("lrp{}", n % 4))]),
                    _ => Map::new(),
                };
                let row = sb::PortBinding {
                    logical_port: bound(*n),
                    chassis: chassis.map(|n| id(CHASSIS, n)),
                    datapath: id(102, n % 2),
                    mac: [s(format!("00:00:00:00:02:0{} 10.0.0.{}/24", n % 4, n % 4 + 1))].into_iter().collect(),
                    options,
                    tunnel_key: 1 + *n as i64,
                    up: Some(true),
                    ..Default::default()
                };
                self.set(id(BINDINGS, *n), there.then_some(&row));
            }
            Change::Chassis { n, kind } => {
                let config = match kind {
                    1 => map(&[("is-interconn", "true")]),
                    2 => map(&[("is-remote", "true")]),
                    _ => Map::new(),
                };
                let encap = sb::Encap { ip: s(format!("10.9.0.{n}")), r#type: s("geneve"), ..Default::default() };
                self.set(id(103, *n), Some(&encap));
                let row = sb::Chassis {
                    name: chassis_name(*n as u8 + 1),
                    encaps: ids(103, &[*n]),
                    other_config: config,
                    ..Default::default()
                };
                self.set(id(CHASSIS, *n), (*kind != 3).then_some(&row));
            }
            Change::IcPort { n, there, zone, of, gateway } => {
                let name = if *n < 3 { format!("lsp{n}") } else { format!("tsp{}", n - 3) };
                let row = ic_sb::PortBinding {
                    logical_port: s(name),
                    availability_zone: id(ZONES, *zone),
                    transit_switch: s(format!("ts{of}")),
                    tunnel_key: 1 + *n as i64,
                    gateway: chassis_name(*gateway),
                    ..Default::default()
                };
                self.set(id(IC_PORTS, *n), there.then_some(&row));
            }
            Change::IcRoute { n, there, zone, of, prefix } => {
                let row = ic_sb::Route {
                    availability_zone: id(ZONES, *zone),
                    transit_switch: s(format!("ts{of}")),
                    ip_prefix: s(format!("192.168.{prefix}.0/24")),
                    nexthop: s(format!("10.0.0.{}", 100 + n)),
                    origin: s("static"),
                    ..Default::default()
                };
                self.set(id(IC_ROUTES, *n), there.then_some(&row));
            }
            Change::IcDatapath { n, there, vxlan } => {
                let row = ic_sb::DatapathBinding {
                    transit_switch: s(format!("ts{n}")),
                    tunnel_key: if *vxlan { 1025 } else { 16_711_690 } + *n as i64,
                    ..Default::default()
                };
                self.set(id(DATAPATHS, *n), there.then_some(&row));
            }
            Change::Set { n, there, learned } => {
                let name = s(format!("as{n}"));
                let external_ids = if *learned { map(&[("ic-learnt", "true")]) } else { Map::new() };
                let row = nb::AddressSet { name: name.clone(), external_ids, ..Default::default() };
                self.set(id(SETS, *n), there.then_some(&row));
                let row =
                    sb::AddressSet { name, options: map(&[("ic-adv", &there.to_string())]), ..Default::default() };
                self.set(id(104, *n), Some(&row));
            }
            Change::IcSet { n, zone, there } => {
                let row = ic_sb::AddressSet {
                    name: s(format!("as{n}")),
                    availability_zone: id(ZONES, *zone),
                    addresses: [s(format!("10.{zone}.0.{n}"))].into_iter().collect(),
                    ..Default::default()
                };
                self.set(id(105, n * 2 + zone), there.then_some(&row));
            }
            Change::Monitor { n, there, remote, status } => {
                let row = sb::ServiceMonitor {
                    logical_port: s(format!("lsp{n}")),
                    ip: s("10.0.0.1"),
                    options: map(&[("az-name", "az1")]),
                    remote: *remote,
                    ic_learned: !*remote && *n == 2,
                    status: status.then(|| s("online")),
                    ..Default::default()
                };
                self.set(id(106, *n), there.then_some(&row));
            }
            Change::Datapath { n, there } => {
                let row =
                    sb::DatapathBinding { nb_uuid: Some(id(LR, *n)), tunnel_key: 1 + *n as i64, ..Default::default() };
                self.set(id(102, *n), there.then_some(&row));
            }
            Change::Balancer { n, there, prefix } => {
                let vips = map(&[(&format!("192.168.{prefix}.9:80"), "10.0.0.8:80"), ("x", "")]);
                let row = nb::LoadBalancer { name: s(format!("lb{n}")), vips, ..Default::default() };
                self.set(id(BALANCERS, *n), there.then_some(&row));
            }
            Change::Learned { n, there, datapath, prefix } => {
                let row = sb::LearnedRoute {
                    datapath: id(102, *datapath),
                    ip_prefix: s(format!("192.168.{prefix}.0/24")),
                    ..Default::default()
                };
                self.set(id(LEARNED, *n), there.then_some(&row));
            }
            Change::IcMonitor { n, there, target } => {
                let row = ic_sb::ServiceMonitor {
                    logical_port: s(format!("lsp{n}")),
                    ip: s("10.0.0.1"),
                    target_availability_zone: s(format!("az{target}")),
                    source_availability_zone: s(format!("az{}", 1 - target)),
                    ..Default::default()
                };
                self.set(id(107, *n), there.then_some(&row));
            }
        }
    }

    fn global(&self) -> nb::NbGlobal {
        self.input.nb.global().cloned().unwrap_or_default()
    }
}

fn wanted(plan: &Plan) -> BTreeMap<Key, Value> {
    plan.all().map(|(k, v)| (k.clone(), v.clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// After any groups of changes, what is wanted and what would be written are those of a fresh start.
    #[test]
    fn incremental_is_fresh(groups in proptest::collection::vec(proptest::collection::vec(change(), 1..6), 1..16)) {
        let mut world = World::default();
        world.start();
        world.change(&Change::Name(true));
        world.change(&Change::Options(7));
        for group in &groups {
            group.iter().for_each(|c| world.change(c));
            world.derive();
            let fresh = world.fresh();
            prop_assert_eq!(wanted(&world.plan), wanted(&fresh.plan));
        }
        let mut fresh = world.fresh();
        prop_assert_eq!(world.differing(), fresh.differing());
    }
}

impl World {
    /// A zone that tells and learns.
    fn zone() -> World {
        let mut world = World::default();
        world.start();
        world.change(&Change::Name(true));
        world.change(&Change::Options(7));
        world
    }

    /// A router on a transit switch of its own, which northd has taken up, with static routes of its own.
    fn router(&mut self, n: usize, routes: &[Uuid]) {
        let name = |kind: &str| s(format!("{kind}{n}"));
        let set = |id: Uuid| -> Set<Uuid> { [id].into_iter().collect() };
        self.set(id(SWITCHES, n), Some(&ic_nb::TransitSwitch { name: name("ts"), ..Default::default() }));
        let options = map(&[("router-port", &format!("lrp{n}"))]);
        let lsp = nb::LogicalSwitchPort { name: name("lsp"), options, r#type: s("router"), ..Default::default() };
        self.set(id(LSP, n), Some(&lsp));
        let other_config = map(&[("interconn-ts", &format!("ts{n}"))]);
        let ls = nb::LogicalSwitch { name: name("ts"), other_config, ports: set(id(LSP, n)), ..Default::default() };
        self.set(id(LS, n), Some(&ls));
        let networks = [s("10.0.0.1/24")].into_iter().collect();
        let lrp =
            nb::LogicalRouterPort { name: name("lrp"), mac: s("00:00:00:00:00:01"), networks, ..Default::default() };
        self.set(id(LRP, n), Some(&lrp));
        self.logical_router(n, routes);
        self.set(id(110, n), Some(&sb::DatapathBinding { nb_uuid: Some(id(LR, n)), ..Default::default() }));
        for (k, port, peer) in [(0, name("lsp"), Some(name("lrp"))), (1, name("lrp"), None)] {
            let binding = sb::PortBinding {
                logical_port: port,
                datapath: id(110, n),
                mac: [s("00:00:00:00:00:01 10.0.0.1/24")].into_iter().collect(),
                options: peer.map_or_else(Map::new, |p| map(&[("peer", &p)])),
                ..Default::default()
            };
            self.set(id(111 + k, n), Some(&binding));
        }
    }

    /// The router's row.
    fn logical_router(&mut self, n: usize, routes: &[Uuid]) {
        let row = nb::LogicalRouter {
            name: s(format!("lr{n}")),
            ports: [id(LRP, n)].into_iter().collect(),
            static_routes: routes.iter().copied().collect(),
            ..Default::default()
        };
        self.set(id(LR, n), Some(&row));
    }

    /// A static route.
    fn static_route(&mut self, id: Uuid, prefix: String, learned: Option<Uuid>) {
        let from = learned.map(|l| l.to_string());
        let row = nb::LogicalRouterStaticRoute {
            ip_prefix: s(prefix),
            nexthop: s("10.0.0.9"),
            external_ids: from.map_or_else(Map::new, |from| map(&[("ic-learned-route", &from)])),
            ..Default::default()
        };
        self.set(id, Some(&row));
    }

    /// A route that the other zone tells on the first transit switch.
    fn told_by_other(&mut self, id: Uuid, prefix: String) {
        let row = ic_sb::Route {
            availability_zone: self::id(ZONES, 1),
            transit_switch: s("ts0"),
            ip_prefix: s(prefix),
            nexthop: s("10.0.0.2"),
            origin: s("static"),
            ..Default::default()
        };
        self.set(id, Some(&row));
    }

    fn count(&self, is: impl Fn(&Key) -> bool) -> usize {
        self.plan.all().filter(|(k, _)| is(k)).count()
    }
}

fn prefix(net: usize, n: usize) -> String {
    format!("10.{net}.{}.{}/32", n / 250, n % 250)
}

/// A zone with this many routers on a transit switch each, and the units that one more route runs.
fn cost(routers: usize) -> usize {
    let mut world = World::zone();
    for n in 0..routers {
        world.static_route(id(ROUTES, n), "192.168.0.0/24".into(), None);
        world.router(n, &[id(ROUTES, n)]);
    }
    world.derive();
    assert_eq!(world.count(|k| matches!(k, Key::Route(_))), routers, "each router tells its route");
    world.static_route(id(ROUTES, 0), "192.168.1.0/24".into(), None);
    world.derive()
}

/// A route of one router runs the unit of that route alone, however many routers there are.
#[test]
fn a_change_runs_what_it_concerns() {
    assert_eq!((cost(2), cost(200)), (1, 1));
}

/// A router that tells so many routes and learns so many; the units that run when one that it tells changes, when the
/// other zone tells another one, when that is written here, and when one comes that the router has itself.
fn route_costs(routes: usize) -> [usize; 4] {
    let mut world = World::zone();
    let mut own: Vec<Uuid> = (0..routes).map(|n| id(ROUTES, n)).collect();
    for (n, id) in own.iter().enumerate() {
        world.static_route(*id, prefix(1, n), None);
    }
    world.router(0, &own);
    for n in 0..routes {
        world.told_by_other(id(IC_ROUTES, n), prefix(2, n));
    }
    world.derive();
    let told = |w: &World| w.count(|k| matches!(k, Key::Route(_)));
    let learned = |w: &World| w.count(|k| matches!(k, Key::StaticRoute(..)));
    assert_eq!((told(&world), learned(&world)), (routes, routes));
    world.static_route(own[0], prefix(3, 0), None);
    let tell = world.derive();
    world.set::<ic_sb::Route>(id(IC_ROUTES, 0), None);
    world.told_by_other(id(IC_ROUTES, routes), prefix(2, routes));
    let learn = world.derive();
    assert_eq!((told(&world), learned(&world)), (routes, routes));
    // What is written comes back: a row, and a router that has it.
    let row = id(ROUTES, routes);
    world.static_route(row, prefix(2, routes), Some(id(IC_ROUTES, routes)));
    own.push(row);
    world.logical_router(0, &own);
    let written = world.derive();
    world.static_route(own[0], prefix(2, 1), None);
    let hidden = world.derive();
    assert_eq!((told(&world), learned(&world)), (routes, routes - 1));
    [tell, learn, written, hidden]
}

/// What one route costs does not depend on how many there are.
#[test]
fn a_route_is_a_unit() {
    let (few, many) = (route_costs(10), route_costs(400));
    assert_eq!(few, many);
    assert_eq!(few, [1, 1, 0, 2], "the route; in the end the one that is not learned any more as well");
}

/// A port whose switch is not there yet is written once the switch has come, though nothing that it follows from changes
/// then: another zone may have written the port's row before this one makes the switch.
#[test]
fn a_port_waits_for_its_switch() {
    let mut world = World::zone();
    let ports: Set<Uuid> = [id(TRANSIT_PORTS, 0)].into_iter().collect();
    let port = ic_nb::TransitSwitchPort { name: s("tsp0"), ..Default::default() };
    world.set(id(TRANSIT_PORTS, 0), Some(&port));
    world.set(id(SWITCHES, 0), Some(&ic_nb::TransitSwitch { name: s("ts0"), ports, ..Default::default() }));
    let told = ic_sb::PortBinding {
        availability_zone: id(ZONES, 1),
        logical_port: s("tsp0"),
        transit_switch: s("ts0"),
        tunnel_key: 7,
        ..Default::default()
    };
    world.set(id(IC_PORTS, 0), Some(&told));
    let schema = Arc::new(nb::Database::schema());
    let inserted = |world: &mut World| -> Vec<String> {
        world.derive();
        let all = world.plan.operations(Place::Nb, &world.input, &schema, 100).operations();
        let rows = all.iter().filter(|o| o["op"] == "insert").map(|o| o["table"].as_str().unwrap().to_string());
        rows.collect()
    };
    world.set::<nb::LogicalSwitch>(id(LS, 0), None);
    world.set::<ic_sb::DatapathBinding>(id(DATAPATHS, 0), None);
    assert!(inserted(&mut world).is_empty(), "its key is not known: the zone would give it another");
    let datapath = ic_sb::DatapathBinding { transit_switch: s("ts0"), tunnel_key: 16_711_690, ..Default::default() };
    world.set(id(DATAPATHS, 0), Some(&datapath));
    assert_eq!(inserted(&mut world), ["Logical_Switch"]);
    assert!(inserted(&mut world).is_empty());
    let row = nb::LogicalSwitch { name: s("ts0"), other_config: map(&[("interconn-ts", "ts0")]), ..Default::default() };
    world.set(id(LS, 0), Some(&row));
    assert_eq!(inserted(&mut world), ["Logical_Switch_Port"]);
}
