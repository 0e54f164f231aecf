//! The state of a term: its guard, its end and its hooks.

#[path = "../../crates/elector/src/tenure/cell.rs"]
mod cell;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use loom::thread;
use tenure_core::{FencingToken, Guard, StopReason};

pub(crate) use self::cell::Cell;
use crate::Bug;
use crate::clock::{Clock, SystemClock, advance};
use crate::explore::explore;
use crate::sync::{Timeouts, block_on, lock};

const SECOND: Duration = Duration::from_secs(1);

/// Creates a term whose guard is valid for this long from now.
pub(crate) fn cell(length: Duration) -> Arc<Cell> {
    Arc::new(Cell::new(
        "lease a/b".into(),
        "me".into(),
        Arc::new(SystemClock),
        (FencingToken::from(7), 3),
        Guard::new(SystemClock.now(), length),
    ))
}

/// Ends a term without requesting a check of the deadline thread.
pub(crate) fn end_quietly(cell: &Cell) -> bool {
    cell.ended.set(StopReason::StepDown).is_ok()
}

fn valid_for(cell: &Cell, bug: Bug) -> Duration {
    match bug {
        Bug::ClockBeforeGuard => {
            let now = cell.clock.now();
            let guard = cell.guard();
            if cell.has_ended() {
                return Duration::ZERO;
            }
            guard.left(now)
        }
        Bug::EndBeforeGuard => {
            if cell.has_ended() {
                return Duration::ZERO;
            }
            let guard = cell.guard();
            guard.left(cell.clock.now())
        }
        _ => cell.valid_for(),
    }
}

/// The guard expires after 10 s. Its extension is applied so late that it has expired as well.
fn late_extension(bug: Bug) {
    let cell = cell(10 * SECOND);
    advance(5 * SECOND);
    let sent = SystemClock.now();
    let driver = thread::spawn({
        let cell = cell.clone();
        move || {
            advance(6 * SECOND);
            advance(6 * SECOND);
            cell.extend(Guard::new(sent, 10 * SECOND));
        }
    });
    let asked = SystemClock.now();
    let leads = !valid_for(&cell, bug).is_zero();
    assert!(
        !leads || asked.local == sent.local,
        "leads although neither guard was good since it was asked"
    );
    driver.join().unwrap();
}

#[test]
fn late_extension_does_not_make_an_expired_guard_valid() {
    let bugs = [(Bug::ClockBeforeGuard, "neither guard was good")];
    explore(Timeouts::Never, late_extension, &bugs);
}

/// The deadline thread ends a term whose guard has expired, and then the driver extends the term.
fn extension_after_end(bug: Bug) {
    let cell = cell(10 * SECOND);
    advance(11 * SECOND);
    let driver = thread::spawn({
        let cell = cell.clone();
        move || {
            cell.end(StopReason::GuardExpired);
            cell.extend(Guard::new(SystemClock.now(), 10 * SECOND));
        }
    });
    let leads = !valid_for(&cell, bug).is_zero();
    assert!(!leads, "an ended term came back");
    driver.join().unwrap();
    assert!(valid_for(&cell, bug).is_zero());
}

#[test]
fn extension_after_the_end_does_not_restart_a_term() {
    let bugs = [(Bug::EndBeforeGuard, "came back")];
    explore(Timeouts::Never, extension_after_end, &bugs);
}

/// The driver extends the term while a second thread reads. The reader sees one of the two guards as a whole.
fn whole_guards(_: Bug) {
    let cell = cell(10 * SECOND);
    let first = cell.guard();
    advance(SECOND);
    let second = Guard::new(SystemClock.now(), 20 * SECOND);
    let driver = thread::spawn({
        let cell = cell.clone();
        move || cell.extend(second)
    });
    let before = cell.guard();
    let after = cell.guard();
    assert!([first, second].contains(&before) && [before, second].contains(&after));
    driver.join().unwrap();
    assert_eq!(cell.guard(), second);
}

#[test]
fn guard_is_read_as_a_whole_and_never_goes_back() {
    explore(Timeouts::Never, whole_guards, &[]);
}

/// Two threads end the term while a hook is added.
fn hooks(bug: Bug) {
    let cell = cell(10 * SECOND);
    let calls = Arc::new(AtomicU32::new(0));
    let count = |calls: &Arc<AtomicU32>| {
        let calls = calls.clone();
        move |_: &StopReason| {
            calls.fetch_add(1, Ordering::Relaxed);
        }
    };
    cell.at_end(Box::new(count(&calls)));
    let ends = [StopReason::GuardExpired, StopReason::StepDown].map(|reason| {
        let cell = cell.clone();
        thread::spawn(move || cell.end(reason))
    });
    let late = Box::new(count(&calls));
    if bug == Bug::HookWithoutLock {
        match cell.ended.get() {
            Some(reason) => late(reason),
            None => lock(&cell.hooks).push(late),
        }
    } else {
        cell.at_end(late);
    }
    let ended = ends.map(|end| end.join().unwrap());
    assert!(ended[0] != ended[1], "one of the two ended it");
    assert_eq!(calls.load(Ordering::Relaxed), 2, "each hook is called once");
}

#[test]
fn hook_added_during_the_end_is_called_once() {
    let bugs = [(Bug::HookWithoutLock, "called once")];
    explore(Timeouts::Never, hooks, &bugs);
}

/// One thread waits for the end while another ends the term.
fn waiter(bug: Bug) {
    let cell = cell(10 * SECOND);
    let driver = thread::spawn({
        let cell = cell.clone();
        move || cell.end(StopReason::StepDown)
    });
    block_on(async {
        if bug == Bug::CheckBeforeWait {
            if !cell.has_ended() {
                cell.bell.notified().await;
            }
        } else {
            cell.cancelled().await;
        }
    });
    assert!(cell.has_ended());
    assert!(driver.join().unwrap());
}

#[test]
fn waiter_for_the_end_is_always_woken() {
    let bugs = [(Bug::CheckBeforeWait, "deadlock")];
    explore(Timeouts::Never, waiter, &bugs);
}
