//! What a change costs, and that it does not matter in which order and in which groups changes come.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/chassis.rs"]
mod chassis;

use chassis::Chassis;
use controller::input::model::{Local, Tunnel, Tunnelling, Vif};
use ovn_schema::sb;
use ovn_schema::{Map, Str, Uuid};
use proptest::prelude::*;
use std::sync::Arc;

const ME: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);

fn text(s: impl AsRef<str>) -> Str {
    Str::from(s.as_ref())
}

fn id(kind: u8, n: usize) -> Uuid {
    Uuid::from_u128(u128::from(kind) << 64 | n as u128 | 1 << 100)
}

fn datapath(n: usize) -> Uuid {
    id(1, n)
}

fn switch(n: usize) -> sb::DatapathBinding {
    let ids = Map::from([(text("logical-switch"), text("x")), (text("name"), text(format!("s{n}")))]);
    sb::DatapathBinding { tunnel_key: n as i64 + 1, external_ids: ids, ..Default::default() }
}

fn port(n: usize, name: &str, key: i64) -> sb::PortBinding {
    sb::PortBinding { datapath: datapath(n), logical_port: text(name), tunnel_key: key, ..Default::default() }
}

fn patch(n: usize, to: usize, key: i64) -> sb::PortBinding {
    let options = Map::from([(text("peer"), text(format!("p{to}-{n}")))]);
    sb::PortBinding { r#type: text("patch"), options, ..port(n, &format!("p{n}-{to}"), key) }
}

fn flow(owner: Uuid, group: bool, n: usize, m: &str, actions: &str) -> sb::LogicalFlow {
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

fn vif(n: u16) -> Vif {
    Vif { ofport: Some(n), version: None, encap_ip: None, mtu: None, row: id(90, n.into()) }
}

fn tunnel(n: u16) -> Tunnel {
    let ip = |n: u16| text(format!("192.0.2.{n}"));
    Tunnel { chassis: text("hv2"), kind: text("geneve"), remote_ip: ip(n), local_ip: ip(1), ofport: n }
}

fn neighbour(n: usize, mac: u8) -> sb::MacBinding {
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
fn check(name: &str, status: Option<&str>) -> sb::ServiceMonitor {
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

fn mirror(sink: &str) -> sb::Mirror {
    let (kind, filter) = (text("gre"), text("both"));
    sb::Mirror { name: text("m"), r#type: kind, filter, sink: text(sink), ..Default::default() }
}

fn start() -> (sb::Database, Local) {
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
fn machine(n: usize, chassis: Option<Uuid>) -> sb::PortBinding {
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
fn peer(n: usize) -> (sb::Chassis, sb::Encap) {
    let name = text(format!("hv{n}"));
    let ip = text(format!("198.51.100.{n}"));
    let encap = sb::Encap { r#type: text("geneve"), ip, chassis_name: name.clone(), ..Default::default() };
    (sb::Chassis { name, encaps: [id(21, n)].into(), ..Default::default() }, encap)
}

/// What the operator wants of tunnels: addresses, and zones of chassis.
fn tunnelling(addresses: usize, zones: &[&str]) -> Tunnelling {
    let address = |n| (text("geneve"), text(format!("192.0.2.{n}")));
    let transport_zones = zones.iter().map(|z| text(*z)).collect();
    Tunnelling { encaps: (0..addresses).map(address).collect(), transport_zones, ..Tunnelling::default() }
}

/// Pairs of a switch with a port here and a switch without, flows of each, flows of all in a group, and neighbours.
fn cloud(switches: usize, flows: usize, neighbours: usize) -> Chassis {
    let (mut db, mut local) = start();
    let group = id(9, 0);
    let all = (0..2 * switches).map(datapath).collect();
    db.logical_dp_group.insert(group, Arc::new(sb::LogicalDpGroup { datapaths: all }));
    for n in 0..2 * switches {
        db.datapath_binding.insert(datapath(n), Arc::new(switch(n)));
        let (mine, name) = (n % 2 == 0, format!("vm{n}"));
        let chassis = Some(if mine { ME } else { OTHER });
        let (far, encap) = peer(n + 3);
        db.chassis.insert(id(22, n), Arc::new(far));
        db.encap.insert(id(21, n + 3), Arc::new(encap));
        db.service_monitor.insert(id(18, n), Arc::new(check(&name, None)));
        let next_hop = sb::EcmpNexthop { datapath: datapath(n), port: id(2, n), ..Default::default() };
        db.ecmp_nexthop.insert(id(19, n), Arc::new(next_hop));
        db.port_binding.insert(id(2, n), Arc::new(machine(n, chassis)));
        if mine {
            local.vifs.insert(text(name), vif(n as u16 + 1));
        }
        for f in 0..flows {
            let row = flow(datapath(n), false, f, &format!("ip4.dst == 10.0.{}.{}", f / 250, f % 250), "next;");
            db.logical_flow.insert(id(3, n * flows + f), Arc::new(row));
        }
    }
    for f in 0..10 {
        db.logical_flow.insert(id(4, f), Arc::new(flow(group, true, f, "arp", "next;")));
    }
    db.mirror.insert(id(13, 0), Arc::new(mirror("192.0.2.9")));
    db.port_binding.insert(id(5, 0), Arc::new(patch(0, 1, 2)));
    for n in 0..neighbours {
        db.mac_binding.insert(id(6, n), Arc::new(neighbour(n, 1)));
    }
    Chassis::new(db, local)
}

/// What each of some changes costs.
fn costs(c: &mut Chassis) -> Vec<(&'static str, (usize, usize))> {
    let mut out = Vec::new();
    let mut cost = |what, c: &mut Chassis| out.push((what, c.settle()));
    c.set(id(0, 0), Some(sb::SbGlobal { nb_cfg: 7, ..Default::default() }));
    cost("nb_cfg", c);
    c.set(id(3, 0), Some(flow(datapath(0), false, 0, "ip4.dst == 10.9.9.9", "next;")));
    cost("a logical flow changes", c);
    c.set(id(4, 99), Some(flow(id(9, 0), true, 99, "udp", "next;")));
    cost("a logical flow of a group is new", c);
    c.set(id(6, 0), Some(neighbour(0, 2)));
    cost("a neighbour's MAC changes", c);
    c.set(id(6, 99_999), Some(neighbour(99_999, 2)));
    cost("a neighbour is new", c);
    c.set(id(6, 99_999), None::<sb::MacBinding>);
    cost("a neighbour is gone", c);
    let reported = sb::PortBinding { up: Some(false), ..machine(0, Some(ME)) };
    c.set(id(2, 0), Some(reported.clone()));
    cost("a port is reported down", c);
    c.set(id(2, 0), Some(sb::PortBinding { up: Some(true), ..reported }));
    c.settle();
    c.set(id(18, 0), Some(check("vm0", Some("online"))));
    cost("the verdict of a health check is written", c);
    c.set(id(18, 1), Some(check("vm1", Some("online"))));
    cost("one of another chassis is", c);
    c.set(id(18, 99_999), Some(check("nowhere", None)));
    cost("a health check is new", c);
    let (far, encap) = peer(200);
    c.set(id(21, 200), Some(encap.clone()));
    c.set(id(22, 99_999), Some(far.clone()));
    cost("a chassis is new", c);
    c.set(id(21, 200), Some(sb::Encap { ip: text("198.51.100.250"), ..encap }));
    cost("its address changes", c);
    c.set(id(22, 99_999), Some(sb::Chassis { hostname: text("other"), ..far }));
    cost("its name as a machine changes", c);
    let nexthop = text("10.0.0.7");
    c.set(id(19, 0), Some(sb::EcmpNexthop { datapath: datapath(0), port: id(2, 0), nexthop, ..Default::default() }));
    cost("a next hop changes", c);
    // A port whose flow and whose row are there is plugged in: the interface, its number, the claim.
    c.set(id(2, 77_777), Some(port(0, "vm-late", 9)));
    c.set(id(3, 77_777), Some(flow(datapath(0), false, 7, "inport == \"vm-late\"", "next;")));
    c.settle();
    c.change_local(|l| drop(l.vifs.insert(text("vm-late"), Vif { ofport: None, ..vif(900) })));
    cost("an interface is made", c);
    c.change_local(|l| drop(l.vifs.insert(text("vm-late"), vif(900))));
    cost("it gets a number", c);
    c.set(id(2, 77_777), Some(sb::PortBinding { chassis: Some(ME), ..port(0, "vm-late", 9) }));
    cost("its port is claimed", c);
    let far = sb::PortBinding { chassis: Some(OTHER), ..port(1, "far", 7) };
    c.set(id(2, 99_999), Some(far));
    cost("a port elsewhere is new", c);
    c.set(id(2, 99_998), Some(port(1, "vm-new", 8)));
    c.change_local(|l| drop(l.vifs.insert(text("vm-new"), vif(999))));
    cost("a datapath becomes local", c);
    c.change_local(|l| drop(l.vifs.remove("vm-new")));
    cost("a datapath is local no longer", c);
    out
}

/// A member of a set costs a part of the set for each flow that demands it, and no flow as a whole; a set that gets a second
/// member costs its flows.
#[test]
fn a_member_of_an_address_set_costs_a_part_of_it() {
    let mut c = cloud(2, 10, 0);
    let texts = ["ip4.src == $as", "ip4.src == $as && tcp.dst == {80, 443}", "ip4.src == $as && ip4.dst == $as"];
    for (n, m) in texts.iter().enumerate() {
        c.set(id(3, 500 + n), Some(flow(datapath(0), false, 500 + n, m, "next;")));
    }
    let with = |n: u8, c: &mut Chassis| {
        let addresses = (0..n).map(|n| text(format!("10.1.0.{n}"))).collect();
        c.set(id(11, 0), Some(sb::AddressSet { name: text("as"), addresses, ..Default::default() }));
        let (_, ran) = c.settle();
        (ran, c.engine.outputs().len())
    };
    with(0, &mut c);
    let (ran, base) = with(1, &mut c);
    assert_eq!(ran, 4, "the set and its flows");
    assert_eq!(with(2, &mut c).0, 7, "and what the members add to each");
    let mut before = with(3, &mut c);
    for n in (4..=200).chain((3..200).rev()) {
        let now = with(n, &mut c);
        // One flow for each of the first two, two for the last one, which asks for source and destination.
        assert_eq!(now.1.abs_diff(before.1), 4, "{n} members");
        let halved = [16, 17, 32, 33, 64, 65, 128, 129].contains(&n);
        assert!(now.0 == 4 || halved, "{n} members: {} units, not the set and one part of it for each flow", now.0);
        before = now;
    }
    with(2, &mut c);
    assert_eq!(with(1, &mut c), (7 - 3, base), "as it began");
    assert!(c.differs_from_fresh().is_empty());
}

#[test]
fn a_change_costs_as_much_in_a_large_cloud_as_in_a_small_one() {
    let (mut small, mut large) = (cloud(2, 10, 10), cloud(40, 10, 3000));
    let (a, b) = (costs(&mut small), costs(&mut large));
    assert_eq!(a, b);
    let of = |what: &str| a.iter().find(|(w, _)| *w == what).unwrap().1;
    // That a port is down is looked at by the port and its health check alone, and no flow follows from it.
    assert_eq!((of("nb_cfg"), of("a port is reported down")), ((0, 0), (2, 0)));
    for one in ["the verdict of a health check is written", "one of another chassis is", "a health check is new"] {
        assert_eq!(of(one), (1, 0), "{one}");
    }
    for one in ["a chassis is new", "its address changes", "its name as a machine changes"] {
        assert_eq!(of(one).0, 1, "{one}: its tunnels alone");
    }
    assert_eq!(of("a next hop changes"), (1, 1), "the question, and its connections");
    // What this chassis has the port as, the port itself, its logical flow.
    assert_eq!((of("an interface is made"), of("it gets a number")), ((1, 0), (1, 3)));
    assert_eq!(of("its port is claimed"), (1, 2), "the logical flow follows from its role, which is what it was");
    for one in [
        "a logical flow changes",
        "a logical flow of a group is new",
        "a neighbour's MAC changes",
        "a neighbour is new",
    ] {
        assert_eq!(of(one), (0, 1), "{one}");
    }
    assert_eq!(of("a port elsewhere is new"), (0, 0), "nothing of it is here");
    assert!(small.differs_from_fresh().is_empty());
    assert!(large.differs_from_fresh().is_empty());
}

/// What rows are asked for, and this chassis' own rows, are compared when these numbers change.
#[test]
fn what_others_do_changes_neither_what_is_asked_for_nor_the_own_rows() {
    let mut c = cloud(2, 1, 1);
    let numbers = |c: &Chassis| (c.input.interest(), c.input.own_rows());
    let before = numbers(&c);
    let far = sb::PortBinding { chassis: Some(OTHER), ..port(1, "far", 7) };
    c.set(id(2, 99_999), Some(far));
    c.set(id(2, 99_998), Some(port(0, "near", 8)));
    c.set(OTHER, Some(sb::Chassis { name: text("hv2"), hostname: text("other"), ..Default::default() }));
    let encap = |ip: &str| sb::Encap { ip: text(ip), chassis_name: text("hv2"), ..Default::default() };
    c.set(id(14, 5), Some(encap("192.0.2.77")));
    let private = |name: &str| sb::ChassisPrivate { name: text(name), nb_cfg: 7, ..Default::default() };
    c.set(id(20, 2), Some(private("hv2")));
    c.settle();
    assert_eq!(numbers(&c), before, "ports of others, and their rows");
    // A port of a local datapath that is plugged in comes with it.
    c.change_local(|l| drop(l.vifs.insert(text("near"), vif(501))));
    c.settle();
    assert_eq!(numbers(&c), before);
    c.set(id(20, 1), Some(private("hv1")));
    c.change_local(|l| l.encap_ips = vec![text("192.0.2.1")]);
    c.set(id(14, 6), Some(encap("192.0.2.1")));
    assert_eq!(numbers(&c), (before.0, before.1 + 2), "the own row, and another one with an address of this chassis");
    c.change_local(|l| drop(l.vifs.insert(text("stranger"), vif(500))));
    c.settle();
    assert_eq!(c.input.strangers().iter().map(|n| &**n).collect::<Vec<_>>(), ["stranger"]);
    c.set(id(2, 99_997), Some(port(0, "stranger", 9)));
    c.settle();
    assert!(c.input.strangers().is_empty(), "its row comes with its datapath");
    assert_eq!(c.input.interest(), before.0 + 2);
}

#[test]
fn a_gateway_watches_those_whom_it_serves() {
    let (db, local) = start();
    let mut c = Chassis::new(db, local);
    c.step(Step::Datapath(0, true));
    c.step(Step::Gateways(3));
    c.set(id(2, 0), Some(sb::PortBinding { chassis: Some(ME), ..port(0, "vm0", 1) }));
    c.settle();
    let watched = |c: &Chassis| c.presence.watched.iter().copied().collect::<Vec<_>>();
    assert_eq!(watched(&c), [OTHER], "the other member");
    let far = sb::PortBinding { chassis: Some(id(22, 99)), ..port(0, "far", 2) };
    c.set(id(2, 1), Some(far.clone()));
    c.settle();
    assert_eq!(watched(&c), [OTHER], "the group serves nothing here");
    c.set(
        id(2, 2),
        Some(sb::PortBinding {
            r#type: text("chassisredirect"),
            ha_chassis_group: Some(id(12, 0)),
            ..port(0, "cr-out", 3)
        }),
    );
    c.settle();
    assert_eq!(watched(&c), [OTHER, id(22, 99)]);
    let second = sb::PortBinding { logical_port: text("far2"), tunnel_key: 9, ..far };
    c.set(id(2, 3), Some(second));
    c.set(id(2, 1), None::<sb::PortBinding>);
    c.settle();
    assert_eq!(watched(&c), [OTHER, id(22, 99)], "another of its ports is there");
    c.set(id(2, 3), None::<sb::PortBinding>);
    c.settle();
    assert_eq!(watched(&c), [OTHER]);
    assert!(c.differs_from_fresh().is_empty());
}

/// A flow of a port group looks at which members are here, not at each member.
#[test]
fn members_of_a_port_group_cost_what_is_here() {
    let mut c = cloud(2, 1, 0);
    let group = |others: usize| {
        let ports = (0..others).map(|n| text(format!("far{n}"))).chain([text("vm0")]).collect();
        Some(sb::PortGroup { name: text("1_pg"), ports })
    };
    for n in 0..100 {
        c.set(
            id(2, 1000 + n),
            Some(sb::PortBinding { chassis: Some(OTHER), ..port(0, &format!("far{n}"), 100 + n as i64) }),
        );
    }
    c.set(id(10, 0), group(50));
    for f in 0..3 {
        c.set(id(3, 77_700 + f), Some(flow(datapath(0), false, f, "outport == @pg", "next;")));
    }
    c.settle();
    assert!(c.tables.len().0 > 0);
    c.set(id(10, 0), group(100));
    assert_eq!(c.settle(), (0, 1), "members elsewhere come: the group's own unit");
    c.set(id(3, 77_700), Some(flow(datapath(0), false, 9, "outport == @pg && ip4", "next;")));
    assert_eq!(c.settle(), (0, 1), "the flow alone");
    assert!(c.engine.stats().looks < 20, "{:?} for a flow of a group of 101", c.engine.stats());
    c.set(id(10, 0), None::<sb::PortGroup>);
    c.settle();
    assert!(c.differs_from_fresh().is_empty());
    c.set(id(10, 1), group(3));
    c.settle();
    assert!(c.differs_from_fresh().is_empty());
}

#[test]
fn a_port_that_is_not_here_has_no_flows_of_its_own() {
    let mut c = cloud(1, 1, 0);
    let kinds = [("localport", None), ("mirror", Some(text("away")))];
    for (n, (kind, sink)) in kinds.into_iter().enumerate() {
        let name = format!("port{n}");
        c.set(
            id(2, 100 + n),
            Some(sb::PortBinding { r#type: text(kind), mirror_port: sink, ..port(0, &name, 20 + n as i64) }),
        );
        c.settle();
        let before = c.tables.len().0;
        c.set(id(3, 77_700 + n), Some(flow(datapath(0), false, 7, &format!("inport == \"{name}\""), "next;")));
        c.settle();
        assert_eq!(c.tables.len().0, before, "{kind}: nothing is plugged in for it");
        let of = if kind == "mirror" { text("away") } else { text(&name) };
        c.set(id(2, 200), Some(port(0, "away", 30)));
        c.settle();
        let without = c.tables.len().0;
        c.change_local(|l| drop(l.vifs.insert(of, vif(800 + n as u16))));
        c.settle();
        assert!(c.tables.len().0 > without, "{kind}");
        assert!(c.differs_from_fresh().is_empty());
    }
}

/// A change of one of the inputs.
#[derive(Clone, Copy, Debug)]
enum Step {
    Datapath(usize, bool),
    /// A port of a switch: absent, unbound, here, elsewhere, or a container of another.
    Port(usize, u8),
    Patch(usize, usize, bool),
    Flow(usize, u8),
    Group(u8),
    Neighbour(usize, u8),
    Forwarding(usize, u8),
    Multicast(usize, bool),
    Members(u8),
    Global(u8),
    /// An interface: absent, without a number yet, or there.
    Plug(usize, u8),
    Tunnel(u16),
    /// A port of a provider network, and whether its patch port has a number.
    Localnet(usize, u8, bool),
    /// Who is in the group of gateways.
    Gateways(u8),
    /// Which chassis are alive, and whether this one is still starting.
    Alive(u8),
    /// The encapsulations of this chassis.
    Encaps(u8),
    /// A row of names: of which datapaths, and what it says.
    Names(usize, u8, u8),
    /// The other chassis: how many addresses it has, and what else is said of it.
    Peer(u8),
    /// What the operator wants of tunnels.
    Tunnelling(u8),
    /// A health check of a port, and what it says.
    Check(usize, u8),
    /// A next hop behind a port.
    NextHop(usize, bool),
    /// A BFD session of a port: absent, for any next hop, one of another family, or needed by nobody.
    Session(usize, u8),
    /// A prefix of a port, absent or tracked by another one.
    Advertised(usize, u8),
    /// A mirror: absent, or to which kind of sink.
    Mirror(u8),
    /// What came so far is derived.
    Derive,
}

const SWITCHES: usize = 4;
const PORTS: usize = 6;

impl Chassis {
    fn step(&mut self, s: Step) {
        match s {
            // The last one is a router.
            Step::Datapath(n, there) if n == SWITCHES - 1 => {
                let external_ids = Map::from([(text("logical-router"), text("x"))]);
                self.set(datapath(n), there.then(|| sb::DatapathBinding { external_ids, ..switch(n) }));
            }
            Step::Datapath(n, there) => self.set(datapath(n), there.then(|| switch(n))),
            Step::Port(n, kind) => {
                let mut p = port(n % SWITCHES, &format!("vm{n}"), n as i64 + 10);
                match kind {
                    2 => p.chassis = Some(ME),
                    3 => p.chassis = Some(OTHER),
                    4 => p.parent_port = Some(text("vm0")),
                    5 => drop(p.options.insert(text("requested-chassis"), text("hv2"))),
                    6 => (p.r#type, p.chassis) = (text("l2gateway"), Some(ME)),
                    7 | 8 => {
                        p.r#type = text(if kind == 7 { "chassisredirect" } else { "external" });
                        p.ha_chassis_group = Some(id(12, 0));
                        p.options.insert(text("distributed-port"), text("vm3"));
                    }
                    9 => (p.r#type, p.virtual_parent) = (text("virtual"), Some(text("vm0"))),
                    10 => p.r#type = text("localport"),
                    11 => {
                        // One with all that a machine's port may bring, reported down.
                        (p.chassis, p.up) = (Some(ME), Some(false));
                        p.mac = [text("02:00:00:00:00:01 10.0.0.1")].into();
                        p.mirror_rules = [id(13, 0)].into();
                        let pairs = [
                            ("ct-zone-limit", "5"),
                            ("qdisc_queue_id", "3"),
                            ("qos_physical_network", "phys"),
                            ("qos_min_rate", "7"),
                        ];
                        p.options.extend(pairs.map(|(k, v)| (text(k), text(v))));
                    }
                    12 => (p.chassis, p.up, p.encap) = (Some(ME), Some(true), Some(id(14, 0))),
                    15 => p.chassis = Some(id(22, 99)),
                    13 => p.additional_chassis = [ME].into(),
                    14 => {
                        (p.r#type, p.chassis) = (text("l3gateway"), Some(ME));
                        p.mac = [text("02:00:00:00:00:02 10.0.0.2/24")].into();
                        p.options.extend(["ipv6_prefix", "dynamic-routing"].map(|o| (text(o), text("true"))));
                        p.nat_addresses = [text("02:00:00:00:00:02 10.0.0.2 is_chassis_resident(\"vm1\")")].into();
                        p.options.insert(text("peer"), text("vm2"));
                    }
                    // A distributed port of a router, and a redirect port of the next one.
                    16 => {
                        p.r#type = text("patch");
                        p.mac = [text("02:00:00:00:00:03 10.0.0.3/24")].into();
                        p.options.insert(text("peer"), text("vm2"));
                        p.options.insert(text("chassis-redirect-port"), text(format!("cr-vm{n}")));
                        p.options.extend(["ipv6_prefix", "ipv6_prefix_delegation"].map(|o| (text(o), text("true"))));
                    }
                    17 => {
                        p.logical_port = text(format!("cr-vm{}", (n + 1) % PORTS));
                        (p.r#type, p.chassis) = (text("chassisredirect"), Some(ME));
                        p.options.insert(text("dynamic-routing"), text("true"));
                        p.options.insert(text("dynamic-routing-redistribute-local-only"), text("true"));
                    }
                    _ => {}
                }
                self.set(id(2, n), (kind > 0).then_some(p));
            }
            Step::Patch(a, b, there) => {
                let key = (a * SWITCHES + b) as i64 + 50;
                self.set(id(5, a * SWITCHES + b), there.then(|| patch(a, b, key)));
            }
            Step::Flow(n, kind) => {
                let (m, actions) = match kind {
                    1 => (format!("inport == \"vm{}\"", n % PORTS), "next;".to_string()),
                    2 => ("ip4.src == $as".to_string(), "ct_lb_mark(backends=10.0.0.1:80,10.0.0.2:80);".to_string()),
                    6 => (
                        format!("ip4.dst == {{$as, 10.1.0.7}} && (ip4.src == $as) && tcp.dst == {{80, {n}}}"),
                        "drop;".to_string(),
                    ),
                    7 => ("inport == @pg && ip4.src == $as".to_string(), "drop;".to_string()),
                    3 => (
                        format!("outport == @pg && ip4.src == {{10.0.0.1, 10.0.0.{n}}} && tcp.dst == {{80, 443}}"),
                        "drop;".to_string(),
                    ),
                    4 => (
                        format!("is_chassis_resident(\"vm{}\")", n % PORTS),
                        format!("outport = \"vm{}\"; output;", n % PORTS),
                    ),
                    _ => ("ip".to_string(), "set_meter(1000); next;".to_string()),
                };
                let grouped = n % 3 == 0;
                let owner = if grouped { id(9, 0) } else { datapath(n % SWITCHES) };
                self.set(id(3, n), (kind > 0).then(|| flow(owner, grouped, n, &m, &actions)));
            }
            Step::Group(bits) => {
                let datapaths = (0..SWITCHES).filter(|n| bits >> n & 1 == 1).map(datapath).collect();
                self.set(id(9, 0), (bits > 0).then_some(sb::LogicalDpGroup { datapaths }));
            }
            Step::Neighbour(n, mac) => self.set(id(6, n), (mac > 0).then(|| neighbour(n, mac))),
            Step::Forwarding(n, port) => {
                let row = sb::Fdb {
                    mac: text(format!("02:00:00:00:01:{n:02x}")),
                    dp_key: (n % SWITCHES) as i64 + 1,
                    port_key: i64::from(port),
                    ..Default::default()
                };
                self.set(id(7, n), (port > 0).then_some(row));
            }
            Step::Multicast(n, there) => {
                let ports = (0..PORTS).filter(|p| p % SWITCHES == n).map(|p| id(2, p)).collect();
                let row =
                    sb::MulticastGroup { datapath: datapath(n), name: text("_MC_flood"), tunnel_key: 0x8000, ports };
                self.set(id(8, n), there.then_some(row));
            }
            Step::Members(bits) => {
                let ports = (0..PORTS).filter(|p| bits >> p & 1 == 1).map(|p| text(format!("vm{p}"))).collect();
                self.set(id(10, 0), (bits > 0).then(|| sb::PortGroup { name: text("1_pg"), ports }));
                // Sets of none to seventy members, so that they are in one part or in several.
                let each = if bits & 1 == 1 { 9 } else { 1 };
                let of = |b: u8| (0..each).map(move |k| text(format!("10.1.{k}.{b}")));
                let addresses = (0..8u8).filter(|b| bits >> b & 1 == 1).flat_map(of).collect();
                self.set(
                    id(11, 0),
                    (bits > 1).then(|| sb::AddressSet { name: text("as"), addresses, ..Default::default() }),
                );
            }
            Step::Global(n) => {
                let on = if n % 2 == 0 { "true" } else { "false" };
                let options = Map::from([(text("always_tunnel"), text(on))]);
                self.set(
                    id(0, 0),
                    Some(sb::SbGlobal { nb_cfg: n.into(), options, ipsec: n % 3 == 0, ..Default::default() }),
                );
            }
            Step::Plug(n, kind) => self.change_local(|l| match kind {
                0 => drop(l.vifs.remove(&*format!("vm{n}"))),
                1 => drop(l.vifs.insert(text(format!("vm{n}")), Vif { ofport: None, ..vif(n as u16 + 1) })),
                _ => drop(l.vifs.insert(text(format!("vm{n}")), vif(n as u16 + 1))),
            }),
            Step::Tunnel(n) => self.change_local(|l| l.tunnels = (n > 0).then(|| tunnel(n)).into_iter().collect()),
            Step::Localnet(n, kind, plugged) => {
                let (name, mut options) = (format!("ln{n}"), Map::from([(text("network_name"), text("phys"))]));
                let mut row = port(n, &name, 200);
                if kind == 2 {
                    drop(options.insert(text("localnet_learn_fdb"), text("true")));
                    (row.tag, row.tunnel_key) = (Some(5), 201);
                }
                (row.r#type, row.options) = (text("localnet"), options);
                self.set(id(15, n), (kind > 0).then_some(row));
                self.change_local(|l| match plugged {
                    true => drop(l.localnets.insert(text(name), 77)),
                    false => drop(l.localnets.remove(&*name)),
                });
            }
            Step::Gateways(bits) => {
                for (n, chassis) in [(0, ME), (1, OTHER)] {
                    let row = sb::HaChassis { chassis: Some(chassis), priority: n as i64 + 1, ..Default::default() };
                    self.set(id(16, n), (bits >> n & 1 == 1).then_some(row));
                }
                let members = (0..2).filter(|n| bits >> n & 1 == 1).map(|n| id(16, n)).collect();
                let ref_chassis = if bits & 4 == 4 { [OTHER].into() } else { [ME].into() };
                let group =
                    sb::HaChassisGroup { name: text("g"), ha_chassis: members, ref_chassis, ..Default::default() };
                self.set(id(12, 0), (bits > 0).then_some(group));
            }
            Step::Alive(bits) => self.change_local(|l| {
                l.gateways.alive = (bits & 1 == 1).then(|| text("hv2")).into_iter().collect();
                l.gateways.starting = bits & 2 == 2;
            }),
            Step::Encaps(n) => {
                let mut me = (*self.input.sb.chassis[&ME]).clone();
                me.encaps = (0..usize::from(n)).map(|e| id(14, e)).collect();
                for e in 0..2 {
                    let options = Map::from([(text("is_default"), text(if e == 1 { "true" } else { "false" }))]);
                    let ip = text(format!("192.0.2.{e}"));
                    let row = sb::Encap { ip, options, r#type: text("geneve"), ..Default::default() };
                    self.set(id(14, e), (e < usize::from(n)).then_some(row));
                }
                self.set(ME, Some(me));
            }
            Step::Names(n, of, what) => {
                let datapaths = (0..SWITCHES).filter(|d| of >> d & 1 == 1).map(datapath).collect();
                let records = Map::from([(text("vm.example"), text(format!("10.0.0.{what}")))]);
                let row = sb::Dns { datapaths, records, ..Default::default() };
                self.set(id(17, n), (what > 0).then_some(row));
            }
            Step::Peer(kind) => {
                let mut c = peer(2).0;
                c.encaps = (0..usize::from(kind % 3)).map(|e| id(21, e)).collect();
                for e in 0..2 {
                    let encap = sb::Encap { ip: text(format!("198.51.100.{}", e + usize::from(kind))), ..peer(2).1 };
                    self.set(id(21, e), c.encaps.contains(&id(21, e)).then_some(encap));
                }
                match kind {
                    3 => drop(c.other_config.insert(text("is-remote"), text("true"))),
                    4 => c.transport_zones = [text("z")].into(),
                    5 => c.other_config.extend(["is-vtep", "vtep-bfd"].map(|k| (text(k), text("true")))),
                    _ => {}
                }
                self.set(OTHER, (kind < 6).then_some(c));
            }
            Step::Tunnelling(kind) => self.change_local(|l| {
                l.tunnelling = tunnelling(usize::from(kind % 3), if kind > 2 { &["z"] } else { &[] });
                l.tunnelling.interconnection = kind == 1;
                l.tunnelling.flow_based = kind == 4;
            }),
            Step::Check(n, kind) => {
                let mut row = check(&format!("vm{n}"), (kind > 2).then_some("online"));
                if kind == 2 {
                    (row.r#type, row.protocol) = (Some(text("network-function")), Some(text("icmp")));
                    (row.logical_input_port, row.mac) = (text("vm2"), text("02:00:00:00:00:03"));
                }
                self.set(id(18, n), (kind > 0).then_some(row));
            }
            Step::NextHop(n, there) => {
                let row = sb::EcmpNexthop { port: id(2, n), nexthop: text("10.0.0.9"), ..Default::default() };
                self.set(id(19, n), there.then_some(row));
            }
            Step::Session(n, kind) => {
                let row = sb::Bfd {
                    logical_port: text(format!("vm{n}")),
                    dst_ip: text(if kind == 2 { "fd00::9" } else { "10.0.0.9" }),
                    src_port: 49152 + n as i64,
                    disc: n as i64 + 1,
                    status: text(if kind == 3 { "admin_down" } else { "down" }),
                    ..Default::default()
                };
                self.set(id(23, n), (kind > 0).then_some(row));
            }
            Step::Advertised(n, kind) => {
                let row = sb::AdvertisedRoute {
                    datapath: datapath(n % SWITCHES),
                    logical_port: id(2, n),
                    ip_prefix: text(format!("10.0.{n}.0/24")),
                    tracked_port: (kind > 1).then_some(id(2, kind as usize)),
                    ..Default::default()
                };
                self.set(id(24, n), (kind > 0).then_some(row));
            }
            Step::Mirror(kind) => {
                let row =
                    sb::Mirror { r#type: text(["lport", "gre", "local"][kind as usize % 3]), ..mirror("192.0.2.9") };
                self.set(id(13, 0), (kind < 3).then_some(row));
            }
            Step::Derive => drop(self.settle()),
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let b = any::<bool>;
    let one = prop_oneof![
        (0..SWITCHES, b()).prop_map(|(n, t)| Step::Datapath(n, t)),
        (0..PORTS, 0..18u8).prop_map(|(n, k)| Step::Port(n, k)),
        (0..PORTS, 0..18u8).prop_map(|(n, k)| Step::Port(n, k)),
        (0..SWITCHES, 0..3u8, b()).prop_map(|(n, k, p)| Step::Localnet(n, k, p)),
        (0..8u8).prop_map(Step::Gateways),
        (0..7u8).prop_map(Step::Peer),
        (0..5u8).prop_map(Step::Tunnelling),
        (0..4u8).prop_map(Step::Alive),
        (0..3u8).prop_map(Step::Encaps),
        (0..2usize, 0..16u8, 0..3u8).prop_map(|(n, d, w)| Step::Names(n, d, w)),
        (0..SWITCHES, 0..SWITCHES, b()).prop_map(|(a, c, t)| Step::Patch(a, c, t)),
        (0..12usize, 0..8u8).prop_map(|(n, k)| Step::Flow(n, k)),
        (0..16u8).prop_map(Step::Group),
        (0..4usize, 0..3u8).prop_map(|(n, m)| Step::Neighbour(n, m)),
        (0..4usize, 0..3u8).prop_map(|(n, p)| Step::Forwarding(n, p)),
        (0..SWITCHES, b()).prop_map(|(n, t)| Step::Multicast(n, t)),
        any::<u8>().prop_map(Step::Members),
        (0..4u8).prop_map(Step::Global),
        (0..PORTS, 0..3u8).prop_map(|(n, k)| Step::Plug(n, k)),
        (0..3u16).prop_map(|n| Step::Tunnel(n * 100)),
        (0..PORTS, 0..4u8).prop_map(|(n, k)| Step::Check(n, k)),
        (0..PORTS, b()).prop_map(|(n, t)| Step::NextHop(n, t)),
        (0..PORTS, 0..4u8).prop_map(|(n, k)| Step::Session(n, k)),
        (0..PORTS, 0..4u8).prop_map(|(n, k)| Step::Advertised(n, k)),
        (0..4u8).prop_map(Step::Mirror),
        Just(Step::Derive),
    ];
    proptest::collection::vec(one, 1..80)
}

/// What is known of Ethernet addresses is not learned anew from a provider network, once its port is to learn.
#[test]
fn a_provider_network_that_begins_to_learn() {
    let (db, local) = start();
    let mut c = Chassis::new(db, local);
    for s in
        [Step::Datapath(0, true), Step::Port(0, 1), Step::Localnet(0, 1, true), Step::Forwarding(0, 1), Step::Derive]
    {
        c.step(s);
    }
    let before = c.tables.len().0;
    c.step(Step::Localnet(0, 2, true));
    c.settle();
    assert!(c.differs_from_fresh().is_empty());
    c.step(Step::Localnet(0, 1, true));
    c.settle();
    assert_eq!(c.tables.len().0, before);
    assert!(c.differs_from_fresh().is_empty());
}

/// A router port of a provider network that becomes another kind of port in place.
#[test]
fn an_attached_router_port_that_becomes_another_kind() {
    let (db, local) = start();
    let mut c = Chassis::new(db, local);
    for n in 0..SWITCHES {
        c.step(Step::Datapath(n, true));
        c.step(Step::Patch(n, (n + 1) % SWITCHES, true));
        c.step(Step::Patch((n + 1) % SWITCHES, n, true));
    }
    c.step(Step::Group(15));
    for s in [Step::Port(2, 11), Step::Localnet(0, 1, true), Step::Port(4, 14), Step::Derive, Step::Port(4, 1)] {
        c.step(s);
    }
    c.settle();
    assert_eq!(c.differs_from_fresh(), Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_gives_what_a_fresh_start_gives(steps in steps()) {
        let (db, local) = start();
        let mut c = Chassis::new(db, local);
        // The most of the network is there at first.
        for n in 0..SWITCHES {
            c.step(Step::Datapath(n, true));
            c.step(Step::Patch(n, (n + 1) % SWITCHES, true));
            c.step(Step::Patch((n + 1) % SWITCHES, n, true));
        }
        c.step(Step::Group(15));
        for s in steps {
            c.step(s);
        }
        c.settle();
        let differs = c.differs_from_fresh();
        prop_assert!(differs.is_empty(), "{:#?}", differs);
    }
}
