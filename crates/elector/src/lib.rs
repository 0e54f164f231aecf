//! Leader election for Kubernetes: wire-identical to client-go, safer and faster.
//!
//! ```toml
//! [dependencies]
//! tenure = "0.1"
//! kube = { version = "5", default-features = false, features = ["client", "rustls-tls", "ring"] }
//! k8s-openapi = { version = "0.29", features = ["latest"] } # kube wants a version of Kubernetes chosen
//! tokio = { version = "1", features = ["macros", "rt", "signal"] }
//! ```
//!
//! A program that does its work in one replica at a time, and hands over immediately on Ctrl-C:
//!
//! ```no_run
//! use tenure::{Elector, Tenure};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = tenure::client(kube::Config::infer().await?)?;
//!     let elector = Elector::lease(client, "default", "my-lease").build()?;
//!     let terms = elector.campaign(tokio::signal::ctrl_c(), work).await;
//!     println!("led {terms} times");
//!     Ok(())
//! }
//!
//! async fn work(tenure: Tenure) {
//!     println!("leading, token {}", tenure.token());
//!     // Ask `tenure.is_leading()` before each effect, and send the token along with it.
//!     tenure.cancelled().await;
//!     // Wind down: nobody else leads before this returns.
//! }
//! ```
//!
//! The same without a cluster, for tests:
//!
//! ```
//! use std::sync::Arc;
//! use tenure::{Elector, MemoryLock};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let elector = Elector::builder(Arc::new(MemoryLock::new("my-lease"))).build()?;
//! let never = std::future::pending::<()>();
//! let ended = elector
//!     .run(never, |tenure| async move {
//!         assert!(tenure.is_leading());
//!         tenure.token().to_string()
//!     })
//!     .await;
//! assert_eq!(ended.output().as_deref(), Some("1"));
//! # Ok(()) }
//! ```
//!
//! This crate is the driver that users import. It connects the pure state machine of `tenure-core` with locks, clocks
//! and work, and makes no election decisions itself. It contains no HTTP server. A program that implements a lock, or
//! writes orders to an election, also depends on `tenure-lock`.
//!
//! | task | items |
//! |---|---|
//! | configure | [`Elector::lease`], [`Builder`] |
//! | run one term, or campaign repeatedly | [`Elector::run`], [`Elector::campaign`], [`Callbacks`] |
//! | check the term inside the work | [`Tenure`] |
//! | tasks and threads of the work | [`Tenure::spawn`], [`Tenure::spawn_blocking`], [`TaskSet`] |
//! | query from outside, step down | [`Handle`], [`Status`], [`Health`], [`Metrics`] |
//! | know which other candidates exist | [`Builder::announce`], [`Membership`] |
//! | prefer candidates of higher priority | [`Builder::rank`], [`Ranking`] |
//! | many elections | [`Hub`], [`Candidate`], [`Event`], [`Term`]; `client_http2` of the feature `http2` |
//! | take over without a wait from a holder that is proved dead | [`Builder::confirm_death`], [`HostProof`], [`PodProof`], [`NodeProof`], [`DeathProof`] |
//! | end work on time even if the runtime is stuck | [`deadline`], [`Overrun`] |
#![forbid(unsafe_code)]

mod builder;
mod callbacks;
mod candidate;
mod client;
pub mod clock;
pub mod deadline;
mod death;
mod elector;
mod error;
mod events;
mod handle;
mod health;
mod hub;
pub mod identity;
mod member;
pub mod metrics;
mod plain;
mod shared;
mod status;
mod sync;
mod tenure;
mod term;
mod work;

pub use builder::{Builder, Coordinated};
pub use callbacks::Callbacks;
pub use candidate::{Candidate, Event};
pub use client::{
    ProxyError, USER_AGENT, client, proxy_from_environment, read_kubeconfig, work_client,
};
#[cfg(feature = "http2")]
pub use client::{client_http2, work_client_http2};
pub use deadline::Overrun;
pub use death::{
    AccessRule, DeathProof, HostProof, NodeProof, PodProof, Unavailable, UnknownContainer,
    UnknownNode,
};
pub use elector::{Elector, Ended};
pub use error::{BuildError, Problem};
pub use handle::Handle;
pub use health::{Health, HealthAdaptor, Trouble, Unhealthy};
pub use hub::Hub;
pub use member::{Membership, Ranking};
pub use metrics::Metrics;
pub use plain::plain;
pub use status::Status;
pub use tenure::{NotLeading, Tenure};
pub use term::Term;
pub use work::TaskSet;

pub use tenure_core::death::{ContainerEnd, Evidence};
pub use tenure_core::timing::TimingProblem;
pub use tenure_core::{Container, Incarnation, Place, Process};
pub use tenure_core::{Failback, FencingToken, LocalTime, Now, StopReason, Timing, WallTime};
pub use tenure_lock::member::{Announcement, Member};
pub use tenure_lock::{Error as LockError, Lock, LockKind, MemoryLock};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
