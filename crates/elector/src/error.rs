//! What can be wrong with a configuration.

use std::fmt;

use tenure_core::timing::TimingProblem;

/// Everything that is wrong with the configuration of an elector.
#[derive(Debug)]
pub struct BuildError {
    /// At least one.
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

/// One thing that is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A rule of the durations is broken.
    #[error(transparent)]
    Timing(#[from] TimingProblem),
    /// Nobody can hold a lock without a name.
    #[error("the identity is empty")]
    EmptyIdentity,
    /// The identity cannot stand in a record.
    #[error("the identity {0:?} must not contain control characters")]
    Identity(String),
    /// The lock cannot be used.
    #[error(transparent)]
    Lock(#[from] tenure_lock::Error),
    /// The LeaseCandidate would be refused.
    #[error(transparent)]
    Candidate(#[from] tenure_lock::candidate::InvalidCandidate),
    /// Coordinated election knows only Leases.
    #[error("a coordinated election needs a lease opened by this builder")]
    CoordinatedWithoutLease,
    /// The API server would refuse a label.
    #[error("{0}")]
    Label(String),
    /// Labels belong to a lock that this builder makes.
    #[error("labels cannot be set on a lock that was given; set them where it is made")]
    LabelsOfGivenLock,
}
