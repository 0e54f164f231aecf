//! Candidates of higher rank: a leader hands over to them, and a follower lets them acquire a free lock first (duty 20).
//!
//! Invariants:
//!
//! - A hand-over is a voluntary end of the own term, so that S4 and S5 hold as for every step-down.
//! - Each observation of the last `failback_after`, at most [`LONGEST_GAP`] apart and all in this term, showed the
//!   candidate ready and of higher rank. Two hand-overs of an election are therefore at least that time apart.
//! - A head start only delays an attempt.

use std::time::Duration;

use super::observe::Known;
use super::rules::require;
use super::{Election, State, Term};
use crate::command::{Command, StopReason};
use crate::input::StepDownOrder;
use crate::mutant::Mutant;
use crate::preference::{Failback, Preference, Rank, Standing};
use crate::record::Record;
use crate::time::{LocalTime, Now};

/// Limit of better candidates that are remembered.
const REMEMBERED: usize = 8;

/// Longest time between two observations of the candidates. After a longer one, the time of each candidate starts again.
const LONGEST_GAP: Duration = Duration::from_secs(30);

/// Time by which a follower delays its attempt for each better candidate, up to [`MOST_AHEAD`] of them.
const HEAD_START: Duration = Duration::from_millis(15);

/// Limit of better candidates for which a follower delays its attempt.
const MOST_AHEAD: u32 = 3;

/// Divisor of the random delay of ranked candidates. A delay below [`HEAD_START`] keeps the order of ranks.
const SPREAD: u32 = 4;

/// The ready candidates of higher rank, as last observed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct BetterCandidates {
    /// The best one first.
    candidates: Vec<Better>,
    observed: LocalTime,
}

/// A ready candidate of higher rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Better {
    identity: String,
    rank: Rank,
    /// The first of the consecutive observations that showed it.
    since: LocalTime,
}

impl Election {
    /// Handles an observation of the candidates. A hand-over is decided only here, so that it never depends on an old
    /// observation.
    pub(super) fn compare(&mut self, now: Now, candidates: Vec<Standing>, out: &mut Vec<Command>) {
        let Some(preference) = &self.config.preference else {
            return;
        };
        let before = self.better.take().unwrap_or_default();
        let observed = self.rules.is_observed(now.local.since(before.observed));
        let mut better: Vec<Better> = candidates
            .into_iter()
            .filter(|candidate| {
                candidate.identity != self.config.identity
                    && self.rules.is_better(preference.rank, candidate)
            })
            .map(|candidate| {
                let mut known = before.candidates.iter().filter(|_| observed);
                let known = known.find(|known| known.identity == candidate.identity);
                Better {
                    since: known.map_or(now.local, |known| known.since),
                    identity: candidate.identity,
                    rank: candidate.rank,
                }
            })
            .collect();
        better.sort_unstable_by(|a, b| b.rank.cmp(&a.rank).then(a.identity.cmp(&b.identity)));
        better.truncate(REMEMBERED);
        self.better = Some(Box::new(BetterCandidates {
            candidates: better,
            observed: now.local,
        }));
        self.hand_over(now, out);
    }

    /// Ends the current term if a better candidate has been ready for long enough.
    fn hand_over(&mut self, now: Now, out: &mut Vec<Command>) {
        let (State::Leading(term), Some(better), Some(preference)) =
            (&self.state, &self.better, &self.config.preference)
        else {
            return;
        };
        let Some(began) = term.began.filter(|_| self.hands_over(preference)) else {
            return;
        };
        let wait = preference.failback_after;
        let chosen = better.candidates.iter().find(|candidate| {
            let since = self.rules.counted_since(candidate.since, began);
            now.local.since(since) >= self.rules.failback_after(wait)
        });
        let Some(chosen) = chosen else {
            return;
        };
        require!(
            self,
            chosen.rank > preference.rank
                && now.local >= began + wait
                && now.local >= chosen.since + wait,
            "duty 20: hands over to {chosen:?} too early, or to no better candidate"
        );
        let successor = chosen.identity.clone();
        if let State::Leading(term) = &mut self.state {
            term.successor = Some(successor.as_str().into());
        }
        self.stop(now, StopReason::PreferredHolder(successor), out);
    }

    /// Returns whether this leader may hand over to a better candidate now. In a paused election nobody could follow.
    /// Without a release, the candidate would have to wait for the lease.
    fn hands_over(&self, preference: &Preference) -> bool {
        let paused = matches!(&self.known, Known::Present(seen) if seen.observation.orders.paused);
        preference.failback == Failback::Auto
            && self.gives_back()
            && !self.config.coordinated
            && !self.config.for_life
            && !self.rules.counts_as_paused(paused)
            && !self.rules.is(Mutant::PreferNobody)
    }

    /// Returns the order by which a release names the candidate that this term was ended for, if it is still ready.
    pub(super) fn successor_of(&self, term: &Term, record: &Record) -> Option<Box<StepDownOrder>> {
        let successor = term.successor.as_deref()?;
        let mut better = self.better.iter().flat_map(|better| &better.candidates);
        let ready = better.any(|candidate| candidate.identity == *successor);
        (ready && !self.rules.is(Mutant::PreferUnnamed)).then(|| {
            Box::new(StepDownOrder {
                transitions: record.transitions,
                holder: Some(record.holder.clone()),
                acquire_time: record.acquire_time,
                to: Some(successor.to_owned()),
                sit_out: Duration::ZERO,
            })
        })
    }

    /// Lets the better candidate acquire the lock after a term that was ended for it, but not released, because the work
    /// did not end in time or the release failed. The lock still names this candidate, which could otherwise acquire it
    /// immediately, and would end its work for the same candidate again.
    pub(super) fn wait_for_successor(&mut self) {
        let term = match &self.state {
            State::Stopping(stopping) => &stopping.term,
            State::Releasing(term) => term,
            State::Idle | State::Following | State::Leading(_) | State::Finished => return,
        };
        let held = matches!(&self.known, Known::Present(seen)
            if !seen.observation.record.is_free() && self.wrote(&seen.observation));
        if term.successor.is_none() || !held {
            return;
        }
        let timing = &self.config.timing;
        // The interval of a candidate that polls is shorter than three retry periods.
        let wait = timing.lease() + timing.lock_delay() + timing.retry_period() * 3;
        let sent = self.attempts.iter().map(|attempt| attempt.sent.local);
        if let Some(sent) = sent.max() {
            self.sit_out_until = self.sit_out_until.max(sent + wait);
        }
    }

    /// Returns the delay of an attempt to acquire a free lock, given the random delay of an unranked candidate.
    pub(super) fn start_delay(&self, spread: Duration) -> Duration {
        let Some(better) = &self.better else {
            return spread;
        };
        let ahead = u32::try_from(better.candidates.len()).unwrap_or(MOST_AHEAD);
        HEAD_START * ahead.min(MOST_AHEAD) + spread / SPREAD
    }
}

impl super::Rules {
    /// Returns whether a candidate is ready and ranks above this rank.
    fn is_better(self, own: Rank, candidate: &Standing) -> bool {
        if self.is(Mutant::PreferUnready) {
            return candidate.rank > own;
        }
        if self.is(Mutant::PreferEqual) {
            return candidate.ready && candidate.rank >= own;
        }
        candidate.ready && candidate.rank > own
    }

    /// Returns whether two observations of the candidates this far apart are consecutive.
    fn is_observed(self, gap: Duration) -> bool {
        gap <= LONGEST_GAP || self.is(Mutant::PreferUnobserved)
    }

    /// Returns the instant from which the time of a better candidate counts.
    fn counted_since(self, since: LocalTime, began: LocalTime) -> LocalTime {
        if self.is(Mutant::PreferAcrossTerms) {
            return since;
        }
        since.max(began)
    }

    fn failback_after(self, configured: Duration) -> Duration {
        if self.is(Mutant::PreferHastily) {
            return configured / 2;
        }
        configured
    }

    fn counts_as_paused(self, paused: bool) -> bool {
        paused && !self.is(Mutant::PreferWhilePaused)
    }
}
