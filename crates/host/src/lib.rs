//! Protects the files and listeners of a process from other users and web pages of its host.
//!
//! - [`files`]: secrets that only their owner may read and change, and files that are replaced as a whole.
//! - [`listener`]: the HTTP listener for probes, metrics and pages, with limits for its clients.
//! - [`seats`]: the connections and streams that a listener admits.
//! - [`address`]: the address by which a client is counted.
//! - [`browser`]: rejects requests that a web page causes a browser to send to a listener of this host.
#![allow(
    clippy::disallowed_methods,
    reason = "pauses and limits of connections; elections are decided in the elector"
)]

pub mod address;
pub mod browser;
pub mod files;
pub mod listener;
mod prompt;
pub mod seats;
