//! Storage: binds claims and volumes, and protects both while they are in use.
//!
//! | file | controller |
//! |---|---|
//! | `claims`, `volumes` | `persistentvolume-binder` |
//! | `protection` | `pvc-protection`, `pv-protection` |
//! | `first_consumer` | `first-consumer` |
//!
//! The controllers share one cache of the cluster ([`world`], updated by [`feed`]) and one queue. The cache only
//! decides what to examine. Every write contains the resource version on which it was decided. Irreversible decisions
//! (a claim is lost, a volume is released, a finalizer is removed) are based on a fresh read.

mod choices;
mod claims;
mod feed;
mod first_consumer;
mod matching;
mod names;
mod nodes;
mod objects;
mod protection;
mod volumes;
mod world;
mod write;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use tenure_manager::{Backoff, Cause, Runnable, Scope};

use crate::collector::all_there;
use crate::work::Work;
use world::{Name, World};
use write::Writer;

/// Number of objects that are processed concurrently.
const WORKERS: usize = 32;

/// The controllers that run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Which {
    pub(crate) binder: bool,
    pub(crate) claim_protection: bool,
    pub(crate) volume_protection: bool,
    pub(crate) first_consumer: bool,
}

impl Which {
    pub(crate) fn any(self) -> bool {
        self.binder || self.claim_protection || self.volume_protection || self.first_consumer
    }
}

/// One item to process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Bind a claim.
    Claim(Name),
    /// Set the phase of a volume.
    Volume(Name),
    /// Add or remove the protection of a claim.
    ClaimProtection(Name),
    /// Add or remove the protection of a volume.
    VolumeProtection(Name),
    /// Select a node for the claims of a pod.
    Pod(Name),
}

/// Returns the controllers as one leader controller.
pub(crate) fn runnable(client: Client, which: Which) -> Runnable {
    Runnable::new("storage", move |scope| {
        let storage = Storage::new(client.clone(), which);
        async move { storage.run(scope).await }
    })
    .restart(Backoff::default())
}

struct Storage {
    which: Which,
    world: World,
    queue: Work<Key>,
    write: Writer,
}

impl Storage {
    fn new(client: Client, which: Which) -> Self {
        let world = World::default();
        Self {
            which,
            queue: Work::new("storage"),
            write: Writer::new(client, world.clone()),
            world,
        }
    }

    /// Runs everything in this task, so that nothing of the term runs after it ends or is dropped.
    async fn run(self, scope: Scope) -> Result<(), Cause> {
        let (feeds, mut synced) = self.feeds();
        let mut feeds: FuturesUnordered<_> = feeds.into_iter().collect();
        let mut workers = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = scope.cancelled() => return Ok(()),
                Some(()) = feeds.next(), if !feeds.is_empty() => {}
                // Missing objects are known only after all kinds were listed.
                () = all_there(&mut synced), if workers.is_empty() => {
                    workers.extend((0..WORKERS).map(|_| self.work(&scope)));
                }
                Some(()) = workers.next(), if !workers.is_empty() => {}
            }
        }
    }

    async fn work(&self, scope: &Scope) {
        while let Some(key) = self.queue.next(scope).await {
            let done = self.look_at(&key).await;
            self.queue.done(&key, done);
        }
    }

    async fn look_at(&self, key: &Key) -> Result<(), kube::Error> {
        let looked = match key {
            Key::Claim(name) => self.claim(name).await,
            Key::Volume(name) => self.volume(name).await,
            Key::ClaimProtection(name) => self.protect_claim(name).await,
            Key::VolumeProtection(name) => self.protect_volume(name).await,
            Key::Pod(name) => self.pod(name).await,
        };
        match looked {
            // The object is gone, and its watch reports that too.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            looked => looked,
        }
    }
}
