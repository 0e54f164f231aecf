//! The guard: the time during which this process may act as the leader.
//!
//! The guard starts when the first byte of the last write that is known to be applied was *sent*, because another
//! candidate may have observed that write immediately. It is computed from the clock at each query and never stored as
//! a flag.

use std::time::Duration;

use crate::time::{LocalTime, Now};

/// The right to act as the leader. It is valid until its length has passed since the write was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    sent: Now,
    length: Duration,
}

impl Guard {
    /// Creates a guard that starts when the write was sent.
    pub const fn new(sent: Now, length: Duration) -> Self {
        Self { sent, length }
    }

    /// Returns when the write was sent.
    pub const fn sent(&self) -> Now {
        self.sent
    }

    /// Returns the length of the guard.
    pub const fn length(&self) -> Duration {
        self.length
    }

    /// Returns the local instant at which the guard expires, unless a jump of the wall clock makes it expire earlier.
    pub fn until(&self) -> LocalTime {
        self.sent.local + self.length
    }

    /// Returns the remaining time. The elapsed time is the larger one of the values measured by the two clocks. A
    /// forward jump of the wall clock can therefore only end a term early, and setting the wall clock back has no
    /// effect.
    pub fn left(&self, now: Now) -> Duration {
        let elapsed = now
            .local
            .since(self.sent.local)
            .max(now.wall.advanced_since(self.sent.wall));
        self.length.saturating_sub(elapsed)
    }

    /// Returns whether the guard is valid now.
    pub fn holds(&self, now: Now) -> bool {
        !self.left(now).is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::WallTime;

    fn at(local_ms: u64, wall_ms: i64) -> Now {
        Now {
            local: LocalTime::from_nanos(local_ms * 1_000_000),
            wall: WallTime::from_micros(wall_ms * 1_000),
        }
    }

    #[test]
    fn guard_expires_exactly_at_its_length() {
        let guard = Guard::new(at(1_000, 0), Duration::from_secs(10));
        assert!(guard.holds(at(10_999, 9_999)));
        assert!(!guard.holds(at(11_000, 10_000)));
        assert_eq!(guard.until(), at(11_000, 0).local);
    }

    #[test]
    fn a_forward_wall_jump_ends_it_early_and_a_backward_one_does_nothing() {
        let guard = Guard::new(at(0, 100_000), Duration::from_secs(10));
        assert!(!guard.holds(at(1, 110_000)));
        assert!(guard.holds(at(9_999, -5_000_000)));
        assert!(!guard.holds(at(10_000, -5_000_000)));
    }
}
