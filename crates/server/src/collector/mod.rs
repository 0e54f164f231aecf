//! The garbage collector: deletes objects whose owners are gone, and performs foreground and orphan deletions, by the
//! rules of Kubernetes.
//!
//! [`graph`] stores the ownership relations and decides which objects to examine. [`examine`] reads one object from the
//! API server and acts. Nothing is deleted based on the graph alone. The manager's cache does not fit, because the kinds
//! are discovered at run time, and only the relations of their objects are kept.

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
use tenure_manager::{Backoff, Cause, Runnable, Scope};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::resources::{Resource, discover};
use crate::work::Work;
use examine::Obstacle;
use graph::{Graph, Key, Node};

/// Delays of discovery after a change of definitions, because an API server may serve new kinds a little later.
const DISCOVER_AFTER: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(3),
    Duration::from_secs(10),
];

/// Interval of discovery without such a change.
const DISCOVER_EVERY: Duration = Duration::from_secs(600);

/// Listing intervals of kinds that change too often to be watched. The short one applies after objects were removed,
/// because these may have been owners; the long one applies otherwise.
const LIST_AFTER_REMOVAL: Duration = Duration::from_secs(15);
const LIST_EVERY: Duration = Duration::from_secs(300);

/// Number of objects that are examined concurrently.
const WORKERS: usize = 8;

/// Returns the garbage collector as a leader controller.
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
    work: Work<Key>,
    resources: watch::Sender<Arc<Vec<Resource>>>,
    /// Notified when a definition of kinds was created, changed or deleted.
    redefined: Notify,
    /// Notified when an object was removed.
    removed: watch::Sender<()>,
}

impl Collector {
    fn new(client: Client) -> Self {
        Self {
            client,
            graph: Mutex::default(),
            work: Work::new("garbage-collector"),
            resources: watch::Sender::default(),
            redefined: Notify::new(),
            removed: watch::Sender::default(),
        }
    }

    /// Runs everything in this task, so that nothing of the term runs after it ends or is dropped.
    async fn run(self, scope: Scope) -> Result<(), Cause> {
        let mut known: HashSet<String> = HashSet::new();
        let mut watches = FuturesUnordered::new();
        let mut workers = FuturesUnordered::new();
        let (filled, mut missing) = watch::channel(0_usize);
        let mut discovery = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let mut pauses = [].iter();
        loop {
            tokio::select! {
                biased;
                () = scope.cancelled() => return Ok(()),
                () = discovery.as_mut() => {
                    match discover(&self.client).await {
                        Ok(resources) => {
                            for resource in &resources {
                                if resource.name() != "/events" && known.insert(resource.name()) {
                                    filled.send_modify(|missing| *missing += 1);
                                    watches.push(self.follow(resource.clone(), filled.clone()));
                                }
                            }
                            self.use_kinds(resources);
                        }
                        // The first discovery has no earlier result to fall back on.
                        Err(error) if known.is_empty() => return Err(error.into()),
                        Err(error) => {
                            tracing::debug!(error = tenure::plain(&error), "cannot discover kinds; retrying later");
                            pauses = DISCOVER_AFTER[2..].iter();
                        }
                    }
                    let pause = pauses.next().copied().unwrap_or(DISCOVER_EVERY);
                    discovery.as_mut().reset(Instant::now() + pause);
                }
                () = self.redefined.notified() => {
                    pauses = DISCOVER_AFTER[1..].iter();
                    let soon = Instant::now() + DISCOVER_AFTER[0];
                    if discovery.deadline() > soon {
                        discovery.as_mut().reset(soon);
                    }
                }
                Some(name) = watches.next(), if !watches.is_empty() => {
                    known.remove(&name);
                }
                // The absence of dependents is known only after all kinds were listed.
                () = all_there(&mut missing), if workers.is_empty() && !known.is_empty() => {
                    workers.extend((0..WORKERS).map(|_| self.work(&scope)));
                }
                Some(()) = workers.next(), if !workers.is_empty() => {}
            }
        }
    }

    /// Applies the result of discovery.
    fn use_kinds(&self, resources: Vec<Resource>) {
        let before = self.resources.send_replace(Arc::new(resources));
        let now: Arc<Vec<Resource>> = self.resources.borrow().clone();
        if now.iter().any(|resource| !before.contains(resource)) {
            self.look_at(Graph::unpark);
        }
    }

    /// Updates the graph for one kind until the kind is gone. Returns the name of the kind.
    async fn follow(&self, resource: Resource, filled: watch::Sender<usize>) -> String {
        let mut first = Some(filled);
        // Returns true at the first call.
        let mut done = move || {
            let first = first.take();
            if let Some(filled) = &first {
                filled.send_modify(|missing| *missing -= 1);
            }
            first.is_some()
        };
        let objects = resource.metadata(&self.client);
        if !is_watched(&resource.name()) {
            let mut removed = self.removed.subscribe();
            loop {
                removed.mark_unchanged();
                let list = objects.list(&ListParams::default()).await;
                if let Ok(list) = &list {
                    let nodes = list.items.iter().filter_map(|o| node(&resource, o));
                    self.look_at(|graph| graph.replace(&resource.name(), None, nodes.collect()));
                    done();
                }
                tokio::time::sleep(LIST_AFTER_REMOVAL).await;
                if list.is_ok() {
                    // The sender lives as long as the collector.
                    let rest = LIST_EVERY - LIST_AFTER_REMOVAL;
                    let _ = tokio::time::timeout(rest, removed.changed()).await;
                }
            }
        }
        let defines = defines_kinds(&resource.name());
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
                    // The list contains all changes that happened while the watch was broken.
                    if !done() {
                        self.removed.send_replace(());
                        if defines {
                            self.redefined.notify_one();
                        }
                    }
                }
                Ok(Event::Apply(object)) => {
                    if let Some(node) = node(&resource, &object) {
                        self.look_at(|graph| graph.apply(node));
                    }
                    if defines {
                        self.redefined.notify_one();
                    }
                }
                Ok(Event::Delete(object)) => {
                    let uid = object.metadata.uid.unwrap_or_default();
                    self.look_at(|graph| graph.remove(&uid));
                    self.removed.send_replace(());
                    if defines {
                        self.redefined.notify_one();
                    }
                }
                Err(error) => {
                    tracing::debug!(
                        kind = resource.name(),
                        error = tenure_lock::in_words(&error),
                        "a watch failed; retrying"
                    );
                    // Do not wait for a kind that is gone or forbidden. Wait for a kind that could not be listed yet,
                    // because its objects could be dependents.
                    if is_refused(&error) {
                        done();
                        let name = resource.name();
                        if self.resource(|r| r.name() == name).is_none() {
                            self.look_at(|graph| graph.replace(&name, None, Vec::new()));
                            return name;
                        }
                    }
                }
            }
        }
        resource.name()
    }

    /// Lists the objects of unwatched kinds that can belong to an object in this namespace, or to a cluster-scoped one.
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
        while let Some(key) = self.work.next(scope).await {
            let done = match self.examine(&key).await {
                Err(Obstacle::UnknownKind(kind)) => {
                    let object = &*key;
                    tracing::debug!(%object, kind, "owner of an unknown kind; waiting for new kinds");
                    self.graph().park(&key.uid);
                    Ok(())
                }
                done => done,
            };
            self.work.done(&key, done);
        }
    }

    fn look_at(&self, change: impl FnOnce(&mut Graph) -> Vec<Key>) {
        let keys = change(&mut self.graph());
        keys.into_iter().for_each(|key| self.work.add(key));
    }

    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a kind is watched. Leases are listed instead, because every renewal would be an event and Leases
/// rarely have owners. They are listed periodically, and before completing a deletion that depends on them.
fn is_watched(resource: &str) -> bool {
    resource != "coordination.k8s.io/leases"
}

/// Returns whether objects of this kind define other kinds.
fn defines_kinds(resource: &str) -> bool {
    matches!(
        resource,
        "apiextensions.k8s.io/customresourcedefinitions" | "apiregistration.k8s.io/apiservices"
    )
}

/// Waits until every kind was listed once.
pub(crate) async fn all_there(missing: &mut watch::Receiver<usize>) {
    // The sender lives as long as the waiting task.
    let _ = missing.wait_for(|missing| *missing == 0).await.map(drop);
}

fn node<K>(resource: &Resource, object: &PartialObjectMeta<K>) -> Option<Node> {
    Node::new(&resource.name(), &object.metadata)
}

/// Returns whether the API server does not serve this kind, or does not permit access to it.
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
