//! The election record: what the lock object says about who leads.
//!
//! client-go calls it `LeaderElectionRecord`. The rules for filling it live here; how it is spelled
//! in a Lease or an annotation lives in the lock crate.

use std::time::Duration;

use crate::time::WallTime;

/// The longest lease that is honoured or may be configured. A record that claims more counts as
/// this much, so a hostile or mistaken writer cannot freeze an election for years.
pub const MAX_LEASE: Duration = Duration::from_secs(48 * 3600);

/// Who leads, since when, and for how long after the last renewal others must wait.
///
/// Times are only ever compared for equality: a record is a sign of life because it *changed*, never
/// because of what its times say. That is what makes elections immune to skewed wall clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Identity of the holder; empty when released.
    pub holder: String,
    /// How long others wait after the last change, in whole seconds; 0 where the object has none.
    pub lease_duration_seconds: u32,
    /// When the holder won its term.
    pub acquire_time: Option<WallTime>,
    /// When the holder last renewed.
    pub renew_time: Option<WallTime>,
    /// How often the holder changed (`leaseTransitions` on a Lease, `leaderTransitions` elsewhere).
    pub transitions: u32,
    /// Coordinated election: how the controller picks; empty for none.
    pub strategy: String,
    /// Coordinated election: who should get the lease next; empty for none.
    pub preferred_holder: String,
}

impl Record {
    /// The time that others wait, counted from their first sight of this record.
    pub fn lease_duration(&self) -> Duration {
        Duration::from_secs(u64::from(self.lease_duration_seconds)).min(MAX_LEASE)
    }

    /// Whether nobody holds it.
    pub fn is_free(&self) -> bool {
        self.holder.is_empty()
    }

    /// The record of a release: nobody, one second, the count of transitions kept. One second, not
    /// zero, because the API server refuses zero (client-go `leaderelection.go`, `release`).
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

    /// Whether both were the same write of an elector. Strategy and preferred holder do not count:
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
    fn absurd_durations_are_capped() {
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
    fn a_preferred_holder_does_not_make_it_another_write() {
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
