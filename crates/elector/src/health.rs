//! How an election is doing, for probes.
//!
//! [`Health::check`] has the meaning of client-go's adaptor: it fails only for a leader that is
//! wedged. [`Health::trouble`] tells what client-go does not: that the API server cannot be reached
//! or forbids the lock, also for followers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{LocalTime, Now};

use crate::handle::Shared;
use crate::sync::lock;

/// What the driver notes about one election.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
    /// The record last seen or written names this candidate.
    pub(crate) held: bool,
    /// When that record was first seen or written.
    pub(crate) observed: LocalTime,
    /// Since when nothing has worked, and the last error.
    pub(crate) failing: Option<(LocalTime, Arc<str>)>,
    /// What somebody has to change, such as a permission, as it was last logged.
    pub(crate) obstacle: Option<Arc<str>>,
}

/// How one election is doing.
#[derive(Clone, Debug)]
pub struct Health {
    shared: Arc<Shared>,
}

impl Health {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// client-go's check: fails if this candidate holds the lock by its last sight and has not
    /// renewed it for a lease duration and `tolerance`. Followers are always healthy.
    ///
    /// # Errors
    /// The text of client-go, with the name of the election.
    pub fn check(&self, tolerance: Duration) -> Result<(), Unhealthy> {
        let now = self.shared.clock.now();
        self.check_at(now, tolerance)
    }

    /// What keeps this candidate from taking part: the last error, if no request has worked since.
    pub fn trouble(&self) -> Option<Trouble> {
        let vitals = lock(&self.shared.vitals);
        let (since, error) = vitals.failing.clone()?;
        let lasted = self.shared.clock.now().local.since(since);
        Some(Trouble { lasted, error })
    }

    fn check_at(&self, now: Now, tolerance: Duration) -> Result<(), Unhealthy> {
        let vitals = lock(&self.shared.vitals);
        let age = now.local.since(vitals.observed);
        if vitals.held && age > self.shared.lease + tolerance {
            return Err(Unhealthy {
                name: self.shared.name.clone(),
            });
        }
        Ok(())
    }
}

/// A leader that does not renew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed election to renew leadership on lease {name}")]
pub struct Unhealthy {
    name: Arc<str>,
}

/// Requests of an election do not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error} (for {} s)", lasted.as_secs())]
pub struct Trouble {
    /// Since the first of the errors.
    pub lasted: Duration,
    /// The last one.
    pub error: Arc<str>,
}

/// client-go's `HealthzAdaptor`: made before the elector, healthy until one is attached.
#[derive(Debug)]
pub struct HealthAdaptor {
    tolerance: Duration,
    attached: Mutex<Option<Health>>,
}

impl HealthAdaptor {
    /// An adaptor; the core components of Kubernetes use a tolerance of 20 seconds.
    pub fn new(tolerance: Duration) -> Self {
        Self {
            tolerance,
            attached: Mutex::default(),
        }
    }

    /// Attaches it to an election, instead of the one before.
    pub fn attach(&self, health: Health) {
        *lock(&self.attached) = Some(health);
    }

    /// The name of the check, as the core components register it.
    pub fn name(&self) -> &'static str {
        "leaderElection"
    }

    /// Checks the attached election.
    ///
    /// # Errors
    /// As [`Health::check`].
    pub fn check(&self) -> Result<(), Unhealthy> {
        let attached = lock(&self.attached).clone();
        attached.map_or(Ok(()), |health| health.check(self.tolerance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, TokioClock};

    const HOUR: Duration = Duration::from_secs(3600);
    const MINUTE: Duration = Duration::from_secs(60);
    const TOLERANCE: Duration = Duration::from_secs(20);

    /// An election "foo" with a lease of a minute whose record was observed this long ago.
    async fn observed(held: bool, ago: Duration) -> HealthAdaptor {
        let clock = TokioClock::new();
        let shared = Arc::new(Shared::new(
            "foo".into(),
            "lease a/foo".into(),
            "me".into(),
            MINUTE,
            Arc::new(clock),
        ));
        *lock(&shared.vitals) = Vitals {
            held,
            observed: clock.now().local,
            failing: None,
            obstacle: None,
        };
        tokio::time::advance(ago).await;
        let adaptor = HealthAdaptor::new(TOLERANCE);
        adaptor.attach(Health::new(shared));
        adaptor
    }

    #[test]
    fn case_21_before_an_elector_is_attached_it_is_healthy() {
        assert_eq!(HealthAdaptor::new(TOLERANCE).check(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn case_22_a_leader_that_has_not_renewed_for_an_hour_is_named() {
        let error = observed(true, HOUR).await.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed election to renew leadership on lease foo"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn case_23_a_follower_is_healthy_whatever_the_leader_does() {
        assert_eq!(observed(false, HOUR).await.check(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn case_24_a_leader_that_has_just_renewed_is_healthy() {
        assert_eq!(observed(true, Duration::ZERO).await.check(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn case_25_expired_but_within_the_tolerance_is_healthy() {
        let adaptor = observed(true, MINUTE + Duration::from_secs(1)).await;
        assert_eq!(adaptor.check(), Ok(()));
        let adaptor = observed(true, MINUTE + TOLERANCE).await;
        assert_eq!(adaptor.check(), Ok(()), "the bound itself is healthy");
    }
}
