//! `tenure server`: the embedded API server with its controllers, or only the controllers.

mod encryption;
mod ephemeral;
mod security;
mod store;

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use http_body_util::BodyExt;
use tenure::Timing;
use tenure_apiserver::auth::Mode;
use tenure_apiserver::server::{Builder, Engine, Instance, Server as ApiServer, Stopped};
use tenure_apiserver::store::{RedbStore, backup};
use tenure_host::files;

use self::encryption::EncryptionArgs;
use self::store::{Store, StoreArgs};
use crate::connect::{self, Connect};
use crate::local;
use crate::notify;
use crate::page::{self, OnServer};
use crate::signals::Signals;
use crate::waiting;

/// Run or manage a local Kubernetes-compatible API server
///
/// With `--kubeconfig` it runs only the controllers, for that API server; several such servers elect one leader.
#[derive(Args, Debug)]
pub(crate) struct Server {
    /// Directory of all data [default: per user]
    ///
    /// It contains certificates, the kubeconfig and the objects. The default is `tenure` in $XDG_STATE_HOME or ~/.local/state.
    #[arg(long, value_name = "DIR", env = "TENURE_DATA_DIR", global = true)]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    encryption: EncryptionArgs,
    #[command(subcommand)]
    command: Option<Action>,
    #[command(flatten)]
    options: Options,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Run the server in the foreground (the default)
    Run(Box<Options>),
    /// Show whether a server runs on the data directory, and its address
    Status,
    /// Print the administrator's token, for `kubectl --token` and `curl`
    Token,
    /// Stop the server that runs on the data directory
    Stop {
        /// Maximum time to wait until the server has stopped
        #[arg(long, value_name = "D", default_value = "30s", value_parser = crate::values::duration)]
        timeout: Duration,
    },
    /// Copy the data into a file, even while the server runs
    Backup {
        /// File to write
        file: PathBuf,
    },
    /// Replace the data of a stopped server
    ///
    /// The restored server never reuses an old resourceVersion.
    Restore {
        /// File written by `backup`
        file: PathBuf,
    },
    /// Create a file with one random encryption key
    NewKey {
        /// File to create; an existing file is not replaced
        file: PathBuf,
    },
    /// Encrypt all stored values with the first key of the key file
    ///
    /// Data in the data directory are rotated while no server runs on it. Data in etcd are rotated while servers run.
    RotateKeys(Box<StoreArgs>),
}

#[derive(Args, Clone, Debug)]
struct Options {
    /// Run a server for one test, in memory and on a free port
    ///
    /// The path of the kubeconfig is one line on standard output. The server ends with the process that started it, and
    /// removes its files.
    #[arg(long)]
    ephemeral: bool,
    /// End when standard input is closed
    #[arg(long)]
    until_stdin_closes: bool,
    /// Address to listen on with TLS
    ///
    /// Port 0 selects a free port, as `--ephemeral` does.
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:6443",
        default_value_if("ephemeral", "true", "127.0.0.1:0")
    )]
    listen: SocketAddr,
    /// Additional loopback address for plain HTTP
    #[arg(long, value_name = "HOST:PORT")]
    insecure_listen: Option<SocketAddr>,
    /// Additional unix socket for plain HTTP
    #[arg(long, value_name = "PATH")]
    unix_socket: Option<PathBuf>,
    /// Additional file for the administrator's kubeconfig
    #[arg(long, value_name = "FILE")]
    write_kubeconfig: Option<PathBuf>,
    /// Additional names and addresses for the serving certificate
    #[arg(long, value_name = "NAME")]
    tls_san: Vec<String>,
    /// Token file of kube-apiserver's format: token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// Authorization mode
    #[arg(long, value_enum, value_name = "MODE", default_value_t = Authorization::Rbac)]
    authorization_mode: Authorization,
    /// File for the minimal Role of each user, from the observed requests
    #[arg(long, value_name = "FILE")]
    record_rbac: Option<PathBuf>,
    #[command(flatten)]
    security: security::Security,
    #[command(flatten)]
    store: StoreArgs,
    /// Apply the manifests in this folder; can be repeated
    ///
    /// They are applied at the start and when they change. Objects that are removed from them are deleted. The folder
    /// `manifests` in the data directory is always applied.
    #[arg(long, value_name = "DIR")]
    manifests: Vec<PathBuf>,
    /// Maximum number of requests that execute at the same time
    ///
    /// One user gets at most half of them. Elections have separate seats.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    max_requests_inflight: u32,
    /// Maximum number of open watches
    ///
    /// One user gets at most half of them. Administrators have no limit.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u64).range(2..=10_000_000))]
    max_watches: u64,
    /// Maximum number of open connections
    ///
    /// The limit of open files may reduce it. One address gets at most seven eighths of them.
    #[arg(long, value_name = "N", default_value_t = 12_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
    /// Handle every request immediately, regardless of its user; for measurements only
    #[arg(long, hide = true)]
    no_fairness: bool,
    /// Disable these built-in controllers
    ///
    /// Separate them by commas. `all` disables every one.
    #[arg(long, value_name = "CONTROLLER", value_delimiter = ',', value_parser = disableable())]
    disable: Vec<String>,
    /// Run the controllers without an election
    ///
    /// Use it only if there is no other server.
    #[arg(long)]
    no_leader_elect: bool,
    /// Lease duration: time before another server may take over [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    lease_duration: Option<Duration>,
    /// Renew deadline: time after which a leader stops without a renewal [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    renew_deadline: Option<Duration>,
    /// Retry period: time between two renewals [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = crate::values::duration)]
    retry_period: Option<Duration>,
    /// Serve /healthz and /readyz of the controllers on this address
    #[arg(long, value_name = "HOST:PORT")]
    probe_address: Option<SocketAddr>,
    /// Serve /metrics of the controllers on this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics_address: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Authorization {
    /// Roles and bindings
    #[value(name = "RBAC", alias = "rbac")]
    Rbac,
    /// Every request is allowed
    #[value(name = "AlwaysAllow", alias = "always-allow")]
    AlwaysAllow,
}

/// The value of `--disable` that stands for every controller.
const ALL: &str = "all";

/// Returns the values that `--disable` accepts.
fn disableable() -> Vec<&'static str> {
    [tenure_server::CONTROLLERS, &[ALL]].concat()
}

/// Reports a panic of the database engine as an error, because it usually means that its file is damaged. The report
/// comes from the store that catches it, or from here if a panic ends the process.
pub(crate) fn tell_damage() {
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        match tenure_apiserver::store::last_words(panic) {
            None => otherwise(panic),
            Some(_) if cfg!(panic = "unwind") => {}
            Some(words) => {
                // Standard error may be closed.
                let _ = writeln!(std::io::stderr(), "tenure: {words}");
                std::process::exit(1);
            }
        }
    }));
}

impl Server {
    /// Returns a runtime with one thread per core. With etcd it has one thread less, because such a server mostly
    /// waits. On two cores, two threads would wake each other, and each write would be ten percent slower.
    /// `TOKIO_WORKER_THREADS` overrides this.
    pub(crate) fn runtime(&self) -> tokio::runtime::Builder {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let options = match &self.command {
            Some(Action::Run(options)) => options,
            _ => &self.options,
        };
        let waits = matches!(options.store.store, Store::Etcd(_));
        if waits && std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
            let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
            builder.worker_threads(cores.saturating_sub(1).max(1));
        }
        builder
    }

    pub(crate) async fn run(self, connect: &Connect) -> Result<u8> {
        let options = match &self.command {
            None => Some(&self.options),
            Some(Action::Run(options)) => Some(&**options),
            Some(_) => None,
        };
        if let Some(options) = options.filter(|options| options.ephemeral) {
            return ephemeral::serve(
                options.clone(),
                self.encryption,
                self.data_dir.as_deref(),
                connect,
            )
            .await;
        }
        let dir = match &self.data_dir {
            Some(dir) => dir.clone(),
            None => local::data_dir()?,
        };
        // A server checks the folder when it locks it. The other commands trust the files in the folder, so it is
        // checked here.
        if !matches!(self.command, None | Some(Action::Run(_))) {
            let checked = files::check_folder(&dir);
            checked.with_context(|| format!("data directory {}", dir.display()))?;
        }
        match self.command {
            None => {
                let options = self.options;
                options
                    .serve_until_asked(dir, self.encryption, connect)
                    .await
            }
            Some(Action::Run(options)) => {
                options
                    .serve_until_asked(dir, self.encryption, connect)
                    .await
            }
            Some(Action::Status) => {
                let Some(instance) = Instance::read(&dir)?.filter(Instance::is_alive) else {
                    println!("no server runs on {}", dir.display());
                    return Ok(1);
                };
                println!("{}", serde_json::to_string_pretty(&instance)?);
                Ok(0)
            }
            Some(Action::Token) => {
                println!("{}", token(&dir)?);
                Ok(0)
            }
            Some(Action::Stop { timeout }) => stop(&dir, timeout).await,
            Some(Action::Backup { file }) => save(&dir, &file, &self.encryption).await,
            Some(Action::NewKey { file }) => encryption::new_key(&file),
            Some(Action::RotateKeys(store)) => {
                // The flags of the store may precede the subcommand.
                let given = !matches!(store.store, Store::Redb);
                let store = if given { *store } else { self.options.store };
                self.encryption.rotate(dir, store).await
            }
            Some(Action::Restore { file }) => {
                if Instance::read(&dir)?.is_some_and(|instance| instance.is_alive()) {
                    bail!(
                        "a server runs on {}; stop it first: `tenure server stop`",
                        dir.display()
                    );
                }
                let encryption = self.encryption.read()?;
                // Locks the directory, so that a server that starts in the meantime is rejected.
                let whom = format!("the data of {}", file.display());
                let replace = move || backup::replace(&file, &dir, &encryption);
                let (report, kept) = waiting::on_blocking(whom, replace).await??;
                println!(
                    "{} objects; new revisions start above {}",
                    report.objects, report.revision
                );
                if let Some(kept) = kept {
                    println!("the previous data are in {}", kept.display());
                }
                Ok(0)
            }
        }
    }
}

impl Options {
    /// Runs the server until a signal arrives or, with `--until-stdin-closes`, standard input is closed.
    async fn serve_until_asked(
        self,
        dir: PathBuf,
        encryption: EncryptionArgs,
        connect: &Connect,
    ) -> Result<u8> {
        let signal = tenure_server::shutdown_signal()?;
        let closed = ephemeral::stdin_closed(self.until_stdin_closes);
        let asked = async {
            tokio::select! {
                () = signal => {}
                () = closed => {}
            }
        };
        self.serve(dir, encryption, connect, asked).await
    }

    /// Runs the server, or only the controllers if the API server is remote, until `asked` completes. The caller must
    /// have installed its signal handlers. Otherwise a program that stops the server as soon as it is announced would
    /// kill it.
    async fn serve(
        self,
        dir: PathBuf,
        encryption: EncryptionArgs,
        connect: &Connect,
        asked: impl Future<Output = ()> + Send,
    ) -> Result<u8> {
        let (disable, probes, metrics) =
            (self.disabled(), self.probe_address, self.metrics_address);
        let ephemeral = self.ephemeral;
        self.timing()?;
        let manifests = self.manifests.clone();
        for folder in &manifests {
            std::fs::read_dir(folder)
                .with_context(|| format!("cannot read --manifests {}", folder.display()))?;
        }
        let (alone, durations) = (
            self.no_leader_elect,
            [self.lease_duration, self.renew_deadline, self.retry_period],
        );
        let (allows_all, plain) = (
            matches!(self.authorization_mode, Authorization::AlwaysAllow),
            self.insecure_listen.is_some(),
        );
        let mut serving = String::new();
        let (mut server, page) = if connect.kubeconfig.is_some() {
            let config = connect.config().await?;
            serving = format!("controllers for {}", config.cluster_url);
            eprintln!("tenure: {serving}");
            (tenure_server::Server::remote(config), None)
        } else {
            let (api, page) = OnServer::add(self.api(&dir)?.encryption(encryption.read()?));
            (tenure_server::Server::embedded(api), Some(page))
        };
        server = server.no_leader_elect(alone).election(move |election| {
            let [lease, renew, retry] = durations;
            let election = lease
                .into_iter()
                .fold(election, tenure::Builder::lease_duration);
            let election = renew
                .into_iter()
                .fold(election, tenure::Builder::renew_deadline);
            retry
                .into_iter()
                .fold(election, tenure::Builder::retry_period)
        });
        for folder in manifests {
            server = server.manifests(folder);
        }
        for controller in &disable {
            server = server.disable(controller);
        }
        if let Some(address) = probes {
            server = server.probe_address(address);
        }
        if let Some(address) = metrics {
            server = server.metrics_address(address);
        }
        let mut asked = std::pin::pin!(asked);
        let started = tokio::select! {
            started = server.start() => started?,
            () = asked.as_mut() => return Ok(0),
        };
        if let (Some(api), Some(page)) = (started.api(), page) {
            page.open(api).await?;
            serving = format!("serving on {}", api.url());
            note(&serving);
            if allows_all {
                eprintln!(
                    "tenure: warning: --authorization-mode=AlwaysAllow lets every client of {} do everything; use it for tests only",
                    api.url()
                );
            }
            if let Some(url) = api.insecure_url().filter(|_| plain) {
                eprintln!(
                    "tenure: warning: {url} is not encrypted, and every user of this machine can reach it"
                );
            }
            let plain = api.insecure_url().unwrap_or(api.url());
            note(&format!("page on {plain}{}", page::PREFIX));
            match api.kubeconfig_path() {
                Some(path) if ephemeral => ephemeral::announce(path)?,
                Some(path) => note(&format!("export KUBECONFIG={}", path.display())),
                None => {}
            }
        }
        notify::ready(&serving);
        let pass = started.first_pass();
        tokio::spawn(async move {
            if let Some(pass) = pass.await.filter(|pass| pass.files > 0) {
                let tenure_server::FirstPass { files, failed, .. } = pass;
                let applied = files.saturating_sub(failed);
                note(&format!("applied {applied} of {files} manifests"));
            }
        });
        let asked = async {
            asked.await;
            notify::stopping();
        };
        started.run_until(asked).await?;
        Ok(0)
    }

    /// Returns the controllers to leave out.
    fn disabled(&self) -> Vec<String> {
        if self.disable.iter().any(|name| name == ALL) {
            let all = tenure_server::CONTROLLERS.iter();
            return all.map(|name| (*name).to_owned()).collect();
        }
        self.disable.clone()
    }

    /// Validates the durations before anything starts.
    fn timing(&self) -> Result<Timing> {
        let mut timing = Timing::builder();
        if let Some(lease) = self.lease_duration {
            timing = timing.lease_duration(lease);
        }
        if let Some(renew) = self.renew_deadline {
            timing = timing.renew_deadline(renew);
        }
        if let Some(retry) = self.retry_period {
            timing = timing.retry_period(retry);
        }
        Ok(timing.build()?)
    }

    fn api(self, dir: &Path) -> Result<Builder> {
        let mut builder = ApiServer::builder()
            .data_dir(dir)
            .listen(self.listen)
            .max_requests_inflight(self.max_requests_inflight)
            .max_watches(self.max_watches)
            .max_connections(self.max_connections as usize);
        if self.no_fairness {
            builder = builder.without_fairness();
        }
        builder = match self.store.etcd() {
            Some(etcd) => builder.engine(Engine::Etcd(etcd)),
            None if matches!(self.store.store, Store::Memory) => builder.engine(Engine::Memory),
            None => builder.engine(Engine::Redb),
        };
        builder = builder
            .server_names(self.tls_san)
            .authorization(match self.authorization_mode {
                Authorization::Rbac => Mode::Rbac,
                Authorization::AlwaysAllow => Mode::AlwaysAllow,
            });
        if let Some(address) = self.insecure_listen {
            builder = builder.insecure_listen(address);
        }
        if let Some(path) = self.unix_socket {
            builder = builder.unix_socket(path);
        }
        if let Some(path) = self.write_kubeconfig {
            builder = builder.write_kubeconfig(path);
        }
        if let Some(path) = self.token_auth_file {
            builder = builder.token_file(path);
        }
        if let Some(path) = self.record_rbac {
            builder = builder.record_rbac(path);
        }
        self.security.apply(builder)
    }
}

/// Prints a line for people. A closed standard error does not end the server, as `eprintln` would.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "tenure: {text}");
}

/// Returns the administrator's token, which every server stores in its directory.
fn token(dir: &Path) -> Result<String> {
    let file = dir.join("token");
    match files::read_own(&file) {
        Ok(token) => Ok(token.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "no server has run on {}; start one with `tenure server`, or name its folder with --data-dir",
            dir.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// Requests the data from a running server, or reads the data of a stopped one.
async fn save(dir: &Path, file: &Path, encryption: &EncryptionArgs) -> Result<u8> {
    let Some(instance) = Instance::read(dir)?.filter(Instance::is_alive) else {
        if !dir.join("store.redb").exists() {
            let dir = dir.display();
            bail!("{dir} has no stored data; for a server on etcd, use `etcdctl snapshot save`");
        }
        let (whom, dir, file) = (
            format!("the data in {}", dir.display()),
            dir.to_owned(),
            file.to_owned(),
        );
        let encryption = encryption.read()?;
        let save = move || {
            let store = RedbStore::encrypted(&dir, encryption)?;
            anyhow::Ok(backup::save(&store, &file)?)
        };
        let report = waiting::on_blocking(whom, save).await??;
        println!("{} objects at revision {}", report.objects, report.revision);
        return Ok(0);
    };
    let connect = Connect {
        kubeconfig: Some(instance.kubeconfig),
        ..Connect::default()
    };
    let client = connect::client(connect.config().await?).await?;
    let request = http::Request::get("/tenure/backup").body(kube::client::Body::empty())?;
    let whom = format!("the data of {}", instance.url);
    let response = waiting::on(&whom, client.send(request)).await?;
    let status = response.status();
    if !status.is_success() {
        let body = response.into_body().collect().await?.to_bytes();
        bail!(
            "the server refused: {status} {}",
            String::from_utf8_lossy(&body)
        );
    }
    let failed = || format!("cannot write {}", file.display());
    // Uses another name until the file is complete, because a partial backup is useless. Only its owner can read it,
    // because it contains secrets.
    let mut part = files::Replacement::create(file, 0o600).with_context(failed)?;
    let mut signals = Signals::listen()?;
    let received = tokio::select! {
        received = waiting::on(&whom, receive(response.into_body(), part.file())) => received,
        signal = signals.end() => {
            let number = u8::try_from(signal.as_raw()).unwrap_or_default();
            eprintln!("tenure: no backup was written");
            return Ok(128_u8.saturating_add(number));
        }
    };
    let bytes = received.with_context(failed)?;
    part.place().with_context(failed)?;
    println!("{bytes} bytes");
    Ok(0)
}

/// Writes a response to a file.
async fn receive(mut body: kube::client::Body, file: &mut File) -> Result<usize> {
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the backup ended too early")?;
        if let Ok(data) = frame.into_data() {
            file.write_all(&data)?;
            bytes += data.len();
        }
    }
    file.sync_all()?;
    Ok(bytes)
}

async fn stop(dir: &Path, timeout: Duration) -> Result<u8> {
    let Some(instance) = Instance::read(dir)? else {
        println!("no server runs on {}", dir.display());
        return Ok(0);
    };
    let whom = format!("the server with pid {} to end", instance.pid);
    match waiting::on(whom, instance.stop(timeout)).await? {
        Stopped::WasNotRunning => println!("no server runs on {}", dir.display()),
        Stopped::Ended => println!("stopped the server with pid {}", instance.pid),
        Stopped::StillRunning => bail!("pid {} still runs after {timeout:?}", instance.pid),
    }
    Ok(0)
}
