//! Selects the API server.
//!
//! The first of these is used: `--kubeconfig`, `$KUBECONFIG`, the cluster this pod runs in, `~/.kube/config`, the
//! embedded server of this machine.
//!
//! The embedded server is private to one machine: a job that runs "on one machine of the fleet" would run on all of
//! them. It is therefore used only if a user can see the note about it, because standard error is a terminal, or with
//! `--local`. Inside Kubernetes it needs `--local`, because otherwise every pod would elect itself.
//!
//! Proxies are selected like in kubectl: `proxy-url` of the kubeconfig, otherwise the environment. A server on this
//! machine is never accessed through a proxy.

use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use clap::Args;
#[cfg(feature = "provision")]
use http::Uri;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde::{Deserialize, Serialize};

use crate::waiting;

/// If set, the embedded server may be used without a terminal when no cluster is configured.
#[cfg(feature = "server")]
const ALLOW_LOCAL: &str = "TENURE_ALLOW_LOCAL";

/// Flags that select the API server.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Connect {
    /// Kubeconfig file [default: like kubectl]
    ///
    /// By default the first of these is used: $KUBECONFIG, the cluster of the pod, ~/.kube/config, the embedded server.
    #[arg(long, value_name = "FILE", env = "TENURE_KUBECONFIG", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME", env = "TENURE_CONTEXT", global = true)]
    pub(crate) context: Option<String>,
    /// Use the embedded server of this machine
    ///
    /// Other machines cannot see it.
    #[cfg(feature = "server")]
    #[arg(long, global = true, conflicts_with_all = ["kubeconfig", "context", "require_cluster"])]
    pub(crate) local: bool,
    /// Never use the embedded server
    #[arg(long, env = "TENURE_REQUIRE_CLUSTER", global = true)]
    pub(crate) require_cluster: bool,
    /// Use only the service account of this pod.
    #[arg(skip)]
    pub(crate) in_cluster: bool,
}

/// The exit code if no API server was found: `EX_CONFIG` of sysexits.h.
pub(crate) const NO_CLUSTER_CODE: u8 = 78;

/// No API server is configured, and the embedded one may not be used.
#[derive(Debug)]
pub(crate) struct NoCluster {
    /// Options that name an API server, for the error message.
    ways: &'static str,
}

impl fmt::Display for NoCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no cluster found: {}", self.ways)
    }
}

impl std::error::Error for NoCluster {}

/// A connection to one namespace.
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// Address of the API server, for messages.
    pub(crate) server: String,
}

impl Connect {
    /// Connects, and selects the given namespace or that of the context.
    pub(crate) async fn open(&self, namespace: Option<&str>) -> Result<Opened> {
        let config = self.config().await?;
        let namespace = namespace.unwrap_or(&config.default_namespace).to_owned();
        let server = config.cluster_url.to_string();
        let client = client(config).await?;
        Ok(Opened {
            client,
            namespace,
            server,
        })
    }

    /// Finds the API server. Starts the embedded one if there is no other.
    pub(crate) async fn config(&self) -> Result<Config> {
        Ok(self.config_and_way().await?.0)
    }

    /// Like [`config`](Self::config). Also returns flags with which another process of this machine finds the same
    /// server, and never starts one.
    pub(crate) async fn config_and_way(&self) -> Result<(Config, Self)> {
        let (config, embedded) = self.find().await?;
        let way = Self {
            kubeconfig: embedded.or_else(|| self.kubeconfig.clone()),
            require_cluster: true,
            #[cfg(feature = "server")]
            local: false,
            ..self.clone()
        };
        Ok((proxied(config)?, way))
    }

    /// Finds the API server like client-go's `BuildConfigFromFlags`. A URL without a kubeconfig is used without
    /// credentials. With a kubeconfig, the URL replaces the server, and the credentials of the kubeconfig are kept.
    /// Without a URL and a kubeconfig, only the service account of the pod is used. Never uses `~/.kube/config` or the
    /// embedded server.
    #[cfg(feature = "provision")]
    pub(crate) async fn config_from_flags(&self, master: Option<&str>) -> Result<Config> {
        let kubeconfig = match from_environment()? {
            // As in csi-provisioner, the environment has precedence.
            Some(kubeconfig) => Some(self.choose(kubeconfig).await.context("KUBECONFIG")?),
            None => match &self.kubeconfig {
                Some(file) => Some(self.read_file(file).await?),
                None => None,
            },
        };
        let config = match (kubeconfig, master) {
            (Some(mut config), Some(master)) => {
                config.cluster_url = server_url(master, is_for_tls(&config))?;
                // The TLS name belongs to the replaced server.
                config.tls_server_name = None;
                config
            }
            (Some(config), None) => config,
            (None, Some(master)) => Config::new(server_url(master, false)?),
            (None, None) => Config::incluster().context(
                "no API server: give --kubeconfig or --master, or run in a pod with a service account",
            )?,
        };
        proxied(config)
    }

    /// Returns the configuration, and the kubeconfig of the embedded server if it is used.
    async fn find(&self) -> Result<(Config, Option<PathBuf>)> {
        #[cfg(feature = "server")]
        if self.local && !self.in_cluster {
            // clap does not detect a conflict between a flag before the subcommand and one after it.
            if self.require_cluster || self.kubeconfig.is_some() || self.context.is_some() {
                bail!("--local cannot be used with --kubeconfig, --context or --require-cluster");
            }
            return self.embedded("--local").await;
        }
        if let Some(config) = self.configured().await? {
            return Ok((config, None));
        }
        #[cfg(feature = "server")]
        if !self.require_cluster && (seen_by_a_person() || std::env::var_os(ALLOW_LOCAL).is_some())
        {
            return self.embedded("no cluster found").await;
        }
        let ways = if self.require_cluster || !cfg!(feature = "server") {
            "pass --kubeconfig FILE, set KUBECONFIG, or create ~/.kube/config"
        } else {
            "pass --kubeconfig FILE, set KUBECONFIG, or pass --local to use a server that only this machine can see"
        };
        Err(NoCluster { ways }.into())
    }

    /// Returns the cluster that is configured, if any.
    async fn configured(&self) -> Result<Option<Config>> {
        if self.in_cluster {
            return Config::incluster()
                .context("--use-cluster-credentials needs a pod with a service account")
                .map(Some);
        }
        if let Some(file) = &self.kubeconfig {
            return self.read_file(file).await.map(Some);
        }
        if let Some(kubeconfig) = from_environment()? {
            let files = std::env::var_os("KUBECONFIG").unwrap_or_default();
            warn_about(&std::env::split_paths(&files).collect::<Vec<_>>());
            return self
                .choose(kubeconfig)
                .await
                .context("KUBECONFIG")
                .map(Some);
        }
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            return Config::incluster()
                .context(
                    "KUBERNETES_SERVICE_HOST is set, but this pod has no service account token",
                )
                .map(Some);
        }
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
        if let Some(file) = home.filter(|file| file.exists()) {
            return self.read_file(&file).await.map(Some);
        }
        if self.context.is_some() {
            bail!("--context needs a kubeconfig: give --kubeconfig or set KUBECONFIG");
        }
        Ok(None)
    }

    /// Finds the embedded server of this machine, and starts it if it does not run. Prints `why` it is used.
    #[cfg(feature = "server")]
    async fn embedded(&self, why: &str) -> Result<(Config, Option<PathBuf>)> {
        let started = waiting::on("the local server to start", crate::local::ensure(why)).await?;
        let named = || format!("kubeconfig {}", started.display());
        tenure_host::files::tighten(&started).with_context(named)?;
        let config = self.read_file(&started).await?;
        Ok((config, Some(started)))
    }

    async fn read_file(&self, file: &PathBuf) -> Result<Config> {
        let named = || format!("kubeconfig {}", file.display());
        warn_about(std::slice::from_ref(file));
        let kubeconfig = Kubeconfig::read_from(file);
        let kubeconfig = kubeconfig.map_err(|error| unreadable(error, &named()))?;
        self.choose(kubeconfig).await.with_context(named)
    }

    async fn choose(&self, kubeconfig: Kubeconfig) -> Result<Config> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..Default::default()
        };
        Ok(tenure::read_kubeconfig(kubeconfig, &options).await?)
    }
}

/// Returns the address of the server as `host:port`, for people.
pub(crate) fn address_of(config: &Config) -> String {
    let url = &config.cluster_url;
    let default = match url.scheme_str() {
        Some("http") => 80,
        _ => 443,
    };
    let host = url.host().unwrap_or_default();
    format!("{host}:{}", url.port_u16().unwrap_or(default))
}

/// Reads the files of `KUBECONFIG`, if it is set.
fn from_environment() -> Result<Option<Kubeconfig>> {
    Kubeconfig::from_env().map_err(|error| {
        let files = std::env::var_os("KUBECONFIG").unwrap_or_default();
        unreadable(error, &format!("KUBECONFIG={}", files.display()))
    })
}

/// Adds the file to an error of kube, or `whole` if the error does not name one. kube prints the path in its debug form.
fn unreadable(error: KubeconfigError, whole: &str) -> anyhow::Error {
    match error {
        KubeconfigError::ReadConfig(error, file) => {
            anyhow::Error::new(error).context(format!("cannot read kubeconfig {}", file.display()))
        }
        other => anyhow::Error::new(other).context(whole.to_owned()),
    }
}

/// Warns once about kubeconfigs that other users can read or change, as helm does.
fn warn_about(files: &[PathBuf]) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    for warning in files
        .iter()
        .filter_map(|file| tenure_host::files::warning(file))
    {
        if !WARNED.swap(true, Ordering::Relaxed) {
            // The reader of standard error may have ended, which is not a reason to stop.
            let _ = writeln!(std::io::stderr(), "tenure: warning: kubeconfig {warning}");
        }
    }
}

/// Returns whether a user can see on a terminal that the embedded server is used.
#[cfg(feature = "server")]
fn seen_by_a_person() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr())
}

/// Sets the proxy that the environment names for this server, unless the kubeconfig names one.
fn proxied(mut config: Config) -> Result<Config> {
    if config.proxy_url.is_none() {
        config.proxy_url = tenure::proxy_from_environment(&config.cluster_url)?;
    }
    Ok(config)
}

/// Parses `--master`. As in client-go, a URL without a scheme uses https if the configuration contains TLS settings,
/// and http otherwise.
#[cfg(feature = "provision")]
fn server_url(master: &str, tls: bool) -> Result<Uri> {
    let whole = |text: &str| {
        let url = text.parse::<Uri>().ok()?;
        (url.scheme().is_some() && url.host().is_some()).then_some(url)
    };
    let scheme = if tls { "https" } else { "http" };
    let url = match master.contains("://") {
        true => whole(master),
        false => whole(&format!("{scheme}://{master}")),
    };
    url.with_context(|| format!("--master {master:?}: not a URL"))
}

#[cfg(feature = "provision")]
fn is_for_tls(config: &Config) -> bool {
    let user = &config.auth_info;
    config.root_cert.is_some()
        || config.accept_invalid_certs
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some()
}

/// Creates a client. A credential plugin blocks the thread that creates it, possibly for a long time.
pub(crate) async fn client(config: Config) -> Result<Client> {
    open(config, |config| Ok(tenure::work_client(config)?)).await
}

/// Creates a client that is suitable for elections.
pub(crate) async fn electing(config: Config) -> Result<Client> {
    open(config, |config| Ok(tenure::client(config)?)).await
}

async fn open(
    config: Config,
    make: impl FnOnce(Config) -> Result<Client> + Send + 'static,
) -> Result<Client> {
    let url = config.cluster_url.to_string();
    let whom = format!("the credentials for {url}");
    let client = waiting::on_blocking(whom, move || make(config)).await?;
    client.with_context(|| format!("cannot create a client for {url}"))
}

#[cfg(all(test, feature = "provision"))]
mod tests {
    use super::*;

    #[test]
    fn master_without_a_scheme_is_read_as_in_client_go() {
        let read = |text, tls| server_url(text, tls).map(|url| url.to_string());
        assert_eq!(read("https://a:1", false).unwrap(), "https://a:1/");
        assert_eq!(
            read("10.0.0.1:8080", false).unwrap(),
            "http://10.0.0.1:8080/"
        );
        assert_eq!(read("a:6443", true).unwrap(), "https://a:6443/");
        for wrong in ["", "http://", "a b"] {
            let error = read(wrong, false).unwrap_err().to_string();
            assert!(error.contains("not a URL"), "{error}");
        }
    }
}
