//! The end of namespaces, where the API server does not look after it: everything in them is
//! deleted, and when nothing is left the finalizer goes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, PropagationPolicy};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use tenure_manager::{Builder, Cause, Next, Request, Warm};

use crate::resources::discover;

/// The finalizer that keeps a namespace until its content is gone.
const FINALIZER: &str = "kubernetes";

/// Content with finalizers or grace periods takes a while.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Adds `namespace-purge`.
pub(crate) fn purge(manager: Builder, group: &str, client: &Client) -> Builder {
    let (namespaces, client) = (Api::<Namespace>::all(client.clone()), client.clone());
    let warm = Warm::new(
        "namespace-purge",
        namespaces,
        watcher::Config::default(),
        move |request: Request<Namespace>| {
            let client = client.clone();
            async move {
                request.scope.check()?;
                match &request.object {
                    Some(namespace) if is_ending(namespace) => empty(&client, namespace).await,
                    _ => Ok(Next::Change),
                }
            }
        },
    );
    manager.warm(group, warm)
}

fn is_ending(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.as_ref().and_then(|s| s.finalizers.as_ref());
    let held = finalizers.is_some_and(|list| list.iter().any(|f| f == FINALIZER));
    held && namespace.metadata.deletion_timestamp.is_some()
}

async fn empty(client: &Client, namespace: &Namespace) -> Result<Next, Cause> {
    // Our own API server does it itself.
    if client
        .apiserver_version()
        .await?
        .git_version
        .contains("+tenure")
    {
        return Ok(Next::Change);
    }
    let name = namespace.name_any();
    let background = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    let mut left = 0;
    for resource in discover(client).await? {
        if !resource.namespaced {
            continue;
        }
        let objects = resource.objects(client, &name);
        let listed = objects.list_metadata(&ListParams::default()).await?.items;
        for object in &listed {
            match objects.delete(&object.name_any(), &background).await {
                // It goes when its finalizers or its grace period allow.
                Ok(answer) if answer.is_left() => left += 1,
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    if left > 0 {
        return Ok(Next::After(LOOK_AGAIN));
    }
    let mut last = namespace.clone();
    if let Some(finalizers) = last.spec.as_mut().and_then(|s| s.finalizers.as_mut()) {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    let path = format!("/api/v1/namespaces/{name}/finalize");
    let request = http_put(&path, serde_json::to_vec(&last)?)?;
    match client.request::<serde_json::Value>(request).await {
        Ok(_) => Ok(Next::Change),
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {
            Ok(Next::After(LOOK_AGAIN))
        }
        Err(error) => Err(error.into()),
    }
}

fn http_put(path: &str, body: Vec<u8>) -> Result<http::Request<Vec<u8>>, http::Error> {
    http::Request::put(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
}
