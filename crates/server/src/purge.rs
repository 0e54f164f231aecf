//! Deletes everything in a namespace that is being deleted, and then removes its finalizer. Only API servers that do
//! not do this themselves need it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, PropagationPolicy};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use tenure_manager::queue::{ItemBackoff, RateLimiter as _};
use tenure_manager::{Builder, Cause, Next, Request, Warm};
use tokio::time::Instant;

use crate::resources::{Resource, discover};

/// The finalizer that keeps a namespace until its content is gone.
const FINALIZER: &str = "kubernetes";

/// First and longest delay before a namespace is checked again. Content with finalizers or grace periods takes some
/// time.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const LAST_LOOK: Duration = Duration::from_secs(300);

/// Remaining work for a namespace.
enum Left {
    Nothing,
    /// Content that is not deleted yet.
    Content,
}

/// Adds `namespace-purge`.
pub(crate) fn purge(manager: Builder, group: &str, client: &Client) -> Builder {
    let (namespaces, client) = (Api::<Namespace>::all(client.clone()), client.clone());
    let pauses = ItemBackoff::new(FIRST_LOOK, LAST_LOOK);
    let pauses: Arc<Mutex<ItemBackoff<String>>> = Arc::new(Mutex::new(pauses));
    let warm = Warm::new(
        "namespace-purge",
        namespaces,
        watcher::Config::default(),
        move |request: Request<Namespace>| {
            let (client, pauses) = (client.clone(), pauses.clone());
            async move {
                request.scope.check()?;
                let left = match &request.object {
                    Some(namespace) if is_ending(namespace) => empty(&client, namespace).await?,
                    _ => Left::Nothing,
                };
                let mut pauses = pauses.lock().unwrap_or_else(PoisonError::into_inner);
                Ok::<_, Cause>(match left {
                    Left::Content => Next::After(pauses.when(&request.key.name, Instant::now())),
                    Left::Nothing => {
                        pauses.forget(&request.key.name);
                        Next::Change
                    }
                })
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

async fn empty(client: &Client, namespace: &Namespace) -> Result<Left, Cause> {
    // Our own API server does it itself.
    if client.apiserver_version().await?.compiler == "rustc" {
        return Ok(Left::Nothing);
    }
    let name = namespace.name_any();
    let background = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    let mut left = 0;
    let mut resources = discover(client).await?;
    // Other objects stay until the pods are gone, because pods may use them until they end.
    let is_pods = |resource: &Resource| resource.name() == "/pods";
    resources.sort_by_key(|resource| !is_pods(resource));
    for resource in resources {
        if !resource.namespaced {
            continue;
        }
        let objects = resource.objects(client, &name);
        let listed = objects.list_metadata(&ListParams::default()).await?.items;
        for object in &listed {
            if object.metadata.deletion_timestamp.is_some() {
                left += 1;
                continue;
            }
            match objects.delete(&object.name_any(), &background).await {
                // The object is deleted when its finalizers or its grace period allow it.
                Ok(answer) if answer.is_left() => left += 1,
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error.into()),
            }
        }
        if left > 0 && is_pods(&resource) {
            break;
        }
    }
    if left > 0 {
        return Ok(Left::Content);
    }
    let mut last = namespace.clone();
    if let Some(finalizers) = last.spec.as_mut().and_then(|s| s.finalizers.as_mut()) {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    let path = format!("/api/v1/namespaces/{name}/finalize");
    let request = http_put(&path, serde_json::to_vec(&last)?)?;
    match client.request::<serde_json::Value>(request).await {
        Ok(_) => Ok(Left::Nothing),
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(Left::Content),
        Err(error) => Err(error.into()),
    }
}

fn http_put(path: &str, body: Vec<u8>) -> Result<http::Request<Vec<u8>>, http::Error> {
    http::Request::put(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
}
