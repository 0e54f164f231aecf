//! Records Events on claims and volumes as client-go's recorder does: repeated events are counted, each object has a
//! rate limit, and callers never wait.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cluster::{Pace, unread};
use crate::objects::{Claim, Volume};

/// Capacity of the queue; further events are dropped.
const WAITING: usize = 1_000;
/// Number of events that are posted concurrently.
const AT_ONCE: usize = 16;
/// Burst of events per object.
const BURST: f64 = 25.0;
/// Interval between events of one object after the burst.
const ONE_IN: Duration = Duration::from_secs(300);
/// Attempts per event.
const TRIES: usize = 3;
/// Timeout of each attempt.
const LIMIT: Duration = Duration::from_secs(10);
/// Number of events whose counts are kept.
const REMEMBERED: usize = 4_096;

/// Posts events.
#[derive(Clone)]
pub(crate) struct Recorder {
    queue: mpsc::Sender<PendingEvent>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

/// Type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Normal,
    Warning,
}

struct PendingEvent {
    about: ObjectReference,
    kind: Kind,
    reason: &'static str,
    message: String,
    component: Option<&'static str>,
}

impl Recorder {
    /// Starts a task that posts events under the name of a component until all recorders are dropped.
    pub(crate) fn start(client: Client, component: String, host: String, pace: Pace) -> Self {
        let (queue, inbox) = mpsc::channel(WAITING);
        let poster = Poster {
            client,
            component,
            host,
            pace,
            hashes: RandomState::new(),
            posted: HashMap::new(),
            spent: HashMap::new(),
        };
        tokio::spawn(poster.run(inbox));
        Self { queue }
    }

    /// Records an event on a claim.
    pub(crate) fn claim(
        &self,
        claim: &Claim,
        kind: Kind,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.send(reference(claim), kind, reason, message.into(), None);
    }

    /// Records an event on a claim, under the name of another component.
    pub(crate) fn claim_as(
        &self,
        component: &'static str,
        claim: &Claim,
        reason: &'static str,
        message: &str,
    ) {
        let about = reference(claim);
        self.send(
            about,
            Kind::Normal,
            reason,
            message.to_owned(),
            Some(component),
        );
    }

    /// Records an event on a volume.
    pub(crate) fn volume(
        &self,
        volume: &Volume,
        kind: Kind,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.send(reference(volume), kind, reason, message.into(), None);
    }

    fn send(
        &self,
        about: ObjectReference,
        kind: Kind,
        reason: &'static str,
        message: String,
        component: Option<&'static str>,
    ) {
        let event = PendingEvent {
            about,
            kind,
            reason,
            message,
            component,
        };
        // A dropped event is harmless, because no component depends on Events.
        _ = self.queue.try_send(event);
    }
}

fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectReference::default()
    }
}

struct Poster {
    client: Client,
    component: String,
    host: String,
    pace: Pace,
    /// Hash function of the keys below. Hashes save memory; a collision only affects the count of an event.
    hashes: RandomState,
    /// Number in the name of each posted event, and its count.
    posted: HashMap<u64, (u64, i32)>,
    /// The used part of each object's burst, and when it was computed.
    spent: HashMap<u64, (f64, Instant)>,
}

impl Poster {
    async fn run(mut self, mut inbox: mpsc::Receiver<PendingEvent>) {
        let mut waiting = Vec::new();
        loop {
            let free = AT_ONCE.saturating_sub(waiting.len());
            if waiting.is_empty() || free > 0 && !inbox.is_empty() {
                let mut events = Vec::new();
                if inbox.recv_many(&mut events, free).await == 0 {
                    return;
                }
                events.retain(|event| self.allows(event));
                waiting.extend(events.into_iter().map(|event| (self.key(&event), event)));
            }
            // Equal events are posted one after another, because each one increases the same count.
            let mut keys = HashSet::new();
            let now = waiting.extract_if(.., |(key, _)| keys.insert(*key));
            let now: Vec<_> = now.collect();
            let posts = now.iter().map(|(key, event)| self.deliver(*key, event));
            for (key, posted) in join_all(posts).await.into_iter().flatten() {
                if self.posted.len() > REMEMBERED {
                    self.posted.clear();
                }
                self.posted.insert(key, posted);
            }
        }
    }

    fn key(&self, event: &PendingEvent) -> u64 {
        let same = (&event.about.uid, event.kind, event.reason, &event.message);
        self.hashes.hash_one(same)
    }

    /// Posts an event with retries. Returns its number and count.
    async fn deliver(&self, key: u64, event: &PendingEvent) -> Option<(u64, (u64, i32))> {
        for _ in 0..TRIES {
            self.pace.turn().await;
            // A hanging request must not delay all later events.
            match tokio::time::timeout(LIMIT, self.post(key, event)).await {
                Ok(Ok(posted)) => return Some((key, posted)),
                // The API server rejected the event and would reject it again.
                Ok(Err(error @ kube::Error::Api(_))) => {
                    tracing::debug!(
                        error = tenure::plain(&error),
                        reason = event.reason,
                        "cannot create an event"
                    );
                    return None;
                }
                Ok(Err(error)) => {
                    tracing::debug!(
                        error = tenure::plain(&error),
                        reason = event.reason,
                        "cannot create an event; retrying"
                    );
                }
                Err(_) => tracing::debug!(
                    reason = event.reason,
                    "cannot create an event in time; dropped it"
                ),
            }
        }
        None
    }

    /// Applies client-go's spam filter.
    fn allows(&mut self, event: &PendingEvent) -> bool {
        let uid = self.hashes.hash_one(&event.about.uid);
        let now = Instant::now();
        if self.spent.len() > REMEMBERED {
            self.spent
                .retain(|_, (_, at)| now.duration_since(*at) < ONE_IN);
        }
        let (spent, at) = self.spent.entry(uid).or_insert((0.0, now));
        let regained = now.duration_since(*at).as_secs_f64() / ONE_IN.as_secs_f64();
        *spent = (*spent - regained).max(0.0);
        *at = now;
        if *spent + 1.0 > BURST {
            return false;
        }
        *spent += 1.0;
        true
    }

    /// Posts an event once. Returns the number in its name and its count.
    async fn post(&self, key: u64, event: &PendingEvent) -> Result<(u64, i32), kube::Error> {
        // As in client-go, Events of cluster-scoped objects are in the namespace `default`.
        let namespace = event.about.namespace.as_deref().unwrap_or("default");
        let events = Request::new(Event::url_path(&(), Some(namespace)));
        let object = event.about.name.as_deref().unwrap_or_default();
        let name_of = |number: u64| format!("{object}.{number:016x}");
        let now = Time(now());
        if let Some((number, count)) = self.posted.get(&key) {
            let (number, count) = (*number, count + 1);
            let patch = json!({ "count": count, "lastTimestamp": now });
            let name = name_of(number);
            let patch = Patch::Merge(&patch);
            let request = events.patch(&name, &PatchParams::default(), &patch);
            match unread(&self.client, request).await {
                // The API server deleted the event, which lives for an hour; create it again.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => return other.map(|()| (number, count)),
            }
        }
        let number = uuid::Uuid::new_v4().as_u64_pair().0;
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name_of(number)),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: event.about.clone(),
            type_: Some(format!("{:?}", event.kind)),
            reason: Some(event.reason.to_owned()),
            message: Some(event.message.chars().take(1_024).collect()),
            source: Some(EventSource {
                component: Some(
                    event
                        .component
                        .map_or_else(|| self.component.clone(), str::to_owned),
                ),
                host: Some(self.host.clone()).filter(|host| !host.is_empty()),
            }),
            count: Some(1),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(String::new()),
            ..Event::default()
        };
        let event = serde_json::to_vec(&event).map_err(kube::Error::SerdeError)?;
        let request = events.create(&PostParams::default(), event);
        unread(&self.client, request).await?;
        Ok((number, 1))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "events carry wall time; nothing is decided by it"
)]
fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
