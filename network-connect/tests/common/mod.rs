//! Resources for tests.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it, and fails by panicking")]

use network_connect::manager::{Decision, Settings, decide};
use network_connect::resource::{Kind, Name, Resources};
use serde_json::{Value, json};

pub const SUBNETS: &str = "k8s.ovn.org/network-connect-subnet";
pub const ROUTER_KEY: &str = "k8s.ovn.org/connect-router-tunnel-key";

pub fn name(kind: Kind, namespace: &str, name: &str) -> Name {
    Name { kind, namespace: namespace.into(), name: name.into() }
}

/// The network of a `ClusterUserDefinedNetwork` called `c<id>`, as the definition of its attachment in namespace `ns<id>`
/// has it. `layer` is `layer2` or `layer3`.
pub fn network(id: u32, layer: &str, subnets: &str) -> (Name, Value) {
    let config = json!({"type": "ovn-k8s-cni-overlay", "name": format!("cluster_udn_c{id}"), "topology": layer,
        "role": "primary", "subnets": subnets});
    let object = json!({
        "metadata": {
            "name": format!("c{id}"), "namespace": format!("ns{id}"), "labels": {"joined": "yes", "id": id.to_string()},
            "annotations": {"k8s.ovn.org/network-id": id.to_string()},
            "ownerReferences": [{"kind": "ClusterUserDefinedNetwork", "name": format!("c{id}"), "controller": true}],
        },
        "spec": {"config": config.to_string()},
    });
    (name(Kind::Attachment, &format!("ns{id}"), &format!("c{id}")), object)
}

/// A resource that joins cluster networks by label.
pub fn connect(of: &str, subnets: &[(&str, u8)], connectivity: &[&str]) -> (Name, Value) {
    let subnets: Vec<Value> = subnets.iter().map(|(c, p)| json!({"cidr": c, "networkPrefix": p})).collect();
    let object = json!({
        "apiVersion": "k8s.ovn.org/v1", "kind": "ClusterNetworkConnect", "metadata": {"name": of, "annotations": {}},
        "spec": {
            "networkSelectors": [{
                "networkSelectionType": "ClusterUserDefinedNetworks",
                "clusterUserDefinedNetworkSelector": {"networkSelector": {"matchLabels": {"joined": "yes"}}},
            }],
            "connectSubnets": subnets,
            "connectivity": connectivity,
        },
    });
    (name(Kind::Connect, "", of), object)
}

/// A node with its subnets by network name.
pub fn node(of: &str, id: u32, subnets: Value) -> (Name, Value) {
    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": of, "annotations": {
        "k8s.ovn.org/node-id": id.to_string(), "k8s.ovn.org/node-chassis-id": format!("chassis-{of}"),
        "k8s.ovn.org/zone-name": of, "k8s.ovn.org/node-subnets": subnets.to_string(),
    }}});
    (name(Kind::Node, "", of), object)
}

pub fn settings() -> Settings {
    Settings {
        services: vec!["10.96.0.0/16".parse().unwrap()],
        masquerade: vec!["169.254.169.0/29".parse().unwrap(), "fd69::/125".parse().unwrap()],
    }
}

/// Resources, and the objects that they were read from.
#[derive(Default)]
pub struct World {
    pub resources: Resources,
    pub objects: std::collections::BTreeMap<Name, Value>,
}

impl World {
    pub fn put(&mut self, (name, object): (Name, Value)) {
        self.resources.apply(&name, Some(&object));
        self.objects.insert(name, object);
    }

    pub fn remove(&mut self, name: &Name) {
        self.resources.apply(name, None);
        self.objects.remove(name);
    }

    pub fn decide(&self) -> std::collections::BTreeMap<std::sync::Arc<str>, Decision> {
        decide(&self.resources, &settings())
    }

    /// The decision about one resource.
    pub fn decision(&self, of: &str) -> Decision {
        self.decide().remove(of).unwrap()
    }

    /// Writes what is decided into the resources, until nothing changes any more. Tells how often that was.
    pub fn settle(&mut self) -> usize {
        for round in 0..5 {
            let mut changed = false;
            for (of, d) in self.decide() {
                let name = name(Kind::Connect, "", &of);
                let mut object = self.objects[&name].clone();
                for (annotation, text) in [(SUBNETS, &d.subnets), (ROUTER_KEY, &d.router_key)] {
                    if let Some(text) = text {
                        object["metadata"]["annotations"][annotation] = json!(text);
                        changed = true;
                    }
                }
                self.put((name, object));
            }
            if !changed {
                return round;
            }
        }
        panic!("decisions do not settle: {:?}", self.decide());
    }

    /// An annotation of a resource.
    pub fn annotation(&self, of: &str, annotation: &str) -> String {
        let object = &self.objects[&name(Kind::Connect, "", of)];
        object["metadata"]["annotations"][annotation].as_str().unwrap_or_default().to_string()
    }
}
