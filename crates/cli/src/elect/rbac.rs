//! The permissions that an election needs: no more, and no fewer.

use anyhow::{Context, Result};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tenure::lock::LockKind;

use crate::election::Election;

/// One line of a Role.
struct Rule {
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    /// Limited to the lock object; `create` and Events cannot be.
    named: bool,
}

fn rules(kind: LockKind) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut lock = |group, resource| {
        let verbs = &["get", "update", "list", "watch"];
        rules.push(Rule {
            group,
            resource,
            verbs,
            named: true,
        });
        rules.push(Rule {
            group,
            resource,
            verbs: &["create"],
            named: false,
        });
    };
    if matches!(kind, LockKind::ConfigMaps | LockKind::ConfigMapsLeases) {
        lock("", "configmaps");
    }
    if matches!(kind, LockKind::Endpoints | LockKind::EndpointsLeases) {
        lock("", "endpoints");
    }
    if matches!(
        kind,
        LockKind::Leases | LockKind::ConfigMapsLeases | LockKind::EndpointsLeases
    ) {
        lock("coordination.k8s.io", "leases");
    }
    rules.push(Rule {
        group: "",
        resource: "events",
        verbs: &["create", "patch"],
        named: false,
    });
    rules
}

/// The Role as YAML.
pub(crate) fn role(election: &Election, namespace: &str) -> String {
    let name = &election.election;
    let mut text = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  name: tenure-{name}\n  \
         namespace: {namespace}\nrules:\n"
    );
    for rule in rules(election.lock) {
        let verbs = rule.verbs.join(", ");
        text += &format!(
            "- apiGroups: [\"{}\"]\n  resources: [{}]\n  verbs: [{verbs}]\n",
            rule.group, rule.resource
        );
        if rule.named {
            text += &format!("  resourceNames: [{name}]\n");
        }
    }
    text
}

/// Asks the API server about each verb; returns those that are refused.
pub(crate) async fn missing(
    client: &Client,
    election: &Election,
    namespace: &str,
) -> Result<Vec<String>> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for rule in rules(election.lock) {
        for verb in rule.verbs {
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        group: Some(rule.group.to_owned()),
                        resource: Some(rule.resource.to_owned()),
                        namespace: Some(namespace.to_owned()),
                        verb: Some((*verb).to_owned()),
                        name: rule.named.then(|| election.election.clone()),
                        ..ResourceAttributes::default()
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let answer = reviews.create(&PostParams::default(), &review).await;
            let answer = answer.context("self subject access review")?;
            if !answer.status.is_some_and(|status| status.allowed) {
                missing.push(format!("{verb} {}", rule.resource));
            }
        }
    }
    Ok(missing)
}
