//! The daemon on an API server and a northbound database.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/api.rs"]
mod api;
mod common;
#[path = "common/daemon.rs"]
mod daemon;

use api::Api;
use common::{ROUTER_KEY, SUBNETS, connect, network, node};
use daemon::{Daemon, Place};
use serde_json::{Value, json};

const CONNECTS: &str = "/apis/k8s.ovn.org/v1/clusternetworkconnects";
const ATTACHMENTS: &str = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions";
const NODES: &str = "/api/v1/nodes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";

fn kinded(version: &str, kind: &str, mut object: Value) -> Value {
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    object
}

fn put_network(api: &Api, id: u32, layer: &str, subnets: &str) {
    let object = network(id, layer, subnets).1;
    api.put(ATTACHMENTS, kinded("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", object));
}

fn start(p: &Place, api: &Api, instance: &str, options: &[&str]) -> Daemon {
    std::fs::write(p.dir.path().join("kubeconfig"), api.kubeconfig()).unwrap();
    p.start_kubernetes(instance, options)
}

fn status(api: &Api, of: &str) -> String {
    api.get(CONNECTS, of)["status"]["status"].as_str().unwrap_or_default().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_of_the_api_is_plumbed_and_told_of() {
    let (p, api) = (Place::new().await, Api::start().await);
    p.plumb(1, "layer3").await;
    p.plumb(2, "layer2").await;
    put_network(&api, 1, "layer3", "10.1.0.0/16/24");
    put_network(&api, 2, "layer2", "10.2.0.0/16");
    api.put(NODES, node("n1", 1, json!({"cluster_udn_c1": "10.1.1.0/24"})).1);
    let _daemon = start(&p, &api, "one", &[]);
    // It comes while the daemon watches.
    wait_until!("a lease", !api.list(LEASES).is_empty());
    api.put(CONNECTS, connect("ab", &[("192.168.0.0/16", 24)], &["PodNetwork"]).1);
    let zone = |of: &str| {
        let conditions = api.get(CONNECTS, of)["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Ready-In-Zone-n1" && c["status"] == "True")
    };
    wait_until!("Success", status(&api, "ab") == "Success" && zone("ab"));
    let annotations = api.get(CONNECTS, "ab")["metadata"]["annotations"].clone();
    assert_eq!(annotations[SUBNETS], r#"{"layer2_2":{"ipv4":"192.168.0.0/31"},"layer3_1":{"ipv4":"192.168.1.0/24"}}"#);
    assert_eq!(annotations[ROUTER_KEY], "16715779");
    assert_eq!(p.rows("Logical_Router_Port").await.len(), 4);
    assert_eq!(
        api.managers(CONNECTS, "ab"),
        [
            "clustermanager-networkconnect-controller/status",
            "network-connect-zone-n1/status",
            "ovn-kubernetes-network-connect-controller-subnet-annotation",
            "ovn-kubernetes-network-connect-controller-tunnel-key-annotation",
        ]
    );
    // What overlaps is refused by a condition and an event that name both.
    put_network(&api, 3, "layer2", "10.2.3.0/24");
    wait_until!("Failure", status(&api, "ab") == "Failure");
    let said =
        |e: &Value| e["reason"] == "OverlappingNetworkSubnets" && e["message"].to_string().contains("cluster_udn_c3");
    wait_until!("an event", api.list("/api/v1/events").iter().any(said));
    wait_until!("it goes", p.rows("Logical_Router_Port").await.is_empty());
    api.remove(ATTACHMENTS, "ns3/c3");
    wait_until!("Success", status(&api, "ab") == "Success" && zone("ab"));
    wait_until!("it comes back", p.rows("Logical_Router_Port").await.len() == 4);
    // A settled cluster is left alone.
    let writes = api.writes();
    api.put(NODES, node("n1", 1, json!({"cluster_udn_c1": "10.1.1.0/24"})).1);
    api.put(NODES, node("n2", 2, json!({"cluster_udn_c1": "10.1.2.0/24"})).1);
    wait_until!("node n2", p.rows("Logical_Router_Port").await.len() == 5);
    assert_eq!(api.writes(), writes);
    api.remove(CONNECTS, "ab");
    wait_until!("everything goes", p.rows("Logical_Router_Port").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_decides_and_another_takes_over() {
    let (p, api) = (Place::new().await, Api::start().await);
    put_network(&api, 1, "layer2", "10.1.0.0/16");
    put_network(&api, 2, "layer2", "10.2.0.0/16");
    let first = start(&p, &api, "one", &["--role=manager"]);
    wait_until!("the first decides", first.ask("status").contains("decides: yes"));
    let second = start(&p, &api, "two", &["--role=manager"]);
    wait_until!("the second reads", second.ask("status").contains("resources read: yes"));
    assert!(second.ask("status").contains("decides: no"));
    api.put(CONNECTS, connect("ab", &[("192.168.0.0/16", 24)], &["PodNetwork"]).1);
    wait_until!("Success", status(&api, "ab") == "Success");
    first.kill();
    // As if the first had not been heard of for long: the test need not wait for that.
    let mut lease = api.get(LEASES, "ovn-kubernetes/network-connect");
    lease["spec"]["holderIdentity"] = json!("");
    api.put(LEASES, lease);
    wait_until!("the second decides", second.ask("status").contains("decides: yes"));
    put_network(&api, 3, "layer2", "10.3.0.0/16");
    let annotation = || api.get(CONNECTS, "ab")["metadata"]["annotations"][SUBNETS].to_string();
    wait_until!("the third network", annotation().contains("layer2_3"));
    assert!(annotation().contains(r#"\"layer2_1\":{\"ipv4\":\"192.168.0.0/31\"}"#), "{}", annotation());
}
