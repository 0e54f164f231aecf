//! Computes the minimal roles for observed traffic, as YAML.
//!
//! Every request counts, including denied requests and those of members of `system:masters`. Run a program once as
//! administrator, and the file contains the permissions that it needs to run as another user. Permissions that every
//! authenticated user has (discovery, health, self reviews) are omitted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use super::{Attributes, Target, User};

/// Maximum number of names in a rule. A longer list would soon be outdated.
const MAX_NAMES: usize = 8;

/// Records the requests of callers.
#[derive(Debug, Default)]
pub struct Recorder {
    seen: Mutex<Recorded>,
}

#[derive(Debug, Default)]
struct Recorded {
    users: BTreeMap<String, Needs>,
    changes: u64,
}

/// The requests of one user: by namespace (empty for the cluster), by resource, by verb.
#[derive(Debug, Default)]
struct Needs {
    resources: BTreeMap<String, BTreeMap<Resource, BTreeMap<String, Names>>>,
    paths: BTreeMap<String, BTreeSet<String>>,
}

/// API group and `resource[/subresource]`.
type Resource = (String, String);

/// The names that a verb was used with. The list is dropped once the verb was used without a name or with too many
/// names.
#[derive(Debug)]
enum Names {
    Some(BTreeSet<String>),
    All,
}

impl Recorder {
    /// Creates an empty recorder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records one request.
    pub fn observe(&self, user: &User, attributes: &Attributes<'_>) {
        if granted_to_everyone(attributes) {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.users.contains_key(&user.name) {
            seen.users.insert(user.name.clone(), Needs::default());
        }
        let changed = match seen.users.get_mut(&user.name) {
            Some(needs) => needs.add(attributes),
            None => false,
        };
        seen.changes += u64::from(changed);
    }

    /// Number of observations that added something new. The YAML is outdated once this has grown.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .changes
    }

    /// Returns the minimal Roles and ClusterRoles with their bindings, as a stream of YAML documents.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        for (user, needs) in &seen.users {
            needs.write(&mut out, user);
        }
        out
    }
}

impl Needs {
    fn add(&mut self, attributes: &Attributes<'_>) -> bool {
        let verb = attributes.verb;
        match attributes.target {
            Target::Path(path) => self
                .paths
                .entry(path.to_owned())
                .or_default()
                .insert(verb.to_owned()),
            Target::Resource {
                group,
                resource,
                subresource,
                namespace,
                name,
            } => {
                let whole = match subresource {
                    "" => resource.to_owned(),
                    sub => format!("{resource}/{sub}"),
                };
                let verbs = self
                    .resources
                    .entry(namespace.to_owned())
                    .or_default()
                    .entry((group.to_owned(), whole))
                    .or_default();
                // A rule with names never grants creation.
                let name = if verb == "create" && subresource.is_empty() {
                    ""
                } else {
                    name
                };
                match verbs.get_mut(verb) {
                    Some(names) => names.add(name),
                    None => {
                        verbs.insert(verb.to_owned(), Names::first(name));
                        true
                    }
                }
            }
        }
    }

    fn write(&self, out: &mut String, user: &str) {
        let name = format!("recorded:{}", user.replace(['/', '%'], "-"));
        for (namespace, resources) in &self.resources {
            if !namespace.is_empty() {
                let rules = resources
                    .iter()
                    .map(|(r, v)| resource_rules(r, v))
                    .collect::<String>();
                write_role(out, user, &name, namespace, &rules);
            }
        }
        let cluster = self.resources.get("");
        let mut rules: String = cluster
            .into_iter()
            .flatten()
            .map(|(r, v)| resource_rules(r, v))
            .collect();
        for (path, verbs) in &self.paths {
            let _ = writeln!(rules, "- nonResourceURLs: [{}]", quoted(path));
            let _ = writeln!(rules, "  verbs: [{}]", list(verbs.iter()));
        }
        if !rules.is_empty() {
            write_role(out, user, &name, "", &rules);
        }
    }
}

impl Names {
    fn first(name: &str) -> Self {
        if name.is_empty() {
            Self::All
        } else {
            Self::Some(BTreeSet::from([name.to_owned()]))
        }
    }

    /// Adds a name. Returns whether it is new.
    fn add(&mut self, name: &str) -> bool {
        let Self::Some(names) = self else {
            return false;
        };
        if !name.is_empty() && names.contains(name) {
            return false;
        }
        names.insert(name.to_owned());
        if name.is_empty() || names.len() > MAX_NAMES {
            *self = Self::All;
        }
        true
    }
}

/// Combines the verbs that were used with the same names into one rule.
fn resource_rules((group, resource): &Resource, verbs: &BTreeMap<String, Names>) -> String {
    let mut by_names: BTreeMap<Option<&BTreeSet<String>>, Vec<&String>> = BTreeMap::new();
    for (verb, names) in verbs {
        let names = match names {
            Names::Some(names) => Some(names),
            Names::All => None,
        };
        by_names.entry(names).or_default().push(verb);
    }
    let mut out = String::new();
    for (names, verbs) in by_names {
        let _ = writeln!(out, "- apiGroups: [{}]", quoted(group));
        let _ = writeln!(out, "  resources: [{}]", quoted(resource));
        if let Some(names) = names {
            let _ = writeln!(out, "  resourceNames: [{}]", list(names.iter()));
        }
        let _ = writeln!(out, "  verbs: [{}]", list(verbs.into_iter()));
    }
    out
}

fn write_role(out: &mut String, user: &str, name: &str, namespace: &str, rules: &str) {
    let (kind, binding) = match namespace {
        "" => ("ClusterRole", "ClusterRoleBinding"),
        _ => ("Role", "RoleBinding"),
    };
    let mut metadata = format!("metadata:\n  name: {}\n", quoted(name));
    if !namespace.is_empty() {
        let _ = writeln!(metadata, "  namespace: {}", quoted(namespace));
    }
    let subject = match user
        .strip_prefix("system:serviceaccount:")
        .and_then(|u| u.split_once(':'))
    {
        Some((namespace, account)) => format!(
            "- kind: ServiceAccount\n  name: {}\n  namespace: {}\n",
            quoted(account),
            quoted(namespace)
        ),
        None => format!(
            "- kind: User\n  apiGroup: rbac.authorization.k8s.io\n  name: {}\n",
            quoted(user)
        ),
    };
    let name = quoted(name);
    let _ = write!(
        out,
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\n{metadata}rules:\n{rules}\
         ---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {binding}\n{metadata}\
         roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {name}\n\
         subjects:\n{subject}"
    );
}

/// Whether the bootstrap roles grant the request to every authenticated user.
fn granted_to_everyone(attributes: &Attributes<'_>) -> bool {
    match attributes.target {
        Target::Path(path) => attributes.verb == "get" && super::bootstrap::is_discovery(path),
        Target::Resource {
            group, resource, ..
        } => {
            attributes.verb == "create"
                && match group {
                    "authorization.k8s.io" => {
                        matches!(
                            resource,
                            "selfsubjectaccessreviews" | "selfsubjectrulesreviews"
                        )
                    }
                    "authentication.k8s.io" => resource == "selfsubjectreviews",
                    _ => false,
                }
        }
    }
}

/// Quotes a text; every JSON string is a valid YAML string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn list<'a>(items: impl Iterator<Item = &'a String>) -> String {
    items.map(|i| quoted(i)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(recorder: &Recorder, verb: &str, resource: &str, namespace: &str, name: &str) {
        let user = User::new("system:serviceaccount:app:ctl", []);
        let (group, subresource) = ("coordination.k8s.io", "");
        let target = Target::Resource {
            group,
            resource,
            subresource,
            namespace,
            name,
        };
        recorder.observe(&user, &Attributes { verb, target });
    }

    #[test]
    fn leader_election_needs_one_named_lease_and_create() {
        let recorder = Recorder::new();
        for verb in ["get", "update", "get"] {
            see(&recorder, verb, "leases", "app", "lock");
        }
        see(&recorder, "create", "leases", "app", "lock");
        assert_eq!(recorder.changes(), 3);
        let yaml = recorder.to_yaml();
        let role = yaml.split("---\n").nth(1).unwrap();
        assert_eq!(
            role,
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  \
             name: \"recorded:system:serviceaccount:app:ctl\"\n  namespace: \"app\"\nrules:\n\
             - apiGroups: [\"coordination.k8s.io\"]\n  resources: [\"leases\"]\n  verbs: [\"create\"]\n\
             - apiGroups: [\"coordination.k8s.io\"]\n  resources: [\"leases\"]\n  \
             resourceNames: [\"lock\"]\n  verbs: [\"get\", \"update\"]\n"
        );
        assert!(yaml.contains("- kind: ServiceAccount\n  name: \"ctl\"\n  namespace: \"app\"\n"));
    }

    #[test]
    fn rule_with_too_many_names_allows_every_name() {
        let recorder = Recorder::new();
        for i in 0..=MAX_NAMES {
            see(&recorder, "get", "leases", "", &format!("n{i}"));
        }
        assert!(!recorder.to_yaml().contains("resourceNames"));
        assert!(recorder.to_yaml().contains("kind: ClusterRole\n"));
    }

    #[test]
    fn permissions_of_every_user_are_omitted() {
        let recorder = Recorder::new();
        let user = User::admin();
        let path = |verb, path| Attributes {
            verb,
            target: Target::Path(path),
        };
        recorder.observe(&user, &path("get", "/apis/apps/v1"));
        assert_eq!(recorder.to_yaml(), "");
        recorder.observe(&user, &path("get", "/metrics"));
        assert!(
            recorder
                .to_yaml()
                .contains("- nonResourceURLs: [\"/metrics\"]\n  verbs: [\"get\"]")
        );
    }
}
