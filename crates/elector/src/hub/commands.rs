//! Carrying out what the state machine commands, in its order.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Command, FencingToken, Guard, WriteKind};
use tenure_lock::Sighting;
use tokio::time::timeout as within;
use tracing::Instrument as _;

use super::entry::{Done, Entry, Request, World};
use crate::deadline::Watchdog;
use crate::events::Note;
use crate::guard::{Cell, Tenure};
use crate::handle::{Event, Link, Term, lock};
use crate::status::Status;

/// An Event that cannot be posted in this time is not worth waiting for.
const POST: Duration = Duration::from_secs(2);

impl Entry {
    pub(super) fn carry_out(&mut self, world: &mut World, command: Command) {
        match command {
            Command::Read { id, timeout } => {
                self.slow |= self.term.is_some();
                let lock = self.settings.lock.clone();
                let read = async move { Done::Read(id, lock.read().await) };
                self.send(world, id, timeout, false, read);
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
                let (lock, base) = (self.settings.lock.clone(), self.base(&kind));
                let write = async move {
                    Done::Written(id, lock.write(&kind, &record, base.as_ref()).await)
                };
                self.send(world, id, timeout, renewal, write);
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
                self.note(world, "became leader", &token);
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
                    self.note(world, "stopped leading", &dog.cell.token);
                }
                self.slow = false;
                self.campaigning = world.clock.now().local;
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
                tracing::info!(%holder, "new leader");
                self.shared.deliver(Event::NewLeader(holder));
            }
            Command::Released => {
                tracing::info!("released");
                self.shared.deliver(Event::Released);
            }
            Command::Finished => self.finished = true,
        }
    }

    fn send(
        &mut self,
        world: &mut World,
        id: u64,
        timeout: Duration,
        renewal: bool,
        request: impl Future<Output = Done> + Send + 'static,
    ) {
        let sent = world.clock.now().local;
        let gate = world.gate.clone();
        let request = async move {
            // Nobody closes the gate.
            let _pass = gate.acquire().await;
            request.await
        };
        let abort = world.spawn(self.id, request.instrument(self.span.clone()));
        // The state machine may have given up on the one before by itself.
        if let Some(late) = self.request.take() {
            late.abort.abort();
        }
        self.request = Some(Request {
            id,
            sent,
            expires: sent + timeout,
            renewal,
            abort,
        });
    }

    /// Posts an Event about the lock object. Elections do not wait for it, except at their very end.
    fn note(&mut self, world: &mut World, what: &'static str, token: &FencingToken) {
        let Some(client) = world.client.clone().filter(|_| self.settings.events) else {
            return;
        };
        let at = world.clock.now().wall;
        for about in self.settings.lock.references(self.last.as_ref()) {
            let note = Note {
                about,
                identity: self.settings.core.identity.clone(),
                what,
                token: token.clone(),
                at,
            };
            let (gate, client) = (world.gate.clone(), client.clone());
            let post = async move {
                let _pass = gate.acquire().await;
                note.post(client).await
            };
            let post = async move {
                Done::Posted(match within(POST, post).await {
                    Ok(result) => result.map_err(|error| error.to_string()),
                    Err(_) => Err("no answer in time".to_owned()),
                })
            };
            world.spawn(self.id, post);
            self.posts += 1;
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
                let term = Term::new(dog, link);
                shared.deliver(Event::Lead(term));
            }
            None => {
                dog.joined();
                self.orphaned = true;
            }
        }
    }
}
