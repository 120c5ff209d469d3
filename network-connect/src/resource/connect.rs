//! `ClusterNetworkConnect` (k8s.ovn.org/v1).

use super::{Meta, Selector};
use crate::address::{Family, Subnet};
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The annotation with the subnets of connected networks.
pub const SUBNETS: &str = "k8s.ovn.org/network-connect-subnet";
/// The annotation with the datapath key of the connect router.
pub const ROUTER_KEY: &str = "k8s.ovn.org/connect-router-tunnel-key";

/// A field that is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// The field's path, as `spec.connectSubnets[0].cidr`.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

impl Invalid {
    /// Names the field.
    pub fn new(field: impl Into<String>, why: impl std::fmt::Display) -> Invalid {
        Invalid { field: field.into(), why: why.to_string() }
    }
}

/// The resource as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterNetworkConnect {
    /// Name, annotations and so on.
    pub meta: Meta,
    /// What is to be connected, or the first field that is wrong.
    pub spec: Result<Arc<Spec>, Invalid>,
    /// The conditions that it has.
    pub conditions: Vec<Condition>,
    /// `status.status`.
    pub status: String,
}

/// A condition of the resource's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True` or `False`.
    pub status: String,
    /// One word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When `status` changed.
    pub last_transition_time: String,
}

impl Condition {
    /// As the API has it.
    pub fn json(&self) -> Json {
        serde_json::json!({
            "type": self.kind,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": self.last_transition_time,
        })
    }

    /// Whether both say the same, whenever they began to.
    pub fn says(&self, other: &Condition) -> bool {
        self.status == other.status && self.reason == other.reason && self.message == other.message
    }
}

/// A valid specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Which networks.
    pub selections: Vec<Selection>,
    /// Where links get their addresses from: at most one of each family, IPv4 first.
    pub ranges: Vec<Range>,
    /// Pods reach each other.
    pub pods: bool,
    /// Services are reached.
    pub services: bool,
}

/// A part of the networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Networks of `ClusterUserDefinedNetwork`s with these labels.
    Cluster(Selector),
    /// The primary networks of namespaces with these labels.
    Namespaces(Selector),
}

/// One of `connectSubnets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// All addresses.
    pub cidr: Subnet,
    /// The prefix length of a network's block.
    pub prefix: u8,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    network_selectors: Vec<RawSelector>,
    connect_subnets: Vec<RawSubnet>,
    connectivity: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSubnet {
    cidr: String,
    network_prefix: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSelector {
    network_selection_type: String,
    cluster_user_defined_network_selector: Option<ByNetwork>,
    primary_user_defined_network_selector: Option<ByNamespace>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ByNetwork {
    network_selector: Selector,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ByNamespace {
    namespace_selector: Selector,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    status: String,
    conditions: Vec<Condition>,
}

impl ClusterNetworkConnect {
    /// Reads the resource. What is wrong with its specification is kept with it; a malformed status counts as none.
    pub fn read(meta: Meta, object: &Json) -> ClusterNetworkConnect {
        let status: RawStatus = object.get("status").and_then(|s| RawStatus::deserialize(s).ok()).unwrap_or_default();
        let spec = object.get("spec").unwrap_or(&Json::Null);
        ClusterNetworkConnect {
            meta,
            spec: Spec::read(spec).map(Arc::new),
            conditions: status.conditions,
            status: status.status,
        }
    }

    /// The condition of a type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }
}

impl Spec {
    /// Reads and checks a specification as the published validation rules do.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn read(json: &Json) -> Result<Spec, Invalid> {
        let raw = RawSpec::deserialize(json).map_err(|e| Invalid::new("spec", e))?;
        let selections: Result<_, _> = raw.network_selectors.iter().enumerate().map(|(i, s)| selection(i, s)).collect();
        let selections: Vec<Selection> = selections?;
        let mut kinds = BTreeSet::new();
        if let Some(twice) = raw.network_selectors.iter().find(|s| !kinds.insert(&s.network_selection_type)) {
            let why = format!("{} is given twice", twice.network_selection_type);
            return Err(Invalid::new("spec.networkSelectors", why));
        }
        if selections.is_empty() {
            return Err(Invalid::new("spec.networkSelectors", "at least one selector is needed"));
        }
        let (pods, services) = connectivity(&raw.connectivity)?;
        Ok(Spec { selections, ranges: ranges(&raw.connect_subnets)?, pods, services })
    }

    /// The range of a family.
    pub fn range(&self, family: Family) -> Option<&Range> {
        self.ranges.iter().find(|r| r.cidr.family() == family)
    }
}

fn selection(i: usize, raw: &RawSelector) -> Result<Selection, Invalid> {
    let at = format!("spec.networkSelectors[{i}]");
    let need = |field: &str| Invalid::new(format!("{at}.{field}"), format!("{} needs it", raw.network_selection_type));
    let (field, selector, selection): (_, _, fn(Selector) -> Selection) = match raw.network_selection_type.as_str() {
        "ClusterUserDefinedNetworks" => {
            let field = "clusterUserDefinedNetworkSelector";
            let given = raw.cluster_user_defined_network_selector.as_ref().ok_or_else(|| need(field))?;
            (format!("{field}.networkSelector"), &given.network_selector, Selection::Cluster)
        }
        "PrimaryUserDefinedNetworks" => {
            let field = "primaryUserDefinedNetworkSelector";
            let given = raw.primary_user_defined_network_selector.as_ref().ok_or_else(|| need(field))?;
            (format!("{field}.namespaceSelector"), &given.namespace_selector, Selection::Namespaces)
        }
        other => {
            let why =
                format!("{other:?}: only ClusterUserDefinedNetworks or PrimaryUserDefinedNetworks can be selected");
            return Err(Invalid::new(format!("{at}.networkSelectionType"), why));
        }
    };
    match selector.problem() {
        Some((inner, why)) => Err(Invalid::new(format!("{at}.{field}.{inner}"), why)),
        None => Ok(selection(selector.clone())),
    }
}

fn ranges(raw: &[RawSubnet]) -> Result<Vec<Range>, Invalid> {
    const FIELD: &str = "spec.connectSubnets";
    if raw.is_empty() || raw.len() > 2 {
        return Err(Invalid::new(FIELD, format!("{} subnets: one or two are needed", raw.len())));
    }
    let one = |(i, raw): (usize, &RawSubnet)| {
        let cidr = Subnet::strict(&raw.cidr).map_err(|e| Invalid::new(format!("{FIELD}[{i}].cidr"), e))?;
        let bits = cidr.family().bits();
        let prefix = u8::try_from(raw.network_prefix).ok().filter(|p| (1..bits).contains(p));
        let field = format!("{FIELD}[{i}].networkPrefix");
        let Some(prefix) = prefix else {
            return Err(Invalid::new(field, format!("{} is not between 1 and {}", raw.network_prefix, bits - 1)));
        };
        if prefix <= cidr.prefix() {
            return Err(Invalid::new(field, format!("{prefix} is not longer than the prefix of {cidr}")));
        }
        Ok(Range { cidr, prefix })
    };
    let mut ranges = raw.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    ranges.sort_by_key(|r| r.cidr.family());
    if let [a, b] = ranges.as_slice() {
        if a.cidr.family() == b.cidr.family() {
            return Err(Invalid::new(FIELD, format!("{} and {} are of one IP family", a.cidr, b.cidr)));
        }
        let (ours, theirs) = (a.cidr.family().bits() - a.prefix, b.cidr.family().bits() - b.prefix);
        if ours != theirs {
            let why = format!("networkPrefix /{} leaves {ours} host bits and /{} leaves {theirs}", a.prefix, b.prefix);
            return Err(Invalid::new(FIELD, why));
        }
    }
    Ok(ranges)
}

fn connectivity(raw: &[String]) -> Result<(bool, bool), Invalid> {
    const FIELD: &str = "spec.connectivity";
    let kinds: BTreeSet<&str> = raw.iter().map(String::as_str).collect();
    if kinds.is_empty() {
        return Err(Invalid::new(FIELD, "PodNetwork, ServiceNetwork or both are needed"));
    }
    if kinds.len() != raw.len() {
        return Err(Invalid::new(FIELD, "a value is given twice"));
    }
    match kinds.iter().find(|k| !["PodNetwork", "ServiceNetwork"].contains(k)) {
        Some(other) => Err(Invalid::new(FIELD, format!("{other:?} is neither PodNetwork nor ServiceNetwork"))),
        None => Ok((kinds.contains("PodNetwork"), kinds.contains("ServiceNetwork"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(subnets: Json) -> Json {
        json!({
            "networkSelectors": [{
                "networkSelectionType": "ClusterUserDefinedNetworks",
                "clusterUserDefinedNetworkSelector": {"networkSelector": {"matchLabels": {"a": "b"}}},
            }],
            "connectSubnets": subnets,
            "connectivity": ["PodNetwork"],
        })
    }

    fn field(json: &Json) -> String {
        Spec::read(json).map_or_else(|e| e.field, |_| "valid".into())
    }

    #[test]
    fn the_subnets_follow_the_published_rules() {
        let subnet = |cidr: &str, prefix: i64| json!({"cidr": cidr, "networkPrefix": prefix});
        let cases = [
            (json!([subnet("192.168.0.0/16", 24)]), "valid"),
            (json!([subnet("fd01::/112", 120), subnet("192.168.0.0/16", 24)]), "valid"),
            (json!([subnet("fd01::/48", 64)]), "valid"),
            (json!([]), "spec.connectSubnets"),
            (json!([subnet("192.168.0.1/16", 24)]), "spec.connectSubnets[0].cidr"),
            (json!([subnet("192.168.0.0", 24)]), "spec.connectSubnets[0].cidr"),
            (json!([subnet("192.168.0.0/16", 16)]), "spec.connectSubnets[0].networkPrefix"),
            (json!([subnet("192.168.0.0/16", 32)]), "spec.connectSubnets[0].networkPrefix"),
            (json!([subnet("fd01::/112", 128)]), "spec.connectSubnets[0].networkPrefix"),
            (json!([subnet("10.0.0.0/16", 24), subnet("10.1.0.0/16", 24)]), "spec.connectSubnets"),
            (json!([subnet("10.0.0.0/16", 24), subnet("fd01::/112", 121)]), "spec.connectSubnets"),
        ];
        for (subnets, expected) in cases {
            assert_eq!(field(&spec(subnets.clone())), expected, "{subnets}");
        }
    }

    #[test]
    fn other_fields_are_named() {
        let valid = spec(json!([{"cidr": "192.168.0.0/16", "networkPrefix": 24}]));
        let with = |path: &str, value: Json| {
            let mut json = valid.clone();
            *json.pointer_mut(path).expect("the field") = value;
            field(&json)
        };
        assert_eq!(with("/connectivity", json!([])), "spec.connectivity");
        assert_eq!(with("/connectivity", json!(["PodNetwork", "PodNetwork"])), "spec.connectivity");
        assert_eq!(with("/connectivity", json!(["Pods"])), "spec.connectivity");
        assert_eq!(with("/networkSelectors", json!([])), "spec.networkSelectors");
        let kind = "/networkSelectors/0/networkSelectionType";
        assert_eq!(with(kind, json!("DefaultNetwork")), "spec.networkSelectors[0].networkSelectionType");
        assert_eq!(
            with(kind, json!("PrimaryUserDefinedNetworks")),
            "spec.networkSelectors[0].primaryUserDefinedNetworkSelector"
        );
        assert_eq!(with("/connectSubnets", json!(7)), "spec");
    }
}
