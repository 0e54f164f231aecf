//! Nobody grants more than they have.
//!
//! A role may be written only by a caller who already has each of its rules in that scope, or who has
//! the verb `escalate` on the role; a binding only by a caller who has each rule of the role it names,
//! or the verb `bind` on that role.

use serde_json::Value;

use super::authorizer::Authorizer;
use super::policy::RoleRef;
use super::{GROUP, Rule};
use crate::auth::{Attributes, Target, User};
use crate::http::NotGranted;

impl Authorizer {
    /// Checks a write of a role or a binding (`resource` is its plural) over the version that the
    /// write replaces; what that one grants already is not granted anew.
    ///
    /// # Errors
    /// Says what the write would grant beyond what the caller has.
    pub(crate) fn check_grant(
        &self,
        user: &User,
        resource: &str,
        namespace: &str,
        old: Option<&Value>,
        new: &Value,
    ) -> Result<(), NotGranted> {
        let name = new
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let unchanged = |fields: [&str; 2]| {
            old.is_some_and(|old| fields.iter().all(|f| old.get(f) == new.get(f)))
        };
        match resource {
            "roles" | "clusterroles" if !unchanged(["rules", "aggregationRule"]) => {
                self.check_role(user, resource, namespace, name, new)
            }
            "rolebindings" | "clusterrolebindings" if !unchanged(["roleRef", "subjects"]) => {
                self.check_binding(user, namespace, new)
            }
            _ => Ok(()),
        }
    }

    fn check_role(
        &self,
        user: &User,
        resource: &str,
        namespace: &str,
        name: &str,
        new: &Value,
    ) -> Result<(), NotGranted> {
        if self.may(user, "escalate", resource, namespace, name) {
            return Ok(());
        }
        let mut wanted = rules(new);
        // Which roles an aggregation will gather, nobody knows yet: it counts as everything.
        if new.get("aggregationRule").is_some_and(|a| !a.is_null()) {
            wanted.extend(everything());
        }
        self.check_covered(user, namespace, &wanted)
    }

    fn check_binding(&self, user: &User, namespace: &str, new: &Value) -> Result<(), NotGranted> {
        let role: RoleRef = new
            .get("roleRef")
            .and_then(|r| serde::Deserialize::deserialize(r).ok())
            .unwrap_or_default();
        let plural = if role.kind == "Role" {
            "roles"
        } else {
            "clusterroles"
        };
        if self.may(user, "bind", plural, namespace, &role.name) {
            return Ok(());
        }
        let granted = self
            .read(|policy| policy.rules_of(namespace, &role).map(<[Rule]>::to_vec))
            .ok_or_else(|| NotGranted::NoRole {
                resource: plural,
                name: role.name.clone(),
            })?;
        self.check_covered(user, namespace, &granted)
    }

    fn may(&self, user: &User, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let target = Target::Resource {
            group: GROUP,
            resource,
            subresource: "",
            namespace,
            name,
        };
        self.decide(user, &Attributes { verb, target }).allowed
    }

    fn check_covered(
        &self,
        user: &User,
        namespace: &str,
        wanted: &[Rule],
    ) -> Result<(), NotGranted> {
        let had = self.rules(user, namespace);
        let missing: Vec<String> = wanted
            .iter()
            .flat_map(Rule::atoms)
            .filter(|atom| !had.iter().any(|rule| rule.covers(atom)))
            .map(|atom| describe(&atom))
            .collect();
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
}

fn rules(role: &Value) -> Vec<Rule> {
    role.get("rules")
        .and_then(|rules| serde::Deserialize::deserialize(rules).ok())
        .unwrap_or_default()
}

fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule {
            verbs: all(),
            api_groups: all(),
            resources: all(),
            ..Rule::default()
        },
        Rule {
            verbs: all(),
            non_resource_urls: all(),
            ..Rule::default()
        },
    ]
}

fn describe(rule: &Rule) -> String {
    let list = |name: &str, items: &[String]| {
        let items: Vec<String> = items.iter().map(|i| format!("{i:?}")).collect();
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
