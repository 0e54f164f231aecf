//! Simulator, invariants, mutants and model check for the election core.
//!
//! Place in the picture: nothing depends on this crate. It runs the real [`tenure_core::Election`]
//! against a simulated clock, network and API server, checks the promises of `docs/safety.md` (one
//! file each in [`invariants`]), and proves with seeded bugs that it would notice if they broke. The whole
//! driver, [`tenure::Elector`], runs over a simulated network as well, in fewer runs.
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
