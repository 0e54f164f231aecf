//! `--mode=for-life`: whoever leads does so as long as its pod lives. No leader rather than two.
//!
//! The holder is named by its pod and the pod's uid, and the Lease is owned by that pod. Nobody takes a
//! held Lease over, however old it looks: that is the election's own rule. Invariant of this module: it
//! is freed only by its holder's order, or when the API server says that the pod is gone, is another of
//! the same name, or has ended for good; a pod whose node does not answer is none of these, and waits for
//! somebody who knows. A leader of another mode, whose lease is shorter, is none of our business: it is
//! waited for until its lease runs out.

mod lease;
#[cfg(test)]
mod scripted;
mod undertaker;

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tenure::lock::LockKind;

use crate::election::{Election, pod_name, pod_namespace, variable};
pub(super) use lease::Lease;
pub(super) use undertaker::Undertaker;

/// The longest that any candidate honours, so that candidates of another kind stay away as well. It also
/// tells terms of this mode from others: names of others may look like those of pods.
const LEASE: Duration = Duration::from_secs(LEASE_SECONDS);

/// The same as the Lease says it.
const LEASE_SECONDS: u64 = 48 * 3600;

/// How long a leader leads on without an API server.
const RENEW: Duration = Duration::from_secs(40 * 3600);

/// Renewals only show that the leader is there.
const RETRY: Duration = Duration::from_secs(10);

/// One request may take this long.
const REQUEST: Duration = Duration::from_secs(10);

/// After a failure.
const AGAIN: Duration = Duration::from_secs(2);

/// A pod of which there is only ever one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    namespace: String,
    name: String,
    uid: String,
}

impl Pod {
    /// The pod that this process is in, as its environment says.
    pub(super) fn own() -> Result<Self, &'static str> {
        let uid = variable("POD_UID")
            .ok_or("--mode=for-life needs the pod's uid: set POD_UID from metadata.uid")?;
        let namespace = pod_namespace().ok_or(
            "--mode=for-life needs the pod's namespace: set POD_NAMESPACE from metadata.namespace",
        )?;
        Ok(Self {
            namespace,
            name: pod_name(),
            uid,
        })
    }

    /// The pod that the identity of a leader for life names. Names of pods have no underscore.
    fn of(namespace: &str, identity: &str) -> Option<Self> {
        let (name, uid) = identity.split_once('_')?;
        let whole = !name.is_empty() && !uid.is_empty() && !uid.contains('_');
        whole.then(|| Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        })
    }

    fn identity(&self) -> String {
        format!("{}_{}", self.name, self.uid)
    }

    fn reference(&self) -> Value {
        json!({ "apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid })
    }

    /// What an object of this name, or that there is none, says about the pod.
    fn state(&self, object: Option<&Value>, now: Timestamp) -> State {
        let Some(object) = object.filter(|object| object["metadata"]["uid"] == *self.uid) else {
            return State::Over;
        };
        let status = &object["status"];
        // The kubelet says these when every container has ended and none will be started again.
        if status["phase"] == "Failed" || status["phase"] == "Succeeded" {
            return State::Over;
        }
        if status["reason"] == "NodeLost" || status["phase"] == "Unknown" {
            return State::Overdue;
        }
        let by = object["metadata"]["deletionTimestamp"].as_str();
        let by = by.and_then(|by| by.parse::<Timestamp>().ok());
        if by.is_some_and(|by| now > by) {
            State::Overdue
        } else {
            State::Lives
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Lives,
    /// It should have gone, or its node is lost. It may still run.
    Overdue,
    /// Nothing of it runs, and nothing will.
    Over,
}

/// Makes an election one for life; what is wrong with the flags otherwise.
pub(super) fn prepare(election: &mut Election, pod: &Pod) -> Result<(), &'static str> {
    if election.lock != LockKind::Leases {
        return Err("--mode=for-life keeps its lock in a Lease: leave --lock out");
    }
    if election.id.is_some() {
        return Err("--mode=for-life names the leader by its pod: leave --id out");
    }
    if election.has_durations() {
        return Err("--mode=for-life has no durations: leave them out");
    }
    let namespace = &mut election.election_namespace;
    if namespace.get_or_insert_with(|| pod.namespace.clone()) != &pod.namespace {
        return Err("--mode=for-life needs its Lease in the namespace of the pod, which owns it");
    }
    election.id = Some(pod.identity());
    election.lease_duration = Some(LEASE);
    election.renew_deadline = Some(RENEW);
    election.retry_period = Some(RETRY);
    election.request_timeout = Some(REQUEST);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        Pod::of("ns", "web-0_0b6c").unwrap()
    }

    #[test]
    fn an_identity_names_a_pod() {
        assert_eq!(pod().identity(), "web-0_0b6c");
        for other in ["", "web-0", "_x", "web-0_", "web_0_0b6c"] {
            assert_eq!(Pod::of("ns", other), None, "{other}");
        }
    }

    #[test]
    fn a_pod_is_over_only_when_nothing_of_it_runs() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let state = |object: Value| pod().state(Some(&object), now);
        let meta = json!({ "uid": "0b6c" });
        assert_eq!(pod().state(None, now), State::Over);
        assert_eq!(
            state(json!({ "metadata": { "uid": "other" } })),
            State::Over
        );
        for (phase, expected) in [
            ("Running", State::Lives),
            ("Pending", State::Lives),
            ("Failed", State::Over),
            ("Succeeded", State::Over),
            ("Unknown", State::Overdue),
        ] {
            let object = json!({ "metadata": meta, "status": { "phase": phase } });
            assert_eq!(state(object), expected, "{phase}");
        }
        let lost =
            json!({ "metadata": meta, "status": { "phase": "Running", "reason": "NodeLost" } });
        assert_eq!(state(lost), State::Overdue);
        for (by, expected) in [
            ("2026-01-01T00:00:30Z", State::Lives),
            ("2025-12-31T23:59:59Z", State::Overdue),
        ] {
            let leaving = json!({ "metadata": { "uid": "0b6c", "deletionTimestamp": by } });
            assert_eq!(state(leaving), expected, "{by}");
        }
    }
}
