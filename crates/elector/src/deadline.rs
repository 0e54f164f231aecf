//! The deadline thread: ends terms even if the async runtime is stuck.
//!
//! One thread per process, started with the first term and asleep while there is none. It looks at
//! the clocks at each deadline, and at least four times a second while somebody leads, so that a
//! resumed machine or a wall clock that jumped forward is noticed although no timer counts that. What
//! cannot have run out by then is not looked at itself.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::{FencingToken, LocalTime, Now, StopReason};
use tokio::sync::Notify;

use crate::clock::{Clock, SystemClock};
use crate::guard::Cell;
use crate::handle::Link;
use crate::hub::Ask;

/// The longest time between two looks at the clocks.
const LONGEST_LOOK: Duration = Duration::from_millis(250);

/// What work still gets if its end was noticed only after its deadline, as after a pause of the whole
/// process.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// Work that was told to stop and did not is dropped this long before its deadline.
const DROP_EARLY: Duration = Duration::from_millis(250);

/// How long the message of an abort may take.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// What to do with work that has not ended when another process may lead. Nothing is released then.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Overrun {
    /// Abort this process. The only choice that keeps the promise for work in this process. A
    /// [`Call`](Self::Call) that panics does the same.
    #[default]
    Abort,
    /// Log an error and go on; for work whose effects are all fenced by the token.
    Log,
    /// Call this, from the deadline thread; for work in a child process, which can be killed.
    Call(Arc<dyn Fn(&Overran) + Send + Sync>),
}

impl Overrun {
    /// Calls `act` from the deadline thread, outside the async runtime; it must not block.
    pub fn call(act: impl Fn(&Overran) + Send + Sync + 'static) -> Self {
        Self::Call(Arc::new(act))
    }
}

impl fmt::Debug for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Abort => "Abort",
            Self::Log => "Log",
            Self::Call(_) => "Call",
        })
    }
}

/// The term whose work did not end in time.
#[derive(Clone, Debug)]
pub struct Overran {
    /// The lock, `lease kube-system/x`.
    pub lock: Arc<str>,
    /// The token of the term.
    pub token: FencingToken,
}

/// A call at an instant that can be moved, made by the deadline thread. Dropping it cancels it.
///
/// ```
/// # use std::time::Duration;
/// use tenure::clock::{Clock, SystemClock};
/// use tenure::deadline::Deadline;
///
/// let far = SystemClock.now().local + Duration::from_secs(60);
/// let deadline = Deadline::new(far, || eprintln!("too late"));
/// deadline.move_to(far + Duration::from_secs(60));
/// drop(deadline); // never called
/// ```
#[must_use = "dropping it cancels the call"]
pub struct Deadline {
    call: Arc<Call>,
}

struct Call(Mutex<Pending>);

struct Pending {
    at: LocalTime,
    act: Option<Box<dyn FnOnce() + Send>>,
}

impl Deadline {
    /// Calls `act` at the instant, on [`SystemClock`]. It must not block: other deadlines wait for it.
    pub fn new(at: LocalTime, act: impl FnOnce() + Send + 'static) -> Self {
        let act: Option<Box<dyn FnOnce() + Send>> = Some(Box::new(act));
        let call = Arc::new(Call(Mutex::new(Pending { at, act })));
        watch(call.clone());
        Self { call }
    }

    /// Moves it, earlier or later; nothing happens if the call was made already.
    pub fn move_to(&self, at: LocalTime) {
        lock(&self.call.0).at = at;
        look_now();
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        lock(&self.call.0).act = None;
        look_again();
    }
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pending = lock(&self.call.0);
        f.debug_struct("Deadline")
            .field("at", &pending.at)
            .field("called", &pending.act.is_none())
            .finish()
    }
}

impl Watched for Call {
    fn look(&self) -> Option<Duration> {
        let mut pending = lock(&self.0);
        pending.act.as_ref()?;
        let left = pending.at.since(SystemClock.now().local);
        if !left.is_zero() {
            return Some(left);
        }
        let act = pending.act.take();
        drop(pending);
        if let Some(act) = act {
            act();
        }
        None
    }

    fn on_system_clock(&self) -> bool {
        true
    }
}

/// Watches over one term: ends it when its guard runs out, and acts on work that overruns.
///
/// It counts the handles of the term. The work has ended, and the term is joined, when none is left (S4); a
/// joined term gets no new handle.
pub(crate) struct Watchdog {
    pub(crate) cell: Arc<Cell>,
    /// By when, from the send time of the last renewal, work must have ended.
    fence: Duration,
    policy: Overrun,
    state: Mutex<Winding>,
    /// Wakes those that wait until one handle is left.
    few: Notify,
}

struct Winding {
    /// Set once the term was told to stop.
    deadline: Option<LocalTime>,
    /// Counted handles; the first is that of the [`Term`](crate::Term).
    handles: usize,
    /// Where to report that the work has ended.
    link: Option<Link>,
    overrun: bool,
}

impl Watchdog {
    /// Begins to watch; on a simulated clock the driver alone calls.
    pub(crate) fn start(cell: Arc<Cell>, fence: Duration, policy: Overrun) -> Arc<Self> {
        let real = cell.clock.is_real();
        let dog = Arc::new(Self {
            cell,
            fence,
            policy,
            state: Mutex::new(Winding {
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
        let clock = &self.cell.clock;
        let told = clock.now().local;
        loop {
            // The deadline moves: later while the lease is renewed for work that winds down, earlier when it is lost.
            let at = drop_at(told, self.deadline());
            let now = clock.now().local;
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
            Overrun::Abort => {
                abort(&overran, handles);
            }
            Overrun::Log => {
                tracing::error!(%lock, token, handles, "work did not end in time, another may lead now");
            }
            Overrun::Call(act) => {
                let act = std::panic::AssertUnwindSafe(|| act(&overran));
                if std::panic::catch_unwind(act).is_err() {
                    // What it had to end may go on.
                    abort(&overran, handles);
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
fn drop_at(told: LocalTime, deadline: LocalTime) -> LocalTime {
    let time = deadline.since(told);
    told + time.saturating_sub(DROP_EARLY.min(time / 4))
}

/// Aborts. Another thread writes the message: whatever blocks the work may block standard error too, and
/// nothing may delay the end.
fn abort(overran: &Overran, handles: usize) -> ! {
    let text = format!(
        "tenure: the work of term {} of {} did not end in time; aborting, because another process \
         may lead now ({handles} handles of the term are still held)\n",
        overran.token, overran.lock
    );
    let (said, heard) = std::sync::mpsc::channel();
    let speaker = std::thread::Builder::new().spawn(move || {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        let _ = said.send(());
    });
    if speaker.is_ok() {
        let _ = heard.recv_timeout(LAST_WORDS);
    }
    std::process::abort();
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

/// Something the thread looks after.
trait Watched: Send + Sync {
    /// Does what is due; returns what is left until the next look, or nothing if there is none. Who makes it
    /// less calls [`look_now`] or [`look_again`] afterwards; time that passes makes it less by itself.
    fn look(&self) -> Option<Duration>;

    /// Whether what is left is counted by [`SystemClock`].
    fn on_system_clock(&self) -> bool;
}

/// How much time has passed on [`SystemClock`] since the first look, by whichever of its clocks went further
/// between two looks. A [`Guard`](tenure_core::Guard) counts the same way, so nothing of which more is left
/// than has passed since can have run out, whatever the clocks did.
#[derive(Default)]
struct Tally {
    last: Option<Now>,
    passed: Duration,
}

impl Tally {
    fn at(&mut self, now: Now) -> Duration {
        if let Some(last) = self.last.replace(now) {
            let local = now.local.since(last.local);
            self.passed += local.max(now.wall.advanced_since(last.wall));
        }
        self.passed
    }
}

struct Held {
    watched: Arc<dyn Watched>,
    /// It need not be looked at before so much has passed.
    due: Duration,
}

#[derive(Default)]
struct Board {
    held: Mutex<Vec<Held>>,
    changed: Condvar,
    /// Less may be left of something than was thought.
    all: AtomicBool,
}

impl Board {
    /// One look at everything that may be due; returns how long to sleep, or nothing if there is nothing to
    /// watch, and the lock, without which nothing is added.
    fn look(
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

    fn run(&self) {
        let mut tally = Tally::default();
        loop {
            let (sleep, held) = self.look(|| tally.at(SystemClock.now()));
            if self.all.load(Ordering::Acquire) {
                continue;
            }
            match sleep {
                Some(left) => drop(self.changed.wait_timeout(held, left)),
                None => drop(self.changed.wait(held)),
            }
        }
    }

    fn watch(&self, watched: Arc<dyn Watched>) {
        let due = Duration::ZERO;
        lock(&self.held).push(Held { watched, due });
    }
}

fn board() -> &'static Board {
    static BOARD: OnceLock<Board> = OnceLock::new();
    static THREAD: OnceLock<()> = OnceLock::new();
    let board = BOARD.get_or_init(Board::default);
    THREAD.get_or_init(|| {
        let thread = std::thread::Builder::new()
            .name("tenure-deadline".to_owned())
            .stack_size(128 * 1024)
            .spawn(|| BOARD.get_or_init(Board::default).run());
        // Without it terms still end by the clock and by the driver, so that is no reason to refuse
        // to lead; but somebody should know.
        if let Err(error) = thread {
            tracing::error!(%error, "cannot start the deadline thread");
        }
    });
    board
}

fn watch(watched: Arc<dyn Watched>) {
    let board = board();
    board.watch(watched);
    board.changed.notify_one();
}

/// Looks at everything now.
fn look_now() {
    look_again();
    let board = board();
    // Between its last look and its sleep the thread has the lock, and would not hear of this.
    drop(lock(&board.held));
    board.changed.notify_one();
}

/// Looks at everything the next time, which is soon: less may be left of something, or nothing at all.
pub(crate) fn look_again() {
    board().all.store(true, Ordering::Release);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tenure_core::Guard;

    use super::*;
    use crate::clock::TokioClock;
    use crate::guard::tests::cell;

    fn dog(clock: &TokioClock) -> (Arc<Watchdog>, Arc<AtomicU32>) {
        let calls = Arc::new(AtomicU32::new(0));
        let policy = {
            let calls = calls.clone();
            Overrun::call(move |overran| {
                assert_eq!(overran.token.as_str(), "7");
                calls.fetch_add(1, Ordering::SeqCst);
            })
        };
        let cell = cell(clock, Duration::from_secs(10));
        (
            Watchdog::start(cell, Duration::from_millis(14_500), policy),
            calls,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_ignores_the_end_is_acted_upon_once_at_the_fence() {
        let clock = TokioClock::new();
        let (dog, calls) = dog(&clock);
        let board = Board::default();
        board.watch(dog.clone());
        let look = || board.look(Duration::default).0;
        assert_eq!(look(), Some(LONGEST_LOOK));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(look().is_some());
        assert!(dog.cell.has_ended(), "nobody had to run the driver");
        tokio::time::advance(Duration::from_millis(4_499)).await;
        look();
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(look(), None, "nothing is left to watch");
        dog.overrun();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_long_pause_work_gets_a_last_moment() {
        let clock = TokioClock::new();
        let (dog, calls) = dog(&clock);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(dog.look(), Some(LAST_MOMENT));
        tokio::time::advance(LAST_MOMENT).await;
        assert_eq!(dog.look(), None);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_ended_is_left_alone() {
        let clock = TokioClock::new();
        let (dog, calls) = dog(&clock);
        dog.drop_handle();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(dog.look(), None);
        dog.overrun();
        assert_eq!(calls.load(Ordering::SeqCst), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_stays_armed_until_the_last_handle_is_gone() {
        let clock = TokioClock::new();
        let (dog, calls) = dog(&clock);
        assert!(dog.add_handle());
        assert_eq!(dog.drop_term(), 1);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(dog.look().is_some(), "a part of the work goes on");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(dog.look(), None);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        dog.drop_handle();
        assert!(dog.is_joined() && !dog.add_handle());
    }

    /// Counts the looks at it; so much is left each time.
    struct Counted {
        looks: AtomicU32,
        left: Duration,
        on_system_clock: bool,
    }

    impl Watched for Counted {
        fn look(&self) -> Option<Duration> {
            self.looks.fetch_add(1, Ordering::SeqCst);
            Some(self.left)
        }

        fn on_system_clock(&self) -> bool {
            self.on_system_clock
        }
    }

    #[test]
    fn only_what_may_have_run_out_is_looked_at() {
        let board = Board::default();
        let watched = [(10, true), (3, true), (10, false)].map(|(seconds, on_system_clock)| {
            Arc::new(Counted {
                looks: AtomicU32::new(0),
                left: Duration::from_secs(seconds),
                on_system_clock,
            })
        });
        let look = |passed| {
            let sleep = board.look(|| Duration::from_millis(passed)).0;
            let looks = |one: &Arc<Counted>| one.looks.load(Ordering::SeqCst);
            (sleep, watched.each_ref().map(looks))
        };
        for one in &watched {
            board.watch(one.clone());
        }
        assert_eq!(look(0), (Some(LONGEST_LOOK), [1, 1, 1]));
        let (sleep, looks) = look(2_900);
        assert_eq!(looks, [1, 1, 2], "another clock may go its own ways");
        assert_eq!(sleep, Some(Duration::from_millis(100)));
        assert_eq!(look(3_000).1, [1, 2, 3]);
        board.all.store(true, Ordering::Release);
        assert_eq!(look(3_100).1, [2, 3, 4]);
        assert_eq!(look(3_200).1, [2, 3, 5]);
        assert_eq!(look(13_100).1, [3, 4, 6]);
    }

    /// Ends with a panic, and then has something left to do.
    struct Panicking(AtomicU32);

    impl Watched for Panicking {
        fn look(&self) -> Option<Duration> {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => panic!("a hook of somebody"),
                _ => None,
            }
        }

        fn on_system_clock(&self) -> bool {
            true
        }
    }

    #[test]
    fn who_panics_is_looked_at_once_more() {
        let board = Board::default();
        let watched = Arc::new(Panicking(AtomicU32::new(0)));
        board.watch(watched.clone());
        assert_eq!(board.look(Duration::default).0, Some(Duration::ZERO));
        assert_eq!(board.look(Duration::default).0, None);
        assert_eq!(watched.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn the_end_of_a_term_is_a_reason_to_look_again() {
        let clock = Arc::new(SystemClock);
        let guard = Guard::new(clock.now(), Duration::from_secs(3600));
        let token = (FencingToken::from(7), 3);
        let cell = Cell::new("lease a/b".into(), "me".into(), clock, token, guard);
        let (send, aborted) = std::sync::mpsc::channel();
        let policy = Overrun::call(move |_| send.send(()).unwrap_or_default());
        let dog = Watchdog::start(Arc::new(cell), Duration::from_secs(3600), policy);
        // As the driver does it, with a look of the thread between the two.
        dog.set_deadline(SystemClock.now().local);
        for _ in 0..1000 {
            if !board().all.load(Ordering::Acquire) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        dog.cell.end(StopReason::Shutdown);
        let overrun = aborted.recv_timeout(Duration::from_secs(60));
        assert_eq!(overrun, Ok(()), "long before the guard runs out");
    }

    #[test]
    fn time_passes_as_it_does_for_guards() {
        let at = |local_ms: u64, wall_ms: i64| Now {
            local: LocalTime::from_nanos(local_ms * 1_000_000),
            wall: tenure_core::WallTime::from_micros(wall_ms * 1_000),
        };
        let mut tally = Tally::default();
        let mut passed = |local, wall| tally.at(at(local, wall)).as_millis();
        assert_eq!(passed(1_000, 50_000), 0);
        assert_eq!(passed(1_250, 50_250), 250);
        assert_eq!(passed(1_500, 10_000), 500, "set back");
        assert_eq!(passed(1_750, 50_000), 40_500, "and forward again");
    }

    #[test]
    fn a_deadline_is_called_by_the_thread_and_a_dropped_one_is_not() {
        let (send, called) = std::sync::mpsc::channel();
        let now = SystemClock.now().local;
        let dropped = Deadline::new(now + Duration::from_secs(3600), {
            let send = send.clone();
            move || send.send("dropped").unwrap_or_default()
        });
        dropped.move_to(now + Duration::from_secs(7200));
        drop(dropped);
        let moved = Deadline::new(now + Duration::from_secs(3600), move || {
            send.send("moved").unwrap_or_default();
        });
        moved.move_to(now);
        assert_eq!(called.recv(), Ok("moved"));
        assert!(called.recv().is_err(), "the other was forgotten");
    }
}
