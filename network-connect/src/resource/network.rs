//! User-defined networks: as `NetworkAttachmentDefinition`s say them, or `(Cluster)UserDefinedNetwork`s themselves.

use super::{Labels, Meta, Selector};
use crate::address::Subnet;
use crate::resource::connect::Invalid;
use serde::Deserialize;
use serde_json::Value as Json;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The annotation with a network's number.
pub const NETWORK_ID: &str = "k8s.ovn.org/network-id";
/// The annotation with the datapath keys that a network has.
pub const TUNNEL_KEYS: &str = "k8s.ovn.org/tunnel-keys";
/// The label of namespaces whose pods have a primary user-defined network.
pub const PRIMARY_LABEL: &str = "k8s.ovn.org/primary-user-defined-network";

/// The join subnets of user-defined networks that name none.
const JOIN: [&str; 2] = ["100.65.0.0/16", "fd99::/64"];
/// The transit subnets of layer 2 networks that name none.
const TRANSIT: [&str; 2] = ["100.88.0.0/16", "fd97::/64"];

/// The topology of a network that can be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// One switch and one transit router.
    Two,
    /// One switch for each node, and a cluster router.
    Three,
}

/// The name under which annotations list a connected network: `layer3_7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The topology.
    pub layer: Layer,
    /// The network's number.
    pub id: u32,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer{}_{}", if self.layer == Layer::Two { 2 } else { 3 }, self.id)
    }
}

impl FromStr for Owner {
    type Err = ();

    fn from_str(text: &str) -> Result<Owner, ()> {
        let (layer, id) = match (text.strip_prefix("layer2_"), text.strip_prefix("layer3_")) {
            (Some(id), _) => (Layer::Two, id),
            (_, Some(id)) => (Layer::Three, id),
            _ => return Err(()),
        };
        Ok(Owner { layer, id: id.parse().map_err(|_| ())? })
    }
}

/// A network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its number.
    pub id: u32,
    /// Its name in the cluster.
    pub name: Arc<str>,
    /// Its topology; none where it is not one that can be connected, as localnet.
    pub layer: Option<Layer>,
    /// Whether it is the primary network of its pods.
    pub primary: bool,
    /// Where pods have their addresses.
    pub subnets: Vec<Subnet>,
    /// Subnets between its own routers and switches.
    pub inner: Vec<Subnet>,
    /// How nodes reach each other, where that is not the overlay: `no-overlay` or `evpn`.
    pub transport: Option<String>,
}

impl Network {
    /// The name in annotations.
    pub fn owner(&self) -> Option<Owner> {
        self.layer.map(|layer| Owner { layer, id: self.id })
    }

    fn scoped(&self, name: &str) -> String {
        format!("{}_{name}", self.name.replace(['-', '/'], "."))
    }

    /// What names of the network's switches begin with.
    pub fn switch_prefix(&self) -> String {
        self.scoped("")
    }

    /// The router to which the connect router is linked.
    pub fn router(&self) -> String {
        self.scoped(if self.layer == Some(Layer::Two) { "transit_router" } else { "ovn_cluster_router" })
    }

    /// The switch of its pods on a node.
    pub fn switch(&self, node: &str) -> String {
        self.scoped(if self.layer == Some(Layer::Two) { "ovn_layer2_switch" } else { node })
    }

    /// The router's port to that switch.
    pub fn router_to_switch(&self, node: &str) -> String {
        let prefix = if self.layer == Some(Layer::Two) { "trtos-" } else { "rtos-" };
        format!("{prefix}{}", self.switch(node))
    }
}

/// What defines a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A `ClusterUserDefinedNetwork`.
    Cluster,
    /// A `UserDefinedNetwork`, or a `NetworkAttachmentDefinition` of its own.
    Namespaced,
}

/// A network where namespaces have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    /// The network.
    pub network: Arc<Network>,
    /// The labels by which selectors of cluster networks find it.
    pub labels: Labels,
    /// What defines it.
    pub origin: Origin,
    /// The namespaces that have it.
    pub namespaces: Namespaces,
    /// The datapath keys that the network has already.
    pub keys: Vec<u32>,
}

/// Which namespaces have a network.
#[derive(Clone, Debug, PartialEq)]
pub enum Namespaces {
    /// This one.
    Named(String),
    /// Those with such labels.
    Selected(Selector),
}

impl Namespaces {
    /// Whether a namespace is among them.
    pub fn has(&self, name: &str, labels: &Labels) -> bool {
        match self {
            Namespaces::Named(only) => only == name,
            Namespaces::Selected(selector) => selector.selects(labels),
        }
    }
}

/// The configuration within a `NetworkAttachmentDefinition`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct NetConf {
    name: String,
    r#type: String,
    topology: String,
    role: String,
    subnets: String,
    join_subnet: String,
    transit_subnet: String,
    transport: String,
}

fn number(meta: &Meta) -> Result<Option<u32>, Invalid> {
    let field = format!("metadata.annotations[{NETWORK_ID}]");
    let Some(text) = meta.annotations.get(NETWORK_ID) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| Invalid::new(field, format!("{text:?} is not a number")))
}

fn layer(topology: &str) -> Option<Layer> {
    match topology.to_ascii_lowercase().as_str() {
        "layer2" => Some(Layer::Two),
        "layer3" => Some(Layer::Three),
        _ => None,
    }
}

/// Subnets separated by commas; `10.128.0.0/14/23` has the prefix of a node's part behind it.
fn subnets(field: &str, text: &str) -> Result<Vec<Subnet>, Invalid> {
    let entries = text.split(',').map(str::trim).filter(|s| !s.is_empty());
    let one = |entry: &str| {
        let cidr = match entry.match_indices('/').nth(1) {
            Some((at, _)) => &entry[..at],
            None => entry,
        };
        cidr.parse().map_err(|e| Invalid::new(field, e))
    };
    entries.map(one).collect()
}

fn defaults(list: &[&str]) -> Vec<Subnet> {
    list.iter().filter_map(|s| s.parse().ok()).collect()
}

/// The subnets within the network: as configured, or what they are by default.
fn inner(join: Vec<Subnet>, transit: Vec<Subnet>, layer: Option<Layer>) -> Vec<Subnet> {
    let mut out = if join.is_empty() { defaults(&JOIN) } else { join };
    match transit.is_empty() {
        true if layer == Some(Layer::Two) => out.extend(defaults(&TRANSIT)),
        _ => out.extend(transit),
    }
    out
}

/// Reads a `NetworkAttachmentDefinition`; none where it is not of OVN-Kubernetes, or has no number yet.
///
/// # Errors
/// The field that is wrong.
pub fn attachment(meta: &Meta, object: &Json) -> Result<Option<Attachment>, Invalid> {
    const FIELD: &str = "spec.config";
    let config = object.pointer("/spec/config").and_then(Json::as_str).unwrap_or_default();
    if config.is_empty() {
        return Ok(None);
    }
    let conf: NetConf = serde_json::from_str(config).map_err(|e| Invalid::new(FIELD, e))?;
    if conf.r#type != "ovn-k8s-cni-overlay" {
        return Ok(None);
    }
    let Some(id) = number(meta)? else { return Ok(None) };
    let layer = layer(&conf.topology);
    let network = Network {
        id,
        name: conf.name.as_str().into(),
        layer,
        primary: conf.role.eq_ignore_ascii_case("primary"),
        subnets: subnets("spec.config: subnets", &conf.subnets)?,
        inner: inner(
            subnets("spec.config: joinSubnet", &conf.join_subnet)?,
            subnets("spec.config: transitSubnet", &conf.transit_subnet)?,
            layer,
        ),
        transport: Some(conf.transport).filter(|t| !t.is_empty()),
    };
    let cluster = meta.owner_references.iter().any(|o| o.controller && o.kind == "ClusterUserDefinedNetwork");
    let keys = meta.annotations.get(TUNNEL_KEYS).and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default();
    Ok(Some(Attachment {
        network: Arc::new(network),
        labels: meta.labels.clone(),
        origin: if cluster { Origin::Cluster } else { Origin::Namespaced },
        namespaces: Namespaces::Named(meta.namespace.clone()),
        keys,
    }))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SubnetOf {
    Plain(String),
    Parted { cidr: String },
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LayerSpec {
    role: String,
    subnets: Vec<SubnetOf>,
    join_subnets: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NetworkSpec {
    topology: String,
    layer2: Option<LayerSpec>,
    layer3: Option<LayerSpec>,
    transport: String,
}

/// Reads a `ClusterUserDefinedNetwork` (`cluster`) or `UserDefinedNetwork`. It counts as a network where it says its number
/// itself; otherwise its `NetworkAttachmentDefinition`s do.
///
/// # Errors
/// The field that is wrong.
pub fn defined(meta: &Meta, object: &Json, cluster: bool) -> Result<Option<Attachment>, Invalid> {
    let Some(id) = number(meta)? else { return Ok(None) };
    let at = if cluster { "spec.network" } else { "spec" };
    let spec = object.pointer(if cluster { "/spec/network" } else { "/spec" }).unwrap_or(&Json::Null);
    let spec = NetworkSpec::deserialize(spec).map_err(|e| Invalid::new(at, e))?;
    let layer = layer(&spec.topology);
    let (name, part) = match layer {
        Some(Layer::Two) => ("layer2", spec.layer2.unwrap_or_default()),
        Some(Layer::Three) => ("layer3", spec.layer3.unwrap_or_default()),
        None => ("", LayerSpec::default()),
    };
    let field = |inner: &str| format!("{at}.{name}.{inner}");
    let cidrs = part.subnets.iter().map(|s| match s {
        SubnetOf::Plain(cidr) | SubnetOf::Parted { cidr } => cidr.as_str(),
    });
    let namespaces = match cluster {
        true => {
            let selector = object.pointer("/spec/namespaceSelector").unwrap_or(&Json::Null);
            let selector = Selector::deserialize(selector).map_err(|e| Invalid::new("spec.namespaceSelector", e))?;
            Namespaces::Selected(selector)
        }
        false => Namespaces::Named(meta.namespace.clone()),
    };
    let full = if cluster { format!("cluster_udn_{}", meta.name) } else { format!("{}_{}", meta.namespace, meta.name) };
    let network = Network {
        id,
        name: full.into(),
        layer,
        primary: part.role.eq_ignore_ascii_case("primary"),
        subnets: subnets(&field("subnets"), &cidrs.collect::<Vec<_>>().join(","))?,
        inner: inner(subnets(&field("joinSubnets"), &part.join_subnets.join(","))?, Vec::new(), layer),
        transport: Some(spec.transport.to_ascii_lowercase()).filter(|t| !t.is_empty() && t != "geneve"),
    };
    Ok(Some(Attachment {
        network: Arc::new(network),
        labels: meta.labels.clone(),
        origin: if cluster { Origin::Cluster } else { Origin::Namespaced },
        namespaces,
        keys: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::meta;
    use serde_json::json;

    fn nad(config: &Json, extra: Json) -> Json {
        let mut object = json!({"metadata": {"name": "n", "namespace": "blue",
            "annotations": {"k8s.ovn.org/network-id": "7"}}, "spec": {"config": config.to_string()}});
        if let (Some(meta), Some(extra)) = (object["metadata"].as_object_mut(), extra.as_object()) {
            meta.extend(extra.clone());
        }
        object
    }

    fn config() -> Json {
        json!({"cniVersion": "1.1.0", "type": "ovn-k8s-cni-overlay", "name": "cluster_udn_blue-net", "topology": "layer3",
            "role": "primary", "subnets": "10.10.0.0/16/24,fd10::/48/64", "netAttachDefName": "blue/n"})
    }

    #[test]
    fn a_network_with_its_names() {
        let object = nad(
            &config(),
            json!({"ownerReferences": [
            {"kind": "ClusterUserDefinedNetwork", "name": "blue-net", "controller": true}]}),
        );
        let a = attachment(&meta(&object), &object).expect("valid").expect("a network");
        assert_eq!((a.network.id, a.origin, a.network.primary), (7, Origin::Cluster, true));
        assert_eq!(format!("{:?}", a.network.subnets), "[10.10.0.0/16, fd10::/48]");
        assert_eq!(format!("{:?}", a.network.inner), "[100.65.0.0/16, fd99::/64]");
        assert_eq!(a.network.router(), "cluster_udn_blue.net_ovn_cluster_router");
        assert_eq!(a.network.router_to_switch("n-1"), "rtos-cluster_udn_blue.net_n-1");
        assert_eq!(a.network.owner().map(|o| o.to_string()), Some("layer3_7".into()));
        assert_eq!("layer3_7".parse(), Ok(Owner { layer: Layer::Three, id: 7 }));
    }

    #[test]
    fn a_layer_2_network_has_one_switch() {
        let mut config = config();
        config["topology"] = json!("layer2");
        config["subnets"] = json!("10.1.0.0/16");
        let object = nad(&config, json!({}));
        let a = attachment(&meta(&object), &object).expect("valid").expect("a network");
        assert_eq!(a.network.router(), "cluster_udn_blue.net_transit_router");
        assert_eq!(a.network.router_to_switch("n-1"), "trtos-cluster_udn_blue.net_ovn_layer2_switch");
        assert_eq!(a.network.inner.len(), 4);
    }

    #[test]
    fn what_is_not_a_network_of_ours_is_left_out_and_what_is_wrong_is_named() {
        let read = |object: &Json| attachment(&meta(object), object);
        assert_eq!(read(&nad(&json!({"type": "macvlan"}), json!({}))), Ok(None));
        assert_eq!(read(&nad(&config(), json!({"annotations": {}}))), Ok(None));
        let mut wrong = config();
        wrong["subnets"] = json!("10.10.0.0/99");
        assert_eq!(read(&nad(&wrong, json!({}))).map_err(|e| e.field), Err("spec.config: subnets".into()));
        let bad = json!({"annotations": {"k8s.ovn.org/network-id": "seven"}});
        let field = "metadata.annotations[k8s.ovn.org/network-id]";
        assert_eq!(read(&nad(&config(), bad)).map_err(|e| e.field), Err(field.into()));
    }

    #[test]
    fn a_cluster_network_that_says_its_number_is_one() {
        let object = json!({"metadata": {"name": "green", "annotations": {"k8s.ovn.org/network-id": "4"}}, "spec": {
            "namespaceSelector": {"matchLabels": {"team": "green"}},
            "network": {"topology": "Layer3", "layer3": {"role": "Primary", "subnets": [{"cidr": "10.4.0.0/16", "hostSubnet": 24}]}}}});
        let a = defined(&meta(&object), &object, true).expect("valid").expect("a network");
        assert_eq!((&*a.network.name, a.network.layer), ("cluster_udn_green", Some(Layer::Three)));
        assert!(a.namespaces.has("x", &Labels::from([("team".into(), "green".into())])));
        assert!(!a.namespaces.has("x", &Labels::new()));
    }
}
