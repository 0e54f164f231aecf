//! Everything an election asks of the world: a closed enum.

use std::time::Duration;

use crate::fence::FencingToken;
use crate::guard::Guard;
use crate::input::Version;
use crate::record::Record;
use crate::time::LocalTime;

/// What the driver has to do, in the order given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read the lock object and answer with [`Input::Observed`](crate::Input::Observed),
    /// [`Absent`](crate::Input::Absent) or [`ReadFailed`](crate::Input::ReadFailed).
    /// At most one request is under way at a time.
    Read {
        /// Number of the request.
        id: u64,
        /// Give up after this long.
        timeout: Duration,
    },
    /// Write the record and answer with [`Input::Written`](crate::Input::Written). No hidden
    /// retries: a request that is repeated below this interface outlives the term.
    Write {
        /// Number of the request.
        id: u64,
        /// What it is for, and which version it replaces.
        kind: WriteKind,
        /// The record.
        record: Record,
        /// Give up after this long.
        timeout: Duration,
    },
    /// A term has begun: start the guarded work.
    Lead {
        /// The token of the term.
        token: FencingToken,
        /// The count of transitions in the record of the term.
        transitions: u32,
        /// Until when this process leads, as far as it knows now.
        guard: Guard,
    },
    /// The term goes on: the guard is replaced by a later one.
    Extend {
        /// The new guard.
        guard: Guard,
    },
    /// The term has ended: the guard is out as of now. Cancel the work, and report
    /// [`WorkEnded`](crate::Input::WorkEnded) when all of it has ended.
    Stop {
        /// Why.
        reason: StopReason,
        /// When the work must have ended; see [`Overrun`](Self::Overrun).
        deadline: LocalTime,
    },
    /// The work that was told to stop has until another instant: later, because the lease was kept
    /// alive for it, or earlier, because the lease was lost meanwhile.
    Drain {
        /// When the work must have ended.
        deadline: LocalTime,
    },
    /// The work did not end in time. Another process may lead from now on, so end this one (or the
    /// child that does the work). The lease is not released.
    Overrun,
    /// Another holder was seen; empty after a release, if nobody followed yet.
    NewLeader {
        /// Its identity.
        holder: String,
    },
    /// The release was applied: others may lead as of now.
    Released,
    /// Nothing more will be asked; the last command.
    Finished,
}

/// What a write is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// The object does not exist: create it.
    Create,
    /// Win the term, replacing this version.
    Acquire(Version),
    /// Keep the term, replacing this version.
    Renew(Version),
    /// Give the term back, replacing this version.
    Release(Version),
}

impl WriteKind {
    /// The version that must still be current; `None` if the object must not exist.
    pub fn base(&self) -> Option<&Version> {
        match self {
            Self::Create => None,
            Self::Acquire(version) | Self::Renew(version) | Self::Release(version) => Some(version),
        }
    }
}

/// Why a term ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// No renewal was known to be applied for the length of the guard, or the clock jumped.
    GuardExpired,
    /// Somebody else holds the lock.
    ForeignHolder(String),
    /// Somebody emptied the lock.
    Emptied,
    /// Somebody edited our record.
    Edited,
    /// The lock object was deleted.
    Deleted,
    /// The lock object was deleted and created again.
    Recreated,
    /// The lock object went back to an earlier version: the API server's store was restored.
    WentBack,
    /// An operator asked through the lock object.
    Ordered,
    /// Coordinated election prefers another holder.
    PreferredHolder(String),
    /// This process asked: [`Input::StepDown`](crate::Input::StepDown).
    StepDown,
    /// The work ended by itself.
    WorkEnded,
    /// This process is shutting down.
    Shutdown,
}

impl StopReason {
    /// Whether the lease is still ours, so that it may be kept while work winds down, and released.
    pub fn is_voluntary(&self) -> bool {
        matches!(
            self,
            Self::Ordered
                | Self::PreferredHolder(_)
                | Self::StepDown
                | Self::WorkEnded
                | Self::Shutdown
        )
    }

    /// A short stable word for logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::GuardExpired => "guard-expired",
            Self::ForeignHolder(_) => "foreign-holder",
            Self::Emptied => "emptied",
            Self::Edited => "edited",
            Self::Deleted => "deleted",
            Self::Recreated => "recreated",
            Self::WentBack => "went-back",
            Self::Ordered => "ordered",
            Self::PreferredHolder(_) => "preferred-holder",
            Self::StepDown => "step-down",
            Self::WorkEnded => "work-ended",
            Self::Shutdown => "shutdown",
        }
    }
}
