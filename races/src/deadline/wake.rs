//! Wake-ups between a check and a sleep: the thread does not sleep past a deadline that is added or moved.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::board::{Held, Watched};
use super::thread::{board, run};
use super::timer::Deadline;
use tenure_core::LocalTime;

use crate::Bug;
use crate::clock::{Clock, SystemClock};
use crate::explore::explore;
use crate::sync::atomic::Ordering::Release;
use crate::sync::{Timeouts, lock};

const FAR: Duration = Duration::from_secs(3600);

/// Counts the calls of deadlines. The deadline thread of a model ends with the last of them.
#[derive(Clone)]
struct Calls {
    made: Arc<AtomicU32>,
    expected: u32,
}

impl Calls {
    fn new(expected: u32) -> Self {
        let made = Arc::default();
        Self { made, expected }
    }

    fn made(&self) -> u32 {
        self.made.load(Ordering::Relaxed)
    }

    fn count(&self) {
        let made = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        if made == self.expected {
            // Keeps the thread from sleeping once more before it ends.
            board().look_again();
        }
    }

    /// Creates a deadline at this instant, whose call is counted. A model that fails must not drop it, because loom
    /// cannot take a lock after it has found a deadlock.
    fn at(&self, at: LocalTime) -> ManuallyDrop<Deadline> {
        let calls = self.clone();
        ManuallyDrop::new(Deadline::new(at, move || calls.count()))
    }

    fn start_thread(&self, bug: Bug) -> loom::thread::JoinHandle<()> {
        let calls = self.clone();
        let done = move || calls.made() >= calls.expected;
        loom::thread::spawn(move || run(done, bug))
    }
}

/// Something that is due.
struct Due(Calls);

impl Watched for Due {
    fn look(&self) -> Option<Duration> {
        self.0.count();
        None
    }

    fn on_system_clock(&self) -> bool {
        true
    }
}

/// Two deadlines are added, by two threads, to a board that was empty.
fn added(bug: Bug) {
    let calls = Calls::new(2);
    let thread = calls.start_thread(bug);
    let now = SystemClock.now().local;
    let other = loom::thread::spawn({
        let calls = calls.clone();
        move || calls.at(now)
    });
    let here = (bug != Bug::NotifyBeforeAdd).then(|| calls.at(now));
    if bug == Bug::NotifyBeforeAdd {
        board().changed.notify_one();
        let watched = Arc::new(Due(calls.clone()));
        let due = Duration::ZERO;
        lock(&board().held).push(Held { watched, due });
    }
    thread.join().unwrap();
    drop(here.map(ManuallyDrop::into_inner));
    drop(ManuallyDrop::into_inner(other.join().unwrap()));
    assert_eq!(calls.made(), 2);
}

#[test]
fn deadline_added_while_the_thread_falls_asleep_is_called() {
    let bugs = [
        (Bug::NotifyBeforeAdd, "deadlock"),
        (Bug::SleepWithoutLock, "deadlock"),
    ];
    explore(Timeouts::Never, added, &bugs);
}

/// A deadline in the far future is moved to the present.
fn moved(bug: Bug) {
    let calls = Calls::new(1);
    let now = SystemClock.now().local;
    let deadline = calls.at(now + FAR);
    let thread = calls.start_thread(bug);
    let board = board();
    let set = || lock(&deadline.call.0).at = now;
    match bug {
        Bug::NoWake => {
            set();
            board.look_again();
        }
        Bug::WakeWithoutLock => {
            set();
            board.look_again();
            board.changed.notify_one();
        }
        Bug::LookBeforeMove => {
            board.look_now();
            set();
        }
        _ => deadline.move_to(now),
    }
    thread.join().unwrap();
    drop(ManuallyDrop::into_inner(deadline));
    assert_eq!(calls.made(), 1);
}

#[test]
fn deadline_moved_while_the_thread_falls_asleep_is_called() {
    let bugs = [
        (Bug::NoWake, "deadlock"),
        (Bug::WakeWithoutLock, "deadlock"),
        (Bug::SleepWithoutLock, "deadlock"),
        (Bug::RequestClearedLate, "deadlock"),
        (Bug::LookBeforeMove, "deadlock"),
    ];
    explore(Timeouts::Never, moved, &bugs);
}

/// Two threads move a deadline each to the present.
fn moved_by_two(bug: Bug) {
    let calls = Calls::new(2);
    let now = SystemClock.now().local;
    let (here, there) = (calls.at(now + FAR), calls.at(now + FAR));
    let thread = calls.start_thread(bug);
    let move_now = move |deadline: &Deadline| {
        if bug == Bug::RequestStored {
            lock(&deadline.call.0).at = now;
            let board = board();
            board.all.store(true, Release);
            drop(lock(&board.held));
            board.changed.notify_one();
        } else {
            deadline.move_to(now);
        }
    };
    let other = loom::thread::spawn(move || {
        move_now(&there);
        there
    });
    move_now(&here);
    thread.join().unwrap();
    drop(ManuallyDrop::into_inner(here));
    drop(ManuallyDrop::into_inner(other.join().unwrap()));
    assert_eq!(calls.made(), 2);
}

#[test]
fn deadlines_moved_by_two_threads_are_all_called() {
    let bugs = [
        (Bug::SleepWithoutLock, "deadlock"),
        (Bug::RequestStored, "deadlock"),
    ];
    explore(Timeouts::Never, moved_by_two, &bugs);
}

/// A due deadline is dropped while the thread checks it. It is called once or not at all.
fn dropped(bug: Bug) {
    let (calls, others) = (Calls::new(u32::MAX), Calls::new(1));
    let now = SystemClock.now().local;
    let deadline = calls.at(now);
    let thread = others.start_thread(bug);
    drop(ManuallyDrop::into_inner(deadline));
    let last = others.at(now);
    thread.join().unwrap();
    drop(ManuallyDrop::into_inner(last));
    assert!(calls.made() <= 1);
    assert!(lock(&board().held).is_empty(), "the board keeps nothing");
}

#[test]
fn deadline_dropped_while_it_is_due_is_called_at_most_once() {
    explore(Timeouts::Never, dropped, &[]);
}
