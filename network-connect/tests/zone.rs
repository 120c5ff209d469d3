//! The zone's half: whatever changes in whatever grouping, the rows are those of a fresh start, by the smallest transactions.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;
#[path = "common/rows.rs"]
mod rows;

use common::{World, connect, name, network, node};
use network_connect::resource::Kind;
use proptest::prelude::*;
use rows::Zone;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A thing that changes; where there is no value it goes away.
#[derive(Clone, Debug)]
enum Step {
    /// A network of number 1 to 5: which of its forms.
    Network(u32, Option<usize>),
    /// A node: whether it is of this zone, how many subnets of a family it has, whether its chassis is known.
    Node(u32, Option<(bool, u8, bool)>),
    /// A resource: which addresses, whether pods and services are joined.
    Connect(u32, Option<(bool, bool, bool)>),
    /// What OVN-Kubernetes makes of a network: router and switches, and the load balancer of a service.
    Base(u32, bool),
    Balancer(u32, bool),
    /// Somebody edits a row of ours: which of them, and how.
    Hand(usize, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let two = any::<(bool, bool)>();
    prop_oneof![
        3 => (1u32..6, prop::option::weighted(0.8, 0usize..4)).prop_map(|(id, of)| Step::Network(id, of)),
        3 => (1u32..5, prop::option::weighted(0.7, (any::<bool>(), 1u8..3, prop::bool::weighted(0.8))))
            .prop_map(|(id, of)| Step::Node(id, of)),
        2 => (0u32..2, prop::option::weighted(0.8, (any::<bool>(), two)))
            .prop_map(|(id, of)| Step::Connect(id, of.map(|(wide, (pods, services))| (wide, pods, services || !pods)))),
        3 => (1u32..6, prop::bool::weighted(0.8)).prop_map(|(id, there)| Step::Base(id, there)),
        1 => (1u32..6, any::<bool>()).prop_map(|(id, there)| Step::Balancer(id, there)),
        2 => (any::<usize>(), 0u8..3).prop_map(|(which, how)| Step::Hand(which, how)),
    ]
}

/// The forms of a network.
fn form(id: u32, form: usize) -> (network_connect::resource::Name, Value) {
    let (layer, subnets) = match form {
        0 => ("layer3", format!("10.{id}.0.0/16/24,fd10:{id}::/48/64")),
        1 => ("layer3", format!("10.{id}.0.0/17/24,10.{id}.128.0/17/24,fd10:{id}::/48/64")),
        2 => ("layer2", format!("10.{id}.0.0/16,fd10:{id}::/64")),
        _ => ("layer2", format!("10.{id}.0.0/16")),
    };
    network(id, layer, &subnets)
}

/// A node's resource, with one or two subnets of a family in each network.
fn node_of(id: u32, (local, subnets, chassis): (bool, u8, bool)) -> (network_connect::resource::Name, Value) {
    let of = |net: u32| {
        let v4 = (0..subnets).map(|n| format!("10.{net}.{}.0/24", 10 * id + u32::from(n)));
        v4.chain([format!("fd10:{net}:0:{id}::/64")]).collect::<Vec<_>>()
    };
    let all: serde_json::Map<String, Value> = (1..6).map(|n| (format!("cluster_udn_c{n}"), json!(of(n)))).collect();
    let (n, mut object) = node(&format!("n{id}"), id, Value::Object(all));
    if local {
        object["metadata"]["annotations"]["k8s.ovn.org/zone-name"] = json!("n1");
    }
    if !chassis {
        object["metadata"]["annotations"]["k8s.ovn.org/node-chassis-id"] = json!("");
    }
    (n, object)
}

fn connect_of(id: u32, (wide, pods, services): (bool, bool, bool)) -> (network_connect::resource::Name, Value) {
    let (v4, v6) = if wide { ("/16", "/112") } else { ("/20", "/116") };
    let subnets = [(format!("172.{}.0.0{v4}", 20 + id), 24), (format!("fd0{}::{v6}", id + 1), 120)];
    let kinds: Vec<&str> =
        [(pods, "PodNetwork"), (services, "ServiceNetwork")].iter().filter(|k| k.0).map(|k| k.1).collect();
    connect(&format!("r{id}"), &subnets.each_ref().map(|(c, p)| (c.as_str(), *p)), &kinds)
}

/// What is there besides rows of ours.
#[derive(Default)]
struct Around {
    world: World,
    bases: BTreeMap<u32, ()>,
    balancers: BTreeMap<u32, ()>,
}

fn put(around: &mut Around, (name, mut object): (network_connect::resource::Name, Value), there: bool) {
    if !there {
        return around.world.remove(&name);
    }
    // Annotations stay where the resource does.
    if name.kind == Kind::Connect
        && let Some(before) = around.world.objects.get(&name)
    {
        object["metadata"]["annotations"] = before["metadata"]["annotations"].clone();
    }
    around.world.put((name, object));
}

async fn take(zone: &mut Zone, around: &mut Around, step: &Step) {
    match step {
        Step::Network(id, of) => put(around, form(*id, of.unwrap_or(0)), of.is_some()),
        Step::Node(id, of) => put(around, node_of(*id, of.unwrap_or((false, 1, true))), of.is_some()),
        Step::Connect(id, of) => put(around, connect_of(*id, of.unwrap_or((true, true, true))), of.is_some()),
        Step::Base(id, there) => {
            let was = if *there { around.bases.insert(*id, ()) } else { around.bases.remove(id) };
            if was.is_some() != *there {
                zone.base(*id, *there).await;
            }
        }
        Step::Balancer(id, there) => {
            let was = if *there { around.balancers.insert(*id, ()) } else { around.balancers.remove(id) };
            if was.is_some() != *there {
                zone.balancer(*id, *there).await;
            }
        }
        Step::Hand(which, how) => zone.edit(*which, *how).await,
    }
    around.world.settle();
    zone.resources(&around.world);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_changes_in_any_grouping_come_to_what_a_fresh_start_makes(
        groups in prop::collection::vec(prop::collection::vec(step(), 1..7), 1..9)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut zone, mut around) = (Zone::new().await, Around::default());
            for group in &groups {
                for step in group {
                    take(&mut zone, &mut around, step).await;
                }
                zone.write().await;
            }
            let mut fresh = Zone::new().await;
            for id in around.bases.keys() {
                fresh.base(*id, true).await;
            }
            for id in around.balancers.keys() {
                fresh.balancer(*id, true).await;
            }
            fresh.resources(&around.world);
            fresh.write().await;
            let (ours, theirs) = (zone.picture().await, fresh.picture().await);
            let only = |a: &[(String, String)], b: &[(String, String)]| {
                a.iter().filter(|r| !b.contains(r)).cloned().collect::<Vec<_>>()
            };
            assert_eq!(only(&ours, &theirs), only(&theirs, &ours));
            assert_eq!(ours.len(), theirs.len());
            // A process that starts now finds nothing to do.
            zone.restart();
            assert_eq!(zone.write().await, 0);
        });
    }
}

/// How many operations of each kind a change takes, apart from what puts rows into their parents: one for each parent and
/// column.
#[tokio::test]
async fn a_change_takes_as_many_operations_as_rows_differ() {
    let (mut zone, mut around) = (Zone::new().await, Around::default());
    for id in 1..6 {
        take(&mut zone, &mut around, &Step::Base(id, true)).await;
        take(&mut zone, &mut around, &Step::Network(id, Some(if id < 4 { 0 } else { 2 }))).await;
    }
    for id in 1..3 {
        take(&mut zone, &mut around, &Step::Node(id, Some((false, 1, true)))).await;
    }
    take(&mut zone, &mut around, &Step::Connect(0, Some((true, true, true)))).await;
    zone.write().await;
    // Three networks of layer 3: a port and two routes for a node of another zone.
    take(&mut zone, &mut around, &Step::Node(3, Some((false, 1, true)))).await;
    zone.write().await;
    assert_eq!(zone.counted(), [("insert", 9), ("mutate", 2)]);
    take(&mut zone, &mut around, &Step::Node(3, None)).await;
    zone.write().await;
    assert_eq!(zone.counted(), [("mutate", 2)]);
    // A service: one load balancer in one group.
    take(&mut zone, &mut around, &Step::Balancer(2, true)).await;
    zone.write().await;
    assert_eq!(zone.counted(), [("mutate", 1)]);
    // A network of layer 2 more: two ports and two routes for its link; policies of two families towards four others and
    // of these towards it; its switch in the group. Columns: the connect router's two, its own router's two, one of each
    // other network's router, its switch's groups.
    take(&mut zone, &mut around, &Step::Network(5, None)).await;
    zone.write().await;
    take(&mut zone, &mut around, &Step::Network(5, Some(2))).await;
    zone.write().await;
    assert_eq!(zone.counted(), [("insert", 20), ("mutate", 9)]);
    // One row edited by hand is one row written.
    let around_before = zone.picture().await;
    zone.set("Logical_Router_Policy", json!({"priority": 7})).await;
    zone.write().await;
    assert_eq!(zone.counted(), [("update", 1)]);
    assert_eq!(zone.picture().await, around_before);
    let resource = name(Kind::Connect, "", "r0");
    assert!(around.world.objects.contains_key(&resource));
    // All goes: routers and groups by themselves, the rest out of what stays.
    take(&mut zone, &mut around, &Step::Connect(0, None)).await;
    zone.write().await;
    assert_eq!(zone.counted(), [("delete", 2), ("mutate", 15)]);
}
