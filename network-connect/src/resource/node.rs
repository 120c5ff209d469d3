//! Nodes, by what their annotations say.

use super::Meta;
use super::connect::Invalid;
use crate::address::Subnet;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The annotation with a node's number.
pub const NODE_ID: &str = "k8s.ovn.org/node-id";
/// The annotation with a node's chassis.
pub const CHASSIS: &str = "k8s.ovn.org/node-chassis-id";
/// The annotation with a node's zone.
pub const ZONE: &str = "k8s.ovn.org/zone-name";
/// The annotation with a node's subnets in each network.
pub const SUBNETS: &str = "k8s.ovn.org/node-subnets";

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its number; none as long as it has none.
    pub id: Option<u32>,
    /// The chassis in the southbound database.
    pub chassis: Option<String>,
    /// The zone whose databases it belongs to.
    pub zone: Option<String>,
    /// Its subnets by network.
    pub subnets: BTreeMap<String, Vec<Subnet>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Node {
    /// Reads the annotations. What is wrong is named, and the rest counts.
    pub fn read(meta: &Meta) -> (Node, Vec<Invalid>) {
        let mut wrong = Vec::new();
        let field = |name: &str| format!("metadata.annotations[{name}]");
        let get = |name: &str| meta.annotations.get(name).filter(|v| !v.is_empty());
        let id = get(NODE_ID).and_then(|text| {
            let id = text.parse().ok();
            if id.is_none() {
                wrong.push(Invalid::new(field(NODE_ID), format!("{text:?} is not a number")));
            }
            id
        });
        let subnets: BTreeMap<String, OneOrMore> = match get(SUBNETS).map(|text| serde_json::from_str(text)) {
            Some(Ok(map)) => map,
            Some(Err(e)) => {
                wrong.push(Invalid::new(field(SUBNETS), e));
                BTreeMap::new()
            }
            None => BTreeMap::new(),
        };
        let mut read = BTreeMap::new();
        for (network, texts) in subnets {
            let texts = match texts {
                OneOrMore::One(text) => vec![text],
                OneOrMore::More(texts) => texts,
            };
            match texts.iter().map(|t| t.parse()).collect::<Result<Vec<Subnet>, _>>() {
                Ok(subnets) => drop(read.insert(network, subnets)),
                Err(e) => wrong.push(Invalid::new(field(SUBNETS), format!("{network}: {e}"))),
            }
        }
        (Node { id, chassis: get(CHASSIS).cloned(), zone: get(ZONE).cloned(), subnets: read }, wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::meta;
    use serde_json::json;

    #[test]
    fn annotations_are_read_and_wrong_ones_named() {
        let object = json!({"metadata": {"name": "n1", "annotations": {
            "k8s.ovn.org/node-id": "3", "k8s.ovn.org/node-chassis-id": "c", "k8s.ovn.org/zone-name": "z",
            "k8s.ovn.org/node-subnets": "{\"a\": [\"10.1.2.0/24\", \"fd10:2::/64\"], \"b\": \"10.2.2.0/24\", \"c\": \"x\"}"}}});
        let (node, wrong) = Node::read(&meta(&object));
        assert_eq!((node.id, node.chassis.as_deref(), node.zone.as_deref()), (Some(3), Some("c"), Some("z")));
        assert_eq!(format!("{:?}", node.subnets), r#"{"a": [10.1.2.0/24, fd10:2::/64], "b": [10.2.2.0/24]}"#);
        assert_eq!(wrong.len(), 1);
        let object = json!({"metadata": {"name": "n1", "annotations": {"k8s.ovn.org/node-id": "-3"}}});
        let (node, wrong) = Node::read(&meta(&object));
        assert_eq!((node.id, wrong.len()), (None, 1));
    }
}
