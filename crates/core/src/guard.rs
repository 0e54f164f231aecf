//! The guard: when may this process say "I lead".
//!
//! It is counted from the moment the first byte of the last write known to be applied was *sent*,
//! because a challenger may have seen that write at once. It is computed from the clock at each
//! question; it is never a stored flag.

use std::time::Duration;

use crate::time::{LocalTime, Now};

/// The right to act as leader, good until its length has passed since the write was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    sent: Now,
    length: Duration,
}

impl Guard {
    /// A guard from the moment the write was sent.
    pub const fn new(sent: Now, length: Duration) -> Self {
        Self { sent, length }
    }

    /// When the write was sent.
    pub const fn sent(&self) -> Now {
        self.sent
    }

    /// How long the guard is.
    pub const fn length(&self) -> Duration {
        self.length
    }

    /// The local instant at which it ends, unless a wall-clock jump ends it earlier.
    pub fn until(&self) -> LocalTime {
        self.sent.local + self.length
    }

    /// Time left. Elapsed time is the larger of what the two clocks say: a forward jump of the wall
    /// clock can only end a term early, and setting it back changes nothing.
    pub fn left(&self, now: Now) -> Duration {
        let elapsed = now
            .local
            .since(self.sent.local)
            .max(now.wall.advanced_since(self.sent.wall));
        self.length.saturating_sub(elapsed)
    }

    /// Whether it is good now.
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
    fn it_ends_exactly_at_its_length() {
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
