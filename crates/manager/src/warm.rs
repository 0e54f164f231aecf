//! A controller with a warm standby. Every replica has the cache and the queue; the workers run on the leader. A new
//! leader reconciles immediately, regardless of the number of objects.
//!
//! Invariant: the queue of a standby holds all objects of its cache and recently deleted objects.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use kube::Api;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use prometheus_client::metrics::gauge::Gauge;
use tenure_lock::panic_text;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cache::{Cache, Cached, Source};
use crate::error::chain;
use crate::metrics::Metrics;
use crate::queue::{WorkQueue, default_limiter};
use crate::runnable::{Cause, Runnable};
use crate::scope::Scope;

/// Number of deleted objects that the queue of a standby keeps at least; it keeps at most twice as many. The leader
/// handles deletions during its term, so the next leader needs only those around the hand-over.
const REMEMBERED: usize = 10_000;

/// The argument of a reconciliation.
#[derive(Debug)]
pub struct Request<K: Cached> {
    /// The object's reference.
    pub key: ObjectRef<K>,
    /// The object in the cache; `None` if it is deleted.
    pub object: Option<Arc<K>>,
    /// The scope of the leader. Check it before effects.
    pub scope: Scope,
}

/// The next step after a successful reconciliation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// Nothing until the object changes.
    #[default]
    Change,
    /// Another reconciliation after this time, or when the object changes.
    After(Duration),
}

type Reconcile<K> = dyn Fn(Request<K>) -> BoxFuture<'static, Result<Next, Cause>> + Send + Sync;

/// A controller of one kind for [`Builder::warm`](crate::Builder::warm).
///
/// ```no_run
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use tenure_manager::{Next, Warm};
///
/// # fn example(maps: kube::Api<ConfigMap>) {
/// let _ = Warm::new("maps", maps, Default::default(), |request| async move {
///     request.scope.check()?;
///     println!("{} is there: {}", request.key, request.object.is_some());
///     Ok::<_, tenure_manager::Cause>(Next::Change)
/// })
/// .workers(5);
/// # }
/// ```
///
/// Errors and panics are retried with the delays of [`default_limiter`]. Each term begins with all objects, because
/// another leader may have left some unfinished. It also begins with the last 10,000 objects that were deleted while
/// this replica was a standby. They are in the queue before the election is won. Therefore `workqueue_depth` of a
/// standby counts the objects that wait for its term, as with controller-runtime's warm replicas.
/// `workqueue_queue_duration_seconds` counts from the beginning of the term.
pub struct Warm<K: Cached> {
    name: String,
    workers: usize,
    cache: Cache<K>,
    reconcile: Arc<Reconcile<K>>,
}

impl<K: Cached> Warm<K> {
    /// Creates a controller for the objects that the API and the selectors of the configuration return.
    pub fn new<F, W, E>(name: &str, api: Api<K>, config: watcher::Config, reconcile: F) -> Self
    where
        F: Fn(Request<K>) -> W + Send + Sync + 'static,
        W: Future<Output = Result<Next, E>> + Send + 'static,
        E: Into<Cause>,
    {
        let reconcile = move |request| {
            let work = reconcile(request);
            async move { work.await.map_err(Into::into) }.boxed()
        };
        Self {
            name: name.to_owned(),
            workers: 1,
            cache: Cache::new(name, api, config),
            reconcile: Arc::new(reconcile),
        }
    }

    /// Sets the number of concurrent reconciliations of different objects [default: 1].
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Returns a reader of the cache that works as long as the manager runs.
    pub fn reader(&self) -> Store<K> {
        self.cache.reader()
    }

    /// Splits the controller into the part for every replica and the part for the leader.
    pub(crate) fn split(self, metrics: &Metrics) -> (Source, Runnable) {
        let queue = WorkQueue::with_metrics(&self.name, default_limiter(), &metrics.queues);
        metrics.controller(&self.name, self.workers);
        let standby = Standby::new(self.cache.reader(), queue.clone());
        let cache = self.cache.on_change(
            {
                let standby = standby.clone();
                move |key| standby.note(key)
            },
            standby.again.clone(),
        );
        let workers = self.workers;
        let worker = Worker {
            name: self.name.as_str().into(),
            standby,
            reconcile: self.reconcile,
            metrics: metrics.clone(),
        };
        let runnable = Runnable::new(&self.name, move |scope| {
            let worker = worker.clone();
            async move { worker.all(workers, scope).await }
        });
        (cache.into_source(), runnable)
    }
}

impl<K: Cached> fmt::Debug for Warm<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warm")
            .field("name", &self.name)
            .field("workers", &self.workers)
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

/// Fills the queue, also while this replica does not lead. Clones share the same state.
struct Standby<K: Cached> {
    reader: Store<K>,
    queue: WorkQueue<ObjectRef<K>>,
    /// Objects that were deleted while this replica does not lead; `None` while it leads.
    gone: Arc<Mutex<Option<VecDeque<ObjectRef<K>>>>>,
    /// Notified at the end of a term, so that the cache queues all objects for the next one. The release of the lock does
    /// not wait for that.
    again: Arc<Notify>,
}

impl<K: Cached> Standby<K> {
    fn new(reader: Store<K>, queue: WorkQueue<ObjectRef<K>>) -> Self {
        Self {
            reader,
            queue,
            gone: Arc::new(Mutex::new(Some(VecDeque::new()))),
            again: Arc::default(),
        }
    }

    /// Queues an added, changed or deleted object.
    fn note(&self, key: ObjectRef<K>) {
        let mut gone = self.lock();
        self.queue.add(key.clone());
        let Some(gone) = &mut *gone else { return };
        if self.reader.get(&key).is_some() {
            return;
        }
        gone.push_back(key);
        // Removes half of them together, because each removal walks through the queue.
        if gone.len() > 2 * REMEMBERED {
            let mut old: HashSet<_> = gone.drain(..REMEMBERED).collect();
            old.retain(|key| self.reader.get(key).is_none());
            gone.iter().for_each(|key| {
                old.remove(key);
            });
            self.queue.withdraw(&old);
        }
    }

    /// Marks this replica as leader until the guard is dropped.
    fn lead(&self) -> Leads<K> {
        *self.lock() = None;
        self.queue.count_from_now();
        Leads(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<ObjectRef<K>>>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Cached> Clone for Standby<K> {
    fn clone(&self) -> Self {
        Self {
            reader: self.reader.clone(),
            queue: self.queue.clone(),
            gone: self.gone.clone(),
            again: self.again.clone(),
        }
    }
}

/// Ends the term on drop.
struct Leads<K: Cached>(Standby<K>);

impl<K: Cached> Drop for Leads<K> {
    fn drop(&mut self) {
        *self.0.lock() = Some(VecDeque::new());
        self.0.again.notify_one();
    }
}

/// Counts a running reconciliation until dropped.
struct Active(Gauge);

impl Active {
    fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct Worker<K: Cached> {
    name: Arc<str>,
    standby: Standby<K>,
    reconcile: Arc<Reconcile<K>>,
    metrics: Metrics,
}

impl<K: Cached> Clone for Worker<K> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            standby: self.standby.clone(),
            reconcile: self.reconcile.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

impl<K: Cached> Worker<K> {
    /// Runs the workers of one term.
    async fn all(self, workers: usize, scope: Scope) {
        let _leads = self.standby.lead();
        // All workers run in this task, so nothing of the term runs after the task has ended or was dropped.
        let workers = (0..workers).map(|_| self.clone().one(scope.clone()));
        futures_util::future::join_all(workers).await;
    }

    async fn one(self, scope: Scope) {
        let Standby { queue, reader, .. } = &self.standby;
        loop {
            let item = tokio::select! {
                biased;
                () = scope.cancelled() => return,
                item = queue.get() => item,
            };
            let Some(item) = item else { return };
            let active = Active::new(self.metrics.reconciling(&self.name));
            let since = Instant::now();
            let request = Request {
                key: item.clone(),
                object: reader.get(&item),
                scope: scope.clone(),
            };
            let work = async { (self.reconcile)(request).await };
            let result = match AssertUnwindSafe(work).catch_unwind().await {
                Ok(result) => result,
                Err(panic) => {
                    self.metrics.reconcile_panicked(&self.name);
                    Err(format!("panicked: {}", panic_text(&*panic)).into())
                }
            };
            drop(active);
            let result = match result {
                Ok(Next::Change) => {
                    queue.forget(&item);
                    "success"
                }
                Ok(Next::After(delay)) => {
                    queue.forget(&item);
                    queue.add_after(item.clone(), delay);
                    "requeue_after"
                }
                Err(error) => {
                    let (controller, error) = (&*self.name, chain(&*error));
                    tracing::warn!(controller, object = %*item, error, "reconciliation failed");
                    queue.add_rate_limited(item.clone());
                    "error"
                }
            };
            self.metrics.reconciled(&self.name, result, since.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;

    fn key(name: &str) -> ObjectRef<ConfigMap> {
        ObjectRef::new(name).within("default")
    }

    #[test]
    fn standby_queues_existing_and_recently_deleted_objects_only() {
        let (reader, mut writer) = reflector::store();
        let mut there = ConfigMap::default();
        there.metadata.name = Some("there".to_owned());
        there.metadata.namespace = Some("default".to_owned());
        writer.apply_watcher_event(&Event::Apply(there));
        let queue = WorkQueue::new("maps");
        let standby = Standby::new(reader, queue.clone());
        let gone = |n: usize| key(&format!("gone-{n}"));
        standby.note(gone(0));
        standby.note(key("there"));
        (0..2 * REMEMBERED).for_each(|n| standby.note(gone(n)));
        // The first object was deleted twice and takes two places, so the queue dropped one object fewer.
        assert_eq!(queue.len(), REMEMBERED + 2);
        let first = queue.try_get().map(|item| item.clone());
        assert_eq!(first, Some(key("there")));
        let leads = standby.lead();
        (0..3 * REMEMBERED).for_each(|n| standby.note(gone(n)));
        assert_eq!(queue.len(), 3 * REMEMBERED, "a leader loses nothing");
        drop(leads);
        assert!(standby.again.notified().now_or_never().is_some());
    }
}
