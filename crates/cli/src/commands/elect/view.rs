//! The sidecar's view of the election, always computed from the clock at the time of the query.
//!
//! Invariant: it never names itself as leader after its guard has expired, regardless of the last event.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use tenure::Handle;
use tokio::sync::watch;

use crate::announce::Candidate;
use crate::observed_lock::{Notes, rfc3339};

/// Values that are constant for the life of the process.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) election: String,
    pub(crate) namespace: String,
    pub(crate) lock: &'static str,
    pub(crate) lease_duration_seconds: u32,
    /// Remove the random part of names in responses of `/`, so that programs can compare them with their host name.
    pub(crate) short_names: bool,
}

/// State that changes with the election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) leader: String,
    pub(crate) observed_at: Option<Timestamp>,
}

/// Shared by the election loop, which changes it, and the HTTP server, which reads it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) facts: Arc<Facts>,
    pub(crate) handle: Handle,
    pub(crate) notes: Notes,
    pub(crate) seen: watch::Sender<Seen>,
}

/// The response of `/v1/leader`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    pub(crate) election: String,
    pub(crate) namespace: String,
    pub(crate) lock: &'static str,
    pub(crate) leader: String,
    #[serde(rename = "self")]
    pub(crate) identity: String,
    pub(crate) is_leader: bool,
    pub(crate) term: Option<u32>,
    pub(crate) fencing_token: Option<String>,
    pub(crate) acquire_time: Option<String>,
    pub(crate) renew_time: Option<String>,
    pub(crate) lease_duration_seconds: u32,
    pub(crate) observed_at: Option<String>,
    pub(crate) valid_for_millis: u64,
    pub(crate) state: &'static str,
    #[serde(skip)]
    pub(crate) lease_uid: Option<String>,
}

/// The response of `/v1/candidates`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Candidates {
    pub(crate) election: String,
    pub(crate) namespace: String,
    pub(crate) leader: String,
    /// Time since the candidates were last read; nothing if they were not read yet.
    pub(crate) age_millis: Option<u64>,
    pub(crate) candidates: Vec<Candidate>,
}

impl View {
    /// Returns the candidates that announce themselves; `None` unless this one does.
    pub(crate) fn candidates(&self) -> Option<Candidates> {
        let membership = self.handle.membership()?;
        let age = membership.age();
        let millis = |age: std::time::Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Some(Candidates {
            election: self.facts.election.clone(),
            namespace: self.facts.namespace.clone(),
            leader: self.leader(),
            age_millis: age.map(millis),
            candidates: membership
                .living()
                .into_iter()
                .map(Candidate::from)
                .collect(),
        })
    }

    /// Returns the identity of the known leader; empty if there is none.
    pub(crate) fn leader(&self) -> String {
        if self.handle.is_leading() {
            return self.handle.identity().to_owned();
        }
        let leader = self.seen.borrow().leader.clone();
        // Without a valid guard, our own name is out of date.
        if leader == self.handle.identity() {
            String::new()
        } else {
            leader
        }
    }

    /// Returns the body of `/`, which has exactly one key.
    pub(crate) fn name(&self) -> String {
        let leader = self.leader();
        let name = if self.facts.short_names {
            short(&leader)
        } else {
            &leader
        };
        serde_json::json!({ "name": name }).to_string()
    }

    /// Returns whether the lock was not observed for longer than a lease duration, so that another candidate may lead.
    pub(crate) fn is_stale(&self) -> bool {
        let lease = std::time::Duration::from_secs(self.facts.lease_duration_seconds.into());
        let trouble = self.handle.health().trouble();
        self.notes.heard().is_none() || trouble.is_some_and(|trouble| trouble.lasted > lease)
    }

    pub(crate) fn answer(&self) -> Answer {
        let tenure = self.handle.tenure().filter(|tenure| tenure.is_leading());
        let leader = self.leader();
        let trouble = self.handle.health().trouble().is_some();
        let state = match (&tenure, trouble || self.notes.heard().is_none()) {
            (Some(_), _) => "leading",
            (None, true) => "disconnected",
            (None, false) if leader.is_empty() => "electing",
            (None, false) => "following",
        };
        // The record counts only for the leader that it names.
        let record = self.notes.record().filter(|record| record.holder == leader);
        let valid_for = match &tenure {
            Some(tenure) => tenure.valid_for(),
            None if record.is_some() => self.notes.valid_for(),
            None => Default::default(),
        };
        let seconds = record.as_ref().map(|record| record.lease_duration_seconds);
        Answer {
            election: self.facts.election.clone(),
            namespace: self.facts.namespace.clone(),
            lock: self.facts.lock,
            leader,
            identity: self.handle.identity().to_owned(),
            is_leader: tenure.is_some(),
            term: record.as_ref().map(|record| record.transitions),
            fencing_token: tenure.as_ref().map(|tenure| tenure.token().to_string()),
            acquire_time: record.as_ref().and_then(|r| rfc3339(r.acquire_time?)),
            renew_time: record.as_ref().and_then(|r| rfc3339(r.renew_time?)),
            lease_duration_seconds: seconds.unwrap_or(self.facts.lease_duration_seconds),
            observed_at: self.notes.heard().map(|at| at.to_string()),
            valid_for_millis: u64::try_from(valid_for.as_millis()).unwrap_or(u64::MAX),
            state,
            lease_uid: self.notes.uid(),
        }
    }
}

/// Returns the part of an identity that a person chose: `web-1` for `web-1_3f2c...`.
fn short(identity: &str) -> &str {
    match identity.rsplit_once('_') {
        Some((name, random)) if random.len() >= 32 && !name.is_empty() => name,
        _ => identity,
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn only_the_random_part_of_an_identity_is_removed() {
        assert_eq!(short("web-1_0b6c7b1e-44a5-4b62-a0f5-5a2f1d1f3c11"), "web-1");
        assert_eq!(short("web_1"), "web_1");
        assert_eq!(short(""), "");
    }
}
