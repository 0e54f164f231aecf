//! The pod of a StatefulSet that leads has the label `role=primary`, which a Service can select. Usage: `primary POD`
//!
//! The new primary removes the label from the other pods before it sets its own. For a moment during a hand-over, no pod
//! has the label. `tenure elect --label` does the same without code.
#![allow(clippy::print_stdout, reason = "the example prints what happens")]

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use tenure::{Elector, Tenure};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt::init();
    let me = std::env::args().nth(1).context("primary POD")?;
    let config = kube::Config::infer().await?;
    let pods: Api<Pod> = Api::namespaced(Client::try_from(config.clone())?, "default");
    Elector::lease(tenure::client(config)?, "default", "primary-example")
        .build()?
        .campaign(tokio::signal::ctrl_c(), |tenure| lead(&pods, &me, tenure))
        .await;
    Ok(())
}

async fn lead(pods: &Api<Pod>, me: &str, tenure: Tenure) {
    // If this fails, the work ends, so that another pod can lead.
    if let Err(error) = promote(pods, me, &tenure).await {
        println!("{error:#}");
        return;
    }
    println!("{me} is the primary");
    tenure.cancelled().await;
    // Nobody else leads before this returns.
    match set_role(pods, me, "replica").await {
        Ok(_) => println!("{me} is a replica"),
        Err(error) => println!("{error:#}"),
    }
}

async fn promote(pods: &Api<Pod>, me: &str, tenure: &Tenure) -> anyhow::Result<()> {
    let primaries = ListParams::default().labels("app=db,role=primary");
    for pod in pods.list(&primaries).await? {
        tenure.check()?;
        set_role(pods, &pod.name_any(), "replica").await?;
    }
    tenure.check()?;
    set_role(pods, me, "primary").await?;
    Ok(())
}

async fn set_role(pods: &Api<Pod>, name: &str, role: &str) -> kube::Result<Pod> {
    let mut pod = Pod::default();
    pod.labels_mut().insert("role".to_owned(), role.to_owned());
    let patch = Patch::Merge(pod);
    pods.patch(name, &PatchParams::default(), &patch).await
}
