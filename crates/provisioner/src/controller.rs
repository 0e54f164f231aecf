//! What the workers of one term share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::Tenure;
use tenure_csi::{Driver, Facts};
use tenure_manager::queue::{ItemBackoff, QueueMetrics, WorkQueue, default_limiter};
use tokio::time::Instant;

use crate::capacity::Capacities;
use crate::cluster::Cluster;
use crate::events::Recorder;
use crate::informers::Caches;
use crate::local::Local;
use crate::metrics::Metrics;
use crate::objects::{Claim, CsiNode};
use crate::options::Options;
use crate::provision::Made;
use crate::state::Failure;
use crate::topology::{Memory, Nodes, Term, term_of};

/// A cache that is further behind than this is not a cache any more.
const LAG: Duration = Duration::from_secs(300);
/// Old entries are dropped when there are so many.
const REMEMBERED: usize = 1_024;

/// Uids of claims, by namespace and name of the snapshot.
pub(crate) type Restores = HashMap<(String, String), HashSet<String>>;

/// Everything that provisioning and deleting needs.
pub(crate) struct Controller {
    pub(crate) driver: Driver,
    pub(crate) facts: Facts,
    pub(crate) options: Options,
    pub(crate) cluster: Cluster,
    pub(crate) caches: Caches,
    pub(crate) queues: Queues,
    pub(crate) events: Recorder,
    pub(crate) metrics: Metrics,
    /// The right to act; nothing without an election.
    pub(crate) term: Option<Tenure>,
    /// Which run made a volume.
    pub(crate) identity: String,
    /// The node that this provisioner is for, if it is not for all.
    pub(crate) local: Option<Arc<Local>>,
    /// Keeps track of the room that is left.
    pub(crate) capacities: Option<Arc<Capacities>>,
    /// Whether claims may name a VolumeAttributesClass.
    pub(crate) attributes: bool,
    /// Claims whose volume the driver may be making, by uid: they are pursued even if they are deleted.
    pub(crate) in_progress: Mutex<HashMap<String, Arc<Claim>>>,
    /// Claims that the driver said no to, by uid: the class's uid, and until when they wait.
    pub(crate) slow: Mutex<HashMap<String, (Option<String>, Instant)>>,
    /// Claims, by uid, of which it is certain that the driver makes nothing.
    pub(crate) settled: Mutex<HashSet<String>>,
    /// What was found of the topology of a claim, by uid.
    pub(crate) memory: Mutex<HashMap<String, Memory>>,
    /// Volumes that exist but whose objects could not be posted yet, by name.
    pub(crate) unsaved: Mutex<HashMap<String, (Made, Arc<Claim>)>>,
    /// Storage that is nobody's and has to go, by handle, with what deleting it takes.
    pub(crate) orphans: Mutex<HashMap<String, BTreeMap<String, String>>>,
    /// Snapshots that claims are restored from.
    pub(crate) restores: Mutex<Restores>,
    /// Nothing new is begun any more.
    pub(crate) stopping: AtomicBool,
    /// Names of volumes that were deleted lately, whose claims may be in a cache that lags behind.
    pub(crate) deleted: Mutex<HashMap<String, Instant>>,
    pub(crate) busy: Busy,
}

/// The work to do.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    /// Claims, by uid: one that is deleted and made again is another.
    pub(crate) claims: WorkQueue<String>,
    /// Volumes, by name.
    pub(crate) volumes: WorkQueue<String>,
    /// Volumes to post, by name.
    pub(crate) unsaved: WorkQueue<String>,
    /// Deleted claims that others may be cloned from, by uid.
    pub(crate) clones: WorkQueue<String>,
    /// Storage to delete that no object stands for, by handle.
    pub(crate) orphans: WorkQueue<String>,
    /// Whether there are workers: what a standby would queue, nobody would take out.
    open: Arc<AtomicBool>,
}

impl Queues {
    pub(crate) fn new(options: &Options, metrics: &QueueMetrics) -> Self {
        let limiter = || ItemBackoff::new(options.retry_interval_start, options.retry_interval_max);
        Self {
            claims: WorkQueue::with_metrics("claims", limiter(), metrics),
            volumes: WorkQueue::with_metrics("volumes", limiter(), metrics),
            unsaved: WorkQueue::with_metrics("unsavedpvs", default_limiter(), metrics),
            clones: WorkQueue::with_metrics("clones", limiter(), metrics),
            orphans: WorkQueue::with_metrics("orphans", limiter(), metrics),
            open: Arc::default(),
        }
    }

    /// From here on there are workers; they begin with everything that is there.
    pub(crate) fn open(&self, caches: &Caches) {
        self.open.store(true, Ordering::SeqCst);
        self.add_all(caches);
    }

    pub(crate) fn are_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Everything is looked at.
    pub(crate) fn add_all(&self, caches: &Caches) {
        for uid in caches.claims.keys() {
            self.claims.add(uid.clone());
            self.clones.add(uid);
        }
        for name in caches.volumes.keys() {
            self.volumes.add(name);
        }
    }

    pub(crate) fn shut_down(&self) {
        for queue in [
            &self.claims,
            &self.volumes,
            &self.unsaved,
            &self.clones,
            &self.orphans,
        ] {
            queue.shut_down();
        }
    }
}

impl Controller {
    /// Whether what is left in the queues is somebody else's.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether we may act, asked right before every effect on the driver.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &self.term {
            Some(term) => term
                .check()
                .map_err(|error| Failure::no_change(error.to_string())),
            None => Ok(()),
        }
    }

    /// The fencing token, for logs.
    pub(crate) fn token(&self) -> &str {
        self.term.as_ref().map_or("", |term| term.token().as_str())
    }

    /// Whether volumes of this driver are not reachable from everywhere, and we mind.
    pub(crate) fn topology(&self) -> bool {
        self.options.topology && self.facts.topology()
    }

    /// Remembers that a volume was deleted, for as long as a cache may lag.
    pub(crate) fn note_deleted(&self, name: &str) {
        let now = Instant::now();
        let mut deleted = lock(&self.deleted);
        if deleted.len() >= REMEMBERED {
            deleted.retain(|_, at| now.duration_since(*at) < LAG);
        }
        deleted.insert(name.to_owned(), now);
    }

    pub(crate) fn progress(&self) -> MutexGuard<'_, HashMap<String, Arc<Claim>>> {
        lock(&self.in_progress)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The nodes as the caches show them.
impl Nodes for Controller {
    fn keys_of(&self, node: &str) -> Option<Vec<String>> {
        if let Some(local) = &self.local {
            let keys = local.segments.keys().cloned().collect();
            return (local.options.node == node).then_some(keys);
        }
        let csi_node = self.caches.csi_nodes.get(node)?;
        Some(keys(&csi_node, &self.facts.name).unwrap_or_default())
    }

    fn any_keys(&self) -> Option<Vec<String>> {
        if let Some(local) = &self.local {
            let keys: Vec<_> = local.segments.keys().cloned().collect();
            return (!keys.is_empty()).then_some(keys);
        }
        // The first by name: which one must not depend on the order of a map.
        let nodes = self.caches.csi_nodes.all();
        let with_keys = nodes.iter().filter_map(|node| {
            let keys = keys(node, &self.facts.name).filter(|keys| !keys.is_empty())?;
            Some((node.metadata.name.clone(), keys))
        });
        with_keys.min().map(|(_, keys)| keys)
    }

    fn labels_of(&self, node: &str) -> Option<BTreeMap<String, String>> {
        if let Some(local) = &self.local {
            return (local.options.node == node).then(|| local.segments.clone());
        }
        let node = self.caches.nodes.get(node)?;
        Some(node.metadata.labels.clone().unwrap_or_default())
    }

    fn terms(&self, keys: &[String]) -> Vec<Term> {
        if let Some(local) = &self.local {
            return term_of(&local.segments, keys).into_iter().collect();
        }
        let nodes = self.caches.nodes.all();
        let labels = nodes
            .iter()
            .filter_map(|node| node.metadata.labels.as_ref());
        labels.filter_map(|labels| term_of(labels, keys)).collect()
    }
}

pub(crate) fn keys(node: &CsiNode, driver: &str) -> Option<Vec<String>> {
    let driver = node.spec.drivers.iter().find(|d| d.name == driver)?;
    Some(driver.topology_keys.clone())
}

/// One at a time per volume name: making and deleting a volume must not overtake each other.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Busy {
    /// Waits until nobody else is at work on this name.
    pub(crate) async fn with<T>(&self, name: &str, work: impl Future<Output = T>) -> T {
        let mutex = lock(&self.locks)
            .entry(name.to_owned())
            .or_default()
            .clone();
        let result = {
            let _held = mutex.lock().await;
            work.await
        };
        let mut locks = lock(&self.locks);
        // Ours and the map's: nobody waits.
        if Arc::strong_count(&mutex) == 2 {
            locks.remove(name);
        }
        result
    }
}
