//! Terms for life: a leader stays the leader as long as the object that its identity names (for example a pod) exists.
//! Restarts and long periods without contact do not end the term. If it is unknown whether the leader still runs, the
//! mode leaves the election without a new leader.
//!
//! Once the holder is confirmed dead, the record is emptied as in a release. No candidate takes it over before that. A
//! term for life is recognized by its lease duration, which only candidates for life use and all of them share. Other
//! terms on the same lock expire as usual.

use super::Election;
use crate::input::Observation;

impl Election {
    /// Returns whether another candidate holds the lock for life.
    pub(super) fn is_held_for_life(&self, seen: &Observation) -> bool {
        let record = &seen.record;
        self.config.for_life
            && !record.is_free()
            && record.holder != self.config.identity
            && record.lease_duration_seconds == self.config.timing.lease_seconds()
    }

    /// Returns whether the record names this identity. It does not matter which incarnation wrote the record or who
    /// edited it since, because nobody else uses this identity and nobody else may hold the record.
    pub(super) fn is_inherited(&self, seen: &Observation) -> bool {
        self.config.for_life && !seen.unreadable && seen.record.holder == self.config.identity
    }

    /// Returns whether a held lease is released. An order releases it; the end of an incarnation does not.
    pub(super) fn gives_back(&self) -> bool {
        self.config.release_on_cancel && !(self.config.for_life && self.shutdown)
    }
}
