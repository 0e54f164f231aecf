//! Obstacles of a new candidate that only people can remove: a missing permission, or a namespace that does not exist.
//!
//! They are explained once. A candidate gives up if they last, because a job that waits for a permission looks like one
//! that waits for its turn.

use std::time::{Duration, Instant};

use kube::Client;
use tenure_lock::duration::format as span;

use crate::rbac::{self, Needs};

/// Observes the obstacles of a new candidate.
pub(super) struct Obstacles {
    began: Instant,
    limit: Duration,
    explained: bool,
}

impl Obstacles {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            began: Instant::now(),
            limit,
            explained: false,
        }
    }

    /// Returns whether the time limit has passed.
    pub(super) fn is_over(&self) -> bool {
        self.began.elapsed() >= self.limit
    }

    /// Returns the time limit if an obstacle was met.
    pub(super) fn met(&self) -> Option<Duration> {
        self.explained.then_some(self.limit)
    }

    /// Handles an obstacle: prints the missing permissions the first time, and returns the reason to exit after the time
    /// limit.
    pub(super) fn meet(
        &mut self,
        why: &str,
        client: &Client,
        election: &str,
        needs: impl FnOnce() -> Needs,
    ) -> Option<String> {
        if self.is_over() {
            let limit = span(self.limit);
            return Some(format!("gave up after {limit} (--startup-timeout): {why}"));
        }
        if !std::mem::replace(&mut self.explained, true) {
            let (client, needs) = (client.clone(), needs());
            let election = election.to_owned();
            tokio::spawn(async move { rbac::explain(&client, &election, &needs, &needs).await });
        }
        None
    }
}
