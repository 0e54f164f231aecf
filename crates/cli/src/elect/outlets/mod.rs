//! Telling others: everything besides HTTP and standard output that hears of a change.
//!
//! Each outlet has a task and a queue of its own, so a slow one delays neither the election nor the
//! others. Invariant: the lease is given back only after every outlet that has to say "not any more"
//! has said it, or its time was up: the news of a loss carry a share of the term, and the term ends
//! with the last share.

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
use tenure::core::LocalTime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::view::Answer;

/// The longest that news of a loss may hold back the release.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Kept free before the deadline of a term, to end what still runs.
const RESERVE: Duration = Duration::from_millis(200);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Notice {
    /// At the start, before the first campaign.
    Started,
    Elected,
    Lost,
    Changed,
}

/// One piece of news.
#[derive(Clone, Debug)]
pub(super) struct News {
    pub(super) notice: Notice,
    /// How things stood when it happened.
    pub(super) answer: Answer,
    pub(super) previous: String,
    pub(super) term: Option<Share>,
}

/// A share of a term that has ended. The lease is given back when the last one is dropped.
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

    /// The term.
    pub(super) fn term(&self) -> &Term {
        &self.term
    }

    /// How long the lease can be kept for whoever holds a share.
    pub(super) fn term_left(&self) -> Duration {
        let left = self.term.deadline().since(SystemClock.now().local);
        left.saturating_sub(RESERVE)
    }

    /// How long this share may be kept to tell somebody.
    pub(super) fn left(&self) -> Duration {
        let end = self.term.deadline().min(self.told + PATIENCE);
        let left = end.since(SystemClock.now().local);
        left.saturating_sub(RESERVE)
    }
}

/// All outlets.
#[derive(Debug, Default)]
pub(super) struct Outlets {
    queues: Vec<mpsc::UnboundedSender<News>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The end of a queue that an outlet reads.
pub(super) type Queue = mpsc::UnboundedReceiver<News>;

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

    /// Tells all of them.
    pub(super) fn tell(&self, news: &News) {
        for queue in &self.queues {
            // One that has ended has said why.
            let _ = queue.send(news.clone());
        }
    }

    /// No more news. Waits until everything was told, but not for ever.
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

/// The newest of the waiting news, with the shares of all of them: for outlets that show a state and
/// not its history. `None` when there will be no more.
pub(super) async fn newest(queue: &mut Queue) -> Option<(News, Vec<Share>)> {
    let mut news = queue.recv().await?;
    let mut shares: Vec<Share> = news.term.take().into_iter().collect();
    while let Ok(next) = queue.try_recv() {
        news = next;
        shares.extend(news.term.take());
    }
    Some((news, shares))
}
