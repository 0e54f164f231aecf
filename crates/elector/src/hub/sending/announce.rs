//! The LeaseCandidate of a coordinated election: published periodically, and when it is pinged.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tenure_core::{LocalTime, Now};
use tenure_lock::candidate::{CandidateSnapshot, LeaseCandidate, RENEW_EVERY};
use tokio::time::timeout;

use super::Done;
use crate::hub::entry::{Entry, World};
use crate::hub::watching::Delivery;

/// Interval without a watch. Pings are not noticed without a watch, so the candidate renews more often than the
/// controller would ask. (The controller waits five seconds for a response.)
const UNWATCHED: Duration = Duration::from_secs(4);

/// Timeout for publishing a LeaseCandidate, which takes up to four requests.
const ANNOUNCE: Duration = Duration::from_secs(10);

/// Delay after a failure.
const RETRY: Duration = Duration::from_secs(2);

/// Publishes and renews one LeaseCandidate.
pub(in crate::hub) struct Announcer {
    pub(in crate::hub) candidate: Arc<LeaseCandidate>,
    last: Option<CandidateSnapshot>,
    due: LocalTime,
    busy: bool,
    watched: bool,
}

impl Announcer {
    pub(in crate::hub) fn new(candidate: Arc<LeaseCandidate>) -> Self {
        Self {
            candidate,
            last: None,
            due: LocalTime::default(),
            busy: false,
            watched: false,
        }
    }

    /// Returns when to act next.
    pub(in crate::hub) fn deadline(&self) -> Option<LocalTime> {
        (!self.busy).then_some(self.due)
    }

    /// Returns the last known version if it is time to publish. [`published`](Self::published) must follow.
    pub(in crate::hub) fn take_due(&mut self, now: Now) -> Option<Option<CandidateSnapshot>> {
        if self.busy || now.local < self.due {
            return None;
        }
        self.busy = true;
        Some(self.last.clone())
    }

    pub(in crate::hub) fn published(
        &mut self,
        now: Now,
        result: Result<CandidateSnapshot, String>,
    ) {
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
    pub(in crate::hub) fn seen(&mut self, now: Now, object: Option<Value>) {
        self.last = object.and_then(|object| self.candidate.apply_watch_event(object));
        if self.last.as_ref().is_none_or(CandidateSnapshot::wants_ack) {
            self.due = now.local;
        }
    }

    /// Records whether the watch works.
    pub(in crate::hub) fn watched(&mut self, now: Now, yes: bool) {
        self.watched = yes;
        if !yes {
            self.due = self.due.min(now.local + UNWATCHED);
        }
    }
}

impl Entry {
    /// Publishes the LeaseCandidate, if there is one and it is due.
    pub(in crate::hub) fn announce(&mut self, world: &mut World) {
        let now = world.clock.now();
        let Some(announcer) = self.announcer.as_mut().filter(|_| !self.finished) else {
            return;
        };
        let Some(last) = announcer.take_due(now) else {
            return;
        };
        let candidate = announcer.candidate.clone();
        world.requests.poll(self.id, async move {
            let ensured = timeout(ANNOUNCE, candidate.ensure(now.wall, last.as_ref()));
            match ensured.await {
                Ok(result) => Done::Announced(result.map_err(|error| error.to_string())),
                Err(_) => Done::Announced(Err("no answer in time".to_owned())),
            }
        });
    }

    pub(in crate::hub) fn deliver_candidate(&mut self, world: &mut World, delivery: Delivery) {
        let now = world.clock.now();
        if let Some(announcer) = &mut self.announcer {
            match delivery {
                // An object that cannot be parsed does not count as deleted.
                Delivery::Object(shown) => {
                    if let Some(object) = shown.into_object() {
                        announcer.seen(now, Some(object));
                    }
                }
                Delivery::Absent(_) => announcer.seen(now, None),
                Delivery::Up(_) => announcer.watched(now, true),
                Delivery::Down(_) => announcer.watched(now, false),
            }
        }
        self.announce(world);
    }
}
