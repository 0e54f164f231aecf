//! Commands: everything that an election asks its driver to do, as a closed enum.

use std::time::Duration;

use crate::fence::FencingToken;
use crate::guard::Guard;
use crate::input::{StepDownOrder, Version};
use crate::record::Record;
use crate::time::LocalTime;

/// A command for the driver. The driver executes the commands of one step in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read the lock object and answer with [`Input::Observed`](crate::Input::Observed),
    /// [`Absent`](crate::Input::Absent) or [`ReadFailed`](crate::Input::ReadFailed). At most one request is in flight
    /// at a time.
    Read {
        /// Number of the request.
        id: u64,
        /// Time after which the request fails.
        timeout: Duration,
    },
    /// Write the record and answer with [`Input::Written`](crate::Input::Written). The driver must not retry the
    /// request: a retry below this interface could outlive the term.
    Write {
        /// Number of the request.
        id: u64,
        /// Purpose of the write, and the version that it replaces.
        kind: WriteKind,
        /// The record to write.
        record: Record,
        /// Time after which the request fails.
        timeout: Duration,
    },
    /// A term has begun. Start the guarded work.
    Lead {
        /// Token of the term.
        token: FencingToken,
        /// Number of transitions in the record of the term.
        transitions: u32,
        /// Time until which this process leads, unless a later command replaces it.
        guard: Guard,
    },
    /// The term continues: replace the guard by this later one.
    Extend {
        /// The new guard.
        guard: Guard,
    },
    /// The term has ended, and its guard has expired. Cancel the work, and send [`WorkEnded`](crate::Input::WorkEnded)
    /// when all of it has ended.
    Stop {
        /// Reason for the end of the term.
        reason: StopReason,
        /// Instant by which the work must have ended; see [`Overrun`](Self::Overrun).
        deadline: LocalTime,
    },
    /// The deadline of work that is stopping has changed. It is later if the lease was renewed for the work, and
    /// earlier if the lease was lost in the meantime.
    Drain {
        /// Instant by which the work must have ended.
        deadline: LocalTime,
    },
    /// The work did not end before its deadline. Another process may lead from now on, so end this process (or the
    /// child process that does the work). The lease is not released.
    Overrun,
    /// Another holder was observed. The holder is empty if the lock was released and has no new holder yet.
    NewLeader {
        /// Identity of the holder.
        holder: String,
    },
    /// The release was applied: other candidates may lead from now on.
    Released,
    /// The last command: the election has finished.
    Finished,
}

/// Purpose of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// Create the object, which does not exist.
    Create,
    /// Win a term by replacing this version.
    Acquire(Version),
    /// Renew the term by replacing this version.
    Renew(Version),
    /// Release the term by replacing this version. The order, if any, names the candidate that should lead next; the
    /// write sets it on the object in place of an earlier one.
    Release(Version, Option<Box<StepDownOrder>>),
}

impl WriteKind {
    /// Returns the version that must still be current, or `None` if the object must not exist.
    pub fn base(&self) -> Option<&Version> {
        match self {
            Self::Create => None,
            Self::Acquire(version) | Self::Renew(version) | Self::Release(version, _) => {
                Some(version)
            }
        }
    }

    /// Returns the order that the write sets on the object.
    pub fn order(&self) -> Option<&StepDownOrder> {
        match self {
            Self::Release(_, order) => order.as_deref(),
            Self::Create | Self::Acquire(_) | Self::Renew(_) => None,
        }
    }
}

/// Reason for the end of a term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// No applied renewal was confirmed within the length of the guard, or the clock jumped.
    GuardExpired,
    /// Another candidate holds the lock.
    ForeignHolder(String),
    /// Another writer emptied the lock.
    Emptied,
    /// Another writer edited the record of this candidate.
    Edited,
    /// The lock object was deleted.
    Deleted,
    /// The lock object was deleted and created again.
    Recreated,
    /// The lock object went back to an earlier version: the API server's store was restored.
    WentBack,
    /// An operator asked for it through the lock object.
    Ordered,
    /// Another candidate is preferred: by the controller of a coordinated election, or because of its rank.
    PreferredHolder(String),
    /// This process asked for it with [`Input::StepDown`](crate::Input::StepDown).
    StepDown,
    /// The work ended by itself.
    WorkEnded,
    /// This process is shutting down.
    Shutdown,
}

impl StopReason {
    /// Returns whether this candidate still holds the lease. If so, it may renew the lease while the work stops, and
    /// then release it.
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

    /// Returns a short stable word for logs and metrics.
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
