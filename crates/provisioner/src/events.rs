//! Events on claims and volumes, as client-go's recorder posts them: an event that repeats counts up,
//! an object that gets too many gets no more for a while, and nobody waits for any of it.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cluster::Pace;
use crate::objects::{Claim, Volume};

/// What waits to be posted; beyond this, events are dropped.
const WAITING: usize = 1_000;
/// An object may have so many events at once,
const BURST: f64 = 25.0;
/// and then one in this time.
const ONE_IN: Duration = Duration::from_secs(300);
/// An event is tried so often,
const TRIES: usize = 3;
/// and so long each time.
const LIMIT: Duration = Duration::from_secs(10);
/// How much is remembered for counting.
const REMEMBERED: usize = 4_096;

/// Posts events.
#[derive(Clone)]
pub(crate) struct Recorder {
    queue: mpsc::Sender<News>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

/// Normal or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Normal,
    Warning,
}

struct News {
    about: ObjectReference,
    kind: Kind,
    reason: &'static str,
    message: String,
    component: Option<&'static str>,
}

impl Recorder {
    /// Starts to post, under the name of a component, until all recorders are gone.
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

    /// About a claim.
    pub(crate) fn claim(
        &self,
        claim: &Claim,
        kind: Kind,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.send(reference(claim), kind, reason, message.into(), None);
    }

    /// About a claim, in the name of another component.
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

    /// About a volume.
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
        let news = News {
            about,
            kind,
            reason,
            message,
            component,
        };
        // Events are for people; work goes on without them.
        _ = self.queue.try_send(news);
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
    /// What is remembered is remembered by its hash: there may be much of it, and all that depends on it is
    /// how an event is counted.
    hashes: RandomState,
    /// Number in the name, and count, of what was posted.
    posted: HashMap<u64, (u64, i32)>,
    /// What an object has used of its burst, and when.
    spent: HashMap<u64, (f64, Instant)>,
}

impl Poster {
    async fn run(mut self, mut inbox: mpsc::Receiver<News>) {
        while let Some(news) = inbox.recv().await {
            if !self.allows(&news) {
                continue;
            }
            for _ in 0..TRIES {
                self.pace.turn().await;
                // One request that hangs must not hold back all events after it.
                match tokio::time::timeout(LIMIT, self.post(&news)).await {
                    Ok(Ok(())) => break,
                    // Refused, so it would be again.
                    Ok(Err(error @ kube::Error::Api(_))) => {
                        tracing::debug!(%error, reason = news.reason, "event not posted");
                        break;
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%error, reason = news.reason, "event not posted yet");
                    }
                    Err(_) => tracing::debug!(reason = news.reason, "event not posted in time"),
                }
            }
        }
    }

    /// client-go's spam filter.
    fn allows(&mut self, news: &News) -> bool {
        let uid = self.hashes.hash_one(&news.about.uid);
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

    async fn post(&mut self, news: &News) -> Result<(), kube::Error> {
        // Events about objects of the cluster live in `default`, as client-go has it.
        let namespace = news.about.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let same = (&news.about.uid, news.kind, news.reason, &news.message);
        let key = self.hashes.hash_one(same);
        let object = news.about.name.as_deref().unwrap_or_default();
        let name_of = |number: u64| format!("{object}.{number:016x}");
        let now = Time(now());
        if let Some((number, count)) = self.posted.get_mut(&key) {
            *count += 1;
            let patch = json!({ "count": *count, "lastTimestamp": now });
            let name = name_of(*number);
            let patched = api
                .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await;
            match patched {
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    self.posted.remove(&key);
                }
                other => return other.map(drop),
            }
        }
        let number = uuid::Uuid::new_v4().as_u64_pair().0;
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name_of(number)),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: news.about.clone(),
            type_: Some(format!("{:?}", news.kind)),
            reason: Some(news.reason.to_owned()),
            message: Some(news.message.chars().take(1_024).collect()),
            source: Some(EventSource {
                component: Some(
                    news.component
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
        api.create(&PostParams::default(), &event).await?;
        if self.posted.len() > REMEMBERED {
            self.posted.clear();
        }
        self.posted.insert(key, (number, 1));
        Ok(())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "events carry wall time; nothing is decided by it"
)]
fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
