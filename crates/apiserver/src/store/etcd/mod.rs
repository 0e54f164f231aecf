//! Etcd as the store: several servers share one, each with a mirror of it in memory.
//!
//! Reads, lists and watches come from the mirror, which one watch of etcd feeds in the order of its
//! revisions, together with the answers to our own writes. A write is one transaction: it happens only if the object, and the lease of a fence, are
//! still at the revisions that were looked at. The revision of a version is etcd's.
//!
//! The mirror may be behind what another server has acknowledged. What is only *accepted* on the strength
//! of it is checked by the transaction; what is *refused* is refused after asking etcd how far it is and
//! waiting for the mirror to get there ([`Store::fresh`](super::Store::fresh)), and so is every read that
//! has to be up to date.

mod client;
mod config;
mod format;
mod link;
mod mirror;
mod own;
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
use self::format::Layout;
use self::mirror::{Mirror, signed, unsigned};
use self::own::Own;
use self::wire::{Compare, Operation, PutRequest, RangeRequest, RequestOp, TxnRequest};
use super::mvcc::Mvcc;
use super::published::Published;
use super::{BoxFuture, Object, Unavailable, Write, WriteError};

/// How long opening may go without progress.
const OPEN: Duration = Duration::from_secs(15);
/// After so long without news, a write of our own makes some: others may use the same etcd, and their
/// revisions do not show in our part of it.
const NUDGE: Duration = Duration::from_millis(50);
/// So many writes are under way at once.
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
    /// Those who want to know how far etcd is.
    asks: mpsc::UnboundedSender<Ask>,
    /// Held by who makes news.
    nudging: Mutex<()>,
    places: Semaphore,
}

type Ask = oneshot::Sender<Result<u64, CallError>>;

impl EtcdStore {
    /// Connects, and reads everything. Needs a running tokio runtime, which it goes on using.
    ///
    /// # Errors
    /// The configuration does not make sense, no member answers, or there is something below the prefix
    /// that this server does not understand.
    pub async fn open(config: EtcdConfig) -> Result<Self, EtcdError> {
        let (endpoints, tls) = config::members(&config)?;
        let layout = Layout::new(&config.prefix);
        let client = Arc::new(Client::new(endpoints, tls, layout.nudge()));
        let mvcc = Arc::new(Mvcc::new(config.retention, 0));
        let own = Arc::<Own>::default();
        let mirror = Mirror::new(&client, &mvcc, &own, layout.clone());
        let (asks, asked) = mpsc::unbounded_channel();
        let mut loaded = mirror.loaded();
        let shared = Arc::new(Shared {
            client,
            mvcc,
            own,
            layout,
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
        while !loaded.borrow_and_update().whole {
            if let Ok(Ok(())) = timeout(OPEN, loaded.changed()).await {
                continue;
            }
            let why = store.shared.client.trouble();
            let why = why.unwrap_or_else(|| "no answer in time".to_owned());
            return Err(EtcdError::Unusable(why));
        }
        Ok(store)
    }

    /// What the first of all servers with this prefix proposed under a name; `mine` if that is this one.
    ///
    /// # Errors
    /// Etcd cannot be reached, or does not say.
    pub async fn agree(&self, name: &str, mine: Vec<u8>) -> Result<Vec<u8>, EtcdError> {
        let unusable = |error: CallError| EtcdError::Unusable(error.reason());
        let Shared { client, layout, .. } = &*self.shared;
        let key = layout.other(&format!("agreed/{name}"));
        let propose = TxnRequest {
            compare: vec![Compare::last_changed(key.clone(), 0)],
            success: vec![RequestOp {
                request: Some(Operation::Put(PutRequest {
                    key: key.clone(),
                    value: mine.into(),
                })),
            }],
        };
        client.txn(propose).await.map_err(unusable)?;
        let request = RangeRequest {
            key,
            ..RangeRequest::default()
        };
        let found = client.range(request).await.map_err(unusable)?;
        let value = found.kvs.first().map(|kv| kv.value.to_vec());
        value.ok_or_else(|| EtcdError::Unusable(format!("it keeps no {name}")))
    }

    /// Ends all watches and leaves etcd alone from now on.
    pub fn close(&self) {
        let tasks = self.tasks.lock();
        tasks.unwrap_or_else(PoisonError::into_inner).abort_all();
        self.shared.client.down("the store is closed".to_owned());
        self.shared.mvcc.close();
    }
}

impl Shared {
    /// Waits until everything that etcd acknowledged before this call is in the mirror.
    async fn fresh(&self) -> Result<(), CallError> {
        let (ask, answer) = oneshot::channel();
        let gone = || CallError::NotSent("the store is closing".to_owned());
        self.asks.send(ask).map_err(|_| gone())?;
        let revision = answer.await.map_err(|_| gone())??;
        self.reach(revision).await
    }

    /// Waits for the mirror, and makes news if there is none.
    async fn reach(&self, revision: u64) -> Result<(), CallError> {
        let reached = async {
            while timeout(NUDGE, self.mvcc.reached(revision)).await.is_err() {
                let _one = self.nudging.lock().await;
                if self.mvcc.revision() < revision {
                    let key = self.layout.nudge();
                    let value = Bytes::new();
                    // If it fails, the pause is not over, and the next round tries again.
                    let _ = self.client.put(PutRequest { key, value }).await;
                    let _ = timeout(NUDGE, self.mvcc.reached(revision)).await;
                }
            }
        };
        self.behind(timeout(ANSWER, reached).await.is_ok())
    }

    /// Waits for the mirror to show a write of our own.
    async fn settle(&self, revision: u64) -> Result<(), CallError> {
        // It mostly is the next after what is there, and then there is nothing to set a timer for.
        let reached = self.mvcc.revision() >= revision
            || timeout(ANSWER, self.mvcc.reached(revision)).await.is_ok();
        self.behind(reached)
    }

    fn behind(&self, reached: bool) -> Result<(), CallError> {
        if reached {
            return Ok(());
        }
        let why = self.client.trouble();
        let why = why.unwrap_or_else(|| "its watch brings no news".to_owned());
        Err(CallError::NotSent(why))
    }
}

/// Answers how far etcd is, all who asked since the last time at once.
async fn answer(client: Arc<Client>, mut asks: mpsc::UnboundedReceiver<Ask>) {
    while let Some(first) = asks.recv().await {
        let mut waiting = vec![first];
        while let Ok(next) = asks.try_recv() {
            waiting.push(next);
        }
        let answer = client.revision().await.map(unsigned);
        for ask in waiting {
            // Who does not wait any more need not know.
            let _ = ask.send(answer.clone());
        }
    }
}

/// Lets etcd forget what is older than `age`.
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

impl Published for EtcdStore {
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
