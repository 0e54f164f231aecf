//! `--mode=for-life`: a leader leads as long as its pod exists. If it is unknown whether the leader still runs, nobody
//! else leads.
//!
//! The holder's identity consists of the name and the uid of its pod, and the Lease is owned by that pod. No candidate
//! takes over a held Lease, regardless of its age; the election itself enforces this. Invariants of this module:
//!
//! - A candidate campaigns only after it has read its own pod with the uid that it was given (`own_pod.rs`). With every
//!   record it writes that uid as a label of the Lease, [`MARK`].
//! - A Lease is freed only by its holder's order, or when `tenure_core::undertaker` decides that the holder's pod
//!   existed and is gone. If a pod was never observed, or its node does not respond, an operator has to decide.
//! - A leader of another mode, which has a shorter lease, is not touched: its lease expires.

mod lease;
mod own_pod;
#[cfg(test)]
mod scripted;
mod undertaker;

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tenure_core::ResourceVersion;
use tenure_core::undertaker::{PodId, PodObservation, PodStage};
use tenure_lock::LockKind;

use crate::election::Election;
pub(super) use lease::Lease;
pub(super) use own_pod::OwnPod;
pub(super) use undertaker::Undertaker;

/// The label of the Lease with the uid of its holder's pod. The holder has read that pod with this uid.
pub(super) const MARK: &str = "tenure.dev/holder-pod-uid";

/// The longest duration that any candidate honours, so that candidates of other modes wait as well. It also
/// distinguishes terms of this mode from others, because identities of other modes may look like those of pods.
const LEASE: Duration = Duration::from_secs(LEASE_SECONDS as u64);

/// The same in the unit of the Lease.
const LEASE_SECONDS: u32 = 48 * 3600;

/// Time for which a leader continues without an API server.
const RENEW: Duration = Duration::from_secs(40 * 3600);

/// Renewal interval. Renewals only show that the leader is alive.
const RETRY: Duration = Duration::from_secs(10);

/// Timeout of one request.
const REQUEST: Duration = Duration::from_secs(10);

/// Delay after a failure.
const AGAIN: Duration = Duration::from_secs(2);

/// Returns the path of the pods with this name: one, or none.
fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods?fieldSelector=metadata.name%3D{name}")
}

/// Returns an owner reference to a pod.
fn reference(pod: &PodId) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid })
}

/// Returns the revision of an object or of a list.
fn revision(object: &Value) -> ResourceVersion {
    ResourceVersion::new(object["metadata"]["resourceVersion"].as_str().unwrap_or(""))
}

/// Reads the state of a pod from its object.
fn observation(object: &Value, now: Timestamp) -> PodObservation {
    PodObservation {
        uid: object["metadata"]["uid"].as_str().unwrap_or("").to_owned(),
        stage: stage(object, now),
    }
}

fn stage(object: &Value, now: Timestamp) -> PodStage {
    let status = &object["status"];
    // The kubelet sets these phases when every container has ended and none will be started again. PodGC sets Failed
    // right before it deletes the pods of a deleted Node; see "For life" in docs/book/reference/command.md.
    if status["phase"] == "Failed" || status["phase"] == "Succeeded" {
        return PodStage::Ended;
    }
    if status["reason"] == "NodeLost" || status["phase"] == "Unknown" {
        return PodStage::Overdue;
    }
    let by = object["metadata"]["deletionTimestamp"].as_str();
    let by = by.and_then(|by| by.parse::<Timestamp>().ok());
    if by.is_some_and(|by| now > by) {
        PodStage::Overdue
    } else {
        PodStage::Running
    }
}

/// Configures an election for life. Returns the problem if the flags contradict that.
pub(super) fn prepare(election: &mut Election, own: &OwnPod) -> Result<(), &'static str> {
    if election.lock != LockKind::Leases {
        return Err("--mode=for-life always uses a Lease: remove --lock");
    }
    if election.id.is_some() {
        return Err("--mode=for-life uses the pod as the identity: remove --id");
    }
    if election.has_durations() {
        return Err("--mode=for-life does not use durations: remove them");
    }
    let namespace = &mut election.election_namespace;
    if namespace.get_or_insert_with(|| own.namespace.clone()) != &own.namespace {
        return Err("--mode=for-life needs its Lease in the namespace of the pod, which owns it");
    }
    election.id = Some(own.pod.identity());
    election.lease_duration = Some(LEASE);
    election.renew_deadline = Some(RENEW);
    election.retry_period = Some(RETRY);
    election.request_timeout = Some(REQUEST);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_ended_only_when_nothing_of_it_runs() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (phase, expected) in [
            ("Running", PodStage::Running),
            ("Pending", PodStage::Running),
            ("Failed", PodStage::Ended),
            ("Succeeded", PodStage::Ended),
            ("Unknown", PodStage::Overdue),
        ] {
            let object = json!({ "metadata": { "uid": "0b6c" }, "status": { "phase": phase } });
            let seen = observation(&object, now);
            assert_eq!(
                (seen.uid.as_str(), seen.stage),
                ("0b6c", expected),
                "{phase}"
            );
        }
        let lost = json!({ "status": { "phase": "Running", "reason": "NodeLost" } });
        assert_eq!(stage(&lost, now), PodStage::Overdue);
        for (by, expected) in [
            ("2026-01-01T00:00:30Z", PodStage::Running),
            ("2025-12-31T23:59:59Z", PodStage::Overdue),
        ] {
            let leaving = json!({ "metadata": { "deletionTimestamp": by } });
            assert_eq!(stage(&leaving, now), expected, "{by}");
        }
    }
}
