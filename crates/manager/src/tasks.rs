//! Running runnables: each in its own task, panics caught, failures treated by policy.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::{Error, chain};
use crate::metrics::Metrics;
use crate::runnable::{Policy, Runnable};
use crate::scope::Scope;

/// An aborted task that does not end within this time blocks its thread.
const ABORT_TAKES: Duration = Duration::from_millis(250);

/// What all tasks of a manager share.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) metrics: Metrics,
    /// The first error ends the manager.
    pub(crate) fatal: mpsc::UnboundedSender<Error>,
    pub(crate) running: Running,
}

impl Context {
    pub(crate) fn fail(&self, error: Error) {
        // A manager that is gone needs no more reasons.
        let _ = self.fatal.send(error);
    }
}

/// The runnables of a scope, which may become more. Clones are the same list.
#[derive(Clone, Debug)]
pub(crate) struct Roster(Arc<watch::Sender<Vec<Runnable>>>);

impl Roster {
    pub(crate) fn new(runnables: Vec<Runnable>) -> Self {
        Self(Arc::new(watch::Sender::new(runnables)))
    }

    pub(crate) fn add(&self, runnable: Runnable) {
        self.0.send_modify(|all| all.push(runnable));
    }
}

/// The tasks of one scope.
#[derive(Debug)]
pub(crate) struct Tasks {
    set: JoinSet<()>,
    running: Running,
    /// Keeps the sender of `news` alive.
    _roster: Roster,
    news: watch::Receiver<Vec<Runnable>>,
    started: usize,
    scope: Scope,
    context: Context,
}

impl Tasks {
    /// Starts them all, in order.
    pub(crate) fn start(roster: &Roster, scope: Scope, context: &Context) -> Self {
        let mut tasks = Self {
            set: JoinSet::new(),
            // Names of this scope alone: a second instance may run in another.
            running: Running::default(),
            _roster: roster.clone(),
            news: roster.0.subscribe(),
            started: 0,
            scope,
            context: context.clone(),
        };
        tasks.start_new();
        tasks
    }

    fn start_new(&mut self) {
        let new = self.news.borrow_and_update()[self.started..].to_vec();
        self.started += new.len();
        for runnable in new {
            let scope = self.scope.renamed(runnable.shared_name());
            let here = self.running.enter(runnable.name());
            let everywhere = self.context.running.enter(runnable.name());
            let work = supervise(runnable, scope, self.context.clone());
            self.set.spawn(async move {
                work.await;
                drop((here, everywhere));
            });
        }
    }

    /// Starts what is added to the roster, until it is dropped.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn keep_up(&mut self) {
        loop {
            tokio::select! {
                // Those that have ended are forgotten.
                Some(_) = self.set.join_next() => {}
                Ok(()) = self.news.changed() => self.start_new(),
            }
        }
    }

    /// Waits until all have ended.
    pub(crate) async fn ended(&mut self) {
        while self.set.join_next().await.is_some() {}
    }

    /// Drops what still runs. False if something could not be dropped because it blocks its thread.
    pub(crate) async fn abort(&mut self) -> bool {
        self.set.abort_all();
        tokio::time::timeout(ABORT_TAKES, self.ended())
            .await
            .is_ok()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.running.names()
    }
}

/// Runs one runnable until it is done, given up, or told to stop.
async fn supervise(runnable: Runnable, scope: Scope, context: Context) {
    let name = runnable.name();
    let mut pause = None;
    loop {
        let since = Instant::now();
        // Also the call may panic, not only the future.
        let work = async { runnable.start(scope.clone()).await };
        let cause = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(Ok(())) => return,
            Ok(Err(cause)) => chain(&*cause),
            Err(panic) => {
                context.metrics.panicked(name);
                format!("panicked: {}", panic_text(&*panic))
            }
        };
        if scope.is_cancelled() {
            tracing::warn!(name, cause, "failed while it was stopping");
            return;
        }
        match runnable.policy() {
            Policy::Die => {
                tracing::error!(name, cause, "failed, ending the manager");
                let name = name.to_owned();
                context.fail(Error::Runnable { name, cause });
                return;
            }
            Policy::Ignore => {
                tracing::error!(name, cause, "failed, going on without it");
                return;
            }
            Policy::Restart(backoff) => {
                let last = pause.filter(|_| since.elapsed() < backoff.reset_after);
                let next = last.map_or(backoff.first, |last: Duration| last.saturating_mul(2));
                let next = next.min(backoff.most);
                pause = Some(next);
                tracing::error!(name, cause, ?next, "failed, starting it again");
                context.metrics.restarted(name);
                tokio::select! {
                    () = tokio::time::sleep(next) => {}
                    () = scope.cancelled() => return,
                }
            }
        }
    }
}

/// The instant after a time, however long that is.
pub(crate) fn after(time: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + YEARS)
}

/// The text of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The names of what runs at present.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running(Arc<Mutex<BTreeMap<String, usize>>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, name: &str) -> Entered {
        *self.lock().entry(name.to_owned()).or_default() += 1;
        Entered(self.clone(), name.to_owned())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }
}

/// Counts as running until dropped.
struct Entered(Running, String);

impl Drop for Entered {
    fn drop(&mut self) {
        let mut names = self.0.lock();
        if let Some(count) = names.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                names.remove(&self.1);
            }
        }
    }
}
