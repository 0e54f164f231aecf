//! The invariants, one file per guarantee of `docs/book/explanation/safety.md`.

pub mod l1_liveness;
pub mod s1_guard_exclusion;
pub mod s2_token_order;
pub mod s3_effect_exclusion;
pub mod s4_ordered_departure;
pub mod s5_no_foreign_writes;

use std::fmt;

/// The invariants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// At most one guard is valid.
    S1,
    /// Later terms have greater tokens.
    S2,
    /// No effect of an older term is applied after one of a newer term.
    S3,
    /// The guard has expired and the work has ended before a release.
    S4,
    /// No candidate replaces a live record of another candidate.
    S5,
    /// A candidate soon leads and keeps leading.
    L1,
    /// Every step is a step of the system that `proof/` proves.
    Refinement,
    /// Assertions in the code hold.
    Assertion,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assertion => f.write_str("an assertion"),
            Self::Refinement => f.write_str("the refinement of the proof"),
            promise => write!(f, "{promise:?}"),
        }
    }
}

/// A violated invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// Time of the violation, in nanoseconds of real time.
    pub at: u64,
    /// Description of the violation.
    pub text: String,
}
