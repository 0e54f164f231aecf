//! The mark: an annotation of the lock object that names the last write of an elector of this kind.
//!
//! Other writers replace the record and keep annotations that they do not know. client-go empties a record that it no
//! longer holds, and the controller of a coordinated election assigns the lease by its own wall clock. After either
//! write, the record no longer describes the term that it replaced. The mark still does.

use std::time::Duration;

use crate::record::{MAX_LEASE, Record};
use crate::time::WallTime;

/// Names the last write of an elector that writes marks, and the time to wait for its term.
///
/// Every write of such an elector replaces the mark together with the record. The mark of a version therefore names the
/// only incarnation that may have a valid guard: the author of that write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Differs for different writes.
    key: u64,
    /// Lease duration of the term; 0 for a release, after which nobody has to wait.
    lease_duration_seconds: u32,
}

impl Mark {
    /// Returns the mark of a write of this record.
    pub fn of(record: &Record) -> Self {
        Self::new(
            &record.holder,
            record.renew_time,
            record.lease_duration_seconds,
        )
    }

    /// Returns the mark of a write with this holder, renew time and lease duration. Without a holder the write is a
    /// release.
    pub fn new(holder: &str, renew_time: Option<WallTime>, lease_duration_seconds: u32) -> Self {
        let micros = renew_time.map_or(i64::MIN, WallTime::as_micros);
        let bytes = holder.bytes().chain(micros.to_be_bytes());
        // FNV-1a gives the same result on every machine, so that runs of the simulator can be repeated.
        let key = bytes.fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        Self {
            key,
            lease_duration_seconds: if holder.is_empty() {
                0
            } else {
                lease_duration_seconds
            },
        }
    }

    /// Combines the marks of a lock in two objects. The result changes with either mark.
    pub(crate) fn both(self, other: Self) -> Self {
        if self == other {
            return self;
        }
        Self {
            key: self.key.rotate_left(31) ^ other.key.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            lease_duration_seconds: self
                .lease_duration_seconds
                .max(other.lease_duration_seconds),
        }
    }

    /// Returns whether both name the same write.
    pub fn is(&self, other: &Self) -> bool {
        self.key == other.key
    }

    /// Returns whether the last write was a release. After a release no guard is valid (S4).
    pub fn is_release(&self) -> bool {
        self.lease_duration_seconds == 0
    }

    /// Returns how long to wait for the marked term after the mark was first observed.
    pub fn lease_duration(&self) -> Duration {
        Duration::from_secs(u64::from(self.lease_duration_seconds)).min(MAX_LEASE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, renewed: i64) -> Record {
        Record {
            holder: holder.to_owned(),
            lease_duration_seconds: 15,
            renew_time: Some(WallTime::from_micros(renewed)),
            ..Record::default()
        }
    }

    #[test]
    fn mark_differs_for_another_holder_and_another_renewal() {
        let mark = Mark::of(&record("a", 1));
        assert!(mark.is(&Mark::of(&record("a", 1))));
        assert!(!mark.is(&Mark::of(&record("b", 1))));
        assert!(!mark.is(&Mark::of(&record("a", 2))));
        assert_eq!(mark.lease_duration(), Duration::from_secs(15));
    }

    #[test]
    fn mark_of_a_release_is_not_waited_for() {
        let released = record("a", 1).released(WallTime::from_micros(2));
        assert!(Mark::of(&released).is_release());
        assert!(!Mark::of(&record("a", 1)).is_release());
    }

    #[test]
    fn mark_of_two_objects_is_that_of_the_longer_term() {
        let (a, b) = (Mark::of(&record("a", 1)), Mark::new("b", None, 60));
        assert_eq!(a.both(a), a);
        assert_eq!(a.both(b).lease_duration(), Duration::from_secs(60));
        assert!(!a.both(b).is(&a) && !a.both(b).is(&b));
    }

    #[test]
    fn mark_of_two_objects_changes_with_either_mark() {
        let mark = |key| Mark {
            key,
            lease_duration_seconds: 15,
        };
        for fixed in [0, 1, u64::MAX, 0x9E37_79B9_7F4A_7C15] {
            let (a, b) = (mark(2), mark(3));
            assert!(!mark(fixed).both(a).is(&mark(fixed).both(b)), "{fixed}");
            assert!(!a.both(mark(fixed)).is(&b.both(mark(fixed))), "{fixed}");
        }
    }

    #[test]
    fn mark_with_an_excessive_duration_is_capped() {
        let mark = Mark::new("a", None, u32::MAX);
        assert_eq!(mark.lease_duration(), MAX_LEASE);
    }
}
