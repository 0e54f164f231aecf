//! Runs models.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Bug;
use crate::sync::{self, Timeouts};

/// Maximum number of times that a thread is interrupted in a run. With five, one model takes half a minute.
const PREEMPTIONS: usize = 4;

/// Checks that the model passes in every explored run, and that it fails with each of the bugs. The message of the
/// failure must contain the text next to the bug.
pub(crate) fn explore(timeouts: Timeouts, model: fn(Bug), bugs: &[(Bug, &str)]) {
    let runs = run(timeouts, model, Bug::None);
    println!("{runs} runs");
    assert!(runs > 1, "there is no race to check");
    for &(bug, text) in bugs {
        let found = catch_unwind(AssertUnwindSafe(|| run(timeouts, model, bug)));
        let Err(panic) = found else {
            panic!("the model does not find {bug:?}");
        };
        let message = match panic.downcast_ref::<String>() {
            Some(message) => message.as_str(),
            None => panic.downcast_ref::<&str>().copied().unwrap_or_default(),
        };
        assert!(message.contains(text), "{bug:?} found by {message:?}");
    }
}

/// Returns the number of runs.
fn run(timeouts: Timeouts, model: fn(Bug), bug: Bug) -> u64 {
    let runs = Arc::new(AtomicU64::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.max_branches = 2_000;
    builder.check({
        let runs = runs.clone();
        move || {
            runs.fetch_add(1, Ordering::Relaxed);
            sync::reset(timeouts);
            crate::clock::reset();
            crate::deadline::reset();
            model(bug);
        }
    });
    runs.load(Ordering::Relaxed)
}
