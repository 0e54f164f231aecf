//! Rate limiters: the delay before the next attempt of an item.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use super::Item;

/// Decides the delay before the next attempt of an item.
pub trait RateLimiter<T>: Send + 'static {
    /// Returns the delay of the next attempt, and counts it.
    fn when(&mut self, item: &T, now: Instant) -> Duration;

    /// Resets the item after a success or after the last attempt.
    fn forget(&mut self, item: &T);

    /// Returns the number of attempts since the item was reset.
    fn retries(&self, item: &T) -> u32;
}

/// Returns client-go's `DefaultTypedControllerRateLimiter`: 5 ms doubling to 1,000 s per item, and 10 attempts a second
/// for all items together after a burst of 100.
pub fn default_limiter<T: Item>() -> MaxOf<ItemBackoff<T>, TokenBucket> {
    MaxOf(
        ItemBackoff::new(Duration::from_millis(5), Duration::from_secs(1_000)),
        TokenBucket::new(10.0, 100),
    )
}

/// Doubles the delay of an item with each attempt.
#[derive(Clone, Debug)]
pub struct ItemBackoff<T> {
    first: Duration,
    most: Duration,
    tries: HashMap<T, u32>,
}

impl<T> ItemBackoff<T> {
    /// Creates a limiter with the first and the longest delay.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            tries: HashMap::new(),
        }
    }
}

impl<T: Clone + Eq + Hash + Send + 'static> RateLimiter<T> for ItemBackoff<T> {
    fn when(&mut self, item: &T, _now: Instant) -> Duration {
        let tries = self.tries.entry(item.clone()).or_default();
        let factor = 1u32.checked_shl(*tries).unwrap_or(u32::MAX);
        *tries = tries.saturating_add(1);
        let delay = self.first.checked_mul(factor).unwrap_or(self.most);
        delay.min(self.most)
    }

    fn forget(&mut self, item: &T) {
        self.tries.remove(item);
    }

    fn retries(&self, item: &T) -> u32 {
        self.tries.get(item).copied().unwrap_or_default()
    }
}

/// Limits the rate of all items together, after a burst.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled: Option<Instant>,
}

impl TokenBucket {
    /// Creates a full bucket. With a rate of zero or less, items after the burst wait for a year.
    pub fn new(per_second: f64, burst: u32) -> Self {
        Self {
            per_second: per_second.max(f64::MIN_POSITIVE),
            burst: burst.into(),
            tokens: burst.into(),
            filled: None,
        }
    }
}

impl<T> RateLimiter<T> for TokenBucket {
    fn when(&mut self, _item: &T, now: Instant) -> Duration {
        let since = self.filled.replace(now).map_or(Duration::ZERO, |filled| {
            now.saturating_duration_since(filled)
        });
        let filled = self.tokens + since.as_secs_f64() * self.per_second;
        // The count may become negative; the deficit is the delay.
        self.tokens = filled.min(self.burst) - 1.0;
        let short = (-self.tokens / self.per_second).max(0.0);
        // A year is long enough, and can be added to an instant without overflow.
        Duration::try_from_secs_f64(short).map_or(YEAR, |delay| delay.min(YEAR))
    }

    fn forget(&mut self, _item: &T) {}

    fn retries(&self, _item: &T) -> u32 {
        0
    }
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Uses the longer delay of two limiters.
#[derive(Clone, Debug)]
pub struct MaxOf<A, B>(pub A, pub B);

impl<T, A: RateLimiter<T>, B: RateLimiter<T>> RateLimiter<T> for MaxOf<A, B> {
    fn when(&mut self, item: &T, now: Instant) -> Duration {
        self.0.when(item, now).max(self.1.when(item, now))
    }

    fn forget(&mut self, item: &T) {
        self.0.forget(item);
        self.1.forget(item);
    }

    fn retries(&self, item: &T) -> u32 {
        self.0.retries(item).max(self.1.retries(item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn an_items_delay_doubles_up_to_the_longest_and_is_its_own() {
        let mut limiter = ItemBackoff::new(MS, 1_000 * MS);
        let now = Instant::now();
        let delays: Vec<Duration> = (0..12).map(|_| limiter.when(&"a", now)).collect();
        let expected = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000, 1_000];
        assert_eq!(delays, expected.map(|n| n * MS));
        assert_eq!(limiter.when(&"b", now), MS);
        assert_eq!((limiter.retries(&"a"), limiter.retries(&"b")), (12, 1));
        limiter.forget(&"a");
        assert_eq!((limiter.retries(&"a"), limiter.when(&"a", now)), (0, MS));
        let delays: Vec<Duration> = (0..100).map(|_| limiter.when(&"a", now)).collect();
        assert_eq!(delays[99], 1_000 * MS, "no overflow");
    }

    #[tokio::test(start_paused = true)]
    async fn bucket_allows_its_burst_and_then_its_rate() {
        let mut bucket = TokenBucket::new(10.0, 2);
        let now = Instant::now();
        let mut delays = |now| RateLimiter::<&str>::when(&mut bucket, &"a", now);
        assert_eq!([delays(now), delays(now)], [Duration::ZERO; 2]);
        assert_eq!([delays(now), delays(now)], [100 * MS, 200 * MS]);
        let later = now + Duration::from_secs(10);
        assert_eq!(delays(later), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_without_a_rate_waits_long_and_does_not_panic() {
        let mut bucket = TokenBucket::new(0.0, 0);
        assert_eq!(
            RateLimiter::<u8>::when(&mut bucket, &1, Instant::now()),
            YEAR
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_longer_delay_counts() {
        let mut limiter = default_limiter();
        let now = Instant::now();
        let delays: Vec<Duration> = (0..101).map(|n| limiter.when(&n, now)).collect();
        assert_eq!((delays[0], delays[99]), (5 * MS, 5 * MS));
        assert_eq!(delays[100], 100 * MS, "the bucket is empty");
    }
}
