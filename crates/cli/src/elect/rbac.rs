//! The permissions that a command line needs: no more, and no fewer.

use anyhow::{Context, Result};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tenure::lock::LockKind;

use super::args::Elect;
use super::outlets::slice;

/// One rule of a Role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    group: &'static str,
    resource: &'static str,
    verbs: Vec<&'static str>,
    /// Limited to this object; `create` and `list` of many cannot be.
    name: Option<String>,
}

/// A namespace and what is needed there.
pub(super) type Needs = Vec<(String, Vec<Rule>)>;

impl Elect {
    /// What this command line needs, given where its lock and its pod are.
    pub(super) fn needs(&self, lock: &str, pod: &str) -> Needs {
        let mut needs = vec![(lock.to_owned(), self.lock_rules())];
        let pods = self.pod_rules();
        if pods.is_empty() {
            return needs;
        }
        if lock == pod {
            needs[0].1.extend(pods);
        } else {
            needs.push((pod.to_owned(), pods));
        }
        needs
    }

    fn lock_rules(&self) -> Vec<Rule> {
        let name = &self.election.election;
        let kind = self.election.lock;
        let mut rules = Vec::new();
        let mut lock = |group, resource| {
            let verbs = if self.dry_run {
                vec!["get", "list", "watch"]
            } else {
                vec!["get", "list", "update", "watch"]
            };
            rules.push(Rule::named(group, resource, verbs, name));
            if !self.dry_run {
                rules.push(Rule::any(group, resource, vec!["create"]));
            }
        };
        if matches!(kind, LockKind::ConfigMaps | LockKind::ConfigMapsLeases) {
            lock("", "configmaps");
        }
        if matches!(kind, LockKind::Endpoints | LockKind::EndpointsLeases) {
            lock("", "endpoints");
        }
        if !matches!(kind, LockKind::ConfigMaps | LockKind::Endpoints) {
            lock("coordination.k8s.io", "leases");
        }
        if !self.dry_run {
            rules.push(Rule::any("", "events", vec!["create"]));
        }
        rules
    }

    /// Routing, and the readiness of the own pod.
    fn pod_rules(&self) -> Vec<Rule> {
        let route = &self.route;
        let mut rules = Vec::new();
        let mut verbs = Vec::new();
        if self.health.wait_ready {
            verbs.push("get");
        }
        if !self.dry_run && route.label.is_some() {
            verbs.extend(["list", "patch"]);
        } else if !self.dry_run && route.service.is_some() {
            verbs.push("patch");
        }
        if !verbs.is_empty() {
            rules.push(Rule::any("", "pods", verbs));
        }
        if self.dry_run {
            return rules;
        }
        if let Some(service) = &route.service {
            rules.push(Rule::named("", "services", vec!["get", "patch"], service));
        }
        if let Some(service) = &route.endpointslice {
            if route.service.as_ref() != Some(service) {
                rules.push(Rule::named("", "services", vec!["get"], service));
            }
            let (group, slices) = ("discovery.k8s.io", "endpointslices");
            let name = slice::name_of(service);
            rules.push(Rule::named(group, slices, vec!["get", "update"], &name));
            rules.push(Rule::any(group, slices, vec!["create"]));
        }
        rules
    }
}

impl Rule {
    fn any(group: &'static str, resource: &'static str, verbs: Vec<&'static str>) -> Self {
        Self {
            group,
            resource,
            verbs,
            name: None,
        }
    }

    fn named(
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

/// The Roles as YAML, one per namespace.
pub(super) fn roles(election: &str, needs: &Needs) -> String {
    let role = |(namespace, rules): &(String, Vec<Rule>)| {
        let rules: String = rules.iter().map(Rule::yaml).collect();
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  \
             name: tenure-{election}\n  namespace: {namespace}\nrules:\n{rules}"
        )
    };
    needs.iter().map(role).collect::<Vec<_>>().join("---\n")
}

/// Asks the API server about each verb; returns what is refused.
pub(super) async fn missing(client: &Client, needs: &Needs) -> Result<Needs> {
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

/// Whether this user may read one object of a group and a resource; in doubt not.
pub(super) async fn may_get(
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

/// `update leases, create events in namespace x`.
pub(super) fn describe(missing: &Needs) -> String {
    let verbs = |rules: &[Rule]| {
        let each = |rule: &Rule| {
            let resource = rule.resource;
            rule.verbs
                .iter()
                .map(move |verb| format!("{verb} {resource}"))
                .collect::<Vec<_>>()
        };
        rules.iter().flat_map(each).collect::<Vec<_>>().join(", ")
    };
    let place = |(namespace, rules): &(String, Vec<Rule>)| {
        format!("{} in namespace {namespace}", verbs(rules))
    };
    missing.iter().map(place).collect::<Vec<_>>().join("; ")
}

fn review(namespace: &str, rule: &Rule, verb: &str) -> SelfSubjectAccessReview {
    SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(rule.group.to_owned()),
                resource: Some(rule.resource.to_owned()),
                namespace: Some(namespace.to_owned()),
                verb: Some(verb.to_owned()),
                name: rule.name.clone(),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    }
}
