//! What ovn-nb(5) says and no recorded situation shows: ports of type `external` (machines that a chassis of a group serves through
//! the physical network of a bridged switch), and options.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use northd::Compiler;
use northd::model::{Cell, Key, RowKey, Value};
use northd::stage::Stage;
use ovn_schema::{Change, Map, Str, Uuid, nb, sb};
use std::sync::Arc;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(1 << 100 | n)
}

const PORT: u128 = 1;
const LOCALNET: u128 = 2;
const ROUTER: u128 = 6;

fn options(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| (Str::from(*k), Str::from(*v))).collect()
}

/// A bridged switch with a router and an external port.
fn network() -> Compiler {
    let mut db = nb::Database::default();
    let dhcp = [("server_id", "10.0.0.1"), ("server_mac", "0A:00:00:00:00:FE"), ("lease_time", "3600")];
    let dhcp = nb::DhcpOptions { cidr: "10.0.0.0/24".into(), options: options(&dhcp), ..Default::default() };
    db.dhcp_options.insert(id(3), Arc::new(dhcp));
    let member = nb::HaChassis { chassis_name: "gw".into(), priority: 10, ..Default::default() };
    db.ha_chassis.insert(id(4), Arc::new(member));
    let group = nb::HaChassisGroup { name: "g".into(), ha_chassis: [id(4)].into(), ..Default::default() };
    db.ha_chassis_group.insert(id(5), Arc::new(group));
    let port = nb::LogicalSwitchPort {
        name: "e".into(),
        r#type: "external".into(),
        addresses: [Str::from("0a:00:00:00:00:01 10.0.0.10")].into(),
        dhcpv4_options: Some(id(3)),
        ha_chassis_group: Some(id(5)),
        ..Default::default()
    };
    db.logical_switch_port.insert(id(PORT), Arc::new(port));
    let localnet = nb::LogicalSwitchPort {
        name: "net".into(),
        r#type: "localnet".into(),
        addresses: [Str::from("unknown")].into(),
        options: options(&[("network_name", "p")]),
        ..Default::default()
    };
    db.logical_switch_port.insert(id(LOCALNET), Arc::new(localnet));
    let up = nb::LogicalSwitchPort {
        name: "up".into(),
        r#type: "router".into(),
        addresses: [Str::from("router")].into(),
        options: options(&[("router-port", "r1")]),
        ..Default::default()
    };
    db.logical_switch_port.insert(id(ROUTER), Arc::new(up));
    let lrp = nb::LogicalRouterPort {
        name: "r1".into(),
        mac: "0a:01:00:00:00:01".into(),
        networks: [Str::from("10.0.0.1/24")].into(),
        ..Default::default()
    };
    db.logical_router_port.insert(id(7), Arc::new(lrp));
    let router = nb::LogicalRouter { name: "r".into(), ports: [id(7)].into(), ..Default::default() };
    db.logical_router.insert(id(8), Arc::new(router));
    let ports = [id(PORT), id(LOCALNET), id(ROUTER)].into();
    let switch = nb::LogicalSwitch { name: "s".into(), ports, ..Default::default() };
    db.logical_switch.insert(id(9), Arc::new(switch));
    let mut compiler = Compiler::new(db, sb::Database::default());
    compiler.run();
    compiler
}

fn change(c: &mut Compiler, port: u128, change: impl FnOnce(&mut nb::LogicalSwitchPort)) {
    let uuid = id(port);
    c.change_nb(|db| {
        let old = db.logical_switch_port.get(&uuid).cloned();
        let mut new = nb::LogicalSwitchPort::clone(old.as_ref().unwrap());
        change(&mut new);
        let new = Arc::new(new);
        db.logical_switch_port.insert(uuid, new.clone());
        vec![nb::AnyChange::LogicalSwitchPort(Change { uuid, old, new: Some(new) })]
    });
    c.run();
}

/// Match and actions of the flows of a stage at a priority.
fn flows(c: &Compiler, stage: Stage, priority: u16) -> Vec<(String, String)> {
    let flow = |k: &Key| match k {
        Key::Flow(f) if f.stage == stage && f.priority == priority => {
            Some((f.matches.to_string(), f.actions.to_string()))
        }
        _ => None,
    };
    let mut all: Vec<_> = c.engine().outputs().iter().filter_map(|(k, _)| flow(k)).collect();
    all.sort();
    all
}

/// The groups that a binding names.
fn groups(c: &Compiler) -> Vec<RowKey> {
    let key = Key::Row(RowKey::port("e"));
    let outputs = c.engine().outputs();
    let values = outputs.values(outputs.id(&key).unwrap());
    let Some(Value::Row(columns)) = values.first() else { panic!("a row") };
    let cell = columns.0.iter().find(|(n, _)| *n == "ha_chassis_group").unwrap();
    let Cell::Refs(rows) = &cell.1 else { panic!("references") };
    rows.clone()
}

fn served(c: &Compiler) -> bool {
    !flows(c, Stage::LsInDhcpOptions, 100).is_empty() && !flows(c, Stage::LsInDhcpResponse, 100).is_empty()
}

#[test]
fn served_through_the_physical_network() {
    let c = network();
    let offer = flows(&c, Stage::LsInDhcpOptions, 100);
    assert_eq!(offer.len(), 1, "{offer:?}");
    assert_eq!(
        offer[0].0,
        "inport == \"net\" && eth.src == 0a:00:00:00:00:01 && (ip4.src == {10.0.0.10, 0.0.0.0} && \
         ip4.dst == {10.0.0.1, 255.255.255.255}) && udp.src == 68 && udp.dst == 67 && is_chassis_resident(\"e\")"
    );
    let reply = flows(&c, Stage::LsInDhcpResponse, 100);
    let expected = "eth.dst = eth.src; eth.src = 0A:00:00:00:00:FE; ip4.src = 10.0.0.1; udp.src = 67; udp.dst = 68; \
                    outport = inport; flags.loopback = 1; output;";
    assert_eq!(reply[0].1, expected, "the address as it was given");
    assert_eq!(flows(&c, Stage::LsOutAclEval, 34000), [], "nothing leaves by the port itself");
    assert!(flows(&c, Stage::LsInArpRsp, 50).iter().all(|(m, _)| !m.contains("10.0.0.10")), "nobody answers for it");
    assert_eq!(groups(&c), [RowKey::new(sb::TableId::HaChassisGroup, "g")]);
    let away: Vec<String> = flows(&c, Stage::LsInExternalPort, 100).into_iter().map(|(m, _)| m).collect();
    let from = "inport == \"net\" && eth.src == 0a:00:00:00:00:01";
    let link_local = "fe80::801:ff:fe00:1";
    assert_eq!(
        away,
        [
            format!("{from} && !is_chassis_resident(\"e\") && arp.tpa == 10.0.0.1 && arp.op == 1"),
            format!(
                "{from} && !is_chassis_resident(\"e\") && nd_ns && ip6.dst == {{{link_local}, ff02::1:ff00:1}} && \
                 nd.target == {link_local}"
            ),
            format!("{from} && eth.dst == 0a:01:00:00:00:01 && !is_chassis_resident(\"e\")"),
        ]
    );
}

#[test]
fn not_served_without_a_group_or_a_network_or_when_disabled() {
    let mut c = network();
    change(&mut c, PORT, |p| p.enabled = Some(false));
    assert!(!served(&c));
    assert_eq!(flows(&c, Stage::LsInExternalPort, 100).len(), 3, "the routers are still asked at one chassis only");
    change(&mut c, PORT, |p| (p.enabled, p.ha_chassis_group) = (None, None));
    assert!(!served(&c));
    assert_eq!((groups(&c), flows(&c, Stage::LsInExternalPort, 100).len()), (vec![], 3));
    change(&mut c, PORT, |p| p.ha_chassis_group = Some(id(5)));
    assert!(served(&c));
    change(&mut c, LOCALNET, |p| p.r#type = "".into());
    assert!(!served(&c));
    assert_eq!(flows(&c, Stage::LsInExternalPort, 100), []);
}

#[test]
fn a_port_that_is_external_no_longer_leaves_its_group() {
    let mut c = network();
    change(&mut c, PORT, |p| p.r#type = "".into());
    assert_eq!((groups(&c), flows(&c, Stage::LsInExternalPort, 100)), (vec![], vec![]));
    assert!(served(&c));
    assert_eq!(flows(&c, Stage::LsOutAclEval, 34000).len(), 1);
    // An address that moves is served as well.
    change(&mut c, PORT, |p| p.r#type = "virtual".into());
    assert!(served(&c));
}

/// `pkt_clone_type`, `force_fdb_lookup` (of machines' ports only), `disable_arp_nd_rsp`.
#[test]
fn where_frames_for_a_port_go() {
    let mut c = network();
    let lookup = |c: &Compiler, mac: &str| {
        let all = flows(c, Stage::LsInL2Lkup, 50);
        all.into_iter().find(|(m, _)| m.starts_with(&format!("eth.dst == {mac}"))).map(|(_, a)| a)
    };
    let (own, router) = ("0a:00:00:00:00:01", "0a:01:00:00:00:01");
    change(&mut c, PORT, |p| p.r#type = "".into());
    assert_eq!(lookup(&c, own).unwrap(), "outport = \"e\"; output;");
    assert!(flows(&c, Stage::LsInArpRsp, 50).iter().any(|(m, _)| m.contains("10.0.0.10")));
    for port in [PORT, ROUTER] {
        change(&mut c, port, |p| p.options.extend(options(&[("pkt_clone_type", "MC_UNKNOWN")])));
    }
    assert_eq!(
        lookup(&c, own).unwrap(),
        "clone {outport = \"e\"; output; };outport = \"_MC_unknown\"; output;",
        "a localnet port takes what is unknown"
    );
    assert_eq!(lookup(&c, router).unwrap(), "outport = \"up\"; output;", "a router's port is none of a machine");
    change(&mut c, PORT, |p| p.options = options(&[("disable_arp_nd_rsp", "true"), ("force_fdb_lookup", "true")]));
    assert!(flows(&c, Stage::LsInArpRsp, 50).iter().all(|(m, _)| !m.contains("10.0.0.10")));
    assert!(lookup(&c, own).is_some(), "its address is known");
    change(&mut c, PORT, |p| p.addresses.extend([Str::from("unknown")]));
    assert_eq!(lookup(&c, own), None);
}

/// `ipv6_ra_configs`: an answer needs a prefix, whatever the mode, and comes from the address that the Ethernet address makes.
#[test]
fn router_solicitations_are_answered_with_prefixes() {
    let mut c = network();
    let port = |c: &mut Compiler, networks: &[&str]| {
        let uuid = id(7);
        c.change_nb(|db| {
            let old = db.logical_router_port.get(&uuid).cloned();
            let mut new = nb::LogicalRouterPort::clone(old.as_ref().unwrap());
            new.networks = networks.iter().map(|n| Str::from(*n)).collect();
            let config = [("address_mode", "dhcpv6_stateful"), ("rdnss", "fd00::53"), ("router_preference", "LOW")];
            new.ipv6_ra_configs = options(&config);
            let new = Arc::new(new);
            db.logical_router_port.insert(uuid, new.clone());
            vec![nb::AnyChange::LogicalRouterPort(Change { uuid, old, new: Some(new) })]
        });
        c.run();
    };
    port(&mut c, &["10.0.0.1/24"]);
    assert_eq!(flows(&c, Stage::LrInNdRaOptions, 50), []);
    port(&mut c, &["10.0.0.1/24", "fd00::1/64", "fe80::77/64"]);
    let offer = flows(&c, Stage::LrInNdRaOptions, 50);
    assert_eq!(offer.len(), 1, "{offer:?}");
    assert_eq!(
        offer[0].1,
        "reg0[5] = put_nd_ra_opts(addr_mode = \"dhcpv6_stateful\", slla = 0a:01:00:00:00:01, \
         router_preference = \"LOW\", rdnss = fd00::53, prefix = fd00::/64); next;"
    );
    let reply = flows(&c, Stage::LrInNdRaResponse, 50);
    assert!(reply[0].1.contains("ip6.src = fe80::801:ff:fe00:1; "), "{reply:?}");
}

/// `exclude_ips`, `mac_only`.
#[test]
fn dynamic_addresses_leave_out_what_is_excluded() {
    let mut c = network();
    let given = |c: &Compiler| {
        let key = Key::Nb(nb::TableId::LogicalSwitchPort, id(PORT));
        let outputs = c.engine().outputs();
        let values = outputs.id(&key).map(|id| outputs.values(id)).unwrap_or_default();
        let cells = values.iter().filter_map(|v| if let Value::Row(r) = v { Some(&r.0) } else { None }).flatten();
        let cell = cells.into_iter().find(|(n, _)| *n == "dynamic_addresses").map(|(_, cell)| cell.clone());
        cell.and_then(|cell| if let Cell::Data(d) = cell { Some(d.scalar()?.as_str()?.to_string()) } else { None })
    };
    let config = |c: &mut Compiler, pairs: &[(&str, &str)]| {
        let uuid = id(9);
        c.change_nb(|db| {
            let old = db.logical_switch.get(&uuid).cloned();
            let new = Arc::new(nb::LogicalSwitch { other_config: options(pairs), ..(**old.as_ref().unwrap()).clone() });
            db.logical_switch.insert(uuid, new.clone());
            vec![nb::AnyChange::LogicalSwitch(Change { uuid, old, new: Some(new) })]
        });
        c.run();
    };
    change(&mut c, PORT, |p| (p.r#type, p.addresses) = ("".into(), [Str::from("dynamic")].into()));
    assert_eq!(given(&c), None);
    config(&mut c, &[("subnet", "10.0.0.0/29"), ("exclude_ips", "10.0.0.2..10.0.0.4")]);
    assert!(given(&c).unwrap().ends_with(" 10.0.0.5"), "{:?}: the router has 10.0.0.1", given(&c));
    config(&mut c, &[("subnet", "10.0.0.0/29"), ("exclude_ips", "10.0.0.2..10.0.0.4 10.0.0.5 10.0.0.6")]);
    assert!(!given(&c).unwrap().contains(' '), "{:?}: there is no address left", given(&c));
    // Those of another subnet take the first address from nobody.
    for wrong in ["10.0.0.1", "10.0.0.9..10.0.0.3", "192.168.0.1..192.168.0.9", "10.1.0.3..10.1.0.2"] {
        config(&mut c, &[("subnet", "10.1.0.0/29"), ("exclude_ips", wrong)]);
        assert!(given(&c).unwrap().ends_with(" 10.1.0.2"), "{wrong}: {:?}", given(&c));
    }
    config(&mut c, &[("mac_only", "true")]);
    assert!(given(&c).is_some_and(|a| !a.contains(' ')), "{:?}", given(&c));
    config(&mut c, &[("subnet", "0.0.0.0/0")]);
    assert!(given(&c).unwrap().ends_with(" 0.0.0.2"), "{:?}", given(&c));
    // Only addresses of the families that the switch gives, whatever the port names.
    change(&mut c, PORT, |p| p.addresses = [Str::from("dynamic 10.0.0.50 fd00::50")].into());
    for (pairs, wanted) in [
        (&[("subnet", "10.0.0.0/24")][..], "10.0.0.50"),
        (&[("ipv6_prefix", "fd00::")], "fd00::50"),
        (&[("subnet", "10.0.0.0/24"), ("ipv6_prefix", "fd00::")], "10.0.0.50 fd00::50"),
        (&[("mac_only", "true")], ""),
    ] {
        config(&mut c, pairs);
        let all = given(&c).unwrap();
        assert_eq!(all.split_once(' ').map_or("", |(_, rest)| rest), wanted, "{pairs:?}: {all}");
    }
}
