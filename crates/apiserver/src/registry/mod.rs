//! The kinds this server knows, as a table, and what the verbs do to them.
//!
//! A new kind is one entry in [`kinds`] plus, where it needs them, functions for defaults and
//! validation. The verbs know kinds by the table alone, with one exception: a claim that names no class is
//! given the default one when it is created.

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

/// One entry of the table.
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
    /// Abbreviations that kubectl takes.
    pub(crate) short: &'static [&'static str],
    /// Groups of kinds that kubectl takes.
    pub(crate) categories: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub(crate) namespaced: bool,
    /// Objects are namespaces: others live in them, and they end when they are empty.
    pub(crate) is_namespace: bool,
    /// Storage name, `group/plural`; kinds that are two views of one thing share it.
    pub(crate) storage: &'static str,
    /// Nothing is stored: only `create`, answered from what the server knows.
    pub(crate) review: bool,
    /// What hangs below an object, if the kind is built in.
    pub(crate) subresources: &'static [Subresource],
    /// PUT to an absent name creates.
    pub(crate) create_on_update: bool,
    /// PUT without resourceVersion overwrites.
    pub(crate) unconditional_update: bool,
    /// DELETE answers with the object instead of a Status.
    pub(crate) returns_deleted: bool,
    /// DELETE leaves dependents alone unless the client says otherwise.
    pub(crate) orphans: bool,
    /// Objects grant permissions: a writer must not grant more than it has.
    pub(crate) grants: bool,
    /// Deletion waits for a grace period.
    pub(crate) graceful: bool,
    /// What `metadata.generation` counts the changes of.
    pub(crate) generation: Generation,
    /// Field selectors beyond `metadata.name` and `metadata.namespace`, if the kind is built in.
    pub(crate) fields: &'static [Field],
    /// Columns of the Table form after the name.
    pub(crate) columns: &'static [Column],
    /// What a name must look like.
    pub(crate) names: NameRule,
    /// Fills in what the client left out. Idempotent; runs on every write.
    pub(crate) default: fn(&mut Value),
    /// Changes a new object before validation.
    pub(crate) prepare: fn(&mut Value),
    /// Checks an object on its own.
    pub(crate) validate: fn(&Value, &mut Vec<Cause>),
    /// Checks a change, old to new, after `validate`.
    pub(crate) validate_update: fn(&Value, &Value, &mut Vec<Cause>),
    /// Completes a change of the status, old to new.
    pub(crate) change_status: fn(&Value, &mut Value),
    /// Checks an object whose status was changed.
    pub(crate) validate_status: fn(&Value, &mut Vec<Cause>),
}

/// What `metadata.generation` counts the changes of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// The kind has none.
    None,
    /// Everything but metadata and status.
    Content,
    /// Content and labels.
    Labels,
    /// Content, from nothing: a new object has no generation.
    Changes,
}

/// One served version of a kind.
pub(crate) struct Version {
    /// `v1`.
    pub(crate) name: &'static str,
    /// Text for the `Warning` header of every request.
    pub(crate) deprecated: Option<&'static str>,
    /// How this version differs from what is stored.
    pub(crate) conversion: Option<Conversion>,
    /// Its schema and columns, if clients defined it.
    pub(crate) custom: Option<&'static crate::crd::CustomVersion>,
}

/// A lossless change of form between the stored version and another.
#[derive(Clone, Copy)]
pub(crate) struct Conversion {
    /// From what the client sent to what is stored.
    pub(crate) to_stored: fn(Value) -> Value,
    /// Back.
    pub(crate) from_stored: fn(Value) -> Value,
}

/// A part of an object with a path of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subresource {
    /// `status`: writes change nothing but the status.
    Status,
    /// `finalize` of a namespace: writes change nothing but `spec.finalizers`.
    Finalize,
    /// `token` of a service account: POST makes a token.
    Token,
    /// `binding` of a pod: POST places it on a node.
    Binding,
    /// `eviction` of a pod: POST deletes it.
    Eviction,
    /// `ephemeralcontainers` of a pod.
    EphemeralContainers,
    /// `scale`: writes change nothing but the number of replicas.
    Scale,
}

/// A field selector: its label and where the value is.
#[derive(Debug)]
pub(crate) struct Field {
    /// What clients write.
    pub(crate) label: &'static str,
    /// JSON pointers of the value in the stored form; the first that is there counts.
    pub(crate) pointers: &'static [&'static str],
    /// The text of a value that is not there.
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

    /// The text that a selector compares with.
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

/// What a name must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// RFC 1123 subdomain.
    Subdomain,
    /// RFC 1123 label.
    Label,
    /// RFC 1035 label.
    Rfc1035,
    /// Anything that fits into one path segment.
    PathSegment,
    /// A key of a ConfigMap.
    ConfigKey,
}

impl Subresource {
    /// The path segment.
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
    /// `(group, plural)`, as errors about objects name it.
    pub(crate) fn resource(&self) -> (&'static str, &'static str) {
        (self.group, self.plural)
    }

    /// `(group, kind)`, as errors about fields name it: the group of the stored form.
    pub(crate) fn group_kind(&self) -> (&'static str, &'static str) {
        match self.storage.split_once('/') {
            Some((group, _)) if !self.review => (group, self.kind),
            _ => (self.group, self.kind),
        }
    }

    /// The version of this name.
    pub(crate) fn version(&self, name: &str) -> Option<&'static Version> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// What hangs below an object in a version of this kind.
    pub(crate) fn subresources(&self, version: &Version) -> &'static [Subresource] {
        let custom = version.custom.map(|custom| custom.subresources);
        custom.unwrap_or(self.subresources)
    }

    /// The subresource of this name.
    pub(crate) fn subresource(&self, version: &Version, name: &str) -> Option<Subresource> {
        let mut all = self.subresources(version).iter().copied();
        all.find(|sub| sub.name() == name)
    }

    /// What selectors may name in a version of this kind.
    pub(crate) fn fields(&self, version: &Version) -> &'static [Field] {
        version.custom.map_or(self.fields, |custom| custom.fields)
    }

    /// The storage name, shared.
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

/// All built-in kinds, in the order discovery shows them.
pub(crate) fn all() -> &'static [&'static Kind] {
    &kinds::KINDS
}

/// What custom kinds have in common.
pub(crate) fn custom_base() -> Kind {
    kinds::BASE
}

/// The built-in kind that serves a resource.
pub(crate) fn find(group: &str, plural: &str) -> Option<&'static Kind> {
    TABLE.by_resource.get(&(group, plural)).copied()
}

/// The groups with their versions, in the order discovery shows them: core first, then by first
/// appearance in the table; versions by preference.
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
