//! What guarded work gets: a handle that says, from the clock, whether it still leads.
//!
//! The invariant: once a term has ended it never comes back, and [`Tenure::is_leading`] reads first
//! the guard and then the clock, so a pause between the two can only turn the answer to "no".

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::{FencingToken, Guard, LocalTime, StopReason};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::deadline;

/// One term of leadership, as seen by the work that it guards. Clones see the same term.
///
/// ```
/// # use tenure::Tenure;
/// async fn work(tenure: Tenure) {
///     while tenure.is_leading() {
///         tokio::select! {
///             () = tenure.cancelled() => break,
///             () = one_step(tenure.token()) => {}
///         }
///     }
/// }
/// # async fn one_step(_: &tenure::FencingToken) {}
/// ```
#[derive(Clone, Debug)]
pub struct Tenure {
    cell: Arc<Cell>,
}

impl Tenure {
    pub(crate) fn new(cell: Arc<Cell>) -> Self {
        Self { cell }
    }

    /// Whether this process leads at this instant. Reads the clock at each call.
    pub fn is_leading(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// How long this process leads if nothing is heard from the lock any more; zero after the end.
    pub fn valid_for(&self) -> Duration {
        self.cell.valid_for()
    }

    /// When the guard of the last renewal known runs out, or ran out. The term may have ended earlier,
    /// for a [reason](Self::reason).
    pub fn until(&self) -> LocalTime {
        self.cell.guard().until()
    }

    /// For use before an effect: `tenure.check()?`.
    ///
    /// # Errors
    /// The term has ended.
    pub fn check(&self) -> Result<(), NotLeading> {
        if self.is_leading() {
            return Ok(());
        }
        Err(NotLeading {
            lock: self.cell.lock.clone(),
            reason: self.reason().unwrap_or(StopReason::GuardExpired),
        })
    }

    /// The fencing token of the term: send it along with every effect, and let the resource refuse
    /// tokens below the greatest it has seen. Only that keeps out a leader that was paused between
    /// the check and the effect.
    pub fn token(&self) -> &FencingToken {
        &self.cell.token
    }

    /// How often the lock had changed hands when the term began. For people; it is no token, because
    /// it starts again when somebody deletes the lock.
    pub fn transitions(&self) -> u32 {
        self.cell.transitions
    }

    /// The identity under which this process leads.
    pub fn identity(&self) -> &str {
        &self.cell.identity
    }

    /// The lock that is held, `lease kube-system/x`.
    pub fn lock(&self) -> &str {
        &self.cell.lock
    }

    /// Completes when the term has ended, at once if it has. Work should then stop: it has until the
    /// [overrun](crate::Overrun).
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn cancelled(&self) {
        let mut rung = std::pin::pin!(self.cell.bell.notified());
        rung.as_mut().enable();
        if self.cell.ended.get().is_none() {
            rung.await;
        }
    }

    /// Why the term has ended, if it has been ended.
    pub fn reason(&self) -> Option<StopReason> {
        self.cell.ended.get().cloned()
    }

    /// Calls back once when the term ends, at once if it has. The call comes from the thread that
    /// ends the term, which is outside the async runtime if that is stuck; so it must be short and
    /// must not block.
    pub fn at_end(&self, call: impl FnOnce(&StopReason) + Send + 'static) {
        self.cell.at_end(Box::new(call));
    }
}

/// The term has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no longer leading by {lock}: {}", reason.as_str())]
pub struct NotLeading {
    /// The lock.
    pub lock: Arc<str>,
    /// Why the term ended.
    pub reason: StopReason,
}

type Hook = Box<dyn FnOnce(&StopReason) + Send>;

/// The state of one term, shared by the driver (which extends it), the deadline thread (which ends
/// it) and the work (which asks).
pub(crate) struct Cell {
    pub(crate) lock: Arc<str>,
    pub(crate) identity: Arc<str>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) token: FencingToken,
    pub(crate) transitions: u32,
    /// Always replaced as a whole, so nobody sees parts of two guards.
    guard: Mutex<Guard>,
    ended: OnceLock<StopReason>,
    bell: Notify,
    hooks: Mutex<Vec<Hook>>,
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
            guard: Mutex::new(guard),
            ended: OnceLock::new(),
            bell: Notify::new(),
            hooks: Mutex::default(),
        }
    }

    pub(crate) fn guard(&self) -> Guard {
        *self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn extend(&self, guard: Guard) {
        let mut held = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *held, guard);
        drop(held);
        // A wall clock that was set back between the two may end the new guard before the old one.
        let sooner = guard.until() < before.until() || guard.sent().wall < before.sent().wall;
        if sooner && self.clock.is_real() {
            deadline::look_again();
        }
    }

    pub(crate) fn valid_for(&self) -> Duration {
        if self.ended.get().is_some() {
            return Duration::ZERO;
        }
        let guard = self.guard();
        guard.left(self.clock.now())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Ends the term; true for the one call that did.
    pub(crate) fn end(&self, reason: StopReason) -> bool {
        if self.ended.set(reason).is_err() {
            return false;
        }
        if self.clock.is_real() {
            // What is left is now the time until the overrun.
            deadline::look_again();
        }
        self.bell.notify_waiters();
        let hooks = std::mem::take(&mut *self.hooks());
        if let Some(reason) = self.ended.get() {
            hooks.into_iter().for_each(|hook| hook(reason));
        }
        true
    }

    fn at_end(&self, hook: Hook) {
        let mut hooks = self.hooks();
        // Under the lock: `end` sets the reason before it takes the hooks, so none is forgotten.
        match self.ended.get() {
            None => {
                // The driver's own, and hardly ever another.
                hooks.reserve_exact(1);
                hooks.push(hook);
            }
            Some(reason) => {
                drop(hooks);
                hook(reason);
            }
        }
    }

    fn hooks(&self) -> std::sync::MutexGuard<'_, Vec<Hook>> {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::clock::TokioClock;

    pub(crate) fn cell(clock: &TokioClock, length: Duration) -> Arc<Cell> {
        Arc::new(Cell::new(
            "lease a/b".into(),
            "me".into(),
            Arc::new(*clock),
            (FencingToken::from(7), 3),
            Guard::new(clock.now(), length),
        ))
    }

    #[tokio::test(start_paused = true)]
    async fn it_reads_the_clock_at_each_call() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        let tenure = Tenure::new(cell.clone());
        assert!(tenure.is_leading());
        assert_eq!(tenure.valid_for(), Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(tenure.check(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!tenure.is_leading(), "nobody had to tell it");
        assert_eq!(
            tenure.check().unwrap_err().to_string(),
            "no longer leading by lease a/b: guard-expired"
        );
        cell.extend(Guard::new(clock.now(), Duration::from_secs(10)));
        assert!(tenure.is_leading());
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_term_never_comes_back() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        let tenure = Tenure::new(cell.clone());
        assert!(cell.end(StopReason::Deleted));
        assert!(!cell.end(StopReason::Shutdown), "the first reason stands");
        cell.extend(Guard::new(clock.now(), Duration::from_secs(10)));
        assert!(!tenure.is_leading());
        assert_eq!(tenure.reason(), Some(StopReason::Deleted));
        tenure.cancelled().await;
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_and_hooks_learn_of_the_end_once() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        let tenure = Tenure::new(cell.clone());
        let calls = Arc::new(AtomicU32::new(0));
        let count = || {
            let calls = calls.clone();
            move |_: &StopReason| {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        };
        tenure.at_end(count());
        let waiter = tokio::spawn({
            let tenure = tenure.clone();
            async move { tenure.cancelled().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        cell.end(StopReason::StepDown);
        waiter.await.unwrap();
        tenure.at_end(count());
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
