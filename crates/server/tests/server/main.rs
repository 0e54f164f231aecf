//! Servers with controllers, over HTTP.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait, they decide no election"
)]

mod collector;
mod derived;
mod idle;
mod manifests;
mod manifests_safety;
mod namespaces;
mod replicas;
mod storage;

use std::time::Duration;

use kube::config::Kubeconfig;
use kube::{Client, Config};
use tenure_apiserver::server::{Engine, Server as ApiServer};
use tenure_server::{Error, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(180);

/// Returns an embedded server in memory.
fn embedded() -> Server {
    let free = "127.0.0.1:0".parse().unwrap();
    Server::embedded(ApiServer::builder().engine(Engine::Memory).listen(free))
}

async fn config(kubeconfig: &str) -> Config {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let options = Default::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.unwrap()
}

/// A server that runs until it is stopped.
struct Running {
    client: Client,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    async fn start(server: Server) -> Self {
        let started = server.start().await.unwrap();
        let client = match started.api() {
            Some(api) => Client::try_from(config(api.kubeconfig()).await).unwrap(),
            None => started.manager().client(),
        };
        let (stop, asked) = oneshot::channel();
        Self {
            client,
            stop,
            task: tokio::spawn(started.run(asked)),
        }
    }

    async fn stop(self) {
        drop(self.stop);
        let ended = tokio::time::timeout(LIMIT, self.task).await;
        ended.expect("it ends").unwrap().unwrap();
    }
}

/// Waits until a condition holds.
async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, wait).await;
    assert!(waited.is_ok(), "not in time: {what}");
}
