//! Start and stop order of a server: API server, ready gate, controllers, and the reverse.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tenure_apiserver::server::{self as api, StartError};
use tenure_manager::{Gate, Manager, OnLoss, api_ready, signals};

use crate::manifests::{self, FirstPass, Folder, Progress};
use crate::{collector, namespaces, purge, storage};

/// The leader group of the built-in controllers, and the name of its Lease in `kube-system`.
pub const GROUP: &str = "tenure-server";

/// The names of the built-in controllers.
pub const CONTROLLERS: &[&str] = &[
    "default-service-account",
    "root-ca",
    "garbage-collector",
    "manifests",
    "namespace-purge",
    "persistentvolume-binder",
    "pvc-protection",
    "pv-protection",
    "first-consumer",
];

/// Folder of manifests in the data directory.
const FOLDER: &str = "manifests";

/// User name of the controllers of an embedded server.
const USER: &str = "system:tenure-server";

type Extend = Box<dyn FnOnce(tenure_manager::Builder, &Client) -> tenure_manager::Builder + Send>;

/// A server that has not started.
#[must_use = "nothing happens until it is started"]
pub struct Server {
    place: Place,
    disabled: Vec<String>,
    extend: Vec<Extend>,
    manifests: Vec<PathBuf>,
    probes: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    no_leader_elect: bool,
    tune: Option<Tune>,
}

type Tune = Box<dyn Fn(tenure::Builder) -> tenure::Builder + Send + Sync>;

enum Place {
    Embedded(Box<api::Builder>),
    Remote(Box<Config>),
}

/// Reason why a server did not start, or ended unexpectedly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API server did not start.
    #[error(transparent)]
    ApiServer(#[from] StartError),
    /// The kubeconfig of the embedded API server cannot be used.
    #[error("cannot use the kubeconfig of the embedded API server: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A client cannot be set up.
    #[error("cannot set up the client: {0}")]
    Client(#[from] kube::Error),
    /// The manager ended.
    #[error(transparent)]
    Manager(#[from] tenure_manager::Error),
    /// No controller has the name that is to be disabled.
    #[error("controller {0:?} does not exist; the controllers are {list}", list = CONTROLLERS.join(", "))]
    NoSuchController(String),
}

impl Server {
    /// Configures a server with an embedded API server. If the store has no other writer, there is no election: this
    /// process leads. Servers that share an etcd elect one of them.
    pub fn embedded(api: api::Builder) -> Self {
        Self::new(Place::Embedded(Box::new(api)))
    }

    /// Configures only the controllers, for another API server. Any number of such servers elect one leader.
    pub fn remote(config: Config) -> Self {
        Self::new(Place::Remote(Box::new(config)))
    }

    fn new(place: Place) -> Self {
        Self {
            place,
            disabled: Vec::new(),
            extend: Vec::new(),
            manifests: Vec::new(),
            probes: None,
            metrics: None,
            no_leader_elect: false,
            tune: None,
        }
    }

    /// Runs the controllers without an election, even on a shared store or API server. Two such servers would act at
    /// the same time, so use it only if there can be no second server.
    pub fn no_leader_elect(mut self, yes: bool) -> Self {
        self.no_leader_elect = yes;
        self
    }

    /// Changes the election of the controllers, for example its durations; see [`tenure_manager::Builder::elections`].
    pub fn election(
        mut self,
        tune: impl Fn(tenure::Builder) -> tenure::Builder + Send + Sync + 'static,
    ) -> Self {
        self.tune = Some(Box::new(tune));
        self
    }

    /// Disables a built-in controller.
    pub fn disable(mut self, controller: &str) -> Self {
        self.disabled.push(controller.to_owned());
        self
    }

    /// Applies the files of this folder when the server starts and when they change; see the controller `manifests` in
    /// `docs/book/reference/server.md`. A server with a data directory applies the folder `manifests` there, too. A
    /// folder that does not exist is ignored until it exists.
    pub fn manifests(mut self, folder: impl Into<PathBuf>) -> Self {
        self.manifests.push(folder.into());
        self
    }

    /// Adds custom controllers, hooks and checks (k3s's `RunWithControllers`).
    pub fn with_controllers(
        mut self,
        extend: impl FnOnce(tenure_manager::Builder, &Client) -> tenure_manager::Builder
        + Send
        + 'static,
    ) -> Self {
        self.extend.push(Box::new(extend));
        self
    }

    /// Serves `/healthz` and `/readyz` of the controllers on this address.
    pub fn probe_address(mut self, address: SocketAddr) -> Self {
        self.probes = Some(address);
        self
    }

    /// Serves the metrics of the controllers on this address.
    pub fn metrics_address(mut self, address: SocketAddr) -> Self {
        self.metrics = Some(address);
        self
    }

    /// Starts the API server if it is embedded, and prepares the controllers, which start when the server is run.
    ///
    /// # Errors
    ///
    /// Returns the reason. Nothing is left running.
    pub async fn start(self) -> Result<Started, Error> {
        if let Some(unknown) = self
            .disabled
            .iter()
            .find(|name| !CONTROLLERS.contains(&name.as_str()))
        {
            return Err(Error::NoSuchController(unknown.clone()));
        }
        let wanted = |name: &str| self.disabled.iter().all(|disabled| disabled != name);
        let data_dir = match &self.place {
            Place::Embedded(builder) => builder.data_directory(),
            Place::Remote(_) => None,
        };
        let mut folders = folders(data_dir, self.manifests);
        if !wanted("manifests") {
            folders.clear();
        }
        let progress = Progress::new();
        let awaited = manifests::any_file(&folders);
        if !awaited {
            progress.publish(FirstPass::NONE);
        }
        let (api, config) = match self.place {
            Place::Remote(config) => (None, *config),
            Place::Embedded(builder) => {
                let mut builder = *builder;
                if awaited {
                    let progress = progress.clone();
                    builder = builder.ready_check("manifests", move || progress.check());
                }
                let handle = builder.start().await?;
                let kubeconfig = Kubeconfig::from_yaml(handle.kubeconfig())?;
                let options = KubeConfigOptions::default();
                // Ignore proxies in the environment, because the server is in this process.
                let mut config = tenure::read_kubeconfig(kubeconfig, &options).await?;
                // Distinguishes the controllers from the administrator in audit logs and recorded roles.
                config.auth_info.impersonate = Some(USER.to_owned());
                config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
                (Some(handle), config)
            }
        };
        let client = tenure::work_client(config.clone())?;
        let ca = config.root_cert.as_deref().map(pem);
        // If other servers write to the store too, one of them leads.
        let alone = api.as_ref().is_some_and(|api| !api.store().shared());
        let elects = !(alone || self.no_leader_elect);
        let mut manager = Manager::builder(config)
            .gate(Gate {
                // Without this exclusion the gate would never open: the check waits for the manifests, and the
                // manifests wait for the gate.
                exclude: (api.is_some() && awaited).then_some("manifests"),
                ..api_ready()
            })
            .namespace("kube-system")
            .no_leader_elect(!elects);
        if let Some(tune) = self.tune {
            manager = manager.elections(tune);
        }
        if api.is_some() && !alone {
            // The API server continues after a loss of leadership. It must still run when an unreachable etcd comes
            // back.
            manager = manager.on_loss(OnLoss::Demote);
        }
        if let Some(address) = self.probes {
            manager = manager.probe_address(address);
        }
        if let Some(address) = self.metrics {
            manager = manager.metrics_address(address);
        }
        if wanted("default-service-account") {
            manager = namespaces::service_accounts(manager, GROUP, &client);
        }
        // Without TLS there is no certificate to publish.
        if let Some(ca) = ca.filter(|_| wanted("root-ca")) {
            manager = namespaces::root_ca(manager, GROUP, &client, &ca);
        }
        if wanted("garbage-collector") {
            manager = manager.leader(GROUP, collector::runnable(client.clone()));
        }
        // The embedded API server does it itself.
        if api.is_none() && wanted("namespace-purge") {
            manager = purge::purge(manager, GROUP, &client);
        }
        let which = storage::Which {
            binder: wanted("persistentvolume-binder"),
            claim_protection: wanted("pvc-protection"),
            volume_protection: wanted("pv-protection"),
            first_consumer: wanted("first-consumer"),
        };
        if which.any() {
            manager = manager.leader(GROUP, storage::runnable(client.clone(), which));
        }
        if awaited {
            let progress = progress.clone();
            manager = manager.ready_check("manifests", move || progress.check());
        }
        if !alone && (api.is_some() || elects) {
            // Each of the servers on one store or cluster has its own folders.
            let host = tenure::identity::hostname();
            for folder in &mut folders {
                folder.source = format!("{host}:{}", folder.source);
            }
        }
        if !folders.is_empty() {
            let runnable = manifests::runnable(client.clone(), folders, progress.clone());
            manager = manager.leader(GROUP, runnable);
        }
        for extend in self.extend {
            manager = extend(manager, &client);
        }
        let manager = manager.build()?;
        let group = manager.group(GROUP);
        if let Some(election) = group.as_ref().and_then(|group| group.election()) {
            progress.set_election(election.clone());
        }
        Ok(Started {
            api,
            manager,
            progress,
        })
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("disabled", &self.disabled)
            .finish_non_exhaustive()
    }
}

/// A server whose API server is running. Dropping it stops it.
#[must_use = "dropping it ends the server"]
pub struct Started {
    api: Option<api::Handle>,
    manager: Manager,
    progress: Arc<Progress>,
}

impl Started {
    /// Returns the API server, if it is embedded.
    pub fn api(&self) -> Option<&api::Handle> {
        self.api.as_ref()
    }

    /// Returns the manager of the controllers.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Waits until all manifests were applied or rejected once, for at most one minute, as `/readyz` does. Returns
    /// `None` after that time, for example if another server leads.
    pub fn first_pass(&self) -> impl Future<Output = Option<FirstPass>> + Send + use<> {
        let progress = self.progress.clone();
        async move { progress.finished().await }
    }

    /// Runs the controllers until `shutdown`; then stops them, and after them the API server.
    ///
    /// # Errors
    ///
    /// Returns the error that ended the controllers, unless it was the shutdown.
    pub async fn run(self, shutdown: impl Future) -> Result<(), Error> {
        Ok(self.run_all(shutdown).await?)
    }

    /// Runs until SIGTERM or SIGINT. A second signal ends the process with exit code 1, and so does a controller that
    /// cannot be stopped.
    ///
    /// # Errors
    ///
    /// Same as for [`run`](Self::run).
    pub async fn run_until_signal(self) -> Result<(), Error> {
        self.run_until(shutdown_signal()?).await
    }

    /// Runs until [`shutdown_signal`] resolves. A program that calls it before [`Server::start`] does not lose a signal
    /// that arrives during the start.
    ///
    /// # Errors
    ///
    /// Same as for [`run`](Self::run).
    pub async fn run_until(self, asked: impl Future<Output = ()>) -> Result<(), Error> {
        let handle = self.manager.handle();
        let ended = self.run_all(asked).await;
        signals::exit_if_stuck(&handle, &ended);
        Ok(ended?)
    }

    async fn run_all(self, shutdown: impl Future) -> Result<(), tenure_manager::Error> {
        let ended = self.manager.run(shutdown).await;
        if let Some(api) = self.api {
            api.shutdown().await;
        }
        ended
    }
}

/// Resolves on the first SIGTERM or SIGINT after the call. A second signal ends the process with exit code 1.
///
/// # Errors
///
/// Returns an error if signal handlers cannot be installed.
///
/// # Panics
///
/// Panics outside a tokio runtime.
pub fn shutdown_signal() -> Result<impl Future<Output = ()> + Send, Error> {
    Ok(signals::shutdown().map_err(tenure_manager::Error::Signals)?)
}

impl std::fmt::Debug for Started {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Started")
            .field("embedded", &self.api.is_some())
            .field("manager", &self.manager)
            .finish()
    }
}

/// The folders of manifests in the order of application. The folder of the data directory keeps its name if the data
/// directory is moved.
fn folders(data_dir: Option<&Path>, further: Vec<PathBuf>) -> Vec<Folder> {
    let data = data_dir.map(|dir| Folder {
        source: "data".to_owned(),
        path: dir.join(FOLDER),
    });
    let further = further.into_iter().map(|path| {
        let path = std::path::absolute(&path).unwrap_or(path);
        Folder {
            source: path.display().to_string(),
            path,
        }
    });
    data.into_iter().chain(further).collect()
}

/// Returns certificates as PEM text.
fn pem(certificates: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for der in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = base64::engine::general_purpose::STANDARD.encode(der);
        for line in encoded.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}
