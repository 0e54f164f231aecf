//! The store: one revision per write, compare-and-set, a bounded history for watches.
//!
//! Invariants of every engine:
//! - There is one `u64` revision for all resources. It grows by at least one with every committed write, never goes
//!   back, and is never used twice, not even after a crash or a restore.
//! - A write is acknowledged, readable and published to watchers only after it is as durable as the engine promises.
//!   All three happen in revision order.
//! - A watch that starts after revision `r` receives every later event of its range once, in order, or ends with
//!   [`Expired`]. No event is skipped silently.

pub mod backup;
mod batch;
mod cursor;
mod durable;
mod encryption;
mod engine;
#[cfg(feature = "etcd")]
mod etcd;
mod history;
mod memory;
mod mvcc;
mod record;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod waiters;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

pub use self::durable::{OpenError, RedbStore, last_words};
pub use self::encryption::{Encryption, KeyFileError, KeyId, Rotation, Scope};
#[cfg(feature = "etcd")]
pub use self::etcd::{EtcdConfig, EtcdError, EtcdStore};
pub use self::history::Retention;
pub use self::memory::MemoryStore;

/// A boxed future, so that [`Store`] can be a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Names one object: resource type, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Storage name of the type, `group/plural` (`coordination.k8s.io/leases`, `/configmaps`);
    /// the same for all versions of a group.
    pub resource: Arc<str>,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

/// Formats a key for messages: `coordination.k8s.io/leases kube-system/x`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource.trim_start_matches('/'))?;
        if self.namespace.is_empty() {
            write!(f, " {}", self.name)
        } else {
            write!(f, " {}/{}", self.namespace, self.name)
        }
    }
}

/// One version of one object, shared by readers, lists and watches.
#[derive(Debug)]
pub struct Object {
    /// The object.
    pub key: Key,
    /// The revision of the write that made this version; `metadata.resourceVersion` in the JSON.
    pub revision: u64,
    /// `metadata.labels`, for selectors.
    pub labels: BTreeMap<String, String>,
    /// Compact JSON **without `kind` and `apiVersion`** and with `metadata.resourceVersion`, so that
    /// one buffer serves every API version, list items (which omit both) and watch events.
    pub json: Bytes,
}

/// The part of the key space that a list or a watch covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Storage name of the type.
    pub resource: Arc<str>,
    /// `None` for all namespaces.
    pub namespace: Option<String>,
    /// `Some` for a single object.
    pub name: Option<String>,
}

impl Range {
    /// Returns whether the range contains the object.
    pub fn covers(&self, key: &Key) -> bool {
        self.resource == key.resource
            && self
                .namespace
                .as_ref()
                .is_none_or(|namespace| *namespace == key.namespace)
            && self.name.as_ref().is_none_or(|name| *name == key.name)
    }
}

/// The requested part of a listing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window<'a> {
    /// Only objects after this namespace and name.
    pub after: Option<(&'a str, &'a str)>,
    /// Maximum number of objects.
    pub limit: Option<usize>,
}

/// The state of a range at one revision, ordered by namespace and name.
#[derive(Debug)]
pub struct Listing {
    /// The revision of the listing.
    pub revision: u64,
    /// The objects.
    pub objects: Vec<Arc<Object>>,
    /// Number of further objects beyond the limit.
    pub remaining: usize,
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The object must not exist.
    Absent,
    /// The object must be at exactly this revision.
    Revision(u64),
}

impl Expected {
    fn holds(self, present: Option<&Object>) -> bool {
        match (self, present) {
            (Self::Absent, None) => true,
            (Self::Revision(revision), Some(object)) => object.revision == revision,
            _ => false,
        }
    }
}

/// The effect of a write.
#[derive(Clone, Debug)]
pub enum Change {
    /// Store this object (no `kind`, no `apiVersion`; `metadata.resourceVersion` is set by the store).
    Put(Arc<Value>),
    /// Remove the object; the event carries its last state with the revision of the removal.
    Delete,
}

/// A lease token that must still be current at the moment of the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The lock object.
    pub lease: Key,
    /// The fencing token of the writer: the revision of the write that won its term.
    pub token: u64,
    /// The holder identity that the writer claims.
    pub holder: String,
}

impl Fence {
    /// Returns the reason for a rejected write if the Lease does not exist.
    pub(crate) fn absent(&self) -> String {
        format!("{} does not exist", self.lease)
    }
}

/// Another object that must not have changed since the write was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The object.
    pub key: Key,
    /// The expected revision.
    pub revision: u64,
}

/// One compare-and-set.
#[derive(Clone, Debug)]
pub struct Write {
    /// The object.
    pub key: Key,
    /// Precondition on the object.
    pub expected: Expected,
    /// The change.
    pub change: Change,
    /// A further precondition on a lease, checked in the same transaction.
    pub fence: Option<Fence>,
    /// Further preconditions on other objects, checked in the same transaction.
    pub given: Vec<Given>,
}

impl Write {
    /// Creates a write without further preconditions.
    pub fn new(key: Key, expected: Expected, change: Change) -> Self {
        Self {
            key,
            expected,
            change,
            fence: None,
            given: Vec::new(),
        }
    }
}

/// Error of a write.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The precondition does not hold. Contains the current version, if there is one.
    #[error("the object is at another revision")]
    Conflict(Option<Arc<Object>>),
    /// Another object of the preconditions has changed.
    #[error("{0} has changed since the write was decided")]
    Moved(Key),
    /// The fencing token does not belong to the current term of the lease.
    #[error("stale fencing token: {0}")]
    Fenced(String),
    /// Too many writes are queued; nothing was changed.
    #[error("too many writes are queued")]
    Busy,
    /// There is no space. Nothing was changed, and writes work again when there is space.
    #[error("no space left for writes: {0}")]
    Full(String),
    /// The object is larger than the engine accepts; nothing was changed.
    #[error("too large to be stored: {0}")]
    TooLarge(String),
    /// The new state cannot be stored: it is not an object.
    #[error("cannot be stored: {0}")]
    Invalid(String),
    /// The engine failed and accepts no further writes.
    #[error("the store rejects all writes: {0}")]
    Failed(String),
    /// The engine cannot be reached; nothing was changed.
    #[error("the store cannot be reached; nothing was changed: {0}")]
    Unavailable(String),
    /// The engine did not answer. The write was applied as a whole or not at all.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
}

/// The engine cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be reached: {0}")]
pub struct Unavailable(pub String);

/// The requested revision is no longer in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {asked} ({oldest})")]
pub struct Expired {
    /// The requested revision.
    pub asked: u64,
    /// The oldest revision that can still be served.
    pub oldest: u64,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The object was created.
    Added,
    /// The object was changed.
    Modified,
    /// The object was removed.
    Deleted,
}

/// One committed write, as watchers see it.
#[derive(Debug)]
pub struct Event {
    /// Revision of the write.
    pub revision: u64,
    /// Kind of the event.
    pub kind: EventKind,
    /// The new version; for a removal the last state with the removal's revision.
    pub object: Arc<Object>,
    /// The previous version, unless the object was created. Selectors need it to detect that an object no longer
    /// matches.
    pub previous: Option<Arc<Object>>,
}

/// The reason for the end of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchEnd {
    /// The reader fell behind the history, or the history was cut.
    #[error(transparent)]
    Expired(#[from] Expired),
    /// The store is closing.
    #[error("the store is closing")]
    Closed,
}

/// A cursor into the history of one range.
pub trait Watch: Send {
    /// Returns the next event. Cancel safe: a dropped call loses no event.
    fn next(&mut self) -> BoxFuture<'_, Result<Arc<Event>, WatchEnd>>;
    /// Returns the revision up to which `next` has returned all events, for bookmarks. It follows the revision of the
    /// store while the range is quiet.
    fn revision(&self) -> u64;
}

/// An engine.
pub trait Store: Send + Sync + 'static {
    /// Returns the revision of the last published write.
    fn revision(&self) -> u64;
    /// Returns the current version.
    fn get(&self, key: &Key) -> Option<Arc<Object>>;
    /// Lists a part of the range, now or exactly at a past revision. A revision that is not published yet stands for
    /// the current one. A caller that needs such a revision awaits [`Store::reached`] first.
    fn page(&self, range: &Range, at: Option<u64>, window: &Window<'_>)
    -> Result<Listing, Expired>;
    /// Lists the whole range; see [`Store::page`].
    fn list(&self, range: &Range, at: Option<u64>) -> Result<Listing, Expired> {
        self.page(range, at, &Window::default())
    }
    /// Checks a fence for requests that write nothing.
    ///
    /// # Errors
    /// Returns [`WriteError::Fenced`], as a write would.
    fn check_fence(&self, fence: &Fence) -> Result<(), WriteError>;
    /// Waits until the published revision is at least this one.
    fn reached(&self, revision: u64) -> BoxFuture<'_, ()>;
    /// Applies one compare-and-set, and returns the stored version (for a removal, the last state
    /// with the removal's revision) after it is durable and published.
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Object>, WriteError>>;
    /// Starts a watch of the range after the given revision.
    fn watch(&self, range: Range, after: u64) -> Result<Box<dyn Watch>, Expired>;
    /// Raises the revision by at least `by` without a write, and expires all older revisions. Running watches end with
    /// [`Expired`]; lists and watches of an older revision are rejected with it. Returns the new revision.
    fn jump(&self, by: u64) -> BoxFuture<'_, Result<u64, WriteError>>;
    /// Returns the reason if writes are currently rejected; `readyz` shows it.
    fn failure(&self) -> Option<String>;
    /// Returns whether other processes write to the same data, so that the published state may lag behind their
    /// acknowledged writes.
    fn shared(&self) -> bool {
        false
    }
    /// Waits until every write that any process acknowledged before this call is published here.
    fn fresh(&self) -> BoxFuture<'_, Result<(), Unavailable>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
