//! Nodes, and the selectors that choose nodes.
#![expect(missing_docs, reason = "the fields are those of the Kubernetes API")]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::lean::or_default;
use crate::meta::metadata;

/// A Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub spec: NodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(deserialize_with = "or_default")]
    pub taints: Vec<Taint>,
    #[serde(deserialize_with = "or_default")]
    pub unschedulable: bool,
}

/// A CSINode: the drivers on a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CSINode {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub spec: CsiNodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    #[serde(deserialize_with = "or_default")]
    pub drivers: Vec<CsiNodeDriver>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiNodeDriver {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub topology_keys: Vec<String>,
}

/// A NodeSelector. One of its terms must hold.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    #[serde(deserialize_with = "or_default")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// A term of a NodeSelector. All of its expressions must hold.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    #[serde(deserialize_with = "or_default")]
    pub match_expressions: Vec<NodeExpression>,
    #[serde(deserialize_with = "or_default", skip_serializing)]
    pub match_fields: Vec<NodeExpression>,
}

/// A NodeSelectorRequirement: a condition on a label or on a field of a node.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct NodeExpression {
    pub key: String,
    pub operator: String,
    #[serde(deserialize_with = "or_default")]
    pub values: Vec<String>,
}

impl NodeExpression {
    /// Returns whether labels meet the condition.
    pub fn fits(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key).map(String::as_str);
        holds(&self.operator, value, &self.values)
    }
}

/// Returns whether a condition of a label selector or node selector holds for a value.
pub fn holds(operator: &str, value: Option<&str>, values: &[String]) -> bool {
    let among = || value.is_some_and(|value| values.iter().any(|v| v == value));
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let compare = |wanted: fn(i64, i64) -> bool| {
        let bound = number(values.first().map(String::as_str));
        number(value).zip(bound).is_some_and(|(a, b)| wanted(a, b))
    };
    match operator {
        "In" => among(),
        "NotIn" => !among(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, bound| value > bound),
        "Lt" => compare(|value, bound| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_members_count_as_absent() {
        for spec in [json!(null), json!({ "drivers": null })] {
            let node: CSINode = serde_json::from_value(json!({ "spec": spec })).unwrap();
            assert!(node.spec.drivers.is_empty());
        }
        let spec = json!({ "taints": null, "unschedulable": null });
        let node = json!({ "metadata": null, "spec": spec });
        let node: Node = serde_json::from_value(node).unwrap();
        assert_eq!(node.spec, NodeSpec::default());
    }
}
