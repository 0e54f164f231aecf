//! A controller with a warm standby: its cache and its queue are filled on every replica, its
//! workers run on the leader. A new leader begins to reconcile at once, however many objects there
//! are.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use kube::Api;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use tokio::time::Instant;

use crate::cache::{Cache, Cached, Source};
use crate::metrics::Metrics;
use crate::queue::{WorkQueue, default_limiter};
use crate::runnable::{Cause, Runnable};
use crate::scope::Scope;
use crate::tasks::panic_text;

/// What a reconciliation gets.
#[derive(Debug)]
pub struct Request<K: Cached> {
    /// Which object.
    pub key: ObjectRef<K>,
    /// As the cache knows it; nothing if it is gone.
    pub object: Option<Arc<K>>,
    /// The scope of the leader: ask it before effects.
    pub scope: Scope,
}

/// What comes after a reconciliation that worked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// Nothing, until the object changes.
    #[default]
    Change,
    /// The same again after a time, or when the object changes.
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
/// An error, and a panic, is tried again with the delays of [`default_limiter`]. Each term begins with
/// all objects, because another leader may have left some half done.
pub struct Warm<K: Cached> {
    name: String,
    workers: usize,
    cache: Cache<K>,
    reconcile: Arc<Reconcile<K>>,
}

impl<K: Cached> Warm<K> {
    /// Reconciles what the API and the selectors of the configuration see.
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

    /// How many reconciliations run at a time, of different objects; one by default.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// For looking things up; good for as long as the manager runs.
    pub fn reader(&self) -> Store<K> {
        self.cache.reader()
    }

    /// The part that runs everywhere, and the part that runs on the leader.
    pub(crate) fn split(self, metrics: &Metrics) -> (Source, Runnable) {
        let queue = WorkQueue::with_metrics(&self.name, default_limiter(), &metrics.queues);
        metrics.workers(&self.name, self.workers);
        let cache = self.cache.on_change({
            let queue = queue.clone();
            move |key| queue.add(key)
        });
        let (reader, workers) = (cache.reader(), self.workers);
        let worker = Worker {
            name: self.name.as_str().into(),
            queue,
            reader,
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

struct Worker<K: Cached> {
    name: Arc<str>,
    queue: WorkQueue<ObjectRef<K>>,
    reader: Store<K>,
    reconcile: Arc<Reconcile<K>>,
    metrics: Metrics,
}

impl<K: Cached> Clone for Worker<K> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            queue: self.queue.clone(),
            reader: self.reader.clone(),
            reconcile: self.reconcile.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

impl<K: Cached> Worker<K> {
    /// Runs the workers of one term.
    async fn all(self, workers: usize, scope: Scope) {
        for object in self.reader.state() {
            self.queue.add(ObjectRef::from_obj(&*object));
        }
        // All in this task: when it has ended, or was dropped, nothing of the term runs any more.
        let workers = (0..workers).map(|_| self.clone().one(scope.clone()));
        futures_util::future::join_all(workers).await;
    }

    async fn one(self, scope: Scope) {
        loop {
            let item = tokio::select! {
                biased;
                () = scope.cancelled() => return,
                item = self.queue.get() => item,
            };
            let Some(item) = item else { return };
            let active = self.metrics.reconciling(&self.name);
            active.inc();
            let since = Instant::now();
            let request = Request {
                key: item.clone(),
                object: self.reader.get(&item),
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
            active.dec();
            let result = match result {
                Ok(Next::Change) => {
                    self.queue.forget(&item);
                    "success"
                }
                Ok(Next::After(delay)) => {
                    self.queue.forget(&item);
                    self.queue.add_after(item.clone(), delay);
                    "requeue_after"
                }
                Err(error) => {
                    tracing::warn!(controller = &*self.name, object = %*item, %error, "reconciliation failed");
                    self.queue.add_rate_limited(item.clone());
                    "error"
                }
            };
            self.metrics.reconciled(&self.name, result, since.elapsed());
        }
    }
}
