//! Privilege escalation checks: no user can grant more than they have.
//!
//! A role may be written only by a caller that already has each of its rules in that scope, or that has the verb
//! `escalate` on the role. A binding may be written only by a caller that has each rule of the role it names, or that
//! has the verb `bind` on that role.

use serde_json::Value;

use super::authorizer::Authorizer;
use super::policy::{Policy, RoleRef};
use super::{Comparison, GROUP, Rule};
use crate::auth::{Attributes, NotGranted, Target, User};
use crate::status::shortened;

/// The permissions that a write of a role or a binding grants.
#[derive(Debug)]
pub(crate) struct Grant<'a> {
    namespace: &'a str,
    /// Plural name of the role's kind.
    resource: &'static str,
    granted: Granted<'a>,
}

#[derive(Debug)]
enum Granted<'a> {
    /// These rules, granted to the subjects of the role of this name.
    Rules(&'a str, Vec<Rule>),
    /// A role, granted to the subjects of a binding.
    Role(RoleRef),
}

impl<'a> Grant<'a> {
    /// Returns the grant of a write, by the plural name of its kind, or `None` if it grants nothing. Grants of the
    /// replaced version do not count.
    pub(crate) fn of(
        resource: &str,
        namespace: &'a str,
        old: Option<&Value>,
        new: &'a Value,
    ) -> Option<Self> {
        let unchanged = |fields: [&str; 2]| {
            old.is_some_and(|old| fields.iter().all(|f| old.get(f) == new.get(f)))
        };
        // Labels decide which aggregated roles include a ClusterRole.
        let labels = |role: &Value| role.pointer("/metadata/labels").cloned();
        let relabelled =
            || resource == "clusterroles" && old.is_some_and(|old| labels(old) != labels(new));
        let (resource, granted) = match resource {
            "roles" | "clusterroles"
                if !unchanged(["rules", "aggregationRule"]) || relabelled() =>
            {
                let name = new.pointer("/metadata/name").and_then(Value::as_str);
                let mut rules = rules(new);
                // The roles that an aggregation will select are not known yet, so it counts as granting everything.
                if new.get("aggregationRule").is_some_and(|a| !a.is_null()) {
                    rules.extend(Rule::everything());
                }
                if rules.is_empty() {
                    return None;
                }
                let granted = Granted::Rules(name.unwrap_or_default(), rules);
                (plural(resource == "roles"), granted)
            }
            "rolebindings" | "clusterrolebindings" if !unchanged(["roleRef", "subjects"]) => {
                let role: RoleRef = new
                    .get("roleRef")
                    .and_then(|r| serde::Deserialize::deserialize(r).ok())
                    .unwrap_or_default();
                (plural(role.kind == "Role"), Granted::Role(role))
            }
            _ => return None,
        };
        Some(Self {
            namespace,
            resource,
            granted,
        })
    }

    /// Returns the permission that allows the write regardless of the caller's rules.
    pub(crate) fn lifted_by(&self) -> Attributes<'_> {
        let (verb, name) = match &self.granted {
            Granted::Rules(name, _) => ("escalate", *name),
            Granted::Role(role) => ("bind", role.name.as_str()),
        };
        let target = Target::Resource {
            group: GROUP,
            resource: self.resource,
            subresource: "",
            namespace: self.namespace,
            name,
        };
        Attributes { verb, target }
    }
}

/// A grant together with the rules on which the decision about it depends. They are copied, so that the comparison,
/// which may take long, does not hold the policy.
#[derive(Debug)]
pub(super) enum Claim {
    /// The caller may grant anything here.
    Lifted,
    /// The granted role does not exist.
    NoRole(NotGranted),
    /// The caller may grant `wanted` if `had` covers it.
    Covered { had: Vec<Rule>, wanted: Vec<Rule> },
}

impl Policy {
    /// Collects the rules that decide whether the user may write a role or a binding.
    pub(super) fn claim(&self, user: &User, grant: &Grant<'_>) -> Claim {
        if self.allows(user, &grant.lifted_by()) {
            return Claim::Lifted;
        }
        let wanted = match &grant.granted {
            Granted::Rules(_, rules) => rules.clone(),
            Granted::Role(role) => match self.rules_of(grant.namespace, role) {
                Some(rules) => rules,
                None => {
                    return Claim::NoRole(NotGranted::NoRole {
                        resource: grant.resource,
                        name: role.name.clone(),
                    });
                }
            },
        };
        let had = self.rules(user, grant.namespace);
        Claim::Covered { had, wanted }
    }
}

impl Claim {
    /// Decides the claim of a user.
    ///
    /// # Errors
    /// Returns the grants that the caller does not have.
    pub(super) fn check(self, user: &User) -> Result<(), NotGranted> {
        match self {
            Self::Lifted => Ok(()),
            Self::NoRole(missing) => Err(missing),
            Self::Covered { had, wanted } => check_covered(user, &had, &wanted),
        }
    }
}

impl Authorizer {
    /// Checks a write of a role or a binding.
    ///
    /// # Errors
    /// Returns the grants that the caller does not have.
    pub(crate) fn check_grant(&self, user: &User, grant: &Grant<'_>) -> Result<(), NotGranted> {
        self.read(|policy| policy.claim(user, grant)).check(user)
    }
}

fn check_covered(user: &User, had: &[Rule], wanted: &[Rule]) -> Result<(), NotGranted> {
    let mut comparison = Comparison::new(had);
    let all = wanted.iter().all(|rule| comparison.compare(rule));
    let mut missing: Vec<String> = comparison.missing.iter().map(describe).collect();
    if !all {
        let rest = if comparison.is_spent() {
            "... and too many combinations to compare; split the rules"
        } else {
            "... and more"
        };
        missing.push(rest.to_owned());
    }
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = user.groups.iter().map(|g| format!("{g:?}")).collect();
    Err(NotGranted::Beyond(format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        missing.join("\n"),
    )))
}

fn plural(local: bool) -> &'static str {
    if local { "roles" } else { "clusterroles" }
}

fn rules(role: &Value) -> Vec<Rule> {
    role.get("rules")
        .and_then(|rules| serde::Deserialize::deserialize(rules).ok())
        .unwrap_or_default()
}

fn describe(rule: &Rule) -> String {
    let list = |name: &str, items: &[String]| {
        let items: Vec<String> = items
            .iter()
            .map(|i| format!("{:?}", shortened(i)))
            .collect();
        (!items.is_empty()).then(|| format!("{name}:[{}]", items.join(" ")))
    };
    let parts = [
        list("APIGroups", &rule.api_groups),
        list("Resources", &rule.resources),
        list("ResourceNames", &rule.resource_names),
        list("NonResourceURLs", &rule.non_resource_urls),
        list("Verbs", &rule.verbs),
    ];
    format!(
        "{{{}}}",
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    )
}
