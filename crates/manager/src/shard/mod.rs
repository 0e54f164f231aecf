//! Sharded leadership: the keys of one controller spread over all replicas.
//!
//! Each shard is an ordinary lease, so every shard has one owner at any time, by the same guards as
//! everything else here. Which replica should own which shard is agreed on without talking: every replica
//! sees the same leases and computes the same assignment. Owners that have too much hand
//! shards over one by one; nobody ever takes one away.
//!
//! All replicas of a group have the same number of shards. It is in a Lease of the group, `GROUP.shards`, and a replica
//! with another number is refused, or waits ([`Builder::change_shards`](crate::Builder::change_shards)).

pub(crate) mod agreement;
mod assign;
mod handle;
mod hash;
mod members;

pub(crate) mod driver;

use std::fmt;

pub use agreement::Standing;
pub use handle::Shards;
pub use hash::shard_of;

/// One of the shards of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    /// From zero.
    pub index: u32,
    /// How many there are.
    pub of: u32,
}

impl Shard {
    /// Whether a key belongs to this shard.
    pub fn contains(&self, key: &str) -> bool {
        shard_of(key, self.of) == self.index
    }
}

impl fmt::Display for Shard {
    /// Knative's form, `03-of-64`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}-of-{:02}", self.index, self.of)
    }
}
