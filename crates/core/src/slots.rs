//! How the candidates of a semaphore agree on the number of slots.
//!
//! A semaphore has one lease per slot, and a candidate holds at most one of them. The number is noted on the lease of the
//! first slot. What a candidate does about that note is decided here, without I/O.
//!
//! The invariant: if the number is N from some instant on, at most N candidates use a slot that they were allowed to
//! use after that instant. Slots that are gone after a change may be used until their work ends.

use crate::mutant::SlotMutant;

/// What a candidate does about the number of slots that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Campaign for the slots.
    Join,
    /// Write its own number over the version that it has read, and look again.
    Write,
    /// Give up: the others have this number.
    Refuse(u32),
}

/// Whether a slot that was won may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It may.
    Yes,
    /// It may not: there are only so many slots by now.
    Gone(u32),
    /// Nobody has said so; ask again.
    Unknown,
}

/// The rules as they are shipped, or with a seeded bug for the simulator to find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    #[cfg(feature = "mutants")]
    mutant: Option<SlotMutant>,
}

impl Rules {
    /// Decides for a candidate with `slots` slots by the number that it has read; `None` if there is none. With `resize`
    /// the candidate changes a number that is not its own.
    pub fn decide(self, agreed: Option<u32>, slots: u32, resize: bool) -> Decision {
        match agreed {
            Some(agreed) if agreed == slots => Decision::Join,
            Some(_) if self.is(SlotMutant::NotCompared) => Decision::Join,
            Some(agreed) if !resize => Decision::Refuse(agreed),
            Some(_) | None => Decision::Write,
        }
    }

    /// Decides about a slot by a read of the number that was sent after the slot was won. `None` if the read brought no
    /// answer, `Some(None)` if there is no number: then every slot counts.
    pub fn may_start(self, slot: u32, read: Option<Option<u32>>) -> Start {
        match read {
            _ if self.is(SlotMutant::UncheckedWin) => Start::Yes,
            None if self.is(SlotMutant::SilenceIsConsent) => Start::Yes,
            None => Start::Unknown,
            Some(Some(agreed)) if slot >= agreed && !self.is(SlotMutant::NotCompared) => {
                Start::Gone(agreed)
            }
            Some(_) => Start::Yes,
        }
    }

    /// Seeds a bug.
    #[cfg(feature = "mutants")]
    #[doc(hidden)]
    pub fn mutated(mutant: SlotMutant) -> Self {
        Self {
            mutant: Some(mutant),
        }
    }

    #[cfg(feature = "mutants")]
    fn is(self, mutant: SlotMutant) -> bool {
        self.mutant == Some(mutant)
    }

    #[cfg(not(feature = "mutants"))]
    #[expect(
        clippy::unused_self,
        reason = "the same signature with and without the feature"
    )]
    const fn is(self, _: SlotMutant) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_number_is_refused_unless_it_is_a_resize() {
        let rules = Rules::default();
        assert_eq!(rules.decide(None, 3, false), Decision::Write);
        assert_eq!(rules.decide(Some(3), 3, false), Decision::Join);
        assert_eq!(rules.decide(Some(4), 3, false), Decision::Refuse(4));
        assert_eq!(rules.decide(Some(4), 3, true), Decision::Write);
    }

    #[test]
    fn slot_is_used_only_after_an_answer_that_has_it() {
        let rules = Rules::default();
        assert_eq!(rules.may_start(2, Some(Some(3))), Start::Yes);
        assert_eq!(rules.may_start(3, Some(Some(3))), Start::Gone(3));
        assert_eq!(rules.may_start(3, Some(None)), Start::Yes);
        assert_eq!(rules.may_start(0, None), Start::Unknown);
    }
}
