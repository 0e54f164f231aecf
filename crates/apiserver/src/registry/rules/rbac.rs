//! Roles and bindings.

use serde_json::{Value, json};

use super::{items, set_default_text, text, volume};
use crate::status::Cause;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(in crate::registry) fn validate_role(role: &Value, causes: &mut Vec<Cause>) {
    check_rules(role, true, causes);
}

pub(in crate::registry) fn validate_cluster_role(role: &Value, causes: &mut Vec<Cause>) {
    check_rules(role, false, causes);
    let Some(aggregation) = role.get("aggregationRule").filter(|a| !a.is_null()) else {
        return;
    };
    let field = "aggregationRule.clusterRoleSelectors";
    let selectors = items(aggregation, "/clusterRoleSelectors");
    if selectors.is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        causes.push(Cause::required(field, why));
    }
    for (index, selector) in selectors.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let before = causes.len();
        volume::validate_selector(selector, &field, causes);
        if causes.len() > before {
            // The real server also tries to use the selector, and shows the absent result.
            causes.push(Cause::invalid(
                field,
                &json!(null),
                "invalid label selector.",
            ));
        }
    }
}

/// Sets default API groups. The group of a ServiceAccount is the core group, so it stays empty.
pub(in crate::registry) fn default_binding(binding: &mut Value) {
    if let Some(role) = binding.get_mut("roleRef").and_then(Value::as_object_mut) {
        set_default_text(role, "apiGroup", GROUP);
    }
    let subjects = binding.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        if matches!(text(subject, "/kind"), "User" | "Group")
            && let Some(map) = subject.as_object_mut()
        {
            set_default_text(map, "apiGroup", GROUP);
        }
    }
}

pub(in crate::registry) fn validate_binding(binding: &Value, causes: &mut Vec<Cause>) {
    check_binding(binding, &["Role", "ClusterRole"], true, causes);
}

pub(in crate::registry) fn validate_cluster_binding(binding: &Value, causes: &mut Vec<Cause>) {
    check_binding(binding, &["ClusterRole"], false, causes);
}

pub(in crate::registry) fn validate_binding_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    if old.get("roleRef") != new.get("roleRef") {
        // The real server prints this value with the field names of its Go struct.
        let value = json!({
            "APIGroup": text(new, "/roleRef/apiGroup"),
            "Kind": text(new, "/roleRef/kind"),
            "Name": text(new, "/roleRef/name"),
        });
        causes.push(Cause::invalid("roleRef", &value, "cannot change roleRef"));
    }
}

fn check_rules(role: &Value, namespaced: bool, causes: &mut Vec<Cause>) {
    for (index, rule) in items(role, "/rules").iter().enumerate() {
        let field = |name: &str| format!("rules[{index}].{name}");
        if items(rule, "/verbs").is_empty() {
            causes.push(Cause::required(
                field("verbs"),
                "verbs must contain at least one value",
            ));
        }
        if !items(rule, "/nonResourceURLs").is_empty() {
            let value = &rule["nonResourceURLs"];
            if namespaced {
                let why = "namespaced rules cannot apply to non-resource URLs";
                causes.push(Cause::invalid(field("nonResourceURLs"), value, why));
            }
            let resource = ["/apiGroups", "/resources", "/resourceNames"];
            if resource.iter().any(|p| !items(rule, p).is_empty()) {
                let why = "rules cannot apply to both regular resources and non-resource URLs";
                causes.push(Cause::invalid(field("nonResourceURLs"), value, why));
            }
            continue;
        }
        if items(rule, "/apiGroups").is_empty() {
            let why = "resource rules must supply at least one api group";
            causes.push(Cause::required(field("apiGroups"), why));
        }
        if items(rule, "/resources").is_empty() {
            let why = "resource rules must supply at least one resource";
            causes.push(Cause::required(field("resources"), why));
        }
    }
}

fn check_binding(binding: &Value, kinds: &[&str], namespaced: bool, causes: &mut Vec<Cause>) {
    let group = text(binding, "/roleRef/apiGroup");
    if group != GROUP {
        causes.push(Cause::unsupported(
            "roleRef.apiGroup",
            &json!(group),
            &[GROUP],
        ));
    }
    let kind = text(binding, "/roleRef/kind");
    if !kinds.contains(&kind) {
        causes.push(Cause::unsupported("roleRef.kind", &json!(kind), kinds));
    }
    if text(binding, "/roleRef/name").is_empty() {
        causes.push(Cause::required("roleRef.name", ""));
    }
    for (index, subject) in items(binding, "/subjects").iter().enumerate() {
        let field = |name: &str| format!("subjects[{index}].{name}");
        if text(subject, "/name").is_empty() {
            causes.push(Cause::required(field("name"), ""));
        }
        let group = text(subject, "/apiGroup");
        match text(subject, "/kind") {
            "ServiceAccount" => {
                if !group.is_empty() {
                    causes.push(Cause::unsupported(field("apiGroup"), &json!(group), &[""]));
                }
                if !namespaced && text(subject, "/namespace").is_empty() {
                    causes.push(Cause::required(field("namespace"), ""));
                }
            }
            "User" | "Group" => {
                if group != GROUP {
                    causes.push(Cause::unsupported(
                        field("apiGroup"),
                        &json!(group),
                        &[GROUP],
                    ));
                }
            }
            other => {
                let known = ["ServiceAccount", "User", "Group"];
                causes.push(Cause::unsupported(field("kind"), &json!(other), &known));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregation_has_valid_selectors() {
        let fields = |selectors: Value| -> Vec<String> {
            let mut causes = Vec::new();
            let role = json!({"aggregationRule": {"clusterRoleSelectors": selectors}});
            validate_cluster_role(&role, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        assert_eq!(fields(json!([{"matchLabels": {"x": "y"}}])), [""; 0]);
        let field = "aggregationRule.clusterRoleSelectors";
        assert_eq!(fields(json!([])), [field]);
        assert_eq!(
            fields(json!([{}, {"matchLabels": {"-x": "y"}}])),
            [format!("{field}[1].matchLabels"), format!("{field}[1]")]
        );
    }

    #[test]
    fn rules_without_verbs_or_targets_are_rejected() {
        let mut causes = Vec::new();
        validate_role(
            &json!({"rules": [{}, {"verbs": ["get"], "nonResourceURLs": ["/x"]}]}),
            &mut causes,
        );
        let fields: Vec<_> = causes.iter().map(|c| c.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "rules[0].verbs",
                "rules[0].apiGroups",
                "rules[0].resources",
                "rules[1].nonResourceURLs"
            ]
        );
    }

    #[test]
    fn a_binding_keeps_its_role() {
        let mut binding = json!({"roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]});
        default_binding(&mut binding);
        let mut causes = Vec::new();
        validate_binding(&binding, &mut causes);
        assert_eq!(causes, []);
        let mut other = binding.clone();
        other["roleRef"]["name"] = json!("q");
        validate_binding_update(&binding, &other, &mut causes);
        assert_eq!(causes[0].field, "roleRef");
    }
}
