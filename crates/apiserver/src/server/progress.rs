//! Detects clients that do not read their responses.
//!
//! A write timeout of the socket does not detect all of them. An HTTP/2 client may read from its connection and still
//! not read one response, whose memory stays allocated as long as the connection. Therefore every piece of a response
//! is tracked from the moment it is passed to the transport until its memory is freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

/// Number of checks within the write timeout.
const CHECKS: u64 = 4;
/// Number of slots. It exceeds the number of checks after which the connection of an unread piece is closed.
const SLOTS: usize = 8;

/// Pieces of one connection that are not freed yet, by the check at which they were passed to the transport.
#[derive(Debug, Default)]
pub(super) struct Progress {
    check: AtomicU64,
    untaken: [AtomicUsize; SLOTS],
}

impl Progress {
    /// Tracks bytes until they are dropped.
    pub(super) fn count(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        let slot = slot(self.check.load(Ordering::Relaxed));
        self.untaken[slot].fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Piece {
            bytes,
            slot,
            progress: Arc::clone(self),
        })
    }

    /// Resolves when a piece was not freed within `patience`.
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
        // A piece of check `now - CHECKS - 1` is at least `patience` old.
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
    fn piece_that_is_unread_for_all_checks_is_a_stall() {
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
            assert!(
                !progress.is_stalled(),
                "the piece was passed to the transport"
            );
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
