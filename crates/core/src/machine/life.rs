//! Terms for life: whoever leads does so as long as what its identity names lives, through restarts and
//! however long it is not heard of. No leader rather than two.
//!
//! Who knows that it lives no more empties the record, as a release does; nobody takes it over. What tells a
//! term for life is its lease duration, which all candidates for life share and nobody else has: other terms
//! on the same lock run out as they always do.

use super::Election;
use crate::input::Observation;

impl Election {
    /// Whether somebody else has it for life.
    pub(super) fn is_held_for_life(&self, seen: &Observation) -> bool {
        let record = &seen.record;
        self.config.for_life
            && !record.is_free()
            && record.holder != self.config.identity
            && record.lease_duration_seconds == self.config.timing.lease_seconds()
    }

    /// Whether it is ours by name, whichever incarnation wrote it and whoever edited it since: nobody else
    /// goes by that name, and nobody else may have it.
    pub(super) fn is_inherited(&self, seen: &Observation) -> bool {
        self.config.for_life && !seen.unreadable && seen.record.holder == self.config.identity
    }

    /// Whether a lease that is held is released: by order, but not because an incarnation ends.
    pub(super) fn gives_back(&self) -> bool {
        self.config.release_on_cancel && !(self.config.for_life && self.shutdown)
    }
}
