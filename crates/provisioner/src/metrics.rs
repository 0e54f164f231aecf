//! Metrics with the names of sig-storage-lib-external-provisioner.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Prometheus's default buckets.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// Counts of claims and volumes. A claim of another provisioner, or one that is returned to the scheduler, does not
/// count as failed.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    provisioned: Family<ClaimLabels, Counter>,
    provision_failed: Family<ClaimLabels, Counter>,
    provision_seconds: Family<ClaimLabels, Histogram>,
    deleted: Family<VolumeLabels, Counter>,
    delete_failed: Family<VolumeLabels, Counter>,
    delete_seconds: Family<VolumeLabels, Histogram>,
}

/// Number of CSIStorageCapacity objects that are wanted, current and obsolete.
#[derive(Clone, Debug, Default)]
pub(crate) struct CapacityMetrics {
    goal: Gauge,
    current: Gauge,
    obsolete: Gauge,
}

impl CapacityMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        for (name, help, gauge) in [
            (
                "desired_goal",
                "CSIStorageCapacity objects that should exist",
                &self.goal,
            ),
            (
                "desired_current",
                "CSIStorageCapacity objects that should exist and do",
                &self.current,
            ),
            (
                "obsolete",
                "CSIStorageCapacity objects that exist and should not",
                &self.obsolete,
            ),
        ] {
            let name = format!("csistoragecapacities_{name}");
            registry.register(name, help, gauge.clone());
        }
    }

    pub(crate) fn set(&self, goal: usize, current: usize, obsolete: usize) {
        for (gauge, value) in [
            (&self.goal, goal),
            (&self.current, current),
            (&self.obsolete, obsolete),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ClaimLabels {
    pub(crate) class: String,
    pub(crate) source: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VolumeLabels {
    class: String,
}

impl Default for Metrics {
    fn default() -> Self {
        let histogram = || Histogram::new(BUCKETS);
        Self {
            provisioned: Family::default(),
            provision_failed: Family::default(),
            provision_seconds: Family::new_with_constructor(histogram),
            deleted: Family::default(),
            delete_failed: Family::default(),
            delete_seconds: Family::new_with_constructor(histogram),
        }
    }
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let claims = "controller_persistentvolumeclaim_provision";
        let volumes = "controller_persistentvolume_delete";
        registry.register(claims, "Provisioned claims", self.provisioned.clone());
        let name = format!("{claims}_failed");
        registry.register(
            name,
            "Failed attempts to provision",
            self.provision_failed.clone(),
        );
        let name = format!("{claims}_duration_seconds");
        registry.register(
            name,
            "Duration of provisioning",
            self.provision_seconds.clone(),
        );
        registry.register(volumes, "Deleted volumes", self.deleted.clone());
        let name = format!("{volumes}_failed");
        registry.register(
            name,
            "Failed attempts to delete",
            self.delete_failed.clone(),
        );
        let name = format!("{volumes}_duration_seconds");
        registry.register(name, "Duration of deletions", self.delete_seconds.clone());
    }

    pub(crate) fn provisioned(&self, labels: &ClaimLabels, took: Duration) {
        self.provisioned.get_or_create(labels).inc();
        let seconds = self.provision_seconds.get_or_create(labels);
        seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn provision_failed(&self, labels: &ClaimLabels) {
        self.provision_failed.get_or_create(labels).inc();
    }

    pub(crate) fn deleted(&self, class: &str, took: Duration) {
        let class = class.to_owned();
        let labels = VolumeLabels { class };
        self.deleted.get_or_create(&labels).inc();
        let seconds = self.delete_seconds.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn delete_failed(&self, class: &str) {
        let class = class.to_owned();
        self.delete_failed
            .get_or_create(&VolumeLabels { class })
            .inc();
    }
}
