//! A separate board for each run, instead of the board of the process.

use std::cell::RefCell;
use std::sync::Arc;

use super::board::{Board, Tally, Watched};
use crate::Bug;
use crate::clock::{Clock, SystemClock};
use crate::sync::{atomic::Ordering, lock};

thread_local! {
    static BOARD: RefCell<Option<Arc<Board>>> = const { RefCell::new(None) };
}

pub(crate) fn reset() {
    BOARD.set(Some(Arc::default()));
}

pub(super) fn board() -> Arc<Board> {
    let board = BOARD.with_borrow(Clone::clone);
    board.expect("a model runs")
}

pub(super) fn watch(watched: Arc<dyn Watched>) {
    board().watch(watched);
}

pub(super) fn look_now() {
    board().look_now();
}

pub(crate) fn look_again() {
    board().look_again();
}

/// Checks and sleeps like the deadline thread, until it has nothing left to do.
pub(super) fn run(done: impl Fn() -> bool, bug: Bug) {
    let board = board();
    let mut tally = Tally::default();
    while !done() {
        let passed = || tally.at(SystemClock.now());
        match bug {
            Bug::SleepWithoutLock => {
                let (sleep, held) = board.look(passed);
                if board.all.load(Ordering::Acquire) {
                    continue;
                }
                drop(held);
                let held = lock(&board.held);
                match sleep {
                    Some(left) => board.changed.wait_timeout(held, left),
                    None => board.changed.wait(held),
                }
            }
            Bug::RequestClearedLate => {
                let (sleep, held) = board.look(passed);
                if done() {
                    return;
                }
                board.all.store(false, Ordering::Release);
                match sleep {
                    Some(left) => board.changed.wait_timeout(held, left),
                    None => board.changed.wait(held),
                }
            }
            _ => board.turn(passed),
        }
    }
}
