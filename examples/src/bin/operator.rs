//! An operator with the manager: two leader groups, one of them with a warm standby.
//!
//! Run it twice. Both replicas keep a cache of ConfigMaps. One of them leads `operator-example` and processes each map.
//! Either of them leads `operator-example-audit`. Stop a leader: the standby continues immediately, because its cache
//! is already filled.
#![allow(clippy::print_stdout, reason = "the example prints what happens")]

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher;
use tenure_manager::{Cause, Manager, Next, OnLoss, Request, Runnable, Warm, api_ready};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let config = kube::Config::infer().await?;
    let client = kube::Client::try_from(config.clone())?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let seen = watcher::Config::default().labels("example=seen");

    Manager::builder(config)
        .namespace("default")
        .gate(api_ready())
        .on_loss(OnLoss::Demote)
        .every(Runnable::new("hello", |scope| async move {
            println!("this replica runs");
            scope.cancelled().await;
        }))
        .warm(
            "operator-example",
            Warm::new("maps", maps, seen, reconcile).workers(2),
        )
        .leader("operator-example-audit", Runnable::new("audit", audit))
        .build()?
        .run_until_signal()
        .await?;
    println!("everything has stopped");
    Ok(())
}

async fn reconcile(request: Request<ConfigMap>) -> Result<Next, Cause> {
    // A check at the start may be outdated, so leadership is checked again just before the effect.
    request.scope.check()?;
    match request.object {
        Some(_) => println!("{} is there", request.key.name),
        None => println!("{} is gone", request.key.name),
    }
    Ok(Next::Change)
}

async fn audit(scope: tenure_manager::Scope) {
    if let Some(token) = scope.token() {
        println!("auditing with token {token}");
    }
    scope.cancelled().await;
    println!("the audit has stopped");
}
