//! Following: when to try to win the lock, and when to read it.

use std::time::Duration;

use super::observe::{Known, KnownVersion};
use super::request::Attempt;
use super::rules::require;
use super::{Election, State, Term};
use crate::command::{Command, WriteKind};
use crate::fence::FencingToken;
use crate::guard::Guard;
use crate::input::Version;
use crate::record::Record;
use crate::time::{LocalTime, Now};
use crate::timing::JITTER_FACTOR;

/// Coordinated election: the controller checks every five seconds and waits equally long for responses of candidates.
/// This duration is long enough for several rounds of the controller.
const REASSIGNMENT: Duration = Duration::from_secs(30);

impl Election {
    pub(super) fn act_following(&mut self, now: Now, out: &mut Vec<Command>) {
        if self.in_flight.is_some() {
            // A shutdown waits for a write in flight, which may win the lock. It does not wait for reads.
            if self.shutdown
                && self
                    .in_flight
                    .as_ref()
                    .is_some_and(|request| !request.write)
            {
                self.leave_or_look(now, out);
            }
            return;
        }
        if self.shutdown {
            self.leave_or_look(now, out);
            return;
        }
        if now.local < self.not_before {
            return;
        }
        let timeout = self.config.timing.request_timeout();
        if self.must_read {
            self.poll_later(now);
            self.read(now, timeout, out);
        } else if self.may_win_at().is_some_and(|at| now.local >= at) {
            let (kind, record) = self.winning_write(now);
            self.write(now, kind, record, timeout, out);
        } else if !self.watching && now.local >= self.next_poll {
            self.poll_later(now);
            self.read(now, timeout, out);
        }
    }

    /// Postpones the next poll to one jittered retry period from now, because a read in flight serves as a poll.
    fn poll_later(&mut self, now: Now) {
        let retry = self.config.timing.retry_period();
        self.next_poll = now.local + retry + self.random.below(retry.mul_f64(JITTER_FACTOR));
    }

    pub(super) fn follow_deadline(&self) -> Option<LocalTime> {
        if self.in_flight.is_some() {
            return None;
        }
        if self.must_read {
            return Some(self.not_before);
        }
        let poll = (!self.watching).then_some(self.next_poll);
        let earliest = match (self.may_win_at(), poll) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        earliest.map(|at| at.max(self.not_before))
    }

    /// Handles a write of this candidate that won the lock. The term begins if enough of its guard is left. Otherwise
    /// the response was very late, and the lock, which this candidate now holds, is acquired again immediately.
    pub(super) fn won(
        &mut self,
        now: Now,
        attempt: &Attempt,
        version: &Version,
        out: &mut Vec<Command>,
    ) {
        if !matches!(self.state, State::Following) {
            return;
        }
        let guard = self.guard_from(now, attempt.sent);
        if guard.left(now) < guard.length() / 2 {
            return;
        }
        let Ok(token) = version.revision.as_str().parse::<FencingToken>() else {
            return;
        };
        if let Some((write, last)) = &self.last_won {
            // S2: a write wins at most once, even if its response arrives several times.
            require!(
                self,
                attempt.id != *write,
                "S2: write {write} wins a second term"
            );
            if token <= *last {
                // The server returned the same version twice, so this term would not have a greater token.
                self.not_before = now.local + self.config.timing.retry_period();
                return;
            }
        }
        self.last_won = Some((attempt.id, token.clone()));
        // Renewals of elections of one process that were won together must not coincide. The first renewal is therefore
        // earlier by a random part of the retry period, and later renewals keep that offset.
        let first = self.random.below(self.config.timing.retry_period());
        let term = Term {
            token: token.clone(),
            uid: version.uid.clone(),
            transitions: attempt.record.transitions,
            acquire_time: attempt.record.acquire_time,
            strategy: attempt.record.strategy.clone(),
            guard,
            next_renewal: attempt.sent.local + first,
            began: self.config.preference.as_ref().map(|_| now.local),
            successor: None,
        };
        // In a coordinated election a term has its number before a candidate takes it up.
        let order = self.order_for(&attempt.record);
        if let Some(order) = order {
            self.assert_addressed(order, term.acquire_time);
        }
        let ordered = order.map(|order| order.sit_out);
        if let Some(sit_out) = ordered {
            self.sit_out_until = self.sit_out_until.max(now.local + sit_out);
        }
        if self.shutdown || ordered.is_some() || now.local < self.sit_out_until {
            // A stop was requested while the winning write was in flight: release without starting work.
            self.release(now, term, out);
            return;
        }
        let transitions = term.transitions;
        self.state = State::Leading(term);
        let mut attempts = self.attempts.iter_mut();
        if let Some(own) = attempts.find(|own| own.id == attempt.id) {
            own.began = true;
        }
        assert!(guard.holds(now), "S1: a term begins with a good guard");
        out.push(Command::Lead {
            token,
            transitions,
            guard,
        });
        self.report(out);
    }

    /// Returns the earliest instant at which a write may win, if any (duties 7, 8, 9).
    fn may_win_at(&self) -> Option<LocalTime> {
        let mut hold = self.hold_until.unwrap_or_default();
        let at = match &self.known {
            Known::Nothing => return None,
            Known::Absent { since, delay } => {
                if self.config.coordinated {
                    return None;
                }
                *since + self.start_delay(*delay)
            }
            Known::Present(seen) => {
                let observation = &seen.observation;
                let record = &observation.record;
                if observation.orders.paused {
                    return None;
                }
                let expiry = seen.since + self.patience(observation);
                if self.rules.needs_assignment(self.config.coordinated) {
                    if self.wrote(observation) {
                        hold = LocalTime::default();
                    }
                    let at = self.take_up_at(seen)?;
                    return Some(at.max(hold).max(self.sit_out_until));
                }
                if self.is_held_for_life(observation) {
                    return None;
                }
                let ours = self.wrote(observation) || self.is_inherited(observation);
                if ours {
                    hold = LocalTime::default();
                }
                let dead = self.dead_since(observation);
                if dead.is_some() {
                    // The mark names the dead holder, so no other term can be live.
                    hold = LocalTime::default();
                }
                // A released term is available to every candidate, including its former holder.
                if ours && !record.is_free() {
                    seen.since
                } else if record.is_free() && !observation.unreadable {
                    // A released record shows neither the holder nor the time of the term that the order has ended.
                    let to_another = observation.orders.step_down.as_ref().is_some_and(|order| {
                        order.transitions == record.transitions
                            && order
                                .to
                                .as_ref()
                                .is_some_and(|to| *to != self.config.identity)
                    });
                    let courtesy = if to_another {
                        self.config.timing.retry_period()
                    } else {
                        Default::default()
                    };
                    seen.since + self.start_delay(seen.delay) + courtesy
                } else {
                    dead.map_or(expiry, |since| since.min(expiry)) + self.start_delay(seen.delay)
                }
            }
        };
        Some(at.max(hold).max(self.sit_out_until))
    }

    /// Coordinated election: returns when an assignment to this candidate may be taken up. An assignment stays valid
    /// for the candidate after it has expired, because the controller does not repeat an assignment to the same
    /// candidate. If the controller prefers another candidate, it has enough time to detect the expired assignment and
    /// to reassign the lease.
    fn take_up_at(&self, seen: &KnownVersion) -> Option<LocalTime> {
        let record = &seen.observation.record;
        let preferred = &record.preferred_holder;
        let another = !preferred.is_empty() && *preferred != self.config.identity;
        let wait = if another {
            self.patience(&seen.observation) + REASSIGNMENT
        } else {
            Duration::ZERO
        };
        (record.holder == self.config.identity).then(|| seen.since + wait)
    }

    /// Returns the write that wins, filled like client-go does: transitions count every term except the first.
    fn winning_write(&mut self, now: Now) -> (WriteKind, Record) {
        let stamp = self.stamp(now);
        let fresh = Record {
            holder: self.config.identity.clone(),
            lease_duration_seconds: self.config.timing.lease_seconds(),
            acquire_time: Some(stamp),
            renew_time: Some(stamp),
            ..Record::default()
        };
        match &self.known {
            Known::Present(seen) => {
                let old = &seen.observation.record;
                // The controller of a coordinated election never increments the number of transitions, but orders and
                // fencing tokens identify a term by it.
                let record = Record {
                    transitions: old.transitions.saturating_add(1),
                    strategy: if self.config.coordinated {
                        old.strategy.clone()
                    } else {
                        String::new()
                    },
                    ..fresh
                };
                (WriteKind::Acquire(seen.observation.version.clone()), record)
            }
            Known::Nothing | Known::Absent { .. } => (WriteKind::Create, fresh),
        }
    }

    /// Handles a shutdown while following: finishes, unless a winning write of this candidate may have been applied
    /// without a response. In that case one read decides whether there is a term to release.
    fn leave_or_look(&mut self, now: Now, out: &mut Vec<Command>) {
        // A term that has ended, or a late renewal of it, is left to expire (S4). Only a write that would have begun a
        // term is undone.
        let wins = |attempt: &&Attempt| {
            matches!(attempt.kind, WriteKind::Create | WriteKind::Acquire(_)) && !attempt.began
        };
        let open = self
            .attempts
            .iter()
            .filter(wins)
            .any(|attempt| Guard::new(attempt.sent, self.config.timing.guard()).holds(now));
        if !open || !self.gives_back() || self.failures > 2 {
            self.finish(out);
            return;
        }
        if self.in_flight.is_some() || now.local < self.not_before {
            return;
        }
        if self.must_read {
            let timeout = self.config.timing.request_timeout();
            self.read(now, timeout, out);
            return;
        }
        // The read is complete. If it shows a winning write of this candidate, that term is released without having
        // begun.
        let Known::Present(seen) = &self.known else {
            self.finish(out);
            return;
        };
        let version = seen.observation.version.clone();
        let found = self.attempt_of(&seen.observation).filter(wins).cloned();
        match (found, version.revision.as_str().parse::<FencingToken>()) {
            (Some(attempt), Ok(token)) => {
                let term = Term {
                    token,
                    uid: version.uid.clone(),
                    transitions: attempt.record.transitions,
                    acquire_time: attempt.record.acquire_time,
                    strategy: attempt.record.strategy.clone(),
                    guard: Guard::new(attempt.sent, self.config.timing.guard()),
                    next_renewal: now.local,
                    began: None,
                    successor: None,
                };
                self.release(now, term, out);
            }
            _ => self.finish(out),
        }
    }
}
