//! Starts a provisioner from its options, and shuts it down.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::{Client, Config};
use prometheus_client::registry::Registry;
use tenure::{Elector, HealthAdaptor};
use tenure_csi::{ConnectError, Driver, Facts, StartError};
use tenure_manager::queue::{ItemBackoff, QueueMetrics, WorkQueue};
use tokio::time::Instant;

use crate::cluster::Pace;
use crate::controller::Queues;
use crate::informers::{Caches, Needs};
use crate::local::Local;
use crate::metrics::{CapacityMetrics, Metrics};
use crate::migration;
use crate::names;
use crate::options::{Election, Options};
use crate::serve::{self, Site, TOLERANCE};
use crate::term::Provisioner;

/// Time to post volume objects after the driver is gone.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// User agent in requests and audit logs.
const USER_AGENT: &str = concat!("tenure-provisioner/", env!("CARGO_PKG_VERSION"));

/// Reason why a provisioner cannot continue.
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
    let registered = Registered::default();
    let mut shutdown = std::pin::pin!(shutdown);
    let (driver, facts) = tokio::select! {
        started = connect(&options, &registered.csi) => started?,
        _ = &mut shutdown => return Ok(()),
    };
    let client_error = |error| RunError::Client(Box::new(error));
    // Hundreds of small requests a second share one HTTP/2 connection instead of opening thirty.
    let client = tenure::work_client_http2(config.clone(), USER_AGENT).map_err(client_error)?;
    let lock_client = tenure::client(config).map_err(client_error)?;
    let provisioner = assemble(options, driver, facts, client, &registered.queues).await?;
    let health = Arc::new(HealthAdaptor::new(TOLERANCE));
    listen(&provisioner, &registered, &health).await?;

    // Without the driver, the provisioner shuts down as usual: it posts pending volume objects and releases the lock
    // immediately for a replica whose driver runs.
    let gone = AtomicBool::new(false);
    let driver = &provisioner.driver;
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
        match provisioner.options.election.clone() {
            None => provisioner.lead(None, async { _ = stop.await }).await,
            Some(election) => {
                if let Some(at_start) = &election.at_start {
                    let lock = names::lock_name(&provisioner.facts.name);
                    at_start.call(lock_client.clone(), &lock);
                }
                let elector = elector(&election, lock_client, &provisioner.facts.name)
                    .watchdog(&health)
                    .metrics(&registered.election)
                    .build();
                let elector = elector.map_err(|error| RunError::Election(Box::new(error)))?;
                provisioner.campaign(elector, stop).await
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

/// Metrics that exist before there is a provisioner.
#[derive(Default)]
struct Registered {
    csi: tenure_csi::Metrics,
    queues: QueueMetrics,
    election: tenure::Metrics,
}

/// Connects to the driver, waits until it is ready, and reads its name and capabilities.
async fn connect(
    options: &Options,
    metrics: &tenure_csi::Metrics,
) -> Result<(Driver, Facts), RunError> {
    let mut csi = tenure_csi::Config::new(options.csi_address.clone());
    csi.timeout = options.timeout;
    let driver = Driver::connect(&csi, metrics).await?;
    driver.ready().await?;
    let facts = driver.facts().await?;
    tracing::info!(driver = facts.name, version = facts.version, "connected");
    if let Some(plugin) = migration::replaced_by(&facts.name) {
        let plugin = plugin.in_tree_name();
        metrics.label_migrated();
        tracing::info!(plugin, "translating objects of the in-tree plugin");
    }
    Ok((driver, facts))
}

/// Creates the components that the terms share.
async fn assemble(
    options: Options,
    driver: Driver,
    facts: Facts,
    client: Client,
    queue_metrics: &QueueMetrics,
) -> Result<Provisioner, RunError> {
    let local = match options.node_deployment.clone() {
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
    let capacity_queue = WorkQueue::with_metrics(
        "csistoragecapacity",
        ItemBackoff::new(options.retry_interval_start, options.retry_interval_max),
        queue_metrics,
    );
    let name_of_node = local.as_ref().map(|local| local.options.node.as_str());
    Ok(Provisioner {
        identity: names::run_identity(&facts.name, name_of_node, now()),
        local,
        capacity_metrics: CapacityMetrics::default(),
        capacity_queue,
        queues: Queues::new(&options, queue_metrics),
        metrics: Metrics::default(),
        caches: Caches::default(),
        pace: Pace::new(options.kube_api_qps, options.kube_api_burst),
        needs: Needs::of(&facts, &options),
        attributes: knows_attributes(&client, options.volume_attributes_class).await,
        driver,
        facts,
        client,
        options,
    })
}

/// Serves metrics and the probe of the election, with `--http-endpoint`.
async fn listen(
    provisioner: &Provisioner,
    registered: &Registered,
    health: &Arc<HealthAdaptor>,
) -> Result<(), RunError> {
    let Some(http) = &provisioner.options.http else {
        return Ok(());
    };
    let mut registry = Registry::default();
    registered.csi.register(&mut registry);
    registered.queues.register(&mut registry);
    provisioner.metrics.register(&mut registry);
    if provisioner.options.capacity.is_some() {
        provisioner.capacity_metrics.register(&mut registry);
    }
    registered.election.register(&mut registry);
    let elects = provisioner.options.election.is_some();
    let listen = serve::listen(Site {
        http: http.clone(),
        registry,
        health: elects.then(|| health.clone()),
    });
    listen.await.map_err(|source| RunError::Listen {
        address: http.address.clone(),
        source,
    })
}

fn elector(election: &Election, client: Client, driver: &str) -> tenure::Builder {
    let name = names::lock_name(driver);
    let identity = tenure::identity::host_uuid();
    Elector::open(client, election.kind, &election.namespace, &name)
        // csi-lib-utils uses the same source component.
        .event_source(format!("{name}/{identity}"))
        .identity(identity)
        .lease_duration(election.lease_duration)
        .renew_deadline(election.renew_deadline)
        .retry_period(election.retry_period)
        .labels(election.labels.clone())
        .release_on_cancel(election.release_on_exit)
        .client_go_compat(true)
}

/// Returns whether claims may name a VolumeAttributesClass: the configured value, else whether the API server serves
/// the kind. If discovery fails, the answer is yes.
async fn knows_attributes(client: &Client, configured: Option<bool>) -> bool {
    if let Some(configured) = configured {
        return configured;
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
        tracing::debug!(%error, "cannot write the termination log");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a name for this run; nothing is decided by it"
)]
fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
