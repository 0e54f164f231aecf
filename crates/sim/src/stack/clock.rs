//! The clock of a node on top of tokio's paused time, and whether the node runs at all.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::clock::Clock;
use tenure_core::{LocalTime, Now, WallTime};
use tenure_lock::BoxFuture;
use tokio::time::Instant;

/// A clock with a rate error whose wall time can be set. Its timers can be stopped.
#[derive(Clone, Debug)]
pub(super) struct NodeClock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    origin: Instant,
    /// Local time at the start.
    first: Duration,
    /// Local time per second of real time.
    rate: f64,
    wall_micros: AtomicI64,
    gate: Mutex<Gate>,
}

#[derive(Clone, Copy, Debug)]
struct Gate {
    paused_until: Instant,
    dead_since: Option<Instant>,
    /// Number of queries at one instant.
    asked: (Instant, u32),
}

/// Limit of queries at one instant. No simulated time passes during computation, so a driver that queries the clock
/// this often without waiting is in an endless loop.
const BUSY: u32 = 100_000;

impl NodeClock {
    pub(super) fn new(first: Duration, rate: f64) -> Self {
        let origin = Instant::now();
        Self(Arc::new(Inner {
            origin,
            first,
            rate,
            wall_micros: AtomicI64::new(1_600_000_000_000_000),
            gate: Mutex::new(Gate {
                paused_until: origin,
                dead_since: None,
                asked: (origin, 0),
            }),
        }))
    }

    /// Simulates SIGSTOP, followed by SIGCONT later: time continues, but the process does not.
    pub(super) fn pause(&self, length: Duration) {
        let mut gate = self.gate();
        gate.paused_until = gate.paused_until.max(Instant::now() + length);
    }

    /// Simulates SIGCONT.
    pub(super) fn go_on(&self) {
        self.gate().paused_until = Instant::now();
    }

    /// Simulates kill -9.
    pub(super) fn kill(&self) {
        self.gate().dead_since.get_or_insert(Instant::now());
    }

    pub(super) fn is_dead(&self) -> bool {
        self.gate().dead_since.is_some()
    }

    pub(super) fn is_stopped(&self) -> bool {
        let gate = self.gate();
        gate.dead_since.is_some() || gate.paused_until > Instant::now()
    }

    /// Sets the wall clock.
    pub(super) fn jump(&self, micros: i64) {
        self.0.wall_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns when the process can run; never if it is dead.
    pub(super) async fn runs(&self) {
        loop {
            let gate = *self.gate();
            if gate.dead_since.is_some() {
                std::future::pending::<()>().await;
            }
            let left = gate.paused_until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // Check again regularly, because it may resume earlier or be paused for longer.
            pause(left.min(Duration::from_secs(1))).await;
        }
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.0.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// Returns the instant that the clock shows.
    fn look(&mut self) -> Instant {
        let now = Instant::now();
        let before = if self.asked.0 == now { self.asked.1 } else { 0 };
        self.asked = (now, before + 1);
        assert!(before < BUSY, "a driver runs in a busy loop");
        self.dead_since.unwrap_or(now)
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Now {
        let inner = &self.0;
        let at = self.gate().look();
        let passed = (at - inner.origin).mul_f64(inner.rate);
        let micros = i64::try_from(passed.as_micros()).unwrap_or(i64::MAX / 2);
        Now {
            local: LocalTime::default() + inner.first + passed,
            wall: WallTime::from_micros(inner.wall_micros.load(Ordering::Relaxed) + micros),
        }
    }

    fn sleep_until(&self, at: LocalTime) -> BoxFuture<'static, ()> {
        let left = at.since(self.now().local).div_f64(self.0.rate);
        let clock = self.clone();
        Box::pin(async move {
            pause(left).await;
            clock.runs().await;
        })
    }

    fn is_real(&self) -> bool {
        false
    }
}

/// Waits in simulated time.
#[expect(
    clippy::disallowed_methods,
    reason = "tokio's time is the simulated time here"
)]
pub(super) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}
