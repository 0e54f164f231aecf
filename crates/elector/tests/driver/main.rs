//! The driver against a lock in memory, with tokio's paused time: almost nothing here really waits.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests, on paused time"
)]

mod callbacks;
mod clocks;
mod config;
mod death;
mod many;
mod observe;
mod outlive;
mod term;
mod traffic;
mod wire;
