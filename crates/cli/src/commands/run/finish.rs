//! Final state of the lock object: an annotation that the work was completed, or no object.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, header};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tenure_lock::{Resource, Snapshot};

use crate::elections::COMPLETED;
use crate::observed_lock::Notes;

/// The annotation with the holder that completed it.
const COMPLETED_BY: &str = "tenure.dev/completed-by";

/// Returns when and by whom the work was completed, if that was at or after `since`, by that holder's clock.
pub(super) fn completed_since(notes: &Notes, since: Timestamp) -> Option<(Timestamp, String)> {
    let object = notes.snapshot()?.object();
    let annotations = &object["metadata"]["annotations"];
    let at: Timestamp = annotations[COMPLETED].as_str()?.parse().ok()?;
    let by = annotations[COMPLETED_BY].as_str().unwrap_or("somebody");
    (at >= since).then(|| (at, by.to_owned()))
}

/// Writes to the lock that the work was completed, for candidates that wait with `--once`.
pub(super) async fn note_completed(client: &Client, notes: &Notes, by: &str) -> Result<()> {
    let snapshot = notes.snapshot().context("the lock was never seen")?;
    let patch = json!({ "metadata": { "annotations": {
        COMPLETED: Timestamp::now().to_string(),
        COMPLETED_BY: by,
    } } });
    let path = path_of(&snapshot.object()).context("the lock has no path")?;
    let request = Request::patch(&path)
        .header(header::CONTENT_TYPE, "application/merge-patch+json")
        .body(patch.to_string().into_bytes())?;
    let patched = tokio::time::timeout(Duration::from_secs(2), client.request::<Value>(request));
    patched.await.context("no answer in time")??;
    Ok(())
}

/// Deletes the lock object, or both of a multi lock, if it is free and unchanged since the release.
pub(super) async fn delete(client: &Client, snapshot: &Snapshot) -> Result<()> {
    if !snapshot.observation().record.is_free() {
        return Ok(());
    }
    for object in [Some(snapshot.object()), snapshot.secondary()]
        .into_iter()
        .flatten()
    {
        let path = path_of(&object).context("the lock has no path")?;
        let metadata = &object["metadata"];
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        } });
        let request = Request::delete(&path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(options.to_string().into_bytes())?;
        match client.request::<Value>(request).await {
            Ok(_) => {}
            // The object is already deleted, or another candidate uses it.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot delete {path}")),
        }
    }
    Ok(())
}

fn path_of(object: &Value) -> Option<String> {
    let kinds = [Resource::LEASE, Resource::CONFIG_MAP, Resource::ENDPOINTS];
    // Objects in lists and watches may have no kind.
    let kind = object["kind"].as_str();
    let guess = || kinds.iter().find(|_| object.get("spec").is_some());
    let resource = kinds
        .iter()
        .find(|known| Some(known.kind) == kind)
        .or_else(guess)?;
    let metadata = &object["metadata"];
    let (namespace, name) = (metadata["namespace"].as_str()?, metadata["name"].as_str()?);
    Some(format!("{}/{name}", resource.path(namespace)))
}
