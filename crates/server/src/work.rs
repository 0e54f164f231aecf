//! The work queue that the built-in controllers share.
//!
//! A single object cannot keep a controller busy. An item whose work fails is retried with exponential backoff. An item
//! that events add repeatedly is processed at most [`BURST`] times in a row, and then [`PER_SECOND`] times a second.
//! This holds even if the controller itself causes the events.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_manager::Scope;
use tenure_manager::queue::{Item, ItemBackoff, Processing, WorkQueue};
use tokio::time::Instant;

/// The first and the maximum delay before an item is retried.
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(300);

/// Number of times that one item is processed without a pause, and the rate per second afterwards.
const BURST: f64 = 50.0;
const PER_SECOND: f64 = 5.0;

/// Number of tracked items above which idle items are dropped.
const SWEEP_AT: usize = 1_024;

/// A queue with limits for every item.
pub(crate) struct Work<T: Item> {
    queue: WorkQueue<T>,
    paces: Mutex<Paces<T>>,
}

struct Paces<T> {
    items: HashMap<T, Pace>,
    sweep_at: usize,
}

/// Remaining number of times that an item may be processed now.
#[derive(Clone, Copy)]
struct Pace {
    left: f64,
    since: Instant,
}

impl Pace {
    fn at(self, now: Instant) -> f64 {
        let rest = now.saturating_duration_since(self.since).as_secs_f64();
        (self.left + rest * PER_SECOND).min(BURST)
    }
}

impl<T: Item> Paces<T> {
    fn new() -> Self {
        Self {
            items: HashMap::new(),
            sweep_at: SWEEP_AT,
        }
    }

    /// Returns how long an item has to wait.
    fn pause(&self, item: &T, now: Instant) -> Duration {
        let left = self.items.get(item).map_or(BURST, |pace| pace.at(now));
        Duration::from_secs_f64((1.0 - left).max(0.0) / PER_SECOND)
    }

    /// Records that an item is processed.
    fn charge(&mut self, item: &T, now: Instant) {
        let left = self.items.get(item).map_or(BURST, |pace| pace.at(now)) - 1.0;
        self.items.insert(item.clone(), Pace { left, since: now });
        if self.items.len() >= self.sweep_at {
            self.items.retain(|_, pace| pace.at(now) < BURST);
            self.sweep_at = SWEEP_AT.max(2 * self.items.len());
        }
    }
}

impl<T: Item + Debug> Work<T> {
    pub(crate) fn new(name: &str) -> Self {
        let limiter = ItemBackoff::new(FIRST_RETRY, LAST_RETRY);
        Self {
            queue: WorkQueue::with_limiter(name, limiter),
            paces: Mutex::new(Paces::new()),
        }
    }

    /// Queues an item; delays it if it was processed too often.
    pub(crate) fn add(&self, item: T) {
        let pause = self.paces().pause(&item, Instant::now());
        if pause.is_zero() {
            self.queue.add(item);
        } else {
            self.queue.add_after(item, pause);
        }
    }

    /// Queues an item after a pause.
    pub(crate) fn add_after(&self, item: T, pause: Duration) {
        self.queue.add_after(item, pause);
    }

    /// Returns whether no item is ready to be processed.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the next item; `None` when the scope has ended. Several workers may call it.
    pub(crate) async fn next(&self, scope: &Scope) -> Option<Processing<T>> {
        let item = self.queue.get().await?;
        scope.check().ok()?;
        self.paces().charge(&item, Instant::now());
        Some(item)
    }

    /// Records the result of the work on an item. A failed item is retried.
    pub(crate) fn done<E: Display>(&self, item: &Processing<T>, result: Result<(), E>) {
        match result {
            Ok(()) => self.queue.forget(item),
            Err(error) => {
                tracing::debug!(object = ?**item, %error, "work failed; retrying later");
                self.queue.add_rate_limited((**item).clone());
            }
        }
    }

    fn paces(&self) -> MutexGuard<'_, Paces<T>> {
        self.paces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_that_adds_itself_is_slowed_down_and_others_are_not() {
        let mut paces = Paces::new();
        let began = Instant::now();
        let mut now = began;
        for _ in 0..150 {
            now += paces.pause(&1, now);
            paces.charge(&1, now);
        }
        let took = now - began;
        assert!(took >= Duration::from_secs(19), "{took:?}");
        assert!(took <= Duration::from_secs(21), "{took:?}");
        assert!(!paces.pause(&1, now).is_zero());
        assert!(paces.pause(&2, now).is_zero(), "another item");
    }

    #[test]
    fn idle_item_is_processed_immediately_again() {
        let mut paces = Paces::new();
        let began = Instant::now();
        (0..60).for_each(|_| paces.charge(&1, began));
        let now = began + Duration::from_secs(60);
        for _ in 0..40 {
            assert!(paces.pause(&1, now).is_zero());
            paces.charge(&1, now);
        }
    }

    #[test]
    fn idle_items_are_dropped() {
        let mut paces = Paces::new();
        let began = Instant::now();
        for item in 0..100_000 {
            paces.charge(&item, began + item * Duration::from_millis(10));
        }
        let kept = paces.items.len();
        assert!(kept <= 2 * SWEEP_AT, "{kept}");
    }
}
