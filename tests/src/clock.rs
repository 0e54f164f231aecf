//! The host's clock, for the harness. Election code has its own; see `clippy.toml`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An instant, in nanoseconds since the epoch: the `t` of event lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub i64);

impl Nanos {
    /// Returns the time since `earlier`; zero if it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0).try_into().unwrap_or(0))
    }
}

impl std::ops::Add<Duration> for Nanos {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)),
        )
    }
}

/// Returns the current instant. All processes of a test read this same clock.
#[expect(
    clippy::disallowed_methods,
    reason = "event lines contain the wall time, which all processes of a host share"
)]
pub fn now() -> Nanos {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Nanos(i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX))
}

/// Calls a function repeatedly until it returns a value or the time limit is reached.
pub fn poll<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = now() + limit;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
