//! The loop of a hub.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use kube::Client;
use tenure_core::Input;
use tokio::sync::mpsc;

use super::entry::{Done, Entry, World};
use super::timers::Timers;
use super::{Message, Start};
use crate::clock::Clock;

/// Messages are taken in batches, so that a thousand new elections in one namespace begin with one
/// watch.
const BATCH: usize = 1024;

/// The one task of a hub.
pub(super) struct Task {
    inbox: mpsc::UnboundedReceiver<Message>,
    entries: HashMap<u64, Entry>,
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
        while open || !self.entries.is_empty() {
            self.fire_due();
            self.world.watches.settle();
            let next = self.timers.next();
            let clock = self.world.clock.clone();
            let alarm = async {
                match next {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                taken = self.inbox.recv_many(&mut batch, BATCH), if open => {
                    open = taken > 0;
                    for message in batch.drain(..) {
                        self.receive(message);
                    }
                    if batch.capacity() > BATCH / 8 {
                        batch = Vec::new();
                    }
                }
                Some(done) = self.world.requests.next(), if !self.world.requests.is_empty() => {
                    if let Ok((id, done)) = done {
                        self.done(id, done);
                    }
                }
                (feed, news) = self.world.watches.next() => {
                    for ((id, target), told) in self.world.watches.sort(feed, news) {
                        self.with(id, |entry, world| entry.told(world, target, told));
                    }
                }
                () = alarm => {}
            }
        }
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Start(start) => {
                let Start { id, .. } = *start;
                let entry = Entry::new(*start);
                self.entries.insert(id, entry);
                self.with(id, Entry::begin);
            }
            Message::Ask(id, ask) => self.with(id, |entry, world| entry.input(world, ask.into())),
        }
    }

    fn done(&mut self, id: u64, done: Done) {
        self.with(id, |entry, world| entry.done(world, done));
    }

    fn fire_due(&mut self) {
        let now = self.world.clock.now();
        while let Some(id) = self.timers.pop_due(now.local) {
            self.with(id, |entry, world| {
                entry.drop_late_request(world);
                entry.input(world, Input::Tick);
            });
        }
    }

    /// Does something with an election, then arms its timer, or forgets it if it has finished.
    fn with(&mut self, id: u64, act: impl FnOnce(&mut Entry, &mut World)) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        act(entry, &mut self.world);
        if entry.is_over() {
            self.timers.set(id, None);
            if let Some(entry) = self.entries.remove(&id) {
                entry.leave(&mut self.world);
            }
            if self.entries.is_empty() {
                self.entries.shrink_to_fit();
            }
        } else {
            self.timers.set(id, entry.deadline());
        }
    }
}
