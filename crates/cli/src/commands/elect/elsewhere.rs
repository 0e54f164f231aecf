//! Detects locks of the same election that this candidate does not use. Such a lock is of another kind, or in the
//! namespace `default`, where the old sidecar stored its lock.
//!
//! Candidates on two locks elect two leaders, and neither lock shows that. A lock that was renewed within its lease
//! duration is therefore reported once at the start. It is read only if access reviews allow it, because the minimal
//! Role lacks that permission.

use kube::Client;
use tenure_lock::LockKind;

use crate::elections::{self, Seen};
use crate::rbac;

/// A program with elections whose older releases stored their locks elsewhere.
pub(crate) struct Program {
    /// The flag for the kind of lock.
    lock: &'static str,
    /// The flag for the namespace of the lock.
    namespace: &'static str,
    /// Lock kinds that its releases have used.
    kinds: &'static [LockKind],
    /// Default namespace of the lock in old releases.
    old_namespace: Option<&'static str>,
}

/// `tenure elect`.
pub(super) const SIDECAR: Program = Program {
    lock: "--lock",
    namespace: "--election-namespace",
    kinds: &elections::KINDS,
    old_namespace: Some("default"),
};

/// `tenure provision`.
#[cfg(feature = "provision")]
pub(crate) const PROVISIONER: Program = Program {
    lock: "--leader-election-type",
    namespace: "--leader-election-namespace",
    kinds: &[LockKind::Leases, LockKind::Endpoints],
    old_namespace: None,
};

/// Reports the other locks of this election that are in use.
pub(crate) async fn warn(
    client: Client,
    program: &Program,
    kind: LockKind,
    namespace: String,
    election: String,
) {
    let old = program.old_namespace.filter(|old| *old != namespace);
    for place in [Some(namespace.as_str()), old].into_iter().flatten() {
        for &other in program.kinds {
            let resource = elections::resource_of(other);
            if place == namespace && uses(kind, other) {
                continue;
            }
            let named = (resource.group, resource.plural);
            if !rbac::may_get(&client, named, place, &election).await {
                continue;
            }
            // The lock does not exist or cannot be read, so there is nothing to report.
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
                    program.advice(place == namespace, kind, other, place)
                );
            }
        }
    }
}

/// Returns whether the lock has a holder that renewed it within its lease duration.
fn in_use(seen: &Seen) -> bool {
    seen.valid_for_seconds.is_some_and(|left| left > 0.0)
}

/// Returns whether locks of this kind include objects of the other kind.
fn uses(kind: LockKind, other: LockKind) -> bool {
    match other {
        LockKind::Leases => !matches!(kind, LockKind::ConfigMaps | LockKind::Endpoints),
        other => elections::resource_of(kind) == elections::resource_of(other),
    }
}

impl Program {
    fn advice(&self, same_place: bool, kind: LockKind, other: LockKind, place: &str) -> String {
        let flag = self.lock;
        let both = match (kind, other) {
            (LockKind::Leases, old) => format!("{flag}={old}leases"),
            (kind, LockKind::Leases) => format!("{flag}={kind}leases"),
            _ => format!("one {flag}"),
        };
        if same_place {
            format!("start all candidates with {both} until the old ones have ended")
        } else {
            let flag = self.namespace;
            format!("start all candidates with the same {flag} (the old sidecar uses {place})")
        }
    }
}
