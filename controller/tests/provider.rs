//! How ports are reached that other chassis have, through a provider network or without one, and what stays off an interface
//! that two ports share. What ovn-controller makes of the same was recorded in random clouds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/chassis.rs"]
mod chassis;

use chassis::Chassis;
use controller::input::model::{Local, Tunnel, Vif};
use controller::units::flows::{Key, merge};
use openflow_rs::TableId;
use ovn_schema::{Map, Str, Uuid, sb};
use std::sync::Arc;

const ME: Uuid = Uuid::from_u128(1);
const OTHER: Uuid = Uuid::from_u128(2);
const THIRD: Uuid = Uuid::from_u128(3);
const SWITCH: Uuid = Uuid::from_u128(10);
const PORT: Uuid = Uuid::from_u128(20);
const LOCALNET: Uuid = Uuid::from_u128(21);
const GROUP: Uuid = Uuid::from_u128(30);

fn options(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

fn port(name: &str, kind: &str, key: i64) -> sb::PortBinding {
    let (logical_port, r#type) = (name.into(), kind.into());
    sb::PortBinding { datapath: SWITCH, logical_port, r#type, tunnel_key: key, ..Default::default() }
}

fn vif(ofport: u16) -> Vif {
    let row = Uuid::from_u128(100 + u128::from(ofport));
    Vif { ofport: Some(ofport), version: None, encap_ip: None, mtu: None, row }
}

/// A chassis with a machine on a switch, and tunnels to two others.
fn start() -> Chassis {
    let mut db = sb::Database::default();
    let mut local = Local { chassis_name: "hv1".into(), chassis: Some(ME), southbound: true, ..Local::default() };
    for (id, name, n) in [(ME, "hv1", 1), (OTHER, "hv2", 2), (THIRD, "hv3", 3)] {
        db.chassis.insert(id, Arc::new(sb::Chassis { name: name.into(), ..Default::default() }));
        local.gateways.alive.insert(name.into());
        let (kind, remote_ip) = ("geneve".into(), format!("192.0.2.{n}").as_str().into());
        if id != ME {
            let local_ip = "192.0.2.1".into();
            local.tunnels.insert(Tunnel { chassis: name.into(), kind, remote_ip, local_ip, ofport: 50 + n });
        }
    }
    db.sb_global.insert(Uuid::from_u128(40), Arc::default());
    let ids = options(&[("logical-switch", "x"), ("name", "s")]);
    let switch = sb::DatapathBinding { tunnel_key: 7, external_ids: ids, ..Default::default() };
    db.datapath_binding.insert(SWITCH, Arc::new(switch));
    let machine = sb::PortBinding { chassis: Some(ME), ..port("vm", "", 1) };
    db.port_binding.insert(Uuid::from_u128(22), Arc::new(machine));
    local.vifs.insert("vm".into(), vif(5));
    Chassis::new(db, local)
}

/// The switch gets a port to a provider network, which is plugged in on this chassis.
fn plug_in_the_network(c: &mut Chassis) {
    let options = options(&[("network_name", "phys")]);
    c.set(LOCALNET, Some(sb::PortBinding { options, ..port("ln", "localnet", 9) }));
    c.change_local(|l| {
        l.localnets.insert("ln".into(), 8);
    });
}

/// The flows of a table that have a word.
fn flows(c: &mut Chassis, table: TableId, word: &str) -> Vec<String> {
    c.settle();
    assert!(c.differs_from_fresh().is_empty());
    let outputs = c.engine.outputs();
    let text = |key: &Key| match key {
        Key::Flow(t, _, m) if *t == table => {
            let actions = merge(&outputs.values(outputs.id(key)?));
            Some(format!("{} actions={}", m.unpack().unwrap(), openflow_rs::text::actions_to_string(&actions)))
        }
        _ => None,
    };
    outputs.iter().filter_map(|(key, _)| text(key)).filter(|t| t.contains(word)).collect()
}

const REMOTE_OUTPUT: TableId = TableId(54);
const LOCAL_OUTPUT: TableId = TableId(56);

/// A port of any type that another chassis has is reached through the switch's provider network where that is plugged in here, and
/// by tunnel otherwise or where tunnels are asked for.
#[test]
fn ports_elsewhere_are_reached_through_the_provider_network() {
    for (kind, option) in
        [("", None), ("l2gateway", Some("l2gateway-chassis")), ("l3gateway", Some("l3gateway-chassis"))]
    {
        let mut c = start();
        let pairs: Vec<(&str, &str)> = option.into_iter().map(|o| (o, "hv2")).collect();
        let far = sb::PortBinding { chassis: Some(OTHER), options: options(&pairs), ..port("far", kind, 2) };
        c.set(PORT, Some(far));
        let tunnel = flows(&mut c, REMOTE_OUTPUT, "reg15=0x2,");
        assert!(tunnel.len() == 1 && tunnel[0].contains("output:52"), "{kind}: {tunnel:?}");
        plug_in_the_network(&mut c);
        assert_eq!(flows(&mut c, REMOTE_OUTPUT, "reg15=0x2,"), Vec::<String>::new(), "{kind}");
        let wire = flows(&mut c, LOCAL_OUTPUT, "reg15=0x2,");
        assert!(wire.len() == 1 && wire[0].contains("set_field:0x9->reg15,resubmit(,56)"), "{kind}: {wire:?}");
        let always = options(&[("always_tunnel", "true")]);
        c.set(Uuid::from_u128(40), Some(sb::SbGlobal { options: always, ..Default::default() }));
        assert_eq!(flows(&mut c, REMOTE_OUTPUT, "reg15=0x2,"), tunnel, "{kind}");
    }
}

/// A port of a machine outside is reached by the gateways' provider network from a chassis that has none.
#[test]
fn external_ports_are_reached_by_their_gateways() {
    let mut c = start();
    let members = [(31, OTHER, 20), (32, THIRD, 10)].map(|(n, chassis, priority)| {
        let id = Uuid::from_u128(n);
        c.set(id, Some(sb::HaChassis { chassis: Some(chassis), priority, ..Default::default() }));
        id
    });
    c.set(GROUP, Some(sb::HaChassisGroup { ha_chassis: members.into(), ..Default::default() }));
    let mac = ["02:00:00:00:00:09 10.0.0.9".into()].into();
    let outside = sb::PortBinding { ha_chassis_group: Some(GROUP), mac, ..port("outside", "external", 2) };
    c.set(PORT, Some(outside.clone()));
    let ways = flows(&mut c, REMOTE_OUTPUT, "reg15=0x2,");
    assert!(ways.len() == 1 && ways[0].contains("members:52,53"), "the preferred one first: {ways:?}");
    plug_in_the_network(&mut c);
    assert_eq!(flows(&mut c, REMOTE_OUTPUT, "reg15=0x2,"), Vec::<String>::new());
    assert_eq!(flows(&mut c, LOCAL_OUTPUT, "reg15=0x2,").len(), 1);
    // One gateway is reached by its tunnel alone.
    c.change_local(|l| {
        l.localnets.remove("ln");
    });
    c.set(GROUP, Some(sb::HaChassisGroup { ha_chassis: [members[1]].into(), ..Default::default() }));
    let way = flows(&mut c, REMOTE_OUTPUT, "reg15=0x2,");
    assert!(way.len() == 1 && way[0].contains("output:53"), "{way:?}");
}

/// A gateway runs BFD with the others of its group and with those that it serves, but not with chassis of another zone, which know
/// nothing of that group: a session that never comes up would have the gateway take itself for cut off.
#[test]
fn chassis_of_other_zones_are_not_watched() {
    let mut c = start();
    let members = [(31, ME, 20), (32, OTHER, 10)].map(|(n, chassis, priority)| {
        let id = Uuid::from_u128(n);
        c.set(id, Some(sb::HaChassis { chassis: Some(chassis), priority, ..Default::default() }));
        id
    });
    let (ha_chassis, ref_chassis) = (members.into(), [THIRD].into());
    c.set(GROUP, Some(sb::HaChassisGroup { ha_chassis, ref_chassis, ..Default::default() }));
    for (remote, watched) in [("false", vec![OTHER, THIRD]), ("true", vec![OTHER]), ("false", vec![OTHER, THIRD])] {
        let other_config = options(&[("is-remote", remote)]);
        c.set(THIRD, Some(sb::Chassis { name: "hv3".into(), other_config, ..Default::default() }));
        c.settle();
        assert_eq!(c.presence.watched.iter().copied().collect::<Vec<_>>(), watched, "is-remote={remote}");
    }
}

/// A machine outside, whose gateway this chassis is, gets no copy for a group through an interface.
#[test]
fn external_ports_are_no_members_of_groups_here() {
    let mut c = start();
    c.set(PORT, Some(sb::PortBinding { chassis: Some(ME), ..port("outside", "external", 2) }));
    let ports = [Uuid::from_u128(22), PORT].into();
    let flood = sb::MulticastGroup { datapath: SWITCH, name: "_MC_flood".into(), tunnel_key: 0x8000, ports };
    c.set(Uuid::from_u128(50), Some(flood));
    let copies = flows(&mut c, LOCAL_OUTPUT, "reg15=0x8000");
    assert!(copies.len() == 1 && copies[0].contains("0x1->reg15"), "{copies:?}");
    assert!(!copies[0].contains("0x2->reg15"), "{copies:?}");
}

/// A gateway router's peer on another chassis brings no flows here; one on this chassis does.
#[test]
fn gateway_routers_lead_to_those_of_their_own_chassis() {
    let mut c = start();
    let routers = [11, 12].map(Uuid::from_u128);
    for (id, tunnel_key) in routers.into_iter().zip([8, 9]) {
        c.set(id, Some(sb::DatapathBinding { tunnel_key, ..Default::default() }));
        let row = sb::LogicalFlow {
            logical_datapath: Some(id),
            pipeline: "ingress".into(),
            r#match: "1".into(),
            actions: "next;".into(),
            ..Default::default()
        };
        c.set(Uuid::from_u128(60 + tunnel_key as u128), Some(row));
    }
    let ends = |place: &str| {
        [("a", "b", "hv1", routers[0]), ("b", "a", place, routers[1])].map(|(name, peer, chassis, datapath)| {
            let options = options(&[("peer", peer), ("l3gateway-chassis", chassis)]);
            sb::PortBinding { datapath, options, ..port(name, "l3gateway", 1) }
        })
    };
    for (place, wanted) in [("hv2", 0), ("hv1", 1), ("hv3", 0)] {
        for (n, end) in ends(place).into_iter().enumerate() {
            c.set(Uuid::from_u128(70 + n as u128), Some(end));
        }
        assert_eq!(flows(&mut c, TableId(8), "metadata=0x8 ").len(), 1, "{place}");
        assert_eq!(flows(&mut c, TableId(8), "metadata=0x9 ").len(), wanted, "{place}");
    }
}

/// What the machine behind a mirror's sink sends is its own port's, and copies for a group do not go to the mirror's port.
#[test]
fn a_mirror_takes_nothing_from_its_sink() {
    let mut c = start();
    let before = flows(&mut c, TableId(0), "in_port=5 ");
    assert!(before.len() == 1 && before[0].contains("set_field:0x1->reg14"), "{before:?}");
    let exit = sb::PortBinding { mirror_port: Some("vm".into()), chassis: Some(ME), ..port("mp", "mirror", 3) };
    c.set(PORT, Some(exit));
    let ports = [Uuid::from_u128(22), PORT].into();
    let flood = sb::MulticastGroup { datapath: SWITCH, name: "_MC_flood".into(), tunnel_key: 0x8000, ports };
    c.set(Uuid::from_u128(50), Some(flood));
    assert_eq!(flows(&mut c, TableId(0), "in_port=5 "), before);
    let copies = flows(&mut c, LOCAL_OUTPUT, "reg15=0x8000");
    assert!(copies.len() == 1 && !copies[0].contains("0x3->reg15"), "{copies:?}");
    let mirrored = flows(&mut c, TableId(89), "reg15=0x3,");
    assert!(mirrored.len() == 1 && mirrored[0].contains("output:5"), "{mirrored:?}");
}

/// The copies of a switch's packets come to the chassis of a sink that is a machine of another switch.
#[test]
fn a_mirrors_port_makes_its_switch_local() {
    let mut c = start();
    let other = Uuid::from_u128(11);
    let ids = options(&[("logical-switch", "y"), ("name", "t")]);
    c.set(other, Some(sb::DatapathBinding { tunnel_key: 8, external_ids: ids, ..Default::default() }));
    let exit = sb::PortBinding { datapath: other, mirror_port: Some("vm".into()), ..port("mp", "mirror", 3) };
    c.set(PORT, Some(exit.clone()));
    let arriving = flows(&mut c, LOCAL_OUTPUT, "reg15=0x3,metadata=0x8");
    assert_eq!(arriving.len(), 1, "{arriving:?}");
    c.set(PORT, Some(sb::PortBinding { mirror_port: Some("far".into()), ..exit }));
    assert_eq!(flows(&mut c, LOCAL_OUTPUT, "reg15=0x3,metadata=0x8"), Vec::<String>::new());
}

/// A packet is sampled where the integration bridge has the set of collectors (Flow_Sample_Collector_Set).
#[test]
fn only_what_is_collected_is_sampled() {
    let mut c = start();
    let wanted = options(&[("debug_drop_collector_set", "9")]);
    c.set(Uuid::from_u128(40), Some(sb::SbGlobal { options: wanted, ..Default::default() }));
    let row = sb::LogicalFlow {
        logical_datapath: Some(SWITCH),
        pipeline: "ingress".into(),
        table_id: 3,
        priority: 5,
        r#match: "ip4".into(),
        actions: "sample(probability=65535,collector_set=9,obs_domain=0,obs_point=$cookie); next;".into(),
        ..Default::default()
    };
    c.set(Uuid::from_u128(60), Some(row));
    let sampled = |c: &mut Chassis| [flows(c, TableId(11), "sample(").len(), flows(c, TableId(0), "sample(").len()];
    assert_eq!(sampled(&mut c), [0, 0]);
    assert_eq!(flows(&mut c, TableId(11), "resubmit(,12)").len(), 1, "what is behind it is done");
    c.change_local(|l| {
        l.collectors.insert(8);
    });
    assert_eq!(sampled(&mut c), [0, 0], "another set");
    c.change_local(|l| {
        l.collectors.insert(9);
    });
    assert_eq!(sampled(&mut c), [1, 1]);
    c.change_local(|l| l.collectors.clear());
    assert_eq!(sampled(&mut c), [0, 0]);
}
