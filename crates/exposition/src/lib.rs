//! Formats `/metrics`: Prometheus text by default, as Kubernetes components do, or OpenMetrics if the client asks for it.
//!
//! Every program of this project that serves metrics uses [`expose`].

use std::collections::HashMap;
use std::fmt::Write as _;

use http::HeaderMap;
use http::header::ACCEPT;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns content type and text for a request with these headers.
#[must_use]
pub fn expose(registry: &Registry, headers: &HeaderMap) -> (&'static str, String) {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, registry);
    if wants_open_metrics(headers) {
        (OPEN_METRICS, text)
    } else {
        (PROMETHEUS, prometheus(&text))
    }
}

fn wants_open_metrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).into_iter();
    let mut kinds = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|kind| kind.split(';').next().unwrap_or_default().trim());
    kinds.any(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"))
}

/// Converts OpenMetrics to the older Prometheus format: counters and infos are named like their samples, an info is a
/// gauge, and there are no units, exemplars or end marker.
fn prometheus(open_metrics: &str) -> String {
    let kinds: HashMap<&str, &str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let suffix = |name: &str| match kinds.get(name) {
        Some(&"counter") => "_total",
        Some(&"info") => "_info",
        _ => "",
    };
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        // Writing to a string cannot fail.
        let _ = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let kind = match kind {
                    "info" => "gauge",
                    "unknown" => "untyped",
                    kind => kind,
                };
                writeln!(text, "# TYPE {name}{} {kind}", suffix(name))
            }
            (Some("#"), Some("HELP"), Some(name), help) => {
                let help = help.unwrap_or_default();
                writeln!(text, "# HELP {name}{} {help}", suffix(name))
            }
            (Some("#"), ..) => Ok(()),
            _ => {
                let sample = line.split_once(" # {").map_or(line, |(sample, _)| sample);
                writeln!(text, "{sample}")
            }
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::exemplar::CounterWithExemplar;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::Unit;

    fn accepting(kinds: &[&'static str]) -> HeaderMap {
        let headers = kinds
            .iter()
            .map(|kind| (ACCEPT, HeaderValue::from_static(kind)));
        headers.collect()
    }

    #[test]
    fn prometheus_text_unless_openmetrics_is_accepted() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        counter.inc();
        registry.register("panics", "Panics", counter);
        registry.register_with_unit("age", "Age", Unit::Seconds, Gauge::<i64>::default());
        let (kind, text) = expose(&registry, &accepting(&["*/*"]));
        assert_eq!(kind, PROMETHEUS);
        assert_eq!(
            text,
            "# HELP panics_total Panics.\n# TYPE panics_total counter\npanics_total 1\n\
             # HELP age_seconds Age.\n# TYPE age_seconds gauge\nage_seconds 0\n"
        );
        let asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        let (kind, text) = expose(&registry, &accepting(&["text/html", asked]));
        assert_eq!(kind, OPEN_METRICS);
        assert!(
            text.contains("# TYPE panics counter\npanics_total 1\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn info_and_counter_are_converted_to_prometheus_types() {
        let mut registry = Registry::default();
        registry.register("build", "Build", Info::new([("version", "1")]));
        let traced = CounterWithExemplar::<[(&str, &str); 1]>::default();
        traced.inc_by(2_u64, Some([("trace", "abc")]), None);
        registry.register("calls", "Calls", traced);
        let (_, text) = expose(&registry, &accepting(&[]));
        assert_eq!(
            text,
            "# HELP build_info Build.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n\
             # HELP calls_total Calls.\n# TYPE calls_total counter\ncalls_total 2\n"
        );
    }
}
