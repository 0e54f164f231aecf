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
//! | file | is about |
//! |---|---|
//! | `observe.rs` | what is known of the lock object, and how fresh that is |
//! | `request.rs` | sending: the one place where S5 is checked before a write leaves |
//! | `follow.rs` | when a follower may try to win, and when it polls |
//! | `lead.rs` | renewing, and noticing that the term is over |
//! | `stop.rs` | stopping work, then and only then releasing |
//! | `life.rs` | terms that outlive processes |

mod follow;
mod lead;
mod life;
mod observe;
mod request;
mod stop;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::command::{Command, StopReason};
use crate::fence::{FencingToken, ResourceVersion};
use crate::guard::Guard;
use crate::input::{Input, Source, Version};
use crate::mutant::Mutant;
use crate::random::Random;
use crate::record::Record;
use crate::time::{LocalTime, Now, WallTime};
use crate::timing::Timing;
use observe::Known;
use request::{Attempt, InFlight};

/// What one candidate of one election is told before it starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Unique per incarnation (A4): the caller adds something random.
    pub identity: String,
    /// The durations.
    pub timing: Timing,
    /// Whether to give the lease back after the work has ended.
    pub release_on_cancel: bool,
    /// Whether terms last as long as what the identity names, which lives longer than this incarnation (a
    /// pod, say): see `life.rs`. A4 holds for those, and not for incarnations.
    pub for_life: bool,
    /// Whether to campaign again after a term, or to finish.
    pub rejoin: bool,
    /// Coordinated election: a controller assigns the lease, candidates never take it.
    pub coordinated: bool,
    /// The lock stores times in whole seconds (annotation locks).
    pub whole_seconds: bool,
    /// For the small random delays that keep many followers from acting in the same instant.
    pub seed: u64,
}

/// Where an election is; see the picture of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Before [`Input::Start`].
    Idle,
    /// Not holding the lock: waiting, polling, or trying to win.
    Following,
    /// Holding it, guarded work may run.
    Leading,
    /// The guard is out, guarded work may still be winding down.
    Stopping,
    /// The work has ended and the lock is being given back.
    Releasing,
    /// The end.
    Finished,
}

/// A term: from the write that won it until its work has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    token: FencingToken,
    uid: Arc<str>,
    transitions: u32,
    acquire_time: Option<WallTime>,
    strategy: String,
    guard: Guard,
    next_renewal: LocalTime,
}

/// A term that is being wound up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Winding {
    term: Term,
    reason: StopReason,
    /// When the work must have ended.
    deadline: LocalTime,
    /// Whether the lease is still ours to release.
    ours: bool,
    /// Until when the lease is kept alive for work that winds down; `None` when that is over.
    keep_until: Option<LocalTime>,
    overrun: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Idle,
    Following,
    Leading(Term),
    Stopping(Box<Winding>),
    Releasing(Term),
    Finished,
}

/// One candidate of one election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Election {
    config: Config,
    state: State,
    known: Known,
    /// The greatest revision seen; older news from the watch is stale.
    highest: Option<ResourceVersion>,
    /// The revision of a list below the greatest one, until a read has told whether the store was restored.
    listed_back: Option<ResourceVersion>,
    /// The watch has shown a version that looked stale and is not the one that is known.
    passed_over: bool,
    /// Nothing is taken before this, because a term that the object no longer shows may still be live: it
    /// was deleted, emptied by another than its holder, or given to somebody else.
    hold_until: Option<LocalTime>,
    /// Writes of this incarnation whose outcome is open or whose record may be in the object.
    attempts: Vec<Attempt>,
    in_flight: Option<InFlight>,
    next_id: u64,
    /// The view may be wrong: read before writing.
    must_read: bool,
    /// No request before this.
    not_before: LocalTime,
    /// Consecutive failures, for backoff.
    failures: u32,
    watching: bool,
    next_poll: LocalTime,
    sit_out_until: LocalTime,
    /// The write that won the last term and the token of it, while revisions are known to grow.
    last_won: Option<(u64, FencingToken)>,
    shutdown: bool,
    reported: Option<String>,
    last_stamp: Option<WallTime>,
    random: Random,
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
}

impl Election {
    /// A candidate that has not started.
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
            attempts: Vec::new(),
            in_flight: None,
            next_id: 1,
            must_read: false,
            not_before: LocalTime::default(),
            failures: 0,
            watching: false,
            next_poll: LocalTime::default(),
            sit_out_until: LocalTime::default(),
            last_won: None,
            shutdown: false,
            reported: None,
            last_stamp: None,
            random,
            #[cfg(feature = "mutants")]
            mutant: None,
        }
    }

    /// Seeds a bug, for the simulator to find.
    #[cfg(feature = "mutants")]
    #[doc(hidden)]
    pub fn mutate(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    /// Takes one input at one instant, and says what has to be done.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Command> {
        let mut out = Vec::new();
        if matches!(self.state, State::Finished) {
            return out;
        }
        // Whatever has happened, a guard that has run out ends the term first: a late answer must
        // not revive it (duty 1), it can only win a new one.
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
                    // Spread the first polls: a broken watch usually breaks for everybody at once.
                    self.next_poll =
                        now.local + self.random.below(self.config.timing.retry_period());
                }
            }
            Input::Listed(revision) => self.listed(revision),
            Input::WorkEnding if self.is(Mutant::DroppedIsEnded) => self.work_ended(now, &mut out),
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
            Input::Shutdown => {
                self.shutdown = true;
                self.stop(now, StopReason::Shutdown, &mut out);
            }
        }
        self.expire_request(now);
        self.act(now, &mut out);
        out
    }

    /// When [`Input::Tick`] is due next; `None` if only other inputs can change anything.
    pub fn deadline(&self) -> Option<LocalTime> {
        let request = self.in_flight.as_ref().map(|request| request.expires);
        let own = match &self.state {
            State::Idle | State::Finished => return None,
            State::Following => self.follow_deadline(),
            State::Leading(term) => {
                let renewal = self.in_flight.is_none().then(|| self.renewal_due(term));
                Some(renewal.map_or(term.guard.until(), |at| at.min(term.guard.until())))
            }
            State::Stopping(winding) => self.stopping_deadline(winding),
            State::Releasing(term) => {
                let until = term.guard.until();
                let late = self.is(Mutant::ReleaseAfterGuard) || self.is(Mutant::ReleaseUnchecked);
                Some(if late {
                    self.not_before
                } else if self.in_flight.is_none() {
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

    /// How much later than [`deadline`](Self::deadline) the tick may come, if that helps the driver to do
    /// things together: a renewal of a healthy term may wait a little, everything else may not.
    pub fn leeway(&self) -> Duration {
        match &self.state {
            State::Leading(term) if self.in_flight.is_none() => self.renewal_leeway(term),
            _ => Duration::ZERO,
        }
    }

    /// Where the election is.
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

    /// The guard of the present term while leading.
    pub fn guard(&self) -> Option<Guard> {
        match &self.state {
            State::Leading(term) => Some(term.guard),
            _ => None,
        }
    }

    /// The token of the present term, from its beginning until its work has ended.
    pub fn token(&self) -> Option<&FencingToken> {
        match &self.state {
            State::Leading(term) | State::Releasing(term) => Some(&term.token),
            State::Stopping(winding) => Some(&winding.term.token),
            State::Idle | State::Following | State::Finished => None,
        }
    }

    /// The record last seen or written, if the object exists.
    pub fn record(&self) -> Option<&Record> {
        self.known.record()
    }

    /// The version of the lock object last seen or written, if the object exists: the one that the
    /// next write will name.
    pub fn version(&self) -> Option<&Version> {
        match &self.known {
            Known::Present(seen) => Some(&seen.observation.version),
            Known::Nothing | Known::Absent { .. } => None,
        }
    }

    /// What this candidate was told before it started.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sends the next request or ends the present phase, if it is time.
    fn act(&mut self, now: Now, out: &mut Vec<Command>) {
        match self.state {
            State::Idle | State::Finished => {}
            State::Following => self.act_following(now, out),
            State::Leading(_) => self.act_leading(now, out),
            State::Stopping(_) => self.act_stopping(now, out),
            State::Releasing(_) => self.act_releasing(now, out),
        }
    }

    /// Ends the present term's bookkeeping: campaign again, or finish.
    fn leave_term(&mut self, now: Now, out: &mut Vec<Command>) {
        if self.is(Mutant::ReleaseBeforeStop) {
            out.push(Command::Stop {
                reason: StopReason::GuardExpired,
                deadline: now.local,
            });
        }
        if self.shutdown || !self.config.rejoin {
            self.finish(out);
        } else {
            self.state = State::Following;
            self.not_before = now.local;
            self.next_poll = now.local;
        }
    }

    /// The guard of a write that was sent at `sent`.
    fn guard_from(&self, now: Now, sent: Now) -> Guard {
        if self.is(Mutant::GuardFromAnswer) {
            Guard::new(now, self.config.timing.guard())
        } else if self.is(Mutant::NoClock) {
            Guard::new(sent, self.config.timing.guard() * 1000)
        } else {
            Guard::new(sent, self.config.timing.guard())
        }
    }

    /// Whether this election has a certain seeded bug; never, as it is shipped.
    #[cfg(feature = "mutants")]
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    #[cfg(not(feature = "mutants"))]
    #[expect(
        clippy::unused_self,
        reason = "the same signature with and without the feature"
    )]
    const fn is(&self, _: Mutant) -> bool {
        false
    }

    /// Whether assertions hold their tongue, so that the simulator gets to see what happens.
    #[cfg(feature = "mutants")]
    fn is_mutant(&self) -> bool {
        self.mutant.is_some()
    }

    #[cfg(not(feature = "mutants"))]
    #[expect(
        clippy::unused_self,
        reason = "the same signature with and without the feature"
    )]
    const fn is_mutant(&self) -> bool {
        false
    }

    fn finish(&mut self, out: &mut Vec<Command>) {
        self.state = State::Finished;
        self.in_flight = None;
        out.push(Command::Finished);
    }

    /// Whether an observation answers the read that is under way.
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
