//! Roles and bindings, indexed by subject so that a decision looks only at the caller's own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::Deserialize;

use super::Rule;
use crate::auth::{Attributes, MASTERS, Target, User};
use crate::http::Decision;
use crate::store::Object;

/// Storage names of the four kinds, in the order in which they are followed.
pub(super) const RESOURCES: [&str; 4] = [
    "rbac.authorization.k8s.io/clusterroles",
    "rbac.authorization.k8s.io/roles",
    "rbac.authorization.k8s.io/clusterrolebindings",
    "rbac.authorization.k8s.io/rolebindings",
];

/// Namespace (empty for the cluster) and name.
type Place = (String, String);

/// Everything that the store says about access at one moment.
#[derive(Debug, Default)]
pub(super) struct Policy {
    roles: HashMap<Place, Role>,
    bindings: BTreeMap<Place, Binding>,
    by_subject: HashMap<Subject, BTreeSet<Place>>,
    /// Rules of the ClusterRoles that gather those of others, worked out when a ClusterRole changes.
    aggregated: HashMap<String, Arc<[Rule]>>,
}

#[derive(Debug)]
struct Role {
    rules: Arc<[Rule]>,
    labels: BTreeMap<String, String>,
    selectors: Option<Vec<Selector>>,
}

#[derive(Debug)]
struct Binding {
    role: RoleRef,
    subjects: Vec<SubjectRef>,
}

/// The role that a binding grants.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RoleRef {
    /// `Role` or `ClusterRole`.
    pub(super) kind: String,
    /// Its name.
    pub(super) name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    User(String),
    Group(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SubjectRef {
    kind: String,
    name: String,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RoleObject {
    rules: Option<Vec<Rule>>,
    aggregation_rule: Option<Aggregation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Aggregation {
    cluster_role_selectors: Option<Vec<Selector>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BindingObject {
    role_ref: RoleRef,
    subjects: Option<Vec<SubjectRef>>,
}

/// A label selector of an aggregation rule.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Selector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<Expression>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Expression {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl Policy {
    /// Takes in a new version of an object, or its removal.
    pub(super) fn apply(&mut self, resource: &str, object: &Object, removed: bool) {
        let place = (object.key.namespace.clone(), object.key.name.clone());
        if resource.ends_with("bindings") {
            self.unbind(&place);
            if !removed {
                self.bind(place, object);
            }
            return;
        }
        if removed {
            self.roles.remove(&place);
        } else {
            // An object that does not read as a role grants nothing.
            let role: RoleObject = serde_json::from_slice(&object.json).unwrap_or_default();
            let role = Role {
                rules: role.rules.unwrap_or_default().into(),
                labels: object.labels.clone(),
                selectors: role
                    .aggregation_rule
                    .map(|a| a.cluster_role_selectors.unwrap_or_default()),
            };
            self.roles.insert(place, role);
        }
        if object.key.namespace.is_empty() {
            self.aggregate();
        }
    }

    /// Decides one request.
    pub(super) fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        if user.is_in(MASTERS) {
            return Decision {
                allowed: true,
                reason: String::new(),
            };
        }
        let namespace = match attributes.target {
            Target::Resource { namespace, .. } => namespace,
            Target::Path(_) => "",
        };
        let mut missing = Vec::new();
        for (place, binding, subject) in self.bindings_of(user, namespace) {
            match self.rules_of(place, &binding.role) {
                Ok(rules) if rules.iter().any(|rule| rule.matches(attributes)) => {
                    let reason = describe(place, binding, &subject);
                    return Decision {
                        allowed: true,
                        reason,
                    };
                }
                Ok(_) => {}
                Err(absent) => missing.push(absent),
            }
        }
        let reason = match missing.len() {
            0 => String::new(),
            1 => format!("RBAC: {}", missing[0]),
            _ => format!("RBAC: [{}]", missing.join(", ")),
        };
        Decision {
            allowed: false,
            reason,
        }
    }

    /// Every rule that the user has in the namespace, cluster-wide ones included.
    pub(super) fn rules(&self, user: &User, namespace: &str) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (place, binding, _) in self.bindings_of(user, namespace) {
            if let Ok(found) = self.rules_of(place, &binding.role) {
                rules.extend(found.iter().cloned());
            }
        }
        rules
    }

    /// The rules of the role that a binding in `namespace` (empty for cluster-wide) names.
    ///
    /// # Errors
    /// A sentence that says that there is no such role.
    pub(super) fn referenced(
        &self,
        namespace: &str,
        role: &RoleRef,
    ) -> Result<Arc<[Rule]>, String> {
        self.rules_of(&(namespace.to_owned(), String::new()), role)
    }

    fn bindings_of<'a>(
        &'a self,
        user: &'a User,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Place, &'a Binding, Subject)> {
        let groups = user.groups.iter().map(|g| Subject::Group(g.clone()));
        std::iter::once(Subject::User(user.name.clone()))
            .chain(groups)
            .filter_map(|subject| Some((self.by_subject.get(&subject)?, subject)))
            .flat_map(|(places, subject)| places.iter().map(move |place| (place, subject.clone())))
            .filter(move |(place, _)| place.0.is_empty() || place.0 == namespace)
            .filter_map(|(place, subject)| Some((place, self.bindings.get(place)?, subject)))
    }

    fn rules_of(&self, binding: &Place, role: &RoleRef) -> Result<Arc<[Rule]>, String> {
        let (namespace, kind) = match role.kind.as_str() {
            "Role" => (binding.0.as_str(), "role"),
            _ => ("", "clusterrole"),
        };
        if namespace.is_empty()
            && let Some(rules) = self.aggregated.get(&role.name)
        {
            return Ok(Arc::clone(rules));
        }
        let place = (namespace.to_owned(), role.name.clone());
        match self.roles.get(&place) {
            Some(role) => Ok(Arc::clone(&role.rules)),
            None => Err(format!("{kind}.{} {:?} not found", super::GROUP, role.name)),
        }
    }

    fn bind(&mut self, place: Place, object: &Object) {
        let read: BindingObject = serde_json::from_slice(&object.json).unwrap_or_default();
        let binding = Binding {
            role: read.role_ref,
            subjects: read.subjects.unwrap_or_default(),
        };
        for subject in binding.subjects.iter().filter_map(|s| s.resolve(&place.0)) {
            self.by_subject
                .entry(subject)
                .or_default()
                .insert(place.clone());
        }
        self.bindings.insert(place, binding);
    }

    fn unbind(&mut self, place: &Place) {
        let Some(old) = self.bindings.remove(place) else {
            return;
        };
        for subject in old.subjects.iter().filter_map(|s| s.resolve(&place.0)) {
            if let Some(places) = self.by_subject.get_mut(&subject) {
                places.remove(place);
                if places.is_empty() {
                    self.by_subject.remove(&subject);
                }
            }
        }
    }

    fn aggregate(&mut self) {
        let names: Vec<String> = self
            .roles
            .iter()
            .filter(|((namespace, _), role)| namespace.is_empty() && role.selectors.is_some())
            .map(|((_, name), _)| name.clone())
            .collect();
        self.aggregated = names
            .into_iter()
            .map(|name| {
                let mut rules = Vec::new();
                self.gather(&name, &mut BTreeSet::new(), &mut rules);
                (name, rules.into())
            })
            .collect();
    }

    /// Adds the rules of one ClusterRole; for a role that aggregates those of the roles it selects,
    /// which may aggregate in turn. `seen` ends circles.
    fn gather(&self, name: &str, seen: &mut BTreeSet<String>, rules: &mut Vec<Rule>) {
        if !seen.insert(name.to_owned()) {
            return;
        }
        let Some(role) = self.roles.get(&(String::new(), name.to_owned())) else {
            return;
        };
        let Some(selectors) = &role.selectors else {
            for rule in role
                .rules
                .iter()
                .filter(|rule| !rules.contains(rule))
                .collect::<Vec<_>>()
            {
                rules.push(rule.clone());
            }
            return;
        };
        let mut chosen: Vec<&str> = self
            .roles
            .iter()
            .filter(|((namespace, _), other)| {
                namespace.is_empty() && selectors.iter().any(|s| s.matches(&other.labels))
            })
            .map(|((_, name), _)| name.as_str())
            .collect();
        chosen.sort_unstable();
        for other in chosen {
            self.gather(other, seen, rules);
        }
    }
}

impl SubjectRef {
    /// The user or group that is meant; `None` for a subject that names nobody.
    fn resolve(&self, namespace: &str) -> Option<Subject> {
        match self.kind.as_str() {
            "User" => Some(Subject::User(self.name.clone())),
            "Group" => Some(Subject::Group(self.name.clone())),
            "ServiceAccount" => {
                let ns = if self.namespace.is_empty() {
                    namespace
                } else {
                    &self.namespace
                };
                let name = &self.name;
                (!ns.is_empty())
                    .then(|| Subject::User(format!("system:serviceaccount:{ns}:{name}")))
            }
            _ => None,
        }
    }

    fn describe(&self) -> String {
        match self.kind.as_str() {
            "ServiceAccount" => format!("ServiceAccount \"{}/{}\"", self.name, self.namespace),
            kind => format!("{kind} {:?}", self.name),
        }
    }
}

impl Selector {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels
            .iter()
            .all(|(k, v)| labels.get(k) == Some(v))
            && self.match_expressions.iter().all(|e| e.matches(labels))
    }
}

impl Expression {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|v| self.values.contains(v)),
            "NotIn" => value.is_none_or(|v| !self.values.contains(v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

fn describe(place: &Place, binding: &Binding, subject: &Subject) -> String {
    let named = binding
        .subjects
        .iter()
        .find(|s| s.resolve(&place.0).as_ref() == Some(subject))
        .map_or_else(String::new, SubjectRef::describe);
    let role = &binding.role;
    let (kind, name) = match place.0.as_str() {
        "" => ("ClusterRoleBinding", place.1.clone()),
        namespace => ("RoleBinding", format!("{}/{namespace}", place.1)),
    };
    format!(
        "RBAC: allowed by {kind} {name:?} of {} {:?} to {named}",
        role.kind, role.name
    )
}
