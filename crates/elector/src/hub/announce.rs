//! The LeaseCandidate of a coordinated election: published periodically, and when it is pinged.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tenure_core::{LocalTime, Now};
use tenure_lock::candidate::{Candidate, CandidateSighting, RENEW_EVERY};

/// Interval without a watch. Pings are not noticed without a watch, so the candidate renews more often than the
/// controller would ask. (The controller waits five seconds for a response.)
const UNWATCHED: Duration = Duration::from_secs(4);

/// Delay after a failure.
const RETRY: Duration = Duration::from_secs(2);

/// Publishes and renews one LeaseCandidate.
pub(super) struct Announcer {
    pub(super) candidate: Arc<Candidate>,
    last: Option<CandidateSighting>,
    due: LocalTime,
    busy: bool,
    watched: bool,
}

impl Announcer {
    pub(super) fn new(candidate: Arc<Candidate>) -> Self {
        Self {
            candidate,
            last: None,
            due: LocalTime::default(),
            busy: false,
            watched: false,
        }
    }

    /// Returns when to act next.
    pub(super) fn deadline(&self) -> Option<LocalTime> {
        (!self.busy).then_some(self.due)
    }

    /// Returns the last known version if it is time to publish. [`published`](Self::published) must follow.
    pub(super) fn take_due(&mut self, now: Now) -> Option<Option<CandidateSighting>> {
        if self.busy || now.local < self.due {
            return None;
        }
        self.busy = true;
        Some(self.last.clone())
    }

    pub(super) fn published(&mut self, now: Now, result: Result<CandidateSighting, String>) {
        self.busy = false;
        let pause = match result {
            Ok(snapshot) => {
                let pending = snapshot.wants_ack();
                self.last = Some(snapshot);
                match (pending, self.watched) {
                    (true, _) => Duration::ZERO,
                    (false, true) => RENEW_EVERY,
                    (false, false) => UNWATCHED,
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot publish the lease candidate");
                self.last = None;
                RETRY
            }
        };
        self.due = now.local + pause;
    }

    /// Handles a watch event: the object, or its deletion.
    pub(super) fn seen(&mut self, now: Now, object: Option<Value>) {
        self.last = object.and_then(|object| self.candidate.apply_watch_event(object));
        if self.last.as_ref().is_none_or(CandidateSighting::wants_ack) {
            self.due = now.local;
        }
    }

    /// Records whether the watch works.
    pub(super) fn watched(&mut self, now: Now, yes: bool) {
        self.watched = yes;
        if !yes {
            self.due = self.due.min(now.local + UNWATCHED);
        }
    }
}
