//! A switch in a fabric: what is derived step by step is what a start gives, and what is advertised is what is here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/chassis.rs"]
mod chassis;

use chassis::Chassis;
use controller::evpn::fabric::{Domain, Vtep};
use controller::input::model::{Local, Vif};
use ovn_schema::{Map, Str, Uuid, sb};
use packet::Mac;
use proptest::prelude::*;
use std::net::IpAddr;

const ME: Uuid = Uuid::from_u128(1);
const NET: Uuid = Uuid::from_u128(100);
const ROUTER: Uuid = Uuid::from_u128(200);
/// The ports of machines, a provider network's port, and the two ends of the link to the router.
const PORTS: usize = 3;
const LOCALNET: u128 = 110;
const DOOR: u128 = 111;
const LRP: u128 = 210;

fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
    pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
}

fn vif(n: usize) -> Uuid {
    Uuid::from_u128(101 + n as u128)
}

fn mac(n: u64) -> Mac {
    Mac::from_u64(0x0200_0000_0000 | n)
}

fn switch(extended: bool, fdb: bool, local_first: bool) -> sb::DatapathBinding {
    let mut ids = map(&[("logical-switch", "x"), ("name", "net")]);
    if extended {
        ids.extend(map(&[("dynamic-routing-vni", "10"), ("dynamic-routing-bridge-ifname", "br-10")]));
    }
    if fdb {
        ids.extend(map(&[("dynamic-routing-redistribute", "fdb,ip")]));
    }
    if local_first {
        ids.extend(map(&[("dynamic-routing-arp-prefer-local", "true")]));
    }
    sb::DatapathBinding { tunnel_key: 1, external_ids: ids, ..Default::default() }
}

fn router() -> sb::DatapathBinding {
    let external_ids = map(&[("logical-router", "y"), ("name", "r")]);
    sb::DatapathBinding { tunnel_key: 2, external_ids, ..Default::default() }
}

fn port(datapath: Uuid, name: &str, key: i64, kind: &str, options: &[(&str, &str)]) -> sb::PortBinding {
    sb::PortBinding {
        datapath,
        logical_port: name.into(),
        tunnel_key: key,
        r#type: kind.into(),
        options: map(options),
        ..Default::default()
    }
}

fn machine(n: usize, advertised: bool) -> sb::PortBinding {
    let options = [("dynamic-routing-advertise", if advertised { "true" } else { "false" })];
    let p = port(NET, &format!("vm{n}"), n as i64 + 1, "", &options);
    sb::PortBinding { mac: [Str::from(format!("{} 10.0.0.{n}", mac(n as u64)))].into(), chassis: Some(ME), ..p }
}

fn start() -> Chassis {
    let mut local = Local { chassis: Some(ME), chassis_name: "me".into(), ..Local::default() };
    // Something is always here: the switch is local.
    local.vifs.insert("vm0".into(), interface(0));
    let mut c = Chassis::new(sb::Database::default(), local);
    c.set(ME, Some(sb::Chassis { name: "me".into(), ..Default::default() }));
    c.set(NET, Some(switch(true, true, false)));
    c.set(ROUTER, Some(router()));
    c.set(vif(0), Some(machine(0, true)));
    c.set(Uuid::from_u128(LOCALNET), Some(port(NET, "ln", 10, "localnet", &[("network_name", "phys")])));
    c.settle();
    c
}

fn interface(n: usize) -> Vif {
    let row = Uuid::from_u128(900 + n as u128);
    Vif { ofport: Some(n as u16 + 1), version: None, encap_ip: None, mtu: None, row }
}

#[derive(Clone, Debug)]
enum Step {
    Switch(bool, bool, bool),
    Machine(usize, Option<bool>),
    Plugged(usize, bool),
    Learned(u64, Option<i64>),
    Neighbour(usize, bool),
    Router(bool),
    Domain(Option<(bool, u16)>),
    Vtep(u8, Option<u16>),
    Mac(u64, Vec<u32>),
    Remote(u8, Option<u64>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let n = 0..PORTS;
    let step = prop_oneof![
        (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(a, b, c)| Step::Switch(a, b, c)),
        (n.clone(), any::<Option<bool>>()).prop_map(|(n, a)| Step::Machine(n, a)),
        (n.clone(), any::<bool>()).prop_map(|(n, there)| Step::Plugged(n, there)),
        (20u64..23, prop::option::of(prop_oneof![0i64..4, Just(10)])).prop_map(|(m, p)| Step::Learned(m, p)),
        (n, any::<bool>()).prop_map(|(n, there)| Step::Neighbour(n, there)),
        any::<bool>().prop_map(Step::Router),
        prop::option::of((any::<bool>(), 0u16..2)).prop_map(Step::Domain),
        (0u8..4, prop::option::of(5u16..7)).prop_map(|(ip, port)| Step::Vtep(ip, port)),
        (30u64..33, prop::collection::vec(1u32..4, 0..3)).prop_map(|(m, paths)| Step::Mac(m, paths)),
        (0u8..4, prop::option::of(30u64..33)).prop_map(|(ip, m)| Step::Remote(ip, m)),
    ];
    prop::collection::vec(step, 1..25)
}

fn address(n: u8) -> IpAddr {
    if n.is_multiple_of(2) { [192, 0, 2, n].into() } else { [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n].into() }
}

impl Step {
    fn carry_out(&self, c: &mut Chassis) {
        match self {
            Step::Switch(extended, fdb, first) => c.set(NET, Some(switch(*extended, *fdb, *first))),
            Step::Machine(n, advertised) => c.set(vif(*n), advertised.map(|a| machine(*n, a))),
            Step::Plugged(n, there) => c.change_local(|l| match there {
                true => drop(l.vifs.insert(format!("vm{n}").into(), interface(*n))),
                false => drop(l.vifs.remove(&*format!("vm{n}"))),
            }),
            Step::Learned(m, at) => {
                let row = |port_key: i64| sb::Fdb {
                    mac: mac(*m).to_string().into(),
                    dp_key: 1,
                    port_key,
                    ..Default::default()
                };
                c.set(Uuid::from_u128(500 + u128::from(*m)), at.map(row));
            }
            Step::Neighbour(n, there) => {
                let row = || sb::AdvertisedMacBinding {
                    datapath: NET,
                    logical_port: vif(*n),
                    ip: format!("10.0.0.{n}").into(),
                    mac: mac(*n as u64).to_string().into(),
                    ..Default::default()
                };
                c.set(Uuid::from_u128(600 + *n as u128), there.then(row));
            }
            Step::Router(there) => {
                let door = || port(NET, "net-r", 11, "patch", &[("peer", "r-net")]);
                let lrp = || port(ROUTER, "r-net", 1, "patch", &[("peer", "net-r")]);
                c.set(Uuid::from_u128(DOOR), there.then(door));
                c.set(Uuid::from_u128(LRP), there.then(lrp));
            }
            Step::Domain(d) => c.change_local(|l| {
                l.fabric.domains.clear();
                l.fabric.domains.extend(d.map(|(local_neighbours_first, fdb_age)| {
                    let from = (Some([192, 0, 2, 99].into()), Some("fd00::99".parse().unwrap()));
                    (NET, Domain { vni: packet::Vni::of_low_bits(10), from, fdb_age, local_neighbours_first })
                }));
            }),
            Step::Vtep(n, ofport) => c.change_local(|l| {
                let place = (NET, address(*n));
                l.fabric.vteps.remove(&place);
                let vtep = |ofport| Vtep { key: 0x8000_0000 + u32::from(*n) + 1, ofport };
                l.fabric.vteps.extend(ofport.map(|p| (place, vtep(p))));
            }),
            Step::Mac(m, paths) => c.change_local(|l| {
                let paths: Vec<_> = paths.iter().map(|n| (0x8000_0000 + n, 1)).collect();
                l.fabric.macs.remove(&(NET, mac(*m)));
                l.fabric.macs.extend(Some(((NET, mac(*m)), paths)).filter(|(_, p)| !p.is_empty()));
            }),
            Step::Remote(n, m) => c.change_local(|l| {
                l.fabric.neighbours.remove(&(NET, address(*n)));
                l.fabric.neighbours.extend(m.map(|m| ((NET, address(*n)), mac(m))));
            }),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn steps_end_where_a_start_does(steps in steps()) {
        let mut c = start();
        for step in &steps {
            step.carry_out(&mut c);
            c.settle();
        }
        let differences = c.differs_from_fresh();
        prop_assert!(differences.is_empty(), "{differences:#?}");
    }
}

fn advertised(c: &Chassis) -> Vec<u64> {
    c.presence.evpn_macs.iter().filter(|(dp, _)| *dp == NET).map(|(_, m)| m.to_u64() & 0xff).collect()
}

fn after(c: &mut Chassis, steps: &[Step]) -> Vec<u64> {
    steps.iter().for_each(|s| s.carry_out(c));
    c.settle();
    advertised(c)
}

#[test]
fn what_is_here_is_advertised() {
    let mut c = start();
    assert_eq!(advertised(&c), [0]);
    // Machine 1 is plugged in elsewhere, and 2 here, where it may not be advertised.
    let steps = [Step::Machine(1, Some(true)), Step::Machine(2, Some(false)), Step::Plugged(2, true)];
    assert_eq!(after(&mut c, &steps), [0]);
    assert_eq!(after(&mut c, &[Step::Machine(2, Some(true))]), [0, 2]);
    // Learned at the machines here and at the provider network, and of one elsewhere not.
    let learned = [Step::Learned(20, Some(1)), Step::Learned(21, Some(10)), Step::Learned(22, Some(2))];
    assert_eq!(after(&mut c, &learned), [0, 2, 20, 21]);
    assert_eq!(after(&mut c, &[Step::Learned(21, None), Step::Plugged(2, false)]), [0, 20]);
    assert_eq!(after(&mut c, &[Step::Switch(true, false, false)]), Vec::<u64>::new(), "addresses are not asked for");
    assert_eq!(after(&mut c, &[Step::Switch(false, true, false)]), Vec::<u64>::new(), "without a VNI");
    assert_eq!(after(&mut c, &[Step::Switch(true, true, false)]), [0, 20]);
}

/// Entries change while no switch of EVPN is here: nobody is told of them, and what is there when one comes is advertised.
#[test]
fn what_was_learned_before_the_switch_was_here_is_advertised() {
    let mut c = start();
    assert_eq!(after(&mut c, &[Step::Learned(21, Some(10))]), [0, 21]);
    assert_eq!(after(&mut c, &[Step::Machine(0, None)]), Vec::<u64>::new());
    assert_eq!(after(&mut c, &[Step::Learned(20, Some(10)), Step::Learned(21, None)]), Vec::<u64>::new());
    assert_eq!(after(&mut c, &[Step::Machine(0, Some(true))]), [0, 20]);
    assert!(c.differs_from_fresh().is_empty());
}

#[test]
fn one_remote_address_costs_one_unit() {
    let mut c = start();
    let domain = Step::Domain(Some((false, 0)));
    after(&mut c, &[domain, Step::Vtep(0, Some(5)), Step::Router(true)]);
    for n in 0..200 {
        Step::Mac(1000 + n, vec![1]).carry_out(&mut c);
    }
    c.settle();
    Step::Mac(30, vec![1]).carry_out(&mut c);
    assert_eq!(c.settle(), (0, 1));
    Step::Remote(1, Some(30)).carry_out(&mut c);
    assert_eq!(c.settle(), (0, 1));
    // A VTEP more: its own flows, and the flood.
    Step::Vtep(2, Some(5)).carry_out(&mut c);
    assert_eq!(c.settle(), (0, 2));
}
