//! The contract of a lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde_json::Value;
use tenure_core::{Record, WallTime, WriteKind};

use crate::error::Error;
use crate::lean::Lean;
use crate::object::{ObjectName, ObjectRef};
use crate::snapshot::Snapshot;

/// A future that can be stored without naming its type.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Storage of the record of an election. A lock does not remember what it read: the caller keeps the newest
/// [`Snapshot`] and passes it to the next write. Each candidate needs its own lock, because a lock may remember its own
/// writes.
///
/// # Cancel safety
///
/// Futures may be dropped at any time. A dropped write counts as [`Class::Unknown`]: it may have
/// been applied.
///
/// [`Class::Unknown`]: crate::Class::Unknown
pub trait Lock: fmt::Debug + Send + Sync {
    /// Returns kind and name for display: `lease kube-system/x`.
    fn describe(&self) -> &str;

    /// Returns the precision with which times are stored. Truncate the times of a record to this precision before a
    /// write. Otherwise the record that is read back differs from the one written.
    fn precision(&self) -> Precision;

    /// Reads the current state; `None` if the lock object does not exist.
    ///
    /// # Errors
    ///
    /// Fails with an error of any class. Nothing was changed.
    fn read(&self) -> BoxFuture<'_, Result<Option<Snapshot>, Error>>;

    /// Writes the record if the version named by `kind` is still current, and returns the stored state. `base` is the
    /// state at that version. Everything in it except the record is preserved.
    ///
    /// # Errors
    ///
    /// [`Class`](crate::Class) states whether the record may have been written. Without a `base` of the named version
    /// nothing is sent, and the write is rejected.
    fn write<'a>(
        &'a self,
        kind: &'a WriteKind,
        record: &'a Record,
        base: Option<&'a Snapshot>,
    ) -> BoxFuture<'a, Result<Snapshot, Error>>;

    /// Returns whether the last request shared its connection with other requests in flight, as HTTP/2 allows. If each
    /// request needs its own connection, a caller with many locks sends fewer requests at a time.
    fn shares_connection(&self) -> bool {
        false
    }

    /// Returns how to observe changes by other writers.
    fn watch(&self) -> Watch;

    /// Converts the state of one [`WatchTarget`], given by its index in [`Watch::Objects`], into the result that
    /// [`read`](Self::read) would have. `object` is `None` if the object does not exist. `last` is the newest known
    /// state, from a read, a write or the watch.
    fn apply_watch_event(
        &self,
        target: usize,
        object: Option<Value>,
        last: Option<&Snapshot>,
    ) -> WatchOutcome;

    /// Same as [`apply_watch_event`](Self::apply_watch_event), but takes the object as text. Override it to avoid building a `Value`, because a
    /// process may receive a thousand renewals per second.
    fn apply_watch_text(
        &self,
        target: usize,
        object: &str,
        last: Option<&Snapshot>,
    ) -> WatchOutcome {
        match serde_json::from_str(object) {
            Ok(Lean(object)) => self.apply_watch_event(target, Some(object), last),
            Err(_) => WatchOutcome::ReadNeeded,
        }
    }

    /// Returns the objects that Events about this election refer to: one object, or both objects of a multi lock.
    fn references(&self, snapshot: Option<&Snapshot>) -> Vec<ObjectRef>;
}

/// Precision with which a lock stores times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Microseconds: the Lease.
    Micros,
    /// Whole seconds: records in annotations.
    Seconds,
}

impl Precision {
    /// Truncates a time to this precision.
    pub fn cut(self, time: WallTime) -> WallTime {
        match self {
            Self::Micros => time,
            Self::Seconds => time.whole_seconds(),
        }
    }
}

/// How to observe changes of a lock.
#[derive(Debug)]
#[non_exhaustive]
pub enum Watch {
    /// Watch these objects through the API server and pass each change to [`Lock::apply_watch_event`].
    Objects(Vec<WatchTarget>),
    /// The lock is in this process. The channel contains the current state, `None` if the object does not exist.
    Local(tokio::sync::watch::Receiver<Option<Snapshot>>),
}

/// An object to watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WatchTarget {
    /// The object: resource, namespace and name.
    pub object: ObjectName,
}

/// Meaning of a change of a watched object.
#[derive(Clone, Debug)]
pub enum WatchOutcome {
    /// The lock is now in this state.
    Present(Snapshot),
    /// The lock object does not exist.
    Absent,
    /// This change alone is not sufficient. Call [`Lock::read`].
    ReadNeeded,
}
