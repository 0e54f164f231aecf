//! The only file that reads clocks.
//!
//! Elections use a clock that includes suspend (`CLOCK_BOOTTIME`), because a lease expires on other machines while this
//! one is suspended. Timers of tokio do not include suspend. [`Clock::sleep_until`] may therefore return early, and
//! callers must check the clock again.
#![allow(
    clippy::disallowed_methods,
    reason = "this is the file that the others are sent to"
)]

use std::any::Any;
use std::fmt;
use std::time::Duration;

use tenure_core::{LocalTime, Now, WallTime};
use tenure_lock::BoxFuture;

/// Maximum time for which a tokio timer is trusted. After a resume, a machine notices an expired timer at most this
/// much later. (Terms end earlier: see [`deadline`](crate::deadline).)
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Source of the time for elections. Tests and simulations provide their own.
pub trait Clock: Any + fmt::Debug + Send + Sync {
    /// Reads both clocks.
    fn now(&self) -> Now;

    /// Returns at the instant or somewhat earlier, never much later. Cancel safe.
    fn sleep_until(&self, at: LocalTime) -> BoxFuture<'static, ()>;

    /// Returns whether time passes by itself, so that the [deadline thread](crate::deadline) can measure it. With a
    /// simulated clock, only the driver ends terms.
    fn is_real(&self) -> bool;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        use rustix::time::{ClockId, clock_gettime};
        // Other systems use the monotonic clock as the closest replacement. On macOS it includes sleep.
        #[cfg(target_os = "linux")]
        let local = clock_gettime(ClockId::Boottime);
        #[cfg(not(target_os = "linux"))]
        let local = clock_gettime(ClockId::Monotonic);
        let wall = clock_gettime(ClockId::Realtime);
        let seconds = u64::try_from(local.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(local.tv_nsec).unwrap_or_default();
        Now {
            local: LocalTime::from_nanos(seconds * 1_000_000_000 + nanos),
            wall: WallTime::from_micros(wall.tv_sec * 1_000_000 + wall.tv_nsec / 1_000),
        }
    }

    fn sleep_until(&self, at: LocalTime) -> BoxFuture<'static, ()> {
        let left = at.since(self.now().local);
        Box::pin(tokio::time::sleep(left.min(LONGEST_SLEEP)))
    }

    fn is_real(&self) -> bool {
        true
    }
}

/// Waits without a deadline, for example between two attempts. Suspend may make the wait longer.
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Tokio's own time, which tests pause and advance (`tokio::time::pause`), and which network simulators control. It
/// begins at a fixed instant, so runs are reproducible.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// Creates a clock whose local time begins now. The wall clock starts at 2020-09-13 12:26:40 UTC.
    pub fn new() -> Self {
        Self {
            origin: tokio::time::Instant::now(),
        }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Now {
        let elapsed = self.origin.elapsed();
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let micros = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX / 2);
        Now {
            // Start after the origin, so that instants one second in the past can be represented.
            local: LocalTime::from_nanos(nanos.saturating_add(1_000_000_000)),
            wall: WallTime::from_micros(1_600_000_000_000_000 + micros),
        }
    }

    fn sleep_until(&self, at: LocalTime) -> BoxFuture<'static, ()> {
        let left = at.since(self.now().local);
        Box::pin(tokio::time::sleep(left))
    }

    fn is_real(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_clock_never_goes_back_and_is_not_the_wall() {
        let (a, b) = (SystemClock.now(), SystemClock.now());
        assert!(a.local <= b.local);
        assert!(
            a.wall.as_micros() > 1_700_000_000_000_000,
            "after 2023: {a:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn tokios_clock_follows_paused_time() {
        let clock = TokioClock::new();
        let before = clock.now();
        clock
            .sleep_until(before.local + Duration::from_secs(7))
            .await;
        let after = clock.now();
        assert_eq!(after.local.since(before.local), Duration::from_secs(7));
        assert_eq!(
            after.wall.advanced_since(before.wall),
            Duration::from_secs(7)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn long_sleep_on_the_system_clock_returns_early() {
        let far = SystemClock.now().local + Duration::from_secs(3600);
        let before = tokio::time::Instant::now();
        SystemClock.sleep_until(far).await;
        assert!(before.elapsed() <= LONGEST_SLEEP + Duration::from_millis(1));
    }
}
