//! User-defined networks as OVN-Kubernetes has them in each node's northbound database, and as its resources say them.

use hw_tests::zones::{attach, insert, router_port, switch_port};
use serde_json::{Value, json};

/// A `ClusterUserDefinedNetwork` called `c<id>`.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    /// Its number.
    pub id: u32,
    /// 2 or 3.
    pub layer: u8,
    /// IPv4, IPv6.
    pub families: [bool; 2],
}

/// A pod of a network on a node.
#[derive(Clone, Copy, Debug)]
pub struct Pod {
    pub net: Net,
    pub node: u32,
}

/// The nodes' numbers.
pub const NODES: [u32; 2] = [1, 2];

pub const C1: Net = Net { id: 1, layer: 3, families: [true, true] };
pub const C2: Net = Net { id: 2, layer: 2, families: [true, true] };
pub const C3: Net = Net { id: 3, layer: 3, families: [true, false] };
pub const C4: Net = Net { id: 4, layer: 2, families: [false, true] };
/// Nobody joins it.
pub const C5: Net = Net { id: 5, layer: 2, families: [true, true] };
pub const NETS: [Net; 5] = [C1, C2, C3, C4, C5];

pub const P11: Pod = Pod { net: C1, node: 1 };
pub const P12: Pod = Pod { net: C1, node: 2 };
pub const P21: Pod = Pod { net: C2, node: 1 };
pub const P22: Pod = Pod { net: C2, node: 2 };
pub const P32: Pod = Pod { net: C3, node: 2 };
pub const P41: Pod = Pod { net: C4, node: 1 };
pub const P51: Pod = Pod { net: C5, node: 1 };
pub const P52: Pod = Pod { net: C5, node: 2 };
pub const PODS: [Pod; 8] = [P11, P12, P21, P22, P32, P41, P51, P52];

/// Datapath keys of distributed switches and routers begin here (OVN-Kubernetes' base for networks).
const KEYS: u32 = 16_711_683;

fn set(values: &[String]) -> Value {
    json!(["set", values])
}

fn map(pairs: &[(&str, String)]) -> Value {
    json!(["map", pairs.iter().map(|(k, v)| json!([k, v])).collect::<Vec<_>>()])
}

/// A row that has no name, in a column of a router.
fn route(router: &str, n: usize, row: Value) -> [Value; 2] {
    let name = format!("route{n}-{router}");
    let mut new = insert("Logical_Router_Static_Route", &name, row);
    if let Some(columns) = new["row"].as_object_mut() {
        columns.remove("name");
    }
    [new, attach("Logical_Router", router, "static_routes", &name)]
}

impl Net {
    pub fn name(self) -> String {
        format!("cluster_udn_c{}", self.id)
    }

    /// Of these texts, one for each family, those of the network's families.
    fn of<T: Clone>(self, both: [T; 2]) -> Vec<T> {
        both.into_iter().zip(self.families).filter(|(_, is)| *is).map(|(t, _)| t).collect()
    }

    /// The configuration's subnets: of layer 3 with the length of a node's part.
    fn subnets(self) -> String {
        let (v4, v6) = if self.layer == 3 { ("/16/24", "/48/64") } else { ("/16", "/64") };
        self.of([format!("10.{}.0.0{v4}", self.id), format!("fd10:{}::{v6}", self.id)]).join(",")
    }

    /// The subnets of pods on a node.
    pub fn node_subnets(self, node: u32) -> Vec<String> {
        let id = self.id;
        match self.layer {
            3 => self.of([format!("10.{id}.{node}.0/24"), format!("fd10:{id}:0:{node}::/64")]),
            _ => self.of([format!("10.{id}.0.0/16"), format!("fd10:{id}::/64")]),
        }
    }

    /// An address of the subnet on a node, with prefix length.
    fn addresses(self, node: u32, host: &str) -> Vec<String> {
        let with = |subnet: &String| {
            let (base, length) = subnet.split_once('/').expect("a subnet");
            let base = base.strip_suffix('0').unwrap_or(base);
            format!("{base}{host}/{length}")
        };
        self.node_subnets(node).iter().map(with).collect()
    }

    /// The switch of pods on a node.
    fn switch(self, node: u32) -> String {
        match self.layer {
            3 => format!("{}_n{node}", self.name()),
            _ => format!("{}_ovn_layer2_switch", self.name()),
        }
    }

    fn mac(self, node: u32, last: u32) -> String {
        let node = if self.layer == 3 { node } else { 0 };
        format!("0a:58:0a:{:02x}:{node:02x}:{last:02x}", self.id)
    }

    /// The definition by which namespace `ns<id>` has the network.
    pub fn attachment(self) -> Value {
        let (id, name) = (self.id, format!("c{}", self.id));
        let config = json!({"type": "ovn-k8s-cni-overlay", "name": self.name(), "topology": format!("layer{}", self.layer),
            "role": "primary", "subnets": self.subnets()});
        json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {
            "name": name, "namespace": format!("ns{id}"), "labels": {"network": name},
            "annotations": {"k8s.ovn.org/network-id": id.to_string()},
            "ownerReferences": [{"kind": "ClusterUserDefinedNetwork", "name": name, "controller": true}],
        }, "spec": {"config": config.to_string()}})
    }

    /// What OVN-Kubernetes has of the network in a node's northbound database.
    pub fn rows(self, node: u32) -> Vec<Value> {
        let mut out = if self.layer == 3 { self.routed(node) } else { self.switched(node) };
        out.extend(self.services(node));
        out
    }

    /// A switch for each node and a router; a transit switch to the routers of other nodes.
    fn routed(self, node: u32) -> Vec<Value> {
        let (name, switch) = (self.name(), self.switch(node));
        let (router, transit, join) =
            (format!("{name}_ovn_cluster_router"), format!("{name}_transit_switch"), format!("{name}_join"));
        let key = (KEYS + self.id).to_string();
        let mut out = vec![
            insert("Logical_Switch", &switch, json!({})),
            insert("Logical_Switch", &join, json!({})),
            insert(
                "Logical_Switch",
                &transit,
                json!({"other_config": map(&[("interconn-ts", transit.clone()), ("requested-tnl-key", key)])}),
            ),
            insert("Logical_Router", &router, json!({})),
        ];
        let to_switch = format!("rtos-{switch}");
        let row = json!({"mac": self.mac(node, 1), "networks": set(&self.addresses(node, "1"))});
        out.extend(router_port(&router, &to_switch, row));
        out.extend(router_side(&switch, &format!("stor-{switch}"), &to_switch, None));
        for pod in PODS.iter().filter(|p| p.net.id == self.id && p.node == node) {
            out.extend(switch_port(&switch, &pod.port(), json!({"addresses": pod.row_addresses()})));
        }
        // Gateways are out of this scenario; northd looks at policies of what has a route, as to them.
        let to_join = format!("rtoj-{router}");
        let networks = self.of(["100.65.0.1/16".to_string(), "fd99::1/64".to_string()]);
        out.extend(router_port(&router, &to_join, json!({"mac": "0a:58:64:41:00:01", "networks": set(&networks)})));
        out.extend(router_side(&join, &format!("jtor-{router}"), &to_join, None));
        let gateways = self.of([format!("100.65.0.{}", node + 1), format!("fd99::{}", node + 1)]);
        let mut routes: Vec<Value> = Vec::new();
        for (subnet, hop) in self.node_subnets(node).iter().zip(gateways) {
            routes.push(json!({"ip_prefix": subnet, "nexthop": hop, "policy": "src-ip"}));
        }
        let transit_mac = |node: u32| format!("0a:58:64:58:00:{:02x}", node + 1);
        let hops = |node: u32| self.of([format!("100.88.0.{}", node + 1), format!("fd97::{}", node + 1)]);
        let with_length = |node: u32| self.of([format!("100.88.0.{}/16", node + 1), format!("fd97::{}/64", node + 1)]);
        let to_transit = format!("{name}_rtots-n{node}");
        let row = json!({"mac": transit_mac(node), "networks": set(&with_length(node))});
        out.extend(router_port(&router, &to_transit, row));
        out.extend(router_side(&transit, &format!("{name}_tstor-n{node}"), &to_transit, Some(node)));
        for other in NODES.into_iter().filter(|n| *n != node) {
            let addresses = format!("{} {}", transit_mac(other), with_length(other).join(" "));
            let options = map(&[("requested-tnl-key", other.to_string()), ("requested-chassis", format!("n{other}"))]);
            let row = json!({"type": "remote", "addresses": addresses, "options": options});
            out.extend(switch_port(&transit, &format!("{name}_tstor-n{other}"), row));
            for (subnet, hop) in self.node_subnets(other).iter().zip(hops(other)) {
                routes.push(json!({"ip_prefix": subnet, "nexthop": hop}));
            }
        }
        out.extend(routes.into_iter().enumerate().flat_map(|(n, row)| route(&router, n, row)));
        out
    }

    /// A switch for all nodes, and the transit router that every zone has.
    fn switched(self, node: u32) -> Vec<Value> {
        let (name, switch) = (self.name(), self.switch(node));
        let router = format!("{name}_transit_router");
        let keys = [2 * self.id, 2 * self.id + 1].map(|n| (KEYS + 100 + n).to_string());
        let config = map(&[("interconn-ts", switch.clone()), ("requested-tnl-key", keys[0].clone())]);
        let mut out = vec![
            insert("Logical_Switch", &switch, json!({"other_config": config})),
            insert("Logical_Router", &router, json!({"options": map(&[("requested-tnl-key", keys[1].clone())])})),
        ];
        let to_switch = format!("trtos-{switch}");
        let row = json!({"mac": self.mac(0, 1), "networks": set(&self.addresses(node, "1"))});
        out.extend(router_port(&router, &to_switch, row));
        out.extend(router_side(&switch, &format!("stotr-{switch}"), &to_switch, Some(25)));
        for pod in PODS.iter().filter(|p| p.net.id == self.id) {
            let mut options = vec![("requested-tnl-key", (pod.node + 100).to_string())];
            let mut row = json!({"addresses": pod.row_addresses()});
            if pod.node != node {
                options.push(("requested-chassis", format!("n{}", pod.node)));
                row["type"] = json!("remote");
            }
            row["options"] = map(&options);
            out.extend(switch_port(&switch, &pod.port(), row));
        }
        let to_gateway = format!("{name}_trtor-GR_{name}_n{node}");
        let networks = self.of([format!("100.88.0.{}/31", 2 * node), format!("fd97::{}/127", 2 * node)]);
        out.extend(router_port(&router, &to_gateway, json!({"mac": "0a:58:64:58:00:64", "networks": set(&networks)})));
        let hops =
            self.of([("0.0.0.0/0", format!("100.88.0.{}", 2 * node + 1)), ("::/0", format!("fd97::{}", 2 * node + 1))]);
        let row = |(prefix, hop)| json!({"ip_prefix": prefix, "nexthop": hop});
        out.extend(hops.into_iter().map(row).enumerate().flat_map(|(n, row)| route(&router, n, row)));
        out
    }

    /// The service of the network, whose pod on the last node serves it, on the network's switch.
    fn services(self, node: u32) -> Vec<Value> {
        let Some(backend) = PODS.iter().rev().find(|p| p.net.id == self.id) else { return Vec::new() };
        let vips: Vec<(String, String)> = self
            .service()
            .iter()
            .map(|ip| socket(ip, 80))
            .zip(backend.ips().iter().map(|ip| socket(ip, 8000)))
            .collect();
        let vips: Vec<Value> = vips.iter().map(|(vip, pod)| json!([vip, pod])).collect();
        let mut out = Vec::new();
        for protocol in ["tcp", "udp"] {
            let name = format!("Service_ns{}/web_{}_cluster", self.id, protocol.to_uppercase());
            let ids = map(&[
                ("k8s.ovn.org/kind", "Service".into()),
                ("k8s.ovn.org/owner", format!("ns{}/web", self.id)),
                ("k8s.ovn.org/network", self.name()),
            ]);
            let row = json!({"protocol": protocol, "vips": ["map", vips], "external_ids": ids});
            out.push(insert("Load_Balancer", &name, row));
            out.push(attach("Logical_Switch", &self.switch(node), "load_balancer", &name));
        }
        out
    }

    /// The addresses of the network's service.
    pub fn service(self) -> Vec<String> {
        self.of([format!("10.96.0.{}", self.id), format!("fd96::{}", self.id)])
    }
}

/// The switch's side of a router's port, with a key where other zones know it.
fn router_side(switch: &str, name: &str, port: &str, key: Option<u32>) -> [Value; 2] {
    let mut options = vec![("router-port", port.to_string())];
    options.extend(key.map(|key| ("requested-tnl-key", key.to_string())));
    switch_port(switch, name, json!({"type": "router", "addresses": "router", "options": map(&options)}))
}

/// An address with a port.
pub fn socket(ip: &str, port: u16) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

impl Pod {
    /// Its machine.
    pub fn name(self) -> String {
        format!("p{}{}", self.net.id, self.node)
    }

    /// Its logical port.
    pub fn port(self) -> String {
        format!("{}_ns{}_{}", self.net.name(), self.net.id, self.name())
    }

    pub fn mac(self) -> String {
        self.net.mac(self.node, 0x10 + self.node)
    }

    /// Its addresses with prefix length.
    pub fn addresses(self) -> Vec<String> {
        self.net.addresses(self.node, &format!("1{}", self.node))
    }

    /// Its addresses.
    pub fn ips(self) -> Vec<String> {
        self.addresses().iter().filter_map(|a| a.split_once('/')).map(|(ip, _)| ip.to_string()).collect()
    }

    /// Its routers.
    pub fn routers(self) -> Vec<String> {
        let all = self.net.addresses(self.node, "1");
        all.iter().filter_map(|a| a.split_once('/')).map(|(ip, _)| ip.to_string()).collect()
    }

    fn row_addresses(self) -> String {
        format!("{} {}", self.mac(), self.ips().join(" "))
    }
}
