//! What candidates ask of the API server, and what it answers.

use tenure_core::{Record, Version};

use super::cluster::{Lease, PodView};

/// A request.
#[derive(Clone, Debug)]
pub(super) enum Call {
    /// The election reads the Lease.
    Get(u64),
    /// The election writes it: creates it, or replaces this version.
    Write(u64, Option<Version>, Record),
    /// A process reads its own pod before it campaigns.
    Own(String),
    /// The undertaker reads the pod of a leader.
    List(String),
    /// The undertaker reads the Lease.
    Fetch,
    /// The undertaker empties this record in this version, or creates a free one.
    Empty(Option<Version>, Record),
}

/// An answer.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Got(u64, Option<Lease>),
    Stored(u64, Lease),
    Refused(u64),
    /// 5xx to an election's request: carried out or not.
    Error(Call),
    Own(PodView),
    Pods(String, PodView),
    Fetched(Option<Lease>),
}
