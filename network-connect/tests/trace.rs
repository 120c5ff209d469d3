//! OVN's own northd compiles the rows, and its ovn-trace says where packets go.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "common/daemon.rs"]
mod daemon;

use common::{connect, network, node};
use daemon::Place;
use ovn_schema::sb;
use ovsdb_rs::Server;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// OVN's northd, killed when dropped.
struct Northd(Child);

impl Drop for Northd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn northd(dir: &Path) -> Northd {
    let child = Command::new("ovn-northd")
        .args([
            format!("--ovnnb-db=unix:{}", dir.join("nb.sock").display()),
            format!("--ovnsb-db=unix:{}", dir.join("sb.sock").display()),
            format!("--unixctl={}", dir.join("northd.ctl").display()),
            "-vconsole:off".into(),
        ])
        .env("OVN_RUNDIR", dir)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Northd(child)
}

/// A pod: its switch, MAC address, addresses, and the MAC address of its router's port.
struct Pod {
    name: &'static str,
    mac: &'static str,
    ip: [&'static str; 2],
    router: &'static str,
}

const POD1: Pod =
    Pod { name: "pod1", mac: "0a:58:0a:01:01:0a", ip: ["10.1.1.10", "fd10:0:0:1::10"], router: "0a:58:0a:01:01:01" };
const POD2: Pod =
    Pod { name: "pod2", mac: "0a:58:0a:02:00:0a", ip: ["10.2.0.10", "fd20::10"], router: "0a:58:0a:02:00:01" };

/// A network with one pod as OVN-Kubernetes has it on node `n1`: a router, a switch, the port between them, and routes out
/// (northd looks at policies of what has a route). `ports` are the router's addresses with the next hops of these routes.
fn base(id: u32, pod: &Pod, ports: [(&str, &str); 2], (router, switch, port): (&str, &str, &str)) -> Value {
    let (router, switch) = (format!("cluster_udn_c{id}_{router}"), format!("cluster_udn_c{id}_{switch}"));
    let port = format!("{port}{switch}");
    let (networks, hops) = (ports.map(|(network, _)| network), ports.map(|(_, hop)| hop));
    json!([
        {"op": "insert", "table": "Logical_Router_Static_Route", "uuid-name": "r4", "row": {"ip_prefix": "0.0.0.0/0", "nexthop": hops[0]}},
        {"op": "insert", "table": "Logical_Router_Static_Route", "uuid-name": "r6", "row": {"ip_prefix": "::/0", "nexthop": hops[1]}},
        {"op": "insert", "table": "Logical_Router_Port", "uuid-name": "rp",
         "row": {"name": port, "mac": pod.router, "networks": ["set", networks]}},
        {"op": "insert", "table": "Logical_Router", "row": {"name": router, "ports": ["named-uuid", "rp"],
         "static_routes": ["set", [["named-uuid", "r4"], ["named-uuid", "r6"]]]}},
        {"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "sp", "row": {"name": format!("to-{port}"),
         "type": "router", "addresses": "router", "options": ["map", [["router-port", port]]]}},
        {"op": "insert", "table": "Logical_Switch_Port", "uuid-name": "pod",
         "row": {"name": pod.name, "addresses": format!("{} {} {}", pod.mac, pod.ip[0], pod.ip[1])}},
        {"op": "insert", "table": "Logical_Switch", "row": {"name": switch,
         "ports": ["set", [["named-uuid", "sp"], ["named-uuid", "pod"]]]}},
    ])
}

/// Where a packet from a pod ends: whether it reaches the other one.
fn reaches(dir: &Path, from: &Pod, to: &Pod, destination: &str, more: &str) -> bool {
    let (switch, v6) = (
        if from.name == "pod1" { "cluster_udn_c1_n1" } else { "cluster_udn_c2_ovn_layer2_switch" },
        destination.contains(':'),
    );
    let (ip, source) = if v6 { ("ip6", from.ip[1]) } else { ("ip4", from.ip[0]) };
    let flow = format!(
        "inport == \"{}\" && eth.src == {} && eth.dst == {} && {ip}.src == {source} && {ip}.dst == {destination} && ip.ttl == 64{more}",
        from.name, from.mac, from.router
    );
    let out = Command::new("ovn-trace")
        .args([
            "--no-leader-only",
            "--minimal",
            "--ct=new",
            &format!("--db=unix:{}", dir.join("sb.sock").display()),
            switch,
            &flow,
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.contains(&format!("output(\"{}\")", to.name))
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_take_the_connect_router_and_only_while_there_is_one() {
    if !needs::installed(&["ovn-northd", "ovn-trace"]) {
        return;
    }
    let p = Place::new().await;
    let dir = p.dir.path().to_path_buf();
    let southbound = Server::new();
    southbound.add_file(&dir.join("sb.db"), Some(&sb::Database::schema())).await.unwrap();
    southbound.listen(&format!("punix:{}", dir.join("sb.sock").display())).await.unwrap();
    p.run(base(
        1,
        &POD1,
        [("10.1.1.1/24", "10.1.1.2"), ("fd10:0:0:1::1/64", "fd10:0:0:1::2")],
        ("ovn_cluster_router", "n1", "rtos-"),
    ))
    .await;
    p.run(base(
        2,
        &POD2,
        [("10.2.0.1/16", "10.2.0.2"), ("fd20::1/64", "fd20::2")],
        ("transit_router", "ovn_layer2_switch", "trtos-"),
    ))
    .await;
    let ids = json!(["map", [["k8s.ovn.org/kind", "Service"], ["k8s.ovn.org/network", "cluster_udn_c2"]]]);
    let vips = json!(["map", [["10.96.0.5:80", "10.2.0.10:8080"]]]);
    p.run(json!([{"op": "insert", "table": "Load_Balancer", "row": {"name": "Service_ns2/s_TCP_cluster",
        "protocol": "tcp", "vips": vips, "external_ids": ids}}]))
        .await;
    let _northd = northd(&dir);
    let nad = ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition");
    p.put("net1", nad.0, nad.1, network(1, "layer3", "10.1.0.0/16/24,fd10::/48/64").1);
    p.put("net2", nad.0, nad.1, network(2, "layer2", "10.2.0.0/16,fd20::/64").1);
    p.put("n1", "v1", "Node", node("n1", 1, json!({"cluster_udn_c1": ["10.1.1.0/24", "fd10:0:0:1::/64"]})).1);
    let _daemon = p.start(&["--service-cidr=10.96.0.0/16"]);
    let echo = " && icmp4.type == 8";
    let echo6 = " && icmp6.type == 128";
    let pods = || {
        [
            reaches(&dir, &POD1, &POD2, POD2.ip[0], echo),
            reaches(&dir, &POD2, &POD1, POD1.ip[0], echo),
            reaches(&dir, &POD1, &POD2, POD2.ip[1], echo6),
            reaches(&dir, &POD2, &POD1, POD1.ip[1], echo6),
        ]
    };
    let service = || reaches(&dir, &POD1, &POD2, "10.96.0.5", " && tcp.dst == 80");
    let select = vec![json!({"op": "select", "table": "Datapath_Binding", "where": [], "columns": ["tunnel_key"]})];
    let compiled = async || {
        let results = southbound.transact(sb::Database::NAME, select.clone()).await.unwrap();
        results[0]["rows"].as_array().map_or(0, Vec::len) == 4
    };
    wait_until!("northd has compiled", compiled().await);
    assert_eq!((pods(), service()), ([false; 4], false));
    let ranges: &[(&str, u8)] = &[("192.168.0.0/16", 24), ("fd01::/112", 120)];
    let join = |connectivity: &[&str]| {
        p.put("ab", "k8s.ovn.org/v1", "ClusterNetworkConnect", connect("ab", ranges, connectivity).1);
    };
    join(&["PodNetwork", "ServiceNetwork"]);
    wait_until!(
        format!("pods and the service are reached: {:?} {}", pods(), service()),
        pods() == [true; 4] && service()
    );
    join(&["PodNetwork"]);
    wait_until!("pods alone are reached", pods() == [true; 4] && !service());
    p.remove("ab");
    wait_until!("nothing is reached", pods() == [false; 4]);
}
