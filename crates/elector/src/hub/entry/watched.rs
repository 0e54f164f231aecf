//! Which objects an election watches, and whether their watches work.

use futures_util::future::AbortHandle;
use tenure_core::{Input, LocalTime, Source};
use tenure_lock::{Snapshot, Watch, WatchTarget};
use tokio::sync::watch;

use super::{CANDIDATE, Entry, World};
use crate::hub::sending::Done;
use crate::hub::watching::Delivery;

/// How changes of the lock are observed.
pub(super) enum Watching {
    Nothing,
    Local(AbortHandle),
    Objects(Vec<Object>),
}

pub(super) struct Object {
    pub(super) target: WatchTarget,
    up: bool,
    settled: bool,
}

pub(super) enum Begun {
    /// Waits for the first message of the watch, at most until this instant.
    Not(LocalTime),
    Yes,
}

impl Entry {
    /// Starts the watch. The election starts with the first message of the watch, even if that is a failure, because
    /// this saves a read.
    pub(in crate::hub) fn begin(&mut self, world: &mut World) {
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

    /// Handles an event of a watched object.
    pub(in crate::hub) fn deliver(&mut self, world: &mut World, target: usize, delivery: Delivery) {
        if target == CANDIDATE {
            self.deliver_candidate(world, delivery);
            return;
        }
        match delivery {
            // The state machine already knows this version.
            Delivery::Object(shown)
                if !shown.is_listed() && self.is_echo(|version| shown.is(version)) => {}
            Delivery::Object(shown) => match shown.into_object() {
                Some(object) => {
                    let last = self.last.as_ref();
                    let outcome = self.lock.apply_watch_event(target, Some(object), last);
                    self.apply_outcome(world, outcome, None);
                }
                None => self.step(world, Input::Absent(Source::Watch, None), None),
            },
            Delivery::Absent(revision) => {
                let outcome = self
                    .lock
                    .apply_watch_event(target, None, self.last.as_ref());
                self.apply_outcome(world, outcome, Some(revision));
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

    pub(super) fn start(&mut self, world: &mut World) {
        if let Begun::Not(_) = self.begun {
            self.begun = Begun::Yes;
            self.step(world, Input::Start, None);
        }
    }

    /// Handles the current state of a lock in this process, and waits for the next one.
    pub(super) fn local(
        &mut self,
        world: &mut World,
        mut changes: watch::Receiver<Option<Snapshot>>,
    ) {
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
}
