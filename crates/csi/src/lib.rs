//! The Container Storage Interface as a provisioner speaks it.
//!
//! Place in the picture: below the provisioner. It knows one driver on one unix socket, and neither
//! Kubernetes nor elections.
//!
//! | what | where |
//! |---|---|
//! | messages of CSI 1.12 | [`v1`] |
//! | connect, probe, call, notice the loss | [`Driver`] |
//! | what the driver can do | [`Facts`] |
//! | what a failed call tells | [`CallError`], [`Code`] |
//! | `csi_sidecar_operations_seconds` | [`Metrics`] |
//! | a driver for tests | `mock`, with the feature of that name |
//!
//! Secrets reach the driver and nothing else: requests that carry them show
//! [`STRIPPED`] in their place when they are logged.
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
