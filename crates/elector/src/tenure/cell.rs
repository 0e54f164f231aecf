//! The state of one term, which several threads read and change.
//!
//! Invariants: a term that has ended never begins again, no reader sees parts of two guards, and every hook is called
//! once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{FencingToken, Guard, StopReason};

use crate::clock::Clock;
use crate::deadline;
use crate::sync::{Mutex, MutexGuard, Notify, OnceLock, lock};

type Hook = Box<dyn FnOnce(&StopReason) + Send>;

/// The state of one term. The driver extends the term, the deadline thread ends it, and the work reads it.
pub(crate) struct Cell {
    pub(crate) lock: Arc<str>,
    pub(crate) identity: Arc<str>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) token: FencingToken,
    pub(crate) transitions: u32,
    /// The id of the process that won the term.
    pub(super) process: u32,
    /// Always replaced as a whole, so that no reader sees parts of two guards.
    guard: Mutex<Guard>,
    pub(super) ended: OnceLock<StopReason>,
    pub(super) bell: Notify,
    pub(super) hooks: Mutex<Vec<Hook>>,
}

impl Cell {
    pub(crate) fn new(
        lock: Arc<str>,
        identity: Arc<str>,
        clock: Arc<dyn Clock>,
        (token, transitions): (FencingToken, u32),
        guard: Guard,
    ) -> Self {
        Self {
            lock,
            identity,
            clock,
            token,
            transitions,
            process: std::process::id(),
            guard: Mutex::new(guard),
            ended: OnceLock::new(),
            bell: Notify::new(),
            hooks: Mutex::default(),
        }
    }

    pub(crate) fn guard(&self) -> Guard {
        *lock(&self.guard)
    }

    pub(crate) fn extend(&self, guard: Guard) {
        let mut held = lock(&self.guard);
        let before = std::mem::replace(&mut *held, guard);
        drop(held);
        // If the wall clock was set back between the two writes, the new guard may expire before the old one.
        let sooner = guard.until() < before.until() || guard.sent().wall < before.sent().wall;
        if sooner && self.clock.is_real() {
            deadline::look_again();
        }
    }

    /// Reads the guard, then the end, then the clock. If the guard was extended after the end of the term, this read
    /// sees the end too. A pause before the clock is read shortens the result.
    pub(crate) fn valid_for(&self) -> Duration {
        let guard = self.guard();
        if self.has_ended() {
            return Duration::ZERO;
        }
        guard.left(self.clock.now())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Completes when the term has ended.
    pub(crate) async fn cancelled(&self) {
        let mut rung = std::pin::pin!(self.bell.notified());
        rung.as_mut().enable();
        if !self.has_ended() {
            rung.await;
        }
    }

    /// Ends the term. Returns true only for the call that ended it.
    pub(crate) fn end(&self, reason: StopReason) -> bool {
        if self.ended.set(reason).is_err() {
            return false;
        }
        if self.clock.is_real() {
            // From now on, the remaining time is the time until the deadline of the work.
            deadline::look_again();
        }
        self.bell.notify_waiters();
        let hooks = std::mem::take(&mut *self.hooks());
        if let Some(reason) = self.ended.get() {
            hooks.into_iter().for_each(|hook| self.call(hook, reason));
        }
        true
    }

    /// Calls a hook. A panic is caught, because the thread that ends the term serves other elections too.
    fn call(&self, hook: Hook, reason: &StopReason) {
        let call = std::panic::AssertUnwindSafe(|| hook(reason));
        if std::panic::catch_unwind(call).is_err() {
            tracing::error!(lock = %self.lock, "a hook of `at_end` panicked");
        }
    }

    pub(super) fn at_end(&self, hook: Hook) {
        let mut hooks = self.hooks();
        // Check while holding the lock. `end` sets the reason before it takes the hooks, so none is missed.
        match self.ended.get() {
            None => {
                // Usually there is only the hook of the driver.
                hooks.reserve_exact(1);
                hooks.push(hook);
            }
            Some(reason) => {
                drop(hooks);
                hook(reason);
            }
        }
    }

    fn hooks(&self) -> MutexGuard<'_, Vec<Hook>> {
        lock(&self.hooks)
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("lock", &self.lock)
            .field("token", &self.token.as_str())
            .field("valid_for", &self.valid_for())
            .field("ended", &self.ended.get())
            .finish_non_exhaustive()
    }
}
