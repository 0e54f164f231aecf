//! Durations of calls, under the metric name that all CSI sidecars use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

const BUCKETS: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

/// `csi_sidecar_operations_seconds`, by driver, method and status. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    seconds: Family<Labels, Histogram>,
    driver: Arc<OnceLock<String>>,
    /// Whether samples have the label `migrated`, as they do for drivers that replaced an in-tree plugin.
    label_migrated: Arc<AtomicBool>,
}

/// The labels of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) code: &'static str,
    /// Whether the call is for an object of an in-tree plugin.
    pub(crate) migrated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: &'static str,
    /// The label `migrated`, or no label. csi-provisioner does not write the label with an empty value.
    #[prometheus(flatten)]
    migrated: Vec<(&'static str, &'static str)>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            driver: Arc::default(),
            label_migrated: Arc::default(),
        }
    }
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "csi_sidecar_operations_seconds",
            "Time that calls to the driver took, by status",
            self.seconds.clone(),
        );
    }

    /// Sets the driver label. Earlier calls are labelled `unknown-driver`.
    pub(crate) fn driver_is(&self, name: &str) {
        _ = self.driver.set(name.to_owned());
    }

    /// Adds the label `migrated` to later samples.
    pub fn label_migrated(&self) {
        self.label_migrated.store(true, Ordering::Relaxed);
    }

    pub(crate) fn observe(&self, call: Call, took: Duration) {
        let labelled = self.label_migrated.load(Ordering::Relaxed);
        let migrated = if call.migrated { "true" } else { "false" };
        let driver_name = self.driver.get().map_or("unknown-driver", String::as_str);
        let labels = Labels {
            driver_name: driver_name.to_owned(),
            method_name: call.method,
            grpc_status_code: call.code,
            migrated: labelled
                .then_some(("migrated", migrated))
                .into_iter()
                .collect(),
        };
        let seconds = self.seconds.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
    }
}
