//! The harness for tests with real processes: it builds and starts the real Kubernetes programs, runs
//! candidates as separate processes, reads their event lines and checks what they say.
//!
//! Tests at this level share one host clock. That is what makes the overlap of two leaders a number
//! instead of an argument ([`overlap`]).

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
mod spawn;
pub mod stalls;
pub mod storage;
pub mod tools;
pub mod translation;
pub mod wire;

use std::io::Write;

/// Why a tier of tests did not run. Says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Skip(pub String);

impl Skip {
    /// Passes what is available on. What is not is said on stderr, or fails the test where it is required.
    ///
    /// # Panics
    /// With the reason, if `TENURE_REAL=require` forbids skipping.
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
