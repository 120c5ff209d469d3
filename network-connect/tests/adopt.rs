//! Rows, annotations and external IDs as OVN-Kubernetes (8871cd9) makes them: taken over as they are.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;
#[path = "common/rows.rs"]
mod rows;

use common::{ROUTER_KEY, SUBNETS, World, connect, name, network, node};
use network_connect::resource::Kind;
use rows::Zone;
use serde_json::{Value, json};

const OWNER: &str = "ovnkube-network-connect-controller:ClusterNetworkConnect";

fn map(pairs: &[(&str, &str)]) -> Value {
    json!(["map", pairs])
}

/// External IDs: what all rows have, these, and the primary ID.
fn ids(pairs: &[(&str, &str)], primary: &str) -> Value {
    let mut all: Vec<(String, String)> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let mut add = |key: &str, value: String| all.push((key.into(), value));
    add("k8s.ovn.org/name", "ab".into());
    add("k8s.ovn.org/owner-controller", "ovnkube-network-connect-controller".into());
    add("k8s.ovn.org/owner-type", "ClusterNetworkConnect".into());
    if !primary.is_empty() {
        add("k8s.ovn.org/id", format!("{OWNER}:ab:{primary}"));
    }
    json!(["map", all])
}

fn insert(table: &str, label: &str, row: Value) -> Value {
    json!({"op": "insert", "table": table, "uuid-name": label, "row": row})
}

fn attach(table: &str, name: &str, column: &str, label: &str) -> Value {
    json!({"op": "mutate", "table": table, "where": [["name", "==", name]],
        "mutations": [[column, "insert", ["named-uuid", label]]]})
}

const CONNECT: &str = "connect_router_ab";
const ROUTER1: &str = "cluster_udn_c1_ovn_cluster_router";
const ROUTER2: &str = "cluster_udn_c2_transit_router";

/// Router, name, MAC address, networks, peer, options, and the numbers of network and node.
type Port = (
    &'static str,
    &'static str,
    &'static str,
    [&'static str; 2],
    &'static str,
    &'static [(&'static str, &'static str)],
    (&'static str, &'static str),
);

/// Routers with their ports, policies and routes.
fn plumbing() -> Vec<Value> {
    let row =
        json!({"name": CONNECT, "external_ids": ids(&[], ""), "options": map(&[("requested-tnl-key", "16715785")])});
    let mut out = vec![insert("Logical_Router", "router", row)];
    let ports: [Port; 5] = [
        (
            CONNECT,
            "crtor-ab_cluster_udn_c1_n1",
            "0a:58:c0:a8:00:04",
            ["192.168.0.4/31", "fd01::4/127"],
            "rtocr-cluster_udn_c1_n1_ab",
            &[("requested-tnl-key", "3")],
            ("1", "2"),
        ),
        (
            ROUTER1,
            "rtocr-cluster_udn_c1_n1_ab",
            "0a:58:c0:a8:00:05",
            ["192.168.0.5/31", "fd01::5/127"],
            "crtor-ab_cluster_udn_c1_n1",
            &[],
            ("1", "2"),
        ),
        (
            CONNECT,
            "crtor-ab_cluster_udn_c1_n2",
            "0a:58:c0:a8:00:06",
            ["192.168.0.6/31", "fd01::6/127"],
            "",
            &[("requested-tnl-key", "4"), ("requested-chassis", "chassis-n2")],
            ("1", "3"),
        ),
        (
            CONNECT,
            "crtor-ab_cluster_udn_c2",
            "0a:58:c0:a8:01:00",
            ["192.168.1.0/31", "fd01::100/127"],
            "rtocr-cluster_udn_c2_ab",
            &[("requested-tnl-key", "257")],
            ("2", "0"),
        ),
        (
            ROUTER2,
            "rtocr-cluster_udn_c2_ab",
            "0a:58:c0:a8:01:01",
            ["192.168.1.1/31", "fd01::101/127"],
            "crtor-ab_cluster_udn_c2",
            &[],
            ("2", "0"),
        ),
    ];
    for (n, (router, name, mac, networks, peer, options, (network, node))) in ports.into_iter().enumerate() {
        let of = [("network-id", network), ("node-id", node), ("router-name", router)];
        let mut row = json!({"name": name, "mac": mac, "networks": ["set", networks], "options": map(options),
            "external_ids": ids(&of, &format!("{network}:{node}:{router}"))});
        if !peer.is_empty() {
            row["peer"] = json!(peer);
        }
        out.push(insert("Logical_Router_Port", &format!("port{n}"), row));
        out.push(attach("Logical_Router", router, "ports", &format!("port{n}")));
    }
    let policies = [
        (ROUTER1, "1", "2", "v4", "rtos-cluster_udn_c1_n1", "ip4.dst == 10.2.0.0/16", "192.168.0.4"),
        (ROUTER1, "1", "2", "v6", "rtos-cluster_udn_c1_n1", "ip6.dst == fd20::/64", "fd01::4"),
        (ROUTER2, "2", "1", "v4", "trtos-cluster_udn_c2_ovn_layer2_switch", "ip4.dst == 10.1.0.0/16", "192.168.1.0"),
        (ROUTER2, "2", "1", "v6", "trtos-cluster_udn_c2_ovn_layer2_switch", "ip6.dst == fd10::/48", "fd01::100"),
    ];
    for (n, (router, from, to, family, inport, matches, hop)) in policies.into_iter().enumerate() {
        let of = [
            ("source-network-id", from),
            ("destination-network-id", to),
            ("ip-family", family),
            ("router-name", router),
        ];
        let row = json!({"priority": 9001, "match": format!("inport == \"{inport}\" && {matches}"), "action": "reroute",
            "nexthops": hop, "external_ids": ids(&of, &format!("{from}:{to}:{family}:{router}"))});
        out.push(insert("Logical_Router_Policy", &format!("policy{n}"), row));
        out.push(attach("Logical_Router", router, "policies", &format!("policy{n}")));
    }
    let routes = [
        ("1", "2", "v4", "10.1.2.0/24", "192.168.0.5"),
        ("1", "2", "v6", "fd10:0:0:2::/64", "fd01::5"),
        ("1", "3", "v4", "10.1.3.0/24", "192.168.0.7"),
        ("1", "3", "v6", "fd10:0:0:3::/64", "fd01::7"),
        ("2", "0", "v4", "10.2.0.0/16", "192.168.1.1"),
        ("2", "0", "v6", "fd20::/64", "fd01::101"),
    ];
    for (n, (network, node, family, prefix, hop)) in routes.into_iter().enumerate() {
        let of = [("network-id", network), ("node-id", node), ("ip-family", family)];
        let row = json!({"ip_prefix": prefix, "nexthop": hop,
            "external_ids": ids(&of, &format!("{network}:{node}:{family}"))});
        out.push(insert("Logical_Router_Static_Route", &format!("route{n}"), row));
        out.push(attach("Logical_Router", CONNECT, "static_routes", &format!("route{n}")));
    }
    out
}

const SWITCHES: [&str; 2] = ["cluster_udn_c1_n1", "cluster_udn_c2_ovn_layer2_switch"];

/// The group of services' load balancers on the networks' switches.
fn services() -> Vec<Value> {
    let mut out = vec![insert("Load_Balancer_Group", "lbs", json!({"name": "cnc_svc_ab"}))];
    out.extend(SWITCHES.map(|s| attach("Logical_Switch", s, "load_balancer_group", "lbs")));
    out
}

/// Rules that keep pods apart, with the address sets of a cluster that has both families. `v4` and `v6` are their names.
fn apart(v4: &str, v6: &str) -> Vec<Value> {
    let mut out = Vec::new();
    for (family, name, addresses) in [
        ("v4", v4, json!(["set", ["10.1.0.0/16", "10.2.0.0/16"]])),
        ("v6", v6, json!(["set", ["fd10::/48", "fd20::/64"]])),
    ] {
        let row = json!({"name": name, "addresses": addresses, "external_ids": ids(&[("ip-family", family)], family)});
        out.push(insert("Address_Set", &format!("set_{family}"), row));
    }
    let drop = format!("(ip4.dst == ${v4} || ip6.dst == ${v6}) && ct.new");
    let rules: [(&str, i64, &str, &str, &[&str]); 4] = [
        ("pass-service", 500, "(ip4.dst == 10.96.0.0/16 || ip6.dst == fd96::/112)", "pass", &SWITCHES),
        ("pass-same-network-1", 475, "ip4.dst == 10.1.0.0/16 || ip6.dst == fd10::/48", "pass", &SWITCHES[..1]),
        ("pass-same-network-2", 475, "ip4.dst == 10.2.0.0/16 || ip6.dst == fd20::/64", "pass", &SWITCHES[1..]),
        ("drop-pod", 450, &drop, "drop", &SWITCHES),
    ];
    for (n, (kind, priority, matches, action, switches)) in rules.into_iter().enumerate() {
        let row = json!({"priority": priority, "match": matches, "action": action, "direction": "from-lport",
            "name": format!("CNC:ab:{kind}"), "meter": "acl-logging", "log": false,
            "external_ids": ids(&[("type", kind)], kind)});
        out.push(insert("ACL", &format!("acl{n}"), row));
        out.extend(switches.iter().map(|s| attach("Logical_Switch", s, "acls", &format!("acl{n}"))));
    }
    out
}

/// The cluster's resources with the annotations of OVN-Kubernetes' cluster manager: of layer 3 first.
fn world(connectivity: &[&str]) -> World {
    let mut w = World::default();
    w.put(network(1, "layer3", "10.1.0.0/16/24,fd10::/48/64"));
    w.put(network(2, "layer2", "10.2.0.0/16,fd20::/64"));
    for (of, id) in [("n1", 2), ("n2", 3)] {
        let subnets = json!({"cluster_udn_c1": [format!("10.1.{id}.0/24"), format!("fd10:0:0:{id}::/64")]});
        w.put(node(of, id, subnets));
    }
    let (n, mut object) = connect("ab", &[("192.168.0.0/16", 24), ("fd01::/112", 120)], connectivity);
    let subnets = json!({"layer3_1": {"ipv4": "192.168.0.0/24", "ipv6": "fd01::/120"},
        "layer2_2": {"ipv4": "192.168.1.0/31", "ipv6": "fd01::100/127"}});
    object["metadata"]["annotations"] = json!({SUBNETS: subnets.to_string(), ROUTER_KEY: "16715785"});
    object["status"] = json!({"conditions": [{"type": "Accepted", "status": "True", "reason": "ResourceAllocationSucceeded",
        "message": "All validation checks passed successfully", "lastTransitionTime": "2026-08-21T00:00:00Z"}]});
    w.put((n, object));
    w
}

/// A zone with the networks' own rows, and these.
async fn zone(more: Vec<Value>) -> Zone {
    let mut z = Zone::new().await;
    z.input.services = ["10.96.0.0/16", "fd96::/112"].map(|s| s.parse().unwrap()).to_vec();
    for id in [1, 2] {
        z.base(id, true).await;
    }
    z.run(more).await;
    let copp = z.input.nb.protection().unwrap();
    z.run(vec![json!({"op": "update", "table": "Logical_Router", "where": [["name", "==", CONNECT]],
        "row": {"copp": ["uuid", copp.to_string()]}})])
        .await;
    z
}

#[tokio::test]
async fn what_agrees_stays_as_it_is() {
    let w = world(&["PodNetwork", "ServiceNetwork"]);
    let d = w.decision("ab");
    assert_eq!((d.subnets, d.router_key, d.word), (None, None, "Success"));
    let mut z = zone([plumbing(), services()].concat()).await;
    z.resources(&w);
    assert_eq!(z.write().await, 0, "{:?}", z.last());
    // One row that differs is one row written, in one column.
    z.set("Logical_Router_Static_Route", json!({"nexthop": "192.0.2.1"})).await;
    z.write().await;
    assert_eq!(z.counted(), [("update", 1)]);
}

#[tokio::test]
async fn rules_that_keep_pods_apart_stay_too() {
    let w = world(&["ServiceNetwork"]);
    // Names of address sets are hashes of primary IDs.
    let [v4, v6] = ["v4", "v6"].map(|family| {
        let id = format!("{OWNER}:ab:{family}");
        let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(1_099_511_628_211);
        format!("a{}", id.bytes().fold(14_695_981_039_346_656_037, fnv))
    });
    let mut z = zone([plumbing(), services(), apart(&v4, &v6)].concat()).await;
    z.resources(&w);
    assert_eq!(z.write().await, 0, "{:?}", z.last());
}

#[tokio::test]
async fn a_set_of_a_family_that_only_services_have_is_there_and_empty() {
    let mut z = zone(Vec::new()).await;
    let mut w = world(&["ServiceNetwork"]);
    w.put(network(1, "layer3", "10.1.0.0/16/24"));
    w.put(network(2, "layer2", "10.2.0.0/16"));
    z.resources(&w);
    z.write().await;
    let all = format!("{:?}", z.picture().await);
    assert!(all.contains("|| ip6.dst == $a"), "{all}");
    assert_eq!(all.matches("(\"Address_Set\"").count(), 2, "{all}");
}

#[tokio::test]
async fn what_is_of_a_resource_that_is_gone_goes() {
    let mut w = world(&["ServiceNetwork"]);
    let mut z = zone([plumbing(), services(), apart("a1", "a2")].concat()).await;
    let bare = zone(Vec::new()).await.picture().await;
    w.remove(&name(Kind::Connect, "", "ab"));
    z.resources(&w);
    z.restart();
    z.write().await;
    assert_eq!(z.picture().await, bare);
}
