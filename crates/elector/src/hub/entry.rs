//! One election in a hub: carries inputs to the state machine, and carries out its commands.

use std::sync::Arc;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use kube::Client;
use serde_json::Value;
use tenure_core::{
    Command, Election, FencingToken, Guard, Input, LocalTime, Outcome, Phase, Source, StopReason,
    WriteKind,
};
use tenure_lock::{BoxFuture, Class, Sight, Sighting, Watch, WatchTarget};
use tokio::sync::watch;

use super::Start;
use super::watches::{Told, Watches};
use crate::builder::Settings;
use crate::clock::Clock;
use crate::deadline::Watchdog;
use crate::guard::{Cell, Tenure};
use crate::handle::{Event, Link, Shared, lock};
use crate::status::Status;

/// What all elections of a hub share.
pub(super) struct World {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) watches: Watches,
    pub(super) requests: FuturesUnordered<Abortable<BoxFuture<'static, (u64, Done)>>>,
}

impl World {
    pub(super) fn new(client: Option<Client>, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            watches: Watches::new(client),
            requests: FuturesUnordered::new(),
        }
    }

    /// Polls a future in the hub's task until it is done or aborted.
    fn spawn(
        &mut self,
        id: u64,
        future: impl Future<Output = Done> + Send + 'static,
    ) -> AbortHandle {
        let (abort, registration) = AbortHandle::new_pair();
        let future: BoxFuture<'static, _> = Box::pin(async move { (id, future.await) });
        self.requests.push(Abortable::new(future, registration));
        abort
    }
}

/// How a future of an election ended.
pub(super) enum Done {
    /// A read.
    Read(u64, Result<Option<Sighting>, tenure_lock::Error>),
    /// A write.
    Written(u64, Result<Sighting, tenure_lock::Error>),
    /// A lock in this process changed.
    Changed(watch::Receiver<Option<Sighting>>),
}

/// One election.
pub(super) struct Entry {
    id: u64,
    settings: Settings,
    shared: Arc<Shared>,
    election: Election,
    /// The sighting of the version that the state machine knows.
    last: Option<Sighting>,
    request: Option<Request>,
    watching: Watching,
    begun: Begun,
    term: Option<Arc<Watchdog>>,
    /// A term began and nobody is left to do its work, or to say that it ended.
    orphaned: bool,
    finished: bool,
}

/// The request under way.
struct Request {
    id: u64,
    expires: LocalTime,
    abort: AbortHandle,
}

/// How changes of the lock become known.
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
    /// Waits for the first word of the watch, until then at most.
    Not(LocalTime),
    Yes,
}

impl Entry {
    pub(super) fn new(start: Start) -> Self {
        let election = Election::new(start.settings.core.clone());
        Self {
            id: start.id,
            settings: start.settings,
            shared: start.shared,
            election,
            last: None,
            request: None,
            watching: Watching::Nothing,
            begun: Begun::Not(LocalTime::default()),
            term: None,
            orphaned: false,
            finished: false,
        }
    }

    /// Begins to watch; the election starts with the first word of the watch, good or bad, because
    /// that saves a read.
    pub(super) fn begin(&mut self, world: &mut World) {
        let now = world.clock.now();
        let patience = self.settings.core.timing.request_timeout();
        self.begun = Begun::Not(now.local + patience);
        match self.settings.lock.watch() {
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

    /// When something has to be done next.
    pub(super) fn deadline(&self) -> Option<LocalTime> {
        match self.begun {
            Begun::Not(by) => Some(by),
            Begun::Yes => self.election.deadline(),
        }
    }

    /// Whether nothing is left to do.
    pub(super) fn is_over(&self) -> bool {
        self.finished
    }

    /// Lets go of everything shared with other elections.
    pub(super) fn leave(mut self, world: &mut World) {
        if let Watching::Objects(objects) = &self.watching {
            for (index, object) in objects.iter().enumerate() {
                world.watches.leave(&object.target.object, (self.id, index));
            }
        }
        self.watching = Watching::Nothing;
    }

    /// An input from outside, or the tick of the clock.
    pub(super) fn input(&mut self, world: &mut World, input: Input) {
        if let Begun::Not(by) = self.begun {
            match input {
                Input::Tick if world.clock.now().local >= by => self.start(world),
                // A candidate that has not begun ends without having looked at the lock.
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

    /// News of a watched object.
    pub(super) fn told(&mut self, world: &mut World, target: usize, told: Told) {
        match told {
            Told::Object(object) => self.sight(world, target, Some(object), None),
            Told::Absent(revision) => self.sight(world, target, None, Some(revision)),
            Told::Up => {
                self.set_up(target, true);
                self.shared.works();
                self.settle(world);
            }
            Told::Down(error) => {
                self.set_up(target, false);
                self.shared.fails(world.clock.now(), &error);
                self.settle(world);
            }
        }
    }

    fn sight(
        &mut self,
        world: &mut World,
        target: usize,
        object: Option<Value>,
        revision: Option<tenure_core::ResourceVersion>,
    ) {
        match self.settings.lock.sight(target, object, self.last.as_ref()) {
            Sight::Seen(sighting) => self.observe(world, Source::Watch, sighting),
            Sight::Absent => self.step(world, Input::Absent(Source::Watch, revision), None),
            Sight::ReadNeeded => self.step(world, Input::Absent(Source::Watch, None), None),
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

    /// Tells the state machine whether everything is watched, and starts it when that is known.
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

    /// A lock in this process shows its present state, and will show the next.
    fn local(&mut self, world: &mut World, mut changes: watch::Receiver<Option<Sighting>>) {
        let present = changes.borrow_and_update().clone();
        match present {
            Some(sighting) => self.observe(world, Source::Watch, sighting),
            None => self.step(world, Input::Absent(Source::Watch, None), None),
        }
        let wait = async move {
            // The lock is held by the entry, so its sender is not gone.
            let _ = changes.changed().await;
            Done::Changed(changes)
        };
        self.watching = Watching::Local(world.spawn(self.id, wait));
    }

    pub(super) fn done(&mut self, world: &mut World, done: Done) {
        match done {
            Done::Changed(changes) => self.local(world, changes),
            Done::Read(id, result) => {
                self.answered(id);
                match result {
                    Ok(Some(sighting)) => {
                        self.shared.works();
                        self.observe(world, Source::Read(id), sighting);
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
                self.answered(id);
                match result {
                    Ok(sighting) => {
                        self.shared.works();
                        let version = sighting.observation().version.clone();
                        let input = Input::Written(id, Outcome::Applied(version));
                        self.step(world, input, Some(sighting));
                    }
                    Err(error) => {
                        self.failed(world, &error);
                        self.step(world, Input::Written(id, error.outcome()), None);
                    }
                }
            }
        }
    }

    /// Drops a request whose time is up, and with it its connection. The state machine knows the
    /// time too, and counts it as failed by itself.
    pub(super) fn drop_late_request(&mut self, world: &World) {
        let now = world.clock.now();
        if let Some(late) = self.request.take_if(|r| r.expires <= now.local) {
            late.abort.abort();
            let error = format!("no answer about {} in time", self.settings.lock.describe());
            self.shared.fails(now, &error.into());
        }
    }

    fn answered(&mut self, id: u64) {
        self.request.take_if(|request| request.id == id);
    }

    fn failed(&self, world: &World, error: &tenure_lock::Error) {
        if error.class() == Class::Refused {
            // Somebody was faster: ordinary contention, and the server works.
            tracing::debug!(lock = self.settings.lock.describe(), %error, "refused");
            self.shared.works();
        } else {
            self.shared
                .fails(world.clock.now(), &error.to_string().into());
        }
    }

    fn observe(&mut self, world: &mut World, source: Source, sighting: Sighting) {
        let input = Input::Observed(source, sighting.observation().clone());
        self.step(world, input, Some(sighting));
    }

    /// One step of the state machine. `sighting` is what the input shows; it is kept if that is what
    /// the state machine goes on with, because the next write needs it.
    fn step(&mut self, world: &mut World, input: Input, sighting: Option<Sighting>) {
        let now = world.clock.now();
        let written = matches!(input, Input::Written(..));
        let commands = self.election.step(now, input);
        match (self.election.version(), sighting) {
            (None, _) => self.last = None,
            (Some(version), Some(sighting)) if sighting.observation().version == *version => {
                let print = |s: &Sighting| s.observation().fingerprint;
                if written || self.last.as_ref().map(print) != Some(print(&sighting)) {
                    lock(&self.shared.vitals).observed = now.local;
                }
                self.last = Some(sighting);
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
        let identity = &self.settings.core.identity;
        let holder = self.election.record().map(|record| record.holder.as_str());
        lock(&self.shared.vitals).held = holder == Some(identity.as_str());
        let ended = self.term.as_ref().is_none_or(|dog| dog.cell.has_ended());
        self.shared.publish(
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

    fn carry_out(&mut self, world: &mut World, command: Command) {
        let name = self.settings.lock.describe();
        match command {
            Command::Read { id, timeout } => {
                let expires = world.clock.now().local + timeout;
                let lock = self.settings.lock.clone();
                let read = async move { Done::Read(id, lock.read().await) };
                let abort = world.spawn(self.id, read);
                self.request = Some(Request { id, expires, abort });
            }
            Command::Write {
                id,
                kind,
                record,
                timeout,
            } => {
                let expires = world.clock.now().local + timeout;
                let (lock, base) = (self.settings.lock.clone(), self.base(&kind));
                let write = async move {
                    Done::Written(id, lock.write(&kind, &record, base.as_ref()).await)
                };
                let abort = world.spawn(self.id, write);
                self.request = Some(Request { id, expires, abort });
            }
            Command::Lead {
                token,
                transitions,
                guard,
            } => {
                tracing::info!(lock = name, token = token.as_str(), "became leader");
                self.lead(token, transitions, guard);
            }
            Command::Extend { guard } => {
                if let Some(dog) = &self.term {
                    dog.cell.extend(guard);
                }
            }
            Command::Stop { reason, deadline } => {
                tracing::info!(lock = name, reason = reason.as_str(), "stopped leading");
                if let Some(dog) = &self.term {
                    dog.set_deadline(deadline);
                    dog.cell.end(reason.clone());
                }
                self.shared.deliver(Event::Stop(reason));
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
                tracing::info!(lock = name, %holder, "new leader");
                self.shared.deliver(Event::NewLeader(holder));
            }
            Command::Released => {
                tracing::info!(lock = name, "released");
                self.shared.deliver(Event::Released);
            }
            Command::Finished => {
                self.finished = true;
                self.shared.deliver(Event::Finished);
            }
        }
    }

    fn base(&self, kind: &WriteKind) -> Option<Sighting> {
        let version = kind.base()?;
        let last = self.last.as_ref();
        last.filter(|last| last.observation().version == *version)
            .cloned()
    }

    fn lead(&mut self, token: FencingToken, transitions: u32, guard: Guard) {
        let shared = &self.shared;
        let cell = Arc::new(Cell::new(
            shared.lock.clone(),
            shared.identity.clone(),
            shared.clock.clone(),
            (token, transitions),
            guard,
        ));
        let tenure = Tenure::new(cell.clone());
        let status = Arc::downgrade(shared);
        tenure.at_end(move |_| {
            // The deadline thread may be the one that ends it, while the driver is stuck.
            let Some(shared) = status.upgrade() else {
                return;
            };
            let leads = matches!(*shared.status.borrow(), Status::Leader { .. });
            if leads {
                shared.publish(Status::Unknown);
            }
        });
        let fence = self.settings.core.timing.fence();
        let dog = Watchdog::start(cell, fence, self.settings.overrun.clone());
        self.term = Some(dog.clone());
        *lock(&shared.term) = Some(tenure);
        let inbox = shared.link.get().and_then(|(inbox, _)| inbox.upgrade());
        match inbox {
            Some(inbox) => {
                let link = Link { inbox, id: self.id };
                let term = crate::handle::Term::new(dog, link);
                shared.deliver(Event::Lead(term));
            }
            None => {
                dog.joined();
                self.orphaned = true;
            }
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Also when the runtime goes away with the hub in it: no term outlives its driver.
        if let Some(dog) = &self.term {
            dog.cell.end(StopReason::Shutdown);
        }
        *lock(&self.shared.term) = None;
        self.shared.publish(Status::Unknown);
        self.shared.no_more_mail();
        if let Some(request) = &self.request {
            request.abort.abort();
        }
        if let Watching::Local(wait) = &self.watching {
            wait.abort();
        }
    }
}
