//! Prometheus metrics under the names of kube-apiserver, so that existing dashboards work.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tenure_exposition::expose;

use crate::fairness::Gate;
use crate::registry;
use crate::request::{RequestInfo, Route, Verb};

const BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

/// Labels of a request. All values come from the table of kinds, so that clients cannot create new label values.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Labels {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabels {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    scope: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LaneLabels {
    priority_level: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The metrics of one server.
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<CodeLabels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    watches: Gauge,
    revision: Gauge<u64, AtomicU64>,
    rejected: Family<ReasonLabels, Counter>,
    executing: Family<LaneLabels, Gauge>,
    waiting: Family<LaneLabels, Gauge>,
    answer_bytes: Gauge<u64, AtomicU64>,
}

impl Metrics {
    pub(super) fn new(audit: Option<&crate::audit::Counts>) -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        let help = "Requests by verb, resource and status code";
        registry.register("apiserver_request", help, Family::clone(&requests));
        let durations: Family<Labels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(BUCKETS));
        let help = "Response time of requests, without watches";
        registry.register(
            "apiserver_request_duration_seconds",
            help,
            Family::clone(&durations),
        );
        let watches = Gauge::default();
        registry.register(
            "apiserver_longrunning_requests",
            "Open watches",
            Gauge::clone(&watches),
        );
        let revision = Gauge::<u64, AtomicU64>::default();
        let help = "Revision of the last published write";
        registry.register("tenure_store_revision", help, Gauge::clone(&revision));
        if let Some(audit) = audit {
            audit.register(&mut registry);
        }
        let rejected = Family::default();
        let help = "Rejected requests and connections, by the exceeded limit";
        registry.register(
            "apiserver_flowcontrol_rejected_requests",
            help,
            Family::clone(&rejected),
        );
        let executing = Family::default();
        let help = "Executing requests, by lane";
        registry.register(
            "apiserver_flowcontrol_current_executing_requests",
            help,
            Family::clone(&executing),
        );
        let waiting = Family::default();
        let help = "Requests that wait for a seat, by lane";
        registry.register(
            "apiserver_flowcontrol_current_inqueue_requests",
            help,
            Family::clone(&waiting),
        );
        let answer_bytes = Gauge::<u64, AtomicU64>::default();
        let help = "Bytes of large responses that clients have not read";
        registry.register("tenure_unread_answer_bytes", help, answer_bytes.clone());
        Self {
            registry,
            requests,
            durations,
            watches,
            revision,
            rejected,
            executing,
            waiting,
            answer_bytes,
        }
    }

    fn show(&self, gate: &Gate) {
        for (why, count) in gate.rejections() {
            let labels = ReasonLabels { reason: why.name() };
            let counter = self.rejected.get_or_create(&labels);
            counter.inner().store(count, Ordering::Relaxed);
        }
        for found in gate.lanes() {
            let labels = LaneLabels {
                priority_level: found.lane.name(),
            };
            let executing = self.executing.get_or_create(&labels);
            executing.set(i64::from(found.executing));
            let waiting = self.waiting.get_or_create(&labels);
            waiting.set(i64::from(found.waiting));
        }
        self.answer_bytes.set(gate.answer_bytes());
    }

    /// Counts an answered request.
    pub(super) fn observe(&self, info: &RequestInfo, code: u16, took: Duration) {
        let Labels {
            verb,
            group,
            resource,
            subresource,
            scope,
        } = Labels::of(info);
        let labels = CodeLabels {
            verb,
            group,
            resource,
            subresource,
            scope,
            code,
        };
        self.requests.get_or_create(&labels).inc();
        if verb != "WATCH" {
            let labels = Labels {
                verb,
                group,
                resource,
                subresource,
                scope,
            };
            self.durations
                .get_or_create(&labels)
                .observe(took.as_secs_f64());
        }
    }

    /// Counts a watch until the returned guard is dropped.
    pub(super) fn watching(&self) -> Watching {
        self.watches.inc();
        Watching(self.watches.clone())
    }

    /// Returns the content type and the text of the metrics for a request with these headers.
    pub(super) fn text(
        &self,
        revision: u64,
        gate: Option<&Gate>,
        headers: &HeaderMap,
    ) -> (&'static str, String) {
        self.revision.set(revision);
        if let Some(gate) = gate {
            self.show(gate);
        }
        expose(&self.registry, headers)
    }
}

/// An open watch.
pub(super) struct Watching(Gauge);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Labels {
    fn of(info: &RequestInfo) -> Self {
        let verb = match info.verb {
            Verb::Get => "GET",
            Verb::List => "LIST",
            Verb::Watch => "WATCH",
            Verb::Create | Verb::Post => "POST",
            Verb::Update | Verb::Put => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
            Verb::DeleteCollection => "DELETECOLLECTION",
            Verb::Head | Verb::Options | Verb::Unknown => "other",
        };
        let none = Self {
            verb,
            group: "",
            resource: "",
            subresource: "",
            scope: "",
        };
        let Route::Resource(path) = &info.route else {
            return none;
        };
        let Some(kind) = registry::find(&path.group, &path.resource) else {
            return none;
        };
        let version = kind.version(&path.version).unwrap_or(&kind.versions()[0]);
        let sub = kind
            .subresource(version, &path.subresource)
            .map_or("", registry::Subresource::name);
        let scope = match (path.name.is_empty(), path.namespace.is_empty()) {
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        };
        Self {
            verb,
            group: kind.group(),
            resource: kind.plural(),
            subresource: sub,
            scope,
        }
    }
}
