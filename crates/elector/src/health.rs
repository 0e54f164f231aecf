//! Health of an election, for probes.
//!
//! [`Health::check`] has the meaning of client-go's adaptor: it fails only for a leader that does not renew.
//! [`Health::trouble`] reports what client-go does not, also for followers: the API server is unreachable, or it
//! forbids access to the lock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{LocalTime, Now};

use crate::shared::Shared;
use crate::sync::lock;

/// Time after which a failure that lasts is logged a second time. The log line contains the number.
pub(crate) const STILL: Duration = Duration::from_secs(30);

/// Health data that the driver records about one election.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
    /// Whether the record last observed or written names this candidate.
    pub(crate) held: bool,
    /// Time at which that record was first observed or written.
    pub(crate) observed: LocalTime,
    /// Time since which no request has succeeded, and the last error.
    pub(crate) failing: Option<(LocalTime, Arc<str>)>,
    /// Whether the same failures were logged again after [`STILL`].
    pub(crate) reminded: bool,
    /// The required change, such as a missing permission, as it was last logged.
    pub(crate) obstacle: Option<Arc<str>>,
    /// Time at which a request last failed because of it.
    pub(crate) met: LocalTime,
}

/// Health of one election.
#[derive(Clone, Debug)]
pub struct Health {
    shared: Arc<Shared>,
}

impl Health {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Performs client-go's check: fails if the last observed record names this candidate and was not renewed for the
    /// lease duration plus `tolerance`. Followers are always healthy.
    ///
    /// # Errors
    ///
    /// Returns the text of client-go, with the name of the election.
    pub fn check(&self, tolerance: Duration) -> Result<(), Unhealthy> {
        let now = self.shared.clock.now();
        self.check_at(now, tolerance)
    }

    /// Returns the last error if no request has succeeded since.
    pub fn trouble(&self) -> Option<Trouble> {
        let vitals = lock(&self.shared.vitals);
        let (since, error) = vitals.failing.clone()?;
        let lasted = self.shared.clock.now().local.since(since);
        Some(Trouble { lasted, error })
    }

    /// Returns the last error that lasts until permissions or configuration change, and the time since it last
    /// occurred. Examples are a missing permission and a namespace that does not exist. A write that succeeds ends it.
    /// Reads may succeed in the meantime.
    pub fn obstacle(&self) -> Option<(Arc<str>, Duration)> {
        let vitals = lock(&self.shared.vitals);
        let error = vitals.obstacle.clone()?;
        Some((error, self.shared.clock.now().local.since(vitals.met)))
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

/// Error: a leader does not renew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed election to renew leadership on lease {name}")]
pub struct Unhealthy {
    name: Arc<str>,
}

/// Requests of an election fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error} (for {} s)", lasted.as_secs())]
pub struct Trouble {
    /// Time since the first of the errors.
    pub lasted: Duration,
    /// The last error.
    pub error: Arc<str>,
}

/// client-go's `HealthzAdaptor`: created before the elector, and healthy until an election is attached.
#[derive(Debug)]
pub struct HealthAdaptor {
    tolerance: Duration,
    attached: Mutex<Option<Health>>,
}

impl HealthAdaptor {
    /// Creates an adaptor. The core components of Kubernetes use a tolerance of 20 seconds.
    pub fn new(tolerance: Duration) -> Self {
        Self {
            tolerance,
            attached: Mutex::default(),
        }
    }

    /// Attaches it to an election, replacing the previous one.
    pub fn attach(&self, health: Health) {
        *lock(&self.attached) = Some(health);
    }

    /// Returns the name of the check, as the core components register it.
    pub fn name(&self) -> &'static str {
        "leaderElection"
    }

    /// Checks the attached election.
    ///
    /// # Errors
    ///
    /// Same as for [`Health::check`].
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

    /// Returns the adaptor of an election "foo" with a lease of a minute whose record was observed this long ago.
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
            ..Vitals::default()
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
    async fn case_23_a_follower_is_always_healthy() {
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
