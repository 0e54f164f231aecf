//! Every order in which the threads of a term can run, checked with loom.
//!
//! Several threads share a term: the driver extends and ends it, the deadline thread ends it if the driver is
//! stuck, and the work asks whether it still leads. The models run the files that these threads
//! share (`crates/elector/src/deadline` and `tenure/cell.rs`). They compile those files a second time, next to a
//! `crate::sync` that is loom's and a `crate::clock` that the models move. The files are neither copied nor changed.
//!
//! | substituted | by |
//! |---|---|
//! | `sync.rs` | loom's locks and atomics; tokio's `Notify` with a switch of threads before each call |
//! | `clock.rs` | a clock that moves only when a model moves it |
//! | `deadline/thread.rs` | a board per run, and a thread that the model starts |
//! | `handle.rs`, `hub` | a `Link` that records the reports of a term |
//!
//! Loom finds a wake-up that is lost as a deadlock: no thread can run, and not all have ended.
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

/// A mistake that a model must find. The models make it themselves, with the parts of the checked files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// The code as it is.
    None,
    /// The board notifies its thread before it adds what is to be watched.
    NotifyBeforeAdd,
    /// A moved deadline does not wake the thread.
    NoWake,
    /// The thread is woken without the lock, and may be between its look and its sleep.
    WakeWithoutLock,
    /// The thread gives the lock back between its look and its sleep.
    SleepWithoutLock,
    /// The board is asked for a look before the deadline is moved.
    LookBeforeMove,
    /// The board is asked for a look before the term is ended.
    LookBeforeEnd,
    /// The end of a term is not a reason to look.
    NoLookAfterEnd,
    /// The request for a look is a plain store, which the exchange that clears requests need not see.
    RequestStored,
    /// The look clears the request for another look after it instead of before.
    RequestClearedLate,
    /// The clock is read before the guard.
    ClockBeforeGuard,
    /// The end of the term is read before the guard.
    EndBeforeGuard,
    /// A hook is added without a look at the end under the lock.
    HookWithoutLock,
    /// The end is looked at before the wait for it begins.
    CheckBeforeWait,
    /// A report is sent after the lock on the count of handles is given back.
    ReportWithoutLock,
    /// Two threads that act on an overrun both find that nobody did.
    OverrunCheckedApart,
    /// The thread that ends an expired term replaces the deadline that the driver has set.
    DeadlineReplaced,
}
