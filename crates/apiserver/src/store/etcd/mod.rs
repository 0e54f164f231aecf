//! The etcd engine: several servers share one etcd, each with an in-memory mirror.
//!
//! Reads, lists and watches are served from the mirror. One watch of etcd and the responses to our own writes feed it
//! in revision order. A write is one transaction, which succeeds only if the object, and the lease of a fence, still
//! have the revisions that were read. The revision of a version is etcd's.
//!
//! The mirror may lag behind a write that another server acknowledged. The transaction checks every decision to
//! *accept* a write. Before a *rejection*, and for every read that must be current, the server asks etcd for its
//! revision and waits for the mirror ([`Store::fresh`](super::Store::fresh)).

mod client;
mod config;
mod format;
mod link;
mod mirror;
mod own;
mod rotate;
mod wire;
mod write;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::client::{ANSWER, CallError, Client};
pub use self::config::{EtcdConfig, EtcdError};
use self::format::{Layout, decode_other, encode_other};
use self::mirror::{Mirror, signed, unsigned};
use self::own::Own;
use self::wire::{Compare, Operation, PutRequest, RangeRequest, RequestOp, TxnRequest};
use super::encryption::Encryption;
use super::engine::Engine;
use super::mvcc::Mvcc;
use super::{BoxFuture, Object, Unavailable, Write, WriteError};

/// Time without progress after which opening fails.
const OPEN: Duration = Duration::from_secs(15);
/// Time without watch events after which a write of the nudge key advances the mirror. Other users of the same etcd
/// raise its revision without events below our prefix.
const NUDGE: Duration = Duration::from_millis(50);
/// Maximum number of concurrent writes.
const WRITES: usize = 4096;

/// A store in etcd, shared with every other server that uses the same prefix.
#[derive(Debug)]
pub struct EtcdStore {
    shared: Arc<Shared>,
    /// Aborted when the store closes.
    tasks: std::sync::Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    client: Arc<Client>,
    mvcc: Arc<Mvcc>,
    own: Arc<Own>,
    layout: Layout,
    encryption: Encryption,
    /// Requests for the current revision of etcd.
    asks: mpsc::UnboundedSender<Ask>,
    /// Held during a write of the nudge key.
    nudging: Mutex<()>,
    places: Semaphore,
}

type Ask = oneshot::Sender<Result<u64, CallError>>;

impl EtcdStore {
    /// Connects and reads everything. Spawns tasks on the current tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the configuration is invalid, no member answers, or there is a foreign value below the
    /// prefix.
    pub async fn open(config: EtcdConfig) -> Result<Self, EtcdError> {
        let (endpoints, tls) = config::members(&config)?;
        let layout = Layout::new(&config.prefix);
        let client = Arc::new(Client::new(endpoints, tls, layout.nudge()));
        let mvcc = Arc::new(Mvcc::new(config.retention, 0));
        let own = Arc::<Own>::default();
        let encryption = config.encryption;
        let mirror = Mirror::new(&client, &mvcc, &own, layout.clone(), encryption.clone());
        let (asks, asked) = mpsc::unbounded_channel();
        let mut loaded = mirror.loaded();
        let shared = Arc::new(Shared {
            client,
            mvcc,
            own,
            layout,
            encryption,
            asks,
            nudging: Mutex::default(),
            places: Semaphore::new(WRITES),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(mirror.run());
        tasks.spawn(answer(Arc::clone(&shared.client), asked));
        if let Some(age) = config.compaction {
            tasks.spawn(compact(Arc::clone(&shared), age));
        }
        let store = Self {
            shared,
            tasks: tasks.into(),
        };
        loop {
            let progress = loaded.borrow_and_update().clone();
            if progress.whole {
                break;
            }
            if let Some(what) = progress.locked {
                return Err(EtcdError::Locked(what));
            }
            if let Ok(Ok(())) = timeout(OPEN, loaded.changed()).await {
                continue;
            }
            let why = store.shared.client.trouble();
            let why = why.unwrap_or_else(|| "no answer in time".to_owned());
            return Err(EtcdError::Unusable(why));
        }
        Ok(store)
    }

    /// Returns the value that the first server with this prefix stored under a name. Stores `mine` if there is none.
    ///
    /// # Errors
    /// Returns an error if etcd cannot be reached or the outcome is unknown.
    pub async fn agree(&self, name: &str, mine: Vec<u8>) -> Result<Vec<u8>, EtcdError> {
        let unusable = |error: CallError| EtcdError::Unusable(error.reason());
        let Shared {
            client,
            layout,
            encryption,
            ..
        } = &*self.shared;
        let name = format!("agreed/{name}");
        let key = layout.other(&name);
        let mine = encode_other(&name, &mine, encryption)
            .map_err(|error| EtcdError::Unusable(error.to_string()))?;
        let propose = TxnRequest {
            compare: vec![Compare::last_changed(key.clone(), 0)],
            success: vec![RequestOp {
                request: Some(Operation::Put(PutRequest {
                    key: key.clone(),
                    value: mine,
                })),
            }],
        };
        client.txn(propose).await.map_err(unusable)?;
        let request = RangeRequest {
            key,
            ..RangeRequest::default()
        };
        let found = client.range(request).await.map_err(unusable)?;
        let absent = || EtcdError::Unusable(format!("it did not store {name}"));
        let found = found.kvs.first().ok_or_else(absent)?;
        Ok(decode_other(&name, &found.value, encryption)?.1)
    }

    /// Ends all watches and closes the connection to etcd.
    pub fn close(&self) {
        let tasks = self.tasks.lock();
        tasks.unwrap_or_else(PoisonError::into_inner).abort_all();
        self.shared.client.down("the store is closed".to_owned());
        self.shared.mvcc.close();
    }
}

impl Shared {
    /// Waits until the mirror contains every write that etcd acknowledged before this call.
    async fn fresh(&self) -> Result<(), CallError> {
        let (ask, answer) = oneshot::channel();
        let gone = || CallError::NotSent("the store is closing".to_owned());
        self.asks.send(ask).map_err(|_| gone())?;
        let revision = answer.await.map_err(|_| gone())??;
        self.reach(revision).await
    }

    /// Waits until the mirror reaches a revision, with a write of the nudge key if the watch is quiet.
    async fn reach(&self, revision: u64) -> Result<(), CallError> {
        let reached = async {
            while timeout(NUDGE, self.mvcc.reached(revision)).await.is_err() {
                let _one = self.nudging.lock().await;
                if self.mvcc.revision() < revision {
                    let key = self.layout.nudge();
                    let value = Bytes::new();
                    // After a failure the next iteration retries.
                    let _ = self.client.put(PutRequest { key, value }).await;
                    let _ = timeout(NUDGE, self.mvcc.reached(revision)).await;
                }
            }
        };
        self.behind(timeout(ANSWER, reached).await.is_ok())
    }

    /// Waits until the mirror contains an own write.
    async fn await_own_write(&self, revision: u64) -> Result<(), CallError> {
        // The revision is usually the next one, which needs no timer.
        let reached = self.mvcc.revision() >= revision
            || timeout(ANSWER, self.mvcc.reached(revision)).await.is_ok();
        self.behind(reached)
    }

    fn behind(&self, reached: bool) -> Result<(), CallError> {
        if reached {
            return Ok(());
        }
        let why = self.client.trouble();
        let why = why.unwrap_or_else(|| "its watch delivers no events".to_owned());
        Err(CallError::NotSent(why))
    }
}

/// Reads the revision of etcd once for all requests that arrived since the last read.
async fn answer(client: Arc<Client>, mut asks: mpsc::UnboundedReceiver<Ask>) {
    while let Some(first) = asks.recv().await {
        let mut waiting = vec![first];
        while let Ok(next) = asks.try_recv() {
            waiting.push(next);
        }
        let answer = client.revision().await.map(unsigned);
        for ask in waiting {
            // The requester may have given up.
            let _ = ask.send(answer.clone());
        }
    }
}

/// Compacts history older than `age` periodically.
async fn compact(shared: Arc<Shared>, age: Duration) {
    let mut old = shared.mvcc.revision();
    loop {
        tokio::time::sleep(age).await;
        if old > 0
            && let Err(error) = shared.client.compact(signed(old)).await
        {
            let error = error.reason();
            tracing::warn!(error, revision = old, "history of etcd was not compacted");
        }
        old = shared.mvcc.revision();
    }
}

impl Engine for EtcdStore {
    fn mvcc(&self) -> &Arc<Mvcc> {
        &self.shared.mvcc
    }

    fn put(&self, write: Write) -> BoxFuture<'_, Result<Arc<Object>, WriteError>> {
        Box::pin(self.shared.write(write))
    }

    fn raise(&self, _by: u64) -> BoxFuture<'_, Result<u64, WriteError>> {
        let why = "the revision of etcd grows by writes only";
        Box::pin(async move { Err(WriteError::Invalid(why.to_owned())) })
    }

    fn trouble(&self) -> Option<String> {
        let why = self.shared.client.trouble();
        why.map(|why| format!("etcd cannot be reached: {why}"))
    }

    fn has_other_writers(&self) -> bool {
        true
    }

    fn catch_up(&self) -> BoxFuture<'_, Result<(), Unavailable>> {
        Box::pin(async move {
            let fresh = self.shared.fresh().await;
            fresh.map_err(|error| Unavailable(error.reason()))
        })
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.close();
    }
}
