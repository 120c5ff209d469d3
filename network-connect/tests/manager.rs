//! What the cluster manager decides.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{ROUTER_KEY, SUBNETS, World, connect, name, network};
use network_connect::resource::Kind;
use proptest::prelude::*;
use serde_json::json;

const POD: &[&str] = &["PodNetwork"];

fn two_networks() -> World {
    let mut w = World::default();
    w.put(network(1, "layer3", "10.1.0.0/16/24"));
    w.put(network(2, "layer2", "10.2.0.0/16"));
    w
}

fn reason(w: &World, of: &str) -> (String, String) {
    let d = w.decision(of);
    (d.accepted.reason, d.accepted.message)
}

#[test]
fn two_networks_are_joined() {
    let mut w = two_networks();
    w.put(connect("ab", &[("192.168.0.0/16", 24)], POD));
    assert_eq!(w.settle(), 1);
    assert_eq!(
        w.annotation("ab", SUBNETS),
        r#"{"layer2_2":{"ipv4":"192.168.0.0/31"},"layer3_1":{"ipv4":"192.168.1.0/24"}}"#
    );
    assert_eq!(w.annotation("ab", ROUTER_KEY), "16715779");
    let d = w.decision("ab");
    assert_eq!(
        (d.accepted.status.as_str(), d.accepted.reason.as_str(), d.word),
        ("True", "ResourceAllocationSucceeded", "Success")
    );
    assert_eq!((d.subnets, d.router_key, d.notes), (None, None, vec![]));
}

#[test]
fn a_failed_zone_fails_the_whole_and_only_while_there_is_such_a_zone() {
    let mut w = two_networks();
    w.put(connect("ab", &[("192.168.0.0/16", 24)], POD));
    w.settle();
    let (n, mut object) = (name(Kind::Connect, "", "ab"), w.objects[&name(Kind::Connect, "", "ab")].clone());
    object["status"] = json!({"conditions": [{"type": "Ready-In-Zone-n1", "status": "False", "reason": "OVNSetupFailed", "message": "m"}]});
    w.put((n, object));
    w.put(common::node("n1", 1, json!({})));
    assert_eq!(w.decision("ab").word, "Failure");
    w.remove(&name(Kind::Node, "", "n1"));
    w.put(common::node("n2", 2, json!({})));
    assert_eq!(w.decision("ab").word, "Success");
}

/// The third network's subnets, the resource's, the reason, and what the message names.
type Case = (&'static str, &'static [(&'static str, u8)], &'static str, &'static [&'static str]);

#[test]
fn each_obstacle_has_its_reason_and_names_who_is_in_the_way() {
    let cases: [Case; 7] = [
        ("10.3.0.0/16", &[("192.168.0.0/16", 24)], "ResourceAllocationSucceeded", &[]),
        (
            "10.1.4.0/24",
            &[("192.168.0.0/16", 24)],
            "OverlappingNetworkSubnets",
            &["cluster_udn_c1", "cluster_udn_c3", "10.1.0.0/16", "10.1.4.0/24"],
        ),
        (
            "10.3.0.0/16",
            &[("10.3.4.0/24", 28)],
            "ConnectSubnetConflict",
            &["spec.connectSubnets", "10.3.4.0/24", "cluster_udn_c3"],
        ),
        ("10.3.0.0/16", &[("10.96.4.0/24", 28)], "ConnectSubnetConflict", &["10.96.0.0/16", "services"]),
        ("10.3.0.0/16", &[("100.65.0.0/20", 28)], "ConnectSubnetConflict", &["100.65.0.0/16", "join"]),
        (
            "fd03::/48",
            &[("192.168.0.0/16", 24), ("fd01::/112", 120)],
            "IPFamilyMismatch",
            &["cluster_udn_c1", "cluster_udn_c3"],
        ),
        ("10.3.0.0/16", &[("fd01::/112", 120)], "IPFamilyMismatch", &["IPv4 alone", "cluster_udn_c1"]),
    ];
    for (third, ranges, expected, words) in cases {
        let mut w = two_networks();
        w.put(network(3, "layer2", third));
        w.put(connect("ab", ranges, POD));
        let (reason, message) = reason(&w, "ab");
        assert_eq!(reason, expected, "{third} {ranges:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{message} does not name {word}");
        }
    }
}

#[test]
fn a_resource_that_turns_invalid_gives_its_subnets_back_and_gets_them_again() {
    let mut w = two_networks();
    w.put(connect("ab", &[("192.168.0.0/16", 24)], POD));
    w.settle();
    let before = w.annotation("ab", SUBNETS);
    w.put(network(3, "layer2", "10.1.4.0/24"));
    w.settle();
    assert_eq!(w.annotation("ab", SUBNETS), "{}");
    assert_eq!(w.decision("ab").word, "Failure");
    w.remove(&network(3, "layer2", "").0);
    w.settle();
    assert_eq!(w.annotation("ab", SUBNETS), before);
    let (n, mut object) = (name(Kind::Connect, "", "ab"), w.objects[&name(Kind::Connect, "", "ab")].clone());
    object["spec"]["connectSubnets"][0]["networkPrefix"] = json!(16);
    w.put((n, object));
    w.settle();
    assert_eq!(w.annotation("ab", SUBNETS), "{}");
    let (reason, message) = reason(&w, "ab");
    assert_eq!(reason, "InvalidSpec");
    assert!(message.starts_with("spec.connectSubnets[0].networkPrefix: "), "{message}");
}

#[test]
fn one_network_is_too_few_and_keeps_its_block() {
    let mut w = two_networks();
    w.put(connect("ab", &[("192.168.0.0/16", 24)], POD));
    w.settle();
    w.remove(&network(2, "layer2", "").0);
    w.settle();
    assert_eq!(reason(&w, "ab"), ("InsufficientNetworks".into(), "1 network is selected, and two are needed".into()));
    assert_eq!(w.annotation("ab", SUBNETS), r#"{"layer3_1":{"ipv4":"192.168.1.0/24"}}"#);
}

#[test]
fn networks_that_do_not_fit_go_without_and_the_others_stay() {
    let mut w = two_networks();
    w.put(network(3, "layer3", "10.3.0.0/16/24"));
    w.put(connect("ab", &[("192.168.0.0/23", 24)], POD));
    w.settle();
    let (reason, message) = reason(&w, "ab");
    assert_eq!(reason, "ConnectSubnetExhausted");
    assert!(message.contains("192.168.0.0/23") && message.contains("cluster_udn_c3"), "{message}");
    assert_eq!(
        w.annotation("ab", SUBNETS),
        r#"{"layer2_2":{"ipv4":"192.168.0.0/31"},"layer3_1":{"ipv4":"192.168.1.0/24"}}"#
    );
}

#[test]
fn of_two_resources_with_one_network_and_the_same_addresses_the_first_stays() {
    let mut w = two_networks();
    w.put(connect("later", &[("192.168.0.0/16", 24)], POD));
    w.settle();
    w.put(connect("earlier", &[("192.168.128.0/17", 24)], POD));
    w.settle();
    assert_eq!(w.decision("later").word, "Success");
    let (reason, message) = reason(&w, "earlier");
    assert_eq!(reason, "ConnectSubnetOverlap");
    assert!(message.contains("ClusterNetworkConnect later") && message.contains("192.168.0.0/16"), "{message}");
    assert_eq!(w.annotation("earlier", SUBNETS), "");
    w.remove(&name(Kind::Connect, "", "later"));
    w.settle();
    assert_eq!(w.decision("earlier").word, "Success");
}

#[test]
fn router_keys_differ_from_each_other_and_from_those_of_networks() {
    let mut w = two_networks();
    let (n, mut object) = network(3, "layer2", "10.3.0.0/16");
    object["metadata"]["annotations"]["k8s.ovn.org/tunnel-keys"] = json!("[16715779, 16715780]");
    w.put((n, object));
    w.put(connect("a", &[("192.168.0.0/20", 24)], POD));
    w.put(connect("b", &[("192.168.16.0/20", 24)], POD));
    w.settle();
    assert_eq!((w.annotation("a", ROUTER_KEY), w.annotation("b", ROUTER_KEY)), ("16715781".into(), "16715782".into()));
    let (n, mut object) = (name(Kind::Connect, "", "b"), w.objects[&name(Kind::Connect, "", "b")].clone());
    object["metadata"]["annotations"][ROUTER_KEY] = json!("16715781");
    w.put((n, object));
    assert!(w.decision("b").notes.iter().any(|(_, text)| text.contains(ROUTER_KEY)), "{:?}", w.decision("b").notes);
    w.settle();
    assert_eq!((w.annotation("a", ROUTER_KEY), w.annotation("b", ROUTER_KEY)), ("16715781".into(), "16715782".into()));
}

#[test]
fn namespaces_select_their_primary_networks() {
    let mut w = two_networks();
    let labels = json!({"team": "x", "k8s.ovn.org/primary-user-defined-network": ""});
    for (ns, labels) in [("ns1", labels.clone()), ("ns2", labels), ("ns3", json!({"team": "x"}))] {
        w.put((name(Kind::Namespace, "", ns), json!({"metadata": {"name": ns, "labels": labels}})));
    }
    w.put(network(3, "layer3", "10.3.0.0/16/24"));
    let (n, mut object) = connect("ab", &[("192.168.0.0/16", 24)], POD);
    object["spec"]["networkSelectors"] = json!([{"networkSelectionType": "PrimaryUserDefinedNetworks",
        "primaryUserDefinedNetworkSelector": {"namespaceSelector": {"matchLabels": {"team": "x"}}}}]);
    w.put((n, object));
    w.settle();
    assert_eq!(
        w.annotation("ab", SUBNETS),
        r#"{"layer2_2":{"ipv4":"192.168.0.0/31"},"layer3_1":{"ipv4":"192.168.1.0/24"}}"#
    );
}

#[test]
fn networks_that_cannot_be_connected_are_named_and_the_others_are() {
    let mut w = two_networks();
    let with = |id, key: &str, value: &str| {
        let (n, mut object) = network(id, "layer3", &format!("10.{id}.0.0/16/24"));
        let mut config: serde_json::Value = serde_json::from_str(object["spec"]["config"].as_str().unwrap()).unwrap();
        config[key] = json!(value);
        object["spec"]["config"] = json!(config.to_string());
        (n, object)
    };
    w.put(with(3, "transport", "no-overlay"));
    w.put(with(4, "role", "secondary"));
    w.put(with(5, "topology", "localnet"));
    w.put(connect("ab", &[("192.168.0.0/16", 24)], POD));
    w.settle();
    let (reason, message) = reason(&w, "ab");
    assert_eq!(reason, "UnsupportedNetworkType");
    assert!(message.contains("cluster_udn_c3"), "{message}");
    let notes: Vec<String> = w.decision("ab").notes.into_iter().map(|(_, text)| text).collect();
    assert!(notes.iter().any(|n| n.contains("cluster_udn_c4")) && notes.iter().any(|n| n.contains("cluster_udn_c5")));
    assert!(w.annotation("ab", SUBNETS).contains("layer3_1"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Resources that come and go in any order leave no two networks, and no two resources that share a network, with the
    /// same addresses; and after a restart everything is as it was.
    #[test]
    fn decisions_hold(steps in prop::collection::vec((0u32..8, any::<bool>(), any::<bool>()), 1..20)) {
        let mut w = World::default();
        for of in ["a", "b"] {
            w.put(connect(of, &[(if of == "a" { "192.168.0.0/22" } else { "192.168.4.0/22" }, 24)], POD));
        }
        for (id, there, three) in steps {
            let layer = if three { "layer3" } else { "layer2" };
            let network = network(id, layer, &format!("10.{id}.0.0/16"));
            if there { w.put(network) } else { w.remove(&network.0) }
            w.settle();
            let mut all = Vec::new();
            for of in ["a", "b"] {
                let (held, problems) = network_connect::manager::allocate::read(Some(&w.annotation(of, SUBNETS)));
                prop_assert!(problems.is_empty());
                all.extend(held.values().flat_map(|s| s.iter().collect::<Vec<_>>()));
            }
            for (i, a) in all.iter().enumerate() {
                prop_assert!(all[i + 1..].iter().all(|b| !a.overlaps(*b)), "{:?}", all);
            }
            let mut fresh = World::default();
            w.objects.clone().into_iter().rev().for_each(|o| fresh.put(o));
            prop_assert_eq!(fresh.decide(), w.decide());
        }
    }
}
