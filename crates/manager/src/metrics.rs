//! Metrics of a manager, with controller-runtime's names.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::queue::QueueMetrics;

/// All metrics of a manager.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) elections: tenure::Metrics,
    pub(crate) queues: QueueMetrics,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    panics: Family<Controller, Counter>,
    restarts: Family<Controller, Counter>,
    reconciles: Family<Reconciled, Counter>,
    errors: Family<Controller, Counter>,
    reconcile_panics: Family<Controller, Counter>,
    seconds: Family<Controller, Histogram>,
    active: Family<Controller, Gauge>,
    most: Family<Controller, Gauge>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            panics: Family::default(),
            restarts: Family::default(),
            reconciles: Family::default(),
            errors: Family::default(),
            reconcile_panics: Family::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new([
                    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
                ])
            }),
            active: Family::default(),
            most: Family::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconciled {
    controller: String,
    result: &'static str,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        self.elections.register(registry);
        self.queues.register(registry);
        let inner = &*self.inner;
        let counters = [
            (
                "tenure_manager_panics",
                "Panics of runnables",
                &inner.panics,
            ),
            (
                "tenure_manager_restarts",
                "Restarts of runnables",
                &inner.restarts,
            ),
            (
                "controller_runtime_reconcile_errors",
                "Reconciliations that failed",
                &inner.errors,
            ),
            (
                "controller_runtime_reconcile_panics",
                "Reconciliations that panicked",
                &inner.reconcile_panics,
            ),
        ];
        for (name, help, family) in counters {
            registry.register(name, help, family.clone());
        }
        registry.register(
            "controller_runtime_reconcile",
            "Reconciliations by result",
            inner.reconciles.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_time_seconds",
            "Duration of reconciliations",
            inner.seconds.clone(),
        );
        registry.register(
            "controller_runtime_active_workers",
            "Running reconciliations",
            inner.active.clone(),
        );
        registry.register(
            "controller_runtime_max_concurrent_reconciles",
            "Maximum number of concurrent reconciliations",
            inner.most.clone(),
        );
    }

    pub(crate) fn panicked(&self, name: &str) {
        self.inner.panics.get_or_create(&label(name)).inc();
    }

    pub(crate) fn restarted(&self, name: &str) {
        self.inner.restarts.get_or_create(&label(name)).inc();
    }

    /// Creates the series of a controller with zero, because a rate ignores the first value of a new series.
    pub(crate) fn controller(&self, name: &str, workers: usize) {
        let inner = &self.inner;
        let workers = i64::try_from(workers).unwrap_or(i64::MAX);
        inner.most.get_or_create(&label(name)).set(workers);
        inner.active.get_or_create(&label(name)).set(0);
        inner.errors.get_or_create(&label(name)).inc_by(0);
        inner.reconcile_panics.get_or_create(&label(name)).inc_by(0);
        for result in ["success", "requeue_after", "error"] {
            let controller = name.to_owned();
            let reconciled = Reconciled { controller, result };
            inner.reconciles.get_or_create(&reconciled).inc_by(0);
        }
    }

    pub(crate) fn reconciling(&self, name: &str) -> Gauge {
        self.inner.active.get_or_create(&label(name)).clone()
    }

    pub(crate) fn reconciled(&self, name: &str, result: &'static str, took: Duration) {
        let inner = &self.inner;
        let controller = name.to_owned();
        let reconciled = Reconciled { controller, result };
        inner.reconciles.get_or_create(&reconciled).inc();
        let seconds = inner.seconds.get_or_create(&label(name));
        seconds.observe(took.as_secs_f64());
        if result == "error" {
            inner.errors.get_or_create(&label(name)).inc();
        }
    }

    pub(crate) fn reconcile_panicked(&self, name: &str) {
        let panics = &self.inner.reconcile_panics;
        panics.get_or_create(&label(name)).inc();
    }
}

fn label(name: &str) -> Controller {
    Controller {
        controller: name.to_owned(),
    }
}
