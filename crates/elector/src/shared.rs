//! State that the driver and the handles of one election share.
//!
//! [`Candidate`](crate::Candidate) owns an election and receives its events, [`Term`](crate::Term) owns a term, and
//! [`Handle`](crate::Handle) only queries and sends requests. Dropping a `Term` ends its term, and dropping a `Candidate`
//! ends the election. In both cases the driver steps down, waits for the last [`Tenure`] of the work, and releases the
//! lock, in that order.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_core::Now;
use tokio::sync::mpsc;

use crate::candidate::Mailbox;
use crate::clock::Clock;
use crate::health::{STILL, Vitals};
use crate::hub::{Ask, Message};
use crate::member::Membership;
use crate::status::Board;
use crate::sync::lock;
use crate::tenure::Tenure;

/// Connection from a handle to its election in the hub.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) inbox: mpsc::UnboundedSender<Message>,
    pub(crate) id: u64,
}

impl Link {
    pub(crate) fn send(&self, ask: Ask) {
        // A hub that has ended has already ended every term.
        let _ = self.inbox.send(Message::Ask(self.id, ask));
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.id)
    }
}

/// State shared by the driver and the handles of one election.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Name for metrics and health, like client-go's `Name`.
    pub(crate) name: Arc<str>,
    pub(crate) lock: Arc<str>,
    pub(crate) identity: Arc<str>,
    pub(crate) lease: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) status: Board,
    pub(crate) vitals: Mutex<Vitals>,
    pub(crate) term: Mutex<Option<Tenure>>,
    pub(crate) link: OnceLock<(mpsc::WeakUnboundedSender<Message>, u64)>,
    pub(crate) mailbox: Mailbox,
    /// Set before the start if this candidate announces itself.
    pub(crate) membership: OnceLock<Membership>,
}

impl Shared {
    pub(crate) fn new(
        name: Arc<str>,
        lock: Arc<str>,
        identity: Arc<str>,
        lease: Duration,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            name,
            lock,
            identity,
            lease,
            clock,
            status: Board::default(),
            vitals: Mutex::default(),
            term: Mutex::default(),
            link: OnceLock::new(),
            mailbox: Mailbox::default(),
            membership: OnceLock::new(),
        }
    }

    /// Sends a request to the driver, if it still runs.
    pub(crate) fn ask(&self, ask: Ask) {
        if let Some((inbox, id)) = self.link.get()
            && let Some(inbox) = inbox.upgrade()
        {
            Link { inbox, id: *id }.send(ask);
        }
    }

    /// Ends the membership of this candidate, if it announced itself.
    pub(crate) fn leave(&self) {
        if let Some(membership) = self.membership.get() {
            membership.leave();
        }
    }

    /// Records that a request was answered, or that the watch works again.
    pub(crate) fn works(&self) {
        let mut vitals = lock(&self.vitals);
        let failed = vitals.failing.take();
        // If only some permissions are missing, requests alternately succeed and fail.
        let news = failed.is_some_and(|(_, error)| vitals.obstacle.as_ref() != Some(&error));
        if news {
            vitals.reminded = false;
        }
        drop(vitals);
        if news {
            tracing::info!(lock = %self.lock, "the API server answers again");
        }
    }

    /// Records that a request was not answered or not permitted. The first failure in a row is logged as a warning, and
    /// one more after [`STILL`].
    pub(crate) fn fails(&self, now: Now, error: &Arc<str>) {
        let mut vitals = lock(&self.vitals);
        let since = vitals.failing.as_ref().map(|(since, _)| *since);
        vitals.failing = Some((since.unwrap_or(now.local), error.clone()));
        let lasts = since.is_some_and(|since| now.local.since(since) >= STILL);
        let remind = lasts && !std::mem::replace(&mut vitals.reminded, lasts);
        drop(vitals);
        if since.is_none() {
            tracing::warn!(lock = %self.lock, %error, "a request for the lock failed; retrying");
        } else if remind {
            tracing::warn!(lock = %self.lock, %error, "requests for the lock are still failing after 30s; retrying");
        } else {
            tracing::debug!(lock = %self.lock, %error, "a request for the lock failed; retrying");
        }
    }

    /// Records that a write succeeded, so that a later rejection counts as a new cause.
    pub(crate) fn has_all_permissions(&self) {
        lock(&self.vitals).obstacle = None;
    }

    /// Records a failure that lasts until permissions or configuration change. Each cause is logged once.
    pub(crate) fn fails_until_changed(&self, now: Now, error: &Arc<str>) {
        let mut vitals = lock(&self.vitals);
        vitals.met = now.local;
        if vitals.obstacle.as_ref() != Some(error) {
            vitals.obstacle = Some(error.clone());
            drop(vitals);
            return self.fails(now, error);
        }
        let since = vitals.failing.as_ref().map(|(since, _)| *since);
        vitals.failing = Some((since.unwrap_or(now.local), error.clone()));
        drop(vitals);
        tracing::debug!(lock = %self.lock, %error, "the same request failed again; retrying");
    }
}
