//! The manager over HTTP, against the API server of this project.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait, they decide no election"
)]

mod additions;
mod faults;
mod gate;
mod health;
mod metrics;
mod migration;
mod order;
mod policies;
mod shard_numbers;
mod shards;
mod site;
mod terms;
mod warm;
mod wrangler;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::config::Kubeconfig;
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tenure_apiserver::TestServer;
use tenure_apiserver::store::{Key, Store};
use tenure_manager::{Builder, Error, Manager, Runnable};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Time limit for things that usually take milliseconds, because machines can be busy.
const LIMIT: Duration = Duration::from_secs(180);

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

/// Returns a manager with fast elections.
async fn quick(server: &TestServer) -> Builder {
    Manager::builder(config(server).await).elections(|election| {
        election
            .lease_duration(Duration::from_secs(2))
            .renew_deadline(Duration::from_millis(1_000))
            .retry_period(Duration::from_millis(100))
            .events(false)
    })
}

/// A manager that runs until it is stopped.
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

    /// Waits until it ends by itself or after a request.
    async fn end(self) -> Result<(), Error> {
        let _keep = self.stop;
        let ended = tokio::time::timeout(LIMIT, self.task).await;
        ended.expect("it ends").unwrap()
    }
}

/// Log messages of this thread, and therefore of all tasks of a test with one thread.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

thread_local! {
    static LISTENING: RefCell<Logged> = RefCell::default();
}

impl Logged {
    /// Starts to record. One subscriber serves all tests. With one per test, messages could get lost while subscribers
    /// are added and removed.
    fn listen() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(|| LISTENING.with_borrow(Self::clone))
                .init();
        });
        let logged = Self::default();
        LISTENING.set(logged.clone());
        logged
    }

    /// Returns the lines with this text.
    fn lines(&self, text: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        let all = String::from_utf8_lossy(&bytes);
        let lines = all.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }
}

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Log of what happened, in order.
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

    /// Waits until an entry was logged this many times.
    async fn wait(&self, what: &str, times: usize) {
        until(&format!("{times} times {what}"), || {
            self.count(what) >= times
        })
        .await;
    }
}

/// Logs when it starts and when it has stopped.
fn speaker(name: &'static str, log: &Log) -> Runnable {
    let log = log.clone();
    Runnable::new(name, move |scope| {
        let log = log.clone();
        async move {
            log.say(format!("{name} starts"));
            scope.cancelled().await;
            log.say(format!("{name} stopped"));
        }
    })
}

/// Waits until a condition holds.
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

/// Returns a lease as stored at this instant, even while the server does not respond.
fn lease_spec(store: &dyn Store, name: &str) -> Value {
    let key = Key {
        resource: "coordination.k8s.io/leases".into(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
    };
    let lease = store.get(&key).expect("the lease");
    let mut lease: Value = serde_json::from_slice(&lease.json).unwrap();
    lease["spec"].take()
}

/// Takes the lease as another candidate would.
async fn steal(server: &TestServer, lease: &str) {
    give(server, lease, "thief", 1).await;
}

async fn give(server: &TestServer, lease: &str, holder: &str, seconds: u32) {
    let leases: Api<Lease> = Api::namespaced(server.client().unwrap(), "default");
    let patch = json!({ "spec": { "holderIdentity": holder, "leaseDurationSeconds": seconds } });
    let patch = Patch::Merge(patch);
    let stolen = leases.patch(lease, &PatchParams::default(), &patch).await;
    stolen.unwrap();
}
