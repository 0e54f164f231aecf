//! The handle that guarded work gets. It decides by the clock whether the process still leads.
//!
//! Invariant: a term that has ended never begins again. [`Tenure::is_leading`] reads the guard first and then the clock,
//! so a pause between the two can only change the answer from yes to no.

mod cell;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{FencingToken, LocalTime, StopReason};

pub(crate) use cell::Cell;

use crate::deadline::Watchdog;

/// Handle of one term of leadership, for the work of that term. Clones refer to the same term.
///
/// The handle that work gets is counted, and so are its clones. The term is joined and its lock released only when the
/// last of them is dropped. Give a clone to each thread and task that belongs to the work, or start it with
/// [`spawn`](Self::spawn) or [`spawn_blocking`](Self::spawn_blocking). Do not keep a clone elsewhere: the
/// [`Overrun`](crate::Overrun) policy applies to a handle that is not dropped in time. An [`observer`](Self::observer) may
/// be kept anywhere.
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
#[derive(Debug)]
pub struct Tenure {
    dog: Arc<Watchdog>,
    /// The term is not joined before this handle is dropped.
    counted: bool,
}

impl Clone for Tenure {
    fn clone(&self) -> Self {
        // Clones of an uncounted handle are not counted. The term of a counted handle is not joined yet, so its clone can
        // always be counted.
        let counted = self.counted && self.dog.add_handle();
        let dog = self.dog.clone();
        Self { dog, counted }
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if self.counted {
            self.dog.drop_handle();
        }
    }
}

impl Tenure {
    /// Creates the first handle of a new term, which is counted.
    pub(crate) fn first(dog: Arc<Watchdog>) -> Self {
        let counted = true;
        Self { dog, counted }
    }

    /// Creates a handle that is not counted.
    pub(crate) fn uncounted(dog: Arc<Watchdog>) -> Self {
        let counted = false;
        Self { dog, counted }
    }

    /// Returns a counted handle, or `None` if the term is joined, because no work may begin after that.
    pub(crate) fn hold(&self) -> Option<Self> {
        let counted = self.dog.add_handle();
        let dog = self.dog.clone();
        counted.then_some(Self { dog, counted })
    }

    /// Removes the handle from the count without dropping it.
    pub(crate) fn uncount(&mut self) {
        self.counted = false;
    }

    /// Completes when work that was cancelled must be dropped.
    pub(crate) async fn drop_due(&self) {
        self.dog.drop_due().await;
    }

    /// Returns a handle that is not counted, so it does not delay the end of the term. Use it for status pages, never for
    /// work.
    #[must_use]
    pub fn observer(&self) -> Self {
        Self::uncounted(self.dog.clone())
    }

    /// Returns whether this process leads at this instant. Reads the clock at each call.
    ///
    /// In a forked child, the answer can be wrong, because nothing updates the copy of the handle. It can be true for
    /// up to the renew deadline after the term of the parent has ended. See [`is_leading_here`](Self::is_leading_here).
    pub fn is_leading(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// Same as [`is_leading`](Self::is_leading), but false in every process except the one that won the term. A child that
    /// was forked with this handle in its memory does not lead.
    ///
    /// Reads the process id from the operating system, which takes longer than reading the clock.
    pub fn is_leading_here(&self) -> bool {
        self.dog.cell.process == std::process::id() && self.is_leading()
    }

    /// Returns how long this process leads if no further renewal succeeds; zero after the end of the term.
    pub fn valid_for(&self) -> Duration {
        self.dog.cell.valid_for()
    }

    /// Returns the time at which the guard of the last known renewal expires or expired. The term may have ended
    /// earlier; [`reason`](Self::reason) returns why.
    pub fn until(&self) -> LocalTime {
        self.dog.cell.guard().until()
    }

    /// Returns an error if the term has ended. Call it before each effect: `tenure.check()?`.
    ///
    /// # Errors
    ///
    /// Returns the lock and the reason if the term has ended.
    pub fn check(&self) -> Result<(), NotLeading> {
        if self.is_leading() {
            return Ok(());
        }
        Err(NotLeading {
            lock: self.dog.cell.lock.clone(),
            reason: self.reason().unwrap_or(StopReason::GuardExpired),
        })
    }

    /// Returns the fencing token of the term. Send it with every effect, and let the resource reject tokens below the
    /// greatest one it has received. Only this stops a leader that was paused between the check and the effect.
    pub fn token(&self) -> &FencingToken {
        &self.dog.cell.token
    }

    /// Returns how often the holder of the lock had changed when the term began. The number is for people. It is not a
    /// token, because it starts again after the lock is deleted.
    pub fn transitions(&self) -> u32 {
        self.dog.cell.transitions
    }

    /// Returns the identity of this candidate.
    pub fn identity(&self) -> &str {
        &self.dog.cell.identity
    }

    /// Returns the lock, for example `lease kube-system/x`.
    pub fn lock(&self) -> &str {
        &self.dog.cell.lock
    }

    /// Completes when the term has ended, immediately if it has already ended. The work must then stop before its
    /// [overrun](crate::Overrun).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn cancelled(&self) {
        self.dog.cell.cancelled().await;
    }

    /// Same as [`cancelled`](Self::cancelled), but the future owns what it needs and is `'static`, for example for
    /// `graceful_shutdown_on` of kube's `Controller`. It is not counted, so it does not delay the end of the term.
    pub fn until_cancelled(&self) -> impl Future<Output = ()> + Send + 'static {
        let observer = self.observer();
        async move { observer.cancelled().await }
    }

    /// Returns why the term has ended, or `None` while it lasts.
    pub fn reason(&self) -> Option<StopReason> {
        self.dog.cell.ended.get().cloned()
    }

    /// Calls `call` once when the term ends, immediately if it has already ended. The thread that ends the term makes
    /// the call. If the runtime is stuck, this is the deadline thread, so the call must be short and must not block.
    ///
    /// A hook that panics is logged, and other hooks and elections continue. In a program built with `panic = "abort"`, the
    /// panic ends the process.
    pub fn at_end(&self, call: impl FnOnce(&StopReason) + Send + 'static) {
        self.dog.cell.at_end(Box::new(call));
    }
}

/// Error of an effect after the end of its term.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no longer holds {lock}: {}", reason.as_str())]
pub struct NotLeading {
    /// The lock.
    pub lock: Arc<str>,
    /// Reason for the end of the term.
    pub reason: StopReason,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tenure_core::Guard;

    use super::*;
    use crate::clock::{Clock as _, TokioClock};

    pub(crate) fn cell(clock: &TokioClock, length: Duration) -> Arc<Cell> {
        Arc::new(Cell::new(
            "lease a/b".into(),
            "me".into(),
            Arc::new(*clock),
            (FencingToken::from(7), 3),
            Guard::new(clock.now(), length),
        ))
    }

    fn tenure(cell: &Arc<Cell>) -> Tenure {
        let fence = Duration::from_secs(14);
        let dog = Watchdog::start(cell.clone(), fence, crate::Overrun::Log);
        Tenure::first(dog)
    }

    #[tokio::test(start_paused = true)]
    async fn panic_of_a_hook_does_not_prevent_other_hooks() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        let tenure = tenure(&cell);
        let calls = Arc::new(AtomicU32::new(0));
        tenure.at_end(|_| panic!("a hook"));
        tenure.at_end({
            let calls = calls.clone();
            move |_| {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert!(cell.end(StopReason::Shutdown));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_is_joined_by_its_last_counted_handle_and_never_again() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        let first = tenure(&cell);
        let observer = first.observer();
        let second = first.clone();
        let third = observer.hold().unwrap();
        drop((first, observer.clone(), second));
        assert!(!observer.dog.is_joined(), "one is left");
        drop(third);
        assert!(observer.dog.is_joined());
        assert!(observer.hold().is_none(), "no work begins after the end");
        let late = observer.spawn(async { "ran" });
        assert_eq!(late.await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_with_another_id_does_not_lead() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        assert!(tenure(&cell).is_leading_here());
        let mut forked = Arc::into_inner(cell).unwrap();
        forked.process ^= 1;
        let forked = tenure(&Arc::new(forked));
        assert!(forked.is_leading(), "the clock knows nothing of processes");
        assert!(!forked.is_leading_here());
    }

    #[tokio::test(start_paused = true)]
    async fn is_leading_reads_the_clock_at_each_call() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        let tenure = tenure(&cell);
        assert!(tenure.is_leading());
        assert_eq!(tenure.valid_for(), Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(tenure.check(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!tenure.is_leading(), "nobody had to tell it");
        assert_eq!(
            tenure.check().unwrap_err().to_string(),
            "no longer holds lease a/b: guard-expired"
        );
        cell.extend(Guard::new(clock.now(), Duration::from_secs(10)));
        assert!(tenure.is_leading());
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_term_never_comes_back() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        let tenure = tenure(&cell);
        assert!(cell.end(StopReason::Deleted));
        assert!(!cell.end(StopReason::Shutdown), "the first reason stands");
        cell.extend(Guard::new(clock.now(), Duration::from_secs(10)));
        assert!(!tenure.is_leading());
        assert_eq!(tenure.reason(), Some(StopReason::Deleted));
        tenure.cancelled().await;
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_and_hooks_are_notified_of_the_end_once() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        let tenure = tenure(&cell);
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

    #[tokio::test(start_paused = true)]
    async fn owned_future_completes_at_the_end_and_does_not_delay_it() {
        let clock = TokioClock::new();
        let cell = cell(&clock, Duration::from_secs(10));
        let tenure = tenure(&cell);
        let observer = tenure.observer();
        let waiter = tokio::spawn(tenure.until_cancelled());
        drop(tenure);
        assert!(observer.dog.is_joined(), "the future is not counted");
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        cell.end(StopReason::WorkEnded);
        waiter.await.unwrap();
    }
}
