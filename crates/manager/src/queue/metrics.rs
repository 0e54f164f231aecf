//! The `workqueue_*` metrics of client-go.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Metrics of any number of queues, labelled by name. Cheap to clone.
///
/// | metric | meaning |
/// |---|---|
/// | `workqueue_depth` | queued items |
/// | `workqueue_adds_total` | added items |
/// | `workqueue_queue_duration_seconds` | time from queueing to processing |
/// | `workqueue_work_duration_seconds` | processing time |
/// | `workqueue_unfinished_work_seconds` | total time so far of items that are being processed |
/// | `workqueue_longest_running_processor_seconds` | longest time so far of an item that is being processed |
/// | `workqueue_retries_total` | items that were added with a delay |
#[derive(Clone, Debug, Default)]
pub struct QueueMetrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    depth: Family<Name, Gauge>,
    adds: Family<Name, Counter>,
    queued: Family<Name, Histogram>,
    worked: Family<Name, Histogram>,
    retries: Family<Name, Counter>,
    running: Running,
}

impl Default for Inner {
    fn default() -> Self {
        // client-go's buckets: 10 ns to 1,000 s by powers of ten.
        let tens = || Histogram::new((0..12).map(|power| 1e-8 * 10f64.powi(power)));
        Self {
            depth: Family::default(),
            adds: Family::default(),
            queued: Family::new_with_constructor(tens),
            worked: Family::new_with_constructor(tens),
            retries: Family::default(),
            running: Running::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: String,
}

impl QueueMetrics {
    /// Creates metrics that are not registered yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let inner = &*self.inner;
        registry.register("workqueue_depth", "Items in the queue", inner.depth.clone());
        registry.register(
            "workqueue_adds",
            "Items added to the queue",
            inner.adds.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "Time from queueing to processing",
            inner.queued.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Duration of processing",
            inner.worked.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Retries of items",
            inner.retries.clone(),
        );
        registry.register_collector(Box::new(inner.running.clone()));
    }

    pub(super) fn recorder(&self, name: &str) -> Recorder {
        let name = Name {
            name: name.to_owned(),
        };
        let inner = &self.inner;
        Recorder {
            depth: inner.depth.get_or_create(&name).clone(),
            adds: inner.adds.get_or_create(&name).clone(),
            queued: inner.queued.get_or_create(&name).clone(),
            worked: inner.worked.get_or_create(&name).clone(),
            retries: inner.retries.get_or_create(&name).clone(),
        }
    }

    /// Reads a queue at each scrape until the queue is dropped.
    pub(super) fn watch(
        &self,
        name: &str,
        ask: impl Fn() -> Option<Unfinished> + Send + Sync + 'static,
    ) {
        let name = Name {
            name: name.to_owned(),
        };
        let mut queues = self.inner.running.lock();
        queues.retain(|queue| (queue.ask)().is_some());
        queues.push(Watched {
            name,
            ask: Box::new(ask),
        });
    }
}

/// Metrics of one queue.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    depth: Gauge,
    adds: Counter,
    queued: Histogram,
    worked: Histogram,
    retries: Counter,
}

impl Recorder {
    pub(super) fn depth(&self, depth: usize) {
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    pub(super) fn added(&self) {
        self.adds.inc();
    }

    pub(super) fn taken(&self, waited: Duration) {
        self.queued.observe(waited.as_secs_f64());
    }

    pub(super) fn finished(&self, took: Duration) {
        self.worked.observe(took.as_secs_f64());
    }

    pub(super) fn retried(&self) {
        self.retries.inc();
    }
}

/// Items that are being processed at a scrape.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unfinished {
    pub(super) total: Duration,
    pub(super) longest: Duration,
}

struct Watched {
    name: Name,
    ask: Box<dyn Fn() -> Option<Unfinished> + Send + Sync>,
}

#[derive(Clone, Default)]
struct Running(Arc<Mutex<Vec<Watched>>>);

impl Running {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({})", self.lock().len())
    }
}

impl Collector for Running {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let running: Vec<(Name, Unfinished)> = self
            .lock()
            .iter()
            .filter_map(|queue| Some((queue.name.clone(), (queue.ask)()?)))
            .collect();
        type Part = fn(&Unfinished) -> Duration;
        let parts: [(&str, &str, Part); 2] = [
            (
                "workqueue_unfinished_work_seconds",
                "Sum of the time spent on items that are being processed",
                |unfinished| unfinished.total,
            ),
            (
                "workqueue_longest_running_processor_seconds",
                "Longest time spent on an item that is being processed",
                |unfinished| unfinished.longest,
            ),
        ];
        for (name, help, part) in parts {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (queue, unfinished) in &running {
                let seconds = part(unfinished).as_secs_f64();
                metric.encode_family(queue)?.encode_gauge(&seconds)?;
            }
        }
        Ok(())
    }
}
