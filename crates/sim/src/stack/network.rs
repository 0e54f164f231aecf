//! What is between a driver and its lock: delay, loss, cuts in either direction, and requests that
//! are carried out long after the driver has given them up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tenure::MemoryLock;
use tenure_core::{Record, WriteKind};
use tenure_lock::{BoxFuture, Error, Lock, ObjectRef, Precision, Sight, Sighting, Watch};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::rng::Rng;

/// One node's connection.
#[derive(Debug)]
pub(super) struct Net {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    requests_cut_until: Instant,
    answers_cut_until: Instant,
    /// The work of the present term goes on.
    working: bool,
    early_releases: u64,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Served,
    Lost,
    AnswerLost,
    /// Carried out this much later, and never answered.
    Late(Duration),
}

impl Net {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            state: Mutex::new(State {
                rng: Rng::new(seed),
                requests_cut_until: now,
                answers_cut_until: now,
                working: false,
                early_releases: 0,
            }),
        })
    }

    /// Loses requests, answers, or both for a while.
    pub(super) fn cut(&self, requests: Duration, answers: Duration) {
        let now = Instant::now();
        let mut state = self.state();
        state.requests_cut_until = state.requests_cut_until.max(now + requests);
        state.answers_cut_until = state.answers_cut_until.max(now + answers);
    }

    pub(super) fn works(&self, working: bool) {
        self.state().working = working;
    }

    pub(super) fn early_releases(&self) -> u64 {
        self.state().early_releases
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one_way(&self) -> Duration {
        Duration::from_micros(self.state().rng.range(500, 30_000))
    }

    fn fate(&self) -> Fate {
        let mut state = self.state();
        if state.requests_cut_until > Instant::now() {
            return Fate::Lost;
        }
        match state.rng.below(40) {
            0 => Fate::Lost,
            1 => Fate::AnswerLost,
            2 => Fate::Late(Duration::from_millis(state.rng.range(100, 30_000))),
            _ => Fate::Served,
        }
    }

    fn answers_pass(&self) -> bool {
        self.state().answers_cut_until <= Instant::now()
    }
}

/// A lock at the far end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Link {
    lock: MemoryLock,
    net: Arc<Net>,
    shown: watch::Receiver<Option<Sighting>>,
}

impl Link {
    /// Connects; the watch is carried by a task of its own until `net` is dropped elsewhere.
    pub(super) fn new(lock: &MemoryLock, net: &Arc<Net>) -> Self {
        let Watch::Local(mut changes) = lock.watch() else {
            unreachable!("a memory lock lives in this process");
        };
        let (show, shown) = watch::channel(None);
        let carrier = Arc::downgrade(net);
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let Some(net) = carrier.upgrade() else { break };
                let delay = net.one_way();
                let passes = net.answers_pass();
                drop(net);
                pause(delay).await;
                // What a cut swallows comes with the next change, as after a new list.
                if passes {
                    show.send_replace(changes.borrow_and_update().clone());
                }
            }
        });
        Self {
            lock: lock.clone(),
            net: net.clone(),
            shown,
        }
    }

    /// The way to the server; never returns if the request gets lost on it.
    async fn go(&self) -> Fate {
        let fate = self.net.fate();
        pause(self.net.one_way()).await;
        if fate == Fate::Lost {
            std::future::pending::<()>().await;
        }
        fate
    }

    /// The way back; never returns if the answer gets lost on it.
    async fn come_back(&self, fate: Fate) {
        if fate != Fate::Served || !self.net.answers_pass() {
            std::future::pending::<()>().await;
        }
        pause(self.net.one_way()).await;
    }
}

impl Lock for Link {
    fn describe(&self) -> &str {
        self.lock.describe()
    }

    fn precision(&self) -> Precision {
        self.lock.precision()
    }

    fn read(&self) -> BoxFuture<'_, Result<Option<Sighting>, Error>> {
        Box::pin(async move {
            let fate = self.go().await;
            let answer = self.lock.read().await;
            self.come_back(fate).await;
            answer
        })
    }

    fn write<'a>(
        &'a self,
        kind: &'a WriteKind,
        record: &'a Record,
        base: Option<&'a Sighting>,
    ) -> BoxFuture<'a, Result<Sighting, Error>> {
        if matches!(kind, WriteKind::Release(_)) {
            // S4, as the release leaves.
            let mut state = self.net.state();
            state.early_releases += u64::from(state.working);
        }
        Box::pin(async move {
            let fate = self.go().await;
            if let Fate::Late(delay) = fate {
                let (lock, kind, record) = (self.lock.clone(), kind.clone(), record.clone());
                let base = base.cloned();
                tokio::spawn(async move {
                    pause(delay).await;
                    // Nobody waits for the answer.
                    let _ = lock.write(&kind, &record, base.as_ref()).await;
                });
                return std::future::pending().await;
            }
            let answer = self.lock.write(kind, record, base).await;
            self.come_back(fate).await;
            answer
        })
    }

    fn watch(&self) -> Watch {
        Watch::Local(self.shown.clone())
    }

    fn sight(&self, target: usize, object: Option<Value>, last: Option<&Sighting>) -> Sight {
        self.lock.sight(target, object, last)
    }

    fn references(&self, sighting: Option<&Sighting>) -> Vec<ObjectRef> {
        self.lock.references(sighting)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "tokio's time is the simulated time here"
)]
pub(super) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}
