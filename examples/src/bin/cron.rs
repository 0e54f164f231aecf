//! A job that runs once in each period, on the leader. Usage: `cron [SECONDS]`
//!
//! The number of the last period with a completed job is in a ConfigMap. A new leader reads it, so that it repeats no
//! job, and catches up on the job of the current period. If a leader crashes between its job and the record, the next
//! leader repeats the job.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the example prints what happens, and its schedule follows the wall clock"
)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tenure::{Elector, Tenure};

const RECORD: &str = "cron-example";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let period: u64 = std::env::args()
        .nth(1)
        .map_or(Ok(60), |text| text.parse())?;
    let config = kube::Config::infer().await?;
    let records: Api<ConfigMap> = Api::namespaced(Client::try_from(config.clone())?, "default");
    let elector = Elector::lease(tenure::client(config)?, "default", RECORD).build()?;
    elector
        .campaign(tokio::signal::ctrl_c(), |tenure| {
            let records = &records;
            async move {
                println!("leading");
                // The end of the work ends the term, so that another candidate can try.
                if let Err(error) = schedule(records, period, &tenure).await {
                    println!("{error:#}");
                }
            }
        })
        .await;
    Ok(())
}

async fn schedule(records: &Api<ConfigMap>, period: u64, tenure: &Tenure) -> anyhow::Result<()> {
    let mut last = last(records).await?;
    while tenure.is_leading() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let current = now.as_secs() / period;
        if last < Some(current) {
            println!("job {current} with token {}", tenure.token());
            // A former leader must not overwrite the record of its successor.
            tenure.check()?;
            complete(records, current).await?;
            last = Some(current);
        }
        let next = Duration::from_secs((current + 1) * period);
        tokio::select! {
            () = tenure.cancelled() => {}
            () = tokio::time::sleep(next.saturating_sub(now)) => {}
        }
    }
    Ok(())
}

async fn last(records: &Api<ConfigMap>) -> anyhow::Result<Option<u64>> {
    let record = records.get_opt(RECORD).await?;
    let data = record.and_then(|record| record.data).unwrap_or_default();
    Ok(data.get("last").map(|text| text.parse()).transpose()?)
}

async fn complete(records: &Api<ConfigMap>, current: u64) -> kube::Result<ConfigMap> {
    let mut record = ConfigMap::default();
    record.metadata.name = Some(RECORD.to_owned());
    let data = record.data.get_or_insert_default();
    data.insert("last".to_owned(), current.to_string());
    let params = PatchParams::apply(RECORD).force();
    records.patch(RECORD, &params, &Patch::Apply(record)).await
}
