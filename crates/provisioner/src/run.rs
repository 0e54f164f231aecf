//! Starts a provisioner from its options, and shuts it down.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::{Client, Config};
use prometheus_client::registry::Registry;
use tenure::{Elector, Ended, HealthAdaptor, StopReason, Tenure};
use tenure_csi::{ConnectError, ControllerCapability, Driver, StartError};
use tenure_manager::queue::{ItemBackoff, QueueMetrics, WorkQueue};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::capacity::{self, Capacities};
use crate::claims::{RESYNC, savers};
use crate::cluster::{Cluster, Pace};
use crate::controller::{Busy, Controller, Queues};
use crate::events::Recorder;
use crate::informers::{Caches, Needs};
use crate::local::Local;
use crate::metrics::{CapacityMetrics, Metrics};
use crate::migration;
use crate::names;
use crate::options::{Election, Options};
use crate::serve::{self, Site, TOLERANCE};

/// Time to post volume objects after the driver is gone.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// User agent in requests and audit logs.
const USER_AGENT: &str = concat!("tenure-provisioner/", env!("CARGO_PKG_VERSION"));

/// Error that ends a provisioner.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No connection to the driver.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The driver cannot be used.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The driver went away. The driver of another replica may still run.
    #[error("lost connection to CSI driver, exiting")]
    LostDriver,
    /// No client for the API server.
    #[error("client for the API server: {0}")]
    Client(#[source] Box<kube::Error>),
    /// The HTTP server cannot listen.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The election cannot be configured.
    #[error("leader election: {0}")]
    Election(#[source] Box<tenure::BuildError>),
    /// Another process may lead now, so this one must end.
    #[error("leader election lost: {0}")]
    LostLease(&'static str),
    /// Capacity cannot be published.
    #[error("--enable-capacity: {0}")]
    Capacity(String),
    /// A worker panicked.
    #[error("a worker panicked")]
    Panicked,
}

/// Runs a provisioner until `shutdown` completes. Then finishes calls in flight and releases the lock.
///
/// # Errors
/// Returns the reason for which the provisioner cannot continue. The process should exit with a non-zero code.
pub async fn run(options: Options, config: Config, shutdown: impl Future) -> Result<(), RunError> {
    let csi_metrics = tenure_csi::Metrics::default();
    let mut csi = tenure_csi::Config::new(options.csi_address.clone());
    csi.timeout = options.timeout;
    let mut shutdown = std::pin::pin!(shutdown);
    let start = async {
        let driver = Driver::connect(&csi, &csi_metrics).await?;
        driver.ready().await?;
        let facts = driver.facts().await?;
        Ok::<_, RunError>((driver, facts))
    };
    let (driver, facts) = tokio::select! {
        started = start => started?,
        _ = &mut shutdown => return Ok(()),
    };
    tracing::info!(driver = facts.name, version = facts.version, "connected");
    if let Some(plugin) = migration::replaced_by(&facts.name) {
        let plugin = plugin.in_tree_name();
        csi_metrics.label_migrated();
        tracing::info!(plugin, "translating objects of the in-tree plugin");
    }

    let client_error = |error| RunError::Client(Box::new(error));
    // Hundreds of small requests a second share one HTTP/2 connection instead of opening thirty.
    let client = tenure::work_client_http2(config.clone(), USER_AGENT).map_err(client_error)?;
    let lock_client = tenure::client(config).map_err(client_error)?;
    let node = options.node_deployment.clone();
    let local = match node {
        None => None,
        Some(node) => {
            let method = "/csi.v1.Node/NodeGetInfo";
            let info = driver.node_info().await;
            let info = info.map_err(|source| StartError::Call { method, source })?;
            let segments = info.accessible_topology.unwrap_or_default().segments;
            tracing::info!(node = node.node, ?segments, "provisioning for one node");
            Some(Arc::new(Local::new(node, segments)))
        }
    };
    let attributes = knows_attributes(&client, options.volume_attributes_class).await;
    let queue_metrics = QueueMetrics::new();
    let capacity_metrics = CapacityMetrics::default();
    let capacity_queue = WorkQueue::with_metrics(
        "csistoragecapacity",
        ItemBackoff::new(options.retry_interval_start, options.retry_interval_max),
        &queue_metrics,
    );
    let name_of_node = local.as_ref().map(|local| local.options.node.as_str());
    let identity = names::run_identity(&facts.name, name_of_node, now());
    let parts = Parts {
        local,
        capacity_metrics,
        capacity_queue,
        queues: Queues::new(&options, &queue_metrics),
        metrics: Metrics::default(),
        caches: Caches::default(),
        identity,
        pace: Pace::new(options.kube_api_qps, options.kube_api_burst),
        needs: Needs::of(&facts, &options),
        driver: driver.clone(),
        facts,
        client,
        attributes,
        options,
    };
    let election_metrics = tenure::Metrics::new();
    let health = Arc::new(HealthAdaptor::new(TOLERANCE));
    if let Some(http) = &parts.options.http {
        let mut registry = Registry::default();
        csi_metrics.register(&mut registry);
        queue_metrics.register(&mut registry);
        parts.metrics.register(&mut registry);
        if parts.options.capacity.is_some() {
            parts.capacity_metrics.register(&mut registry);
        }
        election_metrics.register(&mut registry);
        let listen = serve::listen(Site {
            http: http.clone(),
            registry,
            health: parts.options.election.is_some().then(|| health.clone()),
        });
        listen.await.map_err(|source| RunError::Listen {
            address: http.address.clone(),
            source,
        })?;
    }

    // Without the driver, the provisioner shuts down as usual: it posts pending volume objects and releases the lock
    // immediately for a replica whose driver runs.
    let gone = AtomicBool::new(false);
    let stop = async {
        tokio::select! {
            _ = shutdown => {}
            () = driver.lost() => {
                gone.store(true, Ordering::Relaxed);
                note_for_kubelet("Lost connection to CSI driver, exiting");
            }
        }
    };
    let work = async {
        match parts.options.election.clone() {
            None => parts.lead(None, async { _ = stop.await }).await,
            Some(election) => {
                if let Some(at_start) = &election.at_start {
                    let lock = names::lock_name(&parts.facts.name);
                    at_start.call(lock_client.clone(), &lock);
                }
                let elector = elector(&election, lock_client, &parts.facts.name)
                    .watchdog(&health)
                    .metrics(&election_metrics)
                    .build();
                let elector = elector.map_err(|error| RunError::Election(Box::new(error)))?;
                parts.campaign(elector, stop).await
            }
        }
    };
    let overdue = async {
        driver.lost().await;
        tokio::time::sleep_until(Instant::now() + LAST_WORDS).await;
    };
    let result = tokio::select! {
        result = work => result,
        () = overdue => Ok(()),
    };
    if gone.load(Ordering::Relaxed) {
        return Err(RunError::LostDriver);
    }
    result
}

fn elector(election: &Election, client: Client, driver: &str) -> tenure::Builder {
    let name = names::lock_name(driver);
    let identity = tenure::identity::host_uuid();
    Elector::open(client, election.kind, &election.namespace, &name)
        // As csi-lib-utils writes it.
        .event_source(format!("{name}/{identity}"))
        .identity(identity)
        .lease_duration(election.lease_duration)
        .renew_deadline(election.renew_deadline)
        .retry_period(election.retry_period)
        .labels(election.labels.clone())
        .release_on_cancel(election.release_on_exit)
        .client_go_compat(true)
}

/// The components that each term uses.
struct Parts {
    options: Options,
    driver: Driver,
    facts: tenure_csi::Facts,
    client: Client,
    attributes: bool,
    queues: Queues,
    metrics: Metrics,
    caches: Caches,
    identity: String,
    pace: Pace,
    needs: Needs,
    local: Option<Arc<Local>>,
    capacity_metrics: CapacityMetrics,
    capacity_queue: WorkQueue<capacity::Item>,
}

impl Parts {
    async fn campaign(&self, elector: Elector, shutdown: impl Future) -> Result<(), RunError> {
        let warm = self.options.warm_standby.then(|| self.watch());
        let ended = elector
            .run(shutdown, |term| {
                let stopped = {
                    let term = term.clone();
                    async move { term.cancelled().await }
                };
                self.lead(Some(term), stopped)
            })
            .await;
        drop(warm);
        match ended {
            Ended::NeverLed => Ok(()),
            Ended::Stopped {
                reason: StopReason::Shutdown,
                ..
            } => Ok(()),
            Ended::Stopped { reason, .. } => Err(RunError::LostLease(reason.as_str())),
            Ended::Completed(result) => result,
            Ended::Panicked(_) => Err(RunError::Panicked),
        }
    }

    fn watch(&self) -> JoinSet<()> {
        self.caches
            .start(&self.client, &self.facts.name, self.needs, &self.queues)
    }

    /// Works until it is stopped. Then it begins nothing new and waits for calls to the driver, because their responses
    /// would be lost. After a lost term it does not wait.
    async fn lead(
        &self,
        term: Option<Tenure>,
        stopped: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let token = term.as_ref().map(|term| term.token().as_str().to_owned());
        tracing::info!(token = token.as_deref().unwrap_or_default(), "provisioning");
        let watching = (!self.options.warm_standby || term.is_none()).then(|| self.watch());
        let mut stopped = std::pin::pin!(stopped);
        tokio::select! {
            () = self.caches.synced(self.needs) => {}
            () = &mut stopped => return Ok(()),
        }
        let capacities = tokio::select! {
            capacities = self.capacities() => capacities?,
            () = &mut stopped => return Ok(()),
        };
        let publishing = capacities.clone().map(Capacities::start);
        let controller = Arc::new(self.controller(term.clone(), capacities));
        let mut workers = JoinSet::new();
        for _ in 0..self.options.worker_threads {
            workers.spawn(controller.clone().claim_worker());
            workers.spawn(controller.clone().volume_worker());
        }
        for _ in 0..savers() {
            workers.spawn(controller.clone().save_worker());
        }
        workers.spawn(controller.clone().orphan_worker());
        let mut background = JoinSet::new();
        if self.facts.controller(ControllerCapability::CloneVolume) {
            for _ in 0..self.options.cloning_protection_threads {
                workers.spawn(controller.clone().clone_worker());
            }
        } else {
            // No worker would take these items.
            self.queues.clones.shut_down();
        }
        let sweeps = !self.options.snapshot_orphan_sweep_interval.is_zero();
        if sweeps
            && self
                .facts
                .controller(ControllerCapability::CreateDeleteSnapshot)
        {
            background.spawn(controller.clone().sweep_snapshots());
        }
        background.spawn(resync(controller.clone()));
        self.queues.open(&self.caches);

        tokio::select! {
            () = &mut stopped => {}
            // Workers end when their queue is shut down.
            Some(Err(error)) = workers.join_next() => {
                tracing::error!(%error, "a worker panicked");
                return Err(RunError::Panicked);
            }
        }
        drop((watching, background, publishing));
        controller.stopping.store(true, Ordering::Relaxed);
        self.queues.shut_down();
        let lost = term
            .and_then(|term| term.reason())
            .is_some_and(|reason| reason != StopReason::Shutdown);
        if !lost {
            tracing::info!("stopping: waiting for calls in flight");
            while workers.join_next().await.is_some() {}
            controller.save_rest().await;
        }
        Ok(())
    }

    /// Creates the publisher of CSIStorageCapacity objects, with `--enable-capacity`.
    async fn capacities(&self) -> Result<Option<Arc<Capacities>>, RunError> {
        let Some(options) = &self.options.capacity else {
            return Ok(None);
        };
        if !self.facts.controller(ControllerCapability::GetCapacity) {
            tracing::warn!("--enable-capacity: the driver does not report GET_CAPACITY");
        }
        let pace = Pace::new(options.kube_api_qps, options.kube_api_burst);
        let cluster = Cluster::new(self.client.clone(), pace);
        let checked = cluster.check_storage_capacities(&options.namespace).await;
        checked.map_err(RunError::Capacity)?;
        let owner = capacity::owner(&cluster, options).await;
        let owner = owner.map_err(RunError::Capacity)?;
        let node = self.local.as_ref().map(|local| local.options.node.as_str());
        Ok(Some(Arc::new(Capacities {
            driver: self.driver.clone(),
            name: self.facts.name.clone(),
            cluster,
            caches: self.caches.clone(),
            options: options.clone(),
            owner,
            managed_by: capacity::managed_by(node),
            fixed: self.local.as_ref().map(|local| local.term()),
            queue: self.capacity_queue.clone(),
            metrics: self.capacity_metrics.clone(),
            goal: Mutex::default(),
        })))
    }

    fn controller(&self, term: Option<Tenure>, capacities: Option<Arc<Capacities>>) -> Controller {
        let host = tenure::identity::hostname();
        let component = format!("{}_{}", self.facts.name, tenure::identity::host_uuid());
        // Events have a rate limiter of their own, so that they and other requests do not delay each other.
        let pace = Pace::new(self.options.kube_api_qps, self.options.kube_api_burst);
        Controller {
            driver: self.driver.clone(),
            facts: self.facts.clone(),
            options: self.options.clone(),
            cluster: Cluster::new(self.client.clone(), self.pace.clone()),
            caches: self.caches.clone(),
            queues: self.queues.clone(),
            events: Recorder::start(self.client.clone(), component, host, pace),
            metrics: self.metrics.clone(),
            term,
            identity: self.identity.clone(),
            local: self.local.clone(),
            capacities,
            attributes: self.attributes,
            in_progress: Default::default(),
            slow: Default::default(),
            settled: Default::default(),
            memory: Default::default(),
            unsaved: Default::default(),
            orphans: Default::default(),
            restores: Default::default(),
            stopping: AtomicBool::new(false),
            deleted: Default::default(),
            busy: Busy::default(),
        }
    }
}

/// Queues every object again once per [`RESYNC`].
async fn resync(controller: Arc<Controller>) {
    let mut ticks = tokio::time::interval_at(Instant::now() + RESYNC, RESYNC);
    loop {
        ticks.tick().await;
        controller.queues.add_all(&controller.caches);
    }
}

/// Returns whether claims may name a VolumeAttributesClass: the configured value, else whether the API server serves
/// the kind. If discovery fails, the answer is yes.
async fn knows_attributes(client: &Client, told: Option<bool>) -> bool {
    if let Some(told) = told {
        return told;
    }
    match client.list_api_group_resources("storage.k8s.io/v1").await {
        Ok(list) => list
            .resources
            .iter()
            .any(|r| r.kind == "VolumeAttributesClass"),
        Err(error) => {
            let error = tenure::plain(&error);
            tracing::info!(
                error,
                "cannot find out whether the API server serves VolumeAttributesClass"
            );
            true
        }
    }
}

/// Writes the termination message, which `kubectl describe pod` shows.
fn note_for_kubelet(message: &str) {
    if let Err(error) = std::fs::write("/dev/termination-log", message) {
        tracing::debug!(%error, "no termination log");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a name for this run; nothing is decided by it"
)]
fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
