//! What a chassis makes of ports that others serve: where packets for a gateway port go while the port moves, and what
//! copies of broadcasts go to the chassis of an external port.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::input::model::{Input, Local, Read, Tunnel};
use controller::units::flows::{ChassisFlows, Key, merge};
use incremental::Engine;
use openflow_rs::mods::FlowMod;
use ovn_schema::sb::{self, AnyChange, TableId};
use ovn_schema::{Change, Map, Str, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;

const ME: Uuid = Uuid::from_u128(1);
const GW1: Uuid = Uuid::from_u128(2);
const GW2: Uuid = Uuid::from_u128(3);
const SWITCH: Uuid = Uuid::from_u128(10);
const ROUTER: Uuid = Uuid::from_u128(11);
const GROUP: Uuid = Uuid::from_u128(20);
const REDIRECT: Uuid = Uuid::from_u128(30);
/// The external port.
const EXTERNAL: Uuid = Uuid::from_u128(31);

fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

fn port(db: &mut sb::Database, id: u128, datapath: Uuid, name: &str, kind: &str, key: i64, more: sb::PortBinding) {
    let p = sb::PortBinding { datapath, logical_port: name.into(), r#type: kind.into(), tunnel_key: key, ..more };
    db.port_binding.insert(Uuid::from_u128(id), Arc::new(p));
}

/// A chassis with tunnels to two gateways, a switch with an external port and a router with a gateway port, both of one
/// group. `localnet`: the switch has a provider network, and it is here.
fn input(me: &str, localnet: bool) -> Input {
    let mut db = sb::Database::default();
    for (id, name) in [(ME, "hv1"), (GW1, "gw1"), (GW2, "gw2")] {
        let other_config = map(&[("isthmus-orderly", "true")]);
        db.chassis.insert(id, Arc::new(sb::Chassis { name: name.into(), other_config, ..Default::default() }));
    }
    for (id, name, key) in [(SWITCH, "logical-switch", 5), (ROUTER, "logical-router", 6)] {
        let row = sb::DatapathBinding { tunnel_key: key, external_ids: map(&[(name, "x")]), ..Default::default() };
        db.datapath_binding.insert(id, Arc::new(row));
    }
    let member = |chassis, priority| Arc::new(sb::HaChassis { chassis: Some(chassis), priority, ..Default::default() });
    let (first, second) = (Uuid::from_u128(21), Uuid::from_u128(22));
    db.ha_chassis.insert(first, member(GW1, 20));
    db.ha_chassis.insert(second, member(GW2, 10));
    let group = sb::HaChassisGroup { ha_chassis: [first, second].into(), ..Default::default() };
    db.ha_chassis_group.insert(GROUP, Arc::new(group));
    let grouped =
        |chassis| sb::PortBinding { ha_chassis_group: Some(GROUP), chassis: Some(chassis), ..Default::default() };
    port(&mut db, EXTERNAL.as_u128(), SWITCH, "bm1", "external", 3, grouped(GW1));
    port(&mut db, 32, SWITCH, "vm1", "", 4, sb::PortBinding { chassis: Some(ME), ..Default::default() });
    let redirect = sb::PortBinding { options: map(&[("distributed-port", "lrp")]), ..grouped(GW1) };
    port(&mut db, 30, ROUTER, "cr-lrp", "chassisredirect", 7, redirect);
    port(&mut db, 34, ROUTER, "lrp", "patch", 8, sb::PortBinding::default());
    let mut ports = vec![Uuid::from_u128(31), Uuid::from_u128(32)];
    if localnet {
        port(&mut db, 33, SWITCH, "ln", "localnet", 5, sb::PortBinding::default());
        ports.push(Uuid::from_u128(33));
    }
    let flood = sb::MulticastGroup {
        datapath: SWITCH,
        name: "_MC_flood".into(),
        tunnel_key: 0x8000,
        ports: ports.into_iter().collect(),
    };
    db.multicast_group.insert(Uuid::from_u128(40), Arc::new(flood));
    let tunnel = |chassis: &str, ofport| Tunnel {
        chassis: chassis.into(),
        kind: "geneve".into(),
        remote_ip: format!("192.0.2.{ofport}").as_str().into(),
        local_ip: "192.0.2.1".into(),
        ofport,
    };
    let chassis = db.chassis.iter().find(|(_, c)| &*c.name == me).map(|(id, _)| *id);
    let mut local = Local { chassis_name: me.into(), chassis, datapaths: [SWITCH, ROUTER].into(), ..Local::default() };
    local.southbound = true;
    local.tunnels = [tunnel("gw1", 101), tunnel("gw2", 102), tunnel("hv1", 103)]
        .into_iter()
        .filter(|t| &*t.chassis != me)
        .collect();
    local.gateways.alive = ["gw1", "gw2"].into_iter().filter(|n| *n != me).map(Into::into).collect();
    if localnet {
        local.localnets = [("ln".into(), 200)].into();
    }
    Input::new(db, local)
}

/// The flows that there are, as text, kept up to date.
struct Flows {
    engine: Engine<ChassisFlows>,
    all: BTreeMap<String, String>,
}

impl Flows {
    fn new(input: &Input) -> Flows {
        let mut flows = Flows { engine: Engine::new(ChassisFlows::default()), all: BTreeMap::new() };
        flows.update(input, Vec::new());
        flows
    }

    fn update(&mut self, input: &Input, reads: Vec<Read>) {
        let changes = self.engine.update(input, reads, |changes| {
            let text = |c: incremental::Change<'_, Key, controller::units::flows::Value>| match c.key {
                Key::Flow(t, p, m) => {
                    let m = m.unpack().unwrap();
                    let flow = (!c.after.is_empty()).then(|| FlowMod::add(*t, *p, 0, m.clone(), merge(&c.after)));
                    Some((format!("{t} {p} {m}"), flow.map(|f| openflow_rs::text::actions_to_string(&f.actions))))
                }
                _ => None,
            };
            changes.into_iter().filter_map(text).collect::<Vec<_>>()
        });
        for (key, actions) in changes {
            match actions {
                Some(a) => self.all.insert(key, a),
                None => self.all.remove(&key),
            };
        }
    }

    /// The actions of flows in which a text occurs.
    fn with(&self, text: &str) -> Vec<&str> {
        self.all.values().filter(|a| a.contains(text)).map(String::as_str).collect()
    }
}

fn claim(input: &mut Input, chassis: Option<Uuid>) -> Vec<Read> {
    let old = input.sb.port_binding.get(&REDIRECT).cloned().unwrap();
    let new = Arc::new(sb::PortBinding { chassis, ..(*old).clone() });
    input.sb.port_binding.insert(REDIRECT, new.clone());
    input.changed(&AnyChange::PortBinding(Change { uuid: REDIRECT, old: Some(old), new: Some(new) }))
}

#[test]
fn broadcasts_reach_external_ports_by_their_provider_network_alone() {
    let with = Flows::new(&input("hv1", true));
    assert!(with.with("output:101").is_empty(), "a copy would leave by gw1's provider network, and be learned there");
    let without = Flows::new(&input("hv1", false));
    assert_eq!(without.with("output:101").len(), 1, "{:#?}", without.all);
}

#[test]
fn packets_go_to_the_holder_of_a_gateway_port_until_another_has_claimed_it() {
    let mut input = input("hv1", true);
    let mut flows = Flows::new(&input);
    let bundle = |flows: &Flows| {
        let [a] = flows.with("bundle(")[..] else { panic!("{:#?}", flows.all) };
        a.split_once("members:").unwrap().1.trim_end_matches(')').to_string()
    };
    assert_eq!(bundle(&flows), "101,102");
    let reads = claim(&mut input, Some(GW2));
    flows.update(&input, reads);
    assert_eq!(bundle(&flows), "102,101", "gw2 has it, though gw1 is preferred: gw1 is not ready");
    input.local.gateways.alive.remove("gw2");
    flows.update(&input, vec![Read::Alive]);
    assert_eq!(bundle(&flows), "101,102", "gw2 is not reached from here");
    input.local.gateways.alive.insert("gw2".into());
    input.local.southbound = false;
    flows.update(&input, vec![Read::Alive]);
    assert_eq!(bundle(&flows), "101,102", "who has it now is not known");
}

/// Adds a logical flow.
fn logical_flow(input: &mut Input, id: u128, datapath: Uuid, matches: &str, actions: &str) {
    let flow = sb::LogicalFlow {
        logical_datapath: Some(datapath),
        pipeline: "ingress".into(),
        table_id: 3,
        priority: 90,
        r#match: matches.into(),
        actions: actions.into(),
        ..Default::default()
    };
    let (uuid, new) = (Uuid::from_u128(id), Arc::new(flow));
    input.sb.logical_flow.insert(uuid, new.clone());
    input.changed(&AnyChange::LogicalFlow(Change { uuid, old: None, new: Some(new) }));
}

/// The answers to who asks for an address come from the new gateway alone, as its announcements do.
#[test]
fn a_gateway_that_is_relieved_answers_nobody() {
    let mut input = input("gw2", true);
    let reply = "eth.dst = eth.src; arp.op = 2; arp.tpa <-> arp.spa; outport = inport; flags.loopback = 1; output;";
    let advert = "nd_na_router { eth.src = xxreg0[0..47]; outport = inport; flags.loopback = 1; output; };";
    for (n, matches, actions) in [(1, "arp.op == 1", reply), (2, "nd_ns", advert), (3, "ip4", "ip.ttl--; next;")] {
        let matches = format!("{matches} && is_chassis_resident(\"cr-lrp\")");
        logical_flow(&mut input, 50 + n, ROUTER, &matches, actions);
    }
    claim(&mut input, Some(GW2));
    let mut flows = Flows::new(&input);
    // Whether it answers by ARP, by ND, and forwards.
    let does = |flows: &Flows| ["set_field:2->arp_op", "controller(", "dec_ttl"].map(|a| !flows.with(a).is_empty());
    assert_eq!(does(&flows), [true; 3], "{:#?}", flows.all);
    let reads = claim(&mut input, Some(GW1));
    input.local.gateways.lingering.insert("cr-lrp".into());
    flows.update(&input, reads.into_iter().chain([Read::Alive]).collect());
    assert_eq!(does(&flows), [false, false, true], "{:#?}", flows.all);
    input.local.gateways.lingering.clear();
    flows.update(&input, vec![Read::Alive]);
    assert_eq!(does(&flows), [false; 3], "{:#?}", flows.all);
}

/// A machine's question by an external port has one answer.
#[test]
fn a_port_that_another_asks_for_is_not_served_any_more() {
    let mut input = input("gw1", true);
    logical_flow(&mut input, 50, SWITCH, "udp.src == 68 && is_chassis_resident(\"bm1\")", "ip.ttl--; next;");
    let mut flows = Flows::new(&input);
    let serves = |flows: &Flows| !flows.with("dec_ttl").is_empty();
    assert!(serves(&flows), "{:#?}", flows.all);
    input.local.gateways.yielding.insert("bm1".into());
    flows.update(&input, vec![Read::Alive]);
    assert!(!serves(&flows), "{:#?}", flows.all);
    input.local.gateways.yielding.clear();
    flows.update(&input, vec![Read::Alive]);
    assert!(serves(&flows), "nobody has claimed it: {:#?}", flows.all);
    let mut bind = |flows: &mut Flows, chassis| {
        let old = input.sb.port_binding.get(&EXTERNAL).cloned().unwrap();
        let new = Arc::new(sb::PortBinding { chassis, ..(*old).clone() });
        input.sb.port_binding.insert(EXTERNAL, new.clone());
        let change = Change { uuid: EXTERNAL, old: Some(old), new: Some(new) };
        let reads = input.changed(&AnyChange::PortBinding(change));
        flows.update(&input, reads);
        serves(flows)
    };
    assert!(!bind(&mut flows, Some(GW2)), "another one has it");
    assert!(bind(&mut flows, None), "that has let go: this one answers, and then says so");
}

/// gw2, which gw1 relieves of the gateway port, or has relieved as `change` says; its flows before and after.
fn relieved(mut input: Input, change: impl FnOnce(&mut Input)) -> (BTreeMap<String, String>, Flows, Input) {
    claim(&mut input, Some(GW2));
    let mut flows = Flows::new(&input);
    let served = flows.all.clone();
    let mut reads = claim(&mut input, Some(GW1));
    input.local.gateways.lingering.insert("cr-lrp".into());
    change(&mut input);
    reads.extend([Read::Alive, Read::Tunnels]);
    reads.extend([ME, GW1, GW2].map(|c| Read::Row(TableId::Chassis, c)));
    flows.update(&input, reads);
    (served, flows, input)
}

/// What becomes of packets for the gateway port: those of this chassis (table 54), and those that tunnels bring (56).
fn for_the_port(flows: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    let of = |k: &str| {
        (k.starts_with("54 ") || k.starts_with("56 ")) && k.contains("reg15=0x7") && k.contains("metadata=0x6")
    };
    flows.iter().filter(|(k, _)| of(k)).map(|(k, a)| (k.as_str(), a.as_str())).collect()
}

const TO_GW1: &str = "set_field:0x6/0xffffff->tun_id,set_field:0x7->tun_metadata0,\
                      move:NXM_NX_REG14[0..14]->NXM_NX_TUN_METADATA0[16..30],output:101";

/// What hypervisors still send to it goes on to the new gateway, and so do its own machines' packets.
#[test]
fn a_gateway_that_is_relieved_passes_packets_on_to_the_new_one() {
    let (served, flows, _) = relieved(input("gw2", true), |_| {});
    let [(arrives, _)] = for_the_port(&served)[..] else { panic!("{served:#?}") };
    let wanted = [("54 100 reg15=0x7,metadata=0x6", TO_GW1), (arrives, TO_GW1)];
    assert_eq!(for_the_port(&flows.all), wanted);
    // All else is as it was: what comes in from outside is served.
    let rest = |all: &BTreeMap<String, String>| {
        let of_port: Vec<String> = for_the_port(all).into_iter().map(|(k, _)| k.to_string()).collect();
        all.clone().into_iter().filter(|(k, _)| !of_port.contains(k)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(rest(&flows.all), rest(&served));
}

#[test]
fn a_gateway_passes_nothing_on_to_one_that_may_not_be_ready() {
    let chassis = |input: &mut Input, config: &[(&str, &str)]| {
        let c = sb::Chassis { name: "gw1".into(), other_config: map(config), ..Default::default() };
        input.sb.chassis.insert(GW1, Arc::new(c));
    };
    type Change<'a> = &'a dyn Fn(&mut Input);
    let cases: [(&str, Change<'_>); 4] = [
        ("ovn-controller claims first", &|i| chassis(i, &[])),
        ("it is dead", &|i| i.local.gateways.alive.clear()),
        ("there is no tunnel to it", &|i| i.local.tunnels.retain(|t| &*t.chassis != "gw1")),
        ("this one is preferred, and will claim", &|i| {
            let rank = |n, chassis, priority| {
                let row = sb::HaChassis { chassis: Some(chassis), priority, ..Default::default() };
                (Uuid::from_u128(n), Arc::new(row))
            };
            i.sb.ha_chassis.extend([rank(21, GW1, 20), rank(22, GW2, 30)]);
        }),
    ];
    for (what, change) in cases {
        let (served, flows, _) = relieved(input("gw2", true), change);
        assert_eq!(for_the_port(&flows.all), for_the_port(&served), "{what}");
    }
}

/// A tunnel's port for all chassis: packets go out where they came in.
#[test]
fn packets_go_on_by_the_tunnel_that_leads_to_all() {
    let mut all = input("gw2", true);
    for (n, chassis, name) in [(60, ME, "hv1"), (61, GW1, "gw1"), (62, GW2, "gw2")] {
        let (id, ip) = (Uuid::from_u128(n), format!("192.0.2.{n}"));
        let e = sb::Encap {
            r#type: "vxlan".into(),
            ip: ip.as_str().into(),
            chassis_name: name.into(),
            ..Default::default()
        };
        all.sb.encap.insert(id, Arc::new(e));
        let c = sb::Chassis { encaps: [id].into(), ..(*all.sb.chassis[&chassis]).clone() };
        all.sb.chassis.insert(chassis, Arc::new(c));
    }
    let flow = |s: &str| -> Str { s.into() };
    let tunnel = Tunnel {
        chassis: flow("flow"),
        kind: flow("vxlan"),
        remote_ip: flow("flow"),
        local_ip: flow("flow"),
        ofport: 9,
    };
    all.local.tunnels = [tunnel].into();
    let (_, flows, _) = relieved(all, |_| {});
    let relay = "set_field:ANY->in_port,set_field:0x7006/0xffffff->tun_id,\
                 set_field:192.0.2.62->tun_src,set_field:192.0.2.61->tun_dst,output:9";
    assert_eq!(for_the_port(&flows.all)[1].1, relay, "{:#?}", flows.all);
}

/// When it is a gateway no more, nothing of it stays.
#[test]
fn a_gateway_that_is_relieved_serves_on_for_a_moment() {
    let never = Flows::new(&input("gw2", true)).all;
    let (_, mut flows, mut input) = relieved(input("gw2", true), |_| {});
    assert_ne!(flows.all, never);
    input.local.gateways.lingering.clear();
    flows.update(&input, vec![Read::Alive]);
    assert_eq!(flows.all, never);
}

/// A transit switch: a router's port and a switch's port here, a port of another zone behind a tunnel.
fn transit() -> Input {
    let mut input = input("hv1", false);
    let db = &mut input.sb;
    let row = sb::DatapathBinding {
        tunnel_key: 5,
        external_ids: map(&[("logical-switch", "x"), ("interconn-ts", "ts1")]),
        ..Default::default()
    };
    db.datapath_binding.insert(SWITCH, Arc::new(row));
    let requested = sb::PortBinding { requested_chassis: Some(ME), ..Default::default() };
    port(db, 50, SWITCH, "ts1-lr1", "patch", 1, requested);
    port(db, 51, SWITCH, "ts1-lr2", "remote", 2, sb::PortBinding { chassis: Some(GW1), ..Default::default() });
    let ports = [50, 51].map(Uuid::from_u128);
    let flood = sb::MulticastGroup {
        datapath: SWITCH,
        name: "_MC_flood".into(),
        tunnel_key: 0x8000,
        ports: ports.into_iter().collect(),
    };
    db.multicast_group.insert(Uuid::from_u128(40), Arc::new(flood));
    Input::new(std::mem::take(&mut input.sb), std::mem::take(&mut input.local))
}

/// A group has other members in each zone: a copy to another one is for a port there, not for the group, and one from there
/// goes to the routers here.
#[test]
fn groups_of_transit_switches_name_ports_to_other_zones() {
    let flows = Flows::new(&transit());
    let of = |table: u8| {
        let start = format!("{table} 100 ");
        let mut found = flows.all.iter().filter(|(k, _)| k.starts_with(&start) && k.contains("reg15=0x8000"));
        found.next().map(|(_, actions)| actions.clone()).unwrap()
    };
    let remote = of(54);
    let copy = "set_field:0x2->reg15,set_field:0x5/0xffffff->tun_id,set_field:0x2->tun_metadata0";
    assert!(remote.starts_with(copy) && remote.contains("output:101"), "{remote}");
    assert!(!remote.contains("set_field:0x1->reg15"), "{remote}");
    let local = of(56);
    assert!(local.contains("set_field:0x1->reg15"), "{local}");
}

/// A port between switches of several zones belongs to the chassis that northd asks for; nobody else claims one.
#[test]
fn patch_ports_are_claimed_where_they_are_asked_for() {
    let input = transit();
    let step = |id: u128| {
        let id = Uuid::from_u128(id);
        controller::rows::claims::step(&input.sb.port_binding[&id], ME, &input)
    };
    assert_eq!(step(50), Some(controller::rows::claims::Step::Claim));
    assert_eq!(step(51), None);
}
