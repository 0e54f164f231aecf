//! Rules of an election whose implementation a seeded bug replaces. Each function contains the shipped implementation.
//!
//! The other seeded bugs do not need a branch in the shipped code; see `seeded.rs`.

use std::time::Duration;

use crate::guard::Guard;
use crate::input::StepDownOrder;
pub(super) use crate::mutant::ElectionRules as Rules;
use crate::mutant::Mutant;
use crate::record::Record;
use crate::time::Now;
use crate::timing::Timing;

/// Asserts a guarantee of `docs/book/explanation/safety.md`. With a seeded bug nothing is asserted, so that the
/// simulator can observe the consequences of the bug.
macro_rules! require {
    ($election:expr, $holds:expr, $($message:tt)+) => {
        assert!($election.rules.is_seeded() || $holds, $($message)+)
    };
}
pub(super) use require;

impl Rules {
    /// Returns the guard of a write that was sent at `sent` and whose result is known now.
    pub(super) fn guard(self, now: Now, sent: Now, length: Duration) -> Guard {
        if self.is(Mutant::GuardFromAnswer) {
            return Guard::new(now, length);
        }
        if self.is(Mutant::NoClock) {
            return Guard::new(sent, length * 1000);
        }
        Guard::new(sent, length)
    }

    /// Returns how long to wait for a term with this lease duration: the duration plus our own lock delay.
    pub(super) fn patience(self, stated: Duration, own: &Timing) -> Duration {
        if self.is(Mutant::OwnPatience) {
            return own.lease();
        }
        if self.is(Mutant::HalfPatience) {
            return stated / 2;
        }
        // A record without a duration comes from a holder with unknown rules. Wait one second for it.
        let lease = stated.max(Duration::from_secs(1));
        if self.is(Mutant::NoLockDelay) {
            return lease;
        }
        lease + own.lock_delay()
    }

    /// Returns whether an order ends the term that a record shows.
    pub(super) fn names(self, order: &StepDownOrder, record: &Record) -> bool {
        if self.is(Mutant::IgnoreOrders) {
            return false;
        }
        if self.is(Mutant::ObeyForEver) {
            return true;
        }
        if self.is(Mutant::ObeyEarlier) {
            return order.transitions == record.transitions;
        }
        order.names(record)
    }

    /// Returns whether a candidate may take only a lease that is assigned to it.
    pub(super) fn needs_assignment(self, coordinated: bool) -> bool {
        coordinated && !self.is(Mutant::TakeUnassigned)
    }

    /// Returns whether a bug is seeded.
    #[cfg(feature = "_mutants")]
    pub(super) fn is_seeded(self) -> bool {
        self.mutant.is_some()
    }

    #[cfg(not(feature = "_mutants"))]
    #[expect(
        clippy::unused_self,
        reason = "the same signature with and without the feature"
    )]
    pub(super) const fn is_seeded(self) -> bool {
        false
    }
}
