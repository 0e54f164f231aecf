//! The table of kinds, and the verbs on their objects.
//!
//! A new kind is one entry in [`kinds`] plus, where needed, functions for defaults and validation. The verbs depend on
//! the table alone.

mod accounts;
mod claims;
pub(crate) mod columns;
mod create;
mod definitions;
mod delete;
mod engine;
mod eviction;
mod expiry;
mod ingresses;
mod kinds;
pub(crate) mod meta;
mod namespaces;
mod node_ports;
mod owners;
mod pods;
mod quotas;
mod recent;
pub(crate) mod rules;
mod update;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

pub(crate) use columns::Column;
pub(crate) use create::check_namespace;
pub(crate) use delete::{DeleteOptions, Deleted};
pub(crate) use engine::{Registry, Target, WriteOptions};
pub(crate) use kinds::{CustomVersion, Kind, KindRef, Scale, Version};
pub(crate) use owners::Configuration;
pub(crate) use update::Source;

/// The changes that `metadata.generation` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// The kind has no generation.
    None,
    /// Changes of everything except metadata and status.
    Content,
    /// Changes of content and labels.
    Labels,
    /// Changes of content and annotations.
    Annotations,
    /// Changes of content, starting without a value: a new object has no generation.
    Changes,
    /// No changes: the generation is always 1.
    First,
}

/// The question that a review asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    /// The user of the request.
    SelfSubject,
    /// The user of a token.
    Token,
    /// Whether the user of the request may do something.
    SelfAccess,
    /// The rules that apply to the user in a namespace.
    SelfRules,
    /// Whether another user may do something.
    Access,
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
}

/// The field selectors of a version of a kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    /// Whether the objects belong to a namespace.
    namespaced: bool,
    /// The selectors beyond `metadata.name` and `metadata.namespace`.
    own: OwnFields,
}

#[derive(Clone, Debug)]
pub(crate) enum OwnFields {
    BuiltIn(&'static [Field]),
    Custom(Arc<CustomVersion>),
}

impl Default for OwnFields {
    fn default() -> Self {
        Self::BuiltIn(&[])
    }
}

impl Fields {
    /// Returns the labels that a selector may use.
    pub(crate) fn labels(&self) -> Vec<&str> {
        match &self.own {
            OwnFields::BuiltIn(fields) => fields.iter().map(|field| field.label).collect(),
            OwnFields::Custom(custom) => custom.fields.keys().map(String::as_str).collect(),
        }
    }

    /// Whether a selector may use `metadata.namespace`. A cluster-scoped kind supports it only if it has the default
    /// selectors. A kind that defines selectors lists all of them.
    pub(crate) fn has_namespace(&self) -> bool {
        self.namespaced || matches!(&self.own, OwnFields::BuiltIn([]))
    }

    /// Returns the text that a selector compares with.
    pub(crate) fn value(&self, label: &str, object: &Value) -> String {
        let text = |pointer: &str| match object.pointer(pointer) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            Some(value @ (Value::Bool(_) | Value::Number(_))) => Some(value.to_string()),
            _ => None,
        };
        match &self.own {
            OwnFields::BuiltIn(fields) => fields
                .iter()
                .find(|field| field.label == label)
                .map_or_else(String::new, |field| {
                    let found = field.pointers.iter().find_map(|pointer| text(pointer));
                    found.unwrap_or_else(|| field.absent.to_owned())
                }),
            OwnFields::Custom(custom) => {
                let pointer = custom.fields.get(label);
                pointer
                    .and_then(|pointer| text(pointer))
                    .unwrap_or_default()
            }
        }
    }
}

/// Syntax of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// RFC 1123 subdomain.
    Subdomain,
    /// RFC 1123 label.
    Label,
    /// Any text that fits into one path segment.
    PathSegment,
    /// No rule: the kind has only the general checks of metadata, which any path segment and finalizer passes.
    General,
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
        .map(|kind| (kind.storage(), Arc::from(kind.storage())))
        .collect(),
});

/// All built-in kinds, in the order of discovery.
pub(crate) fn all() -> &'static [&'static Kind] {
    &kinds::KINDS
}

/// Returns the shared storage name of a built-in kind.
fn storage_key(storage: &'static str) -> Arc<str> {
    TABLE
        .storage
        .get(storage)
        .map_or_else(|| Arc::from(storage), Arc::clone)
}

/// Returns the built-in kind that serves a resource.
pub(crate) fn find(group: &str, plural: &str) -> Option<&'static Kind> {
    TABLE.by_resource.get(&(group, plural)).copied()
}

/// Returns the groups with their versions in the order of discovery: by priority, then by name. Versions are sorted by
/// preference.
pub(crate) fn groups<'a>(kinds: &[&'a Kind]) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut out: Vec<(&str, Vec<&str>)> = Vec::new();
    for kind in kinds {
        let index = out
            .iter()
            .position(|(group, _)| *group == kind.group())
            .unwrap_or_else(|| {
                out.push((kind.group(), Vec::new()));
                out.len() - 1
            });
        for version in kind.versions() {
            if !out[index].1.contains(&version.name()) {
                out[index].1.push(version.name());
            }
        }
    }
    out.sort_by_key(|(group, _)| (std::cmp::Reverse(priority(group)), *group));
    out
}

/// Returns the priority of a group in discovery, as in the real server.
fn priority(group: &str) -> u16 {
    const CUSTOM: u16 = 1_000;
    let known = [
        ("apiregistration.k8s.io", 20_000),
        ("", 18_000),
        ("apps", 17_800),
        ("events.k8s.io", 17_750),
        ("authentication.k8s.io", 17_700),
        ("authorization.k8s.io", 17_600),
        ("autoscaling", 17_500),
        ("batch", 17_400),
        ("certificates.k8s.io", 17_300),
        ("networking.k8s.io", 17_200),
        ("policy", 17_100),
        ("rbac.authorization.k8s.io", 17_000),
        ("storage.k8s.io", 16_800),
        ("admissionregistration.k8s.io", 16_700),
        ("apiextensions.k8s.io", 16_700),
        ("scheduling.k8s.io", 16_600),
        ("coordination.k8s.io", 16_500),
        ("node.k8s.io", 16_300),
        ("discovery.k8s.io", 16_200),
        ("resource.k8s.io", 16_200),
        ("flowcontrol.apiserver.k8s.io", 16_100),
        ("internal.apiserver.k8s.io", 16_000),
        ("storagemigration.k8s.io", 15_800),
    ];
    let found = known.into_iter().find(|(name, _)| *name == group);
    found.map_or(CUSTOM, |(_, priority)| priority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_kinds_is_consistent() {
        let mut seen = std::collections::HashSet::new();
        for kind in all() {
            assert!(seen.insert(kind.resource()), "{} twice", kind.plural());
            assert!(!kind.versions().is_empty(), "{}", kind.plural());
            assert_eq!(kind.plural(), kind.plural().to_lowercase());
            assert_eq!(kind.singular(), kind.kind().to_lowercase());
            let (_, stored) = kind.storage().split_once('/').expect("group/plural");
            assert!(
                kind.review.is_some() || stored == kind.plural(),
                "{}",
                kind.storage()
            );
            assert!(find(kind.group(), kind.plural()).is_some());
        }
        assert!(find("nope", "leases").is_none());
    }

    #[test]
    fn groups_begin_with_the_core_group() {
        let groups = groups(all());
        assert_eq!(groups[0], ("", vec!["v1"]));
        assert_eq!(groups[1], ("apps", vec!["v1"]));
        let built_in = groups
            .iter()
            .all(|(group, _)| priority(group) > priority("t.example"));
        assert!(built_in, "{groups:?}");
        let coordination = groups.iter().find(|(g, _)| *g == "coordination.k8s.io");
        assert_eq!(
            coordination.expect("there").1,
            ["v1", "v1beta1", "v1alpha2"]
        );
    }
}
