//! The rounds of an outlet that maintains an object in the cluster. A round happens at every change, and every few
//! seconds, because others may have changed the object.

use std::time::Duration;

use anyhow::Result;

use super::{PATIENCE, Queue, Share, newest};
use crate::api;

/// Interval at which the object is checked.
const AGAIN: Duration = Duration::from_secs(5);

/// Delay after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The rounds.
pub(super) struct Rounds {
    queue: Queue,
    failing: bool,
}

/// One round. A term that has ended is not released before its round is dropped.
pub(super) struct Round {
    shares: Vec<Share>,
}

impl Rounds {
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            queue,
            failing: false,
        }
    }

    /// Waits for the next round; `None` when the queue is closed.
    pub(super) async fn next(&mut self) -> Option<Round> {
        let pause = if self.failing { RETRY } else { AGAIN };
        tokio::select! {
            change = newest(&mut self.queue) => {
                let (_, shares) = change?;
                Some(Round { shares })
            }
            () = tokio::time::sleep(pause) => Some(Round { shares: Vec::new() }),
        }
    }

    /// Performs a round within the available time. Returns whether it succeeded. A failure is logged once, until a
    /// round succeeds again.
    pub(super) async fn make(
        &mut self,
        round: Round,
        what: &str,
        work: impl Future<Output = Result<()>>,
    ) -> bool {
        let limit = round.shares.iter().map(Share::left).min();
        let done = tokio::time::timeout(limit.unwrap_or(PATIENCE), work).await;
        let trouble = match done {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(api::plain(&error)),
            Err(_) => Some("no answer in time".to_owned()),
        };
        if let Some(trouble) = trouble.as_ref().filter(|_| !self.failing) {
            tracing::warn!(trouble, "cannot {what}");
        }
        self.failing = trouble.is_some();
        !self.failing
    }
}

impl Round {
    /// Returns whether the round reports the end of a term.
    pub(super) fn is_loss(&self) -> bool {
        !self.shares.is_empty()
    }
}
