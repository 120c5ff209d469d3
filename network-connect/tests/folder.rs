//! The daemon on a folder and a northbound database.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "common/daemon.rs"]
mod daemon;

use common::{connect, node};
use daemon::Place;
use serde_json::{Value, json};

const CONNECT: (&str, &str) = ("k8s.ovn.org/v1", "ClusterNetworkConnect");

impl Place {
    fn join(&self, of: &str, subnets: &[(&str, u8)], connectivity: &[&str]) {
        self.put(of, CONNECT.0, CONNECT.1, connect(of, subnets, connectivity).1);
    }

    fn node(&self, of: &str, id: u32) {
        let subnets = json!({"cluster_udn_c1": [format!("10.1.{id}.0/24"), format!("fd10:0:0:{id}::/64")]});
        self.put(of, "v1", "Node", node(of, id, subnets).1);
    }

    /// Two joined networks, one of each layer, and two nodes of which one is in another zone.
    async fn two() -> Place {
        let p = Place::new().await;
        p.network(1, "layer3", "10.1.0.0/16/24,fd10::/48/64").await;
        p.network(2, "layer2", "10.2.0.0/16,fd20::/64").await;
        p.node("n1", 1);
        p.node("n2", 2);
        p
    }

    async fn row(&self, table: &str, column: &str, value: &str) -> Value {
        self.rows(table).await.into_iter().find(|r| r[column] == json!(value)).unwrap_or(Value::Null)
    }
}

const BOTH: &[(&str, u8)] = &[("192.168.0.0/16", 24), ("fd01::/112", 120)];

#[tokio::test(flavor = "multi_thread")]
async fn networks_are_joined_parted_and_adopted() {
    let p = Place::two().await;
    p.join("ab", BOTH, &["PodNetwork", "ServiceNetwork"]);
    let before = p.everything().await;
    let daemon = p.start(&[]);
    wait_until!("Success", p.status("ab").contains("status: Success") && p.status("ab").contains("Ready-In-Zone-n1"));

    let ports = [
        "crtor-ab_cluster_udn_c1_n1",
        "crtor-ab_cluster_udn_c1_n2",
        "crtor-ab_cluster_udn_c2",
        "rtocr-cluster_udn_c1_n1_ab",
        "rtocr-cluster_udn_c2_ab",
    ];
    assert_eq!(p.column("Logical_Router_Port", "name").await, ports);
    let local = p.row("Logical_Router_Port", "name", ports[0]).await;
    assert_eq!(local["peer"], ports[3]);
    assert_eq!(local["networks"], json!(["set", ["192.168.1.2/31", "fd01::102/127"]]));
    assert_eq!(local["mac"], "0a:58:c0:a8:01:02");
    assert_eq!(local["options"], json!(["map", [["requested-tnl-key", "258"]]]));
    let remote = p.row("Logical_Router_Port", "name", ports[1]).await;
    assert_eq!(remote["options"], json!(["map", [["requested-chassis", "chassis-n2"], ["requested-tnl-key", "259"]]]));
    assert_eq!(remote["peer"], json!(["set", []]));
    let key = json!(["map", [["requested-tnl-key", "16715779"]]]);
    assert_eq!(p.row("Logical_Router", "name", "connect_router_ab").await["options"], key);
    assert_eq!(
        p.column("Logical_Router_Policy", "match").await,
        [
            r#"inport == "rtos-cluster_udn_c1_n1" && ip4.dst == 10.2.0.0/16"#,
            r#"inport == "rtos-cluster_udn_c1_n1" && ip6.dst == fd20::/64"#,
            r#"inport == "trtos-cluster_udn_c2_ovn_layer2_switch" && ip4.dst == 10.1.0.0/16"#,
            r#"inport == "trtos-cluster_udn_c2_ovn_layer2_switch" && ip6.dst == fd10::/48"#,
        ]
    );
    let mut routes: Vec<String> = Vec::new();
    for r in p.rows("Logical_Router_Static_Route").await {
        routes.push(format!("{} {}", r["ip_prefix"].as_str().unwrap(), r["nexthop"].as_str().unwrap()));
    }
    routes.sort();
    assert_eq!(
        routes,
        [
            "10.1.1.0/24 192.168.1.3",
            "10.1.2.0/24 192.168.1.5",
            "10.2.0.0/16 192.168.0.1",
            "fd10:0:0:1::/64 fd01::103",
            "fd10:0:0:2::/64 fd01::105",
            "fd20::/64 fd01::1"
        ]
    );
    let group = p.row("Load_Balancer_Group", "name", "cnc_svc_ab").await;
    assert_eq!(group["load_balancer"][1].as_array().unwrap().len(), 2, "both networks' cluster IPs: {group}");
    let with_group =
        p.rows("Logical_Switch").await.iter().filter(|s| s["load_balancer_group"] == group["_uuid"]).count();
    assert_eq!(with_group, 2);

    // A restart finds everything as it is, and writes nothing.
    let joined = p.everything().await;
    daemon.kill();
    let daemon = p.start(&[]);
    wait_until!("the restarted daemon is active", daemon.ask("status").contains("active"));
    p.node("n3", 3);
    wait_until!(
        "node n3",
        p.column("Logical_Router_Port", "name").await.contains(&"crtor-ab_cluster_udn_c1_n3".into())
    );
    p.remove("n3");
    wait_until!(
        "node n3 goes",
        !p.column("Logical_Router_Port", "name").await.contains(&"crtor-ab_cluster_udn_c1_n3".into())
    );
    let without_routers =
        |all: Vec<(String, Vec<String>)>| all.into_iter().filter(|(t, _)| t != "Logical_Router").collect::<Vec<_>>();
    assert_eq!(without_routers(p.everything().await), without_routers(joined));

    p.remove("ab");
    let names = |all: &[(String, Vec<String>)]| all.iter().map(|(t, rows)| (t.clone(), rows.len())).collect::<Vec<_>>();
    wait_until!("everything goes", names(&p.everything().await) == names(&before));
    wait_until!("its status goes", p.status("ab").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn services_alone_keep_pods_apart() {
    let p = Place::two().await;
    p.join("ab", BOTH, &["ServiceNetwork"]);
    let _daemon = p.start(&["--service-cidr=10.96.0.0/16"]);
    wait_until!("five rules", p.rows("ACL").await.len() == 4);
    let mut acls: Vec<String> = Vec::new();
    for a in p.rows("ACL").await {
        acls.push(format!("{} {} {}", a["priority"], a["action"].as_str().unwrap(), a["match"].as_str().unwrap()));
    }
    acls.sort();
    let sets = p.column("Address_Set", "name").await;
    assert!(acls[0].starts_with("450 drop (ip4.dst == $a") && acls[0].ends_with(") && ct.new"), "{acls:?}");
    assert!(sets.len() == 2 && sets.iter().all(|s| acls[0].contains(s)), "{sets:?}");
    assert_eq!(acls[1], "475 pass ip4.dst == 10.1.0.0/16 || ip6.dst == fd10::/48");
    assert_eq!(acls[2], "475 pass ip4.dst == 10.2.0.0/16 || ip6.dst == fd20::/64");
    assert_eq!(acls[3], "500 pass (ip4.dst == 10.96.0.0/16)");
    for switch in p.rows("Logical_Switch").await {
        assert_eq!(switch["acls"][1].as_array().unwrap().len(), 3, "{switch}");
    }
    p.join("ab", BOTH, &["PodNetwork"]);
    wait_until!("pods are joined", p.rows("ACL").await.is_empty() && p.rows("Address_Set").await.is_empty());
    wait_until!("services are not", p.rows("Load_Balancer_Group").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_takes_away_what_it_is_about_and_nothing_else() {
    let p = Place::two().await;
    p.network(3, "layer2", "10.3.0.0/16").await;
    p.join("ab", BOTH, &["PodNetwork"]);
    let daemon = p.start(&[]);
    wait_until!("Success", p.status("ab").contains("status: Success"));
    let ready = |count: usize| {
        let p = &p;
        async move { p.rows("Logical_Router_Port").await.len() == count }
    };
    wait_until!("three networks", ready(7).await);

    // A file that does not parse counts as it was.
    std::fs::write(p.dir.path().join("resources/ab.yaml"), "kind: [").unwrap();
    wait_until!("it is said", daemon.log().contains("ab.yaml"));
    assert!(ready(7).await);
    // A wrong field is named, and the resource is taken away.
    let mut object = connect("ab", BOTH, &["PodNetwork"]).1;
    object["spec"]["connectivity"] = json!(["Pods"]);
    p.put("ab", CONNECT.0, CONNECT.1, object);
    wait_until!("the field is named", p.status("ab").contains("spec.connectivity"));
    wait_until!("it goes", ready(0).await);
    p.join("ab", BOTH, &["PodNetwork"]);
    wait_until!("it comes back", ready(7).await);
    // Overlap names both networks.
    p.network(4, "layer2", "10.3.1.0/24").await;
    wait_until!(
        "OverlappingNetworkSubnets",
        p.status("ab").contains("cluster_udn_c3") && p.status("ab").contains("cluster_udn_c4")
    );
    wait_until!("it goes", ready(0).await);
    p.remove("net4");
    wait_until!("it comes back", ready(7).await);
    // A network that is deleted while joined.
    p.remove("net3");
    wait_until!("its link goes", ready(5).await);
    // A router that OVN-Kubernetes has not made yet.
    p.run(json!([{"op": "delete", "table": "Logical_Router", "where": [["name", "==", "cluster_udn_c2_transit_router"]]}])).await;
    wait_until!("the router is named", p.status("ab").contains("cluster_udn_c2_transit_router is not there yet"));
    p.run(json!([{"op": "insert", "table": "Logical_Router", "row": {"name": "cluster_udn_c2_transit_router"}}])).await;
    wait_until!("it comes back", ready(5).await);
    wait_until!("Success", p.status("ab").contains("status: Success"));
    // Nobody changes what subnets were given out of.
    let (before, others) = (p.everything().await, [("172.20.0.0/16", 24), ("fd02::/112", 120)]);
    p.join("ab", &others, &["PodNetwork"]);
    wait_until!("the field is named", p.status("ab").contains("spec.connectSubnets is immutable"));
    p.join("ab", &others, &["PodNetwork", "ServiceNetwork"]);
    wait_until!("another field counts", p.everything().await != before);
    let linked = |with: &'static str| {
        let p = &p;
        async move { p.column("Logical_Router_Port", "networks").await.iter().any(|n| n.contains(with)) }
    };
    assert!(linked("192.168.").await && !linked("172.20.").await);
    drop(daemon);
    let _daemon = p.start(&[]);
    p.remove("ab");
    wait_until!("it is parted", ready(0).await);
    p.join("ab", &others, &["PodNetwork"]);
    wait_until!("it is joined anew", ready(5).await && linked("172.20.").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_refused_is_named_and_the_others_are_written() {
    let p = Place::two().await;
    // Somebody else's port has a name that is needed.
    p.run(json!([
        {"op": "insert", "table": "Logical_Router_Port", "uuid-name": "p",
         "row": {"name": "crtor-ab_cluster_udn_c2", "mac": "00:00:00:00:00:01", "networks": "172.16.0.1/24"}},
        {"op": "insert", "table": "Logical_Router", "row": {"name": "other", "ports": ["named-uuid", "p"]}},
    ]))
    .await;
    p.join("ab", BOTH, &["PodNetwork"]);
    let daemon = p.start(&[]);
    wait_until!("the others are written", p.rows("Logical_Router_Port").await.len() == 5);
    wait_until!(
        "it is named",
        p.status("ab").contains("Logical_Router_Port of ab for network 2")
            && p.status("ab").contains("status: Failure")
    );
    assert!(daemon.ask("debug/problems").contains("is refused"), "{}", daemon.ask("debug/problems"));
}
