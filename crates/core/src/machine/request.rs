//! Sends requests, and tracks writes whose result is unknown.
//!
//! Every write of an election passes through [`Election::write`], which asserts that the version may be replaced (S5,
//! S4).

use std::time::Duration;

use super::observe::Known;
use super::rules::require;
use super::{Election, State};
use crate::command::{Command, WriteKind};
use crate::fence::ResourceVersion;
use crate::input::{Observation, Orders, Outcome, Version};
use crate::record::Record;
use crate::time::{LocalTime, Now, WallTime};

/// Maximum number of remembered attempts. More open attempts require as many lost responses on one unchanged version.
/// If the oldest attempt is forgotten, its late effect counts as a write of another candidate.
const REMEMBERED_ATTEMPTS: usize = 8;

/// A leader with this many open attempts reads which of them was applied before it tries again.
const OPEN_BEFORE_READ: usize = 4;

/// A write of this incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) id: u64,
    pub(super) record: Record,
    /// Time at which it was handed to the driver, which is not later than its first byte on the wire.
    pub(super) sent: Now,
    pub(super) kind: WriteKind,
    /// Orders in the version that the write creates. It keeps those of the replaced version, except that a release may
    /// set another one. Boxed, because orders are rare.
    pub(super) orders: Option<Box<Orders>>,
    /// Whether its response is no longer used, because it has arrived, or because a release was sent later. A repeated
    /// response must not win a second term.
    pub(super) answered: bool,
    /// Whether a term began with it. The end of that term is decided once, so a later read does not decide it again.
    pub(super) began: bool,
    /// The version that it is known to have created, from its response or from a read during our own term. Set only
    /// where it is needed as a proof.
    pub(super) made: Option<Box<Version>>,
}

/// The request in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct InFlight {
    pub(super) id: u64,
    pub(super) write: bool,
    pub(super) expires: LocalTime,
    /// Greatest revision known when it was sent. A response below it went back in time.
    pub(super) known: Option<ResourceVersion>,
    /// Whether a watch event arrived since. An "absent" response may be older than that event.
    pub(super) overtaken: bool,
}

impl Election {
    /// Sends a read.
    pub(super) fn read(&mut self, now: Now, timeout: Duration, out: &mut Vec<Command>) {
        let id = self.open_request(now, timeout, false);
        out.push(Command::Read { id, timeout });
    }

    /// Sends a write. This is the only way to send one.
    pub(super) fn write(
        &mut self,
        now: Now,
        kind: WriteKind,
        record: Record,
        timeout: Duration,
        out: &mut Vec<Command>,
    ) {
        require!(
            self,
            self.may_replace(now, &kind),
            "S5: {kind:?} may not be replaced now"
        );
        if let WriteKind::Release(..) = kind {
            // S4: this phase is entered only after the work has ended and the guard was revoked. Once the guard would
            // have expired by itself, nothing is released (duty 6).
            let ended = matches!(&self.state, State::Releasing(term) if term.guard.holds(now));
            require!(
                self,
                ended,
                "S4: release before the work ended, or too late"
            );
            let own = matches!(&self.known, Known::Present(seen) if self.wrote(&seen.observation));
            require!(self, own, "duty 6: release of a stranger's");
            // The release may be applied without a response, and a stale read may hide it. A late response to an earlier
            // write must not begin a term then, because another candidate need not wait after a release.
            for attempt in &mut self.attempts {
                attempt.answered = true;
            }
        }
        let id = self.open_request(now, timeout, true);
        let orders = match &self.known {
            Known::Present(seen) => Some(&seen.observation.orders),
            Known::Nothing | Known::Absent { .. } => None,
        };
        let mut orders = orders.cloned().unwrap_or_default();
        if let Some(order) = kind.order() {
            orders.step_down = Some(Box::new(order.clone()));
        }
        let orders = (orders != Orders::default()).then(|| Box::new(orders));
        if self.attempts.len() == REMEMBERED_ATTEMPTS {
            // The first attempt created the version that was last observed, and the object may still show it.
            self.attempts.remove(1);
        }
        // There are rarely more than two, and a process may run thousands of elections.
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

    /// S5: returns whether the write may replace this version. The answer depends only on the known state, not on the
    /// path by which the caller decided to write. An object that does not exist may be created after the wait of
    /// duty 8. An existing version may be replaced in one of these cases:
    ///
    /// - This incarnation wrote it, or (for life) an incarnation with the same identity did.
    /// - The wait of duty 8 is over, and the record has no holder or (coordinated) is assigned to this candidate.
    /// - The wait of duty 8 is over, the record was observed unchanged for its lease duration, and no other candidate
    ///   holds it for life.
    /// - It describes its holder, and that holder is proved dead. Records for life and coordinated elections are
    ///   excluded.
    pub(super) fn may_replace(&self, now: Now, kind: &WriteKind) -> bool {
        // Duty 8: wait until the live term of another candidate has expired.
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
                    || (self.dead_since(observation).is_some()
                        && !self.config.coordinated
                        && !self.is_held_for_life(observation))
            }
            _ => false,
        }
    }

    /// Returns whether this incarnation wrote the observed record (duty 9: an equal name proves nothing).
    pub(super) fn wrote(&self, seen: &Observation) -> bool {
        self.attempt_of(seen).is_some()
    }

    /// Returns the attempt that wrote the observed record. With whole-second times two attempts can be equal. In that
    /// case the earlier one counts, which can only shorten a guard.
    pub(super) fn attempt_of(&self, seen: &Observation) -> Option<&Attempt> {
        self.author(seen).map(|at| &self.attempts[at])
    }

    /// Returns the index of the attempt that wrote the observed record.
    pub(super) fn author(&self, seen: &Observation) -> Option<usize> {
        let wrote = |attempt: &Attempt| {
            attempt.record.same_write(&seen.record) && self.proven(attempt, seen)
        };
        self.attempts.iter().position(wrote)
    }

    /// Returns whether a record that equals the record of an attempt must come from that attempt, and not from another
    /// process with the same name.
    ///
    /// Times in microseconds distinguish two writers. Times in whole seconds do not: two processes that share a name
    /// and try in the same second write the same text. The loser must not treat the winner's record as its own. Such a
    /// record is therefore accepted only if its version equals the version in the response. In the object of our term
    /// this check is not needed, because nobody else may replace our record while our guard is valid. An object that was
    /// deleted and created again is not that object: another process may have created it.
    fn proven(&self, attempt: &Attempt, seen: &Observation) -> bool {
        let held = match &self.state {
            State::Leading(term) | State::Releasing(term) => Some(&term.uid),
            State::Stopping(stopping) => Some(&stopping.term.uid),
            _ => None,
        };
        !self.config.whole_seconds
            || held == Some(&seen.version.uid)
            || attempt.made.as_deref() == Some(&seen.version)
    }

    /// Returns the time to write into the next record. It is never the same twice, because a write that changes nothing
    /// does not show that the holder is alive.
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

    /// Ends a request that timed out, as if the driver had reported the timeout.
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
        }
    }

    pub(super) fn written(&mut self, now: Now, id: u64, outcome: Outcome, out: &mut Vec<Command>) {
        match outcome {
            Outcome::Applied(version) => {
                self.in_flight.take_if(|r| r.id == id);
                // A response that arrives after the timeout is still used.
                let open = |attempt: &Attempt| attempt.id == id && !attempt.answered;
                let Some(at) = self.attempts.iter().position(open) else {
                    return;
                };
                let mut attempt = self.attempts.remove(at);
                attempt.answered = true;
                attempt.made = self.config.whole_seconds.then(|| Box::new(version.clone()));
                self.applied(now, attempt, &version, out);
            }
            outcome => self.write_failed(now, id, &outcome),
        }
    }

    fn write_failed(&mut self, now: Now, id: u64, outcome: &Outcome) {
        if self.in_flight.take_if(|r| r.id == id && r.write).is_none() {
            return;
        }
        // A conflict may be with our own write, repeated by a layer below (duty 3). The next read decides.
        if *outcome == Outcome::Unusable {
            self.attempts.retain(|attempt| attempt.id != id);
        }
        // A rejection means that the known state is stale. After an unknown result the same version may be tried again,
        // because at most one of the two writes can be applied.
        let holding = matches!(self.state, State::Leading(_) | State::Stopping(_));
        let many = self.attempts.len() >= OPEN_BEFORE_READ;
        self.must_read |= *outcome == Outcome::Refused || !holding || many;
        self.back_off(now);
    }

    /// Handles a confirmed write: the object is known to have had this version and record.
    fn applied(&mut self, now: Now, attempt: Attempt, version: &Version, out: &mut Vec<Command>) {
        let stale = self
            .highest
            .as_ref()
            .is_some_and(|highest| version.revision.order(highest).is_some_and(|o| o.is_lt()));
        self.failures = 0;
        self.not_before = now.local;
        if stale {
            // A newer version was already observed and takes precedence. This response only describes an earlier state.
            self.attempts.insert(0, attempt);
            self.must_read = true;
            return;
        }
        self.must_read = false;
        self.know_own(now, &attempt, version.clone());
        // Attempts on older versions can no longer be applied. If this response was late, the next attempt, based on
        // the version that it created, may already be in flight.
        self.attempts
            .retain(|other| other.kind.base() == Some(version));
        // Frees memory that was allocated during a period without responses.
        self.attempts.shrink_to(2);
        self.attempts.insert(0, attempt.clone());
        match attempt.kind {
            WriteKind::Create | WriteKind::Acquire(_) if matches!(self.state, State::Following) => {
                self.won(now, &attempt, version, out);
            }
            WriteKind::Create | WriteKind::Acquire(_) | WriteKind::Renew(_) => {
                self.credit(now, &attempt, out);
            }
            WriteKind::Release(..) => {
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
            State::Stopping(stopping) => Some(&stopping.term.guard),
            State::Idle | State::Following | State::Finished => None,
        };
        require!(
            self,
            guard.is_none_or(|guard| timeout <= guard.left(now)),
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

    /// Delays the next request. After the first failure it is sent immediately. Later delays start at a sixteenth of
    /// the retry period and double up to the whole period. A random part separates the candidates.
    pub(super) fn back_off(&mut self, now: Now) {
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
