//! Names of Kubernetes objects, and the parts of their metadata that locks need.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use tenure_core::{ResourceVersion, Version};

/// A kind of object, as the API defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Kind, for example `Lease`.
    pub kind: &'static str,
    /// Plural name, for example `leases`.
    pub plural: &'static str,
    /// Name of the kind in running text.
    pub word: &'static str,
}

impl Resource {
    /// Leases.
    pub const LEASE: Self = Self {
        group: "coordination.k8s.io",
        version: "v1",
        kind: "Lease",
        plural: "leases",
        word: "lease",
    };
    /// ConfigMaps.
    pub const CONFIG_MAP: Self = Self {
        group: "",
        version: "v1",
        kind: "ConfigMap",
        plural: "configmaps",
        word: "configmap",
    };
    /// Endpoints.
    pub const ENDPOINTS: Self = Self {
        group: "",
        version: "v1",
        kind: "Endpoints",
        plural: "endpoints",
        word: "endpoints",
    };

    /// LeaseCandidates, in the version that Kubernetes serves since 1.33.
    pub const LEASE_CANDIDATE: Self = Self {
        group: "coordination.k8s.io",
        version: "v1beta1",
        kind: "LeaseCandidate",
        plural: "leasecandidates",
        word: "leasecandidate",
    };

    /// Returns `coordination.k8s.io/v1`, or `v1` in the core group.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns `leases.coordination.k8s.io`, the form used in permissions.
    pub fn qualified(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Returns the path of all objects of this kind in a namespace.
    pub fn path(&self, namespace: &str) -> String {
        let Self {
            group,
            version,
            plural,
            ..
        } = self;
        match *group {
            "" => format!("/api/{version}/namespaces/{namespace}/{plural}"),
            group => format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}"),
        }
    }
}

/// A namespaced object. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ObjectName {
    parts: Arc<NameParts>,
}

#[derive(PartialEq, Eq, Hash)]
struct NameParts {
    resource: Resource,
    /// `lease kube-system/x`. Contains namespace and name, to save memory in a process with thousands of locks.
    described: Box<str>,
    /// Length of the namespace in bytes.
    namespace: usize,
}

impl ObjectName {
    pub(crate) fn new(resource: Resource, namespace: &str, name: &str) -> Self {
        Self {
            parts: Arc::new(NameParts {
                resource,
                described: format!("{} {namespace}/{name}", resource.word).into(),
                namespace: namespace.len(),
            }),
        }
    }

    /// Returns the kind of the object.
    pub fn resource(&self) -> &Resource {
        &self.parts.resource
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        let start = self.parts.resource.word.len() + 1;
        &self.parts.described[start..start + self.parts.namespace]
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        let start = self.parts.resource.word.len() + 1 + self.parts.namespace + 1;
        &self.parts.described[start..]
    }

    /// Returns kind, namespace and name for display: `lease kube-system/x`.
    pub fn describe(&self) -> &str {
        &self.parts.described
    }

    /// Returns the path of the object.
    pub fn path(&self) -> String {
        let mut path = self.parts.resource.path(self.namespace());
        path.reserve_exact(1 + self.name().len());
        path.push('/');
        path.push_str(self.name());
        path
    }

    /// Returns the problem with namespace or name if the API server would reject them. Checked before any request, so
    /// that a name cannot lead to another path.
    pub(crate) fn problem(&self) -> Option<String> {
        let (namespace, name) = (self.namespace(), self.name());
        let mut problems = Vec::new();
        if namespace.len() > 63 || namespace.contains('.') || !is_dns_subdomain(namespace) {
            problems.push(format!(
                "namespace {namespace:?} must be lower case letters, digits and '-', at most 63, \
                 beginning and ending with a letter or digit"
            ));
        }
        if !is_dns_subdomain(name) {
            problems.push(format!(
                "name {name:?} must be lower case letters, digits, '-' and '.', at most 253, each \
                 part beginning and ending with a letter or digit"
            ));
        }
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Returns an object that has only this name.
    pub(crate) fn blank(&self) -> Value {
        serde_json::json!({
            "apiVersion": self.parts.resource.api_version(),
            "kind": self.parts.resource.kind,
            "metadata": { "name": self.name(), "namespace": self.namespace() },
        })
    }

    /// Returns the reference for Events, with the known uid and version of the object.
    pub(crate) fn reference(&self, object: Option<&Value>) -> ObjectRef {
        let version = object.and_then(version);
        ObjectRef {
            api_version: self.parts.resource.api_version(),
            kind: self.parts.resource.kind.to_owned(),
            namespace: self.namespace().to_owned(),
            name: self.name().to_owned(),
            uid: version.as_ref().map(|version| version.uid.to_string()),
            resource_version: version.map(|version| version.revision.to_string()),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.describe())
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectName({})", self.describe())
    }
}

/// The object that an Event is about (`involvedObject`, `regarding`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// API version, for example `coordination.k8s.io/v1`.
    pub api_version: String,
    /// Kind, for example `Lease`.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Its uid, if known.
    pub uid: Option<String>,
    /// Its version, if known.
    pub resource_version: Option<String>,
}

/// Returns the version of an object from an API server; `None` if it has none.
pub(crate) fn version(object: &Value) -> Option<Version> {
    let text = |key| {
        object["metadata"][key]
            .as_str()
            .filter(|text| !text.is_empty())
    };
    Some(Version {
        uid: text("uid")?.into(),
        revision: ResourceVersion::new(text("resourceVersion")?),
    })
}

/// Returns the value of an annotation.
pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

/// Sets one key of `metadata.labels` or `metadata.annotations`. Creates the map if it is missing.
pub(crate) fn set_metadata(object: &mut Value, map: &str, key: &str, value: &str) {
    let metadata = entries(object, "metadata");
    let map = entries_of(metadata, map);
    map.insert(key.to_owned(), Value::from(value));
}

/// Returns the map under `key`. Any other value there is replaced by an empty map.
pub(crate) fn entries<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    match object {
        Value::Object(map) => entries_of(map, key),
        _ => unreachable!("made an object just above"),
    }
}

fn entries_of<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let value = map.entry(key).or_insert(Value::Null);
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object just above"),
    }
}

/// Returns the problem with a label if the API server would reject it.
pub fn label_problem(key: &str, value: &str) -> Option<String> {
    let (prefix, name) = match key.rsplit_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let mut problems = Vec::new();
    if prefix.is_some_and(|prefix| !is_dns_subdomain(prefix)) || !is_label_text(name) {
        problems.push(format!(
            "label key {key:?} must be at most 63 letters, digits, '-', '_' and '.', beginning and \
             ending with a letter or digit, after at most one prefix like \"example.com/\""
        ));
    }
    if !value.is_empty() && !is_label_text(value) {
        problems.push(format!(
            "value {value:?} of label {key:?} must be empty or at most 63 letters, digits, '-', '_' \
             and '.', beginning and ending with a letter or digit"
        ));
    }
    (!problems.is_empty()).then(|| problems.join("; "))
}

fn is_label_text(text: &str) -> bool {
    let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = end(text.chars().next()) && end(text.chars().next_back());
    ends && text.len() <= 63 && text.chars().all(inner)
}

fn is_dns_subdomain(text: &str) -> bool {
    let part = |part: &str| {
        let ends =
            |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        ends(part.chars().next()) && ends(part.chars().next_back()) && part.chars().all(inner)
    };
    text.len() <= 253 && text.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_descriptions_have_the_documented_form() {
        let lease = ObjectName::new(Resource::LEASE, "kube-system", "x.y");
        assert_eq!(lease.to_string(), "lease kube-system/x.y");
        assert_eq!(
            lease.path(),
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x.y"
        );
        assert_eq!(lease.resource().qualified(), "leases.coordination.k8s.io");
        let map = ObjectName::new(Resource::CONFIG_MAP, "a", "b");
        assert_eq!(map.path(), "/api/v1/namespaces/a/configmaps/b");
        assert_eq!(map.resource().qualified(), "configmaps");
    }

    #[test]
    fn names_that_could_change_the_path_are_refused() {
        let problem = |namespace: &str, name: &str| {
            ObjectName::new(Resource::LEASE, namespace, name).problem()
        };
        assert_eq!(problem("kube-system", "my-app.0"), None);
        for name in [
            "", "..", "a/b", "a b", "A", "a_b", "-a", "a-", ".a", "a?x=1", "ä",
        ] {
            assert!(problem("ns", name).is_some(), "{name:?}");
        }
        for namespace in ["", "a.b", "a/b", "A", &"x".repeat(64)] {
            assert!(problem(namespace, "x").is_some(), "{namespace:?}");
        }
    }

    #[test]
    fn names_and_labels_of_the_greatest_length_are_accepted() {
        let problem = |namespace: usize, name: usize| {
            let (namespace, name) = ("x".repeat(namespace), "x".repeat(name));
            ObjectName::new(Resource::LEASE, &namespace, &name).problem()
        };
        assert_eq!(problem(63, 253), None);
        assert!(problem(64, 253).is_some() && problem(63, 254).is_some());
        assert_eq!(label_problem(&"x".repeat(63), &"x".repeat(63)), None);
    }

    #[test]
    fn namespace_and_name_are_both_checked() {
        let both = ObjectName::new(Resource::LEASE, "A", "b/c")
            .problem()
            .unwrap();
        assert!(
            both.contains("namespace \"A\"") && both.contains("name \"b/c\""),
            "{both}"
        );
    }

    #[test]
    fn labels_that_the_api_server_refuses_are_named() {
        for (key, value) in [("app", "x"), ("example.com/Part_of", ""), ("a", "1.0-B_c")] {
            assert_eq!(label_problem(key, value), None);
        }
        for key in [
            "",
            "bad key!",
            "/x",
            "A.b/x",
            "a/b/c",
            "-a",
            &"x".repeat(64),
        ] {
            assert!(
                label_problem(key, "x").unwrap().contains("label key"),
                "{key:?}"
            );
        }
        for value in ["x y", "-x", "x.", "ä", &"x".repeat(64)] {
            let problem = label_problem("app", value).unwrap();
            assert!(problem.contains("of label \"app\""), "{problem}");
        }
    }
}
