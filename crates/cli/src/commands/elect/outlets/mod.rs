//! Outlets: all receivers of changes other than HTTP and standard output.
//!
//! Each outlet has its own task and queue, so a slow one delays neither the election nor the others. Invariant: the
//! lease is released only after every outlet that must report the loss has reported it, or its time has passed. Items
//! about a loss contain a share of the term, and the term ends when the last share is dropped.

pub(super) mod gate;
pub(super) mod hooks;
pub(super) mod label;
mod rounds;
pub(super) mod service;
pub(super) mod slice;
pub(super) mod state_file;
pub(super) mod webhook;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tenure::Term;
use tenure::clock::{Clock, SystemClock};
use tenure_core::LocalTime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::view::Answer;

/// Maximum time by which an item about a loss may delay the release.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Time reserved before the deadline of a term, to end tasks that still run.
const RESERVE: Duration = Duration::from_millis(200);

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Notice {
    /// At the start, before the first campaign.
    Started,
    Elected,
    Lost,
    Changed,
}

/// A change of the election, as an outlet receives it.
#[derive(Clone, Debug)]
pub(super) struct ElectionChange {
    pub(super) notice: Notice,
    /// The state when it happened.
    pub(super) answer: Answer,
    pub(super) previous: String,
    pub(super) term: Option<Share>,
}

/// A share of a term that has ended. The lease is released when the last share is dropped.
#[derive(Clone, Debug)]
pub(super) struct Share {
    term: Arc<Term>,
    told: LocalTime,
}

impl Share {
    pub(super) fn new(term: Term) -> Self {
        Self {
            term: Arc::new(term),
            told: SystemClock.now().local,
        }
    }

    /// Returns the term.
    pub(super) fn term(&self) -> &Term {
        &self.term
    }

    /// Returns how long the lease can be kept for the owner of a share.
    pub(super) fn term_left(&self) -> Duration {
        let left = self.term.deadline().since(SystemClock.now().local);
        left.saturating_sub(RESERVE)
    }

    /// Returns how long this share may be kept to report the loss.
    pub(super) fn left(&self) -> Duration {
        let end = self.term.deadline().min(self.told + PATIENCE);
        let left = end.since(SystemClock.now().local);
        left.saturating_sub(RESERVE)
    }
}

/// All outlets.
#[derive(Debug, Default)]
pub(super) struct Outlets {
    queues: Vec<mpsc::UnboundedSender<ElectionChange>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The receiving end of an outlet's queue.
pub(super) type Queue = mpsc::UnboundedReceiver<ElectionChange>;

impl Outlets {
    /// Adds an outlet.
    pub(super) fn add<F>(&mut self, outlet: impl FnOnce(Queue) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.queues.push(sender);
        self.tasks.push(tokio::spawn(outlet(receiver)));
    }

    /// Sends a change to all outlets.
    pub(super) fn notify(&self, change: &ElectionChange) {
        for queue in &self.queues {
            // An outlet that has ended has logged the reason.
            let _ = queue.send(change.clone());
        }
    }

    /// Closes the queues. Waits until everything was delivered, for a limited time.
    pub(super) async fn close(self, patience: Duration) {
        drop(self.queues);
        let told = async {
            for task in self.tasks {
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(patience, told).await;
    }
}

/// Returns the newest queued change, with the shares of all queued changes. For outlets that show a state and not its
/// history. Returns `None` when the queue is closed.
pub(super) async fn newest(queue: &mut Queue) -> Option<(ElectionChange, Vec<Share>)> {
    let mut change = queue.recv().await?;
    let mut shares: Vec<Share> = change.term.take().into_iter().collect();
    while let Ok(next) = queue.try_recv() {
        change = next;
        shares.extend(change.term.take());
    }
    Some((change, shares))
}
