//! The API of rancher/wrangler's `leader` package, and k3s's run-or-die.
//!
//! Differences from wrangler:
//! - The work has ended and the lock is released before the process exits.
//! - Errors name invalid or contradictory environment variables with their values.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use kube::Client;
use tenure::{Elector, Ended, LockKind, Tenure};
use tenure_core::timing::{Timing, TimingError, TimingProblem};
use tenure_lock::{duration, panic_text};

use crate::signals::exit;

/// Environment variable that makes durations long, for debuggers.
const DEVELOPMENT: &str = "CATTLE_DEV_MODE";

/// The default namespace of elections.
pub const DEFAULT_NAMESPACE: &str = "kube-system";

/// An election with wrangler's defaults: namespace `kube-system`, 45 s / 30 s / 2 s, one term per process.
///
/// ```no_run
/// # async fn example(client: kube::Client) {
/// use tenure_manager::{signals, wrangler::LeaderElection};
///
/// let shutdown = async { signals::shutdown().expect("signals").await };
/// LeaderElection::new(client, "my-controller")
///     .run_or_die(shutdown, |tenure| async move { tenure.cancelled().await })
///     .await
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until it is run"]
pub struct LeaderElection {
    client: Client,
    namespace: String,
    name: String,
    identity: Option<String>,
    kind: LockKind,
}

impl fmt::Debug for LeaderElection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaderElection({}/{})", self.namespace, self.name)
    }
}

/// The durations of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durations {
    /// 45 s.
    pub lease_duration: Duration,
    /// 30 s.
    pub renew_deadline: Duration,
    /// 2 s.
    pub retry_period: Duration,
}

/// Error of starting an election.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// An environment variable is not a duration.
    #[error("{variable}={value:?}: {cause}")]
    Variable {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: String,
        /// The problem with the value.
        cause: String,
    },
    /// The durations contradict each other.
    #[error("{}: {source}", variables.join(", "))]
    Durations {
        /// The variables involved, with their values.
        variables: Vec<String>,
        /// Every problem.
        source: TimingError,
    },
    /// The election cannot be built.
    #[error(transparent)]
    Election(#[from] tenure::BuildError),
}

/// The reason for the end of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A shutdown was requested: code 0.
    Requested,
    /// The term or the work ended: code 1.
    Lost(String),
}

impl LeaderElection {
    /// Creates an election on a Lease of this name.
    pub fn new(client: Client, name: &str) -> Self {
        Self {
            client,
            namespace: DEFAULT_NAMESPACE.to_owned(),
            name: name.to_owned(),
            identity: None,
            kind: LockKind::Leases,
        }
    }

    /// Sets the namespace. As in wrangler, an empty one means `kube-system`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        let given = Some(namespace).filter(|namespace| !namespace.is_empty());
        self.namespace = given.unwrap_or(DEFAULT_NAMESPACE).to_owned();
        self
    }

    /// Uses the host name as identity, as in wrangler. Two processes on one host then have the same identity; the default
    /// adds a random part.
    pub fn hostname_identity(mut self) -> Self {
        self.identity = Some(tenure::identity::hostname());
        self
    }

    /// Sets the lock kind: a Lease by default; wrangler used `ConfigMaps` until 2022.
    pub fn lock_kind(mut self, kind: LockKind) -> Self {
        self.kind = kind;
        self
    }

    /// Leads one term and returns how the process should end.
    ///
    /// # Errors
    /// Returns an error for an invalid environment variable or name.
    pub async fn run<W>(
        self,
        shutdown: impl Future,
        work: impl FnOnce(Tenure) -> W,
    ) -> Result<Ending, Invalid>
    where
        W: Future<Output = ()>,
    {
        let durations = Durations::from_env(|name| {
            // A value that is not UTF-8 is not a duration; the error shows it.
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })?;
        let mut builder = Elector::open(self.client, self.kind, &self.namespace, &self.name)
            .lease_duration(durations.lease_duration)
            .renew_deadline(durations.renew_deadline)
            .retry_period(durations.retry_period);
        if let Some(identity) = self.identity {
            builder = builder.identity(identity);
        }
        let asked = std::cell::Cell::new(false);
        let shutdown = async {
            shutdown.await;
            asked.set(true);
        };
        let work = |tenure: Tenure| async move {
            work(tenure.clone()).await;
            // As in client-go, work that returns keeps the lock.
            tenure.cancelled().await;
        };
        let ended = builder.build()?.run(shutdown, work).await;
        if asked.get() {
            return Ok(Ending::Requested);
        }
        Ok(match ended {
            Ended::Panicked(panic) => Ending::Lost(format!("panicked: {}", panic_text(&*panic))),
            Ended::Stopped { reason, .. } => Ending::Lost(reason.as_str().to_owned()),
            Ended::NeverLed | Ended::Completed(()) => Ending::Lost("ended".to_owned()),
        })
    }

    /// Leads one term and ends the process. The exit code is 0 after a requested shutdown, and 1 if the election could
    /// not be started or the term was lost.
    pub async fn run_or_die<W>(self, shutdown: impl Future, work: impl FnOnce(Tenure) -> W) -> !
    where
        W: Future<Output = ()>,
    {
        let name = self.name.clone();
        match self.run(shutdown, work).await {
            Ok(Ending::Requested) => exit(0, "requested to terminate, exiting"),
            Ok(Ending::Lost(why)) => exit(1, &format!("leaderelection lost for {name}: {why}")),
            Err(error) => exit(
                1,
                &format!("failed to start leader election for {name}: {error}"),
            ),
        }
    }
}

impl Durations {
    /// Reads wrangler's durations: 45 s / 30 s / 2 s, or 45 h / 30 h if `CATTLE_DEV_MODE` is set, for debuggers.
    /// `CATTLE_ELECTION_LEASE_DURATION`, `CATTLE_ELECTION_RENEW_DEADLINE` and `CATTLE_ELECTION_RETRY_PERIOD` override both.
    ///
    /// # Errors
    /// Returns the invalid variable with its value and the reason, or all variables that contradict each other.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, Invalid> {
        const HOUR: u64 = 3600;
        let get = |variable: &str| get(variable).filter(|value| !value.is_empty());
        let development = get(DEVELOPMENT).map(|value| named(DEVELOPMENT, &value));
        let unit = if development.is_some() { HOUR } else { 1 };
        let read = |variable: &'static str, default: u64, scaled: &Option<String>| {
            let Some(value) = get(variable) else {
                return Ok((Duration::from_secs(default), scaled.clone()));
            };
            match duration::parse(&value) {
                Ok(duration) => Ok((duration, Some(named(variable, &value)))),
                Err(cause) => Err(Invalid::Variable {
                    variable,
                    value,
                    cause,
                }),
            }
        };
        let (lease_duration, lease) =
            read("CATTLE_ELECTION_LEASE_DURATION", 45 * unit, &development)?;
        let (renew_deadline, renew) =
            read("CATTLE_ELECTION_RENEW_DEADLINE", 30 * unit, &development)?;
        let (retry_period, retry) = read("CATTLE_ELECTION_RETRY_PERIOD", 2, &None)?;
        let timing = Timing::builder()
            .lease_duration(lease_duration)
            .renew_deadline(renew_deadline)
            .retry_period(retry_period);
        if let Err(source) = timing.build() {
            let problems = source.problems.iter();
            let variables: BTreeSet<&String> = problems
                .flat_map(|problem| concerned(problem, [&lease, &renew, &retry]))
                .flatten()
                .collect();
            let variables = variables.into_iter().cloned().collect();
            return Err(Invalid::Durations { variables, source });
        }
        Ok(Self {
            lease_duration,
            renew_deadline,
            retry_period,
        })
    }
}

/// Formats a variable with its value.
fn named(variable: &str, value: &str) -> String {
    format!("{variable}={value:?}")
}

/// Selects which of lease duration, renew deadline and retry period a problem concerns.
fn concerned<T>(problem: &TimingProblem, [lease, renew, retry]: [T; 3]) -> Vec<T> {
    match problem {
        TimingProblem::LeaseNotWholeSeconds { .. } | TimingProblem::LeaseTooLong { .. } => {
            vec![lease]
        }
        TimingProblem::Zero {
            what: "renew deadline",
        } => vec![renew],
        TimingProblem::Zero { .. } => vec![retry],
        TimingProblem::LeaseNotAboveRenew { .. } => vec![lease, renew],
        TimingProblem::RenewNotAboveRetry { .. } => vec![renew, retry],
        _ => vec![lease, renew, retry],
    }
}

/// k3s's run-or-die: runs a component that must not end before `shutdown`. If it returns or panics earlier, the process
/// prints its name and exits with 1. Returns after the shutdown.
pub async fn run_or_die(name: &str, shutdown: impl Future, work: impl Future<Output = ()>) {
    use futures_util::FutureExt as _;
    let work = std::panic::AssertUnwindSafe(work).catch_unwind();
    tokio::select! {
        biased;
        _ = shutdown => {}
        ended = work => match ended {
            Ok(()) => exit(1, &format!("{name} returned without a request to stop")),
            Err(panic) => exit(1, &format!("{name} panicked: {}", panic_text(&*panic))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durations(env: &[(&str, &str)]) -> Result<Durations, String> {
        let get = |name: &str| {
            let found = env.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Durations::from_env(get).map_err(|error| error.to_string())
    }

    fn seconds(lease: u64, renew: u64, retry: u64) -> Durations {
        Durations {
            lease_duration: Duration::from_secs(lease),
            renew_deadline: Duration::from_secs(renew),
            retry_period: Duration::from_secs(retry),
        }
    }

    #[test]
    fn durations_equal_those_of_wrangler() {
        assert_eq!(durations(&[]), Ok(seconds(45, 30, 2)));
        assert_eq!(
            durations(&[("CATTLE_DEV_MODE", "")]),
            Ok(seconds(45, 30, 2))
        );
        let hours = seconds(45 * 3600, 30 * 3600, 2);
        assert_eq!(durations(&[("CATTLE_DEV_MODE", "1")]), Ok(hours));
        let env = [
            ("CATTLE_DEV_MODE", "1"),
            ("CATTLE_ELECTION_LEASE_DURATION", "1m"),
            ("CATTLE_ELECTION_RENEW_DEADLINE", "40s"),
            ("CATTLE_ELECTION_RETRY_PERIOD", "5s"),
        ];
        assert_eq!(durations(&env), Ok(seconds(60, 40, 5)));
    }

    #[test]
    fn a_bad_variable_is_named_with_its_value_and_the_cause() {
        for variable in [
            "CATTLE_ELECTION_LEASE_DURATION",
            "CATTLE_ELECTION_RENEW_DEADLINE",
            "CATTLE_ELECTION_RETRY_PERIOD",
        ] {
            for value in ["5 apples", "5", "-5s"] {
                let env = [("CATTLE_DEV_MODE", "1"), (variable, value)];
                let cause = format!("{value:?} is not a duration such as \"10m\" or \"1h30m\"");
                let error = format!("{variable}={value:?}: {cause}");
                assert_eq!(durations(&env), Err(error));
            }
        }
    }

    #[test]
    fn variables_that_contradict_each_other_are_all_named() {
        const LEASE: &str = "CATTLE_ELECTION_LEASE_DURATION";
        const RENEW: &str = "CATTLE_ELECTION_RENEW_DEADLINE";
        const RETRY: &str = "CATTLE_ELECTION_RETRY_PERIOD";
        for (env, error) in [
            (
                &[(LEASE, "40s"), (RENEW, "50s"), (RETRY, "3s")][..],
                "CATTLE_ELECTION_LEASE_DURATION=\"40s\", CATTLE_ELECTION_RENEW_DEADLINE=\"50s\": \
                 invalid election timing: lease duration 40s must be greater than renew deadline 50s",
            ),
            // The other variable has its default.
            (
                &[(RENEW, "45s")],
                "CATTLE_ELECTION_RENEW_DEADLINE=\"45s\": invalid election timing: \
                 lease duration 45s must be greater than renew deadline 45s",
            ),
            (
                &[(RETRY, "29s")],
                "CATTLE_ELECTION_RETRY_PERIOD=\"29s\": invalid election timing: \
                 renew deadline 30s must be greater than retry period 29s * 1.2; \
                 retry period 29s + renew deadline 30s + request timeout 10ms + margin 1.5s \
                 must fit into lease duration 45s",
            ),
            // The default of the other duration comes from `CATTLE_DEV_MODE`.
            (
                &[("CATTLE_DEV_MODE", "yes"), (LEASE, "1m")],
                "CATTLE_DEV_MODE=\"yes\", CATTLE_ELECTION_LEASE_DURATION=\"1m\": invalid election \
                 timing: lease duration 60s must be greater than renew deadline 108000s",
            ),
            (
                &[("CATTLE_DEV_MODE", "yes"), (LEASE, "47h"), (RETRY, "0")],
                "CATTLE_ELECTION_RETRY_PERIOD=\"0\": invalid election timing: \
                 retry period must be greater than zero",
            ),
        ] {
            assert_eq!(durations(env), Err(error.to_owned()));
        }
    }
}
