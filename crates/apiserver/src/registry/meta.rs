//! `metadata`: the members that the server sets, preserves and rejects.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::rules::{at, entries, items, text};
use super::{Generation, Kind, NameRule};
use crate::names;
use crate::status::Cause;
pub(crate) use crate::timestamp::rfc3339;

/// Maximum length of the prefix of a generated name, before the random characters.
const GENERATED_PREFIX: usize = 58;
/// Omits vowels and characters that are easily confused.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Maximum size of all annotations together, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Members that only the server sets.
const SYSTEM: &[&str] = &[
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "managedFields",
    "resourceVersion",
];

/// Returns the metadata of an object, creating it if absent.
pub(crate) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let map = object.as_object_mut().expect("just created as an object");
    let slot = map.entry("metadata").or_insert(Value::Null);
    if !slot.is_object() {
        *slot = json!({});
    }
    slot.as_object_mut().expect("just created as an object")
}

/// Sets the system metadata of a new object.
pub(crate) fn fill_new(kind: &Kind, namespace: &str, object: &mut Value, now: Timestamp) {
    let metadata = metadata(object);
    for member in SYSTEM {
        metadata.remove(*member);
    }
    metadata.insert("uid".into(), json!(uuid::Uuid::new_v4().to_string()));
    metadata.insert("creationTimestamp".into(), json!(rfc3339(now)));
    if kind.namespaced {
        metadata.insert("namespace".into(), json!(namespace));
    } else {
        metadata.remove("namespace");
    }
    if !matches!(kind.generation, Generation::None | Generation::Changes) {
        metadata.insert("generation".into(), json!(1));
    }
}

/// Generates a name from `generateName` if the object has no name. Returns true if it generated one.
pub(crate) fn generate_name(object: &mut Value) -> bool {
    let metadata = metadata(object);
    let empty = |key: &str| {
        metadata
            .get(key)
            .and_then(Value::as_str)
            .is_none_or(str::is_empty)
    };
    if !empty("name") || empty("generateName") {
        return false;
    }
    let prefix = metadata["generateName"].as_str().unwrap_or_default();
    let cut = prefix
        .char_indices()
        .map(|(at, _)| at)
        .find(|at| *at >= GENERATED_PREFIX);
    let name = prefix[..cut.unwrap_or(prefix.len())].to_owned() + &random_suffix();
    metadata.insert("name".into(), json!(name));
    true
}

/// Returns the random end of a generated name.
pub(super) fn random_suffix() -> String {
    let random = || char::from(ALPHABET[rand::random_range(0..ALPHABET.len())]);
    std::iter::repeat_with(random).take(5).collect()
}

/// Preserves the members that an update cannot change.
pub(crate) fn preserve_system(old: &Value, new: &mut Value) {
    let old = old.get("metadata").and_then(Value::as_object);
    let metadata = metadata(new);
    for member in SYSTEM
        .iter()
        .filter(|member| **member != "deletionTimestamp")
    {
        metadata.remove(*member);
    }
    // A cluster-scoped object has no namespace. The real server removes one that a client sends.
    metadata.remove("namespace");
    let fixed = ["namespace", "name"];
    for member in SYSTEM.iter().chain(&fixed) {
        if let Some(value) = old.and_then(|old| old.get(*member)) {
            metadata.insert((*member).to_owned(), value.clone());
        }
    }
}

/// Whether an object is being deleted.
pub(crate) fn is_deleting(object: &Value) -> bool {
    at(object, "/metadata/deletionTimestamp").is_some_and(|t| !t.is_null())
}

/// Validates metadata.
pub(crate) fn validate(kind: &Kind, object: &Value, causes: &mut Vec<Cause>) {
    let check: names::Check = match kind.names {
        NameRule::Subdomain => names::dns1123_subdomain,
        NameRule::Label => names::dns1123_label,
        NameRule::PathSegment | NameRule::General => names::path_segment,
        NameRule::ConfigKey => names::config_map_key,
    };
    let prefix = text(object, "/metadata/generateName");
    if !prefix.is_empty() {
        for why in names::generated(check, prefix) {
            causes.push(Cause::invalid(
                "metadata.generateName",
                &json!(prefix),
                &why,
            ));
        }
    }
    let name = text(object, "/metadata/name");
    if name.is_empty() {
        causes.push(Cause::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else {
        for why in check(name) {
            causes.push(Cause::invalid("metadata.name", &json!(name), &why));
        }
    }
    for (key, value) in entries(object, "/metadata/labels") {
        for why in names::qualified_name(key) {
            causes.push(Cause::invalid("metadata.labels", &json!(key), &why));
        }
        for why in names::label_value(value.as_str().unwrap_or_default()) {
            causes.push(Cause::invalid("metadata.labels", value, &why));
        }
    }
    let mut size = 0;
    for (key, value) in entries(object, "/metadata/annotations") {
        for why in names::qualified_name(&key.to_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", &json!(key), &why));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_LIMIT {
        causes.push(Cause::too_long("metadata.annotations", ANNOTATIONS_LIMIT));
    }
    validate_owners(object, causes);
    for finalizer in items(object, "/metadata/finalizers") {
        for why in names::qualified_name(finalizer.as_str().unwrap_or_default()) {
            causes.push(Cause::invalid("metadata.finalizers", finalizer, &why));
        }
    }
    let is_custom = kind.spec().is_some();
    let is_general = kind.names == NameRule::General
        || matches!(kind.group(), "coordination.k8s.io" | crate::crd::GROUP);
    if !is_custom && !is_general {
        validate_finalizer_domains(object, causes);
    }
}

/// Finalizers without a domain that Kubernetes defines.
const FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Returns the warnings about finalizers that a write of a custom resource added.
pub(crate) fn warn_about_finalizers(old: Option<&Value>, new: &Value) -> Vec<String> {
    let had = old.map_or(&[][..], |old| items(old, "/metadata/finalizers"));
    let had: HashSet<&str> = had.iter().filter_map(Value::as_str).collect();
    let new = items(new, "/metadata/finalizers").iter();
    let added: BTreeSet<&str> = new.filter_map(Value::as_str).collect();
    let added = added.into_iter().filter(|name| !had.contains(name));
    let unqualified = added.filter(|name| !name.contains('/') && !FINALIZERS.contains(name));
    let warning = |name| {
        // A name with a dot is a domain that lacks only the path.
        let path = if str::contains(name, '.') {
            " including a path (/)"
        } else {
            ""
        };
        format!(
            "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer name{path} to avoid \
             accidental conflicts with other finalizer writers"
        )
    };
    unqualified.map(warning).collect()
}

/// Rejects finalizers without a domain, except those that Kubernetes defines.
fn validate_finalizer_domains(object: &Value, causes: &mut Vec<Cause>) {
    for (index, finalizer) in items(object, "/metadata/finalizers").iter().enumerate() {
        if let Some(why) = finalizer_without_domain(finalizer.as_str().unwrap_or_default()) {
            let field = format!("metadata.finalizers[{index}]");
            causes.push(Cause::invalid(field, finalizer, why));
        }
    }
}

/// Returns the error about a finalizer without a domain that Kubernetes does not define.
pub(super) fn finalizer_without_domain(name: &str) -> Option<&'static str> {
    let is_known = name.contains('/') || FINALIZERS.contains(&name);
    (!is_known).then_some("name is neither a standard finalizer name nor is it fully qualified")
}

/// Validates the change of metadata. System members must already be preserved.
pub(crate) fn validate_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    if !is_deleting(old) {
        if is_deleting(new) {
            let value = &new["metadata"]["deletionTimestamp"];
            let field = "metadata.deletionTimestamp";
            let cause = Cause::invalid(field, value, "field is immutable");
            causes.extend([cause.clone(), cause]);
        }
        return;
    }
    let had: HashSet<&Value> = items(old, "/metadata/finalizers").iter().collect();
    let added: Vec<String> = items(new, "/metadata/finalizers")
        .iter()
        .filter(|finalizer| !had.contains(finalizer))
        .map(ToString::to_string)
        .collect();
    if !added.is_empty() {
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers \
             []string{{{}}}",
            added.join(", ")
        );
        causes.push(Cause::forbidden("metadata.finalizers", &why));
    }
}

/// Removes duplicate owner references. Returns warnings for the client.
pub(crate) fn unique_owners(object: &mut Value) -> Vec<String> {
    let owners = object
        .pointer_mut("/metadata/ownerReferences")
        .and_then(Value::as_array_mut);
    let Some(owners) = owners else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    let mut seen: HashSet<Value> = HashSet::new();
    let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
    for owner in owners.drain(..) {
        if seen.contains(&owner) {
            let uid = text(&owner, "/uid");
            warnings.push(format!(
                ".metadata.ownerReferences contains duplicate entries; API server dedups owner \
                 references in 1.20+, and may reject such requests as early as 1.24; please fix \
                 your requests; duplicate UID(s) observed: {uid}"
            ));
        } else {
            seen.insert(owner.clone());
            kept.push(owner);
        }
    }
    *owners = kept;
    warnings
}

fn validate_owners(object: &Value, causes: &mut Vec<Cause>) {
    let mut controller: Option<&str> = None;
    for owner in items(object, "/metadata/ownerReferences") {
        for (member, why) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(owner, &format!("/{member}")).is_empty() {
                let field = format!("metadata.ownerReferences.{member}");
                causes.push(Cause::invalid(field, &json!(""), why));
            }
        }
        if owner.get("controller") == Some(&json!(true)) {
            let name = text(owner, "/name");
            if let Some(first) = controller {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in \
                     references for {first} and {name}"
                );
                causes.push(Cause::invalid(
                    "metadata.ownerReferences",
                    &json!([owner]),
                    &why,
                ));
            }
            controller = Some(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::find;

    #[test]
    fn clients_cannot_set_system_metadata() {
        let kind = find("", "configmaps").expect("there");
        let mut object = json!({"metadata": {"name": "n", "uid": "mine", "selfLink": "x",
            "creationTimestamp": null, "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        fill_new(kind, "ns", &mut object, Timestamp::UNIX_EPOCH);
        let metadata = object["metadata"].as_object().expect("map");
        let keys: Vec<_> = metadata.keys().map(String::as_str).collect();
        assert_eq!(keys, ["creationTimestamp", "name", "namespace", "uid"]);
        assert_eq!(metadata["creationTimestamp"], "1970-01-01T00:00:00Z");
        assert_ne!(metadata["uid"], "mine");
    }

    #[test]
    fn generated_names_stay_valid_at_any_length() {
        for prefix in ["a-", &"x".repeat(100), "ä-ö-"] {
            let mut object = json!({"metadata": {"generateName": prefix}});
            assert!(generate_name(&mut object));
            let name = text(&object, "/metadata/name").to_owned();
            assert!(name.len() <= 64, "{name}");
            assert!(!generate_name(&mut object));
            assert_eq!(text(&object, "/metadata/name"), name);
        }
    }

    #[test]
    fn finalizers_cannot_be_added_while_deleting() {
        let old = json!({"metadata": {"deletionTimestamp": "t", "finalizers": ["a/b"]}});
        let mut causes = Vec::new();
        let fewer = json!({"metadata": {"deletionTimestamp": "t"}});
        validate_update(&old, &fewer, &mut causes);
        assert_eq!(causes, []);
        let more = json!({"metadata": {"deletionTimestamp": "t", "finalizers": ["a/b", "c/d"]}});
        validate_update(&old, &more, &mut causes);
        assert_eq!(causes[0].reason, "FieldValueForbidden");
    }

    #[test]
    fn owners_are_unique_and_complete() {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
        let mut object = json!({"metadata": {"name": "x", "ownerReferences": [owner, owner, {}]}});
        assert_eq!(unique_owners(&mut object).len(), 1);
        let mut causes = Vec::new();
        validate(find("", "pods").expect("there"), &object, &mut causes);
        assert_eq!(causes.len(), 4);
        assert!(
            causes
                .iter()
                .all(|c| c.field.starts_with("metadata.ownerReferences."))
        );
    }

    #[test]
    fn kind_with_general_names_accepts_any_path_segment_and_finalizer() {
        let mut budget = json!({"metadata": {"name": "Bad_Name", "finalizers": ["nodomain"]}});
        let fields = |kind: &Kind, object: &Value| -> Vec<String> {
            let mut causes = Vec::new();
            validate(kind, object, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        let kind = |group, plural| find(group, plural).expect("there");
        let budgets = kind("policy", "poddisruptionbudgets");
        assert_eq!(fields(budgets, &budget), [""; 0]);
        let expected = ["metadata.name", "metadata.finalizers[0]"];
        assert_eq!(fields(kind("", "configmaps"), &budget), expected);
        budget["metadata"]["name"] = json!("a/b");
        assert_eq!(fields(budgets, &budget), ["metadata.name"]);
    }
}
