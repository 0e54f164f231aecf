//! State of the lock object as this candidate knows it.
//!
//! Reads are linearizable, but the watch may overtake them. The watch may be late. Safety depends on neither, because a
//! wrong view can only make a compare-and-set fail.

use std::time::Duration;

use super::request::Attempt;
use super::{Election, State};
use crate::command::{Command, StopReason};
use crate::fence::ResourceVersion;
use crate::input::{Observation, Source, Version};
use crate::mark::Mark;
use crate::record::Record;
use crate::time::{LocalTime, Now};

/// Upper limit of the random delay of followers that learn of a release from the watch.
const HERD_DELAY: Duration = Duration::from_millis(50);

/// Upper limit of the random delay of followers whose timers expire together.
const EXPIRY_DELAY: Duration = Duration::from_millis(20);

/// Known state of the lock object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Known {
    Nothing,
    Absent { since: LocalTime, delay: Duration },
    Present(Box<KnownVersion>),
}

impl Known {
    pub(super) fn record(&self) -> Option<&Record> {
        match self {
            Self::Present(seen) => Some(&seen.observation.record),
            Self::Nothing | Self::Absent { .. } => None,
        }
    }
}

/// A version of the lock object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KnownVersion {
    pub(super) observation: Observation,
    /// Local time at which its record was first received.
    pub(super) since: LocalTime,
    /// Delay before this candidate acts on it.
    pub(super) delay: Duration,
}

impl Election {
    pub(super) fn observed(
        &mut self,
        now: Now,
        source: Source,
        observation: Observation,
        out: &mut Vec<Command>,
    ) {
        if !self.answers(source) || self.is_unordered(source, &observation.version.revision) {
            return;
        }
        let Some(freshness) = self.check_freshness(source, &observation.version.revision) else {
            self.passed_over |= source == Source::Watch && !self.is_known(&observation);
            return;
        };
        self.passed_over = false;
        self.hold_until = self.hold_after(now, &observation, freshness);
        let verdict = self.stop_reason(source, &observation, freshness);
        self.record_observation(now, source, observation, freshness);
        self.report(out);
        match verdict {
            Some(reason) => self.stop(now, reason, out),
            None => self.count_confirmed_attempt(now, source, out),
        }
        self.obey_orders(now, out);
    }

    pub(super) fn absent(
        &mut self,
        now: Now,
        source: Source,
        revision: Option<&ResourceVersion>,
        out: &mut Vec<Command>,
    ) {
        if !self.answers(source) {
            return;
        }
        match (source, revision) {
            (Source::Watch, None) => {
                self.must_read = true;
                return;
            }
            (Source::Watch, Some(revision)) => {
                if self.is_unordered(source, revision) {
                    return;
                }
                if self.check_freshness(source, revision).is_none() {
                    // A restored store may report the absence at a revision that was observed before.
                    self.passed_over |= matches!(self.known, Known::Present(_));
                    return;
                }
            }
            (Source::Read(_), _) => {
                if self
                    .in_flight
                    .take()
                    .is_some_and(|request| request.overtaken)
                {
                    self.must_read = true;
                    return;
                }
                self.must_read = false;
                // An absence has no revision. Objects created in the restored store have revisions above that of the
                // list.
                if let Some(revision) = self.listed_back.take() {
                    self.see_revision(&revision);
                }
            }
        }
        // Duty 8, like Chubby's lock-delay: a candidate that has observed a live term of another holder waits until it
        // expires.
        if let Known::Present(seen) = &self.known {
            let record = &seen.observation.record;
            let held = !record.is_free() || seen.observation.unreadable;
            let ours = self.wrote(&seen.observation) || self.is_inherited(&seen.observation);
            if held && !ours {
                let end = seen.since + self.patience(&seen.observation);
                self.hold_until = self.hold_until.max(Some(end));
            }
        }
        if !matches!(self.known, Known::Absent { .. }) {
            let delay = self.herd_delay(source, HERD_DELAY);
            self.known = Known::Absent {
                since: now.local,
                delay,
            };
        }
        self.stop(now, StopReason::Deleted, out);
    }

    /// Returns until when to wait for a term that may still be live although the record no longer shows it (duty 8).
    ///
    /// Two writers replace the record of a live term. client-go empties a record that it no longer holds, and the
    /// controller of a coordinated election assigns the lease by its own wall clock. Both keep the mark, which names
    /// the last write of an elector like this one. A candidate that first observed this mark one lease duration ago has
    /// waited long enough, regardless of the records that it observed.
    fn hold_after(&self, now: Now, seen: &Observation, freshness: Freshness) -> Option<LocalTime> {
        let before = match &self.known {
            Known::Present(before)
                if freshness == Freshness::Forward
                    && before.observation.version.uid == seen.version.uid =>
            {
                Some(&**before)
            }
            _ => None,
        };
        let same_record =
            before.is_some_and(|before| before.observation.fingerprint == seen.fingerprint);
        // The controller of a coordinated election edits an assignment without changing its holder.
        let same_holder = self.config.coordinated
            && before.is_some_and(|before| before.observation.record.holder == seen.record.holder);
        let hold = match (
            &seen.mark,
            before.and_then(|before| before.observation.mark),
        ) {
            (None, _) if same_record || same_holder => self.hold_until,
            (None, _) => None,
            (Some(mark), Some(known)) if mark.is(&known) => self.hold_until,
            (Some(mark), _) if mark.is_release() || self.is_own_mark(mark, seen) => None,
            (Some(mark), _) => Some(now.local + self.patience_with(mark.lease_duration())),
        };
        // The holder writes no marks, so only the observed records can be used.
        match before {
            Some(before) if !same_record && self.is_reassigned(before, seen) => {
                let end = before.since + self.patience(&before.observation);
                hold.max(self.hold_until).max(Some(end))
            }
            _ => hold,
        }
    }

    /// Coordinated election: returns whether a held record without a mark was assigned to another candidate.
    fn is_reassigned(&self, before: &KnownVersion, seen: &Observation) -> bool {
        let former = &before.observation;
        self.config.coordinated
            && !former.record.is_free()
            && former.record.holder != seen.record.holder
            && !seen.record.is_free()
            && !former.is_marked()
            && !self.wrote(former)
    }

    /// Returns whether the write that a mark names is one of this incarnation, or of an earlier incarnation whose term
    /// it inherits.
    fn is_own_mark(&self, mark: &Mark, seen: &Observation) -> bool {
        let own = |attempt: &Attempt| {
            // A process with the same name may have written the same whole seconds into another object, after this one
            // was deleted.
            let made = attempt.made.as_ref();
            let proven =
                !self.config.whole_seconds || made.is_some_and(|made| made.uid == seen.version.uid);
            proven && mark.is(&Mark::of(&attempt.record))
        };
        let record = seen.is_marked() && (self.wrote(seen) || self.is_inherited(seen));
        record || self.attempts.iter().any(own)
    }

    /// Returns how long a record must stay unchanged before it may be replaced (duty 7).
    pub(super) fn patience(&self, observation: &Observation) -> Duration {
        let stated = observation.record.lease_duration();
        self.patience_with(if observation.unreadable {
            // For a lock in two objects, the readable half states a duration.
            stated.max(self.config.timing.lease())
        } else {
            stated
        })
    }

    /// Returns how long to wait for a term with this lease duration.
    fn patience_with(&self, stated: Duration) -> Duration {
        let lease = self.rules.patience(stated, &self.config.timing);
        // With whole-second times, a renewal within the same second as the last one does not change the record.
        lease
            + if self.config.whole_seconds {
                Duration::from_secs(1)
            } else {
                Duration::ZERO
            }
    }

    /// Replaces the known state by a write of this candidate.
    pub(super) fn know_own(&mut self, now: Now, attempt: &Attempt, version: Version) {
        self.see_revision(&version.revision);
        self.hold_until = None;
        // Uses the orders of the attempt instead of the last observed ones, because a stale read may have arrived in
        // between.
        let orders = attempt.orders.as_deref().cloned().unwrap_or_default();
        let observation = Observation {
            version,
            record: attempt.record.clone(),
            // A record of this candidate is recognized by its content, so it needs no fingerprint.
            fingerprint: 0,
            unreadable: false,
            mark: Some(Mark::of(&attempt.record)),
            // Proofs are about other incarnations.
            described: None,
            orders,
        };
        self.known = Known::Present(Box::new(KnownVersion {
            observation,
            since: now.local,
            delay: Duration::ZERO,
        }));
    }

    /// Reports a change of holder once.
    pub(super) fn report(&mut self, out: &mut Vec<Command>) {
        let Known::Present(seen) = &self.known else {
            return;
        };
        let holder = &seen.observation.record.holder;
        // An object without a holder is not reported before a holder was observed.
        let freshness = match &self.reported {
            Some(reported) => reported != holder,
            None => !holder.is_empty(),
        };
        if !seen.observation.unreadable && freshness {
            self.reported = Some(holder.clone());
            out.push(Command::NewLeader {
                holder: holder.clone(),
            });
        }
    }

    /// Handles a list, which is as fresh as a read at the time of the list. A list below the greatest observed
    /// revision, or with a version that seemed stale, was overtaken or comes from a restored store. In a restored
    /// store, no watch event counts as new, so only a read can decide: its response may go back to an earlier revision.
    pub(super) fn listed(&mut self, revision: ResourceVersion) {
        let highest = self.highest.as_ref();
        let below = highest
            .is_some_and(|highest| revision.order(highest).is_some_and(|order| order.is_lt()));
        let passed_over = std::mem::take(&mut self.passed_over);
        self.must_read |= below || passed_over;
        if below {
            self.listed_back = Some(revision);
        }
    }

    /// Returns whether the observation equals the known state. A restored store can assign the same revision to a
    /// different content.
    fn is_known(&self, observation: &Observation) -> bool {
        let Known::Present(seen) = &self.known else {
            return false;
        };
        let known = &seen.observation;
        known.version == observation.version
            && known.record == observation.record
            && known.unreadable == observation.unreadable
            && known.orders == observation.orders
    }

    /// Returns whether a watch event has a revision without a known order. Such an event is only a reason to read.
    fn is_unordered(&mut self, source: Source, revision: &ResourceVersion) -> bool {
        let unordered = source == Source::Watch
            && self
                .highest
                .as_ref()
                .is_some_and(|highest| revision.order(highest).is_none());
        self.must_read |= unordered;
        unordered
    }

    /// Returns whether an observation is current or went back in time, or `None` if it is stale.
    fn check_freshness(&mut self, source: Source, revision: &ResourceVersion) -> Option<Freshness> {
        let order = |other: &Option<ResourceVersion>| {
            other.as_ref().and_then(|other| revision.order(other))
        };
        match source {
            Source::Watch => {
                if order(&self.highest).is_some_and(|order| order.is_le()) {
                    return None;
                }
                if let Some(request) = &mut self.in_flight {
                    request.overtaken = true;
                }
                self.see_revision(revision);
                Some(Freshness::Forward)
            }
            Source::Read(_) => {
                let request = self.in_flight.take()?;
                self.must_read = false;
                self.listed_back = None;
                if order(&request.known).is_some_and(|order| order.is_lt()) {
                    self.see_revision(revision);
                    return Some(Freshness::WentBack);
                }
                if order(&self.highest).is_some_and(|order| order.is_lt()) {
                    return None;
                }
                self.see_revision(revision);
                Some(Freshness::Forward)
            }
        }
    }

    /// Records a revision of the store. If it is not greater than the last one, the store was restored or its revisions
    /// have no order. In that case its tokens are not greater than earlier ones, and the elector cannot prevent this.
    fn see_revision(&mut self, revision: &ResourceVersion) {
        let order = self.highest.as_ref().map(|last| revision.order(last));
        if order.is_some_and(|order| order.is_none_or(|order| order.is_lt())) {
            self.last_won = None;
        }
        self.highest = Some(revision.clone());
    }

    /// Returns the reason why an observation ends the current term, if it does (duty 4).
    fn stop_reason(
        &self,
        source: Source,
        seen: &Observation,
        freshness: Freshness,
    ) -> Option<StopReason> {
        let term = match &self.state {
            State::Leading(term) => term,
            State::Stopping(stopping) => &stopping.term,
            State::Releasing(term) => term,
            State::Idle | State::Following | State::Finished => return None,
        };
        debug_assert!(source == Source::Watch || self.in_flight.is_none());
        if seen.version.uid != term.uid {
            Some(StopReason::Recreated)
        } else if freshness == Freshness::WentBack {
            Some(StopReason::WentBack)
        } else if self.wrote(seen) && !seen.unreadable {
            None
        } else if seen.unreadable || seen.record.holder == self.config.identity {
            Some(StopReason::Edited)
        } else if seen.record.is_free() {
            Some(StopReason::Emptied)
        } else {
            Some(StopReason::ForeignHolder(seen.record.holder.clone()))
        }
    }

    /// Records an observation. The time of the first observation is kept while the record stays the same, so edits of
    /// labels do not prolong the lease of a dead leader.
    fn record_observation(
        &mut self,
        now: Now,
        source: Source,
        observation: Observation,
        freshness: Freshness,
    ) {
        let own = self.wrote(&observation);
        let kept = match &self.known {
            Known::Present(seen)
                if freshness == Freshness::Forward
                    && seen.observation.version.uid == observation.version.uid
                    && seen.observation.unreadable == observation.unreadable
                    && (seen.observation.fingerprint == observation.fingerprint
                        || (own && seen.observation.record.same_write(&observation.record))) =>
            {
                Some((seen.since, seen.delay))
            }
            _ => None,
        };
        if kept.is_none() {
            self.failures = 0;
        }
        let (since, delay) = kept.unwrap_or_else(|| {
            let free = observation.record.is_free() && !observation.unreadable;
            let spread = if free { HERD_DELAY } else { EXPIRY_DELAY };
            (now.local, self.herd_delay(source, spread))
        });
        if own {
            self.forget_dead_attempts(&observation, freshness);
        } else {
            // None of the open attempts is known to have created this version. They name an older base version and can
            // no longer be applied, unless the store went back in time and they name this version again. An attempt
            // with an equal record may still be confirmed by its response.
            if freshness == Freshness::Forward && !self.names_open_base(&observation.version) {
                let record = &observation.record;
                self.attempts
                    .retain(|attempt| !attempt.answered && attempt.record.same_write(record));
            }
        }
        self.known = Known::Present(Box::new(KnownVersion {
            observation,
            since,
            delay,
        }));
    }

    /// One of the attempts created this version. It moves to the front, and attempts on older versions are dropped
    /// because they can no longer be applied.
    fn forget_dead_attempts(&mut self, observation: &Observation, freshness: Freshness) {
        if let Some(at) = self.author(observation) {
            let mut attempt = self.attempts.remove(at);
            let proof = self.config.whole_seconds;
            attempt.made = proof.then(|| Box::new(observation.version.clone()));
            if freshness == Freshness::Forward {
                self.attempts
                    .retain(|other| other.kind.base() == Some(&observation.version));
            }
            self.attempts.insert(0, attempt);
        }
    }

    /// Returns whether an open attempt would replace exactly this version.
    fn names_open_base(&self, version: &Version) -> bool {
        self.attempts
            .iter()
            .any(|attempt| attempt.kind.base() == Some(version))
    }

    /// Returns a random delay for events that reach all followers at the same instant. Watch events do, and a read of
    /// this candidate does not. The delay nests three random draws, which skews it toward zero. With two or three
    /// candidates, the first one starts within about two milliseconds. In a large group, half of the candidates still
    /// wait long enough to observe the winner.
    fn herd_delay(&mut self, source: Source, limit: Duration) -> Duration {
        match source {
            Source::Watch => {
                let most = self.random.below(limit);
                let most = self.random.below(most);
                self.random.below(most)
            }
            Source::Read(_) => Duration::ZERO,
        }
    }

    /// Duty 2: if a read shows exactly the record of an attempt, the guard restarts at the send time of that attempt.
    /// The watch never extends a guard (duty 4).
    fn count_confirmed_attempt(&mut self, now: Now, source: Source, out: &mut Vec<Command>) {
        if source == Source::Watch {
            return;
        }
        let Known::Present(seen) = &self.known else {
            return;
        };
        if let Some(attempt) = self.attempt_of(&seen.observation).cloned() {
            self.credit(now, &attempt, out);
        }
    }
}

/// Relation of an observation to the known state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    /// The observation is the known state or a later one.
    Forward,
    /// The store lost acknowledged writes, because it was restored from a backup.
    WentBack,
}
