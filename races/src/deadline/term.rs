//! The three ways in which a term ends: by the driver, by the deadline thread, and by the drop of its last handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use loom::thread;
use tenure_core::StopReason;

use super::board::Watched;
use super::policy::Overrun;
use super::thread::{board, run};
use super::watchdog::Watchdog;
use crate::Bug;
use crate::clock::{Clock, SystemClock, advance};
use crate::explore::explore;
use crate::tenure::{cell, end_quietly};
use crate::shared::Link;
use crate::hub::Ask;
use crate::sync::atomic::Ordering::Release;
use crate::sync::{self, Timeouts, block_on, lock};

const SECOND: Duration = Duration::from_secs(1);

/// Starts a term with a guard of 10 s and a fence of 14 s. Also returns a counter of the calls of its policy.
fn watchdog() -> (Arc<Watchdog>, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let policy = Overrun::call({
        let calls = calls.clone();
        move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            // Keeps the thread from sleeping once more before it ends.
            board().look_again();
        }
    });
    let dog = Watchdog::start(cell(10 * SECOND), 14 * SECOND, policy);
    (dog, calls)
}

/// The driver stops the term and gives its work no more time. The work does not end.
fn stopped(bug: Bug) {
    let (dog, calls) = watchdog();
    // Maximum number of sleeps that the thread may begin. It is known only after the term has ended.
    let allowed = Arc::new(AtomicU32::new(u32::MAX));
    let done = {
        let (calls, allowed) = (calls.clone(), allowed.clone());
        move || {
            let acted = calls.load(Ordering::Relaxed) > 0;
            acted || sync::sleeps() > allowed.load(Ordering::Relaxed)
        }
    };
    let thread = thread::spawn(move || run(done, bug));
    dog.set_deadline(SystemClock.now().local);
    let ended = match bug {
        Bug::LookBeforeEnd => {
            board().look_again();
            end_quietly(&dog.cell)
        }
        Bug::NoLookAfterEnd => end_quietly(&dog.cell),
        Bug::RequestStored => {
            let ended = end_quietly(&dog.cell);
            board().all.store(true, Release);
            ended
        }
        _ => dog.cell.end(StopReason::StepDown),
    };
    assert!(ended, "the guard had not expired");
    let most = sync::sleeps() + 1;
    allowed.store(most, Ordering::Relaxed);
    thread.join().unwrap();
    assert!(
        sync::sleeps() <= most,
        "slept again after the end of the term"
    );
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn policy_is_applied_to_a_stopped_term_after_at_most_one_sleep() {
    let bugs = [
        (Bug::LookBeforeEnd, "slept again"),
        (Bug::NoLookAfterEnd, "slept again"),
        (Bug::RequestStored, "slept again"),
        (Bug::RequestClearedLate, "slept again"),
    ];
    explore(Timeouts::Always, stopped, &bugs);
}

/// The guard expires while the driver stops the term with a deadline before the fence.
fn expired_and_stopped(bug: Bug) {
    let (dog, _) = watchdog();
    advance(10 * SECOND);
    let deadline = SystemClock.now().local + SECOND;
    let thread = thread::spawn({
        let dog = dog.clone();
        move || {
            if bug == Bug::DeadlineReplaced {
                let fence = dog.cell.guard().sent().local + 14 * SECOND;
                if !dog.cell.has_ended() && dog.cell.end(StopReason::GuardExpired) {
                    lock(&dog.state).deadline = Some(fence);
                }
                return Some(SECOND);
            }
            dog.look()
        }
    });
    dog.set_deadline(deadline);
    dog.cell.end(StopReason::StepDown);
    let left = thread.join().unwrap();
    assert!(left.is_some(), "the work has time left");
    assert!(dog.cell.has_ended());
    assert!(
        dog.deadline() == deadline,
        "the deadline of the driver counts"
    );
    assert_eq!(dog.look(), Some(SECOND));
}

#[test]
fn deadline_of_the_driver_counts_although_the_thread_ended_the_term() {
    let bugs = [(Bug::DeadlineReplaced, "deadline of the driver")];
    explore(Timeouts::Never, expired_and_stopped, &bugs);
}

/// The driver and the deadline thread both find that the work has overrun, while its handle is dropped.
fn overrun(bug: Bug) {
    let (dog, calls) = watchdog();
    let act = move |dog: &Watchdog| {
        if bug == Bug::OverrunCheckedApart {
            if lock(&dog.state).overrun {
                return;
            }
            lock(&dog.state).overrun = true;
            if let Overrun::Call(act) = &dog.policy {
                act(&super::policy::Overran {
                    lock: dog.cell.lock.clone(),
                    token: dog.cell.token.clone(),
                });
            }
        } else {
            dog.overrun();
        }
    };
    let thread = thread::spawn({
        let dog = dog.clone();
        move || act(&dog)
    });
    act(&dog);
    thread.join().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1, "acted upon once");
}

#[test]
fn overrun_found_by_two_threads_applies_the_policy_once() {
    let bugs = [(Bug::OverrunCheckedApart, "acted upon once")];
    explore(Timeouts::Never, overrun, &bugs);
}

/// The handle of the term and a handle of its work are dropped while an observer asks for another handle.
fn handles(bug: Bug) {
    let (dog, _) = watchdog();
    let link = Link::new();
    dog.report_to(link.clone());
    assert!(dog.add_handle());
    let work = thread::spawn({
        let dog = dog.clone();
        move || dog.drop_handle()
    });
    let observer = thread::spawn({
        let (dog, link) = (dog.clone(), link.clone());
        move || {
            let held = dog.add_handle();
            if held {
                let asks = lock(&link.0).clone();
                assert!(!asks.contains(&Ask::WorkEnded), "a held term was joined");
                dog.drop_handle();
            }
            held
        }
    });
    if bug == Bug::ReportWithoutLock {
        let left = {
            let mut state = lock(&dog.state);
            state.handles -= 1;
            state.handles
        };
        link.send(match left {
            0 => Ask::WorkEnded,
            _ => Ask::WorkEnding,
        });
    } else {
        dog.drop_term();
    }
    work.join().unwrap();
    observer.join().unwrap();
    assert!(dog.is_joined() && !dog.add_handle());
    let asks = lock(&link.0).clone();
    let ends = asks.iter().filter(|ask| **ask == Ask::WorkEnded).count();
    assert!(
        ends == 1 && asks.last() == Some(&Ask::WorkEnded),
        "the end is reported once, and last: {asks:?}"
    );
}

#[test]
fn end_of_the_work_is_reported_once_and_last() {
    let bugs = [(Bug::ReportWithoutLock, "reported once, and last")];
    explore(Timeouts::Never, handles, &bugs);
}

/// The work waits until it holds the last handle, which another thread drops.
fn last_handle(bug: Bug) {
    let (dog, _) = watchdog();
    assert!(dog.add_handle());
    let other = thread::spawn({
        let dog = dog.clone();
        move || dog.drop_handle()
    });
    block_on(async {
        if bug == Bug::CheckBeforeWait {
            if lock(&dog.state).handles > 1 {
                dog.few.notified().await;
            }
        } else {
            dog.one_handle_left().await;
        }
    });
    assert!(!dog.is_joined());
    other.join().unwrap();
}

#[test]
fn waiter_for_the_last_handle_is_always_woken() {
    let bugs = [(Bug::CheckBeforeWait, "deadlock")];
    explore(Timeouts::Never, last_handle, &bugs);
}
