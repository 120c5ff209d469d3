//! What a change costs: units that run and logical flows that are compiled.

use crate::chassis::Chassis;
use crate::rows::*;
use controller::input::model::Vif;
use ovn_schema::sb;
use std::sync::Arc;

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

/// A member of a set costs a part of the set for each flow that demands it, and no flow as a whole; a set that gets a
/// second member costs its flows.
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
