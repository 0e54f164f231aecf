//! A lock in memory behind a network that can be partitioned, one per candidate.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tenure::clock::{Clock, TokioClock};
use tenure::{Builder, Elector, Lock, MemoryLock};
use tenure_core::{Record, WriteKind};
use tenure_lock::{BoxFuture, Error, ObjectRef, Precision, Snapshot, Watch, WatchOutcome};
use tokio::sync::watch;

/// The connection of one candidate to a lock that it shares with others.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    lock: MemoryLock,
    faults: Arc<Faults>,
    seen: Arc<watch::Sender<Option<Snapshot>>>,
}

#[derive(Debug, Default)]
struct Faults {
    /// No messages pass in either direction.
    cut: AtomicBool,
    /// Writes are applied, and their responses are lost.
    deaf: AtomicBool,
    /// Responses to reads are lost.
    blind: AtomicBool,
    /// There is no watch.
    unwatched: AtomicBool,
    log: Mutex<Vec<&'static str>>,
}

impl Wire {
    /// Creates a connection to the lock; must be called in a runtime.
    pub(crate) fn to(lock: &MemoryLock) -> Self {
        let seen = Arc::new(watch::Sender::new(None));
        let faults = Arc::new(Faults::default());
        if let Watch::Local(mut changes) = lock.watch() {
            let (seen, faults) = (Arc::downgrade(&seen), faults.clone());
            tokio::spawn(async move {
                loop {
                    let present = changes.borrow_and_update().clone();
                    let Some(seen) = seen.upgrade() else { break };
                    if !faults.cut.load(SeqCst) {
                        seen.send_replace(present);
                    }
                    drop(seen);
                    if changes.changed().await.is_err() {
                        break;
                    }
                }
            });
        }
        let lock = lock.clone();
        Self { lock, faults, seen }
    }

    pub(crate) fn unwatched(self) -> Self {
        self.faults.unwatched.store(true, SeqCst);
        self
    }

    pub(crate) fn cut(&self) {
        self.faults.cut.store(true, SeqCst);
    }

    pub(crate) fn lose_answers(&self, yes: bool) {
        self.faults.deaf.store(yes, SeqCst);
    }

    pub(crate) fn lose_reads(&self, yes: bool) {
        self.faults.blind.store(yes, SeqCst);
    }

    /// Returns the requests sent since the last call.
    pub(crate) fn requests(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.faults.log.lock().unwrap())
    }

    /// Configures an elector with this lock and client-go's durations.
    pub(crate) fn elector(&self, identity: &str) -> Builder {
        Elector::builder(Arc::new(self.clone()))
            .identity(identity)
            .clock(clock())
    }

    fn note(&self, what: &'static str) {
        self.faults.log.lock().unwrap().push(what);
    }

    async fn pass(&self) {
        if self.faults.cut.load(SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

impl Lock for Wire {
    fn describe(&self) -> &str {
        self.lock.describe()
    }

    fn precision(&self) -> Precision {
        self.lock.precision()
    }

    fn read(&self) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        self.note("get");
        Box::pin(async move {
            self.pass().await;
            if self.faults.blind.load(SeqCst) {
                std::future::pending::<()>().await;
            }
            self.lock.read().await
        })
    }

    fn write<'a>(
        &'a self,
        kind: &'a WriteKind,
        record: &'a Record,
        base: Option<&'a Snapshot>,
    ) -> BoxFuture<'a, Result<Snapshot, Error>> {
        self.note(match kind {
            WriteKind::Create => "create",
            WriteKind::Acquire(_) => "acquire",
            WriteKind::Renew(_) => "renew",
            WriteKind::Release(..) => "release",
        });
        Box::pin(async move {
            self.pass().await;
            let answer = self.lock.write(kind, record, base).await;
            if self.faults.deaf.load(SeqCst) {
                std::future::pending::<()>().await;
            }
            answer
        })
    }

    fn watch(&self) -> Watch {
        if self.faults.unwatched.load(SeqCst) {
            Watch::Objects(Vec::new())
        } else {
            Watch::Local(self.seen.subscribe())
        }
    }

    fn apply_watch_event(
        &self,
        target: usize,
        object: Option<Value>,
        last: Option<&Snapshot>,
    ) -> WatchOutcome {
        self.lock.apply_watch_event(target, object, last)
    }

    fn references(&self, snapshot: Option<&Snapshot>) -> Vec<ObjectRef> {
        self.lock.references(snapshot)
    }
}

/// Returns the clock of all candidates of a test.
pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(TokioClock::new())
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Advances paused time by this much.
pub(crate) async fn pass(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Returns the holder in the stored record; nothing if there is no record.
pub(crate) fn holder(lock: &MemoryLock) -> Option<String> {
    let object = lock.object()?;
    Some(object["spec"]["holderIdentity"].as_str()?.to_owned())
}
