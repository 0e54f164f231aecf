//! Seeded bugs that change what a shipped step receives, leaves behind or returns.
//!
//! Only builds with the hidden feature contain this file. Each bug is described at its name in `mutant.rs`.

use std::time::Duration;

use super::observe::{Known, KnownVersion};
use super::request::{Attempt, InFlight};
use super::{Election, State};
use crate::command::{Command, StopReason, WriteKind};
use crate::fence::FencingToken;
use crate::guard::Guard;
use crate::input::{Input, Observation, Outcome, Source};
use crate::mutant::Mutant;
use crate::record::Record;
use crate::time::Now;

/// Longer than every simulation.
const NEVER: Duration = Duration::from_secs(1_000_000_000);

impl Election {
    pub(super) fn step_with_bug(
        &mut self,
        mutant: Mutant,
        now: Now,
        mut input: Input,
    ) -> Vec<Command> {
        let mut out = Vec::new();
        if matches!(self.state, State::Finished) {
            return out;
        }
        self.end_expired_term(now, &mut out);
        let before = self.state.clone();
        match &mut input {
            Input::Observed(source, seen) => {
                self.change_observation(mutant, seen);
                if mutant == Mutant::ReleaseUnchecked && matches!(before, State::Releasing(_)) {
                    self.release_unchecked(now, *source, seen, &mut out);
                    input = Input::Tick;
                }
            }
            Input::Listed(_) if mutant == Mutant::IgnoreOldList => {
                self.passed_over = false;
                input = Input::Tick;
            }
            Input::WorkEnding if mutant == Mutant::DroppedIsEnded => input = Input::WorkEnded,
            Input::WorkEnded => self.claim_ended_term(mutant, now, &mut out),
            _ => {}
        }
        self.lose_failure(mutant, now, &input, &mut out);
        out.append(&mut self.step_as_shipped(now, input.clone()));
        self.change_term(mutant, now, before, &mut out);
        self.change_view(mutant, now, &input, &mut out);
        self.change_commands(mutant, &mut out);
        out
    }

    /// Bugs that misread an observation.
    fn change_observation(&mut self, mutant: Mutant, seen: &mut Observation) {
        let known = match &self.known {
            Known::Present(known) => Some(&known.observation),
            Known::Nothing | Known::Absent { .. } => None,
        };
        let known_mark = known.and_then(|known| known.mark);
        match mutant {
            Mutant::IgnorePause => seen.orders.paused = false,
            Mutant::TakeBack if self.wrote(seen) => {
                if let Some(order) = &mut seen.orders.step_down {
                    order.to = None;
                }
            }
            Mutant::KeepSince => {
                seen.fingerprint = known.map_or(seen.fingerprint, |known| known.fingerprint);
                seen.mark = seen.mark.and(known_mark.or(seen.mark));
            }
            Mutant::OverlookMark if !seen.is_marked() => {
                seen.mark = seen.mark.and(known_mark.or(seen.mark));
            }
            Mutant::IgnoreMark => seen.mark = None,
            Mutant::BelieveStaleMark if seen.record.is_free() => seen.mark = None,
            Mutant::OwnName if seen.record.holder == self.config.identity && !self.wrote(seen) => {
                self.attempts.truncate(4);
                self.attempts.push(Attempt {
                    id: 0,
                    record: seen.record.clone(),
                    sent: Now::default(),
                    kind: WriteKind::Renew(seen.version.clone()),
                    orders: None,
                    answered: true,
                    began: true,
                    made: Some(Box::new(seen.version.clone())),
                });
            }
            Mutant::ClaimByTimes => {
                let equal = |attempt: &&mut Attempt| attempt.record.same_write(&seen.record);
                for attempt in self.attempts.iter_mut().filter(equal) {
                    attempt.made = Some(Box::new(seen.version.clone()));
                }
            }
            _ => {}
        }
    }

    /// Releases a read record without asking whose it is.
    fn release_unchecked(
        &mut self,
        now: Now,
        source: Source,
        seen: &Observation,
        out: &mut Vec<Command>,
    ) {
        if source == Source::Watch || !self.answers(source) {
            return;
        }
        self.in_flight = None;
        self.must_read = false;
        self.known = Known::Present(Box::new(KnownVersion {
            observation: seen.clone(),
            since: now.local,
            delay: Duration::ZERO,
        }));
        if !seen.record.is_free() {
            let record = seen.record.clone().released(self.stamp(now));
            let kind = WriteKind::Release(seen.version.clone(), None);
            self.write(now, kind, record, self.config.timing.request_timeout(), out);
        }
    }

    /// Bugs that release a term which this candidate may have lost.
    fn claim_ended_term(&mut self, mutant: Mutant, now: Now, out: &mut Vec<Command>) {
        let late = matches!(mutant, Mutant::ReleaseUnchecked | Mutant::ReleaseAfterGuard);
        if !late && mutant != Mutant::ReleaseOnOverrun {
            return;
        }
        self.work_ending(now, out);
        if let State::Stopping(stopping) = &mut self.state {
            stopping.ours = true;
            if late {
                stopping.term.guard = Guard::new(now, NEVER);
            }
        }
    }

    /// Bugs that misjudge a failed request.
    fn lose_failure(&mut self, mutant: Mutant, now: Now, input: &Input, out: &mut Vec<Command>) {
        let failed = |request: &InFlight| match input {
            Input::ReadFailed(id) | Input::Written(id, Outcome::Refused | Outcome::Unknown) => {
                request.id == *id
            }
            _ => now.local >= request.expires,
        };
        let of_kind = |request: &mut InFlight| {
            failed(request) && request.write == (mutant == Mutant::NoReRead)
        };
        match (mutant, input) {
            (Mutant::NoReRead, _) if self.in_flight.take_if(of_kind).is_some() => {
                self.back_off(now);
            }
            (Mutant::GiveUp, _) if self.in_flight.take_if(of_kind).is_some() => {
                self.must_read = true;
                self.not_before = now.local + NEVER;
            }
            (Mutant::UnknownExtends, Input::Written(id, Outcome::Unknown)) => {
                if let Some(attempt) = self.attempts.iter().find(|attempt| attempt.id == *id) {
                    self.renewed(now, attempt.sent, out);
                }
            }
            _ => {}
        }
    }

    /// Bugs that end a term too late, or out of order.
    fn change_term(&mut self, mutant: Mutant, now: Now, before: State, out: &mut Vec<Command>) {
        let reason = match &self.state {
            State::Stopping(stopping) => Some(&stopping.reason),
            _ => None,
        };
        let deleted = reason == Some(&StopReason::Deleted);
        let observed = matches!(
            reason,
            Some(
                StopReason::Recreated
                    | StopReason::WentBack
                    | StopReason::Edited
                    | StopReason::Emptied
                    | StopReason::ForeignHolder(_)
            )
        );
        match (mutant, &mut self.state) {
            (Mutant::IgnoreForeign, state) if observed => {
                *state = before;
                out.retain(|command| !is_stop(command));
            }
            (Mutant::IgnoreDeleted, state) if deleted => {
                *state = before;
                out.retain(|command| !is_stop(command));
            }
            (Mutant::NoJoin, State::Stopping(_)) => {
                out.append(&mut self.step_as_shipped(now, Input::WorkEnded));
            }
            (Mutant::ReleaseOnOverrun, State::Stopping(stopping))
                if out.contains(&Command::Overrun) =>
            {
                stopping.ours = true;
                out.append(&mut self.step_as_shipped(now, Input::WorkEnded));
            }
            (Mutant::ReleaseBeforeStop, State::Stopping(stopping)) => {
                self.state = State::Releasing(stopping.term.clone());
                self.must_read = true;
                out.retain(|command| !is_stop(command));
                self.act(now, out);
            }
            (Mutant::ReleaseBeforeStop, State::Following | State::Finished)
                if matches!(before, State::Releasing(_)) =>
            {
                let stop = Command::Stop {
                    reason: StopReason::GuardExpired,
                    deadline: now.local,
                };
                out.insert(0, stop);
            }
            _ => {}
        }
    }

    /// Bugs that drop state which a candidate must keep, or that accept evidence which proves nothing.
    fn change_view(&mut self, mutant: Mutant, now: Now, input: &Input, out: &mut Vec<Command>) {
        let absent = matches!(self.known, Known::Absent { .. });
        match (mutant, input) {
            (Mutant::CreateAtOnce, _) if absent => self.hold_until = None,
            (Mutant::AssignedAtOnce, _) if self.config.coordinated => self.hold_until = None,
            (Mutant::ForgetAttempts, _) => {
                let open = self.in_flight.as_ref().map(|request| request.id);
                self.attempts
                    .retain(|attempt| attempt.answered || Some(attempt.id) == open);
            }
            (Mutant::WatchExtends, Input::Observed(Source::Watch, seen)) => {
                if let Some(mut attempt) = self.attempt_of(seen).cloned() {
                    attempt.sent = now;
                    self.credit(now, &attempt, out);
                }
            }
            _ => {}
        }
    }

    /// Bugs in the content of a write or in the token of a term.
    fn change_commands(&mut self, mutant: Mutant, out: &mut [Command]) {
        for command in out {
            match command {
                Command::Write {
                    id, kind, record, ..
                } => {
                    change_record(mutant, kind, record, self.config.coordinated);
                    let mut attempts = self.attempts.iter_mut();
                    if let Some(attempt) = attempts.find(|attempt| attempt.id == *id) {
                        attempt.record = record.clone();
                    }
                }
                Command::Lead {
                    token, transitions, ..
                } => {
                    let number = match (mutant, &self.last_won) {
                        (Mutant::TokenFromTransitions, _) => u64::from(*transitions),
                        (Mutant::TokenFromProcess, Some((write, _))) => *write,
                        _ => continue,
                    };
                    *token = FencingToken::from(number);
                    if let State::Leading(term) = &mut self.state {
                        term.token = token.clone();
                    }
                }
                _ => {}
            }
        }
    }
}

fn change_record(mutant: Mutant, kind: &WriteKind, record: &mut Record, coordinated: bool) {
    match (mutant, kind) {
        (Mutant::ShortLease, WriteKind::Create | WriteKind::Acquire(_) | WriteKind::Renew(_)) => {
            record.lease_duration_seconds = (record.lease_duration_seconds / 2).max(1);
        }
        (Mutant::KeepTransitions, WriteKind::Acquire(_)) if coordinated => {
            record.transitions = record.transitions.saturating_sub(1);
        }
        _ => {}
    }
}

fn is_stop(command: &Command) -> bool {
    matches!(command, Command::Stop { .. } | Command::Drain { .. })
}
