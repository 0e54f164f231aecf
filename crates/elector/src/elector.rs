//! Runs an election.

use std::any::Any;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use kube::Client;
use tenure_core::{StopReason, Timing};
use tenure_lock::{Lock, LockKind, panic_text};

use crate::builder::{Builder, Settings};
use crate::callbacks::Callbacks;
use crate::candidate::{Candidate, Race};
use crate::clock::Clock;
use crate::handle::Handle;
use crate::hub::Hub;
use crate::shared::Shared;
use crate::tenure::Tenure;
use crate::term::Term;

/// A configured candidate of one election; see the crate for an example.
#[derive(Debug)]
#[must_use = "nothing happens until it is run or started"]
pub struct Elector {
    settings: Settings,
    shared: Arc<Shared>,
    place: Place,
}

/// The hub in which it runs: a given one, or its own.
struct Place(Result<Hub, (Option<Client>, Arc<dyn Clock>)>);

impl Elector {
    /// Configures an election with a Lease, which all current Kubernetes clients use.
    ///
    /// Use a dedicated [client](crate::client()). A client that retries failed requests, as kube's does by default,
    /// delays the next request of the election. A client that the program also uses for other requests shares its
    /// connections with them.
    pub fn lease(client: Client, namespace: &str, name: &str) -> Builder {
        Builder::open(client, LockKind::Leases, namespace, name)
    }

    /// Configures an election with a lock of the given kind.
    pub fn open(client: Client, kind: LockKind, namespace: &str, name: &str) -> Builder {
        Builder::open(client, kind, namespace, name)
    }

    /// Configures an election with a lock that the caller created. Without a [`client`](Builder::client) or a
    /// [`hub`](Builder::hub) it is polled, unless it is in this process.
    pub fn builder(lock: Arc<dyn Lock>) -> Builder {
        Builder::given(lock)
    }

    pub(crate) fn new(
        settings: Settings,
        shared: Arc<Shared>,
        place: Result<Hub, (Option<Client>, Arc<dyn Clock>)>,
    ) -> Self {
        Self {
            settings,
            shared,
            place: Place(place),
        }
    }

    /// Enables a seeded bug that the simulator must find.
    #[cfg(feature = "_mutants")]
    #[doc(hidden)]
    pub fn mutate(mut self, mutant: tenure_core::Mutant) -> Self {
        self.settings.mutant = Some(mutant);
        self
    }

    /// Returns a handle to query this election and to ask it to step down, from any task or thread.
    pub fn handle(&self) -> Handle {
        Handle::new(self.shared.clone())
    }

    /// Returns the durations of this election.
    pub fn timing(&self) -> &Timing {
        &self.settings.core.timing
    }

    /// Campaigns repeatedly until the [`Candidate`] is dropped. This is the lowest level of the API: the owner of the
    /// [`Candidate`] receives each [`Event`](crate::Event) and runs the work of each [`Term`].
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn start(mut self) -> Candidate {
        if let Some(keeper) = self.settings.keeper.take() {
            tokio::spawn(keeper.run());
        }
        let hub = match self.place.0 {
            Ok(hub) => hub,
            Err((client, clock)) => Hub::with_clock(client, clock),
        };
        hub.start(self.settings, &self.shared)
    }

    /// Like [`start`](Self::start), for one term.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn start_once(mut self) -> Candidate {
        self.settings.core.rejoin = false;
        self.start()
    }

    /// Runs one term: campaigns until this candidate leads, runs the work, and returns when the lock has been released.
    ///
    /// The work is a future. It runs in the task that polls this method, so it does not have to be `Send`. When the
    /// term ends ([`Tenure::cancelled`]), the work must end too. Work that is still running shortly before another
    /// process may lead is dropped.
    ///
    /// The work has ended only when every clone of its [`Tenure`] is dropped, too: threads and tasks that hold one are
    /// parts of the work. Until then the lock is not released and this future does not complete. The
    /// [`Overrun`](crate::Overrun) policy applies to a part that still runs when another process may lead. The output
    /// must therefore not contain a handle; it may contain an [observer](Tenure::observer).
    ///
    /// `shutdown` may be any future, such as `tokio::signal::ctrl_c()`.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the work and steps down in the background. The lock is released when the last
    /// [`Tenure`] of the work is dropped. The [`Overrun`](crate::Overrun) policy still applies.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime. A panic of the work is caught and returned.
    pub async fn run<T, W>(self, shutdown: impl Future, work: impl FnOnce(Tenure) -> W) -> Ended<T>
    where
        W: Future<Output = T>,
    {
        let shutdown = pin!(shutdown);
        let mut race = Race::new(self, false, shutdown);
        let mut ended = Ended::NeverLed;
        let mut work = Some(work);
        while let Some(term) = race.next_term(&mut |_| {}).await {
            let Some(work) = work.take() else { break };
            let tenure = term.tenure().clone();
            ended = race
                .during(&term, async { work(tenure).await }, &mut |_| {})
                .await;
        }
        ended
    }

    /// Campaigns repeatedly until `shutdown`: runs the work of each term, and campaigns again. Returns the number of
    /// terms.
    ///
    /// Work that returns or panics ends its term. This candidate then waits for a retry period, so that others can
    /// lead. Otherwise it behaves like [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub async fn campaign<W>(self, shutdown: impl Future, mut work: impl FnMut(Tenure) -> W) -> u64
    where
        W: Future<Output = ()>,
    {
        let shutdown = pin!(shutdown);
        let mut race = Race::new(self, true, shutdown);
        let mut terms = 0;
        while let Some(term) = race.next_term(&mut |_| {}).await {
            terms += 1;
            let tenure = term.tenure().clone();
            let work = async { work(tenure).await };
            race.during(&term, work, &mut |_| {}).await.log_panic(&term);
        }
        terms
    }

    /// Campaigns and leads one term with client-go's callbacks. Returns the reason for the end of the term, or nothing
    /// if there was none.
    ///
    /// As in client-go, `on_started_leading` may return before the term ends. The lock is kept.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub async fn run_callbacks(
        self,
        shutdown: impl Future,
        mut callbacks: Callbacks,
    ) -> Option<StopReason> {
        let shutdown = pin!(shutdown);
        let mut race = Race::new(self, false, shutdown);
        let mut reason = None;
        while let Some(term) = race
            .next_term(&mut |holder| callbacks.new_leader(holder))
            .await
        {
            let tenure = term.tenure().clone();
            let started = callbacks.started_leading(tenure.clone());
            let work = async move {
                started.await;
                tenure.cancelled().await;
            };
            let ended = race
                .during(&term, work, &mut |holder| callbacks.new_leader(holder))
                .await;
            let why = match &ended {
                Ended::Stopped { reason, .. } => reason.clone(),
                _ => StopReason::WorkEnded,
            };
            ended.log_panic(&term);
            // Call it before the term is dropped, because the drop releases the lock.
            callbacks.stopped_leading(&why);
            reason = Some(why);
        }
        reason
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_ok() {
            "shared hub"
        } else {
            "own hub"
        })
    }
}

/// Result of [`Elector::run`].
#[derive(Debug)]
pub enum Ended<T> {
    /// The candidate was shut down before it led.
    NeverLed,
    /// The work ended by itself.
    Completed(T),
    /// The term ended first.
    Stopped {
        /// Reason for the end of the term.
        reason: StopReason,
        /// Output of the cancelled work; nothing if it had to be dropped.
        output: Option<T>,
    },
    /// The work panicked.
    Panicked(Box<dyn Any + Send>),
}

impl<T> Ended<T> {
    /// Returns the output of the work, if it returned.
    pub fn output(self) -> Option<T> {
        match self {
            Self::Completed(output) => Some(output),
            Self::Stopped { output, .. } => output,
            Self::NeverLed | Self::Panicked(_) => None,
        }
    }

    fn log_panic(self, term: &Term) {
        if let Self::Panicked(payload) = self {
            tracing::error!(
                lock = term.tenure().lock(),
                panic = panic_text(&*payload),
                "work panicked"
            );
        }
    }
}
