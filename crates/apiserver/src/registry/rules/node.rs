//! Node.

use serde_json::{Value, json};

use super::{child, items, set_default, text};

/// The two forms of the pod network follow each other.
pub(in crate::registry) fn default_node(node: &mut Value) {
    let one = text(node, "/spec/podCIDR").to_owned();
    let first = items(node, "/spec/podCIDRs").first().cloned();
    let Some(spec) = child(node, "spec") else {
        return;
    };
    match first {
        Some(first) if one.is_empty() => {
            spec.insert("podCIDR".into(), first);
        }
        None if !one.is_empty() => set_default(spec, "podCIDRs", json!([one])),
        _ => {}
    }
}

/// Nothing is scheduled to a new node before it says that it is ready.
pub(in crate::registry) fn prepare_node(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let Some(spec) = child(node, "spec") else {
        return;
    };
    set_default(spec, "taints", json!([]));
    if let Some(taints) = spec.get_mut("taints").and_then(Value::as_array_mut)
        && !taints.contains(&taint)
    {
        taints.push(taint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_follow_each_other() {
        for mut node in [
            json!({"spec": {"podCIDR": "10.0.0.0/24"}}),
            json!({"spec": {"podCIDRs": ["10.0.0.0/24"]}}),
        ] {
            default_node(&mut node);
            let want = json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]});
            assert_eq!(node["spec"], want);
        }
    }
}
