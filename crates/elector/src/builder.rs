//! Configuration of an elector, with client-go's names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tenure_core::timing::TimingBuilder;
use tenure_core::{Config, Failback, StopReason, Timing};
use tenure_lock::candidate::{self, CandidateSpec, LeaseCandidate};
use tenure_lock::member::{Announcement, Members};
use tenure_lock::{Lock, LockKind, Precision, Watch, label_problem};

use crate::callbacks::Callbacks;
use crate::clock::{Clock, SystemClock};
use crate::deadline::Overrun;
use crate::death::{self, DeathProof};
use crate::elector::Elector;
use crate::error::{BuildError, Problem};
use crate::handle::Handle;
use crate::health::HealthAdaptor;
use crate::hub::Hub;
use crate::identity;
use crate::member::{Keeper, Membership, Ranking};
use crate::metrics::Metrics;
use crate::shared::Shared;

/// Collects the configuration of an elector; [`build`](Self::build) validates all of it.
///
/// The defaults are client-go's convention of 15 s / 10 s / 2 s. Unlike in client-go, the lock is released when a term
/// ends. This is safe because it happens only after the work has ended.
#[must_use = "call build"]
pub struct Builder {
    lock: Opening,
    client: Option<Client>,
    timing: TimingBuilder,
    identity: Option<String>,
    name: Option<String>,
    labels: BTreeMap<String, String>,
    release_on_cancel: bool,
    for_life: bool,
    overrun: Overrun,
    hub: Option<Hub>,
    /// The system clock by default. A hub has its own clock.
    clock: Option<Arc<dyn Clock>>,
    watchdog: Option<Arc<HealthAdaptor>>,
    metrics: Option<Metrics>,
    events: bool,
    event_source: Option<Arc<str>>,
    coordinated: Option<Coordinated>,
    proofs: Vec<Arc<dyn DeathProof>>,
    announced: Option<Announcement>,
    ranking: Option<Ranking>,
    seed: Option<u64>,
}

/// Source of the lock.
enum Opening {
    Given(Arc<dyn Lock>),
    Open {
        kind: LockKind,
        namespace: String,
        name: String,
    },
}

impl Builder {
    pub(crate) fn given(lock: Arc<dyn Lock>) -> Self {
        Self::new(Opening::Given(lock), None)
    }

    pub(crate) fn open(client: Client, kind: LockKind, namespace: &str, name: &str) -> Self {
        let opening = Opening::Open {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Self::new(opening, Some(client))
    }

    fn new(lock: Opening, client: Option<Client>) -> Self {
        Self {
            lock,
            client,
            timing: Timing::builder(),
            identity: None,
            name: None,
            labels: BTreeMap::new(),
            release_on_cancel: true,
            for_life: false,
            overrun: Overrun::default(),
            hub: None,
            clock: None,
            watchdog: None,
            metrics: None,
            events: true,
            event_source: None,
            coordinated: None,
            proofs: Vec::new(),
            announced: None,
            ranking: None,
            seed: None,
        }
    }

    /// Sets LeaseDuration: other candidates wait this long after the last renewal that they observed. It must be in
    /// whole seconds.
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.timing = self.timing.lease_duration(duration);
        self
    }

    /// Sets RenewDeadline: a leader that cannot renew gives up this long after it sent its last successful renewal.
    /// (client-go counts from a later instant, see `docs/book/explanation/safety.md`.)
    pub fn renew_deadline(mut self, duration: Duration) -> Self {
        self.timing = self.timing.renew_deadline(duration);
        self
    }

    /// Sets RetryPeriod: the interval at which a leader renews, and at which a follower without a watch polls (with
    /// jitter).
    pub fn retry_period(mut self, duration: Duration) -> Self {
        self.timing = self.timing.retry_period(duration);
        self
    }

    /// Sets the request timeout. The default is the time that the other durations leave, at most half the renew
    /// deadline.
    pub fn request_timeout(mut self, duration: Duration) -> Self {
        self.timing = self.timing.request_timeout(duration);
        self
    }

    /// Sets the lock delay: waits this much longer for a term of another candidate that expired without a release.
    /// Use it if the resource that leaders change cannot check fencing tokens. Zero by default. All candidates must use
    /// the same lock delay; those of client-go have none.
    pub fn lock_delay(mut self, duration: Duration) -> Self {
        self.timing = self.timing.lock_delay(duration);
        self
    }

    /// Accepts durations that client-go accepts although they leave no margin. The violated rule is logged as a
    /// warning.
    pub fn client_go_compat(mut self, yes: bool) -> Self {
        self.timing = self.timing.client_go_compat(yes);
        self
    }

    /// Sets the identity of this candidate; by default [`host_uuid`](identity::host_uuid). Two processes must not share
    /// an identity, and neither must two runs of one process.
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// Sets the name of this election in metrics and health checks; by default the name of the lock object.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Adds a label that every write sets on the lock object. Other labels are kept.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Adds labels that every write sets on the lock object. Other labels are kept.
    pub fn labels(mut self, labels: BTreeMap<String, String>) -> Self {
        self.labels.extend(labels);
        self
    }

    /// Sets ReleaseOnCancel: whether to release the lock when a term ends; true by default. The release is sent only
    /// after the work has ended, and never once the guard has expired.
    pub fn release_on_cancel(mut self, yes: bool) -> Self {
        self.release_on_cancel = yes;
        self
    }

    /// Ties a term to the object that the identity names (for example a pod with its uid), not to this process; false
    /// by default. A term of the same lease duration is then never taken over from another identity, regardless of its
    /// age. The record is emptied once its holder is confirmed dead. A term with this candidate's identity continues
    /// immediately. A shutdown keeps the term, and a step-down releases it. At most one elector at a time may use the
    /// identity.
    pub fn for_life(mut self, yes: bool) -> Self {
        self.for_life = yes;
        self
    }

    /// Sets the policy for work that exceeds its deadline; [`Overrun::Abort`] by default.
    pub fn on_overrun(mut self, policy: Overrun) -> Self {
        self.overrun = policy;
        self
    }

    /// Sets the client for the watch and for Events, if the lock was created by the caller. Without a client, a lock
    /// outside this process is polled.
    pub fn client(mut self, client: Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Runs this election in a hub together with others. By default it has its own hub.
    pub fn hub(mut self, hub: &Hub) -> Self {
        self.hub = Some(hub.clone());
        self
    }

    /// Sets another clock, for tests and simulations. A [hub](Self::hub) has its own clock, so
    /// [`build`](Self::build) rejects the combination.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the seed of the small random delays that keep candidates apart, for reproducible simulations; random by
    /// default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets client-go's WatchDog. [`build`](Self::build) attaches it, so it works with every way of running the
    /// elector.
    pub fn watchdog(mut self, adaptor: &Arc<HealthAdaptor>) -> Self {
        self.watchdog = Some(adaptor.clone());
        self
    }

    /// Records this election in these metrics, under its [`name`](Self::name).
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Sets whether to post Events about the lock object when a term begins and ends; true by default. If the
    /// permission to create Events is missing, one warning is logged.
    pub fn events(mut self, yes: bool) -> Self {
        self.events = yes;
        self
    }

    /// Sets the source component of these Events; `tenure` by default.
    pub fn event_source(mut self, component: impl Into<String>) -> Self {
        self.event_source = Some(component.into().into());
        self
    }

    /// Participates in a coordinated election (KEP-4355): publishes a LeaseCandidate. It leads when the controller in
    /// the API server assigns the Lease, and stops when the controller prefers another candidate. Only for Leases that
    /// this builder opens.
    pub fn coordinated(mut self, candidate: Coordinated) -> Self {
        self.coordinated = Some(candidate);
        self
    }

    /// Takes over without waiting for the lease if this source proves that the holder has ended. May be called several
    /// times. By default no death is confirmed.
    ///
    /// While this candidate leads, its writes describe where it runs, in the annotation `tenure.dev/holder`. A lock that
    /// the caller created describes it only if the caller opened it with
    /// [`LockKind::open_at`](tenure_lock::LockKind::open_at). Use a source only if the work ends with the processes that
    /// it describes; see `docs/book/explanation/safety.md`.
    ///
    /// ```no_run
    /// # fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let elector = tenure::Elector::lease(client, "default", "my-lease")
    ///     .confirm_death(tenure::HostProof::of_process()?)
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    ///
    /// In a cluster, the kubelet reports the end of a container to candidates on every node. See
    /// [`PodProof`](crate::PodProof) for the variables and permissions that it needs:
    ///
    /// ```no_run
    /// # fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let pod = tenure::PodProof::from_environment(client.clone())?;
    /// let elector = tenure::Elector::lease(client, "default", "my-lease")
    ///     .confirm_death(pod)
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    pub fn confirm_death(mut self, proof: impl DeathProof + 'static) -> Self {
        self.proofs.push(Arc::new(proof));
        self
    }

    /// Announces this candidate to others, and reads which others exist: [`Handle::membership`]. By default a candidate is
    /// not announced, and the election sends no additional requests.
    ///
    /// The candidate keeps a second Lease, `ELECTION.member.HASH`, in the namespace of the lock. It renews it every
    /// 10 s, or more often for lease durations below 15 s, and deletes it at the end. It also deletes those of dead
    /// candidates. It needs the permissions to list, create, update and delete Leases in this namespace. If one is
    /// missing, a warning is logged, and the election works as if this candidate were not announced.
    pub fn announce(mut self, about: Announcement) -> Self {
        self.announced = Some(about);
        self
    }

    /// Ranks this candidate by the priority and the zone that it [announces](Self::announce). By default, candidates are
    /// not ranked.
    ///
    /// A candidate delays its attempt to acquire a free lock by a few milliseconds if a better candidate is ready. With
    /// [`Failback::Auto`], a leader hands over to a better candidate that has been ready for some time. As in a
    /// step-down, its work ends, and then it releases the lock and names that candidate. The fencing token grows, and a
    /// live leader never loses the lock to another candidate.
    ///
    /// ```no_run
    /// # fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::{Announcement, Failback, Ranking};
    ///
    /// let elector = tenure::Elector::lease(client, "default", "my-lease")
    ///     .announce(Announcement {
    ///         priority: 10,
    ///         ..Announcement::default()
    ///     })
    ///     .rank(Ranking {
    ///         failback: Failback::Auto,
    ///         ..Ranking::default()
    ///     })
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    pub fn rank(mut self, ranking: Ranking) -> Self {
        self.ranking = Some(ranking);
        self
    }

    /// Implements client-go's `RunOrDie`: builds the elector, runs one term with callbacks, and returns when the term
    /// has ended or `shutdown` completes first. Returns the reason for the end, or nothing if there was no term.
    ///
    /// # Panics
    ///
    /// Panics if the configuration is invalid, and outside a tokio runtime.
    pub async fn run_or_die(
        self,
        shutdown: impl Future,
        callbacks: Callbacks,
    ) -> Option<StopReason> {
        match self.build() {
            Ok(elector) => elector.run_callbacks(shutdown, callbacks).await,
            Err(error) => panic!("{error}"),
        }
    }

    /// Validates the configuration.
    ///
    /// # Errors
    ///
    /// One error that lists every problem with its values.
    pub fn build(self) -> Result<Elector, BuildError> {
        let mut problems = Vec::new();
        let identity = self.identity.unwrap_or_else(identity::host_uuid);
        if identity.is_empty() {
            problems.push(Problem::EmptyIdentity);
        } else if identity.chars().any(char::is_control) {
            problems.push(Problem::Identity(identity.clone()));
        }
        if self.hub.is_some() && self.clock.is_some() {
            problems.push(Problem::ClockOfHub);
        }
        let timing = self.timing.build().map_err(|error| {
            problems.extend(error.problems.into_iter().map(Problem::Timing));
        });
        let delays = matches!(&timing, Ok(timing) if !timing.lock_delay().is_zero());
        if delays && (self.for_life || self.coordinated.is_some()) {
            problems.push(Problem::LockDelayWithoutExpiry);
        }
        if !self.proofs.is_empty() && (self.for_life || self.coordinated.is_some()) {
            problems.push(Problem::ConfirmDeathWithoutExpiry);
        }
        let preference = self.ranking.as_ref().map(|ranking| {
            if self.for_life || self.coordinated.is_some() {
                problems.push(Problem::RankWithoutChoice);
            } else if ranking.failback == Failback::Auto && !self.release_on_cancel {
                problems.push(Problem::FailbackWithoutRelease);
            }
            if !ranking.is_valid() {
                problems.push(Problem::FailbackAfter(ranking.failback_after));
            }
            if self.announced.is_none() {
                problems.push(Problem::RankWithoutAnnouncement);
            }
            ranking.preference(self.announced.as_ref().unwrap_or(&Announcement::default()))
        });
        let object = match &self.lock {
            Opening::Given(lock) => lock.describe().rsplit(['/', ' ']).next().map(str::to_owned),
            Opening::Open { name, .. } => Some(name.clone()),
        };
        let candidate = match (self.coordinated, &self.lock, &self.client) {
            (None, ..) => None,
            (
                Some(coordinated),
                Opening::Open {
                    kind: LockKind::Leases,
                    namespace,
                    name,
                },
                Some(client),
            ) => {
                let spec = coordinated.spec(name);
                let candidate = LeaseCandidate::new(client.clone(), namespace, &identity, spec);
                candidate
                    .map_err(|error| problems.push(error.into()))
                    .ok()
                    .map(Arc::new)
            }
            (Some(_), ..) => {
                problems.push(Problem::CoordinatedWithoutLease);
                None
            }
        };
        let lock = match (self.lock, &self.client) {
            (Opening::Given(lock), _) => {
                if !self.labels.is_empty() {
                    problems.push(Problem::LabelsOfGivenLock);
                }
                Ok(lock)
            }
            (
                Opening::Open {
                    kind,
                    namespace,
                    name,
                },
                client,
            ) => {
                let bad = |(key, value): (&String, &String)| label_problem(key, value);
                problems.extend(self.labels.iter().filter_map(bad).map(Problem::Label));
                let client = client
                    .clone()
                    .expect("`open` takes the client with the name");
                let place = death::place(&self.proofs);
                let opened = kind.open_at(client, &namespace, &name, &self.labels, place.as_ref());
                opened.map_err(|error| problems.push(error.into()))
            }
        };
        let announced = self.announced.zip(lock.as_ref().ok());
        let announced = announced.and_then(|(about, lock)| {
            let members = members_of(&**lock, self.client.as_ref());
            let opened = members.map_err(|problem| problems.push(problem)).ok();
            opened.map(|(members, election)| (members, election, about))
        });
        let (Ok(timing), Ok(lock), true) = (timing, lock, problems.is_empty()) else {
            return Err(BuildError { problems });
        };
        warn_of(&timing, lock.describe());

        let clock = match (&self.hub, self.clock) {
            (Some(hub), _) => hub.clock().clone(),
            (None, Some(clock)) => clock,
            (None, None) => Arc::new(SystemClock),
        };
        let name = self.name.or(object).unwrap_or_default();
        let shared = Arc::new(Shared::new(
            name.into(),
            lock.describe().into(),
            identity.as_str().into(),
            timing.lease(),
            clock.clone(),
        ));
        if let Some(adaptor) = &self.watchdog {
            adaptor.attach(Handle::new(shared.clone()).health());
        }
        let keeper = announced.map(|(members, election, about)| {
            let membership = Membership::new(clock.clone(), shared.lease);
            // The elector is new, so no other membership is set.
            let _ = shared.membership.set(membership.clone());
            let keeper = Keeper::new(members, membership, shared.clone(), &election, about);
            keeper.ranked(self.ranking)
        });
        let core = Config {
            identity,
            timing,
            release_on_cancel: self.release_on_cancel,
            for_life: self.for_life,
            rejoin: true,
            coordinated: candidate.is_some(),
            preference,
            whole_seconds: lock.precision() == Precision::Seconds,
            seed: self.seed.unwrap_or_else(identity::seed),
        };
        let settings = Settings {
            lock,
            core,
            overrun: self.overrun,
            metrics: self.metrics,
            events: self.events,
            event_source: self.event_source,
            candidate,
            proofs: self.proofs,
            keeper: keeper.map(Box::new),
            #[cfg(feature = "_mutants")]
            mutant: None,
        };
        Ok(Elector::new(
            settings,
            shared,
            self.hub.ok_or((self.client, clock)),
        ))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("timing", &self.timing)
            .field("identity", &self.identity)
            .field("release_on_cancel", &self.release_on_cancel)
            .field("for_life", &self.for_life)
            .finish_non_exhaustive()
    }
}

/// A validated configuration for the driver.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) lock: Arc<dyn Lock>,
    pub(crate) core: Config,
    pub(crate) overrun: Overrun,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) events: bool,
    pub(crate) event_source: Option<Arc<str>>,
    pub(crate) candidate: Option<Arc<LeaseCandidate>>,
    pub(crate) proofs: Vec<Arc<dyn DeathProof>>,
    /// The task that announces this candidate, until it is started.
    pub(crate) keeper: Option<Box<Keeper>>,
    #[cfg(feature = "_mutants")]
    pub(crate) mutant: Option<tenure_core::Mutant>,
}

/// Opens the members of the election of this lock. Returns them with the name of the election.
fn members_of(lock: &dyn Lock, client: Option<&Client>) -> Result<(Members, String), Problem> {
    let target = match lock.watch() {
        Watch::Objects(targets) => targets.into_iter().next(),
        _ => None,
    };
    let (Some(target), Some(client)) = (target, client) else {
        return Err(Problem::AnnounceWithoutServer);
    };
    let (namespace, name) = (target.object.namespace(), target.object.name());
    let members = Members::open(client.clone(), namespace, name)?;
    Ok((members, name.to_owned()))
}

/// Properties that a candidate of a coordinated election announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinated {
    /// Version of the program, for example `1.37.0`.
    pub binary_version: String,
    /// Version whose behaviour the program emulates.
    pub emulation_version: String,
    /// Strategy by which the controller selects a candidate. Kubernetes implements
    /// [`OLDEST_EMULATION_VERSION`](tenure_lock::candidate::OLDEST_EMULATION_VERSION).
    pub strategy: String,
}

impl Coordinated {
    /// Returns properties with the strategy of Kubernetes: the candidate with the oldest emulation version leads.
    pub fn oldest_emulation_version(
        binary_version: impl Into<String>,
        emulation_version: impl Into<String>,
    ) -> Self {
        Self {
            binary_version: binary_version.into(),
            emulation_version: emulation_version.into(),
            strategy: candidate::OLDEST_EMULATION_VERSION.to_owned(),
        }
    }

    fn spec(self, lease_name: &str) -> CandidateSpec {
        CandidateSpec {
            lease_name: lease_name.to_owned(),
            binary_version: self.binary_version,
            emulation_version: self.emulation_version,
            strategy: self.strategy,
        }
    }
}

/// Logs waived rules with the remaining margin.
fn warn_of(timing: &Timing, lock: &str) {
    let rate = format!("{:.1} %", timing.tolerated_rate_error() * 100.0);
    let (request, grace) = (timing.request_timeout(), timing.grace());
    for warning in timing.warnings() {
        tracing::warn!(
            lock, %warning, tolerated_rate_error = rate, request_timeout = ?request,
            time_to_stop = ?grace, "these durations leave no margin"
        );
    }
    tracing::debug!(
        lock, lease = ?timing.lease(), guard = ?timing.guard(), retry = ?timing.retry_period(),
        request_timeout = ?request, time_to_stop = ?grace, tolerated_rate_error = rate, "durations"
    );
}
