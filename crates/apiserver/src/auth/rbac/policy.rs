//! Roles and bindings, indexed by subject, so that a decision reads only the caller's bindings.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;

use super::Rule;
use crate::auth::{Attributes, Decision, MASTERS, Target, User};
use crate::store::Object;

/// Storage names of the four kinds, in the order of the watches.
pub(super) const RESOURCES: [&str; 4] = [
    "rbac.authorization.k8s.io/clusterroles",
    "rbac.authorization.k8s.io/roles",
    "rbac.authorization.k8s.io/clusterrolebindings",
    "rbac.authorization.k8s.io/rolebindings",
];

/// The roles and bindings of the store at one revision.
///
/// A decision allocates only if it returns an explanation.
#[derive(Debug, Default)]
pub(super) struct Policy {
    roles: Scoped<Role>,
    /// The bindings of each user and each group.
    users: HashMap<String, Scoped<Arc<Binding>>>,
    groups: HashMap<String, Scoped<Arc<Binding>>>,
    bindings: Scoped<Arc<Binding>>,
    /// Rules of the ClusterRoles that aggregate others. Each has one list of rules per selected role.
    /// [`Policy::finish`] computes them. The rules themselves are neither copied nor compared, because there may be
    /// very many.
    aggregated: HashMap<String, Vec<Arc<[Rule]>>>,
    /// Whether `aggregated` is out of date.
    stale: bool,
}

/// Most names that a decision on a thread of the runtime compares: less than a millisecond.
pub(super) const BRIEF: usize = 10_000;
/// Most missing roles that a reason names.
const MOST_MISSING: usize = 20;

/// A decision would compare more names than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spent;

/// Items by namespace (empty for the cluster) and name.
#[derive(Debug)]
struct Scoped<T>(HashMap<String, BTreeMap<String, T>>);

impl<T> Default for Scoped<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Scoped<T> {
    fn get(&self, namespace: &str, name: &str) -> Option<&T> {
        self.0.get(namespace)?.get(name)
    }

    fn within<'a>(
        &'a self,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a String, &'a T)> + use<'a, T> {
        self.0.get(namespace).into_iter().flatten()
    }

    fn insert(&mut self, namespace: &str, name: &str, item: T) -> Option<T> {
        let names = self.0.entry(namespace.to_owned()).or_default();
        names.insert(name.to_owned(), item)
    }

    fn remove(&mut self, namespace: &str, name: &str) -> Option<T> {
        let names = self.0.get_mut(namespace)?;
        let removed = names.remove(name);
        if names.is_empty() {
            self.0.remove(namespace);
        }
        removed
    }
}

#[derive(Debug)]
struct Role {
    rules: Arc<[Rule]>,
    labels: BTreeMap<String, String>,
    selectors: Option<Vec<Selector>>,
}

#[derive(Debug)]
struct Binding {
    namespace: String,
    name: String,
    role: RoleRef,
    subjects: Vec<SubjectRef>,
}

/// The role that a binding grants.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RoleRef {
    /// `Role` or `ClusterRole`.
    pub(super) kind: String,
    /// Name of the role.
    pub(super) name: String,
}

/// The subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Applies a new version of an object, or its removal. Call [`Self::finish`] before the next decision.
    pub(super) fn apply(&mut self, resource: &str, object: &Object, removed: bool) {
        let (namespace, name) = (&object.key.namespace, &object.key.name);
        if resource.ends_with("bindings") {
            self.unbind(namespace, name);
            if !removed {
                self.bind(object);
            }
            return;
        }
        let old = if removed {
            self.roles.remove(namespace, name)
        } else {
            // An object that does not parse as a role grants nothing.
            let role: RoleObject = serde_json::from_slice(&object.json).unwrap_or_default();
            let selectors = role.aggregation_rule.map(|a| a.cluster_role_selectors);
            let role = Role {
                rules: role.rules.unwrap_or_default().into(),
                labels: object.labels.clone(),
                selectors: selectors.map(Option::unwrap_or_default),
            };
            self.roles.insert(namespace, name, role)
        };
        if namespace.is_empty() && !self.stale {
            let new = self.roles.get("", name);
            self.stale = old.iter().chain(new).any(|role| self.is_selected(role));
        }
    }

    /// Recomputes the aggregated roles if one of them may have changed.
    pub(super) fn finish(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.aggregate();
        }
    }

    /// Whether one request is allowed.
    pub(super) fn allows(&self, user: &User, attributes: &Attributes<'_>) -> bool {
        user.is_in(MASTERS) || matches!(self.granting(user, attributes, usize::MAX), Ok(Some(_)))
    }

    /// Whether one request is allowed, if at most [`BRIEF`] names have to be compared for that.
    pub(super) fn allows_briefly(
        &self,
        user: &User,
        attributes: &Attributes<'_>,
    ) -> Result<bool, Spent> {
        let binding = self.granting(user, attributes, BRIEF)?;
        Ok(binding.is_some())
    }

    /// Decides one request, with the reason.
    pub(super) fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        if user.is_in(MASTERS) {
            return Decision {
                allowed: true,
                reason: String::new(),
            };
        }
        match self.granting(user, attributes, usize::MAX) {
            Ok(Some(binding)) => Decision {
                allowed: true,
                reason: binding.describe(user),
            },
            _ => Decision {
                allowed: false,
                reason: self.missing(user, attributes),
            },
        }
    }

    /// Returns every rule that the user has in the namespace, including cluster-wide ones.
    pub(super) fn rules(&self, user: &User, namespace: &str) -> Vec<Rule> {
        let mut rules = Vec::new();
        for binding in self.bindings_of(user, namespace) {
            let found = self.rules_of(&binding.namespace, &binding.role);
            rules.extend(found.unwrap_or_default());
        }
        rules
    }

    /// Returns the rules of the role that a binding in `namespace` (empty for cluster-wide) names, each once, or `None`
    /// if the role does not exist.
    pub(super) fn rules_of(&self, namespace: &str, role: &RoleRef) -> Option<Vec<Rule>> {
        let lists = self.lists_of(namespace, role)?;
        if let [only] = lists {
            return Some(only.to_vec());
        }
        let mut seen = HashSet::new();
        let rules = lists.iter().flat_map(|rules| rules.iter());
        Some(rules.filter(|rule| seen.insert(*rule)).cloned().collect())
    }

    /// Returns the rules of the role that a binding names, as one list for each role that it selects.
    fn lists_of(&self, namespace: &str, role: &RoleRef) -> Option<&[Arc<[Rule]>]> {
        let namespace = if role.is_local() { namespace } else { "" };
        if namespace.is_empty()
            && let Some(lists) = self.aggregated.get(&role.name)
        {
            return Some(lists);
        }
        let role = self.roles.get(namespace, &role.name)?;
        Some(std::slice::from_ref(&role.rules))
    }

    /// Returns the first binding that grants a request, after a comparison of at most about `most` names.
    fn granting(
        &self,
        user: &User,
        attributes: &Attributes<'_>,
        most: usize,
    ) -> Result<Option<&Binding>, Spent> {
        let mut left = most;
        let mut spend = |names: usize| -> Result<(), Spent> {
            left = left.checked_sub(names).ok_or(Spent)?;
            Ok(())
        };
        for binding in self.bindings_of(user, namespace_of(attributes)) {
            spend(1)?;
            let lists = self.lists_of(&binding.namespace, &binding.role);
            for rule in lists.into_iter().flatten().flat_map(|rules| rules.iter()) {
                spend(rule.size())?;
                if rule.matches(attributes) {
                    return Ok(Some(binding));
                }
            }
        }
        Ok(None)
    }

    /// Returns a sentence about the missing roles to which bindings of the user refer.
    fn missing(&self, user: &User, attributes: &Attributes<'_>) -> String {
        let missing: Vec<String> = self
            .bindings_of(user, namespace_of(attributes))
            .filter(|binding| self.lists_of(&binding.namespace, &binding.role).is_none())
            .take(MOST_MISSING)
            .map(|binding| binding.role.not_found())
            .collect();
        match missing.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        }
    }

    /// Returns the user's bindings that apply in a namespace, cluster-wide ones first.
    fn bindings_of<'a, 'b>(
        &'a self,
        user: &'b User,
        namespace: &'b str,
    ) -> impl Iterator<Item = &'a Binding> + use<'a, 'b> {
        let groups = user.groups.iter().filter_map(|g| self.groups.get(g));
        let mine = self.users.get(&user.name).into_iter().chain(groups);
        let local = Some(namespace).filter(|ns| !ns.is_empty());
        mine.flat_map(move |bound| {
            let scopes = std::iter::once("").chain(local);
            scopes.flat_map(|scope| bound.within(scope).map(|(_, binding)| &**binding))
        })
    }

    fn bind(&mut self, object: &Object) {
        let (namespace, name) = (&object.key.namespace, &object.key.name);
        let read: BindingObject = serde_json::from_slice(&object.json).unwrap_or_default();
        let binding = Arc::new(Binding {
            namespace: namespace.clone(),
            name: name.clone(),
            role: read.role_ref,
            subjects: read.subjects.unwrap_or_default(),
        });
        for subject in binding.named() {
            let bound = match subject {
                Subject::User(user) => self.users.entry(user).or_default(),
                Subject::Group(group) => self.groups.entry(group).or_default(),
            };
            bound.insert(namespace, name, Arc::clone(&binding));
        }
        self.bindings.insert(namespace, name, binding);
    }

    fn unbind(&mut self, namespace: &str, name: &str) {
        let Some(old) = self.bindings.remove(namespace, name) else {
            return;
        };
        for subject in old.named() {
            let (map, key) = match subject {
                Subject::User(user) => (&mut self.users, user),
                Subject::Group(group) => (&mut self.groups, group),
            };
            if let Some(bound) = map.get_mut(&key) {
                bound.remove(namespace, name);
                if bound.0.is_empty() {
                    map.remove(&key);
                }
            }
        }
    }

    /// Returns whether a ClusterRole aggregates others, or is selected by one that does.
    fn is_selected(&self, role: &Role) -> bool {
        let selectors = |other: &Role| {
            let mut selectors = other.selectors.iter().flatten();
            selectors.any(|selector| selector.matches(&role.labels))
        };
        role.selectors.is_some() || {
            let gathering = self.aggregated.keys();
            let mut roles = gathering.filter_map(|name| self.roles.get("", name));
            roles.any(selectors)
        }
    }

    fn aggregate(&mut self) {
        let gathering = self.roles.within("");
        let gathering = gathering.filter(|(_, role)| role.selectors.is_some());
        let gathered = gathering.map(|(name, _)| {
            let mut lists = Vec::new();
            self.gather(name, &mut BTreeSet::new(), &mut lists);
            (name.clone(), lists)
        });
        self.aggregated = gathered.collect();
    }

    /// Adds the rules of one ClusterRole. For an aggregated role, adds the rules of the roles that it selects, which
    /// may be aggregated as well. `seen` prevents infinite recursion.
    fn gather<'a>(
        &'a self,
        name: &'a str,
        seen: &mut BTreeSet<&'a str>,
        lists: &mut Vec<Arc<[Rule]>>,
    ) {
        let Some(role) = self.roles.get("", name).filter(|_| seen.insert(name)) else {
            return;
        };
        let Some(selectors) = &role.selectors else {
            if !role.rules.is_empty() {
                lists.push(Arc::clone(&role.rules));
            }
            return;
        };
        for (other, role) in self.roles.within("") {
            if selectors.iter().any(|s| s.matches(&role.labels)) {
                self.gather(other, seen, lists);
            }
        }
    }
}

impl RoleRef {
    fn is_local(&self) -> bool {
        self.kind == "Role"
    }

    /// Returns the error text for a role that does not exist.
    pub(super) fn not_found(&self) -> String {
        let kind = if self.is_local() {
            "role"
        } else {
            "clusterrole"
        };
        format!("{kind}.{} {:?} not found", super::GROUP, self.name)
    }
}

impl Binding {
    fn named(&self) -> impl Iterator<Item = Subject> {
        self.subjects
            .iter()
            .filter_map(|s| s.resolve(&self.namespace))
    }

    /// Returns the reason why this binding applies to the user.
    fn describe(&self, user: &User) -> String {
        let is_meant = |subject: &&SubjectRef| match subject.resolve(&self.namespace) {
            Some(Subject::User(name)) => name == user.name,
            Some(Subject::Group(name)) => user.is_in(&name),
            None => false,
        };
        let subject = self.subjects.iter().find(is_meant);
        let subject = subject.map_or_else(String::new, SubjectRef::describe);
        let (kind, name) = match self.namespace.as_str() {
            "" => ("ClusterRoleBinding", self.name.clone()),
            namespace => ("RoleBinding", format!("{}/{namespace}", self.name)),
        };
        let role = &self.role;
        format!(
            "RBAC: allowed by {kind} {name:?} of {} {:?} to {subject}",
            role.kind, role.name
        )
    }
}

impl SubjectRef {
    /// Returns the user or group of a subject, or `None` for an invalid subject.
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

fn namespace_of<'a>(attributes: &Attributes<'a>) -> &'a str {
    match attributes.target {
        Target::Resource { namespace, .. } => namespace,
        Target::Path(_) => "",
    }
}
