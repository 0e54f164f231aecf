//! Elections as others see them: the lock objects in the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde::Serialize;
use serde_json::Value;
use tenure::core::WallTime;
use tenure::lock::{LockKind, Resource, Sight};

/// The annotation that makes a ConfigMap or Endpoints a lock.
const LEADER_ANNOTATION: &str = "control-plane.alpha.kubernetes.io/leader";

/// One election.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Seen {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) lock: &'static str,
    pub(crate) holder: String,
    pub(crate) transitions: u32,
    pub(crate) lease_duration_seconds: u32,
    pub(crate) acquire_time: Option<String>,
    pub(crate) renew_time: Option<String>,
    /// Since the last renewal, by this machine's clock.
    pub(crate) renewed_ago_seconds: Option<f64>,
    /// Until others may take it, by this machine's clock; negative if that is past.
    pub(crate) valid_for_seconds: Option<f64>,
    pub(crate) resource_version: String,
    pub(crate) paused: bool,
    pub(crate) state: &'static str,
    /// The renewal seems to lie in the future: somebody's clock is wrong.
    pub(crate) skewed: bool,
}

/// Lists elections. Kinds that may not be listed are left out if another could be.
pub(crate) async fn list(
    client: &Client,
    namespace: Option<&str>,
    kinds: &[LockKind],
) -> Result<Vec<Seen>> {
    let mut elections = Vec::new();
    let mut refused = None;
    for kind in kinds {
        let resource = resource_of(*kind);
        let root = if resource.group.is_empty() {
            "api"
        } else {
            "apis"
        };
        let place = namespace.map_or(String::new(), |namespace| {
            format!("/namespaces/{namespace}")
        });
        let path = format!(
            "/{root}/{}{place}/{}",
            resource.api_version(),
            resource.plural
        );
        let request = http::Request::get(&path).body(Vec::new())?;
        match client.request::<Value>(request).await {
            Ok(list) => {
                let items = list["items"].as_array().cloned().unwrap_or_default();
                elections.extend(
                    items
                        .into_iter()
                        .filter_map(|item| see(client, *kind, item)),
                );
            }
            Err(error) => refused = Some((resource.plural, error)),
        }
    }
    if let Some((plural, error)) = refused.filter(|_| elections.is_empty()) {
        return Err(error).with_context(|| format!("cannot list {plural}"));
    }
    elections.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    Ok(elections)
}

/// Reads one election.
pub(crate) async fn get(
    client: &Client,
    kind: LockKind,
    namespace: &str,
    name: &str,
) -> Result<Option<Seen>> {
    let path = path_of(kind, namespace, name);
    let request = http::Request::get(&path).body(Vec::new())?;
    match client.request::<Value>(request).await {
        Ok(object) => Ok(see(client, kind, object)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{kind} {namespace}/{name}")),
    }
}

/// Sends a merge patch to a lock object.
pub(crate) async fn patch(
    client: &Client,
    kind: LockKind,
    namespace: &str,
    name: &str,
    patch: &Value,
) -> Result<Value> {
    let request = http::Request::patch(path_of(kind, namespace, name))
        .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
        .body(serde_json::to_vec(patch)?)?;
    client
        .request(request)
        .await
        .with_context(|| format!("cannot patch {kind} {namespace}/{name}"))
}

fn path_of(kind: LockKind, namespace: &str, name: &str) -> String {
    format!("{}/{name}", resource_of(kind).path(namespace))
}

/// The object that carries the orders and the record; of a multi lock the primary one.
fn resource_of(kind: LockKind) -> Resource {
    match kind {
        LockKind::ConfigMaps | LockKind::ConfigMapsLeases => Resource::CONFIG_MAP,
        LockKind::Endpoints | LockKind::EndpointsLeases => Resource::ENDPOINTS,
        LockKind::Leases => Resource::LEASE,
    }
}

fn see(client: &Client, kind: LockKind, object: Value) -> Option<Seen> {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text("namespace"), text("name"));
    let is_lease = resource_of(kind) == Resource::LEASE;
    if !is_lease && metadata["annotations"][LEADER_ANNOTATION].is_null() {
        return None;
    }
    let lock: Arc<dyn tenure::lock::Lock> = kind
        .open(client.clone(), &namespace, &name, &BTreeMap::new())
        .ok()?;
    let Sight::Seen(sighting) = lock.sight(0, Some(object), None) else {
        return None;
    };
    let observation = sighting.observation();
    let record = &observation.record;
    let now = Timestamp::now();
    let ago = record
        .renew_time
        .and_then(timestamp)
        .map(|renewed| now.duration_since(renewed));
    let lease = SignedDuration::from_secs(i64::from(record.lease_duration_seconds));
    let valid = ago.map(|ago| lease - ago).filter(|_| !record.is_free());
    let seconds = |duration: SignedDuration| duration.as_millis() as f64 / 1000.0;
    let state = match () {
        () if observation.orders.paused => "paused",
        () if record.is_free() => "free",
        () if valid.is_none_or(|valid| valid.is_negative()) => "expired",
        () => "held",
    };
    Some(Seen {
        namespace,
        name,
        lock: kind.as_str(),
        holder: record.holder.clone(),
        transitions: record.transitions,
        lease_duration_seconds: record.lease_duration_seconds,
        acquire_time: record
            .acquire_time
            .and_then(timestamp)
            .map(|time| time.to_string()),
        renew_time: record
            .renew_time
            .and_then(timestamp)
            .map(|time| time.to_string()),
        renewed_ago_seconds: ago.map(seconds),
        valid_for_seconds: valid.map(seconds),
        resource_version: observation.version.revision.to_string(),
        paused: observation.orders.paused,
        state,
        skewed: ago.is_some_and(|ago| ago < SignedDuration::from_secs(-1)),
    })
}

fn timestamp(time: WallTime) -> Option<Timestamp> {
    Timestamp::from_microsecond(time.as_micros()).ok()
}
