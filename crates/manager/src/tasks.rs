//! Runs runnables: each in its own task, with panics caught and failures handled by policy.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tenure_lock::panic_text;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::{Error, chain};
use crate::metrics::Metrics;
use crate::runnable::{Policy, Runnable};
use crate::scope::Scope;

/// An aborted task that does not end within this time blocks its thread.
pub(crate) const ABORT_TAKES: Duration = Duration::from_millis(250);

/// State shared by all tasks of a manager.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) metrics: Metrics,
    /// The first error sent here ends the manager.
    pub(crate) fatal: mpsc::UnboundedSender<Error>,
    pub(crate) running: Running,
}

impl Context {
    pub(crate) fn fail(&self, error: Error) {
        // The receiver is gone if the manager has ended. Later errors are dropped.
        let _ = self.fatal.send(error);
    }
}

/// The runnables of a scope; more can be added. Clones are the same list.
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
    /// Names in this scope only, because another scope may run a second instance.
    running: Running,
    /// Keeps the sender of `news` alive.
    _roster: Roster,
    news: watch::Receiver<Vec<Runnable>>,
    started: usize,
    /// The scope for new runnables; nothing once new runnables are no longer started.
    scope: Option<Scope>,
    context: Context,
}

impl Tasks {
    /// Starts all runnables, in order.
    pub(crate) fn start(
        roster: &Roster,
        scope: Scope,
        running: &Running,
        context: &Context,
    ) -> Self {
        let mut tasks = Self {
            set: JoinSet::new(),
            running: running.clone(),
            _roster: roster.clone(),
            news: roster.0.subscribe(),
            started: 0,
            scope: Some(scope),
            context: context.clone(),
        };
        tasks.start_new();
        tasks
    }

    fn start_new(&mut self) {
        let Some(scope) = &self.scope else { return };
        let new = self.news.borrow_and_update()[self.started..].to_vec();
        self.started += new.len();
        for runnable in new {
            let here = self.running.enter(runnable.name());
            let everywhere = self.context.running.enter(runnable.name());
            // The runnable counts as running while any clone of its scope exists.
            let scope = scope.renamed(runnable.shared_name(), [here, everywhere]);
            let work = supervise(runnable, scope.clone(), self.context.clone());
            self.set.spawn(async move {
                work.await;
                drop(scope);
            });
        }
    }

    /// Stops starting runnables, and drops the scope for new ones, because that scope would keep the term alive.
    pub(crate) fn close(&mut self) {
        self.scope = None;
    }

    /// Starts runnables that are added to the roster, until it is dropped.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn keep_up(&mut self) {
        loop {
            tokio::select! {
                // Removes tasks that have ended.
                Some(_) = self.set.join_next() => {}
                Ok(()) = self.news.changed() => self.start_new(),
            }
        }
    }

    /// Waits until all tasks have ended.
    pub(crate) async fn ended(&mut self) {
        while self.set.join_next().await.is_some() {}
    }

    /// Drops the tasks that still run. Returns false if a task could not be dropped because it blocks its thread.
    pub(crate) async fn abort(&mut self) -> bool {
        self.abort_all();
        tokio::time::timeout(ABORT_TAKES, self.ended())
            .await
            .is_ok()
    }

    /// Aborts the tasks that still run. A task that blocks its thread continues.
    pub(crate) fn abort_all(&mut self) {
        self.set.abort_all();
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.running.names()
    }
}

/// Runs one runnable until it completes, is given up, or is stopped.
async fn supervise(runnable: Runnable, scope: Scope, context: Context) {
    let name = runnable.name();
    let mut pause = None;
    loop {
        let since = Instant::now();
        // The call itself may panic too, not only the future.
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
            tracing::warn!(name, cause, "a runnable failed while stopping");
            return;
        }
        match runnable.policy() {
            Policy::Die => {
                tracing::error!(name, cause, "a runnable failed; stopping the manager");
                let name = name.to_owned();
                context.fail(Error::Runnable { name, cause });
                return;
            }
            Policy::Ignore => {
                tracing::error!(name, cause, "a runnable failed; continuing without it");
                return;
            }
            Policy::Restart(backoff) => {
                let last = pause.filter(|_| since.elapsed() < backoff.reset_after);
                let next = last.map_or(backoff.first, |last: Duration| last.saturating_mul(2));
                let next = next.min(backoff.most);
                pause = Some(next);
                tracing::error!(name, cause, ?next, "a runnable failed; restarting it");
                context.metrics.restarted(name);
                tokio::select! {
                    () = tokio::time::sleep(next) => {}
                    () = scope.cancelled() => return,
                }
            }
        }
    }
}

/// Returns the instant after a duration of any length.
pub(crate) fn after(time: Duration) -> Instant {
    const YEARS: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + YEARS)
}

/// The names of the running work.
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

/// Counts as running until it is dropped.
pub(crate) struct Entered(Running, String);

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runnable::Backoff;
    use tokio_util::sync::CancellationToken;

    const BACKOFF: Backoff = Backoff {
        first: Duration::from_secs(1),
        most: Duration::from_secs(4),
        reset_after: Duration::from_secs(10),
    };

    /// Runs a runnable whose n-th run fails after this many seconds. Returns the seconds at which it was started.
    async fn starts(runs: &'static [u64]) -> Vec<u64> {
        let began = Instant::now();
        let starts = Arc::new(Mutex::new(Vec::new()));
        let cancel = CancellationToken::new();
        let failing = Runnable::new("nodes", {
            let (starts, cancel) = (starts.clone(), cancel.clone());
            move |_| {
                let mut starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
                let lasts = runs.get(starts.len()).copied();
                starts.push(began.elapsed().as_secs());
                let cancel = cancel.clone();
                async move {
                    match lasts {
                        Some(lasts) => tokio::time::sleep(Duration::from_secs(lasts)).await,
                        None => cancel.cancel(),
                    }
                    Err::<(), _>("no disk")
                }
            }
        });
        let (fatal, mut fatals) = mpsc::unbounded_channel();
        let context = Context {
            metrics: Metrics::default(),
            fatal,
            running: Running::default(),
        };
        let scope = Scope::new("nodes".into(), cancel, None, None);
        supervise(failing.restart(BACKOFF), scope, context).await;
        assert!(fatals.recv().await.is_none(), "the manager goes on");
        let starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
        starts.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        assert_eq!(starts(&[0; 5]).await, [0, 1, 3, 7, 11, 15]);
        // A run that is too short does not reset the delays.
        assert_eq!(starts(&[0, 0, 9]).await, [0, 1, 3, 16]);
    }

    #[tokio::test(start_paused = true)]
    async fn long_run_resets_the_delay_of_restarts() {
        assert_eq!(starts(&[0, 0, 0, 10, 0]).await, [0, 1, 3, 7, 18, 20]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_with_the_scope() {
        let began = Instant::now();
        let cancel = CancellationToken::new();
        let scope = Scope::new("nodes".into(), cancel.clone(), None, None);
        let failing = Runnable::new("nodes", |_| async { Err::<(), _>("no disk") });
        let failing = failing.restart(Backoff {
            first: Duration::MAX,
            ..BACKOFF
        });
        let (fatal, _fatals) = mpsc::unbounded_channel();
        let context = Context {
            metrics: Metrics::default(),
            fatal,
            running: Running::default(),
        };
        let supervised = tokio::spawn(supervise(failing, scope, context));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(
            !supervised.is_finished(),
            "the longest pause is four seconds"
        );
        cancel.cancel();
        assert!(supervised.await.is_ok());
        assert_eq!(began.elapsed().as_secs(), 2);
    }
}
