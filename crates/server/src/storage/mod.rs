//! Storage: claims and volumes find each other, and neither goes while it is in use.
//!
//! | file | controller |
//! |---|---|
//! | `claims`, `volumes` | `persistentvolume-binder` |
//! | `protection` | `pvc-protection`, `pv-protection` |
//! | `first_consumer` | `first-consumer` |
//!
//! They share one picture of the cluster ([`world`], kept up to date by [`feed`]) and one queue. The picture only
//! says what to look at: every write carries the resource version it was decided on, and what cannot be
//! taken back (a claim is lost, a volume is released, a finalizer goes) is decided on a fresh answer.

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

/// How many objects are worked on at a time.
const WORKERS: usize = 32;

/// Which of the controllers run.
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

/// One thing to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Bind a claim.
    Claim(Name),
    /// Give a volume its phase.
    Volume(Name),
    /// Protect a claim, or let it go.
    ClaimProtection(Name),
    /// The same for a volume.
    VolumeProtection(Name),
    /// Choose a node for the claims of a pod.
    Pod(Name),
}

/// The controllers as one leader controller.
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

    /// All in this task: when it ends, or is dropped, nothing of the term runs any more.
    async fn run(self, scope: Scope) -> Result<(), Cause> {
        let (feeds, mut synced) = self.feeds();
        let mut feeds: FuturesUnordered<_> = feeds.into_iter().collect();
        let mut workers = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = scope.cancelled() => return Ok(()),
                Some(()) = feeds.next(), if !feeds.is_empty() => {}
                // What is missing is known only when all is there.
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
            // It is gone, and its watch says so too.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            looked => looked,
        }
    }
}
