//! The resources: what a source hands over as JSON, read once into types that cannot be wrong.

pub mod connect;
pub mod crd;
pub mod network;
pub mod node;
pub mod selector;

pub use connect::{ClusterNetworkConnect, Condition, Invalid, Spec};
pub use network::{Attachment, Layer, Network, Owner};
pub use node::Node;
pub use selector::{Labels, Selector};

use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The kinds of resources that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `ClusterNetworkConnect`.
    Connect,
    /// `ClusterUserDefinedNetwork`.
    ClusterNetwork,
    /// `UserDefinedNetwork`.
    UserNetwork,
    /// `NetworkAttachmentDefinition`.
    Attachment,
    /// `Namespace`.
    Namespace,
    /// `Node`.
    Node,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::Connect, Kind::ClusterNetwork, Kind::UserNetwork, Kind::Attachment, Kind::Namespace, Kind::Node];

    /// Its API group, version and name.
    pub fn api(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Kind::Connect => ("k8s.ovn.org", "v1", "ClusterNetworkConnect"),
            Kind::ClusterNetwork => ("k8s.ovn.org", "v1", "ClusterUserDefinedNetwork"),
            Kind::UserNetwork => ("k8s.ovn.org", "v1", "UserDefinedNetwork"),
            Kind::Attachment => ("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition"),
            Kind::Namespace => ("", "v1", "Namespace"),
            Kind::Node => ("", "v1", "Node"),
        }
    }

    /// The name of its collection in the API.
    pub fn plural(self) -> &'static str {
        match self {
            Kind::Connect => "clusternetworkconnects",
            Kind::ClusterNetwork => "clusteruserdefinednetworks",
            Kind::UserNetwork => "userdefinednetworks",
            Kind::Attachment => "network-attachment-definitions",
            Kind::Namespace => "namespaces",
            Kind::Node => "nodes",
        }
    }

    /// Whether its objects belong to namespaces.
    pub fn is_namespaced(self) -> bool {
        matches!(self, Kind::UserNetwork | Kind::Attachment)
    }

    /// The kind of an object.
    pub fn of(object: &Json) -> Option<Kind> {
        let kind = object.get("kind")?.as_str()?;
        let group = object.get("apiVersion")?.as_str()?.rsplit_once('/').map_or("", |(group, _)| group);
        Kind::ALL.into_iter().find(|k| k.api().2 == kind && k.api().0 == group)
    }
}

/// The name of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty where it has none.
    pub namespace: String,
    /// Its name there.
    pub name: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.api().2;
        match self.namespace.as_str() {
            "" => write!(f, "{kind} {}", self.name),
            namespace => write!(f, "{kind} {namespace}/{}", self.name),
        }
    }
}

/// What all resources have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// The name.
    pub name: String,
    /// The namespace; empty where the kind has none.
    pub namespace: String,
    /// The unique ID.
    pub uid: String,
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// When the resource was made; empty where nobody says.
    pub creation_timestamp: String,
    /// What the resource belongs to.
    pub owner_references: Vec<OwnerReference>,
}

/// What a resource belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OwnerReference {
    /// The owner's kind.
    pub kind: String,
    /// The owner's name.
    pub name: String,
    /// Whether the owner manages the resource.
    pub controller: bool,
}

/// An object's metadata. What does not parse is left out.
pub fn meta(object: &Json) -> Meta {
    object.get("metadata").and_then(|m| Meta::deserialize(m).ok()).unwrap_or_default()
}

/// A thing that can change, as units of the zone's derivation read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Changed {
    /// A `ClusterNetworkConnect`.
    Connect(Arc<str>),
    /// Which `ClusterNetworkConnect`s there are.
    Connects,
    /// A network, by its number.
    Network(u32),
    /// A node.
    Node(Arc<str>),
    /// The nodes of a zone, for each zone.
    Zones,
    /// Namespaces.
    Namespaces,
}

/// All resources.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    connects: BTreeMap<Arc<str>, Arc<ClusterNetworkConnect>>,
    attachments: BTreeMap<Name, Attachment>,
    /// The attachments of each network.
    of_network: FxHashMap<u32, BTreeSet<Name>>,
    namespaces: BTreeMap<String, Labels>,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
    problems: BTreeMap<Name, Vec<Invalid>>,
}

impl Resources {
    /// Takes a resource over as it is now (none: it is gone). Tells what changed.
    pub fn apply(&mut self, name: &Name, object: Option<&Json>) -> Vec<Changed> {
        self.problems.remove(name);
        let meta = object.map(meta);
        match name.kind {
            Kind::Connect => self.connect(name, meta.zip(object)),
            Kind::Node => self.node(name, meta.as_ref()),
            Kind::Namespace => {
                let labels = meta.map(|m| m.labels);
                let old = self.namespaces.get(&name.name).cloned();
                if old == labels {
                    return Vec::new();
                }
                match labels {
                    Some(labels) => drop(self.namespaces.insert(name.name.clone(), labels)),
                    None => drop(self.namespaces.remove(&name.name)),
                }
                vec![Changed::Namespaces]
            }
            Kind::Attachment | Kind::ClusterNetwork | Kind::UserNetwork => {
                let read = meta.zip(object).map_or(Ok(None), |(meta, object)| match name.kind {
                    Kind::Attachment => network::attachment(&meta, object),
                    kind => network::defined(&meta, object, kind == Kind::ClusterNetwork),
                });
                let attachment = read.unwrap_or_else(|e| {
                    self.problem(name, e);
                    None
                });
                self.attach(name, attachment)
            }
        }
    }

    fn problem(&mut self, name: &Name, invalid: Invalid) {
        tracing::warn!("{name}: {invalid}");
        self.problems.entry(name.clone()).or_default().push(invalid);
    }

    fn connect(&mut self, name: &Name, object: Option<(Meta, &Json)>) -> Vec<Changed> {
        let key: Arc<str> = name.name.as_str().into();
        let new = object.map(|(meta, object)| Arc::new(ClusterNetworkConnect::read(meta, object)));
        let old = match &new {
            Some(new) => self.connects.insert(key.clone(), new.clone()),
            None => self.connects.remove(&key),
        };
        match (&old, &new) {
            (Some(a), Some(b)) if a == b => Vec::new(),
            (Some(_), Some(_)) => vec![Changed::Connect(key)],
            _ => vec![Changed::Connect(key), Changed::Connects],
        }
    }

    fn node(&mut self, name: &Name, meta: Option<&Meta>) -> Vec<Changed> {
        let key: Arc<str> = name.name.as_str().into();
        let new = meta.map(|meta| {
            let (node, wrong) = Node::read(meta);
            wrong.into_iter().for_each(|e| self.problem(name, e));
            Arc::new(node)
        });
        let old = match &new {
            Some(new) => self.nodes.insert(key.clone(), new.clone()),
            None => self.nodes.remove(&key),
        };
        if old == new {
            return Vec::new();
        }
        // Heartbeats change nodes all the time; only what is read counts.
        let zone = |n: &Option<Arc<Node>>| n.as_ref().map(|n| (n.zone.clone(), n.id));
        match zone(&old) == zone(&new) {
            true => vec![Changed::Node(key)],
            false => vec![Changed::Node(key), Changed::Zones],
        }
    }

    fn attach(&mut self, name: &Name, new: Option<Attachment>) -> Vec<Changed> {
        let old = match &new {
            Some(new) => self.attachments.insert(name.clone(), new.clone()),
            None => self.attachments.remove(name),
        };
        if old == new {
            return Vec::new();
        }
        let mut ids = BTreeSet::new();
        if let Some(old) = &old {
            let id = old.network.id;
            ids.insert(id);
            if let Some(of) = self.of_network.get_mut(&id) {
                of.remove(name);
                if of.is_empty() {
                    self.of_network.remove(&id);
                }
            }
        }
        if let Some(new) = &new {
            ids.insert(new.network.id);
            self.of_network.entry(new.network.id).or_default().insert(name.clone());
        }
        ids.into_iter().map(Changed::Network).collect()
    }

    /// The `ClusterNetworkConnect`s.
    pub fn connects(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<ClusterNetworkConnect>)> {
        self.connects.iter()
    }

    /// A `ClusterNetworkConnect`.
    pub fn connect_named(&self, name: &str) -> Option<&Arc<ClusterNetworkConnect>> {
        self.connects.get(name)
    }

    /// A network: as the first of its attachments has it.
    pub fn network(&self, id: u32) -> Option<&Arc<Network>> {
        let first = self.of_network.get(&id)?.first()?;
        self.attachments.get(first).map(|a| &a.network)
    }

    /// The attachments of networks.
    pub fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.attachments.values()
    }

    /// Namespaces with their labels.
    pub fn namespaces(&self) -> impl Iterator<Item = (&String, &Labels)> {
        self.namespaces.iter()
    }

    /// Nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Node>)> {
        self.nodes.iter()
    }

    /// A node.
    pub fn node_named(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    /// What is wrong with resources other than `ClusterNetworkConnect`s.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.problems.iter().flat_map(|(name, wrong)| wrong.iter().map(move |w| format!("{name}: {w}")))
    }
}
