//! Events on claims and volumes, as client-go's recorder posts them: an event that repeats counts up,
//! an object that gets too many gets no more for a while, and nobody waits for any of it.

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

/// What waits to be posted; beyond this, events are dropped.
const WAITING: usize = 1_000;
/// So many are posted at once.
const AT_ONCE: usize = 16;
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
        let mut waiting = Vec::new();
        loop {
            let room = AT_ONCE.saturating_sub(waiting.len());
            if waiting.is_empty() || room > 0 && !inbox.is_empty() {
                let mut news = Vec::new();
                if inbox.recv_many(&mut news, room).await == 0 {
                    return;
                }
                news.retain(|news| self.allows(news));
                waiting.extend(news.into_iter().map(|news| (self.key(&news), news)));
            }
            // What repeats is counted up, so it goes one after the other.
            let mut keys = HashSet::new();
            let now = waiting.extract_if(.., |(key, _)| keys.insert(*key));
            let now: Vec<_> = now.collect();
            let posts = now.iter().map(|(key, news)| self.deliver(*key, news));
            for (key, posted) in join_all(posts).await.into_iter().flatten() {
                if self.posted.len() > REMEMBERED {
                    self.posted.clear();
                }
                self.posted.insert(key, posted);
            }
        }
    }

    fn key(&self, news: &News) -> u64 {
        let same = (&news.about.uid, news.kind, news.reason, &news.message);
        self.hashes.hash_one(same)
    }

    /// Tries a few times: what to remember of it.
    async fn deliver(&self, key: u64, news: &News) -> Option<(u64, (u64, i32))> {
        for _ in 0..TRIES {
            self.pace.turn().await;
            // One request that hangs must not hold back all events after it.
            match tokio::time::timeout(LIMIT, self.post(key, news)).await {
                Ok(Ok(posted)) => return Some((key, posted)),
                // Refused, so it would be again.
                Ok(Err(error @ kube::Error::Api(_))) => {
                    tracing::debug!(%error, reason = news.reason, "event not posted");
                    return None;
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, reason = news.reason, "event not posted yet");
                }
                Err(_) => tracing::debug!(reason = news.reason, "event not posted in time"),
            }
        }
        None
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

    /// The number in the event's name, and its count.
    async fn post(&self, key: u64, news: &News) -> Result<(u64, i32), kube::Error> {
        // Events about objects of the cluster live in `default`, as client-go has it.
        let namespace = news.about.namespace.as_deref().unwrap_or("default");
        let events = Request::new(Event::url_path(&(), Some(namespace)));
        let object = news.about.name.as_deref().unwrap_or_default();
        let name_of = |number: u64| format!("{object}.{number:016x}");
        let now = Time(now());
        if let Some((number, count)) = self.posted.get(&key) {
            let (number, count) = (*number, count + 1);
            let patch = json!({ "count": count, "lastTimestamp": now });
            let name = name_of(number);
            let patch = Patch::Merge(&patch);
            let request = events.patch(&name, &PatchParams::default(), &patch);
            match unread(&self.client, request).await {
                // Events live for an hour.
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
