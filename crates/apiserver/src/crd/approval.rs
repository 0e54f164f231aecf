//! Approval annotations of definitions in the groups of the Kubernetes project.

use serde_json::{Value, json};

use super::definition::set_condition;
use crate::json::text;
use crate::status::Cause;

/// The annotation that refers to the approval of a definition by the Kubernetes project.
const APPROVED: &str = "api-approved.kubernetes.io";
/// Location of the policy.
const POLICY: &str = "https://github.com/kubernetes/enhancements/pull/1111";

/// Sets the condition about the approval of a definition in a group of the Kubernetes project.
pub(super) fn note(definition: &mut Value) {
    const CONDITION: &str = "KubernetesAPIApprovalPolicyConformant";
    if !is_protected(text(definition, "/spec/group")) {
        return;
    }
    let (state, reason, message) = match approval(definition) {
        Approval::Missing => {
            let message = format!(
                "protected groups must have approval annotation {APPROVED:?}, see {POLICY}"
            );
            ("False", "MissingAnnotation", message)
        }
        Approval::Invalid(_) => {
            let message = format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason \
                 starting with \"unapproved\", see {POLICY}"
            );
            ("False", "InvalidAnnotation", message)
        }
        Approval::Bypassed(why) => {
            let message = format!("not approved: {why:?}");
            ("False", "UnapprovedAnnotation", message)
        }
        Approval::Approved(place) => {
            let message = format!("approved in {place}");
            ("True", "ApprovedAnnotation", message)
        }
    };
    set_condition(
        &mut definition["status"],
        CONDITION,
        state,
        reason,
        &message,
    );
}

/// Rejects definitions in groups of the Kubernetes project without the annotation.
pub(super) fn validate(definition: &Value, group: &str, causes: &mut Vec<Cause>) {
    if !is_protected(group) {
        return;
    }
    let field = format!("metadata.annotations[{APPROVED}]");
    match approval(definition) {
        Approval::Missing => {
            let why = format!("protected groups must have approval annotation {APPROVED:?}");
            causes.push(Cause::required(field, &why));
        }
        Approval::Invalid(text) => {
            let why = "protected groups must have approval annotation with either a URL or a reason \
                       starting with \"unapproved\"";
            causes.push(Cause::invalid(field, &json!(text), why));
        }
        Approval::Bypassed(_) | Approval::Approved(_) => {}
    }
}

/// Approval state according to the annotation.
enum Approval<'a> {
    Missing,
    Invalid(&'a str),
    Bypassed(&'a str),
    Approved(&'a str),
}

fn approval(definition: &Value) -> Approval<'_> {
    let annotations = definition.pointer("/metadata/annotations");
    let text = annotations.and_then(|annotations| annotations.get(APPROVED));
    match text.and_then(Value::as_str).unwrap_or_default() {
        "" => Approval::Missing,
        text if text.starts_with("unapproved") => Approval::Bypassed(text),
        text if text.contains("://") => Approval::Approved(text),
        text => Approval::Invalid(text),
    }
}

fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|owner| group == *owner || group.ends_with(&format!(".{owner}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_in_kubernetes_group_has_approval_condition() {
        let told = |group: &str, annotation: &str| {
            let mut definition = json!({"metadata": {"annotations": {APPROVED: annotation}},
                "spec": {"group": group}, "status": {}});
            note(&mut definition);
            let mut causes = Vec::new();
            validate(&definition, group, &mut causes);
            let condition = definition["status"]["conditions"][0].clone();
            let member = |name: &str| text(&condition, name).to_owned();
            (
                member("/status"),
                member("/reason"),
                member("/message"),
                causes.len(),
            )
        };
        let is = |told: (String, String, String, usize), what: [&str; 3], causes: usize| {
            assert_eq!([&told.0, &told.1, &told.2], what);
            assert_eq!(told.3, causes);
        };
        is(told("t.example", ""), [""; 3], 0);
        let place = "https://example.com/1";
        let message = format!("approved in {place}");
        is(
            told("x.k8s.io", place),
            ["True", "ApprovedAnnotation", &message],
            0,
        );
        let message = "not approved: \"unapproved, for a test\"";
        let bypassed = told("x.kubernetes.io", "unapproved, for a test");
        is(bypassed, ["False", "UnapprovedAnnotation", message], 0);
        assert_eq!(told("k8s.io", "").1, "MissingAnnotation");
        assert_eq!(told("k8s.io", "yes").1, "InvalidAnnotation");
        assert_eq!((told("k8s.io", "").3, told("k8s.io", "yes").3), (1, 1));
    }
}
