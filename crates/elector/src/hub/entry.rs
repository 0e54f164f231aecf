//! One election in a hub: passes inputs to the state machine and executes its commands.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::AbortHandle;
use kube::Client;
use serde_json::Value;
use tenure_core::{
    Election, Input, LocalTime, Outcome, Phase, Record, Source, StopReason, Version, WallTime,
    WriteKind,
};
use tenure_lock::candidate::CandidateSighting;
use tenure_lock::{Class, Lock, Snapshot, Watch, WatchOutcome, WatchTarget};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::Span;

use super::Start;
use super::announce::Announcer;
use super::event::ChangeLine;
use super::requests::Requests;
use super::watches::{Delivery, Watches};
use crate::candidate::Event;
use crate::clock::Clock;
use crate::deadline::{Overrun, Watchdog};
use crate::identity;
use crate::metrics::Recorder;
use crate::shared::Shared;
use crate::status::Status;
use crate::sync::lock;

/// State shared by all elections of a hub.
pub(super) struct World {
    pub(super) client: Option<Client>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) watches: Watches,
    pub(super) requests: Requests,
    /// Whether posting of Events fails and a warning was logged.
    events_fail: bool,
}

impl World {
    pub(super) fn new(client: Option<Client>, clock: Arc<dyn Clock>) -> Self {
        let seed = if clock.is_real() {
            identity::seed()
        } else {
            // A simulation decides where its time begins.
            clock.now().local.as_nanos()
        };
        Self {
            client: client.clone(),
            clock,
            watches: Watches::new(client, seed),
            requests: Requests::default(),
            events_fail: false,
        }
    }
}

/// Result of a future of an election.
pub(super) enum Done {
    /// A read.
    Read(u64, Result<Option<Snapshot>, tenure_lock::Error>),
    /// A write.
    Written(u64, Result<Snapshot, tenure_lock::Error>),
    /// A change of a lock in this process.
    Changed(watch::Receiver<Option<Snapshot>>),
    /// An Event.
    Posted(Result<(), String>),
    /// The LeaseCandidate.
    Announced(Result<CandidateSighting, String>),
}

/// Index of the LeaseCandidate among the objects of an election.
const CANDIDATE: usize = usize::MAX;

/// Timeout for publishing a LeaseCandidate, which takes up to four requests.
const ANNOUNCE: Duration = Duration::from_secs(10);

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
    /// Whether it is in the queue of the hub.
    pub(super) queued: bool,
    watching: Watching,
    begun: Begun,
    pub(super) term: Option<Arc<Watchdog>>,
    /// Whether a term began and nobody is left to run its work or to report its end.
    pub(super) orphaned: bool,
    pub(super) finished: bool,
    announcer: Option<Box<Announcer>>,
    /// Number of Events being posted.
    pub(super) posts: usize,
    recorder: Option<Box<Recorder>>,
    /// Time since which it tries to lead.
    pub(super) campaigning: LocalTime,
    /// Whether the current term needed a read.
    pub(super) slow: bool,
    /// End of the lease that the last attempt to acquire the lock replaces, by the clock of its holder.
    pub(super) replaced: Option<WallTime>,
}

/// The request that the state machine waits for.
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) sent: LocalTime,
    pub(super) expires: LocalTime,
    pub(super) renewal: bool,
    pub(super) stage: Stage,
}

/// Stage of a request.
pub(super) enum Stage {
    /// In the queue of the hub.
    Queued(Job),
    /// Sent, and not answered yet.
    Sent(AbortHandle),
}

/// The operation of a request on the lock.
pub(super) enum Job {
    Read,
    Write(Box<(WriteKind, Record, Option<Snapshot>)>),
}

impl Request {
    /// Aborts the request and closes its connection. A queued request is skipped.
    pub(super) fn abort(&self) {
        if let Stage::Sent(abort) = &self.stage {
            abort.abort();
        }
    }
}

/// How changes of the lock are observed.
enum Watching {
    Nothing,
    Local(AbortHandle),
    Objects(Vec<Object>),
}

struct Object {
    target: WatchTarget,
    up: bool,
    settled: bool,
}

enum Begun {
    /// Waits for the first message of the watch, at most until this instant.
    Not(LocalTime),
    Yes,
}

impl Entry {
    pub(super) fn new(start: Start) -> Self {
        let Start {
            id,
            settings,
            shared,
        } = start;
        let election = Election::new(settings.core);
        #[cfg(feature = "_mutants")]
        let election = {
            let mut election = election;
            if let Some(mutant) = settings.mutant {
                election.mutate(mutant);
            }
            election
        };
        let (lock, identity) = (&*shared.lock, &*shared.identity);
        let span = tracing::info_span!("election", lock, identity);
        let announcer = settings.candidate.map(Announcer::new).map(Box::new);
        let metrics = settings.metrics.as_ref();
        let recorder = metrics.map(|metrics| Box::new(metrics.recorder(&shared)));
        Self {
            id,
            lock: settings.lock,
            overrun: settings.overrun,
            events: settings.events,
            event_source: settings.event_source,
            shared,
            span,
            election,
            last: None,
            request: None,
            queued: false,
            watching: Watching::Nothing,
            begun: Begun::Not(LocalTime::default()),
            term: None,
            orphaned: false,
            finished: false,
            announcer,
            posts: 0,
            recorder,
            campaigning: LocalTime::default(),
            slow: false,
            replaced: None,
        }
    }

    /// Starts the watch. The election starts with the first message of the watch, even if that is a failure, because
    /// this saves a read.
    pub(super) fn begin(&mut self, world: &mut World) {
        let now = world.clock.now();
        let patience = self.election.config().timing.request_timeout();
        self.begun = Begun::Not(now.local + patience);
        self.campaigning = now.local;
        if let Some(announcer) = &self.announcer {
            let watched = announcer.candidate.watched();
            world.watches.join(&watched.object, (self.id, CANDIDATE));
        }
        self.announce(world);
        match self.lock.watch() {
            Watch::Local(changes) => {
                self.local(world, changes);
                self.input(world, Input::Watching(true));
                self.start(world);
            }
            Watch::Objects(targets) if !targets.is_empty() => self.join(world, targets),
            _ => self.start(world),
        }
    }

    fn join(&mut self, world: &mut World, targets: Vec<WatchTarget>) {
        let mut objects = Vec::with_capacity(targets.len());
        for (index, target) in targets.into_iter().enumerate() {
            let Some(up) = world.watches.join(&target.object, (self.id, index)) else {
                self.start(world);
                return;
            };
            let settled = up;
            objects.push(Object {
                target,
                up,
                settled,
            });
        }
        self.watching = Watching::Objects(objects);
        self.settle(world);
    }

    /// Returns when the election has to act next, and the latest instant for it.
    pub(super) fn deadline(&self) -> Option<(LocalTime, LocalTime)> {
        let own = match self.begun {
            Begun::Not(by) => Some((by, by)),
            Begun::Yes => {
                let due = self.election.deadline();
                due.map(|at| (at, at + self.election.leeway()))
            }
        };
        let announcer = self.announcer.as_deref().filter(|_| !self.finished);
        let announce = announcer.and_then(Announcer::deadline);
        // The deadline of an announcement is not postponed by the leeway of a renewal.
        let sooner = |one: (LocalTime, LocalTime), other: (LocalTime, LocalTime)| {
            (one.0.min(other.0), one.1.min(other.1))
        };
        [own, announce.map(|at| (at, at))]
            .into_iter()
            .flatten()
            .reduce(sooner)
    }

    /// Returns whether the election has nothing left to do.
    pub(super) fn is_over(&self) -> bool {
        self.finished && self.posts == 0
    }

    /// Leaves everything that is shared with other elections.
    pub(super) fn leave(self, world: &mut World) {
        if let Watching::Objects(objects) = &self.watching {
            for (index, object) in objects.iter().enumerate() {
                world.watches.leave(&object.target.object, (self.id, index));
            }
        }
        if let Some(announcer) = &self.announcer {
            let watched = announcer.candidate.watched();
            world.watches.leave(&watched.object, (self.id, CANDIDATE));
        }
        self.shared.deliver(Event::Finished);
    }

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

    /// Handles an event of a watched object.
    pub(super) fn deliver(&mut self, world: &mut World, target: usize, delivery: Delivery) {
        if target == CANDIDATE {
            self.deliver_candidate(world, delivery);
            return;
        }
        match delivery {
            // The state machine already knows this version.
            Delivery::Object(shown)
                if !shown.is_listed() && self.is_echo(|version| shown.is(version)) => {}
            Delivery::Object(shown) => match shown.into_object() {
                Some(object) => self.apply_watch_event(world, target, Some(object), None),
                None => self.step(world, Input::Absent(Source::Watch, None), None),
            },
            Delivery::Absent(revision) => {
                self.apply_watch_event(world, target, None, Some(revision));
            }
            Delivery::Up(revision) => {
                self.set_up(target, true);
                self.shared.works();
                self.step(world, Input::Listed(revision), None);
                self.settle(world);
            }
            Delivery::Down(error) => {
                self.set_up(target, false);
                if let Some(error) = error {
                    self.shared.fails(world.clock.now(), &error);
                }
                self.settle(world);
            }
        }
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
        let sight = (self.lock).apply_watch_text(target, change.object, self.last.as_ref());
        self.apply_outcome(world, sight, None);
    }

    /// Returns whether a watch event has the last known version, which is usually our own write.
    fn is_echo(&self, is: impl FnOnce(&Version) -> bool) -> bool {
        let alone = matches!(&self.watching, Watching::Objects(objects) if objects.len() == 1);
        let last = self.last.as_ref().filter(|_| alone);
        last.is_some_and(|last| is(&last.observation().version))
    }

    fn deliver_candidate(&mut self, world: &mut World, delivery: Delivery) {
        let now = world.clock.now();
        if let Some(announcer) = &mut self.announcer {
            match delivery {
                // An object that cannot be parsed does not count as deleted.
                Delivery::Object(shown) => {
                    if let Some(object) = shown.into_object() {
                        announcer.seen(now, Some(object));
                    }
                }
                Delivery::Absent(_) => announcer.seen(now, None),
                Delivery::Up(_) => announcer.watched(now, true),
                Delivery::Down(_) => announcer.watched(now, false),
            }
        }
        self.announce(world);
    }

    /// Publishes the LeaseCandidate, if there is one and it is due.
    fn announce(&mut self, world: &mut World) {
        let now = world.clock.now();
        let Some(announcer) = self.announcer.as_mut().filter(|_| !self.finished) else {
            return;
        };
        let Some(last) = announcer.take_due(now) else {
            return;
        };
        let candidate = announcer.candidate.clone();
        world.requests.poll(self.id, async move {
            let ensured = timeout(ANNOUNCE, candidate.ensure(now.wall, last.as_ref()));
            match ensured.await {
                Ok(result) => Done::Announced(result.map_err(|error| error.to_string())),
                Err(_) => Done::Announced(Err("no answer in time".to_owned())),
            }
        });
    }

    fn apply_watch_event(
        &mut self,
        world: &mut World,
        target: usize,
        object: Option<Value>,
        revision: Option<tenure_core::ResourceVersion>,
    ) {
        let sight = self
            .lock
            .apply_watch_event(target, object, self.last.as_ref());
        self.apply_outcome(world, sight, revision);
    }

    fn apply_outcome(
        &mut self,
        world: &mut World,
        sight: WatchOutcome,
        revision: Option<tenure_core::ResourceVersion>,
    ) {
        match sight {
            WatchOutcome::Present(snapshot) => self.observe(world, Source::Watch, snapshot),
            WatchOutcome::Absent => self.step(world, Input::Absent(Source::Watch, revision), None),
            WatchOutcome::ReadNeeded => self.step(world, Input::Absent(Source::Watch, None), None),
        }
    }

    fn set_up(&mut self, target: usize, up: bool) {
        if let Watching::Objects(objects) = &mut self.watching
            && let Some(object) = objects.get_mut(target)
        {
            object.up = up;
            object.settled = true;
        }
    }

    /// Reports to the state machine whether all objects are watched, and starts it when that is known.
    fn settle(&mut self, world: &mut World) {
        let Watching::Objects(objects) = &self.watching else {
            return;
        };
        let up = objects.iter().all(|object| object.up);
        let settled = objects.iter().all(|object| object.settled);
        self.step(world, Input::Watching(up), None);
        if settled {
            self.start(world);
        }
    }

    fn start(&mut self, world: &mut World) {
        if let Begun::Not(_) = self.begun {
            self.begun = Begun::Yes;
            self.step(world, Input::Start, None);
        }
    }

    /// Handles the current state of a lock in this process, and waits for the next one.
    fn local(&mut self, world: &mut World, mut changes: watch::Receiver<Option<Snapshot>>) {
        let present = changes.borrow_and_update().clone();
        match present {
            Some(snapshot) => self.observe(world, Source::Watch, snapshot),
            None => self.step(world, Input::Absent(Source::Watch, None), None),
        }
        let wait = async move {
            // The entry owns the lock, so its sender still exists.
            let _ = changes.changed().await;
            Done::Changed(changes)
        };
        self.watching = Watching::Local(world.requests.poll(self.id, wait));
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

    /// Drops a request that timed out, and closes its connection. The state machine knows the timeout too, and treats
    /// the request as failed without an input.
    pub(super) fn drop_late_request(&mut self, world: &World) {
        let now = world.clock.now();
        if let Some(late) = self.request.take_if(|r| r.expires <= now.local) {
            late.abort();
            let error = format!("no response about {} in time", self.lock.describe());
            self.record(|metrics| metrics.failed(Class::Unknown, now.wall));
            self.shared.fails(now, &error.into());
        }
    }

    fn answered(&mut self, world: &mut World, id: u64) {
        world.requests.share(self.lock.shares_connection());
        let request = self.request.take_if(|request| request.id == id);
        if let Some(renewal) = request.filter(|request| request.renewal) {
            let took = world.clock.now().local.since(renewal.sent);
            self.record(|metrics| metrics.renewed(took));
        }
    }

    pub(super) fn record(&self, record: impl FnOnce(&Recorder)) {
        if let Some(recorder) = &self.recorder {
            record(recorder);
        }
    }

    fn failed(&self, world: &World, error: &tenure_lock::Error) {
        let now = world.clock.now();
        self.record(|metrics| metrics.failed(error.class(), now.wall));
        if error.class() == Class::Refused {
            // Another candidate was faster. This is normal contention, and the server works.
            tracing::debug!(%error, "refused");
            self.shared.works();
        } else {
            let text = error.to_string().into();
            match error.class() {
                Class::Unusable => self.shared.fails_until_changed(now, &text),
                _ => self.shared.fails(now, &text),
            }
        }
    }

    fn observe(&mut self, world: &mut World, source: Source, snapshot: Snapshot) {
        let input = Input::Observed(source, snapshot.observation().clone());
        self.step(world, input, Some(snapshot));
    }

    /// Performs one step of the state machine. `snapshot` is the state that the input shows. It is kept if the state
    /// machine uses it, because the next write needs it.
    fn step(&mut self, world: &mut World, input: Input, snapshot: Option<Snapshot>) {
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
    }

    fn publish(&mut self) {
        let phase = self.election.phase();
        if !matches!(phase, Phase::Leading | Phase::Stopping) && self.term.take().is_some() {
            *lock(&self.shared.term) = None;
        }
        let identity = &self.election.config().identity;
        let holder = self.election.record().map(|record| record.holder.as_str());
        lock(&self.shared.vitals).held = holder == Some(identity.as_str());
        let ended = self.term.as_ref().is_none_or(|dog| dog.cell.has_ended());
        self.shared.status.publish(
            match (self.election.guard(), self.election.token(), holder) {
                (Some(guard), Some(token), _) if !ended => Status::Leader {
                    token: token.clone(),
                    until: guard.until(),
                },
                (_, _, Some(holder)) if !holder.is_empty() && holder != identity => {
                    Status::Follower {
                        leader: holder.to_owned(),
                    }
                }
                _ => Status::Unknown,
            },
        );
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // This also handles a runtime that is dropped together with the hub: no term outlives its driver.
        if !self.finished {
            let lock = self.lock.describe();
            tracing::warn!(lock, "the election was dropped before it finished");
        }
        if let Some(dog) = &self.term {
            dog.cell.end(StopReason::Shutdown);
        }
        *lock(&self.shared.term) = None;
        self.record(|metrics| metrics.leading(false));
        self.shared.status.publish(Status::Unknown);
        self.shared.no_more_mail();
        if let Some(request) = &self.request {
            request.abort();
        }
        if let Watching::Local(wait) = &self.watching {
            wait.abort();
        }
    }
}
