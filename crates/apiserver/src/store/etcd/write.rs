//! Executes a write as one transaction of etcd.

use std::sync::Arc;

use super::super::batch::{Entry, Term, check_fence, check_given, check_key};
use super::super::encryption::Encryption;
use super::super::mvcc::{Followed, State};
use super::super::record::Draft;
use super::super::{Change, Key, Object, Write, WriteError};
use super::client::CallError;
use super::format::{encode, removed};
use super::mirror::{signed, unsigned};
use super::wire::{Compare, DeleteRequest, Operation, PutRequest, RequestOp, TxnRequest};
use super::{Bytes, Shared};

/// Attempts of a fenced write whose lease is renewed concurrently.
const ATTEMPTS: usize = 32;

impl Shared {
    /// See [`Store::write`](super::super::Store::write).
    pub(super) async fn write(&self, write: Write) -> Result<Arc<Object>, WriteError> {
        let Ok(_place) = self.places.try_acquire() else {
            return Err(WriteError::Busy);
        };
        let place = self.place(&write.key)?;
        // Whether the mirror contains every write that was acknowledged before this call.
        let mut fresh = false;
        for _ in 0..ATTEMPTS {
            let (present, lease, checked) = {
                let state = self.mvcc.read();
                let lease = write.fence.as_ref().and_then(|f| state.entry(&f.lease));
                let present = state.entry(&write.key);
                let checked = check(&write, present, lease, &state);
                (present.cloned(), lease.cloned(), checked)
            };
            if let Err(refusal) = checked {
                if fresh {
                    return Err(refusal);
                }
                self.fresh().await.map_err(unchanged)?;
                fresh = true;
                continue;
            }
            let plan = Plan::new(&write, present.as_ref())?;
            let mut compare = vec![Compare::last_changed(
                place.clone(),
                present.as_ref().map_or(0, |p| signed(p.object.revision)),
            )];
            if let (Some(fence), Some(lease)) = (&write.fence, &lease) {
                let key = self.place(&fence.lease)?;
                compare.push(Compare::last_changed(key, signed(lease.object.revision)));
            }
            for given in &write.given {
                let key = self.place(&given.key)?;
                compare.push(Compare::last_changed(key, signed(given.revision)));
            }
            let operation = plan.operation(&write.key, place.clone(), &self.encryption)?;
            let success = vec![RequestOp {
                request: Some(operation),
            }];
            let done = self.client.txn(TxnRequest { compare, success }).await;
            let done = match done {
                Err(CallError::Full(why)) => {
                    let before = present.map(|entry| entry.object.revision);
                    return Err(self.full(&write.key, before, &why).await);
                }
                done => done.map_err(CallError::into_write_error)?,
            };
            let revision = unsigned(done.header.unwrap_or_default().revision);
            if done.succeeded {
                let (change, object) = plan.outcome(write.key, revision);
                self.own.publish(change, &self.mvcc);
                // The write succeeded even if the mirror does not reach it in time.
                let _ = self.await_own_write(revision).await;
                // The mirror may already have this version from the watch.
                let shown = self.mvcc.get(&object.key);
                let shown = shown.filter(|shown| shown.revision == revision);
                return Ok(shown.unwrap_or(object));
            }
            self.reach(revision).await.map_err(unchanged)?;
            fresh = true;
        }
        Err(WriteError::Busy)
    }

    /// Finds the outcome of a write for which etcd reported no space.
    async fn full(&self, key: &Key, before: Option<u64>, why: &str) -> WriteError {
        let looked = self.fresh().await.is_ok();
        let present = self.mvcc.get(key).map(|object| object.revision);
        if looked && present == before {
            return WriteError::Full(format!("etcd: {why}"));
        }
        WriteError::Unknown(format!("etcd: {why}"))
    }

    fn place(&self, key: &Key) -> Result<Bytes, WriteError> {
        check_key(key)?;
        self.layout.object(key).map_err(WriteError::Invalid)
    }
}

/// The change that a transaction makes.
enum Plan {
    Put { draft: Draft, term: Option<u64> },
    Delete { last: Arc<Object> },
}

impl Plan {
    fn new(write: &Write, present: Option<&Entry>) -> Result<Self, WriteError> {
        match (&write.change, present) {
            (Change::Put(value), _) => Ok(Self::Put {
                draft: Draft::new(&write.key, value)?,
                term: Term::of(value, present.map(|entry| &*entry.object)).won_at(present),
            }),
            (Change::Delete, Some(entry)) => Ok(Self::Delete {
                last: Arc::clone(&entry.object),
            }),
            (Change::Delete, None) => Err(WriteError::Conflict(None)),
        }
    }

    fn operation(
        &self,
        object: &Key,
        key: Bytes,
        encryption: &Encryption,
    ) -> Result<Operation, WriteError> {
        Ok(match self {
            Self::Put { draft, term } => {
                let value = encode(object, *term, draft.json(), encryption)?;
                Operation::Put(PutRequest { key, value })
            }
            Self::Delete { .. } => Operation::Delete(DeleteRequest { key }),
        })
    }

    /// Returns the published change at the revision of the transaction, and the resulting object.
    fn outcome(&self, key: Key, revision: u64) -> (Followed, Arc<Object>) {
        let (entry, object) = match self {
            Self::Put { draft, term } => {
                let object = draft.finish(key.clone(), revision);
                let term = term.unwrap_or(revision);
                (
                    Some(Entry {
                        object: Arc::clone(&object),
                        term,
                    }),
                    object,
                )
            }
            Self::Delete { last } => (None, removed(last, revision)),
        };
        (
            Followed {
                key,
                revision,
                entry,
            },
            object,
        )
    }
}

/// Checks a write against the mirror.
fn check(
    write: &Write,
    present: Option<&Entry>,
    lease: Option<&Entry>,
    state: &State,
) -> Result<(), WriteError> {
    let object = present.map(|entry| &entry.object);
    let possible = object.is_some() || !matches!(write.change, Change::Delete);
    if !possible || !write.expected.holds(object.map(|object| &**object)) {
        return Err(WriteError::Conflict(object.cloned()));
    }
    if let Some(fence) = &write.fence {
        check_fence(fence, lease).map_err(WriteError::Fenced)?;
    }
    let mut given = write.given.iter();
    given.try_for_each(|given| check_given(given, state.entry(&given.key)))
}

/// Converts an error of a call that changed nothing.
fn unchanged(error: CallError) -> WriteError {
    WriteError::Unavailable(error.reason())
}
