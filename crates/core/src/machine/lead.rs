//! Leading: one renewal per retry period, and no reads unless something failed.

use std::time::Duration;

use super::observe::Known;
use super::request::Attempt;
use super::{Election, State, Term};
use crate::command::{Command, StopReason, WriteKind};
use crate::record::Record;
use crate::time::{LocalTime, Now};

/// Divisor: a renewal may be delayed by this fraction of the retry period, so that the renewals of many elections are
/// sent together. The fraction is small, so that a server receives the renewals spread over the period.
const LEEWAY: u32 = 32;

/// Upper limit for the delay of a renewal, regardless of the retry period.
const MOST_LEEWAY: Duration = Duration::from_millis(50);

impl Election {
    /// Ends the term if its guard has expired (duties 1 and 11).
    pub(super) fn end_expired_term(&mut self, now: Now, out: &mut Vec<Command>) {
        if let State::Leading(term) = &self.state
            && !term.guard.holds(now)
        {
            self.stop(now, StopReason::GuardExpired, out);
        }
    }

    pub(super) fn act_leading(&mut self, now: Now, out: &mut Vec<Command>) {
        if let State::Leading(term) = &self.state
            && self.is_renewal_due(now, term)
        {
            let term = term.clone();
            self.renew(now, &term, out);
        }
    }

    /// Renews the lease of a term, or reads the object first if the known state may be wrong.
    pub(super) fn renew(&mut self, now: Now, term: &Term, out: &mut Vec<Command>) {
        if !self.is_renewal_due(now, term) {
            return;
        }
        let timeout = self
            .config
            .timing
            .request_timeout()
            .min(term.guard.left(now));
        if timeout.is_zero() {
            return;
        }
        if self.must_read {
            self.read(now, timeout, out);
            return;
        }
        let Known::Present(seen) = &self.known else {
            return;
        };
        let base = seen.observation.version.clone();
        let record = Record {
            holder: self.config.identity.clone(),
            lease_duration_seconds: self.config.timing.lease_seconds(),
            acquire_time: term.acquire_time,
            renew_time: Some(self.stamp(now)),
            transitions: term.transitions,
            strategy: term.strategy.clone(),
            preferred_holder: String::new(),
        };
        self.write(now, WriteKind::Renew(base), record, timeout, out);
    }

    /// Handles an attempt that is known to have been applied in this term. It may be a second winning write that was
    /// sent because the response to the first was late. In that case the content of the second write is the current
    /// record.
    pub(super) fn credit(&mut self, now: Now, attempt: &Attempt, out: &mut Vec<Command>) {
        let term = match &mut self.state {
            State::Leading(term) => Some(term),
            State::Stopping(stopping) => Some(&mut stopping.term),
            _ => None,
        };
        if let Some(term) = term
            && !matches!(attempt.kind, WriteKind::Release(..))
        {
            term.transitions = attempt.record.transitions;
            term.acquire_time = attempt.record.acquire_time;
        }
        self.renewed(now, attempt.sent, out);
    }

    /// Restarts the guard at `sent`, the send time of a write that is known to have been applied in this term.
    pub(super) fn renewed(&mut self, now: Now, sent: Now, out: &mut Vec<Command>) {
        let guard = self.guard_from(now, sent);
        let timing = &self.config.timing;
        let retry = timing.retry_period();
        let fence = timing.fence();
        match &mut self.state {
            State::Leading(term) if guard.until() > term.guard.until() => {
                term.guard = guard;
                term.next_renewal =
                    next_renewal(term.next_renewal, sent.local, retry).max(now.local);
                if guard.holds(now) {
                    out.push(Command::Extend { guard });
                }
            }
            State::Stopping(stopping) if guard.until() > stopping.term.guard.until() => {
                let term = &mut stopping.term;
                term.guard = guard;
                term.next_renewal =
                    next_renewal(term.next_renewal, sent.local, retry).max(now.local);
                if stopping.keep_until.is_some() && !stopping.overrun {
                    stopping.deadline = sent.local + fence;
                    out.push(Command::Drain {
                        deadline: stopping.deadline,
                    });
                }
            }
            State::Releasing(ended) if guard.until() > ended.guard.until() => ended.guard = guard,
            _ => {}
        }
    }

    /// Returns how late the next renewal may be sent. After a failure it may not be late, because few attempts may be
    /// left before the guard expires.
    pub(super) fn renewal_leeway(&self, term: &Term) -> Duration {
        if self.must_read || self.failures > 0 {
            return Duration::ZERO;
        }
        let leeway = (self.config.timing.retry_period() / LEEWAY).min(MOST_LEEWAY);
        let left = term.guard.until().since(term.next_renewal);
        leeway.min(left / 2)
    }

    fn is_renewal_due(&self, now: Now, term: &Term) -> bool {
        self.in_flight.is_none() && now.local >= self.renewal_due(term)
    }

    pub(super) fn renewal_due(&self, term: &Term) -> LocalTime {
        if self.must_read || self.failures > 0 {
            self.not_before
        } else {
            term.next_renewal
        }
    }
}

/// Returns when to renew after a renewal that was due at one instant and sent at another. This is usually one retry
/// period after the due time, and never later than one retry period after the send time. Elections whose renewals were
/// delayed together therefore do not renew together afterwards.
pub(super) fn next_renewal(due: LocalTime, sent: LocalTime, retry: Duration) -> LocalTime {
    let (in_place, latest) = (due + retry, sent + retry);
    if in_place >= sent + retry / 2 {
        in_place.min(latest)
    } else {
        latest
    }
}
