//! A controller with a warm standby: every replica has its cache and knows what there is to do, its
//! workers run on the leader. A new leader begins to reconcile at once, however many objects there
//! are.
//!
//! What a standby has to do when it wins is its whole cache, and what went meanwhile. The queue itself
//! is filled when it wins, so its depth is that of a leader, and a standby does not collect the names
//! of all objects that ever were.

use std::collections::VecDeque;
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
use tokio::time::Instant;

use crate::cache::{Cache, Cached, Source};
use crate::error::chain;
use crate::metrics::Metrics;
use crate::queue::{WorkQueue, default_limiter};
use crate::runnable::{Cause, Runnable};
use crate::scope::Scope;
use crate::tasks::panic_text;

/// So many of the objects that went are remembered by a standby, the last ones. A leader deals with what
/// goes while it leads; the next one needs those that went around the change.
const REMEMBERED: usize = 10_000;

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
/// all objects, because another leader may have left some half done, and with the last 10,000 that went
/// while this replica stood by.
///
/// controller-runtime's warm replicas fill their queue while they stand by. Here a standby keeps what the
/// queue would hold, and puts it in when it wins, without asking the API server: the same keys are
/// reconciled, as soon (see the benchmarks), but `workqueue_depth` of a standby stays 0, so an alert on it is
/// about leaders, and a standby does not grow by the name of each object that ever was.
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
        let standby = Standby::new(self.cache.reader());
        let cache = self.cache.on_change({
            let (queue, standby) = (queue.clone(), standby.clone());
            move |key| {
                if let Some(key) = standby.pass(key) {
                    queue.add(key);
                }
            }
        });
        let workers = self.workers;
        let worker = Worker {
            name: self.name.as_str().into(),
            queue,
            standby,
            reader: cache.reader(),
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

/// Whether this replica leads, and what went while it did not. Clones are the same.
struct Standby<K: Cached> {
    reader: Store<K>,
    /// Nothing while it leads.
    gone: Arc<Mutex<Option<VecDeque<ObjectRef<K>>>>>,
}

impl<K: Cached> Standby<K> {
    fn new(reader: Store<K>) -> Self {
        let gone = Arc::new(Mutex::new(Some(VecDeque::new())));
        Self { reader, gone }
    }

    /// Notes a change that the cache knows; gives it back if it is to be queued now.
    fn pass(&self, key: ObjectRef<K>) -> Option<ObjectRef<K>> {
        let mut gone = self.lock();
        let Some(gone) = &mut *gone else {
            return Some(key);
        };
        // What is there will be found in the cache.
        if self.reader.get(&key).is_none() {
            if gone.len() == REMEMBERED {
                gone.pop_front();
            }
            gone.push_back(key);
        }
        None
    }

    /// Leads until the guard is dropped; with everything that there is to do.
    fn lead(&self) -> (Vec<ObjectRef<K>>, Leads<K>) {
        // First, so that a change is either passed on or found below.
        let gone = self.lock().take().unwrap_or_default();
        let there = self.reader.state();
        let there = there.iter().map(|object| ObjectRef::from_obj(&**object));
        (gone.into_iter().chain(there).collect(), Leads(self.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<ObjectRef<K>>>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Cached> Clone for Standby<K> {
    fn clone(&self) -> Self {
        Self {
            reader: self.reader.clone(),
            gone: self.gone.clone(),
        }
    }
}

/// Dropped at the end of a term, however that comes.
struct Leads<K: Cached>(Standby<K>);

impl<K: Cached> Drop for Leads<K> {
    fn drop(&mut self) {
        *self.0.lock() = Some(VecDeque::new());
    }
}

/// A reconciliation that is counted as under way, also if it is dropped.
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
    queue: WorkQueue<ObjectRef<K>>,
    standby: Standby<K>,
    reader: Store<K>,
    reconcile: Arc<Reconcile<K>>,
    metrics: Metrics,
}

impl<K: Cached> Clone for Worker<K> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            queue: self.queue.clone(),
            standby: self.standby.clone(),
            reader: self.reader.clone(),
            reconcile: self.reconcile.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

impl<K: Cached> Worker<K> {
    /// Runs the workers of one term.
    async fn all(self, workers: usize, scope: Scope) {
        let (all, _leads) = self.standby.lead();
        all.into_iter().for_each(|key| self.queue.add(key));
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
            let active = Active::new(self.metrics.reconciling(&self.name));
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
            drop(active);
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
                    let (controller, error) = (&*self.name, chain(&*error));
                    tracing::warn!(controller, object = %*item, error, "reconciliation failed");
                    self.queue.add_rate_limited(item.clone());
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
    fn a_standby_remembers_the_last_that_went_and_no_more() {
        let (reader, mut writer) = reflector::store();
        let mut there = ConfigMap::default();
        there.metadata.name = Some("there".to_owned());
        there.metadata.namespace = Some("default".to_owned());
        writer.apply_watcher_event(&Event::Apply(there));
        let standby = Standby::new(reader);
        assert_eq!(standby.pass(key("there")), None);
        for n in 0..=REMEMBERED {
            assert_eq!(standby.pass(key(&format!("gone-{n}"))), None);
        }
        let (all, leads) = standby.lead();
        assert_eq!(all.len(), REMEMBERED + 1);
        assert_eq!(all.first(), Some(&key("gone-1")), "the first was forgotten");
        assert_eq!(all.last(), Some(&key("there")));
        let now = standby.pass(key("x"));
        assert_eq!(now, Some(key("x")), "a leader queues at once");
        drop(leads);
        assert_eq!(standby.pass(key("y")), None);
        let (all, _leads) = standby.lead();
        assert_eq!(all, [key("y"), key("there")]);
    }
}
