//! The election record: the content of the lock object that names the leader.
//!
//! client-go calls it `LeaderElectionRecord`. This module defines how the record is filled. The lock crate defines its
//! format in a Lease or an annotation.

use std::time::Duration;

use crate::time::WallTime;

/// The longest lease duration that is honoured or can be configured. A longer duration in a record is reduced to this
/// value, so that a hostile or mistaken writer cannot block an election for years.
pub const MAX_LEASE: Duration = Duration::from_secs(48 * 3600);

/// The leader, the start of its term, and the time that other candidates must wait after the last renewal.
///
/// Times are compared only for equality. A record shows that its holder is alive because it *changed*, never because of
/// the values of its times. This makes elections immune to skewed wall clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Identity of the holder; empty when released.
    pub holder: String,
    /// Time that other candidates wait after the last change, in whole seconds; 0 if the object has none.
    pub lease_duration_seconds: u32,
    /// When the holder won its term.
    pub acquire_time: Option<WallTime>,
    /// When the holder last renewed.
    pub renew_time: Option<WallTime>,
    /// Number of changes of the holder (`leaseTransitions` on a Lease, `leaderTransitions` elsewhere).
    pub transitions: u32,
    /// Coordinated election: the strategy by which the controller selects a candidate; empty for none.
    pub strategy: String,
    /// Coordinated election: the candidate that should get the lease next; empty for none.
    pub preferred_holder: String,
}

impl Record {
    /// Returns how long other candidates wait after they first observed this record.
    pub fn lease_duration(&self) -> Duration {
        Duration::from_secs(u64::from(self.lease_duration_seconds)).min(MAX_LEASE)
    }

    /// Returns whether the record has no holder.
    pub fn is_free(&self) -> bool {
        self.holder.is_empty()
    }

    /// Returns the record of a release: no holder, a duration of one second, and the same number of transitions. The
    /// duration is one second because the API server rejects zero (client-go `leaderelection.go`, `release`).
    pub fn released(&self, now: WallTime) -> Self {
        Self {
            holder: String::new(),
            lease_duration_seconds: 1,
            acquire_time: Some(now),
            renew_time: Some(now),
            transitions: self.transitions,
            strategy: String::new(),
            preferred_holder: String::new(),
        }
    }

    /// Returns whether both come from the same write of an elector. Strategy and preferred holder are ignored, because
    /// a controller adds them to a record without becoming its author.
    pub fn same_write(&self, other: &Self) -> bool {
        self.holder == other.holder
            && self.lease_duration_seconds == other.lease_duration_seconds
            && self.acquire_time == other.acquire_time
            && self.renew_time == other.renew_time
            && self.transitions == other.transitions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_write_needs_every_field_that_an_elector_fills() {
        let record = Record {
            holder: "a".to_owned(),
            lease_duration_seconds: 15,
            acquire_time: Some(WallTime::from_micros(1)),
            renew_time: Some(WallTime::from_micros(2)),
            transitions: 3,
            ..Record::default()
        };
        let changed: [fn(&mut Record); 5] = [
            |record| record.holder.push('b'),
            |record| record.lease_duration_seconds = 16,
            |record| record.acquire_time = None,
            |record| record.renew_time = None,
            |record| record.transitions = 4,
        ];
        assert!(record.same_write(&record.clone()));
        for (number, change) in changed.iter().enumerate() {
            let mut other = record.clone();
            change(&mut other);
            assert!(!record.same_write(&other), "change {number}");
        }
    }

    #[test]
    fn excessive_durations_are_capped() {
        let record = Record {
            lease_duration_seconds: u32::MAX,
            ..Record::default()
        };
        assert_eq!(record.lease_duration(), MAX_LEASE);
    }

    #[test]
    fn a_release_keeps_transitions_and_has_one_second() {
        let held = Record {
            holder: "a".into(),
            lease_duration_seconds: 15,
            transitions: 7,
            strategy: "OldestEmulationVersion".into(),
            ..Record::default()
        };
        let at = WallTime::from_micros(42);
        let released = held.released(at);
        assert!(released.is_free());
        assert_eq!(released.lease_duration_seconds, 1);
        assert_eq!(released.transitions, 7);
        assert_eq!(
            (released.acquire_time, released.renew_time),
            (Some(at), Some(at))
        );
        assert_eq!(released.strategy, "");
    }

    #[test]
    fn preferred_holder_does_not_change_the_identity_of_a_write() {
        let mine = Record {
            holder: "a".into(),
            ..Record::default()
        };
        let marked = Record {
            preferred_holder: "b".into(),
            ..mine.clone()
        };
        assert!(mine.same_write(&marked));
        assert!(!mine.same_write(&Record {
            transitions: 1,
            ..mine.clone()
        }));
    }
}
