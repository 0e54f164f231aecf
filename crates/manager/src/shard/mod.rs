//! Sharded leadership: the keys of one controller are distributed over all replicas.
//!
//! Each shard is an ordinary lease, so every shard has at most one owner at any time, protected by the same guards as
//! every other election. Replicas agree on the assignment without messages, because every replica observes the same
//! leases and computes the same assignment. Owners with too many shards hand them over one by one. A shard is never
//! taken from its owner.
//!
//! All replicas of a group use the same number of shards. It is stored in a Lease of the group, `GROUP.shards`. A
//! replica with another number is rejected, or waits ([`Builder::change_shards`](crate::Builder::change_shards)).

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
    /// Index, from zero.
    pub index: u32,
    /// Number of shards.
    pub of: u32,
}

impl Shard {
    /// Returns whether a key belongs to this shard.
    pub fn contains(&self, key: &str) -> bool {
        shard_of(key, self.of) == self.index
    }
}

impl fmt::Display for Shard {
    /// Formats the shard in Knative's form, `03-of-64`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}-of-{:02}", self.index, self.of)
    }
}
