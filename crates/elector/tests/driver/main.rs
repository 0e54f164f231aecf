//! Tests of the driver with a lock in memory and tokio's paused time, so that almost no test really waits.
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
