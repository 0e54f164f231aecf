//! Leader election for Kubernetes: wire-identical to client-go, safer and faster.
//!
//! ```no_run
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = tenure::client(kube::Config::infer().await?)?;
//!     let elector = tenure::Elector::lease(client, "default", "my-lease").build()?;
//!     let shutdown = std::future::pending::<()>(); // such as tokio::signal::ctrl_c()
//!     elector
//!         .campaign(shutdown, |tenure| async move {
//!             println!("leading, token {}", tenure.token());
//!             tenure.cancelled().await;
//!         })
//!         .await;
//!     Ok(())
//! }
//! ```
//!
//! Place in the picture: the driver that users import. It connects the pure state machine of
//! `tenure-core` with locks, clocks and work, and makes no election decision itself. It knows no HTTP
//! server.
//!
//! | what | where |
//! |---|---|
//! | configure | [`Elector::lease`], [`Builder`] |
//! | run one term, or campaign for ever | [`Elector::run`], [`Elector::campaign`], [`Callbacks`] |
//! | ask inside the work | [`Tenure`] |
//! | look from outside, step down | [`Handle`], [`Status`], [`Health`], [`Metrics`] |
//! | many elections | [`Hub`], [`Candidate`], [`Event`], [`Term`] |
//! | the promise kept when the runtime is stuck | [`deadline`], [`Overrun`] |
#![forbid(unsafe_code)]

mod builder;
mod callbacks;
mod client;
pub mod clock;
pub mod deadline;
mod elector;
mod error;
mod events;
mod guard;
mod handle;
mod health;
mod hub;
pub mod identity;
pub mod metrics;
mod status;

pub use builder::{Builder, Coordinated};
pub use callbacks::Callbacks;
pub use client::{USER_AGENT, client};
pub use deadline::Overrun;
pub use elector::{Elector, Ended};
pub use error::{BuildError, Problem};
pub use guard::{NotLeading, Tenure};
pub use handle::{Candidate, Event, Handle, Term};
pub use health::{Health, HealthAdaptor, Trouble, Unhealthy};
pub use hub::Hub;
pub use metrics::Metrics;
pub use status::Status;

pub use tenure_core as core;
pub use tenure_core::{FencingToken, StopReason, Timing};
pub use tenure_lock as lock;
pub use tenure_lock::{Lock, LockKind, MemoryLock};
