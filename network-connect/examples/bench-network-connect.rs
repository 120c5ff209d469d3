//! `make bench-network-connect`: 200 networks on 500 nodes in four resources; a start from nothing, a start with everything
//! there, and a node that comes and goes.
//!
//! `bench-network-connect PROGRAM [NETWORKS NODES]`

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use ovn_schema::nb;
use ovsdb_rs::Server;
use ovsdb_rs::client::{Client, Config, Event, TableRequest};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

/// So many networks fit on a router with keys for 500 nodes.
const RESOURCES: usize = 4;

fn write(dir: &Path, name: &str, object: &Value) {
    std::fs::write(dir.join("resources").join(format!("{name}.json")), object.to_string()).unwrap();
}

fn network(id: usize) -> Value {
    let config = json!({"type": "ovn-k8s-cni-overlay", "name": format!("net{id}"), "topology": "layer3", "role": "primary",
        "subnets": format!("10.{}.{}.0/20/29", id / 16, id % 16 * 16)});
    json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {
        "name": format!("net{id}"), "namespace": format!("ns{id}"), "labels": {"group": (id % RESOURCES).to_string()},
        "annotations": {"k8s.ovn.org/network-id": (id + 1).to_string()},
        "ownerReferences": [{"kind": "ClusterUserDefinedNetwork", "name": format!("net{id}"), "controller": true}],
    }, "spec": {"config": config.to_string()}})
}

fn node(id: usize, networks: usize) -> Value {
    let subnet = |net: usize| {
        let at = id * 8;
        format!("10.{}.{}.{}/29", net / 16, net % 16 * 16 + at / 256, at % 256)
    };
    let subnets: serde_json::Map<String, Value> =
        (0..networks).map(|n| (format!("net{n}"), json!(subnet(n)))).collect();
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node{id}"), "annotations": {
        "k8s.ovn.org/node-id": id.to_string(), "k8s.ovn.org/node-chassis-id": format!("chassis{id}"),
        "k8s.ovn.org/node-subnets": Value::Object(subnets).to_string(),
    }}})
}

fn connect(n: usize) -> Value {
    json!({"apiVersion": "k8s.ovn.org/v1", "kind": "ClusterNetworkConnect", "metadata": {"name": format!("all{n}")}, "spec": {
        "networkSelectors": [{"networkSelectionType": "ClusterUserDefinedNetworks", "clusterUserDefinedNetworkSelector":
            {"networkSelector": {"matchLabels": {"group": n.to_string()}}}}],
        "connectSubnets": [{"cidr": format!("172.{}.0.0/14", 16 + 4 * n), "networkPrefix": 22}],
        "connectivity": ["PodNetwork", "ServiceNetwork"],
    }})
}

fn start(program: &str, dir: &Path) -> Child {
    Command::new(program)
        .args([
            format!("--folder={}", dir.join("resources").display()),
            format!("--ovnnb-db=unix:{}", dir.join("nb.sock").display()),
            format!("--unixctl={}", dir.join("ctl").display()),
            format!("--log-file={}", dir.join("log").display()),
            "-vconsole:off".into(),
            "--zone=node0".into(),
        ])
        .envs(["OVS_RUNDIR", "OVN_RUNDIR", "OVS_LOGDIR", "OVN_LOGDIR"].map(|v| (v, dir)))
        .env("OVS_SYSLOG_METHOD", "null")
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Processor time of a process so far (proc_pid_stat(5)): ticks of 10 ms.
fn processor(process: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    Duration::from_millis(10 * (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()))
}

fn memory(process: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap().trim().to_string()
}

/// Waits until the database has so many router ports and static routes.
async fn until(client: &Client, events: &mut UnboundedReceiver<Event>, ports: usize, routes: usize) {
    loop {
        let count = |table| client.replica(|r| r.rows(table).count());
        if count("Logical_Router_Port") == ports && count("Logical_Router_Static_Route") == routes {
            return;
        }
        events.recv().await.unwrap();
    }
}

async fn settled(process: u32) {
    let mut last = processor(process);
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = processor(process);
        if now - last <= Duration::from_millis(10) {
            return;
        }
        last = now;
    }
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |n: usize, default| args.get(n).map_or(default, |a| a.parse().unwrap());
    let (networks, nodes) = (number(2, 200), number(3, 500));
    let program = args.get(1).expect("the path of network-connect");
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    std::fs::create_dir(dir.join("resources")).unwrap();
    let server = Server::new();
    server.add_file(&dir.join("nb.db"), Some(&nb::Database::schema())).await.unwrap();
    server.listen(&format!("punix:{}", dir.join("nb.sock").display())).await.unwrap();
    let routers = (0..networks).map(
        |n| json!({"op": "insert", "table": "Logical_Router", "row": {"name": format!("net{n}_ovn_cluster_router")}}),
    );
    let switches = (0..networks)
        .map(|n| json!({"op": "insert", "table": "Logical_Switch", "row": {"name": format!("net{n}_node0")}}));
    server.transact(nb::Database::NAME, routers.chain(switches).collect()).await.unwrap();
    (0..networks).for_each(|n| write(dir, &format!("net{n}"), &network(n)));
    (0..nodes).for_each(|n| write(dir, &format!("node{n}"), &node(n, networks)));
    (0..RESOURCES).for_each(|n| write(dir, &format!("connect{n}"), &connect(n)));

    let tables = ["Logical_Router_Port", "Logical_Router_Static_Route"];
    let config = tables
        .iter()
        .fold(Config::in_process(&server, nb::Database::NAME), |c, t| c.table(t, TableRequest::columns(["_uuid"; 0])));
    let (client, mut events) = Client::start(config);
    // Each network has a port for each node, and the other side of this node's.
    let (ports, routes) = (networks * (nodes + 1), networks * nodes);
    println!("{networks} networks on {nodes} nodes: {ports} router ports, {routes} routes");
    for what in ["from nothing", "with all rows there"] {
        let again = what != "from nothing";
        if again {
            // A node that comes meanwhile tells when all the others are looked at.
            write(dir, "new", &node(nodes, networks));
        }
        let began = Instant::now();
        let mut child = start(program, dir);
        let more = if again { networks } else { 0 };
        until(&client, &mut events, ports + more, routes + more).await;
        let wall = began.elapsed();
        settled(child.id()).await;
        println!(
            "start {what}: rows there after {wall:.1?}, processor time {:.2?}, memory {}",
            processor(child.id()),
            memory(child.id())
        );
        if again {
            std::fs::remove_file(dir.join("resources/new.json")).unwrap();
            until(&client, &mut events, ports, routes).await;
        }
        let mut took = Vec::new();
        let before = processor(child.id());
        for _ in 0..5 {
            let began = Instant::now();
            write(dir, "new", &node(nodes, networks));
            until(&client, &mut events, ports + networks, routes + networks).await;
            took.push(began.elapsed());
            std::fs::remove_file(dir.join("resources/new.json")).unwrap();
            until(&client, &mut events, ports, routes).await;
        }
        took.sort();
        println!(
            "  a node more: {:.1?} in the median, {:.1?} at most; processor time of coming and going {:.1?}",
            took[2],
            took[4],
            (processor(child.id()) - before) / 5
        );
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(dir.join("ctl")).unwrap();
    }
}
