//! Sending requests, and keeping account of those whose outcome is open.
//!
//! Every write of an election leaves through [`Election::write`], which asserts that the version it
//! replaces may be replaced (S5, S4).

use std::time::Duration;

use super::observe::Known;
use super::{Election, State};
use crate::command::{Command, WriteKind};
use crate::fence::ResourceVersion;
use crate::input::{Observation, Orders, Outcome, Version};
use crate::mutant::Mutant;
use crate::record::Record;
use crate::time::{LocalTime, Now, WallTime};

/// Attempts whose records are remembered. More than a few open ones need as many lost answers on one
/// unchanged version; forgetting the oldest only makes its late effect count as a stranger's.
const REMEMBERED_ATTEMPTS: usize = 8;

/// With this many attempts open, a leader looks which of them was applied before it tries again.
const OPEN_BEFORE_READ: usize = 4;

/// A write of this incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) id: u64,
    pub(super) record: Record,
    /// When it was handed to the driver: at or before its first byte left.
    pub(super) sent: Now,
    pub(super) kind: WriteKind,
    /// The orders in the version that it replaces, which it leaves as they are; boxed, because there
    /// hardly ever are any.
    pub(super) orders: Option<Box<Orders>>,
    /// It was answered as applied. An answer that is repeated must not win a second term.
    pub(super) answered: bool,
    /// A term began with it. That term's end was decided then; it is not decided again by a look.
    pub(super) began: bool,
    /// The version that is known to come from it, by its answer or by a look during our own term;
    /// only where that is needed as a proof.
    pub(super) made: Option<Box<Version>>,
}

/// The request under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct InFlight {
    pub(super) id: u64,
    pub(super) write: bool,
    pub(super) expires: LocalTime,
    /// The greatest revision known when it was sent; an answer below it went back in time.
    pub(super) known: Option<ResourceVersion>,
    /// The watch brought news since; an answer of "absent" may be older than those.
    pub(super) overtaken: bool,
}

impl Election {
    /// Sends a read.
    pub(super) fn read(&mut self, now: Now, timeout: Duration, out: &mut Vec<Command>) {
        let id = self.open_request(now, timeout, false);
        out.push(Command::Read { id, timeout });
    }

    /// Sends a write. The only way for a write to leave.
    pub(super) fn write(
        &mut self,
        now: Now,
        kind: WriteKind,
        record: Record,
        timeout: Duration,
        out: &mut Vec<Command>,
    ) {
        assert!(
            self.is_mutant() || self.may_replace(now, &kind),
            "S5: {kind:?} may not be replaced now"
        );
        if let WriteKind::Release(_) = kind {
            // S4: this phase is entered only after the work has ended and the guard was put out. Once
            // the guard would have run out by itself, nothing is released (duty 6).
            let ended = matches!(&self.state, State::Releasing(term) if term.guard.holds(now));
            assert!(
                self.is_mutant() || ended,
                "S4: release before the work ended, or too late"
            );
            let own = matches!(&self.known, Known::Present(seen) if self.wrote(&seen.observation));
            assert!(self.is_mutant() || own, "duty 6: release of a stranger's");
        }
        let id = self.open_request(now, timeout, true);
        let orders = match &self.known {
            Known::Present(seen) => Some(&seen.observation.orders),
            Known::Nothing | Known::Absent { .. } => None,
        };
        let orders = orders.filter(|orders| **orders != Orders::default());
        let orders = orders.cloned().map(Box::new);
        if self.attempts.len() == REMEMBERED_ATTEMPTS {
            // The first is the one that made the version last seen; the object may still show it.
            self.attempts.remove(1);
        }
        // Hardly ever more than two, and a process may have thousands of elections.
        self.attempts.reserve_exact(1);
        self.attempts.push(Attempt {
            id,
            record: record.clone(),
            sent: now,
            kind: kind.clone(),
            orders,
            answered: false,
            began: false,
            made: None,
        });
        out.push(Command::Write {
            id,
            kind,
            record,
            timeout,
        });
    }

    /// S5, derived anew from what is known and not from how the caller got here: the version was
    /// written by this incarnation, or (for life) it is another incarnation's of ours. Otherwise the term that
    /// its mark names has run out, or is released, and its holder is empty, or it has been observed
    /// unchanged for its lease, or the object does not exist, or (coordinated) it was assigned to us; and
    /// nobody else holds it for life.
    pub(super) fn may_replace(&self, now: Now, kind: &WriteKind) -> bool {
        // Duty 8: after a live term of somebody else, not before that has run out.
        let held = self.hold_until.is_some_and(|until| now.local < until);
        match (&self.known, kind.base()) {
            (Known::Absent { .. }, None) => !held,
            (Known::Present(seen), Some(base)) if seen.observation.version == *base => {
                let observation = &seen.observation;
                let record = &observation.record;
                let expired = now.local >= seen.since + self.patience(observation);
                let free = record.is_free() && !observation.unreadable;
                let assigned = self.config.coordinated && record.holder == self.config.identity;
                self.wrote(observation)
                    || self.is_inherited(observation)
                    || (!held && (free || assigned))
                    || (!held && expired && !self.is_held_for_life(observation))
            }
            _ => false,
        }
    }

    /// Whether this incarnation wrote what was seen (duty 9: the name alone proves nothing).
    pub(super) fn wrote(&self, seen: &Observation) -> bool {
        self.attempt_of(seen).is_some()
            || (self.is(Mutant::OwnName) && seen.record.holder == self.config.identity)
    }

    /// The attempt that wrote what was seen. With whole-second times two attempts can look alike; the
    /// earlier one counts, which can only shorten a guard.
    pub(super) fn attempt_of(&self, seen: &Observation) -> Option<&Attempt> {
        self.author(seen).map(|at| &self.attempts[at])
    }

    /// Which attempt wrote what was seen.
    pub(super) fn author(&self, seen: &Observation) -> Option<usize> {
        let wrote = |attempt: &Attempt| {
            attempt.record.same_write(&seen.record) && self.proven(attempt, seen)
        };
        self.attempts.iter().position(wrote)
    }

    /// Whether a record that reads like an attempt's must come from it, and not from another process
    /// with our name.
    ///
    /// Microseconds tell two writers apart. Whole seconds do not: two processes that share a name and
    /// try in the same second write the same text, and the loser must not take the winner's record
    /// for its own. Then only the version counts that the answer named. During a term that is not
    /// needed: nobody else may replace our record while our guard is good, whatever it says.
    fn proven(&self, attempt: &Attempt, seen: &Observation) -> bool {
        let holding = matches!(
            self.state,
            State::Leading(_) | State::Stopping(_) | State::Releasing(_)
        );
        !self.config.whole_seconds
            || holding
            || attempt.made.as_deref() == Some(&seen.version)
            || self.is(Mutant::ClaimByTimes)
    }

    /// The time to stamp into the next record: never the same twice, because a write that changes
    /// nothing is no sign of life.
    pub(super) fn stamp(&mut self, now: Now) -> WallTime {
        let (wall, tick) = if self.config.whole_seconds {
            (now.wall.whole_seconds(), 1_000_000)
        } else {
            (now.wall, 1)
        };
        let next = self
            .last_stamp
            .map(|last| WallTime::from_micros(last.as_micros() + tick));
        let stamp = next.map_or(wall, |next| wall.max(next));
        self.last_stamp = Some(stamp);
        stamp
    }

    /// Ends a request whose time is over, as if the driver had said so.
    pub(super) fn expire_request(&mut self, now: Now) {
        let Some(request) = self.in_flight.as_ref().filter(|r| now.local >= r.expires) else {
            return;
        };
        let (id, write) = (request.id, request.write);
        if write {
            self.write_failed(now, id, &Outcome::Unknown);
        } else {
            self.read_failed(now, id);
        }
    }

    pub(super) fn read_failed(&mut self, now: Now, id: u64) {
        if self.in_flight.take_if(|r| r.id == id && !r.write).is_some() {
            self.must_read = true;
            self.back_off(now);
            if self.is(Mutant::GiveUp) {
                self.not_before = now.local + Duration::from_secs(1_000_000_000);
            }
        }
    }

    pub(super) fn written(&mut self, now: Now, id: u64, outcome: Outcome, out: &mut Vec<Command>) {
        match outcome {
            Outcome::Applied(version) => {
                self.in_flight.take_if(|r| r.id == id);
                // An answer that comes after its time was up is still an answer.
                let open = |attempt: &Attempt| attempt.id == id && !attempt.answered;
                let Some(at) = self.attempts.iter().position(open) else {
                    return;
                };
                let mut attempt = self.attempts.remove(at);
                attempt.answered = true;
                attempt.made = self.config.whole_seconds.then(|| Box::new(version.clone()));
                self.applied(now, attempt, &version, out);
            }
            outcome => {
                if self.is(Mutant::UnknownExtends)
                    && outcome == Outcome::Unknown
                    && let Some(attempt) = self.attempts.iter().find(|attempt| attempt.id == id)
                {
                    self.renewed(now, attempt.sent, out);
                }
                self.write_failed(now, id, &outcome);
            }
        }
    }

    fn write_failed(&mut self, now: Now, id: u64, outcome: &Outcome) {
        if self.in_flight.take_if(|r| r.id == id && r.write).is_none() {
            return;
        }
        // A conflict may be our own write, repeated below us (duty 3): the next read tells.
        if *outcome == Outcome::Unusable || self.is(Mutant::ForgetAttempts) {
            self.attempts.retain(|attempt| attempt.id != id);
        }
        // A refusal means that the view is stale. After an unknown outcome the same version may be
        // tried again: at most one of the two can be applied.
        let holding = matches!(self.state, State::Leading(_) | State::Stopping(_));
        if !self.is(Mutant::NoReRead) {
            let many = self.attempts.len() >= OPEN_BEFORE_READ;
            self.must_read |= *outcome == Outcome::Refused || !holding || many;
        }
        self.back_off(now);
    }

    /// An answered write: the object is known to have this version and record.
    fn applied(&mut self, now: Now, attempt: Attempt, version: &Version, out: &mut Vec<Command>) {
        let stale = self
            .highest
            .as_ref()
            .is_some_and(|highest| version.revision.order(highest).is_some_and(|o| o.is_lt()));
        self.failures = 0;
        self.not_before = now.local;
        if stale {
            // Something newer was already seen; it decides, this answer only says what once was.
            self.attempts.insert(0, attempt);
            self.must_read = true;
            return;
        }
        self.must_read = false;
        self.know_own(now, &attempt, version.clone());
        // Attempts on older versions cannot be applied any more. If this answer was late, the next
        // attempt, on the version that it made, may be under way already.
        self.attempts
            .retain(|other| other.kind.base() == Some(version));
        // What a spell without answers has taken is given back.
        self.attempts.shrink_to(2);
        self.attempts.insert(0, attempt.clone());
        match attempt.kind {
            WriteKind::Create | WriteKind::Acquire(_) if matches!(self.state, State::Following) => {
                self.won(now, &attempt, version, out);
            }
            WriteKind::Create | WriteKind::Acquire(_) | WriteKind::Renew(_) => {
                self.credit(now, &attempt, out);
            }
            WriteKind::Release(_) => {
                if matches!(self.state, State::Releasing(_)) {
                    self.report(out);
                    out.push(Command::Released);
                    self.leave_term(now, out);
                }
            }
        }
    }

    fn open_request(&mut self, now: Now, timeout: Duration, write: bool) -> u64 {
        assert!(self.in_flight.is_none(), "one request at a time");
        let guard = match &self.state {
            State::Leading(term) | State::Releasing(term) => Some(&term.guard),
            State::Stopping(winding) => Some(&winding.term.guard),
            State::Idle | State::Following | State::Finished => None,
        };
        assert!(
            self.is_mutant() || guard.is_none_or(|guard| timeout <= guard.left(now)),
            "duty 1: a request of a term ends with its guard"
        );
        let id = self.next_id;
        self.next_id += 1;
        self.in_flight = Some(InFlight {
            id,
            write,
            expires: now.local + timeout,
            known: self.highest.clone(),
            overtaken: false,
        });
        id
    }

    /// Delays the next request: at once after the first failure, then a sixteenth of the retry period
    /// and doubling, up to the whole of it; a little random, so that candidates drift apart.
    fn back_off(&mut self, now: Now) {
        let retry = self.config.timing.retry_period();
        let delay = match self.failures {
            0 => Duration::ZERO,
            n => (retry / 16 * 2u32.pow(n.min(5) - 1)).min(retry),
        };
        self.failures = self.failures.saturating_add(1);
        let jitter = self.random.below(delay / 4);
        self.not_before = now.local + delay + jitter;
    }
}
