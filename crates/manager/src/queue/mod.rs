//! A rate-limited work queue with client-go's semantics. kube-rs's scheduler does not cover items that are not objects,
//! custom retry rules, and the `workqueue_*` metrics.
//!
//! Invariants:
//! - An item is in the queue at most once.
//! - Two workers never process the same item at the same time.
//! - An item that is added while it is processed is processed again.
//!
//! ```
//! use tenure_manager::queue::WorkQueue;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let queue = WorkQueue::new("claims");
//! queue.add("default/data".to_owned());
//! queue.add("default/data".to_owned()); // the same item: still one
//! queue.shut_down(); // what is queued is still handed out
//! while let Some(item) = queue.get().await {
//!     match provision(&item).await {
//!         Ok(()) => queue.forget(&item),
//!         Err(_) => queue.add_rate_limited(item.clone()),
//!     }
//! } // dropping the item says that it is done
//! # }
//! # async fn provision(_: &str) -> Result<(), ()> { Ok(()) }
//! ```

mod limiter;
mod metrics;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use limiter::{ItemBackoff, MaxOf, RateLimiter, TokenBucket, default_limiter};
pub use metrics::QueueMetrics;

use metrics::{Recorder, Unfinished};

use crate::tasks::after;

/// An item of a queue. It is its own key, so queue names and not objects.
pub trait Item: Clone + Eq + Hash + Send + 'static {}

impl<T: Clone + Eq + Hash + Send + 'static> Item for T {}

/// A work queue. Clones share the same queue and are cheap.
pub struct WorkQueue<T: Item> {
    shared: Arc<Shared<T>>,
}

impl<T: Item> WorkQueue<T> {
    /// Creates a queue with the default limiter of client-go's controllers.
    pub fn new(name: &str) -> Self {
        Self::with_limiter(name, default_limiter())
    }

    /// Creates a queue with a custom limiter for [`add_rate_limited`](Self::add_rate_limited).
    pub fn with_limiter(name: &str, limiter: impl RateLimiter<T>) -> Self {
        Self::build(name, limiter, None)
    }

    /// Creates a queue that reports to these metrics under its name.
    pub fn with_metrics(name: &str, limiter: impl RateLimiter<T>, metrics: &QueueMetrics) -> Self {
        Self::build(name, limiter, Some(metrics))
    }

    fn build(name: &str, limiter: impl RateLimiter<T>, metrics: Option<&QueueMetrics>) -> Self {
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                dirty: HashMap::new(),
                processing: HashMap::new(),
                waiting: BTreeSet::new(),
                due: HashMap::new(),
                numbers: HashMap::new(),
                next_number: 0,
                shutting_down: false,
                limiter: Box::new(limiter),
                recorder: metrics.map(|metrics| metrics.recorder(name)),
            }),
            news: Notify::new(),
            idle: Notify::new(),
        });
        if let Some(metrics) = metrics {
            let weak = Arc::downgrade(&shared);
            metrics.watch(name, move || {
                weak.upgrade().map(|shared| shared.lock().unfinished())
            });
        }
        Self { shared }
    }

    /// Queues the item unless it is already queued. An item that is being processed is queued again afterwards. Does nothing
    /// if the queue is shutting down.
    pub fn add(&self, item: T) {
        self.shared.lock().add(item);
        self.shared.news.notify_one();
    }

    /// Queues the item after a delay. If it already has a delay, the earlier time counts.
    pub fn add_after(&self, item: T, delay: Duration) {
        let mut state = self.shared.lock();
        if state.shutting_down {
            return;
        }
        if let Some(recorder) = &state.recorder {
            recorder.retried();
        }
        state.add_at(item, after(delay));
        drop(state);
        self.shared.news.notify_one();
    }

    /// Queues the item after the delay of the limiter.
    pub fn add_rate_limited(&self, item: T) {
        let delay = self.shared.lock().limiter.when(&item, Instant::now());
        self.add_after(item, delay);
    }

    /// Resets the backoff of the item. Does not remove it from the queue.
    pub fn forget(&self, item: &T) {
        self.shared.lock().limiter.forget(item);
    }

    /// Returns the number of retries of this item since it was forgotten.
    pub fn retries(&self, item: &T) -> u32 {
        self.shared.lock().limiter.retries(item)
    }

    /// Waits for the next item. Returns `None` when the queue is shut down and empty.
    ///
    /// # Cancel safety
    /// No item is lost when the future is dropped.
    pub async fn get(&self) -> Option<Processing<T>> {
        loop {
            let mut news = std::pin::pin!(self.shared.news.notified());
            news.as_mut().enable();
            let next_due = {
                let mut state = self.shared.lock();
                state.promote(Instant::now());
                if let Some(item) = state.take() {
                    // Wakes another worker, because its sleep may be too long now.
                    if !state.queue.is_empty() || !state.waiting.is_empty() {
                        self.shared.news.notify_one();
                    }
                    let queue = self.clone();
                    return Some(Processing { item, queue });
                }
                if state.shutting_down {
                    self.shared.news.notify_waiters();
                    return None;
                }
                state.waiting.first().map(|(at, _)| *at)
            };
            match next_due {
                None => news.await,
                Some(at) => tokio::select! {
                    () = news => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    /// Takes the next item if one is ready.
    pub fn try_get(&self) -> Option<Processing<T>> {
        let mut state = self.shared.lock();
        state.promote(Instant::now());
        let item = state.take()?;
        let queue = self.clone();
        Some(Processing { item, queue })
    }

    /// Returns the number of queued items, without delayed ones.
    pub fn len(&self) -> usize {
        let mut state = self.shared.lock();
        state.promote(Instant::now());
        state.queue.len()
    }

    /// Returns whether no item is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes these items from the queue unless they are being processed. Takes linear time.
    pub(crate) fn withdraw(&self, items: &HashSet<T>) {
        let mut state = self.shared.lock();
        let State { queue, dirty, .. } = &mut *state;
        queue.retain(|item| !items.contains(item) || dirty.remove(item).is_none());
        state.show_depth();
    }

    /// Resets the queueing time of all queued items, because no worker could take them before.
    pub(crate) fn count_from_now(&self) {
        let now = Instant::now();
        self.shared
            .lock()
            .dirty
            .values_mut()
            .for_each(|since| *since = now);
    }

    /// Rejects further items. Queued items are still returned; delayed items are dropped.
    pub fn shut_down(&self) {
        let mut state = self.shared.lock();
        state.shutting_down = true;
        state.waiting.clear();
        state.due.clear();
        state.numbers.clear();
        drop(state);
        self.shared.news.notify_waiters();
        self.shared.news.notify_one();
        self.shared.idle.notify_waiters();
    }

    /// Like [`shut_down`](Self::shut_down), and waits until the queue is empty and no item is being processed.
    pub async fn shut_down_with_drain(&self) {
        self.shut_down();
        loop {
            let mut idle = std::pin::pin!(self.shared.idle.notified());
            idle.as_mut().enable();
            {
                let state = self.shared.lock();
                if state.processing.is_empty() && state.queue.is_empty() {
                    return;
                }
            }
            idle.await;
        }
    }

    /// Returns whether the queue rejects further items.
    pub fn is_shutting_down(&self) -> bool {
        self.shared.lock().shutting_down
    }
}

impl<T: Item> Clone for WorkQueue<T> {
    fn clone(&self) -> Self {
        let shared = self.shared.clone();
        Self { shared }
    }
}

impl<T: Item> fmt::Debug for WorkQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("WorkQueue")
            .field("name", &self.shared.name)
            .field("queued", &state.queue.len())
            .field("processing", &state.processing.len())
            .field("waiting", &state.waiting.len())
            .finish_non_exhaustive()
    }
}

/// An item that is being processed. No other worker gets it during that time. Dropping it is client-go's `Done`, so a
/// panic in a worker does not block the item.
#[must_use = "dropping it says that the work is done"]
pub struct Processing<T: Item> {
    item: T,
    queue: WorkQueue<T>,
}

impl<T: Item> Deref for Processing<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T: Item> Drop for Processing<T> {
    fn drop(&mut self) {
        let mut state = self.queue.shared.lock();
        let again = state.done(&self.item);
        let idle = state.processing.is_empty();
        drop(state);
        if again {
            self.queue.shared.news.notify_one();
        }
        if idle {
            self.queue.shared.idle.notify_waiters();
        }
    }
}

impl<T: Item + fmt::Debug> fmt::Debug for Processing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Processing").field(&self.item).finish()
    }
}

struct Shared<T> {
    name: String,
    state: Mutex<State<T>>,
    /// Notified when there may be an item, an earlier delay, or a shutdown.
    news: Notify,
    /// Notified when no item is being processed.
    idle: Notify,
}

impl<T: Item> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct State<T> {
    /// In the order of processing; every item is in `dirty` and not in `processing`.
    queue: VecDeque<T>,
    /// Items that need processing, and since when.
    dirty: HashMap<T, Instant>,
    /// Items that are being processed, and since when.
    processing: HashMap<T, Instant>,
    /// Delayed items, by time. Numbers identify the items, because the type of an item may have no order.
    waiting: BTreeSet<(Instant, u64)>,
    due: HashMap<T, (Instant, u64)>,
    numbers: HashMap<u64, T>,
    next_number: u64,
    shutting_down: bool,
    limiter: Box<dyn RateLimiter<T>>,
    recorder: Option<Recorder>,
}

impl<T: Item> State<T> {
    fn add(&mut self, item: T) {
        if self.shutting_down || self.dirty.contains_key(&item) {
            return;
        }
        if let Some(recorder) = &self.recorder {
            recorder.added();
        }
        self.dirty.insert(item.clone(), Instant::now());
        if !self.processing.contains_key(&item) {
            self.queue.push_back(item);
            self.show_depth();
        }
    }

    fn add_at(&mut self, item: T, at: Instant) {
        if at <= Instant::now() {
            self.add(item);
            return;
        }
        match self.due.get(&item) {
            Some((present, _)) if *present <= at => return,
            Some(later) => {
                self.waiting.remove(later);
                self.numbers.remove(&later.1);
            }
            None => {}
        }
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.insert((at, number));
        self.numbers.insert(number, item.clone());
        self.due.insert(item, (at, number));
    }

    /// Moves due items into the queue.
    fn promote(&mut self, now: Instant) {
        while let Some((at, number)) = self.waiting.first().copied() {
            if at > now {
                break;
            }
            self.waiting.pop_first();
            if let Some(item) = self.numbers.remove(&number) {
                self.due.remove(&item);
                self.add(item);
            }
        }
    }

    fn take(&mut self) -> Option<T> {
        let item = self.queue.pop_front()?;
        let now = Instant::now();
        let since = self.dirty.remove(&item).unwrap_or(now);
        if let Some(recorder) = &self.recorder {
            recorder.taken(now - since);
        }
        self.processing.insert(item.clone(), now);
        self.show_depth();
        Some(item)
    }

    /// Ends the processing of an item. Returns whether the item was queued again.
    fn done(&mut self, item: &T) -> bool {
        if let (Some(since), Some(recorder)) = (self.processing.remove(item), &self.recorder) {
            recorder.finished(since.elapsed());
        }
        let again = self.dirty.contains_key(item);
        if again {
            self.queue.push_back(item.clone());
            self.show_depth();
        }
        again
    }

    fn show_depth(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.depth(self.queue.len());
        }
    }

    fn unfinished(&self) -> Unfinished {
        let running = || self.processing.values().map(Instant::elapsed);
        Unfinished {
            total: running().sum(),
            longest: running().max().unwrap_or_default(),
        }
    }
}
