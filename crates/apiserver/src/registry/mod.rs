//! The table of kinds, and the verbs on their objects.
//!
//! A new kind is one entry in [`kinds`] plus, where needed, functions for defaults and validation. The verbs depend on
//! the table alone, with one exception: creating a claim without a storage class sets the default class.

pub(crate) mod columns;
mod create;
mod definitions;
mod delete;
mod engine;
mod expiry;
mod kinds;
pub(crate) mod meta;
mod namespaces;
mod owners;
mod recent;
pub(crate) mod rules;
mod update;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::status::Cause;
pub(crate) use columns::Column;
pub(crate) use delete::{DeleteOptions, Deleted};
pub(crate) use engine::{Registry, Target, WriteOptions};
pub(crate) use owners::Configuration;
pub(crate) use update::Source;

/// One entry of the table of kinds.
pub(crate) struct Kind {
    /// API group, empty for core.
    pub(crate) group: &'static str,
    /// Versions, the preferred one first.
    pub(crate) versions: &'static [Version],
    /// `Lease`.
    pub(crate) kind: &'static str,
    /// `leases`.
    pub(crate) plural: &'static str,
    /// `lease`.
    pub(crate) singular: &'static str,
    /// Short names for kubectl.
    pub(crate) short: &'static [&'static str],
    /// Categories for kubectl, for example `all`.
    pub(crate) categories: &'static [&'static str],
    /// Whether objects belong to a namespace.
    pub(crate) namespaced: bool,
    /// Whether objects are namespaces. They contain other objects and are removed when they are empty.
    pub(crate) is_namespace: bool,
    /// Storage name, `group/plural`. Kinds that are two views of the same objects share it.
    pub(crate) storage: &'static str,
    /// Whether the kind is a review: it supports only `create`, which is answered and not stored.
    pub(crate) review: bool,
    /// Subresources, if the kind is built in.
    pub(crate) subresources: &'static [Subresource],
    /// Whether PUT to an absent name creates the object.
    pub(crate) create_on_update: bool,
    /// Whether PUT without resourceVersion overwrites the object.
    pub(crate) unconditional_update: bool,
    /// Whether DELETE returns the object instead of a Status.
    pub(crate) returns_deleted: bool,
    /// Whether DELETE keeps dependents unless the client requests otherwise.
    pub(crate) orphans: bool,
    /// Whether objects grant permissions. A writer must not grant more than it has.
    pub(crate) grants: bool,
    /// Whether deletion waits for a grace period.
    pub(crate) graceful: bool,
    /// The changes that `metadata.generation` counts.
    pub(crate) generation: Generation,
    /// Field selectors beyond `metadata.name` and `metadata.namespace`, if the kind is built in.
    pub(crate) fields: &'static [Field],
    /// Columns of the Table form, after the name.
    pub(crate) columns: &'static [Column],
    /// Syntax of names.
    pub(crate) names: NameRule,
    /// Applies defaults. Must be idempotent, because it runs on every write.
    pub(crate) default: fn(&mut Value),
    /// Changes a new object before validation.
    pub(crate) prepare: fn(&mut Value),
    /// Validates an object.
    pub(crate) validate: fn(&Value, &mut Vec<Cause>),
    /// Validates a change, old to new, after `validate`.
    pub(crate) validate_update: fn(&Value, &Value, &mut Vec<Cause>),
    /// Completes a change of the status, old to new.
    pub(crate) change_status: fn(&Value, &mut Value),
    /// Validates an object whose status was changed.
    pub(crate) validate_status: fn(&Value, &mut Vec<Cause>),
}

/// The changes that `metadata.generation` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// The kind has no generation.
    None,
    /// Changes of everything except metadata and status.
    Content,
    /// Changes of content and labels.
    Labels,
    /// Changes of content, starting without a value: a new object has no generation.
    Changes,
}

/// One served version of a kind.
pub(crate) struct Version {
    /// `v1`.
    pub(crate) name: &'static str,
    /// Text of the `Warning` header in every response, if the version is deprecated.
    pub(crate) deprecated: Option<&'static str>,
    /// Conversion between this version and the stored version, if they differ.
    pub(crate) conversion: Option<Conversion>,
    /// Schema and columns, if a client defined the version.
    pub(crate) custom: Option<&'static crate::crd::CustomVersion>,
}

/// A lossless conversion between the stored version and another version.
#[derive(Clone, Copy)]
pub(crate) struct Conversion {
    /// Converts the client's version to the stored version.
    pub(crate) to_stored: fn(Value) -> Value,
    /// Converts the stored version to the client's version.
    pub(crate) from_stored: fn(Value) -> Value,
}

/// A subresource of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subresource {
    /// `status`: writes change only the status.
    Status,
    /// `finalize` of a namespace: writes change only `spec.finalizers`.
    Finalize,
    /// `token` of a service account: POST issues a token.
    Token,
    /// `binding` of a pod: POST assigns it to a node.
    Binding,
    /// `eviction` of a pod: POST deletes it.
    Eviction,
    /// `ephemeralcontainers` of a pod.
    EphemeralContainers,
    /// `scale`: writes change only the number of replicas.
    Scale,
}

/// A field selector: its label and the location of its value.
#[derive(Debug)]
pub(crate) struct Field {
    /// The label, as clients write it.
    pub(crate) label: &'static str,
    /// JSON pointers of the value in the stored form; the first that exists is used.
    pub(crate) pointers: &'static [&'static str],
    /// The text that stands for an absent value.
    pub(crate) absent: &'static str,
}

impl Field {
    pub(crate) const fn new(label: &'static str, pointers: &'static [&'static str]) -> Self {
        Self {
            label,
            pointers,
            absent: "",
        }
    }

    const fn flag(label: &'static str, pointers: &'static [&'static str]) -> Self {
        Self {
            label,
            pointers,
            absent: "false",
        }
    }

    /// Returns the text that a selector compares with.
    pub(crate) fn value(&self, object: &Value) -> String {
        let found = self
            .pointers
            .iter()
            .find_map(|pointer| match object.pointer(pointer) {
                Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
                Some(value @ (Value::Bool(_) | Value::Number(_))) => Some(value.to_string()),
                _ => None,
            });
        found.unwrap_or_else(|| self.absent.to_owned())
    }
}

/// Syntax of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// RFC 1123 subdomain.
    Subdomain,
    /// RFC 1123 label.
    Label,
    /// RFC 1035 label.
    Rfc1035,
    /// Any text that fits into one path segment.
    PathSegment,
    /// A key of a ConfigMap.
    ConfigKey,
}

impl Subresource {
    /// Returns the path segment of the subresource.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Finalize => "finalize",
            Self::Token => "token",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Scale => "scale",
        }
    }
}

impl Kind {
    /// `(group, plural)`, the form used in errors about objects.
    pub(crate) fn resource(&self) -> (&'static str, &'static str) {
        (self.group, self.plural)
    }

    /// `(group, kind)`, the form used in errors about fields, with the group of the stored form.
    pub(crate) fn group_kind(&self) -> (&'static str, &'static str) {
        match self.storage.split_once('/') {
            Some((group, _)) if !self.review => (group, self.kind),
            _ => (self.group, self.kind),
        }
    }

    /// Returns the version of this name.
    pub(crate) fn version(&self, name: &str) -> Option<&'static Version> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// Returns the subresources of a version of this kind.
    pub(crate) fn subresources(&self, version: &Version) -> &'static [Subresource] {
        let custom = version.custom.map(|custom| custom.subresources);
        custom.unwrap_or(self.subresources)
    }

    /// Returns the subresource of this name.
    pub(crate) fn subresource(&self, version: &Version, name: &str) -> Option<Subresource> {
        let mut all = self.subresources(version).iter().copied();
        all.find(|sub| sub.name() == name)
    }

    /// Returns the field selectors of a version of this kind.
    pub(crate) fn fields(&self, version: &Version) -> &'static [Field] {
        version.custom.map_or(self.fields, |custom| custom.fields)
    }

    /// Returns the shared storage name.
    pub(crate) fn storage_key(&self) -> Arc<str> {
        TABLE
            .storage
            .get(self.storage)
            .map_or_else(|| Arc::from(self.storage), Arc::clone)
    }

    /// `group/version`, or `v1` for core.
    pub(crate) fn api_version(&self, version: &Version) -> String {
        group_version(self.group, version.name)
    }
}

/// `group/version`, or the bare version for core.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

struct Table {
    by_resource: HashMap<(&'static str, &'static str), &'static Kind>,
    storage: HashMap<&'static str, Arc<str>>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| Table {
    by_resource: kinds::KINDS
        .iter()
        .map(|kind| (kind.resource(), *kind))
        .collect(),
    storage: kinds::KINDS
        .iter()
        .map(|kind| (kind.storage, Arc::from(kind.storage)))
        .collect(),
});

/// All built-in kinds, in the order of discovery.
pub(crate) fn all() -> &'static [&'static Kind] {
    &kinds::KINDS
}

/// Settings that custom kinds share.
pub(crate) fn custom_base() -> Kind {
    kinds::BASE
}

/// Returns the built-in kind that serves a resource.
pub(crate) fn find(group: &str, plural: &str) -> Option<&'static Kind> {
    TABLE.by_resource.get(&(group, plural)).copied()
}

/// Returns the groups with their versions in the order of discovery: core first, then by first appearance in the table.
/// Versions are sorted by preference.
pub(crate) fn groups(kinds: &[&'static Kind]) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut out: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
    for kind in kinds {
        let index = out
            .iter()
            .position(|(group, _)| *group == kind.group)
            .unwrap_or_else(|| {
                out.push((kind.group, Vec::new()));
                out.len() - 1
            });
        for version in kind.versions {
            if !out[index].1.contains(&version.name) {
                out[index].1.push(version.name);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        let mut seen = std::collections::HashSet::new();
        for kind in all() {
            assert!(seen.insert(kind.resource()), "{} twice", kind.plural);
            assert!(!kind.versions.is_empty(), "{}", kind.plural);
            assert_eq!(kind.plural, kind.plural.to_lowercase());
            assert_eq!(kind.singular, kind.kind.to_lowercase());
            let (_, stored) = kind.storage.split_once('/').expect("group/plural");
            assert!(kind.review || stored == kind.plural, "{}", kind.storage);
            assert!(find(kind.group, kind.plural).is_some());
        }
        assert!(find("nope", "leases").is_none());
    }

    #[test]
    fn groups_start_with_core() {
        let groups = groups(all());
        assert_eq!(groups[0], ("", vec!["v1"]));
        let coordination = groups.iter().find(|(g, _)| *g == "coordination.k8s.io");
        assert_eq!(
            coordination.expect("there").1,
            ["v1", "v1beta1", "v1alpha2"]
        );
    }
}
