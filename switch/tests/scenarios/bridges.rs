//! Ports and bridges: patch ports, liveness, routes by bridges, a bridge in place of another.

use crate::rig::{load, one, send, udp, via};
use openflow_rs::*;
use switch::{BridgeId, DeviceId, Egress, Port, PortKind, Route, Switch};

#[test]
fn patch_ports_join_bridges() {
    let mut s = one(&[
        "in_port=1 actions=set_field:0x5->reg0,set_field:0x3->pkt_mark,output:20,resubmit(,1)",
        "table=1,reg0=0x5 actions=output:2",
    ]);
    let b = s.add_bridge("br-phys", 2);
    s.add_port(BridgeId(0), Port::new(PortNo(20), "int-phys", PortKind::Patch("phys-int".into()))).expect("port");
    s.add_port(b, Port::new(PortNo(1), "phys-int", PortKind::Patch("int-phys".into()))).expect("port");
    s.add_port(b, Port::new(PortNo(2), "eth0", PortKind::Device(DeviceId(50)))).expect("port");
    load(
        &mut s,
        b,
        &["priority=5,reg0=0,pkt_mark=0x3,in_port=1 actions=set_field:02:02:02:02:02:02->eth_dst,output:2"],
    );
    let p = udp("10.0.0.1", 5, "10.0.0.2", 6);
    let out = send(&mut s, 1, &p).packets;
    assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [50, 2].map(via));
    assert_eq!(out[1].1, p, "the other bridge's change stays there");
    let metadata = Match::new().with(FieldId::InPort, 1);
    let r = switch::TraceRequest { metadata, packet: p, ..Default::default() };
    assert!(s.trace(r, &mut Vec::new()).contains(" 0. in_port=1, priority 32768"));
}

#[test]
fn a_port_is_live_as_its_link_bfd_cfm_and_lacp_say() {
    let link = |admin_up, up| switch::PortLink { admin_up, up, ..Default::default() };
    let said = [None, Some(false), Some(true)];
    for (admin_up, up) in [(false, false), (false, true), (true, false), (true, true)] {
        for (bfd, cfm, lacp) in said.into_iter().flat_map(|b| said.map(|c| said.map(|l| (b, c, l)))).flatten() {
            // Where a port has both BFD and CFM, one of them is enough.
            let path = match (bfd, cfm) {
                (Some(true), _) | (_, Some(true)) | (None, None) => true,
                (Some(false), _) | (_, Some(false)) => false,
            };
            let wanted = admin_up && up && path && lacp != Some(false);
            let is = switch::is_live(&link(admin_up, up), [bfd, cfm], lacp);
            assert_eq!(is, wanted, "admin_up {admin_up}, up {up}, BFD {bfd:?}, CFM {cfm:?}, LACP {lacp:?}");
        }
    }
}

#[test]
fn a_route_by_a_device_of_the_host_hides_worse_ones_by_bridges() {
    let address = |a: &str| a.parse::<std::net::IpAddr>().expect("address");
    let route = |prefix: &str, len, egress, table| Route {
        prefix: address(prefix),
        len,
        gateway: None,
        source: address("10.0.0.1"),
        hop_source: None,
        source_mac: packet::Mac([2; 6]),
        egress,
        own: false,
        mark: 0,
        table,
    };
    let mut u = switch::Underlay::default();
    u.set_routes(vec![
        route("0.0.0.0", 0, Egress::Port("br-phys".into()), Route::MAIN),
        route("10.9.0.0", 16, Egress::Host("mgmt".into()), Route::MAIN),
        route("10.9.0.0", 16, Egress::Port("br-other".into()), 42),
    ]);
    let egress = |u: &switch::Underlay, to: &str, from: Option<&str>| {
        u.route_from(address(to), from.map(address), 0).map(|r| r.egress.to_string()).unwrap_or_default()
    };
    assert_eq!(egress(&u, "10.9.1.1", None), "mgmt");
    assert_eq!(egress(&u, "10.8.1.1", None), "br-phys");
    // A rule for a source names another table.
    let mut rules = switch::RouteRule::standard();
    let from = Some((address("10.0.0.0"), 24));
    rules.push(switch::RouteRule { priority: 100, v6: false, from, invert: false, table: 42, own: false });
    u.set_rules(rules);
    assert_eq!(egress(&u, "10.9.1.1", Some("10.0.0.7")), "br-other");
    assert_eq!(egress(&u, "10.9.1.1", Some("10.0.1.7")), "mgmt");
    assert_eq!(egress(&u, "10.8.1.1", Some("10.0.0.7")), "br-phys", "the next table, where one has none");
    // The operator's own come first within their table; those of a mark are for it alone, and others serve it, too.
    let own = |prefix, len, bridge: &str, mark| Route {
        own: true,
        mark,
        ..route(prefix, len, Egress::Port(bridge.into()), Route::MAIN)
    };
    u.set_routes(vec![
        route("10.9.0.0", 16, Egress::Port("br-kernel".into()), Route::MAIN),
        own("10.0.0.0", 8, "br-own", 0),
        own("10.9.0.0", 16, "br-marked", 7),
    ]);
    let marked =
        |to: &str, mark| u.route_from(address(to), None, mark).map(|r| r.egress.to_string()).unwrap_or_default();
    assert_eq!(
        ["br-own", "br-own", "br-marked"],
        [marked("10.9.1.1", 0), marked("10.9.1.1", 5), marked("10.9.1.1", 7)]
    );
    assert_eq!(marked("10.8.1.1", 7), "br-own", "the mark has no route there");
}

#[test]
fn a_bridge_that_takes_another_ones_place_takes_nothing_else() {
    let mut s = Switch::new(10);
    let id = s.add_bridge("br0", 7);
    let b = s.bridge_mut(id).expect("bridge");
    b.fragments = switch::Fragments::Drop;
    (b.packet_ins, b.observed) = (9, true);
    b.table_stats[3] = (5, 4);
    b.record_flow_updates(true);
    b.forget();
    assert_eq!((b.fragments, b.packet_ins, b.observed, b.datapath_id), (switch::Fragments::Normal, 0, false, 0));
    assert!(b.table_stats.iter().all(|t| *t == (0, 0)));
}
