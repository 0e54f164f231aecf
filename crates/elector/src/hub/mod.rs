//! Many elections in one process: one task, one timer structure, one watch per namespace and kind.
//!
//! ```text
//!  Candidate, Term ──inbox──▶ ┌──────────┐ ◀──events── one watch per (namespace, kind)
//!                             │ hub task │
//!  mail, guard, status ◀───── │  entries │ ──▶ requests, polled in place
//!                             └──────────┘
//! ```
//!
//! | part | content |
//! |---|---|
//! | `task.rs` | the loop of the hub |
//! | `watching` | watches of the API server, and their subscribers |
//! | `entry` | one election: its inputs and its commands |
//! | `sending` | requests to the API server: queued, in flight, answered |
//! | `timers.rs` | the next deadline of each election |
//!
//! The hub makes no election decisions. It passes inputs to each [`Election`](tenure_core::Election) and executes its
//! commands, in order.

mod entry;
mod sending;
mod task;
mod timers;
mod watching;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tenure_core::{FencingToken, Input, Standing};
use tokio::sync::{mpsc, watch};

use crate::builder::Settings;
use crate::candidate::Candidate;
use crate::clock::{Clock, SystemClock};
use crate::shared::{Link, Shared};

pub(crate) use self::watching::{Feed, FeedEvent, is_forbidden};

/// Drives any number of elections on one task. Cheap to clone. The task ends when every clone and every [`Candidate`]
/// is dropped and the last lock has been released.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = tenure::client(kube::Config::infer().await?)?;
/// let hub = tenure::Hub::new(client.clone());
/// let mut candidates = Vec::new();
/// for shard in 0..2_000 {
///     let elector = tenure::Elector::lease(client.clone(), "default", &format!("shard-{shard}"))
///         .hub(&hub)
///         .build()?;
///     candidates.push(elector.start());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Hub {
    inbox: mpsc::UnboundedSender<Message>,
    clock: Arc<dyn Clock>,
    /// Closes when the task ends.
    over: watch::Receiver<()>,
}

impl Hub {
    /// Starts a hub on the current tokio runtime. All its locks must be in the cluster of this client, which is used
    /// for their watches and Events.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn new(client: Client) -> Self {
        Self::with_clock(Some(client), Arc::new(SystemClock))
    }

    /// Starts a hub with another clock, and without a client if all locks are in this process.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn with_clock(client: Option<Client>, clock: Arc<dyn Clock>) -> Self {
        let (inbox, messages) = mpsc::unbounded_channel();
        let task = task::Task::new(client, clock.clone(), messages);
        let (running, over) = watch::channel(());
        // The task ends by itself; see `Hub`.
        tokio::spawn(async move {
            task.run().await;
            drop(running);
        });
        Self { inbox, clock, over }
    }

    /// Waits until every election of this hub has ended and its lock is released, after all [`Candidate`]s,
    /// [`Term`](crate::Term)s and clones of the hub were dropped. Call it at the end of a program, so that no lock has
    /// to expire.
    pub async fn ended(self) {
        let Self {
            inbox, mut over, ..
        } = self;
        drop(inbox);
        while over.changed().await.is_ok() {}
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Adds an election.
    pub(crate) fn start(&self, settings: Settings, shared: &Arc<Shared>) -> Candidate {
        let id = next_id();
        let link = Link {
            inbox: self.inbox.clone(),
            id,
        };
        // An elector is consumed when it is started, so the link is not set yet.
        let _ = shared.link.set((self.inbox.downgrade(), id));
        let start = Start {
            id,
            settings,
            shared: shared.clone(),
        };
        if self.inbox.send(Message::Start(Box::new(start))).is_err() {
            shared.mailbox.end();
        }
        Candidate::new(shared.clone(), link)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

/// A message from a handle to the hub.
pub(crate) enum Message {
    /// A new election.
    Start(Box<Start>),
    /// A request for one election.
    Ask(u64, Ask),
}

/// A request of a handle to its election.
#[derive(Debug)]
pub(crate) enum Ask {
    Shutdown,
    StepDown(Duration),
    /// The work has ended.
    WorkEnded,
    /// The work is ending, and some of its handles are left.
    WorkEnding,
    /// The deadline thread ended the term with this token.
    Expired(FencingToken),
    /// The candidates that announce themselves, as just read.
    Candidates(Vec<Standing>),
}

impl From<Ask> for Input {
    fn from(ask: Ask) -> Self {
        match ask {
            Ask::Shutdown => Self::Shutdown,
            Ask::StepDown(sit_out) => Self::StepDown(sit_out),
            Ask::WorkEnded => Self::WorkEnded,
            Ask::WorkEnding => Self::WorkEnding,
            Ask::Expired(token) => Self::Expired(token),
            Ask::Candidates(candidates) => Self::Candidates(candidates),
        }
    }
}

/// A new election.
pub(crate) struct Start {
    pub(crate) id: u64,
    pub(crate) settings: Settings,
    pub(crate) shared: Arc<Shared>,
}

/// Returns a number for an election that is unique in the process.
fn next_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
