//! Caches of objects that live as long as the process.
//!
//! Caches are filled before controllers start, and they outlive terms. A second term in the same process therefore
//! uses the same live cache.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, reflector};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, chain};

/// An object that can be cached.
pub trait Cached:
    Resource<DynamicType: Clone + Default + Eq + Hash + Send + Sync + fmt::Debug>
    + Clone
    + DeserializeOwned
    + fmt::Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Cached for K where
    K: Resource<DynamicType: Clone + Default + Eq + Hash + Send + Sync + fmt::Debug>
        + Clone
        + DeserializeOwned
        + fmt::Debug
        + Send
        + Sync
        + 'static
{
}

struct Listener<K: Cached> {
    tell: Box<dyn Fn(ObjectRef<K>) + Send>,
    again: Arc<Notify>,
}

/// A cache of one kind for [`Builder::cache`](crate::Builder::cache).
pub struct Cache<K: Cached> {
    name: String,
    api: Api<K>,
    config: watcher::Config,
    writer: Writer<K>,
    reader: Store<K>,
    listener: Option<Listener<K>>,
}

impl<K: Cached> Cache<K> {
    /// Creates a cache of the objects that the API and the selectors of the configuration return.
    pub fn new(name: &str, api: Api<K>, config: watcher::Config) -> Self {
        let (reader, writer) = reflector::store();
        Self {
            name: name.to_owned(),
            api,
            config,
            writer,
            reader,
            listener: None,
        }
    }

    /// Returns a reader that works as long as the manager runs.
    pub fn reader(&self) -> Store<K> {
        self.reader.clone()
    }

    /// Calls back with each added, changed or deleted object after the cache was updated, and with all objects each time
    /// `again` is notified.
    pub(crate) fn on_change(
        mut self,
        tell: impl Fn(ObjectRef<K>) + Send + 'static,
        again: Arc<Notify>,
    ) -> Self {
        let tell = Box::new(tell);
        self.listener = Some(Listener { tell, again });
        self
    }

    pub(crate) fn into_source(self) -> Source {
        let trouble = Trouble::default();
        let reader = self.reader.clone();
        let (name, seen) = (self.name.clone(), trouble.clone());
        Source {
            name,
            run: Box::new(move |stop| self.run(stop, trouble).boxed()),
            synced: async move { reader.wait_until_ready().await.is_ok() }.boxed(),
            trouble: seen,
        }
    }

    async fn run(mut self, stop: CancellationToken, trouble: Trouble) {
        let events = watcher(self.api.clone(), self.config.clone()).default_backoff();
        let mut events = std::pin::pin!(events);
        let again = self
            .listener
            .as_ref()
            .map(|listener| listener.again.clone());
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                () = notified(again.as_deref()) => {
                    self.tell(self.names());
                    continue;
                }
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    trouble.clear(&self.name);
                    self.apply(&event);
                }
                Some(Err(error)) => trouble.note(&self.name, chain(&error)),
                None => return,
            }
        }
    }

    fn apply(&mut self, event: &Event<K>) {
        // After a broken watch, an object that is missing in the new list was deleted.
        let before = match event {
            Event::InitDone if self.listener.is_some() => self.names(),
            _ => HashSet::new(),
        };
        self.writer.apply_watcher_event(event);
        match event {
            Event::Apply(object) | Event::Delete(object) => {
                self.tell([ObjectRef::from_obj(object)]);
            }
            Event::InitDone => {
                let now = self.names();
                self.tell(before.difference(&now).cloned());
                self.tell(now);
            }
            Event::Init | Event::InitApply(_) => {}
        }
    }

    fn tell(&self, names: impl IntoIterator<Item = ObjectRef<K>>) {
        if let Some(listener) = &self.listener {
            names.into_iter().for_each(&listener.tell);
        }
    }

    fn names(&self) -> HashSet<ObjectRef<K>> {
        let objects = self.reader.state();
        objects.iter().map(|o| ObjectRef::from_obj(&**o)).collect()
    }
}

/// Waits for a notification; never completes without a notifier.
async fn notified(again: Option<&Notify>) {
    match again {
        Some(again) => again.notified().await,
        None => std::future::pending().await,
    }
}

fn watcher<K: Cached>(
    api: Api<K>,
    config: watcher::Config,
) -> impl futures_util::Stream<Item = watcher::Result<Event<K>>> + Send {
    kube::runtime::watcher(api, config)
}

impl<K: Cached> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("name", &self.name)
            .field("objects", &self.reader.len())
            .finish_non_exhaustive()
    }
}

/// The last error of a watch. Only changes are logged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble(Arc<Mutex<String>>);

impl Trouble {
    fn note(&self, cache: &str, error: String) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != error {
            tracing::warn!(cache, error, "the watch failed; retrying");
            *last = error;
        }
    }

    fn clear(&self, cache: &str) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::take(&mut *last).is_empty() {
            tracing::info!(cache, "the watch works again");
        }
    }

    fn last(&self) -> String {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_empty() {
            "no answer".to_owned()
        } else {
            last.clone()
        }
    }
}

/// A type-erased cache.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) run: Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>,
    synced: BoxFuture<'static, bool>,
    trouble: Trouble,
}

impl Source {
    /// Splits off the part that waits for the first list.
    pub(crate) fn split(
        self,
        limit: Duration,
    ) -> (
        impl FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send,
        impl Future<Output = Result<(), Error>>,
    ) {
        let Self {
            name,
            run,
            synced,
            trouble,
        } = self;
        let wait = async move {
            match tokio::time::timeout(limit, synced).await {
                Ok(true) => Ok(()),
                _ => Err(Error::CacheSync {
                    name,
                    limit,
                    last: trouble.last(),
                }),
            }
        };
        (run, wait)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
