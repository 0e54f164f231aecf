//! The lock of an election with two additions: it remembers what it last saw, for people and programs
//! that ask, and it can be told not to win.
//!
//! Invariant: a closed gate holds back only writes that would win. Renewals and releases always pass.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tenure::clock::{Clock, SystemClock};
use tenure::core::{LocalTime, Record, WallTime, WriteKind};
use tenure::lock::{
    Attempt, BoxFuture, Error, Lock, ObjectName, ObjectRef, Precision, Refusal, Sight, Sighting,
    Verb, Watch,
};

/// A lock that is observed and may be held back.
#[derive(Debug)]
pub(crate) struct ObservedLock {
    inner: Arc<dyn Lock>,
    notes: Notes,
    gate: Gate,
    for_life: Option<ForLife>,
}

/// A candidate that wins only what is free, what a former process of its own pod left behind, and what
/// a leader of another kind let run out.
#[derive(Debug)]
struct ForLife {
    identity: String,
    /// Terms of this mode have this lease duration.
    seconds: u32,
    /// What this process wrote lately, and what was last seen of it first.
    written: Mutex<Vec<Record>>,
}

/// As many writes are remembered as the elector itself remembers.
const REMEMBERED_WRITES: usize = 8;

impl ForLife {
    /// Makes a lock look free that bears the own name and that this process did not write: a former
    /// process did, or somebody edited it, which ends a term. No other process has this identity, so
    /// nobody else is meant, and nobody else sees it so.
    fn disown(&self, inner: &dyn Lock, seen: Sighting) -> Sighting {
        let record = &seen.observation().record;
        if record.holder != self.identity || self.wrote(record) {
            return seen;
        }
        let mut object = seen.object();
        object["spec"]["holderIdentity"] = "".into();
        match inner.sight(0, Some(object), None) {
            Sight::Seen(disowned) => disowned,
            Sight::Absent | Sight::ReadNeeded => seen,
        }
    }

    fn wrote(&self, record: &Record) -> bool {
        let mut written = self.written();
        let at = written.iter().position(|own| own.same_write(record));
        if let Some(at) = at {
            written.swap(0, at);
        }
        at.is_some()
    }

    fn writes(&self, record: &Record) {
        let mut written = self.written();
        if written.len() == REMEMBERED_WRITES {
            // The lock may show the first one still, if all later ones were lost.
            written.remove(1);
        }
        written.push(record.clone());
    }

    fn written(&self) -> MutexGuard<'_, Vec<Record>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservedLock {
    pub(crate) fn new(inner: Arc<dyn Lock>, notes: Notes, gate: Gate) -> Self {
        Self {
            inner,
            notes,
            gate,
            for_life: None,
        }
    }

    /// Holds back every write that would take over what another than this candidate holds for life, which
    /// its lease duration of so many seconds shows. What a former process of this identity held is won
    /// again at once: the identity must be that of one pod.
    pub(crate) fn for_life(self, identity: &str, seconds: u32) -> Self {
        let for_life = Some(ForLife {
            identity: identity.to_owned(),
            seconds,
            written: Mutex::default(),
        });
        Self { for_life, ..self }
    }

    /// Why a winning write that replaces `base` must not be sent, if it must not.
    fn takes_over(&self, base: Option<&Sighting>) -> Option<String> {
        let ForLife {
            identity, seconds, ..
        } = self.for_life.as_ref()?;
        let record = &base?.observation().record;
        let holder = &record.holder;
        let others = !holder.is_empty() && holder != identity;
        let taken = others && record.lease_duration_seconds == *seconds;
        taken.then(|| format!("{holder} holds it for life"))
    }

    /// The error for a write that is held back. Nothing was sent, so it is a refusal.
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

    fn read(&self) -> BoxFuture<'_, Result<Option<Sighting>, Error>> {
        Box::pin(async {
            let mut result = self.inner.read().await;
            if let Some(life) = &self.for_life {
                result = result.map(|seen| seen.map(|seen| life.disown(&*self.inner, seen)));
            }
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
        base: Option<&'a Sighting>,
    ) -> BoxFuture<'a, Result<Sighting, Error>> {
        Box::pin(async move {
            let verb = match kind {
                WriteKind::Create => Some(Verb::Create),
                WriteKind::Acquire(_) => Some(Verb::Update),
                WriteKind::Renew(_) | WriteKind::Release(_) => None,
            };
            if let (Some(verb), Some(why)) = (verb, self.takes_over(base))
                && let Some(error) = self.held_back(verb, why)
            {
                return Err(error);
            }
            let pass = match verb {
                None => None,
                Some(verb) => match self.gate.pass().await {
                    Ok(pass) => Some(pass),
                    Err(why) => match self.held_back(verb, why) {
                        Some(error) => return Err(error),
                        // A lock in this process is never held back.
                        None => None,
                    },
                },
            };
            if let Some(life) = &self.for_life {
                // Before it is sent: the watch may show it before the answer is here.
                life.writes(record);
            }
            let result = self.inner.write(kind, record, base).await;
            if let Ok(written) = &result {
                self.notes.see(Some(written));
                if let Some(life) = &self.for_life {
                    life.wrote(record);
                }
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

    fn sight(&self, target: usize, object: Option<Value>, last: Option<&Sighting>) -> Sight {
        let sight = match (self.inner.sight(target, object, last), &self.for_life) {
            (Sight::Seen(seen), Some(life)) => Sight::Seen(life.disown(&*self.inner, seen)),
            (sight, _) => sight,
        };
        match &sight {
            Sight::Seen(seen) => self.notes.see(Some(seen)),
            Sight::Absent => self.notes.see(None),
            Sight::ReadNeeded => {}
        }
        sight
    }

    fn references(&self, sighting: Option<&Sighting>) -> Vec<ObjectRef> {
        self.inner.references(sighting)
    }
}

/// What was last seen of the lock object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Noted>>);

#[derive(Clone, Debug, Default)]
struct Noted {
    sighting: Option<Sighting>,
    heard: Option<Timestamp>,
    /// When the record last changed, and since when somebody has held it or nobody has.
    changed: LocalTime,
    taken: LocalTime,
    previous: String,
    /// The last record that named a holder, even if the object is gone.
    held: Option<Record>,
}

impl Notes {
    fn see(&self, seen: Option<&Sighting>) {
        let now = SystemClock.now().local;
        let mut noted = self.lock();
        let holder = |sighting: Option<&Sighting>| {
            sighting.map_or(String::new(), |s| s.observation().record.holder.clone())
        };
        let print = |sighting: Option<&Sighting>| sighting.map(|s| s.observation().fingerprint);
        let (before, after) = (holder(noted.sighting.as_ref()), holder(seen));
        if noted.heard.is_none() || print(noted.sighting.as_ref()) != print(seen) {
            noted.changed = now;
        }
        if noted.heard.is_none() || before.is_empty() != after.is_empty() {
            noted.taken = now;
        }
        if !before.is_empty() && before != after {
            noted.previous = before;
        }
        let record = seen.map(|seen| &seen.observation().record);
        if let Some(held) = record.filter(|record| !record.is_free()) {
            noted.held = Some(held.clone());
        }
        noted.sighting = seen.cloned();
        noted.heard = Some(Timestamp::now());
    }

    /// Whether the lock was seen at all, and when last.
    pub(crate) fn heard(&self) -> Option<Timestamp> {
        self.lock().heard
    }

    /// The record, if there is one.
    pub(crate) fn record(&self) -> Option<Record> {
        let noted = self.lock();
        Some(noted.sighting.as_ref()?.observation().record.clone())
    }

    /// The last record that named a holder, whatever became of the object.
    pub(crate) fn held(&self) -> Option<Record> {
        self.lock().held.clone()
    }

    /// Who held the lock before the present holder.
    pub(crate) fn previous(&self) -> String {
        self.lock().previous.clone()
    }

    /// The last sighting.
    pub(crate) fn sighting(&self) -> Option<Sighting> {
        self.lock().sighting.clone()
    }

    /// How long the present record still keeps others away, by the time since it was first seen.
    pub(crate) fn valid_for(&self) -> Duration {
        let noted = self.lock();
        let Some(sighting) = &noted.sighting else {
            return Duration::ZERO;
        };
        let record = &sighting.observation().record;
        if record.is_free() {
            return Duration::ZERO;
        }
        let age = SystemClock.now().local.since(noted.changed);
        record.lease_duration().saturating_sub(age)
    }

    /// How long nobody has led: nobody holds the lock, or its holder has not been heard of for a
    /// lease duration. Zero while somebody does.
    pub(crate) fn leaderless_for(&self) -> Duration {
        let noted = self.lock();
        if noted.heard.is_none() {
            return Duration::ZERO;
        }
        let now = SystemClock.now().local;
        let record = noted.sighting.as_ref().map(|s| &s.observation().record);
        match record.filter(|record| !record.is_free()) {
            None => now.since(noted.taken),
            Some(record) => now
                .since(noted.changed)
                .saturating_sub(record.lease_duration()),
        }
    }

    /// `metadata.uid` of the lock object.
    pub(crate) fn uid(&self) -> Option<String> {
        let noted = self.lock();
        Some(noted.sighting.as_ref()?.observation().version.uid.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// RFC 3339 for people and programs.
pub(crate) fn rfc3339(time: WallTime) -> Option<String> {
    let time = Timestamp::from_microsecond(time.as_micros()).ok()?;
    Some(time.to_string())
}

/// Whether this candidate may win now. Clones are the same gate; the locks of several elections that
/// share one win one after the other, and only one of them until [`reopen`](Self::reopen).
#[derive(Clone)]
pub(crate) struct Gate(Arc<GateState>);

struct GateState {
    closed: Mutex<Option<String>>,
    /// For gates that let only one winner through: held by whoever tries, true once one has won.
    turn: Option<tokio::sync::Mutex<bool>>,
}

impl Gate {
    /// Always open.
    pub(crate) fn open() -> Self {
        Self::new(None)
    }

    /// Lets one winner through.
    pub(crate) fn one_winner() -> Self {
        Self::new(Some(tokio::sync::Mutex::new(false)))
    }

    fn new(turn: Option<tokio::sync::Mutex<bool>>) -> Self {
        let closed = Mutex::new(None);
        Self(Arc::new(GateState { closed, turn }))
    }

    /// Holds winning writes back, for a reason that logs show; `None` lets them through again.
    pub(crate) fn close(&self, why: Option<String>) {
        *self.closed() = why;
    }

    /// Why it is closed.
    pub(crate) fn reason(&self) -> Option<String> {
        self.closed().clone()
    }

    /// After a winner has left: lets the next one through.
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

/// The right to send one winning write.
struct Pass<'a>(Option<tokio::sync::MutexGuard<'a, bool>>);

impl Pass<'_> {
    /// The write won: nobody else passes until the gate is reopened.
    fn keep(self) {
        if let Some(mut won) = self.0 {
            *won = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use tenure::MemoryLock;
    use tenure::lock::LockKind;

    use super::*;

    const SECONDS: u32 = 172_800;

    fn held_by(holder: &str, seconds: u32, micros: i64) -> Record {
        Record {
            holder: holder.to_owned(),
            lease_duration_seconds: seconds,
            acquire_time: Some(WallTime::from_micros(micros)),
            renew_time: Some(WallTime::from_micros(micros)),
            ..Record::default()
        }
    }

    /// A Lease of an API server that is not asked.
    fn lease() -> Arc<dyn Lock> {
        let url = http::Uri::from_static("http://localhost:1");
        let client = tenure::client(kube::Config::new(url)).unwrap();
        let lock = LockKind::Leases.open(client, "ns", "life", &BTreeMap::new());
        lock.unwrap()
    }

    fn life(inner: Arc<dyn Lock>) -> ObservedLock {
        ObservedLock::new(inner, Notes::default(), Gate::open()).for_life("me", SECONDS)
    }

    /// The holder of a Lease as a candidate for life sees it.
    fn holder(lock: &ObservedLock, record: &Record) -> String {
        let time = |time: Option<WallTime>| time.and_then(rfc3339);
        let object = json!({
            "metadata": { "namespace": "ns", "name": "life", "uid": "u", "resourceVersion": "1" },
            "spec": {
                "holderIdentity": record.holder,
                "leaseDurationSeconds": record.lease_duration_seconds,
                "acquireTime": time(record.acquire_time),
                "renewTime": time(record.renew_time),
                "leaseTransitions": record.transitions,
            },
        });
        match lock.sight(0, Some(object), None) {
            Sight::Seen(seen) => seen.observation().record.holder.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_lock_for_life_is_its_own_only_as_it_was_written() {
        let lock = life(lease());
        let record = held_by("me", SECONDS, 1);
        assert_eq!(holder(&lock, &record), "", "a former process wrote it");
        // Sent and lost, for all that is known.
        let sent = lock.write(&WriteKind::Create, &record, None).await;
        assert!(sent.is_err());
        assert_eq!(holder(&lock, &record), "me");
        let edited = Record {
            transitions: 41,
            ..record
        };
        assert_eq!(holder(&lock, &edited), "", "somebody edited it");
        assert_eq!(holder(&lock, &held_by("other", SECONDS, 1)), "other");
    }

    #[tokio::test]
    async fn what_was_seen_last_is_not_forgotten_over_lost_writes() {
        let lock = life(lease());
        let life = lock.for_life.as_ref().unwrap();
        for micros in 1..5 {
            life.writes(&held_by("me", SECONDS, micros));
        }
        let last = held_by("me", SECONDS, 3);
        assert_eq!(holder(&lock, &last), "me");
        for micros in 5..50 {
            life.writes(&held_by("me", SECONDS, micros));
        }
        assert_eq!(holder(&lock, &last), "me");
        assert_eq!(holder(&lock, &held_by("me", SECONDS, 4)), "", "long ago");
    }

    #[tokio::test]
    async fn only_what_is_held_for_life_is_never_taken_over() {
        for (seconds, taken) in [(SECONDS, false), (15, true)] {
            let memory = MemoryLock::new("life");
            let other = held_by("other", seconds, 1);
            let create = memory.write(&WriteKind::Create, &other, None);
            let base = create.await.unwrap();
            let why = life(Arc::new(memory)).takes_over(Some(&base));
            assert_eq!(why.is_none(), taken, "{seconds}: {why:?}");
        }
    }

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
    async fn a_closed_gate_says_why() {
        let gate = Gate::open();
        gate.close(Some("unhealthy".into()));
        assert_eq!(gate.pass().await.err().as_deref(), Some("unhealthy"));
        gate.close(None);
        assert!(gate.pass().await.is_ok());
    }
}
