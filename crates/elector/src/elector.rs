//! Running an election.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::FutureExt as _;
use kube::Client;
use tenure_core::{StopReason, Timing};
use tenure_lock::{Lock, LockKind};

use crate::builder::{Builder, Settings};
use crate::callbacks::Callbacks;
use crate::clock::Clock;
use crate::guard::Tenure;
use crate::handle::{Candidate, Event, Handle, Shared, Term};
use crate::hub::Hub;

/// A configured candidate of one election; see the crate for an example.
#[derive(Debug)]
#[must_use = "nothing happens until it is run or started"]
pub struct Elector {
    settings: Settings,
    shared: Arc<Shared>,
    place: Place,
}

/// Where it runs: in a given hub, or in its own.
struct Place(Result<Hub, (Option<Client>, Arc<dyn Clock>)>);

impl Elector {
    /// Configures an election by a Lease, which is what every present client of Kubernetes uses.
    ///
    /// Best with a [client](crate::client()) of its own: one that repeats failed requests by itself, as
    /// kube's does by default, delays what the election would do next, and shares its connections with
    /// whatever else the program asks.
    pub fn lease(client: Client, namespace: &str, name: &str) -> Builder {
        Builder::open(client, LockKind::Leases, namespace, name)
    }

    /// Configures an election by a lock of some kind.
    pub fn open(client: Client, kind: LockKind, namespace: &str, name: &str) -> Builder {
        Builder::open(client, kind, namespace, name)
    }

    /// Configures an election by a lock that was made elsewhere. Without a
    /// [`client`](Builder::client) or a [`hub`](Builder::hub) it is polled, unless it lives in this
    /// process.
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

    /// Seeds a bug, for the simulator to find.
    #[cfg(feature = "mutants")]
    #[doc(hidden)]
    pub fn mutate(mut self, mutant: tenure_core::Mutant) -> Self {
        self.settings.mutant = Some(mutant);
        self
    }

    /// Looks at this election and asks it to step down, from anywhere.
    pub fn handle(&self) -> Handle {
        Handle::new(self.shared.clone())
    }

    /// The durations of this election.
    pub fn timing(&self) -> &Timing {
        &self.settings.core.timing
    }

    /// Starts to campaign, for ever: after each term again. The lowest level: whoever holds the
    /// [`Candidate`] hears each [`Event`], and does the work of each [`Term`] as it likes.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(self) -> Candidate {
        let hub = match self.place.0 {
            Ok(hub) => hub,
            Err((client, clock)) => Hub::with_clock(client, clock),
        };
        hub.start(self.settings, &self.shared)
    }

    /// Like [`start`](Self::start), for one term.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start_once(mut self) -> Candidate {
        self.settings.core.rejoin = false;
        self.start()
    }

    /// Campaigns until this candidate leads, does the work, and returns when the lock has been given
    /// back: one term.
    ///
    /// The work is a future. It runs in the task that runs this one, so it needs not be `Send`. When
    /// the term ends ([`Tenure::cancelled`]) it has to end too; what has not ended shortly before
    /// another process may lead is dropped.
    ///
    /// The work has ended when every clone of its [`Tenure`] is gone, too: threads and tasks that hold one
    /// are parts of the work. Until then the lock is not released and this future does not complete. A
    /// part that is left when another process may lead meets the [`Overrun`](crate::Overrun) policy. So the
    /// output must not contain a handle; an [observer](Tenure::observer) may be kept.
    ///
    /// `shutdown` may be any future, such as `tokio::signal::ctrl_c()`.
    ///
    /// # Cancel safety
    /// Dropping this future drops the work and steps down in the background. The lock is released when
    /// the last [`Tenure`] of the work is gone; the [`Overrun`](crate::Overrun) policy still holds.
    ///
    /// # Panics
    /// Outside a tokio runtime. A panic of the work is caught and returned.
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

    /// Campaigns for ever: does the work of each term, and campaigns again, until `shutdown`. Returns
    /// the number of terms.
    ///
    /// Work that returns or panics ends its term; this candidate then lets others have their turn for
    /// a retry period. The rest is as for [`run`](Self::run).
    ///
    /// # Panics
    /// Outside a tokio runtime.
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

    /// Campaigns and leads one term with client-go's callbacks. Returns why the term ended, or
    /// nothing if there was none.
    ///
    /// As in client-go, `on_started_leading` may return before the term ends; the lock is kept.
    ///
    /// # Panics
    /// Outside a tokio runtime.
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
            // Before the term is dropped, and with it the lock given back.
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

/// How [`Elector::run`] ended.
#[derive(Debug)]
pub enum Ended<T> {
    /// It was shut down before it led.
    NeverLed,
    /// The work ended by itself.
    Completed(T),
    /// The term ended first.
    Stopped {
        /// Why.
        reason: StopReason,
        /// What the work returned when it was told to stop; nothing if it had to be dropped.
        output: Option<T>,
    },
    /// The work panicked.
    Panicked(Box<dyn Any + Send>),
}

impl<T> Ended<T> {
    /// What the work returned, if it did.
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
                lock = term.lock(),
                panic = message(&*payload),
                "work panicked"
            );
        }
    }
}

/// The text of a panic.
fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// A candidacy against a shutdown.
struct Race<'a, S> {
    candidate: Candidate,
    shutdown: Pin<&'a mut S>,
    asked: bool,
    over: bool,
}

impl<'a, S: Future> Race<'a, S> {
    fn new(elector: Elector, rejoin: bool, shutdown: Pin<&'a mut S>) -> Self {
        let candidate = if rejoin {
            elector.start()
        } else {
            elector.start_once()
        };
        Self {
            candidate,
            shutdown,
            asked: false,
            over: false,
        }
    }

    /// The next event; a shutdown is passed on meanwhile.
    async fn next(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                biased;
                event = self.candidate.next() => return event,
                _ = self.shutdown.as_mut(), if !self.asked => {
                    self.asked = true;
                    self.candidate.shutdown();
                }
            }
        }
    }

    /// Waits until this candidate leads; nothing if it never will.
    async fn next_term(&mut self, new_leader: &mut impl FnMut(&str)) -> Option<Term> {
        while !self.over {
            match self.next().await {
                Some(Event::Lead(term)) => return Some(term),
                Some(Event::NewLeader(holder)) => new_leader(&holder),
                Some(Event::Finished) | None => self.over = true,
                Some(_) => {}
            }
        }
        None
    }

    /// Does the work of a term.
    async fn during<W: Future>(
        &mut self,
        term: &Term,
        work: W,
        new_leader: &mut impl FnMut(&str),
    ) -> Ended<W::Output> {
        let mut work = pin!(AssertUnwindSafe(work).catch_unwind());
        let mut drop_due = pin!(term.drop_due());
        loop {
            tokio::select! {
                biased;
                event = self.next(), if !self.over => match event {
                    Some(Event::NewLeader(holder)) => new_leader(&holder),
                    Some(Event::Finished) | None => self.over = true,
                    Some(_) => {}
                },
                result = &mut work => {
                    return match (result, term.reason()) {
                        (Err(payload), _) => Ended::Panicked(payload),
                        (Ok(output), None) => Ended::Completed(output),
                        (Ok(output), Some(reason)) => Ended::Stopped {
                            reason,
                            output: Some(output),
                        },
                    };
                }
                () = &mut drop_due => {
                    tracing::warn!(lock = term.lock(), "work did not stop in time, dropping it");
                    let reason = term.reason().unwrap_or(StopReason::GuardExpired);
                    return Ended::Stopped { reason, output: None };
                }
            }
        }
    }
}
