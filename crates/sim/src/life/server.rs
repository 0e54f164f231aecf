//! Requests of candidates to the API server, and their responses.

use tenure_core::{Record, Version};

use super::cluster::{Lease, PodView};

/// A request.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// The election reads the Lease.
    Get(u64),
    /// The election writes the Lease: creates it, or replaces this version.
    Write(u64, Option<Version>, Record),
    /// A process reads its own pod before it campaigns.
    Own(String),
    /// The undertaker reads the pod of a leader.
    List(String),
    /// The undertaker reads the Lease.
    Fetch,
    /// The undertaker empties this record in this version, or creates a free record.
    Empty(Option<Version>, Record),
}

/// A response.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Got(u64, Option<Lease>),
    Stored(u64, Lease),
    Refused(u64),
    /// 5xx to a request of an election, which may or may not have been executed.
    Error(Call),
    Own(PodView),
    Pods(String, PodView),
    Fetched(Option<Lease>),
}
