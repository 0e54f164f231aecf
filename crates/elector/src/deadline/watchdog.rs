//! The end of one term: by its guard, by its fence, or by its last handle.
//!
//! The invariants: work that overruns is acted upon once, and the report that the work has ended is the last
//! report of a term.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{LocalTime, StopReason};

use super::board::{LONGEST_LOOK, Watched};
use super::policy::{Overran, Overrun, abort};
use super::thread::{look_again, look_now, watch};
use crate::clock::SystemClock;
use crate::hub::Ask;
use crate::shared::Link;
use crate::sync::{Mutex, Notify, lock};
use crate::tenure::Cell;

/// What work still gets if its end was noticed only after its deadline, as after a pause of the whole
/// process.
pub(super) const LAST_MOMENT: Duration = Duration::from_millis(100);

/// Work that was told to stop and did not is dropped this long before its deadline.
const DROP_EARLY: Duration = Duration::from_millis(250);

/// Watches over one term: ends it when its guard runs out, and acts on work that overruns.
///
/// It counts the handles of the term. The work has ended, and the term is joined, when none is left (S4); a
/// joined term gets no new handle.
pub(crate) struct Watchdog {
    pub(crate) cell: Arc<Cell>,
    /// By when, from the send time of the last renewal, work must have ended.
    fence: Duration,
    pub(super) policy: Overrun,
    pub(super) state: Mutex<TermEnd>,
    /// Wakes those that wait until one handle is left.
    pub(super) few: Notify,
}

pub(super) struct TermEnd {
    /// Set once the term was told to stop.
    pub(super) deadline: Option<LocalTime>,
    /// Counted handles; the first is that of the [`Term`](crate::Term).
    pub(super) handles: usize,
    /// Where to report that the work has ended.
    link: Option<Link>,
    pub(super) overrun: bool,
}

impl Watchdog {
    /// Begins to watch; on a simulated clock the driver alone calls.
    pub(crate) fn start(cell: Arc<Cell>, fence: Duration, policy: Overrun) -> Arc<Self> {
        let real = cell.clock.is_real();
        let dog = Arc::new(Self {
            cell,
            fence,
            policy,
            state: Mutex::new(TermEnd {
                deadline: None,
                handles: 1,
                link: None,
                overrun: false,
            }),
            few: Notify::new(),
        });
        if real {
            watch(dog.clone());
        }
        dog
    }

    /// The work was told to stop and has until this instant.
    pub(crate) fn set_deadline(&self, deadline: LocalTime) {
        lock(&self.state).deadline = Some(deadline);
        if self.cell.clock.is_real() {
            look_now();
        }
    }

    /// By when the work must have ended, as far as is known now.
    pub(crate) fn deadline(&self) -> LocalTime {
        let set = lock(&self.state).deadline;
        set.unwrap_or_else(|| self.cell.guard().sent().local + self.fence)
    }

    /// Reports the end of the work over this link.
    pub(crate) fn report_to(&self, link: Link) {
        lock(&self.state).link = Some(link);
    }

    /// Counts one more handle. False if the term is joined.
    pub(crate) fn add_handle(&self) -> bool {
        let mut state = lock(&self.state);
        let joined = state.handles == 0;
        state.handles += usize::from(!joined);
        !joined
    }

    /// A counted handle is gone.
    pub(crate) fn drop_handle(&self) {
        self.count_down(None);
    }

    /// The handle of the [`Term`](crate::Term) is gone: no more work begins, and what has begun must end.
    /// Returns the number of handles that are left.
    pub(crate) fn drop_term(&self) -> usize {
        self.count_down(Some(Ask::WorkEnding))
    }

    fn count_down(&self, unless_last: Option<Ask>) -> usize {
        let mut state = lock(&self.state);
        state.handles = state.handles.saturating_sub(1);
        let left = state.handles;
        let ask = if left == 0 {
            Some(Ask::WorkEnded)
        } else {
            unless_last
        };
        // Under the lock, so that no other thread reports the end of the work before this report.
        if let (Some(ask), Some(link)) = (ask, &state.link) {
            link.send(ask);
        }
        let link = state.link.take_if(|_| left == 0);
        drop(state);
        drop(link);
        if left <= 1 {
            self.few.notify_waiters();
        }
        if left == 0 && self.cell.clock.is_real() {
            look_again();
        }
        left
    }

    /// Whether the work has ended.
    pub(crate) fn is_joined(&self) -> bool {
        lock(&self.state).handles == 0
    }

    /// Completes when at most one handle is left.
    pub(crate) async fn one_handle_left(&self) {
        loop {
            let mut few = std::pin::pin!(self.few.notified());
            few.as_mut().enable();
            if lock(&self.state).handles <= 1 {
                return;
            }
            few.await;
        }
    }

    /// Completes when work that was told to stop has to be dropped: a little before its deadline.
    pub(crate) async fn drop_due(&self) {
        self.cell.cancelled().await;
        let told = self.cell.clock.now().local;
        // The deadline moves: later while the lease is renewed for work that winds down, earlier when it is lost.
        self.reach(|| drop_at(told, self.deadline())).await;
    }

    /// Completes after this time, on the clock of the term.
    pub(crate) async fn pass(&self, time: Duration) {
        let end = self.cell.clock.now().local + time;
        self.reach(|| end).await;
    }

    /// Completes at an instant that may move, on the clock of the term.
    async fn reach(&self, at: impl Fn() -> LocalTime) {
        let clock = &self.cell.clock;
        loop {
            let (at, now) = (at(), clock.now().local);
            if now >= at {
                return;
            }
            clock.sleep_until(at.min(now + LONGEST_LOOK)).await;
        }
    }

    /// Acts on work that did not end in time, once.
    pub(crate) fn overrun(&self) {
        let mut state = lock(&self.state);
        let handles = state.handles;
        if handles == 0 || std::mem::replace(&mut state.overrun, true) {
            return;
        }
        drop(state);
        let overran = Overran {
            lock: self.cell.lock.clone(),
            token: self.cell.token.clone(),
        };
        let (lock, token) = (&overran.lock, overran.token.as_str());
        match &self.policy {
            Overrun::Abort => abort(&overran.message(handles)),
            Overrun::Log => {
                tracing::error!(%lock, token, handles, "work did not end in time; another process may lead now");
            }
            Overrun::Call(act) => {
                let act = std::panic::AssertUnwindSafe(|| act(&overran));
                if std::panic::catch_unwind(act).is_err() {
                    // What it had to end may go on.
                    abort(&overran.message(handles));
                }
            }
        }
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cell.fmt(f)
    }
}

/// A little before the deadline, and at least three quarters of the time after it was told.
pub(super) fn drop_at(told: LocalTime, deadline: LocalTime) -> LocalTime {
    let time = deadline.since(told);
    told + time.saturating_sub(DROP_EARLY.min(time / 4))
}

impl Watched for Watchdog {
    fn look(&self) -> Option<Duration> {
        if self.is_joined() {
            return None;
        }
        let guard = self.cell.guard();
        let now = self.cell.clock.now();
        if !self.cell.has_ended() {
            let left = guard.left(now);
            if !left.is_zero() {
                return Some(left);
            }
            self.cell.end(StopReason::GuardExpired);
            let mut state = lock(&self.state);
            let fence = guard.sent().local + self.fence;
            state
                .deadline
                .get_or_insert(fence.max(now.local + LAST_MOMENT));
        }
        let left = self.deadline().since(now.local);
        if left.is_zero() {
            self.overrun();
            return None;
        }
        Some(left)
    }

    fn on_system_clock(&self) -> bool {
        let clock: &dyn Any = &*self.cell.clock;
        clock.is::<SystemClock>()
    }
}
