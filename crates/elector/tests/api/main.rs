//! The driver over HTTP, against the API server of this project: watches, permissions, faults.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod client;
mod coordinated;
mod death;
mod faults;
#[cfg(feature = "http2")]
mod http2;
mod members;
mod orders;
mod ranks;
mod server;
mod watches;
