//! Problems of a configuration.

use std::fmt;
use std::time::Duration;

use tenure_core::timing::TimingProblem;

/// All problems of the configuration of an elector.
#[derive(Debug)]
pub struct BuildError {
    /// The problems; at least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid election: ")?;
        for (i, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for BuildError {}

/// One problem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A rule of the durations is violated.
    #[error(transparent)]
    Timing(#[from] TimingProblem),
    /// The identity is empty.
    #[error("the identity is empty")]
    EmptyIdentity,
    /// The identity cannot be stored in a record.
    #[error("the identity {0:?} must not contain control characters")]
    Identity(String),
    /// The lock cannot be used.
    #[error(transparent)]
    Lock(#[from] tenure_lock::Error),
    /// The API server would reject the LeaseCandidate.
    #[error(transparent)]
    Candidate(#[from] tenure_lock::candidate::InvalidCandidate),
    /// Coordinated election supports only Leases.
    #[error("a coordinated election needs a lease opened by this builder")]
    CoordinatedWithoutLease,
    /// The API server would reject a label.
    #[error("{0}")]
    Label(String),
    /// Labels can be set only on a lock that this builder creates.
    #[error("labels cannot be set on a lock that the caller created; set them when creating it")]
    LabelsOfGivenLock,
    /// An election in a hub uses the clock of the hub.
    #[error(
        "an election in a hub uses the hub's clock; pass the clock to `Hub::with_clock` instead"
    )]
    ClockOfHub,
    /// A lock delay was set in an election whose candidates never wait for a lease to expire.
    #[error(
        "a lock delay has no effect for leaders for life and in a coordinated election; remove it"
    )]
    LockDelayWithoutExpiry,
    /// A source of evidence was set in an election whose candidates never wait for a lease to expire.
    #[error(
        "confirmed death has no effect for leaders for life and in a coordinated election; remove it"
    )]
    ConfirmDeathWithoutExpiry,
    /// A rank was set, but the candidate does not announce itself. Other candidates read the rank from the
    /// announcement.
    #[error("only a candidate that announces itself can have a rank; add `announce`")]
    RankWithoutAnnouncement,
    /// A rank was set in an election whose candidates do not choose the leader.
    #[error(
        "priority, zone and failback have no effect for leaders for life and in a coordinated election; remove them"
    )]
    RankWithoutChoice,
    /// Automatic failback was set, but the release is disabled. A leader must release the lock to hand over.
    #[error("automatic failback needs a leader that releases its lock; do not disable the release")]
    FailbackWithoutRelease,
    /// The time before a failback is out of range. A shorter time would end terms too often.
    #[error("the time before a failback must be between 1 s and 24 h, not {0:?}")]
    FailbackAfter(Duration),
    /// The candidate announces itself, but its lock is not in an API server, where members are stored.
    #[error(
        "only a candidate whose lock is in an API server can announce itself, and it needs a client"
    )]
    AnnounceWithoutServer,
}
