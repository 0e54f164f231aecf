//! The exact set of permissions that a command line needs.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tenure_lock::LockKind;

/// Time limit of a permission check and of the query for the user's name.
const LONGEST_CHECK: Duration = Duration::from_secs(10);

/// Group and resource of Leases.
const LEASES: (&str, &str) = ("coordination.k8s.io", "leases");

/// One rule of a Role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    group: &'static str,
    resource: &'static str,
    verbs: Vec<&'static str>,
    /// Limits the rule to this object, which is not possible for `create` and for `list` of many.
    name: Option<String>,
}

/// A namespace and the rules needed there. The empty namespace stands for the whole cluster.
pub(crate) type Needs = Vec<(String, Vec<Rule>)>;

/// Adds needs, so that each namespace is listed once.
pub(crate) fn extend(needs: &mut Needs, more: Needs) {
    for (namespace, rules) in more {
        match needs.iter_mut().find(|(known, _)| *known == namespace) {
            Some((_, known)) => known.extend(rules),
            None => needs.push((namespace, rules)),
        }
    }
}

/// Returns the rules for candidates of a lock: to read, watch, create and write it, and to create Events about it.
/// `more` are additional verbs on the lock object itself.
pub(crate) fn taking_part(kind: LockKind, name: &str, more: &[&'static str]) -> Vec<Rule> {
    let mut verbs = vec!["get", "list", "update", "watch"];
    verbs.extend(more);
    verbs.sort_unstable();
    let mut rules = Vec::new();
    for (group, resource) in objects(kind) {
        rules.push(Rule::named(group, resource, verbs.clone(), name));
        rules.push(Rule::any(group, resource, vec!["create"]));
    }
    rules.push(Rule::any("", "events", vec!["create"]));
    rules
}

/// Returns the rules for reading a lock.
pub(crate) fn looking(kind: LockKind, name: &str) -> Vec<Rule> {
    let look = |(group, resource)| Rule::named(group, resource, vec!["get", "list", "watch"], name);
    objects(kind).into_iter().map(look).collect()
}

/// Returns the rule for reading one Lease.
pub(crate) fn reading_lease(name: &str) -> Rule {
    Rule::named(LEASES.0, LEASES.1, vec!["get"], name)
}

/// Returns the objects of a lock: group and resource.
fn objects(kind: LockKind) -> Vec<(&'static str, &'static str)> {
    let (maps, endpoints) = (("", "configmaps"), ("", "endpoints"));
    match kind {
        LockKind::Leases => vec![LEASES],
        LockKind::ConfigMaps => vec![maps],
        LockKind::Endpoints => vec![endpoints],
        LockKind::ConfigMapsLeases => vec![maps, LEASES],
        LockKind::EndpointsLeases => vec![endpoints, LEASES],
    }
}

impl Rule {
    pub(crate) fn any(
        group: &'static str,
        resource: &'static str,
        verbs: Vec<&'static str>,
    ) -> Self {
        Self {
            group,
            resource,
            verbs,
            name: None,
        }
    }

    pub(crate) fn named(
        group: &'static str,
        resource: &'static str,
        verbs: Vec<&'static str>,
        name: &str,
    ) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..Self::any(group, resource, verbs)
        }
    }

    /// Returns whether both rules are about the same resource.
    fn is_about(&self, other: &Self) -> bool {
        (self.group, self.resource) == (other.group, other.resource)
    }

    fn yaml(&self) -> String {
        let Self {
            group, resource, ..
        } = self;
        let verbs = self.verbs.join(", ");
        let mut text =
            format!("- apiGroups: [\"{group}\"]\n  resources: [{resource}]\n  verbs: [{verbs}]\n");
        if let Some(name) = &self.name {
            text += &format!("  resourceNames: [\"{name}\"]\n");
        }
        text
    }
}

/// Combines rules so that no verb is granted twice. A rule for all objects of a resource includes the rules for single
/// objects.
pub(crate) fn merged(rules: Vec<Rule>) -> Vec<Rule> {
    let mut all: Vec<Rule> = Vec::new();
    for rule in rules.iter().filter(|rule| rule.name.is_none()) {
        match all.iter_mut().find(|other| other.is_about(rule)) {
            Some(other) => other.verbs.extend(&rule.verbs),
            None => all.push(rule.clone()),
        }
    }
    for rule in &mut all {
        rule.verbs.sort_unstable();
        rule.verbs.dedup();
    }
    let mut named: Vec<Rule> = rules
        .into_iter()
        .filter(|rule| rule.name.is_some())
        .collect();
    for rule in &mut named {
        if let Some(whole) = all.iter().find(|whole| whole.is_about(rule)) {
            rule.verbs.retain(|verb| !whole.verbs.contains(verb));
        }
    }
    named.retain(|rule| !rule.verbs.is_empty());
    named.into_iter().chain(all).collect()
}

/// Returns the Roles as YAML, one per namespace, and the ClusterRole if one is needed.
pub(crate) fn roles(election: &str, needs: &Needs) -> String {
    let role = |(namespace, rules): &(String, Vec<Rule>)| {
        let rules: String = rules.iter().map(Rule::yaml).collect();
        let (kind, place) = match namespace.as_str() {
            "" => ("ClusterRole", String::new()),
            namespace => ("Role", format!("\n  namespace: {namespace}")),
        };
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  \
             name: tenure-{election}{place}\nrules:\n{rules}"
        )
    };
    needs.iter().map(role).collect::<Vec<_>>().join("---\n")
}

/// Checks each verb with the API server, and returns the missing permissions.
pub(crate) async fn missing(client: &Client, needs: &Needs) -> Result<Needs> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for (namespace, rules) in needs {
        let mut refused = Vec::new();
        for rule in rules {
            let mut verbs = Vec::new();
            for verb in &rule.verbs {
                let review = review(namespace, rule, verb);
                let answer = reviews.create(&PostParams::default(), &review).await;
                let answer = answer.context("self subject access review")?;
                if !answer.status.is_some_and(|status| status.allowed) {
                    verbs.push(*verb);
                }
            }
            if !verbs.is_empty() {
                let rule = rule.clone();
                refused.push(Rule { verbs, ..rule });
            }
        }
        if !refused.is_empty() {
            missing.push((namespace.clone(), refused));
        }
    }
    Ok(missing)
}

/// Returns whether this user may read one object of a group and a resource; false if that is unknown.
pub(crate) async fn may_get(
    client: &Client,
    (group, resource): (&'static str, &'static str),
    namespace: &str,
    name: &str,
) -> bool {
    let rule = Rule::named(group, resource, vec!["get"], name);
    let needs = vec![(namespace.to_owned(), vec![rule])];
    let refused = missing(client, &needs).await;
    refused.is_ok_and(|refused| refused.is_empty())
}

/// Checks the permissions and prints the missing ones on standard error, with a complete Role and the commands that
/// grant it. Returns whether any is missing; false if that is unknown.
pub(crate) async fn explain(client: &Client, election: &str, needs: &Needs, role: &Needs) -> bool {
    let checked = tokio::time::timeout(LONGEST_CHECK, missing(client, needs)).await;
    let Ok(Ok(missing)) = checked else {
        // The election reports the failed request itself.
        return false;
    };
    if missing.is_empty() {
        return false;
    }
    let user = tokio::time::timeout(LONGEST_CHECK, own_name(client)).await;
    let user = user.unwrap_or_default();
    eprint!("{}", grant(election, &missing, role, user.as_deref()));
    true
}

/// Returns the text about missing permissions: what is missing, the Roles, and the commands that grant them.
fn grant(election: &str, missing: &Needs, role: &Needs, user: Option<&str>) -> String {
    let namespaces: Vec<&str> = role
        .iter()
        .map(|(namespace, _)| namespace.as_str())
        .collect();
    let bind = |namespace: &&str| {
        let (binding, role) = match *namespace {
            "" => ("clusterrolebinding", "clusterrole"),
            _ => ("rolebinding", "role"),
        };
        let place = match *namespace {
            "" => String::new(),
            namespace => format!(" --namespace={namespace}"),
        };
        format!(
            "kubectl create {binding} tenure-{election}{place} --{role}=tenure-{election} {}",
            subject(user, namespace)
        )
    };
    let bind: Vec<String> = namespaces.iter().map(bind).collect();
    format!(
        "tenure: missing permissions: {}\ntenure: save this as role.yaml, then run: kubectl apply -f \
         role.yaml && {}\n{}",
        describe(missing),
        bind.join(" && "),
        roles(election, role)
    )
}

/// Returns the flag of `kubectl create rolebinding` for a user.
fn subject(user: Option<&str>, namespace: &str) -> String {
    // The name comes from the API server, and the line is copied into a shell.
    let is_safe = |name: &&str| {
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        !name.is_empty() && name.chars().all(safe)
    };
    match user.filter(is_safe) {
        Some(user) => match user.strip_prefix("system:serviceaccount:") {
            Some(account) => format!("--serviceaccount={account}"),
            None => format!("--user={user}"),
        },
        None if namespace.is_empty() => "--serviceaccount=NAMESPACE:NAME".to_owned(),
        None => format!("--serviceaccount={namespace}:NAME"),
    }
}

/// Returns the name of the user of this client, if the API server says it.
async fn own_name(client: &Client) -> Option<String> {
    let review = serde_json::json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
    });
    let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(review.to_string().into_bytes())
        .ok()?;
    let answer = client.request::<serde_json::Value>(request).await.ok()?;
    let name = answer["status"]["userInfo"]["username"].as_str()?;
    Some(name.to_owned())
}

/// Formats missing permissions: `update leases, create events in namespace x`. A verb that is missing for several names
/// of a resource is listed once.
pub(crate) fn describe(missing: &Needs) -> String {
    let verbs = |rules: &[Rule]| {
        let mut listed = Vec::new();
        for rule in rules {
            for verb in &rule.verbs {
                let permission = format!("{verb} {}", rule.resource);
                if !listed.contains(&permission) {
                    listed.push(permission);
                }
            }
        }
        listed.join(", ")
    };
    let place = |(namespace, rules): &(String, Vec<Rule>)| match namespace.as_str() {
        "" => format!("{} in the cluster", verbs(rules)),
        namespace => format!("{} in namespace {namespace}", verbs(rules)),
    };
    missing.iter().map(place).collect::<Vec<_>>().join("; ")
}

fn review(namespace: &str, rule: &Rule, verb: &str) -> SelfSubjectAccessReview {
    let (resource, part) = match rule.resource.split_once('/') {
        Some((resource, part)) => (resource, Some(part.to_owned())),
        None => (rule.resource, None),
    };
    SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(rule.group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: part,
                namespace: Some(namespace.to_owned()).filter(|name| !name.is_empty()),
                verb: Some(verb.to_owned()),
                name: rule.name.clone(),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_permission_is_followed_by_one_whole_role_and_its_commands() {
        let role = vec![("shop".to_owned(), taking_part(LockKind::Leases, "web", &[]))];
        let missing = vec![(
            "shop".to_owned(),
            vec![Rule::any("", "events", vec!["create"])],
        )];
        let text = grant(
            "web",
            &missing,
            &role,
            Some("system:serviceaccount:shop:web"),
        );
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..2],
            [
                "tenure: missing permissions: create events in namespace shop",
                "tenure: save this as role.yaml, then run: kubectl apply -f role.yaml && kubectl create \
                 rolebinding tenure-web --namespace=shop --role=tenure-web --serviceaccount=shop:web",
            ]
        );
        assert_eq!(text.matches("kind: Role\n").count(), 1, "{text}");
        assert!(text.contains("verbs: [get, list, update, watch]"), "{text}");
    }

    #[test]
    fn merged_rules_grant_each_verb_once() {
        let mut rules = taking_part(LockKind::Leases, "web", &[]);
        rules.push(Rule::any(
            LEASES.0,
            LEASES.1,
            vec!["create", "delete", "list"],
        ));
        let expected = [
            Rule::named(LEASES.0, LEASES.1, vec!["get", "update", "watch"], "web"),
            Rule::any(LEASES.0, LEASES.1, vec!["create", "delete", "list"]),
            Rule::any("", "events", vec!["create"]),
        ];
        assert_eq!(merged(rules), expected);
    }

    #[test]
    fn binding_names_only_users_that_a_shell_takes_literally() {
        assert_eq!(
            subject(Some("jo@example.com"), "shop"),
            "--user=jo@example.com"
        );
        for unknown in [None, Some(""), Some("a; rm -r /"), Some("$(x)")] {
            assert_eq!(subject(unknown, "shop"), "--serviceaccount=shop:NAME");
        }
    }
}
