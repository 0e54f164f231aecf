//! Controllers on every replica, leader controllers on the elected one: controller-runtime's manager and k3s's start
//! sequence for programs based on kube-rs, with a safer hand-over.
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
//! This crate builds on the elector, and servers and programs build on it. It communicates with API servers only over
//! HTTP, and makes no election decisions.
//!
//! | task | items |
//! |---|---|
//! | configure and run | [`Manager`], [`Builder`] |
//! | define work and its failure policy | [`Runnable`], [`Policy`], [`Scope`] |
//! | query a running manager, add work to it | [`ManagerHandle`], [`GroupHandle`] |
//! | run code before controllers start | [`Startup`], [`Done`], [`api_ready`] |
//! | use caches and a warm standby | [`Cache`], [`Warm`] |
//! | use a work queue | [`queue`] |
//! | distribute keys over all replicas | [`shard`] |
//! | move controllers between programs | [`LeaderMigration`] |
//! | use wrangler's API | [`wrangler`], [`run_or_die`] |
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

/// Compiles the examples in docs/book/explanation/manager.md.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/explanation/manager.md")]
struct Page;

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the examples in the README of the project.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ProjectReadme;
