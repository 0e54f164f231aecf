//! A server for tests: in this process, in memory, on a random port, with fault injection.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_apiserver::server::Fault;
//! use tenure_apiserver::TestServer;
//!
//! let server = TestServer::start().await?;
//! // The next two updates of leases are rejected. The third one takes effect, but its response is dropped.
//! let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
//! server.faults().add(Fault::answer(409).path(leases).verb("update").times(2));
//! server.faults().add(Fault::drop_answer().path(leases).verb("update").times(1));
//! println!("{} {}", server.url(), server.token());
//! # Ok(())
//! # }
//! ```
//!
//! The feature `client` provides a ready kube client, so that a test of a controller is short:
//!
//! ```
//! # #[cfg(feature = "client")]
//! # mod example {
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use futures_util::StreamExt as _;
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::api::{Api, Patch, PatchParams, PostParams};
//! use kube::runtime::controller::{Action, Controller};
//! use kube::runtime::watcher;
//! use tenure_apiserver::TestServer;
//! use tenure_apiserver::server::Fault;
//!
//! /// The controller under test: every ConfigMap gets `data.seen`.
//! async fn reconcile(map: Arc<ConfigMap>, client: Arc<kube::Client>) -> Result<Action, kube::Error> {
//!     let maps: Api<ConfigMap> = Api::namespaced((*client).clone(), "default");
//!     let name = map.metadata.name.as_deref().unwrap_or_default();
//!     let patch = serde_json::json!({ "data": { "seen": "yes" } });
//!     maps.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
//!     Ok(Action::await_change())
//! }
//!
//! pub async fn run() -> Result<(), Box<dyn std::error::Error>> {
//!     let server = TestServer::start().await?;
//!     let client = server.client()?;
//!     let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
//!
//!     // The first patch fails, and the controller must retry it.
//!     let fault = server.faults().add(Fault::answer(500).verb("patch").times(1));
//!     let retry = |_: Arc<ConfigMap>, _: &kube::Error, _: Arc<kube::Client>| {
//!         Action::requeue(Duration::from_millis(10))
//!     };
//!     let controller = Controller::new(maps.clone(), watcher::Config::default())
//!         .run(reconcile, retry, Arc::new(client));
//!     let controller = tokio::spawn(controller.for_each(async |_| ()));
//!
//!     let map = serde_json::from_value(serde_json::json!({ "metadata": { "name": "m" } }))?;
//!     maps.create(&PostParams::default(), &map).await?;
//!     loop {
//!         let data = maps.get("m").await?.data.unwrap_or_default();
//!         if data.contains_key("seen") {
//!             break;
//!         }
//!         tokio::time::sleep(Duration::from_millis(5)).await;
//!     }
//!     assert_eq!(fault.hits(), 1);
//!     controller.abort();
//!     Ok(())
//! }
//! # }
//! # #[cfg(feature = "client")]
//! # fn main() {
//! #     let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
//! #     let limit = std::time::Duration::from_secs(30);
//! #     runtime.block_on(async { tokio::time::timeout(limit, example::run()).await.unwrap().unwrap() });
//! # }
//! # #[cfg(not(feature = "client"))]
//! # fn main() {}
//! ```

use std::net::SocketAddr;
use std::sync::Arc;

use crate::auth::User;
use crate::server::{Builder, Faults, Handle, Server, StartError};
use crate::store::{Store, WriteError};

/// A server for one test. It stops when it is dropped.
#[must_use = "dropping the server ends it"]
pub struct TestServer {
    handle: Handle,
    token: String,
}

impl TestServer {
    /// Starts a server with plain HTTP on a random port of 127.0.0.1, in memory, with RBAC enabled.
    ///
    /// # Errors
    /// Returns an error if there is no free port.
    pub async fn start() -> Result<Self, StartError> {
        Self::start_with(Server::builder().no_tls()).await
    }

    /// Like [`start`](Self::start), with TLS and certificates for this server alone.
    ///
    /// # Errors
    /// Returns an error if there is no free port.
    pub async fn start_tls() -> Result<Self, StartError> {
        Self::start_with(Server::builder()).await
    }

    /// Starts a server as configured by the builder, with plain HTTP in addition.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub async fn start_with(builder: Builder) -> Result<Self, StartError> {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let handle = builder
            .insecure_listen(SocketAddr::from(([127, 0, 0, 1], 0)))
            .token(token.clone(), User::admin())
            .start()
            .await?;
        Ok(Self { handle, token })
    }

    /// URL for clients; `https` if the server has TLS.
    #[must_use]
    pub fn url(&self) -> &str {
        self.handle.url()
    }

    /// Token of the administrator.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Kubeconfig of the administrator, as text.
    #[must_use]
    pub fn kubeconfig(&self) -> &str {
        self.handle.kubeconfig()
    }

    /// The faults to inject.
    #[must_use]
    pub fn faults(&self) -> &Arc<Faults> {
        self.handle.faults()
    }

    /// The store behind the API.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        self.handle.store()
    }

    /// Raises the revision like a restore from a backup: earlier watches and lists expire.
    ///
    /// # Errors
    /// Returns an error if the store rejects the write.
    pub async fn jump_revision(&self, by: u64) -> Result<u64, WriteError> {
        self.handle.store().jump(by).await
    }

    /// The handle of the server.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Shuts down gracefully, as on SIGTERM.
    pub async fn shutdown(self) {
        self.handle.shutdown().await;
    }

    /// Returns a kube client for the administrator.
    ///
    /// # Errors
    /// Returns an error if the client cannot be created.
    #[cfg(any(test, feature = "client"))]
    pub fn client(&self) -> Result<kube::Client, kube::Error> {
        self.client_with_token(&self.token)
    }

    /// Returns a kube client that uses this token, for tests as another user.
    ///
    /// # Errors
    /// Returns an error if the client cannot be created.
    #[cfg(any(test, feature = "client"))]
    pub fn client_with_token(&self, token: &str) -> Result<kube::Client, kube::Error> {
        use kube::config::AuthInfo;
        let url = self.handle.insecure_url().unwrap_or(self.url());
        let url = url
            .parse()
            .map_err(|e: http::uri::InvalidUri| kube::Error::Service(Box::new(e)))?;
        let mut config = kube::Config::new(url);
        config.default_namespace = "default".into();
        config.auth_info = AuthInfo {
            token: Some(token.to_owned().into()),
            ..AuthInfo::default()
        };
        kube::Client::try_from(config)
    }
}
