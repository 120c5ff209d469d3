//! User-defined networks of a Kubernetes cluster joined and parted under traffic (OKEP-5224): what pods see.

#[path = "../../../network-connect/tests/common/api.rs"]
mod api;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod networks;

use anyhow::{Result, bail};
use cluster::Cluster;
use common::{Guard, able};
use hw_tests::lab::Lab;
use hw_tests::network::programs;
use networks::{C2, P11, P12, P21, P22, P32, P41, P51, P52, Pod};
use serde_json::{Value, json};

const BOTH: &[&str] = &["PodNetwork", "ServiceNetwork"];

/// Selects cluster networks by name.
fn by_network(names: &[&str]) -> Value {
    let expression = json!({"key": "network", "operator": "In", "values": names});
    json!({"networkSelectionType": "ClusterUserDefinedNetworks", "clusterUserDefinedNetworkSelector":
        {"networkSelector": {"matchExpressions": [expression]}}})
}

/// Selects the primary networks of namespaces.
fn by_namespace(names: &[&str]) -> Value {
    let expression = json!({"key": "namespace", "operator": "In", "values": names});
    json!({"networkSelectionType": "PrimaryUserDefinedNetworks", "primaryUserDefinedNetworkSelector":
        {"namespaceSelector": {"matchExpressions": [expression]}}})
}

fn join_all(c: &Cluster, networks: &[&str], connectivity: &[&str]) {
    c.join("all", by_network(networks), [("192.168.0.0/16", 24), ("fd01::/112", 120)], connectivity);
}

fn join_six(c: &Cluster) {
    c.join("six", by_namespace(&["ns1", "ns4"]), [("172.30.0.0/16", 24), ("fd02::/112", 120)], BOTH);
}

/// Pods that the two resources join, in both directions, on one node and across nodes.
const JOINED: [(Pod, Pod); 6] = [(P11, P22), (P22, P11), (P12, P21), (P32, P11), (P32, P21), (P41, P12)];

/// Pods that nobody joins.
const APART: [(Pod, Pod); 4] = [(P41, P21), (P51, P11), (P51, P22), (P32, P52)];

fn step(what: &str, f: impl FnOnce() -> Result<()>) {
    let began = std::time::Instant::now();
    if let Err(e) = f() {
        panic!("{what}: {e:#}");
    }
    println!("{what}: {:.1?}", began.elapsed());
}

fn all_ready(c: &Cluster) -> Result<()> {
    ["all", "six"].iter().try_for_each(|name| c.ready(name))
}

#[test]
fn networks_are_joined_and_parted_under_traffic() {
    let _one = Guard::take();
    if !able(&[]) {
        return;
    }
    assert!(programs().expect("programs").join("network-connect").exists(), "network-connect is not built: make test");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
    let api = runtime.block_on(api::Api::start());
    let lab = Lab::new("iscnc", &std::env::temp_dir().join("isthmus-connect-test")).expect("lab");
    let began = std::time::Instant::now();
    let mut c = Cluster::start(lab, api).unwrap_or_else(|e| panic!("{e:#}"));
    println!("the cluster starts: {:.1?}", began.elapsed());

    step("pods of one network reach each other, of others not", || {
        [(P11, P12), (P21, P22), (P51, P52)].iter().try_for_each(|(a, b)| c.reach(*a, *b))?;
        [(P11, P22), (P21, P12), (P41, P12)].iter().try_for_each(|(a, b)| c.no_reach(*a, *b))
    });
    // All that follows concerns none of these.
    let mut streams = Vec::new();
    for (a, b) in [(P11, P12), (P21, P22), (P51, P52)] {
        streams.push(c.stream(a, b).expect("stream"));
    }
    let within = c.hold(P52, &P51.ips()[1], 8000).expect("connections within a network");

    join_all(&c, &["c1", "c2", "c3"], BOTH);
    join_six(&c);
    step("pods of joined networks reach each other", || {
        all_ready(&c)?;
        JOINED.iter().try_for_each(|(a, b)| c.reach(*a, *b))
    });
    step("and no others", || APART.iter().try_for_each(|(a, b)| c.no_reach(*a, *b)));
    let mut kept = Vec::new();
    let service = C2.service();
    for (from, ip, port) in
        [(P11, &P22.ips()[0], 8000), (P21, &P11.ips()[1], 8000), (P12, &service[0], 80), (P11, &service[1], 80)]
    {
        kept.push(c.hold(from, ip, port).unwrap_or_else(|e| panic!("{e:#}")));
    }
    let joined = c.annotation("all");
    streams.push(c.stream(P11, P21).expect("stream"));

    step("a network leaves, and the others stay", || {
        join_all(&c, &["c1", "c2"], BOTH);
        c.no_reach(P32, P11)?;
        c.no_reach(P21, P32)?;
        c.reach(P12, P21)
    });
    step("it comes back with the addresses that it had", || {
        join_all(&c, &["c1", "c2", "c3"], BOTH);
        c.reach(P32, P11)?;
        c.reach(P21, P32)?;
        if c.annotation("all") == joined { Ok(()) } else { bail!("{joined} became {}", c.annotation("all")) }
    });
    for held in kept.drain(2..) {
        c.held(&held).unwrap_or_else(|e| panic!("services while a network leaves and returns: {e:#}"));
    }
    step("a node leaves: pods of layer 3 networks there are not reached", || {
        c.remove_node(2);
        c.no_reach(P21, P12)
    });
    step("it returns", || {
        c.add_node(2);
        c.reach(P21, P12)?;
        c.reach(P32, P21)?;
        all_ready(&c)
    });
    step("connections and datagrams of those who stayed went on", || {
        let last = streams.pop();
        last.iter().try_for_each(|s| c.whole(s).map(|said| println!("  {said}")))?;
        kept.drain(..).try_for_each(|held| c.held(&held).map(|h| println!("  longest stall {} us", h.longest_stall)))
    });

    step("services alone: pods are kept apart, services are not", || {
        join_all(&c, &["c1", "c2", "c3"], &["ServiceNetwork"]);
        c.no_reach(P11, P22)?;
        c.no_reach(P32, P21)?;
        for (from, ip) in [(P11, &service[0]), (P12, &service[1]), (P32, &service[0])] {
            let held = c.hold(from, ip, 80)?;
            c.held(&held)?;
        }
        // The other resource joins pods still.
        c.reach(P41, P12)?;
        [(P11, P12), (P21, P22)].iter().try_for_each(|(a, b)| c.reach(*a, *b))
    });
    step("pods alone", || {
        join_all(&c, &["c1", "c2", "c3"], &["PodNetwork"]);
        c.reach(P11, P22)?;
        c.reach(P32, P21)
    });
    step("parted", || {
        c.part("all");
        c.part("six");
        [(P11, P22), (P21, P12), (P32, P11), (P41, P12)].iter().try_for_each(|(a, b)| c.no_reach(*a, *b))
    });
    step("no datagram of other connections is lost in all that time", || {
        for s in &streams {
            println!("  {}", c.whole(s)?);
        }
        c.held(&within).map(drop)
    });
}
