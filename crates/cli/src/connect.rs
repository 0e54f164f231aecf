//! Which API server to talk to.
//!
//! In order: `--kubeconfig`, `$KUBECONFIG`, the cluster this pod runs in, `~/.kube/config`, and with
//! none of these the embedded server of this machine. Inside Kubernetes the last is never taken:
//! every pod would elect itself.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::waiting;

/// Flags that say where to connect.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Connect {
    /// The kubeconfig file to use
    #[arg(long, value_name = "FILE", env = "TENURE_KUBECONFIG", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, value_name = "NAME", env = "TENURE_CONTEXT", global = true)]
    pub(crate) context: Option<String>,
    /// Never fall back to the embedded server of this machine
    #[arg(long, env = "TENURE_REQUIRE_CLUSTER", global = true)]
    pub(crate) require_cluster: bool,
    /// The service account of this pod and nothing else.
    #[arg(skip)]
    pub(crate) in_cluster: bool,
}

impl Connect {
    /// Finds the API server, starting the embedded one if it comes to that.
    pub(crate) async fn config(&self) -> Result<Config> {
        if self.in_cluster {
            return Config::incluster()
                .context("--use-cluster-credentials: this is no pod with a service account");
        }
        if let Some(file) = &self.kubeconfig {
            return self.read_file(file).await;
        }
        if let Some(kubeconfig) = Kubeconfig::from_env().context("KUBECONFIG")? {
            return self.choose(kubeconfig).await.context("KUBECONFIG");
        }
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            return Config::incluster().context(
                "inside Kubernetes (KUBERNETES_SERVICE_HOST is set), but no service account",
            );
        }
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
        if let Some(file) = home.filter(|file| file.exists()) {
            return self.read_file(&file).await;
        }
        if self.context.is_some() {
            bail!("--context needs a kubeconfig: give --kubeconfig or set KUBECONFIG");
        }
        if self.require_cluster {
            bail!("no cluster: --kubeconfig, KUBECONFIG and ~/.kube/config are all absent");
        }
        #[cfg(feature = "server")]
        return {
            let started = waiting::on("the local server to start", crate::local::ensure()).await?;
            self.read_file(&started).await
        };
        #[cfg(not(feature = "server"))]
        bail!(
            "no cluster: --kubeconfig, KUBECONFIG and ~/.kube/config are all absent, and this build \
             has no embedded server"
        );
    }

    async fn read_file(&self, file: &PathBuf) -> Result<Config> {
        let named = || format!("kubeconfig {}", file.display());
        let kubeconfig = Kubeconfig::read_from(file).with_context(named)?;
        self.choose(kubeconfig).await.with_context(named)
    }

    async fn choose(&self, kubeconfig: Kubeconfig) -> Result<Config> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..Default::default()
        };
        Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?)
    }
}

/// A client for it. A credential plugin blocks the thread that makes it, and may take its time.
pub(crate) async fn client(config: Config) -> Result<Client> {
    open(config, |config| Ok(Client::try_from(config)?)).await
}

/// The same with requests that are fit for elections.
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
    client.with_context(|| format!("cannot make a client for {url}"))
}
