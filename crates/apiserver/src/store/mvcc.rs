//! The published state and its recent history, in memory. All engines serve reads and watches from it.
//!
//! Invariant: all data behind the lock belongs to exactly the published `revision`. A batch of writes becomes visible
//! as a whole, in one critical section, after its engine made it durable.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

#[cfg(feature = "etcd")]
use super::EventKind;
use super::batch::{Commit, Entry, check_fence};
use super::cursor::Cursor;
use super::history::{History, Retention};
use super::waiters::Waiters;
use super::{
    BoxFuture, Event, Expired, Fence, Key, Listing, Object, Range, WatchEnd, Window, WriteError,
};

/// Interval at which the histories of quiet resources are trimmed.
const HOUSEKEEPING: Duration = Duration::from_secs(10);

/// A change that another server made.
#[cfg(feature = "etcd")]
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) key: Key,
    pub(super) revision: u64,
    /// The object afterwards, unless removed.
    pub(super) entry: Option<Entry>,
}

/// The shared in-memory side of an engine.
#[derive(Debug)]
pub(super) struct Mvcc {
    state: RwLock<State>,
    waiters: Waiters,
}

/// The published state.
#[derive(Debug)]
pub(super) struct State {
    pub(super) revision: u64,
    retention: Retention,
    collections: HashMap<Arc<str>, Collection>,
    /// The oldest revision of all histories.
    floor: u64,
    /// Number of history cuts. A cut ends all watches.
    cuts: u64,
    closed: bool,
    trimmed: Instant,
}

/// One resource: its objects by namespace and name, and its events.
#[derive(Debug)]
struct Collection {
    objects: BTreeMap<String, BTreeMap<Box<str>, Entry>>,
    history: History,
}

impl Mvcc {
    /// Creates an empty state at `revision`.
    pub(super) fn new(retention: Retention, revision: u64) -> Self {
        let state = State {
            revision,
            retention,
            collections: HashMap::new(),
            floor: revision,
            cuts: 0,
            closed: false,
            trimmed: Instant::now(),
        };
        Self {
            state: RwLock::new(state),
            waiters: Waiters::new(revision),
        }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        // A panic under the lock would be a bug in this module. The state is consistent even then, because no step that
        // changes it can fail.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the published revision.
    pub(super) fn revision(&self) -> u64 {
        self.read().revision
    }

    /// Returns the current version.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.read().entry(key).map(|entry| entry.object.clone())
    }

    /// See [`super::Store::page`].
    pub(super) fn page(
        &self,
        range: &Range,
        at: Option<u64>,
        window: &Window<'_>,
    ) -> Result<Listing, Expired> {
        let state = self.read();
        match at {
            Some(at) if at < state.revision => state.past(range, at, window),
            _ => Ok(state.present(range, window)),
        }
    }

    /// See [`super::Store::check_fence`].
    pub(super) fn check_fence(&self, fence: &Fence) -> Result<(), WriteError> {
        check_fence(fence, self.read().entry(&fence.lease)).map_err(WriteError::Fenced)
    }

    /// See [`super::Store::reached`].
    pub(super) fn reached(&self, revision: u64) -> BoxFuture<'_, ()> {
        let waiting = self.waiters.wait(revision);
        Box::pin(async move {
            if let Some(reached) = waiting {
                // The sender lives as long as `self`, so this ends only when the revision is reached.
                let _ = reached.await;
            }
        })
    }

    /// See [`super::Store::watch`].
    pub(super) fn watch(self: &Arc<Self>, range: Range, after: u64) -> Result<Cursor, Expired> {
        let mut state = self.lock();
        let cuts = state.cuts;
        let notify = state
            .collection(&range.resource)
            .history
            .join(&range, after)?;
        drop(state);
        Ok(Cursor::new(self.clone(), range, after, cuts, notify))
    }

    /// Removes a cursor.
    pub(super) fn leave(&self, range: &Range) {
        self.lock().collection(&range.resource).history.leave(range);
    }

    /// Makes a durable batch visible and wakes the waiting watchers.
    pub(super) fn publish(&self, commits: Vec<Commit>) {
        if commits.is_empty() {
            return;
        }
        let mut wake = Vec::with_capacity(commits.len() * 2);
        let mut state = self.lock();
        let now = Instant::now();
        for commit in commits {
            state.apply(commit, now, &mut wake);
        }
        state.housekeep(now);
        self.announce(state, wake);
    }

    /// Validates and publishes under one lock, for the engine without a disk.
    pub(super) fn publish_with<T>(
        &self,
        write: impl FnOnce(&State) -> Result<(Commit, T), WriteError>,
    ) -> Result<T, WriteError> {
        let mut wake = Vec::with_capacity(4);
        let mut state = self.lock();
        let (commit, answer) = write(&state)?;
        let now = Instant::now();
        state.apply(commit, now, &mut wake);
        state.housekeep(now);
        self.announce(state, wake);
        Ok(answer)
    }

    /// Loads objects at start, before the first read.
    pub(super) fn load(&self, entries: Vec<Entry>) {
        let mut state = self.lock();
        entries.into_iter().for_each(|entry| state.insert(entry));
    }

    /// Publishes changes of other servers in revision order, skipping published ones, and then advances to `revision`.
    /// `removed` sets the revision in the last state of a removed object.
    #[cfg(feature = "etcd")]
    pub(super) fn follow(
        &self,
        changes: Vec<Followed>,
        revision: u64,
        removed: impl Fn(&Object, u64) -> Arc<Object>,
    ) {
        let mut wake = Vec::with_capacity(changes.len() * 2);
        let mut state = self.lock();
        let now = Instant::now();
        for change in changes {
            let Followed {
                key,
                revision,
                entry,
            } = change;
            if revision <= state.revision {
                continue;
            }
            let previous = state.entry(&key).map(|entry| entry.object.clone());
            let (kind, object) = match (&entry, &previous) {
                (Some(entry), None) => (EventKind::Added, entry.object.clone()),
                (Some(entry), Some(_)) => (EventKind::Modified, entry.object.clone()),
                (None, Some(last)) => (EventKind::Deleted, removed(last, revision)),
                // A removal of an unknown object needs no event.
                (None, None) => continue,
            };
            let event = Arc::new(Event {
                revision,
                kind,
                object,
                previous,
            });
            state.apply(Commit { event, entry }, now, &mut wake);
        }
        state.revision = revision.max(state.revision);
        state.housekeep(now);
        self.announce(state, wake);
    }

    /// Replaces the whole published content and expires all older revisions.
    #[cfg(feature = "etcd")]
    pub(super) fn replace(&self, entries: Vec<Entry>, revision: u64) {
        let mut wake = Vec::new();
        let mut state = self.lock();
        state.expire(revision, &mut wake);
        for collection in state.collections.values_mut() {
            collection.objects.clear();
        }
        entries.into_iter().for_each(|entry| state.insert(entry));
        self.announce(state, wake);
    }

    /// Raises the revision without a write and expires all older revisions.
    pub(super) fn jump(&self, revision: u64) {
        let mut wake = Vec::new();
        let mut state = self.lock();
        state.expire(revision, &mut wake);
        self.announce(state, wake);
    }

    /// Ends all watches after they have returned the existing events.
    pub(super) fn close(&self) {
        let mut wake = Vec::new();
        let mut state = self.lock();
        state.closed = true;
        state
            .collections
            .values()
            .for_each(|collection| collection.history.all_watchers(&mut wake));
        self.announce(state, wake);
    }

    /// Wakes watchers after the lock is released, so that they do not queue on it.
    fn announce(&self, state: RwLockWriteGuard<'_, State>, mut wake: Vec<Arc<Notify>>) {
        let revision = state.revision;
        drop(state);
        self.waiters.publish(revision);
        wake.sort_unstable_by_key(Arc::as_ptr);
        wake.dedup_by(|a, b| Arc::ptr_eq(a, b));
        wake.iter().for_each(|notify| notify.notify_waiters());
    }
}

impl State {
    /// Advances to a revision and drops the history up to it.
    fn expire(&mut self, revision: u64, wake: &mut Vec<Arc<Notify>>) {
        self.revision = revision.max(self.revision);
        self.floor = self.revision;
        self.cuts += 1;
        for collection in self.collections.values_mut() {
            collection.history.cut(self.floor, wake);
        }
    }

    /// Returns the current version with its bookkeeping.
    pub(super) fn entry(&self, key: &Key) -> Option<&Entry> {
        self.find(&key.resource, &key.namespace, &key.name)
    }

    /// Like [`State::entry`], for callers that have no [`Key`].
    pub(super) fn find(&self, resource: &str, namespace: &str, name: &str) -> Option<&Entry> {
        self.collections
            .get(resource)?
            .objects
            .get(namespace)?
            .get(name)
    }

    /// Returns every object of every resource, ordered within a resource.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.collections
            .values()
            .flat_map(|collection| collection.objects.values())
            .flat_map(BTreeMap::values)
    }

    /// Returns the next event for a cursor.
    pub(super) fn next(
        &self,
        range: &Range,
        after: u64,
        cuts: u64,
    ) -> Result<Option<Arc<Event>>, WatchEnd> {
        if cuts != self.cuts {
            return Err(Expired {
                asked: after,
                oldest: self.floor,
            }
            .into());
        }
        let collection = self.collections.get(&range.resource);
        match collection.map_or(Ok(None), |collection| collection.history.next(range, after))? {
            None if self.closed => Err(WatchEnd::Closed),
            event => Ok(event),
        }
    }

    fn collection(&mut self, resource: &Arc<str>) -> &mut Collection {
        let (retention, floor) = (self.retention, self.floor);
        self.collections
            .entry(resource.clone())
            .or_insert_with(|| Collection {
                objects: BTreeMap::new(),
                history: History::new(retention, floor),
            })
    }

    fn present(&self, range: &Range, window: &Window<'_>) -> Listing {
        let collection = self.collections.get(&range.resource);
        let objects = collection
            .into_iter()
            .flat_map(|s| s.select(range, window.after));
        listing(self.revision, objects, window)
    }

    /// Lists a past revision by undoing every later event.
    fn past(&self, range: &Range, at: u64, window: &Window<'_>) -> Result<Listing, Expired> {
        let Some(collection) = self.collections.get(&range.resource) else {
            return if at < self.floor {
                Err(Expired {
                    asked: at,
                    oldest: self.floor,
                })
            } else {
                Ok(listing(at, std::iter::empty(), window))
            };
        };
        collection.history.check(at)?;
        let mut undone: BTreeMap<(&str, &str), Option<&Arc<Object>>> = BTreeMap::new();
        for event in collection.history.newest_first(at) {
            let key = &event.object.key;
            let place = (key.namespace.as_str(), key.name.as_str());
            if range.covers(key) && window.after.is_none_or(|after| place > after) {
                undone.insert(place, event.previous.as_ref());
            }
        }
        let mut before = undone.values().flatten().copied().peekable();
        let mut still = collection
            .select(range, window.after)
            .filter(|object| !undone.contains_key(&place(object)))
            .peekable();
        // Merges two ordered sequences.
        let both = std::iter::from_fn(|| match (before.peek(), still.peek()) {
            (Some(a), Some(b)) if place(a) < place(b) => before.next(),
            (Some(_), None) => before.next(),
            _ => still.next(),
        });
        Ok(listing(at, both, window))
    }

    fn apply(&mut self, commit: Commit, now: Instant, wake: &mut Vec<Arc<Notify>>) {
        let Commit { event, entry } = commit;
        self.revision = event.revision;
        match entry {
            Some(entry) => self.insert(entry),
            None => self.remove(&event.object.key),
        }
        self.collection(&event.object.key.resource)
            .history
            .push(event.clone(), now, wake);
    }

    fn insert(&mut self, entry: Entry) {
        let key = &entry.object.key;
        let objects = &mut self.collection(&key.resource).objects;
        if let Some(names) = objects.get_mut(&key.namespace) {
            if let Some(present) = names.get_mut(key.name.as_str()) {
                *present = entry;
            } else {
                names.insert(key.name.as_str().into(), entry);
            }
        } else {
            let (namespace, name) = (key.namespace.clone(), key.name.as_str().into());
            objects.insert(namespace, BTreeMap::from([(name, entry)]));
        }
    }

    fn remove(&mut self, key: &Key) {
        let objects = &mut self.collection(&key.resource).objects;
        if let Some(names) = objects.get_mut(&key.namespace) {
            names.remove(key.name.as_str());
            if names.is_empty() {
                objects.remove(&key.namespace);
            }
        }
    }

    fn housekeep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.trimmed) > HOUSEKEEPING {
            self.trimmed = now;
            self.collections
                .values_mut()
                .for_each(|collection| collection.history.trim(now));
        }
    }
}

impl Collection {
    /// Returns the objects of a range after a namespace and a name, in order.
    fn select<'a>(
        &'a self,
        range: &'a Range,
        after: Option<(&'a str, &'a str)>,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        let wanted = range.namespace.as_deref();
        let first = wanted.max(after.map(|(namespace, _)| namespace));
        let from = first.map_or(Unbounded, Included);
        self.objects
            .range::<str, _>((from, Unbounded))
            .take_while(move |(namespace, _)| wanted.is_none_or(|wanted| wanted == *namespace))
            .flat_map(move |(namespace, names)| {
                let bounds = match (range.name.as_deref(), after) {
                    (Some(name), _) => (Included(name), Included(name)),
                    (None, Some((last, name))) if last == namespace => (Excluded(name), Unbounded),
                    _ => (Unbounded, Unbounded),
                };
                names
                    .range::<str, _>(bounds)
                    .map(|(_, entry)| &entry.object)
            })
            .filter(move |object| after.is_none_or(|after| place(object) > after))
    }
}

/// Returns the sort key of an object.
fn place(object: &Object) -> (&str, &str) {
    (&object.key.namespace, &object.key.name)
}

fn listing<'a>(
    revision: u64,
    mut objects: impl Iterator<Item = &'a Arc<Object>>,
    window: &Window<'_>,
) -> Listing {
    let limit = window.limit.unwrap_or(usize::MAX);
    let taken = objects.by_ref().take(limit).cloned().collect();
    Listing {
        revision,
        objects: taken,
        remaining: objects.count(),
    }
}
