//! State that the workers of one term share.

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
use crate::ledger::Ledger;
use crate::local::Local;
use crate::metrics::Metrics;
use crate::objects::{Claim, CsiNode};
use crate::options::Options;
use crate::provision::Made;
use crate::state::Failure;
use crate::topology::{Nodes, Term, term_of};

/// The longest lag of a cache that is tolerated.
const LAG: Duration = Duration::from_secs(300);
/// Number of entries above which old ones are dropped.
const REMEMBERED: usize = 1_024;

/// Uids of claims, by namespace and name of their snapshot.
pub(crate) type Restores = HashMap<(String, String), HashSet<String>>;

/// State and clients for provisioning and deletion.
pub(crate) struct Controller {
    pub(crate) driver: Driver,
    pub(crate) facts: Facts,
    pub(crate) options: Options,
    pub(crate) cluster: Cluster,
    pub(crate) caches: Caches,
    pub(crate) queues: Queues,
    pub(crate) events: Recorder,
    pub(crate) metrics: Metrics,
    /// The current term; `None` without an election.
    pub(crate) term: Option<Tenure>,
    /// Identity of this run, recorded in each volume it creates.
    pub(crate) identity: String,
    /// The node of this provisioner, with `--node-deployment`.
    pub(crate) local: Option<Arc<Local>>,
    /// Publishes free capacity, with `--enable-capacity`.
    pub(crate) capacities: Option<Arc<Capacities>>,
    /// Whether claims may name a VolumeAttributesClass.
    pub(crate) attributes: bool,
    pub(crate) ledger: Ledger,
    /// Volumes that exist but whose objects could not be posted yet, by name.
    pub(crate) unsaved: Mutex<HashMap<String, (Made, Arc<Claim>)>>,
    /// Orphaned storage that must be deleted, by handle, with the secrets for its deletion.
    pub(crate) orphans: Mutex<HashMap<String, BTreeMap<String, String>>>,
    /// Snapshots from which claims are being restored.
    pub(crate) restores: Mutex<Restores>,
    /// Set when no new work may begin.
    pub(crate) stopping: AtomicBool,
    /// Names of recently deleted volumes, whose claims may still be in a lagging cache.
    pub(crate) deleted: Mutex<HashMap<String, Instant>>,
    pub(crate) busy: Busy,
}

/// Work queues.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    /// Claims, by uid, because a re-created claim is another claim.
    pub(crate) claims: WorkQueue<String>,
    /// Volumes, by name.
    pub(crate) volumes: WorkQueue<String>,
    /// Volume objects to post, by name.
    pub(crate) unsaved: WorkQueue<String>,
    /// Deleted claims that may be the source of a clone, by uid.
    pub(crate) clones: WorkQueue<String>,
    /// Orphaned storage to delete, by handle.
    pub(crate) orphans: WorkQueue<String>,
    /// Whether workers run. A standby has none, so it must not fill the queues.
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

    /// Opens the queues for the workers and adds every cached object.
    pub(crate) fn open(&self, caches: &Caches) {
        self.open.store(true, Ordering::SeqCst);
        self.add_all(caches);
    }

    pub(crate) fn are_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Queues every cached object.
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
    /// Returns whether queued work is left to the next leader.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Checks that the term is still valid. Called immediately before every call that changes storage.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &self.term {
            Some(term) => term
                .check()
                .map_err(|error| Failure::no_change(error.to_string())),
            None => Ok(()),
        }
    }

    /// Returns the fencing token for log lines.
    pub(crate) fn token(&self) -> &str {
        self.term.as_ref().map_or("", |term| term.token().as_str())
    }

    /// Returns whether topology is enabled and the driver supports it.
    pub(crate) fn topology(&self) -> bool {
        self.options.topology && self.facts.topology()
    }

    /// Records that a volume was deleted, for as long as a cache may lag.
    pub(crate) fn note_deleted(&self, name: &str) {
        let now = Instant::now();
        let mut deleted = lock(&self.deleted);
        if deleted.len() >= REMEMBERED {
            deleted.retain(|_, at| now.duration_since(*at) < LAG);
        }
        deleted.insert(name.to_owned(), now);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads nodes from the caches.
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
        // The first node by name, so that the choice does not depend on map order.
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

/// Serialises work per volume name, so that creation and deletion of a volume never run concurrently.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Busy {
    /// Runs `work` while no other work on this name runs.
    pub(crate) async fn run_exclusive<T>(&self, name: &str, work: impl Future<Output = T>) -> T {
        let mutex = lock(&self.locks)
            .entry(name.to_owned())
            .or_default()
            .clone();
        let result = {
            let _held = mutex.lock().await;
            work.await
        };
        let mut locks = lock(&self.locks);
        // One reference is ours and one is the map's, so no other task waits.
        if Arc::strong_count(&mutex) == 2 {
            locks.remove(name);
        }
        result
    }
}
