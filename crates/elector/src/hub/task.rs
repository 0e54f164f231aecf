//! The loop of a hub.

use std::collections::HashMap;
use std::sync::Arc;

use kube::Client;
use tenure_core::Input;
use tokio::sync::mpsc;

use super::entry::{Entry, World};
use super::sending::{Done, Turn};
use super::timers::{Alarm, Timers};
use super::watching::{ChangeLines, FeedEvent};
use super::{Message, Start};
use crate::clock::Clock;

/// Messages are processed in batches, so that a thousand new elections in one namespace begin with one watch.
const BATCH: usize = 1024;

/// Number of elections from which the hub wakes elections with leeway together. A thousand renewals per second are then
/// sent about thirty at a time, which needs far fewer system calls.
const MANY: usize = 64;

/// The single task of a hub.
pub(super) struct Task {
    inbox: mpsc::UnboundedReceiver<Message>,
    /// Boxed, because a map may reserve memory for twice as many entries as it holds.
    entries: HashMap<u64, Box<Entry>>,
    timers: Timers,
    world: World,
}

impl Task {
    pub(super) fn new(
        client: Option<Client>,
        clock: Arc<dyn Clock>,
        inbox: mpsc::UnboundedReceiver<Message>,
    ) -> Self {
        Self {
            inbox,
            entries: HashMap::new(),
            timers: Timers::default(),
            world: World::new(client, clock),
        }
    }

    /// Runs until no handle and no election is left.
    pub(super) async fn run(mut self) {
        let mut open = true;
        let mut batch = Vec::new();
        let mut alarm = Alarm::default();
        while open || !self.entries.is_empty() {
            self.fire_due();
            self.world.watches.settle();
            self.take_turns();
            if let Some(next) = self.timers.next() {
                alarm.set(&*self.world.clock, next);
            }
            // The order is fixed, so that a simulated run depends only on its seed. No branch starves: timers are
            // checked in every iteration, and a sender waits for a response before it sends more.
            tokio::select! {
                biased;
                taken = self.inbox.recv_many(&mut batch, BATCH), if open => {
                    open = taken > 0;
                    for message in batch.drain(..) {
                        self.receive(message);
                    }
                    if batch.capacity() > BATCH / 8 {
                        batch = Vec::new();
                    }
                }
                done = self.world.requests.next(), if !self.world.requests.is_idle() => {
                    // Other completed futures are handled in the same iteration.
                    let mut next = Some(done);
                    while let Some(done) = next {
                        if let Some((id, done)) = done {
                            self.done(id, done);
                        }
                        next = self.world.requests.next_now();
                    }
                    // The connections of these requests return to their pool in separate tasks. A request that is sent
                    // before that would open another connection, only to close it again.
                    tokio::task::yield_now().await;
                }
                (feed, event) = self.world.watches.next() => {
                    let mut next = Some((feed, event));
                    while let Some((feed, event)) = next {
                        match event {
                            FeedEvent::ChangeLines(changes) => self.changed(feed, &changes),
                            event => self.apply_feed_event(feed, event),
                        }
                        next = self.world.watches.next_now();
                    }
                }
                () = alarm.rings() => {}
            }
        }
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Start(start) => {
                let Start { id, .. } = *start;
                self.entries.insert(id, Box::new(Entry::new(*start)));
                self.with_entry(id, Entry::begin);
            }
            Message::Ask(id, ask) => {
                self.with_entry(id, |entry, world| entry.input(world, ask.into()));
            }
        }
    }

    fn apply_feed_event(&mut self, feed: u64, event: FeedEvent) {
        for ((id, target), delivery) in self.world.watches.sort(feed, event) {
            self.with_entry(id, |entry, world| entry.deliver(world, target, delivery));
        }
    }

    /// Handles changes. Most of them are our own renewals, which no election has to process.
    fn changed(&mut self, feed: u64, changes: &ChangeLines) {
        for change in changes.iter() {
            let members = self.world.watches.members(feed, change.name).iter();
            let unaware = members.filter(|(id, target)| {
                let entry = self.entries.get(id);
                entry.is_some_and(|entry| !entry.knows(*target, &change))
            });
            for (id, target) in unaware.copied().collect::<Vec<_>>() {
                self.with_entry(id, |entry, world| entry.changed(world, target, &change));
            }
        }
    }

    fn done(&mut self, id: u64, done: Done) {
        self.with_entry(id, |entry, world| entry.done(world, done));
    }

    fn fire_due(&mut self) {
        let now = self.world.clock.now().local;
        if !self.timers.rings(now) {
            return;
        }
        while let Some(id) = self.timers.pop_due(now) {
            self.with_entry(id, |entry, world| {
                entry.drop_late_request(world);
                entry.input(world, Input::Tick);
            });
        }
    }

    /// Sends the next queued requests.
    fn take_turns(&mut self) {
        let now = self.world.clock.now().local;
        while let Some(turn) = self.world.requests.next_turn(now) {
            let (Turn::Request(id) | Turn::Post(id, _) | Turn::TooLate(id)) = turn;
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            match turn {
                Turn::Request(_) => entry.send(&mut self.world),
                Turn::Post(_, note) => entry.post(&mut self.world, *note),
                Turn::TooLate(_) => {
                    let late = "too many requests are waiting".to_owned();
                    self.done(id, Done::Posted(Err(late)));
                }
            }
        }
    }

    /// Runs a closure on an election, then sets its timer, or removes the election if it has finished.
    fn with_entry(&mut self, id: u64, act: impl FnOnce(&mut Entry, &mut World)) {
        let many = self.entries.len() >= MANY;
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let world = &mut self.world;
        // A panic in one election, in its lock or in code that it calls, must not end the others. Its entry is dropped,
        // which ends the term, and the lock is left to expire.
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(entry, world)));
        if acted.is_err() {
            let lock = entry.lock.describe();
            tracing::error!(
                lock,
                "the election panicked and was dropped; other elections of its hub continue"
            );
        }
        if acted.is_err() || entry.is_over() {
            self.timers.set(id, None);
            if let Some(entry) = self.entries.remove(&id) {
                entry.leave(&mut self.world);
            }
            if self.entries.is_empty() {
                self.entries.shrink_to_fit();
            }
        } else {
            let times = entry.deadline();
            let times = times.map(|(due, latest)| (due, if many { latest } else { due }));
            self.timers.set(id, times);
        }
    }
}
