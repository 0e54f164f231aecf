//! What guarded work gets: a handle that says, from the clock, whether it still leads.
//!
//! The invariant: once a term has ended it never comes back, and [`Tenure::is_leading`] reads first
//! the guard and then the clock, so a pause between the two can only turn the answer to "no".

mod cell;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{FencingToken, LocalTime, StopReason};

pub(crate) use cell::Cell;

use crate::deadline::Watchdog;

/// One term of leadership, as seen by the work that it guards. Clones see the same term.
///
/// The handle that work gets is counted, and so are its clones: the term is joined, and its lock released,
/// only when the last of them is dropped. Give a clone to each thread and task that belongs to the work, or
/// start it with [`spawn`](Self::spawn) or [`spawn_blocking`](Self::spawn_blocking). Do not keep a clone
/// elsewhere: a handle that is never dropped meets the [`Overrun`](crate::Overrun) policy. An
/// [`observer`](Self::observer) may be kept anywhere.
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
        // An uncounted handle has uncounted clones. A counted one keeps its term from being joined, so
        // the count of its clone cannot be refused.
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
    /// The handle that a new term is counted with from its beginning.
    pub(crate) fn first(dog: Arc<Watchdog>) -> Self {
        let counted = true;
        Self { dog, counted }
    }

    /// A handle that is not counted.
    pub(crate) fn uncounted(dog: Arc<Watchdog>) -> Self {
        let counted = false;
        Self { dog, counted }
    }

    /// A counted handle; nothing if the term is joined, because no work of it can begin then.
    pub(crate) fn hold(&self) -> Option<Self> {
        let counted = self.dog.add_handle();
        let dog = self.dog.clone();
        counted.then_some(Self { dog, counted })
    }

    /// Takes the handle out of the count without dropping it.
    pub(crate) fn uncount(&mut self) {
        self.counted = false;
    }

    /// Completes when work that was told to stop has to be dropped.
    pub(crate) async fn drop_due(&self) {
        self.dog.drop_due().await;
    }

    /// A handle that is not counted: the term is joined although it lives. For status pages and the like,
    /// never for work.
    #[must_use]
    pub fn observer(&self) -> Self {
        Self::uncounted(self.dog.clone())
    }

    /// Whether this process leads at this instant. Reads the clock at each call.
    ///
    /// The answer is that of the process which won the term. A forked child has a copy of it, which nobody
    /// ends: it is true there for up to the renew deadline. See [`is_leading_here`](Self::is_leading_here).
    pub fn is_leading(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// As [`is_leading`](Self::is_leading), and false in any process but the one that won the term: a child
    /// that was forked with this handle in its memory does not lead, although it reads the same clock.
    ///
    /// Asks the operating system for the process id, which takes longer than reading the clock.
    pub fn is_leading_here(&self) -> bool {
        self.dog.cell.process == std::process::id() && self.is_leading()
    }

    /// How long this process leads if nothing is heard from the lock any more; zero after the end.
    pub fn valid_for(&self) -> Duration {
        self.dog.cell.valid_for()
    }

    /// When the guard of the last renewal known runs out, or ran out. The term may have ended earlier,
    /// for a [reason](Self::reason).
    pub fn until(&self) -> LocalTime {
        self.dog.cell.guard().until()
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
            lock: self.dog.cell.lock.clone(),
            reason: self.reason().unwrap_or(StopReason::GuardExpired),
        })
    }

    /// The fencing token of the term: send it along with every effect, and let the resource refuse
    /// tokens below the greatest it has seen. Only that keeps out a leader that was paused between
    /// the check and the effect.
    pub fn token(&self) -> &FencingToken {
        &self.dog.cell.token
    }

    /// How often the lock had changed hands when the term began. For people; it is no token, because
    /// it starts again when somebody deletes the lock.
    pub fn transitions(&self) -> u32 {
        self.dog.cell.transitions
    }

    /// The identity under which this process leads.
    pub fn identity(&self) -> &str {
        &self.dog.cell.identity
    }

    /// The lock that is held, `lease kube-system/x`.
    pub fn lock(&self) -> &str {
        &self.dog.cell.lock
    }

    /// Completes when the term has ended, at once if it has. Work should then stop: it has until the
    /// [overrun](crate::Overrun).
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn cancelled(&self) {
        self.dog.cell.cancelled().await;
    }

    /// Why the term has ended, if it has been ended.
    pub fn reason(&self) -> Option<StopReason> {
        self.dog.cell.ended.get().cloned()
    }

    /// Calls back once when the term ends, immediately if it has ended. The call comes from the thread
    /// that ends the term, which is outside the async runtime if that is stuck; so it must be short and
    /// must not block.
    ///
    /// A hook that panics is logged, and other hooks and elections go on. In a program built with
    /// `panic = "abort"` it ends the process, as every panic does; a hook on a thread of its own would
    /// not change that.
    pub fn at_end(&self, call: impl FnOnce(&StopReason) + Send + 'static) {
        self.dog.cell.at_end(Box::new(call));
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
    async fn a_hook_that_panics_keeps_no_other_from_being_called() {
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
    async fn it_reads_the_clock_at_each_call() {
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
            "no longer leading by lease a/b: guard-expired"
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
    async fn waiters_and_hooks_learn_of_the_end_once() {
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
}
