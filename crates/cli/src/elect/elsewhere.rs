//! Locks of the same election that this candidate does not look at: of another kind, or in the namespace
//! `default`, where the old sidecar kept its own.
//!
//! Candidates on two locks elect two leaders, and nothing on either lock tells. So a lock that was renewed
//! within its lease duration is worth a line, once, at the start. It is looked at only where access reviews
//! allow it: the least Role has no such permission, and must not need it.

use kube::Client;
use tenure::lock::LockKind;

use crate::elections::{self, Seen};
use crate::rbac;

/// Where the old sidecar kept its lock unless told otherwise.
const OLD_NAMESPACE: &str = "default";

/// Says which other locks of this election are in use.
pub(super) async fn warn(client: Client, kind: LockKind, namespace: String, election: String) {
    let places = [namespace.as_str(), OLD_NAMESPACE];
    let places = if namespace == OLD_NAMESPACE {
        &places[..1]
    } else {
        &places[..]
    };
    for place in places {
        for other in elections::KINDS {
            let resource = elections::resource_of(other);
            if *place == namespace && uses(kind, other) {
                continue;
            }
            let named = (resource.group, resource.plural);
            if !rbac::may_get(&client, named, place, &election).await {
                continue;
            }
            // Not there, or not to be seen: there is nothing to say.
            let Ok(Some(seen)) = elections::get(&client, other, place, &election).await else {
                continue;
            };
            if in_use(&seen) {
                tracing::warn!(
                    election,
                    lock = format!("{other} {place}/{election}"),
                    holder = seen.holder,
                    renewed_ago = format!("{:.0} s", seen.renewed_ago_seconds.unwrap_or_default()),
                    "another lock of this election is in use, and its candidates do not see this one: \
                     {}",
                    advice(*place == namespace, kind, other, place)
                );
            }
        }
    }
}

/// Whether somebody holds it and renewed it within its lease duration.
fn in_use(seen: &Seen) -> bool {
    seen.valid_for_seconds.is_some_and(|left| left > 0.0)
}

/// Whether locks of this kind include objects of the other.
fn uses(kind: LockKind, other: LockKind) -> bool {
    match other {
        LockKind::Leases => !matches!(kind, LockKind::ConfigMaps | LockKind::Endpoints),
        other => elections::resource_of(kind) == elections::resource_of(other),
    }
}

fn advice(same_place: bool, kind: LockKind, other: LockKind, place: &str) -> String {
    let both = match (kind, other) {
        (LockKind::Leases, old) => format!("--lock={old}leases"),
        (kind, LockKind::Leases) => format!("--lock={kind}leases"),
        _ => "one --lock".to_owned(),
    };
    if same_place {
        format!("give all of them {both} until none of the old ones is left")
    } else {
        format!("give all of them one --election-namespace ({place} is the old sidecar's)")
    }
}
