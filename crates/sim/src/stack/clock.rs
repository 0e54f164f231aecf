//! A node's clock on top of tokio's paused time.

use std::time::Duration;

use tenure::clock::Clock;
use tenure_core::{LocalTime, Now, WallTime};
use tenure_lock::BoxFuture;
use tokio::time::Instant;

/// Runs a little too fast or too slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skewed {
    origin: Instant,
    /// How much local time passes per second of real time.
    rate: f64,
}

impl Skewed {
    pub(super) fn new(rate: f64) -> Self {
        let origin = Instant::now();
        Self { origin, rate }
    }
}

impl Clock for Skewed {
    fn now(&self) -> Now {
        let local = Duration::from_secs(1) + self.origin.elapsed().mul_f64(self.rate);
        let micros = i64::try_from(local.as_micros()).unwrap_or(i64::MAX / 2);
        Now {
            local: LocalTime::default() + local,
            wall: WallTime::from_micros(1_600_000_000_000_000 + micros),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "tokio's time is the simulated time here"
    )]
    fn sleep_until(&self, at: LocalTime) -> BoxFuture<'static, ()> {
        let left = at.since(self.now().local);
        Box::pin(tokio::time::sleep(left.div_f64(self.rate)))
    }

    fn is_real(&self) -> bool {
        false
    }
}
