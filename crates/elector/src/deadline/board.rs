//! The entries that the deadline thread checks, and when it checks and sleeps.
//!
//! Invariant: the thread does not sleep past an entry that becomes due while it decides to sleep. It checks an entry
//! that was added, or was moved with [`Board::look_now`], before it sleeps. It checks a change that was announced with
//! [`Board::look_again`] after at most one sleep.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Now;

use crate::clock::{Clock, SystemClock};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};

/// Maximum time between two checks of the clocks.
pub(super) const LONGEST_LOOK: Duration = Duration::from_millis(250);

/// An entry that the thread checks.
pub(super) trait Watched: Send + Sync {
    /// Performs due actions, and returns the time until the next check; `None` if no check is needed any more. Code
    /// that shortens this time must call [`Board::look_now`] or [`Board::look_again`] afterwards.
    fn look(&self) -> Option<Duration>;

    /// Returns whether the remaining time is measured with [`SystemClock`].
    fn on_system_clock(&self) -> bool;
}

/// Time that has passed on [`SystemClock`] since the first check. Each interval between two checks is measured by the
/// clock that advanced further, as in a [`Guard`](tenure_core::Guard). An entry with more remaining time than has
/// passed therefore cannot be due, regardless of jumps of the clocks.
#[derive(Default)]
pub(super) struct Tally {
    last: Option<Now>,
    passed: Duration,
}

impl Tally {
    pub(super) fn at(&mut self, now: Now) -> Duration {
        if let Some(last) = self.last.replace(now) {
            let local = now.local.since(last.local);
            self.passed += local.max(now.wall.advanced_since(last.wall));
        }
        self.passed
    }
}

pub(super) struct Held {
    pub(super) watched: Arc<dyn Watched>,
    /// Value of the [`Tally`] from which the entry must be checked.
    pub(super) due: Duration,
}

#[derive(Default)]
pub(super) struct Board {
    pub(super) held: Mutex<Vec<Held>>,
    pub(super) changed: Condvar,
    /// Whether the remaining time of any entry may have become shorter, so that all must be checked.
    pub(super) all: AtomicBool,
}

impl Board {
    /// Checks every entry that may be due. Returns how long to sleep (`None` if there are no entries) and the lock,
    /// which keeps others from adding entries.
    pub(super) fn look(
        &self,
        passed: impl FnOnce() -> Duration,
    ) -> (Option<Duration>, MutexGuard<'_, Vec<Held>>) {
        // The entries are taken out, so that their callbacks may add and move deadlines.
        let mut held = std::mem::take(&mut *lock(&self.held));
        let all = self.all.swap(false, Ordering::AcqRel);
        // The clock is read after the flag. A guard that is replaced later sets the flag again, and is checked the next
        // time.
        let passed = passed();
        let mut sleep = LONGEST_LOOK;
        held.retain_mut(|one| {
            if all || one.due <= passed {
                // A callback that panics must not disable the deadlines of other terms.
                let look = std::panic::AssertUnwindSafe(|| one.watched.look());
                let left = match std::panic::catch_unwind(look) {
                    Ok(Some(left)) => left,
                    Ok(None) => return false,
                    // A callback that panicked is not called again. The entry is checked once more.
                    Err(_) => Duration::ZERO,
                };
                sleep = sleep.min(left);
                let sure = if one.watched.on_system_clock() {
                    left
                } else {
                    Duration::ZERO
                };
                one.due = passed + sure;
            } else {
                sleep = sleep.min(one.due - passed);
            }
            true
        });
        let mut added = lock(&self.held);
        let unseen = !added.is_empty();
        held.append(&mut added);
        *added = held;
        if added.is_empty() {
            // Free the memory, because the process may never lead again.
            added.shrink_to_fit();
            return (None, added);
        }
        let sleep = if unseen { Duration::ZERO } else { sleep };
        (Some(sleep), added)
    }

    pub(super) fn run(&self) {
        let mut tally = Tally::default();
        loop {
            self.turn(|| tally.at(SystemClock.now()));
        }
    }

    /// Checks once, and sleeps until an entry is due, added or moved.
    pub(super) fn turn(&self, passed: impl FnOnce() -> Duration) {
        let (sleep, held) = self.look(passed);
        if self.all.load(Ordering::Acquire) {
            return;
        }
        match sleep {
            Some(left) => drop(self.changed.wait_timeout(held, left)),
            None => drop(self.changed.wait(held)),
        }
    }

    pub(super) fn watch(&self, watched: Arc<dyn Watched>) {
        let due = Duration::ZERO;
        lock(&self.held).push(Held { watched, due });
        self.changed.notify_one();
    }

    /// Makes the thread check every entry now.
    pub(super) fn look_now(&self) {
        self.look_again();
        // The thread holds the lock between its check and its sleep, and would miss a notification in that time.
        drop(lock(&self.held));
        self.changed.notify_one();
    }

    /// Makes the thread check every entry when it wakes the next time. Callers use it if the remaining time of an entry
    /// became shorter, or the entry has ended.
    pub(super) fn look_again(&self) {
        // A plain store would not be ordered with the swap in the thread, which could then miss the request.
        self.all.swap(true, Ordering::AcqRel);
    }
}
