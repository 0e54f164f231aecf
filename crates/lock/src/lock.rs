//! The contract of a lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde_json::Value;
use tenure_core::{Record, WallTime, WriteKind};

use crate::error::Error;
use crate::lean::Lean;
use crate::object::{ObjectName, ObjectRef};
use crate::sighting::Sighting;

/// A future that can be stored without naming its type.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where an election keeps its record. A lock does not remember what it saw: whoever drives it keeps
/// the newest [`Sighting`] and hands it back with the next write. Each candidate needs a lock of its
/// own, because a lock may know its own writes.
///
/// # Cancel safety
///
/// Futures may be dropped at any time. A dropped write counts as [`Class::Unknown`]: it may have
/// been applied.
///
/// [`Class::Unknown`]: crate::Class::Unknown
pub trait Lock: fmt::Debug + Send + Sync {
    /// Kind and name for people, `lease kube-system/x`.
    fn describe(&self) -> &str;

    /// How finely times survive a write and a read. Times of a record must be cut to this before it
    /// is written, or the record read back is not the one written.
    fn precision(&self) -> Precision;

    /// Reads the present state; `None` if there is no lock object.
    ///
    /// # Errors
    ///
    /// Of any class; nothing was changed.
    fn read(&self) -> BoxFuture<'_, Result<Option<Sighting>, Error>>;

    /// Writes the record if the version named by `kind` is still current, and returns what was
    /// stored. `base` is the sighting of that version; everything in it besides the record is kept.
    ///
    /// # Errors
    ///
    /// [`Class`](crate::Class) tells whether the record may have been written. Without a `base` of
    /// the named version nothing is sent and the write is refused.
    fn write<'a>(
        &'a self,
        kind: &'a WriteKind,
        record: &'a Record,
        base: Option<&'a Sighting>,
    ) -> BoxFuture<'a, Result<Sighting, Error>>;

    /// Whether the last request shared its connection with others that were under way, as HTTP/2 allows.
    /// Where each takes a connection of its own, whoever drives many locks sends fewer at a time.
    fn shares_connection(&self) -> bool {
        false
    }

    /// How changes by others become known.
    fn watch(&self) -> Watch;

    /// Turns the state of one [`WatchTarget`], given by its place in [`Watch::Objects`], into what
    /// [`read`](Self::read) would say. `object` is `None` where there is none (any more); `last` is
    /// the newest sighting so far, whether it came from a read, a write or the watch.
    fn sight(&self, target: usize, object: Option<Value>, last: Option<&Sighting>) -> Sight;

    /// The same of an object as text, as a watch shows it. For those locks to do better that need no tree of
    /// values: a process may be shown a thousand renewals a second.
    fn sight_text(&self, target: usize, object: &str, last: Option<&Sighting>) -> Sight {
        match serde_json::from_str(object) {
            Ok(Lean(object)) => self.sight(target, Some(object), last),
            Err(_) => Sight::ReadNeeded,
        }
    }

    /// What Events about this election refer to: one object, or both of a multi lock.
    fn references(&self, sighting: Option<&Sighting>) -> Vec<ObjectRef>;
}

/// How finely a lock keeps times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Microseconds: the Lease.
    Micros,
    /// Whole seconds: records in annotations.
    Seconds,
}

impl Precision {
    /// Cuts a time to this precision.
    pub fn cut(self, time: WallTime) -> WallTime {
        match self {
            Self::Micros => time,
            Self::Seconds => time.whole_seconds(),
        }
    }
}

/// How changes of a lock become known.
#[derive(Debug)]
#[non_exhaustive]
pub enum Watch {
    /// Watch these objects through the API server and show each change to [`Lock::sight`].
    Objects(Vec<WatchTarget>),
    /// The lock lives in this process: the channel has the present state, `None` for no object.
    Local(tokio::sync::watch::Receiver<Option<Sighting>>),
}

/// An object whose changes matter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WatchTarget {
    /// The object: resource, namespace and name.
    pub object: ObjectName,
}

/// What a change of a watched object means.
#[derive(Clone, Debug)]
pub enum Sight {
    /// The lock is now in this state.
    Seen(Sighting),
    /// There is no lock object.
    Absent,
    /// This change alone does not tell; [`Lock::read`] does.
    ReadNeeded,
}
