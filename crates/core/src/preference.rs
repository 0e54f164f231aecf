//! Preferences among candidates: ranks, and when a leader hands over to a candidate of higher rank.
//!
//! `machine/prefer.rs` has the rules. Ranks only decide who leads. They never permit a write that S5 forbids.

use std::time::Duration;

/// Rank of a candidate. A greater rank is preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Priority that the program assigned.
    pub priority: i32,
    /// Whether the candidate is in the preferred zone. Decides among candidates of equal priority.
    pub in_zone: bool,
}

/// What a leader does when a ready candidate has a higher rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failback {
    /// Keeps leading.
    #[default]
    Never,
    /// Keeps leading, and logs which candidate could take over.
    Manual,
    /// Hands over.
    Auto,
}

/// Preference of one candidate of an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Preference {
    /// Rank of this candidate.
    pub rank: Rank,
    /// What this candidate does as the leader.
    pub failback: Failback,
    /// Time for which a leader observes a better candidate, during its own term, before it hands over. A term that ends
    /// for a better candidate therefore lasts at least this long.
    pub failback_after: Duration,
}

/// Standing of a candidate, as last read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// Identity of the candidate.
    pub identity: String,
    /// Its rank.
    pub rank: Rank,
    /// Whether it is ready to lead.
    pub ready: bool,
}
