//! Detects two processes with one identity. Each treats the other's renewals as its own, and both act.
//!
//! From outside it is visible in the renewals of one holder: their times go back, or they follow two rhythms.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use serde_json::json;

use super::{Finding, Level};
use crate::board::{Board, Scope};
use crate::output;

/// Minimum number of renewals that can show two rhythms. Two writers that happen to be synchronized are not detected.
const ENOUGH: usize = 6;

/// Watches the renewals for some time.
pub(super) async fn check(
    client: &Client,
    namespace: &str,
    name: Option<&str>,
    observe: Duration,
) -> Finding {
    let scope = Scope {
        namespace: Some(namespace.to_owned()),
        name: name.map(str::to_owned),
        kind: None,
        members: false,
    };
    let mut board = Board::open(client, &scope);
    let mut renewals: BTreeMap<(String, String), Vec<Timestamp>> = BTreeMap::new();
    let end = tokio::time::Instant::now() + observe;
    while tokio::time::timeout_at(end, board.changed()).await.is_ok() {
        for row in board.rows() {
            let seen = row.seen_now();
            let time = seen.renew_time.and_then(|time| time.parse().ok());
            let (Some(time), false) = (time, seen.holder.is_empty()) else {
                continue;
            };
            let times = renewals.entry((seen.name, seen.holder)).or_default();
            if times.last() != Some(&time) {
                times.push(time);
            }
        }
    }
    let judged: usize = renewals.values().filter(|t| t.len() >= ENOUGH).count();
    let twins: Vec<String> = renewals
        .iter()
        .filter_map(|((name, holder), times)| {
            suspicion(times).map(|why| format!("{holder} in {name}: {why}"))
        })
        .collect();
    let figures = json!({ "holders": renewals.len(), "judged": judged, "suspects": twins });
    if twins.is_empty() {
        let span = output::span(observe.as_secs_f64());
        let unsure = if judged < renewals.len() {
            "; use a longer --observe to check the others"
        } else {
            ""
        };
        let summary = format!(
            "found no identity that two processes use, in {span} ({judged} of {} holders renewed often \
             enough to check{unsure})",
            renewals.len()
        );
        if judged == 0 {
            let summary = format!(
                "not checked: nobody renewed often enough in {span}; use a longer --observe"
            );
            return Finding::new("identity", Level::Skipped, summary).figures(figures);
        }
        return Finding::new("identity", Level::Ok, summary).figures(figures);
    }
    Finding::new("identity", Level::Fail, twins.join("; "))
        .advice(
            "give every process a different --id; without --id, each identity has a random part",
        )
        .figures(figures)
}

/// Returns a reason if these renewals, in the order of observation, look like those of two writers.
fn suspicion(times: &[Timestamp]) -> Option<String> {
    let gaps: Vec<f64> = times
        .windows(2)
        .map(|pair| pair[1].duration_since(pair[0]).as_secs_f64())
        .collect();
    if gaps.iter().any(|gap| *gap < 0.0) {
        return Some("its renewal times go backwards, so two clocks write them".into());
    }
    if times.len() < ENOUGH {
        return None;
    }
    // One writer has a constant interval. With two unsynchronized writers, every second interval is short.
    let (odd, even): (Vec<_>, Vec<_>) = gaps.iter().enumerate().partition(|(i, _)| i % 2 == 1);
    let mean = |values: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = values.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
        if count > 0.0 { sum / count } else { 0.0 }
    };
    let middle = |part: &[(usize, &f64)]| mean(&mut part.iter().map(|(_, gap)| **gap));
    let (a, b) = (middle(&odd), middle(&even));
    let noise = |part: &[(usize, &f64)], around: f64| {
        mean(&mut part.iter().map(|(_, gap)| (**gap - around).abs()))
    };
    let noise = noise(&odd, a).max(noise(&even, b));
    let apart = (a - b).abs() > 3.0 * noise && a.min(b) < 0.85 * a.max(b);
    apart.then(|| "its renewals have two rhythms, so two processes renew it".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(millis: &[i64]) -> Vec<Timestamp> {
        let at = |m: &i64| Timestamp::from_millisecond(1_600_000_000_000 + m).unwrap();
        millis.iter().map(at).collect()
    }

    #[test]
    fn one_steady_writer_is_not_reported() {
        assert_eq!(
            suspicion(&times(&[0, 2000, 4010, 6003, 8020, 10_000])),
            None
        );
        assert_eq!(
            suspicion(&times(&[0, 2000, 9000, 9500, 11_500, 13_500])),
            None,
            "one stumble is no rhythm"
        );
        assert_eq!(suspicion(&times(&[0, 100])), None);
    }

    #[test]
    fn two_rhythms_and_times_that_go_back_are_reported() {
        let two = suspicion(&times(&[0, 300, 2000, 2310, 4010, 4300, 6000]));
        assert!(two.unwrap().contains("two rhythms"));
        let back = suspicion(&times(&[5000, 2000]));
        assert!(back.unwrap().contains("go back"));
    }
}
