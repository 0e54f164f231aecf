//! Caches of API objects that a watch keeps up to date.
//!
//! Objects of small kinds are stored decoded. There can be tens of thousands of claims and volumes, so these are stored
//! as text. A decoded object takes several times the memory of its text, and decoding takes only microseconds. The
//! reflector of kube-rs and the manager's cache keep every object of a watch, decoded, so they are not used here.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// The objects of one kind, indexed by key. Clones share the same objects.
pub(crate) struct Cache<K, F = Arc<K>> {
    inner: Arc<Inner<F>>,
    kind: PhantomData<fn() -> K>,
}

struct Inner<F> {
    objects: Mutex<HashMap<Box<str>, F>>,
    synced: watch::Sender<bool>,
}

/// The form in which a cache stores an object.
pub(crate) trait Form<K>: Send + 'static {
    fn keep(object: K) -> Self;

    fn open(&self) -> Arc<K>;

    /// Returns false only if the object does not contain this text.
    fn may_say(&self, _text: &str) -> bool {
        true
    }
}

impl<K: Send + Sync + 'static> Form<K> for Arc<K> {
    fn keep(object: K) -> Self {
        Self::new(object)
    }

    fn open(&self) -> Self {
        self.clone()
    }
}

/// An object stored as text.
pub(crate) struct Packed(Box<str>);

impl<K: Resource + Serialize + DeserializeOwned> Form<K> for Packed {
    fn keep(mut object: K) -> Self {
        // The labels of claims and volumes are not used.
        object.meta_mut().labels = None;
        let text = serde_json::to_string(&object).expect("strings, lists and maps of strings");
        Self(text.into_boxed_str())
    }

    fn open(&self) -> Arc<K> {
        Arc::new(serde_json::from_str(&self.0).expect("its own kind has written it"))
    }

    fn may_say(&self, text: &str) -> bool {
        self.0.contains(text)
    }
}

/// A change of a cached object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<W> {
    /// The object is new or changed; the value says what is due for it.
    Applied(W),
    /// The object was deleted, or the cache no longer stores it.
    Gone,
}

impl<K, F> Clone for Cache<K, F> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            kind: PhantomData,
        }
    }
}

impl<K, F> fmt::Debug for Cache<K, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({})", self.lock().len())
    }
}

impl<K, F> Default for Cache<K, F> {
    fn default() -> Self {
        Self {
            inner: Arc::new(Inner {
                objects: Mutex::default(),
                synced: watch::Sender::new(false),
            }),
            kind: PhantomData,
        }
    }
}

impl<K, F> Cache<K, F> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, F>> {
        self.inner
            .objects
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        self.lock().contains_key(key)
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.lock().keys().map(|key| key.to_string()).collect()
    }

    /// Removes an object before the watch reports its deletion. Returns whether the cache had it.
    pub(crate) fn remove(&self, key: &str) -> bool {
        self.lock().remove(key).is_some()
    }

    /// Waits until the initial list is in the cache.
    pub(crate) async fn synced(&self) {
        let mut synced = self.inner.synced.subscribe();
        // The cache owns the sender, so this cannot fail.
        _ = synced.wait_for(|synced| *synced).await;
    }
}

impl<K, F: Form<K>> Cache<K, F> {
    pub(crate) fn get(&self, key: &str) -> Option<Arc<K>> {
        self.lock().get(key).map(F::open)
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.lock().values().map(F::open).collect()
    }

    /// Inserts an object that was just written, before the watch reports it.
    pub(crate) fn insert(&self, key: &str, object: K) {
        self.lock().insert(key.into(), F::keep(object));
    }

    /// Applies a function to every object that contains a text, and returns the first result.
    pub(crate) fn find_map<T>(
        &self,
        text: &str,
        mut look: impl FnMut(&Arc<K>) -> Option<T>,
    ) -> Option<T> {
        let objects = self.lock();
        let mut saying = objects.values().filter(|object| object.may_say(text));
        saying.find_map(|object| look(&object.open()))
    }
}

impl<K, F: Form<K>> Cache<K, F>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    /// Runs the watch; never returns. `due` returns the work that is due for an object, or `None` if the cache does not
    /// store the object. `notify` is called for every change of a stored object.
    pub(crate) async fn run<W>(
        self,
        api: Api<K>,
        key: impl Fn(&K) -> String + Send,
        due: impl Fn(&K) -> Option<W> + Send,
        notify: impl Fn(&str, Change<W>) + Send,
    ) {
        self.follow(api, watcher::Config::default(), key, due, notify)
            .await;
    }

    /// Like [`run`](Self::run), for objects with these labels only.
    pub(crate) async fn run_labelled(
        self,
        api: Api<K>,
        labels: String,
        key: impl Fn(&K) -> String + Send,
        notify: impl Fn(&str, Change<()>) + Send,
    ) {
        let config = watcher::Config::default().labels(&labels);
        self.follow(api, config, key, |_| Some(()), notify).await;
    }

    async fn follow<W>(
        self,
        api: Api<K>,
        config: watcher::Config,
        key: impl Fn(&K) -> String + Send,
        due: impl Fn(&K) -> Option<W> + Send,
        notify: impl Fn(&str, Change<W>) + Send,
    ) {
        let plural = K::plural(&());
        let stream = watch_objects(api, config).default_backoff();
        let mut stream = std::pin::pin!(stream);
        let mut listed: Option<HashSet<String>> = None;
        let mut refused: Option<String> = None;
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => listed = Some(HashSet::new()),
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    let key = key(&object);
                    if let Some(due) = due(&object) {
                        if let Some(listed) = &mut listed {
                            listed.insert(key.clone());
                        }
                        self.insert(&key, object);
                        notify(&key, Change::Applied(due));
                    } else if self.remove(&key) {
                        notify(&key, Change::Gone);
                    }
                }
                Ok(Event::Delete(object)) => {
                    let key = key(&object);
                    if self.remove(&key) {
                        notify(&key, Change::Gone);
                    }
                }
                Ok(Event::InitDone) => {
                    let listed = listed.take().unwrap_or_default();
                    let mut gone = self.keys();
                    gone.retain(|key| !listed.contains(key));
                    for key in gone {
                        self.remove(&key);
                        notify(&key, Change::Gone);
                    }
                    self.inner.synced.send_replace(true);
                    refused = None;
                }
                Err(error) if is_forbidden(&error) => {
                    let error = described(&error);
                    // Retries fail for the same reason until the role changes.
                    if refused.as_ref() == Some(&error) {
                        tracing::debug!(error, "still cannot watch {plural}");
                    } else {
                        tracing::warn!(
                            error,
                            "cannot watch {plural}: the role of this pod needs get, list and watch on them"
                        );
                        refused = Some(error);
                    }
                }
                Err(error) => {
                    let error = described(&error);
                    tracing::info!(error, "watch of {plural} broke; retrying");
                }
            }
        }
    }
}

/// Returns the error as one line, without a dump of the Status.
fn described(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => tenure::plain(source),
        watcher::Error::WatchError(status) => status.message.clone(),
        error @ watcher::Error::NoResourceVersion => error.to_string(),
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
