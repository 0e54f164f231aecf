//! What must hold, one file per promise of `docs/safety.md`.

pub mod l1_liveness;
pub mod s1_guard_exclusion;
pub mod s2_token_order;
pub mod s3_effect_exclusion;
pub mod s4_ordered_departure;
pub mod s5_no_foreign_writes;

use std::fmt;

/// The promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// At most one guard is true.
    S1,
    /// Later terms have greater tokens.
    S2,
    /// No effect of an older term after one of a newer.
    S3,
    /// The guard is out and the work has ended before a release.
    S4,
    /// Nobody writes over a live stranger.
    S5,
    /// Somebody leads soon, and keeps leading.
    L1,
    /// Assertions of the code itself hold.
    Assertion,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assertion => f.write_str("an assertion"),
            promise => write!(f, "{promise:?}"),
        }
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which one.
    pub invariant: Invariant,
    /// When, in nanoseconds of real time.
    pub at: u64,
    /// What happened.
    pub text: String,
}
