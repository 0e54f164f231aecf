//! The driver against a lock in memory, on tokio's paused time: nothing here really sleeps.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod term;
mod wire;
