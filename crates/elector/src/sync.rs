//! The locks and atomics of the state that the threads of a term share.
//!
//! `deadline` and `tenure/cell.rs` take them from here, so that `tests/races` can compile the same files with
//! the primitives of loom, and check every order in which the threads can run. `Arc` is not among them: how
//! long something lives does not depend on the order.

use std::sync::PoisonError;
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, atomic};

pub(crate) use tokio::sync::Notify;

/// Locks a mutex. A panic of another thread that held it is not passed on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
