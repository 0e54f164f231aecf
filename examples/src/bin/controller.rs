//! A kube-rs controller that runs only on the leader.
//!
//! Every ConfigMap with the label `example=seen` gets an annotation. The stream of the controller starts and ends with
//! the term. The reconciler checks the tenure again just before its write, because a check at the start of a long
//! reconciliation may be outdated at its end.
#![allow(clippy::print_stdout, reason = "the example prints what happens")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use tenure::{Elector, Tenure};

struct Context {
    client: Client,
    tenure: Tenure,
}

// ANCHOR: main
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let config = kube::Config::infer().await?;
    // The election uses its own connections, so that the work cannot delay a renewal.
    let client = Client::try_from(config.clone())?;
    let elector =
        Elector::lease(tenure::client(config)?, "default", "controller-example").build()?;

    elector
        .campaign(tokio::signal::ctrl_c(), |tenure| {
            lead(client.clone(), tenure)
        })
        .await;
    Ok(())
}
// ANCHOR_END: main

// ANCHOR: lead
async fn lead(client: Client, tenure: Tenure) {
    println!("leading, the controller starts");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    Controller::new(maps, watcher::Config::default().labels("example=seen"))
        .graceful_shutdown_on(tenure.until_cancelled())
        .run(reconcile, retry, Arc::new(Context { client, tenure }))
        .for_each(async |_| ())
        .await;
    println!("the controller has stopped");
}
// ANCHOR_END: lead

// ANCHOR: reconcile
async fn reconcile(map: Arc<ConfigMap>, context: Arc<Context>) -> Result<Action, Failed> {
    let token = context.tenure.token().as_str();
    if map.annotations().contains_key("example/seen-by") {
        return Ok(Action::await_change());
    }
    let patch = seen_by(token);
    context.tenure.check().map_err(|lost| Failed(lost.into()))?;
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), "default");
    maps.patch(&map.name_any(), &PatchParams::default(), &patch)
        .await
        .map_err(|error| Failed(error.into()))?;
    println!("saw {} in term {token}", map.name_any());
    Ok(Action::await_change())
}
// ANCHOR_END: reconcile

fn seen_by(token: &str) -> Patch<ConfigMap> {
    let mut map = ConfigMap::default();
    map.annotations_mut()
        .insert("example/seen-by".to_owned(), token.to_owned());
    Patch::Merge(map)
}

fn retry(_: Arc<ConfigMap>, error: &Failed, _: Arc<Context>) -> Action {
    println!("{error}");
    Action::requeue(Duration::from_secs(5))
}

/// The error of the reconciler.
#[derive(Debug)]
struct Failed(anyhow::Error);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Failed {}

// ANCHOR: test
#[cfg(test)]
mod tests {
    use kube::api::PostParams;
    use kube::runtime::wait::await_condition;
    use tenure_apiserver::TestServer;

    use super::*;

    #[tokio::test]
    async fn leader_annotates_a_labelled_config_map() {
        let server = TestServer::start().await.unwrap();
        let client = server.client().unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let mut map = ConfigMap::default();
        map.metadata.name = Some("m".to_owned());
        map.labels_mut()
            .insert("example".to_owned(), "seen".to_owned());
        maps.create(&PostParams::default(), &map).await.unwrap();

        // The candidate campaigns until the annotation exists.
        let is_seen = |map: Option<&ConfigMap>| {
            map.is_some_and(|map| map.annotations().contains_key("example/seen-by"))
        };
        let elector = Elector::lease(client.clone(), "default", "test");
        let campaign = elector.build().unwrap().campaign(
            async { await_condition(maps.clone(), "m", is_seen).await.unwrap() },
            |tenure| lead(client.clone(), tenure),
        );
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, campaign).await.unwrap();
    }
}
// ANCHOR_END: test
