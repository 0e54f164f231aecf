//! Two kinds of time that must not be mixed.
//!
//! [`LocalTime`] measures elapsed time on this machine, including suspend. [`WallTime`] is the time in records. They
//! are different types, so comparing a record's time with a local deadline does not compile.

use std::ops::Add;
use std::time::Duration;

/// An instant of this machine's suspend-counting monotonic clock, in nanoseconds since an arbitrary
/// origin (`CLOCK_BOOTTIME` on Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalTime(u64);

impl LocalTime {
    /// Creates an instant from nanoseconds since the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` until this instant; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for LocalTime {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// A wall-clock instant in microseconds since the Unix epoch: the resolution of a Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(i64);

impl WallTime {
    /// Creates an instant from microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns this instant truncated to whole seconds, the resolution of annotation locks.
    pub const fn whole_seconds(self) -> Self {
        Self(self.0.div_euclid(1_000_000) * 1_000_000)
    }

    /// Returns how far the wall clock has advanced since `earlier`; zero if it was set back.
    pub fn advanced_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// Values of the two clocks, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Now {
    /// Used for every decision.
    pub local: LocalTime,
    /// Used for the times in records, and to end terms early when the wall clock jumps forward.
    pub wall: WallTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_set_back_has_not_advanced() {
        let noon = WallTime::from_micros(5_000_000);
        assert_eq!(
            WallTime::from_micros(4_000_000).advanced_since(noon),
            Duration::ZERO
        );
        assert_eq!(
            WallTime::from_micros(7_000_000).advanced_since(noon),
            Duration::from_secs(2)
        );
    }

    #[test]
    fn whole_seconds_round_down_also_before_the_epoch() {
        assert_eq!(
            WallTime::from_micros(1_999_999).whole_seconds().as_micros(),
            1_000_000
        );
        assert_eq!(
            WallTime::from_micros(-1).whole_seconds().as_micros(),
            -1_000_000
        );
    }

    #[test]
    fn local_time_saturates() {
        let end = LocalTime::from_nanos(u64::MAX) + Duration::from_secs(1);
        assert_eq!(end.as_nanos(), u64::MAX);
        assert_eq!(LocalTime::from_nanos(1).since(end), Duration::ZERO);
    }
}
