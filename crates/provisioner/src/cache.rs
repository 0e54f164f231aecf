//! Objects as the API server has them, kept up to date by a watch.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// The objects of one kind, by a key. Clones share them.
pub(crate) struct Cache<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    objects: Mutex<HashMap<String, Arc<K>>>,
    synced: watch::Sender<bool>,
}

/// What a watch tells about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is there, new or changed.
    Applied,
    /// It is gone, or is not kept any more.
    Gone,
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({})", self.lock().len())
    }
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self {
            inner: Arc::new(Inner {
                objects: Mutex::default(),
                synced: watch::Sender::new(false),
            }),
        }
    }
}

impl<K> Cache<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<K>>> {
        self.inner
            .objects
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &str) -> Option<Arc<K>> {
        self.lock().get(key).cloned()
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        self.lock().contains_key(key)
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.lock().values().cloned().collect()
    }

    /// Puts in what was just written, before the watch tells.
    pub(crate) fn insert(&self, key: String, object: K) {
        self.lock().insert(key, Arc::new(object));
    }

    /// Takes out what was just deleted, before the watch tells.
    pub(crate) fn remove(&self, key: &str) {
        self.lock().remove(key);
    }

    /// Looks at every object without copying.
    pub(crate) fn find_map<T>(&self, look: impl FnMut(&Arc<K>) -> Option<T>) -> Option<T> {
        self.lock().values().find_map(look)
    }

    /// Waits until everything that was there at the start is here.
    pub(crate) async fn synced(&self) {
        let mut synced = self.inner.synced.subscribe();
        // The sender lives in the cache itself.
        _ = synced.wait_for(|synced| *synced).await;
    }
}

impl<K> Cache<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Keeps the cache, for ever. `keep` gives the key of an object that is worth keeping; `tell` hears of
    /// every change of what is kept.
    pub(crate) async fn run(
        self,
        api: Api<K>,
        key: impl Fn(&K) -> String + Send,
        keep: impl Fn(&K) -> bool + Send,
        tell: impl Fn(&str, Change) + Send,
    ) {
        self.follow(api, watcher::Config::default(), key, keep, tell)
            .await;
    }

    /// The same for objects with these labels only.
    pub(crate) async fn run_labelled(
        self,
        api: Api<K>,
        labels: String,
        key: impl Fn(&K) -> String + Send,
        tell: impl Fn(&str, Change) + Send,
    ) {
        let config = watcher::Config::default().labels(&labels);
        self.follow(api, config, key, |_| true, tell).await;
    }

    async fn follow(
        self,
        api: Api<K>,
        config: watcher::Config,
        key: impl Fn(&K) -> String + Send,
        keep: impl Fn(&K) -> bool + Send,
        tell: impl Fn(&str, Change) + Send,
    ) {
        let plural = K::plural(&());
        let stream = watch_objects(api, config).default_backoff();
        let mut stream = std::pin::pin!(stream);
        let mut listed: Option<HashSet<String>> = None;
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => listed = Some(HashSet::new()),
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    let key = key(&object);
                    if keep(&object) {
                        if let Some(listed) = &mut listed {
                            listed.insert(key.clone());
                        }
                        self.lock().insert(key.clone(), Arc::new(object));
                        tell(&key, Change::Applied);
                    } else if self.lock().remove(&key).is_some() {
                        tell(&key, Change::Gone);
                    }
                }
                Ok(Event::Delete(object)) => {
                    let key = key(&object);
                    if self.lock().remove(&key).is_some() {
                        tell(&key, Change::Gone);
                    }
                }
                Ok(Event::InitDone) => {
                    let listed = listed.take().unwrap_or_default();
                    let mut gone = self.keys();
                    gone.retain(|key| !listed.contains(key));
                    for key in gone {
                        self.lock().remove(&key);
                        tell(&key, Change::Gone);
                    }
                    self.inner.synced.send_replace(true);
                }
                Err(error) if is_forbidden(&error) => {
                    tracing::warn!(%error, "cannot watch {plural}: the role of this pod needs get, list and watch on them");
                }
                Err(error) => tracing::info!(%error, "watch of {plural} broke, trying again"),
            }
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let source = match error {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => source,
        watcher::Error::WatchError(status) => return status.code == 403,
        watcher::Error::NoResourceVersion => return false,
    };
    matches!(source, kube::Error::Api(status) if status.code == 403)
}
