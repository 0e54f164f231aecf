//! What the sidecar says about the election, always computed from the clock at the moment of asking.
//!
//! Invariant: it never names itself as leader after its guard has run out, whatever it last heard.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use tenure::Handle;
use tokio::sync::watch;

/// Everything that stays the same for the life of the process.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) election: String,
    pub(crate) namespace: String,
    pub(crate) lock: &'static str,
    pub(crate) lease_duration_seconds: u32,
    /// Cut the random part off names in answers of `/`, so that programs can compare them with
    /// their host name.
    pub(crate) short_names: bool,
}

/// What changes with the election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) leader: String,
    pub(crate) term: Option<u32>,
    pub(crate) observed_at: Option<Timestamp>,
}

/// Shared by the election loop, which changes it, and the HTTP server, which shows it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) facts: Arc<Facts>,
    pub(crate) handle: Handle,
    pub(crate) seen: watch::Sender<Seen>,
}

/// The answer of `/v1/leader`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    election: String,
    namespace: String,
    lock: &'static str,
    leader: String,
    #[serde(rename = "self")]
    identity: String,
    pub(crate) is_leader: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) term: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<String>,
    lease_duration_seconds: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    observed_at: Option<String>,
    valid_for_millis: u128,
    pub(crate) state: &'static str,
}

impl View {
    /// The identity of whoever leads as far as is known; empty if nobody does.
    pub(crate) fn leader(&self) -> String {
        if self.handle.is_leading() {
            return self.handle.identity().to_owned();
        }
        let leader = self.seen.borrow().leader.clone();
        // Our own name without a good guard is history.
        if leader == self.handle.identity() {
            String::new()
        } else {
            leader
        }
    }

    /// The body of `/`: exactly one key.
    pub(crate) fn name(&self) -> String {
        let leader = self.leader();
        let name = if self.facts.short_names {
            short(&leader)
        } else {
            &leader
        };
        serde_json::json!({ "name": name }).to_string()
    }

    pub(crate) fn answer(&self) -> Answer {
        let tenure = self.handle.tenure().filter(|tenure| tenure.is_leading());
        let seen = self.seen.borrow().clone();
        let leader = self.leader();
        let state = match (&tenure, self.handle.health().trouble(), leader.is_empty()) {
            (Some(_), _, _) => "leading",
            (None, Some(_), _) => "disconnected",
            (None, None, true) => "electing",
            (None, None, false) => "following",
        };
        Answer {
            election: self.facts.election.clone(),
            namespace: self.facts.namespace.clone(),
            lock: self.facts.lock,
            leader,
            identity: self.handle.identity().to_owned(),
            is_leader: tenure.is_some(),
            term: tenure
                .as_ref()
                .map(tenure::Tenure::transitions)
                .or(seen.term),
            fencing_token: tenure.as_ref().map(|tenure| tenure.token().to_string()),
            lease_duration_seconds: self.facts.lease_duration_seconds,
            observed_at: seen.observed_at.map(|at| at.to_string()),
            valid_for_millis: tenure.map_or(0, |tenure| tenure.valid_for().as_millis()),
            state,
        }
    }
}

/// The part of an identity that a person chose: `web-1_3f2c...` is `web-1`.
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
    fn only_a_random_part_is_cut_off() {
        assert_eq!(short("web-1_0b6c7b1e-44a5-4b62-a0f5-5a2f1d1f3c11"), "web-1");
        assert_eq!(short("web_1"), "web_1");
        assert_eq!(short(""), "");
    }
}
