//! Executes the commands of the state machine, in their order.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Command, FencingToken, Guard, StopReason, WallTime, WriteKind};
use tenure_lock::Snapshot;
use tokio::time::timeout as within;
use tracing::Instrument as _;

use super::Ask;
use super::entry::{Done, Entry, Job, Request, Stage, World};
use crate::candidate::Event;
use crate::deadline::Watchdog;
use crate::events::Note;
use crate::plain::plain;
use crate::shared::Link;
use crate::status::Status;
use crate::sync::lock;
use crate::tenure::{Cell, Tenure};
use crate::term::Term;

/// Timeout for posting an Event.
const POST: Duration = Duration::from_secs(2);

impl Entry {
    pub(super) fn carry_out(&mut self, world: &mut World, command: Command) {
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
                if !holder.is_empty() && *holder != *self.shared.identity {
                    // client-go's text, which people search for.
                    tracing::debug!("lock is held by {holder} and has not yet expired");
                }
                self.shared.deliver(Event::NewLeader(holder));
            }
            Command::Released => {
                tracing::info!("released");
                self.shared.deliver(Event::Released);
            }
            Command::Finished => self.finished = true,
        }
    }

    fn queue(&mut self, world: &mut World, id: u64, timeout: Duration, renewal: bool, job: Job) {
        let sent = world.clock.now().local;
        if !std::mem::replace(&mut self.queued, true) {
            world.requests.queue(sent, self.id);
        }
        let request = Request {
            id,
            sent,
            expires: sent + timeout,
            renewal,
            stage: Stage::Queued(job),
        };
        // The state machine may have given up on the previous request.
        if let Some(late) = self.request.replace(request) {
            late.abort();
        }
    }

    /// Sends the request of this election, unless it was given up in the queue.
    pub(super) fn send(&mut self, world: &mut World) {
        self.queued = false;
        let Some(request) = &mut self.request else {
            return;
        };
        if request.expires <= world.clock.now().local {
            // The request was given up, or is about to be. A renewal without a waiting election would only delay the
            // next leader.
            return;
        }
        let id = request.id;
        let Stage::Queued(job) = &mut request.stage else {
            return;
        };
        let (job, lock) = (std::mem::replace(job, Job::Read), self.lock.clone());
        let send = async move {
            match job {
                Job::Read => Done::Read(id, lock.read().await),
                Job::Write(write) => {
                    let (kind, record, base) = *write;
                    Done::Written(id, lock.write(&kind, &record, base.as_ref()).await)
                }
            }
        };
        let send = send.instrument(self.span.clone());
        request.stage = Stage::Sent(world.requests.send(self.id, send));
    }

    /// Posts an Event about the lock object. Elections do not wait for it, except when they finish.
    fn note(
        &mut self,
        world: &mut World,
        what: &'static str,
        reason: Option<&'static str>,
        token: &FencingToken,
    ) {
        if world.client.is_none() || !self.events {
            return;
        }
        let now = world.clock.now();
        // Events are named after their instant, so the Events about the two objects of a multi lock use different
        // instants.
        for (object, later) in (0..self.lock.references(None).len()).zip(0..) {
            let at = WallTime::from_micros(now.wall.as_micros() + later);
            let note = Note {
                object,
                what,
                reason,
                token: token.clone(),
                replaced: self.replaced.filter(|_| reason.is_none()),
                at,
            };
            world.requests.queue_post(now.local, self.id, note);
            self.posts += 1;
        }
    }

    /// Posts the next queued Event.
    pub(super) fn post(&self, world: &mut World, note: Note) {
        let Some(client) = world.client.clone() else {
            return;
        };
        let mut objects = self.lock.references(self.last.as_ref()).into_iter();
        let (about, identity) = (objects.nth(note.object), self.shared.identity.clone());
        let source = self.event_source.clone();
        let post = async move {
            let Some(about) = about else {
                return Done::Posted(Ok(()));
            };
            Done::Posted(
                match within(POST, note.post(client, about, &identity, source.as_deref())).await {
                    Ok(result) => result.map_err(|error| plain(&error)),
                    Err(_) => Err("no answer in time".to_owned()),
                },
            )
        };
        world.requests.post(self.id, post);
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
                shared.deliver(Event::Lead(term));
            }
            None => {
                dog.drop_handle();
                self.orphaned = true;
            }
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
