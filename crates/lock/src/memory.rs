//! A lock in this process, for tests and for programs with a single replica.
//!
//! It stores a Lease like an API server: with versions, a uid per creation, and compare-and-set. Versions and uids are
//! counted from one, so that runs are reproducible.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tenure_core::{Record, WriteKind};
use tokio::sync::watch;

use crate::error::{Error, Refusal, Verb};
use crate::lock::{BoxFuture, Lock, Precision, Watch, WatchOutcome};
use crate::object::{self, ObjectName, ObjectRef, Resource};
use crate::object_lock::Part;
use crate::orders;
use crate::snapshot::{Snapshot, Warned};

/// A lock in this process. Clones contend for the same lock.
#[derive(Clone, Debug)]
pub struct MemoryLock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    part: Part,
    described: String,
    register: Mutex<Register>,
    present: watch::Sender<Option<Snapshot>>,
    warned: Warned,
}

#[derive(Debug, Default)]
struct Register {
    object: Option<Value>,
    revision: u64,
    created: u64,
}

impl MemoryLock {
    /// Creates a new lock, independent of all others.
    pub fn new(name: &str) -> Self {
        let part = Part {
            name: ObjectName::new(Resource::LEASE, "memory", name),
            labels: std::collections::BTreeMap::new(),
            place: None,
        };
        Self {
            shared: Arc::new(Shared {
                part,
                described: format!("memory lock {name}"),
                register: Mutex::default(),
                present: watch::Sender::new(None),
                warned: Warned::default(),
            }),
        }
    }

    /// Returns the stored Lease.
    pub fn object(&self) -> Option<Value> {
        self.register().object.clone()
    }

    /// Edits the stored Lease as a person would with `kubectl edit`. Does nothing if there is no Lease.
    pub fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let mut register = self.register();
        if let Some(mut object) = register.object.clone() {
            edit(&mut object);
            self.store(&mut register, object);
        }
    }

    /// Deletes the stored Lease.
    pub fn delete(&self) {
        let mut register = self.register();
        register.object = None;
        register.revision += 1;
        self.shared.present.send_replace(None);
    }

    fn register(&self) -> MutexGuard<'_, Register> {
        // Every change of the register is a single assignment, so a panic cannot leave a partial change.
        self.shared
            .register
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(
        &self,
        kind: &WriteKind,
        record: &Record,
        base: Option<&Snapshot>,
    ) -> Result<Snapshot, Error> {
        let Shared { part, .. } = &*self.shared;
        let mut register = self.register();
        let object = match (kind.base(), &register.object) {
            (None, Some(_)) => {
                return Err(Error::refused(Verb::Create, &part.name, Refusal::Exists));
            }
            (None, None) => {
                register.created += 1;
                let mut object = part.name.blank();
                object["metadata"]["uid"] = format!("memory-{}", register.created).into();
                object
            }
            (Some(_), None) => return Err(Error::refused(Verb::Update, &part.name, Refusal::Gone)),
            (Some(version), Some(stored)) => {
                let base = base.filter(|base| base.observation().version == *version);
                let refused = |why| Error::refused(Verb::Update, &part.name, why);
                let base = base.ok_or_else(|| refused(Refusal::Unseen))?;
                if object::version(stored).as_ref() != Some(version) {
                    return Err(refused(Refusal::Conflict(
                        "another version is stored".to_owned(),
                    )));
                }
                let mut object = base.object();
                if let Some(order) = kind.order() {
                    orders::set(&mut object, order);
                }
                object
            }
        };
        let body = part.body(object, record);
        let object = serde_json::from_str(&body).expect("the body of a write is JSON");
        Ok(self.store(&mut register, object))
    }

    fn store(&self, register: &mut Register, mut object: Value) -> Snapshot {
        register.revision += 1;
        object["metadata"]["resourceVersion"] = register.revision.to_string().into();
        register.object = Some(object.clone());
        let snapshot = self.snapshot(&object);
        self.shared.present.send_replace(Some(snapshot.clone()));
        snapshot
    }

    fn snapshot(&self, object: &Value) -> Snapshot {
        let snapshot = self.shared.part.snapshot(object);
        let snapshot = snapshot.expect("the register gives each object a uid and a version");
        self.shared.warned.note(snapshot.warnings());
        snapshot
    }
}

impl Lock for MemoryLock {
    fn describe(&self) -> &str {
        &self.shared.described
    }

    fn precision(&self) -> Precision {
        Precision::Micros
    }

    fn read(&self) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        let snapshot = self.object().map(|object| self.snapshot(&object));
        Box::pin(std::future::ready(Ok(snapshot)))
    }

    fn write<'a>(
        &'a self,
        kind: &'a WriteKind,
        record: &'a Record,
        base: Option<&'a Snapshot>,
    ) -> BoxFuture<'a, Result<Snapshot, Error>> {
        Box::pin(async move { self.apply(kind, record, base) })
    }

    fn watch(&self) -> Watch {
        Watch::Local(self.shared.present.subscribe())
    }

    fn apply_watch_event(
        &self,
        _target: usize,
        _object: Option<Value>,
        _last: Option<&Snapshot>,
    ) -> WatchOutcome {
        WatchOutcome::ReadNeeded
    }

    fn references(&self, _snapshot: Option<&Snapshot>) -> Vec<ObjectRef> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::WallTime;

    use super::*;
    use crate::error::Class;

    fn record(holder: &str, transitions: u32) -> Record {
        Record {
            holder: holder.to_owned(),
            lease_duration_seconds: 15,
            acquire_time: Some(WallTime::from_micros(1)),
            renew_time: Some(WallTime::from_micros(2)),
            transitions,
            ..Record::default()
        }
    }

    #[tokio::test]
    async fn two_contenders_share_one_register() {
        let (a, b) = (MemoryLock::new("x"), MemoryLock::new("x"));
        let also_a = a.clone();
        let won = a
            .write(&WriteKind::Create, &record("a", 0), None)
            .await
            .unwrap();
        assert_eq!(won.observation().version.revision.as_str(), "1");
        let lost = also_a
            .write(&WriteKind::Create, &record("b", 0), None)
            .await;
        assert_eq!(lost.unwrap_err().class(), Class::Refused);
        assert!(b.read().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn lock_shows_its_name_and_the_stored_lease() {
        let lock = MemoryLock::new("x");
        assert_eq!(lock.describe(), "memory lock x");
        assert_eq!(lock.object(), None);
        lock.write(&WriteKind::Create, &record("a", 0), None)
            .await
            .unwrap();
        let stored = lock.object().expect("a Lease");
        assert_eq!(stored["spec"]["holderIdentity"], "a");
    }

    #[tokio::test]
    async fn only_the_observed_version_is_replaced() {
        let lock = MemoryLock::new("x");
        let first = lock
            .write(&WriteKind::Create, &record("a", 0), None)
            .await
            .unwrap();
        let acquire = WriteKind::Acquire(first.observation().version.clone());
        let unseen = lock
            .write(&acquire, &record("b", 1), None)
            .await
            .unwrap_err();
        assert_eq!(
            unseen.to_string(),
            "cannot update lease memory/x: its current version was not read before"
        );
        let second = lock
            .write(&acquire, &record("b", 1), Some(&first))
            .await
            .unwrap();
        assert_eq!(second.observation().record, record("b", 1));
        let late = lock
            .write(&acquire, &record("c", 1), Some(&first))
            .await
            .unwrap_err();
        assert_eq!(late.class(), Class::Refused);
    }

    #[tokio::test]
    async fn watchers_receive_edits_deletion_and_another_uid() {
        let lock = MemoryLock::new("x");
        let Watch::Local(mut present) = lock.watch() else {
            panic!("the lock is in this process")
        };
        let first = lock
            .write(&WriteKind::Create, &record("a", 0), None)
            .await
            .unwrap();
        assert!(present.has_changed().unwrap());
        assert!(present.borrow_and_update().is_some());
        lock.edit(|object| object["metadata"]["labels"] = serde_json::json!({ "a": "b" }));
        let edited = present.borrow_and_update().clone().unwrap();
        assert_eq!(
            edited.observation().fingerprint,
            first.observation().fingerprint
        );
        assert_ne!(edited.observation().version, first.observation().version);
        lock.delete();
        assert!(present.borrow_and_update().is_none());
        let again = lock
            .write(&WriteKind::Create, &record("a", 0), None)
            .await
            .unwrap();
        assert_eq!(&*again.observation().version.uid, "memory-2");
        assert_eq!(again.observation().version.revision.as_str(), "4");
    }
}
