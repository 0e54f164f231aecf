//! The manager over HTTP, against the API server of this project.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait, they decide no election"
)]

mod faults;
mod migration;
mod order;
mod policies;
mod shards;
mod site;
mod terms;
mod warm;
mod wrangler;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::config::Kubeconfig;
use kube::{Api, Client, Config};
use tenure_apiserver::TestServer;
use tenure_manager::{Builder, Error, Manager};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(30);

async fn config(server: &TestServer) -> Config {
    read_config(server.kubeconfig()).await
}

async fn read_config(kubeconfig: &str) -> Config {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let options = Default::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.unwrap();
    config.default_namespace = "default".into();
    config
}

/// A manager with quick elections.
async fn quick(server: &TestServer) -> Builder {
    Manager::builder(config(server).await).elections(|election| {
        election
            .lease_duration(Duration::from_secs(2))
            .renew_deadline(Duration::from_millis(1_000))
            .retry_period(Duration::from_millis(100))
            .events(false)
    })
}

/// A manager that runs until it is asked to stop.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    fn start(manager: Manager) -> Self {
        let (stop, asked) = oneshot::channel();
        Self {
            stop: Some(stop),
            task: tokio::spawn(manager.run(asked)),
        }
    }

    async fn stop(mut self) -> Result<(), Error> {
        drop(self.stop.take());
        self.end().await
    }

    /// Waits until it ends by itself, or as it was asked to.
    async fn end(self) -> Result<(), Error> {
        let _keep = self.stop;
        let ended = tokio::time::timeout(LIMIT, self.task).await;
        ended.expect("it ends").unwrap()
    }
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn say(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, what: &str) -> usize {
        self.all().iter().filter(|said| *said == what).count()
    }

    /// Waits until it was said so many times.
    async fn wait(&self, what: &str, times: usize) {
        until(&format!("{times} times {what}"), || {
            self.count(what) >= times
        })
        .await;
    }
}

/// Waits until something is so.
async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let wait = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, wait).await;
    assert!(waited.is_ok(), "not in time: {what}");
}

async fn holder(client: &Client, lease: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let lease = leases.get_opt(lease).await.unwrap()?;
    lease.spec?.holder_identity
}
