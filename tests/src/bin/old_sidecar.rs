//! A candidate that behaves like `leader-elector:0.5` on an Endpoints object where that differs from today's clients:
//! expiry by its own ttl, an empty holder is not free, the number of transitions is lost at the first renewal, and
//! nothing is released.
//!
//! It accepts the flags of the other candidates and prints the same event lines.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use k8s_openapi::api::core::v1::Endpoints;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_tests::clock::now;

const ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";

#[derive(Parser)]
struct Options {
    #[arg(long)]
    kubeconfig: PathBuf,
    #[arg(long, default_value = "default")]
    namespace: String,
    #[arg(long)]
    name: String,
    #[arg(long)]
    id: String,
    #[arg(long)]
    lock: Option<String>,
    /// Lease duration (ttl); the other durations are derived from it
    #[arg(long, value_parser = millis)]
    lease_duration: Duration,
    #[arg(long)]
    renew_deadline: Option<String>,
    #[arg(long)]
    retry_period: Option<String>,
}

fn millis(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix("ms").and_then(|n| n.parse().ok());
    number
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is not like 500ms"))
}

/// The record, with its fields in the old order and times in whole seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    holder_identity: String,
    lease_duration_seconds: i64,
    acquire_time: String,
    renew_time: String,
    #[serde(default)]
    leader_transitions: i64,
}

struct Elector {
    endpoints: Api<Endpoints>,
    options: Options,
    /// The last observed record, and the time of its first observation.
    observed: Option<(Record, Instant)>,
    reported: String,
}

#[tokio::main(flavor = "current_thread")]
#[expect(
    clippy::disallowed_methods,
    reason = "this program imitates the old one, which used these clocks"
)]
async fn main() -> Result<()> {
    let options = Options::parse();
    let file = Kubeconfig::read_from(&options.kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let endpoints = Api::namespaced(client, &options.namespace);
    let ttl = options.lease_duration;
    let mut elector = Elector {
        endpoints,
        options,
        observed: None,
        reported: String::new(),
    };
    let mut step = 0_u32;
    loop {
        // Follower: a random time in [1.0, 2.2] of the retry period.
        while !elector.try_once().await {
            step = step.wrapping_add(7);
            let stretch = 1.0 + 1.2 * f64::from(step % 10) / 10.0;
            tokio::time::sleep((ttl / 4).mul_f64(stretch)).await;
        }
        elector.say("acquired", &elector.options.id, None);
        // Leader: gives up after failures for half the ttl.
        let mut good = Instant::now();
        while good.elapsed() < ttl / 2 {
            tokio::time::sleep(ttl / 4).await;
            let sent = Instant::now();
            if elector.try_once().await {
                good = sent;
            } else if elector.holder() != elector.options.id {
                break;
            }
        }
        elector.say("lost", "", Some(now().0));
    }
}

impl Elector {
    fn holder(&self) -> &str {
        let observed = self.observed.as_ref();
        observed.map_or("", |(record, _)| record.holder_identity.as_str())
    }

    /// Acquires or renews the lock. Returns whether it leads.
    #[expect(clippy::disallowed_methods, reason = "as above")]
    async fn try_once(&mut self) -> bool {
        let ttl = self.options.lease_duration;
        let time = k8s_openapi::jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string();
        let mut record = Record {
            holder_identity: self.options.id.clone(),
            lease_duration_seconds: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX),
            acquire_time: time.clone(),
            renew_time: time,
            leader_transitions: 0,
        };
        let name = self.options.name.clone();
        let Ok(found) = self.endpoints.get_opt(&name).await else {
            return false;
        };
        let Some(mut object) = found else {
            let mut object = Endpoints::default();
            object.metadata.name = Some(name);
            note(&mut object, &record);
            let parameters = PostParams::default();
            let made = self.endpoints.create(&parameters, &object).await.is_ok();
            if made {
                self.see(record);
            }
            return made;
        };
        let annotations = object.metadata.annotations.as_ref();
        let old = annotations.and_then(|all| all.get(ANNOTATION));
        let old: Option<Record> = old.and_then(|text| serde_json::from_str(text).ok());
        if let Some(old) = old {
            self.see(old.clone());
            let mine = old.holder_identity == self.options.id;
            let seen = self.observed.as_ref().map(|(_, at)| *at);
            // The old program also waits if the record has no holder.
            if !mine && seen.is_some_and(|at| at.elapsed() < ttl) {
                return false;
            }
            if mine {
                record.acquire_time = old.acquire_time;
            } else {
                record.leader_transitions = old.leader_transitions + 1;
            }
        }
        note(&mut object, &record);
        let parameters = PostParams::default();
        let written = self.endpoints.replace(&name, &parameters, &object).await;
        let written = written.is_ok();
        if written {
            self.see(record);
        }
        written
    }

    #[expect(clippy::disallowed_methods, reason = "as above")]
    fn see(&mut self, record: Record) {
        if self.reported != record.holder_identity {
            self.reported.clone_from(&record.holder_identity);
            if self.reported != self.options.id {
                self.say("observed", &self.reported, None);
            }
        }
        if self.observed.as_ref().map(|(known, _)| known) != Some(&record) {
            self.observed = Some((record, Instant::now()));
        }
    }

    fn say(&self, event: &str, leader: &str, until: Option<i64>) {
        let transitions = self.observed.as_ref().map(|(r, _)| r.leader_transitions);
        let line = json!({
            "t": now().0, "event": event, "election": self.options.name, "leader": leader,
            "self": self.options.id, "transitions": transitions, "until": until,
        });
        _ = writeln!(std::io::stdout(), "{line}");
    }
}

fn note(object: &mut Endpoints, record: &Record) {
    let text = serde_json::to_string(record).unwrap_or_default();
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(ANNOTATION.to_owned(), text);
}
