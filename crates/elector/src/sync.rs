//! The locks and atomics of the state that the threads of a term share.
//!
//! `deadline` and `tenure/cell.rs` import them from here, so that `races` can compile the same files with the
//! primitives of loom. Loom checks every order in which the threads can run. `Arc` is not included, because the
//! lifetime of a value does not depend on that order.

use std::sync::PoisonError;
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, atomic};

pub(crate) use tokio::sync::Notify;

/// Locks a mutex. Ignores that another thread may have panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
