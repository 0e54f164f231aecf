//! The garbage collector: deletes objects whose owners are gone, and carries out foreground and
//! orphan deletions, by the rules of Kubernetes.
//!
//! [`graph`] remembers who owns whom and says whom to look at; [`examine`] looks at one object as the API
//! server has it now and acts. Nothing is deleted on the word of the graph alone.

mod examine;
mod graph;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use tenure_manager::queue::{ItemBackoff, WorkQueue};
use tenure_manager::{Backoff, Cause, Runnable, Scope};
use tokio::sync::watch;

use crate::resources::{Resource, discover};
use graph::{Graph, Key, Node};

/// How often new kinds are looked for.
const DISCOVER_EVERY: Duration = Duration::from_secs(10);

/// How often kinds are listed that change too often to be watched.
const LIST_EVERY: Duration = Duration::from_secs(30);

/// How many objects are examined at a time.
const WORKERS: usize = 8;

/// The garbage collector as a leader controller.
pub(crate) fn runnable(client: Client) -> Runnable {
    Runnable::new("garbage-collector", move |scope| {
        let collector = Collector::new(client.clone());
        async move { collector.run(scope).await }
    })
    .restart(Backoff::default())
}

struct Collector {
    client: Client,
    graph: Mutex<Graph>,
    queue: WorkQueue<Key>,
    resources: watch::Sender<Arc<Vec<Resource>>>,
}

impl Collector {
    fn new(client: Client) -> Self {
        let limiter = ItemBackoff::new(Duration::from_millis(5), Duration::from_secs(30));
        Self {
            client,
            graph: Mutex::default(),
            queue: WorkQueue::with_limiter("garbage-collector", limiter),
            resources: watch::Sender::default(),
        }
    }

    /// All in this task: when it ends, or is dropped, nothing of the term runs any more.
    async fn run(self, scope: Scope) -> Result<(), Cause> {
        let mut known: HashSet<String> = HashSet::new();
        let mut watches = FuturesUnordered::new();
        let mut workers = FuturesUnordered::new();
        let (filled, mut missing) = watch::channel(0_usize);
        let mut tick = tokio::time::interval(DISCOVER_EVERY);
        loop {
            tokio::select! {
                biased;
                () = scope.cancelled() => return Ok(()),
                _ = tick.tick() => {
                    let resources = match discover(&self.client).await {
                        Ok(resources) => resources,
                        // The first time there is nothing to go on with.
                        Err(error) if known.is_empty() => return Err(error.into()),
                        Err(error) => {
                            tracing::debug!(%error, "no news of kinds");
                            continue;
                        }
                    };
                    for resource in &resources {
                        if resource.name() != "/events" && known.insert(resource.name()) {
                            filled.send_modify(|missing| *missing += 1);
                            watches.push(self.follow(resource.clone(), filled.clone()));
                        }
                    }
                    self.resources.send_replace(Arc::new(resources));
                }
                Some(()) = watches.next(), if !watches.is_empty() => {}
                // Who has no dependents is known only when all of them are.
                () = all_there(&mut missing), if workers.is_empty() && !known.is_empty() => {
                    workers.extend((0..WORKERS).map(|_| self.work(&scope)));
                }
                Some(()) = workers.next(), if !workers.is_empty() => {}
            }
        }
    }

    /// Keeps the graph up to date about one kind.
    async fn follow(&self, resource: Resource, filled: watch::Sender<usize>) {
        let mut first = Some(filled);
        let mut done = move || {
            if let Some(filled) = first.take() {
                filled.send_modify(|missing| *missing -= 1);
            }
        };
        let objects = resource.metadata(&self.client);
        if !is_watched(&resource.name()) {
            loop {
                if let Ok(list) = objects.list(&ListParams::default()).await {
                    let nodes = list.items.iter().filter_map(|o| node(&resource, o));
                    self.look_at(|graph| graph.replace(&resource.name(), None, nodes.collect()));
                    done();
                }
                tokio::time::sleep(LIST_EVERY).await;
            }
        }
        let mut listing = Vec::new();
        let events = watcher(objects, watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listing.clear(),
                Ok(Event::InitApply(object)) => listing.extend(node(&resource, &object)),
                Ok(Event::InitDone) => {
                    let nodes = std::mem::take(&mut listing);
                    self.look_at(|graph| graph.replace(&resource.name(), None, nodes));
                    done();
                }
                Ok(Event::Apply(object)) => {
                    if let Some(node) = node(&resource, &object) {
                        self.look_at(|graph| graph.apply(node));
                    }
                }
                Ok(Event::Delete(object)) => {
                    let uid = object.metadata.uid.unwrap_or_default();
                    self.look_at(|graph| graph.remove(&uid));
                }
                Err(error) => {
                    tracing::debug!(kind = resource.name(), %error, "trouble with a watch");
                    // A kind that is gone or forbidden is no reason to wait for it. One that could not
                    // be listed yet is: its objects would be taken for nobody's dependents.
                    if is_refused(&error) {
                        done();
                    }
                }
            }
        }
    }

    /// Learns now of the objects that are not watched, as far as they can belong to an object in this
    /// namespace, or to one that is in none.
    async fn list_unwatched(&self, namespace: &str) -> Result<(), kube::Error> {
        let resources: Arc<Vec<Resource>> = self.resources.borrow().clone();
        for resource in resources.iter().filter(|r| !is_watched(&r.name())) {
            let objects = resource.objects(&self.client, namespace);
            let list = objects.list_metadata(&ListParams::default()).await?;
            let nodes = list
                .items
                .iter()
                .filter_map(|o| node(resource, o))
                .collect();
            let place = (!namespace.is_empty()).then_some(namespace);
            self.look_at(|graph| graph.replace(&resource.name(), place, nodes));
        }
        Ok(())
    }

    async fn work(&self, scope: &Scope) {
        while let Some(key) = self.queue.get().await {
            if scope.check().is_err() {
                return;
            }
            match self.examine(&key).await {
                Ok(()) => self.queue.forget(&key),
                Err(error) => {
                    tracing::debug!(object = %*key, %error, "not collected yet");
                    self.queue.add_rate_limited(key.clone());
                }
            }
        }
    }

    fn look_at(&self, change: impl FnOnce(&mut Graph) -> Vec<Key>) {
        let keys = change(&mut self.graph());
        keys.into_iter().for_each(|key| self.queue.add(key));
    }

    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a kind is watched. Every renewal of a Lease would be an event, for objects that hardly ever have
/// owners, so they are listed: now and then, and before a deletion is finished that depends on them.
fn is_watched(resource: &str) -> bool {
    resource != "coordination.k8s.io/leases"
}

/// Waits until every kind was listed once.
pub(crate) async fn all_there(missing: &mut watch::Receiver<usize>) {
    // The sender lives as long as whoever waits.
    let _ = missing.wait_for(|missing| *missing == 0).await.map(drop);
}

fn node<K>(resource: &Resource, object: &PartialObjectMeta<K>) -> Option<Node> {
    Node::new(&resource.name(), &object.metadata)
}

/// Whether the API server does not serve this kind, or not to us.
fn is_refused(error: &watcher::Error) -> bool {
    let code = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status.code,
        watcher::Error::WatchError(status) => status.code,
        _ => return false,
    };
    matches!(code, 403..=405)
}
