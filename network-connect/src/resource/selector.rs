//! Label selectors of Kubernetes.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A label selector: all of its requirements hold. Without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Selector {
    match_labels: Labels,
    match_expressions: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

impl Selector {
    /// Whether labels are selected. An expression that [`Selector::problem`] reports selects nothing.
    pub fn selects(&self, labels: &Labels) -> bool {
        let equal = self.match_labels.iter().all(|(k, v)| labels.get(k) == Some(v));
        equal && self.match_expressions.iter().all(|r| r.holds(labels).unwrap_or(false))
    }

    /// What is wrong with it: the field within the selector, and why.
    pub fn problem(&self) -> Option<(String, String)> {
        self.match_expressions.iter().enumerate().find_map(|(i, r)| {
            let at = format!("matchExpressions[{i}]");
            match (r.operator.as_str(), r.values.is_empty()) {
                ("In" | "NotIn", true) => {
                    Some((format!("{at}.values"), format!("operator {} needs a value", r.operator)))
                }
                ("Exists" | "DoesNotExist", false) => {
                    Some((format!("{at}.values"), format!("operator {} takes no value", r.operator)))
                }
                ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => None,
                (other, _) => {
                    Some((format!("{at}.operator"), format!("{other:?} is none of In, NotIn, Exists and DoesNotExist")))
                }
            }
        })
    }
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> Option<bool> {
        let value = labels.get(&self.key);
        let is_in = value.is_some_and(|v| self.values.contains(v));
        match self.operator.as_str() {
            "In" => Some(is_in),
            "NotIn" => Some(!is_in),
            "Exists" => Some(value.is_some()),
            "DoesNotExist" => Some(value.is_none()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(json: serde_json::Value) -> Selector {
        serde_json::from_value(json).expect("a selector")
    }

    #[test]
    fn each_operator_as_kubernetes_has_it() {
        let labels = Labels::from([("app".into(), "a".into()), ("tier".into(), "web".into())]);
        let cases = [
            (serde_json::json!({}), true),
            (serde_json::json!({"matchLabels": {"app": "a"}}), true),
            (serde_json::json!({"matchLabels": {"app": "a", "tier": "db"}}), false),
            (serde_json::json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]}), true),
            (serde_json::json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}), false),
            (serde_json::json!({"matchExpressions": [{"key": "no", "operator": "NotIn", "values": ["a"]}]}), true),
            (serde_json::json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), true),
            (serde_json::json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), false),
        ];
        for (json, selected) in cases {
            let s = selector(json.clone());
            assert_eq!((s.selects(&labels), s.problem()), (selected, None), "{json}");
        }
    }

    #[test]
    fn a_wrong_expression_is_named_and_selects_nothing() {
        let s = selector(serde_json::json!({"matchExpressions": [{"key": "app", "operator": "Is", "values": ["a"]}]}));
        assert!(!s.selects(&Labels::new()));
        assert_eq!(s.problem().map(|(field, _)| field), Some("matchExpressions[0].operator".into()));
        let s = selector(serde_json::json!({"matchExpressions": [{"key": "app", "operator": "In"}]}));
        assert_eq!(s.problem().map(|(field, _)| field), Some("matchExpressions[0].values".into()));
    }
}
