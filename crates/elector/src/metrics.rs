//! Prometheus metrics: client-go's two metrics with their names, and additional ones.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
pub use prometheus_client::registry::Registry;
use tenure_core::WallTime;
use tenure_lock::Class;

use crate::member::Membership;
use crate::shared::Shared;
use crate::sync::lock;

/// The metrics of any number of elections, distinguished by their [name](crate::Builder::name). Cheap to clone.
///
/// ```
/// let mut registry = tenure::metrics::Registry::default();
/// let metrics = tenure::Metrics::new();
/// metrics.register(&mut registry);
/// // tenure::Elector::lease(client, "default", "my-lease").metrics(&metrics)
/// ```
///
/// | metric | meaning |
/// |---|---|
/// | `leader_election_master_status` | 1 while leading, 0 otherwise, including after a cancellation |
/// | `leader_election_slowpath_total` | renewals that needed a read first |
/// | `tenure_transitions` | `leaseTransitions` of the record last observed |
/// | `tenure_terms_total` | terms led by this process |
/// | `tenure_renew_seconds` | duration of renewals |
/// | `tenure_acquire_seconds` | time from the start of a campaign until leading |
/// | `tenure_validity_seconds` | time that this process would still lead without another renewal, computed at each scrape |
/// | `tenure_election_candidates` | candidates that announce themselves, by readiness; only if this one does |
/// | `tenure_errors_total` | failed requests, by class |
/// | `tenure_last_error_timestamp_seconds` | time of the last failed request |
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    master_status: Family<Name, Gauge>,
    slowpath: Family<Name, Counter>,
    transitions: Family<Name, Gauge>,
    terms: Family<Name, Counter>,
    renew: Family<Name, Histogram>,
    acquire: Family<Name, Histogram>,
    errors: Family<NameClass, Counter>,
    last_error: Family<Name, Gauge<f64, std::sync::atomic::AtomicU64>>,
    elections: Elections,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            master_status: Family::default(),
            slowpath: Family::default(),
            transitions: Family::default(),
            terms: Family::default(),
            renew: Family::new_with_constructor(|| {
                Histogram::new([
                    0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
                ])
            }),
            acquire: Family::new_with_constructor(|| {
                Histogram::new([
                    0.01, 0.05, 0.25, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 300.0,
                ])
            }),
            errors: Family::default(),
            last_error: Family::default(),
            elections: Elections::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NameReady {
    name: String,
    ready: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NameClass {
    name: String,
    class: &'static str,
}

impl Metrics {
    /// Creates metrics that are not registered yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let Inner {
            master_status,
            slowpath,
            transitions,
            terms,
            renew,
            acquire,
            errors,
            last_error,
            elections,
        } = &*self.inner;
        registry.register(
            "leader_election_master_status",
            "1 while this process leads, 0 otherwise",
            master_status.clone(),
        );
        registry.register(
            "leader_election_slowpath",
            "Renewals that had to read the lock first",
            slowpath.clone(),
        );
        registry.register(
            "tenure_transitions",
            "Number of changes of holder, from the record of the lock",
            transitions.clone(),
        );
        registry.register("tenure_terms", "Terms led by this process", terms.clone());
        registry.register(
            "tenure_renew_seconds",
            "Duration of renewals",
            renew.clone(),
        );
        registry.register(
            "tenure_acquire_seconds",
            "Time from the start of a campaign until leading",
            acquire.clone(),
        );
        registry.register("tenure_errors", "Failed requests", errors.clone());
        registry.register(
            "tenure_last_error_timestamp_seconds",
            "Time of the last failed request, in seconds since 1970",
            last_error.clone(),
        );
        registry.register_collector(Box::new(elections.clone()));
    }

    /// Returns the recorder of one election. As in client-go, its gauge is 0 from the start.
    pub(crate) fn recorder(&self, shared: &Arc<Shared>) -> Recorder {
        let name = Name {
            name: shared.name.to_string(),
        };
        self.inner.master_status.get_or_create(&name).set(0);
        drop(self.inner.slowpath.get_or_create(&name));
        let mut elections = lock(&self.inner.elections.0);
        elections.retain(|other| other.strong_count() > 0);
        elections.push(Arc::downgrade(shared));
        Recorder {
            name,
            metrics: self.clone(),
        }
    }
}

/// Records the metrics of one election.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    name: Name,
    metrics: Metrics,
}

impl Recorder {
    pub(crate) fn leading(&self, yes: bool) {
        let status = &self.metrics.inner.master_status;
        status.get_or_create(&self.name).set(i64::from(yes));
    }

    pub(crate) fn slow_renewal(&self) {
        let slowpath = &self.metrics.inner.slowpath;
        slowpath.get_or_create(&self.name).inc();
    }

    pub(crate) fn transitions(&self, transitions: u32) {
        let gauge = &self.metrics.inner.transitions;
        gauge.get_or_create(&self.name).set(transitions.into());
    }

    pub(crate) fn acquired(&self, took: Duration) {
        let inner = &self.metrics.inner;
        inner.terms.get_or_create(&self.name).inc();
        let acquire = inner.acquire.get_or_create(&self.name);
        acquire.observe(took.as_secs_f64());
    }

    pub(crate) fn renewed(&self, took: Duration) {
        let renew = self.metrics.inner.renew.get_or_create(&self.name);
        renew.observe(took.as_secs_f64());
    }

    pub(crate) fn failed(&self, class: Class, at: WallTime) {
        let inner = &self.metrics.inner;
        let class = match class {
            Class::Refused => "refused",
            Class::Unknown => "unknown",
            Class::Unusable => "unusable",
        };
        let name = self.name.name.clone();
        inner.errors.get_or_create(&NameClass { name, class }).inc();
        let seconds = Duration::from_micros(u64::try_from(at.as_micros()).unwrap_or_default());
        let last = inner.last_error.get_or_create(&self.name);
        last.set(seconds.as_secs_f64());
    }
}

/// The elections whose remaining validity and candidates are computed at each scrape.
#[derive(Clone, Default)]
struct Elections(Arc<Mutex<Vec<Weak<Shared>>>>);

impl fmt::Debug for Elections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elections({})", lock(&self.0).len())
    }
}

impl Collector for Elections {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut metric = encoder.encode_descriptor(
            "tenure_validity_seconds",
            "Remaining time of the guard without another renewal; 0 if this process does not lead",
            None,
            MetricType::Gauge,
        )?;
        for shared in lock(&self.0).iter().filter_map(Weak::upgrade) {
            let tenure = lock(&shared.term).clone();
            let left = tenure.map_or(Duration::ZERO, |tenure| tenure.valid_for());
            let name = Name {
                name: shared.name.to_string(),
            };
            metric
                .encode_family(&name)?
                .encode_gauge(&left.as_secs_f64())?;
        }
        self.encode_candidates(encoder)
    }
}

impl Elections {
    /// Writes the number of candidates of the elections whose candidates are known.
    fn encode_candidates(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let known: Vec<Arc<Shared>> = lock(&self.0)
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|shared| shared.membership.get().is_some_and(Membership::is_current))
            .collect();
        if known.is_empty() {
            return Ok(());
        }
        let mut metric = encoder.encode_descriptor(
            "tenure_election_candidates",
            "Candidates that announce themselves, by whether they are ready to lead",
            None,
            MetricType::Gauge,
        )?;
        for shared in known {
            let living = shared.membership.get().map(Membership::living);
            let living = living.unwrap_or_default();
            let ready = living.iter().filter(|member| member.is_ready()).count();
            for (text, count) in [("true", ready), ("false", living.len() - ready)] {
                let labels = NameReady {
                    name: shared.name.to_string(),
                    ready: text,
                };
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                metric.encode_family(&labels)?.encode_gauge(&count)?;
            }
        }
        Ok(())
    }
}
