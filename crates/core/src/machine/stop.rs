//! Stopping: mark the term as stopped, cancel the work, join it, and only then release (duties 5 and 6, S4).

use std::time::Duration;

use super::observe::Known;
use super::{Election, State, StoppingTerm, Term};
use crate::command::{Command, StopReason, WriteKind};
use crate::time::{LocalTime, Now};

/// Minimum time in which work can react to a cancellation, even if its deadline has already passed (for example after a
/// long pause of the whole process). The guard stays expired during this time.
const LAST_MOMENT: Duration = Duration::from_millis(100);

impl Election {
    /// Ends the current term for a reason. A second reason can only change a voluntary stop into a loss.
    pub(super) fn stop(&mut self, now: Now, reason: StopReason, out: &mut Vec<Command>) {
        let timing = &self.config.timing;
        match &mut self.state {
            State::Leading(term) => {
                let fence = term.guard.sent().local + timing.fence();
                let voluntary = reason.is_voluntary();
                let deadline = if voluntary || reason == StopReason::GuardExpired {
                    fence
                } else {
                    fence.min(now.local + timing.grace())
                };
                let deadline = deadline.max(now.local + LAST_MOMENT);
                out.push(Command::Stop {
                    reason: reason.clone(),
                    deadline,
                });
                self.state = State::Stopping(Box::new(StoppingTerm {
                    term: term.clone(),
                    reason,
                    deadline,
                    ours: voluntary,
                    keep_until: voluntary.then(|| now.local + timing.renew_deadline()),
                    overrun: false,
                }));
            }
            State::Stopping(stopping) if !reason.is_voluntary() && stopping.ours => {
                stopping.ours = false;
                stopping.keep_until = None;
                stopping.reason = reason;
                let earlier = now.local + timing.grace().max(LAST_MOMENT);
                if earlier < stopping.deadline {
                    stopping.deadline = earlier;
                    out.push(Command::Drain { deadline: earlier });
                }
            }
            State::Releasing(_) if !reason.is_voluntary() => self.leave_term(now, out),
            _ => {}
        }
    }

    /// Stops a term whose work ends by itself. Nothing is released, because other parts of the work may still run.
    pub(super) fn work_ending(&mut self, now: Now, out: &mut Vec<Command>) {
        if let State::Leading(_) = self.state {
            // A candidate without work lets other candidates acquire the lock first.
            let pause = now.local + self.config.timing.retry_period();
            self.sit_out_until = self.sit_out_until.max(pause);
            self.stop(now, StopReason::WorkEnded, out);
        }
    }

    pub(super) fn work_ended(&mut self, now: Now, out: &mut Vec<Command>) {
        self.work_ending(now, out);
        let State::Stopping(stopping) = &self.state else {
            return;
        };
        if stopping.ours {
            let term = stopping.term.clone();
            self.release(now, term, out);
        } else {
            self.leave_term(now, out);
        }
    }

    /// Releases a term whose work has ended. It releases nothing if releasing is disabled or if the guard has expired,
    /// because another candidate may already hold the lock.
    pub(super) fn release(&mut self, now: Now, term: Term, out: &mut Vec<Command>) {
        if self.gives_back() && term.guard.holds(now) {
            self.state = State::Releasing(term);
            self.must_read = true;
            self.failures = 0;
            self.not_before = now.local;
        } else {
            self.leave_term(now, out);
        }
    }

    /// Renews the lease for a bounded time while work stops after a voluntary stop.
    pub(super) fn act_stopping(&mut self, now: Now, out: &mut Vec<Command>) {
        let State::Stopping(stopping) = &mut self.state else {
            return;
        };
        if now.local >= stopping.deadline && !stopping.overrun {
            stopping.overrun = true;
            stopping.ours = false;
            stopping.keep_until = None;
            out.push(Command::Overrun);
        }
        stopping
            .keep_until
            .take_if(|until| now.local >= *until || !stopping.term.guard.holds(now));
        if stopping.keep_until.is_some() {
            let term = stopping.term.clone();
            self.renew(now, &term, out);
        }
    }

    pub(super) fn stopping_deadline(&self, stopping: &StoppingTerm) -> Option<LocalTime> {
        let overrun = (!stopping.overrun).then_some(stopping.deadline);
        let renewal = stopping
            .keep_until
            .filter(|_| self.in_flight.is_none())
            .map(|until| (self.renewal_due(&stopping.term), until))
            .filter(|(due, until)| due < until && *due < stopping.term.guard.until())
            .map(|(due, _)| due);
        match (overrun, renewal) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Reads the object, checks that it contains the record of this candidate, and replaces exactly that version.
    pub(super) fn act_releasing(&mut self, now: Now, out: &mut Vec<Command>) {
        let State::Releasing(term) = &self.state else {
            return;
        };
        let left = term.guard.left(now);
        if left.is_zero() {
            self.leave_term(now, out);
            return;
        }
        if self.in_flight.is_some() || now.local < self.not_before {
            return;
        }
        let timeout = self.config.timing.request_timeout().min(left);
        if self.must_read {
            self.read(now, timeout, out);
            return;
        }
        let Known::Present(seen) = &self.known else {
            self.leave_term(now, out);
            return;
        };
        let record = &seen.observation.record;
        let own = self.wrote(&seen.observation);
        if !own || record.is_free() {
            // The record belongs to another candidate, or to an earlier release of this candidate whose response was
            // lost.
            if own {
                out.push(Command::Released);
            }
            self.leave_term(now, out);
            return;
        }
        let (base, record) = (seen.observation.version.clone(), record.clone());
        let order = self.successor_of(term, &record);
        let record = record.released(self.stamp(now));
        self.write(now, WriteKind::Release(base, order), record, timeout, out);
    }
}
