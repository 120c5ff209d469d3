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
const EVENTS: &str = "/api/v1/events";
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

/// A server that holds what is written against the published schema.
async fn server() -> Api {
    let api = Api::start().await;
    api.check(CONNECTS, &network_connect::resource::crd::definition());
    api
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
    let (p, api) = (Place::new().await, server().await);
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
    wait_until!("an event", api.list(EVENTS).iter().any(said));
    wait_until!("it goes", p.rows("Logical_Router_Port").await.is_empty());
    api.remove(ATTACHMENTS, "ns3/c3");
    wait_until!("it comes back", p.rows("Logical_Router_Port").await.len() == 4);
    wait_until!("Success", status(&api, "ab") == "Success" && zone("ab"));
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
    let (p, api) = (Place::new().await, server().await);
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

/// Two networks of layer 2 that `ab` joins, with their routers.
async fn joined() -> (Place, Api) {
    let (p, api) = (Place::new().await, server().await);
    for id in [1, 2] {
        p.plumb(id, "layer2").await;
        put_network(&api, id, "layer2", &format!("10.{id}.0.0/16"));
    }
    api.put(NODES, node("n1", 1, json!({})).1);
    api.put(CONNECTS, connect("ab", &[("192.168.0.0/16", 24)], &["PodNetwork"]).1);
    (p, api)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_cut_goes_on_and_one_that_is_too_old_begins_anew() {
    let (p, api) = joined().await;
    let daemon = start(&p, &api, "one", &[]);
    wait_until!("Success", status(&api, "ab") == "Success");
    wait_until!("two networks", p.rows("Logical_Router_Port").await.len() == 4);
    // Watches go on where they were: nothing is listed again.
    let lists = api.requests("list ");
    let watches = api.requests("watch ");
    api.cut(true);
    p.plumb(3, "layer2").await;
    put_network(&api, 3, "layer2", "10.3.0.0/16");
    api.cut(false);
    wait_until!("the third network", p.rows("Logical_Router_Port").await.len() == 6);
    assert_eq!(api.requests("list "), lists, "{}", daemon.log());
    assert!(api.requests("watch ") > watches);
    // What went meanwhile is told by nobody: only the list lacks it.
    api.cut(true);
    api.remove(ATTACHMENTS, "ns3/c3");
    api.put(NODES, node("n2", 2, json!({})).1);
    api.forget();
    api.cut(false);
    wait_until!("the third network goes", p.rows("Logical_Router_Port").await.len() == 4);
    assert!(api.requests("list ") > lists);
    let annotation = || api.get(CONNECTS, "ab")["metadata"]["annotations"][SUBNETS].to_string();
    wait_until!("it gives its addresses back", !annotation().contains("layer2_3"));
    wait_until!("Success", status(&api, "ab") == "Success");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_is_asked_for_again() {
    let (p, api) = joined().await;
    // The lease's first holder, lists, watches and the first writes have a bad day.
    api.refuse("POST", 1, 409);
    api.refuse("list", 2, 500);
    api.refuse("watch", 2, 500);
    api.refuse("PATCH", 2, 409);
    let daemon = start(&p, &api, "one", &[]);
    wait_until!("Success", status(&api, "ab") == "Success");
    wait_until!("two networks", p.rows("Logical_Router_Port").await.len() == 4);
    assert_eq!(api.refusals(), 0);
    assert!(daemon.log().contains("ClusterNetworkConnect ab: the API server refuses"), "{}", daemon.log());
    // What another manager owned is taken over.
    let managers = api.managers(CONNECTS, "ab");
    assert!(
        managers.iter().any(|m| m == "ovn-kubernetes-network-connect-controller-subnet-annotation"),
        "{managers:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_lease_another_has_stops_deciding() {
    let (p, api) = joined().await;
    let daemon = start(&p, &api, "one", &["--role=manager"]);
    wait_until!("it decides", daemon.ask("status").contains("decides: yes"));
    wait_until!("Success", !api.get(CONNECTS, "ab")["metadata"]["annotations"][SUBNETS].is_null());
    let mut lease = api.get(LEASES, "ovn-kubernetes/network-connect");
    let spec = lease["spec"].clone();
    assert!(spec["holderIdentity"].is_string() && spec["leaseDurationSeconds"].is_u64(), "{spec}");
    lease["spec"]["holderIdentity"] = json!("another");
    api.put(LEASES, lease.clone());
    wait_until!("it does not decide", daemon.ask("status").contains("decides: no"));
    let writes = api.writes();
    put_network(&api, 3, "layer2", "10.3.0.0/16");
    // Whatever the other one decides counts here too; this process writes nothing.
    wait_until!("it reads on", daemon.ask("connects/show").contains("ab: "));
    assert_eq!(api.writes(), writes);
    lease["spec"]["holderIdentity"] = json!("");
    api.put(LEASES, lease);
    wait_until!("it decides again", daemon.ask("status").contains("decides: yes"));
    let annotation = || api.get(CONNECTS, "ab")["metadata"]["annotations"][SUBNETS].to_string();
    wait_until!("the third network", annotation().contains("layer2_3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_field_is_refused_by_the_definition_or_named_by_a_condition_and_an_event() {
    let (p, api) = joined().await;
    let _daemon = start(&p, &api, "one", &[]);
    wait_until!("Success", status(&api, "ab") == "Success");
    let with = |path: &str, value: Value| {
        let mut object = api.get(CONNECTS, "ab");
        *object.pointer_mut(path).unwrap() = value;
        object
    };
    // What the schema knows does not get in.
    for (path, value, field) in [
        (
            "/spec/connectSubnets/0/cidr",
            json!("192.168.0.0/15"),
            "spec.connectSubnets: Invalid value: connectSubnets is immutable",
        ),
        ("/spec/connectSubnets/0/networkPrefix", json!(200), "spec.connectSubnets[0].networkPrefix"),
        ("/spec/connectivity", json!([]), "spec.connectivity"),
        ("/spec/connectivity", json!(["Pods"]), "spec.connectivity[0]: Unsupported value: \"Pods\""),
        (
            "/spec/networkSelectors/0/networkSelectionType",
            json!("Some"),
            "spec.networkSelectors[0].networkSelectionType",
        ),
        ("/spec/networkSelectors", json!([]), "spec.networkSelectors"),
    ] {
        let said = api.try_put(CONNECTS, with(path, value.clone())).unwrap_err();
        assert!(said.contains(field), "{path} {value}: {said}");
    }
    // What it leaves to rules in CEL may get in where a server is older: these name the field, take the plumbing away, and
    // disturb nothing else.
    for (path, value, field) in [
        ("/spec/connectSubnets/0/cidr", json!("192.168.0.1/16"), "spec.connectSubnets[0].cidr"),
        ("/spec/connectSubnets/0/cidr", json!("192.168.0/16"), "spec.connectSubnets[0].cidr"),
        ("/spec/connectSubnets/0/networkPrefix", json!(16), "spec.connectSubnets[0].networkPrefix"),
        ("/spec/connectSubnets/0/networkPrefix", json!(32), "spec.connectSubnets[0].networkPrefix"),
        ("/spec/connectivity", json!(["PodNetwork", "PodNetwork"]), "spec.connectivity"),
        (
            "/spec/networkSelectors/0/clusterUserDefinedNetworkSelector/networkSelector",
            json!({"matchExpressions": [{"key": "a", "operator": "Like"}]}),
            "spec.networkSelectors[0].clusterUserDefinedNetworkSelector.networkSelector.matchExpressions[0].operator",
        ),
    ] {
        let good = with("/spec/connectivity", json!(["PodNetwork"]));
        api.put(CONNECTS, with(path, value.clone()));
        let conditions = || api.get(CONNECTS, "ab")["status"]["conditions"].to_string();
        wait_until!(format!("a condition names {field} ({value})"), {
            conditions().contains("InvalidSpec") && conditions().contains(field)
        });
        let event = |e: &Value| e["reason"] == "InvalidSpec" && e["message"].to_string().contains(field);
        wait_until!(format!("an event names {field} ({value})"), api.list(EVENTS).iter().any(event));
        wait_until!("its plumbing goes", p.rows("Logical_Router_Port").await.is_empty());
        let mut object = api.get(CONNECTS, "ab");
        object["spec"] = good["spec"].clone();
        api.put(CONNECTS, object);
        wait_until!("it comes back", status(&api, "ab") == "Success" && p.rows("Logical_Router_Port").await.len() == 4);
    }
    for e in api.list(EVENTS) {
        assert_eq!(e["involvedObject"]["name"], "ab", "{e}");
        assert!(["Normal", "Warning"].contains(&e["type"].as_str().unwrap()), "{e}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn annotations_edited_by_hand_and_resources_that_change_are_named() {
    let (p, api) = joined().await;
    // Another resource's plumbing stays whatever happens to this one.
    for id in [5, 6] {
        p.plumb(id, "layer2").await;
        let mut object = network(id, "layer2", &format!("10.{id}.0.0/16")).1;
        object["metadata"]["labels"] = json!({"other": "yes"});
        api.put(ATTACHMENTS, kinded("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", object));
    }
    let mut other = connect("other", &[("172.30.0.0/16", 24)], &["PodNetwork"]).1;
    other["spec"]["networkSelectors"][0]["clusterUserDefinedNetworkSelector"]["networkSelector"] =
        json!({"matchLabels": {"other": "yes"}});
    api.put(CONNECTS, other);
    let daemon = start(&p, &api, "one", &[]);
    wait_until!("Success", status(&api, "ab") == "Success" && status(&api, "other") == "Success");
    wait_until!("both", p.rows("Logical_Router_Port").await.len() == 8);
    let of_other = || async {
        let rows = p.rows("Logical_Router_Port").await.into_iter().filter(|r| r["name"].to_string().contains("other"));
        let mut rows: Vec<String> = rows.map(|r| r.to_string()).collect();
        rows.sort();
        rows
    };
    let before = of_other().await;
    assert_eq!(before.len(), 4);
    let good = api.get(CONNECTS, "ab")["metadata"]["annotations"].clone();
    let event = |reason: &str, text: &str| {
        let is = |e: &Value| e["reason"] == reason && e["message"].to_string().contains(text);
        api.list(EVENTS).iter().any(is)
    };
    let subnets = format!("metadata.annotations[{SUBNETS}]");
    let key = format!("metadata.annotations[{ROUTER_KEY}]");
    let edits: [(&str, &str, &str); 6] = [
        (SUBNETS, "{", &subnets),
        (
            SUBNETS,
            r#"{"layer2_1":{"ipv4":"192.168.0.0/31"},"layer2_2":{"ipv4":"192.168.0.0/31"}}"#,
            "is used by another network",
        ),
        (SUBNETS, r#"{"layer2_1":{"ipv4":"10.0.0.0/31"},"layer2_2":{"ipv4":"192.168.0.2/31"}}"#, "is no block of"),
        (SUBNETS, r#"{"layer2_1":{"ipv4":"x"},"layer2_2":{"ipv4":"192.168.0.2/31"}}"#, "layer2_1"),
        (ROUTER_KEY, "seven", &key),
        (ROUTER_KEY, "5", &key),
    ];
    for (annotation, text, words) in edits {
        let mut object = api.get(CONNECTS, "ab");
        object["metadata"]["annotations"][annotation] = json!(text);
        api.put(CONNECTS, object);
        wait_until!(format!("an event about {annotation} {text}"), event("AnnotationInvalid", words));
        wait_until!(
            format!("{annotation} {text} is mended"),
            api.get(CONNECTS, "ab")["metadata"]["annotations"] == good
        );
        wait_until!("all is there", p.rows("Logical_Router_Port").await.len() == 8);
    }
    // A network that is deleted while it is joined; one without subnets; a node whose annotations are rubbish.
    api.remove(ATTACHMENTS, "ns2/c2");
    wait_until!("InsufficientNetworks", event("InsufficientNetworks", "1 network is selected"));
    let condition = |text: &str| api.get(CONNECTS, "ab")["status"]["conditions"].to_string().contains(text);
    wait_until!("the condition", condition("InsufficientNetworks"));
    put_network(&api, 2, "layer2", "");
    wait_until!("UnsupportedNetworkType", event("UnsupportedNetworkType", "cluster_udn_c2 has no subnets"));
    wait_until!("the condition", condition("UnsupportedNetworkType"));
    put_network(&api, 2, "layer2", "10.2.0.0/99");
    wait_until!(
        "the network's field is named",
        daemon.ask("debug/problems").contains("ns2/c2: spec.config: subnets: ")
    );
    put_network(&api, 2, "layer2", "10.2.0.0/16");
    wait_until!("it comes back", status(&api, "ab") == "Success" && p.rows("Logical_Router_Port").await.len() == 8);
    let mut rubbish = node("n1", 1, json!({})).1;
    rubbish["metadata"]["annotations"]["k8s.ovn.org/node-subnets"] = json!("[");
    api.put(NODES, rubbish);
    wait_until!(
        "the node's field",
        daemon.ask("debug/problems").contains("metadata.annotations[k8s.ovn.org/node-subnets]")
    );
    assert_eq!(of_other().await, before);
}
