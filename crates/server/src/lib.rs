//! A server in the style of k3s: the embedded API server, or a remote one, with controllers under the manager.
//!
//! ```no_run
//! use tenure_apiserver::server::{Engine, Server as ApiServer};
//! use tenure_manager::Runnable;
//! use tenure_server::Server;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), tenure_server::Error> {
//! let api = ApiServer::builder().data_dir("/var/lib/mine").engine(Engine::Redb);
//! Server::embedded(api)
//!     .with_controllers(|manager, _client| {
//!         manager
//!             .every(Runnable::new("tunnel", |scope| async move { scope.cancelled().await }))
//!             .leader("mine", Runnable::new("helm", |scope| async move { scope.cancelled().await }))
//!     })
//!     .start()
//!     .await?
//!     .run_until_signal()
//!     .await
//! # }
//! ```
//!
//! This crate builds on the manager and the API server. They are combined only here, and communicate over HTTP.
//!
//! | controller | task |
//! |---|---|
//! | `default-service-account`, `root-ca` | a `default` ServiceAccount and a `kube-root-ca.crt` ConfigMap in each namespace |
//! | `garbage-collector` | deletes objects whose owners are gone; performs foreground and orphan deletions |
//! | `manifests` | applies the files of folders, and deletes objects that are removed from the files |
//! | `namespace-purge` | empties namespaces that are being deleted, where the API server does not |
//! | `persistentvolume-binder` | binds claims and volumes, requests volumes from provisioners, sets the phases of both |
//! | `pvc-protection`, `pv-protection` | keep claims that pods use, and volumes that are bound |
//! | `first-consumer` | selects a node for claims that wait for their first pod; does not schedule the pod |
//!
//! Events do not need a controller, because they expire in the API server, both in the embedded one and in the real
//! one.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "pauses between lists; elections are decided in the elector"
)]

mod collector;
mod manifests;
mod namespaces;
mod purge;
mod resources;
mod server;
mod storage;
mod work;

pub use manifests::FirstPass;
pub use server::{CONTROLLERS, Error, GROUP, Server, Started, shutdown_signal};
