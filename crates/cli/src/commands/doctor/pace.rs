//! Measures the latency of the API server, and derives suitable durations.

use std::time::{Duration, Instant};

use kube::Client;
use serde_json::json;
use tenure_core::Timing;

use super::{Finding, Level};
use crate::api::{self, Clock};

/// A retry period should be at least this many times as long as a renewal.
const ROOM: u32 = 10;

/// Result of a series of requests.
#[derive(Default)]
pub(super) struct Measured {
    /// Sorted, shortest first.
    took: Vec<Duration>,
    failed: u32,
    /// Requests among them that the API server rejected with 403.
    forbidden: u32,
    pub(super) clock: Clock,
}

/// Reads the path this often, one request at a time.
pub(super) async fn measure(client: &Client, path: &str, samples: u32) -> Measured {
    let mut measured = Measured::default();
    for _ in 0..samples.clamp(1, 10_000) {
        let start = Instant::now();
        match api::get(client, path).await {
            Ok(answer) => {
                measured.took.push(answer.took);
                measured.clock = measured.clock.and(answer.clock);
            }
            // The object does not exist, which is a valid response too.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                measured.took.push(start.elapsed());
            }
            Err(error) => {
                measured.failed += 1;
                let forbidden = matches!(&error, kube::Error::Api(status) if status.code == 403);
                measured.forbidden += u32::from(forbidden);
            }
        }
        // The `Date` has whole seconds, so the requests must be spread over more than one second.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    measured.took.sort();
    measured
}

pub(super) fn check(measured: &Measured, retry: Duration) -> Finding {
    let Some(worst) = measured.took.last().copied() else {
        if measured.forbidden > 0 && measured.forbidden == measured.failed {
            let summary = "not measured: this user may not read the lock";
            return Finding::new("latency", Level::Skipped, summary);
        }
        let summary = format!("all {} requests failed", measured.failed);
        return Finding::new("latency", Level::Fail, summary);
    };
    let [p50, p90, p99] = [50, 90, 99].map(|percent| percentile(&measured.took, percent));
    let timing = suggest(p99);
    let span = tenure_lock::duration::format;
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    let (lease, renew, again) = (
        timing.lease(),
        timing.renew_deadline(),
        timing.retry_period(),
    );
    let summary = format!(
        "reads take p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, worst {:.1} ms; the shortest \
         durations for this latency are lease duration {}, renew deadline {}, retry period {}",
        millis(p50),
        millis(p90),
        millis(p99),
        millis(worst),
        span(lease),
        span(renew),
        span(again),
    );
    let figures = json!({
        "samples": measured.took.len(),
        "failed": measured.failed,
        "p50Millis": millis(p50),
        "p90Millis": millis(p90),
        "p99Millis": millis(p99),
        "worstMillis": millis(worst),
        "suggested": {
            "leaseSeconds": lease.as_secs_f64(),
            "renewDeadlineSeconds": renew.as_secs_f64(),
            "retryPeriodSeconds": again.as_secs_f64(),
        },
    });
    let finding = if measured.failed > 0 {
        let summary = format!("{} requests failed; {summary}", measured.failed);
        Finding::new("latency", Level::Fail, summary)
    } else if p99 * 2 > retry {
        Finding::new("latency", Level::Fail, summary).advice(format!(
            "a retry period of {} is too short for this API server: choose longer durations",
            span(retry)
        ))
    } else if p99 * ROOM > retry {
        Finding::new("latency", Level::Warn, summary).advice(format!(
            "a retry period of {} leaves little time for retries on this API server",
            span(retry)
        ))
    } else {
        Finding::new("latency", Level::Ok, summary)
    };
    finding.figures(figures)
}

/// Returns the value that this percentage of the sorted samples does not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// Returns the shortest durations with room for slow requests, because writes take longer than reads and the server may
/// be busier at other times.
fn suggest(p99: Duration) -> Timing {
    let quarter = Duration::from_millis(250);
    let steps = (p99 * ROOM)
        .as_millis()
        .div_ceil(quarter.as_millis())
        .max(1);
    let mut retry = quarter * u32::try_from(steps).unwrap_or(u32::MAX).min(10_000);
    loop {
        let renew = retry * 5;
        // Whole seconds, with a third of the deadline left for stopping.
        let lease = Duration::from_secs((renew + renew / 3).as_secs() + 1);
        let timing = Timing::builder()
            .lease_duration(lease)
            .renew_deadline(renew)
            .retry_period(retry)
            .build();
        match timing {
            Ok(timing) => return timing,
            Err(_) if retry < Duration::from_secs(60) => retry += quarter,
            // The server is too slow for any advice.
            Err(_) => return Timing::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sorted: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        let of = |percent| percentile(&sorted, percent).as_millis();
        assert_eq!([of(50), of(90), of(99), of(100)], [50, 90, 99, 100]);
        assert_eq!(percentile(&sorted[..1], 50), Duration::from_millis(1));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }

    #[test]
    fn suggestions_keep_every_rule_and_grow_with_latency() {
        let fast = suggest(Duration::from_millis(2));
        let slow = suggest(Duration::from_millis(300));
        assert!(fast.lease() < slow.lease());
        assert!(fast.lease() <= Duration::from_secs(5), "{fast:?}");
        assert!(slow.retry_period() >= Duration::from_secs(3), "{slow:?}");
        assert!(slow.warnings().is_empty());
    }

    #[test]
    fn latency_of_forbidden_reads_is_not_measured() {
        let level = |failed, forbidden| {
            let measured = Measured {
                failed,
                forbidden,
                ..Measured::default()
            };
            check(&measured, Duration::from_secs(2)).level
        };
        assert_eq!([level(5, 5), level(5, 4)], [Level::Skipped, Level::Fail]);
    }

    #[test]
    fn slow_answers_are_a_failure_only_when_renewals_would_not_fit() {
        let measured = |millis| Measured {
            took: vec![Duration::from_millis(millis); 10],
            ..Measured::default()
        };
        let retry = Duration::from_secs(2);
        let level = |millis| check(&measured(millis), retry).level;
        assert_eq!(
            [level(5), level(500), level(1500)],
            [Level::Ok, Level::Warn, Level::Fail]
        );
        assert_eq!(check(&Measured::default(), retry).level, Level::Fail);
    }
}
