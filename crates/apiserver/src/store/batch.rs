//! Orders writes: decides preconditions, fences and revisions, one write after another.
//!
//! # Terms and fencing tokens
//!
//! A fencing token is the revision of the write that won the current term of the lease. The store keeps that revision
//! with every object that has a `spec.holderIdentity`, in memory and on disk. A write starts a new term if it creates
//! the object or changes `spec.holderIdentity`, `spec.acquireTime` or `spec.leaseTransitions`. A renewal changes only
//! `spec.renewTime` and keeps the term. The acquire time distinguishes a process that restarted under its old name
//! from one that renews. A revision of zero means that no token is valid until the next term; a restore sets every
//! lease to zero.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::mvcc::State;
use super::record::Draft;
use super::{Change, Event, EventKind, Expected, Fence, Given, Key, Object, Write, WriteError};
use crate::limits::MAX_STORED_BYTES;

/// A version of an object with the store's bookkeeping.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) object: Arc<Object>,
    /// The revision that won the current term; zero if there is no valid token.
    pub(super) term: u64,
}

/// One decided write.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) event: Arc<Event>,
    /// The object afterwards, unless removed.
    pub(super) entry: Option<Entry>,
}

/// A serialised write that waits for its revision.
#[derive(Debug)]
pub(super) struct Prepared {
    key: Key,
    expected: Expected,
    fence: Option<Fence>,
    given: Vec<Given>,
    draft: Draft,
    remove: bool,
    term: Term,
}

/// Effect of a write on the fencing token of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    /// The object is not a lock.
    None,
    /// The token stays valid.
    Keep,
    /// The write wins a new term.
    New,
}

impl Prepared {
    /// Serialises the write. Rejects it immediately if the published state already rules it out.
    ///
    /// `present` is the published version. A caller knows published revisions only. If the write expects another
    /// revision, that revision is in the past and cannot become the current one again.
    pub(super) fn new(write: Write, present: Option<Arc<Object>>) -> Result<Self, WriteError> {
        let Write {
            key,
            expected,
            change,
            fence,
            given,
        } = write;
        check_key(&key)?;
        if !expected.holds(present.as_deref()) {
            return Err(WriteError::Conflict(present));
        }
        let (draft, term, remove) = match (&change, &present) {
            (Change::Put(value), _) => (
                Draft::new(&key, value)?,
                Term::of(value, present.as_deref()),
                false,
            ),
            (Change::Delete, Some(object)) => (Draft::of(object)?, Term::None, true),
            (Change::Delete, None) => return Err(WriteError::Conflict(None)),
        };
        // A removal has no size limit.
        if !remove && draft.len() > MAX_STORED_BYTES {
            let (size, most) = (draft.len(), MAX_STORED_BYTES);
            let why = format!("the object has {size} bytes; the limit is {most}");
            return Err(WriteError::TooLarge(why));
        }
        Ok(Self {
            key,
            expected,
            fence,
            given,
            draft,
            remove,
            term,
        })
    }

    /// Returns the approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        self.draft.len()
    }
}

/// Writes that become durable and visible together, over the published state.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    state: &'a State,
    staged: HashMap<Key, Option<Entry>>,
    revision: u64,
    commits: Vec<Commit>,
}

/// The reason why a write is not part of the batch.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: WriteError,
    /// Whether the reason is another write of the same batch. Such a rejection must not be sent before the batch is
    /// published.
    pub(super) unpublished: bool,
}

impl<'a> Batch<'a> {
    /// Creates an empty batch whose writes get the revisions after `revision`.
    pub(super) fn new(state: &'a State, revision: u64) -> Self {
        Self {
            state,
            staged: HashMap::new(),
            revision,
            commits: Vec::new(),
        }
    }

    /// Decides one write. An accepted write gets the next revision.
    pub(super) fn add(&mut self, write: Prepared) -> Result<Arc<Object>, Refusal> {
        let Prepared {
            key,
            expected,
            fence,
            given,
            draft,
            remove,
            term,
        } = write;
        let (present, unpublished) = self.present(&key);
        if !expected.holds(present.as_ref().map(|entry| &*entry.object)) {
            let error = WriteError::Conflict(present.map(|entry| entry.object));
            return Err(Refusal { error, unpublished });
        }
        if let Some(fence) = &fence {
            self.check_fence(fence)?;
        }
        for given in given {
            let (present, unpublished) = self.present(&given.key);
            check_given(&given, present.as_ref())
                .map_err(|error| Refusal { error, unpublished })?;
        }
        self.revision += 1;
        let revision = self.revision;
        let object = draft.finish(key.clone(), revision);
        let kind = match (&present, remove) {
            (_, true) => EventKind::Deleted,
            (None, false) => EventKind::Added,
            (Some(_), false) => EventKind::Modified,
        };
        let entry = (!remove).then(|| Entry {
            object: object.clone(),
            term: term.won_at(present.as_ref()).unwrap_or(revision),
        });
        let previous = present.map(|entry| entry.object);
        let event = Arc::new(Event {
            revision,
            kind,
            object: object.clone(),
            previous,
        });
        self.staged.insert(key, entry.clone());
        self.commits.push(Commit { event, entry });
        Ok(object)
    }

    /// Returns the accepted writes in revision order.
    pub(super) fn into_commits(self) -> Vec<Commit> {
        self.commits
    }

    /// Returns the version that the next write replaces, and whether this batch created it.
    fn present(&self, key: &Key) -> (Option<Entry>, bool) {
        match self.staged.get(key) {
            Some(entry) => (entry.clone(), true),
            None => (self.state.entry(key).cloned(), false),
        }
    }

    fn check_fence(&self, fence: &Fence) -> Result<(), Refusal> {
        let (lease, unpublished) = self.present(&fence.lease);
        check_fence(fence, lease.as_ref()).map_err(|reason| Refusal {
            error: WriteError::Fenced(reason),
            unpublished,
        })
    }
}

/// Checks that another object still has the expected revision.
pub(super) fn check_given(given: &Given, present: Option<&Entry>) -> Result<(), WriteError> {
    if present.is_some_and(|entry| entry.object.revision == given.revision) {
        return Ok(());
    }
    Err(WriteError::Moved(given.key.clone()))
}

/// Checks that the token belongs to the current term of the lease.
pub(super) fn check_fence(fence: &Fence, lease: Option<&Entry>) -> Result<(), String> {
    let Fence {
        lease: key,
        token,
        holder,
    } = fence;
    let Some(entry) = lease else {
        return Err(fence.absent());
    };
    let present = Lock::of(&entry.object.json)
        .holder_identity
        .unwrap_or_default();
    if present.is_empty() {
        return Err(format!(
            "{key} has no holder; the token belongs to {holder:?}"
        ));
    }
    if present != *holder {
        return Err(format!(
            "{key} is held by {present:?}; the token belongs to {holder:?}"
        ));
    }
    if entry.term == 0 {
        return Err(format!(
            "{key} was restored from a backup; no token is valid before its next term"
        ));
    }
    if entry.term != *token {
        let term = entry.term;
        return Err(format!(
            "the current term of {key} has token {term}, not {token}"
        ));
    }
    Ok(())
}

/// Checks that no part of the key contains NUL, which separates the parts on disk.
pub(super) fn check_key(key: &Key) -> Result<(), WriteError> {
    let parts = [&*key.resource, &key.namespace, &key.name];
    if parts.iter().any(|part| part.contains('\0')) {
        let why = format!("the name {key:?} contains a NUL character");
        return Err(WriteError::Invalid(why));
    }
    Ok(())
}

impl Term {
    /// Returns the revision that won the term after the write; `None` means the revision of the write itself.
    pub(super) fn won_at(self, present: Option<&Entry>) -> Option<u64> {
        match self {
            Self::None => Some(0),
            Self::Keep => Some(present.map_or(0, |entry| entry.term)),
            Self::New => None,
        }
    }

    pub(super) fn of(value: &Value, present: Option<&Object>) -> Self {
        let Some(spec) = value
            .get("spec")
            .filter(|spec| spec.get("holderIdentity").is_some())
        else {
            return Self::None;
        };
        let Some(present) = present else {
            return Self::New;
        };
        let text = |name| spec.get(name).and_then(Value::as_str).map(str::to_owned);
        let new = Lock {
            holder_identity: text("holderIdentity"),
            acquire_time: text("acquireTime"),
            lease_transitions: spec.get("leaseTransitions").and_then(Value::as_i64),
        };
        if new == Lock::of(&present.json) {
            Self::Keep
        } else {
            Self::New
        }
    }
}

/// The fields of a lock that distinguish terms.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Lock {
    holder_identity: Option<String>,
    acquire_time: Option<String>,
    lease_transitions: Option<i64>,
}

impl Lock {
    /// Reads the fields from a stored object. Missing or malformed fields are absent.
    fn of(json: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            spec: Lock,
        }
        serde_json::from_slice::<Object>(json)
            .map_or_else(|_| Self::default(), |object| object.spec)
    }
}
