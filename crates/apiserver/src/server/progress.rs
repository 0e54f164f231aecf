//! Whether a client takes what it is sent.
//!
//! The stall of a socket is not enough: on HTTP/2 a client may read from its connection and still leave
//! one answer lying, which then holds its memory for as long as the connection lives. So every piece of
//! an answer is counted from when it is handed over until its memory is given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

/// The checks in the time that a client has.
const CHECKS: u64 = 4;
/// More than the checks that an untaken piece can see before its connection ends.
const SLOTS: usize = 8;

/// What one connection owes to the memory: pieces that are on their way, by when they set out.
#[derive(Debug, Default)]
pub(super) struct Progress {
    check: AtomicU64,
    untaken: [AtomicUsize; SLOTS],
}

impl Progress {
    /// The same bytes, counted until they are dropped.
    pub(super) fn count(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        let slot = slot(self.check.load(Ordering::Relaxed));
        self.untaken[slot].fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Piece {
            bytes,
            slot,
            progress: Arc::clone(self),
        })
    }

    /// Resolves when a piece has been on its way for so long.
    pub(super) async fn stalled(&self, patience: Duration) {
        loop {
            tokio::time::sleep(patience / 4).await;
            if self.is_stalled() {
                return;
            }
        }
    }

    fn is_stalled(&self) -> bool {
        let now = self.check.fetch_add(1, Ordering::Relaxed) + 1;
        // A piece of check `now - CHECKS - 1` set out before that check ended: all the time ago.
        let Some(last) = now.checked_sub(CHECKS + 1) else {
            return false;
        };
        let untaken = |check| self.untaken[slot(check)].load(Ordering::Relaxed) > 0;
        (last.saturating_sub(1)..=last).any(untaken)
    }
}

fn slot(check: u64) -> usize {
    usize::try_from(check % SLOTS as u64).unwrap_or(0)
}

struct Piece {
    bytes: Bytes,
    slot: usize,
    progress: Arc<Progress>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.progress.untaken[self.slot].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_lies_for_all_checks_is_a_stall() {
        let progress = Arc::new(Progress::default());
        for _ in 0..20 {
            assert!(!progress.is_stalled());
        }
        let taken = progress.count(Bytes::from_static(b"x"));
        for _ in 0..CHECKS {
            assert!(!progress.is_stalled());
        }
        drop(taken);
        for _ in 0..20 {
            assert!(!progress.is_stalled(), "it was taken");
        }
        let lying = progress.count(Bytes::from_static(b"x"));
        let again = progress.count(Bytes::from_static(b"y"));
        drop(again);
        for _ in 0..CHECKS {
            assert!(!progress.is_stalled());
        }
        assert!(progress.is_stalled());
        assert_eq!(&lying[..], b"x");
    }
}
