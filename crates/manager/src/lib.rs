//! Controllers on every replica, leader controllers on the elected one: controller-runtime's manager
//! and k3s's start sequence for programs on kube-rs, with a safer hand-over.
//!
//! ```
//! # use tenure_apiserver::TestServer;
//! use tenure_manager::{Manager, Runnable, api_ready};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = TestServer::start().await?;
//! # let kubeconfig = kube::config::Kubeconfig::from_yaml(server.kubeconfig())?;
//! # let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
//! let (done, finished) = tokio::sync::mpsc::channel(1);
//! // let config = kube::Config::infer().await?;
//! Manager::builder(config)
//!     .gate(api_ready())
//!     .every(Runnable::new("hello", |scope| async move { scope.cancelled().await }))
//!     .leader("my-operator", Runnable::new("only-one", move |scope| {
//!         let done = done.clone();
//!         async move {
//!             println!("leading with token {}", scope.token().unwrap());
//!             let _ = done.send(()).await;
//!             scope.cancelled().await; // the lock is released after this has returned
//!         }
//!     }))
//!     .build()?
//!     .run(async { let mut finished = finished; finished.recv().await }) // or run_until_signal()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! Place in the picture: above the elector, below servers and programs. It knows nothing of API
//! servers but what it hears over HTTP, and makes no election decision.
//!
//! | what | where |
//! |---|---|
//! | configure and run | [`Manager`], [`Builder`] |
//! | what runs, and when it fails | [`Runnable`], [`Policy`], [`Scope`] |
//! | look at it, add to it | [`ManagerHandle`], [`GroupHandle`] |
//! | before anything runs | [`Startup`], [`Done`], [`api_ready`] |
//! | caches, warm standby | [`Cache`], [`Warm`] |
//! | work queue | [`queue`] |
//! | keys spread over all replicas | [`shard`] |
//! | moving controllers between programs | [`LeaderMigration`] |
//! | wrangler's front | [`wrangler`], [`run_or_die`] |
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "time here spaces retries and bounds waiting; elections are decided in the elector"
)]

mod builder;
mod cache;
mod elections;
mod error;
mod group;
mod handle;
mod health;
mod hooks;
mod http;
pub mod lean;
mod manager;
mod metrics;
mod migration;
pub mod queue;
mod ready;
mod runnable;
mod scope;
pub mod shard;
pub mod signals;
mod tasks;
mod warm;
pub mod wrangler;

pub use builder::Builder;
pub use cache::{Cache, Cached};
pub use error::Error;
pub use group::{GroupHandle, OnLoss};
pub use handle::ManagerHandle;
pub use hooks::{Done, Startup};
pub use manager::Manager;
pub use migration::{ControllerLeader, InvalidMigration, LeaderMigration, Placement};
pub use ready::{Gate, api_ready};
pub use runnable::{Backoff, Cause, Outcome, Policy, Runnable};
pub use scope::Scope;
pub use warm::{Next, Request, Warm};
pub use wrangler::run_or_die;

pub use prometheus_client::registry::Registry;

/// What docs/manager.md shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/manager.md")]
struct Page;
