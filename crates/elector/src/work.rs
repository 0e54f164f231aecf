//! Parts of the work of a term that run by themselves: tasks and blocking threads.
//!
//! Each holds a handle of the term, so the term is not joined before the last of them has ended (S4). Tasks
//! are dropped shortly before another process may lead; threads cannot be, and meet the
//! [`Overrun`](crate::Overrun) policy.

use std::pin::pin;

use tokio::task::{AbortHandle, JoinError, JoinHandle, JoinSet};

use crate::tenure::Tenure;

impl Tenure {
    /// Starts a task that belongs to the work of this term: the lock is not released before it has ended.
    ///
    /// The task should end when the term has [ended](Self::cancelled). A task that has not is dropped
    /// shortly before another process may lead, and returns nothing. Nothing runs, and nothing is returned,
    /// if the work of the term has already ended.
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
    /// Outside a tokio runtime.
    pub fn spawn<W>(&self, work: W) -> JoinHandle<Option<W::Output>>
    where
        W: Future + Send + 'static,
        W::Output: Send + 'static,
    {
        tokio::spawn(joined(self.hold(), work))
    }

    /// Starts a blocking call that belongs to the work of this term, on a thread for such calls: the lock
    /// is not released before it has returned.
    ///
    /// The call has to ask [`is_leading`](Self::is_leading) by itself, and to return when the term has ended:
    /// nothing can stop it. If it has not returned when another process may lead, the
    /// [`Overrun`](crate::Overrun) policy ends the process. Nothing is called, and nothing is returned, if
    /// the work of the term has already ended.
    ///
    /// # Panics
    /// Outside a tokio runtime.
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
    // Declared after the handle, so that it is dropped before it.
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

/// Tasks that belong to the work of one term, as in tokio's [`JoinSet`]. Dropping the set aborts its tasks;
/// calls that block go on, and the term waits for them.
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
    /// An observer: the tasks hold the term, an empty set does not.
    tenure: Tenure,
    set: JoinSet<Option<T>>,
}

impl<T: Send + 'static> TaskSet<T> {
    /// An empty set for the work of this term.
    pub fn new(tenure: &Tenure) -> Self {
        let (tenure, set) = (tenure.observer(), JoinSet::new());
        Self { tenure, set }
    }

    /// As [`Tenure::spawn`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn spawn(&mut self, work: impl Future<Output = T> + Send + 'static) -> AbortHandle {
        self.set.spawn(joined(self.tenure.hold(), work))
    }

    /// As [`Tenure::spawn_blocking`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn spawn_blocking(&mut self, work: impl FnOnce() -> T + Send + 'static) -> AbortHandle {
        let tenure = self.tenure.hold();
        self.set.spawn_blocking(move || blocking(tenure, work))
    }

    /// Waits for the next task to end: what it returned, nothing if it was dropped, or why it failed.
    /// `None` if the set is empty.
    ///
    /// # Cancel safety
    /// No result is lost when the future is dropped.
    pub async fn join_next(&mut self) -> Option<Result<Option<T>, JoinError>> {
        self.set.join_next().await
    }

    /// Waits for all tasks to end, in the order in which they do.
    pub async fn join_all(&mut self) -> Vec<Result<Option<T>, JoinError>> {
        let mut results = Vec::with_capacity(self.set.len());
        while let Some(result) = self.set.join_next().await {
            results.push(result);
        }
        results
    }

    /// The number of tasks whose results have not been taken.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Whether no task is left.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }
}
