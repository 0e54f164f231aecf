//! What the deadline thread watches, and when it looks and sleeps.
//!
//! The invariant: nothing that becomes due while the thread decides to sleep is slept over. What was added,
//! and what was moved by [`Board::look_now`], is looked at without a sleep; what was changed by
//! [`Board::look_again`], after one sleep at most.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Now;

use crate::clock::{Clock, SystemClock};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, lock};

/// The longest time between two looks at the clocks.
pub(super) const LONGEST_LOOK: Duration = Duration::from_millis(250);

/// Something the thread looks after.
pub(super) trait Watched: Send + Sync {
    /// Does what is due; returns what is left until the next look, or nothing if there is none. Who makes it
    /// less calls [`Board::look_now`] or [`Board::look_again`] afterwards; time that passes makes it less by itself.
    fn look(&self) -> Option<Duration>;

    /// Whether what is left is counted by [`SystemClock`].
    fn on_system_clock(&self) -> bool;
}

/// How much time has passed on [`SystemClock`] since the first look, by whichever of its clocks went further
/// between two looks. A [`Guard`](tenure_core::Guard) counts the same way, so nothing of which more is left
/// than has passed since can have run out, whatever the clocks did.
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
    /// It need not be looked at before so much has passed.
    pub(super) due: Duration,
}

#[derive(Default)]
pub(super) struct Board {
    pub(super) held: Mutex<Vec<Held>>,
    pub(super) changed: Condvar,
    /// Less may be left of something than was thought.
    pub(super) all: AtomicBool,
}

impl Board {
    /// One look at everything that may be due; returns how long to sleep, or nothing if there is nothing to
    /// watch, and the lock, without which nothing is added.
    pub(super) fn look(
        &self,
        passed: impl FnOnce() -> Duration,
    ) -> (Option<Duration>, MutexGuard<'_, Vec<Held>>) {
        // Taken out, so that whoever is called may register and move deadlines.
        let mut held = std::mem::take(&mut *lock(&self.held));
        let all = self.all.swap(false, Ordering::AcqRel);
        // After that: what a guard counts from is either before this reading, or seen the next time.
        let passed = passed();
        let mut sleep = LONGEST_LOOK;
        held.retain_mut(|one| {
            if all || one.due <= passed {
                // A panicking callback must not take the other terms' deadlines along.
                let look = std::panic::AssertUnwindSafe(|| one.watched.look());
                let left = match std::panic::catch_unwind(look) {
                    Ok(Some(left)) => left,
                    Ok(None) => return false,
                    // It was called once; what comes after that is still due.
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
            // A process that led once may never lead again; it keeps no memory of it.
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

    /// Looks once, and sleeps until something is due or added or moved.
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

    /// Looks at everything now.
    pub(super) fn look_now(&self) {
        self.look_again();
        // Between its last look and its sleep the thread has the lock, and would not hear of this.
        drop(lock(&self.held));
        self.changed.notify_one();
    }

    /// Looks at everything the next time, which is soon: less may be left of something, or nothing at all.
    pub(super) fn look_again(&self) {
        // Not a plain store: nothing would order it with the swap of the thread, which could miss the request.
        self.all.swap(true, Ordering::AcqRel);
    }
}
