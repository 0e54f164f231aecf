//! The rounds of an outlet that keeps something in the cluster as it should be: one with every change, and one
//! every few seconds, since others may have changed it.

use std::time::Duration;

use anyhow::Result;

use super::{PATIENCE, Queue, Share, newest};
use crate::api;

/// How often to look whether everything still is as it should be.
const AGAIN: Duration = Duration::from_secs(5);

/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The rounds.
pub(super) struct Rounds {
    queue: Queue,
    failing: bool,
}

/// One of them. A term that has ended is not given back before its round is dropped.
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

    /// Waits for the next one; `None` when there will be no more.
    pub(super) async fn next(&mut self) -> Option<Round> {
        let pause = if self.failing { RETRY } else { AGAIN };
        tokio::select! {
            news = newest(&mut self.queue) => {
                let (_, shares) = news?;
                Some(Round { shares })
            }
            () = tokio::time::sleep(pause) => Some(Round { shares: Vec::new() }),
        }
    }

    /// Goes through one, within the time that there is; whether that went well. What does not is said
    /// once, until it goes well again.
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
    /// It tells of the end of a term.
    pub(super) fn is_loss(&self) -> bool {
        !self.shares.is_empty()
    }
}
