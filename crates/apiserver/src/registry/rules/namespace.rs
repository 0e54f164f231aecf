//! Namespace.

use serde_json::{Value, json};

use super::super::meta;
use super::{child, items, set_default_text, text};
use crate::names;
use crate::status::Cause;

/// The finalizer that keeps a namespace until it is empty.
pub(crate) const FINALIZER: &str = "kubernetes";

/// The label that every namespace has.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(in crate::registry) fn default_namespace(namespace: &mut Value) {
    let name = text(namespace, "/metadata/name").to_owned();
    if !name.is_empty()
        && let Some(metadata) = child(namespace, "metadata")
    {
        let labels = metadata.entry("labels").or_insert(Value::Null);
        if labels.is_null() {
            *labels = json!({});
        }
        labels[NAME_LABEL] = json!(name);
    }
    if let Some(status) = child(namespace, "status") {
        set_default_text(status, "phase", "Active");
    }
}

/// Sets the phase and the finalizer of a new namespace.
pub(in crate::registry) fn prepare_namespace(namespace: &mut Value) {
    if let Some(map) = namespace.as_object_mut() {
        map.insert("status".into(), json!({"phase": "Active"}));
    }
    if let Some(spec) = child(namespace, "spec") {
        let finalizers = spec.entry("finalizers").or_insert(Value::Null);
        if finalizers.is_null() {
            *finalizers = json!([]);
        }
        if let Some(list) = finalizers.as_array_mut()
            && !list.iter().any(|f| f == FINALIZER)
        {
            list.push(json!(FINALIZER));
        }
    }
}

/// Validates the finalizers of the spec of a new namespace. Only the subresource `finalize` changes them later.
pub(in crate::registry) fn validate_new_namespace(namespace: &Value, causes: &mut Vec<Cause>) {
    for finalizer in items(namespace, "/spec/finalizers") {
        check_finalizer(finalizer, "spec.finalizers", causes);
    }
}

/// Validates the finalizers that the subresource `finalize` sets.
pub(in crate::registry) fn validate_finalize(namespace: &Value, causes: &mut Vec<Cause>) {
    let finalizers = items(namespace, "/spec/finalizers").iter();
    for (index, finalizer) in finalizers.enumerate() {
        check_finalizer(finalizer, &format!("spec.finalizers[{index}]"), causes);
    }
}

fn check_finalizer(finalizer: &Value, field: &str, causes: &mut Vec<Cause>) {
    let name = finalizer.as_str().unwrap_or_default();
    for why in names::qualified_name(name) {
        causes.push(Cause::invalid(field, finalizer, &why));
    }
    if let Some(why) = meta::finalizer_without_domain(name) {
        causes.push(Cause::invalid(field, finalizer, why));
    }
}

/// Preserves the finalizers of the spec, which only the subresource `finalize` changes.
pub(crate) fn preserve_finalizers(old: &Value, new: &mut Value) {
    let was = old.pointer("/spec/finalizers").cloned();
    let Some(map) = new.as_object_mut() else {
        return;
    };
    let spec = map.entry("spec").or_insert(Value::Null);
    if !spec.is_object() {
        *spec = json!({});
    }
    match was {
        Some(was) => spec["finalizers"] = was,
        None => {
            spec.as_object_mut().map(|spec| spec.remove("finalizers"));
        }
    }
}

/// A condition of a namespace that delays its deletion.
pub(crate) struct Problem {
    pub(crate) kind: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// The conditions of a namespace that is being deleted: type, and reason and message while there is no problem.
const CONDITIONS: [(&str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    (
        "NamespaceContentRemaining",
        "ContentRemoved",
        "All content successfully removed",
    ),
    (
        "NamespaceFinalizersRemaining",
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
];

/// Sets the conditions of a namespace that is being deleted. The time of a condition changes only with its status.
pub(crate) fn set_conditions(namespace: &mut Value, problems: &[Problem], now: &str) {
    let Some(status) = child(namespace, "status") else {
        return;
    };
    let conditions = status.entry("conditions").or_insert(Value::Null);
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else {
        return;
    };
    for (kind, reason, message) in CONDITIONS {
        let problem = problems.iter().find(|problem| problem.kind == kind);
        let (status, reason, message) = match problem {
            Some(problem) => ("True", problem.reason, problem.message.as_str()),
            None => ("False", reason, message),
        };
        let mut new = json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": now});
        match list.iter_mut().find(|known| known["type"] == kind) {
            Some(known) => {
                if known["status"] == status {
                    new["lastTransitionTime"] = known["lastTransitionTime"].take();
                }
                *known = new;
            }
            None => list.push(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_namespace_has_name_label_and_finalizer() {
        let mut namespace = json!({"metadata": {"name": "n", "labels": {"a": "b"}}});
        prepare_namespace(&mut namespace);
        default_namespace(&mut namespace);
        assert_eq!(
            namespace,
            json!({"metadata": {"name": "n", "labels": {"a": "b", NAME_LABEL: "n"}},
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
        );
    }

    #[test]
    fn finalizers_of_a_namespace_are_standard_or_have_a_domain() {
        let namespace = |name: &str| json!({"spec": {"finalizers": ["kubernetes", name]}});
        let mut causes = Vec::new();
        validate_new_namespace(&namespace("example.com/f"), &mut causes);
        assert_eq!(causes, []);
        validate_new_namespace(&namespace("nodomain"), &mut causes);
        validate_finalize(&namespace("nodomain"), &mut causes);
        let fields: Vec<_> = causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, ["spec.finalizers", "spec.finalizers[1]"]);
    }
}
