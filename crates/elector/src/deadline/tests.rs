//! Tests of the deadline thread, its timers and its watchdogs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::{FencingToken, Guard, LocalTime, Now, StopReason};

use super::board::{Board, LONGEST_LOOK, Tally, Watched};
use super::thread::board;
use super::watchdog::{LAST_MOMENT, Watchdog, drop_at};
use super::{Deadline, Overran, Overrun};
use crate::clock::{Clock, SystemClock, TokioClock};
use crate::hub::{Ask, Message};
use crate::shared::Link;
use crate::sync::lock;
use crate::tenure::Cell;
use crate::tenure::tests::cell;

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
async fn work_gets_a_minimum_time_after_a_long_pause() {
    let clock = TokioClock::new();
    let (dog, calls) = dog(&clock);
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(dog.look(), Some(LAST_MOMENT));
    tokio::time::advance(LAST_MOMENT).await;
    assert_eq!(dog.look(), None);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn policy_is_not_applied_to_work_that_ended() {
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
    assert!(dog.look().is_some(), "a part of the work continues");
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(dog.look(), None);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    dog.drop_handle();
    assert!(dog.is_joined() && !dog.add_handle());
}

#[tokio::test(start_paused = true)]
async fn end_of_the_work_is_reported_once_and_last() {
    let (dog, _) = dog(&TokioClock::new());
    let (inbox, mut reports) = tokio::sync::mpsc::unbounded_channel();
    dog.report_to(Link { inbox, id: 9 });
    let mut reported = || match reports.try_recv() {
        Ok(Message::Ask(id, ask)) => format!("{id}: {ask:?}"),
        Ok(Message::Start(_)) => "start".to_owned(),
        Err(error) => error.to_string(),
    };
    let nothing = tokio::sync::mpsc::error::TryRecvError::Empty.to_string();
    assert!(dog.add_handle() && dog.add_handle());
    assert_eq!(dog.drop_term(), 2);
    assert_eq!(reported(), format!("9: {:?}", Ask::WorkEnding));
    dog.drop_handle();
    assert_eq!(reported(), nothing, "a part of the work continues");
    dog.drop_handle();
    assert_eq!(reported(), format!("9: {:?}", Ask::WorkEnded));
    assert!(reports.is_closed(), "nothing can be reported later");
}

#[tokio::test(start_paused = true)]
async fn waiter_is_notified_when_one_handle_is_left() {
    let (dog, _) = dog(&TokioClock::new());
    dog.one_handle_left().await;
    assert!(dog.add_handle() && dog.add_handle());
    let waiter = tokio::spawn({
        let dog = dog.clone();
        async move { dog.one_handle_left().await }
    });
    for left in [2, 1] {
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished(), "{} are left", left + 1);
        assert_eq!(dog.drop_term(), left);
    }
    tokio::task::yield_now().await;
    assert!(waiter.is_finished());
}

#[tokio::test(start_paused = true)]
async fn deadline_follows_the_guard_until_it_is_set() {
    let clock = TokioClock::new();
    let (dog, _) = dog(&clock);
    let fence = Duration::from_millis(14_500);
    let start = clock.now().local;
    assert_eq!(dog.deadline(), start + fence);
    tokio::time::advance(Duration::from_secs(2)).await;
    dog.cell
        .extend(Guard::new(clock.now(), Duration::from_secs(10)));
    assert_eq!(dog.deadline(), start + Duration::from_secs(2) + fence);
    dog.set_deadline(start);
    assert_eq!(dog.deadline(), start);
}

#[tokio::test(start_paused = true)]
async fn work_is_due_to_be_dropped_after_its_term_and_before_its_deadline() {
    let clock = TokioClock::new();
    let (dog, _) = dog(&clock);
    let start = clock.now().local;
    let due = tokio::spawn({
        let dog = dog.clone();
        async move { dog.drop_due().await }
    });
    dog.pass(Duration::from_secs(3)).await;
    assert_eq!(clock.now().local.since(start), Duration::from_secs(3));
    assert!(!due.is_finished(), "the term lasts");
    dog.cell.end(StopReason::Shutdown);
    dog.set_deadline(start + Duration::from_secs(5));
    dog.pass(Duration::from_secs(1)).await;
    // The lease was renewed for the work that is stopping.
    dog.set_deadline(start + Duration::from_secs(7));
    due.await.unwrap();
    assert_eq!(clock.now().local.since(start), Duration::from_millis(6_750));
}

#[test]
fn message_of_an_abort_names_the_term() {
    let overran = Overran {
        lock: "lease a/b".into(),
        token: FencingToken::from(7),
    };
    assert_eq!(
        overran.message(2),
        "the work of term 7 of lease a/b did not end in time; aborting, because another process may lead now \
         (2 handles of the term are still held)"
    );
}

#[test]
fn policies_are_the_ones_that_were_asked_for() {
    assert!(matches!(Overrun::default(), Overrun::Abort));
    assert!(matches!(Overrun::call(|_| ()), Overrun::Call(_)));
    let message = |_: &Overran| String::new();
    assert!(matches!(Overrun::abort_with(message), Overrun::Call(_)));
}

/// Counts its checks, and has the same remaining time at each.
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
fn only_entries_that_may_be_due_are_checked() {
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

#[test]
fn requested_check_includes_entries_that_are_not_due() {
    let board = Board::default();
    let watched = Arc::new(Counted {
        looks: AtomicU32::new(0),
        left: Duration::from_secs(10),
        on_system_clock: true,
    });
    board.watch(watched.clone());
    let looks = || {
        drop(board.look(|| Duration::from_secs(1)));
        watched.looks.load(Ordering::SeqCst)
    };
    assert_eq!((looks(), looks()), (1, 1));
    board.look_again();
    assert_eq!((looks(), looks()), (2, 2));
    board.look_now();
    assert_eq!((looks(), looks()), (3, 3));
}

/// Panics at its first check, and ends at its second.
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
fn panicking_entry_is_checked_once_more() {
    let board = Board::default();
    let watched = Arc::new(Panicking(AtomicU32::new(0)));
    board.watch(watched.clone());
    assert_eq!(board.look(Duration::default).0, Some(Duration::ZERO));
    assert_eq!(board.look(Duration::default).0, None);
    assert_eq!(watched.0.load(Ordering::SeqCst), 2);
}

/// A watchdog of a term that lasts for an hour of the system clock.
fn real_dog(policy: Overrun) -> Arc<Watchdog> {
    let clock = Arc::new(SystemClock);
    let hour = Duration::from_secs(3600);
    let guard = Guard::new(clock.now(), hour);
    let token = (FencingToken::from(7), 3);
    let cell = Cell::new("lease a/b".into(), "me".into(), clock, token, guard);
    Watchdog::start(Arc::new(cell), hour, policy)
}

/// Waits until the thread no longer holds a reference.
fn is_forgotten<T>(watched: &std::sync::Weak<T>) -> bool {
    (0..6_000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        watched.strong_count() == 0
    })
}

#[test]
fn ended_term_is_dropped_long_before_its_deadline() {
    // Other tests make the thread check all entries too. Several rounds show that the end of the term causes the check.
    for _ in 0..3 {
        let dog = real_dog(Overrun::Log);
        let watched = Arc::downgrade(&dog);
        dog.drop_handle();
        drop(dog);
        assert!(is_forgotten(&watched));
    }
}

#[test]
fn last_handle_requests_a_check() {
    const ROUNDS: usize = 200;
    let dogs = [(); ROUNDS].map(|()| real_dog(Overrun::Log));
    let held = lock(&board().held);
    // The thread needs this lock for its next check. It can therefore take at most one request.
    let requests = dogs.iter().filter(|dog| {
        board().all.store(false, Ordering::SeqCst);
        dog.drop_handle();
        board().all.load(Ordering::SeqCst)
    });
    let requests = requests.count();
    drop(held);
    // Repeats the requests of other tests.
    board().look_now();
    assert!(requests >= ROUNDS - 1, "{requests} of {ROUNDS}");
}

#[test]
fn cancelled_deadline_is_dropped_long_before_its_time() {
    for _ in 0..3 {
        let at = SystemClock.now().local + Duration::from_secs(3600);
        let deadline = Deadline::new(at, || {});
        let watched = Arc::downgrade(&deadline.call);
        drop(deadline);
        assert!(is_forgotten(&watched));
    }
}

#[tokio::test(start_paused = true)]
async fn only_deadlines_on_the_system_clock_are_skipped_until_due() {
    let deadline = Deadline::new(SystemClock.now().local + Duration::from_secs(3600), || {});
    assert!(deadline.call.on_system_clock());
    assert!(real_dog(Overrun::Log).on_system_clock());
    let (simulated, _) = dog(&TokioClock::new());
    assert!(!simulated.on_system_clock());
}

#[test]
fn work_is_dropped_a_quarter_second_early_or_after_three_quarters_of_a_short_time() {
    let told = LocalTime::from_nanos(5_000_000_000);
    let after = |millis| told + Duration::from_millis(millis);
    for (deadline, dropped) in [(10_000, 9_750), (1_000, 750), (400, 300), (0, 0)] {
        assert_eq!(drop_at(told, after(deadline)), after(dropped), "{deadline}");
    }
}

#[test]
fn end_of_a_term_makes_the_thread_check_again() {
    let (send, aborted) = std::sync::mpsc::channel();
    let dog = real_dog(Overrun::call(move |_| send.send(()).unwrap_or_default()));
    // The same order as in the driver, with a check of the thread between the two calls.
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

/// Waits until the thread has checked a deadline and will skip it until it is due.
fn is_skipped(deadline: &Deadline) -> bool {
    let own = Arc::as_ptr(&deadline.call).cast::<()>();
    (0..60_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let held = lock(&board().held);
        let entry = held
            .iter()
            .find(|one| Arc::as_ptr(&one.watched).cast::<()>() == own);
        entry.is_some_and(|one| !one.due.is_zero())
    })
}

#[test]
fn moved_deadline_is_checked_again() {
    let (send, called) = std::sync::mpsc::channel();
    // Other tests make the thread check all entries too. Several rounds show that the move causes the check.
    let mut moved = Vec::new();
    for round in 0..10 {
        let send = send.clone();
        let now = SystemClock.now().local;
        let deadline = Deadline::new(now + Duration::from_secs(3600), move || {
            send.send(round).unwrap_or_default();
        });
        assert!(is_skipped(&deadline));
        deadline.move_to(now);
        assert_eq!(called.recv_timeout(Duration::from_secs(60)), Ok(round));
        moved.push(deadline);
    }
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
