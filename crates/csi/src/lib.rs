//! Client of the Container Storage Interface for a provisioner.
//!
//! The crate talks to one driver on one unix socket. It does not depend on Kubernetes or on elections.
//!
//! | what | where |
//! |---|---|
//! | messages of CSI 1.12 | [`v1`] |
//! | connect, probe, call, detect a lost connection | [`Driver`] |
//! | capabilities of the driver | [`Facts`] |
//! | errors of calls | [`CallError`], [`Code`] |
//! | `csi_sidecar_operations_seconds` | [`Metrics`] |
//! | a driver for tests | `mock`, with the feature of that name |
//!
//! Only the driver receives secrets. Log lines of requests contain [`STRIPPED`] in their place.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "calls and probes run on tokio's time; no election is decided here"
)]

mod driver;
mod error;
mod facts;
mod link;
mod metrics;
#[cfg(feature = "mock")]
pub mod mock;
mod secrets;

pub use driver::{Config, Driver};
pub use error::{CallError, Code, ConnectError, StartError};
pub use facts::{ControllerCapability, Facts, PluginCapability};
pub use metrics::Metrics;
pub use secrets::STRIPPED;

/// Messages and clients of CSI 1.12, generated from `proto/csi.proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}
