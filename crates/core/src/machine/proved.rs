//! Holders that are proved dead: nobody waits for their lease.
//!
//! Invariant: a proof counts for exactly the version that it names, and only if that version describes its holder. A
//! later version needs another proof, because the description may belong to an earlier term.

use super::Election;
use super::observe::Known;
use crate::input::{Observation, Version};
use crate::mutant::Mutant;
use crate::time::{LocalTime, Now};

impl Election {
    /// Records that the holder of a version is dead. A proof for a version that is not the known one comes too early or
    /// too late.
    pub(super) fn holder_died(&mut self, now: Now, version: &Version) {
        let Known::Present(seen) = &self.known else {
            return;
        };
        let current = self.rules.is_version(&seen.observation, version);
        // A repeated proof does not postpone the attempt.
        if current && self.dead_since(&seen.observation).is_none() {
            let version = seen.observation.version.clone();
            self.dead = Some(Box::new((version, now.local)));
        }
    }

    /// Returns since when the holder of an observed version is proved dead.
    pub(super) fn dead_since(&self, seen: &Observation) -> Option<LocalTime> {
        let (version, since) = self.dead.as_deref()?;
        (*version == seen.version && self.rules.can_be_proved(seen)).then_some(*since)
    }
}

impl super::Rules {
    /// Returns whether a proof names an observed version.
    fn is_version(self, seen: &Observation, version: &Version) -> bool {
        seen.version == *version || self.is(Mutant::ProofOfAnyVersion)
    }

    /// Returns whether a version describes its holder, so that a proof can be about that holder.
    fn can_be_proved(self, seen: &Observation) -> bool {
        if self.is(Mutant::ProofIgnored) {
            return false;
        }
        if self.is(Mutant::ProofOfAnybody) {
            return !seen.record.is_free();
        }
        if self.is(Mutant::ProofByIdentity) {
            let described = seen.described.as_ref();
            return described.is_some_and(|described| described.identity == seen.record.holder);
        }
        seen.incarnation().is_some()
    }
}
