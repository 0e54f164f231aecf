//! Locks of the same election that this candidate does not look at: of another kind, or in the namespace
//! `default`, where the old sidecar kept its own.
//!
//! Candidates on two locks elect two leaders, and nothing on either lock tells. So a lock that was renewed
//! within its lease duration is worth a line, once, at the start. It is looked at only where access reviews
//! allow it: the least Role has no such permission, and must not need it.

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::Value;
use tenure::lock::LockKind;

use super::rbac;
use crate::api;

/// Where the old sidecar kept its lock unless told otherwise.
const OLD_NAMESPACE: &str = "default";

/// The record of locks that are no Leases.
const ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";

/// The kinds of objects that locks are made of, with their API groups.
const OBJECTS: [(&str, &str); 3] = [
    ("coordination.k8s.io", "leases"),
    ("", "configmaps"),
    ("", "endpoints"),
];

/// Who holds a lock, as far as its record says.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    holder: String,
    ago: SignedDuration,
    lease: SignedDuration,
}

/// Says which other locks of this election are in use.
pub(super) async fn warn(client: Client, kind: LockKind, namespace: String, election: String) {
    let places = [namespace.as_str(), OLD_NAMESPACE];
    let places = if namespace == OLD_NAMESPACE {
        &places[..1]
    } else {
        &places[..]
    };
    for place in places {
        for (group, resource) in OBJECTS {
            if *place == namespace && uses(kind, resource) {
                continue;
            }
            let allowed = rbac::may_get(&client, (group, resource), place, &election).await;
            if !allowed {
                continue;
            }
            let Some(held) = look(&client, group, resource, place, &election).await else {
                continue;
            };
            if held.ago < held.lease {
                tracing::warn!(
                    election,
                    lock = format!("{resource} {place}/{election}"),
                    holder = held.holder,
                    renewed_ago = format!("{} s", held.ago.as_secs()),
                    "another lock of this election is in use, and its candidates do not see this one: \
                     {}",
                    advice(*place == namespace, kind, resource, place)
                );
            }
        }
    }
}

/// Whether locks of this kind include objects of this resource.
fn uses(kind: LockKind, resource: &str) -> bool {
    match resource {
        "leases" => !matches!(kind, LockKind::ConfigMaps | LockKind::Endpoints),
        "configmaps" => matches!(kind, LockKind::ConfigMaps | LockKind::ConfigMapsLeases),
        _ => matches!(kind, LockKind::Endpoints | LockKind::EndpointsLeases),
    }
}

fn advice(same_place: bool, kind: LockKind, resource: &str, place: &str) -> String {
    let both = match (kind, resource) {
        (LockKind::Leases, old) => format!("--lock={old}leases"),
        (kind, "leases") => format!("--lock={kind}leases"),
        _ => "one --lock".to_owned(),
    };
    if same_place {
        format!("give all of them {both} until none of the old ones is left")
    } else {
        format!("give all of them one --election-namespace ({place} is the old sidecar's)")
    }
}

async fn look(
    client: &Client,
    group: &str,
    resource: &str,
    namespace: &str,
    name: &str,
) -> Option<Held> {
    let root = if group.is_empty() {
        "/api/v1".to_owned()
    } else {
        format!("/apis/{group}/v1")
    };
    let path = format!("{root}/namespaces/{namespace}/{resource}/{name}");
    // Not there, or not to be seen: there is nothing to say.
    let answer = api::get(client, &path).await.ok()?;
    held(&answer.body, answer.clock.now())
}

/// Reads the record of a lock object.
fn held(object: &Value, now: Timestamp) -> Option<Held> {
    let annotation = object["metadata"]["annotations"][ANNOTATION].as_str();
    let record = match annotation {
        Some(text) => serde_json::from_str(text).ok()?,
        None => object.get("spec")?.clone(),
    };
    let holder = record["holderIdentity"].as_str()?;
    if holder.is_empty() {
        return None;
    }
    let renewed: Timestamp = record["renewTime"].as_str()?.parse().ok()?;
    Some(Held {
        holder: holder.to_owned(),
        ago: now.duration_since(renewed).max(SignedDuration::ZERO),
        lease: SignedDuration::from_secs(record["leaseDurationSeconds"].as_i64()?),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn records_of_leases_and_of_annotations() {
        let now: Timestamp = "2026-11-16T00:00:05Z".parse().unwrap();
        let expected = Held {
            holder: "web-0".to_owned(),
            ago: SignedDuration::from_secs(5),
            lease: SignedDuration::from_secs(10),
        };
        let record = r#"{"holderIdentity":"web-0","leaseDurationSeconds":10,
            "acquireTime":"2026-11-16T00:00:00Z","renewTime":"2026-11-16T00:00:00Z"}"#;
        let old = json!({ "metadata": { "annotations": { ANNOTATION: record } } });
        assert_eq!(held(&old, now).as_ref(), Some(&expected));
        let spec: Value = serde_json::from_str(record).unwrap();
        assert_eq!(held(&json!({ "spec": spec }), now), Some(expected));
        // Endpoints of a Service, a lock that was given back, and nonsense are no locks in use.
        for free in [
            json!({ "metadata": {}, "subsets": [] }),
            json!({ "spec": { "holderIdentity": "", "leaseDurationSeconds": 1 } }),
            json!({ "metadata": { "annotations": { ANNOTATION: "{" } } }),
        ] {
            assert_eq!(held(&free, now), None, "{free}");
        }
    }
}
