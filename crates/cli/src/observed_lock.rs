//! The lock of an election with two additions. It remembers the last observation, for queries of users and programs. A
//! gate can keep it from winning.
//!
//! Invariant: a closed gate blocks only writes that would win. Renewals and releases always pass.

use std::cmp::Ordering;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tenure::clock::{Clock, SystemClock};
use tenure_core::{LocalTime, Record, WallTime, WriteKind};
use tenure_lock::{
    Attempt, BoxFuture, Error, Lock, ObjectName, ObjectRef, Precision, Refusal, Snapshot, Verb,
    Watch, WatchOutcome,
};

/// A lock that is observed and that a gate can block.
#[derive(Debug)]
pub(crate) struct ObservedLock {
    inner: Arc<dyn Lock>,
    notes: Notes,
    gate: Gate,
}

impl ObservedLock {
    pub(crate) fn new(inner: Arc<dyn Lock>, notes: Notes, gate: Gate) -> Self {
        Self { inner, notes, gate }
    }

    /// Returns the error for a blocked write. Nothing was sent, so it is a rejection.
    fn held_back(&self, verb: Verb, why: String) -> Option<Error> {
        let object = self.object()?;
        Some(Error::Refused {
            attempt: Attempt { verb, object },
            why: Refusal::Conflict(why),
        })
    }

    fn object(&self) -> Option<ObjectName> {
        match self.inner.watch() {
            Watch::Objects(targets) => targets.into_iter().next().map(|target| target.object),
            _ => None,
        }
    }
}

impl Lock for ObservedLock {
    fn describe(&self) -> &str {
        self.inner.describe()
    }

    fn precision(&self) -> Precision {
        self.inner.precision()
    }

    fn read(&self) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        Box::pin(async {
            let result = self.inner.read().await;
            if let Ok(seen) = &result {
                self.notes.see(seen.as_ref());
            }
            result
        })
    }

    fn write<'a>(
        &'a self,
        kind: &'a WriteKind,
        record: &'a Record,
        base: Option<&'a Snapshot>,
    ) -> BoxFuture<'a, Result<Snapshot, Error>> {
        Box::pin(async move {
            let verb = match kind {
                WriteKind::Create => Some(Verb::Create),
                WriteKind::Acquire(_) => Some(Verb::Update),
                WriteKind::Renew(_) | WriteKind::Release(..) => None,
            };
            let pass = match verb {
                None => None,
                Some(verb) => match self.gate.pass().await {
                    Ok(pass) => Some(pass),
                    Err(why) => match self.held_back(verb, why) {
                        Some(error) => return Err(error),
                        // A lock in this process is never blocked.
                        None => None,
                    },
                },
            };
            let result = self.inner.write(kind, record, base).await;
            if let Ok(written) = &result {
                self.notes.see(Some(written));
                if let Some(pass) = pass {
                    pass.keep();
                }
            }
            result
        })
    }

    fn watch(&self) -> Watch {
        self.inner.watch()
    }

    fn apply_watch_event(
        &self,
        target: usize,
        object: Option<Value>,
        last: Option<&Snapshot>,
    ) -> WatchOutcome {
        let sight = self.inner.apply_watch_event(target, object, last);
        match &sight {
            // An event of the watch may be older than the last read or write.
            WatchOutcome::Present(seen) if self.notes.is_older(seen) => {}
            WatchOutcome::Present(seen) => self.notes.see(Some(seen)),
            WatchOutcome::Absent => self.notes.see(None),
            WatchOutcome::ReadNeeded => {}
        }
        sight
    }

    fn references(&self, snapshot: Option<&Snapshot>) -> Vec<ObjectRef> {
        self.inner.references(snapshot)
    }
}

/// The last observation of the lock object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Noted>>);

#[derive(Clone, Debug, Default)]
struct Noted {
    snapshot: Option<Snapshot>,
    heard: Option<Timestamp>,
    /// Time of the last change of the record, and time since which the record is held or free.
    changed: LocalTime,
    taken: LocalTime,
    previous: String,
    /// The last observation with a holder, even if the object was deleted.
    held: Option<Snapshot>,
}

impl Notes {
    /// Returns whether this is an earlier version of the object that was last observed.
    fn is_older(&self, seen: &Snapshot) -> bool {
        let noted = self.lock();
        let Some(last) = &noted.snapshot else {
            return false;
        };
        let (seen, last) = (&seen.observation().version, &last.observation().version);
        seen.uid == last.uid
            && seen
                .revision
                .order(&last.revision)
                .is_some_and(Ordering::is_lt)
    }

    fn see(&self, seen: Option<&Snapshot>) {
        let now = SystemClock.now().local;
        let mut noted = self.lock();
        let holder = |snapshot: Option<&Snapshot>| {
            snapshot.map_or(String::new(), |s| s.observation().record.holder.clone())
        };
        let print = |snapshot: Option<&Snapshot>| snapshot.map(|s| s.observation().fingerprint);
        let (before, after) = (holder(noted.snapshot.as_ref()), holder(seen));
        if noted.heard.is_none() || print(noted.snapshot.as_ref()) != print(seen) {
            noted.changed = now;
        }
        if noted.heard.is_none() || before.is_empty() != after.is_empty() {
            noted.taken = now;
        }
        if !before.is_empty() && before != after {
            noted.previous = before;
        }
        let is_held = |seen: &&Snapshot| !seen.observation().record.is_free();
        if let Some(held) = seen.filter(is_held) {
            noted.held = Some(held.clone());
        }
        noted.snapshot = seen.cloned();
        noted.heard = Some(Timestamp::now());
    }

    /// Returns when the lock was last observed; nothing if it was never observed.
    pub(crate) fn heard(&self) -> Option<Timestamp> {
        self.lock().heard
    }

    /// Returns the record, if there is one.
    pub(crate) fn record(&self) -> Option<Record> {
        let noted = self.lock();
        Some(noted.snapshot.as_ref()?.observation().record.clone())
    }

    /// Returns the last observation with a holder, even if the object was deleted.
    pub(crate) fn held(&self) -> Option<Snapshot> {
        self.lock().held.clone()
    }

    /// Returns the holder before the current one.
    pub(crate) fn previous(&self) -> String {
        self.lock().previous.clone()
    }

    /// Returns the last observation.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        self.lock().snapshot.clone()
    }

    /// Returns how long the current record still excludes other candidates, measured since it was first observed.
    pub(crate) fn valid_for(&self) -> Duration {
        let noted = self.lock();
        let Some(snapshot) = &noted.snapshot else {
            return Duration::ZERO;
        };
        let record = &snapshot.observation().record;
        if record.is_free() {
            return Duration::ZERO;
        }
        let age = SystemClock.now().local.since(noted.changed);
        record.lease_duration().saturating_sub(age)
    }

    /// Returns how long there has been no leader: nobody holds the lock, or its holder has not renewed for a lease
    /// duration. Zero while there is a leader.
    pub(crate) fn leaderless_for(&self) -> Duration {
        let noted = self.lock();
        if noted.heard.is_none() {
            return Duration::ZERO;
        }
        let now = SystemClock.now().local;
        let record = noted.snapshot.as_ref().map(|s| &s.observation().record);
        match record.filter(|record| !record.is_free()) {
            None => now.since(noted.taken),
            Some(record) => now
                .since(noted.changed)
                .saturating_sub(record.lease_duration()),
        }
    }

    /// Returns `metadata.uid` of the lock object.
    pub(crate) fn uid(&self) -> Option<String> {
        let noted = self.lock();
        let snapshot = noted.snapshot.as_ref()?;
        Some(snapshot.observation().version.uid.to_string())
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Formats a time as RFC 3339.
pub(crate) fn rfc3339(time: WallTime) -> Option<String> {
    let time = Timestamp::from_microsecond(time.as_micros()).ok()?;
    Some(time.to_string())
}

/// Decides whether this candidate may win now. Clones refer to the same gate. If several elections share a gate, their
/// locks try to win one after the other. Only one of them wins until [`reopen`](Self::reopen) is called.
#[derive(Clone)]
pub(crate) struct Gate(Arc<GateState>);

struct GateState {
    closed: Mutex<Option<String>>,
    /// For gates with a single winner: locked during an attempt, and true once one has won.
    turn: Option<tokio::sync::Mutex<bool>>,
}

impl Gate {
    /// Creates a gate that is open.
    pub(crate) fn open() -> Self {
        Self::new(None)
    }

    /// Creates a gate that lets one winner pass.
    pub(crate) fn one_winner() -> Self {
        Self::new(Some(tokio::sync::Mutex::new(false)))
    }

    fn new(turn: Option<tokio::sync::Mutex<bool>>) -> Self {
        let closed = Mutex::new(None);
        Self(Arc::new(GateState { closed, turn }))
    }

    /// Blocks winning writes, for a reason that is logged; `None` opens the gate again.
    pub(crate) fn close(&self, why: Option<String>) {
        *self.closed() = why;
    }

    /// Returns why it is closed.
    pub(crate) fn reason(&self) -> Option<String> {
        self.closed().clone()
    }

    /// Opens the gate for another winner, after the term of the previous one has ended.
    pub(crate) async fn reopen(&self) {
        if let Some(turn) = &self.0.turn {
            *turn.lock().await = false;
        }
    }

    async fn pass(&self) -> Result<Pass<'_>, String> {
        if let Some(why) = self.reason() {
            return Err(why);
        }
        let Some(turn) = &self.0.turn else {
            return Ok(Pass(None));
        };
        let won = turn.lock().await;
        if *won {
            return Err("another slot was won".to_owned());
        }
        Ok(Pass(Some(won)))
    }

    fn closed(&self) -> MutexGuard<'_, Option<String>> {
        let closed = &self.0.closed;
        closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gate").field(&self.reason()).finish()
    }
}

/// The permission to send one winning write.
struct Pass<'a>(Option<tokio::sync::MutexGuard<'a, bool>>);

impl Pass<'_> {
    /// Records that the write won: no other write passes until the gate is reopened.
    fn keep(self) {
        if let Some(mut won) = self.0 {
            *won = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_winner_until_the_gate_is_reopened() {
        let gate = Gate::one_winner();
        drop(gate.pass().await.unwrap());
        gate.pass().await.unwrap().keep();
        assert!(gate.pass().await.is_err(), "one has won");
        gate.reopen().await;
        assert!(gate.pass().await.is_ok());
    }

    #[tokio::test]
    async fn older_watch_event_does_not_replace_a_newer_observation() {
        let lock = tenure::MemoryLock::new("x");
        let mut record = Record {
            holder: "a".to_owned(),
            ..Record::default()
        };
        let first = lock.write(&WriteKind::Create, &record, None).await.unwrap();
        let version = first.observation().version.clone();
        record.holder.clear();
        let release = WriteKind::Release(version, None);
        let last = lock.write(&release, &record, Some(&first)).await.unwrap();
        let notes = Notes::default();
        assert!(!notes.is_older(&first), "nothing was seen yet");
        notes.see(Some(&last));
        assert!(notes.is_older(&first) && !notes.is_older(&last));
    }

    #[tokio::test]
    async fn closed_gate_returns_its_reason() {
        let gate = Gate::open();
        gate.close(Some("unhealthy".into()));
        assert_eq!(gate.pass().await.err().as_deref(), Some("unhealthy"));
        gate.close(None);
        assert!(gate.pass().await.is_ok());
    }
}
