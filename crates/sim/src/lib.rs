//! Simulator, invariants, mutants and model check for the election core.
//!
//! No other crate depends on this crate, except tests. It runs the real [`tenure_core::Election`] against a simulated
//! clock, network and API server, and checks the guarantees of `docs/book/explanation/safety.md` (one file each in
//! [`invariants`]). Seeded bugs prove that it detects violations. The whole driver, [`tenure::Elector`], also runs
//! over a simulated network, in fewer runs.
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "simulated times and counts are far below the limits of their types"
)]

pub(crate) mod caught;
pub mod cli;
pub mod client_go;
pub mod clock;
pub mod fault;
pub mod hunt;
pub mod invariants;
pub(crate) mod life;
pub mod machine;
pub mod model;
pub(crate) mod node;
pub mod pair;
pub mod plan;
pub mod refine;
pub mod register;
pub mod rng;
pub mod shards;
pub(crate) mod stack;
pub mod sweep;
pub mod totals;
pub mod world;

pub use machine::Kind;
pub use world::{Report, World};

#[cfg(test)]
mod tests;
