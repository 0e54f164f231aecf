//! Node.

use serde_json::{Value, json};

use super::{child, items, set_default, text};
use crate::names;
use crate::status::Cause;

/// Effects of a taint.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Keeps `podCIDR` and `podCIDRs` equal.
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

/// Taints a new node, so that nothing is scheduled to it before it reports that it is ready.
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

pub(in crate::registry) fn validate_node(node: &Value, causes: &mut Vec<Cause>) {
    for (index, network) in items(node, "/spec/podCIDRs").iter().enumerate() {
        if !network.as_str().is_some_and(is_network) {
            let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            let field = format!("spec.podCIDRs[{index}]");
            causes.push(Cause::invalid(field, network, why));
        }
    }
    for (index, taint) in items(node, "/spec/taints").iter().enumerate() {
        // The real server reports `metadata` in this path.
        let at = format!("metadata.taints[{index}]");
        for (member, check) in [
            ("key", names::qualified_name as fn(&str) -> Vec<String>),
            ("value", names::label_value),
        ] {
            let value = text(taint, &format!("/{member}"));
            for why in check(value) {
                let field = format!("{at}.{member}");
                causes.push(Cause::invalid(field, &json!(value), &why));
            }
        }
        let (field, effect) = (format!("{at}.effect"), text(taint, "/effect"));
        if effect.is_empty() {
            causes.push(Cause::required(field, ""));
        } else if !EFFECTS.contains(&effect) {
            causes.push(Cause::unsupported(field, &json!(effect), &EFFECTS));
        }
    }
}

fn is_network(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let bits = match address.parse() {
        Ok(std::net::IpAddr::V4(_)) => 32,
        Ok(std::net::IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.parse::<u8>().is_ok_and(|length| length <= bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_and_networks_are_checked() {
        let node = |spec: &str| json!({ "spec": serde_json::from_str::<Value>(spec).unwrap() });
        let fields = |spec: &str| {
            let mut causes = Vec::new();
            validate_node(&node(spec), &mut causes);
            let said = causes
                .iter()
                .map(|cause| (cause.field.clone(), cause.reason));
            said.collect::<Vec<_>>()
        };
        let good = r#"{"taints": [{"key": "a.b/c", "effect": "NoExecute"}], "podCIDRs": ["10.0.0.0/24", "fd00::/64"]}"#;
        assert!(fields(good).is_empty(), "{:?}", fields(good));
        let odd =
            r#"{"taints": [{"key": "a", "effect": "Odd"}, {"key": "not a key", "value": "-"}]}"#;
        let said = [
            ("metadata.taints[0].effect", "FieldValueNotSupported"),
            ("metadata.taints[1].key", "FieldValueInvalid"),
            ("metadata.taints[1].value", "FieldValueInvalid"),
            ("metadata.taints[1].effect", "FieldValueRequired"),
        ];
        assert_eq!(
            fields(odd),
            said.map(|(field, reason)| (field.to_owned(), reason))
        );
        for network in ["here", "10.0.0.0", "10.0.0.0/33", "fd00::/129"] {
            let said = fields(&format!(r#"{{"podCIDRs": ["{network}"]}}"#));
            assert_eq!(said, [("spec.podCIDRs[0]".to_owned(), "FieldValueInvalid")]);
        }
    }

    #[test]
    fn pod_cidr_and_pod_cidrs_are_kept_equal() {
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
