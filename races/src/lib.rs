//! Checks with loom every order in which the threads of a term can run.
//!
//! Several threads share a term: the driver extends and ends it, the deadline thread ends it if the driver is stuck,
//! and the work asks whether it still leads. The models run the files that these threads share
//! (`crates/elector/src/deadline` and `tenure/cell.rs`). They compile those files a second time, with a `crate::sync`
//! that uses loom and a `crate::clock` that the models advance. The files are neither copied nor changed.
//!
//! | substituted | by |
//! |---|---|
//! | `sync.rs` | loom's locks and atomics; tokio's `Notify` with a switch of threads before each call |
//! | `clock.rs` | a clock that moves only when a model moves it |
//! | `deadline/thread.rs` | a board per run, and a thread that the model starts |
//! | `handle.rs`, `hub` | a `Link` that records the reports of a term |
//!
//! Loom reports a lost wake-up as a deadlock: no thread can run, and not all threads have ended.
//!
//! Each model takes a [`Bug`]. A test explores it without a bug and with each bug that it must find, so that a
//! model that cannot fail is noticed. At most four preemptions are explored per run.
#![cfg(test)]
#![allow(
    clippy::unit_arg,
    dead_code,
    unreachable_pub,
    reason = "the models use a part of the files that they share with the library, and other primitives"
)]

mod clock;
mod deadline;
mod explore;
mod tenure;
mod shared;
mod hub;
mod sync;

/// A bug that a model must find. The model itself contains the wrong sequence of calls, and uses the functions of the
/// checked files for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// The correct code.
    None,
    /// The board notifies its thread before it adds the new entry.
    NotifyBeforeAdd,
    /// A moved deadline does not wake the thread.
    NoWake,
    /// The thread is woken without the lock, so it may be between its check and its sleep.
    WakeWithoutLock,
    /// The thread releases the lock between its check and its sleep.
    SleepWithoutLock,
    /// A check is requested before the deadline is moved.
    LookBeforeMove,
    /// A check is requested before the term is ended.
    LookBeforeEnd,
    /// The end of a term does not request a check.
    NoLookAfterEnd,
    /// The request for a check is a plain store, so the swap that clears requests may miss it.
    RequestStored,
    /// The thread clears the request for a check after the check instead of before it.
    RequestClearedLate,
    /// The clock is read before the guard.
    ClockBeforeGuard,
    /// The end of the term is read before the guard.
    EndBeforeGuard,
    /// A hook is added without checking, under the lock, whether the term has ended.
    HookWithoutLock,
    /// The thread checks whether the term has ended before it registers for the notification of the end.
    CheckBeforeWait,
    /// A report is sent after the lock on the count of handles is released.
    ReportWithoutLock,
    /// Two threads both find that no thread has acted on the overrun yet, and both act.
    OverrunCheckedApart,
    /// The thread that ends an expired term replaces the deadline that the driver has set.
    DeadlineReplaced,
}
