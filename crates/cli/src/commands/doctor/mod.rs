//! `tenure doctor`: checks whether elections work well with this API server and machine.
//!
//! Every finding contains the measurement, and advice if there is something to do. The command writes nothing.

mod access;
mod clock;
mod containment;
mod fail_over;
mod pace;
mod twins;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kube::Client;
use serde::Serialize;
use tenure::HostProof;
use tenure_core::Timing;
use tenure_lock::LockKind;

use crate::api;
use crate::connect::{Connect, Opened};
use crate::election_name::OptionalElectionName;
use crate::elections::{self, Seen};
use crate::output::{self, Format, Paint};
use crate::values::duration;
use crate::waiting;

/// Check access, timings, clocks, identities and latency
#[derive(Args, Debug)]
pub(crate) struct Doctor {
    #[command(flatten)]
    name: OptionalElectionName,
    /// Namespace [default: of the kubeconfig's context]
    #[arg(short, long, value_name = "NS", env = "TENURE_NAMESPACE")]
    namespace: Option<String>,
    /// Lock kind of the election
    #[arg(long, value_name = "KIND", default_value = "leases")]
    lock: LockKind,
    /// Lease duration to check
    #[arg(long, value_name = "D", default_value = "15s", value_parser = duration)]
    lease_duration: Duration,
    /// Renew deadline to check
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration)]
    renew_deadline: Duration,
    /// Retry period to check
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration)]
    retry_period: Duration,
    /// Number of requests to measure
    #[arg(long, value_name = "N", default_value_t = 50)]
    samples: u32,
    /// Time to look for two processes with one identity
    #[arg(long, value_name = "D", default_value = "7s", value_parser = duration)]
    observe: Duration,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Format,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Nothing was checked.
    Skipped,
    Ok,
    Warn,
    Fail,
}

/// One result.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    check: &'static str,
    level: Level,
    summary: String,
    /// Advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    /// Measurements for programs.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    figures: serde_json::Value,
}

impl Finding {
    pub(super) fn new(check: &'static str, level: Level, summary: impl Into<String>) -> Self {
        Self {
            check,
            level,
            summary: summary.into(),
            advice: None,
            figures: serde_json::Value::Null,
        }
    }

    pub(super) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    pub(super) fn figures(mut self, figures: serde_json::Value) -> Self {
        self.figures = figures;
        self
    }
}

#[derive(Serialize)]
struct Report {
    healthy: bool,
    server: String,
    namespace: String,
    findings: Vec<Finding>,
}

impl Doctor {
    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        let Opened {
            client,
            namespace,
            server,
        } = connect.open(self.namespace.as_deref()).await?;
        let findings = self.examine(&client, &namespace, &server).await;
        let healthy = findings.iter().all(|f| f.level != Level::Fail);
        let report = Report {
            healthy,
            server,
            namespace,
            findings,
        };
        if self.output.is_table() {
            output::write(&text(&report, self.output == Format::Wide))?;
        } else {
            output::print_value(self.output, &report)?;
        }
        Ok(u8::from(!healthy))
    }

    async fn examine(&self, client: &Client, namespace: &str, server: &str) -> Vec<Finding> {
        let first = match waiting::on(server, api::get(client, "/version")).await {
            Ok(answer) => answer,
            Err(error) => {
                let why = tenure::plain(&error);
                let finding = Finding::new(
                    "connection",
                    Level::Fail,
                    format!("{server} does not answer: {why}"),
                )
                .advice("check the address and the credentials in the kubeconfig");
                return vec![finding];
            }
        };
        let version = first.body["gitVersion"].as_str().unwrap_or("?");
        let connected = format!("{server} answers, Kubernetes {version}");
        let mut findings = vec![Finding::new("connection", Level::Ok, connected)];
        let access = access::check(client, self.lock, namespace, self.name.as_deref());
        findings.extend(waiting::on(server, access).await);
        let seen = waiting::on(server, self.look(client, namespace, &mut findings)).await;
        findings.push(self.timing(&seen));
        findings.push(containment::check(crate::commands::run::Cgroup::check()));
        let host = HostProof::of_process().map(|host| host.names_machine());
        let wait = self.lease_duration + self.retry_period;
        findings.push(fail_over::check(wait, host));
        progress("measuring latency");
        let path = match (seen.first(), &*self.name) {
            // Without a name, elections of all kinds were observed.
            (Some(seen), _) => {
                let kind = seen.lock.parse().unwrap_or(self.lock);
                elections::path_of(kind, namespace, &seen.name)
            }
            // Candidates of one election may lack the permission to list all.
            (None, Some(name)) => elections::path_of(self.lock, namespace, name),
            (None, None) => elections::collection(self.lock, Some(namespace)) + "?limit=1",
        };
        let mut measured = pace::measure(client, &path, self.samples).await;
        measured.clock = measured.clock.and(first.clock);
        findings.push(clock::check(&measured, &seen));
        findings.push(pace::check(&measured, self.retry_period));
        if self.observe.is_zero() {
            let summary = "not checked: --observe is 0s, so no renewals were watched";
            findings.push(Finding::new("identity", Level::Skipped, summary));
        } else if seen.iter().all(|seen| seen.holder.is_empty()) {
            let summary =
                "not checked: nobody holds an election, so there are no renewals to watch";
            findings.push(Finding::new("identity", Level::Skipped, summary));
        } else {
            progress(&format!(
                "watching renewals for {}",
                output::span(self.observe.as_secs_f64())
            ));
            findings
                .push(twins::check(client, namespace, self.name.as_deref(), self.observe).await);
        }
        findings
    }

    /// Returns the elections to check.
    async fn look(
        &self,
        client: &Client,
        namespace: &str,
        findings: &mut Vec<Finding>,
    ) -> Vec<Seen> {
        let listed = match &*self.name {
            Some(name) => elections::get(client, self.lock, namespace, name)
                .await
                .map(|seen| seen.into_iter().collect()),
            None => elections::list(client, Some(namespace))
                .await
                .map(|listing| listing.elections),
        };
        let seen: Vec<Seen> = match listed {
            Ok(seen) => seen,
            Err(error) => {
                let why = format!("cannot read elections: {}", api::plain(&error));
                let finding = Finding::new("elections", Level::Fail, why);
                let named = "if your role is for one election, name it: tenure doctor NAME";
                findings.push(match *self.name {
                    None => finding.advice(named),
                    Some(_) => finding,
                });
                return Vec::new();
            }
        };
        if seen.is_empty() {
            findings.push(match &*self.name {
                Some(name) => self.no_such_election(namespace, name),
                None => {
                    let summary = format!("no elections in namespace {namespace}");
                    Finding::new("elections", Level::Skipped, summary)
                }
            });
            return seen;
        }
        let trouble = |wanted: fn(&Seen) -> bool| -> Vec<&str> {
            let names = seen.iter().filter(|s| wanted(s)).map(|s| s.name.as_str());
            names.collect()
        };
        let expired = trouble(|seen| seen.state == "expired");
        let held = seen.iter().filter(|seen| seen.state == "held").count();
        let plural = if seen.len() == 1 { "" } else { "s" };
        let summary = format!(
            "{} election{plural} in {namespace}, {held} held",
            seen.len()
        );
        let finding = if expired.is_empty() {
            Finding::new("elections", Level::Ok, summary)
        } else {
            let summary = format!(
                "{summary}; expired, because nobody renews it: {}",
                expired.join(", ")
            );
            Finding::new("elections", Level::Warn, summary).advice(
                "start a candidate, or delete the lock object if the election is no longer used",
            )
        };
        findings.push(finding);
        seen
    }

    fn no_such_election(&self, namespace: &str, name: &str) -> Finding {
        let summary = elections::missing(self.lock, namespace, name);
        let list = elections::LIST_THEM;
        Finding::new("elections", Level::Fail, summary).advice(format!(
            "check the name, --namespace and --lock, or {list}; the first candidate of an election \
             creates its lock"
        ))
    }

    /// Checks the durations and their margins.
    fn timing(&self, seen: &[Seen]) -> Finding {
        let timing = Timing::builder()
            .lease_duration(self.lease_duration)
            .renew_deadline(self.renew_deadline)
            .retry_period(self.retry_period)
            .build();
        let span = tenure_lock::duration::format;
        let timing = match timing {
            Ok(timing) => timing,
            Err(error) => {
                return Finding::new("timing", Level::Fail, error.to_string()).advice(
                    "the defaults are lease duration 15s, renew deadline 10s, retry period 2s",
                );
            }
        };
        let other = seen
            .iter()
            .filter(|s| !s.holder.is_empty())
            .find(|s| s.lease_duration_seconds != timing.lease_seconds());
        // A renewal that is sent just before the guard expires may be answered too late, so it does not count.
        let outage = timing
            .renew_deadline()
            .saturating_sub(timing.retry_period());
        let missed = outage.as_millis() / timing.retry_period().as_millis().max(1);
        let crash = timing.lease() + timing.retry_period();
        let summary = format!(
            "lease duration {}, renew deadline {}, retry period {}: a leader survives API outages of {} \
             ({missed} failed renewals) and clock rates that differ by {:.0} %; its work has {} to stop; \
             after a crash another candidate leads within {}",
            span(timing.lease()),
            span(timing.renew_deadline()),
            span(timing.retry_period()),
            span(outage),
            timing.tolerated_rate_error() * 100.0,
            span(timing.grace()),
            span(crash),
        );
        let figures = serde_json::json!({
            "leaseSeconds": timing.lease_seconds(),
            "renewDeadlineSeconds": timing.renew_deadline().as_secs_f64(),
            "retryPeriodSeconds": timing.retry_period().as_secs_f64(),
            "toleratedOutageSeconds": outage.as_secs_f64(),
            "toleratedFailedRenewals": u64::try_from(missed).unwrap_or(u64::MAX),
            "toleratedClockRateError": timing.tolerated_rate_error(),
            "graceSeconds": timing.grace().as_secs_f64(),
            "takeOverAfterCrashSeconds": crash.as_secs_f64(),
        });
        let finding = Finding::new("timing", Level::Ok, summary).figures(figures);
        match other {
            Some(other) => finding.advice(format!(
                "{} has a lease duration of {} s; pass its --lease-duration, --renew-deadline and \
                 --retry-period to check them",
                other.name, other.lease_duration_seconds
            )),
            None => finding,
        }
    }
}

fn progress(what: &str) {
    eprintln!("tenure: {what}");
}

/// Formats the report; `wide` includes the measurements.
fn text(report: &Report, wide: bool) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let (paint, mark) = match finding.level {
            Level::Skipped => (Paint::Faint, "skipped"),
            Level::Ok => (Paint::Green, "ok     "),
            Level::Warn => (Paint::Yellow, "warn   "),
            Level::Fail => (Paint::Red, "FAIL   "),
        };
        let mark = output::paint(paint, mark);
        let summary = output::escaped_lines(&finding.summary);
        text += &format!("{mark}  {:<11} {summary}\n", finding.check);
        let mut below: Vec<String> = Vec::new();
        if let Some(advice) = &finding.advice {
            below.extend(advice.lines().map(str::to_owned));
        }
        if wide && let Some(figures) = finding.figures.as_object() {
            below.extend(
                figures
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}")),
            );
        }
        for line in below {
            let line = output::escaped(&line);
            text += &format!("{:<21}{}\n", "", output::paint(Paint::Faint, &line));
        }
    }
    text
}
