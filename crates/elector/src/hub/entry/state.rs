//! The beginning and the end of an entry, its deadline, and its published status.

use std::sync::Arc;

use kube::Client;
use tenure_core::{Election, LocalTime, Phase, StopReason};

use super::inquiry::Inquiry;
use super::{Begun, CANDIDATE, Entry, Watching, World};
use crate::candidate::Event;
use crate::clock::Clock;
use crate::hub::Start;
use crate::hub::sending::{Announcer, Requests};
use crate::hub::watching::Watches;
use crate::identity;
use crate::status::Status;
use crate::sync::lock;

impl World {
    pub(in crate::hub) fn new(client: Option<Client>, clock: Arc<dyn Clock>) -> Self {
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

impl Entry {
    pub(in crate::hub) fn new(start: Start) -> Self {
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
            inquiry: Inquiry::new(settings.proofs),
            campaigning: LocalTime::default(),
            slow: false,
            replaced: None,
        }
    }

    /// Returns when the election has to act next, and the latest instant for it.
    pub(in crate::hub) fn deadline(&self) -> Option<(LocalTime, LocalTime)> {
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
    pub(in crate::hub) fn is_over(&self) -> bool {
        self.finished && self.posts == 0
    }

    /// Leaves everything that is shared with other elections.
    pub(in crate::hub) fn leave(self, world: &mut World) {
        if let Watching::Objects(objects) = &self.watching {
            for (index, object) in objects.iter().enumerate() {
                world.watches.leave(&object.target.object, (self.id, index));
            }
        }
        if let Some(announcer) = &self.announcer {
            let watched = announcer.candidate.watched();
            world.watches.leave(&watched.object, (self.id, CANDIDATE));
        }
        self.shared.leave();
        self.shared.mailbox.deliver(Event::Finished);
    }

    pub(super) fn publish(&mut self) {
        let phase = self.election.phase();
        if !matches!(phase, Phase::Leading | Phase::Stopping) && self.term.take().is_some() {
            *lock(&self.shared.term) = None;
        }
        let identity = &self.election.config().identity;
        let holder = self.election.record().map(|record| record.holder.as_str());
        lock(&self.shared.vitals).held = holder == Some(identity.as_str());
        if let Some(membership) = self.shared.membership.get() {
            membership.sit_out(self.election.sits_out_until());
        }
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
        self.shared.mailbox.end();
        if let Some(request) = &self.request {
            request.abort();
        }
        if let Watching::Local(wait) = &self.watching {
            wait.abort();
        }
    }
}
