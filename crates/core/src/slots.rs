//! How the candidates of a semaphore agree on the number of slots.
//!
//! A semaphore has one lease per slot, and a candidate holds at most one of them. The number of slots is stored on the
//! lease of the first slot. This module decides how a candidate reacts to that number, without I/O.
//!
//! Invariant: if the number is N from some instant on, at most N candidates use a slot that they were allowed to use
//! after that instant. Slots that a change removed may be used until their work ends.

use crate::mutant::SlotMutant;

/// Reaction of a candidate to the number of slots that it has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Campaign for the slots.
    Join,
    /// Write its own number over the version that it has read, and read again.
    Write,
    /// Give up: the other candidates use this number.
    Refuse(u32),
}

/// Whether a slot that was won may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The slot may be used.
    Yes,
    /// The slot may not be used, because there are now only this many slots.
    Gone(u32),
    /// The number could not be read; try again.
    Unknown,
}

/// The shipped rules, or rules with a seeded bug that the simulator must find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    #[cfg(feature = "mutants")]
    mutant: Option<SlotMutant>,
}

impl Rules {
    /// Decides for a candidate with `slots` slots from the number that it has read; `None` if there is none. With
    /// `resize` the candidate changes a number that differs from its own.
    pub fn decide(self, agreed: Option<u32>, slots: u32, resize: bool) -> Decision {
        match agreed {
            Some(agreed) if agreed == slots => Decision::Join,
            Some(_) if self.is(SlotMutant::NotCompared) => Decision::Join,
            Some(agreed) if !resize => Decision::Refuse(agreed),
            Some(_) | None => Decision::Write,
        }
    }

    /// Decides about a slot from a read of the number that was sent after the slot was won. `None` means that the read
    /// failed. `Some(None)` means that there is no number, so every slot may be used.
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

    /// Returns rules with a seeded bug.
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
