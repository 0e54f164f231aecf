//! Elections as visible from outside: the lock objects in the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde::Serialize;
use serde_json::Value;
use tenure_core::{Record, WallTime};
use tenure_lock::member::MemberSnapshot;
use tenure_lock::{LEADER_ANNOTATION, LockKind, Resource, WatchOutcome, orders};

use crate::announce::{Candidate, is_recent};
use crate::api::{self, Clock};

/// The kinds of lock objects. A multi lock appears as its two objects.
pub(crate) const KINDS: [LockKind; 3] =
    [LockKind::Leases, LockKind::ConfigMaps, LockKind::Endpoints];

/// Annotation of a lock with the time at which a holder completed its work (`tenure run --once`).
pub(crate) const COMPLETED: &str = "tenure.dev/completed";

/// One election.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    /// Time since the holder won its term, by the server's clock.
    pub(crate) held_for_seconds: Option<f64>,
    /// Time since the last renewal, by the server's clock.
    pub(crate) renewed_ago_seconds: Option<f64>,
    /// Time until other candidates may acquire the lock, by the server's clock. Negative if that time has passed.
    pub(crate) valid_for_seconds: Option<f64>,
    pub(crate) resource_version: String,
    pub(crate) paused: bool,
    pub(crate) state: &'static str,
    /// Whether the time of the renewal is in the future, because a clock is wrong.
    pub(crate) skewed: bool,
    /// Number of terms that began in the last ten minutes; unknown if Events cannot be read.
    pub(crate) recent_terms: Option<usize>,
    /// Whether the holder changes too often.
    pub(crate) flapping: bool,
    /// Time at which `tenure run --once` last completed its work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completed_time: Option<String>,
    /// Living candidates that announce themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) candidates: Vec<Candidate>,
}

impl Seen {
    /// Returns whether candidates announce themselves, and none except the holder is ready to lead.
    pub(crate) fn has_no_standby(&self) -> bool {
        let stands_ready = |other: &Candidate| other.ready && other.identity != self.holder;
        !self.candidates.is_empty() && !self.candidates.iter().any(stands_ready)
    }

    /// Returns the patch that asks the holder of this term, and of no later one, to step down.
    pub(crate) fn step_down_patch(&self, to: Option<&str>, sit_out: Option<Duration>) -> Value {
        let acquired = self.acquire_time.as_deref();
        let acquired: Option<Timestamp> = acquired.and_then(|time| time.parse().ok());
        let record = Record {
            holder: self.holder.clone(),
            acquire_time: acquired.map(|time| WallTime::from_micros(time.as_microsecond())),
            transitions: self.transitions,
            ..Record::default()
        };
        orders::step_down_patch(&record, to, sit_out)
    }
}

/// The elections, and the kinds that could not be listed.
pub(crate) struct Listing {
    pub(crate) elections: Vec<Seen>,
    pub(crate) refused: Vec<(&'static str, kube::Error)>,
    pub(crate) clock: Clock,
}

/// Lists elections. Kinds that cannot be listed are skipped if another kind could be.
pub(crate) async fn list(client: &Client, namespace: Option<&str>) -> Result<Listing> {
    let answers = join_all(KINDS.map(|kind| async move {
        let path = collection(kind, namespace);
        (kind, api::get_as(client, &path, forms(kind).0).await)
    }));
    let mut listing = Listing {
        elections: Vec::new(),
        refused: Vec::new(),
        clock: Clock::default(),
    };
    // The keys are the namespace and the name of an election.
    let mut members: BTreeMap<(String, String), Vec<Candidate>> = BTreeMap::new();
    for (kind, answer) in answers.await {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                listing.refused.push((resource_of(kind).plural, error));
                continue;
            }
        };
        listing.clock = listing.clock.and(answer.clock);
        let items = answer.body["items"].as_array().cloned().unwrap_or_default();
        let now = answer.clock.now();
        for (election, candidate) in items.iter().filter_map(|item| living(item, now)) {
            members.entry(election).or_default().push(candidate);
        }
        let seen = items.into_iter().filter_map(|i| see(client, kind, i, now));
        listing.elections.extend(seen);
    }
    for seen in &mut listing.elections {
        let place = (seen.namespace.clone(), seen.name.clone());
        seen.candidates = members.get(&place).cloned().unwrap_or_default();
        seen.candidates.sort_by(|a, b| a.identity.cmp(&b.identity));
    }
    if listing.refused.len() == KINDS.len() {
        let (plural, error) = listing.refused.remove(0);
        return Err(error).with_context(|| format!("cannot list {plural}"));
    }
    let key = |e: &Seen| (e.namespace.clone(), e.name.clone());
    listing.elections.sort_by_key(key);
    Ok(listing)
}

/// Returns the election and the candidate of an object that is a living member.
fn living(object: &Value, now: Timestamp) -> Option<((String, String), Candidate)> {
    let namespace = object["metadata"]["namespace"].as_str()?;
    let found = MemberSnapshot::read(object).filter(|found| is_recent(found, now))?;
    let election = (namespace.to_owned(), found.election);
    Some((election, found.member.into()))
}

/// Reads one election.
pub(crate) async fn get(
    client: &Client,
    kind: LockKind,
    namespace: &str,
    name: &str,
) -> Result<Option<Seen>> {
    match api::get(client, &path_of(kind, namespace, name)).await {
        Ok(answer) => Ok(see(client, kind, answer.body, answer.clock.now())),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot get {kind} {namespace}/{name}")),
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

/// Writes an order to a lock object. Candidates may update the lock, but often lack the permission to patch it.
pub(crate) async fn order(
    client: &Client,
    kind: LockKind,
    namespace: &str,
    name: &str,
    order: &Value,
) -> Result<()> {
    let refused = match patch(client, kind, namespace, name, order).await {
        Ok(_) => return Ok(()),
        Err(error) if code_of(&error) == Some(403) => error,
        Err(error) if code_of(&error) == Some(404) => {
            bail!("{}; {LIST_THEM}", missing(kind, namespace, name))
        }
        Err(error) => return Err(error),
    };
    let path = path_of(kind, namespace, name);
    for _ in 0..5 {
        let object = api::get(client, &path).await;
        let object = object.with_context(|| format!("cannot get {kind} {namespace}/{name}"));
        let mut object = object?.body;
        let annotations = &mut object["metadata"]["annotations"];
        for (key, value) in order["metadata"]["annotations"]
            .as_object()
            .into_iter()
            .flatten()
        {
            annotations[key.as_str()] = value.clone();
        }
        let request = http::Request::put(&path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&object)?)?;
        match client.request::<Value>(request).await {
            Ok(_) => return Ok(()),
            // The holder renewed in between.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(kube::Error::Api(status)) if status.code == 403 => return Err(refused),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot update {kind} {namespace}/{name}"));
            }
        }
    }
    Err(refused)
}

/// Advice for an election that does not exist.
pub(crate) const LIST_THEM: &str = "run `tenure status -A` to list elections";

/// States that an election does not exist.
pub(crate) fn missing(kind: LockKind, namespace: &str, name: &str) -> String {
    format!("election {namespace}/{name} with a {kind} lock does not exist")
}

/// Returns the status code of a rejection by the API server.
fn code_of(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// Returns the path of all objects of this kind.
pub(crate) fn collection(kind: LockKind, namespace: Option<&str>) -> String {
    let resource = resource_of(kind);
    match namespace {
        Some(namespace) => resource.path(namespace),
        None => {
            let api_version = resource.api_version();
            let root = if resource.group.is_empty() {
                "api"
            } else {
                "apis"
            };
            format!("/{root}/{api_version}/{}", resource.plural)
        }
    }
}

/// Returns the `Accept` headers for a list and a watch. Leases have their record in the spec, the others in an
/// annotation.
pub(crate) fn forms(kind: LockKind) -> (&'static str, &'static str) {
    if resource_of(kind) == Resource::LEASE {
        (api::WHOLE, api::WHOLE)
    } else {
        (api::METADATA_LIST, api::METADATA)
    }
}

/// Returns the path of a lock object.
pub(crate) fn path_of(kind: LockKind, namespace: &str, name: &str) -> String {
    format!("{}/{name}", resource_of(kind).path(namespace))
}

/// Returns the resource that contains the orders and the record; for a multi lock the primary one.
pub(crate) fn resource_of(kind: LockKind) -> Resource {
    match kind {
        LockKind::ConfigMaps | LockKind::ConfigMapsLeases => Resource::CONFIG_MAP,
        LockKind::Endpoints | LockKind::EndpointsLeases => Resource::ENDPOINTS,
        LockKind::Leases => Resource::LEASE,
    }
}

/// Parses a lock object; `None` if the object is not a lock, for example a member.
pub(crate) fn see(client: &Client, kind: LockKind, object: Value, now: Timestamp) -> Option<Seen> {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text("namespace"), text("name"));
    let is_lease = resource_of(kind) == Resource::LEASE;
    if !is_lease && metadata["annotations"][LEADER_ANNOTATION].is_null() {
        return None;
    }
    if is_lease && MemberSnapshot::read(&object).is_some() {
        return None;
    }
    let completed = metadata["annotations"][COMPLETED].as_str();
    let completed_time = completed.map(str::to_owned);
    let lock: Arc<dyn tenure_lock::Lock> = kind
        .open(client.clone(), &namespace, &name, &BTreeMap::new())
        .ok()?;
    let WatchOutcome::Present(snapshot) = lock.apply_watch_event(0, Some(object), None) else {
        return None;
    };
    let observation = snapshot.observation();
    let record = &observation.record;
    let since = |time: Option<WallTime>| time.and_then(timestamp).map(|t| now.duration_since(t));
    let ago = since(record.renew_time);
    let lease = SignedDuration::from_secs(i64::from(record.lease_duration_seconds));
    let valid = ago.map(|ago| lease - ago).filter(|_| !record.is_free());
    let seconds = |duration: SignedDuration| duration.as_millis() as f64 / 1000.0;
    let text = |time: Option<WallTime>| time.and_then(timestamp).map(|time| time.to_string());
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
        acquire_time: text(record.acquire_time),
        renew_time: text(record.renew_time),
        held_for_seconds: since(record.acquire_time)
            .filter(|_| !record.is_free())
            .map(seconds),
        renewed_ago_seconds: ago.map(seconds),
        valid_for_seconds: valid.map(seconds),
        resource_version: observation.version.revision.to_string(),
        paused: observation.orders.paused,
        state,
        skewed: ago.is_some_and(|ago| ago < SignedDuration::from_secs(-1)),
        recent_terms: None,
        flapping: false,
        completed_time,
        candidates: Vec::new(),
    })
}

fn timestamp(time: WallTime) -> Option<Timestamp> {
    Timestamp::from_microsecond(time.as_micros()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn records_of_leases_and_annotations_are_parsed() {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let now: Timestamp = "2026-11-16T00:00:05Z".parse().unwrap();
        let record = r#"{"holderIdentity":"web-0","leaseDurationSeconds":10,
            "acquireTime":"2026-11-16T00:00:00Z","renewTime":"2026-11-16T00:00:00Z"}"#;
        let object = |annotations: Value, spec: Value| {
            let metadata = json!({
                "namespace": "team", "name": "web", "uid": "u", "resourceVersion": "7",
                "annotations": annotations,
            });
            json!({ "metadata": metadata, "spec": spec })
        };
        let annotated = |text: &str| object(json!({ LEADER_ANNOTATION: text }), Value::Null);
        let lease = object(json!({}), serde_json::from_str(record).unwrap());
        for (kind, held) in [
            (LockKind::Leases, lease),
            (LockKind::ConfigMaps, annotated(record)),
            (LockKind::Endpoints, annotated(record)),
        ] {
            let seen = see(&client, kind, held, now).expect("a lock");
            assert_eq!((seen.holder.as_str(), seen.state), ("web-0", "held"));
            assert_eq!(seen.renewed_ago_seconds, Some(5.0));
            assert_eq!(seen.valid_for_seconds, Some(5.0));
            let patch = seen.step_down_patch(Some("web-1"), None);
            assert_eq!(
                patch["metadata"]["annotations"][orders::STEP_DOWN_ANNOTATION],
                r#"{"transitions":0,"holder":"web-0","acquireTime":"2026-11-16T00:00:00.000000Z","to":"web-1"}"#
            );
        }
        let released = json!({ "holderIdentity": "", "leaseDurationSeconds": 1 });
        let free = object(json!({}), released);
        let seen = see(&client, LockKind::Leases, free, now).expect("a lock");
        assert_eq!((seen.state, seen.valid_for_seconds), ("free", None));
        // The Endpoints of a Service are not a lock. An unreadable record has no holder.
        let service = object(json!({}), Value::Null);
        assert_eq!(see(&client, LockKind::Endpoints, service, now), None);
        let nonsense = see(&client, LockKind::Endpoints, annotated("{"), now).expect("a lock");
        assert_eq!(
            (nonsense.holder.as_str(), nonsense.valid_for_seconds),
            ("", None)
        );
    }
}
