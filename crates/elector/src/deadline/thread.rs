//! The thread, and the board with its entries.

use std::sync::{Arc, OnceLock};

use super::board::{Board, Watched};

/// Stack size of the thread, in bytes. The thread calls hooks of programs, which need some stack.
const STACK: usize = 128 * 1024;

pub(super) fn board() -> &'static Board {
    static BOARD: OnceLock<Board> = OnceLock::new();
    static THREAD: OnceLock<()> = OnceLock::new();
    let board = BOARD.get_or_init(Board::default);
    THREAD.get_or_init(|| {
        let thread = std::thread::Builder::new()
            .name("tenure-deadline".to_owned())
            .stack_size(STACK)
            .spawn(|| BOARD.get_or_init(Board::default).run());
        // Without the thread, terms still end by the clock and by the driver, so this candidate may lead.
        if let Err(error) = thread {
            tracing::error!(%error, "cannot start the deadline thread");
        }
    });
    board
}

pub(super) fn watch(watched: Arc<dyn Watched>) {
    board().watch(watched);
}

/// Makes the thread check every entry now.
pub(super) fn look_now() {
    board().look_now();
}

/// Makes the thread check every entry when it wakes the next time, which is soon.
pub(crate) fn look_again() {
    board().look_again();
}
