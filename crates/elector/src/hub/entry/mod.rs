//! One election in a hub: passes inputs to the state machine and executes its commands, in their order.
//!
//! | file | content |
//! |---|---|
//! | `inquiry.rs` | evidence about the end of the holder |
//! | `state.rs` | the beginning and the end of an entry, its deadline, and its published status |
//! | `watched.rs` | which objects an election watches, and whether their watches work |

mod inquiry;
mod state;
mod watched;

use std::sync::Arc;

use kube::Client;
use tenure_core::{
    Command, Election, FencingToken, Guard, Input, LocalTime, Outcome, ResourceVersion, Source,
    StopReason, Version, WallTime, WriteKind,
};
use tenure_lock::{Lock, Snapshot, WatchOutcome};
use tracing::Span;

use self::inquiry::Inquiry;
use self::watched::{Begun, Watching};
use super::Ask;
use super::sending::{Announcer, Done, Job, Request, Requests};
use super::watching::{ChangeLine, Delivery, Watches};
use crate::candidate::Event;
use crate::clock::Clock;
use crate::deadline::{Overrun, Watchdog};
use crate::metrics::Recorder;
use crate::shared::{Link, Shared};
use crate::status::Status;
use crate::sync::lock;
use crate::tenure::{Cell, Tenure};
use crate::term::Term;

/// Index of the LeaseCandidate among the objects of an election.
const CANDIDATE: usize = usize::MAX;

/// State shared by all elections of a hub.
pub(super) struct World {
    pub(super) client: Option<Client>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) watches: Watches,
    pub(super) requests: Requests,
    /// Whether posting of Events fails and a warning was logged.
    pub(super) events_fail: bool,
}

/// One election.
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) lock: Arc<dyn Lock>,
    pub(super) overrun: Overrun,
    /// Whether Events are posted.
    pub(super) events: bool,
    /// Source of the Events, if it is not the default.
    pub(super) event_source: Option<Arc<str>>,
    pub(super) shared: Arc<Shared>,
    pub(super) span: Span,
    pub(super) election: Election,
    /// The lock object in the version that the state machine knows.
    pub(super) last: Option<Snapshot>,
    pub(super) request: Option<Request>,
    /// Whether the request is in the queue of the hub.
    pub(super) queued: bool,
    watching: Watching,
    begun: Begun,
    pub(super) term: Option<Arc<Watchdog>>,
    /// Whether a term began without a receiver: no handle is left that could run its work or report its end.
    pub(super) orphaned: bool,
    pub(super) finished: bool,
    pub(super) announcer: Option<Box<Announcer>>,
    /// Number of Events being posted.
    pub(super) posts: usize,
    recorder: Option<Box<Recorder>>,
    /// Sources of evidence about the end of the holder, if this election has any.
    inquiry: Option<Box<Inquiry>>,
    /// Time since which it tries to lead.
    pub(super) campaigning: LocalTime,
    /// Whether the current term needed a read.
    pub(super) slow: bool,
    /// End of the lease that the last attempt to acquire the lock replaces, by the clock of its holder.
    pub(super) replaced: Option<WallTime>,
}

impl Entry {
    /// Processes an input from outside, or a tick of the clock.
    pub(super) fn input(&mut self, world: &mut World, input: Input) {
        self.announce(world);
        if let Begun::Not(by) = self.begun {
            match input {
                Input::Tick if world.clock.now().local >= by => self.start(world),
                // A candidate that has not started ends without a read of the lock.
                Input::Shutdown => {
                    self.step(world, input, None);
                    self.start(world);
                    return;
                }
                _ => {}
            }
        }
        self.step(world, input, None);
    }

    /// Returns whether a change of an object is already known to this election.
    pub(super) fn knows(&self, target: usize, change: &ChangeLine<'_>) -> bool {
        target != CANDIDATE && self.is_echo(|version| change.is(version))
    }

    /// Handles an unknown change of a watched object.
    pub(super) fn changed(&mut self, world: &mut World, target: usize, change: &ChangeLine<'_>) {
        if target == CANDIDATE {
            self.deliver_candidate(world, Delivery::Object(change.shown()));
            return;
        }
        let outcome = (self.lock).apply_watch_text(target, change.object, self.last.as_ref());
        self.apply_outcome(world, outcome, None);
    }

    /// Returns whether a watch event has the last known version, which is usually our own write.
    fn is_echo(&self, is: impl FnOnce(&Version) -> bool) -> bool {
        let alone = matches!(&self.watching, Watching::Objects(objects) if objects.len() == 1);
        let last = self.last.as_ref().filter(|_| alone);
        last.is_some_and(|last| is(&last.observation().version))
    }

    fn apply_outcome(
        &mut self,
        world: &mut World,
        outcome: WatchOutcome,
        revision: Option<ResourceVersion>,
    ) {
        match outcome {
            WatchOutcome::Present(snapshot) => self.observe(world, Source::Watch, snapshot),
            WatchOutcome::Absent => self.step(world, Input::Absent(Source::Watch, revision), None),
            WatchOutcome::ReadNeeded => self.step(world, Input::Absent(Source::Watch, None), None),
        }
    }

    fn observe(&mut self, world: &mut World, source: Source, snapshot: Snapshot) {
        let input = Input::Observed(source, snapshot.observation().clone());
        self.step(world, input, Some(snapshot));
    }

    pub(super) fn done(&mut self, world: &mut World, done: Done) {
        match done {
            Done::Changed(changes) => self.local(world, changes),
            Done::Posted(result) => {
                self.posts -= 1;
                if let Err(error) = result
                    && !std::mem::replace(&mut world.events_fail, true)
                {
                    tracing::warn!(%error, "cannot post Events about elections");
                }
            }
            Done::Announced(result) => {
                if let Some(announcer) = &mut self.announcer {
                    announcer.published(world.clock.now(), result);
                }
                self.announce(world);
            }
            Done::Evidence(evidence) => self.add_evidence(world, &evidence),
            Done::Read(id, result) => {
                self.answered(world, id);
                match result {
                    Ok(Some(snapshot)) => {
                        self.shared.works();
                        self.observe(world, Source::Read(id), snapshot);
                    }
                    Ok(None) => {
                        self.shared.works();
                        self.step(world, Input::Absent(Source::Read(id), None), None);
                    }
                    Err(error) => {
                        self.failed(world, &error);
                        self.step(world, Input::ReadFailed(id), None);
                    }
                }
            }
            Done::Written(id, result) => {
                self.answered(world, id);
                match result {
                    Ok(snapshot) => {
                        self.shared.works();
                        self.shared.has_all_permissions();
                        let version = snapshot.observation().version.clone();
                        let input = Input::Written(id, Outcome::Applied(version));
                        self.step(world, input, Some(snapshot));
                    }
                    Err(error) => {
                        self.failed(world, &error);
                        self.step(world, Input::Written(id, error.outcome()), None);
                    }
                }
            }
        }
    }

    /// Performs one step of the state machine. `snapshot` is the state that the input shows. It is kept if the state
    /// machine uses it, because the next write needs it.
    pub(super) fn step(&mut self, world: &mut World, input: Input, snapshot: Option<Snapshot>) {
        let _in = self.span.clone().entered();
        let now = world.clock.now();
        let written = matches!(input, Input::Written(..));
        let commands = self.election.step(now, input);
        match (self.election.version(), snapshot) {
            (None, _) => self.last = None,
            (Some(version), Some(snapshot)) if snapshot.observation().version == *version => {
                let print = |s: &Snapshot| s.observation().fingerprint;
                if written || self.last.as_ref().map(print) != Some(print(&snapshot)) {
                    lock(&self.shared.vitals).observed = now.local;
                }
                let transitions = snapshot.observation().record.transitions;
                self.record(|metrics| metrics.transitions(transitions));
                self.last = Some(snapshot);
            }
            _ => {}
        }
        for command in commands {
            self.carry_out(world, command);
        }
        self.publish();
        if std::mem::take(&mut self.orphaned) {
            self.step(world, Input::WorkEnded, None);
        }
        self.watch_holder(world);
    }

    fn carry_out(&mut self, world: &mut World, command: Command) {
        match command {
            Command::Read { id, timeout } => {
                self.slow |= self.term.is_some();
                self.queue(world, id, timeout, false, Job::Read);
            }
            Command::Write {
                id,
                kind,
                record,
                timeout,
            } => {
                let renewal = matches!(kind, WriteKind::Renew(_));
                if renewal && std::mem::take(&mut self.slow) {
                    self.record(|metrics| metrics.slow_renewal());
                }
                let base = self.base(&kind);
                if !renewal {
                    self.replaced = base.as_ref().and_then(lease_end);
                }
                let job = Job::Write(Box::new((kind, record, base)));
                self.queue(world, id, timeout, renewal, job);
            }
            Command::Lead {
                token,
                transitions,
                guard,
            } => {
                tracing::info!(token = token.as_str(), transitions, "became leader");
                let took = world.clock.now().local.since(self.campaigning);
                self.record(|metrics| {
                    metrics.leading(true);
                    metrics.acquired(took);
                });
                self.note(world, "became leader", None, &token);
                self.lead(token, transitions, guard);
            }
            Command::Extend { guard } => {
                if let Some(dog) = &self.term {
                    dog.cell.extend(guard);
                }
            }
            Command::Stop { reason, deadline } => {
                tracing::info!(reason = reason.as_str(), "stopped leading");
                self.record(|metrics| metrics.leading(false));
                if let Some(dog) = self.term.clone() {
                    dog.set_deadline(deadline);
                    dog.cell.end(reason.clone());
                    let why = Some(reason.as_str());
                    self.note(world, "stopped leading", why, &dog.cell.token);
                }
                self.slow = false;
                self.campaigning = world.clock.now().local;
                self.shared.mailbox.deliver(Event::Stop(reason));
            }
            Command::Drain { deadline } => {
                if let Some(dog) = &self.term {
                    dog.set_deadline(deadline);
                }
            }
            Command::Overrun => {
                if let Some(dog) = &self.term {
                    dog.overrun();
                }
            }
            Command::NewLeader { holder } => {
                tracing::info!(%holder, "new leader");
                if !holder.is_empty() && *holder != *self.shared.identity {
                    // client-go's text, which people search for.
                    tracing::debug!("lock is held by {holder} and has not yet expired");
                }
                self.shared.mailbox.deliver(Event::NewLeader(holder));
            }
            Command::Released => {
                tracing::info!("released");
                self.shared.mailbox.deliver(Event::Released);
            }
            Command::Finished => self.finished = true,
        }
    }

    fn base(&self, kind: &WriteKind) -> Option<Snapshot> {
        let version = kind.base()?;
        let last = self.last.as_ref();
        last.filter(|last| last.observation().version == *version)
            .cloned()
    }

    fn lead(&mut self, token: FencingToken, transitions: u32, guard: Guard) {
        let shared = &self.shared;
        let won = token.clone();
        let cell = Arc::new(Cell::new(
            shared.lock.clone(),
            shared.identity.clone(),
            shared.clock.clone(),
            (token, transitions),
            guard,
        ));
        let fence = self.election.config().timing.fence();
        let dog = Watchdog::start(cell, fence, self.overrun.clone());
        let tenure = Tenure::uncounted(dog.clone());
        let weak = Arc::downgrade(shared);
        tenure.at_end(move |reason| {
            // The deadline thread may end the term while the driver is stuck. It may also detect a jump of the wall
            // clock that is undone before the driver checks.
            let Some(shared) = weak.upgrade() else {
                return;
            };
            if shared.status.leads() {
                shared.status.publish(Status::Unknown);
            }
            if *reason == StopReason::GuardExpired {
                shared.ask(Ask::Expired(won.clone()));
            }
        });
        self.term = Some(dog.clone());
        *lock(&shared.term) = Some(tenure);
        let inbox = shared.link.get().and_then(|(inbox, _)| inbox.upgrade());
        match inbox {
            Some(inbox) => {
                let link = Link { inbox, id: self.id };
                let term = Term::new(dog, link);
                shared.mailbox.deliver(Event::Lead(term));
            }
            None => {
                dog.drop_handle();
                self.orphaned = true;
            }
        }
    }

    pub(super) fn record(&self, record: impl FnOnce(&Recorder)) {
        if let Some(recorder) = &self.recorder {
            record(recorder);
        }
    }
}

/// Returns the end of the lease in a record with a holder, by the clock of that holder.
fn lease_end(snapshot: &Snapshot) -> Option<WallTime> {
    let record = &snapshot.observation().record;
    let renewed = record.renew_time.filter(|_| !record.is_free())?;
    let lease = i64::try_from(record.lease_duration().as_micros()).ok()?;
    Some(WallTime::from_micros(
        renewed.as_micros().saturating_add(lease),
    ))
}
