//! Latency of the renewals of elections, from the audit log.
//!
//! A candidate writes the time of the attempt into `spec.renewTime`. The audit log contains this time and the time at
//! which the response was ready. All processes share one clock, so the difference is the latency of the connection, the
//! queue, the handling and the disk. Attempts that were never answered appear as gaps, see [`Renewals::longest_gap`].

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::clock::Nanos;

/// Audit policy that records only the writes of Leases by these users.
pub fn policy(users: &[String]) -> String {
    let users = serde_json::to_string(users).unwrap_or_default();
    format!(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
         - level: Request\n  users: {users}\n  verbs: [create, update, patch]\n  resources:\n\
         \x20 - group: coordination.k8s.io\n    resources: [leases]\n- level: None\n"
    )
}

/// One answered renewal.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// Name of the Lease.
    pub lease: String,
    /// Time of the attempt.
    pub sent: Nanos,
    /// Time of the response.
    pub answered: Nanos,
    /// HTTP status of the response.
    pub status: u16,
}

impl Renewal {
    fn parse(line: &str) -> Option<Self> {
        let event: Value = serde_json::from_str(line).ok()?;
        let time = |pointer: &str| {
            let text = event.pointer(pointer)?.as_str()?;
            let at: k8s_openapi::jiff::Timestamp = text.parse().ok()?;
            Some(Nanos(i64::try_from(at.as_nanosecond()).ok()?))
        };
        let status = event.pointer("/responseStatus/code")?.as_u64()?;
        Some(Self {
            lease: event.pointer("/objectRef/name")?.as_str()?.to_owned(),
            sent: time("/requestObject/spec/renewTime")?,
            answered: time("/stageTimestamp")?,
            status: u16::try_from(status).ok()?,
        })
    }

    /// Returns the time from the attempt to the response.
    pub fn latency(&self) -> Duration {
        self.answered.since(self.sent)
    }
}

/// Renewals in the order of their responses.
#[derive(Clone, Debug, Default)]
pub struct Renewals(pub Vec<Renewal>);

impl Renewals {
    /// Reads an audit log. Lines about other requests are skipped.
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        Self(text.lines().filter_map(Renewal::parse).collect())
    }

    /// Returns the renewals that were sent in this span.
    #[must_use]
    pub fn between(&self, from: Nanos, until: Nanos) -> Self {
        let inside = self
            .0
            .iter()
            .filter(|renewal| renewal.sent >= from && renewal.sent < until);
        Self(inside.cloned().collect())
    }

    /// Returns the latency that this fraction of the renewals does not exceed; zero without renewals.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut latencies: Vec<Duration> = self.0.iter().map(Renewal::latency).collect();
        latencies.sort_unstable();
        let rank = (latencies.len() * percent).div_ceil(100).max(1);
        latencies.get(rank - 1).copied().unwrap_or_default()
    }

    /// Returns the longest time between two successful renewals of one Lease.
    pub fn longest_gap(&self) -> Duration {
        let mut last: BTreeMap<&str, Nanos> = BTreeMap::new();
        let mut longest = Duration::ZERO;
        for renewal in self.0.iter().filter(|renewal| renewal.status < 300) {
            if let Some(before) = last.insert(&renewal.lease, renewal.answered) {
                longest = longest.max(renewal.answered.since(before));
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(lease: &str, sent: &str, answered: &str) -> String {
        format!(
            r#"{{"objectRef":{{"name":"{lease}"}},"requestObject":{{"spec":{{"renewTime":"{sent}"}}}},
               "responseStatus":{{"code":200}},"stageTimestamp":"{answered}"}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn latency_is_the_time_from_the_attempt_to_the_response() {
        let lines = [
            line(
                "a",
                "2026-01-01T00:00:00.000000Z",
                "2026-01-01T00:00:00.250000Z",
            ),
            line(
                "b",
                "2026-01-01T00:00:01.000000Z",
                "2026-01-01T00:00:01.010000Z",
            ),
            line(
                "a",
                "2026-01-01T00:00:02.000000Z",
                "2026-01-01T00:00:02.020000Z",
            ),
        ];
        let renewals = Renewals(
            lines
                .iter()
                .filter_map(|line| Renewal::parse(line))
                .collect(),
        );
        assert_eq!(renewals.percentile(99), Duration::from_millis(250));
        assert_eq!(renewals.percentile(50), Duration::from_millis(20));
        assert_eq!(renewals.longest_gap(), Duration::from_millis(1_770));
        assert!(Renewal::parse("{}").is_none());
    }
}
