//! The election itself: [`Election::step`] is its only mutator.
//!
//! ```text
//!            free, expired, own or absent             work ended,
//!  Following ────────────────────────────▶ Leading ──────────────▶ Releasing
//!      ▲                                      │ loss, step down        │
//!      │                                      ▼                        │ released, or no
//!      │                                  Stopping ────────────────────┤ longer ours
//!      └──────────── rejoin ──────────────────┴────────────────────────┘──▶ Finished
//! ```
//!
//! | file | content |
//! |---|---|
//! | `observe.rs` | the known state of the lock object, and its freshness |
//! | `orders.rs` | orders of operators to the current term |
//! | `request.rs` | sending requests: the only place where S5 is checked before a write is sent |
//! | `follow.rs` | when a follower may try to win, and when it polls |
//! | `lead.rs` | renewals, and detection of the end of the term |
//! | `stop.rs` | stopping the work, and releasing only after that |
//! | `proved.rs` | holders that are proved dead, whose lease nobody waits for |
//! | `prefer.rs` | hand-overs to candidates of higher rank, and their head start |
//! | `life.rs` | terms for life, which outlive processes |
//! | `rules.rs` | the few rules whose implementation a seeded bug replaces |
//! | `seeded.rs` | the other seeded bugs, which change the inputs, the state and the commands of a step |

mod follow;
mod lead;
mod life;
mod observe;
mod orders;
mod prefer;
mod proved;
mod request;
mod rules;
#[cfg(feature = "_mutants")]
mod seeded;
mod stop;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::command::{Command, StopReason};
use crate::fence::{FencingToken, ResourceVersion};
use crate::guard::Guard;
use crate::input::{Input, Source, Version};
use crate::preference::Preference;
use crate::random::Random;
use crate::record::Record;
use crate::time::{LocalTime, Now, WallTime};
use crate::timing::Timing;
use observe::Known;
use prefer::BetterCandidates;
use request::{Attempt, InFlight};
use rules::Rules;

/// Configuration of one candidate of one election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Identity, unique per incarnation (A4). The caller adds a random part.
    pub identity: String,
    /// The durations.
    pub timing: Timing,
    /// Whether to release the lease after the work has ended.
    pub release_on_cancel: bool,
    /// Whether a term is tied to the object that the identity names (for example a pod), which outlives this
    /// incarnation; see `life.rs`. In this mode A4 applies to these objects and not to incarnations.
    pub for_life: bool,
    /// Whether to campaign again after a term. If false, the election finishes.
    pub rejoin: bool,
    /// Coordinated election: a controller assigns the lease, and candidates never take it themselves.
    pub coordinated: bool,
    /// Rank of this candidate, if candidates of this election are ranked.
    pub preference: Option<Preference>,
    /// The lock stores times in whole seconds (annotation locks).
    pub whole_seconds: bool,
    /// Seed of the small random delays that keep many followers from acting at the same instant.
    pub seed: u64,
}

impl Config {
    /// Returns the configuration of an ordinary candidate, which campaigns again after each term and releases the lease.
    pub fn new(identity: String, timing: Timing) -> Self {
        Self {
            identity,
            timing,
            release_on_cancel: true,
            for_life: false,
            rejoin: true,
            coordinated: false,
            preference: None,
            whole_seconds: false,
            seed: 0,
        }
    }
}

/// Phase of an election; see the diagram of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Before [`Input::Start`].
    Idle,
    /// Does not hold the lock: waits, polls, or tries to win.
    Following,
    /// Holds the lock. Guarded work may run.
    Leading,
    /// The guard has expired. Guarded work may still be stopping.
    Stopping,
    /// The work has ended, and the lock is being released.
    Releasing,
    /// The election has ended.
    Finished,
}

/// A term: the period from the write that won it until its work has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    token: FencingToken,
    uid: Arc<str>,
    transitions: u32,
    acquire_time: Option<WallTime>,
    strategy: String,
    guard: Guard,
    next_renewal: LocalTime,
    /// Time at which it began, if candidates are ranked.
    began: Option<LocalTime>,
    /// The better candidate that this term was ended for.
    successor: Option<Box<str>>,
}

/// A term that is stopping.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StoppingTerm {
    term: Term,
    reason: StopReason,
    /// Instant by which the work must have ended.
    deadline: LocalTime,
    /// Whether this candidate still holds the lease and may release it.
    ours: bool,
    /// Instant until which the lease is renewed for work that is stopping; `None` if it is no longer renewed.
    keep_until: Option<LocalTime>,
    overrun: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Idle,
    Following,
    Leading(Term),
    Stopping(Box<StoppingTerm>),
    Releasing(Term),
    Finished,
}

/// One candidate of one election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Election {
    config: Config,
    state: State,
    known: Known,
    /// Greatest revision observed. Older watch events are stale.
    highest: Option<ResourceVersion>,
    /// Revision of a list that is below the greatest one, until a read has decided whether the store was restored.
    listed_back: Option<ResourceVersion>,
    /// The watch has delivered a version that seemed stale and that differs from the known one.
    passed_over: bool,
    /// The lock is not acquired before this instant, because a term that the object no longer shows may still be live.
    /// The object was deleted, emptied by a writer other than its holder, or assigned to another candidate.
    hold_until: Option<LocalTime>,
    /// The version whose holder is proved dead, and when the proof arrived. Boxed, because proofs are rare.
    dead: Option<Box<(Version, LocalTime)>>,
    /// Writes of this incarnation whose result is unknown, or whose record may be in the object.
    attempts: Vec<Attempt>,
    in_flight: Option<InFlight>,
    next_id: u64,
    /// The known state may be wrong: read before the next write.
    must_read: bool,
    /// No request is sent before this instant.
    not_before: LocalTime,
    /// Consecutive failures, for backoff.
    failures: u32,
    watching: bool,
    next_poll: LocalTime,
    sit_out_until: LocalTime,
    /// The ready candidates of higher rank. Boxed, because most elections have no ranks.
    better: Option<Box<BetterCandidates>>,
    /// The write that won the last term, and its token, as long as revisions are known to increase.
    last_won: Option<(u64, FencingToken)>,
    shutdown: bool,
    reported: Option<String>,
    last_stamp: Option<WallTime>,
    random: Random,
    rules: Rules,
}

impl Election {
    /// Creates a candidate that has not started.
    pub fn new(config: Config) -> Self {
        let random = Random::new(config.seed);
        Self {
            config,
            state: State::Idle,
            known: Known::Nothing,
            highest: None,
            listed_back: None,
            passed_over: false,
            hold_until: None,
            dead: None,
            attempts: Vec::new(),
            in_flight: None,
            next_id: 1,
            must_read: false,
            not_before: LocalTime::default(),
            failures: 0,
            watching: false,
            next_poll: LocalTime::default(),
            sit_out_until: LocalTime::default(),
            better: None,
            last_won: None,
            shutdown: false,
            reported: None,
            last_stamp: None,
            random,
            rules: Rules::default(),
        }
    }

    /// Enables a seeded bug that the simulator must find.
    #[cfg(feature = "_mutants")]
    #[doc(hidden)]
    pub fn mutate(&mut self, mutant: crate::Mutant) {
        self.rules = Rules::mutated(mutant);
    }

    /// Processes one input at one instant, and returns the commands for the driver.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Command> {
        #[cfg(feature = "_mutants")]
        if let Some(mutant) = self.rules.mutant {
            return self.step_with_bug(mutant, now, input);
        }
        self.step_as_shipped(now, input)
    }

    fn step_as_shipped(&mut self, now: Now, input: Input) -> Vec<Command> {
        let mut out = Vec::new();
        if matches!(self.state, State::Finished) {
            return out;
        }
        // An expired guard ends the term before the input is processed. A late response must not revive the term (duty
        // 1); it can only win a new one.
        self.end_expired_term(now, &mut out);
        match input {
            Input::Start => {
                if matches!(self.state, State::Idle) {
                    self.state = State::Following;
                    self.must_read = matches!(self.known, Known::Nothing);
                    self.not_before = now.local;
                    self.next_poll = now.local;
                }
            }
            Input::Tick => {}
            Input::Observed(source, observation) => {
                self.observed(now, source, observation, &mut out);
            }
            Input::Absent(source, revision) => {
                self.absent(now, source, revision.as_ref(), &mut out);
            }
            Input::ReadFailed(id) => self.read_failed(now, id),
            Input::Written(id, outcome) => self.written(now, id, outcome, &mut out),
            Input::Watching(works) => {
                if self.watching != works {
                    self.watching = works;
                    // Spread the first polls, because a watch usually breaks for all followers at the same time.
                    self.next_poll =
                        now.local + self.random.below(self.config.timing.retry_period());
                }
            }
            Input::Listed(revision) => self.listed(revision),
            Input::WorkEnding => self.work_ending(now, &mut out),
            Input::WorkEnded => self.work_ended(now, &mut out),
            Input::Expired(token) => {
                if matches!(&self.state, State::Leading(term) if term.token == token) {
                    self.stop(now, StopReason::GuardExpired, &mut out);
                }
            }
            Input::StepDown(pause) => {
                self.sit_out_until = self.sit_out_until.max(now.local + pause);
                self.stop(now, StopReason::StepDown, &mut out);
            }
            Input::Dead(version) => self.holder_died(now, &version),
            Input::Candidates(candidates) => self.compare(now, candidates, &mut out),
            Input::Shutdown => {
                self.shutdown = true;
                self.stop(now, StopReason::Shutdown, &mut out);
            }
        }
        self.expire_request(now);
        self.act(now, &mut out);
        out
    }

    /// Returns when [`Input::Tick`] is due next, or `None` if only other inputs can change the state.
    pub fn deadline(&self) -> Option<LocalTime> {
        let request = self.in_flight.as_ref().map(|request| request.expires);
        let own = match &self.state {
            State::Idle | State::Finished => return None,
            State::Following => self.follow_deadline(),
            State::Leading(term) => {
                let renewal = self.in_flight.is_none().then(|| self.renewal_due(term));
                Some(renewal.map_or(term.guard.until(), |at| at.min(term.guard.until())))
            }
            State::Stopping(stopping) => self.stopping_deadline(stopping),
            State::Releasing(term) => {
                let until = term.guard.until();
                Some(if self.in_flight.is_none() {
                    self.not_before.min(until)
                } else {
                    until
                })
            }
        };
        match (request, own) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Returns how much later than [`deadline`](Self::deadline) the tick may come, so that the driver can combine work.
    /// Only the renewal of a healthy term may be late.
    pub fn leeway(&self) -> Duration {
        match &self.state {
            State::Leading(term) if self.in_flight.is_none() => self.renewal_leeway(term),
            _ => Duration::ZERO,
        }
    }

    /// Returns the phase of the election.
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Idle => Phase::Idle,
            State::Following => Phase::Following,
            State::Leading(_) => Phase::Leading,
            State::Stopping(_) => Phase::Stopping,
            State::Releasing(_) => Phase::Releasing,
            State::Finished => Phase::Finished,
        }
    }

    /// Returns the guard of the current term while leading.
    pub fn guard(&self) -> Option<Guard> {
        match &self.state {
            State::Leading(term) => Some(term.guard),
            _ => None,
        }
    }

    /// Returns the token of the current term, from its beginning until its work has ended.
    pub fn token(&self) -> Option<&FencingToken> {
        match &self.state {
            State::Leading(term) | State::Releasing(term) => Some(&term.token),
            State::Stopping(stopping) => Some(&stopping.term.token),
            State::Idle | State::Following | State::Finished => None,
        }
    }

    /// Returns the record last observed or written, if the object exists.
    pub fn record(&self) -> Option<&Record> {
        self.known.record()
    }

    /// Returns the version of the lock object last observed or written, if the object exists. The next write names this
    /// version.
    pub fn version(&self) -> Option<&Version> {
        match &self.known {
            Known::Present(seen) => Some(&seen.observation.version),
            Known::Nothing | Known::Absent { .. } => None,
        }
    }

    /// Returns the instant until which this candidate does not campaign, because it stepped down or its work has ended.
    pub fn sits_out_until(&self) -> LocalTime {
        self.sit_out_until
    }

    /// Returns the configuration of this candidate.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sends the next request or ends the current phase, if it is due.
    fn act(&mut self, now: Now, out: &mut Vec<Command>) {
        match self.state {
            State::Idle | State::Finished => {}
            State::Following => self.act_following(now, out),
            State::Leading(_) => self.act_leading(now, out),
            State::Stopping(_) => self.act_stopping(now, out),
            State::Releasing(_) => self.act_releasing(now, out),
        }
    }

    /// Ends the state of the current term: campaigns again, or finishes.
    fn leave_term(&mut self, now: Now, out: &mut Vec<Command>) {
        self.wait_for_successor();
        if self.shutdown || !self.config.rejoin {
            self.finish(out);
        } else {
            self.state = State::Following;
            self.not_before = now.local;
            self.next_poll = now.local;
        }
    }

    /// Returns the guard of a write that was sent at `sent` and whose result is known now.
    fn guard_from(&self, now: Now, sent: Now) -> Guard {
        self.rules.guard(now, sent, self.config.timing.guard())
    }

    fn finish(&mut self, out: &mut Vec<Command>) {
        self.state = State::Finished;
        self.in_flight = None;
        out.push(Command::Finished);
    }

    /// Returns whether an observation is the response to the read in flight.
    fn answers(&self, source: Source) -> bool {
        match source {
            Source::Watch => true,
            Source::Read(id) => self
                .in_flight
                .as_ref()
                .is_some_and(|request| request.id == id && !request.write),
        }
    }
}
