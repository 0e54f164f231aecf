//! Parts of the work of a term that run independently: tasks and blocking threads.
//!
//! Each part holds a handle of the term, so the term is not joined before the last part has ended (S4). Tasks are
//! dropped shortly before another process may lead. Threads cannot be dropped, so the [`Overrun`](crate::Overrun)
//! policy applies to them.

use std::pin::pin;

use tokio::task::{AbortHandle, JoinError, JoinHandle, JoinSet};

use crate::tenure::Tenure;

impl Tenure {
    /// Starts a task that belongs to the work of this term. The lock is not released before the task has ended.
    ///
    /// The task should end when the term has [ended](Self::cancelled). A task that still runs shortly before another
    /// process may lead is dropped, and returns `None`. If the work of the term has already ended, the task does
    /// not run, and the handle returns `None`.
    ///
    /// ```
    /// # async fn work(tenure: tenure::Tenure) {
    /// let watcher = tenure.spawn({
    ///     let tenure = tenure.clone();
    ///     async move { tenure.cancelled().await }
    /// });
    /// # let _ = watcher.await;
    /// # }
    /// ```
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn spawn<W>(&self, work: W) -> JoinHandle<Option<W::Output>>
    where
        W: Future + Send + 'static,
        W::Output: Send + 'static,
    {
        tokio::spawn(joined(self.hold(), work))
    }

    /// Starts a blocking call that belongs to the work of this term, on a thread for blocking calls. The lock is not
    /// released before the call has returned.
    ///
    /// The call must check [`is_leading`](Self::is_leading) and return when the term has ended, because nothing can
    /// stop it. If it has not returned when another process may lead, the [`Overrun`](crate::Overrun) policy applies.
    /// If the work of the term has already ended, the call is not made, and `None` is returned.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn spawn_blocking<T>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<Option<T>>
    where
        T: Send + 'static,
    {
        let tenure = self.hold();
        tokio::task::spawn_blocking(move || blocking(tenure, work))
    }
}

async fn joined<W: Future>(tenure: Option<Tenure>, work: W) -> Option<W::Output> {
    let tenure = tenure?;
    // `work` is declared after the handle, so that it is dropped before the handle.
    let mut work = pin!(work);
    tokio::select! {
        biased;
        output = &mut work => Some(output),
        () = tenure.drop_due() => {
            let lock = tenure.lock();
            tracing::warn!(lock, "a task of the work did not stop before its deadline; dropping it");
            None
        }
    }
}

fn blocking<T>(tenure: Option<Tenure>, work: impl FnOnce() -> T) -> Option<T> {
    let _tenure = tenure?;
    Some(work())
}

/// Tasks that belong to the work of one term, as in tokio's [`JoinSet`]. Dropping the set aborts its tasks. Blocking
/// calls continue, and the term waits for them.
///
/// ```
/// # async fn work(tenure: tenure::Tenure) {
/// let mut tasks = tenure::TaskSet::new(&tenure);
/// for shard in 0..8 {
///     let tenure = tenure.clone();
///     tasks.spawn(async move {
///         while tenure.is_leading() {
///             // one step of the shard
/// #           let _ = shard;
/// #           break;
///         }
///     });
/// }
/// tasks.join_all().await;
/// # }
/// ```
#[derive(Debug)]
pub struct TaskSet<T> {
    /// An observer, because the tasks hold the term and an empty set does not.
    tenure: Tenure,
    set: JoinSet<Option<T>>,
}

impl<T: Send + 'static> TaskSet<T> {
    /// Creates an empty set for the work of this term.
    pub fn new(tenure: &Tenure) -> Self {
        let (tenure, set) = (tenure.observer(), JoinSet::new());
        Self { tenure, set }
    }

    /// Starts a task like [`Tenure::spawn`].
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn spawn(&mut self, work: impl Future<Output = T> + Send + 'static) -> AbortHandle {
        self.set.spawn(joined(self.tenure.hold(), work))
    }

    /// Starts a blocking call like [`Tenure::spawn_blocking`].
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub fn spawn_blocking(&mut self, work: impl FnOnce() -> T + Send + 'static) -> AbortHandle {
        let tenure = self.tenure.hold();
        self.set.spawn_blocking(move || blocking(tenure, work))
    }

    /// Waits for the next task to end. Returns its result, which is `Ok(None)` for a dropped task, or the reason why it
    /// failed. Returns `None` if the set is empty.
    ///
    /// # Cancel safety
    /// No result is lost when the future is dropped.
    pub async fn join_next(&mut self) -> Option<Result<Option<T>, JoinError>> {
        self.set.join_next().await
    }

    /// Waits for all tasks, and returns their results in the order in which they ended.
    pub async fn join_all(&mut self) -> Vec<Result<Option<T>, JoinError>> {
        let mut results = Vec::with_capacity(self.set.len());
        while let Some(result) = self.set.join_next().await {
            results.push(result);
        }
        results
    }

    /// Returns the number of tasks whose results have not been taken.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Returns whether no task is left.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }
}
