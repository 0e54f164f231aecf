//! Which nodes a pod, a volume and a class allow.

use k8s_openapi::api::core::v1::{Taint, Toleration};
use tenure_kinds::class::AllowedTerm;
use tenure_kinds::node::{NodeSelector, holds};
use tenure_kinds::{Node, PersistentVolume};

use super::objects::Pod;

/// The taint of every new node, until a controller outside this server has examined the node.
const NEW: &str = "node.kubernetes.io/not-ready";

/// Returns whether a volume can be reached from a node.
pub(super) fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    let required = volume.required_nodes();
    required.is_none_or(|selector| any_term(selector, node))
}

/// Returns whether a pod may run on a node: selector, required affinity, taints. Free resources are ignored.
pub(super) fn fits(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let wanted = spec.node_selector.iter().flatten();
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    node.metadata.deletion_timestamp.is_none()
        && !node.spec.unschedulable
        && wanted
            .into_iter()
            .all(|(key, value)| label(node, key) == Some(value.as_str()))
        && required.is_none_or(|selector| any_term(selector, node))
        && node
            .spec
            .taints
            .iter()
            .filter(|taint| taint.effect != "PreferNoSchedule" && taint.key != NEW)
            .all(|taint| {
                tolerations
                    .iter()
                    .any(|toleration| tolerates(toleration, taint))
            })
}

/// Returns whether a class creates volumes that a node can reach.
pub(super) fn allowed(terms: &[AllowedTerm], node: &Node) -> bool {
    terms.is_empty()
        || terms.iter().any(|term| {
            let mut all = term.match_label_expressions.iter();
            all.all(|expression| holds("In", label(node, &expression.key), &expression.values))
        })
}

/// Returns whether any term matches. A term without requirements matches nothing.
fn any_term(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| {
        let (labels, fields) = (&term.match_expressions, &term.match_fields);
        !(labels.is_empty() && fields.is_empty())
            && labels
                .iter()
                .all(|e| holds(&e.operator, label(node, &e.key), &e.values))
            && fields.iter().all(|e| {
                let name = node.metadata.name.as_deref();
                let value = name.filter(|_| e.key == "metadata.name");
                holds(&e.operator, value, &e.values)
            })
    })
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let wild = |wanted: Option<&str>, is: &str| wanted.is_none_or(|w| w.is_empty() || w == is);
    let exists = toleration.operator.as_deref() == Some("Exists");
    let value = toleration.value.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    wild(toleration.effect.as_deref(), &taint.effect)
        && ((key.is_empty() && exists)
            || (key == taint.key
                && (exists || value == taint.value.as_deref().unwrap_or_default())))
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let labels = node.metadata.labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(more: &Value) -> Node {
        let labels = json!({ "zone": "a", "cores": "8" });
        let meta = json!({ "name": "n", "labels": labels });
        serde_json::from_value(json!({ "metadata": meta, "spec": more })).unwrap()
    }

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap()
    }

    #[test]
    fn pod_selectors_and_affinity_restrict_nodes() {
        let fits = |spec: Value| fits(&pod(spec), &node(&json!({})));
        assert!(fits(json!({})));
        assert!(fits(json!({ "nodeSelector": { "zone": "a" } })));
        assert!(!fits(json!({ "nodeSelector": { "zone": "b" } })));
        let required = |terms: Value| {
            let required = json!({ "nodeSelectorTerms": terms });
            let name = "requiredDuringSchedulingIgnoredDuringExecution";
            json!({ "affinity": { "nodeAffinity": { name: required } } })
        };
        let term = |key: &str, operator: &str, value: &str| json!({ "key": key, "operator": operator, "values": [value] });
        let of = |term: Value| required(json!([{ "matchExpressions": [term] }]));
        assert!(fits(of(term("cores", "Gt", "7"))));
        assert!(!fits(of(term("cores", "Lt", "8"))));
        assert!(!fits(of(term("zone", "NotIn", "a"))));
        let field = term("metadata.name", "In", "n");
        assert!(fits(required(json!([{ "matchFields": [field] }]))));
        assert!(!fits(required(json!([{}]))), "an empty term allows nothing");
    }

    #[test]
    fn taints_and_unschedulable_nodes_are_respected() {
        assert!(!fits(
            &pod(json!({})),
            &node(&json!({ "unschedulable": true }))
        ));
        let taint =
            |effect: &str| json!({ "taints": [{ "key": "k", "value": "v", "effect": effect }] });
        assert!(fits(&pod(json!({})), &node(&taint("PreferNoSchedule"))));
        assert!(!fits(&pod(json!({})), &node(&taint("NoSchedule"))));
        let new = json!({ "taints": [{ "key": NEW, "effect": "NoSchedule" }] });
        assert!(fits(&pod(json!({})), &node(&new)));
        let tolerating = |toleration: Value| {
            let pod = pod(json!({ "tolerations": [toleration] }));
            fits(&pod, &node(&taint("NoSchedule")))
        };
        assert!(tolerating(json!({ "operator": "Exists" })));
        assert!(tolerating(json!({ "key": "k", "value": "v" })));
        assert!(!tolerating(json!({ "key": "k", "value": "w" })));
        assert!(!tolerating(
            json!({ "key": "k", "operator": "Exists", "effect": "NoExecute" })
        ));
    }

    #[test]
    fn allowed_topologies_of_a_class_restrict_nodes() {
        let terms = |zone: &str| -> Vec<AllowedTerm> {
            let expressions = json!([{ "key": "zone", "values": [zone] }]);
            serde_json::from_value(json!([{ "matchLabelExpressions": expressions }])).unwrap()
        };
        assert!(allowed(&[], &node(&json!({}))));
        assert!(allowed(&terms("a"), &node(&json!({}))));
        assert!(!allowed(&terms("b"), &node(&json!({}))));
    }
}
