//! The `CustomResourceDefinition`: the structure and the rules that OVN-Kubernetes publishes, so that either may install it.

use serde_json::{Value as Json, json};

/// The kinds of selection, with what their selector is made of.
const SELECTIONS: [(&str, &str, &[&str]); 4] = [
    ("ClusterUserDefinedNetworks", "clusterUserDefinedNetworkSelector", &["networkSelector"]),
    ("PrimaryUserDefinedNetworks", "primaryUserDefinedNetworkSelector", &["namespaceSelector"]),
    ("SecondaryUserDefinedNetworks", "secondaryUserDefinedNetworkSelector", &["namespaceSelector", "networkSelector"]),
    ("NetworkAttachmentDefinitions", "networkAttachmentDefinitionSelector", &["namespaceSelector", "networkSelector"]),
];

fn rule(message: impl Into<String>, rule: impl Into<String>) -> Json {
    json!({"message": message.into(), "rule": rule.into()})
}

fn label_selector() -> Json {
    json!({
        "description": "A label selector; an empty one selects everything.",
        "properties": {
            "matchExpressions": {
                "items": {
                    "properties": {
                        "key": {"type": "string"},
                        "operator": {"description": "In, NotIn, Exists or DoesNotExist.", "type": "string"},
                        "values": {"items": {"type": "string"}, "type": "array", "x-kubernetes-list-type": "atomic"},
                    },
                    "required": ["key", "operator"],
                    "type": "object",
                },
                "type": "array",
                "x-kubernetes-list-type": "atomic",
            },
            "matchLabels": {"additionalProperties": {"type": "string"}, "type": "object"},
        },
        "type": "object",
        "x-kubernetes-map-type": "atomic",
    })
}

fn network_selectors() -> Json {
    let mut properties = serde_json::Map::new();
    let mut kinds = vec!["DefaultNetwork"];
    let mut rules = Vec::new();
    for (kind, field, parts) in SELECTIONS {
        let inner: serde_json::Map<String, Json> = parts.iter().map(|p| ((*p).into(), label_selector())).collect();
        properties.insert(field.into(), json!({"properties": inner, "required": parts, "type": "object"}));
        kinds.push(kind);
        rules.push(rule(
            format!("Inconsistent selector: both networkSelectionType {kind} and {field} have to be set or neither"),
            format!(
                "!has(self.networkSelectionType) ? true : has(self.{field}) ? self.networkSelectionType == '{kind}' : self.networkSelectionType != '{kind}'"
            ),
        ));
    }
    properties.insert("networkSelectionType".into(), json!({"enum": kinds, "type": "string"}));
    json!({
        "description": "The networks to connect, by the labels of cluster networks or of namespaces.",
        "items": {
            "properties": properties,
            "required": ["networkSelectionType"],
            "type": "object",
            "x-kubernetes-validations": rules,
        },
        "maxItems": 5,
        "minItems": 1,
        "type": "array",
        "x-kubernetes-list-map-keys": ["networkSelectionType"],
        "x-kubernetes-list-type": "map",
    })
}

fn connect_subnets() -> Json {
    let given = "!has(self.networkPrefix) || !isCIDR(self.cidr) || ";
    let both = "size(self) != 2 || !isCIDR(self[0].cidr) || !isCIDR(self[1].cidr) || cidr(self[0].cidr).ip().family()";
    let bits = |v4: u8, v6: u8| format!("({} - self[0].networkPrefix) == ({} - self[1].networkPrefix)", v4, v6);
    json!({
        "description": "Where the links between networks get their addresses from: at most one CIDR of each IP family. It overlaps with nothing that the connected networks use.",
        "items": {
            "properties": {
                "cidr": {
                    "description": "All addresses of links. A /16 is as much as one router's port keys reach for.",
                    "maxLength": 43,
                    "type": "string",
                    "x-kubernetes-validations": [
                        rule("CIDR must be a valid network address", "isCIDR(self) && cidr(self) == cidr(self).masked()"),
                    ],
                },
                "networkPrefix": {
                    "description": "The prefix length of a network's block: twice as many addresses as nodes in a layer 3 network.",
                    "format": "int32",
                    "maximum": 127,
                    "minimum": 1,
                    "type": "integer",
                },
            },
            "required": ["cidr", "networkPrefix"],
            "type": "object",
            "x-kubernetes-validations": [
                rule(
                    "NetworkPrefix must be longer than the CIDR prefix length",
                    format!("{given}self.networkPrefix > cidr(self.cidr).prefixLength()"),
                ),
                rule(
                    "NetworkPrefix must < 32 for ipv4 CIDR",
                    format!("{given}(cidr(self.cidr).ip().family() != 4 || self.networkPrefix < 32)"),
                ),
            ],
        },
        "maxItems": 2,
        "minItems": 1,
        "type": "array",
        "x-kubernetes-list-type": "atomic",
        "x-kubernetes-validations": [
            rule("connectSubnets is immutable", "self == oldSelf"),
            rule(
                "When 2 CIDRs are set, they must be from different IP families",
                format!("{both} != cidr(self[1].cidr).ip().family()"),
            ),
            rule(
                "For dual-stack, networkPrefix must have matching host bits: (32 - ipv4NetworkPrefix) must equal (128 - ipv6NetworkPrefix)",
                format!(
                    "{both} == cidr(self[1].cidr).ip().family() || (cidr(self[0].cidr).ip().family() == 4 ? {} : {})",
                    bits(32, 128),
                    bits(128, 32)
                ),
            ),
        ],
    })
}

fn status() -> Json {
    let name = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
    let kind = format!(r"^({name}(\.{name})*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$");
    json!({
        "properties": {
            "conditions": {
                "description": "Accepted, and Ready-In-Zone-<zone> for each zone.",
                "items": {
                    "properties": {
                        "lastTransitionTime": {"format": "date-time", "type": "string"},
                        "message": {"maxLength": 32768, "type": "string"},
                        "observedGeneration": {"format": "int64", "minimum": 0, "type": "integer"},
                        "reason": {
                            "maxLength": 1024,
                            "minLength": 1,
                            "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                            "type": "string",
                        },
                        "status": {"enum": ["True", "False", "Unknown"], "type": "string"},
                        "type": {"maxLength": 316, "pattern": kind, "type": "string"},
                    },
                    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
                    "type": "object",
                },
                "type": "array",
                "x-kubernetes-list-map-keys": ["type"],
                "x-kubernetes-list-type": "map",
            },
            "status": {"description": "All conditions in one word.", "enum": ["Success", "Failure"], "type": "string"},
        },
        "type": "object",
    })
}

/// The definition.
pub fn definition() -> Json {
    let spec = json!({
        "properties": {
            "connectSubnets": connect_subnets(),
            "connectivity": {
                "description": "Whether pods reach each other, services of the other networks, or both.",
                "items": {"enum": ["PodNetwork", "ServiceNetwork"], "type": "string"},
                "maxItems": 2,
                "minItems": 1,
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "x-kubernetes-validations": [
                    rule("connectivity cannot contain duplicate values", "self.all(x, self.exists_one(y, x == y))"),
                ],
            },
            "networkSelectors": network_selectors(),
        },
        "required": ["connectSubnets", "connectivity", "networkSelectors"],
        "type": "object",
        "x-kubernetes-validations": [rule(
            "Only ClusterUserDefinedNetworks or PrimaryUserDefinedNetworks can be selected",
            "!self.networkSelectors.exists(i, i.networkSelectionType != 'ClusterUserDefinedNetworks' && i.networkSelectionType != 'PrimaryUserDefinedNetworks')",
        )],
    });
    let schema = json!({
        "description": "Joins user-defined networks of a cluster that are isolated otherwise.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status(),
        },
        "required": ["spec"],
        "type": "object",
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusternetworkconnects.k8s.ovn.org"},
        "spec": {
            "group": "k8s.ovn.org",
            "names": {
                "kind": "ClusterNetworkConnect",
                "listKind": "ClusterNetworkConnectList",
                "plural": "clusternetworkconnects",
                "shortNames": ["cnc"],
                "singular": "clusternetworkconnect",
            },
            "scope": "Cluster",
            "versions": [{
                "additionalPrinterColumns": [
                    {"jsonPath": ".metadata.creationTimestamp", "name": "Age", "type": "date"},
                    {"jsonPath": ".status.status", "name": "Status", "type": "string"},
                ],
                "name": "v1",
                "schema": {"openAPIV3Schema": schema},
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
            }],
        },
    })
}

/// The definition as YAML, for `kubectl apply -f -`.
///
/// # Errors
/// Where the writer of YAML fails.
pub fn yaml() -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(&definition())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    /// Objects with sorted keys and without descriptions.
    fn structure(json: &Json) -> Json {
        match json {
            Json::Object(map) => {
                let keep = |(k, v): &(&String, &Json)| !(*k == "description" && v.is_string());
                let mut entries: Vec<_> = map.iter().filter(keep).map(|(k, v)| (k.clone(), structure(v))).collect();
                entries.sort_by(|a, b| a.0.cmp(&b.0));
                Json::Object(entries.into_iter().collect())
            }
            Json::Array(list) => list.iter().map(structure).collect(),
            other => other.clone(),
        }
    }

    /// The digest of the definition in OVN-Kubernetes 8871cd9 without descriptions and the generator's annotation, keys
    /// sorted.
    const PUBLISHED: &str = "7b0686bdb3a6f1d3fed4efaec15863f940c57fa25b83df36d20a8edaadf805f6";

    #[test]
    fn the_structure_is_the_published_one() {
        let text = structure(&definition()).to_string();
        let digest: String = Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(digest, PUBLISHED);
    }

    #[test]
    fn the_yaml_reads_back() {
        let back: Json = serde_saphyr::from_str(&yaml().expect("YAML")).expect("the definition");
        assert_eq!(structure(&back), structure(&definition()));
    }
}
