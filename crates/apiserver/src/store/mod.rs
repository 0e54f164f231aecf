//! The store: one revision per write, compare-and-set, a bounded history for watches.
//!
//! Invariants, which every engine keeps:
//! - One `u64` revision for all resources. It grows by at least one with every committed write, never
//!   goes back, and is never used twice, also after a crash or a restore.
//! - A write is acknowledged, readable and published to watchers only after it is as durable as the
//!   engine promises; all three in revision order.
//! - A watch that starts after revision `r` sees every later event of its range once, in order, or
//!   is told [`Expired`]: nothing is skipped silently.

pub mod backup;
mod batch;
mod cursor;
mod durable;
#[cfg(feature = "etcd")]
mod etcd;
mod history;
mod memory;
mod mvcc;
mod published;
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

/// As in messages: `coordination.k8s.io/leases kube-system/x`.
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
    /// What it is a version of.
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
    /// Whether the object is in the range.
    pub fn covers(&self, key: &Key) -> bool {
        self.resource == key.resource
            && self
                .namespace
                .as_ref()
                .is_none_or(|namespace| *namespace == key.namespace)
            && self.name.as_ref().is_none_or(|name| *name == key.name)
    }
}

/// The part of a listing that is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window<'a> {
    /// Only what comes after this namespace and name.
    pub after: Option<(&'a str, &'a str)>,
    /// At most so many objects.
    pub limit: Option<usize>,
}

/// The state of a range at one revision, ordered by namespace and name.
#[derive(Debug)]
pub struct Listing {
    /// The revision the listing is exact for.
    pub revision: u64,
    /// The objects.
    pub objects: Vec<Arc<Object>>,
    /// How many more there are beyond the limit.
    pub remaining: usize,
}

/// What must be true of the present version for a write to happen.
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

/// What a write does.
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
    /// The fencing token that the writer holds: revision of the write that won its term.
    pub token: u64,
    /// The holder identity that the writer claims.
    pub holder: String,
}

/// Another object that must be as it was when the write was decided on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// What it is.
    pub key: Key,
    /// The revision it was seen at.
    pub revision: u64,
}

/// One compare-and-set.
#[derive(Clone, Debug)]
pub struct Write {
    /// The object.
    pub key: Key,
    /// Its precondition.
    pub expected: Expected,
    /// Its new state.
    pub change: Change,
    /// A further precondition on a lease, checked in the same transaction.
    pub fence: Option<Fence>,
    /// Further preconditions on other objects, checked in the same transaction.
    pub given: Vec<Given>,
}

impl Write {
    /// Without further preconditions.
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

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The precondition does not hold; the present version, if there is one.
    #[error("the object is at another revision")]
    Conflict(Option<Arc<Object>>),
    /// Another object that was given is not as it was.
    #[error("{0} was changed meanwhile")]
    Moved(Key),
    /// The fencing token is not, or no longer, the lease's.
    #[error("stale fencing token: {0}")]
    Fenced(String),
    /// More writes wait than the engine takes on; nothing was changed.
    #[error("too many writes are waiting")]
    Busy,
    /// There is no room; nothing was changed, and writes work again when there is.
    #[error("no space left for writes: {0}")]
    Full(String),
    /// The object is larger than what keeps the data takes; nothing was changed.
    #[error("too large to be stored: {0}")]
    TooLarge(String),
    /// The new state cannot be stored: it is not an object.
    #[error("cannot be stored: {0}")]
    Invalid(String),
    /// The engine failed and takes no more writes.
    #[error("the store takes no writes: {0}")]
    Failed(String),
    /// What keeps the data cannot be reached; nothing was changed.
    #[error("the store cannot be reached, and nothing was changed: {0}")]
    Unavailable(String),
    /// What keeps the data was asked and gave no answer: the write is there as a whole or not at all.
    #[error("the store did not say whether it made the change: {0}")]
    Unknown(String),
}

/// What keeps the data cannot be asked at present.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store cannot be reached: {0}")]
pub struct Unavailable(pub String);

/// The asked revision is no longer in the history; `oldest` is the oldest that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {asked} ({oldest})")]
pub struct Expired {
    /// What was asked for.
    pub asked: u64,
    /// The oldest revision that can still be served.
    pub oldest: u64,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was created.
    Added,
    /// It was changed.
    Modified,
    /// It was removed.
    Deleted,
}

/// One committed write, as watchers see it.
#[derive(Debug)]
pub struct Event {
    /// Revision of the write.
    pub revision: u64,
    /// What happened.
    pub kind: EventKind,
    /// The new version; for a removal the last state with the removal's revision.
    pub object: Arc<Object>,
    /// The version before, unless created; selectors need it to see an object leave.
    pub previous: Option<Arc<Object>>,
}

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchEnd {
    /// The reader fell behind the history, or history was cut.
    #[error(transparent)]
    Expired(#[from] Expired),
    /// The store is closing.
    #[error("the store is closing")]
    Closed,
}

/// A cursor into the history of one range.
pub trait Watch: Send {
    /// The next event. Cancel safe: a dropped call loses nothing.
    fn next(&mut self) -> BoxFuture<'_, Result<Arc<Event>, WatchEnd>>;
    /// Everything up to this revision has been returned by `next`; what a bookmark may say. It
    /// follows the store's revision while the range is quiet.
    fn revision(&self) -> u64;
}

/// An engine.
pub trait Store: Send + Sync + 'static {
    /// The revision of the last published write.
    fn revision(&self) -> u64;
    /// The present version.
    fn get(&self, key: &Key) -> Option<Arc<Object>>;
    /// A part of the range, now or exactly at a past revision; a revision that is not reached yet
    /// means now, so who needs it awaits [`Store::reached`] first.
    fn page(&self, range: &Range, at: Option<u64>, window: &Window<'_>)
    -> Result<Listing, Expired>;
    /// All of the range; see [`Store::page`].
    fn list(&self, range: &Range, at: Option<u64>) -> Result<Listing, Expired> {
        self.page(range, at, &Window::default())
    }
    /// Whether a fence holds now, for requests that write nothing.
    ///
    /// # Errors
    /// [`WriteError::Fenced`], as a write would get it.
    fn check_fence(&self, fence: &Fence) -> Result<(), WriteError>;
    /// Waits until the published revision is at least this one.
    fn reached(&self, revision: u64) -> BoxFuture<'_, ()>;
    /// Applies one compare-and-set, and returns the stored version (for a removal, the last state
    /// with the removal's revision) after it is durable and published.
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Arc<Object>, WriteError>>;
    /// Events of the range after the given revision.
    fn watch(&self, range: Range, after: u64) -> Result<Box<dyn Watch>, Expired>;
    /// Raises the revision by at least `by` without a write, and expires everything older: running
    /// watches end with [`Expired`], and so do lists and watches from before. Returns the revision.
    fn jump(&self, by: u64) -> BoxFuture<'_, Result<u64, WriteError>>;
    /// Why writes are refused at present, if they are; `readyz` shows it.
    fn failure(&self) -> Option<String>;
    /// Whether other processes write to the same data, so that what is published here may be behind
    /// what they have acknowledged.
    fn shared(&self) -> bool {
        false
    }
    /// Waits until everything is published here that was acknowledged anywhere before this call.
    fn fresh(&self) -> BoxFuture<'_, Result<(), Unavailable>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
