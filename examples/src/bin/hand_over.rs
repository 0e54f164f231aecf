//! A kube-rs controller that completes what it has begun before the next leader starts.
//!
//! A reconciliation has three steps. On Ctrl-C, the controller starts no further reconciliation, and the running one
//! completes its steps. The lease is renewed in the meantime, for a limited time, and released when the controller has
//! ended. Another replica then leads within milliseconds. If the lease is lost instead, the next step fails, because
//! another replica may lead.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the example prints what happens, and its pauses are not deadlines"
)]

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use tenure::{Elector, NotLeading, Tenure};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let config = kube::Config::infer().await?;
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config.clone())?, "default");
    Elector::lease(tenure::client(config)?, "default", "hand-over-example")
        .build()?
        .campaign(tokio::signal::ctrl_c(), |tenure| lead(maps.clone(), tenure))
        .await;
    println!("released");
    Ok(())
}

async fn lead(maps: Api<ConfigMap>, tenure: Tenure) {
    println!("leading");
    Controller::new(maps, watcher::Config::default().labels("example=steps"))
        .graceful_shutdown_on(tenure.until_cancelled())
        .run(reconcile, retry, Arc::new(tenure))
        .for_each(async |_| ())
        .await;
    println!("the controller has stopped");
}

async fn reconcile(map: Arc<ConfigMap>, tenure: Arc<Tenure>) -> Result<Action, NotLeading> {
    for step in 1..=3 {
        // After a voluntary stop, this replica holds the lease until its work has ended.
        if let Err(lost) = tenure.check()
            && !lost.reason.is_voluntary()
        {
            return Err(lost);
        }
        println!("step {step} of {}", map.name_any());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(Action::await_change())
}

fn retry(_: Arc<ConfigMap>, error: &NotLeading, _: Arc<Tenure>) -> Action {
    println!("{error}");
    Action::requeue(Duration::from_secs(5))
}
