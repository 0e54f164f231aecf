//! Checks the permissions, and reports the missing verbs.

use futures_util::future::join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tenure_lock::{LockKind, Resource};

use super::{Finding, Level};
use crate::elections;
use crate::rbac::{self, Rule};

/// Group, resource, verb, and whether it concerns only the one lock object.
type Need = (&'static str, &'static str, &'static str, bool);

/// A task that needs permissions.
struct Purpose {
    what: &'static str,
    without: Level,
    needs: Vec<Need>,
    /// Alternative permissions that are sufficient, if any.
    instead: Vec<Need>,
}

/// Checks every verb with the API server.
pub(super) async fn check(
    client: &Client,
    kind: LockKind,
    namespace: &str,
    name: Option<&str>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut lacking: Vec<Need> = Vec::new();
    for purpose in purposes(kind) {
        let mut missing = missing(client, namespace, name, &purpose.needs).await;
        if matches!(&missing, Ok(missing) if !missing.is_empty()) && !purpose.instead.is_empty() {
            let instead = self::missing(client, namespace, name, &purpose.instead).await;
            if matches!(&instead, Ok(instead) if instead.is_empty()) {
                missing = instead;
            }
        }
        let what = purpose.what;
        findings.push(match missing {
            Err(error) => {
                let error = tenure::plain(&error);
                let summary = format!("to {what}: cannot check permissions: {error}");
                Finding::new("access", Level::Warn, summary)
            }
            Ok(missing) if missing.is_empty() => Finding::new(
                "access",
                Level::Ok,
                format!("to {what}: all permissions granted"),
            ),
            Ok(missing) => {
                let verbs: Vec<&str> = missing.iter().map(|(text, _)| text.as_str()).collect();
                let summary = format!("to {what}: missing permissions: {}", verbs.join(", "));
                let finding = Finding::new("access", purpose.without, summary)
                    .figures(json!({ "missing": verbs }));
                lacking.extend(missing.iter().map(|(_, need)| *need));
                finding
            }
        });
    }
    // Print one Role for all missing permissions, after the last finding that lacks one.
    let last = findings
        .iter()
        .rposition(|f| f.figures["missing"].is_array());
    if let Some(last) = last {
        let finding = findings.remove(last);
        findings.insert(last, finding.advice(role(namespace, name, &lacking)));
    }
    findings
}

/// Returns the missing permissions with descriptions.
async fn missing(
    client: &Client,
    namespace: &str,
    name: Option<&str>,
    needs: &[Need],
) -> Result<Vec<(String, Need)>, kube::Error> {
    let asked = needs.iter().map(|need| async move {
        let allowed = allowed(client, namespace, name, *need).await?;
        Ok((!allowed).then(|| (format!("{} {}", need.2, need.1), *need)))
    });
    let answers = join_all(asked).await.into_iter();
    answers.filter_map(Result::transpose).collect()
}

fn purposes(kind: LockKind) -> Vec<Purpose> {
    let mut locks = Vec::new();
    if matches!(kind, LockKind::ConfigMaps | LockKind::ConfigMapsLeases) {
        locks.push(Resource::CONFIG_MAP);
    }
    if matches!(kind, LockKind::Endpoints | LockKind::EndpointsLeases) {
        locks.push(Resource::ENDPOINTS);
    }
    if !matches!(kind, LockKind::ConfigMaps | LockKind::Endpoints) {
        locks.push(Resource::LEASE);
    }
    let each = |verbs: &[(&'static str, bool)]| -> Vec<_> {
        let of = |lock: &Resource| {
            let (group, plural) = (lock.group, lock.plural);
            let needs = verbs
                .iter()
                .map(move |(verb, named)| (group, plural, *verb, *named));
            needs.collect::<Vec<_>>()
        };
        locks.iter().flat_map(of).collect()
    };
    // Orders are written to the object that contains the record.
    let orders = elections::resource_of(kind);
    let order = |verbs: &[&'static str]| -> Vec<Need> {
        let need = |verb: &&'static str| (orders.group, orders.plural, *verb, true);
        verbs.iter().map(need).collect()
    };
    let take_part = [
        ("get", true),
        ("list", true),
        ("watch", true),
        ("update", true),
        ("create", false),
    ];
    vec![
        Purpose {
            what: "campaign",
            without: Level::Fail,
            needs: each(&take_part),
            instead: Vec::new(),
        },
        Purpose {
            what: "announce terms (history)",
            without: Level::Warn,
            needs: vec![("", "events", "create", false)],
            instead: Vec::new(),
        },
        Purpose {
            what: "see elections (status, top, history)",
            without: Level::Warn,
            needs: {
                let mut needs = each(&[("list", false), ("watch", false)]);
                needs.push(("", "events", "list", false));
                needs
            },
            instead: Vec::new(),
        },
        Purpose {
            what: "steer (step-down, pause)",
            without: Level::Warn,
            needs: order(&["patch"]),
            // Candidates have these permissions.
            instead: order(&["get", "update"]),
        },
    ]
}

async fn allowed(
    client: &Client,
    namespace: &str,
    name: Option<&str>,
    (group, resource, verb, named): (&str, &str, &str, bool),
) -> Result<bool, kube::Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                namespace: Some(namespace.to_owned()),
                verb: Some(verb.to_owned()),
                name: name.filter(|_| named).map(str::to_owned),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Returns one Role with these permissions. Verbs on the same objects share a rule.
fn role(namespace: &str, name: Option<&str>, missing: &[Need]) -> String {
    let mut merged: Vec<(&'static str, &'static str, bool, Vec<&'static str>)> = Vec::new();
    for (group, resource, verb, named) in missing {
        let named = *named && name.is_some();
        let known = merged
            .iter_mut()
            .find(|rule| (rule.0, rule.1, rule.2) == (*group, *resource, named));
        match known {
            Some(rule) if rule.3.contains(verb) => {}
            Some(rule) => rule.3.push(verb),
            None => merged.push((group, resource, named, vec![verb])),
        }
    }
    let rule = |(group, resource, named, verbs)| match name.filter(|_| named) {
        Some(name) => Rule::named(group, resource, verbs, name),
        None => Rule::any(group, resource, verbs),
    };
    let rules = merged.into_iter().map(rule).collect();
    let role = rbac::roles(
        name.unwrap_or("elections"),
        &vec![(namespace.to_owned(), rules)],
    );
    format!("this Role grants the missing permissions:\n{role}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_has_one_rule_per_object_and_names_it_where_it_can() {
        let leases = |verb, named| ("coordination.k8s.io", "leases", verb, named);
        let missing = [
            ("", "events", "create", false),
            leases("get", true),
            leases("update", true),
            leases("get", true),
            leases("create", false),
        ];
        let text = role("ns", Some("web"), &missing);
        assert_eq!(text.matches("kind: Role\n").count(), 1, "{text}");
        assert_eq!(text.matches("- apiGroups").count(), 3, "{text}");
        assert!(
            text.contains("verbs: [get, update]\n  resourceNames: [\"web\"]\n"),
            "{text}"
        );
        assert!(text.contains("name: tenure-web\n  namespace: ns"), "{text}");
    }

    #[test]
    fn multi_locks_need_both_objects() {
        let purposes = purposes(LockKind::EndpointsLeases);
        let take_part = &purposes[0].needs;
        assert_eq!(take_part.len(), 10);
        assert!(take_part.contains(&("", "endpoints", "update", true)));
        assert!(take_part.contains(&("coordination.k8s.io", "leases", "create", false)));
    }
}
