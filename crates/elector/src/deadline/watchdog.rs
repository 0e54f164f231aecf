//! Detects the end of one term: its guard expires, its fence expires, or its last handle is dropped.
//!
//! Invariants: the policy is applied once to work that exceeds its deadline. The report that the work has ended is the
//! last report of a term.

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

/// Minimum time for work to end. It applies if the end of the term was noticed only after the deadline, for example
/// after a pause of the whole process.
pub(super) const LAST_MOMENT: Duration = Duration::from_millis(100);

/// Time before its deadline at which cancelled work is dropped.
const DROP_EARLY: Duration = Duration::from_millis(250);

/// Supervises one term: ends it when its guard expires, and applies the policy to work that exceeds its deadline.
///
/// It counts the handles of the term. When none is left, the work has ended and the term is joined (S4). A joined term
/// gets no new handle.
pub(crate) struct Watchdog {
    pub(crate) cell: Arc<Cell>,
    /// Time from the sending of the last renewal to the instant by which the work must have ended.
    fence: Duration,
    pub(super) policy: Overrun,
    pub(super) state: Mutex<TermEnd>,
    /// Notified when at most one handle is left.
    pub(super) few: Notify,
}

pub(super) struct TermEnd {
    /// Set once the work was cancelled.
    pub(super) deadline: Option<LocalTime>,
    /// Number of counted handles. The first is that of the [`Term`](crate::Term).
    pub(super) handles: usize,
    /// Receiver of the report that the work has ended.
    link: Option<Link>,
    pub(super) overrun: bool,
}

impl Watchdog {
    /// Starts to supervise a term. On a simulated clock only the driver calls the watchdog.
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

    /// Records that the work was cancelled and has until this instant.
    pub(crate) fn set_deadline(&self, deadline: LocalTime) {
        lock(&self.state).deadline = Some(deadline);
        if self.cell.clock.is_real() {
            look_now();
        }
    }

    /// Returns the instant by which the work must have ended, as known now.
    pub(crate) fn deadline(&self) -> LocalTime {
        let set = lock(&self.state).deadline;
        set.unwrap_or_else(|| self.cell.guard().sent().local + self.fence)
    }

    /// Reports the end of the work over this link.
    pub(crate) fn report_to(&self, link: Link) {
        lock(&self.state).link = Some(link);
    }

    /// Counts one more handle. Returns false if the term is joined.
    pub(crate) fn add_handle(&self) -> bool {
        let mut state = lock(&self.state);
        let joined = state.handles == 0;
        state.handles += usize::from(!joined);
        !joined
    }

    /// Records that a counted handle was dropped.
    pub(crate) fn drop_handle(&self) {
        self.count_down(None);
    }

    /// Records that the handle of the [`Term`](crate::Term) was dropped: no new work may begin, and running work must
    /// end. Returns the number of remaining handles.
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
        // Send while holding the lock, so that no other thread reports the end of the work before this report.
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

    /// Returns whether the work has ended.
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

    /// Completes when cancelled work has to be dropped, a little before its deadline.
    pub(crate) async fn drop_due(&self) {
        self.cell.cancelled().await;
        let told = self.cell.clock.now().local;
        // The deadline moves later while the lease is renewed for work that is stopping, and earlier when the lease is
        // lost.
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

    /// Applies the policy to work that did not end in time, once.
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
                    // The work that the callback should have ended may continue.
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

/// Returns the instant at which to drop the work: a little before the deadline, but not before three quarters of its
/// time have passed.
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
