//! One term of a provisioner: starts the workers, and waits for calls in flight at its end.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kube::Client;
use tenure::{Elector, Ended, StopReason, Tenure};
use tenure_csi::{ControllerCapability, Driver};
use tenure_manager::queue::WorkQueue;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::capacity::{self, Capacities};
use crate::claims::{RESYNC, savers};
use crate::cluster::{Cluster, Pace};
use crate::controller::{Busy, Controller, Queues};
use crate::events::Recorder;
use crate::informers::{Caches, Needs};
use crate::ledger::Ledger;
use crate::local::Local;
use crate::metrics::{CapacityMetrics, Metrics};
use crate::options::Options;
use crate::run::RunError;

/// A provisioner that is connected to its driver. Its terms share these components.
pub(crate) struct Provisioner {
    pub(crate) options: Options,
    pub(crate) driver: Driver,
    pub(crate) facts: tenure_csi::Facts,
    pub(crate) client: Client,
    pub(crate) attributes: bool,
    pub(crate) queues: Queues,
    pub(crate) metrics: Metrics,
    pub(crate) caches: Caches,
    pub(crate) identity: String,
    pub(crate) pace: Pace,
    pub(crate) needs: Needs,
    pub(crate) local: Option<Arc<Local>>,
    pub(crate) capacity_metrics: CapacityMetrics,
    pub(crate) capacity_queue: WorkQueue<capacity::Item>,
}

impl Provisioner {
    /// Campaigns, and provisions for one term.
    pub(crate) async fn campaign(
        &self,
        elector: Elector,
        shutdown: impl Future,
    ) -> Result<(), RunError> {
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
    pub(crate) async fn lead(
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
        let (mut workers, background) = self.spawn_workers(&controller);
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

    /// Starts the workers of the queues, and the tasks that end with the term without being awaited.
    fn spawn_workers(&self, controller: &Arc<Controller>) -> (JoinSet<()>, JoinSet<()>) {
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
        (workers, background)
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
        // Events have a separate rate limiter, so that they and other requests do not delay each other.
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
            ledger: Ledger::default(),
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
