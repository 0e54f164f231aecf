//! The driver over HTTP, against the API server of this project: watches, permissions, faults.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod coordinated;
mod faults;
mod orders;
mod server;
mod watches;
