//! The text of `/metrics`: Prometheus' own format, as controller-runtime has it, or OpenMetrics for those
//! that ask for it.

use std::fmt::Write as _;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The content type and the text for this `Accept` header.
pub(crate) fn expose(registry: &Registry, accept: &str) -> (&'static str, String) {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = encode(&mut text, registry);
    if accept.contains("application/openmetrics-text") {
        (OPEN_METRICS, text)
    } else {
        (PROMETHEUS, prometheus(&text))
    }
}

/// The older format: a counter is called as its sample, with `_total`; there are no units and no end.
fn prometheus(open_metrics: &str) -> String {
    let counters: Vec<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let comment = ["# HELP ", "# TYPE "]
            .into_iter()
            .find_map(|kind| Some((kind, line.strip_prefix(kind)?)));
        // Writing into a string does not fail.
        let _ = match comment.map(|(kind, rest)| (kind, rest.split_once(' '))) {
            Some((kind, Some((name, rest)))) if counters.contains(&name) => {
                writeln!(text, "{kind}{name}_total {rest}")
            }
            None if line.starts_with('#') => Ok(()),
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::registry::Unit;

    #[test]
    fn prometheus_text_unless_open_metrics_is_asked_for() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        counter.inc();
        registry.register("panics", "Panics", counter);
        registry.register_with_unit("age", "Age", Unit::Seconds, Gauge::<i64>::default());
        let (kind, text) = expose(&registry, "*/*");
        assert_eq!(kind, PROMETHEUS);
        assert_eq!(
            text,
            "# HELP panics_total Panics.\n# TYPE panics_total counter\npanics_total 1\n\
             # HELP age_seconds Age.\n# TYPE age_seconds gauge\nage_seconds 0\n"
        );
        let asked = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        let (kind, text) = expose(&registry, asked);
        assert_eq!(kind, OPEN_METRICS);
        assert!(
            text.contains("# TYPE panics counter\npanics_total 1\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
