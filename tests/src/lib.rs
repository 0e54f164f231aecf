//! The harness for tests with real processes. It builds and starts the real Kubernetes programs, runs candidates as
//! separate processes, reads their event lines and checks them.
//!
//! Tests at this level share one host clock, so the overlap of two leaders can be measured ([`overlap`]).

pub mod attack;
pub mod bench;
pub mod candidate;
pub mod clock;
pub mod differential;
pub mod embedded;
pub mod event;
pub mod forward;
pub mod home;
pub mod nemesis;
pub mod overlap;
pub mod process;
pub mod real;
pub mod record;
pub mod scenarios;
mod spawn;
pub mod stalls;
pub mod storage;
pub mod tools;
pub mod translation;
pub mod tutorial;
pub mod wire;

use std::io::Write;

/// Reason why a tier of tests did not run, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Skip(pub String);

impl Skip {
    /// Returns the value if it is available. Otherwise prints the reason on stderr, or fails the test if the tier is
    /// required.
    ///
    /// # Panics
    ///
    /// Panics with the reason if `TENURE_REAL=require` forbids skipping.
    pub fn unless<T>(available: Result<T, Self>) -> Option<T> {
        match available {
            Ok(value) => Some(value),
            Err(Self(reason)) if real::required() => panic!("required but not available: {reason}"),
            Err(Self(reason)) => {
                _ = writeln!(std::io::stderr(), "skipped: {reason}");
                None
            }
        }
    }
}
